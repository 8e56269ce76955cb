"""What a commit says of its directory: the footer of its array index.

Guarantees that a damaged directory is known as such.

The *footer* is the last 76 bytes of the array index, right before the directory, in
every archive that npzkit writes::

    uint64  directory_offset: the footer ends there
    uint64  directory_size
    uint64  entry_count
    uint64  intent_offset of this commit; 0 if it follows no other
    uint64  metadata_offset, and
    uint64  metadata_size of the hidden member with large metadata, for other readers; 0, 0
            without one. npzkit uses the comment, which says the same.
    uint32  index_size, the local header of the index included
    uint32  directory_crc32: the CRC-32 fields of its entries count as zero, because a flush
            of a map rewrites them
    uint32  comment_size
    uint32  comment_crc32
    uint32  version: 1
    uint32  CRC-32 of the footer up to here
    bytes   NPZX

Later versions keep the places of the last three, so that this one refuses them by name.
A footer that is not where it says, or does not fit its own CRC-32, is none. If it fits
and the directory does not, the directory is damaged: another program that changes a
directory moves it, or writes the same bytes again.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.errors import UnsupportedError
from npzkit.zip.records import ENTRY_CRC32_OFFSET

_FOOTER_VERSION = 1
FOOTER_MAGIC = b"NPZX"
_FOOTER = struct.Struct("<6Q6L4s")
FOOTER_SIZE = _FOOTER.size
_CHECKED_SIZE = FOOTER_SIZE - 8
_CRC32 = struct.Struct("<L")
_FEW = 200
"""Fewer entries are changed one by one, which takes less time than NumPy's start."""


class Footer(NamedTuple):
    """What a commit says of its directory, its comment and its intent; see the module."""

    directory_offset: int
    directory_size: int
    entry_count: int
    intent_offset: int
    metadata_offset: int
    metadata_size: int
    index_size: int
    directory_crc32: int
    comment_size: int
    comment_crc32: int

    def format(self) -> bytes:
        """Return the footer's bytes."""
        own_crc32 = crc32(_FOOTER.pack(*self, _FOOTER_VERSION, 0, FOOTER_MAGIC)[:_CHECKED_SIZE])
        return _FOOTER.pack(*self, _FOOTER_VERSION, own_crc32, FOOTER_MAGIC)

    def fits(self, directory: bytes, positions: Sequence[int] | Any) -> bool:
        """Return whether a directory, whose entries begin at `positions`, is the one it was."""
        return (
            self.directory_size == len(directory)
            and self.entry_count == len(positions)
            and self.directory_crc32 == masked_crc32(directory, positions)
        )

    def fits_comment(self, comment: bytes) -> bool:
        """Return whether a comment is as it was, or has another size: another program's."""
        return len(comment) != self.comment_size or crc32(comment) == self.comment_crc32


def parse_footer(data: bytes, directory_offset: int) -> Footer | None:
    """Return the footer at the end of what precedes a directory; None if none is there.

    Parameters
    ----------
    data : bytes
        What ends where the directory begins.
    directory_offset : int
        Where that is, from the archive's start.

    Raises
    ------
    UnsupportedError
        A newer npzkit wrote it.
    """
    if len(data) < FOOTER_SIZE or not data.endswith(FOOTER_MAGIC):
        return None
    data = data[-FOOTER_SIZE:]
    fields = _FOOTER.unpack(data)
    version, own_crc32, _ = fields[10:]
    if own_crc32 != crc32(data[:_CHECKED_SIZE]):
        return None
    if version > _FOOTER_VERSION:
        raise UnsupportedError(
            "a newer npzkit wrote the archive's index",
            found=f"version {version}", expected=f"at most {_FOOTER_VERSION}",
            remedy="Install a newer npzkit. np.load reads the arrays.",
        )  # fmt: skip
    footer = Footer._make(fields[:10])
    return footer if footer.directory_offset == directory_offset else None


def masked_crc32(directory: bytes, positions: Sequence[int] | Any) -> int:
    """Return the CRC-32 of a directory, the CRC-32 field of each entry taken as zero."""
    data = bytearray(directory)
    if len(positions) < _FEW:
        for position in positions:
            _CRC32.pack_into(data, position + ENTRY_CRC32_OFFSET, 0)
    else:
        from npzkit.zip.entry_columns import clear_words

        clear_words(data, positions, ENTRY_CRC32_OFFSET)
    return crc32(data)
