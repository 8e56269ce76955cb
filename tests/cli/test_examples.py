"""Every command's help has an example, and it runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil

import click
import pytest
from npzkit.cli.commands import npzkit_command
from npzkit.cli.demo import TO_TRY, write_samples

CONTEXT = click.Context(npzkit_command)
COMMANDS = npzkit_command.list_commands(CONTEXT)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """The files of `npzkit demo`."""
    folder = tmp_path_factory.mktemp("samples")
    write_samples(folder)
    return folder


@pytest.fixture
def folder(samples, tmp_path, monkeypatch):
    """A working directory with the files that the examples name: those of the demo."""
    shutil.copytree(samples, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
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


@pytest.mark.parametrize("line", [line for line, _ in TO_TRY])
def test_what_the_demo_says_to_try(line, folder, cli):
    """Each command that `npzkit demo` names runs in its folder, and prints something."""
    program, *arguments = shlex.split(line)
    found = cli(*arguments)
    assert (program, found.err) == ("npzkit", "")
    assert found.code == (1 if arguments[0] in ("diff", "verify") else 0)
    assert found.out


def test_the_demo_writes_to_a_new_folder(cli, tmp_path):
    """It says what it wrote, the same in each run; a folder with files is left as it is."""
    first = cli("demo", tmp_path / "new" / "samples")
    assert (first.code, first.err) == (0, "")
    assert all(line in first.out for line, _ in TO_TRY)
    assert cli("verify", "-q", tmp_path / "new/samples/model.npz").code == 0
    (tmp_path / "mine").write_text("mine")
    refused = cli("demo", tmp_path)
    assert (refused.code, sorted(os.listdir(tmp_path))) == (2, ["mine", "new"])
    assert "is not empty" in refused.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_fits_a_narrow_terminal(name, cli, monkeypatch):
    """Help tells what a command does, its example in one piece, on 80 columns."""
    result = cli(name, "--help")
    assert result.code == 0
    assert f"Example: npzkit {name}" in result.out
    assert max(map(len, result.out.splitlines())) <= 80
