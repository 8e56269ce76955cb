"""Remedies are followed: what an error says to do is done, and then it works."""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import npzkit
import npzkit.files.disk
import npzkit.files.file_objects
import numpy as np
import pytest
from archives import damage
from forge import npy
from npzkit.checkpoint import CheckpointStore
from range_server import RangeServer, good


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def remedy_of(call):
    """Return the remedy of the error that a call raises."""
    with pytest.raises(npzkit.NpzkitError) as caught:
        call()
    assert caught.value.remedy, caught.value
    return caught.value.remedy


def test_bytes_in_front_of_an_archive():
    """repair saves the arrays, and a file object may begin at the byte that is named."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(3)})
    data = b"x" * 1150 + stream.getvalue()
    with open("a.npz", "wb") as file:
        file.write(data)
    remedy = remedy_of(lambda: npzkit.open("a.npz"))
    assert "npzkit.repair(path, output)" in remedy
    npzkit.repair("a.npz", "b.npz")
    assert np.load("b.npz")["x"].tolist() == [0, 1, 2]
    (begin,) = re.findall(r"byte ([0-9]+)", remedy)
    with open("a.npz", "rb") as file:
        file.seek(int(begin))
        assert npzkit.open(file)["x"].tolist() == [0, 1, 2]


def test_an_array_of_arrays():
    """A list of them is saved as arrays of their own."""
    array = np.empty(2, object)
    array[:] = [np.arange(2), np.arange(3)]
    remedy = remedy_of(lambda: npzkit.save("a.npz", {"x": array}))
    assert "list(array)" in remedy
    npzkit.save("a.npz", {"x": list(array)})
    assert [part.tolist() for part in npzkit.load_tree("a.npz")["x"]] == [[0, 1], [0, 1, 2]]


def test_a_npy_file_under_the_name_of_an_archive(cli):
    """The command that the message names packs it, also under its own suffix."""
    with open("x.npz", "wb") as file:
        np.save(file, np.arange(3))
    found = cli("rm", "x.npz", "x")
    (command,) = re.findall(r"npzkit (pack \S+ \S+?)\.?$", found.err.strip())
    assert cli(*command.split()).code == 0
    (written,) = set(os.listdir()) - {"x.npz"}
    assert np.load(written)["x"].tolist() == [0, 1, 2]


@pytest.mark.remedy("Extract the others by their keys: npzkit.extract(path, folder, keys).")
def test_a_key_that_is_no_file_name():
    """The other arrays are extracted by their keys."""
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("good.npy", stream.getvalue())
        archive.writestr("../bad.npy", stream.getvalue())
    remedy = remedy_of(lambda: npzkit.extract("a.npz", "out"))
    assert "npzkit.extract(path, folder, keys)" in remedy
    assert npzkit.extract("a.npz", "out", ["good"]).files == {
        "good": os.path.join("out", "good.npy")
    }


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(None, marks=pytest.mark.remedy("the arrays that are to be joined: keys=[")),
        pytest.param(["y"], marks=pytest.mark.remedy('Leave the file out: on_error="warn" does')),
    ],
)
def test_a_file_that_does_not_fit_the_others(cli, keys):
    """The file is left out, or other keys are chosen, unless some were."""
    npzkit.save("a.npz", {"x": np.arange(3), "y": np.arange(3)})
    npzkit.save("b.npz", {"x": np.arange(3)})
    npzkit.save("d.npz", {"x": np.arange(3), "y": np.arange(3)})
    remedy = remedy_of(lambda: npzkit.open_many("*.npz", keys=keys))
    assert ("keys=[...]" in remedy) == (keys is None)
    if keys is None:
        assert len(npzkit.open_many("*.npz", keys=["x"])["x"]) == 9
    assert cli("pack", "c.npz", "a.npz", "b.npz", "--join").err.endswith(
        "Leave the file out: --skip does, and names it. "
        "Or choose the arrays that are to be joined: --key KEY.\n"
    )
    skipped = cli("pack", "c.npz", "a.npz", "b.npz", "d.npz", "--join", "--skip")
    assert (skipped.code, "b.npz" in skipped.err, "Leave" in skipped.err) == (0, True, False)
    os.remove("c.npz")
    assert 'on_error="warn"' in remedy
    with (
        pytest.warns(UserWarning, match="left out"),
        npzkit.open_many("*.npz", keys=keys, on_error="warn") as many,
    ):
        assert [os.path.basename(path) for path in many.left_out] == ["b.npz"]


def test_a_folder_of_archives_in_the_place_of_one(cli):
    """`npzkit ls` lists the archives that can be compared."""
    os.mkdir("folder")
    npzkit.save("folder/a.npz", {"x": np.arange(3)})
    found = cli("diff", "folder", "folder")
    assert "npzkit ls FOLDER" in found.err
    assert "folder/a.npz" in cli("ls", "folder").out.replace(os.sep, "/")
    assert cli("diff", "folder/a.npz", "folder/a.npz").code == 0


def test_a_truncated_npy_file(cli):
    """Its complete rows are saved by the command that the message names, as an archive."""
    np.save("x.npy", np.arange(1000).reshape(100, 10))
    os.truncate("x.npy", 3000)
    found = cli("pack", "new.npz", "x.npy")
    assert "npzkit repair x.npy -o OTHER --keep-partial mask" in found.err
    found = cli("repair", "x.npy", "-o", "other.npz", "--keep-partial", "mask", "--json").json()[0]
    assert (found["ok"], found["kept"], found["lost"][0]["rows"]) == (False, ["x"], [[35, 100]])
    with np.load("other.npz") as npz:
        assert npz["x"].tolist() == np.arange(350).reshape(35, 10).tolist()


@pytest.mark.remedy("Of a scalar or an array in Fortran order, repair keeps nothing.")
@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3).T, np.float64(3)], ids=["F", "0-d"])
def test_a_npy_file_without_rows(cli, array):
    """No repair is advised if it is cut off, or has bytes at its end: that would save nothing."""
    sound = npy(array)
    Path("x.npy").write_bytes(sound[:-1])
    for read in (npzkit.load, npzkit.format.open_memmap):
        assert "keep_partial" not in remedy_of(lambda read=read: read("x.npy"))
    for arguments in (["ls"], ["verify"], ["pack", "a.npz"]):
        found = cli(*arguments, "x.npy")
        told = (found.out + found.err).strip().splitlines()
        assert any(line.endswith("repair keeps nothing.") for line in told)
    saving = "repair", "x.npy", "-o", "other.npz", "--keep-partial", "mask"
    assert "nothing can be saved" in cli(*saving).err
    Path("x.npy").write_bytes(sound + b"\0")
    assert "np.load ignores them; save the array again." in cli("verify", "x.npy").out
    Path("x.npy").write_bytes(sound)
    assert cli("verify", "x.npy").code == 0


@pytest.mark.parametrize("size", [10, 100, 128, 200])
def test_a_npy_file_without_a_complete_row(cli, size):
    """Nothing is written, and the error says so."""
    np.save("x.npy", np.arange(1000).reshape(100, 10))
    os.truncate("x.npy", size)
    assert "nothing can be saved" in remedy_less(
        lambda: npzkit.repair("x.npy", "b.npz", keep_partial="mask")
    )
    assert os.listdir() == ["x.npy"]


def remedy_less(call):
    """Return the message of the error that a call raises."""
    with pytest.raises(npzkit.NpzkitError) as caught:
        call()
    return str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="these programs are not part of Windows")
@pytest.mark.parametrize(
    ("program", "name"), [("gzip", "a.npz.gz"), ("xz", "a.npz"), ("tar", "t.tar")]
)
def test_an_archive_in_another_file(cli, program, name):
    """The command in the message unpacks it, and convert gives the same message."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    npzkit.save("b.npz", {"x": np.arange(3)})
    if program == "tar":
        with tarfile.open(name, "w") as tar:
            tar.add("b.npz")
    else:
        module = {"gzip": gzip, "xz": lzma}[program]
        Path(name).write_bytes(module.compress(Path("b.npz").read_bytes()))
    Path("b.npz").unlink()
    found = cli("ls", name).err
    (command,) = re.findall(r"it first: (.*)\.$", found.strip())
    told = cli("verify", name).out
    assert command in told and "found b'" not in told
    if name != "a.npz":
        assert command in cli("convert", name, "c.npz").err
    subprocess.run(command, shell=True, check=True)
    unpacked = [one for one in os.listdir() if one != name]
    assert cli("verify", *unpacked).code == 0


@pytest.mark.remedy("Give it another key")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a\\b", marks=pytest.mark.skipif(os.name == "nt", reason="zipfile writes a/b")),
        "new\nline", "x.npy", "\x1b[31m",
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_saved(cli, name):
    """The command in the message renames it, also if the key has escapes; then it is packed."""
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr(f"{name}.npy", stream.getvalue())
    found = cli("pack", "b.npz", "a.npz")
    (command,) = re.findall(r"npzkit (mv .* NEW)\b", found.err)
    assert found.code == (2 if name.isprintable() else 1)
    words = command.split() if os.name == "nt" else shlex.split(command)
    assert cli(*words).code == 0
    assert cli("pack", "b.npz", "a.npz").code == 0
    assert np.load("b.npz")["NEW"].tolist() == [0, 1, 2]


# -- errors of the system, and of stores -------------------------------------------------


class Refusing:
    """`os`, which opens no file in the folder "bad"."""

    def __init__(self, number):
        self.number = number

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, *args, **options):
        if "bad" in Path(os.path.abspath(path)).parts:
            raise OSError(self.number, os.strerror(self.number), os.fspath(path))
        return os.open(path, *args, **options)


@pytest.fixture
def arrays(here):
    """A folder "bad" with an archive, one with a .npy file, and another folder."""
    for name in ("bad", "other", "folder"):
        os.mkdir(name)
    npzkit.save("bad/a.npz", {"x": np.arange(3)})
    np.save("folder/x.npy", np.arange(3))


@pytest.mark.remedy("Check the name, and whether its folder exists")
@pytest.mark.parametrize(
    ("wrong", "right"),
    [("ls bad/b.npz", "ls bad/a.npz"), ("pack new/b.npz folder", "pack other/b.npz folder")],
)
def test_a_name_that_is_not_there(cli, arrays, wrong, right):
    """With another name, or in a folder that exists, it works."""
    assert "Check the name" in cli(*wrong.split()).err
    assert cli(*right.split()).code == 0


def test_a_folder_of_checkpoints_is_not_converted(cli, arrays):
    """The message names a step, which is."""
    with CheckpointStore("run") as store:
        store.save(1, {"w": np.ones(3)})
    found = cli("convert", "run", "w.npz")
    step = os.path.join("run", "step_00000001.npz")
    assert (found.code, f"Pass one of its files, such as {step}." in found.err) == (2, True)
    assert cli("convert", step, "w.npz").code == 0


@pytest.mark.remedy(
    "npzkit ls FOLDER lists those in it, and npzkit pack NEW.npz FOLDER makes one of its .npy files"
)
def test_a_folder_in_the_place_of_an_archive(cli, arrays):
    """The archives in it are listed, and .npy files are packed."""
    assert "npzkit pack NEW.npz FOLDER" in cli("info", "folder").err
    assert "bad/a.npz" in cli("ls", "bad").out.replace(os.sep, "/")
    assert cli("pack", "new.npz", "folder").code == 0
    assert np.load("new.npz")["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.remedy("Check the permissions of the file and its"))
        for number in (errno.EACCES, errno.EPERM)
    ],
)
def test_a_file_that_may_not_be_read(cli, arrays, monkeypatch, number):
    """Once it may, it is read."""
    with monkeypatch.context() as patched:
        patched.setattr(npzkit.files.file_objects, "os", Refusing(number))
        assert "Check the permissions" in cli("ls", "bad/a.npz").err
    assert cli("ls", "bad/a.npz").code == 0


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(errno.EROFS, marks=pytest.mark.remedy("Write to another folder")),
        pytest.param(
            errno.ENOSPC, marks=pytest.mark.remedy("Free some space, or write to another disk")
        ),
    ],
)
def test_a_folder_that_cannot_be_written_to(cli, arrays, monkeypatch, number):
    """In another folder the file is written; and in this one, once it can be."""
    with monkeypatch.context() as patched:
        patched.setattr(npzkit.files.disk, "os", Refusing(number))
        assert "rite to another" in cli("pack", "bad/b.npz", "folder").err
        assert cli("pack", "other/b.npz", "folder").code == 0
    assert cli("pack", "bad/b.npz", "folder").code == 0
    assert np.load("bad/b.npz")["x"].tolist() == np.load("other/b.npz")["x"].tolist() == [0, 1, 2]


@pytest.mark.skipif(os.name == "nt", reason="Windows says that there is no such file")
@pytest.mark.remedy("Choose a shorter name")
def test_a_name_that_is_too_long(cli, arrays):
    """With a shorter one the file is written."""
    assert "shorter" in cli("pack", "n" * 300 + ".npz", "folder").err
    assert cli("pack", "n" * 100 + ".npz", "folder").code == 0


@pytest.mark.parametrize(
    ("status", "told"),
    [
        pytest.param(404, "Check the URL", marks=pytest.mark.remedy("Check the URL")),
        pytest.param(
            403, "Check the credentials",
            marks=pytest.mark.remedy("Check the credentials and their permissions"),
        ),
    ],
)  # fmt: skip
def test_a_url_that_is_not_read(cli, status, told):
    """With another URL, or by a server that gives permission, it is read."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(3)})
    with RangeServer().running() as server:
        url = server.put(stream.getvalue(), "/a.npz")
        if status == 403:
            server.answer = lambda handler, server: handler.reply(403)
            assert told in cli("ls", url).err
            server.answer = good
        else:
            for path in ("/b.npz", "/*.npz"):
                found = cli("ls", server.url(path)).err
                assert told in found and "open_many" not in found
        assert "x" in cli("ls", url).out


@pytest.mark.remedy("Pass the URL of a file: web servers do not list those in a folder")
def test_a_folder_of_a_web_server(cli):
    """The URL of a file in it is read."""
    stream = io.BytesIO()
    np.savez(stream, x=np.arange(3))
    with RangeServer().running() as server:
        url = server.put(stream.getvalue(), "/cmp/a.npz")
        for command in ("ls", "verify"):
            told = cli(command, server.url("/cmp/")).err
            assert "/cmp/index.npz: not found (404 Not Found). Pass the URL of a file" in told
        assert "x" in cli("ls", url).out


@pytest.mark.remedy("lists the files")
def test_a_pattern_of_urls(cli):
    """open_many takes it, and ls of the folder lists the files."""
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    try:
        npzkit.save("memory://data/runs/part1.npz", {"x": np.arange(3)})
        told = cli("ls", "memory://data/runs/p*.npz").err
        assert "Patterns are for npzkit.open_many" in told
        with npzkit.open_many("memory://data/runs/p*.npz") as many:
            assert many["x"][:].tolist() == [0, 1, 2]
        (folder,) = re.findall(r"npzkit ls (\S+) lists", told)
        assert "part1.npz" in cli("ls", folder).out
    finally:
        fs.store.clear()


@pytest.mark.remedy("To save the sound arrays: npzkit repair")
def test_damage_that_is_not_repaired_in_place(cli, here):
    """The command that repair names saves the sound arrays."""
    npzkit.save("a.npz", {"x": np.arange(1000), "y": np.arange(3)})
    damage(here / "a.npz", "x", 100)
    told = cli("repair", "a.npz").out
    (command,) = re.findall(r"npzkit (repair .* -o) OTHER", told)
    assert cli(*command.split(), "b.npz").code == 1
    assert npzkit.load_tree("b.npz")["y"].tolist() == [0, 1, 2]
