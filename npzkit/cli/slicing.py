"""The SLICE of a command line, and the part of an array that it stands for.

Owns the syntax, NumPy's own without the brackets around it, which is parsed and
never evaluated, and how a part is read no further than it is wanted. Knows no
terminal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from npzkit.reading.blocks import blocks

__all__ = ["Index", "Part", "parse_index"]

_CHUNK_SIZE = 1 << 20
"""Bytes of a piece."""
_ITEM = re.compile(
    r"""\s*(?:
        (?P<dots>\.\.\.)
      | \[(?P<list>[^\]]*)\]
      | (?P<slice>[-+\d\s]*:[-+:\d\s]*)
      | (?P<integer>[-+]?\d+)
      | (?P<name>[^\W\d]\w*) | "(?P<double>[^"]*)" | '(?P<single>[^']*)'
    )\s*(?:,|\Z)""",
    re.VERBOSE,
)
_INTEGER = re.compile(r"\s*([-+]?\d{1,18})\s*")


class Index(NamedTuple):
    """What a SLICE says.

    Attributes
    ----------
    items : tuple
        Integers, slices, Ellipsis, and one list of integers at most.
    field : str or None
        The field of a structured array.
    """

    items: tuple[Any, ...] = ()
    field: str | None = None


def parse_index(text: str) -> Index:
    """Parse a SLICE.

    Raises
    ------
    ValueError
        It is none, in words for whoever typed it.

    Examples
    --------
    >>> parse_index("0:10, ::2, ..., -1")
    Index(items=(slice(0, 10, None), slice(None, None, 2), Ellipsis, -1), field=None)
    >>> parse_index("pos, [1, 3]")
    Index(items=([1, 3],), field='pos')
    """
    items: list[Any] = []
    fields: list[str] = []
    position = 0
    while position < len(text) or not (items or fields):
        match = _ITEM.match(text, position)
        if match is None:
            raise ValueError(
                f"SLICE cannot be read from {text[position:].strip()[:40]!r} on; it is written "
                "like '0:10, ::2, ..., -1' or '[1, 5], 0', a field by its name"
            )
        position = match.end()
        name = match["name"] or match["double"] or match["single"]
        if match["dots"]:
            items.append(...)
        elif match["list"] is not None:
            items.append([_integer(part) for part in match["list"].split(",") if part.strip()])
        elif match["slice"]:
            items.append(_slice(match["slice"]))
        elif match["integer"]:
            items.append(_integer(match["integer"]))
        else:
            fields.append(name or "")
    if len(fields) > 1 or sum(isinstance(item, list) for item in items) > 1:
        raise ValueError("SLICE takes one field and one list of indices at most")
    return Index(tuple(items), fields[0] if fields else None)


def _integer(text: str) -> int:
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError(f"SLICE takes integers of up to 18 digits, not {text.strip()[:40]!r}")
    return int(match[1])


def _slice(text: str) -> slice:
    parts = text.split(":")
    if len(parts) > 3:
        raise ValueError(f"a slice is start:stop:step, not {text.strip()[:40]!r}")
    start, stop, step = [
        _integer(part) if part.strip() else None for part in [*parts, "", ""][:3]
    ]  # fmt: skip
    if step == 0:
        raise ValueError(f"the step of a slice cannot be 0, as in {text.strip()[:40]!r}")
    return slice(start, stop, step)


class Part:
    """A part of an array, read piece by piece.

    Parameters
    ----------
    source : LazyArray or numpy.ndarray
    index : Index
    fortran_order : bool, default False
        In which order the pieces are read soonest.

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
        The array has no such part, in NumPy's words.
    """

    def __init__(self, source: Any, index: Index, *, fortran_order: bool = False) -> None:
        self._index = index
        self._field = index.field
        self._fortran_order = fortran_order
        dtype = _field_dtype(source.dtype, index.field)
        self.dtype: np.dtype[Any] = dtype.base
        self.field_shape = dtype.shape
        probe = np.broadcast_to(np.False_, source.shape)
        probe[index.items]
        items = index.items
        if any(isinstance(item, list) for item in items):
            # What was typed number by number is small enough to be read.
            source, items = source[items], ()
        self.source = source
        self.is_whole = not index.items
        self._items = _expanded(items, source.shape)
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
        """Return the part of it that a slice for each axis chooses; all without them."""
        left = iter(slices or [slice(None)] * len(self.shape))
        chosen = tuple(
            _as_slice(item[next(left)]) if isinstance(item, range) else item for item in self._items
        )
        return self.field_of(self.source[chosen])

    def field_of(self, values: Any) -> Any:
        """Return the field that is wanted of some of the array's items."""
        return values if self._field is None else values[self._field]

    def of(self, source: Any) -> Part:
        """Return the same part of the same array, read by other means."""
        return Part(source, self._index, fortran_order=self._fortran_order)

    def last_position(self) -> tuple[int, ...]:
        """Return the position in the array behind which nothing is read; it is not empty."""
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
                size=_CHUNK_SIZE,
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


def _expanded(items: Sequence[Any], shape: tuple[int, ...]) -> list[int | range]:
    """Return the position, or positions, of each axis."""
    missing = len(shape) - sum(item is not ... for item in items)
    full = [slice(None)] * missing
    place = next((place for place, item in enumerate(items) if item is ...), len(items))
    given = [*items[:place], *full, *items[place + 1 :]]
    return [range(length)[item] for item, length in zip(given, shape, strict=True)]


def _as_slice(positions: range) -> slice:
    """Return the slice that chooses these positions."""
    if not positions:
        return slice(0, 0)
    stop = positions.stop if positions.stop >= 0 else None
    return slice(positions.start, stop, positions.step)
