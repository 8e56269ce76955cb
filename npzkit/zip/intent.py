"""The intent: the first record of an append, which says in the file what the append is.

Owns its bytes and its place. It is a stored member without data and without an
entry in the directory, right behind the end of the commit that the append
follows. Its extra field, identifier 0x5A4E ("NZ"), has, little-endian::

    uint32  version: 1
    uint64  end_offset: where the end that it follows ends
    uint32  end_crc32: of that end's bytes: zip64's records, the end record, its comment
    uint32  CRC-32 of the 16 bytes before

    uint64  directory_offset    the *mark*: zeros until the append is complete. Where its
    uint64  records_offset      directory begins, where its own end begins and ends, and the
    uint64  end_offset          CRC-32 of the bytes of that end, as they will be
    uint32  end_crc32
    uint32  CRC-32 of the 48 bytes before, from the version on

Offsets count from the archive's start. All but the mark follows from the end
before it, so that any part of it that reached the disk is known as such. It never
extends over a multiple of 512: zeros precede it up to there if it would. So a
sector that is lost has all of it, or nothing.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.codecs.methods import STORED
from npzkit.errors import UnsupportedError
from npzkit.zip.extra_fields import format_extra
from npzkit.zip.records import (
    DOS_DATE_1980,
    LOCAL_HEADER_SIZE,
    VERSION_DEFAULT,
    LocalHeader,
    format_local_header,
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


class Behind(Enum):
    """What the bytes behind an end are."""

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
    return format_local_header(header).rjust(INTENT_SIZE + _padding(end_offset), b"\0")


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


def read_behind(data: bytes, end_offset: int, end_crc32: int) -> tuple[Behind, Mark | None]:
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
    _check_version(intent)
    return Behind.DAMAGED, None


def _check_version(intent: bytes) -> None:
    """Raise UnsupportedError if a newer npzkit wrote an intent."""
    version = int.from_bytes(_followed(intent)[:4], "little")
    if is_intent(intent) and version > _VERSION:
        raise UnsupportedError(
            "a newer npzkit was appending to the archive",
            found=f"version {version}", expected=f"at most {_VERSION}",
            remedy="Install a newer npzkit, which completes or removes what it appended.",
        )  # fmt: skip


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
