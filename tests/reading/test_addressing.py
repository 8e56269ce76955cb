"""What a 32-bit system has no addresses for: an error that says so, and the parts are read."""

from __future__ import annotations

import io
import sys
import zipfile

import npzkit
import numpy as np
import pytest
from npzkit.archive.lazyarray import new_array
from npzkit.errors import NpyFormatError, UnsupportedError
from npzkit.format import open_memmap, read_array
from npzkit.zip.entry_columns import places_of
from systems import IS_32_BIT

ARRAY = np.arange(500.0)


@pytest.fixture
def little(monkeypatch):
    """Arrays and bytes may have no more than 1000 bytes."""
    monkeypatch.setattr("npzkit.format.array._LARGEST_ARRAY", 1000)
    monkeypatch.setattr("npzkit.zip.member_stream._LARGEST_BYTES", 1000)


@pytest.mark.remedy("Use a 64-bit Python, or read a part: npz.lazy(key)[index].")
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_an_array_that_is_too_large(little, compression, tmp_path):
    """It is refused as a whole, and its parts are read."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": ARRAY}, compression=compression)
    with npzkit.open(path) as npz:
        for index in (slice(None), ..., slice(1, None), range(400)):
            with pytest.raises(UnsupportedError, match="too large for this 32-bit") as caught:
                npz.lazy("x")[index]
            assert (caught.value.key, caught.value.path) == ("x", str(path))
            assert not caught.value.is_damage
        if compression == "stored":
            for mode in ("r", "c", "r+"):
                with pytest.raises(UnsupportedError, match="too large"):
                    npz.memmap("x", mode)
        assert npz.lazy("x")[5:8].tolist() == [5, 6, 7]
        assert npz.lazy("x")[100:200].tolist() == ARRAY[100:200].tolist()


def test_an_npy_file_that_is_too_large(little, tmp_path):
    """It is neither read nor mapped."""
    path = tmp_path / "a.npy"
    np.save(path, ARRAY)
    with path.open("rb") as file, pytest.raises(UnsupportedError, match="too large"):
        read_array(file)
    with pytest.raises(UnsupportedError, match="too large"):
        open_memmap(path, "r")


@pytest.mark.remedy("Use a 64-bit Python, or read them in parts: npz.stream(key).read(size).")
def test_a_file_that_is_too_large(little):
    """The bytes of a member that is no array are refused as a whole, and read in parts."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.bin", bytes(2000))
    with npzkit.open(stream) as npz:
        for read in (lambda: npz["a.bin"], npz.load_all, lambda: npz.stream("a.bin").read()):
            with pytest.raises(UnsupportedError, match="too many for this 32-bit system") as caught:
                read()
            assert caught.value.key == "a.bin"
        with npz.stream("a.bin") as parts:
            assert [len(parts.read(900)) for _ in range(3)] == [900, 900, 200]


def test_what_no_system_can_have():
    """A shape that a 64-bit system cannot have either is not called too large for this one."""
    with pytest.raises(NpyFormatError, match="cannot create an array of this shape"):
        new_array((1 << 61, 16), np.dtype("f8"))
    if IS_32_BIT:
        with pytest.raises(UnsupportedError, match="too large for this 32-bit system"):
            new_array((1 << 40, 0), np.dtype("f8"))


@pytest.mark.parametrize("limit", [1, sys.maxsize])
def test_many_small_arrays(limit, monkeypatch):
    """Neighbours are read whether or not one array may show all of them at every byte."""
    monkeypatch.setattr("npzkit.reading.adjacent_members._LARGEST_ARRAY", limit)
    arrays = {f"x{number}": np.full(2500, number % 256, "u1") for number in range(600)}
    stream = io.BytesIO()
    npzkit.save(stream, arrays)
    with npzkit.open(stream) as npz:
        found = npz.load_all()
    assert all(np.array_equal(found[key], array) for key, array in arrays.items())


def test_a_directory_that_is_too_large_for_columns(monkeypatch):
    """Its entries are parsed one by one."""
    monkeypatch.setattr("npzkit.zip.entry_columns._LARGEST_DATA", 100)
    stream = io.BytesIO()
    np.savez(stream, **{f"x{number}": np.full(3, number) for number in range(50)})
    with npzkit.open(stream) as npz:
        assert len(npz) == 50
        assert npz["x7"].tolist() == [7, 7, 7]


def test_places_in_large_files():
    """Where signatures are found is added to offsets in files, which need 64 bits."""
    assert places_of(b"PK\1\2", b"..PK\1\2").dtype == np.int64
