"""The locks of the system on an open file: ``flock``, or ``LockFileEx`` on Windows.

Owns how they are called, and nothing of what they mean. A lock is that of an open file: another
one of the same process is refused too, and it ends when that file is closed.

Windows locks bytes, not files, and nobody can read or write bytes that another file has locked.
So the byte that stands for the file is the last one that a file of Windows could have.
"""

from __future__ import annotations

import contextlib
import errno
from operator import index
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

WINDOWS_OFFSET = 0x7FFF_FFFF_FFFF_FFFE
"""The byte that is locked on Windows. It is part of what writers of one file agree on."""
_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.EBADF}
_AT_ONCE, _EXCLUSIVE = 1, 2
"""``LOCKFILE_FAIL_IMMEDIATELY`` and ``LOCKFILE_EXCLUSIVE_LOCK``."""
_BUSY_ON_WINDOWS = {33, 997}
"""``ERROR_LOCK_VIOLATION`` and ``ERROR_IO_PENDING``."""


def lock(descriptor: Any, *, shared: bool = False) -> bool | None:
    """Lock an open file and return True; False if it is taken, None if there are no locks for it.

    Some network shares have none, or none for a file that is opened for reading.
    """
    if fcntl is None:
        return _lock_on_windows(descriptor, 0 if shared else _EXCLUSIVE)
    if not hasattr(fcntl, "flock"):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno not in _WITHOUT_LOCKS:
            raise
        return None
    return True


def unlock(descriptor: Any) -> None:
    """Unlock an open file, if it was locked."""
    if fcntl is None:
        _unlock_on_windows(descriptor)
    elif hasattr(fcntl, "flock"):
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _lock_on_windows(descriptor: Any, kind: int) -> bool | None:
    number = _call_windows("LockFileEx", descriptor, kind | _AT_ONCE, 0)
    return None if number and number not in _BUSY_ON_WINDOWS else not number


def _unlock_on_windows(descriptor: Any) -> None:
    _call_windows("UnlockFileEx", descriptor, 0)


def _call_windows(name: str, descriptor: Any, *first: int) -> int:
    """Call a function of ``kernel32`` for the byte, and return the number of its error, or 0."""
    import ctypes
    import msvcrt

    windows: Any = ctypes
    runtime: Any = msvcrt
    handle = ctypes.c_void_p(runtime.get_osfhandle(index(descriptor)))
    # OVERLAPPED: two numbers of the system, where the byte is, and no event.
    number = ctypes.sizeof(ctypes.c_void_p)
    place = bytes(2 * number) + WINDOWS_OFFSET.to_bytes(8, "little") + bytes(number)
    function = getattr(windows.WinDLL("kernel32", use_last_error=True), name)
    is_done = function(handle, *first, 1, 0, ctypes.create_string_buffer(place, len(place)))
    return 0 if is_done else windows.get_last_error()
