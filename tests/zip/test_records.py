"""Each record as one row of bytes, read and written, whole, shifted and cut."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import ZipFormatError
from npzkit.files.source import open_source
from npzkit.zip import records
from npzkit.zip.directory import read_directory
from npzkit.zip.local_header import LOCAL_FIELDS
from npzkit.zip.records import (
    CentralEntry,
    EndOfCentralDirectory,
    LocalHeader,
    Zip64EndOfCentralDirectory,
    Zip64Locator,
)
from npzkit.zip.written_header import entry_bytes

TABLE = [
    (
        LocalHeader(20, 0x800, 8, 1, 33, 0xDEADBEEF, 5, 7, b"a.npy", b"\x01\x00\x00\x00"),
        "504b0304 1400 0008 0800 0100 2100 efbeadde 05000000 07000000 0500 0400 612e6e7079 01000000",
        records.LOCAL_LAYOUT.parse,
        records.LOCAL_LAYOUT.format,
    ),
    (
        CentralEntry(
            0x314, 20, 0, 8, 1, 33, 0xDEADBEEF, 5, 7, 0, 0, 0x1800000, 300, b"a.npy", b"", b"hi"
        ),
        "504b0102 1403 1400 0000 0800 0100 2100 efbeadde 05000000 07000000 0500 0000 0200 0000 0000"
        "00008001 2c010000 612e6e7079 6869",
        records.ENTRY_LAYOUT.parse,
        records.ENTRY_LAYOUT.format,
    ),
    (
        EndOfCentralDirectory(0, 0, 2, 2, 100, 5000, b"{}"),
        "504b0506 0000 0000 0200 0200 64000000 88130000 0200 7b7d",
        records.END_LAYOUT.parse,
        records.END_LAYOUT.format,
    ),
    (
        Zip64EndOfCentralDirectory(44, 45, 45, 0, 0, 70000, 70000, 100, 2**33),
        "504b0606 2c00000000000000 2d00 2d00 00000000 00000000 7011010000000000 7011010000000000"
        "6400000000000000 0000000002000000",
        records.ZIP64_END_LAYOUT.parse,
        records.ZIP64_END_LAYOUT.format,
    ),
    (
        Zip64Locator(0, 2**33, 1),
        "504b0607 00000000 0000000002000000 01000000",
        records.LOCATOR_LAYOUT.parse,
        records.LOCATOR_LAYOUT.format,
    ),
]
IDS = [type(row[0]).__name__ for row in TABLE]


@pytest.mark.parametrize(("record", "text", "parse", "write"), TABLE, ids=IDS)
def test_bytes_go_both_ways(record, text, parse, write):
    """A record is written as these bytes and read from them, wherever they stand."""
    data = bytes.fromhex(text)
    assert write(record) == data
    assert parse(data) == record
    assert parse(b"before" + data + b"behind", 6) == record


@pytest.mark.parametrize(("record", "text", "parse", "write"), TABLE, ids=IDS)
def test_every_cut_and_every_wrong_signature_is_an_error(record, text, parse, write):
    """Cut at any byte, or with any byte of the signature changed: ZipFormatError."""
    data = bytes.fromhex(text)
    for size in range(len(data)):
        with pytest.raises(ZipFormatError):
            parse(data[:size])
    for index in range(4):
        with pytest.raises(ZipFormatError, match="signature"):
            parse(data[:index] + b"\xff" + data[index + 1 :])


DESCRIPTORS = [
    (False, False, "efbeadde 05000000 07000000"),
    (True, False, "504b0708 efbeadde 05000000 07000000"),
    (False, True, "efbeadde 0500000000000000 0700000000000000"),
    (True, True, "504b0708 efbeadde 0500000000000000 0700000000000000"),
]


@pytest.mark.parametrize(("signature", "zip64", "text"), DESCRIPTORS)
def test_data_descriptors_are_these_bytes(signature, zip64, text):
    """The four shapes of a data descriptor, written and recognised."""
    data = bytes.fromhex(text)
    values = (0xDEADBEEF, 5, 7)
    assert records.data_descriptors(*values)[2 * zip64 + (not signature)] == data
    for index in range(len(data)):
        changed = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        assert not changed.startswith(records.data_descriptors(*values))


U16, U32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
BYTES = st.binary(max_size=20)


@given(st.tuples(*[U16] * 5, U32, U32, U32, BYTES, BYTES))
def test_any_local_header_survives(fields):
    """Formatting and parsing are inverse for local headers."""
    header = LocalHeader(*fields)
    data = records.LOCAL_LAYOUT.format(header)
    assert records.LOCAL_LAYOUT.parse(data) == header


@given(st.tuples(*[U16] * 6, U32, U32, U32, U16, U16, U32, U32, BYTES, BYTES, BYTES))
def test_any_central_entry_survives(fields):
    """Formatting and parsing are inverse for central entries."""
    entry = CentralEntry(*fields)
    data = records.ENTRY_LAYOUT.format(entry)
    assert records.ENTRY_LAYOUT.parse(data) == entry


@given(st.tuples(*[U16] * 6, U32, U32, U32, U16, U16, U32, U32, BYTES, BYTES, BYTES))
def test_the_short_layouts_are_cut_from_the_long_ones(fields):
    """What reading unpacks of a header is what parsing it at length gives."""
    entry = CentralEntry(*fields)
    data = records.ENTRY_LAYOUT.format(entry)
    assert records.ENTRY_FIELDS.unpack_from(data) == (
        b"PK\x01\x02", entry.flags, entry.method, entry.crc32, entry.compressed_size,
        entry.uncompressed_size, len(entry.name), len(entry.extra), len(entry.comment),
        entry.disk_start, entry.header_offset,
    )  # fmt: skip
    header = LocalHeader(*fields[1:9], entry.name, entry.extra)
    assert LOCAL_FIELDS.unpack_from(records.LOCAL_LAYOUT.format(header)) == (
        b"PK\x03\x04", header.flags, header.method, header.crc32, header.compressed_size,
        header.uncompressed_size, len(header.name), len(header.extra),
    )  # fmt: skip


@given(U32, U32, U32, st.booleans(), st.booleans())
def test_any_data_descriptor_is_recognised(crc, compressed, size, signature, zip64):
    """All four shapes of a descriptor match their values, and no others."""
    descriptors = records.data_descriptors(crc, compressed, size)
    data = descriptors[2 * zip64 + (not signature)]
    assert data.startswith(descriptors)
    assert not data[:11].startswith(descriptors)
    if crc != int.from_bytes(b"PK\x07\x08", "little"):
        assert not data.startswith(records.data_descriptors(crc ^ 1, compressed, size))


def test_descriptors_of_the_largest_size_without_zip64():
    """A size of 2**32 - 1 bytes may be in 32 bits, or in 64, with or without a signature."""
    found = records.data_descriptors(1, 2, 2**32 - 1)
    assert sorted(map(len, found)) == [12, 16, 20, 24]
    assert len(records.data_descriptors(1, 2, 2**32)) == 2


def test_a_record_that_is_made_for_a_member_has_the_date_of_all_members():
    """Its time and date are midnight on 1 January 1980."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(3)})
    source = open_source(stream)
    entry = read_directory(source, starts=[0], limits=npzkit.Limits()).entries["a.npy"]
    assert entry_bytes(entry)[12:16] == bytes([0, 0, 0x21, 0])
