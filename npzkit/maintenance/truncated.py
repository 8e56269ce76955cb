"""The complete rows of an array in a truncated member.

Owns how they are counted, and the array that is made from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

from npzkit.codecs.coding import DEFLATED, MAX_RATIOS, STORED, Coding
from npzkit.errors import NpzkitError
from npzkit.files.source import Source
from npzkit.files.threads import Pipeline
from npzkit.format.array import npy_header, read_header
from npzkit.format.header import NpyHeader
from npzkit.reading.member import MemberReader
from npzkit.zip.entries import Entry
from npzkit.zip.extra_fields import UNICODE_PATH_ID, foreign_extra
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.records import FLAG_DESCRIPTOR, SENTINEL_16
from npzkit.zip.writer import ZipWriter

_STEP_SIZE = 1 << 18


class RowsLeft(NamedTuple):
    """The rows that are left of an array.

    Attributes
    ----------
    entry : Entry
        The entry of the member, with the compressed size that is left.
    data_start : int
        The offset of the member's data in the file.
    header : NpyHeader
        The header of the complete array.
    row_count : int
    """

    entry: Entry
    data_start: int
    header: NpyHeader
    row_count: int

    @property
    def description(self) -> str:
        """The description for a report."""
        count, all_rows = self.row_count, self.header.shape[0]
        return (
            f"its last {all_rows - count:,} of {all_rows:,} rows; the rows before are kept, but no "
            "CRC-32 can check them"
        )

    def write(self, source: Source, writer: ZipWriter) -> None:
        """Write the rows as an array with the member's name."""
        header, entry = self.header, self.entry
        head = npy_header(header.dtype, (self.row_count, *header.shape[1:]), False)
        size = self.row_count * _row_size(header)
        method = DEFLATED if entry.method == DEFLATED else STORED
        with Pipeline(1) as pipeline:
            member = writer.begin_member(
                entry.name, len(head) + size, pipeline,
                coding=Coding(method), extra=foreign_extra(entry.extra, UNICODE_PATH_ID),
            )  # fmt: skip
            member.write(memoryview(head))
            for piece in _pieces(source, entry, self.data_start, header.data_offset):
                member.write(piece[: max(size, 0)])
                size -= len(piece)
                pipeline.drain()
                if size <= 0:
                    break
            member.finish()


def find_rows(reader: MemberReader, entry: Entry, data_start: int, end: int) -> RowsLeft | None:
    """Return the complete rows of an array before `end`, where its file was truncated.

    Returns None if there are no complete rows, or if the member has no rows: it
    is not an array, a scalar, in Fortran order, or a pickle.
    """
    entry = _cut(entry, data_start, end)
    header = _header(reader, entry, data_start)
    # Names are written in UTF-8, in which a name from a code page may be too long.
    if header is None or len(entry.name.encode()) > SENTINEL_16:
        return None
    is_rows = header.shape and not header.fortran_order and not header.dtype.hasobject
    row_size = _row_size(header) if is_rows else 0
    if not row_size:
        return None
    size = sum(map(len, _pieces(reader.source, entry, data_start, header.data_offset)))
    count = min(size // row_size, header.shape[0])
    return RowsLeft(entry, data_start, header, count) if count else None


def is_seen_cut(reader: MemberReader, entry: Entry, data_start: int, end: int) -> bool:
    """Return whether a stored member really extends past `end`, by its array's shape too.

    If so, the rest of the file is its data, even if that contains an archive.
    """
    size = entry.uncompressed_size
    if entry.method != STORED or entry.compressed_size != size or entry.flags & FLAG_DESCRIPTOR:
        return False
    header = _header(reader, _cut(entry, data_start, end), data_start)
    return header is not None and header.data_offset + header.nbytes == size


def _cut(entry: Entry, data_start: int, end: int) -> Entry:
    """Return the entry with the number of bytes before `end` as its compressed size."""
    room = max(end - data_start, 0)
    if entry.method == STORED:
        return entry._replace(compressed_size=room, uncompressed_size=room)
    if entry.flags & FLAG_DESCRIPTOR:
        # Its size would follow its data.
        most = max(entry.uncompressed_size, room * MAX_RATIOS.get(entry.method, 1))
        entry = entry._replace(uncompressed_size=most)
    return entry._replace(compressed_size=room)


def _header(reader: MemberReader, entry: Entry, data_start: int) -> NpyHeader | None:
    """Return the header of the array, or None if it is not complete."""
    try:
        stream = MemberStream(reader.source, entry, data_start, verify=False)
        # Fewer bytes at its end, as `read_header` expects.
        return read_header(SimpleNamespace(read=stream.read_up_to), reader.header_limit)
    except NpzkitError:
        return None


def _row_size(header: NpyHeader) -> int:
    return math.prod(header.shape[1:]) * header.dtype.itemsize


def _pieces(source: Source, entry: Entry, start: int, skipped: int) -> Iterator[memoryview]:
    """Yield the readable data of a member after its first `skipped` bytes."""
    stream = MemberStream(source, entry, start, verify=False)
    stream.read_up_to(skipped)
    while True:
        piece = bytearray(_STEP_SIZE)
        try:
            count = stream.readinto(piece)
        except NpzkitError:
            return
        if not count:
            return
        yield memoryview(piece)[:count]
