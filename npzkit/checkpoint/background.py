"""Saving in a thread: every failure is raised once, or is a warning when Python ends.

Owns `Saving`, the thread, what happens to a failure that nobody waited for, and the
end of Python, which waits for saves. `threading` does not start the thread: it would wait
for ever for one that dies before it runs a line, because memory ended. Knows neither files
nor arrays.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from functools import cache, partial
from traceback import clear_frames
from typing import Any

from npzkit.errors import caller, explain, quoted, work_for
from npzkit.files.threads import died

_LOOK_SECONDS = 0.25
"""Seconds between two looks whether the thread of a save lives."""


class Saving:
    """One call of `CheckpointStore.save`, which may still be under way.

    Attributes
    ----------
    step : int
    path : str
        The step's file, which exists once the save is done.
    skipped : bool
        Whether nothing is saved, because another save was under way.
    removed : tuple of int
        The steps that the policy removed after this one was saved.
    """

    def __init__(self, step: int, path: str, *, skipped: bool = False) -> None:
        self.step, self.path, self.skipped = step, path, skipped
        self.removed: tuple[int, ...] = ()
        self._error: BaseException | None = None
        self._ended = threading.Event()
        # Returns None once the thread has ended, however that was.
        self._alive: Callable[[], object | None] = object
        if skipped:
            self._ended.set()

    def done(self) -> bool:
        """Return whether the save has ended, successfully or not."""
        return self._ends_within(0)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the step is saved.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Raises
        ------
        TimeoutError
            The save is still under way.
        NpzkitError, OSError
            The save failed; it is the error that the save would have raised.
        """
        self._wait_for_end(timeout)
        if self._error is not None:
            _unheard.discard(self)
            raise self._error

    def _wait_for_end(self, timeout: float | None) -> None:
        if not self._ends_within(float("inf") if timeout is None else timeout):
            raise TimeoutError(f"step {self.step} was not saved within {timeout} seconds")

    def _ends_within(self, seconds: float = float("inf")) -> bool:
        """Wait until the save has ended, also if its thread died without a word."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            if self._ended.wait(min(max(left, 0), _LOOK_SECONDS)):
                return True
            if self._alive() is None:
                if not self._ended.is_set():
                    self._error = died()
                    self._ended.set()
                return True
            if left <= 0:
                return False

    def _finish(self, removed: tuple[int, ...]) -> None:
        """Note what was removed after the step was saved."""
        self.removed = tuple(removed)
        self._ended.set()

    def _run(self, told: Any, work: Callable[[], tuple[int, ...]]) -> None:
        """Do the work of a thread, for whom `told` says, whose line warnings name."""
        work_for(told)
        try:
            removed = work()
        except BaseException as error:
            # Its traceback keeps these frames, which hold the copies of the arrays.
            clear_frames(error.__traceback__)
            del work
            self._error = error
            self._ended.set()
        else:
            _unheard.discard(self)
            self._finish(removed)

    def __repr__(self) -> str:
        state = "under way"
        if self.skipped:
            state = "skipped"
        elif self._error is not None:
            state = f"failed: {self._error}"
        elif self.done():
            state = "saved"
        return f"<Saving of step {self.step}: {state}>"


_unheard: set[Saving] = set()
"""Saves that are under way, and those whose failure was not raised yet."""


_ending = threading.Event()
"""Set when Python has begun to end: nobody waits for threads from then on."""


@atexit.register
def _end() -> None:
    """Report failures when Python ends.

    It has waited for the threads by then, except for those that other functions
    started which are called at exit.
    """
    _ending.set()
    for saving in sorted(_unheard, key=lambda one: one.step):
        saving._ends_within()
        if (error := saving._error) is not None:
            warnings.warn(
                f"step {saving.step} was not saved to {saving.path}: "
                f"{type(error).__name__}: {error}. To get an error instead, close the store, "
                "or use a with block.",
                RuntimeWarning, stacklevel=1,
            )  # fmt: skip
    _unheard.clear()


@cache
def outlive_pools() -> None:
    """Have Python wait for saves at its end before it ends the thread pools of libraries.

    The libraries of stores need a pool to look up
    addresses. Python 3.12 starts no thread at its end, so there a pool must have one already.
    """
    # Of functions that are registered later, the last one is called first.
    import concurrent.futures.thread  # noqa: F401

    # No public function is called before Python waits for its threads and ends the pools. Without
    # this one, a program must close its store.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):
            register(_wait_for_all)


def _wait_for_all() -> None:
    for saving in list(_unheard):
        saving._ends_within()


class Background:
    """The saves of one store, of which one is under way at a time.

    Attributes
    ----------
    turn : threading.RLock
        Held by each call that changes the store.
    """

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self._last: Saving | None = None
        _all.add(self)

    @property
    def under_way(self) -> Saving | None:
        """The save that has not ended yet."""
        last = self._last
        return last if last is not None and not last.done() else None

    def start(self, saving: Saving, work: Callable[[], tuple[int, ...]]) -> None:
        """Run `work` in a thread."""
        self._last = saving
        _unheard.add(saving)
        outlive_pools()
        run = partial(saving._run, caller(), work)
        saving._alive = weakref.ref(run)
        try:
            if not _ending.is_set():
                _thread.start_new_thread(run, ())
                return
        except RuntimeError:
            # The system has no room for a thread, or Python starts none at its end.
            pass
        except MemoryError:
            # It may have been started all the same, which the wait finds out.
            del run
            saving.wait()
            return
        run()
        saving.wait()

    def wait_for_end(self, timeout: float | None = None) -> None:
        """Wait for the save under way. If it fails, a later call raises that.

        Raises
        ------
        TimeoutError
            The save is still under way.
        """
        # Another thread may hear of its end meanwhile.
        if (last := self._last) is not None:
            last._wait_for_end(timeout)

    def wait(self, timeout: float | None = None, unsaved: int | None = None) -> None:
        """Wait for the save under way, and raise a failure that was not raised before.

        Its message also names the step `unsaved`, which the caller does not save then.

        Raises
        ------
        TimeoutError
            The save is still under way.
        """
        self.wait_for_end(timeout)
        last = self._last
        if last is None or not last.done():
            return
        self._last = None
        if last._error is not None and last in _unheard:
            text = f"saving step {last.step} to {quoted(last.path)} in the background failed"
            if unsaved is not None:
                text += f"; step {unsaved} was not saved: call save again"
            explain(last._error, text)
            last.wait()


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _forget_in_child() -> None:
    """In a forked child: the parent saves, and is the one to hear of failures."""
    for saving in _unheard:
        # Its thread is not there, so that waiting would never end.
        saving._ended = threading.Event()
        saving._error = RuntimeError(f"step {saving.step} is saved by the parent process")
        saving._ended.set()
    _unheard.clear()
    for background in list(_all):
        background.turn = threading.RLock()
        background._last = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
