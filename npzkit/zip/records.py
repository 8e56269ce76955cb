"""The records of a zip archive: bytes to named fields, and back. No I/O.

Owns signatures, lengths, flag bits and the `RecordLayout` of each record, which parses and
formats it: `parse` takes bytes and an offset, `format` is the inverse. Parsing
checks the signature and that the bytes suffice, nothing else: `end_record`, `entries`
and `local_header` decide what fields may mean together.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import itertools
import struct
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

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


_Record = TypeVar("_Record", bound=tuple[Any, ...])


class RecordLayout(Generic[_Record]):
    """A record: its fields in order, and how each is encoded.

    Stated once for one record and for columns of many (NumPy).

    Parameters
    ----------
    record : type
        A named tuple. Its last fields, beyond the codes, are texts that follow the fixed part.
    what : str
        Its name in errors.
    signature : bytes
    codes : str
        For each other field its code in `struct`.
    place : int, optional
        How many of them precede the sizes of the texts; all by default.

    Attributes
    ----------
    struct : struct.Struct
        The signature and all other fields of the fixed part.
    size : int
        Bytes of the fixed part.
    """

    def __init__(
        self,
        record: type[_Record],
        what: str,
        signature: bytes,
        codes: str,
        place: int | None = None,
    ) -> None:
        names: tuple[str, ...] = record._fields  # type: ignore[attr-defined]
        self._make: Callable[[Iterable[Any]], _Record] = record._make  # type: ignore[attr-defined]
        self._what, self._signature = what, signature
        texts = names[len(codes) :]
        self._tail_count = len(texts)
        self._tail_place = len(codes) if place is None else place
        fixed = list(zip(names, codes, strict=False))
        sizes = [(f"{name}_size", "H") for name in texts]
        fixed[self._tail_place : self._tail_place] = sizes
        self._codes = {"signature": "4s", **dict(fixed)}
        self.struct = struct.Struct("<" + "".join(self._codes.values()))
        self.size = self.struct.size

    def parse(self, data: bytes | memoryview, offset: int = 0) -> _Record:
        """Parse the record at `offset`, with the names and other texts that follow it."""
        if len(data) - offset < self.size:
            raise ZipFormatError(
                f"the {self._what} is truncated",
                found=f"{max(len(data) - offset, 0)} bytes",
                expected=f"{self.size} bytes",
            )
        found, *fields = self.struct.unpack_from(data, offset)
        if found != self._signature:
            raise ZipFormatError(
                f"the {self._what} has a wrong signature", found=found, expected=self._signature
            )
        start, place = offset + self.size, self._tail_place
        sizes = fields[place : place + self._tail_count]
        if start + sum(sizes) > len(data):
            raise ZipFormatError(
                f"names or extra fields of the {self._what} extend past its end",
                found=f"{len(data) - start} bytes",
                expected=f"{sum(sizes)} bytes",
            )
        del fields[place : place + self._tail_count]
        for size in sizes:
            fields.append(bytes(data[start : start + size]))
            start += size
        return self._make(fields)

    def format(self, record: _Record) -> bytes:
        """Format a record; LimitExceededError if its extra field is too long."""
        count, place = self._tail_count, self._tail_place
        if not count:
            return self.struct.pack(self._signature, *record)
        tail = record[-count:]
        if count > 1 and len(tail[1]) > SENTINEL_16:
            raise LimitExceededError(
                "a member's extra field is too long with npzkit's own blocks",
                found=f"{len(tail[1])} bytes",
                expected=f"at most {SENTINEL_16:,} bytes",
                remedy="Another program filled it. Save the array again to remove that.",
            )
        fixed = *record[:place], *map(len, tail), *record[place:-count]
        return self.struct.pack(self._signature, *fixed) + b"".join(tail)

    def offset_of(self, name: str) -> int:
        """Return where a field begins in the record."""
        before = itertools.takewhile(name.__ne__, self._codes)
        return struct.calcsize("<" + "".join(map(self._codes.__getitem__, before)))

    def picked(self, *names: str) -> struct.Struct:
        """Return the `struct` of the fixed part that unpacks some fields, in their order."""
        skipped = (f"{struct.calcsize(code)}x" for code in self._codes.values())
        codes = zip(self._codes.items(), skipped, strict=True)
        return struct.Struct(
            "<" + "".join(code if name in names else skip for (name, code), skip in codes)
        )

    def columns(self, *names: str) -> Any:
        """Return the `numpy.dtype` of some fields, as its argument."""
        codes = {"4s": "S4", "H": "<u2", "I": "<u4", "Q": "<u8"}
        return {
            "names": names,
            "formats": [codes[self._codes[name]] for name in names],
            "offsets": list(map(self.offset_of, names)),
            "itemsize": self.size,
        }


LOCAL_LAYOUT = RecordLayout(LocalHeader, "local header", LOCAL_HEADER_SIGNATURE, "HHHHHIII")
ENTRY_LAYOUT = RecordLayout(
    CentralEntry, "central directory entry", CENTRAL_ENTRY_SIGNATURE, "HHHHHHIIIHHII", place=9
)
END_LAYOUT = RecordLayout(
    EndOfCentralDirectory, "end of central directory record", END_SIGNATURE, "HHHHII"
)
ZIP64_END_LAYOUT = RecordLayout(
    Zip64EndOfCentralDirectory, "zip64 end of central directory record", ZIP64_END_SIGNATURE,
    "QHHIIQQQQ",
)  # fmt: skip
LOCATOR_LAYOUT = RecordLayout(Zip64Locator, "zip64 locator", ZIP64_LOCATOR_SIGNATURE, "IQI")
LOCAL = LOCAL_LAYOUT.struct
CENTRAL = ENTRY_LAYOUT.struct
END = END_LAYOUT.struct

ENTRY_READ = (
    "signature", "flags", "method", "crc32", "compressed_size", "uncompressed_size", "name_size",
    "extra_size", "comment_size", "disk_start", "header_offset",
)  # fmt: skip
"""Fields of an entry that reading looks at: versions, times and attributes are not among them."""
ENTRY_FIELDS = ENTRY_LAYOUT.picked(*ENTRY_READ)
ENTRY_SIZES = ENTRY_LAYOUT.picked("name_size", "extra_size", "comment_size")
LOCAL_CRC32_OFFSET = LOCAL_LAYOUT.offset_of("crc32")
ENTRY_CRC32_OFFSET = ENTRY_LAYOUT.offset_of("crc32")

LOCAL_HEADER_SIZE = LOCAL_LAYOUT.size
CENTRAL_ENTRY_SIZE = ENTRY_LAYOUT.size
END_SIZE = END_LAYOUT.size
ZIP64_END_SIZE = ZIP64_END_LAYOUT.size
ZIP64_LOCATOR_SIZE = LOCATOR_LAYOUT.size
ZIP64_RECORDS_SIZE = ZIP64_END_SIZE + ZIP64_LOCATOR_SIZE
"""Of both, which stand right before the end record."""
COMMENT_MAX_SIZE = SENTINEL_16
DESCRIPTOR_MIN_SIZE = 12
DESCRIPTOR_MAX_SIZE = 24


def data_descriptors(crc32: int, compressed_size: int, uncompressed_size: int) -> tuple[bytes, ...]:
    """Return the data descriptors (section 4.3.9) that can hold these values, in up to four shapes.

    Nothing in the archive says which of them a producer chose: 32 or 64 bits, with a
    signature or without.
    """
    values = crc32, compressed_size, uncompressed_size
    is_large = max(values) > SENTINEL_32
    return tuple(
        signature + struct.pack(layout, *values)
        for layout in (("<LQQ",) if is_large else ("<LLL", "<LQQ"))
        for signature in (DESCRIPTOR_SIGNATURE, b"")
    )
