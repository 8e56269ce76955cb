"""Files of other formats are mostly read in a forked process, which begins at once."""

from __future__ import annotations

import os
import subprocess
import sys

import forked_reader
import pytest
from deep import amount

REAL = "test_foreign_process.py"


@pytest.fixture(autouse=True)
def forked_readers(request, monkeypatch):
    """Fork the processes that read files, but where tests are about them, and in a thorough run."""
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    if hasattr(os, "fork") and has_gil and request.path.name != REAL and amount(0, 1) == 0:
        monkeypatch.setattr("npzkit.conversion.foreign_process.subprocess", forked_reader)


@pytest.fixture
def started_readers(forked_readers, monkeypatch):
    """Start such a process as users do."""
    monkeypatch.setattr("npzkit.conversion.foreign_process.subprocess", subprocess)
