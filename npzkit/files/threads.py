"""Threads: how work is divided among them.

Owns that results are returned in order. Knows nothing about the work, and does not
decide how many threads there are. `npzkit.files.block_reading` reads files on several threads.

No thread outlives the call that started it, so a forked child never finds a
dead pool. The work releases the GIL: reads, CRCs, compression, decompression.

An interrupt may come at any moment, so this module waits only in single calls
in C. `threading` waits in Python for a thread to start or end, and an interrupt
there can release a lock that nobody holds.

If memory ends, a thread may die before it runs a line of Python, or before it can say
that it ends. So nobody waits only for what a thread says: each thread refers to its work,
and Python drops this reference however the thread ends.
"""

from __future__ import annotations

import _thread
import contextlib
import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from npzkit.errors import caller, quiet_at_exit, work_for

T = TypeVar("T")

_PENDING_TASKS = 2
"""Most tasks per thread that may be running or waiting."""
_PENDING_RESULTS = 128
"""Most results of short tasks that may wait for earlier tasks."""
_WAITING_SECONDS = 0.05
"""Seconds between two calls of a pipeline's `while_waiting`, and two looks whether threads live."""
_NOTHING = object()
"""The result of a task that has none yet."""


class _Threads:
    """Threads that run the same function and can be waited for.

    Parameters
    ----------
    work : callable
        Called once in each thread.
    args : tuple
    """

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        self._work = work, *args
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._alive: Callable[[], object | None] = _nobody
        self._started: list[int] = []
        self._more = 0

    def __len__(self) -> int:
        return len(self._started)

    def is_alive(self) -> bool:
        """Whether one of the threads has not ended."""
        return self._alive() is not None

    def start(self, count: int) -> None:
        """Start more threads, or fewer if the system has no room, or Python is about to end."""
        try:
            work: Any = self._alive()
            if work is None:
                self._ended = SimpleQueue()
                work = partial(_work_and_say, self._ended, caller(), *self._work)
                self._alive = weakref.ref(work)
            # One call, so that the threads that were started are known after an interrupt.
            self._started.extend(map(_thread.start_new_thread, repeat(work, count), repeat(())))
        except RuntimeError:
            pass
        except MemoryError:
            # It may have been started all the same.
            self._more = 1

    def wait(self) -> None:
        """Wait until all started threads have ended."""
        for _ in range(len(self._started) + self._more):
            while self.is_alive() and not _comes(self._ended):
                pass
        self._started.clear()
        self._more = 0


def _nobody() -> None:
    """Stand for threads before one is started."""


def _comes(ended: SimpleQueue[None]) -> bool:
    """Wait a moment for something in a queue, and return whether it came."""
    try:
        ended.get(timeout=_WAITING_SECONDS)
    except (Empty, MemoryError):
        return False
    return True


def _work_and_say(
    ended: SimpleQueue[None], told: tuple[str, int, dict[str, Any]], work: Callable[..., None],
    *args: Any,
) -> None:  # fmt: skip
    try:
        try:
            work_for(told)
            work(*args)
        finally:
            ended.put(None)
    except MemoryError:
        # Who waits for this thread finds that it has ended.
        return


def died() -> MemoryError:
    """Return the error for work that a thread began and did not end."""
    return MemoryError("a thread ended before its work was done")


def run(
    tasks: Sequence[Callable[[], T]], threads: int, *, first: Callable[[], object] | None = None
) -> list[T]:
    """Call every task and return the results in order.

    The calling thread works too. After an exception no further task is started,
    and the exception of the first failed task is raised; an interrupt before others.

    Parameters
    ----------
    tasks : sequence of callable
    threads : int
    first : callable, optional
        What the calling thread does first, while the others begin. Its exception is
        raised before those of tasks.
    """
    helper_count = min(threads - 1, len(tasks) - (first is None))
    if helper_count < 1:
        if first is not None:
            first()
        return list(map(operator.call, tasks))
    shared = _SharedTasks(tasks)
    helpers = _Threads(shared.work)
    try:
        helpers.start(helper_count)
        if first is not None:
            first()
        shared.work()
    finally:
        # Also needed if a signal handler raised here, outside a task.
        shared.left.clear()
        helpers.wait()
    return shared.finished()


class _SharedTasks:
    """Tasks that threads share, and what has become of them."""

    def __init__(self, tasks: Sequence[Callable[[], Any]]) -> None:
        self._tasks = tasks
        self.left = deque(range(len(tasks)))
        # All memory that it takes to report is there before the work begins.
        self._results: list[Any] = [_NOTHING] * len(tasks)
        self._failures: list[BaseException | None] = [None] * len(tasks)
        self._has_failed = False

    def work(self) -> None:
        """Do tasks until none is left, or one has failed."""
        while self.left and not self._has_failed:
            try:
                index = self.left.popleft()
            except IndexError:
                # Another thread took the last one.
                return
            try:
                self._results[index] = self._tasks[index]()
            except BaseException as error:
                self._failures[index] = error
                self._has_failed = True

    def finished(self) -> list[Any]:
        """Return the results, or raise why there are none."""
        if self._has_failed:
            errors = [error for error in self._failures if error is not None]
            # An interrupt may be why others failed.
            interrupts = [error for error in errors if not isinstance(error, Exception)]
            raise (interrupts or errors)[0]
        if any(map(operator.is_, self._results, repeat(_NOTHING))):
            raise died()
        return self._results


Outcome = tuple[Any, BaseException | None]
"""The result of a task, or its exception."""


class _Job:
    """A task of a pipeline, and what becomes of it, for which its worker needs no memory."""

    __slots__ = ("ended", "error", "result", "task")

    def __init__(self, task: Callable[[], Any]) -> None:
        self.task = task
        self.result: Any = None
        self.error: BaseException | None = None
        # Released when the task has ended.
        self.ended = _thread.allocate_lock()
        self.ended.acquire()


def grouped(
    items: Iterable[T], size_of: Callable[[T], int], most: int, count: int | None = None
) -> Iterator[list[T]]:
    """Yield the items of each task, in order: a large one, or several of `most` bytes together.

    `count` is the most items of a task, if that is limited.
    """
    group: list[T] = []
    filled = 0
    for item in items:
        size = size_of(item)
        if group and (filled + size > most or len(group) == count):
            yield group
            group, filled = [], 0
        group.append(item)
        filled += size
    if group:
        yield group


class Pipeline:
    """Run tasks on several threads, and pass on their results in the order of submission.

    Results are passed on in the thread that owns the pipeline. Only a few tasks
    per thread are pending, which limits the memory they use. Leaving the
    ``with`` block waits for all of them. After an exception, tasks that have not
    started are dropped. The block may be entered again.

    Parameters
    ----------
    threads : int
        With one thread, each task runs when it is submitted.
    while_waiting : callable, optional
        Called before each wait for a task, and regularly while the pipeline waits.

    Attributes
    ----------
    spare : dict
        What tasks keep for later tasks. Leaving the ``with`` block drops it.
    """

    def __init__(self, threads: int, while_waiting: Callable[[], object] | None = None) -> None:
        self._threads = threads
        self._while_waiting = while_waiting
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._workers = _Threads(_do, self._jobs)
        self.spare: dict[Any, list[Any]] = {}
        self._pending: deque[tuple[Callable[[], Outcome], Callable[[Any], None]]] = deque()

    def submit(self, task: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run `task` on a thread, and later call `then` with its result in this thread."""
        if self._threads == 1:
            then(task())
            return
        job = _Job(task)
        self._jobs.put(job)
        self._pending.append((partial(self._outcome, job), then))
        if len(self._workers) < self._threads:
            self._workers.start(1)
        if not self._workers.is_alive():
            self._work_here()
        while len(self._pending) > _PENDING_TASKS * self._threads:
            self._hand_on()

    def hand_on(self, task: Callable[[], T], then: Callable[[T], None]) -> None:
        """Call a short `task` now, and `then` after the results of earlier tasks."""
        result = task()
        if self._pending:
            self._pending.append((lambda: (result, None), then))
            while len(self._pending) > _PENDING_TASKS * self._threads + _PENDING_RESULTS:
                self._hand_on()
        else:
            then(result)

    def drain(self) -> None:
        """Wait for all pending tasks, and pass on their results."""
        while self._pending:
            self._hand_on()

    def _outcome(self, job: _Job) -> Outcome:
        """Wait for a task, and return its outcome."""
        while True:
            if self._while_waiting is not None:
                # Also if the task is done: a million short ones need no waiting.
                self._while_waiting()
            if job.ended.acquire(timeout=_WAITING_SECONDS):
                return job.result, job.error
            if not self._workers.is_alive():
                self._work_here()
                if job.ended.locked():
                    raise died()

    def _work_here(self) -> None:
        """Do the tasks in this thread, because no other can be started, or all have died."""
        self._jobs.put(None)
        while not self._jobs.empty():
            _do(self._jobs)

    def _hand_on(self) -> None:
        outcome, then = self._pending.popleft()
        result, error = outcome()
        if error is not None:
            try:
                raise error
            finally:
                # The traceback refers to this frame.
                del error
        then(result)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        try:
            if exc_type is None:
                self.drain()
        finally:
            self._pending.clear()
            with contextlib.suppress(Empty, MemoryError):
                while True:
                    self._jobs.get_nowait()
            self._dismiss()
            self._workers.wait()
            self.spare.clear()

    def _dismiss(self) -> None:
        """Tell every worker to end after its current task."""
        # One call, so that no interrupt can come between.
        any(map(self._jobs.put, repeat(None, len(self._workers))))

    @quiet_at_exit
    def __del__(self) -> None:
        # Needed if an interrupt came while the block was left.
        self._dismiss()


def _do(jobs: SimpleQueue[_Job | None]) -> None:
    """Run jobs until None comes instead of one, and keep no reference to finished jobs."""
    while (job := jobs.get()) is not None:
        try:
            job.result = job.task()
        except BaseException as error:
            job.error = error
        finally:
            del job.task
            job.ended.release()
        del job
