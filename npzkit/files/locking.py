"""Locks that keep two writers from changing one archive.

Owns the lock on a file. The operating system keeps it, an open file of its own
holds it, and it ends with the process that took it. That process unlocks the file
before it closes it: other threads may be starting processes, which have the open
file too until they run their program. Readers take no lock, except that one which
asks whether a writer is at work shares it for a moment.
On Windows, lock libraries lock the bytes of the file itself, which nobody
could read then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import weakref
from collections.abc import Iterator
from typing import Any

from npzkit.errors import ArchiveLockedError
from npzkit.files.disk import Descriptor

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_FIRST_WAIT = 0.001
_LONGEST_WAIT = 0.05
_GRACE = 0.03
"""Seconds to keep trying, whatever the timeout: a process that was killed, or has just been
forked from one, lets its lock go a moment later."""
_LONGEST_ASK = 60.0
"""Seconds to wait for readers that ask for writers, whatever the timeout. They share the lock
for microseconds, but a busy machine may stop them just then."""
_WINDOWS_OFFSET = 0x7FFF_FFFF
"""The byte that is locked on Windows. Nobody can read it then, so it is far into the file."""
_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.EBADF}

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

    def take(self, path: str, timeout: float, deadline: float) -> None:
        """Take the lock; see `_wait`."""
        self._process = os.getpid()
        self.is_known = _wait(self, path, timeout, deadline)

    def close(self) -> None:
        """Unlock the file, unless another process has taken the lock, and close it."""
        try:
            if not self.closed and self._process == os.getpid():
                _change_lock(self, is_taken=False)
        except OSError:
            # On Windows, if the lock was not taken.
            pass
        finally:
            super().close()

    __del__ = close


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


def lock_path(path: str, timeout: float) -> FileLock:
    """Lock the file at a path, waiting up to `timeout` seconds.

    Raises
    ------
    ArchiveLockedError
        Another writer has it open, in this process or another one.
    OSError
        The file cannot be opened.
    """
    deadline = time.monotonic() + timeout
    while True:
        lock = _open(path)
        try:
            lock.take(path, timeout, deadline)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):
                    return lock
        except BaseException:
            # The error's traceback keeps this frame alive, and the frame keeps the lock.
            lock.close()
            raise
        # The file was replaced while this call waited for the lock.
        lock.close()


def lock_created(lock: FileLock, path: str) -> None:
    """Take a lock that holds a new file open, to which no path leads that others know."""
    _held.add(lock)
    lock.take(path, 0.0, 0.0)


def _open(path: str) -> FileLock:
    """Open the file to lock. If it is read-only, it can still be repaired to another path."""
    try:
        lock = FileLock(path, "r+b", opener=os.open)
    except PermissionError:
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
    try:
        # An interrupt may come as soon as the lock is taken.
        _wait(descriptor, path, timeout, time.monotonic() + timeout)
        yield
    finally:
        with contextlib.suppress(OSError):
            _change_lock(descriptor, is_taken=False)


def _wait(descriptor: Any, path: str | None, timeout: float, deadline: float) -> bool:
    """Take the lock, and return whether the system has locks for the file.

    Raises
    ------
    ArchiveLockedError
        The deadline is over, and another writer has the lock.
    """
    pause, last = _FIRST_WAIT, 0.0
    while (taken := _try_lock(descriptor)) is False:
        now = time.monotonic()
        if not last:
            deadline, last = max(deadline, now + _GRACE), now + _LONGEST_ASK
        if now >= deadline and (now >= last or not _share(descriptor)):
            raise ArchiveLockedError(
                "another writer has the archive open",
                path=path,
                found=f"a lock held for more than {timeout:g} seconds" if timeout else None,
                remedy="Wait until it is closed, or pass lock_timeout=seconds to wait longer.",
            )
        time.sleep(min(pause, max(deadline - now, _FIRST_WAIT)))
        pause = min(2 * pause, _LONGEST_WAIT)
    return taken is True


def is_locked(descriptor: Any) -> bool:
    """Return whether a writer has the file open now; False if that is unknown."""
    return _share(descriptor) is False


def _share(descriptor: Any) -> bool | None:
    """Share the lock for a moment, as other readers may; False if a writer has it.

    Return None if that is unknown.
    """
    if not hasattr(fcntl, "flock"):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    finally:
        # An interrupt may come as soon as the lock is taken.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _try_lock(descriptor: Any) -> bool | None:
    """Take the lock and return True; False if it is taken, None if the system has no locks."""
    try:
        return _change_lock(descriptor, is_taken=True)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        # Some network shares have no locks, or none for a file that is opened for reading.
        if error.errno not in _WITHOUT_LOCKS:
            raise
        return None


def _change_lock(descriptor: Any, *, is_taken: bool) -> bool | None:
    """Take or release the lock with the call that the system has; return None if it has none."""
    if hasattr(fcntl, "flock"):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if is_taken else fcntl.LOCK_UN)
    elif fcntl is None:
        import msvcrt

        windows: Any = msvcrt
        os.lseek(descriptor, _WINDOWS_OFFSET, os.SEEK_SET)
        windows.locking(descriptor, windows.LK_NBLCK if is_taken else windows.LK_UNLCK, 1)
    else:
        return None
    return True
