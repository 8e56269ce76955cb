"""The directory held against zipfile's, for archives that both accept."""

from __future__ import annotations

import io
import warnings
import zipfile

import npzkit
import numpy as np
import pytest
from forge import Member, archive, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import NpzkitError, ZipFormatError
from npzkit.files.source import BufferSource, open_source
from npzkit.limits import Limits
from npzkit.zip.directory import read_directory
from npzkit.zip.entries import BAD_NAME

from tables import each_row

pytestmark = pytest.mark.usefixtures("either_walk")

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
METHODS = st.sampled_from(
    [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
# Whatever the name, what begins as an array is read as one.
CONTENTS = st.binary(max_size=30).filter(lambda data: not data.startswith(b"\x93NUMPY"))
FIELDS = [
    "CRC",
    "compress_size",
    "file_size",
    "header_offset",
    "compress_type",
    "flag_bits",
    "extra",
]


def described(data):
    """Both readers' view of each member: name and the fields they share."""
    directory = read_directory(open_source(data), limits=Limits())
    ours = {
        entry.name: (entry.crc32, entry.compressed_size, entry.uncompressed_size, entry.header_offset,
                     entry.method, entry.flags, entry.extra)
        for entry in directory.entries.values()
    }  # fmt: skip
    with zipfile.ZipFile(io.BytesIO(data)) as theirs:
        expected = {
            info.filename: tuple(getattr(info, name) for name in FIELDS)
            for info in theirs.infolist()
        }
        return ours, expected, directory.comment, theirs.comment


@pytest.mark.slow
@given(
    st.lists(st.tuples(NAMES, METHODS, CONTENTS), max_size=6),
    # zipfile takes the last signature for the end record's, inside its comment too.
    st.binary(max_size=20).filter(lambda comment: b"PK\x05\x06" not in comment),
    st.booleans(),
)
def test_what_zipfile_writes(members, comment, streamed):
    """Names, sizes, offsets, methods, flags and comment are zipfile's, descriptors or not."""
    stream = io.BytesIO()

    class Pipe:
        write, flush = stream.write, stream.flush

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of repeated names
        with zipfile.ZipFile(Pipe() if streamed else stream, "w") as written:
            written.comment = comment
            for name, method, data in members:
                written.writestr(name.replace("\\", "/"), data, method)
        ours, expected, *comments = described(stream.getvalue())
    assert ours == expected
    assert comments[0] == comments[1] == comment
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        npz = npzkit.open(stream)
    last = {name.replace("\\", "/"): data for name, _, data in members}
    for name, data in last.items():
        if not name.endswith(".npy"):
            assert npz[name] == npz.stream(name).read() == data


@given(st.data())
def test_changed_directories(data):
    """Where a byte of the directory is changed and both still read it, they agree on names and sizes."""
    good = archive(
        Member("a.npy", npy(np.arange(3))), Member("größe.npy", npy(np.eye(3)), method=8)
    )
    start = good.index(b"PK\x01\x02")
    changed = bytearray(good)
    changed[data.draw(st.integers(start, len(good) - 1))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ours, expected, *comments = described(bytes(changed))
        except (
            NpzkitError,
            zipfile.BadZipFile,
            NotImplementedError,
            UnicodeDecodeError,
            ValueError,
        ):
            return
    # Names that cannot be used may be other ones to zipfile, which cuts them at a NUL.
    refused = {fields[3] for fields in ours.values() if fields[5] & BAD_NAME}
    if comments[0] == comments[1]:
        both = [
            {name: fields[:5] for name, fields in found.items() if fields[3] not in refused}
            for found in (ours, expected)
        ]
        assert both[0] == both[1]


class Counted(BufferSource):
    """Bytes in memory, and how often they were read."""

    def __init__(self, data):
        super().__init__(data)
        self.count = 0

    def read_at(self, offset, size):
        self.count += 1
        return super().read_at(offset, size)


@each_row("comment", [b"", b"of a few words"])
@each_row(("size", "count"), [(100, 1), (100_000, 2)])
def test_a_usual_end_takes_few_reads(size, count, comment):
    """A small file is opened with one read, a larger one with that of its first bytes as well."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        written.writestr("a", b"A" * size)
        written.comment = comment
    source = Counted(stream.getvalue())
    assert list(read_directory(source, limits=Limits()).entries) == ["a"]
    assert source.count == count


@pytest.mark.parametrize("place", [100, 60_000])
def test_an_end_in_the_data_is_looked_at(place):
    """Bytes like an end record, in the last 64 KiB of data, lead to the search that compares them."""
    stream, data = io.BytesIO(), bytearray(70_000)
    data[place : place + 4] = b"PK\5\6"
    with zipfile.ZipFile(stream, "w") as written:
        written.writestr("a", bytes(data))
    source = Counted(stream.getvalue())
    assert list(read_directory(source, limits=Limits()).entries) == ["a"]
    assert (source.count > 2) == (place > 5_000)


def test_code_page_437_names():
    """A name without the UTF-8 flag is read in code page 437, as zipfile does."""
    data = archive(
        Member(b"gr\x94\xe1e.npy", npy(np.arange(3)), central={"flags": 0}, local={"flags": 0})
    )
    assert npzkit.open(data).files == ["größe"]
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == ["größe.npy"]


def test_unicode_path_field():
    """Info-ZIP's UTF-8 name wins over the name in another code page."""
    import zlib

    raw = b"gr\x94\xe1e.npy"
    payload = b"\x01" + zlib.crc32(raw).to_bytes(4, "little") + "Größe.npy".encode()
    extra = (0x7075).to_bytes(2, "little") + len(payload).to_bytes(2, "little") + payload
    member = Member(raw, npy(np.arange(3)), extra=extra, central={"flags": 0}, local={"flags": 0})
    npz = npzkit.open(archive(member))
    assert npz.files == ["Größe"]
    assert npz["Größe"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_entries_in_any_order(order):
    """Entries may be listed in another order than their members lie in."""
    members = [Member(f"{name}.npy", npy(np.full(3, value))) for value, name in enumerate("abc")]
    data = archive(*members)
    start, offsets, position = data.index(b"PK\x01\x02"), [], 0
    for member in members:
        offsets.append(position)
        position += len(member.local_bytes())
    listed = b"".join(members[i].central_bytes(offsets[i]) for i in order)
    npz = npzkit.open(data[:start] + listed + data[start + len(listed) :])
    assert npz.files == ["abc"[i] for i in order]
    assert {key: array[0] for key, array in npz.load_all().items()} == {"a": 0, "b": 1, "c": 2}


def test_missing_entries_are_counted():
    """If there are fewer entries than the end record counts, the error says how many there are."""
    stream = io.BytesIO()
    np.savez(stream, **{letter * 60: np.arange(3) for letter in "abc"})
    data = stream.getvalue()
    entry, end = data.rindex(b"PK\1\2"), data.rindex(b"PK\5\6")
    size = int.from_bytes(data[end + 12 : end + 16], "little") - (end - entry)
    data = data[:entry] + data[end : end + 12] + size.to_bytes(4, "little") + data[end + 16 :]
    with pytest.raises(ZipFormatError, match="found 2, expected 3"):
        npzkit.open(data)
