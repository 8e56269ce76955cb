"""Dead space: the bytes of an archive that belong to no listed member.

Owns how they are counted. Deleted, replaced and unfinished members leave them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress

from npzkit.errors import FormatError
from npzkit.files.source import Source
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.commit import find_long_comment
from npzkit.zip.directory import Directory
from npzkit.zip.entries import Entry
from npzkit.zip.local_header import data_offset
from npzkit.zip.npzkit_record import extent
from npzkit.zip.records import DESCRIPTOR_MAX_SIZE, ENTRY_LAYOUT, FLAG_DESCRIPTOR, SENTINEL_32

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
    end = directory.directory_offset
    if directory.footer is not None:
        end -= min(directory.footer.record_size, end - directory.start_offset)
    full_size, entries = directory.entries.rooms(end, _SLACK_SIZE)
    used = full_size + _older_size(source, directory, end)
    if source.is_distant:
        source = source.ahead(_ends(entries, end), at_once=True)
    used += sum(_extent(source, entry, end) for entry in entries)
    return max(end - directory.start_offset - used, 0)


def _older_size(source: Source, directory: Directory, end: int) -> int:
    """Return how many bytes before `end` are those of older records that still count."""
    size, long = 0, find_long_comment(directory.comment)
    if long is not None and directory.start_offset + long.offset < end:
        size += extent(long.size)
    lists = ChunkLists(source, directory)
    if lists.index is not None:
        listed = compress(directory.entries.values(), lists.index.are_listed)
        spans = filter(None, map(lists.span, listed))
        size += sum(stop - begin for begin, stop in spans if begin < end)
    return size


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
    """Return the bytes of a member with its header.

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
    return min(end - entry.header_offset, room)
