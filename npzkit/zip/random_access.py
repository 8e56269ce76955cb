"""Any stretch of a member's uncompressed bytes, without reading the whole member.

Owns the choice of how the bytes at an offset are reached, and what is kept to
reach them sooner next time. Knows no NPY. Four kinds of member:

- stored: they lie in the file, compared with the CRC-32s of the chunks that they touch;
- compressed in chunks that are listed: by `npzkit.zip.chunks`;
- deflated in one piece: inflated once, leaving seek points in memory;
- in other methods: the stream is kept where it stands, and started over where
  an earlier offset is asked for.

The CRC-32 of each chunk of which a part is read is compared, where it is known: from a
list, or because the member is one chunk. Elsewhere no CRC-32 is compared, because it covers
the whole member. A stream that is damaged, ends early or is too long is still an error.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from npzkit.codecs.checksum import ChunkChecks
from npzkit.codecs.coding import CHECKED_SIZE, CHUNK_SIZE, DEFLATED, MAX_RATIOS, STORED
from npzkit.files.block_reading import TASK_SIZE
from npzkit.files.source import Source
from npzkit.files.threads import run
from npzkit.zip.chunks import ChunkList, Chunks, KeptChunks, only_chunk
from npzkit.zip.entries import Entry
from npzkit.zip.member_stream import MemberStream

STORED_GRANULARITY = 1 << 14
"""Bytes read in the time that one more call takes."""
DISTANT_GRANULARITY = 1 << 20
"""Likewise, if a call is a request."""
DISTANT_READS = 10
"""Requests that are made at a time."""
SPACING = 3 << 20
"""Uncompressed bytes between seek points. One takes 38 KiB: 1.2 % of the member,
for which 1 % of it is read at 50 times the speed of np.load."""
_GRACE_SIZE = 1 << 20
"""How much later a point may be made, to find one with no input pending."""
_IDLE_COUNT = 4
"""Streams kept where they stopped, so that reading goes on there."""
_STEP_SIZE = 1 << 18
_HOT_SIZE = 1 << 18
"""Bytes that are read, and checked while they are in the cache."""
_SHARED_SIZE = 1 << 22
"""Bytes from which on threads share the reading and checking of a part."""


class RandomAccess:
    """The uncompressed bytes of one member, at any offset. Shared by threads.

    Attributes
    ----------
    size : int
        The member's bytes.
    granularity : int
        How many bytes cost about as much as one more read. Gaps shorter than this are
        better read too.
    reads_at_once : int
        How many calls of `readinto` are best made at a time.
    chunk_size : int or None
        Bytes that are inflated together, where chunks are listed.
    is_checked : bool
        Whether CRC-32s of parts are compared.
    """

    size: int
    granularity: int
    reads_at_once = 1
    chunk_size: int | None = None
    is_checked = False

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        """Fill `view` (format ``B``) with the bytes at `offset`.

        Raises
        ------
        ZipFormatError
            The compressed stream is damaged.
        """
        raise NotImplementedError

    def check_reach(self, end: int) -> None:
        """Raise ZipFormatError if the member has fewer than `end` bytes.

        For methods without a largest ratio: call it before memory is allocated. Of others,
        the file bounds what a member can claim.
        """


def open_random_access(
    source: Source,
    entry: Entry,
    data_start: int,
    chunks: ChunkList | None = None,
    *,
    verify: bool = True,
    kept: KeptChunks | None = None,
) -> RandomAccess:
    """Return access to a member's bytes.

    Parameters
    ----------
    source : Source
    entry : Entry
        Checked by `npzkit.zip.member_checks.check_entry`.
    data_start : int
        Where the member's data begins in the file.
    chunks : ChunkList, optional
    verify : bool, default True
        Compare the CRC-32s of chunks that are known. Without this, a small member is read as far
        as it can be decoded.
    kept : KeptChunks, optional
        Of the archive.
    """
    found = chunks or (only_chunk(entry) if verify else None)
    if entry.method == STORED:
        return StoredBytes(source, entry, data_start, found if verify else None)
    if found is None:
        return _Streamed(source, entry, data_start)
    return _Chunked(Chunks(source, data_start, found, verify=verify, kept=kept))


class StoredBytes(RandomAccess):
    """Bytes as they lie in the file, compared with the CRC-32s of chunks if these are known.

    The chunks at both ends of a part are read completely.

    Parameters
    ----------
    source : Source
    entry : Entry
    data_start : int
    checks : ChunkList or None
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
        checks: ChunkList | None,
        find: Callable[[], StoredBytes] | None = None,
    ) -> None:
        self.size = entry.uncompressed_size
        self._source = source
        self._start, self._checks, self._find = data_start, checks, find
        self.is_checked = checks is not None
        self.granularity = STORED_GRANULARITY if checks is None else CHECKED_SIZE
        if source.is_distant:
            self.granularity, self.reads_at_once = DISTANT_GRANULARITY, DISTANT_READS

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        start, checks, find = self._start, self._checks, self._find
        end, size = offset + len(view), checks.chunk_size if checks else 1
        begin, stop = offset - offset % size, min(-(-end // size) * size, self.size)
        is_distant = self._source.is_distant
        if len(view) < stop - begin <= (TASK_SIZE if is_distant else CHUNK_SIZE):
            # By one request, or one call.
            memory = _memory(stop - begin)
            self.readinto(begin, memory)
            view[:] = memory[offset - begin : end - begin]
            return
        step = TASK_SIZE
        if threads > 1 and len(view) > _SHARED_SIZE and not is_distant:
            step = min(-(-len(view) // threads // CHUNK_SIZE) * CHUNK_SIZE, TASK_SIZE)
        parts = (
            [[(offset, view)]]
            if stop - begin == len(view) <= step
            else [
                _pieces(first, min(first + step, stop), offset, view)
                for first in range(begin, stop, step)
            ]
        )
        if is_distant:
            self._source.fill([(start + first, piece) for part in parts for first, piece in part])
        if find is not None:
            # In this order, because other threads may be here too.
            found = find()
            self._start, self._checks = found._start, found._checks
            self._find = None
        if self._start != start or (self._checks and not checks):
            self.readinto(offset, view, threads)
            return
        run([functools.partial(self._take, part) for part in parts], threads)

    def _take(self, pieces: list[tuple[int, memoryview]]) -> None:
        """Read pieces that follow each other, unless that was done, and check their chunks."""
        source, listed = self._source, self._checks
        checks = ChunkChecks(listed.chunk_size) if listed else None
        for offset, piece in pieces:
            for start in range(0, len(piece), _HOT_SIZE):
                step = piece[start : start + _HOT_SIZE]
                if not source.is_distant:
                    source.readinto_at(self._start + offset + start, step)
                if checks is not None:
                    checks.add(step)
        if listed is not None and checks is not None:
            listed.compare(checks.crc32s, pieces[0][0], self._start)


def _pieces(begin: int, stop: int, offset: int, view: memoryview) -> list[tuple[int, memoryview]]:
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
        (begin, _memory(max(offset - begin, 0))),
        (max(begin, offset), view[max(begin - offset, 0) : stop - offset]),
        (end, _memory(max(stop - end, 0))),
    ]
    return [piece for piece in pieces if len(piece[1])]


def _memory(size: int) -> memoryview:
    # Not filled with zeros.
    return np.empty(size, np.uint8).data


class _Chunked(RandomAccess):
    """Bytes that are compressed in chunks."""

    def __init__(self, chunks: Chunks) -> None:
        self.size, self.granularity = chunks.size, chunks.chunk_size
        self.chunk_size, self.is_checked = chunks.chunk_size, chunks.is_checked
        self._chunks = chunks

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        self._chunks.readinto(offset, view, threads)


class _Streamed(RandomAccess):
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
            for start in range(0, len(view), _STEP_SIZE):
                stream.read_exactly(view[start : start + _STEP_SIZE])
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
            stream.skip_to(min(offset, stream.tell() + _STEP_SIZE))
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
