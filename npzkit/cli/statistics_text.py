"""The statistics of an array as text and as JSON, with a histogram of bars.

Owns how numbers and bins are written.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np

import npzkit
from npzkit.analysis.statistics import ArrayPart
from npzkit.cli.output import can_print, print_fields, print_table, shape_text, terminal_width
from npzkit.errors import format_dtype, printable

_BAR_WIDTH = 40


def statistics_dict(key: str, part: ArrayPart, found: npzkit.Statistics) -> dict[str, Any]:
    """Return statistics as values for JSON."""
    facts: dict[str, Any] = {
        "key": key, "shape": part.shape, "dtype": format_dtype(part.dtype), "count": found.count,
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
    is_time, has_few_digits = dtype.kind in "mM", dtype.itemsize <= 4
    numbers = [
        (name, f"{number:.10g}" if has_few_digits and name in ("mean", "std") else str(number))
        for name in ("min", "max", "mean", "std")
        if (number := facts.get(name) if is_time else getattr(found, name)) is not None
    ]
    fields = [
        ("key", printable(facts["key"])),
        ("shape", shape_text(facts["shape"])),
        ("dtype", _dtype_text(facts["dtype"])),
        ("count", f"{facts['count']:,}"),
        *numbers,
        ("NaN", f"{facts['nan_count']:,}"),
        ("infinite", f"{facts['inf_count']:,}" if facts.get("inf_count") else ""),
    ]
    print_fields(fields)
    if found.histogram is not None and "histogram" in facts:
        edges = facts["histogram"]["edges"]
        is_by_integer = dtype.kind in "biu" and edges[1] - edges[0] == 1
        names = [f"{low:.0f}" for low in edges[:-1]] if is_by_integer else _bin_names(edges)
        # One bin is one value.
        names = names or [str(found.min)]
        _print_histogram("value" if is_by_integer else "from", names, found.histogram.counts)


def _dtype_text(dtype: str) -> str:
    return dtype + (", by magnitude" if dtype.startswith(("complex", "<c", ">c")) else "")


def print_statistics_table(facts: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each of several arrays."""
    numbers = ("min", "max", "mean", "std")
    print_table(
        ["key", "shape", "dtype", *((name, "right") for name in (*numbers, "NaN"))],
        [
            [
                printable(each["key"]), shape_text(each["shape"]), _dtype_text(each["dtype"]),
                *(_short(each.get(name)) for name in numbers),
                f"{each['nan_count']:,}" if "nan_count" in each else "",
            ]
            for each in facts
        ],
    )  # fmt: skip


def _short(number: Any) -> str:
    """Return a number in few digits; dates as they are."""
    if isinstance(number, float):
        return f"{number:.6g}"
    return "" if number is None else str(number)


def _bin_names(edges: Sequence[float]) -> list[str]:
    """Return the label of each of several bins: its edges, in digits that tell them apart."""
    if len(edges) == 2:
        return []
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
