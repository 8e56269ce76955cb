"""The tasks that a call starts in the event loop of fsspec, which end when the call is given up.

Owns how they are found. Most functions of fsspec begin a task in a loop that runs in
another thread, and wait for it, also where one file system works through another. So a function
that nobody waits for would go on, with its thread and its socket, until the task ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from npzkit.stores.time_limits import started

T = TypeVar("T")


class _Tasks:
    """What one call started, and has not ended yet."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_given_up = False

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_given_up:
            # The thread of the call goes on with its next step.
            _cancel(task)

    def give_up(self, future: Future[Any]) -> None:
        if future.cancelled():
            self._is_given_up = True
            for task in list(self._tasks):
                _cancel(task)


_current: ContextVar[_Tasks | None] = ContextVar("tasks of a call", default=None)


def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task after its first step, without which nobody would be told of its end."""
    # The loop may be closed.
    with contextlib.suppress(RuntimeError):
        task.get_loop().call_soon_threadsafe(task.cancel)


def started_in_loop(function: Callable[[], T]) -> Future[T]:
    """Call a function in a thread. If its future is cancelled, the tasks that it started are too.

    The loop is one that was passed to `follow`.
    """
    tasks, context = _Tasks(), copy_context()
    context.run(_current.set, tasks)
    future = context.run(started, function)
    future.add_done_callback(tasks.give_up)
    return future


class _Factory:
    """What makes the tasks of a loop, as before, and tells calls of those that they start."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        if self._inner is None:
            task = asyncio.Task(coroutine, loop=loop, **options)
        else:
            task = self._inner(loop, coroutine, **options)
        tasks = _current.get()
        # Tasks that another one starts end with it, if it waits for them.
        if tasks is not None and asyncio.current_task(loop) is None:
            tasks.add(task)
        return task


def follow(loop: asyncio.AbstractEventLoop) -> None:
    """Find tasks of this loop from now on."""
    inner = loop.get_task_factory()
    if not isinstance(inner, _Factory):
        loop.set_task_factory(_Factory(inner))
