"""Writing: what may be written, where, and that it happens whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import gc
import gzip
import io
import itertools
import json
import os
import pickle
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import weakref
import zipfile
from collections.abc import Mapping

import npzkit
import numpy as np
import pytest
from deep import DEEP
from forge import Member, archive, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import (
    ClosedArchiveError,
    NpzkitError,
    PickleRefusedError,
    UnsafeNameError,
    UnsupportedError,
)
from npzkit.files.parallel import Pipeline
from npzkit.members.metadata import MAX_DEPTH
from npzkit.zip import writer as zip_writer

COMPRESSIONS = ["stored", "deflated"]


def files_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_numpy_reads_what_is_written(tmp_path, arrays, compression):
    """Every array comes back from plain np.load, as it was."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays, compression=compression, metadata={"step": 7})
    with np.load(path) as theirs:
        assert theirs.files == list(arrays)
        for key, array in arrays.items():
            assert theirs[key].tobytes() == np.asanyarray(array).tobytes()
            assert theirs[key].dtype == np.asanyarray(array).dtype


def test_members_hold_numpys_bytes(arrays):
    """Each member is byte for byte what numpy's own writer makes of the array."""
    stream = io.BytesIO()
    npzkit.save(stream, arrays)
    with zipfile.ZipFile(stream) as archive:
        for key, array in arrays.items():
            expected = io.BytesIO()
            np.lib.format.write_array(expected, np.asanyarray(array))
            assert archive.read(key + ".npy") == expected.getvalue()


def test_stored_data_is_aligned_and_headers_are_plain(tmp_path, arrays):
    """Stored data begins at multiples of 64; nothing has zip64, a clock or a descriptor."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays)
    with npzkit.open(path) as npz:
        assert all(npz.info(key).data_offset % 64 == 0 for key in npz)
    for info in zipfile.ZipFile(path).infolist():
        assert (info.date_time, info.create_system, info.external_attr >> 16) == (
            (1980, 1, 1, 0, 0, 0),
            3,
            0o600,
        )
        assert (info.create_version, info.extract_version, info.flag_bits, info.extra) == (
            20,
            20,
            0,
            b"",
        )


class Pipe:
    """A stream that can only be written to."""

    def __init__(self):
        self.data = bytearray()

    def write(self, data):
        self.data += data
        return len(data)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_same_bytes_everywhere(tmp_path, arrays, compression):
    """A path, a file, memory, a stream that cannot seek: the same bytes, twice over."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays, compression=compression)
    expected = path.read_bytes()
    npzkit.save(path, arrays, compression=compression)
    assert path.read_bytes() == expected
    memory, pipe = io.BytesIO(), Pipe()
    for file in (memory, pipe):
        npzkit.save(file, arrays, compression=compression)
    with open(tmp_path / "b.npz", "wb") as file:
        npzkit.save(file, arrays, compression=compression)
        assert not file.closed
    with gzip.open(tmp_path / "c.gz", "wb") as file:
        npzkit.save(file, arrays, compression=compression)
    with open(tmp_path / "d.npz", "ab", buffering=0) as file:
        npzkit.save(file, arrays, compression=compression)
    assert memory.getvalue() == pipe.data == expected
    assert (tmp_path / "b.npz").read_bytes() == gzip.open(tmp_path / "c.gz").read() == expected
    assert (tmp_path / "d.npz").read_bytes() == expected


def test_a_socket(arrays):
    """An archive streams through a socket and is read on the other side."""
    left, right = socket.socketpair()

    def send():
        with left, left.makefile("wb") as file:
            npzkit.save(file, arrays, compression="deflated")

    thread = threading.Thread(target=send)
    thread.start()
    with right, right.makefile("rb") as file:
        data = file.read()
    thread.join()
    assert np.array_equal(npzkit.open(data)["weights"], arrays["weights"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe(tmp_path, arrays):
    """A path that names a pipe is written to, not replaced."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    thread = threading.Thread(target=npzkit.save, args=(path, arrays))
    thread.start()
    data = path.read_bytes()
    thread.join()
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert np.array_equal(npzkit.open(data)["weights"], arrays["weights"])


def test_from_the_position_of_a_file_object(arrays):
    """An archive begins where the file object stands."""
    stream = io.BytesIO(b"before")
    stream.seek(6)
    npzkit.save(stream, arrays)
    assert np.array_equal(npzkit.open(stream.getvalue()[6:])["weights"], arrays["weights"])
    stream.seek(6)
    assert np.array_equal(npzkit.load(stream)["weights"], arrays["weights"])


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_levels(level):
    """A level is honoured: 0 stores, higher ones are no larger."""
    array = np.tile(np.arange(1000), 50)
    sizes = {}
    for chosen in (level, 1):
        stream = io.BytesIO()
        npzkit.save(stream, {"a": array}, compression="deflated", level=chosen)
        assert np.array_equal(np.load(io.BytesIO(stream.getvalue()))["a"], array)
        sizes[chosen] = len(stream.getvalue())
    if level == 0:
        assert sizes[0] > array.nbytes
    else:
        assert sizes[level] <= sizes[1] < array.nbytes / 5


def test_choices_per_array(tmp_path):
    """Method and level may differ from array to array."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, compression=zipfile.ZIP_DEFLATED) as w:
        w["a"] = np.zeros(1000)
        w.add("b", np.zeros(1000), compression="stored")
        w.add("c", np.zeros(1000), level=0)
        assert (len(w), w.files, "b" in w, "d" in w) == (3, ["a", "b", "c"], True, False)
    with npzkit.open(path) as npz:
        assert [npz.info(key).method for key in "abc"] == ["deflated", "stored", "deflated"]
        assert npz.info("c").compressed_size > 8000 > npz.info("a").compressed_size


@pytest.mark.parametrize("compression", ["gzip", 12, 3.5, True])
def test_bad_choices(compression, tmp_path):
    """An unknown compression, level or mode is refused before anything is touched."""
    for options in ({"compression": compression}, {"level": 10}, {"level": "9"}, {"mode": "a+"}):
        with pytest.raises(ValueError, match=r"compression|level|mode"):
            npzkit.NpzWriter(tmp_path / "a.npz", **options)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/abs",
        "C:/x",
        "a\0b",
        "a\nb",
        "a\\b",
        "..",
        "../a",
        "a/../b",
        "a.npy",
        "\ud800",
        "x" * 70_000,
    ],
)
def test_unsafe_keys(key, tmp_path):
    """A key that no reader could use safely is refused, and nothing is written."""
    with pytest.raises(UnsafeNameError) as caught:
        npzkit.save(tmp_path / "a.npz", {"good": np.zeros(3), key: np.zeros(3)})
    assert caught.value.key == key
    assert files_in(tmp_path) == []


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_any_other_key_survives(key):
    """Whatever key is taken is found again, by npzkit and by zipfile."""
    stream = io.BytesIO()
    try:
        npzkit.save(stream, {key: np.arange(3)})
    except UnsafeNameError:
        return
    npz = npzkit.open(stream)
    assert npz.files == [key]
    assert zipfile.ZipFile(stream).namelist() == [key + ".npy"]
    assert np.array_equal(npz[key], np.arange(3))


def test_keys_that_numpy_eats():
    """file, arr_0 and allow_pickle are keys like any other."""
    arrays = {
        "file": np.arange(3),
        "arr_0": np.zeros(2),
        "allow_pickle": np.ones(1),
        "self": np.eye(2),
    }
    stream = io.BytesIO()
    npzkit.save(stream, arrays)
    assert list(np.load(io.BytesIO(stream.getvalue()))) == list(arrays)


class Tensor:
    """An object that refuses to become an array, as tensors do."""

    def __init__(self, error, dtype="float32"):
        self.error, self.dtype = error, f"torch.{dtype}"

    def __array__(self, dtype=None, copy=None):
        raise self.error

    def detach(self):
        return self

    cpu = detach


NO_ARRAYS = {
    "ragged list": ([1, [2, 3]], "different lengths"),
    "gradient": (Tensor(RuntimeError("requires grad")), r"tensor\.detach\(\)\.cpu\(\)\.numpy\(\)"),
    "bfloat16": (Tensor(TypeError("no bfloat16"), "bfloat16"), r"view\(ml_dtypes\.bfloat16\)"),
    "anything": (Tensor(KeyError("why")), r"tensor\.detach"),
}


def check_no_array(value, remedy, tmp_path):
    """Hold every way to write an object against the one error it is to give."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(io.BytesIO()) as w:
        filled = w.create("filled", (2,), "f8")
        grown = w.create("k", (None,), "f8", compression="deflated")
        for write in (
            lambda: npzkit.save(path, {"k": value}),
            lambda: npzkit.save(path, {"k": value}, masked="split"),
            lambda: npzkit.savez(path, k=value),
            lambda: npzkit.savez_compressed(path, k=value),
            lambda: w.add("k", value),
            lambda: w.add("k", value, attrs={"unit": "m"}),
            lambda: w.__setitem__("k", value),
            lambda: filled.__setitem__(slice(None), value),
            lambda: grown.append(value),
        ):
            with pytest.raises(NpzkitError, match=remedy) as caught:
                write()
            assert isinstance(caught.value, ValueError)
            assert isinstance(caught.value, TypeError)
            assert caught.value.key in ("k", "filled")
            assert caught.value.found == type(value).__name__
            assert caught.value.__cause__ is not None
        grown.append(np.ones(2))
        grown.close()
        filled.close()
        w["more"] = np.eye(2)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("kind", NO_ARRAYS)
def test_what_is_no_array(kind, tmp_path):
    """An object that NumPy makes no array of is one error with key and remedy, however written."""
    check_no_array(*NO_ARRAYS[kind], tmp_path)


def test_tensors_that_are_no_arrays(tmp_path):
    """PyTorch's tensors that need a gradient, or hold bfloat16, are refused; the remedies work."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    gradient = torch.ones(2, requires_grad=True)
    bfloat16 = torch.full((2,), 1.5, dtype=torch.bfloat16)
    check_no_array(gradient, NO_ARRAYS["gradient"][1], tmp_path)
    check_no_array(bfloat16, NO_ARRAYS["bfloat16"][1], tmp_path)
    arrays = {
        "gradient": gradient.detach().cpu().numpy(),
        "float": bfloat16.detach().cpu().float().numpy(),
        "bits": bfloat16.detach().cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16),
    }
    npzkit.save(tmp_path / "a.npz", arrays)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert [npz[key].tolist() for key in arrays] == [[1, 1], [1.5, 1.5], [1.5, 1.5]]


@pytest.mark.parametrize("error", [OSError("disk"), MemoryError()], ids=repr)
def test_errors_of_the_system_pass_through_an_object(error):
    """What the system says while an object becomes an array is not renamed."""
    with pytest.raises(type(error)) as caught:
        npzkit.save(io.BytesIO(), {"k": Tensor(error)})
    assert caught.value is error


def test_repeated_keys(tmp_path):
    """A key is written once; the second time is refused and the first one kept."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        w["a"] = np.zeros(3)
        with pytest.raises(UnsafeNameError, match="already"):
            w["a"] = np.ones(3)
        with pytest.raises(TypeError):
            w[3] = np.ones(3)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert np.array_equal(npz["a"], np.zeros(3))


@pytest.mark.parametrize(
    ("array", "error"),
    [
        (np.array([None]), PickleRefusedError),
        (np.zeros(1, [("a", object)]), PickleRefusedError),
        (np.ma.masked_array([1, 2], [0, 1]), UnsupportedError),
        (np.array(["text"], dtype=np.dtypes.StringDType()), PickleRefusedError),
    ],
    ids=["object", "object in a structure", "masked", "StringDType"],
)
def test_arrays_that_cannot_be_saved(array, error, tmp_path):
    """Objects, masks and variable strings are refused before a byte is written, with a remedy."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        npzkit.save(path, {"good": np.zeros(3), "bad": array})
    assert caught.value.key == "bad"
    assert caught.value.remedy
    assert path.read_bytes() == before
    with npzkit.NpzWriter(path) as w:
        w["good"] = np.zeros(3)
        with pytest.raises(error):
            w["bad"] = array
        w["after"] = np.ones(3)
    with npzkit.open(path) as npz:
        assert npz.files == ["good", "after"]
    assert files_in(tmp_path) == ["a.npz"]


def test_pickle_on_request(tmp_path):
    """allow_pickle=True writes objects that np.load reads."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.array([1, "x", None], dtype=object)}, allow_pickle=True)
    with np.load(path, allow_pickle=True) as theirs:
        assert theirs["a"].tolist() == [1, "x", None]


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


@pytest.mark.parametrize("name", ["int4", "float32", "finfo", "np", "__builtins__", "no", "", 7])
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


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 900])
def test_deep_values_can_be_written_again(depth):
    """What is nested deeper than npzkit writes it is no metadata, and an attribute is text."""
    text = "[" * depth + "]" * depth
    pairs = b"KeyValuePairs\1\1\0a" + struct.pack("<H", len(text)) + text.encode()
    extra = struct.pack("<HH", 0x564B, len(pairs)) + pairs
    member = Member("x.npy", npy(np.arange(3)), extra=extra)
    npz = npzkit.open(archive(member, comment=b'{"a": ' + text[1:-1].encode() + b"}"))
    metadata, attrs = dict(npz.metadata), dict(npz.info("x").attrs)
    assert bool(metadata) is isinstance(attrs["a"], list) is (depth <= MAX_DEPTH)
    json.dumps([metadata, attrs], indent=1)
    stream = io.BytesIO()
    npzkit.save(stream, {}, metadata=metadata)
    assert npzkit.open(stream).metadata == metadata


@pytest.mark.parametrize("end", ["x" * 16, "\0" * 16, "\0" * 8 + "\1" + "\0" * 7])
def test_attributes_do_not_end_an_archive(tmp_path, end):
    """An attribute that ends as a zip64 locator would misleads no reader, nor an append."""
    path = tmp_path / "a.npz"
    attrs = {"text": f"PK\x06\x07{end}"}
    for mode, key in (("w", "x"), ("a", "y")):
        with npzkit.NpzWriter(path, mode=mode) as w:
            w.add(key, np.arange(3), attrs=attrs)
        with npzkit.open(path, strict=True) as npz:
            assert dict(npz.info(key).attrs) == attrs
        with np.load(path) as theirs:
            assert theirs[key].tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_data_does_not_end_an_archive(tmp_path, mode):
    """Where no array is left, none that was removed is taken for a zip64 locator."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with npzkit.NpzWriter(path, mode, auto_repack=False) as w:
        w["y"] = np.frombuffer(b"PK\x06\x07" + b"\1" * 16, "u1")
        for key in w.files:
            del w[key]
    with npzkit.open(path, strict=True) as npz, np.load(path) as theirs:
        assert npz.files == theirs.files == []


def test_attributes_and_metadata(tmp_path):
    """Attributes and metadata come back with their types, and np.load does not see them."""
    path = tmp_path / "a.npz"
    attrs = {
        "unit": "m",
        "number": "3",
        "scale": 0.5,
        "axes": ["x", "y"],
        "none": None,
        "größe": True,
        "np": np.int64(3),
    }
    with npzkit.NpzWriter(path, metadata={"a": np.float32(0.5)}) as w:
        w.add("x", np.arange(3), attrs=attrs)
        w.add("y", np.arange(3), attrs=attrs, compression="deflated")
        w["z"] = np.arange(3)
        w.metadata["nested"] = {"list": [1, None, "x"]}
    with npzkit.open(path) as npz:
        for key in ("x", "y"):
            assert dict(npz.info(key).attrs) == {**attrs, "np": 3}
            assert np.array_equal(npz[key], np.arange(3))
        assert npz.info("x").aligned
        assert dict(npz.info("z").attrs) == {}
        assert dict(npz.metadata) == {"a": 0.5, "nested": {"list": [1, None, "x"]}}
        assert npz.zip.testzip() is None
    with np.load(path) as theirs:
        assert theirs.files == ["x", "y", "z"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.dictionaries(KEYS, JSON, max_size=4), st.dictionaries(KEYS, JSON, max_size=4))
def test_any_json_survives(metadata, attrs):
    """Whatever JSON can express is kept, as metadata and as attributes."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, metadata=metadata) as w:
        w.add("a", np.arange(3), attrs=attrs)
    npz = npzkit.open(stream)
    assert dict(npz.metadata) == metadata
    assert dict(npz.info("a").attrs) == attrs


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"a": "x" * 65_536}, ValueError),
        ({"a": np.arange(3)}, TypeError),
        ({3: 4}, TypeError),
        ({"a": object()}, TypeError),
    ],
    ids=["too long", "array", "key", "object"],
)
def test_bad_metadata(metadata, error, tmp_path):
    """Metadata that cannot be kept is refused at once, or at close with the old file kept."""
    path = tmp_path / "a.npz"
    with pytest.raises(error):
        npzkit.save(path, {"a": np.arange(3)}, metadata=metadata)
    assert files_in(tmp_path) == []
    npzkit.save(path, {"old": np.arange(3)})
    w = npzkit.NpzWriter(path)
    w["a"] = np.zeros(3)
    w.metadata.update(metadata)
    with pytest.raises(error):
        w.close()
    with npzkit.open(path) as npz:
        assert npz.files == ["old"]
    with npzkit.NpzWriter(path) as w:
        for attrs in ({"a": "x" * 65_536}, {3: 4}, {"a": object()}):
            with pytest.raises((ValueError, TypeError)):
                w.add("a", np.zeros(3), attrs=attrs)
        w["b"] = np.zeros(3)
    assert files_in(tmp_path) == ["a.npz"]


def circles():
    """Values that contain themselves, one way or another."""
    a_list, a_dict, a_pair = [], {"x": 1}, []
    a_list.append(a_list)
    a_dict["inner"] = {"a": a_dict}
    a_pair.append((1, {"b": [a_pair]}))
    deep, too_deep = [], []
    for _ in range(100_000):
        deep = [deep]
    for _ in range(MAX_DEPTH):
        too_deep = [too_deep]
    return {"list": a_list, "dict": a_dict, "pair": a_pair, "deep": deep, "too deep": too_deep}


@pytest.mark.parametrize("kind", ["list", "dict", "pair", "deep", "too deep"])
def test_metadata_without_an_end(kind, tmp_path):
    """Metadata and attributes that contain themselves, or nearly so, are a ValueError."""
    value = circles()[kind]
    says = "nested too deeply" if "deep" in kind else "must not contain themselves"
    with pytest.raises(ValueError, match=f"metadata.*{says}"):
        npzkit.save(tmp_path / "a.npz", {}, metadata={"ok": 1, "bad": value})
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with pytest.raises(ValueError, match=f"attributes.*{says}"):
            w.add("a", np.arange(3), attrs={"bad": value})
        twice = [1, 2]
        w.add("a", np.arange(3), attrs={"fine": [twice, twice, {"again": twice}]})
    assert files_in(tmp_path) == ["a.npz"]


@pytest.mark.parametrize("kind", [np.longdouble, np.clongdouble])
def test_numbers_that_python_lacks(kind):
    """A longdouble in metadata or attributes is a TypeError that names it."""
    for value in (kind(1), np.array(kind(1))):
        with pytest.raises(TypeError, match=kind.__name__):
            npzkit.save(io.BytesIO(), {}, metadata={"a": value})
        with (
            npzkit.NpzWriter(io.BytesIO()) as w,
            pytest.raises(TypeError, match=kind.__name__),
        ):
            w.add("a", np.arange(3), attrs={"a": value})


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file(error, tmp_path):
    """Leaving the with block by an exception discards the new file, whole."""
    path = tmp_path / "a.npz"
    for old in (None, b"whatever was here"):
        if old is not None:
            path.write_bytes(old)
        with pytest.raises(error), npzkit.NpzWriter(path) as w:
            w["a"] = np.zeros(1_000_000)
            raise error
        assert files_in(tmp_path) == ([] if old is None else ["a.npz"])
        assert old is None or path.read_bytes() == old
    with pytest.raises(ClosedArchiveError):
        w["b"] = np.zeros(3)
    w.close()
    w.abort()


def test_nothing_is_renamed_in_a_stream(tmp_path):
    """What cannot be read back cannot be copied; the writer says so and goes on."""
    with open(tmp_path / "a.npz", "wb") as file, npzkit.NpzWriter(file) as w:
        w["a"] = np.arange(3)
        with pytest.raises(UnsupportedError, match="renaming needs"):
            w.rename("a", "b")
        w["c"] = np.arange(3)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.files == ["a", "c"]


def test_an_aborted_stream_is_no_archive():
    """What an aborted writer left in a file object is refused by readers."""
    stream = io.BytesIO()
    with pytest.raises(RuntimeError), npzkit.NpzWriter(stream) as w:
        w["a"] = np.zeros(1000)
        raise RuntimeError
    with pytest.raises(npzkit.errors.ZipFormatError):
        npzkit.open(stream)


def test_a_forgotten_writer(tmp_path):
    """A writer that is dropped open warns and discards."""
    w = npzkit.NpzWriter(tmp_path / "a.npz")
    w["a"] = np.zeros(3)
    with pytest.warns(ResourceWarning, match="never closed"):
        del w
        gc.collect()
    assert files_in(tmp_path) == []


def test_mode_x(tmp_path):
    """Mode x never replaces, not even what appears while it writes."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, "x") as w:
        w["a"] = np.zeros(3)
    with pytest.raises(FileExistsError):
        npzkit.NpzWriter(path, "x")
    other = tmp_path / "b.npz"
    w = npzkit.NpzWriter(other, "x")
    w["a"] = np.zeros(3)
    other.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        w.close()
    assert other.read_bytes() == b"mine"
    assert files_in(tmp_path) == ["a.npz", "b.npz"]


def test_mode_x_without_hard_links(tmp_path, monkeypatch):
    """Where the file system has no hard links, mode x still never replaces."""

    def refuse(*args):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    with npzkit.NpzWriter(tmp_path / "a.npz", "x") as w:
        w["a"] = np.arange(3)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert np.array_equal(npz["a"], np.arange(3))
    w = npzkit.NpzWriter(tmp_path / "b.npz", "x")
    (tmp_path / "b.npz").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        w.close()
    assert files_in(tmp_path) == ["a.npz", "b.npz"]


def test_links_and_permissions_are_kept(tmp_path):
    """A symbolic link stays one, and a replaced file keeps its permissions."""
    real = tmp_path / "real.npz"
    npzkit.save(real, {"a": np.zeros(3)})
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~umask
    real.chmod(0o640)
    link = tmp_path / "link.npz"
    link.symlink_to(real)
    npzkit.save(link, {"a": np.ones(3)})
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    with npzkit.open(real) as npz:
        assert npz["a"][0] == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_what_is_private_is_so_from_the_start(tmp_path, monkeypatch):
    """The file that takes a private one's place can be opened by nobody else at any time."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.zeros(3)})
    path.chmod(0o600)
    modes = []
    real = os.open

    def opened(name, flags, **options):
        descriptor = real(name, flags, **options)
        if str(name).endswith(".tmp"):
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    umask = os.umask(0)
    try:
        monkeypatch.setattr(os, "open", opened)
        npzkit.save(path, {"a": np.ones(3)})
    finally:
        os.umask(umask)
    assert modes
    assert set(modes) == {0o600}


@pytest.mark.parametrize("mode", [0o444, 0o000])
@pytest.mark.parametrize("way", ["save", "w", "a", "repack"])
def test_a_file_that_may_not_be_written_to_stays(tmp_path, way, mode, monkeypatch):
    """What is protected against writing is not replaced either, as by NumPy."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    before = path.read_bytes()
    path.chmod(mode)
    if os.access(path, os.W_OK):
        # Root may write to any file.

        def refuse(name, flags, *rights, real=os.open):
            if os.fspath(name) == str(path) and (flags & os.O_RDWR or not mode):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            return real(name, flags, *rights)

        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError) as caught:
        if way == "save":
            npzkit.save(path, {"y": np.arange(3)})
        elif way == "repack":
            npzkit.repack(path)
        else:
            npzkit.NpzWriter(path, mode=way)
    assert os.fspath(caught.value.filename) == str(path)
    monkeypatch.undo()
    path.chmod(0o600)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)(), reason="only root gives files away")
@pytest.mark.parametrize("way", ["save", "repack", "a"])
def test_owner_and_group_are_kept(tmp_path, way, monkeypatch):
    """What is replaced stays its owner's and its group's; where it cannot, others get no more."""
    path = tmp_path / "a.npz"

    def replace():
        npzkit.save(path, {"a": np.zeros(3), "b": np.ones(3)})
        os.chown(path, 1234, 2345)
        path.chmod(0o664)
        before = path.stat().st_ino
        if way == "save":
            npzkit.save(path, {"b": np.ones(3)})
        elif way == "repack":
            npzkit.repack(path)
        else:
            with npzkit.NpzWriter(path, "a") as w:
                del w["a"]
        after = path.stat()
        assert after.st_ino != before
        with npzkit.open(path) as npz:
            assert npz["b"][0] == 1
        return after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)

    def refuse(*args):
        raise PermissionError(errno.EPERM, "not yours")

    assert replace() == (1234, 2345, 0o664)
    monkeypatch.setattr(os, "fchown", refuse)
    # Whose group it is now must not write it, as nobody else may.
    path.unlink()
    (tmp_path / "new").touch()
    new = (tmp_path / "new").stat()
    assert replace() == (new.st_uid, new.st_gid, 0o644)


def test_saving_over_what_is_mapped(tmp_path):
    """An archive may be rewritten from maps onto itself."""
    path = tmp_path / "a.npz"
    array = np.random.default_rng(0).random(100_000)
    npzkit.save(path, {"a": array})
    with npzkit.open(path) as npz:
        npzkit.save(path, {"a": npz.memmap("a"), "b": npz.memmap("a")[::2]})
    with npzkit.open(path) as npz:
        assert np.array_equal(npz["a"], array)
        assert np.array_equal(npz["b"], array[::2])


def test_changing_an_array_after_adding_it(tmp_path):
    """An array is taken as it is when it is added, small or large."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        for size in (3, 1000, 1_000_000):
            array = np.zeros(size)
            w[str(size)] = array
            array[...] = 1
    with npzkit.open(path) as npz:
        assert not any(array.any() for array in npz.load_all().values())


FAILING_CALLS = ["pwrite", "posix_fallocate", "fdatasync", "close", "replace"]


@pytest.mark.parametrize("call", [name for name in FAILING_CALLS if hasattr(os, name)])
def test_a_failing_system_leaves_the_old_file(call, tmp_path, monkeypatch):
    """A full disk or an I/O error, in any call, leaves the old file and nothing else."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    before = path.read_bytes()
    real = getattr(os, call)

    def fail(*args, **kwargs):
        if call == "close":
            real(*args)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            npzkit.save(path, {"new": np.zeros(1_000_000)}, durable=True)
    assert path.read_bytes() == before
    assert files_in(tmp_path) == ["a.npz"]


def test_a_file_system_without_reservations(tmp_path, monkeypatch):
    """Where room cannot be reserved, the file is written without."""

    def refuse(*args):
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    npzkit.save(tmp_path / "a.npz", {"a": np.zeros(1_000_000)})
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["a"].shape == (1_000_000,)


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate", "fchmod", "link"])
def test_a_missing_call_has_a_fallback(call, tmp_path, arrays, monkeypatch):
    """Without one of the calls that some systems lack, the same bytes are written."""
    expected = io.BytesIO()
    npzkit.save(expected, arrays, compression="deflated")
    monkeypatch.delattr(os, call, raising=False)
    with npzkit.NpzWriter(tmp_path / "a.npz", "x", compression="deflated") as w:
        for key, array in arrays.items():
            w[key] = array
    assert (tmp_path / "a.npz").read_bytes() == expected.getvalue()


def test_short_writes_are_repeated(tmp_path, arrays, monkeypatch):
    """A system that writes fewer bytes than given is given the rest."""
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:1000], offset))
    npzkit.save(tmp_path / "a.npz", arrays)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert np.array_equal(npz["weights"], arrays["weights"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_process_leaves_the_old_file(number, tmp_path):
    """A process stopped while it writes leaves the old file; SIGINT leaves nothing else."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    before = path.read_bytes()
    code = (
        "import signal, sys, time, npzkit, numpy as np\n"
        # A shell starts what runs in the background with SIGINT ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with npzkit.NpzWriter(sys.argv[1]) as w:\n"
        "    w['a'] = np.zeros(1_000_000)\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(number)
    child.wait(timeout=60)
    child.stdout.close()
    assert path.read_bytes() == before
    left = [name for name in files_in(tmp_path) if name != "a.npz"]
    assert len(left) == (number == signal.SIGKILL)
    assert all(name.startswith(".npzkit-") for name in left)


def test_errors_of_the_system_pass_through(tmp_path):
    """No folder, or a folder in the way: OSError, unchanged."""
    with pytest.raises(FileNotFoundError):
        npzkit.save(tmp_path / "absent" / "a.npz", {})
    with pytest.raises(IsADirectoryError):
        npzkit.save(tmp_path, {})


def test_an_empty_archive(tmp_path):
    """No arrays make an archive that numpy opens."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {}, metadata={"a": 1})
    with np.load(path) as theirs, npzkit.open(path) as ours:
        assert theirs.files == ours.files == []
        assert ours.load_all() == {}
        assert dict(ours.metadata) == {"a": 1}


def test_many_members_need_zip64(tmp_path):
    """65,535 members and more are written with a zip64 directory that everyone reads."""
    path = tmp_path / "a.npz"
    arrays = {str(i): np.uint8(i % 256) for i in range(65_536)}
    for count in (65_536, 65_535, 65_534) if DEEP else (65_535,):
        npzkit.save(path, dict(itertools.islice(arrays.items(), count)))
        with npzkit.open(path) as npz:
            assert len(npz) == count
            assert npz[str(count - 1)] == (count - 1) % 256
            if count == 65_535 or DEEP:
                assert len(npz.load_all()) == count
                with zipfile.ZipFile(path) as theirs:
                    assert len(theirs.namelist()) == count
        assert (b"PK\x06\x06" in path.read_bytes()[-200:]) == (count >= 65_535)


class Sparse:
    """A sink that keeps what is not zero: gigabytes of zeros cost nothing."""

    can_patch = True
    is_concurrent = False

    def __init__(self, path):
        self.file = open(path, "wb")
        self.position = 0

    def write(self, data):
        if len(data) < 100_000:
            self.file.seek(self.position)
            self.file.write(data)
        self.position += len(data)

    def reserve(self, size):
        pass

    def patch(self, offset, data):
        self.file.seek(offset)
        self.file.write(data)

    def commit(self, last, before=b""):
        self.write(before + last)
        self.file.truncate(self.position)

    def close(self):
        self.file.close()


def test_sizes_and_offsets_beyond_4_gib(tmp_path, monkeypatch):
    """A member over 4 GiB, and one that begins behind it, are written with zip64 and found."""
    monkeypatch.setattr(zip_writer, "crc32", lambda data, crc=0: 0)
    path = tmp_path / "a.npz"
    zeros = memoryview(bytes(1 << 26))
    sink = Sparse(path)
    writer = zip_writer.ZipWriter(sink)
    size = (1 << 32) + 128
    header = npzkit.format.header.format_header(
        {"descr": "|u1", "fortran_order": False, "shape": (1 << 32,)}
    )
    coding = zip_writer.Coding()
    with Pipeline(1) as pipeline:
        writer.write_member("large.npy", [header, *[zeros] * 64], size, pipeline, coding=coding)
        writer.write_member("small.npy", [header], len(header), pipeline, coding=coding)
    writer.commit()
    sink.close()
    with npzkit.open(path) as npz, zipfile.ZipFile(path) as theirs:
        info = npz.info("large")
        assert (info.shape, info.nbytes, info.aligned) == ((1 << 32,), 1 << 32, True)
        assert npz.memmap("large")[-1] == 0
        found = theirs.infolist()
        assert [member.file_size for member in found] == [size, 128]
        assert found[1].header_offset > 1 << 32
        assert theirs.open("large.npy").read(128) == header
        with pytest.raises(NpzkitError):
            npz["small"]


def test_a_writer_says_what_it_is(tmp_path):
    """repr names path, number of arrays and state."""
    w = npzkit.NpzWriter(tmp_path / "a.npz")
    assert "a.npz" in repr(w)
    assert "0 arrays, open" in repr(w)
    w.abort()
    assert "closed" in repr(w)


def test_threads_share_a_writer(tmp_path):
    """Arrays added by many threads at once all arrive, whole."""
    from concurrent.futures import ThreadPoolExecutor

    for compression in COMPRESSIONS:
        path = tmp_path / "a.npz"
        with (
            npzkit.NpzWriter(path, compression=compression) as w,
            ThreadPoolExecutor(8) as executor,
        ):
            list(executor.map(lambda i: w.add(str(i), np.full(10_000, i)), range(60)))
        with npzkit.open(path) as npz:
            assert {key: array[0] for key, array in npz.load_all().items()} == {
                str(i): i for i in range(60)
            }


def test_wrong_arguments_are_explained(tmp_path):
    """What is passed by mistake is named, and what to pass instead."""
    path = tmp_path / "a.npz"
    for wrong in (np.ones(2), [np.ones(2)], "x.npz"):
        with pytest.raises(TypeError, match="mapping"):
            npzkit.save(path, wrong)
    with pytest.raises(PickleRefusedError, match=r"found 'dict'.*npzkit\.save\("):
        npzkit.savez(path, allow_pickle=False, layer={"w": np.ones(2)})
    with pytest.raises(PickleRefusedError, match="found 'object'"):
        npzkit.save(path, {"a": object()})
    with pytest.raises(ValueError, match="level"):
        npzkit.save(path, {"a": np.ones(2)}, level=9)
    with pytest.raises(TypeError, match="metadata must be a mapping"):
        npzkit.save(path, {}, metadata="hi")
    with pytest.raises(TypeError, match="strings as keys, not 1"):
        npzkit.save(path, {}, metadata={"x": [{1: 2}]})
    with pytest.raises(FileNotFoundError) as caught:
        npzkit.save(tmp_path / "absent" / "a.npz", {})
    assert caught.value.filename == str(tmp_path / "absent" / "a.npz")
    with npzkit.NpzWriter(path) as w:
        with pytest.raises(TypeError, match="attrs must be a mapping"):
            w.add("a", np.ones(2), attrs="hi")
        with pytest.raises(ValueError, match=r"npzkit\.dtype"):
            w.add("a", np.ones(2), attrs={"npzkit.dtype": "x"})
        with pytest.raises(ValueError, match="level"):
            w.add("a", np.ones(2), level=3)
        w.add("b", np.ones(2), compression="deflated", level=np.int64(3))
    npzkit.save(os.fsencode(path), {"a": np.ones(2)}, compression=None)
    with npzkit.open(path) as npz:
        assert npz.files == ["a"]
        with pytest.raises(TypeError, match="several keys"):
            npz.load_all("a")
        with pytest.raises(KeyError, match="Existing keys: 'a'"):
            npz["zzz"]
        with pytest.raises(KeyError, match="Keys are strings"):
            npz[0]
    for wrong in ({"total_size": 10}, 3):
        with pytest.raises(TypeError, match=r"npzkit\.Limits"):
            npzkit.open(path, limits=wrong)
    for wrong in (-1, "1GB", 1.5):
        with pytest.raises(ValueError, match="a non-negative integer"):
            npzkit.Limits(total_size=wrong)


def test_extension_dtypes_in_fields_are_refused(tmp_path):
    """A field that would lose its dtype silently is refused."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in ([("x", ml_dtypes.bfloat16)], [("a", [("x", ml_dtypes.bfloat16, (2,))])]):
        with pytest.raises(UnsupportedError, match="lose its dtype"):
            npzkit.save(tmp_path / "a.npz", {"a": np.zeros(2, dtype)})


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


class Failing:
    """Replaces a call of the system by one that fails the n-th time, halfway through."""

    def __init__(self, monkeypatch, name, after):
        self.real, self.left = getattr(os, name), after
        monkeypatch.setattr(os, name, self)

    def __call__(self, descriptor, data, offset):
        self.left -= 1
        if self.left == 0:
            self.real(descriptor, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(descriptor, data, offset)


def test_a_writer_that_failed_stays_failed(tmp_path, monkeypatch):
    """After a write failed, nothing can be added or committed, even where the error was caught."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    before = path.read_bytes()
    w = npzkit.NpzWriter(path)
    w["a"] = np.arange(10)
    with monkeypatch.context() as patched:
        Failing(patched, "pwrite", after=2)
        with pytest.raises(OSError, match="No space"):
            w["big"] = np.zeros(10**6)
    with pytest.raises(ClosedArchiveError, match="discarded"):
        w["c"] = np.arange(3)
    with pytest.raises(ClosedArchiveError, match="discarded"):
        w.close()
    w.abort()
    assert path.read_bytes() == before
    assert files_in(tmp_path) == ["a.npz"]


def test_a_file_that_takes_no_more():
    """A non-blocking file that is full raises BlockingIOError; nothing is lost silently."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    with (
        open(readable, "rb"),
        open(writable, "wb", buffering=0) as pipe,
        pytest.raises(BlockingIOError),
    ):
        npzkit.save(pipe, {"a": np.zeros(1_000_000)})

    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            if len(written) > 9:
                raise AssertionError("it was told that nothing is taken")
            written.append(data)
            return 0

    written = []
    with pytest.raises(OSError, match="accepts no more"):
        npzkit.save(Full(), {"a": np.zeros(3)})


def in_a_child(work):
    """Run `work` in a forked child, as a program that ends by itself, and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)  # a child that hangs is killed
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def use_as_a_child(writer):
    """Do with an inherited writer what a child may do by mistake."""
    with pytest.raises(ClosedArchiveError, match="forked child"):
        writer["b"] = np.arange(4)
    with pytest.raises(ClosedArchiveError, match="forked child"):
        writer.close()
    with pytest.raises(ClosedArchiveError, match="forked child"), writer:
        pass
    with pytest.raises(SystemExit), writer:
        sys.exit()
    writer.abort()
    with pytest.raises(ClosedArchiveError):
        writer["b"] = np.arange(4)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("kind", ["path", "file"])
def test_a_forked_child_leaves_the_parents_file(tmp_path, kind):
    """A child neither completes, extends nor removes what its parent writes."""
    path = tmp_path / "a.npz"
    with open(path, "wb", buffering=0) as file:
        w = npzkit.NpzWriter(file if kind == "file" else path)
        w["a"] = np.arange(3)
        assert in_a_child(lambda: use_as_a_child(w)) == 0
        w["c"] = np.arange(5)
        w.close()
        w.close()
    with npzkit.open(path, strict=True) as npz:
        assert {key: array.tolist() for key, array in npz.load_all().items()} == {
            "a": [0, 1, 2],
            "c": [0, 1, 2, 3, 4],
        }
    assert files_in(tmp_path) == ["a.npz"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_a_thread_writes():
    """A child that inherits a writer whose lock is held gets an error and does not wait."""
    writing, done = threading.Event(), threading.Event()

    class Slow(io.RawIOBase):
        def write(self, data):
            writing.set()
            done.wait(30)
            return len(data)

    w = npzkit.NpzWriter(Slow())
    thread = threading.Thread(target=w.add, args=("a", np.arange(3)))
    thread.start()
    writing.wait(30)
    assert in_a_child(lambda: use_as_a_child(w)) == 0
    done.set()
    thread.join()
    w.close()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signal")
def test_a_signal_handler_that_uses_the_writer():
    """A handler that runs inside a call of the writer gets an error; the archive is unharmed."""
    said = []

    def handle(*args):
        for call in (lambda: w.add("b", np.arange(3)), w.close, w.abort):
            with pytest.raises((RuntimeError, ClosedArchiveError)) as caught:
                call()
            said.append(str(caught.value))

    class Interrupted(io.BytesIO):
        def write(self, data):
            signal.raise_signal(signal.SIGUSR1)
            return super().write(data)

    stream = Interrupted()
    w = npzkit.NpzWriter(stream)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        w["a"] = np.arange(3)
        w.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert all("while it was writing" in text for text in said[:3])
    assert len(said) > 3
    assert np.load(io.BytesIO(stream.getvalue()))["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("call", ["replace", "pwrite"])
def test_a_close_that_failed_stays_failed(call, tmp_path, monkeypatch):
    """After close failed it fails again, rather than look as if the file were there."""
    path = tmp_path / "a.npz"

    def refuse(*args):
        raise PermissionError(errno.EPERM, "not here")

    w = npzkit.NpzWriter(path)
    w["a"] = np.arange(3)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(PermissionError):
            w.close()
    for again in (w.close, lambda: w.add("b", np.arange(3))):
        with pytest.raises(ClosedArchiveError, match=r"could not be completed.*not here"):
            again()
    w.abort()
    w = npzkit.NpzWriter(path, metadata={"a": 1})
    w.metadata["b"] = object()
    for error in (TypeError, ClosedArchiveError, ClosedArchiveError):
        with pytest.raises(error):
            w.close()
    assert files_in(tmp_path) == []


def test_a_failed_writer_lets_go_of_the_array(tmp_path, monkeypatch):
    """The array that could not be written is not kept by the writer that failed."""

    class Tracked(np.ndarray):
        pass

    def refuse(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    w = npzkit.NpzWriter(tmp_path / "a.npz")
    array = np.zeros(1_000_000).view(Tracked)
    reference = weakref.ref(array)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        with contextlib.suppress(OSError):
            w["a"] = array
    del array
    gc.collect()
    assert reference() is None
    with pytest.raises(ClosedArchiveError, match="No space left"):
        w.close()


def test_a_file_object_without_a_name():
    """Errors of a writer read well where the file's name is a descriptor's number."""
    readable, writable = os.pipe()
    with open(readable, "rb"), os.fdopen(writable, "wb") as file:
        w = npzkit.NpzWriter(file)
        w["a"] = np.arange(3)
        with pytest.raises(UnsafeNameError) as caught:
            w["a"] = np.arange(3)
        assert "already" in str(caught.value)
        assert "1 arrays" in repr(w)
        w.abort()


@pytest.mark.parametrize("base", [io.BytesIO, io.FileIO, io.BufferedWriter, io.BufferedRandom])
def test_a_subclass_is_written_front_to_back(base, tmp_path, arrays):
    """A file object of the user's own class sees every byte once, in order, as a hash would."""
    seen = bytearray()

    class Watched(base):
        def write(self, data):
            seen.extend(data)
            return super().write(data)

        def seek(self, *args):
            raise AssertionError("sought")

    path = tmp_path / "a.npz"
    if base is io.BytesIO:
        file = Watched()
    elif base is io.FileIO:
        file = Watched(path, "wb")
    else:
        file = Watched(open(path, "w+b", buffering=0))
    npzkit.save(file, arrays, compression="deflated")
    expected = io.BytesIO()
    npzkit.save(expected, arrays, compression="deflated")
    assert seen == expected.getvalue()
    file.close()


OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]})
OUT_OF_ORDER = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [4, 0]})


@pytest.mark.parametrize("dtype", [OVERLAPPING, OUT_OF_ORDER, [("x", OVERLAPPING, (2,))]])
def test_fields_that_npy_cannot_describe(dtype, tmp_path):
    """Fields that overlap or lie out of order are refused up front, with a remedy that works."""
    stream = io.BytesIO()
    array = np.ones(3, dtype)
    for save in (npzkit.save, lambda file, arrays: npzkit.savez(file, **arrays)):
        with pytest.raises(UnsupportedError, match="overlapping or out-of-order") as caught:
            save(stream, {"good": np.arange(3), "bad": array})
        assert caught.value.key == "bad"
    assert stream.getvalue() == b""
    if array.dtype == OUT_OF_ORDER:
        from numpy.lib.recfunctions import repack_fields

        npzkit.save(stream, {"a": repack_fields(array)})
        assert npzkit.open(stream)["a"]["b"].tolist() == [1, 1, 1]


def test_objects_that_cannot_be_pickled():
    """Objects that pickle refuses are found before a stream is touched."""
    stream = io.BytesIO()
    bad = np.array([lambda: 0], dtype=object)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        npzkit.save(stream, {"good": np.arange(3), "bad": bad}, allow_pickle=True)
    assert stream.getvalue() == b""


def test_large_rows_of_transposed_arrays(tmp_path, monkeypatch):
    """An array whose rows are larger than a piece, and lie transposed, is written in its order."""
    monkeypatch.setattr("npzkit.format.array.PIECE_SIZE", 64)
    array = np.arange(2 * 30 * 40).reshape(2, 30, 40).transpose(0, 2, 1)
    for compression in COMPRESSIONS:
        npzkit.save(tmp_path / "a.npz", {"a": array}, compression=compression)
        with npzkit.open(tmp_path / "a.npz") as ours, np.load(tmp_path / "a.npz") as theirs:
            assert np.array_equal(ours["a"], array)
            assert np.array_equal(theirs["a"], array)


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


def test_dtypes_that_numpy_misspells():
    """Where numpy's header has a dtype that no reader knows, npzkit.format writes bytes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1, 2], ml_dtypes.float8_e5m2)
    for version in (None, (1, 0), (2, 0)):
        theirs, ours = io.BytesIO(), io.BytesIO()
        np.lib.format.write_array(theirs, array, version)
        npzkit.format.write_array(ours, array, version)
        assert b"<f1" in theirs.getvalue()
        assert ours.getvalue() == theirs.getvalue().replace(b"<f1", b"|V1")
        ours.seek(0)
        assert np.load(ours).tobytes() == array.tobytes()


def test_durable_waits_for_file_and_folder(tmp_path, monkeypatch):
    """durable=True has the file on disk before it takes its place, and the folder after.

    Without it only what takes another file's place is on disk first.
    """
    events = []
    real_sync, real_replace = os.fsync, os.replace
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda fd: (events.append("sync"), real_sync(fd))[1], False)
    monkeypatch.setattr(os, "replace", lambda *a: (events.append("replace"), real_replace(*a))[1])
    npzkit.save(tmp_path / "a.npz", {"a": np.arange(3)}, durable=True)
    assert (
        events == ["sync", "replace", "sync"] if os.name != "nt" else events == ["sync", "replace"]
    )
    events.clear()
    npzkit.save(tmp_path / "a.npz", {"a": np.arange(3)})
    assert events == ["sync", "replace"]
    events.clear()
    npzkit.save(tmp_path / "b.npz", {"a": np.arange(3)})
    assert events == ["replace"]


def test_permissions_that_cannot_be_set(tmp_path, monkeypatch):
    """A file system without permissions is written to all the same."""

    def refuse(*args):
        raise PermissionError(errno.EPERM, "not here")

    npzkit.save(tmp_path / "a.npz", {"a": np.zeros(3)})
    monkeypatch.setattr(os, "fchmod", refuse, raising=False)
    npzkit.save(tmp_path / "a.npz", {"a": np.ones(3)})
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["a"][0] == 1


def test_mode_x_gives_its_claim_back(tmp_path, monkeypatch):
    """Without hard links, a name that was claimed and not filled is free again."""

    def refuse(*args):
        raise PermissionError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "replace", refuse)
    w = npzkit.NpzWriter(tmp_path / "a.npz", "x")
    with pytest.raises(PermissionError):
        w.close()
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("key", ["C:x", "a//b", "./a", "a/", ".", "a/./b"])
def test_keys_that_change_on_extraction(key):
    """A key that would be another path once extracted is refused."""
    with pytest.raises(UnsafeNameError):
        npzkit.save(io.BytesIO(), {key: np.zeros(3)})
    npzkit.save(io.BytesIO(), {"kernel:0": np.zeros(3), ".hidden": np.zeros(3), "a.b": np.zeros(3)})


def test_warnings_name_the_caller(tmp_path):
    """A warning points at the user's line, not into npzkit."""
    long = np.zeros(1, [("x" * 70_000, "f4")])
    with pytest.warns(UserWarning, match="format 2") as caught:
        npzkit.save(tmp_path / "a.npz", {"a": long})
    assert caught[0].filename == __file__
    (tmp_path / "torn.npz").write_bytes((tmp_path / "a.npz").read_bytes() + b"!")
    with pytest.warns(npzkit.TornArchiveWarning) as caught:
        npzkit.open(tmp_path / "torn.npz").close()
    assert caught[0].filename == __file__


def test_saving_from_another_archive(tmp_path, arrays):
    """An archive is copied from an open one, array by array, onto itself too."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays)
    with npzkit.open(path) as npz:
        npzkit.save(path, npz, compression="deflated")
        with npzkit.open(path) as copied:
            assert copied.files == npz.files
            assert all(np.array_equal(copied[key], npz[key]) for key in npz)
    held = []

    class OneAtATime(Mapping):
        def __getitem__(self, key):
            held.append(key)
            return np.zeros(3) if key != "bad" else np.array([None])

        def __iter__(self):
            return iter(["a", "b", "bad", "c"])

        def __len__(self):
            return 4

    with pytest.raises(PickleRefusedError):
        npzkit.save(path, OneAtATime())
    assert held == ["a", "b", "bad"]
    assert files_in(tmp_path) == ["a.npz"]
    with npzkit.open(path) as npz:
        assert "weights" in npz


@pytest.mark.parametrize("title", [1.5, b"x", (1, 2.5)])
def test_titles_that_no_header_could_be_read_with(tmp_path, title):
    """A title that is no plain literal is refused before anything is written, nested or not."""
    inner = np.dtype({"names": ["a"], "formats": ["i4"], "titles": [title]})
    for dtype in (inner, np.dtype([("b", inner, (2,))])):
        with pytest.raises(UnsupportedError, match="a field's title"):
            npzkit.save(tmp_path / "a.npz", {"x": np.zeros(2, dtype)})
    assert not list(tmp_path.iterdir())
