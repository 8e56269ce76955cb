"""An archive's file in memory, and the stored arrays that lie in it.

Owns the mapping of a file and the arrays made of it. One mapping serves all
arrays of an archive: a checkpoint has thousands of them, and a process may not
open so many files.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, cast

import numpy as np

from npzkit.codecs import METHOD_NAMES, STORED
from npzkit.info import ArrayInfo
from npzkit.source import FileSource, Source

__all__ = ["FileMap", "why_not_mappable"]

_ACCESS = {"r": mmap.ACCESS_READ, "c": mmap.ACCESS_COPY}


class FileMap:
    """A whole file, mapped.

    Parameters
    ----------
    source : FileSource
        Only its descriptor is used, and not kept: the mapping outlives the
        file object, and the file's name.
    mode : {"r", "c"}
        Read-only, or copy-on-write.

    Raises
    ------
    ValueError
        The file is shorter than it was when the source was opened.
    """

    def __init__(self, source: Source, mode: str) -> None:
        self._filename = _filename(source)
        self._mode = mode
        self._map = mmap.mmap(source.file.fileno(), source.size, access=_ACCESS[mode])

    def array(self, info: ArrayInfo) -> np.memmap[Any, Any]:
        """Return the stored array that `info` describes, in the file's memory."""
        order = cast(Any, "F" if info.fortran_order else "C")
        shape = cast("tuple[int, ...]", info.shape)
        array: Any = np.ndarray.__new__(
            np.memmap, shape, info.dtype, self._map, info.data_offset, None, order
        )
        # What np.memmap sets for its users, for an array of its own mapping.
        array._mmap, array.filename = self._map, self._filename
        array.offset, array.mode = info.data_offset, self._mode
        return cast("np.memmap[Any, Any]", array)


def _filename(source: Source) -> Any:
    """Return what np.memmap tells its users: a path-like comes back as a Path."""
    if source.path is None:
        name = getattr(source.handle, "name", None)
        return os.path.abspath(name) if isinstance(name, str) else None
    if not source.is_pathlike:
        return source.path
    import pathlib

    return pathlib.Path(source.path).resolve()


def why_not_mappable(info: ArrayInfo, source: Source) -> tuple[str, str] | None:
    """Return the reason, and what else there is to do about it."""
    if info.dtype is None:
        return "it is not an array", ""
    if info.dtype.hasobject:
        return "it holds Python objects", ""
    if info.method != METHOD_NAMES[STORED]:
        return f"it is {info.method}", ", or save it with compression='stored'"
    if not isinstance(source, FileSource):
        return "the archive was not opened from a file", ", or open the archive by its path"
    return None
