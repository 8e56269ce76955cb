"""Each remedy in the source is followed by a test, and what it names exists."""

from __future__ import annotations

import inspect
import re

import click
import npzkit
import npzkit.checkpoint
from npzkit.checkpoint import CheckpointStore
from npzkit.cli.commands import npzkit_command
from npzkit.cli.messages import advice_at_prompt
from remedies import given_as_remedy, marked

NOT_FOLLOWED: dict[str, str] = {}
"""Remedies that no test can follow, with the reason."""
OWNERS = {
    "npz": npzkit.ShardedFile, "NpzFile": npzkit.NpzFile, "NpzWriter": npzkit.NpzWriter,
    "writer": npzkit.NpzWriter, "store": CheckpointStore, "lazy": npzkit.LazyArray,
}  # fmt: skip
"""What stands before a dot in a remedy."""
CALL = re.compile(
    r"\b((?:npzkit\.)?[A-Za-z_]+(?:\.[a-z_]+)+)(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\))?"
)


def test_each_remedy_is_followed():
    """A test meets it, does what it says, and then it works."""
    given = given_as_remedy()
    assert len(given) > 120
    words = {*marked(), *NOT_FOLLOWED}
    assert not {
        remedy: modules
        for remedy, modules in given.items()
        if not any(one in remedy for one in words)
    }


def test_the_words_of_each_mark_are_a_remedy():
    """A mark whose remedy was reworded or removed goes with it."""
    given = given_as_remedy()
    assert not {
        words: name
        for words, name in {**marked(), **NOT_FOLLOWED}.items()
        if len(words) < 8 or not any(words in remedy for remedy in given)
    }


def test_what_remedies_name_in_python_exists():
    """Each function and method is there, and has the parameters that are passed by name."""
    for remedy in given_as_remedy():
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
            own = re.sub(r"\([^()]*\)", "", arguments)
            given = re.findall(r"(?:^|[(,]\s*)([a-z_]+)=(?!=)", own)
            if given and callable(owner):
                parameters = inspect.signature(owner).parameters
                is_open = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
                assert is_open or set(given) <= set(parameters), f"{name}({arguments}): {remedy}"


def test_what_remedies_name_at_a_prompt_exists():
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
    for text in map(advice_at_prompt, given_as_remedy(at_prompt=True)):
        for name in re.findall(r"\bnpzkit ([a-z]+) [A-Z-]", text):
            assert name in commands, f"{name}: {text}"
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
            assert option in options, f"{option}: {text}"
        assert not re.search(r"npzkit\.\w", text) or "in Python" in text, text
