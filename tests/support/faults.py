"""An `os` whose calls fail, to be put in the place of `npzkit.files.disk`'s."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["CALLS", "DeadlyOS", "FaultyOS", "descriptor_count"]

CALLS = [
    "pwrite", "write", "ftruncate", "posix_fallocate", "fsync", "fdatasync", "replace", "link",
    "unlink", "open", "close",
]  # fmt: skip
"""Every call by which a file is made, changed or let go."""
SYNCS = ["fsync", "fdatasync"]


class FaultyOS:
    """`os`, with one call that fails, and possibly more after it.

    Parameters
    ----------
    number : int, default 0
        Which of the calls fails, from 1 on; 0 for none.
    error_number : int or None
        What it fails by; None for a write that is cut short and says so.
    counted : sequence of str
        The calls that are counted.
    failing : sequence of str, default none
        Calls that fail from then on, every time.
    interrupts : bool, default False
        The call does not fail: it does what it should, and then SIGINT has come.

    Attributes
    ----------
    calls : list of (str, object)
        What was called, of `CALLS`, and on which descriptor or path.
    error : OSError or None
        The one that was raised.
    lost : list of int
        Descriptors that nobody got, as the call that opened them was interrupted.
    failed : str
        The name of the call that failed.
    later : list of str
        What was called after it.
    """

    def __init__(
        self,
        number: int = 0,
        error_number: int | None = None,
        counted: list[str] = CALLS,
        failing: tuple[str, ...] = (),
        interrupts: bool = False,
    ) -> None:
        self.number, self.error_number = number, error_number
        self.counted, self.failing = counted, failing
        self.interrupts = interrupts
        self.lost: list[int] = []
        self.calls: list[tuple[str, Any]] = []
        self.count = 0
        self.error: OSError | None = None
        self.failed = ""
        self.later: list[str] = []

    @property
    def was_hit(self) -> bool:
        return bool(self.failed)

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return partial(self._call, name, real) if name in CALLS else real

    def _call(self, name: str, real: Callable[..., Any], *given: Any, **options: Any) -> Any:
        # A file is open for as long as a frame of an error holds what owns it.
        args = [arg.fileno() if isinstance(arg, io.FileIO) else arg for arg in given]
        del given
        real = partial(real, **options) if options else real
        self.calls.append((name, args[0] if args else None))
        if self.was_hit:
            self.later.append(name)
            if name in self.failing:
                raise self._new_error()
        elif name in self.counted:
            self.count += 1
            if self.count == self.number:
                self.failed = name
                return self._fail(name, real, *args)
        # What waits for the disk takes long and changes nothing that a test can see.
        return None if name in SYNCS else real(*args)

    def _fail(self, name: str, real: Callable[..., Any], *args: Any) -> Any:
        if self.interrupts:
            result = None if name in SYNCS else real(*args)
            if name == "open":
                self.lost.append(result)
            raise KeyboardInterrupt
        if name in ("pwrite", "write"):
            descriptor, data, *offset = args
            if self.error_number is None:
                return real(descriptor, data[: max(len(data) // 2, 1)], *offset)
            # Some of it may be in the file, and nobody is told.
            real(descriptor, data[: len(data) // 2], *offset)
        elif name == "close":
            # The descriptor is gone all the same, on Linux.
            real(*args)
        self.error = self._new_error()
        raise self.error

    def _new_error(self) -> OSError:
        assert self.error_number is not None
        return OSError(self.error_number, os.strerror(self.error_number))


class DeadlyOS(FaultyOS):
    """`os`, which kills the process at one of its calls, in the middle of what it writes."""

    def _fail(self, name: str, real: Callable[..., Any], *args: Any) -> Any:
        if name in ("pwrite", "write"):
            descriptor, data, *offset = args
            real(descriptor, data[: len(data) // 2], *offset)
        os.kill(os.getpid(), 9)


def descriptor_count() -> int:
    """Return how many descriptors are open; 0 where that cannot be told.

    It may fall while a test runs: what others left is collected.
    """
    # Under wine, those of other programs are there too.
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
