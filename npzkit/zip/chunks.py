"""A deflated member's chunks: each inflated on its own, several at once.

Owns the way from an index to uncompressed bytes, for a part of a member and for
the whole. A chunk that differs from its index raises `ZipFormatError`. The
caller decides what to do then, because the member may be sound without its
index.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator

from npzkit.codecs.checksum import crc32
from npzkit.codecs.decompressors import inflate_chunk
from npzkit.errors import ZipFormatError
from npzkit.files.source import Source
from npzkit.files.threads import run
from npzkit.zip.sozip import SeekIndex

_TASK_SIZES = 1 << 18, 1 << 22
"""Least and most uncompressed bytes per task of a thread. With larger tasks, some
threads are idle at the end: 1 % of 128 MiB took 3.1 instead of 2.4 ms."""
_TASKS_PER_THREAD = 8
_READ_SIZE = 1 << 19
"""Uncompressed bytes whose compressed ones are read in one call."""
_FETCHED_SIZE = 1 << 26
"""Compressed bytes that are held at once, of a source that is distant."""
_CACHE_SIZE = 1 << 20
"""Bytes of chunks kept, so that neighbouring reads do not inflate twice."""


class Chunks:
    """One member's chunks.

    Parameters
    ----------
    source : Source
    data_start : int
        Where the member's compressed stream begins in the file.
    index : SeekIndex

    Attributes
    ----------
    size : int
        The member's uncompressed bytes.
    chunk_size : int
    """

    def __init__(self, source: Source, data_start: int, index: SeekIndex) -> None:
        self._source = source
        self._start = data_start
        self._offsets = index.offsets
        self._count = len(index.offsets) - 1
        self.size = index.uncompressed_size
        self.chunk_size = index.chunk_size
        self._lock = threading.Lock()
        self._cache: dict[int, bytes | bytearray] = {}

    # -- a part -------------------------------------------------------------

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        """Fill `view` with the bytes at `offset`, inflating only what it touches.

        Raises
        ------
        ZipFormatError
            A chunk differs from the index.
        """
        if not len(view):
            return
        first, last = offset // self.chunk_size, (offset + len(view) - 1) // self.chunk_size
        source = self._ahead(first, last) if self._source.is_distant else self._source
        tasks = [
            functools.partial(self._copy, source, begin, stop, offset, view)
            for begin, stop in self._tasks(first, last + 1, threads)
        ]
        run(tasks, threads)

    def _ahead(self, first: int, last: int) -> Source:
        """Return the source with some chunks, unless they are in memory."""
        with self._lock:
            missing = [number for number in range(first, last + 1) if number not in self._cache]
        if not missing:
            return self._source
        begin, end = self._offsets[missing[0]], self._offsets[missing[-1] + 1]
        spans = [(self._start + begin, self._start + end)]
        return self._source.ahead(spans, at_once=end - begin <= _FETCHED_SIZE)

    def _copy(self, source: Source, begin: int, stop: int, offset: int, view: memoryview) -> None:
        """Copy the requested bytes of some chunks; keep chunks that are needed only in part."""
        end = offset + len(view)
        if begin * self.chunk_size < offset:
            self._copy_part(source, begin, offset, view)
            begin += 1
        if begin < stop and min(stop * self.chunk_size, self.size) > end:
            stop -= 1
            self._copy_part(source, stop, offset, view)
        for number, chunk in self._inflated(source, begin, stop):
            where = number * self.chunk_size - offset
            view[where : where + len(chunk)] = chunk

    def _copy_part(self, source: Source, number: int, offset: int, view: memoryview) -> None:
        chunk = self._cached(source, number)
        start = number * self.chunk_size
        begin, end = max(offset, start), min(offset + len(view), start + len(chunk))
        view[begin - offset : end - offset] = memoryview(chunk)[begin - start : end - start]

    def _cached(self, source: Source, number: int) -> bytes | bytearray:
        with self._lock:
            chunk = self._cache.pop(number, None)
        if chunk is None:
            ((_, chunk),) = self._inflated(source, number, number + 1)
        with self._lock:
            self._cache[number] = chunk
            while len(self._cache) > max(_CACHE_SIZE // self.chunk_size, 1):
                del self._cache[next(iter(self._cache))]
        return chunk

    # -- the whole ----------------------------------------------------------

    def whole_tasks(
        self, skip_size: int, view: memoryview, threads: int
    ) -> list[Callable[[], tuple[int, int]]]:
        """Split the reading of the whole member into tasks for threads.

        Parameters
        ----------
        skip_size : int
            Bytes at the member's start that have no place in `view`.
        view : memoryview
            Where the rest goes.
        threads : int

        Returns
        -------
        list of callable
            Each returns the CRC-32 of its bytes, skipped ones included, and
            how many they are; in the member's order.
        """
        return [
            functools.partial(self._fill, begin, stop, skip_size, view)
            for begin, stop in self._tasks(0, self._count, threads)
        ]

    def _fill(self, begin: int, stop: int, skip_size: int, view: memoryview) -> tuple[int, int]:
        crc = size = 0
        for number, chunk in self._inflated(self._source, begin, stop):
            # Compute the CRC and copy while the chunk is in the cache.
            crc = crc32(chunk, crc)
            size += len(chunk)
            where = number * self.chunk_size - skip_size
            kept = memoryview(chunk)[max(-where, 0) :]
            where = max(where, 0)
            view[where : where + len(kept)] = kept
        return crc, size

    # -- both ---------------------------------------------------------------

    def _tasks(self, begin: int, end: int, threads: int) -> list[tuple[int, int]]:
        """Divide the chunks into tasks that are large enough for a thread."""
        least, most = _TASK_SIZES
        share = (end - begin) * self.chunk_size // (threads * _TASKS_PER_THREAD)
        step = max(min(max(share, least), most) // self.chunk_size, 1)
        return [(start, min(start + step, end)) for start in range(begin, end, step)]

    def _inflated(
        self, source: Source, begin: int, stop: int
    ) -> Iterator[tuple[int, bytes | bytearray]]:
        """Inflate chunks in order, reading the compressed bytes of a few at a time.

        Into one buffer: fresh memory for each read costs 10 % of the time.
        """
        step = max(_READ_SIZE // self.chunk_size, 1)
        buffer = bytearray()
        for first in range(begin, stop, step):
            last = min(first + step, stop)
            base = self._offsets[first]
            size = self._offsets[last] - base
            self._check_compressed_size(first, last)
            if size > len(buffer):
                buffer = bytearray(size)
            data = memoryview(buffer)[:size]
            source.readinto_at(self._start + base, data)
            for number in range(first, last):
                piece = data[self._offsets[number] - base : self._offsets[number + 1] - base]
                final = number == self._count - 1
                size = self.size - number * self.chunk_size if final else self.chunk_size
                yield number, inflate_chunk(piece, size, final=final)

    def _check_compressed_size(self, first: int, last: int) -> None:
        """Raise for chunks longer than deflate makes them, because each is held in memory."""
        size = self._offsets[last] - self._offsets[first]
        limit = (last - first) * (2 * self.chunk_size + 1024)
        if size > limit:
            raise ZipFormatError(
                "a deflated chunk differs from its seek index",
                found=f"{size} compressed bytes",
                expected=f"at most {limit}",
            )
