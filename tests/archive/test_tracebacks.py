"""What a notebook shows of an error: the caller's lines, and npzkit's own if they are asked for."""

from __future__ import annotations

import re
import subprocess
import sys

import npzkit
import numpy as np
import pytest

PROGRAM = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="nocolor", history_load_length=0)
shell.history_manager.enabled = False
for cell in {cells!r}:
    shell.run_cell(cell)
    print("=" * 10)
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What IPython prints for some cells, each of which raises an error."""
    pytest.importorskip("IPython", reason="IPython is not installed")
    folder = tmp_path_factory.mktemp("cells")
    npzkit.save(folder / "a.npz", {"a": np.arange(3)})
    np.savez_compressed(folder / "b.npz", b=np.arange(1000))
    data = bytearray((folder / "b.npz").read_bytes())
    data[300:400] = b"\xff" * 100
    (folder / "b.npz").write_bytes(data)
    cells = [
        "import npzkit\ndef own_function():\n    npzkit.open('a.npz')['b']\nown_function()",
        "npzkit.open('b.npz')['b']", "npzkit.open('missing.npz')", "%xmode --show\nown_function()",
    ]  # fmt: skip
    program = [sys.executable, "-c", PROGRAM.format(cells=cells)]
    found = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=60)
    return [re.sub(r"\x1b\[[\d;]*m", "", text) for text in found.stdout.split("=" * 10)]


@pytest.mark.parametrize(
    ("cell", "error", "own_frames"),
    [(0, "MemberNotFoundError: no array named 'b'", 0), (1, "the deflate stream is damaged", 0),
     (2, "No such file or directory", 1), (3, "MemberNotFoundError: no array named 'b'", 3)],
)  # fmt: skip
def test_a_notebook_hides_npzkits_lines(shown, cell, error, own_frames):
    """Of an error and of its cause the caller's lines are shown; %xmode --show has all lines."""
    text = shown[cell]
    assert error in text.rstrip().splitlines()[-1]
    assert text.count("npzkit/") == own_frames
    assert ("in own_function" in text) == (cell in (0, 3))
