"""An array of any size that takes no memory: its values are computed where it is indexed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["VirtualArray"]


class VirtualArray:
    """The array ``np.arange(prod(shape)).reshape(shape)``, which counts what is read of it.

    Attributes
    ----------
    read_count, read_size : int
        Indexing operations, and the bytes that they returned.
    largest : int
        The bytes of the largest one.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any = "f8") -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.read_count = self.read_size = self.largest = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        items += (slice(None),) * (len(self.shape) - len(items))
        found: Any = np.int64(0)
        for length, item in zip(self.shape, items, strict=True):
            found = np.asarray(found)[..., np.newaxis] if isinstance(item, slice) else found
            if isinstance(item, slice):
                found = found * length + np.arange(*item.indices(length), dtype=np.int64)
            else:
                found = found * length + item
        values = np.asarray(found).astype(self.dtype)
        self.read_count += 1
        self.read_size += values.nbytes
        self.largest = max(self.largest, values.nbytes)
        return values
