"""Which steps this process is reading.

Owns the count of readers per step, for all stores of one folder: a step that is being
read, or whose arrays are mapped, is not removed. Knows no files.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any


class Readers:
    """The readers of the steps in one place.

    Attributes
    ----------
    lock : threading.RLock
        Held while a reader begins, and while a step is removed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._counts: Counter[int] = Counter()
        # By the id of an object, which is forgotten when the object goes.
        self._holders: dict[int, tuple[int, weakref.ref[Any], Callable[[Any], bool]]] = {}

    @contextlib.contextmanager
    def reading(self, step: int) -> Iterator[None]:
        """Count as a reader of a step for the time of the block."""
        with self.lock:
            self._counts[step] += 1
        try:
            yield
        finally:
            with self.lock:
                self._counts[step] -= 1

    def hold(self, step: int, holder: Any, is_reading: Callable[[Any], bool]) -> None:
        """Count an object as a reader while it exists and `is_reading` says so."""
        number, holders = id(holder), self._holders

        def forget(_: object) -> None:
            holders.pop(number, None)

        holders[number] = step, weakref.ref(holder, forget), is_reading

    def is_read(self, step: int) -> bool:
        """Return whether anyone reads a step now."""
        with self.lock:
            return self._counts[step] > 0 or any(
                held == step and (holder := found()) is not None and is_reading(holder)
                for held, found, is_reading in list(self._holders.values())
            )


_known: weakref.WeakValueDictionary[str, Readers] = weakref.WeakValueDictionary()


def readers_of(path: str) -> Readers:
    """Return the readers of the steps at a path or URL, which all of its stores share."""
    place = path if "://" in path else os.path.realpath(path)
    readers = _known.get(place)
    if readers is None:
        readers = _known.setdefault(place, Readers())
    return readers


def _renew_locks() -> None:
    """In a forked child, no other thread is there to release a lock."""
    for readers in list(_known.values()):
        readers.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
