"""The commands that show pages: archives in the browser, and the guide."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from functools import partial
from importlib import resources
from typing import Any

import click

import npzkit
from npzkit.cli.file_argument import files_argument
from npzkit.cli.messages import refusing, say, unknown
from npzkit.cli.output import print_table
from npzkit.errors import printable


def _texts(folder: Any, suffix: str) -> dict[str, str]:
    """Return the texts of the files in a folder, by their names without the suffix."""
    return {
        file.name.removesuffix(suffix): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(suffix)
    }


_GUIDE = resources.files(npzkit) / "guide"
_PAGES = _texts(_GUIDE, ".md")
"""The text of each page, by its topic."""
_EXAMPLES = _texts(_GUIDE / "examples", ".py")
"""Programs to begin with."""
_COMMENT = re.compile(r"^( *)(\S.*?) {2,}(# .*)$", re.MULTILINE)
"""A line of code with a comment behind it."""
_LINK = re.compile(r"\[([^]]+)\]\((?:examples/)?([\w-]+)\.(?:md|py)(?:#[^)]*)?\)")
"""A link to another page, or to an example."""


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
    pip install "npzkit[view]".

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


class _Topic(click.Choice):  # type: ignore[type-arg]  # not generic in click 8.1
    def convert(self, value: str, *_: Any) -> str:
        if value not in _PAGES | _EXAMPLES and not _pages_with(value):
            raise unknown("topic", value, _PAGES | _EXAMPLES)
        return value


def _pages_with(word: str) -> list[tuple[str, str]]:
    """Return the pages that have a word, and the headings of the sections that have it."""
    found: list[tuple[str, str]] = []
    word = word.lower().removesuffix("s")
    if len(word.strip()) < 2:
        return found
    for name, page in sorted(_PAGES.items()):
        headings: dict[str, None] = {}
        heading, is_code = "", False
        for line in page.splitlines():
            is_code ^= line.startswith("```")
            if line.startswith("#") and not is_code:
                heading = line.lstrip("# ")
            if word in line.lower():
                headings[heading] = None
        if headings:
            found.append((name, "; ".join(headings)))
    return found


@click.command()
@click.argument("topic", type=_Topic(sorted(_PAGES | _EXAMPLES)), required=False, metavar="[TOPIC]")
def help(topic: str | None) -> None:
    """Show a page of the guide, or list its topics.

    If TOPIC is no page, the pages with this word are listed, and where it is in them. The
    name of an example prints that program: npzkit help train_torch > train.py.
    On a terminal, long pages are shown with $PAGER, or less.

    Example: npzkit help training
    """
    if topic is None:
        for heading, texts in (("topic", _PAGES), ("example", _EXAMPLES)):
            titles = [
                (name, text.partition("\n")[0].strip('#" ')) for name, text in sorted(texts.items())
            ]
            print_table([heading, ""], titles)
        return
    if topic in _EXAMPLES:
        click.echo(_EXAMPLES[topic], nl=False)
        return
    if topic not in _PAGES:
        print_table(["topic", f"sections with {printable(topic)!r}"], _pages_with(topic))
        return
    text = _rendered(_PAGES[topic])
    is_long = text.count("\n") >= shutil.get_terminal_size().lines
    (click.echo_via_pager if is_long and sys.stdout.isatty() else click.echo)(text)


def _rendered(page: str) -> str:
    """Return a page as rich shows it on the terminal."""
    from rich.console import Console
    from rich.markdown import CodeBlock, Markdown, TableElement
    from rich.segment import Segment

    class Folded(TableElement):
        """A table in which long words are folded, and not cut."""

        def __rich_console__(self, *given: Any) -> Any:
            tables: Any = super().__rich_console__(*given)
            for table in tables:
                for column in table.columns:
                    column.overflow = "fold"
                yield table

    class Whole(CodeBlock):
        """Code of which the terminal folds the long lines, so that it can be copied."""

        def __rich_console__(self, console: Console, options: Any) -> Any:
            longest = max(map(len, str(self.text).expandtabs(4).splitlines()), default=0)
            wide = options.update(width=max(options.max_width, longest))
            blocks: Any = super().__rich_console__(console, options)
            for syntax in blocks:
                syntax.padding = (1, 0, 1, 0)
                for line in console.render_lines(syntax, wide):
                    size = len("".join(part.text for part in line).rstrip())
                    yield from Segment.adjust_line_length(line, max(size, options.max_width))
                    yield Segment.line()

    Markdown.elements |= {"table_open": Folded, "fence": Whole}
    console = Console()
    with console.capture() as shown:
        console.print(Markdown(fitting(page, console.width)), crop=False)
    return shown.get()


def fitting(page: str, width: int) -> str:
    """Return a page without pictures, in which the comment behind wide code comes first.

    Behind a link to another page is the command that shows that one.
    """
    parts = re.sub(r"^!\[.*\n", "", page, flags=re.MULTILINE).split("```")
    parts[::2] = [_LINK.sub(r"\1 (`npzkit help \2`)", part) for part in parts[::2]]
    parts[1::2] = [_COMMENT.sub(partial(_fitting_line, width), part) for part in parts[1::2]]
    return "```".join(parts)


def _fitting_line(width: int, line: re.Match[str]) -> str:
    return line.expand(r"\1\3\n\1\2") if len(line[0]) > width else line[0]
