"""Commands on many archives: files, and archives in folders.

Owns which files are processed and in which order, where their copies go, and how
a command continues after a file that fails. Knows nothing about the work itself.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import click

import npzkit
from npzkit.cli.messages import Refusal, error_text, raise_final, refusing, say
from npzkit.cli.opening import named_file, naming_in_warnings
from npzkit.cli.output import Report, Telling, print_json, progress
from npzkit.errors import NpzkitError, UnsupportedError, format_count, printable, shown_url

SUFFIX = ".npz"
"""The suffix of archives in folders."""
_INDEX_NAME, _SHARD_PREFIX = "index.json", "shard-"
"""What the folder of a sharded archive has."""

files_argument = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=named_file
)
"""The archives that a command changes: files with names, not the standard streams."""


class Archive(NamedTuple):
    """A file to process.

    Attributes
    ----------
    path : str
        The path, or "-" for the standard input.
    name : str
        The path of its copy inside an output folder.
    error : Exception or None
        The error in listing a folder, instead of a file.
    """

    path: str
    name: str
    error: Exception | None = None

    @property
    def size(self) -> int:
        """The size of the file in bytes; 0 if it does not exist."""
        try:
            return os.path.getsize(self.path)
        except OSError:
            return 0


class Outcome(NamedTuple):
    """The result for one archive.

    Attributes
    ----------
    document : mapping of str to object
        The result as JSON.
    text : str
        The result as text. If it is empty, nothing is printed.
    state : str
        One or two words that the summary counts, such as "sound".
    code : int
        The exit code.
    """

    document: dict[str, Any]
    text: str
    state: str
    code: int = 0


def folder_options(command: Any) -> Any:
    """Add the options of commands on many archives."""
    command = click.option(
        "-q", "--quiet", is_flag=True, help="Print problems only, and nothing if there are none."
    )(command)
    return click.option(
        "-r", "--recursive", is_flag=True, help="Process the .npz files in folders, at any depth."
    )(command)


def find_archives(
    given: Sequence[str], *, recursive: bool, output: str | None = None, takes_sharded: bool = False
) -> list[Archive]:
    """Return the given files, and the archives in the given folders.

    A given file may have any name. In folders, files that end with .npz are
    found, sorted by name and without duplicates. Links to files are followed,
    and links to folders are not. The folder `output` is skipped, so that earlier
    results are not read. A sharded archive is one archive. It has an error unless
    `takes_sharded` is true: a changed shard would not fit its index any more.

    Raises
    ------
    Refusal
        A folder was given without `recursive`, or has no archives.
    """
    found: list[Archive] = []
    seen: set[str] = set()
    for path in given:
        name = os.path.basename(shown_url(path).partition("?")[0])
        if path == "-" or not os.path.isdir(path):
            inside = [Archive(path, name)]
        elif recursive:
            inside = list(_in_folder(path, output, takes_sharded))
            if not inside:
                raise Refusal(f"{path!r} has no archives: no file in it ends with {SUFFIX}.")
        elif _is_sharded(path):
            inside = [_sharded(path, name, takes_sharded)]
        else:
            raise Refusal(f"{path!r} is a folder. Pass -r to process the archives in it.")
        for archive in inside:
            # In folders, a file with several links counts once.
            real = os.path.realpath(archive.path)
            if archive.path == path or archive.error is not None or real not in seen:
                found.append(archive)
            seen.add(real)
    return found


def _is_sharded(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, _INDEX_NAME))


def _sharded(path: str, name: str, is_taken: bool) -> Archive:
    if is_taken:
        return Archive(path, name)
    error = UnsupportedError(
        "the files of a sharded archive are not changed one by one", path=path,
        remedy=f"npzkit convert {path} FILE.npz makes one file of it.",
    )  # fmt: skip
    return Archive(path, name, error)


def _in_folder(folder: str, output: str | None, takes_sharded: bool) -> Iterator[Archive]:
    failed: list[OSError] = []
    left_out = None if output is None else os.path.realpath(output)
    for place, inner, names in os.walk(folder, onerror=failed.append):
        inner[:] = sorted(
            name for name in inner if os.path.realpath(os.path.join(place, name)) != left_out
        )
        is_sharded = _is_sharded(place)
        if is_sharded:
            yield _sharded(place, os.path.relpath(place, folder), takes_sharded)
        for name in sorted(names):
            path = os.path.join(place, name)
            is_part = is_sharded and name.startswith(_SHARD_PREFIX)
            if name.lower().endswith(SUFFIX) and not is_part and os.path.isfile(path):
                yield Archive(path, os.path.relpath(path, folder))
    for error in failed:
        # A folder that could not be listed is reported like a file.
        yield Archive(str(error.filename), os.path.relpath(error.filename, folder), error)


class Outputs:
    """The paths of copies of archives.

    `output` is a folder if there are several archives, if it exists as a folder,
    or if it ends with a slash. If it is None, there are no copies.

    Raises
    ------
    Refusal
        There are several archives and `output` is a file, or two copies would
        have the same path.
    """

    def __init__(self, archives: Sequence[Archive], output: str | None, *, force: bool) -> None:
        self._output, self._force = output, force
        separators = tuple(filter(None, (os.sep, os.altsep)))
        self._is_folder = output is not None and (
            len(archives) > 1 or os.path.isdir(output) or output.endswith(separators)
        )
        if not self._is_folder:
            return
        if os.path.lexists(str(output)) and not os.path.isdir(str(output)):
            raise Refusal(f"{output!r} is a file. Several archives need a folder for --output.")
        # Some systems take names for the same that differ in case or composition alone.
        names = [unicodedata.normalize("NFC", archive.name).casefold() for archive in archives]
        name, count = Counter(names).most_common(1)[0]
        if count > 1:
            raise Refusal(
                f"two files would be written to {name!r} in {output!r}. Use a folder for each."
            )

    def path_for(self, archive: Archive) -> tuple[str, bool] | None:
        """Return the path for a copy, and whether a file there may be replaced.

        The folder of a local path is created. An archive is replaced without --force only
        if `output` is its own path.
        """
        if self._output is None:
            return None
        path, local = self._output, npzkit.local_path(self._output)
        if not self._is_folder:
            is_own = os.path.realpath(path) == os.path.realpath(archive.path)
            return path, self._force or is_own
        if local is None:
            # A URL has slashes on every system.
            return f"{path.rstrip('/')}/{archive.name}", self._force
        path = os.path.join(path, archive.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path, self._force


def shown_path(path: str) -> str:
    """Return a path as messages show it."""
    return "(standard input)" if path == "-" else printable(shown_url(path))


def work_through(
    what: str, archives: Sequence[Archive], work: Callable[[Archive, Report], Outcome], *,
    as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Call `work` with each archive, print the results, and return the exit code.

    A file that fails is reported, and the others are still processed.
    """
    outcomes = []
    total, begun = sum(archive.size for archive in archives), 0
    with progress(what, counts_received=False) as tell:
        if total:
            tell(0, total)
        for archive in archives:
            size = archive.size
            outcome = _outcome(archive, work, _share(tell, begun, size, total), tell)
            outcomes.append(outcome)
            if outcome.text and not as_json:
                tell.hide()
                click.echo(outcome.text)
            begun += size
            tell(begun, total)
    if as_json:
        print_json([outcome.document for outcome in outcomes])
    elif len(archives) > 1 and not quiet:
        counts = Counter(outcome.state for outcome in outcomes)
        states = ", ".join(f"{count:,} {state}" for state, count in counts.items())
        click.echo(f"{format_count(len(archives), 'file')}: {states}")
    return max(outcome.code for outcome in outcomes)


def _share(tell: Telling, start: int, size: int, total: int) -> Report:
    """Return a function that shows the progress of one archive as a share of its bytes."""
    return lambda done, whole: tell(start + size * done // max(whole, 1), total)


def _outcome(
    archive: Archive, work: Callable[[Archive, Report], Outcome], report: Report, tell: Telling
) -> Outcome:
    try:
        if archive.error is not None:
            raise archive.error
        with naming_in_warnings(shown_path(archive.path), tell.hide), refusing():
            return work(archive, report)
    except (NpzkitError, OSError, Refusal) as error:
        raise_final(error)
        text, code = error_text(error)
        is_named = getattr(error, "path", None) is not None or shown_path(archive.path) in text
    if not is_named:
        text = f"{shown_path(archive.path)}: {text}"
    tell.hide()
    say(text)
    path = shown_url(archive.path)
    return Outcome({"path": path, "ok": False, "error": text}, "", "failed", code)
