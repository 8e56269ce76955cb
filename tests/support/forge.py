"""Zip archives put together field by field, for tests that need wrong ones.

Independent of npzkit: struct and zlib only, so that no bug of the code under
test can hide in what it is tested with.
"""

from __future__ import annotations

import io
import itertools
import json
import struct
import zlib

import numpy as np


def npy(array: np.ndarray) -> bytes:
    """Return an array's NPY bytes, by numpy."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asanyarray(array))
    return stream.getvalue()


def header(text: str, version: tuple[int, int] = (1, 0), encoding: str = "latin1") -> bytes:
    """Return an NPY header with any text in it, padded to 64 bytes."""
    raw = text.encode(encoding)
    size = 10 if version == (1, 0) else 12
    raw += b" " * (-(size + len(raw) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if size == 10 else "<I", len(raw)) + raw


class Member:
    """One member, each field of both headers open to forgery."""

    def __init__(
        self,
        name: str | bytes,
        data: bytes,
        *,
        method: int = 0,
        raw: bytes | None = None,
        extra: bytes = b"",
        local_extra: bytes | None = None,
        descriptor: str | None = None,
        comment: bytes = b"",
        local: dict | None = None,
        central: dict | None = None,
    ) -> None:
        self.name = name.encode() if isinstance(name, str) else name
        self.data = data
        self.raw = raw if raw is not None else (deflate(data) if method == 8 else data)
        self.extra = extra
        self.local_extra = extra if local_extra is None else local_extra
        self.descriptor = descriptor
        self.comment = comment
        fields = {
            "version": 20,
            "flags": 0,
            "method": method,
            "crc": zlib.crc32(data),
            "csize": len(self.raw),
            "usize": len(data),
            "disk": 0,
            "offset": None,
        }
        if any(byte > 127 for byte in self.name):
            fields["flags"] |= 0x800
        if descriptor is not None:
            fields["flags"] |= 8
        self.central = {**fields, **(central or {})}
        hidden = {"crc": 0, "csize": 0, "usize": 0} if descriptor is not None else {}
        self.local = {**fields, **hidden, **(local or {})}

    def local_bytes(self) -> bytes:
        f = self.local
        name = f.get("name", self.name)
        head = struct.pack(
            "<4sHHHHHLLLHH",
            f.get("signature", b"PK\x03\x04"),
            f["version"],
            f["flags"],
            f["method"],
            0,
            33,
            f["crc"],
            f["csize"],
            f["usize"],
            len(name),
            len(self.local_extra),
        )
        return head + name + self.local_extra + self.raw + self.descriptor_bytes()

    def descriptor_bytes(self) -> bytes:
        if self.descriptor is None:
            return b""
        layout = "<LQQ" if "64" in self.descriptor else "<LLL"
        values = zlib.crc32(self.data), len(self.raw), len(self.data)
        signature = b"PK\x07\x08" if "signed" in self.descriptor else b""
        return signature + struct.pack(layout, *values)

    def central_bytes(self, offset: int) -> bytes:
        f = self.central
        offset = offset if f["offset"] is None else f["offset"]
        head = struct.pack(
            "<4sHHHHHHLLLHHHHHLL",
            f.get("signature", b"PK\x01\x02"),
            0x314,
            f["version"],
            f["flags"],
            f["method"],
            0,
            33,
            f["crc"],
            f["csize"],
            f["usize"],
            f.get("nlen", len(self.name)),
            f.get("xlen", len(self.extra)),
            f.get("clen", len(self.comment)),
            f["disk"],
            0,
            f.get("attributes", 0o600 << 16),
            offset,
        )
        return head + self.name + self.extra + self.comment


_LEVEL = 1
"""Of zlib: the tests wait for it, and the level changes nothing that they show."""


def deflate(data: bytes) -> bytes:
    """Compress as zip does: raw deflate."""
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    return stream.compress(data) + stream.flush()


def chunked(data: bytes, chunk_size: int) -> tuple[bytes, list[int]]:
    """Compress in chunks that stand alone; also return where each but the first begins."""
    out, offsets = bytearray(), []
    # A compressor with little memory is made in a tenth of the time.
    sizes = (-9, 1) if chunk_size <= 512 else (-15, zlib.DEF_MEM_LEVEL)
    for start in range(0, len(data), chunk_size):
        if start:
            offsets.append(len(out))
        stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, *sizes)
        out += stream.compress(data[start : start + chunk_size])
        if start + chunk_size < len(data):
            out += stream.flush(zlib.Z_SYNC_FLUSH) + b"\0\0\0\xff\xff"
        else:
            out += stream.flush()
    return bytes(out), offsets


def piece(data: bytes) -> bytes:
    """Return a piece of npzkit's record, at most 65,000 bytes of data."""
    fields = 0x314, 20, 0, 0, 0, 33, 0, 0, 0, 7, len(data) + 4, 0, 0, 0, 0, 0
    head = struct.pack("<4sHHHHHHLLLHHHHHLL", b"PK\x01\x02", *fields)
    return head + b".npzkit" + struct.pack("<HH", 0x5A4E, len(data)) + data


def pieces(data: bytes) -> bytes:
    """Return as many pieces as some bytes need that begin one."""
    return b"".join(piece(data[start : start + 65_000]) for start in range(0, len(data), 65_000))


def with_chunks(
    name: str,
    data: bytes,
    chunk_size: int,
    *,
    sizes: list[int] | None = None,
    crc32s: list[int] | None = None,
    raw: bytes | None = None,
    claimed: int | None = None,
    **forged,
) -> bytes:
    """Return an archive of one deflated member with a list of its chunks, open to forgery."""
    compressed, found = chunked(data, chunk_size)
    raw = compressed if raw is None else raw
    if sizes is None:
        sizes = [b - a for a, b in itertools.pairwise([0, *found, len(compressed)])]
    if crc32s is None:
        crc32s = [zlib.crc32(data[at : at + chunk_size]) for at in range(0, len(data), chunk_size)]
    listed = struct.pack(f"<{len(crc32s)}L{len(sizes)}L", *crc32s, *sizes)
    listed += struct.pack("<L", zlib.crc32(listed))
    member = Member(name, data, method=8, raw=raw, **forged)
    entry, place = member.central_bytes(0), len(member.local_bytes())
    index = struct.pack(
        "<LHQL", 1 << 31, len(member.local_extra), place + 57, claimed or chunk_size
    )
    index_begin = place + len(pieces(listed))
    offset = index_begin + 57 + len(index) + 68
    masked = entry[:16] + bytes(4) + entry[20:]
    footer = struct.pack(
        "<3Q8L2H", offset, len(entry), 0, offset - place, offset - index_begin - 57, len(index),
        zlib.crc32(index), 1, zlib.crc32(masked), 0, 0, 0, 1,
    )  # fmt: skip
    footer += struct.pack("<L4s", zlib.crc32(footer), b"NPZX")
    return archive(member, gap=pieces(listed) + piece(index + footer))


def archive(
    *members: Member,
    prefix: bytes = b"",
    gap: bytes = b"",
    comment: bytes = b"",
    base: int = 0,
    order: list[int] | None = None,
    zip64: dict | bool = False,
    **end: int,
) -> bytes:
    """Return the archive of these members; `end` overrides the end record.

    `order` lists them otherwise than they lie: by their numbers.
    """
    out, entries = bytearray(prefix), []
    for member in members:
        offset = len(out) - base
        out += member.local_bytes() + gap
        entries.append(member.central_bytes(offset))
    directory = b"".join(entries if order is None else [entries[number] for number in order])
    start = len(out) - base
    values = {
        "disk": 0,
        "directory_disk": 0,
        "count": len(members),
        "total": len(members),
        "size": len(directory),
        "offset": start,
    }
    out += directory
    if zip64 is not False:
        large = {
            **values,
            "signature": b"PK\x06\x06",
            "record_size": 44,
            "where": len(out) - base,
            "locator": True,
            "disks": 1,
            **(zip64 if isinstance(zip64, dict) else {}),
        }
        out += struct.pack(
            "<4sQHHLLQQQQ",
            large["signature"],
            large["record_size"],
            45,
            45,
            large["disk"],
            large["directory_disk"],
            large["count"],
            large["total"],
            large["size"],
            large["offset"],
        )
        if large["locator"]:
            out += struct.pack("<4sLQL", b"PK\x06\x07", 0, large["where"], large["disks"])
        values.update(count=0xFFFF, total=0xFFFF, size=0xFFFFFFFF, offset=0xFFFFFFFF)
    values.update(end)
    out += struct.pack(
        "<4sHHHHLLH",
        b"PK\x05\x06",
        values["disk"],
        values["directory_disk"],
        values["count"],
        values["total"],
        values["size"],
        values["offset"],
        values.get("comment_size", len(comment)),
    )
    return bytes(out + comment)


def with_metadata(text: bytes) -> bytes:
    """Return an archive of an array ``x`` with metadata that the zip comment cannot hold."""
    first = Member("x.npy", npy(np.arange(3)))
    place = len(first.local_bytes()) + 57, len(text), zlib.crc32(text)
    comment = json.dumps({"npzkit.metadata": place}, separators=(",", ":")).encode()
    return archive(first, gap=pieces(text), comment=comment)
