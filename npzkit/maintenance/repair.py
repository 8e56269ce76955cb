"""Repairing a damaged archive.

Owns the decisions on what is cut off, saved and lost. Members are found
without a directory by `npzkit.zip.local_header_scan`, and checked by
`npzkit.maintenance.verify`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, cast

from npzkit.codecs.checksum import crc32
from npzkit.errors import NpzkitError, ZipFormatError, shown_key
from npzkit.files.corrected_source import CorrectedSource
from npzkit.files.destinations import open_destination
from npzkit.files.disk import File
from npzkit.files.file_objects import check_regular
from npzkit.files.locations import open_anywhere
from npzkit.files.locking import FileLock, check_timeout, lock_path
from npzkit.files.path_sink import PathSink
from npzkit.files.progress import Advance, Meter, Report
from npzkit.files.source import Source
from npzkit.files.threads import thread_count
from npzkit.files.urls import Location, check_local, find_locations
from npzkit.format.header import MAGIC_PREFIX
from npzkit.limits import Limits
from npzkit.maintenance.repair_report import Lost, RepairReport
from npzkit.maintenance.truncated import RowsLeft, find_rows, is_seen_cut
from npzkit.maintenance.verify import has_wrong_index, member_error, read_size
from npzkit.members.amounts import format_count
from npzkit.members.keys import keys_of
from npzkit.members.metadata import parse_attrs
from npzkit.reading.flush import complete_flushes
from npzkit.reading.member import MemberReader
from npzkit.writing.copy import copy_member, npy_header_size, rename_entry
from npzkit.zip.array_index import find_array_index
from npzkit.zip.damaged_directory import NewestState, find_newest, plain_comment
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.end_record import claimed_sizes
from npzkit.zip.entries import (
    BAD_NAME,
    Entry,
    accepting_name,
    name_error,
    parse_entries,
    usable_name,
)
from npzkit.zip.entry_records import record_of
from npzkit.zip.extra_fields import KEY_VALUE_PAIRS_ID, foreign_extra
from npzkit.zip.local_header_scan import (
    Allowance,
    Found,
    HeaderScan,
    find_member,
    is_followed,
    possible_headers,
)
from npzkit.zip.long_comment import COMMENT_NAME, read_comment
from npzkit.zip.records import (
    FLAG_DESCRIPTOR,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    SENTINEL_16,
)
from npzkit.zip.writer import ZipWriter

_NEEDS_OUTPUT = "Pass a path or a URL as output: what is sound is saved there."

_KNOWN_SIZE = 1 << 16
"""Bytes at the end of a file that are compared before it is written to."""


def repair(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    partial: bool = False,
    uncommitted: bool = False,
    overwrite: bool = True,
    limits: Limits | None = None,
    threads: int | None = None,
    lock_timeout: float | None = None,
    progress: Report | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RepairReport:
    """Repair a damaged archive, or save the sound members to another file.

    Without `output`, the end of the file is repaired:

    - An unfinished append after the last commit is cut off.
    - An append that is complete but for its last few bytes is completed.
    - If the end record, the directory or the metadata of the last commit is
      damaged, a new directory is written at the end of the file. Nothing is cut
      off. Metadata that cannot be restored is reported as lost.
    - An interrupted flush of a map is completed: if the two headers of a stored
      array have different CRC-32s, the one that matches the data is written to
      both. If neither matches, the array is reported as lost.

    A file without these faults is not changed.

    With `output`, every member whose data matches its CRC-32 is copied there
    with its attributes. If the directory is lost, members are found by their
    own headers. If a member's own header is damaged, its data is checked against
    its directory entry.

    Whatever may be older than the last commit is reported as uncertain, or as lost.

    Parameters
    ----------
    path : path or URL
        With a URL, `output` is needed.
    output : path, optional
        An existing file is replaced when the new one is complete. If this is
        `path` itself, everything that could not be saved is lost for good.
    partial : bool, default False
        Keep the complete rows of truncated arrays. They cannot be checked,
        because the CRC-32 covers the complete array.
    uncommitted : bool, default False
        Also keep sound members after the last commit: those of an unfinished
        append, or of one whose directory is damaged.
    overwrite : bool, default True
        Whether to replace another file that is already at `output`.
    limits : Limits, optional
        Limits to check members against.
    threads : int, optional
        Number of threads; None uses all processors.
    lock_timeout : float, optional
        Seconds to wait if another writer has the file open.
    progress : callable, optional
        Called with the bytes done and the total, which is twice the file size:
        the file is checked, then copied. Not called if no array is read.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    RepairReport
        Without `output`, arrays are not checked; use `npzkit.verify`.

    Raises
    ------
    ZipFormatError, AmbiguousArchiveError, UnsupportedError
        Without `output`, the file is not an archive and no earlier commit was
        found. With `output`, no member was found.
    ArchiveLockedError
        Another writer has the file open.
    FileExistsError
        `output` already exists, and `overwrite` is False.
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
    uncertain: any of these arrays may have been removed, renamed or changed; ...
    lost: y (at byte ...): truncated: its first ... of 1000 rows are kept, ...
    """
    location, target = find_locations((path, output), storage_options)
    is_distant = isinstance(location, Location)
    if is_distant and output is None:
        check_local(path, "an archive in a store cannot be repaired in place", _NEEDS_OUTPUT)
    path = str(location) if is_distant else os.fsdecode(location)
    if "\0" in path:
        # A path has no NUL, but the contents of an archive do.
        raise TypeError("npzkit.repair takes a path: write the bytes to a file first")
    if not is_distant:
        check_regular(path)
    bounds = Limits() if limits is None else limits
    count = thread_count(threads)
    with (
        contextlib.nullcontext()
        if is_distant
        else lock_path(path, check_timeout(lock_timeout)) as lock,
        contextlib.ExitStack() as stack,
    ):
        opened = open_anywhere(location if is_distant else path)
        stack.callback(opened.close)
        source = opened.ahead([(0, opened.size)])
        source.is_locked = True
        try:
            if output is None and lock is not None:
                return _repair_end(path, source, lock, bounds, count, progress)
            is_uploaded = isinstance(target, Location)
            output = str(target) if is_uploaded else os.fsdecode(cast(Any, target))
            salvage = _Salvage(
                source, bounds, count, progress, partial=partial, uncommitted=uncommitted
            )
            is_local = not (is_distant or is_uploaded)
            is_same = is_local and os.path.exists(output) and os.path.samefile(path, output)
            # If both paths are the same file, it is locked only once.
            sink = (
                PathSink(os.path.abspath(output), lock=lock)
                if is_same
                else open_destination(target if is_uploaded else output, exclusive=not overwrite)
            )
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
    """Cut off an unfinished append, or write a damaged directory again."""
    try:
        directory = _read_committed(source)
    except ZipFormatError as error:
        newest = find_newest(source)
        is_known = newest.is_complete or (newest.is_commit and newest.last is not None)
        # No program reads an archive that does not begin with a member.
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
    """Cut off everything after the last commit, and complete that commit, and flushes."""
    directory.check_alone(source)
    cut_size = source.size - directory.end_offset
    patches = directory.completion(source)
    if cut_size or patches:
        file = File(path)
        try:
            for patch in patches:
                file.patch(*patch)
            file.truncate(directory.end_offset)
            file.sync()
        finally:
            file.close()
    keys = dict(zip(directory.entries, keys_of(directory.entries.keys()), strict=True))
    sealed, left = complete_flushes(source, directory, threads)
    lost = tuple(Lost(keys[one.entry.name], str(one), one.entry.header_offset) for one in left)
    return RepairReport(
        path, tuple(keys.values()), lost, cut_size, sealed=tuple(keys[name] for name in sealed),
        is_completed=bool(patches),
    )  # fmt: skip


class _Salvage:
    """The members of one file that can be saved. They are found first, then written."""

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
        # The file is checked, then copied.
        self._meter = Meter(progress, 2 * source.size)
        self._partial, self._uncommitted = partial, uncommitted
        self._sound: dict[str, Entry | RowsLeft] = {}
        self._lost: list[tuple[str, str, int]] = []
        self._allowance = Allowance(source.size)
        # The end of the range that a damaged member claims.
        self._claimed_end = 0
        self._claimed: set[str] = set()
        # The offsets of members whose seek index leads to wrong data.
        self._wrongly_indexed: set[int] = set()
        # The local headers of members without their own, by offset and name.
        self._headers: dict[tuple[int, bytes], bytes] = {}
        # The sizes of extra fields in local headers, as the index of a directory says.
        self._indexed: tuple[Directory | None, dict[str, int]] = None, {}

    def write(self, sink: Any, output: str) -> RepairReport:
        """Find sound members, and write them."""
        try:
            newest, cut_size = None, 0
            try:
                directory = _read_committed(self._source)
            except NpzkitError:
                newest = find_newest(self._source)
                self._find(newest)
                comment = self._read_comment(newest)
            else:
                self._check(directory.entries, directory)
                cut_size = self._source.size - directory.end_offset
                comment = plain_comment(directory.read_comment(self._source))
                self._check_uncommitted(directory.end_offset, keep=self._uncommitted)
            if newest is not None or directory.entries:
                self._check_any()
            self._give_usable_names()
            writer = ZipWriter(sink, head_size=npy_header_size)
            self._copy(writer)
            self._source.close()
            writer.commit(comment)
            sink.close()
        except BaseException as error:
            sink.discard(error)
            raise
        return self._report(list(self._sound), output, cut_size, newest)

    def _read_comment(self, newest: NewestState) -> bytes:
        """Return the archive's comment, of any size; an empty one if it is damaged."""
        size = self._source.size
        if newest.comment is None:
            self._lost.append((COMMENT_NAME, "the metadata is lost or damaged", size))
            return b""
        if newest.last is not None and not newest.is_newest:
            what = "the newest metadata may be lost: that of an older commit is kept"
            self._lost.append((COMMENT_NAME, what, newest.end_offset))
        try:
            return plain_comment(read_comment(self._source, newest.comment, 0, size))
        except ZipFormatError as error:
            self._lost.append((COMMENT_NAME, error.what, error.offset or 0))
            return b""

    def relist(self, newest: NewestState, path: str, lock: FileLock) -> RepairReport:
        """Write the directory of the newest state at the end of the file.

        Raises
        ------
        ZipFormatError
            The members would overlap. Nothing was written.
        """
        listed = newest.listed()
        if not newest.is_complete:
            self._find(newest)
            entries = {**(newest.last.entries if newest.last else {}), **newest.entries}
            places = {(name, entry.header_offset) for name, entry in entries.items()}
            # Unreadable members stay listed, because their bytes stay in the file.
            self._lost = [lost for lost in self._lost if (lost[0], lost[2]) not in places]
        sound = {name: one for name, one in self._sound.items() if isinstance(one, Entry)}
        for name, entry in sound.items():
            # Members after the last commit are newer than its directory.
            known_end = newest.directory_offset if name in newest.records else newest.end_offset
            if entry.header_offset >= known_end or name not in listed:
                listed[name] = record_of(entry)
        comment = self._read_comment(newest)
        size, known_size = self._source.size, min(self._source.size, _KNOWN_SIZE)
        parse_entries(b"".join(listed.values()), len(listed), 0, 0, size)
        known = self._source.original.read_at(size - known_size, known_size)
        self._source.close()
        sink = PathSink(path, resume=True, durable=True, lock=lock)
        try:
            sink.resume(size, known_size, crc32(known))
            # No damaged end record may become one that fits.
            avoided = claimed_sizes(known, size - known_size)
            ZipWriter(sink, listed).commit(comment, avoided)
            sink.close()
        except BaseException:
            sink.abort()
            raise
        self._meter.finish()
        return self._report(list(listed), path, 0, newest)

    def _copy(self, writer: ZipWriter) -> None:
        """Write the sound members."""
        done = self._source.size
        for found in self._sound.values():
            if isinstance(found, RowsLeft):
                found.write(self._source, writer)
            else:
                indexed = found.header_offset not in self._wrongly_indexed
                part = self._meter.part(found.compressed_size, start=done)
                renamed = rename_entry(found, found.name) if found.flags & BAD_NAME else None
                own = self._headers.get((found.header_offset, found.raw_name), b"")
                self._source.correct(found.header_offset, own)
                copy_member(
                    self._source, found, writer, renamed=renamed, indexed=indexed, advance=part.add
                )
                self._source.correct(found.header_offset, b"")
                done += found.compressed_size
        self._meter.finish()

    def _report(
        self, names: list[str], output: str, cut_size: int, newest: NewestState | None
    ) -> RepairReport:
        # The key of a member depends on the names of the others.
        all_names = dict.fromkeys([*names, *(name for name, _, _ in self._lost)])
        keys = dict(zip(all_names, keys_of(all_names.keys()), strict=True))
        lost = tuple(
            Lost(keys[name], what, where) for name, what, where in dict.fromkeys(self._lost)
        )
        kept = tuple(keys[name] for name in names)
        if newest is None:
            return RepairReport(output, kept, lost, cut_size)
        uncertain = tuple(keys[name] for name in names if not self._is_known(name, newest))
        return RepairReport(output, kept, lost, cut_size, newest.is_restored, uncertain)

    def _is_known(self, name: str, newest: NewestState) -> bool:
        """Return whether the newest directory says of a member that it is what is kept."""
        if newest.is_complete or not newest.is_newest or name not in newest.known:
            return newest.is_complete
        found = self._sound.get(name)
        return found is None or (
            isinstance(found, Entry) and found.header_offset == newest.entries[name].header_offset
        )

    def _find(self, newest: NewestState) -> None:
        """Check the members of an archive whose end is damaged."""
        if newest.is_complete:
            self._check(newest.entries, newest.directory)
            return
        if newest.last is None:
            self._scan(0)
        else:
            self._check(newest.last.entries, newest.last)
            self._check_uncommitted(newest.end_offset, keep=True)
        self._check(
            {
                name: entry
                for name, entry in newest.entries.items()
                if not self._is_found_later(name, newest.directory_offset)
            }
        )
        # Of two that disagree, the local header is right if its member is sound.
        found = {one.header_offset for one in self._sound.values() if isinstance(one, Entry)}
        self._check(
            {
                one.name: one
                for one in newest.others
                if one.name not in self._sound and one.header_offset not in found
            }
        )
        if not self._sound and not self._lost:
            # There is no member. Opening the file raises the error that describes it.
            read_directory(self._source, silent=True, limits=Limits())

    def _check(self, entries: Mapping[str, Entry], directory: Directory | None = None) -> None:
        """Check the members that a directory lists, which is given if it is known completely."""
        for entry in entries.values():
            if not self._check_member(entry):
                self._try_other_header(entry, entries, directory)
            self._meter.reach(entry.end_offset)

    def _try_other_header(
        self, entry: Entry, entries: Mapping[str, Entry], directory: Directory | None
    ) -> None:
        """Keep a member if only one of its two headers is damaged."""
        is_certain = directory is not None and directory.footer is not None
        end = entry.end_offset
        found = find_member(self._source, entry.header_offset, end, self._allowance)
        # If the name in the entry is damaged, the name in the local header is used.
        is_renamed = (
            not is_certain and entry.flags & BAD_NAME and found and found.entry.name not in entries
        )
        sound = None if is_renamed else self._with_own_header(entry, directory, is_certain)
        if sound is None and (
            found is not None
            and (found.entry.name == entry.name or is_renamed)
            and found.end_offset <= end
            # A CRC-32 of no bytes proves nothing.
            and found.entry.compressed_size
            and member_error(self._reader, accepting_name(found.entry), self._threads) is None
        ):
            # The header describes the data; attributes that are certain are the directory's.
            sound = found.entry._replace(extra=entry.extra) if is_certain else found.entry
        if sound is not None:
            self._lost.pop()
            self._keep(sound)
        self._source.correct(entry.header_offset, b"")

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
        for header in possible_headers(self._source, entry, starts, is_certain=is_certain):
            self._source.correct(entry.header_offset, header)
            if member_error(self._reader, accepting_name(entry), self._threads) is None:
                self._headers[entry.header_offset, entry.raw_name] = header
                return entry
            self._source.correct(entry.header_offset, b"")
        return None

    def _data_starts(self, entry: Entry, directory: Directory | None) -> Iterator[int]:
        """Yield where a member's data may begin: as the array index says, or at an NPY header."""
        named = entry.header_offset + LOCAL_HEADER_SIZE + len(entry.raw_name)
        if directory is not None and self._indexed[0] is not directory:
            index = find_array_index(self._source, directory)
            sizes = [] if index is None else index.extra_sizes.tolist()
            self._indexed = directory, dict(zip(directory.entries, sizes, strict=False))
        if directory is not None and entry.name in self._indexed[1]:
            yield named + self._indexed[1][entry.name]
        size = min(SENTINEL_16 + len(MAGIC_PREFIX), entry.end_offset - named)
        place = self._source.read_at(named, size).find(MAGIC_PREFIX)
        if place >= 0:
            yield named + place

    def _check_uncommitted(self, end_offset: int, *, keep: bool) -> None:
        """Keep sound members after the last commit, or report them."""
        committed, self._sound = self._sound, {}
        lost, self._lost = self._lost, []
        self._scan(end_offset)
        if keep:
            # A replacement comes where it was found, after the others.
            kept = {name: entry for name, entry in committed.items() if name not in self._sound}
            self._sound = {**kept, **self._sound}
            self._lost = [*lost, *self._lost]
            return
        what = "complete, but not committed; uncommitted=True keeps it"
        found = [entry for entry in self._sound.values() if isinstance(entry, Entry)]
        self._sound = committed
        self._lost = [*lost, *((entry.name, what, entry.header_offset) for entry in found)]

    def _check_any(self) -> None:
        if self._lost and not self._sound:
            raise ZipFormatError(
                "nothing can be saved: every member is damaged",
                found=format_count(len(self._lost), "damaged member"),
                remedy="Download the file again; partial=True (--partial) keeps the rows of "
                "truncated arrays.",
            )

    def _check_member(self, entry: Entry) -> bool:
        """Keep a sound member, or report what is wrong with it."""
        work = read_size(self._source, entry)
        part = self._meter.part(entry.compressed_size, work, start=entry.header_offset)
        error = member_error(self._reader, accepting_name(entry), self._threads, part.add)
        if error is not None:
            self._add_lost(entry, error)
        else:
            self._keep(entry, part.add)
        return error is None

    def _give_usable_names(self) -> None:
        """Rename members whose names are not usable, and report them."""
        sound, self._sound = self._sound, {}
        for name, found in sound.items():
            error = name_error(found) if isinstance(found, Entry) else None
            if error is None or not isinstance(found, Entry):
                self._sound[name] = found
                continue
            taken = (sound.keys() | self._sound.keys()) - {name}
            usable = found._replace(name=usable_name(name, taken))
            self._add_lost(found, f"{error.what}; its data is kept as {shown_key(usable.name)}")
            self._sound[usable.name] = usable

    def _keep(self, entry: Entry, advance: Advance | None = None) -> None:
        """Keep a sound member, and its attributes if they are sound."""
        entry = self._with_sound_attributes(entry)
        if has_wrong_index(self._source, entry, self._threads, advance):
            self._add_lost(
                entry, "its seek index leads to wrong data and is removed; its data is kept"
            )
            self._wrongly_indexed.add(entry.header_offset)
        # Of two members with one name, the later one is kept, in its own position.
        self._sound.pop(entry.name, None)
        self._sound[entry.name] = entry

    def _with_sound_attributes(self, entry: Entry) -> Entry:
        try:
            parse_attrs(entry.extra)
            # A block after the attributes may also exceed the field.
            foreign_extra(entry.extra)
        except NpzkitError:
            self._add_lost(entry, "its attributes are damaged and removed; its data is kept")
            return entry._replace(extra=_without_attributes(entry.extra))
        return entry

    def _add_lost(self, entry: Entry, what: str) -> None:
        self._lost.append((entry.name, what, entry.header_offset))

    # -- without a directory ------------------------------------------------

    def _scan(self, start: int) -> None:
        """Find members by their headers; of two with one name, the later one is used."""
        end = self._source.size
        scan = HeaderScan(self._source, end)
        offset = scan.next_from(start)
        while offset is not None:
            self._meter.reach(offset)
            found = find_member(self._source, offset, end, self._allowance)
            if self._allowance.is_spent:
                self._give_up(offset)
                break
            offset = scan.next_from(offset + 4 if found is None else self._check_found(found, end))
        self._meter.reach(end)
        # A member that was found again later is not lost.
        self._lost = [lost for lost in self._lost if not self._is_found_later(lost[0], lost[2])]

    def _give_up(self, offset: int) -> None:
        what = "not read, like everything after it: too many headers claim the same bytes"
        self._lost.append(("?", what, offset))

    def _is_found_later(self, name: str, offset: int) -> bool:
        found = self._sound.get(name)
        return isinstance(found, Entry) and found.header_offset > offset

    def _check_found(self, found: Found, end: int) -> int:
        """Check one member, and return the offset at which to look for the next one."""
        entry = found.entry
        after_header = entry.header_offset + 4
        fits = found.end_offset <= end
        if fits:
            self._allowance.charge(found.data_start, found.end_offset, entry.uncompressed_size)
        if entry.header_offset < self._claimed_end:
            return found.end_offset if fits and self._check_claimed(entry) else after_header
        if not fits:
            self._claimed_end = end
            self._keep_rows(found, end)
            return end if is_seen_cut(self._reader, entry, found.data_start, end) else after_header
        followed = is_followed(self._source, found.end_offset)
        if not entry.compressed_size and not followed:
            # A CRC-32 of no bytes proves nothing.
            self._add_lost(entry, "its header claims no data, but other data follows it")
            return after_header
        self._sound.pop(entry.name, None)
        if self._check_member(entry) or followed:
            # The size is right even if the data is damaged, so no member is inside it.
            return found.end_offset
        self._claimed_end = found.end_offset
        return after_header

    def _check_claimed(self, entry: Entry) -> bool:
        """Check a member inside the range that a damaged member claims.

        It may be a neighbour of the damaged member, or part of an archive inside
        its array. A member outside of such a range has priority for a name.
        """
        if member_error(self._reader, accepting_name(entry), self._threads) is not None:
            return False
        other = self._sound.get(entry.name)
        if other is None or entry.name in self._claimed:
            self._claimed.add(entry.name)
            self._keep(entry)
        else:
            self._add_lost(
                entry, "it is inside a damaged member; another one with its name is kept"
            )
        return True

    def _keep_rows(self, found: Found, end: int) -> None:
        """Keep the rows of an array that extends past the end of the file."""
        rows = None
        if self._partial and not found.entry.flags & BAD_NAME:
            rows = find_rows(self._reader, found.entry, found.data_start, end)
        if rows is None:
            self._add_lost(found.entry, "truncated: its data extends past the end of the file")
        else:
            entry = self._with_sound_attributes(rows.entry)
            self._sound[entry.name] = rows._replace(entry=entry)
            self._add_lost(found.entry, f"truncated: {rows.description}")


def _read_committed(source: Source) -> Directory:
    """Return the directory of the last commit, of which the comment can be read too."""
    directory = read_directory(source, silent=True, limits=Limits())
    directory.read_comment(source)
    return directory


def _without_attributes(extra: bytes) -> bytes:
    """Return the other blocks of an extra field, or none if they are damaged."""
    try:
        return foreign_extra(extra, KEY_VALUE_PAIRS_ID)
    except ZipFormatError:
        return b""
