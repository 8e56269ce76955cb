"""A command imports what it needs, and no more."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import npzkit
import numpy as np
import pytest
from npzkit.cli.commands import npzkit_command

CONTEXT = click.Context(npzkit_command)


def imported(*arguments, **environment):
    """Return the modules that a command imports in a process of its own, and its exit code."""
    found = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "npzkit", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    lines = found.stderr.splitlines()
    modules = {line.split("|")[-1].strip() for line in lines if line.startswith("import time:")}
    assert "npzkit.cli.commands" in modules
    return modules, found.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--version"], 0), (["--help"], 0), (["nope"], 2), (["ls", "--nope"], 2), (["ls", "-h"], 0)],
)  # fmt: skip
def test_numpy_is_not_imported_without_a_file(arguments, code):
    """The version, help and wrong usage do without NumPy and rich."""
    modules, found = imported(*arguments)
    assert found == code
    assert not modules & {"numpy", "rich", "npzkit.archive.npzfile"}


@pytest.mark.slow
def test_command_names_are_completed_without_numpy():
    """Completing a command at a prompt imports no command."""
    modules, _ = imported(_NPZKIT_COMPLETE="bash_complete", COMP_WORDS="npzkit re", COMP_CWORD="1")
    assert not {name for name in modules if name.startswith("npzkit.cli.")} - {
        "npzkit.cli.commands"
    }
    assert "numpy" not in modules


@pytest.mark.slow
def test_ls_imports_only_what_lists(tmp_path):
    """Listing a file imports neither the writer, nor what reads nested data, nor rich."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    modules, code = imported("ls", path)
    assert code == 0
    assert not modules & {
        "rich",
        "npzkit.archive.npzwriter",
        "npzkit.trees.loaded_tree",
        "npzkit.analysis",
        "npzkit.conversion",
    }


@pytest.mark.parametrize("name", npzkit_command.list_commands(CONTEXT))
def test_the_list_of_commands_has_the_first_sentence_of_each(name, cli):
    """`npzkit --help` describes a command as the command's own help does."""
    help_text = npzkit_command.get_command(CONTEXT, name).help
    sentence = help_text.partition("\n\n")[0]
    assert f"\n  {name:<9}{sentence}\n" in cli("--help").out
