"""An appender to npzkit's archives, written from the pages on the format (`npzkit/guide`) alone.

It imports neither npzkit nor NumPy, and knows stored members of one chunk and 32-bit sizes only.
"""

from __future__ import annotations

import struct
import zlib

from plain_reader import (
    FAR_COMMENT,
    FOOTER_SIZE,
    HEAD_SIZE,
    INTENT_SIZE,
    MARK_SIZE,
    PIECE_SIZE,
    Archive,
    Row,
    piece,
)

__all__ = ["append", "append_in_room", "far_copy"]

Members = dict[str, tuple[bytes, bytes]]


def append(data: bytes, members: Members, comment: bytes) -> list[bytes]:
    """Append members to a complete archive, at once: their data and the blocks of their attributes.

    Returns the file after each step, of which the second is the commit: all but the seal is
    there; the seal; the mark.
    """
    file, mark, _, seal = _appended(data, members, comment)
    unmarked = file[:mark] + bytes(MARK_SIZE) + file[mark + MARK_SIZE :]
    return [unmarked[:seal] + bytes(4) + unmarked[seal + 4 :], unmarked, file]


def append_in_room(data: bytes, members: Members, comment: bytes, room: int = 0) -> list[bytes]:
    """Append members as `append` does, with a far copy.

    `room` is by how much the room is too large. Returns the file after each step, of which the
    fourth is the commit: the copy is there; all but the magic; a newer copy in
    place of that one; what is behind the end is cut off; the magic; the mark.
    """
    complete, mark, magic, _ = _appended(data, members, comment)
    unmarked = complete[:mark] + bytes(MARK_SIZE) + complete[mark + MARK_SIZE :]
    cut = unmarked[:magic] + bytes(4) + unmarked[magic + 4 :]
    place = len(complete) + room
    copy = far_copy(data, place)
    begun = data.ljust(place, b"\0") + copy
    written = cut.ljust(place, b"\0")
    further = place + len(copy) + room
    moved = written.ljust(further, b"\0") + far_copy(data, further)
    return [begun, written + copy, moved, cut, unmarked, complete]


def far_copy(data: bytes, place: int) -> bytes:
    """Return the far copy, to be put at a place, of the directory of a complete archive."""
    end = Archive(data).end
    directory, offset = data[end.offset : end.records_offset], place + HEAD_SIZE + 32
    said = struct.pack(
        "<2QL2H", offset, end.end_offset, zlib.crc32(data[end.records_offset :]), 0, 1
    )
    head = piece(said + struct.pack("<L4s", zlib.crc32(said), b"NPZF"))
    fields = 0, 0, end.count, end.count, len(directory), offset, len(FAR_COMMENT)
    return head + directory + struct.pack("<4s4H2LH", b"PK\5\6", *fields) + FAR_COMMENT


def _appended(data: bytes, members: Members, comment: bytes) -> tuple[bytes, int, int, int]:
    """Return the complete file, and where its last mark, magic and seal are."""
    before = Archive(data)
    places = entries_of(before)
    listed = {name: data[slice(*place)] for name, place in zip(before.entries, places, strict=True)}
    rows = before.rows() or {}
    end = before.end
    follows = struct.pack("<LQL", 1, end.end_offset, zlib.crc32(data[end.records_offset :]))
    follows += struct.pack("<L", zlib.crc32(follows))
    zeros = -end.end_offset % 512 if -end.end_offset % 512 < INTENT_SIZE else 0
    intent_offset = end.end_offset + zeros
    file = data + bytes(zeros) + piece(follows + bytes(MARK_SIZE))
    for name, (content, blocks) in members.items():
        raw, offset = name.encode(), len(file)
        room = -(offset + 30 + len(raw) + len(blocks)) % 64
        room += 64 if 0 < room < 6 else 0
        padding = struct.pack("<3H", 0xD935, room - 4, 64) + bytes(room - 6) if room else b""
        flags = 0 if raw.isascii() else 0x800
        common = 20, flags, 0, 0, 0x21, zlib.crc32(content), len(content), len(content), len(raw)
        local = struct.pack("<4s5H3L2H", b"PK\3\4", *common, len(blocks + padding))
        file += local + raw + blocks + padding + content
        fields = 0x314, *common, len(blocks), 0, 0, 0, 0x180_0000, offset
        listed[name] = struct.pack("<4s6H3L5H2L", b"PK\1\2", *fields) + raw + blocks
        rows[name] = Row(content[: content.index(b"\n") + 1], len(blocks + padding), 0, 0)
    directory, count = b"".join(listed.values()), len(listed)
    masked = b"".join(entry[:16] + bytes(4) + entry[20:] for entry in listed.values())
    while True:
        record, shown = format_record(
            len(file), comment, format_rows(rows, list(listed)),
            [len(directory), intent_offset], [count, zlib.crc32(masked)],
        )  # fmt: skip
        offset = len(file) + len(record)
        fields = 0, 0, count, count, len(directory), offset, len(shown)
        new_end = struct.pack("<4s4H2LH", b"PK\5\6", *fields) + shown
        begin = offset + len(directory)
        room = room_before_end(intent_offset, begin, len(new_end))
        if not room:
            break
        file += bytes(room)
    file += record + directory + new_end
    mark = intent_offset + INTENT_SIZE - MARK_SIZE
    file = file[:mark] + struct.pack("<Q", len(file)) + file[mark + MARK_SIZE :]
    return file, mark, offset - 4, begin


def format_record(
    start: int, text: bytes, index: bytes, directory: list[int], entries: list[int]
) -> tuple[bytes, bytes]:
    """Return a record that begins at an offset, and the comment of its commit's end."""
    pieces, shown = [b""], text
    begin = 0

    def put(data: bytes) -> None:
        """Put some bytes in the last piece, or in pieces of their own; `begin` is where they are."""
        nonlocal begin
        if pieces[-1] and len(pieces[-1] + data) > PIECE_SIZE:
            pieces.append(b"")
        begin = start + sum(HEAD_SIZE + len(one) for one in pieces)
        pieces[-1:] = cut(pieces[-1] + data)

    if len(text) > 4096:
        put(text)
        place = begin, len(text), zlib.crc32(text)
        shown = b'{"npzkit.metadata":[%d,%d,%d]}' % place
    put(index)
    index_offset = begin
    put(bytes(FOOTER_SIZE))
    end = begin + FOOTER_SIZE
    footer = struct.pack(
        "<3Q8L2H", end, *directory, end - start, end - index_offset, len(index), zlib.crc32(index),
        *entries, len(shown), zlib.crc32(shown), 0, 1,
    )  # fmt: skip
    footer += struct.pack("<L4s", zlib.crc32(footer), b"NPZX")
    return b"".join(map(piece, pieces))[:-FOOTER_SIZE] + footer, shown


def cut(data: bytes) -> list[bytes]:
    return [data[place : place + PIECE_SIZE] for place in range(0, len(data), PIECE_SIZE)] or [b""]


def entries_of(archive: Archive) -> list[tuple[int, int]]:
    """Return where each entry of the directory begins and ends."""
    places, place = [], archive.end.offset
    for entry in archive.entries.values():
        stop = place + 46 + len(entry.name) + len(entry.extra)
        places.append((place, stop))
        place = stop
    return places


def format_rows(rows: dict[str, Row], names: list[str]) -> bytes:
    numbers = {b"": 0}
    table = places = b""
    for row in (rows.get(name, Row(b"", 0, 0, 0)) for name in names):
        number = numbers.setdefault(row.head, len(numbers))
        table += struct.pack("<LH", number | (row.chunk_size > 0) << 31, row.extra_size)
        places += struct.pack("<QL", row.place, row.chunk_size) if row.chunk_size else b""
    heads = [struct.pack("<H", len(head)) + head for head in numbers if head]
    return table + places + b"".join(heads)


def room_before_end(intent: int, offset: int, size: int) -> int:
    """Return how many zeros to write before the record; the end begins there at `offset`."""
    room = 0
    for sector in (512, 4096):
        begin, last = offset + room, offset + room + size - 1
        if intent // sector == begin // sector != last // sector:
            room += -begin % sector
    return room
