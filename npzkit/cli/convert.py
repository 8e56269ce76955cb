"""The command that converts archives from and to other formats."""

from __future__ import annotations

import logging
from typing import Any

import click

import npzkit
from npzkit.cli.opening import file_size, named_file
from npzkit.cli.output import (
    json_option,
    print_json,
    print_notes,
    progress,
)
from npzkit.cli.pack import check_level
from npzkit.cli.refusals import refusing
from npzkit.errors import ConversionError, format_count, format_size, printable, shown_url


@click.command()
@click.argument("src", type=named_file)
@click.argument("dst", type=named_file)
@click.option(
    "-c", "--compression", type=click.Choice(["stored", "deflated"]),
    help="How arrays are written. By default they are stored, except that a .zarr has zarr's "
    "default compression, and from .npz to .npz each array keeps its own.",
)  # fmt: skip
@click.option(
    "--level", type=click.IntRange(0, 9), help="Of --compression deflated: 1 is fast, 9 is small."
)
@click.option(
    "--zarr-format", type=click.Choice(["2", "3"]), default="3", show_default=True,
    help="The version of Zarr to write.",
)  # fmt: skip
@click.option("--skip", is_flag=True, help="Leave out arrays that DST cannot hold.")
@click.option("--force", is_flag=True, help="Replace DST if it exists.")
@json_option
def convert(
    src: str,
    dst: str,
    compression: str | None,
    level: int | None,
    zarr_format: str,
    skip: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Convert SRC to DST, each in the format that its name says.

    .npz, .safetensors, .h5, .zarr, .mat, or a folder of .npy files, whose name
    has no suffix or ends in a slash. Names, attributes and metadata are kept if
    DST can hold them. The command reports what is lost.

    Example: npzkit convert model.npz model.safetensors
    """
    check_level(compression or "stored", level)
    # asyncio, which zarr uses, logs every task that an interrupt left undone.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    version: Any = int(zarr_format)
    method: Any = compression
    with refusing(ConversionError), progress("convert") as tell:
        report = npzkit.convert(
            src, dst, compression=method, level=level, zarr_format=version, skip=skip,
            overwrite=force, progress=tell,
        )  # fmt: skip
    left_out = [f"left out {printable(key)!r}: {reason}" for key, reason in report.skipped.items()]
    notes = print_notes([*report.notes, *left_out])
    if as_json:
        print_json({"output": shown_url(dst), "keys": report.keys, "notes": notes})
    else:
        size = file_size(dst)
        text = "" if size is None else f", {format_size(size)}"
        click.echo(f"{printable(shown_url(dst))}: {format_count(len(report.keys), 'array')}{text}")
