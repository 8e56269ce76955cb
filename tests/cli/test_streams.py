"""Commands that read an archive from a pipe: from a copy of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import npzkit
import numpy as np
import pytest
from archives import MAKERS, NOISE, Pipe, files_in, piped
from commits import last_slot

X, Y = np.arange(6.0), np.eye(3)


@pytest.fixture
def edited(tmp_path):
    """An archive in which an array was replaced, one was removed and one renamed."""
    path = tmp_path / "edited.npz"
    npzkit.save(path, {"first": X, "old": X, "was": Y, "twice": X}, metadata={"step": 1})
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        del w["old"]
        w.rename("was", "is")
        w.add("twice", Y, overwrite=True)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ls", "ls --tree"])
@pytest.mark.parametrize("maker", MAKERS)
def test_listing_a_pipe(command, maker, cli, tmp_path):
    """What is listed of a pipe is what is listed of the file."""
    MAKERS[maker](tmp_path / "a.npz")
    data = (tmp_path / "a.npz").read_bytes()
    long = ["-l"] if command == "ls" else []
    expected = cli(*command.split(), *long, tmp_path / "a.npz")
    found = cli(*command.split(), *long, "-", data=data)
    assert found.code == expected.code
    assert found.out.split("\n")[1:] == expected.out.split("\n")[1:]


def test_only_current_arrays_are_listed(cli, edited):
    """Arrays that were replaced, removed or renamed are in the stream, and are not listed."""
    listed = cli("ls", "--json", "-", data=edited.read_bytes()).json()[0]
    expected = cli("ls", "--json", edited).json()[0]
    assert listed["members"] == expected["members"]
    assert (listed["metadata"], listed["size"]) == ({"step": 1}, expected["size"])


def unlocated(text):
    """Return an error without the name of its file."""
    return re.sub(r"\(in '[^']*', at", "(at", text)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::npzkit.errors.TornArchiveWarning")
@pytest.mark.parametrize("lost", [0, 1, 4, 40])
@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_commit_that_lacks_its_end(command, lost, cli, edited):
    """Refused, torn or sound: a pipe lists, warns and fails as the file does."""
    data = bytearray(edited.read_bytes())
    if lost == 40:
        # Neither its mark nor its end is there.
        mark = last_slot(bytes(data))
        data[mark : mark + 32] = bytes(32)
        del data[-lost:]
    else:
        seal = data.rindex(b"PK\5\6")
        data[seal : seal + lost] = bytes(lost)
    edited.write_bytes(data)
    expected, found = cli(command, edited), cli(command, "-", data=bytes(data))
    assert found.code == expected.code
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        named = ours.replace("(standard input)", str(edited))
        named = named.replace("npzkit repair FILE", f"npzkit repair {edited}")
        # What a test gives to a command as its standard input has no name, or that of a temporary file.
        assert unlocated(named) == unlocated(theirs)


def test_large_metadata_of_a_pipe(cli, tmp_path):
    """Metadata that the zip comment cannot hold are listed too."""
    npzkit.save(tmp_path / "a.npz", {"x": X, "noise": NOISE}, compression="deflated",
                metadata={"m": "x" * 70_000})  # fmt: skip
    listed = cli("ls", "--json", "-", data=(tmp_path / "a.npz").read_bytes()).json()[0]
    assert listed["metadata"] == {"m": "x" * 70_000}
    assert [member["seekable"] for member in listed["members"]] == [False, True]


def test_verifying_a_pipe(cli, edited):
    """The verdict and the exit code are those of the file: sound, damaged, torn, truncated."""
    data = edited.read_bytes()
    changed = bytearray(data)
    changed[200] ^= 1
    with npzkit.open(data) as npz:
        changed_now = bytearray(data)
        changed_now[npz.info("is").data_offset] ^= 1
    for bytes_, code in ((data, 0), (changed_now, 1), (data[:-1], 1), (data[:300], 1)):
        edited.write_bytes(bytes_)
        expected = cli("verify", "--json", edited).json()[0]
        found = cli("verify", "--json", "-", data=bytes(bytes_))
        assert found.code == code
        # Commands name a file, and a pipe has no name.
        for row in expected["rows"]:
            words = row["remedy"] and row["remedy"].replace(str(edited), "FILE")
            row["remedy"] = words and words.replace(f"FILE {row['key']} ", "FILE KEY ")
        assert found.json()[0] == {**expected, "path": "-"}


def test_extracting_a_pipe(cli, edited, tmp_path):
    """Only what the archive has at the end appears, under the names that it has there."""
    result = cli("extract", "-", "-o", tmp_path / "out", data=edited.read_bytes())
    assert (result.code, result.err.count("not kept")) == (0, 1)
    assert files_in(tmp_path / "out") == ["first.npy", "is.npy", "twice.npy"]
    assert np.array_equal(np.load(tmp_path / "out" / "twice.npy"), Y)
    assert "3 files" in result.out


def test_extracting_some_keys_of_a_pipe_as_tables(cli, edited, tmp_path):
    """KEYS and --format work as with a file; a key that is missing at the end is an error."""
    data = edited.read_bytes()
    assert cli("extract", "-", "twice", "is", "-o", tmp_path / "out", "--format", "csv",
               data=data).code == 0  # fmt: skip
    assert files_in(tmp_path / "out") == ["is.csv", "twice.csv"]
    missing = cli("extract", "-", "old", "-o", tmp_path / "none", data=data)
    assert missing.code == 2
    assert "'old'" in missing.err
    assert not (tmp_path / "none").exists()


def test_a_pipe_that_is_cut_leaves_nothing(cli, tmp_path):
    """A download that broke off leaves no file, not even of arrays that had come."""
    npzkit.save(tmp_path / "a.npz", {"x": X, "y": Y})
    data = (tmp_path / "a.npz").read_bytes()
    for out in (tmp_path / "new", tmp_path):
        before = files_in(tmp_path)
        result = cli("extract", "-", "-o", out, data=data[:500])
        assert (result.code, result.out) == (1, "")
        assert "cut off" in result.err
        assert files_in(tmp_path) == before


def test_existing_files_are_kept(cli, tmp_path):
    """Without --overwrite nothing is replaced, and nothing appears beside."""
    npzkit.save(tmp_path / "a.npz", {"x": X, "y": Y})
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "y.npy").write_bytes(b"mine")
    assert cli("extract", "-", "-o", tmp_path / "out", data=data).code == 2
    assert files_in(tmp_path / "out") == ["y.npy"]
    assert cli("extract", "-", "-o", tmp_path / "out", "--overwrite", data=data).code == 0
    assert np.array_equal(np.load(tmp_path / "out" / "y.npy"), Y)


def test_damaged_and_unsafe_arrays_of_a_pipe(cli, tmp_path):
    """A damaged array is reported and skipped; a name that leads out of the folder is refused."""
    npzkit.save(tmp_path / "a.npz", {"x": X, "y": Y})
    with npzkit.open(tmp_path / "a.npz") as npz:
        place = npz.info("x").data_offset
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[place] ^= 1
    result = cli("extract", "-", "-o", tmp_path / "out", data=bytes(data))
    assert result.code == 1
    assert "'x'" in result.err
    assert files_in(tmp_path / "out") == ["y.npy"]
    unsafe = (tmp_path / "a.npz").read_bytes().replace(b"y.npy", b"../.y")
    assert cli("extract", "-", "-o", tmp_path / "none", data=unsafe).code == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["ls", "verify", "extract"])
def test_np_savez_to_a_pipe(command, cli, tmp_path):
    """np.savez to a pipe gives all sizes behind the data: such a pipe is copied first, and read."""
    path = tmp_path / "pipe.npz"
    with Pipe(path) as pipe:
        np.savez(pipe, x=X, y=Y)
    folder = ["-o", tmp_path / "out"] if command == "extract" else []
    result = cli(command, "-", *folder, data=path.read_bytes())
    assert (result.code, result.err) == (0, "")
    expected = {"ls": "2 members", "verify": "sound", "extract": "2 files"}
    assert expected[command] in result.out


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows interrupts all of a console, not one program")
def test_an_interrupt_leaves_nothing(tmp_path):
    """Ctrl-C while the pipe is silent ends the command at once, and its files are gone."""
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros(1 << 18), "y": Y})
    data = (tmp_path / "a.npz").read_bytes()
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from npzkit.cli.commands import run; sys.exit(run())"
    )
    command = [sys.executable, "-c", code, "extract", "-", "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        # More than a pipe holds: the command has begun to read. Then it waits for more: an
        # interrupt right before a call of the system would be seen after that call.
        process.stdin.write(data[:-50])
        process.stdin.flush()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().strip() == b"npzkit: interrupted"
    assert process.returncode == 130
    assert files_in(tmp_path) == ["a.npz"]


def test_streams_in_python(tmp_path, edited):
    """npzkit.verify and npzkit.extract take a stream that cannot seek."""
    data = edited.read_bytes()
    sizes = []
    with piped(data) as stream:
        report = npzkit.verify(stream, progress=lambda done, total: sizes.append((done, total)))
    assert report.ok
    assert sizes[-1] == (report.nbytes, report.nbytes)
    with piped(data) as stream:
        assert npzkit.verify(stream, ["is"]).member_count == 1
    with piped(data) as stream, pytest.raises(npzkit.errors.MemberNotFoundError):
        npzkit.verify(stream, ["old"])
    with piped(data) as stream:
        files = npzkit.extract(stream, tmp_path / "out").files
    assert {key: os.path.basename(path) for key, path in files.items()} == {
        "first": "first.npy", "is": "is.npy", "twice": "twice.npy",
    }  # fmt: skip
    damaged = data.replace(Y.tobytes(), X.tobytes() + bytes(24))
    with piped(damaged) as stream, pytest.raises(npzkit.errors.ChecksumError):
        npzkit.extract(stream, tmp_path / "out", overwrite=True)
