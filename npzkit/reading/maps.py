"""Memory maps: an archive's file in memory, and the stored arrays in it.

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
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import numpy as np

from npzkit.errors import NotMappableError, NpzkitError, UnsupportedError, quiet_at_exit
from npzkit.files.disk import mapped
from npzkit.files.source import BufferSource, FileSource, Source
from npzkit.format.array import check_addressable
from npzkit.members.array_info import ArrayInfo
from npzkit.members.metadata import parse_attrs
from npzkit.members.tensors import check_long_double
from npzkit.reading.map_flush import MapFlush, path_of
from npzkit.zip.entries import Entry
from npzkit.zip.records import FLAG_DESCRIPTOR

_LARGEST_FILE = sys.maxsize // 8
"""Bytes of a file that is mapped as a whole: a 32-bit system has no addresses for more."""
_ACCESS = {"r": mmap.ACCESS_READ, "c": mmap.ACCESS_COPY}


class Maps:
    """The arrays of one archive that are mapped.

    Parameters
    ----------
    source : Source
    make_flush : callable
        Returns what writes the CRCs of members that are mapped for writing.
    """

    def __init__(self, source: Source, make_flush: Callable[[], MapFlush]) -> None:
        self._source, self._make_flush = source, make_flush
        self._file: mmap.mmap | None = None
        self._flush_of_file: MapFlush | None = None
        self._written: weakref.WeakSet[WritablePages] = weakref.WeakSet()

    def array(self, info: ArrayInfo, entry: Entry, mode: str) -> np.memmap[Any, Any]:
        """Map one member's array; `mode` is "r", "c" or "r+".

        Raises
        ------
        NotMappableError, StaleArchiveError, OSError
            As `npzkit.NpzFile.memmap`.
        ValueError
            The file is shorter than it was when it was opened.
        """
        _check_mappable(info, self._source, mode)
        if entry.extra:
            check_long_double(info.dtype, parse_attrs(entry.extra))
        check_addressable(cast(Any, info.shape), cast(Any, info.dtype))
        if isinstance(self._source, BufferSource):
            return _array(info, self._source.view_at(0, self._source.size), 0, mode, None)
        self._source.check_whole()
        if mode in _ACCESS:
            pages, start = self._pages(info, mode)
            return _array(info, pages, start, mode, _filename(self._source))
        if self._flush_of_file is None:
            self._flush_of_file = self._make_flush()
        array, pages = _map_writable(info, entry, self._source, self._flush_of_file)
        self._source.is_shared = True
        self._written.add(pages)
        return array

    def _pages(self, info: ArrayInfo, mode: str) -> tuple[mmap.mmap, int]:
        """Return pages that have an array, and where they begin in the file."""
        source = cast(FileSource, self._source)
        # By the descriptor alone: the map outlives the file object, and the file's name.
        pages_of = partial(source.call, partial(mapped, mmap.mmap), access=_ACCESS[mode])
        if source.size > _LARGEST_FILE:
            before = info.data_offset % mmap.ALLOCATIONGRANULARITY
            start = info.data_offset - before
            return pages_of(before + max(info.nbytes, 1), offset=start), start
        if mode == "c":
            # Each keeps changes of its own.
            return pages_of(source.size), 0
        if self._file is None:
            self._file = pages_of(source.size)
        return self._file, 0

    @property
    def has_writable(self) -> bool:
        """Whether arrays of mode "r+" are still there."""
        return any(not pages.closed for pages in self._written)

    def flush(self) -> None:
        """Write changes made through maps of mode "r+", and their CRC-32."""
        # They were flushed when Python ended.
        if not sys.is_finalizing():
            _flush_each(pages.flush for pages in list(self._written))

    def forget(self) -> None:
        """Close the file; arrays that are mapped keep their pages and write their own CRC."""
        self._file = self._flush_of_file = None


def _array(
    info: ArrayInfo, pages: mmap.mmap | memoryview, start: int, mode: str, filename: Any
) -> np.memmap[Any, Any]:
    """Make an array of pages, or memory, that begin at `start` in the file."""
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
    """Update the CRC of every mapped member when Python ends."""
    _flush_each(pages.flush_own for pages in list(_mapped))


def _flush_each(flushes: Iterable[Callable[[], None]]) -> None:
    """Flush all maps, even after one that fails; raise the first error."""
    errors = []
    for flush in flushes:
        try:
            flush()
        except (NpzkitError, OSError) as error:
            errors.append(error)
    if errors:
        raise errors[0]


Flush = Callable[[memoryview, int, int], None]
"""As `MapFlush.flush`, of one member."""


class WritablePages(mmap.mmap):
    """The pages of one stored member, for writing.

    Flushing them, also by the flush of an array, writes the member's current
    CRC-32s. So does the end of the last array, in the process that mapped it.
    """

    def track(self, flush: Flush, skipped: int, size: int) -> None:
        """Take what writes the CRC-32s, and where the member begins, and its bytes."""
        self._flush, self._skipped, self._size = flush, skipped, size
        self._process = os.getpid()
        _mapped.add(self)

    def flush(self, *args: int) -> None:
        """Flush all pages, or ``(offset, size)`` of them: then only their chunks are read."""
        super().flush(*args)
        offset, size = (*args, len(self))[:2] if args else (0, len(self))
        first = offset - self._skipped
        begin, end, _ = slice(max(first, 0), max(first + size, 0)).indices(self._size)
        with memoryview(self) as view, view[self._skipped :][: self._size] as member:
            self._flush(member, begin, end)

    def flush_own(self) -> None:
        """Flush in the process that mapped them; a forked child leaves that to it."""
        if hasattr(self, "_flush") and not self.closed and os.getpid() == self._process:
            self.flush()

    @quiet_at_exit
    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.flush_own()


def _map_writable(
    info: ArrayInfo, entry: Entry, source: Source, flush: MapFlush
) -> tuple[np.memmap[Any, Any], WritablePages]:
    """Map a stored member's array for writing."""
    if entry.flags & FLAG_DESCRIPTOR:
        raise UnsupportedError(
            "the member's CRC-32 is stored after its data, where it cannot be updated",
            remedy="npzkit.repack(path) writes it before the data; or map with mode='c'.",
        )
    size = entry.uncompressed_size
    start = info.data_offset + info.nbytes - size
    flush.fill_holes(start, size)
    before = start % mmap.ALLOCATIONGRANULARITY
    pages = mapped(WritablePages, flush.descriptor, before + size, offset=start - before)
    pages.track(partial(flush.flush, entry), before, size)
    return _array(info, pages, start - before, "r+", _filename(source)), pages


def _filename(source: Source) -> Any:
    """Return the filename as np.memmap does: a Path for a path-like."""
    if source.path is None or not source.is_pathlike:
        return source.path or path_of(source)
    import pathlib

    return pathlib.Path(source.path).resolve()


def _check_mappable(info: ArrayInfo, source: Source, mode: str) -> None:
    """Raise NotMappableError with the reason and an alternative."""
    reason, remedy = info.why_not_mappable, ""
    if reason is not None:
        if info.dtype is not None and not info.dtype.hasobject:
            remedy = ", or store it: npzkit.repack(path, compression='stored')"
    elif isinstance(source, BufferSource):
        if mode != "r":
            reason, remedy = "the archive is in memory", ", or map it with mode 'r'"
    elif not isinstance(source, FileSource):
        reason = "the archive was not opened from a file"
        remedy = ", or open the archive by its path"
    if reason is not None:
        raise NotMappableError(
            f"the member cannot be memory-mapped: {reason}",
            remedy=f"Read it with npz.read(key), or leave out mmap_mode{remedy}.",
        )
