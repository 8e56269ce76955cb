"""A picture of an array: a line, an image or a histogram.

Owns what is drawn, and that it is not more than a picture has room for.
matplotlib, of the extra `plot`, is imported here alone.
"""

from __future__ import annotations

import os
from typing import Any

import click
import numpy as np

from npzkit.cli.measuring import Histogram, as_numbers
from npzkit.cli.output import printable
from npzkit.cli.slicing import Part
from npzkit.cli.targets import replacing

__all__ = ["plot"]

_LINE_COUNT = 100_000
_IMAGE_SIDE = 2000


def plot(part: Part, histogram: Histogram | None, title: str, path: str) -> None:
    """Draw a part of an array to a file, which appears whole or not at all.

    Parameters
    ----------
    part : Part
        Of numbers.
    histogram : Histogram or None
        Of all of it; for what is neither a line nor an image.
    title : str
        From a file, perhaps: shown as it is.
    path : str
        Its suffix says in which format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise click.ClickException(
            "--plot needs matplotlib; install it: python -m pip install 'npzkit[plot]'"
        ) from error
    figure = Figure(layout="constrained")
    axes: Any = figure.subplots()
    step = _step(part)
    if len(part.shape) == 1 and part.size:
        axes.plot(np.arange(0, part.shape[0], step), _values(part, step), linewidth=0.8)
    elif len(part.shape) == 2 and part.size:
        image = _values(part, step)
        figure.colorbar(axes.imshow(image, interpolation="nearest"), ax=axes)
    elif histogram is not None:
        axes.stairs(histogram.counts, histogram.edges(), fill=True)
    told = f"{printable(title)}  {part.shape} {part.dtype}"
    told += f", every {step}th" if step > 1 else ""
    # A title is no formula, whatever signs are in it.
    axes.set_title(told[:120], parse_math=False, fontsize="medium")
    kind = os.path.splitext(path)[1][1:].lower()
    if kind not in figure.canvas.get_supported_filetypes():
        known = "it ends in none" if kind else "it has no ending"
        raise click.UsageError(f"--plot {path!r}: {known} of a picture's, such as .png or .svg.")
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=150)


def _step(part: Part) -> int:
    """Return how many items of each axis are stepped over."""
    if len(part.shape) == 1:
        return -(-part.shape[0] // _LINE_COUNT) or 1
    if len(part.shape) == 2:
        return -(-max(part.shape) // _IMAGE_SIDE) or 1
    return 1


def _values(part: Part, step: int) -> np.ndarray[Any, Any]:
    """Read every `step`th item, as numbers that can be drawn."""
    values = part.read(*[slice(None, None, step)] * len(part.shape))
    numbers = as_numbers(values, part.dtype)
    shape = np.shape(values)
    return np.asarray(numbers, np.float64).reshape(shape)
