"""Functions that the reading commands share: opening FILE, and showing a member.

Owns where FILE may come from, and how its keys are completed at a prompt.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

import npzkit
from npzkit.errors import printable, shown_url

if TYPE_CHECKING:
    import numpy as np
    from click.shell_completion import CompletionItem

    Listing = npzkit.NpzFile | npzkit.StreamListing
    """An archive whose headers can be read."""

Function = TypeVar("Function", bound=Callable[..., Any])

COMPLETE_VARIABLE = "_NPZKIT_COMPLETE"
"""The environment variable by which a completion script calls npzkit."""
_COMPLETED_COUNT = 1000
"""Most keys that are offered at a prompt."""
_NEEDS_QUOTES = re.compile(r"[^\w@%+=:,./-]")
"""Characters that are unsafe for bash, which inserts completions without quotes."""
_NOTE = "npzkit.tree"
"""The metadata that says how nested data was saved."""
_DTYPE_LENGTH = 40
"""Characters of a dtype in a table."""


class _NamedFile(click.Path):
    """A path that is not checked here, except that ``-`` is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-" and not os.path.lexists(value):
            self.fail("this command needs a file, not a standard stream.", param, ctx)
        return super().convert(value, param, ctx)


# readable=False: the system's message on an unreadable file is better than click's.
named_file = _NamedFile(readable=False)
_file_or_pipe = click.Path(readable=False, allow_dash=True)
archive_argument = click.argument("file", type=_file_or_pipe)
archives_argument = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=_file_or_pipe
)

pickle_option = click.option(
    "--allow-pickle", is_flag=True, help="Unpickle Python objects, which can run code from FILE."
)


def file_size(path: str) -> int | None:
    """Return the bytes of a file; None for a folder or a URL."""
    found = npzkit.local_path(path)
    return None if found is None or os.path.isdir(found) else os.path.getsize(found)


@contextlib.contextmanager
def opened(file: str, *, allow_pickle: bool = False) -> Iterator[npzkit.NpzFile]:
    """Open FILE, or the standard input for ``-``. Warnings begin with its name."""
    with (
        seekable_input(file) as source,
        naming_in_warnings(printable(shown_url(file))),
        npzkit.open(source, allow_pickle=allow_pickle) as npz,
    ):
        yield npz


@contextlib.contextmanager
def listed(file: str) -> Iterator[Listing]:
    """Open FILE for what is known without data. A pipe is read once, and not kept."""
    with forward_input(file) as source, naming_in_warnings(printable(shown_url(file))):
        if _cannot_seek(source):
            yield npzkit.StreamListing(source)
        else:
            with npzkit.open(source) as npz:
                yield npz


@contextlib.contextmanager
def naming_in_warnings(name: str, before: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Show warnings with `name` in front, and call `before` before each."""
    with warnings.catch_warnings():
        show: Any = warnings.showwarning

        def show_named(message: Warning | str, *args: Any, **options: Any) -> None:
            before()
            show(f"{name}: {message}", *args, **options)

        warnings.showwarning = show_named
        yield


def seekable_input(file: str) -> contextlib.AbstractContextManager[Any]:
    """Yield FILE itself, or for ``-`` or a pipe a temporary file with its contents."""
    return _copied_if(file, _cannot_seek)


def forward_input(file: str) -> contextlib.AbstractContextManager[Any]:
    """Yield FILE itself, or for ``-`` or a pipe a stream, which may not be able to seek.

    A pipe that cannot be followed, as that of np.savez, is copied to a temporary file.
    """
    return _copied_if(file, lambda source: _cannot_seek(source) and not npzkit.can_stream(source))


@contextlib.contextmanager
def _copied_if(file: str, is_unfit: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield FILE itself, or a temporary file with its contents."""
    with _input(file) as source:
        if not is_unfit(source):
            yield source
            return
        with _copied(source) as kept:
            yield kept


@contextlib.contextmanager
def _input(file: str) -> Iterator[Any]:
    if file == "-":
        yield sys.stdin.buffer
    elif _is_pipe(file):
        with open(file, "rb") as stream:
            yield stream
    else:
        yield file


def _cannot_seek(source: Any) -> bool:
    """Return whether this is a pipe, and not a path or a file."""
    return not isinstance(source, str) and not source.seekable()


@contextlib.contextmanager
def _copied(stream: Any) -> Iterator[Any]:
    """Yield a temporary file with the contents of a stream."""
    import shutil
    import tempfile

    with tempfile.TemporaryFile() as kept:
        shutil.copyfileobj(stream, kept, 1 << 20)
        kept.seek(0)
        yield kept


def _is_pipe(file: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(file).st_mode)
    except OSError:
        return False


def complete_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys of FILE that begin with `incomplete` and are safe to insert."""
    # While an option is completed, click leaves several files unparsed.
    file = context.params.get("file") or next(iter(context.args), None)
    if not isinstance(file, str) or file == "-":
        return []
    try:
        # The shell has not expanded the path yet.
        path = os.path.expanduser(file)
        with warnings.catch_warnings(action="ignore"), npzkit.open(path) as npz:
            found = [key for key in npz if key.startswith(incomplete) and key.isprintable()]
    except (OSError, npzkit.NpzkitError):
        return []
    if os.environ.get(COMPLETE_VARIABLE, "").startswith("bash"):
        # zsh and fish add quotes themselves.
        found = [key for key in found if not _NEEDS_QUOTES.search(key)]
    return found[:_COMPLETED_COUNT]


def _complete_file(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete file names."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


inputs_argument = click.argument(
    "inputs", metavar="[KEY=]IN...", nargs=-1, required=True, shell_complete=_complete_file
)


def key_argument(**options: Any) -> Callable[[Function], Function]:
    """Return the argument KEY, which is completed with the keys of FILE."""
    return click.argument("key", shell_complete=complete_key, **options)


@functools.lru_cache(maxsize=1024)
def dtype_text(dtype: np.dtype[Any] | None, length: int = _DTYPE_LENGTH) -> str:
    """Return a dtype as text, cut to a length."""
    if dtype is None:
        return "-"
    try:
        text = printable(str(dtype))
    except RecursionError:
        return "structure"
    return text if len(text) <= length else text[: length - 3] + "..."


def shape_text(shape: tuple[int, ...] | None) -> str:
    """Return a shape as Python prints it."""
    return "-" if shape is None else str(shape)


def as_text(value: Any) -> str:
    """Return metadata or an attribute's value as one line of JSON."""
    import json

    return printable(json.dumps(value, ensure_ascii=False, default=str))


NESTED_TEXT = "npzkit.load_tree returns the data as it was saved"


def without_note(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return metadata without npzkit's note about nested data, and whether it was there."""
    own = {name: value for name, value in metadata.items() if name != _NOTE}
    return own, len(own) < len(metadata)


def info_dict(info: npzkit.ArrayInfo) -> dict[str, Any]:
    """Return the description of a member as a dict that JSON can represent."""
    found: Mapping[str, Any] = info._asdict()
    return {
        **found,
        "dtype": None if info.dtype is None else dtype_text(info.dtype, sys.maxsize),
        "attrs": dict(info.attrs),
        "mappable": info.why_not_mappable is None,
    }
