"""Dead space: the bytes of an archive that belong to no listed member.

Owns how they are counted. Deleted, replaced and unfinished members leave them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from npzkit.errors import FormatError
from npzkit.files.source import Source
from npzkit.zip.array_index import find_array_index
from npzkit.zip.commit_marks import find_long_comment
from npzkit.zip.directory import Directory
from npzkit.zip.entries import Entry
from npzkit.zip.entry_columns import Columns
from npzkit.zip.member_checks import data_offset
from npzkit.zip.records import DESCRIPTOR_MAX_SIZE, ENTRY_LAYOUT, FLAG_DESCRIPTOR, SENTINEL_32
from npzkit.zip.sozip import find_index, format_index_member

_SLACK_SIZE = 160
"""Bytes of extra field and descriptor that are not looked for: usual padding has fewer."""
_SEEN_SIZE = 2048
"""Bytes of each end of a member that are fetched together, if each read is a request."""
_SIZE_AND_OFFSET = ENTRY_LAYOUT.picked("compressed_size", "header_offset").unpack_from


def fills_most(listed: Iterable[bytes], size: int) -> bool:
    """Whether members with these entries surely take half of a file, its first byte included.

    The file is not looked at. If the answer is False, `dead_size` knows.
    """
    used, has_first = 0, False
    for member_size, offset in map(_SIZE_AND_OFFSET, filter(None, listed)):
        has_first |= offset == 0
        if member_size != SENTINEL_32:
            used += member_size
    return has_first and 2 * used >= size


def dead_size(source: Source, directory: Directory) -> int:
    """Return how many of the archive's bytes belong to nothing that is listed."""
    index = find_array_index(source, directory)
    end = directory.directory_offset if index is None else index.offset
    long = find_long_comment(directory.comment)
    hidden_size = 0 if long is None else long.size
    found = directory.entries
    entries: Collection[Entry] = found.values()
    full_size = 0
    if isinstance(found, Columns):
        full_size, entries = found.rooms(end, _SLACK_SIZE)
    if source.is_distant:
        source = source.ahead(_ends(entries, end), at_once=True)
    extents = (_extent(source, entry, end) for entry in entries)
    unlisted = end - directory.start_offset - full_size - sum(extents)
    # Where fewer bytes are left, the metadata are not there.
    return unlisted - hidden_size if hidden_size <= unlisted else unlisted


def _ends(entries: Iterable[Entry], end_offset: int) -> Iterator[tuple[int, int]]:
    """Yield where `_extent` reads, mostly: headers, and what follows the data."""
    for entry in entries:
        room = min(entry.end_offset, end_offset) - entry.header_offset
        if room > entry.least_size + _SLACK_SIZE:
            start, behind = entry.header_offset, entry.header_offset + entry.least_size
            lead = entry.least_size - entry.compressed_size
            yield start, start + min(lead + _SEEN_SIZE, room)
            yield behind, min(behind + _SEEN_SIZE, start + room)


def _extent(source: Source, entry: Entry, end_offset: int) -> int:
    """Return the bytes of a member with its header and seek index.

    Bytes between members are only looked at if there are more of them than
    padding and a descriptor would be.
    """
    room = min(entry.end_offset, end_offset) - entry.header_offset
    if room <= entry.least_size + _SLACK_SIZE:
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
