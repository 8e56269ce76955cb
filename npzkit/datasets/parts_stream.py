"""An array of several parts as the bytes of one .npy file.

Owns the order of these bytes. They come from a `npzkit.LazyArray`, so that few of them
are in memory.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from npzkit.archive.lazyarray import LazyArray
from npzkit.format.array import array_bytes
from npzkit.format.descr import dtype_to_descr
from npzkit.format.header import format_header

_PIECE_SIZE = 1 << 22


class PartsStream(io.RawIOBase):
    """A stream that can be read forward.

    Parameters
    ----------
    lazy : LazyArray
    check : callable
        Called before the first byte is returned.
    """

    def __init__(self, lazy: LazyArray, check: Callable[[], object]) -> None:
        self._check = check
        self._pieces = chain([_header(lazy)], _pieces(lazy))
        self._left = memoryview(b"")
        self._is_checked = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the beginning of a buffer."""
        if not self._is_checked:
            self._check()
            self._is_checked = True
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._left))
        view[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def _header(lazy: LazyArray) -> bytes:
    fields = {
        "descr": dtype_to_descr(lazy.dtype),
        "fortran_order": lazy._header.fortran_order,
        "shape": lazy.shape,
    }
    return format_header(fields)


def _pieces(lazy: LazyArray) -> Iterator[Any]:
    """Yield the bytes of an array in the order of storage."""
    shape = lazy._stored(lazy.shape)
    size, axis = max(lazy.dtype.itemsize, 1), len(shape)
    # Pieces are slices along one axis, complete in those that change faster.
    while axis and size * shape[axis - 1] <= _PIECE_SIZE:
        axis -= 1
        size *= max(shape[axis], 1)
    if not axis:
        yield array_bytes(np.asarray(lazy[...]))
        return
    step = max(_PIECE_SIZE // size, 1)
    for outer in np.ndindex(*shape[: axis - 1]):
        for start in range(0, shape[axis - 1], step):
            rows = slice(start, start + step)
            index = (
                *(slice(at, at + 1) for at in outer),
                rows,
                *[slice(None)] * (len(shape) - axis),
            )
            yield array_bytes(np.asarray(lazy[lazy._stored(index)]))
