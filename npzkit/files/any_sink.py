"""Opening a sink wherever an archive goes: to a path, a URL, a file object.

Owns the choice between them.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from npzkit.errors import UnsupportedError
from npzkit.files.any_source import stores
from npzkit.files.disk import check_binary
from npzkit.files.file_objects import can_write, check_regular
from npzkit.files.sink import FileSink, Sink
from npzkit.files.urls import Location

_CONVERT = 'Name it .npz; npzkit.convert("{stem}.npz", path) then writes that format.'
_FOR_TORCH = "Name it .npz; npzkit.load_tree reads it as torch.load would."
_OTHER_FORMATS = {
    ".h5": _CONVERT,
    ".hdf5": _CONVERT,
    ".safetensors": _CONVERT,
    ".zarr": _CONVERT,
    ".mat": _CONVERT,
    ".pt": _FOR_TORCH,
    ".pth": _FOR_TORCH,
    ".npy": "Name it .npz. numpy.save writes a .npy, of one array.",
}
"""Suffixes under which other programs look for other bytes, and what to do."""


def open_any_sink(
    file: Any,
    *,
    exclusive: bool = False,
    durable: bool = False,
    lock_timeout: float = 0.0,
    tag: str = "",
) -> Sink:
    """Return a sink for a new archive at a path, in a store, or in a file object with ``write``.

    Devices and pipes are written to directly, without a temporary file.

    Parameters
    ----------
    file : Location, Sink, path or file object
        A sink is returned as it is.
    exclusive : bool
        Raise FileExistsError if the file or object exists.
    durable, lock_timeout
        For paths; see `npzkit.files.new_file.NewFile`.
    tag : str
        For stores: replace only the object with this `npzkit.files.source.Source.tag`.

    Raises
    ------
    FileExistsError
        `exclusive` is true, and the path already exists.
    UnsupportedError
        The name is that of a file of another format.
    ArchiveLockedError
        Another writer has the existing file open.
    OSError
        The temporary file cannot be created: no such directory, no permission.
    """
    if isinstance(file, Sink):
        return file
    if not can_write(file):
        check_name(str(file) if isinstance(file, Location) else os.fsdecode(file))
    if isinstance(file, Location):
        sink: Sink = stores().open_sink(file, exclusive=exclusive, tag=tag)
        return sink
    if can_write(file):
        check_binary(file, "wb")
        return FileSink(file)
    path = os.fspath(file)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if not os.path.basename(path):
            # The path is empty or ends with a slash, and names no file.
            raise
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode) and not exclusive:
        if stat.S_ISDIR(mode):
            check_regular(path)
        return FileSink(open(path, "wb", buffering=0), owned=True)
    # Small archives do without (`npzkit.files.new_file_at_once`).
    from npzkit.files.new_file import new_file
    from npzkit.files.path_sink import PathSink

    return PathSink(new_file(path, exclusive=exclusive, durable=durable, lock_timeout=lock_timeout))


def check_name(path: str) -> None:
    """Refuse the name of a file of another format."""
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in _OTHER_FORMATS:
        raise UnsupportedError(
            f"an archive under a name that ends with {suffix} would be taken for another format",
            path=path, remedy=_OTHER_FORMATS[suffix.lower()].format(stem=os.path.basename(stem)),
        )  # fmt: skip
