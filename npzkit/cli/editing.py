"""The commands that put arrays into an archive, remove them and rename them.

Owns what IN may be. Each command makes all of its changes or none.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import click

import npzkit
from npzkit.cli.file_argument import (
    archive_argument,
    complete_key,
    compression_option,
    encoding_option,
    file_or_pipe,
    file_size,
    keys_named,
    keys_option,
    level_option,
    named_file,
    opened,
    typed_key,
)
from npzkit.cli.messages import (
    Refusal,
    as_word,
    error_text,
    in_a_line,
    message_of,
    newest_step,
    print_notes,
    refusing,
    running_objects,
    say,
)
from npzkit.cli.output import ProgressBar, json_option, print_json
from npzkit.errors import (
    MemberNotFoundError,
    format_count,
    format_size,
    printable,
    quoted,
    shown_url,
    some_of,
)
from npzkit.files.urls import local_path
from npzkit.members.metadata import TREE_KEY

PIPE = "-"
"""Stands for the standard streams."""

_inputs_argument = click.argument(
    "inputs", metavar="[KEY=]IN...", nargs=-1, required=True, type=file_or_pipe
)


def input_options(command: Any) -> Any:
    """Add the options for reading inputs and writing arrays."""
    command = click.option(
        "--allow-pickle", is_flag=True, help="Accept Python objects, which can run code from IN."
    )(command)
    command = encoding_option(command)
    text = "How arrays are written."
    written = compression_option(default="stored", show_default=True, help=text)
    return written(level_option(command))


@contextlib.contextmanager
def _named_inputs(
    what: str, texts: Sequence[str], allow_pickle: bool
) -> Iterator[tuple[list[Any], ProgressBar]]:
    """Yield what arguments name, each ``[KEY=]PATH`` or ``-`` for a pipe, and a progress bar."""
    taken = "It was taken for OUT, which comes first."
    with refusing(taken), running_objects(allow_pickle), ProgressBar(what) as tell:
        found = [
            (key, _binary_stdin() if path == PIPE else path) for key, path in map(_split, texts)
        ]
        yield found, tell


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
@click.argument("out", type=file_or_pipe)
@_inputs_argument
@input_options
@click.option("--join", is_flag=True, help="Make one array of those with the same key in archives.")
@click.option("--axis", type=int, default=0, show_default=True, help="Join along this axis.")
@click.option("--stack", is_flag=True, help="Join on a new first axis, a position for each file.")
@keys_option("Pack", "loss/*")
@click.option(
    "--skip", is_flag=True,
    help="Leave out what cannot be joined, and damaged files with all their arrays; npzkit repair "
    "FILE -o OTHER saves the sound ones.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@json_option
def pack(
    out: str, inputs: tuple[str, ...], overwrite: bool, as_json: bool, join: bool, axis: int,
    stack: bool, keys: tuple[str, ...], skip: bool, **options: Any,
) -> None:  # fmt: skip
    """Put arrays into a new archive OUT.

    IN is an .npy file, an archive (.npz), the URL of one of these, a folder, or -
    for one .npy from a pipe. The key is KEY, or the file name without its suffix; if
    numpy.save wrote several arrays to one file, .0, .1 and so on follow it. Arrays of
    a folder have their paths in it as keys, and those of an archive their own keys. If
    KEY is given, it comes before these, with a slash. If archives have the same keys, the
    file name comes before those of all archives: run1/loss. Attributes and metadata of
    archives are kept; of metadata under one name, the first. OUT may be - for a pipe, or a
    URL such as s3://bucket/new.npz.

    With --join or --stack, INs are archives or patterns such as 'runs/*.npz', and OUT has
    their arrays joined, which may be larger than memory. Attributes and metadata are
    those of the first file.

    Example: npzkit pack new.npz weights.npy first=bias.npy
    """
    if out != PIPE and out.lower().endswith(".npy"):
        raise Refusal(f"OUT, which comes first, would be {out!r}; an archive ends in .npz.")
    with (
        _whole_output() if out == PIPE else contextlib.nullcontext(out) as target,
        _named_inputs("pack", inputs, options["allow_pickle"]) as (found, tell),
    ):
        given: list[Any] = found
        if join or stack:
            given = list(inputs)
            how = "stack" if stack else "concatenate"
            options |= {"join": how, "axis": axis}
        try:
            report = npzkit.pack(
                target, given, keys=keys or None, skip=skip, overwrite=overwrite, progress=tell,
                **options,
            )  # fmt: skip
        except FileNotFoundError as error:
            archive, *others = inputs
            may_be_keys = archive.lower().endswith(".npz") and error.filename in others
            if not may_be_keys or error.filename.lower().endswith((".npy", ".npz")):
                raise
            copying = _copying(archive, out, others)
            raise Refusal(f"{error_text(error)[0]} To copy some arrays: {copying}.") from error
    notes = print_notes(report.notes)
    if out == PIPE:
        return
    _print_written(out, report, **({"notes": notes, "size": file_size(out)} if as_json else {}))


def _copying(archive: str, out: str, keys: Iterable[str]) -> str:
    """Return the command that copies some arrays of an archive."""
    return f"npzkit convert {' '.join(map(as_word, (archive, out, *keys)))}"


def _print_written(path: str, report: Any, **facts: Any) -> None:
    """Print what was written to a path or URL: as JSON with `facts` if there are any."""
    if facts:
        print_json({"output": shown_url(path), "keys": report.keys, **facts})
        return
    size = file_size(path)
    text = "" if size is None else f", {format_size(size)}"
    click.echo(f"{printable(shown_url(path))}: {format_count(len(report.keys), 'array')}{text}")


@contextlib.contextmanager
def _whole_output() -> Iterator[Any]:
    """Yield the standard output for an archive, which is none without its end."""
    try:
        yield (out := binary_stdout())
        out.flush()
    except BrokenPipeError as error:
        raise Refusal("the pipe was closed before the archive was complete.") from error


def binary_stdout() -> BinaryIO:
    """Return the standard output stream for bytes, unless it is a terminal."""
    if sys.stdout.isatty():
        raise Refusal("bytes are not written to a terminal. Redirect them: > FILE.")
    return sys.stdout.buffer


def _writer(file: str) -> npzkit.NpzWriter | npzkit.ShardedWriter:
    """Open an archive for changes, also in a folder; raise FileNotFoundError if there is none."""
    from npzkit.datasets.opening import holds_index

    local = local_path(file)
    if local is not None and holds_index(local):
        return npzkit.ShardedWriter(file, mode="a")
    if local is not None:
        os.stat(local)
    return npzkit.NpzWriter(file, mode="a")


def _keys_in(writer: npzkit.NpzWriter | npzkit.ShardedWriter) -> list[str]:
    return writer.files if isinstance(writer, npzkit.NpzWriter) else writer._base.order


def _values_below(writer: npzkit.NpzWriter | npzkit.ShardedWriter, key: str) -> list[str]:
    """Return the keys of values and empty containers of nested data at a key and below it."""
    tree = writer._archive.tree if isinstance(writer, npzkit.NpzWriter) else None
    return [] if tree is None else tree.values_in(key)


def _tell(file: str, text: str, *, as_json: bool, **done: list[str]) -> None:
    """Print what was done to a file: as JSON, or as a text."""
    if as_json:
        print_json({"path": file, **done})
    else:
        click.echo(f"{printable(file)}: {printable(text)}")


@click.command()
@click.argument("file", type=named_file)
@_inputs_argument
@click.option(
    "--overwrite", is_flag=True,
    help="Replace arrays that have the same keys. Their attributes are removed.",
)  # fmt: skip
@input_options
@json_option
def add(file: str, inputs: tuple[str, ...], overwrite: bool, as_json: bool, **options: Any) -> None:
    """Add arrays to the archive FILE, in place.

    IN is an .npy file, an archive (.npz), the URL of one of these, a folder, or -
    for one .npy from a pipe. The key is KEY, or the file name without its suffix; if
    numpy.save wrote several arrays to one file, .0, .1 and so on follow it.
    Attributes of archives are kept, and metadata under names that FILE does not have, or with
    --overwrite all. If one array cannot be added, none is.

    Example: npzkit add model.npz more=bias.npy
    """
    with _named_inputs("add", inputs, options["allow_pickle"]) as (found, tell):
        local = local_path(file)
        if local is not None and not os.path.lexists(local):
            new = f"npzkit pack {as_word(file)} IN... makes a new one"
            raise Refusal(f"{quoted(file)} does not exist. Check the name; {new}.")
        report = npzkit.add(file, found, overwrite=overwrite, progress=tell, **options)
    notes = print_notes(report.notes)
    replaced = set(report.replaced)
    added = [key for key in report.keys if key not in replaced]
    texts = [f"added {some_of(added)}"] if added else []
    texts += [f"replaced {some_of(report.replaced)}"] if replaced else []
    text = "; ".join(texts) or "nothing to do"
    done = {"added": added, "replaced": list(report.replaced), "notes": notes}
    _tell(file, text, as_json=as_json, **done)


@contextlib.contextmanager
def _all_or_none() -> Iterator[None]:
    """Say of a key that is not found that the others stay too."""
    try:
        yield
    except MemberNotFoundError as error:
        error.what += ", and nothing was removed"
        raise


@click.command()
@click.argument("file", type=named_file)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_key)
@json_option
def rm(file: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Remove arrays from the archive FILE, in place.

    KEY may be a pattern such as 'ema/*', or a folder of keys. Values of nested data, such as
    a learning rate, and empty dicts are removed by their keys too. A tensor that is tied to
    a removed one keeps its array.

    Damaged arrays can be removed too, so that the others are a sound archive. If one
    KEY is not found, nothing is removed. The bytes stay in the file until more than
    half of it is unused, its first array is removed, or npzkit repack rewrites it: to
    get rid of secrets or pickles, repack. FILE may be the folder of a sharded archive.

    Example: npzkit rm model.npz bias
    """
    with _all_or_none(), _writer(file) as writer:
        listed = _keys_in(writer)
        arrays = set(listed)
        removed = keys_named(keys, [*listed, *_values_below(writer, "")], file)
        # Tied tensors come first: they need no copy of what goes too. The parts of an array go
        # with it.
        for key in sorted(removed, key=lambda key: (key in arrays, len(key))):
            if key not in arrays or key in writer:
                del writer[key]
        heirs = [key for key in _keys_in(writer) if key not in arrays]
    for key in heirs:
        say(f"{printable(key)} has the array now: it was tied to a key that was removed.")
    stays = ""
    if not as_json and local_path(file) is not None:
        is_folder = isinstance(writer, npzkit.ShardedWriter)
        with npzkit.open(file) as npz:
            if is_folder or npz.archive_info().dead_size:
                where = "shards" if is_folder else "file"
                stays = f"; to remove the bytes from the {where}: npzkit repack {as_word(file)}"
    _tell(file, f"removed {some_of(removed)}{stays}", as_json=as_json, removed=removed)


@click.command()
@click.argument("file", type=named_file)
@click.argument("old", shell_complete=complete_key)
@click.argument("new")
@json_option
def mv(file: str, old: str, new: str, as_json: bool) -> None:
    """Rename the array OLD of the archive FILE to NEW, in place.

    OLD may be a folder of keys, such as model of model/weights and model/bias.
    The array keeps its position, its attributes and its bytes. FILE may be the folder of a
    sharded archive.

    Example: npzkit mv model.npz weights layer/weights
    """
    from npzkit.conversion.npz import is_value

    with _writer(file) as writer:
        listed = _keys_in(writer)
        old = typed_key(old, listed)
        if old.endswith("/") and old not in writer:
            old, new = old.removesuffix("/"), new.removesuffix("/")
        pattern = f"{old}*" if old.endswith(".") else old
        found = [old] if old in writer else keys_named([pattern], listed, file)
        is_folder = all(key == old or key.startswith(f"{old}/") for key in found)
        has_values = isinstance(writer, npzkit.NpzWriter) and any(
            is_value(writer, key) for key in _values_below(writer, old)
        )
        if not is_folder or (found != [old] and has_values):
            what = "values of nested data too" if is_folder else format_count(len(found), "array")
            raise Refusal(
                f"{old!r} names {what}, and mv renames an array, or a folder of keys: "
                f"npzkit mv {as_word(file)} {as_word(printable(found[0]))} NEW. For several, in "
                f"Python: with npzkit.{type(writer).__name__}({file!r}, mode='a') as w, call "
                "w.rename(old, new) for each."
            )
        for key in sorted(found, key=len):
            # The parts of an array went with it.
            if key in writer or found == [old]:
                writer.rename(key, new + key.removeprefix(old))
    _tell(file, f"renamed {old} to {new}", as_json=as_json, renamed=[old, new])


# -- files of other formats ------------------------------------------------------


@click.command()
@click.argument("file", type=named_file)
@click.argument("output", type=named_file)
@click.argument("keys", nargs=-1, shell_complete=complete_key)
@compression_option(
    help="How arrays are written. By default they are stored, except that a .zarr has zarr's "
    "default compression, and from .npz to .npz each array keeps its own.",
)  # fmt: skip
@level_option
@click.option(
    "--zarr-format", type=click.Choice(["2", "3"]), default="3", show_default=True,
    help="The version of Zarr to write.",
)  # fmt: skip
@click.option(
    "--dtype", "given", multiple=True, metavar="KEY=DTYPE",
    help="What bytes of another program are, such as w=bfloat16. May be given several times.",
)  # fmt: skip
@click.option(
    "--allow-pickle", is_flag=True,
    help="Make plain arrays of an archive's Python objects. This runs code of FILE: for files that "
    "you trust. It changes nothing for files of torch.save.",
)  # fmt: skip
@encoding_option
@click.option("--skip", is_flag=True, help="Leave out arrays that OUTPUT cannot hold.")
@click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it exists.")
@json_option
def convert(
    file: str, output: str, keys: tuple[str, ...], zarr_format: str, given: tuple[str, ...],
    overwrite: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Convert FILE to OUTPUT, in the format that its name says.

    .npz, .safetensors, .h5, .zarr or .mat; npzkit extract writes .npy files. FILE
    may also be a .npy file, or one of torch.save (.pt, .pth, .bin or .ckpt), from
    which no code is run. Names, attributes and metadata are kept if OUTPUT can hold
    them. Only KEYS are converted, if there are some: keys, folders of keys, and
    patterns such as 'layer*/bias'.
    The command reports what is lost.

    Example: npzkit convert model.npz model.safetensors
    """
    if options["level"] is not None and options["compression"] not in ("deflated", "zstd"):
        raise click.UsageError("--level needs --compression deflated or zstd.")
    dtypes = dict(text.rpartition("=")[::2] for text in given)
    if "" in dtypes:
        raise click.UsageError("--dtype needs KEY=DTYPE.")
    if newest_step(file):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
    version: Any = int(zarr_format)
    # asyncio, which zarr uses, logs every task that an interrupt left undone.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # A shell's pattern may be several files.
    if os.path.isfile(output) and any(key.lower().endswith(".npz") for key in keys):
        raise click.UsageError(
            f"convert takes one FILE, and {quoted(output)} was taken for OUTPUT. To make one file "
            "of several: npzkit pack OUT FILES, with --join to join arrays that have the same key."
        )
    with refusing(), ProgressBar("convert") as tell:
        report = npzkit.convert(
            file, output, keys or None, zarr_format=version, dtypes=dtypes, overwrite=overwrite,
            progress=tell, **options,
        )  # fmt: skip
    left_out = [f"left out {printable(key)!r}: " + reason for key, reason in report.skipped.items()]
    notes = print_notes([*report.notes, *left_out])
    _print_written(output, report, **({"notes": notes} if as_json else {}))


@click.command()
@archive_argument
@click.argument("keys", nargs=-1, shell_complete=complete_key)
@click.option(
    "-o", "--output", "folder", default=".", show_default=True,
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
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option(
    "--no-verify", is_flag=True,
    help="Write damaged arrays too, as they are, if their headers and sizes are right. They are "
    "not named: npzkit verify names them.",
)  # fmt: skip
@click.option(
    "--max-size", metavar="SIZE",
    help="Write nothing if the arrays of FILE have more bytes than this, such as 10GB.",
)  # fmt: skip
@json_option
def extract(
    file: str, keys: tuple[str, ...], folder: str, kind: Any, delimiter: str, overwrite: bool,
    no_verify: bool, max_size: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Write the arrays of FILE, or KEYS of them, to files.

    KEYS may be patterns such as 'layer*/bias', and folders of keys.

    Slashes in a key become folders. No file is written outside the folder, and
    none is replaced without --overwrite. Members that are not arrays are written as
    they are, and so are arrays of Python objects, which are named. A damaged array is
    reported and skipped; the exit code is then 1. FILE may be - for the standard
    input. A pipe is copied to a temporary file first.

    Example: npzkit extract model.npz weights -o arrays
    """
    options: Any = {"format": kind, "delimiter": "\t" if delimiter == r"\t" else delimiter}
    options["verify"] = not no_verify
    if not folder:
        raise Refusal("--output is empty; the folder you are in is --output .")
    if folder.endswith((".csv", ".npy", ".npz")) and not os.path.exists(folder):
        raise Refusal(
            f"--output is a folder, and {quoted(folder)} seems to be a file. One array is written "
            "to a file by -o - > NEW.npy, or as a text table by --format csv -o - > NEW.csv."
        )
    with refusing(), opened(file, limits=_limits(max_size)) as npz, ProgressBar("extract") as tell:
        chosen = keys_named(keys, npz.files, file) or None
        if folder == PIPE:
            wanted = set(chosen or npz.files)
            if len(wanted) != 1:
                raise click.UsageError(f"-o - writes one array, and {len(wanted)} are wanted.")
            npzkit.extract(npz, binary_stdout(), wanted, progress=tell, **options)
            _tell_objects(npz, wanted)
            return 0
        report = npzkit.extract(
            npz, folder, chosen, skip=True, overwrite=overwrite, progress=tell, **options
        )
        _tell_objects(npz, report.files)
        left_out = _values_in(npz, keys) if keys else []
    notes = print_notes([*report.notes, *left_out])
    failed = {key: in_a_line(message_of(error)) for key, error in report.failed.items()}
    if as_json:
        print_json({"files": report.files, "failed": failed, "notes": notes})
    else:
        count = len(report.files) + len(failed)
        skipped = f"; {len(failed):,} of {format_count(count, 'array')} skipped" if failed else ""
        place = next(iter(report.files.values())) if count == 1 and report.files else folder
        click.echo(f"{printable(place)}: {format_count(len(report.files), 'file')}{skipped}")
    for text in failed.values():
        say(text)
    return 1 if failed else 0


def _limits(max_size: str | None) -> npzkit.Limits | None:
    """Return the limits that --max-size sets."""
    if max_size is None:
        return None
    from npzkit.datasets.sharding import parse_size

    return npzkit.Limits(total_size=parse_size(max_size, "--max-size"))


def _values_in(npz: npzkit.NpzFile, keys: Iterable[str]) -> list[str]:
    """Return notes of the values of nested data that KEYS name, which are not written."""
    from npzkit.conversion.arrays import without_arrays
    from npzkit.trees.restoring import KeySelection

    found = without_arrays(npz.metadata.get(TREE_KEY), KeySelection(keys).__contains__)
    return [f"{values}; not kept" for values in found]


def _tell_objects(npz: npzkit.NpzFile, keys: Iterable[str]) -> None:
    """Say which arrays were written as pickles."""
    dtypes = {key: npz.info(key).dtype for key in keys}
    objects = [printable(key) for key, dtype in dtypes.items() if dtype and dtype.hasobject]
    if objects:
        say(
            f"written as pickles, because they hold Python objects: {some_of(objects)}. Load them "
            "only if you trust FILE: unpickling can run code."
        )
