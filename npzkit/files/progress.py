"""Progress reports for long operations.

Owns the count, which any thread adds to, and when it is reported: in the thread
that began the work, and not for every byte. Knows nothing about the work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npzkit.typing import Progress


Advance = Callable[[int], object]
"""A function of the bytes done since the last call."""

_REPORT_SIZE = 1 << 20
"""Bytes between two reports of large work."""
_STEP_COUNT = 200
"""Most reports of small work."""


class Meter:
    """Count the bytes that are done, and report them.

    The count never decreases. The last report, from `finish`, is the total.

    Parameters
    ----------
    report : callable or None
        Called in the thread that made the meter. It may raise an exception to
        stop the work.
    total : int
        Bytes in total.
    """

    def __init__(self, report: Progress | None, total: int) -> None:
        self._report = report
        self._total = total
        self._step = min(_REPORT_SIZE, total // _STEP_COUNT)
        self._done = 0
        self._reported = -1
        self._lock = threading.Lock()
        self._owner = threading.get_ident()

    def begin(self) -> None:
        """Report that nothing is done yet. The report may raise, which stops the work."""
        if self._report is not None:
            self._report(0, self._total)

    def add(self, count: int) -> None:
        """Count bytes, from any thread."""
        with self._lock:
            self._done = min(self._done + count, self._total)
        self.report()

    def reach(self, done: int) -> None:
        """Set the count to `done` bytes, unless it is already higher."""
        with self._lock:
            self._done = min(max(self._done, done), self._total)
        self.report()

    def part(self, size: int, work: int | None = None) -> Part:
        """Return a counter for `size` bytes of the total that take `work` bytes of reading."""
        return Part(self, size, size if work is None else work)

    def report(self) -> None:
        """Report the count of all threads, if called in the thread that made the meter."""
        if threading.get_ident() == self._owner and self._done - self._reported > self._step:
            self._tell()

    def finish(self) -> None:
        """Report the total, unless it was reported."""
        self._done = self._total
        if self._reported < self._total:
            self._tell()

    def _tell(self) -> None:
        self._reported = self._done
        if self._report is not None:
            self._report(self._reported, self._total)


class Part:
    """Count one part of the work, if the bytes read differ from the bytes to count.

    For example, a deflated member counts as its compressed bytes, and a damaged member
    counts completely. `Meter.part` returns these.
    """

    def __init__(self, meter: Meter, size: int, work: int) -> None:
        self._meter, self._size, self._work = meter, size, work
        self._worked = self._counted = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count bytes that were read, from any thread."""
        with self._lock:
            self._worked += count
            self._count(self._size * self._worked // max(self._work, 1))

    def reach(self, done: int, total: int) -> None:
        """Count the share that is done: a report, for work that is a part of another."""
        with self._lock:
            self._count(self._size * done // max(total, 1))

    def end(self) -> None:
        """Count the rest of the part."""
        with self._lock:
            self._count(self._size)

    def _count(self, counted: int) -> None:
        counted = min(counted, self._size)
        if counted > self._counted:
            difference, self._counted = counted - self._counted, counted
            self._meter.add(difference)
