"""Archives that other programs made read as what they hold."""

from __future__ import annotations

import hashlib
import io
import sys
import zlib

import npzkit
import numpy as np
import pytest
from forge import Member, archive, npy
from npzkit.errors import PickleRefusedError, UnsupportedError

from tables import each_row

X = np.arange(12, dtype="<i8").reshape(4, 3)
Y = np.asfortranarray(np.linspace(0, 1, 300).reshape(20, 15)).astype("<f4", order="K")
SCALAR = np.float64(2.5)

METHODS = {
    "numpy_savez.npz": "stored",
    "numpy_savez_compressed.npz": "deflated",
    "infozip_deflated.npz": "deflated",
    "infozip_stored.npz": "stored",
    "infozip_stream.npz": "deflated",
    "7zip_deflate64.npz": "deflate64",
    "7zip_bzip2.npz": "bzip2",
    "7zip_lzma.npz": "lzma",
    "jar_descriptors.npz": "deflated",
    "zipfile_descriptors64.npz": "deflated",
    "zipfile_zstandard.npz": "zstd",
}


def test_all_fixtures_are_here_and_unchanged(fixtures):
    """Every fixture is listed with its checksum, and every listed one is there."""
    listed = {}
    for line in (fixtures / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        listed[name] = digest
    files = {p.relative_to(fixtures).as_posix() for p in fixtures.rglob("*") if p.is_file()}
    present = files - {"SHA256SUMS", "PROVENANCE.md"}
    assert present == set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((fixtures / name).read_bytes()).hexdigest() == digest, name
        # Those of one machine were made together.
        said = "architectures/" if name.startswith("architectures/") else name
        assert said in (fixtures / "PROVENANCE.md").read_text()


@each_row("name", METHODS)
def test_arrays_and_method(name, fixtures):
    """The three arrays are read, one by one, together and as streams, whatever the method."""
    if METHODS[name] == "zstd":
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    check_arrays(fixtures / name, METHODS[name])


@pytest.mark.parametrize("library", ["zipfile_deflate64", "inflate64"])
def test_deflate64_by_each_library(library, deflate64_by, fixtures):
    """Deflate64 is read alike by either of the libraries that decode it."""
    deflate64_by(library)
    check_arrays(fixtures / "7zip_deflate64.npz", "deflate64")


def check_arrays(path, method):
    with npzkit.open(path, strict=True) as npz:
        assert sorted(npz) == ["scalar", "x", "y"]
        for key, expected in (("x", X), ("y", Y), ("scalar", SCALAR)):
            assert (
                npz.info(key).method == method
                or npz.info(key).compressed_size == npz.info(key).nbytes + 128
            )
            for found in (
                npz[key],
                npz.load_all()[key],
                npz.read(key, out=np.zeros_like(expected)),
            ):
                assert np.array_equal(found, expected)
                assert found.dtype == expected.dtype
            assert np.array_equal(np.lib.format.read_array(npz.stream(key)), expected)
        assert npz["y"].flags.f_contiguous


def test_frames_of_the_command_zstd(fixtures):
    """An array in two frames, with skippable ones at both ends, is read as one member."""
    pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    raw, data = (fixtures / "zstd_frames.zst").read_bytes(), npy(X)
    size = {"usize": len(data), "crc": zlib.crc32(data)}
    made = archive(Member("x.npy", b"", method=93, raw=raw, central=size, local=size))
    with npzkit.open(made) as npz:
        assert np.array_equal(npz["x"], X)
        assert np.array_equal(npz.lazy("x")[2:], X[2:])
        assert npz.verify().ok
    (found,) = npzkit.iter_arrays(io.BytesIO(made))
    assert np.array_equal(found[1], X)


def test_what_numpy_reads_too(fixtures):
    """Wherever numpy can read a fixture, it finds the same."""
    for name, method in METHODS.items():
        if method in ("deflate64", "zstd"):
            continue
        with np.load(fixtures / name) as theirs, npzkit.open(fixtures / name) as ours:
            assert ours.files == theirs.files
            for key in theirs.files:
                assert np.array_equal(ours[key], theirs[key])


def test_objects(fixtures):
    """Pickled arrays are refused, and read when pickle is allowed."""
    with npzkit.open(fixtures / "numpy_object.npz") as npz, pytest.raises(PickleRefusedError):
        npz["objects"]
    with npzkit.open(fixtures / "numpy_object.npz", allow_pickle=True) as npz:
        assert npz["objects"].tolist() == [1, "two", None]


@pytest.mark.filterwarnings("ignore:.*align should be passed")
def test_python2_objects(fixtures):
    """A pickle from Python 2 needs an encoding, as in numpy, and fails with its exception."""
    path = fixtures / "python2_object.npz"
    with npzkit.load(path, allow_pickle=True, encoding="latin1") as npz:
        assert npz["x"].tolist() == ["é", "Ã©", 3]
    with npzkit.load(path, allow_pickle=True, encoding="bytes") as npz:
        assert npz["x"].tolist() == ["é", b"\xc3\xa9", 3]
    with (
        npzkit.load(path, allow_pickle=True) as npz,
        pytest.raises(UnicodeError, match="encoding="),
    ):
        npz["x"]


def test_python2_integers(fixtures):
    """A header with 3L is read with a warning."""
    with pytest.warns(UserWarning, match="Python 2"):
        found = npzkit.load(fixtures / "python2_long.npy")
    assert np.array_equal(found, np.full((2, 3), 1.5))


def test_records(fixtures):
    """Structured and datetime arrays keep their dtypes."""
    with npzkit.open(fixtures / "numpy_records.npz") as npz:
        assert npz["table"].dtype == [("id", "<i4"), ("pos", "<f8", (3,)), ("tag", "S4")]
        assert npz["table"]["id"].tolist() == [0, 1, 2, 3, 4]
        assert npz["when"][1] == np.datetime64("2020-02")


def test_names(fixtures):
    """UTF-8 names, folders, notes and comments are read."""
    with npzkit.open(fixtures / "zipfile_names.npz") as npz:
        assert npz.files == ["größe/Δ", "folder/", "readme.txt"]
        assert np.array_equal(npz["größe/Δ"], X)
        assert npz["readme.txt"] == b"a note"
        assert dict(npz.metadata) == {}
        assert npz.zip.comment == b"not JSON"


def test_encrypted(fixtures):
    """An encrypted member is listed, and refused."""
    with npzkit.open(fixtures / "infozip_encrypted.npz") as npz:
        assert npz.files == ["x"]
        with pytest.raises(UnsupportedError, match="encrypted"):
            npz["x"]


def test_real_data(fixtures):
    """The tour's digits and photographs are what they are said to be."""
    with npzkit.open(fixtures / "digits.npz") as npz:
        assert npz["images"].shape == (1797, 8, 8)
        assert np.bincount(npz["labels"]).tolist() == [
            178,
            182,
            177,
            183,
            181,
            182,
            181,
            179,
            174,
            180,
        ]
    with npzkit.open(fixtures / "photographs.npz") as npz:
        assert {npz.info(key).shape for key in npz} == {(214, 320, 3)}
