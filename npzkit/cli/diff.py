"""The command that shows where two archives differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import npzkit
from npzkit.cli.file_argument import as_text, complete_key, opened, shape_text
from npzkit.cli.messages import in_a_line, refusing, report_failure, say
from npzkit.cli.output import ProgressBar, json_option, print_json, print_table
from npzkit.errors import at_prompt, format_count, format_dtype, printable, shown_url

_HEADINGS = (
    "key", "differs in", "A", "B", ("how many", "right"), ("largest difference", "right"), "at",
)  # fmt: skip


@click.command()
@click.argument("a", type=click.Path(readable=False, allow_dash=True))
@click.argument("b", type=click.Path(readable=False, allow_dash=True))
@click.argument("keys", nargs=-1, shell_complete=complete_key)
@click.option(
    "--atol", type=float, default=0.0,
    help="How far numbers may be apart: |A - B| <= atol + rtol * |B|.",
)  # fmt: skip
@click.option("--rtol", type=float, default=0.0, help="The same, relative to B.")
@click.option(
    "--fast", is_flag=True, help="Trust recorded CRC-32s: do not read arrays whose CRC-32s agree."
)
@click.option("--metadata", is_flag=True, help="Compare metadata and attributes too.")
@json_option
def diff(
    a: str, b: str, keys: tuple[str, ...], atol: float, rtol: float, fast: bool, metadata: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Show where the arrays of A and B, or KEYS of them, differ.

    Keys, shapes, dtypes and values are compared. NaNs at the same place are
    equal. The arrays that both have are read, and their CRC-32s are checked. Of
    values, the two that are furthest apart are shown, and their place. A or B may
    be - for the standard input; a pipe is copied to a temporary file first.

    Exits with 0 if there is no difference, 1 if there is one, and 2 if an
    array is damaged or a file cannot be read.

    Example: npzkit diff model.npz other.npz --rtol 1e-6
    """
    if a == b == "-":
        raise click.UsageError("the standard input is one archive: A or B must be a file.")
    try:
        with refusing(), opened(a) as left, opened(b) as right, ProgressBar("compare") as tell:
            report = npzkit.diff(
                left, right, keys or None, rtol=rtol, atol=atol, metadata=metadata,
                verify=not fast, progress=tell,
            )  # fmt: skip
    except (npzkit.NpzkitError, OSError) as error:
        report_failure(error)
        return 2
    paths = {"a": shown_url(a), "b": shown_url(b)}
    if as_json:
        differences = [_difference_dict(row) for row in report.rows]
        problems = [
            {"path": paths[row.archive], "key": row.key, "what": row.what, "where": row.where}
            for row in report.problems
        ]
        print_json({"equal": report.equal, "fast": fast, "compared": report.compared,
                    "differences": differences, "problems": problems})  # fmt: skip
    else:
        if report.rows:
            print_table(_HEADINGS, list(map(_cells, report.rows)))
        for problem in report.problems:
            say(in_a_line(_problem_text(problem, paths)))
        click.echo(_summary(report, fast=fast))
    return 2 if report.problems else 1 if report.rows else 0


def _problem_text(problem: Any, paths: dict[str, str]) -> str:
    path = paths[problem.archive]
    name = "the standard input" if path == "-" else path
    where = "" if problem.where is None else f" (at byte {problem.where})"
    what = at_prompt(problem.what)
    return f"{printable(name)}: key {problem.key!r} cannot be compared: {what}{where}"


def _summary(report: npzkit.DiffReport, *, fast: bool) -> str:
    found = []
    if report.problems:
        damaged = {problem.key for problem in report.problems}
        found.append(f"{len(damaged):,} of them damaged")
    if report.rows:
        different = (*report.changed, *report.added, *report.removed)
        found.append(f"{len(different):,} of them different")
    text = (
        f"{format_count(report.compared, 'key')} compared, {', '.join(found or ['no difference'])}"
    )
    if fast:
        text += " (by recorded CRC-32s: arrays whose CRC-32s agree were not read)"
    return text


def _cells(row: Any) -> list[str]:
    found = _difference_dict(row)
    return [
        "-" if row.key is None else printable(row.key),
        found["what"],
        "" if found["a"] is None else printable(str(found["a"])),
        "" if found["b"] is None else printable(str(found["b"])),
        "" if row.value_count is None else f"{row.value_count:,}",
        "" if row.max_difference is None else f"{row.max_difference:.6g}",
        "" if row.worst is None else shape_text(row.worst),
    ]


_KINDS = {"added": "only in B", "removed": "only in A", "objects": "pickles, which are not read"}
"""Names of some kinds of difference at a prompt, where the archives are A and B."""


def _difference_dict(row: Any) -> dict[str, Any]:
    a, b = (_shown(value, row) for value in (row.a, row.b))
    return {"key": row.key, "what": _KINDS.get(row.kind, row.kind), "a": a, "b": b,
            "value_count": row.value_count, "worst": row.worst,
            "max_difference": row.max_difference}  # fmt: skip


def _shown(value: Any, row: Any) -> Any:
    """Return what an archive has: a value as JSON has it, anything else as text."""
    if row.kind == "values":
        return "no Unicode" if value is None else _plain(value)
    if row.kind == "bytes":
        return f"{value:,} bytes" if isinstance(value, int) else f"an array of {value}"
    show: dict[str, Callable[[Any], str]] = {"shape": shape_text, "dtype": format_dtype}
    return None if value is None else show.get(row.kind, as_text)(value)


def _plain(value: Any) -> Any:
    """Return a value of an array as a number, or as text."""
    item = value.item() if hasattr(value, "item") else value
    return item if isinstance(item, (bool, int, float)) else str(value)
