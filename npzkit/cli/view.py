"""The command that shows archives in the browser."""

from __future__ import annotations

import contextlib
import sys

import click

import npzkit
from npzkit.cli.opening import archives_argument
from npzkit.cli.output import say
from npzkit.errors import printable


@click.command()
@archives_argument
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--link", metavar="LINK", help="What to show at first, as the page's Link says.")
@click.option("--once", is_flag=True, help="End when the last page is closed.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="By default any free one.")
@click.option(
    "--host", default="127.0.0.1", show_default=True,
    help="The address to listen on. Others than this let other machines in.",
)  # fmt: skip
def view(
    files: tuple[str, ...], no_browser: bool, link: str | None, once: bool, port: int, host: str
) -> None:
    """Look at the arrays of FILEs in the browser.

    The page has a tree of keys, and shows the values of any array: as a line, an
    image, a picture, a table or a histogram. It reads only what it shows. FILE
    may be a URL. To compare two archives, name both. The page is served to this
    machine only, and its address contains a secret. Press Ctrl-C to end. Needs:
    pip install 'npzkit[view]'.

    Example: npzkit view model.npz --no-browser
    """
    if "-" in files:
        raise click.UsageError("view needs files, not a standard stream.")
    try:
        viewer = npzkit.view(*files, link=link, host=host, port=port)
    except ValueError as error:
        if isinstance(error, npzkit.NpzkitError):
            raise
        raise click.UsageError(f"--link: {error}.") from error
    with viewer, contextlib.suppress(KeyboardInterrupt):
        click.echo(f"{printable(viewer.url)}")
        if sys.stderr.isatty():
            click.echo("Press Ctrl-C to end.", err=True)
        if not no_browser and not viewer.show():
            say("there is no browser here. Open the address yourself.")
        viewer.wait(once=once)
