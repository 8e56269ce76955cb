"""Commands run in this process, or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest


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
def cli(capsys, monkeypatch):
    """Call with a command's arguments; runs here, without a terminal."""
    from npzkit.cli.commands import run

    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def process():
    """Call with a command's arguments; runs in a process of its own."""

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
