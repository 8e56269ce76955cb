"""The command line, on click: each command a thin layer over the public API."""

from __future__ import annotations

import click
from rich.console import Console

import npzkit
from npzkit import demo as demo_module

__all__ = ["npzkit_command"]


@click.group(name="npzkit", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(npzkit.__version__, prog_name="npzkit")
def npzkit_command() -> None:
    """The .npz archive manager."""


@npzkit_command.command()
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
def demo(folder: str | None) -> None:
    """Show what npzkit does, on real data.

    FOLDER holds digits.npz and photographs.npz; a checkout's own by default.

    Example: npzkit demo fixtures
    """
    try:
        data = demo_module.find_data(folder)
    except FileNotFoundError as error:
        raise click.UsageError(str(error)) from error
    try:
        demo_module.run(data, Console(highlight=False))
    except npzkit.NpzkitError as error:
        raise click.ClickException(str(error)) from error
