"""The command that shows an array's values: as text, as statistics, as a picture."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
import numpy as np

import npzkit
from npzkit.cli.opening import (
    archive_argument,
    dtype_text,
    key_argument,
    opened,
    pickle_option,
    shape_text,
)
from npzkit.cli.output import (
    Report,
    can_print,
    counting,
    json_option,
    print_fields,
    print_json,
    print_table,
    progress,
    terminal_width,
)
from npzkit.cli.plotting import draw, is_numeric, kind_of_picture
from npzkit.cli.slicing import Index, parse_index
from npzkit.errors import printable

_SUMMARISED = 1000
"""Items from which on NumPy prints the corners alone."""
_EDGE_COUNT = 3
"""Items that NumPy prints on either side."""
_CORNERS_COUNT = 50_000
"""Items that are printed at most."""
_LINE_WIDTH = 75
"""Columns that NumPy fills."""
_CLAIMED_COUNT = 1_000_000
"""Items that a shape may claim for which the file has no bytes."""
_BYTES_SHOWN = 1000
"""Bytes shown of a member that is no array."""
_STEP_SIZE = 1 << 25
"""Bytes of an array that are read between two updates of the progress bar."""
_BAR_WIDTH = 40
_KEYS_NAMED = 20
"""The most keys that are named if none was given."""


@click.command(context_settings={"ignore_unknown_options": True})
@archive_argument
@key_argument(required=False)
@click.argument("slice_", metavar="[SLICE]", required=False)
@click.option(
    "--stats", is_flag=True, help="Print minimum, maximum, mean, deviation and a histogram."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False), help="Draw the values to a .png, .svg or .pdf."
)
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

    The values are printed as by NumPy. Only what is shown is read. If that is
    the whole array, its CRC-32 is checked. KEY may be left out if there is only
    one array. SLICE is NumPy's: '0:10, ::2, ..., -1', '[1, 5]', a field by its
    name. --plot draws a line, an image or a histogram. Shapes (h, w, 3) and (h,
    w, 4) are drawn as pictures in colour. FILE may be - for the standard input; a
    pipe is copied to a temporary file first.

    Example: npzkit show model.npz weights "0:2, ::50"
    """
    try:
        index = Index() if slice_ is None else parse_index(slice_)
    except ValueError as error:
        if slice_ and os.path.isfile(slice_):
            raise click.UsageError(
                f"show takes one FILE: {slice_!r} is a file, but was taken for SLICE."
            ) from error
        raise click.UsageError(f"{error}.") from error
    with opened(file, allow_pickle=allow_pickle) as npz:
        if key is not None and key not in npz and slice_ is None and _is_slice(key):
            only = npz.files[0] if len(npz) == 1 else "KEY"
            raise click.UsageError(
                f"{key!r} is a SLICE, not a key of FILE. Name the KEY before it: "
                f"npzkit show FILE {only} {key!r}."
            )
        info = npz.info(_only_key(npz) if key is None else key)
        if info.dtype is None:
            _show_bytes(npz, info, as_json)
            return
        part = _part(npz, info, index, allow_pickle)
        if stats or plot:
            _check_numbers(part, info)
            _show_numbers(npz, part, info, index, Wanted(stats, plot, as_json))
        else:
            _show_values(npz, part, info, index, as_json)


def _is_slice(text: str) -> bool:
    """Whether text has characters of a SLICE that keys do not have."""
    try:
        return bool(parse_index(text).items)
    except ValueError:
        return False


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
    npz: npzkit.NpzFile, info: npzkit.ArrayInfo, index: Index, allow_pickle: bool
) -> npzkit.ArrayPart:
    """Return what SLICE chooses; Python objects are read completely, where that is allowed."""
    if info.dtype is not None and info.dtype.hasobject and not allow_pickle:
        raise click.ClickException(
            f"{printable(info.key)} holds Python objects, and unpickling them runs code from "
            "the file. If you trust it, pass --allow-pickle"
        )
    has_objects = info.dtype is not None and info.dtype.hasobject
    source = npz.read(info.key) if has_objects else npz.lazy(info.key)
    try:
        return npzkit.ArrayPart(source, index.items, index.field)
    except IndexError as error:
        told = f"{error}; the array's shape is {shape_text(info.shape)}"
        raise click.UsageError(f"SLICE: {told}.") from error


def _show_values(
    npz: npzkit.NpzFile,
    part: npzkit.ArrayPart,
    info: npzkit.ArrayInfo,
    index: Index,
    as_json: bool,
) -> None:
    reads_all = as_json or math.prod(info.shape or ()) <= _SUMMARISED
    try:
        with progress("read") as tell:
            if isinstance(part.source, npzkit.LazyArray):
                if reads_all and part.is_whole:
                    part = npzkit.ArrayPart(npz.read(info.key), field=index.field)
                else:
                    _approach(part, info, tell)
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


def _approach(part: npzkit.ArrayPart, info: npzkit.ArrayInfo, tell: Report) -> None:
    """Read what comes before a part that cannot be reached otherwise, and show the progress."""
    lazy = part.source
    if info.seekable or not (part.size and lazy.shape):
        return
    order: Any = "F" if info.fortran_order else "C"
    end = int(np.ravel_multi_index(part.last_position(), lazy.shape, order=order))
    step = max(_STEP_SIZE // max(lazy.dtype.itemsize, 1), 1)
    for place in range(step, end, step):
        lazy[tuple(map(int, np.unravel_index(place, lazy.shape, order=order)))]
        tell(place, end)


def _show_bytes(npz: npzkit.NpzFile, info: npzkit.ArrayInfo, as_json: bool) -> None:
    """Show the beginning of a member that is not an array."""
    with npz.stream(info.key) as stream:
        data = stream.read(_BYTES_SHOWN)
    more = info.nbytes - len(data)
    if as_json:
        print_json({"key": info.key, "size": info.nbytes, "begins": data.decode("latin1")})
        return
    click.echo(repr(data) + (f" and {more:,} bytes more" if more else ""))


# -- values -------------------------------------------------------------------


def _text(part: npzkit.ArrayPart) -> str:
    """Return the values as NumPy prints them; read only those that it prints."""
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


def _corners_size(part: npzkit.ArrayPart, edge: int) -> int:
    return math.prod(min(length, 2 * edge + 1) for length in part.shape)


def _corners(part: npzkit.ArrayPart, edge: int) -> np.ndarray[Any, Any]:
    """Return the array with only one of the items that NumPy does not print.
    NumPy prints it like the whole, because a long axis stays longer than twice
    the edges.
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
    """Return values as lists of JSON values, or of text."""
    array = np.asarray(values)
    if array.dtype.kind == "V" and array.dtype.type is not np.void:
        array = array.astype(np.float64)
    if array.dtype.kind in "mM":
        array = array.astype(str)
    # Lists of nothing take memory too.
    if math.prod(filter(None, array.shape)) > _CLAIMED_COUNT + array.nbytes:
        raise ValueError(
            "an array of its shape would fill the memory; choose a part of it by SLICE"
        )
    return array.tolist()


# -- numbers ------------------------------------------------------------------


def _check_numbers(part: npzkit.ArrayPart, info: npzkit.ArrayInfo) -> None:
    """Raise unless the values are numbers."""
    if is_numeric(part.dtype):
        return
    remedy = ""
    if part.dtype.names:
        remedy = f" Choose a field by SLICE: {', '.join(map(repr, part.dtype.names[:10]))}."
    raise click.UsageError(
        f"{printable(info.key)} does not hold numbers: its dtype is "
        f"{dtype_text(part.dtype)}. --stats and --plot need numbers.{remedy}"
    )


class Wanted(NamedTuple):
    """What is to be shown of numbers: --stats, --plot, --json."""

    stats: bool
    plot: str | None
    as_json: bool


def _show_numbers(
    npz: npzkit.NpzFile,
    part: npzkit.ArrayPart,
    info: npzkit.ArrayInfo,
    index: Index,
    wanted: Wanted,
) -> None:
    found = None
    if wanted.stats or kind_of_picture(part) == "histogram":
        with progress("measure") as tell:
            found = npzkit.statistics(npz, info.key, index.items, field=index.field, progress=tell)
    if wanted.plot:
        with counting("read", part.nbytes) as advance:
            draw(part, found, info.key, wanted.plot, advance)
        if not wanted.stats and wanted.as_json:
            print_json({"key": info.key, "output": wanted.plot})
        elif not wanted.stats:
            click.echo(printable(wanted.plot))
    if found is not None and wanted.stats:
        facts = _facts(part, info, found)
        if wanted.as_json:
            print_json(facts)
        else:
            _print_statistics(facts, part.dtype, found.histogram)


def _facts(
    part: npzkit.ArrayPart, info: npzkit.ArrayInfo, found: npzkit.Statistics
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "key": info.key,
        "shape": part.shape,
        "dtype": dtype_text(part.dtype),
        "count": found.count,
        "min": _value(found.min),
        "max": _value(found.max),
        "nan_count": found.nan_count,
    }
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


def _print_statistics(facts: Mapping[str, Any], dtype: np.dtype[Any], histogram: Any) -> None:
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
        _print_histogram(histogram, by_integer=_is_by_integer(dtype, histogram))


def _is_by_integer(dtype: np.dtype[Any], histogram: Any) -> bool:
    """Whether each bin is one integer."""
    return dtype.kind in "biu" and bool(histogram.edges[1] - histogram.edges[0] == 1)


def _bin_names(histogram: Any, *, by_integer: bool) -> list[str]:
    """Return the label of each bin: its integer, or its edges."""
    edges = histogram.edges.tolist()
    if by_integer:
        return [f"{low:.0f}" for low in edges[:-1]]
    if len(edges) == 2:
        return [f"{edges[0]:.10g}"]
    texts: list[str] = []
    for digits in range(4, 18):
        texts = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(texts)) == len(texts):
            break
    return [f"{low} to {high}" for low, high in itertools.pairwise(texts)]


def _print_histogram(histogram: Any, *, by_integer: bool) -> None:
    """Print a bar for each bin."""
    sign = "█" if can_print("█") else "#"
    largest = max(histogram.counts)
    names = _bin_names(histogram, by_integer=by_integer)
    counts = [f"{count:,}" for count in histogram.counts]
    taken = max(map(len, names)) + max(map(len, [*counts, "count"])) + 4
    width = min(max((terminal_width() or 80) - taken, 1), _BAR_WIDTH)
    rows = [
        [name, text, sign * max(round(count / largest * width), 1 if count else 0)]
        for name, text, count in zip(names, counts, histogram.counts, strict=True)
    ]
    click.echo()
    heading = "value" if by_integer else "from"
    print_table([(heading, "right"), ("count", "right"), ""], rows)
