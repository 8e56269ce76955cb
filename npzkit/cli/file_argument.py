"""What commands share of their arguments: which archives FILEs are, and opening one.

Owns where FILE may come from, and how its keys are completed at a prompt.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import click

import npzkit
from npzkit.cli.messages import Refusal, as_word, naming_file, say
from npzkit.cli.output import print_json
from npzkit.errors import at_prompt, format_count, format_size, printable, shown_url, some_of
from npzkit.files.urls import local_path

_COMPLETE_VARIABLE = "_NPZKIT_COMPLETE"
"""The environment variable by which click's completion script calls npzkit."""
_COMPLETED_COUNT = 1000
"""Most keys that are offered at a prompt."""
_NEEDS_QUOTES = re.compile(r"[^\w@%+=:,./-]")
"""Characters that are unsafe for bash, which inserts completions without quotes."""

compression_option = functools.partial(
    click.option, "-c", "--compression", type=click.Choice(["stored", "deflated", "zstd"])
)
level_option = click.option(
    "--level", type=click.IntRange(-7, 19),
    help="Of compressed arrays: a low one is fast, a high one small. deflated: 0 to 9; zstd: -7 to "
    "19, by default 1.",
)  # fmt: skip


class _NamedFile(click.Path):
    """A path or URL, which is not checked here. A URL of a local file becomes its path."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-" and not (self.allow_dash or os.path.lexists(value)):
            self.fail("this command needs a file, not a standard stream.", param, ctx)
        return super().convert(local_path(value) or value, param, ctx)


# readable=False: the system's message on an unreadable file is better than click's.
named_file = _NamedFile(readable=False)
file_or_pipe = _NamedFile(readable=False, allow_dash=True)
archive_argument = click.argument("file", type=file_or_pipe)
_files = functools.partial(click.argument, "files", metavar="FILE...", nargs=-1, required=True)
files_argument = _files(type=named_file)
"""Files with names, not the standard streams."""
archives_argument = _files(type=file_or_pipe)

recursive_option = click.option(
    "-r", "--recursive", is_flag=True, help="Search folders at any depth, not only at the first."
)
encoding_option = click.option(
    "--encoding", default="ASCII", show_default=True,
    help="Of text in Python objects that Python 2 wrote, such as latin1, or bytes.",
)  # fmt: skip


class ArchiveFile(NamedTuple):
    """An archive to process.

    Attributes
    ----------
    path : str
        The path or URL, or "-" for the standard input.
    name : str
        Its own name; below a folder that was given, its path in that folder.
    refusal : str
        Why this is none.
    is_found : bool
        Whether it was found in a folder, not named.
    """

    path: str
    name: str
    refusal: str = ""
    is_found: bool = False

    @property
    def size(self) -> int:
        """The size of the file in bytes; 0 if that is not known here."""
        with contextlib.suppress(OSError):
            return file_size(self.path) or 0
        return 0


def find_archives(
    given: Sequence[str], *, recursive: bool, with_npy: bool = False, may_lack: bool = False,
    as_json: bool = False,
) -> list[ArchiveFile]:  # fmt: skip
    """Return the archives that FILEs are: files, and those in folders, there also .npy files.

    Raises
    ------
    Refusal
        The only FILE is a folder without archives, and not `may_lack`; with `as_json`, an empty
        list was printed. One of several is in the result, with its refusal.
    """
    from npzkit.datasets import paths
    from npzkit.datasets.opening import is_zarr

    found: list[ArchiveFile] = []
    for path in given:
        # Those at URLs are not opened as archives.
        is_more = with_npy and local_path(path) is not None
        suffixes = (".npz", ".npy") if is_more else (".npz",)
        inside = ["-"]
        if path != "-":
            inside = paths.find_archives(path, recursive=recursive, suffixes=suffixes)
            # Opening one says how to convert it.
            inside = inside or [path] * is_zarr(path)
        if not (inside or may_lack):
            hint = "" if recursive else " Pass -r to search the folders in it."
            what = f"has no archives: no file in it ends with {' or '.join(suffixes)}."
            told = f"{shown_url(path)!r} {what}{hint}"
            if len(given) == 1:
                if as_json:
                    print_json([])
                raise Refusal(told)
            found.append(ArchiveFile(path, path, told))
        for archive in inside:
            name = os.path.basename(shown_url(path).partition("?")[0])
            inner = archive[len(path) :].lstrip("/" + os.sep)
            found.append(ArchiveFile(archive, inner or name, is_found=bool(inner)))
    # In folders, a file with several names counts once: if none was given, by one that is no link.
    chosen: dict[str, ArchiveFile] = {}
    for one in sorted(found, key=lambda one: (one.is_found, os.path.islink(one.path))):
        chosen.setdefault(os.path.realpath(one.path), one)
    kept = set(map(id, chosen.values()))
    return [one for one in found if not one.is_found or id(one) in kept]


def tell_abandoned(given: Sequence[str], *, recursive: bool) -> None:
    """Name the temporary files that killed saves have left in folders."""
    from npzkit.datasets.opening import holds_index
    from npzkit.datasets.shard_names import attempt_of
    from npzkit.stores.objects import abandoned_files

    for folder in filter(os.path.isdir, given):
        for path, size in abandoned_files(folder, recursive=recursive):
            remover = "The next save to the same path"
            place = os.path.dirname(path)
            if holds_index(place) or any(map(attempt_of, os.listdir(place))):
                remover = "The first commit after 24 hours"
            say(
                f"warning: {printable(path)}: {format_size(size)} of a save that was killed. "
                "To save its complete arrays, if any: "
                f"npzkit repair {as_word(printable(path))} -o OTHER. "
                f"{remover} removes it; you can also delete it."
            )


def tell_passed_over(given: Sequence[str], found: Iterable[str], *, recursive: bool) -> None:
    """Say which other files, and how many folders, there are in folders, which were not looked at.

    Of what was `found`, folders are sharded archives, or listed as one row.
    """
    from npzkit.members.keys import ZARR_NAMES

    known = set(map(os.path.normpath, found))
    files, folders, links = list[str](), 0, 0
    for top in filter(os.path.isdir, given):
        for place, inner, names in os.walk(top):
            is_zarr = not {*ZARR_NAMES}.isdisjoint(names)
            if is_zarr or os.path.normpath(place) in known:
                files += [place] if is_zarr and place != top else []
                inner.clear()
            elif recursive or place == top:
                paths = {name: os.path.join(place, name) for name in inner if name[0] != "."}
                inner[:] = [one for one in paths if os.path.normpath(paths[one]) not in known]
                links += sum(os.path.islink(paths[name]) for name in inner)
                others = [name for name in names if not name.lower().endswith((".npz", ".npy"))]
                files += [os.path.join(place, name) for name in others if name[0] != "."]
            else:
                folders += bool(inner or names)
                inner.clear()
    named = some_of(sorted(map(os.path.normpath, files)), printable)
    told = [f"{format_count(len(files), 'other file')} ({named})"] if files else []
    told += [format_count(links, "linked folder")] if links else []
    if folders:
        into = "it" if folders == 1 else "them"
        told.append(f"{format_count(folders, 'folder')} (-r looks into {into})")
    if told:
        say(f"not looked at: {'; '.join(told)}")


def file_size(path: str) -> int | None:
    """Return the bytes of a file; None for a folder or a URL."""
    found = local_path(path)
    return None if found is None or os.path.isdir(found) else os.path.getsize(found)


@contextlib.contextmanager
def opened(file: str, **options: Any) -> Iterator[npzkit.NpzFile]:
    """Open FILE, or the standard input for ``-``: an archive, or a .npy file as one.

    Warnings begin with its name.
    """
    from npzkit.datasets.opening import open_any

    with (
        seekable_input(file) as source,
        naming_in_warnings(printable(shown_url(file))),
        open_any(source, **options) as npz,
    ):
        yield npz


@contextlib.contextmanager
def naming_in_warnings(name: str, before: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Show warnings with `name` in front, and call `before` before each."""
    with warnings.catch_warnings():
        show: Any = warnings.showwarning

        def show_named(message: Warning | str, *args: Any, **options: Any) -> None:
            before()
            show(f"{name}: {naming_file(at_prompt(message), name)}", *args, **options)

        warnings.showwarning = show_named
        yield


@contextlib.contextmanager
def seekable_input(file: str) -> Iterator[Any]:
    """Yield FILE itself, or for ``-`` or a pipe a temporary file with its contents."""
    with _input(file) as source:
        if isinstance(source, str) or source.seekable():
            yield source
            return
        import tempfile

        with tempfile.TemporaryFile() as kept:
            shutil.copyfileobj(source, kept, 1 << 20)
            kept.seek(0)
            yield kept


def _input(file: str) -> contextlib.AbstractContextManager[Any]:
    if file == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    is_pipe = os.path.exists(file) and stat.S_ISFIFO(os.stat(file).st_mode)
    return open(file, "rb") if is_pipe else contextlib.nullcontext(file)


def keys_named(keys: Iterable[str], listed: Iterable[str], path: str | None) -> list[str]:
    """Return the keys that KEYS name; see `npzkit.trees.restoring.named_keys`."""
    from npzkit.trees.restoring import named_keys

    listed = list(listed)
    return named_keys([typed_key(key, listed) for key in keys], listed, path)


def keys_matching(patterns: Sequence[str], listed: Sequence[str], unmatched: set[str]) -> list[str]:
    """Return the keys of one of several files that --key names; what names one is discarded."""
    from npzkit.trees.restoring import KeySelection

    wanted = KeySelection(patterns)
    found = wanted.keys(listed)
    unmatched -= wanted._used
    return found


def tell_unmatched(patterns: Sequence[str], unmatched: Collection[str]) -> int:
    """Say what of --key names no array of any file; return the exit code."""
    left = [pattern for pattern in patterns if pattern in unmatched]
    if left:
        say(f"no array of these files matches {', '.join(map(repr, left))}.")
    return 2 if left else 0


def typed_key(key: str, listed: Sequence[str]) -> str:
    r"""Return the key that was typed as commands print it, with escapes such as ``\n``."""
    if "\\" not in key or key in listed:
        return key
    return next((one for one in listed if printable(one) == key), key)


def complete_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys of FILE that begin with `incomplete` and are safe to insert."""
    # While an option is completed, click leaves several files unparsed.
    # Of diff, it is the first one.
    file = context.params.get("file") or context.params.get("a") or next(iter(context.args), None)
    if not isinstance(file, str) or file == "-":
        return []
    from npzkit.datasets.opening import open_any

    found = []
    # The shell has not expanded the path yet.
    with (
        contextlib.suppress(OSError, npzkit.NpzkitError),
        warnings.catch_warnings(action="ignore"),
        open_any(os.path.expanduser(file)) as npz,
    ):
        found = [key for key in npz if key.startswith(incomplete) and key.isprintable()]
    if os.environ.get(_COMPLETE_VARIABLE, "").startswith("bash"):
        # zsh and fish add quotes themselves.
        found = [key for key in found if not _NEEDS_QUOTES.search(key)]
    return found[:_COMPLETED_COUNT]


key_argument = click.argument("key", required=False, shell_complete=complete_key)


def keys_option(verb: str, example: str = "layer*/bias") -> Callable[[Any], Any]:
    """Add the option -k, whose help begins with a verb."""
    text = f"{verb} only this array, a folder of keys, or what matches, such as '{example}'."
    return click.option(
        "-k", "--key", "keys", multiple=True, metavar="KEY", shell_complete=complete_key, help=text
    )
