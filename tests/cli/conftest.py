"""Commands run in this process, or in one of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest
from archives import piped


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self):
        """Return what was printed, which must be JSON as the standard has it."""

        def refuse(name):
            raise AssertionError(f"{name} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def cli(capsys, monkeypatch, remedies_met):
    """Call with a command's arguments; runs here, without a terminal.

    `data` comes through a pipe, `stdin` is a file; `env` is added to the environment. A remedy
    that is printed is met.
    """
    from npzkit.cli.commands import run

    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments, env=None, data=None, stdin=None):
        with monkeypatch.context() as patched, contextlib.ExitStack() as stack:
            for name, value in (env or {}).items():
                patched.setenv(name, value)
            if data is not None:
                stdin = piped(data)
            if stdin is not None:
                text = stack.enter_context(io.TextIOWrapper(stdin))
                patched.setattr(sys, "stdin", text)
            try:
                code = run([str(argument) for argument in arguments])
            except SystemExit as end:
                code = end.code
        found = Result(code, *capsys.readouterr())
        if remedies_met is not None:
            remedies_met.texts += [found.out, found.err]
        return found

    return call


@pytest.fixture
def process():
    """Call with a command's arguments; runs in a process of its own, which takes 0.3 s."""

    def call(*arguments, env=None, **options):
        command = [sys.executable, "-m", "npzkit", *map(str, arguments)]
        environment = {**os.environ, **(env or {})}
        found = subprocess.run(
            command, capture_output=True, timeout=120, env=environment, check=False, **options
        )
        return Result(
            found.returncode,
            *(text.decode(errors="replace") for text in (found.stdout, found.stderr)),
        )

    return call
