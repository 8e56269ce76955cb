"""The central directory: found from the end of the archive, read in one pass.

Owns everything that is decided before a member is touched: that the end record
(`npzkit.zip.end`) and the entries (`npzkit.zip.entries`) belong together, which
of two members of one name counts, and what becomes of a torn end. Allocates
only what it has read.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from npzkit.codecs import crc32
from npzkit.errors import (
    AmbiguousArchiveError,
    AmbiguousArchiveWarning,
    LimitExceededError,
    NpzkitError,
    StaleArchiveError,
    TornArchiveWarning,
    UnsupportedError,
    ZipFormatError,
    warn,
)
from npzkit.limits import Limits
from npzkit.source import Source
from npzkit.zip.columns import parse_columns
from npzkit.zip.end import (
    COMMENT_MAX_SIZE,
    End,
    check_alone,
    describe,
    find_base,
    find_end,
    find_fitting,
    resolve_end,
    scan_ends,
)
from npzkit.zip.entries import Entry, parse_entries
from npzkit.zip.records import END_SIZE

__all__ = ["Directory", "Entry", "read_directory"]


_CANDIDATE_COUNT = 1000
"""End records tried in a torn archive; a real one has few that lead nowhere."""
_ATTEMPT_COUNT = 20
"""Times that a file is looked at which is cut off at that moment."""
_COLUMNS_COUNT = 64
"""Entries from which on columns are made: fewer are parsed sooner one by one."""


class Directory(NamedTuple):
    """What an archive says of itself.

    Attributes
    ----------
    entries : mapping of str to Entry
        By member name, in the directory's order; of equal names, the last.
        Entries of many are made when they are asked for.
    comment : bytes
        The archive's comment.
    directory_offset : int
        Where its central directory begins.
    end_offset : int
        Where the archive ends, behind the end record's comment.
    size : int
        Bytes of its entries.
    crc32 : int
        Of the same.
    start_offset : int
        Where the archive begins: behind other data, maybe.
    """

    entries: Mapping[str, Entry]
    comment: bytes
    directory_offset: int
    end_offset: int
    size: int
    crc32: int
    start_offset: int

    def resealed(self, entries: Mapping[str, Entry], source: Source) -> Directory:
        """Return it with entries whose CRCs were changed, here and in the file."""
        found = crc32(source.read_at(self.directory_offset, self.size))
        return self._replace(entries=entries, crc32=found)

    def is_kept(self, source: Source) -> bool:
        """Whether the directory is still where it was, members' CRCs and all.

        Behind it another one may be, of an append.
        """
        try:
            data = source.read_at(self.directory_offset, self.size)
        except StaleArchiveError:
            return False
        return crc32(data) == self.crc32


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
        Raise where a torn end or a repeated name would only warn.
    silent : bool, default False
        Do not warn: who opened the archive was told.
    limits : Limits
        ``member_count`` and ``total_size`` are checked here.

    Raises
    ------
    ZipFormatError
        No archive, or a damaged one.
    AmbiguousArchiveError
        Two end records fit; in `strict`, two members share a name.
    UnsupportedError
        The archive is split over several files.
    LimitExceededError
        More members, or more bytes in all, than `limits` allow.
    """
    for _ in range(_ATTEMPT_COUNT):
        try:
            return _find_and_read(source, starts, strict, limits, silent=silent)
        except StaleArchiveError:
            # A writer that gave up cut off what it had appended.
            source.refresh()
    return _find_and_read(source, starts, strict, limits, silent=silent)


def _find_and_read(
    source: Source, starts: Sequence[int], strict: bool, limits: Limits, *, silent: bool
) -> Directory:
    tail_offset = max(source.size - END_SIZE - COMMENT_MAX_SIZE, 0)
    tail = source.read_at(tail_offset, source.size - tail_offset)
    try:
        end = find_end(source, tail, tail_offset)
        if end is not None:
            find_base(source, end, starts)
    except (ZipFormatError, UnsupportedError, AmbiguousArchiveError) as error:
        if isinstance(error, AmbiguousArchiveError) and any(
            _is_end(source, offset, starts) for offset in find_fitting(tail, tail_offset)
        ):
            raise
        # An append may have been cut short behind an archive that lies in an array.
        directory = _read_last_commit(source, starts, strict, limits, silent=silent)
        if directory is None:
            raise
        return directory
    if end is not None:
        return _read(source, end, starts, strict, limits, silent=silent)
    directory = _read_last_commit(source, starts, strict, limits, silent=silent)
    if directory is None:
        meaning, remedy = describe(source)
        raise ZipFormatError(
            f"not a zip archive: {meaning}",
            found=source.read_at(0, min(source.size, 16)),
            expected="an end of central directory record",
            remedy=remedy,
        )
    return directory


def _is_end(source: Source, offset: int, starts: Sequence[int]) -> bool:
    """Whether the end record at `offset` leads to a directory of this file."""
    try:
        find_base(source, resolve_end(source, offset), starts)
    except (ZipFormatError, UnsupportedError):
        return False
    return True


def _read(
    source: Source,
    end: End,
    starts: Sequence[int],
    strict: bool,
    limits: Limits,
    *,
    silent: bool = False,
) -> Directory:
    """Check the end record against the file and read the entries it counts."""
    record = end.record
    if limits.member_count is not None and record.entry_count > limits.member_count:
        raise LimitExceededError(
            "the archive has too many members",
            found=record.entry_count,
            expected=f"at most {limits.member_count}",
            remedy="Raise Limits.member_count.",
        )
    start, base = find_base(source, end, starts)
    offset = record.directory_offset + base
    data = source.read_at(offset, record.directory_size)
    named, names = _parse(data, record.entry_count, base, start, offset)
    if len(named) < len(names) and (strict or not silent):
        _report_repeated(names, strict)
    if limits.total_size is not None:
        _check_total(named, limits.total_size)
    return Directory(named, record.comment, offset, end.end_offset, len(data), crc32(data), start)


def _parse(
    data: bytes, count: int, base: int, start: int, offset: int
) -> tuple[Mapping[str, Entry], Sequence[str]]:
    """Return the entries by name, and all names there are, repeated ones too."""
    if count >= _COLUMNS_COUNT:
        columns = parse_columns(data, count, base, start, offset)
        if columns is not None:
            return columns, columns.names
    entries = parse_entries(data, count, base, start, offset)
    return {entry.name: entry for entry in entries}, [entry.name for entry in entries]


def _check_total(entries: Mapping[str, Entry], limit: int) -> None:
    total = sum(entry.uncompressed_size for entry in entries.values())
    if total > limit:
        raise LimitExceededError(
            "the members take too many bytes uncompressed",
            found=total,
            expected=f"at most {limit}",
            remedy="Raise Limits.total_size.",
        )


def _report_repeated(names: Sequence[str], strict: bool) -> None:
    name = collections.Counter(names).most_common(1)[0][0]
    if strict:
        raise AmbiguousArchiveError(
            "a member's name occurs twice",
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


def _read_last_commit(
    source: Source, starts: Sequence[int], strict: bool, limits: Limits, *, silent: bool = False
) -> Directory | None:
    """Read the last complete directory of an archive with a torn end; None without any."""
    directory = _find_last_commit(source, starts, strict, limits, silent=silent)
    if directory is None:
        return None
    torn = source.size - directory.end_offset
    if not torn or (silent and not strict) or source.is_being_written():
        return directory
    if strict:
        raise ZipFormatError(
            "the archive has a torn end",
            offset=directory.end_offset,
            found=f"{torn} bytes behind its last complete end record",
            expected="none",
            remedy="Open it without strict=True to read what was committed.",
        )
    warn(
        f"{torn} bytes follow the end of the archive: an append was cut short, or something "
        "was added. What was committed before is read.",
        TornArchiveWarning,
    )
    return directory


def _find_last_commit(
    source: Source, starts: Sequence[int], strict: bool, limits: Limits, *, silent: bool
) -> Directory | None:
    """Try end records from the last to the first, in time linear in the file."""
    budget = 2 * source.size
    for end_offset in itertools.islice(scan_ends(source), _CANDIDATE_COUNT):
        try:
            end = resolve_end(source, end_offset)
            find_base(source, end, starts)
            budget -= end.record.directory_size
            if budget < 0:
                break
            directory = _read(source, end, starts, strict, limits, silent=silent)
        except (ZipFormatError, UnsupportedError):
            continue
        check_alone(source, end)
        return directory
    return None
