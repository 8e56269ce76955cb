"""The command that shows where two archives differ."""

from __future__ import annotations

import contextlib
from typing import Any

import click

import npzkit
from npzkit.cli.file_argument import complete_key, file_or_pipe, keys_named, opened
from npzkit.cli.messages import refusing, report_failure
from npzkit.cli.output import ProgressBar, json_option, print_json
from npzkit.errors import at_prompt, shown_url

_TRUSTED = " (by recorded CRC-32s: arrays whose CRC-32s agree were not read)"


def _other_notes(a: Any, b: Any, chosen: list[str]) -> str:
    """Return a clause if metadata, or attributes of an array of both, differ and can be read."""
    from npzkit.analysis.diff import differ

    found = ["metadata"] if differ(dict(a.metadata), dict(b.metadata)) else []
    with contextlib.suppress(npzkit.NpzkitError):
        if any(
            differ(dict(a.info(key).attrs), dict(b.info(key).attrs))
            for key in chosen or a.files
            if key in a and key in b
        ):
            found.append("attributes")
    return f"; {' and '.join(found)} differ: --metadata shows them" if found else ""


@click.command()
@click.argument("a", type=file_or_pipe)
@click.argument("b", type=file_or_pipe)
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
    """Show which arrays of A and B, or KEYS of them, differ.

    KEYS may be patterns such as 'layer*/bias', and folders of keys.

    Keys, shapes, dtypes and values are compared, also values of nested data, such as a
    learning rate. NaNs at the same place are equal. The arrays that both have are read,
    and their CRC-32s are checked. Of values, the two that are furthest apart are shown,
    how far, and their place. A key that only A has was removed, one that only B has was
    added. Two .npy files are compared whatever their names are. A or B may be - for the
    standard input; a pipe is copied to a temporary file first.

    Exits with 0 if there is no difference, 1 if there is one, and 2 if an
    array is damaged or a file cannot be read.

    Example: npzkit diff model.npz other.npz --rtol 1e-6
    """
    from npzkit.analysis.diff import all_keys
    from npzkit.datasets.opening import is_npy

    if a == b == "-":
        raise click.UsageError("the standard input is one archive: A or B must be a file.")
    try:
        with refusing(), opened(a) as left, opened(b) as right, ProgressBar("compare") as tell:
            if is_npy(left) and is_npy(right) and len(left) == len(right) == 1:
                renamed: Any = right._archive
                renamed.rename(*left)
            chosen = keys_named(keys, all_keys(left, right), None)
            report = npzkit.diff(
                left, right, chosen or None, rtol=rtol, atol=atol, metadata=metadata,
                verify=not fast, progress=tell,
            )  # fmt: skip
            others = "" if metadata else _other_notes(left, right, chosen)
    except (npzkit.NpzkitError, OSError) as error:
        report_failure(error)
        return 2
    problems = tuple(row._replace(what=at_prompt(row.what)) for row in report.problems)
    told = report._replace(path_a=shown_url(a), path_b=shown_url(b), problems=problems)
    if as_json:
        print_json({**told.as_dict(), "fast": fast})
    else:
        click.echo(f"{told}{_TRUSTED if fast else ''}{others}")
    return 2 if report.problems else 1 if report.rows else 0
