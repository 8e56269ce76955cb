"""Archives from and to other formats, by the names of the files.

Owns which format a path means, what happens to arrays that it cannot hold, and
that a library's exception for a damaged file becomes an error of npzkit.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

from npzkit.codecs.methods import DEFLATED, check_level, method_number
from npzkit.conversion import npy_folder
from npzkit.conversion.arrays import Array, Contents, Options, Say
from npzkit.conversion.output_paths import check_absent, check_file_path, replacing
from npzkit.conversion.stores import why_nested
from npzkit.datasets.opening import holds_index, is_sharded, open
from npzkit.errors import (
    ConversionError,
    FormatError,
    NpzkitError,
    UnsupportedError,
    printable,
    shown_url,
)
from npzkit.files.destinations import open_destination
from npzkit.files.file_objects import check_regular
from npzkit.files.progress import Meter, Report
from npzkit.files.sink import Sink
from npzkit.files.urls import (
    Location,
    default_storage_options,
    find_locations,
)
from npzkit.maintenance.repack import repack
from npzkit.members.keys import check_key
from npzkit.writing.coding import level_for


class ConvertReport(NamedTuple):
    """What `convert` wrote.

    Attributes
    ----------
    output : str
        The path of the file or folder.
    keys : tuple of str
        The keys of its arrays, in their order.
    notes : tuple of str
        What was not kept or changed, a sentence each.
    skipped : mapping of str to str
        Why an array was left out, by key. Empty unless ``skip=True``.
    """

    output: str
    keys: tuple[str, ...]
    notes: tuple[str, ...]
    skipped: Mapping[str, str]


class _Format(NamedTuple):
    """A format, and the library that it needs.

    Attributes
    ----------
    module : str
        Within `npzkit.conversion`. It has ``read(path, say)``, a context manager
        that gives the file's `Contents`; ``why_unfit(array)``, the reason why an
        array cannot be kept, or None; and ``write(path, contents, options, say)``,
        which makes a new file or folder. It is imported when a file of its kind
        is met, and its library with it.
    extra : str
        npzkit's extra that installs the library; empty if none is needed.
    library : str
    """

    module: str
    extra: str = ""
    library: str = ""


_NPZ, _FOLDER, _ZARR = _Format("npz"), _Format("npy_folder"), _Format("zarr_store", "zarr", "zarr")
_SUFFIXES = {
    ".npz": _NPZ,
    ".safetensors": _Format("safetensors_file", "safetensors", "safetensors"),
    ".h5": _Format("hdf5", "h5", "h5py"),
    ".hdf5": _Format("hdf5", "h5", "h5py"),
    ".zarr": _ZARR,
    ".mat": _Format("matlab", "mat", "scipy"),
}
_STORE_FILES = ("zarr.json", ".zgroup", ".zarray")
"""One of them is in the folder of a Zarr store."""
_SHOWN_LENGTH = 200
"""Characters of a library's message that are quoted."""


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    compression: Literal["stored", "deflated"] | int | None = None,
    level: int | None = None,
    zarr_format: Literal[2, 3] = 3,
    skip: bool = False,
    overwrite: bool = False,
    progress: Report | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ConvertReport:
    """Convert a file of arrays to another format, chosen by the file names.

    ============================  ===========================  ==================
    name                          format                       needs
    ============================  ===========================  ==================
    ``.npz``                      an archive
    ``.safetensors``              safetensors                  ``safetensors``
    ``.h5``, ``.hdf5``            HDF5                         ``h5py``
    ``.zarr``                     a folder that Zarr reads     ``zarr``
    ``.mat``                      MATLAB, version 5            ``scipy``
    no suffix, or ends in ``/``   a folder of .npy files
    ============================  ===========================  ==================

    Keys, attributes and metadata are kept if the new format has a place for
    them. Large arrays are converted in parts, so that they take little memory;
    .mat needs the memory of the largest array.

    Parameters
    ----------
    src : path or URL
        The file or folder to read. A URL must be of an .npz archive. A folder
        with an ``index.json`` of npzkit is a sharded archive. Only this file or
        folder is read: links and data in other files are not followed.
    dst : path or URL
        The file or folder to write. It appears when it is complete. URLs are as
        in `NpzWriter`, and are for .npz archives.
    compression : {"stored", "deflated"} or int, optional
        By default arrays are stored; those of .zarr are compressed as zarr does
        by default, and from .npz to .npz each array keeps its method.
    level : int, optional
        0 to 9, for ``compression="deflated"``.
    zarr_format : {3, 2}
        The version of Zarr that is written.
    skip : bool, default False
        Whether to leave out arrays that `dst` cannot hold and report them. By
        default the first one raises.
    overwrite : bool, default False
        Whether to replace a file at `dst`. A folder is replaced only if it is
        a Zarr store, or holds nothing but .npy files. An empty folder is used.
    progress : callable, optional
        Called with the bytes done and the total: every few megabytes, and at
        the end.
    storage_options : dict, optional
        For the stores of `src` and `dst`, if they are URLs; see `npzkit.open`.

    Returns
    -------
    ConvertReport

    Raises
    ------
    FileExistsError
        `dst` exists, and `overwrite` is False.
    OSError
        `src` cannot be read, or `dst` cannot be written.
    ConversionError
        A name has no known format, `dst` cannot be replaced, or an array has no
        place in the new format and `skip` is False.
    FormatError
        `src` is damaged.
    UnsupportedError
        The library of a format is not installed.
    NpzkitError
        An archive is damaged, as of `NpzFile.read`.
    ValueError
        A bad argument.

    Notes
    -----
    If there is an error, `dst` stays as it was.

    Examples
    --------
    >>> import npzkit, numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.npz")
    ...     npzkit.save(path, {"layer/w": np.eye(2), "b": np.ones(2)}, metadata={"step": 1})
    ...     report = npzkit.convert(path, os.path.join(folder, "arrays"))
    ...     print(report.keys, report.notes)
    ...     print(np.load(os.path.join(folder, "arrays", "layer", "w.npy")))
    ('layer/w', 'b') ('the metadata is not kept: .npy files have no place for it',)
    [[1. 0.]
     [0. 1.]]
    """
    options = _options(compression, level, zarr_format)
    location, destination = find_locations((src, dst), storage_options)
    is_url = isinstance(location, Location)
    dst = str(destination) if isinstance(destination, Location) else os.fsdecode(destination)
    src = location.url if is_url else os.fsdecode(location)
    source = _distant_format(location) if is_url else _source_format(src)
    target = _target_format(dst)
    sink = None
    if isinstance(destination, Location):
        sink = _sink(destination, target, overwrite=overwrite)
    else:
        _check_target(dst, target, overwrite=overwrite)
    with default_storage_options(location.options) if is_url else nullcontext():
        if source == target == _NPZ and not is_sharded(src):
            repack(src, sink or dst, compression, level=level, progress=progress)
            with open(destination) as npz:
                return ConvertReport(dst, tuple(npz.files), (), {})
        conversion = _Conversion(src, source, dst, target, options, skip, {}, {}, sink)
        keys = conversion.run(progress or (lambda done, total: None))
    return ConvertReport(dst, tuple(keys), tuple(conversion.notes), conversion.skipped)


def _options(compression: Any, level: int | None, zarr_format: int) -> Options:
    """Check arguments."""
    if zarr_format not in (2, 3):
        raise ValueError(f"zarr_format must be 2 or 3, not {zarr_format!r}")
    if compression is None:
        return Options(None, check_level(level), zarr_format)
    method = method_number(compression)
    name = "deflated" if method == DEFLATED else "stored"
    return Options(name, level_for(method, level), zarr_format)


def _source_format(path: str) -> _Format:
    os.stat(path)
    if holds_index(path):
        return _NPZ
    if os.path.isdir(path):
        return _ZARR if _is_store(path) else _FOLDER
    check_regular(path)
    found = _SUFFIXES.get(os.path.splitext(path)[1].lower())
    if found is None or found is _ZARR:
        raise ConversionError(
            f"the file is not a folder, and its suffix is none of {' '.join(_SUFFIXES)}", path=path,
            remedy="Use npzkit.pack for .npy files.",
        )  # fmt: skip
    return found


def _distant_format(location: Location) -> _Format:
    """Return the format of what a URL names: an archive, unless its name says otherwise."""
    if _SUFFIXES.get(os.path.splitext(location.file_name)[1].lower(), _NPZ) is not _NPZ:
        raise UnsupportedError(
            "only .npz archives can be read from a store", path=str(location),
            remedy="Download the file, and convert the copy.",
        )  # fmt: skip
    return _NPZ


def _is_store(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, name)) for name in _STORE_FILES)


def _target_format(path: str) -> _Format:
    if not path:
        raise ConversionError("the path of the new file is empty")
    name = path.rstrip("/" + os.sep)
    is_folder = name != path
    suffix = os.path.splitext(name)[1].lower()
    found = _SUFFIXES.get(suffix, _FOLDER)
    if found not in (_ZARR, _FOLDER) and is_folder:
        raise ConversionError(
            "the path ends in a slash, but this format is a file", path=path,
            remedy="Remove the slash.",
        )  # fmt: skip
    if found is _FOLDER and suffix and not is_folder:
        raise ConversionError(
            f"the path's suffix is none of {' '.join(_SUFFIXES)}", path=path,
            remedy="Add a slash for a folder of .npy files.",
        )  # fmt: skip
    return found


def _sink(location: Location, target: _Format, *, overwrite: bool) -> Sink:
    """Return where to write an archive in a store."""
    if target is not _NPZ:
        raise UnsupportedError(
            "only .npz archives can be written to a store", path=str(location),
            remedy="Convert to a path, and upload the file.",
        )  # fmt: skip
    return open_destination(location, exclusive=not overwrite)


def _check_target(path: str, target: _Format, *, overwrite: bool) -> None:
    """Check that nothing is at `path`, or that it may be replaced."""
    if target not in (_FOLDER, _ZARR):
        check_file_path(path, overwrite=overwrite)
    elif not os.path.isdir(path):
        check_absent(path, overwrite=overwrite)
    elif os.listdir(path):
        check_absent(path, overwrite=overwrite)
        if not (_is_store(path) if target is _ZARR else npy_folder.can_replace(path)):
            raise ConversionError(
                "the folder holds files that are not arrays, so it is not replaced", path=path,
                remedy="Remove it, or choose another folder.",
            )  # fmt: skip


def _module(found: _Format) -> Any:
    """Import a format's module, or say what to install."""
    try:
        return importlib.import_module(f"npzkit.conversion.{found.module}")
    except ImportError as error:
        if not found.library or (error.name or "").split(".")[0] == "npzkit":
            raise
        raise UnsupportedError(
            f"this format needs the package {found.library}, which is not installed",
            remedy=f"Install it: python -m pip install 'npzkit[{found.extra}]'",
        ) from error


class _Conversion(NamedTuple):
    """One conversion, and what there is to say about it."""

    src: str
    source: _Format
    dst: str
    target: _Format
    options: Options
    skip: bool
    notes: dict[str, None]
    skipped: dict[str, str]
    sink: Sink | None

    def run(self, progress: Report) -> list[str]:
        """Write the new file or folder, and return its keys."""
        reader, writer = _module(self.source), _module(self.target)
        say: Say = self.notes.setdefault
        report, is_users = _marking(progress)
        with self._explaining(is_users), reader.read(self.src, say) as contents:
            arrays = list(self._fitting(contents.arrays, writer))
            meter = Meter(report, sum(array.work for array in arrays))
            counted = [array.watched(meter.add) for array in arrays]
            with replacing(self.dst) if self.sink is None else nullcontext(self.sink) as place:
                writer.write(place, Contents(contents.metadata, counted), self.options, say)
            meter.finish()
        return [array.key for array in arrays]

    def _fitting(self, arrays: list[Array], writer: Any) -> Iterator[Array]:
        """Yield the arrays that the new format has a place for; raise for others, or skip them."""
        keys = {array.key: array for array in arrays}
        for array in arrays:
            reason = array.problem or _why_unfit(array, writer, keys)
            if not reason:
                yield array
            elif self.skip:
                self.skipped[array.key] = reason
            else:
                raise ConversionError(
                    f"the array cannot be kept: {reason}", key=array.key,
                    remedy="Leave it out with skip=True.",
                )  # fmt: skip

    @contextlib.contextmanager
    def _explaining(self, is_users: Callable[[Exception], bool]) -> Iterator[None]:
        """Turn every exception of a library for a damaged file into one error."""
        try:
            yield
        except NpzkitError as error:
            raise error.locate(path=shown_url(self.src)) from error.__cause__
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            if is_users(error) or (isinstance(error, OSError) and _is_of_system(error)):
                raise
            text = printable(" ".join(str(error).split()))[:_SHOWN_LENGTH] or type(error).__name__
            raise FormatError(
                f"the file cannot be converted to {self.dst!r}: {text}", path=shown_url(self.src)
            ) from error


def _marking(progress: Report) -> tuple[Report, Callable[[Exception], bool]]:
    """Return `progress`, and a function that tells whether it raised an exception."""
    raised: list[BaseException] = []

    def report(done: int, total: int) -> None:
        try:
            progress(done, total)
        except BaseException as error:
            raised.append(error)
            raise

    return report, lambda error: any(error is other for other in raised)


def _why_unfit(array: Array, writer: Any, keys: Mapping[str, Array]) -> str | None:
    try:
        check_key(array.key)
    except NpzkitError as error:
        return error.what
    if getattr(writer, "NESTED", False) and (reason := why_nested(keys, array.key)):
        return reason
    found: str | None = writer.why_unfit(array)
    return found


def _is_of_system(error: OSError) -> bool:
    """Return whether the system raised an error, such as for a full disk, and not a library."""
    if error.filename is not None:
        return True
    return error.errno is not None and error.strerror == os.strerror(error.errno)
