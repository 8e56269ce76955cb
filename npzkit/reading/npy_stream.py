"""A member that is read from front to back: its NPY header, its pickle, a file object.

Owns how a stream is recognized as an array. `npzkit.reading.member` owns where the data goes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from npzkit.errors import NpyFormatError, NpzkitError, ZipFormatError
from npzkit.format.array import read_header, read_pickle
from npzkit.format.header import MAGIC_PREFIX, NpyHeader, end_of_data, header_size
from npzkit.members.keys import SUFFIX
from npzkit.zip.entries import UNKNOWN_SIZE, Entry
from npzkit.zip.member_stream import MemberStream


def is_array(prefix: bytes, entry: Entry) -> bool:
    """Whether a member is an array: a .npy member must be one, others may be."""
    return prefix.startswith(MAGIC_PREFIX) or entry.name.endswith(SUFFIX)


def check_nbytes(header: NpyHeader, entry: Entry) -> None:
    """Check that the member's size fits the header's shape, unless it is a pickle."""
    size = header.data_offset + header.nbytes
    if entry.uncompressed_size in (size, UNKNOWN_SIZE) or header.dtype.hasobject:
        return
    if size > entry.uncompressed_size:
        found = max(entry.uncompressed_size - header.data_offset, 0)
        raise end_of_data(f"array data of shape {header.shape}", header.nbytes, found)
    raise NpyFormatError(
        "bytes follow the array in its member",
        found=entry.uncompressed_size,
        expected=size,
        remedy="np.load ignores them; save the array again.",
    )


def read_stream_header(
    stream: MemberStream, prefix: bytes, entry: Entry, limit: int | None
) -> NpyHeader:
    """Read the header of an array whose first bytes, `prefix`, were read already."""
    if prefix.startswith(MAGIC_PREFIX):
        # Without a limit, a header that the member cannot hold would be read to its end.
        size = header_size(prefix, limit)
        if entry.uncompressed_size < size:
            raise end_of_data("array header", size, entry.uncompressed_size)
    header = read_header(_Prefixed(prefix, stream), limit)
    check_nbytes(header, entry)
    return header


class _Prefixed:
    """A stream with a few bytes put back before it, for the header's reader."""

    def __init__(self, prefix: bytes, stream: MemberStream) -> None:
        self._prefix = prefix
        self._stream = stream

    def read(self, size: int) -> bytes:
        data, self._prefix = self._prefix[:size], self._prefix[size:]
        return data + self._stream.read_up_to(size - len(data))


def read_pickled(
    stream: MemberStream, pickle_kwargs: dict[str, Any] | None
) -> np.ndarray[Any, Any]:
    """Compare the CRC-32 of the bytes after the header, and unpickle them.

    If `pickle_kwargs` is None, raise before it is read.
    """
    if pickle_kwargs is None:
        read_pickle(stream, allow_pickle=False, pickle_kwargs=None)
    data = io.BytesIO(stream.read_rest())
    array: np.ndarray[Any, Any] = read_pickle(data, allow_pickle=True, pickle_kwargs=pickle_kwargs)
    if data.read(1):
        raise ZipFormatError("bytes follow the pickled array in its member")
    return array


class LocatedStream(io.RawIOBase):
    """A member's stream whose errors say which archive and key it is."""

    def __init__(self, stream: MemberStream, explain: Callable[[NpzkitError], NpzkitError]) -> None:
        self._stream = stream
        self._explain = explain

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._stream.readinto(buffer)
        except NpzkitError as error:
            raise self._explain(error) from error.__cause__
