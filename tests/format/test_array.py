"""Arrays in NPY streams, compared with NumPy's reader and writer."""

from __future__ import annotations

import inspect
import io
import os
import pickle
import re
import socket
import tempfile
import threading
import warnings

import npzkit
import numpy as np
import pytest
from hypothesis import given
from npzkit import format as npy
from npzkit.errors import NpyFormatError, PickleRefusedError, UnsupportedError
from npzkit.format import array as array_module
from strategies import any_arrays

from tables import each_row


def numpy_bytes(array):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    return stream.getvalue()


def same(left, right):
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


class Trickle(io.RawIOBase):
    """A stream that cannot seek and returns a few bytes at a time."""

    def __init__(self, data):
        self.inner = io.BytesIO(data)

    def read(self, size=-1):
        return self.inner.read(min(size, 7))


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@given(any_arrays())
def test_bytes_are_numpys_and_come_back(array):
    """write_array writes NumPy's bytes, and read_array reads them from memory, a slow stream and a file."""
    stream = io.BytesIO()
    npy.write_array(stream, array)
    assert stream.getvalue() == numpy_bytes(array)
    for source in (io.BytesIO(stream.getvalue()), Trickle(stream.getvalue())):
        found = npy.read_array(source)
        assert same(found, array)
        assert found.flags.writeable
    with tempfile.TemporaryFile() as file:
        npy.write_array(file, array)
        file.seek(0)
        assert same(npy.read_array(file), array)
        file.seek(0)
        assert file.read() == stream.getvalue()
    order = np.lib.format.read_array(io.BytesIO(stream.getvalue())).flags
    assert found.flags.f_contiguous == order.f_contiguous


@pytest.mark.parametrize("buffering", [-1, 0])
def test_files(tmp_path, arrays, buffering):
    """Files, buffered or not, contain NumPy's bytes, one array after another."""
    path = tmp_path / "all.npy"
    with open(path, "wb", buffering=buffering) as file:
        for array in arrays.values():
            npy.write_array(file, np.asanyarray(array))
    with open(path, "rb", buffering=buffering) as file:
        for array in arrays.values():
            assert same(npy.read_array(file), np.asanyarray(array))
        assert not file.read()


def test_a_socket(arrays):
    """An array goes through a socket's file, which cannot seek and has no known size."""
    left, right = socket.socketpair()

    def send():
        with left.makefile("wb") as file:
            npy.write_array(file, arrays["weights"])
        left.close()

    thread = threading.Thread(target=send)
    thread.start()
    with right.makefile("rb") as file:
        assert same(npy.read_array(file), arrays["weights"])
    thread.join()
    right.close()


def test_a_claimed_size_is_not_allocated():
    """An empty stream that claims a petabyte takes no memory."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (2**47,)})
    with pytest.raises(NpyFormatError, match="Failed to read all data"):
        npy.read_array(io.BytesIO(stream.getvalue()))


def test_a_long_stream_grows_its_buffer(monkeypatch):
    """An array that is longer than the first allocation is read completely."""
    monkeypatch.setattr(array_module, "_FIRST_ALLOCATION", 100)
    array = np.arange(1000.0)
    assert same(npy.read_array(io.BytesIO(numpy_bytes(array))), array)


def test_large_strided_arrays_are_written_in_pieces(monkeypatch):
    """Pieces of a strided array, down to parts of a row, add up to NumPy's bytes."""
    array = np.arange(2 * 3 * 4 * 50).reshape(4, 3, 2, 50)[::2, ::-1, :, ::3]
    for size in (8, 100, 1000, 10_000):
        monkeypatch.setattr(array_module, "PIECE_SIZE", size)
        stream = io.BytesIO()
        npy.write_array(stream, array)
        assert stream.getvalue() == numpy_bytes(array)
        assert all(len(piece) <= max(size, 50 * 8) for piece in array_module.data_pieces(array))


@pytest.mark.remedy(" allow_pickle=True; readers of the file must then trust it.")
def test_objects_need_pickle_both_ways():
    """Without allow_pickle, nothing is written and no pickle code runs."""
    array = np.array([1, "a", None], dtype=object)
    stream = io.BytesIO()
    with pytest.raises(PickleRefusedError, match="Object arrays cannot be saved when"):
        npy.write_array(stream, array, allow_pickle=False)
    assert not stream.getvalue()
    converted = io.BytesIO()
    npy.write_array(converted, array.astype(str), allow_pickle=False)
    assert npy.read_array(io.BytesIO(converted.getvalue())).tolist() == ["1", "a", "None"]
    npy.write_array(stream, array)
    assert npy.read_array(io.BytesIO(stream.getvalue()), allow_pickle=True).tolist() == [
        1,
        "a",
        None,
    ]
    with pytest.raises(PickleRefusedError, match="Object arrays cannot be loaded when"):
        npy.read_array(io.BytesIO(stream.getvalue()))


@pytest.mark.parametrize(
    "descr", ["[('a', '|O')]", "[('a', '|O', (2,))]", "[('a', [('b', '|O')])]"]
)
def test_objects_inside_structures_are_found(descr, monkeypatch):
    """An object dtype at any depth is refused before pickle is used."""
    from forge import header

    monkeypatch.setattr(pickle, "load", lambda *a, **k: pytest.fail("unpickled"))
    data = header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}") + bytes(64)
    with pytest.raises(PickleRefusedError):
        npy.read_array(io.BytesIO(data))


@pytest.mark.remedy("Save array.data and numpy.ma.getmaskarray(array) under two keys")
def test_masked_arrays_are_refused():
    """A mask is never dropped silently: it is an array of its own, or the array is filled."""
    array = np.ma.masked_array([1, 2], [True, False], fill_value=9)
    with pytest.raises(UnsupportedError, match="mask"):
        npy.write_array(io.BytesIO(), array)
    for part, expected in (
        (array.data, [1, 2]), (np.ma.getmaskarray(array), [True, False]), (array.filled(), [9, 2]),
    ):  # fmt: skip
        stream = io.BytesIO()
        npy.write_array(stream, part)
        assert npy.read_array(io.BytesIO(stream.getvalue())).tolist() == expected


@pytest.mark.parametrize("count", [250, 600])
def test_a_header_that_readers_refuse_gives_a_warning(tmp_path, count):
    """Once np.load and npzkit.open refuse it by default, the warning says what to pass to them."""
    path, array = (
        tmp_path / "a.npz",
        np.zeros(2, [(f"field_number_{i}", "f8") for i in range(count)]),
    )
    for write in (
        lambda: npzkit.savez(path, x=array), lambda: npzkit.save(path, {"x": array}),
        lambda: npy.write_array(io.BytesIO(), array), lambda: npy.write_array(io.BytesIO(), array, (2, 0)),
    ):  # fmt: skip
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            write()
        if count == 250:
            assert not caught
            continue
        (warning,) = caught
        (size,) = set(re.findall(r"header_size=(\d+)", str(warning.message)))
        assert warning.filename == __file__
    limits = npzkit.Limits() if count == 250 else npzkit.Limits(header_size=int(size))
    with npzkit.open(path, limits=limits) as npz:
        assert npz["x"].dtype == array.dtype
    with np.load(path, max_header_size=limits.header_size) as npz:
        assert npz["x"].dtype == array.dtype
    for module in (np, npzkit) if count == 600 else ():
        with module.load(path) as npz, pytest.raises(ValueError, match="may not be safe"):
            npz["x"]


RECORDS = np.zeros(2, [("a", "i4"), ("b", "f8", 2)])


@each_row(
    "array",
    [
        np.ma.masked_array([1, 2]), np.ma.masked_array(np.eye(4).T[::2], np.zeros((2, 4), bool)),
        np.ma.masked_array(RECORDS, np.zeros(2, np.ma.make_mask_descr(RECORDS.dtype))),
        np.ma.masked_array(7),
    ],
)  # fmt: skip
def test_a_mask_that_masks_nothing_is_dropped(tmp_path, array):
    """Such an array is written as a plain one, with NumPy's bytes."""
    ours, theirs = io.BytesIO(), io.BytesIO()
    npy.write_array(ours, array)
    np.lib.format.write_array(theirs, array)
    assert ours.getvalue() == theirs.getvalue()
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        w.add("x", array, attrs={"a": 1})
        w.add("y", array)
        with w.create("z", array.shape, array.dtype) as dst:
            dst[...] = array
    with npzkit.open(tmp_path / "a.npz") as npz:
        for key in npz:
            assert type(npz[key]) is np.ndarray
            assert np.array_equal(npz[key], array.data)


@each_row("mask", [[False, True], [(False, [False, True]), (False, [False, False])]])
def test_one_masked_value_is_refused(mask):
    """Also where it is one field of one record, and by each call of NumPy's names."""
    array = np.ma.masked_array(np.arange(2) if mask[1] is True else RECORDS, mask)
    for call in (npy.write_array, npzkit.savez, npzkit.savez_compressed):
        with pytest.raises(UnsupportedError, match="mask"):
            call(io.BytesIO(), array)


@pytest.mark.filterwarnings("ignore:StringDType")
@pytest.mark.remedy("Convert it to a dtype of fixed size, strings by array.astype(object)")
def test_strings_of_any_size_need_pickle():
    """As strings of a fixed size they do not."""
    array = np.array(["a", "größe"], np.dtypes.StringDType())
    with pytest.raises(PickleRefusedError, match="User-defined dtypes cannot be saved"):
        npy.write_array(io.BytesIO(), array, allow_pickle=False)
    for saved, allow_pickle in ((array.astype(object).astype("U"), False), (array, True)):
        stream = io.BytesIO()
        npy.write_array(stream, saved, allow_pickle=allow_pickle)
        stream.seek(0)
        assert npy.read_array(stream, allow_pickle=allow_pickle).tolist() == ["a", "größe"]


@pytest.mark.parametrize(("dtype", "version"), [("f8", (9, 9)), ([("漢", "f8")], (1, 0))])
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.remedy("Omit the version to let npzkit choose it.")
def test_a_version_that_cannot_be_written(dtype, version):
    """One that does not exist, or that lacks the characters of a name, is not needed."""
    array, stream = np.ones(2, dtype), io.BytesIO()
    with pytest.raises(NpyFormatError, match="version"):
        npy.write_array(stream, array, version=version)
    npy.write_array(stream, array)
    stream.seek(0)
    assert same(npy.read_array(stream), array)


def test_open_memmap(tmp_path):
    """A new mapped file has NumPy's bytes, and NumPy integers are accepted in a shape."""
    path = tmp_path / "a.npy"
    shape = (np.int64(3), np.int32(4))
    mapped = npy.open_memmap(path, "w+", "<f4", shape, fortran_order=np.True_)
    mapped[...] = 1
    mapped.flush()
    assert path.read_bytes() == numpy_bytes(np.ones((3, 4), "<f4", order="F"))
    assert npy.open_memmap(str(path), "r")[2, 3] == 1
    del mapped
    with open(path, "rb") as file, pytest.raises(ValueError, match="path"):
        npy.open_memmap(file)
    with pytest.raises(PickleRefusedError):
        npy.open_memmap(path, "w+", object, (1,))


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="this system tells nothing of holes")
def test_open_memmap_takes_the_room_it_may_write_to(tmp_path):
    """A new file has no holes, and holes in an existing file are filled, so that a full disk raises."""
    path = tmp_path / "a.npy"
    npy.open_memmap(path, "w+", "f8", (30_000,))
    assert path.stat().st_blocks * 512 >= 240_000
    data = bytearray(path.read_bytes())
    data[100_000:100_005] = b"bytes"
    with open(path, "wb") as file:
        file.write(data[:128])
        file.seek(100_000)
        file.write(data[100_000:100_005])
        file.truncate(len(data))
    if path.stat().st_blocks * 512 >= 200_000:
        pytest.skip("this file system has no holes")
    npy.open_memmap(path, "r")
    assert path.stat().st_blocks * 512 < 200_000
    npy.open_memmap(path, "r+")
    assert path.stat().st_blocks * 512 >= 240_000
    assert path.read_bytes() == data


def test_open_memmap_on_a_full_disk(tmp_path, monkeypatch):
    """If the disk is full, a new file is an error before anything is mapped."""

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space"):
        npy.open_memmap(tmp_path / "a.npy", "w+", "f8", (30_000,))


def test_open_memmap_does_not_extend_a_short_file(tmp_path):
    """Mapping a truncated file is an error, and its size does not change."""
    path = tmp_path / "a.npy"
    np.save(path, np.ones(100))
    os.truncate(path, 500)
    with pytest.raises(NpyFormatError, match="EOF"):
        npy.open_memmap(path, "r+")
    assert path.stat().st_size == 500


def test_every_name_and_signature_is_numpys():
    """npzkit.format has every function of numpy.lib.format, with the same signatures."""
    for name in dir(np.lib.format):
        theirs = getattr(np.lib.format, name)
        if name.startswith("_") or inspect.ismodule(theirs):
            continue
        ours = getattr(npy, name)
        if not callable(theirs):
            assert ours == theirs, name
            continue
        if name == "drop_metadata":
            continue  # decorated in C by some versions of numpy
        found, expected = (list(inspect.signature(f).parameters.values()) for f in (ours, theirs))
        assert [(p.name, p.kind, p.default) for p in found] == [
            (p.name, p.kind, p.default) for p in expected
        ], name


def test_version_3_has_public_functions():
    """The functions for version 3.0, which are private in NumPy, read and write."""
    stream = io.BytesIO()
    npy.write_array_header_3_0(
        stream, {"descr": [("漢", "<f8")], "fortran_order": False, "shape": (2,)}
    )
    stream.seek(8)
    assert npy.read_array_header_3_0(stream) == ((2,), False, np.dtype([("漢", "<f8")]))
