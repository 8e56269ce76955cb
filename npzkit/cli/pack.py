"""The command that puts files into a new archive, and the options that it shares with add."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import click

import npzkit
from npzkit.cli.opening import file_size, inputs_argument, opened
from npzkit.cli.output import (
    json_option,
    print_json,
    print_notes,
    progress,
)
from npzkit.cli.refusals import Refusal, refusing
from npzkit.errors import (
    ConversionError,
    UnsafeNameError,
    format_count,
    format_size,
    printable,
    shown_url,
)

PIPE = "-"
"""Stands for the standard streams."""


def compression_options(command: Any) -> Any:
    """Add --compression and --level."""
    for option in (
        click.option(
            "--level", type=click.IntRange(0, 9),
            help="Of --compression deflated: 1 is fast, 9 is small.",
        ),
        click.option(
            "-c", "--compression", type=click.Choice(["stored", "deflated"]), default="stored",
            show_default=True, help="How arrays are written.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def input_options(command: Any) -> Any:
    """Add the options for reading inputs."""
    for option in (
        click.option(
            "--allow-pickle", is_flag=True,
            help="Accept Python objects, which can run code from IN.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def check_level(compression: str, level: int | None) -> None:
    """Raise if a level is given without --compression deflated."""
    if level is not None and compression != "deflated":
        raise click.UsageError("--level needs --compression deflated.")


@contextlib.contextmanager
def named_inputs(texts: Sequence[str], *, allow_pickle: bool = False) -> Iterator[list[Any]]:
    """Yield what arguments name, each ``[KEY=]PATH``; archives are open for the block.

    ``-`` is one .npy from a pipe.
    """
    with contextlib.ExitStack() as stack:
        archives: dict[str, npzkit.NpzFile] = {}

        def source(path: str) -> Any:
            if path == PIPE:
                return _binary_stdin()
            if os.path.isdir(path) or not path.lower().endswith(".npz"):
                return path
            if path not in archives:
                archives[path] = stack.enter_context(opened(path, allow_pickle=allow_pickle))
            return archives[path]

        pairs = [_split(text) for text in texts]
        yield [(key, source(path)) for key, path in pairs]


def _split(text: str) -> tuple[str | None, str]:
    """Split ``KEY=PATH``; a file that has the whole text as its name is that file.

    An equals sign in a URL separates nothing.
    """
    key, equals, path = text.partition("=")
    return (None, text) if not equals or "://" in key or os.path.lexists(text) else (key, path)


def _binary_stdin() -> BinaryIO:
    if sys.stdin.isatty():
        raise Refusal("- reads one .npy from a pipe, but there is no pipe.")
    return sys.stdin.buffer


@click.command()
@click.argument("out", type=click.Path(readable=False, allow_dash=True))
@inputs_argument
@compression_options
@input_options
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@json_option
def pack(
    out: str,
    inputs: tuple[str, ...],
    compression: Any,
    level: int | None,
    allow_pickle: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Put arrays into a new archive OUT.

    IN is an .npy file, an archive (.npz), the URL of one of these, a folder, or -
    for one .npy from a pipe. The key is KEY, or the file name without its suffix.
    Arrays of a folder have their paths in it as keys, and those of an archive their
    own keys. If KEY is given, it comes before these, with a slash. Attributes and
    metadata of archives are kept. OUT may be - for a pipe, or a URL such as
    s3://bucket/new.npz.

    Example: npzkit pack new.npz weights.npy first=bias.npy
    """
    check_level(compression, level)
    if out != PIPE and out.lower().endswith(".npy"):
        raise Refusal(f"OUT, which comes first, would be {out!r}; an archive ends in .npz.")
    with (
        refusing(ConversionError, UnsafeNameError),
        named_inputs(inputs, allow_pickle=allow_pickle) as found,
        progress("pack") as tell,
    ):
        report = npzkit.pack(
            binary_stdout() if out == PIPE else out, found,
            compression=compression, level=level, allow_pickle=allow_pickle, overwrite=force,
            progress=tell,
        )  # fmt: skip
    print_notes(report.notes)
    if out == PIPE:
        sys.stdout.buffer.flush()
        return
    out, size = shown_url(out), file_size(out)
    if as_json:
        print_json({"output": out, "keys": report.keys, "size": size})
    else:
        text = "" if size is None else f", {format_size(size)}"
        click.echo(f"{printable(out)}: {format_count(len(report.keys), 'array')}{text}")


def binary_stdout() -> BinaryIO:
    """Return the standard output stream for bytes, unless it is a terminal."""
    if sys.stdout.isatty():
        raise Refusal("bytes are not written to a terminal. Redirect them: > FILE.")
    return sys.stdout.buffer
