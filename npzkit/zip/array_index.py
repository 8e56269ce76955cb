"""The array index: the NPY headers of all members, kept before the directory.

Owns the index's bytes, where it is found, and when it is trusted. It is a
stored member with a local header and no entry in the directory, like the seek
indexes of `npzkit.zip.sozip`. With it, one read of a file's end tells the shape
and dtype of every array.

The body is little-endian::

    uint32  version, 1
    uint32  entry_count
    uint32  crc32 of the central directory's entries, their own CRC-32 fields taken as zero:
            a flush of a map rewrites those
    uint32  head_count
    head_count times:  uint16 size, then as many bytes
    entry_count times, in the directory's order:
        uint32  number of the head, from 1; 0 if it is not kept.
                The top bit is set if a seek index follows the member.
        uint16  size of the local header's extra field
    uint64  offset from the archive's start of the hidden member with large metadata, and
    uint64  its size, local header included, for other readers; 0, 0 if there is none.
            `npzkit.zip.long_comment` uses the archive's comment, which says the same.
    uint32  size of the index, its local header included
    bytes   NPZX

A *head* is what a member's data begins with: the NPY header of an array. This
module does not look into it.

The index is only a shortcut: reading a member always checks the member's own headers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.checksum import crc32
from npzkit.files.source import Source
from npzkit.zip.directory import Directory
from npzkit.zip.directory_columns import Bools, Columns, Ints
from npzkit.zip.entries import walk_entries
from npzkit.zip.long_comment import COMMENT_NAME, format_hidden
from npzkit.zip.records import LOCAL_HEADER_SIZE, SENTINEL_16

__all__ = [
    "INDEX_NAME",
    "UNKNOWN",
    "ArrayIndex",
    "Note",
    "find_array_index",
    "format_array_index",
    "is_hidden",
    "read_notes",
]

INDEX_NAME = ".npzkit.index"
_HIDDEN = {INDEX_NAME, COMMENT_NAME}
_RAW_NAME = INDEX_NAME.encode()
_VERSION = 1
_MAGIC = b"NPZX"
_BEGIN = struct.Struct("<LLLL")
_HEAD_SIZE = struct.Struct("<H")
_END = struct.Struct("<QQL4s")
_CRC32_OFFSET = 16
"""Of the field in an entry of the central directory (4.3.12)."""
_SEEKABLE = 1 << 31
_NOTE = np.dtype([("head", "<u4"), ("extra_size", "<u2")])
_LEAST_SIZE = LOCAL_HEADER_SIZE + len(_RAW_NAME) + _BEGIN.size + _END.size


Note = tuple[bytes, int, bool]
"""What the index keeps of one member: its head, the bytes of the extra field of its
local header, and whether a seek index follows it."""
UNKNOWN: Note = (b"", 0, False)
"""Of a member that was written by another program."""


def is_hidden(name: str) -> bool:
    """Whether a member's name is that of an index, or of large metadata."""
    return name in _HIDDEN


class ArrayIndex(NamedTuple):
    """An index that fits its archive.

    Attributes
    ----------
    offset : int
        Where its local header begins in the file.
    heads : list of bytes
        Each distinct head once; the first one is empty.
    numbers : numpy.ndarray of int64
        The head of each entry, in the directory's order.
    extra_sizes : numpy.ndarray of int64
        Bytes of the extra field of each local header.
    has_seek_index : numpy.ndarray of bool
    """

    offset: int
    heads: list[bytes]
    numbers: Ints
    extra_sizes: Ints
    has_seek_index: Bools

    def notes(self) -> Iterator[Note]:
        """Return what is kept of each entry, in the directory's order."""
        heads = map(self.heads.__getitem__, self.numbers.tolist())
        return zip(heads, self.extra_sizes.tolist(), self.has_seek_index.tolist(), strict=True)


def format_array_index(
    notes: Sequence[Note],
    directory: bytes,
    sizes: Iterable[int],
    metadata: tuple[int, int] = (0, 0),
) -> bytes:
    """Format the hidden member: its local header and the index.

    Parameters
    ----------
    notes : sequence of Note
        One per entry of the directory, in its order. Heads over 65,535 bytes are left out.
    directory : bytes
        The central directory, which follows the index in the file.
    sizes : iterable of int
        Bytes of each entry.
    metadata : tuple of int
        Offset from the archive's start and size of the hidden member with large metadata.
    """
    heads, extra_sizes, has_seek_index = zip(*notes, strict=True) if notes else ((), (), ())
    numbers = dict.fromkeys(heads, 0)
    kept = [head for head in numbers if 0 < len(head) <= SENTINEL_16]
    numbers.update(zip(kept, range(1, len(kept) + 1), strict=True))
    count = len(notes)
    table = np.empty(count, _NOTE)
    table["head"] = np.fromiter(map(numbers.__getitem__, heads), np.uint32, count)
    table["head"] |= np.fromiter(has_seek_index, np.uint32, count) << 31
    table["extra_size"] = np.fromiter(extra_sizes, np.uint16, count)
    entry_sizes = np.fromiter(sizes, np.int64, count)
    crc = _masked_crc32(directory, np.cumsum(entry_sizes) - entry_sizes)
    parts: list[Any] = [_BEGIN.pack(_VERSION, count, crc, len(kept))]
    for head in kept:
        parts += (_HEAD_SIZE.pack(len(head)), head)
    parts.append(table.tobytes())
    body_size = sum(map(len, parts)) + _END.size
    size = LOCAL_HEADER_SIZE + len(_RAW_NAME) + body_size
    parts.append(_END.pack(*metadata, size, _MAGIC))
    body = b"".join(parts)
    return format_hidden(INDEX_NAME, body)


def find_array_index(source: Source, directory: Directory) -> ArrayIndex | None:
    """Read the index before a directory; None if there is no valid one."""
    start, end = directory.start_offset, directory.directory_offset
    if end - start < _LEAST_SIZE:
        return None
    *_, size, magic = _END.unpack(source.read_at(end - _END.size, _END.size))
    if magic != _MAGIC or not _LEAST_SIZE <= size <= end - start:
        return None
    offset = end - size
    body = _checked_body(source.read_at(offset, size))
    parsed = None if body is None else _parse(body, len(directory.entries))
    if parsed is None or parsed[1] != _crc32_of(source, directory):
        return None
    return parsed[0]._replace(offset=offset)


def read_notes(source: Source, directory: Directory) -> dict[str, Note]:
    """Return what the index keeps of each member, by name; empty if there is no index."""
    index = find_array_index(source, directory)
    return {} if index is None else dict(zip(directory.entries, index.notes(), strict=True))


def _masked_crc32(directory: bytes, positions: Ints) -> int:
    """Return the CRC-32 of a directory, the CRC-32 field of each entry taken as zero."""
    data = np.frombuffer(bytearray(directory), np.uint8)
    for offset in range(_CRC32_OFFSET, _CRC32_OFFSET + 4):
        data[positions + offset] = 0
    return crc32(data)


def _crc32_of(source: Source, directory: Directory) -> int:
    data = source.read_at(directory.directory_offset, directory.size)
    if isinstance(directory.entries, Columns):
        return _masked_crc32(data, directory.entries.positions)
    return _masked_crc32(data, np.array([begin for begin, _ in walk_entries(data)], np.int64))


def _checked_body(data: bytes) -> memoryview | None:
    """Return the body of the hidden member, if its local header is as it was written."""
    body = data[LOCAL_HEADER_SIZE + len(_RAW_NAME) :]
    return memoryview(body) if format_hidden(INDEX_NAME, body) == data else None


def _parse(body: memoryview, count: int) -> tuple[ArrayIndex, int] | None:
    """Parse a body whose own CRC-32 is right; return it with the CRC-32 of its directory."""
    version, entry_count, crc, head_count = _BEGIN.unpack_from(body)
    if (version, entry_count) != (_VERSION, count) or head_count > count:
        return None
    position, end = _BEGIN.size, len(body) - _END.size - count * _NOTE.itemsize
    heads = [b""]
    for _ in range(head_count):
        if position + _HEAD_SIZE.size > end:
            return None
        start = position + _HEAD_SIZE.size
        position = start + _HEAD_SIZE.unpack_from(body, position)[0]
        if position > end:
            return None
        heads.append(bytes(body[start:position]))
    if position != end:
        return None
    table = np.frombuffer(body, _NOTE, count, end)
    numbers = table["head"] & (_SEEKABLE - 1)
    if count and int(numbers.max()) > head_count:
        return None
    index = ArrayIndex(
        0, heads, numbers.astype(np.int64), table["extra_size"].astype(np.int64),
        table["head"] >= _SEEKABLE,
    )  # fmt: skip
    return index, crc
