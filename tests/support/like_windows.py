"""Windows' rules for files, on Linux: what is open or mapped is not replaced, removed or cut off.

`like_windows` puts them before the calls of `npzkit.files.disk`, for files that any process of
this user has open. On Windows there is nothing to do. Elsewhere, without ``/proc``, nothing can be
told, and tests are skipped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path

import npzkit.files.disk
import pytest

needs_rules = pytest.mark.skipif(
    sys.platform not in ("linux", "win32"), reason="needs /proc, or Windows"
)


def is_open(path):
    """Return whether a process has a file open."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    for process in (name for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{process}/fd/{name}"), found):
                        return True
    return False


def is_mapped(path):
    """Return whether a process has a file mapped."""
    end = f" {os.path.realpath(path)}\n"
    for process in (name for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError), open(f"/proc/{process}/maps") as lines:
            if any(line.endswith(end) for line in lines):
                return True
    return False


class _Calls:
    """`os`, with Windows' rules."""

    def __getattr__(self, name):
        return getattr(os, name)

    def replace(self, source, target):
        refuse(source, target)
        os.replace(source, target)

    def unlink(self, path):
        refuse(path)
        os.unlink(path)

    def ftruncate(self, descriptor, size):
        if is_mapped(f"/proc/self/fd/{descriptor.fileno()}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        os.ftruncate(descriptor, size)


def refuse(*paths):
    """Raise PermissionError if one of the files is in use."""
    for path in paths:
        if is_open(path) or is_mapped(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def like_windows(patch):
    """Have npzkit see a system with these rules, until the patch is undone."""
    if os.name == "nt":
        return
    patch.setattr(npzkit.files.disk, "RENAMES_OPEN_FILES", False)
    patch.setattr(npzkit.files.disk, "os", _Calls())


def files_in(folder):
    """Return the names of all files in a folder."""
    return sorted(path.name for path in Path(folder).iterdir())
