"""The mutation run of `tests/mutation`: it finds what the tests of a tiny package do not notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deep import needs_deep

SCRIPT = Path(__file__).parent / "mutation/mutate.py"
SOURCE = '''
def clamp(value, high=9):
    """Return the value, or the largest one that is allowed."""
    if value < 0:
        raise ValueError(f"{value} is below {0 + 1}")
    return high if value > high else value


def never_run():
    return 1
'''
TESTS = """
import pytest
from tiny.room.module import clamp

def test_clamp():
    assert clamp(3) == 3
    assert clamp(11) == 9
    with pytest.raises(ValueError):
        clamp(-5)

def test_that_fails():
    assert clamp(3) == 4
"""


@needs_deep
@pytest.mark.skipif(sys.platform == "win32", reason="the script forks")
def test_it_finds_what_no_test_notices(tmp_path):
    """Only the bounds that the tests never try live, and a run that stopped goes on."""
    checkout = tmp_path / "checkout"
    for name in ("tiny/room", "tests"):
        (checkout / name).mkdir(parents=True)
    (checkout / "tiny/room/module.py").write_text(SOURCE)
    (checkout / "tests/test_tiny.py").write_text(TESTS)
    options = ["--checkout", checkout, "--folder", tmp_path / "work", "--package", "tiny"]
    options += ["--room", "room", "--tests", "tests", "--every"]
    # Loading pytest's plugins takes as long as all else.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    output = ""
    for jobs in (2, 1):
        command = [sys.executable, SCRIPT, *options, "--jobs", str(jobs)]
        output = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout
        found = {line.partition("  ")[2] for line in output.splitlines() if "  ->  " in line}
        assert found == {
            "if value < 0:  ->  if (value <= 0):",
            "if value < 0:  ->  if value < 1:",
            "return high if value > high else value  ->  return high if (value >= high) else value",
        }
    assert output.splitlines()[-1] == "3 of 9 mutants live"
    assert (checkout / "tiny/room/module.py").read_text() == SOURCE
