"""An archive's file in memory, and the stored arrays that lie in it.

Owns the mapping of a file and the arrays made of it. One mapping serves all
read-only arrays of an archive: a checkpoint has thousands of them, and a
process may not open so many files. A writable array has a mapping of its own,
which knows when the member's CRC-32 must follow what was written.
"""

from __future__ import annotations

import atexit
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from npzkit.codecs import crc32
from npzkit.disk import File
from npzkit.errors import NotMappableError, NpzkitError, StaleArchiveError
from npzkit.info import ArrayInfo
from npzkit.locking import holding
from npzkit.source import FileSource, Source, open_source
from npzkit.zip.entries import Entry
from npzkit.zip.reseal import Seals, check_resealable

__all__ = ["FileMap", "WritablePages", "map_writable", "open_for_writing", "why_not_mappable"]

_FLUSH_TIMEOUT = 5.0
"""Seconds that a flush waits for a writer who may be about to list the old CRC."""
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
        return _array(info, self._map, 0, self._mode, self._filename)


def _array(
    info: ArrayInfo, pages: mmap.mmap, start: int, mode: str, filename: Any
) -> np.memmap[Any, Any]:
    """Make an array of pages that begin at `start` in the file."""
    order = cast(Any, "F" if info.fortran_order else "C")
    shape = cast("tuple[int, ...]", info.shape)
    array: Any = np.ndarray.__new__(
        np.memmap, shape, info.dtype, pages, info.data_offset - start, None, order
    )
    # What np.memmap sets for its users, for an array of its own mapping.
    array._mmap, array.filename = pages, filename
    array.offset, array.mode = info.data_offset, mode
    return cast("np.memmap[Any, Any]", array)


_mapped: weakref.WeakSet[WritablePages] = weakref.WeakSet()


@atexit.register
def _flush_all() -> None:
    """Leave no member with a CRC that is not its own when Python ends."""
    errors = []
    for pages in list(_mapped):
        try:
            pages.flush_own()
        except (NpzkitError, OSError) as error:
            errors.append(error)
    if errors:
        raise errors[0]


class WritablePages(mmap.mmap):
    """The pages of one stored member, for writing.

    Flushing them, as the flush of an array over them does, also writes the
    member's CRC-32 as it is then; so does the end of the last array, in the
    process that mapped it.
    """

    def track(self, seal: Callable[[int], None], crc: int, skipped: int, size: int) -> None:
        """Take what writes the CRC, the one that is written, and where the member lies."""
        self._seal, self._crc, self._skipped, self._size = seal, crc, skipped, size
        self._process = os.getpid()
        _mapped.add(self)

    def flush(self, *args: int) -> None:
        super().flush(*args)
        with memoryview(self) as view, view[self._skipped : self._skipped + self._size] as member:
            crc = crc32(member)
        if crc != self._crc:
            self._seal(crc)
            self._crc = crc

    def flush_own(self) -> None:
        """Flush in the process that mapped them; a forked child leaves that to it."""
        if hasattr(self, "_seal") and not self.closed and os.getpid() == self._process:
            self.flush()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.flush_own()


def map_writable(
    info: ArrayInfo,
    entry: Entry,
    start: int,
    source: Source,
    seals: Seals,
    done: Callable[[str, int], None],
) -> tuple[np.memmap[Any, Any], WritablePages]:
    """Map a stored member's array for writing.

    Parameters
    ----------
    info, entry
        Of the member.
    start : int
        Where its bytes begin in the file.
    source : FileSource
    seals : Seals
        From `open_for_writing`; one for all maps of an archive.
    done : callable
        Called with the member's name and its CRC, when that was written.
    """
    check_resealable(entry)
    descriptor = seals.file.descriptor
    before = start % mmap.ALLOCATIONGRANULARITY
    size = entry.uncompressed_size
    pages = WritablePages(descriptor, before + size, offset=start - before)

    def seal(crc: int) -> None:
        with (
            os.fdopen(os.dup(descriptor), "rb", buffering=0) as reader,
            holding(descriptor, source.path, _FLUSH_TIMEOUT),
        ):
            seals.write(open_source(reader), entry, crc)
        done(entry.name, crc)
        if source.path is not None:
            _check_same(source.path, descriptor)

    # The descriptor is open for as long as `seals` is.
    pages.track(seal, entry.crc32, before, size)
    return _array(info, pages, start - before, "r+", _filename(source)), pages


def open_for_writing(source: Source, starts: Sequence[int], opened: tuple[int, int]) -> Seals:
    """Open the source's file for writing, for all of its maps; arguments as of `Seals`.

    Raises
    ------
    NotMappableError
        A caller's file object is open for reading alone.
    StaleArchiveError
        The path leads to another file by now.
    OSError
        The file cannot be opened for writing.
    """
    return Seals(_open_for_writing(source), starts, opened)


def _open_for_writing(source: Source) -> File:
    """Open the source's file again, or take the caller's, which is open for writing."""
    if source.path is None:
        if not source.file.writable():
            raise NotMappableError(
                "the member cannot be mapped for writing: the file object is open for reading",
                remedy="Open it with mode 'r+b', or open the archive by its path.",
            )
        return File(None, source.file.fileno())
    file = File(source.path)
    _check_same(source.path, source.file.fileno())
    return file


def _check_same(path: str, descriptor: int) -> None:
    """Raise where a file was put in the place of the one that is open."""
    here = os.fstat(descriptor)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return
    if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
        raise StaleArchiveError(
            "the path leads to another file than the one that is open and mapped",
            path=path,
            remedy="Open it again; what was written through the map is in the old file alone.",
        )


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
    reason = info.why_not_mappable
    if reason is not None:
        is_compressed = info.dtype is not None and not info.dtype.hasobject
        remedy = ", or store it: npzkit.repack(path, compression='stored')"
        return reason, remedy if is_compressed else ""
    if not isinstance(source, FileSource):
        return "the archive was not opened from a file", ", or open the archive by its path"
    return None
