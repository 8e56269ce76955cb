"""Any stretch of a member's uncompressed bytes, without reading the whole member.

Owns the choice of how the bytes at an offset are reached, and what is kept to
reach them sooner next time. Knows no NPY. Four kinds of member:

- stored: they lie in the file;
- deflated in chunks, with an index: by `npzkit.zip.sozip`;
- deflated in one piece: inflated once, leaving seek points in memory behind;
- in other methods: the stream is kept where it stands, and started over where
  an earlier offset is asked for.

No CRC is compared, because it covers the whole member. A stream that is
damaged, ends early or is too long is still an error.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable

from npzkit.codecs.methods import DEFLATED, STORED
from npzkit.errors import ZipFormatError
from npzkit.files.block_reading import block_tasks
from npzkit.files.source import Source
from npzkit.files.threads import run
from npzkit.zip.entries import Entry
from npzkit.zip.member_checks import MAX_RATIOS
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.sozip import Chunks, find_index

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
        Bytes that are inflated together, where there is an index.
    """

    size: int
    granularity: int
    reads_at_once = 1
    chunk_size: int | None = None

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


def open_stored(
    source: Source, entry: Entry, data_start: int, find_start: Callable[[], int]
) -> RandomAccess:
    """Return access to a stored member of which only the index said where its data begins.

    `find_start` is called after the first bytes were read, and before they are
    returned. It returns where the data does begin, by the member's own headers.
    """
    return _StoredBytes(source, entry, data_start, find_start)


def open_random_access(source: Source, entry: Entry, data_start: int) -> RandomAccess:
    """Return access to a member's bytes.

    Parameters
    ----------
    source : Source
    entry : Entry
        Checked by `npzkit.zip.member_checks.check_entry`.
    data_start : int
        Where the member's data begins in the file.
    """
    if entry.method == STORED:
        return _StoredBytes(source, entry, data_start)
    if entry.method != DEFLATED:
        return _Forward(source, entry, data_start)
    index = find_index(source, entry, data_start)
    if index is None:
        return _SeekPoints(source, entry, data_start)
    chunks = Chunks(source, data_start, index)
    return _Indexed(chunks, lambda: _SeekPoints(source, entry, data_start))


class _StoredBytes(RandomAccess):
    """Bytes as they lie in the file."""

    granularity = STORED_GRANULARITY

    def __init__(
        self,
        source: Source,
        entry: Entry,
        data_start: int,
        find_start: Callable[[], int] | None = None,
    ) -> None:
        self.size = entry.uncompressed_size
        self._find_start = find_start
        if source.is_distant:
            self.granularity, self.reads_at_once = DISTANT_GRANULARITY, DISTANT_READS
        self._source = source
        self._start = data_start

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        start = self._start
        run(block_tasks(self._source, start + offset, view, verify=False), threads)
        find_start = self._find_start
        if find_start is not None:
            # In this order, because other threads may be here too.
            self._start = find_start()
            self._find_start = None
        if self._start != start:
            self.readinto(offset, view, threads)


class _Indexed(RandomAccess):
    """Chunks, as long as they are what their index says."""

    def __init__(self, chunks: Chunks, open_plain: Callable[[], RandomAccess]) -> None:
        self.size, self.granularity = chunks.size, chunks.chunk_size
        self.chunk_size = chunks.chunk_size
        self._chunks = chunks
        self._open_plain = open_plain
        self._plain: RandomAccess | None = None

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        if self._plain is None:
            try:
                self._chunks.readinto(offset, view, threads)
            except ZipFormatError:
                self._plain = self._open_plain()
                self.granularity = self._plain.granularity
            else:
                return
        self._plain.readinto(offset, view, threads)


class _Streamed(RandomAccess):
    """A member whose bytes up to an offset have to be decoded to reach it."""

    # Bytes between two reads have to be decoded anyway.
    granularity = SPACING

    def __init__(self, source: Source, entry: Entry, data_start: int) -> None:
        self.size = entry.uncompressed_size
        self._source = source.ahead([(data_start, data_start + entry.compressed_size)])
        self._entry = entry
        self._start = data_start
        self._lock = threading.Lock()

    def _open(self, *, copyable: bool = False) -> MemberStream:
        """Return a new stream from the member's first byte on."""
        return MemberStream(self._source, self._entry, self._start, verify=False, copyable=copyable)


class _SeekPoints(_Streamed):
    """A deflated stream, with copies of the decoder's state every few MiB.

    A seek point is never read from, only copied. A read inflates with such a
    copy, or with a stream that another read left behind and that is taken out
    of the list while it is used.
    """

    def __init__(self, source: Source, entry: Entry, data_start: int) -> None:
        super().__init__(source, entry, data_start)
        self._points: list[MemberStream] = []
        self._idle: list[MemberStream] = []

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        stream = self._take(offset)
        while stream.tell() < offset:
            stream.skip_to(min(offset, stream.tell() + _STEP_SIZE))
            self._leave_point(stream)
        for start in range(0, len(view), _STEP_SIZE):
            stream.read_exactly(view[start : start + _STEP_SIZE])
            self._leave_point(stream)
        with self._lock:
            self._idle = [stream, *self._idle[: _IDLE_COUNT - 1]]

    def _take(self, offset: int) -> MemberStream:
        """Return the nearest stream before `offset`, for this read alone."""
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
        return self._open(copyable=True)

    def _leave_point(self, stream: MemberStream) -> None:
        last = self._points[-1].tell() if self._points else 0
        ahead = stream.tell() - last - SPACING
        if ahead < 0 or (stream.pending_size and ahead < min(_GRACE_SIZE, SPACING)):
            return
        with self._lock:
            if not self._points or self._points[-1].tell() + SPACING <= stream.tell():
                self._points.append(stream.copy())


class _Forward(_Streamed):
    """A stream that can only continue or start over. Its lock is held while
    reading: two readers would otherwise make it start over again and again.
    """

    def __init__(self, source: Source, entry: Entry, data_start: int) -> None:
        super().__init__(source, entry, data_start)
        self._is_bounded = entry.method in MAX_RATIOS
        self._stream: MemberStream | None = None
        self._reached = 0

    def readinto(self, offset: int, view: memoryview, threads: int = 1) -> None:
        with self._lock:
            stream = self._read_up_to(offset)
            stream.read_exactly(view)
            self._keep(stream)

    def check_reach(self, end: int) -> None:
        if end > self._reached and not self._is_bounded:
            with self._lock:
                self._keep(self._read_up_to(end))

    def _read_up_to(self, offset: int) -> MemberStream:
        """Take the stream out, so that one that failed is not used again."""
        stream, self._stream = self._stream, None
        if stream is None or stream.tell() > offset:
            stream = self._open()
        stream.skip_to(offset)
        return stream

    def _keep(self, stream: MemberStream) -> None:
        self._stream = stream
        self._reached = max(self._reached, stream.tell())
