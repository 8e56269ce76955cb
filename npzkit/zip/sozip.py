"""The chunks of a member: their index, and how they are decoded.

A member with an index was compressed in chunks that need nothing of each other. Deflated, they
are those of profile 1 of sozip/sozip-spec, `sozip_specification.md`: each but the last ends in a
sync flush and a full flush. `npzkit.codecs.zstandard` says what chunks of Zstandard are. The
index is SOZip's hidden file: a stored member right after the compressed one, with a local header
and no entry in the directory. Where SOZip leaves room
for more, npzkit keeps the CRC-32 of the data of each chunk.

A stored member of more than 256 KiB has an index too, with these CRC-32s and without
offsets: each chunk but the last has 64 KiB.

Decides whether an index is valid, and whether its CRC-32s are believed: combined, they must
be the member's own. A chunk that does not have its CRC-32 is damaged, and raises
`ChecksumError`. Without CRC-32s, a chunk that differs from the index raises
`ZipFormatError`; the caller decides what to do then, because the member may be sound
without its index.
"""

from __future__ import annotations

import functools
import itertools
import operator
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
    DEFLATED,
    STORED,
)  # fmt: skip
from npzkit.codecs.decompressors import decode_chunk
from npzkit.errors import ChecksumError, NpzkitError, ZipFormatError
from npzkit.files.source import Source
from npzkit.files.threads import run
from npzkit.zip.entries import Entry
from npzkit.zip.index_notes import CHECKED, HIDDEN_NAMES, SEEKABLE
from npzkit.zip.member_layout import format_hidden
from npzkit.zip.records import (
    FLAG_DESCRIPTOR,
    LOCAL_CRC32_OFFSET,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    LOCAL_LAYOUT,
    SENTINEL_16,
)

_HEADER = struct.Struct("<LLLLQQ")
_VERSION = 1
_INDEXED = {STORED, *CHUNKED}
"""Methods of members that may have an index."""
_OFFSET_FORMATS = {4: "L", 8: "Q"}
_MAX_SKIP_SIZE = 1 << 16
_LEAST_CHUNK_SIZE = 1 << 10
"""The most chunks that are accepted of an index: each takes memory and a call."""


class SeekIndex(NamedTuple):
    """Where each chunk of a member begins in its compressed stream.

    Attributes
    ----------
    chunk_size : int
        Uncompressed bytes of every chunk but the last.
    offsets : sequence of int
        Compressed bytes before each chunk, 0 for the first one, and the size
        of the stream at the end: one more than there are chunks. None of a stored member.
    uncompressed_size : int
    crc32s : sequence of int
        Of the data of each chunk; empty if the index has none.
    method : int
        Of the member.
    """

    chunk_size: int
    offsets: Sequence[int]
    uncompressed_size: int
    crc32s: Sequence[int] = ()
    method: int = DEFLATED

    def has_checks(self, crc32: int) -> bool:
        """Return whether the CRC-32s of all chunks, combined, are that of the member."""
        size = self.uncompressed_size
        return bool(self.crc32s) and combined_with_last(self.crc32s, self.chunk_size, size) == crc32

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


def index_name(name: str) -> bytes:
    """Return the index's name: hidden, in the member's folder.

    Examples
    --------
    >>> index_name("layer/w.npy")
    b'layer/.w.npy.sozip.idx'
    """
    folder, slash, base = name.rpartition("/")
    # A name that is not UTF-8 was decoded so; see npzkit.zip.entries.read_name.
    return f"{folder}{slash}.{base}.sozip.idx".encode("utf-8", "surrogateescape")


def is_hidden(name: str) -> bool:
    """Whether no directory lists a member: an index, the array index, large metadata, an intent."""
    base = name.rpartition("/")[2]
    return name in HIDDEN_NAMES or (base.startswith(".") and base.endswith(".sozip.idx"))


def format_index(index: SeekIndex) -> bytes:
    """Format an index: header, CRC-32s, then the offsets of all chunks but the first."""
    *offsets, compressed_size = index.offsets or (0, index.uncompressed_size)
    offset_size = 8 if index.offsets else 0
    count = len(index.crc32s)
    header = _HEADER.pack(
        _VERSION, 4 * count, index.chunk_size, offset_size, index.uncompressed_size,
        compressed_size,
    )  # fmt: skip
    checks = struct.pack(f"<{count}L", *index.crc32s)
    return header + checks + struct.pack(f"<{len(offsets) - 1}Q", *offsets[1:])


def checks_index(crc32s: Sequence[int], size: int) -> SeekIndex:
    """Return the index of a stored member of so many bytes, from the CRC-32s of its chunks."""
    return SeekIndex(CHECKED_SIZE, (), size, crc32s, STORED)


def format_checks(name: str, crc32s: Sequence[int], size: int) -> bytes:
    """Format the hidden member with the index of a stored member."""
    return format_index_member(name, checks_index(crc32s, size))


def format_index_member(name: str, index: SeekIndex) -> bytes:
    """Format the hidden member for the member `name`: local header and index.

    Empty if its name, which is longer than the member's, is too long for a header.
    """
    raw_name = index_name(name)
    if len(raw_name) > SENTINEL_16:
        return b""
    return format_hidden(raw_name, format_index(index))


def checks_places(name: str, index: SeekIndex) -> tuple[slice, slice]:
    """Return where the hidden member has its own CRC-32, and those of the chunks."""
    start = LOCAL_HEADER_SIZE + len(index_name(name)) + _HEADER.size
    own = slice(LOCAL_CRC32_OFFSET, LOCAL_CRC32_OFFSET + 4)
    return own, slice(start, start + 4 * len(index.crc32s))


def hidden_index(name: str, index: SeekIndex) -> tuple[bytes, int]:
    """Return the hidden member with a member's index, and its flags in the array index."""
    data = format_index_member(name, index)
    return data, (SEEKABLE | CHECKED if index.crc32s else SEEKABLE) if data else 0


def parse_index(
    data: bytes, uncompressed_size: int, compressed_size: int, method: int = DEFLATED
) -> SeekIndex | None:
    """Parse an index; None if it does not fit a member of these sizes and this method.

    Every offset is checked: ascending, and within the stream.
    """
    if len(data) < _HEADER.size:
        return None
    version, skip_size, chunk_size, offset_size, full_size, size = _HEADER.unpack_from(data)
    if (
        version != _VERSION
        or offset_size not in ((0,) if method == STORED else _OFFSET_FORMATS)
        or (full_size, size) != (uncompressed_size, compressed_size)
        or not _LEAST_CHUNK_SIZE <= chunk_size <= CHUNK_SIZE_LIMITS[1]
        or full_size <= chunk_size
    ):
        return None
    count = (full_size - 1) // chunk_size
    if skip_size > _MAX_SKIP_SIZE + 4 * (count + 1):
        return None
    start = _HEADER.size + skip_size
    if len(data) != start + count * offset_size:
        return None
    crc32s: Sequence[int] = ()
    if skip_size == 4 * (count + 1):
        # Makes no int of each.
        crc32s = array("I", data[_HEADER.size : start])
        if sys.byteorder == "big":
            crc32s.byteswap()
    if method == STORED:
        is_known = chunk_size == CHECKED_SIZE and bool(crc32s)
        return checks_index(crc32s, full_size) if is_known else None
    inner = struct.unpack_from(f"<{count}{_OFFSET_FORMATS[offset_size]}", data, start)
    offsets = (0, *inner, size)
    if not all(map(operator.lt, offsets, itertools.islice(offsets, 1, None))):
        return None
    return SeekIndex(chunk_size, offsets, full_size, crc32s, method)


def may_have_index(entry: Entry) -> bool:
    """Whether the index of a member may follow its data."""
    if entry.method == STORED and entry.uncompressed_size <= CHUNK_SIZE:
        return False
    end = entry.header_offset + entry.least_size
    return entry.method in _INDEXED and entry.end_offset > end


def find_index(source: Source, entry: Entry, data_start: int) -> SeekIndex | None:
    """Read the index after a member; None if there is no valid one.

    Parameters
    ----------
    source : Source
    entry : Entry
    data_start : int
        Where the member's compressed data begins.
    """
    if entry.method not in _INDEXED or entry.flags & FLAG_DESCRIPTOR:
        return None
    offset = data_start + entry.compressed_size
    room = entry.end_offset - offset
    raw_name = index_name(entry.name)
    if room < LOCAL_HEADER_SIZE + len(raw_name) + _HEADER.size:
        return None
    head = source.read_at(offset, min(room, LOCAL_HEADER_SIZE + len(raw_name) + 1024))
    try:
        header = LOCAL_LAYOUT.parse(head)
    except ZipFormatError:
        return None
    size = header.uncompressed_size
    start = LOCAL_HEADER_SIZE + len(header.name) + len(header.extra)
    if header.name != raw_name or header.method != STORED or size > room - start:
        return None
    # Of the most chunks, with offsets of 8 bytes and CRC-32s.
    most = _HEADER.size + _MAX_SKIP_SIZE + (entry.uncompressed_size // _LEAST_CHUNK_SIZE + 1) * 12
    if size > most:
        return None
    data = source.read_at(offset + start, size)
    if crc32(data) != header.crc32:
        return None
    return parse_index(data, entry.uncompressed_size, entry.compressed_size, entry.method)


def has_index_member(source: Source, entry: Entry, data_start: int) -> bool:
    """Whether a hidden member with an index's name follows, valid or not."""
    offset = data_start + entry.compressed_size
    raw_name = index_name(entry.name)
    size = LOCAL_HEADER_SIZE + len(raw_name)
    if entry.end_offset - offset < size:
        return False
    head = source.read_at(offset, size)
    return head.startswith(LOCAL_HEADER_SIGNATURE) and head.endswith(raw_name)


def checked_chunks(source: Source, entry: Entry, data_start: int) -> Chunks | None:
    """Return the chunks of a member, if the CRC-32 of each is known and believed."""
    index = find_index(source, entry, data_start)
    if index is None or not index.has_checks(entry.crc32):
        return None
    return Chunks(source, data_start, index, checked=True)


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
_CACHE_SIZE = 1 << 20
"""Bytes of chunks kept, so that neighbouring reads do not inflate twice."""


_NOWHERE = memoryview(b"")


class Chunks:
    """One member's chunks.

    Parameters
    ----------
    source : Source
    data_start : int
        Where the member's compressed stream begins in the file.
    index : SeekIndex
    checked : bool, default False
        Compare the CRC-32 of each chunk of which a part is read. Pass it only if the index
        `has_checks`.

    Attributes
    ----------
    size : int
        The member's uncompressed bytes.
    chunk_size : int
    count : int
    is_checked : bool
    """

    def __init__(
        self, source: Source, data_start: int, index: SeekIndex, *, checked: bool = False
    ) -> None:
        self.is_checked = checked
        self._index = index
        self._crc32s = index.crc32s if checked else ()
        self._source, self._method = source, index.method
        self._start = data_start
        self.size = size = index.uncompressed_size
        self._offsets = index.offsets or (*range(0, size, index.chunk_size), size)
        self.count = len(self._offsets) - 1
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
        with self._lock:
            chunk = self._cache.pop(number, None)
        if chunk is None:
            ((_, chunk),) = self._inflated(source, number, number + 1)
        with self._lock:
            self._cache[number] = chunk
            while len(self._cache) > max(_CACHE_SIZE // self.chunk_size, 1):
                del self._cache[next(iter(self._cache))]
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

    def crc32s(self) -> list[int]:
        """Return the CRC-32 of each chunk."""
        return [crc32(chunk) for _, chunk in self._inflated(self._source, 0, self.count)]

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
        return self._index.damaged(number, self._start + self._offsets[number], found)

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
                    "a chunk differs from its seek index",
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


def with_checks(source: Source, data_start: int, index: SeekIndex, crc32: int) -> SeekIndex:
    """Return the index of a deflated member with CRC-32s of its chunks, if these are sound."""
    if index.has_checks(crc32):
        return index
    index = index._replace(crc32s=())
    try:
        complete = index._replace(crc32s=Chunks(source, data_start, index).crc32s())
    except ZipFormatError:
        return index
    return complete if complete.has_checks(crc32) else index


def only_chunk(entry: Entry) -> SeekIndex | None:
    """Return the index of a member that is no larger than a chunk, whoever wrote it."""
    size = entry.uncompressed_size
    if entry.method not in _INDEXED or not 0 < size <= CHUNK_SIZE:
        return None
    if entry.compressed_size > most_compressed(size):
        # A stream of many flushes.
        return None
    offsets = () if entry.method == STORED else (0, entry.compressed_size)
    return SeekIndex(size, offsets, size, (entry.crc32,), entry.method)
