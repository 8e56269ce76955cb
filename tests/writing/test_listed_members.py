"""The listing of an archive that is edited: order, replaced and missing keys."""

from __future__ import annotations

import zipfile

import forge
import npzkit
import numpy as np
import pytest
from archives import NOISE, by_save, check_accepted, untouched
from npzkit.errors import (
    AmbiguousArchiveWarning,
    KeyExistsError,
    MemberNotFoundError,
    UnsafeNameError,
)


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


def test_order_is_kept(path):
    """What is replaced or renamed stays where it was listed; what was removed comes last."""
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.add("y", np.zeros(2), overwrite=True)
        w.rename("x", "first")
        assert w.files == ["first", "y", "z"]
        w.commit()
        w.rename("first", "x")
        del w["y"]
        w["y"] = np.ones(2)
        assert w.files == ["x", "z", "y"]
        assert list(w) == w.files
        assert len(w) == 3
        assert "y" in w and "first" not in w
    check_accepted(path, x=np.arange(4), y=np.ones(2), z=NOISE)
    with npzkit.open(path) as npz:
        assert npz.files == ["x", "z", "y"]


@pytest.mark.remedy(
    "Pass overwrite=True to add() to replace it and its attributes, or use another key."
)
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_overwriting(path, compression):
    """overwrite=True replaces what is there, adds what is not, and counts from the commit on."""
    with npzkit.NpzWriter(path, "a", compression=compression, auto_repack=False) as w:
        with pytest.raises(UnsafeNameError, match="overwrite=True"):
            w["z"] = np.arange(3)
        w.add("z", NOISE, overwrite=True, attrs={"unit": "s"})
        w.add("z", NOISE + 1, overwrite=True)
        w.add("new", NOISE, overwrite=True)
        with npzkit.open(path) as npz:
            assert np.array_equal(npz["z"], NOISE)
        w.add("new", np.arange(5), overwrite=True, attrs={"unit": "m"})
    check_accepted(path, z=NOISE + 1, new=np.arange(5))
    with npzkit.open(path) as npz:
        assert (npz.info("z").attrs, npz.info("new").attrs) == ({}, {"unit": "m"})


@pytest.mark.remedy("with attrs=writer.attrs(key) to keep its attributes.")
def test_attributes_are_kept_if_that_is_said(path):
    """The error for a key with attributes says that they go, and how they stay."""
    with npzkit.NpzWriter(path, "a") as writer:
        writer.attrs("x")["unit"] = "V"
        with pytest.raises(UnsafeNameError, match="to keep its attributes"):
            writer["x"] = np.arange(3)
        writer.add("x", np.arange(3), attrs=writer.attrs("x"), overwrite=True)
    with npzkit.open(path) as npz:
        assert (npz["x"].tolist(), npz.info("x").attrs) == ([0, 1, 2], {"unit": "V"})


def test_a_key_whose_array_is_being_created(path):
    """It is taken, and has no attributes yet."""
    with npzkit.NpzWriter(path) as w, w.create("x", (2,), "f8") as dst:
        with pytest.raises(KeyExistsError, match=r"add\(\) to replace it"):
            w["x"] = np.ones(2)
        dst[:] = 1
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [1, 1]


def test_missing_keys(path):
    """Removing, renaming or asking attributes of what is not there is a KeyError that says so."""
    with untouched(path), npzkit.NpzWriter(path, "a") as w:
        for use in (
            lambda: w.__delitem__("nothing"),
            lambda: w.rename("nothing", "x"),
            lambda: w.attrs("nothing"),
        ):
            with pytest.raises(MemberNotFoundError, match="Existing keys: 'x', 'y', 'z'") as caught:
                use()
            assert isinstance(caught.value, KeyError)
        with pytest.raises(UnsafeNameError):
            w.rename("x", "y")
        with pytest.raises(UnsafeNameError):
            w.rename("x", "../x")
        w.rename("x", "x")


@pytest.mark.parametrize("count", [2, 100])
def test_repeated_names_are_healed(tmp_path, count):
    """Of two members of one name the last is kept, at the place of the first."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(count):
            archive.writestr(f"k{number}.npy", forge.npy(np.arange(number)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("k0.npy", forge.npy(np.ones(3)))
    before = path.read_bytes()
    with untouched(path), pytest.warns(AmbiguousArchiveWarning):
        npzkit.NpzWriter(path, "a").close()
    with pytest.warns(AmbiguousArchiveWarning), npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["new"] = np.arange(3)
    assert path.read_bytes().startswith(before)
    check_accepted(path, k0=np.ones(3), new=np.arange(3))
    with npzkit.open(path) as npz:
        assert npz.files == [*(f"k{number}" for number in range(count)), "new"]
