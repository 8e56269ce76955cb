"""Every command's help has an example, and it runs."""

from __future__ import annotations

import re
import shlex
import shutil

import click
import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore
from npzkit.cli.commands import npzkit_command

CONTEXT = click.Context(npzkit_command)
COMMANDS = npzkit_command.list_commands(CONTEXT)


@pytest.fixture
def folder(tmp_path, monkeypatch, fixtures):
    """A working directory with the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(fixtures, tmp_path / "fixtures")
    rng = np.random.default_rng(0)
    arrays = {"weights": rng.random((300, 200)), "bias": np.zeros(200), "layer/image": np.eye(64)}
    npzkit.save("model.npz", arrays, metadata={"step": 7})
    npzkit.save("other.npz", {**arrays, "bias": np.ones(200)})
    for key in ("weights", "bias"):
        np.save(f"{key}.npy", arrays[key])
    with CheckpointStore("run", durable=False) as store:
        store.save(100, arrays, metrics={"loss": 0.5})
    (tmp_path / "broken.npz").write_bytes((tmp_path / "model.npz").read_bytes()[:-100])
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_runs(name, folder, cli, monkeypatch):
    """What stands behind "Example:" in a command's help does its work."""
    if name == "view":
        pytest.importorskip("bokeh", reason="the page needs Bokeh")
        monkeypatch.setattr("npzkit.viewer.viewer.Viewer.wait", lambda viewer: None)
    command = npzkit_command.get_command(CONTEXT, name)
    (example,) = re.findall(r"^\s*Example: (.+)$", command.help, re.MULTILINE)
    program, *arguments = shlex.split(example)
    assert (program, arguments[0]) == ("npzkit", name)
    before = set(folder.rglob("*"))
    result = cli(*arguments)
    assert result.code in (0, 1), result.err
    assert not result.err
    assert result.out or set(folder.rglob("*")) > before


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_fits_a_narrow_terminal(name, cli, monkeypatch):
    """Help tells what a command does, its example in one piece, on 80 columns."""
    result = cli(name, "--help")
    assert result.code == 0
    assert f"Example: npzkit {name}" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
