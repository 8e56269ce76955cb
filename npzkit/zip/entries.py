"""The entries of the central directory, parsed in one pass and checked against each other.

Owns the checks of an entry: its sizes must agree with their zip64 values, and
no other member may lie in its place. An entry whose name cannot be used is
marked, and only its member is refused.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import itertools
import re
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

from npzkit.codecs.coding import STORED
from npzkit.errors import SAVE_SOUND, Advice, ZipFormatError
from npzkit.zip.extra_fields import (
    UNICODE_PATH_ID,
    ZIP64_ID,
    find_extra,
    iter_extra,
    merge_zip64,
    parse_unicode_path,
    parse_zip64,
)
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIGNATURE,
    CENTRAL_ENTRY_SIZE,
    ENTRY_FIELDS,
    ENTRY_LAYOUT,
    ENTRY_SIZES,
    FLAG_UTF8,
    LOCAL_HEADER_SIZE,
    SENTINEL_32,
)

_CONTROL = "[\x00-\x1f\x7f]"
BAD_NAME = 1 << 16
"""The mark of a name that cannot be used, above the 16 bits that flags have in a file.

Fast readers refuse flags that they do not know, so the mark costs nothing.
"""
_USABLE_SIZE = 60_000
"""Bytes of the longest name that is made: fewer than a header has room for."""
UNKNOWN_SIZE = (1 << 63) - 1
"""Stands for a size that follows the data, in the entry of a member whose data arrives."""
UNICODE_PATH = UNICODE_PATH_ID.to_bytes(2, "little")
"""Bytes in every extra field with a Unicode path: searching them is faster than a walk."""


class Entry(NamedTuple):
    """One member as the directory lists it, its zip64 values resolved.

    Attributes
    ----------
    name : str
        The member's name, decoded.
    raw_name : bytes
        As it stands in the archive; the local header must repeat it.
    flags : int
        With `BAD_NAME`, where that applies.
    method, crc32 : int
    compressed_size, uncompressed_size : int
        Bytes.
    header_offset : int
        Bytes from the start of the file to the local header.
    disk_start : int
        0, except for members of a split archive.
    extra : bytes
        The central extra field.
    end_offset : int
        Where the next member or the directory begins: the member ends before it.
    """

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc32: int
    compressed_size: int
    uncompressed_size: int
    header_offset: int
    disk_start: int
    extra: bytes
    end_offset: int

    @property
    def described(self) -> tuple[int, int, int]:
        """The fields that a data descriptor has."""
        return self[4:7]

    @property
    def name_end(self) -> int:
        """Where the name in the local header ends in the file."""
        return self.header_offset + LOCAL_HEADER_SIZE + len(self.raw_name)

    @property
    def least_size(self) -> int:
        """Bytes that the member takes at least, with its local header."""
        return LOCAL_HEADER_SIZE + len(self.raw_name) + self.compressed_size


LARGEST = 1 << 62
"""Sizes and offsets from here on need Python's integers: the sum of two fits no column."""


class Rows(dict[str, Entry]):
    """Entries by member name; those of many members are `npzkit.zip.entry_columns.Columns`."""

    columns = None
    """The same as columns, if that is what they are."""

    def sizes(self) -> tuple[int, int]:
        """Return the sums of compressed and of uncompressed sizes."""
        found = list(self.values())
        return sum(e.compressed_size for e in found), sum(e.uncompressed_size for e in found)

    def marked(self) -> list[Entry]:
        """Return the entries whose names cannot be used."""
        return [entry for entry in self.values() if entry.flags & BAD_NAME]

    def rooms(self, end_offset: int, slack: int) -> tuple[int, list[Entry]]:
        """Return the room of members that leave little of it, and other entries: here, all."""
        return 0, list(self.values())

    def has_text(self, text: bytes) -> bool:
        """Whether some bytes are in an extra field."""
        return any(text in entry.extra for entry in self.values())

    def fields(self) -> list[list[int]]:
        """Return the columns from `flags` to `disk_start`, and the sizes of names and extra fields.

        What is too large for a column is `LARGEST`: no file has it.
        """
        rows = [(*e[2:9], len(e.raw_name), len(e.extra)) for e in self.values()]
        return [[min(row[place], LARGEST) for row in rows] for place in range(9)]


def parse_entries(
    data: bytes, count: int, base: int, start: int, offset: int
) -> tuple[list[Entry], list[int]]:
    """Return all entries, and where each begins in the directory: 1 microsecond each.

    Parameters
    ----------
    data : bytes
        The central directory.
    count : int
        Entries that the end record counts.
    base : int
        What header offsets count from, in bytes of the file.
    start, offset : int
        Where the archive begins in the file, and where its directory does.

    Raises
    ------
    ZipFormatError
        An entry is damaged, there are more or fewer than counted, or members
        overlap each other or the directory (CVE-2024-0450).
    """
    if count * CENTRAL_ENTRY_SIZE > len(data):
        raise _miscounted(count, len(data) // CENTRAL_ENTRY_SIZE, offset)
    entries: list[Entry] = []
    positions: list[int] = []
    append, unpack, new, size = entries.append, ENTRY_FIELDS.unpack_from, tuple.__new__, len(data)
    # Where a member ends is known once the next one's offset is.
    pending: tuple[object, ...] = ()
    position = 0
    for _ in range(count):
        if position + CENTRAL_ENTRY_SIZE > size:
            raise _miscounted(count, len(positions), offset + position)
        (
            signature, flags, method, crc32, compressed_size, uncompressed_size,
            name_size, extra_size, comment_size, disk_start, header_offset,
        ) = unpack(data, position)  # fmt: skip
        name_end = position + CENTRAL_ENTRY_SIZE + name_size
        raw_name = data[position + CENTRAL_ENTRY_SIZE : name_end]
        end = name_end + extra_size + comment_size
        if signature != CENTRAL_ENTRY_SIGNATURE or end > size:
            _check_entry(data, position, offset)
        extra = data[name_end : name_end + extra_size] if extra_size else b""
        name = raw_name.decode() if raw_name.isascii() else ""
        if not name or not name.isprintable() or (extra_size and UNICODE_PATH in extra):
            name, flags = read_name(raw_name, flags, extra)
        if extra_size or SENTINEL_32 in (compressed_size, uncompressed_size, header_offset):
            compressed_size, uncompressed_size, header_offset = resolve_zip64(
                extra, (uncompressed_size, compressed_size, header_offset), offset + position
            )
        header_offset += base
        positions.append(position)
        if pending:
            append(new(Entry, (*pending, header_offset)))
        pending = (
            name, raw_name, flags, method, crc32, compressed_size, uncompressed_size,
            header_offset, disk_start, extra,
        )  # fmt: skip
        position = end
    if position != size:
        raise _miscounted(count, "more bytes after the last entry", offset + position)
    if pending:
        append(new(Entry, (*pending, offset)))
    if not _is_laid_out(entries, start):
        entries = _lay_out(entries, start, offset)
    return entries, positions


def _check_entry(data: bytes, position: int, offset: int) -> None:
    """Raise ZipFormatError for an entry with a wrong signature, or that is not complete."""
    try:
        ENTRY_LAYOUT.parse(data, position)
    except ZipFormatError as error:
        error.offset = offset + position
        raise


def parse_entry(record: bytes, end_offset: int) -> Entry:
    """Parse one entry; its member may end at `end_offset` at the latest."""
    return parse_entries(record, 1, 0, 0, end_offset)[0][0]


def walk_entries(data: bytes, position: int = 0) -> Iterator[tuple[int, int]]:
    """Yield where each entry begins and ends, as far as they follow each other."""
    while len(data) - position >= CENTRAL_ENTRY_SIZE and data.startswith(
        CENTRAL_ENTRY_SIGNATURE, position
    ):
        name_size, extra_size, comment_size = ENTRY_SIZES.unpack_from(data, position)
        end = position + CENTRAL_ENTRY_SIZE + name_size + extra_size + comment_size
        if end > len(data):
            return
        yield position, end
        position = end


def positions_of(records: Iterable[bytes]) -> list[int]:
    """Return where each entry begins in the directory that they make together."""
    return list(itertools.accumulate(map(len, records), initial=0))[:-1]


def _miscounted(expected: int, found: object, offset: int) -> ZipFormatError:
    return ZipFormatError(
        "the central directory does not hold the entries that the end record counts",
        offset=offset,
        found=found,
        expected=expected,
    )


def read_name(raw: bytes, flags: int, extra: bytes) -> tuple[str, int]:
    """Return a member's name and its flags, marked if the name cannot be used.

    Bytes that are not UTF-8 become halves of surrogate pairs, as in Python's
    names of files: no other name is the same.
    """
    try:
        name = _decode(raw, flags, extra)
    except ZipFormatError:
        return raw.decode("utf-8" if flags & FLAG_UTF8 else "cp437", "surrogateescape"), (
            flags | BAD_NAME
        )
    # Control characters could fake a terminal's output.
    is_bad = not name.isprintable() and re.search(_CONTROL, name) is not None
    return name, flags | BAD_NAME if is_bad else flags


def name_error(entry: Entry) -> ZipFormatError | None:
    """Return why a name that is marked cannot be used: control characters, or two readings."""
    if not entry.flags & BAD_NAME:
        return None
    remedy = (
        "Give it another key"
        + Advice(', NpzWriter(path, "a").rename(key, new)', " by npzkit mv FILE KEY NEW")
        + ", or save the archive by "
        + SAVE_SOUND
        + "."
    )
    try:
        name = _decode(entry.raw_name, entry.flags, entry.extra)
    except ZipFormatError as error:
        error.offset, error.remedy = entry.header_offset, remedy
        return error
    return ZipFormatError(
        "a member's name contains a control character",
        offset=entry.header_offset, found=name, remedy=remedy,
    )  # fmt: skip


def check_names(entries: Iterable[Entry]) -> None:
    """Raise ZipFormatError for the first name that is marked."""
    for entry in entries:
        error = name_error(entry)
        if error is not None:
            raise error.locate(key=entry.name)


def accepting_name(entry: Entry) -> Entry:
    """Return an entry without its mark, so that the member can be checked, copied or renamed."""
    return entry._replace(flags=entry.flags & ~BAD_NAME) if entry.flags & BAD_NAME else entry


def usable_name(name: str, taken: Container[str]) -> str:
    r"""Return a usable name for one that cannot be used.

    Examples
    --------
    >>> usable_name("new\nline.npy", {"new%0Aline.npy"})
    '_new%0Aline.npy'
    """
    name = "".join(c if c.isprintable() else _percent_encoded(c) for c in name)
    # Of a name that is too long now, the end is kept, because it has the suffix.
    name = name.encode()[-_USABLE_SIZE:].decode(errors="ignore")
    while name in taken:
        name = f"_{name}"
    return name


def _percent_encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))


def _decode(raw: bytes, flags: int, extra: bytes) -> str:
    """Decode a name: UTF-8 under flag bit 11, else code page 437 (appendix D).

    Info-ZIP's Unicode path replaces a name in another code page. If the name is
    plain ASCII or UTF-8, some programs use the path and others do not.
    """
    if flags & FLAG_UTF8:
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ZipFormatError("a member's name is not UTF-8", found=raw) from error
    else:
        name = raw.decode("cp437")
    if UNICODE_PATH in extra:
        payload = find_extra(extra, UNICODE_PATH_ID)
        path = (payload and parse_unicode_path(payload, raw)) or name
        if path != name and (raw.isascii() or flags & FLAG_UTF8):
            raise ZipFormatError(
                "a member's Unicode path differs from its name", found=path, expected=name
            )
        name = path
    return name


def resolve_zip64(extra: bytes, values: tuple[int, ...], offset: int) -> tuple[int, int, int]:
    """Return compressed size, uncompressed size and offset in 64 bits.

    Raises
    ------
    ZipFormatError
        The block lacks a value, or repeats one that its 32-bit field denies; or
        some block runs over the end.
    """
    uncompressed, compressed, header_offset = values
    try:
        # All blocks are walked, so that damage behind that of zip64 is found too.
        payloads = [data for identifier, data in iter_extra(extra) if identifier == ZIP64_ID]
        # Exactly 4 GiB - 1 needs no zip64 if the writer left it out.
        if payloads:
            uncompressed, compressed, header_offset = merge_zip64(payloads[0], values)
            _check_surplus_zip64(payloads[0], values)
    except ZipFormatError as error:
        error.offset = offset
        raise
    return compressed, uncompressed, header_offset


def _check_surplus_zip64(payload: bytes, values: tuple[int, ...]) -> None:
    """Accept surplus values only if all are given and agree."""
    if len(payload) <= 8 * values.count(SENTINEL_32):
        return
    given = parse_zip64(payload, min(len(payload) // 8, 3))
    for small, large in zip(values, given, strict=False):
        if small not in (large, SENTINEL_32):
            raise ZipFormatError(
                "the zip64 extra field disagrees with its entry", found=given, expected=values
            )


def is_usual(entry: Any) -> Any:
    """Whether a member is stored, described before its data, and in no way special.

    Of an `Entry`, or for each row of `Columns`: one rule for both.
    """
    return (
        (entry.method == STORED)
        & (entry.flags & ~FLAG_UTF8 == 0)
        & (entry.disk_start == 0)
        & (entry.compressed_size == entry.uncompressed_size)
    )


def _is_laid_out(entries: list[Entry], start: int) -> bool:
    """Whether each member has the room it needs up to its end."""
    for _, raw_name, _, _, _, compressed_size, _, offset, _, _, end in entries:
        if offset < start or offset + LOCAL_HEADER_SIZE + len(raw_name) + compressed_size > end:
            return False
    return True


def _lay_out(entries: list[Entry], start: int, directory_offset: int) -> list[Entry]:
    """Find the ends of members that are listed in another order than they have
    in the file, as by programs that edit archives. Members that still lack room
    overlap.
    """
    offsets = sorted(entry.header_offset for entry in entries)
    ends = dict(zip(offsets, [*offsets[1:], directory_offset], strict=True))
    placed = [entry._replace(end_offset=ends[entry.header_offset]) for entry in entries]
    for entry in placed:
        if len(ends) < len(placed) or not _is_laid_out([entry], start):
            raise ZipFormatError(
                "members overlap each other or the central directory",
                key=entry.name,
                offset=entry.header_offset,
                found=f"at least {entry.least_size} bytes with its header",
                expected=f"at most {entry.end_offset - entry.header_offset} bytes",
            )
    return placed
