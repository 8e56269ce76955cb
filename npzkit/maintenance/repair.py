"""Repairing a damaged archive: its end in place, or a copy of what is sound.

Decides what is cut off, completed or written again at the end of a file.
`npzkit.maintenance.salvage` makes copies.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from npzkit.codecs.checksum import crc32
from npzkit.codecs.coding import STORED
from npzkit.errors import (
    COPIED_AS_TEXT,
    GET_AGAIN,
    SAVE_PARTIAL,
    TO_UNDO,
    Advice,
    NpzkitError,
    UnsupportedError,
    ZipFormatError,
    format_count,
)
from npzkit.files.any_sink import open_any_sink
from npzkit.files.any_source import open_any_source
from npzkit.files.append import appended_file
from npzkit.files.disk import File
from npzkit.files.file_objects import as_path, check_regular
from npzkit.files.locking import FileLock, check_timeout, lock_path
from npzkit.files.path_sink import PathSink
from npzkit.files.sink import Sink
from npzkit.files.source import Source
from npzkit.files.urls import Location, check_local, find_locations
from npzkit.format.header import MAGIC_PREFIX
from npzkit.limits import Limits, thread_count
from npzkit.maintenance.damaged_rows import find_rows, member_header
from npzkit.maintenance.findings import DATA_KEPT, EndReport, Lost, RepairReport
from npzkit.maintenance.salvage import Salvage, find_uncommitted, read_committed
from npzkit.members.keys import check_key, check_not_foreign, keys_of
from npzkit.members.metadata import with_lost
from npzkit.reading.map_flush import complete_flushes
from npzkit.reading.member import MemberReader
from npzkit.zip.directory import Directory, check_last, completion
from npzkit.zip.directory_repair import NewestState, find_newest
from npzkit.zip.end_record import claimed_ends, is_copied_as_text
from npzkit.zip.entries import Entry, parse_entries
from npzkit.zip.member_search import entry_of_header
from npzkit.zip.records import LOCAL_HEADER_SIGNATURE
from npzkit.zip.writer import ZipWriter
from npzkit.zip.written_header import entry_bytes, local_bytes, local_header

if TYPE_CHECKING:
    from npzkit.typing import Partial, Progress


_STEP_SIZE = 1 << 22
_KNOWN_SIZE = 1 << 16
"""Bytes at the end of a file that are compared before it is written to."""


def repair(
    file: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    keep_partial: Partial = None,
    overwrite: bool = False,
    limits: Limits | None = None,
    threads: int | None = None,
    lock_timeout: float | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> RepairReport:
    """Repair one file; the parameters are those of `npzkit.repair`."""
    location, target = find_locations((file, output), storage_options)
    if output is None:
        remedy = "Pass a path or a URL as output: what is sound is saved there."
        check_local(file, "an archive in a store cannot be repaired in place", remedy)
    is_distant = isinstance(location, Location)
    path = str(location) if is_distant else _checked_path(location)
    if keep_partial not in (None, "mask", "drop"):
        raise ValueError(f"keep_partial must be 'mask', 'drop' or None, not {keep_partial!r}")
    # The default limit of headers is for reading: what is sound is kept.
    bounds = Limits(header_size=None) if limits is None else limits
    count = thread_count(threads)
    with (
        contextlib.nullcontext()
        if is_distant
        else lock_path(path, check_timeout(lock_timeout)) as lock,
        contextlib.closing(open_any_source(location if is_distant else path)) as opened,
    ):
        source = opened.ahead([(0, opened.size)])
        source.is_locked = True
        try:
            if source.read_within(0, 6) == MAGIC_PREFIX:
                if keep_partial:
                    return _save_rows(source, path, bounds, *_open_output(target, path, overwrite))
                raise ZipFormatError(
                    "it is a bare .npy file, not an archive",
                    remedy="If it is truncated, save its complete rows: " + SAVE_PARTIAL + ".",
                )
            if output is None and lock is not None:
                return EndReport(*_repair_end(path, source, lock, bounds, count, progress))
            with _undone(source) as undone:
                salvage = Salvage(undone, bounds, count, progress, keep_partial=keep_partial)
                return salvage.write(*_open_output(target, path, overwrite))
        except NpzkitError as error:
            raise error.locate(path=path) from error.__cause__


@contextlib.contextmanager
def _undone(source: Source) -> Iterator[Source]:
    """Yield an archive; of one that was copied as text, a copy with line feeds as they were."""
    if not is_copied_as_text(source) or _sound(source) is not None:
        yield source
        return
    import tempfile

    with tempfile.TemporaryFile() as copy:
        left = b""
        for offset in range(0, source.size, _STEP_SIZE):
            data = left + source.read_at(offset, min(_STEP_SIZE, source.size - offset))
            left = data[-1:] if data.endswith(b"\r") else b""
            copy.write(data.removesuffix(left).replace(b"\r\n", b"\n"))
        copy.write(left)
        copy.seek(0)
        with contextlib.closing(open_any_source(copy)) as undone:
            yield undone


def _save_rows(source: Source, path: str, limits: Limits, sink: Sink, output: str) -> RepairReport:
    """Save the complete rows of a .npy file, whose name without suffix is the key."""
    try:
        key = os.path.splitext(os.path.basename(path))[0]
        entry = entry_of_header(local_bytes(local_header(check_key(key), STORED, 0, b""), 0), 0)
        reader = MemberReader(source, limits, allow_pickle=False, pickle_kwargs=None)
        left = find_rows(reader, entry, 0, source.size)
        if left is None:
            raise _no_rows(reader, entry, source.size)
        end = left.header.data_offset + left.header.nbytes
        lost: tuple[Lost, ...] = ()
        if any(start < stop for start, stop in left.rows):
            lost = (Lost(key, f"truncated: {left.outcome}", source.size, left.rows),)
            left = left.noting(lost[0].what)
        elif end < source.size:
            more = format_count(source.size - end, "byte")
            lost = (Lost(key, f"left out: {more} after its last row; {DATA_KEPT}", end),)
        writer = ZipWriter(sink)
        left.write(writer)
        writer.commit(with_lost(b"", [row.key for row in lost]))
        sink.close()
    except BaseException as error:
        sink.discard(error)
        raise
    return RepairReport(output, (key,), lost)


def _no_rows(reader: MemberReader, entry: Entry, size: int) -> NpzkitError:
    """Return why no rows of a .npy file of so many bytes are saved."""
    whole = entry._replace(compressed_size=size, uncompressed_size=size, end_offset=size)
    try:
        header = member_header(reader, whole, 0)
    except NpzkitError as error:
        error.what = f"nothing can be saved: {error.what}"
        error.remedy = error.remedy if error.remedy == COPIED_AS_TEXT else f"{GET_AGAIN}."
        return error
    if header.dtype.hasobject:
        return UnsupportedError(
            "a .npy file of Python objects is not repaired: it is read completely, or not at all"
        )
    if header.data_offset + header.nbytes <= size:
        return UnsupportedError("there is nothing to repair: the .npy file is complete")
    why = "is in Fortran order" if header.fortran_order else "has no complete row"
    what = f"nothing can be saved: the truncated .npy file {why}"
    return ZipFormatError(what, remedy=f"{GET_AGAIN}.")


def _checked_path(path: Any) -> str:
    """Return the path of a regular file as text."""
    if isinstance(path, bytes):
        raise TypeError("npzkit.repair takes a path: write the bytes to a file first")
    name = os.fsdecode(path)
    check_regular(name)
    return name


def _open_output(target: Any, path: str, overwrite: bool) -> tuple[Sink, str]:
    """Return a sink for what is sound, and the path or the URL that it writes to."""
    if isinstance(target, Location):
        return open_any_sink(target, exclusive=not overwrite), str(target)
    output = as_path(target)
    if os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output):
        raise UnsupportedError(
            "the output is the archive itself: what cannot be saved would be lost for good",
            path=output, remedy="Write to another path. A damaged array is removed in place by "
            + Advice('NpzWriter(path, "a") and del writer[key].', "npzkit rm FILE KEY."),
        )  # fmt: skip
    return open_any_sink(output, exclusive=not overwrite), output


def _repair_end(
    path: str,
    source: Source,
    lock: FileLock,
    limits: Limits,
    threads: int,
    progress: Progress | None,
) -> RepairReport:
    """Cut off an unfinished append, or write a damaged directory again."""
    size = source.size
    try:
        directory = read_committed(source)
    except ZipFormatError as error:
        newest = find_newest(source)
        if source.size < size and (sound := _sound(source)):
            return _cut(path, source, sound, limits, threads, size)
        is_known = newest.is_complete or (newest.is_commit and newest.last is not None)
        # No program reads an archive that does not begin with a member.
        is_archive = source.read_within(0, 4) == LOCAL_HEADER_SIGNATURE
        if is_known and is_archive:
            salvage = Salvage(source, limits, threads, progress, keep_partial=None)
            return _relist(salvage, newest, path, lock, size - source.size)
        if (is_archive or newest.known.entries) and error.remedy != TO_UNDO:
            error.remedy = "Save what can be read: " + SAVE_PARTIAL + "."
        raise
    return _cut(path, source, directory, limits, threads, size)


def _sound(source: Source) -> Directory | None:
    """Return the directory of an archive; None if it is damaged."""
    try:
        return read_committed(source)
    except ZipFormatError:
        return None


def _cut(
    path: str, source: Source, directory: Directory, limits: Limits, threads: int, size: int
) -> RepairReport:
    """Cut off everything after the last commit, and complete that commit, and flushes.

    `size` is that of the file.
    """
    check_last(directory, source)
    check_not_foreign(directory.entries, path)
    cut_size = size - directory.end_offset
    uncommitted = find_uncommitted(source, limits, directory.end_offset, size)
    patches = completion(directory, source)
    if cut_size or patches:
        with contextlib.closing(File(path)) as file:
            for patch in patches:
                file.patch(*patch)
            file.truncate(directory.end_offset)
            file.sync()
    # It was behind the end.
    directory = directory._replace(far_copy=None)
    keys = dict(zip(directory.entries, keys_of(directory.entries.keys()), strict=True))
    sealed, left = complete_flushes(source, directory, threads)
    lost = tuple(Lost(keys[one.entry.name], str(one), one.entry.header_offset) for one in left)
    found = tuple(keys[name] for name in sealed)
    return RepairReport(
        path, tuple(keys.values()), lost, cut_size, uncertain=found, sealed=found,
        is_completed=bool(patches), uncommitted=uncommitted,
    )  # fmt: skip


def _relist(
    salvage: Salvage, newest: NewestState, path: str, lock: FileLock, cut_size: int
) -> RepairReport:
    """Write the directory of the newest state at the end of the file.

    Raises
    ------
    ZipFormatError
        The members would overlap. Nothing was written.
    """
    listed = newest.listed()
    if not newest.is_complete:
        salvage.find(newest)
        entries = {**(newest.last.entries if newest.last else {}), **newest.known.entries}
        places = {(name, entry.header_offset) for name, entry in entries.items()}
        # Unreadable members stay listed, because their bytes stay in the file.
        salvage.lost = [lost for lost in salvage.lost if (lost.key, lost.where) not in places]
    for name, entry in salvage.sound.items():
        # Members after the last commit are newer than its directory.
        is_known = name in newest.known.entries
        known_end = newest.known.directory_offset if is_known else newest.end_offset
        if isinstance(entry, Entry) and (entry.header_offset >= known_end or name not in listed):
            listed[name] = entry_bytes(entry)
    comment = salvage.read_comment(newest)
    size, known_size = salvage.source.size, min(salvage.source.size, _KNOWN_SIZE)
    parse_entries(b"".join(listed.values()), len(listed), 0, 0, size)
    known = salvage.source.original.read_at(size - known_size, known_size)
    # No damaged end record may become one that fits.
    avoided = set(claimed_ends(salvage.source.original, size).values())
    salvage.source.close()
    sink = PathSink(appended_file(path, durable=True, lock=lock))
    try:
        sink.resume(size, known_size, crc32(known))
        ZipWriter(sink, listed).commit(comment, avoided)
        sink.close()
    except BaseException:
        sink.abort()
        raise
    salvage.meter.finish()
    return salvage.report(list(listed), path, cut_size, newest)
