"""Files that are replaced by others of the same size and modification time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from npzkit.files.disk import RENAMES_OPEN_FILES

WAYS = ("renamed", "in place")
"""As `rsync -t` does, and as `cp -p` does."""


def replace_quietly(path: Path, data: bytes, way: str) -> None:
    """Give a file other bytes of the same number, and the time that it has."""
    found = os.stat(path)
    assert len(data) == found.st_size
    if os.name == "nt" and way == "in place":
        pytest.skip("Windows has no time of a change that programs cannot set")
    target = path if way == "in place" else path.with_name(path.name + ".new")
    target.write_bytes(data)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    while os.name != "nt" and os.stat(target).st_ctime_ns == found.st_ctime_ns:
        # The system's clock for files has not ticked since the file was written.
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    try:
        os.replace(target, path)
    except PermissionError:
        if RENAMES_OPEN_FILES:
            raise
        pytest.skip("Windows replaces no file that is open")
    now = os.stat(path)
    assert (now.st_size, now.st_mtime_ns) == (found.st_size, found.st_mtime_ns)
    assert (now.st_ino == found.st_ino) == (way == "in place")
