"""Whether a writer can write: whose turn it is, and what a failure discards.

Owns the states of a writer: open, closed, given up. A failed write may leave
half a member behind, so the archive goes back to its last commit. Also owns the
lock of its threads, and that only the process that opened the archive writes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from npzkit.errors import ClosedArchiveError, NpzkitError
from npzkit.files.sink import Sink
from npzkit.writing.unsealed_arrays import Unsealed

T = TypeVar("T")


class WriterState:
    """The state of one writer.

    Parameters
    ----------
    sink : Sink
    unsealed : Unsealed
        Accept no more data once the archive is given up.
    path : str
        For messages.

    Attributes
    ----------
    is_open : bool
    failure : str
        Why the archive was given up; empty if it was not.
    turns : Turns
    """

    def __init__(self, sink: Sink, unsealed: Unsealed, path: str) -> None:
        self._sink, self._unsealed, self._path = sink, unsealed, path
        self.turns = Turns(path)
        self.is_open = True
        self.failure = ""

    def check_open(self, key: str | None = None) -> None:
        """Raise ClosedArchiveError unless the archive can be written to."""
        self.turns.check_process(key)
        self.check_sound(key)
        if not self.is_open:
            raise ClosedArchiveError(
                "the writer is closed", path=self._path, key=key,
                remedy='Open another one: NpzWriter(path, mode="a") adds to the archive.',
            )  # fmt: skip

    def check_sound(self, key: str | None = None) -> None:
        """Raise ClosedArchiveError if the archive was given up."""
        if self.failure:
            raise ClosedArchiveError(
                self.failure, path=self._path, key=key, remedy="Write it again from the start."
            )

    def giving_up(self, what: str = "an array could not be written") -> GivingUp:
        """Discard what was not committed if the ``with`` block fails; `what` is then the reason."""
        return GivingUp(self, self._sink, what)

    def give_up(self, what: str, error: BaseException, *, is_in_place: bool = False) -> None:
        """Go back to the last commit.

        Only the text of the error is kept: its frames hold the array.

        Parameters
        ----------
        what : str
            Why, without a full stop.
        error : BaseException
            Gets a note that says what happened to the file.
        is_in_place : bool
            Whether what was written counts all the same.
        """
        outcome = "what was written is in its place" if is_in_place else self._outcome
        self.is_open, self.failure = False, what
        self._unsealed.forget()
        try:
            self._sink.abort()
        except OSError as second:
            outcome = self._doubtful(outcome, second)
        self.failure = f"{outcome}, as {what}: {error!r}"
        error.add_note(f"npzkit: {self._path!r}: {outcome}.")

    @property
    def _outcome(self) -> str:
        """What giving up means for the file."""
        if self._sink.committed_size:
            return "what was written since the last commit was discarded"
        return "the archive was discarded"

    def _doubtful(self, outcome: str, error: OSError) -> str:
        """Return what giving up means if what was written could not be removed."""
        if self._sink.is_in_doubt:
            return f"whether what was written since the last commit counts is not known: {error}"
        if self._sink.committed_size:
            return f"{outcome}; its bytes are still in the file, but readers skip them: {error}"
        return f"{outcome}, but could not be removed: {error}"

    def discard(self) -> None:
        """Close without a commit, unless it is closed.

        Raises
        ------
        OSError
            What was written is still in the file.
        """
        if self.is_open:
            self.is_open = False
            self._unsealed.forget()
            self._sink.abort()


class GivingUp:
    """A block that writes: if it fails, the archive is given up."""

    __slots__ = ("_committed_size", "_sink", "_state", "_what")

    def __init__(self, state: WriterState, sink: Sink, what: str) -> None:
        self._state, self._sink, self._what = state, sink, what

    def __enter__(self) -> None:
        self._committed_size = self._sink.committed_size

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if error is not None:
            # If only the folder could not be synced, the commit is done.
            is_in_place = self._sink.committed_size > self._committed_size
            self._state.give_up(self._what, error, is_in_place=is_in_place)


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
