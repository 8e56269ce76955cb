"""How much memory a process of its own has had at most."""

from __future__ import annotations

import sys

import pytest

__all__ = ["PEAK", "needs_peak"]

PEAK = """
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
"""
"""Python code of a function that returns KiB. `ru_maxrss` begins with that of the process that
started this one, so that a test within a large process could not fail."""
needs_peak = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells VmHWM")
