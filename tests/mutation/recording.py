"""A plugin of pytest that records which lines of a package each test runs.

Needs no other package. Lines that run in other processes are not recorded, nor those of a
function's calls after the first ones in a test.
"""

from __future__ import annotations

import _thread
import json
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

__all__ = ["Recorder"]

_CALLS = 30
"""Calls of a function that are traced per test: more of them rarely run other lines."""


class Recorder:
    """Write the lines by module, and the tests of each, to a file of JSON.

    Parameters
    ----------
    folder : Path
        Of the package.
    output : Path
    """

    def __init__(self, folder: Path, output: Path) -> None:
        self._prefix, self._output = f"{folder}/", output
        self._lines: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._tests: list[tuple[str, float]] = []
        self._run, self._calls, self._begun = set(), Counter(), 0.0
        threading.settrace(self._enter)
        start = _thread.start_new_thread

        def traced(function, args, *more):
            def run():
                sys.settrace(self._enter)
                function(*args, *more)

            return start(run, ())

        # `npzkit.files.threads` starts its threads with it.
        _thread.start_new_thread = traced

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self):
        self._run, self._calls = set(), Counter()
        self._begun = time.perf_counter()
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            number = len(self._tests)
            self._tests.append((report.nodeid, time.perf_counter() - self._begun))
            # A thread of the test may still run.
            for name, line in self._run.copy():
                self._lines[name[len(self._prefix) :]][line].append(number)

    def pytest_sessionfinish(self):
        found = {"tests": self._tests, "lines": self._lines}
        self._output.write_text(json.dumps(found), encoding="utf-8")

    def _enter(self, frame, event, arg):
        code = frame.f_code
        if not code.co_filename.startswith(self._prefix):
            return None
        place = code.co_filename, code.co_firstlineno
        self._calls[place] += 1
        return self._pass if self._calls[place] <= _CALLS else None

    def _pass(self, frame, event, arg):
        if event == "line":
            self._run.add((frame.f_code.co_filename, frame.f_lineno))
        return self._pass
