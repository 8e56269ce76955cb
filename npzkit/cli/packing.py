"""The commands that put files into an archive, and take them out."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TextIO

import click
import numpy as np

import npzkit
from npzkit.cli import parts
from npzkit.cli.formats.arrays import array_of
from npzkit.cli.formats.npz import write_array
from npzkit.cli.inputs import PIPE, SUFFIXES, Input, find_inputs, read_input
from npzkit.cli.opening import archive_argument, complete_key, inputs_argument, opened
from npzkit.cli.output import (
    format_count,
    format_size,
    json_option,
    print_json,
    printable,
    progress,
)
from npzkit.cli.parts import blocks, checked_array
from npzkit.cli.tables import TableOptions, check_writable, write_table
from npzkit.cli.targets import (
    Refusal,
    check_absent,
    check_file_names,
    path_within,
    replacing,
)
from npzkit.keys import SUFFIX

__all__ = ["add_inputs", "compression_options", "extract", "input_options", "pack"]

_PIECE_SIZE = 1 << 20


def compression_options(command: Any) -> Any:
    """Add --compression and --level."""
    for option in (
        click.option("--level", type=click.IntRange(0, 9), help="For what is deflated."),
        click.option(
            "-c", "--compression", type=click.Choice(["stored", "deflated"]), default="stored",
            show_default=True, help="How arrays are written.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def input_options(command: Any) -> Any:
    """Add what says how inputs are read."""
    for option in (
        click.option("--allow-pickle", is_flag=True, help="Take Python objects; runs their code."),
        click.option("--delimiter", help="Of text tables; by default , or a tab or white space."),
        click.option(
            "--header/--no-header", default=None,
            help="Whether a table's first row names its columns; by default where it looks so.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def table_options(delimiter: str | None, header: bool | None) -> TableOptions:
    r"""Check options of tables; ``\t`` is a tab."""
    delimiter = "\t" if delimiter == r"\t" else delimiter
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"'):
        raise Refusal(f"--delimiter must be one character, not {delimiter!r}.")
    return TableOptions(delimiter, header)


def check_level(compression: str, level: int | None) -> None:
    """Raise for a level of what is not deflated."""
    if level is not None and compression != "deflated":
        raise click.UsageError("--level is for --compression deflated.")


def add_inputs(
    writer: npzkit.NpzWriter,
    path: str,
    inputs: Sequence[Input],
    options: TableOptions,
    tell: Callable[[int, int], None],
    *,
    is_deflated: bool,
    allow_pickle: bool = False,
) -> None:
    """Write arrays to the archive at a path one after the other, each read when its turn comes."""
    total = sum(item.size for item in inputs)
    done = 0
    for item in inputs:
        array = read_input(item, options, allow_pickle=allow_pickle)
        is_large = isinstance(array, np.memmap) and array.nbytes > parts.PART_SIZE
        if is_large and path != PIPE:
            if item.key in writer:
                del writer[item.key]
            write_array(writer, array_of(item.key, array), path, is_deflated=is_deflated)
        else:
            writer.add(item.key, array, overwrite=True)
        done += item.size
        tell(done, total)


@click.command()
@click.argument("out", type=click.Path(readable=False, allow_dash=True))
@inputs_argument
@compression_options
@input_options
@click.option("--force", is_flag=True, help="Replace what is at OUT.")
@json_option
def pack(
    out: str,
    inputs: tuple[str, ...],
    compression: Any,
    level: int | None,
    delimiter: str | None,
    header: bool | None,
    allow_pickle: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Put arrays into a new archive OUT.

    IN is an .npy file, a table (.csv, .tsv, .txt), a folder, whose files go by
    their paths in it, or - for one .npy from a pipe. A key is the file's name
    without its suffix, or KEY. OUT may be - for a pipe.

    Example: npzkit pack new.npz weights.npy first=bias.npy
    """
    check_level(compression, level)
    options = table_options(delimiter, header)
    target: Any = out
    if out == PIPE:
        target = binary_stdout()
    elif os.path.splitext(out)[1].lower() in SUFFIXES:
        raise Refusal(f"OUT, which comes first, would be {out!r}; an archive ends in .npz.")
    else:
        check_absent(out, force=force)
    found = find_inputs(inputs)
    with progress("pack") as tell:
        writer = npzkit.NpzWriter(
            target, compression=compression, level=level, allow_pickle=allow_pickle
        )
        with writer:
            add_inputs(
                writer, out, found, options, tell,
                is_deflated=compression == "deflated", allow_pickle=allow_pickle,
            )  # fmt: skip
    if out == PIPE:
        target.flush()
        return
    size = os.path.getsize(out)
    if as_json:
        print_json({"output": out, "keys": [item.key for item in found], "size": size})
    else:
        count = format_count(len(found), "array")
        click.echo(f"{printable(out)}: {count}, {format_size(size)}")


def binary_stdout() -> BinaryIO:
    """Return the standard output stream for bytes, which a terminal does not take."""
    if sys.stdout.isatty():
        raise Refusal("bytes are not written to a terminal. Redirect them: > FILE.")
    return sys.stdout.buffer


@contextlib.contextmanager
def _text_stdout() -> Iterator[TextIO]:
    """Yield the standard output stream; UTF-8 where it is no terminal, as in files."""
    if sys.stdout.isatty():
        yield sys.stdout
        return
    sys.stdout.flush()
    text = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
    try:
        yield text
        text.flush()
    finally:
        text.detach()


@click.command()
@archive_argument
@click.argument("keys", nargs=-1, shell_complete=complete_key)
@click.option(
    "-d", "--dir", "folder", type=click.Path(readable=False, allow_dash=True), default=".",
    show_default=True,
    help="The folder to write to, made if need be; - writes one array to a pipe.",
)  # fmt: skip
@click.option(
    "--format",
    "kind",
    type=click.Choice(["npy", "csv"]),
    default="npy",
    show_default=True,
    help="What is written: .npy files, or tables.",
)
@click.option("--delimiter", default=",", show_default=True, help="Of text tables.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option
def extract(
    file: str,
    keys: tuple[str, ...],
    folder: str,
    kind: str,
    delimiter: str,
    force: bool,
    as_json: bool,
) -> None:
    """Write the arrays of FILE, or KEYS of them, to files.

    A key's slashes are folders. No key leads out of the folder, and no file is
    replaced without --force. Members that are no arrays are written as they
    are.

    Example: npzkit extract model.npz weights -d arrays
    """
    delimiter = table_options(delimiter, None).delimiter or ","
    with opened(file) as npz:
        wanted = list(dict.fromkeys(keys or npz.files))
        if folder == PIPE:
            _extract_to_pipe(npz, wanted, kind, delimiter)
            return
        targets = _targets(npz, wanted, folder, kind, force=force)
        with progress("extract") as tell:
            _extract(npz, targets, kind, delimiter, tell)
    if as_json:
        print_json({"files": targets})
    else:
        click.echo(f"{printable(folder)}: {format_count(len(targets), 'file')}")


def _targets(
    npz: npzkit.NpzFile, keys: Sequence[str], folder: str, kind: str, *, force: bool
) -> dict[str, str]:
    """Return the path of each key's file, all of them checked before any is written."""
    names = {}
    for key in keys:
        info = npz.info(key)
        if info.member.endswith("/") and not info.nbytes:
            # An entry that only says that there is a folder.
            continue
        name = info.member
        if info.dtype is not None and info.shape is not None:
            name = f"{name.removesuffix(SUFFIX)}.{kind}"
            if kind == "csv":
                check_writable(info.shape, info.dtype, key)
        names[key] = name
    check_file_names(names.values())
    targets = {key: path_within(folder, name) for key, name in names.items()}
    for path in targets.values():
        check_absent(path, force=force)
        if os.path.isdir(path):
            raise Refusal(f"{path!r} is a folder, and a file is to be there.")
    return targets


def _extract(
    npz: npzkit.NpzFile,
    targets: dict[str, str],
    kind: str,
    delimiter: str,
    tell: Callable[[int, int], None],
) -> None:
    sizes = {key: npz.info(key).nbytes for key in targets}
    total, done = sum(sizes.values()), 0
    for key, path in targets.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with replacing(path) as temporary:
            if kind == "csv" and npz.info(key).dtype is not None:
                with open(temporary, "x", encoding="utf-8", newline="") as text:
                    _write_table(npz, key, text, delimiter)
            else:
                with open(temporary, "xb") as out:
                    for piece in _pieces(npz, key):
                        out.write(piece)
                        tell(done + out.tell(), total)
        done += sizes[key]
        tell(done, total)


def _pieces(npz: npzkit.NpzFile, key: str) -> Iterator[bytes]:
    """Yield a member's bytes, which are an .npy file's; their CRC-32 is compared at the end."""
    with npz.stream(key) as stream:
        while piece := stream.read(_PIECE_SIZE):
            yield piece


def _write_table(npz: npzkit.NpzFile, key: str, out: TextIO, delimiter: str) -> None:
    array = checked_array(npz, key)
    if not array.shape:
        write_table(out, array.dtype, [array[()].reshape(1)], delimiter)
        return
    row_size = array.dtype.itemsize * (array.shape[1] if array.ndim == 2 else 1)
    rows = (array[index] for index in blocks(array.shape[:1], max(row_size, 1)))
    write_table(out, array.dtype, rows, delimiter)


def _extract_to_pipe(npz: npzkit.NpzFile, keys: Sequence[str], kind: str, delimiter: str) -> None:
    if len(keys) != 1:
        raise click.UsageError(f"-d - writes one array, and {len(keys)} are wanted.")
    info = npz.info(keys[0])
    if kind == "csv" and info.dtype is not None and info.shape is not None:
        check_writable(info.shape, info.dtype, keys[0])
        with _text_stdout() as text:
            _write_table(npz, keys[0], text, delimiter)
        return
    out = binary_stdout()
    for piece in _pieces(npz, keys[0]):
        out.write(piece)
    out.flush()
