"""The array index: what the record keeps of each member, while it is written and when it is read.

Owns the index's bytes, where it is found, and whether it is sound. With it, one read of a file's
end tells the shape and dtype of every array, and where the lists of chunks are.

It is in the record (`npzkit.zip.npzkit_record`), little-endian::

    entry_count times, in the directory's order:
        uint32  number of the head, from 1; 0 if it is not kept.
                The top bit is set if the record has a list of the member's chunks.
        uint16  size of the local header's extra field
    for each member with a list (`npzkit.zip.chunk_list`), in the same order:
        uint64  where the list begins, from the archive's start: maybe in an older record
        uint32  uncompressed bytes of a chunk
    for each head:  uint16 size, then as many bytes

A *head* is what a member's data begins with: the NPY header of an array. This
module does not look into it.

The index is only a shortcut: reading a member always checks the member's own headers.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from npzkit.codecs.checksum import crc32
from npzkit.files.source import Source
from npzkit.zip import npzkit_record
from npzkit.zip.commit import FOOTER_MAGIC
from npzkit.zip.records import SENTINEL_16

if TYPE_CHECKING:
    from npzkit.zip.chunk_list import ChunkList
    from npzkit.zip.directory import Directory
    from npzkit.zip.entries import Entry
    from npzkit.zip.entry_columns import Bools, Ints

_HEAD_SIZE = struct.Struct("<H")
_LISTED = 1 << 31
"""The bit of a row whose member has a list of chunks."""
_ROW = struct.Struct("<LH")
_PLACE = struct.Struct("<QL")
_ROWS = np.dtype([("head", "<u4"), ("extra_size", "<u2")])
_PLACES = np.dtype([("offset", "<u8"), ("chunk_size", "<u4")])
_UNKNOWN = bytes(_ROW.size)
"""The row of a member that was written by another program."""
_PREFIX_SIZE = 16
"""First bytes of a member, by which the size of its head is known."""


def head_of(data: Any, head_size: Callable[[bytes], int]) -> bytes:
    """Return what of a member's first bytes the array index keeps; empty if nothing."""
    size = head_size(bytes(data[:_PREFIX_SIZE]))
    return bytes(data[:size]) if 0 < size <= len(data) else b""


# -- written ------------------------------------------------------------------


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
    places : dict of str to (int, int)
        Where each list of chunks is, and the size of the chunks; taken over.
    """

    def __init__(
        self,
        heads: Sequence[bytes] = (b"",),
        rows: dict[str, bytes] | None = None,
        places: dict[str, tuple[int, int]] | None = None,
    ) -> None:
        self._heads = _Heads(heads)
        self._rows = {} if rows is None else rows
        self._places = places or {}
        # Lists that the next commit writes.
        self._lists: dict[str, ChunkList] = {}
        # Of a new archive in which nothing is replaced, each head is used.
        self._is_new = rows is None

    def enter(self, name: str, head: bytes, extra_size: int, chunks: ChunkList | None) -> None:
        """Keep the note of a member, in place of one of the same name.

        It has the member's head, the bytes of the extra field of its local header, and
        the list of its chunks, if it has one.
        """
        self.enter_plain((name,), (head,), (extra_size,), (chunks,))

    def enter_plain(
        self,
        names: Sequence[str],
        heads: Iterable[bytes],
        extra_sizes: Iterable[int],
        lists: Sequence[ChunkList | None],
    ) -> None:
        """Keep the notes of many members."""
        # Mostly none has a list.
        have_lists = any(lists)
        listed = [one is not None for one in lists] if have_lists else itertools.repeat(False)
        numbers = map(self._heads.__getitem__, heads)
        rows = map(_format_row, numbers, extra_sizes, listed)
        count = len(self._rows) + len(names)
        self._rows.update(zip(names, rows, strict=True))
        self._is_new &= len(self._rows) == count
        if self._lists:
            for name in names:
                self._lists.pop(name, None)
        if have_lists:
            self._lists.update((name, one) for name, one in zip(names, lists, strict=True) if one)

    def find_list(self, source: Source, entry: Entry) -> ChunkList | None:
        """Return the list of a member's chunks; None if it has none that is believed."""
        row = self._rows.get(entry.name, _UNKNOWN)
        if not row[3] & 0x80:
            return None
        written = self._lists.get(entry.name)
        return written or _read_list(source, entry, self._places[entry.name], source.size)

    def put_lists(
        self, added: npzkit_record.RecordWriter, entries: dict[str, bytes]
    ) -> dict[str, tuple[int, int]]:
        """Put the lists that are new in a record; return the places of all."""
        # Threads complete members in any order.
        lists = ((name, self._lists[name]) for name in entries if name in self._lists)
        found = {name: (added.put(one.format()), one.chunk_size) for name, one in lists}
        return {**self._places, **found} if self._places else found

    def format(self, entries: dict[str, bytes], places: dict[str, tuple[int, int]]) -> bytes:
        """Format the index.

        Parameters
        ----------
        entries : dict of str to bytes
            The entries of the directory, by member name.
        places : dict of str to (int, int)
            As `put_lists` returns them.
        """
        rows = [self._rows.get(name, _UNKNOWN) for name in entries]
        # Threads may complete members in another order.
        if self._is_new and list(entries) == list(self._rows):
            heads = self._heads.in_order[1:]
        else:
            heads, rows = self._used(rows)
        if places:
            listed = (name for name, row in zip(entries, rows, strict=True) if row[3] & 0x80)
            rows += [_PLACE.pack(*places[name]) for name in listed]
        for head in heads:
            rows += (_HEAD_SIZE.pack(len(head)), head)
        return b"".join(rows)

    def committed(self, places: dict[str, tuple[int, int]]) -> None:
        """Note that the lists are in the file."""
        self._places = places
        self._lists.clear()

    def _used(self, rows: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Return the heads that some rows use, in their order, and the rows with new numbers."""
        used = _Heads()
        renumbered = {}
        for row in dict.fromkeys(rows):
            number, extra_size = _ROW.unpack(row)
            head = self._heads.in_order[number & ~_LISTED]
            renumbered[row] = _ROW.pack(number & _LISTED | used[head], extra_size)
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
def _format_row(number: int, extra_size: int, is_listed: bool) -> bytes:
    return _ROW.pack(number | is_listed << 31, extra_size)


# -- read ---------------------------------------------------------------------


class ArrayIndex:
    """An index that fits its archive.

    Parameters
    ----------
    names : mapping of str to object
        The directory's entries, by the members' names.

    Attributes
    ----------
    heads : list of bytes
        Each distinct head once; the first one is empty.
    table : numpy.ndarray
        The rows of the entries, in the directory's order, as they are in the file.
    places : numpy.ndarray
        Where the lists of chunks are, of those that have one.
    numbers : numpy.ndarray
        The head of each entry.
    are_listed : numpy.ndarray of bool
        Whether the record has a list of each member's chunks.
    """

    def __init__(
        self,
        heads: list[bytes],
        table: np.ndarray[Any, Any],
        places: np.ndarray[Any, Any],
        are_listed: Bools,
        names: Mapping[str, object],
    ) -> None:
        self.heads, self.table, self.places = heads, table, places
        self.numbers: Ints = (table["head"] & ~np.uint32(_LISTED)).astype(np.int64)
        self.are_listed = are_listed
        self._names = names

    @functools.cached_property
    def extra_sizes(self) -> Ints:
        """Bytes of the extra field of each local header."""
        return self.table["extra_size"].astype(np.int64)

    @functools.cached_property
    def rows(self) -> Mapping[str, int]:
        """The number of each member's row."""
        numbers: Mapping[str, int] | None = getattr(self._names, "row_numbers", None)
        return dict(zip(self._names, itertools.count())) if numbers is None else numbers

    @functools.cached_property
    def _ranks(self) -> Ints:
        return np.cumsum(self.are_listed)

    def extra_size(self, name: str) -> int:
        """Return the bytes of the extra field of a member's local header."""
        size: int = self.table["extra_size"].item(self.rows[name])
        return size

    def is_listed(self, name: str) -> bool:
        """Return whether the record has a list of a member's chunks."""
        number: int = self.table["head"].item(self.rows[name])
        return number >= _LISTED

    def place(self, name: str) -> tuple[int, int] | None:
        """Return where the list of a member's chunks is, from the archive's start, and their size.

        None if it has none.
        """
        number = self.rows[name]
        if self.table["head"].item(number) < _LISTED:
            return None
        place: tuple[int, int] = self.places.item(self._ranks.item(number) - 1)
        return place


def read_notes(source: Source, directory: Directory) -> Notes:
    """Return what the index keeps of each member: nothing if there is no sound one."""
    # Without NumPy, which takes long at first, and which an append needs for nothing else.
    data, names = _index_bytes(source, directory), directory.entries
    if data is None:
        return Notes()
    end = len(names) * _ROW.size
    rows = [data[start : start + _ROW.size] for start in range(0, end, _ROW.size)]
    # Mostly few of them differ.
    kinds = set(rows)
    marked = {row for row in kinds if row[3] & 0x80}
    listed = (
        [name for name, row in zip(names, rows, strict=True) if row in marked] if marked else ()
    )
    heads_offset = end + len(listed) * _PLACE.size
    heads = _parse_heads(memoryview(data)[heads_offset:]) if heads_offset <= len(data) else None
    if heads is None or any(_ROW.unpack(row)[0] & ~_LISTED >= len(heads) for row in kinds):
        return Notes()
    places = _PLACE.iter_unpack(data[end:heads_offset])
    return Notes(heads, dict(zip(names, rows, strict=True)), dict(zip(listed, places, strict=True)))


def find_array_index(source: Source, directory: Directory) -> ArrayIndex | None:
    """Read the index before a directory; None if there is none that is sound."""
    data, count = _index_bytes(source, directory), len(directory.entries)
    if data is None:
        return None
    table = np.frombuffer(data, _ROWS, count)
    places_offset = count * _ROW.size
    are_listed: Bools = table["head"] >= _LISTED
    heads_offset = places_offset + np.count_nonzero(are_listed) * _PLACE.size
    heads = _parse_heads(memoryview(data)[heads_offset:]) if heads_offset <= len(data) else None
    if heads is None:
        return None
    places = np.frombuffer(data[places_offset:heads_offset], _PLACES)
    found = ArrayIndex(heads, table, places, are_listed, directory.entries)
    # A number without a head would be that of the next head that an append adds.
    return found if found.numbers.max(initial=0) < len(heads) else None


def _index_bytes(source: Source, directory: Directory) -> bytes | None:
    """Return the bytes of the index before a directory; None if they do not fit their CRC-32."""
    footer, end = directory.footer, directory.directory_offset
    # Of two members with the same name, one has no entry that counts.
    if footer is None or footer.entry_count != len(directory.entries):
        return None
    size, distance = footer.index_size, footer.index_distance
    if not npzkit_record.extent(size) <= distance <= end - directory.start_offset:
        return None
    data = npzkit_record.read_bytes(source, end - distance, size)
    is_sound = len(data) >= footer.entry_count * _ROW.size and crc32(data) == footer.index_crc32
    return data if is_sound else None


def _parse_heads(data: memoryview) -> list[bytes] | None:
    """Return an empty head and those that fill the data; None if they do not."""
    position, heads = 0, [b""]
    while position < len(data):
        start = position + _HEAD_SIZE.size
        if start > len(data):
            return None
        position = start + _HEAD_SIZE.unpack_from(data, position)[0]
        heads.append(bytes(data[start:position]))
    return heads if position == len(data) else None


def has_damaged_index(source: Source, directory: Directory) -> bool:
    """Return whether a record is before a directory of which anything but a list is damaged."""
    footer, end = directory.footer, directory.directory_offset
    if footer is not None:
        if find_array_index(source, directory) is None:
            return True
        place = max(end - footer.record_size, directory.start_offset)
        while place < end:
            size = npzkit_record.piece_size(
                source.read_at(place, min(npzkit_record.HEAD_SIZE, end - place))
            )
            if not size:
                return True
            place += size
        return place > end
    size = min(end - directory.start_offset, npzkit_record.HEAD_SIZE + npzkit_record.PIECE_SIZE)
    data = source.read_at(end - size, size)
    # A damaged footer does not say where its piece begins, but its head does.
    begin = npzkit_record.find_last(data)
    is_piece = begin >= 0 and begin + npzkit_record.piece_size(data[begin:]) == size
    return is_piece or data.endswith(FOOTER_MAGIC)


class ChunkLists:
    """The lists of the chunks of an archive's members, as its array index says where they are.

    Parameters
    ----------
    source : Source
    directory : Directory, optional
        Without one, nothing is known.
    """

    def __init__(self, source: Source, directory: Directory | None = None) -> None:
        self._source, self._directory = source, directory

    @functools.cached_property
    def index(self) -> ArrayIndex | None:
        """The array index, which is read now unless it was before."""
        directory = self._directory
        return None if directory is None else find_array_index(self._source, directory)

    def span(self, entry: Entry) -> tuple[int, int] | None:
        """Return where a member's list begins and ends in the file; None if it has none."""
        from npzkit.zip.chunk_list import list_size

        place = self._place(entry)
        size = 0 if place is None else list_size(entry, place[1])
        if place is None or self._directory is None or not size:
            return None
        begin, end = place[0], place[0] + npzkit_record.extent(size)
        return (begin, end) if end <= self._directory.directory_offset else None

    def find_near(self, entry: Entry) -> ChunkList | None:
        """Return what `find` does; None if that takes a request."""
        source, directory = self._source, self._directory
        if source.is_distant and directory is not None:
            footer, span = directory.footer, None
            if footer is not None:
                begin = directory.directory_offset - footer.index_distance
                span = None if source.at_hand(begin, 0) is None else self.span(entry)
            if span is None or source.at_hand(span[0], 0) is None:
                return None
        return self.find(entry)

    def find(self, entry: Entry, source: Source | None = None) -> ChunkList | None:
        """Return the list of a member's chunks; None if there is none that is believed.

        It is read from `source`, if that has more at hand than the archive's own.
        """
        place = self._place(entry)
        if place is None or self._directory is None:
            return None
        return _read_list(source or self._source, entry, place, self._directory.directory_offset)

    def _place(self, entry: Entry) -> tuple[int, int] | None:
        """Return where a list begins in the file, and the bytes of a chunk."""
        index, directory = self.index, self._directory
        if index is None or directory is None:
            return None
        listed = directory.entries.get(entry.name)
        if listed is None or listed.header_offset != entry.header_offset:
            return None
        place = index.place(entry.name)
        return place and (place[0] + directory.start_offset, place[1])


def _read_list(source: Source, entry: Entry, place: tuple[int, int], end: int) -> ChunkList | None:
    """Read the list of a member's chunks at a place before `end`; None if it is not believed."""
    from npzkit.zip.chunk_list import list_size, parse_list

    (offset, chunk_size), size = place, list_size(entry, place[1])
    if not size or offset + npzkit_record.extent(size) > end:
        return None
    return parse_list(npzkit_record.read_bytes(source, offset, size), entry, chunk_size)
