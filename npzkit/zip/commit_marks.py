"""What a commit says of itself in the file: the intent of an append, and its metadata.

Guarantees that a reader knows whether a commit is complete, so that it infers nothing from
members or directories. `npzkit.zip.footer` tells whether it is undamaged. Offsets count from the
archive's start.

The *intent* is the first record of an append: a stored member without data and without
an entry in the directory, right behind the end of the commit that the append follows.
Its extra field, identifier 0x5A4E ("NZ"), is little-endian::

    uint32  version: 1
    uint64  end_offset: where the end that it follows ends
    uint32  end_crc32: of that end's bytes: zip64's records, the end record, its comment
    uint32  CRC-32 of the 16 bytes before

    uint64  directory_offset    the *mark*: zeros until the append is complete. Where its
    uint64  records_offset      directory begins, where its own end begins and ends, and the
    uint64  end_offset          CRC-32 of the bytes of that end, as they will be
    uint32  end_crc32
    uint32  CRC-32 of the 48 bytes before, from the version on

All but the mark follows from the end before it, so that any part of it that reached the
disk is known as such. It never extends over a multiple of 512: zeros precede it up to
there if it would. So a sector that is lost has all of it, or nothing.

*Metadata* that the comment of an end record cannot hold is in a hidden member, and a
short comment says where. Nothing here knows what it means.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import re
import struct
from typing import NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.codecs.coding import STORED
from npzkit.errors import UnsupportedError, ZipFormatError, check_limit
from npzkit.files.source import Source
from npzkit.zip.extra_fields import format_extra
from npzkit.zip.member_layout import format_hidden
from npzkit.zip.records import (
    DOS_DATE_1980,
    LOCAL_HEADER_SIZE,
    LOCAL_LAYOUT,
    VERSION_DEFAULT,
    LocalHeader,
)

INTENT_NAME = ".npzkit.append"
_RAW_NAME = INTENT_NAME.encode()
_ID = 0x5A4E
_VERSION = 1
_FOLLOWS = struct.Struct("<LQL")
_MARK = struct.Struct("<QQQL")
_MARK_SIZE = _MARK.size + 4
_VERSION_OFFSET = LOCAL_HEADER_SIZE + len(_RAW_NAME) + 4
MARK_OFFSET = _VERSION_OFFSET + _FOLLOWS.size + 4
"""Where the mark begins in an intent."""
INTENT_SIZE = MARK_OFFSET + _MARK_SIZE
_SECTOR_SIZES = (512, 4096)
"""What disks write, and lose, whole."""


class Mark(NamedTuple):
    """What an intent says of its own append, once that is complete; see the module."""

    directory_offset: int
    records_offset: int
    end_offset: int
    end_crc32: int


class Behind:
    """What the bytes behind an end are: one of these texts."""

    UNFINISHED = "an append that is not marked as complete"
    ZEROS = "zeros: of such an append, whose first sector was lost, or of something else"
    COMPLETE = "an append that is marked as complete"
    DAMAGED = "an append whose intent is damaged, or follows another end"
    FOREIGN = "nothing that an append writes"


def format_intent(end_offset: int, end_crc32: int) -> bytes:
    """Format the intent of an append behind an end, with the zeros before it."""
    follows = _FOLLOWS.pack(_VERSION, end_offset, end_crc32)
    extra = format_extra(_ID, follows + _crc32(follows) + bytes(_MARK_SIZE))
    header = LocalHeader(VERSION_DEFAULT, 0, STORED, 0, DOS_DATE_1980, 0, 0, 0, _RAW_NAME, extra)
    return LOCAL_LAYOUT.format(header).rjust(INTENT_SIZE + _padding(end_offset), b"\0")


def _padding(end_offset: int) -> int:
    """Return how many zeros stand between an end and the intent behind it."""
    room = -end_offset % _SECTOR_SIZES[0]
    return room if room < INTENT_SIZE else 0


def format_mark(intent: bytes, mark: Mark) -> bytes:
    """Format the mark that an intent gets."""
    data = _MARK.pack(*mark)
    return data + _crc32(_followed(intent) + data)


def parse_mark(intent: bytes) -> Mark | None:
    """Return the mark in an intent of 100 bytes; None if it has none that is complete."""
    data = intent[MARK_OFFSET:-4]
    is_complete = len(data) == _MARK.size and intent[-4:] == _crc32(_followed(intent) + data)
    return Mark._make(_MARK.unpack(data)) if is_complete else None


def is_intent(data: bytes) -> bool:
    """Return whether 100 bytes are an intent, by its name and what it says of the end before."""
    followed = _followed(data)
    is_named = data[LOCAL_HEADER_SIZE:].startswith(_RAW_NAME)
    return is_named and followed[-4:] == _crc32(followed[:-4])


def is_damaged(intent: bytes, mark: bytes) -> bool:
    """Return whether 100 bytes are not what an append leaves that gets this mark.

    A crash may leave a part of the mark. If another program has changed the end since, the
    mark is still that of the end before.
    """
    _, end_offset, end_crc32 = _FOLLOWS.unpack_from(intent, _VERSION_OFFSET)
    if format_intent(end_offset, end_crc32)[-INTENT_SIZE:][:MARK_OFFSET] != intent[:MARK_OFFSET]:
        return True
    old, new = parse_mark(intent), parse_mark(intent[:MARK_OFFSET] + mark)
    if old is None or new is None:
        return not mark.startswith(intent[MARK_OFFSET:].rstrip(b"\0"))
    return old != new and old[:-1] == new[:-1]


def _followed(intent: bytes) -> bytes:
    """Return what an intent says of the end before it, with its own CRC-32."""
    return intent[_VERSION_OFFSET:MARK_OFFSET]


def _crc32(data: bytes) -> bytes:
    return crc32(data).to_bytes(4, "little")


def read_behind(data: bytes, end_offset: int, end_crc32: int) -> tuple[str, Mark | None]:
    """Return what the bytes behind an end are, and the mark of an append that is complete.

    Parameters
    ----------
    data : bytes
        What follows the end; as much of it as the file has, up to 1,024 bytes.
    end_offset, end_crc32 : int
        As in the intent.

    Raises
    ------
    UnsupportedError
        A newer npzkit appended to the archive.
    """
    follows = format_intent(end_offset, end_crc32)[:-_MARK_SIZE]
    # Of a write that was torn, or of sectors that were lost, zeros are left.
    if all(found in (0, written) for found, written in zip(data, follows, strict=False)):
        raw_mark = data[len(follows) :][:_MARK_SIZE]
        mark = parse_mark((follows + raw_mark)[-INTENT_SIZE:])
        if mark is not None:
            return Behind.COMPLETE, mark
        # A file that ends within a mark was cut: the mark is written last.
        is_cut = data.startswith(follows) and len(raw_mark) < _MARK_SIZE and any(raw_mark)
        if is_cut:
            return Behind.DAMAGED, None
        is_zero = not data[: len(follows) + _MARK_SIZE].strip(b"\0")
        return Behind.ZEROS if is_zero else Behind.UNFINISHED, None
    intent = data[_padding(end_offset) :][:INTENT_SIZE]
    if not intent[LOCAL_HEADER_SIZE:].startswith(_RAW_NAME):
        return Behind.FOREIGN, None
    version = int.from_bytes(_followed(intent)[:4], "little")
    if is_intent(intent) and version > _VERSION:
        raise UnsupportedError(
            "a newer npzkit was appending to the archive",
            found=f"version {version}", expected=f"at most {_VERSION}",
            remedy="Install a newer npzkit, which completes or removes what it appended.",
        )  # fmt: skip
    return Behind.DAMAGED, None


def members_begin(end_offset: int) -> int:
    """Return where the first member of an append behind an end begins."""
    return end_offset + _padding(end_offset) + INTENT_SIZE


def room_before_end(intent_offset: int, records_offset: int, end_offset: int) -> int:
    """Return how many zeros to put before the end of an append, and its directory.

    A sector that has the intent has no byte of the end, unless it has all that
    follows: no loss of one sector can take both.
    """
    room = 0
    for size in _SECTOR_SIZES:
        begin, last = records_offset + room, end_offset + room - 1
        if intent_offset // size == begin // size != last // size:
            room += -begin % size
    return room


# -- metadata of any size ---------------------------------------------------------

COMMENT_NAME = ".npzkit.metadata"
RAW_COMMENT_NAME = COMMENT_NAME.encode()
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
    check_limit(long.size, size_limit, "metadata_size", "the metadata is too long")
    lead = LOCAL_HEADER_SIZE + len(COMMENT_NAME)
    offset = start_offset + long.offset
    if lead <= long.size <= end_offset - offset:
        data = source.read_at(offset, long.size)
        if format_hidden(RAW_COMMENT_NAME, data[lead:]) == data:
            return data[lead:]
    raise ZipFormatError(
        "the archive's metadata is damaged, or another program removed it",
        offset=offset,
        found="no sound hidden member",
        expected=f"{COMMENT_NAME} with {long.size} bytes",
        remedy="npzkit.repair(path, output) saves the arrays without it.",
    )
