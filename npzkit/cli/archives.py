"""The archives that a command works through: files by their names, and those in folders.

Owns which files are taken, in which order, where their copies go, and how a
command goes on past a file that fails. Knows nothing of what is done with each.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import click

from npzkit.cli.opening import named_file, naming_in_warnings
from npzkit.cli.output import (
    Telling,
    error_text,
    format_count,
    print_json,
    printable,
    progress,
)
from npzkit.cli.targets import Refusal, check_absent
from npzkit.errors import NpzkitError
from npzkit.files.progress import Meter, Report
from npzkit.members.keys import find_collisions

__all__ = [
    "Archive",
    "Outcome",
    "Outputs",
    "files_argument",
    "find_archives",
    "folder_options",
    "shown_path",
    "work_through",
]

SUFFIX = ".npz"
"""Of the files that are taken from folders."""

files_argument = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=named_file
)
"""The archives that a command changes: files with names, not the standard streams."""


class Archive(NamedTuple):
    """A file that is to be worked on.

    Attributes
    ----------
    path : str
        Or "-" for the standard input stream.
    name : str
        Where a copy of it goes in another folder.
    error : Exception or None
        What kept its folder from being listed: there is no file.
    """

    path: str
    name: str
    error: Exception | None = None

    @property
    def size(self) -> int:
        """Bytes of the file; 0 where it is none."""
        try:
            return os.path.getsize(self.path)
        except OSError:
            return 0


class Outcome(NamedTuple):
    """What became of one archive.

    Attributes
    ----------
    document : mapping of str to object
        For programs.
    text : str
        For people; nothing is printed where it is empty.
    state : str
        One word or two, by which the last line counts: "sound".
    code : int
        The exit code.
    """

    document: dict[str, Any]
    text: str
    state: str
    code: int = 0


def folder_options(command: Any) -> Any:
    """Add the options of commands that work through many archives."""
    command = click.option(
        "-q", "--quiet", is_flag=True, help="Print problems only, and nothing if there are none."
    )(command)
    return click.option(
        "-r", "--recursive", is_flag=True, help="Take the .npz files in folders, at any depth."
    )(command)


def find_archives(
    given: Sequence[str], *, recursive: bool, output: str | None = None
) -> list[Archive]:
    """Return the archives that are named, and those in the folders that are named.

    A file that is named is taken whatever its name is. Of a folder those that
    end in .npz are taken, in the order of their names, each file once. Links to
    files are followed, and links to folders are not. A folder of `output` is
    left out: what was written there before is not read.

    Raises
    ------
    Refusal
        A folder without `recursive`, or without an archive in it.
    """
    found: list[Archive] = []
    seen: set[str] = set()
    for path in given:
        if path == "-" or not os.path.isdir(path):
            found.append(Archive(path, os.path.basename(path)))
            seen.add(os.path.realpath(path))
            continue
        if not recursive:
            raise Refusal(f"{path!r} is a folder. Pass -r to take the archives in it.")
        inside = list(_in_folder(path, output))
        for archive in inside:
            real = os.path.realpath(archive.path)
            if archive.error is not None or real not in seen:
                found.append(archive)
                seen.add(real)
        if not inside:
            raise Refusal(f"{path!r} holds no archive: no file in it ends in {SUFFIX}.")
    return found


def _in_folder(folder: str, output: str | None) -> Iterator[Archive]:
    failed: list[OSError] = []
    left_out = None if output is None else os.path.realpath(output)
    for place, inner, names in os.walk(folder, onerror=failed.append):
        inner[:] = sorted(
            name for name in inner if os.path.realpath(os.path.join(place, name)) != left_out
        )
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.lower().endswith(SUFFIX) and os.path.isfile(path):
                yield Archive(path, os.path.relpath(path, folder))
    for error in failed:
        # What could not be listed is reported in its turn.
        yield Archive(str(error.filename), os.path.relpath(error.filename, folder), error)


class Outputs:
    """Where the copies of archives go.

    `output` is a folder if several archives are copied, if it is one already,
    or if it ends with a slash. If it is None, there are no copies.

    Raises
    ------
    Refusal
        Several archives, or two copies, would be one file.
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
            raise Refusal(f"{output!r} is a file. Several archives need a folder as --output.")
        for name, _ in find_collisions(archive.name.replace(os.sep, "/") for archive in archives):
            raise Refusal(
                f"two of the files would be {name!r} in {output!r}. Copy them into several folders."
            )

    def path_for(self, archive: Archive) -> str | None:
        """Return the path for a copy, its folder made.

        Raises
        ------
        Refusal
            Another file already exists there. An archive is its own output only
            where it is asked for by its own name.
        """
        if self._output is None:
            return None
        path = os.path.join(self._output, archive.name) if self._is_folder else self._output
        if self._is_folder or os.path.realpath(path) != os.path.realpath(archive.path):
            check_absent(path, force=self._force)
        if self._is_folder:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return path


def shown_path(path: str) -> str:
    """Return a path as messages show it."""
    return "(standard input)" if path == "-" else printable(path)


def work_through(
    what: str,
    archives: Sequence[Archive],
    work: Callable[[Archive, Report], Outcome],
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    """Call `work` with each archive, print what it says, and return the exit code.

    A file that fails is reported, and the others are worked on all the same.
    """
    outcomes = []
    total, done = sum(archive.size for archive in archives), 0
    with progress(what) as tell:
        meter = Meter(tell, total)
        for archive in archives:
            size = archive.size
            outcome = _outcome(archive, work, _share(meter, done, size), tell)
            outcomes.append(outcome)
            if outcome.text and not as_json:
                tell.hide()
                click.echo(outcome.text)
            done += size
            meter.reach(done)
    if as_json:
        print_json([outcome.document for outcome in outcomes])
    elif len(archives) > 1 and not quiet:
        counts = Counter(outcome.state for outcome in outcomes)
        states = ", ".join(f"{count:,} {state}" for state, count in counts.items())
        click.echo(f"{format_count(len(archives), 'file')}: {states}")
    return max(outcome.code for outcome in outcomes)


def _share(meter: Meter, start: int, size: int) -> Report:
    """Return what counts the progress with one archive as a share of its bytes."""

    def tell(done: int, total: int) -> None:
        meter.reach(start + size * done // max(total, 1))

    return tell


def _outcome(
    archive: Archive, work: Callable[[Archive, Report], Outcome], report: Report, tell: Telling
) -> Outcome:
    try:
        if archive.error is not None:
            raise archive.error
        with naming_in_warnings(shown_path(archive.path), tell.hide):
            return work(archive, report)
    except (NpzkitError, OSError, Refusal) as error:
        if click.get_current_context().obj or isinstance(error, BrokenPipeError):
            raise
        text, code = error_text(error)
        is_named = getattr(error, "path", None) is not None or printable(archive.path) in text
    if not is_named:
        text = f"{shown_path(archive.path)}: {text}"
    tell.hide()
    click.echo(f"npzkit: {text}", err=True)
    return Outcome({"path": archive.path, "ok": False, "error": text}, "", "failed", code)
