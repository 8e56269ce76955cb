"""The output of commands: tables and text for people, JSON for programs, progress bars.

Owns the terminal. Colours and bars appear only on a terminal, and NO_COLOR turns
colours off. Bars appear after a second, on the standard error stream.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from npzkit.errors import printable

_BAR_AFTER = 1.0
"""Seconds of work before a bar appears."""
_CELL_WIDTH = 100
"""Largest width to pad cells to if there is no terminal."""
_LEAST_WIDTH = 6
"""Smallest width of a list's column on a narrow terminal."""
_LEAST_FOLDED = 20
"""Cells up to this width are not folded."""
_BREAKS = re.compile(r"(?<=[ ,/])")
"""Places at which a cell may be folded."""
_GAP = "  "

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def colour(text: str, **style: Any) -> str:
    """Return text with a style if the output is a terminal that may have colours."""
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return click.style(text, **style) if wanted else text


def terminal_width() -> int | None:
    """Return the width of the terminal in columns, or None if there is no terminal."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    return shutil.get_terminal_size().columns


def can_print(text: str) -> bool:
    """Return whether the encoding of the standard output has these characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return text.encode(encoding, "replace").decode(encoding) == text


def print_json(value: Any) -> None:
    """Print a value as JSON, with null for numbers that are not finite; indented on a terminal."""
    # Most commands print none.
    import json

    options: dict[str, Any] = {"indent": 2 if sys.stdout.isatty() else None, "default": _plain}
    try:
        text = json.dumps(value, allow_nan=False, **options)
    except ValueError:
        finite = json.loads(json.dumps(value, default=_plain), parse_constant=lambda name: None)
        text = json.dumps(finite, **options)
    click.echo(text)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def print_table(columns: Sequence[str | tuple[str, str]], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. A column is given as its heading, or as heading and ``"right"``.

    Cells must be `printable` text. A hundred thousand rows take a quarter of a second.
    On a narrow terminal, the widest columns are folded between words. If that is
    not enough, each row becomes a few lines.
    """
    headings, sides = zip(
        *((column, "left") if isinstance(column, str) else column for column in columns),
        strict=True,
    )
    widths = _fit([headings, *rows], between_words=True)
    if widths:
        lines = [colour(line, bold=True) for line in _lay_out([headings], widths, sides)]
        lines += _lay_out(rows, widths, sides)
    else:
        lines = _stacked(headings, rows)
    click.echo("\n".join(lines))


def _stacked(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per cell that is not empty, with its heading."""
    pairs = [
        [(f"{heading}:", cell) for heading, cell in zip(headings, row, strict=True) if cell]
        for row in rows
    ]
    widths = _fit([pair for group in pairs for pair in group])
    return [line for group in pairs for line in [*_lay_out(group, widths), ""]]


def print_text(text: str) -> None:
    """Print a line, folded between words on a narrow terminal."""
    limit = terminal_width()
    click.echo(text if limit is None else "\n".join(_fold(text, limit)))


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print pairs of name and value, one per line, without those that are empty."""
    shown = [(f"{name}:", text) for name, text in fields if text]
    click.echo("\n".join(_lay_out(shown, _fit(shown))))


def _fit(rows: Sequence[Sequence[str]], *, between_words: bool = False) -> list[int]:
    """Return the width of each column, with wide columns narrowed to fit the terminal.

    With `between_words`, the result is empty if words would have to be cut.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len if "".join(column).isascii() else _width, column)) for column in columns]
    limit = terminal_width()
    if limit is None:
        return [min(width, _CELL_WIDTH) for width in widths]
    room = limit - len(_GAP) * (len(widths) - 1)
    if sum(widths) <= room:
        return widths
    least = [_width_of_words(column) if between_words else _LEAST_WIDTH for column in columns]
    # Narrow the widest column by one at a time.
    while sum(widths) > room:
        candidates = [place for place, width in enumerate(widths) if width > least[place]]
        if not candidates:
            return [] if between_words else widths
        widths[max(candidates, key=widths.__getitem__)] -= 1
    return widths


def _width_of_words(column: Sequence[str]) -> int:
    """Return the width to which a column can be narrowed without cutting a word."""
    longest = max(_width(word) for cell in column for word in _BREAKS.split(cell))
    return max(longest, min(max(map(_width, column)), _LEAST_FOLDED))


def _lay_out(
    rows: Iterable[Sequence[str]], widths: Sequence[int], sides: Sequence[str] = ("left", "left")
) -> list[str]:
    """Return the lines of rows."""
    form = _GAP.join(
        f"%{'' if side == 'right' else '-'}{width}s"
        for width, side in zip(widths, sides, strict=True)
    )
    length = sum(widths) + len(_GAP) * (len(widths) - 1)
    lines = []
    for row in rows:
        line = form % tuple(row)
        if len(line) == length and line.isascii():
            lines.append(line.rstrip())
        else:
            lines += _lay_out_wide(row, widths, sides)
    return lines


def _lay_out_wide(row: Sequence[str], widths: Sequence[int], sides: Sequence[str]) -> list[str]:
    """Return the lines of a row with cells that may have to be folded, or are not ASCII."""
    cells: Any = zip(row, widths, strict=True)
    if terminal_width() is not None:
        folded = [_fold(cell, width) for cell, width in cells]
    else:
        folded = [[cell] for cell, _ in cells]
    return [
        _GAP.join(map(_padded, line, widths, sides)).rstrip()
        for line in itertools.zip_longest(*folded, fillvalue="")
    ]


def _padded(cell: str, width: int, side: str) -> str:
    space = " " * (width - _width(cell))
    return space + cell if side == "right" else cell + space


def _fold(cell: str, width: int) -> list[str]:
    """Return a cell as lines, split after spaces, commas and slashes, or inside long words."""
    lines = []
    while _width(cell) > width:
        size = _cut(cell, width)
        end = 1 + max(cell.rfind(sign, 0, size) for sign in " ,/") or size
        lines.append(cell[:end].rstrip())
        cell = cell[end:]
    return [*lines, cell]


def _cut(text: str, width: int) -> int:
    """Return how many characters fit, at least one."""
    reached = list(itertools.accumulate(map(_width, text[: width + 1])))
    return max(sum(end <= width for end in reached), 1)


def _width(text: str) -> int:
    """Return the columns that text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shape_text(shape: tuple[int, ...] | None) -> str:
    """Return a shape as Python prints it."""
    return "-" if shape is None else str(shape)


def as_text(value: Any) -> str:
    """Return metadata or an attribute's value as one line of JSON."""
    import json

    return printable(json.dumps(value, ensure_ascii=False, default=str))


class ProgressBar:
    """A bar on the standard error stream, called with the work done and in total.

    It appears after a second, if there is a terminal. If archives behind URLs are read, the
    bar counts the bytes that were received, which change it from any thread. Each call raises
    KeyboardInterrupt if Python could not raise that of an interrupt.

    Parameters
    ----------
    what : str
    in_bytes : bool, default True
    counts_received : bool, default True
        Whether the total includes archives behind URLs.
    """

    def __init__(self, what: str, *, in_bytes: bool = True, counts_received: bool = True) -> None:
        self._what, self._in_bytes, self._counts_received = what, in_bytes, counts_received
        self._begin = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._told = 0, 0
        self._is_shown = sys.stderr.isatty()
        self._lock = threading.Lock()
        context = click.get_current_context(silent=True)
        self._run: Any = context and context.find_root().obj
        is_counted = self._is_shown and in_bytes
        self._reception: Any = getattr(self._run, "reception", None) if is_counted else None
        if self._reception is not None:
            self._reception.watch = self._draw

    def __call__(self, done: int, total: int) -> None:
        if self._run and self._run.interrupts:
            raise KeyboardInterrupt
        # A file that is read twice begins again.
        self._told = max(done, self._told[0]), total
        self._draw()

    def _amounts(self) -> tuple[int, int]:
        """Return what is done, and the total."""
        (done, total), reception = self._told, self._reception
        if reception is None or not reception.size:
            return done, total
        if not self._counts_received:
            return done + reception.received, total + reception.size
        # Some of the arrays only, or all of the file.
        size = min(total, reception.size) if total else reception.size
        return min(reception.received, size), size

    def _draw(self) -> None:
        is_early = self._bar is None and time.monotonic() - self._begin < _BAR_AFTER
        # Never waits: another thread draws the same.
        if is_early or not self._is_shown or not self._lock.acquire(blocking=False):
            return
        try:
            done, total = self._amounts()
            if self._bar is None:
                bar = _rich_bar(self._what, in_bytes=self._in_bytes)
                bar.start()
                self._task = bar.add_task(self._what, total=total)
                self._bar = bar
            self._bar.update(self._task, completed=done, total=total)
        finally:
            self._lock.release()

    def hide(self) -> None:
        """Remove the bar, so that text can be printed. The next call shows it again."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *failure: object) -> None:
        self._is_shown = False
        if self._reception is not None:
            self._reception.watch = None
        self.hide()


def _rich_bar(what: str, *, in_bytes: bool) -> Any:
    """Return a bar of rich, which is imported only for long work."""
    from rich import progress as columns
    from rich.console import Console

    count = columns.DownloadColumn(binary_units=True) if in_bytes else columns.MofNCompleteColumn()
    return columns.Progress(
        columns.TextColumn(what, markup=False), columns.BarColumn(), count,
        columns.TimeRemainingColumn(), console=Console(stderr=True), transient=True,
        # Otherwise text printed meanwhile would go to the bar's stream.
        redirect_stdout=False,
    )  # fmt: skip
