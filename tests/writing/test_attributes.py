"""Attributes of arrays that are already written."""

from __future__ import annotations

import struct
import zipfile

import forge
import npzkit
import numpy as np
import pytest
from archives import NOISE, by_npzkit, by_save, check_accepted
from npzkit.errors import ClosedArchiveError, LimitExceededError


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


def test_attributes_are_edited(tmp_path):
    """Attributes are added, changed and removed where the arrays stand."""
    path = tmp_path / "a.npz"
    by_npzkit(path)
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.attrs("noise")["scale"] = np.float32(0.5)
        w.attrs("x").clear()
        w["new"] = np.arange(3)
        w.attrs("new").update(a="1", b=[1, None], c="text")
        w.commit()
        w.attrs("new")["d"] = True
    assert path.read_bytes().startswith(before)
    with npzkit.open(path) as npz:
        assert npz.info("noise").attrs == {"long": "ü" * 100, "scale": 0.5}
        assert npz.info("x").attrs == {}
        assert npz.info("new").attrs == {"a": "1", "b": [1, None], "c": "text", "d": True}
        assert np.array_equal(npz.lazy("noise")[-5:], NOISE[-5:])
    check_accepted(path, noise=NOISE, x=np.arange(4))


def test_the_name_of_a_dtype_stays(tmp_path):
    """Editing attributes and renaming leave bfloat16 what it is."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "a.npz"
    array = np.arange(300).astype(ml_dtypes.bfloat16)
    npzkit.save(path, {"x": array, "y": array})
    with npzkit.NpzWriter(path, "a") as w:
        assert w.attrs("x") == {}
        w.attrs("x")["unit"] = "m"
        w.rename("y", "z")
        w.attrs("z")["unit"] = "s"
    with npzkit.NpzWriter(path, "a") as w:
        w.attrs("x").clear()
        with pytest.raises(ValueError, match="is reserved"):
            w.attrs("z")["npzkit.dtype"] = "int4"
            w.commit()
        del w.attrs("z")["npzkit.dtype"]
    with npzkit.open(path) as npz:
        assert npz["x"].dtype == npz["z"].dtype == array.dtype
        assert npz.lazy("z").attrs == {"unit": "s"}
        assert npz["z"].tobytes() == array.tobytes()


BAD_ATTRIBUTES = {
    "too long": ("long", "x" * 70_000, LimitExceededError),
    "unserialisable": ("array", np.arange(3), TypeError),
    "no text": (3, "three", TypeError),
    "own": ("npzkit.dtype", "int4", ValueError),
}


@pytest.mark.parametrize("kind", BAD_ATTRIBUTES)
def test_attributes_that_cannot_be_written(path, kind):
    """A commit refuses them and loses nothing; once they are gone it goes through.

    What JSON cannot represent is refused when it is assigned, if it is not inside a value.
    """
    name, value, error = BAD_ATTRIBUTES[kind]
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
        w.attrs("y")["good"] = 1
        dict.update(w.attrs("x"), {name: value})
        with pytest.raises(error):
            w.commit()
        with npzkit.open(path) as npz:
            assert npz.files == ["x", "y", "z"]
        with pytest.raises(error):
            w.rename("x", "renamed")
        del w.attrs("x")[name]
    assert path.read_bytes().startswith(before)
    check_accepted(path, new=NOISE)
    with npzkit.open(path) as npz:
        assert npz.info("y").attrs == {"good": 1}
    before = path.read_bytes()
    w = npzkit.NpzWriter(path, "a")
    w["lost"] = NOISE
    dict.update(w.attrs("x"), {name: value})
    with pytest.raises(error):
        w.close()
    assert path.read_bytes() == before
    with pytest.raises(ClosedArchiveError):
        w.close()


@pytest.mark.parametrize("size", [65_531, 65_400, 60_000])
def test_foreign_extra_fields_that_leave_no_room(tmp_path, size):
    """What another program filled is kept, renamed and repacked; attributes beside it are refused."""
    path = tmp_path / "a.npz"
    extra = struct.pack("<HH", 0xCAFE, size) + bytes(size)
    member = forge.Member("x.npy", forge.npy(np.arange(4)), extra=extra)
    path.write_bytes(forge.archive(member))
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
        w.attrs("x")["long"] = "x" * 10_000
        with pytest.raises(LimitExceededError, match="extra field"):
            w.commit()
        w.attrs("x").clear()
        w.rename("x", "renamed")
    npzkit.repack(path)
    check_accepted(path, renamed=np.arange(4), new=np.arange(3))
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("renamed.npy").extra == extra
