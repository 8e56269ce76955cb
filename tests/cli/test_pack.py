"""The commands pack and extract: files to an archive and back, whatever they are called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile

import npzkit
import numpy as np
import pytest
from archives import damage, with_names
from forge import npy
from npzkit.cli import output
from systems import need_library_of


def read(path, key):
    with npzkit.open(path) as npz:
        return npz[key]


def test_every_kind_of_array_goes_in_and_comes_out(cli, here, arrays):
    """What np.save wrote is packed and extracted as the same bytes, slashes being folders."""
    for key, array in arrays.items():
        path = here / "in" / f"{key}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    assert cli("pack", "a.npz", "in").out.startswith(f"a.npz: {len(arrays)} arrays, ")
    with np.load("a.npz") as found:
        assert set(found) == set(arrays)
        for key, array in arrays.items():
            assert found[key].dtype == np.asarray(array).dtype
            np.testing.assert_array_equal(found[key], array)
    result = cli("extract", "a.npz", "-o", "out")
    assert (result.code, result.err) == (0, "")
    for key in arrays:
        assert (here / f"out/{key}.npy").read_bytes() == (here / f"in/{key}.npy").read_bytes()


def test_keys_are_stems_or_given(cli, here):
    """A key is the file's name without its suffix, or what stands before the equals sign."""
    for name in ("a.b.npy", "c=d.npy", "e.NPY"):
        (here / name).write_bytes(npy(np.ones(2)))
    assert cli("pack", "a.npz", "a.b.npy", "c=d.npy", "x/y=e.NPY").code == 0
    with npzkit.open("a.npz") as npz:
        assert npz.files == ["a.b", "c=d", "x/y"]


def test_wrong_usage_of_pack(cli, here):
    """A missing file, an unknown kind, an OUT that is an input, one that is there: code 2."""
    np.save("x.npy", np.ones(2))
    (here / "x.docx").write_bytes(b"")
    (here / "t.csv").write_bytes(b"1,2\n")
    (here / "old.npz").write_bytes(b"old")
    for arguments, what in (
        (["a.npz", "no.npy"], "Check the name"),
        (["a.npz", "x.docx"], "none of .npy"),
        (["a.npz", "t.csv"], "Read it with NumPy's genfromtxt or with pandas"),
        (["x.npy", "x.npy"], "comes first"),
        (["old.npz", "x.npy"], "--overwrite"),
        (["a.npz"], "Missing argument"),
        (["a.npz", "x.npy", "--level", "3"], "--compression deflated"),
    ):
        result = cli("pack", *arguments)
        assert result.code == 2, arguments
        assert what in result.err
        assert len(result.err.splitlines()) == 1
    assert (here / "old.npz").read_bytes() == b"old"
    assert not os.path.exists("a.npz")
    assert cli("pack", "old.npz", "x.npy", "--overwrite").code == 0
    assert list(np.load("old.npz")) == ["x"]


@pytest.mark.parametrize("method", ["deflated", "zstd"])
def test_pack_compresses_and_tells(cli, here, method):
    """--compression and --level are the archive's; --json tells keys and size."""
    np.save("x.npy", np.zeros(100_000))
    found = json.loads(cli("pack", "a.npz", "x.npy", "-c", method, "--level", "9", "--json").out)
    with npzkit.open("a.npz") as npz:
        assert npz.info("x").method == method
    size = os.path.getsize("a.npz")
    assert found == {"output": "a.npz", "keys": ["x"], "notes": [], "size": size}
    assert found["size"] < 10_000


def run(*arguments, data=b""):
    return subprocess.run(
        [sys.executable, "-m", "npzkit", *arguments], input=data, capture_output=True, timeout=120
    )


@pytest.mark.slow
def test_pipes(cli, here):
    """An array goes through a pipe into an archive that goes through one, and out again."""
    array = np.arange(5000.0)
    packed = run("pack", "-", "-", data=npy(array))
    assert (packed.returncode, packed.stderr) == (0, b"")
    (here / "a.npz").write_bytes(packed.stdout)
    assert npzkit.verify("a.npz").ok
    out = run("extract", "a.npz", "arr_0", "-o", "-")
    assert (out.returncode, out.stdout) == (0, npy(array))
    table = cli("extract", "-", "-o", "-", "--format", "csv", data=packed.stdout)
    assert table.out.splitlines()[:2] == ["0.0", "1.0"]
    short = cli("pack", "b.npz", "x=-", data=npy(array)[:-1])
    assert short.code == 1
    assert not os.path.exists("b.npz")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_a_reader_that_has_enough(here, kind):
    """What ends before the output does ends the command, without a word and without an error."""
    npzkit.save("a.npz", {"x": np.zeros(1_000_000)})
    command = [sys.executable, "-m", "npzkit", "extract", "a.npz", "-o", "-", "--format", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("length", [3, 1_000_000])
def test_an_archive_that_is_not_read_to_its_end(here, length):
    """It is incomplete: an error says so, also if all of it fits into one write."""
    npzkit.save("a.npz", {"x": np.zeros(length)})
    command = [sys.executable, "-m", "npzkit", "pack", "-", "a.npz"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        told = process.stderr.read()
        assert told.split(b"\n")[0].strip() == (
            b"npzkit: the pipe was closed before the archive was complete."
        )
        assert process.wait(60) == 2


@pytest.mark.slow
def test_a_table_through_a_pipe_is_utf8(here):
    """Text is written as in files, whatever the terminal's encoding is."""
    npzkit.save("a.npz", {"x": np.array(["ü", "x\ny"])})
    command = [sys.executable, "-m", "npzkit", "extract", "a.npz", "-o", "-", "--format", "csv"]
    result = subprocess.run(
        command, capture_output=True, timeout=120, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert result.stdout == 'ü\n"x\ny"\n'.encode()


def test_a_pipe_takes_one_array(cli, here):
    """-d - with more than one key is wrong usage."""
    npzkit.save("a.npz", {"x": [1], "y": [2]})
    result = cli("extract", "a.npz", "-o", "-")
    assert result.code == 2
    assert "2 are wanted" in result.err


def test_a_name_never_leaves_the_folder(cli, here):
    """A member whose name leads elsewhere is skipped, and said; the others are extracted."""
    with_names("a.npz", ["good.npy", "../x.npy"])
    (here / "out").mkdir()
    result = cli("extract", "a.npz", "-o", "out")
    assert result.code == 1
    assert result.out == "out: 1 file; 1 of 2 arrays skipped\n"
    assert len(result.err.splitlines()) == 1
    assert os.listdir("out") == ["good.npy"]
    assert sorted(os.listdir()) == ["a.npz", "out"]


@pytest.mark.slow
def test_large_arrays_through_a_pipe(here):
    """A pipe takes large arrays too, though nothing in it is patched."""
    np.save("x.npy", np.arange(1000))
    code = "import npzkit.display.blocks as b; b.BLOCK_SIZE = 100; from npzkit.cli.commands import run; "
    packed = subprocess.run(
        [sys.executable, "-c", code + "run(['pack', '-', 'x.npy'])"],
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert packed.stderr == b""
    with npzkit.open(packed.stdout) as npz:
        assert npz["x"].tolist() == list(range(1000))


def test_no_file_is_replaced_unasked(cli, here):
    """A file that is there stays, all of them do, unless --overwrite is passed."""
    npzkit.save("a.npz", {"x": [1], "y": [2]})
    (here / "y.npy").write_bytes(b"old")
    result = cli("extract", "a.npz")
    assert result.code == 2
    assert "--overwrite" in result.err
    assert not os.path.exists("x.npy")
    assert (here / "y.npy").read_bytes() == b"old"
    files = json.loads(cli("extract", "a.npz", "--overwrite", "--json").out)["files"]
    assert files["y"] == os.path.join(".", "y.npy")
    assert np.load("y.npy") == [2]


def test_a_folder_of_archives(cli, here):
    """The command that the error names packs them."""
    os.mkdir("folder")
    npzkit.save("folder/a.npz", {"x": [1]})
    assert 'npzkit pack OUT "FOLDER/**/*.npz"' in cli("pack", "new.npz", "folder").err
    assert cli("pack", "new.npz", "folder/**/*.npz").code == 0


def test_python_objects_are_named(cli, here):
    """extract says which files are pickles; an array of numbers is written without a word."""
    np.savez("a.npz", x=[1], y=np.array([None]))
    result = cli("extract", "a.npz")
    assert (result.code, result.out) == (0, ".: 2 files\n")
    assert "because they hold Python objects: y. " in result.err
    assert cli("extract", "a.npz", "x", "-o", "out").err == ""


def test_wrong_usage_of_extract(cli, here):
    """A missing archive, a folder, an empty file, an unknown key: one line each."""
    npzkit.save("a.npz", {"x": [1]})
    (here / "empty.npz").write_bytes(b"")
    (here / "file").write_bytes(b"")
    for arguments, code, what in (
        (["no.npz"], 2, "Check the name"),
        (["."], 2, "no index.npz"),
        (["empty.npz"], 1, "empty"),
        (["a.npz", "y"], 2, "no array named 'y'"),
        (["a.npz", "-o", "file"], 2, "is a file"),
    ):
        result = cli("extract", *arguments)
        assert (result.code, len(result.err.splitlines())) == (code, 1), arguments
        assert what in result.err


@pytest.mark.parametrize("name", ["t.csv", "t.npy", "t.npz"])
def test_a_file_in_the_place_of_the_folder(cli, here, name):
    """A name that seems to be a file's is refused, unless there is such a folder."""
    npzkit.save("a.npz", {"x": np.arange(2)})
    result = cli("extract", "a.npz", "x", "-o", name)
    assert (result.code, result.err.count("\n"), os.listdir()) == (2, 1, ["a.npz"])
    assert "--format csv -o - > NEW.csv" in result.err
    assert cli("extract", "a.npz", "x", "--format", "csv", "-o", "-").out == "0\n1\n"
    os.mkdir(name)
    assert cli("extract", "a.npz", "x", "-o", name).code == 0


def test_the_delimiter_of_tables(cli, here):
    """--delimiter says what is between cells."""
    npzkit.save("a.npz", {"a": [[1, 2]]})
    for option, text in (("|", "1|2\n"), (r"\t", "1\t2\n")):
        command = ("extract", "a.npz", "--format", "csv", "--delimiter", option, "-o", "out")
        assert cli(*command, "--overwrite").code == 0
        assert (here / "out/a.csv").read_text() == text
    result = cli("extract", "a.npz", "--format", "csv", "--delimiter", "ab")
    assert result.code == 2
    assert "one character" in result.err
    assert len(result.err.splitlines()) == 1


def test_arrays_that_are_no_tables(cli, here):
    """An array of more dimensions is skipped, in a line that names the other format."""
    npzkit.save("a.npz", {"good": [1], "x": np.zeros((2, 2, 2))})
    result = cli("extract", "a.npz", "--format", "csv", "-o", "out")
    assert (result.code, len(result.err.splitlines())) == (1, 1)
    assert "'x'" in result.err
    assert "--format npy" in result.err
    assert os.listdir("out") == ["good.csv"]


# -- archives as inputs -------------------------------------------------------------


def test_keys_of_merged_archives_are_distinct(cli, here):
    """If two archives have one key, the file name comes before all their keys, with a note."""
    np.save("x.npy", np.arange(2))
    npzkit.save("a.npz", {"x": np.arange(3), "y": np.arange(5)})
    npzkit.save("b.npz", {"x": np.arange(4)})
    found = cli("pack", "c.npz", "a.npz", "b.npz", "x.npy", "k=a.npz")
    assert (found.code, len(found.err.splitlines()), "such as 'x'" in found.err) == (0, 1, True)
    with np.load("c.npz") as npz:
        assert npz.files == ["a/x", "a/y", "b/x", "x", "k/x", "k/y"]
        assert [npz[key].size for key in npz] == [3, 5, 4, 2, 3, 5]
    apart = cli("pack", "d.npz", "a.npz", "b=b.npz")
    assert (apart.code, apart.err) == (0, "")
    with np.load("d.npz") as npz:
        assert npz.files == ["x", "y", "b/x"]
    refused = cli("pack", "c.npz", "c.npz", "--overwrite")
    assert (refused.code, "one of the inputs" in refused.err) == (2, True)


def test_files_of_one_name_cannot_be_told_apart(cli, here):
    """If the file names are the same too, nothing is written; KEY= helps."""
    for folder in ("one", "two"):
        os.mkdir(folder)
        npzkit.save(f"{folder}/run.npz", {"x": np.arange(3)})
    result = cli("pack", "c.npz", "one/run.npz", "two/run.npz")
    assert (result.code, result.err.count("\n"), os.path.exists("c.npz")) == (2, 1, False)
    assert "'one/run.npz' and 'two/run.npz' would have the same key" in result.err
    assert "KEY=PATH" in result.err
    assert cli("pack", "c.npz", "one/run.npz", "two=two/run.npz").code == 0


def test_an_archive_is_added(cli, here):
    """add takes archives; a taken key, and metadata, are replaced with --overwrite alone."""
    npzkit.save("a.npz", {"x": np.arange(3), "y": np.ones(2)}, metadata={"step": 1})
    npzkit.save("b.npz", {"x": np.arange(4), "z": np.ones(2)}, metadata={"step": 2, "new": 3})
    refused = cli("add", "a.npz", "b.npz")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert cli("add", "a.npz", "b/c=b.npz").code == 0
    with npzkit.open("a.npz") as npz:
        assert npz.files == ["x", "y", "b/c/x", "b/c/z"]
        assert dict(npz.metadata) == {"step": 1, "new": 3}
    result = cli("add", "a.npz", "b.npz", "--overwrite")
    assert (result.code, result.out) == (0, "a.npz: added z; replaced x\n")
    with npzkit.open("a.npz") as npz:
        assert dict(npz.metadata) == {"step": 2, "new": 3}
        assert np.array_equal(npz["x"], np.arange(4))


def test_attributes_that_go_with_a_replaced_array_are_named(cli, here):
    """Those that the new array has stay unsaid, and so do npzkit's own."""
    masked = np.ma.array([1, 2], mask=[0, 1])
    attrs = {key: {"unit": "V", "detector": "a\nb"} for key in "xyz"}
    npzkit.save(
        "a.npz", dict.fromkeys("xy", np.ones(2)) | {"z": masked}, attrs=attrs, masked="split"
    )
    npzkit.save(
        "b.npz", {"x": np.ones(3), "y": np.ones(3)}, attrs={"y": {**attrs["y"], "unit": "A"}}
    )
    np.save("z.npy", np.ones(2))
    assert "removes its attributes" in cli("add", "a.npz", "b.npz").err
    found = cli("add", "a.npz", "b.npz", "z.npy", "--overwrite", "--json")
    told = "attributes of replaced arrays are removed: x (unit, detector), z (unit, detector)"
    assert (found.code, found.json()["notes"], found.err) == (0, [told], f"npzkit: {told}\n")
    with npzkit.open("a.npz") as npz:
        assert npz.info("y").attrs == {"unit": "A", "detector": "a\nb"}


def test_what_is_no_array_in_an_archive_is_passed_over(cli, here):
    """A text among the members is named and left out; Python objects need --allow-pickle."""
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("x.npy", npy(np.ones(2)))
        archive.writestr("readme.txt", "text")
        archive.writestr("o.npy", npy(np.array([{}, None])))
    result = cli("pack", "b.npz", "a.npz")
    assert (result.code, os.path.exists("b.npz")) == (2, False)
    result = cli("pack", "b.npz", "a.npz", "--allow-pickle")
    assert result.code == 0
    assert "skipped 'readme.txt'" in result.err
    assert np.load("b.npz", allow_pickle=True)["o"].tolist() == [{}, None]


# -- damage -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_extract_goes_on_past_damage(cli, here, kind):
    """A damaged array is named and skipped, the others are written, and the code is 1."""
    npzkit.save("a.npz", {key: np.arange(5.0) for key in "abc"})
    data = bytearray((here / "a.npz").read_bytes())
    with npzkit.open("a.npz") as npz:
        data[npz.info("b").data_offset + 3] ^= 1
    (here / "a.npz").write_bytes(data)
    result = cli("extract", "a.npz", "-o", "out", "--format", kind)
    assert (result.code, result.out, result.err.count("\n")) == (
        1, "out: 2 files; 1 of 3 arrays skipped\n", 1
    )  # fmt: skip
    assert "[b]" in result.err or "'b'" in result.err or "b:" in result.err
    assert sorted(os.listdir("out")) == [f"a.{kind}", f"c.{kind}"]
    found = cli("extract", "a.npz", "-o", "out", "--format", kind, "--overwrite", "--json")
    assert (found.code, list(found.json()["files"]), list(found.json()["failed"])) == (
        1, ["a", "c"], ["b"]
    )  # fmt: skip


def test_extract_names_its_only_file_and_what_is_not_kept(cli, here):
    """The notes are lines, and in JSON; of several files, the folder is named."""
    npzkit.save("a.npz", {"w": np.ones(3), "name": None}, metadata={"step": 3})
    found = cli("extract", "a.npz", "-o", "out")
    assert (found.code, found.out) == (0, f"{os.path.join('out', 'w.npy')}: 1 file\n")
    assert found.err.splitlines() == [
        "npzkit: 1 value without an array: 'name'; not kept",
        "npzkit: metadata, and attributes of arrays, are not kept: only archives have them",
    ]
    assert len(cli("extract", "a.npz", "-o", "b", "--json").json()["notes"]) == 2
    assert cli("extract", "a.npz", "w", "-o", "c").err == ""


def test_extract_tells_which_values_of_keys_are_not_kept(cli, here):
    """Those that KEYS match are named, and no others."""
    npzkit.save("a.npz", {"opt": {"m": np.ones(3), "kind": "sgd"}, "w": np.ones(1), "name": None})
    told = "npzkit: 1 value without an array: 'opt/kind'; not kept\n"
    for keys in (["opt"], ["w", "opt/*"]):
        assert cli("extract", "a.npz", *keys, "-o", "out", "--overwrite").err == told
    assert cli("extract", "a.npz", "w", "opt/m", "-o", "b").err == ""


# -- progress -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        ["show", "a.npz", "x", "--stats"],
        ["show", "z.npz", "x"],
        ["show", "z.npz", "x", "0", "--stats"],
        ["extract", "a.npz"],
        ["extract", "a.npz", "--format", "csv"],
        ["pack", "b.npz", "a.npy"],
        ["pack", "b.npz", "a.npy", "-c", "deflated"],
        ["pack", "b.npz", "a.npz"],
        ["add", "z.npz", "new=a.npy"],
        ["convert", "a.npz", "a.h5"],
        ["convert", "a.npz", "a.zarr", "-c", "stored"],
        ["convert", "a.safetensors", "b.npz"],
    ],
    ids=" ".join,
)
def test_bars_count_the_bytes_of_one_array(cli, here, monkeypatch, line):
    """Work on one large array is counted in small steps, up to all of it."""
    for name in line[1:]:
        need_library_of(name)
    array = np.arange(60_000.0).reshape(300, 200)
    if line[0] == "show":
        array = np.arange(600_000.0).reshape(3000, 200)
    np.save("a.npy", array)
    npzkit.save("a.npz", {"x": array})
    if "z.npz" in line:
        np.savez_compressed("z.npz", x=array)
    if "a.safetensors" in line:
        assert cli("convert", "a.npz", "a.safetensors").code == 0
    for name in ("display.blocks.BLOCK_SIZE", "display.blocks.PIECE_SIZE", "conversion.extract.PIECE_SIZE",
                 "conversion.csv_tables.PIECE_SIZE"):  # fmt: skip
        monkeypatch.setattr(f"npzkit.{name}", 1 << 16)
    monkeypatch.setattr("npzkit.analysis.statistics.PIECE_SIZE", 1 << 8)
    # As of a larger array.
    monkeypatch.setattr("npzkit.cli.show._CHECKED_SIZE", 0)
    told = []
    monkeypatch.setattr(npzkit.files.progress.Meter, "finish", lambda self: None)
    monkeypatch.setattr(
        output.ProgressBar, "__call__", lambda self, done, total: told.append(done / total)
    )
    assert cli(*line).code == 0
    assert told == sorted(told)
    assert len(told) >= 4
    assert max(b - a for a, b in zip([0, *told], told, strict=False)) < 0.5


@pytest.mark.slow
def test_bytes_to_a_pipe_are_counted(process, here):
    """What goes to a pipe is the archive, counted as it is written."""
    np.save("a.npy", np.arange(300_000.0))
    found = subprocess.run(
        [sys.executable, "-m", "npzkit", "pack", "-", "a.npy"], capture_output=True, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, b"")
    with npzkit.open(found.stdout) as npz:
        assert np.array_equal(npz["a"], np.arange(300_000.0))


def test_a_damaged_array_is_reported_without_python(cli, here):
    """What extract says of a damaged array is advice for a prompt."""
    npzkit.save("a.npz", {"x": np.arange(1000), "y": np.ones(3)})
    data = bytearray((here / "a.npz").read_bytes())
    data[1000] ^= 1
    (here / "a.npz").write_bytes(data)
    result = cli("extract", "a.npz", "-o", "out")
    assert (result.code, os.listdir("out")) == (1, ["y.npy"])
    assert "CRC-32" in result.err
    assert "npz.read" not in result.err


@pytest.mark.slow
def test_extract_has_a_limit_of_bytes(cli, here):
    """A bomb is refused before a file is written, with --max-size; also in Python."""
    np.savez_compressed("a.npz", x=np.zeros(1_000_000), y=np.zeros(1_000_000))
    for size, code in (("10MB", 2), ("16_000", 2), ("17MB", 0)):
        found = cli("extract", "a.npz", "--max-size", size, "-o", f"out{code}")
        assert (found.code, found.err.count("\n")) == (code, int(code > 0))
        assert os.path.exists(f"out{code}") == (code == 0)
    with pytest.raises(npzkit.errors.LimitExceededError):
        npzkit.extract("a.npz", "out3", limits=npzkit.Limits(member_size=1000))
    assert not os.path.exists("out3")


@pytest.mark.parametrize("kind", ["npy", "csv"])
@pytest.mark.parametrize("compression", ["stored", "zstd"])
def test_damaged_arrays_are_extracted_if_told(cli, here, kind, compression):
    """With --no-verify what can be read is written, as it is; otherwise the array is skipped."""
    if compression == "zstd":
        npzkit.save("a.npz", {"x": np.arange(100)})
        data = bytearray((here / "a.npz").read_bytes())
        for place in (data.index(b"PK\3\4") + 14, data.index(b"PK\1\2") + 16):
            data[place] ^= 1
    else:
        npzkit.save("a.npz", {"x": np.arange(100)})
        data = (here / "a.npz").read_bytes()
        data = data.replace(np.int64(50).tobytes(), np.int64(5000).tobytes(), 1)
    (here / "a.npz").write_bytes(data)
    assert cli("extract", "a.npz", "--format", kind).code == 1
    assert cli("extract", "a.npz", "--format", kind, "--no-verify").code == 0
    found = np.load("x.npy") if kind == "npy" else np.loadtxt("x.csv")
    assert len(found) == 100
    assert (found == np.arange(100)).sum() >= 99


def test_joining(cli, here):
    """--join, --stack, --axis and --skip, for a pattern or files."""
    for run in range(3):
        npzkit.save(f"run{run}.npz", {"x": np.full((run + 1, 2), run)})
    result = cli("pack", "all.npz", "run?.npz", "--join")
    assert (result.code, result.err) == (0, "")
    with npzkit.open("all.npz") as npz:
        assert npz["x"][:, 0].tolist() == [0, 1, 1, 2, 2, 2]
    assert cli("pack", "b.npz", "run0.npz", "run1.npz", "--stack").code != 0
    assert cli("pack", "b.npz", "run0.npz", "run0.npz", "--stack").code == 0
    assert cli("pack", "c.npz", "run1.npz", "run1.npz", "--join", "--axis", "1").code == 0
    with npzkit.open("b.npz") as b, npzkit.open("c.npz") as c:
        assert (b["x"].shape, c["x"].shape) == ((2, 1, 2), (2, 4))
    npzkit.save("run1.npz", {"x": np.zeros(3)})
    refused = cli("pack", "d.npz", "run?.npz", "--join")
    assert (refused.code, "Leave the file out: --skip does" in refused.err) == (2, True)
    result = cli("pack", "d.npz", "run?.npz", "--join", "--skip")
    assert result.code == 0
    assert "run1.npz" in result.out + result.err


def test_joining_scalars(cli, here):
    """What the error names at a prompt works: --stack, and --skip, which names what it leaves."""
    for run in range(2):
        npzkit.save(f"{run}.npz", {"x": np.arange(3) + run, "B": np.float64(run)})
    refused = cli("pack", "all.npz", "?.npz", "--join")
    assert (refused.code, "key 'B'" in refused.err) == (2, True)
    assert (
        "Stack the files with --stack, or leave out such arrays, and files that do not fit, with --skip."
        in refused.err
    )
    assert cli("pack", "stacked.npz", "?.npz", "--stack").code == 0
    found = cli("pack", "all.npz", "?.npz", "--join", "--skip", "--json")
    assert (found.code, found.err) == (0, "npzkit: left out 'B': it has no axis 0\n")
    assert found.json()["notes"] == ["left out 'B': it has no axis 0"]
    npzkit.save("1.npz", {"x": np.arange(5), "B": 1.0})
    told = cli("pack", "rows.npz", "?.npz", "--stack").err
    assert told.endswith("they differ: --join --axis 0, without --stack.\n")
    assert cli("pack", "rows.npz", "?.npz", "--join", "--axis", "0", "--skip").code == 0
    with npzkit.open("rows.npz") as npz:
        assert npz["x"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_notes_in_json(cli, here):
    """The JSON of `pack` and `add` has what they note."""
    npzkit.save("a.npz", {"x": np.arange(3), "p": {"note": "cold"}})
    npzkit.save("b.npz", {"y": np.arange(3), "p": {"note": "hot"}})
    note = (
        "a.npz: nested data becomes plain keys, without 'p/note': the new archive has other data "
        "at 'p'"
    )
    assert cli("pack", "c.npz", "b.npz", "a.npz", "--json").json()["notes"] == [note]
    assert cli("add", "b.npz", "a.npz", "--json").json()["notes"] == [note]
    assert "notes" not in cli("add", "b.npz", "new=a.npz").out


def test_a_key_in_the_place_of_a_file(cli, here):
    """The error has the command that copies arrays."""
    npzkit.save("big.npz", {"time": np.ones(2), "temp": np.ones(3)})
    found = cli("pack", "two.npz", "big.npz", "time", "temp")
    assert found.code == 2
    command = re.search(r"npzkit (convert big\.npz two\.npz time temp)\.", found.err)[1]
    assert cli(*command.split()).code == 0
    with npzkit.open("two.npz") as npz:
        assert npz.files == ["time", "temp"]
    assert "convert" not in cli("pack", "two.npz", "big.npz", "lacking.npy").err


def test_joining_arrays_of_objects(cli, here):
    """The error names --skip, which leaves them out of all files, with a note."""
    for run in range(2):
        np.savez(f"{run}.npz", x=np.arange(3), o=np.array([{}, None]))
    refused = cli("pack", "all.npz", "?.npz", "--join")
    assert refused.err.endswith("Choose the arrays that are to be joined: --key KEY.\n")
    assert cli("pack", "x.npz", "?.npz", "--join", "-k", "x").code == 0
    assert cli("pack", "y.npz", "?.npz", "-k", "x").code == 0
    os.remove("x.npz")
    os.remove("y.npz")
    found = cli("pack", "all.npz", "?.npz", "--join", "--skip")
    assert (found.code, found.err) == (0, "npzkit: left out 'o': it holds Python objects\n")
    with npzkit.open("all.npz") as npz:
        assert npz.files == ["x"]


def test_joining_damaged_files(cli, here):
    """The error names the damaged file, and the command that saves the rest of it."""
    for run in range(2):
        npzkit.save(f"{run}.npz", {"x": np.arange(3)})
    damage("1.npz", "x")
    found = cli("pack", "all.npz", "?.npz", "--join")
    assert found.code == 1
    assert re.search(r"without it; npzkit repair \S*1\.npz -o OTHER saves its sound", found.err)
    assert not os.path.exists("all.npz")
    found = cli("pack", "all.npz", "?.npz", "--join", "--skip")
    assert (found.code, "left out 1.npz: the data is damaged: its CRC-32" in found.err) == (0, True)


def test_what_skip_leaves_out(cli, here):
    """Notes are in the prompt's words: the command that saves sound arrays, and the option."""
    npzkit.save("a.npz", {"a": np.arange(3)})
    npzkit.save("b.npz", {"b": np.arange(3), "sound": np.ones(2)})
    damage("b.npz", "b")
    np.save("o.npy", np.array([{}], object))
    found = cli("pack", "all.npz", "a.npz", "b.npz", "o.npy", "--skip")
    assert (found.code, found.out[:16]) == (0, "all.npz: 1 array")
    assert found.err.splitlines() == [
        "npzkit: left out b.npz with all its arrays: the data is damaged: its CRC-32 differs "
        "(key 'b'); npzkit repair FILE -o OTHER saves the sound ones",
        "npzkit: left out o.npy: Object arrays cannot be loaded without --allow-pickle",
    ]
    assert "with all their arrays" in " ".join(cli("pack", "--help").out.split())
