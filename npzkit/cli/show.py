"""The command that shows an array's values, or their statistics.

Owns the syntax of SLICE, which is NumPy's, with or without the brackets. It is parsed and never
evaluated.
"""

from __future__ import annotations

import ast
import itertools
import math
import os
import warnings
from typing import Any, NamedTuple

import click
import numpy as np

import npzkit
from npzkit.analysis.statistics import ArrayPart
from npzkit.cli.file_argument import (
    archive_argument,
    encoding_option,
    key_argument,
    keys_named,
    opened,
)
from npzkit.cli.messages import as_word, report_failure, running_objects, say
from npzkit.cli.output import ProgressBar, json_option, print_json, shape_text, terminal_width
from npzkit.cli.statistics_text import print_statistics, print_statistics_table, statistics_dict
from npzkit.display.piecewise import is_numeric
from npzkit.errors import MemberNotFoundError, format_dtype, printable, some_of
from npzkit.files.urls import local_path
from npzkit.members.keys import is_within, with_folders
from npzkit.members.metadata import TREE_KEY

_SUMMARISED = 1000
"""Items from which on NumPy prints the corners alone."""
_CORNERS_COUNT = 50_000
"""Items that are printed at most."""
_CHECKED_SIZE = 1 << 26
"""Bytes of an array in a local file that is read completely, so that it is checked."""
_LINE_WIDTH = 75
"""Columns that NumPy fills."""
_CLAIMED_COUNT = 1_000_000
"""Items that a shape may claim for which the file has no bytes."""
_KEYS_NAMED = 20
"""The most keys that are named if none was given."""


class _Show(click.Command):
    """The command whose SLICE, such as -1, may look like an option; what has two dashes is one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = [name for one in self.get_params(ctx) for name in one.opts if name[:2] == "--"]
        for word in () if ctx.resilient_parsing else itertools.takewhile("--".__ne__, args):
            if word[:2] == "--" and word.partition("=")[0] not in known:
                raise click.NoSuchOption(word, possibilities=known, ctx=ctx)
        return super().parse_args(ctx, args)


@click.command(cls=_Show, context_settings={"ignore_unknown_options": True})
@archive_argument
@key_argument
@click.argument("slice_", metavar="[SLICE]", required=False)
@click.option(
    "--stats",
    is_flag=True,
    help="Print minimum, maximum, mean, deviation and a histogram; of several arrays, a table.",
)
@click.option(
    "--allow-pickle", is_flag=True, help="Unpickle Python objects, which can run code from FILE."
)
@encoding_option
@json_option
def show(
    file: str, key: str | None, slice_: str | None, stats: bool, allow_pickle: bool,
    encoding: str, as_json: bool,
) -> int:  # fmt: skip
    """Show the values of the array KEY, or a SLICE of it.

    The values are printed as by NumPy. An array of up to 64 MiB is read completely,
    and its CRC-32 is checked. Of a larger one, of one at a URL, and of a SLICE,
    only what is shown is read. KEY may be left out if there is only one array, as
    in a .npy file, which has no CRC-32, and with --stats, for all; a pattern such as
    'layer*/bias', or a folder of keys, shows several. A value of nested data, such as a
    learning rate, is shown by its key, too. SLICE is NumPy's: '0:10, ::2, ..., -1',
    '[1, 5]', a field by its name. FILE may be - for the standard input; a pipe is copied
    to a temporary file first.

    Example: npzkit show model.npz weights "0:2, ::50"
    """
    index = SliceIndex() if slice_ is None else _parsed(slice_)
    with opened(file, allow_pickle=allow_pickle, pickle_kwargs={"encoding": encoding}) as npz:
        key = "*" if stats and key is None and len(npz) > 1 else _with_array(npz, key)
        if key is not None and key not in npz and slice_ is None and _is_slice(key):
            if len(npz) != 1:
                raise click.UsageError(
                    f"{key!r} is a SLICE, not a key of FILE. Name the KEY before it: "
                    f"npzkit show FILE KEY {key!r}."
                )
            index, key = parse_index(key), None
        values = [] if slice_ is not None else _values_in(npz, key or "")
        keys = [] if values == [key or ""] else _keys_of(npz, key)
        names = keys if keys and (key is None or stats) else [*keys, *values]
        is_local, is_several = local_path(file) is not None, len(names) > 1
        is_row = as_json or (stats and is_several)
        found, code = list[Any](), 0
        for each in names:
            if is_several and stats and index.field is None and _has_no_numbers(npz, each):
                info = npz.info(each)
                shape, dtype = info.shape, format_dtype(info.dtype)
                found.append({"key": each, "shape": shape, "dtype": dtype})
                continue
            if is_several and not (as_json or stats):
                click.echo(f"{printable(each)}:")
            try:
                with running_objects(allow_pickle):
                    if keys and each in npz:
                        row = _shown(npz, npz.info(each), index, stats, is_row, is_local=is_local)
                    else:
                        row = _shown_value(npz, each, as_json, is_whole=not (slice_ or stats))
                found.append(row)
            except (npzkit.NpzkitError, click.ClickException) as error:
                if not is_several:
                    raise
                code = max(code, report_failure(error))
        if as_json:
            print_json(found if is_several else found[0])
        elif is_several and stats:
            print_statistics_table(found)
    return code


def _parsed(text: str) -> SliceIndex:
    """Return what SLICE says, or raise UsageError."""
    try:
        return parse_index(text)
    except ValueError as error:
        told = f"{error}."
        if text and os.path.isfile(text):
            told = f"show takes one FILE: {text!r} is a file, but was taken for SLICE."
        raise click.UsageError(told) from error


def _shown(
    npz: npzkit.NpzFile, info: npzkit.ArrayInfo, index: SliceIndex, stats: bool, as_json: bool, *,
    is_local: bool,
) -> dict[str, Any] | None:  # fmt: skip
    """Print what an array has, or return it for JSON."""
    part = _part(npz, info, index)
    if info.is_masked:
        say(f"masked values are shown too: {printable(info.split_into[0])} says which.")
    elif info.split_into:
        say(f"{printable(info.key)} was saved in parts: {info.split_text()}.")
    if not stats:
        is_small = info.nbytes <= _CHECKED_SIZE and is_local
        return _print_values(npz, info.key, part, index, is_small=is_small, as_json=as_json)
    with ProgressBar("measure") as tell:
        found = npzkit.statistics(npz, info.key, index.items, field=index.field, progress=tell)
    facts = statistics_dict(info.key, part, found)
    if as_json:
        return facts
    print_statistics(facts, part.dtype, found)
    return None


def _has_no_numbers(npz: npzkit.NpzFile, key: str) -> bool:
    dtype = npz.info(key).dtype if key in npz else None
    return dtype is not None and not dtype.hasobject and not is_numeric(dtype)


def _with_array(npz: npzkit.NpzFile, key: str | None) -> str | None:
    """Return a key, or of that of a tied tensor, the one that has the array."""
    if key is None or key in npz or TREE_KEY not in npz.metadata:
        return key
    from npzkit.trees.notes import tied_to

    array = tied_to(key, npz.metadata[TREE_KEY])
    if array is None:
        return key
    say(f"{printable(key)} is tied to {printable(array)}, which has the array.")
    return array


def _keys_of(npz: npzkit.NpzFile, key: str | None) -> list[str]:
    """Return the keys of the arrays that KEY names, or that of the only one."""
    try:
        return keys_named([_only_key(npz) if key is None else key], npz, npz._archive.path)
    except MemberNotFoundError as error:
        name, _, rest = (key or "").partition("[")
        if name in npz and rest.endswith("]"):
            words = f"{as_word(name)} {as_word(rest[:-1])}"
            error.remedy = f"Put a space before SLICE: npzkit show FILE {words}."
        raise


def _shown_value(
    npz: npzkit.NpzFile, key: str, as_json: bool, *, is_whole: bool
) -> dict[str, Any] | None:
    """Print a value of nested data, or return it for JSON."""
    value = npzkit.load_tree(npz, key)
    if not is_whole:
        raise click.UsageError(f"{key!r} is no array, and SLICE and --stats are for arrays.")
    if as_json:
        return {"key": key, "values": value}
    click.echo(printable(repr(value)))
    return None


def _values_in(npz: npzkit.NpzFile, key: str) -> list[str]:
    """Return the keys of values without an array, and containers of such values, in a key."""
    if TREE_KEY not in npz.metadata:
        return []
    if not (key or npz.files):
        return [""]
    from npzkit.trees.notes import nodes_of

    found, with_arrays = [""], set(with_folders(npz.files))
    for name, _ in nodes_of(npz.metadata[TREE_KEY]):
        is_value = with_arrays.isdisjoint((name, f"{name}/"))
        is_new = not (found[-1] and is_within(name, found[-1]))
        found += [name] if name and is_value and is_new and is_within(name, key) else []
    return found[1:]


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
        keys = some_of(npz.files, printable, _KEYS_NAMED)
        raise click.UsageError(f"Name a KEY, one of {keys}.")
    return npz.files[0]


def _part(npz: npzkit.NpzFile, info: npzkit.ArrayInfo, index: SliceIndex) -> ArrayPart:
    """Return what SLICE chooses; Python objects are read completely."""
    has_objects = info.dtype is not None and info.dtype.hasobject
    source = npz.read(info.key) if has_objects else npz.lazy(info.key)
    try:
        return ArrayPart(source, index.items, index.field)
    except IndexError as error:
        told = f"{error}; the array's shape is {shape_text(info.shape)}"
        raise click.UsageError(f"SLICE: {told}.") from error


def _print_values(
    npz: npzkit.NpzFile, key: str, part: ArrayPart, index: SliceIndex, *,
    is_small: bool, as_json: bool,
) -> dict[str, Any] | None:  # fmt: skip
    """Show the values of a part; if that is all of the array, check it, or say that it is not."""
    is_unchecked = part.is_whole and isinstance(part.source, npzkit.LazyArray)
    has_checksum = npz.info(key).crc32 is not None
    try:
        with ProgressBar("read") as tell:
            if is_unchecked and (is_small or as_json or part.size <= _SUMMARISED):
                part = ArrayPart(npz.read(key), field=index.field)
                is_unchecked = False
            part._approach(tell)
            values = _plain(part.read()) if as_json else _text(part)
    except (SystemError, ValueError) as error:
        if isinstance(error, npzkit.NpzkitError):
            raise
        # Text of a forged file, of which NumPy can make no str.
        raise click.ClickException(f"{printable(key)} cannot be shown: {error}") from error
    if as_json:
        shape = part.shape + part.field_shape
        return {"key": key, "shape": shape, "dtype": str(part.dtype), "values": values}
    click.echo("\n".join(map(printable, values.split("\n"))))
    if is_unchecked and has_checksum:
        say("only these values were read, and not the array's CRC-32: npzkit verify checks it.")
    return None


# -- values -------------------------------------------------------------------


def _text(part: ArrayPart) -> str:
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
    fitting = (
        edge for edge in (3, 2, 1)
        if math.prod(min(length, 2 * edge + 1) for length in part.shape) <= _CORNERS_COUNT
    )  # fmt: skip
    edge = next(fitting, None)
    if edge is None:
        raise click.UsageError(
            f"the corners of an array of {len(part.shape)} axes are too many to print; "
            "choose a part of it by SLICE."
        )
    corners = _corners(part, edge)
    with np.printoptions(threshold=0, edgeitems=edge, linewidth=width):
        return str(corners)


def _corners(part: ArrayPart, edge: int) -> np.ndarray[Any, Any]:
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


# -- SLICE --------------------------------------------------------------------


class SliceIndex(NamedTuple):
    """What a SLICE says.

    Attributes
    ----------
    items : tuple
        Integers, slices, Ellipsis, and one list of integers at most.
    field : str or None
        The field of a structured array.
    """

    items: tuple[Any, ...] = ()
    field: str | None = None


def parse_index(text: str) -> SliceIndex:
    """Parse a SLICE, as Python parses what is between brackets; nothing is evaluated.

    It may have the brackets, unless it would be a list then: ``[1, 5]``.

    Raises
    ------
    ValueError
        It is none, in words for whoever typed it.

    Examples
    --------
    >>> parse_index("0:10, ::2, ..., -1")
    SliceIndex(items=(slice(0, 10, None), slice(None, None, 2), Ellipsis, -1), field=None)
    >>> parse_index("pos, [1, 3]")
    SliceIndex(items=([1, 3],), field='pos')
    """
    if text.isidentifier():
        # A field may have the name of a word of Python, such as class.
        return SliceIndex(field=text)
    text = text.strip()
    values = _items(text)
    if values is None and text[:1] + text[-1:] == "[]":
        # The brackets of NumPy, and not those of a list.
        values = _items(text[1:-1])
    if values is None:
        raise ValueError(
            f"SLICE cannot be read: {text[:40]!r}. It is written like "
            "'0:10, ::2, ..., -1' or '[1, 5], 0', a field by its name"
        )
    fields = [value for value in values if isinstance(value, str)]
    items = tuple(value for value in values if not isinstance(value, str))
    if not values or len(fields) > 1 or sum(isinstance(item, list) for item in items) > 1:
        raise ValueError("SLICE takes one field and one list of indices at most")
    return SliceIndex(items, fields[0] if fields else None)


def _items(text: str) -> list[Any] | None:
    """Return what is between brackets, or None if it is no index."""
    try:
        with warnings.catch_warnings(action="ignore"):
            found = ast.parse(f"_[{text}]", mode="eval").body
        # There may be more than one pair of brackets.
        if not isinstance(found, ast.Subscript) or not isinstance(found.value, ast.Name):
            return None
        chosen = found.slice.elts if isinstance(found.slice, ast.Tuple) else [found.slice]
        return list(map(_item, chosen))
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return None


def _item(node: ast.expr) -> Any:
    """Return an integer, slice, list of integers or Ellipsis; the name of a field as str."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.List):
        return list(map(_integer, node.elts))
    if isinstance(node, ast.Constant) and (node.value is ... or isinstance(node.value, str)):
        return node.value
    if not isinstance(node, ast.Slice):
        return _integer(node)
    parts = node.lower, node.upper, node.step
    start, stop, step = (None if part is None else _integer(part) for part in parts)
    if step == 0:
        raise ValueError("a step of 0")
    return slice(start, stop, step)


def _integer(node: ast.expr) -> int:
    value = ast.literal_eval(node)
    if type(value) is not int or not -(1 << 63) < value < 1 << 63:
        raise ValueError("no integer that an index can be")
    return value
