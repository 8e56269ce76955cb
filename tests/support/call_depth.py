"""How many of npzkit's functions stand between a user's call and the system's.

Tests of reading and of saving count them: each passes on what the one above gave it, so
a small array pays for all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import npzkit

__all__ = ["Calls", "count_calls"]

SYSTEM_CALLS = tuple(
    name for name in ("pread", "preadv", "pwrite", "pwritev") if hasattr(os, name)
) or ("read", "write")
_ROOT = os.path.dirname(npzkit.__file__)


class Calls(NamedTuple):
    """What one call of a user's led to.

    Attributes
    ----------
    depth : int
        The most functions of npzkit that were under way when the system was called.
    count : int
        How many functions of npzkit were called in all.
    path : tuple of str
        The functions that were under way then, the user's first.
    """

    depth: int
    count: int
    path: tuple[str, ...]


def count_calls(function: Callable[[], Any], system_calls: tuple[str, ...] = SYSTEM_CALLS) -> Calls:
    """Call a function, and count npzkit's functions from there to the named system calls.

    Comprehensions and lambdas count where they are calls of Python's.
    """
    count = 0
    path: tuple[str, ...] = ()

    def profile(frame: FrameType, event: str, found: Any) -> None:
        nonlocal count, path
        if event == "call":
            count += _is_own(frame)
        elif event == "c_call" and found.__module__ in ("posix", "nt"):
            if found.__name__ in system_calls:
                path = max(path, _own_functions(frame), key=len)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return Calls(len(path), count, path)


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_ROOT)


def _own_functions(frame: FrameType | None) -> tuple[str, ...]:
    """Return the names of npzkit's functions under way, the outermost first."""
    names = []
    while frame is not None:
        if _is_own(frame):
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return tuple(names[::-1])
