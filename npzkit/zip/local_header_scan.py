"""Members found without a directory: by their local headers, in one pass over the file.

Owns the search for headers, how far a member extends that only its header
describes, and how much work a hostile file may cost. Trusts no header: the
caller compares the data with the CRC. Knows no NPY.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.codecs.decompressors import decompressor
from npzkit.codecs.methods import DEFLATED, METHOD_NAMES, STORED
from npzkit.errors import NpzkitError, ZipFormatError
from npzkit.files.source import Source
from npzkit.zip.array_index import is_hidden
from npzkit.zip.end_record import COMMENT_MAX_SIZE, find_fitting
from npzkit.zip.entries import BAD_NAME, Entry, read_name
from npzkit.zip.extra_fields import UNICODE_PATH_ID, foreign_extra, format_zip64
from npzkit.zip.local_header import header_end, resolve_sizes
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIGNATURE,
    DESCRIPTOR_SIGNATURE,
    END_SIGNATURE,
    END_SIZE,
    FLAG_DESCRIPTOR,
    LOCAL,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    SENTINEL_16,
    SENTINEL_32,
    ZIP64_END_SIGNATURE,
    LocalHeader,
    matches_data_descriptor,
    parse_local_header,
)
from npzkit.zip.sozip import is_index_name

_SCAN_SIZE = 1 << 22
_STEP_SIZE = 1 << 18
_MAX_VERSION = 63
_MAX_DESCRIPTOR_TRIES = 1000
"""Descriptors that are tried after data of unknown size: it may hold their signature."""
_FORCED_ZIP64_SIZE = 20
"""Of the extra field in local headers that np.savez writes."""
_SIGNATURES = (
    LOCAL_HEADER_SIGNATURE, CENTRAL_ENTRY_SIGNATURE, ZIP64_END_SIGNATURE, END_SIGNATURE, b""
)  # fmt: skip


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


class Found(NamedTuple):
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
    named = offset + LOCAL_HEADER_SIZE + len(entry.raw_name)
    last = entry.end_offset - entry.compressed_size
    if named > last:
        return
    own_end = offset + header_end(source.read_at(offset, LOCAL_HEADER_SIZE))
    own_size = own_end - offset - LOCAL_HEADER_SIZE
    possible = (*starts, own_end, named + own_size, named, named + _FORCED_ZIP64_SIZE, last)
    sizes = entry.uncompressed_size, entry.compressed_size
    large = sizes if max(sizes) >= SENTINEL_32 else ()
    if large:
        sizes = SENTINEL_32, SENTINEL_32
    for start in dict.fromkeys(possible):
        extra_size = start - named
        if not 0 <= extra_size <= SENTINEL_16 or start > last:
            continue
        fields = LOCAL.pack(
            LOCAL_HEADER_SIGNATURE, 0, entry.flags & SENTINEL_16, entry.method, 0, 0,
            entry.crc32, *reversed(sizes), len(entry.raw_name), extra_size,
        )  # fmt: skip
        # Zeros are an extra field without blocks.
        extra = format_zip64(large).ljust(extra_size, b"\0") if is_certain else b""
        if len(extra) <= extra_size:
            yield fields + entry.raw_name + extra


class HeaderScan:
    """The places at which a local header's signature stands, asked for front to back.

    Parameters
    ----------
    source : Source
    end : int
        Where to stop looking.
    """

    def __init__(self, source: Source, end: int) -> None:
        self._source = source
        self._end = end
        self._start, self._data = 0, b""

    def next_from(self, offset: int) -> int | None:
        """Return the first place at `offset` or after it where a header has room, or None."""
        while offset + LOCAL_HEADER_SIZE <= self._end:
            if not self._start <= offset < self._start + len(self._data) - 3:
                self._start = offset
                self._data = self._source.read_at(offset, min(_SCAN_SIZE, self._end - offset))
            place = self._data.find(LOCAL_HEADER_SIGNATURE, offset - self._start)
            if place >= 0:
                offset = self._start + place
                return offset if offset + LOCAL_HEADER_SIZE <= self._end else None
            # The signature may begin in the last bytes.
            offset = self._start + len(self._data) - 3
        return None


def find_member(source: Source, offset: int, end: int, allowance: Allowance) -> Found | None:
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
    size = header_end(source.read_at(offset, LOCAL_HEADER_SIZE))
    if size > end - offset:
        return None
    # Names and extra fields may be long, and lie in one another too.
    allowance.charge(offset, offset + size)
    try:
        header = parse_local_header(source.read_at(offset, size))
        name, flags, dropped = _read_name(header)
        sizes = resolve_sizes(header.extra, header.uncompressed_size, header.compressed_size)
    except ZipFormatError:
        return None
    if not name or header.method not in METHOD_NAMES or header.version_needed & 0xFF > _MAX_VERSION:
        return None
    if is_index_name(name) or is_hidden(name):
        return None
    try:
        extra = foreign_extra(header.extra, *dropped)
    except ZipFormatError:
        # The data may still be sound. The caller reports what is left of the field.
        extra = header.extra
    start = offset + LOCAL_HEADER_SIZE + len(header.name) + len(header.extra)
    entry = Entry(
        name, header.name, flags, header.method, header.crc32, sizes[1], sizes[0], offset,
        0, extra, end,
    )  # fmt: skip
    if not header.flags & FLAG_DESCRIPTOR:
        return Found(entry, start, start + sizes[1])
    if SENTINEL_32 in sizes or not sizes[1]:
        measured = _measure(source, entry, start, end, allowance)
        if measured is None:
            return Found(entry, start, end + 1)
        entry = measured
    data_end = start + entry.compressed_size
    size = _descriptor_size(source, entry, data_end, end)
    return Found(entry, start, data_end + size if size else end + 1)


def _read_name(header: LocalHeader) -> tuple[str, int, tuple[int, ...]]:
    """Return a member's name and flags, and the Unicode path if that is to be dropped."""
    name, flags = read_name(header.name, header.flags, header.extra)
    if flags & BAD_NAME:
        own_name, own_flags = read_name(header.name, header.flags, b"")
        if not own_flags & BAD_NAME:
            return own_name, own_flags, (UNICODE_PATH_ID,)
    return name, flags, ()


def is_followed(source: Source, offset: int) -> bool:
    """Whether a record of the archive, or the end of the file, is where a member ends."""
    signature = source.read_at(offset, min(4, source.size - offset))
    return signature in _SIGNATURES


def _measure(
    source: Source, entry: Entry, start: int, end: int, allowance: Allowance
) -> Entry | None:
    """Return the entry with the sizes and the CRC of data that only a descriptor describes."""
    if entry.method == DEFLATED:
        return _measure_deflated(source, entry, start, end, allowance)
    if entry.method == STORED:
        return _measure_stored(source, entry, start, end, allowance)
    return None


def _measure_deflated(
    source: Source, entry: Entry, start: int, end: int, allowance: Allowance
) -> Entry | None:
    """Inflate up to the stream's own end."""
    decoder = decompressor(DEFLATED, end - start, end - start)
    crc = size = fed = 0
    try:
        while not decoder.eof:
            data = b""
            if decoder.needs_input:
                data = source.read_at(start + fed, min(_STEP_SIZE, end - start - fed))
                if not data:
                    return None
                fed += len(data)
            out = decoder.decompress(data, _STEP_SIZE)
            crc = crc32(out, crc)
            size += len(out)
    except NpzkitError:
        return None
    finally:
        allowance.charge(start, start + fed - decoder.unused_size, size)
    used = fed - decoder.unused_size
    return entry._replace(crc32=crc, compressed_size=used, uncompressed_size=size)


def _measure_stored(
    source: Source, entry: Entry, start: int, end: int, allowance: Allowance
) -> Entry | None:
    """Look for the descriptor that says how far away it is."""
    found = _find_descriptor(source, start, end)
    if found is None:
        allowance.charge(start, end)
        return None
    crc, size = found
    allowance.charge(start, start + size)
    return entry._replace(crc32=crc, compressed_size=size, uncompressed_size=size)


def _find_descriptor(source: Source, start: int, end: int) -> tuple[int, int] | None:
    """Return the CRC and the size that the descriptor of stored data has."""
    tries = 0
    position = start
    while position < end and tries < _MAX_DESCRIPTOR_TRIES:
        data = source.read_at(position, min(_SCAN_SIZE + 24, end - position))
        place = data.find(DESCRIPTOR_SIGNATURE)
        while 0 <= place < _SCAN_SIZE:
            size = position + place - start
            if place + 16 <= len(data):
                crc, low, other = struct.unpack_from("<LLL", data, place + 4)
                # In 32 bits the second size follows, in 64 the first one's upper half.
                if low == size & SENTINEL_32 and other in (low, size >> 32):
                    return crc, size
            tries += 1
            place = data.find(DESCRIPTOR_SIGNATURE, place + 1)
        position += _SCAN_SIZE
    return None


def _descriptor_size(source: Source, entry: Entry, offset: int, end: int) -> int:
    """Return the bytes of the descriptor at `offset`; 0 if none fits."""
    if offset >= end:
        return 0
    data = source.read_at(offset, min(24, end - offset))
    values = entry.crc32, entry.compressed_size, entry.uncompressed_size
    for size in (24, 20, 16, 12):
        # The longest one that fits completely, and is not the beginning of a longer one.
        if matches_data_descriptor(data[:size], *values) and not matches_data_descriptor(
            data[: size - 4], *values
        ):
            return size
    return 0


def find_comment(source: Source) -> bytes:
    """Return the comment of an end record that ends where the file does, if one does."""
    start = max(source.size - END_SIZE - COMMENT_MAX_SIZE, 0)
    tail = source.read_at(start, source.size - start)
    fitting = find_fitting(tail, 0)
    return tail[fitting[0] + END_SIZE :] if fitting else b""
