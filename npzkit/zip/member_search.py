"""Members by their local headers alone: where they begin, what they say, where they end.

Guarantees that a hostile file costs no more work than a multiple of its size. Trusts no
header: the caller compares the data with the CRC. `npzkit.zip.forward_archive` asks the same of
a stream. Knows no NPY.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from npzkit.codecs.coding import DEFLATED, METHOD_NAMES, STORED
from npzkit.errors import NpzkitError, ZipFormatError
from npzkit.files.forward_source import ForwardSource
from npzkit.files.source import Source
from npzkit.zip import records
from npzkit.zip.entries import BAD_NAME, UNKNOWN_SIZE, Entry, read_name
from npzkit.zip.extra_fields import UNICODE_PATH_ID, foreign_extra, format_zip64
from npzkit.zip.local_header import header_end, resolve_sizes
from npzkit.zip.member_stream import MemberStream, UndescribedStream
from npzkit.zip.npzkit_record import HEAD_SIZE, is_named

_SCAN_SIZE = 1 << 22
_MAX_VERSION = 63
_MAX_DESCRIPTOR_TRIES = 1000
"""Descriptors that are tried after data of unknown size: it may hold their signature."""
_FORCED_ZIP64_SIZE = 20
"""Of the extra field in local headers that np.savez writes."""
_FOLLOWED_COUNT = 1 << 16
"""Members that are followed one after the other to find out how much of a file is missing."""
_DESCRIBED_SIZE = records.DESCRIPTOR_MAX_SIZE + 4
"""Bytes of the longest descriptor, and of the signature behind it."""
RECORD_SIZES = {
    records.CENTRAL_ENTRY_SIGNATURE: records.CENTRAL_ENTRY_SIZE,
    records.END_SIGNATURE: records.END_SIZE,
    records.ZIP64_END_SIGNATURE: records.ZIP64_END_SIZE,
    records.ZIP64_LOCATOR_SIGNATURE: records.ZIP64_LOCATOR_SIZE,
}
"""Bytes of the fixed part of each record that follows the members."""


_ALLOWED_RATIO = 64
_ALLOWED_LEAST = 1 << 30
"""Bytes that may be read and inflated again at places already searched: per byte of the
file, and at least for a small one. About a second of work."""


class Allowance:
    """How much work may be spent on bytes that were searched before. Members
    side by side are each searched once, and cost nothing here. Headers that
    claim each other's bytes could be nested without end.

    Parameters
    ----------
    size : int
        Of the file.
    """

    def __init__(self, size: int) -> None:
        self._left = max(_ALLOWED_RATIO * size, _ALLOWED_LEAST)
        self._end = 0

    @property
    def is_spent(self) -> bool:
        """Whether it is time to stop."""
        return self._left < 0

    def charge(self, start: int, end: int, inflated_size: int = 0) -> None:
        """Note that the file was read from `start` to `end`, and how much that inflated to."""
        if start < self._end:
            self._left -= end - start + inflated_size
        self._end = max(self._end, end)


class FoundMember(NamedTuple):
    """A member by its local header alone.

    Attributes
    ----------
    entry : Entry
        As a directory would list it.
    data_start : int
        Where its data begins in the file.
    end_offset : int
        Where it ends by its own sizes, after its descriptor; maybe after the
        file's end.
    """

    entry: Entry
    data_start: int
    end_offset: int


def possible_headers(
    source: Source, entry: Entry, starts: Iterable[int], *, is_certain: bool
) -> Iterator[bytes]:
    """Yield the local headers that a listed member may have had before it was damaged.

    They repeat the entry.

    Parameters
    ----------
    source : Source
    entry : Entry
        Without a descriptor.
    starts : iterable of int
        Where its data may begin. Then come the places that the header's own sizes say,
        that other programs use, and from which the data ends where it must.
    is_certain : bool
        Whether the entry has the member's attributes, so that the header needs none.
    """
    offset = entry.header_offset
    named = entry.name_end
    last = entry.end_offset - entry.compressed_size
    if named > last:
        return
    own_end = offset + header_end(source.read_at(offset, records.LOCAL_HEADER_SIZE))
    own_size = own_end - offset - records.LOCAL_HEADER_SIZE
    possible = (*starts, own_end, named + own_size, named, named + _FORCED_ZIP64_SIZE, last)
    sizes = entry.uncompressed_size, entry.compressed_size
    large = sizes if max(sizes) >= records.SENTINEL_32 else ()
    if large:
        sizes = records.SENTINEL_32, records.SENTINEL_32
    for start in dict.fromkeys(possible):
        extra_size = start - named
        if not 0 <= extra_size <= records.SENTINEL_16 or start > last:
            continue
        fields = records.LOCAL.pack(
            records.LOCAL_HEADER_SIGNATURE, 0, entry.flags & records.SENTINEL_16, entry.method,
            0, 0, entry.crc32, *reversed(sizes), len(entry.raw_name), extra_size,
        )  # fmt: skip
        # Zeros are an extra field without blocks.
        extra = format_zip64(large).ljust(extra_size, b"\0") if is_certain else b""
        if len(extra) <= extra_size:
            yield fields + entry.raw_name + extra


class SignatureScan:
    """The places of a signature in a file, front to back.

    Parameters
    ----------
    source : Source
    start, end : int
        Where to look.
    signature : bytes
    size : int
        Bytes of the record that begins with it, for which there must be room.

    Attributes
    ----------
    position : int
        Where to look next. It is set behind each place that is yielded, and may be changed.
    """

    def __init__(
        self,
        source: Source,
        start: int,
        end: int,
        signature: bytes = records.LOCAL_HEADER_SIGNATURE,
        size: int = records.LOCAL_HEADER_SIZE,
    ) -> None:
        self._source, self._last = source, end - size
        self._signature = signature
        self.position = start
        self._start, self._data = 0, b""

    def __iter__(self) -> Iterator[int]:
        while self.position <= self._last:
            start = self.position
            if not self._start <= start < self._start + len(self._data) - 3:
                size = min(_SCAN_SIZE, self._last + len(self._signature) - start)
                self._start, self._data = start, self._source.read_at(start, size)
            place = self._data.find(self._signature, start - self._start)
            if place < 0:
                # The signature may begin in the last bytes.
                self.position = self._start + len(self._data) - 3
                continue
            self.position = self._start + place + len(self._signature)
            yield self._start + place


def entry_of_header(data: bytes, offset: int, end: int | None = None) -> Entry:
    """Return what a local header, which is read from `offset`, says of its member.

    `end` is where the member ends at the latest; by default, as its size says.

    Raises
    ------
    ZipFormatError
        It is damaged.
    """
    header = records.LOCAL_LAYOUT.parse(data)
    name, flags = read_name(header.name, header.flags, header.extra)
    try:
        sizes = resolve_sizes(header.extra, header.uncompressed_size, header.compressed_size)
    except ZipFormatError as error:
        raise error.locate(offset=offset) from error.__cause__
    if end is None:
        end = offset + len(data) + sizes[1]
    return Entry(
        name, header.name, flags, header.method, header.crc32, sizes[1], sizes[0], offset,
        0, header.extra, end,
    )  # fmt: skip


def least_end(source: Source) -> int:
    """Return where an archive at the start of a file ended at least, by the records that are there.

    Members that are in the file are followed one after the other, and then the directory.
    """
    place = listed = 0
    for entry in _side_by_side(source, Allowance(source.size)):
        place, listed = entry.end_offset, listed + records.CENTRAL_ENTRY_SIZE + len(entry.raw_name)
    head = source.read_within(place, records.LOCAL_HEADER_SIZE)
    if _is_cut(head, source.size - place):
        place += header_end(head) if len(head) == records.LOCAL_HEADER_SIZE else len(head)
        listed += records.CENTRAL_ENTRY_SIZE
    # What is there of the directory.
    for _ in range(_FOLLOWED_COUNT):
        head = source.read_within(place, records.CENTRAL_ENTRY_SIZE)
        is_entry = head.startswith(records.CENTRAL_ENTRY_SIGNATURE)
        if not is_entry or len(head) < records.CENTRAL_ENTRY_SIZE:
            break
        sizes = records.ENTRY_SIZES.unpack(head)
        if not is_named(source.read_within(place, HEAD_SIZE)):
            listed -= records.CENTRAL_ENTRY_SIZE + sizes[0]
        place += records.CENTRAL_ENTRY_SIZE + sum(sizes)
    if head.startswith(records.END_SIGNATURE):
        # The comment, whose size ends the record.
        return place + records.END_SIZE + int.from_bytes(head[20:22], "little")
    return place + max(listed, 0) + records.END_SIZE


def is_cut_in_member(source: Source) -> bool:
    """Return whether members lie side by side from the file's start to its end, or beyond.

    Then no commit is in the file: its directory would come between two of them.
    """
    place = 0
    for entry in _side_by_side(source, None):
        place = entry.end_offset
    head = source.read_within(place, records.LOCAL_HEADER_SIZE)
    return _is_cut(head, source.size - place) or not (head or place == 0)


def _is_cut(head: bytes, room: int) -> bool:
    """Return whether bytes begin a local header for which there is no room."""
    is_header = head.startswith(records.LOCAL_HEADER_SIGNATURE)
    return is_header and (len(head) < records.LOCAL_HEADER_SIZE or header_end(head) > room)


def _side_by_side(source: Source, allowance: Allowance | None) -> Iterator[Entry]:
    """Yield the members that follow each other from the file's start on, by their local headers.

    Without an allowance, one with a descriptor is none.
    """
    place, size = 0, source.size
    for _ in range(_FOLLOWED_COUNT):
        head = source.read_within(place, records.LOCAL_HEADER_SIZE)
        is_header = head.startswith(records.LOCAL_HEADER_SIGNATURE)
        if not is_header or _is_cut(head, size - place):
            return
        try:
            entry = entry_of_header(source.read_at(place, header_end(head)), place)
        except ZipFormatError:
            return
        if entry.flags & records.FLAG_DESCRIPTOR:
            if allowance is None:
                return
            found = find_member(source, place, size, allowance)
            entry = entry._replace(end_offset=size + 1 if found is None else found.end_offset)
        yield entry
        place = entry.end_offset


def find_member(source: Source, offset: int, end: int, allowance: Allowance) -> FoundMember | None:
    """Read the local header at `offset`; None for one that cannot be a member's.

    Parameters
    ----------
    source : Source
    offset : int
    end : int
        Where the file's members end at the latest.
    allowance : Allowance
        Charged with what is read.
    """
    size = header_end(source.read_at(offset, records.LOCAL_HEADER_SIZE))
    if size > end - offset:
        return None
    # Names and extra fields may be long, and lie in one another too.
    allowance.charge(offset, offset + size)
    data, start = source.read_at(offset, size), offset + size
    try:
        entry = entry_of_header(data, offset, end)
    except ZipFormatError:
        return None
    if not entry.name:
        return None
    if entry.method not in METHOD_NAMES or data[4] > _MAX_VERSION:
        return None
    entry = _cleaned(entry)
    if not entry.flags & records.FLAG_DESCRIPTOR:
        return FoundMember(entry, start, start + entry.compressed_size)
    if records.SENTINEL_32 in entry.described[1:] or not entry.compressed_size:
        measured = _measure(source, entry, start, end, allowance)
        if measured is None:
            return FoundMember(entry, start, end + 1)
        entry = measured
    data_end = start + entry.compressed_size
    if data_end >= end:
        return FoundMember(entry, start, end + 1)
    following = source.read_at(data_end, min(_DESCRIBED_SIZE, end - data_end))
    size = descriptor_size(lambda count: following[:count], entry)
    return FoundMember(entry, start, data_end + size if size else end + 1)


def _cleaned(entry: Entry) -> Entry:
    """Return an entry without what belongs to its own header alone."""
    dropped = []
    if entry.flags & BAD_NAME:
        own_name, flags = read_name(entry.raw_name, entry.flags & ~BAD_NAME, b"")
        if not flags & BAD_NAME:
            entry = entry._replace(name=own_name, flags=flags)
            dropped.append(UNICODE_PATH_ID)
    try:
        return entry._replace(extra=foreign_extra(entry.extra, *dropped))
    except ZipFormatError:
        # The data may still be sound. The caller reports what is left of the field.
        return entry


def descriptor_size(peek: Callable[[int], bytes], entry: Entry) -> int:
    """Return the bytes of the descriptor that follows the data of a member; 0 if none fits.

    `peek` returns as many of the bytes that follow. It is asked for no byte after the
    descriptor, unless this may be the beginning of a longer one.
    """
    fitting: list[int] = []
    for descriptor in sorted(records.data_descriptors(*entry.described), key=len):
        size = len(descriptor)
        is_longer = not fitting or descriptor.startswith(peek(fitting[-1]))
        if is_longer and peek(size) == descriptor:
            fitting.append(size)
    if len(fitting) < 2:
        return sum(fitting)
    # A member without data: zeros follow in 64 bits, and a record in 32.
    followed = [size for size in fitting if begins_record(peek(size + 4)[size:])]
    return followed[0] if followed else fitting[-1]


def begins_record(signature: bytes) -> bool:
    """Whether a record of the archive begins so, or the file ends there."""
    return not signature or signature == records.LOCAL_HEADER_SIGNATURE or signature in RECORD_SIZES


def _measure(
    source: Source, entry: Entry, start: int, end: int, allowance: Allowance
) -> Entry | None:
    """Return the entry with the sizes and the CRC of data that only a descriptor describes."""
    if entry.method == STORED:
        found = _find_descriptor(source, start, end)
        crc, size = found or (0, end - start)
        allowance.charge(start, start + size)
        measured = entry._replace(crc32=crc, compressed_size=size, uncompressed_size=size)
        return None if found is None else measured
    if entry.method != DEFLATED:
        # Of others, few bytes may become any number.
        return None
    room = entry._replace(method=STORED, compressed_size=end - start, uncompressed_size=end - start)
    rest = ForwardSource(MemberStream(source, room, start, verify=False), 0)
    unknown = entry._replace(compressed_size=UNKNOWN_SIZE, uncompressed_size=UNKNOWN_SIZE)
    stream = UndescribedStream(rest, unknown, start, None)
    try:
        stream.drain()
    except NpzkitError:
        return None
    finally:
        allowance.charge(start, start + stream.found.compressed_size, stream.tell())
    return stream.found


def _find_descriptor(source: Source, start: int, end: int) -> tuple[int, int] | None:
    """Return the CRC and the size that the descriptor of stored data has."""
    places = SignatureScan(source, start, end, records.DESCRIPTOR_SIGNATURE, 16)
    for place in itertools.islice(places, _MAX_DESCRIPTOR_TRIES):
        crc, low, other = struct.unpack("<LLL", source.read_at(place + 4, 12))
        size = place - start
        # In 32 bits the second size follows, in 64 the first one's upper half.
        if low == size & records.SENTINEL_32 and other in (low, size >> 32):
            return crc, size
    return None
