"""Writing an archive anew: aligned, seekable, without dead space.

Owns what becomes of each member: its bytes are copied as they are, unless its
method is to change or it lacks the seek index it could have. Nothing becomes
an array on the way, and no more than some megabytes are held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from npzkit.codecs import DEFLATED, STORED, check_level, crc32, method_number
from npzkit.errors import NpyFormatError, NpzkitError, UnsupportedError
from npzkit.format.header import MAGIC_PREFIX, PREFIX_SIZE, header_size
from npzkit.limits import Limits
from npzkit.parallel import Pipeline, thread_count
from npzkit.sink import open_sink
from npzkit.source import Source, open_source
from npzkit.zip.directory import Directory, read_directory
from npzkit.zip.entries import Entry
from npzkit.zip.extra import foreign_extra
from npzkit.zip.layout import ALIGNMENT
from npzkit.zip.member import check_crc32, check_entry, data_offset
from npzkit.zip.records import SENTINEL_16
from npzkit.zip.sozip import CHUNK_SIZE, SeekIndex, check_chunk_size, find_index
from npzkit.zip.stream import MemberStream
from npzkit.zip.writer import Coding, ZipWriter

__all__ = ["repack"]

_PIECE_SIZE = 1 << 24
_MAX_ALIGNMENT = 1 << 15
"""Padding is an extra field, which takes no more than 64 KiB."""

Progress = Callable[[int, int], object]


class _Member(NamedTuple):
    """A member of the old archive, and how it is to be written.

    Attributes
    ----------
    entry : Entry
    start : int
        Where its bytes begin in the file.
    seek_index : SeekIndex or None
    method : int or None
        None to copy its bytes as they are.
    """

    entry: Entry
    start: int
    seek_index: SeekIndex | None
    method: int | None


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
    progress: Progress | None = None,
) -> None:
    """Write an archive anew: stored arrays aligned, deflated ones seekable.

    What any program wrote can be mapped and sliced afterwards. Members that
    need no change are copied as they are, without inflating them; keys, their
    order, attributes and metadata stay. Dead space is left behind.

    Parameters
    ----------
    src : path, bytes-like or file object
    dst : path or file object, optional
        None replaces `src`, which must be a path: its old file stays until the
        new one is complete, and is kept by whoever has it open.
    compression : {None, "stored", "deflated"} or int
        None keeps each member's method.
    align : int, default 64
        A power of two up to 32768: where arrays that are stored begin.
    level : int, optional
        0 to 9, for what is deflated anew.
    chunk_size : int, default 262_144
        As in `NpzWriter`, for what is deflated anew.
    seekable : bool, default True
        Deflate members of more than one chunk anew where they have no seek
        index. False copies them as they are.
    threads : int, optional
        None takes the processors there are.
    durable : bool, default False
        Wait until the new file is on disk before it takes the old one's place.
    progress : callable, optional
        Called with the uncompressed bytes done and those there are, after
        each member.

    Raises
    ------
    NpzkitError
        The archive is damaged, or a member that is stored or deflated anew;
        `dst` stays as it was.
    UnsupportedError
        A member is encrypted, or in a method that is missing here.
    OSError
        The new file cannot be written; the old one stays.
    ValueError
        A bad argument; or `dst` is a file object on the same file as `src`.

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
            raise ValueError("dst is needed where src is not a path")
        dst = src
    source = open_source(src)
    try:
        if _is_same_file(source, dst):
            raise ValueError("src and dst are one file, which would be overwritten as it is read")
        directory = read_directory(source, starts=(0, source.position), limits=Limits())
        sink = open_sink(dst if hasattr(dst, "write") else os.fsdecode(dst), durable=durable)
        try:
            writer = ZipWriter(sink)
            with Pipeline(thread_count(threads)) as pipeline:
                _copy_all(source, directory, writer, pipeline, wanted, coding, align, progress)
            writer.finish(directory.comment)
        except BaseException:
            sink.abort()
            raise
        sink.commit()
    except NpzkitError as error:
        raise error.locate(path=source.path) from error.__cause__
    finally:
        source.close()


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


def _copy_all(
    source: Source,
    directory: Directory,
    writer: ZipWriter,
    pipeline: Pipeline,
    wanted: int | None,
    coding: Coding,
    align: int,
    progress: Progress | None,
) -> None:
    """Write all members, in their order."""
    entries = list(directory.entries.values())
    total, done = sum(entry.uncompressed_size for entry in entries), 0
    for entry in entries:
        try:
            member = _plan(source, entry, wanted, coding)
            if member.method is None:
                _copy(source, member, writer, pipeline, align)
            else:
                member_coding = coding._replace(method=member.method)
                _recode(source, member, writer, pipeline, member_coding, align)
        except NpzkitError as error:
            raise error.locate(key=entry.name) from error.__cause__
        done += entry.uncompressed_size
        if progress is not None:
            pipeline.drain()
            progress(done, total)


def _plan(source: Source, entry: Entry, wanted: int | None, coding: Coding) -> _Member:
    """Decide whether a member's bytes can stay as they are."""
    check_entry(entry)
    start = data_offset(source, entry)
    index = find_index(source, entry, start)
    method = entry.method if wanted is None else wanted
    lacks_index = (
        method == DEFLATED
        and coding.is_seekable
        and index is None
        and entry.uncompressed_size > coding.chunk_size
    )
    keeps = method == entry.method and not lacks_index
    return _Member(entry, start, index, None if keeps else method)


def _copy(
    source: Source, member: _Member, writer: ZipWriter, pipeline: Pipeline, align: int
) -> None:
    """Copy a member's bytes, aligned anew where they are stored."""
    entry, start = member.entry, member.start
    pipeline.drain()
    lead_size = 0
    if entry.method == STORED:
        prefix = source.read_at(start, min(PREFIX_SIZE, entry.compressed_size))
        lead_size = _header_size(prefix)
    pieces = _pieces(source, start, entry)
    writer.copy_member(
        entry, pieces, member.seek_index, extra=foreign_extra(entry.extra), alignment=align,
        lead_size=lead_size,
    )  # fmt: skip


def _header_size(prefix: bytes) -> int:
    """Return the size of a member's NPY header; 0 where it has none."""
    if not prefix.startswith(MAGIC_PREFIX):
        return 0
    try:
        return header_size(prefix, None)
    except NpyFormatError:
        return 0


def _pieces(source: Source, start: int, entry: Entry) -> Iterator[bytes]:
    """Read a member's bytes as they are; of stored ones the CRC is compared."""
    size, crc = entry.compressed_size, 0
    for offset in range(start, start + size, _PIECE_SIZE):
        piece = source.read_at(offset, min(_PIECE_SIZE, start + size - offset))
        crc = crc32(piece, crc)
        yield piece
    if entry.method == STORED:
        check_crc32(crc, entry, start)


def _recode(
    source: Source,
    member: _Member,
    writer: ZipWriter,
    pipeline: Pipeline,
    coding: Coding,
    align: int,
) -> None:
    """Write a member's uncompressed bytes in another way; its CRC is compared."""
    entry = member.entry
    name_size = len(entry.name.encode())
    if name_size > SENTINEL_16:
        raise UnsupportedError(
            "the member's name is too long to be written in UTF-8",
            found=f"{name_size} bytes",
            expected=f"at most {SENTINEL_16}",
            remedy="Keep its bytes as they are: compression=None, seekable=False.",
        )
    stream = MemberStream(source, entry, member.start)
    data = stream.read_up_to(_PIECE_SIZE)
    written = writer.begin_member(
        entry.name, entry.uncompressed_size, pipeline,
        coding=coding, extra=foreign_extra(entry.extra), alignment=align,
        lead_size=_header_size(data[:PREFIX_SIZE]),
    )  # fmt: skip
    while data:
        written.write(memoryview(data))
        data = stream.read_up_to(_PIECE_SIZE)
    stream.finish()
    written.finish()
    pipeline.drain()
    check_crc32(written.crc32, entry, member.start)
