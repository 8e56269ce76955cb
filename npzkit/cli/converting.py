"""The commands that write archives as files of other formats, and other formats as archives."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import click

import npzkit
from npzkit.cli.editing import PIPE, binary_stdout, level_option
from npzkit.cli.file_argument import (
    archive_argument,
    complete_key,
    named_file,
    opened,
    print_written,
)
from npzkit.cli.messages import Refusal, in_a_line, message_of, print_notes, refusing, say
from npzkit.cli.output import ProgressBar, json_option, print_json
from npzkit.errors import ConversionError, format_count, printable


@click.command()
@click.argument("src", type=named_file)
@click.argument("dst", type=named_file)
@click.option(
    "-c", "--compression", type=click.Choice(["stored", "deflated"]),
    help="How arrays are written. By default they are stored, except that a .zarr has zarr's "
    "default compression, and from .npz to .npz each array keeps its own.",
)  # fmt: skip
@level_option
@click.option(
    "--zarr-format", type=click.Choice(["2", "3"]), default="3", show_default=True,
    help="The version of Zarr to write.",
)  # fmt: skip
@click.option("--skip", is_flag=True, help="Leave out arrays that DST cannot hold.")
@click.option("--force", is_flag=True, help="Replace DST if it exists.")
@json_option
def convert(
    src: str, dst: str, compression: Any, level: int | None, zarr_format: str, skip: bool,
    force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Convert SRC to DST, each in the format that its name says.

    .npz, .safetensors, .h5, .zarr, .mat, or a folder of .npy files, whose name
    has no suffix or ends in a slash. Names, attributes and metadata are kept if
    DST can hold them. The command reports what is lost.

    Example: npzkit convert model.npz model.safetensors
    """
    if level is not None and compression != "deflated":
        raise click.UsageError("--level needs --compression deflated.")
    version: Any = int(zarr_format)
    # asyncio, which zarr uses, logs every task that an interrupt left undone.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with refusing(ConversionError), ProgressBar("convert") as tell:
        report = npzkit.convert(
            src, dst, compression=compression, level=level, zarr_format=version,
            skip=skip, overwrite=force, progress=tell,
        )  # fmt: skip
    left_out = [f"left out {printable(key)!r}: {reason}" for key, reason in report.skipped.items()]
    notes = print_notes([*report.notes, *left_out])
    print_written(dst, report, **({"notes": notes} if as_json else {}))


@click.command()
@archive_argument
@click.argument("keys", nargs=-1, shell_complete=complete_key)
@click.option(
    "-d", "--dir", "folder", default=".", show_default=True,
    type=click.Path(readable=False, file_okay=False, allow_dash=True),
    help="The folder to write to, created if necessary; - writes one array to a pipe.",
)  # fmt: skip
@click.option(
    "--format", "kind", type=click.Choice(["npy", "csv"]), default="npy", show_default=True,
    help="Write .npy files, or text tables, in which spreadsheets may find formulas (=, +, -, @).",
)  # fmt: skip
@click.option(
    "--delimiter", default=",", show_default=True,
    help="The character between the cells of a text table.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace files that exist.")
@json_option
def extract(
    file: str, keys: tuple[str, ...], folder: str, kind: Any, delimiter: str, force: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Write the arrays of FILE, or KEYS of them, to files.

    Slashes in a key become folders. No file is written outside the folder, and
    none is replaced without --force. Members that are not arrays are written as
    they are. A damaged array is reported and skipped; the exit code is then 1.
    FILE may be - for the standard input. A pipe is copied to a temporary file first.

    Example: npzkit extract model.npz weights -d arrays
    """
    delimiter = "\t" if delimiter == r"\t" else delimiter
    if not folder:
        raise Refusal("--dir is empty; the folder you are in is --dir .")
    with refusing(ConversionError), opened(file) as npz:
        if folder == PIPE:
            _extract_to_pipe(npz, list(dict.fromkeys(keys or npz.files)), kind, delimiter)
            return 0
        with ProgressBar("extract") as tell:
            report = npzkit.extract(
                npz, folder, keys or None, format=kind, delimiter=delimiter, skip=True,
                overwrite=force, progress=tell,
            )  # fmt: skip
    failed = {key: in_a_line(message_of(error)) for key, error in report.failed.items()}
    if as_json:
        print_json({"files": report.files, "failed": failed})
    else:
        click.echo(f"{printable(folder)}: {format_count(len(report.files), 'file')}")
    for text in failed.values():
        say(text)
    return 1 if failed else 0


def _extract_to_pipe(npz: npzkit.NpzFile, keys: Sequence[str], kind: Any, delimiter: str) -> None:
    if len(keys) != 1:
        raise click.UsageError(f"-d - writes one array, and {len(keys)} are wanted.")
    with ProgressBar("extract") as tell:
        npzkit.extract(npz, binary_stdout(), keys, format=kind, delimiter=delimiter, progress=tell)
