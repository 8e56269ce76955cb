"""The end of an archive that does not end with a sound end record: torn, damaged, or joined.

Owns the search for the last end record that fits, and what the bytes behind it
mean. An append says in the file what it is (`npzkit.zip.commit`), so nothing is
inferred from members or directories. An append writes:

1. unless all that follows is written at once and lets others find the last end: the *far copy* of
   the last directory, behind the room that is needed; a new one, further out, when the room is
   too small;
2. its *intent*, right behind the last end, members, record, directory and end;
3. if it made a far copy, it cuts off the file behind its end, and then writes the magic of its
   footer, which was zeros; if not, it writes the first four bytes of its end record, the *seal*,
   which were zeros. That is the commit;
4. the *mark* in the intent.

What the end of a file looks like, and what it means:

==============================================  =============  =============================
behind the last end, E                          state          the next writer
==============================================  =============  =============================
nothing                                         E              goes on; if the mark of E is
                                                               missing, it is written first
a part of the intent, or the intent             E, torn        cuts
intent, and no end record that fits             E, torn        cuts
a far copy at the file's end, and no mark       E, torn        cuts
zeros                                           E, torn        cuts, unless others would read
                                                               another archive in what follows
intent with a mark, and no end that fits        an error: a complete commit is damaged
intent that is damaged otherwise                likewise
intent, an end whose footer has no magic, and   E, torn        cuts
other bytes
another end record                              an error: two archives
other bytes                                     E, a warning   cuts
==============================================  =============  =============================

While a writer has the file locked, what is torn gives no warning.

Without any end that fits, a footer tells a damaged archive from a file that is none.

All work is linear in the file's size. End records are checked by the thousand
with numpy, because a hostile file may hold one every 22 bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.checksum import crc32
from npzkit.errors import (
    REPAIR,
    SAVE_SOUND,
    Advice,
    AmbiguousArchiveError,
    TornArchiveWarning,
    UnsupportedError,
    ZipFormatError,
    warn,
)
from npzkit.files.source import Source
from npzkit.zip.commit import (
    FAR_COMMENT,
    FOOTER_MAGIC,
    FOOTER_SIZE,
    INTENT_HEAD,
    INTENT_SIZE,
    MARK_OFFSET,
    Behind,
    Far,
    Footer,
    followed_offset,
    is_intent,
    members_begin,
    parse_footer,
    parse_mark,
    read_behind,
)
from npzkit.zip.end_record import End, check_alone, cut_off, find_fitting, last_record, placed_ends
from npzkit.zip.entries import parse_entries
from npzkit.zip.entry_columns import Ints, places_before, windows_of
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIGNATURE,
    CENTRAL_ENTRY_SIZE,
    END_LAYOUT,
    END_SIGNATURE,
    END_SIZE,
    ZIP64_END_LAYOUT,
    ZIP64_END_SIGNATURE,
    ZIP64_LOCATOR_SIGNATURE,
    ZIP64_LOCATOR_SIZE,
    ZIP64_RECORDS_SIZE,
)
from npzkit.zip.written_header import end_bytes

_COMMIT_COUNT = 1000
"""End records that are tried: of those whose numbers fit a real file's first one is
its last, and few commits are damaged."""
_BEHIND_SIZE = 1024
_SIZE_OFFSET = 12
"""Where an end record has the size of the directory."""
_ZIP64_CLAIMS = ("directory_size", "directory_offset")
_CLAIMS = (*_ZIP64_CLAIMS, "comment_size")
_END, _ZIP64_END = (
    np.dtype(layout.columns(*names))
    for layout, names in ((END_LAYOUT, _CLAIMS), (ZIP64_END_LAYOUT, _ZIP64_CLAIMS))
)
_ZIP64_SIGNATURES = [
    (distance, int.from_bytes(signature, "little"))
    for distance, signature in (
        (ZIP64_LOCATOR_SIZE, ZIP64_LOCATOR_SIGNATURE),
        (ZIP64_RECORDS_SIZE, ZIP64_END_SIGNATURE),
    )
]
"""What stands before an end record with zip64 values, and how far before."""


class LastCommit(NamedTuple):
    """The last commit in a file that does not end with its end.

    Attributes
    ----------
    end : End
    damage : ZipFormatError or None
        Why the commit that follows it cannot be read: one that was complete.
    is_joined : bool
        Whether another archive may follow, behind zeros: nothing is to be cut off.
    """

    end: End
    damage: ZipFormatError | None = None
    is_joined: bool = False


# -- which record is the last that fits -------------------------------------------


def find_commits(source: Source, starts: Sequence[int], end: int) -> Iterator[End]:
    """Yield the end records before `end` that lie where their directory ends, last first.

    A record of an archive inside an array counts from that archive's own first
    byte, so its numbers do not fit this file, and it is passed over unread.
    """
    offsets = itertools.islice(_fitting_records(source, starts, end), _COMMIT_COUNT)
    return placed_ends(source, offsets, starts)


def _fitting_records(source: Source, starts: Sequence[int], end: int) -> Iterator[int]:
    """Yield offsets of end records whose own numbers lead to an archive's start, last first."""
    # Offsets in an archive count from its start, or from the file's.
    bases = np.unique([0, *starts])
    parts = places_before(source, end, END_SIGNATURE, ZIP64_RECORDS_SIZE, END_SIZE)
    for begin, data, found in parts:
        claims = _read_claims(data, found)
        fits = np.isin(begin + found - claims.distance, bases)
        fits &= begin + found + END_SIZE + claims.comment_size <= end
        yield from reversed((begin + found[fits]).tolist())


class _Claims(NamedTuple):
    """What end records say, with zip64 values in place: one record, or a column of each."""

    directory_size: Any
    directory_offset: Any
    comment_size: Any
    records64_size: Any

    @property
    def distance(self) -> Any:
        """How far from its archive's start the record says that it is."""
        return self.directory_size + self.directory_offset + self.records64_size


def _read_claims(data: bytes, found: Ints) -> _Claims:
    """Return columns of what the end records at `found` say; numbers of 64 bits wrap."""
    ends = windows_of(data, _END)[found]
    columns = [ends[name].astype(np.int64) for name in _CLAIMS]
    has64 = found >= ZIP64_RECORDS_SIZE
    for distance, signature in _ZIP64_SIGNATURES:
        has64[has64] = windows_of(data, "<u4")[found[has64] - distance] == signature
    if has64.any():
        records64 = windows_of(data, _ZIP64_END)[found[has64] - ZIP64_RECORDS_SIZE]
        for column, name in zip(columns, _ZIP64_CLAIMS, strict=False):
            column[has64] = records64[name].astype(np.int64)
    return _Claims._make([*columns, has64 * np.int64(ZIP64_RECORDS_SIZE)])


# -- what follows it ---------------------------------------------------------------


def find_last_commit(source: Source, starts: Sequence[int]) -> LastCommit | None:
    """Return the last commit in a file, and what is wrong with one behind it; None without any.

    Raises
    ------
    AmbiguousArchiveError
        Other programs would read another archive from the file.
    UnsupportedError
        A newer npzkit appended to the archive.
    """
    fitting, budget = None, 2 * source.size
    for end in find_commits(source, starts, source.size):
        footer = footer_before(source, end)
        if isinstance(footer, Far):
            older = older_end(source, end, footer)
            if older is not None:
                return _with_what_follows(source, older)
        elif end.record.comment == FAR_COMMENT or _is_pending(source, end):
            continue
        elif footer is not None or _behind(source, end) == Behind.UNFINISHED:
            return _with_what_follows(source, end)
        elif fitting is None and budget >= end.record.directory_size:
            budget -= end.record.directory_size
            fitting = end if _is_listing(source, end) else None
    return None if fitting is None else _with_what_follows(source, fitting)


def _is_pending(source: Source, end: End) -> bool:
    """Return whether an end is that of an append which was not cut off behind it."""
    if footer_before(source, end) is not None:
        return False
    return _said_before(source, end.start_offset, end.directory_offset, is_last=True) is not None


def _is_listing(source: Source, end: End) -> bool:
    """Return whether the directory of an end consists of entries."""
    offset = end.directory_offset
    data = source.read_at(offset, end.record.directory_size)
    try:
        parse_entries(data, end.record.entry_count, end.base, end.start_offset, offset)
    except (ZipFormatError, UnsupportedError):
        return False
    return True


def footer_before(source: Source, end: End) -> Footer | Far | None:
    """Return what is said of a directory right before it; raises `UnsupportedError`."""
    is_last = end.end_offset == source.size
    return _said_before(source, end.start_offset, end.directory_offset, is_last=is_last)


def _said_before(
    source: Source, start: int, offset: int, *, is_last: bool = False
) -> Footer | Far | None:
    """Return what is said before a directory at an offset, in the archive at `start`."""
    size = min(FOOTER_SIZE, offset - start)
    return parse_footer(source.read_at(offset - size, size), offset - start, is_last=is_last)


def older_end(source: Source, end: End, far: Far) -> End | None:
    """Return the end to whose directory a far copy belongs; None if it is not there, or damaged.

    `end` is that of the far copy.
    """
    place = end.start_offset + far.end_offset
    if not end.start_offset <= place <= end.record_offset:
        return None
    ends = placed_ends(source, find_fitting(source, place), (end.start_offset,))
    return next((one for one in ends if _followed(source, one)[1] == far.end_crc32), None)


def _with_what_follows(source: Source, end: End) -> LastCommit:
    """Return a commit, with what is wrong with the bytes behind it."""
    check_alone(source, end)
    kind = _behind(source, end)
    if kind in (Behind.DAMAGED, Behind.COMPLETE):
        at = end.end_offset
        return LastCommit(end, damaged_commit(source, at, at, at + INTENT_SIZE))
    place = last_record(source)
    is_begun = parse_mark(_intent_behind(source, end)) == 0
    if place is None or place < end.end_offset or is_begun:
        return LastCommit(end)
    if kind == Behind.FOREIGN:
        raise another_archive(source, end.end_offset)
    begin = _archive_begin(source, place, is_empty_read=kind != Behind.ZEROS)
    if begin is None:
        return LastCommit(end)
    is_own, is_left = begin == end.start_offset, _is_left_over(source, end, place)
    if kind == Behind.ZEROS:
        return LastCommit(end, is_joined=not is_left)
    # An array in an unfinished append may contain an archive: the intent precedes it.
    first = end.start_offset + members_begin(end.archive_size)
    if not (is_own or is_left) and begin < first:
        raise another_archive(source, end.end_offset)
    return LastCommit(end)


def unfinished_offset(source: Source) -> int | None:
    """Return where an append begins that was not complete; None if there is none.

    What it wrote counts for nothing, whatever else of the file is damaged.
    """
    try:
        last = find_last_commit(source, (0,))
    except AmbiguousArchiveError:
        place, last = last_record(source), None
        # Behind an end whose size is damaged, what is not committed is no archive of others.
        found = placed_ends(source, [] if place is None else [place], (0,))
        if not any(_is_uncommitted(source, one) for one in found):
            return None
    kind = Behind.NOTHING if last is None else _behind(source, last.end)
    if last is not None and kind == Behind.UNFINISHED:
        return last.end.end_offset
    # If the end that it follows is damaged, the intent still says where that ended.
    least = 0 if last is None else last.end.record_offset
    for intent in _intents(source):
        end_offset = followed_offset(intent)
        if end_offset <= least:
            break
        return None if any(intent[MARK_OFFSET:]) else end_offset
    if (
        last is not None
        and kind == Behind.DAMAGED
        and not any(_intent_behind(source, last.end)[MARK_OFFSET:])
    ):
        return last.end.end_offset
    return None


def _intents(source: Source) -> Iterator[bytes]:
    """Yield the intents that are where they say, last first."""
    parts = places_before(source, source.size, CENTRAL_ENTRY_SIGNATURE, 0, INTENT_SIZE)
    for begin, data, places in parts:
        for place in reversed(places.tolist()):
            intent = data[place : place + INTENT_SIZE]
            is_one = intent.startswith(INTENT_HEAD)
            if is_one and begin + place == members_begin(followed_offset(intent)) - INTENT_SIZE:
                yield intent


def is_marked(source: Source, end: End) -> bool:
    """Return whether an append behind an end is marked as complete."""
    return _behind(source, end) == Behind.COMPLETE


def _intent_behind(source: Source, end: End) -> bytes:
    """Return the bytes where the intent of an append behind an end is."""
    place = end.start_offset + members_begin(end.archive_size) - INTENT_SIZE
    return source.read_within(place, INTENT_SIZE)


def _is_left_over(source: Source, end: End, place: int) -> bool:
    """Return whether the end record at a place is what an append behind an end has left.

    It is that of a far copy; or the append was not cut off behind it; or the disk has lost a part
    of the append, whose directory lists members before the end.
    """
    size = int.from_bytes(source.read_at(place + _SIZE_OFFSET, 4), "little")
    if place - size > end.end_offset:
        far = _said_before(source, end.start_offset, place - size)
        if isinstance(far, Far) and (far.end_offset, far.end_crc32) == _followed(source, end):
            return True
    for other in placed_ends(source, [place], (end.start_offset,)):
        entry = source.read_at(other.directory_offset, CENTRAL_ENTRY_SIZE)
        is_older = int.from_bytes(entry[-4:], "little") + other.base < end.record_offset
        has_older = is_older and entry.startswith(CENTRAL_ENTRY_SIGNATURE)
        return has_older or _is_uncommitted(source, other)
    return False


def _is_uncommitted(source: Source, end: End) -> bool:
    """Return whether an end is a far copy's, or an append's that was not cut off behind it."""
    return end.record.comment == FAR_COMMENT or _is_pending(source, end)


def _behind(source: Source, end: End) -> str:
    """Return what the bytes behind an end are."""
    data = source.read_within(end.end_offset, _BEHIND_SIZE)
    return read_behind(data, *_followed(source, end))


def _archive_begin(source: Source, place: int, *, is_empty_read: bool) -> int | None:
    """Return where others begin to read an archive of which they find the end record at `place`."""
    begin = max(place - ZIP64_RECORDS_SIZE, 0)
    data = source.read_at(begin, place + END_SIZE - begin)
    columns = _read_claims(data, np.array([place - begin]))
    claims = _Claims._make(column.item() % (1 << 64) for column in columns)
    directory = place - claims.records64_size - claims.directory_size
    if directory < 0:
        return None
    if claims.directory_size == 0:
        # Of an end record that the disk lost a part of, zeros may be left.
        is_read = is_empty_read
    else:
        is_read = source.read_at(directory, 4) == CENTRAL_ENTRY_SIGNATURE
    return int(place - claims.distance) if is_read else None


def check_comment_end(source: Source, end: End, footer: Footer | None) -> None:
    """Raise if what follows an end is metadata, or what is left of it: the size is damaged."""
    size = 0 if footer is None else footer.comment_size - len(end.record.comment)
    room = source.size - end.end_offset
    if not (size and room):
        return
    rest = source.read_within(end.end_offset, max(size, 0))
    # Another program that changes a comment leaves nothing behind it, and an append follows it.
    is_foreign = _behind(source, end) == Behind.FOREIGN
    # The comment that is missing fills the file, or all that is left of it is zeros.
    is_comment = size == room or (size == len(rest) and not rest.strip(b"\0"))
    if is_foreign or is_comment:
        raise damaged_commit(source, end.record_offset, end.record_offset)


def _followed(source: Source, end: End) -> tuple[int, int]:
    """Return what the intent of an append says of the end that it follows."""
    crc = crc32(source.read_at(end.records_offset, end.end_offset - end.records_offset))
    return end.archive_size, crc


def appends_behind(source: Source, end: End, older: End) -> bool:
    """Return whether an end is that of an append behind another end, whose size is damaged then."""
    footer = footer_before(source, end)
    if isinstance(footer, Far):
        return end.start_offset + footer.end_offset > older.record_offset
    place = 0 if footer is None else end.start_offset + footer.intent_offset
    return older.record_offset < place and is_intent(source.read_at(place, INTENT_SIZE))


# -- what is said of it ------------------------------------------------------------


def damaged_commit(source: Source, start: int, offset: int, end: int = 0) -> ZipFormatError:
    """Return the error for a damaged commit behind `start`, whose end should be at `offset`.

    `end` is where the file ended then, or at least what precedes that.
    """
    if end > source.size:
        return cut_off(source, end)
    return ZipFormatError(
        "the end record or the directory of the last commit is damaged",
        offset=offset,
        found=f"a commit behind byte {start} that does not fit its checksums",
        expected="an end record that leads to its directory",
        remedy=SAVE_SOUND
        + " saves the newest state; "
        + REPAIR
        + " writes its directory again, at the end of the file.",
    )


def end_missing(source: Source, footer: Footer) -> ZipFormatError:
    """Return the error for an archive that has a footer, and no end that fits."""
    at = footer.directory_offset + footer.directory_size
    return damaged_commit(source, 0, at, archive_end(footer))


def archive_end(footer: Footer) -> int:
    """Return where an archive ended when its footer was written."""
    size, offset = footer.directory_size, footer.directory_offset
    records = end_bytes(footer.entry_count, size, offset, b"", b"")
    return offset + size + sum(map(len, records)) + footer.comment_size


def find_footers(source: Source, starts: Sequence[int]) -> Iterator[Footer]:
    """Yield the footers in a file whose archive is at one of `starts`, last first."""
    size = len(FOOTER_MAGIC)
    for begin, data, places in places_before(source, source.size, FOOTER_MAGIC, FOOTER_SIZE, size):
        for end in reversed((places + size).tolist()):
            for start in starts:
                footer = parse_footer(data[max(end - FOOTER_SIZE, 0) : end], begin + end - start)
                if isinstance(footer, Footer):
                    yield footer


def another_archive(
    source: Source,
    end_offset: int,
    saved: str = "the arrays of both archives; if both have a key, the second one's",
) -> AmbiguousArchiveError:
    """Return the error for an archive that follows the end of another one."""
    return AmbiguousArchiveError(
        "another end of central directory record follows the end of the archive",
        offset=end_offset,
        found=f"{source.size - end_offset} bytes with an end record",
        expected="the end of the file",
        remedy="Programs would read different members from it. " + SAVE_SOUND + f" saves {saved}.",
    )


def report_tail(source: Source, end_offset: int, *, strict: bool) -> None:
    """Warn about what follows the last commit; in `strict`, raise."""
    size = source.size - end_offset
    if strict:
        raise ZipFormatError(
            "the archive has a torn end",
            offset=end_offset,
            found=f"{size} bytes after its last complete end record",
            expected="none",
            remedy="Open it without strict=True to read what was committed.",
        )
    warn(
        f"{size} bytes follow the end of the archive: an append was not finished, or something "
        "else was added. The last commit before them is read. "
        + Advice("npzkit.verify(path)", "npzkit verify FILE")
        + " says what to do.",
        TornArchiveWarning,
    )
