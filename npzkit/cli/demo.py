"""The command that starts the guided tour; what the tour shows is in `npzkit.cli.tour`."""

from __future__ import annotations

import click

from npzkit.cli.output import console

__all__ = ["demo"]


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
def demo(folder: str | None) -> None:
    """Show what npzkit does, on real data.

    FOLDER holds digits.npz and photographs.npz; a checkout's own by default.

    Example: npzkit demo fixtures
    """
    # rich, which takes a while, is not for the list of commands.
    from npzkit.cli import tour

    try:
        data = tour.find_data(folder)
    except FileNotFoundError as error:
        raise click.UsageError(str(error)) from error
    tour.run(data, console())
