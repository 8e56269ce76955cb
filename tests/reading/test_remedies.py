"""Remedies of members that cannot be read as arrays are followed."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from forge import Member, archive, npy
from npzkit.errors import NpyFormatError, UnsupportedError

X = npy(np.arange(3))


def read(data):
    with npzkit.open(archive(Member("x.npy", data))) as npz:
        return npz["x"].tolist()


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(
            X.replace(b"NUMPY\1", b"NUMPY\7"),
            marks=pytest.mark.remedy(
                "create it again or restore a backup; or it needs a newer npzkit."
            ),
        ),
        pytest.param(
            X.replace(b"NUMPY", b"NUMPI"),
            marks=pytest.mark.remedy("if the member is no array, npz.stream(key) reads it."),
        ),
        *(
            pytest.param(
                damaged,
                marks=pytest.mark.remedy("The file is damaged, or a faulty program wrote it. "),
            )
            for damaged in (X.replace(b"descr", b"dascr"), X.replace(b"{", b"["), X[:-8])
        ),
    ],
    ids=["version", "magic", "key", "literal", "data"],
)
def test_a_damaged_array(damaged):
    """The array is read once it was created again."""
    with pytest.raises(NpyFormatError):
        read(damaged)
    assert read(X) == [0, 1, 2]


@pytest.mark.remedy("if the member is no array, npz.stream(key) reads it.")
def test_a_member_that_is_no_array_despite_its_name():
    """Its bytes are read from a stream."""
    with npzkit.open(archive(Member("x.npy", b"some words"))) as npz:
        with pytest.raises(NpyFormatError):
            npz["x"]
        assert npz.stream("x").read() == b"some words"


@pytest.mark.remedy("np.load ignores them; save the array again.")
def test_bytes_behind_an_array():
    """NumPy reads the array, which is then saved without them."""
    data = archive(Member("x.npy", X + b"more"))
    with npzkit.open(data) as npz, pytest.raises(NpyFormatError, match="bytes follow the array"):
        npz["x"]
    stream = io.BytesIO()
    with np.load(io.BytesIO(data)) as theirs:
        npzkit.save(stream, {"x": theirs["x"]})
    assert npzkit.open(stream)["x"].tolist() == [0, 1, 2]


@pytest.mark.remedy("Use a 64-bit Python, or read a part: npz.lazy(key)[index].")
def test_an_array_that_is_too_large_for_the_system(tmp_path, monkeypatch):
    """Parts of it can be read there, and all of it on a larger system."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(100_000)})
    with npzkit.open(path) as npz:
        with monkeypatch.context() as patched:
            patched.setattr("npzkit.format.array._LARGEST_ARRAY", 10_000)
            with pytest.raises(UnsupportedError, match="32-bit"):
                npz.memmap("x")
            assert npz.lazy("x")[70_000:70_002].tolist() == [70_000, 70_001]
        assert np.array_equal(npz.memmap("x"), np.arange(100_000))
