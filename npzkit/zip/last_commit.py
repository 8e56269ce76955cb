"""The end of an archive that does not end with a sound end record: torn, damaged, or joined.

Owns the search for the last end record that fits, and what the bytes behind it
mean. An append says in the file what it is (`npzkit.zip.commit`), so nothing is
inferred from members or directories. An append writes:

1. its *intent*, members, index, directory and end, whose first four bytes, the
   *seal*, are zeros; then the file is synced, if it is to be durable;
2. the *mark* in the intent; the seal; a sync, if it is to be durable.

What a crash leaves, with any of the sectors that were not synced:

=============================================  =========================================
written                                        read
=============================================  =========================================
nothing, a part, or all of 1                   the older commit, with a warning
of those, the intent's sector lost: zeros      the older commit, with a warning. If others
                                               would read an archive in one of its arrays,
                                               nothing is cut off: two archives that were
                                               joined with zeros between them look the same
1; a part of the mark                          the older commit, with a warning
1 and the mark; a part of the seal             the new commit, *rolled forward*: its end
                                               has the CRC-32 that the mark says
1 and the seal; with the mark, or without it   the new commit; the next writer adds the mark
=============================================  =========================================

What damage to one byte or sector of a complete append does:

=============================================  =========================================
damaged                                        read
=============================================  =========================================
the seal                                       the new commit, rolled forward
anything else in the end                       an error: the mark is there, and its CRC-32
                                               does not fit
the directory, the comment                     an error: the footer has their checksums
the intent, and no byte of the end             the new commit: the end is not looked behind
the intent and the end                         all behind the older end is zero: the older
                                               commit. An append that was lost looks the same
the end before, and the intent                 no fitting end with an unfinished append
                                               behind it is left: an error
=============================================  =========================================

Other programs leave other bytes behind an end: another archive, which they would
read instead, is an error; the rest is passed over with a warning. Without any
end that fits, the footer of a commit tells a damaged archive from a file
that is none.

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
    AmbiguousArchiveError,
    TornArchiveWarning,
    UnsupportedError,
    ZipFormatError,
    warn,
)
from npzkit.files.corrected_source import CorrectedSource
from npzkit.files.source import Source
from npzkit.zip.commit import (
    FOOTER_MAGIC,
    FOOTER_SIZE,
    INTENT_SIZE,
    Behind,
    Footer,
    Mark,
    is_intent,
    members_begin,
    parse_footer,
    read_behind,
)
from npzkit.zip.end_record import End, check_alone, cut_off, last_record, place_end
from npzkit.zip.entry_columns import Ints, places_before, windows_of
from npzkit.zip.member_layout import end_bytes
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIGNATURE,
    END_LAYOUT,
    END_SIGNATURE,
    END_SIZE,
    ZIP64_END_LAYOUT,
    ZIP64_END_SIGNATURE,
    ZIP64_LOCATOR_SIGNATURE,
    ZIP64_LOCATOR_SIZE,
    ZIP64_RECORDS_SIZE,
)

_COMMIT_COUNT = 1000
"""End records that are tried: of those whose numbers fit a real file's first one is
its last, and few commits are damaged."""
_BEHIND_SIZE = 1024
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
    source : Source
        The file with the seals that are missing.
    end : End
    unsealed : tuple of int
        Where a seal is missing, or damaged.
    damage : ZipFormatError or None
        Why the commit that follows it cannot be read: one that was complete.
    mark : Mark or None
        What that commit's intent says.
    is_joined : bool
        Whether another archive may follow, behind zeros: nothing is to be cut off.
    """

    source: Source
    end: End
    unsealed: tuple[int, ...] = ()
    damage: ZipFormatError | None = None
    mark: Mark | None = None
    is_joined: bool = False


# -- which record is the last that fits -------------------------------------------


def find_commits(source: Source, starts: Sequence[int], end: int) -> Iterator[End]:
    """Yield the end records before `end` that lie where their directory ends, last first.

    A record of an archive inside an array counts from that archive's own first
    byte, so its numbers do not fit this file, and it is passed over unread.
    """
    for offset in itertools.islice(_fitting_records(source, starts, end), _COMMIT_COUNT):
        try:
            yield place_end(source, offset, starts)
        except (ZipFormatError, UnsupportedError):
            continue


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
    end = next(find_commits(source, starts, source.size), None)
    if end is None:
        return None
    found = LastCommit(CorrectedSource(source), end)
    while found.end.end_offset < source.size and found.damage is None and not found.is_joined:
        newer = _next_commit(found, starts)
        if newer is None:
            break
        found = newer
    return found


def _next_commit(last: LastCommit, starts: Sequence[int]) -> LastCommit | None:
    """Return the commit that follows another one, or that one with what follows it instead.

    None if that is an unfinished append, or bytes that others read past, too.
    """
    source, end = last.source, last.end
    check_alone(source, end)
    data = source.read_at(end.end_offset, min(_BEHIND_SIZE, source.size - end.end_offset))
    kind, mark = read_behind(data, *_followed(source, end))
    if mark is not None:
        return _rolled_forward(last, mark, starts)
    if kind == Behind.DAMAGED:
        at = end.end_offset
        return last._replace(damage=damaged_commit(source, at, at, at + INTENT_SIZE))
    place = last_record(source)
    if place is None or place < end.end_offset:
        return None
    if kind == Behind.FOREIGN:
        raise another_archive(source, end.end_offset)
    begin = _archive_begin(source, place)
    if begin is None:
        return None
    if kind == Behind.ZEROS:
        return last._replace(is_joined=True)
    # An array in an unfinished append may contain an archive: the intent precedes it.
    if begin < end.start_offset + members_begin(end.end_offset - end.start_offset):
        raise another_archive(source, end.end_offset)
    return None


def _rolled_forward(last: LastCommit, mark: Mark, starts: Sequence[int]) -> LastCommit:
    """Return the commit that a mark describes, with its seal in place, if the rest is sound."""
    source, before = last.source, last.end
    begin, stop = (before.start_offset + at for at in (mark.records_offset, mark.end_offset))
    if before.end_offset <= begin <= stop - END_SIZE and stop <= source.size:
        data = bytearray(source.read_at(begin, stop - begin))
        seal = ZIP64_RECORDS_SIZE if data.startswith(ZIP64_END_SIGNATURE) else 0
        data[seal : seal + len(END_SIGNATURE)] = END_SIGNATURE
        if crc32(data) == mark.end_crc32:
            corrected = CorrectedSource(source)
            corrected.correct(begin + seal, END_SIGNATURE)
            try:
                end = place_end(corrected, begin + seal, starts)
            except ZipFormatError:
                pass
            else:
                return LastCommit(corrected, end, (*last.unsealed, begin + seal))
    damage = damaged_commit(source, before.end_offset, begin, stop)
    return last._replace(damage=damage, mark=mark)


def _archive_begin(source: Source, place: int) -> int | None:
    """Return where others begin to read an archive of which they find the end record at `place`."""
    begin = max(place - ZIP64_RECORDS_SIZE, 0)
    data = source.read_at(begin, place + END_SIZE - begin)
    columns = _read_claims(data, np.array([place - begin]))
    claims = _Claims._make(column.item() % (1 << 64) for column in columns)
    directory = place - claims.records64_size - claims.directory_size
    if directory < 0:
        return None
    is_read = claims.directory_size == 0 or source.read_at(directory, 4) == CENTRAL_ENTRY_SIGNATURE
    return int(place - claims.distance) if is_read else None


def check_comment_end(source: Source, end: End, footer: Footer | None) -> None:
    """Raise if what follows an end is metadata, or what is left of it: the size is damaged."""
    size = 0 if footer is None else footer.comment_size - len(end.record.comment)
    room = source.size - end.end_offset
    if not (size and room):
        return
    behind = source.read_at(end.end_offset, min(_BEHIND_SIZE, room))
    rest = source.read_at(end.end_offset, min(max(size, 0), room))
    # Another program that changes a comment leaves nothing behind it, and an append follows it.
    is_foreign = read_behind(behind, *_followed(source, end))[0] == Behind.FOREIGN
    # The comment that is missing fills the file, or all that is left of it is zeros.
    is_comment = size == room or (size == len(rest) and not rest.strip(b"\0"))
    if is_foreign or is_comment:
        raise damaged_commit(source, end.record_offset, end.record_offset)


def _followed(source: Source, end: End) -> tuple[int, int]:
    """Return what the intent of an append says of the end that it follows."""
    crc = crc32(source.read_at(end.records_offset, end.end_offset - end.records_offset))
    return end.end_offset - end.start_offset, crc


def appends_behind(source: Source, end: End, older: End) -> bool:
    """Return whether an end is that of an append behind another end, whose size is damaged then."""
    start, offset = end.start_offset, end.records_offset - end.record.directory_size
    lead_size = min(FOOTER_SIZE, offset - start)
    footer = parse_footer(source.read_at(offset - lead_size, lead_size), offset - start)
    place = 0 if footer is None else start + footer.intent_offset
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
        remedy="npzkit.repair(path, output) saves the newest state; "
        "npzkit.repair(path) writes its directory again, at the end of the file.",
    )


def end_missing(source: Source, footer: Footer) -> ZipFormatError:
    """Return the error for an archive whose last footer is there, and no end that fits."""
    at = footer.directory_offset + footer.directory_size
    return damaged_commit(source, 0, at, archive_end(footer))


def archive_end(footer: Footer) -> int:
    """Return where an archive ended when its footer was written."""
    size, offset = footer.directory_size, footer.directory_offset
    records = end_bytes(footer.entry_count, size, offset, b"", b"")
    return offset + size + sum(map(len, records)) + footer.comment_size


def find_last_footer(source: Source, starts: Sequence[int]) -> Footer | None:
    """Return the last footer in a file whose archive is at one of `starts`; None without one."""
    size = len(FOOTER_MAGIC)
    for begin, data, places in places_before(source, source.size, FOOTER_MAGIC, FOOTER_SIZE, size):
        for end in reversed((places + size).tolist()):
            for start in starts:
                footer = parse_footer(data[max(end - FOOTER_SIZE, 0) : end], begin + end - start)
                if footer is not None:
                    return footer
    return None


def another_archive(
    source: Source, end_offset: int, saved: str = "the arrays of both archives"
) -> AmbiguousArchiveError:
    """Return the error for an archive that follows the end of another one."""
    return AmbiguousArchiveError(
        "another end of central directory record follows the end of the archive",
        offset=end_offset,
        found=f"{source.size - end_offset} bytes with an end record",
        expected="the end of the file",
        remedy="Programs would read different members from it. "
        f"npzkit.repair(path, output) saves {saved}.",
    )


def report_tail(source: Source, last: LastCommit, *, strict: bool) -> None:
    """Warn about what follows the last commit, or its missing seal; in `strict`, raise."""
    end_offset = last.end.end_offset
    size = source.size - end_offset
    if strict:
        raise ZipFormatError(
            "the archive has a torn end",
            offset=end_offset if size else last.unsealed[-1],
            found=f"{size} bytes after its last complete end record" if size else "no seal",
            expected="none" if size else END_SIGNATURE,
            remedy="Open it without strict=True to read what was committed.",
        )
    what = (
        f"{size} bytes follow the end of the archive: an append was not finished, or something "
        "else was added. The last commit before them is read."
        if size
        else "the last append wrote everything but the signature of its end record, or that was "
        "damaged. It is read as committed; npzkit.repair(path) and the next writer complete it."
    )
    warn(what, TornArchiveWarning)
