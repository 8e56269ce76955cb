"""Who writes to an archive: one call at a time, in the process that opened it.

Owns the lock of a writer's threads. Knows nothing of what is written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from npzkit.errors import ClosedArchiveError, NpzkitError

__all__ = ["Turns"]

T = TypeVar("T")


class Turns:
    """Lets the calls of one writer work one after the other.

    Parameters
    ----------
    path : str
        For messages.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = os.getpid()
        # Reentrant, so that a signal handler gets an error instead of waiting for ever.
        self._lock = threading.RLock()
        self._is_writing = False

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy: its lock may be held for ever."""
        return os.getpid() != self._process

    def check_process(self, key: str | None = None) -> None:
        """Raise ClosedArchiveError in a forked child."""
        if os.getpid() != self._process:
            raise ClosedArchiveError(
                "the writer belongs to the process that made it, and this is a forked child",
                path=self._path, key=key, remedy="Write in that process, or to another file.",
            )  # fmt: skip

    def take(self, work: Callable[..., T], *args: Any) -> T:
        """Call `work` while no other thread writes.

        Raises
        ------
        RuntimeError
            A call further up in this thread is writing.
        ClosedArchiveError
            This is a forked child.
        """
        self.check_process()
        with self._lock:
            if self._is_writing:
                raise RuntimeError(
                    "the writer was called while it was writing, by a signal handler or by "
                    "the file object itself; call it when that is done"
                )
            self._is_writing = True
            try:
                return work(*args)
            except NpzkitError as error:
                error.locate(path=self._path)
                raise
            finally:
                self._is_writing = False
