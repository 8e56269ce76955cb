"""Calls of other libraries that can be given up, because they may never return.

Owns the wait for them, and how long they may take: `limited` begins a time limit that all calls
of its block share, and `extend` allows more time for bytes. An interrupt ends the wait; the call
itself goes on in a thread of its own, or in the library's event loop, and its result is dropped.
A thread that died, because memory ended, is noticed.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar

from npzkit.files.locking import check_timeout
from npzkit.files.threads import died

T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds of a call, beside the time for its bytes."""
SLOWEST = 1 << 15
"""Bytes per second that a call must have beside them."""
_LONGEST_TIMEOUT = 86_400.0
"""Seconds. A longer time limit is none: systems do not count so far."""

PATIENCE = 0.4
"""Seconds that an interrupt waits for clean-up before it is raised."""


_LOOK_SECONDS = 0.25
"""Seconds between two looks whether the thread of a call lives."""


class TimeLimit:
    """How long a call may still take.

    Parameters
    ----------
    seconds : float or None
        None is no limit.

    Notes
    -----
    The limit is `seconds`, and the time of the bytes at `SLOWEST` bytes per second. Bytes count
    when they have come, or, if that cannot be seen, when they are asked for. So a large download
    goes on for as long as it is fast enough, and one whose bytes come one by one ends. No pause
    may be longer than `seconds`.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self._begin = time.monotonic()
        self._end = self._silent_end = self._begin + self.seconds

    def extend(self, size: int) -> None:
        """Allow the time for more bytes."""
        allowed = size / SLOWEST
        self._end += allowed
        self._silent_end = time.monotonic() + self.seconds + allowed

    def left(self) -> float:
        """Return the seconds that are left; zero or less if the time is over."""
        return min(self._end, self._silent_end) - time.monotonic()

    def check(self) -> float:
        """Return the seconds that are left; raise TimeoutError if there are none."""
        left = self.left()
        if left <= 0:
            raise self.expired()
        return left

    def expired(self) -> TimeoutError:
        passed = time.monotonic() - self._begin
        return TimeoutError(f"there is no complete answer after {passed:.3g} seconds")


_limit: ContextVar[TimeLimit | None] = ContextVar("time limit of calls", default=None)


@contextlib.contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Limit the time of all calls of a block together, unless a block around it does."""
    if _limit.get() is not None:
        yield
        return
    token = _limit.set(TimeLimit(seconds))
    try:
        yield
    finally:
        _limit.reset(token)


def is_limited() -> bool:
    """Return whether this is in such a block, or in a thread or a task that one began."""
    return _limit.get() is not None


def extend(size: int) -> None:
    """Allow the calls of the block the time for so many bytes."""
    current_limit().extend(size)


def current_limit() -> TimeLimit:
    """Return the time limit of the block; no limit outside of one."""
    return _limit.get() or TimeLimit(None)


def timeout_in(options: Mapping[str, Any]) -> float | None:
    """Return the seconds of the storage option ``timeout``; None is no limit."""
    given = options.get("timeout", TIMEOUT)
    # fsspec passes an `aiohttp.ClientTimeout` on.
    timeout = check_timeout(getattr(given, "total", given), "timeout")
    return timeout if 0 < timeout <= _LONGEST_TIMEOUT else None


class _Call(Future[T]):
    """The future of a call in a thread of its own, which refers to the work."""

    alive: Callable[[], object | None] = object


class Calls:
    """Calls that are under way. Shared by threads."""

    def __init__(self) -> None:
        self._waited_for: set[Future[Any]] = set()

    def wait(self, future: Future[T]) -> T:
        """Return the result of a call. If the wait for it ends otherwise, it is cancelled.

        TimeoutError says that its time is over, and CancelledError that it was given up.
        """
        self._waited_for.add(future)
        try:
            return _result(future, current_limit())
        finally:
            self._waited_for.discard(future)
            # After an interrupt, or its time, its result is not wanted.
            future.cancel()

    def give_up(self) -> None:
        """Make waits of all threads end at once."""
        for future in list(self._waited_for):
            future.cancel()


def _result(future: Future[T], limit: TimeLimit) -> T:
    """Wait for the result of a call, and raise MemoryError if its thread died without one."""
    while True:
        try:
            return future.result(min(limit.left(), _LOOK_SECONDS))
        except TimeoutError:
            is_dead = isinstance(future, _Call) and future.alive() is None
            if future.done():
                # Perhaps this is its own error.
                return future.result()
            if limit.left() <= 0:
                raise limit.expired() from None
            if is_dead:
                raise died() from None


def started(function: Callable[[], T], drop: Callable[[T], object] = lambda _: None) -> Future[T]:
    """Call a function in a thread of its own, if one can be started, in a copy of the context.

    `drop` is called with its result if the future was cancelled before.
    """
    future: _Call[T] = _Call()
    work = partial(_fulfil, future, partial(copy_context().run, function), drop)
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
    """Call a function; while an interrupt is handled, TimeoutError ends it after `PATIENCE`."""
    error = sys.exc_info()[1]
    if error is None or isinstance(error, Exception):
        return function()
    try:
        return _result(started(function), TimeLimit(PATIENCE))
    except TimeoutError as error:
        raise TimeoutError(str(error) or "there is no answer yet") from None
