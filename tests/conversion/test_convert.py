"""npzkit.convert: archives from and to other formats, with all that these can hold."""

from __future__ import annotations

import errno
import glob
import importlib
import json
import math
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from pathlib import Path

import h5py
import ml_dtypes
import npzkit
import numpy as np
import pytest
from deep import by_turns, needs_deep
from npzkit.conversion import hdf5
from npzkit.conversion.formats import TORCH, source_format
from npzkit.conversion.refusals import Claims
from npzkit.errors import (
    ArchiveLockedError,
    ChecksumError,
    ConversionError,
    FormatError,
    MemberNotFoundError,
    UnsupportedError,
)
from remedies import brought_by

from tables import each_row

scipy_io = pytest.importorskip("scipy.io", reason="scipy is not installed")
zarr = pytest.importorskip("zarr", reason="zarr is not installed")
safe_open = pytest.importorskip("safetensors", reason="safetensors is not installed").safe_open
save_file = importlib.import_module("safetensors.numpy").save_file

rng = np.random.default_rng(0)

NUMBERS = {
    **{
        kind: rng.integers(0, 100, (4, 3)).astype(kind)
        for kind in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
    },
    **{kind: rng.random((4, 3)).astype(kind) for kind in ["f2", "f4", "f8"]},
    "c8": rng.random(3).astype("c8"),
    "bool": np.array([True, False]),
    "scalar": np.array(3.5),
    "empty": np.zeros((0, 3), "f4"),
    "fortran": np.asfortranarray(rng.random((5, 4))),
    "group/deep/x": np.arange(5),
}
BFLOAT16 = {"bf16": np.array([[1, 2.5]], ml_dtypes.bfloat16)}
FLOAT8 = {"f8e4": np.array([1, 2], ml_dtypes.float8_e4m3fn)}
TEXT = {
    "text": np.array([["a", "bcé"], ["", "d"]]),
    "bytes": np.array([b"a", b"bcd"]),
    "one": np.array("xyz"),
}
TIMES = {
    "when": np.arange("2020-01", "2020-04", dtype="M8[M]"),
    "span": np.array([1, -5], "m8[ns]"),
}
RECORD = {"record": np.array([(1, 2.5, b"ab")], [("id", "<i4"), ("x", "<f8"), ("tag", "S2")])}
OTHERS = {
    "c16": np.array([1 + 2j]),
    "void": np.array([b"abc"], "V3"),
    "big": np.arange(3, dtype=">i4"),
}

FORMATS = {
    "a.safetensors": {**NUMBERS, **BFLOAT16, **FLOAT8, "big": OTHERS["big"]},
    "a.h5": {**NUMBERS, **BFLOAT16, **FLOAT8, **TEXT, **TIMES, **RECORD, **OTHERS},
    "a.zarr": {**NUMBERS, **BFLOAT16, **FLOAT8, **TEXT, **TIMES, **RECORD, **OTHERS},
    "a.mat": {k: v for k, v in NUMBERS.items() if "/" not in k and k != "f2"}
    | {"c16": OTHERS["c16"]},
}
METADATA = {"about": "a test", "step": 7, "nested": {"a": [1, None, "x"]}, "list": [1.5, 2.5]}
ATTRS = {"unit": "m", "mean": 1.5, "flag": True, "odd": {"a": None}, "names": ["a", "b"]}


def load(path):
    with npzkit.open(path) as npz:
        return npz.load_all()


def same(found, expected, *, byte_order=True):
    if not byte_order:
        assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
    else:
        assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


@pytest.mark.slow
@each_row(("compression", "part_size"), [("stored", 1 << 25), ("deflated", 24)])
@each_row("name", FORMATS)
def test_arrays_go_there_and_back(here, monkeypatch, name, compression, part_size):
    """Names, shapes, dtypes and values come back, taken whole or in many parts."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", part_size)
    arrays = FORMATS[name]
    npzkit.save("a.npz", arrays)
    npzkit.convert("a.npz", name, compression=compression)
    npzkit.convert(name, "b.npz", compression=compression)
    found = load("b.npz")
    assert set(found) == set(arrays)
    for key, array in arrays.items():
        if name == "a.mat":
            array = np.atleast_2d(array)
        same(found[key], array, byte_order=name not in ("a.safetensors", "a.zarr"))
    if name == "a.h5":
        with npzkit.open("b.npz") as npz:
            assert npz.info("f8").method == compression
    assert sorted(os.listdir()) == sorted(["a.npz", "b.npz", name])


@pytest.mark.parametrize("name", ["a.safetensors", "a.h5", "a.zarr", "a.mat"])
def test_values_that_only_npzkit_finds_are_noted(here, name):
    """Values of nested data that are not arrays are named, a few of them, for each other format."""
    npzkit.save("a.npz", {"w": np.ones((2, 2)), "n": dict.fromkeys("abcdef", 1)})
    notes = npzkit.convert("a.npz", name).notes
    where = "not kept" if name == "a.mat" else "only npzkit finds this, in the metadata"
    values = "6 values without an array: 'n/a', 'n/b', 'n/c', 'n/d', 'n/e' and 1 more"
    assert f"{values}; {where}" in notes
    assert npzkit.convert("a.npz", "b.npz").notes == ()


@pytest.mark.remedy("Choose another path.")
def test_a_file_is_not_converted_over_itself(here):
    """The library of its format has it open: nothing is changed, and nobody waits for a lock."""
    npzkit.save("a.npz", {"w": np.ones(3)})
    npzkit.convert("a.npz", "a.h5")
    os.replace("a.h5", "b.npz")
    with pytest.raises(ConversionError, match="is the file that is converted"):
        npzkit.convert("b.npz", "./b.npz", overwrite=True)
    npzkit.convert("b.npz", "c.npz")
    assert npzkit.diff("a.npz", "c.npz").equal


def test_what_is_not_kept_is_reported(here):
    """Formats without a place for metadata and attributes note that, and the report has it."""
    with npzkit.NpzWriter("a.npz", metadata=METADATA) as writer:
        writer.add("x", np.ones((2, 2)), attrs=ATTRS)
    report = npzkit.convert("a.npz", "a.mat")
    assert (report.output, report.keys, report.skipped) == ("a.mat", ("x",), {})
    assert report.notes
    assert all("not kept" in note for note in report.notes)


def gapped(order):
    """Return a structure with a gap between its fields, and one at its end."""
    formats = [f"{order}i2", f"{order}f8"]
    return {"names": ["a", "b"], "formats": formats, "offsets": [1, 8], "itemsize": 24}


DTYPES = [
    *("?", "u1", "<i8", ">i8", "<f2", ">f2", ">f4", "<c16", ">c16", "g", "G"),
    *("<M8[ns]", ">M8[10s]", "M8", "m8", ">m8[D]", "<U4", ">U4", "U0", "S5", "S0", "V7", "V0"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
    [("a", ">i4"), ("b", "<f8")], [("a", "<i4"), ("b", "?")], [("a", ">c8")], [("a", ">M8[s]")],
    [("a", "<m8[D]")], [("a", "M8")], [("a", ">U3")], [("a", "S3"), ("b", "V5")],
    [("a", "<i4"), ("n", [("x", ">f4")])], [("a", ">i2", (3,))], [(("title", "a"), ">i2")],
    gapped("<"), gapped(">"), np.dtype([("a", "<i2"), ("b", "<f8")], align=True),
    [("a", "g")], [("a", "<f2"), ("b", ">u8")], [],
]  # fmt: skip
"""What NPY has names for, and what libraries of other formats get wrong."""


OTHERS = [
    ("a.zarr", {}), ("a.zarr", {"zarr_format": 2}), ("a.h5", {}), ("a.safetensors", {}),
    ("a.mat", {}),
]  # fmt: skip
"""Files of other formats, and options of `convert` to them."""


def filled(dtype, shape):
    """Return an array of small numbers, texts or bytes."""
    dtype = np.dtype(dtype)
    array = np.ndarray(shape, dtype) if not dtype.itemsize else np.zeros(shape, dtype)
    for name in dtype.names or ():
        array[name] = filled(dtype[name].base, array[name].shape)
    if dtype.names is None and dtype.itemsize:
        numbers = np.asarray(rng.integers(0, 2 if dtype.kind == "b" else 8, shape))
        is_bytes = dtype.kind == "V" and dtype.isbuiltin != 2
        array[...] = numbers.astype("S" if is_bytes else "i8").astype(dtype)
    return array


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*invalid value")
# zarr makes such a timedelta, which NumPy 2.5 deprecates.
@pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")
@each_row(("name", "options"), OTHERS)
def test_values_come_back_or_the_array_is_named(here, name, options):
    """Whatever the dtype, a library reads the values that were given to it, or it gets none."""
    cases = by_turns(DTYPES, [(6,), (2, 3), (), (0,)])
    arrays = {f"x{number}": filled(*case) for number, case in enumerate(cases)}
    npzkit.save("a.npz", arrays | {"other": np.ones((1, 2))})
    arrays = load("a.npz")
    report = npzkit.convert("a.npz", name, skip=True, **options)
    assert "other" not in report.skipped
    for key in report.skipped:
        npzkit.save("b.npz", {key: arrays[key], "other": np.ones((1, 2))})
        with pytest.raises(ConversionError) as caught:
            npzkit.convert("b.npz", f"b{name}", **options)
        assert caught.value.key == key
        assert not os.path.exists(f"b{name}")
    npzkit.convert(name, "b.npz", overwrite=True)
    read = load("b.npz")
    assert read.keys() == arrays.keys() - report.skipped.keys()
    for key, found in read.items():
        array = arrays[key]
        if name == "a.mat" and found.dtype.kind == "U":
            # Not by NumPy, whose 2.0.0 strips the only character of a text as well.
            texts = [text.rstrip(" ") for text in found.ravel().tolist()]
            found = np.array(texts, found.dtype).reshape(found.shape)
        assert found.size == array.size, array
        assert str(found.reshape(array.shape).tolist()) == str(array.tolist())
        if found.dtype != array.dtype and array.dtype.kind != "U":
            told = f"{array.dtype} becomes {found.dtype}"
            assert any(key in note and told in note for note in report.notes), told


@pytest.mark.slow
@each_row("version", [2, 3])
@each_row(
    "dtype", [[("a", ">i4"), ("b", "<f8")], [(("title", "a"), ">i2")], gapped("<"), gapped(">")],
)  # fmt: skip
def test_structures_are_for_zarr_what_it_can_say_of_them(here, dtype, version):
    """Fields are converted, not refused, whatever their byte order, their gaps and their titles."""
    array = filled(dtype, (4,))
    npzkit.save("a.npz", {"x": array})
    assert npzkit.convert("a.npz", "a.zarr", zarr_format=version).keys == ("x",)
    found = zarr.open_group("a.zarr", mode="r")["x"][:]
    assert found.dtype.names == array.dtype.names
    assert found.tolist() == array.tolist()


ODD = {
    "minus_zero": np.full(5, -0.0), "complex": np.full(5, complex(-0.0, -0.0)),
    "fields": np.full(3, np.array((complex(-0.0, 0), 1), [("a", "c16"), ("b", "i4")])),
    "nan": np.array([0x7FF8000000000123, 0xFFF0000000000001], "u8").view("f8"),
    "nat": np.array(["NaT", "2020"], "M8[D]"), "nul": np.array(["a\0b", "c"]),
    "not_unicode": np.array(["\ud800"]), "astral": np.array(["\U0001f600", "ab"]),
    "spaces": np.array(["a ", " "]), "empty": np.array(["", ""]), "none": np.zeros((2, 0, 4)),
    "ones": np.ones((1, 1, 3)), "last": np.ones((2, 3, 1)),
    "fortran": np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
}  # fmt: skip
"""Values that a library may take for others, or refuse."""


@pytest.mark.slow
@each_row(("name", "options"), OTHERS)
def test_odd_values_come_back_bit_by_bit_or_are_named(here, name, options):
    """Signs of zeros, bits of NaN, NUL and spaces in text are kept, or the array is left out."""
    npzkit.save("a.npz", ODD | {"other": np.ones((1, 2))})
    report = npzkit.convert("a.npz", name, skip=True, **options)
    assert not report.skipped or name != "a.zarr"
    npzkit.convert(name, "b.npz")
    read = load("b.npz")
    assert read.keys() == {*ODD, "other"} - report.skipped.keys()
    for key in ODD.keys() & read.keys():
        found, odd = read[key].reshape(ODD[key].shape), ODD[key]
        if name == "a.mat" and found.dtype.kind == "U":
            assert np.strings.rstrip(found).tolist() == np.strings.rstrip(odd).tolist(), key
        else:
            assert found.astype(odd.dtype).tobytes() == odd.tobytes(), key


ODD_ATTRS = {
    "big": 2**70, "mixed": [-1, 2**63], "later": [1, 2**70], "nan": math.nan, "ragged": [[1], [2, 3]],
    "square": [[1, 2], [3, 4]], "none": None, "empty": [[]], "text": "", "nothing": [],
    "nul": ["a", "b\0"], "cut": "a\0b", "deep": {"a": None}, "zero": -0.0, "long": "x" * 3000,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.safetensors", "a.h5", "a.zarr"])
def test_metadata_and_attributes_go_there_and_back(here, name):
    """Whatever JSON can express comes back, also what a format has no type for."""
    metadata, attrs = METADATA | ODD_ATTRS, ATTRS | ODD_ATTRS
    with npzkit.NpzWriter("a.npz", metadata=metadata) as writer:
        writer.add("x", np.arange(3), attrs=attrs)
        writer["y"] = np.ones(2)
    assert npzkit.convert("a.npz", name).notes == ()
    assert npzkit.convert(name, "b.npz").notes == ()
    with npzkit.open("b.npz") as npz:
        for found, given in (npz.metadata, metadata), (npz.info("x").attrs, attrs):
            assert repr(sorted(found.items())) == repr(sorted(given.items()))
        assert npz.info("y").attrs == {}


@pytest.mark.parametrize("part_size", [8, 1 << 25])
def test_an_array_that_another_program_puts_in_the_place_of_a_value(here, monkeypatch, part_size):
    """It is what was there last, so that it takes the place of the value."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", part_size)
    npzkit.save("a.npz", {"opt": {"lr": 0.1, "m": np.ones(2)}})
    npzkit.convert("a.npz", "a.h5")
    with h5py.File("a.h5", "a") as file:
        file["opt/lr"] = np.arange(3)
    npzkit.convert("a.h5", "b.npz")
    assert npzkit.load_tree("b.npz")["opt"]["lr"].tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.safetensors", "a.h5", "a.zarr"])
def test_nested_data_goes_there_and_back(here, name):
    """Its values without an array, its tuples and its tied tensors come back with the metadata."""
    note = {"opt": {"m": ["list", None], "lr": ["value", 0.1]}, "w": None, "tied": ["same", "w"]}
    arrays = {"opt/m/0": np.ones(2), "w": np.arange(3.0)}
    npzkit.save("a.npz", arrays, metadata={"npzkit.tree": note, "git": "abc"})
    npzkit.convert("a.npz", name)
    npzkit.convert(name, "b.npz")
    assert npzkit.diff("a.npz", "b.npz", metadata=True).equal
    found = npzkit.load_tree("b.npz")
    assert (found["opt"]["lr"], found["tied"].tolist()) == (0.1, [0, 1, 2])


@pytest.mark.parametrize("key", ["zarr.json", ".zgroup", "a/.zattrs", "a/zarr.json/b"])
def test_names_of_zarrs_own_files_are_no_keys(here, key):
    """Such an array is named and can be left out; the other ones are converted."""
    npzkit.save("a.npz", {key: np.ones(2), "x": np.ones(3)})
    with pytest.raises(ConversionError, match="Zarr's own") as caught:
        npzkit.convert("a.npz", "a.zarr")
    assert caught.value.key == key
    assert npzkit.convert("a.npz", "a.zarr", skip=True).keys == ("x",)


@pytest.mark.slow
def test_what_a_library_does_not_say_is_noted(here):
    """Fields of version 3 of Zarr have no byte order, and an array has no names for its values."""
    npzkit.save("a.npz", RECORD)
    npzkit.convert("a.npz", "a.zarr")
    assert "byte order" in "".join(npzkit.convert("a.zarr", "b.npz").notes)
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("x", (2,), h5py.enum_dtype({"red": 0, "blue": 1}))
    (note,) = npzkit.convert("a.h5", "c.npz").notes
    assert note == "the names of the values of 'x' are not kept"


@pytest.mark.remedy("Leave it out with skip=True, or convert to another format.")
def test_a_library_that_reads_other_values_is_found_out(here, monkeypatch):
    """What a library does not read back as it was given is an error, and nothing is written.

    The array can be left out, and another library keeps it.
    """
    npzkit.save("a.npz", {"x": np.arange(3), "y": np.array([1.0, np.nan])})
    npzkit.convert("a.npz", "a.h5")
    read = h5py.Dataset.__getitem__
    wrongs = (
        lambda part: part + (part.dtype.kind == "i"),
        lambda part: part * (part.dtype.kind != "i"),
    )
    for wrong in wrongs:
        with monkeypatch.context() as patched:
            patched.setattr(h5py.Dataset, "__getitem__", lambda *a, do=wrong: do(read(*a)))
            with pytest.raises(ConversionError, match="does not read back") as caught:
                npzkit.convert("a.npz", "b.h5")
            assert caught.value.key == "x"
            assert sorted(os.listdir()) == ["a.h5", "a.npz"]
            npzkit.convert("a.npz", "b.h5", skip=True)
            npzkit.convert("a.npz", "b.zarr")
        with h5py.File("b.h5") as file:
            assert list(file) == ["y"]
            assert str(file["y"][:].tolist()) == "[1.0, nan]"
        assert zarr.open_group("b.zarr", mode="r")["x"][:].tolist() == [0, 1, 2]
        os.unlink("b.h5")
        shutil.rmtree("b.zarr")


@pytest.mark.slow
def test_arrays_in_parts(here):
    """Their parts are plain arrays in other formats, with a note, and come back joined."""
    arrays = {"m": np.ma.array([1, 2], mask=[0, 1]), "s": np.array(["ab"], np.dtypes.StringDType())}
    npzkit.save("a.npz", {**arrays, "x": [1], "x.mask": [2]}, masked="split", strings="split")
    report = npzkit.convert("a.npz", "a.h5")
    assert [note.split(",")[0] for note in report.notes] == [
        "'m' was saved in parts", "'s' was saved in parts"
    ]  # fmt: skip
    npzkit.convert("a.h5", "b.npz")
    assert set(load("b.npz")) == {"m", "m.mask", "s", "s.offsets", "x", "x.mask"}
    with h5py.File("a.h5", "a") as file:
        del file["m.mask"]
    npzkit.convert("a.h5", "d.npz")
    with npzkit.open("d.npz") as npz:
        assert npz.join("m").tolist() == [1, 2]
    assert npzkit.convert("a.npz", "c.npz").notes == ()
    with npzkit.open("c.npz") as npz:
        assert npz.join("m").mask.tolist() == [False, True]


@pytest.mark.slow
def test_arrays_in_parts_come_back(here):
    """As they were, through each format that has attributes, in nested data and large ones too."""
    large = np.ma.array(np.zeros(3 << 20), mask=np.arange(3 << 20) % 2 == 1)
    strings = np.array(["ab", None, ""], np.dtypes.StringDType(na_object=None))
    masked = np.ma.array([1.0, 2.0], mask=[0, 1], fill_value=np.nan)
    tree = {"list": [masked, strings], "large": large}
    npzkit.save("a.npz", tree, masked="split", strings="split")
    for suffix in (".h5", ".zarr", ".safetensors"):
        npzkit.convert("a.npz", "a" + suffix)
        for compression in ("stored", "deflated"):
            npzkit.convert("a" + suffix, "b.npz", compression=compression, overwrite=True)
            found = npzkit.load_tree("b.npz")
            assert found["list"][0].tolist() == [1.0, None]
            assert np.isnan(found["list"][0].fill_value)
            assert found["list"][1].tolist() == strings.tolist()
            assert found["list"][1].dtype == strings.dtype
            assert np.array_equal(found["large"].mask, large.mask)


def test_a_masked_array_is_not_kept_without_its_mask(here):
    """Not if the format has no place for the mask, nor if only the array is named."""
    arrays = {"m": np.ma.array([1, 2], mask=[0, 1]), "x": np.ones(2)}
    npzkit.save("a.npz", arrays, masked="split")
    report = npzkit.convert("a.npz", "a.mat", skip=True)
    assert (report.keys, list(report.skipped)) == (("x",), ["m", "m.mask"])
    npzkit.convert("a.npz", "a.h5", "m")
    with h5py.File("a.h5") as file:
        assert sorted(file) == ["m", "m.mask"]


def test_safetensors_are_the_librarys(here):
    """The library reads what is written, and what it wrote is read, metadata being strings."""
    arrays = {"w": rng.random((3, 2)), "h": np.ones(3, "f2"), "b": np.array([True])}
    npzkit.save("a.npz", {**arrays, **BFLOAT16}, metadata={"format": "pt"})
    npzkit.convert("a.npz", "a.safetensors")
    with safe_open("a.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        for key, array in {**arrays, **BFLOAT16}.items():
            same(file.get_tensor(key), array)
    save_file(arrays, "b.safetensors", metadata={"step": "1.10", "npzkit": "[]"})
    npzkit.convert("b.safetensors", "b.npz")
    with npzkit.open("b.npz") as npz:
        assert npz.metadata == {"step": "1.10", "npzkit": "[]"}
        for key, array in arrays.items():
            same(npz[key], array)


def test_hdf5_is_h5pys(here):
    """h5py reads what is written: groups, attributes, text, compression."""
    with npzkit.NpzWriter("a.npz", metadata={"about": "x"}) as writer:
        writer.add("g/x", np.zeros(100_000), attrs={"unit": "m", "scale": [1, 2]})
        writer["text"] = TEXT["text"]
    npzkit.convert("a.npz", "a.h5", compression="deflated", level=1)
    with h5py.File("a.h5") as file:
        assert file.attrs["about"] == "x"
        assert file["g"]["x"].compression == "gzip"
        assert file["g/x"].attrs["unit"] == "m"
        assert file["g/x"].attrs["scale"].tolist() == [1, 2]
        assert file["text"].asstr()[0, 1] == "bcé"


def test_hdf5_of_others(here):
    """Chunks, text, enums and hard links are read; groups' attributes and soft links are said."""
    with h5py.File("a.h5", "w") as file:
        file["chunked"] = np.zeros(1)
        file.create_dataset("c", data=np.arange(600).reshape(20, 30), chunks=(7, 8))
        file.create_dataset("text", data=["a", "bcd"])
        file.create_dataset("enum", data=[0, 1], dtype=h5py.enum_dtype({"a": 0, "b": 1}, "i2"))
        file["group/x"] = np.ones(2)
        file["group"].attrs["lost"] = 1
        file["soft"] = h5py.SoftLink("/c")
        file["outside"] = h5py.ExternalLink("/etc/other.h5", "/x")
        file["again"] = file["c"]
        file["group/loop"] = file["/"]
        file["none"] = h5py.Empty("f4")
        file.attrs["note"] = np.bytes_(b"hello")
        file.attrs["odd"] = np.array(1 + 2j)
    report = npzkit.convert("a.h5", "a.npz")
    found = load("a.npz")
    assert set(found) == {"chunked", "again", "text", "enum", "group/x"}
    same(found["again"], np.arange(600).reshape(20, 30))
    same(found["text"], np.array(["a", "bcd"]))
    same(found["enum"], np.array([0, 1], "i2"))
    with npzkit.open("a.npz") as npz:
        assert npz.metadata == {"note": "hello"}
    for text in ("'soft' is a link", "'outside' is a link", "'c' is another name for 'again',", "'none'",
                 "group 'group'", "'group/loop' is another name for '/',", "'odd' of the file"):  # fmt: skip
        assert text in "\n".join(report.notes)


def test_hdf5_does_not_read_other_files(here):
    """Data that a file claims from another one is refused, and left out by skip."""
    (here / "secret").write_bytes(b"secret!!")
    with h5py.File("other.h5", "w") as file:
        file["x"] = np.arange(4)
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("x", (8,), "u1", external=[("secret", 0, 8)])
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
        file.create_virtual_dataset("v", layout)
        file["good"] = np.ones(2)
    with pytest.raises(ConversionError, match="other files"):
        npzkit.convert("a.h5", "a.npz")
    assert not os.path.exists("a.npz")
    report = npzkit.convert("a.h5", "a.npz", skip=True)
    assert set(report.skipped) == {"x", "v"}
    assert all("other files" in reason for reason in report.skipped.values())
    assert list(load("a.npz")) == ["good"]


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_zarr_is_zarrs(here, version):
    """zarr-python reads what is written, of both versions, and npzkit reads it back."""
    with npzkit.NpzWriter("a.npz", metadata=METADATA) as writer:
        writer.add("g/x", np.arange(10.0), attrs=ATTRS)
    npzkit.convert("a.npz", "a.zarr", compression="deflated", zarr_format=version)
    root = zarr.open_group("a.zarr", mode="r")
    assert root.metadata.zarr_format == version
    assert root["g/x"][:].tolist() == list(range(10))
    assert root["g/x"].attrs.asdict() == ATTRS
    assert root.attrs.asdict() == METADATA
    assert "gzip" in str(root["g/x"].compressors).lower()
    npzkit.convert("a.zarr", "b.npz")
    same(load("b.npz")["g/x"], np.arange(10.0))


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_is_compressed_as_zarr_does(here, version):
    """Chunks are compressed by zarr's own default unless compression="stored"."""
    npzkit.save("a.npz", {"x": np.zeros((500, 100))})
    usual = zarr.open_group(store={}, mode="w", zarr_format=version)
    usual.create_array("x", shape=(500, 100), dtype="f8")
    for compression, expected in (None, usual["x"].compressors), ("stored", ()):
        npzkit.convert("a.npz", "a.zarr", compression=compression, zarr_format=version)
        found = zarr.open_group("a.zarr", mode="r")["x"]
        assert found.compressors == expected
        assert np.array_equal(found[...], np.zeros((500, 100)))
        shutil.rmtree("a.zarr")


@pytest.mark.slow
def test_zarr_of_others(here):
    """A store of one array, and strings of any length, are read."""
    array = zarr.create_array("one.zarr", shape=(5, 5), chunks=(2, 3), dtype="i4")
    array[...] = np.arange(25).reshape(5, 5)
    npzkit.convert("one.zarr", "a.npz")
    same(load("a.npz")["one"], np.arange(25, dtype="i4").reshape(5, 5))
    group = zarr.open_group("b.zarr", mode="w")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = group.create_array("text", shape=(2,), dtype=np.dtypes.StringDType())
        text[:] = np.array(["a", "bcdé"], np.dtypes.StringDType())
    group.create_group("g").attrs["lost"] = 1
    (note,) = npzkit.convert("b.zarr", "b.npz").notes
    assert "group 'g'" in note
    same(load("b.npz")["text"], np.array(["a", "bcdé"]))


def test_zarr_makes_no_room_for_a_chunk_that_is_claimed(here):
    """A store whose chunks would not fit in memory is refused."""
    zarr.create_array("a.zarr", shape=(2**50,), chunks=(2**40,), dtype="u1")
    with pytest.raises(ConversionError, match="chunks"):
        npzkit.convert("a.zarr", "a.npz")


PICKLE = {"id": "pickle", "protocol": 5}


class Evil:
    """Unpickled, it makes a folder."""

    def __reduce__(self):
        return os.mkdir, ("owned",)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["|O", "<i8"])
@pytest.mark.parametrize(
    ("filters", "compressor"),
    [([PICKLE], None), ([{"id": "vlen-utf8"}, PICKLE], None), ([{"id": "vlen-utf8"}], PICKLE)],
)
def test_zarr_does_not_unpickle(here, monkeypatch, dtype, filters, compressor):
    """A store that asks for pickle is refused: nothing of it is run, whatever numcodecs allows."""
    monkeypatch.setattr("numcodecs.pickles.Pickle.decode", lambda self, data: pickle.loads(data))
    os.makedirs("a.zarr/x")
    (here / "a.zarr/.zgroup").write_text('{"zarr_format": 2}')
    meta = {
        "zarr_format": 2, "shape": [1], "chunks": [1], "dtype": dtype, "compressor": compressor,
        "fill_value": None, "order": "C", "filters": filters,
    }  # fmt: skip
    (here / "a.zarr/x/.zarray").write_text(json.dumps(meta))
    (here / "a.zarr/x/0").write_bytes(pickle.dumps(np.array([Evil()], object)))
    with pytest.raises(npzkit.NpzkitError):
        npzkit.convert("a.zarr", "a.npz")
    assert os.listdir() == ["a.zarr"]


@pytest.mark.slow
@pytest.mark.remedy("Remove the link, or replace it with a copy of what it leads to.")
@pytest.mark.parametrize("name", ["x/c/0", "x"])
def test_a_zarr_store_is_not_left_by_its_links(here, name):
    """A link in a store to another file, or to a folder, is refused; a copy in its place is not."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    npzkit.convert("a.npz", "a.zarr")
    os.rename(f"a.zarr/{name}", "outside")
    os.symlink(here / "outside", f"a.zarr/{name}")
    with pytest.raises(ConversionError, match="symbolic link"):
        npzkit.convert("a.zarr", "b.npz")
    os.unlink(f"a.zarr/{name}")
    (shutil.copytree if name == "x" else shutil.copy)("outside", f"a.zarr/{name}")
    npzkit.convert("a.zarr", "b.npz")
    assert load("b.npz")["x"].tolist() == [0, 1, 2]
    os.symlink(".", "a.zarr/loop")
    with pytest.raises(ConversionError, match="loop"):
        npzkit.convert("a.zarr", "c.npz")


def test_zarr_says_what_is_not_specified(here):
    """A dtype that this zarr warns of, as without specification, is said; version 2 has one."""
    npzkit.save("a.npz", {"text": TEXT["text"]})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        zarr.create_array({}, shape=(1,), dtype=TEXT["text"].dtype, zarr_format=3)
    is_warned_of = any("specification" in str(warning.message) for warning in caught)
    notes = "".join(npzkit.convert("a.npz", "a.zarr").notes)
    assert ("no specification" in notes) is is_warned_of
    assert ("zarr_format=2" in notes) is is_warned_of
    assert npzkit.convert("a.npz", "b.zarr/", zarr_format=2).notes == ()


def test_matlab_is_scipys(here):
    """scipy reads what is written; text, logical and complex values of others are read."""
    npzkit.save("a.npz", {"x": np.ones((2, 3)), "v": np.arange(3), "text": np.array(["ab", "cd"])})
    notes = "\n".join(npzkit.convert("a.npz", "a.mat", compression="deflated").notes)
    assert "'v': shape (3,) becomes (1, 3)" in notes
    assert "'text': text becomes rows of one length, padded" in notes
    found = scipy_io.loadmat("a.mat")
    assert found["x"].tolist() == [[1, 1, 1]] * 2
    assert found["text"].tolist() == ["ab", "cd"]
    scipy_io.savemat("b.mat", {"c": np.array([[1 + 2j]]), "t": "hello", "l": np.array([[True]])})
    npzkit.convert("b.mat", "b.npz")
    back = load("b.npz")
    same(back["c"], np.array([[1 + 2j]]))
    same(back["l"], np.array([[True]]))
    assert back["t"].tolist() == ["hello"]


@pytest.mark.slow
def test_matlab_structs_are_left_out(here):
    """What is no array is refused by name, and left out by skip."""
    scipy_io.savemat("a.mat", {"s": {"a": 1}, "x": np.ones((1, 2))})
    with pytest.raises(ConversionError) as caught:
        npzkit.convert("a.mat", "a.npz")
    assert (caught.value.path, caught.value.key) == ("a.mat", "s")
    npzkit.convert("a.mat", "a.npz", skip=True)
    assert list(load("a.npz")) == ["x"]


@pytest.mark.slow
@pytest.mark.remedy("save it by the command save new.mat -v7. Or give it a name that ends in .h5")
def test_matlab_files_that_are_hdf5(here):
    """A file of version 7.3 is HDF5 with reversed axes: one of version 7 has MATLAB's."""
    ours = np.arange(6.0).reshape(2, 3)
    with h5py.File("a.mat", "w", userblock_size=512) as file:
        file["x"] = ours.T
        file["x"].attrs["MATLAB_class"] = np.bytes_("double")
    with open("a.mat", "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM")
    with pytest.raises(ConversionError, match=r"version 7\.3") as caught:
        npzkit.convert("a.mat", "a.npz")
    assert caught.value.path == "a.mat"
    with pytest.raises(npzkit.NpzkitError, match="-v7"):
        npzkit.open("a.mat")
    # What MATLAB saves with "-v7".
    scipy_io.savemat("new.mat", {"x": ours}, do_compression=True)
    npzkit.convert("new.mat", "new.npz")
    assert load("new.npz")["x"].tolist() == ours.tolist()
    os.rename("a.mat", "a.h5")
    report = npzkit.convert("a.h5", "a.npz")
    assert report.notes[0] == "the axes of 'x' are in the reverse of MATLAB's order"
    assert load("a.npz")["x"].T.tolist() == ours.tolist()


@pytest.mark.parametrize("kind", [{}, {"format": "pt"}])
def test_tensors_that_safetensors_ties_in_its_metadata(here, kind):
    """What save_model of safetensors.torch left out is a tied tensor, and the file comes back."""
    weights = {"emb.weight": np.ones((2, 3), "f4"), "b": np.zeros(2, "f4")}
    tied = {"head.weight": "emb.weight"}
    save_file(weights, "a.safetensors", metadata={**kind, **tied, "b": "emb.weight", "of": "me"})
    report = npzkit.convert("a.safetensors", "a.npz")
    assert report.notes == ("the metadata names tied tensors: head.weight",)
    found = npzkit.load_tree("a.npz", like={**weights, "head.weight": weights["emb.weight"]})
    assert found["head.weight"].tolist() == weights["emb.weight"].tolist()
    assert npzkit.convert("a.npz", "b.safetensors").notes == ()
    with (
        safe_open("a.safetensors", "numpy") as before,
        safe_open("b.safetensors", "numpy") as after,
    ):
        assert before.metadata() == after.metadata()
        assert before.keys() == after.keys()


def test_metadata_that_tie_no_tensors(here):
    """A text that is the key of an array stays as it is, whoever wrote it."""
    save_file({"x": np.ones(2)}, "a.safetensors", metadata={"format": "pt", "title": "x"})
    assert npzkit.convert("a.safetensors", "b.npz").notes == ()
    assert list(npzkit.load_tree("b.npz", like={})) == ["x"]
    npzkit.save("a.npz", {"x": np.ones(2)}, metadata={"main.target": "x"})
    npzkit.convert("a.npz", "a.safetensors", overwrite=True)
    assert npzkit.convert("a.safetensors", "b.npz", overwrite=True).notes == ()
    with npzkit.open("b.npz") as npz:
        assert dict(npz.metadata) == {"main.target": "x"}


@pytest.mark.remedy(
    'Rename it in a copy: npzkit.convert(file, "new.npz"), NpzWriter(',
    "; or leave it out with skip=True.",
)
def test_matlabs_longest_names(here):
    """A name has at most 63 characters; an array with a longer one is renamed, or left out."""
    npzkit.save("a.npz", {"a" * 63: np.ones((1, 2)), "b" * 64: np.zeros((1, 2))})
    with pytest.raises(
        ConversionError, match="at most 63 characters, and its key has 64"
    ) as caught:
        npzkit.convert("a.npz", "a.mat")
    assert (caught.value.path, caught.value.key) == ("a.npz", "b" * 64)
    report = npzkit.convert("a.npz", "a.mat", skip=True)
    assert (report.keys, list(report.skipped)) == (("a" * 63,), ["b" * 64])
    npzkit.convert("a.npz", "new.npz")
    with npzkit.NpzWriter("new.npz", "a") as w:
        w.rename("b" * 64, "b" * 63)
    npzkit.convert("new.npz", "b.mat")
    assert list(scipy_io.loadmat("b.mat"))[-2:] == ["a" * 63, "b" * 63]


@pytest.mark.remedy("Convert to another format, or do what the error without skip=True says.")
@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("b.mat", {"t": np.ma.array([1.0, 2], mask=[0, 1])}),
        ("b.npz", {"t": np.array([1, 2], object)}),
        ("b.h5", {"t": np.array([1, 2], object)}),
    ],
)
def test_nothing_is_written_if_all_is_left_out(here, name, arrays):
    """A file without arrays would block the next try; another format, or what is advised, works."""
    if name == "b.mat":
        npzkit.save("a.npz", arrays, masked="split")
    else:
        np.savez("a.npz", **arrays)
    with pytest.raises(ConversionError, match="all arrays are left out, so"):
        npzkit.convert("a.npz", name, skip=True)
    assert os.listdir() == ["a.npz"]
    if name == "b.mat":
        assert npzkit.convert("a.npz", "b.h5", skip=True).keys == ("t", "t.mask")
    else:
        with pytest.raises(ConversionError, match="allow_pickle=True"):
            npzkit.convert("a.npz", name)
        assert npzkit.convert("a.npz", "c.npz", allow_pickle=True).keys


@pytest.mark.remedy('convert(file, "new.npz"); w = npzkit.NpzWriter("new.npz", "a"); [w.rename(key')
def test_slashes_become_underscores(here):
    """All keys that have some are renamed by one line."""
    npzkit.save("a.npz", {"a/b": np.ones((1, 2)), "a/c/d": np.zeros((1, 2))})
    with pytest.raises(ConversionError, match="letters, digits and _") as caught:
        npzkit.convert("a.npz", "a.mat")
    line = caught.value.remedy.removeprefix("Rename such keys in a copy: ")
    exec(line, {"npzkit": npzkit, "file": "a.npz"})
    assert npzkit.convert("new.npz", "a.mat").keys == ("a_b", "a_c_d")


@pytest.mark.remedy(
    "Save it in Python as npz.join(key).filled(value), and its mask under another key",
    "Save it in Python as numpy.array(npz.join(key).tolist()); or leave it out with skip=True.",
)
def test_matlab_has_no_arrays_in_parts(here):
    """The error is about the array that was named, and not about its parts."""
    masked, text = np.ma.array([[1.0, 2]], mask=[[0, 1]]), np.array(["a", "bc"], "T")
    npzkit.save("a.npz", {"m/x": masked, "t": text}, masked="split", strings="split")
    for key, reason in (("m/x", "masked arrays"), ("t", "strings of any length")):
        with pytest.raises(ConversionError, match=f"the format has no {reason}") as caught:
            npzkit.convert("a.npz", "a.mat", key)
        assert caught.value.key == key
    with npzkit.open("a.npz") as npz:
        values, mask, text = npz.join("m/x").filled(-1), npz.join("m/x").mask, npz.join("t")
        npzkit.save("b.npz", {"m": values, "m_mask": mask, "t": np.array(text.tolist())})
    npzkit.convert("b.npz", "b.mat")
    found = scipy_io.loadmat("b.mat")
    assert (found["m"].tolist(), found["m_mask"].tolist()) == ([[1, -1]], [[0, 1]])
    assert found["t"].tolist() == ["a ", "bc"]


def test_an_empty_container_is_named_as_a_value_is(here):
    """It comes if `only` names it or its folder."""
    npzkit.save("a.npz", {"m": {"w": np.ones(2), "b": {}}, "scaler": {}, "other": ()})
    npzkit.convert("a.npz", "b.npz", ["m", "scaler"])
    assert list(npzkit.load_tree("b.npz")) == ["m", "scaler"]
    assert npzkit.load_tree("b.npz", "m")["b"] == {}


@pytest.mark.parametrize("key", ["a/b", "1a", "_a", "größe"])
def test_names_that_matlab_lacks(here, key):
    """Letters, digits and _, with a letter first; what is too long besides is not the reason."""
    for name in (key, key + "a" * 64):
        npzkit.save("a.npz", {name: np.ones((1, 2))})
        with pytest.raises(ConversionError, match="letters, digits and _"):
            npzkit.convert("a.npz", "a.mat")


@pytest.mark.remedy(" what bytes without a dtype mean. To ")
def test_a_dtype_that_the_bytes_do_not_have(here):
    """An array that is not bytes of the size is converted in Python."""
    npzkit.save("a.npz", {"x": BFLOAT16["bf16"].view("V2"), "y": np.arange(3)})
    for dtypes in {"x": "float8_e4m3fn"}, {"x": "bfloat16", "y": "bfloat16"}:
        with pytest.raises(ConversionError, match="is not bytes of"):
            npzkit.convert("a.npz", "b.npz", dtypes=dtypes)
    npzkit.convert("a.npz", "b.npz", dtypes={"x": "bfloat16"})
    same(load("b.npz")["x"], BFLOAT16["bf16"])
    same(load("b.npz")["y"], np.arange(3))
    with npzkit.open("b.npz") as npz:
        npzkit.save("c.npz", {key: npz[key].astype("f4") for key in npz})
    same(load("c.npz")["x"], BFLOAT16["bf16"].astype("f4"))


@pytest.mark.slow
@pytest.mark.remedy("Leave it out with skip=True.")
@each_row(
    ("name", "array"),
    [
        ("a.safetensors", np.array(["a"])),
        ("a.safetensors", np.array([1], "M8[s]")),
        ("a.h5", np.zeros(1, [("a", "U3")])),
        ("a.zarr", np.zeros(1, np.longdouble)),
        ("a.zarr", np.zeros(1, [("a", "f8", 2)])),
        ("a.mat", np.array([1], "M8[s]")),
        ("a.mat", np.array([1], ml_dtypes.bfloat16)),
        ("a.mat", np.array([["a"]])),
    ],
)
def test_what_has_no_place_is_refused(here, name, array):
    """An array that would change is named with the reason, before anything is written."""
    npzkit.save("a.npz", {"good": np.ones((2, 2)), "bad": array})
    with pytest.raises(ConversionError, match="cannot be kept") as caught:
        npzkit.convert("a.npz", name)
    assert (caught.value.path, caught.value.key) == ("a.npz", "bad")
    assert "skip=True" in str(caught.value)
    assert os.listdir() == ["a.npz"]
    report = npzkit.convert("a.npz", name, skip=True)
    assert (report.keys, list(report.skipped)) == (("good",), ["bad"])
    npzkit.convert(name, "b.npz")
    assert load("b.npz")["good"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.slow
@pytest.mark.remedy("Save each field as an array of its own, npz[key][field], and dates")
@pytest.mark.parametrize("name", ["a.mat", "a.h5", "a.zarr", "a.safetensors"])
def test_fields_that_have_no_place(here, name):
    """Each becomes an array of its own, dates as integers; the message has no half of a dtype."""
    fields = [("time", "M8[ms]"), ("T", "f8"), ("p", "f4", 3), ("station_of_the_field", "i4")]
    npzkit.save("a.npz", {"rec": np.ones(2, fields)})
    with pytest.raises(ConversionError, match="cannot be kept") as caught:
        npzkit.convert("a.npz", name)
    end = "records) are not written to .mat" if name == "a.mat" else "..."
    assert caught.value.what.endswith(end)
    with npzkit.open("a.npz") as npz:
        arrays = {field: npz["rec"][field] for field in npz["rec"].dtype.names}
    npzkit.save("b.npz", arrays | {"time": arrays["time"].astype("i8")})
    npzkit.convert("b.npz", name)
    npzkit.convert(name, "c.npz")
    assert load("c.npz")["p"].tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("name", ["a.h5", "a.zarr"])
def test_an_array_is_no_group(here, name):
    """A key that is also the folder of another is refused where arrays cannot hold arrays."""
    npzkit.save("a.npz", {"a": [1], "a/b": [2]})
    with pytest.raises(ConversionError, match="'a' is an array") as caught:
        npzkit.convert("a.npz", name)
    assert caught.value.key == "a/b"


def test_python_objects_are_never_unpickled(here):
    """An array of objects is refused."""
    np.savez("a.npz", x=np.array([{}]), y=[1])
    with pytest.raises(ConversionError, match="Python objects"):
        npzkit.convert("a.npz", "a.h5")
    assert list(npzkit.convert("a.npz", "a.h5", skip=True).skipped) == ["x"]


@pytest.mark.parametrize("name", ["a.safetensors", "a.h5", "a.zarr"])
def test_hostile_names(here, name):
    """A name that would lead elsewhere is refused by every format."""
    import zipfile

    np.save("x.npy", np.ones(2))
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.write("x.npy", "../../x.npy")
    with pytest.raises(ConversionError, match="cannot be kept"):
        npzkit.convert("a.npz", name)
    assert sorted(os.listdir()) == ["a.npz", "x.npy"]


def test_notes_do_not_control_a_terminal(here):
    """Names and attributes of strangers are escaped in errors and notes."""
    save_file({"a\x1b[2Jb": np.ones(2)}, "a.safetensors")
    with h5py.File("a.h5", "w") as file:
        file["x\x1b[2J"] = h5py.SoftLink("/nowhere")
        file.attrs["\x1b[2J"] = np.array(1j)
    with pytest.raises(ConversionError) as caught:
        npzkit.convert("a.safetensors", "a.npz")
    for text in (str(caught.value), *npzkit.convert("a.h5", "a.npz").notes):
        assert "\\x1b" in text
        assert "\x1b" not in text


def test_an_attribute_that_is_only_claimed(here):
    """Empty lists that nothing but a shape stands for are not made; a few are."""
    with h5py.File("a.h5", "w") as file:
        file.attrs.create("endless", np.zeros((2**28, 0)))
        file.attrs.create("few", np.zeros((2, 0)))
    (note,) = npzkit.convert("a.h5", "a.npz").notes
    assert "the attribute 'endless' of the file is not kept" in note
    with npzkit.open("a.npz") as npz:
        assert dict(npz.metadata) == {"few": [[], []]}


@pytest.mark.slow
def test_a_file_appears_complete(here):
    """A path is replaced by overwrite alone, and only when the new file is complete."""
    npzkit.save("a.npz", {"x": np.arange(1000), "y": np.ones(3)})
    data = bytearray((here / "a.npz").read_bytes())
    data[4000] ^= 1
    (here / "bad.npz").write_bytes(data)
    for name in ("a.safetensors", "a.h5", "a.mat", "a.zarr"):
        npzkit.convert("a.npz", name)
        before = sorted(os.listdir())
        with pytest.raises(FileExistsError) as exists:
            npzkit.convert("a.npz", name)
        assert exists.value.filename == name
        with pytest.raises(ChecksumError) as damaged:
            npzkit.convert("bad.npz", name, overwrite=True)
        assert damaged.value.key == "x"
        assert sorted(os.listdir()) == before
        npzkit.convert(name, "b.npz", overwrite=True)
        assert load("b.npz")["x"].reshape(-1).tolist() == list(range(1000))
        npzkit.convert("a.npz", name, overwrite=True)
        assert set(os.listdir()) == {*before, "b.npz"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["b.npz", "a.safetensors", "a.h5", "a.mat", "a.zarr"])
def test_an_interrupt_leaves_what_was_there(here, monkeypatch, name):
    """Ctrl-C in the middle leaves no file behind, and the old one as it was."""
    npzkit.save("a.npz", {"x": np.ones((2, 2))})
    np.save("y.npy", np.zeros((3, 3)))
    npzkit.pack("y.npz", "y.npy")
    npzkit.convert("a.npz", name)
    before = sorted(os.listdir())

    def interrupted(*_):
        raise KeyboardInterrupt

    source = "y.npz"
    if name == "b.npz":
        npzkit.convert("y.npz", "y.safetensors")
        source, before = "y.safetensors", sorted([*before, "y.safetensors"])
    with monkeypatch.context() as patch:
        patch.setattr("npzkit.conversion.arrays.InFile.__getitem__", interrupted)
        patch.setattr("npzkit.NpzFile.read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            npzkit.convert(source, name, overwrite=True)
    assert sorted(os.listdir()) == before
    npzkit.convert(name, "c.npz")
    assert load("c.npz")["x"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["a.npz", "a.h5", "extract"])
def test_an_archive_that_a_writer_has_open_is_not_replaced(here, source):
    """No commit is lost because its archive was replaced meanwhile, and nothing is left over."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    npzkit.convert("a.npz", "a.h5")
    npzkit.save("b.npz", {"old": np.ones(2)})
    with zipfile.ZipFile("outer.npz", "w") as outer:
        outer.write("a.npz", "b.npz")
    before = sorted(os.listdir())

    def replace():
        if source == "extract":
            npzkit.extract("outer.npz", overwrite=True)
        else:
            npzkit.convert(source, "b.npz", overwrite=True)

    with npzkit.NpzWriter("b.npz", "a") as writer:
        with pytest.raises(ArchiveLockedError, match="another writer"):
            replace()
        writer["new"] = np.zeros(1)
    assert set(load("b.npz")) == {"old", "new"}
    replace()
    assert set(load("b.npz")) == {"x"}
    assert sorted(os.listdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("source", ["a.npz", "a.h5"])
def test_an_archive_that_another_program_makes_meanwhile_stays(here, source):
    """What was not there at first is not replaced at the end."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    npzkit.convert("a.npz", "a.h5")

    def make(done, total):
        npzkit.save("b.npz", {"other": np.ones(2)})

    with pytest.raises(FileExistsError):
        npzkit.convert(source, "b.npz", progress=make)
    assert set(load("b.npz")) == {"other"}


def test_a_folder_that_cannot_take_its_place_is_no_loss(here, monkeypatch):
    """Where the new folder cannot be renamed the old one is put back."""
    npzkit.save("a.npz", {"x": [1]})
    npzkit.save("b.npz", {"y": [2]})
    npzkit.convert("a.npz", "out.zarr")
    replace, before = os.replace, sorted(os.listdir())

    def failing(source, target):
        if str(target) == "out.zarr" and ".old" not in str(source):
            raise PermissionError(errno.EACCES, "no", str(target))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", failing)
        with pytest.raises(PermissionError):
            npzkit.convert("b.npz", "out.zarr", overwrite=True)
    assert sorted(os.listdir()) == before
    assert sorted(os.listdir("out.zarr")) == ["x", "zarr.json"]


def test_a_link_to_a_folder_is_replaced_and_not_followed(here):
    """What a link leads to stays as it was."""
    npzkit.save("a.npz", {"x": [1]})
    npzkit.save("b.npz", {"y": [2]})
    npzkit.convert("a.npz", "real.zarr")
    os.symlink("real.zarr", "out.zarr")
    npzkit.convert("b.npz", "out.zarr", overwrite=True)
    assert sorted(os.listdir("real.zarr")) == ["x", "zarr.json"]
    assert sorted(os.listdir("out.zarr")) == ["y", "zarr.json"]
    assert sorted(os.listdir()) == ["a.npz", "b.npz", "out.zarr", "real.zarr"]


@pytest.mark.remedy("Remove it, or choose another folder.")
def test_a_folder_of_other_things_is_not_replaced(here):
    """A store is replaced; other folders stay until they are removed; an empty one is used."""
    npzkit.save("a.npz", {"x": [1]})
    os.mkdir("out.zarr")
    npzkit.convert("a.npz", "out.zarr")
    (here / "p.zarr").mkdir()
    (here / "p.zarr/thesis.txt").write_text("!")
    with pytest.raises(ConversionError, match="files that are not arrays"):
        npzkit.convert("a.npz", "p.zarr", overwrite=True)
    assert os.listdir("p.zarr") == ["thesis.txt"]
    npzkit.convert("a.npz", "q.zarr", overwrite=True)
    shutil.rmtree("p.zarr")
    npzkit.convert("a.npz", "p.zarr", overwrite=True)
    for name in ("p.zarr", "q.zarr"):
        assert zarr.open_group(name, mode="r")["x"][:].tolist() == [1]


def test_archives_to_archives(here):
    """From .npz to .npz everything stays but the compression that is asked for."""
    with npzkit.NpzWriter("a.npz", metadata=METADATA) as writer:
        writer.add("x", np.zeros(1000), attrs=ATTRS)
        writer.add("bf", BFLOAT16["bf16"], compression="deflated")
    npzkit.convert("a.npz", "b.npz")
    npzkit.convert("a.npz", "c.npz", compression="deflated")
    for name, method in (("b.npz", "stored"), ("c.npz", "deflated")):
        with npzkit.open(name) as npz:
            assert npz.metadata == METADATA
            assert npz.info("x").attrs == ATTRS
            assert npz.info("x").method == method
            assert npz.info("bf").method == "deflated"
            assert npz["bf"].dtype == ml_dtypes.bfloat16


@pytest.mark.slow
@each_row("suffix", ["npz", "safetensors", "h5", "mat"])
@each_row("content", [b"", b"<html>", b"\x89HDF\r\n\x1a\n" + b"\xff" * 200])
def test_files_that_are_something_else(here, suffix, content):
    """An empty file and one of another kind are one error that names it, and make nothing."""
    (here / f"a.{suffix}").write_bytes(content)
    with pytest.raises(FormatError) as caught:
        npzkit.convert(f"a.{suffix}", "b.h5" if suffix == "npz" else "b.npz")
    assert caught.value.path == f"a.{suffix}"
    assert len(str(caught.value).splitlines()) == 1
    assert os.listdir() == [f"a.{suffix}"]


def test_names_of_npzkits_own_are_not_taken_from_a_text_of_json(here):
    """An attribute that would change how an array is read is left out."""
    npzkit.save("a.npz", {"x": np.arange(2)})
    npzkit.convert("a.npz", "a.h5")
    with h5py.File("a.h5", "a") as file:
        file["x"].attrs["npzkit.json"] = '{"npzkit.parts": {"kind": "masked"}, "y": 1}'
    npzkit.convert("a.h5", "c.npz")
    with npzkit.open("c.npz") as npz:
        assert npz.info("x").attrs == {"y": 1}
        assert npz.join("x").tolist() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["h5", "safetensors"])
def test_nan_in_a_text_of_json(here, suffix):
    """Other programs find strict JSON, and NaN and infinity come back from it."""
    attrs = {"deep": {"a": [math.nan, -math.inf]}, "plain": math.inf}
    with npzkit.NpzWriter("a.npz", metadata=attrs) as w:
        w.add("x", np.arange(2), attrs=attrs)
    npzkit.convert("a.npz", f"a.{suffix}")
    content = (here / f"a.{suffix}").read_bytes()
    assert b"npzkit.float" in content
    assert b"NaN," not in content
    npzkit.convert(f"a.{suffix}", "b.npz")
    with npzkit.open("b.npz") as npz:
        for found in (npz.metadata, npz.info("x").attrs):
            assert repr(sorted(found.items())) == repr(sorted(attrs.items()))


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_too_little_memory_is_no_bad_file(here, monkeypatch, error):
    """What the process lacks is raised as it is, and makes nothing."""
    npzkit.save("a.npz", {"x": np.eye(2)})
    npzkit.convert("a.npz", "a.safetensors")

    def fails(found):
        raise error

    monkeypatch.setattr("npzkit.conversion.safetensors_file._parse_metadata", fails)
    with pytest.raises(error):
        npzkit.convert("a.safetensors", "b.npz")
    assert sorted(os.listdir()) == ["a.npz", "a.safetensors"]


def test_safetensors_that_lie(here):
    """Places beyond the file, and headers that claim gigabytes, are refused."""
    for header in (
        {"x": {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}},
        {"x": {"dtype": "F64", "shape": [1], "data_offsets": [0, 80]}},
    ):
        text = json.dumps(header).encode()
        (here / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
        with pytest.raises(FormatError):
            npzkit.convert("a.safetensors", "a.npz")
    (here / "a.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(FormatError):
        npzkit.convert("a.safetensors", "a.npz")
    assert os.listdir() == ["a.safetensors"]


def test_wrong_paths(here):
    """A missing file, an unknown kind, a folder for a file: an error that says which path."""
    npzkit.save("a.npz", {"x": [1]})
    (here / "a.docx").write_bytes(b"")
    os.mkdir("folder.h5")
    for src, dst, error, what in (
        ("no.h5", "b.npz", FileNotFoundError, "no.h5"),
        ("a.docx", "b.npz", ConversionError, ".safetensors"),
        ("folder.h5", "b.npz", ConversionError, "npzkit.pack"),
        ("a.npz", "b.docx", ConversionError, ".safetensors"),
        ("a.npz", "b/", ConversionError, "npzkit.extract"),
        ("a.npz", "", ConversionError, "empty"),
        ("a.npz", "no/b.h5", FileNotFoundError, "no"),
    ):
        with pytest.raises(error, match=re.escape(what)):
            npzkit.convert(src, dst)
    assert sorted(os.listdir()) == ["a.docx", "a.npz", "folder.h5"]


def converted(dst, src="a.npz"):
    """Convert a file, and return the array that is in the new one."""
    npzkit.convert(src, dst)
    npzkit.convert(dst, "back.npz")
    return load("back.npz")["x"]


def uploaded():
    """Convert to a path, and return the array of the file that is uploaded."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    npzkit.convert("a.npz", "b.h5")
    store = fsspec.filesystem("memory")
    store.put("b.h5", "/remedy/b.h5")
    with store.open("/remedy/b.h5", "rb") as stream, h5py.File(stream) as file:
        return file["x"][:]


def downloaded():
    """Put a file into a store, and return the array of its copy."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    npzkit.convert("a.npz", "b.h5")
    store = fsspec.filesystem("memory")
    store.put("b.h5", "/remedy/a.h5")
    store.get("/remedy/a.h5", "copy.h5")
    return converted("c.npz", "copy.h5")


def extracted(path):
    """Extract an archive, and return the numbers in one of its files."""
    npzkit.extract(path, "out")
    return np.loadtxt("out/numbers.txt", dtype=int)


def all_converted(folder):
    """Convert each file of a folder, and return the array that was in the only one."""
    for file in glob.glob(f"{folder}/*.h5"):
        npzkit.convert(file, file + ".npz")
    return load(f"{folder}/x.h5.npz")["x"]


FOLDERS = (
    (
        "npy", pytest.mark.remedy("To make an archive of the .npy files in it: npzkit.pack("),
        lambda: npzkit.pack("new.npz", "npy") and load("new.npz")["x"],
    ),
    (
        "npz", pytest.mark.remedy("To pack the archives in it: npzkit.pack(out, "),
        lambda: npzkit.pack("new.npz", "npz/**/*.npz") and load("new.npz")["x"],
    ),
    (
        "h5", pytest.mark.remedy("Convert its files one by one: for file in glob.glob("),
        lambda: all_converted("h5"),
    ),
    (
        "csv", pytest.mark.remedy("Read its tables with NumPy's genfromtxt"),
        lambda: np.genfromtxt("csv/x.csv"),
    ),
)  # fmt: skip
"""Folders with one kind of file, what to do with them, and how."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("src", "dst", "what", "follow"),
    [
        *(
            pytest.param(
                name, dst, "no Zarr store, and no sharded archive", follow, marks=mark
            )
            for dst in ("b.npz", "arrays.h5")
            for name, mark, follow in FOLDERS
        ),
        pytest.param(
            "docs.zip", "b.h5", "the archive has 2 members, and none is an array",
            lambda: extracted("docs.zip"),
            marks=pytest.mark.remedy("To write its members to files: npzkit.extract(path, folder)"),
        ),
        pytest.param(
            "a.npz", "b", "suffix is none of .npz .safetensors",
            lambda: npzkit.extract("a.npz", "b") and np.load("b/x.npy"),
            marks=pytest.mark.remedy("npzkit.extract writes .npy and .csv files."),
        ),
        pytest.param(
            "a.pkl", "b.npz", "does not know files that end in .pkl",
            lambda: converted("b.h5"),
            marks=pytest.mark.remedy("It reads "),
        ),
        pytest.param(
            "a.npz", "b.pt", "not written", lambda: converted("b.safetensors"),
            marks=pytest.mark.remedy("Convert to .safetensors; or to .npz, and in Python"),
        ),
        pytest.param(
            "a.npz", "b.h5/", "ends in a slash", lambda: converted("b.h5"),
            marks=pytest.mark.remedy("Remove the slash."),
        ),
        *(
            pytest.param(
                "a.npz", "folder.h5", "is a folder", follow,
                marks=pytest.mark.remedy("Remove the folder, or write to another path."),
            )
            for follow in (
                lambda: os.rmdir("folder.h5") or converted("folder.h5"),
                lambda: converted("b.h5"),
            )
        ),
        pytest.param(
            "a.npz", "memory://remedy/b.h5", "written to a store", uploaded,
            marks=pytest.mark.remedy("Write to a path, and upload the file."),
        ),
        pytest.param(
            "memory://remedy/a.h5", "b.npz", "read from a store", downloaded,
            marks=pytest.mark.remedy("Download the file, and convert the copy."),
        ),
    ],
)  # fmt: skip
def test_what_to_do_instead(here, src, dst, what, follow):
    """What the error of a wrong path says is done, and the array is in the new file."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    for name in ("npy", "npz", "h5", "csv", "folder.h5"):
        os.mkdir(name)
    np.save("npy/x.npy", np.arange(3))
    np.savetxt("csv/x.csv", np.arange(3))
    npzkit.save("npz/x.npz", {"x": np.arange(3)})
    npzkit.convert("a.npz", "h5/x.h5")
    with zipfile.ZipFile("docs.zip", "w") as archive:
        archive.writestr("numbers.txt", "0 1 2")
        archive.writestr("readme.txt", "numbers")
    Path("a.pkl").write_bytes(b"what\0")
    with pytest.raises((ConversionError, UnsupportedError), match=re.escape(what)):
        npzkit.convert(src, dst)
    assert not os.path.isfile(dst)
    assert follow().tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.remedy(
    "It may be cut off or damaged. Download it, create it again or restore a backup."
)
def test_what_to_do_with_a_cut_off_file(here):
    """The error of a library says it too; a part of an archive is one, whatever its name."""
    npzkit.save("a.npz", {"x": np.arange(3), "y": np.zeros(1000)})
    for suffix in ("h5", "safetensors"):
        npzkit.convert("a.npz", f"a.{suffix}")
        data = Path(f"a.{suffix}").read_bytes()
        Path(f"cut.{suffix}").write_bytes(data[: len(data) // 2])
        with pytest.raises(
            FormatError,
            match=r"cannot be read: .*cut off or damaged\. Download it, create it again or restore",
        ):
            npzkit.convert(f"cut.{suffix}", "b.npz")
        Path(f"cut.{suffix}").write_bytes(data)
        npzkit.convert(f"cut.{suffix}", "b.npz")
        assert load("b.npz")["x"].tolist() == [0, 1, 2]
        os.unlink("b.npz")
    Path("a.npz.part").write_bytes(Path("a.npz").read_bytes()[:5000])
    with pytest.raises(FormatError, match=r"is cut off.*npzkit\.repair"):
        npzkit.convert("a.npz.part", "b.npz")
    Path("random.bin").write_bytes(rng.bytes(1000))
    with pytest.raises(FormatError, match="does not know this kind of file"):
        npzkit.convert("random.bin", "b.npz")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("true", "named"),
    [("a.npz", "b.safetensors"), ("a.npz", "b.zip"), ("a.safetensors", "b.npz"),
     ("a.h5", "b.npz"), ("a.mat", "b.npz")],
)  # fmt: skip
def test_a_file_whose_name_says_another_format(here, true, named):
    """It is read as what its bytes are, so that what the error of `open` advises works."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    if true != "a.npz":
        npzkit.convert("a.npz", true)
        os.rename(true, named)
        with pytest.raises(npzkit.NpzkitError, match=r"Convert it: npzkit\.convert\(path"):
            npzkit.open(named)
        true = named
    os.rename(true, named)
    assert converted("c.npz", named).ravel().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "bzip2"},
        {"compression": "stored", "level": 3},
        {"compression": "deflated", "level": 10},
        {"zarr_format": 1},
    ],
)
def test_wrong_arguments(here, options):
    """An argument that means nothing is a ValueError before anything is read."""
    with pytest.raises(ValueError, match=next(reversed(options))):
        npzkit.convert("none.npz", "a.zarr", **options)


def test_paths_are_any_that_python_has(tmp_path):
    """Path objects are taken, and the report has the path as text."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    report = npzkit.convert(tmp_path / "a.npz", tmp_path / "b.npz")
    assert report.output == os.fspath(tmp_path / "b.npz")
    assert np.load(tmp_path / "b.npz")["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["a.h5", "b.npz"])
def test_progress_is_reported_up_to_the_total(here, name):
    """The function is called with the bytes done and the total, which it reaches."""
    npzkit.save("a.npz", {"x": np.arange(1000)})
    told = []
    npzkit.convert("a.npz", name, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    done, total = told[-1]
    assert done == total >= 8000


def test_an_error_of_progress_is_not_the_files(here):
    """What the caller's function raises ends the work, reaches the caller, and leaves no file."""
    npzkit.save("a.npz", {"x": np.arange(1000)})

    def stop(done, total):
        raise RuntimeError("enough")

    for name in ("a.h5", "a.zarr", "a.mat", "b.npz"):
        with pytest.raises(RuntimeError, match="enough"):
            npzkit.convert("a.npz", name, progress=stop)
    assert os.listdir() == ["a.npz"]


PEAK = """
import npzkit, sys
npzkit.pack("a.npz", "x.npy", compression="deflated")
npzkit.convert("a.npz", "a.h5", compression="deflated", level=1)
npzkit.convert("a.npz", "a.safetensors")
npzkit.convert("a.safetensors", "b.npz", compression="deflated")
npzkit.extract("b.npz", "out")
(line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(line.split()[1]) >> 10)
"""


@needs_deep
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read there")
def test_large_arrays_take_little_memory(here):
    """An array of 256 MiB is packed, converted and extracted by less memory than that."""
    array = np.lib.format.open_memmap("x.npy", "w+", "f8", (256 << 7, 1024))
    array[::5000] = np.arange(1024)
    del array
    result = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=300
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert int(result.stdout) < 192
    os.unlink("a.safetensors")
    expected, found = (np.load(name, mmap_mode="r") for name in ("x.npy", "out/x.npy"))
    assert np.array_equal(found[::5000], expected[::5000])
    assert found.shape == expected.shape
    os.unlink("out/x.npy")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room is not reserved here")
@pytest.mark.parametrize("name", ["b.safetensors", "b.npz"])
def test_a_full_disk_is_an_error(here, monkeypatch, name):
    """Where there is no room it is said, and nothing is left behind."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", 100)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    npzkit.save("a.npz", {"x": np.asfortranarray(np.ones((20, 20)))})
    monkeypatch.setattr("os.posix_fallocate", full)
    npzkit.convert("a.npz", "a.h5")
    source = "a.h5" if name == "b.npz" else "a.npz"
    monkeypatch.setattr("npzkit.conversion.npz._has_small_rows", lambda array: False)
    with pytest.raises(OSError, match="No space left"):
        npzkit.convert(source, name, compression="deflated")
    assert sorted(os.listdir()) == ["a.h5", "a.npz"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there is no limit of the size of files")
def test_a_file_that_hdf5_cannot_make_larger(here):
    """The error is the system's, with the file's name."""
    npzkit.save("a.npz", {"x": np.zeros(50_000)})
    program = (
        "import resource, signal, npzkit; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY)); "
        "npzkit.convert('a.npz', 'b.h5')"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], stderr=subprocess.PIPE, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"OSError: [Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}: 'b.h5'"
    assert not os.path.exists("b.h5")


@pytest.mark.slow
@pytest.mark.usefixtures("started_readers")
@pytest.mark.remedy('Install it: python -m pip install "')
@pytest.mark.parametrize(
    ("name", "library", "installed_by"),
    [("b.h5", "h5py", "npzkit[h5]"), ("b.zarr", "zarr", "npzkit[zarr]"),
     ("b.mat", "scipy", "npzkit[mat]"), ("b.pt", "torch", "torch"),
     ("b.safetensors", "safetensors", "npzkit[safetensors]")],
)  # fmt: skip
def test_a_missing_library(here, monkeypatch, name, library, installed_by):
    """If a format's library is missing, the error has the command that installs it."""
    npzkit.save("a.npz", {"x": np.ones((1, 3))})
    is_there = importlib.util.find_spec(library) is not None
    if library != "torch":
        npzkit.convert("a.npz", name)
    elif is_there:
        torch = importlib.import_module("torch")
        torch.save({"x": torch.ones(1, 3)}, name)
    else:
        (here / name).write_bytes(b"PK")
    (here / "path").mkdir()
    (here / f"path/{library}.py").write_text(f"raise ModuleNotFoundError(name={library!r})")
    with monkeypatch.context() as patched:
        for module in ("npzkit.conversion.safetensors_file", library):
            patched.delitem(sys.modules, module, raising=False)
        patched.syspath_prepend(here / "path")
        with pytest.raises(UnsupportedError, match=library) as caught:
            npzkit.convert(name, "b.npz")
    assert f'python -m pip install "{installed_by}"' in caught.value.remedy
    extra = installed_by.removeprefix("npzkit[").removesuffix("]")
    assert library == installed_by or library in brought_by(extra)
    if is_there:
        npzkit.convert(name, "b.npz")
        assert load("b.npz")["x"].tolist() == [[1, 1, 1]]


@pytest.mark.skipif(sys.platform == "win32", reason="signals go to the process there")
@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_of_zarr_leaves_nothing(tmp_path, monkeypatch):
    """zarr's threads have stopped writing before what they wrote is removed."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})

    def write_late(self, index, values):
        def write():
            time.sleep(0.2)
            folder = self.store.root / "late"
            folder.mkdir(parents=True)

        thread = threading.Thread(target=write)
        thread.start()
        os.kill(os.getpid(), signal.SIGINT)
        thread.join()

    monkeypatch.setattr(zarr.Array, "__setitem__", write_late)
    with pytest.raises(KeyboardInterrupt):
        npzkit.convert(tmp_path / "a.npz", tmp_path / "a.zarr")
    time.sleep(0.3)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("method", ["__getitem__", "__setitem__"])
def test_attributes_are_not_left_out_for_a_full_stack(tmp_path, monkeypatch, method):
    """Deep in a recursion, no attribute is left out: it is a RecursionError."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as writer:
        writer.add("w", np.zeros(2), attrs={"units": "m"})
    npzkit.convert(tmp_path / "a.npz", tmp_path / "a.h5")

    def fail(*args):
        raise RecursionError

    monkeypatch.setattr(h5py.AttributeManager, method, fail)
    with pytest.raises(RecursionError):
        if method == "__setitem__":
            npzkit.convert(tmp_path / "a.npz", tmp_path / "b.h5")
        else:
            # As a new file is read back: others are read in a process of their own.
            with hdf5.read(str(tmp_path / "a.h5"), print, Claims(npzkit.Limits(), None)) as found:
                list(found.arrays)


@pytest.mark.remedy(
    "Make plain arrays of objects that you trust, with allow_pickle=True, or leave them out with skip=True."
)
def test_objects_are_not_copied_in_silence(here):
    """From archive to archive too, an array of Python objects is refused, left out or made plain."""
    np.savez("a.npz", x=np.array([1, "b"], object), y=np.arange(3))
    with pytest.raises(ConversionError, match="it holds Python objects") as caught:
        npzkit.convert("a.npz", "b.npz")
    assert caught.value.key == "x"
    assert sorted(os.listdir()) == ["a.npz"]
    report = npzkit.convert("a.npz", "b.npz", skip=True)
    assert (report.keys, list(report.skipped)) == (("y",), ["x"])
    assert npzkit.convert("a.npz", "c.npz", allow_pickle=True).keys
    np.load("c.npz")["y"]


def test_a_file_of_torch_with_the_name_of_an_archive(here):
    """`open`, `verify` and `repair` say what it is, and `convert` reads it as one of torch."""
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
        archive.writestr("archive/version", b"3")
    for use in (npzkit.open, npzkit.repair, lambda path: npzkit.repair(path, "b.npz")):
        with pytest.raises(UnsupportedError, match=r"torch\.save.*Convert it"):
            use("a.npz")
    (row,) = npzkit.verify("a.npz").rows
    assert "torch.save" in row.what
    assert row.remedy.startswith("Convert it")
    assert os.listdir() == ["a.npz"]
    assert source_format("a.npz") is TORCH


def test_only_some_arrays_are_converted(here):
    """With the parts of each, and without the others' places in the note of nested data."""
    masked = np.ma.masked_array(np.arange(4.0), [0, 1, 0, 0])
    npzkit.save("a.npz", {"w": masked, "z": {"u": np.ones(2), "v": 3}}, masked="split")
    assert npzkit.convert("a.npz", "b.npz", only="w").keys == ("w", "w.mask")
    assert npzkit.load_tree("b.npz")["w"].mask.tolist() == [False, True, False, False]
    assert npzkit.convert("a.npz", "c.npz", only=["z/*"]).keys == ("z/u",)
    assert npzkit.convert("a.npz", "d.h5", only="z").keys == ("z/u",)
    for nothing, error in (
        ("", MemberNotFoundError),
        ("q*", MemberNotFoundError),
        ([], ValueError),
    ):
        with pytest.raises(error):
            npzkit.convert("a.npz", "e.npz", only=nothing)
    assert not os.path.exists("e.npz")


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_values_that_are_not_chosen_are_left_out(tmp_path, monkeypatch, suffix):
    """With KEYS, no value of other parts of nested data is in the new file, such as a secret."""
    monkeypatch.chdir(tmp_path)
    tree = {"model": {"w": np.ones(2), "n": 3}, "run": {"token": "abracadabra"}, "rate": 0.1}
    npzkit.save("a.npz", {**tree, "end": None})
    npzkit.convert("a.npz", f"b.{suffix}", "model")
    assert b"abracadabra" not in Path(f"b.{suffix}").read_bytes()
    if suffix == "npz":
        assert str(npzkit.load_tree("b.npz")) == str({"model": tree["model"]})
    npzkit.convert("a.npz", "d.npz", ["run/token", "model/w"])
    assert npzkit.load_tree("d.npz")["run"] == tree["run"]


def test_members_that_are_no_arrays_are_copied_but_not_counted(here):
    """The report of a copy from archive to archive has the keys of arrays, as of other formats."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    with zipfile.ZipFile("a.npz", "a") as archive:
        archive.writestr("notes/", "")
        archive.writestr("notes/readme.txt", "text")
    assert npzkit.convert("a.npz", "b.npz").keys == ("x",)
    with npzkit.open("b.npz") as npz:
        assert npz.files == ["x", "notes/", "notes/readme.txt"]


def test_a_tied_tensor_is_chosen_by_either_key(tmp_path, monkeypatch):
    """The array comes with the key that was chosen."""
    monkeypatch.chdir(tmp_path)
    note = {"m": {"first": ["as", "tensor"], "second": ["same", "m/first"]}, "other": None}
    arrays = {"m/first": np.ones(3), "other": np.ones(3)}
    npzkit.save("a.npz", arrays, metadata={"npzkit.tree": note})
    for name in ("first", "second"):
        npzkit.convert("a.npz", "b.npz", f"m/{name}", overwrite=True)
        found = npzkit.load_tree("b.npz")
        assert (list(found), found["m"][name].tolist()) == (["m"], [1, 1, 1])


def test_a_note_of_another_program_is_no_note(here):
    """A text or a number in the place of the note of nested data is left out."""
    with h5py.File("a.h5", "w") as file:
        file["x"] = np.arange(3)
        file.attrs["npzkit.tree"] = 5
        file.attrs["npzkit.json"] = json.dumps({"npzkit.tree": "x", "npzkit.other": 1})
    npzkit.convert("a.h5", "b.npz")
    with npzkit.open("b.npz") as npz:
        assert dict(npz.metadata) == {}


def test_safetensors_of_pytorch(here):
    """Its metadata say so: the note has tensors, and converted back, nothing was added."""
    arrays = {"a.w": np.ones(3), "b/c": np.zeros(2)}
    save_file(arrays, "a.safetensors", metadata={"format": "pt"})
    npzkit.convert("a.safetensors", "a.npz")
    with npzkit.open("a.npz") as npz:
        assert npz.metadata["npzkit.tree"]["a.w"] == ["as", "tensor"]
    assert npzkit.load_tree("a.npz").keys() == arrays.keys()
    npzkit.convert("a.npz", "b.safetensors")
    assert safe_open("b.safetensors", "numpy").metadata() == {"format": "pt"}


@pytest.mark.parametrize("metadata", [{"s": "x"}, {"s": "x", "n": 1}, {"format": "tf", "n": 1}])
def test_metadata_in_safetensors_have_a_format(here, metadata):
    """Hugging Face's programs refuse metadata without one; converted back, it is as it was."""
    npzkit.save("a.npz", {"x": np.ones(3)}, metadata=metadata)
    npzkit.convert("a.npz", "a.safetensors")
    with safe_open("a.safetensors", "numpy") as file:
        assert file.metadata()["format"] == metadata.get("format", "pt")
    npzkit.convert("a.safetensors", "b.npz")
    with npzkit.open("b.npz") as npz:
        assert npz.metadata == metadata


def test_an_archive_without_arrays(here):
    """One with other members is refused, under any name; an empty one becomes an empty file."""
    for name in ("docs.npz", "docs.zip"):
        with zipfile.ZipFile(name, "w") as archive:
            archive.writestr("readme.txt", "words")
        with pytest.raises(ConversionError, match="has 1 member, and none is an array"):
            npzkit.convert(name, "b.npz")
        assert sorted(os.listdir()) == [name]
        os.remove(name)
    with zipfile.ZipFile("empty.zip", "w"):
        pass
    for name in ("b.npz", "b.safetensors"):
        assert npzkit.convert("empty.zip", name).keys == ()
        assert load("b.npz") == {}
    with zipfile.ZipFile("some.zip", "w") as archive:
        archive.writestr("readme.txt", "words")
        with archive.open("x.npy", "w") as out:
            np.save(out, np.arange(3))
    assert npzkit.convert("some.zip", "c.npz").keys == ("x",)
