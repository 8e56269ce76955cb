"""Files that are alike but for data, CRC-32s and times, as those of a data set often are.

Owns which bytes of a file are not data; how a file that is like another one is recognised by
them, and read with one system call into the arrays. The first file of its kind is read and
checked like any archive. What is equal to it, byte for byte, needs no second check: the data is
compared with its CRC-32.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from npzkit.archive.opened_archive import OpenedArchive
from npzkit.codecs.checksum import crc32
from npzkit.codecs.coding import STORED
from npzkit.format import descr_to_dtype
from npzkit.members.array_info import ArrayInfo
from npzkit.zip.records import (
    ENTRY_CRC32_OFFSET,
    FLAG_DESCRIPTOR,
    FLAG_ENCRYPTED,
    LOCAL_CRC32_OFFSET,
)  # fmt: skip

Arrays = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""By key, the shape and dtype of each array of a file."""


def nbytes_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array in memory."""
    return math.prod(shape) * dtype.itemsize


def own_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype for one array: its field names can be changed, and no others with them."""
    return dtype if dtype.names is None else descr_to_dtype(dtype.descr)


_MAX_SIZE = 1 << 24
"""Bytes of the largest file. In larger ones, the data takes most of the time."""
_MAX_COUNT = 256
"""Members: a system call fills 1,024 buffers, where it fills several."""


class _Member:
    """A stored array in such a file.

    Attributes
    ----------
    info : ArrayInfo
    gap : int
        The number of the gap in front of its data.
    local, entry : (int, int)
        Number of the gap, and place in it, of the CRC-32 in the two headers.
    head_crc : int
        CRC-32 of the NPY header.
    chunks : slice or None
        Where the CRC-32s of its chunks are in the last gap.
    """

    def __init__(self, info: ArrayInfo, gap: int, head_crc: int) -> None:
        self.info, self.gap, self.head_crc = info, gap, head_crc
        self.local = self.entry = (0, 0)
        self.chunks: slice | None = None

    def empty(self) -> np.ndarray[Any, Any]:
        """Return an array to be filled."""
        order: Literal["F", "C"] = "F" if self.info.fortran_order else "C"
        assert self.info.dtype is not None  # noqa: S101 - it is an array
        return np.empty(self.info.shape or (), own_dtype(self.info.dtype), order=order)


class Skeleton:
    """All bytes of a file that are not data, with zeros for CRC-32s and times.

    Parameters
    ----------
    gaps : list of (int, bytearray)
        Where each stretch begins, and its bytes.
    members : list of _Member
    size : int
        Of the file.
    directory : slice
        Where the directory is in the last gap.

    Attributes
    ----------
    arrays : Arrays
    """

    def __init__(
        self, gaps: list[tuple[int, bytearray]], members: list[_Member], size: int, directory: slice
    ) -> None:
        self._members, self._size, self._directory = members, size, directory
        # Time, date and CRC-32, side by side in both headers, and the CRC-32s of chunks.
        self._blanks = [
            (gap, slice(place - 4, place + 4))
            for member in members
            for gap, place in (member.local, member.entry)
        ] + [(len(gaps) - 1, member.chunks) for member in members if member.chunks]
        self._gaps = [bytearray(data) for _, data in gaps]
        self._spans = [(start, start + len(data)) for start, data in gaps]
        self._blank(self._gaps)
        infos: list[Any] = [member.info for member in members]
        self.arrays: Arrays = {info.key: (info.shape or (), info.dtype) for info in infos}

    def _blank(self, gaps: list[bytearray]) -> None:
        for gap, place in self._blanks:
            data = gaps[gap]
            data[place] = bytes(len(data[place]))

    def match(self, descriptor: Any) -> int | None:
        """Return the CRC-32 of the directory of a file of the same size; None if not alike."""
        if self._size <= 1 << 15:
            data = os.pread(descriptor, self._size, 0)
            gaps = [bytearray(data[start:end]) for start, end in self._spans]
        else:
            gaps = [
                bytearray(os.pread(descriptor, end - start, start)) for start, end in self._spans
            ]
        crc = crc32(gaps[-1][self._directory])
        self._blank(gaps)
        return crc if gaps == self._gaps else None

    def read(
        self, descriptor: Any, keys: Sequence[str], into: Mapping[str, np.ndarray[Any, Any]]
    ) -> dict[str, np.ndarray[Any, Any]] | None:
        """Read arrays, unless the file is not alike or its data is damaged.

        All arrays are read with one call, also those that are not asked for.

        Parameters
        ----------
        descriptor : Descriptor
        keys : sequence of str
        into : mapping of str to numpy.ndarray
            Arrays to fill: C-contiguous, of the right shape and dtype.

        Returns
        -------
        dict of str to numpy.ndarray or None
        """
        gaps = [bytearray(len(gap)) for gap in self._gaps]
        buffers: list[Any] = [gaps[0]]
        views, found = [], {}
        for number, member in enumerate(self._members, 1):
            array = into.get(member.info.key)
            if array is None:
                array = member.empty()
            elif member.info.fortran_order and array.ndim > 1:
                return None
            found[member.info.key] = array
            views.append(array.reshape(-1, order="A").view(np.uint8).data)
            buffers += (views[-1], gaps[number])
        if os.preadv(descriptor, buffers, 0) != self._size or not self._is_sound(gaps, views):
            return None
        return {key: found[key] for key in keys}

    def _is_sound(self, gaps: list[bytearray], views: list[memoryview]) -> bool:
        """Return whether the CRC-32s are right, and everything else is equal."""
        for member, view in zip(self._members, views, strict=True):
            expected = crc32(view, member.head_crc).to_bytes(4, "little")
            for gap, place in (member.local, member.entry):
                if gaps[gap][place : place + 4] != expected:
                    return False
        self._blank(gaps)
        return gaps == self._gaps


def skeleton_of(archive: OpenedArchive, infos: Mapping[str, ArrayInfo]) -> Skeleton | None:
    """Return the skeleton of an open archive; None if files like it have to be read one by one.

    Parameters
    ----------
    archive : OpenedArchive
    infos : mapping of str to ArrayInfo
        Of all members.
    """
    directory, source = archive.directory, archive.source
    ordered = sorted(infos.values(), key=lambda info: info.data_offset)
    size = source.file_size
    is_plain = directory.start_offset == 0 and directory.end_offset == size <= _MAX_SIZE
    if not (is_plain and hasattr(os, "preadv") and 0 < len(ordered) <= _MAX_COUNT):
        return None
    gaps, members, end = [], [], 0
    for info in ordered:
        entry = archive.entry(info.member)
        if not _is_simple(info, entry.method, entry.flags):
            return None
        # Compares the member's own headers with those that the directory and the index say.
        archive.chunks(info.key)
        gaps.append((end, bytearray(source.read_at(end, info.data_offset - end))))
        # The member's bytes begin with the NPY header, which ends where the data begins.
        head_size = entry.uncompressed_size - info.nbytes
        member = _Member(info, len(gaps) - 1, crc32(gaps[-1][1][-head_size:]))
        member.local = len(gaps) - 1, entry.header_offset - end + LOCAL_CRC32_OFFSET
        members.append(member)
        end = info.data_offset + info.nbytes
    gaps.append((end, bytearray(source.read_at(end, size - end))))
    if len(directory.positions) != len(directory.entries):
        # A name is repeated.
        return None
    start, places = directory.directory_offset - end, directory.places()
    for member in members:
        member.entry = len(gaps) - 1, start + places[member.info.member] + ENTRY_CRC32_OFFSET
        listed = archive.reader.lists.span(archive.entry(member.info.member))
        if listed is not None:
            if listed[0] < end:
                # In the record of an earlier commit.
                return None
            member.chunks = slice(listed[0] - end, listed[1] - end)
    return Skeleton(gaps, members, size, slice(start, start + directory.size))


def _is_simple(info: ArrayInfo, method: int, flags: int) -> bool:
    return (
        method == STORED
        and info.dtype is not None
        and not info.dtype.hasobject
        and info.dtype.itemsize > 0
        and not flags & (FLAG_DESCRIPTOR | FLAG_ENCRYPTED)
    )
