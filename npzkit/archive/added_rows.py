"""Rows that are added to an array that is there.

Owns the array's new member: the old one's bytes under a header with more rows, then the rows.
Committed bytes are never changed, so that the array is written again, behind the last member.

Of an array that npzkit compressed, all chunks but the first, which has the header, and the last,
which is rarely full, are copied as they are, with their CRC-32s. Everything else is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from npzkit.archive.written_archive import WrittenArchive
from npzkit.codecs.coding import CHUNKED, DEFLATED, LEVELS, Coding
from npzkit.errors import (
    MemberNotFoundError,
    NotAnArrayError,
    NpzkitError,
    PickleRefusedError,
    UnsupportedError,
)
from npzkit.files.source import Source, WrittenSource
from npzkit.files.threads import Pipeline
from npzkit.format.array import array_bytes, npy_header
from npzkit.format.header import PREFIX_SIZE, NpyHeader
from npzkit.members.keys import SUFFIX
from npzkit.members.metadata import parse_attrs
from npzkit.members.rows import as_rows
from npzkit.members.tensors import restored_dtype
from npzkit.reading.member_headers import is_array, read_stream_header
from npzkit.zip.chunk_list import ChunkList
from npzkit.zip.chunks import CompressedChunks
from npzkit.zip.entries import Entry, parse_entry
from npzkit.zip.extra_fields import foreign_extra
from npzkit.zip.local_header import check_entry, data_offset
from npzkit.zip.member_stream import MemberStream
from npzkit.zip.member_writer import MemberWriter

_BLOCK_SIZE = 1 << 24
"""Bytes that are in memory at a time."""


class _Old(NamedTuple):
    """The array as it is.

    Attributes
    ----------
    stream : MemberStream
        At the beginning of the data.
    chunks : ChunkList or None
    """

    source: Source
    entry: Entry
    stream: MemberStream
    header: NpyHeader
    chunks: ChunkList | None


def add_rows(archive: WrittenArchive, key: str, value: Any, coding: Coding) -> None:
    """Add rows to the array `key`; see `NpzWriter.append`.

    `coding` is that of the writer, for what the array itself does not say.
    """
    listing = archive.listing
    listing.check_none_grows("rows are appended")
    try:
        name = listing.find(key)
    except MemberNotFoundError as error:
        error.remedy = (
            "Begin it with w.create(key, (None, ...), dtype), or with w[key] = rows. "
            f"{error.remedy}"
        )
        raise
    if listing.others_of(name):
        raise UnsupportedError(
            "the array is saved in parts, to which rows cannot be appended", path=archive.path,
            key=key,
            remedy="Read it with NpzFile.join(key), and add all rows to a writer with "
            'masked="split" or strings="split": w.add(key, array, attrs=attrs, overwrite=True).',
        )  # fmt: skip
    if not archive.sink.can_read:
        raise UnsupportedError(
            "what was written cannot be read, which appending rows needs", path=archive.path,
            key=key, remedy="Write the archive to a path.",
        )  # fmt: skip
    listing.apply_attrs()
    try:
        old = _open(archive, name)
        dtype = restored_dtype(old.header.dtype, parse_attrs(old.entry.extra))
        shape = old.header.shape
        rows = as_rows(value, key, shape, dtype)
        if not len(rows):
            return
        if archive.tree is not None:
            archive.tree.hand_over(name.removesuffix(SUFFIX).__eq__)
        listing.give_way(name)
        with archive.state.giving_up(), Pipeline(archive.threads) as pipeline:
            _write(archive, old, name, rows, coding, pipeline)
    except NpzkitError as error:
        raise error.locate(path=archive.path, key=key) from error.__cause__


def _open(archive: WrittenArchive, name: str) -> _Old:
    """Look at the array's headers."""
    source = WrittenSource(archive.sink, archive.sink.position)
    entry = parse_entry(archive.listing.entries[name], source.size)
    check_entry(entry)
    stream = MemberStream(source, entry, data_offset(source, entry))
    prefix = stream.read_up_to(PREFIX_SIZE)
    if not is_array(prefix, entry):
        raise NotAnArrayError("the member is no array")
    header = read_stream_header(stream, prefix, entry, None)
    if header.dtype.hasobject:
        raise PickleRefusedError(
            "an array of Python objects is one pickle, to which rows cannot be appended",
            remedy="Load it with allow_pickle=True, and add it with overwrite=True.",
        )
    chunks = archive.zip.find_list(source, entry) if entry.method in CHUNKED else None
    return _Old(source, entry, stream, header, chunks)


def _write(
    archive: WrittenArchive,
    old: _Old,
    name: str,
    rows: np.ndarray[Any, Any],
    coding: Coding,
    pipeline: Pipeline,
) -> None:
    header, chunks = old.header, old.chunks
    shape = (header.shape[0] + len(rows), *header.shape[1:])
    head = npy_header(header.dtype, shape, header.fortran_order)
    size = len(head) + header.nbytes + rows.nbytes
    archive.zip.begin()
    archive.sink.have_room(min(size, old.entry.compressed_size + rows.nbytes))
    member = archive.zip.begin_member(
        name, size, pipeline, coding=_coding_of(old, coding), extra=foreign_extra(old.entry.extra)
    )
    member.write(memoryview(head))
    if header.fortran_order and len(shape) > 1:
        for block in _columns(old, rows):
            member.write(block)
    else:
        if chunks is not None and len(head) == header.data_offset < chunks.chunk_size:
            _copy_chunks(member, old, chunks)
        else:
            for block in _data(old.stream, _BLOCK_SIZE):
                member.write(block)
        member.write(array_bytes(np.ascontiguousarray(rows)))
    member.finish()


def _coding_of(old: _Old, default: Coding) -> Coding:
    """Return how the array is encoded: as it is, if npzkit can write that."""
    method = old.entry.method if old.entry.method in LEVELS else DEFLATED
    level = default.level if default.method == method else None
    chunk_size = default.chunk_size if old.chunks is None else old.chunks.chunk_size
    return Coding(method, level, chunk_size, default.is_seekable)


def _data(stream: MemberStream, size: int) -> Iterator[memoryview]:
    """Yield the rest of a stream, by so many bytes; its CRC-32 is compared at the end."""
    while True:
        block = memoryview(stream.read_up_to(size))
        if not block:
            return
        yield block


def _columns(old: _Old, rows: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Yield the data of an array in Fortran order: each column, and what is added to it."""
    header, added = old.header, np.ascontiguousarray(rows.T).view(old.header.dtype)
    count, length = math.prod(header.shape[1:]), header.shape[0]
    added = added.reshape(count, len(rows))
    column_size = max(length * header.dtype.itemsize, 1)
    step = max(_BLOCK_SIZE // column_size, 1)
    for first in range(0, count, step):
        new = added[first : first + step]
        columns = np.empty((len(new), length + len(rows)), header.dtype)
        before = np.empty((len(new), length), header.dtype)
        old.stream.read_exactly(array_bytes(before))
        columns[:, :length], columns[:, length:] = before, new
        yield array_bytes(columns)
    old.stream.finish()


def _copy_chunks(member: MemberWriter, old: _Old, listed: ChunkList) -> None:
    """Write the old data: the chunks between the first and the last as they are."""
    source, start, size = old.source, old.stream.start, listed.chunk_size
    last = len(listed.crc32s) - 1
    decoded = CompressedChunks(source, start, listed)
    for begin, end in ((old.header.data_offset, size), (last * size, listed.size)):
        if begin:
            block = memoryview(bytearray(end - begin))
            decoded.readinto(begin, block)
            member.write(block)
        if end == size and last > 1:
            member.copy_chunks(source, start, listed, 1, last)
