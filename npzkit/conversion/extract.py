"""The arrays of an archive written to files: .npy files or text tables.

Owns which file each array becomes, and what happens to damaged ones.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal, NamedTuple, TextIO, cast

from npzkit.archive.npzfile import NpzFile
from npzkit.conversion.extract_stream import Wanted, extract_stream
from npzkit.conversion.output_paths import check_file_names, check_file_path, path_within, replacing
from npzkit.conversion.tables import check_delimiter, check_writable, write_array
from npzkit.datasets.opening import opened
from npzkit.errors import ConversionError, MemberNotFoundError, NpzkitError, StaleArchiveError
from npzkit.files.file_objects import can_write, cannot_seek
from npzkit.files.progress import Advance, Meter, Part, Report
from npzkit.members.info import ArrayInfo
from npzkit.members.keys import SUFFIX
from npzkit.reading.blocks import PIECE_SIZE, checked_array

_FORMATS = ("npy", "csv")


class ExtractReport(NamedTuple):
    """What `extract` wrote.

    Attributes
    ----------
    files : mapping of str to str
        The path of the file that each array was written to, by key.
    failed : mapping of str to NpzkitError
        Why an array could not be read, by key: it has no file. Empty unless
        ``skip=True``.
    """

    files: Mapping[str, str]
    failed: Mapping[str, NpzkitError]


def extract(
    file: Any,
    folder: str | os.PathLike[str] | BinaryIO = ".",
    keys: Iterable[str] | None = None,
    *,
    format: Literal["npy", "csv"] = "npy",  # noqa: A002 - as in other libraries
    delimiter: str = ",",
    skip: bool = False,
    overwrite: bool = False,
    progress: Report | None = None,
) -> ExtractReport:
    """Write the arrays of an archive to files.

    Slashes in a key become folders. No key leads out of the folder: names that
    would do so are refused. All names are checked before any file is written.
    Each file appears when it is complete and its CRC-32 was checked.

    Parameters
    ----------
    file : path, bytes-like, file object or NpzFile
        The archive. A file object that cannot seek, such as a pipe, is read
        from front to back. Files then get their names at its end.
    folder : path or binary file object, default "."
        A folder is created if necessary. A file object, such as ``sys.stdout.buffer``, takes
        one array.
    keys : iterable of str, optional
        The arrays to write; all by default.
    format : {"npy", "csv"}, default "npy"
        The kind of files. Tables hold arrays of plain values: two dimensions,
        or one of structures. Members that are not arrays are written as they
        are. Text is written as it is: a spreadsheet may take a cell that
        begins with ``=``, ``+``, ``-`` or ``@`` for a formula. Import columns of
        files from strangers as text.
    delimiter : str, default ","
        Of tables.
    skip : bool, default False
        Whether to skip damaged arrays and report them. By default the first
        one raises, and the files before it stay.
    overwrite : bool, default False
        Whether to replace files that exist.
    progress : callable, optional
        Called with the bytes done and the total: every few megabytes, and at
        the end. The total of a stream that cannot seek is that of the bytes so
        far.

    Returns
    -------
    ExtractReport

    Raises
    ------
    FileExistsError
        One of the files exists, and `overwrite` is False. Nothing is written.
    OSError
        The archive cannot be opened, or a file cannot be written.
    MemberNotFoundError
        A key is not in the archive.
    UnsafeNameError
        A name is not a safe file name, or two names are the same file on some systems.
    ConversionError
        An array is not a table, or a folder is where a file is to be written.
    NpzkitError
        An array is damaged, and `skip` is False; or the archive is damaged.
    ValueError, TypeError
        A bad argument.

    Notes
    -----
    The .npy files have the bytes of the archive's members: arrays of Python
    objects are written without unpickling them. Attributes and metadata are not
    written.

    Examples
    --------
    >>> import io, npzkit, numpy as np, os, tempfile
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"weights": np.eye(2), "layer/bias": np.zeros(2)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = npzkit.extract(stream, folder)
    ...     print(np.load(os.path.join(folder, "layer", "bias.npy")), list(report.files))
    [0. 0.] ['weights', 'layer/bias']
    """
    if format not in _FORMATS:
        raise ValueError(f"format must be 'npy' or 'csv', not {format!r}")
    if isinstance(keys, str):
        raise TypeError("keys must be an iterable of keys, not one str: [key]")
    delimiter = check_delimiter(delimiter)
    if can_write(folder):
        with opened(file) as npz:
            _extract_to_stream(npz, cast(BinaryIO, folder), keys, format, delimiter, progress)
        return ExtractReport({}, {})
    folder = os.fsdecode(cast(str, folder))
    if cannot_seek(file):
        chosen = None if keys is None else list(keys)
        how = Wanted(folder, chosen, format == "csv", delimiter, skip, overwrite)
        return ExtractReport(*extract_stream(file, how, progress))
    with opened(file) as npz:
        wanted = list(dict.fromkeys(npz.files if keys is None else keys))
        extraction = _Extraction(npz, format == "csv", delimiter, skip, {})
        targets = extraction.targets(wanted, folder, overwrite=overwrite)
        meter = Meter(progress, sum(npz.info(key).nbytes for key in targets))
        for key, path in targets.items():
            extraction.write(key, path, meter)
        meter.finish()
    failed = extraction.failed
    return ExtractReport({key: targets[key] for key in targets if key not in failed}, failed)


def _extract_to_stream(
    npz: NpzFile,
    out: BinaryIO,
    keys: Iterable[str] | None,
    kind: str,
    delimiter: str,
    progress: Report | None,
) -> None:
    """Write one array to a binary file object."""
    wanted = list(dict.fromkeys(npz.files if keys is None else keys))
    if len(wanted) != 1:
        raise ValueError(f"a file object takes one array, and {len(wanted)} are wanted")
    key = wanted[0]
    info = npz.info(key)
    meter = Meter(progress, info.nbytes)
    part = meter.part(info.nbytes)
    if kind == "csv" and is_table(info):
        # Unlike io.TextIOWrapper, it does not close the file object.
        text: Any = codecs.getwriter("utf-8")(out)
        write_table_of(npz, key, text, delimiter, part)
    else:
        write_member(npz, key, out, part.add)
    meter.finish()


class _Extraction(NamedTuple):
    """How members are written, and which of them failed."""

    npz: NpzFile
    as_tables: bool
    delimiter: str
    skip: bool
    failed: dict[str, NpzkitError]

    def targets(self, keys: Sequence[str], folder: str, *, overwrite: bool) -> dict[str, str]:
        """Return the path of each key's file, checked before any is written."""
        names = {}
        for key in keys:
            with self._skipping(key):
                info = self.npz.info(key)
                # An entry that ends in a slash says that there is a folder.
                if not info.member.endswith("/") or info.nbytes:
                    names[key] = self._name(info)
        check_file_names(names.values())
        targets = {key: path_within(folder, name) for key, name in names.items()}
        for path in targets.values():
            check_file_path(path, overwrite=overwrite)
        return targets

    def _name(self, info: ArrayInfo) -> str:
        if info.dtype is None or (self.as_tables and not is_table(info)):
            return info.member
        return f"{info.member.removesuffix(SUFFIX)}.{'csv' if self.as_tables else 'npy'}"

    def write(self, key: str, path: str, meter: Meter) -> None:
        """Write one file, which appears when it is complete."""
        part = meter.part(self.npz.info(key).nbytes)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with self._skipping(key), replacing(path) as temporary:
            if self.as_tables and self.npz.info(key).dtype is not None:
                with open(temporary, "x", encoding="utf-8", newline="") as text:
                    write_table_of(self.npz, key, text, self.delimiter, part)
            else:
                with open(temporary, "xb") as out:
                    write_member(self.npz, key, out, part.add)
        part.end()

    @contextlib.contextmanager
    def _skipping(self, key: str) -> Iterator[None]:
        """Note that an array is damaged, if that is wanted."""
        try:
            yield
        except (ConversionError, MemberNotFoundError, StaleArchiveError):
            raise
        except NpzkitError as error:
            if not self.skip:
                raise
            self.failed[key] = error


def is_table(info: ArrayInfo) -> bool:
    """Return whether a member is an array that is a table.

    Raises
    ------
    ConversionError
        It is an array, and not a table.
    """
    if info.dtype is None or info.shape is None:
        return False
    check_writable(info.shape, info.dtype, info.key)
    return True


def write_member(npz: NpzFile, key: str, out: BinaryIO, advance: Advance) -> None:
    """Write a member's bytes, which are an .npy file's; their CRC-32 is checked at the end."""
    with npz.stream(key) as stream:
        while piece := stream.read(PIECE_SIZE):
            out.write(piece)
            advance(len(piece))


def write_table_of(npz: NpzFile, key: str, out: TextIO, delimiter: str, part: Part) -> None:
    """Write an array as text, in parts if it is large."""
    write_array(checked_array(npz, key, part.add), out, delimiter, part.add)
