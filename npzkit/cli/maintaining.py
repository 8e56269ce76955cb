"""The commands that check an archive, mend it and write it anew."""

from __future__ import annotations

import os

import click

import npzkit
from npzkit.cli.opening import archive_argument, complete_key, named_file, seekable_input
from npzkit.cli.output import format_size, json_option, print_json, printable, progress
from npzkit.cli.targets import check_absent

__all__ = ["repack", "repair", "verify"]


@click.command()
@archive_argument
@click.argument("keys", nargs=-1, shell_complete=complete_key)
@json_option
def verify(file: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Hold FILE, or the arrays KEYS of it, against every rule.

    Exits with 1 where something keeps data from being read or trusted.

    Example: npzkit verify model.npz
    """
    with seekable_input(file) as source, progress("verify") as tell:
        report = npzkit.verify(source, keys or None, tell)
    if as_json:
        print_json(report.as_dict())
    else:
        click.echo(str(report))
    click.get_current_context().exit(0 if report.ok else 1)


@click.command()
@click.argument("file", type=named_file)
@click.option("-o", "--output", type=named_file, help="Where to write what is sound.")
@click.option("--partial", is_flag=True, help="Keep the whole rows of arrays that were cut short.")
@click.option(
    "--uncommitted", is_flag=True, help="Keep sound arrays of an append that was never completed."
)
@click.option("--force", is_flag=True, help="Replace what is at OUTPUT.")
@json_option
def repair(
    file: str, output: str | None, partial: bool, uncommitted: bool, force: bool, as_json: bool
) -> None:
    """Save what is sound of a damaged FILE.

    Without --output only an unfinished append is cut off, and an interrupted
    flush of a map completed.
    Exits with 1 where something was lost.

    Example: npzkit repair broken.npz -o saved.npz
    """
    _check_output(file, output, force=force)
    with progress("repair") as tell:
        report = npzkit.repair(
            file, output, partial=partial, uncommitted=uncommitted, progress=tell
        )
    if as_json:
        print_json(report.as_dict())
    else:
        click.echo(str(report))
    click.get_current_context().exit(1 if report.lost else 0)


@click.command()
@click.argument("file", type=named_file)
@click.option("-o", "--output", type=named_file, help="Where to write it; FILE by default.")
@click.option(
    "-c", "--compression", type=click.Choice(["stored", "deflated"]),
    help="For all arrays; each keeps its own by default.",
)  # fmt: skip
@click.option("--level", type=click.IntRange(0, 9), help="For what is deflated anew.")
@click.option("--align", type=int, default=64, show_default=True, help="Of stored data, in bytes.")
@click.option(
    "--seekable/--no-seekable", default=True, help="Deflate anew what lacks a seek index."
)
@click.option("--durable", is_flag=True, help="Wait until it is on disk.")
@click.option("--force", is_flag=True, help="Replace what is at OUTPUT.")
@json_option
def repack(
    file: str,
    output: str | None,
    compression: str | None,
    level: int | None,
    align: int,
    seekable: bool,
    durable: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write FILE anew: aligned, seekable, without dead space.

    Example: npzkit repack model.npz
    """
    before = os.path.getsize(file)
    _check_output(file, output, force=force)
    try:
        with progress("repack") as tell:
            npzkit.repack(
                file, output, compression, align, level=level, seekable=seekable,
                durable=durable, progress=tell,
            )  # fmt: skip
    except ValueError as error:
        if isinstance(error, npzkit.NpzkitError):
            raise
        raise click.UsageError(f"{error}.") from error
    after = os.path.getsize(output or file)
    if as_json:
        print_json({"output": output or file, "size_before": before, "size": after})
    else:
        click.echo(f"{printable(output or file)}: {format_size(before)} -> {format_size(after)}")


def _check_output(file: str, output: str | None, *, force: bool) -> None:
    """Raise where something other than FILE is at OUTPUT; FILE itself is asked for by its name."""
    if output is not None and os.path.realpath(output) != os.path.realpath(file):
        check_absent(output, force=force)
