"""Calls of other libraries that can be given up, because they may never return.

Owns the wait for them. An interrupt ends the wait; the call itself goes on in a thread of
its own, or in the library's event loop, and its result is dropped. A thread that died, because
memory ended, is noticed.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, TypeVar

from npzkit.files.threads import died

T = TypeVar("T")

PATIENCE = 0.4
"""Seconds that an interrupt waits for clean-up before it is raised."""


_LOOK_SECONDS = 0.25
"""Seconds between two looks whether the thread of a call lives."""


class _Call(Future[T]):
    """The future of a call in a thread of its own, which refers to the work."""

    alive: Callable[[], object | None] = object


class Calls:
    """Calls that are under way. Shared by threads."""

    def __init__(self) -> None:
        self._waited_for: set[Future[Any]] = set()

    def wait(self, future: Future[T], seconds: float | None = None) -> T:
        """Return the result of a call.

        Raises
        ------
        TimeoutError
            It takes longer.
        concurrent.futures.CancelledError
            It was given up.
        """
        self._waited_for.add(future)
        try:
            return _result(future, seconds)
        finally:
            self._waited_for.discard(future)
            # After an interrupt, its result is not wanted.
            future.cancel()

    def give_up(self) -> None:
        """Make waits of all threads end at once."""
        for future in list(self._waited_for):
            future.cancel()


def _result(future: Future[T], seconds: float | None) -> T:
    """Wait for the result of a call, and raise MemoryError if its thread died without one."""
    end = float("inf") if seconds is None else time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        try:
            return future.result(min(left, _LOOK_SECONDS))
        except TimeoutError:
            is_dead = isinstance(future, _Call) and future.alive() is None
            if future.done():
                # Perhaps this is its own error.
                return future.result()
            if left <= _LOOK_SECONDS:
                raise
            if is_dead:
                raise died() from None


def started(function: Callable[[], T], drop: Callable[[T], object] = lambda _: None) -> Future[T]:
    """Call a function in a thread of its own, if one can be started.

    `drop` is called with its result if the future was cancelled before.
    """
    future: _Call[T] = _Call()
    work = partial(_fulfil, future, function, drop)
    future.alive = weakref.ref(work)
    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:
        # No room for a thread, or Python is about to end.
        work()
    return future


def _fulfil(future: Future[T], function: Callable[[], T], drop: Callable[[T], object]) -> None:
    try:
        result = function()
    except BaseException as error:
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)
    else:
        try:
            future.set_result(result)
        except InvalidStateError:
            drop(result)


def patiently(function: Callable[[], T]) -> T:
    """Call a function; while an interrupt is handled, wait for `PATIENCE` seconds only.

    Raises
    ------
    TimeoutError
        It takes longer. It goes on in its thread.
    """
    error = sys.exc_info()[1]
    if error is None or isinstance(error, Exception):
        return function()
    try:
        return _result(started(function), PATIENCE)
    except TimeoutError as error:
        raise TimeoutError(str(error) or "there is no answer yet") from None
