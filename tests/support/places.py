"""Files of checkpoints in a folder or in the store in memory: the bytes behind npzkit's back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

__all__ = ["damage", "join", "on_disk", "rename", "stored"]

on_disk = pytest.mark.parametrize("place", ["folder"], indirect=True)
"""For tests of what only a folder has."""


def stored(path: Any) -> Any:
    """Return what reads, writes and removes a file: a `Path`, or one like it for a URL."""
    return _Object(path) if "://" in str(path) else Path(path)


class _Object:
    """An object of the store in memory."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._memory = fsspec.filesystem("memory")
        self._path = url.removeprefix("memory:/")

    def read_bytes(self) -> bytes:
        return self._memory.cat_file(self._path)

    def write_bytes(self, data: bytes) -> None:
        self._memory.pipe_file(self._path, data)

    def unlink(self) -> None:
        self._memory.rm_file(self._path)


def join(folder: Any, name: str) -> str:
    """Return the path or URL of a file in a folder."""
    return f"{folder}/{name}"


def rename(path: Any, new: Any) -> None:
    """Give a file another name."""
    stored(new).write_bytes(stored(path).read_bytes())
    stored(path).unlink()


def damage(path: Any, what: bytes = b"NUMPY") -> None:
    """Flip a bit of the data of a step's first array."""
    data = bytearray(stored(path).read_bytes())
    data[data.index(what) + 200] ^= 1
    stored(path).write_bytes(data)
