"""Making a damaged archive whole again.

Owns what is cut off, what is saved and what is said of it. Where members are
found without a directory is `npzkit.zip.header_scan`'s, whether one is sound
`npzkit.maintenance.verify`'s.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from npzkit.errors import NpzkitError, ZipFormatError, printable, shown_key
from npzkit.files.disk import File
from npzkit.files.locking import FileLock, check_timeout, lock_path
from npzkit.files.parallel import thread_count
from npzkit.files.path_sink import PathSink, open_sink
from npzkit.files.progress import Advance, Meter, Report
from npzkit.files.source import Source, open_source
from npzkit.limits import Limits
from npzkit.maintenance.truncated import RowsLeft, find_rows, is_seen_cut
from npzkit.maintenance.verify import has_wrong_index, member_error, read_size
from npzkit.members.info import format_count
from npzkit.members.keys import keys_of
from npzkit.members.metadata import parse_attrs
from npzkit.reading.flush import complete_flushes
from npzkit.reading.member import MemberReader
from npzkit.writing.copy import copy_member, rename_entry
from npzkit.zip.damaged_directory import NewestState, find_newest, plain_comment
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import (
    BAD_NAME,
    Entry,
    accepting_name,
    name_error,
    parse_entries,
    usable_name,
)
from npzkit.zip.extra import KEY_VALUE_PAIRS_ID, foreign_extra
from npzkit.zip.header_scan import (
    Allowance,
    CorrectedSource,
    Found,
    HeaderScan,
    find_comment,
    find_member,
    is_followed,
    possible_headers,
)
from npzkit.zip.raw_entries import record_of
from npzkit.zip.records import LOCAL_HEADER_SIGNATURE
from npzkit.zip.writer import ZipWriter

__all__ = ["Lost", "RepairReport", "repair"]

_SHOWN_COUNT = 10
"""Keys that the printed report names of those that are not certain."""
_KNOWN_SIZE = 1 << 16
"""Bytes at the end of a file by which it is known again before it is written to."""


class Lost(NamedTuple):
    """A member that was found and could not be saved, or not whole.

    Attributes
    ----------
    key : str
    what : str
        What is wrong with it.
    where : int
        Bytes from the start of the damaged file.
    """

    key: str
    what: str
    where: int


class RepairReport(NamedTuple):
    """What became of an archive.

    Attributes
    ----------
    output : str
        The path of the archive that is whole.
    kept : tuple of str
        The keys it has.
    lost : tuple of Lost
        What was there and is not in it, or not whole.
    cut_size : int
        Bytes of an append that was never completed, which are not in it.
    is_rebuilt : bool
        Whether the newest directory was lost, or a part of it, and members were
        looked for by their own headers.
    uncertain : tuple of str
        Keys among those kept that no part of the newest directory confirms: the
        arrays are sound, but may have been removed or renamed by then.
    sealed : tuple of str
        The keys of arrays whose flush through a map was interrupted, and is
        completed: their CRC-32 is that of their data.
    """

    output: str
    kept: tuple[str, ...]
    lost: tuple[Lost, ...] = ()
    cut_size: int = 0
    is_rebuilt: bool = False
    uncertain: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the report as what JSON can express."""
        lost = [row._asdict() for row in self.lost]
        lists = {name: list(getattr(self, name)) for name in ("kept", "uncertain", "sealed")}
        return {**self._asdict(), **lists, "lost": lost}

    def to_json(self, **options: Any) -> str:
        """Return the report as JSON; `options` are those of `json.dumps`."""
        import json

        return json.dumps(self.as_dict(), **options)

    def __str__(self) -> str:
        lines = [f"{printable(self.output)}: {format_count(len(self.kept), 'member')} kept"]
        if self.is_rebuilt:
            lines.append("the directory was lost: members were found by their own headers")
        lines += self._doubts()
        if self.cut_size:
            lines.append(f"{self.cut_size:,} bytes of an unfinished append left out")
        lines += [f"interrupted flush completed: {shown_key(key)}" for key in self.sealed]
        lines += [
            f"lost: {shown_key(lost.key)} (at byte {lost.where}): {printable(lost.what)}"
            for lost in self.lost
        ]
        return "\n".join(lines)

    def _doubts(self) -> list[str]:
        """Return the lines that say what is not certain."""
        told = "may have been removed or renamed in the part that was lost"
        if not self.uncertain:
            return []
        if self.uncertain == self.kept:
            return [f"not certain: any of them {told}"]
        lines = [f"not certain: {format_count(len(self.uncertain), 'array')} {told}:"]
        lines += [f"  {shown_key(key)}" for key in self.uncertain[:_SHOWN_COUNT]]
        if len(self.uncertain) > _SHOWN_COUNT:
            lines.append(f"  and {len(self.uncertain) - _SHOWN_COUNT} more")
        return lines


def repair(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    partial: bool = False,
    uncommitted: bool = False,
    limits: Limits | None = None,
    threads: int | None = None,
    lock_timeout: float | None = None,
    progress: Report | None = None,
) -> RepairReport:
    """Make a damaged archive whole, as far as its data allows.

    Without `output`, the end of the file is repaired. What an unfinished append
    left behind the last commit is cut off. If the last commit's end record or
    directory is damaged, a new directory is written behind what is there, and
    nothing is cut off. A flush of a map that was interrupted is completed: a
    stored array whose two headers have different CRC-32s gets the one that is
    that of its data. If neither is, the array is left as it is and reported as
    lost. A file with none of these faults is not touched.

    With `output`, every member that can be read and whose data has its CRC-32
    is copied there with its attributes. If the directory is lost, members are
    found by their own headers. A member whose own header is damaged is sound
    if its data fits its entry in the directory.

    Parameters
    ----------
    path : path
    output : path, optional
        A file there is replaced when the new one is complete. It may be `path`
        itself: then what could not be saved is gone for good.
    partial : bool, default False
        Keep the whole rows of an array whose member was cut short, under its
        key. The CRC-32 is of the whole: nothing tells whether they are right.
    uncommitted : bool, default False
        Keep sound members that lie behind the last commit too: those of an
        append that was never completed, or whose directory is damaged.
    limits : Limits, optional
        What members are checked against.
    threads : int, optional
        None takes the processors there are.
    lock_timeout : float, optional
        Seconds to wait where another writer has the file.
    progress : callable, optional
        Called with the bytes done and those there are: twice the file's size,
        which is checked first and copied then. Not called where no array is read.

    Returns
    -------
    RepairReport
        Without `output` it says nothing about the arrays, which are not read:
        `npzkit.verify` checks them.

    Raises
    ------
    ZipFormatError, AmbiguousArchiveError, UnsupportedError
        Without `output`: no archive is there, not even one that was committed
        before. With it: no member was found.
    ArchiveLockedError
        Another writer has the file: what it writes is no damage.
    OSError
        A file cannot be read or written.

    Examples
    --------
    >>> import os, tempfile, npzkit, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "a.npz")
    >>> npzkit.save(path, {"x": np.arange(3), "y": np.arange(1000)})
    >>> with open(path, "ab") as file:
    ...     _ = file.write(b"half an array")
    >>> npzkit.repair(path).cut_size
    13
    >>> os.truncate(path, 4000)
    >>> print(npzkit.repair(path, path, partial=True))  # doctest: +ELLIPSIS
    /...a.npz: 2 members kept
    the directory was lost: members were found by their own headers
    not certain: any of them may have been removed or renamed in the part that was lost
    lost: y (at byte ...): cut short: its first ... of 1000 rows are kept, ...
    """
    path = os.fsdecode(path)
    if "\0" in path:
        # No path has a NUL; an archive's contents do.
        raise TypeError("npzkit.repair takes a path: write the bytes to a file first")
    bounds = Limits() if limits is None else limits
    count = thread_count(threads)
    with (
        lock_path(path, check_timeout(lock_timeout)) as lock,
        contextlib.ExitStack() as stack,
    ):
        source = open_source(path)
        stack.callback(source.close)
        source.is_locked = True
        try:
            if output is None:
                return _repair_end(path, source, lock, bounds, count, progress)
            output = os.fsdecode(output)
            salvage = _Salvage(
                source, bounds, count, progress, partial=partial, uncommitted=uncommitted
            )
            is_same = os.path.exists(output) and os.path.samefile(path, output)
            # One file is locked once, by whichever of its names.
            sink = PathSink(os.path.abspath(output), lock=lock) if is_same else open_sink(output)
            return salvage.write(sink, output)
        except NpzkitError as error:
            raise error.locate(path=path) from error.__cause__


def _repair_end(
    path: str,
    source: Source,
    lock: FileLock,
    limits: Limits,
    threads: int,
    progress: Report | None,
) -> RepairReport:
    """Cut off an unfinished append, or write a damaged commit's directory again."""
    try:
        directory = read_directory(source, silent=True, limits=Limits())
    except ZipFormatError as error:
        newest = find_newest(source)
        is_known = newest.is_complete or (newest.is_commit and newest.last is not None)
        # Nothing reads an archive that begins with anything but a member.
        is_archive = source.read_at(0, min(4, source.size)) == LOCAL_HEADER_SIGNATURE
        if is_known and is_archive:
            salvage = _Salvage(source, limits, threads, progress, partial=False, uncommitted=False)
            return salvage.relist(newest, path, lock)
        if is_archive or newest.entries:
            error.remedy = (
                "Save what can be read: npzkit.repair(path, output=other), "
                "at a prompt npzkit repair FILE -o OTHER."
            )
        raise
    return _cut(path, source, directory, threads)


def _cut(path: str, source: Source, directory: Directory, threads: int) -> RepairReport:
    """Cut off what lies behind the last commit, and complete flushes of maps."""
    cut_size = source.size - directory.end_offset
    if cut_size:
        file = File(path)
        try:
            file.truncate(directory.end_offset)
            file.sync()
        finally:
            file.close()
    keys = dict(zip(directory.entries, keys_of(directory.entries.keys()), strict=True))
    sealed, left = complete_flushes(source, directory, threads)
    lost = tuple(Lost(keys[one.entry.name], str(one), one.entry.header_offset) for one in left)
    return RepairReport(
        path, tuple(keys.values()), lost, cut_size, sealed=tuple(keys[name] for name in sealed)
    )


class _Salvage:
    """What can be saved of one file, found first and written then."""

    def __init__(
        self,
        source: Source,
        limits: Limits,
        threads: int,
        progress: Report | None,
        *,
        partial: bool,
        uncommitted: bool,
    ) -> None:
        self._source = source = CorrectedSource(source)
        self._reader = MemberReader(source, limits, allow_pickle=False, pickle_kwargs=None)
        self._threads = threads
        # The file is checked first, and copied then.
        self._meter = Meter(progress, 2 * source.size)
        self._partial, self._uncommitted = partial, uncommitted
        self._sound: dict[str, Entry | RowsLeft] = {}
        self._lost: list[tuple[str, str, int]] = []
        self._allowance = Allowance(source.size)
        # Up to where a member that is not sound claims the file.
        self._claimed_end = 0
        self._claimed: set[str] = set()
        # Where members lie whose seek index leads elsewhere.
        self._misled: set[int] = set()

    def write(self, sink: Any, output: str) -> RepairReport:
        """Find what there is, and write it."""
        try:
            directory = _directory_of(self._source)
            if directory is None:
                newest = find_newest(self._source)
                self._find(newest)
                comment, cut_size = newest.comment or find_comment(self._source), 0
            else:
                newest = None
                self._check(directory.entries)
                comment, cut_size = directory.comment, self._source.size - directory.end_offset
                self._look_behind(directory.end_offset, keep=self._uncommitted)
            self._check_any()
            self._give_usable_names()
            writer = ZipWriter(sink)
            self._copy(writer)
            self._source.close()
            writer.commit(plain_comment(comment))
            sink.close()
        except BaseException:
            sink.abort()
            raise
        return self._report(list(self._sound), output, cut_size, newest)

    def relist(self, newest: NewestState, path: str, lock: FileLock) -> RepairReport:
        """Write the newest state's directory behind what is in the file.

        Raises
        ------
        ZipFormatError
            Its members would overlap. Nothing was written.
        """
        listed = newest.listed(self._source)
        if not newest.is_complete:
            self._find(newest)
            entries = {**(newest.last.entries if newest.last else {}), **newest.entries}
            places = {(name, entry.header_offset) for name, entry in entries.items()}
            # What cannot be read stays listed: in its place nothing is lost.
            self._lost = [lost for lost in self._lost if (lost[0], lost[2]) not in places]
        sound = {name: one for name, one in self._sound.items() if isinstance(one, Entry)}
        for name, entry in sound.items():
            # What lies behind the last commit is newer than what that lists.
            is_newer = entry.header_offset >= newest.end_offset and name not in newest.records
            if is_newer or name not in listed:
                listed[name] = record_of(entry)
        size = self._source.size
        parse_entries(b"".join(listed.values()), len(listed), 0, 0, size)
        self._source.close()
        sink = PathSink(path, resume=True, durable=True, lock=lock)
        try:
            sink.resume(size, min(size, _KNOWN_SIZE))
            ZipWriter(sink, listed).commit(newest.comment)
            sink.close()
        except BaseException:
            sink.abort()
            raise
        self._meter.finish()
        return self._report(list(listed), path, 0, newest)

    def _copy(self, writer: ZipWriter) -> None:
        """Write what is sound."""
        done = self._source.size
        for found in self._sound.values():
            if isinstance(found, RowsLeft):
                found.write(self._source, writer)
            else:
                indexed = found.header_offset not in self._misled
                part = self._meter.part(found.compressed_size, start=done)
                renamed = rename_entry(found, found.name) if found.flags & BAD_NAME else None
                copy_member(
                    self._source, found, writer, renamed=renamed, indexed=indexed, advance=part.add
                )
                done += found.compressed_size
        self._meter.finish()

    def _report(
        self, names: list[str], output: str, cut_size: int, newest: NewestState | None
    ) -> RepairReport:
        # A key is how a member is called among the others.
        all_names = dict.fromkeys([*names, *(name for name, _, _ in self._lost)])
        keys = dict(zip(all_names, keys_of(all_names.keys()), strict=True))
        lost = tuple(Lost(keys[name], what, where) for name, what, where in self._lost)
        kept = tuple(keys[name] for name in names)
        if newest is None or newest.is_complete:
            return RepairReport(output, kept, lost, cut_size)
        uncertain = tuple(keys[name] for name in names if name not in newest.entries)
        return RepairReport(output, kept, lost, cut_size, True, uncertain)

    def _find(self, newest: NewestState) -> None:
        """Sort the members of an archive whose end is damaged."""
        if newest.is_complete:
            self._check(newest.entries)
            return
        if newest.last is None:
            self._scan(0)
        else:
            self._check(newest.last.entries)
            self._look_behind(newest.end_offset, keep=True)
        self._check(newest.entries)
        if not self._sound and not self._lost:
            # There is none: what the file seems to be is said in opening it.
            read_directory(self._source, silent=True, limits=Limits())

    def _check(self, entries: Mapping[str, Entry]) -> None:
        """Sort the members that are listed."""
        for entry in entries.values():
            if not self._sort(entry):
                self._sort_otherwise(entry, entries)
            self._meter.reach(entry.end_offset)

    def _sort_otherwise(self, entry: Entry, entries: Mapping[str, Entry]) -> None:
        """Keep a member of which one of both headers is damaged, and the other one is right."""
        end = entry.end_offset
        found = find_member(self._source, entry.header_offset, end, self._allowance)
        # If the entry's name is damaged, that of the member's own header counts.
        is_renamed = entry.flags & BAD_NAME and found and found.entry.name not in entries
        if not is_renamed and self._fits_data(entry):
            self._lost.pop()
            self._keep(entry)
        elif (
            found is not None
            and (found.entry.name == entry.name or is_renamed)
            and found.end_offset <= end
            # Of no bytes the CRC-32 says nothing.
            and found.entry.compressed_size
            and member_error(self._reader, accepting_name(found.entry), self._threads) is None
        ):
            self._lost.pop()
            self._keep(found.entry)

    def _fits_data(self, entry: Entry) -> bool:
        """Whether the data is what the directory's entry says, though the local header is not."""
        if not entry.compressed_size:
            return False
        for header in possible_headers(self._source, entry):
            self._source.correct(entry.header_offset, header)
            if member_error(self._reader, entry, self._threads) is None:
                return True
        self._source.correct(entry.header_offset, b"")
        return False

    def _look_behind(self, end_offset: int, *, keep: bool) -> None:
        """Tell of sound members behind the last commit, or keep them."""
        committed, self._sound = self._sound, {}
        lost, self._lost = self._lost, []
        self._scan(end_offset)
        if keep:
            # What replaces a member comes where it was found: behind the others.
            kept = {name: entry for name, entry in committed.items() if name not in self._sound}
            self._sound = {**kept, **self._sound}
            self._lost = [*lost, *self._lost]
            return
        what = "whole, but behind the last commit; uncommitted=True keeps it"
        found = [entry for entry in self._sound.values() if isinstance(entry, Entry)]
        self._sound = committed
        self._lost = [*lost, *((entry.name, what, entry.header_offset) for entry in found)]

    def _check_any(self) -> None:
        if self._lost and not self._sound:
            raise ZipFormatError(
                "nothing can be saved: no member is whole",
                found=f"{len(self._lost)} that are damaged",
                remedy="Fetch the file again; partial=True (--partial) keeps the rows of arrays "
                "that were cut short.",
            )

    def _sort(self, entry: Entry) -> bool:
        """Keep a sound member; say what is wrong with another one."""
        work = read_size(self._source, entry)
        part = self._meter.part(entry.compressed_size, work, start=entry.header_offset)
        error = member_error(self._reader, accepting_name(entry), self._threads, part.add)
        if error is not None:
            self._lose(entry, error)
        else:
            self._keep(entry, part.add)
        return error is None

    def _give_usable_names(self) -> None:
        """Give members whose names cannot be used other ones, and report them."""
        sound, self._sound = self._sound, {}
        for name, found in sound.items():
            error = name_error(found) if isinstance(found, Entry) else None
            if error is None or not isinstance(found, Entry):
                self._sound[name] = found
                continue
            taken = (sound.keys() | self._sound.keys()) - {name}
            usable = found._replace(name=usable_name(name, taken))
            self._lose(found, f"{error.what}: its data is kept as {shown_key(usable.name)}")
            self._sound[usable.name] = usable

    def _keep(self, entry: Entry, advance: Advance | None = None) -> None:
        """Keep a sound member, and its attributes where they are sound."""
        entry = self._with_sound_attributes(entry)
        if has_wrong_index(self._source, entry, self._threads, advance):
            self._lose(
                entry, "its seek index leads to other data, and is left out: its data is kept"
            )
            self._misled.add(entry.header_offset)
        # Of two of one name the later one stands where it was found.
        self._sound.pop(entry.name, None)
        self._sound[entry.name] = entry

    def _with_sound_attributes(self, entry: Entry) -> Entry:
        try:
            parse_attrs(entry.extra)
            # Behind the attributes too, a block may run over the field.
            foreign_extra(entry.extra)
        except NpzkitError:
            self._lose(entry, "its attributes are damaged, and left out: its data is kept")
            return entry._replace(extra=_without_attributes(entry.extra))
        return entry

    def _lose(self, entry: Entry, what: str) -> None:
        self._lost.append((entry.name, what, entry.header_offset))

    # -- without a directory ------------------------------------------------

    def _scan(self, start: int) -> None:
        """Look for members by their headers; of two of one name the later one counts."""
        end = self._source.size
        scan = HeaderScan(self._source, end)
        offset = scan.next_from(start)
        while offset is not None:
            self._meter.reach(offset)
            found = find_member(self._source, offset, end, self._allowance)
            if self._allowance.is_spent:
                self._give_up(offset)
                break
            offset = scan.next_from(offset + 4 if found is None else self._take(found, end))
        self._meter.reach(end)
        # Of a member that was found again further behind nothing is lost.
        self._lost = [lost for lost in self._lost if not self._is_found_behind(lost[0], lost[2])]

    def _give_up(self, offset: int) -> None:
        what = "not looked at, nor what follows: too many headers claim the same bytes"
        self._lost.append(("?", what, offset))

    def _is_found_behind(self, name: str, offset: int) -> bool:
        found = self._sound.get(name)
        return isinstance(found, Entry) and found.header_offset > offset

    def _take(self, found: Found, end: int) -> int:
        """Sort one member, and return where to look for the next one."""
        entry = found.entry
        behind_header = entry.header_offset + 4
        fits = found.end_offset <= end
        if fits:
            self._allowance.charge(found.data_start, found.end_offset, entry.uncompressed_size)
        if entry.header_offset < self._claimed_end:
            return found.end_offset if fits and self._take_claimed(entry) else behind_header
        if not fits:
            self._claimed_end = end
            self._take_rows(found, end)
            return end if is_seen_cut(self._reader, entry, found.data_start, end) else behind_header
        followed = is_followed(self._source, found.end_offset)
        if not entry.compressed_size and not followed:
            # Of no bytes the CRC-32 says nothing.
            self._lose(entry, "its header says that it has no bytes, but other bytes follow it")
            return behind_header
        self._sound.pop(entry.name, None)
        if self._sort(entry) or followed:
            # Also of one that is damaged the size is right: in it is no member.
            return found.end_offset
        self._claimed_end = found.end_offset
        return behind_header

    def _take_claimed(self, entry: Entry) -> bool:
        """Sort a member that lies in what a damaged one claims.

        Maybe it is a neighbour, whose place the other claims, maybe of an archive
        in its array. One that lies elsewhere has the better claim to a name.
        """
        if member_error(self._reader, accepting_name(entry), self._threads) is not None:
            return False
        other = self._sound.get(entry.name)
        if other is None or entry.name in self._claimed:
            self._claimed.add(entry.name)
            self._keep(entry)
        else:
            self._lose(entry, "another one of its name is kept: this one lies within a damaged one")
        return True

    def _take_rows(self, found: Found, end: int) -> None:
        """Keep what is there of an array that goes on behind the file's end."""
        rows = None
        if self._partial and not found.entry.flags & BAD_NAME:
            rows = find_rows(self._reader, found.entry, found.data_start, end)
        if rows is None:
            self._lose(found.entry, "cut short: it goes on behind the end of the file")
        else:
            entry = self._with_sound_attributes(rows.entry)
            self._sound[entry.name] = rows._replace(entry=entry)
            self._lose(found.entry, f"cut short: {rows.told}")


def _directory_of(source: Source) -> Directory | None:
    """Read the directory; None where it is lost."""
    try:
        return read_directory(source, silent=True, limits=Limits())
    except NpzkitError:
        return None


def _without_attributes(extra: bytes) -> bytes:
    """Return the other blocks; none where it is not known where they end."""
    try:
        return foreign_extra(extra, KEY_VALUE_PAIRS_ID)
    except ZipFormatError:
        return b""
