"""The entries of an existing directory as bytes, kept or changed one by one.

Owns how an entry is read, formatted and changed without a look at the others.
Writes nothing.
"""

from __future__ import annotations

import collections

from npzkit.zip.directory import Directory
from npzkit.zip.entries import Entry, accepting_name, parse_entries
from npzkit.zip.extra_fields import format_extra, iter_extra
from npzkit.zip.layout import central_bytes, central_entry
from npzkit.zip.records import (
    DOS_DATE_1980,
    VERSION_DEFAULT,
    VERSIONS_NEEDED,
    LocalHeader,
    format_central_entry,
    parse_central_entry,
)


def listed_records(directory: Directory) -> dict[str, bytes]:
    """Return the entries of a directory as bytes, by name.

    If two have the same name, the last one is returned, as by `read_directory`.
    """
    records = _records(directory)
    if len(records) == len(directory.entries):
        return dict(zip(directory.entries, records, strict=True))
    return {entry_of(record, directory.directory_offset).name: record for record in records}


def repeated_names(directory: Directory) -> dict[str, int]:
    """Return the names that more than one entry has, and how many have them."""
    records = _records(directory)
    if len(records) == len(directory.entries):
        return {}
    offset = directory.directory_offset
    counts = collections.Counter(entry_of(record, offset).name for record in records)
    return {name: count for name, count in counts.items() if count > 1}


def _records(directory: Directory) -> list[bytes]:
    """Return all entries of a directory as bytes, those of repeated names too."""
    data, begins = directory.data, directory.positions
    if not isinstance(begins, list):
        # Slicing takes four times as long with NumPy's integers.
        begins = begins.tolist()
    return [data[begin:end] for begin, end in zip(begins, [*begins[1:], None], strict=False)]


def entry_of(record: bytes, end_offset: int) -> Entry:
    """Parse one entry; its member may end at `end_offset` at the latest."""
    return parse_entries(record, 1, 0, 0, end_offset)[0][0]


def record_of(entry: Entry) -> bytes:
    """Format an entry for a member in the file whose local header is correct."""
    entry = accepting_name(entry)
    version = VERSIONS_NEEDED.get(entry.method, VERSION_DEFAULT)
    header = LocalHeader(
        version, entry.flags, entry.method, 0, DOS_DATE_1980, entry.crc32,
        entry.compressed_size, entry.uncompressed_size, entry.raw_name, entry.extra,
    )  # fmt: skip
    return central_bytes(central_entry(header, entry.header_offset))


def with_block(record: bytes, identifier: int, block: bytes) -> bytes:
    """Return an entry with `block` in place of its extra field's blocks with this identifier.

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
