"""The command that shows where two archives differ.

Reads both, and checks what it reads: arrays of the same CRC-32 are the same.
Values are compared where CRC-32s differ, a piece of two arrays at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click
import numpy as np

import npzkit
from npzkit.cli.measuring import is_numeric
from npzkit.cli.opening import as_text, dtype_text, opened, shape_text
from npzkit.cli.output import (
    counting,
    format_count,
    in_a_line,
    json_option,
    print_json,
    print_table,
    printable,
    progress,
    report_error,
)
from npzkit.cli.wording import at_prompt
from npzkit.reading.blocks import blocks

__all__ = ["diff"]

_PIECE_SIZE = 1 << 20
"""Bytes of an array that are compared at a time: what is computed takes several times that."""


class _Difference(NamedTuple):
    """One thing in which the archives differ.

    Attributes
    ----------
    key : str or None
        None for the archives' metadata.
    what : str
        ``"only in A"``, ``"shape"``, ``"dtype"``, ``"values"``, ...
    a, b : object
        What each has.
    value_count : int or None
        How many values differ.
    worst : tuple of int or None
        The index at which they differ most.
    """

    key: str | None
    what: str
    a: Any = None
    b: Any = None
    value_count: int | None = None
    worst: tuple[int, ...] | None = None


class _Problem(NamedTuple):
    """What keeps a key from being compared.

    Attributes
    ----------
    path : str
        The archive, as it was named.
    key : str
    what : str
    where : int or None
        Bytes from the start of the file.
    """

    path: str
    key: str
    what: str
    where: int | None


@click.command()
@click.argument("a", type=click.Path(readable=False, allow_dash=True))
@click.argument("b", type=click.Path(readable=False, allow_dash=True))
@click.option("--atol", type=float, default=0.0, help="How far values may differ.")
@click.option("--rtol", type=float, default=0.0, help="The same, as a share of B's value.")
@click.option(
    "--fast", is_flag=True, help="Trust recorded CRC-32s: do not read arrays whose CRC-32s agree."
)
@click.option("--metadata", is_flag=True, help="Compare metadata and attributes too.")
@json_option
def diff(
    a: str, b: str, atol: float, rtol: float, fast: bool, metadata: bool, as_json: bool
) -> None:
    """Show where the arrays of A and B differ.

    Keys, shapes, dtypes and values are compared. Two NaNs in one place are
    equal. The arrays that both have are read, and their CRC-32s checked.

    Exits with 0 if there is no difference, 1 if there is one, and 2 if an
    array is damaged or a file cannot be read.

    Example: npzkit diff model.npz other.npz --rtol 1e-6
    """
    for name, value in (("--atol", atol), ("--rtol", rtol)):
        if not value >= 0:
            raise click.UsageError(f"{name} must be 0 or more, not {value}.")
    if a == b == "-":
        raise click.UsageError("the standard input is one archive: A or B must be a file.")
    context = click.get_current_context()
    try:
        with opened(a) as left, opened(b) as right:
            comparison = _Comparison(left, right, (a, b), atol, rtol, fast=fast)
            rows = comparison.rows(metadata=metadata)
    except (npzkit.NpzkitError, OSError) as error:
        if context.obj or isinstance(error, BrokenPipeError):
            raise
        report_error(error)
        context.exit(2)
    problems = comparison.problems
    if as_json:
        print_json({"equal": not rows and not problems, "fast": fast,
                    "compared": comparison.count,
                    "differences": [row._asdict() for row in rows],
                    "problems": [problem._asdict() for problem in problems]})  # fmt: skip
    else:
        if rows:
            print_table(
                ["key", "differs in", "A", "B", ("values", "right"), "worst at"],
                [_cells(row) for row in rows],
            )
        for problem in problems:
            click.echo(f"npzkit: {in_a_line(_problem_text(problem))}", err=True)
        click.echo(_summary(comparison, rows))
    context.exit(2 if problems else 1 if rows else 0)


def _problem_text(problem: _Problem) -> str:
    name = "the standard input" if problem.path == "-" else problem.path
    where = "" if problem.where is None else f" (at byte {problem.where})"
    what = at_prompt(problem.what)
    return f"{printable(name)}: key {problem.key!r} cannot be compared: {what}{where}"


def _summary(comparison: _Comparison, rows: list[_Difference]) -> str:
    found = []
    if comparison.problems:
        damaged = {problem.key for problem in comparison.problems}
        found.append(f"{len(damaged):,} of them damaged")
    if rows:
        keys = {row.key for row in rows if row.key is not None}
        found.append(f"{len(keys):,} of them different")
    text = (
        f"{format_count(comparison.count, 'key')} compared, {', '.join(found or ['no difference'])}"
    )
    if comparison.fast:
        text += " (by recorded CRC-32s: arrays whose CRC-32s agree were not read)"
    return text


def _cells(row: _Difference) -> list[str]:
    return [
        "-" if row.key is None else printable(row.key),
        row.what,
        "" if row.a is None else printable(str(row.a)),
        "" if row.b is None else printable(str(row.b)),
        "" if row.value_count is None else f"{row.value_count:,}",
        "" if row.worst is None else shape_text(row.worst),
    ]


class _Comparison:
    """Two archives, and how far their values may differ.

    Attributes
    ----------
    count : int
        Keys of either.
    problems : list of _Problem
        What keeps keys from being compared.
    fast : bool
        Whether recorded CRC-32s that agree are trusted.
    """

    def __init__(
        self, a: npzkit.NpzFile, b: npzkit.NpzFile, paths: tuple[str, str],
        atol: float, rtol: float, *, fast: bool,
    ) -> None:  # fmt: skip
        self._a, self._b = a, b
        self._paths = paths
        self._atol, self._rtol = atol, rtol
        self.fast = fast
        self.count = len(set(a) | set(b))
        self.problems: list[_Problem] = []

    def rows(self, *, metadata: bool) -> list[_Difference]:
        """Return what differs, in A's order, then what B has alone."""
        rows = []
        if metadata and dict(self._a.metadata) != dict(self._b.metadata):
            x, y = as_text(dict(self._a.metadata)), as_text(dict(self._b.metadata))
            rows.append(_Difference(None, "metadata", x, y))
        rows += [_Difference(key, "only in A") for key in self._a if key not in self._b]
        pairs = self._sound_pairs()
        for a, b in pairs:
            if metadata and dict(a.attrs) != dict(b.attrs):
                x, y = as_text(dict(a.attrs)), as_text(dict(b.attrs))
                rows.append(_Difference(a.key, "attributes", x, y))
        compared = [(a, b) for a, b in pairs if not _has_equal_crc(a, b)]
        with counting("compare", sum(a.nbytes for a, _ in compared)) as advance:
            for a, b in compared:
                try:
                    rows += self._compare(a, b, advance)
                except npzkit.NpzkitError as error:
                    path = str(error.path or self._paths[0])
                    self.problems.append(_Problem(path, a.key, error.what, error.offset))
        order = {key: place for place, key in enumerate(self._a)}
        rows.sort(key=lambda row: -1 if row.key is None else order[row.key])
        return rows + [_Difference(key, "only in B") for key in self._b if key not in self._a]

    def _sound_pairs(self) -> list[tuple[npzkit.ArrayInfo, npzkit.ArrayInfo]]:
        """Read the arrays that both have, and return what is known of those that are sound."""
        common = [key for key in self._a if key in self._b]
        pairs = {key: (_info(self._a, key), _info(self._b, key)) for key in common}
        read = [key for key, (a, b) in pairs.items() if not (self.fast and _has_equal_crc(a, b))]
        for side, npz in enumerate((self._a, self._b)):
            with progress(f"read {'AB'[side]}") as tell:
                report = npz.verify(read, tell)
            # The first thing that is wrong with a member is enough.
            errors = {row.key: row for row in reversed(report.rows) if row.severity == "error"}
            self.problems += [
                _Problem(self._paths[side], key, errors[key].what, errors[key].where)
                for key in read if key in errors
            ]  # fmt: skip
        damaged = {problem.key for problem in self.problems}
        return [
            (a, b) for key, (a, b) in pairs.items()
            if a is not None and b is not None and key not in damaged
        ]  # fmt: skip

    def _compare(
        self, a: npzkit.ArrayInfo, b: npzkit.ArrayInfo, advance: Callable[[int], None]
    ) -> Iterator[_Difference]:
        """Compare two members of one key, as far as their headers let them be."""
        if a.dtype is None or b.dtype is None:
            yield _Difference(a.key, "bytes", _kind_text(a), _kind_text(b))
            return
        if a.shape != b.shape:
            yield _Difference(a.key, "shape", shape_text(a.shape), shape_text(b.shape))
        same_dtype = _native(a.dtype) == _native(b.dtype)
        if not same_dtype:
            yield _Difference(a.key, "dtype", dtype_text(a.dtype), dtype_text(b.dtype))
        if a.shape != b.shape or not (same_dtype or _is_comparable(a.dtype, b.dtype)):
            return
        if a.dtype.hasobject:
            yield _Difference(a.key, "pickles, which are not read")
            return
        in_one_order = a.fortran_order == b.fortran_order
        yield from self._compare_values(a, advance, in_one_order=in_one_order)

    def _compare_values(
        self, info: npzkit.ArrayInfo, advance: Callable[[int], None], *, in_one_order: bool
    ) -> Iterator[_Difference]:
        """Compare values piece by piece, and show the two that are furthest apart."""
        a, b = self._a.lazy(info.key), self._b.lazy(info.key)
        count, worst = 0, -1.0
        found: tuple[Any, Any, tuple[int, ...]] = (None, None, ())
        for index, left, right in _pairs(a, b, in_one_order=in_one_order):
            differs, distance = self._distances(left, right)
            advance(left.nbytes)
            if not differs.any():
                continue
            count += int(np.count_nonzero(differs))
            furthest = int(np.where(differs, distance, -1.0).argmax())
            if (here := float(distance.flat[furthest])) > worst:
                worst = here
                within = np.unravel_index(furthest, left.shape)
                place = tuple(axis.start + int(n) for axis, n in zip(index, within, strict=True))
                found = _item(left, within), _item(right, within), place
        if count:
            x, y, place = found
            yield _Difference(info.key, "values", x, y, count, place)

    def _distances(
        self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return which values differ by more than they may, and how far all are apart."""
        if a.dtype.kind in "mM" or not (is_numeric(a.dtype) and is_numeric(b.dtype)):
            differs = _differs_exactly(a, b)
            return differs, differs.astype(np.float64)
        x, y = _computable(a), _computable(b)
        with np.errstate(all="ignore"):
            distance = np.abs(x - y)
            allowed = self._atol + self._rtol * np.abs(y) if self._atol or self._rtol else 0.0
            # What is not equal, and too close to tell in floating point, is not equal.
            differs = (a != b) & ((distance > allowed) | ~np.isfinite(distance) | (allowed == 0))
        differs &= ~(np.isnan(x) & np.isnan(y))
        return differs, np.where(np.isnan(distance), np.inf, distance).astype(np.float64)


def _pairs(
    a: npzkit.LazyArray, b: npzkit.LazyArray, *, in_one_order: bool
) -> Iterator[tuple[tuple[slice, ...], Any, Any]]:
    """Yield where each part of two arrays of one shape lies, and its values in both.

    Where one lies by rows and the other by columns, a part of the one is all over the other, which
    may have to be inflated from its start for each: such parts are large, and told in pieces.
    """
    shape, size = a.shape, a.dtype.itemsize
    for part in a.iter_chunks() if in_one_order else blocks(shape, size, a.chunks):
        left, right = np.asarray(a[part]), np.asarray(b[part])
        for piece in blocks(left.shape, size, size=_PIECE_SIZE):
            index = tuple(
                slice(whole.start + inner.start, whole.start + inner.stop)
                for whole, inner in zip(part, piece, strict=True)
            )
            # The dots keep what has no axes an array.
            within: Any = (*piece, ...)
            yield index, left[within], right[within]


def _info(npz: npzkit.NpzFile, key: str) -> npzkit.ArrayInfo | None:
    """Return what is known of a member; None if its headers are damaged, as `verify` reports."""
    try:
        return npz.info(key)
    except npzkit.NpzkitError:
        return None


def _kind_text(info: npzkit.ArrayInfo) -> str:
    return f"{info.nbytes:,} bytes" if info.dtype is None else f"an array of {info.dtype}"


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=")


def _is_comparable(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether values of different dtypes can be equal."""
    if a.kind in "mM" or b.kind in "mM":
        return a.kind == b.kind
    return (is_numeric(a) and is_numeric(b)) or (a.kind == b.kind and a.kind in "SU")


def _has_equal_crc(a: npzkit.ArrayInfo | None, b: npzkit.ArrayInfo | None) -> bool:
    """Whether two members are the same bytes, as far as headers and a CRC-32 can tell."""
    if a is None or b is None:
        return False
    return (
        (a.crc32, a.nbytes, a.shape) == (b.crc32, b.nbytes, b.shape)
        and (a.dtype, a.fortran_order) == (b.dtype, b.fortran_order)
    )  # fmt: skip


def _computable(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return numbers in a dtype that their differences fit."""
    if values.dtype.kind == "c":
        return values.astype(np.result_type(values.dtype, np.complex128))
    if values.dtype.kind == "f":
        return values.astype(np.result_type(values.dtype, np.float64))
    # Integers of 64 bits keep more of their digits so, where there is such a dtype.
    return values.astype(np.longdouble if values.dtype.kind in "iu" else np.float64)


def _differs_exactly(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which values differ; equal bytes are equal, whatever is in them: NaN, NaT."""
    if a.dtype.kind != "V":
        differs = np.asarray(a != b)
        if a.dtype.kind in "mM":
            differs &= ~(np.isnat(a) & np.isnat(b))
        return differs
    if a.dtype != b.dtype:
        # The same fields in another byte order.
        b = b.astype(a.dtype)
    size = a.dtype.itemsize
    if not size:
        return np.zeros(a.shape, np.bool_)
    raw = [np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, size) for x in (a, b)]
    by_bytes: np.ndarray[Any, Any] = np.asarray((raw[0] != raw[1]).any(axis=-1))
    return by_bytes & np.asarray(a != b) if a.dtype.names else by_bytes


def _item(values: np.ndarray[Any, Any], index: tuple[Any, ...]) -> Any:
    """Return one value as JSON has it, or as text."""
    try:
        value = values[index]
    except (SystemError, ValueError):
        return "no Unicode"
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, (bool, int, float)) else str(value)
