"""The array index: the NPY headers of all members, kept before the directory.

Owns the index's bytes, where it is found, and when it is trusted. It is a
stored member with a local header and no entry in the directory, like the seek
indexes of `npzkit.zip.sozip`. With it, one read of a file's end tells the shape
and dtype of every array.

The body is little-endian::

    uint32  head_count
    head_count times:  uint16 size, then as many bytes
    entry_count times, in the directory's order:
        uint32  number of the head, from 1; 0 if it is not kept.
                The top bit is set if a seek index follows the member.
        uint16  size of the local header's extra field
    footer, 76 bytes: `npzkit.zip.footer`

A *head* is what a member's data begins with: the NPY header of an array. This
module does not look into it.

The index is only a shortcut: reading a member always checks the member's own headers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.checksum import crc32
from npzkit.errors import NpzkitError
from npzkit.files.source import Source
from npzkit.zip.commit_marks import COMMENT_NAME, INTENT_NAME
from npzkit.zip.directory import Directory
from npzkit.zip.entries import positions_of
from npzkit.zip.entry_columns import Bools, Ints
from npzkit.zip.footer import FOOTER_MAGIC, FOOTER_SIZE, Footer, masked_crc32
from npzkit.zip.member_checks import data_offset
from npzkit.zip.member_layout import format_hidden
from npzkit.zip.records import LOCAL, LOCAL_HEADER_SIZE, SENTINEL_16

INDEX_NAME = ".npzkit.index"
_HIDDEN = {INDEX_NAME, COMMENT_NAME, INTENT_NAME}
_RAW_NAME = INDEX_NAME.encode()
_HEAD_COUNT = struct.Struct("<L")
_HEAD_SIZE = struct.Struct("<H")
_SEEKABLE = 1 << 31
_ROW = struct.Struct("<LH")
_ROWS = np.dtype([("head", "<u4"), ("extra_size", "<u2")])
_BEGIN_SIZE = LOCAL_HEADER_SIZE + len(_RAW_NAME)
_LEAST_SIZE = _BEGIN_SIZE + _HEAD_COUNT.size + FOOTER_SIZE
_SEARCHED_SIZE = 1 << 20
"""Bytes before a directory in which an index may begin, beside its rows."""
_UNKNOWN = bytes(_ROW.size)
"""The row of a member that was written by another program."""


def is_hidden(name: str) -> bool:
    """Whether a member's name is that of an index, of large metadata, or of an intent."""
    return name in _HIDDEN


class ArrayIndex(NamedTuple):
    """An index that fits its archive.

    Attributes
    ----------
    offset : int
        Where its local header begins in the file.
    heads : list of bytes
        Each distinct head once; the first one is empty.
    table : numpy.ndarray
        The rows of the entries, in the directory's order, as they are in the file.
    """

    offset: int
    heads: list[bytes]
    table: np.ndarray[Any, Any]

    @property
    def numbers(self) -> Ints:
        """The head of each entry."""
        return (self.table["head"] & (_SEEKABLE - 1)).astype(np.int64)

    @property
    def extra_sizes(self) -> Ints:
        """Bytes of the extra field of each local header."""
        return self.table["extra_size"].astype(np.int64)

    @property
    def has_seek_index(self) -> Bools:
        return self.table["head"] >= _SEEKABLE

    def row(self, number: int) -> tuple[int, bool]:
        """Return the size of an entry's local extra field, and whether it has a seek index."""
        head, extra_size = self.table[number].item()
        return extra_size, head >= _SEEKABLE


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
        # Of a new archive in which nothing is replaced, each head is used.
        self._is_new = rows is None

    def enter(self, name: str, head: bytes, extra_size: int, has_seek_index: bool) -> None:
        """Keep the note of a member, in place of one of the same name.

        It has the member's head, the bytes of the extra field of its local header, and
        whether a seek index follows it.
        """
        self._is_new &= name not in self._rows
        self._rows[name] = _format_row(self._heads[head], extra_size, has_seek_index)

    def enter_plain(
        self, names: Sequence[str], heads: Iterable[bytes], extra_sizes: Iterable[int]
    ) -> None:
        """Keep the notes of many members without seek indexes."""
        numbers = map(self._heads.__getitem__, heads)
        rows = map(_format_row, numbers, extra_sizes, repeat(False))
        count = len(self._rows) + len(names)
        self._rows.update(zip(names, rows, strict=True))
        self._is_new &= len(self._rows) == count

    def format(
        self,
        entries: dict[str, bytes],
        directory: bytes,
        offset: int,
        intent_offset: int,
        comment: bytes,
        metadata: tuple[int, int] | None = None,
    ) -> bytes:
        """Format the index as a hidden member.

        Parameters
        ----------
        entries : dict of str to bytes
            The entries of the directory, by member name.
        directory : bytes
            These entries together. They follow the index in the file.
        offset : int
            Where the index is put, from the archive's start.
        intent_offset : int
            Where the commit's intent is; 0 if it has none.
        comment : bytes
            Of the end record.
        metadata : tuple of int, optional
            Offset from the archive's start and size of the hidden member with large metadata.
        """
        rows = [self._rows.get(name, _UNKNOWN) for name in entries]
        if self._is_new and len(rows) == len(self._rows):
            heads = self._heads.in_order[1:]
        else:
            heads, rows = self._used(rows)
        parts = [_HEAD_COUNT.pack(len(heads))]
        for head in heads:
            parts += (_HEAD_SIZE.pack(len(head)), head)
        parts += rows
        body = b"".join(parts)
        size = _BEGIN_SIZE + len(body) + FOOTER_SIZE
        footer = Footer(
            offset + size, len(directory), len(entries), intent_offset, *metadata or (0, 0), size,
            masked_crc32(directory, positions_of(entries.values())), len(comment), crc32(comment),
        )  # fmt: skip
        return format_hidden(_RAW_NAME, body + footer.format())

    def _used(self, rows: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Return the heads that some rows use, in their order, and the rows with new numbers."""
        used = _Heads()
        renumbered = {}
        for row in dict.fromkeys(rows):
            number, extra_size = _ROW.unpack(row)
            head = self._heads.in_order[number & ~_SEEKABLE]
            renumbered[row] = _ROW.pack(number & _SEEKABLE | used[head], extra_size)
        return used.in_order[1:], list(map(renumbered.__getitem__, rows))


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


def read_notes(source: Source, directory: Directory) -> Notes:
    """Return what the index keeps of each member: nothing if there is no valid one."""
    found = find_array_index(source, directory)
    if found is None:
        return Notes()
    table, step = found.table.tobytes(), _ROW.size
    rows = [table[start : start + step] for start in range(0, len(table), step)]
    return Notes(found.heads, dict(zip(directory.entries, rows, strict=True)))


def has_damaged_index(source: Source, directory: Directory) -> bool:
    """Return whether an index is before a directory, but is not valid."""
    if directory.footer is not None:
        return find_array_index(source, directory) is None
    end = directory.directory_offset
    size = min(end - directory.start_offset, _SEARCHED_SIZE + _ROW.size * len(directory.entries))
    data = source.read_at(end - size, size)
    if data.endswith(FOOTER_MAGIC):
        return _members_end(source, directory) <= end - FOOTER_SIZE
    # A damaged footer does not say where the index begins, but its local header does.
    begin = data.rfind(_RAW_NAME) - LOCAL_HEADER_SIZE
    return begin >= 0 and begin + _BEGIN_SIZE + LOCAL.unpack_from(data, begin)[7] == size


def _members_end(source: Source, directory: Directory) -> int:
    """Return where the last member ends, at the latest if its local header is damaged."""
    last = max(directory.entries.values(), key=lambda entry: entry.header_offset, default=None)
    if last is None:
        return directory.start_offset
    try:
        return data_offset(source, last, verify=False) + last.compressed_size
    except NpzkitError:
        return last.end_offset


def find_array_index(source: Source, directory: Directory) -> ArrayIndex | None:
    """Read the index before a directory; None if there is none that is sound."""
    footer, end = directory.footer, directory.directory_offset
    # Of two members with the same name, one has no entry that counts.
    if footer is None or footer.entry_count != len(directory.entries):
        return None
    if not _LEAST_SIZE <= footer.index_size <= end - directory.start_offset:
        return None
    offset = end - footer.index_size
    data = source.read_at(offset, footer.index_size)
    body = memoryview(data)[_BEGIN_SIZE:]
    # Its local header is as it was written.
    if format_hidden(_RAW_NAME, bytes(body)) != data:
        return None
    (head_count,), count = _HEAD_COUNT.unpack_from(body), footer.entry_count
    table_offset = len(body) - FOOTER_SIZE - count * _ROW.size
    if head_count > count or table_offset < _HEAD_COUNT.size:
        return None
    heads = _parse_heads(body[_HEAD_COUNT.size : table_offset], head_count)
    if heads is None:
        return None
    found = ArrayIndex(offset, heads, np.frombuffer(body[table_offset:-FOOTER_SIZE], _ROWS))
    # A number without a head would be that of the next head that an append adds.
    return found if found.numbers.max(initial=0) < len(heads) else None


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
