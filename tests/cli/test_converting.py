"""The command convert: archives from and to other formats, with all that these can hold."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings

import h5py
import ml_dtypes
import npzkit
import numpy as np
import pytest
import scipy.io
import zarr
from deep import extent
from safetensors import safe_open
from safetensors.numpy import save_file

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
    "folder/": {**NUMBERS, **TEXT, **TIMES, **RECORD, **OTHERS},
}
METADATA = {"about": "a test", "step": 7, "nested": {"a": [1, None, "x"]}, "list": [1.5, 2.5]}
ATTRS = {"unit": "m", "mean": 1.5, "flag": True, "odd": {"a": None}, "names": ["a", "b"]}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


@pytest.mark.parametrize("part_size", [1 << 25, 24])
@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("name", FORMATS)
def test_arrays_go_there_and_back(cli, here, monkeypatch, name, compression, part_size):
    """Names, shapes, dtypes and values come back, taken whole or in many parts."""
    monkeypatch.setattr("npzkit.reading.blocks.BLOCK_SIZE", part_size)
    arrays = FORMATS[name]
    npzkit.save("a.npz", arrays)
    there = cli("convert", "a.npz", name, "-c", compression)
    assert there.code == 0, there.err
    back = cli("convert", name, "b.npz", "-c", compression)
    assert back.code == 0, back.err
    found = load("b.npz")
    assert set(found) == set(arrays)
    for key, array in arrays.items():
        if name == "a.mat":
            array = np.atleast_2d(array)
        same(found[key], array, byte_order=name not in ("a.safetensors", "a.zarr"))
    if name in ("folder/", "a.h5"):
        with npzkit.open("b.npz") as npz:
            assert npz.info("fortran").fortran_order is (name == "folder/")
            assert npz.info("f8").method == compression
    assert sorted(os.listdir()) == sorted(["a.npz", "b.npz", name.rstrip("/")])


@pytest.mark.parametrize("name", ["a.safetensors", "a.h5", "a.zarr"])
def test_metadata_and_attributes_go_there_and_back(cli, here, name):
    """Whatever JSON can express comes back, of the archive and of its arrays."""
    with npzkit.NpzWriter("a.npz", metadata=METADATA) as writer:
        writer.add("x", np.arange(3), attrs=ATTRS)
        writer["y"] = np.ones(2)
    assert cli("convert", "a.npz", name).err == ""
    assert cli("convert", name, "b.npz").err == ""
    with npzkit.open("b.npz") as npz:
        assert npz.metadata == METADATA
        assert npz.info("x").attrs == ATTRS
        assert npz.info("y").attrs == {}


@pytest.mark.parametrize("name", ["a.mat", "folder"])
def test_what_is_not_kept_is_said(cli, here, name):
    """Formats without a place for metadata and attributes say so, in lines of their own."""
    with npzkit.NpzWriter("a.npz", metadata=METADATA) as writer:
        writer.add("x", np.ones((2, 2)), attrs=ATTRS)
    result = cli("convert", "a.npz", name, "--json")
    assert result.code == 0
    assert "not kept" in result.err
    found = json.loads(result.out)
    assert found["keys"] == ["x"]
    assert [f"npzkit: {note}" for note in found["notes"]] == result.err.splitlines()


def test_arrays_in_parts(cli, here):
    """What joins masked arrays and strings again is not kept, which is said; the parts are."""
    arrays = {"m": np.ma.array([1, 2], mask=[0, 1]), "s": np.array(["ab"], np.dtypes.StringDType())}
    npzkit.save("a.npz", {**arrays, "x": [1], "x.mask": [2]}, masked="split", strings="split")
    result = cli("convert", "a.npz", "a.h5")
    assert [line.split(",")[0] for line in result.err.splitlines()] == [
        "npzkit: 'm' was saved in parts", "npzkit: 's' was saved in parts"
    ]  # fmt: skip
    assert cli("convert", "a.h5", "b.npz").code == 0
    assert set(load("b.npz")) == {"m", "m.mask", "s", "s.offsets", "x", "x.mask"}
    assert cli("convert", "a.npz", "c.npz").err == ""
    with npzkit.open("c.npz") as npz:
        assert npz.join("m").mask.tolist() == [False, True]


def test_safetensors_are_the_librarys(cli, here):
    """The library reads what is written, and what it wrote is read, metadata being strings."""
    arrays = {"w": rng.random((3, 2)), "h": np.ones(3, "f2"), "b": np.array([True])}
    npzkit.save("a.npz", {**arrays, **BFLOAT16}, metadata={"format": "pt"})
    assert cli("convert", "a.npz", "a.safetensors").code == 0
    with safe_open("a.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        for key, array in {**arrays, **BFLOAT16}.items():
            same(file.get_tensor(key), array)
    save_file(arrays, "b.safetensors", metadata={"step": "1.10", "npzkit": "[]"})
    assert cli("convert", "b.safetensors", "b.npz").code == 0
    with npzkit.open("b.npz") as npz:
        assert npz.metadata == {"step": "1.10", "npzkit": "[]"}
        for key, array in arrays.items():
            same(npz[key], array)


def test_hdf5_is_h5pys(cli, here):
    """h5py reads what is written: groups, attributes, text, compression."""
    with npzkit.NpzWriter("a.npz", metadata={"about": "x"}) as writer:
        writer.add("g/x", np.zeros(100_000), attrs={"unit": "m", "scale": [1, 2]})
        writer["text"] = TEXT["text"]
    assert cli("convert", "a.npz", "a.h5", "-c", "deflated", "--level", "1").code == 0
    with h5py.File("a.h5") as file:
        assert file.attrs["about"] == "x"
        assert file["g"]["x"].compression == "gzip"
        assert file["g/x"].attrs["unit"] == "m"
        assert file["g/x"].attrs["scale"].tolist() == [1, 2]
        assert file["text"].asstr()[0, 1] == "bcé"


def test_hdf5_of_others(cli, here):
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
    result = cli("convert", "a.h5", "a.npz")
    assert result.code == 0
    found = load("a.npz")
    assert set(found) == {"chunked", "again", "text", "enum", "group/x"}
    same(found["again"], np.arange(600).reshape(20, 30))
    same(found["text"], np.array(["a", "bcd"]))
    same(found["enum"], np.array([0, 1], "i2"))
    with npzkit.open("a.npz") as npz:
        assert npz.metadata == {"note": "hello"}
    for text in ("'soft' is a link", "'outside' is a link", "'c' is another name", "'none'",
                 "group 'group'", "'group/loop' is another name", "'odd' of the file"):  # fmt: skip
        assert text in result.err


def test_hdf5_does_not_read_other_files(cli, here):
    """Data that a file claims from another one is refused, and left out with --skip."""
    (here / "secret").write_bytes(b"secret!!")
    with h5py.File("other.h5", "w") as file:
        file["x"] = np.arange(4)
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("x", (8,), "u1", external=[("secret", 0, 8)])
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
        file.create_virtual_dataset("v", layout)
        file["good"] = np.ones(2)
    result = cli("convert", "a.h5", "a.npz")
    assert result.code == 2
    assert "other files" in result.err
    assert not os.path.exists("a.npz")
    result = cli("convert", "a.h5", "a.npz", "--skip")
    assert result.code == 0
    assert "left out 'x'" in result.err
    assert "left out 'v'" in result.err
    assert list(load("a.npz")) == ["good"]


@pytest.mark.parametrize("version", ["2", "3"])
def test_zarr_is_zarrs(cli, here, version):
    """zarr-python reads what is written, of both versions, and npzkit reads it back."""
    with npzkit.NpzWriter("a.npz", metadata=METADATA) as writer:
        writer.add("g/x", np.arange(10.0), attrs=ATTRS)
    arguments = ["-c", "deflated", "--zarr-format", version]
    assert cli("convert", "a.npz", "a.zarr", *arguments).code == 0
    root = zarr.open_group("a.zarr", mode="r")
    assert root.metadata.zarr_format == int(version)
    assert root["g/x"][:].tolist() == list(range(10))
    assert root["g/x"].attrs.asdict() == ATTRS
    assert root.attrs.asdict() == METADATA
    assert "gzip" in str(root["g/x"].compressors).lower()
    assert cli("convert", "a.zarr", "b.npz").code == 0
    same(load("b.npz")["g/x"], np.arange(10.0))


@pytest.mark.parametrize("version", ["2", "3"])
def test_zarr_is_compressed_as_zarr_does(cli, here, version):
    """Without -c the chunks are compressed by zarr's own default; -c stored turns that off."""
    npzkit.save("a.npz", {"x": np.zeros((500, 100))})
    usual = zarr.open_group(store={}, mode="w", zarr_format=int(version))
    usual.create_array("x", shape=(500, 100), dtype="f8")
    for options, expected in ([], usual["x"].compressors), (["-c", "stored"], ()):
        assert cli("convert", "a.npz", "a.zarr", "--zarr-format", version, *options).code == 0
        found = zarr.open_group("a.zarr", mode="r")["x"]
        assert found.compressors == expected
        assert np.array_equal(found[...], np.zeros((500, 100)))
        shutil.rmtree("a.zarr")


def test_zarr_of_others(cli, here):
    """A store of one array, and strings of any length, are read."""
    array = zarr.create_array("one.zarr", shape=(5, 5), chunks=(2, 3), dtype="i4")
    array[...] = np.arange(25).reshape(5, 5)
    assert cli("convert", "one.zarr", "a.npz").code == 0
    same(load("a.npz")["one"], np.arange(25, dtype="i4").reshape(5, 5))
    group = zarr.open_group("b.zarr", mode="w")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = group.create_array("text", shape=(2,), dtype=np.dtypes.StringDType())
        text[:] = np.array(["a", "bcdé"], np.dtypes.StringDType())
    group.create_group("g").attrs["lost"] = 1
    result = cli("convert", "b.zarr", "b.npz")
    assert result.code == 0
    assert "group 'g'" in result.err
    same(load("b.npz")["text"], np.array(["a", "bcdé"]))


def test_zarr_makes_no_room_for_a_chunk_that_is_claimed(cli, here):
    """A store whose chunks would not fit in memory is refused."""
    zarr.create_array("a.zarr", shape=(2**50,), chunks=(2**40,), dtype="u1")
    result = cli("convert", "a.zarr", "a.npz")
    assert result.code == 2
    assert "chunks" in result.err


PICKLE = {"id": "pickle", "protocol": 5}


class Evil:
    """Unpickled, it makes a folder."""

    def __reduce__(self):
        return os.mkdir, ("owned",)


@pytest.mark.parametrize("dtype", ["|O", "<i8"])
@pytest.mark.parametrize(
    ("filters", "compressor"),
    [([PICKLE], None), ([{"id": "vlen-utf8"}, PICKLE], None), ([{"id": "vlen-utf8"}], PICKLE)],
)
def test_zarr_does_not_unpickle(cli, here, monkeypatch, dtype, filters, compressor):
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
    result = cli("convert", "a.zarr", "a.npz")
    assert result.code in (1, 2)
    assert len(result.err.splitlines()) == 1
    assert os.listdir() == ["a.zarr"]


def test_a_zarr_store_is_not_left_by_its_links(cli, here):
    """A link in a store to another file, or to a folder, is refused."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    assert cli("convert", "a.npz", "a.zarr").code == 0
    (here / "secret").write_bytes(bytes(24))
    os.unlink("a.zarr/x/c/0")
    os.symlink(here / "secret", "a.zarr/x/c/0")
    result = cli("convert", "a.zarr", "b.npz")
    assert result.code == 2
    assert "symbolic link" in result.err
    os.unlink("a.zarr/x/c/0")
    os.symlink(".", "a.zarr/loop")
    assert cli("convert", "a.zarr", "b.npz").code == 2


def test_zarr_says_what_is_not_specified(cli, here):
    """A dtype that this zarr warns of, as without specification, is said; version 2 has one."""
    npzkit.save("a.npz", {"text": TEXT["text"]})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        zarr.create_array({}, shape=(1,), dtype=TEXT["text"].dtype, zarr_format=3)
    is_warned_of = any("specification" in str(warning.message) for warning in caught)
    assert ("no specification" in cli("convert", "a.npz", "a.zarr").err) is is_warned_of
    assert cli("convert", "a.npz", "b.zarr/", "--zarr-format", "2").err == ""


def test_matlab_is_scipys(cli, here):
    """scipy reads what is written; text, logical and complex values of others are read."""
    npzkit.save("a.npz", {"x": np.ones((2, 3)), "v": np.arange(3), "text": np.array(["ab", "cd"])})
    result = cli("convert", "a.npz", "a.mat", "-c", "deflated")
    assert "'v': shape (3,) becomes (1, 3)" in result.err
    assert "'text': text becomes rows of one length" in result.err
    found = scipy.io.loadmat("a.mat")
    assert found["x"].tolist() == [[1, 1, 1]] * 2
    assert found["text"].tolist() == ["ab", "cd"]
    scipy.io.savemat("b.mat", {"c": np.array([[1 + 2j]]), "t": "hello", "l": np.array([[True]])})
    assert cli("convert", "b.mat", "b.npz").code == 0
    back = load("b.npz")
    same(back["c"], np.array([[1 + 2j]]))
    same(back["l"], np.array([[True]]))
    assert back["t"].tolist() == ["hello"]


def test_matlab_structs_are_left_out(cli, here):
    """What is no array is refused by name, and left out with --skip."""
    scipy.io.savemat("a.mat", {"s": {"a": 1}, "x": np.ones((1, 2))})
    result = cli("convert", "a.mat", "a.npz")
    assert result.code == 2
    assert "'s'" in result.err
    assert cli("convert", "a.mat", "a.npz", "--skip").code == 0
    assert list(load("a.npz")) == ["x"]


@pytest.mark.parametrize(
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
def test_what_has_no_place_is_refused(cli, here, name, array):
    """An array that would change is named with the reason, before anything is written."""
    npzkit.save("a.npz", {"good": np.ones((2, 2)), "bad": array})
    result = cli("convert", "a.npz", name)
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "cannot be kept" in result.err
    assert "'bad'" in result.err
    assert os.listdir() == ["a.npz"]
    result = cli("convert", "a.npz", name, "--skip")
    assert result.code == 0
    assert "left out 'bad'" in result.err
    assert result.out.startswith(f"{name}: 1 array")


@pytest.mark.parametrize("name", ["a.h5", "a.zarr"])
def test_an_array_is_no_group(cli, here, name):
    """A key that is also the folder of another is refused where arrays cannot hold arrays."""
    npzkit.save("a.npz", {"a": [1], "a/b": [2]})
    result = cli("convert", "a.npz", name)
    assert result.code == 2
    assert "cannot be kept: 'a' is an array" in result.err
    assert "'a/b'" in result.err


def test_python_objects_are_never_unpickled(cli, here):
    """An array of objects is refused, in an archive and in a folder."""
    np.savez("a.npz", x=np.array([{}]), y=[1])
    os.mkdir("in")
    np.save("in/x.npy", np.array([{}]), allow_pickle=True)
    for src, dst in (("a.npz", "a.h5"), ("in", "b.npz")):
        result = cli("convert", src, dst)
        assert result.code == 2
        assert "Python objects" in result.err
        assert cli("convert", src, dst, "--skip").code == 0


@pytest.mark.parametrize("name", ["a.safetensors", "a.h5", "a.zarr", "folder"])
def test_hostile_names(cli, here, name):
    """A name that would lead elsewhere is refused by every format."""
    import zipfile

    np.save("x.npy", np.ones(2))
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.write("x.npy", "../../x.npy")
    result = cli("convert", "a.npz", name)
    assert result.code == 2
    assert "cannot be kept" in result.err
    assert sorted(os.listdir()) == ["a.npz", "x.npy"]


def test_names_do_not_control_the_terminal(cli, here):
    """Names and attributes of strangers are shown as text."""
    save_file({"a\x1b[2Jb": np.ones(2)}, "a.safetensors")
    with h5py.File("a.h5", "w") as file:
        file["x\x1b[2J"] = h5py.SoftLink("/nowhere")
        file.attrs["\x1b[2J"] = np.array(1j)
    for name in ("a.safetensors", "a.h5"):
        result = cli("convert", name, "a.npz")
        assert "\\x1b" in result.err
        assert "\x1b" not in result.err


def test_an_attribute_that_is_only_claimed(cli, here):
    """Empty lists that nothing but a shape stands for are not made; a few are."""
    with h5py.File("a.h5", "w") as file:
        file.attrs.create("endless", np.zeros((2**28, 0)))
        file.attrs.create("few", np.zeros((2, 0)))
    result = cli("convert", "a.h5", "a.npz")
    assert "the attribute 'endless' of the file is not kept" in result.err
    with npzkit.open("a.npz") as npz:
        assert dict(npz.metadata) == {"few": [[], []]}


def test_a_file_appears_whole(cli, here):
    """DST is replaced with --force alone, and only once the new one is complete."""
    npzkit.save("a.npz", {"x": np.arange(1000), "y": np.ones(3)})
    data = bytearray((here / "a.npz").read_bytes())
    data[4000] ^= 1
    (here / "bad.npz").write_bytes(data)
    for name in ("a.safetensors", "a.h5", "a.mat", "a.zarr", "folder"):
        assert cli("convert", "a.npz", name).code == 0
        before = sorted(os.listdir())
        there = cli("convert", "a.npz", name)
        assert there.code == 2
        assert "--force" in there.err
        damaged = cli("convert", "bad.npz", name, "--force")
        assert damaged.code == 1
        assert "'x'" in damaged.err
        assert sorted(os.listdir()) == before
        assert cli("convert", name, "b.npz", "--force").code == 0
        assert load("b.npz")["x"].reshape(-1).tolist() == list(range(1000))
        assert cli("convert", "a.npz", name, "--force").code == 0
        assert set(os.listdir()) == {*before, "b.npz"}


@pytest.mark.parametrize("name", ["b.npz", "a.safetensors", "a.h5", "a.mat", "a.zarr", "folder"])
def test_an_interrupt_leaves_what_was_there(cli, here, monkeypatch, name):
    """Ctrl-C in the middle leaves no file behind, and the old one as it was."""
    npzkit.save("a.npz", {"x": np.ones((2, 2))})
    np.save("y.npy", np.zeros((3, 3)))
    assert cli("pack", "y.npz", "y.npy").code == 0
    assert cli("convert", "a.npz", name).code == 0
    before = sorted(os.listdir())

    def interrupted(*_):
        raise KeyboardInterrupt

    source = "y.npz"
    if name == "b.npz":
        assert cli("convert", "y.npz", "y/").code == 0
        source, before = "y", sorted([*before, "y"])
    with monkeypatch.context() as patch:
        patch.setattr("npzkit.conversion.array_file.InFile.__getitem__", interrupted)
        patch.setattr("npzkit.NpzFile.read", interrupted)
        result = cli("convert", source, name, "--force")
    assert result.code == 130
    assert sorted(os.listdir()) == before
    assert cli("convert", name, "c.npz").code == 0
    assert load("c.npz")["x"].tolist() == [[1, 1], [1, 1]]


def test_a_folder_that_cannot_take_its_place_is_no_loss(cli, here, monkeypatch):
    """Where the new folder cannot be renamed the old one is put back."""
    npzkit.save("a.npz", {"x": [1]})
    npzkit.save("b.npz", {"y": [2]})
    assert cli("convert", "a.npz", "out").code == 0
    rename, before = os.rename, sorted(os.listdir())

    def failing(source, target):
        if str(target) == "out" and ".old" not in str(source):
            raise PermissionError(errno.EACCES, "no", str(target))
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", failing)
        assert cli("convert", "b.npz", "out", "--force").code == 1
    assert sorted(os.listdir()) == before
    assert os.listdir("out") == ["x.npy"]


def test_a_link_to_a_folder_is_replaced_and_not_followed(cli, here):
    """What a link leads to stays as it was."""
    npzkit.save("a.npz", {"x": [1]})
    npzkit.save("b.npz", {"y": [2]})
    assert cli("convert", "a.npz", "real").code == 0
    os.symlink("real", "out")
    assert cli("convert", "b.npz", "out", "--force").code == 0
    assert (os.listdir("real"), os.listdir("out")) == (["x.npy"], ["y.npy"])
    assert sorted(os.listdir()) == ["a.npz", "b.npz", "out", "real"]


@pytest.mark.parametrize("name", ["out", "out.zarr"])
def test_a_folder_of_other_things_is_not_replaced(cli, here, name):
    """--force replaces what is a store, or a folder of arrays; others stay; an empty one is used."""
    npzkit.save("a.npz", {"x": [1]})
    os.mkdir(name)
    assert cli("convert", "a.npz", name).code == 0
    (here / "precious").mkdir()
    (here / "precious/thesis.txt").write_text("!")
    os.rename("precious", "p.zarr" if name.endswith("zarr") else "p")
    target = "p.zarr" if name.endswith("zarr") else "p"
    result = cli("convert", "a.npz", target, "--force")
    assert result.code == 2
    assert "other files" in result.err
    assert os.listdir(target) == ["thesis.txt"]


def test_archives_to_archives(cli, here):
    """From .npz to .npz everything stays but the compression that is asked for."""
    with npzkit.NpzWriter("a.npz", metadata=METADATA) as writer:
        writer.add("x", np.zeros(1000), attrs=ATTRS)
        writer.add("bf", BFLOAT16["bf16"], compression="deflated")
    assert cli("convert", "a.npz", "b.npz").code == 0
    assert cli("convert", "a.npz", "c.npz", "-c", "deflated").code == 0
    for name, method in (("b.npz", "stored"), ("c.npz", "deflated")):
        with npzkit.open(name) as npz:
            assert npz.metadata == METADATA
            assert npz.info("x").attrs == ATTRS
            assert npz.info("x").method == method
            assert npz.info("bf").method == "deflated"
            assert npz["bf"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "h5", "mat"])
@pytest.mark.parametrize("content", [b"", b"<html>", b"\x89HDF\r\n\x1a\n" + b"\xff" * 200])
def test_files_that_are_something_else(cli, here, suffix, content):
    """An empty file and one of another kind are one line that names it, and make nothing."""
    (here / f"a.{suffix}").write_bytes(content)
    result = cli("convert", f"a.{suffix}", "b.h5" if suffix == "npz" else "b.npz")
    assert (result.code, len(result.err.splitlines())) == (1, 1)
    assert f"a.{suffix}" in result.err
    assert os.listdir() == [f"a.{suffix}"]


def test_attributes_that_only_a_text_of_json_holds(cli, here):
    """Text with NUL, which HDF5 would cut, comes back; names of npzkit's own are not taken."""
    with npzkit.NpzWriter("a.npz") as w:
        w.add("x", np.arange(2), attrs={"nul": "a\0b", "deep": {"a": None}})
    assert cli("convert", "a.npz", "a.h5").code == 0
    assert cli("convert", "a.h5", "b.npz").code == 0
    with npzkit.open("b.npz") as npz:
        assert npz.info("x").attrs == {"nul": "a\0b", "deep": {"a": None}}
    with h5py.File("a.h5", "a") as file:
        file["x"].attrs["npzkit.json"] = '{"npzkit.parts": {"kind": "masked"}, "y": 1}'
    assert cli("convert", "a.h5", "c.npz").code == 0
    with npzkit.open("c.npz") as npz:
        assert npz.info("x").attrs == {"y": 1}
        assert npz.join("x").tolist() == [0, 1]


def test_safetensors_that_lie(cli, here):
    """Places beyond the file, and headers that claim gigabytes, are refused."""
    for header in (
        {"x": {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}},
        {"x": {"dtype": "F64", "shape": [1], "data_offsets": [0, 80]}},
    ):
        text = json.dumps(header).encode()
        (here / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
        assert cli("convert", "a.safetensors", "a.npz").code == 1
    (here / "a.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    assert cli("convert", "a.safetensors", "a.npz").code == 1
    assert os.listdir() == ["a.safetensors"]


def test_wrong_usage(cli, here):
    """A missing file, an unknown kind, a level of nothing, a folder for a file: code 2."""
    npzkit.save("a.npz", {"x": [1]})
    (here / "a.docx").write_bytes(b"")
    os.mkdir("folder.h5")
    for arguments, what in (
        (["no.h5", "b.npz"], "No such file"),
        (["a.docx", "b.npz"], ".safetensors"),
        (["a.npz", "b.docx"], ".safetensors"),
        (["a.npz", "b.h5", "--level", "3"], "--compression deflated"),
        (["a.npz", "folder.h5"], "is a folder"),
        (["a.npz", "b.h5/"], "slash"),
        (["a.npz", "no/b.h5"], "No such file"),
        (["a.npz"], "Missing argument"),
    ):
        result = cli("convert", *arguments)
        assert (result.code, len(result.err.splitlines())) == (2, 1), arguments
        assert what in result.err


PEAK = """
import json, sys
from npzkit.cli.commands import run
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print("peak", code, int(line.split()[1]) >> 10, file=sys.stderr)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read there")
def test_large_arrays_take_little_memory(here):
    """An array of 200 MiB and more is packed, converted and extracted by less memory than that."""
    array = np.lib.format.open_memmap("x.npy", "w+", "f8", (extent(200, 256) << 7, 1024))
    array[::5000] = np.arange(1024)
    del array
    commands = [
        ["pack", "a.npz", "x.npy", "-c", "deflated"],
        ["convert", "a.npz", "a.h5", "-c", "deflated", "--level", "1"],
        ["convert", "a.npz", "a.safetensors"],
        ["convert", "a.safetensors", "b.npz", "-c", "deflated"],
        ["extract", "b.npz", "-d", "out"],
    ]
    process = [sys.executable, "-c", PEAK, json.dumps(commands)]
    result = subprocess.run(process, capture_output=True, text=True, timeout=300)
    codes = [line.split() for line in result.stderr.splitlines()]
    assert [code for _, code, _ in codes] == ["0"] * len(commands), result.stderr
    assert int(codes[-1][-1]) < 192, result.stderr
    os.unlink("a.safetensors")
    expected, found = (np.load(name, mmap_mode="r") for name in ("x.npy", "out/x.npy"))
    assert np.array_equal(found[::5000], expected[::5000])
    assert found.shape == expected.shape
    os.unlink("out/x.npy")


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room is not reserved here")
@pytest.mark.parametrize("name", ["b.safetensors", "b/", "b.npz"])
def test_a_full_disk_is_an_error(cli, here, monkeypatch, name):
    """Where there is no room it is said, and nothing is left behind."""
    monkeypatch.setattr("npzkit.reading.blocks.BLOCK_SIZE", 100)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    npzkit.save("a.npz", {"x": np.asfortranarray(np.ones((20, 20)))})
    monkeypatch.setattr("os.posix_fallocate", full)
    result = cli("convert", "a.npz", "a.h5")
    assert result.code == 0
    source = "a.h5" if name == "b.npz" else "a.npz"
    monkeypatch.setattr("npzkit.conversion.npz._has_small_rows", lambda array: False)
    result = cli("convert", source, name, "-c", "deflated")
    assert result.code == 1
    assert "No space left" in result.err
    assert sorted(os.listdir()) == ["a.h5", "a.npz"]


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [("b.h5", "h5py", "h5"), ("b.zarr", "zarr", "zarr"), ("b.mat", "scipy", "mat"),
     ("b.safetensors", "safetensors", "safetensors")],
)  # fmt: skip
def test_a_missing_library(here, name, library, extra):
    """Where a format's library is missing, the command that installs it is said."""
    npzkit.save("a.npz", {"x": np.ones((2, 2))})
    code = f"import sys; sys.modules[{library!r}] = None; from npzkit.__main__ import main; main()"
    source, target = ("a.npz", name) if library != "safetensors" else (name, "c.npz")
    (here / "b.safetensors").write_bytes(b"")
    result = subprocess.run(
        [sys.executable, "-c", code, "convert", source, target],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 1
    assert f"python -m pip install 'npzkit[{extra}]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_without_arrays(cli, here):
    """A folder in which no array is was named by mistake: nothing is made of it."""
    (here / "in").mkdir()
    (here / "in/notes.rst").write_text("none")
    result = cli("convert", "in", "a.npz")
    assert result.code == 2
    assert "no array in the folder" in result.err
    assert "'in'" in result.err
    assert os.listdir() == ["in"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals go to the process there")
@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_of_zarr_leaves_nothing(cli, tmp_path, monkeypatch):
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
    found = cli("convert", tmp_path / "a.npz", tmp_path / "a.zarr")
    time.sleep(0.3)
    assert (found.code, found.err.split()) == (130, ["npzkit:", "interrupted"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_what_pack_takes_is_said(cli, tmp_path):
    """A single .npy is no archive of arrays: the command that takes it is named."""
    np.save(tmp_path / "a.npy", np.arange(3))
    found = cli("convert", tmp_path / "a.npy", tmp_path / "a.npz")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "npzkit pack" in found.err
