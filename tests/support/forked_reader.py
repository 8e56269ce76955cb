"""A stand-in for `subprocess` where another library reads a file in a process of its own.

The process is forked, with the libraries that are imported already, instead of started, which takes
half a second of a processor. It is a process all the same: with its own memory, pipes and end.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

from npzkit.conversion import foreign_process

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL


class Popen:
    """The child of `npzkit.conversion.foreign_process`, and what that calls of it."""

    def __init__(self, command: list[str], **_: Any) -> None:
        given, taken = os.pipe(), os.pipe()
        self._status: int | None = None
        with warnings.catch_warnings():
            # Python 3.12 warns of the threads that libraries have begun.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _be_child(command[-1], given[0], taken[1])
        os.close(given[0])
        os.close(taken[1])
        self.stdin = open(given[1], "wb", buffering=0)
        self.stdout = open(taken[0], "rb", buffering=0)

    def kill(self) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


def _nothing(*_: Any, **__: Any) -> None:
    pass


_NO_WATCH = SimpleNamespace(dump_traceback_later=_nothing, cancel_dump_traceback_later=_nothing)
"""A forked child cannot stop the watch of its parent, whose thread it lacks."""


def _be_child(code: str, given: int, taken: int) -> None:
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(given, 0)
        os.dup2(taken, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 256)
        warnings.resetwarnings()
        foreign_process.faulthandler = _NO_WATCH
        sys.stdin, sys.stdout = io.TextIOWrapper(open(0, "rb")), open(1, "w")
        exec(code, {})
        status = 0
    finally:
        os._exit(status)
