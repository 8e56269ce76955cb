"""The commands that show pages: archives in the browser, and the guide, which is in the package."""

from __future__ import annotations

import contextlib
import sys
from importlib import resources

import click

import npzkit
from npzkit.cli.file_argument import files_argument
from npzkit.cli.messages import refusing, say
from npzkit.cli.output import print_table
from npzkit.errors import printable

_PAGES = {
    page.name.removesuffix(".md"): page.read_text(encoding="utf-8")
    for page in (resources.files(npzkit) / "guide").iterdir()
    if page.name.endswith(".md")
}
"""The text of each page, by its topic."""


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


@click.command()
@click.argument("topic", type=click.Choice(sorted(_PAGES)), required=False, metavar="[TOPIC]")
def help(topic: str | None) -> None:
    """Show a page of the guide, or list its topics.

    Example: npzkit help training
    """
    if topic is None:
        titles = [(name, text.partition("\n")[0][2:]) for name, text in sorted(_PAGES.items())]
        print_table(["topic", "page"], titles)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(_PAGES[topic]))
