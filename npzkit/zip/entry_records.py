"""An archive that is there and is to be changed: its entries, byte by byte.

Owns what is kept of entries that are not touched, how one is changed, and how
much of a file nothing refers to any more. Writes nothing.
"""

from __future__ import annotations

import collections

from npzkit.errors import FormatError
from npzkit.files.source import Source
from npzkit.zip.array_index import find_array_index
from npzkit.zip.directory import Directory
from npzkit.zip.entries import Entry, accepting_name, parse_entries, walk_entries
from npzkit.zip.extra_fields import format_extra, iter_extra
from npzkit.zip.layout import central_bytes, central_entry
from npzkit.zip.long_comment import find_long_comment
from npzkit.zip.member_checks import data_offset
from npzkit.zip.records import (
    DESCRIPTOR_MAX_SIZE,
    DOS_DATE_1980,
    FLAG_DESCRIPTOR,
    LOCAL_HEADER_SIZE,
    VERSION_DEFAULT,
    VERSIONS_NEEDED,
    LocalHeader,
    format_central_entry,
    parse_central_entry,
)
from npzkit.zip.sozip import find_index, format_index_member

__all__ = [
    "dead_size",
    "entry_of",
    "has_first_member",
    "read_listed",
    "record_of",
    "repeated_names",
    "with_block",
]

_SLACK_SIZE = 160
"""Bytes of extra field and descriptor that are not looked for: usual padding has fewer."""


def read_listed(source: Source, directory: Directory) -> dict[str, bytes]:
    """Return the entries of a directory as they stand in the file, by name.

    Of two of one name the last, as `read_directory` chooses.
    """
    start = directory.directory_offset
    data = source.read_at(start, directory.end_offset - start)
    names = iter(directory.entries)
    listed: dict[str, bytes] = {}
    records = [data[begin:end] for begin, end in walk_entries(data)]
    if len(records) == len(directory.entries):
        return dict(zip(names, records, strict=True))
    for record in records:
        listed[entry_of(record, directory.directory_offset).name] = record
    return listed


def repeated_names(source: Source, directory: Directory) -> dict[str, int]:
    """Return the names that more than one entry has, and how many have them."""
    data = source.read_at(directory.directory_offset, directory.size)
    records = [data[begin:end] for begin, end in walk_entries(data)]
    if len(records) == len(directory.entries):
        return {}
    offset = directory.directory_offset
    counts = collections.Counter(entry_of(record, offset).name for record in records)
    return {name: count for name, count in counts.items() if count > 1}


def entry_of(record: bytes, end_offset: int) -> Entry:
    """Parse one entry; `end_offset` is where its member ends at the latest."""
    return parse_entries(record, 1, 0, 0, end_offset)[0]


def record_of(entry: Entry) -> bytes:
    """Format an entry for a member that is in the file, and whose own header is right."""
    entry = accepting_name(entry)
    version = VERSIONS_NEEDED.get(entry.method, VERSION_DEFAULT)
    header = LocalHeader(
        version, entry.flags, entry.method, 0, DOS_DATE_1980, entry.crc32,
        entry.compressed_size, entry.uncompressed_size, entry.raw_name, entry.extra,
    )  # fmt: skip
    return central_bytes(central_entry(header, entry.header_offset))


def with_block(record: bytes, identifier: int, block: bytes) -> bytes:
    """Return an entry with `block` for the blocks of its extra field with this identifier.

    Raises
    ------
    ZipFormatError
        The extra field is damaged.
    LimitExceededError
        It would be longer than it may be.
    """
    entry = parse_central_entry(record)
    kept = [
        format_extra(found, payload)
        for found, payload in iter_extra(entry.extra)
        if found != identifier
    ]
    return format_central_entry(entry._replace(extra=b"".join(kept) + block))


def has_first_member(directory: Directory) -> bool:
    """Whether the member at the file's first byte is listed.

    Where it is not, 7-Zip shows a directory that was given up.
    """
    return any(entry.header_offset == 0 for entry in directory.entries.values())


def dead_size(source: Source, directory: Directory) -> int:
    """Return how many of the archive's bytes belong to nothing that is listed."""
    index = find_array_index(source, directory)
    end = directory.directory_offset if index is None else index.offset
    long = find_long_comment(directory.comment)
    hidden_size = 0 if long is None else long.size
    extents = (_extent(source, entry, end) for entry in directory.entries.values())
    return end - directory.start_offset - hidden_size - sum(extents)


def _extent(source: Source, entry: Entry, end_offset: int) -> int:
    """Return the bytes of a member with its header and seek index.

    Bytes between members are only looked at if there are more of them than
    padding and a descriptor would be.
    """
    room = min(entry.end_offset, end_offset) - entry.header_offset
    least = LOCAL_HEADER_SIZE + len(entry.raw_name) + entry.compressed_size
    if room <= least + _SLACK_SIZE:
        return room
    try:
        start = data_offset(source, entry, verify=False)
    except FormatError:
        return room
    end = start + entry.compressed_size
    if entry.flags & FLAG_DESCRIPTOR:
        end += DESCRIPTOR_MAX_SIZE
    index = find_index(source, entry, start)
    if index is not None:
        end += len(format_index_member(entry.name, index))
    return min(end - entry.header_offset, room)
