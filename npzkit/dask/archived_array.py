"""An array of an archive as the tasks of a graph hold it.

Owns that a task needs no open file: each process opens the archive when it first reads
from it, keeps it open for the tasks that follow, and refuses one that changed since.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npzkit.archive.reopening import Reopened


class ArchivedArray:
    """An array of an archive, which is read by indexing it. Can be pickled.

    Parameters
    ----------
    archive : Reopened
    key : str

    Attributes
    ----------
    key : str
    path : str or None
        For messages.
    shape : tuple of int
    dtype : numpy.dtype
    ndim, nbytes : int
    """

    def __init__(self, archive: Reopened, key: str) -> None:
        self._archive, self.key = archive, key
        lazy = archive.open().lazy(key)
        self.shape: tuple[int, ...] = lazy.shape
        self.dtype: np.dtype[Any] = lazy.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def path(self) -> str | None:
        return self._archive.path

    def __getitem__(self, index: Any) -> Any:
        lazy = self._archive.open().lazy(self.key)
        # Reading all of it checks the CRC-32 as well.
        return lazy.read() if _is_all(index, self.shape) else lazy[index]

    def __repr__(self) -> str:
        return f"ArchivedArray({self.path!r}, {self.key!r})"


def _is_all(index: Any, shape: tuple[int, ...]) -> bool:
    """Return whether an index takes a complete array, item by item."""
    return (
        isinstance(index, tuple)
        and len(index) == len(shape)
        and all(
            isinstance(part, slice) and part.indices(length) == (0, length, 1)
            for part, length in zip(index, shape, strict=True)
        )
    )
