"""Work in threads beside a page: a newer request cancels the older one.

Owns when work is cancelled, and that its result is handed over by the page's own
thread. Knows no archive and no widget.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

_THREAD_COUNT = 3
"""Cancelled work ends at its next step. Until then, newer work has other threads."""


class Cancelled(BaseException):
    """Raised in cancelled work. No handler of errors takes it for one."""


class Work:
    """One request that is under way."""

    is_cancelled = False

    def proceed(self) -> None:
        """Raise `Cancelled` if nobody waits for the result any more."""
        if self.is_cancelled:
            raise Cancelled


class Worker:
    """Runs the newest of some requests.

    Parameters
    ----------
    hand_over : callable
        Takes a function without arguments from any thread, and calls it in the
        page's own.
    """

    def __init__(self, hand_over: Callable[[Callable[[], None]], object]) -> None:
        self._hand_over = hand_over
        self._threads = ThreadPoolExecutor(_THREAD_COUNT, "npzkit-view")
        self._is_closed = False
        self._work = Work()

    def start(
        self,
        do: Callable[[Work], T],
        take: Callable[[T], object],
        fail: Callable[[Exception], object],
    ) -> None:
        """Cancel what is under way, and do something else.

        Parameters
        ----------
        do : callable
            Called in a thread. It calls `Work.proceed` often.
        take, fail : callable
            Called in the page's thread with the result, or with the exception.
            Neither is called after `cancel`.
        """
        self.cancel()
        if self._is_closed:
            return
        self._work = Work()
        self._threads.submit(self._run, self._work, do, take, fail)

    def _run(
        self, work: Work, do: Callable[[Work], Any], take: Callable[..., Any], fail: Any
    ) -> None:
        try:
            work.proceed()
            call = partial(take, do(work))
        except Cancelled:
            return
        except Exception as error:
            call = partial(fail, error)

        self.tell(work, call)

    def tell(self, work: Work, call: Callable[[], object]) -> None:
        """Have the page's thread call a function, unless the work is cancelled until then."""

        def finish() -> None:
            if not work.is_cancelled:
                call()

        self._hand_over(finish)

    def cancel(self) -> None:
        """Cancel what is under way."""
        self._work.is_cancelled = True

    def close(self) -> None:
        """Cancel what is under way, and start nothing any more."""
        self.cancel()
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
