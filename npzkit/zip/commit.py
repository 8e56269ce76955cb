"""What a commit says of itself in the file: its intent, its footer, where its metadata are.

Guarantees that a reader knows whether a commit is complete and undamaged, so that it infers
nothing from members or directories. Offsets count from the archive's start. All of it is in the
form of `npzkit.zip.npzkit_record`; numbers are little-endian.

The *intent* is the first record of an append: a piece of its own, right behind the end of the
commit that the append follows. Its data::

    uint32  version: 1
    uint64  end_offset: where the end that it follows ends
    uint32  end_crc32: of that end's bytes: zip64's records, the end record, its comment
    uint32  CRC-32 of the 16 bytes before
    uint64  the *mark*: zero until the append is complete, then where its own end ends

All but the mark follows from the end before it, so that any part of it that reached the
disk is known as such. It never extends over a multiple of 512: zeros precede it up to
there if it would. So a sector that is lost has all of it, or nothing.

The *far copy* is the directory of the commit before, once more, behind the room in which an
append writes: a piece, the entries, and an end record that leads to them. So every program reads
the older state until the append is complete. The end record has a comment, `FAR_COMMENT`, so that
it is known if the disk lost the piece. The data of the piece::

    uint64  directory_offset: the piece ends there, and the copy begins
    uint64  end_offset, as in the intent
    uint32  end_crc32
    uint16  0
    uint16  version: 1
    uint32  CRC-32 of the 24 bytes before
    bytes   NPZF

The *footer* is the last 68 bytes of the record, right before the directory, in every archive that
npzkit writes::

    uint64  directory_offset: the footer ends there
    uint64  directory_size
    uint64  intent_offset of this commit; 0 if it follows no other
    uint32  record_size: bytes of all pieces before the directory
    uint32  index_distance: how far before the directory the array index begins
    uint32  index_size
    uint32  index_crc32
    uint32  entry_count
    uint32  directory_crc32: the CRC-32 fields of its entries count as zero, because a flush
            of a map rewrites them
    uint32  comment_size
    uint32  comment_crc32
    uint16  0
    uint16  version: 1
    uint32  CRC-32 of the footer up to here
    bytes   NPZX, or zeros until an append is complete that has a far copy

Later versions keep the places of the last three, so that this one refuses them by name.
A footer that is not where it says, or does not fit its own CRC-32, is none. If it fits
and the directory does not, the directory is damaged: another program that changes a
directory moves it, or writes the same bytes again.

*Metadata* that the comment of an end record cannot hold are in the record, and a short comment says
where, and their CRC-32. Nothing here knows what they mean.
"""

# Without `from __future__ import annotations`: see "The first call" in CONTRIBUTING.
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from npzkit.codecs.checksum import crc32
from npzkit.errors import (
    SAVE_SOUND,
    LimitExceededError,
    UnsupportedError,
    ZipFormatError,
    check_limit,
)
from npzkit.files.source import Source
from npzkit.zip import npzkit_record
from npzkit.zip.records import ENTRY_CRC32_OFFSET

_VERSION = 1
_FOLLOWS = struct.Struct("<LQL")
_MARK = struct.Struct("<Q")
MARK_OFFSET = npzkit_record.HEAD_SIZE + _FOLLOWS.size + 4
"""Where the mark begins in an intent."""
INTENT_SIZE = MARK_OFFSET + _MARK.size
_SECTOR_SIZES = (512, 4096)
"""What disks write, and lose, whole."""


class Behind:
    """What the bytes behind an end are: one of these texts."""

    NOTHING = "nothing"
    UNFINISHED = "an append that is not marked as complete"
    ZEROS = "zeros: of such an append, whose first sector was lost, or of something else"
    COMPLETE = "an append that is marked as complete"
    DAMAGED = "an append whose intent is damaged, or follows another end"
    FOREIGN = "nothing that an append writes"


def format_intent(end_offset: int, end_crc32: int) -> bytes:
    """Format the intent of an append behind an end, with the zeros before it."""
    follows = _FOLLOWS.pack(_VERSION, end_offset, end_crc32)
    intent = npzkit_record.format_piece(follows + _crc32(follows) + bytes(_MARK.size))
    return intent.rjust(INTENT_SIZE + _padding(end_offset), b"\0")


def _padding(end_offset: int) -> int:
    """Return how many zeros stand between an end and the intent behind it."""
    room = -end_offset % _SECTOR_SIZES[0]
    return room if room < INTENT_SIZE else 0


def followed_offset(intent: bytes) -> int:
    """Return where the end ends that an intent follows, as its bytes say."""
    return int(_FOLLOWS.unpack_from(intent, npzkit_record.HEAD_SIZE)[1])


def format_mark(end_offset: int) -> bytes:
    """Format the mark of an append whose end ends at an offset."""
    return _MARK.pack(end_offset)


def parse_mark(intent: bytes) -> int | None:
    """Return the mark in the bytes of an intent; None if these are not a sound intent."""
    if len(intent) < INTENT_SIZE or not is_intent(intent):
        return None
    _, end_offset, end_crc32 = _FOLLOWS.unpack_from(intent, npzkit_record.HEAD_SIZE)
    if format_intent(end_offset, end_crc32)[-INTENT_SIZE:][:MARK_OFFSET] != intent[:MARK_OFFSET]:
        return None
    (mark,) = _MARK.unpack_from(intent, MARK_OFFSET)
    return int(mark)


def is_intent(data: bytes) -> bool:
    """Return whether bytes are an intent, by its name and what it says of the end before."""
    followed = _followed(data)
    return npzkit_record.is_named(data) and followed[-4:] == _crc32(followed[:-4])


def _followed(intent: bytes) -> bytes:
    """Return what an intent says of the end before it, with its own CRC-32."""
    return intent[npzkit_record.HEAD_SIZE : MARK_OFFSET]


def _crc32(data: bytes) -> bytes:
    return crc32(data).to_bytes(4, "little")


INTENT_HEAD = format_intent(_SECTOR_SIZES[0], 0)[: npzkit_record.HEAD_SIZE]
"""What all intents begin with."""


def read_behind(data: bytes, end_offset: int, end_crc32: int) -> str:
    """Return what the bytes behind an end are: an attribute of `Behind`.

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
    if not data:
        return Behind.NOTHING
    follows = format_intent(end_offset, end_crc32)[: -_MARK.size]
    mark = data[len(follows) :][: _MARK.size]
    # Of a write that was torn, or of sectors that were lost, zeros are left.
    if all(found in (0, written) for found, written in zip(data, follows, strict=False)):
        is_lost = not any(data[: len(follows)])
        # No offset has eight bytes: behind zeros, such bytes are no mark.
        if any(mark) and not (is_lost and mark[-1]):
            return Behind.COMPLETE if data.startswith(follows) else Behind.DAMAGED
        return Behind.ZEROS if is_lost else Behind.UNFINISHED
    intent = data[_padding(end_offset) :][:INTENT_SIZE]
    if not npzkit_record.is_named(intent):
        return Behind.FOREIGN
    version = int.from_bytes(_followed(intent)[:4], "little")
    if is_intent(intent) and version > _VERSION:
        raise UnsupportedError(
            "a newer npzkit was appending to the archive",
            found=f"version {version}", expected=f"at most {_VERSION}",
            remedy="Install a newer npzkit, which completes or removes what it appended.",
        )  # fmt: skip
    return Behind.DAMAGED


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


# -- the footer --------------------------------------------------------------------

FOOTER_MAGIC = b"NPZX"
_FAR_MAGIC = b"NPZF"
FAR_COMMENT = b"npzkit: an append is under way, or was not finished"
_FOOTER, _FAR = struct.Struct("<3Q8L2H"), struct.Struct("<2QL2H")
_LAYOUTS = {FOOTER_MAGIC: _FOOTER, _FAR_MAGIC: _FAR}
"""By the magic, what is before the CRC-32."""
FOOTER_SIZE = _FOOTER.size + 8
_FAR_SIZE = npzkit_record.HEAD_SIZE + _FAR.size + 8
_CRC32 = struct.Struct("<L")
_FEW = 200
"""Fewer entries are changed one by one, which takes less time than NumPy's start."""


class Footer(NamedTuple):
    """What a commit says of its directory, its comment and its intent; see the module."""

    directory_offset: int
    directory_size: int
    intent_offset: int
    record_size: int
    index_distance: int
    index_size: int
    index_crc32: int
    entry_count: int
    directory_crc32: int
    comment_size: int
    comment_crc32: int

    def format(self) -> bytes:
        """Return the footer's bytes."""
        data = _FOOTER.pack(*self, 0, _VERSION)
        return b"".join((data, _crc32(data), FOOTER_MAGIC))

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


class Far(NamedTuple):
    """What a far copy says of the commit whose directory it repeats; see the module."""

    directory_offset: int
    end_offset: int
    end_crc32: int

    def format(self) -> bytes:
        """Return the data of its piece."""
        data = _FAR.pack(*self, 0, _VERSION)
        return b"".join((data, _crc32(data), _FAR_MAGIC))


def format_far(
    offset: int, directory: bytes, count: int, end_offset: int, end: bytes
) -> tuple[bytes, ...]:
    """Format a far copy to be put at an offset, in parts, of which the last is its end record.

    Parameters
    ----------
    offset : int
    directory : bytes
        The entries of the commit.
    count : int
        How many they are.
    end_offset : int
        Where the commit's end ends.
    end : bytes
        The bytes of that end.
    """
    from npzkit.zip.written_header import end_bytes

    begin = offset + _FAR_SIZE
    piece = npzkit_record.format_piece(Far(begin, end_offset, crc32(end)).format())
    *records64, last = end_bytes(count, len(directory), begin, FAR_COMMENT, directory or piece)
    return piece, directory, *records64, last


def parse_footer(
    data: bytes, directory_offset: int, *, is_last: bool = False
) -> Footer | Far | None:
    """Return the footer at the end of what precedes a directory; None if none is there.

    Parameters
    ----------
    data : bytes
        What ends where the directory begins.
    directory_offset : int
        Where that is, from the archive's start.
    is_last : bool, default False
        Whether the end behind the directory is that of the file: then the commit is complete, even
        if the magic is missing.

    Raises
    ------
    UnsupportedError
        A newer npzkit wrote it.
    """
    magic = data[-len(FOOTER_MAGIC) :]
    if is_last and not any(magic):
        magic = FOOTER_MAGIC
    layout = _LAYOUTS.get(magic)
    if layout is None or len(data) < layout.size + 8:
        return None
    data = data[-layout.size - 8 :]
    *fields, _, version = layout.unpack_from(data)
    if data[-8:-4] != _crc32(data[:-8]):
        return None
    if version > _VERSION:
        raise UnsupportedError(
            "a newer npzkit wrote the archive",
            found=f"version {version}", expected=f"at most {_VERSION}",
            remedy="Install a newer npzkit. np.load reads the arrays.",
        )  # fmt: skip
    footer = Footer._make(fields) if magic == FOOTER_MAGIC else Far._make(fields)
    # Numbers of 64 bits may be anything.
    is_there = footer.directory_offset == directory_offset and not footer[1] >> 62
    return footer if is_there else None


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


# -- metadata of any size ---------------------------------------------------------

COMMENT_NAME = "npzkit.metadata"
"""What messages call them."""
COMMENT_SIZE = 4096
"""The most bytes of a comment that is written: longer metadata go to the record."""
_POINTER_START = b'{"npzkit.metadata":'
# As short as it can be: some programs find no end record before a longer comment.
_POINTER = rb'\{"npzkit\.metadata":\[([0-9]{1,19}),([0-9]{1,10}),([0-9]{1,10})\]\}'


class LongComment(NamedTuple):
    """Where metadata lie in a record.

    Attributes
    ----------
    offset : int
        From the archive's start.
    size : int
    crc32 : int
    """

    offset: int
    size: int
    crc32: int

    @property
    def comment(self) -> bytes:
        """The short comment in the end record that leads to it."""
        return b'{"npzkit.metadata":[%d,%d,%d]}' % self


def put_comment(added: npzkit_record.RecordWriter, comment: bytes) -> LongComment:
    """Put a long comment in a record.

    Raises
    ------
    LimitExceededError
        It has 4 GiB or more.
    """
    if len(comment) >= 1 << 32:
        raise LimitExceededError(
            "the metadata is too long",
            found=f"{len(comment)} bytes",
            expected="less than 4 GiB",
            remedy="Save what is large as an array.",
        )
    return LongComment(added.put(comment), len(comment), crc32(comment))


def find_long_comment(comment: bytes) -> LongComment | None:
    """Return where a comment says that the long one is; None if it is not such a comment."""
    # Compiled on first use, so that importing npzkit is fast.
    found = re.fullmatch(_POINTER, comment) if comment.startswith(_POINTER_START) else None
    return None if found is None else LongComment(*map(int, found.groups()))


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
    offset = start_offset + long.offset
    if npzkit_record.extent(long.size) <= end_offset - offset:
        data = npzkit_record.read_bytes(source, offset, long.size)
        if crc32(data) == long.crc32:
            return data
    raise ZipFormatError(
        "the archive's metadata is damaged, or another program removed it",
        offset=offset,
        found="other bytes",
        expected=f"{long.size} bytes with the CRC-32 {long.crc32:08x}",
        remedy=SAVE_SOUND + " saves the arrays without it.",
    )
