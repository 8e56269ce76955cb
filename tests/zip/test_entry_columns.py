"""The directory parsed at once is the directory parsed entry by entry."""

from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from forge import Member, archive, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import NpzkitError
from npzkit.files.source import open_source
from npzkit.limits import Limits
from npzkit.zip.directory import read_directory
from npzkit.zip.entry_columns import Columns, parse_columns

from tables import each_row

DATA = npy(np.arange(3))
LARGE = 0xFFFFFFFF
NAMES = (
    st.text("ab/.ä€é\x01\x7f", min_size=1, max_size=40).map(str.encode)
    | st.binary(min_size=1, max_size=9)
    | st.sampled_from([b"a.npy", b"PK\x01\x02", b"x" * 300, b""])
)
BLOCKS = st.sampled_from([
    struct.pack("<HHL", 0x5455, 4, 9),
    struct.pack("<HH", 0x7875, 0),
    struct.pack("<HHQQ", 1, 16, len(DATA), len(DATA)),
    struct.pack("<HHQQ", 1, 16, 1, 2),
    struct.pack("<HHQQ", 1, 16, 1 << 63, 1 << 63),
    struct.pack("<HH", 0x5455, 400),
    struct.pack("<HHQ", 1, 16, 5),
    b"\0\0\0",
])  # fmt: skip


@st.composite
def members(draw):
    """A member with any name and extra fields, its sizes in zip64 or not."""
    name, extra = draw(NAMES), b"".join(draw(st.lists(BLOCKS, max_size=2)))
    central = {}
    if draw(st.booleans()):
        extra += b"\x75\x70\x06\0\x01" + struct.pack("<L", zlib.crc32(name)) + b"u"
    if draw(st.booleans()):
        central["flags"] = draw(st.sampled_from([0, 1, 8, 0x800]))
    for field in ("usize", "csize"):
        if draw(st.integers(0, 4)) == 0:
            central[field] = LARGE
    return Member(name, DATA, extra=extra, central=central, comment=draw(st.binary(max_size=6)))


def entries(data: bytes, start: int, count: int) -> object:
    """Everything that a walk says, or the error it ends with."""
    stream = io.BytesIO(data)
    with warnings.catch_warnings(record=True) as caught, pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("always")
        patched.setattr("npzkit.zip.directory._COLUMNS_COUNT", count)
        try:
            found = read_directory(open_source(stream), starts=(0, start), limits=Limits())
        except NpzkitError as error:
            return type(error), str(error)
    fields = found._replace(positions=list(map(int, found.positions)))[1:]
    named = found.entries
    many = [named.sizes()]
    if len(named) == len(found.positions):
        # Else the columns have rows of those names that do not count.
        many = [*many, named.marked(), [list(map(int, column)) for column in named.fields()]]
    return list(named.items()), fields, many, [str(warning.message) for warning in caught]


@given(st.lists(members(), max_size=5), st.binary(max_size=9), st.booleans(), st.data())
def test_both_walks_agree(listed, prefix, is_relative, data):
    """Names, values, order, sums, warnings and errors are the same, damaged or not."""
    base = len(prefix) if is_relative else 0
    whole = bytearray(archive(*listed, prefix=prefix, base=base))
    assert entries(bytes(whole), len(prefix), 1) == entries(bytes(whole), len(prefix), 1 << 60)
    size = sum(len(member.central_bytes(0)) for member in listed) + 22
    whole[-data.draw(st.integers(1, size))] = data.draw(st.integers(0, 255))
    assert entries(bytes(whole), len(prefix), 1) == entries(bytes(whole), len(prefix), 1 << 60)


@given(st.permutations(range(5)), st.data())
def test_any_order_and_any_place(order, data):
    """Members listed in another order than they lie in, or on top of each other."""
    offsets, position = [], 0
    for _ in order:
        offsets.append(position)
        position += len(Member("0.npy", DATA).local_bytes())
    if data.draw(st.booleans()):
        offsets[data.draw(st.integers(0, 4))] = data.draw(st.integers(0, position))
    whole = archive(*[Member(f"{n}.npy", DATA, central={"offset": offsets[n]}) for n in order])
    assert entries(whole, 0, 1) == entries(whole, 0, 1 << 60)


def columns_of(*listed: Member) -> Columns | None:
    """Parse an archive's directory, or None."""
    data = archive(*listed)
    start = sum(len(member.local_bytes()) for member in listed)
    return parse_columns(data[start:-22], len(listed), 0, 0, start)


def test_columns_answer_for_ordinary_archives():
    """Extra fields, attributes, zip64 and foreign names do not send it back to the loop."""
    sizes = {"usize": LARGE, "csize": LARGE}
    zip64 = struct.pack("<HHQQ", 1, 16, len(DATA), len(DATA))
    found = columns_of(
        Member("größe.npy", DATA, comment=b"c"),
        Member("b.npy", DATA, extra=struct.pack("<HHL", 0x5455, 4, 9)),
        Member("c.npy", DATA, extra=zip64, central=sizes, local=sizes),
    )
    assert found is not None
    assert list(found) == ["größe.npy", "b.npy", "c.npy"]
    assert found["c.npy"].compressed_size == found["b.npy"].compressed_size == len(DATA)


def test_a_signature_in_a_name_is_left_to_the_loop():
    """What looks like an entry within another is never taken for one."""
    assert columns_of(Member(b"a", DATA), Member(b"PK\x01\x02" * 20, DATA)) is None
    assert columns_of(Member(b"a", DATA, comment=Member("b", DATA).central_bytes(0))) is None


def test_a_count_is_not_believed():
    """Nothing is allocated for entries that are only claimed."""
    directory = Member("a.npy", DATA).central_bytes(0)
    assert parse_columns(directory, 1 << 62, 0, 0, 1000) is None
    assert parse_columns(directory, 2, 0, 0, 1000) is None
    assert parse_columns(directory, 0, 0, 0, 1000) is None
    assert parse_columns(b"", 0, 0, 0, 1000) is None


def test_a_mapping_as_any():
    """Members are found, counted and missed as in a dict."""
    found = columns_of(Member("a.npy", DATA), Member("b.npy", DATA))
    assert found is not None
    assert "a.npy" in found
    assert "a" not in found
    assert found.get("a") is None
    assert len(found) == len(found.keys()) == len(dict(found)) == 2
    assert [entry.name for entry in found.values()] == ["a.npy", "b.npy"]
    with pytest.raises(KeyError):
        found["a"]


@each_row("value", [5, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@each_row("field", ["usize", "csize", "offset"])
def test_values_of_64_bits(field, value):
    """Large values are Python's integers, or the same error, whoever parses them."""
    extra = struct.pack("<HHQ", 1, 8, value)
    data = archive(
        Member("a.npy", DATA), Member("b.npy", DATA, extra=extra, central={field: LARGE})
    )
    assert entries(data, 0, 1) == entries(data, 0, 1 << 60)


def test_zip64_values_are_not_taken_from_a_comment():
    """A block that runs over its extra field is an error, whatever follows."""
    size = struct.pack("<Q", len(DATA))
    member = Member(
        "a.npy",
        DATA,
        extra=struct.pack("<HH", 1, 16) + size,
        comment=size,
        central={"usize": LARGE, "csize": LARGE},
    )
    assert columns_of(member) is None


def test_each_value_has_its_place():
    """A zip64 block has the values in their order, of what is missing only."""
    all_three = {"usize": LARGE, "csize": LARGE, "offset": LARGE}
    start = len(Member("a.npy", DATA).local_bytes())
    found = columns_of(
        Member("a.npy", DATA),
        Member("b.npy", DATA, central=all_three, extra=struct.pack("<HHQQQ", 1, 24, 7, 8, start), local_extra=b""),
        Member("c.npy", DATA, central={"csize": LARGE}, extra=struct.pack("<HHQ", 1, 8, 9), local_extra=b""),
    )  # fmt: skip
    assert found is not None
    assert found["b.npy"][5:8] == (8, 7, start)
    assert found["c.npy"][5:7] == (9, len(DATA))


def test_the_chain_has_no_hole():
    """Bytes before, between or behind entries, or a member before the start, are for the loop."""
    one, two = Member("a.npy", DATA).central_bytes(0), Member("b.npy", DATA).central_bytes(500)
    assert parse_columns(one + two, 2, 0, 0, 1000) is not None
    assert parse_columns(one + two, 2, 0, 1, 1000) is None
    for data in (b"!" + one + two, one + b"!" + two, one + two + b"!", one + two[:-1]):
        assert parse_columns(data, 2, 0, 0, 1000) is None
