"""Archives of any make, sound and damaged, read by npzkit and by zipfile.

Either both read an archive and find the same in it, or the difference is one of
the rows below, each with its reason and an archive that shows it.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import struct
import warnings
import zipfile
import zlib
from typing import Any, NamedTuple

import npzkit
import numpy as np
import pytest
from forge import Member, archive, deflate, npy
from hypothesis import event, given
from hypothesis import strategies as st
from npzkit.errors import NpyFormatError, NpzkitError
from npzkit.zip.entries import accepting_name

from tables import each_row

pytestmark = pytest.mark.usefixtures("either_walk")

X = npy(np.arange(6.0))
NOTE = b"a note, twice: a note, twice"
FIELDS = ("CRC", "compress_size", "file_size", "header_offset", "compress_type", "flag_bits")
OURS = ("crc32", "compressed_size", "uncompressed_size", "header_offset", "method", "flags")
NO_END = "BadZipFile: File is not a zip file"
LARGE = {"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF}


class Refusal(NamedTuple):
    """What a reader said instead of an answer."""

    text: str


class Found(dict[str, Any]):
    """Fields and bytes by member, and what else may account for other members."""

    def __init__(self, *, torn: bool = False) -> None:
        super().__init__()
        self.torn = torn
        self.renamed = False


Answer = Found | Refusal


def ours(data: bytes) -> Answer:
    """Each member's fields and its bytes, as npzkit reads them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            npz = npzkit.open(data)
        except NpzkitError as error:
            return Refusal(error.what)
        found = Found(torn=any(w.category is npzkit.errors.TornArchiveWarning for w in caught))
        for name, entry in npz._archive.entries.items():
            # Members that cannot be read have fields too, which info() does not give.
            fields = tuple(getattr(accepting_name(entry), field) for field in OURS)
            # npzkit refuses a member with two names; zipfile follows one of them, by its version.
            found.renamed |= b"up" in entry.extra
            try:
                # The stream gives any member's bytes, arrays or not.
                found[name] = fields, npz.stream(name).read()
            except NpzkitError as error:
                found[name] = fields, Refusal(error.what)
            else:
                check_info(npz, name, data, *found[name])
        return found


def check_info(npz: npzkit.NpzFile, name: str, data: bytes, fields: tuple, raw: bytes) -> None:
    """What info() says of a member is what its entry says, and its bytes."""
    try:
        info = npz.info(name)
    except NpyFormatError:
        return
    crc, compressed_size, _, header_offset, method, _ = fields
    assert (info.member, info.crc32, info.compressed_size) == (name, crc, compressed_size)
    assert info.method == {0: "stored", 8: "deflated", 12: "bzip2", 14: "lzma"}[method]
    start = header_offset + 30 + sum(struct.unpack_from("<HH", data, header_offset + 26))
    if info.shape is None:
        assert (info.nbytes, info.data_offset) == (len(raw), start)
    else:
        header_size = len(raw) - info.nbytes
        assert info.data_offset == start + (header_size if method == 0 else 0)


def theirs(data: bytes) -> Answer:
    """Each member's fields and its bytes, as zipfile reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            archive = zipfile.ZipFile(io.BytesIO(data))
        except Exception as error:
            return Refusal(f"{type(error).__name__}: {error}")
        found = Found()
        for name, info in archive.NameToInfo.items():
            fields = tuple(getattr(info, field) for field in FIELDS)
            try:
                found[name] = fields, archive.read(info)
            except Exception as error:
                found[name] = fields, Refusal(f"{type(error).__name__}: {error}")
        return found


def differences(data: bytes) -> set[tuple[str, str]]:
    """Each way in which the two readers differ: what npzkit says, and what zipfile."""
    mine, other = ours(data), theirs(data)
    if isinstance(mine, Found) and mine.torn and other == Refusal(NO_END):
        return {("reads the last commit", NO_END)}
    if isinstance(mine, Refusal) or isinstance(other, Refusal):
        return compare(mine, other)
    if list(mine) != list(other):
        how = "by Unicode paths" if mine.renamed else repr(list(mine))
        return {(f"lists {how}", f"lists {list(other)}")}
    found = set()
    for name, (fields, raw) in mine.items():
        other_fields, other_raw = other[name]
        if fields != other_fields:
            found.add((f"has {fields}", f"has {other_fields}"))
        found |= compare(raw, other_raw)
    return found


def compare(mine: object, other: object) -> set[tuple[str, str]]:
    if (isinstance(mine, Refusal) and isinstance(other, Refusal)) or mine == other:
        return set()
    both_read = not isinstance(mine, Refusal) and not isinstance(other, Refusal)
    reads = "reads other bytes" if both_read else "reads"
    mine, other = (a.text if isinstance(a, Refusal) else reads for a in (mine, other))
    return {(mine, other)}


# -- archives ----------------------------------------------------------------------


def compressed(method: int, data: bytes) -> bytes:
    if method == 8:
        return deflate(data)
    if method == 12:
        return bz2.compress(data)
    if method == 14:
        model = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16}
        raw = lzma.compress(data, lzma.FORMAT_RAW, filters=[model])
        return b"\x09\x04\x05\x00\x5d\x00\x00\x01\x00" + raw
    return data


def zip64(*values: int) -> bytes:
    """The extra field of zip64 with these values."""
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


def unicode_path(raw: bytes, name: bytes) -> bytes:
    """Info-ZIP's extra field with another name for `raw`."""
    payload = b"\x01" + struct.pack("<L", zlib.crc32(raw)) + name
    return struct.pack("<HH", 0x7075, len(payload)) + payload


TIME = struct.pack("<HHL", 0x5455, 4, 9)
BLOCKS = [TIME, struct.pack("<HH", 0x7875, 0), struct.pack("<HHHL", 0xD935, 6, 64, 0)]
ODD_BLOCKS = [
    b"\0", b"\0\0\0", b"UT\t\0", zip64(1), zip64(1, 2, 3), zip64(), unicode_path(b"a", b"\xff"),
    b"up\1\0\1", zip64(1)[:-1], TIME + b"\1\0\t\0",
]  # fmt: skip
NAMES = st.one_of(
    st.text("abc/. ~", min_size=1, max_size=8).map(str.encode),
    st.text("aéΔ漢", min_size=1, max_size=5).map(str.encode),
    # In code page 437, or as UTF-8 where it can be.
    st.binary(min_size=1, max_size=6).filter(lambda raw: min(raw) > 31 and 127 not in raw),
)
END = b"PK\5\6" + bytes(18)
DATA = st.sampled_from([X, NOTE, b"", END, b"PK\7\x08" * 5]) | st.binary(max_size=40)
GAPS = st.sampled_from([b"", bytes(9), b"between", Member("hidden.npy", X).local_bytes()])
COMMENTS = st.binary(max_size=9).filter(lambda comment: b"PK\5\6" not in comment)
SIZES = st.sampled_from(
    ["plain", "plain", "forced zip64", "zip64", "32", "64", "signed 32", "signed 64"]
)


@st.composite
def members(draw, is_odd):
    """A member of any method, its sizes in 32 or 64 bits, before or behind its data."""
    name, data, method = draw(NAMES), draw(DATA), draw(st.sampled_from([0, 0, 8, 8, 12, 14]))
    raw, blocks = compressed(method, data), st.sampled_from(BLOCKS)
    if is_odd:
        raw = draw(
            st.sampled_from([raw, raw, raw, raw[:-1], raw + b"!", compressed(method, data * 2)])
        )
        blocks |= st.sampled_from([*ODD_BLOCKS, unicode_path(name, "ü".encode())])
    extra, local_extra = (b"".join(draw(st.lists(blocks, max_size=2))) for _ in range(2))
    sizes = draw(SIZES)
    local, central = {}, {}
    if "zip64" in sizes:
        local, local_extra = dict(LARGE), zip64(len(data), len(raw)) + local_extra
    if sizes == "zip64":
        central, extra = dict(LARGE), zip64(len(data), len(raw)) + extra
    descriptor = sizes if sizes.endswith(("32", " 64")) or sizes == "64" else None
    flags = 8 if descriptor else 0
    try:
        name.decode()
        flags |= 0x800 * draw(st.booleans())
    except UnicodeDecodeError:
        pass
    return Member(
        name, data, method=method, raw=raw, extra=extra, local_extra=local_extra,
        descriptor=descriptor, comment=draw(st.binary(max_size=4)),
        local={"flags": flags, **local}, central={"flags": flags, **central},
    )  # fmt: skip


@st.composite
def archives(draw, is_odd=False):
    """Up to four members in any order, with gaps, comments and zip64 or without."""
    listed = draw(st.lists(members(is_odd), max_size=4))
    return archive(
        *listed, gap=draw(GAPS), comment=draw(COMMENTS), zip64=draw(st.booleans()),
        order=draw(st.permutations(range(len(listed)))),
    )  # fmt: skip


RECORDS = {
    b"PK\3\4": "<4sHHHHHLLLHH", b"PK\1\2": "<4sHHHHHHLLLHHHHHLL", b"PK\5\6": "<4sHHHHLLH",
    b"PK\6\6": "<4sQHHLLQQQQ", b"PK\6\7": "<4sLQL", b"PK\7\x08": "<4sLLL",
}  # fmt: skip
VALUES = st.sampled_from(
    [0, 1, 2, 8, 9, 12, 20, 45, 99, 0xFFFF, 0xFFFFFFFF, 1 << 62, (1 << 64) - 1]
)
TAILS = st.sampled_from([b"\n", bytes(30), b"PK\5\6", END, b"PK\6\7" + END, b"tail"])
PREFIXES = st.sampled_from([b"#!", b"PK\3\4" + bytes(30), Member("first.npy", X).local_bytes()])
KINDS = st.sampled_from(
    ["field"] * 6 + ["flip", "byte", "cut", "lose", "insert", "append", "prefix"]
)


@st.composite
def damaged(draw):
    """One of these with odd extra fields, and a field or two wrong, or bytes lost or put in."""
    data = bytearray(draw(archives(is_odd=True)))
    for _ in range(draw(st.integers(0, 2))):
        kind, place = draw(KINDS), draw(st.integers(0, max(len(data) - 1, 0)))
        if kind == "field":
            forge_field(draw, data)
        elif kind in ("flip", "byte") and data:
            bit, byte = draw(st.integers(0, 7)), draw(st.sampled_from([0, 1, 8, 255]))
            data[place] = data[place] ^ 1 << bit if kind == "flip" else byte
        elif kind in ("cut", "lose"):
            del data[place : None if kind == "cut" else place + draw(st.integers(1, 9))]
        elif kind == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=9))
        elif kind == "append":
            data += draw(TAILS)
        elif kind == "prefix":
            data[:0] = draw(PREFIXES)
    return bytes(data)


def forge_field(draw, data: bytearray) -> None:
    """Give one field of one record another value."""
    places = [m.start() for m in re.finditer(b"PK(\1\2|\3\4|\5\6|\6\6|\6\7|\7\x08)", data)]
    if not places:
        return
    place = draw(st.sampled_from(places))
    layout = RECORDS[bytes(data[place : place + 4])]
    number = draw(st.integers(1, len(layout) - 3))
    start = place + struct.calcsize("<" + layout[1 : 2 + number])
    kind = "<" + layout[2 + number]
    size = struct.calcsize(kind)
    if start + size > len(data):
        return
    (value,) = struct.unpack_from(kind, data, start)
    near = st.sampled_from([1, 2, 4, 22, 46, -1, -2]).map(lambda step: value + step)
    value = draw(near | VALUES) % (1 << 8 * size)
    struct.pack_into(kind, data, start, value)


# -- the two readers ---------------------------------------------------------------


def plain(name="x.npy", data=X, **forged):
    return Member(name, data, **forged)


def agreed(**fields):
    """A member whose two headers have the same wrong fields."""
    return plain(local=fields, central=fields)


def squeezed(raw: bytes, data: bytes = X) -> bytes:
    return archive(plain(data=data, raw=raw, method=8))


class Row(NamedTuple):
    """A difference: what each reader says, an archive that shows it, and why it is so."""

    ours: str
    theirs: str
    data: bytes
    why: str
    varies: bool = False
    """Whether some versions of zipfile do as npzkit does."""


WRONG_PLACE = "zipfile takes what is missing or too much for bytes before the archive"
TWO_ANSWERS = "programs that believe the other record read something else"
SMALL = {"count": 1, "total": 1, "size": 51, "offset": 211}
ROWS = {
    # The end record.
    "bytes in front": Row(
        "bytes precede the first local header(, or it is damaged)?", "reads", archive(plain(), prefix=b"#!"),
        "np.load refuses it too, by its first bytes; opened behind them it is read",
    ),
    "directory elsewhere": Row(
        "the central directory is not where the end record says", "reads",
        archive(plain(), offset=7), WRONG_PLACE,
    ),
    "count": Row(
        "the central directory does not hold the entries that the end record counts", "reads",
        archive(plain(), count=2, total=2), "zipfile counts no entries; " + TWO_ANSWERS,
    ),
    "disks": Row(
        "the archive is split over several files", "reads", archive(plain(), disk=1),
        "zipfile looks at no disk number; members may be in another file",
    ),
    "comment cut": Row(
        "the archive is cut off: at least its last .*",
        "reads", archive(plain(), comment_size=9),
        "a comment that is cut short says that the file is",
    ),
    "comment cut, other beginning": Row(
        "the archive is cut off.*", "reads",
        archive(comment_size=9), "the same, of a file that begins as no zip does",
    ),
    "bytes in front and behind": Row(
        "not a zip archive: npzkit does not know this kind of file.*", "reads", b"#" + END + b"\n",
        "np.load refuses it too, by its first bytes",
    ),
    "two end records": Row(
        "two end of central directory records fit the end of the file", "reads",
        archive(plain(), comment=b"!" + END), TWO_ANSWERS,
    ),
    "end record behind the end": Row(
        "another end of central directory record follows the end of the archive",
        "reads|BadZipFile: .*", archive(plain(), comment=b"a") + b"b" + END,
        "zipfile takes the last end record, wherever it leads",
    ),
    "signature behind the end": Row(
        "reads the last commit", NO_END, archive(plain()) + b"PK\5\6",
        "an append that was cut short: zipfile finds the part of an end record",
    ),
    # zip64's end records.
    "zip64 locator": Row(
        "the zip64 locator and the zip64 end record disagree", "reads",
        archive(plain(), zip64={"where": 3}), TWO_ANSWERS + " (CVE-2025-8291)", varies=True,
    ),
    "zip64 record": Row(
        "the zip64 end of central directory record has a wrong signature", "reads",
        archive(plain(), zip64={"signature": b"PK\6\0"}, **SMALL),
        "a locator announces it; zipfile goes on without", varies=True,
    ),
    "zip64 values": Row(
        "the end record and the zip64 end record disagree on .*", "reads",
        archive(plain(), zip64=True, size=3), TWO_ANSWERS, varies=True,
    ),
    # Entries.
    "entry runs over": Row(
        "names or extra fields of the central directory entry extend past its end", "reads",
        archive(plain(comment=b"note", central={"clen": 7})),
        "zipfile takes what there is",
    ),
    "control character": Row(
        "a member's name contains a control character", "reads", archive(plain("a\x1b.npy")),
        "a name is shown to people, and to terminals; zipfile cuts it at a NUL",
    ),
    "NUL in a name": Row(
        r"lists .*\\x00.*", "lists .*", archive(plain("a\0b.npy")),
        "zipfile cuts the name at the NUL, and could give one array for another",
    ),
    "not UTF-8": Row(
        "reads", "UnicodeDecodeError: .*", archive(plain(b"\xff.npy")),
        "the other members are read",
    ),
    "Unicode path": Row(
        "lists by Unicode paths", "lists .*",
        archive(plain(b"\x81.npy", extra=unicode_path(b"\x81.npy", "ü.npy".encode()),
                central={"flags": 0}, local={"flags": 0})),
        "Info-ZIP's own spelling of a name in another code page; zipfile follows it from 3.12 on",
        varies=True,
    ),
    "second name": Row(
        "a member's Unicode path differs from its name|lists by Unicode paths",
        "reads|lists .*", archive(plain(extra=unicode_path(b"x.npy", b"y.npy"))),
        "zipfile follows it from 3.12 on, and before that does not",
    ),
    "Unicode path in no Unicode": Row(
        "a Unicode path is not UTF-8|reads", "reads|BadZipFile: Corrupt unicode path.*",
        archive(plain(extra=unicode_path(b"x.npy", b"\xff"))),
        "npzkit refuses the member, zipfile from 3.12 on all of them",
        varies=True,
    ),
    "Unicode path without a name": Row(
        "reads", "BadZipFile: Corrupt unicode path.*", archive(plain(extra=b"up\1\0\1")),
        "a block that names nothing renames nothing", varies=True,
    ),
    "version": Row(
        "reads", "NotImplementedError: zip file version.*", archive(plain(central={"version": 99})),
        "what a member needs is in its flags and its method; writers set versions freely",
    ),
    "zip64 sizes of an entry": Row(
        "the zip64 extra field disagrees with its entry", "reads",
        archive(plain(extra=zip64(1, 2))), TWO_ANSWERS,
    ),
    "overlap": Row(
        "members overlap each other or the central directory", "reads",
        archive(plain(), plain("x.npy", central={"offset": 0})),
        "the same bytes counted over and over make a bomb; zipfile sees some (CVE-2024-0450)",
        varies=True,
    ),
    # Members.
    "other disk": Row(
        "the member is patched, or split over several files", "reads",
        archive(plain(central={"disk": 2})), "its data is in another file",
    ),
    "local extra field": Row(
        "extra field 0x.* extends past its end", "reads",
        archive(plain(local=LARGE, local_extra=b"UT\t\0" + zip64(len(X), len(X)))),
        "zipfile looks at no local sizes; they are in an extra field here",
    ),
    "local header": Row(
        "the local header and the central directory disagree on the .*", "reads",
        archive(plain(local={"crc": 1})), "programs that read from front to back read something else",
    ),
    "local zip64 sizes": Row(
        "the zip64 extra field lacks values", "reads",
        archive(plain(local=LARGE, local_extra=zip64(len(X)))), "the same",
    ),
    "descriptor": Row(
        "the data descriptor and the central directory disagree", "reads",
        archive(plain(descriptor="32", data=X, local={"crc": 0})).replace(
            struct.pack("<LLL", zlib.crc32(X), len(X), len(X)), bytes(12), 1),
        "the same",
    ),
    "data runs over": Row(
        "the member's data overlaps the next member or the central directory", "reads",
        archive(plain(data=b"")).replace(b"\5\0\0\0x", b"\5\0\1\0x", 1),
        "an extra field that is longer in the local header makes members share bytes", varies=True,
    ),
    "two stored sizes": Row(
        "a stored member has two different sizes", "reads", archive(agreed(usize=7, crc=zlib.crc32(X[:7]))),
        "zipfile reads the lesser",
    ),
    "claim": Row(
        "the member claims more bytes than its compressed data can hold", "reads",
        archive(plain(method=8, local={"usize": 1 << 30}, central={"usize": 1 << 30})),
        "zipfile returns fewer bytes than the member is said to have, and says nothing",
    ),
    "stream too long": Row(
        "the compressed stream is longer than the declared size", "reads",
        squeezed(deflate(X + b"!")), "zipfile stops at the size, and says nothing",
    ),
    "stream too short": Row(
        "the [a-z0-9]+ stream ends early", "reads",
        archive(plain(method=8, local={"usize": len(X) + 1}, central={"usize": len(X) + 1})),
        "zipfile returns what there is, and says nothing",
    ),
    "LZMA properties": Row(
        "the LZMA properties are not valid", "reads",
        archive(plain(data=b"", method=14, raw=b"\0\0\xff\xff" + bytes(9))),
        "zipfile waits for more of them, and takes the end of the member for its data's",
    ),
    "bytes behind a stream": Row(
        "the compressed stream does not end where the member does", "reads",
        squeezed(deflate(X) + b"!"), "the bytes and sizes of a member are not what its maker wrote",
    ),
}  # fmt: skip


def explains(row: Row, difference: tuple[str, str]) -> bool:
    return all(re.fullmatch(said, text) for said, text in zip(row[:2], difference, strict=True))


@each_row("name", ROWS)
def test_differences_by_choice(name):
    """Each difference that is meant shows in an archive, and nothing else does."""
    row = ROWS[name]
    found = differences(row.data)
    assert found or row.varies
    assert all(explains(row, difference) for difference in found), found


@pytest.mark.slow
@given(archives())
def test_sound_archives_are_read_alike(data):
    """What is sound both read: the same members, fields and bytes."""
    assert not isinstance(ours(data), Refusal)
    assert differences(data) == set()


@pytest.mark.slow
@given(damaged())
def test_damaged_archives_are_read_alike_or_for_a_reason(data):
    """What is damaged both read alike, or refuse, or differ about as a row above says."""
    for difference in differences(data):
        reasons = [name for name, row in ROWS.items() if explains(row, difference)]
        assert reasons, difference
        event(reasons[0])
