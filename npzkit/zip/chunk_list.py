"""The list of a member's chunks: its bytes, and whether it is believed.

A compressed member was compressed in chunks that need nothing of each other. Deflated, each but the
last ends in a sync flush and a full flush. `npzkit.codecs.zstandard` says what chunks of
Zstandard are. A stored member of more than 256 KiB has chunks of 64 KiB. The record has a *list*
of them, little-endian::

    uint32  the CRC-32 of each chunk's data
    uint32  of a compressed member: the bytes of each chunk in the compressed stream
    uint32  of a compressed member: the CRC-32 of both

`npzkit.zip.array_index` says where it is, and how large the chunks are. Users read of it as the
*seek index* of a member.

Decides whether a list is believed: its CRC-32s, combined, must be the member's own. A chunk
that does not have its CRC-32 is damaged, and raises `ChecksumError`.
"""

from __future__ import annotations

import itertools
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from npzkit.codecs.checksum import combined_with_last, crc32
from npzkit.codecs.coding import (
    CHECKED_SIZE,
    CHUNK_SIZE,
    CHUNK_SIZE_LIMITS,
    CHUNKED,
    STORED,
)  # fmt: skip
from npzkit.errors import GET_AGAIN, REST_SAVED, ChecksumError
from npzkit.zip.entries import Entry

_LISTED = {STORED, *CHUNKED}
"""Methods of members that may have a list."""
_LEAST_CHUNK_SIZE = 1 << 10
"""Smaller ones are not accepted: each chunk takes memory and a call."""


class ChunkList(NamedTuple):
    """The chunks of a member.

    Attributes
    ----------
    chunk_size : int
        Uncompressed bytes of every chunk but the last.
    size : int
        Uncompressed bytes of the member.
    crc32s : sequence of int
        Of the data of each chunk.
    offsets : sequence of int
        Compressed bytes before each chunk, 0 for the first one, and the size
        of the stream at the end: one more than there are chunks. None of a stored member.
    method : int
        Of the member.
    """

    chunk_size: int
    size: int
    crc32s: Sequence[int]
    offsets: Sequence[int] = ()
    method: int = STORED

    def format(self) -> bytes:
        """Return the bytes of the list."""
        data = _words(self.crc32s)
        if self.method == STORED:
            return data
        data += _words([end - begin for begin, end in itertools.pairwise(self.offsets)])
        return data + crc32(data).to_bytes(4, "little")

    def fits(self, crc32: int) -> bool:
        """Return whether the CRC-32s of all chunks, combined, are that of the member."""
        return combined_with_last(self.crc32s, self.chunk_size, self.size) == crc32

    def compare(self, crc32s: list[int], offset: int, start: int) -> None:
        """Compare the CRC-32s of some chunks of a stored member.

        Parameters
        ----------
        crc32s : list of int
            What was read has these.
        offset : int
            Where the first of the chunks begins in the member.
        start : int
            Where the member's data begins in the file.

        Raises
        ------
        ChecksumError
            A chunk is damaged.
        """
        first = offset // self.chunk_size
        if crc32s == list(self.crc32s[first : first + len(crc32s)]):
            return
        for number, crc in enumerate(crc32s, first):
            if crc != self.crc32s[number]:
                place = start + number * self.chunk_size
                raise self.damaged(number, place, f"CRC-32 {crc:08x}")

    def damaged(self, number: int, offset: int, found: str) -> ChecksumError:
        """Return the error for a chunk that lies at `offset` of the file."""
        error = ChecksumError(
            f"chunk {number + 1} of {len(self.crc32s)} is damaged",
            offset=offset,
            found=found,
            expected=f"CRC-32 {self.crc32s[number]:08x}",
            remedy=f"{GET_AGAIN}; " + REST_SAVED + ".",
        )
        error.chunk = number + 1
        return error


def _words(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}L", *numbers)


def stored_chunks(crc32s: Sequence[int], size: int) -> ChunkList | None:
    """Return the list of a stored member of so many bytes, by the CRC-32s of its chunks.

    None of one that is small: it has its own CRC-32.
    """
    return ChunkList(CHECKED_SIZE, size, crc32s) if size > CHUNK_SIZE else None


def list_size(entry: Entry, chunk_size: int) -> int:
    """Return the bytes of a member's list; 0 if it can have none with chunks of this size."""
    is_usual = _LEAST_CHUNK_SIZE <= chunk_size <= CHUNK_SIZE_LIMITS[1]
    if entry.method not in _LISTED or not is_usual or entry.uncompressed_size <= chunk_size:
        return 0
    count = -(-entry.uncompressed_size // chunk_size)
    return 4 * count if entry.method == STORED else 8 * count + 4


def parse_list(data: bytes, entry: Entry, chunk_size: int) -> ChunkList | None:
    """Return the list of a member; None if it is damaged, or that of other data."""
    size, method = entry.uncompressed_size, entry.method
    # Makes no int of each.
    words = array("I", data)
    if sys.byteorder == "big":
        words.byteswap()
    if method == STORED:
        found = ChunkList(chunk_size, size, words)
        return found if found.fits(entry.crc32) else None
    count = len(words) // 2
    if words[-1] != crc32(data[:-4]) or not all(words[count:-1]):
        return None
    offsets = (0, *itertools.accumulate(words[count:-1]))
    found = ChunkList(chunk_size, size, words[:count], offsets, method)
    return found if offsets[-1] == entry.compressed_size and found.fits(entry.crc32) else None


def most_compressed(size: Any) -> Any:
    """Return the most compressed bytes that a chunk of so many bytes may take; or of many."""
    return 2 * size + 1024


def only_chunk(entry: Entry) -> ChunkList | None:
    """Return the list of a member that is no larger than a chunk, whoever wrote it."""
    size = entry.uncompressed_size
    if entry.method not in _LISTED or not 0 < size <= CHUNK_SIZE:
        return None
    if entry.compressed_size > most_compressed(size):
        # A stream of many flushes.
        return None
    offsets = () if entry.method == STORED else (0, entry.compressed_size)
    return ChunkList(size, size, (entry.crc32,), offsets, entry.method)
