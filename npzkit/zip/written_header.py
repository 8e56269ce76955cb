"""The headers, entries and end records that npzkit writes: 64-byte alignment, zip64.

Guarantees that npzkit's own archives look the same around the data, by whichever way
they are written: one record at a time, or many small members at once, by columns
(half a microsecond each, instead of 5). No I/O. zip64 is used only if a size, an
offset or the number of members needs it, or if the bytes before the end record would
look like its locator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npzkit.codecs.coding import STORED
from npzkit.zip import records
from npzkit.zip.entries import Entry, accepting_name
from npzkit.zip.extra_fields import format_alignment, format_padding, format_zip64, without_blocks
from npzkit.zip.records import (
    CENTRAL,
    CENTRAL_ENTRY_SIGNATURE,
    CREATE_SYSTEM_UNIX,
    DOS_DATE_1980,
    ENTRY_LAYOUT,
    FLAG_UTF8,
    LOCAL,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    LOCAL_LAYOUT,
    SENTINEL_16,
    SENTINEL_32,
    VERSION_DEFAULT,
    CentralEntry,
    LocalHeader,
    RecordLayout,
)

if TYPE_CHECKING:
    from npzkit.zip.chunk_list import ChunkList
    from npzkit.zip.entry_columns import Ints

ALIGNMENT = 64
"""Alignment of stored data: a cache line. Page-aligned data was read 30 % slower, and
data at an offset of 8 bytes took twice the time."""
PADDINGS = [format_alignment(offset, ALIGNMENT) for offset in range(ALIGNMENT)]
"""The padding for a header that ends at each offset, modulo the alignment."""
EXTERNAL_ATTRIBUTES = 0o600 << 16
LARGE = SENTINEL_32
"""The smallest size or offset that goes to zip64's fields."""
ZIP64_SIZE = 20
"""Bytes of a local zip64 block: identifier, length and two sizes."""


def version_needed(method: int) -> int:
    """Return the version that a reader of members of a method needs."""
    return records.VERSIONS_NEEDED.get(method, VERSION_DEFAULT)


def local_header(name: str, method: int, size: int | None, extra: bytes) -> LocalHeader:
    """Return a member's header without the values that are known only later."""
    raw_name = name.encode("utf-8")
    return LocalHeader(
        version_needed(method),
        0 if raw_name.isascii() else FLAG_UTF8,
        method, 0, DOS_DATE_1980, 0, 0, size or 0, raw_name, extra,
    )  # fmt: skip


def may_need_zip64(method: int, size: int | None) -> bool:
    """Whether only the end of a member shows if its sizes need zip64.

    Then its header has room for them, so that its own size never changes.
    """
    # Deflate spends at most 9 bits on a byte.
    return size is None or (method != STORED and size + size // 8 + 1024 >= LARGE)


def local_bytes(
    header: LocalHeader,
    offset: int,
    *,
    alignment: int = ALIGNMENT,
    lead_size: int = 0,
    has_room: bool = False,
) -> bytes:
    """Format a local header, with zip64 sizes and alignment as needed.

    Parameters
    ----------
    header : LocalHeader
    offset : int
        Where it is put.
    alignment : int
        Of a stored member's bytes, in the file.
    lead_size : int
        Bytes of the member that come before what is to be aligned.
    has_room : bool
        Leave room for zip64 sizes where they are not needed.
    """
    extra = header.extra
    if needs_zip64(header):
        # Section 4.5.3: in a local header both sizes must be there.
        extra = format_zip64([header.uncompressed_size, header.compressed_size]) + extra
        header = header._replace(
            version_needed=max(header.version_needed, records.VERSION_ZIP64),
            compressed_size=SENTINEL_32,
            uncompressed_size=SENTINEL_32,
        )
    elif has_room:
        extra = format_padding(ZIP64_SIZE) + extra
    if header.method == STORED:
        end = offset + LOCAL_HEADER_SIZE + len(header.name) + len(extra)
        padding = format_alignment(end + lead_size, alignment)
        # Another program's field may leave no room for it.
        if len(extra) + len(padding) <= SENTINEL_16:
            extra += padding
    return LOCAL_LAYOUT.format(header._replace(extra=extra))


def needs_zip64(header: LocalHeader) -> bool:
    """Whether a size of a member needs zip64."""
    return max(header.uncompressed_size, header.compressed_size) >= LARGE


def central_bytes(header: LocalHeader, header_offset: int) -> bytes:
    """Format the directory's entry for a member with this header.

    Values that do not fit in 32 bits move to a zip64 block.
    """
    values = header.uncompressed_size, header.compressed_size, header_offset
    large = [value for value in values if value >= LARGE]
    version = max(header.version_needed, records.VERSION_ZIP64) if large else header.version_needed
    uncompressed_size, compressed_size, offset = (
        SENTINEL_32 if value >= LARGE else value for value in values
    )
    return ENTRY_LAYOUT.format(
        CentralEntry(
            CREATE_SYSTEM_UNIX | version, version, *header[1:6], compressed_size,
            uncompressed_size, 0, 0, EXTERNAL_ATTRIBUTES, offset, header.name,
            format_zip64(large) + header.extra, b"",
        )
    )  # fmt: skip


def header_of(entry: Entry) -> LocalHeader:
    """Return the local header that a member with this entry has."""
    return LocalHeader(
        version_needed(entry.method), entry.flags, entry.method, 0, DOS_DATE_1980,
        *entry.described, entry.raw_name, entry.extra,
    )  # fmt: skip


def entry_bytes(entry: Entry) -> bytes:
    """Format an entry for a member in the file whose local header is correct."""
    return central_bytes(header_of(accepting_name(entry)), entry.header_offset)


def with_block(record: bytes, identifier: int, block: bytes) -> bytes:
    """Return an entry with `block` in place of its extra field's blocks with this identifier.

    Raises
    ------
    ZipFormatError
        The extra field is damaged.
    LimitExceededError
        It would be longer than it may be.
    """
    entry = ENTRY_LAYOUT.parse(record)
    extra = without_blocks(entry.extra, identifier) + block
    return ENTRY_LAYOUT.format(entry._replace(extra=extra))


def end_bytes(count: int, size: int, offset: int, comment: bytes, before: bytes) -> Iterator[bytes]:
    """Format the end record, with zip64 records before it if they are needed.

    They are also written if the last bytes `before` would look like zip64
    records. These bytes are the directory's extra fields or, if no member is
    listed, older data.
    """
    last = before[-records.ZIP64_LOCATOR_SIZE :]
    is_misread = last.startswith(records.ZIP64_LOCATOR_SIGNATURE)
    if count >= SENTINEL_16 or max(size, offset) >= LARGE or is_misread:
        yield records.ZIP64_END_LAYOUT.format(
            records.Zip64EndOfCentralDirectory(
                records.ZIP64_END_SIZE - 12,
                CREATE_SYSTEM_UNIX | records.VERSION_ZIP64,
                records.VERSION_ZIP64,
                0, 0, count, count, size, offset,
            )
        )  # fmt: skip
        yield records.LOCATOR_LAYOUT.format(records.Zip64Locator(0, offset + size, 1))
    small_count = min(count, SENTINEL_16)
    yield records.END_LAYOUT.format(
        records.EndOfCentralDirectory(
            0, 0, small_count, small_count, min(size, SENTINEL_32), min(offset, SENTINEL_32),
            comment,
        )
    )  # fmt: skip


# -- many small members at once -----------------------------------------------

_COLUMN_COUNT = 16
"""The fewest members that are formatted by columns: of fewer, one by one is faster."""
_PADDING_SIZES = np.array([len(padding) for padding in PADDINGS])


class SmallMembers(NamedTuple):
    """Members without extra fields whose bytes are complete, as columns.

    Attributes
    ----------
    names : list of str
    pieces : tuple of sequence of bytes
        The bytes of each member as they are written: all first parts, and so on.
    sizes, crc32s : sequence of int
        Of the uncompressed bytes.
    heads : sequence of bytes
        What the array index keeps of each.
    lists : sequence of ChunkList or None
        Of the chunks of each.
    are_copies : bool
        Whether all pieces are small, and are best written together.
    """

    names: list[str]
    pieces: tuple[Sequence[bytes | memoryview], ...]
    sizes: Sequence[int]
    crc32s: Sequence[int]
    heads: Sequence[bytes]
    lists: Sequence[ChunkList | None]
    are_copies: bool = True


Formatted = tuple[Iterable[bytes | memoryview], list[bytes], list[int]]
"""The bytes of all members, local headers included, in pieces; the directory's entry of
each; the size of the extra field in its local header."""


def format_members(members: SmallMembers, method: int, start: int) -> Formatted:
    """Format members that are written at offset `start`.

    The bytes are those of `npzkit.zip.writer.ZipWriter.write_member`.
    """
    if len(members.names) >= _COLUMN_COUNT:
        formatted = _format_columns(members, method, start)
        if formatted is not None:
            return formatted
    return _format_each(members, method, start)


def _format_each(members: SmallMembers, method: int, start: int) -> Formatted:
    names, pieces, sizes, crc32s, *_ = members
    compressed_sizes = sizes if method == STORED else list(map(len, pieces[0]))
    version = version_needed(method)
    headers: list[bytes] = []
    entries: list[bytes] = []
    extra_sizes: list[int] = []
    for name, size, compressed_size, crc in zip(
        names, sizes, compressed_sizes, crc32s, strict=True
    ):
        raw_name = name.encode()
        name_size = len(raw_name)
        flags = 0 if name_size == len(name) else FLAG_UTF8
        place = start + LOCAL_HEADER_SIZE + name_size
        padding = PADDINGS[place % ALIGNMENT] if method == STORED else b""
        extra_size = len(padding)
        common = (version, flags, method, 0, DOS_DATE_1980, crc, compressed_size, size)
        local = LOCAL.pack(LOCAL_HEADER_SIGNATURE, *common, name_size, extra_size)
        headers.append(local + raw_name + padding)
        if start < LARGE:
            entry = CENTRAL.pack(
                CENTRAL_ENTRY_SIGNATURE, CREATE_SYSTEM_UNIX | version, *common,
                name_size, 0, 0, 0, 0, EXTERNAL_ATTRIBUTES, start,
            ) + raw_name  # fmt: skip
        else:
            entry = central_bytes(LocalHeader(*common, raw_name, b""), start)
        entries.append(entry)
        extra_sizes.append(extra_size)
        start = place + extra_size + compressed_size
    return chain.from_iterable(zip(headers, *pieces, strict=True)), entries, extra_sizes


def _format_columns(members: SmallMembers, method: int, start: int) -> Formatted | None:
    """Format members by columns; None if one of them needs zip64."""
    names = list(map(str.encode, members.names))
    name_sizes, sizes = _column(map(len, names)), _column(members.sizes)
    compressed_sizes = sizes if method == STORED else _column(map(len, members.pieces[0]))
    places = np.zeros(len(names), np.int64)
    if method == STORED:
        # Data begins aligned, so its size says where the next header does.
        places[0], places[1:] = start, sizes[:-1]
        places = (places + LOCAL_HEADER_SIZE + name_sizes) % ALIGNMENT
    extra_sizes = _PADDING_SIZES[places]
    taken = LOCAL_HEADER_SIZE + name_sizes + extra_sizes + compressed_sizes
    offsets = start + np.cumsum(taken) - taken
    if offsets[-1] >= LARGE:
        return None
    version = version_needed(method)
    fields = {
        "version_needed": version,
        "flags": (name_sizes > _column(map(len, members.names))) * FLAG_UTF8,
        "method": method,
        "date": DOS_DATE_1980,
        "crc32": _column(members.crc32s),
        "compressed_size": compressed_sizes,
        "uncompressed_size": sizes,
        "name_size": name_sizes,
    }
    headers = _format_records(
        LOCAL_LAYOUT, len(names), signature=LOCAL_HEADER_SIGNATURE, extra_size=extra_sizes, **fields
    )
    entries = _format_records(
        ENTRY_LAYOUT, len(names), signature=CENTRAL_ENTRY_SIGNATURE,
        version_made_by=CREATE_SYSTEM_UNIX | version,
        external_attributes=EXTERNAL_ATTRIBUTES, header_offset=offsets, **fields,
    )  # fmt: skip
    paddings = map(PADDINGS.__getitem__, places.tolist())
    parts = zip(headers, names, paddings, *members.pieces, strict=True)
    listed = list(map(add, entries, names))
    return chain.from_iterable(parts), listed, extra_sizes.tolist()


def _column(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)


def _format_records(layout: RecordLayout[Any], count: int, **fields: Any) -> list[bytes]:
    """Return the fixed parts of many records; a field is one value or a column, or else zero."""
    table = np.zeros(count, _dtype(layout, *fields))
    for name, column in fields.items():
        table[name] = column
    formatted: list[bytes] = table.view(f"V{layout.struct.size}").tolist()
    return formatted


@cache
def _dtype(layout: RecordLayout[Any], *names: str) -> Any:
    return np.dtype(layout.columns(*names))
