"""The command that takes arrays out of an archive."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import click

import npzkit
from npzkit.cli.opening import (
    archive_argument,
    complete_key,
    forward_input,
    naming_in_warnings,
    opened,
)
from npzkit.cli.output import (
    in_a_line,
    json_option,
    metering,
    print_json,
    progress,
    say,
)
from npzkit.cli.pack import PIPE, binary_stdout
from npzkit.cli.refusals import Refusal, refusing
from npzkit.cli.wording import message_of
from npzkit.errors import ConversionError, printable, shown_url
from npzkit.members.amounts import format_count


@contextlib.contextmanager
def _text_stdout() -> Iterator[TextIO]:
    """Yield the standard output stream; in UTF-8 unless it is a terminal."""
    if sys.stdout.isatty():
        yield sys.stdout
        return
    sys.stdout.flush()
    text = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
    try:
        yield text
        text.flush()
    finally:
        text.detach()


@click.command()
@archive_argument
@click.argument("keys", nargs=-1, shell_complete=complete_key)
@click.option(
    "-d", "--dir", "folder", default=".", show_default=True,
    type=click.Path(readable=False, file_okay=False, allow_dash=True),
    help="The folder to write to, created if necessary; - writes one array to a pipe.",
)  # fmt: skip
@click.option(
    "--format",
    "kind",
    type=click.Choice(["npy", "csv"]),
    default="npy",
    show_default=True,
    help="Write .npy files, or text tables, in which spreadsheets may find formulas (=, +, -, @).",
)
@click.option(
    "--delimiter",
    default=",",
    show_default=True,
    help="The character between the cells of a text table.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@json_option
def extract(
    file: str,
    keys: tuple[str, ...],
    folder: str,
    kind: Any,
    delimiter: str,
    force: bool,
    as_json: bool,
) -> None:
    """Write the arrays of FILE, or KEYS of them, to files.

    Slashes in a key become folders. No file is written outside the folder, and
    none is replaced without --force. Members that are not arrays are written as
    they are. A damaged array is reported and skipped; the exit code is then 1.
    FILE may be - for the standard input. With a pipe, the files appear after it
    has ended; for -d -, the pipe is copied to a temporary file first.

    Example: npzkit extract model.npz weights -d arrays
    """
    delimiter = _checked(delimiter)
    if not folder:
        raise Refusal("--dir is empty; the folder you are in is --dir .")
    with refusing(ConversionError):
        if folder == PIPE:
            with opened(file) as npz:
                _extract_to_pipe(npz, list(dict.fromkeys(keys or npz.files)), kind, delimiter)
            return
        with (
            forward_input(file) as source,
            naming_in_warnings(printable(shown_url(file))),
            progress("extract") as tell,
        ):
            report = npzkit.extract(
                source, folder, keys or None, format=kind, delimiter=delimiter, skip=True,
                overwrite=force, progress=tell,
            )  # fmt: skip
    failed = {key: in_a_line(message_of(error)) for key, error in report.failed.items()}
    if as_json:
        print_json({"files": report.files, "failed": failed})
    else:
        click.echo(f"{printable(folder)}: {format_count(len(report.files), 'file')}")
    for text in failed.values():
        say(text)
    click.get_current_context().exit(1 if failed else 0)


def _checked(delimiter: str) -> str:
    r"""Check the option --delimiter; ``\t`` is a tab."""
    from npzkit.conversion.tables import check_delimiter

    try:
        return check_delimiter("\t" if delimiter == r"\t" else delimiter)
    except ValueError as error:
        raise Refusal(f"--{error}.") from error


def _extract_to_pipe(npz: npzkit.NpzFile, keys: Sequence[str], kind: str, delimiter: str) -> None:
    if len(keys) != 1:
        raise click.UsageError(f"-d - writes one array, and {len(keys)} are wanted.")
    from npzkit.conversion.extract import is_table, write_member, write_table_of

    info = npz.info(keys[0])
    with metering("extract", info.nbytes) as meter:
        part = meter.part(info.nbytes)
        if kind == "csv" and is_table(info):
            with _text_stdout() as text:
                shown = printable if text.isatty() else str
                write_table_of(npz, keys[0], text, delimiter, part, shown)
            return
        out = binary_stdout()
        write_member(npz, keys[0], out, part.add)
        out.flush()
