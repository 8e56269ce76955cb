"""Calls of npzkit and of numpy, what came of them, and whether two of them came to the same."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import npzkit
import numpy as np
from npzkit.errors import (
    AmbiguousArchiveWarning,
    ArchiveLockedError,
    ClosedArchiveError,
    NpzkitError,
    StaleArchiveError,
    TornArchiveWarning,
)

__all__ = [
    "CRASHES_NUMPY", "LIMITS", "Result", "Violation", "archives_differ", "attempt", "by_numpy", "folder_of", "is_same",
    "recorded_warnings", "shown", "spent",
]  # fmt: skip

LIMITS = npzkit.Limits(member_size=1 << 22, member_count=10_000)
"""A bzip2 stream of 50 bytes is 900 kB: members are kept small, not refused archives."""
CRASHES_NUMPY = re.compile(rb"[mM]8?\[[^\]]*(/|0)|datetime64\[|timedelta64\[")
"""A divided unit or one of zero ends the process with a division by zero in C."""
_UNTRUE = (StaleArchiveError, ArchiveLockedError, ClosedArchiveError)
"""What no input is: nothing else has it open."""
_WARNINGS = (
    (TornArchiveWarning, ""),
    (AmbiguousArchiveWarning, ""),
    (UserWarning, "Reading this header needed an extra step"),
    # Of the rows that are left of an array that has it too.
    (UserWarning, "Stored array in format 3.0"),
    # Of a member that cannot be copied: the archive stays as it was committed.
    (RuntimeWarning, "the archive is complete, but its dead space could not be removed"),
)


class Violation(AssertionError):
    """npzkit did what it must not do."""


class Result:
    """What one call returned or raised, and what it warned of."""

    __slots__ = ("error", "value", "warned")

    def __init__(self, value: Any, error: NpzkitError | None, warned: list[Any]) -> None:
        self.value, self.error, self.warned = value, error, warned

    @property
    def outcome(self) -> Any:
        return self.value if self.error is None else self.error


spent = [0.0]
"""Seconds in npzkit: numpy may take as long as it likes."""
_warned: list[tuple[Any, type[Warning]]] = []


@contextlib.contextmanager
def recorded_warnings() -> Iterator[None]:
    """Record all warnings, once for many inputs: to do so for each would take longer than it."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *_, **__: _warned.append(
            (message, category)
        )
        yield


def attempt(what: str, call: Callable[..., Any], *args: Any, **options: Any) -> Result:
    """Call npzkit: an NpzkitError and documented warnings may come of it, nothing else."""
    # The table of differences evaluates literals, too.
    _warned.clear()
    value, error = None, None
    begin = time.perf_counter()
    try:
        value = call(*args, **options)
    except (Violation, KeyboardInterrupt):
        raise
    except NpzkitError as raised:
        error = raised
        # What is said must be sayable.
        text = shown(raised)
        if isinstance(raised, _UNTRUE):
            raise Violation(f"{what}: {text}") from raised
    except BaseException as raised:
        text = "".join(traceback.format_exception(raised)[-4:])
        raise Violation(f"{what} raised what is no NpzkitError:\n{text}") from raised
    finally:
        spent[0] += time.perf_counter() - begin
        warned = _warned[:]
        _warned.clear()
    for message, category in warned:
        if not any(category is k and str(message).startswith(start) for k, start in _WARNINGS):
            raise Violation(f"{what} warned: {category.__name__}: {message}")
    return Result(value, error, warned)


def by_numpy(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call numpy: whatever it raises is its outcome."""
    try:
        return call(*args, **options)
    except (Violation, KeyboardInterrupt):
        raise
    except BaseException as error:
        return error
    finally:
        _warned.clear()


def is_same(ours: Any, theirs: Any, *, ordered: bool = False) -> bool:
    """Whether two arrays have the same dtype, shape, bytes and, if asked, order in memory."""
    if not isinstance(ours, np.ndarray) or not isinstance(theirs, np.ndarray):
        return type(ours) is type(theirs) and ours == theirs
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if ordered and ours.size > 1 and ours.itemsize:
        # Items without bytes have no order that would show.
        orders = [(a.flags.c_contiguous, a.flags.f_contiguous) for a in (ours, theirs)]
        if orders[0] != orders[1]:
            return False
    if ours.tobytes() == theirs.tobytes():
        return True
    # Padding is copied or not.
    names = ours.dtype.names or ()
    return bool(names) and all(is_same(ours[name], theirs[name]) for name in names)


def archives_differ(npz: npzkit.NpzFile, theirs: Any) -> str | None:
    """Say where np.load shows another archive; what one of them refuses is no difference."""
    # A NUL ends a name for zipfile, and npzkit refuses such a member; of repeated names, both
    # take the last.
    listed = [key.partition("\0")[0] for key in npz.files]
    if list(dict.fromkeys(listed)) != list(dict.fromkeys(theirs.files)):
        return f"{npz.files}; {theirs.files}"
    for key in npz.files:
        ours = attempt(f"read {key!r}", npz.read, key).outcome
        found = by_numpy(theirs.__getitem__, key)
        if isinstance(ours, BaseException) or isinstance(found, BaseException):
            continue
        if not is_same(ours, found):
            return f"{key!r}: {shown(ours)}; {shown(found)}"
    return None


def shown(outcome: Any) -> str:
    if isinstance(outcome, BaseException):
        return f"{type(outcome).__name__}: {outcome}"[:300]
    if isinstance(outcome, np.ndarray):
        return f"array of {outcome.dtype} {outcome.shape}"
    return repr(outcome)[:100]


@contextlib.contextmanager
def folder_of(data: bytes) -> Iterator[tuple[str, str]]:
    """Give a folder, in memory where that is possible, and a file in it that holds `data`."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as folder:
        path = os.path.join(folder, "a.npz")
        with open(path, "wb") as file:
            file.write(data)
        yield folder, path
