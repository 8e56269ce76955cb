"""The chunks of a member: the list of them, and how they are read, checked and decoded.

A compressed member was compressed in chunks that need nothing of each other. Deflated, each but the
last ends in a sync flush and a full flush. `npzkit.codecs.zstandard` says what chunks of
Zstandard are. A stored member of more than 256 KiB has chunks of 64 KiB. The record has a *list*
of them, little-endian::

    uint32  the CRC-32 of each chunk's data
    uint32  of a compressed member: the bytes of each chunk in the compressed stream
    uint32  of a compressed member: the CRC-32 of both

`npzkit.zip.array_index` says where it is, and how large the chunks are.

Decides whether a list is believed: its CRC-32s, combined, must be the member's own. A chunk
that does not have its CRC-32 is damaged, and raises `ChecksumError`.
"""

from __future__ import annotations

import functools
import itertools
import struct
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from npzkit.codecs.checksum import combined_with_last, crc32
from npzkit.codecs.coding import (
    CHECKED_SIZE,
    CHUNK_SIZE,
    CHUNK_SIZE_LIMITS,
    CHUNKED,
    STORED,
)  # fmt: skip
from npzkit.codecs.decompressors import decode_chunk
from npzkit.errors import ChecksumError, NpzkitError, ZipFormatError
from npzkit.files.source import Source
from npzkit.files.threads import run
from npzkit.zip.entries import Entry

_LISTED = {STORED, *CHUNKED}
"""Methods of members that may have a list."""
_LEAST_CHUNK_SIZE = 1 << 10
"""Smaller ones are not accepted: each chunk takes memory and a call."""


class ChunkList(NamedTuple):
    """The chunks of a member.

    Attributes
    ----------
    chunk_size : int
        Uncompressed bytes of every chunk but the last.
    size : int
        Uncompressed bytes of the member.
    crc32s : sequence of int
        Of the data of each chunk.
    offsets : sequence of int
        Compressed bytes before each chunk, 0 for the first one, and the size
        of the stream at the end: one more than there are chunks. None of a stored member.
    method : int
        Of the member.
    """

    chunk_size: int
    size: int
    crc32s: Sequence[int]
    offsets: Sequence[int] = ()
    method: int = STORED

    def format(self) -> bytes:
        """Return the bytes of the list."""
        data = _words(self.crc32s)
        if self.method == STORED:
            return data
        data += _words([end - begin for begin, end in itertools.pairwise(self.offsets)])
        return data + crc32(data).to_bytes(4, "little")

    def fits(self, crc32: int) -> bool:
        """Return whether the CRC-32s of all chunks, combined, are that of the member."""
        return combined_with_last(self.crc32s, self.chunk_size, self.size) == crc32

    def compare(self, crc32s: list[int], offset: int, start: int) -> None:
        """Compare the CRC-32s of some chunks of a stored member.

        Parameters
        ----------
        crc32s : list of int
            What was read has these.
        offset : int
            Where the first of the chunks begins in the member.
        start : int
            Where the member's data begins in the file.

        Raises
        ------
        ChecksumError
            A chunk is damaged.
        """
        first = offset // self.chunk_size
        if crc32s == list(self.crc32s[first : first + len(crc32s)]):
            return
        for number, crc in enumerate(crc32s, first):
            if crc != self.crc32s[number]:
                place = start + number * self.chunk_size
                raise self.damaged(number, place, f"CRC-32 {crc:08x}")

    def damaged(self, number: int, offset: int, found: str) -> ChecksumError:
        """Return the error for a chunk that lies at `offset` of the file."""
        error = ChecksumError(
            f"chunk {number + 1} of {len(self.crc32s)} is damaged",
            offset=offset,
            found=found,
            expected=f"CRC-32 {self.crc32s[number]:08x}",
        )
        error.chunk = number + 1
        return error


def _words(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}L", *numbers)


def stored_chunks(crc32s: Sequence[int], size: int) -> ChunkList | None:
    """Return the list of a stored member of so many bytes, by the CRC-32s of its chunks.

    None of one that is small: it has its own CRC-32.
    """
    return ChunkList(CHECKED_SIZE, size, crc32s) if size > CHUNK_SIZE else None


def list_size(entry: Entry, chunk_size: int) -> int:
    """Return the bytes of a member's list; 0 if it can have none with chunks of this size."""
    is_usual = _LEAST_CHUNK_SIZE <= chunk_size <= CHUNK_SIZE_LIMITS[1]
    if entry.method not in _LISTED or not is_usual or entry.uncompressed_size <= chunk_size:
        return 0
    count = -(-entry.uncompressed_size // chunk_size)
    return 4 * count if entry.method == STORED else 8 * count + 4


def parse_list(data: bytes, entry: Entry, chunk_size: int) -> ChunkList | None:
    """Return the list of a member; None if it is damaged, or that of other data."""
    size, method = entry.uncompressed_size, entry.method
    # Makes no int of each.
    words = array("I", data)
    if sys.byteorder == "big":
        words.byteswap()
    if method == STORED:
        found = ChunkList(chunk_size, size, words)
        return found if found.fits(entry.crc32) else None
    count = len(words) // 2
    if words[-1] != crc32(data[:-4]) or not all(words[count:-1]):
        return None
    offsets = (0, *itertools.accumulate(words[count:-1]))
    found = ChunkList(chunk_size, size, words[:count], offsets, method)
    return found if offsets[-1] == entry.compressed_size and found.fits(entry.crc32) else None


# -- the chunks ---------------------------------------------------------------


def most_compressed(size: Any) -> Any:
    """Return the most compressed bytes that a chunk of so many bytes may take; or of many."""
    return 2 * size + 1024


_TASK_SIZES = 1 << 18, 1 << 22
"""Least and most uncompressed bytes per task of a thread. With larger tasks, some
threads are idle at the end: 1 % of 128 MiB took 3.1 instead of 2.4 ms."""
_TASKS_PER_THREAD = 8
_READ_SIZE = 1 << 19
"""Uncompressed bytes whose compressed ones are read in one call."""
_FETCHED_SIZE = 1 << 26
"""Compressed bytes that are held at once, of a source that is distant."""
_KEPT_SIZE = 1 << 26
"""Bytes of chunks that an open archive keeps."""
_NOWHERE = memoryview(b"")


class KeptChunks:
    """The chunks of an open archive that were used last, so that neighbouring reads do not
    decode them again. Shared by threads, of which one at a time has a chunk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: dict[tuple[object, int], bytes | bytearray] = {}
        self._size = 0

    def has(self, owner: object, number: int) -> bool:
        return (owner, number) in self._chunks

    def take(self, owner: object, number: int) -> bytes | bytearray | None:
        """Return a chunk, which is kept no longer; None if it is not there."""
        with self._lock:
            chunk = self._chunks.pop((owner, number), None)
            self._size -= 0 if chunk is None else len(chunk)
        return chunk

    def keep(self, owner: object, number: int, chunk: bytes | bytearray) -> None:
        """Keep a chunk instead of those that were not used for the longest time."""
        with self._lock:
            self._size += len(chunk) - len(self._chunks.pop((owner, number), b""))
            self._chunks[owner, number] = chunk
            while self._size > _KEPT_SIZE and len(self._chunks) > 1:
                self._size -= len(self._chunks.pop(next(iter(self._chunks))))


class Chunks:
    """One member's chunks.

    Parameters
    ----------
    source : Source
    data_start : int
        Where the member's compressed stream begins in the file.
    listed : ChunkList
    verify : bool, default True
        Compare the CRC-32 of each chunk of which a part is read.
    kept : KeptChunks, optional
        Of the archive.

    Attributes
    ----------
    size : int
        The member's uncompressed bytes.
    chunk_size : int
    count : int
    is_checked : bool
    """

    def __init__(
        self,
        source: Source,
        data_start: int,
        listed: ChunkList,
        *,
        verify: bool = True,
        kept: KeptChunks | None = None,
    ) -> None:
        self.is_checked = verify
        self._listed = listed
        self._crc32s = listed.crc32s if verify else ()
        self._source, self._method = source, listed.method
        self._start = data_start
        self.size = size = listed.size
        self._offsets = listed.offsets or (*range(0, size, listed.chunk_size), size)
        self.count = len(self._offsets) - 1
        self.chunk_size = listed.chunk_size
        self._kept = kept or KeptChunks()

    # -- a part -------------------------------------------------------------

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        """Fill `view` with the bytes at `offset`, inflating only what it touches.

        Raises
        ------
        ChecksumError
            A chunk is damaged.
        ZipFormatError
            Likewise, if no CRC-32 is compared.
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
        missing = [one for one in range(first, last + 1) if not self._kept.has(self, one)]
        if not missing:
            return self._source
        begin, end = self._offsets[missing[0]], self._offsets[missing[-1] + 1]
        spans = [(self._start + begin, self._start + end)]
        return self._source.ahead(spans, at_once=end - begin <= _FETCHED_SIZE)

    def _copy(self, source: Source, begin: int, stop: int, offset: int, view: memoryview) -> None:
        """Copy the requested bytes of some chunks; keep chunks that are needed only in part."""
        end = offset + len(view)
        if begin * self.chunk_size < offset:
            self._place(begin, self._cached(source, begin), offset, view)
            begin += 1
        if begin < stop and min(stop * self.chunk_size, self.size) > end:
            stop -= 1
            self._place(stop, self._cached(source, stop), offset, view)
        for _ in self._inflated(source, begin, stop, offset, view):
            pass

    def _place(self, number: int, chunk: bytes | bytearray, offset: int, view: memoryview) -> None:
        """Copy what of a chunk belongs in `view`, which begins at `offset` of the member."""
        start = number * self.chunk_size
        begin, end = max(offset, start), min(offset + len(view), start + len(chunk))
        if begin < end:
            view[begin - offset : end - offset] = memoryview(chunk)[begin - start : end - start]

    def _cached(self, source: Source, number: int) -> bytes | bytearray:
        chunk = self._kept.take(self, number)
        if chunk is None:
            ((_, chunk),) = self._inflated(source, number, number + 1)
        self._kept.keep(self, number, chunk)
        return chunk

    def damaged(self) -> Iterator[tuple[int, ChecksumError]]:
        """Yield the number of each chunk that does not have its CRC-32, and its error."""
        for number in range(self.count):
            try:
                next(self._inflated(self._source, number, number + 1))
            except ChecksumError as error:
                yield number, error
            except NpzkitError as error:
                if not error.is_damage:
                    raise
                yield number, self._damaged(number, error.what)

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
            for begin, stop in self._tasks(0, self.count, threads)
        ]

    def _fill(self, begin: int, stop: int, skip_size: int, view: memoryview) -> tuple[int, int]:
        crc = size = 0
        for _, chunk in self._inflated(self._source, begin, stop, skip_size, view):
            # Compute the CRC while the chunk is in the cache.
            crc = crc32(chunk, crc)
            size += len(chunk)
        return crc, size

    def _damaged(self, number: int, found: str) -> ChecksumError:
        return self._listed.damaged(number, self._start + self._offsets[number], found)

    # -- both ---------------------------------------------------------------

    def _tasks(self, begin: int, end: int, threads: int) -> list[tuple[int, int]]:
        """Divide the chunks into tasks that are large enough for a thread."""
        least, most = _TASK_SIZES
        share = (end - begin) * self.chunk_size // (threads * _TASKS_PER_THREAD)
        step = max(min(max(share, least), most) // self.chunk_size, 1)
        return [(start, min(start + step, end)) for start in range(begin, end, step)]

    def _inflated(
        self, source: Source, begin: int, stop: int, offset: int = 0, view: memoryview = _NOWHERE
    ) -> Iterator[tuple[int, Any]]:
        """Inflate chunks in order, and put what belongs there in `view` as `_place` does.

        The compressed bytes of a few are read at a time, into one buffer: fresh memory for each
        read costs 10 % of the time.
        """
        step = max(_READ_SIZE // self.chunk_size, 1)
        buffer = bytearray()
        for first in range(begin, stop, step):
            last = min(first + step, stop)
            base = self._offsets[first]
            size = self._offsets[last] - base
            limit = (last - first) * most_compressed(self.chunk_size)
            # No method makes longer chunks, and each is held in memory.
            if size > limit:
                raise ZipFormatError(
                    "a chunk is longer than its data can be",
                    found=f"{size} compressed bytes",
                    expected=f"at most {limit}",
                )
            if size > len(buffer):
                buffer = bytearray(size)
            data = memoryview(buffer)[:size]
            source.readinto_at(self._start + base, data)
            for number in range(first, last):
                piece = data[self._offsets[number] - base : self._offsets[number + 1] - base]
                start = number * self.chunk_size - offset
                room = view[max(start, 0) : max(start + self._size_of(number), 0)]
                chunk = self._chunk(number, piece, room)
                if chunk is not room:
                    self._place(number, chunk, offset, view)
                yield number, chunk

    def _size_of(self, number: int) -> int:
        return min(self.size - number * self.chunk_size, self.chunk_size)

    def _chunk(self, number: int, piece: memoryview, room: memoryview) -> Any:
        """Inflate one chunk, in `room` if it fits there, and check its CRC-32 if that is known."""
        final, size = number == self.count - 1, self._size_of(number)
        memory = room if len(room) == size else None
        chunk: Any = piece
        try:
            if self._method != STORED:
                chunk = decode_chunk(self._method, piece, size, final=final, memory=memory)
        except ZipFormatError as error:
            if not self._crc32s:
                raise
            raise self._damaged(number, error.what) from error
        if not self._crc32s:
            return chunk
        found = crc32(chunk)
        if found != self._crc32s[number]:
            raise self._damaged(number, f"CRC-32 {found:08x}")
        return chunk


def only_chunk(entry: Entry) -> ChunkList | None:
    """Return the list of a member that is no larger than a chunk, whoever wrote it."""
    size = entry.uncompressed_size
    if entry.method not in _LISTED or not 0 < size <= CHUNK_SIZE:
        return None
    if entry.compressed_size > most_compressed(size):
        # A stream of many flushes.
        return None
    offsets = () if entry.method == STORED else (0, entry.compressed_size)
    return ChunkList(size, size, (entry.crc32,), offsets, entry.method)
