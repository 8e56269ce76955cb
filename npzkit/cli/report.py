"""The command that makes a page about an archive."""

from __future__ import annotations

from typing import Any

import click

import npzkit
from npzkit.cli.opening import (
    archive_argument,
    complete_key,
    named_file,
    opened,
)
from npzkit.cli.output import (
    in_a_line,
    json_option,
    print_json,
    progress,
    say,
)
from npzkit.cli.refusals import refusing
from npzkit.cli.wording import at_prompt
from npzkit.errors import UnsupportedError, format_count, format_size, printable


@click.command()
@archive_argument
@click.option(
    "-o", "--output", type=named_file, required=True, metavar="FILE.html", help="The page to write."
)
@click.option(
    "-k", "--key", "keys", multiple=True, metavar="KEY", shell_complete=complete_key,
    help="Show only this array. May be given several times.",
)  # fmt: skip
@click.option(
    "-n", "--count", type=click.IntRange(0), default=100, show_default=True,
    help="The most arrays to show, if no --key is given.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the page if it exists.")
@json_option
def report(
    file: str, output: str, keys: tuple[str, ...], count: int, force: bool, as_json: bool
) -> None:
    """Make a page of HTML with a picture and statistics of each array.

    The page is one file without scripts, for a mail or a CI artifact. Large arrays
    are read in part, which the page says. A damaged array is reported and marked on
    the page; the exit code is then 1. FILE may be - for the standard input; a pipe
    is copied to a temporary file first.

    Example: npzkit report model.npz -o report.html
    """
    with (
        opened(file) as npz,
        refusing(UnsupportedError),
        progress("report", in_bytes=False) as tell,
    ):
        found = npzkit.report(
            npz, output, keys=keys or None, count=count, overwrite=force, progress=tell
        )
    damaged = {key: in_a_line(at_prompt(what)) for key, what in found.damaged.items()}
    if as_json:
        facts: dict[str, Any] = {"output": output, "keys": found.keys, "damaged": damaged}
        print_json(facts)
    else:
        size = format_size(len(found.html.encode()))
        click.echo(f"{printable(output)}: {format_count(len(found.keys), 'array')}, {size}")
    for key, what in damaged.items():
        say(f"{printable(key)}: {what}")
    click.get_current_context().exit(1 if damaged else 0)
