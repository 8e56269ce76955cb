"""Where an array has its least or largest value, or its first NaN, or differs most.

Owns how it is searched for: all values are read, a few megabytes at a time. Knows no
widget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npzkit.display.blocks import position_at
from npzkit.display.cells import cell_text
from npzkit.display.piecewise import as_numbers, is_nan_in
from npzkit.display.sampling import box_of, spread_parts
from npzkit.viewer.shown import Shown, Window, drawn_axes, settled

SOUGHT = {
    "minimum": "Minimum", "maximum": "Maximum", "nan": "First NaN",
    "difference": "Largest difference",
}  # fmt: skip
"""What can be searched for, with its name on the page."""
_AROUND = 20
"""Values that are shown on each side of what was found."""


class Place(NamedTuple):
    """What was found.

    Attributes
    ----------
    position : tuple of int
    text : str
        The value.
    """

    position: tuple[int, ...]
    text: str


def find_place(source: Any, what: str, proceed: Callable[[float], object]) -> Place | None:
    """Return where an array has what is sought, or None.

    Parameters
    ----------
    source : lazy array of numbers
        Complex numbers are compared by their magnitude. A `DifferenceSource` for the
        largest difference: a NaN in one array only is infinitely far apart.
    what : str
        Of `SOUGHT`.
    proceed : callable
        Called every few megabytes with the share of the values that were compared. It raises
        an exception to cancel.
    """
    found: tuple[Any, tuple[int, ...]] | None = None
    dtype = np.dtype(source.dtype)
    parts, _ = spread_parts(box_of(source, ()), 1 << 63)
    count, total = 0, math.prod(source.shape)
    for index in parts:
        proceed(count / total)
        values = np.asarray(source[index])
        count += values.size
        if what == "difference":
            values = np.nan_to_num(np.abs(values), nan=np.inf, posinf=np.inf)
        # Exact, as the statistics are: integers and dates do not become floats.
        numbers = as_numbers(values, dtype)
        place = _place_in(numbers, what, is_nan_in(numbers, dtype))
        if place is None:
            continue
        number = numbers[place]
        if found is None or (number < found[0] if what == "minimum" else number > found[0]):
            inner = position_at(place, values.shape)
            position = tuple(part.start + offset for part, offset in zip(index, inner, strict=True))
            found = number, position
        if what == "nan" or (what == "difference" and np.isinf(number)):
            break
    if found is None or (what == "difference" and not found[0]):
        return None
    if what == "difference":
        number = float(found[0])
        text = "infinite, or only one value is NaN" if np.isinf(number) else cell_text(number)
        return Place(found[1], text)
    value = np.asarray(source[tuple(slice(p, p + 1) for p in found[1])]).reshape(-1)[0]
    return Place(found[1], cell_text(value))


def _place_in(
    numbers: np.ndarray[Any, Any], what: str, is_nan: np.ndarray[Any, Any] | None
) -> int | None:
    """Return where flat numbers have what is sought."""
    has_nan = is_nan is not None and bool(is_nan.any())
    if what == "nan":
        return int(is_nan.argmax()) if is_nan is not None and has_nan else None
    places = np.flatnonzero(~is_nan) if is_nan is not None and has_nan else None
    kept = numbers if places is None else numbers[places]
    if not kept.size:
        return None
    place = int(kept.argmin() if what == "minimum" else kept.argmax())
    return place if places is None else int(places[place])


def shown_at(
    shown: Shown,
    what: str,
    position: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: Any,
    size: tuple[int, int] = (1, 1),
) -> Shown:
    """Return what shows a position, with its neighbours, in the array's usual view.

    Parameters
    ----------
    shown : Shown
    what : str
        What was sought: the colours range over an extreme, too.
    position, shape : tuple of int
    dtype : numpy.dtype
    size : (int, int)
        Width and height of the figure, which is filled.
    """
    scale = "all" if what in {"minimum", "maximum"} else shown.scale
    usual = replace(shown, view=None, at=position, rows=None, columns=None, scale=scale)
    usual = settled(usual, shape, dtype)
    drawn, shorter = drawn_axes(usual), min(size)
    wide = [length / shorter if usual.aspect == "equal" else 1 for length in size]
    columns, rows = (
        _around(position[axis], shape[axis], int(_AROUND * factor))
        if axis is not None and axis in drawn
        else None
        for axis, factor in zip((usual.across, usual.down), wide, strict=True)
    )
    return replace(usual, rows=rows, columns=columns)


def _around(place: int, length: int, distance: int) -> Window:
    return max(place - distance, 0), min(place + distance + 1, length)
