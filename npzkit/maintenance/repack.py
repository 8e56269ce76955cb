"""Rewriting an archive: aligned, seekable, without dead space.

Owns the decision for each member. Its bytes are copied unchanged
(`npzkit.writing.copy`), unless its method changes or it needs a seek index.
No arrays are created, and only some megabytes of memory are used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from npzkit.codecs.coding import (
    CHUNK_SIZE,
    CHUNKED,
    STORED,
    Coding,
    check_chunk_size,
    check_level,
    method_number,
)
from npzkit.errors import (
    Advice,
    NpzkitError,
    TornArchiveWarning,
    UnsupportedError,
    format_count,
    shown_key,
    warn,
)
from npzkit.files.any_sink import open_any_sink
from npzkit.files.any_source import open_any_source, stores
from npzkit.files.append import AppendedFile
from npzkit.files.file_objects import as_path, can_write, check_regular
from npzkit.files.locking import FileLock, check_timeout, lock_path
from npzkit.files.new_file import new_file
from npzkit.files.path_sink import PathSink
from npzkit.files.progress import Meter
from npzkit.files.sink import Sink
from npzkit.files.source import Source, WrittenSource, open_source
from npzkit.files.threads import Pipeline
from npzkit.files.urls import Location, find_locations
from npzkit.format.header import PREFIX_SIZE, npy_header_size
from npzkit.limits import DEFAULT_LIMITS, Limits, limits_of, thread_count
from npzkit.members.keys import SUFFIX
from npzkit.writing.copy import PIECE_SIZE, copy_member
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.dead_space import dead_size
from npzkit.zip.directory import comment_of, read_directory
from npzkit.zip.entries import Entry, name_error
from npzkit.zip.extra_fields import foreign_extra
from npzkit.zip.local_header import check_crc32, check_entry, data_offset
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.records import SENTINEL_16
from npzkit.zip.writer import ZipWriter

if TYPE_CHECKING:
    from npzkit.typing import Progress

_MAX_ALIGNMENT = 1 << 15
"""Padding is an extra field, whose size is limited to 64 KiB."""


class Chosen(NamedTuple):
    """What of an archive is written.

    Attributes
    ----------
    names : set of str
        The members.
    comment : bytes
        In the place of the archive's.
    """

    names: Set[str]
    comment: bytes


def rewrite(
    file: Any,
    output: Any,
    chosen: Chosen | None,
    *,
    compression: str | int | None,
    align: int = 64,
    level: int | None,
    chunk_size: int = CHUNK_SIZE,
    seekable: bool = True,
    threads: int | None = None,
    durable: bool = False,
    overwrite: bool,
    lock_timeout: float | None = None,
    progress: Progress | None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Rewrite an archive, or some members of it, as `npzkit.repack` does."""
    wanted = None if compression is None else method_number(compression)
    level = check_level(level, wanted or STORED)
    coding = Coding(STORED, level, check_chunk_size(chunk_size), seekable)
    if align < 1 or align & (align - 1) or align > _MAX_ALIGNMENT:
        raise ValueError(f"align must be a power of two up to {_MAX_ALIGNMENT}, not {align!r}")
    if output is None and not isinstance(file, (str, os.PathLike)):
        raise ValueError("output is needed unless file is a path or a URL")
    timeout = check_timeout(lock_timeout)
    origin, target = _find_places(file, file if output is None else output, storage_options)
    lock = _lock_replaced(origin, target, timeout)
    with lock or contextlib.nullcontext(), contextlib.closing(open_any_source(origin)) as source:
        try:
            source.is_locked = lock is not None
            if _is_same_file(source, target):
                raise ValueError(
                    "file and output are the same file, which would be overwritten while it is read"
                )
            with Pipeline(thread_count(threads)) as pipeline:
                limits = limits_of(origin)
                rewriting = _Rewriting(pipeline, wanted, coding, align, limits.member_size)
                open_dst = partial(_open_sink, target, source, lock, durable, timeout, overwrite)
                _write(source, open_dst, rewriting.write, progress, limits, chosen)
        except NpzkitError as error:
            path = source.name if source.is_distant else source.path
            raise error.locate(path=path) from error.__cause__


def _lock_replaced(origin: Any, target: Any, timeout: float) -> FileLock | None:
    """Lock a file that is replaced: nobody may write to it while it is read."""
    if not _is_replaced(origin, target):
        return None
    check_regular(target)
    return lock_path(target, timeout)


def _find_places(
    file: Any, output: Any, storage_options: Mapping[str, Any] | None
) -> tuple[Any, Any]:
    """Return what is read, and what is written: a location, a file object or a path."""
    origin, target = find_locations((file, output), storage_options)
    if isinstance(target, Location):
        stores().check_writable(target)
    elif not can_write(target):
        target = as_path(target)
    return origin, target


def repack_dead(sink: Sink, *, durable: bool) -> None:
    """Rewrite the archive that was committed to `sink`, if it has much dead space.

    This is done if more than half of it is dead space, or if its first member
    was removed, because 7-Zip would then show an older state. Every member is
    copied unchanged. Closes the sink.

    Warns
    -----
    RuntimeWarning
        The rewrite failed. The archive stays as it was committed.
    """
    file = sink.file if isinstance(sink, PathSink) else None
    if not isinstance(file, AppendedFile):
        return
    try:
        written = WrittenSource(sink, sink.committed_size)
        directory = read_directory(written, silent=True)
        is_shadowed = all(entry.header_offset for entry in directory.entries.values())
        if not is_shadowed and 2 * dead_size(written, directory) <= directory.end_offset:
            return
        with file.hand_over() as lock, contextlib.closing(open_source(file.target)) as source:
            _write(source, partial(_replacing, file.target, durable, lock), _copy)
    except (NpzkitError, OSError) as error:
        warn(
            f"the archive is complete, but its dead space could not be removed: {error}",
            RuntimeWarning,
        )


def _copy(source: Source, lists: ChunkLists, entry: Entry, writer: ZipWriter, meter: Meter) -> None:
    """Copy a member unchanged, without checking it."""
    copy_member(source, entry, writer, lists.find, verify=False)


def _is_replaced(src: Any, dst: Any) -> bool:
    """Return whether `dst` is the path of the file that is read."""
    are_paths = isinstance(dst, str) and isinstance(src, (str, os.PathLike))
    with contextlib.suppress(FileNotFoundError):
        return are_paths and os.path.samefile(src, dst)
    return False


def _replacing(path: str, durable: bool, lock: FileLock) -> Sink:
    return PathSink(new_file(path, durable=durable, lock=lock))


def _open_sink(
    dst: Any,
    source: Source,
    lock: FileLock | None,
    durable: bool,
    timeout: float,
    overwrite: bool,
) -> Sink:
    if lock is not None:
        return _replacing(dst, durable, lock)
    # What is read is what is replaced.
    is_same = isinstance(dst, Location) and source.is_distant and source.reopening[0] == dst.url
    tag = source.tag if is_same else ""
    exclusive = not (overwrite or is_same)
    return open_any_sink(dst, exclusive=exclusive, durable=durable, lock_timeout=timeout, tag=tag)


def _is_same_file(source: Source, dst: Any) -> bool:
    """Return whether `dst` is a file object for the file that is read.

    A path is no problem, because it is replaced after everything is read.
    """
    if not can_write(dst):
        return False
    if dst is source.handle or dst is source.file:
        return True
    try:
        return os.path.samestat(os.fstat(source.file.fileno()), os.fstat(dst.fileno()))
    except (AttributeError, OSError, ValueError):
        return False


def _write(
    source: Source,
    open_dst: Callable[[], Sink],
    write_member: Callable[[Source, ChunkLists, Entry, ZipWriter, Meter], None],
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
    chosen: Chosen | None = None,
) -> None:
    """Write all members, or some, in order, and commit the new archive."""
    sink = open_dst()
    try:
        directory = read_directory(source, starts=(0, source.position), limits=limits)
        _tell_uncommitted(source, directory.end_offset, limits)
        entries = [
            entry for entry in directory.entries.values()
            if chosen is None or entry.name in chosen.names
        ]  # fmt: skip
        near = source.ahead([(0, directory.directory_offset)])
        total, done = sum(entry.uncompressed_size for entry in entries), 0
        meter = Meter(progress, total)
        writer = ZipWriter(sink, head_size=npy_header_size)
        lists = ChunkLists(source, directory)
        for entry in entries:
            try:
                write_member(near, lists, entry, writer, meter)
            except NpzkitError as error:
                raise error.locate(key=entry.name.removesuffix(SUFFIX)) from error.__cause__
            done += entry.uncompressed_size
            meter.reach(done)
        meter.finish()
        comment = comment_of(directory, source) if chosen is None else chosen.comment
        # Windows cannot replace an open file.
        source.close()
        writer.commit(comment)
        sink.close()
    except BaseException as error:
        sink.discard(error)
        raise


def _tell_uncommitted(source: Source, end_offset: int, limits: Limits) -> None:
    """Name the complete arrays of an unfinished append, which are not written."""
    size = source.size - end_offset
    if size <= 0 or source.is_being_written():
        return
    # Few archives have such an end.
    from npzkit.maintenance.findings import with_arrays
    from npzkit.maintenance.salvage import find_uncommitted

    if left := find_uncommitted(source, limits, end_offset, source.size):
        told = f"{format_count(size, 'byte')} after the last commit left out{with_arrays(left)}"
        warn(told, TornArchiveWarning)


class _Rewriting(NamedTuple):
    """How members are rewritten.

    Attributes
    ----------
    pipeline : Pipeline
    method : int or None
        None keeps the method of each member.
    coding : Coding
        Settings for members that are written again, except the method.
    alignment : int
    size_limit : int or None
        Most bytes of a member.
    """

    pipeline: Pipeline
    method: int | None
    coding: Coding
    alignment: int
    size_limit: int | None

    def write(
        self, source: Source, lists: ChunkLists, entry: Entry, writer: ZipWriter, meter: Meter
    ) -> None:
        """Write one member, unchanged if possible."""
        error = name_error(entry)
        if error is not None:
            shown = shown_key(entry.name.removesuffix(SUFFIX))
            warn(f"{error.what}: {shown} is copied unchanged. {error.remedy}", UserWarning)
            copy_member(source, entry, writer, lists.find, alignment=self.alignment)
            return
        check_entry(entry, self.size_limit)
        start = data_offset(source, entry)
        method = entry.method if self.method is None else self.method
        if method == entry.method and not self._lacks_chunks(lists, entry):
            part = meter.part(entry.uncompressed_size, entry.compressed_size)
            copy_member(
                source, entry, writer, lists.find, alignment=self.alignment, advance=part.add
            )
        else:
            coding = self.coding._replace(method=method)
            self._recode(source, entry, start, writer, coding, meter)

    def _lacks_chunks(self, lists: ChunkLists, entry: Entry) -> bool:
        return (
            entry.method in CHUNKED
            and self.coding.is_seekable
            and entry.uncompressed_size > self.coding.chunk_size
            and lists.find(entry) is None
        )

    def _recode(
        self,
        source: Source,
        entry: Entry,
        start: int,
        writer: ZipWriter,
        coding: Coding,
        meter: Meter,
    ) -> None:
        """Compress a member again, and check its CRC-32."""
        name_size = len(entry.name.encode())
        if name_size > SENTINEL_16:
            raise UnsupportedError(
                "the member's name is too long in UTF-8",
                found=f"{name_size} bytes",
                expected=f"at most {SENTINEL_16} bytes",
                remedy="Copy the member unchanged: "
                + Advice(
                    "compression=None, seekable=False.", "--no-seekable without --compression."
                ),
            )
        stream = MemberStream(source, entry, start)
        data = stream.read_up_to(PIECE_SIZE)
        written = writer.begin_member(
            entry.name, entry.uncompressed_size, self.pipeline,
            coding=coding, extra=foreign_extra(entry.extra), alignment=self.alignment,
            lead_size=npy_header_size(data[:PREFIX_SIZE]),
        )  # fmt: skip
        while data:
            written.write(memoryview(data))
            meter.add(len(data))
            data = stream.read_up_to(PIECE_SIZE)
        stream.finish()
        written.finish()
        self.pipeline.drain()
        check_crc32(written.crc32, entry, start)
