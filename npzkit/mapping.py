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

__all__ = ["Maps"]

_FLUSH_TIMEOUT = 5.0
"""Seconds that a flush waits for a writer who may be about to list the old CRC."""
_ACCESS = {"r": mmap.ACCESS_READ, "c": mmap.ACCESS_COPY}


class Maps:
    """The arrays of one archive that are mapped.

    Parameters
    ----------
    source : Source
    starts, opened
        As of `npzkit.zip.reseal.Seals`.
    resealed : dict of str to int
        Takes the CRC-32 of each member whose own was written anew, by its name.
    """

    def __init__(
        self,
        source: Source,
        starts: Sequence[int],
        opened: tuple[int, int],
        resealed: dict[str, int],
    ) -> None:
        self._source = source
        self._starts, self._opened = starts, opened
        self._resealed = resealed
        self._file: FileMap | None = None
        self._seals: Seals | None = None
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
        _check_mappable(info, self._source)
        self._source.check_whole()
        if mode == "r":
            self._file = self._file or FileMap(self._source, mode)
            return self._file.array(info)
        if mode == "c":
            # Each keeps changes of its own.
            return FileMap(self._source, mode).array(info)
        if self._seals is None:
            self._seals = Seals(_open_for_writing(self._source), self._starts, self._opened)
        array, pages = _map_writable(
            info, entry, self._source, self._seals, self._resealed.__setitem__
        )
        self._source.is_shared = True
        self._written.add(pages)
        return array

    @property
    def has_writable(self) -> bool:
        """Whether arrays of mode "r+" are still there."""
        return any(not pages.closed for pages in self._written)

    def flush(self) -> None:
        """Write what was changed through maps of mode "r+", and the CRC-32 of it."""
        for pages in list(self._written):
            pages.flush()

    def forget(self) -> None:
        """Let the file go; arrays that are mapped keep their pages, and what seals them."""
        self._file = self._seals = None


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


def _map_writable(
    info: ArrayInfo, entry: Entry, source: Source, seals: Seals, done: Callable[[str, int], None]
) -> tuple[np.memmap[Any, Any], WritablePages]:
    """Map a stored member's array for writing.

    `done` is called with the member's name and its CRC, when that was written.
    """
    check_resealable(entry)
    start = info.data_offset + info.nbytes - entry.uncompressed_size
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


def _check_mappable(info: ArrayInfo, source: Source) -> None:
    """Raise NotMappableError with the reason, and what else there is to do about it."""
    reason, remedy = info.why_not_mappable, ""
    if reason is not None:
        if info.dtype is not None and not info.dtype.hasobject:
            remedy = ", or store it: npzkit.repack(path, compression='stored')"
    elif not isinstance(source, FileSource):
        reason = "the archive was not opened from a file"
        remedy = ", or open the archive by its path"
    if reason is not None:
        raise NotMappableError(
            f"the member cannot be memory-mapped: {reason}",
            remedy=f"Read it with npz.read(key){remedy}.",
        )
