"""Mutations of a zip archive that know its records.

An archive is taken apart into members, entries and end records; fields, blocks
and whole records are changed; it is put together again. Sizes, offsets and
counts are then mostly made right again, but for those that were changed, so
that a mutation is not refused at the first check. None of npzkit's code takes
part.
"""

from __future__ import annotations

import bz2
import copy
import random
import re
import struct
import zlib

try:
    from compression import zstd
except ImportError:
    from backports import zstd

from mutate_bytes import interesting, mutate_bytes
from mutate_npy import mutate_npy

__all__ = ["mutate_zip"]

_LAYOUTS = {
    "member": (
        "4s5H3L2H",
        "signature version flags method time date crc csize usize name_size extra_size",
    ),
    "entry": (
        "4s6H3L5H2L",
        "signature made_by version flags method time date crc csize usize name_size extra_size "
        "comment_size disk internal external offset",
    ),
    "end": (
        "4s4H2LH",
        "signature disk directory_disk disk_count count size offset comment_size",
    ),
    "end64": (
        "4sQ2H2L4Q",
        "signature record_size made_by version disk directory_disk disk_count count size offset",
    ),
    "locator": ("4sLQL", "signature disk offset disks"),
}
_BITS = {"H": 16, "L": 32, "Q": 64}
_MOST = 200
"""Members, and entries, that an archive has at most."""

NAMES = (
    b"", b"a", b"a.npy", b"b.npy", b"x.npy", b".npy", b"a.npy.npy", b"../x.npy", b"/x.npy", b"a\\b.npy", b"a\0.npy",
    b"a\n.npy", b"d/", b"d/x.npy", b"\xff.npy", "ä.npy".encode(), b"\x84.npy", b"A.npy", b".npzkit", b"x" * 300,
    b"readme.txt", b"x", b"con.npy", b"C:x.npy", "\u2028.npy".encode(), "\ufeffx.npy".encode(), b"\x7f.npy", b"\xed\xa0\x80.npy",
)  # fmt: skip
METHODS = (0, 8, 8, 9, 12, 14, 93, 95, 97, 98, 99, 1, 20, 0xFFFF)
FLAGS = (0, 1, 2, 4, 6, 8, 0x20, 0x40, 0x800, 0x808, 0x2000, 0x10, 0xFFFF, 0x8000)


class Record:
    """A record's fields by name, and the bytes that come behind it.

    A field in `kept` was changed, and is not made right again.
    """

    def __init__(self, kind: str, data: bytes = b"", at: int = 0, **fields: bytes | int) -> None:
        layout, names = _LAYOUTS[kind]
        self.layout = struct.Struct(f"<{layout}")
        letters = "".join(n[-1] * int(n[:-1] or 1) for n in re.findall("[0-9]*[HLQ]", layout))
        self.bits = dict(zip(names.split()[1:], (_BITS[letter] for letter in letters), strict=True))
        values = self.layout.unpack_from(data.ljust(at + self.layout.size, b"\0"), at)
        self.fields = dict(zip(names.split(), values, strict=True)) | fields
        self.kept: set[str] = set()
        self.name = self.extra = self.comment = self.raw = self.gap = b""
        # Of an entry: whose, and how far it misses it. Of a member: where it stands.
        self.member: Record | None = None
        self.shift = 0
        self.place: int | None = None

    def copy(self) -> Record:
        twin = copy.copy(self)
        twin.fields, twin.kept = dict(self.fields), set(self.kept)
        return twin

    def change(self, name: str, value: bytes | int) -> None:
        self.fields[name] = value
        self.kept.add(name)

    def fit(self, **fields: int) -> None:
        self.fields.update((n, value) for n, value in fields.items() if n not in self.kept)

    def pack(self) -> bytes:
        signature = self.fields["signature"]
        return self.layout.pack(
            signature, *(self.fields[n] & ((1 << bits) - 1) for n, bits in self.bits.items())
        )


class Archive:
    """An archive taken apart; ValueError where that is not possible."""

    def __init__(self, data: bytes) -> None:
        at = data.rfind(b"PK\5\6")
        if at < 0 or at + 22 > len(data):
            raise ValueError("no end record")
        self.end = last = Record("end", data, at)
        behind = at + 22 + self.end.fields["comment_size"]
        self.end.comment, self.tail = data[at + 22 : behind], data[behind:]
        self.locator = self.end64 = None
        self.before_end = b""
        if data[at - 20 : at - 16] == b"PK\6\7" and at >= 76:
            self.locator = Record("locator", data, at - 20)
            at -= 76
            self.end64 = last = Record("end64", data, at)
        start = at - last.fields["size"]
        if start < 0:
            raise ValueError("no directory")
        self.entries = _entries(data[start:at])
        self._take_members(data, start, start - last.fields["offset"])

    def _take_members(self, data: bytes, start: int, base: int) -> None:
        places = sorted({entry.fields["offset"] + base for entry in self.entries})
        places = [place for place in places if 0 <= place <= start - 30]
        self.prefix = data[: places[0] if places else start]
        members = {}
        for place, limit in zip(places, [*places, start][1:], strict=True):
            members[place] = member = Record("member", data, place)
            name_end = min(place + 30 + member.fields["name_size"], limit)
            extra_end = min(name_end + member.fields["extra_size"], limit)
            member.name, member.extra = data[place + 30 : name_end], data[name_end:extra_end]
            member.raw = data[extra_end:limit]
        self.members = list(members.values())
        for entry in self.entries:
            entry.member = member = members.get(entry.fields["offset"] + base)
            size = entry.fields["csize"]
            if member is not None and not member.gap and size != 0xFFFFFFFF:
                member.raw, member.gap = member.raw[:size], member.raw[size:]

    def build(self, rng: random.Random, *, fix: bool) -> bytes:
        """Return the bytes; with `fix`, the end records say what is there."""
        out = bytearray(self.prefix)
        for member in self.members:
            member.place = len(out)
            member.fit(name_size=len(member.name), extra_size=len(member.extra))
            out += member.pack() + member.name + member.extra + member.raw + member.gap
        start = len(out)
        for entry in self.entries:
            entry.fit(name_size=len(entry.name), extra_size=len(entry.extra))
            entry.fit(comment_size=len(entry.comment))
            if entry.member is not None and entry.member.place is not None:
                entry.fit(offset=entry.member.place + entry.shift)
            out += entry.pack() + entry.name + entry.extra + entry.comment
        count, size = len(self.entries), len(out) - start
        if fix and rng.random() < 0.9:
            _fit_record(out, start, self.end.comment)
            _fit_far(out, start)
        known = {"disk_count": count, "count": count, "size": size, "offset": start}
        out += self.before_end
        if self.end64 is not None:
            place = len(out)
            if fix:
                self.end64.fit(**known)
            out += self.end64.pack()
            if self.locator is not None:
                if fix:
                    self.locator.fit(offset=place)
                out += self.locator.pack()
        if fix:
            is_small = self.end64 is None or rng.random() < 0.5
            self.end.fit(**(known if is_small else dict.fromkeys(known, -1)))
        self.end.fit(comment_size=len(self.end.comment))
        out += self.end.pack() + self.end.comment
        if fix and rng.random() < 0.8:
            _fit_mark(out, start, len(out))
        return bytes(out + self.tail)

    def both(self, member: Record) -> list[Record]:
        """Return a member's headers: the local one first, then its entries."""
        return [member, *(entry for entry in self.entries if entry.member is member)]


def _entries(directory: bytes) -> list[Record]:
    entries, at = [], 0
    while at + 46 <= len(directory) and len(entries) < _MOST:
        entry = Record("entry", directory, at)
        f = entry.fields
        name_end = at + 46 + f["name_size"]
        extra_end = name_end + f["extra_size"]
        entry.name, entry.extra = directory[at + 46 : name_end], directory[name_end:extra_end]
        at = extra_end + f["comment_size"]
        entry.comment = directory[extra_end:at]
        if f["offset"] == 0xFFFFFFFF and entry.extra[:2] == b"\1\0" and len(entry.extra) >= 12:
            # It is the last of the zip64 block's values here.
            f["offset"] = int.from_bytes(entry.extra[4 + entry.extra[2] - 8 :][:8], "little")
        entries.append(entry)
    if at != len(directory):
        raise ValueError("a directory that runs over")
    return entries


# -- the record ----------------------------------------------------------------


_FOOTER = struct.Struct("<3Q8L2HL4s")
_FOOTER_SIZE = 68
_INTENT = b".npzkitNZ\x1c\0"
"""From the name of an intent's piece on: it has 28 bytes of data."""
_INTENT_SIZE = 85


class _Index:
    """Where the array index is in some bytes that end with a footer; ValueError without one."""

    def __init__(self, data: bytes | bytearray, end: int) -> None:
        if end < _FOOTER_SIZE or data[end - 4 : end] != b"NPZX":
            raise ValueError("no footer")
        self.footer = end - _FOOTER_SIZE
        self.fields = list(_FOOTER.unpack_from(data, self.footer))
        self.offset, self.distance, self.count = self.fields[0], self.fields[4], self.fields[7]
        self.begin = end - self.distance
        if not 0 <= self.begin <= self.begin + 6 * self.count <= self.footer:
            raise ValueError("no index")
        self.rows = [self.begin + 6 * number for number in range(self.count)]
        listed = [number for number, row in enumerate(self.rows) if data[row + 3] & 0x80]
        starts = range(self.begin + 6 * self.count, self.footer - 11, 12)
        self.places = dict(zip(listed, starts, strict=False))
        """Where it says where the list of an entry is, by the entry's number."""


def _intent_of(data: bytes | bytearray, end: int) -> int:
    """Return where the intent of the append begins whose directory is at `end`; 0 without one."""
    return max(data.rfind(_INTENT, 0, end) - 46, 0)


def _fit_record(out: bytearray, end: int, comment: bytes) -> None:
    """Make the record that ends at `end` fit the directory that begins there, and a comment."""
    try:
        index = _Index(out, end)
    except ValueError:
        return
    directory, at, count = bytearray(out[end:]), 0, 0
    while directory[at : at + 4] == b"PK\1\2" and at + 46 <= len(directory):
        directory[at + 16 : at + 20] = bytes(4)
        at += 46 + sum(struct.unpack_from("<3H", directory, at + 28))
        count += 1
    # Lists move with the record.
    for place in index.places.values():
        moved = int.from_bytes(out[place : place + 8], "little") + end - index.offset
        if 0 <= moved < 1 << 64:
            struct.pack_into("<Q", out, place, moved)
    size = index.fields[5]
    fields = {
        0: end, 1: len(directory), 2: _intent_of(out, end) if index.fields[2] else 0,
        6: zlib.crc32(out[index.begin : index.begin + size]), 7: count,
        8: zlib.crc32(directory), 9: len(comment), 10: zlib.crc32(comment), 14: b"NPZX",
    }  # fmt: skip
    footer = _FOOTER.pack(*[fields.get(at, old) for at, old in enumerate(index.fields)])
    out[index.footer : end] = footer[:60] + struct.pack("<L", zlib.crc32(footer[:60])) + b"NPZX"


def _fit_far(out: bytearray, end: int) -> None:
    """Make a far copy that begins at `end` fit its place, and the end record before it."""
    at = out.rfind(b"PK\5\6", 0, end)
    if out[end - 4 : end] != b"NPZF" or not 0 <= at <= end - 32:
        return
    stop = at + 22 + int.from_bytes(out[at + 20 : at + 22], "little")
    said = struct.pack("<2QL2H", end, stop, zlib.crc32(out[at:stop]), 0, 1)
    out[end - 32 : end - 4] = said + struct.pack("<L", zlib.crc32(said))


def _fit_mark(out: bytearray, directory: int, end: int) -> None:
    """Make the mark of the last append fit its end."""
    intent = _intent_of(out, directory)
    if intent and intent + _INTENT_SIZE <= directory and out[directory - 4 : directory] == b"NPZX":
        out[intent + _INTENT_SIZE - 8 : intent + _INTENT_SIZE] = struct.pack("<Q", end)


def _change(data: bytearray, at: int, size: int, rng: random.Random) -> None:
    """Change a number."""
    old = int.from_bytes(data[at : at + size], "little")
    data[at : at + size] = interesting(rng, old, 8 * size).to_bytes(size, "little")


def _record(archive: Archive, rng: random.Random, others: _Others) -> None:
    """The record before the directory: what it says of a member, or the whole of it."""
    last = archive.members[-1]
    gap = bytearray(last.gap)
    try:
        index = _Index(gap, len(gap))
    except ValueError:
        for other in rng.sample(others, min(len(others), 5)):
            end = other.rfind(b"NPZX") + 4
            if end >= _FOOTER_SIZE + 4:
                size = int.from_bytes(other[end - 44 : end - 40], "little")
                last.gap += other[max(end - size, 0) : end]
                break
        return
    kind = rng.randrange(6)
    heads = [match.start() for match in re.finditer(b"\x93NUMPY", gap[index.begin :])]
    if kind == 0 and index.rows:
        field = rng.choice(((0, 4), (3, 1), (4, 2)))
        _change(gap, rng.choice(index.rows) + field[0], field[1], rng)
    elif kind == 1 and heads:
        at = index.begin + rng.choice(heads)
        size = int.from_bytes(gap[at - 2 : at], "little")
        head = mutate_npy(bytes(gap[at : at + size]), rng)[:size]
        gap[at : at + size] = head.ljust(size)
    elif kind == 2:
        _change(gap, rng.choice((index.begin, *range(index.footer, len(gap), 4))), 4, rng)
    elif kind == 3 and index.places:
        place = rng.choice(list(index.places.values()))
        _change(gap, *rng.choice(((place, 8), (place + 8, 4))), rng)
    elif kind == 4 and index.places:
        _change_list(archive, gap, index, rng)
    else:
        begin = rng.choice((index.begin, max(len(gap) - index.fields[3], 0)))
        gap[begin:] = mutate_bytes(bytes(gap[begin:]), rng)
    last.gap = bytes(gap)


def _change_list(archive: Archive, gap: bytearray, index: _Index, rng: random.Random) -> None:
    """Change the list of a member's chunks so that it may still be believed."""
    number, place = rng.choice(list(index.places.items()))
    offset, chunk_size = struct.unpack_from("<QL", gap, place)
    begin = len(gap) - index.offset + offset
    if number >= len(archive.entries) or not chunk_size or begin < 0:
        return
    fields = archive.entries[number].fields
    count = -(-fields["usize"] // chunk_size)
    is_stored = not fields["method"]
    size = 4 * count if is_stored else 8 * count
    if count < 2 or begin + size + 4 > len(gap):
        return
    words = list(struct.unpack_from(f"<{size // 4}L", gap, begin))
    one, other = rng.randrange(count), rng.randrange(count)
    if is_stored or rng.random() < 0.3:
        words[one], words[other] = words[other], words[one]
    elif one != other:
        by = rng.choice((-40, -1, 1, 5, 100, words[count + other]))
        words[count + one] = (words[count + one] + by) % (1 << 32)
        words[count + other] = (words[count + other] - by) % (1 << 32)
    data = struct.pack(f"<{len(words)}L", *words)
    gap[begin : begin + size] = data
    if not is_stored:
        struct.pack_into("<L", gap, begin + size, zlib.crc32(data))


# -- a member's data -------------------------------------------------------


def _inflated(member: Record, limit: int = 1 << 17) -> bytes | None:
    method = member.fields["method"]
    try:
        if method == 8:
            return zlib.decompressobj(-15).decompress(member.raw, limit)
        if method == 12:
            return bz2.BZ2Decompressor().decompress(member.raw, limit)
        if method == 93:
            return zstd.ZstdDecompressor().decompress(member.raw, limit)
    except (zlib.error, OSError, zstd.ZstdError):
        return None
    return member.raw if method == 0 else None


def _deflate(data: bytes, rng: random.Random) -> bytes:
    """Compress in one piece or in several, small windows or large."""
    stream = zlib.compressobj(rng.choice((0, 1, 6, 9)), zlib.DEFLATED, -rng.choice((9, 15)))
    chunk = rng.choice((len(data) + 1, len(data) + 1, 64, 1024))
    out = b""
    for start in range(0, len(data), chunk):
        out += stream.compress(data[start : start + chunk])
        if chunk <= len(data):
            out += stream.flush(rng.choice((zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH)))
    return out + stream.flush()


def _describe(archive: Archive, member: Record, data: bytes, method: int) -> None:
    """Write sizes and CRC into entry, local header, zip64 block and descriptor, as they are used."""
    crc, csize, usize = zlib.crc32(data), len(member.raw), len(data)
    has_descriptor = member.fields["flags"] & 8
    for record in archive.both(member):
        f = record.fields
        f["method"] = method
        if record is member and has_descriptor:
            f.update(crc=0, csize=0, usize=0)
        elif f["usize"] == 0xFFFFFFFF and record.extra[:2] == b"\1\0":
            payload = struct.pack("<QQ", usize, csize)[: 16 if f["csize"] == 0xFFFFFFFF else 8]
            if len(payload) == 8:
                f["csize"] = csize
            record.extra = record.extra[:4] + payload + record.extra[4 + len(payload) :]
            f["crc"] = crc
        else:
            f.update(crc=crc, csize=csize, usize=usize)
    if has_descriptor:
        signature = b"PK\7\x08" if member.gap[:4] == b"PK\7\x08" or not member.gap else b""
        layout = "<LQQ" if len(member.gap) in (20, 24) else "<LLL"
        descriptor = signature + struct.pack(layout, crc, csize, usize)
        member.gap = descriptor + member.gap[len(descriptor) :]


# -- the mutations ---------------------------------------------------------

_Others = tuple[bytes, ...]


def _fields(archive: Archive, rng: random.Random, others: _Others) -> None:
    """One field of one record, anything; of a member in both of its headers, or in one."""
    ends = [archive.end, archive.end, archive.end64, archive.locator]
    record = rng.choice([*archive.members, *archive.entries, *(end for end in ends if end)])
    name = rng.choice(list(record.fields))
    old = record.fields[name]
    if name == "signature":
        value = mutate_bytes(old, rng)[:4].ljust(4, b"\0")
    elif name == "method":
        value = rng.choice(METHODS)
    elif name == "flags":
        value = rng.choice((old ^ rng.choice(FLAGS), rng.choice(FLAGS)))
    else:
        value = interesting(rng, old, record.bits[name])
    record.change(name, value)
    if record in archive.members and rng.random() < 0.5:
        for entry in archive.both(record)[1:]:
            entry.change(name, value)


def _names(archive: Archive, rng: random.Random, others: _Others) -> None:
    """Another name, in both headers or in one."""
    member = rng.choice(archive.members)
    name = rng.choice(NAMES) if rng.random() < 0.7 else mutate_bytes(member.name, rng)
    records = archive.both(member)
    for record in records if rng.random() < 0.8 else [rng.choice(records)]:
        record.name = name
        if rng.random() < 0.3:
            record.fields["flags"] ^= 0x800


PARTS = (
    b'{"kind":"masked"}', b'{"kind":"masked","fill_value":[1]}', b'{"kind":"strings"}',
    b'{"kind":"masked","fill_value":1e999}', b'{"kind":"strings","shape":[3],"missing":"nan"}',
    b'{"kind":"strings","shape":[0,9223372036854775808]}', b"[]",
)  # fmt: skip
NOTES = (
    b'{"npzkit.tree":["list",null]}', b'{"npzkit.tree":{"x":["as","list"]}}',
    b'{"npzkit.tree":{"steps":["tuple",["as","value"],["list"]],"text":["value",1]}}',
    b'{"npzkit.tree":{"layer":["list"],"x":{},"rate":["as","tuple"]}}',
    b'{"npzkit.tree":{"x":["value",["set",1,["tuple",["complex",0,1]]]],"d":["value",["numpy.dtype","<f4"]]}}',
    b'{"npzkit.tree":' + b'{"a":' * 400 + b"[]" + b"}" * 401,
)  # fmt: skip


def _block(record: Record, rng: random.Random) -> bytes:
    """Return a block of an extra field that npzkit looks at, right or wrong."""
    f = record.fields
    kind = rng.randrange(7)
    if kind == 0:
        values = [f["usize"], f["csize"], f.get("offset", 0), 0][: rng.randrange(5)]
        payload = struct.pack(f"<{len(values)}Q", *values)
        return struct.pack("<HH", 1, len(payload)) + payload
    if kind == 1:
        payload = bytes([rng.choice((1, 1, 0))]) + struct.pack("<L", zlib.crc32(record.name))
        payload += rng.choice((b"other.npy", "ö.npy".encode(), b"\xff", b"", b"a\0b"))
        return struct.pack("<HH", 0x7075, len(payload)) + payload
    if kind == 2:
        pairs = rng.choice(
            ((b"unit", b"m"), (b"npzkit.dtype", b"bfloat16"), (b"npzkit.dtype", b"float8_e5m2"), (b"a", b"[1,2"), (b"", b""),
             (b"npzkit.parts", rng.choice(PARTS)))
        )  # fmt: skip
        payload = b"KeyValuePairs" + bytes([rng.choice((1, 1, 1, 0, 2))])
        payload += b"".join(struct.pack("<H", len(text)) + text for text in pairs)
        return struct.pack("<HH", 0x564B, len(payload)) + payload
    if kind == 3:
        size = rng.choice((0, 2, 6, 60, 500))
        return struct.pack("<HH", 0xD935, size) + bytes(size)
    if kind == 4:
        return bytes(rng.randrange(1, 4))
    if kind == 5:
        identifier = rng.choice((1, 0x7075, 0x564B, 0x5455))
        return struct.pack("<HH", identifier, rng.choice((0, 1, 8, 100, 0xFFFF)))
    return struct.pack("<HH", rng.randrange(1 << 16), 4) + rng.randbytes(4)


def _extras(archive: Archive, rng: random.Random, others: _Others) -> None:
    """Extra fields: blocks more, blocks less, bytes wrong."""
    record = rng.choice([*archive.members, *archive.entries])
    kind = rng.randrange(6)
    extra = record.extra
    if kind < 3:
        block = _block(record, rng)
        extra = rng.choice((extra + block, block + extra, block))
    elif kind == 3:
        extra = mutate_bytes(extra, rng)
    elif kind == 4:
        extra = b""
    else:
        record.change("extra_size", interesting(rng, len(extra), 16))
    is_both = rng.random() < 0.5
    for other in archive.both(record.member or record) if is_both else [record]:
        other.extra = extra[:0xFFFF]


def _sentinels(archive: Archive, rng: random.Random, others: _Others) -> None:
    """Sizes that move to a zip64 block, as large members have them."""
    record = rng.choice([*archive.members, *archive.entries])
    values = []
    for name in ("usize", "csize", "offset"):
        if name in record.fields and (rng.random() < 0.6 or record in archive.members):
            values.append(record.fields[name])
            record.change(name, 0xFFFFFFFF)
    if rng.random() < 0.2:
        values.append(rng.choice((0, 1, 2**64 - 1)))
    if rng.random() < 0.15 and values:
        at = rng.randrange(len(values))
        values[at] = interesting(rng, values[at], 64)
    payload = struct.pack(f"<{len(values)}Q", *values)
    record.extra = struct.pack("<HH", 1, len(payload)) + payload + record.extra


def _descriptors(archive: Archive, rng: random.Random, others: _Others) -> None:
    """A data descriptor behind a member, right or wrong, or none where the flag says so."""
    member = rng.choice(archive.members)
    records = archive.both(member)
    values = [records[-1].fields[name] for name in ("crc", "csize", "usize")]
    for record in records:
        record.fields["flags"] |= 8
    if rng.random() < 0.7:
        member.fields.update(crc=0, csize=0, usize=0)
    if rng.random() < 0.3:
        at = rng.randrange(3)
        values[at] = interesting(rng, values[at], 32)
    signature = rng.choice((b"PK\7\x08", b"PK\7\x08", b"", b"PK\7\x09"))
    descriptor = signature + struct.pack(rng.choice(("<LLL", "<LQQ")), *values)
    member.gap = rng.choice((descriptor, descriptor, b"")) + member.gap


def _lists(archive: Archive, rng: random.Random, others: _Others) -> None:
    """Members and entries doubled, dropped, swapped, or led to another's place."""
    kind = rng.randrange(8)
    records = rng.choice([some for some in (archive.members, archive.entries) if some])
    at, other = rng.randrange(len(records)), rng.randrange(len(records))
    member = rng.choice(archive.members)
    if kind == 0:
        del records[at]
    elif kind == 1:
        records[at], records[other] = records[other], records[at]
    elif kind == 2:
        records.insert(other, records[at].copy())
    elif kind == 3:
        # A member whole, with an entry of its own.
        twin = member.copy()
        archive.members.append(twin)
        for entry in archive.both(member)[1:]:
            archive.entries.append(entry.copy())
            archive.entries[-1].member = twin
            if rng.random() < 0.5:
                archive.entries[-1].name = twin.name = rng.choice(NAMES)
    elif kind == 4 and archive.entries:
        rng.choice(archive.entries).member = member
    elif kind == 5 and archive.entries:
        rng.choice(archive.entries).shift = rng.choice((-30, -1, 1, 4, 30))
    elif kind == 6:
        member.gap += rng.randbytes(rng.randrange(1, 40))
    else:
        # The member's data, and maybe the next member, in its extra field.
        member.change("extra_size", len(member.extra) + rng.choice((1, 30, 100, 300)))
    del archive.members[_MOST:], archive.entries[_MOST:]


def _content(archive: Archive, rng: random.Random, others: _Others) -> None:
    """A changed array in a member, compressed anew."""
    member = rng.choice(archive.members)
    data = _inflated(member)
    if data is None:
        return
    data = mutate_npy(data, rng)
    method = rng.choice((0, 0, 8, 8, 8, 12, 93))
    compressors = {0: bytes, 12: bz2.compress, 93: zstd.compress}
    member.raw = compressors.get(method, lambda data: _deflate(data, rng))(data)
    _describe(archive, member, data, method)
    if rng.random() < 0.2:
        # Its data stands elsewhere.
        size = rng.randrange(2, 70)
        member.extra += struct.pack("<HH", 0xD935, size) + bytes(size)


def _stream(archive: Archive, rng: random.Random, others: _Others) -> None:
    """Compressed bytes changed; where they still inflate, sizes and CRC may follow."""
    member = rng.choice(archive.members)
    raw = member.raw
    cut = rng.randrange(1, 5)
    member.raw = rng.choice((raw + rng.randbytes(cut), raw[:-cut], mutate_bytes(raw, rng)))
    data = _inflated(member)
    if data is not None and rng.random() < 0.8:
        _describe(archive, member, data, member.fields["method"])


def _gaps(archive: Archive, rng: random.Random, others: _Others) -> None:
    """What no entry lists: records, old directories, descriptors."""
    gaps = [member for member in archive.members if member.gap]
    if not gaps:
        return
    member = rng.choice(gaps)
    gap = bytearray(member.gap)
    if rng.random() < 0.3 or len(gap) <= 40:
        member.gap = mutate_bytes(member.gap, rng)
        return
    size = rng.choice((4, 8))
    at = len(gap) - size * rng.randrange(1, len(gap) // size)
    old = int.from_bytes(gap[at : at + size], "little")
    gap[at : at + size] = interesting(rng, old, 8 * size).to_bytes(size, "little")
    member.gap = bytes(gap)


def _ends(archive: Archive, rng: random.Random, others: _Others) -> None:
    """End records: zip64 ones more or less, comments, what stands around them."""
    kind = rng.randrange(8)
    if kind == 0:
        archive.end64 = Record("end64", signature=b"PK\6\6", record_size=44, version=45)
        archive.locator = Record("locator", signature=b"PK\6\7", disks=1)
    elif kind == 1:
        archive.end64 = None
    elif kind == 2:
        archive.locator = None
    elif kind == 3:
        archive.end.comment = rng.choice(
            (b"", b"{}", b'{"a": 1}', b'{"a": ', b"{" * 50, b'{"a": NaN}', b"\xff\xfe{", b'{"a":' * 40, b"[1]",
             b"PK\5\6" + bytes(18), b"PK\5\6" * 8, *NOTES)
        )  # fmt: skip
    elif kind == 4:
        archive.end.comment = mutate_bytes(archive.end.comment, rng)
    elif kind == 5:
        archive.before_end = rng.choice(
            (b"PK\5\6", rng.randbytes(8), bytes(76), b"PK\6\7" + bytes(16))
        )
    elif kind == 6:
        # The seal of an append that was not finished, or was damaged.
        archive.end.change("signature", rng.choice((bytes(4), b"PK\5\0", b"PK\5\7")))
    else:
        archive.prefix = rng.choice(
            (rng.randbytes(3) + archive.prefix, b"PK\3\4" + bytes(26), archive.prefix[1:])
        )


def _tails(archive: Archive, rng: random.Random, others: _Others) -> None:
    """What follows the end: junk, the beginning of an append, another archive."""
    member, other = rng.choice(archive.members), rng.choice(others)
    if rng.random() < 0.2:
        archive.prefix = other + archive.prefix
        return
    archive.tail = rng.choice(
        (
            rng.randbytes(rng.randrange(1, 60)),
            bytes(rng.choice((1, 4, 22, 100))),
            other[: rng.choice((4, 30, 100, 1000, 10_000))],
            other,
            other,
            rng.randbytes(9) + other,
            bytes(9) + other,
            other + rng.randbytes(9),
            b"PK\3\4" + rng.randbytes(26) + member.name + member.raw,
            b"PK\3\4" + rng.randbytes(26) + member.name + other,
            b"PK\5\6" + bytes(4) + struct.pack("<HHLLH", 1, 1, 46, 0, rng.choice((0, 5))),
        )
    )


_RECORDS = (_fields, _fields, _names, _extras, _sentinels, _descriptors, _lists)
_CONTENTS = (_content, _content, _content, _stream, _gaps, _ends, _tails, _record, _record)


def mutate_zip(data: bytes, rng: random.Random, others: tuple[bytes, ...]) -> bytes:
    """Change an archive in one to four places, and mostly make the rest fit."""
    if rng.random() < 0.08:
        # The newest directory and its end, as they are in the file.
        size = rng.choice((30, 100, 200))
        return data[:-size] + mutate_bytes(data[-size:], rng, others)
    try:
        archive = Archive(data)
    except ValueError:
        return mutate_bytes(data, rng, others)
    if rng.random() < 0.12:
        return mutate_bytes(data, rng, others)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if not archive.members:
            _ends(archive, rng, others)
            continue
        rng.choice(_RECORDS if rng.random() < 0.5 else _CONTENTS)(archive, rng, others)
    built = archive.build(rng, fix=rng.random() < 0.9)
    return mutate_bytes(built, rng, others) if rng.random() < 0.08 else built
