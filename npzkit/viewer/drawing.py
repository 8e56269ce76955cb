"""What is drawn: the numbers of a view, read in a thread and ready to be sent.

Owns the records that figures and tables are filled from, and how much is read for them.
Knows no widget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npzkit.display.cells import TablePage, differing_cells, table_page
from npzkit.display.histograms import HistogramOverview, histogram_overview
from npzkit.display.images import ImageOverview, image_overview
from npzkit.display.lines import LineOverview, line_overview
from npzkit.display.numbers import as_colours, as_drawn, value_range
from npzkit.display.piecewise import is_numeric
from npzkit.display.sampling import Proceed, reachable
from npzkit.errors import shown_key
from npzkit.viewer.archives import ShownArchive, field_dtype, source_of, why_hidden
from npzkit.viewer.shown import (
    TABLE_COLUMNS,
    TABLE_ROWS,
    Shown,
    drawn_axes,
    items_of,
    settled,
    views_of,
    window_of,
)
from npzkit.viewer.sources import ApartSource, ArraySource, DifferenceSource, why_no_difference

VIEW_BUDGET = 1 << 25
"""Bytes that are read for an image, a line or a page of a table, roughly."""
DIFFERENCE_BUDGET = 1 << 27
"""Bytes of float64 for the image of a difference, if both arrays are quick to read."""
STATISTICS_BUDGET = 1 << 26
"""Bytes that are read for a histogram."""
_SENT_AS_IS = {"u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"}
"""The dtypes that a browser has arrays for."""


@dataclass(frozen=True, eq=False)
class PlaneDrawn:
    """A plane of numbers as an image, or of colours as a picture.

    Attributes
    ----------
    overview : ImageOverview
    numbers : numpy.ndarray
        Its values in a dtype that a browser has; of a picture, the last axis is its colours.
    low, high : float
        The range of an image's colours.
    colours : numpy.ndarray or None
        Of a picture: one number of 32 bits for each item.
    """

    overview: ImageOverview
    numbers: np.ndarray[Any, Any]
    low: float = 0.0
    high: float = 1.0
    colours: np.ndarray[Any, Any] | None = None

    @property
    def rows(self) -> range:
        return self.overview.rows

    @property
    def columns(self) -> range:
        return self.overview.columns

    @cached_property
    def reach(self) -> tuple[float, float]:
        """The least and the largest number that is finite; an end of the colours if none is."""
        finite = self.numbers[np.isfinite(self.numbers)]
        return float(finite.min(initial=self.high)), float(finite.max(initial=self.low))

    @property
    def beyond(self) -> tuple[bool, bool]:
        """Whether there are numbers below the range of the colours, and above it."""
        return self.reach[0] < self.low, self.reach[1] > self.high

    @property
    def is_complete(self) -> bool:
        """Whether no larger number is left out."""
        return self.overview.is_largest or self.rows.step == self.columns.step == 1


def largest_place(drawn: Any) -> tuple[float, float] | None:
    """Return the row and the column in the middle of the largest difference that is shown.

    NaN is larger than any number. None if there is no difference.
    """
    numbers = drawn.numbers if drawn.colours is None else drawn.numbers.max(-1)
    if not numbers.size or not (numbers != 0).any():
        return None
    row, column = divmod(int(np.abs(numbers).argmax()), numbers.shape[1])
    rows, columns = drawn.rows, drawn.columns
    return rows[row] + (rows.step - 1) / 2, columns[column] + (columns.step - 1) / 2


@dataclass(frozen=True, eq=False)
class HistogramDrawn:
    """The statistics of an array.

    Attributes
    ----------
    overview : HistogramOverview
    share : float
        The fraction of the array that could be reached: 1.0, or less for a beginning.
    """

    overview: HistogramOverview
    share: float

    @property
    def is_complete(self) -> bool:
        """Whether it is of all values."""
        return self.overview.sampled == self.share == 1


@dataclass(frozen=True, eq=False)
class TableDrawn:
    """A page of values.

    Attributes
    ----------
    page : TablePage
    marked : frozenset of (int, int) or None
        The rows and columns of the cells that differ from those of the other table.
        None if there is no other one.
    """

    page: TablePage
    marked: frozenset[tuple[int, int]] | None = None


Drawn = PlaneDrawn | LineOverview | HistogramDrawn | TableDrawn


@dataclass(frozen=True, eq=False)
class Pane:
    """One of the things that are shown beside each other.

    Attributes
    ----------
    title : str
        Text, from the archive.
    drawn : Drawn
    is_difference : bool
    part : (str, str) or None
        What it shows of an array, and the parts that it does not show; None for all of it.
    """

    title: str
    drawn: Drawn
    is_difference: bool = False
    part: tuple[str, str] | None = None


def draw(
    archives: Sequence[ShownArchive],
    shown: Shown,
    size: tuple[int, int],
    tell: Callable[[float], object],
) -> tuple[list[Pane], str | None]:
    """Read what a view shows.

    Parameters
    ----------
    archives : sequence of ShownArchive
    shown : Shown
        Settled, with a key.
    size : (int, int)
        Width and height in pixels.
    tell : callable
        Called every few megabytes with the share of all values that was read. It raises an
        exception to cancel.

    Returns
    -------
    list of Pane
        One, or the two that are compared and their difference.
    str or None
        Why there is no difference.
    """
    sources: list[ArraySource] = []

    def proceed() -> None:
        # Arrays that are compared are read for themselves, and for their difference.
        total = sum(max(math.prod(source.shape), 1) for source in sources)
        count = sum(source.count for source in sources)
        times = 1 if shown.other_key is None else 4 if len(sources) < 2 else 2
        tell(min(count / max(total * times, 1), 1.0))

    source = source_of(archives, shown, proceed)
    sources.append(source)
    drawer = _DRAWERS[str(shown.view)]
    first = drawer(source, shown, size, proceed)
    if isinstance(first, HistogramDrawn) and first.is_complete and source._read_habits.at_once == 1:
        # What is called exact is to be what was saved.
        archives[shown.archive].check(str(shown.key), proceed)
    found = None if shown.other_key is None else _beside(archives, shown, source, proceed)
    if found is None or isinstance(found, str):
        return [Pane(_title(archives, shown), first)], found
    other, other_source = found
    sources.append(other_source)
    other = settled(other, other_source.shape, other_source.dtype)
    first, second = _alike(first, drawer(other_source, other, size, proceed))
    part = _part(shown, source.shape, first)
    own = Pane(_title(archives, shown), first, part=part)
    panes = [own, Pane(_title(archives, other), second)]
    why = why_no_difference(source, other_source)
    if why is None:
        drawn, title = _draw_difference(drawer, (source, other_source), shown, size, proceed)
        panes.append(Pane(f"Difference: {title}", drawn, is_difference=True, part=part))
    elif shown.view == "table" and source.shape == other_source.shape:
        # They are compared by the marks in the tables.
        why = None
    return panes, why


def _alike(first: Any, second: Any) -> tuple[Drawn, Drawn]:
    """Return two planes with the same colours, or two tables with their differences marked."""
    if isinstance(first, PlaneDrawn):
        low, high = min(first.low, second.low), max(first.high, second.high)
        return replace(first, low=low, high=high), replace(second, low=low, high=high)
    if isinstance(first, TableDrawn):
        marks = differing_cells(first.page, second.page)
        return replace(first, marked=marks[0]), replace(second, marked=marks[1])
    return first, second


def _part(shown: Shown, shape: tuple[int, ...], drawn: Drawn) -> tuple[str, str] | None:
    """Return what a view shows of an array, and what it leaves out."""
    if shown.view == "histogram":
        return None
    drawn_shape = [shape[axis] for axis in drawn_axes(shown)]
    colour_count = shape[-1] if shown.view == "picture" else 1
    has_rest = math.prod(drawn_shape) * colour_count < math.prod(shape)
    if isinstance(drawn, TableDrawn):
        page = drawn.page
        has_rest |= (len(page.rows), len(page.columns)) != (page.row_count, page.column_count)
        return ("this page", "other pages") if has_rest else None
    if shown.rows is not None or shown.columns is not None:
        return "what is in sight", "other values"
    name = "line" if shown.view == "line" else "plane"
    return (f"this {name}", f"other {name}s") if has_rest else None


def difference_of(
    archives: Sequence[ShownArchive], shown: Shown, proceed: Proceed
) -> DifferenceSource | str:
    """Return the difference of the arrays that are compared, or why there is none."""
    first = source_of(archives, shown, proceed)
    found = _beside(archives, shown, first, proceed)
    if isinstance(found, str):
        return found
    _, second = found
    return why_no_difference(first, second) or DifferenceSource(first, second)


def _beside(
    archives: Sequence[ShownArchive], shown: Shown, source: ArraySource, proceed: Proceed
) -> tuple[Shown, ArraySource] | str:
    """Return what an array is compared with, or why that cannot be shown beside it."""
    other = replace(shown, archive=shown.other_archive, key=shown.other_key)
    title = _title(archives, other)
    info = archives[other.archive].info(str(other.key))
    hidden = why_hidden(info)
    if hidden is not None:
        return f"{title}: {hidden}"
    if other.field is not None and other.field not in (np.dtype(info.dtype).names or ()):
        return f"{title} has no such field."
    shape, dtype = field_dtype(info, other.field)
    if len(shape) != len(source.shape) or other.view not in views_of(shape, dtype):
        return f"{title} has another kind of shape or dtype: {shape} {dtype}."
    return other, source_of(archives, other, proceed)


def _draw_difference(
    drawer: Callable[..., Drawn],
    sources: tuple[ArraySource, ArraySource],
    shown: Shown,
    size: tuple[int, int],
    proceed: Proceed,
) -> tuple[Drawn, str]:
    """Return what a difference shows, and what it is."""
    shown = replace(shown, scale="around-0", part="real")
    if shown.view == "picture":
        return drawer(ApartSource(*sources), shown, size, proceed), "|left - right|"
    is_complex = "c" in {source.dtype.kind for source in sources}
    title = "magnitude of left - right" if is_complex else "left - right"
    return drawer(DifferenceSource(*sources), shown, size, proceed), title


def _title(archives: Sequence[ShownArchive], shown: Shown) -> str:
    label = f"{archives[shown.archive].label}: " if len(archives) > 1 else ""
    field = f", field {shown_key(shown.field)}" if shown.field else ""
    return f"{label}{shown_key(str(shown.key))}{field}"


def _draw_line(source: Any, shown: Shown, size: tuple[int, int], proceed: Proceed) -> LineOverview:
    start, stop = window_of(shown.columns, source.shape[shown.across])
    part: Any = shown.part
    return line_overview(
        source, items_of(shown, len(source.shape)), start=start, stop=stop,
        width=max(size[0], 50), part=part, budget=VIEW_BUDGET, proceed=proceed,
    )  # fmt: skip


def _overview(source: Any, shown: Shown, size: tuple[int, int], proceed: Proceed) -> ImageOverview:
    down, across = drawn_axes(shown)
    # The only value that differs is to be seen.
    is_difference = isinstance(source, DifferenceSource)
    rows, columns = (
        window_of(window, source.shape[axis])
        for axis, window in ((down, shown.rows), (across, shown.columns))
    )
    width, height = _pixels(columns[1] - columns[0], rows[1] - rows[0], shown, size)
    return image_overview(
        source, items_of(shown, len(source.shape)), down=down, across=across,
        rows=rows, columns=columns, width=width, height=height, proceed=proceed,
        budget=DIFFERENCE_BUDGET if is_difference and source.is_quick else VIEW_BUDGET,
        largest=is_difference,
    )  # fmt: skip


def _pixels(width: int, height: int, shown: Shown, size: tuple[int, int]) -> tuple[int, int]:
    """Return how many values across and down can be seen: square ones leave room on a side."""
    most = max(size[0], 50), max(size[1], 50)
    # A window that the user has zoomed to fills the figure, also if values are not square then.
    if shown.aspect != "equal" or shown.rows is not None or shown.columns is not None:
        return most
    scale = max(width / most[0], height / most[1], 1e-9)
    return max(math.ceil(width / scale), 1), max(math.ceil(height / scale), 1)


def _draw_image(source: Any, shown: Shown, size: tuple[int, int], proceed: Proceed) -> PlaneDrawn:
    found = _overview(source, shown, size, proceed)
    numbers = sendable(found.values, shown.part)
    # Labels have no range.
    low, high = _range_of(numbers, "all" if shown.palette == "labels" else shown.scale)
    if source.dtype.kind == "c" and shown.part == "phase":
        low, high = -np.pi, np.pi
    if source.dtype.kind == "b":
        low, high = 0.0, 1.0
    return PlaneDrawn(found, numbers, low, high)


def _range_of(numbers: np.ndarray[Any, Any], scale: str) -> tuple[float, float]:
    """Return the range of colours."""
    if scale == "around-0":
        furthest = max(map(abs, value_range(numbers, 0, 100)))
        return -furthest, furthest
    low, high = {"all": (0, 100), "5-95": (5, 95)}.get(scale, (1, 99))
    return value_range(numbers, low, high)


def sendable(values: Any, part: Any = "magnitude") -> np.ndarray[Any, Any]:
    """Return numbers in the smallest dtype that a browser has an array for.

    Integers of 64 bits that need more than 32 become float64.
    """
    array = np.asarray(values)
    if array.dtype.kind == "b":
        return array.view(np.uint8)
    native = array.dtype.newbyteorder("=")
    if native.str[1:] in _SENT_AS_IS and is_numeric(native):
        return array.astype(native, copy=False)
    if array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(np.int32)
        if limits.min <= array.min() and array.max() <= limits.max:
            return array.astype(np.int32)
    return as_drawn(array, part)


def _draw_picture(source: Any, shown: Shown, size: tuple[int, int], proceed: Proceed) -> PlaneDrawn:
    found = _overview(source, shown, size, proceed)
    values = found.values
    if isinstance(source, ApartSource):
        # The largest difference is white. Alpha that does not differ is not transparent.
        finite = values[np.isfinite(values)]
        scale = finite.max(initial=0) or 1.0
        colours = as_colours(np.where(np.isnan(values), 1.0, values / scale)[..., :3])
    else:
        colours = as_colours(values)
    height, width, count = colours.shape
    packed = np.full((height, width, 4), 255, np.uint8)
    packed[:, :, :count] = colours
    packed = packed.view(np.uint32).reshape(height, width)
    return PlaneDrawn(found, sendable(found.values), colours=packed)


def _draw_table(source: Any, shown: Shown, size: tuple[int, int], proceed: Proceed) -> TableDrawn:
    if 0 in source.shape:
        return TableDrawn(TablePage(range(0), range(0), [], [], 0, 0))
    rows = shown.rows or (0, TABLE_ROWS)
    columns = shown.columns or (0, TABLE_COLUMNS)
    page = table_page(
        source, items_of(shown, len(source.shape)), down=shown.down, across=shown.across,
        rows=(rows[0], rows[0] + TABLE_ROWS), columns=(columns[0], columns[0] + TABLE_COLUMNS),
        budget=VIEW_BUDGET, proceed=proceed,
    )  # fmt: skip
    return TableDrawn(page)


def _draw_histogram(
    source: Any, shown: Shown, size: tuple[int, int], proceed: Proceed
) -> HistogramDrawn:
    if shown.amount == "all":
        return HistogramDrawn(histogram_overview(source, budget=1 << 63, proceed=proceed), 1.0)
    part = reachable(source)
    found = histogram_overview(part, budget=STATISTICS_BUDGET, proceed=proceed)
    return HistogramDrawn(found, math.prod(part.shape) / max(math.prod(source.shape), 1))


_DRAWERS: dict[str, Callable[[Any, Shown, tuple[int, int], Proceed], Drawn]] = {
    "line": _draw_line, "image": _draw_image, "picture": _draw_picture, "table": _draw_table,
    "histogram": _draw_histogram,
}  # fmt: skip
