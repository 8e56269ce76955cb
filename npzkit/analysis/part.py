"""A part of an array, read piece by piece.

Owns which items an index and a field stand for, and that no more than these are
read. Knows no archive: the array may be lazy, or in memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from npzkit.reading.blocks import blocks
from npzkit.reading.indexing import select

_PIECE_SIZE = 1 << 20
"""Bytes of a piece."""


class ArrayPart:
    """A part of an array, of which shape and dtype are known before it is read.

    Parameters
    ----------
    source : LazyArray or numpy.ndarray
    items : object, optional
        The index: integers, slices, Ellipsis, and one list or array of integers
        or booleans at most. What a list or an array chooses is read at once.
    field : str, optional
        The field of a structured array.
    fortran_order : bool, default False
        Whether the array is stored by columns; `pieces` are read in this order.

    Attributes
    ----------
    shape : tuple of int
        Before the field is taken.
    dtype : numpy.dtype
        The field's, where there is one.
    field_shape : tuple of int
        The axes that each item of a field has of its own.
    source : LazyArray or numpy.ndarray
        What it is a part of.
    is_whole : bool
        Whether it is all of the array, or of one field.

    Raises
    ------
    IndexError
        The array has no such part or field.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"w": np.arange(1_000_000.0).reshape(1000, 1000)})
    >>> with npzkit.open(stream) as npz:
    ...     part = npzkit.ArrayPart(npz.lazy("w"), np.s_[::2, -1])
    ...     part.shape, part.nbytes, part.read(slice(2)), len(list(part.pieces()))
    ((500,), 4000, array([ 999., 2999.]), 1)
    """

    def __init__(
        self,
        source: Any,
        items: Any = (),
        field: str | None = None,
        *,
        fortran_order: bool = False,
    ) -> None:
        # A new axis changes no value.
        items = tuple(
            item for item in (items if isinstance(items, tuple) else (items,)) if item is not None
        )
        self._field, self._fortran_order = field, fortran_order
        dtype = _field_dtype(source.dtype, field)
        self.dtype: np.dtype[Any] = dtype.base
        self.field_shape = dtype.shape
        self.is_whole = not items
        selection = select(items, source.shape)
        chosen = [item for item in selection.index if item is not ...]
        if any(isinstance(item, np.ndarray) for item in chosen):
            source = source[items]
            self._items: list[Any] = list(map(range, source.shape))
        else:
            self._items = list(map(operator.getitem, selection.positions, chosen))
        self.source = source
        self.shape = tuple(len(item) for item in self._items if isinstance(item, range))

    @property
    def size(self) -> int:
        """How many items it has, fields' own axes aside."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that are read for all of it."""
        return self.size * int(self.source.dtype.itemsize)

    def read(self, *slices: slice) -> Any:
        """Return what a slice for each axis chooses of the part, or all of it."""
        left = iter(slices or [slice(None)] * len(self.shape))
        chosen = tuple(
            _as_slice(item[next(left)]) if isinstance(item, range) else item for item in self._items
        )
        return self.field_of(self.source[chosen])

    def field_of(self, values: Any) -> Any:
        """Return the field that is wanted of some of the array's items."""
        return values if self._field is None else values[self._field]

    def last_position(self) -> tuple[int, ...]:
        """Return the position in the array after which nothing is read; it is not empty."""
        return tuple(
            item if isinstance(item, int) else max(item[0], item[-1]) for item in self._items
        )

    def pieces(self) -> Iterator[Any]:
        """Yield all of it, about a megabyte at a time, in the order in which it is stored."""
        if self.is_whole and hasattr(self.source, "iter_chunks"):
            chunks = self.source.iter_chunks()
        else:
            chunks = blocks(
                self.shape, self.source.dtype.itemsize, by_columns=self._fortran_order,
                size=_PIECE_SIZE,
            )  # fmt: skip
        for chunk in chunks:
            yield self.read(*chunk)


def _field_dtype(dtype: np.dtype[Any], field: str | None) -> np.dtype[Any]:
    if field is None:
        return dtype
    if dtype.names is None or field not in dtype.names:
        has = ", ".join(map(repr, dtype.names)) if dtype.names else "no fields"
        raise IndexError(f"the array has no field {field!r}; it has {has}")
    return dtype[field]


def _as_slice(positions: range) -> slice:
    """Return the slice that chooses these positions."""
    if not positions:
        return slice(0, 0)
    stop = positions.stop if positions.stop >= 0 else None
    return slice(positions.start, stop, positions.step)
