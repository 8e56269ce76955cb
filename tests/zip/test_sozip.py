"""The seek index: bytes both ways, and what is not believed."""

import io
import struct

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.files.source import open_source
from npzkit.zip.sozip import (
    SeekIndex,
    find_index,
    format_index,
    format_index_member,
    index_name,
    parse_index,
)

INDEX = SeekIndex(4096, (0, 100, 250, 300), 10_000)
BYTES = (
    b"\x01\0\0\0" b"\0\0\0\0" b"\0\x10\0\0" b"\x08\0\0\0"
    b"\x10\x27\0\0\0\0\0\0" b"\x2c\x01\0\0\0\0\0\0"
    b"\x64\0\0\0\0\0\0\0" b"\xfa\0\0\0\0\0\0\0"
)  # fmt: skip


def test_the_bytes_are_the_specification_s():
    """An index is formatted to the specification's layout, and parsed from it."""
    assert format_index(INDEX) == BYTES
    assert parse_index(BYTES, 10_000, 300) == INDEX


def test_offsets_of_four_bytes_and_skipped_bytes_are_read():
    """Other writers' offsets of 32 bits, behind bytes to skip, are understood."""
    data = (
        struct.pack("<LLLLQQ", 1, 3, 4096, 4, 10_000, 300) + b"xyz" + struct.pack("<2L", 100, 250)
    )
    assert parse_index(data, 10_000, 300) == INDEX


@pytest.mark.parametrize(
    ("offset", "value"),
    [(0, 2), (4, 1), (8, 0), (8, 8192), (8, 1 << 31), (12, 5), (16, 9999), (24, 301), (32, 251), (40, 300), (40, 0)],
)  # fmt: skip
def test_an_index_that_does_not_fit_is_not_believed(offset, value):
    """A wrong version, size or offset makes the member an ordinary one."""
    data = bytearray(BYTES)
    struct.pack_into("<L", data, offset, value)
    assert parse_index(bytes(data), 10_000, 300) is None


@given(st.integers(0, len(BYTES) + 8))
def test_an_index_of_another_length_is_not_believed(size):
    """Cut short or with bytes behind it, an index is none."""
    if size != len(BYTES):
        assert parse_index((BYTES + bytes(8))[:size], 10_000, 300) is None


def test_the_index_is_hidden_beside_its_member():
    """The name has a dot in front of the last part."""
    assert index_name("w.npy") == b".w.npy.sozip.idx"
    assert index_name("a/b/w.npy") == b"a/b/.w.npy.sozip.idx"


def test_an_index_of_tiny_chunks_is_not_believed():
    """Each would take more memory and time than its bytes."""
    for chunk_size, offsets in ((1, range(1, 10_000)), (1000, range(1, 10))):
        data = struct.pack("<LLLLQQ", 1, 0, chunk_size, 4, 10_000, 20_000)
        data += struct.pack(f"<{len(offsets)}L", *offsets)
        assert parse_index(data, 10_000, 20_000) is None


def test_no_more_is_read_than_an_index_can_have(monkeypatch):
    """A hidden member that claims all the room behind its neighbour stays unread."""
    stream = io.BytesIO()
    npzkit.save(stream, {"w": np.arange(500_000)}, compression="deflated")
    with npzkit.open(stream) as npz:
        entry = npz._archive.entry("w")
        data = stream.getvalue()
        end = entry.end_offset
    name = index_name("w.npy")
    start = data.index(name) - 30
    size = (1 << 24) + end - start - 30 - len(name)
    data = bytearray(data[:end] + bytes(1 << 24))
    struct.pack_into("<LL", data, start + 18, size, size)
    source = open_source(bytes(data))
    longest = []
    read_at = source.read_at
    monkeypatch.setattr(source, "read_at", lambda o, n: longest.append(n) or read_at(o, n))
    entry = entry._replace(end_offset=len(data))
    assert find_index(source, entry, start - entry.compressed_size) is None
    assert max(longest) < 1 << 17


def test_the_hidden_member_has_the_date_of_all_members():
    """Its time and date are midnight on 1 January 1980, as everywhere in an archive."""
    assert format_index_member("a.npy", INDEX)[10:14] == bytes([0, 0, 0x21, 0])
