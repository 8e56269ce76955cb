"""verify, repair and repack: many files and folders, what is printed, and the exit codes."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import zipfile
from pathlib import Path

import npzkit
import numpy as np
import pytest
from archives import damage
from npzkit.cli.messages import as_word
from npzkit.errors import format_size
from systems import needs_symlinks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: a sound, a damaged and a torn archive, and another sound one below."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("good", "bad", "torn", "deep/er/good"):
        npzkit.save(f"{name}.npz", {"x": np.arange(1000), "y": np.arange(3)})
    damage(tmp_path / "bad.npz", "x", 100)
    with open("torn.npz", "ab") as file:
        file.write(b"half an array")
    (tmp_path / "deep" / "notes.txt").write_text("no archive")
    return tmp_path


# -- verify --------------------------------------------------------------------


def test_many_files_are_verified(cli, folder):
    """Each file has its verdict, in the order given, and the last line counts them."""
    found = cli("verify", "good.npz", "bad.npz", "torn.npz")
    assert (found.code, found.err) == (1, "")
    lines = found.out.splitlines()
    assert lines[0].startswith("bad.npz: error: x: the data is damaged")
    assert lines[1] == "bad.npz: NOT sound, 2 members, 1 error"
    assert lines[2].startswith("torn.npz: warning: 13 bytes")
    assert lines[3] == "torn.npz: torn, 2 members, 1 warning"
    assert lines[4:] == ["3 files: 1 sound, 1 NOT sound, 1 torn"]
    lines = cli("verify", "good.npz", "bad.npz", "-v").out.splitlines()
    assert lines[0] == "good.npz: sound, 2 members; no Python objects, and no unsafe names"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("good", 0), ("bad", 1), ("torn", 1), ("no", 2)])
@pytest.mark.parametrize("option", ["--quiet", "--verbose", "--json"])
def test_the_exit_code_says_what_was_found(cli, folder, name, code, option):
    """0 is sound, 1 damaged or torn, 2 not read; alone and beside a sound file."""
    assert cli("verify", f"{name}.npz", option).code == code
    assert cli("verify", "good.npz", f"{name}.npz", option).code == code


def test_quiet_prints_problems_alone(cli, folder):
    """With --quiet sound files print nothing, and others their errors only."""
    assert cli("verify", "good.npz", "deep/er/good.npz", "-q") == (0, "", "")
    found = cli("verify", "good.npz", "bad.npz", "torn.npz", "--quiet")
    assert [line.split(": ")[:2] for line in found.out.splitlines()] == [
        ["bad.npz", "error"],
        ["torn.npz", "warning"],
    ]


def test_notes_are_printed(cli, tmp_path):
    """One on dead space is printed; --verbose adds what the verdict counts, and who wrote it."""
    objects, grown = tmp_path / "a.npz", tmp_path / "b.npz"
    large = np.zeros(100_000)
    np.savez(objects, **{f"a{i}": np.array([{}]) for i in range(20)}, large=large)
    found = cli("verify", objects)
    assert (
        found.out == f"{objects}: sound, 21 members; 20 arrays are pickles (a0, a1, a2 and 17 "
        "more): loading them can run code\n"
    )
    found = cli("verify", objects, "--verbose").out
    assert (found.count("Python objects:"), found.count("no record of npzkit")) == (20, 1)
    assert "21 members, 21 notes" in found
    npzkit.save(grown, {"a": large, "b": large, "c": np.zeros(3)})
    with npzkit.NpzWriter(grown, "a") as w:
        del w["c"]
    note, verdict = cli("verify", grown).out.splitlines()
    assert note.startswith(f"{grown}: note: ")
    assert "dead space" in note
    assert "2 members, 1 note" in verdict
    assert "dead space" not in cli("verify", grown, objects).out
    assert cli("verify", grown, "-q", "-v").out == ""


def test_one_line_says_whether_a_file_is_safe_to_load(cli, tmp_path):
    """Pickles are named, members that are no arrays and unsafe names counted; or there are none."""
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    assert cli("verify", tmp_path / "a.npz").out.endswith(
        "a.npz: sound, 1 member; no Python objects, and no unsafe names\n"
    )
    np.savez(tmp_path / "b.npz", x=np.array([{}]), y=np.array([{}]))
    with zipfile.ZipFile(tmp_path / "b.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
        archive.writestr("../z.npy", stream.getvalue())
    assert cli("verify", tmp_path / "b.npz").out.endswith(
        "; 2 arrays are pickles (x, y): loading them can run code, 1 member that is no array, "
        "1 name that is not safe to extract\n"
    )
    assert "(x, y): loading them can run code" in str(npzkit.verify(tmp_path / "b.npz"))
    found = cli("verify", "-v", tmp_path / "b.npz").out
    assert "readme.txt: it is no array: npzkit extract writes its bytes" in found


def test_an_append_that_is_under_way_is_no_damage(cli, tmp_path):
    """While a writer is at work, what it has written behind the archive is not its business."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with npzkit.NpzWriter(path, "a") as w:
        w["y"] = np.zeros(1_000_000)
        size = path.stat().st_size
        if os.name != "nt":
            found = cli("verify", path, "--json")
            assert (found.code, found.json()[0]["ok"], found.json()[0]["torn_size"]) == (0, True, 0)
    assert size > 8_000_000
    assert cli("verify", path).code == 0


@pytest.mark.parametrize("command", ["verify", "repair", "repack"])
def test_a_folder_without_archives_among_others(cli, folder, command):
    """The others are worked on; the folder has a message, and the exit code is 2."""
    os.mkdir("empty")
    found = cli(command, "empty", "good.npz")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "'empty' has no archives" in found.err
    assert ("1 repacked" if command == "repack" else "1 sound") in found.out


def test_json_agrees_with_the_exit_code(cli, folder):
    """Of a torn file both say that it is not as it should be; remedies are commands."""
    found = cli("verify", "torn.npz", "--json")
    assert (found.code, found.json()[0]["ok"]) == (1, False)
    np.save("bare.npz.npy", np.arange(3))
    os.rename("bare.npz.npy", "bare.npz")
    found = cli("verify", "bare.npz", "--json")
    ((row,),) = [one["rows"] for one in found.json()]
    assert (found.code, found.json()[0]["ok"], found.json()[0]["member_count"]) == (0, True, 0)
    assert row["remedy"] == "Archives have them: npzkit pack bare.new.npz bare.npz."


def test_a_file_that_cannot_be_read_does_not_stop_the_others(cli, folder):
    """A missing file, and one that is no archive, are reported; the others are verified."""
    (folder / "page.npz").write_bytes(b"<html>")
    found = cli("verify", "no.npz", "page.npz", "good.npz")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "no.npz" in found.err
    assert "good.npz" not in found.out
    assert "page.npz: NOT sound" in found.out
    assert found.out.splitlines()[-1] == "3 files: 1 failed, 1 NOT sound, 1 sound"


def test_json_is_one_list(cli, folder):
    """--json gives a list with an object per file, those that cannot be read among them."""
    found = cli("verify", "good.npz", "no.npz", "bad.npz", "--json")
    assert [(row["path"], row["ok"]) for row in found.json()] == [
        ("good.npz", True), ("no.npz", False), ("bad.npz", False)
    ]  # fmt: skip
    assert "Check the name" in found.json()[1]["error"]
    assert cli("verify", "torn.npz", "--json").json()[0]["torn_size"] == 13


def test_a_folder_is_searched(cli, folder):
    """The .npz files of a folder are verified, sorted, with -r those in its folders too."""
    found = cli("verify", "-r", ".", "--json").json()
    names = ["bad.npz", os.path.join("deep", "er", "good.npz"), "good.npz", "torn.npz"]
    assert [row["path"] for row in found] == [os.path.join(".", name) for name in names]
    assert cli("verify", "deep", "-r").code == 0
    assert cli("verify", ".").out.endswith("3 files: 1 NOT sound, 1 sound, 1 torn\n")


def test_a_folder_without_archives(cli, folder):
    """It is wrong usage, and without -r the error names the option."""
    for arguments, text in (("deep",), "Pass -r"), (("-r", "empty"), "no archive"):
        (folder / "empty").mkdir(exist_ok=True)
        found = cli("verify", *arguments)
        assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
        assert text in found.err
    found = cli("verify", "-r", "empty", "--json")
    assert (found.code, found.json()) == (2, [])


@needs_symlinks
def test_links_in_folders(cli, folder):
    """Links to folders are not followed, so a loop ends; a file with several links counts once.

    A link that leads nowhere is an error, as if it were named.
    """
    os.symlink(folder, folder / "deep" / "loop")
    os.symlink("nowhere.npz", folder / "deep" / "broken.npz")
    os.symlink("itself.npz", folder / "deep" / "itself.npz")
    os.symlink(folder / "good.npz", folder / "deep" / "link.npz")
    found = cli("verify", "-r", "deep", "--json")
    names = ["broken.npz", os.path.join("er", "good.npz"), "itself.npz", "link.npz"]
    assert [row["path"] for row in found.json()] == [os.path.join("deep", name) for name in names]
    assert [row["ok"] for row in found.json()] == [False, True, False, True]
    notes = os.path.join("deep", "notes.txt")
    assert found.err.endswith(f"not looked at: 1 other file ({notes}); 1 linked folder\n")
    assert (found.code, cli("verify", os.path.join("deep", "broken.npz")).code) == (2, 2)
    assert os.path.join("deep", "broken.npz") in cli("ls", "deep").err
    assert len(cli("verify", "-r", "good.npz", "deep", "--json").json()) == 4


@needs_symlinks
def test_a_link_does_not_hide_its_file(cli, folder):
    """Of the names of a file in folders, the one that is no link counts, and any that is given."""
    os.rename(folder / "good.npz", folder / "z.npz")
    for link in ("a.npz", os.path.join("deep", "a.npz")):
        os.symlink(folder / "z.npz", folder / link)

    def found(*files):
        return {os.path.relpath(row["path"]) for row in cli("verify", *files, "--json").json()}

    assert not found("-r", ".") & {"a.npz", os.path.join("deep", "a.npz")}
    assert "z.npz" in found("deep", ".") & found(".") & found("-r", ".")
    assert {"a.npz"} == found("a.npz", ".") & {"a.npz", "z.npz"}


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_what_was_not_looked_at_is_counted(cli, folder, command):
    """Files of other kinds and folders, also for --json; not of a shard's or of a hidden folder."""
    for name in ("bad.npz", "torn.npz"):
        os.remove(name)
    Path("a.h5").touch()
    Path("b").touch()
    Path(".hidden").mkdir()
    Path(".hidden", "c").touch()
    Path(".d").touch()
    Path("empty").mkdir()
    with npzkit.ShardedWriter("sharded") as writer:
        writer["x"] = np.arange(3)
    zarr = Path("store.zarr")
    zarr.mkdir()
    (zarr / "zarr.json").touch()
    (zarr / "c").mkdir()
    (zarr / "c" / "0").touch()
    for options in ((), ("--json",)):
        found = cli(command, ".", *options)
        told = "3 other files (a.h5, b, store.zarr); 1 folder (-r looks into it)"
        assert (found.code, found.err) == (0, f"npzkit: not looked at: {told}\n")
        below = cli(command, "-r", ".", *options).err
        assert below.startswith("npzkit: not looked at: 4 other files (a.h5, b, ")
        assert cli(command, "good.npz", *options).err == ""
    assert cli("verify", "-q", ".").err == ""
    for number in range(8):
        Path(f"z{number}").touch()
    named = "a.h5, b, store.zarr, z0, z1, z2, z3, z4, z5, z6 and 1 more"
    assert f"not looked at: 11 other files ({named})" in cli(command, ".").err


def test_a_folder_that_cannot_be_listed_is_reported(cli, folder, monkeypatch):
    """The archives elsewhere are verified, and the exit code is not 0."""
    real = os.scandir

    def scandir(path):
        if os.path.basename(path) == "er":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        found = cli("verify", "-r", "good.npz", "deep")
    assert (found.code > 0, found.err.count("\n")) == (True, 2)
    assert os.path.join("deep", "er") in found.err
    assert "1 sound" in found.out


def test_only_some_arrays(cli, folder):
    """--key, repeated, chooses arrays; one that is missing is reported for its file."""
    assert cli("verify", "bad.npz", "--key", "y") == (
        0,
        "bad.npz: sound, 1 of 2 members checked\n",
        "",
    )
    assert cli("verify", "bad.npz", "-k", "y", "-k", "x").code == 1
    found = cli("verify", "good.npz", "--key", "z")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "'z'" in found.err


def test_what_cannot_be_opened_has_a_remedy(cli, folder):
    """verify says what to do with a truncated file and with one of another format."""
    (folder / "cut.npz").write_bytes((folder / "good.npz").read_bytes()[:-200])
    (folder / "bare.h5").write_bytes(b"\x89HDF")
    first, cut, second, _, last = cli("verify", "cut.npz", "bare.h5").out.splitlines()
    assert first.endswith("npzkit repair cut.npz -o OTHER --keep-partial mask.")
    assert cut == "cut.npz: NOT sound, no member could be checked, 1 error"
    assert second.endswith("Convert it: npzkit convert bare.h5 bare.npz.")
    assert last == "2 files: 1 NOT sound, 1 of another format"
    assert (
        npzkit.verify("bare.h5").verdict == "of another format, no member could be checked, 1 error"
    )
    os.mkdir("store.zarr")
    Path("store.zarr", "zarr.json").touch()
    names = "cut.npz", "bare.h5", "store.zarr", "no.npz"
    assert cli("verify", *names).out.endswith("2 of another format, 1 failed\n")
    for command in ("verify", "ls"):
        rows = cli(command, *names, "--json").json()
        assert [row["is_damage"] for row in rows] == [True, False, False, False]
    rows = cli("verify", "good.npz", "bad.npz", "-r", "deep", "--json").json()
    assert {(row["ok"], row["is_damage"]) for row in rows} == {(True, False), (False, True)}


def test_each_line_names_its_file(cli, folder):
    """Of several repaired files, each line about what was lost names the file, and its rows."""
    (folder / "cut.npz").write_bytes((folder / "good.npz").read_bytes()[:4000])
    found = cli("repair", "bad.npz", "cut.npz", "-o", "out/", "--keep-partial", "mask")
    losses = [line for line in found.out.splitlines() if "lost: " in line]
    assert losses[0].startswith("bad.npz: lost: x (at byte 64): the data is damaged")
    assert losses[0].endswith("npzkit extract bad.npz x --no-verify writes it as it is")
    assert losses[1].startswith(
        "cut.npz: partly lost: x (at byte 0): truncated: 476 of 1,000 rows kept, unchecked;"
    )


def test_a_file_is_no_key(cli, folder):
    """A file in place of a key is reported as such; two folders are no two archives."""
    for command in ("show", "rm"):
        found = cli(command, "good.npz", "bad.npz")
        assert found.code == 2
        assert "'bad.npz' is a file, but was used as a key here: a command with KEYS" in found.err
        assert "takes one FILE, and diff two. Of several, a shell takes one after the" in found.err
    assert "Pass an archive, or two to diff." in cli("diff", "deep", "deep").err


def test_a_file_of_any_name_is_verified(cli, folder):
    """What is named is checked, whatever it is called; in folders only .npz files are."""
    shutil.copy("good.npz", "good.zip")
    assert cli("verify", "good.zip").code == 0
    assert cli("verify", "deep/notes.txt").code == 1


# -- repair --------------------------------------------------------------------


def test_repair_without_output_checks_the_file(cli, folder):
    """A torn end is cut off; damage that remains is reported, and exits with 1."""
    found = cli("repair", "torn.npz")
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines() == [
        "torn.npz: 13 bytes after the last commit removed",
        "torn.npz: sound, 2 members; no Python objects, and no unsafe names",
    ]
    assert cli("repair", "good.npz").out.startswith("good.npz: its list of arrays is complete")
    data = bytearray((folder / "good.npz").read_bytes())
    data[-5] ^= 1
    (folder / "end.npz").write_bytes(data)
    found = cli("repair", "end.npz")
    assert found.out.splitlines()[0] == "end.npz: its directory was written again"
    before = (folder / "bad.npz").read_bytes()
    found = cli("repair", "bad.npz")
    assert found.code == 1
    assert "bad.npz: error: x: the data is damaged" in found.out
    assert "was not repaired" in found.out
    assert "npzkit repair bad.npz -o OTHER" in found.out
    assert (folder / "bad.npz").read_bytes() == before
    (document,) = cli("repair", "bad.npz", "--json").json()
    assert (document["ok"], document["cut_size"], document["rows"][0]["key"]) == (False, 0, "x")


def test_a_repaired_end_that_loses_an_array_is_a_loss(cli, folder):
    """If the file is truncated within its last array, the repair names it and exits with 1."""
    npzkit.save("cut.npz", {"a": np.ones(3)})
    with npzkit.NpzWriter("cut.npz", "a") as w:
        w["b"] = np.ones(30_000)
    (folder / "cut.npz").write_bytes((folder / "cut.npz").read_bytes()[:100_000])
    shutil.copy("cut.npz", "again.npz")
    found = cli("repair", "cut.npz")
    assert found.code == 1
    assert "cut.npz: lost: b" in found.out
    (document,) = cli("repair", "again.npz", "--json").json()
    assert (document["ok"], [row["key"] for row in document["lost"]]) == (
        False, ["b", "the end of the file"],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("place", ["data", "local header", "entry"])
def test_a_damaged_array_is_removed_in_place(cli, tmp_path, compression, place):
    """After rm of the array that verify names, the others are a sound archive, in the same file."""
    path = tmp_path / "a.npz"
    arrays = {key: np.arange(40_000) * number for number, key in enumerate("abc", 1)}
    npzkit.save(path, arrays, compression=compression)
    data = bytearray(path.read_bytes())
    with npzkit.open(path) as npz:
        info = npz.info("b")
    offset = {
        "data": info.data_offset + 100, "local header": data.index(b"b.npy") - 10,
        "entry": data.rindex(b"b.npy") - 28,
    }[place]  # fmt: skip
    data[offset] ^= 1
    path.write_bytes(data)
    before = os.stat(path).st_ino
    assert cli("verify", path).code == 1
    found = cli("rm", path, "b")
    assert (found.code, found.err) == (0, "")
    assert os.stat(path).st_ino == before
    assert cli("verify", path, "-q") == (0, "", "")
    with np.load(path) as npz:
        assert sorted(npz) == ["a", "c"]
        assert np.array_equal(npz["c"], arrays["c"])


@pytest.mark.parametrize("command", ["repair", "repack"])
@pytest.mark.filterwarnings("ignore::npzkit.errors.TornArchiveWarning")
def test_a_copy_goes_into_a_folder(cli, folder, command):
    """In a folder, the result of one file has its name; an older one stays without --overwrite."""
    shutil.copy("torn.npz", "deep/er/torn.npz")
    assert cli(command, "deep/er/torn.npz", "-o", "out/").code == 0
    assert os.listdir("out") == ["torn.npz"]
    refused = cli(command, "torn.npz", "-o", "out")
    assert (refused.code, "--overwrite" in refused.err) == (2, True)
    assert cli(command, "torn.npz", "-o", "out", "--overwrite").code == 0
    assert cli("verify", "-r", "out", "-q").code == 0


@pytest.mark.filterwarnings("ignore::npzkit.errors.TornArchiveWarning")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["repair"], ["bad.npz", "torn.npz"]),
        (["repack"], ["deep/er/good.npz", "good.npz", "torn.npz"]),
    ],
    ids=" ".join,
)
def test_results_of_many_files_go_into_a_folder(cli, folder, command, expected):
    """Each has its path below the folder that was given; repair copies what it repaired alone."""
    before = {path: path.read_bytes() for path in folder.rglob("*.npz")}
    assert cli(*command, "-r", ".", "-o", "out/").code == 1
    written = sorted(path.relative_to("out").as_posix() for path in Path("out").rglob("*.npz"))
    assert written == expected
    assert cli("verify", "-r", "out").code == 0
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("command", ["repair", "repack"])
@pytest.mark.parametrize(
    ("files", "output"),
    [
        (["good.npz", "torn.npz"], "bad.npz"),
        (["good.npz", "deep/er/good.npz"], "out/"),
        (["-r", "."], "deep/er/"),
    ],
)
def test_no_result_replaces_another(cli, folder, command, files, output):
    """Several results need a folder, names that differ, and a place that no other file is read from."""
    before = {path: path.read_bytes() for path in folder.rglob("*.npz")}
    found = cli(command, *files, "-o", output, "--overwrite")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert {path: path.read_bytes() for path in folder.rglob("*.npz")} == before
    assert not os.path.exists("out")


@pytest.mark.parametrize(("command", "name"), [("repair", "bad.npz"), ("repack", "good.npz")])
def test_results_of_a_folder_are_in_a_folder(cli, folder, command, name):
    """OUTPUT needs no slash at its end then, also for a folder with one archive."""
    Path("runs").mkdir()
    for names in ["a.npz"], ["a.npz", "b.npz"]:
        shutil.copy(name, f"runs/{names[-1]}")
        assert cli(command, "runs", "-o", f"saved{len(names)}").err == ""
        assert sorted(os.listdir(f"saved{len(names)}")) == names
    assert "slashed//" not in cli(command, "runs", "-o", "slashed/").out
    found = cli(command, "runs", "-o", "all.npz")
    assert (found.code, "--output all.npz/" in found.err) == (2, True)


def test_an_option_that_would_do_nothing_is_refused(cli, folder):
    """What is kept can only be chosen where something is written."""
    found = cli("repair", "torn.npz", "--keep-partial", "mask")
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)


@pytest.mark.remedy("npzkit.repair(path, output, keep_partial='mask') saves the other values.")
def test_lost_values_are_masked(cli, folder, remedies_met):
    """verify names the option by which repair masks lost values."""
    npzkit.save("a.npz", {"x": np.arange(9000)}, compression="deflated", chunk_size=4096)
    data = bytearray((folder / "a.npz").read_bytes())
    data[5000] ^= 8
    (folder / "a.npz").write_bytes(data)
    (line,) = [line for line in cli("verify", "a.npz").out.splitlines() if " error: " in line]
    assert line.endswith(
        ". npzkit repair a.npz -o OTHER --keep-partial mask saves the other values."
    )
    remedies_met.texts += [row.remedy for row in npzkit.verify("a.npz").rows if row.remedy]
    (row,) = cli("repair", "a.npz", "-o", "b.npz", "--keep-partial", "mask", "--json").json()[0][
        "lost"
    ]
    assert row["rows"]
    with npzkit.open("b.npz") as npz:
        assert 0 < npz.join("x").mask.sum() < 4000


def test_a_damaged_array_without_chunks_has_a_next_step(cli, folder):
    """Of an array of np.savez, the error of verify says how to get it as it is, as a read does."""
    np.savez("n.npz", **{"a b": np.arange(5.0), "c": np.ones(3)})
    damage(folder / "n.npz", "a b", 3)
    found, read = cli("verify", "n.npz"), cli("show", "n.npz", "a b")
    remedy = "Download it, create it again or restore a backup; "
    remedy += "npzkit extract n.npz 'a b' --no-verify writes it as it is."
    remedy = remedy.replace("'a b'", as_word("a b"))
    assert found.out.splitlines()[0].endswith(remedy)
    assert read.err.strip().endswith(remedy)
    assert cli("verify", "n.npz", "--json").json()[0]["rows"][-1]["remedy"] == remedy
    assert cli("extract", "n.npz", "a b", "--no-verify").code == 0


def test_a_file_without_a_directory_says_what_to_do(cli, folder):
    """repair without an output cannot save it, and names the command that can."""
    data = (folder / "good.npz").read_bytes()
    (folder / "cut.npz").write_bytes(data[:-200])
    found = cli("repair", "cut.npz", "torn.npz")
    assert (found.code, found.err.count("\n")) == (1, 1)
    assert found.err.endswith("npzkit repair cut.npz -o OTHER --keep-partial mask.\n")
    assert "npzkit.repair" not in found.err
    assert "torn.npz: sound" in found.out


# -- repack --------------------------------------------------------------------


def test_many_files_are_repacked_in_place(cli, folder):
    """Each file is rewritten, and one that is damaged stays as it was while the others go on."""
    before = (folder / "bad.npz").read_bytes()
    size = (folder / "good.npz").stat().st_size
    found = cli("repack", "bad.npz", "good.npz", "deep/er/good.npz", "-c", "deflated")
    assert (found.code, found.err.count("\n")) == (1, 1)
    assert "bad.npz" in found.err
    assert (folder / "bad.npz").read_bytes() == before
    sizes = " -> ".join(
        format_size(2 * one) for one in (size, (folder / "good.npz").stat().st_size)
    )
    assert found.out.splitlines()[-1] == f"3 files: 1 failed, 2 repacked, {sizes}"
    for path in ("good.npz", "deep/er/good.npz"):
        with npzkit.open(path) as npz:
            assert npz.info("x").method == "deflated"


@pytest.mark.filterwarnings("default")
def test_warnings_name_their_file(cli, folder):
    """Among many files a warning says which one it is about."""
    found = cli("repack", "good.npz", "torn.npz")
    assert (found.code, found.err.count("\n")) == (0, 1)
    assert found.err.startswith("npzkit: warning: torn.npz: 13 bytes")


@pytest.mark.parametrize("command", ["repair", "repack"])
def test_json_for_many_files(cli, folder, command):
    """--json has an object per file, also for one that is not there."""
    found = cli(command, "good.npz", "no.npz", "--json")
    assert found.code == 2
    assert [(row["path"], row["ok"]) for row in json.loads(found.out)] == [
        ("good.npz", True), ("no.npz", False)
    ]  # fmt: skip


def test_a_wrong_argument_is_said_once(cli, folder):
    """What is wrong with an option is no fault of a file: nothing is begun."""
    found = cli("repack", "good.npz", "deep/er/good.npz", "--level", "20")
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)


def test_a_page_is_not_said_to_be_repairable(cli, folder):
    """Of a file that holds no member, repair does not advise another repair, nor show its bytes."""
    (folder / "page.npz").write_bytes(b"<html>404 Not Found</html>")
    found = cli("repair", "page.npz")
    assert found.code == 1
    assert "HTML" in found.err
    assert "Download it again." in found.err
    assert "npzkit repair" not in found.err
    assert "b'" not in found.err
    whole = (folder / "good.npz").read_bytes()
    # Without its record, nothing is left that lists its members.
    (folder / "page.npz").write_bytes(whole[: whole.index(b".npzkit")])
    assert "npzkit repair page.npz -o OTHER" in cli("repair", "page.npz").err


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_what_killed_saves_left_in_a_folder_is_named(cli, tmp_path, command):
    """A temporary file without a writer is named with its size; one that is being written is not."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    (tmp_path / "deep").mkdir()
    left = tmp_path / ".npzkit-0123456789abcdef.tmp", tmp_path / "deep/.npzkit-00000000ffffffff.tmp"
    for path in left:
        path.write_bytes(bytes(2048))
    (tmp_path / ".npzkit-notes.tmp").write_bytes(b"of somebody else")
    with npzkit.NpzWriter(tmp_path / "b.npz") as w:
        w["x"] = np.zeros(1 << 18)
        found = cli(command, tmp_path)
        assert found.code == 0
        assert found.err.startswith(
            f"npzkit: warning: {left[0]}: 2.0 KiB of a save that was killed"
        )
        assert found.err.count("a save that was killed") == 1
    assert cli(command, tmp_path, "-r").err.count("2.0 KiB of a save that was killed") == 2
    assert cli(command, tmp_path / "a.npz").err == ""
    for path in left:
        path.unlink()
    assert cli(command, tmp_path, "-r").err == ""
    with npzkit.ShardedWriter(tmp_path / "run", mode="a") as writer:
        writer["x"] = np.zeros(1 << 18)
        writer.commit()
    (tmp_path / "run" / left[0].name).touch()
    assert "The first commit after 24 hours removes it" in cli(command, tmp_path / "run").err
    (tmp_path / "run" / "index.npz").unlink()
    assert "The first commit after 24 hours removes it" in cli(command, tmp_path / "run").err


def test_the_complete_arrays_of_a_killed_save_are_saved(cli, tmp_path):
    """The warning has the command that does it."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(300), "y": np.arange(900)})
    data = (tmp_path / "a.npz").read_bytes()
    left = tmp_path / ".npzkit-0123456789abcdef.tmp"
    left.write_bytes(data[: len(data) // 2])
    command = re.search(r"npzkit (repair \S+ -o )OTHER\. The next save", cli("ls", tmp_path).err)[1]
    saved = tmp_path / "b.npz"
    found = cli(*command.split(), saved)
    assert found.out.startswith(f"{saved}: 1 member kept\n")
    assert npzkit.load(saved)["x"][-1] == 299


def test_python_objects_are_named_in_a_folder_too(cli, tmp_path):
    """A sound archive with pickles has a line, also among others, and JSON says so."""
    np.savez(tmp_path / "plain.npz", x=np.arange(3))
    np.savez(tmp_path / "objects.npz", x=np.array([1, "b"], object))
    lines = cli("verify", tmp_path).out.splitlines()
    assert [line for line in lines if "objects.npz" in line and "1 array is a pickle (x)" in line]
    assert not [line for line in lines if "plain.npz" in line]
    found = cli("verify", tmp_path, "--json").json()
    assert [row["safety"].startswith("no Python objects") for row in found] == [False, True]


@pytest.mark.parametrize(
    "data", [pickle.dumps([1]), b"PK", b"damaged"], ids=["pickle", "cut", "damaged"]
)
def test_what_could_not_be_read_is_not_called_safe(cli, tmp_path, data):
    """Of a pickle, and of an archive with damage, nobody knows whether it has Python objects."""
    path = tmp_path / "a.npz"
    if data == b"damaged":
        npzkit.save(path, {"x": np.arange(1000)})
        damage(path, "x", 100)
    else:
        path.write_bytes(data)
    (row,) = cli("verify", path, "--json").json()
    assert (row["ok"], row["safety"]) == (False, "not known: not everything could be read")


def test_a_step_that_a_run_removes_meanwhile_is_no_failure(cli, folder, monkeypatch):
    """A file of a folder that is gone when its turn comes is counted; one that was named fails."""
    verify = npzkit.verify

    def removing(*args, **options):
        Path("good.npz").unlink(missing_ok=True)
        return verify(*args, **options)

    Path("torn.npz").unlink()
    shutil.copy("good.npz", "bad.npz")
    monkeypatch.setattr(npzkit, "verify", removing)
    assert cli("verify", ".").out == "2 files: 1 sound, 1 removed\n"
    assert cli("verify", "bad.npz", "good.npz").code == 2


def test_npy_files_of_a_folder_are_repaired(cli, folder):
    """With -o, damaged ones become archives, or an error says how; in place they are left alone."""
    for name, size in (("cut", 60), ("sound", 0), ("good", 60)):
        np.save(f"{name}.npy", np.arange(100))
        os.truncate(f"{name}.npy", os.path.getsize(f"{name}.npy") - size)
    found = cli("repair", ".", "-o", "out", "--keep-partial", "mask")
    assert found.code == 1
    assert {"cut.npy.npz", "good.npy.npz"} == {one for one in os.listdir("out") if ".npy" in one}
    assert npzkit.load("out/cut.npy.npz")["cut"].tolist() == list(range(92))
    assert "1 unchecked" in found.out
    assert "cut.npy -o OTHER --keep-partial mask" in cli("repair", ".", "-o", "out2").err
    assert ".npy" not in cli("repair", ".").out


def test_repairing_a_folder_tells_of_what_was_repaired(cli, folder):
    """Sound files have no line; those that were repaired or are damaged have."""
    Path("bad.npz").unlink()
    found = cli("repair", "-r", ".")
    assert found.code == 0
    assert found.out.splitlines() == [
        f"{os.path.join('.', 'torn.npz')}: 13 bytes after the last commit removed",
        f"{os.path.join('.', 'torn.npz')}: sound, 2 members; no Python objects, and no unsafe names",
        "3 files: 3 sound",
    ]
