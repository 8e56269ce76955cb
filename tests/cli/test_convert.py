"""The command convert: what it prints, which code it exits with, and its options."""

from __future__ import annotations

import importlib
import os
import re
import sys
import zipfile
from pathlib import Path

import h5py
import npzkit
import numpy as np
import pytest

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")
save_file = importlib.import_module("safetensors.numpy").save_file


@pytest.mark.slow
def test_what_was_written(cli, here):
    """The output names the file and counts its arrays; --json has the keys."""
    npzkit.save("a.npz", {"x": np.arange(3), "g/y": np.ones(2)})
    result = cli("convert", "a.npz", "a.h5")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("a.h5: 2 arrays, ")
    result = cli("convert", "a.h5", "a.zarr/")
    assert (result.code, result.out) == (0, "a.zarr/: 2 arrays\n")
    found = cli("convert", "a.npz", "b.npz", "--json").json()
    assert found == {"output": "b.npz", "keys": ["x", "g/y"], "notes": []}


@pytest.mark.slow
def test_options(cli, here):
    """Compression, level and the version of Zarr are what the options say."""
    npzkit.save("a.npz", {"x": np.zeros((100, 100))})
    assert cli("convert", "a.npz", "a.h5", "-c", "deflated", "--level", "1").code == 0
    with h5py.File("a.h5") as file:
        assert (file["x"].compression, file["x"].compression_opts) == ("gzip", 1)
    assert cli("convert", "a.npz", "a.zarr", "-c", "stored", "--zarr-format", "2").code == 0
    root = zarr.open_group("a.zarr", mode="r")
    assert (root.metadata.zarr_format, root["x"].compressors) == (2, ())
    assert cli("convert", "a.h5", "b.npz", "--compression", "deflated").code == 0
    with npzkit.open("b.npz") as npz:
        assert npz.info("x").method == "deflated"


def test_objects_of_a_file_that_is_trusted(cli, here, fixtures):
    """--allow-pickle and --encoding; without them, objects are refused, and --skip leaves nothing."""
    assert cli("convert", fixtures / "pickled_dict.npz", "a.npz", "--allow-pickle").code == 0
    assert npzkit.load_tree("a.npz")["arr_0"]["lr"] == 0.1
    source = fixtures / "python2_object.npz"
    assert cli("convert", source, "b.npz", "--allow-pickle").code != 0
    assert cli("convert", source, "b.npz", "--allow-pickle", "--encoding", "latin1").code == 0
    assert npzkit.load_tree("b.npz")["x"][0] == "é"
    result = cli("convert", source, "c.npz", "--allow-pickle", "--skip")
    assert (result.code, os.path.exists("c.npz")) == (2, False)
    assert "all arrays are left out" in result.err


def test_what_is_not_kept_is_said(cli, here):
    """Each note of the report is a line, and --json has them too."""
    with npzkit.NpzWriter("a.npz", metadata={"step": 7}) as writer:
        writer.add("x", np.ones((2, 2)), attrs={"unit": "m"})
    result = cli("convert", "a.npz", "a.mat", "--json")
    assert result.code == 0
    assert "not kept" in result.err
    found = result.json()
    assert found["keys"] == ["x"]
    assert [f"npzkit: {note}" for note in found["notes"]] == result.err.splitlines()


def test_a_name_that_matlab_lacks(cli, here):
    """The array is renamed in a copy, by the commands of the error; the file stays as it is."""
    npzkit.save("a.npz", {"a-b": np.ones((1, 2))})
    text = cli("convert", "a.npz", "a.mat").err
    copy, rename = re.search(r"npzkit (convert .*), then npzkit (mv .*);", text).groups()
    assert cli(*copy.split()).code == 0
    assert cli(*rename.replace("KEY NAME", "a-b c").split()).code == 0
    assert cli("convert", copy.split()[-1], "a.mat").code == 0
    assert np.load("a.npz").files == ["a-b"]


def test_names_with_slashes_become_matlabs_at_once(cli, here):
    """A line of Python renames all of them in a copy, by the words of the error."""
    masked = {"m/x": np.ma.array([1, 2], mask=[0, 1])}
    npzkit.save("a.npz", {"a/b": np.ones((1, 2)), "a/c/d": np.ones(2), **masked}, masked="split")
    text = cli("convert", "a.npz", "a.mat", "a").err
    copy, line = re.search(r"npzkit (convert .*), then in Python: (.*)", text).groups()
    assert cli(*copy.split()).code == 0
    exec(line, {"npzkit": npzkit})
    assert cli("convert", "new.npz", "a.mat", "a_*").code == 0
    assert np.load("new.npz").files == ["a_b", "a_c_d", "m_x", "m_x.mask"]


def test_notes_name_options(cli, here):
    """A note's advice is an option of the command, not an argument of Python's."""
    npzkit.save("a.npz", {"when": np.array([1], "M8[s]")})
    noted = npzkit.convert("a.npz", "a.zarr").notes
    result = cli("convert", "a.npz", "b.zarr")
    assert result.err.count("--zarr-format 2") == len(noted)
    assert "zarr_format" not in result.err


@pytest.mark.parametrize("name", ["a.safetensors", "a.h5", "a.zarr", "a.mat"])
def test_what_has_no_place_is_refused(cli, here, name):
    """An array that cannot be kept is named in a line with the option that leaves it out."""
    bad = np.array(["a"]) if name == "a.safetensors" else np.zeros(1, [("a", "U3", 2)])
    npzkit.save("a.npz", {"good": np.ones((2, 2)), "bad": bad})
    result = cli("convert", "a.npz", name)
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "cannot be kept" in result.err
    assert "'bad'" in result.err
    assert "--skip" in result.err
    assert os.listdir() == ["a.npz"]
    result = cli("convert", "a.npz", name, "--skip")
    assert result.code == 0
    assert result.err.startswith("npzkit: left out 'bad': ")
    assert result.out.startswith(f"{name}: 1 array")


@pytest.mark.slow
def test_a_file_is_replaced_by_force_alone(cli, here):
    """What exists stays without --overwrite, which the message names."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    for name in ("a.safetensors", "a.h5", "a.mat", "a.zarr", "b.npz"):
        assert cli("convert", "a.npz", name).code == 0
        result = cli("convert", "a.npz", name)
        assert (result.code, len(result.err.splitlines())) == (2, 1)
        assert result.err.endswith(f"{name!r} already exists. Pass --overwrite to replace it.\n")
        assert cli("convert", "a.npz", name, "--overwrite").code == 0
    several = cli("convert", "a.npz", "b.npz", "c.npz")
    assert (several.code, "npzkit pack OUT FILES" in several.err) == (2, True)


@pytest.mark.slow
def test_damage_is_a_line(cli, here):
    """A damaged array, and a file of another kind, exit with 1 and name what is wrong."""
    npzkit.save("a.npz", {"x": np.arange(1000)})
    data = bytearray((here / "a.npz").read_bytes())
    data[4000] ^= 1
    (here / "bad.npz").write_bytes(data)
    (here / "page.h5").write_bytes(b"<html>")
    for src, dst, what in (("bad.npz", "a.h5", "'x'"), ("page.h5", "b.npz", "page.h5")):
        result = cli("convert", src, dst)
        assert (result.code, len(result.err.splitlines())) == (1, 1)
        assert what in result.err
        assert not os.path.exists(dst)


def test_an_interrupt(cli, here, monkeypatch):
    """Ctrl-C exits with 130, and leaves no file."""
    npzkit.save("a.npz", {"x": np.ones((2, 2))})

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("npzkit.NpzFile.read", interrupted)
    result = cli("convert", "a.npz", "a.h5")
    assert (result.code, result.err.strip()) == (130, "npzkit: interrupted")
    assert os.listdir() == ["a.npz"]


def test_wrong_usage(cli, here):
    """A missing file, an unknown kind, a level of nothing, a folder for a file: code 2."""
    npzkit.save("a.npz", {"x": [1]})
    (here / "a.docx").write_bytes(b"")
    os.mkdir("arrays")
    os.mkdir("folder.h5")
    for arguments, what in (
        (["no.h5", "b.npz"], "Check the name"),
        (["a.docx", "b.npz"], ".safetensors"),
        (["arrays", "b.npz"], "npzkit pack"),
        (["a.npz", "b.docx"], ".safetensors"),
        (["a.npz", "b"], "npzkit extract writes .npy"),
        (["a.npz", "arrays"], "npzkit extract writes .npy"),
        (["a.npz", "b.h5", "--level", "3"], "--compression deflated"),
        (["a.npz", "folder.h5"], "is a folder"),
        (["a.npz", "b.h5/"], "slash"),
        (["a.npz", "no/b.h5"], "Check the name"),
        (["a.npz"], "Missing argument"),
    ):
        result = cli("convert", *arguments)
        assert (result.code, len(result.err.splitlines())) == (2, 1), arguments
        assert what in result.err


@pytest.mark.slow
def test_names_do_not_control_the_terminal(cli, here):
    """Names and attributes of strangers are shown as text."""
    with h5py.File("a.h5", "w") as file:
        file["x\x1b[2J"] = h5py.SoftLink("/nowhere")
        file.attrs["\x1b[2J"] = np.array(1j)
    result = cli("convert", "a.h5", "a.npz")
    assert "\\x1b" in result.err
    assert "\x1b" not in result.err


def test_a_missing_library(cli, here, monkeypatch):
    """If a format's library is missing, one line says the command that installs it."""
    npzkit.save("a.npz", {"x": np.ones((2, 2))})
    monkeypatch.delitem(sys.modules, "npzkit.conversion.hdf5", raising=False)
    monkeypatch.setitem(sys.modules, "h5py", None)
    result = cli("convert", "a.npz", "b.h5")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert 'python -m pip install "npzkit[h5]"' in result.err


@pytest.fixture
def foreign(here):
    """Files of other formats, with names that a shell takes in two ways."""
    save_file({"x": np.ones(2)}, "a.safetensors")
    h5py.File("b.h5", "w").close()
    with zipfile.ZipFile("my model.pt", "w") as archive:
        for name in ("model/data.pkl", "model/version", "model/data/0"):
            archive.writestr(name, b"\x80")
    os.mkdir("run.zarr")
    Path("run.zarr", ".zgroup").write_text('{"zarr_format": 2}')
    return here


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a.safetensors", "a.safetensors a.npz"),
        ("b.h5", "b.h5 b.npz"),
        ("my model.pt", "'my model.pt' 'my model.npz'"),
        ("run.zarr", "run.zarr run.npz"),
        ("run.zarr/", "run.zarr run.npz"),
    ],
)
@pytest.mark.usefixtures("foreign")
def test_a_file_of_another_format(cli, name, command):
    """Opening one says how to convert it, in the terms of Python and of the command line."""
    for read in (npzkit.open, npzkit.load_tree):
        with pytest.raises(
            npzkit.NpzkitError, match=r"Convert it: npzkit\.convert\(path"
        ) as caught:
            read(name)
    assert not caught.value.is_damage
    needs = " This needs PyTorch." * name.endswith(".pt")
    assert cli("verify", name).code == 1
    for arguments in (["ls", name], ["show", name, "x"], ["diff", name, name], ["extract", name]):
        result = cli(*arguments)
        code = 1 + (arguments[0] == "diff")
        assert (result.code, len(result.err.splitlines())) == (code, 1)
        assert result.err.endswith(f"Convert it: npzkit convert {command}.{needs}\n")


@pytest.mark.remedy("Extract the zip, then convert the folder: npzkit")
@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "inside"), [(".zip", ""), (".zarr", "store")])
@pytest.mark.usefixtures("foreign")
def test_a_zarr_store_in_a_zip(cli, suffix, inside):
    """Each command says what it is; extracted, it is converted as the message says."""
    name = f"zipped{suffix}"
    with zipfile.ZipFile(name, "w") as archive:
        for place in Path("run.zarr").rglob("*"):
            archive.write(place, Path(inside) / place.relative_to("run.zarr"))
    for arguments in (["ls", name], ["verify", name], ["convert", name, "new.npz"]):
        found = cli(*arguments)
        told = found.out + found.err
        assert found.code == 1
        assert "it is a Zarr store in a zip" in told
        assert "then convert the folder: npzkit convert FOLDER NEW.npz." in told
    with zipfile.ZipFile(name) as archive:
        archive.extractall("folder")
    assert cli("convert", Path("folder") / inside, "new.npz").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["b.npz", "b.safetensors", "b.h5"])
def test_bytes_of_another_program_have_the_dtype_that_is_given(here, cli, name):
    """bfloat16 that another program saved as V2 is converted as what it is."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(6, dtype="f4").astype(ml_dtypes.bfloat16).reshape(2, 3)
    np.savez("a.npz", w=values.view("V2"), x=np.arange(3), **{"k=v": values.view("V2")})
    npzkit.convert("a.npz", name, dtypes={"w": "bfloat16", "k=v": ml_dtypes.bfloat16})
    npzkit.convert(name, "back.npz", overwrite=True)
    with npzkit.open("back.npz") as npz:
        for key in ("w", "k=v"):
            assert (npz[key].dtype, npz[key].tobytes()) == (values.dtype, values.tobytes())
    found = cli("convert", "a.npz", name, "--dtype", "w=bfloat16", "--dtype", "k=v=bfloat16",
                "--overwrite")  # fmt: skip
    assert found.code == 0, found.err
    for given, told in (("x=bfloat16", "not bytes of bfloat16"), ("nothing=bfloat16", "'nothing'"),
                        ("w", "--dtype needs KEY=DTYPE")):  # fmt: skip
        found = cli("convert", "a.npz", "c.npz", "--dtype", given)
        assert (found.code in (1, 2), told in found.err) == (True, True), found.err
        assert not os.path.exists("c.npz")
