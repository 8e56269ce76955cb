"""The bytes after the last end record that fits: an unfinished append, or damage.

Owns the search for that record in a file that does not end with one, and the
walk over what follows it, by its own records. An append leaves members, then a
directory, then an end record whose signature is written last. A walk that ends
within a member or a directory, or at an end record without its signature, has
found an unfinished append. A walk that reaches a complete end record has found
a damaged commit: no older state is read in its place.

Parses no entry, and trusts only values that it can compare. All work is linear
in the file's size. Records are checked by the thousand with numpy, because a
hostile file may hold one every 22 bytes.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npzkit.errors import (
    AmbiguousArchiveError,
    TornArchiveWarning,
    UnsupportedError,
    ZipFormatError,
    warn,
)
from npzkit.files.source import Source
from npzkit.limits import MAX_DEPTH, nests_deeper
from npzkit.zip.end_record import COMMENT_MAX_SIZE, End, place_end
from npzkit.zip.extra_fields import iter_extra
from npzkit.zip.local_header import LOCAL_FIELDS, header_end, resolve_sizes
from npzkit.zip.records import (
    CENTRAL_ENTRY_SIGNATURE,
    CENTRAL_ENTRY_SIZE,
    END_SIGNATURE,
    END_SIZE,
    ENTRY_SIZES,
    FLAG_DESCRIPTOR,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    SENTINEL_32,
    ZIP64_END_SIGNATURE,
    ZIP64_END_SIZE,
    ZIP64_LOCATOR_SIGNATURE,
    ZIP64_LOCATOR_SIZE,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Tail", "TailKind", "another_archive", "damaged_commit", "find_commits", "read_tail",
    "report_torn",
]  # fmt: skip

_SCAN_SIZE = 1 << 22
"""Bytes searched at a time for the last commit."""
_WINDOW_SIZE = 1 << 16
"""Bytes read at a time by the walk."""
_SECTOR_SIZE = 512
"""The smallest piece that a disk writes or loses."""
_COMMIT_COUNT = 1000
"""End records that are tried: of those whose numbers fit a real file's first one is
its last, and few commits are damaged."""
_RECORDS64_SIZE = ZIP64_END_SIZE + ZIP64_LOCATOR_SIZE
_LAST_SIZE = END_SIZE + COMMENT_MAX_SIZE
"""Bytes at the end of a file in which other programs look for an end record."""
_CONTROL_CHARACTER = re.compile(rb"[\x00-\x1f\x7f]")
_BEGINNINGS = (
    LOCAL_HEADER_SIGNATURE,
    CENTRAL_ENTRY_SIGNATURE,
    ZIP64_END_SIGNATURE,
    END_SIGNATURE,
)


class TailKind(Enum):
    """What the bytes after an end record are."""

    TORN = "an append that was not finished"
    DAMAGED = "a commit whose end record or directory is damaged"
    ARCHIVE = "another archive, or an end record that other programs take"
    JUNK = "no record"


class Tail(NamedTuple):
    """What the walk found.

    Attributes
    ----------
    kind : TailKind
    offset : int
        The record that decided: of a damaged commit its end record, if that is known.
    directory_offset : int
        Where the directory begins that it came to; -1 without any.
    directory_end : int
        Where the entries end that could be walked over.
    """

    kind: TailKind
    offset: int
    directory_offset: int = -1
    directory_end: int = -1


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
    lead = _RECORDS64_SIZE
    high = end
    while high > 0:
        low = max(high - _SCAN_SIZE, 0)
        begin = max(low - lead, 0)
        data = source.read_at(begin, min(high + END_SIZE - 1, end) - begin)
        found = _find_records(data, low - begin)
        fits = np.isin(begin + found - _read_claims(data, found).distance, bases)
        fits &= begin + found + END_SIZE + _fields(data, found + 20, "<u2") <= end
        yield from reversed((begin + found[fits]).tolist())
        high = low


def _find_records(data: bytes, low: int) -> NDArray[np.int64]:
    """Return where in `data`, from `low` on, an end signature has room for its record."""
    raw = np.frombuffer(data, np.uint8)
    found = np.flatnonzero(raw[low : max(len(raw) - END_SIZE + 1, low)] == END_SIGNATURE[0]) + low
    for index in range(1, 4):
        found = found[raw[found + index] == END_SIGNATURE[index]]
    return found


class _Claims(NamedTuple):
    """What end records say, with zip64 values in place: one record, or a column of each."""

    entry_count: Any
    directory_size: Any
    directory_offset: Any
    records64_size: Any

    @property
    def distance(self) -> Any:
        """How far from its archive's start the record says that it is."""
        return self.directory_size + self.directory_offset + self.records64_size


def _read_claims(data: bytes, found: NDArray[np.int64]) -> _Claims:
    """Return columns of what the end records at `found` say."""
    locators = np.maximum(found - ZIP64_LOCATOR_SIZE, 0)
    signature = int.from_bytes(ZIP64_LOCATOR_SIGNATURE, "little")
    has64 = (found >= _RECORDS64_SIZE) & (_fields(data, locators, "<u4") == signature)
    records64 = found[has64] - _RECORDS64_SIZE
    places = ((10, "<u2", 32), (12, "<u4", 40), (16, "<u4", 48))
    columns: list[Any] = []
    for place, dtype, place64 in places:
        column = _fields(data, found + place, dtype)
        column[has64] = _fields(data, records64 + place64, "<u8")
        columns.append(column)
    return _Claims._make([*columns, has64 * np.int64(_RECORDS64_SIZE)])


def _fields(data: bytes, offsets: NDArray[np.int64], dtype: str) -> NDArray[np.int64]:
    """Return the unsigned integers at `offsets`; those of 64 bits wrap."""
    width = np.dtype(dtype).itemsize
    raw = np.frombuffer(data, np.uint8)[offsets[:, None] + np.arange(width)]
    return np.ascontiguousarray(raw).view(dtype)[:, 0].astype(np.int64)


# -- what follows it ---------------------------------------------------------------


def read_tail(source: Source, start: int, comment: bytes = b"") -> Tail:
    """Return what the bytes between `start` and the end of the file are.

    Parameters
    ----------
    source : Source
    start : int
        Where the last fitting end record ends, or the file begins.
    comment : bytes
        That record's comment.
    """
    window = _Window(source)
    if start and _is_archive(source, window.last_record(start), start):
        return Tail(TailKind.ARCHIVE, start)
    found = _walk(window, start, start, comment)
    for _ in range(_COMMIT_COUNT):
        # Newer commits may follow a damaged one.
        after = _next_commit(window, found) if found.kind is TailKind.DAMAGED else None
        newer = None if after is None else _walk(window, start, after, b"")
        if newer is None or newer.kind is not TailKind.DAMAGED:
            break
        found = newer
    else:
        # No real file has so many. Which of them is the newest is not known.
        return Tail(TailKind.DAMAGED, found.offset)
    place = window.last_record(start)
    if found.kind is TailKind.TORN and place is not None and _is_own(source, place, start):
        return Tail(TailKind.DAMAGED, place)
    return found


def _is_own(source: Source, place: int, start: int) -> bool:
    """Whether the end record at `place` describes a directory after `start` in this file.

    That of an archive in an array counts from that archive's own first byte.
    Where bytes were lost or inserted, the directory is right before the record,
    or still where that says.
    """
    base = _base_of(source, place)
    if start < base:
        return False
    offset = int.from_bytes(source.read_at(place + 16, 4), "little")
    if offset == SENTINEL_32 and place >= _RECORDS64_SIZE:
        offset = int.from_bytes(source.read_at(place - _RECORDS64_SIZE + 48, 8), "little")
    # Counted from an archive's own first byte, or not all written yet, it is less.
    return offset >= start and any(
        start <= begin <= place - CENTRAL_ENTRY_SIZE
        and source.read_at(begin, 4) == CENTRAL_ENTRY_SIGNATURE
        for begin in (offset, base + offset)
    )


def _next_commit(window: _Window, tail: Tail) -> int | None:
    """Return where more records follow a damaged end record, if they do."""
    record = window.at(tail.offset, END_SIZE)
    if tail.directory_offset < 0 or len(record) < END_SIZE:
        return None
    after = tail.offset + END_SIZE + int.from_bytes(record[-2:], "little")
    is_followed = window.at(after, 4) in (LOCAL_HEADER_SIGNATURE, CENTRAL_ENTRY_SIGNATURE)
    return after if is_followed else None


def _walk(window: _Window, start: int, position: int, comment: bytes) -> Tail:
    """Go from record to record until one decides what they are; see `read_tail`."""
    while position < window.size:
        head = window.at(position, LOCAL_HEADER_SIZE)
        if head.startswith(LOCAL_HEADER_SIGNATURE):
            try:
                end = _member_end(window, head, position)
            except ZipFormatError:
                return _read_break(window, start, position, is_begun=True)
            if end is None:
                return Tail(TailKind.TORN, position)
            position = end
        elif head.startswith(_BEGINNINGS[1:]):
            return _read_end(window, start, position)
        elif any(signature.startswith(head) for signature in _BEGINNINGS):
            return Tail(TailKind.TORN, position)
        else:
            is_begun = position > start or _is_hole(window, position)
            if not is_begun and _completes_json(window.source, comment, start):
                return Tail(TailKind.DAMAGED, start - len(comment) - END_SIZE)
            return _read_break(window, start, position, is_begun=is_begun)
    return Tail(TailKind.TORN, position)


class _Window:
    """Part of a file, read ahead by the walk.

    Attributes
    ----------
    source : Source
    size : int
        Of the file.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.size = source.size
        self._start, self._data = 0, b""

    def at(self, offset: int, size: int) -> bytes:
        """Return the bytes at `offset`; fewer at the end of the file."""
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        if not self._start <= offset <= self._start + len(self._data) - size:
            self._start = offset
            room = self.size - offset
            self._data = self.source.read_at(offset, min(max(size, _WINDOW_SIZE), room))
        return self._data[offset - self._start : offset - self._start + size]

    def last_record(self, low: int) -> int | None:
        """Return where the last end record begins, if other programs find it after `low`."""
        return self._last if self._last is not None and self._last >= low else None

    @functools.cached_property
    def _last(self) -> int | None:
        low = max(self.size - _LAST_SIZE, 0)
        data = self.source.read_at(low, self.size - low)
        place = data.rfind(END_SIGNATURE, 0, max(len(data) - END_SIZE + len(END_SIGNATURE), 0))
        return low + place if place >= 0 else None


def _member_end(window: _Window, head: bytes, position: int) -> int | None:
    """Return where the member at `position` ends; None if it extends to the end of the file.

    A deflated member, and an array, has bytes: until its size is known, its
    header says that it has none.

    Raises
    ------
    ZipFormatError
        It is no member that an append writes.
    """
    if len(head) < LOCAL_HEADER_SIZE:
        return None
    end = header_end(head)
    _, flags, method, _, compressed_size, size, name_size, _ = LOCAL_FIELDS.unpack(head)
    if position + end > window.size:
        return None
    names = window.at(position, end)
    name, extra = names[LOCAL_HEADER_SIZE:][:name_size], names[LOCAL_HEADER_SIZE + name_size :]
    if flags & FLAG_DESCRIPTOR:
        raise ZipFormatError("the member's size follows its data", offset=position)
    if _CONTROL_CHARACTER.search(name):
        # No key has such characters, but the records that a wrong size takes for a name.
        raise ZipFormatError("the member's name contains control characters", offset=position)
    list(iter_extra(extra))
    _, compressed_size = resolve_sizes(extra, size, compressed_size)
    if not compressed_size and (method or name.endswith(b".npy")):
        return None
    end += position + compressed_size
    return end if end <= window.size else None


def _read_end(window: _Window, start: int, offset: int) -> Tail:
    """Return what follows the directory at `offset`."""
    position = last_entry = offset
    while (head := window.at(position, CENTRAL_ENTRY_SIZE)).startswith(CENTRAL_ENTRY_SIGNATURE):
        is_whole = len(head) == CENTRAL_ENTRY_SIZE
        size = CENTRAL_ENTRY_SIZE + sum(ENTRY_SIZES.unpack_from(head, 28)) if is_whole else 0
        if not is_whole or position + size > window.size:
            last = window.last_record(position)
            kind = TailKind.TORN if last is None else TailKind.DAMAGED
            return Tail(kind, position if last is None else last, offset, position)
        last_entry, position = position, position + size
    place = _end_place(window, position)
    record = window.at(place, END_SIZE)
    # An entry that claims too much has the end record in it.
    last = window.last_record(last_entry)
    if (
        last is None
        and len(record) < END_SIZE
        and (position == offset or not record.startswith(END_SIGNATURE))
    ):
        # A few bytes of an empty directory do not prove a commit.
        return Tail(TailKind.TORN, place, offset, position)
    if record.startswith(END_SIGNATURE):
        is_other = bool(start) and _is_archive(window.source, place, start)
        return Tail(TailKind.ARCHIVE if is_other else TailKind.DAMAGED, place, offset, position)
    is_whole = len(record) == END_SIZE
    is_signed = is_whole and not _is_unsealed(record) and _tells(record, offset, position)
    if last is None and not is_signed:
        return Tail(TailKind.TORN, place, offset, position)
    return Tail(TailKind.DAMAGED, place if last is None else last, offset, position)


def _end_place(window: _Window, position: int) -> int:
    """Return where the end record is, or should be, of a directory that ends at `position`."""
    for place in (position, position + _RECORDS64_SIZE):
        if window.at(place, 4) == END_SIGNATURE:
            return place
    is_zip64 = window.at(position, 4) == ZIP64_END_SIGNATURE
    return position + _RECORDS64_SIZE if is_zip64 else position


def _is_unsealed(record: bytes) -> bool:
    """Whether an end record has not all bytes of its signature yet.

    Other bytes in their place were never written by an append.
    """
    found = record[: len(END_SIGNATURE)]
    is_part = all(byte in (0, right) for byte, right in zip(found, END_SIGNATURE, strict=False))
    # Its first bytes were written, or its last ones if a disk wrote two sectors in another order.
    return is_part and found.strip(b"\0") in END_SIGNATURE


def _tells(record: bytes, begin: int, end: int) -> bool:
    """Whether an end record describes the directory from `begin` to `end`.

    Its signature is not compared.
    """
    size: int
    offset: int
    size, offset = struct.unpack_from("<LL", record, 12)
    # Values that zip64's record has are not in this one.
    return size in (end - begin, SENTINEL_32) or offset in (begin, SENTINEL_32)


def _read_break(window: _Window, start: int, position: int, *, is_begun: bool) -> Tail:
    """Return what it means that no record begins at `position`.

    Bytes of an append that the disk lost read as zeros. An end record may still
    follow, if an array contains an archive. Any other one was a commit's.
    """
    # A part of the record may be in a member that claims too many bytes.
    place = window.last_record(max(position - END_SIZE + 1, start))
    if not is_begun:
        return Tail(TailKind.JUNK if place is None else TailKind.ARCHIVE, position)
    if place is None:
        return Tail(TailKind.TORN, position)
    base = _base_of(window.source, place)
    is_archive, is_hole = _is_archive(window.source, place, base), _is_hole(window, position)
    between = window.at(position, base - position) if position < base < place else b"?"
    if is_archive and not between.strip(b"\0"):
        # Two archives with nothing but zeros between them.
        return Tail(TailKind.ARCHIVE, position)
    # The disk may have lost all but the end of an archive in an array.
    is_inside = start < base and (is_archive or is_hole)
    return Tail(TailKind.TORN, position) if is_inside else Tail(TailKind.DAMAGED, place)


def _is_hole(window: _Window, position: int) -> bool:
    """Whether a local header at `position` never reached the disk, or its end did not.

    Zeros stand in the place of its signature, or in its name, up to the end of a sector.
    """
    found = window.at(position, len(LOCAL_HEADER_SIGNATURE))
    if found == LOCAL_HEADER_SIGNATURE:
        head, begin = window.at(position, LOCAL_HEADER_SIZE), position + LOCAL_HEADER_SIZE
        if len(head) < LOCAL_HEADER_SIZE:
            return True
        name = window.at(begin, LOCAL_FIELDS.unpack(head)[-2])
        if b"\0" not in name:
            return False
        lost = begin + name.index(b"\0")
        return not window.at(lost, _SECTOR_SIZE - lost % _SECTOR_SIZE).strip(b"\0")
    return all(
        byte in (0, expected) for byte, expected in zip(found, LOCAL_HEADER_SIGNATURE, strict=False)
    )


def _completes_json(source: Source, comment: bytes, start: int) -> bool:
    """Whether a comment with all that follows is metadata, of which the record cuts a part off."""
    size = source.size - start
    if size + len(comment) > COMMENT_MAX_SIZE:
        return False
    # Importing it takes longer than opening an archive does.
    import json

    text = comment + source.read_at(start, size)
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
    except RecursionError:
        if not nests_deeper(text, MAX_DEPTH):
            raise
        return False


def _claims_at(source: Source, place: int) -> _Claims:
    """Return what the end record at `place` says."""
    begin = max(place - _RECORDS64_SIZE, 0)
    data = source.read_at(begin, place + END_SIZE - begin)
    claims = _read_claims(data, np.array([place - begin]))
    return _Claims._make(column.item() for column in claims)


def _base_of(source: Source, place: int) -> int:
    """Return what the offsets of the record at `place` count from, if it is right.

    Negative if nothing in the file is that.
    """
    base: int = place - _claims_at(source, place).distance
    # A damaged zip64 record may give any number.
    return base if base <= place else -1


def _is_archive(source: Source, place: int | None, base: int) -> bool:
    """Whether the end record at `place` is that of an archive that begins at `base`."""
    if place is None or place + END_SIZE > source.size:
        return False
    # Its comment may extend past the end of the file, because other programs do not check that.
    claims = _claims_at(source, place)
    records, size = place - claims.records64_size, claims.directory_size
    if place - claims.distance != base or not 0 <= base <= place:
        return False
    if not claims.entry_count:
        return not size and base == records
    if not base <= records - size <= records - CENTRAL_ENTRY_SIZE:
        return False
    return (
        source.read_at(records - size, 4) == CENTRAL_ENTRY_SIGNATURE
        and source.read_at(base, 4) == LOCAL_HEADER_SIGNATURE
    )


# -- what is said of it ------------------------------------------------------------


def damaged_commit(start: int, tail: Tail) -> ZipFormatError:
    """Return the error for a damaged commit that follows `start`."""
    return ZipFormatError(
        "the end record or the directory of the last commit is damaged",
        offset=tail.offset,
        found=f"records from byte {start} on that no end record fits",
        expected="an end record that leads to its directory",
        remedy="npzkit.repair(path, output) saves the newest state; "
        "npzkit.repair(path) writes its directory again, at the end of the file.",
    )


def another_archive(source: Source, end_offset: int) -> AmbiguousArchiveError:
    """Return the error for an archive that follows the end of another one."""
    return AmbiguousArchiveError(
        "another end of central directory record follows the end of the archive",
        offset=end_offset,
        found=f"{source.size - end_offset} bytes with an end record",
        expected="the end of the file",
        remedy="Programs would read different members from it. Cut the file at this offset "
        "to keep the first archive, or there to keep the second.",
    )


def report_torn(source: Source, end_offset: int, *, strict: bool) -> None:
    """Warn about bytes that follow the last commit; in `strict`, raise."""
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
        "else was added. The last commit before them is read.",
        TornArchiveWarning,
    )
