"""A server of a benchmark, in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["serving"]


@contextlib.contextmanager
def serving(script: str, argument: object) -> Iterator[str]:
    """Run a server of this folder, until the block ends; yields its address."""
    command = [sys.executable, str(Path(__file__).with_name(script)), str(argument)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        assert process.stdin is not None
        process.stdin.close()
