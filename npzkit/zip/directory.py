"""The central directory: found from the end of the archive, read in one pass.

Owns everything that is decided before a member is touched: that the end record
(`npzkit.zip.end_record`) and the entries (`npzkit.zip.entries`) belong
together, which of two members with the same name counts, and how a torn end is
treated; and what belongs to the commit beside the entries: the comment, the intent and its
mark. Allocates only what it has read.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.errors import (
    DAMAGED,
    DAMAGED_END,
    REPAIR,
    SAVE_SOUND,
    TO_UNDO,
    AmbiguousArchiveError,
    AmbiguousArchiveWarning,
    NpzkitError,
    StaleArchiveError,
    UnsupportedError,
    ZipFormatError,
    check_limit,
    may_be_damage,
    shown_value,
    warn,
)
from npzkit.files.source import Source
from npzkit.limits import DEFAULT_LIMITS, Limits
from npzkit.zip.commit import FAR_COMMENT, FOOTER_SIZE, Far, Footer, parse_footer
from npzkit.zip.end_record import (
    End,
    check_alone,
    find_base,
    find_fitting,
    is_copied_as_text,
    last_record,
    not_an_archive,
    place_end,
    placed_ends,
    read_tail,
    usual_end,
)
from npzkit.zip.entries import Rows, check_names, parse_entries, parse_entry
from npzkit.zip.records import END_SIGNATURE, LOCAL_HEADER_SIGNATURE, ZIP64_END_SIGNATURE

if TYPE_CHECKING:
    from npzkit.zip.entry_columns import Columns, Ints

_ATTEMPT_COUNT = 20
"""Times that a file is read again if it is truncated at that moment."""
_BEGINNINGS = LOCAL_HEADER_SIGNATURE, END_SIGNATURE, ZIP64_END_SIGNATURE
_DAMAGED = (
    f"{DAMAGED} "
    + REPAIR
    + " writes the directory again from the members' own headers; "
    + SAVE_SOUND
    + " saves the members that are sound."
)
_COLUMNS_COUNT = 64
"""The fewest entries that are parsed as columns: fewer are parsed faster one by one."""


class Directory(NamedTuple):
    """The directory of an archive.

    Attributes
    ----------
    entries : Rows or Columns
        By member name, in the directory's order; of equal names, the last.
    comment : bytes
        Of its end record; it may lead to a longer one, as `comment_of` says.
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
        What its commit says of it, if npzkit wrote it.
    is_joined : bool
        Whether another archive may follow it, behind zeros.
    far_copy : (int, int) or None
        Where its far copy begins and ends, if an append has one; see `npzkit.zip.commit`.
    """

    entries: Rows | Columns
    comment: bytes
    directory_offset: int
    end_offset: int
    data: bytes
    positions: list[int] | Ints
    start_offset: int
    footer: Footer | None = None
    is_joined: bool = False
    far_copy: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Bytes of its entries."""
        return len(self.data)

    def listed_records(self) -> dict[str, bytes]:
        """Return the entries as bytes, by name; of equal names, the last."""
        return dict(zip(self._all_names(), self._records(), strict=True))

    def places(self) -> dict[str, int]:
        """Return where each entry begins in `data`, by name; of equal names, the last."""
        return dict(zip(self._all_names(), map(int, self.positions), strict=True))

    def repeated_names(self) -> dict[str, int]:
        """Return the names that more than one entry has, and how many have them."""
        if len(self.positions) == len(self.entries):
            return {}
        counts = collections.Counter(self._all_names())
        return {name: count for name, count in counts.items() if count > 1}

    def _all_names(self) -> list[str]:
        """Return the name of each entry, repeated ones too."""
        if len(self.positions) == len(self.entries):
            return list(self.entries)
        return [parse_entry(record, self.directory_offset).name for record in self._records()]

    def _records(self) -> list[bytes]:
        """Return all entries as bytes, those of repeated names too."""
        begins = self.positions
        if not isinstance(begins, list):
            # Slicing takes four times as long with NumPy's integers.
            begins = begins.tolist()
        ends = [*begins[1:], None]
        return [self.data[begin:end] for begin, end in zip(begins, ends, strict=False)]

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
    limits: Limits = DEFAULT_LIMITS,
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
    limits : Limits, optional
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
            is_overtaken = may_be_damage(error) and source.is_being_written()
            if not (isinstance(error, StaleArchiveError) or is_overtaken):
                raise
            source.refresh()
    return opening.directory()


class _Opening:
    """One attempt to read a directory; the arguments are as of `read_directory`."""

    def __init__(
        self, source: Source, starts: Sequence[int], strict: bool, silent: bool, limits: Limits
    ) -> None:
        self.source, self.starts, self.limits = source, starts, limits
        self.strict, self.silent = strict, silent

    def directory(self) -> Directory:
        """Return the directory of the archive that ends where the file does, or of the last one."""
        source = self.source
        tail = read_tail(source, source.size)
        usual = None if any(self.starts) else usual_end(source, tail)
        if usual is not None:
            return self._read_or_pass(usual, tail)
        end = self._find_end(source.size)
        return self._last_commit() if end is None else self._read_or_pass(end)

    def _read_or_pass(self, end: End, tail: bytes = b"") -> Directory:
        """Read the directory of the file's end, or pass over one of which the disk lost a part."""
        try:
            return self.read(end, tail)
        except ZipFormatError as error:
            if end.record.comment != FAR_COMMENT:
                raise
            try:
                return self._last_commit()
            except ZipFormatError:
                raise error from None

    def _find_end(self, end_offset: int) -> End | None:
        """Return the end whose comment ends at `end_offset`; None if none leads to its archive."""
        source = self.source
        ends = list(placed_ends(source, find_fitting(source, end_offset), self.starts))
        if not ends:
            return None
        # Of an end record in another's comment, other programs take the inner one.
        end = ends[-1]
        if len(ends) > 1:
            from npzkit.zip.last_commit import appends_behind

            end = ends[0] if appends_behind(source, *ends[:2]) else end
        check_alone(source, end)
        return end

    def _fault(self) -> NpzkitError:
        """Return why a file is no archive, or how it seems to be damaged."""
        error = self._end_fault()
        if is_copied_as_text(self.source):
            error.remedy = TO_UNDO
        return error

    def _end_fault(self) -> NpzkitError:
        """Return what is wrong with the end record that ends where the file does, if one does."""
        for offset in find_fitting(self.source, self.source.size)[:1]:
            try:
                place_end(self.source, offset, self.starts)
            except (ZipFormatError, UnsupportedError) as error:
                if error.remedy == DAMAGED:
                    error.remedy = DAMAGED_END
                return error
        return not_an_archive(self.source)

    def read(self, end: End, tail: bytes = b"") -> Directory:
        """Check an end record against the file and read the entries it counts.

        `tail` is the last bytes of the file, as far as they are known.
        """
        source, record = self.source, end.record
        if self.limits.member_count is not None:
            check_member_count(record.entry_count, self.limits)
        start, base = end.start_offset, end.base
        offset = record.directory_offset + base
        lead_size = min(FOOTER_SIZE, offset - start)
        size, place = lead_size + record.directory_size, offset - lead_size
        known = place - source.size + len(tail)
        data = tail[known : known + size] if known >= 0 else source.read_at(place, size)
        is_last = end.end_offset == source.size
        footer = parse_footer(data[:lead_size], offset - start, is_last=is_last)
        data = data[lead_size:]
        if end.record.comment == FAR_COMMENT and footer is None:
            raise ZipFormatError("the copy of the directory is damaged", offset=offset)
        if isinstance(footer, Far):
            return self._older(end, footer)
        try:
            named, positions = _parse(data, record.entry_count, base, start, offset)
            if footer is not None and not footer.fits(data, positions):
                raise ZipFormatError(
                    "the directory is damaged: it does not fit its checksum", offset=offset
                )
        except ZipFormatError as error:
            # Without a footer, nothing says whether a new directory would be complete.
            error.remedy = DAMAGED_END if footer is None else _DAMAGED
            raise
        if source.is_distant:
            self._check_start(end, named)
        if self.strict:
            check_names(named.marked())
        found = Directory(
            named, record.comment, offset, end.end_offset, data, positions, start, footer
        )
        if len(named) < len(positions) and (self.strict or not self.silent):
            _report_repeated(found.repeated_names(), self.strict)
        if self.limits.total_size is not None:
            check_total_size(named.sizes()[1], self.limits)
        return found

    def _check_start(self, end: End, named: Rows | Columns) -> None:
        """Look whether the archive begins where it should, if that takes a request."""
        # If a member begins there, its local header is checked when it is read.
        if self.source.at_hand(end.start_offset, 4) is None and all(
            entry.header_offset != end.start_offset for entry in named.values()
        ):
            find_base(self.source, end, self.starts, certain=True)

    def _older(self, copy: End, far: Far) -> Directory:
        """Read the commit to which a far copy belongs: an append is under way, or was killed."""
        from npzkit.zip.last_commit import damaged_commit, is_marked, older_end

        source = self.source
        end = older_end(source, copy, far)
        if end is None or is_marked(source, end):
            raise damaged_commit(source, copy.start_offset + far.end_offset, copy.record_offset)
        far_copy = copy.directory_offset, copy.records_offset
        return self._beside_append(end)._replace(far_copy=far_copy)

    def _last_commit(self) -> Directory:
        """Read the last commit of an archive that does not end with one."""
        from npzkit.zip import last_commit, member_search

        source, starts = self.source, self.starts
        if all(source.read_within(start, 4) not in _BEGINNINGS for start in starts):
            # Without a record at its start it has no commit, and it may be long.
            raise self._fault()
        is_cut = 0 in starts and member_search.is_cut_in_member(source)
        if is_cut and last_record(source) is None:
            # So that only `repair` searches a file that was cut off.
            raise self._fault()
        source = source.ahead([(0, source.size)])
        last = last_commit.find_last_commit(source, starts)
        if last is None:
            footer = next(last_commit.find_footers(source, starts), None)
            if footer is None:
                raise self._fault()
            raise last_commit.end_missing(source, footer)
        if last.damage is not None:
            raise last.damage
        return self._beside_append(last.end)._replace(is_joined=last.is_joined)

    def _beside_append(self, end: End) -> Directory:
        """Read a commit behind which something follows, and report that."""
        from npzkit.zip.last_commit import check_comment_end, report_tail

        # Without what follows it, other programs may take another end.
        self._find_end(end.end_offset)
        directory = self.read(end)
        check_comment_end(self.source, end, directory.footer)
        is_told = self.strict or not self.silent
        if is_told and self.source.size > end.end_offset and not self.source.is_being_written():
            report_tail(self.source, end.end_offset, strict=self.strict)
        return directory


def read_commit(source: Source, end: End) -> Directory:
    """Read the directory that an end record leads to; raises what `read_directory` does."""
    return _Opening(source, (0,), False, True, DEFAULT_LIMITS).read(end)


def _parse(
    data: bytes, count: int, base: int, start: int, offset: int
) -> tuple[Rows | Columns, list[int] | Ints]:
    """Return the entries by name, and the position of each, repeated ones too."""
    if count >= _COLUMNS_COUNT:
        # Few archives have as many members.
        from npzkit.zip.entry_columns import parse_columns

        columns = parse_columns(data, count, base, start, offset)
        if columns is not None:
            return columns, columns.positions
    entries, positions = parse_entries(data, count, base, start, offset)
    return Rows([(entry.name, entry) for entry in entries]), positions


def check_member_count(count: int, limits: Limits) -> None:
    """Raise LimitExceededError for more members than the limits allow."""
    check_limit(count, limits.member_count, "member_count", "the archive has too many members")


def check_total_size(size: int, limits: Limits) -> None:
    """Raise LimitExceededError for more uncompressed bytes than the limits allow."""
    what = "the uncompressed members are too large together"
    check_limit(size, limits.total_size, "total_size", what)


def _report_repeated(counts: dict[str, int], strict: bool) -> None:
    name = max(counts, key=counts.__getitem__)
    if strict:
        raise AmbiguousArchiveError(
            "two members have the same name",
            key=name,
            found=f"{counts[name]} members",
            expected="one",
            remedy="Open it without strict=True to read the last one.",
        )
    warn(
        f"the member {shown_value(name)} occurs more than once in the archive; "
        "the last one is used",
        AmbiguousArchiveWarning,
    )


# -- what belongs to its commit beside the entries -----------------------------------


def comment_of(directory: Directory, source: Source, size_limit: int | None = None) -> bytes:
    """Return the archive's comment, also one that its end record cannot hold.

    Raises
    ------
    ZipFormatError
        It does not fit its checksum in the footer.
    ZipFormatError, LimitExceededError
        As `npzkit.zip.commit.read_comment`.
    """
    # Few archives that are opened are asked for this and what follows.
    from npzkit.zip.commit import read_comment

    comment, footer = directory.comment, directory.footer
    if footer is not None and not footer.fits_comment(comment):
        raise ZipFormatError(
            "the archive's metadata is damaged: the comment does not fit its CRC-32",
            offset=directory.end_offset - len(comment),
            found=f"{crc32(comment):08x}",
            expected=f"{footer.comment_crc32:08x}",
            remedy=SAVE_SOUND + " saves the arrays without it.",
        )
    bounds = directory.start_offset, directory.directory_offset
    return read_comment(source, comment, *bounds, size_limit)


def completion(directory: Directory, source: Source) -> list[tuple[int, bytes]]:
    """Return what the commit lacks, and where: the magic of its footer, the mark of its intent."""
    from npzkit.zip.commit import FOOTER_MAGIC, MARK_OFFSET, format_mark, parse_mark

    patches = []
    place = directory.directory_offset - len(FOOTER_MAGIC)
    if directory.footer is not None and not any(source.read_at(place, len(FOOTER_MAGIC))):
        patches.append((place, FOOTER_MAGIC))
    found = read_intent(directory, source)
    if found is not None and parse_mark(found[1]) == 0:
        mark = format_mark(directory.end_offset - directory.start_offset)
        patches.append((found[0] + MARK_OFFSET, mark))
    return patches


def check_last(directory: Directory, source: Source) -> None:
    """Raise AmbiguousArchiveError if what follows the archive must not be cut off."""
    if directory.is_joined:
        from npzkit.zip.last_commit import another_archive

        raise another_archive(source, directory.end_offset, "the first archive")


def read_intent(directory: Directory, source: Source) -> tuple[int, bytes] | None:
    """Return where the intent of the commit is, and its bytes; None if there is none."""
    from npzkit.zip.commit import INTENT_SIZE

    footer = directory.footer
    room = directory.directory_offset - directory.start_offset - INTENT_SIZE
    if footer is None or not 0 < footer.intent_offset <= room:
        return None
    offset = directory.start_offset + footer.intent_offset
    return offset, source.read_at(offset, INTENT_SIZE)
