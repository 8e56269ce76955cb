"""Archives whose ends are joined, hidden, moved or changed: what is behind an archive, or in its comment.

The members stay as they are. None of npzkit's code takes part.
"""

from __future__ import annotations

import contextlib
import random
import re
import struct

import plain_reader
import plain_writer
from mutate_bytes import interesting, mutate_bytes

__all__ = ["forced_zip64", "mutate_end"]

NAME, FAR_NAME = b".npzkitNZ\x1c\0", b".npzkitNZ\x20\0"
"""Of an intent, and of a far copy: the name of a piece, the identifier of its block, and the bytes
of its data."""
_HEAD_SIZE = 46
"""Bytes of an intent before its name."""
_MARK = 31, 39
"""Where the mark is in an intent, from its name on."""
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_RECORDS = re.compile(
    rb"PK(\x05\x06|\x06\x06|\x06\x07|\x01\x02|\x03\x04)|NPZX|"
    + b"|".join(map(re.escape, (NAME, FAR_NAME)))
)
_FIELDS = {
    b"PK\5\6": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2), (0, 4)),
    b"PK\6\6": ((4, 8), (16, 4), (20, 4), (24, 8), (32, 8), (40, 8), (48, 8), (0, 4)),
    b"PK\6\7": ((4, 4), (8, 8), (16, 4), (0, 4)),
    b"PK\1\2": ((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4)),
    b"PK\3\4": ((6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2), (0, 4)),
    # From its name on, its size, what an intent says, and its mark.
    NAME: ((9, 2), (11, 4), (15, 8), (23, 4), (27, 4), (31, 8), (31, 8), (0, 4)),
    FAR_NAME: (
        (9, 2), (11, 8), (19, 8), (27, 4), (31, 2), (33, 2), (35, 4), (39, 4), (0, 4)
    ),
    b"NPZX": (
        (-64, 8), (-56, 8), (-48, 8), (-40, 4), (-36, 4), (-32, 4), (-24, 4), (-16, 4), (-12, 4),
        (-6, 2), (-4, 4),
    ),
}  # fmt: skip
"""Where the fields of a record are, and their sizes."""


def _last_end(data: bytes) -> tuple[int, list[int]] | None:
    """Return where the last end record is, and its fields."""
    at = data.rfind(b"PK\5\6")
    return None if at < 0 or at + 22 > len(data) else (at, list(_END.unpack_from(data, at)[1:]))


def _commented(data: bytes, comment: bytes) -> bytes:
    """Return the archive with another comment."""
    found = _last_end(data)
    if found is None:
        return data
    at, fields = found
    fields[-1] = min(len(comment), 0xFFFF)
    return data[:at] + _END.pack(b"PK\5\6", *fields) + comment


def forced_zip64(data: bytes, *, sentinels: bool = False) -> bytes:
    """Return the archive with zip64's end records, which say the same, or more than the end."""
    found = _last_end(data)
    if found is None:
        return data
    at, (disk, directory_disk, here, count, size, offset, comment_size) = found
    if data[at - 20 : at - 16] == b"PK\6\7":
        return data
    end64 = _END64.pack(
        b"PK\6\6", 44, 45, 45, disk, directory_disk, here, count, size, offset
    ) + _LOCATOR.pack(b"PK\6\7", 0, at, 1)
    if sentinels:
        here = count = 0xFFFF
        size = offset = 0xFFFFFFFF
    end = _END.pack(b"PK\5\6", disk, directory_disk, here, count, size, offset, comment_size)
    return data[:at] + end64 + end + data[at + 22 :]


def _shifted(data: bytes, by: int) -> bytes:
    """Return the archive with offsets that count from a place before it."""
    found = _last_end(data)
    if found is None:
        return data
    at, fields = found
    start, out = at - fields[4], bytearray(data)
    place = start
    while place >= 0 and out[place : place + 4] == b"PK\1\2" and place + 46 <= at:
        offset = struct.unpack_from("<L", out, place + 42)[0] + by
        struct.pack_into("<L", out, place + 42, offset & 0xFFFFFFFF)
        place += 46 + sum(struct.unpack_from("<3H", out, place + 28))
    struct.pack_into("<L", out, at + 16, (fields[5] + by) & 0xFFFFFFFF)
    return bytes(out)


def _torn(data: bytes, rng: random.Random) -> bytes:
    """Return an archive whose last append lacks its mark, magic, seal, or more; or data as it is."""
    begin = data.rfind(NAME) - _HEAD_SIZE
    if begin < 0:
        return data[: -rng.choice((1, 4, 22, 23, 60, 200))]
    seal, magic, out = data.rfind(b"PK\5\6"), data.rfind(b"NPZX"), bytearray(data)
    if rng.random() < 0.6:
        low, high = (begin + _HEAD_SIZE + place for place in _MARK)
        out[low:high] = bytes(len(out[low:high]))
    if magic > begin and rng.random() < 0.5:
        out[magic : magic + 4] = bytes(4)
    if seal >= 0 and rng.random() < 0.6:
        size = rng.randrange(1, 5)
        out[seal : seal + size] = bytes(size)
    if rng.random() < 0.5:
        return bytes(out[: rng.randrange(begin, len(data))])
    if rng.random() < 0.5:
        return bytes(out)
    # Sectors that were lost.
    for at in range(begin - begin % 512, len(out), 512):
        if rng.random() < 0.4:
            low = max(at, begin)
            out[low : at + 512] = bytes(len(out[low : at + 512]))
    return bytes(out)


def _in_room(data: bytes, rng: random.Random, others: tuple[bytes, ...]) -> bytes:
    """Return an archive to which is being appended, with a far copy; now and then another one's."""
    if rng.random() < 0.3:
        other = rng.choice((data, data, *others))
        with contextlib.suppress(plain_reader.RefusedError, ValueError, struct.error):
            return data + plain_writer.far_copy(other, len(data))
    name = rng.choice(("new.npy", "a.npy"))
    content = b"\x93NUMPY\1\0\x3e\0" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}\n"
    content += rng.choice((b"x", b"PK\5\6", *others))
    with contextlib.suppress(plain_reader.RefusedError, ValueError, struct.error):
        return rng.choice(
            plain_writer.append_in_room(
                data, {name: (content, b"")}, rng.choice((b"", b"{}")), rng.choice((0, 30, 700))
            )[:-1]
        )
    return data


def _joined(data: bytes, rng: random.Random, others: tuple[bytes, ...]) -> bytes:
    """Return an archive with another one, or a part of one, somewhere about its end."""
    other = rng.choice(others)
    if rng.random() < 0.3:
        other = forced_zip64(other, sentinels=rng.random() < 0.5)
    cut = other[rng.randrange(len(other)) :]
    end = other[max(other.rfind(b"PK\5\6"), 0) :]
    kind = rng.randrange(12)
    if kind == 0:
        return data + other
    if kind == 1:
        return data + bytes(rng.choice((1, 4, 22, 76, 98, 100, 512, 600))) + other
    if kind == 2:
        return data + rng.randbytes(rng.choice((1, 4, 22, 100))) + other
    if kind == 3:
        return data + rng.choice((cut, end, other[: rng.randrange(len(other))], rng.randbytes(40)))
    if kind == 4:
        return data + _shifted(other, len(data))
    if kind == 5:
        return _commented(
            data, rng.randbytes(rng.choice((0, 1, 30))) + rng.choice((other, end, cut))
        )
    if kind == 6:
        behind = rng.randbytes(rng.choice((1, 4, 21, 22, 30)))
        return _commented(data, rng.choice((other, end, cut)) + behind)
    if kind == 7:
        # zip64's records in the comment, and another end.
        records = forced_zip64(other)
        return _commented(data, records[records.rfind(b"PK\6\6") :])
    if kind == 8:
        # The end of one archive on the directory of another.
        at = data.rfind(b"PK\5\6")
        return data[: max(at, 0)] + end
    if kind == 9:
        begin = data.rfind(NAME) - _HEAD_SIZE
        # Another archive in an append.
        at = rng.randrange(max(begin, 0), len(data))
        return data[:at] + other + data[at:]
    if kind == 10:
        at = rng.randrange(len(data))
        return data[:at] + other
    return other + data


def _claims_more(data: bytes, rng: random.Random) -> bytes:
    """Return an archive with an end record's comment that ends elsewhere: at the file's end or a record."""
    ends = [match.start() for match in re.finditer(rb"PK\x05\x06", data)]
    ends = [at for at in ends if at + 22 <= len(data)]
    if not ends:
        return data
    at = rng.choice(ends)
    stops = [len(data), *(match.start() for match in _RECORDS.finditer(data, at + 22))]
    size = rng.choice(stops) - at - 22
    if not 0 <= size <= 0xFFFF:
        return data
    return data[: at + 20] + size.to_bytes(2, "little") + data[at + 22 :]


def _points_elsewhere(data: bytes, rng: random.Random) -> bytes:
    """Return an archive with an end record that leads to another directory, or from another start."""
    ends = [
        at for at in (m.start() for m in re.finditer(rb"PK\x05\x06", data)) if at + 22 <= len(data)
    ]
    entries = [match.start() for match in re.finditer(rb"PK\x01\x02", data)]
    locals_ = [0, *(match.start() for match in re.finditer(rb"PK\x03\x04", data))]
    if not ends or not entries:
        return data
    at, out = rng.choice(ends), bytearray(data)
    start, base = rng.choice(entries), rng.choice((0, 0, rng.choice(locals_)))
    if start > at:
        return data
    size, offset = at - start, max(start - base, 0)
    if out[at - 20 : at - 16] == b"PK\6\7" and at >= 76 and rng.random() < 0.8:
        struct.pack_into("<qQ", out, at - 76 + 40, size - 76, offset)
        struct.pack_into("<q", out, at - 12, at - 76 - base)
    count = data.count(b"PK\1\2", start, at)
    struct.pack_into("<HHLL", out, at + 8, count, count, size, offset & 0xFFFFFFFF)
    return bytes(out)


def _field(data: bytes, rng: random.Random) -> bytes:
    """Return an archive with a field of a record near an end changed."""
    found = list(_RECORDS.finditer(data))
    if not found:
        return mutate_bytes(data, rng)
    ends = [match for match in found if match[0] not in (b"PK\1\2", b"PK\3\4")]
    match = rng.choice(ends if ends and rng.random() < 0.8 else found[-6:])
    place, size = rng.choice(_FIELDS[match[0]])
    at, out = match.start() + place, bytearray(data)
    if at < 0 or at + size > len(out):
        return data
    old = int.from_bytes(out[at : at + size], "little")
    value = rng.choice(
        (interesting(rng, old, 8 * size), old ^ 1 << rng.randrange(8 * size), len(data) - old)
    )
    out[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(out)


def _near_end(data: bytes, rng: random.Random, others: tuple[bytes, ...]) -> bytes:
    """Return an archive with bytes changed that are near one of its ends."""
    ends = [match.start() for match in re.finditer(rb"PK\x05\x06", data)] or [len(data)]
    low = max(rng.choice(ends) - rng.choice((0, 20, 76, 300)), 0)
    high = min(low + rng.choice((22, 100, 400)), len(data))
    return data[:low] + mutate_bytes(data[low:high], rng, others) + data[high:]


def mutate_end(data: bytes, rng: random.Random, others: tuple[bytes, ...]) -> bytes:
    """Join, hide or tear an archive, then change what its ends say in up to three places."""
    if rng.random() < 0.2:
        data = forced_zip64(data, sentinels=rng.random() < 0.5)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        data = data or rng.choice(others)
        kind = rng.random()
        if kind < 0.2:
            data = _torn(data, rng)
        elif kind < 0.4:
            data = _in_room(data, rng, others)
        else:
            data = _joined(data, rng, others)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        kind = rng.randrange(10)
        if kind < 4:
            data = _field(data, rng)
        elif kind < 6:
            data = _near_end(data, rng, others)
        elif kind == 6:
            data = _claims_more(data, rng)
        elif kind == 7:
            data = _points_elsewhere(data, rng)
        elif kind == 8:
            data = data[: rng.randrange(len(data) + 1)] if data else data
        else:
            data += rng.choice((bytes(22), rng.randbytes(30), b"PK\5\6" + bytes(18)))
    return data
