"""Commits by their bytes: what an append writes, found, taken apart and forged by struct alone.

Independent of npzkit, as `forge` is: the layout stands here once more, so that no fault of the
code under test can hide in what it is tested with.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

__all__ = [
    "BLOCK_SIZES", "FOOTER_SIZE", "INTENT_SIZE", "SLOT_SIZE", "Footer", "Part", "find_footer", "find_intent",
    "format_intent", "last_end", "parts_of", "rolled_end", "unfinished", "unsealed", "with_footer",
]  # fmt: skip

BLOCK_SIZES = 512, 4096
"""What a disk writes, or loses, as a whole."""
SEAL = b"PK\5\6"
END_SIZE = 22
RECORDS64_SIZE = 56 + 20

INTENT_NAME = b".npzkit.append"
INTENT_SIZE, SLOT_SIZE = 100, 32
_INTENT_HEAD = struct.pack(
    "<4sHHHHHLLLHH", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, len(INTENT_NAME), 56
) + INTENT_NAME + struct.pack("<HH", 0x5A4E, 52)  # fmt: skip

FOOTER_SIZE = 76
_FOOTER = struct.Struct("<QQQQQQLLLLLL4s")


class Footer(NamedTuple):
    """The last bytes of an array index, which the directory follows."""

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
    version: int
    crc32: int
    magic: bytes


def last_end(content: bytes) -> tuple[int, int, int]:
    """Return where the last end of a commit begins, with zip64's records, and its end record, and where that ends.

    Its own numbers say which: those of an archive inside an array count from that one's first
    byte. All are -1 if there is none.
    """
    offset = len(content)
    while (offset := content.rfind(SEAL, 0, offset)) >= 0:
        if offset + END_SIZE > len(content):
            continue
        size, start, comment_size = struct.unpack_from("<LLH", content, offset + 12)
        end, begin = offset + END_SIZE + comment_size, offset
        if content[max(offset - 20, 0) : offset].startswith(b"PK\6\7"):
            begin = offset - RECORDS64_SIZE
            size, start = struct.unpack_from("<QQ", content, begin + 40)
        if size + start == begin and end <= len(content):
            return begin, offset, end
    return -1, -1, -1


# -- the intent of an append -------------------------------------------------------


def find_intent(end: int) -> int:
    """Return where the intent of the append behind `end` begins: it lies within one sector."""
    gap = -end % 512
    return end + gap if gap < INTENT_SIZE else end


def format_intent(end: int, end_crc32: int, *, version: int = 1, slot: bytes = bytes(32)) -> bytes:
    """Return an intent, of a version that may be another one, with right checksums."""
    front = struct.pack("<LQL", version, end, end_crc32)
    return _INTENT_HEAD + front + struct.pack("<L", zlib.crc32(front)) + slot


def unfinished(content: bytes, size: int | None = None) -> bytes:
    """Return an archive as it was before its last append was complete, cut to `size` bytes.

    Without `size`, all is there but the mark and the signature of the end record.
    """
    slot = content.rindex(INTENT_NAME) - 30 + INTENT_SIZE - SLOT_SIZE
    content = content[:slot] + bytes(SLOT_SIZE) + content[slot + SLOT_SIZE :]
    return unsealed(content) if size is None else content[:size]


def unsealed(content: bytes) -> bytes:
    """Return an archive whose last end record has no signature."""
    _, record, _ = last_end(content)
    return content[:record] + bytes(4) + content[record + 4 :]


def rolled_end(content: bytes) -> int:
    """Return where the newest commit of an archive ends that is sealed, or is marked as done and whole but for its seal.

    -1 if there is none.
    """
    _, _, end = last_end(content)
    while end >= 0:
        newer = _done_end(content, end)
        if newer < 0:
            break
        end = newer
    return end


def _done_end(content: bytes, end: int) -> int:
    """Return where the commit behind `end` ends, if only its seal may be missing; else -1."""
    place = find_intent(end)
    intent = content[place : place + INTENT_SIZE]
    if len(intent) < INTENT_SIZE or not intent.startswith(_INTENT_HEAD):
        return -1
    fields = intent[len(_INTENT_HEAD) :]
    *_, begin, stop, crc = struct.unpack_from("<QQQL", fields, 20)
    if zlib.crc32(fields[:-4]) != int.from_bytes(fields[-4:], "little") or stop > len(content):
        return -1
    # Zip64's records stand before the record that is sealed.
    lead = RECORDS64_SIZE if content[begin : begin + 4] == b"PK\6\6" else 0
    new = content[begin : begin + lead] + SEAL + content[begin + lead + 4 : stop]
    return stop if zlib.crc32(new) == crc else -1


# -- the footer of the array index ---------------------------------------------------


def find_footer(content: bytes) -> tuple[int, Footer]:
    """Return where the last commit's footer lies, and what it says."""
    begin, _, _ = last_end(content)
    size, _ = _directory(content, begin)
    place = begin - size - FOOTER_SIZE
    footer = Footer._make(_FOOTER.unpack_from(content, place))
    assert footer.magic == b"NPZX"
    assert footer.crc32 == zlib.crc32(content[place : place + 68])
    return place, footer


def _directory(content: bytes, begin: int) -> tuple[int, int]:
    """Return size and offset of the directory that an end at `begin` describes."""
    if content[begin : begin + 4] == b"PK\6\6":
        return struct.unpack_from("<QQ", content, begin + 40)
    return struct.unpack_from("<LL", content, begin + 12)


def with_footer(content: bytes, **changed: int) -> bytes:
    """Return an archive whose footer has other values, and a checksum that fits them.

    The CRC-32 of the index itself fits as well.
    """
    place, footer = find_footer(content)
    front = _FOOTER.pack(*footer._replace(**changed))[:68]
    data = bytearray(content)
    data[place : place + 72] = front + struct.pack("<L", zlib.crc32(front))
    begin = place + FOOTER_SIZE - footer.index_size
    body = begin + 30 + len(b".npzkit.index")
    data[begin + 14 : begin + 18] = struct.pack("<L", zlib.crc32(data[body : place + FOOTER_SIZE]))
    return bytes(data)


# -- what each byte belongs to --------------------------------------------------------


class Part(NamedTuple):
    """Some bytes of an archive that its newest state needs.

    Attributes
    ----------
    start, stop : int
    what : str
        "local header", "alignment", "data", "seek index", "entry", "zip64", "end", "comment",
        "index", "footer", "metadata" or "intent".
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
        parts += [Part(offset - footer.index_size, place, "index"), Part(place, offset, "footer")]
        if footer.metadata_size:
            stop = footer.metadata_offset + footer.metadata_size
            parts.append(Part(footer.metadata_offset, stop, "metadata"))
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
    folder, _, base = name.rpartition(b"/")
    behind = content[start + size :][:1000]
    index_name = folder + b"/" * bool(folder) + b"." + base + b".sozip.idx"
    if behind.startswith(b"PK\3\4") and behind[30:].startswith(index_name):
        length = int.from_bytes(behind[18:22], "little")
        stop = start + size + 30 + sum(struct.unpack_from("<HH", behind, 26)) + length
        yield Part(start + size, stop, "seek index", name)
