"""What is known of the newest state of an archive whose end or directory is damaged.

Decides where the newest directory and its comment are, and which of its entries are
believed: those that agree with their members' own headers. The others are made again, as
the directory before has them or as those headers say. The footer has the directory's
checksum, which says when all of it is right. The caller checks whether a listed member
is sound. Knows no NPY.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from npzkit.errors import AmbiguousArchiveError, FormatError, NpzkitError, may_be_damage
from npzkit.files.source import Source
from npzkit.zip.commit import FAR_COMMENT, INTENT_SIZE, MARK_OFFSET, Far, Footer
from npzkit.zip.directory import Directory, read_commit
from npzkit.zip.end_record import find_fitting, last_record, resolve_end
from npzkit.zip.entries import (
    LARGEST,
    Entry,
    Rows,
    parse_entries,
    parse_entry,
    positions_of,
    walk_entries,
)
from npzkit.zip.extra_fields import CHANGED_PAIR
from npzkit.zip.last_commit import (
    archive_end,
    find_commits,
    find_footers,
    find_last_commit,
    footer_before,
    unfinished_offset,
)
from npzkit.zip.local_header import data_offset, header_end
from npzkit.zip.member_search import Allowance, FoundMember, SignatureScan, find_member
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIGNATURE,
    CENTRAL_ENTRY_SIZE,
    COMMENT_MAX_SIZE,
    END_SIGNATURE,
    END_SIZE,
    ENTRY_LAYOUT,
    ENTRY_SIZES,
    LOCAL_HEADER_SIZE,
    ZIP64_RECORDS_SIZE,
)
from npzkit.zip.written_header import entry_bytes

_TRIED_SIZE = 1 << 28
"""Bytes of directories that are compared with the checksum."""
_NAME_SIZE_AND_OFFSET = ENTRY_LAYOUT.picked("name_size", "header_offset").unpack_from


class _Place(NamedTuple):
    """Where a directory begins and ends, and what is said of it, if that is known.

    `archive_end` is where the archive ended when it was written.
    """

    begin: int
    end: int = 0
    archive_end: int = 0
    entry_count: int = 0
    footer: Footer | None = None


class _Listed(NamedTuple):
    """A member, and its entry in the directory as it is or may have been."""

    entry: Entry
    record: bytes


class _Restoration:
    """What is left of a directory, and what else is known of its entries.

    Parameters
    ----------
    source : Source
    place : _Place
    last : Directory or None
        The last one that can be read. If it is an older one, entries are taken from it
        whose members are the same.

    Attributes
    ----------
    records : list of bytes
        Its entries. If they are not all, they are those that agree with their members' own
        headers, or whose name or offset is left.
    is_complete : bool
        Whether these are all.
    is_restored : bool
        Whether any is not from the directory itself.
    others : list of Entry
        Entries that do not agree with their members' own headers, because one of the two is
        damaged; and members of which it is not known whether they were listed.
    """

    def __init__(self, source: Source, place: _Place, last: Directory | None) -> None:
        self._source, self._footer = source, place.footer
        self._begin = min(place.begin, source.size)
        self._data = source.read_at(self._begin, min(place.end, source.size) - self._begin)
        self._size = place.end - place.begin
        self._allowance = Allowance(source.size)
        self._last_end = 0 if last is None else last.directory_offset
        self._older: dict[int, _Listed] = {}
        if last is not None and last.directory_offset < place.begin:
            older = map(_Listed, last.entries.values(), last.listed_records().values())
            self._older = {one.entry.header_offset: one for one in older}
        self.others: list[Entry] = []
        self.is_complete = self.is_restored = True
        self.records = self._restore()

    def _restore(self) -> list[bytes]:
        """Return `records`, and set the other attributes."""
        written = [self._data[begin:end] for begin, end in walk_entries(self._data, 0)]
        if self._is_right(written):
            self.is_restored = False
            return written
        kept = dict(self._agreeing())
        known, left = self._hinted(kept, self._unlisted([one.entry for one in kept.values()]))
        if self._footer is not None:
            # Most members that the directory before leaves out were removed, but one that
            # was being created when that was written is listed now.
            offsets = ((one, one.entry.header_offset) for one in left)
            current = [one for one, at in offsets if at >= self._last_end or at in self._older]
            is_enough = len(known) + len(current) >= self._footer.entry_count
            possible = self._possible(self._filled(known, current if is_enough else left))
            count = 2 + _TRIED_SIZE // (self._size + 1)
            for records in filter(self._is_right, itertools.islice(possible, count)):
                return records
        self.is_complete = False
        self.others += [one.entry for one in left]
        return [one.record for one in known.values()]

    def _is_right(self, records: list[bytes]) -> bool:
        """Return whether entries are all of the directory: by its checksum, if it has one."""
        data, footer = b"".join(records), self._footer
        if len(data) != self._size or (footer and not footer.fits(data, positions_of(records))):
            return False
        try:
            parse_entries(data, len(records), 0, 0, self._begin)
        except FormatError:
            return False
        return True

    def _agreeing(self) -> Iterator[tuple[int, _Listed]]:
        """Yield the entries that agree with their members' own headers, by their positions."""
        data, position = self._data, self._data.find(CENTRAL_ENTRY_SIGNATURE)
        while position >= 0 and not self._allowance.is_spent:
            _, end = next(walk_entries(data, position), (0, position))
            entry = self._agreed(data[position:end]) if _is_whole(data, position, end) else None
            if entry is not None:
                yield position, _Listed(entry, data[position:end])
                position = end - 1
            position = data.find(CENTRAL_ENTRY_SIGNATURE, position + 1)

    def _agreed(self, record: bytes) -> Entry | None:
        """Return what an entry says, if its member's own headers say the same."""
        try:
            entry = parse_entry(record, self._begin)
        except NpzkitError:
            return None
        try:
            start = entry.header_offset
            end = start + header_end(self._source.read_at(start, LOCAL_HEADER_SIZE))
            self._allowance.charge(start, end)
            data_offset(self._source, entry, verify=False)
        except NpzkitError:
            self.others.append(entry)
            return None
        return entry

    def _unlisted(self, listed: list[Entry]) -> list[_Listed]:
        """Return the members that no other entry lists, in the order of a directory.

        Of a name, that is the last one.
        """
        sizes = {one.header_offset: one.least_size for one in listed}
        begins = [*sorted(sizes), self._begin]
        taken = {entry.name for entry in listed}
        found: dict[str, _Listed] = {}
        scan = SignatureScan(self._source, 0, self._begin)
        for offset in scan:
            if self._allowance.is_spent:
                break
            if offset in sizes:
                scan.position = offset + sizes[offset]
                continue
            limit = begins[bisect.bisect(begins, offset)]
            one = find_member(self._source, offset, limit, self._allowance)
            if one is not None and one.end_offset <= limit:
                scan.position = one.end_offset
                name = one.entry.name
                records = [] if name in taken else self._versions(one.entry, one)
                for record in filter(self._agreed, records):
                    found[name] = _Listed(one.entry, record)
                    break
        ranks = {one.entry.name: rank for rank, one in enumerate(self._older.values())}
        return sorted(
            found.values(),
            key=lambda one: (ranks.get(one.entry.name, len(ranks)), one.entry.header_offset),
        )

    def _hinted(
        self, kept: dict[int, _Listed], unlisted: list[_Listed]
    ) -> tuple[dict[int, _Listed], list[_Listed]]:
        """Return what the directory has at its places, and the members that are nowhere in it.

        These are the entries that are kept, and members whose offset or name is in a damaged one.
        """
        hints: dict[int | bytes, _Listed] = {one.entry.raw_name: one for one in unlisted}
        hints.update((one.entry.header_offset, one) for one in unlisted)
        known, position = {}, 0
        # The last entry may be cut off.
        data = self._data + bytes(CENTRAL_ENTRY_SIZE)
        while 0 <= position < len(self._data):
            following = data.find(CENTRAL_ENTRY_SIGNATURE, position + 1)
            name_size, offset = _NAME_SIZE_AND_OFFSET(data, position)
            name = position + CENTRAL_ENTRY_SIZE
            one = (
                kept.get(position) or hints.get(offset) or hints.get(data[name : name + name_size])
            )
            if one is None:
                position = following
                continue
            known[position] = one
            hints.pop(one.entry.header_offset, None)
            hints.pop(one.entry.raw_name, None)
            behind = position + len(one.record)
            is_short = position not in kept and 0 <= following < behind
            position = following if is_short else behind
        return known, [one for one in unlisted if one.entry.header_offset in hints]

    def _filled(self, known: dict[int, _Listed], members: list[_Listed]) -> list[_Listed]:
        """Return entries in their order, and these members where there is room between them."""
        left, filled, position = collections.deque(members), [], 0
        for begin in (*known, self._size):
            while left and position + len(left[0].record) <= begin:
                position += len(left[0].record)
                filled.append(left.popleft())
            if begin in known:
                filled.append(known[begin])
                position = begin + len(known[begin].record)
        return filled

    def _possible(self, found: list[_Listed]) -> Iterator[list[bytes]]:
        """Yield directories: of these entries, of others for all, and of one other."""
        records = [one.record for one in found]
        yield records
        others = list(map(self._others_for, found))
        yield [other[0] if other else one for one, other in zip(records, others, strict=True)]
        for number, each in enumerate(others):
            for other in each:
                yield [*records[:number], other, *records[number + 1 :]]

    def _others_for(self, one: _Listed) -> list[bytes]:
        """Return the entries that a listed member may have had."""
        offset = one.entry.header_offset
        found = find_member(self._source, offset, self._begin, self._allowance)
        return self._versions(one.entry, found)

    def _versions(self, entry: Entry, found: FoundMember | None) -> list[bytes]:
        """Return a member's entry as the directory before has it, and as its own header says.

        Attributes that were changed later are in the directory alone, and come first.
        """
        fields = []
        older = self._older.get(entry.header_offset)
        if older is not None and older.entry.raw_name == entry.raw_name:
            fields.append(ENTRY_LAYOUT.parse(older.record))
        if found is not None:
            fields.append(ENTRY_LAYOUT.parse(entry_bytes(found.entry)))
            # A flush of a map changes it in the newest directory, and in the header.
            fields[0] = fields[0]._replace(crc32=found.entry.crc32)
        if CHANGED_PAIR in entry.extra:
            fields[:0] = [one._replace(extra=entry.extra) for one in fields]
        return list(map(ENTRY_LAYOUT.format, fields))


def _is_whole(data: bytes, position: int, end: int) -> bool:
    """Return whether an entry ends where the next one begins, or where a damaged one has room.

    One whose sizes are damaged may have a few bytes of the next one as well.
    """
    if position == end:
        return False
    sizes = ENTRY_SIZES.unpack_from(data, position)
    following = data.find(CENTRAL_ENTRY_SIGNATURE, end - sizes[-1] - 3)
    if following < 0:
        following = len(data)
    return following == end or following >= end + CENTRAL_ENTRY_SIZE


# -- the newest state, and where its directory is ---------------------------------


class NewestState(NamedTuple):
    """What the end of a damaged archive shows.

    Attributes
    ----------
    last : Directory or None
        Of the last commit that is complete.
    known : Directory
        The newest one, with the entries that are known: members behind it are newer.
    is_complete : bool
        Whether these are all.
    is_restored : bool
        Whether any of them was made again, or whether these are not all.
    is_commit : bool
        Whether there are signs of a commit behind `last`, such as an end record.
    comment : bytes or None
        The archive's; None if it is lost.
    others : list of Entry
        Of members that may be listed too; see `_Restoration`.
    entry_count : int or None
        How many members the newest directory had, if not all of its entries are known.
    is_list_lost : bool
        Whether a commit behind `last` was complete, of whose directory nothing is left.
    """

    last: Directory | None
    known: Directory
    is_complete: bool
    is_restored: bool
    is_commit: bool
    comment: bytes | None
    others: Sequence[Entry] = ()
    entry_count: int | None = None
    is_list_lost: bool = False

    @property
    def end_offset(self) -> int:
        """Where the last complete commit ends: members behind it are newer."""
        return 0 if self.last is None else self.last.end_offset

    def listed(self) -> dict[str, bytes]:
        """Return the entries of the last commit, and those that are known of the newest."""
        if self.is_complete or self.last is None:
            return self.known.listed_records()
        return {**self.last.listed_records(), **self.known.listed_records()}


def find_newest(source: Source) -> NewestState:
    """Find what the file's end shows of the newest state; never raises for bad bytes.

    The size of `source` is then that of the file without an append that was not complete.

    Raises
    ------
    UnsupportedError
        A newer npzkit wrote it.
    """
    unfinished = unfinished_offset(source)
    if unfinished is not None:
        source.size = unfinished
    last = _find_last(source)
    place, is_newest = _find_place(source)
    if place is None or (last is not None and place.begin < last.directory_offset):
        own = last_comment(source) if last is None else plain_comment(last.comment)
        nothing = _directory(_Place(0 if last is None else last.directory_offset), [])
        is_lost = _has_damaged_commit(source)
        return NewestState(last, nothing, False, True, is_lost, own, is_list_lost=is_lost)
    restored = _Restoration(source, place, last)
    is_complete = restored.is_complete and is_newest and not _is_followed(source, place.begin)
    comment = _newest_comment(source, place)
    found = _directory(place, restored.records)._replace(comment=comment or b"")
    if is_complete or not restored.is_complete:
        is_restored = restored.is_restored or not is_complete
        count = None if is_complete or source.size > place.archive_end else place.entry_count
        return NewestState(
            last, found, is_complete, is_restored, True, comment, restored.others, count
        )
    # It is the last one that is complete, and any number may have followed. Others write over a
    # directory that is not the newest.
    is_restored = restored.is_restored or source.size > place.archive_end
    nothing = _directory(_Place(place.begin), [])
    last = found._replace(end_offset=place.begin)
    is_lost = source.size > place.archive_end and _has_damaged_commit(source)
    return NewestState(last, nothing, False, is_restored, True, comment, is_list_lost=is_lost)


def _directory(place: _Place, records: list[bytes]) -> Directory:
    """Return a directory of these entries."""
    data, positions = b"".join(records), positions_of(records)
    try:
        entries = parse_entries(data, len(records), 0, 0, place.begin)[0]
    except FormatError:
        # Members overlap.
        entries = [parse_entry(record, place.begin) for record in records]
    named = Rows((entry.name, entry) for entry in entries)
    return Directory(named, b"", place.begin, place.end, data, positions, 0, place.footer)


def _is_followed(source: Source, offset: int) -> bool:
    """Return whether there are members behind an offset: of a newer commit there may be no more.

    Other programs write them over an older directory.
    """
    allowance, end = Allowance(source.size), source.size
    return any(
        allowance.is_spent or find_member(source, place, end, allowance) is not None
        for place in SignatureScan(source, offset, end)
    )


# -- where it is -------------------------------------------------------------------


def _find_last(source: Source) -> Directory | None:
    """Return the last directory that can be read, in time linear in the file."""
    budget = 2 * source.size
    for end in find_commits(source, (0,), source.size):
        budget -= end.record.directory_size
        if budget < 0:
            break
        try:
            return read_commit(source, end)
        except NpzkitError as error:
            if not may_be_damage(error):
                raise
    return None


def _has_damaged_commit(source: Source) -> bool:
    """Return whether an append behind the last commit was complete, and is damaged."""
    try:
        last = find_last_commit(source, (0,))
    except AmbiguousArchiveError:
        return False
    return last is not None and last.damage is not None


def _find_place(source: Source) -> tuple[_Place | None, bool]:
    """Return where the newest directory is, and whether no commit followed it."""
    # Of the same place, the first one has a checksum.
    places = [*_place_by_footer(source), *_place_by_record(source)]
    place = max(places, key=lambda place: place.begin, default=None)
    # Of a file that was cut off, nothing says whether a commit followed.
    is_newest = place is not None and any(
        other.begin == place.begin and source.size == other.archive_end for other in places
    )
    return place, is_newest


def _place_by_footer(source: Source) -> Iterator[_Place]:
    """Yield the directory that the footer of the last complete commit leads to."""
    for footer in find_footers(source, (0,)):
        if _is_complete(source, footer):
            end = footer.directory_offset + footer.directory_size
            yield _Place(
                footer.directory_offset, end, archive_end(footer), footer.entry_count, footer
            )
            break


def _place_by_record(source: Source) -> Iterator[_Place]:
    """Yield the directory that the last end record leads to, if its append was complete."""
    offset = last_record(source)
    with contextlib.suppress(NpzkitError):
        if offset is None:
            return
        end = resolve_end(source, offset)
        begin = end.directory_offset
        if not begin == end.record.directory_offset >= 0:
            return
        footer = footer_before(source, end)
        if end.record.comment == FAR_COMMENT or isinstance(footer, Far):
            return
        # Of the last append, which is complete, the magic may be missing.
        if footer is None or _is_complete(source, footer):
            count = end.record.entry_count
            yield _Place(begin, end.records_offset, end.end_offset, count, footer)


def displaced(source: Source) -> list[Entry]:
    """Return what the directory at the file's end lists, if bytes before it were lost or added.

    Then the end record and the directory are complete, and their offsets do not fit the file.
    """
    for offset in find_fitting(source, source.size)[:1]:
        with contextlib.suppress(NpzkitError):
            end = resolve_end(source, offset)
            begin, record = end.directory_offset, end.record
            if begin == record.directory_offset or begin < 0 or record.comment == FAR_COMMENT:
                break
            data = source.read_at(begin, record.directory_size)
            found = [parse_entry(data[at:stop], LARGEST) for at, stop in walk_entries(data)]
            return found if len(found) == record.entry_count else []
    return []


def _is_complete(source: Source, footer: Footer) -> bool:
    """Return whether the commit of a footer was complete: it has a mark, or its end is sealed."""
    mark = footer.intent_offset + MARK_OFFSET
    if not footer.intent_offset or any(source.read_within(mark, INTENT_SIZE - MARK_OFFSET)):
        return True
    record = archive_end(footer) - footer.comment_size - END_SIZE
    return source.read_within(record, len(END_SIGNATURE)) == END_SIGNATURE


# -- its comment -------------------------------------------------------------------


def _newest_comment(source: Source, place: _Place) -> bytes | None:
    """Return the comment of the newest commit: the one that fits its checksum, if it has one."""
    footer = place.footer
    if footer is None:
        return plain_comment(_comment_behind_record(source, place.end))
    theirs = last_comment(source)
    if theirs and len(theirs) != footer.comment_size:
        return plain_comment(theirs)
    leads = 0, ZIP64_RECORDS_SIZE
    possible = [
        source.read_within(place.end + lead + END_SIZE, footer.comment_size) for lead in leads
    ]
    older = (end.record.comment for end in find_commits(source, (0,), source.size))
    for comment in itertools.chain(possible, [b""], older):
        if len(comment) == footer.comment_size and footer.fits_comment(comment):
            return comment
    return None


def _comment_behind_record(source: Source, offset: int) -> bytes:
    """Return what follows an end record, or zip64's and one, at `offset`."""
    data = source.read_within(offset, ZIP64_RECORDS_SIZE + END_SIZE)
    lead = data.find(END_SIGNATURE)
    begin = offset + lead + END_SIZE
    if lead < 0 or begin > source.size:
        return last_comment(source)
    return source.read_within(begin, COMMENT_MAX_SIZE)


def last_comment(source: Source) -> bytes:
    """Return the comment of an end record that ends where the file does, if one does."""
    start = next((offset + END_SIZE for offset in find_fitting(source, source.size)), source.size)
    return source.read_at(start, source.size - start)


def plain_comment(comment: bytes) -> bytes:
    """Return a comment; an empty one if other programs would take it for an end record."""
    return b"" if END_SIGNATURE in comment else comment
