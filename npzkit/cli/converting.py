"""The command that converts archives from and to other formats.

Owns which format a path means, and that a file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

import npzkit
from npzkit.cli.opening import named_file
from npzkit.cli.output import (
    format_count,
    format_size,
    in_a_line,
    json_option,
    print_json,
    printable,
    progress,
)
from npzkit.cli.packing import check_level
from npzkit.conversion import npy_folder
from npzkit.conversion.arrays import Array, Contents, Options, Say, why_nested
from npzkit.conversion.targets import Refusal, check_absent, replacing
from npzkit.errors import NpzkitError
from npzkit.files.progress import Meter, Report
from npzkit.members.keys import check_key

__all__ = ["convert"]


class _Format(NamedTuple):
    """A format, and what it needs.

    Attributes
    ----------
    module : str
        Within `npzkit.conversion`.
    extra : str
        npzkit's extra that installs the library; empty where none is needed.
    library : str
    """

    module: str
    extra: str = ""
    library: str = ""


_NPZ, _FOLDER, _ZARR = _Format("npz"), _Format("npy_folder"), _Format("zarr_store", "zarr", "zarr")
_SUFFIXES = {
    ".npz": _NPZ,
    ".safetensors": _Format("safetensors_file", "safetensors", "safetensors"),
    ".h5": _Format("hdf5", "h5", "h5py"),
    ".hdf5": _Format("hdf5", "h5", "h5py"),
    ".zarr": _ZARR,
    ".mat": _Format("matlab", "mat", "scipy"),
}
_STORE_FILES = ("zarr.json", ".zgroup", ".zarray")
"""One of them is in the folder of a Zarr store."""


@click.command()
@click.argument("src", type=named_file)
@click.argument("dst", type=named_file)
@click.option(
    "-c", "--compression", type=click.Choice(["stored", "deflated"]),
    help="Of DST. By default arrays are stored; those of .zarr are compressed as zarr does "
    "by default, and from .npz to .npz each keeps its own.",
)  # fmt: skip
@click.option("--level", type=click.IntRange(0, 9), help="For what is deflated.")
@click.option(
    "--zarr-format", type=click.Choice(["2", "3"]), default="3", show_default=True,
    help="The version of Zarr that is written.",
)  # fmt: skip
@click.option("--skip", is_flag=True, help="Leave out arrays that DST has no place for.")
@click.option("--force", is_flag=True, help="Replace what is at DST.")
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
    has no suffix or ends in a slash. Names, attributes and metadata are kept
    where DST has a place for them; what is lost is reported.

    Example: npzkit convert model.npz model.safetensors
    """
    check_level(compression or "stored", level)
    notes: list[str] = []
    told: set[str] = set()

    def say(text: str) -> None:
        if text not in told:
            told.add(text)
            notes.append(text)
            click.echo(f"npzkit: {text}", err=True)

    source, target = _source_format(src), _target_format(dst)
    _check_target(dst, target, force=force)
    if source == target == _NPZ:
        kept: Any = compression
        with progress("convert") as tell:
            npzkit.repack(src, dst, kept, level=level, progress=tell)
        with npzkit.open(dst) as npz:
            keys = npz.files
    else:
        options = Options(compression, level, int(zarr_format))
        with progress("convert") as tell, _explaining(src, dst):
            keys = _convert(src, source, dst, target, options, _Telling(say, tell, skip))
    if as_json:
        print_json({"output": dst, "keys": keys, "notes": notes})
    else:
        size = "" if os.path.isdir(dst) else f", {format_size(os.path.getsize(dst))}"
        click.echo(f"{printable(dst)}: {format_count(len(keys), 'array')}{size}")


def _source_format(path: str) -> _Format:
    os.stat(path)
    if os.path.isdir(path):
        return _ZARR if _is_store(path) else _FOLDER
    found = _SUFFIXES.get(os.path.splitext(path)[1].lower())
    if found is None or found is _ZARR:
        raise Refusal(
            f"{path!r} is no file of {' '.join(_SUFFIXES)}, and no folder. "
            ".npy files and tables: npzkit pack."
        )
    return found


def _is_store(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, name)) for name in _STORE_FILES)


def _target_format(path: str) -> _Format:
    if not path:
        raise Refusal("DST is empty; it names a file or a folder.")
    name = path.rstrip("/" + os.sep)
    is_folder = name != path
    suffix = os.path.splitext(name)[1].lower()
    found = _SUFFIXES.get(suffix, _FOLDER)
    if found not in (_ZARR, _FOLDER) and is_folder:
        raise Refusal(f"{path!r} would be a file, and ends in a slash.")
    if found is _FOLDER and suffix and not is_folder:
        raise Refusal(
            f"{path!r} ends in none of {' '.join(_SUFFIXES)}. A folder of .npy files ends in /."
        )
    return found


def _check_target(path: str, target: _Format, *, force: bool) -> None:
    """Raise where something is at `path` that is not to be replaced."""
    if not os.path.isdir(path):
        check_absent(path, force=force)
    elif target not in (_FOLDER, _ZARR):
        raise Refusal(f"{path!r} is a folder, and a file is to be there.")
    elif os.listdir(path):
        check_absent(path, force=force)
        if not (_is_store(path) if target is _ZARR else npy_folder.can_replace(path)):
            raise Refusal(
                f"{path!r} holds other files than arrays, and is not replaced. Remove it, or "
                "name another folder."
            )


def _module(found: _Format) -> Any:
    """Import a format's module, or say what to install."""
    try:
        return importlib.import_module(f"npzkit.conversion.{found.module}")
    except ImportError as error:
        if not found.library or (error.name or "").split(".")[0] == "npzkit":
            raise
        raise click.ClickException(
            f"this format needs {found.library}; "
            f"install it: python -m pip install 'npzkit[{found.extra}]'"
        ) from error


class _Telling(NamedTuple):
    """How the user hears of it."""

    say: Say
    report: Report
    skip: bool


def _convert(
    src: str, source: _Format, dst: str, target: _Format, options: Options, telling: _Telling
) -> list[str]:
    """Write a file of what is in another, and return its keys."""
    reader, writer = _module(source), _module(target)
    with reader.read(src, telling.say) as contents:
        arrays = list(_fitting(contents.arrays, writer, telling))
        meter = Meter(telling.report, sum(array.work for array in arrays))
        counted = [array.watched(meter.add) for array in arrays]
        with replacing(dst) as temporary:
            writer.write(temporary, Contents(contents.metadata, counted), options, telling.say)
    return [array.key for array in arrays]


def _fitting(arrays: list[Array], writer: Any, telling: _Telling) -> Iterator[Array]:
    """Yield the arrays that there is a place for; others are refused, or left out."""
    keys = {array.key: array for array in arrays}
    for array in arrays:
        reason = array.problem or _why_unfit(array, writer, keys)
        if not reason:
            yield array
        elif telling.skip:
            telling.say(f"left out {printable(array.key)!r}: {reason}")
        else:
            raise Refusal(
                f"{printable(array.key)!r} cannot be kept: {reason}. Leave it out with --skip."
            )


def _why_unfit(array: Array, writer: Any, keys: dict[str, Array]) -> str | None:
    try:
        check_key(array.key)
    except NpzkitError as error:
        return error.what
    if getattr(writer, "NESTED", False) and (reason := why_nested(keys, array.key)):
        return reason
    found: str | None = writer.why_unfit(array)
    return found


@contextlib.contextmanager
def _explaining(src: str, dst: str) -> Iterator[None]:
    """Make one error of whatever a library raises for a file that is damaged."""
    try:
        yield
    except (click.ClickException, NpzkitError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and (error.filename is not None or _is_of_system(error)):
            raise
        text = in_a_line(str(error))[:200] or type(error).__name__
        raise click.ClickException(f"{src!r} cannot be converted to {dst!r}: {text}") from error


def _is_of_system(error: OSError) -> bool:
    """Whether it is the system's own word, such as that of a full disk, and not a library's."""
    return error.errno is not None and error.strerror == os.strerror(error.errno)
