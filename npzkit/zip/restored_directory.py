"""A damaged directory, restored from what is left of it and from the members' own headers.

Owns which entries are believed, which are made again, and in which order. The
array index has the directory's checksum, which says when all of it is right.
Knows no NPY, and not where the directory is.
"""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from npzkit.errors import FormatError, NpzkitError
from npzkit.files.source import Source
from npzkit.zip.directory import Directory
from npzkit.zip.entries import Entry, parse_entries
from npzkit.zip.entry_records import entry_of, listed_records, record_of
from npzkit.zip.extra_fields import CHANGED_PAIR
from npzkit.zip.index_footer import Footer
from npzkit.zip.intent import Mark
from npzkit.zip.local_header import header_end
from npzkit.zip.local_header_scan import Allowance, HeaderScan, find_member
from npzkit.zip.member_checks import data_offset
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIGNATURE,
    CENTRAL_ENTRY_SIZE,
    ENTRY_SIZES,
    LOCAL_HEADER_SIZE,
)

_OFFSET_PLACE = 42
"""Of a member's offset in an entry of the directory (4.3.12)."""
_TRIED_SIZE = 1 << 28
"""Bytes of directories that are compared with the checksum."""


class Place(NamedTuple):
    """Where a directory begins and ends, and what is said of it, if that is known.

    `archive_end` is where the archive ended at the latest when it was written.
    """

    begin: int
    end: int
    archive_end: int
    footer: Footer | None = None
    mark: Mark | None = None


class Restored(NamedTuple):
    """What is known of a directory.

    Attributes
    ----------
    records : list of bytes
        Its entries. If they are not all, they are those that agree with their members' own
        headers, or whose name or offset is left.
    is_complete : bool
        Whether these are all.
    is_restored : bool
        Whether any is not from the directory itself.
    known : set of bytes
        Those that say what they did, attributes included.
    others : list of Entry
        Entries that do not agree with their members' own headers, because one of the two is
        damaged; and members of which it is not known whether they were listed.
    """

    records: list[bytes]
    is_complete: bool
    is_restored: bool
    known: set[bytes]
    others: list[Entry]


def restore(source: Source, place: Place, last: Directory | None) -> Restored:
    """Return what is known of a directory.

    Parameters
    ----------
    source : Source
    place : Place
    last : Directory or None
        The last one that can be read. If it is an older one, entries are taken from it
        whose members are the same.
    """
    return _Restoration(source, place, last).restore()


class _Listed(NamedTuple):
    """A member, and its entry in the directory as it is or may have been."""

    entry: Entry
    record: bytes


class _Restoration:
    """What is left of a directory, and what else is known of its entries; see `restore`."""

    def __init__(self, source: Source, place: Place, last: Directory | None) -> None:
        self._source, self._footer = source, place.footer
        self._begin = min(place.begin, source.size)
        self._data = source.read_at(self._begin, min(place.end, source.size) - self._begin)
        self._size = place.end - place.begin
        self._allowance = Allowance(source.size)
        self._others: list[Entry] = []
        self._last_end = 0 if last is None else last.directory_offset
        self._older: dict[int, _Listed] = {}
        if last is not None and last.directory_offset < place.begin:
            older = map(_Listed, last.entries.values(), listed_records(last).values())
            self._older = {one.entry.header_offset: one for one in older}

    def restore(self) -> Restored:
        written = [self._data[begin:end] for begin, end in _walk(self._data, 0)]
        if self._is_right(written):
            return Restored(written, True, False, set(written), [])
        kept = dict(self._agreeing())
        unlisted = self._unlisted([one.entry for one in kept.values()])
        found = list(self._in_order(kept, unlisted))
        if self._footer is not None:
            # Most members that the directory before leaves out were removed, but one that
            # was being created when that was written is listed now.
            current = [one for one in unlisted if not self._is_left_out(one)]
            count = 2 + _TRIED_SIZE // (self._size + 1)
            possible = itertools.chain(
                self._possible(_filled(found, current)), self._possible(_filled(found, unlisted))
            )
            for records in filter(self._is_right, itertools.islice(possible, count)):
                return Restored(records, True, True, set(records), [])
        records = [one.record for one in found if isinstance(one, _Listed)]
        known = {one.record for one in kept.values() if self._has_own_attributes(one)}
        others = [*self._others, *(one.entry for one in unlisted if one not in found)]
        return Restored(records, False, True, known, others)

    def _is_right(self, records: list[bytes]) -> bool:
        """Return whether entries are all of the directory: by its checksum, if it has one."""
        data = b"".join(records)
        positions = list(itertools.accumulate(map(len, records), initial=0))[:-1]
        if len(data) != self._size or (self._footer and not self._footer.fits(data, positions)):
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
            _, end = next(_walk(data, position), (0, position))
            entry = self._agreed(data[position:end]) if _is_whole(data, position, end) else None
            if entry is not None:
                yield position, _Listed(entry, data[position:end])
                position = end - 1
            position = data.find(CENTRAL_ENTRY_SIGNATURE, position + 1)

    def _agreed(self, record: bytes) -> Entry | None:
        """Return what an entry says, if its member's own headers say the same."""
        try:
            entry = entry_of(record, self._begin)
        except NpzkitError:
            return None
        try:
            start = entry.header_offset
            end = start + header_end(self._source.read_at(start, LOCAL_HEADER_SIZE))
            self._allowance.charge(start, end)
            data_offset(self._source, entry, verify=False)
        except NpzkitError:
            self._others.append(entry)
            return None
        return entry

    def _has_own_attributes(self, one: _Listed) -> bool:
        """Return whether a member's own header repeats the attributes in its entry."""
        found = find_member(self._source, one.entry.header_offset, self._begin, self._allowance)
        return found is not None and found.entry.extra == one.entry.extra

    def _unlisted(self, listed: list[Entry]) -> list[_Listed]:
        """Return the members that no other entry lists, in the order of a directory.

        Of a name, that is the last one.
        """
        sizes = {one.header_offset: _least_size(one) for one in listed}
        begins = [*sorted(sizes), self._begin]
        taken = {entry.name for entry in listed}
        found: dict[str, _Listed] = {}
        scan = HeaderScan(self._source, self._begin)
        offset = scan.next_from(0)
        while offset is not None and not self._allowance.is_spent:
            size = sizes.get(offset)
            if size is None:
                limit = begins[bisect.bisect(begins, offset)]
                one = find_member(self._source, offset, limit, self._allowance)
                is_whole = one is not None and one.end_offset <= limit
                size = one.end_offset - offset if one is not None and is_whole else 4
                if one is not None and is_whole and one.entry.name not in taken:
                    found.update(self._entered(one.entry))
            offset = scan.next_from(offset + size)
        ranks = {one.entry.name: rank for rank, one in enumerate(self._older.values())}
        return sorted(
            found.values(),
            key=lambda one: (ranks.get(one.entry.name, len(ranks)), one.entry.header_offset),
        )

    def _entered(self, entry: Entry) -> Iterator[tuple[str, _Listed]]:
        """Yield a member that is found by its local header, with the entry that it had."""
        older = self._older.get(entry.header_offset)
        for record in (b"" if older is None else older.record, record_of(entry)):
            if record and self._agreed(record) is not None:
                yield entry.name, _Listed(entry, record)
                return

    def _is_left_out(self, one: _Listed) -> bool:
        """Return whether the directory before this one leaves out a member that was there."""
        offset = one.entry.header_offset
        return offset < self._last_end and offset not in self._older

    def _in_order(
        self, kept: dict[int, _Listed], unlisted: list[_Listed]
    ) -> Iterator[_Listed | int]:
        """Yield what the directory has at each place, and how many bytes are unknown."""
        by_offset = {one.entry.header_offset: one for one in unlisted}
        by_name = {one.entry.raw_name: one for one in unlisted}
        position = 0
        for begin in [*kept, len(self._data)]:
            while position < begin:
                one = _hinted(self._data, position, by_offset, by_name)
                if one is None:
                    following = self._data.find(CENTRAL_ENTRY_SIGNATURE, position + 1, begin)
                    behind = begin if following < 0 else following
                    yield behind - position
                else:
                    by_offset.pop(one.entry.header_offset, None)
                    by_name.pop(one.entry.raw_name, None)
                    behind = position + len(one.record)
                    yield one
                position = behind
            if begin in kept:
                yield kept[begin]
                position = begin + len(kept[begin].record)
        yield self._size - len(self._data)

    def _possible(self, found: list[_Listed]) -> Iterator[list[bytes]]:
        """Yield directories: of these entries, of others for all, and of one other."""
        records = [one.record for one in found]
        yield records
        others = [list(self._others_for(one)) for one in found]
        yield [other[0] if other else one for one, other in zip(records, others, strict=True)]
        for number, each in enumerate(others):
            for other in each:
                yield [*records[:number], other, *records[number + 1 :]]

    def _others_for(self, one: _Listed) -> Iterator[bytes]:
        """Yield an entry as the directory before has it, and as its member's headers say."""
        offset = one.entry.header_offset
        older = self._older.get(offset, one)
        if older.record != one.record and older.entry.raw_name == one.entry.raw_name:
            yield older.record
        found = find_member(self._source, offset, self._begin, self._allowance)
        if found is None:
            return
        # Attributes that were changed later are in the directory alone.
        is_changed = CHANGED_PAIR in one.entry.extra
        extra = one.entry.extra if is_changed else found.entry.extra
        # Arrays that are created keep room there, in both headers.
        begin = offset + LOCAL_HEADER_SIZE + len(found.entry.raw_name)
        with_room = self._source.read_at(begin, found.data_start - begin)
        for possible in (extra, with_room):
            record = record_of(found.entry._replace(extra=possible))
            if record != one.record:
                yield record


def _least_size(entry: Entry) -> int:
    """Return the bytes that a member has at least."""
    return LOCAL_HEADER_SIZE + len(entry.raw_name) + entry.compressed_size


def _walk(data: bytes, position: int) -> Iterator[tuple[int, int]]:
    """Yield where each entry of a directory begins and ends, as far as they follow each other."""
    while len(data) - position >= CENTRAL_ENTRY_SIZE and data.startswith(
        CENTRAL_ENTRY_SIGNATURE, position
    ):
        sizes = ENTRY_SIZES.unpack_from(data, position + 28)
        end = position + CENTRAL_ENTRY_SIZE + sum(sizes)
        if end > len(data):
            return
        yield position, end
        position = end


def _is_whole(data: bytes, position: int, end: int) -> bool:
    """Return whether an entry ends where the next one begins, or where a damaged one has room.

    One whose sizes are damaged may have a few bytes of the next one as well.
    """
    if position == end:
        return False
    sizes = ENTRY_SIZES.unpack_from(data, position + 28)
    following = data.find(CENTRAL_ENTRY_SIGNATURE, end - sizes[-1] - 3)
    if following < 0:
        following = len(data)
    return following == end or following >= end + CENTRAL_ENTRY_SIZE


def _hinted(
    data: bytes, position: int, by_offset: dict[int, _Listed], by_name: dict[bytes, _Listed]
) -> _Listed | None:
    """Return the member whose offset or name is in a damaged entry."""
    fixed = data[position : position + CENTRAL_ENTRY_SIZE]
    one = by_offset.get(int.from_bytes(fixed[_OFFSET_PLACE:], "little"))
    if one is not None or len(fixed) < CENTRAL_ENTRY_SIZE:
        return one
    name_size, *_ = ENTRY_SIZES.unpack_from(fixed, 28)
    name = position + CENTRAL_ENTRY_SIZE
    return by_name.get(data[name : name + name_size])


def _filled(found: list[_Listed | int], unlisted: list[_Listed]) -> list[_Listed]:
    """Return all entries, with members that are listed nowhere else where bytes are unknown."""
    known = {one.entry.header_offset for one in found if isinstance(one, _Listed)}
    left = collections.deque(one for one in unlisted if one.entry.header_offset not in known)
    filled, room = [], 0
    for one in found:
        if isinstance(one, _Listed):
            filled.append(one)
            room = 0
            continue
        room += one
        while left and len(left[0].record) <= room:
            room -= len(left[0].record)
            filled.append(left.popleft())
    return filled
