"""A member copied without decompression, from one archive or place to another.

Owns the copy of one member: its compressed bytes, the list of its chunks, its
alignment. Only a few megabytes are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from npzkit.codecs.checksum import ChunkChecks
from npzkit.codecs.coding import CHECKED_SIZE, STORED
from npzkit.errors import NpzkitError
from npzkit.files.progress import Advance
from npzkit.files.source import Source, WrittenSource
from npzkit.format.header import PREFIX_SIZE, npy_header_size
from npzkit.zip.chunk_list import ChunkList, stored_chunks
from npzkit.zip.entries import Entry, accepting_name, parse_entry
from npzkit.zip.extra_fields import UNICODE_PATH_ID, foreign_extra
from npzkit.zip.local_header import check_crc32, check_entry, data_offset
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.records import FLAG_UTF8, KEPT_FLAGS, SENTINEL_16
from npzkit.zip.writer import ZipWriter
from npzkit.zip.written_header import ALIGNMENT, header_of

PIECE_SIZE = 1 << 24
"""Bytes that are read and written at a time."""


def copy_member(
    source: Source,
    entry: Entry,
    writer: ZipWriter,
    find_list: Callable[[Entry], ChunkList | None],
    *,
    renamed: Entry | None = None,
    alignment: int = ALIGNMENT,
    verify: bool = True,
    advance: Advance | None = None,
) -> None:
    """Write a copy of a member with the same compressed bytes, whatever its name.

    Parameters
    ----------
    source : Source
    entry : Entry
        Of the member in `source`.
    writer : ZipWriter
        Must not be writing another member.
    find_list : callable
        Returns the list of a compressed member's chunks, if the copy is to have it.
    renamed : Entry, optional
        The entry with another name, from `rename_entry`.
    alignment : int, default 64
        Of the data of a stored array.
    verify : bool, default True
        Check the CRC-32 of a stored member.
    advance : callable, optional
        Called with the number of compressed bytes after each read.

    Raises
    ------
    ZipFormatError, ChecksumError
        The member is damaged; part of it may have been written.
    UnsupportedError
        The member is encrypted, or cannot be copied for a similar reason.
    """
    entry, start = check_copyable(source, entry)
    checks = ChunkChecks(CHECKED_SIZE)
    lead = 0
    if entry.method == STORED:
        lead = npy_header_size(source.read_at(start, min(PREFIX_SIZE, entry.compressed_size)))

    def take_chunks() -> ChunkList | None:
        if entry.method != STORED:
            return find_list(entry)
        return stored_chunks(checks.crc32s, checks.size) if checks.crc32 == entry.crc32 else None

    target = entry if renamed is None else renamed
    kept = target._replace(flags=target.flags & KEPT_FLAGS, extra=foreign_extra(target.extra))
    pieces = _pieces(source, start, entry, checks, verify=verify, advance=advance)
    head = _read_npy_header(source, entry, start)
    writer.put_member(target.name, header_of(kept), pieces, head, take_chunks, alignment, lead)


def copy_down(writer: ZipWriter) -> None:
    """Write an archive, of which nothing was committed, again without what it does not list.

    Each member is copied to a place before its own in the same file.
    """
    source = WrittenSource(writer.sink, writer.sink.position)
    entries = {name: parse_entry(record, source.size) for name, record in writer.listed.items()}
    lists = {name: writer.find_list(source, entry) for name, entry in entries.items()}
    new = writer.rewound()
    for entry in sorted(entries.values(), key=attrgetter("header_offset")):
        copy_member(source, entry, new, lambda entry: lists[entry.name], verify=False)
    new.listed = {name: new.listed[name] for name in entries}
    writer.sink.cut_rest()
    writer.take(new)


def _read_npy_header(source: Source, entry: Entry, start: int) -> bytes:
    """Return a member's NPY header as it is; empty if it has none that can be read."""
    try:
        stream = MemberStream(source, entry, start, verify=False)
        prefix = stream.read_up_to(PREFIX_SIZE)
        size = npy_header_size(prefix)
        if not len(prefix) < size <= SENTINEL_16:
            return b""
        data = prefix + stream.read_up_to(size - len(prefix))
    except NpzkitError:
        return b""
    return data if len(data) == size else b""


def check_copyable(source: Source, entry: Entry) -> tuple[Entry, int]:
    """Return the entry to copy, and where its data begins.

    Raises the errors that `copy_member` raises before it writes.
    """
    entry = accepting_name(entry)
    check_entry(entry)
    return entry, data_offset(source, entry)


def rename_entry(entry: Entry, name: str) -> Entry:
    """Return a member's entry under another name."""
    raw_name = name.encode()
    flags = entry.flags & ~FLAG_UTF8 | (0 if raw_name.isascii() else FLAG_UTF8)
    extra = foreign_extra(entry.extra, UNICODE_PATH_ID)
    return entry._replace(name=name, raw_name=raw_name, flags=flags, extra=extra)


def _pieces(
    source: Source,
    start: int,
    entry: Entry,
    checks: ChunkChecks,
    *,
    verify: bool,
    advance: Advance | None,
) -> Iterator[bytes]:
    """Yield a member's compressed bytes; take those of a stored one into `checks`."""
    end = start + entry.compressed_size
    is_stored = entry.method == STORED
    for offset in range(start, end, PIECE_SIZE):
        piece = source.read_at(offset, min(PIECE_SIZE, end - offset))
        if is_stored:
            checks.add(piece)
        yield piece
        if advance is not None:
            advance(len(piece))
    if is_stored and verify:
        check_crc32(checks.crc32, entry, start)
