"""completion: shells complete commands, options, files and the keys of a file."""

from __future__ import annotations

import shutil
import subprocess
import zipfile

import npzkit
import numpy as np
import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell, cli):
    """Each is a script of that shell, which that shell can parse where it is installed."""
    result = cli("completion", shell)
    assert result.code == 0
    assert "_NPZKIT_COMPLETE" in result.out
    if shutil.which(shell):
        parsed = subprocess.run(
            [shell, "-n"], input=result.out, text=True, capture_output=True, timeout=60
        )
        assert (parsed.returncode, parsed.stderr) == (0, "")


def completed(process, *words):
    """Return what bash is offered for the last of the words."""
    env = {
        "_NPZKIT_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["npzkit", *words]),
        "COMP_CWORD": str(len(words)),
    }
    result = process(env=env)
    assert result.err == ""
    return [line.split(",", 1)[1] for line in result.out.splitlines() if line]


def test_commands_options_and_keys_are_completed(process, tmp_path):
    """Keys are those of the file that stands before them; what is no archive has none."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"layer/w": np.zeros(3), "layer/b": np.zeros(3), "top": np.zeros(3)})
    assert completed(process, "sh") == ["show"]
    assert "--sort" in completed(process, "ls", "--")
    assert completed(process, "show", str(path), "lay") == ["layer/w", "layer/b"]
    assert completed(process, "info", str(path), "t") == ["top"]
    assert completed(process, "verify", str(path), "top", "t") == ["top"]
    (tmp_path / "b.npz").write_bytes(b"no archive")
    assert completed(process, "show", str(tmp_path / "b.npz"), "l") == []
    assert completed(process, "show", str(tmp_path / "no.npz"), "l") == []


def test_no_key_that_could_control_the_terminal_is_offered(process, tmp_path):
    """A key of a forged file that turns text around, or breaks the line, is left out."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for key in ("good", "g\u202eood", "g\u2028x"):
            archive.writestr(f"{key}.npy", b"")
    assert completed(process, "show", str(path), "g") == ["good"]


def test_an_unknown_shell(cli):
    """Only shells that have a script are taken."""
    assert cli("completion", "tcsh").code == 2
