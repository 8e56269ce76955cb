"""What commands print: tables and text for people, JSON for programs, bars for long work.

Owns the terminal. Colours and bars only where one is there, and NO_COLOR is
respected; bars go to the standard error stream, after a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

__all__ = ["console", "format_ratio", "format_size", "json_option", "print_json", "print_table",
           "printable", "progress"]  # fmt: skip

_BAR_AFTER = 1.0
"""Seconds of work that are waited for without a bar."""
_PIPE_WIDTH = 200
"""Columns of a table that no terminal bounds."""

json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.")


def console(*, stderr: bool = False) -> Any:
    """Return a console of rich's on a stream; colours only on a terminal."""
    from rich.console import Console

    found = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found = Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)
    return found


def print_json(value: Any) -> None:
    """Write a value as JSON, a line break at the end."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(
    columns: Sequence[str | tuple[str, str]], rows: Sequence[Sequence[str]], *, title: str = ""
) -> None:
    """Print a table; a column is its heading, or heading and ``"right"``."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title or None, pad_edge=False, title_justify="left")
    for column in columns:
        heading, side = (column, "left") if isinstance(column, str) else column
        table.add_column(heading, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def printable(text: str) -> str:
    """Return text from a file so that it cannot control the terminal."""
    return text if text.isprintable() else repr(text)[1:-1]


def format_size(size: int) -> str:
    """Format bytes with three digits: ``64.0 MiB``."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def format_ratio(compressed_size: int, size: int) -> str:
    """Format what share of the bytes is left: ``38 %``."""
    return f"{100 * compressed_size / size:.0f} %" if size else "-"


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the block calls what it is given with done and total bytes."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    begin = time.monotonic()
    bar = Progress(
        TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn(),
        console=console(stderr=True), transient=True,
    )  # fmt: skip
    task: Any = None

    def tell(done: int, total: int) -> None:
        nonlocal task
        if task is None:
            if time.monotonic() - begin < _BAR_AFTER:
                return
            bar.start()
            task = bar.add_task(what, total=total)
        bar.update(task, completed=done, total=total)

    try:
        yield tell
    finally:
        bar.stop()
