"""The commands that show archives in the browser, and in a page of HTML."""

from __future__ import annotations

import contextlib
import sys

import click

import npzkit
from npzkit.cli.file_argument import (
    archive_argument,
    complete_key,
    files_argument,
    named_file,
    opened,
)
from npzkit.cli.messages import at_prompt, in_a_line, refusing, say
from npzkit.cli.output import json_option, print_json, progress
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
) -> int:
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
        print_json({"output": output, "keys": found.keys, "damaged": damaged})
    else:
        size = format_size(len(found.html.encode()))
        click.echo(f"{printable(output)}: {format_count(len(found.keys), 'array')}, {size}")
    for key, what in damaged.items():
        say(f"{printable(key)}: {what}")
    return 1 if damaged else 0


@click.command()
@files_argument
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--link", metavar="LINK", help="Show first what the page of this address showed.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="By default any free one.")
def view(files: tuple[str, ...], no_browser: bool, link: str | None, port: int) -> None:
    """Look at the arrays of FILEs in the browser.

    The page has a tree of keys, and shows the values of any array: as a line, an
    image, a picture, a table or a histogram. It reads only what it shows. FILE
    may be a URL. To compare two archives, name both. The page is served to this
    machine only, and its address contains a secret. Press Ctrl-C to end. Needs:
    pip install 'npzkit[view]'.

    Example: npzkit view model.npz --no-browser
    """
    with refusing():
        viewer = npzkit.view(*files, link=link, port=port)
    with viewer, contextlib.suppress(KeyboardInterrupt):
        click.echo(f"{printable(viewer.url)}")
        if sys.stderr.isatty():
            click.echo("Press Ctrl-C to end.", err=True)
        if not no_browser and not viewer.show():
            say("there is no browser here. Open the address yourself.")
        viewer.wait()
