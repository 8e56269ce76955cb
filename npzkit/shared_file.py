"""A file that several write at offsets: threads, and processes that open it too.

Knows nothing of what is in it, nor when it takes another's place.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol, cast

__all__ = ["OPEN_FLAGS", "Buffer", "Place", "SharedFile", "write_at"]

_CALL_SIZE = 1 << 30
"""Linux takes at most 2 GiB a call, macOS refuses more."""

OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""What every file is opened with."""

Buffer = bytes | bytearray | memoryview


class Place(Protocol):
    """A file in which bytes are written at offsets, by several at a time.

    Attributes
    ----------
    path : str or None
        By which other processes find it.
    descriptor : int or None
        By which it can be mapped.
    """

    @property
    def path(self) -> str | None: ...
    @property
    def descriptor(self) -> int | None: ...
    def patch(self, offset: int, data: Buffer) -> None: ...


class SharedFile:
    """A file that others may be writing too; a `Place`.

    Parameters
    ----------
    path : str or None
        Opened, unless there is a descriptor.
    descriptor : int, optional
        Of a file open for writing; a duplicate of it is kept.
    """

    def __init__(self, path: str | None, descriptor: int | None = None) -> None:
        self.descriptor = -1
        self.path = path
        self._lock = threading.Lock()
        if descriptor is None:
            self.descriptor = os.open(cast(str, path), os.O_RDWR | OPEN_FLAGS)
        else:
            self.descriptor = os.dup(descriptor)

    def patch(self, offset: int, data: Buffer) -> None:
        write_at(self.descriptor, self._lock, offset, memoryview(data))

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def write_at(descriptor: int, lock: threading.Lock, offset: int, view: memoryview) -> None:
    """Write all of `view` at `offset`; under `lock` where only seeking can do it."""
    if hasattr(os, "pwrite"):
        while len(view):
            written = os.pwrite(descriptor, view[:_CALL_SIZE], offset)
            view, offset = view[written:], offset + written
        return
    with lock:
        os.lseek(descriptor, offset, os.SEEK_SET)
        while len(view):
            view = view[os.write(descriptor, view[:_CALL_SIZE]) :]
