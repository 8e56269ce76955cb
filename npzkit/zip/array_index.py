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
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.checksum import crc32
from npzkit.files.source import Source
from npzkit.zip.directory import Directory
from npzkit.zip.directory_columns import Bools, Ints, windows_of
from npzkit.zip.long_comment import COMMENT_NAME, format_hidden
from npzkit.zip.records import LOCAL_HEADER_SIZE, SENTINEL_16

__all__ = [
    "INDEX_NAME",
    "ArrayIndex",
    "Note",
    "Notes",
    "find_array_index",
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
_ROW = struct.Struct("<LH")
_ROWS = np.dtype([("head", "<u4"), ("extra_size", "<u2")])
_FEW = 200
"""Fewer entries are changed one by one, which takes less time than NumPy's start."""
_LEAST_SIZE = LOCAL_HEADER_SIZE + len(_RAW_NAME) + _BEGIN.size + _END.size
_UNKNOWN = bytes(_ROW.size)
"""The row of a member that was written by another program."""


Note = tuple[bytes, int, bool]
"""What the index keeps of one member: its head, the bytes of the extra field of its
local header, and whether a seek index follows it."""


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


class Notes:
    """What the index of an archive will keep of its members, while the archive is written.

    Rows are kept as the bytes that they are in the file, so that an append does
    not parse and format those of all members.

    Parameters
    ----------
    heads : sequence of bytes
        Of the index that is there; the first one is empty.
    rows : dict of str to bytes
        The same index's row for each member; taken over.
    """

    def __init__(
        self, heads: Sequence[bytes] = (b"",), rows: dict[str, bytes] | None = None
    ) -> None:
        self._heads = _Heads(heads)
        self._rows = {} if rows is None else rows

    def enter(self, name: str, note: Note) -> None:
        """Keep a member's note, in place of one of the same name."""
        head, extra_size, has_seek_index = note
        self._rows[name] = _format_row(self._heads[head], extra_size, has_seek_index)

    def enter_plain(
        self, names: Iterable[str], heads: Iterable[bytes], extra_sizes: Iterable[int]
    ) -> None:
        """Keep the notes of many members without seek indexes."""
        numbers = map(self._heads.__getitem__, heads)
        rows = map(_format_row, numbers, extra_sizes, repeat(False))
        self._rows.update(zip(names, rows, strict=True))

    def format(
        self,
        entries: dict[str, bytes],
        directory: bytes,
        metadata: tuple[int, int] | None = None,
    ) -> bytes:
        """Format the index as a hidden member; empty if it would say nothing.

        Parameters
        ----------
        entries : dict of str to bytes
            The entries of the directory, by member name.
        directory : bytes
            These entries together. They follow the index in the file.
        metadata : tuple of int, optional
            Offset from the archive's start and size of the hidden member with large metadata.
        """
        rows = list(map(self._rows.get, entries, repeat(_UNKNOWN)))
        heads, renumbered = self._used(dict.fromkeys(rows))
        if not heads and metadata is None:
            return b""
        positions = list(accumulate(map(len, entries.values()), initial=0))
        crc = _masked_crc32(directory, positions[:-1])
        parts = [_BEGIN.pack(_VERSION, len(rows), crc, len(heads))]
        for head in heads:
            parts += (_HEAD_SIZE.pack(len(head)), head)
        parts += map(renumbered.__getitem__, rows)
        body = b"".join(parts)
        size = LOCAL_HEADER_SIZE + len(_RAW_NAME) + len(body) + _END.size
        return format_hidden(INDEX_NAME, body + _END.pack(*metadata or (0, 0), size, _MAGIC))

    def _used(self, rows: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, bytes]]:
        """Return the heads that some rows use, in their order, and each row with its new number."""
        used = _Heads()
        renumbered = {}
        for row in rows:
            number, extra_size = _ROW.unpack(row)
            head = self._heads.in_order[number & ~_SEEKABLE]
            renumbered[row] = _ROW.pack(number & _SEEKABLE | used[head], extra_size)
        return used.in_order[1:], renumbered


class _Heads(dict[bytes, int]):
    """The number of each head, counted up as they come.

    Attributes
    ----------
    in_order : list of bytes
    """

    def __init__(self, heads: Sequence[bytes] = (b"",)) -> None:
        super().__init__(zip(heads, range(len(heads)), strict=True))
        self.in_order = list(heads)

    def __missing__(self, head: bytes) -> int:
        if len(head) > SENTINEL_16:
            return 0
        number = self[head] = len(self.in_order)
        self.in_order.append(head)
        return number


@lru_cache(256)
def _format_row(number: int, extra_size: int, has_seek_index: bool) -> bytes:
    return _ROW.pack(number | has_seek_index << 31, extra_size)


class _Body(NamedTuple):
    """An index that fits its directory, and whose rows have heads."""

    offset: int
    heads: list[bytes]
    table: np.ndarray[Any, Any]
    numbers: Ints


def find_array_index(source: Source, directory: Directory) -> ArrayIndex | None:
    """Read the index before a directory; None if there is no valid one."""
    found = _find(source, directory)
    if found is None:
        return None
    offset, heads, table, numbers = found
    extra_sizes = table["extra_size"].astype(np.int64)
    return ArrayIndex(offset, heads, numbers, extra_sizes, table["head"] >= _SEEKABLE)


def read_notes(source: Source, directory: Directory) -> Notes:
    """Return what the index keeps of each member: nothing if there is no valid one."""
    found = _find(source, directory)
    if found is None:
        return Notes()
    table, step = found.table.tobytes(), _ROW.size
    rows = [table[start : start + step] for start in range(0, len(table), step)]
    return Notes(found.heads, dict(zip(directory.entries, rows, strict=True)))


def _find(source: Source, directory: Directory) -> _Body | None:
    """Read the index before a directory; None if there is none that fits it."""
    start, end = directory.start_offset, directory.directory_offset
    if end - start < _LEAST_SIZE:
        return None
    *_, size, magic = _END.unpack(source.read_at(end - _END.size, _END.size))
    if magic != _MAGIC or not _LEAST_SIZE <= size <= end - start:
        return None
    body = _checked_body(source.read_at(end - size, size))
    if body is None:
        return None
    version, count, crc, head_count = _BEGIN.unpack_from(body)
    if (version, count) != (_VERSION, len(directory.entries)) or head_count > count:
        return None
    table_offset = len(body) - _END.size - count * _ROW.size
    if table_offset < _BEGIN.size:
        return None
    heads = _parse_heads(body[_BEGIN.size : table_offset], head_count)
    if heads is None or crc != _masked_crc32(directory.data, directory.positions):
        return None
    table = np.frombuffer(body[table_offset : -_END.size], _ROWS)
    numbers = (table["head"] & (_SEEKABLE - 1)).astype(np.int64)
    # A number without a head would be that of the next head that an append adds.
    return None if np.any(numbers >= len(heads)) else _Body(end - size, heads, table, numbers)


def _masked_crc32(directory: bytes, positions: Sequence[int] | Ints) -> int:
    """Return the CRC-32 of a directory, the CRC-32 field of each entry taken as zero."""
    data = bytearray(directory)
    if len(positions) < _FEW:
        for position in positions:
            data[position + _CRC32_OFFSET : position + _CRC32_OFFSET + 4] = bytes(4)
    else:
        windows_of(data, "<u4")[np.asarray(positions) + _CRC32_OFFSET] = 0
    return crc32(data)


def _checked_body(data: bytes) -> memoryview | None:
    """Return the body of the hidden member, if its local header is as it was written."""
    body = data[LOCAL_HEADER_SIZE + len(_RAW_NAME) :]
    return memoryview(body) if format_hidden(INDEX_NAME, body) == data else None


def _parse_heads(data: memoryview, count: int) -> list[bytes] | None:
    """Return an empty head and as many others; None if they do not fill the data."""
    position, heads = 0, [b""]
    for _ in range(count):
        start = position + _HEAD_SIZE.size
        if start > len(data):
            return None
        position = start + _HEAD_SIZE.unpack_from(data, position)[0]
        heads.append(bytes(data[start:position]))
    return heads if position == len(data) else None
