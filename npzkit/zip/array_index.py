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
                The top bit is set if an index of chunks follows the member, and
                the next one if it has the CRC-32s of the chunks.
        uint16  size of the local header's extra field
    footer, 76 bytes: `npzkit.zip.footer`

A *head* is what a member's data begins with: the NPY header of an array. This
module does not look into it.

The index is only a shortcut: reading a member always checks the member's own headers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from npzkit.errors import NpzkitError
from npzkit.files.source import Source
from npzkit.zip.directory import Directory
from npzkit.zip.entry_columns import Bools, Ints
from npzkit.zip.footer import FOOTER_MAGIC, FOOTER_SIZE
from npzkit.zip.index_notes import (
    BEGIN_SIZE,
    CHECKED,
    HEAD_COUNT,
    HEAD_MASK,
    HEAD_SIZE,
    RAW_INDEX_NAME,
    ROW,
    SEEKABLE,
    Notes,
)
from npzkit.zip.member_checks import data_offset
from npzkit.zip.member_layout import format_hidden
from npzkit.zip.records import LOCAL, LOCAL_HEADER_SIZE

_ROWS = np.dtype([("head", "<u4"), ("extra_size", "<u2")])
_LEAST_SIZE = BEGIN_SIZE + HEAD_COUNT.size + FOOTER_SIZE
_SEARCHED_SIZE = 1 << 20
"""Bytes before a directory in which an index may begin, beside its rows."""


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
        return (self.table["head"] & HEAD_MASK).astype(np.int64)

    @property
    def extra_sizes(self) -> Ints:
        """Bytes of the extra field of each local header."""
        return self.table["extra_size"].astype(np.int64)

    @property
    def has_seek_index(self) -> Bools:
        return self.table["head"] >= SEEKABLE

    @property
    def has_checks(self) -> Bools:
        return (self.table["head"] & CHECKED) > 0

    def row(self, number: int) -> tuple[int, int]:
        """Return the size of an entry's local extra field, and its flags."""
        head, extra_size = self.table[number].item()
        return extra_size, head & ~HEAD_MASK


def read_notes(source: Source, directory: Directory) -> Notes:
    """Return what the index keeps of each member: nothing if there is no valid one."""
    found = find_array_index(source, directory)
    if found is None:
        return Notes()
    table, step = found.table.tobytes(), ROW.size
    rows = [table[start : start + step] for start in range(0, len(table), step)]
    return Notes(found.heads, dict(zip(directory.entries, rows, strict=True)))


def has_damaged_index(source: Source, directory: Directory) -> bool:
    """Return whether an index is before a directory, but is not valid."""
    if directory.footer is not None:
        return find_array_index(source, directory) is None
    end = directory.directory_offset
    size = min(end - directory.start_offset, _SEARCHED_SIZE + ROW.size * len(directory.entries))
    data = source.read_at(end - size, size)
    if data.endswith(FOOTER_MAGIC):
        return _members_end(source, directory) <= end - FOOTER_SIZE
    # A damaged footer does not say where the index begins, but its local header does.
    begin = data.rfind(RAW_INDEX_NAME) - LOCAL_HEADER_SIZE
    return begin >= 0 and begin + BEGIN_SIZE + LOCAL.unpack_from(data, begin)[7] == size


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
    body = memoryview(data)[BEGIN_SIZE:]
    # Its local header is as it was written.
    if format_hidden(RAW_INDEX_NAME, bytes(body)) != data:
        return None
    (head_count,), count = HEAD_COUNT.unpack_from(body), footer.entry_count
    table_offset = len(body) - FOOTER_SIZE - count * ROW.size
    if head_count > count or table_offset < HEAD_COUNT.size:
        return None
    heads = _parse_heads(body[HEAD_COUNT.size : table_offset], head_count)
    if heads is None:
        return None
    found = ArrayIndex(offset, heads, np.frombuffer(body[table_offset:-FOOTER_SIZE], _ROWS))
    # A number without a head would be that of the next head that an append adds.
    return found if found.numbers.max(initial=0) < len(heads) else None


def _parse_heads(data: memoryview, count: int) -> list[bytes] | None:
    """Return an empty head and as many others; None if they do not fill the data."""
    position, heads = 0, [b""]
    for _ in range(count):
        start = position + HEAD_SIZE.size
        if start > len(data):
            return None
        position = start + HEAD_SIZE.unpack_from(data, position)[0]
        heads.append(bytes(data[start:position]))
    return heads if position == len(data) else None
