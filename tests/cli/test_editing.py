"""The commands add, rm and mv: an archive is changed where it is, wholly or not at all."""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile

import npzkit
import numpy as np
import pytest


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An archive of two arrays, and a file with a third, in the working directory."""
    monkeypatch.chdir(tmp_path)
    npzkit.save("a.npz", {"x": np.arange(3), "y": np.ones(1000)}, metadata={"step": 7})
    np.save("z.npy", np.arange(5.0))
    return tmp_path / "a.npz"


def content(path="a.npz"):
    with npzkit.open(path) as npz:
        return {key: npz[key].tolist() for key in npz}


def test_arrays_are_added(cli, archive):
    """What is added is behind what was there, with its compression; the metadata stays."""
    result = cli("add", "a.npz", "z.npy", "deep/z=z.npy", "-c", "deflated")
    assert (result.code, result.out, result.err) == (0, "a.npz: added z, deep/z\n", "")
    with npzkit.open("a.npz") as npz:
        assert npz.files == ["x", "y", "z", "deep/z"]
        assert npz["z"].tolist() == [0, 1, 2, 3, 4]
        assert npz.info("z").method == "deflated"
        assert npz.metadata["step"] == 7
    assert list(np.load("a.npz")) == ["x", "y", "z", "deep/z"]


def test_adding_is_all_or_nothing(cli, archive):
    """A key that is taken, and a file that is damaged, leave the archive as it was."""
    before = archive.read_bytes()
    np.save("x.npy", np.zeros(2))
    taken = cli("add", "a.npz", "z.npy", "x.npy")
    assert taken.code == 2
    assert "--overwrite" in taken.err
    (archive.parent / "bad.npy").write_bytes(b"bad")
    damaged = cli("add", "a.npz", "z.npy", "bad.npy")
    assert damaged.code == 1
    assert "bad.npy" in damaged.err
    assert archive.read_bytes() == before
    assert cli("add", "a.npz", "z.npy", "x.npy", "--overwrite").code == 0
    assert content()["x"] == [0, 0]


def test_of_many_keys_some_are_named(cli, archive):
    """Ten, and how many more there are; --json has all."""
    npzkit.save("many.npz", {f"k/{number:02}": np.ones(1) for number in range(50)})
    assert cli("add", "a.npz", "many.npz").out.endswith("k/09 and 40 more\n")
    told = cli("add", "a.npz", "many.npz", "--overwrite").out
    assert told == f"a.npz: replaced {', '.join(f'k/{n:02}' for n in range(10))} and 40 more\n"
    assert "k/09 and 40 more" in cli("rm", "a.npz", "k").out
    assert len(cli("rm", "many.npz", "k/0*", "--json").json()["removed"]) == 10


def test_an_array_is_added_from_a_pipe(cli, archive, monkeypatch):
    """- reads one .npy."""
    stream = io.BytesIO((archive.parent / "z.npy").read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
    assert cli("add", "a.npz", "z=-").code == 0
    assert content()["z"] == [0, 1, 2, 3, 4]


def test_arrays_are_removed(cli, archive):
    """Those that are named are gone; where one is not there, all stay."""
    before = archive.read_bytes()
    missing = cli("rm", "a.npz", "y", "nope")
    assert missing.code in (1, 2)
    assert "no array named 'nope', and nothing was removed" in missing.err
    assert missing.err.endswith("Existing keys: 'x', 'y'.\n")
    assert archive.read_bytes() == before
    assert cli("rm", "a.npz", "y", "y").out == "a.npz: removed y\n"
    assert content() == {"x": [0, 1, 2]}
    assert json.loads(cli("rm", "a.npz", "x", "--json").out) == {"path": "a.npz", "removed": ["x"]}
    assert content() == {}


def test_rm_removes_values_of_nested_data(cli, tmp_path):
    """By their keys, folders or patterns; after repack, their bytes are gone."""
    path = tmp_path / "a.npz"
    npzkit.save(
        path, {"w": np.ones(2), "run": {"token": "abracadabra", "m": np.ones(1)}, "n": None}
    )
    assert cli("rm", path, "run/t*").out.startswith(f"{path}: removed run/token")
    cli("repack", path)
    assert b"abracadabra" not in path.read_bytes()
    assert list(npzkit.load_tree(path)["run"]) == ["m"]


def test_rm_removes_empty_containers(cli, tmp_path):
    """Alone, or with the values of their folder; mv leaves them, as before."""
    path = tmp_path / "a.npz"
    tree = {"m": {"w": np.ones(2), "b": {}}, "o": {"lr": 0.1, "s": {}}, "scaler": {}, "l": [(), 1]}
    npzkit.save(path, tree)
    assert "removed o/lr, o/s, scaler, l/0" in cli("rm", path, "o", "scaler", "l/0").out
    assert list(npzkit.load_tree(path)) == ["m", "l"]
    assert npzkit.load_tree(path, "l") == {1: 1}
    assert cli("mv", path, "m", "n").code == 0
    with npzkit.NpzWriter(path, "a") as w:
        del w["m"]
    assert list(npzkit.load_tree(path)) == ["l", "n"]


def test_add_says_what_was_tied_to_a_replaced_array(cli, tmp_path):
    """A name that was tied to it keeps the old values, and a note says so."""
    path, new = tmp_path / "a.npz", tmp_path / "first.npy"
    note = {"first": ["as", "tensor"], "second": ["same", "first"]}
    npzkit.save(path, {"first": np.zeros(3)}, metadata={"npzkit.tree": note})
    np.save(new, np.ones(3))
    found = cli("add", path, new, "--overwrite")
    assert found.code == 0
    assert "second keeps the old values: it was tied to an array that was replaced" in found.err
    with npzkit.open(path) as npz:
        assert npz["second"].tolist() == [0, 0, 0]
    assert "old values" not in cli("add", path, new, "--overwrite").err


@pytest.mark.remedy("Remove what is tied to it first: ")
def test_rm_says_who_has_the_array_of_a_tied_tensor(cli, tmp_path):
    """A name that is tied to it keeps the array; if that is damaged, the names go first, or too."""
    path, weight = tmp_path / "a.npz", np.arange(6.0)
    note = {"first": ["as", "tensor"], "second": ["same", "first"], "third": ["same", "first"]}
    npzkit.save(path, {"first": weight}, metadata={"npzkit.tree": note})
    sound = path.read_bytes()
    found = cli("rm", path, "first")
    assert found.err == (
        "npzkit: second has the array now: it was tied to a key that was removed.\n"
    )
    assert npzkit.load_tree(path)["third"].tolist() == weight.tolist()
    with npzkit.open(io.BytesIO(sound)) as npz:
        at = npz.info("first").data_offset
    path.write_bytes(sound[:at] + b"\xff" + sound[at + 1 :])
    assert cli("rm", path, "first").err.endswith("first: 'second', 'third'.\n")
    found = cli("rm", path, "first", "second", "third")
    assert (found.code, found.err) == (0, "")
    path.write_bytes(sound[:at] + b"\xff" + sound[at + 1 :])
    assert cli("rm", path, "second", "third").err == ""
    assert cli("rm", path, "first").code == 0
    assert cli("ls", path, "--json").json()[0]["members"] == []


def test_rm_says_that_bytes_stay(cli, archive):
    """The result names the command that removes them, unless they are gone."""
    cli("add", "a.npz", "z.npy")
    found = cli("rm", "a.npz", "z")
    assert found.out == "a.npz: removed z; to remove the bytes from the file: npzkit repack a.npz\n"
    cli("repack", "a.npz")
    assert cli("rm", "a.npz", "y").out == "a.npz: removed y\n"


def test_an_array_is_renamed(cli, archive):
    """It keeps its place and its values; a key that is taken, or unsafe, is refused."""
    before = archive.read_bytes()
    for new, code in (("y", 2), ("../x", 2), ("x.npy", 2), ("", 2)):
        result = cli("mv", "a.npz", "x", new)
        assert (result.code, len(result.err.splitlines())) == (code, 1)
        assert archive.read_bytes() == before
    assert cli("mv", "a.npz", "nope", "z").code in (1, 2)
    assert "Remove it first: npzkit rm a.npz y, or use" in cli("mv", "a.npz", "x", "y").err
    assert cli("mv", "a.npz", "x", "first/x").out == "a.npz: renamed x to first/x\n"
    assert content() == {"first/x": [0, 1, 2], "y": [1.0] * 1000}


def test_mv_renames_an_array_or_a_folder_of_keys(cli, archive):
    """A pattern is refused, with what renames one, and several."""
    npzkit.save("a.npz", {"a/x": np.ones(1), "a/y": np.zeros(1)})
    found = cli("mv", "a.npz", "a/*", "b/*")
    assert found.code == 2
    told = "'a/*' names 2 arrays, and mv renames an array, or a folder of keys: npzkit mv a.npz a/x"
    assert told in found.err
    assert "with npzkit.NpzWriter('a.npz', mode='a') as w, call w.rename(old, new)" in found.err
    npzkit.save("b.npz", {"module.w": np.ones(1), "module.b": np.zeros(1)})
    assert "'module.' names 2 arrays, and mv renames" in cli("mv", "b.npz", "module.", "").err
    assert "'nope.*'" in cli("mv", "b.npz", "nope.", "x").err
    assert "no array matches 'z*'" in cli("mv", "a.npz", "z*", "b").err
    # As a shell completes the name of a folder.
    assert cli("mv", "a.npz", "a/", "b/").out == "a.npz: renamed a to b\n"
    assert cli("mv", "a.npz", "b", "a").code == 0
    assert cli("mv", "a.npz", "a", "b").out == "a.npz: renamed a to b\n"
    assert content() == {"b/x": [1.0], "b/y": [0.0]}
    assert cli("mv", "a.npz", "b/x", "c").code == 0
    assert content() == {"c": [1.0], "b/y": [0.0]}


def test_mv_of_a_part_of_nested_data(cli, archive):
    """Its arrays are renamed, masked ones with their masks; what has values too is refused."""
    masked = np.ma.array([1.0, 2.0], mask=[True, False])
    npzkit.save("a.npz", {"ema": {"w": masked, "b": np.ones(2)}, "opt": {"m": np.ones(1), "lr": 1}},
                masked="split")  # fmt: skip
    assert cli("mv", "a.npz", "ema", "net/ema").code == 0
    tree = npzkit.load_tree("a.npz")
    assert (tree.keys(), tree["net"]["ema"]["w"].tolist()) == ({"net", "opt"}, [None, 2.0])
    assert "names values of nested data too" in cli("mv", "a.npz", "opt", "o").err
    assert npzkit.load_tree("a.npz")["opt"]["lr"] == 1


def test_the_parts_of_an_array_go_with_it(cli, archive):
    """mv and rm take the mask along, also if somebody names it too."""
    masked = np.ma.array([1, 2], mask=[0, 1])
    npzkit.save(archive, {"d": masked, "x": np.arange(3)}, masked="split")
    assert cli("mv", "a.npz", "d", "e").code == 0
    assert list(content()) == ["e", "e.mask", "x"]
    for command in ("rm", "a.npz", "e.mask"), ("mv", "a.npz", "e.mask", "f"):
        found = cli(*command)
        assert (found.code, "Rename or remove 'e'" in found.err) == (2, True)
    assert cli("rm", "a.npz", "e", "e.mask").code == 0
    assert list(content()) == ["x"]


@pytest.mark.parametrize("command", [["info"], ["show"], ["show", "--stats"]])
def test_an_array_with_a_mask_says_so(cli, archive, command):
    """info and show say where the mask is; of other arrays they say nothing."""
    npzkit.save(archive, {"d": np.ma.array([1, 2], mask=[0, 1]), "x": np.eye(2)}, masked="split")
    found = cli(command[0], "a.npz", "d", *command[1:])
    assert "d.mask" in found.out + found.err
    for key in ("x", "d.mask"):
        found = cli(command[0], "a.npz", key, *command[1:])
        assert "masked" not in found.out + found.err
    with npzkit.open(archive) as npz:
        assert pickle.loads(pickle.dumps(npz.info("d"))) == npz.info("d")
        assert npz.info("d").split_into == ("d.mask",)


def test_a_dangerous_name_is_mended(cli, archive):
    """A member that extract refuses is given a safe name."""
    with zipfile.ZipFile("b.npz", "w") as out:
        out.write("z.npy", "../z.npy")
    assert cli("extract", "b.npz", "-o", "out").code == 1
    assert cli("mv", "b.npz", "../z", "z").code == 0
    assert cli("extract", "b.npz", "-o", "out").code == 0


@pytest.mark.parametrize("command", [["add", "z.npy"], ["rm", "x"], ["mv", "x", "y"]])
def test_what_is_no_archive(cli, archive, command):
    """A missing file is not made, an empty one, a folder and another kind are not touched."""
    name, *arguments = command
    missing = cli(name, "no.npz", *arguments)
    assert missing.code == 2
    assert "Check the name" in missing.err
    assert ("npzkit pack no.npz IN... makes a new one" in missing.err) == (name == "add")
    assert not (archive.parent / "no.npz").exists()
    assert cli(name, ".", *arguments).code == 2
    page = archive.parent / "page.npz"
    page.write_bytes(b"<html>")
    result = cli(name, "page.npz", *arguments)
    assert (result.code, len(result.err.splitlines())) == (1, 1)
    assert page.read_bytes() == b"<html>"


def test_an_archive_that_is_being_written(cli, archive):
    """While another writer has it, it is not changed."""
    with npzkit.NpzWriter("a.npz", mode="a") as writer:
        writer["w"] = [1]
        result = cli("rm", "a.npz", "x")
        assert result.code == 2
        assert "writer" in result.err
    assert list(content()) == ["x", "y", "w"]


def test_keys_do_not_control_the_terminal(cli, archive):
    """A key with an escape sequence is shown as text, in messages too."""
    for command in (["rm", "a.npz", "\x1b[2J"], ["mv", "a.npz", "x", "\x1b[2J"]):
        result = cli(*command)
        assert result.code in (1, 2)
        assert "\x1b" not in result.err


def test_a_key_that_begins_with_a_dash(cli, tmp_path):
    """The message on it as an option says how it is given."""
    npzkit.save(tmp_path / "a.npz", {"-k": np.arange(3)})
    found = cli("mv", tmp_path / "a.npz", "-k", "k")
    assert (found.code, "Put -- before names that begin with a dash." in found.err) == (2, True)
    assert "Put --" not in cli("ls", tmp_path / "a.npz", "--jso").err
    assert cli("mv", tmp_path / "a.npz", "--", "-k", "k").code == 0
    assert content(tmp_path / "a.npz") == {"k": [0, 1, 2]}


def test_a_name_that_cannot_be_used_is_replaced(cli, tmp_path, monkeypatch):
    """The others are shown, the message of that one names the command, and mv gives it a key."""
    monkeypatch.chdir(tmp_path)
    np.savez("b.npz", **{"bad\x1b[31m": np.arange(3), "x": np.arange(4)})
    assert cli("show", "b.npz", "x").out == "[0 1 2 3]\n"
    result = cli("show", "b.npz", "bad\x1b[31m")
    assert result.code == 1
    assert re.search(r"npzkit mv b\.npz '?bad\\x1b\[31m'? NEW", result.err)
    assert (result.out + result.err).replace("\n", "").isprintable()
    assert cli("mv", "b.npz", r"bad\x1b[31m", "good").code == 0
    assert content("b.npz") == {"good": [0, 1, 2], "x": [0, 1, 2, 3]}


def test_large_arrays_are_added_in_parts(cli, archive, monkeypatch):
    """A large one is compressed, and replaces another, as a small one does."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", 16)
    assert cli("add", "a.npz", "z.npy", "-c", "deflated").code == 0
    np.save("z.npy", np.arange(7.0))
    assert cli("add", "a.npz", "z.npy").code == 2
    assert cli("add", "a.npz", "z.npy", "-c", "deflated", "--overwrite").code == 0
    assert content()["z"] == [0, 1, 2, 3, 4, 5, 6]
    with npzkit.open("a.npz") as npz:
        assert npz.info("z").method == "deflated"


def test_the_same_name_is_no_change(cli, archive):
    """An array may be given the key that it has."""
    before = content()
    assert cli("mv", "a.npz", "x", "x").code == 0
    assert content() == before


def test_a_missing_key_is_named_before_a_taken_one(cli, archive):
    """Where the old key is missing, mv does not advise to remove the array of the new key."""
    found = cli("mv", "a.npz", "missing", "x")
    assert found.code == 2
    assert found.err.startswith("npzkit: no array named 'missing'")
