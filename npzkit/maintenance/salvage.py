"""A copy of what is sound in a damaged archive.

Decides what is saved and what is lost. Members are found without a directory by
`npzkit.zip.member_search`, and checked by `npzkit.maintenance.verify_rules`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from npzkit.codecs.coding import DEFLATED
from npzkit.errors import (
    GET_AGAIN,
    SAVE_PARTIAL,
    Advice,
    NpzkitError,
    UnsupportedError,
    ZipFormatError,
    format_count,
    shown_key,
    shown_value,
)
from npzkit.files.progress import Meter
from npzkit.files.source import Source
from npzkit.format.header import MAGIC_PREFIX, npy_header_size
from npzkit.limits import Limits
from npzkit.maintenance.corrected_source import CorrectedSource
from npzkit.maintenance.damaged_rows import (
    Damage,
    Ranges,
    RowsLeft,
    array_name,
    find_damage,
    find_rows,
    find_wrapped,
    is_masked,
    is_seen_cut,
    mask_name,
    rows_in_chunks,
)
from npzkit.maintenance.findings import BESIDE_ARRAYS, DATA_KEPT, END, KEPT_AS, Lost, RepairReport
from npzkit.maintenance.verify_rules import has_wrong_chunks, member_error
from npzkit.members.keys import SUFFIX, check_not_foreign, keys_of
from npzkit.members.metadata import parse_attrs, with_lost
from npzkit.reading.known_arrays import KnownArrays
from npzkit.reading.member import MemberReader
from npzkit.writing.copy import copy_member, rename_entry
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.chunk_list import ChunkList
from npzkit.zip.commit import COMMENT_NAME, read_comment
from npzkit.zip.directory import Directory, comment_of, read_directory
from npzkit.zip.directory_repair import (
    NewestState,
    displaced,
    find_newest,
    last_comment,
    plain_comment,
)
from npzkit.zip.end_record import find_fitting
from npzkit.zip.entries import BAD_NAME, Entry, name_error, usable_name
from npzkit.zip.extra_fields import KEY_VALUE_PAIRS_ID, foreign_extra
from npzkit.zip.local_header import AS_IT_IS, IS_ENCRYPTED, TO_DECRYPT, WRONG_CRC
from npzkit.zip.member_search import (
    Allowance,
    FoundMember,
    SignatureScan,
    begins_record,
    find_member,
    possible_headers,
)
from npzkit.zip.npzkit_record import HEAD_SIZE, may_begin_piece
from npzkit.zip.records import CENTRAL_ENTRY_SIGNATURE, FLAG_DESCRIPTOR, SENTINEL_16
from npzkit.zip.writer import ZipWriter

if TYPE_CHECKING:
    from npzkit.typing import Partial, Progress


_LOST_NOTE = f", and with it {BESIDE_ARRAYS}"
_NOT_MASKED = "it cannot be given a mask; keep_partial='drop' keeps its other rows"
_ROWS_SAVED = "; " + SAVE_PARTIAL + " saves its complete rows"
_JOINED = "two archives were joined, and the second one has an array of this name, which is kept"
_GAP = "bytes are missing inside it, and nobody knows which of its values are right"
_ALL_LOST = "; without checksums of its parts, nobody knows which values are wrong"


class Salvage:
    """The members of one file that can be saved. They are found first, then written."""

    def __init__(
        self,
        source: Source,
        limits: Limits,
        threads: int,
        progress: Progress | None,
        *,
        keep_partial: Partial,
    ) -> None:
        self.source = source = CorrectedSource(source)
        self._reader = MemberReader(source, limits, allow_pickle=False, pickle_kwargs=None)
        self._threads = threads
        # The file is checked, then copied.
        self.meter = Meter(progress, 2 * source.size)
        self._partial = keep_partial
        self.sound: dict[str, Entry | RowsLeft] = {}
        # By member names, at the offsets of local headers.
        self.lost: list[Lost] = []
        # Where `verify` finds the damage of members, by the offsets of their local headers.
        self._damaged_at: dict[int, int] = {}
        self._allowance = Allowance(source.size)
        self._limits = limits
        # Whether the file may end inside a member: it does not end with an end record.
        self._is_truncated = True
        # The end of the range that a damaged member claims.
        self._claimed_end = 0
        self._claimed: set[str] = set()
        # The member that was found last by its own header.
        self._last: FoundMember | None = None
        # What is wrong with the member that was checked last.
        self._damage: tuple[str, Damage | None] = "", None
        # Whether the file can be opened as it is.
        self._is_read = False
        self._known: tuple[Directory, KnownArrays] | None = None
        # The offsets of members whose chunks lead to wrong data.
        self._wrongly_listed: set[int] = set()
        # The offsets of members whose two headers have different CRC-32s, or attributes.
        self._contradicted: set[int] = set()
        # The local headers of members without their own, by offset and name.
        self._headers: dict[tuple[int, bytes], bytes] = {}

    def write(self, sink: Any, output: str) -> RepairReport:
        """Find sound members, and write them."""
        try:
            newest, size = None, self.source.size
            try:
                directory = read_committed(self.source)
            except NpzkitError as error:
                if error._is_foreign:
                    raise
                newest = find_newest(self.source)
                end = self.source.size
                self.find(newest)
                comment = self.read_comment(newest)
            else:
                self._is_read = True
                check_not_foreign(directory.entries, None)
                self._check(directory.entries, directory)
                for name, count in directory.repeated_names().items():
                    what = f"{count} entries have this name: only the last one is used"
                    more = f"; {DATA_KEPT}" if name in self.sound else ""
                    self.lost.append(Lost(name, what + more, directory.directory_offset))
                end = directory.end_offset
                comment = plain_comment(comment_of(directory, self.source))
            self._add_masks()
            if self.lost and not self.sound and (newest is not None or directory.entries):
                raise self._nothing_saved()
            self._give_usable_names()
            uncommitted = find_uncommitted(self.source.original, self._limits, end, size)
            writer = ZipWriter(sink, head_size=npy_header_size)
            self._copy(writer)
            self.source.close()
            report = self.report(list(self.sound), output, size - end, newest)
            writer.commit(with_lost(comment, [row.key for row in report.lost]))
            sink.close()
        except BaseException as error:
            sink.discard(error)
            raise
        return report._replace(uncommitted=uncommitted)

    def _nothing_saved(self) -> NpzkitError:
        """Return the error for an archive of which every member is lost."""
        members = [one.what for one in self.lost if one.key not in (COMMENT_NAME, END)]
        if members and all(IS_ENCRYPTED in what for what in members):
            return UnsupportedError(
                "nothing can be saved: every member is encrypted", remedy=TO_DECRYPT
            )._as_foreign()
        return ZipFormatError(
            "nothing can be saved: every member is damaged",
            found=format_count(len(members), "damaged member"),
            remedy=None
            if self._partial
            else "Download the file again; "
            + Advice("keep_partial='mask'", "--keep-partial mask")
            + " keeps what is left of damaged arrays.",
        )

    def read_comment(self, newest: NewestState) -> bytes:
        """Return the archive's comment, of any size; an empty one if it is damaged."""
        size = self.source.size
        names = {*self.sound, *newest.known.entries, *(lost.key for lost in self.lost)}
        note = _LOST_NOTE if any("/" in name for name in names) else ""
        if newest.comment is None:
            self.lost.append(Lost(COMMENT_NAME, f"the metadata is lost or damaged{note}", size))
            return b""
        if newest.comment not in (b"", last_comment(self.source)) and not newest.is_complete:
            what = "the newest metadata may be lost: what is kept may be that of an older commit"
            self.lost.append(Lost(COMMENT_NAME, what, newest.end_offset))
        try:
            return plain_comment(read_comment(self.source, newest.comment, 0, size))
        except ZipFormatError as error:
            self.lost.append(Lost(COMMENT_NAME, error.what, error.offset or 0))
            return b""

    def _copy(self, writer: ZipWriter) -> None:
        self.meter.reach(self.source.size)
        for found in self.sound.values():
            if isinstance(found, RowsLeft):
                found.write(writer)
                continue
            offset = found.header_offset
            renamed = rename_entry(found, found.name) if found.flags & BAD_NAME else None
            self.source.correct(offset, self._headers.get((offset, found.raw_name), b""))
            copy_member(
                self.source, found, writer, self._find_list, renamed=renamed,
                advance=self.meter.add,
            )  # fmt: skip
            self.source.correct(offset, b"")
        self.meter.finish()

    def _find_list(self, entry: Entry) -> ChunkList | None:
        is_wrong = entry.header_offset in self._wrongly_listed
        return None if is_wrong else self._reader.lists.find(entry)

    def report(
        self, names: list[str], output: str, cut_size: int, newest: NewestState | None
    ) -> RepairReport:
        # The key of a member depends on the names of the others.
        all_names = dict.fromkeys([*names, *(lost.key for lost in self.lost)])
        keys = dict(zip(all_names, keys_of(all_names.keys()), strict=True))
        lost = tuple(
            one._replace(key=keys[one.key], where=self._damaged_at.get(one.where, one.where))
            for one in dict.fromkeys(self.lost)
        )
        kept = tuple(keys[name] for name in names)
        uncertain = tuple(keys[name] for name in names if not self._is_certain(name, newest))
        is_rebuilt = newest is not None and newest.is_restored
        return RepairReport(output, kept, lost, cut_size, is_rebuilt, uncertain)

    def _is_certain(self, name: str, newest: NewestState | None) -> bool:
        """Return whether a directory that fits its checksum says what is kept of a member."""
        found = self.sound.get(name)
        entry = found.entry if isinstance(found, RowsLeft) else found
        if entry is not None and entry.header_offset in self._contradicted:
            return False
        return newest is None or newest.is_complete

    def find(self, newest: NewestState) -> None:
        """Check the members of an archive whose end is damaged."""
        if newest.is_complete:
            self._check(newest.known.entries, newest.known)
            return
        if newest.last is None:
            self._scan(0)
        else:
            self._check(newest.last.entries, newest.last)
            self._scan_after(newest.end_offset)
        offset = newest.known.directory_offset
        listed = newest.known.entries.items()
        self._check({n: one for n, one in listed if not self._is_found_later(n, offset)})
        # Of two that disagree, the local header is right if its member is sound.
        found = {one.header_offset for one in self.sound.values() if isinstance(one, Entry)}
        others = [one for one in newest.others if one.header_offset not in found]
        self._check({one.name: one for one in others if one.name not in self.sound})
        if not self.sound and not self.lost:
            # There is no member. Opening the file raises the error that describes it.
            try:
                read_directory(self.source, silent=True)
            except NpzkitError as error:
                if "npzkit.repair" in (error.remedy or ""):
                    # It was followed.
                    error.what = f"nothing can be saved: no complete member was found; {error.what}"
                    error.remedy = f"{GET_AGAIN}."
                raise
        told = self.sound.keys() | {lost.key for lost in self.lost}
        at_end = displaced(self.source)
        first: Mapping[str, Entry] = {} if newest.last is None else newest.last.entries
        for entry in at_end:
            kept = self.sound.get(entry.name)
            if entry.name not in told:
                self.lost.append(Lost(entry.name, "not found in the file", self.source.size))
            elif (
                entry.name in first
                and isinstance(kept, Entry)
                # It is listed from the start of its own archive.
                and kept.header_offset - entry.header_offset >= newest.end_offset
            ):
                self.lost.append(Lost(entry.name, _JOINED, first[entry.name].header_offset))
        if not at_end:
            self._add_end(newest, len(told))

    def _add_end(self, newest: NewestState, found_count: int) -> None:
        """Report what is not known because the list at the end of the file is missing."""
        missing = (newest.entry_count or 0) - found_count
        if missing > 0:
            what = f"not found of the {newest.entry_count:,} members in its list: {missing:,}"
            self.lost.append(Lost(END, what, newest.known.directory_offset))
        if newest.entry_count is not None or not (self._last or newest.is_list_lost):
            return
        last, offset = "the last list of arrays", newest.end_offset
        if self._last is not None:
            last = shown_value(self._last.entry.name.removesuffix(SUFFIX))
            offset = min(self._last.end_offset, self.source.size)
        head = self.source.read_within(offset, HEAD_SIZE)
        is_listed = self._last is not None and head.startswith(CENTRAL_ENTRY_SIGNATURE)
        if is_listed and (newest.comment != b"" or not may_begin_piece(head)):
            # All arrays were found, and `read_comment` reports the metadata; or it has none.
            return
        names = [*self.sound, *(lost.key for lost in self.lost)]
        beside = BESIDE_ARRAYS if any("/" in name for name in names) else "values without an array"
        arrays = "" if is_listed else "arrays, "
        what = f"what came after {last} is not known: {arrays}metadata, and {beside}"
        self.lost.append(Lost(END, what, offset))

    def _check(self, entries: Mapping[str, Entry], directory: Directory | None = None) -> None:
        """Check the members that a directory lists, which is given if it is known completely."""
        if directory is not None:
            self._reader.lists = ChunkLists(self.source, directory)
        for entry in entries.values():
            if not self._check_member(entry, directory):
                self._try_other_header(entry, entries, directory)
            self.meter.reach(entry.end_offset)

    def _try_other_header(
        self, entry: Entry, entries: Mapping[str, Entry], directory: Directory | None
    ) -> None:
        """Keep a member if only one of its two headers is damaged."""
        is_certain = directory is not None and directory.footer is not None
        end = entry.end_offset
        found = find_member(self.source, entry.header_offset, end, self._allowance)
        # If the name in the entry is damaged, the name in the local header is used.
        is_renamed = (
            not is_certain and entry.flags & BAD_NAME and found and found.entry.name not in entries
        )
        own = None
        if found is not None and (found.entry.name == entry.name or is_renamed):
            own = found.entry if found.end_offset <= end else None
        sound = None if is_renamed else self._with_own_header(entry, directory, is_certain)
        if (
            sound is None
            and own is not None
            # A CRC-32 of no bytes proves nothing.
            and own.compressed_size
            and member_error(self._reader, own, self._threads) is None
        ):
            # The header describes the data; attributes that are certain are the directory's.
            sound = own._replace(extra=entry.extra) if is_certain else own
        if sound is not None:
            self.lost.pop()
            self._keep(sound)
            if own is not None and (
                own.crc32 != entry.crc32 or (own.extra != entry.extra and not is_certain)
            ):
                # After a flush that was interrupted, or a copy of another version over this one.
                self._contradicted.add(entry.header_offset)
        self.source.correct(entry.header_offset, b"")
        if sound is None:
            self._keep_sound_chunks(entry)

    def _with_own_header(
        self, entry: Entry, directory: Directory | None, is_certain: bool
    ) -> Entry | None:
        """Return a listed member whose data matches its entry, if its local header does not.

        Its header is read as the entry describes it: now, and when the member is copied. The
        bytes of it may also be those of another member.
        """
        if not (entry.compressed_size or is_certain):
            # A CRC-32 of no bytes proves nothing.
            return None
        # The header says what a descriptor would.
        entry = entry._replace(flags=entry.flags & ~FLAG_DESCRIPTOR)
        starts = self._data_starts(entry, directory)
        for header in possible_headers(self.source, entry, starts, is_certain=is_certain):
            self.source.correct(entry.header_offset, header)
            if member_error(self._reader, entry, self._threads) is None:
                self._headers[entry.header_offset, entry.raw_name] = header
                return entry
            self.source.correct(entry.header_offset, b"")
        return None

    def _data_starts(self, entry: Entry, directory: Directory | None) -> Iterator[int]:
        """Yield where a member's data may begin: as the array index says, or at an NPY header."""
        named = entry.name_end
        indexed = self._indexed_by(directory, entry)
        extra_size = None if indexed is None else indexed.extra_size(entry)
        if extra_size is not None:
            yield named + extra_size
        size = min(SENTINEL_16 + len(MAGIC_PREFIX), entry.end_offset - named)
        place = self.source.read_at(named, size).find(MAGIC_PREFIX)
        if place >= 0:
            yield named + place

    def _indexed_by(self, directory: Directory | None, entry: Entry) -> KnownArrays | None:
        """Return what the array index of a directory says of the members that it lists."""
        if directory is None or entry.name not in directory.entries:
            return None
        if self._known is None or self._known[0] is not directory:
            self._known = directory, KnownArrays(self._reader, directory)
        return self._known[1]

    def _scan_after(self, end_offset: int) -> None:
        """Keep the members of a commit whose directory is damaged."""
        committed, self.sound = self.sound, {}
        self._scan(end_offset)
        # A replacement comes where it was found, after the others.
        kept = {name: entry for name, entry in committed.items() if name not in self.sound}
        self.sound = {**kept, **self.sound}

    def _check_member(self, entry: Entry, directory: Directory | None = None) -> bool:
        """Keep a sound member, or report what is wrong with it."""
        self.meter.reach(entry.header_offset)
        part = self.meter.part(entry.compressed_size, entry.uncompressed_size)
        error = member_error(self._reader, entry, self._threads, part.add)
        if error is not None:
            indexed = self._indexed_by(directory, entry)
            known = None if indexed is None else indexed.find(entry.name)
            damage = find_damage(self._reader, entry, known)
            more = f"; {damage}" if damage else ""
            if WRONG_CRC in error.what and not damage:
                more = _ALL_LOST + (": " + AS_IT_IS if self._is_read else "")
            elif self._partial and not damage and self._is_without_parts(entry, error.what):
                more = _ALL_LOST
            self._add_lost(entry, error.what + more)
            self._damage = error.what, damage
            where = error.where if damage is None else damage.offset
            if where is not None:
                self._damaged_at[entry.header_offset] = where
        else:
            self._keep(entry)
        return error is None

    def _is_without_parts(self, entry: Entry, what: str) -> bool:
        """Return whether nothing tells where the damage of compressed data begins."""
        is_compressed = entry.method == DEFLATED and IS_ENCRYPTED not in what
        return is_compressed and self._reader.checked_chunks(entry) is None

    def _keep_sound_chunks(self, entry: Entry) -> None:
        """Keep what is left of the array that was checked last, in its sound chunks."""
        what, damage = self._damage
        if not self._partial or damage is None or entry.flags & BAD_NAME:
            return
        drop = self._partial == "drop" and not (is_masked(entry) or self._is_mask(entry.name))
        left = rows_in_chunks(entry, damage, drop=drop)
        if left is not None:
            self.lost.pop()
            self._keep_left(left, f"{what}; {damage.what}; ")

    def _is_mask(self, name: str) -> bool:
        """Return whether a member is the mask of an array that is kept."""
        array = self.sound.get(array_name(name))
        return array is not None and is_masked(array)

    def _keep_left(self, left: RowsLeft, what: str) -> None:
        left = left._replace(entry=self._with_sound_attributes(left.entry))
        left = left.noting(what + left.outcome)
        self._put(left.entry.name, left)
        self._add_lost(left.entry, what + left.outcome, tuple(left.rows))

    def _add_masks(self) -> None:
        """Mask the filled items of arrays: in a new mask, or in the one that an array has."""
        filled = [name for name, one in self.sound.items() if getattr(one, "fill", b"")]
        for name in filled:
            left: Any = self.sound[name]
            if self._is_mask(name):
                # What is lost of it is masked.
                self.sound[name] = left.all_true()
                continue
            found = left.with_mask(self._reader, self.sound.get(mask_name(name)))
            if found is not None:
                self.sound.update({one.entry.name: one for one in found})
                continue
            del self.sound[name]
            for place, lost in enumerate(self.lost):
                if lost.key == name:
                    what = lost.what.replace(left.outcome, _NOT_MASKED)
                    self.lost[place] = lost._replace(what=what, rows=())

    def _give_usable_names(self) -> None:
        """Rename members whose names are not usable, and report them."""
        sound, self.sound = self.sound, {}
        for name, found in sound.items():
            error = name_error(found) if isinstance(found, Entry) else None
            if error is None or not isinstance(found, Entry):
                self.sound[name] = found
                continue
            taken = (sound.keys() | self.sound.keys()) - {name}
            usable = found._replace(name=usable_name(name, taken))
            self._add_lost(found, f"{error.what}; {KEPT_AS}{shown_key(usable.name)}")
            self.sound[usable.name] = usable

    def _keep(self, entry: Entry) -> None:
        """Keep a sound member, and its attributes if they are sound."""
        entry = self._with_sound_attributes(entry)
        if has_wrong_chunks(self._reader, entry, self._threads):
            self._add_lost(
                entry, f"the list of its chunks leads to wrong data and is removed; {DATA_KEPT}"
            )
            self._wrongly_listed.add(entry.header_offset)
        self._put(entry.name, entry)

    def _put(self, name: str, found: Entry | RowsLeft) -> None:
        """Keep a member: of two with one name, the later one, in its own position."""
        self.sound.pop(name, None)
        self.sound[name] = found

    def _with_sound_attributes(self, entry: Entry) -> Entry:
        try:
            parse_attrs(entry.extra)
            # A block after the attributes may also exceed the field.
            foreign_extra(entry.extra)
        except NpzkitError:
            self._add_lost(entry, f"its attributes are damaged and removed; {DATA_KEPT}")
            extra = b""
            with contextlib.suppress(ZipFormatError):
                extra = foreign_extra(entry.extra, KEY_VALUE_PAIRS_ID)
            return entry._replace(extra=extra)
        return entry

    def _add_lost(self, entry: Entry, what: str, rows: Ranges = ()) -> None:
        self.lost.append(Lost(entry.name, what, entry.header_offset, rows))

    # -- without a directory ------------------------------------------------

    def _scan(self, start: int) -> None:
        """Find members by their headers; of two with one name, the later one is used."""
        end = self.source.size
        self._is_truncated = not find_fitting(self.source, end)
        scan = SignatureScan(self.source, start, end)
        for offset in scan:
            self.meter.reach(offset)
            found = find_member(self.source, offset, end, self._allowance)
            if self._allowance.is_spent:
                what = "not read, like everything after it: too many headers claim the same bytes"
                self.lost.append(Lost("?", what, offset))
                break
            if found is not None:
                scan.position = self._check_found(found, end)
        self.meter.reach(end)
        # A member that was found again later is not lost.
        self.lost = [lost for lost in self.lost if not self._is_found_later(lost.key, lost.where)]

    def _is_found_later(self, name: str, offset: int) -> bool:
        found = self.sound.get(name)
        return isinstance(found, Entry) and found.header_offset > offset

    def _check_found(self, found: FoundMember, end: int) -> int:
        """Check one member, and return the offset at which to look for the next one."""
        self._last, entry = found, found.entry
        after_header = entry.header_offset + 4
        fits = found.end_offset <= end
        if fits:
            self._allowance.charge(found.data_start, found.end_offset, entry.uncompressed_size)
        if entry.header_offset < self._claimed_end:
            return found.end_offset if fits and self._check_claimed(entry) else after_header
        if not fits:
            self._claimed_end = end
            if not self._is_truncated:
                self._add_lost(entry, _GAP)
                return after_header
            self._keep_rows(found, end)
            return end if is_seen_cut(self._reader, entry, found.data_start, end) else after_header
        wrapped = find_wrapped(self._reader, entry, found.data_start, end, self._threads)
        if wrapped is not None:
            self._put(entry.name, wrapped)
            header = wrapped.header
            return found.data_start + header.data_offset + header.nbytes
        behind = self.source.read_at(found.end_offset, min(4, end - found.end_offset))
        followed = begins_record(behind)
        if not entry.compressed_size and not followed:
            # A CRC-32 of no bytes proves nothing.
            self._add_lost(entry, "its header claims no data, but other data follows it")
            return after_header
        self.sound.pop(entry.name, None)
        is_sound = self._check_member(entry)
        if not is_sound:
            self._keep_sound_chunks(entry)
        if is_sound or followed:
            # The size is right even if the data is damaged, so no member is inside it.
            return found.end_offset
        self._claimed_end = found.end_offset
        return after_header

    def _check_claimed(self, entry: Entry) -> bool:
        """Check a member inside the range that a damaged member claims.

        It may be a neighbour of the damaged member, or part of an archive inside
        its array. A member outside of such a range has priority for a name.
        """
        if member_error(self._reader, entry, self._threads) is not None:
            return False
        other = self.sound.get(entry.name)
        if other is None or entry.name in self._claimed:
            self._claimed.add(entry.name)
            self._keep(entry)
        else:
            self._add_lost(
                entry, "it is inside a damaged member; another one with its name is kept"
            )
        return True

    def _keep_rows(self, found: FoundMember, end: int) -> None:
        """Keep the rows of an array that extends past the end of the file."""
        rows = None
        if not found.entry.flags & BAD_NAME:
            rows = find_rows(self._reader, found.entry, found.data_start, end)
        if rows is not None and self._partial:
            self._keep_left(rows, "truncated: ")
            return
        what = "truncated: its data extends past the end of the file"
        self._add_lost(found.entry, what if rows is None else what + _ROWS_SAVED)


def find_uncommitted(source: Source, limits: Limits, start: int, end: int) -> tuple[str, ...]:
    """Return the keys of the sound members that an unfinished append left from `start` to `end`."""
    if end <= start:
        return ()
    salvage = Salvage(source, limits, 1, None, keep_partial=None)
    salvage.source.size = end
    salvage._scan(start)
    return tuple(keys_of(salvage.sound.keys()))


def read_committed(source: Source) -> Directory:
    """Return the directory of the last commit, of which the comment can be read too."""
    directory = read_directory(source, silent=True)
    comment_of(directory, source)
    return directory
