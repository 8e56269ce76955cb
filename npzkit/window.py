"""A stretch of the archive read at once, and the members that lie in it whole.

Owns the fast way to a small stored member: headers checked and array made in
place, without another read or a copy. It answers for members that are
unremarkable in every respect; `npzkit.reader` reads all others, and says what
is wrong with them.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs import STORED, crc32
from npzkit.format.header import MAGIC_PREFIX, parse_header
from npzkit.source import Source
from npzkit.zip.directory import Entry
from npzkit.zip.member import LOCAL_FIELDS
from npzkit.zip.records import (
    FLAG_UTF8,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    SENTINEL_32,
)

__all__ = ["HEADER_START", "Window", "aligned", "read_usual", "read_window"]

_ALIGNMENT = 64
"""Windows begin at a multiple of this, so that aligned data stays aligned."""

HEADER_START = struct.Struct("<6sBxH2x")
"""Magic, major version, and the length as version 1.0 has it."""

_FORCED_ZIP64 = struct.Struct("<LQQ")
_FORCED_ZIP64_START = 0x00100001
"""Identifier 1, 16 bytes: uncompressed and compressed size (section 4.5.3)."""


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
    return array if array.flags.aligned else array.copy("K")


def read_usual(
    window: Window, entry: Entry, header_limit: int | None, verify: bool
) -> np.ndarray[Any, Any] | None:
    """Return the array of a member that is unremarkable in every respect.

    None for any other. All checks are made in one go: an archive of 10,000
    small members spends half of its time here.
    """
    _, raw_name, flags, method, crc, size, full_size, offset, disk, extra = entry
    view = window.view
    position = offset - window.offset
    try:
        signature, *local, name_size, extra_size = LOCAL_FIELDS.unpack_from(view, position)
        name_end = position + LOCAL_HEADER_SIZE + name_size
        start = name_end + extra_size
        magic, major, length = HEADER_START.unpack_from(view, start)
        if extra_size == _FORCED_ZIP64.size and local[3:] == [SENTINEL_32, SENTINEL_32]:
            # np.savez forces zip64 sizes on every local header.
            zip64, local[4], local[3] = _FORCED_ZIP64.unpack_from(view, name_end)
            if zip64 != _FORCED_ZIP64_START:
                return None
    except struct.error:
        return None
    end, data_start = start + size, start + length + 10
    if (
        local != [flags, method, crc, size, full_size]
        or signature != LOCAL_HEADER_SIGNATURE
        or view[position + LOCAL_HEADER_SIZE : name_end] != raw_name
        or flags & ~FLAG_UTF8
        or method != STORED
        or size != full_size
        or disk
        or extra
        or magic != MAGIC_PREFIX
        or major != 1
        or (header_limit is not None and length > header_limit)
        or end > len(view)
        or data_start > end
        or (verify and crc32(view[start:end]) != crc)
    ):
        return None
    header = parse_header(bytes(view[start:data_start]))
    _, shape, fortran_order, dtype, _, nbytes, python2 = header
    if (
        data_start + nbytes != end
        or fortran_order
        or python2
        or dtype.hasobject
        or dtype.names is not None
        or not nbytes
    ):
        return None
    array = np.ndarray(shape, dtype, window.array, data_start)
    return aligned(array) if data_start % dtype.alignment else array
