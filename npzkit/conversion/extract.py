"""The arrays of an archive written to files: .npy files or text tables.

Owns which file each array becomes, and what happens to damaged ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, cast

from npzkit.archive.npzfile import NpzFile
from npzkit.conversion.arrays import without_arrays
from npzkit.conversion.csv_tables import check_delimiter, check_is_table, write_table
from npzkit.conversion.output_paths import check_path, path_within, replacing, same_files
from npzkit.conversion.refusals import RENAMED
from npzkit.datasets.opening import opened
from npzkit.display.blocks import PIECE_SIZE, checked_array
from npzkit.errors import MemberNotFoundError, NpzkitError, StaleArchiveError, UnsafeNameError
from npzkit.files.file_objects import can_write, seekable
from npzkit.files.progress import Advance, Meter
from npzkit.limits import Limits
from npzkit.members.array_info import ArrayInfo
from npzkit.members.keys import SUFFIX
from npzkit.members.metadata import TREE_KEY
from npzkit.trees.containers import without_note

if TYPE_CHECKING:
    from npzkit.typing import ArchiveLike, Progress


class ExtractReport(NamedTuple):
    """What `extract` wrote.

    Attributes
    ----------
    files : mapping of str to str
        The path of the file that each array was written to, by key.
    failed : mapping of str to NpzkitError
        Why an array has no file, by key. Empty unless ``skip=True``.
    notes : tuple of str
        What of the archive has no place in such files, a sentence each. Empty if only some
        arrays were asked for.
    """

    files: Mapping[str, str]
    failed: Mapping[str, NpzkitError]
    notes: tuple[str, ...] = ()


def extract(
    file: ArchiveLike,
    folder: str | os.PathLike[str] | BinaryIO = ".",
    keys: Iterable[str] | None = None,
    *,
    format: Literal["npy", "csv"] = "npy",  # noqa: A002 - as in other libraries
    delimiter: str = ",",
    skip: bool = False,
    overwrite: bool = False,
    verify: bool = True,
    limits: Limits | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ExtractReport:
    """Write the arrays of an archive to files.

    Slashes in a key become folders. No key leads out of the folder: names that
    would do so are refused. All names are checked before any file is written.
    Each file appears when it is complete and its CRC-32 was checked.

    Parameters
    ----------
    file : path, URL, bytes-like, file object or NpzFile
        The archive. A file object that cannot seek, such as a pipe, is copied
        to a temporary file first.
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
        Whether to skip what cannot be written, and report it: damaged arrays, names
        that are no safe file names, arrays that are no tables. By default the first
        damaged array raises, and the files before it stay; the others raise before
        any file is written.
    overwrite : bool, default False
        Whether to replace files that exist.
    verify : bool, default True
        Compare the CRC-32 of each array. False writes damaged data as it is, if the header
        and the size are right.
    limits : Limits, optional
        As in `npzkit.open`, before anything is written; not with an `NpzFile`, which has its own.
    progress : callable, optional
        Called with the bytes done and the total: every few megabytes, and at
        the end.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

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
        A name is not a safe file name, or two names are the same file on some systems, and
        `skip` is False.
    ConversionError
        An array is not a table, and `skip` is False; or a folder is where a file is to be
        written.
    NpzkitError
        An array is damaged, and `skip` is False; or the archive is damaged.
    ValueError, TypeError
        A bad argument.

    Notes
    -----
    The .npy files have the bytes of the archive's members: arrays of Python
    objects are written without unpickling them. Attributes, metadata and values of nested
    data that are no arrays are not written.

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
    if format not in ("npy", "csv"):
        raise ValueError(f"format must be 'npy' or 'csv', not {format!r}")
    if isinstance(keys, str):
        raise TypeError("keys must be an iterable of keys, not one str: [key]")
    check_delimiter(delimiter)
    with (
        seekable(file) as source,
        opened(source, limits=limits, storage_options=storage_options) as npz,
    ):
        how = _Extraction(npz, delimiter if format == "csv" else None, skip, verify, {})
        wanted = list(dict.fromkeys(npz.files if keys is None else keys))
        if can_write(folder):
            if len(wanted) != 1:
                raise ValueError(f"a file object takes one array, and {len(wanted)} are wanted")
            how.write({wanted[0]: folder}, progress)
            return ExtractReport({}, {})
        targets = how.targets(wanted, os.fsdecode(cast(str, folder)), overwrite=overwrite)
        notes = tuple(_not_kept(npz, targets)) if keys is None else ()
        how.write(targets, progress)
    files = {key: path for key, path in targets.items() if key not in how.failed}
    return ExtractReport(files, how.failed, notes)


def _not_kept(npz: NpzFile, keys: Iterable[str]) -> Iterator[str]:
    """Yield notes of what only an archive has a place for."""
    for values in without_arrays(npz.metadata.get(TREE_KEY)):
        yield f"{values}; not kept"
    if without_note(npz.metadata)[0] or any(npz.info(key).attrs for key in keys):
        yield "metadata, and attributes of arrays, are not kept: only archives have them"


class _Extraction(NamedTuple):
    """How members are written, and which of them failed.

    Attributes
    ----------
    npz : NpzFile
    delimiter : str or None
        Of tables; None for .npy files.
    skip, verify : bool
    failed : dict of str to NpzkitError
    """

    npz: NpzFile
    delimiter: str | None
    skip: bool
    verify: bool
    failed: dict[str, NpzkitError]

    def targets(self, keys: Iterable[str], folder: str, *, overwrite: bool) -> dict[str, str]:
        """Return the path of each key's file, checked before any is written."""
        names, targets = {}, {}
        for key in keys:
            with self._skipping(key):
                info = self.npz.info(key)
                # An entry that ends in a slash says that there is a folder.
                if not info.member.endswith("/") or info.nbytes:
                    suffix = ".csv" if self._is_table(info) else SUFFIX
                    plain = info.member.removesuffix(SUFFIX) + suffix
                    name = info.member if info.dtype is None else plain
                    targets[key] = path_within(folder, name)
                    names[name] = key
        for error in same_files(names):
            with self._skipping(key := cast(str, error.key)):
                targets.pop(key, None)
                raise error
        for path in targets.values():
            check_path(path, overwrite=overwrite)
        return targets

    def _is_table(self, info: ArrayInfo) -> bool:
        """Whether a member becomes a table; raise ConversionError if it cannot."""
        if self.delimiter is None or info.dtype is None or info.shape is None:
            return False
        check_is_table(info.shape, info.dtype, info.key)
        return True

    def write(self, targets: Mapping[str, Any], progress: Progress | None) -> None:
        """Write each member to its path or file object."""
        meter = Meter(progress, sum(self.npz.info(key).nbytes for key in targets))
        for key, target in targets.items():
            part = meter.part(self.npz.info(key).nbytes)
            if not isinstance(target, str):
                self._write(key, target, part.add)
                continue
            with self._skipping(key):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with replacing(target) as temporary, open(temporary, "xb") as out:
                    self._write(key, out, part.add)
            part.end()
        meter.finish()

    def _write(self, key: str, out: BinaryIO, advance: Advance) -> None:
        """Write a table, or a member's bytes, which are an .npy file's; their CRC-32 is checked."""
        npz, info, verify = self.npz, self.npz.info(key), self.verify
        if self._is_table(info):
            array = checked_array(npz, key, advance) if verify else npz.lazy(key, verify=False)
            has_mask = info.is_masked and info.split_into[0] in npz
            mask = npz.lazy(info.split_into[0], verify=verify) if has_mask else None
            write_table(array, mask, out, self.delimiter or "", advance)
            return
        with npz.stream(key, verify=verify) as stream:
            while piece := stream.read(PIECE_SIZE):
                out.write(piece)
                advance(len(piece))

    @contextlib.contextmanager
    def _skipping(self, key: str) -> Iterator[None]:
        """Note that an array cannot be written, if that is wanted."""
        try:
            yield
        except (MemberNotFoundError, StaleArchiveError):
            raise
        except NpzkitError as error:
            error.locate(key=key)
            if not self.skip:
                raise
            self.failed[key] = error.locate(path=self.npz._archive.path)
        except OSError as error:
            if not self.skip or error.errno != errno.ENAMETOOLONG:
                raise
            self.failed[key] = UnsafeNameError(
                "its key is too long for the name of a file", key=key,
                path=self.npz._archive.path, remedy="Give it a shorter one" + RENAMED,
            )  # fmt: skip
