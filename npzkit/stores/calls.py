"""Calls of other libraries that can be given up, because they may never return.

Owns the wait for them. An interrupt ends the wait; the call itself goes on in a thread of
its own, or in the library's event loop, and its result is dropped.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 0.4
"""Seconds that an interrupt waits for clean-up before it is raised."""


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
            return future.result(seconds)
        finally:
            self._waited_for.discard(future)
            # After an interrupt, its result is not wanted.
            future.cancel()

    def give_up(self) -> None:
        """Make waits of all threads end at once."""
        for future in list(self._waited_for):
            future.cancel()


def started(function: Callable[[], T], drop: Callable[[T], object] = lambda _: None) -> Future[T]:
    """Call a function in a thread of its own, if one can be started.

    `drop` is called with its result if the future was cancelled before.
    """
    future: Future[T] = Future()
    try:
        _thread.start_new_thread(_fulfil, (future, function, drop))
    except RuntimeError:
        # No room for a thread, or Python is about to end.
        _fulfil(future, function, drop)
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
        return started(function).result(PATIENCE)
    except TimeoutError as error:
        raise TimeoutError(str(error) or "there is no answer yet") from None
