"""Locks that keep two writers from changing one archive.

Owns the lock on a file. The operating system keeps it, an open file of its own
holds it, and it ends with the process that took it. That process unlocks the file
before it closes it: other threads may be starting processes, which have the open
file too until they run their program. Readers take no lock, except that one which
asks whether a writer is at work shares it for a moment.
Who waits has the file closed meanwhile: Windows replaces no file that is open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

from npzkit.errors import ArchiveLockedError, UnsupportedError, quiet_at_exit
from npzkit.files import disk, system_locks
from npzkit.files.disk import Descriptor

_FIRST_WAIT = 0.001
_LONGEST_WAIT = 0.05
_GRACE = 0.03
"""Seconds to keep trying, whatever the timeout: a process that was killed, or has just been
forked from one, lets its lock go a moment later."""
_LONGEST_ASK = 60.0
"""Seconds to wait for readers that ask for writers, whatever the timeout. They share the lock
for microseconds, but a busy machine may stop them just then."""
_MOST_REPLACED = 100
"""Times that a file is replaced between the calls that open it and lock it."""

_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock(Descriptor):
    """An exclusive lock on the file at a path, returned by `lock_path`. Close it to unlock.

    A forked child closes it without unlocking it, so that the lock ends with the process
    that took it. If the file is read-only, it is open for reading.

    Attributes
    ----------
    is_known : bool
        Whether the system has locks for this file, so that no other writer has it.
    """

    is_known = False
    _process = 0

    def take(self) -> bool:
        """Take the lock, and return whether it could be taken."""
        self._process = os.getpid()
        taken = system_locks.lock(self)
        self.is_known = taken is True
        return taken is not False

    def close(self) -> None:
        """Unlock the file, unless another process has taken the lock, and close it."""
        try:
            if not self.closed and self._process == os.getpid():
                system_locks.unlock(self)
        finally:
            super().close()

    __del__ = quiet_at_exit(close)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a writer or a store cannot be pickled; make one in each process")


def _release_all() -> None:
    for lock in list(_held):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)


def check_timeout(timeout: float | None, name: str = "lock_timeout") -> float:
    """Return a timeout in seconds; None means 0.

    Raises
    ------
    ValueError, TypeError
        The timeout is negative or not a number.
    """
    if timeout is None:
        return 0.0
    if isinstance(timeout, bool) or not hasattr(timeout, "__float__"):
        raise TypeError(f"{name} must be a number of seconds, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"{name} must be 0 or more seconds, not {timeout!r}")
    return float(timeout)


def lock_path(path: str, timeout: float, expected: Any = None) -> FileLock:
    """Lock the file at a path, waiting up to `timeout` seconds.

    `expected` is a descriptor of the file that must be there.

    Raises
    ------
    ArchiveLockedError
        Another writer has it open, in this process or another one.
    OSError
        The file cannot be opened, or is not the one that is expected.
    """
    waiting, replaced = _Waiting(path, timeout), 0
    while replaced < _MOST_REPLACED:
        lock, pause = _open(path), 0.0
        try:
            if expected is not None and not os.path.sameopenfile(expected, lock.fileno()):
                raise FileNotFoundError(errno.ENOENT, "another file is at the path", path)
            if lock.take():
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):
                        return lock
                # The file was replaced while this call waited for the lock.
                replaced += 1
            else:
                pause = waiting.next_pause(lock)
        except BaseException:
            # The error's traceback keeps this frame alive, and the frame keeps the lock.
            lock.close()
            raise
        lock.close()
        time.sleep(pause)
    raise UnsupportedError(
        "the file at the path is never the one that was opened there", path=path,
        remedy="Copy it to another file system: this one gives a file more than one identity.",
    )  # fmt: skip


def lock_created(lock: FileLock, path: str) -> None:
    """Take a lock that holds a new file open, to which no path leads that others know."""
    _held.add(lock)
    waiting = _Waiting(path, 0.0)
    while not lock.take():
        time.sleep(waiting.next_pause(lock))


def _open(path: str) -> FileLock:
    """Open the file to lock. If it is read-only, it can still be repaired to another path."""
    end = 0.0
    while True:
        try:
            lock = FileLock(path, "r+b", opener=os.open)
        except PermissionError as error:
            # Windows opens no file that is just being replaced.
            end = end or time.monotonic() + disk.PATIENCE
            is_file = os.path.isfile(path) and os.access(path, os.W_OK)
            may_come = is_file or not os.path.exists(path)
            if disk.is_in_use(error) and may_come and time.monotonic() < end:
                time.sleep(disk.PAUSE)
                continue
            lock = FileLock(path, "rb", opener=os.open)
        _held.add(lock)
        return lock


@contextlib.contextmanager
def holding(descriptor: Any, path: str | None, timeout: float) -> Iterator[None]:
    """Lock an open file against other writers inside a ``with`` block.

    Raises
    ------
    ArchiveLockedError
        Another writer holds the lock for longer than `timeout` seconds.
    """
    waiting = _Waiting(path, timeout)
    try:
        # An interrupt may come as soon as the lock is taken.
        while system_locks.lock(descriptor) is False:
            time.sleep(waiting.next_pause(descriptor))
        yield
    finally:
        system_locks.unlock(descriptor)


class _Waiting:
    """How long to wait for a lock, from the first time that it is taken."""

    def __init__(self, path: str | None, timeout: float) -> None:
        self._path, self._timeout = path, timeout
        self._deadline = time.monotonic() + timeout
        self._last = 0.0
        self._pause = _FIRST_WAIT

    def next_pause(self, descriptor: Any) -> float:
        """Return the seconds to wait before the next attempt.

        Raises
        ------
        ArchiveLockedError
            The time is over, and another writer has the lock.
        """
        now = time.monotonic()
        if not self._last:
            self._deadline, self._last = max(self._deadline, now + _GRACE), now + _LONGEST_ASK
        if now >= self._deadline and (now >= self._last or not _share(descriptor)):
            held = f"a lock held for more than {self._timeout:g} seconds"
            raise ArchiveLockedError(
                "another writer has the archive open",
                path=self._path,
                found=held if self._timeout else None,
                remedy="Wait until it is closed, or pass lock_timeout=seconds to wait longer.",
            )
        pause = min(self._pause, max(self._deadline - now, _FIRST_WAIT))
        self._pause = min(2 * self._pause, _LONGEST_WAIT)
        return pause


def is_locked(descriptor: Any) -> bool:
    """Return whether a writer has the file open now; False if that is unknown."""
    return _share(descriptor) is False


def _share(descriptor: Any) -> bool | None:
    """Share the lock for a moment, as other readers may; False if a writer has it.

    Return None if that is unknown.
    """
    try:
        return system_locks.lock(descriptor, shared=True)
    except OSError:
        return None
    finally:
        # An interrupt may come as soon as the lock is taken.
        system_locks.unlock(descriptor)
