"""The command that measures how fast a file is read here, by npzkit and by NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import npzkit
from npzkit.cli.opening import named_file
from npzkit.cli.output import (
    json_option,
    print_json,
    print_table,
    progress,
)
from npzkit.members.amounts import format_size

if TYPE_CHECKING:
    from npzkit.analysis.benchmark import Timing


@click.command()
@click.argument("file", type=named_file)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How often each is measured.",
)
@json_option
def bench(file: str, rounds: int, as_json: bool) -> None:
    """Measure how fast FILE is read here, by npzkit and by NumPy.

    The two take turns. Times are medians, for a file that is in the
    system's cache. Python objects and members that are no arrays are left out.

    Example: npzkit bench model.npz --rounds 3
    """
    with progress("bench") as tell:
        report = npzkit.benchmark(file, rounds, progress=tell)
    if as_json:
        print_json({"path": file, "rounds": rounds, "work": [row._asdict() for row in report.rows]})
        return
    print_table(
        ["work", ("bytes", "right"), ("npzkit", "right"), ("NumPy", "right"), ("ratio", "right"),
         ("npzkit's speed", "right")],
        [_cells(row) for row in report.rows],
    )  # fmt: skip


def _cells(row: Timing) -> list[str]:
    return [
        row.name,
        format_size(row.size),
        _format_seconds(row.npzkit),
        "cannot" if row.numpy is None else _format_seconds(row.numpy),
        "" if row.ratio is None else f"{row.ratio:.1f} x",
        f"{format_size(round(row.size / row.npzkit))}/s" if row.size else "",
    ]


def _format_seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
