"""What is left of a damaged array: in its sound chunks, or before the end of a truncated file.

Owns which of them are damaged, what a report says of them, and the array that is made of the
others. Knows no other array but the mask of a masked one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.coding import CHUNKED, DEFLATED, MAX_RATIOS, STORED, Coding
from npzkit.errors import REST_SAVED, LimitExceededError, NpzkitError, some_of
from npzkit.files.block_reading import crc32_at
from npzkit.files.request_sizes import merged
from npzkit.files.threads import Pipeline
from npzkit.format.array import npy_header, read_header
from npzkit.format.header import NpyHeader
from npzkit.members.keys import SUFFIX
from npzkit.members.metadata import MASK, PARTS_ATTRIBUTE, format_attrs, other_suffixes, parse_attrs
from npzkit.reading.member import MemberReader
from npzkit.zip.chunks import Chunks, open_chunks
from npzkit.zip.entries import Entry
from npzkit.zip.extra_fields import KEY_VALUE_PAIRS_ID, UNICODE_PATH_ID, foreign_extra
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.records import FLAG_DESCRIPTOR, SENTINEL_16
from npzkit.zip.writer import ZipWriter

_STEP_SIZE = 1 << 18
_LOST_ATTRIBUTE = "partly_lost"
_SHOWN_COUNT = 5
"""Damaged chunks, and ranges of rows, that are named one by one."""

Ranges = Sequence[tuple[int, int]]
Read = Callable[[int, memoryview], object]
"""Fills a view with the bytes at an offset of an array's data."""

WRAP = 1 << 32
"""Where sizes of four bytes begin again at 0."""


class Damage(NamedTuple):
    """The damaged chunks of a member.

    Attributes
    ----------
    chunks : Chunks
        With known CRC-32s.
    numbers : list of int
        Of the damaged ones, from 0.
    header : NpyHeader or None
        None if it is not known which array this is.
    offset : int or None
        Bytes from the start of the file to the first damaged chunk.
    """

    chunks: Chunks
    numbers: list[int]
    header: NpyHeader | None
    offset: int | None

    def ranges(self, size: int) -> Ranges:
        """Return the ranges of rows or items, of so many bytes each, that are damaged."""
        if self.header is None or not size:
            return []
        start, end, step = self.header.data_offset, self.header.nbytes, self.chunks.chunk_size
        places = [number * step - start for number in self.numbers]
        return merged((max(at, 0) // size, -(-min(at + step, end) // size)) for at in places)

    @property
    def rows(self) -> Ranges:
        """The ranges of damaged rows; none if the array has no rows, or is not known."""
        return [] if self.header is None else self.ranges(self.header.row_size)

    @property
    def what(self) -> str:
        """The damaged chunks, counted from 1 as in the errors of reads, and rows."""
        chunks = some_of(self.numbers, lambda number: f"{number + 1:,}", _SHOWN_COUNT)
        text = f"damaged {'chunk' if len(self.numbers) == 1 else 'chunks'} {chunks}"
        rows = some_of(self.rows, _rows_text, _SHOWN_COUNT)
        text += f" of {self.chunks.count:,}"
        word = "row" if sum(end - start for start, end in self.rows) == 1 else "rows"
        return f"{text}, in {word} {rows}" if rows else text

    def __str__(self) -> str:
        """Return `what`, and how to save the rest."""
        if self.header is None:
            return self.what
        return self.what + "; " + REST_SAVED


def _rows_text(row: tuple[int, int]) -> str:
    """Return which rows are in a range, so that it is not taken for a slice."""
    first, last = row[0], row[1] - 1
    if last - first < 2:
        return f"{first:,} and {last:,}" if last > first else f"{first:,}"
    return f"{first:,} to {last:,} (included)"


def find_damage(reader: MemberReader, entry: Entry, header: NpyHeader | None) -> Damage | None:
    """Return the damaged chunks of a member; None if there are none, or if they are not known.

    Parameters
    ----------
    reader : MemberReader
    entry : Entry
    header : NpyHeader or None
        What the array index says, which needs no sound chunk.
    """
    chunks = reader.checked_chunks(entry)
    found = {} if chunks is None else dict(chunks.damaged())
    if chunks is None or not found:
        return None
    numbers = list(found)
    if header is None:
        with contextlib.suppress(NpzkitError):
            header = reader.find_header(entry)[0]
        if header is not None and numbers[0] * chunks.chunk_size < header.data_offset:
            header = None
    if header is not None and header.data_offset + header.nbytes != entry.uncompressed_size:
        header = None
    return Damage(chunks, numbers, header, found[numbers[0]].offset)


class RowsLeft(NamedTuple):
    """What is left of an array, to be written under its name.

    Attributes
    ----------
    entry : Entry
        Of the damaged member.
    header : NpyHeader
        Of the array that is written.
    read : callable
        Reads the data that is left.
    outcome : str
        What becomes of the array, for the report.
    rows : sequence of (int, int)
        The ranges of rows that are lost.
    lost : sequence of (int, int)
        The ranges of bytes that are not read.
    fill : bytes
        An item that takes the place of each that is lost; empty if they are left out.
    """

    entry: Entry
    header: NpyHeader
    read: Read
    outcome: str = ""
    rows: Ranges = ()
    lost: Ranges = ()
    fill: bytes = b""

    def write(self, writer: ZipWriter) -> None:
        """Write the array."""
        header, entry = self.header, self.entry
        head = npy_header(header.dtype, header.shape, header.fortran_order)
        method = entry.method if entry.method in CHUNKED else STORED
        with Pipeline(1) as pipeline:
            member = writer.begin_member(
                entry.name, len(head) + header.nbytes, pipeline,
                coding=Coding(method), extra=foreign_extra(entry.extra, UNICODE_PATH_ID),
            )  # fmt: skip
            member.write(memoryview(head))
            for piece in self._pieces():
                member.write(piece)
                pipeline.drain()
            member.finish()

    def _pieces(self) -> Iterator[memoryview]:
        filled = memoryview(self.fill * max(_STEP_SIZE // (len(self.fill) or 1), 1))
        left_out = 0 if filled else sum(stop - begin for begin, stop in self.lost)
        position, end = 0, self.header.nbytes + left_out
        for begin, stop in (*self.lost, (end, end)):
            for start in range(position, begin, _STEP_SIZE):
                piece = memoryview(bytearray(min(_STEP_SIZE, begin - start)))
                self.read(start, piece)
                yield piece
            for start in range(begin, stop, len(filled) or stop):
                yield filled[: stop - start]
            position = stop

    def noting(self, what: str) -> RowsLeft:
        """Return the array with an attribute that says what of it is lost, if there is room."""
        with contextlib.suppress(LimitExceededError):
            attrs = format_attrs({**parse_attrs(self.entry.extra), _LOST_ATTRIBUTE: what})
            extra = foreign_extra(self.entry.extra, KEY_VALUE_PAIRS_ID) + attrs
            return self._replace(entry=self.entry._replace(extra=extra))
        return self

    def all_true(self) -> RowsLeft:
        """Return a mask in which lost items are masked."""
        return self._replace(fill=b"\1" * self.header.dtype.itemsize)

    def with_mask(
        self, reader: MemberReader, other: Entry | RowsLeft | None
    ) -> tuple[RowsLeft, RowsLeft] | None:
        """Return an array with filled items, and its mask; None if it cannot have one.

        `other` has the name of the mask already. If it is the mask of this array, these items
        are masked too.
        """
        dtype = np.dtype(np.ma.make_mask_descr(self.header.dtype))
        size, scale = dtype.itemsize, self.header.dtype.itemsize
        header = self.header._replace(dtype=dtype, nbytes=self.header.nbytes // scale * size)
        attrs, name = parse_attrs(self.entry.extra), mask_name(self.entry.name)
        if PARTS_ATTRIBUTE not in attrs and other is None:
            attrs[PARTS_ATTRIBUTE] = {"kind": "masked"}
            entry = self.entry._replace(name=name, method=DEFLATED, extra=b"")
            other = RowsLeft(entry, header, lambda offset, view: None)
        elif isinstance(other, Entry):
            other = _all_rows(reader, other)
        extra = foreign_extra(self.entry.extra, KEY_VALUE_PAIRS_ID)
        try:
            array = self._replace(entry=self.entry._replace(extra=extra + format_attrs(attrs)))
        except LimitExceededError:
            return None
        if other is None or not is_masked(array) or _form(other.header) != _form(header):
            return None
        lost = [(begin // scale * size, stop // scale * size) for begin, stop in self.lost]
        return array, other._replace(lost=merged([*lost, *other.lost])).all_true()


def is_masked(array: Entry | RowsLeft) -> bool:
    """Return whether an array has a mask in another member, as far as its attributes say."""
    entry = array.entry if isinstance(array, RowsLeft) else array
    with contextlib.suppress(NpzkitError):
        return other_suffixes(parse_attrs(entry.extra)) == (MASK,)
    return False


def mask_name(name: str) -> str:
    """Return the name of the member with the mask of a masked array.

    Examples
    --------
    >>> mask_name("t.npy")
    't.mask.npy'
    """
    key = name.removesuffix(SUFFIX)
    return key + MASK + name[len(key) :]


def array_name(name: str) -> str:
    """Return the name of the array of which a member may be the mask; empty for other names.

    Examples
    --------
    >>> array_name("t.mask.npy"), array_name("t.npy")
    ('t.npy', '')
    """
    key = name.removesuffix(SUFFIX)
    return key.removesuffix(MASK) + name[len(key) :] if key.endswith(MASK) else ""


def _form(header: NpyHeader) -> tuple[Any, ...]:
    return header.shape, header.dtype, header.fortran_order


def _all_rows(reader: MemberReader, entry: Entry) -> RowsLeft | None:
    """Return a sound array as one of which something may be left out; None if it is no array."""
    header = reader.find_header(entry)[0]
    if header is None:
        return None
    return RowsLeft(entry, header, _data_of(header, reader.chunks(entry).readinto))


def rows_in_chunks(entry: Entry, damage: Damage, *, drop: bool) -> RowsLeft | None:
    """Return what is left of an array in its sound chunks; None if it is not known, or nothing.

    `drop` leaves out all rows with damaged values. By default, only these values are lost, and
    filled with NaN, NaT or zeros.
    """
    header = damage.header
    if header is None or len(entry.name.encode()) > SENTINEL_16:
        return None
    size = header.row_size if drop else header.dtype.itemsize
    ranges = damage.ranges(size)
    count, all_count = sum(stop - begin for begin, stop in ranges), header.nbytes // (size or 1)
    if not size or count == all_count:
        return None
    what = "rows are left out" if drop else "values are masked"
    left = RowsLeft(
        entry, header, _data_of(header, damage.chunks.readinto),
        f"{count:,} of {all_count:,} {what}, the others are kept", damage.rows,
        [(begin * size, stop * size) for begin, stop in ranges],
    )  # fmt: skip
    if not drop:
        return left._replace(fill=_filler(header.dtype))
    return left._replace(header=_with_rows(header, all_count - count))


def _with_rows(header: NpyHeader, count: int) -> NpyHeader:
    shape = (count, *header.shape[1:])
    return header._replace(shape=shape, nbytes=math.prod(shape) * header.dtype.itemsize)


def _filler(dtype: np.dtype[Any]) -> bytes:
    """Return the item that stands for a lost one."""
    if dtype.kind in "fc":
        return np.array(np.nan, dtype).tobytes()
    return np.array("NaT", dtype).tobytes() if dtype.kind in "mM" else bytes(dtype.itemsize)


def find_rows(reader: MemberReader, entry: Entry, data_start: int, end: int) -> RowsLeft | None:
    """Return the complete rows of an array before `end`, where its file was truncated.

    Returns None if there are no complete rows, or if the member has no rows: it
    is not an array, a scalar, in Fortran order, or a pickle.
    """
    entry = _cut(entry, data_start, end)
    header = _header(reader, entry, data_start)
    size = 0 if header is None else header.row_size
    # Names are written in UTF-8, in which a name from a code page may be too long.
    if header is None or not size or len(entry.name.encode()) > SENTINEL_16:
        return None
    all_count = header.shape[0]
    count = min(_readable_size(reader, entry, data_start, header.data_offset) // size, all_count)
    if not count:
        return None
    chunks = open_chunks(reader.source, entry, data_start, verify=False)
    missing = all_count - count
    outcome = (
        f"{count:,} of {all_count:,} rows kept, unchecked; the other "
        f"{'is' if missing == 1 else f'{missing:,} are'} not in the file"
    )
    read, lost = _data_of(header, chunks.readinto), [(count, all_count)]
    return RowsLeft(entry, _with_rows(header, count), read, outcome, lost)


def is_seen_cut(reader: MemberReader, entry: Entry, data_start: int, end: int) -> bool:
    """Return whether a stored member really extends past `end`, by its array's shape too.

    If so, the rest of the file is its data, even if that contains an archive.
    """
    size = entry.uncompressed_size
    if entry.method != STORED or entry.compressed_size != size or entry.flags & FLAG_DESCRIPTOR:
        return False
    header = _header(reader, _cut(entry, data_start, end), data_start)
    return header is not None and header.data_offset + header.nbytes == size


def find_wrapped(
    reader: MemberReader, entry: Entry, data_start: int, end: int, threads: int
) -> RowsLeft | None:
    """Return a stored array of which only the size modulo 2**32 is known, and its CRC-32.

    Writers without zip64 leave it so. The array's header says how large it is.
    """
    if entry.method != STORED or entry.flags & FLAG_DESCRIPTOR:
        return None
    header = _header(reader, _cut(entry, data_start, end), data_start)
    if header is None or header.dtype.hasobject:
        return None
    size = header.data_offset + header.nbytes
    excess = size - entry.compressed_size
    if excess <= 0 or excess % WRAP or data_start + size > end:
        return None
    if crc32_at(reader.source, data_start, size, threads) != entry.crc32:
        return None
    begin, readinto_at = data_start + header.data_offset, reader.source.readinto_at
    return RowsLeft(entry, header, lambda offset, view: readinto_at(begin + offset, view))


def _cut(entry: Entry, data_start: int, end: int) -> Entry:
    """Return the entry with the number of bytes before `end` as its compressed size."""
    room = max(end - data_start, 0)
    entry = entry._replace(end_offset=data_start + room)
    if entry.method == STORED:
        return entry._replace(compressed_size=room, uncompressed_size=room)
    if entry.flags & FLAG_DESCRIPTOR:
        # Its size would follow its data.
        most = max(entry.uncompressed_size, room * MAX_RATIOS.get(entry.method, 1))
        entry = entry._replace(uncompressed_size=most)
    return entry._replace(compressed_size=room)


def member_header(reader: MemberReader, entry: Entry, data_start: int) -> NpyHeader:
    """Return the header of the array in a member; raises `NpzkitError` if it is damaged."""
    stream = MemberStream(reader.source, entry, data_start, verify=False)
    # Fewer bytes at its end, as `read_header` expects.
    return read_header(SimpleNamespace(read=stream.read_up_to), reader.header_limit)


def _header(reader: MemberReader, entry: Entry, data_start: int) -> NpyHeader | None:
    """Return the header of the array, or None if it is not complete."""
    try:
        return member_header(reader, entry, data_start)
    except NpzkitError:
        return None


def _data_of(header: NpyHeader, readinto: Read) -> Read:
    """Return what reads the data after a header, by what reads all of a member."""
    return lambda offset, view: readinto(header.data_offset + offset, view)


def _readable_size(reader: MemberReader, entry: Entry, start: int, skipped: int) -> int:
    """Return how many bytes of a member can be read after its first `skipped` ones."""
    stream = MemberStream(reader.source, entry, start, verify=False)
    stream.read_up_to(skipped)
    piece = bytearray(_STEP_SIZE)
    with contextlib.suppress(NpzkitError):
        while stream.readinto(piece):
            pass
    return stream.tell() - skipped
