"""The bytes of a member, any stretch of them, read and checked by chunks.

Owns how the bytes at an offset are reached, and what is kept to reach them sooner next time.
Knows no NPY. A member is of one of three kinds:

- stored: its chunks lie in the file (`StoredChunks`);
- compressed in chunks that a list names, or that is small enough to be one (`CompressedChunks`);
- any other: one stream. While a deflated one is decoded, points to start from are left in memory,
  the seek points (`StreamedChunks`).

The CRC-32 of each chunk of which a part is read is compared, where it is known: from a
list (`npzkit.zip.chunk_list`), or because the member is one chunk. Elsewhere no CRC-32 is
compared, because it covers the whole member. A stream that is damaged, ends early or is too long
is still an error.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np

from npzkit.codecs.checksum import combined_with_last, crc32
from npzkit.codecs.coding import CHECKED_SIZE, CHUNK_SIZE, DEFLATED, MAX_RATIOS, STORED
from npzkit.codecs.decompressors import decode_chunk
from npzkit.errors import ChecksumError, NpzkitError, ZipFormatError, may_be_damage
from npzkit.files.block_reading import TASK_SIZE, Piece, blocks, dropped, read_pieces
from npzkit.files.request_sizes import JOIN_SIZE, REQUEST_COUNT
from npzkit.files.source import Source
from npzkit.files.threads import run
from npzkit.zip.chunk_list import ChunkList, most_compressed, only_chunk
from npzkit.zip.entries import Entry
from npzkit.zip.kept_chunks import KeptChunks
from npzkit.zip.member_stream import MemberStream

Part = tuple[int, int]
"""The CRC-32 and the size of some bytes of a member."""

STORED_GRANULARITY = 1 << 14
"""Bytes read in the time that one more call takes."""
_SHARED_SIZE = 1 << 22
"""Bytes from which on threads share the reading and checking of a part."""
_TASK_SIZES = 1 << 18, 1 << 22
"""Least and most uncompressed bytes per task of a thread that decodes. With larger tasks, some
threads are idle at the end: 1 % of 128 MiB took 3.1 instead of 2.4 ms."""
_TASKS_PER_THREAD = 8
_READ_SIZE = 1 << 19
"""Uncompressed bytes whose compressed ones are read in one call."""
_FETCHED_SIZE = 1 << 26
"""Compressed bytes that are held at once, of a source that is distant."""
SPACING = 3 << 20
"""Uncompressed bytes between seek points. One takes 38 KiB: 1.2 % of the member,
for which 1 % of it is read at 50 times the speed of np.load."""
_GRACE_SIZE = 1 << 20
"""How much later a point may be made, to find one with no input pending."""
_IDLE_COUNT = 4
"""Streams kept where they stopped, so that reading goes on there."""
_STREAM_STEP = 1 << 18
_NOWHERE = memoryview(b"")


class Chunks:
    """The uncompressed bytes of one member. Shared by threads.

    Attributes
    ----------
    size : int
        The member's bytes.
    chunk_size, count : int
        Of chunks that have CRC-32s; 0 of a member without any.
    is_checked : bool
        Whether these are compared.
    granularity : int
        How many bytes cost about as much as one more read. Gaps shorter than this are
        better read too.
    reads_at_once : int
        How many calls of `readinto` are best made at a time.
    part_size : int
        Bytes of a part that is cheap to read.
    """

    size: int
    chunk_size = count = 0
    is_checked = False
    granularity: int
    reads_at_once = 1
    part_size = 1 << 20

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        """Fill `view` (format ``B``) with the bytes at `offset`.

        Raises
        ------
        ChecksumError
            A chunk is damaged.
        ZipFormatError
            The compressed stream is damaged, and no CRC-32 is compared.
        """
        raise NotImplementedError

    def tasks(
        self, skip: int, view: memoryview | None, threads: int, *, verify: bool = True
    ) -> list[Callable[[], Part]]:
        """Split the reading of the whole member into tasks for threads.

        Parameters
        ----------
        skip : int
            Bytes at the member's start that have no place in `view`. A stored member's are
            not read.
        view : memoryview or None
            Where the rest goes; None only checks it.
        threads : int
        verify : bool, default True
            Compute CRC-32s.

        Returns
        -------
        list of callable
            Each returns the CRC-32 of its bytes, 0 unless `verify`, and how many they are; in
            the member's order.
        """
        raise NotImplementedError

    def check_reach(self, end: int) -> None:
        """Raise ZipFormatError if the member has fewer than `end` bytes.

        For methods without a largest ratio: call it before memory is allocated. Of others,
        the file bounds what a member can claim.
        """

    def damaged(self) -> Iterator[tuple[int, ChecksumError]]:
        """Yield the number of each chunk that does not have its CRC-32, and its error."""
        chunk = new_memory(self.chunk_size)
        for number in range(self.count):
            start = number * self.chunk_size
            try:
                self.readinto(start, chunk[: self.size - start])
            except ChecksumError as error:
                yield number, error
            except NpzkitError as error:
                if not may_be_damage(error):
                    raise
                yield number, self._damaged(number, error.what)

    def _damaged(self, number: int, found: str) -> ChecksumError:
        """Return the error for a chunk."""
        raise NotImplementedError


def open_chunks(
    source: Source,
    entry: Entry,
    data_start: int,
    listed: ChunkList | None = None,
    *,
    verify: bool = True,
    kept: KeptChunks | None = None,
) -> Chunks:
    """Return access to a member's bytes.

    Parameters
    ----------
    source : Source
    entry : Entry
        Checked by `npzkit.zip.local_header.check_entry`.
    data_start : int
        Where the member's data begins in the file.
    listed : ChunkList, optional
    verify : bool, default True
        Compare the CRC-32s of chunks that are known. Without this, a small member is read as far
        as it can be decoded.
    kept : KeptChunks, optional
        Of the archive.
    """
    found = listed or (only_chunk(entry) if verify else None)
    if entry.method == STORED:
        return StoredChunks(source, entry, data_start, found if verify else None)
    if found is not None:
        return CompressedChunks(source, data_start, found, verify=verify, kept=kept)
    return StreamedChunks(source, entry, data_start)


class StoredChunks(Chunks):
    """Bytes as they lie in the file. The chunks at both ends of a part are read completely.

    Parameters
    ----------
    source : Source
    entry : Entry
    data_start : int
    listed : ChunkList or None
        Without it, nothing is compared.
    find : callable, optional
        If only the array index said where the bytes begin, and whether they have CRC-32s:
        returns what their own headers say. It is called after the first bytes were read, and
        before they are returned.
    """

    def __init__(
        self,
        source: Source,
        entry: Entry,
        data_start: int,
        listed: ChunkList | None,
        find: Callable[[], StoredChunks] | None = None,
    ) -> None:
        self.size, self._listed = entry.uncompressed_size, listed
        if listed is not None:
            self.chunk_size, self.count = listed.chunk_size, len(listed.crc32s)
        self._source, self._start, self._find = source, data_start, find
        self.is_checked = listed is not None
        self.granularity = CHECKED_SIZE if self.is_checked else STORED_GRANULARITY
        if source.is_distant:
            self.granularity, self.reads_at_once = JOIN_SIZE, REQUEST_COUNT

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        start, listed, find = self._start, self._listed, self._find
        end, size = offset + len(view), listed.chunk_size if listed else 1
        begin, stop = offset - offset % size, min(-(-end // size) * size, self.size)
        is_distant = self._source.is_distant
        if len(view) < stop - begin <= (TASK_SIZE if is_distant else CHUNK_SIZE):
            # By one request, or one call.
            memory = new_memory(stop - begin)
            self.readinto(begin, memory)
            view[:] = memory[offset - begin : end - begin]
            return
        step = TASK_SIZE
        if threads > 1 and len(view) > _SHARED_SIZE and not is_distant:
            step = min(-(-len(view) // threads // CHUNK_SIZE) * CHUNK_SIZE, TASK_SIZE)
        parts = [
            _pieces(first, min(first + step, stop), offset, view)
            for first in range(begin, stop, step)
        ]
        if is_distant:
            self._source.fill([(start + at, piece) for part in parts for at, piece in part])
        if find is not None:
            # In this order, because other threads may be here too.
            found = find()
            self._start, self._listed = found._start, found._listed
            self._find = None
        if self._start != start or (self._listed and not listed):
            self.readinto(offset, view, threads)
            return
        run([partial(self._take, part) for part in parts], threads)

    def _take(self, pieces: list[Piece]) -> None:
        """Read pieces that are chunks together, unless that was done, and compare them."""
        listed, start = self._listed, self._start
        source = None if self._source.is_distant else self._source
        in_file = [(start + offset, piece) for offset, piece in pieces]
        crc32s = read_pieces(source, in_file, listed.chunk_size if listed else 0)
        if listed is not None:
            listed.compare(crc32s, pieces[0][0], start)

    def tasks(
        self, skip: int, view: memoryview | None, threads: int, *, verify: bool = True
    ) -> list[Callable[[], Part]]:
        source, begin = self._source, self._start + skip
        ranges = blocks(begin, self._start + self.size)
        if view is None:
            return [partial(_part, source, dropped(*one), one, verify) for one in ranges]
        pieces = [(start, view[start - begin : end - begin]) for start, end in ranges]
        if source.is_distant:
            # Several blocks at a time.
            source.fill(pieces)
        filled = None if source.is_distant else source
        return [
            partial(_part, filled, [piece], one, verify)
            for piece, one in zip(pieces, ranges, strict=True)
        ]

    def _damaged(self, number: int, found: str) -> ChecksumError:
        place = self._start + number * self.chunk_size
        return cast(ChunkList, self._listed).damaged(number, place, found)


def _part(
    source: Source | None, pieces: list[Piece] | Iterator[Piece], ends: Part, verify: bool
) -> Part:
    """Read what lies between two offsets in the file, unless that was done."""
    size = ends[1] - ends[0]
    return combined_with_last(read_pieces(source, pieces, size * verify), size, size), size


def _pieces(begin: int, stop: int, offset: int, view: memoryview) -> list[Piece]:
    """Return where complete chunks go: the part that `view` has, and memory for the rest.

    Parameters
    ----------
    begin, stop : int
        Where the chunks begin and end in the member.
    offset : int
        Where `view` begins in the member.
    view : memoryview
    """
    end = offset + len(view)
    pieces = [
        (begin, new_memory(max(offset - begin, 0))),
        (max(begin, offset), view[max(begin - offset, 0) : stop - offset]),
        (end, new_memory(max(stop - end, 0))),
    ]
    return [piece for piece in pieces if len(piece[1])]


def new_memory(size: int) -> memoryview:
    """Return new memory as NumPy gets it, in huge pages, which takes a fifth of the time."""
    return np.empty(size, np.uint8).data


class CompressedChunks(Chunks):
    """Bytes that are compressed in chunks that need nothing of each other.

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
        self._listed, self.is_checked = listed, verify
        self._source, self._start = source, data_start
        self.size, self._offsets = listed.size, listed.offsets
        self.count = len(listed.crc32s)
        self.chunk_size = self.granularity = self.part_size = listed.chunk_size
        self._kept = kept or KeptChunks()

    # -- a part -------------------------------------------------------------

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        if not len(view):
            return
        first, last = offset // self.chunk_size, (offset + len(view) - 1) // self.chunk_size
        source = self._ahead(first, last) if self._source.is_distant else self._source
        tasks = [
            partial(self._copy, source, begin, stop, offset, view)
            for begin, stop in self._shares(first, last + 1, threads)
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
        for _ in self._decoded(source, begin, stop, offset, view):
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
            ((_, chunk),) = self._decoded(source, number, number + 1)
        self._kept.keep(self, number, chunk)
        return chunk

    # -- the whole ----------------------------------------------------------

    def tasks(
        self, skip: int, view: memoryview | None, threads: int, *, verify: bool = True
    ) -> list[Callable[[], Part]]:
        return [
            partial(self._fill, begin, stop, skip, view or _NOWHERE, verify)
            for begin, stop in self._shares(0, self.count, threads)
        ]

    def _fill(self, begin: int, stop: int, skip: int, view: memoryview, verify: bool) -> Part:
        crc = size = 0
        for _, chunk in self._decoded(self._source, begin, stop, skip, view):
            # While the chunk is in the cache.
            crc = crc32(chunk, crc) if verify else 0
            size += len(chunk)
        return crc, size

    def _damaged(self, number: int, found: str) -> ChecksumError:
        return self._listed.damaged(number, self._start + self._offsets[number], found)

    # -- both ---------------------------------------------------------------

    def _shares(self, begin: int, end: int, threads: int) -> list[tuple[int, int]]:
        """Divide the chunks into shares that are large enough for a thread."""
        least, most = _TASK_SIZES
        share = (end - begin) * self.chunk_size // (threads * _TASKS_PER_THREAD)
        step = max(min(max(share, least), most) // self.chunk_size, 1)
        return [(start, min(start + step, end)) for start in range(begin, end, step)]

    def _decoded(
        self, source: Source, begin: int, stop: int, offset: int = 0, view: memoryview = _NOWHERE
    ) -> Iterator[tuple[int, Any]]:
        """Decode chunks in order, and put what belongs there in `view` as `_place` does.

        The compressed bytes of a few are read at a time, into one buffer: fresh memory for each
        read costs 10 % of the time.
        """
        step = max(_READ_SIZE // self.chunk_size, 1)
        buffer = bytearray()
        for first in range(begin, stop, step):
            last = min(first + step, stop)
            base = self._offsets[first]
            size = self._offsets[last] - base
            _check_size(size, (last - first) * most_compressed(self.chunk_size))
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
        """Decode one chunk, in `room` if it fits there, and check its CRC-32 if that is known."""
        listed, final, size = self._listed, number == self.count - 1, self._size_of(number)
        memory = room if len(room) == size else None
        try:
            chunk = decode_chunk(listed.method, piece, size, final=final, memory=memory)
        except ZipFormatError as error:
            if not self.is_checked:
                raise
            raise self._damaged(number, error.what) from error
        if self.is_checked:
            found = crc32(chunk)
            if found != listed.crc32s[number]:
                raise self._damaged(number, f"CRC-32 {found:08x}")
        return chunk


def _check_size(size: int, limit: int) -> None:
    """Raise for chunks that are longer than any method makes them: they are held in memory."""
    if size > limit:
        raise ZipFormatError(
            "a chunk is longer than its data can be",
            found=f"{size} compressed bytes",
            expected=f"at most {limit}",
        )


class StreamedChunks(Chunks):
    """A stream in which the bytes up to an offset have to be decoded to reach it.

    Of a deflated one, copies of the decoder's state are kept every few MiB. Such a seek
    point is never read from, only copied. A read continues with such a copy, or with a
    stream that another read left behind and that is taken out of the list while it is
    used. Other decoders cannot be copied: only one read is under way at a time, because
    two would make the stream start over again and again.
    """

    # Bytes between two reads have to be decoded anyway.
    granularity = SPACING

    def __init__(self, source: Source, entry: Entry, data_start: int) -> None:
        self.size = entry.uncompressed_size
        self._source = source.ahead([(data_start, data_start + entry.compressed_size)])
        self._entry = entry
        self._start = data_start
        self._is_copyable = entry.method == DEFLATED
        self._turn: Any = contextlib.nullcontext() if self._is_copyable else threading.Lock()
        self._lock = threading.Lock()
        self._points: list[MemberStream] = []
        self._idle: list[MemberStream] = []
        self._reached = 0

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        with self._turn:
            stream = self._read_up_to(offset)
            for start in range(0, len(view), _STREAM_STEP):
                stream.read_exactly(view[start : start + _STREAM_STEP])
                self._leave_point(stream)
            self._keep(stream)

    def check_reach(self, end: int) -> None:
        if end > self._reached and self._entry.method not in MAX_RATIOS:
            with self._turn:
                self._keep(self._read_up_to(end))

    def _read_up_to(self, offset: int) -> MemberStream:
        """Return a stream at `offset` for this read alone, so that one that fails is not kept."""
        stream = self._take(offset)
        while stream.tell() < offset:
            stream.skip_to(min(offset, stream.tell() + _STREAM_STEP))
            self._leave_point(stream)
        return stream

    def _take(self, offset: int) -> MemberStream:
        """Return the nearest stream before `offset`."""
        with self._lock:
            before = bisect.bisect_right(self._points, offset, key=MemberStream.tell)
            point = self._points[before - 1] if before else None
            least = point.tell() if point else 0
            fit = [stream for stream in self._idle if least <= stream.tell() <= offset]
            if fit:
                nearest = max(fit, key=MemberStream.tell)
                self._idle.remove(nearest)
                return nearest
            if point is not None:
                return point.copy()
            if not self._is_copyable:
                # Two of them would be in memory.
                self._idle = []
        copyable = self._is_copyable
        return MemberStream(self._source, self._entry, self._start, verify=False, copyable=copyable)

    def _keep(self, stream: MemberStream) -> None:
        """Let later reads go on here. Without copies, one stream is kept: some take 64 MiB."""
        with self._lock:
            self._reached = max(self._reached, stream.tell())
            count = _IDLE_COUNT if self._is_copyable else 1
            self._idle = [stream, *self._idle][:count]

    def _leave_point(self, stream: MemberStream) -> None:
        last = self._points[-1].tell() if self._points else 0
        ahead = stream.tell() - last - SPACING
        if ahead < 0 or not self._is_copyable:
            return
        if stream.pending_size and ahead < min(_GRACE_SIZE, SPACING):
            return
        with self._lock:
            if not self._points or self._points[-1].tell() + SPACING <= stream.tell():
                self._points.append(stream.copy())
