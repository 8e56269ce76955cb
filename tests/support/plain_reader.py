"""A reader of npzkit's archives, written from the pages on the format (`npzkit/guide`) alone.

It imports neither npzkit nor NumPy. So it shows that the page says all that a program in
another language needs. Headings in comments are those of the page.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

try:
    from compression import zstd
except ImportError:
    from backports import zstd

END = b"PK\5\6"
TAIL_SIZE = 65_557
NAME = b".npzkit"
PIECE_SIZE = 65_000
HEAD_SIZE = 57
FOOTER_SIZE = 68
INTENT_SIZE = 85
MARK_SIZE = 8
FAR_SIZE = 32
FAR_COMMENT = b"npzkit: an append is under way, or was not finished"


class RefusedError(Exception):
    """The file is damaged."""


class AmbiguousError(RefusedError):
    """Other programs would read something else."""


class NewerError(RefusedError):
    """A newer program wrote it."""


class End(NamedTuple):
    count: int
    size: int
    offset: int
    records_offset: int
    record_offset: int
    end_offset: int


class Entry(NamedTuple):
    name: bytes
    flags: int
    method: int
    crc32: int
    compressed_size: int
    size: int
    disk: int
    offset: int
    extra: bytes
    limit: int


class Footer(NamedTuple):
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


class Far(NamedTuple):
    """What a far copy says of the end to whose directory it belongs."""

    directory_offset: int
    end_offset: int
    end_crc32: int


class Row(NamedTuple):
    """What the array index has of a member; `place` is 0 if it has no list of chunks."""

    head: bytes
    extra_size: int
    place: int
    chunk_size: int


class Chunk(NamedTuple):
    offset: int
    compressed_size: int
    size: int
    crc32: int


class Array(NamedTuple):
    descr: Any
    fortran_order: bool
    shape: tuple[int, ...]
    data: bytes
    attrs: dict[str, Any]


def check(is_right: object, what: str) -> None:
    if not is_right:
        raise RefusedError(what)


# -- Attributes and metadata ---------------------------------------------------


def parse_json(text: str | bytes) -> Any:
    floats = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

    def restored(found: dict[str, Any]) -> Any:
        value = found.get("npzkit.float") if len(found) == 1 else None
        return floats.get(value, found) if isinstance(value, str) else found

    return json.loads(text, object_hook=restored)


def blocks(extra: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 4 <= len(extra):
        identifier, size = struct.unpack_from("<HH", extra, place)
        check(place + 4 + size <= len(extra), "a block is longer than its extra field")
        yield identifier, extra[place + 4 : place + 4 + size]
        place += 4 + size


def block(extra: bytes, identifier: int) -> bytes | None:
    return dict(reversed([*blocks(extra)])).get(identifier)


def pairs_of(extra: bytes) -> dict[str, str]:
    data = block(extra, 0x564B)
    if data is None:
        return {}
    check(data[:13] == b"KeyValuePairs" and len(data) > 13, "no pairs")
    texts, place = [], 14
    for _ in range(2 * data[13]):
        check(place + 2 <= len(data), "pairs are truncated")
        (size,) = struct.unpack_from("<H", data, place)
        check(place + 2 + size <= len(data), "pairs are truncated")
        texts.append(data[place + 2 : place + 2 + size].decode())
        place += 2 + size
    return dict(zip(texts[::2], texts[1::2], strict=True))


def attributes_of(extra: bytes) -> dict[str, Any]:
    found = {}
    for name, text in pairs_of(extra).items():
        try:
            found[name] = parse_json(text)
        except ValueError:
            found[name] = text
    return found


# -- The record: its form and its footer ---------------------------------------


def piece(data: bytes) -> bytes:
    """Return a piece with some data."""
    fields = 0x314, 20, 0, 0, 0, 0x21, 0, 0, 0, len(NAME), len(data) + 4, 0, 0, 0, 0, 0
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", *fields)
    return entry + NAME + struct.pack("<2H", 0x5A4E, len(data)) + data


def from_record(data: bytes, offset: int, size: int, limit: int) -> bytes:
    """Return bytes that begin at an offset in a record; each piece they fill has a head."""
    stop = offset + size + HEAD_SIZE * (max(size - 1, 0) // PIECE_SIZE)
    check(stop <= limit, "a record is not that long")
    places = range(offset, stop, PIECE_SIZE + HEAD_SIZE)
    return b"".join(data[place : min(place + PIECE_SIZE, stop)] for place in places)


def parse_footer(data: bytes, place: int, *, is_last: bool = False) -> Footer | Far | None:
    """Return the footer, or what a far copy says, before a directory at a place.

    With `is_last`, the directory's end is that of the file.
    """
    magic = data[max(place - 4, 0) : place]
    is_far = magic == b"NPZF"
    size = FAR_SIZE if is_far else FOOTER_SIZE
    if place < size or not (is_far or magic == b"NPZX" or (is_last and magic == bytes(4))):
        return None
    data = data[place - size : place]
    version, crc = struct.unpack_from("<HL", data, size - 10)
    if crc != zlib.crc32(data[:-8]):
        return None
    if version > 1:
        raise NewerError("footer")
    kind, layout = (Far, "<2QL") if is_far else (Footer, "<3Q8L")
    footer = kind._make(struct.unpack_from(layout, data))
    return footer if footer.directory_offset == place else None


# -- Reading: a file that ends with its end ------------------------------------


def read_end(data: bytes, place: int) -> End:
    """Return the end record at a place, by the second step."""
    check(place + 22 <= len(data), "the end record is truncated")
    disk, other_disk, count, all_count, size, offset, comment_size = struct.unpack_from(
        "<4H2LH", data, place + 4
    )
    found = disk, other_disk, count, all_count, size, offset
    end_offset, begin = place + 22 + comment_size, place
    check(end_offset <= len(data), "the comment is truncated")
    if place >= 76 and data[place - 20 : place - 16] == b"PK\6\7":
        begin = place - 76
        locator_disk, record, disks = struct.unpack_from("<LQL", data, place - 16)
        check(data[begin : begin + 4] == b"PK\6\6", "no zip64 end record")
        found64 = struct.unpack_from("<2L4Q", data, begin + 16)
        (record_size,) = struct.unpack_from("<Q", data, begin + 4)
        check((record_size, locator_disk, record) == (44, 0, begin) and disks <= 1, "zip64")
        ones = (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2
        agree = (a in (b, one) for a, b, one in zip(found, found64, ones, strict=True))
        check(all(agree), "the end record and the zip64 end record differ")
        found = found64
    disk, other_disk, count, all_count, size, offset = found
    check((disk, other_disk) == (0, 0) and count == all_count, "disks")
    check(offset + size == begin, "the directory is not before its end")
    is_empty = count == 0 and (offset == 0 or data[:4] == END)
    check(data[:4] == b"PK\3\4" or is_empty, "no local header at the start")
    return End(count, size, offset, begin, place, end_offset)


def comment_of(data: bytes, end: End) -> bytes:
    return data[end.record_offset + 22 : end.end_offset]


def check_alone(data: bytes, end: End) -> None:
    """Check the third step."""
    inner = data.find(END, end.record_offset + 1, end.end_offset + 3)
    if 0 <= inner <= len(data) - 22:
        raise AmbiguousError("an end record in another one")


def ends_at(data: bytes, stop: int) -> list[End]:
    """Return the ends whose comment ends at a place, the first one first."""
    place, ends = data.find(END, max(stop - TAIL_SIZE, 0), stop), []
    while place >= 0:
        with contextlib.suppress(RefusedError):
            end = read_end(data, place)
            if end.end_offset == stop:
                ends.append(end)
        place = data.find(END, place + 1, stop)
    return ends


def find_end(data: bytes) -> End | None:
    """Return the end with which the file ends, or None: then there may be an older one."""
    ends = ends_at(data, len(data))
    if not ends:
        return None
    end = ends[-1] if len(ends) > 1 and appends_behind(data, *ends[-2:]) else ends[0]
    check_alone(data, end)
    return end


def appends_behind(data: bytes, older: End, end: End) -> bool:
    """Whether an end is that of an append behind another one, or of its far copy."""
    footer = parse_footer(data, end.offset)
    if isinstance(footer, Far):
        return footer.end_offset > older.record_offset
    if footer is None or footer.intent_offset <= older.record_offset:
        return False
    intent = data[footer.intent_offset :][:INTENT_SIZE]
    crc = struct.pack("<L", zlib.crc32(intent[HEAD_SIZE:73]))
    return intent[46:53] == NAME and intent[73:77] == crc


def read_directory(data: bytes, end: End, footer: Footer | None = None) -> list[Entry]:
    """Read the entries, by the fifth step."""
    place, found, masked = end.offset, [], bytearray(data[end.offset : end.records_offset])
    for _ in range(end.count):
        check(place + 46 <= end.records_offset, "entries are missing")
        fields = struct.unpack_from("<4s6H3L5H2L", data, place)
        check(fields[0] == b"PK\1\2", "no entry")
        flags, method, crc, compressed_size, size = (*fields[3:5], *fields[7:10])
        name_size, extra_size, comment_size, disk = fields[10:14]
        masked[place - end.offset + 16 : place - end.offset + 20] = bytes(4)
        name_end = place + 46 + name_size
        check(name_end + extra_size + comment_size <= end.records_offset, "entries are missing")
        name, extra = data[place + 46 : name_end], data[name_end : name_end + extra_size]
        values = with_zip64(extra, (size, compressed_size, fields[16]))
        found.append(
            Entry(name, flags, method, crc, values[1], values[0], disk, values[2], extra, 0)
        )
        place = name_end + extra_size + comment_size
    check(place == end.records_offset, "more entries than are counted")
    if footer is not None:
        sizes = footer.directory_size, footer.entry_count
        check(sizes == (end.size, end.count), "the directory has another size")
        check(footer.directory_crc32 == zlib.crc32(masked), "the directory is damaged")
    return with_limits(found, end.offset)


def with_zip64(extra: bytes, values: tuple[int, ...]) -> tuple[int, ...]:
    payload = block(extra, 1)
    if payload is None:
        return values
    count = values.count(0xFFFFFFFF)
    check(len(payload) >= 8 * count, "zip64 values are missing")
    large = iter(struct.unpack_from(f"<{count}Q", payload))
    return tuple(next(large) if value == 0xFFFFFFFF else value for value in values)


def with_limits(entries: list[Entry], directory_offset: int) -> list[Entry]:
    places = sorted(entry.offset for entry in entries)
    limits = dict(zip(places, [*places, directory_offset][1:], strict=True))
    check(len(limits) == len(entries), "members overlap")
    found = [entry._replace(limit=limits[entry.offset]) for entry in entries]
    for entry in found:
        least = 30 + len(entry.name) + entry.compressed_size
        check(entry.offset + least <= entry.limit, "members overlap")
    return found


# -- Reading: an older commit --------------------------------------------------


def behind(data: bytes, end: End) -> str:
    """Say what the bytes behind an end are."""
    place = end.end_offset
    if place == len(data):
        return "none"
    zeros = members_begin(place) - INTENT_SIZE - place
    follows = struct.pack("<LQL", 1, place, zlib.crc32(data[end.records_offset : place]))
    follows += struct.pack("<L", zlib.crc32(follows))
    expected = bytes(zeros) + piece(follows + bytes(MARK_SIZE))
    found = data[place : place + len(expected)]
    before = expected[:-MARK_SIZE]
    if all(byte in (0, known) for byte, known in zip(found, before, strict=False)):
        if found == expected:
            return "begun"
        is_lost, mark = not any(found[: len(before)]), found[len(before) :]
        if any(mark) and not (is_lost and mark[-1]):
            return "complete" if found.startswith(before) else "damaged"
        return "zeros" if is_lost else "unfinished"
    intent = found[zeros:]
    if intent[46:53] != NAME:
        return "foreign"
    if len(intent) >= 77:
        version, crc = struct.unpack_from("<L12xL", intent, HEAD_SIZE)
        if version > 1 and crc == zlib.crc32(intent[HEAD_SIZE:73]):
            raise NewerError("intent")
    return "damaged"


def members_begin(place: int) -> int:
    """Return where the intent of an append behind a place ends."""
    room = -place % 512
    return place + (room if room < INTENT_SIZE else 0) + INTENT_SIZE


def older_end(data: bytes, copy: End, far: Far) -> End | None:
    """Return the end to whose directory a far copy belongs."""
    if far.end_offset > copy.record_offset:
        return None
    for end in ends_at(data, far.end_offset)[::-1]:
        if zlib.crc32(data[end.records_offset : end.end_offset]) == far.end_crc32:
            return end
    return None


def is_pending(data: bytes, end: End) -> bool:
    """Whether an end is that of an append behind which nothing was cut off."""
    is_complete = parse_footer(data, end.offset) is not None
    footer = parse_footer(data, end.offset, is_last=True)
    return footer is not None and not is_complete and end.end_offset < len(data)


def recover(data: bytes) -> End:
    """Return the end of the last commit, by the search through the whole file."""
    check(data[:2] == b"PK", "no archive")
    place, fitting = len(data), None
    while (place := data.rfind(END, 0, place)) >= 0:
        try:
            end = read_end(data, place)
        except RefusedError:
            place += 3
            continue
        place += 3
        footer = parse_footer(data, end.offset)
        if isinstance(footer, Far):
            older = older_end(data, end, footer)
            if older is not None:
                return with_what_follows(data, older)
        elif comment_of(data, end) == FAR_COMMENT or is_pending(data, end):
            continue
        elif footer is not None or behind(data, end) in ("begun", "unfinished"):
            return with_what_follows(data, end)
        elif fitting is None:
            with contextlib.suppress(RefusedError):
                read_directory(data, end)
                fitting = end
    check(fitting is not None, "no commit")
    return with_what_follows(data, fitting)


def with_what_follows(data: bytes, end: End) -> End:
    """Return an end if what follows it may be passed over."""
    check_alone(data, end)
    kind = behind(data, end)
    check(kind not in ("damaged", "complete"), "the last commit is damaged")
    last = data.rfind(END, max(len(data) - TAIL_SIZE, 0), max(len(data) - 18, 0))
    if last >= end.end_offset and kind != "begun":
        begin = others_begin(data, last)
        is_other = begin and begin < members_begin(end.end_offset)
        if kind == "foreign" or (kind == "unfinished" and is_other):
            raise AmbiguousError("another archive follows")
    return end


def others_begin(data: bytes, place: int) -> int | None:
    """Return where the archive begins that others read by an end record at a place."""
    size, offset = struct.unpack_from("<LL", data, place + 12)
    directory = place - size
    if place >= 76 and (data[place - 76 :][:4], data[place - 20 :][:4]) == (b"PK\6\6", b"PK\6\7"):
        size, offset = struct.unpack_from("<QQ", data, place - 36)
        directory = place - 76 - size
    is_read = directory >= 0 and (not size or data[directory : directory + 4] == b"PK\1\2")
    return directory - offset if is_read else None


# -- an archive ----------------------------------------------------------------


class Archive:
    """An archive in memory.

    Attributes
    ----------
    entries : dict of str to Entry
    is_odd : bool
        Whether users are to be told that something is behind the end.
    """

    def __init__(self, data: bytes) -> None:
        self.data, end = data, find_end(data)
        if end is None:
            found = self.read_older()
        else:
            try:
                found = self.read_last(end)
            except RefusedError:
                if comment_of(data, end) != FAR_COMMENT:
                    raise
                found = self.read_older()
        self.is_odd = self.end.end_offset < len(data)
        self.entries = {entry.name.decode(): entry for entry in found}

    def read_last(self, end: End) -> list[Entry]:
        """Read the commit of the end with which the file ends."""
        data = self.data
        footer = parse_footer(data, end.offset, is_last=True)
        if isinstance(footer, Far):
            older = older_end(data, end, footer)
            is_last = older is not None and behind(data, older) != "complete"
            check(is_last, "the last commit is damaged")
            end, footer = older, parse_footer(data, older.offset)
        else:
            is_copy = footer is None and comment_of(data, end) == FAR_COMMENT
            check(not is_copy, "the copy is damaged")
        self.end, self.footer = end, footer
        return read_directory(data, end, footer)

    def read_older(self) -> list[Entry]:
        """Read the last commit of a file that ends otherwise."""
        data = self.data
        self.end = end = recover(data)
        find_end(data[: end.end_offset])
        self.footer = parse_footer(data, end.offset)
        found = read_directory(data, end, self.footer)
        self.check_comment_end(end, self.footer)
        return found

    def check_comment_end(self, end: End, footer: Footer | None) -> None:
        """Check that what follows an end is no part of its comment."""
        data = self.data
        whole = end.end_offset if footer is None else end.record_offset + 22 + footer.comment_size
        if whole != end.end_offset < len(data):
            lacking = data[end.end_offset : whole]
            is_lost = whole <= len(data) and lacking and not lacking.strip(b"\0")
            is_damaged = whole == len(data) or is_lost or behind(data, end) == "foreign"
            check(not is_damaged, "the size of the comment is damaged")

    def text(self) -> bytes:
        """Return the text of the metadata."""
        footer = self.footer
        comment = comment_of(self.data, self.end)
        if footer is not None and len(comment) == footer.comment_size:
            check(zlib.crc32(comment) == footer.comment_crc32, "the comment is damaged")
        place = re.fullmatch(rb'{"npzkit\.metadata":\[(\d{1,19}),(\d{1,10}),(\d{1,10})\]}', comment)
        if place is None:
            return comment
        begin, size, crc = map(int, place.groups())
        found = from_record(self.data, begin, size, self.end.offset)
        check(zlib.crc32(found) == crc, "the metadata are damaged")
        return found

    def metadata(self) -> dict[str, Any]:
        text = self.text()
        try:
            found = parse_json(text) if text[:1] == b"{" else {}
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}

    def member(self, name: str) -> bytes:
        """Return the checked data of a member."""
        data, entry = self.data, self.entries[name]
        check(not entry.flags & 0x2061 and entry.disk == 0, "the member is not supported")
        check(entry.offset + 30 <= entry.limit, "no local header")
        fields = struct.unpack_from("<4s5H3L2H", data, entry.offset)
        flags, method, crc, compressed_size, size = (*fields[2:4], *fields[6:9])
        name_end = entry.offset + 30 + fields[9]
        begin = name_end + fields[10]
        check(fields[0] == b"PK\3\4", "no local header")
        check(data[entry.offset + 30 : name_end] == entry.name, "the names differ")
        extra = data[name_end:begin]
        if 0xFFFFFFFF in (size, compressed_size):
            size, compressed_size = with_zip64(extra, (size, compressed_size))
        check(method == entry.method, "the methods differ")
        has_descriptor = bool(entry.flags & 8)
        for local, right in zip((crc, compressed_size, size), entry[3:6], strict=True):
            is_left_out = has_descriptor and local in (0, 0xFFFFFFFF)
            check(local == right or is_left_out, "the headers differ")
        compared = 0b1001 if entry.name.isascii() else 0x809
        check(not (flags ^ entry.flags) & compared, "the flags differ")
        if not extra.startswith(entry.extra) and "npzkit.changed" not in pairs_of(entry.extra):
            own, other = block(extra, 0x564B), block(entry.extra, 0x564B)
            check(own is None or other is None or own == other, "the attributes differ")
        stop = begin + entry.compressed_size
        check(stop <= entry.limit, "the data is too long")
        found, crc, compressed_size, size = data[begin:stop], *entry[3:6]
        if has_descriptor:
            layouts = ("<3L", "<L2Q") if max(entry[3:6]) <= 0xFFFFFFFF else ("<L2Q",)
            descriptors = [struct.pack(layout, *entry[3:6]) for layout in layouts]
            follows = data[stop : entry.limit].removeprefix(b"PK\7\x08")
            check(follows.startswith(tuple(descriptors)), "the data descriptor differs")
        if entry.method == 0:
            check(size == compressed_size, "the sizes differ")
        else:
            check(entry.method in (8, 93), "the method is not supported")
            most = 1032 if entry.method == 8 else 32_768
            check(size <= most * compressed_size, "the size is too large")
            try:
                found = zlib.decompress(found, -15) if entry.method == 8 else zstd.decompress(found)
            except (zlib.error, zstd.ZstdError) as error:
                raise RefusedError("the stream is damaged") from error
        check(len(found) == size and zlib.crc32(found) == crc, "the data is damaged")
        return found

    def list_of(self, name: str) -> list[Chunk] | None:
        """Return the chunks of a member; None if it has no list that is believed."""
        rows, entry = self.rows(), self.entries[name]
        row = None if rows is None else rows[name]
        is_usual = row is not None and 1 << 10 <= row.chunk_size <= 1 << 26
        if not is_usual or entry.method not in (0, 8, 93) or entry.size <= row.chunk_size:
            return None
        count = -(-entry.size // row.chunk_size)
        list_size = 4 * count if entry.method == 0 else 8 * count + 4
        try:
            data = from_record(self.data, row.place, list_size, self.end.offset)
        except RefusedError:
            return None
        crcs = struct.unpack_from(f"<{count}L", data)
        sizes = [row.chunk_size] * (count - 1) + [entry.size - (count - 1) * row.chunk_size]
        compressed_sizes = sizes
        if entry.method:
            *compressed_sizes, crc = struct.unpack_from(f"<{count + 1}L", data, 4 * count)
            is_right = crc == zlib.crc32(data[:-4]) and all(compressed_sizes)
            if not is_right or sum(compressed_sizes) != entry.compressed_size:
                return None
        combined = 0
        for crc, size in zip(crcs, sizes, strict=True):
            zeros = bytes(size)
            combined = zlib.crc32(zeros, combined) ^ zlib.crc32(zeros) ^ crc
        if combined != entry.crc32:
            return None
        places = itertools.accumulate(compressed_sizes, initial=0)
        return [*map(Chunk, places, compressed_sizes, sizes, crcs)]

    def chunks(self, name: str) -> Iterator[bytes]:
        """Decode each chunk of a member on its own, and check its CRC-32."""
        entry, data, listed = self.entries[name], self.data, self.list_of(name)
        check(listed is not None, "no list of chunks")
        name_size, extra_size = struct.unpack_from("<2H", data, entry.offset + 26)
        begin = entry.offset + 30 + name_size + extra_size
        for chunk in listed:
            is_first, is_last = chunk is listed[0], chunk is listed[-1]
            place = begin + chunk.offset
            found = data[place : place + chunk.compressed_size]
            if entry.method == 8:
                found = zlib.decompress(found + (b"" if is_last else b"\3\0"), -15)
            elif entry.method == 93:
                head = b"" if is_first else b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<L", chunk.size)
                found = zstd.decompress(head + found + (b"" if is_last else b"\1\0\0"))
            right = len(found) == chunk.size and zlib.crc32(found) == chunk.crc32
            check(right, "a chunk is damaged")
            yield found

    def array(self, name: str) -> Array:
        data = self.member(name)
        check(data[:6] == b"\x93NUMPY" and data[6] in (1, 2, 3), "no array")
        layout = "<H" if data[6] == 1 else "<L"
        begin = 8 + struct.calcsize(layout)
        stop = begin + struct.unpack_from(layout, data, 8)[0]
        text = data[begin:stop].decode("utf-8" if data[6] == 3 else "latin-1").strip()
        # Enough of Python's grammar for what NumPy writes.
        for python, other in (("False", "false"), ("True", "true"), ("'", '"'), ("(", "[")):
            text = text.replace(python, other)
        for python, other in ((",)", "]"), (")", "]"), (", }", "}")):
            text = text.replace(python, other)
        fields = json.loads(text)
        shape = tuple(fields["shape"])
        attrs = attributes_of(self.entries[name].extra)
        attrs.pop("npzkit.changed", None)
        return Array(fields["descr"], fields["fortran_order"], shape, data[stop:], attrs)

    def rows(self) -> dict[str, Row] | None:
        """Return what the array index has of each member; None if there is no sound one."""
        footer, place = self.footer, self.end.offset
        if footer is None or footer.entry_count != len(self.entries):
            return None
        try:
            begin = place - footer.index_distance
            check(begin >= 0, "the index is not there")
            index = from_record(self.data, begin, footer.index_size, place)
            check(zlib.crc32(index) == footer.index_crc32, "the index is damaged")
            return parse_rows(index, list(self.entries))
        except (RefusedError, struct.error):
            return None


def parse_rows(index: bytes, names: list[str]) -> dict[str, Row]:
    place, numbers = 0, []
    for _ in names:
        numbers.append(struct.unpack_from("<LH", index, place))
        place += 6
    places = []
    for number, _ in numbers:
        places.append(struct.unpack_from("<QL", index, place) if number >> 31 else (0, 0))
        place += 12 * (number >> 31)
    heads = [b""]
    while place < len(index):
        (size,) = struct.unpack_from("<H", index, place)
        heads.append(index[place + 2 : place + 2 + size])
        place += 2 + size
    numbers = [(number & 0x7FFFFFFF, extra_size) for number, extra_size in numbers]
    is_sound = place == len(index) and all(number < len(heads) for number, _ in numbers)
    check(is_sound, "the index has another size")
    return {
        name: Row(heads[number], extra_size, *found)
        for name, (number, extra_size), found in zip(names, numbers, places, strict=True)
    }


# -- Nested data ---------------------------------------------------------------


def restore(arrays: dict[str, Any], note: Any) -> Any:
    """Return the tree of these arrays; arrays that were something else stay arrays."""
    if isinstance(note, list) and note[:1] == ["single"]:
        return arrays[note[1]]
    if note == ["flat"]:
        return arrays
    return _node(arrays, note, arrays)


def value(note: Any) -> Any:
    """Return a value that has no array; of a class that Python has not, its name."""
    if not isinstance(note, list):
        return note
    kind, *parts = note[0], *map(value, note[1:])
    if kind in ("torch.dtype", "torch.device", "numpy.dtype"):
        return parts[0]
    if kind.startswith("datetime.") and kind != "datetime.timedelta":
        return getattr(datetime, kind[9:]).fromisoformat(parts[0])
    if kind in ("complex", "datetime.timedelta"):
        return complex(*parts) if kind == "complex" else datetime.timedelta(*parts)
    makers = {
        "list": list,
        "set": set,
        "frozenset": frozenset,
        "dict": dict,
        "collections.OrderedDict": dict,
    }
    return makers.get(kind, tuple)(parts)


def _node(below: dict[str, Any], note: Any, arrays: dict[str, Any]) -> Any:
    """Return a node; `below` has the arrays in it by the rest of their keys."""
    kind = note[0] if isinstance(note, list) else None
    if kind == "value":
        return value(note[1])
    if kind == "same":
        return arrays[note[1]]
    if below.keys() == {""}:
        return below[""]
    notes = note if isinstance(note, dict) else {}
    if kind in ("list", "tuple"):
        notes = {str(number): inner for number, inner in enumerate(note[1:])}
    elif kind == "named":
        notes = dict(zip(note[2], note[3:], strict=True))
    elif kind == "ints":
        notes = note[1]
    items: dict[str, dict[str, Any]] = {name: {} for name in notes}
    for key, array in below.items():
        fitting = [name for name in notes if key == name or key.startswith(f"{name}/")]
        name = max(fitting, key=len, default=key.partition("/")[0])
        items.setdefault(name, {})[key[len(name) + 1 :]] = array
    found = {name: _node(inner, notes.get(name), arrays) for name, inner in items.items()}
    if kind == "list":
        return [*found.values()]
    if kind in ("tuple", "named"):
        return tuple(found.values())
    strings = note[2] if kind == "ints" and len(note) > 2 else []
    is_int = re.compile("0|-?[1-9][0-9]*").fullmatch
    return {
        int(name) if kind == "ints" and is_int(name) and name not in strings else name: value
        for name, value in found.items()
    }


# -- Sharded archives, checkpoint stores ---------------------------------------


def without_last(text: bytes, name: str) -> bytes:
    """Return the text of an object without its last item."""
    return text[: text.rindex(b',"' + name.encode() + b'":')] + b"}"


def read_index(archive: Archive) -> dict[str, Any]:
    """Return the arrays of the index of a sharded archive: rows of numbers, and strings."""
    found = archive.metadata()
    check(found.pop("npzkit.shards")["version"] == 1, "another version")
    index: dict[str, Any] = {"metadata": found}
    for name in ("shards", "arrays", "shapes", "parts", "boxes"):
        array = archive.array(name + ".npy")
        numbers = memoryview(array.data).cast(
            {"u1": "B", "u2": "H", "u4": "I", "u8": "Q"}[array.descr[1:]]
        )
        check(array.descr[0] in "<|" and not array.fortran_order, "other numbers")
        count = array.shape[-1]
        rows = [list(numbers[at : at + count]) for at in range(0, len(numbers), count or 1)]
        index[name] = rows if len(array.shape) == 2 else list(numbers)
    index["dtypes"] = []
    while (name := f"dtypes/{len(index['dtypes'])}.npy") in archive.entries:
        index["dtypes"].append(archive.array(name).descr)
    *strings, end = bytes(archive.array("strings.npy").data).decode().split("\0")
    check(not end, "a string has no end")
    counts = [len(index[name][0]) for name in ("shards", "arrays", "arrays", "parts")]
    for name, count in zip(("names", "keys", "attrs", "stored keys"), counts, strict=True):
        index[name], strings = strings[:count], strings[count:]
    check(len(strings) == len(index["dtypes"]), "the strings are too many or too few")
    return index


def directory_crc32(archive: Archive) -> int:
    """Return the CRC-32 of a shard's directory."""
    return zlib.crc32(archive.data[archive.end.offset : archive.end.records_offset])


def read_step(archive: Archive) -> dict[str, Any]:
    """Return the checked metadata of a step of a checkpoint store."""
    text = archive.text()
    found = parse_json(text)
    own = found.pop("npzkit.checkpoint")
    check(own["version"] == 1, "another version")
    footer, comment = archive.footer, archive.data[archive.end.record_offset + 22 :]
    if footer is not None and footer.comment_size == len(comment):
        return found
    crc = own.pop("crc32", None)
    text = json.dumps({**found, "npzkit.checkpoint": own}, separators=(",", ":"))
    check(crc == zlib.crc32(text.encode()), "without checksums, or damaged")
    return found
