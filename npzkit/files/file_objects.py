"""What callers pass as a file: its name and position, and how its bytes can be reached.

Owns the questions that are asked of a file object before it is read or written.
Reads nothing.
"""

from __future__ import annotations

import io
import os
import stat
from typing import Any, cast

from npzkit.files.disk import Descriptor

__all__ = [
    "UNNAMED",
    "can_read",
    "can_write",
    "cannot_seek",
    "is_archive",
    "is_plain_file",
    "name_of",
    "position_of",
    "unwrapped",
]

UNNAMED = "object"
"""The name that NumPy shows for a file object without a name."""


def can_read(file: Any) -> bool:
    """Return whether `file` is a file object to read from.

    An ``os.PathLike`` is a path, also if it has methods to read and write, as
    ``py.path.local`` does.
    """
    return hasattr(file, "read") and not isinstance(file, os.PathLike)


def can_write(file: Any) -> bool:
    """Return whether `file` is a file object to write to, and not a path."""
    return hasattr(file, "write") and not isinstance(file, os.PathLike)


def is_archive(file: Any) -> bool:
    """Return whether `file` is an open archive, whose source can be used."""
    return hasattr(file, "_lend_source")


def cannot_seek(file: Any) -> bool:
    """Return whether `file` is a stream that can only be read from front to back."""
    if not can_read(file) or is_archive(file):
        return False
    seekable = getattr(file, "seekable", None)
    return not hasattr(file, "seek") if seekable is None else not seekable()


def name_of(file: Any) -> str:
    """Return a file object's name for messages; the number of a descriptor is not a name."""
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else UNNAMED


def position_of(file: Any) -> int:
    """Return the current position of a file object that may lack ``tell``."""
    if hasattr(file, "tell"):
        return cast(int, file.tell())
    return cast(int, file.seek(0, os.SEEK_CUR))


def unwrapped(file: Any) -> Any:
    """Return the plain file inside a NamedTemporaryFile, or `file` itself."""
    return getattr(file, "file", file) if type(file).__module__ == "tempfile" else file


def is_plain_file(file: Any) -> bool:
    """Return whether the descriptor of a file object has the same bytes as the object.

    This is not so for a GzipFile, whose descriptor leads to compressed bytes,
    or for a subclass that changes ``read``. Only a ``FileIO``, with or without
    a buffer of `io`, is read by its descriptor.
    """
    if type(file) not in (io.FileIO, Descriptor, io.BufferedReader, io.BufferedRandom):
        return False
    raw = getattr(file, "raw", file)
    if type(raw) not in (io.FileIO, Descriptor) or raw.closed or not raw.readable():
        return False
    return stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
