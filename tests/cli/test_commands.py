"""The command line: the tour runs, and failures are one line."""

from __future__ import annotations

import ast
import errno
import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import npzkit
import npzkit.files.disk
import numpy as np
import pytest
from deep import DEEP
from npzkit.cli import pages
from npzkit.cli.commands import npzkit_command
from systems import need_library_of

TOO_LONG = (2, "Check the name") if os.name == "nt" else (2, "shorter name")
"""Exit code and remedy for a name that is too long: Windows says that there is no such file."""
CLOSED_STREAMS = ["<&-", "<&- >&- 2>&-", *([">&-", "2>&-"] if DEEP else [])]


def keys_of(path):
    with npzkit.open(path) as npz:
        return npz.files


@pytest.mark.slow
def test_the_tour_runs_on_real_data():
    """The tour that the README begins with reads, bundles, maps, crashes and damages."""
    command = [sys.executable, Path(__file__).parents[1] / "tour.py"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
    for text in (
        "labelled 0",
        "np.load reads it: yes",
        "has shape (10, 64, 3): yes",
        "the file still has: images",
        "ChecksumError",
    ):
        assert text in found.stdout


@pytest.mark.slow
def test_without_a_command(process):
    """npzkit alone shows what it can do, a line for each command, and is wrong usage."""
    found = process()
    assert found.code == 2
    for name in ("diff", "info", "ls", "verify"):
        (line,) = re.findall(rf"^  {name} .*$", found.out, re.MULTILINE)
        assert not line.endswith("...")


def test_version(cli):
    """--version tells the package's version."""
    assert cli("--version").out.strip().endswith(npzkit.__version__)


def test_a_command_that_is_misspelt(cli):
    """The one that was probably meant is named, or those that there are."""
    assert "No such command: 'rapack'. Did you mean 'repack'?" in cli("rapack").err
    assert "There are add, ckpt, " in cli("xyzzy").err
    assert "No such topic: 'trainng'. Did you mean 'training'?" in cli("help", "trainng").err
    assert "There are api, append, " in cli("help", "xyzzy").err
    assert cli("--version").code == 0


@pytest.mark.parametrize(
    ("arguments", "close", "command"),
    [
        (["ckpt", "prune", "run", "--lowest", "loss"], "--lowest", "ckpt prune"),
        (["ls", "a.npz", "--sort"], "--sort", "ls"),
        (["ckpt", "ls", "run", "--jsn"], "--json", "ckpt ls"),
        (["show", "a.npz", "x", "--stat"], "--stats", "show"),
        (["show", "--stat=1", "a.npz"], "--stats", "show"),
    ],
)
def test_an_option_that_cannot_be_used(cli, arguments, close, command):
    """The message names a close option, and the help of the command that was typed."""
    found = cli(*arguments)
    assert (found.code, close in found.err) == (2, True)
    assert found.err.endswith(f" Try: npzkit {command} --help\n")


def test_commands_and_options_of_another_name(cli):
    """What is called otherwise elsewhere is answered with the command that does it."""
    assert "'stats'. Did you mean 'show --stats'? Try: npzkit" in cli("stats", "a.npz").err
    assert "'rename'. Did you mean 'mv'?" in cli("rename", "a.npz").err
    for name in ("ls", "info", "diff"):
        told = "No such option '--stats'. Did you mean 'npzkit show --stats'?"
        assert told in cli(name, "--stats", "a.npz").err


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra(missing):
    """Without click or rich the command says what to install, and nothing else."""
    code = f"import sys; sys.modules[{missing!r}] = None; from npzkit.__main__ import main; main()"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert found.stderr.strip().endswith('python -m pip install "npzkit[cli]"')
    assert len(found.stderr.splitlines()) == 1


def test_verify_tells_and_exits_by_what_it_found(cli, fixtures, tmp_path):
    """A sound archive exits with 0, a damaged one with 1, a missing one with 2, each in a line."""
    good = cli("verify", fixtures / "numpy_savez.npz")
    assert (good.code, good.err) == (0, "")
    assert "sound, 3 members" in good.out
    (tmp_path / "bad.npz").write_bytes(b"<html>")
    bad = cli("verify", tmp_path / "bad.npz", "--json")
    assert bad.code == 1
    assert bad.json()[0]["ok"] is False
    missing = cli("verify", tmp_path / "no.npz")
    assert missing.code == 2
    assert missing.err.count("\n") == 1


@pytest.mark.remedy("Remove them: npzkit.repair(path).")
def test_repair_and_repack(cli, tmp_path, remedies_met):
    """A torn end is cut off; what is lost exits with 1; repack tells the sizes."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(1000), "y": np.arange(1000)})
    whole = path.read_bytes()
    path.write_bytes(whole + b"torn")
    remedies_met.texts += [row.remedy for row in npzkit.verify(path).rows]
    assert cli("verify", path, "--json").json()[0]["rows"][0]["remedy"] == (
        f"Remove them: npzkit repair {path}."
    )
    assert "4 bytes after the last commit" in cli("repair", path).out
    assert path.read_bytes() == whole
    path.write_bytes(whole[:12_000])
    found = cli("repair", path, "-o", tmp_path / "b.npz", "--keep-partial", "mask", "--json")
    assert found.code == 1
    assert found.json()[0]["kept"] == ["x", "y"]
    assert "->" in cli("repack", tmp_path / "b.npz", "-c", "deflated").out
    with npzkit.open(tmp_path / "b.npz") as npz:
        assert npz.info("x").method == "deflated"


@pytest.mark.slow
def test_repack_takes_options(cli, tmp_path):
    """--level and --no-seekable are repack's own."""
    path = str(tmp_path / "a.npz")
    npzkit.save(path, {"x": np.arange(300_000) % 1000})
    sizes = {}
    for method, level in (("deflated", "1"), ("deflated", "9"), ("zstd", "-7"), ("zstd", "8")):
        assert cli("repack", path, "-c", method, "--level", level).code == 0
        with npzkit.open(path) as npz:
            assert npz.info("x").method == method
        sizes[level] = os.path.getsize(path)
        npzkit.save(path, npzkit.load_tree(path))
    assert sizes["9"] < sizes["1"]
    assert sizes["8"] < sizes["-7"]
    for option, seekable in (("--seekable", True), ("--no-seekable", False)):
        assert cli("repack", path, "-c", "deflated", option).code == 0
        with npzkit.open(path) as npz:
            assert npz.info("x").seekable is seekable
        npzkit.save(path, npzkit.load_tree(path))


def test_a_file_may_be_called_like_an_option(cli, tmp_path, monkeypatch):
    """Behind -- all are names, --debug too."""
    npzkit.save(tmp_path / "--debug", {"x": np.arange(3)})
    monkeypatch.chdir(tmp_path)
    found = cli("ls", "--", "--debug")
    assert (found.code, found.err) == (0, "")
    assert "int64" in found.out


@pytest.mark.skipif(os.name == "nt", reason="no file of Windows has such a name")
def test_paths_do_not_control_the_terminal(cli, tmp_path):
    """A file of any name, which a shell may have completed, is named on one plain line."""
    path, other = str(tmp_path / "a\x1b[31m.npz"), str(tmp_path / "b\x1b[2J\n.npz")
    npzkit.save(path, {"x": np.arange(3)})
    for arguments in (
        ["verify", path], ["repair", path], ["repair", path, "-o", other], ["repack", path],
        ["repack", path, "-o", other, "--overwrite"],
    ):  # fmt: skip
        found = cli(*arguments)
        assert (found.code, found.err) == (0, "")
        assert found.out.replace("\n", "").isprintable()


@pytest.mark.slow
def test_wrong_usage_is_one_line_and_debug_a_trace(cli, process, tmp_path):
    """A wrong option names the help; --debug shows where an error came from."""
    wrong = cli("repack", "--level", "x", "a.npz")
    assert wrong.code == 2
    assert wrong.err.count("\n") == 1
    (tmp_path / "a.npz").write_bytes(b"")
    short = cli("repack", tmp_path / "a.npz")
    assert (short.code, short.err.count("\n")) == (1, 1)
    assert "Traceback" in process("repack", tmp_path / "a.npz", "--debug").err


@pytest.mark.parametrize("command", ["repair", "repack"])
def test_no_output_is_replaced_unasked(cli, tmp_path, command):
    """repair and repack write over another file only with --overwrite; repair never over FILE."""
    path, other = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"x": np.arange(3)})
    other.write_bytes(b"precious")
    refused = cli(command, path, "-o", other)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "--overwrite" in refused.err
    assert other.read_bytes() == b"precious"
    assert cli(command, path, "-o", other, "--overwrite").code == 0
    assert np.load(other)["x"].tolist() == [0, 1, 2]
    found = cli(command, path, "-o", path, "--overwrite")
    assert found.code == (0 if command == "repack" else 2)
    assert "in place by npzkit rm" in found.err or command == "repack"


def test_verify_reads_a_pipe(cli, tmp_path):
    """- is the standard input: a file, or what another program writes."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    data = (tmp_path / "a.npz").read_bytes()
    sound = cli("verify", "-", data=data)
    assert (sound.code, sound.err) == (0, "")
    assert "sound, 1 member" in sound.out
    damaged = cli("verify", "-", data=data[:-60])
    assert damaged.code == 1
    assert "NOT sound" in damaged.out
    with open(tmp_path / "a.npz", "rb") as file:
        assert cli("verify", "-", stdin=file).code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["add", "-", "x=a.npy"], ["convert", "-", "a.h5"],
        ["convert", "a.npz", "-"], ["mv", "-", "x", "y"], ["repack", "-"],
        ["repack", "a.npz", "-o", "-"], ["repair", "-"], ["rm", "-", "x"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_commands_that_need_a_file(cli, tmp_path, monkeypatch, arguments):
    """Commands that change or write a file refuse ``-``."""
    monkeypatch.chdir(tmp_path)
    npzkit.save("a.npz", {"x": np.arange(3)})
    found = cli(*arguments)
    assert (found.code, len(found.err.splitlines())) == (2, 1)
    assert "this command needs a file" in found.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="takes half a minute under wine")
def test_counts_have_their_thousands_parted(cli, tmp_path):
    """Numbers of members and arrays are read as easily as sizes are."""
    npzkit.save(tmp_path / "a.npz", dict.fromkeys(map(str, range(1000)), np.int8(1)))
    assert "1,000 members" in cli("verify", tmp_path / "a.npz").out
    assert "1,000 members" in cli("repair", tmp_path / "a.npz").out
    assert "1,000 files" in cli("extract", tmp_path / "a.npz", "-o", tmp_path / "out").out
    assert "1,000 arrays" in cli("pack", tmp_path / "b.npz", tmp_path / "out").out


@pytest.mark.parametrize("columns", ["60", "80"])
def test_every_command_has_a_whole_sentence(cli, columns):
    """The list of commands shows complete sentences, on a narrow terminal too."""
    text = cli("--help", env={"COLUMNS": columns}).out
    assert max(map(len, text.splitlines())) <= int(columns)
    assert "..." not in text.replace("[ARGS]...", "")
    assert "List the arrays of FILEs, or the archives in folders." in " ".join(text.split())


def test_the_list_of_commands_has_groups(cli):
    """Each has six commands at most, and all commands are in one."""
    sections = cli("--help").out.split("\n\n")
    groups = {part.split(":")[0]: re.findall(r"^  (\w+) ", part, re.M) for part in sections[4:]}
    assert list(groups)[:5] == ["Look", "Check", "Change", "Convert", "Training"]
    assert max(map(len, groups.values())) <= 6
    assert sorted(chain(*groups.values())) == npzkit_command.list_commands(None)


WIDE = """# Title
![a picture](x.svg)
```sh
npzkit ls a.npz       # a comment that does not fit on such a narrow terminal
```
| name | what | the rest of it |
|---|---|---|
| `one` | a first cell that is very long | and a second_one_with_a_word_that_is_long, [too](x.md) |
"""


@pytest.mark.parametrize("width", [60, 200])
def test_a_page_fits_the_terminal(cli, monkeypatch, width):
    """A comment behind a command then comes before it, and the cells of a table are folded."""
    monkeypatch.setitem(pages._PAGES, "parts", WIDE)
    text = cli("help", "parts", env={"COLUMNS": str(width)}).out
    assert "picture" not in text
    assert max(map(len, text.splitlines())) <= width
    comment = "# a comment that does not fit on such a narrow terminal"
    lines = [line.strip() for line in text.splitlines()]
    assert (f"npzkit ls a.npz       {comment}" in lines) == (width == 200)
    assert (comment in lines and "npzkit ls a.npz" in lines) == (width == 60)
    assert ("second_one_with_a_word_that_is_long" in text) == (width == 200)
    # The rest of a word that is cut is on the next line.
    end = "".join(line.split("  ")[-1] for line in lines).replace(" ", "")
    assert end.endswith("word_that_is_long,too(npzkithelpx)")


@pytest.mark.parametrize("topic", pages._PAGES)
def test_the_code_of_a_page_can_be_copied(cli, topic):
    """Of 80 columns, too: no line is broken, and comments that do not fit are above the code."""
    shown = [line.rstrip() for line in cli("help", topic, env={"COLUMNS": "80"}).out.splitlines()]
    page = pages._PAGES[topic]
    # Rich leaves a column free there.
    width = 79 if os.name == "nt" else 80
    blocks = (text.split("```")[1::2] for text in (page, pages.fitting(page, width)))
    for block, fitted in zip(*blocks, strict=True):
        lines = [line.expandtabs(4).rstrip() for line in fitted.strip().splitlines()[1:]]
        assert lines in [shown[at : at + len(lines)] for at in range(len(shown))], lines
        if block.startswith("py"):
            code, copied = (ast.parse(text.partition("\n")[2]) for text in (block, fitted))
            assert ast.dump(code) == ast.dump(copied)


def test_a_word_that_is_no_page(cli):
    """help lists the pages that have it, with the headings of the sections."""
    rows = dict(line.split(maxsplit=1) for line in cli("help", "MATLAB").out.splitlines())
    assert "Pack, add and convert" in rows["shell"]
    assert "training" not in rows


def test_reading_shows_what_can_be_read(cli, tmp_path, monkeypatch):
    """Files are opened, not asked for permissions: the system then says why one cannot be read."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    monkeypatch.setattr("os.access", lambda *args, **options: False)
    for arguments in (["ls"], ["info"], ["verify"], ["show", "x"], ["mv", "x", "y"]):
        name, *others = arguments
        assert cli(name, path, *others).code == 0
    assert cli("diff", path, path).code == 0


@pytest.mark.parametrize("name", ["a.npy", "a.h5", "a.safetensors", "a.mat", "a.zarr"])
def test_errors_name_no_temporary_file(cli, tmp_path, monkeypatch, name):
    """Where a file cannot take its place, the path that was asked for is named."""
    need_library_of(name)
    monkeypatch.chdir(tmp_path)
    long = "n" * 300
    if name == "a.npy":
        npzkit.save("a.npz", {long: np.arange(3)})
        # Other keys would be extracted. Windows does not say that a name is too long.
        found, code = cli("extract", "a.npz"), 2 if os.name == "nt" else 1
    else:
        npzkit.save("a.npz", {"x": np.ones((3, 3))})
        found, code = cli("convert", "a.npz", long + name), TOO_LONG[0]
    assert (found.code, len(found.err.splitlines())) == (code, 1)
    assert long in found.err
    assert ".tmp" not in found.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="redirections of a POSIX shell")
@pytest.mark.parametrize("redirection", CLOSED_STREAMS)
def test_closed_streams(cli, tmp_path, redirection):
    """A stream that is closed is no error, and nothing is written into a file in its place."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    command = f'"{sys.executable}" -m npzkit convert a.npz b.h5 {redirection}'
    found = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, b"")
    assert cli("convert", tmp_path / "b.h5", tmp_path / "c.npz").code == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="redirections of a POSIX shell")
def test_a_closed_standard_input_is_empty():
    """Where there is no standard input, - is an archive of no bytes, an error in a line."""
    empty = f'"{sys.executable}" -m npzkit ls - <&-'
    found = subprocess.run(empty, shell=True, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "remedy"),
    [
        (["ls", "no.npz"], 2, "Check the name"),
        (["info", "folder"], 2, "npzkit ls FOLDER lists those in it"),
        (["pack", "n" * 300 + ".npz", "x.npy"], *TOO_LONG),
    ],
)
def test_errors_of_the_system_have_a_remedy(cli, tmp_path, monkeypatch, arguments, code, remedy):
    """What the system says is followed by what to do, in the same line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    np.save("x.npy", np.arange(3))
    found = cli(*arguments)
    assert (found.code, found.err.count("\n")) == (code, 1)
    assert remedy in found.err


needs_full_disk = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux has a disk that is always full"
)


def on_full_disk(folder, arguments, *streams):
    """Run a command whose named streams cannot be written."""
    npzkit.save(folder / "a.npz", {"x": np.arange(3)})
    with open("/dev/full", "wb") as full:
        kinds = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **dict.fromkeys(streams, full),
        }
        command = [sys.executable, "-m", "npzkit", *arguments]
        return subprocess.run(command, cwd=folder, text=True, timeout=60, check=False, **kinds)


@pytest.mark.slow
@needs_full_disk
@pytest.mark.parametrize("arguments", [
    ["ls", "--json", "a.npz"], ["--help"], ["extract", "a.npz", "x", "-o", "-"],
    ["pack", "-", "a.npz"],
], ids=" ".join)  # fmt: skip
def test_a_full_disk(tmp_path, arguments):
    """If the output cannot be written, the command exits with 2 and one line with a remedy."""
    found = on_full_disk(tmp_path, arguments, "stdout")
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert "Free some space" in found.stderr


@pytest.mark.slow
@needs_full_disk
@pytest.mark.parametrize(("name", "code"), [("a.npz", 0), ("none.npz", 2)])
def test_messages_that_cannot_be_written(tmp_path, name, code):
    """A full standard error stream changes neither the output nor the exit code."""
    found = on_full_disk(tmp_path, ["ls", name], "stderr")
    assert (found.returncode, "x" in found.stdout) == (code, code == 0)
    assert on_full_disk(tmp_path, ["ls", name], "stdout", "stderr").returncode == 2


def test_a_full_disk_is_no_fault_of_a_format(cli, tmp_path, monkeypatch):
    """While a file of another format is written, the system's word is given as it is."""
    need_library_of("b.zarr")
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})

    def write(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("npzkit.conversion.zarr_store.write", write)
    found = cli("convert", tmp_path / "a.npz", tmp_path / "b.zarr")
    assert found.code == 2
    told = f"{tmp_path / 'b.zarr'}: {os.strerror(errno.ENOSPC)}"
    assert found.err == f"npzkit: {told}. Free some space, or write to another disk.\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_too_little_memory_is_one_line(process, tmp_path):
    """A command that runs out of memory says so in one line, and exits with 2."""
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (2**29, resource.RLIM_INFINITY))

    with npzkit.NpzWriter(tmp_path / "a.npz") as writer:
        writer.create("x", (2**26,), "f8")
    few = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    found = process("show", tmp_path / "a.npz", "--json", env=few, preexec_fn=limit)
    assert found.code == 2, found
    assert found.err.startswith("npzkit: There is too little memory")
    assert found.err.count("\n") == 1


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "no memory")])
def test_memory_that_a_library_lacks_is_one_line(cli, tmp_path, monkeypatch, error):
    """It makes no difference whether Python or the system refuses memory; --debug shows where."""
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros(3)})

    def fail(*args, **options):
        raise error

    monkeypatch.setattr(npzkit, "verify", fail)
    found = cli("verify", tmp_path / "a.npz")
    assert (found.code, found.out) == (2, "")
    assert "here is too little memory. Close other programs" in found.err
    with pytest.raises(type(error)):
        cli("verify", tmp_path / "a.npz", "--debug")


@pytest.fixture
def layers(tmp_path):
    """An archive with folders of keys, and a key that is spelled like a pattern."""
    path = tmp_path / "layers.npz"
    arrays = {f"{part}/{n}/bias": np.full(2, n) for part in ("ema", "net") for n in range(2)}
    npzkit.save(path, arrays | {"net[x]": np.arange(3), "x": np.zeros(1)})
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["ema/*"], ["ema/0/bias", "ema/1/bias"]),
        (["*/1/bias", "x"], ["ema/1/bias", "net/1/bias", "x"]),
        (["net/0"], ["net/0/bias"]),
        (["net[x]"], ["net[x]"]),
        (["x.npy"], ["x"]),
    ],
)
def test_keys_may_be_patterns(cli, layers, tmp_path, names, expected):
    """extract, convert, diff, show, verify, ls and rm take keys, folders of keys and patterns."""
    empty = tmp_path / "empty.npz"
    npzkit.save(empty, {})
    rows = cli("diff", layers, empty, *names, "--json").json()["rows"]
    assert sorted(row["key"] for row in rows) == expected
    found = cli("convert", layers, tmp_path / "c.npz", *names, "--json").json()
    assert sorted(found["keys"]) == expected
    files = cli("extract", layers, *names, "-o", tmp_path / "out", "--json").json()["files"]
    assert sorted(files) == expected
    for command in (["ls", "--json"], ["verify", "-v"]):
        keys = [word for name in names for word in ("-k", name.removesuffix(".npy"))]
        assert cli(*command, layers, *keys).code == 0
    shown = cli("show", layers, names[0], "--json").json()
    assert [each["key"] for each in (shown if isinstance(shown, list) else [shown])]
    assert cli("rm", layers, *names).code == 0
    with npzkit.open(layers) as npz:
        assert not set(expected) & set(npz)
        assert len(npz) == 6 - len(expected)


def test_a_pattern_that_matches_nothing(cli, layers):
    """It is an error that names it, and nothing is removed or written."""
    for arguments in (["rm", layers, "a*"], ["extract", layers, "a*"], ["show", layers, "a*"],
                      ["verify", layers, "-k", "a*"], ["diff", layers, layers, "a*"]):  # fmt: skip
        found = cli(*arguments)
        assert found.code != 0
        assert "no array matches 'a*'" in found.err
    with npzkit.open(layers) as npz:
        assert len(npz) == 6


@pytest.mark.parametrize("nothing", ["", "/"])
def test_an_empty_key_names_nothing(cli, layers, nothing):
    """An unset variable of a shell removes no arrays."""
    assert cli("rm", layers, nothing).code != 0
    with npzkit.open(layers) as npz:
        assert len(npz) == 6


def test_a_folder_that_is_spelled_like_a_pattern(cli, tmp_path):
    """Only what is in it is removed, and not what the pattern would match."""
    npzkit.save(tmp_path / "a.npz", {"list[0]/w": np.ones(1), "list0": np.ones(1)})
    assert cli("rm", tmp_path / "a.npz", "list[0]").code == 0
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert list(npz) == ["list0"]


def test_help_prints_the_examples(cli):
    """Each is listed with what it does, and printed as it is, so that it can be saved and run."""
    folder = Path(npzkit.__file__).parent / "guide" / "examples"
    names = sorted(path.stem for path in folder.glob("*.py"))
    wide = {"COLUMNS": "200"}
    listed = cli("help", env=wide).out.splitlines()
    assert [line.split()[0] for line in listed[-len(names) :]] == names
    for name in names:
        assert cli("help", name).out == (folder / f"{name}.py").read_text(encoding="utf-8")
    assert "npzkit help train_torch" in cli("help", "training", env=wide).out
