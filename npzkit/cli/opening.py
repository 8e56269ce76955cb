"""What the reading commands share: opening an archive, and showing what is known of a member.

Owns where FILE may come from, and how a key of it is completed at a prompt.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click
import numpy as np
from click.shell_completion import CompletionItem

import npzkit
from npzkit.cli.output import printable

__all__ = [
    "COMPLETE_VARIABLE",
    "NESTED_TEXT",
    "archive_argument",
    "as_text",
    "complete_key",
    "dtype_text",
    "info_dict",
    "inputs_argument",
    "key_argument",
    "named_file",
    "naming_in_warnings",
    "opened",
    "pickle_option",
    "seekable_input",
    "shape_text",
]

Function = TypeVar("Function", bound=Callable[..., Any])

COMPLETE_VARIABLE = "_NPZKIT_COMPLETE"
"""By which a shell's script calls npzkit, and click sees that it is the script."""
_COMPLETED_COUNT = 1000
"""Keys offered at a prompt at most."""
_NEEDS_QUOTES = re.compile(r"[^\w@%+=:,./-]")
"""In a word for bash, which puts what it is offered into the line as it is."""
_DTYPE_LENGTH = 40
"""Characters of a dtype in a table."""


class _NamedFile(click.Path):
    """A path, of which no more than its name is looked at; ``-`` is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-" and not os.path.lexists(value):
            self.fail("it needs a file with a name, not the standard streams.", param, ctx)
        return super().convert(value, param, ctx)


# readable=False: the system says better than click what keeps a file from being read.
named_file = _NamedFile(readable=False)
archive_argument = click.argument("file", type=click.Path(readable=False, allow_dash=True))

pickle_option = click.option(
    "--allow-pickle", is_flag=True, help="Unpickle Python objects, which runs code from FILE."
)


@contextlib.contextmanager
def opened(file: str, *, allow_pickle: bool = False) -> Iterator[npzkit.NpzFile]:
    """Open FILE, or for ``-`` the standard input; warnings name it."""
    with (
        seekable_input(file) as source,
        naming_in_warnings(printable(file)),
        npzkit.open(source, allow_pickle=allow_pickle) as npz,
    ):
        yield npz


@contextlib.contextmanager
def naming_in_warnings(name: str, before: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Begin each warning with the name of what it is about; call `before` before it is shown."""
    with warnings.catch_warnings():
        show: Any = warnings.showwarning

        def show_named(message: Warning | str, *args: Any, **options: Any) -> None:
            before()
            show(f"{name}: {message}", *args, **options)

        warnings.showwarning = show_named
        yield


@contextlib.contextmanager
def seekable_input(file: str) -> Iterator[Any]:
    """Yield FILE as it is, or what ``-`` or a pipe brings, which is kept on disk."""
    if file != "-" and not _is_pipe(file):
        yield file
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
        yield stream


def _is_pipe(file: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(file).st_mode)
    except OSError:
        return False


def complete_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys of FILE that begin so, those alone that run nothing where they are put."""
    # Several files are left unparsed while an option is completed.
    file = context.params.get("file") or next(iter(context.args), None)
    if not isinstance(file, str) or file == "-":
        return []
    try:
        # The shell has not looked at what was typed.
        path = os.path.expanduser(file)
        with warnings.catch_warnings(action="ignore"), npzkit.open(path) as npz:
            found = [key for key in npz if key.startswith(incomplete) and key.isprintable()]
    except (OSError, npzkit.NpzkitError):
        return []
    if os.environ.get(COMPLETE_VARIABLE, "").startswith("bash"):
        # zsh and fish quote by themselves.
        found = [key for key in found if not _NEEDS_QUOTES.search(key)]
    return found[:_COMPLETED_COUNT]


def _complete_file(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Leave it to the shell, which knows its files."""
    return [CompletionItem(incomplete, type="file")]


inputs_argument = click.argument(
    "inputs", metavar="[KEY=]IN...", nargs=-1, required=True, shell_complete=_complete_file
)


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


NESTED_TEXT = "npzkit.load_tree gives back what was saved"


def info_dict(info: npzkit.ArrayInfo) -> dict[str, Any]:
    """Return what is known of a member as what JSON can express."""
    found: Mapping[str, Any] = info._asdict()
    return {
        **found,
        "dtype": None if info.dtype is None else dtype_text(info.dtype, sys.maxsize),
        "attrs": dict(info.attrs),
        "mappable": info.why_not_mappable is None,
    }
