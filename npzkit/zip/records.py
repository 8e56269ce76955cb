"""The records of a zip archive: bytes to named fields, and back. No I/O.

Owns signatures, lengths, flag bits and the layout of each record.

Each record has `parse_*` (bytes and an offset to a record) and `format_*` (a
record to bytes), inverse to each other. Parsing checks the signature and that
the bytes suffice, nothing else: `end_record`, `entries` and `member_checks`
decide what fields may mean together.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any, NamedTuple

from npzkit.errors import LimitExceededError, ZipFormatError

# Signatures. Readers check them; writers begin each record with them.
LOCAL_HEADER_SIGNATURE = b"PK\x03\x04"  # section 4.3.7, before each member
CENTRAL_ENTRY_SIGNATURE = b"PK\x01\x02"  # section 4.3.12, one a listed member
END_SIGNATURE = b"PK\x05\x06"  # section 4.3.16, last record of the archive
ZIP64_END_SIGNATURE = b"PK\x06\x06"  # section 4.3.14, before the locator
ZIP64_LOCATOR_SIGNATURE = b"PK\x06\x07"  # section 4.3.15, right before the end record
DESCRIPTOR_SIGNATURE = b"PK\x07\x08"  # section 4.3.9.3, optional by the standard

# General purpose flag bits, section 4.4.4.
FLAG_ENCRYPTED = 1 << 0  # reading is refused
FLAG_DESCRIPTOR = 1 << 3  # sizes and CRC follow the data; never written
FLAG_PATCHED = 1 << 5  # reading is refused
FLAG_STRONG_ENCRYPTION = 1 << 6  # reading is refused
FLAG_UTF8 = 1 << 11  # the name is UTF-8; written for names beyond ASCII
FLAG_MASKED = 1 << 13  # local header values are hidden; reading is refused

SENTINEL_16 = 0xFFFF
"""In a 16-bit field: see the zip64 record."""
SENTINEL_32 = 0xFFFFFFFF
"""In a 32-bit field: see the zip64 record or extra field."""

VERSION_DEFAULT = 20  # deflate, directories
VERSION_ZIP64 = 45
VERSIONS_NEEDED = {9: 21, 12: 46, 14: 63, 93: 63}
"""Section 4.4.3.2: by method, if it is not `VERSION_DEFAULT`."""
KEPT_FLAGS = FLAG_UTF8 | 0b110
"""Flags that belong to a member's bytes and name: bits 1 and 2 tell how they
were compressed, section 4.4.4."""
CREATE_SYSTEM_UNIX = 3 << 8
DOS_DATE_1980 = 0x21
"""1980-01-01, the zero of DOS dates: archives contain no current time, see `writer`."""


class Layout:
    """The fixed part of a record: its fields in order, and how each is encoded.

    Stated once for one record (`struct`) and for columns of many (NumPy).

    Parameters
    ----------
    **codes : str
        For each field its code in `struct`: ``4s``, ``H`` or ``I``.

    Attributes
    ----------
    struct : struct.Struct
        All fields.
    """

    def __init__(self, **codes: str) -> None:
        self._codes = codes
        self.struct = struct.Struct("<" + "".join(codes.values()))

    def picked(self, *names: str) -> struct.Struct:
        """Return the `struct` of some fields, in their order, up to the last one."""
        skipped = (f"{struct.calcsize(code)}x" for code in self._codes.values())
        codes = zip(self._codes.items(), skipped, strict=True)
        return struct.Struct(
            "<" + "".join(code if name in names else skip for (name, code), skip in codes)
        )

    def columns(self, *names: str) -> Any:
        """Return the `numpy.dtype` of some fields, as its argument."""
        sizes = [struct.calcsize(code) for code in self._codes.values()]
        offsets = dict(zip(self._codes, itertools.accumulate([0, *sizes]), strict=False))
        codes = {"4s": "S4", "H": "<u2", "I": "<u4"}
        return {
            "names": names,
            "formats": [codes[self._codes[name]] for name in names],
            "offsets": [offsets[name] for name in names],
            "itemsize": self.struct.size,
        }


LOCAL_LAYOUT = Layout(
    signature="4s", version_needed="H", flags="H", method="H", time="H", date="H",
    crc32="I", compressed_size="I", uncompressed_size="I", name_size="H", extra_size="H",
)  # fmt: skip
ENTRY_LAYOUT = Layout(
    signature="4s", version_made_by="H", version_needed="H", flags="H", method="H", time="H",
    date="H", crc32="I", compressed_size="I", uncompressed_size="I", name_size="H",
    extra_size="H", comment_size="H", disk_start="H", internal_attributes="H",
    external_attributes="I", header_offset="I",
)  # fmt: skip
LOCAL = LOCAL_LAYOUT.struct
CENTRAL = ENTRY_LAYOUT.struct

ENTRY_READ = (
    "signature", "flags", "method", "crc32", "compressed_size", "uncompressed_size", "name_size",
    "extra_size", "comment_size", "disk_start", "header_offset",
)  # fmt: skip
"""Fields of an entry that reading looks at: versions, times and attributes are not among them."""
ENTRY_FIELDS = ENTRY_LAYOUT.picked(*ENTRY_READ)
ENTRY_SIZES = struct.Struct("<HHH")
"""Sizes of name, extra field and comment, 28 bytes into an entry."""
_END = struct.Struct("<4sHHHHLLH")
_ZIP64_END = struct.Struct("<4sQHHLLQQQQ")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")

LOCAL_HEADER_SIZE = LOCAL.size
CENTRAL_ENTRY_SIZE = CENTRAL.size
END_SIZE = _END.size
ZIP64_END_SIZE = _ZIP64_END.size
ZIP64_LOCATOR_SIZE = _ZIP64_LOCATOR.size
ZIP64_RECORDS_SIZE = ZIP64_END_SIZE + ZIP64_LOCATOR_SIZE
"""Of both, which stand right before the end record."""
DESCRIPTOR_MIN_SIZE = 12
DESCRIPTOR_MAX_SIZE = 24


class LocalHeader(NamedTuple):
    """Local file header, section 4.3.7."""

    version_needed: int
    flags: int
    method: int
    time: int
    date: int
    crc32: int
    compressed_size: int
    uncompressed_size: int
    name: bytes
    extra: bytes


class CentralEntry(NamedTuple):
    """Central directory file header, section 4.3.12."""

    version_made_by: int
    version_needed: int
    flags: int
    method: int
    time: int
    date: int
    crc32: int
    compressed_size: int
    uncompressed_size: int
    disk_start: int
    internal_attributes: int
    external_attributes: int
    header_offset: int
    name: bytes
    extra: bytes
    comment: bytes


class EndOfCentralDirectory(NamedTuple):
    """End of central directory record, section 4.3.16."""

    disk: int
    directory_disk: int
    disk_entry_count: int
    entry_count: int
    directory_size: int
    directory_offset: int
    comment: bytes


class Zip64EndOfCentralDirectory(NamedTuple):
    """Zip64 end of central directory record, section 4.3.14."""

    record_size: int
    version_made_by: int
    version_needed: int
    disk: int
    directory_disk: int
    disk_entry_count: int
    entry_count: int
    directory_size: int
    directory_offset: int


class Zip64Locator(NamedTuple):
    """Zip64 end of central directory locator, section 4.3.15."""

    disk: int
    record_offset: int
    disk_count: int


def _fields(
    layout: struct.Struct, signature: bytes, what: str, data: bytes | memoryview, offset: int
) -> tuple[Any, ...]:
    """Unpack the fixed part of a record and check its signature."""
    if len(data) - offset < layout.size:
        raise ZipFormatError(
            f"the {what} is truncated",
            found=f"{max(len(data) - offset, 0)} bytes",
            expected=f"{layout.size} bytes",
        )
    found, *fields = layout.unpack_from(data, offset)
    if found != signature:
        raise ZipFormatError(f"the {what} has a wrong signature", found=found, expected=signature)
    return tuple(fields)


def _tail(data: bytes | memoryview, start: int, sizes: tuple[int, ...], what: str) -> list[bytes]:
    """Cut the variable parts that follow a record's fixed part."""
    end = start + sum(sizes)
    if end > len(data):
        raise ZipFormatError(
            f"names or extra fields of the {what} extend past its end",
            found=f"{len(data) - start} bytes",
            expected=f"{end - start} bytes",
        )
    parts = []
    for size in sizes:
        parts.append(bytes(data[start : start + size]))
        start += size
    return parts


def _check_extra(extra: bytes) -> None:
    if len(extra) > SENTINEL_16:
        raise LimitExceededError(
            "a member's extra field is too long with npzkit's own blocks",
            found=f"{len(extra)} bytes",
            expected=f"at most {SENTINEL_16:,}",
            remedy="Another program filled it. Save the array again to remove that.",
        )


def parse_local_header(data: bytes | memoryview, offset: int = 0) -> LocalHeader:
    """Parse the local file header at `offset`, name and extra field included."""
    fields = _fields(LOCAL, LOCAL_HEADER_SIGNATURE, "local header", data, offset)
    name, extra = _tail(data, offset + LOCAL.size, fields[8:], "local header")
    return LocalHeader._make((*fields[:8], name, extra))


def format_local_header(header: LocalHeader) -> bytes:
    """Format a local file header; LimitExceededError if its extra field is too long."""
    _check_extra(header.extra)
    return (
        LOCAL.pack(LOCAL_HEADER_SIGNATURE, *header[:8], len(header.name), len(header.extra))
        + header.name
        + header.extra
    )


def parse_central_entry(data: bytes | memoryview, offset: int = 0) -> CentralEntry:
    """Parse the central directory entry at `offset`, with all that follows it."""
    fields = _fields(CENTRAL, CENTRAL_ENTRY_SIGNATURE, "central directory entry", data, offset)
    sizes = fields[9:12]
    tail = _tail(data, offset + CENTRAL.size, sizes, "central directory entry")
    return CentralEntry(*fields[:9], *fields[12:], *tail)


def format_central_entry(entry: CentralEntry) -> bytes:
    """Format a central directory entry; LimitExceededError if its extra field is too long."""
    _check_extra(entry.extra)
    tail = (entry.name, entry.extra, entry.comment)
    return b"".join(
        (
            CENTRAL.pack(
                CENTRAL_ENTRY_SIGNATURE, *entry[:9], *map(len, tail), *entry[9:13]
            ),
            *tail,
        )
    )  # fmt: skip


def parse_end_of_central_directory(
    data: bytes | memoryview, offset: int = 0
) -> EndOfCentralDirectory:
    """Parse the end of central directory record at `offset`, with its comment."""
    fields = _fields(_END, END_SIGNATURE, "end of central directory record", data, offset)
    (comment,) = _tail(data, offset + _END.size, fields[6:], "end of central directory record")
    return EndOfCentralDirectory._make((*fields[:6], comment))


def format_end_of_central_directory(record: EndOfCentralDirectory) -> bytes:
    """Format an end of central directory record."""
    return _END.pack(END_SIGNATURE, *record[:6], len(record.comment)) + record.comment


def parse_zip64_end_of_central_directory(
    data: bytes | memoryview, offset: int = 0
) -> Zip64EndOfCentralDirectory:
    """Parse the zip64 end of central directory record at `offset`."""
    what = "zip64 end of central directory record"
    return Zip64EndOfCentralDirectory(*_fields(_ZIP64_END, ZIP64_END_SIGNATURE, what, data, offset))


def format_zip64_end_of_central_directory(record: Zip64EndOfCentralDirectory) -> bytes:
    """Format a zip64 end of central directory record."""
    return _ZIP64_END.pack(ZIP64_END_SIGNATURE, *record)


def parse_zip64_locator(data: bytes | memoryview, offset: int = 0) -> Zip64Locator:
    """Parse the zip64 locator at `offset`."""
    return Zip64Locator(
        *_fields(_ZIP64_LOCATOR, ZIP64_LOCATOR_SIGNATURE, "zip64 locator", data, offset)
    )


def format_zip64_locator(record: Zip64Locator) -> bytes:
    """Format a zip64 locator."""
    return _ZIP64_LOCATOR.pack(ZIP64_LOCATOR_SIGNATURE, *record)


def format_data_descriptor(
    crc32: int, compressed_size: int, uncompressed_size: int, *, signature: bool, zip64: bool
) -> bytes:
    """Format a data descriptor, section 4.3.9, in one of its four shapes."""
    layout = "<LQQ" if zip64 else "<LLL"
    fields = struct.pack(layout, crc32, compressed_size, uncompressed_size)
    return (DESCRIPTOR_SIGNATURE if signature else b"") + fields


def data_descriptors(crc32: int, compressed_size: int, uncompressed_size: int) -> tuple[bytes, ...]:
    """Return the descriptors that can hold these values, in up to four shapes.

    Nothing in the archive says which of them a producer chose.
    """
    is_large = max(compressed_size, uncompressed_size) > SENTINEL_32
    return tuple(
        format_data_descriptor(
            crc32, compressed_size, uncompressed_size, signature=signature, zip64=zip64
        )
        for zip64 in ((True,) if is_large else (False, True))
        for signature in (True, False)
    )


def matches_data_descriptor(
    data: bytes, crc32: int, compressed_size: int, uncompressed_size: int
) -> bool:
    """Whether `data` begins with the descriptor that has these values, in any shape."""
    return data.startswith(data_descriptors(crc32, compressed_size, uncompressed_size))
