"""The checks of one member before it is read: size limit, encryption, headers, CRC-32.

Owns whether an `Entry` may be read, where its data begins, and the comparison
with its CRC. Knows no NPY. A local header is checked when its member is first
read, because checking all at open would cost one read per member.
"""

from __future__ import annotations

from typing import cast

from npzkit.codecs.methods import DEFLATED, DEFLATED64, STORED
from npzkit.errors import ChecksumError, LimitExceededError, UnsupportedError, ZipFormatError
from npzkit.files.source import Source
from npzkit.zip import records
from npzkit.zip.entries import BAD_NAME, Entry, check_names, is_usual
from npzkit.zip.local_header import find_data, header_end
from npzkit.zip.records import FLAG_DESCRIPTOR, FLAG_ENCRYPTED, LOCAL_HEADER_SIZE

MAX_RATIOS = {DEFLATED: 1032, DEFLATED64: 29_128}
"""The most bytes that one compressed byte can become: a match of 258 bytes takes 2
bits, one of 65,538 in Deflate64 takes 18."""

_REFUSED_FLAGS = (
    FLAG_ENCRYPTED | records.FLAG_PATCHED | records.FLAG_STRONG_ENCRYPTION | records.FLAG_MASKED
    | BAD_NAME
)  # fmt: skip


def check_entry(entry: Entry, size_limit: int | None = None) -> None:
    """Check whether the entry alone says that its member cannot be read.

    Raises
    ------
    UnsupportedError
        Encrypted, patched, or on another disk.
    ZipFormatError
        A name that cannot be used, or a size that the compressed bytes cannot reach.
    LimitExceededError
        More uncompressed bytes than `size_limit`.
    """
    is_special = not is_usual(entry)
    if is_special:
        _check_support(entry)
    if size_limit is not None and entry.uncompressed_size > size_limit:
        raise LimitExceededError(
            "the member is too large",
            offset=entry.header_offset,
            found=entry.uncompressed_size,
            expected=f"at most {size_limit}",
            remedy="Raise Limits.member_size.",
            is_damage=True,
        )
    if is_special:
        _check_sizes(entry)


def _check_support(entry: Entry) -> None:
    """Raise for flags that are not supported, and for names that cannot be used."""
    if entry.flags & _REFUSED_FLAGS or entry.disk_start:
        check_names([entry])
        raise UnsupportedError(
            "the member is encrypted, patched, or split over several files",
            offset=entry.header_offset,
            found=f"flags {entry.flags:#06x}, disk {entry.disk_start}",
            remedy="Extract it with the program that made it, and save it again.",
            is_damage=True,
        )


def _check_sizes(entry: Entry) -> None:
    """Raise for two sizes that do not fit each other."""
    size, compressed_size = entry.uncompressed_size, entry.compressed_size
    if entry.method == STORED and size != compressed_size:
        raise ZipFormatError(
            "a stored member has two different sizes",
            offset=entry.header_offset,
            found=compressed_size,
            expected=size,
        )
    reachable = MAX_RATIOS.get(entry.method, size) * compressed_size
    if size > reachable:
        raise ZipFormatError(
            "the member claims more bytes than its compressed data can hold",
            offset=entry.header_offset,
            found=f"{size} bytes from {compressed_size}",
            expected=f"at most {reachable}",
            remedy="The file is damaged, or is made to exhaust memory.",
        )


def data_offset(source: Source, entry: Entry, *, verify: bool = True) -> int:
    """Read and check a member's local header; return where its data begins in the file.

    If the member has a data descriptor, that is read and compared too.
    `verify` is as in `find_data`.
    """
    offset, room = entry.header_offset, entry.end_offset - entry.header_offset
    head = source.read_at(offset, min(LOCAL_HEADER_SIZE + len(entry.raw_name) + 1024, room))
    start = find_data(head, entry, verify)
    if start is None:
        head = source.read_at(offset, min(header_end(head), room))
        start = cast(int, find_data(head, entry, verify))
    start += offset
    if entry.flags & FLAG_DESCRIPTOR:
        _check_descriptor(source, start + entry.compressed_size, entry)
    return start


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
    """Raise ChecksumError if the CRC of the data is not the entry's."""
    if found != entry.crc32:
        raise ChecksumError(
            "the data is damaged: its CRC-32 differs",
            offset=offset,
            found=f"{found:#010x}",
            expected=f"{entry.crc32:#010x}",
            remedy="Download it or create it again; npz.read(key, verify=False) reads it as it is.",
        )
