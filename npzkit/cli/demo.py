"""The command that starts the guided tour of `npzkit.cli.tour`."""

from __future__ import annotations

import click

from npzkit.cli.output import console


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
def demo(folder: str | None) -> None:
    """Run a demo of npzkit on real data.

    FOLDER must have digits.npz and photographs.npz. The default is the folder
    fixtures of a checkout.

    Example: npzkit demo fixtures
    """
    # The list of commands must not import rich, which is slow.
    from npzkit.cli import tour

    try:
        data = tour.find_data(folder)
    except FileNotFoundError as error:
        raise click.UsageError(str(error)) from error
    tour.run(data, console())
