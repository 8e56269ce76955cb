"""Commands that take a .npy file as an archive of what numpy.save wrote to it."""

from __future__ import annotations

import contextlib
import os

import npzkit
import numpy as np
import pytest
from npzkit.datasets.opening import open_any

A = np.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", A)
    return tmp_path


def sparse(path, count):
    """Write a .npy file of zeros that take no room on the disk."""
    with open(path, "wb") as file:
        fields = {"descr": "<f8", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, fields)
        file.truncate(file.tell() + 8 * count)


def test_ls_prints_a_row(cli):
    """Its key is the file's name without the suffix; there is no CRC-32 to show."""
    row = cli("ls", "a.npy").out.splitlines()[1]
    assert row.split() == ["a", "(3,", "4)", "float64", "96", "B"]
    row = cli("ls", "-l", "a.npy").out.splitlines()[1]
    assert row.split()[6:10] == ["233", "%", "stored", "asm"]
    (listed,) = cli("ls", "a.npy", "--json").json()
    (member,) = listed["members"]
    assert (member["key"], member["shape"], member["crc32"]) == ("a", [3, 4], None)
    assert (member["data_offset"], member["checked_parts"]) == (128, False)
    assert cli("ls", "-l", "a.npy").out.splitlines()[1].split()[-3:] == ["128", "C", "-"]


def test_info_prints_the_header(cli):
    """Of the only array, without its key."""
    np.save("f.npy", np.asfortranarray(A))
    found = cli("info", "f.npy").out
    assert "order:        Fortran, by columns" in found
    assert "CRC-32:       none" in found


def test_show_prints_values(cli):
    """All of them, a slice without the key, and statistics."""
    assert cli("show", "a.npy").out == f"{A}\n"
    assert cli("show", "a.npy", "1:, ::2").out == f"{A[1:, ::2]}\n"
    assert cli("show", "a.npy", "a", "0").out == f"{A[0]}\n"
    assert "mean:   5.5" in cli("show", "a.npy", "--stats").out


@pytest.mark.parametrize("command", [["show", "big.npy"], ["show", "big.npy", "[7, 999999999]"]])
def test_a_large_file_is_not_read(cli, command):
    """Of 8 GB, only what is printed is read, and no checksum is named that could be checked."""
    sparse("big.npy", 1_000_000_000)
    found = cli(*command)
    assert (found.code, found.err) == (0, "")
    assert set(found.out) <= set("[0. ]\n")


def test_the_data_of_a_large_file_is_shown(cli):
    """More than is read in one call arrives as it was saved."""
    large = np.arange(1_000_000.0)
    np.save("b.npy", large)
    assert cli("show", "b.npy", "-3:").out == f"{large[-3:]}\n"
    assert cli("convert", "b.npy", "b.npz").code == 0
    assert np.array_equal(np.load("b.npz")["b"], large)


@pytest.mark.remedy("Archives have them: npzkit")
def test_verify_says_what_was_not_checked(cli):
    """It never calls the data sound, and names the command that makes an archive."""
    found = cli("verify", "a.npy")
    first, verdict = found.out.splitlines()
    assert found.code == 0
    assert "no checksum: its header and its size were checked, but its data cannot be" in first
    assert "a.npy: unchecked, 0 of 1 member checked" in verdict
    command = first.rpartition("npzkit ")[2].removesuffix(".")
    assert cli(*command.split()).code == 0
    assert cli("verify", "a.npz").out.startswith("a.npz: sound, 1 member;")
    for files, name in ((["a.npy", "a.npz"], "a.npy"), (["."], os.path.join(".", "a.npy"))):
        found = cli("verify", *files).out
        told = f"2 files: 1 unchecked, 1 sound; .npy files have no checksums: {name}\n"
        assert found == told


def bad_files():
    """Return files that cannot be read, and what the error says."""
    with open("a.npy", "rb") as file:
        data = file.read()
    return {
        "cut": (data[:-10], "too short"),
        "head": (data[:50], "the array header is too short"),
        "magic": (data[:6], "the magic string is too short"),
        "long": (data + b"more", "bytes follow the array"),
        "version": (data[:6] + b"\x09" + data[7:], "format version"),
        "words": (data.replace(b"'shape'", b"'forms'"), "shape"),
        "empty": (b"", "the file is empty"),
    }


@pytest.mark.parametrize("kind", ["cut", "head", "magic", "long", "version", "words", "empty"])
def test_a_bad_file_is_an_error(cli, kind):
    """Each command says what is wrong in a line; verify calls the file not sound."""
    data, what = bad_files()[kind]
    with open("bad.npy", "wb") as file:
        file.write(data)
    for arguments in (["ls"], ["info"], ["show"], ["convert", "bad.npz"], ["extract", "-o", "out"]):
        name, *others = arguments
        found = cli(name, "bad.npy", *others)
        assert (found.code, found.err.count("\n")) == (1, 1), name
        assert what in found.err
        assert "zip archive" not in found.err
        # No row is left of it.
        assert kind not in ("head", "magic") or "repair" not in found.err
    found = cli("verify", "bad.npy")
    assert found.code == 1
    assert what in found.out
    assert "NOT sound" in found.out
    assert not os.path.exists("bad.npz")


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("cut", 2),
        pytest.param("long", 3, marks=pytest.mark.remedy("Save the array without them: npzkit")),
    ],
)
def test_verify_names_what_saves_a_bad_file(cli, kind, rows):
    """The command in its error works, and it names no other, which would fail."""
    with open("bad.npy", "wb") as file:
        file.write(bad_files()[kind][0])
    found = cli("verify", "bad.npy").out
    assert found.count("npzkit ") == 1
    command = found.partition("npzkit ")[2].partition(".\n")[0]
    assert command in cli("show", "bad.npy").err
    assert cli(*command.replace("OTHER", "saved.npz").split()).code == 1
    assert np.array_equal(np.load("saved.npz")["bad"], A[:rows])


def test_the_new_file_in_an_advice_does_not_exist(cli):
    """Beside an archive of that name, it is another one; of a.npz.gz, it has one suffix."""
    assert "npzkit pack a.npz a.npy" in cli("verify", "a.npy").out
    npzkit.save("a.npz", {"x": A})
    found = cli("verify", "a.npy").out
    command = found.partition("npzkit ")[2].partition(".\n")[0]
    assert command == "pack a.new.npz a.npy"
    assert cli(*command.split()).code == 0
    with open("b.npz.gz", "wb") as file:
        file.write(b"\x1f\x8b")
    assert "gzip -dc b.npz.gz > b.npz." in cli("verify", "b.npz.gz").out


def test_pack_knows_files_by_their_bytes(cli):
    """A .npy file without a suffix, as verify names it, and an archive that is named .npy."""
    os.rename("a.npy", "matrix")
    command = cli("verify", "matrix").out.partition("npzkit ")[2].partition(".\n")[0]
    assert cli(*command.split()).code == 0
    assert np.array_equal(np.load("matrix.npz")["matrix"], A)
    os.rename("matrix.npz", "archive.npy")
    assert cli("pack", "b.npz", "archive.npy", "k=archive.npy").code == 0
    assert np.load("b.npz").files == ["matrix", "k/matrix"]


def test_rows_of_a_truncated_file_can_be_saved(cli):
    """The error names the command that saves them."""
    with open("a.npy", "r+b") as file:
        file.truncate(128 + 70)
    command = cli("show", "a.npy").err.rpartition("npzkit ")[2].strip().removesuffix(".")
    assert cli(*command.replace("OTHER", "saved.npz").split()).code == 1
    assert np.array_equal(np.load("saved.npz")["a"], A[:2])


def test_python_objects_need_permission(cli):
    """Without --allow-pickle they are listed, and not unpickled."""
    np.save("o.npy", np.array([{"k": 1}, None], object), allow_pickle=True)
    assert "object" in cli("ls", "o.npy").out
    refused = cli("show", "o.npy")
    assert (refused.code, "--allow-pickle" in refused.err) == (2, True)
    assert cli("show", "o.npy", "--allow-pickle").out == "[{'k': 1} None]\n"
    assert "1 array is a pickle (o)" in cli("verify", "o.npy").out
    assert cli("convert", "o.npy", "o.npz").code == 2
    assert cli("convert", "o.npy", "o.npz", "--allow-pickle").code == 0
    assert npzkit.load_tree("o.npz") == {"o": [{"k": 1}, None]}


def test_several_arrays_in_a_file(cli):
    """They have the keys that pack gives them, and each is read from its place."""
    with open("log.npy", "wb") as file:
        for count in range(3):
            np.save(file, np.full(count + 1, count))
    assert cli("pack", "packed.npz", "log.npy").code == 0
    assert cli("convert", "log.npy", "log.npz").code == 0
    assert cli("diff", "packed.npz", "log.npz").code == 0
    assert cli("diff", "packed.npz", "log.npy").code == 0
    assert cli("show", "log.npy", "log.2").out == "[2 2 2]\n"
    assert np.load("log.npz").files == ["log.0", "log.1", "log.2"]


@pytest.mark.parametrize("more", [[], ["--fast"]])
def test_diff_compares_values(cli, more):
    """Two files of one form are compared, also if only checksums are wanted: they have none."""
    os.mkdir("b")
    np.save("b/a.npy", A + (A == 5))
    found = cli("diff", "a.npy", "b/a.npy", *more)
    assert (found.code, found.out.splitlines()[0]) == (
        1, "a: 1 value differs, by 1 at (1, 1): 5.0 and 6.0"
    )  # fmt: skip
    np.save("b.npy", A)
    assert cli("diff", "a.npy", "b.npy", *more).out.startswith("1 key: no difference")
    np.savez("same.npz", a=A)
    assert cli("diff", "a.npy", "same.npz", *more).code == 0


def test_diff_of_python_objects(cli):
    """The same pickles are no difference, although .npy files have no checksums."""
    for name, text in (("o1", "text"), ("o2", "text"), ("o3", "other")):
        np.save(f"{name}.npy", np.array([1, text], object))
    np.savez("o.npz", o1=np.array([1, "text"], object))
    assert cli("diff", "o1.npy", "o2.npy").code == 0
    assert cli("diff", "o1.npy", "o.npz").code == 0
    assert "the pickles differ" in cli("diff", "o1.npy", "o3.npy").out


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["safetensors", "npz", "h5"])
def test_convert_reads_it(cli, suffix):
    """It is converted to each format that can hold it, and is not one to convert to."""
    pytest.importorskip({"h5": "h5py"}.get(suffix, "numpy" if suffix == "npz" else suffix))
    assert cli("convert", "a.npy", f"b.{suffix}").code == 0
    assert cli("convert", f"b.{suffix}", "c.npz", "-c", "deflated").code == 0
    assert np.array_equal(np.load("c.npz")["a"], A)
    refused = cli("convert", "c.npz", "d.npy")
    assert (refused.code, "npzkit extract" in refused.err) == (2, True)


def test_extract_writes_it(cli):
    """As a table; as .npy, its bytes are the same."""
    assert cli("extract", "a.npy", "-o", "out").code == 0
    with open("a.npy", "rb") as file, open("out/a.npy", "rb") as other:
        assert file.read() == other.read()
    assert cli("extract", "a.npy", "--format", "csv").code == 0
    assert np.array_equal(np.loadtxt("a.csv", delimiter=","), A)


def test_a_pipe(cli, here):
    """From the standard input, the key is numpy.savez's."""
    data = (here / "a.npy").read_bytes()
    assert cli("ls", "-", data=data).out.splitlines()[1].startswith("arr_0")
    assert cli("show", "-", data=data).out == f"{A}\n"
    assert "unchecked" in cli("verify", "-", data=data).out


def test_other_commands_name_pack(cli):
    """What changes archives takes none, and says how to make one of it."""
    for arguments in (["rm", "a.npy", "a"], ["repack", "a.npy"], ["add", "a.npy", "b=a.npy"]):
        found = cli(*arguments)
        assert found.code == 1
        assert "npzkit pack" in found.err


def test_the_page_shows_it():
    """What the page shows of an archive, it shows of the file, and no check of it."""
    from npzkit.viewer.archives import open_archives
    from npzkit.viewer.texts import array_html

    with contextlib.ExitStack() as stack:
        (archive,) = open_archives(stack, ["a.npy"])
        assert (archive.label, archive.npz.files) == ("a.npy", ["a"])
        assert "CRC-32</td><td>none" in array_html(archive.info("a"))
        assert np.array_equal(archive.npz.lazy("a")[1], A[1])
        archive.check("a", lambda: None)
        assert not archive.damaged


def test_what_python_gets():
    """npzkit.open still says that it is no archive; an open file is not written to, nor stale."""
    with pytest.raises(npzkit.errors.ZipFormatError, match=r"bare \.npy"):
        npzkit.open("a.npy")
    with open_any("a.npy") as npz:
        assert np.array_equal(npz.memmap("a"), A)
        with pytest.raises(npzkit.errors.NotMappableError, match="cannot be changed"):
            npz.memmap("a", "r+")
        assert np.array_equal(npz.load_all(verify=True)["a"], A)
        os.utime("a.npy", (1, 1))
        with pytest.raises(npzkit.errors.StaleArchiveError):
            npz.lazy("a")[0]
