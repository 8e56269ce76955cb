"""A file that a sink writes to: its descriptor, its locks, the name that errors have.

Owns what a new file (`npzkit.files.new_file`) and one that is appended to (`npzkit.files.append`)
have in common. Each of them says what may be written when, and what a commit is.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from npzkit.errors import ClosedArchiveError, StaleArchiveError
from npzkit.files.disk import Buffer, File
from npzkit.files.locking import FileLock

_AHEAD_SIZE = 1 << 20
"""The system is asked to begin to write pieces of this size and above, if a sync will follow."""


Kind = TypeVar("Kind", bound="WrittenFile")


class WrittenFile:
    """A file that is written.

    Parameters
    ----------
    path : str
        Without symbolic links.
    name : str
        The path that the user knows.
    durable : bool
        Wait for the disk at each commit.
    lock_timeout : float
        Seconds to wait for another writer.

    Attributes
    ----------
    target : str
        `path`, where the file is once it is committed.
    locks : list of FileLock
        The last one is that of the file.
    is_in_doubt : bool
        As of `npzkit.files.sink.Sink`.
    """

    is_in_doubt = False

    def __init__(self, path: str, name: str, *, durable: bool, lock_timeout: float) -> None:
        self.target, self.name, self.durable = path, name, durable
        self.lock_timeout = lock_timeout
        self.locks: list[FileLock] = []
        self._will_sync = durable
        self._is_closed = self._is_reserved = False
        self._process = os.getpid()

    def become(self, kind: type[Kind]) -> Kind:
        """Return another file at the same path, which takes over the locks."""
        file = kind(self.target, self.name, durable=self.durable, lock_timeout=self.lock_timeout)
        file.locks = self.locks
        return file

    @property
    def path(self) -> str:
        """At which the file is now."""
        return self.target

    @cached_property
    def file(self) -> File:
        """The file, opened again if a commit closed it."""
        return self._open()

    @property
    def _opened(self) -> File | None:
        return vars(self).get("file")

    def hold(self, lock: FileLock) -> None:
        """Keep the lock of the file that is replaced, or appended to."""
        self.locks.insert(0, lock)
        if not lock.writable():
            # For a replacement the system only checks the permissions of the folder, but users
            # expect a read-only file to stay.
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.name)

    def _open(self) -> File:
        # A thread was still filling an array when the writer closed.
        raise ClosedArchiveError("the writer is closed", path=self.name)

    @property
    def descriptor(self) -> Any:
        return self.file.descriptor

    def have_room(self, end: int) -> None:
        """Have room up to `end`, before anything of it is written."""

    def put(self, offset: int, data: Buffer) -> None:
        """Write bytes at an offset."""
        file = self.file
        self._tried(file.patch, offset, data)
        if len(data) >= _AHEAD_SIZE and self._will_sync:
            # The system begins to do what a sync would wait for.
            file.begin_sync(offset, len(data))

    def set_size(self, size: int) -> None:
        """Cut the file off, or extend it with zeros."""
        self._tried(self.file.truncate, size)

    def reserve(self, offset: int, size: int, mapped: bool) -> None:
        """Reserve space; see `npzkit.files.sink.Sink`."""
        self._is_reserved = True
        self._tried(self.file.reserve, offset, size, mapped)

    def cut_unused(self, size: int) -> None:
        """Cut off reserved bytes that were not used: nothing may follow the archive."""
        if self._is_reserved and self.file.size > size:
            self.set_size(size)

    def _tried(self, call: Callable[..., object], *args: Any) -> None:
        """Have an error of the system name the file that the user knows."""
        try:
            call(*args)
        except OSError as error:
            if error.errno and error.filename is None:
                error.filename = self.name
            raise

    def stale(self) -> StaleArchiveError:
        return StaleArchiveError(
            "the archive was moved, removed or replaced while it was written",
            path=self.name,
            remedy="Committed arrays are in the original file. Open the file that is at "
            "the path now, and write the others again.",
        )

    def close(self) -> None:
        self._is_closed = True
        try:
            self.close_file()
        finally:
            self.release_locks()

    def close_file(self) -> None:
        """Close the file, and keep the locks."""
        opened = self._opened
        if opened is not None:
            try:
                opened.close()
            finally:
                vars(self).pop("file", None)
                # An interrupt may have come before the first call did anything.
                opened.close()

    def release_locks(self, first: int = 0) -> None:
        for lock in self.locks[first:]:
            try:  # noqa: SIM105 - in half the time
                lock.close()
            except OSError:
                # Nothing was written through the lock's file, so an error does not matter.
                pass
        del self.locks[first:]

    def abort(self) -> None:
        """Remove what was not committed, and close."""
        # A forked child that drops its copy must not change the file of its parent.
        is_own = os.getpid() == self._process
        try:
            if is_own:
                self._take_back()
        finally:
            # An error in closing does not matter: nothing in the file is kept.
            with contextlib.suppress(OSError):
                self.close()
            if is_own:
                self._remove()

    def _take_back(self) -> None:
        """Cut off everything written since the last commit."""

    def _remove(self) -> None:
        """Remove the file if it was never committed. Windows cannot remove an open one."""
