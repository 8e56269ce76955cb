"""Small pictures of arrays: an image, a line, the bars of a histogram.

Owns which picture an array gets, which plane of it is drawn, and the HTML: an SVG in the
page's own colour, or a PNG within the page. Nothing refers to another file, and all text
is escaped.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from npzkit.display.images import ImageOverview, image_overview
from npzkit.display.lines import LineOverview, line_overview
from npzkit.display.numbers import COLOUR_COUNTS, as_colours, as_drawn, shares, value_range
from npzkit.display.piecewise import is_numeric
from npzkit.display.sampling import read_habits
from npzkit.tables import Markup

WIDTH, HEIGHT = 160, 120
"""CSS pixels that a picture takes at most, unless the caller says otherwise."""

_BUDGET = 1 << 22
"""Bytes that are read for a picture."""
_DENSITY = 2
"""Values per CSS pixel: screens have more pixels than that."""
_LEAST_SIDE = 24
"""CSS pixels of the shorter side, at least."""
_COLOURS = (
    (68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129),
    (92, 200, 99), (170, 220, 50), (253, 231, 37),
)  # fmt: skip
"""Viridis of matplotlib, at equal distances: as light as it is large, also in grey."""
_MISSING = 255
"""The place in the palette of NaNs, which show the page behind."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PALETTE, _RGB, _RGBA = 3, 2, 6
"""Colour types: a byte per pixel is a place in the palette."""


def thumbnail(
    source: Any, *, width: int = WIDTH, height: int = HEIGHT, budget: int = _BUDGET
) -> Markup | None:
    """Return a small picture of an array as HTML, or None if there is nothing to draw.

    That is so for arrays of text, records or objects, for empty ones and single values.
    Of arrays with more than two axes, the plane in the middle is drawn, along the axes
    that lie together in storage.

    Parameters
    ----------
    source : numpy.ndarray or lazy array
    width, height : int
        CSS pixels that the picture takes at most.
    budget : int
        Bytes that are read, roughly.

    Examples
    --------
    >>> thumbnail(np.eye(4)[np.newaxis, np.newaxis])[:26]
    '<img src="data:image/png;b'
    """
    shape = tuple(source.shape)
    long = [axis for axis, length in enumerate(shape) if length > 1]
    if not is_numeric(source.dtype) or 0 in shape or not long:
        return None
    items = _items(source, long)
    drawn = [axis for axis, item in enumerate(items) if isinstance(item, slice)]
    limits = width, height

    def plane() -> ImageOverview:
        """Return the values of a plane, so many as a picture needs."""
        return image_overview(
            source, items, down=drawn[0], across=drawn[1], height=height * _DENSITY,
            width=width * _DENSITY, budget=budget,
        )  # fmt: skip

    if len(drawn) == 1:
        line = line_overview(source, items, width=width, budget=budget)
        return line_markup(line, width, height // 2)
    if len(drawn) == 3:
        picture = _picture(plane(), limits)
        if picture is not None:
            return picture
        # The numbers are no colours: one of them is drawn.
        items[drawn.pop()] = 0
    return _image(plane(), limits)


def _items(source: Any, long: Sequence[int]) -> list[Any]:
    """Return the index of what is drawn: slices for its axes, and integers."""
    # In Fortran's order, neighbours along the first axes are read together.
    drawn = long[:2] if read_habits(source).by_columns else long[-2:]
    if _may_be_picture(source, long):
        drawn = long[-3:]
    return [
        slice(None) if axis in drawn else length // 2 for axis, length in enumerate(source.shape)
    ]


def _may_be_picture(source: Any, long: Sequence[int]) -> bool:
    """Whether the last axis may be that of colours, by its length and place."""
    shape = source.shape
    return (
        len(long) >= 3
        and shape[-1] in COLOUR_COUNTS
        and min(shape[axis] for axis in long[-3:-1]) > max(COLOUR_COUNTS)
        and source.dtype.kind in "biuf"
    )


# -- images -------------------------------------------------------------------


def _picture(found: ImageOverview, limits: tuple[int, int]) -> Markup | None:
    """Return a picture in its own colours; None if the numbers cannot be colours."""
    numbers = as_drawn(found.values)
    largest = 255 if found.values.dtype.kind in "iu" else 1
    if not np.all((numbers >= 0) & (numbers <= largest) | np.isnan(numbers)):
        return None
    return _img(as_colours(found.values), None, found, limits)


def _image(found: ImageOverview, limits: tuple[int, int]) -> Markup:
    """Return numbers in colours: those below and above the middle 98 % are cut."""
    numbers = as_drawn(found.values)
    low, high = value_range(numbers)
    places = shares(numbers, low, high) * (_MISSING - 1)
    pixels = np.where(np.isnan(places), _MISSING, np.rint(places)).astype(np.uint8)
    return _img(pixels, _palette(), found, limits)


def _palette() -> np.ndarray[Any, Any]:
    """Return red, green, blue and opacity of each pixel value."""
    known = np.linspace(0, _MISSING - 1, len(_COLOURS))
    palette = np.zeros((_MISSING + 1, 4), np.uint8)
    for channel, values in enumerate(zip(*_COLOURS, strict=True)):
        palette[:_MISSING, channel] = np.rint(np.interp(range(_MISSING), known, values))
    palette[:_MISSING, 3] = 255
    return palette


def _img(
    pixels: np.ndarray[Any, Any],
    palette: np.ndarray[Any, Any] | None,
    found: ImageOverview,
    limits: tuple[int, int],
) -> Markup:
    """Return an element that shows pixels in the proportions of their plane."""
    columns, rows = (axis.stop - axis.start for axis in (found.columns, found.rows))
    scale = min(limits[0] / columns, limits[1] / rows)
    # A plane that is very narrow is stretched.
    width, height = (max(round(length * scale), _LEAST_SIDE) for length in (columns, rows))
    data = base64.b64encode(png_bytes(pixels, palette)).decode("ascii")
    # Values that are larger than a pixel keep their edges.
    rendering = "pixelated" if pixels.shape[1] < width or pixels.shape[0] < height else "auto"
    return Markup(
        f'<img src="data:image/png;base64,{data}" width="{width}" height="{height}" alt="" '
        f'style="image-rendering:{rendering};max-width:none;">'
    )


# -- lines and bars -----------------------------------------------------------


def line_markup(line: LineOverview, width: int, height: int) -> Markup:
    """Return a line as SVG, in the colour of the page's text."""
    low, high = value_range([*line.low, *line.high], 0, 100)

    def places(numbers: np.ndarray[Any, Any]) -> list[float]:
        heights = (height - 4) * (1 - shares(numbers, low, high)) + 2
        return [round(place, 1) for place in heights.tolist()]

    begin, end = int(line.edges[0]), int(line.edges[-1])
    middles = (line.edges[:-1] + line.edges[1:]) / 2
    xs = (middles - begin) / max(end - begin, 1) * width
    strokes = "".join(_strokes(xs, places(line.low), places(line.high)))
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


def bars_markup(counts: Sequence[int]) -> Markup:
    """Return the bars of a histogram as SVG, in the colour of the page's text."""
    width, height = WIDTH, HEIGHT // 2
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


# -- PNG: https://www.w3.org/TR/png-3/ ------------------------------------------


def png_bytes(pixels: np.ndarray[Any, Any], palette: np.ndarray[Any, Any] | None = None) -> bytes:
    """Return pixels as a PNG file, without interlacing and filters.

    Parameters
    ----------
    pixels : numpy.ndarray of uint8
        Of shape (height, width, 3) or (height, width, 4), which are not empty; with a
        palette (height, width).
    palette : numpy.ndarray of uint8, optional
        Red, green, blue and opacity of each value of a pixel: of shape (256, 4) at most.
    """
    height, width = pixels.shape[:2]
    kind = _PALETTE if palette is not None else _RGB if pixels.shape[2] == 3 else _RGBA
    chunks = [(b"IHDR", struct.pack(">2I5B", width, height, 8, kind, 0, 0, 0))]
    if palette is not None:
        chunks += [(b"PLTE", palette[:, :3].tobytes()), (b"tRNS", palette[:, 3].tobytes())]
    rows = pixels.reshape(height, -1)
    # Each row begins with the number of its filter: none.
    data = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    chunks += [(b"IDAT", zlib.compress(data, 6)), (b"IEND", b"")]
    return _SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    checked = name + data
    return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
