"""A small stored member to its array: one read, used in place.

Owns the straight way from the file to an array, and the end of every other way. A program's
first array needs no more than what is imported here: members that are large or compressed,
or have attributes, are read by `npzkit.reading.member`.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import sys
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.checksum import crc32
from npzkit.codecs.coding import STORED
from npzkit.files.source import BufferSource, Source
from npzkit.format.array import shaped
from npzkit.format.header import NpyHeader, warn_python2
from npzkit.limits import Limits
from npzkit.reading.member_headers import HEADS_SIZE, HeaderFinder
from npzkit.zip.entries import Entry
from npzkit.zip.local_header import check_entry
from npzkit.zip.records import FLAG_DESCRIPTOR, LOCAL_HEADER_SIZE

SMALL_SIZE = 1 << 16
"""Members up to this size are read whole, headers and all, in one call."""
_EXTRA_GUESS = 128
"""Bytes allowed for what the local extra field has beside the entry's."""
HEADERS_SIZE = 1 << 10
"""Bytes allowed for both headers where a second read would be a second request."""
_ALIGNMENT = 64
"""Windows begin at a multiple of this, so that aligned data stays aligned."""
_BYTE = np.dtype(np.uint8)


Window = tuple[np.ndarray[Any, Any], memoryview, int]
"""Bytes of the file in memory of their own: an array of uint8, which owns the memory, and which
arrays made of it keep alive; a view onto the same memory; where its first byte is in the file."""


class Options(NamedTuple):
    """How a member is to be read.

    Attributes
    ----------
    out : numpy.ndarray or None
        Filled and returned, instead of a new array.
    threads : int or None
        None is one per processor. They are counted only if threads are used, because
        that is a system call.
    verify : bool
        Compare the CRC.
    keeps : bool
        False only checks a member, and that `out` fits. A large one returns `NOTHING`.
    warns : bool
        False for what was warned of before, with the header.
    """

    out: np.ndarray[Any, Any] | None = None
    threads: int | None = 1
    verify: bool = True
    keeps: bool = True
    warns: bool = True


def check_out(out: object, name: str = "out") -> np.ndarray[Any, Any]:
    """Return the memory to read an array into, without what a masked array or a unit adds.

    Raise unless there is any; an error calls the object `name`.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, not {type(out).__name__}")
    if not out.flags.writeable:
        raise ValueError(f"{name} must be writable")
    return np.asarray(out)


def check_form(out: np.ndarray[Any, Any], shape: Any, dtype: Any, name: str = "out") -> None:
    """Raise unless an array has the shape and dtype of a member, which are None if it is none."""
    if dtype is None or dtype.hasobject:
        raise ValueError(f"{name} needs an array of plain values; this member is not one")
    if (out.shape, out.dtype) != (shape, dtype):
        raise ValueError(
            f"{name} must have shape {shape} and dtype {dtype}, not {out.shape} and {out.dtype}"
        )


def read_window(source: Source, offset: int, size: int) -> Window:
    """Read `size` bytes at `offset`, and a few before them for alignment."""
    start = offset - offset % _ALIGNMENT
    array = np.empty(offset + size - start, _BYTE)
    view = array.data
    source.readinto_at(start, view)
    return array, view, start


_VERIFIED, _UNVERIFIED = Options(), Options(verify=False)


class SmallReader:
    """Reads the small members of one open archive.

    Parameters
    ----------
    source : Source
    limits : Limits
    allow_pickle : bool
    """

    def __init__(self, source: Source, limits: Limits, *, allow_pickle: bool) -> None:
        self.source = source
        self.size_limit = limits.member_size
        # As in NumPy: callers who allow pickle trust the file, including its headers.
        self.header_limit = None if allow_pickle else limits.header_size
        self._headers = HeaderFinder(self.header_limit)
        self._window_size = sys.maxsize if source.is_distant else SMALL_SIZE

    def read_small(self, entry: Entry, verify: bool) -> np.ndarray[Any, Any] | None:
        """Return the array of a stored member without attributes, if it is small.

        None if it is not, or not as its entry says.
        """
        if entry.compressed_size >= self._window_size or entry.flags & FLAG_DESCRIPTOR:
            return None
        check_entry(entry, self.size_limit)
        window = read_window(self.source, entry.header_offset, self.extent(entry))
        return self.array_in(window, entry, _VERIFIED if verify else _UNVERIFIED)

    def extent(self, entry: Entry) -> int:
        """Bytes from the local header that hold a small member, or a guess at it."""
        size = LOCAL_HEADER_SIZE + len(entry.raw_name) + len(entry.extra) + _EXTRA_GUESS
        small = self._window_size
        size += entry.compressed_size if entry.compressed_size < small else small
        if small != SMALL_SIZE:
            size += HEADERS_SIZE
        room = entry.end_offset - entry.header_offset
        return size if size < room else room

    def array_in(
        self, window: Window, entry: Entry, options: Options
    ) -> np.ndarray[Any, Any] | None:
        """Return the array of a plain member that lies in `window`, and that `check_entry` accepts.

        None if it does not, or has to be read as a stream.
        """
        memory, view, offset = window
        position, find = entry.header_offset - offset, self._headers.find
        # A bytes object is sliced faster than a view, and mostly suffices.
        head = bytes(view[position : position + HEADS_SIZE])
        heads = find(head, entry, options.verify) or find(view[position:], entry, options.verify)
        if heads is None:
            return None
        header, start = heads[0], position + heads[1]
        end = start + entry.compressed_size
        if end > len(view):
            return None
        crc = crc32(view[start:end]) if options.verify else entry.crc32
        array = shaped(header, memory, start + header.data_offset)
        return self._finished(header, array, crc, entry, options)

    def array_in_place(self, entry: Entry, source: BufferSource) -> np.ndarray[Any, Any] | None:
        """Return the array of a stored member, of any size, over the memory of its archive.

        None if it has attributes, or is not usual; its CRC-32 is not compared.
        """
        check_entry(entry, self.size_limit)
        if entry.extra or not is_plain(entry):
            return None
        view = source.view_at(entry.header_offset, entry.end_offset - entry.header_offset)
        find = self._headers.find
        heads = find(bytes(view[:HEADS_SIZE]), entry, False) or find(view, entry, False)
        if heads is None:
            return None
        return shaped(heads[0], view, heads[1] + heads[0].data_offset)

    def _finished(
        self,
        header: NpyHeader,
        array: np.ndarray[Any, Any],
        crc: int,
        entry: Entry,
        options: Options,
    ) -> np.ndarray[Any, Any] | None:
        """Return a filled array as it was saved: the end of each read.

        None if its CRC-32 is not the entry's. Its size was compared with its header's, and the
        attributes of both headers with each other, before it was allocated.
        """
        if crc != entry.crc32:
            return None
        if header.python2 and options.warns:
            warn_python2(header)
        out = options.out
        if array is out:
            return out
        if entry.extra:
            array = self._restored(array, entry)
        if out is None or not options.keeps:
            if array.flags.aligned or not array.itemsize:
                # copy() would turn S0 into S1.
                return array
            # Such as np.savez's: NumPy computes on it at half speed.
            return array.copy("K")
        out[...] = array
        return out

    def _restored(self, array: np.ndarray[Any, Any], entry: Entry) -> np.ndarray[Any, Any]:
        """Return an array with the dtype that its attributes name."""
        return array


def read_between(reader: SmallReader, first: Entry, last: Entry) -> Window:
    """Read two small members, and all between them, in one call."""
    size = last.header_offset + reader.extent(last) - first.header_offset
    return read_window(reader.source, first.header_offset, size)


def is_plain(entry: Entry) -> bool:
    """Whether a member is stored, with everything known before its data."""
    return entry.method == STORED and not entry.flags & FLAG_DESCRIPTOR
