"""Small pictures of arrays: an image, a line, the bars of a histogram.

Owns which picture an array gets, which plane of it is drawn, and the HTML: an SVG in the
page's own colour, or a PNG within the page. Nothing refers to another file, and all text
is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npzkit.display.histograms import Histogram
from npzkit.display.images import image_overview
from npzkit.display.lines import LineOverview, line_overview
from npzkit.display.numbers import COLOUR_COUNTS, as_colours, as_drawn, is_numeric, value_range
from npzkit.display.png import png_bytes
from npzkit.display.sampling import Proceed, go_on
from npzkit.display.tables import Markup

__all__ = ["HEIGHT", "WIDTH", "Thumbnail", "histogram_markup", "line_markup", "thumbnail"]

WIDTH, HEIGHT = 160, 120
"""CSS pixels that a picture takes at most."""

_BUDGET = 1 << 22
"""Bytes that are read for a picture."""
_DENSITY = 2
"""Values per CSS pixel: screens have more pixels than that."""
_LEAST_SIDE = 24
"""CSS pixels of the shorter side: those of long, narrow planes are stretched to it."""
_FINE = 3
"""Values read per pixel of a picture in colour, of which the mean is shown."""
_COLOURS = (
    (68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129),
    (92, 200, 99), (170, 220, 50), (253, 231, 37),
)  # fmt: skip
"""Viridis of matplotlib, at equal distances: as light as it is large, also in grey."""
_MISSING = 255
"""The place in the palette of NaNs, which show the page behind."""


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of an array.

    Attributes
    ----------
    html : Markup
        An ``img`` or ``svg`` element.
    kind : {"line", "image", "picture"}
        A picture has its own colours.
    part : str
        The part of the array that is drawn, as an index: ``[5, :, :]``; empty if it
        is all of it.
    """

    html: Markup
    kind: str
    part: str


def thumbnail(source: Any, *, budget: int = _BUDGET, proceed: Proceed = go_on) -> Thumbnail | None:
    """Return a small picture of an array, or None if there is nothing to draw.

    That is so for arrays of text, records or objects, for empty ones and single values.
    Of arrays with more than two axes, the plane in the middle is drawn.

    Parameters
    ----------
    source : numpy.ndarray or lazy array
    budget : int
        Bytes that are read, roughly.
    proceed : callable
        Called between reads; it raises an exception to cancel.

    Examples
    --------
    >>> found = thumbnail(np.eye(4)[np.newaxis, np.newaxis])
    >>> found.kind, found.part, found.html[:26]
    ('image', '[0, 0, :, :]', '<img src="data:image/png;b')
    """
    shape = tuple(source.shape)
    long = [axis for axis, length in enumerate(shape) if length > 1]
    if not is_numeric(source.dtype) or 0 in shape or not long:
        return None
    items = _items(source, long)
    part = _part_text(items)
    if len(long) == 1:
        line = line_overview(source, items, width=WIDTH, budget=budget, proceed=proceed)
        return Thumbnail(line_markup(line), "line", part)
    drawn = [axis for axis, item in enumerate(items) if isinstance(item, slice)]
    if len(drawn) == 3:
        picture = _picture(source, items, drawn, budget, proceed)
        if picture is not None:
            return Thumbnail(picture, "picture", part)
        # The numbers are no colours: one of them is drawn.
        items[drawn.pop()] = 0
    found = image_overview(
        source, items, down=drawn[0], across=drawn[1], height=HEIGHT * _DENSITY,
        width=WIDTH * _DENSITY, budget=budget, proceed=proceed,
    )  # fmt: skip
    size = shape[drawn[1]], shape[drawn[0]]
    return Thumbnail(_image_markup(as_drawn(found.values), size), "image", _part_text(items))


def _items(source: Any, long: Sequence[int]) -> list[Any]:
    """Return the index of the plane that is drawn: slices for its axes, and integers."""
    count = 3 if _may_be_picture(source, long) else 2
    items: list[Any] = [length // 2 for length in source.shape]
    for axis in long[-count:]:
        items[axis] = slice(None)
    return items


def _may_be_picture(source: Any, long: Sequence[int]) -> bool:
    """Whether the last axis may be that of colours, by its length and place."""
    shape = source.shape
    return (
        len(long) >= 3
        and shape[-1] in COLOUR_COUNTS
        and min(shape[axis] for axis in long[-3:-1]) > max(COLOUR_COUNTS)
        and source.dtype.kind in "biuf"
    )


def _part_text(items: Sequence[Any]) -> str:
    if all(isinstance(item, slice) for item in items):
        return ""
    return f"[{', '.join(':' if isinstance(item, slice) else str(item) for item in items)}]"


# -- images -------------------------------------------------------------------


def _picture(
    source: Any, items: Sequence[Any], axes: Sequence[int], budget: int, proceed: Proceed
) -> Markup | None:
    """Return a picture in its own colours; None if the numbers cannot be colours."""
    down, across, _ = axes
    found = image_overview(
        source, items, down=down, across=across, height=HEIGHT * _FINE, width=WIDTH * _FINE,
        budget=budget, proceed=proceed,
    )  # fmt: skip
    numbers, largest = as_drawn(found.values), 255 if source.dtype.kind in "iu" else 1
    if not np.all((numbers >= 0) & (numbers <= largest) | np.isnan(numbers)):
        return None
    size = source.shape[across], source.shape[down]
    return _img(png_bytes(_reduced(as_colours(found.values))), size)


def _reduced(colours: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the means of neighbours, where there are more than a screen shows."""
    height, width, depth = colours.shape
    by = max(min(_FINE, round(height / HEIGHT), round(width / WIDTH)), 1)
    whole = colours[: height // by * by, : width // by * by]
    means = whole.reshape(height // by, by, width // by, by, depth).mean(axis=(1, 3))
    reduced: np.ndarray[Any, Any] = np.rint(means).astype(np.uint8)
    return reduced


def _image_markup(numbers: np.ndarray[Any, Any], size: tuple[int, int]) -> Markup:
    """Return numbers in colours: those below and above the middle 98 % are cut."""
    low, high = value_range(numbers)
    with np.errstate(all="ignore"):
        places = (numbers.astype(np.float64) / 2 - low / 2) / (high / 2 - low / 2) * (_MISSING - 1)
    is_missing = np.isnan(numbers)
    places = np.clip(np.where(is_missing, 0, places), 0, _MISSING - 1)
    pixels = np.where(is_missing, _MISSING, np.rint(places)).astype(np.uint8)
    return _img(png_bytes(pixels, _palette()), size)


def _palette() -> np.ndarray[Any, Any]:
    """Return red, green, blue and opacity of each pixel value."""
    known = np.linspace(0, _MISSING - 1, len(_COLOURS))
    palette = np.zeros((_MISSING + 1, 4), np.uint8)
    for channel, values in enumerate(zip(*_COLOURS, strict=True)):
        palette[:_MISSING, channel] = np.rint(np.interp(range(_MISSING), known, values))
    palette[:_MISSING, 3] = 255
    return palette


def _img(png: bytes, size: tuple[int, int]) -> Markup:
    """Return an element that shows a picture of `size` (width, height) values."""
    width, height = _shown_size(*size)
    data = base64.b64encode(png).decode("ascii")
    return Markup(
        f'<img src="data:image/png;base64,{data}" width="{width}" height="{height}" alt="" '
        f'style="image-rendering:{"pixelated" if max(size) < WIDTH else "auto"};max-width:none;">'
    )


def _shown_size(width: int, height: int) -> tuple[int, int]:
    """Return the CSS pixels of a plane: in its proportions, unless it is very narrow."""
    scale = min(WIDTH / width, HEIGHT / height)
    return max(round(width * scale), _LEAST_SIDE), max(round(height * scale), _LEAST_SIDE)


# -- lines and bars -----------------------------------------------------------


def line_markup(line: LineOverview, width: int = WIDTH, height: int = HEIGHT // 2) -> Markup:
    """Return a line as SVG, in the colour of the page's text."""
    low, high = value_range([*line.low, *line.high], 0, 100)

    def place(number: float) -> float:
        # Infinities are at the edge. Halves, because the distance may be infinite.
        share = (number / 2 - low / 2) / (high / 2 - low / 2)
        return round((height - 4) * (1 - min(max(share, 0), 1)) + 2, 1)

    begin, end = int(line.edges[0]), int(line.edges[-1])
    middles = (line.edges[:-1] + line.edges[1:]) / 2
    xs = (middles - begin) / max(end - begin, 1) * width
    strokes = "".join(_strokes(xs, list(map(place, line.low)), list(map(place, line.high))))
    path = f'<path d="{strokes}" fill="none" stroke="currentColor" stroke-linecap="round"/>'
    return _svg(path, width, height)


def _strokes(xs: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> Iterator[str]:
    """Yield a stroke from the least to the largest value of each pixel, joined to the next."""
    command = "M"
    for x, low, high in zip(xs, lows, highs, strict=True):
        if np.isnan(low):
            command = "M"
            continue
        yield f"{command}{x:.1f} {low}"
        # A stroke without a length is a dot.
        yield f"V{high}" if high != low or command == "M" else ""
        command = "L"


def histogram_markup(histogram: Histogram, width: int = WIDTH, height: int = HEIGHT // 2) -> Markup:
    """Return the bars of a histogram as SVG, in the colour of the page's text."""
    counts = histogram.counts.tolist()
    step, largest = width / len(counts), max(counts)
    bars = ""
    for place, count in enumerate(counts):
        # A rare value can still be seen.
        tall = max(count / largest * height, 1) if count else 0
        bars += f"M{place * step:.1f} {height}v{-tall:.1f}h{max(step - 1, 0.5):.1f}v{tall:.1f}z"
    return _svg(f'<path d="{bars}" fill="currentColor"/>', width, height)


def _svg(inner: str, width: int, height: int) -> Markup:
    return Markup(
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'aria-hidden="true">{inner}</svg>'
    )
