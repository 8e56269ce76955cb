"""The central directory: found from the end of the archive, read in one pass.

Owns everything that is decided before a member is touched: that the end record
(`npzkit.zip.end_record`) and the entries (`npzkit.zip.entries`) belong
together, which of two members with the same name counts, and how a torn end is
treated. Allocates only what it has read.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.errors import (
    AmbiguousArchiveError,
    AmbiguousArchiveWarning,
    NpzkitError,
    StaleArchiveError,
    UnsupportedError,
    ZipFormatError,
    check_limit,
    warn,
)
from npzkit.files.source import Source
from npzkit.limits import Limits
from npzkit.zip.commit_marks import (
    FOOTER_SIZE,
    INTENT_SIZE,
    MARK_OFFSET,
    Footer,
    Mark,
    find_last_footer,
    format_mark,
    is_intent,
    parse_footer,
    parse_mark,
    read_comment,
)
from npzkit.zip.end_record import (
    COMMENT_MAX_SIZE,
    End,
    check_alone,
    describe,
    find_base,
    find_fitting,
    place_end,
)
from npzkit.zip.entries import Entry, check_names, parse_entries, parse_entry
from npzkit.zip.entry_columns import Columns, Ints, parse_columns
from npzkit.zip.last_commit import another_archive, damaged_commit, find_last_commit, report_tail
from npzkit.zip.records import END_SIGNATURE, END_SIZE

_ATTEMPT_COUNT = 20
"""Times that a file is read again if it is truncated at that moment."""
_SIGNATURE_BEGINNING = b"PK"
_DAMAGED = (
    "The file is damaged, or a faulty program wrote it: download it or create it again. "
    "npzkit.repair(path) writes the directory again from the members' own headers; "
    "npzkit.repair(path, output) saves the members that are sound."
)
_COLUMNS_COUNT = 64
"""The fewest entries that are parsed as columns: fewer are parsed faster one by one."""


class Directory(NamedTuple):
    """The directory of an archive.

    Attributes
    ----------
    entries : mapping of str to Entry
        By member name, in the directory's order; of equal names, the last.
        If there are many, each is created on demand.
    comment : bytes
        The archive's comment.
    directory_offset : int
        Where its central directory begins.
    end_offset : int
        Where the archive ends, behind the end record's comment.
    data : bytes
        Its entries as they lie in the file.
    positions : list of int, or numpy.ndarray
        Where each entry begins in `data`, those of repeated names too.
    start_offset : int
        Where the archive begins: behind other data, maybe.
    footer : Footer or None
        What its array index says of it, if it has one.
    unsealed : tuple of int
        Where an end record that counts has no signature; see `npzkit.zip.last_commit`.
    is_joined : bool
        Whether another archive may follow it, behind zeros.
    """

    entries: Mapping[str, Entry]
    comment: bytes
    directory_offset: int
    end_offset: int
    data: bytes
    positions: list[int] | Ints
    start_offset: int
    footer: Footer | None = None
    unsealed: tuple[int, ...] = ()
    is_joined: bool = False

    @property
    def size(self) -> int:
        """Bytes of its entries."""
        return len(self.data)

    def sizes(self) -> tuple[int, int]:
        """Return the sums of compressed and of uncompressed sizes."""
        if isinstance(self.entries, Columns):
            return self.entries.sizes()
        found = list(self.entries.values())
        return sum(e.compressed_size for e in found), sum(e.uncompressed_size for e in found)

    def listed_records(self) -> dict[str, bytes]:
        """Return the entries as bytes, by name; of equal names, the last."""
        records = self._records()
        if len(records) == len(self.entries):
            return dict(zip(self.entries, records, strict=True))
        return {parse_entry(record, self.directory_offset).name: record for record in records}

    def repeated_names(self) -> dict[str, int]:
        """Return the names that more than one entry has, and how many have them."""
        records = self._records()
        if len(records) == len(self.entries):
            return {}
        offset = self.directory_offset
        counts = collections.Counter(parse_entry(record, offset).name for record in records)
        return {name: count for name, count in counts.items() if count > 1}

    def _records(self) -> list[bytes]:
        """Return all entries as bytes, those of repeated names too."""
        begins = self.positions
        if not isinstance(begins, list):
            # Slicing takes four times as long with NumPy's integers.
            begins = begins.tolist()
        ends = [*begins[1:], None]
        return [self.data[begin:end] for begin, end in zip(begins, ends, strict=False)]

    def with_extra(self) -> list[Entry]:
        """Return the entries that have an extra field, in the directory's order."""
        if isinstance(self.entries, Columns):
            return self.entries.with_extra()
        return [entry for entry in self.entries.values() if entry.extra]

    def read_comment(self, source: Source, size_limit: int | None = None) -> bytes:
        """Return the archive's comment, also one that its end record cannot hold.

        Raises
        ------
        ZipFormatError
            It does not fit its checksum in the array index.
        ZipFormatError, LimitExceededError
            As `npzkit.zip.commit_marks.read_comment`.
        """
        if self.footer is not None and not self.footer.fits_comment(self.comment):
            raise ZipFormatError(
                "the archive's metadata is damaged: the comment does not fit its CRC-32",
                offset=self.end_offset - len(self.comment),
                found=f"{crc32(self.comment):#010x}",
                expected=f"{self.footer.comment_crc32:#010x}",
                remedy="npzkit.repair(path, output) saves the arrays without it.",
            )
        bounds = self.start_offset, self.directory_offset
        return read_comment(source, self.comment, *bounds, size_limit)

    def completion(self, source: Source) -> list[tuple[int, bytes]]:
        """Return what its commit lacks, and where: seals, and the mark of its intent."""
        patches = [(offset, END_SIGNATURE) for offset in self.unsealed]
        found = self.read_intent(source)
        if found is None:
            return patches
        offset, intent = found
        start, records_offset = self.start_offset, self.directory_offset + self.size
        end = bytearray(source.read_at(records_offset, self.end_offset - records_offset))
        for place, seal in patches[-1:]:
            end[place - records_offset : place - records_offset + len(seal)] = seal
        mark = Mark(
            self.directory_offset - start, records_offset - start, self.end_offset - start,
            crc32(end),
        )  # fmt: skip
        if is_intent(intent) and parse_mark(intent) != mark:
            patches.append((offset + MARK_OFFSET, format_mark(intent, mark)))
        return patches

    def check_alone(self, source: Source) -> None:
        """Raise AmbiguousArchiveError if what follows the archive must not be cut off."""
        if self.is_joined:
            raise another_archive(source, self.end_offset, "the first archive")

    def read_intent(self, source: Source) -> tuple[int, bytes] | None:
        """Return where the intent of its commit is, and its bytes; None if there is none."""
        room = self.directory_offset - self.start_offset - INTENT_SIZE
        if self.footer is None or not 0 < self.footer.intent_offset <= room:
            return None
        offset = self.start_offset + self.footer.intent_offset
        return offset, source.read_at(offset, INTENT_SIZE)

    def is_kept(self, source: Source) -> bool:
        """Whether the directory is still in its place and unchanged, including members' CRCs.

        An append may have written another one behind it.
        """
        try:
            return source.read_at(self.directory_offset, self.size) == self.data
        except StaleArchiveError:
            return False


def read_directory(
    source: Source,
    *,
    starts: Sequence[int] = (0,),
    strict: bool = False,
    silent: bool = False,
    limits: Limits,
) -> Directory:
    """Find and read the central directory.

    Parameters
    ----------
    source : Source
    starts : sequence of int
        Offsets at which the archive may begin. Offsets in the archive count
        from its start, or from the file's.
    strict : bool, default False
        Raise an error for a torn end or a repeated name, instead of a warning;
        and for a name that makes only its own member unreadable.
    silent : bool, default False
        Do not warn: the first opening of the archive did.
    limits : Limits
        ``member_count`` and ``total_size`` are checked here.

    Raises
    ------
    ZipFormatError
        No archive, or a damaged one.
    AmbiguousArchiveError
        Two end records fit, or other programs would read another archive behind the end;
        in `strict`, two members share a name.
    UnsupportedError
        The archive is split over several files, or a newer npzkit wrote it.
    LimitExceededError
        More members, or more bytes in all, than `limits` allow.
    """
    opening = _Opening(source, starts, strict, silent, limits)
    for _ in range(_ATTEMPT_COUNT):
        try:
            return opening.directory()
        except NpzkitError as error:
            # Bytes that were read before a writer's change do not fit those read after it: an
            # append that failed is cut off, and the next one is written in its place.
            is_overtaken = error.is_damage and source.is_being_written()
            if not (isinstance(error, StaleArchiveError) or is_overtaken):
                raise
            source.refresh()
    return opening.directory()


class _Opening(NamedTuple):
    """One attempt to read a directory; the fields are as of `read_directory`."""

    source: Source
    starts: Sequence[int]
    strict: bool
    silent: bool
    limits: Limits

    def directory(self) -> Directory:
        """Return the directory of the archive that ends where the file does, or of the last one."""
        end, fault = self._find_end(self.source.size)
        return self._last_commit(fault) if end is None else self.read(end)

    def _find_end(self, end_offset: int) -> tuple[End | None, NpzkitError | None]:
        """Return the end record whose comment ends at `end_offset`, or what is wrong with it."""
        source = self.source
        low = max(end_offset - END_SIZE - COMMENT_MAX_SIZE, 0)
        fault: NpzkitError | None = None
        ends = []
        for offset in find_fitting(source.read_at(low, end_offset - low), low):
            try:
                ends.append(place_end(source, offset, self.starts))
            except (ZipFormatError, UnsupportedError) as error:
                fault = fault or error
        if not ends:
            return None, fault
        # Of an end record in another's comment, other programs take the inner one.
        is_later = len(ends) > 1 and _appends_behind(source, *ends[:2])
        end = ends[0 if is_later else -1]
        check_alone(source, end)
        return end, None

    def read(self, end: End) -> Directory:
        """Check an end record against the file and read the entries it counts."""
        source, record = self.source, end.record
        check_member_count(record.entry_count, self.limits)
        start, base = end.start_offset, end.base
        offset = record.directory_offset + base
        lead_size = min(FOOTER_SIZE, offset - start)
        data = source.read_at(offset - lead_size, lead_size + record.directory_size)
        footer, data = parse_footer(data[:lead_size], offset - start), data[lead_size:]
        try:
            named, names, positions = _parse(data, record.entry_count, base, start, offset)
            if footer is not None and not footer.fits(data, positions):
                raise ZipFormatError(
                    "the directory is damaged: it does not fit its checksum", offset=offset
                )
        except ZipFormatError as error:
            error.remedy = _DAMAGED
            raise
        # If a member begins at the start, its local header is checked when it is read.
        if (
            source.is_distant
            and source.at_hand(start, 4) is None
            and all(entry.header_offset != start for entry in named.values())
        ):
            find_base(source, end, self.starts, certain=True)
        if self.strict:
            check_names(named.marked() if isinstance(named, Columns) else named.values())
        if len(named) < len(names) and (self.strict or not self.silent):
            _report_repeated(names, self.strict)
        found = Directory(
            named, record.comment, offset, end.end_offset, data, positions, start, footer
        )
        if self.limits.total_size is not None:
            check_total_size(found.sizes()[1], self.limits)
        return found

    def _last_commit(self, fault: NpzkitError | None) -> Directory:
        """Read the last commit of an archive that does not end with one.

        `fault` is what is wrong with the end record that ends where the file does.
        """
        source, starts = self.source, self.starts
        beginnings = [source.read_at(start, 2) for start in starts if start + 2 <= source.size]
        if _SIGNATURE_BEGINNING not in beginnings:
            # Without a record at its start it has no commit, and it may be long.
            raise fault or not_an_archive(source)
        source = source.ahead([(0, source.size)])
        last = find_last_commit(source, starts)
        if last is None:
            footer = find_last_footer(source, starts)
            if footer is None:
                raise fault or not_an_archive(source)
            raise damaged_commit(source, 0, footer.directory_offset + footer.directory_size)
        if last.damage is not None:
            raise last.damage
        # Without what follows it, other programs may take another end.
        self._replace(source=last.source)._find_end(last.end.end_offset)
        directory = self._replace(source=last.source).read(last.end)
        _check_comment_end(source, last.end, directory)
        is_noted = source.size > last.end.end_offset or last.unsealed
        if is_noted and (self.strict or not self.silent) and not source.is_being_written():
            report_tail(source, last, strict=self.strict)
        return directory._replace(unsealed=last.unsealed, is_joined=last.is_joined)


def _check_comment_end(source: Source, end: End, directory: Directory) -> None:
    """Raise if what follows an end is metadata, or what is left of it: the size is damaged."""
    footer = directory.footer
    commented_end = end.record_offset + END_SIZE + (0 if footer is None else footer.comment_size)
    if end.end_offset < commented_end <= source.size and (
        commented_end == source.size
        or not source.read_at(end.end_offset, commented_end - end.end_offset).strip(b"\0")
    ):
        raise damaged_commit(source, end.record_offset, end.record_offset)


def _appends_behind(source: Source, end: End, older: End) -> bool:
    """Return whether an end is that of an append behind another end, whose size is damaged then."""
    start, offset = end.start_offset, end.records_offset - end.record.directory_size
    lead_size = min(FOOTER_SIZE, offset - start)
    footer = parse_footer(source.read_at(offset - lead_size, lead_size), offset - start)
    place = 0 if footer is None else start + footer.intent_offset
    return older.record_offset < place and is_intent(source.read_at(place, INTENT_SIZE))


def read_commit(source: Source, end: End) -> Directory:
    """Read the directory that an end record leads to; raises what `read_directory` does."""
    return _Opening(source, (0,), False, True, Limits()).read(end)


def _parse(
    data: bytes, count: int, base: int, start: int, offset: int
) -> tuple[Mapping[str, Entry], Sequence[str], list[int] | Ints]:
    """Return the entries by name, and the name and position of each, repeated ones too."""
    if count >= _COLUMNS_COUNT:
        columns = parse_columns(data, count, base, start, offset)
        if columns is not None:
            return columns, columns.names, columns.positions
    entries, positions = parse_entries(data, count, base, start, offset)
    names = [entry.name for entry in entries]
    return dict(zip(names, entries, strict=True)), names, positions


def check_member_count(count: int, limits: Limits) -> None:
    """Raise LimitExceededError for more members than the limits allow."""
    check_limit(count, limits.member_count, "member_count", "the archive has too many members")


def check_total_size(size: int, limits: Limits) -> None:
    """Raise LimitExceededError for more uncompressed bytes than the limits allow."""
    what = "the uncompressed members are too large together"
    check_limit(size, limits.total_size, "total_size", what)


def _report_repeated(names: Sequence[str], strict: bool) -> None:
    name = collections.Counter(names).most_common(1)[0][0]
    if strict:
        raise AmbiguousArchiveError(
            "two members have the same name",
            key=name,
            found=f"{names.count(name)} members",
            expected="one",
            remedy="Open it without strict=True to read the last one.",
        )
    warn(
        f"the member {NpzkitError.shown(name)} occurs more than once in the archive; "
        "the last one is used",
        AmbiguousArchiveWarning,
    )


def not_an_archive(source: Source) -> ZipFormatError:
    """Return the error for a file without an end record, which says what it seems to be."""
    meaning, remedy = describe(source)
    return ZipFormatError(
        f"not a zip archive: {meaning}",
        found=source.read_at(0, min(source.size, 16)),
        expected="an end of central directory record",
        remedy=remedy,
    )
