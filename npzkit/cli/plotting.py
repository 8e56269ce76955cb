"""Numbers as a picture, which is a line, an image or a histogram, and their statistics as text.

Owns the choice of picture, and the limits on how much data is drawn. Only this
module imports matplotlib, which the extra `plot` installs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import click
import numpy as np

import npzkit
from npzkit.cli.file_argument import dtype_text, shape_text
from npzkit.cli.output import Report, can_print, print_fields, print_table, terminal_width
from npzkit.errors import printable

_BLOCK_SIZE = 1 << 25
"""Bytes that are read at a time."""
_BAR_WIDTH = 40
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
    part: npzkit.ArrayPart, statistics: npzkit.Statistics | None, title: str, path: str,
    tell: Report,
) -> None:  # fmt: skip
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
    tell : callable
        Called with the bytes that were read so far, and the total.
    """
    figure, suffix = new_figure(path)
    axes: Any = figure.subplots()
    kind, step = kind_of_picture(part), _step(part)
    if kind == "histogram" and statistics is not None and statistics.histogram is not None:
        histogram = statistics.histogram
        edges = histogram.edges.view(np.int64) if part.dtype.kind in "mM" else histogram.edges
        axes.stairs(histogram.counts, edges, fill=True)
    elif part.size and kind == "line":
        values = _values(part, step, tell)
        axes.plot(np.arange(0, part.shape[0], step), values, linewidth=0.8)
    elif part.size and kind == "image":
        image = _values(part, step, tell)
        figure.colorbar(axes.imshow(image, interpolation="nearest"), ax=axes)
    elif part.size and kind == "colours":
        axes.imshow(_colours(_values(part, step, tell), part.dtype), interpolation="nearest")
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


def _values(part: npzkit.ArrayPart, step: int, tell: Report) -> np.ndarray[Any, Any]:
    """Return every `step`-th item of the first two axes, as numbers that can be drawn."""
    steps = [step] * len(part.shape[:2]) + [1] * len(part.shape[2:])
    shape = [len(range(0, length, by)) for length, by in zip(part.shape, steps, strict=True)]
    found = np.empty(shape)
    count = max(_BLOCK_SIZE * part.shape[0] // max(part.nbytes * step, 1), 1)
    others = [slice(None, None, by) for by in steps[1:]]
    for row in range(0, shape[0], count):
        rows = slice(row * step, (row + count) * step, step)
        found[row : row + count] = _numbers(part.read(rows, *others), part.dtype)
        done = min(row + count, shape[0])
        tell(part.nbytes * done // shape[0], part.nbytes)
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


# -- statistics ---------------------------------------------------------------


def statistics_dict(key: str, part: npzkit.ArrayPart, found: npzkit.Statistics) -> dict[str, Any]:
    """Return statistics as values for JSON."""
    facts: dict[str, Any] = {
        "key": key, "shape": part.shape, "dtype": dtype_text(part.dtype), "count": found.count,
        "min": _value(found.min), "max": _value(found.max), "nan_count": found.nan_count,
    }  # fmt: skip
    if part.dtype.kind in "mM":
        return facts
    facts |= {"mean": found.mean, "std": found.std, "inf_count": found.inf_count}
    if found.histogram is not None:
        edges, counts = found.histogram.edges.tolist(), found.histogram.counts.tolist()
        facts["histogram"] = {"edges": edges, "counts": counts}
    return facts


def _value(number: Any) -> Any:
    """Return a number as JSON has it; a date as text."""
    if not isinstance(number, (np.datetime64, np.timedelta64)):
        return None if number is None else number.item()
    if np.datetime_data(number.dtype)[0] == "generic":
        # Without a unit it is no date.
        return int(number.view(np.int64))
    return str(number)


def print_statistics(
    facts: Mapping[str, Any], dtype: np.dtype[Any], found: npzkit.Statistics
) -> None:
    """Print statistics as names and values, and a bar for each bin of the histogram."""
    numbers = [
        (name, f"{facts[name]:.10g}" if isinstance(facts[name], float) else str(facts[name]))
        for name in ("min", "max", "mean", "std")
        if facts.get(name) is not None
    ]
    fields = [
        ("key", printable(facts["key"])),
        ("shape", shape_text(facts["shape"])),
        ("dtype", facts["dtype"] + (", by magnitude" if dtype.kind == "c" else "")),
        ("count", f"{facts['count']:,}"),
        *numbers,
        ("NaN", f"{facts['nan_count']:,}"),
        ("infinite", f"{facts['inf_count']:,}" if facts.get("inf_count") else ""),
    ]
    print_fields([(f"{name}:", text) for name, text in fields if text])
    if found.histogram is not None and "histogram" in facts:
        edges = facts["histogram"]["edges"]
        is_by_integer = dtype.kind in "biu" and edges[1] - edges[0] == 1
        names = [f"{low:.0f}" for low in edges[:-1]] if is_by_integer else _bin_names(edges)
        _print_histogram("value" if is_by_integer else "from", names, found.histogram.counts)


def _bin_names(edges: Sequence[float]) -> list[str]:
    """Return the label of each bin: its edges, with as many digits as tell them apart."""
    if len(edges) == 2:
        return [f"{edges[0]:.10g}"]
    texts: list[str] = []
    for digits in range(4, 18):
        texts = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(texts)) == len(texts):
            break
    return [f"{low} to {high}" for low, high in itertools.pairwise(texts)]


def _print_histogram(heading: str, names: Sequence[str], counts: Any) -> None:
    """Print a bar for each bin."""
    sign = "█" if can_print("█") else "#"
    texts = [f"{count:,}" for count in counts]
    taken = max(map(len, names)) + max(map(len, [*texts, "count"])) + 4
    width = min(max((terminal_width() or 80) - taken, 1), _BAR_WIDTH)
    lengths = [max(round(count / max(counts) * width), 1 if count else 0) for count in counts]
    rows = [
        [name, text, sign * length]
        for name, text, length in zip(names, texts, lengths, strict=True)
    ]
    click.echo()
    print_table([(heading, "right"), ("count", "right"), ""], rows)
