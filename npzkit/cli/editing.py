"""The commands that change an archive in place: add, rm and mv.

Each makes all of its changes or none.
"""

from __future__ import annotations

import os
from typing import Any

import click

import npzkit
from npzkit.cli.opening import complete_key, inputs_argument, named_file
from npzkit.cli.output import (
    json_option,
    print_json,
    print_notes,
    progress,
)
from npzkit.cli.pack import (
    check_level,
    compression_options,
    input_options,
    named_inputs,
)
from npzkit.cli.refusals import Refusal, refusing
from npzkit.errors import ConversionError, UnsafeNameError, printable


def _writer(file: str, **options: Any) -> npzkit.NpzWriter:
    """Open an archive for changes; raise FileNotFoundError if it does not exist."""
    local = npzkit.local_path(file)
    if local is not None:
        os.stat(local)
    return npzkit.NpzWriter(file, mode="a", **options)


def _tell(file: str, done: dict[str, list[str]], *, as_json: bool) -> None:
    if as_json:
        print_json({"file": file, **done})
        return
    texts = [f"{what} {', '.join(map(printable, keys))}" for what, keys in done.items() if keys]
    click.echo(f"{printable(file)}: {'; '.join(texts) or 'nothing to do'}")


@click.command()
@click.argument("file", type=named_file)
@inputs_argument
@click.option("--overwrite", is_flag=True, help="Replace arrays that have the same keys.")
@compression_options
@input_options
@json_option
def add(
    file: str,
    inputs: tuple[str, ...],
    overwrite: bool,
    compression: Any,
    level: int | None,
    allow_pickle: bool,
    as_json: bool,
) -> None:
    """Add arrays to the archive FILE, in place.

    IN is an .npy file, an archive (.npz), the URL of one of these, a folder, or -
    for one .npy from a pipe. The key is KEY, or the file name without its suffix.
    Attributes and metadata of archives are kept. Metadata of FILE is replaced only
    with --overwrite. If one array cannot be added, none is.

    Example: npzkit add model.npz more=bias.npy
    """
    check_level(compression, level)
    with (
        refusing(ConversionError, UnsafeNameError),
        named_inputs(inputs, allow_pickle=allow_pickle) as found,
        progress("add") as tell,
    ):
        report = npzkit.add(
            file, found, compression=compression, level=level, allow_pickle=allow_pickle,
            overwrite=overwrite, progress=tell,
        )  # fmt: skip
    print_notes(report.notes)
    replaced = set(report.replaced)
    added = [key for key in report.keys if key not in replaced]
    _tell(file, {"added": added, "replaced": list(report.replaced)}, as_json=as_json)


@click.command()
@click.argument("file", type=named_file)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_key)
@json_option
def rm(file: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Remove arrays from the archive FILE, in place.

    If one KEY is not found, nothing is removed. The file shrinks when more than
    half of it is unused, or when npzkit repack rewrites it.

    Example: npzkit rm model.npz bias
    """
    removed = list(dict.fromkeys(keys))
    with _writer(file) as writer:
        for key in removed:
            del writer[key]
    _tell(file, {"removed": removed}, as_json=as_json)


@click.command()
@click.argument("file", type=named_file)
@click.argument("old", shell_complete=complete_key)
@click.argument("new")
@json_option
def mv(file: str, old: str, new: str, as_json: bool) -> None:
    """Rename the array OLD of the archive FILE to NEW, in place.

    The array keeps its position, its attributes and its bytes.

    Example: npzkit mv model.npz weights layer/weights
    """
    with refusing(UnsafeNameError), _writer(file) as writer:
        if old in writer.files and new in writer.files and new != old:
            raise Refusal(f"{new!r} already exists in {file!r}. Remove it first with npzkit rm.")
        writer.rename(old, new)
    if as_json:
        print_json({"file": file, "renamed": [old, new]})
    else:
        click.echo(f"{printable(file)}: renamed {printable(old)} to {printable(new)}")
