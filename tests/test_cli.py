"""The command line: the demo runs, and failures are one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import npzkit
import pytest


def run(*args, code=None):
    command = [sys.executable, "-m", "npzkit"] if code is None else [sys.executable, "-c", code]
    return subprocess.run([*command, *args], capture_output=True, text=True, timeout=120)


def test_the_demo_runs_on_real_data(fixtures):
    """The tour reads, bundles, maps, crashes, damages and measures, on the fixtures."""
    found = run("demo", str(fixtures))
    assert found.returncode == 0, found.stderr
    for text in (
        "labelled 0",
        "np.load reads it: yes",
        "has shape (10, 64, 3): yes",
        "still there: images",
        "ChecksumError",
        "load 1,797",
    ):
        assert text in found.stdout


def test_the_demo_names_missing_data(tmp_path):
    """A folder without the data is wrong usage, said in a line."""
    found = run("demo", str(tmp_path))
    assert found.returncode == 2
    assert "digits.npz" in found.stderr
    assert "Traceback" not in found.stderr


def test_version():
    """--version tells the package's version."""
    assert run("--version").stdout.strip().endswith(npzkit.__version__)


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra(missing):
    """Without click or rich the command says what to install, and nothing else."""
    code = f"import sys; sys.modules[{missing!r}] = None; from npzkit.__main__ import main; main()"
    found = run(code=code)
    assert found.returncode == 1
    assert found.stderr.strip().endswith("python -m pip install 'npzkit[cli]'")
    assert len(found.stderr.splitlines()) == 1


def test_the_demo_finds_a_checkouts_data():
    """Run in a checkout, the demo needs no folder."""
    from npzkit.demo import find_data

    assert (find_data(Path(__file__).parent.parent / "fixtures") / "digits.npz").is_file()
