"""What the array index of an archive will keep of its members, while the archive is written.

Owns the rows and the heads, and formats them; `npzkit.zip.array_index` says what the bytes are,
and reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from npzkit.codecs.checksum import crc32
from npzkit.zip.commit_marks import COMMENT_NAME, INTENT_NAME
from npzkit.zip.entries import positions_of
from npzkit.zip.footer import FOOTER_SIZE, Footer, masked_crc32
from npzkit.zip.member_layout import format_hidden
from npzkit.zip.records import LOCAL_HEADER_SIZE, SENTINEL_16

INDEX_NAME = ".npzkit.index"
RAW_INDEX_NAME = INDEX_NAME.encode()
HIDDEN_NAMES = {INDEX_NAME, COMMENT_NAME, INTENT_NAME}
"""Of members that no directory lists, beside the indexes of `npzkit.zip.sozip`."""
HEAD_COUNT = struct.Struct("<L")
HEAD_SIZE = struct.Struct("<H")
SEEKABLE, CHECKED = 1 << 31, 1 << 30
"""Bits of a row: an index of chunks follows the member, and it has the CRC-32s of the chunks."""
HEAD_MASK = CHECKED - 1
ROW = struct.Struct("<LH")
BEGIN_SIZE = LOCAL_HEADER_SIZE + len(RAW_INDEX_NAME)
_UNKNOWN = bytes(ROW.size)
"""The row of a member that was written by another program."""
_PREFIX_SIZE = 16
"""First bytes of a member, by which the size of its head is known."""


def head_of(data: Any, head_size: Callable[[bytes], int]) -> bytes:
    """Return what of a member's first bytes the array index keeps; empty if nothing."""
    size = head_size(bytes(data[:_PREFIX_SIZE]))
    return bytes(data[:size]) if 0 < size <= len(data) else b""


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

    def enter(self, name: str, head: bytes, extra_size: int, flags: int) -> None:
        """Keep the note of a member, in place of one of the same name.

        It has the member's head, the bytes of the extra field of its local header, and the
        flags `SEEKABLE` and `CHECKED`.
        """
        self._is_new &= name not in self._rows
        self._rows[name] = _format_row(self._heads[head], extra_size, flags)

    def enter_plain(
        self,
        names: Sequence[str],
        heads: Iterable[bytes],
        extra_sizes: Iterable[int],
        flags: Iterable[int],
    ) -> None:
        """Keep the notes of many members."""
        numbers = map(self._heads.__getitem__, heads)
        rows = map(_format_row, numbers, extra_sizes, flags)
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
        # Threads may complete members in another order.
        if self._is_new and list(entries) == list(self._rows):
            heads = self._heads.in_order[1:]
        else:
            heads, rows = self._used(rows)
        parts = [HEAD_COUNT.pack(len(heads))]
        for head in heads:
            parts += (HEAD_SIZE.pack(len(head)), head)
        parts += rows
        body = b"".join(parts)
        size = BEGIN_SIZE + len(body) + FOOTER_SIZE
        footer = Footer(
            offset + size, len(directory), len(entries), intent_offset, *metadata or (0, 0), size,
            masked_crc32(directory, positions_of(entries.values())), len(comment), crc32(comment),
        )  # fmt: skip
        return format_hidden(RAW_INDEX_NAME, body + footer.format())

    def _used(self, rows: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Return the heads that some rows use, in their order, and the rows with new numbers."""
        used = _Heads()
        renumbered = {}
        for row in dict.fromkeys(rows):
            number, extra_size = ROW.unpack(row)
            head = self._heads.in_order[number & HEAD_MASK]
            renumbered[row] = ROW.pack(number & ~HEAD_MASK | used[head], extra_size)
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
def _format_row(number: int, extra_size: int, flags: int) -> bytes:
    return ROW.pack(number | flags, extra_size)
