"""The command that takes arrays out of an archive."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

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
    print_json,
    progress,
    say,
)
from npzkit.cli.pack import PIPE, binary_stdout
from npzkit.cli.refusals import Refusal, refusing
from npzkit.cli.wording import message_of
from npzkit.errors import ConversionError, format_count, printable, shown_url


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
    delimiter = "\t" if delimiter == r"\t" else delimiter
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise Refusal(f"--delimiter must be one character, not {delimiter!r}.")
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


def _extract_to_pipe(npz: npzkit.NpzFile, keys: Sequence[str], kind: Any, delimiter: str) -> None:
    if len(keys) != 1:
        raise click.UsageError(f"-d - writes one array, and {len(keys)} are wanted.")
    is_shown = kind == "csv" and sys.stdout.isatty()
    text = io.BytesIO()
    with progress("extract") as tell:
        npzkit.extract(
            npz, text if is_shown else binary_stdout(), keys, format=kind, delimiter=delimiter,
            progress=tell,
        )  # fmt: skip
    if is_shown:
        lines = text.getvalue().decode().split("\n")
        click.echo("\n".join(map(printable, lines)), nl=False)
