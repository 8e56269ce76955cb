"""The output of commands: tables and text for people, JSON for programs, progress bars.

Owns the terminal. Colours and bars appear only on a terminal, and NO_COLOR turns
colours off. Bars appear after a second, on the standard error stream.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click

from npzkit.cli.wording import at_prompt, message_of
from npzkit.errors import MemberNotFoundError, NoCheckpointError, NpzkitError, printable

Report = Callable[[int, int], object]
"""A function of the work done so far and the work in total."""

_BAR_AFTER = 1.0
"""Seconds of work before a bar appears."""
_PIPE_WIDTH = 200
"""Width of the output of rich if there is no terminal."""
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


def console(*, stderr: bool = False) -> Any:
    """Return a rich console for a standard stream, with colours only on a terminal."""
    from rich.console import Console

    found = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found = Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)
    return found


def colour(text: str, **style: Any) -> str:
    """Return text with a style if the output is a terminal that may have colours."""
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return click.style(text, **style) if wanted else text


def terminal_width() -> int | None:
    """Return the width of the terminal in columns, or None if there is no terminal."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def can_print(text: str) -> bool:
    """Return whether the encoding of the standard output has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def print_json(value: Any) -> None:
    """Print a value as JSON, with null for numbers that are not finite."""
    from npzkit.cli.json_text import json_text

    click.echo(json_text(value))


def print_notes(notes: Iterable[str]) -> list[str]:
    """Print each note of the library on a line, and return all in the command line's words."""
    found = [in_a_line(at_prompt(note)) for note in notes]
    for note in found:
        say(note)
    return found


def print_table(
    columns: Sequence[str | tuple[str, str]], rows: Sequence[Sequence[str]], *, title: str = ""
) -> None:
    """Print a table. A column is given as its heading, or as heading and ``"right"``.

    Cells must be `printable` text. A hundred thousand rows take a quarter of a second.
    On a narrow terminal, the widest columns are folded between words. If that is
    not enough, each row becomes a few lines.
    """
    headings = [column if isinstance(column, str) else column[0] for column in columns]
    sides = ["left" if isinstance(column, str) else column[1] for column in columns]
    lines = [title] if title else []
    widths = _fit([headings, *rows], between_words=True)
    if not widths:
        click.echo("\n".join([*lines, *_stacked(headings, rows)]))
        return
    lines += [colour(line, bold=True) for line in _lay_out([headings], widths, sides)]
    lines += _lay_out(rows, widths, sides)
    click.echo("\n".join(lines))


def _stacked(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per cell that is not empty, with its heading."""
    pairs = [
        [(f"{heading}:", cell) for heading, cell in zip(headings, row, strict=True) if cell]
        for row in rows
    ]
    widths = _fit([pair for group in pairs for pair in group])
    lines = []
    for group in pairs:
        lines += _lay_out(group, widths, ["left", "left"])
        lines.append("")
    return lines


def print_text(text: str) -> None:
    """Print a line, folded between words on a narrow terminal."""
    limit = terminal_width()
    click.echo(text if limit is None else "\n".join(_fold(text, limit)))


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print pairs of name and value, one per line."""
    widths = _fit(fields)
    click.echo("\n".join(_lay_out(fields, widths, ["left", "left"])))


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
    least = [_LEAST_WIDTH] * len(widths)
    if between_words:
        least = [_width_of_words(column) for column in columns]
    # Narrow the widest column by one at a time.
    while sum(widths) > room:
        spare = [width - kept for width, kept in zip(widths, least, strict=True)]
        candidates = [place for place, count in enumerate(spare) if count > 0]
        if not candidates:
            return [] if between_words else widths
        widths[max(candidates, key=widths.__getitem__)] -= 1
    return widths


def _width_of_words(column: Sequence[str]) -> int:
    """Return the width to which a column can be narrowed without cutting a word."""
    words = (word for cell in column for word in _BREAKS.split(cell))
    longest = max(map(_width, words))
    return max(longest, min(max(map(_width, column)), _LEAST_FOLDED))


def _lay_out(
    rows: Iterable[Sequence[str]], widths: Sequence[int], sides: Sequence[str]
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
    is_bound = terminal_width() is not None
    folded = [
        _fold(cell, width) if is_bound else [cell] for cell, width in zip(row, widths, strict=True)
    ]
    return [
        _GAP.join(
            _padded(cells[number] if number < len(cells) else "", width, side)
            for cells, width, side in zip(folded, widths, sides, strict=True)
        ).rstrip()
        for number in range(max(map(len, folded)))
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
    taken = 0
    for count, character in enumerate(text):
        taken += _width(character)
        if taken > width:
            return max(count, 1)
    return len(text)


def _width(text: str) -> int:
    """Return the columns that text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else
        2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )  # fmt: skip


def in_a_line(text: str) -> str:
    """Return a message as one line that cannot control the terminal."""
    return printable(" ".join(text.split()))


def _run() -> Any:
    """Return the `npzkit.cli.commands.Run` of the command, or None in Python."""
    context = click.get_current_context(silent=True)
    return context and context.find_root().obj


def raise_final(error: Exception) -> None:
    """Raise an error that ends a command on many files: any with --debug, and a closed output."""
    if isinstance(error, BrokenPipeError) or _run().is_debugging:
        raise error


def report_error(error: Exception) -> int:
    """Print an error as one line, and return the exit code."""
    text, code = error_text(error)
    say(text)
    return code


def say(text: str) -> None:
    """Print a line on the standard error stream, if that can be written."""
    try:
        click.echo(f"npzkit: {text}", err=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: Any) -> None:
    """Send what a stream still has, and further output, nowhere, so that Python's end is quiet."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def error_text(error: Exception) -> tuple[str, int]:
    """Return the message of an error as one line, and the exit code."""
    code = 1
    if isinstance(error, click.Abort):
        text, code = "interrupted", 130
    elif isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "npzkit"
        message = error.format_message().rstrip()
        end = "" if message.endswith((".", "?", "!")) else "."
        text, code = f"{message}{end} Try: {where} --help", 2
    elif isinstance(error, click.ClickException):
        text, code = error.format_message(), error.exit_code
    elif isinstance(error, (FileNotFoundError, IsADirectoryError)):
        text, code = _os_text(error), 2
    elif isinstance(error, MemberNotFoundError):
        text, code = message_of(error), 2
        if error.key is not None and os.path.isfile(error.key):
            text += f" {error.key!r} is a file, but was used as a key here."
    elif isinstance(error, NoCheckpointError):
        text, code = message_of(error), 2
    elif isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        text, code = _memory_text(error), 2
    elif isinstance(error, OSError) and not isinstance(error, NpzkitError):
        text = _os_text(error)
    else:
        text = message_of(error)
    return in_a_line(text), code


_OS_REMEDIES = {
    errno.ENOENT: "Check the name, and whether its folder exists",
    errno.EISDIR: "Pass an archive; npzkit pack creates one from a folder",
    errno.EACCES: "Check the permissions of the file and its folder",
    errno.EPERM: "Check the permissions of the file and its folder",
    errno.EROFS: "Write to another folder",
    errno.ENOSPC: "Free some space, or write to another disk",
    errno.ENAMETOOLONG: "Choose a shorter name",
}
"""The remedies for errors of the system."""


def _memory_text(error: Exception) -> str:
    # NumPy says how much it asked for.
    needed = f": {error}" if isinstance(error, MemoryError) and str(error) else ""
    return f"There is too little memory{needed}. Close other programs, or read less at once."


def _os_text(error: OSError) -> str:
    name: Any = error.filename
    text = at_prompt(error.strerror or str(error))
    if isinstance(name, (str, bytes)):
        text = f"{os.fsdecode(name) or repr('')}: {text}"
    remedy = _OS_REMEDIES.get(error.errno or 0)
    return f"{text}. {remedy}." if remedy else text


class Telling:
    """A callable that shows the bytes done and the total on a bar, if there is a terminal.

    Each call raises KeyboardInterrupt if a library suppressed that of an interrupt.
    """

    def __init__(self, bar: _Bar | None, raise_if_interrupted: Callable[[], None]) -> None:
        self._bar = bar
        self._raise_if_interrupted = raise_if_interrupted

    def __call__(self, done: int, total: int) -> None:
        self._raise_if_interrupted()
        if self._bar is not None:
            self._bar.show(done, total)

    def hide(self) -> None:
        """Remove the bar, so that text can be printed. The next call shows it again."""
        if self._bar is not None:
            self._bar.hide()


@contextlib.contextmanager
def progress(
    what: str, *, in_bytes: bool = True, counts_received: bool = True
) -> Iterator[Telling]:
    """Show a bar. The block gets a function to call with the work done and the total.

    If archives behind URLs are read, the bar counts the bytes that were received.
    `counts_received` says whether the total includes such archives.
    """
    bar = _Bar(what, in_bytes=in_bytes, is_whole=counts_received) if sys.stderr.isatty() else None
    with _noting_interrupts() as raise_if_interrupted:
        telling = Telling(bar, raise_if_interrupted)
        try:
            yield telling
        finally:
            if bar is not None:
                bar.end()


@contextlib.contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar. The block gets a function to call with the bytes of each step."""
    done = 0
    with progress(what) as tell:

        def add(count: int) -> None:
            nonlocal done
            done = min(done + count, total)
            tell(done, total)

        yield add
        tell(total, total)


@contextlib.contextmanager
def _noting_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if there was an interrupt.

    Python discards the exception of an interrupt that comes in a destructor.
    """
    count = 0

    def note(number: int, frame: Any) -> None:
        nonlocal count
        count += 1
        raise KeyboardInterrupt

    def raise_if_interrupted() -> None:
        if count:
            raise KeyboardInterrupt

    can_note = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not can_note:
        yield raise_if_interrupted
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield raise_if_interrupted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Bar:
    """A bar on the standard error stream, which appears after a second.

    Bytes that distant archives send change it from any thread.
    """

    def __init__(self, what: str, *, in_bytes: bool, is_whole: bool) -> None:
        self._what, self._in_bytes, self._is_whole = what, in_bytes, is_whole
        self._begin = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._told = 0, 0
        self._is_over = False
        self._lock = threading.Lock()
        run = _run()
        self._reception = run.reception if run and in_bytes else None
        if self._reception is not None:
            self._reception.watch = self._draw

    def show(self, done: int, total: int) -> None:
        # A file that is read twice begins again.
        self._told = max(done, self._told[0]), total
        self._draw()

    def _amounts(self) -> tuple[int, int]:
        """Return what is done, and the total."""
        (done, total), reception = self._told, self._reception
        if reception is None or not reception.size:
            return done, total
        if not self._is_whole:
            return done + reception.received, total + reception.size
        # Some of the arrays only, or all of the file.
        size = min(total, reception.size) if total else reception.size
        return min(reception.received, size), size

    def _draw(self) -> None:
        is_early = self._bar is None and time.monotonic() - self._begin < _BAR_AFTER
        # Never waits: another thread draws the same.
        if is_early or self._is_over or not self._lock.acquire(blocking=False):
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
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def end(self) -> None:
        self._is_over = True
        if self._reception is not None:
            self._reception.watch = None
        self.hide()


def _rich_bar(what: str, *, in_bytes: bool) -> Any:
    """Return a bar of rich, which is imported only for long work."""
    from rich import progress as columns

    count = columns.DownloadColumn(binary_units=True) if in_bytes else columns.MofNCompleteColumn()
    return columns.Progress(
        columns.TextColumn(what, markup=False), columns.BarColumn(), count,
        columns.TimeRemainingColumn(), console=console(stderr=True), transient=True,
        # Otherwise text printed meanwhile would go to the bar's stream.
        redirect_stdout=False,
    )  # fmt: skip
