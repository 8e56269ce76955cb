"""Runs of a program that are killed at random, and begun again until one ends.

Called as ``python killing.py PROGRAM FOLDER SEED CALLS [MODULE ...]``. The modules, which
may take seconds to import, are imported once: each run is a fork. Each is killed at one of
its first CALLS calls that change a file, or some milliseconds after it, so in the middle
of anything.
Prints how many runs were killed, and what the last one printed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import runpy
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from children import forked, read_rest
from faults import FaultyOS
from npzkit.checkpoint import DamagedCheckpointWarning
from npzkit.files import disk

MAX_DELAY = 0.01
"""Seconds."""


class DeadlyOS(FaultyOS):
    """`os`, which kills the process at one of its calls, or some time after it."""

    def __init__(self, number: int, delay: float) -> None:
        super().__init__(number, 0)
        self.delay = delay

    def _fail(self, name: str, real: Callable[..., Any], *args: Any) -> Any:
        if not self.delay:
            os.kill(os.getpid(), signal.SIGKILL)
        timer = threading.Timer(self.delay, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
        return real(*args)


def run_once(program: str, folder: str, number: int, delay: float) -> str:
    """Run the program in a child that dies; return what it printed, or nothing if it was killed."""

    def work(pipe: int) -> None:
        warnings.simplefilter("error", DamagedCheckpointWarning)
        disk.os = DeadlyOS(number, delay)
        sys.argv = [program, folder]
        with open(pipe, "w", closefd=False) as out, contextlib.redirect_stdout(out):
            runpy.run_path(program, run_name="__main__")

    with forked(work) as (_, pipe):
        return read_rest(pipe).decode()


def main(program: str, folder: str, seed: str, calls: str, *modules: str) -> None:
    for module in modules:
        importlib.import_module(module)
    draw = random.Random(int(seed))
    kills, said = 0, ""
    while not said:
        delay = draw.choice([0, draw.uniform(0, MAX_DELAY)])
        said = run_once(program, folder, draw.randint(1, int(calls)), delay)
        kills += not said
    print(kills)
    print(said, end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
