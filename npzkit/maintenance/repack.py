"""Rewriting an archive: aligned, seekable, without dead space.

Owns what becomes of each member: its bytes are copied as they are
(`npzkit.writing.copy`), unless its method is to change or it is to get the seek
index it lacks. Nothing becomes an array on the way, and no more than some
megabytes are held.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from npzkit.codecs.methods import DEFLATED, STORED, check_level, method_number
from npzkit.errors import NpzkitError, UnsupportedError, shown_key, warn
from npzkit.files.locking import FileLock, check_timeout, lock_path
from npzkit.files.parallel import Pipeline, thread_count
from npzkit.files.path_sink import PathSink, open_sink
from npzkit.files.progress import Meter, Report
from npzkit.files.sink import Sink, WrittenSource
from npzkit.files.source import Source, open_source
from npzkit.format.header import PREFIX_SIZE
from npzkit.limits import Limits
from npzkit.members.keys import SUFFIX
from npzkit.writing.copy import PIECE_SIZE, copy_member, lead_size
from npzkit.zip.directory import read_directory
from npzkit.zip.entries import Entry, name_error
from npzkit.zip.extra import foreign_extra
from npzkit.zip.layout import ALIGNMENT
from npzkit.zip.member import check_crc32, check_entry, data_offset
from npzkit.zip.raw_entries import dead_size, has_first_member
from npzkit.zip.records import SENTINEL_16
from npzkit.zip.sozip import CHUNK_SIZE, check_chunk_size, find_index
from npzkit.zip.stream import MemberStream
from npzkit.zip.writer import Coding, ZipWriter

__all__ = ["repack", "repack_dead"]

_MAX_ALIGNMENT = 1 << 15
"""Padding is an extra field, which takes no more than 64 KiB."""


def repack(
    src: Any,
    dst: Any = None,
    compression: str | int | None = None,
    align: int = ALIGNMENT,
    *,
    level: int | None = None,
    chunk_size: int = CHUNK_SIZE,
    seekable: bool = True,
    threads: int | None = None,
    durable: bool = False,
    lock_timeout: float | None = None,
    progress: Report | None = None,
) -> None:
    """Rewrite an archive: stored arrays aligned, deflated ones seekable.

    What any program wrote can be mapped and sliced afterwards. Members that
    need no change are copied as they are, without inflating them; keys, their
    order, attributes and metadata stay. Dead space is left behind.

    Parameters
    ----------
    src : path, bytes-like, file object or NpzFile
        An `NpzFile` stays open, onto the old file.
    dst : path or file object, optional
        None replaces `src`, which must be a path: its old file stays until the
        new one is complete, and is kept by whoever has it open.
    compression : {None, "stored", "deflated"} or int
        None keeps each member's method.
    align : int, default 64
        A power of two up to 32768: where arrays that are stored begin.
    level : int, optional
        0 to 9, for members that are deflated again.
    chunk_size : int, default 262_144
        As in `NpzWriter`, for members that are deflated again.
    seekable : bool, default True
        Deflate members of more than one chunk again if they have no seek
        index. False copies them as they are.
    threads : int, optional
        None takes the processors there are.
    durable : bool, default False
        Wait until the new file is on disk before it takes the old one's place.
    lock_timeout : float, optional
        Seconds to wait where another writer has the file that is replaced.
    progress : callable, optional
        Called with the uncompressed bytes done and those there are: every few
        megabytes, and at the end.

    Raises
    ------
    NpzkitError
        The archive is damaged, or a member that is stored or deflated again;
        `dst` stays as it was.
    UnsupportedError
        A member is encrypted, or in a method that is missing here.
    ArchiveLockedError
        Another writer has the file that is to be replaced.
    OSError
        The new file cannot be written; the old one stays.
    ValueError
        A bad argument; or `dst` is a file object on the same file as `src`.

    Warns
    -----
    UserWarning
        A member's name cannot be used: it is copied as it is.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> old, new = io.BytesIO(), io.BytesIO()
    >>> np.savez_compressed(old, x=np.arange(100_000))
    >>> npzkit.repack(old, new)
    >>> npzkit.open(new).info("x").seekable
    True
    """
    wanted = None if compression is None else method_number(compression)
    if align < 1 or align & (align - 1) or align > _MAX_ALIGNMENT:
        raise ValueError(f"align must be a power of two up to {_MAX_ALIGNMENT}, not {align!r}")
    coding = Coding(STORED, check_level(level), check_chunk_size(chunk_size), seekable)
    if dst is None:
        if not isinstance(src, (str, os.PathLike)):
            raise ValueError("dst is needed unless src is a path")
        dst = src
    timeout = check_timeout(lock_timeout)
    if not hasattr(dst, "write"):
        dst = os.fsdecode(dst)
    # What is replaced must not be written to while it is read.
    lock = lock_path(dst, timeout) if _is_replaced(src, dst) else None
    with lock or contextlib.nullcontext():
        source = open_source(src)
        try:
            source.is_locked = lock is not None
            if _is_same_file(source, dst):
                raise ValueError(
                    "src and dst are one file, which would be overwritten as it is read"
                )
            with Pipeline(thread_count(threads)) as pipeline:
                rewriting = _Rewriting(pipeline, wanted, coding, align)
                open_dst = partial(_open_sink, dst, lock, durable, timeout)
                _write(source, open_dst, rewriting.write, progress)
        except NpzkitError as error:
            raise error.locate(path=source.path) from error.__cause__
        finally:
            source.close()


def repack_dead(sink: Sink, *, durable: bool) -> None:
    """Rewrite the archive that was committed to `sink`, if that is worth it.

    That is where more than half of it is dead, or 7-Zip would show what was
    there before its first member was removed. Every member is copied as it is.
    Closes the sink.

    Warns
    -----
    RuntimeWarning
        It could not be done; the archive stays as it was committed.
    """
    if not isinstance(sink, PathSink):
        return
    try:
        written = WrittenSource(sink, sink.committed_size)
        directory = read_directory(written, silent=True, limits=Limits())
        is_shadowed = not has_first_member(directory)
        if not is_shadowed and 2 * dead_size(written, directory) <= directory.end_offset:
            return
        with sink.hand_over() as lock:
            source = open_source(sink.path)
            try:
                _write(source, partial(PathSink, sink.path, durable=durable, lock=lock), _copy)
            finally:
                source.close()
    except (NpzkitError, OSError) as error:
        warn(
            f"the archive is complete, but its dead space could not be given back: {error}",
            RuntimeWarning,
        )


def _copy(source: Source, entry: Entry, writer: ZipWriter, meter: Meter) -> None:
    """Copy a member as it is, damaged or not: this is not the time to find out."""
    copy_member(source, entry, writer, verify=False)


def _is_replaced(src: Any, dst: Any) -> bool:
    """Whether `dst` is the path of what is read."""
    if hasattr(dst, "write") or not isinstance(src, (str, os.PathLike)):
        return False
    try:
        return os.path.samefile(src, dst)
    except FileNotFoundError:
        return False


def _open_sink(dst: Any, lock: FileLock | None, durable: bool, timeout: float) -> Sink:
    if lock is not None:
        return PathSink(dst, durable=durable, lock=lock)
    return open_sink(dst, durable=durable, lock_timeout=timeout)


def _is_same_file(source: Source, dst: Any) -> bool:
    """Whether a file object writes to what is read; a path is replaced when all is read."""
    if not hasattr(dst, "write"):
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
    write_member: Callable[[Source, Entry, ZipWriter, Meter], None],
    progress: Report | None = None,
) -> None:
    """Write all members, in their order, and put the new archive in its place."""
    sink = open_dst()
    try:
        directory = read_directory(source, starts=(0, source.position), limits=Limits())
        entries = list(directory.entries.values())
        total, done = sum(entry.uncompressed_size for entry in entries), 0
        meter = Meter(progress, total)
        writer = ZipWriter(sink)
        for entry in entries:
            try:
                write_member(source, entry, writer, meter)
            except NpzkitError as error:
                raise error.locate(key=entry.name.removesuffix(SUFFIX)) from error.__cause__
            done += entry.uncompressed_size
            meter.reach(done)
        meter.finish()
        # Windows does not replace a file that is open.
        source.close()
        writer.commit(directory.comment)
        sink.close()
    except BaseException as error:
        # Where only the folder could not be synced, the new file is there.
        state = "is in its place" if sink.committed_size else "was discarded"
        try:
            sink.abort()
        except OSError as second:
            state += f", but could not be removed: {second}"
        error.add_note(f"npzkit: the new archive {state}.")
        raise


class _Rewriting(NamedTuple):
    """How members are rewritten.

    Attributes
    ----------
    pipeline : Pipeline
    method : int or None
        None to keep each member's.
    coding : Coding
        For members that are deflated or stored again, except for the method.
    alignment : int
    """

    pipeline: Pipeline
    method: int | None
    coding: Coding
    alignment: int

    def write(self, source: Source, entry: Entry, writer: ZipWriter, meter: Meter) -> None:
        """Write one member: as it is, where its bytes can stay."""
        error = name_error(entry)
        if error is not None:
            shown = shown_key(entry.name.removesuffix(SUFFIX))
            warn(f"{error.what}: {shown} is copied as it is. {error.remedy}", UserWarning)
            copy_member(source, entry, writer, alignment=self.alignment)
            return
        check_entry(entry)
        start = data_offset(source, entry)
        method = entry.method if self.method is None else self.method
        if method == entry.method and not self._lacks_index(source, entry, start):
            part = meter.part(entry.uncompressed_size, entry.compressed_size)
            copy_member(source, entry, writer, alignment=self.alignment, advance=part.add)
        else:
            coding = self.coding._replace(method=method)
            self._recode(source, entry, start, writer, coding, meter)

    def _lacks_index(self, source: Source, entry: Entry, start: int) -> bool:
        return (
            entry.method == DEFLATED
            and self.coding.is_seekable
            and entry.uncompressed_size > self.coding.chunk_size
            and find_index(source, entry, start) is None
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
        """Write a member's uncompressed bytes in another way; its CRC is compared."""
        name_size = len(entry.name.encode())
        if name_size > SENTINEL_16:
            raise UnsupportedError(
                "the member's name is too long to be written in UTF-8",
                found=f"{name_size} bytes",
                expected=f"at most {SENTINEL_16}",
                remedy="Keep its bytes as they are: compression=None, seekable=False.",
            )
        stream = MemberStream(source, entry, start)
        data = stream.read_up_to(PIECE_SIZE)
        written = writer.begin_member(
            entry.name, entry.uncompressed_size, self.pipeline,
            coding=coding, extra=foreign_extra(entry.extra), alignment=self.alignment,
            lead_size=lead_size(data[:PREFIX_SIZE]),
        )  # fmt: skip
        while data:
            written.write(memoryview(data))
            meter.add(len(data))
            data = stream.read_up_to(PIECE_SIZE)
        stream.finish()
        written.finish()
        self.pipeline.drain()
        check_crc32(written.crc32, entry, start)
