"""How much is read of a file object, or by the calls of the system."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest

__all__ = ["CountingBytes", "sizes_read"]


class CountingBytes(io.BytesIO):
    """A file in memory; `count` is how many bytes were read of it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def sizes_read(patched: pytest.MonkeyPatch) -> list[int]:
    """Return a list of how many bytes each call of the system is asked to read from now on."""
    sizes: list[int] = []

    def counted(name: str) -> Any:
        real = getattr(os, name)

        def read(descriptor: Any, what: Any, *offset: int) -> Any:
            sizes.append(what if isinstance(what, int) else sum(map(len, what)))
            return real(descriptor, what, *offset)

        return read

    for name in ("pread", "preadv", "read"):
        if hasattr(os, name):
            patched.setattr(os, name, counted(name))
    return sizes
