"""Commits by their bytes: what an append writes, found, taken apart and forged by struct alone.

Independent of npzkit, as `forge` is: the layout stands here once more, so that no fault of the
code under test can hide in what it is tested with.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from forge import piece

__all__ = [
    "BLOCK_SIZES",
    "FOOTER_SIZE",
    "INTENT_SIZE",
    "SLOT_SIZE",
    "Footer",
    "Part",
    "find_footer",
    "find_intent",
    "format_intent",
    "last_end",
    "last_slot",
    "parts_of",
    "unfinished",
    "unsealed",
    "with_footer",
]  # fmt: skip

BLOCK_SIZES = 512, 4096
"""What a disk writes, or loses, as a whole."""
SEAL = b"PK\5\6"
END_SIZE = 22
RECORDS64_SIZE = 56 + 20

INTENT_SIZE, SLOT_SIZE = 85, 8
_INTENT_HEAD = piece(bytes(28))[:57]

FOOTER_SIZE = 68
_FOOTER = struct.Struct("<3Q8L2HL4s")


class Footer(NamedTuple):
    """The last bytes of a record, which the directory follows."""

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
    reserved: int
    version: int
    crc32: int
    magic: bytes


def last_end(content: bytes) -> tuple[int, int, int]:
    """Return where the last end of a commit begins, with zip64's records, and its end record, and where that ends.

    Its own numbers say which: those of an archive inside an array count from that one's first
    byte. It is no far copy, and its append was complete: it ends the file, or its footer has a
    magic. All are -1 if there is none.
    """
    offset, fitting = len(content), []
    while (offset := content.rfind(SEAL, 0, offset)) >= 0:
        if offset + END_SIZE > len(content):
            continue
        size, start, comment_size = struct.unpack_from("<LLH", content, offset + 12)
        end, begin = offset + END_SIZE + comment_size, offset
        if content[max(offset - 20, 0) : offset].startswith(b"PK\6\7"):
            begin = offset - RECORDS64_SIZE
            size, start = struct.unpack_from("<QQ", content, begin + 40)
        if size + start != begin or end > len(content):
            continue
        if content[offset + END_SIZE : end].startswith(b"npzkit: "):
            older = _end_before(content, start)
            if older < 0:
                continue
            return last_end(content[:older])
        if _is_listing(content[start:begin]):
            fitting.append((begin, offset, end))
            if end == len(content) or _has_footer(content, start) or _is_followed(content, end):
                return fitting[-1]
    return fitting[0] if fitting else (-1, -1, -1)


def _is_listing(directory: bytes) -> bool:
    """Return whether bytes consist of entries."""
    place = 0
    while directory[place : place + 4] == b"PK\1\2" and len(directory) >= place + 46:
        place += 46 + sum(struct.unpack_from("<HHH", directory, place + 28))
    return place == len(directory)


def _end_before(content: bytes, start: int) -> int:
    """Return where the commit ended whose directory is copied at `start`; -1 if that is not known."""
    data = content[max(start - 32, 0) : start]
    is_sound = data[24:] == struct.pack("<L4s", zlib.crc32(data[:24]), b"NPZF")
    return struct.unpack_from("<Q", data, 8)[0] if is_sound else -1


def _has_footer(content: bytes, start: int) -> bool:
    """Return whether there is a footer before a directory at `start`, with its magic."""
    footer = content[max(start - FOOTER_SIZE, 0) : start]
    return footer[60:] == struct.pack("<L4s", zlib.crc32(footer[:60]), b"NPZX")


def _is_followed(content: bytes, end: int) -> bool:
    """Return whether an intent begins behind an end."""
    return content.startswith(_INTENT_HEAD[:40], find_intent(end))


# -- the intent of an append -------------------------------------------------------


def find_intent(end: int) -> int:
    """Return where the intent of the append behind `end` begins: it lies within one sector."""
    gap = -end % 512
    return end + gap if gap < INTENT_SIZE else end


def format_intent(end: int, end_crc32: int, *, version: int = 1, slot: bytes = bytes(8)) -> bytes:
    """Return an intent, of a version that may be another one, with right checksums."""
    front = struct.pack("<LQL", version, end, end_crc32)
    return _INTENT_HEAD + front + struct.pack("<L", zlib.crc32(front)) + slot


def last_slot(content: bytes) -> int:
    """Return where the mark of the last intent begins."""
    return content.rindex(_INTENT_HEAD) + INTENT_SIZE - SLOT_SIZE


def unfinished(content: bytes, size: int | None = None) -> bytes:
    """Return an archive as it was before its last append was complete, cut to `size` bytes.

    Without `size`, all is there but the mark and the signature of the end record.
    """
    slot = last_slot(content)
    content = content[:slot] + bytes(SLOT_SIZE) + content[slot + SLOT_SIZE :]
    return unsealed(content) if size is None else content[:size]


def unsealed(content: bytes) -> bytes:
    """Return an archive whose last end record has no signature."""
    _, record, _ = last_end(content)
    return content[:record] + bytes(4) + content[record + 4 :]


# -- the footer ---------------------------------------------------


def find_footer(content: bytes) -> tuple[int, Footer]:
    """Return where the last commit's footer lies, and what it says."""
    begin, _, _ = last_end(content)
    size, _ = _directory(content, begin)
    place = begin - size - FOOTER_SIZE
    footer = Footer._make(_FOOTER.unpack_from(content, place))
    assert footer.magic == b"NPZX"
    assert footer.crc32 == zlib.crc32(content[place : place + 60])
    return place, footer


def _directory(content: bytes, begin: int) -> tuple[int, int]:
    """Return size and offset of the directory that an end at `begin` describes."""
    if content[begin : begin + 4] == b"PK\6\6":
        return struct.unpack_from("<QQ", content, begin + 40)
    return struct.unpack_from("<LL", content, begin + 12)


def with_footer(content: bytes, **changed: int) -> bytes:
    """Return an archive whose footer has other values, and a checksum that fits them."""
    place, footer = find_footer(content)
    front = _FOOTER.pack(*footer._replace(**changed))[:60]
    return content[:place] + front + struct.pack("<L", zlib.crc32(front)) + content[place + 64 :]


# -- what each byte belongs to --------------------------------------------------------


class Part(NamedTuple):
    """Some bytes of an archive that its newest state needs.

    Attributes
    ----------
    start, stop : int
    what : str
        "local header", "alignment", "data", "chunks", "entry", "zip64", "end", "comment",
        "piece", "index", "footer", "metadata" or "intent".
    name : bytes
        Of the member they belong to.
    """

    start: int
    stop: int
    what: str
    name: bytes = b""


def parts_of(content: bytes) -> list[Part]:
    """Return what the newest state is made of. All other bytes are dead."""
    begin, record, end = last_end(content)
    size, offset = _directory(content, begin)
    parts = [Part(record, record + END_SIZE, "end")]
    parts += [Part(begin, record, "zip64")] * (begin < record)
    parts += [Part(record + END_SIZE, end, "comment")] * (end > record + END_SIZE)
    position = offset
    while position < offset + size:
        name_size, extra_size, comment_size = struct.unpack_from("<HHH", content, position + 28)
        header_offset = int.from_bytes(content[position + 42 : position + 46], "little")
        stored_size = int.from_bytes(content[position + 20 : position + 24], "little")
        name = content[position + 46 :][:name_size]
        stop = position + 46 + name_size + extra_size + comment_size
        parts.append(Part(position, stop, "entry", name))
        parts += _member_parts(content, header_offset, stored_size, name)
        position = stop
    if content[offset - 4 : offset] == b"NPZX":
        place, footer = find_footer(content)
        index, begin = offset - footer.index_distance, offset - footer.record_size
        heads = [*_piece_heads(content, begin, offset)]
        parts += [Part(at, at + 57, "piece") for at in heads]
        parts += _without(heads, Part(index, index + footer.index_size, "index"))
        parts.append(Part(place, offset, "footer"))
        parts += _lists(content, offset, footer)
        comment = content[record + END_SIZE : end]
        if comment.startswith(b'{"npzkit.metadata":'):
            start, length, _ = json.loads(comment)["npzkit.metadata"]
            whole = Part(start, start + length + 57 * ((length - 1) // 65_000), "metadata")
            parts += _without(heads, whole)
        if footer.intent_offset:
            stop = footer.intent_offset + INTENT_SIZE
            parts.append(Part(footer.intent_offset, stop, "intent"))
    return sorted(parts)


def _member_parts(content: bytes, place: int, size: int, name: bytes) -> Iterator[Part]:
    name_size, extra_size = struct.unpack_from("<HH", content, place + 26)
    position, start = place + 30 + name_size, place + 30 + name_size + extra_size
    begin = place
    while position + 4 <= start:
        identifier, length = struct.unpack_from("<HH", content, position)
        position += 4 + length
        if identifier == 0xD935:
            block = position - length - 4
            yield Part(begin, block, "local header", name)
            yield Part(block, position, "alignment", name)
            begin = position
    if begin < start:
        yield Part(begin, start, "local header", name)
    yield Part(start, start + size, "data", name)
    if content[place + 6] & 8:
        # Its data descriptor: sizes and CRC-32, behind a signature.
        yield Part(start + size, start + size + 16, "local header", name)
        return


def _piece_heads(content: bytes, place: int, end: int) -> Iterator[int]:
    """Yield where the pieces of a record begin."""
    while place < end:
        yield place
        place += 57 + int.from_bytes(content[place + 55 : place + 57], "little")
    assert place == end


def _without(heads: list[int], part: Part) -> Iterator[Part]:
    """Yield what a part has between the heads of pieces."""
    start = part.start
    for head in heads:
        if part.start < head < part.stop:
            yield part._replace(start=start, stop=head)
            start = head + 57
    yield part._replace(start=start)


def _lists(content: bytes, offset: int, footer: Footer) -> Iterator[Part]:
    """Yield where the lists of chunks are, which must be in one piece each."""
    begin, place = offset - footer.index_distance, footer.entry_count * 6
    position = offset
    for row in range(footer.entry_count):
        size, name_size, extra_size, comment_size = struct.unpack_from(
            "<LHHH", content, position + 24
        )
        (method,) = struct.unpack_from("<H", content, position + 10)
        name = content[position + 46 :][:name_size]
        position += 46 + name_size + extra_size + comment_size
        if content[begin + row * 6 + 3] & 0x80:
            start, chunk_size = struct.unpack_from("<QL", content, begin + place)
            place += 12
            count = -(-size // chunk_size)
            yield Part(start, start + (8 * count + 4 if method else 4 * count), "chunks", name)
