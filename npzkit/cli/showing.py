"""The command that shows an array's values: as text, as statistics, as a picture."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import click
import numpy as np

import npzkit
from npzkit.cli.measuring import Histogram, Statistics, as_numbers, is_numeric
from npzkit.cli.opening import (
    archive_argument,
    dtype_text,
    key_argument,
    opened,
    pickle_option,
    shape_text,
)
from npzkit.cli.output import (
    can_print,
    json_option,
    print_fields,
    print_json,
    print_table,
    printable,
    progress,
    terminal_width,
)
from npzkit.cli.parts import checked_array
from npzkit.cli.slicing import Index, Part, parse_index
from npzkit.limits import is_backed

__all__ = ["show"]

_SUMMARISED = 1000
"""Items from which on NumPy prints the corners alone."""
_EDGE_COUNT = 3
"""Items that NumPy prints on either side."""
_CORNERS_COUNT = 50_000
"""Items that are printed at most."""
_LINE_WIDTH = 75
"""Columns that NumPy fills."""
_BYTES_SHOWN = 1000
"""Bytes shown of a member that is no array."""
_BAR_WIDTH = 40
_KEYS_NAMED = 20
"""Keys that are named where none was given."""


@click.command(context_settings={"ignore_unknown_options": True})
@archive_argument
@key_argument(required=False)
@click.argument("slice_", metavar="[SLICE]", required=False)
@click.option("--stats", is_flag=True, help="Minimum, maximum, mean, deviation, a histogram.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw it, to a .png, .svg or .pdf.")
@pickle_option
@json_option
def show(
    file: str,
    key: str | None,
    slice_: str | None,
    stats: bool,
    plot: str | None,
    allow_pickle: bool,
    as_json: bool,
) -> None:
    """Show the values of the array KEY, or a SLICE of it.

    They look as NumPy prints them, and only what is shown is read; where that
    is the whole array, its CRC-32 is compared. Without KEY it is the only array
    there is. SLICE is NumPy's: '0:10, ::2, ..., -1', '[1, 5]', a field by its
    name. --plot draws a line, an image or a histogram.

    Example: npzkit show model.npz weights "0:2, ::50"
    """
    try:
        index = Index() if slice_ is None else parse_index(slice_)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    with opened(file, allow_pickle=allow_pickle) as npz:
        info = npz.info(_only_key(npz) if key is None else key)
        if info.dtype is None:
            _show_bytes(npz, info, as_json)
            return
        reads_all = stats or as_json or math.prod(info.shape or ()) <= _SUMMARISED
        part = _part(npz, info, index, allow_pickle, check=reads_all and not index.items)
        if stats or plot:
            _check_numbers(part, info)
            _show_numbers(part, info, stats, plot, as_json)
        else:
            _show_values(part, info, as_json)


def _only_key(npz: npzkit.NpzFile) -> str:
    """Return the key of the only member."""
    if len(npz) != 1:
        if not npz.files:
            raise click.UsageError("FILE has no arrays.")
        keys = ", ".join(printable(key) for key in npz.files[:_KEYS_NAMED])
        more = ", ..." if len(npz) > _KEYS_NAMED else ""
        raise click.UsageError(f"Name a KEY, one of {keys}{more}.")
    return npz.files[0]


def _part(
    npz: npzkit.NpzFile, info: npzkit.ArrayInfo, index: Index, allow_pickle: bool, *, check: bool
) -> Part:
    """Return what SLICE chooses; Python objects are read whole, where that is allowed.

    With `check` the CRC-32 is compared, of all of the array.
    """
    try:
        if info.dtype is None or not info.dtype.hasobject:
            source = checked_array(npz, info.key) if check else npz.lazy(info.key)
            return Part(source, index, fortran_order=bool(info.fortran_order))
        if not allow_pickle:
            raise click.ClickException(
                f"{printable(info.key)} holds Python objects, and unpickling them runs code from "
                "the file. Where you trust it: --allow-pickle"
            )
        return Part(npz.read(info.key), index)
    except IndexError as error:
        told = f"{error}; the array's shape is {shape_text(info.shape)}"
        raise click.UsageError(f"SLICE: {told}.") from error


def _show_values(part: Part, info: npzkit.ArrayInfo, as_json: bool) -> None:
    try:
        if as_json:
            values = part.read()
            facts = {"key": info.key, "shape": np.shape(values), "dtype": str(part.dtype)}
            facts["values"] = _plain(values)
        else:
            text = _text(part)
    except (SystemError, ValueError) as error:
        if isinstance(error, npzkit.NpzkitError):
            raise
        # Text of a forged file, of which NumPy can make no str.
        raise click.ClickException(f"{printable(info.key)} cannot be shown: {error}") from error
    if as_json:
        print_json(facts)
    else:
        click.echo("\n".join(map(printable, text.split("\n"))))


def _show_bytes(npz: npzkit.NpzFile, info: npzkit.ArrayInfo, as_json: bool) -> None:
    """Show how a member begins that is no array."""
    with npz.stream(info.key) as stream:
        data = stream.read(_BYTES_SHOWN)
    more = info.nbytes - len(data)
    if as_json:
        print_json({"key": info.key, "size": info.nbytes, "begins": data.decode("latin1")})
        return
    click.echo(repr(data) + (f" and {more:,} bytes more" if more else ""))


# -- values -------------------------------------------------------------------


def _text(part: Part) -> str:
    """Return the values as NumPy prints them, having read those alone that it prints."""
    width = min(terminal_width() or _LINE_WIDTH, _LINE_WIDTH)
    if not part.shape:
        value = part.read()
        if np.ndim(value):
            return np.array2string(value, max_line_width=width)
        return str(value[()] if isinstance(value, np.ndarray) else value)
    if part.size <= _SUMMARISED:
        values = part.read()
        with np.printoptions(linewidth=width):
            return str(values)
    edge = _EDGE_COUNT
    long_count = sum(length > 2 * edge for length in part.shape)
    while edge > 1 and _corners_size(part, edge) > _CORNERS_COUNT:
        edge -= 1
    if _corners_size(part, edge) > _CORNERS_COUNT:
        raise click.UsageError(
            f"the corners of an array of {long_count} long axes are too many to print; "
            "choose a part of it by SLICE."
        )
    corners = _corners(part, edge)
    with np.printoptions(threshold=0, edgeitems=edge, linewidth=width):
        return str(corners)


def _corners_size(part: Part, edge: int) -> int:
    return math.prod(min(length, 2 * edge + 1) for length in part.shape)


def _corners(part: Part, edge: int) -> np.ndarray[Any, Any]:
    """Return the array with all but one of the items taken out that NumPy does not print.

    NumPy prints it as the whole: a long axis is longer than twice the edges here
    too.
    """
    shape = tuple(min(length, 2 * edge + 1) for length in part.shape)
    choices = []
    for length in part.shape:
        if length <= 2 * edge + 1:
            choices.append([(slice(None), slice(None))])
        else:
            head, tail = slice(edge + 1), slice(length - edge, length)
            choices.append([(head, head), (slice(edge + 1, None), tail)])
    # A field may have axes of its own.
    corners = np.empty(shape, np.dtype((part.dtype, part.field_shape)))
    for corner in itertools.product(*choices):
        values = part.read(*[source for _, source in corner])
        corners[tuple(target for target, _ in corner)] = values
    return corners


def _plain(values: Any) -> Any:
    """Return values as lists of what JSON has, or can show as text."""
    array = np.asarray(values)
    if array.dtype.kind == "V" and array.dtype.type is not np.void:
        array = array.astype(np.float64)
    if array.dtype.kind in "mM":
        array = array.astype(str)
    if not is_backed(array.shape, array.nbytes):
        raise ValueError("its shape alone would fill the memory; choose a part of it by SLICE")
    return array.tolist()


# -- numbers ------------------------------------------------------------------


def _check_numbers(part: Part, info: npzkit.ArrayInfo) -> None:
    """Raise where there is nothing to compute with."""
    if is_numeric(part.dtype):
        return
    remedy = ""
    if part.dtype.names:
        remedy = f" Choose a field by SLICE: {', '.join(map(repr, part.dtype.names[:10]))}."
    raise click.UsageError(
        f"{printable(info.key)} holds no numbers but {dtype_text(part.dtype)}: "
        f"--stats and --plot need them.{remedy}"
    )


def _show_numbers(
    part: Part, info: npzkit.ArrayInfo, stats: bool, plot: str | None, as_json: bool
) -> None:
    needs_histogram = stats or len(part.shape) not in (1, 2)
    found, histogram = _measure(part) if needs_histogram else (Statistics(), None)
    if plot:
        from npzkit.cli.plotting import plot as draw

        draw(part, histogram, info.key, plot)
        if as_json and not stats:
            print_json({"key": info.key, "output": plot})
        elif not stats:
            click.echo(printable(plot))
    if stats and as_json:
        print_json(_facts(part, info, found, histogram))
    elif stats:
        _print_statistics(_facts(part, info, found, histogram), histogram)


def _measure(part: Part) -> tuple[Statistics, Histogram | None]:
    """Read all of it twice: for the statistics, then for a histogram between least and most."""
    is_time = part.dtype.kind in "mM"
    found = Statistics(np.iinfo(np.int64).min if is_time else None)
    done, total = 0, 2 * part.nbytes
    with progress("measure") as tell:
        for piece in part.pieces():
            numbers = as_numbers(piece, part.dtype)
            found.add(numbers)
            done += np.asarray(piece).nbytes
            tell(done, total)
        histogram = found.histogram()
        if histogram is None:
            return found, None
        for piece in part.pieces():
            numbers = as_numbers(piece, part.dtype)
            histogram.add(numbers)
            done += np.asarray(piece).nbytes
            tell(done, total)
    return found, histogram


def _facts(
    part: Part, info: npzkit.ArrayInfo, found: Statistics, histogram: Histogram | None
) -> dict[str, Any]:
    has_numbers = found.least is not None
    facts: dict[str, Any] = {
        "key": info.key,
        "shape": part.shape,
        "dtype": dtype_text(part.dtype),
        "count": found.count,
        "min": _value(found.least, part.dtype) if has_numbers else None,
        "max": _value(found.most, part.dtype) if has_numbers else None,
        "nan_count": found.nan_count,
    }
    if part.dtype.kind in "mM":
        return facts
    mean = found.mean if histogram is not None else None
    facts |= {
        "mean": mean,
        "std": found.deviation if histogram is not None else None,
        "inf_count": found.inf_count,
    }
    if histogram is not None:
        facts["histogram"] = {
            "edges": histogram.edges(), "counts": histogram.counts.tolist()
        }  # fmt: skip
    return facts


def _value(number: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number as what it stands for: a date, a bool."""
    if dtype.kind in "mM":
        if np.datetime_data(dtype)[0] == "generic":
            # Without a unit it is no date.
            return int(number)
        return str(np.int64(number).view(dtype.newbyteorder("=")))
    return bool(number) if dtype.kind == "b" else number.item()


def _print_statistics(facts: Mapping[str, Any], histogram: Histogram | None) -> None:
    is_complex = facts["dtype"].startswith("complex")
    fields = [
        ("key", printable(facts["key"])),
        ("shape", shape_text(facts["shape"])),
        ("dtype", facts["dtype"] + (", by magnitude" if is_complex else "")),
        ("count", f"{facts['count']:,}"),
        *[
            (name, f"{facts[name]:.10g}" if isinstance(facts[name], float) else str(facts[name]))
            for name in ("min", "max", "mean", "std")
            if facts.get(name) is not None
        ],
        ("NaN", f"{facts['nan_count']:,}"),
        ("infinite", f"{facts['inf_count']:,}" if facts.get("inf_count") else ""),
    ]
    print_fields([(f"{name}:", text) for name, text in fields if text])
    if histogram is not None and "histogram" in facts:
        _print_histogram(histogram)


def _print_histogram(histogram: Histogram) -> None:
    """Print a bar for each bin."""
    sign = "█" if can_print("█") else "#"
    largest = max(int(histogram.counts.max()), 1)
    edges = histogram.edges()
    width = min((terminal_width() or 80) - 40, _BAR_WIDTH)
    rows = []
    for low, high, count in zip(edges, edges[1:], histogram.counts.tolist(), strict=False):
        name = f"{low:.0f}" if histogram.by_integer else f"{low:.4g} to {high:.4g}"
        length = max(round(count / largest * width), 1 if count else 0)
        rows.append([name, f"{count:,}", sign * length])
    click.echo()
    heading = "value" if histogram.by_integer else "from"
    print_table([(heading, "right"), ("count", "right"), ""], rows)
