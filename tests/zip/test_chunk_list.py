"""The list of a member's chunks: bytes both ways, and what is not believed."""

import io
import struct
import zlib

import npzkit
import numpy as np
import pytest
from forge import chunked, npy, with_chunks
from hypothesis import given
from hypothesis import strategies as st
from npzkit.codecs.coding import DEFLATED, STORED
from npzkit.files.source import BufferSource
from npzkit.limits import Limits
from npzkit.zip.array_index import ChunkLists
from npzkit.zip.chunk_list import ChunkList, list_size, parse_list
from npzkit.zip.directory import read_directory
from npzkit.zip.entries import Entry

DATA = np.random.default_rng(0).integers(0, 50, 10_000).astype("u1").tobytes()
CRC32S = [zlib.crc32(DATA[start : start + 4096]) for start in range(0, len(DATA), 4096)]
OFFSETS = (0, 100, 250, 300)
LIST = ChunkList(4096, len(DATA), CRC32S, OFFSETS, DEFLATED)
BYTES = struct.pack("<6L", *CRC32S, 100, 150, 50)
BYTES += struct.pack("<L", zlib.crc32(BYTES))


def entry(method=DEFLATED):
    crc, size = zlib.crc32(DATA), len(DATA)
    return Entry("a.npy", b"a.npy", 0, method, crc, 300, size, 0, 0, b"", 1 << 30)


def test_the_bytes_are_those_of_the_page():
    """A compressed member's list has CRC-32s, sizes and its own CRC-32; a stored one's has CRC-32s."""
    assert LIST.format() == BYTES
    assert list_size(entry(), 4096) == len(BYTES)
    found = parse_list(BYTES, entry(), 4096)
    assert (list(found.crc32s), found.offsets) == (CRC32S, OFFSETS)
    stored = ChunkList(4096, len(DATA), CRC32S)
    assert stored.format() == BYTES[:12]
    assert list_size(entry(STORED), 4096) == 12
    assert list(parse_list(BYTES[:12], entry(STORED), 4096).crc32s) == CRC32S


@given(st.integers(0, len(BYTES) - 1), st.integers(1, 255))
def test_a_list_with_a_damaged_byte_is_not_believed(place, change):
    """Whichever byte of a list is another one, the member is read without it."""
    data = bytearray(BYTES)
    data[place] ^= change
    assert parse_list(bytes(data), entry(), 4096) is None
    if place < 12:
        assert parse_list(bytes(data[:12]), entry(STORED), 4096) is None


@pytest.mark.parametrize("sizes", [(100, 150, 51), (0, 250, 50), (100, 200, 0)])
def test_sizes_that_cannot_be_are_not_believed(sizes):
    """Chunks that are empty, or together another number of bytes, are none, whatever the checksum."""
    data = struct.pack("<6L", *CRC32S, *sizes)
    assert parse_list(data + struct.pack("<L", zlib.crc32(data)), entry(), 4096) is None


@pytest.mark.parametrize("chunk_size", [0, 1, 1023, len(DATA), (1 << 26) + 1, 1 << 31])
def test_chunks_of_odd_sizes_are_not_read(chunk_size):
    """Tiny chunks would take more time than their bytes, huge ones memory; one chunk needs no list."""
    assert list_size(entry(), chunk_size) == 0


def test_a_list_says_where_chunks_are_and_their_checksums_are_compared():
    """A list that another program could have written is used, and damage is found by it."""
    array = npy(np.arange(3000))
    raw = bytearray(chunked(array, 4096)[0])
    raw[len(raw) // 2] ^= 1
    damaged = with_chunks("a.npy", array, 4096, raw=bytes(raw))
    for data, is_sound in ((with_chunks("a.npy", array, 4096), True), (damaged, False)):
        source = BufferSource(data)
        directory = read_directory(source, limits=Limits())
        listed = ChunkLists(source, directory).find(directory.entries["a.npy"])
        assert listed is not None
        assert npzkit.verify(io.BytesIO(data)).ok == is_sound


@pytest.mark.parametrize("where", [0, 1 << 40, (1 << 64) - 1])
def test_no_more_is_read_than_the_file_has(where):
    """A list that should lie outside the file is none, and nothing is allocated for it."""
    stream = io.BytesIO()
    npzkit.save(stream, {"w": np.arange(500_000)}, compression="deflated")
    data = bytearray(stream.getvalue())
    source = BufferSource(bytes(data))
    lists = ChunkLists(source, read_directory(source, limits=Limits()))
    lists.index.places = np.array([(where, 1 << 18)], lists.index.places.dtype)
    member = read_directory(source, limits=Limits()).entries["w.npy"]
    if where:
        assert lists.find(member) is None
    lists.index.places = np.array([(where, 1024)], lists.index.places.dtype)
    assert lists.find(member) is None
