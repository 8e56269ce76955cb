"""The commands that check, repair and rewrite archives: files, and archives in folders.

Owns which files are processed and in which order, where their copies go, and how a command
continues after a file that fails.
"""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import click

import npzkit
from npzkit.cli.file_argument import (
    archives_argument,
    complete_key,
    file_size,
    keys_of,
    named_file,
    naming_in_warnings,
    seekable_input,
)
from npzkit.cli.messages import (
    Refusal,
    at_prompt,
    error_text,
    in_a_line,
    raise_final,
    refusing,
    say,
)
from npzkit.cli.output import Report, Telling, json_option, print_json, progress
from npzkit.errors import UnsupportedError, format_count, format_size, printable, shown_url

SUFFIX = ".npz"
"""The suffix of archives in folders."""
_INDEX_NAME, _SHARD_PREFIX = "index.json", "shard-"
"""What the folder of a sharded archive has."""

files_argument = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=named_file
)
"""The archives that a command changes: files with names, not the standard streams."""


class ArchiveFile(NamedTuple):
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
        with contextlib.suppress(OSError):
            return os.path.getsize(self.path)
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
) -> list[ArchiveFile]:
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
    found: list[ArchiveFile] = []
    seen: set[str] = set()
    for path in given:
        name = os.path.basename(shown_url(path).partition("?")[0])
        if path == "-" or not os.path.isdir(path):
            inside = [ArchiveFile(path, name)]
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


def _sharded(path: str, name: str, is_taken: bool) -> ArchiveFile:
    error = UnsupportedError(
        "the files of a sharded archive are not changed one by one", path=path,
        remedy=f"npzkit convert {path} FILE.npz makes one file of it.",
    )  # fmt: skip
    return ArchiveFile(path, name, None if is_taken else error)


def _in_folder(folder: str, output: str | None, takes_sharded: bool) -> Iterator[ArchiveFile]:
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
                yield ArchiveFile(path, os.path.relpath(path, folder))
    for error in failed:
        # A folder that could not be listed is reported like a file.
        yield ArchiveFile(str(error.filename), os.path.relpath(error.filename, folder), error)


def outputs_for(
    archives: Sequence[ArchiveFile], output: str | None, *, force: bool
) -> Callable[[ArchiveFile], tuple[str, bool]]:
    """Return a function that returns the path for a copy, and whether a file there is replaced.

    `output` is a folder if there are several archives, if it exists as a folder, or if it ends
    with a slash. The folders of local paths are created. If it is None, archives are replaced.
    Without `force`, only an archive is replaced whose own path is `output`.

    Raises
    ------
    Refusal
        There are several archives and `output` is a file, or two copies would
        have the same path.
    """
    if output is None:
        return lambda archive: (archive.path, True)
    separators = tuple(filter(None, (os.sep, os.altsep)))
    if len(archives) == 1 and not os.path.isdir(output) and not output.endswith(separators):
        is_own = os.path.realpath(output) == os.path.realpath(archives[0].path)
        return lambda archive: (output, force or is_own)
    if os.path.lexists(output) and not os.path.isdir(output):
        raise Refusal(f"{output!r} is a file. Several archives need a folder for --output.")
    # Some systems take names for the same that differ in case or composition alone.
    names = [unicodedata.normalize("NFC", archive.name).casefold() for archive in archives]
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise Refusal(
            f"two files would be written to {name!r} in {output!r}. Use a folder for each."
        )
    is_url = npzkit.local_path(output) is None

    def path_for(archive: ArchiveFile) -> tuple[str, bool]:
        if is_url:
            # It has slashes on every system.
            return f"{output.rstrip('/')}/{archive.name}", force
        path = os.path.join(output, archive.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path, force

    return path_for


def shown_path(path: str) -> str:
    """Return a path as messages show it."""
    return "(standard input)" if path == "-" else printable(shown_url(path))


def work_through(
    what: str, archives: Sequence[ArchiveFile], work: Callable[[ArchiveFile, Report], Outcome], *,
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
    archive: ArchiveFile,
    work: Callable[[ArchiveFile, Report], Outcome],
    report: Report,
    tell: Telling,
) -> Outcome:
    try:
        if archive.error is not None:
            raise archive.error
        with naming_in_warnings(shown_path(archive.path), tell.hide), refusing():
            return work(archive, report)
    except (npzkit.NpzkitError, OSError, Refusal) as error:
        raise_final(error)
        text, code = error_text(error)
        is_named = getattr(error, "path", None) is not None or shown_path(archive.path) in text
    if not is_named:
        text = f"{shown_path(archive.path)}: {text}"
    tell.hide()
    say(text)
    path = shown_url(archive.path)
    return Outcome({"path": path, "ok": False, "error": text}, "", "failed", code)


@click.command()
@archives_argument
@click.option(
    "-k", "--key", "keys", multiple=True, metavar="KEY", shell_complete=complete_key,
    help="Check only this array. May be given several times.",
)  # fmt: skip
@folder_options
@click.option("-v", "--verbose", is_flag=True, help="Print notes as well.")
@json_option
def verify(
    files: tuple[str, ...], keys: tuple[str, ...], recursive: bool, quiet: bool, verbose: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Check FILEs for damage: headers, checksums, array sizes.

    The exit code is 0 if every archive is sound, 1 if one is damaged or ends with
    an unfinished append, and 2 if one cannot be read. --json prints a list with
    an object per file. FILE may be the folder of a sharded archive. It may be -
    for the standard input, which is read to its end. In a pipe, seek indexes are
    not checked.

    Example: npzkit verify model.npz
    """
    archives = find_archives(files, recursive=recursive, takes_sharded=True)
    for archive in archives:
        _check_no_key(archive, files)

    def work(archive: ArchiveFile, report: Report) -> Outcome:
        with seekable_input(archive.path, is_forward=True) as source:
            found = npzkit.verify(source, keys or None, report)
        return _verified(archive, found, quiet=quiet, verbose=verbose)

    return work_through("verify", archives, work, as_json=as_json, quiet=quiet)


def _check_no_key(archive: ArchiveFile, files: tuple[str, ...]) -> None:
    """Raise UsageError if a FILE does not exist and is the key of an array in another one."""
    if archive.path == "-" or os.path.lexists(archive.path):
        return
    for file in filter(os.path.isfile, files):
        if archive.path in keys_of(file):
            raise click.UsageError(
                f"{printable(archive.path)} is not a file, but an array in {printable(file)}. "
                f"To check it, pass --key {printable(archive.path)}."
            )


def _rows_shown(report: npzkit.VerifyReport, *, quiet: bool, verbose: bool) -> list[Any]:
    """Return the findings to print: with `quiet` errors, with `verbose` also notes."""
    if not quiet:
        return [row for row in report.rows if verbose or row.severity != "note"]
    rows = [row for row in report.rows if row.severity == "error"]
    if report.torn_size:
        # An unfinished append is a warning about the archive.
        rows += [row for row in report.rows if row.severity == "warning" and row.key is None]
    return rows


def _verified(
    archive: ArchiveFile, report: npzkit.VerifyReport, *, quiet: bool = False, verbose: bool = False
) -> Outcome:
    """Return a report as one line per finding, and the verdict."""
    path = shown_path(archive.path)
    lines = []
    for row in _rows_shown(report, quiet=quiet, verbose=verbose):
        key = "" if row.key is None else f"{printable(row.key)}: "
        where = "" if row.where is None else f" (at byte {row.where})"
        lines.append(in_a_line(f"{path}: {row.severity}: {key}{at_prompt(row.what)}{where}"))
    if not quiet:
        lines.append(f"{path}: {report.verdict}")
    state = "NOT sound" if not report.ok else "torn" if report.torn_size else "sound"
    document = {**report.as_dict(), "path": shown_url(archive.path)}
    return Outcome(document, "\n".join(lines), state, int(state != "sound"))


@click.command()
@files_argument
@click.option(
    "-o", "--output", type=named_file,
    help="Where to write sound arrays: a file, or a folder for several FILEs.",
)  # fmt: skip
@click.option(
    "--in-place", is_flag=True, help="Replace a damaged FILE with its sound arrays. "
    "Everything else in it is lost for good.",
)  # fmt: skip
@click.option("--partial", is_flag=True, help="Keep the complete rows of truncated arrays.")
@click.option("--uncommitted", is_flag=True, help="Keep sound arrays of an unfinished append.")
@folder_options
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
@json_option
def repair(
    files: tuple[str, ...], output: str | None, in_place: bool, partial: bool, uncommitted: bool,
    recursive: bool, quiet: bool, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Repair damaged FILEs, or save their sound arrays.

    Without --output and --in-place, only the end of FILE is repaired: an
    unfinished append is cut off, a damaged directory is written again, and an
    interrupted flush of a map is completed. Then FILE is checked. The exit code
    is 1 if something was lost or is still damaged.

    Example: npzkit repair broken.npz -o saved.npz
    """
    if in_place and output is not None:
        raise click.UsageError("--in-place and --output cannot be used together.")
    for name, value in (("--partial", partial), ("--uncommitted", uncommitted)):
        if value and not in_place and output is None:
            raise click.UsageError(f"{name} needs --output or --in-place.")
    archives = find_archives(files, recursive=recursive, output=output)
    path_for = outputs_for(archives, output, force=force)

    def work(archive: ArchiveFile, report: Report) -> Outcome:
        target, overwrite = path_for(archive)
        if output is None and not in_place:
            return _cut(archive, report, quiet=quiet)
        if output is None:
            verified = npzkit.verify(archive.path, progress=report)
            if verified.ok and not verified.torn_size:
                return _verified(archive, verified, quiet=quiet)
        found = npzkit.repair(
            archive.path, target, partial=partial, uncommitted=uncommitted, overwrite=overwrite,
            progress=report,
        )  # fmt: skip
        return _repaired(archive, found, quiet=quiet)

    return work_through("repair", archives, work, as_json=as_json, quiet=quiet)


def _repaired(archive: ArchiveFile, report: npzkit.RepairReport, *, quiet: bool) -> Outcome:
    """Return the outcome of saving the sound members of an archive."""
    document = {"path": shown_url(archive.path), "ok": not report.lost, **report.as_dict()}
    if report.lost:
        return Outcome(document, _repair_text(report), "with losses", 1)
    return Outcome(document, "" if quiet else _repair_text(report), "saved")


def _repair_text(report: npzkit.RepairReport) -> str:
    lost = tuple(row._replace(what=at_prompt(row.what)) for row in report.lost)
    return str(report._replace(lost=lost))


def _cut(archive: ArchiveFile, report: Report, *, quiet: bool) -> Outcome:
    """Repair the end of an archive, and check the rest."""
    size = archive.size
    repaired = npzkit.repair(archive.path)
    is_changed = archive.size != size
    verified = npzkit.verify(archive.path, progress=report)
    found = _verified(archive, verified, quiet=quiet)
    path = shown_path(archive.path)
    # The first line counts the members, as the verdict does.
    done = _repair_text(repaired).splitlines()[1:]
    done = done or ["its directory was written again" if is_changed else "its end is complete"]
    remedy = (
        f"this damage was not repaired. To save the sound arrays: npzkit repair {path} -o OTHER"
    )
    lines = [*([] if quiet else [f"{path}: {line}" for line in done]), found.text,
             f"{path}: {remedy}" if found.code else ""]  # fmt: skip
    document = {**repaired.as_dict(), **found.document}
    return found._replace(document=document, text="\n".join(filter(None, lines)))


@click.command()
@files_argument
@click.option(
    "-o", "--output", type=named_file,
    help="Where to write the result: a file, or a folder for several FILEs. "
    "By default FILE is replaced.",
)  # fmt: skip
@click.option(
    "-c", "--compression", type=click.Choice(["stored", "deflated"]),
    help="Compression of all arrays. By default each keeps its own.",
)  # fmt: skip
@click.option("--level", type=click.IntRange(0, 9), help="Level of arrays that are deflated.")
@click.option(
    "--align", type=int, default=64, show_default=True, help="Alignment of stored data, in bytes."
)
@click.option(
    "--seekable/--no-seekable", default=True,
    help="Deflate arrays again if they have no seek index.",
)  # fmt: skip
@click.option("--durable", is_flag=True, help="Wait until the result is on disk.")
@folder_options
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
@json_option
def repack(
    files: tuple[str, ...], output: str | None, compression: str | None, level: int | None,
    align: int, seekable: bool, durable: bool, recursive: bool, quiet: bool, force: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Rewrite FILEs: aligned, seekable, without dead space.

    Stored arrays can then be mapped, and parts of deflated arrays read quickly.

    Example: npzkit repack model.npz
    """
    archives = find_archives(files, recursive=recursive, output=output)
    path_for = outputs_for(archives, output, force=force)

    def work(archive: ArchiveFile, report: Report) -> Outcome:
        before = archive.size
        target, overwrite = path_for(archive)
        npzkit.repack(
            archive.path, target, compression, align, level=level, seekable=seekable,
            durable=durable, overwrite=overwrite, progress=report,
        )  # fmt: skip
        after = file_size(target)
        document = {"path": shown_url(archive.path), "ok": True, "output": shown_url(target),
                    "size_before": before, "size": after}  # fmt: skip
        # The size of an archive at a URL is not known here.
        sizes = " -> ".join(format_size(size) for size in (before, after) if size)
        text = "" if quiet else f"{printable(shown_url(target))}: {sizes or 'repacked'}"
        return Outcome(document, text, "repacked")

    return work_through("repack", archives, work, as_json=as_json, quiet=quiet)
