"""What the reading commands share: an archive that is opened, and what is told of a member.

Knows where FILE may come from, and how a key of it is completed at a prompt.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click
import numpy as np

import npzkit
from npzkit.cli.output import printable

__all__ = [
    "archive_argument",
    "as_text",
    "complete_key",
    "dtype_text",
    "info_dict",
    "key_argument",
    "opened",
    "pickle_option",
    "shape_text",
]

Function = TypeVar("Function", bound=Callable[..., Any])

_COMPLETED_COUNT = 1000
"""Keys offered at a prompt at most."""
_DTYPE_LENGTH = 40
"""Characters of a dtype in a table."""


archive_argument = click.argument("file", type=click.Path(allow_dash=True))

pickle_option = click.option(
    "--allow-pickle", is_flag=True, help="Unpickle Python objects, which runs code from FILE."
)


@contextlib.contextmanager
def opened(file: str, *, allow_pickle: bool = False) -> Iterator[npzkit.NpzFile]:
    """Open FILE, or for ``-`` the standard input; what a pipe brings is kept on disk."""
    if file != "-" and not _is_pipe(file):
        with npzkit.open(file, allow_pickle=allow_pickle) as npz:
            yield npz
        return
    import shutil
    import tempfile

    with contextlib.ExitStack() as stack:
        stream: Any = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))
        if not stream.seekable():
            kept = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(stream, kept, 1 << 20)
            kept.seek(0)
            stream = kept
        yield stack.enter_context(npzkit.open(stream, allow_pickle=allow_pickle))


def _is_pipe(file: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(file).st_mode)
    except OSError:
        return False


def complete_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys of FILE that begin so."""
    file = context.params.get("file")
    if not isinstance(file, str) or file == "-":
        return []
    try:
        with warnings.catch_warnings(action="ignore"), npzkit.open(file) as npz:
            found = [key for key in npz if key.startswith(incomplete) and key.isprintable()]
    except (OSError, npzkit.NpzkitError):
        return []
    return found[:_COMPLETED_COUNT]


def key_argument(**options: Any) -> Callable[[Function], Function]:
    """Return the argument KEY, completed at a prompt by the keys of FILE."""
    return click.argument("key", shell_complete=complete_key, **options)


@functools.lru_cache(maxsize=1024)
def dtype_text(dtype: np.dtype[Any] | None, length: int = _DTYPE_LENGTH) -> str:
    """Show a dtype, cut to a length."""
    if dtype is None:
        return "-"
    try:
        text = printable(str(dtype))
    except RecursionError:
        return "structure"
    return text if len(text) <= length else text[: length - 3] + "..."


def shape_text(shape: tuple[int, ...] | None) -> str:
    """Show a shape as Python does."""
    return "-" if shape is None else str(shape)


def as_text(value: Any) -> str:
    """Show metadata, or an attribute's value, as JSON in a line."""
    return printable(json.dumps(value, ensure_ascii=False, default=str))


def info_dict(info: npzkit.ArrayInfo) -> dict[str, Any]:
    """Return what is known of a member as what JSON can express."""
    found: Mapping[str, Any] = info._asdict()
    return {
        **found,
        "dtype": None if info.dtype is None else dtype_text(info.dtype, sys.maxsize),
        "attrs": dict(info.attrs),
        "mappable": info.why_not_mappable is None,
    }
