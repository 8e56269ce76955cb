"""Completion by click's script: shells complete commands, options, files and the keys of a file."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile

import npzkit
import numpy as np
import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell, cli):
    """Each is a script of that shell, which that shell can parse where it is installed."""
    result = cli(env={"_NPZKIT_COMPLETE": f"{shell}_source"})
    assert result.code == 0
    assert "_NPZKIT_COMPLETE" in result.out
    if shutil.which(shell):
        parsed = subprocess.run(
            [shell, "-n"], input=result.out, text=True, capture_output=True, timeout=60
        )
        assert (parsed.returncode, parsed.stderr) == (0, "")


def completed(cli, *words):
    """Return what bash is offered for the last of the words."""
    env = {
        "_NPZKIT_COMPLETE": "bash_complete",
        "COMP_WORDS": shlex.join(["npzkit", *words]),
        "COMP_CWORD": str(len(words)),
    }
    result = cli(env=env)
    assert result.err == ""
    return [line.split(",", 1)[1] for line in result.out.splitlines() if line]


def test_commands_options_and_keys_are_completed(cli, tmp_path):
    """Keys are those of the file that stands before them; what is no archive has none."""
    path = tmp_path / "my arrays.npz"
    npzkit.save(path, {"layer/w": np.zeros(3), "layer/b": np.zeros(3), "top": np.zeros(3)})
    assert completed(cli, "sh") == ["show"]
    assert "--sort" in completed(cli, "ls", "--")
    assert completed(cli, "show", str(path), "lay") == ["layer/w", "layer/b"]
    assert completed(cli, "info", str(path), "t") == ["top"]
    assert completed(cli, "verify", str(path), "--key", "t") == ["top"]
    assert completed(cli, "verify", str(path), "-k", "b", "-k", "t") == ["top"]
    (tmp_path / "b.npz").write_bytes(b"no archive")
    assert completed(cli, "show", str(tmp_path / "b.npz"), "l") == []
    assert completed(cli, "show", str(tmp_path / "no.npz"), "l") == []


@pytest.mark.skipif(sys.platform == "win32", reason="HOME is a POSIX shell's")
def test_keys_of_a_file_at_home(cli, tmp_path):
    """~ is the home folder, as in a command that is run."""
    npzkit.save(tmp_path / "a.npz", {"weights": np.zeros(3)})
    env = {
        "HOME": str(tmp_path), "_NPZKIT_COMPLETE": "bash_complete",
        "COMP_WORDS": "npzkit show ~/a.npz w", "COMP_CWORD": "3",
    }  # fmt: skip
    assert cli(env=env).out.strip() == "plain,weights"


def test_no_key_that_could_control_the_terminal_is_offered(cli, tmp_path):
    """A key of a forged file that turns text around, or breaks the line, is left out."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key in ("good", "g\u202eood", "g\u2028x"):
            archive.writestr(f"{key}.npy", b"")
    assert completed(cli, "show", str(path), "g") == ["good"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_bash_runs_nothing_of_a_key(tmp_path):
    """bash puts what it is offered into the line: a key that it would run is left out there."""
    keys = ["x`touch owned`", "x$(touch owned)", "x;touch owned", "x y", "x*", "x/plain.1"]
    npzkit.save(tmp_path / "a.npz", {key: np.zeros(2) for key in keys})
    ask = (
        'npzkit() { "$PYTHON" -m npzkit "$@"; }; env() { command env "${@:1:3}" "$PYTHON" -m npzkit'
        '; }; eval "$(_NPZKIT_COMPLETE=bash_source npzkit)"; COMP_WORDS=(npzkit show a.npz x); COMP_CWORD=3; '
        '_npzkit_completion npzkit; printf "%s\\n" "${COMPREPLY[@]}"; '
        'eval "true ${COMPREPLY[*]}"; test ! -e owned'
    )
    found = subprocess.run(
        ["bash", "-c", ask], cwd=tmp_path, env={**os.environ, "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (found.returncode, found.stdout.split()) == (0, ["x/plain.1"])


def test_every_key_is_completed_where_the_shell_quotes(cli, tmp_path):
    """zsh and fish put keys into the line as words."""
    npzkit.save(tmp_path / "a.npz", {"x y": np.zeros(2), "x$z": np.zeros(2)})
    for shell in ("zsh", "fish"):
        env = {
            "_NPZKIT_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": shlex.join(["npzkit", "show", str(tmp_path / "a.npz"), "x"]),
            "COMP_CWORD": "3" if shell == "zsh" else "x",
        }
        result = cli(env=env)
        assert "x y" in result.out
        assert "x$z" in result.out


def test_inputs_are_files(cli, tmp_path):
    """What pack and add take is completed as files are, by the shell."""
    for words in (["pack", "new.npz", "a"], ["add", "new.npz", "b.npy", "a"]):
        env = {
            "_NPZKIT_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["npzkit", *words]),
            "COMP_CWORD": str(len(words)),
        }
        assert cli(env=env).out.strip() == "file,a"
