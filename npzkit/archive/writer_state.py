"""What a writer may do now: whether it is open, whose turn it is, what a failure leaves.

Owns the states of a writer:

| state | add, append, create, rename | del | commit | close | abort |
|---|---|---|---|---|---|
| open | done | done | done | commits | discards |
| an array grows | ValueError | done | ValueError | commits | discards |
| this thread writes | RuntimeError | RuntimeError | RuntimeError | RuntimeError | RuntimeError |
| another thread writes | waits | waits | waits | waits | waits |
| closed | refused | refused | refused | nothing | nothing |
| given up | refused | refused | refused | refused | nothing |
| in a forked child | refused | refused | refused | refused | nothing |

What is refused raises ClosedArchiveError. `close` seals what was created first, also an array
that grows. It leads to *closed*, and so does `abort`, which discards what was not committed.

An error that comes before anything is written changes nothing: the writer stays open. One
that comes while something is written may leave half a member behind, so the archive is
*given up*: it goes back to its last commit. An error of `close` gives it up as well, and says
that what was written is in its place if its commit was complete.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from npzkit.errors import ClosedArchiveError, NpzkitError, quoted
from npzkit.files.sink import Sink
from npzkit.writing.listed_members import MemberListing


class WriterState:
    """The state of one writer.

    Parameters
    ----------
    sink : Sink
    listing : MemberListing
        Its created arrays accept no more data once the archive is closed.
    path : str
        For messages.

    Attributes
    ----------
    is_open : bool
    failure : str
        Why the archive was given up; empty if it was not.
    lock : threading.RLock
        Held by the thread whose turn it is.
    """

    def __init__(self, sink: Sink, listing: MemberListing, path: str) -> None:
        self._sink, self._listing, self._path = sink, listing, path
        self._process = os.getpid()
        # Reentrant, so that a signal handler gets an error instead of waiting for ever.
        self.lock = threading.RLock()
        self._is_writing = False
        self._what, self._size_before = "", 0
        self.is_open = True
        self.failure = ""

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child's copy: its lock may be held for ever."""
        return os.getpid() != self._process

    def check_open(self, key: str | None = None) -> None:
        """Raise ClosedArchiveError unless the archive can be written to."""
        if os.getpid() != self._process:
            what = "the writer belongs to the process that made it, and this is a forked child"
            remedy = "Write in that process, or to another file."
        elif self.failure:
            what, remedy = self.failure, "Write it again from the start."
        elif not self.is_open:
            what = "the writer is closed"
            remedy = 'Open another one: NpzWriter(path, mode="a") adds to the archive.'
        else:
            return
        raise ClosedArchiveError(what, path=self._path, key=key, remedy=remedy)

    def run(self, work: Callable[..., Any], *args: Any, ends: bool = False) -> Any:
        """Call what changes the archive, while no other thread does.

        If it `ends` the archive, it is called in every state, but not in a forked child.

        Raises
        ------
        ClosedArchiveError, RuntimeError
            See the table of the module.
        """
        if os.getpid() != self._process:
            self.check_open()
        with self.lock:
            if self._is_writing:
                raise RuntimeError(
                    "the writer was called while it was writing, by a signal handler or by "
                    "the file object itself; call it when that is done"
                )
            self._is_writing = True
            try:
                if not (self.is_open or ends):
                    self.check_open()
                return work(*args)
            except NpzkitError as error:
                error.locate(path=self._path)
                raise
            finally:
                self._is_writing = False

    def giving_up(self, what: str = "an array could not be written") -> WriterState:
        """Give the archive up if the ``with`` block fails; `what` is then the reason.

        Blocks are not nested.
        """
        self._what, self._size_before = what, self._sink.committed_size
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if error is not None:
            # If only the folder could not be synced, the commit is done.
            is_in_place = self._sink.committed_size > self._size_before
            self.give_up(self._what, error, is_in_place=is_in_place)

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
        is_committed = self._sink.committed_size > 0
        if is_in_place:
            outcome = "what was written is in its place"
        elif is_committed:
            outcome = "what was written since the last commit was discarded"
        else:
            outcome = "the archive was discarded"
        self.failure = what
        try:
            self._end()
        except OSError as second:
            if self._sink.is_in_doubt:
                outcome = "whether what was written since the last commit counts is not known"
            elif is_committed:
                outcome += "; its bytes are still in the file, but readers skip them"
            else:
                outcome += ", but could not be removed"
            outcome += f": {second}"
        self.failure = f"{outcome}, as {what}: {error!r}"
        error.add_note(f"npzkit: {quoted(self._path)}: {outcome}.")

    def _end(self) -> None:
        self.is_open = False
        self._listing.forget_created()
        if self.is_inherited:
            # The file is as the process that made the writer left it.
            self._sink.close()
        else:
            self._sink.abort()

    def _discard(self) -> None:
        if self.is_open:
            self._end()

    def abort(self) -> None:
        """Close without a commit, unless it is closed.

        Raises
        ------
        OSError
            What was written is still in the file.
        RuntimeError
            This thread is writing.
        """
        if self.is_inherited:
            self._discard()
        else:
            self.run(self._discard, ends=True)

    def abandon(self, error: BaseException) -> None:
        """Abort because of an error, to which is added what could not be removed."""
        try:
            self.abort()
        except RuntimeError:
            # What this thread is writing when the error comes fails by it as well.
            return
        except OSError as second:
            error.add_note(
                f"npzkit: {quoted(self._path)}: what was written since the last commit was "
                f"discarded; its bytes are still in the file, but readers skip them: {second}"
            )
