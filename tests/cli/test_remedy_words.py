"""Every remedy in the source: the functions, parameters, commands and options it names exist."""

from __future__ import annotations

import inspect
import re

import click
import npzkit
import npzkit.checkpoint
import pytest
from npzkit.checkpoint import CheckpointStore
from npzkit.cli.commands import npzkit_command
from npzkit.cli.messages import advice_at_prompt
from remedies import given_as_remedy

OWNERS = {
    "npz": npzkit.NpzFile, "NpzFile": npzkit.NpzFile, "NpzWriter": npzkit.NpzWriter,
    "writer": npzkit.NpzWriter, "store": CheckpointStore, "lazy": npzkit.LazyArray,
}  # fmt: skip
"""What stands before a dot in a remedy."""
CALL = re.compile(
    r"\b((?:npzkit\.)?[A-Za-z_]+(?:\.[a-z_]+)+)(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\))?"
)


REMEDIES = sorted(given_as_remedy())
AT_PROMPT = sorted(given_as_remedy(at_prompt=True))


@pytest.mark.parametrize("remedy", REMEDIES)
def test_what_a_remedy_names_in_python_exists(remedy):
    """Each function and method is there, and has the parameters that are passed by name."""
    for name, arguments in CALL.findall(remedy):
        first, *rest = name.split(".")
        owner = npzkit if first == "npzkit" else OWNERS.get(first)
        if owner is None:
            continue
        for part in rest:
            if owner is npzkit and part in npzkit._MODULES and not hasattr(npzkit, part):
                # The engine's own package is not installed.
                break
            assert hasattr(owner, part), f"{name}: {remedy}"
            owner = getattr(owner, part)
        given = re.findall(r"(?:^|[(,]\s*)([a-z_]+)=(?!=)", arguments)
        if given and callable(owner):
            parameters = inspect.signature(owner).parameters
            is_open = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
            assert is_open or set(given) <= set(parameters), f"{name}({arguments}): {remedy}"


@pytest.mark.parametrize("remedy", AT_PROMPT)
def test_what_a_remedy_names_at_a_prompt_exists(remedy):
    """Each command is there, and one of the commands has each option."""
    context = click.Context(npzkit_command)
    names = npzkit_command.list_commands(context)
    commands = {name: npzkit_command.get_command(context, name) for name in names}
    options = {
        option
        for command in commands.values()
        for one in (command, *getattr(command, "commands", {}).values())
        for parameter in one.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--storage-option", "--debug"}
    text = advice_at_prompt(remedy)
    for name in re.findall(r"\bnpzkit ([a-z]+) [A-Z-]", text):
        assert name in commands, f"{name}: {text}"
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
        assert option in options, f"{option}: {text}"
    assert not re.search(r"npzkit\.\w", text), text
