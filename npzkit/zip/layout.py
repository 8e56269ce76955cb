"""The headers and end records that npzkit writes: 64-byte alignment, zip64.

Owns what npzkit's own archives look like around the data. No I/O. zip64 is used
only if a size, an offset or the number of members needs it, or if the bytes
before the end record would look like its locator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from npzkit.codecs.methods import STORED
from npzkit.zip import records
from npzkit.zip.extra_fields import format_alignment, format_padding, format_zip64
from npzkit.zip.records import SENTINEL_16, SENTINEL_32, CentralEntry, LocalHeader

ALIGNMENT = 64
"""Alignment of stored data: a cache line. Page-aligned data was read 30 % slower, and
data at an offset of 8 bytes took twice the time."""
PADDINGS = [format_alignment(offset, ALIGNMENT) for offset in range(ALIGNMENT)]
"""The padding for a header that ends at each offset, modulo the alignment."""
EXTERNAL_ATTRIBUTES = 0o600 << 16
ZIP64_SIZE = 20
"""Bytes of a local zip64 block: identifier, length and two sizes."""


def local_header(name: str, method: int, size: int | None, extra: bytes) -> LocalHeader:
    """Return a member's header without the values that are known only later.

    The largest possible size decides whether it needs zip64 sizes, so that the
    header's own size never changes. If `size` is None, that is decided at the
    end.
    """
    raw_name = name.encode("utf-8")
    is_large = size is not None and _largest_size(size, method) >= SENTINEL_32
    return LocalHeader(
        records.VERSION_ZIP64 if is_large else records.VERSION_DEFAULT,
        0 if raw_name.isascii() else records.FLAG_UTF8,
        method, 0, records.DOS_DATE_1980, 0, 0, size or 0, raw_name, extra,
    )  # fmt: skip


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
        end = offset + records.LOCAL_HEADER_SIZE + len(header.name) + len(extra)
        padding = format_alignment(end + lead_size, alignment)
        # Another program's field may leave no room for it.
        if len(extra) + len(padding) <= SENTINEL_16:
            extra += padding
    return records.format_local_header(header._replace(extra=extra))


def needs_zip64(header: LocalHeader) -> bool:
    return (
        # Of a method's own version, such as LZMA's, nothing follows.
        header.version_needed == records.VERSION_ZIP64
        or max(header.uncompressed_size, header.compressed_size) >= SENTINEL_32
    )


def _largest_size(size: int, method: int) -> int:
    """Return the most bytes that a member may take: deflate spends at most 9 bits on a byte."""
    return size if method == STORED else size + size // 8 + 1024


def central_entry(header: LocalHeader, header_offset: int) -> CentralEntry:
    """Return the directory's entry for a member with this header."""
    return CentralEntry(
        records.CREATE_SYSTEM_UNIX | header.version_needed,
        *header[:8],
        disk_start=0,
        internal_attributes=0,
        external_attributes=EXTERNAL_ATTRIBUTES,
        header_offset=header_offset,
        name=header.name,
        extra=header.extra,
        comment=b"",
    )


def central_bytes(entry: CentralEntry) -> bytes:
    """Format an entry; values that do not fit in 32 bits move to a zip64 block."""
    names = ("uncompressed_size", "compressed_size", "header_offset")
    large = {name: value for name in names if (value := getattr(entry, name)) >= SENTINEL_32}
    if large:
        version = max(entry.version_needed, records.VERSION_ZIP64)
        entry = entry._replace(
            extra=format_zip64(list(large.values())) + entry.extra,
            version_made_by=records.CREATE_SYSTEM_UNIX | version,
            version_needed=version,
            **cast(Any, dict.fromkeys(large, SENTINEL_32)),
        )
    return records.format_central_entry(entry)


def end_bytes(count: int, size: int, offset: int, comment: bytes, before: bytes) -> Iterator[bytes]:
    """Format the end record, with zip64 records before it if they are needed.

    They are also written if the last bytes `before` would look like zip64
    records. These bytes are the directory's extra fields or, if no member is
    listed, older data.
    """
    last = before[-records.ZIP64_LOCATOR_SIZE :]
    is_misread = last.startswith(records.ZIP64_LOCATOR_SIGNATURE)
    if count >= SENTINEL_16 or max(size, offset) >= SENTINEL_32 or is_misread:
        yield records.format_zip64_end_of_central_directory(
            records.Zip64EndOfCentralDirectory(
                records.ZIP64_END_SIZE - 12,
                records.CREATE_SYSTEM_UNIX | records.VERSION_ZIP64,
                records.VERSION_ZIP64,
                0, 0, count, count, size, offset,
            )
        )  # fmt: skip
        yield records.format_zip64_locator(records.Zip64Locator(0, offset + size, 1))
    small_count = min(count, SENTINEL_16)
    yield records.format_end_of_central_directory(
        records.EndOfCentralDirectory(
            0,
            0,
            small_count,
            small_count,
            min(size, SENTINEL_32),
            min(offset, SENTINEL_32),
            comment,
        )
    )
