"""What is known of the newest state of an archive whose end or directory is damaged.

Owns the search for the newest directory and its comment. `npzkit.zip.restored_directory`
restores its entries. The caller checks whether a listed member is sound. Knows no NPY.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from npzkit.errors import FormatError, NpzkitError, UnsupportedError
from npzkit.files.source import Source
from npzkit.limits import Limits
from npzkit.zip.directory import Directory, read_commit
from npzkit.zip.end_record import COMMENT_MAX_SIZE, resolve_end
from npzkit.zip.entries import Entry, parse_entries
from npzkit.zip.entry_records import entry_of, listed_records
from npzkit.zip.index_footer import find_last_footer
from npzkit.zip.local_header_scan import Allowance, HeaderScan, find_comment, find_member
from npzkit.zip.long_comment import LongComment
from npzkit.zip.records import (
    END_SIGNATURE,
    END_SIZE,
    ZIP64_RECORDS_SIZE,
)
from npzkit.zip.restored_directory import Place, restore
from npzkit.zip.tail import find_commits, find_last_commit, last_record


class NewestState(NamedTuple):
    """What the end of a damaged archive shows.

    Attributes
    ----------
    last : Directory or None
        Of the last commit that is complete.
    directory_offset : int
        Where the newest directory is: members behind it are newer.
    entries : dict of str to Entry
        Those of the newest directory that are known, by the members' names.
    records : dict of str to bytes
        The same, as they are or were in the file.
    is_complete : bool
        Whether these are all entries of the newest directory.
    is_restored : bool
        Whether any of them comes from the members' own headers.
    is_commit : bool
        Whether there are signs of a commit behind `last`, such as an end record.
    comment : bytes or None
        The archive's; None if it is lost.
    directory : Directory or None
        The newest one, if it is complete.
    is_newest : bool
        Whether no commit followed that directory.
    known : set of str
        The members of which the newest directory says that they are as they are found.
    others : list of Entry
        Of members that may be listed too; see `npzkit.zip.restored_directory.Restored`.
    """

    last: Directory | None
    directory_offset: int
    entries: dict[str, Entry]
    records: dict[str, bytes]
    is_complete: bool
    is_restored: bool
    is_commit: bool
    comment: bytes | None
    directory: Directory | None = None
    is_newest: bool = False
    known: Set[str] = frozenset()
    others: Sequence[Entry] = ()

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
    """Find what the file's end shows of the newest state; never raises for bad bytes.

    Raises
    ------
    UnsupportedError
        A newer npzkit wrote it.
    """
    last = _find_last(source)
    place, is_newest, is_commit = _find_place(source)
    if place is None or (last is not None and place.begin < last.directory_offset):
        comment = find_comment(source) if last is None else plain_comment(last.comment)
        offset = 0 if last is None else last.directory_offset
        return NewestState(last, offset, {}, {}, False, True, is_commit, comment)
    restored = restore(source, place, last)
    records = restored.records
    # Of a newer commit there may be no more than members. Other programs write them over an
    # older directory.
    is_complete = restored.is_complete and is_newest and not _has_members(source, place.begin)
    entries = _entries_of(records, place.begin)
    names = [entry.name for entry in entries]
    named, found_comment = dict(zip(names, entries, strict=True)), _find_comment(source, place)
    known = {name for name, record in zip(names, records, strict=True) if record in restored.known}
    directory = None
    if is_complete:
        positions = list(itertools.accumulate(map(len, records), initial=0))[:-1]
        directory = Directory(
            named, found_comment or b"", place.begin, place.end, b"".join(records), positions, 0,
            place.footer,
        )  # fmt: skip
    return NewestState(
        last, place.begin, named, dict(zip(names, records, strict=True)), is_complete,
        restored.is_restored or not is_complete, True, found_comment, directory,
        is_newest, known, restored.others,
    )  # fmt: skip


# -- where it is -------------------------------------------------------------------


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


def _find_place(source: Source) -> tuple[Place | None, bool, bool]:
    """Return where the newest directory is: as its index, its intent or its end record says.

    Also returns whether no commit followed it, and whether an append behind the last commit
    is damaged.
    """
    places: list[Place] = []
    footer = find_last_footer(source, (0,))
    if footer is not None:
        end = footer.directory_offset + footer.directory_size
        archive_end = end + ZIP64_RECORDS_SIZE + END_SIZE + footer.comment_size
        places.append(Place(footer.directory_offset, end, archive_end, footer))
    try:
        last = find_last_commit(source, (0,))
    except UnsupportedError:
        raise
    except NpzkitError:
        last = None
    if last is not None and last.mark is not None:
        begin, end, archive_end, _ = last.mark
        places.append(Place(begin, max(begin, end), archive_end, mark=last.mark))
    places += _place_by_record(source)
    # Of the same place, the first one has a checksum.
    place = max(places, key=lambda place: place.begin, default=None)
    is_newest = place is not None and any(
        other.begin == place.begin and source.size <= other.archive_end for other in places
    )
    return place, is_newest, last is not None and last.damage is not None


def _place_by_record(source: Source) -> Iterator[Place]:
    """Yield where the last end record says that its directory is, if that is right before it."""
    offset = last_record(source)
    if offset is None:
        return
    try:
        end = resolve_end(source, offset)
    except NpzkitError:
        return
    begin = end.records_offset - end.record.directory_size
    if begin == end.record.directory_offset and begin >= 0:
        yield Place(begin, end.records_offset, end.end_offset)


def _has_members(source: Source, offset: int) -> bool:
    """Return whether local headers of members follow an offset."""
    scan, allowance = HeaderScan(source, source.size), Allowance(source.size)
    place = scan.next_from(offset)
    while place is not None and not allowance.is_spent:
        if find_member(source, place, source.size, allowance) is not None:
            return True
        place = scan.next_from(place + 4)
    return place is not None


def _entries_of(records: list[bytes], end_offset: int) -> list[Entry]:
    """Parse entries, which may belong to members that overlap."""
    try:
        return parse_entries(b"".join(records), len(records), 0, 0, end_offset)[0]
    except FormatError:
        return [entry_of(record, end_offset) for record in records]


# -- its comment -------------------------------------------------------------------


def _find_comment(source: Source, place: Place) -> bytes | None:
    """Return the comment of the newest commit: the one that fits its checksum, if it has one."""
    footer = place.footer
    if footer is None:
        comment = _comment_behind_record(source, place.end)
        # A mark says how large the end was.
        is_lost = place.mark is not None and END_SIZE + len(comment) < place.archive_end - place.end
        return None if is_lost else plain_comment(comment)
    theirs = find_comment(source)
    if theirs and len(theirs) != footer.comment_size:
        return plain_comment(theirs)
    ends = [place.end + lead + END_SIZE for lead in (0, ZIP64_RECORDS_SIZE)]
    possible = [
        source.read_at(end, footer.comment_size)
        for end in ends
        if end + footer.comment_size <= source.size
    ]
    possible.append(LongComment(footer.metadata_offset, footer.metadata_size).comment)
    older = (end.record.comment for end in find_commits(source, (0,), source.size))
    for comment in itertools.chain(possible, [b""], older):
        if len(comment) == footer.comment_size and footer.fits_comment(comment):
            return comment
    return None


def _comment_behind_record(source: Source, offset: int) -> bytes:
    """Return what follows an end record, or zip64's and one, at `offset`."""
    data = source.read_at(offset, min(max(source.size - offset, 0), ZIP64_RECORDS_SIZE + END_SIZE))
    lead = data.find(END_SIGNATURE)
    begin = offset + lead + END_SIZE
    if lead < 0 or begin > source.size:
        return find_comment(source)
    return source.read_at(begin, min(source.size - begin, COMMENT_MAX_SIZE))


def plain_comment(comment: bytes) -> bytes:
    """Return a comment; an empty one if other programs would take it for an end record."""
    return b"" if END_SIGNATURE in comment else comment
