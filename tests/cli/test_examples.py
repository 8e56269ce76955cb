"""Every command's help has an example, and it runs."""

from __future__ import annotations

import re
import shlex

import click
import npzkit
import numpy as np
import pytest
from npzkit.cli.commands import npzkit_command
from systems import need_library_of

CONTEXT = click.Context(npzkit_command)
COMMANDS = npzkit_command.list_commands(CONTEXT)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the files that the examples name."""
    monkeypatch.chdir(tmp_path)
    arrays = {"weights": np.eye(30), "bias": np.zeros(30)}
    npzkit.save("model.npz", arrays)
    npzkit.save("other.npz", arrays | {"bias": np.ones(30)})
    data = (tmp_path / "model.npz").read_bytes()
    (tmp_path / "broken.npz").write_bytes(data.replace(np.eye(30).tobytes(), bytes(7200)))
    for key, array in arrays.items():
        np.save(key, array)
    with npzkit.checkpoint.CheckpointStore("run", durable=False) as store:
        for step in (100, 200, 300):
            store.save(step, arrays, metrics={"loss": 1 / step})
    return tmp_path


@pytest.mark.slow
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
    for argument in arguments:
        need_library_of(argument)
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
