"""The commands that put files into an archive, and take them out."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TextIO

import click
import numpy as np

import npzkit
from npzkit.archive.pieces import PIECE_SIZE, checked_array, is_taken_by_parts
from npzkit.cli.members import members_of
from npzkit.cli.opening import (
    archive_argument,
    complete_key,
    inputs_argument,
    metadata_of,
    opened,
)
from npzkit.cli.output import (
    format_count,
    format_size,
    in_a_line,
    json_option,
    metering,
    print_json,
    printable,
)
from npzkit.cli.wording import message_of
from npzkit.conversion.arrays import Array, array_of
from npzkit.conversion.inputs import PIPE, SUFFIXES, Input, Inputs, opened_inputs, read_input
from npzkit.conversion.npz import array_in, write_array
from npzkit.conversion.tables import TableOptions, check_writable, write_table
from npzkit.conversion.targets import (
    Refusal,
    check_absent,
    check_file_names,
    path_within,
    replacing,
)
from npzkit.errors import NpzkitError, StaleArchiveError
from npzkit.files.progress import Advance, Meter, Part
from npzkit.members.keys import SUFFIX
from npzkit.reading import blocks

__all__ = [
    "add_inputs",
    "add_metadata",
    "compression_options",
    "extract",
    "input_options",
    "pack",
]


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
    inputs: Inputs,
    options: TableOptions,
    meter: Meter,
    *,
    is_deflated: bool,
    allow_pickle: bool = False,
) -> list[str]:
    """Write arrays to the archive at a path, each read when its turn comes.

    Returns
    -------
    list of str
        The keys of arrays that were replaced.
    """
    replaced = []
    # The bytes that go to a pipe are counted there.
    is_counted = path != PIPE or is_deflated
    for item in inputs.arrays:
        if item.key in writer:
            replaced.append(item.key)
        part = meter.part(item.size * is_counted, item.work)
        array, attrs = _input_array(item, path, options, part.add, allow_pickle=allow_pickle)
        if isinstance(array, Array):
            if item.key in writer:
                del writer[item.key]
            array = array.watched(part.add)
            write_array(writer, array, path, attrs, is_deflated=is_deflated)
        else:
            writer.add(item.key, array, attrs=attrs, overwrite=True)
        part.end()
    return replaced


def _input_array(
    item: Input, path: str, options: TableOptions, advance: Advance, *, allow_pickle: bool
) -> tuple[Any, Mapping[str, Any]]:
    """Return an array to be written, as an `Array` if it is taken by parts; and attributes."""
    if item.archive is not None:
        info = item.archive.info(item.member)
        if is_taken_by_parts(info):
            return array_in(item.archive, item.member)._replace(key=item.key), info.attrs
        return item.archive.read(item.member), info.attrs
    found = read_input(item, options, allow_pickle=allow_pickle, advance=advance)
    is_large = isinstance(found, np.memmap) and found.nbytes > blocks.BLOCK_SIZE
    return array_of(item.key, found) if is_large and path != PIPE else found, {}


class _Counted:
    """A stream whose bytes are counted as they are written."""

    def __init__(self, stream: BinaryIO, advance: Advance) -> None:
        self._stream, self._advance = stream, advance

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE_SIZE):
            self._stream.write(view[start : start + PIECE_SIZE])
            self._advance(len(view[start : start + PIECE_SIZE]))
        return len(view)

    def flush(self) -> None:
        self._stream.flush()


def add_metadata(writer: npzkit.NpzWriter, inputs: Inputs, target: str, *, overwrite: bool) -> None:
    """Add the metadata of archives; what has another value already stays, and that is said."""
    owners = dict.fromkeys(writer.metadata, target)
    for path, npz in inputs.archives.items():
        metadata, is_tree = metadata_of(npz)
        if is_tree:
            _say(f"{printable(path)}: nested data becomes plain keys; save it as a tree again")
        for name, value in metadata.items():
            if name not in owners or overwrite:
                writer.metadata[name] = value
            elif writer.metadata[name] != value:
                _say(
                    f"{printable(path)}: the metadata {printable(name)!r} is not kept, because "
                    f"{printable(owners[name])} has another value"
                )
            owners.setdefault(name, path)


def _say(text: str) -> None:
    click.echo(f"npzkit: {text}", err=True)


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

    IN is an .npy file, a table (.csv, .tsv, .txt), an archive (.npz), a folder,
    or - for one .npy from a pipe. A key is the file's name without its suffix,
    or KEY. Arrays of a folder go by their paths in it, those of an archive by
    their keys, behind KEY and a slash if it is given. Attributes and metadata
    of archives are kept. OUT may be - for a pipe.

    Example: npzkit pack new.npz weights.npy first=bias.npy
    """
    check_level(compression, level)
    options = table_options(delimiter, header)
    if out != PIPE and os.path.splitext(out)[1].lower() in SUFFIXES:
        raise Refusal(f"OUT, which comes first, would be {out!r}; an archive ends in .npz.")
    if out != PIPE:
        check_absent(out, force=force)
    is_deflated = compression == "deflated"
    with (
        opened_inputs(inputs, out, allow_pickle=allow_pickle) as found,
        metering("pack", found.size) as meter,
    ):
        target: Any = out
        if out == PIPE:
            stream = binary_stdout()
            target = stream if is_deflated else _Counted(stream, meter.add)
        with npzkit.NpzWriter(
            target, compression=compression, level=level, allow_pickle=allow_pickle
        ) as writer:
            add_metadata(writer, found, out, overwrite=False)
            add_inputs(
                writer, out, found, options, meter,
                is_deflated=is_deflated, allow_pickle=allow_pickle,
            )  # fmt: skip
    if out == PIPE:
        target.flush()
        return
    size = os.path.getsize(out)
    if as_json:
        print_json({"output": out, "keys": [item.key for item in found.arrays], "size": size})
    else:
        count = format_count(len(found.arrays), "array")
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
    "-d", "--dir", "folder", default=".", show_default=True,
    type=click.Path(readable=False, file_okay=False, allow_dash=True),
    help="The folder to write to, created if necessary; - writes one array to a pipe.",
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

    Slashes in a key are folders. No key leads out of the folder, and no file is
    replaced without --force. Members that are no arrays are written as they
    are. A damaged array is reported and skipped; the exit code is then 1.

    Example: npzkit extract model.npz weights -d arrays
    """
    delimiter = table_options(delimiter, None).delimiter or ","
    if not folder:
        raise Refusal("--dir is empty; the folder you are in is --dir .")
    with opened(file) as npz:
        wanted = list(dict.fromkeys(keys or npz.files))
        if folder == PIPE:
            _extract_to_pipe(npz, wanted, kind, delimiter)
            return
        targets, failed = _targets(npz, wanted, folder, kind, force=force)
        with metering("extract", sum(npz.info(key).nbytes for key in targets)) as meter:
            failed |= _extract(npz, targets, kind, delimiter, meter)
    written = {key: path for key, path in targets.items() if key not in failed}
    if as_json:
        print_json({"files": written, "failed": failed})
    else:
        click.echo(f"{printable(folder)}: {format_count(len(written), 'file')}")
    for text in failed.values():
        _say(in_a_line(text))
    click.get_current_context().exit(1 if failed else 0)


def _targets(
    npz: npzkit.NpzFile, keys: Sequence[str], folder: str, kind: str, *, force: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the path of each key's file, checked before any is written; and what is damaged."""
    names, failed = {}, {}
    for member in members_of(npz, keys):
        key, info = member.key, member.info
        if info is None:
            failed[key] = member.error
            continue
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
            raise Refusal(f"{path!r} is a folder, but a file is to be written there.")
    return targets, failed


def _extract(
    npz: npzkit.NpzFile, targets: dict[str, str], kind: str, delimiter: str, meter: Meter
) -> dict[str, str]:
    """Write files; return what is wrong with the arrays that are damaged, by their keys."""
    failed = {}
    for key, path in targets.items():
        part = meter.part(npz.info(key).nbytes)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with replacing(path) as temporary:
                if kind == "csv" and npz.info(key).dtype is not None:
                    with open(temporary, "x", encoding="utf-8", newline="") as text:
                        _write_table(npz, key, text, delimiter, part)
                else:
                    with open(temporary, "xb") as out:
                        _copy(npz, key, out, part.add)
        except StaleArchiveError:
            raise
        except NpzkitError as error:
            failed[key] = message_of(error)
        part.end()
    return failed


def _copy(npz: npzkit.NpzFile, key: str, out: BinaryIO, advance: Advance) -> None:
    """Write a member's bytes, which are an .npy file's; their CRC-32 is compared at the end."""
    with npz.stream(key) as stream:
        while piece := stream.read(PIECE_SIZE):
            out.write(piece)
            advance(len(piece))


def _write_table(npz: npzkit.NpzFile, key: str, out: TextIO, delimiter: str, part: Part) -> None:
    array = checked_array(npz, key, part.add)
    if not array.shape:
        write_table(out, array.dtype, [array[()].reshape(1)], delimiter)
        return
    row_size = max(array.dtype.itemsize * (array.shape[1] if array.ndim == 2 else 1), 1)

    def rows() -> Iterator[np.ndarray[Any, Any]]:
        for index in blocks.blocks(array.shape[:1], row_size, size=PIECE_SIZE):
            yield array[index]
            part.add((index[0].stop - index[0].start) * row_size)

    write_table(out, array.dtype, rows(), delimiter)


def _extract_to_pipe(npz: npzkit.NpzFile, keys: Sequence[str], kind: str, delimiter: str) -> None:
    if len(keys) != 1:
        raise click.UsageError(f"-d - writes one array, and {len(keys)} are wanted.")
    info = npz.info(keys[0])
    with metering("extract", info.nbytes) as meter:
        part = meter.part(info.nbytes)
        if kind == "csv" and info.dtype is not None and info.shape is not None:
            check_writable(info.shape, info.dtype, keys[0])
            with _text_stdout() as text:
                _write_table(npz, keys[0], text, delimiter, part)
            return
        out = binary_stdout()
        _copy(npz, keys[0], out, part.add)
        out.flush()
