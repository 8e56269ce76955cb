"""Dtypes that NPY cannot name: bfloat16, float8 and the others of ml_dtypes."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zipfile

import npzkit
import numpy as np
import pytest
from forge import Member, archive, npy
from npzkit.errors import NpyFormatError, UnsupportedError

from tables import each_row

COMPRESSIONS = ["stored", "deflated"]


def test_extension_dtypes(tmp_path):
    """bfloat16 and float8 come back by name; np.load sees bytes of their size."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "a.npz"
    arrays = {
        name: np.arange(8).astype(getattr(ml_dtypes, name))
        for name in ("bfloat16", "float8_e4m3fn", "int4")
    }
    arrays["large"] = np.arange(100_000).astype(ml_dtypes.bfloat16).reshape(100, -1)
    for compression in COMPRESSIONS:
        npzkit.save(path, arrays, compression=compression)
        with npzkit.open(path) as npz:
            for key, array in arrays.items():
                for found in (
                    npz[key],
                    npz.load_all()[key],
                    npz.read(key, out=np.zeros_like(array)),
                ):
                    assert found.dtype == array.dtype
                    assert np.array_equal(found, array)
                assert npz.info(key).dtype == array.dtype
                assert dict(npz.info(key).attrs) == {}
        with np.load(path) as theirs:
            assert theirs["bfloat16"].dtype == "V2"


@pytest.mark.parametrize("size", [0, 10, 1000])
def test_attributes_stand_beside_the_dtype(tmp_path, size):
    """Arrays of two dtypes come back, whether their attributes are short or long."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "a.npz"
    dtypes = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
    with npzkit.NpzWriter(path) as writer:
        for number, dtype in enumerate(dtypes * 2):
            writer.add(str(number), np.arange(9).astype(dtype), attrs={"text": "x" * size})
    with npzkit.open(path) as npz:
        assert [array.dtype for array in npz.load_all().values()] == dtypes * 2
        assert npz.info("3").attrs == {"text": "x" * size}


@each_row("name", ["int4", "float32", "finfo", "np", "__builtins__", "no", "", 7])
def test_a_dtype_that_does_not_fit_is_not_taken(name):
    """The attribute that restores a dtype names one of the same size, or nothing comes of it."""
    pytest.importorskip("ml_dtypes")
    text = str(name).encode()
    pairs = b"KeyValuePairs\1\x0c\0npzkit.dtype" + struct.pack("<H", len(text)) + text
    extra = struct.pack("<HH", 0x564B, len(pairs)) + pairs
    array = np.frombuffer(b"abcd", "V2")
    npz = npzkit.open(archive(Member("x.npy", npy(array), extra=extra)))
    for found in (npz["x"], npz.load_all()["x"], npz.lazy("x")[:]):
        assert found.dtype == array.dtype
        assert found.tobytes() == b"abcd"
    assert npz.info("x").dtype == array.dtype


@pytest.mark.remedy("Save the field as a separate array.")
def test_extension_dtypes_in_fields_are_refused(tmp_path):
    """A field that would lose its dtype silently is refused; as an array it keeps the dtype."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in ([("x", ml_dtypes.bfloat16)], [("a", [("x", ml_dtypes.bfloat16, (2,))])]):
        array = np.zeros(2, dtype)
        with pytest.raises(UnsupportedError, match="lose its dtype"):
            npzkit.save(tmp_path / "a.npz", {"a": array})
        field = array["x"] if "x" in array.dtype.names else array["a"]["x"]
        npzkit.save(tmp_path / "a.npz", {"x": field})
        with npzkit.open(tmp_path / "a.npz") as npz:
            assert npz["x"].dtype == ml_dtypes.bfloat16


@pytest.mark.remedy("Save array.astype(array.dtype.newbyteorder('=')).")
def test_extension_dtypes_in_another_byte_order():
    """A bfloat16 whose byte order a void cannot tell is refused, with a remedy that works."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    native = np.array([1, 2], ml_dtypes.bfloat16)
    swapped = native.astype(native.dtype.newbyteorder("S"))
    stream = io.BytesIO()
    with pytest.raises(UnsupportedError, match="byte order") as caught:
        npzkit.save(stream, {"a": swapped})
    assert "newbyteorder('=')" in caught.value.remedy
    npzkit.save(stream, {"a": swapped.astype(swapped.dtype.newbyteorder("="))})
    assert np.array_equal(npzkit.open(stream)["a"], native)


def test_without_ml_dtypes(monkeypatch):
    """Where ml_dtypes is missing, the bytes are read, with a warning that names it."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.zeros(2, ml_dtypes.bfloat16)})
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.warns(UserWarning, match="pip install ml_dtypes"):
        assert npzkit.open(stream)["a"].dtype == "V2"


def test_every_dtype_of_ml_dtypes(tmp_path):
    """Each scalar type of ml_dtypes comes back as it was, and opens in np.load."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kinds = {
        name: value
        for name, value in vars(ml_dtypes).items()
        if isinstance(value, type) and issubclass(value, np.generic)
    }
    assert len(kinds) > 10
    arrays = {name: np.array([0, 1, 1]).astype(kind) for name, kind in kinds.items()}
    npzkit.save(tmp_path / "a.npz", arrays)
    with npzkit.open(tmp_path / "a.npz") as npz:
        for name, array in arrays.items():
            assert npz[name].dtype == array.dtype
            assert npz[name].tobytes() == array.tobytes()
    with np.load(tmp_path / "a.npz") as theirs:
        assert all(theirs[name].dtype.kind == "V" for name in arrays)


def test_extension_dtypes_with_metadata(tmp_path):
    """A dtype of ml_dtypes that carries metadata is saved without, with a warning."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("float8_e5m2", "bfloat16", "float8_e4m3fn"):
        plain = np.array([1, 2, 4], getattr(ml_dtypes, name))
        tagged = plain.view(np.dtype(plain.dtype, metadata={"unit": "m"}))
        expected, found = io.BytesIO(), io.BytesIO()
        npzkit.save(expected, {"a": plain})
        with pytest.warns(UserWarning, match="metadata"):
            npzkit.save(found, {"a": tagged})
        assert found.getvalue() == expected.getvalue()
        assert npzkit.open(found)["a"].dtype == plain.dtype
        bare = npzkit.format.drop_metadata(tagged.dtype)
        assert (bare, bare.metadata) == (plain.dtype, None)


def of_another_program(descr, data):
    """Return an archive of an array of three items, without npzkit's attributes."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': (3,), }}".ljust(117) + "\n"
    array = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + data
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        written.writestr("w.npy", array)
    return stream.getvalue()


BFLOATS = bytes([0x80, 0x3F] * 3)


@pytest.mark.slow
@pytest.mark.parametrize(("descr", "data"), [("bfloat16", BFLOATS), ("float8_e4m3fn", b"\x38" * 3)])
def test_a_header_that_names_an_extension_dtype(descr, data):
    """It is read whether ml_dtypes was imported before or not; without it, the error names it."""
    pytest.importorskip("ml_dtypes")
    found = of_another_program(descr, data)
    with npzkit.open(found) as npz:
        assert npz["w"].tolist() == [1, 1, 1]
    code = (
        "import sys, npzkit; assert 'ml_dtypes' not in sys.modules; "
        "print(npzkit.open(sys.stdin.buffer.read())['w'].dtype)"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], input=found, capture_output=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert run.stdout.decode().split() == [descr], run.stderr.decode()


@pytest.mark.remedy("or install the package that defines it: ml_dtypes has bfloat16 and float8.")
def test_a_header_that_names_a_dtype_of_a_missing_package(monkeypatch):
    """The error names the package, and with it the array is read."""
    pytest.importorskip("ml_dtypes")
    name = "float8_e4m3b11fnuz"
    found = of_another_program(name, b"\x58" * 3)
    with npzkit.open(found) as npz:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "ml_dtypes", None)
            patched.delitem(np.sctypeDict, name)
            with pytest.raises(NpyFormatError, match="not a valid dtype descriptor"):
                npz["w"]
        assert npz["w"].tolist() == [1, 1, 1]


def test_bytes_of_bfloat16_of_another_program():
    """An example says what they are, with its dtype; one of another size does not."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    data = of_another_program("|V2", BFLOATS)
    like = np.zeros(3, ml_dtypes.bfloat16)
    found = npzkit.load_tree(data, like={"w": like})["w"]
    assert (found.dtype, found.tolist()) == (like.dtype, [1, 1, 1])
    npzkit.load_tree(data, into={"w": like})
    assert like.tolist() == [1, 1, 1]
    for other in (ml_dtypes.float8_e4m3fn, np.float16):
        with pytest.raises(npzkit.errors.TreeMismatchError):
            npzkit.load_tree(data, like={"w": np.zeros(3, other)})
