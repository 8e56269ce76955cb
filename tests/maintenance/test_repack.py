"""Rewriting an archive: what is copied, what is improved, and what stays the same."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import forge
import npzkit
import numpy as np
import pytest
from commits import unfinished
from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    NotMappableError,
    UnsupportedError,
    ZipFormatError,
    quoted,
)
from systems import need_decoder_of, replaces_open_files

from tables import each_row

FIXTURES = Path(__file__).parents[2] / "fixtures"
READABLE = sorted(path for path in FIXTURES.glob("*.npz") if "encrypted" not in path.name)


def raw_members(path):
    """Return the compressed bytes of each listed member, found without npzkit."""
    data = Path(path).read_bytes()
    members = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            sizes = data[info.header_offset + 26 : info.header_offset + 30]
            name_size = int.from_bytes(sizes[:2], "little")
            start = info.header_offset + 30 + name_size + int.from_bytes(sizes[2:], "little")
            members[info.filename] = data[start : start + info.compress_size]
    return members


def contents(path):
    """Return keys and the bytes of members, in order, with attributes and metadata."""
    with npzkit.open(path) as npz:
        members = [(key, npz.stream(key).read(), dict(npz.info(key).attrs)) for key in npz]
        return members, dict(npz.metadata)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@each_row("compression", [None, "stored", "deflated"])
@each_row("path", READABLE)
def test_every_fixture_keeps_its_contents(tmp_path, path, compression):
    """Archives of other programs keep their contents, and their arrays can be mapped."""
    need_decoder_of(path.name)
    new = tmp_path / "a.npz"
    npzkit.repack(path, new, compression=compression, overwrite=True)
    assert contents(new) == contents(path)
    with npzkit.open(new) as npz:
        for key in npz:
            info = npz.info(key)
            if compression is not None:
                assert info.method == compression
            if info.method == "stored" and info.shape is not None and not info.dtype.hasobject:
                assert info.aligned
                if info.nbytes:
                    assert npz.memmap(key).shape == info.shape


def test_foreign_archives_become_seekable_and_aligned(tmp_path):
    """Files of np.savez and np.savez_compressed are mapped and sliced after a repack."""
    path = tmp_path / "a.npz"
    large = np.random.default_rng(0).integers(0, 9, 200_000)
    for save in (np.savez, np.savez_compressed):
        save(path, a=large, b=np.arange(5), odd=np.arange(3, dtype="u1"))
        npzkit.repack(path)
        with npzkit.open(path) as npz, np.load(path) as theirs:
            assert npz.info("a").seekable
            assert all(npz.info(k).aligned == (save is np.savez) for k in npz)
            assert np.array_equal(theirs["a"], large)
            assert npz.lazy("a")[150_000] == large[150_000]
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.remedy(
    "Read it with npz.read(key)", ", or store it: npzkit.repack(path, compression='stored')"
)
def test_the_remedy_of_what_cannot_be_mapped_works(tmp_path):
    """The error recommends repack, and its advice makes the member mappable."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(4))
    with npzkit.open(path) as npz:
        with pytest.raises(NotMappableError) as caught:
            npz.memmap("x")
        assert npz.read("x").tolist() == [0, 1, 2, 3]
    assert "npzkit.repack(path, compression='stored')" in caught.value.remedy
    npzkit.repack(path, compression="stored")
    with npzkit.open(path) as npz:
        assert npz.memmap("x").tolist() == [0, 1, 2, 3]


def test_what_needs_no_change_is_copied_as_it_is(tmp_path):
    """Compressed bytes, CRCs, attributes, metadata and seek indexes stay the same."""
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    large = np.random.default_rng(0).integers(0, 9, 200_000)
    with npzkit.NpzWriter(old, compression="deflated", metadata={"step": 7}) as w:
        w.add("layer/a", large, attrs={"unit": "m"})
        w.add("b", np.arange(10), compression="stored", attrs={"x": [1, 2]})
        w["c"] = np.zeros(10)
    npzkit.repack(old, new, overwrite=True)
    assert raw_members(new) == raw_members(old)
    assert contents(new) == contents(old)
    with npzkit.open(new) as npz:
        assert npz.info("layer/a").seekable
    npzkit.repack(new, old, overwrite=True)
    assert old.read_bytes() == new.read_bytes()


def test_seekable_false_copies_foreign_members_as_they_are(tmp_path):
    """With seekable=False, nothing is deflated again."""
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    np.savez_compressed(old, a=np.random.default_rng(0).integers(0, 9, 200_000))
    npzkit.repack(old, new, seekable=False, overwrite=True)
    assert raw_members(new) == raw_members(old)


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_what_is_written_in_another_way_keeps_what_is_said_of_it(tmp_path, compression):
    """Order, attributes, metadata and fields of other programs stay if the method changes."""
    path = tmp_path / "a.npz"
    foreign = b"\xfe\xca\x04\x00cafe"
    other = "deflated" if compression == "stored" else "stored"
    with npzkit.NpzWriter(path, compression=other, metadata={"step": 7}) as w:
        for number, key in enumerate(["z", "größe", "a"]):
            w.add(key, np.arange(100_000) % 7, attrs={"unit": "m", "number": number})
    before = contents(path)
    npzkit.repack(path, compression=compression)
    assert contents(path) == before
    with npzkit.open(path) as npz:
        assert [npz.info(key).method for key in npz] == [compression] * 3
    method = 8 if other == "deflated" else 0
    path.write_bytes(
        forge.archive(forge.Member("x.npy", forge.npy(np.arange(9)), method=method, extra=foreign))
    )
    npzkit.repack(path, compression=compression)
    with zipfile.ZipFile(path) as archive:
        assert archive.infolist()[0].extra == foreign
        assert archive.testzip() is None


def test_an_empty_member_that_goes_on_is_damaged(tmp_path):
    """Bytes after an empty deflated stream are not dropped silently."""
    path = tmp_path / "a.npz"
    path.write_bytes(forge.archive(forge.Member("x.bin", b"", method=8, raw=b"\x03\x00junk")))
    before = path.read_bytes()
    with pytest.raises(ZipFormatError):
        npzkit.repack(path, compression="stored")
    assert path.read_bytes() == before


def test_a_member_of_one_chunk_is_copied_as_it_is(tmp_path):
    """Members of up to one chunk need no seek index and are not deflated again."""
    path = tmp_path / "a.npz"
    for size, is_copied in ((262_144, True), (262_145, False)):
        # The NPY header is 128 bytes.
        array = np.random.default_rng(0).integers(0, 9, size - 128, dtype="u1")
        np.savez_compressed(path, a=array)
        before = raw_members(path)
        npzkit.repack(path)
        assert (raw_members(path) == before) == is_copied
        with npzkit.open(path) as npz:
            assert npz.info("a").seekable != is_copied


def test_a_file_object_is_repacked_from_where_it_stands(tmp_path):
    """An archive after other bytes is read at the file object's position, and written without them."""
    data = io.BytesIO()
    np.savez(data, x=np.arange(5))
    stream = io.BytesIO(b"before" + data.getvalue())
    stream.seek(6)
    npzkit.repack(stream, tmp_path / "a.npz", overwrite=True)
    with np.load(tmp_path / "a.npz") as npz:
        assert npz["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("align", [1, 8, 4096, 32768])
def test_any_alignment(tmp_path, align):
    """Stored arrays begin at multiples of `align`."""
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(5), b=np.eye(3), c=np.arange(7, dtype="u1"))
    npzkit.repack(path, align=align)
    with npzkit.open(path) as npz:
        assert all(npz.info(key).data_offset % align == 0 for key in npz)
        assert npz["b"].trace() == 3


def test_arrays_with_short_headers_are_aligned(tmp_path):
    """If an old writer's header ends at a multiple of 16, the data is aligned, not the header."""
    header = b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (4,), }".ljust(
        69
    ) + b"\n"  # fmt: skip
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header + np.arange(4.0).tobytes())
    npzkit.repack(path)
    with npzkit.open(path) as npz:
        assert npz.info("x").aligned
        assert npz.memmap("x").tolist() == [0, 1, 2, 3]


def test_a_header_that_is_none_is_copied(tmp_path):
    """A stored member that only begins like an array is copied unchanged."""
    path = tmp_path / "a.npz"
    data = b"\x93NUMPY\x09\x00" + bytes(100)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", data)
    npzkit.repack(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.read("x.npy") == data


def test_complete_arrays_that_were_not_committed_are_named(tmp_path):
    """What an unfinished append left is not written, and a warning names its arrays."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
        writer["y"] = np.arange(9)
        writer["z"] = np.arange(900)
    data = path.read_bytes()
    path.write_bytes(unfinished(data, data.index(b"z.npy") + 400))
    with pytest.warns(npzkit.errors.TornArchiveWarning) as caught:
        npzkit.repack(path, output)
    assert str(caught[-1].message).endswith(
        "bytes after the last commit left out; complete arrays there: y"
    )
    with npzkit.open(output) as npz:
        assert npz.files == ["x"]


def test_dead_space_and_torn_ends_are_left_behind(tmp_path):
    """Only listed members are copied."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(5)})
    clean = path.read_bytes()
    path.write_bytes(clean + b"PK\x03\x04" + bytes(1000))
    with pytest.warns(npzkit.errors.TornArchiveWarning):
        npzkit.repack(path)
    assert path.read_bytes() == clean


def test_progress_is_told(tmp_path):
    """The callback is called for every member, up to the total."""
    told = []
    arrays = {f"a{i}": np.zeros(1000) for i in range(5)}
    npzkit.save(tmp_path / "a.npz", arrays)
    npzkit.repack(
        tmp_path / "a.npz",
        io.BytesIO(),
        compression="deflated",
        progress=lambda *n: told.append(n),
        overwrite=True,
    )
    assert [total for _, total in told] == [5 * 8128] * 5
    assert [done for done, _ in told] == [8128 * n for n in range(1, 6)]


def test_damage_is_not_recoded(tmp_path):
    """A member whose CRC differs stops the repack, and the old file stays."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(100.0))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError) as caught:
        npzkit.repack(path, compression="deflated")
    assert caught.value.key == "x"
    assert quoted(path) in str(caught.value)
    assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["a.npz"]


def test_what_cannot_be_repacked_is_refused(tmp_path):
    """Encrypted members, invalid archives and bad arguments leave everything unchanged."""
    with pytest.raises(UnsupportedError):
        npzkit.repack(FIXTURES / "infozip_encrypted.npz", tmp_path / "a.npz", overwrite=True)
    with pytest.raises(ZipFormatError):
        npzkit.repack(FIXTURES / "PROVENANCE.md", tmp_path / "a.npz", overwrite=True)
    good = FIXTURES / "numpy_savez.npz"
    for arguments in (
        {"align": 3},
        {"align": 0},
        {"align": 1 << 16},
        {"compression": "lzma"},
        {"level": 10},
        {"chunk_size": 5},
        {"threads": 0},
    ):
        with pytest.raises(ValueError):
            npzkit.repack(good, tmp_path / "a.npz", overwrite=True, **arguments)
    with pytest.raises(ValueError, match="output is needed"):
        npzkit.repack(io.BytesIO(good.read_bytes()))
    with pytest.raises(ValueError, match="output is needed"):
        npzkit.repack(good.read_bytes())
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@replaces_open_files
def test_an_open_archive_is_repacked(tmp_path):
    """An NpzFile is copied as it was opened, needs `output`, and stays open."""
    path, other = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez_compressed(path, x=np.arange(200_000), y=np.eye(2))
    with npzkit.open(path) as npz:
        npzkit.repack(npz, other, overwrite=True)
        with pytest.raises(ValueError, match="output is needed"):
            npzkit.repack(npz)
        npzkit.save(path, {"new": np.eye(3)})
        stream = io.BytesIO()
        npzkit.repack(npz, stream, overwrite=True)
        npzkit.repack(npz, path, overwrite=True)
        assert npz["y"].tolist() == [[1, 0], [0, 1]]
    for file in (path, other, stream):
        with npzkit.open(file) as new:
            assert new.info("x").seekable
            assert np.array_equal(new["x"], np.arange(200_000))
    with open(other, "r+b") as file, pytest.raises(ValueError, match="the same file"):
        npzkit.repack(npzkit.open(file), file, overwrite=True)
    with pytest.raises(ClosedArchiveError):
        npzkit.repack(npz, stream, overwrite=True)


@replaces_open_files
def test_readers_keep_the_old_file(tmp_path):
    """An open archive and a map keep their data during a repack."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(1000))
    with npzkit.open(path) as npz:
        mapped = npz.memmap("x")
        npzkit.repack(path, compression="deflated")
        assert npz["x"].sum() == mapped.sum() == 499_500


def test_zip64_members_stay(tmp_path):
    """An unnecessary zip64 field is dropped, and sizes stay correct."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(1000))
    npzkit.repack(path)
    with zipfile.ZipFile(path) as archive:
        (info,) = archive.infolist()
        assert info.extract_version == 20
    with np.load(path) as npz:
        assert npz["x"].sum() == 499_500


@replaces_open_files
def test_a_file_is_not_overwritten_while_it_is_read(tmp_path):
    """A file object for the same file is refused, and the archive stays."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(100_000), y=np.arange(3))
    before = path.read_bytes()
    with open(path, "r+b") as file:
        for src in (path, file):
            with pytest.raises(ValueError, match="the same file"):
                npzkit.repack(src, file, overwrite=True)
    assert path.read_bytes() == before
    stream = io.BytesIO(before)
    with pytest.raises(ValueError, match="the same file"):
        npzkit.repack(stream, stream, overwrite=True)
    assert stream.getvalue() == before
    with open(path, "rb") as file:
        npzkit.repack(file, path, overwrite=True)
    with npzkit.open(path) as npz:
        assert npz.info("x").seekable


@pytest.mark.remedy("Copy the member unchanged: compression=None, seekable=False.")
def test_names_that_are_as_long_as_they_can_be(tmp_path):
    """A member whose name is too long for a seek index has none; one too long for UTF-8 is an error."""
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    array = np.arange(100_000)
    npzkit.save(old, {"k" * 65_531: array}, compression="deflated")
    npzkit.repack(old, new, overwrite=True)
    with npzkit.open(new) as npz:
        assert np.array_equal(npz["k" * 65_531], array)
    member = forge.Member(
        b"\x81" * 40_000 + b".npy", forge.npy(array), local={"flags": 0}, central={"flags": 0}
    )
    old.write_bytes(forge.archive(member))
    with pytest.raises(npzkit.NpzkitError):
        npzkit.repack(old, new, compression="deflated", overwrite=True)
    npzkit.repack(old, new, overwrite=True)
    npzkit.repack(old, new, compression=None, seekable=False, overwrite=True)
    with npzkit.open(new) as npz:
        assert np.array_equal(npz["ü" * 40_000], array)


@pytest.mark.parametrize("align", [64, 4096])
def test_members_stored_anew_are_aligned(tmp_path, align):
    """Arrays that were deflated begin at multiples of `align`, even after a short header."""
    header = b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (4,), }".ljust(
        69
    ) + b"\n"  # fmt: skip
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(5), b=np.eye(3))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header + np.arange(4.0).tobytes())
    npzkit.repack(path, compression="stored", align=align)
    with npzkit.open(path) as npz:
        assert [npz.info(key).data_offset % align for key in npz] == [0, 0, 0]
        assert npz.memmap("x").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("method", "version"), [(zipfile.ZIP_BZIP2, 46), (zipfile.ZIP_LZMA, 63)], ids=["bzip2", "lzma"]
)
def test_the_version_a_method_needs_is_written(method, version):
    """Both headers have the version that the method needs, and no unnecessary zip64."""
    old, new = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(old, "w", method) as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array(member, np.arange(100))
    npzkit.repack(old, new, overwrite=True)
    local = new.getvalue()[:30]
    assert int.from_bytes(local[4:6], "little") == version
    assert int.from_bytes(local[28:30], "little") == 0
    with zipfile.ZipFile(new) as archive:
        assert archive.infolist()[0].extract_version == version
        assert archive.testzip() is None


def test_a_member_that_is_copied_unchanged_counts_as_done():
    """Progress goes on from the end of a member whose name cannot be used."""
    members = [forge.Member(f"{number}.npy", forge.npy(np.zeros(1 << 13))) for number in range(8)]
    data, steps = (
        forge.archive(forge.Member("a\nb.npy", forge.npy(np.zeros(1 << 16))), *members),
        [],
    )
    with pytest.warns(UserWarning, match="copied unchanged"):
        npzkit.repack(
            io.BytesIO(data),
            io.BytesIO(),
            progress=lambda done, total: steps.append(done / total),
            overwrite=True,
        )
    assert steps[0] > 0.4
    assert steps[-1] == 1
