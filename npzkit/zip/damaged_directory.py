"""What is known of the newest state of an archive whose end is damaged.

Owns the search for the newest directory, as far as it can be read, and for the
last commit before it that is complete. The caller checks whether a listed
member exists and is sound. Knows no NPY.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from npzkit.errors import FormatError, NpzkitError
from npzkit.files.source import Source
from npzkit.limits import Limits
from npzkit.zip.directory import Directory, read_commit
from npzkit.zip.end_record import COMMENT_MAX_SIZE, resolve_end
from npzkit.zip.entries import Entry, parse_entries, walk_entries
from npzkit.zip.entry_records import entry_of, listed_records
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIGNATURE,
    CENTRAL_ENTRY_SIZE,
    END_SIGNATURE,
    END_SIZE,
    ENTRY_SIZES,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    SENTINEL_32,
    ZIP64_END_SIZE,
    ZIP64_LOCATOR_SIZE,
)
from npzkit.zip.tail import Tail, TailKind, find_commits, read_tail

__all__ = ["NewestState", "find_newest", "plain_comment"]

_RECORDS64_SIZE = ZIP64_END_SIZE + ZIP64_LOCATOR_SIZE


class NewestState(NamedTuple):
    """What the end of a damaged archive shows.

    Attributes
    ----------
    last : Directory or None
        Of the last commit that is complete.
    entries : dict of str to Entry
        Those of the newest directory that can be read, by the members' names.
    records : dict of str to bytes
        The same, as they are in the file.
    is_complete : bool
        Whether these are all entries of the newest directory.
    is_commit : bool
        Whether there are signs of a commit behind `last`, such as an end record.
    comment : bytes
        The archive's, as far as it is known.
    """

    last: Directory | None
    entries: dict[str, Entry]
    records: dict[str, bytes]
    is_complete: bool
    is_commit: bool
    comment: bytes

    @property
    def end_offset(self) -> int:
        """Where the last complete commit ends: members behind it are newer."""
        return 0 if self.last is None else self.last.end_offset

    def listed(self) -> dict[str, bytes]:
        """Return the entries of the last commit, and those that are known of the newest."""
        if self.is_complete or self.last is None:
            return dict(self.records)
        return {**listed_records(self.last), **self.records}


def find_newest(source: Source) -> NewestState:
    """Find what the file's end shows of the newest state; never raises for bad bytes."""
    last = _find_last(source)
    start, comment = (0, b"") if last is None else (last.end_offset, plain_comment(last.comment))
    tail = read_tail(source, start, comment)
    if tail.kind is not TailKind.DAMAGED:
        return NewestState(last, {}, {}, False, False, comment)
    comment = _comment_of(source, tail.offset)
    if last is not None and tail.offset < start:
        # Its own end record truncates its comment.
        return NewestState(last, dict(last.entries), listed_records(last), True, True, comment)
    begin, end = _place_of(source, tail, start)
    data = source.read_at(begin, end - begin)
    is_walked = end - tail.directory_end in (0, _RECORDS64_SIZE)
    is_believed = begin < tail.directory_end or _lists_nothing(source, tail)
    found = _parse_all(data, begin) if is_walked and is_believed else None
    records, entries = found or _parse_each(source, data, begin)
    return NewestState(last, entries, records, found is not None, True, comment)


def _find_last(source: Source) -> Directory | None:
    """Return the last directory that can be read, in time linear in the file."""
    budget = 2 * source.size
    for end in find_commits(source, (0,), source.size):
        budget -= end.record.directory_size
        if budget < 0:
            break
        try:
            return read_commit(source, end, limits=Limits())
        except NpzkitError as error:
            if not error.is_damage:
                raise
    return None


def _place_of(source: Source, tail: Tail, start: int) -> tuple[int, int]:
    """Return where the newest directory begins and ends; an empty range if that
    is not known. The walk reached it, or the end record points to it. If an
    entry claims too many bytes, the walk may have entered the end record.
    """
    if tail.directory_offset >= 0:
        return tail.directory_offset, tail.offset
    try:
        end = resolve_end(source, tail.offset)
    except (NpzkitError, ValueError):
        return start, start
    begin = end.records_offset - end.record.directory_size
    is_here = begin == end.record.directory_offset and begin >= start
    return (begin, end.records_offset) if is_here else (start, start)


def _lists_nothing(source: Source, tail: Tail) -> bool:
    """Whether a damaged end record says that its directory is empty.

    One of its four values may be damaged. In other bytes that begin like an end
    record, more than one differs.
    """
    record = source.read_at(tail.offset, min(END_SIZE, source.size - tail.offset))
    if len(record) < END_SIZE:
        return False
    *counts, size, offset = struct.unpack_from("<HHLL", record, 8)
    expected = min(tail.directory_offset, SENTINEL_32)
    return [*counts, size, offset - expected].count(0) >= 3


def _parse_all(data: bytes, offset: int) -> tuple[dict[str, bytes], dict[str, Entry]] | None:
    """Return all entries of a directory; None if one of them is damaged."""
    places = list(walk_entries(data))
    size = places[-1][1] if places else 0
    try:
        entries, _ = parse_entries(data[:size], len(places), 0, 0, offset)
    except FormatError:
        return None
    records = {
        entry.name: data[begin:end] for entry, (begin, end) in zip(entries, places, strict=True)
    }
    return records, {entry.name: entry for entry in entries}


def _parse_each(
    source: Source, data: bytes, offset: int
) -> tuple[dict[str, bytes], dict[str, Entry]]:
    """Return the entries that are sound, and whose member's own header has their name."""
    records: dict[str, bytes] = {}
    entries: dict[str, Entry] = {}
    position = data.find(CENTRAL_ENTRY_SIGNATURE)
    while position >= 0 and position + CENTRAL_ENTRY_SIZE <= len(data):
        end = position + CENTRAL_ENTRY_SIZE + sum(ENTRY_SIZES.unpack_from(data, position + 28))
        entry = _entry_at(source, data[position:end], offset) if end <= len(data) else None
        if entry is not None:
            records[entry.name], entries[entry.name] = data[position:end], entry
        behind = position + 4 if entry is None else end
        position = data.find(CENTRAL_ENTRY_SIGNATURE, behind)
    return records, entries


def _entry_at(source: Source, record: bytes, directory_offset: int) -> Entry | None:
    try:
        entry = entry_of(record, directory_offset)
    except FormatError:
        return None
    head = source.read_at(entry.header_offset, LOCAL_HEADER_SIZE + len(entry.raw_name))
    is_named = head.startswith(LOCAL_HEADER_SIGNATURE) and head.endswith(entry.raw_name)
    # Of another size it would be the beginning of the member's name.
    is_whole = int.from_bytes(head[26:28], "little") == len(entry.raw_name)
    return entry if is_named and is_whole else None


def _comment_of(source: Source, place: int) -> bytes:
    """Return the comment behind the damaged end record at `place`.

    If its size is damaged, the comment extends to the end of the file.
    """
    head = source.read_at(place, min(END_SIZE, source.size - place))
    behind = place + len(head)
    rest = source.read_at(behind, min(source.size - behind, COMMENT_MAX_SIZE))
    size = int.from_bytes(head[20:22], "little")
    return plain_comment(rest if rest.startswith(b"{") else rest[:size])


def plain_comment(comment: bytes) -> bytes:
    """Return a comment; an empty one if other programs would take it for an end record."""
    return b"" if END_SIGNATURE in comment else comment
