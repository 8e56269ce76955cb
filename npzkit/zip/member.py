"""One member: its local header checked against its entry.

Owns what lies between an `Entry` and the first byte of its data. Knows no NPY.
A local header is checked when its member is first read, not at open: that
would cost a read a member.
"""

from __future__ import annotations

import struct

from npzkit.codecs.methods import DEFLATED, DEFLATED64, STORED
from npzkit.errors import ChecksumError, LimitExceededError, UnsupportedError, ZipFormatError
from npzkit.files.source import Source
from npzkit.zip import records
from npzkit.zip.entries import BAD_NAME, Entry, check_names
from npzkit.zip.extra import ZIP64_ID, find_extra, parse_zip64
from npzkit.zip.records import (
    FLAG_DESCRIPTOR,
    FLAG_ENCRYPTED,
    LOCAL_FIELDS,
    LOCAL_HEADER_SIZE,
    SENTINEL_32,
)

__all__ = [
    "MAX_RATIOS",
    "check_crc32",
    "check_entry",
    "check_room",
    "data_offset",
    "find_data",
    "header_end",
    "resolve_sizes",
]

MAX_RATIOS = {DEFLATED: 1032, DEFLATED64: 29_128}
"""Bytes that one compressed byte can stand for at most: a match of 258 bytes
takes 2 bits, Deflate64's of 65,538 takes 18."""

_REMEDY = "Fetch or write the file again"
_UNVERIFIED = "npz.read(key, verify=False) reads it as it is."

_REFUSED_FLAGS = (
    FLAG_ENCRYPTED | records.FLAG_PATCHED | records.FLAG_STRONG_ENCRYPTION | records.FLAG_MASKED
    | BAD_NAME
)  # fmt: skip


def check_entry(entry: Entry, size_limit: int | None = None) -> None:
    """Raise where the entry alone says that its member cannot be read.

    Raises
    ------
    UnsupportedError
        Encrypted, patched, or on another disk.
    ZipFormatError
        A name that cannot be used, or a size that the compressed bytes cannot reach.
    LimitExceededError
        More uncompressed bytes than `size_limit`.
    """
    if entry.flags & _REFUSED_FLAGS or entry.disk_start:
        check_names([entry])
        raise UnsupportedError(
            "the member is encrypted, patched, or split over several files",
            offset=entry.header_offset,
            found=f"flags {entry.flags:#06x}, disk {entry.disk_start}",
            remedy="Extract it with the program that made it, and save it again.",
        )
    size, compressed_size = entry.uncompressed_size, entry.compressed_size
    if size_limit is not None and size > size_limit:
        raise LimitExceededError(
            "the member is too large",
            offset=entry.header_offset,
            found=size,
            expected=f"at most {size_limit}",
            remedy="Raise Limits.member_size.",
        )
    if entry.method == STORED and size != compressed_size:
        raise ZipFormatError(
            "a stored member has two different sizes",
            offset=entry.header_offset,
            found=compressed_size,
            expected=size,
            remedy="The file is damaged, or was made by a faulty program: make it again.",
        )
    reachable = MAX_RATIOS.get(entry.method, size) * compressed_size
    if size > reachable:
        raise ZipFormatError(
            "the member claims more bytes than its compressed data can hold",
            offset=entry.header_offset,
            found=f"{size} bytes from {compressed_size}",
            expected=f"at most {reachable}",
            remedy="The file is damaged, or made to exhaust memory.",
        )


def find_data(
    window: bytes | memoryview, position: int, entry: Entry, *, verify: bool = True
) -> int:
    """Check the local header at `position` and return where the data begins.

    Parameters
    ----------
    window : bytes-like
        Part of the archive, with the whole local header in it.
    position : int
        The header's place in `window`.
    entry : Entry
        What the directory says of the member.
    verify : bool, default True
        Compare the CRC too.

    Returns
    -------
    int
        A place in `window`, maybe behind its end.

    Raises
    ------
    ZipFormatError
        Name, method, sizes or encryption differ: programs would not agree on
        what the archive holds.
    ChecksumError
        Only the CRC differs.
    """
    (
        signature, flags, method, crc, compressed_size, uncompressed_size, name_size, extra_size
    ) = LOCAL_FIELDS.unpack_from(window, position)  # fmt: skip
    if signature != records.LOCAL_HEADER_SIGNATURE:
        raise _differs(entry, "signature", signature, records.LOCAL_HEADER_SIGNATURE)
    name_offset = position + LOCAL_HEADER_SIZE
    name_end = name_offset + name_size
    if window[name_offset:name_end] != entry[1]:
        name = bytes(window[name_offset:name_end])
        raise _differs(entry, "name", name, entry.raw_name)
    data_start: int = name_end + extra_size
    if (flags, method, crc, compressed_size, uncompressed_size) == entry[2:7]:
        return data_start
    extra = bytes(window[data_start - extra_size : data_start])
    sizes = resolve_sizes(extra, uncompressed_size, compressed_size)
    _compare(entry, flags, method, crc if verify else entry.crc32, sizes)
    return data_start


def resolve_sizes(extra: bytes, uncompressed_size: int, compressed_size: int) -> tuple[int, int]:
    """Return both sizes, uncompressed first, from the zip64 block where they are sentinels.

    np.savez forces zip64 headers on members of any size.
    """
    sizes = (uncompressed_size, compressed_size)
    count = sizes.count(SENTINEL_32)
    payload = find_extra(extra, ZIP64_ID) if count else None
    if payload is None:
        return sizes
    large = iter(parse_zip64(payload, count))
    uncompressed_size, compressed_size = (
        next(large) if size == SENTINEL_32 else size for size in sizes
    )
    return uncompressed_size, compressed_size


def _compare(entry: Entry, flags: int, method: int, crc: int, sizes: tuple[int, int]) -> None:
    """Compare field by field, sparing what a data descriptor makes unknown."""
    checks = [
        ("method", method, entry.method),
        ("encryption flag", flags & FLAG_ENCRYPTED, entry.flags & FLAG_ENCRYPTED),
        ("descriptor flag", flags & FLAG_DESCRIPTOR, entry.flags & FLAG_DESCRIPTOR),
    ]
    values = (
        ("uncompressed size", sizes[0], entry.uncompressed_size),
        ("compressed size", sizes[1], entry.compressed_size),
    )
    # Under a descriptor each is 0 here, or known after all (Java's jar).
    deferred = (0, SENTINEL_32) if flags & FLAG_DESCRIPTOR else ()
    checks += [check for check in values if check[1] not in deferred]
    for name, found, expected in checks:
        if found != expected:
            raise _differs(entry, name, found, expected)
    if crc not in (entry.crc32, *deferred):
        raise _crc_differs(entry, crc)


def _differs(entry: Entry, field: str, found: object, expected: object) -> ZipFormatError:
    return ZipFormatError(
        f"the local header and the central directory disagree on the {field}",
        offset=entry.header_offset,
        found=found,
        expected=expected,
        remedy="Programs would read different data from this file; make it again.",
    )


def _crc_differs(entry: Entry, found: int) -> ChecksumError:
    """Return the error for two headers that differ only in the CRC.

    A killed flush of a map leaves a member so: it writes both, one after the other.
    """
    is_mappable = entry.method == STORED and not entry.flags & FLAG_DESCRIPTOR
    remedy = "If the flush of a map was interrupted, npzkit.repair(path) completes it"
    return ChecksumError(
        "the local header and the central directory disagree on the CRC-32",
        offset=entry.header_offset,
        found=f"{found:#010x}",
        expected=f"{entry.crc32:#010x}",
        remedy=f"{remedy if is_mappable else _REMEDY}; {_UNVERIFIED}",
    )


def header_end(window: bytes | memoryview, position: int) -> int:
    """Return where the local header at `position` ends, by its own sizes."""
    name_size, extra_size = struct.unpack_from("<HH", window, position + LOCAL_HEADER_SIZE - 4)
    end: int = position + LOCAL_HEADER_SIZE + name_size + extra_size
    return end


def data_offset(source: Source, entry: Entry, *, verify: bool = True) -> int:
    """Read and check a member's local header; return where its data begins.

    For a member with a data descriptor that is read and compared too. `verify`
    is as in `find_data`.
    """
    offset, room = entry.header_offset, entry.end_offset - entry.header_offset
    head = source.read_at(offset, min(LOCAL_HEADER_SIZE + len(entry.raw_name) + 1024, room))
    if len(head) < header_end(head, 0) <= room:
        head = source.read_at(offset, header_end(head, 0))
    start = offset + find_data(head, 0, entry, verify=verify)
    check_room(start, entry)
    if entry.flags & FLAG_DESCRIPTOR:
        _check_descriptor(source, start + entry.compressed_size, entry)
    return start


def check_room(start: int, entry: Entry) -> None:
    """Raise where a member's data, as its local header places it, runs over."""
    if start + entry.compressed_size > entry.end_offset:
        raise ZipFormatError(
            "the member's data overlaps what comes behind it",
            offset=start,
            found=f"{entry.compressed_size} bytes",
            expected=f"at most {max(entry.end_offset - start, 0)}",
        )


def _check_descriptor(source: Source, offset: int, entry: Entry) -> None:
    size = min(records.DESCRIPTOR_MAX_SIZE, entry.end_offset - offset)
    data = source.read_at(offset, size)
    if not records.matches_data_descriptor(
        data, entry.crc32, entry.compressed_size, entry.uncompressed_size
    ):
        raise ZipFormatError(
            "the data descriptor and the central directory disagree",
            offset=offset,
            found=data,
            expected=(entry.crc32, entry.compressed_size, entry.uncompressed_size),
        )


def check_crc32(found: int, entry: Entry, offset: int) -> None:
    """Raise ChecksumError where the data's CRC is not the entry's."""
    if found != entry.crc32:
        raise ChecksumError(
            "the data is damaged: its CRC-32 differs",
            offset=offset,
            found=f"{found:#010x}",
            expected=f"{entry.crc32:#010x}",
            remedy=f"{_REMEDY}; {_UNVERIFIED}",
        )
