"""Comments of any size: one that an end record cannot hold is in a hidden member.

Owns that member, a stored one with a local header and no entry in the
directory, and the short comment that says where it is. Nothing here knows what
a comment means.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.codecs.methods import STORED
from npzkit.errors import LimitExceededError, ZipFormatError
from npzkit.files.source import Source
from npzkit.zip.records import (
    DOS_DATE_1980,
    LOCAL,
    LOCAL_HEADER_SIGNATURE,
    LOCAL_HEADER_SIZE,
    SENTINEL_32,
    VERSION_DEFAULT,
)

COMMENT_NAME = ".npzkit.metadata"
_SIZES = struct.Struct("<LLLHxx")
_BEGINNING = LOCAL.pack(
    LOCAL_HEADER_SIGNATURE, VERSION_DEFAULT, 0, STORED, 0, DOS_DATE_1980, 0, 0, 0, 0, 0
)[: -_SIZES.size]
"""Of the local header of a hidden member: it comes before the CRC-32."""
_POINTER_START = b'{"npzkit.metadata":'
_POINTER = rb'\{"npzkit\.metadata":\{"offset":([0-9]{1,19}),"size":([0-9]{1,10})\}\}'


class LongComment(NamedTuple):
    """Where the hidden member lies.

    Attributes
    ----------
    offset : int
        Of its local header, from the archive's start.
    size : int
        Of header and text together.
    """

    offset: int
    size: int

    @property
    def comment(self) -> bytes:
        """The short comment in the end record that leads to it."""
        return b'{"npzkit.metadata":{"offset":%d,"size":%d}}' % self


def format_hidden(name: str, data: bytes) -> bytes:
    """Format a hidden member: its local header and its data.

    Raises
    ------
    LimitExceededError
        4 GiB or more.
    """
    size = len(data)
    if size >= SENTINEL_32:
        raise LimitExceededError(
            "the metadata is too long",
            found=f"{size} bytes",
            expected="less than 4 GiB",
            remedy="Save what is large as an array.",
        )
    raw_name = name.encode()
    return b"".join(
        (_BEGINNING, _SIZES.pack(crc32(data), size, size, len(raw_name)), raw_name, data)
    )


def find_long_comment(comment: bytes) -> LongComment | None:
    """Return where a comment says that the long one is; None if it is not such a comment."""
    # Compiled on first use, so that importing npzkit is fast.
    found = re.fullmatch(_POINTER, comment) if comment.startswith(_POINTER_START) else None
    return None if found is None else LongComment(int(found[1]), int(found[2]))


def read_comment(
    source: Source,
    comment: bytes,
    start_offset: int,
    end_offset: int,
    size_limit: int | None = None,
) -> bytes:
    """Return an archive's comment: its end record's, or the long one to which that leads.

    Parameters
    ----------
    source : Source
    comment : bytes
        Of the end record.
    start_offset, end_offset : int
        Where the archive begins, and where its directory does.
    size_limit : int, optional
        Most bytes of the long one.

    Raises
    ------
    LimitExceededError
        The long comment has more than `size_limit` bytes. It is not read.
    ZipFormatError
        The long comment is not where it should be, or damaged.
    """
    long = find_long_comment(comment)
    if long is None:
        return comment
    if size_limit is not None and long.size > size_limit:
        raise LimitExceededError(
            "the metadata is too long",
            found=f"{long.size} bytes",
            expected=f"at most {size_limit}",
            remedy="Pass limits=npzkit.Limits(metadata_size=...) if the file is trusted.",
            is_damage=True,
        )
    lead = LOCAL_HEADER_SIZE + len(COMMENT_NAME)
    offset = start_offset + long.offset
    if lead <= long.size <= end_offset - offset:
        data = source.read_at(offset, long.size)
        if format_hidden(COMMENT_NAME, data[lead:]) == data:
            return data[lead:]
    raise ZipFormatError(
        "the archive's metadata is damaged, or another program removed it",
        offset=offset,
        found="no sound hidden member",
        expected=f"{COMMENT_NAME} with {long.size} bytes",
        remedy="npzkit.repair(path, output) saves the arrays without it.",
    )
