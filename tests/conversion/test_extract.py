"""npzkit.extract: the arrays of an archive to files, whatever they are called."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tracemalloc
import zipfile

import ml_dtypes
import npzkit
import numpy as np
import pytest
from archives import damage, with_names
from forge import npy
from npzkit.errors import (
    ChecksumError,
    ConversionError,
    LimitExceededError,
    MemberNotFoundError,
    NpyFormatError,
    UnsafeNameError,
)
from systems import need_library_of, needs_symlinks


def test_every_kind_of_array_comes_back(here, arrays):
    """What np.save wrote is packed and extracted as the same bytes, slashes being folders."""
    for key, array in arrays.items():
        path = here / "in" / f"{key}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    npzkit.pack("a.npz", "in")
    told = []
    report = npzkit.extract("a.npz", "out", progress=lambda done, total: told.append((done, total)))
    assert report.failed == {}
    assert set(report.files) == set(arrays)
    for key, path in report.files.items():
        assert path == os.path.join("out", *f"{key}.npy".split("/"))
        assert (here / path).read_bytes() == (here / f"in/{key}.npy").read_bytes()
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


def test_what_is_taken_and_where_it_goes(here):
    """Paths, bytes and open archives are taken; files go here by default; keys choose."""
    npzkit.save("a.npz", {"x": [1], "y": [2]})
    assert list(npzkit.extract("a.npz").files) == ["x", "y"]
    assert sorted(os.listdir()) == ["a.npz", "x.npy", "y.npy"]
    data = (here / "a.npz").read_bytes()
    assert npzkit.extract(data, here / "b", iter(["y", "y"])).files == {
        "y": os.path.join(here, "b", "y.npy")
    }
    with npzkit.open(data) as npz:
        npzkit.extract(npz, "c", keys=["x"])
        assert npz["x"].tolist() == [1]
    assert (os.listdir("b"), os.listdir("c")) == (["y.npy"], ["x.npy"])


def test_bfloat16_comes_out_as_numpy_can_hold_it(here):
    """An array of bfloat16 is extracted as its bytes, which np.load opens as voids."""
    npzkit.save("a.npz", {"x": np.array([1, 2.5], ml_dtypes.bfloat16)})
    npzkit.extract("a.npz")
    assert np.load("x.npy").view(ml_dtypes.bfloat16).tolist() == [1, 2.5]


def test_what_files_have_no_place_for_is_noted(here):
    """Values of nested data, metadata and attributes, if all arrays were asked for."""
    npzkit.save("a.npz", {"w": np.ones(3), "lr": 0.1, "name": None}, metadata={"step": 3})
    values, metadata = npzkit.extract("a.npz").notes
    assert values == "1 value without an array: 'name'; not kept"
    assert metadata == "metadata, and attributes of arrays, are not kept: only archives have them"
    assert npzkit.extract("a.npz", keys=["w"], overwrite=True).notes == ()
    with npzkit.NpzWriter("b.npz") as w:
        w.add("x", np.ones(3), attrs={"unit": "m"})
    assert npzkit.extract("b.npz").notes == (metadata,)
    npzkit.save("c.npz", {"y": np.ma.array([1, 2], mask=[0, 1])}, masked="split")
    assert npzkit.extract("c.npz").notes == ()


def test_python_objects_are_not_unpickled(here):
    """Arrays of objects are written as they are, without allow_pickle."""
    npzkit.save("a.npz", {"x": np.array([{}, None])}, allow_pickle=True)
    npzkit.extract("a.npz")
    assert np.load("x.npy", allow_pickle=True).tolist() == [{}, None]


@pytest.mark.parametrize(
    "name",
    ["../x.npy", "/x.npy", "C:x.npy", "a/../../x.npy", "a\\..\\x.npy", "a/./x.npy", "a//x.npy"],
)
def test_a_name_never_leaves_the_folder(here, name):
    """A member whose name leads elsewhere is refused before anything is written, or skipped."""
    with_names("a.npz", ["good.npy", name])
    (here / "out").mkdir()
    with pytest.raises(UnsafeNameError):
        npzkit.extract("a.npz", "out")
    assert os.listdir("out") == []
    report = npzkit.extract("a.npz", "out", skip=True)
    assert (list(report.files), len(report.failed)) == (["good"], 1)
    assert os.listdir("out") == ["good.npy"]
    assert sorted(os.listdir()) == ["a.npz", "out"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has another error for it")
@pytest.mark.remedy("Give it a shorter one")
def test_a_key_that_is_too_long_for_a_file(here):
    """It is skipped, and can be written when it has another key; an error otherwise."""
    npzkit.save("a.npz", {"k" * 300: np.arange(3), "x": np.arange(4)})
    with pytest.raises(OSError, match="too long"):
        npzkit.extract("a.npz", "out")
    report = npzkit.extract("a.npz", "out", skip=True)
    assert (list(report.files), list(report.failed)) == (["x"], ["k" * 300])
    with npzkit.NpzWriter("a.npz", "a") as w:
        w.rename("k" * 300, "k")
    assert list(npzkit.extract("a.npz", "out", ["k"]).files) == ["k"]


@needs_symlinks
@pytest.mark.remedy("Remove the link, or write to another folder.")
def test_no_link_leads_out_of_the_folder(here):
    """A link in the folder, to another one, is not written through; a folder in its place is."""
    npzkit.save("a.npz", {"sub/x": [1], "y": [2]})
    (here / "out").mkdir()
    (here / "other").mkdir()
    os.symlink(here / "other", "out/sub")
    with pytest.raises(UnsafeNameError, match="symbolic link"):
        npzkit.extract("a.npz", "out", overwrite=True)
    assert (os.listdir("out"), os.listdir("other")) == (["sub"], [])
    npzkit.extract("a.npz", "new")
    os.unlink("out/sub")
    npzkit.extract("a.npz", "out")
    assert np.load("new/sub/x.npy") == np.load("out/sub/x.npy") == [1]


@pytest.mark.remedy("Extract only one of them.")
@pytest.mark.parametrize(
    "names",
    [
        ["a.npy", "A.npy"],
        ["é.npy", "e\u0301.npy"],
        ["a.npy", "a.npy/b.npy"],
        ["Ϊ\u0301.npy", "\u0390.npy"],
        ["\u03b1\u0345\u0301.npy", "\u03ac\u0345.npy"],
    ],
)
def test_names_that_would_be_one_file(here, names):
    """Names that some system takes for one are refused together; each comes out alone."""
    with_names("a.npz", names)
    with pytest.raises(UnsafeNameError, match="would be the same file"):
        npzkit.extract("a.npz", "out")
    assert not os.path.exists("out")
    report = npzkit.extract("a.npz", "out", skip=True)
    assert (len(report.files), len(report.failed)) == (1, 1)
    ((key, error),) = report.failed.items()
    (other,) = report.files
    assert (error.key, f"{other!r} would be" in error.what) == (key, True)
    with npzkit.open("a.npz") as npz:
        assert {key, other} == {*npz}
    for folder, name in enumerate(names):
        (path,) = npzkit.extract("a.npz", f"{folder}", [name.removesuffix(".npy")]).files.values()
        assert np.load(path).tolist() == [0, 1, 2]


def test_no_file_is_replaced_unasked(here):
    """If one file exists nothing is written, unless overwrite is given."""
    npzkit.save("a.npz", {"x": [1], "y": [2]})
    (here / "y.npy").write_bytes(b"old")
    with pytest.raises(FileExistsError) as caught:
        npzkit.extract("a.npz")
    assert caught.value.filename == os.path.join(".", "y.npy")
    assert not os.path.exists("x.npy")
    assert (here / "y.npy").read_bytes() == b"old"
    npzkit.extract("a.npz", overwrite=True)
    assert np.load("y.npy") == [2]


@pytest.mark.remedy("Remove the folder, or write to another path.")
def test_a_folder_in_the_way_of_a_file(here):
    """No folder is replaced, and nothing is written if one is in the way."""
    npzkit.save("a.npz", {"x": [1], "y": [2]})
    (here / "y.npy").mkdir()
    with pytest.raises(ConversionError, match="is a folder"):
        npzkit.extract("a.npz", overwrite=True)
    assert sorted(os.listdir()) == ["a.npz", "y.npy"]
    npzkit.extract("a.npz", "other")
    (here / "y.npy").rmdir()
    npzkit.extract("a.npz")
    assert np.load("y.npy") == np.load("other/y.npy") == [2]


@needs_symlinks
def test_a_link_is_replaced_and_not_followed(here):
    """A link in the place of a file, also one to nothing, stays unless overwrite is given."""
    npzkit.save("a.npz", {"x": [1], "y": [2]})
    (here / "precious").write_bytes(b"old")
    os.symlink("precious", "x.npy")
    os.symlink("nothing", "y.npy")
    for key in "xy":
        with pytest.raises(FileExistsError):
            npzkit.extract("a.npz", keys=[key])
        npzkit.extract("a.npz", keys=[key], overwrite=True)
        assert not os.path.islink(f"{key}.npy")
    assert (here / "precious").read_bytes() == b"old"
    assert not os.path.exists("nothing")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_private_file_stays_private(here):
    """What takes a file's place has its permissions; a link's are no file's."""
    npzkit.save("a.npz", {"x": [1]})
    (here / "x.npy").write_bytes(b"old")
    os.chmod("x.npy", 0o600)
    npzkit.extract("a.npz", overwrite=True)
    assert os.stat("x.npy").st_mode & 0o777 == 0o600
    os.unlink("x.npy")
    os.symlink("a.npz", "x.npy")
    npzkit.extract("a.npz", overwrite=True)
    assert os.stat("x.npy").st_mode & 0o111 == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("name", ["b.safetensors", "b.zarr", "b.h5", "b.npz"])
def test_what_is_converted_is_never_more_public_than_what_it_replaces(here, monkeypatch, name):
    """While it is written only its owner can reach it; then it has the old one's permissions."""
    need_library_of(name)
    npzkit.save("a.npz", {"x": np.arange(3)})
    npzkit.convert("a.npz", name)
    mode = 0o700 if os.path.isdir(name) else 0o600
    os.chmod(name, mode)
    modes = []
    replace, rename = os.replace, os.rename

    def noting(old, new):
        if ".npzkit-" in str(old):
            modes.append(os.stat(os.path.dirname(old)).st_mode & 0o777)
        return (rename if os.path.isdir(old) else replace)(old, new)

    monkeypatch.setattr(os, "replace", noting)
    monkeypatch.setattr(os, "rename", noting)
    npzkit.convert("a.npz", name, overwrite=True)
    assert os.stat(name).st_mode & 0o777 == mode
    assert 0o700 in modes
    assert sorted(os.listdir()) == ["a.npz", name]


def test_a_new_file_needs_no_folder_of_its_own(here, monkeypatch):
    """Folders take long to make on some file systems: there is one temporary file per array."""
    npzkit.save("a.npz", {"x": [1], "layer/y": [2]})
    made, mkdir = [], os.mkdir
    monkeypatch.setattr(os, "mkdir", lambda path, *mode: made.append(path) or mkdir(path, *mode))
    npzkit.extract("a.npz", "out")
    assert not [path for path in made if ".npzkit-" in path]
    assert sorted(os.listdir("out")) == ["layer", "x.npy"]


def test_a_file_that_may_not_be_written_to_is_not_replaced(here, monkeypatch):
    """What is protected against writing stays, with overwrite too, though its folder is not."""
    npzkit.save("a.npz", {"x": [1]})
    (here / "x.npy").write_bytes(b"old")
    os.chmod("x.npy", 0o444)
    if os.access("x.npy", os.W_OK):
        # Root may write to any file.
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=r"x\.npy"):
        npzkit.extract("a.npz", overwrite=True)
    assert (here / "x.npy").read_bytes() == b"old"
    assert sorted(os.listdir()) == ["a.npz", "x.npy"]
    os.chmod("x.npy", 0o600)


@pytest.mark.parametrize("part_size", [1 << 25, 100])
@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_damage_leaves_no_file(here, monkeypatch, kind, part_size):
    """An array whose checksum differs raises, is no file, and what was there stays."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", part_size)
    npzkit.save("a.npz", {"x": np.arange(1000)})
    damage(here / "a.npz", "x")
    (here / f"x.{kind}").write_bytes(b"old")
    with pytest.raises(ChecksumError) as caught:
        npzkit.extract("a.npz", format=kind, overwrite=True)
    assert (caught.value.path, caught.value.key) == ("a.npz", "x")
    assert (here / f"x.{kind}").read_bytes() == b"old"
    assert sorted(os.listdir()) == ["a.npz", f"x.{kind}"]


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_damaged_arrays_are_skipped(here, kind):
    """With skip a damaged array is reported with its error, and the others are written."""
    npzkit.save("a.npz", {key: np.arange(5.0) for key in "abc"})
    damage(here / "a.npz", "b")
    with pytest.raises(ChecksumError):
        npzkit.extract("a.npz", "out", format=kind)
    assert os.listdir("out") == [f"a.{kind}"]
    report = npzkit.extract("a.npz", "out", format=kind, skip=True, overwrite=True)
    assert sorted(os.listdir("out")) == [f"a.{kind}", f"c.{kind}"]
    assert (list(report.files), list(report.failed)) == (["a", "c"], ["b"])
    assert isinstance(report.failed["b"], ChecksumError)


def test_a_damaged_header_is_skipped(here):
    """An array whose header cannot be read is reported as well."""
    np.savez("a.npz", **{key: np.arange(5.0) for key in "abc"})
    data = (here / "a.npz").read_bytes()
    place = data.index(b"\x93NUMPY", data.index(b"b.npy"))
    (here / "a.npz").write_bytes(data[:place] + b"XXXXXX" + data[place + 6 :])
    with pytest.raises(NpyFormatError):
        npzkit.extract("a.npz", "out")
    assert not os.path.exists("out")
    report = npzkit.extract("a.npz", "out", skip=True)
    assert sorted(os.listdir("out")) == ["a.npy", "c.npy"]
    assert isinstance(report.failed["b"], NpyFormatError)


def test_members_that_are_no_arrays(here):
    """They come out as they are, under their own names; entries of folders are passed over."""
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("sub/", b"")
        archive.writestr("sub/notes.txt", b"hello")
        archive.writestr("x.npy", npy(np.ones(2)))
        archive.writestr("bare", npy(np.ones(2)))
    npzkit.extract("a.npz", "out")
    assert (here / "out/sub/notes.txt").read_bytes() == b"hello"
    assert sorted(os.listdir("out")) == ["bare.npy", "sub", "x.npy"]


def test_large_arrays_in_parts(here, monkeypatch):
    """Arrays larger than a part come out the same as tables, checked all the same."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", 1000)
    array = np.arange(3000.0).reshape(1000, 3)
    npzkit.save("a.npz", {"x": array, "f": np.asfortranarray(array)}, compression="deflated")
    npzkit.extract("a.npz", format="csv", delimiter=";")
    for name in "xf":
        np.testing.assert_array_equal(np.loadtxt(f"{name}.csv", delimiter=";"), array)


def test_wrong_arguments(here):
    """A missing archive or key, and arguments that mean nothing, write no file."""
    npzkit.save("a.npz", {"x": [1]})
    for error, what, arguments, options in (
        (FileNotFoundError, "no.npz", ["no.npz", "out"], {}),
        (MemberNotFoundError, "y", ["a.npz", "out", ["x", "y"]], {"skip": True}),
        (TypeError, "keys", ["a.npz", "out", "x"], {}),
        (ValueError, "format", ["a.npz", "out"], {"format": "txt"}),
        (ValueError, "delimiter", ["a.npz", "out"], {"delimiter": ""}),
    ):
        with pytest.raises(error, match=what):
            npzkit.extract(*arguments, **options)
    assert os.listdir() == ["a.npz"]


@pytest.mark.parametrize("target", ["folder", "b.h5", "b.zarr"])
@pytest.mark.parametrize("count", [600, 32_000])
def test_a_key_of_very_many_parts_is_refused_at_once(here, target, count):
    """Slashes would become folders or groups: no time and memory is spent on them."""
    need_library_of(target)
    with_names("a.npz", ["/".join("a" * count) + ".npy"])
    tracemalloc.start()
    with pytest.raises(LimitExceededError, match="too many parts"):
        if target == "folder":
            npzkit.extract("a.npz", target)
        else:
            npzkit.convert("a.npz", target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    assert os.listdir() == ["a.npz"]


@pytest.mark.slow
def test_a_file_that_becomes_too_large(tmp_path):
    """The error of the system names the file that was to be written."""
    pytest.importorskip("resource", reason="this system has no limit of the size of files")
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(100_000)})
    code = (
        "import npzkit, resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: npzkit.extract(sys.argv[1], sys.argv[2])\n"
        "except OSError as error: print(error.errno, error.filename)\n"
    )
    # Compiled modules would be cut off as well.
    command = [sys.executable, "-B", "-c", code, tmp_path / "a.npz", tmp_path / "out"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == [str(errno.EFBIG), str(tmp_path / "out" / "x.npy")]
