"""Mutations of a zip archive that know its records.

An archive is taken apart into members, entries and end records; fields, blocks
and whole records are changed; it is put together again. CRCs, sizes, offsets
and counts are then made right again with some probability, so that what was
changed is not refused at the first check. None of npzkit's code takes part.
"""

from __future__ import annotations

import bz2
import random
import struct
import zlib
from typing import Any

from mutate_bytes import interesting, mutate_bytes
from mutate_npy import mutate_npy

__all__ = ["Archive", "mutate_zip"]

_LOCAL = struct.Struct("<4sHHHHHLLLHH")
_LOCAL_NAMES = ("signature", "version", "flags", "method", "time", "date", "crc", "csize", "usize")
_ENTRY = struct.Struct("<4sHHHHHHLLLHHHHHLL")
_ENTRY_NAMES = (
    "signature", "made_by", "version", "flags", "method", "time", "date", "crc", "csize", "usize",
)  # fmt: skip
_END = struct.Struct("<4sHHHHLLH")
_END_NAMES = ("signature", "disk", "cd_disk", "disk_count", "count", "size", "offset")
_END64 = struct.Struct("<4sQHHLLQQQQ")
_END64_NAMES = (
    "signature", "record_size", "made_by", "version", "disk", "cd_disk", "disk_count", "count",
    "size", "offset",
)  # fmt: skip
_LOCATOR = struct.Struct("<4sLQL")
_LOCATOR_NAMES = ("signature", "disk", "offset", "disks")
_BITS = {"crc": 32, "csize": 32, "usize": 32, "size": 32, "offset": 32, "external": 32}

NAMES = (
    b"", b"a", b"a.npy", b"b.npy", b"x.npy", b".npy", b"a.npy.npy", b"../x.npy", b"/x.npy", b"a\\b.npy", b"a\0.npy",
    b"a\n.npy", b"d/", b"d/x.npy", b"\xff.npy", "ä.npy".encode(), b"\x84.npy", b"A.npy", b".a.npy.sozip.idx", b"x" * 300,
    b"readme.txt", b"x", b"con.npy", b"C:x.npy", "\u2028.npy".encode(), "\ufeffx.npy".encode(), b"\x7f.npy", b"\xed\xa0\x80.npy",
)  # fmt: skip
METHODS = (0, 8, 8, 9, 12, 14, 93, 95, 97, 98, 99, 1, 20, 0xFFFF)
FLAGS = (0, 1, 2, 4, 6, 8, 0x20, 0x40, 0x800, 0x808, 0x2000, 0x10, 0xFFFF, 0x8000)


class Record:
    """Fields by name, and what follows them."""

    def __init__(self, names: tuple[str, ...], values: tuple[Any, ...], **rest: Any) -> None:
        self.names = names
        self.fields = dict(zip(names, values, strict=False))
        self.rest = rest

    def copy(self) -> Record:
        twin = Record(self.names, (), **self.rest)
        twin.fields = dict(self.fields)
        return twin


class Archive:
    """An archive taken apart; `parse` gives None where that is not possible."""

    def __init__(self) -> None:
        self.prefix = b""
        self.members: list[Record] = []
        self.entries: list[Record] = []
        self.end64: Record | None = None
        self.locator: Record | None = None
        self.end = Record(_END_NAMES, (b"PK\5\6", 0, 0, 0, 0, 0, 0), comment=b"")
        self.before_end = b""
        self.tail = b""

    @classmethod
    def parse(cls, data: bytes) -> Archive | None:
        end_at = data.rfind(b"PK\5\6")
        if end_at < 0 or end_at + 22 > len(data):
            return None
        archive = cls()
        *values, comment_size = _END.unpack_from(data, end_at)
        comment = data[end_at + 22 : end_at + 22 + comment_size]
        archive.end = Record(_END_NAMES, tuple(values), comment=comment)
        archive.tail = data[end_at + 22 + comment_size :]
        size, behind = values[5], end_at
        if data[end_at - 20 : end_at - 16] == b"PK\6\7" and end_at >= 76:
            archive.locator = Record(_LOCATOR_NAMES, _LOCATOR.unpack_from(data, end_at - 20))
            archive.end64 = Record(_END64_NAMES, _END64.unpack_from(data, end_at - 76))
            behind = end_at - 76
            size = archive.end64.fields["size"]
        start = behind - size
        if start < 0:
            return None
        if not archive._parse_entries(data[start:behind]):
            return None
        base = start - (archive.end64 or archive.end).fields["offset"]
        archive._parse_members(data, start, base)
        return archive

    def _parse_entries(self, directory: bytes) -> bool:
        at = 0
        while at + 46 <= len(directory) and len(self.entries) < 300:
            values = _ENTRY.unpack_from(directory, at)
            name_size, extra_size, comment_size, disk, internal, external, offset = values[10:]
            if at + 46 + name_size + extra_size + comment_size > len(directory):
                return False
            name_end = at + 46 + name_size
            extra_end = name_end + extra_size
            entry = Record(
                (*_ENTRY_NAMES, "disk", "internal", "external", "offset"),
                (*values[:10], disk, internal, external, offset),
                name=directory[at + 46 : name_end],
                extra=directory[name_end:extra_end],
                comment=directory[extra_end : extra_end + comment_size],
                member=None,
            )
            if offset == 0xFFFFFFFF:
                entry.fields["offset"] = _zip64_offset(entry)
            self.entries.append(entry)
            at = extra_end + comment_size
        return at == len(directory)

    def _parse_members(self, data: bytes, start: int, base: int) -> None:
        places = sorted({entry.fields["offset"] + base for entry in self.entries})
        places = [place for place in places if place >= 0 and place + 30 <= start]
        self.prefix = data[: places[0] if places else start]
        by_place: dict[int, Record] = {}
        for place, limit in zip(places, [*places, start][1:], strict=True):
            *values, name_size, extra_size = _LOCAL.unpack_from(data, place)
            name_end = min(place + 30 + name_size, limit)
            extra_end = min(name_end + extra_size, limit)
            by_place[place] = Record(
                _LOCAL_NAMES, tuple(values), name=data[place + 30 : name_end],
                extra=data[name_end:extra_end], raw=data[extra_end:limit], gap=b"",
            )  # fmt: skip
            self.members.append(by_place[place])
        for entry in self.entries:
            entry.rest["member"] = by_place.get(entry.fields["offset"] + base)
        for entry in self.entries:
            member = entry.rest["member"]
            if member is not None:
                size = entry.fields["csize"]
                if size == 0xFFFFFFFF:
                    size = len(member.rest["raw"])
                if not member.rest["gap"]:
                    raw = member.rest["raw"]
                    member.rest["raw"], member.rest["gap"] = raw[:size], raw[size:]

    # -- putting it together ------------------------------------------------

    def build(self, rng: random.Random, *, fix: bool) -> bytes:
        """Return the bytes; with `fix`, offsets, sizes and counts are those of what is there."""
        out = bytearray(self.prefix)
        places: dict[int, int] = {}
        for member in self.members:
            places[id(member)] = len(out)
            f, r = member.fields, member.rest
            out += _LOCAL.pack(
                *(f[name] & _mask(name) if name != "signature" else f[name] for name in _LOCAL_NAMES),
                r.get("name_size", len(r["name"])) & 0xFFFF, r.get("extra_size", len(r["extra"])) & 0xFFFF,
            )  # fmt: skip
            out += r["name"] + r["extra"] + r["raw"] + r["gap"]
        start = len(out)
        for entry in self.entries:
            f, r = entry.fields, entry.rest
            if r["member"] is not None and id(r["member"]) in places and not r.get("moved"):
                f["offset"] = places[id(r["member"])] + r.get("shift", 0)
            out += _ENTRY.pack(
                f["signature"], *(f[name] & _mask(name) for name in _ENTRY_NAMES[1:]),
                len(r["name"]) & 0xFFFF, r.get("extra_size", len(r["extra"])) & 0xFFFF, len(r["comment"]) & 0xFFFF,
                f["disk"] & 0xFFFF, f["internal"] & 0xFFFF, f["external"] & 0xFFFFFFFF, f["offset"] & 0xFFFFFFFF,
            )  # fmt: skip
            out += r["name"] + r["extra"] + r["comment"]
        size, count = len(out) - start, len(self.entries)
        known = {"disk_count": count, "count": count, "size": size, "offset": start}
        out += self.before_end
        if self.end64 is not None:
            if fix:
                self.end64.fields.update(known)
            place = len(out)
            out += _END64.pack(*_fitting(self.end64, _END64_NAMES, "<4sQHHLLQQQQ"))
            if self.locator is not None:
                if fix:
                    self.locator.fields["offset"] = place
                out += _LOCATOR.pack(*_fitting(self.locator, _LOCATOR_NAMES, "<4sLQL"))
        if fix:
            is_small = self.end64 is None or rng.random() < 0.5
            self.end.fields.update(known if is_small else dict.fromkeys(known, -1))
        comment = self.end.rest["comment"]
        size_field = self.end.rest.get("comment_size", len(comment)) & 0xFFFF
        out += _END.pack(*_fitting(self.end, _END_NAMES, "<4sHHHHLL"), size_field)
        return bytes(out + comment + self.tail)


def _zip64_offset(entry: Record) -> int:
    extra = entry.rest["extra"]
    if extra[:2] != b"\1\0" or len(extra) < 12:
        return 0xFFFFFFFF
    return int.from_bytes(extra[4 + int.from_bytes(extra[2:4], "little") - 8 :][:8], "little")


def _mask(name: str) -> int:
    return (1 << _BITS.get(name, 16)) - 1


def _fitting(record: Record, names: tuple[str, ...], layout: str) -> list[Any]:
    sizes = {"H": 16, "L": 32, "Q": 64}
    kinds = layout.replace("<4s", "s")
    return [
        record.fields[name] if kind == "s" else record.fields[name] & ((1 << sizes[kind]) - 1)
        for name, kind in zip(names, kinds, strict=True)
    ]


# -- a member's data -------------------------------------------------------


def _inflated(member: Record, limit: int = 1 << 17) -> bytes | None:
    raw = member.rest["raw"]
    if member.fields["method"] == 0:
        return raw
    try:
        if member.fields["method"] == 8:
            return zlib.decompressobj(-15).decompress(raw, limit)
        if member.fields["method"] == 12:
            return bz2.BZ2Decompressor().decompress(raw, limit)
    except (zlib.error, OSError):
        pass
    return None


def _deflate(data: bytes, rng: random.Random) -> bytes:
    stream = zlib.compressobj(rng.choice((0, 1, 6, 9)), zlib.DEFLATED, -rng.choice((9, 15)))
    chunk = rng.choice((len(data) + 1, len(data) + 1, 64, 1024))
    out = b""
    for start in range(0, len(data), chunk):
        out += stream.compress(data[start : start + chunk])
        if chunk <= len(data):
            out += stream.flush(rng.choice((zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH)))
    return out + stream.flush()


def _put(archive: Archive, member: Record, data: bytes, method: int, rng: random.Random) -> None:
    """Give a member other data, and right values in all that says something of it."""
    raw = data
    if method == 8:
        raw = _deflate(data, rng)
    elif method == 12:
        raw = bz2.compress(data)
    member.rest["raw"] = raw
    _describe(archive, member, zlib.crc32(data), len(raw), len(data), method)


def _describe(
    archive: Archive, member: Record, crc: int, csize: int, usize: int, method: int
) -> None:
    """Write values into entry, local header, zip64 block and descriptor, as they are used."""
    for record in _both(archive, member):
        record.fields["method"] = method
        hidden = record is member and member.fields["flags"] & 8
        values = (0, 0, 0) if hidden else (crc, csize, usize)
        extra = record.rest["extra"]
        if record.fields["usize"] == 0xFFFFFFFF and extra[:2] == b"\1\0" and not hidden:
            payload = struct.pack("<QQ", usize, csize)
            if record.fields["csize"] != 0xFFFFFFFF:
                payload = payload[:8]
                record.fields["csize"] = csize
            record.rest["extra"] = extra[:4] + payload + extra[4 + len(payload) :]
            record.fields["crc"] = crc
        else:
            record.fields.update(zip(("crc", "csize", "usize"), values, strict=True))
    if member.fields["flags"] & 8:
        gap = member.rest["gap"]
        signature = b"PK\7\x08" if gap[:4] == b"PK\7\x08" or not gap else b""
        layout = "<LQQ" if len(gap) in (20, 24) else "<LLL"
        values = struct.pack(layout, crc, csize, usize)
        old_size = len(signature) + len(values)
        member.rest["gap"] = signature + values + gap[old_size:]


def _both(archive: Archive, member: Record) -> list[Record]:
    return [member, *(entry for entry in archive.entries if entry.rest["member"] is member)]


# -- the mutations ---------------------------------------------------------


def _fields(archive: Archive, rng: random.Random) -> None:
    """One field of one record, anything."""
    records = [*archive.members, *archive.entries, archive.end, archive.end]
    records += [record for record in (archive.end64, archive.locator) if record is not None]
    record = rng.choice(records)
    name = rng.choice(record.names)
    old = record.fields[name]
    if name == "signature":
        record.fields[name] = mutate_bytes(old, rng)[:4].ljust(4, b"\0")
    elif name == "method":
        record.fields[name] = rng.choice(METHODS)
    elif name == "flags":
        record.fields[name] = rng.choice((old ^ rng.choice(FLAGS), rng.choice(FLAGS)))
    else:
        record.fields[name] = interesting(rng, old, 64 if record is archive.end64 else 32)
    if name == "offset" and "member" in record.rest:
        record.rest["moved"] = True


def _agreed(archive: Archive, rng: random.Random) -> None:
    """One field of a member in both of its headers, the same."""
    if archive.members:
        member = rng.choice(archive.members)
        name = rng.choice(("method", "flags", "flags", "crc", "csize", "usize", "version", "date"))
        old = member.fields[name]
        choices = {"method": METHODS, "flags": FLAGS}.get(name)
        value = rng.choice(choices) if choices else interesting(rng, old, 32)
        if name == "flags" and rng.random() < 0.5:
            value ^= old
        for record in _both(archive, member):
            record.fields[name] = value


def _names(archive: Archive, rng: random.Random) -> None:
    """Another name, in both headers or in one."""
    if archive.members:
        member = rng.choice(archive.members)
        names = [record.rest["name"] for record in archive.entries]
        name = (
            rng.choice(NAMES)
            if rng.random() < 0.7
            else mutate_bytes(rng.choice(names or [b"x"]), rng)
        )
        records = _both(archive, member)
        for record in records if rng.random() < 0.8 else [rng.choice(records)]:
            record.rest["name"] = name
            if rng.random() < 0.3:
                record.fields["flags"] ^= 0x800


def _extra_block(record: Record, rng: random.Random) -> bytes:
    f = record.fields
    kind = rng.randrange(9)
    if kind == 0:
        values = [f["usize"], f["csize"], f.get("offset", 0), 0][: rng.randrange(5)]
        payload = struct.pack(f"<{len(values)}Q", *(value & 0xFFFFFFFFFFFF for value in values))
        return struct.pack("<HH", 1, len(payload)) + payload
    if kind == 1:
        payload = bytes([rng.choice((1, 1, 0))]) + struct.pack(
            "<L", zlib.crc32(record.rest["name"])
        )
        payload += rng.choice((b"other.npy", "ö.npy".encode(), b"\xff", b"", b"a\0b"))
        return struct.pack("<HH", 0x7075, len(payload)) + payload
    if kind == 2:
        pairs = rng.choice(
            (
                (b"unit", b"m"),
                (b"npzkit.dtype", b"bfloat16"),
                (b"npzkit.dtype", b"float8_e5m2"),
                (b"a", b"[1,2"),
                (b"", b""),
            )
        )
        payload = b"KeyValuePairs" + bytes([rng.choice((1, 1, 1, 0, 2))])
        payload += b"".join(struct.pack("<H", len(text)) + text for text in pairs)
        return struct.pack("<HH", 0x564B, len(payload)) + payload
    if kind == 3:
        size = rng.choice((0, 2, 6, 60, 500))
        return struct.pack("<HH", 0xD935, size) + bytes(size)
    if kind == 4:
        return bytes(rng.randrange(1, 4))
    if kind == 5:
        return struct.pack(
            "<HH", rng.choice((1, 0x7075, 0x564B, 0x5455)), rng.choice((0, 1, 8, 100, 0xFFFF))
        )
    return struct.pack("<HH", rng.randrange(1 << 16), 4) + rng.randbytes(4)


def _extras(archive: Archive, rng: random.Random) -> None:
    """Extra fields: blocks more, blocks less, bytes wrong."""
    records = [*archive.members, *archive.entries]
    if not records:
        return
    record = rng.choice(records)
    extra = record.rest["extra"]
    kind = rng.randrange(6)
    if kind < 3:
        block = _extra_block(record, rng)
        extra = rng.choice((extra + block, block + extra, block))
    elif kind == 3:
        extra = mutate_bytes(extra, rng)
    elif kind == 4:
        extra = b""
    else:
        record.rest["extra_size"] = interesting(rng, len(extra), 16)
    touched = [record]
    if rng.random() < 0.5:
        touched = _both(archive, record.rest.get("member") or record)
    for other in touched:
        other.rest["extra"] = extra[:0xFFFF]


def _sentinels(archive: Archive, rng: random.Random) -> None:
    """Sizes that move to a zip64 block, as large members have them."""
    records = [*archive.members, *archive.entries]
    if not records:
        return
    record = rng.choice(records)
    values = []
    for name in ("usize", "csize", "offset"):
        if name in record.fields and (rng.random() < 0.6 or (record in archive.members)):
            values.append(record.fields[name])
            record.fields[name] = 0xFFFFFFFF
            if name == "offset":
                member = record.rest["member"]
                if member is not None and member in archive.members:
                    before = archive.members[: archive.members.index(member)]
                    values[-1] = len(archive.prefix) + sum(
                        30 + len(m.rest["name"] + m.rest["extra"] + m.rest["raw"] + m.rest["gap"])
                        for m in before
                    )
                record.rest["moved"] = True
    if rng.random() < 0.2:
        values.append(rng.choice((0, 1, 2**64 - 1)))
    if rng.random() < 0.15 and values:
        at = rng.randrange(len(values))
        values[at] = interesting(rng, values[at], 64)
    payload = struct.pack(f"<{len(values)}Q", *values)
    record.rest["extra"] = struct.pack("<HH", 1, len(payload)) + payload + record.rest["extra"]


def _descriptors(archive: Archive, rng: random.Random) -> None:
    """A data descriptor behind a member, right or wrong, or none where the flag says so."""
    if not archive.members:
        return
    member = rng.choice(archive.members)
    records = _both(archive, member)
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
    member.rest["gap"] = rng.choice((descriptor, descriptor, b"")) + member.rest["gap"]


def _lists(archive: Archive, rng: random.Random) -> None:
    """Members and entries doubled, dropped, swapped, or led to another's place."""
    kind = rng.randrange(8)
    lists = rng.choice((archive.members, archive.entries))
    if not lists:
        return
    at, other = rng.randrange(len(lists)), rng.randrange(len(lists))
    if kind == 0:
        del lists[at]
    elif kind == 1:
        lists[at], lists[other] = lists[other], lists[at]
    elif kind == 2 and len(lists) < 200:
        lists.insert(other, lists[at].copy())
    elif kind == 3 and len(archive.members) < 200:
        # A member whole, with an entry of its own.
        member = rng.choice(archive.members or [None])
        if member is not None:
            twin = member.copy()
            archive.members.append(twin)
            for entry in _both(archive, member)[1:]:
                entry = entry.copy()
                entry.rest["member"] = twin
                archive.entries.append(entry)
                if rng.random() < 0.5:
                    entry.rest["name"] = twin.rest["name"] = rng.choice(NAMES)
    elif kind == 4 and archive.entries and archive.members:
        rng.choice(archive.entries).rest["member"] = rng.choice(archive.members)
    elif kind == 5 and archive.entries:
        rng.choice(archive.entries).rest["shift"] = rng.choice((-30, -1, 1, 4, 30))
    elif kind == 6 and archive.members:
        member = rng.choice(archive.members)
        member.rest["gap"] += rng.randbytes(rng.randrange(1, 40))
    elif archive.members and archive.entries:
        # A member in another's extra field.
        member = rng.choice(archive.members)
        member.rest["extra_size"] = len(member.rest["extra"]) + rng.choice((1, 30, 100, 300))


def _content(archive: Archive, rng: random.Random, others: tuple[bytes, ...]) -> None:
    """A changed array in a member, compressed anew."""
    if archive.members:
        member = rng.choice(archive.members)
        data = _inflated(member)
        if data is not None:
            data = mutate_npy(data, rng)
            _put(archive, member, data, rng.choice((0, 0, 8, 8, 8, 12)), rng)
            _align(archive, member, rng)


def _align(archive: Archive, member: Record, rng: random.Random) -> None:
    """Sometimes move the data a few bytes, by a padding block."""
    if rng.random() < 0.2:
        size = rng.randrange(2, 70)
        member.rest["extra"] += struct.pack("<HH", 0xD935, size) + bytes(size)


def _stream(archive: Archive, rng: random.Random, others: tuple[bytes, ...]) -> None:
    """Compressed bytes changed; where they still inflate, sizes and CRC may follow."""
    if not archive.members:
        return
    member = rng.choice(archive.members)
    kind = rng.randrange(4)
    raw = member.rest["raw"]
    if kind == 0:
        raw += rng.randbytes(rng.randrange(1, 5))
    elif kind == 1:
        raw = raw[: -rng.randrange(1, 5)]
    else:
        raw = mutate_bytes(raw, rng)
    member.rest["raw"] = raw
    data = _inflated(member)
    if data is not None and rng.random() < 0.8:
        method = member.fields["method"]
        _describe(archive, member, zlib.crc32(data), len(raw), len(data), method)


def _gaps(archive: Archive, rng: random.Random, others: tuple[bytes, ...]) -> None:
    """What no entry lists: seek indexes, old directories, descriptors."""
    gaps = [member for member in archive.members if member.rest["gap"]]
    if gaps:
        member = rng.choice(gaps)
        gap = bytearray(member.rest["gap"])
        if rng.random() < 0.7 and len(gap) > 40:
            size = rng.choice((4, 8))
            at = len(gap) - size * rng.randrange(1, len(gap) // size)
            old = int.from_bytes(gap[at : at + size], "little")
            gap[at : at + size] = interesting(rng, old, 8 * size).to_bytes(size, "little")
            at = gap.find(b"PK\3\4")
            if rng.random() < 0.7 and at >= 0 and at + 30 < len(gap):
                # An index is believed only where its CRC is right.
                name_size, extra_size = struct.unpack_from("<HH", gap, at + 26)
                body = at + 30 + name_size + extra_size
                struct.pack_into("<L", gap, at + 14, zlib.crc32(gap[body:]))
        else:
            gap = bytearray(mutate_bytes(bytes(gap), rng))
        member.rest["gap"] = bytes(gap)


def _ends(archive: Archive, rng: random.Random, others: tuple[bytes, ...]) -> None:
    """End records: zip64 ones more or less, comments, what stands around them."""
    kind = rng.randrange(8)
    if kind == 0:
        archive.end64 = Record(_END64_NAMES, (b"PK\6\6", 44, 45, 45, 0, 0, 0, 0, 0, 0))
        archive.locator = Record(_LOCATOR_NAMES, (b"PK\6\7", 0, 0, 1))
    elif kind == 1:
        archive.end64 = None
    elif kind == 2:
        archive.locator = None
    elif kind == 3:
        archive.end.rest["comment"] = rng.choice(
            (b"", b"{}", b'{"a": 1}', b'{"a": ', b"{" * 50, b'{"a": NaN}', b"\xff\xfe{", b'{"a":' * 40, b"[1]",
             struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0), b"PK\5\6" * 8)
        )  # fmt: skip
    elif kind == 4:
        archive.end.rest["comment"] = mutate_bytes(archive.end.rest["comment"], rng)
    elif kind == 5:
        archive.end.rest["comment_size"] = interesting(rng, len(archive.end.rest["comment"]), 16)
    elif kind == 6:
        archive.before_end = rng.choice(
            (b"PK\5\6", rng.randbytes(8), bytes(76), b"PK\6\7" + bytes(16))
        )
    else:
        archive.prefix = rng.choice(
            (rng.randbytes(3) + archive.prefix, b"PK\3\4" + bytes(26), archive.prefix[1:])
        )


def _tails(archive: Archive, rng: random.Random, others: tuple[bytes, ...]) -> None:
    """What follows the end: nothing, junk, the beginning of an append, another archive."""
    kind = rng.randrange(6)
    if kind == 0:
        archive.tail = rng.randbytes(rng.randrange(1, 60))
    elif kind == 1:
        archive.tail = bytes(rng.choice((1, 4, 22, 100)))
    elif kind == 2 and others:
        archive.tail = rng.choice(others)[: rng.choice((4, 30, 100, 1000, 10_000))]
    elif kind == 3 and archive.members:
        member = rng.choice(archive.members)
        archive.tail = b"PK\3\4" + rng.randbytes(26) + member.rest["name"] + member.rest["raw"]
    elif kind == 4:
        archive.tail = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 1, 1, 46, 0, rng.choice((0, 5)))
    elif others:
        archive.prefix = rng.choice(others) + archive.prefix


_PLAIN = (_fields, _agreed, _names, _extras, _sentinels, _descriptors, _lists)
_DEEP = (_content, _content, _content, _stream, _gaps, _ends, _tails)


def mutate_zip(data: bytes, rng: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Change an archive in one to four places, and mostly make the rest fit."""
    if rng.random() < 0.12:
        return mutate_bytes(data, rng, others)
    archive = Archive.parse(data)
    if archive is None:
        return mutate_bytes(data, rng, others)
    try:
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
            if rng.random() < 0.5:
                rng.choice(_PLAIN)(archive, rng)
            else:
                rng.choice(_DEEP)(archive, rng, others)
        fixed = archive.build(rng, fix=rng.random() < 0.85)
    except struct.error:
        return mutate_bytes(data, rng, others)
    return mutate_bytes(fixed, rng, others) if rng.random() < 0.08 else fixed
