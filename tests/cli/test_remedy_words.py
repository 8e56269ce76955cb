"""Every remedy in the source: the functions, parameters, commands and options it names exist."""

from __future__ import annotations

import ast
import inspect
import re

import click
import npzkit
import npzkit.checkpoint
import pytest
from npzkit.checkpoint import CheckpointStore
from npzkit.cli.commands import npzkit_command
from npzkit.cli.messages import advice_at_prompt
from structure import MODULES

OWNERS = {
    "npz": npzkit.NpzFile, "NpzFile": npzkit.NpzFile, "NpzWriter": npzkit.NpzWriter,
    "writer": npzkit.NpzWriter, "store": CheckpointStore, "lazy": npzkit.LazyArray,
}  # fmt: skip
"""What stands before a dot in a remedy."""
CALL = re.compile(
    r"\b((?:npzkit\.)?[A-Za-z_]+(?:\.[a-z_]+)+)(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\))?"
)


def text_of(node: ast.expr) -> str:
    """Return the text of a string, with a word in the place of what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.FormattedValue):
        return "X"
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body)} {text_of(node.orelse)}"
    return ""


def remedies() -> list[str]:
    """Return all that is given as the remedy of an error."""
    found = set()
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                found.add(text_of(node.value))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    name = getattr(target, "attr", getattr(target, "id", "")).lower()
                    if name.endswith("remedy"):
                        found.add(text_of(node.value))
    return sorted(found - {""})


REMEDIES = remedies()


def test_the_remedies_are_found():
    """There are many: the search for them works."""
    assert len(REMEDIES) > 120


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


@pytest.mark.parametrize("remedy", REMEDIES)
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
        assert option in options or "zip -s" in text, f"{option}: {text}"
    assert not re.search(r"npzkit\.\w", text), text
