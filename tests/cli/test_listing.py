"""ls, tree and info: what is in an archive, told from headers alone."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import zipfile
from datetime import datetime
from pathlib import Path

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore
from systems import needs_symlinks

EVIL = "a\x9b31m\u202e[red]x[/red]"
"""A name with a terminal's escape, a change of direction, and markup of rich's."""


@pytest.fixture
def model(tmp_path):
    """A path with arrays of several kinds, attributes and metadata."""
    path = tmp_path / "model.npz"
    with npzkit.NpzWriter(path, metadata={"step": 7, "about": "a\x9bb"}) as w:
        w.add("layer/0/w", np.zeros((100, 200)), attrs={"unit": "m"})
        w.add("layer/0/b", np.zeros(200, "f4"), compression="deflated")
        w["top"] = np.arange(3)
    return path


def lines(result):
    return result.out.splitlines()


def test_ls_tells_each_array(cli, model):
    """A line for each array, then totals and metadata; -l has marks of what can be done with it."""
    result = cli("ls", model)
    assert (result.code, result.err) == (0, "")
    heading, first, _, _, totals, metadata = lines(result)
    assert heading.split() == ["key", "shape", "dtype", "size"]
    assert first.split() == ["layer/0/w", "(100,", "200)", "float64", "156.2", "KiB"]
    rows = cli("ls", "-l", model, env={"COLUMNS": "200"}).out.splitlines()
    assert rows[0].split()[4:7] == ["ratio", "method", "asm"]
    assert [row.split()[8 if "(100" in row else 7] for row in rows[1:3]] == ["stored", "deflated"]
    assert totals.startswith("3 members, 157.1 KiB in memory, ")
    assert metadata == r'metadata: {"step": 7, "about": "a\x9bb"}'


def test_ls_sorts_and_chooses(cli, model):
    """--sort puts the largest first, --key leaves out what is not like it."""
    keys = [line.split()[0] for line in lines(cli("ls", model, "--sort", "size"))[1:4]]
    assert keys == ["layer/0/w", "layer/0/b", "top"]
    assert cli("ls", model, "--key", "layer").out.count("layer/0/") == 2
    found = cli("ls", model, "--key", "layer/*", "--key", "*/b")
    assert "top" not in found.out
    assert "2 of 3 members" in found.out
    assert [m["key"] for m in cli("ls", model, "--sort", "key", "--json").json()[0]["members"]] == [
        "layer/0/b", "layer/0/w", "top"
    ]  # fmt: skip


@pytest.mark.parametrize("options", [(), ("--json",), ("--tree",)])
def test_ls_of_a_key_that_does_not_exist(cli, model, options):
    """A key or a pattern that nothing matches is an error, as of show; of a folder, in no file."""
    for key, message in (("nokey", "no array named 'nokey'"), ("t?", "no array matches 't?'")):
        found = cli("ls", model, "-k", "top", "-k", key, *options)
        assert (found.code, message in found.err) == (2, True)
        found = cli("ls", model.parent, "-k", "top", "-k", key, *options)
        assert found.code == 2
        assert found.err == f"npzkit: no array of these files matches {key!r}.\n"


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_of_several_files_those_without_the_key_are_passed_over(cli, model, command):
    """Only those with a match are shown, also in JSON; it is an error only if none has it."""
    npzkit.save(model.parent / "other.npz", {"x": np.zeros(2)})
    found = cli(command, model.parent, "-k", "layer/*", "-k", "top")
    assert (found.code, found.err, "other.npz" in found.out) == (0, "", False)
    if command == "verify":
        assert found.out == "2 files: 1 sound, 1 without these keys\n"
    (document,) = cli(command, model.parent, "-k", "top", "--json").json()
    assert document["path"] == str(model)
    assert cli(command, model.parent, "-k", "top", "-k", "x").code == 0
    found = cli(command, model.parent, "-k", "top", "-k", "n*", "--json")
    assert (found.code, len(found.json())) == (2, 1)
    assert found.err == "npzkit: no array of these files matches 'n*'.\n"


def test_a_pattern_of_keys_in_the_place_of_a_file(cli, model):
    """The message names the option, if the command has it."""
    for command in ("ls", "verify"):
        found = cli(command, model, "layer/*")
        assert found.code == 2
        assert found.err.endswith(". If it is a pattern of keys, it comes after -k.\n")
    assert "-k" not in cli("ls", model, "layer/x").err
    assert "-k" not in cli("repack", model, "layer/*").err


@pytest.mark.parametrize("command", ["ls", "show"])
def test_a_pattern_of_files_in_quotes(cli, model, command):
    """The message says why the files that match are not found."""
    found = cli(command, model.parent / "*.npz")
    assert found.code == 2
    assert "it is in quotes. ls, verify and pack take several" in found.err
    found = cli("show", model, model, model, "key")
    assert (found.code, "ls, verify and pack take several" in found.err) == (2, True)


def test_a_key_in_the_place_of_a_file(cli, model):
    """The message names the option for arrays, and show for values of nested data."""
    for key in ("top", "layer", "layer/0"):
        found = cli("verify", model, key)
        assert found.err.endswith(f". If it is a key of '{model}', it comes after -k.\n")
        assert cli("verify", model, "-k", key).code == 0
    npzkit.save(model, {"opt": {"name": "sgd", "m": np.ones(2)}, "a.b": np.ones(1)})
    told = cli("ls", model, "opt/name").err.rpartition("see its value: npzkit ")[2]
    words = told.split() if os.name == "nt" else shlex.split(told)
    assert cli(*words).out == "'sgd'\n"
    assert "-k" in cli("ls", model, "a").err
    assert "key" not in cli("ls", model, "op").err


def test_ls_long_and_json_tell_offsets_and_attributes(cli, model):
    """-l and --json have what info has: places, CRCs, attributes."""
    with npzkit.open(model) as npz:
        info = npz.info("layer/0/w")
    assert f"{info.crc32:08x}" in cli("ls", "-l", model).out
    assert '{"unit": "m"}' in cli("ls", "-l", model).out
    (archive,) = cli("ls", model, "--json").json()
    assert archive["metadata"] == {"step": 7, "about": "a\x9bb"}
    member = archive["members"][0]
    assert (member["shape"], member["dtype"], member["attrs"]) == (
        [100, 200], "float64", {"unit": "m"}
    )  # fmt: skip
    assert (member["data_offset"], member["mappable"]) == (info.data_offset, True)


def test_ls_of_several_files(cli, model, fixtures):
    """Each file has its name above its table."""
    other = fixtures / "digits.npz"
    assert [line for line in lines(cli("ls", model, other)) if line.endswith(":")] == [
        f"{model}:", f"{other}:"
    ]  # fmt: skip


def test_what_cannot_be_read_is_listed_and_told(cli, fixtures):
    """An encrypted member has a row without a shape; why is said once; the code is 1."""
    path = fixtures / "infozip_encrypted.npz"
    for command in (["ls"], ["ls", "-l"], ["ls", "--tree"]):
        result = cli(*command, path)
        assert result.code == 1
        assert "x" in result.out
        assert "encrypted" in result.err
        assert result.err.count("\n") == 1
    assert "encrypted" in cli("ls", path, "--json").json()[0]["members"][0]["error"]
    assert cli("info", path).out.count("unreadable") == 1
    assert cli("info", path, "x").code == 1


def test_tree_shows_folders_with_sizes(cli, model):
    """Folders end in a slash and have the sum of what is in them; one alone shares its line."""
    assert lines(cli("ls", "--tree", model))[1:] == [
        "├── layer/0/  2 members, 157.0 KiB",
        "│   ├── w  (100, 200) float64  156.2 KiB",
        "│   └── b  (200,) float32  800 B",
        "└── top  (3,) int64  24 B",
    ]
    assert len(lines(cli("ls", model, "--depth", "1"))) == 3


def test_a_tree_per_archive(cli, tmp_path):
    """Archives of a folder are trees one after the other, of the keys that --key names."""
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, **{"enc/w": np.eye(2), "dec/w": np.eye(2)})
    found = cli("ls", "--tree", "--key", "enc", tmp_path)
    first, second = found.out.split("\n\n")
    assert first.splitlines() == [
        f"{tmp_path / 'a.npz'}  1 member, 32 B", "└── enc/  1 member, 32 B",
        "    └── w  (2, 2) float64  32 B",
    ]  # fmt: skip
    assert second == first.replace("a.npz", "b.npz") + "\n"
    for option in ("-l", "--json"):
        assert cli("ls", "--depth", "1", option, tmp_path).code == 2


def test_tree_of_odd_keys(cli, tmp_path):
    """Keys deeper than any recursion, and one that is a folder too, are shown."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("/".join("d" * 20_000), "a", "a/b", "/", "//x", "d/d/y"):
            archive.writestr(name, b"text")
    result = cli("ls", "--tree", path)
    assert result.code == 0
    assert "a  not an array  4 B" in result.out
    assert "└── b  not an array  4 B" in result.out


@pytest.mark.parametrize("command", ["ls", "info"])
def test_the_deepest_metadata_are_printed_as_json(cli, tmp_path, command):
    """Metadata and attributes that can be saved can also be printed, as deep as they are."""
    value: list[object] = []
    for _ in range(498):
        value = [value]
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, metadata={"deep": value}) as w:
        w.add("x", np.ones(2), attrs={"deep": value})
    found = cli(command, path, "--json").json()
    assert (found[0] if command == "ls" else found)["metadata"] == {"deep": value}


def test_info_of_an_archive(cli, model):
    """Sizes, methods, dead space and metadata are told, and what came behind the end."""
    with npzkit.NpzWriter(model, mode="a") as w:
        del w["top"]
    found = cli("info", model)
    assert "members:       2\n" in found.out
    assert "1 stored, 1 deflated" in found.out
    facts = cli("info", model, "--json").json()
    assert facts["dead_size"] > 24
    assert facts["size"] == model.stat().st_size
    assert facts["metadata"]["step"] == 7
    assert facts["counts"]["mappable"] == 1


def test_info_tells_when_a_file_was_modified(cli, tmp_path, monkeypatch):
    """Of an archive, a sharded one and a .npy file: to the minute, in local time; in JSON its zone."""
    moment = datetime(2019, 3, 1, 12, 34, 56).astimezone()
    npzkit.save(tmp_path / "a.npz", {"x": np.ones(2)})
    np.save(tmp_path / "b.npy", np.ones(2))
    with npzkit.ShardedWriter(tmp_path / "c") as writer:
        writer["x"] = np.ones(2)
    for name, file in (("a.npz", "a.npz"), ("b.npy", "b.npy"), ("c", "c/index.npz")):
        os.utime(tmp_path / file, (0, moment.timestamp()))
        assert re.search("modified: +2019-03-01 12:34\n", cli("info", tmp_path / name).out)
        facts = cli("info", tmp_path / name, "--json").json()
        assert datetime.fromisoformat(facts["modified"]) == moment
    assert "modified" not in cli("info", tmp_path / "a.npz", "x").out
    monkeypatch.setattr(os.path, "getmtime", lambda path: 1e12)
    assert "modified" not in cli("info", tmp_path / "a.npz").out


@pytest.mark.parametrize(
    ("name", "key", "texts"),
    [
        (
            "numpy_savez.npz",
            "y",
            ["Fortran", "mappable:     yes", "byte 462"],
        ),
        (
            "numpy_savez_compressed.npz",
            "x",
            ["no: it is deflated", "seekable:     yes\n", "parts:        cheap"],
        ),
        ("sozipfile.npz", "big", ["no: it is deflated", "cheap to read", "(8192, 8)"]),
        ("numpy_object.npz", "objects", ["object", "no: it contains Python objects"]),
        ("zipfile_names.npz", "readme.txt", ["not an array", "6 bytes"]),
        ("numpy_records.npz", "table", ["('pos', '<f8', (3,))"]),
    ],
)
def test_info_of_a_member(name, key, texts, cli, fixtures):
    """Where it lies, who made it, and why it can or cannot be mapped."""
    result = cli("info", fixtures / name, key)
    assert result.code == 0
    for text in texts:
        assert text in result.out
    assert cli("info", fixtures / name, key, "--json").json()["key"] == key


def test_names_from_a_file_do_not_control_the_terminal(cli, tmp_path):
    """Escapes in keys, metadata and attributes are shown, not sent; nothing is markup."""
    path = tmp_path / "a.npz"
    name = "é".ljust(len(EVIL.encode()) - 1, "k")
    with npzkit.NpzWriter(path, metadata={EVIL: EVIL}) as w:
        w.add(name, np.zeros(2, [(EVIL, "i4")]), attrs={"x": EVIL})
    # npzkit itself writes no such key.
    data = path.read_bytes().replace(name.encode(), EVIL.encode())
    path.write_bytes(data.replace(b"NPZX", b"none"))
    for arguments in (["ls", path], ["ls", "-l", path], ["ls", "--tree", path], ["info", path],
                      ["info", path, EVIL], ["ls", path, "--json"], ["info", path, "nothing"]):  # fmt: skip
        result = cli(*arguments)
        assert "[red]x[/red]" in result.out + result.err
        assert (result.out + result.err).replace("\n", "").isprintable()


@pytest.mark.parametrize("command", [["ls"], ["ls", "-l"], ["info"], ["ls", "--tree"]])
def test_a_narrow_terminal(command, cli, model, monkeypatch):
    """On 60 columns no line is longer, and no column is lost."""
    wide = cli(*command, model).out
    monkeypatch.setenv("COLUMNS", "60")
    narrow = cli(*command, model).out
    if "--tree" not in command:
        table = [
            line for line in lines(cli(*command, model)) if not line.startswith(("meta", "3 "))
        ]
        assert max(map(len, table)) <= 60
    assert "".join(narrow.split()).count("float64") == "".join(wide.split()).count("float64")


@pytest.mark.parametrize("columns", [24, 40, 60, 80])
def test_words_are_not_cut(columns, cli, tmp_path, monkeypatch):
    """However narrow the terminal is, a shape, a dtype or a part of a key stays in one piece."""
    path = tmp_path / "a.npz"
    key = "layer/with/a/rather/long/name/weights"
    npzkit.save(path, {key: np.zeros((100, 200, 3), "complex128"), "größe": np.zeros(3)})
    monkeypatch.setenv("COLUMNS", str(columns))
    result = cli("ls", path)
    assert max(map(len, lines(result))) <= columns
    assert "".join(result.out.split()).count("complex128") == 1
    assert "complex128" in result.out
    if columns >= 40:
        assert "(100, 200, 3)" in result.out
    assert all(re.search(rf"(^|[ /]){word}($|[ /])", result.out, re.M) for word in key.split("/"))
    assert ("key:" in result.out) == (columns < 60)


@pytest.mark.slow
def test_ls_tells_the_size_of_the_file(cli, model, process):
    """The size of the file itself is beside the sums, in bytes with --json; of a pipe too."""
    size = os.path.getsize(model)
    shown = npzkit.errors.format_size(size)
    assert re.search(
        rf" in memory, [^,]* \(.* %\) in the file; file size {shown}\n", cli("ls", model).out
    )
    assert cli("ls", model, "--json").json()[0]["size"] == size
    assert process("ls", "-", "--json", input=model.read_bytes()).json()[0]["size"] == size


@pytest.mark.parametrize("command", ["ls", "ls --tree", "info"])
def test_wrong_files(command, cli, tmp_path):
    """A missing file and a folder are wrong usage, an empty file is a problem; each in a line."""
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for path, code in (
        (tmp_path / "no.npz", 2),
        (tmp_path / "folder", 2),
        (tmp_path / "empty.npz", 1),
    ):
        result = cli(*command.split(), path)
        assert (result.code, result.out) == (code, "")
        assert result.err.count("\n") == 1
        assert result.err.startswith("npzkit: ")


@pytest.mark.slow
def test_standard_input(cli, process, model):
    """- is the standard input, a file or a pipe."""
    with open(model, "rb") as file:
        assert "3 members" in cli("ls", "-", stdin=file).out
    # More than a pipe holds.
    assert "3 members" in process("ls", "-", input=model.read_bytes()).out


def test_a_pipe_by_its_path(cli, model, tmp_path):
    """What a shell hands over as <(command) is read as the standard input is."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(model.read_bytes(),))
    writer.start()
    assert "3 members" in cli("ls", tmp_path / "pipe").out
    writer.join()


@pytest.mark.slow
def test_output_that_nobody_reads_on(model, tmp_path):
    """A reader that has enough, such as head, ends a command without a word."""
    path = tmp_path / "many.npz"
    npzkit.save(path, {f"k{n}": np.arange(3) for n in range(5000)})
    command = [sys.executable, "-m", "npzkit", "ls", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_torn_archive_is_a_warning_in_a_line(process, model):
    """What is behind the end is said on the standard error stream; the table is whole."""
    with open(model, "ab") as file:
        file.write(b"torn")
    result = process("ls", model)
    assert result.code == 0
    assert result.err.startswith(f"npzkit: warning: {model}: 4 bytes follow the end")
    assert result.err.count("\n") == 1
    (command,) = re.findall(r"npzkit (verify \S+) says what to do", result.err)
    assert "Remove them: npzkit repair" in process(*command.split()).out
    assert "after the end: 4 bytes" in process("info", model).out.replace("  ", " ")


@pytest.mark.slow
def test_a_warning_names_its_file(process, model, tmp_path):
    """Of several files, each that is torn is named, though the warnings are the same."""
    with open(model, "ab") as file:
        file.write(b"torn")
    other = tmp_path / "other.npz"
    shutil.copy(model, other)
    result = process("ls", model, other)
    assert result.code == 0
    first, second = result.err.splitlines()
    assert first.startswith(f"npzkit: warning: {model}: ")
    assert second.startswith(f"npzkit: warning: {other}: ")


@pytest.mark.slow
def test_an_encoding_that_lacks_letters(process, tmp_path):
    """Letters that the output's encoding lacks are escaped, and branches drawn in ASCII."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"größe/Δ": np.zeros(2), "b": np.zeros(2)})
    for options in ([], ["--tree"]):
        result = process(
            "ls", *options, path, env={"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
        )
        assert result.code == 0
        assert r"\u0394" in result.out
    assert "|-- " in result.out


@pytest.mark.slow
def test_rich_is_not_imported_for_tables(process, model):
    """Reading commands, and the list of all, start without what they do not need."""
    for command in (["ls", os.fspath(model)], ["--help"]):
        code = (
            "import sys; from npzkit.cli.commands import run; "
            f"run({command!r}); "
            "assert 'rich' not in sys.modules"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        assert found.returncode == 0, found.stderr


def test_the_entry_of_a_folder_is_the_folder(cli, fixtures):
    """Zip programs list folders too: --tree shows one as a folder, with nothing nameless in it."""
    lines = cli("ls", "--tree", fixtures / "zipfile_names.npz").out.splitlines()
    assert lines[-2:] == ["├── folder/  1 member, 0 B", "└── readme.txt  not an array  6 B"]


def test_info_tells_of_what_cannot_be_read(cli, fixtures):
    """As ls, info of an archive says what is wrong with a member, and ends with 1."""
    result = cli("info", fixtures / "infozip_encrypted.npz")
    assert result.code == 1
    assert "unreadable:" in result.out
    assert "encrypted" in result.err
    assert result.err.count("\n") == 1


def test_one_bad_file_among_many(cli, model, tmp_path):
    """Files that cannot be read are told in a line each, and the others are listed."""
    (tmp_path / "empty.npz").touch()
    result = cli("ls", tmp_path / "none.npz", model, tmp_path / "empty.npz", model)
    assert result.code == 2
    assert result.out.count("3 members") == 2
    assert not result.out.startswith("\n")
    assert result.err.count("\n") == 2
    assert "none.npz" in result.err
    assert "the file is empty" in result.err
    result = cli("ls", "--json", tmp_path / "empty.npz", model)
    bad, good = result.json()
    assert (result.code, "the file is empty" in bad["error"], "error" in good) == (1, True, False)
    with pytest.raises(npzkit.NpzkitError):
        cli("ls", "--debug", tmp_path / "empty.npz", model)


@pytest.mark.parametrize("command", ["ls", "info"])
def test_the_note_of_nested_data_is_a_sentence(cli, tmp_path, command):
    """People are told what reads it, and see their own metadata; programs get all of it."""
    npzkit.save(tmp_path / "a.npz", {"x": np.eye(2), "n": [None, 1]}, metadata={"step": 7})
    text = cli(command, tmp_path / "a.npz").out
    assert "npzkit.load_tree" in text
    shown = {"ls": "npzkit info shows 2 values", "info": "values:        n/0 null, n/1 1\n"}
    assert shown[command] in text
    assert '{"step": 7}' in text
    assert "npzkit.tree" not in text
    assert "npzkit.tree" in cli(command, tmp_path / "a.npz", "--json").out
    npzkit.save(tmp_path / "b.npz", {"x": np.eye(2)})
    assert "nested:" not in cli(command, tmp_path / "b.npz").out


def test_of_many_values_info_shows_some(cli, tmp_path):
    """Ten, and how many more there are; --json has all."""
    npzkit.save(tmp_path / "a.npz", {"x": np.eye(2), "n": {f"{n}": n for n in range(200)}})
    assert "n/9 9 and 190 more\n" in cli("info", tmp_path / "a.npz").out
    assert "199" in cli("info", tmp_path / "a.npz", "--json").out


def test_tied_tensors_are_listed(cli, tmp_path):
    """ls counts names without an array, and info shows which key has it; damaged notes do no harm."""
    damaged = {"a": ["value"], "b": ["same"]}
    note = {"x": ["as", "tensor"], "y": ["same", "x"], "n": ["value", 1], **damaged}
    npzkit.save(tmp_path / "a.npz", {"x": np.eye(2)}, metadata={"npzkit.tree": note})
    shown = "npzkit info shows 1 value without an array and 1 tied tensor\n"
    assert shown in cli("ls", tmp_path / "a.npz").out
    assert "tied:          y to x\n" in cli("info", tmp_path / "a.npz").out


def test_a_folder_without_an_index(cli, tmp_path):
    """At a prompt, the error names the command that lists checkpoints, and their folder."""
    (tmp_path / "step_notes.txt").write_text("no checkpoint")
    found = cli("info", tmp_path)
    assert found.code == 2
    assert "no index.npz" in found.err
    assert "npzkit ckpt ls FOLDER" in found.err
    assert "CheckpointStore" not in found.err
    with CheckpointStore(tmp_path, durable=False) as store:
        store.save(1, {"w": np.zeros(3)})
    for command in (["info"], ["show"], ["diff", tmp_path]):
        name, *others = command
        found = cli(name, tmp_path, *others)
        assert found.code == 2
        assert f"of checkpoints. npzkit ckpt ls {tmp_path} lists them" in found.err
    assert cli("ckpt", "ls", tmp_path).code == 0


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The working directory: archives, one of them damaged, and a folder of checkpoints."""
    monkeypatch.chdir(tmp_path)
    for name in ("run2", "run10"):
        npzkit.save(f"{name}.npz", {"w": np.zeros(100), "b": np.zeros(3)})
    Path("bad.npz").write_bytes(b"<html>")
    with CheckpointStore("steps", durable=False) as store:
        for step in (1, 2):
            store.save(step, {"w": np.zeros(3)}, metrics={"loss": 1 / step})


def test_ls_of_a_folder_lists_its_archives(cli, runs):
    """A row per archive and .npy file, and per folder that has some; what is bad is reported."""
    os.makedirs("empty")
    np.save("x.npy", np.zeros(3))
    found = cli("ls", ".")
    assert (found.code, found.err.count("bad.npz"), found.err.count("\n")) == (1, 1, 1)
    heading, *rows, total = [line.split() for line in lines(found)]
    assert heading == ["archive", "members", "uncompressed", "in", "file"]
    assert [" ".join(row[:2]) for row in rows] == [
        os.path.join(".", name) for name in ("run2.npz 2", "run10.npz 2", "x.npy 1")
    ] + [f"{os.path.join('.', 'steps', '')} 2"]
    assert rows[-1][2:] == ["checkpoints"]
    assert total[:2] == ["3", "archives,"]
    assert os.path.join(".", "steps", "step_00000001.npz") in cli("ls", "-r", ".").out
    assert lines(cli("ls", "steps", "run2.npz"))[0] == "steps:"
    shutil.move("steps", "empty")
    assert "2 checkpoints" in cli("ls", "empty").out


@needs_symlinks
def test_links_among_folders(cli, runs):
    """A link to itself hides no other folder, and a link to a folder is one."""
    os.remove("bad.npz")
    Path("loop").symlink_to("loop")
    Path("other").symlink_to("steps")
    assert cli("ls", ".").out.count("2 checkpoints") == 2


@needs_symlinks
def test_a_folder_with_a_row_was_looked_at(cli, runs):
    """Those without one are counted: also beside steps, and for arrays, where no folder has one."""
    os.makedirs("other/deep")
    os.symlink("steps", "link")
    told = "npzkit: not looked at: {} (-r looks into {})\n"
    assert cli("ls", ".").err.endswith(told.format("1 folder", "it"))
    linked = "1 linked folder; 2 folders"
    assert cli("ls", ".", "-l").err.endswith(told.format(linked, "them"))
    assert cli("verify", ".").err == told.format(linked, "them")
    os.makedirs("steps/samples")
    np.save("steps/samples/a.npy", np.zeros(3))
    found = cli("ls", "steps")
    assert (lines(found)[-1].partition(",")[0], "samples" in found.out) == ("2 steps", False)
    assert found.err == told.format("1 folder", "it")


def test_ls_of_a_folder_of_checkpoints_lists_the_steps(cli, runs):
    """With their metrics, as npzkit ckpt ls does."""
    found = cli("ls", "steps")
    assert found == cli("ckpt", "ls", "steps")
    assert "loss 0.5" in found.out
    np.save("steps/mean.npy", np.zeros(3))
    assert cli("ls", "steps").out == found.out
    os.remove("steps/step_00000002.npz")
    shutil.copy("run2.npz", "steps/step_other.npz")
    assert "step_other.npz" in cli("ls", "steps").out


@pytest.mark.parametrize("option", ["-l", "--sort=key", "--key=w", "--json"])
def test_ls_lists_the_arrays_of_the_archives_in_a_folder(cli, runs, option):
    """What is asked of arrays is shown for each archive in the folder."""
    os.remove("bad.npz")
    found = cli("ls", option, ".")
    assert found.code == 0
    if option == "--json":
        assert [archive["path"] for archive in found.json()] == [
            f".{os.sep}run2.npz",
            f".{os.sep}run10.npz",
        ]
        assert [len(archive["members"]) for archive in found.json()] == [2, 2]
    else:
        assert [line for line in lines(found) if line.endswith("npz:")] == [
            f".{os.sep}run2.npz:", f".{os.sep}run10.npz:"
        ]  # fmt: skip
        assert found.out.count("\nw ") == 2


def test_a_dtype_has_one_name_everywhere(cli, tmp_path):
    """Lists, summaries, reprs and notebooks name strings and bytes as NumPy prints them."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"text": np.array(["12345678"]), "swapped": np.zeros(2, ">f4")})
    with npzkit.open(path) as npz:
        texts = [npz.summary(), html.unescape(npz._repr_html_())]
        lazy = npz.lazy("text")
        texts += [f"{lazy!r} >f4", html.unescape(lazy._repr_html_()) + ">f4"]
    texts += [cli("ls", path).out, cli("ls", "--tree", path).out]
    texts.append(cli("info", path, "text").out + cli("info", path, "swapped").out)
    assert [text for text in texts if "<U8" not in text or ">f4" not in text] == []


def test_json_of_a_folder_without_archives_is_a_list(cli, tmp_path):
    """A program that parses the output gets JSON, and the exit code says that there is nothing."""
    found = cli("ls", "--json", tmp_path)
    assert (found.code, found.json()) == (2, [])
    assert "has no archives" in found.err


def test_ls_names_what_is_unused(cli, here):
    """Arrays that were removed leave room in the file, which repack gives back."""
    npzkit.save("a.npz", {"big": np.zeros(50_000), "b": np.zeros(60_000), "small": np.ones(3)})
    assert "unused" not in cli("ls", "a.npz").out
    with npzkit.NpzWriter("a.npz", "a", auto_repack=False) as writer:
        del writer["b"]
    unused = re.search(r"^unused: (.*), which npzkit repack frees$", cli("ls", "a.npz").out, re.M)
    assert unused is not None
    assert unused[1].startswith("469")
    cli("repack", "a.npz")
    assert "unused" not in cli("ls", "a.npz").out
