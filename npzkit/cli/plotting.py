"""A picture of an array: a line, an image or a histogram.

Owns the choice of picture, and the limits on how much data is drawn. Only this
module imports matplotlib, which the extra `plot` installs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from typing import Any, Literal

import click
import numpy as np

import npzkit
from npzkit.errors import printable

_BLOCK_SIZE = 1 << 25
"""Bytes that are read at a time."""
_LINE_COUNT = 100_000
_IMAGE_SIDE = 2000
_COLOUR_COUNTS = 3, 4
"""Lengths of the last axis of a picture: red, green, blue, and optionally opacity."""


def kind_of_picture(part: npzkit.ArrayPart) -> Literal["line", "image", "colours", "histogram"]:
    """Return the kind of picture for a part of an array.

    ``colours`` is a picture of shape (height, width, 3) or (height, width, 4).
    """
    if len(part.shape) == 1:
        return "line"
    if len(part.shape) == 2:
        return "image"
    has_colours = len(part.shape) == 3 and part.shape[2] in _COLOUR_COUNTS
    return "colours" if has_colours and part.dtype.kind in "biufV" else "histogram"


def draw(
    part: npzkit.ArrayPart,
    statistics: npzkit.Statistics | None,
    title: str,
    path: str,
    advance: Callable[[int], object],
) -> None:
    """Draw a part of an array to a file, which appears complete or not at all.

    Parameters
    ----------
    part : npzkit.ArrayPart
        A part with numbers.
    statistics : Statistics or None
        Of the complete part, if it is neither a line nor an image.
    title : str
        A title, which may come from a file. It is never parsed as a formula.
    path : str
        The file to write. Its suffix decides on the format.
    advance : callable
        Called with the bytes of each read.
    """
    figure, suffix = new_figure(path)
    axes: Any = figure.subplots()
    kind, step = kind_of_picture(part), _step(part)
    if kind == "histogram" and statistics is not None and statistics.histogram is not None:
        histogram = statistics.histogram
        edges = histogram.edges.view(np.int64) if part.dtype.kind in "mM" else histogram.edges
        axes.stairs(histogram.counts, edges, fill=True)
    elif part.size and kind == "line":
        values = _values(part, step, advance)
        axes.plot(np.arange(0, part.shape[0], step), values, linewidth=0.8)
    elif part.size and kind == "image":
        image = _values(part, step, advance)
        figure.colorbar(axes.imshow(image, interpolation="nearest"), ax=axes)
    elif part.size and kind == "colours":
        axes.imshow(_colours(_values(part, step, advance), part.dtype), interpolation="nearest")
    caption = f"{printable(title)}  {part.shape} {part.dtype}"
    caption += f", every {step}th" if step > 1 else ""
    # The title may have signs of a formula.
    axes.set_title(caption[:120], parse_math=False, fontsize="medium")
    save_figure(figure, path, suffix)


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Return whether values of a dtype, which may be one of ml_dtypes, can be drawn."""
    return dtype.kind in "biufcmM" or (dtype.kind == "V" and dtype.type is not np.void)


def new_figure(path: str) -> tuple[Any, str]:
    """Return a figure for a picture at a path, and the format that its suffix means."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException(
            "--plot needs matplotlib; install it: python -m pip install 'npzkit[plot]'"
        ) from error
    figure = Figure(layout="constrained")
    suffix = os.path.splitext(path)[1][1:].lower()
    if suffix not in figure.canvas.get_supported_filetypes():
        known = f".{suffix} is not" if suffix else "it has no suffix of"
        raise click.UsageError(f"--plot {path!r}: {known} a picture format, such as .png or .svg.")
    return figure, suffix


def save_figure(figure: Any, path: str, suffix: str) -> None:
    """Write a picture, which appears complete or not at all."""
    target = os.path.abspath(path)
    os.stat(os.path.dirname(target))
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        figure.savefig(temporary, format=suffix, dpi=150)
        if os.path.exists(target):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _step(part: npzkit.ArrayPart) -> int:
    """Return the step along the first two axes."""
    if len(part.shape) == 1:
        return -(-part.shape[0] // _LINE_COUNT) or 1
    return -(-max(part.shape[:2], default=0) // _IMAGE_SIDE) or 1


def _values(
    part: npzkit.ArrayPart, step: int, advance: Callable[[int], object]
) -> np.ndarray[Any, Any]:
    """Return every `step`-th item of the first two axes, as numbers that can be drawn."""
    steps = [step] * len(part.shape[:2]) + [1] * len(part.shape[2:])
    shape = [len(range(0, length, by)) for length, by in zip(part.shape, steps, strict=True)]
    found = np.empty(shape)
    row_size = max(part.nbytes // part.shape[0] * step, 1)
    count = max(_BLOCK_SIZE // row_size, 1)
    others = [slice(None, None, by) for by in steps[1:]]
    for row in range(0, shape[0], count):
        rows = slice(row * step, (row + count) * step, step)
        values = part.read(rows, *others)
        found[row : row + count] = _numbers(values, part.dtype)
        advance(row_size * count)
    return found


def _numbers(values: Any, dtype: np.dtype[Any]) -> Any:
    """Return the magnitudes of complex numbers, and dates as their numbers."""
    if dtype.kind == "c":
        return np.abs(values)
    return values.astype(np.int64) if dtype.kind in "mM" else values


def _colours(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return colours as matplotlib expects them: integers up to 255, other numbers up to 1."""
    is_integer = dtype.kind in "iu"
    colours: np.ndarray[Any, Any] = np.clip(np.nan_to_num(values), 0, 255 if is_integer else 1)
    return colours.astype(np.uint8) if is_integer else colours
