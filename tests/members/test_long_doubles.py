"""Long doubles, of which machines have several kinds: a warning, a name, and no wrong values."""

from __future__ import annotations

import io
import zipfile

import npzkit
import numpy as np
import pytest
from npzkit.errors import UnsupportedError
from npzkit.format import descr

ARRAYS = {
    "x": np.arange(3, dtype="g"), "c": np.ones((2, 2), "G"),
    "s": np.zeros(2, [("a", "i4"), ("b", "g", (2,))]), "f": np.ones(3),
}  # fmt: skip
LONG = ["x", "c", "s"]
needs_long_doubles = pytest.mark.skipif(
    np.dtype("g").itemsize == 8, reason="a long double is a double here"
)
READS = {
    "item": lambda npz, key: npz[key],
    "load_all": lambda npz, key: npz.load_all([key, "f"])[key],
    "lazy": lambda npz, key: npz.lazy(key)[1:],
    "memmap": lambda npz, key: npz.memmap(key),
    "out": lambda npz, key: npz.read(key, out=np.empty_like(ARRAYS[key])),
}


@pytest.fixture
def path(tmp_path):
    """An archive with long doubles, of few and of many arrays."""
    path = tmp_path / "a.npz"
    more = {f"y{number}": np.arange(5.0) for number in range(20)}
    with pytest.warns(UserWarning, match="long double differs between machines"):
        npzkit.save(path, ARRAYS | more)
    return path


def test_float_is_no_long_double(recwarn):
    """Other arrays are saved without a warning, and so are long doubles that are doubles."""
    npzkit.save(io.BytesIO(), {"x": np.ones(3), "c": np.ones(3, "c16"), "f": np.ones(3, "f2")})
    assert not recwarn


@needs_long_doubles
@pytest.mark.parametrize("read", READS)
def test_they_come_back(path, read):
    """On the machine that saved them, nothing is different."""
    with npzkit.open(path) as npz:
        for key in LONG:
            found = READS[read](npz, key)
            assert np.array_equal(found, ARRAYS[key][1:] if read == "lazy" else ARRAYS[key])
    assert npzkit.verify(path).rows == ()


@needs_long_doubles
@pytest.mark.remedy("Read it on a machine of that kind, and save array.astype(float).")
@pytest.mark.parametrize("read", READS)
def test_those_of_another_machine(path, read, monkeypatch):
    """They are refused instead of read as other numbers, and are not called damaged."""
    with monkeypatch.context() as patched:
        patched.setattr(descr, "_LONG_DOUBLES", {np.finfo("g").nmant: "another machine"})
        with npzkit.open(path) as npz:
            for key in LONG:
                with pytest.raises(UnsupportedError, match="another kind of machine") as caught:
                    READS[read](npz, key)
                assert (caught.value.key, caught.value.is_damage) == (key, False)
                assert npz.info(key).dtype == ARRAYS[key].dtype
            assert npz["f"].tolist() == [1, 1, 1]
        report = npzkit.verify(path)
        assert report.ok and [row.key for row in report.rows] == LONG
    with npzkit.open(path) as npz:
        npzkit.save(path, {key: npz[key].astype(float) for key in ["x"]})
    assert np.load(path)["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", ["<f12", ">f10", "<c24", "<f16", "<c32"])
def test_a_dtype_that_this_machine_lacks(tmp_path, text):
    """Its array is not damaged: `verify` notes it, and copies have it."""
    try:
        np.dtype(text)
        pytest.skip(f"this machine has {text}")
    except TypeError:
        pass
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    header = stream.getvalue()[:128].replace(b"'<f8'", f"'{text}'".encode()).replace(b" ", b"", 1)
    data = header.rstrip().ljust(127) + b"\n" + bytes(3 * int(text[2:]))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", data)
        archive.writestr("y.npy", stream.getvalue())
    with npzkit.open(tmp_path / "a.npz") as npz:
        with pytest.raises(UnsupportedError, match="another kind of machine") as caught:
            npz["x"]
        assert (caught.value.found, caught.value.is_damage) == (text, False)
        assert npz["y"].tolist() == [0, 0, 0]
    report = npzkit.verify(tmp_path / "a.npz")
    assert report.ok and [(row.key, row.severity) for row in report.rows] == [("x", "note")]
    assert npzkit.repair(tmp_path / "a.npz", tmp_path / "b.npz").kept == ("x", "y")
    npzkit.repack(tmp_path / "a.npz", tmp_path / "c.npz")
    for name in "bc":
        with zipfile.ZipFile(tmp_path / f"{name}.npz") as archive:
            assert archive.read("x.npy") == data
