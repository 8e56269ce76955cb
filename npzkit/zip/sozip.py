"""The seek index of a deflated member: SOZip's hidden file after it.

Owns the index's bytes, its name, and whether it is valid. A member with
an index was deflated in chunks that need nothing of each other (profile 1 of
sozip/sozip-spec, `sozip_specification.md`): each but the last ends in a sync
flush and a full flush. The index is a stored member right after it, with a
local header and no entry in the directory.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.codecs.methods import DEFLATED, STORED
from npzkit.errors import ZipFormatError
from npzkit.files.source import Source
from npzkit.zip.entries import Entry
from npzkit.zip.records import (
    DOS_DATE_1980,
    FLAG_DESCRIPTOR,
    FLAG_UTF8,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    SENTINEL_16,
    VERSION_DEFAULT,
    LocalHeader,
    format_local_header,
    parse_local_header,
)

CHUNK_SIZE = 1 << 18
"""Uncompressed bytes of a chunk: 32 KiB cost two to four times the speed."""
CHUNK_SIZE_LIMITS = 1 << 12, 1 << 26
"""Bytes a chunk may have when it is written: the specification advises 4096
and more. A reader has whole chunks in memory, so it refuses larger ones."""

_HEADER = struct.Struct("<LLLLQQ")
_VERSION = 1
_OFFSET_FORMATS = {4: "L", 8: "Q"}
_MAX_SKIP_SIZE = 1 << 16
_LEAST_CHUNK_SIZE = 1 << 10
"""The most chunks that are accepted of an index: each takes memory and a call."""


class SeekIndex(NamedTuple):
    """Where each chunk of a member begins in its compressed stream.

    Attributes
    ----------
    chunk_size : int
        Uncompressed bytes of every chunk but the last.
    offsets : sequence of int
        Compressed bytes before each chunk, 0 for the first one, and the size
        of the stream at the end: one more than there are chunks.
    uncompressed_size : int
    """

    chunk_size: int
    offsets: Sequence[int]
    uncompressed_size: int


def check_chunk_size(size: Any) -> int:
    """Return a chunk size, or raise ValueError for one that is not sensible."""
    smallest, largest = CHUNK_SIZE_LIMITS
    if isinstance(size, bool) or not hasattr(size, "__index__") or not smallest <= size <= largest:
        raise ValueError(f"chunk_size must be {smallest} to {largest} bytes, not {size!r}")
    return operator.index(size)


def index_name(name: str) -> str:
    """Return the index's name: hidden, in the member's folder.

    Examples
    --------
    >>> index_name("layer/w.npy")
    'layer/.w.npy.sozip.idx'
    """
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}.{base}.sozip.idx"


def _raw_index_name(name: str) -> bytes:
    # A name that is not UTF-8 was decoded so; see npzkit.zip.entries.read_name.
    return index_name(name).encode("utf-8", "surrogateescape")


def is_index_name(name: str) -> bool:
    """Whether a member's name is that of an index."""
    base = name.rpartition("/")[2]
    return base.startswith(".") and base.endswith(".sozip.idx")


def format_index(index: SeekIndex) -> bytes:
    """Format an index: header, then the offsets of all chunks but the first."""
    *offsets, compressed_size = index.offsets
    header = _HEADER.pack(
        _VERSION, 0, index.chunk_size, 8, index.uncompressed_size, compressed_size
    )
    return header + struct.pack(f"<{len(offsets) - 1}Q", *offsets[1:])


def format_index_member(name: str, index: SeekIndex) -> bytes:
    """Format the hidden member for the member `name`: local header and index.

    Empty if its name, which is longer than the member's, is too long for a header.
    """
    raw_name = _raw_index_name(name)
    if len(raw_name) > SENTINEL_16:
        return b""
    data = format_index(index)
    flags = 0 if raw_name.isascii() else FLAG_UTF8
    size = len(data)
    header = LocalHeader(
        VERSION_DEFAULT, flags, STORED, 0, DOS_DATE_1980, crc32(data), size, size, raw_name, b""
    )
    return format_local_header(header) + data


def parse_index(data: bytes, uncompressed_size: int, compressed_size: int) -> SeekIndex | None:
    """Parse an index; None if it does not fit a member of these sizes.

    Every offset is checked: ascending, and within the stream.
    """
    if len(data) < _HEADER.size:
        return None
    version, skip_size, chunk_size, offset_size, full_size, size = _HEADER.unpack_from(data)
    if (
        version != _VERSION
        or skip_size > _MAX_SKIP_SIZE
        or offset_size not in _OFFSET_FORMATS
        or (full_size, size) != (uncompressed_size, compressed_size)
        or not _LEAST_CHUNK_SIZE <= chunk_size <= CHUNK_SIZE_LIMITS[1]
        or full_size <= chunk_size
    ):
        return None
    count = (full_size - 1) // chunk_size
    start = _HEADER.size + skip_size
    if len(data) != start + count * offset_size:
        return None
    inner = struct.unpack_from(f"<{count}{_OFFSET_FORMATS[offset_size]}", data, start)
    offsets = (0, *inner, size)
    if not all(map(operator.lt, offsets, itertools.islice(offsets, 1, None))):
        return None
    return SeekIndex(chunk_size, offsets, full_size)


def find_index(source: Source, entry: Entry, data_start: int) -> SeekIndex | None:
    """Read the index after a member; None if there is no valid one.

    Parameters
    ----------
    source : Source
    entry : Entry
    data_start : int
        Where the member's compressed data begins.
    """
    if entry.method != DEFLATED or entry.flags & FLAG_DESCRIPTOR:
        return None
    offset = data_start + entry.compressed_size
    room = entry.end_offset - offset
    raw_name = _raw_index_name(entry.name)
    if room < LOCAL_HEADER_SIZE + len(raw_name) + _HEADER.size:
        return None
    head = source.read_at(offset, min(room, LOCAL_HEADER_SIZE + len(raw_name) + 1024))
    try:
        header = parse_local_header(head)
    except ZipFormatError:
        return None
    size = header.uncompressed_size
    start = LOCAL_HEADER_SIZE + len(header.name) + len(header.extra)
    if header.name != raw_name or header.method != STORED or size > room - start:
        return None
    if size > _largest_size(entry.uncompressed_size):
        return None
    data = source.read_at(offset + start, size)
    if crc32(data) != header.crc32:
        return None
    return parse_index(data, entry.uncompressed_size, entry.compressed_size)


def has_index_member(source: Source, entry: Entry, data_start: int) -> bool:
    """Whether a hidden member with an index's name follows, valid or not."""
    offset = data_start + entry.compressed_size
    raw_name = _raw_index_name(entry.name)
    size = LOCAL_HEADER_SIZE + len(raw_name)
    if entry.end_offset - offset < size:
        return False
    head = source.read_at(offset, size)
    return head.startswith(LOCAL_HEADER_SIGNATURE) and head.endswith(raw_name)


def _largest_size(uncompressed_size: int) -> int:
    """The most bytes that the index of a member of this size may have."""
    count = uncompressed_size // _LEAST_CHUNK_SIZE
    return _HEADER.size + _MAX_SKIP_SIZE + count * max(_OFFSET_FORMATS)
