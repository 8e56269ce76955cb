"""An appender to npzkit's archives, written from the pages on the format (`npzkit/guide`) alone.

It imports neither npzkit nor NumPy, and knows stored members and 32-bit sizes only.
"""

from __future__ import annotations

import struct
import zlib

from plain_reader import Archive

__all__ = ["append"]


def hidden(name: bytes, data: bytes, extra: bytes = b"") -> bytes:
    fields = 20, 0, 0, 0, 0x21, zlib.crc32(data), len(data), len(data), len(name), len(extra)
    return struct.pack("<4s5H3L2H", b"PK\3\4", *fields) + name + extra + data


def append(data: bytes, members: dict[str, tuple[bytes, bytes]], comment: bytes) -> list[bytes]:
    """Append members to a complete archive: their data and the blocks of their attributes.

    Returns the file as it is before each sync: after step 4, after step 5, after step 6.
    """
    before = Archive(data)
    places = entries_of(before)
    listed = {name: data[slice(*place)] for name, place in zip(before.entries, places, strict=True)}
    rows = before.heads()
    end = before.end
    follows = struct.pack("<LQL", 1, end.end_offset, zlib.crc32(data[end.records_offset :]))
    zeros = -end.end_offset % 512 if -end.end_offset % 512 < 100 else 0
    intent_offset = end.end_offset + zeros
    field = (
        struct.pack("<2H", 0x5A4E, 52)
        + follows
        + struct.pack("<L", zlib.crc32(follows))
        + bytes(32)
    )
    file = data + bytes(zeros) + hidden(b".npzkit.append", b"", field)
    for name, (content, blocks) in members.items():
        raw, offset = name.encode(), len(file)
        room = -(offset + 30 + len(raw) + len(blocks)) % 64
        room += 64 if 0 < room < 6 else 0
        padding = struct.pack("<3H", 0xD935, room - 4, 64) + bytes(room - 6) if room else b""
        file += hidden(raw, content, blocks + padding)
        flags = 0 if raw.isascii() else 0x800
        crc, size = zlib.crc32(content), len(content)
        fields = 0x314, 20, flags, 0, 0, 0x21, crc, size, size, len(raw), len(blocks)
        entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", *fields, 0, 0, 0, 0x180_0000, offset)
        listed[name] = entry + raw + blocks
        rows[name] = content[: content.index(b"\n") + 1], len(blocks + padding), False
    members_end = file
    directory, index = b"".join(listed.values()), format_rows(rows, list(listed))
    size = 43 + len(index) + 76
    begin = len(file) + size + len(directory)
    file += bytes(room_before_end(intent_offset, begin, 22 + len(comment)))
    offset = len(file) + size
    masked = b"".join(entry[:16] + bytes(4) + entry[20:] for entry in listed.values())
    footer = struct.pack(
        "<6Q5L", offset, len(directory), len(listed), intent_offset, 0, 0, size,
        zlib.crc32(masked), len(comment), zlib.crc32(comment), 1,
    )  # fmt: skip
    footer += struct.pack("<L4s", zlib.crc32(footer), b"NPZX")
    file += hidden(b".npzkit.index", index + footer) + directory
    begin, count = len(file), len(listed)
    fields = 0, 0, count, count, len(directory), offset, len(comment)
    new_end = struct.pack("<4s4H2LH", b"PK\5\6", *fields) + comment
    unsealed = file + bytes(4) + new_end[4:]
    mark = struct.pack("<3QL", offset, begin, begin + len(new_end), zlib.crc32(new_end))
    mark += struct.pack("<L", zlib.crc32(unsealed[intent_offset + 48 : intent_offset + 68] + mark))
    place = intent_offset + 68
    complete = file[:place] + mark + file[place + 32 :] + new_end
    return [members_end, unsealed, complete]


def entries_of(archive: Archive) -> list[tuple[int, int]]:
    """Return where each entry of the directory begins and ends."""
    places, place = [], archive.end.offset
    for entry in archive.entries.values():
        stop = place + 46 + len(entry.name) + len(entry.extra)
        places.append((place, stop))
        place = stop
    return places


def format_rows(rows: dict[str, tuple[bytes, int, bool]], names: list[str]) -> bytes:
    numbers: dict[bytes, int] = {}
    table = b""
    for name in names:
        head, extra_size, has_index = rows[name]
        number = numbers.setdefault(head, len(numbers) + 1)
        table += struct.pack("<LH", number | has_index << 31, extra_size)
    heads = b"".join(struct.pack("<H", len(head)) + head for head in numbers)
    return struct.pack("<L", len(numbers)) + heads + table


def room_before_end(intent: int, offset: int, size: int) -> int:
    """Return how many zeros to write before the index; the end begins there at `offset`."""
    room = 0
    for sector in (512, 4096):
        begin, last = offset + room, offset + room + size - 1
        if intent // sector == begin // sector != last // sector:
            room += -begin % sector
    return room
