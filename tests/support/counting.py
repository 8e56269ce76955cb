"""A file object that counts what is read of it."""

from __future__ import annotations

import io

__all__ = ["CountingBytes"]


class CountingBytes(io.BytesIO):
    """A file in memory; `count` is how many bytes were read of it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data
