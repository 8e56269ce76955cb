"""Bytes that are received, for a progress bar.

Owns what counts them, and in which block of code.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_RECEPTION: ContextVar[Reception | None] = ContextVar("reception", default=None)


class Reception:
    """What distant archives send, and how much they have.

    Attributes
    ----------
    size : int
        Bytes of all distant archives that were opened.
    received : int
        Bytes that came, those of repeated requests included.
    watch : callable or None
        Called in any thread after bytes came.
    """

    def __init__(self) -> None:
        self.size = self.received = 0
        self.watch: Callable[[], object] | None = None
        self._lock = threading.Lock()

    def expect(self, size: int) -> None:
        """Count an archive that was opened."""
        with self._lock:
            self.size += size

    def add(self, count: int) -> None:
        """Count bytes, from any thread."""
        with self._lock:
            self.received += count
        if self.watch is not None:
            self.watch()


@contextlib.contextmanager
def receiving() -> Iterator[Reception]:
    """Count what the archives send that are opened by their URLs in a ``with`` block."""
    reception = Reception()
    token = _RECEPTION.set(reception)
    try:
        yield reception
    finally:
        _RECEPTION.reset(token)


def current_reception() -> Reception | None:
    """Return what counts, or None outside of such a block."""
    return _RECEPTION.get()
