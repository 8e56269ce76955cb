"""The command that shows the pages of the guide, which are part of the package."""

from __future__ import annotations

from importlib import resources

import click

import npzkit
from npzkit.cli.output import print_table

_PAGES = {
    page.name.removesuffix(".md"): page.read_text(encoding="utf-8")
    for page in (resources.files(npzkit) / "guide").iterdir()
    if page.name.endswith(".md")
}
"""The text of each page, by its topic."""


@click.command()
@click.argument("topic", type=click.Choice(sorted(_PAGES)), required=False, metavar="TOPIC")
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
