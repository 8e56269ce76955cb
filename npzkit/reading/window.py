"""A stretch of the archive read at once, and the members that lie in it whole.

Owns the fast way to a small stored member: headers checked and array made in
place, without another read or a copy. It answers for members that are
unremarkable in every respect; `npzkit.reading.member` reads all others, and says what
is wrong with them.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.checksum import crc32
from npzkit.codecs.isal import isal_or_zlib
from npzkit.codecs.methods import DEFLATED, STORED
from npzkit.files.source import Source
from npzkit.format.header import MAGIC_PREFIX, NpyHeader, parse_header
from npzkit.zip.entries import Entry
from npzkit.zip.records import (
    FLAG_UTF8,
    LOCAL_FIELDS,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    SENTINEL_32,
)

__all__ = [
    "GAP_SIZE",
    "HEADER_START",
    "HEADS_SIZE",
    "SPAN_SIZE",
    "Window",
    "aligned",
    "find_usual_header",
    "read_usual",
    "read_window",
]

SPAN_SIZE = 1 << 20
"""Bytes of neighbours read in one call, and kept alive by any array of them."""
GAP_SIZE = 1 << 14
"""Dead bytes that are read along rather than making a second call."""

_ALIGNMENT = 64
"""Windows begin at a multiple of this, so that aligned data stays aligned."""

HEADER_START = struct.Struct("<6sBxH2x")
"""Magic, major version, and the length as version 1.0 has it."""

HEADS_SIZE = 512
"""Bytes of both headers together that are looked at here."""

_FORCED_ZIP64 = struct.Struct("<LQQ")
_FORCED_ZIP64_START = 0x00100001
"""Identifier 1, 16 bytes: uncompressed and compressed size (section 4.5.3)."""


_USUAL_DEFLATED_FLAGS = FLAG_UTF8 | 0b110
"""Bits 1 and 2 tell how hard the encoder tried, section 4.4.4."""


class Window(NamedTuple):
    """Bytes of the file in memory of their own.

    Attributes
    ----------
    array : numpy.ndarray of uint8
        Owns the memory; arrays made of it keep it alive.
    view : memoryview
        Onto the same memory.
    offset : int
        Of its first byte in the file.
    """

    array: np.ndarray[Any, Any]
    view: memoryview
    offset: int


def read_window(source: Source, offset: int, size: int) -> Window:
    """Read `size` bytes at `offset`, and a few before them for alignment."""
    start = offset - offset % _ALIGNMENT
    array = np.empty(offset + size - start, np.uint8)
    view = array.data
    source.readinto_at(start, view)
    return Window(array, view, start)


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Move data that lies askew, as np.savez's: numpy computes on it at half speed."""
    # copy() would turn S0 into S1.
    return array if array.flags.aligned or not array.itemsize else array.copy("K")


def read_usual(
    window: Window, entry: Entry, header_limit: int | None, verify: bool
) -> np.ndarray[Any, Any] | None:
    """Return the array of a member that is unremarkable in every respect.

    None for any other. All checks are made in one go: an archive of 10,000
    small members spends half of its time here.
    """
    _, raw_name, flags, method, crc, size, full_size, offset, disk, extra, limit = entry
    view = window.view
    position = offset - window.offset
    # Both headers as bytes of their own: they are cut up faster than a view.
    heads = bytes(view[position : position + HEADS_SIZE])
    try:
        local = LOCAL_FIELDS.unpack_from(heads)
        name_end = LOCAL_HEADER_SIZE + local[6]
        array_start = name_end + local[7]
        magic, major, length = HEADER_START.unpack_from(heads, array_start)
        if local[1:6] != entry[2:7] and not _has_forced_zip64(heads, name_end, local, entry):
            return None
    except struct.error:
        return None
    data_start = array_start + length + 10
    start = position + array_start
    end = start + size
    if (
        local[0] != LOCAL_HEADER_SIGNATURE
        or heads[LOCAL_HEADER_SIZE:name_end] != raw_name
        or flags & ~FLAG_UTF8
        or method != STORED
        or size != full_size
        or disk
        or window.offset + end > limit
        or magic != MAGIC_PREFIX
        or major != 1
        or (header_limit is not None and length > header_limit)
        or data_start > len(heads)
        or position + data_start > end
        or end > len(view)
        or (verify and crc32(view[start:end]) != crc)
    ):
        return None
    header = parse_header(heads[array_start:data_start])
    _, shape, fortran_order, dtype, _, nbytes, python2 = header
    data_start += position
    if (
        data_start + nbytes != end
        or fortran_order
        or python2
        or dtype.hasobject
        or dtype.names is not None
        or (extra and dtype.type is np.void)
        or not nbytes
    ):
        return None
    array = np.ndarray(shape, dtype, window.array, data_start)
    return aligned(array) if data_start % dtype.alignment else array


def read_usual_deflated(
    window: Window, entry: Entry, header_limit: int | None, verify: bool
) -> np.ndarray[Any, Any] | None:
    """Return the array of a small deflated member that is unremarkable in every respect.

    As `read_usual`; 10 microseconds, where a stream takes 30.
    """
    position = entry.header_offset - window.offset
    heads = bytes(window.view[position : position + HEADS_SIZE])
    try:
        local = LOCAL_FIELDS.unpack_from(heads)
    except struct.error:
        return None
    name_end = LOCAL_HEADER_SIZE + local[6]
    start = position + name_end + local[7]
    end = start + entry.compressed_size
    if (
        local[0] != LOCAL_HEADER_SIGNATURE
        or (local[1:6] != entry[2:7] and not _has_forced_zip64(heads, name_end, local, entry))
        or heads[LOCAL_HEADER_SIZE:name_end] != entry.raw_name
        or entry.flags & ~_USUAL_DEFLATED_FLAGS
        or entry.disk_start
        or window.offset + end > entry.end_offset
        or end > len(window.view)
    ):
        return None
    data = _inflate(window.view[start:end], entry.uncompressed_size)
    if data is None or (verify and crc32(data) != entry.crc32):
        return None
    return _array_of(data, entry, header_limit)


def find_usual_header(
    heads: bytes, entry: Entry, header_limit: int | None
) -> tuple[NpyHeader, int] | None:
    """Return the NPY header of an unremarkable member, and where its data begins in the file.

    As `read_usual`, of a member of any size whose first `HEADS_SIZE` bytes are
    `heads`: 5 microseconds, where a stream takes 25.
    """
    flags, method = entry.flags, entry.method
    try:
        local = LOCAL_FIELDS.unpack_from(heads)
    except struct.error:
        return None
    name_end = LOCAL_HEADER_SIZE + local[6]
    start = name_end + local[7]
    if (
        local[0] != LOCAL_HEADER_SIGNATURE
        or (local[1:6] != entry[2:7] and not _has_forced_zip64(heads, name_end, local, entry))
        or heads[LOCAL_HEADER_SIZE:name_end] != entry.raw_name
        or method not in (STORED, DEFLATED)
        or flags & ~(FLAG_UTF8 if method == STORED else _USUAL_DEFLATED_FLAGS)
        or entry.header_offset + start + entry.compressed_size > entry.end_offset
    ):
        return None
    data = heads[start : start + entry.compressed_size]
    if method == DEFLATED:
        try:
            data = isal_or_zlib.decompressobj(-15).decompress(data, HEADS_SIZE)
        except isal_or_zlib.error:
            return None
    header = _header_of(data, header_limit)
    if (
        header is None
        or header.python2
        or header.dtype.hasobject
        or not header.nbytes
        or header.data_offset + header.nbytes != entry.uncompressed_size
    ):
        return None
    return header, entry.header_offset + start


def _inflate(data: memoryview, size: int) -> bytes | None:
    """Inflate a whole stream of exactly `size` bytes; None for anything else."""
    decoder = isal_or_zlib.decompressobj(-15)
    try:
        # One more byte than there should be, so that a longer stream shows.
        out: bytes = decoder.decompress(data, size + 1)
    except isal_or_zlib.error:
        return None
    return out if decoder.eof and not decoder.unused_data and len(out) == size else None


def _array_of(data: bytes, entry: Entry, header_limit: int | None) -> np.ndarray[Any, Any] | None:
    """Make an array of a member's bytes, where its header is unremarkable."""
    header = _header_of(data, header_limit)
    if header is None:
        return None
    _, shape, fortran_order, dtype, start, nbytes, python2 = header
    if (
        start + nbytes != len(data)
        or python2
        or dtype.hasobject
        or dtype.names is not None
        or (entry.extra and dtype.type is np.void)
        or not nbytes
    ):
        return None
    memory = np.empty(nbytes, np.uint8)
    memory.data[:] = memoryview(data)[start:]
    return np.ndarray(shape, dtype, memory, order="F" if fortran_order else "C")


def _header_of(data: bytes, header_limit: int | None) -> NpyHeader | None:
    """Parse the header of version 1.0 that a member's bytes begin with, if there is one."""
    try:
        magic, major, length = HEADER_START.unpack_from(data)
    except struct.error:
        return None
    start = length + 10
    if (
        magic != MAGIC_PREFIX
        or major != 1
        or (header_limit is not None and length > header_limit)
        or start > len(data)
    ):
        return None
    return parse_header(data[:start])


def _has_forced_zip64(heads: bytes, name_end: int, local: tuple[Any, ...], entry: Entry) -> bool:
    """Whether the sizes stand in a zip64 block: np.savez forces one on every member."""
    return bool(
        local[1:6] == (*entry[2:5], SENTINEL_32, SENTINEL_32)
        and local[7] == _FORCED_ZIP64.size
        and name_end + _FORCED_ZIP64.size <= len(heads)
        and _FORCED_ZIP64.unpack_from(heads, name_end) == (_FORCED_ZIP64_START, *entry[6:4:-1])
    )
