"""The commands that check, repair and rewrite archives: files, and archives in folders.

Owns where a result goes, and how a command continues after a file that fails.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import npzkit
from npzkit.cli.file_argument import (
    ArchiveFile,
    archives_argument,
    compression_option,
    file_size,
    files_argument,
    find_archives,
    keys_matching,
    keys_named,
    keys_option,
    level_option,
    named_file,
    naming_in_warnings,
    recursive_option,
    seekable_input,
    tell_abandoned,
    tell_passed_over,
    tell_unmatched,
)
from npzkit.cli.messages import (
    Refusal,
    advice_at_prompt,
    as_word,
    error_facts,
    error_text,
    in_a_line,
    message_of,
    naming_file,
    raise_final,
    refusing,
    say,
)
from npzkit.cli.output import ProgressBar, json_option, print_json
from npzkit.errors import (
    REST_SAVED,
    at_prompt,
    format_count,
    format_size,
    printable,
    quoted,
    shown_url,
    some_of,
)
from npzkit.files.urls import local_path

if TYPE_CHECKING:
    from npzkit.typing import Progress

    Work = Callable[[ArchiveFile, Progress], "Outcome"]
    """What a command does with an archive; it reports its progress."""


class Outcome(NamedTuple):
    """The result for one archive.

    Attributes
    ----------
    document : mapping of str to object
        The result as JSON, without the path and ``ok``. If it is empty, it is left out.
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


_FOREIGN = "of another format"
"""The state of a file that is no archive, and may be sound."""
_UNCHECKED = "unchecked"
"""The state of a .npy file."""
_COMPLETE = "its list of arrays is complete: nothing to repair in place"


def is_folder(output: str | None) -> bool:
    """Return whether results go into a folder: one that exists, or a path that ends with /."""
    return output is not None and (os.path.isdir(output) or output.endswith(("/", os.sep)))


def place_of_results(archives: Sequence[ArchiveFile], output: str | None) -> str | None:
    """Return OUTPUT, which is a folder if an archive was found in one, unless its name is a file's.

    Raises
    ------
    Refusal
        Two results would have the same path, or one that of another archive.
    """
    if output is None:
        return None
    is_named = os.path.exists(output) or output.lower().endswith(".npz")
    if not is_named and any(archive.is_found for archive in archives):
        output = f"{output.removesuffix('/')}/"
    if len(archives) == 1:
        return output
    if not is_folder(output):
        raise Refusal(f"the results of several FILEs need a folder: --output {output}/")
    names = Counter(archive.name for archive in archives)
    name, count = names.most_common(1)[0]
    if count > 1:
        path = os.path.join(output, name)
        raise Refusal(
            f"{count} of the results would be {quoted(path)}. Pass the folder above FILEs, and -r."
        )
    inputs = {os.path.realpath(archive.path): archive.path for archive in archives}
    for archive in archives:
        taken = inputs.get(os.path.realpath(os.path.join(output, archive.name)), archive.path)
        if taken != archive.path:
            raise Refusal(
                f"the result of {quoted(archive.path)} would replace {quoted(taken)}, which is to "
                "be read too. Pass another folder."
            )
    return output


def output_of(archive: ArchiveFile, output: str | None, *, may_replace: bool) -> tuple[str, bool]:
    """Return the path of a result, and whether a file there is replaced.

    By default the archive itself. In the folder `output`, it has the archive's name.
    """
    if output is None:
        return archive.path, True
    if is_folder(output):
        output = os.path.join(output, archive.name)
        if local_path(output) is not None:
            os.makedirs(os.path.dirname(output), exist_ok=True)
    return output, may_replace or os.path.realpath(output) == os.path.realpath(archive.path)


def shown_path(path: str) -> str:
    """Return a path as messages show it."""
    return "(standard input)" if path == "-" else printable(shown_url(path))


def work_through(
    what: str, archives: Sequence[ArchiveFile], work: Work, *, as_json: bool, quiet: bool = False
) -> int:
    """Call `work` with each archive, print the results, and return the exit code.

    A file that fails is reported, and the others are still processed.
    """
    outcomes = []
    total, begun = sum(archive.size for archive in archives), 0
    with ProgressBar(what, counts_received=False) as tell:
        if total:
            tell(0, total)
        for archive in archives:
            size = archive.size

            def share(done: int, whole: int, start: int = begun, size: int = size) -> None:
                tell(start + size * done // max(whole, 1), total)

            outcome = _outcome(archive, work, share, tell)
            outcomes.append(outcome)
            if outcome.text and not as_json:
                tell.hide()
                click.echo(outcome.text)
            begun += size
            tell(begun, total)
    if as_json:
        print_json([outcome.document for outcome in outcomes if outcome.document])
    elif len(archives) > 1 and not quiet:
        counts = Counter(outcome.state for outcome in outcomes)
        states = ", ".join(f"{count:,} {state}" for state, count in counts.items())
        done = zip(archives, outcomes, strict=True)
        unchecked = [shown_path(one.path) for one, outcome in done if outcome.state == _UNCHECKED]
        named = f"; .npy files have no checksums: {some_of(unchecked)}" if unchecked else ""
        click.echo(
            f"{format_count(len(archives), 'file')}: {states}{_total_sizes(outcomes)}{named}"
        )
    return max(outcome.code for outcome in outcomes)


def _total_sizes(outcomes: Iterable[Outcome]) -> str:
    """Return the sizes of all repacked files before and after, unless one is not known."""
    found = [one.document for one in outcomes if "size_before" in one.document]
    if not found or not all(row["size_before"] and row["size"] for row in found):
        return ""
    totals = (sum(row[name] for row in found) for name in ("size_before", "size"))
    return f", {' -> '.join(map(format_size, totals))}"


def _outcome(archive: ArchiveFile, work: Work, report: Progress, tell: ProgressBar) -> Outcome:
    try:
        with naming_in_warnings(shown_path(archive.path), tell.hide), refusing():
            if archive.refusal:
                raise Refusal(archive.refusal)
            done = work(archive, report)
    except (npzkit.NpzkitError, OSError, Refusal) as error:
        raise_final(error)
        tell.hide()
        done = _failure(archive, error)
    head = {"path": shown_url(archive.path), "ok": not done.code}
    return done._replace(document=done.document and head | done.document | head)


def _failure(archive: ArchiveFile, error: Exception) -> Outcome:
    """Report that an archive could not be processed."""
    if archive.is_found and not os.path.lexists(archive.path):
        # A run that keeps its last checkpoints has removed this one meanwhile.
        return Outcome({"removed": True, "is_damage": False}, "", "removed")
    text, code = error_text(error)
    if getattr(error, "path", None) is None and shown_path(archive.path) not in text:
        text = f"{shown_path(archive.path)}: {text}"
    say(text)
    state = _FOREIGN if getattr(error, "_is_foreign", False) else "failed"
    return Outcome({**error_facts(error), "error": text}, "", state, code)


@click.command()
@archives_argument
@keys_option("Check")
@click.option(
    "-q", "--quiet", is_flag=True, help="Print problems only, and nothing if there are none."
)
@recursive_option
@click.option("-v", "--verbose", is_flag=True, help="Print all notes, and a line per FILE.")
@json_option
def verify(
    files: tuple[str, ...], keys: tuple[str, ...], recursive: bool, quiet: bool, verbose: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Check FILEs for damage: headers, checksums, array sizes.

    The exit code is 0 if every archive is sound, 1 if one is damaged, encrypted, ends with
    an unfinished append or is none, and 2, which wins, if one cannot be read. --json prints
    a list with an object per file: one that was checked has rows (severity, key, what,
    where, remedy), one that cannot be opened has an error. FILE may be a folder, whose
    .npz and .npy files are checked, or that of a sharded archive; -v names shards that
    its index does not list.
    A .npy file has no checksum: its header and its size are checked, and it is called
    unchecked. FILE may be - for the standard input; a pipe is copied to a temporary file
    first.
    Temporary files that killed saves have left in a folder are named, unless --quiet.

    Example: npzkit verify model.npz
    """
    if not quiet:
        tell_abandoned(files, recursive=recursive)
    found = find_archives(files, recursive=recursive, with_npy=True, as_json=as_json)
    archives = _without_loose_shards(found, files)
    is_alone = len(archives) == 1
    unmatched = None if is_alone else set(keys)
    work = partial(
        _verify, keys=keys, unmatched=unmatched, quiet=quiet, verbose=verbose, is_alone=is_alone
    )
    code = work_through("verify", archives, work, as_json=as_json, quiet=quiet)
    code = max(code, tell_unmatched(keys, unmatched or ()))
    if not quiet:
        tell_passed_over(files, (one.path for one in found), recursive=recursive)
    return code


def _verify(
    archive: ArchiveFile, report: Progress, *, keys: Sequence[str] = (),
    unmatched: set[str] | None = None, **how: bool,
) -> Outcome:  # fmt: skip
    """Check an archive, or a .npy file as one; `how` is that of `_verified`."""
    from npzkit.datasets.opening import open_any

    error, chosen = None, keys
    with seekable_input(archive.path) as source, contextlib.ExitStack() as stack:
        given = source
        try:
            # The report has what opening warns of.
            with warnings.catch_warnings(action="ignore"):
                given = stack.enter_context(open_any(source))
        except npzkit.NpzkitError as failure:
            # It tells damage from other formats.
            error = failure
        else:
            if keys and unmatched is not None:
                chosen = keys_matching(keys, given.files, unmatched)
            elif keys:
                chosen = keys_named(keys, given, given._archive.path)
        if keys and not chosen:
            return Outcome({}, "", "without these keys")
        found = npzkit.verify(given, chosen or None, progress=report)
    done = _verified(archive, found, **how)
    if error is not None:
        done.document["is_damage"] = error.is_damage
    return done


def _without_loose_shards(found: list[ArchiveFile], files: Sequence[str]) -> list[ArchiveFile]:
    """Return archives with folders in the place of shards in them, which no index names.

    Sound shards alone are no sound archive.
    """
    from npzkit.datasets.shard_names import attempt_of

    archives = {}
    for archive in found:
        folder, name = os.path.split(archive.path)
        if attempt_of(name) and archive.path not in files:
            inner = os.path.dirname(archive.name) or os.path.basename(folder)
            archives[folder] = ArchiveFile(folder, inner)
        else:
            archives[archive.path] = archive
    return list(archives.values())


def _verified(
    archive: ArchiveFile, report: npzkit.VerifyReport, *, quiet: bool = False,
    verbose: bool = False, is_alone: bool = True,
) -> Outcome:  # fmt: skip
    """Return a report as one line per finding, and the verdict.

    Of one of many archives, a sound one has no line, unless it has Python objects or unsafe
    names, or `verbose` is true. The verdict counts the findings that are shown.
    """
    path = shown_path(archive.path)
    lines = []
    state = report._state
    is_ok = state in ("sound", _UNCHECKED)
    notes = {*report._notes} if is_alone else ()

    def is_shown(row: Any) -> bool:
        if row.severity == "note":
            return not quiet and (verbose or row in notes)
        # An unfinished append is a warning about the archive. Of many .npy files, the summary
        # says which are unchecked.
        is_torn = report.torn_size > 0 and row.key is None
        is_usual = state == _UNCHECKED and not (is_alone or verbose)
        return row.severity == "error" or is_torn or not (quiet or is_usual)

    def at_shell(row: Any) -> Any:
        what = naming_file(at_prompt(row.what), archive.path, row.key)
        remedy = naming_file(advice_at_prompt(row.remedy or ""), archive.path, row.key)
        return row._replace(what=what, remedy=remedy or None)

    shown = tuple(filter(is_shown, report.rows))
    for row in map(at_shell, shown):
        key = "" if row.key is None else f"{printable(row.key)}: "
        where = "" if row.where is None else f" (begins at byte {row.where})"
        remedy = f". {row.remedy}" if row.remedy else ""
        lines.append(in_a_line(f"{path}: {row.severity}: {key}{row.what}{where}{remedy}"))
    if not quiet and (is_alone or verbose or not (is_ok and report._is_safe)):
        lines.append(f"{path}: {report._closing(shown)}")
    rows = [at_shell(row)._asdict() for row in report.rows]
    document = report.as_dict() | {"is_damage": state == "NOT sound", "rows": rows}
    return Outcome(document, "\n".join(lines), state, int(not is_ok))


@click.command()
@files_argument
@click.option(
    "-o", "--output", type=named_file,
    help="Where to write the sound arrays: a file, or a folder, in which each damaged FILE "
    "has its name.",
)  # fmt: skip
@click.option(
    "--keep-partial", type=click.Choice(["mask", "drop"]),
    help="Keep what is left of damaged arrays: mask lost values, or drop "
    "their rows. Of an array that is cut off, either keeps the rows that are there.",
)  # fmt: skip
@recursive_option
@click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it exists.")
@json_option
def repair(
    files: tuple[str, ...], output: str | None, recursive: bool, overwrite: bool, as_json: bool,
    keep_partial: Any,
) -> int:  # fmt: skip
    """Repair damaged FILEs, or save their sound arrays.

    Restores the list at the end of FILE and cuts off an unfinished append, in place.
    With -o, writes every sound array to a new file. Of folders and several FILEs, only
    the damaged ones are written. Truncated .npy files need --keep-partial. npzkit rm
    FILE KEY removes a damaged array. The exit code is 1 if something was lost or is still
    damaged.

    Example: npzkit repair broken.npz -o saved.npz
    """
    from npzkit.datasets.opening import sharded_folder
    from npzkit.datasets.repaired_file import not_repaired

    if keep_partial and output is None:
        raise click.UsageError("--keep-partial needs --output.")
    archives = [
        # What is left of a .npy file becomes an archive.
        one._replace(name=f"{one.name}.npz") if one.path.endswith(".npy") else one
        for one in find_archives(files, recursive=recursive, with_npy=output is not None)
    ]
    output = place_of_results(archives, output)

    def work(archive: ArchiveFile, report: Progress) -> Outcome:
        sharded = sharded_folder(archive.path)
        is_alone = len(archives) == 1
        if is_folder(output) or (sharded and output is None):
            found = _verify(archive, report, is_alone=is_alone)
            if not found.code:
                return found
            if sharded:
                return found._replace(text=f"{found.text}\n{message_of(not_repaired(sharded))}")
        if output is None:
            return _cut(archive, report, is_alone=is_alone)
        target, may_replace = output_of(archive, output, may_replace=overwrite)
        saved = npzkit.repair(
            archive.path, target, keep_partial=keep_partial, overwrite=may_replace, progress=report
        )
        return _repaired(archive, saved)

    return work_through("repair", archives, work, as_json=as_json)


def _repaired(archive: ArchiveFile, report: npzkit.RepairReport) -> Outcome:
    """Return the outcome of saving the sound members of an archive."""
    first, *others = _repair_text(archive, report)
    path = shown_path(archive.path)
    text = "\n".join([first, *(f"{path}: {line}" for line in others)])
    return Outcome(report.as_dict(), text, *(("with losses", 1) if report.lost else ("saved", 0)))


def _repair_text(archive: ArchiveFile, report: npzkit.RepairReport) -> list[str]:
    """Return the lines of a report; the first one names the output."""
    lost = tuple(
        row._replace(what=naming_file(at_prompt(row.what), archive.path, row.key))
        for row in report.lost
    )
    return str(report._replace(lost=lost)).splitlines()


def _cut(archive: ArchiveFile, report: Progress, *, is_alone: bool) -> Outcome:
    """Repair the end of an archive, and check the rest. One of many that is sound has no line."""
    size = archive.size
    repaired = npzkit.repair(archive.path)
    is_changed = archive.size != size
    # The first line counts the members, as the verdict does.
    done = _repair_text(archive, repaired)[1:]
    done = done or ["its directory was written again"] * is_changed
    verified = npzkit.verify(archive.path, progress=report)
    found = _verified(archive, verified, is_alone=is_alone or bool(done))
    if found.text:
        done = done or [_COMPLETE]
    path = shown_path(archive.path)
    remedy = f"this was not repaired. To save the sound arrays: npzkit repair {path} -o OTHER"
    if any(row.remedy == f"{REST_SAVED}." for row in verified.rows):
        remedy += " --keep-partial mask"
    lines = [
        *(f"{path}: {line}" for line in done),
        found.text,
        f"{path}: {remedy}" if found.code else "",
    ]
    document = {**repaired.as_dict(), **found.document}
    if repaired.lost:
        found = found._replace(state="with losses", code=1)
    return found._replace(document=document, text="\n".join(filter(None, lines)))


def _repacked_shards(folder: str, report: Progress, **options: Any) -> Outcome:
    """Write the shards of an archive again."""
    from npzkit.datasets.shardedfile import ShardedFile

    def shard_sizes() -> list[int]:
        with ShardedFile(folder) as npz:
            return [shard.size for shard in npz._archive.index.shards]

    before = shard_sizes()
    npzkit.repack(folder, progress=report, **options)
    after, path = shard_sizes(), shown_url(folder)
    document = {"output": path, "shards_before": len(before), "shards": len(after),
                "size_before": sum(before), "size": sum(after)}  # fmt: skip
    sizes = " -> ".join(map(format_size, (sum(before), sum(after))))
    text = f"{printable(path)}: {len(before)} -> {format_count(len(after), 'shard')}, {sizes}"
    return Outcome(document, text, "repacked")


@click.command()
@files_argument
@click.option(
    "-o", "--output", type=named_file,
    help="Where to write the result: a file, or a folder, in which each FILE has its name. "
    "By default FILE is replaced.",
)  # fmt: skip
@compression_option(
    help="Compression of all arrays. By default each keeps its own. np.load reads zstd from "
    "Python 3.14 on."
)
@level_option
@click.option(
    "--seekable/--no-seekable", default=True,
    help="Compress arrays again if they have no seek index.",
)  # fmt: skip
@recursive_option
@click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it exists.")
@json_option
def repack(
    files: tuple[str, ...], output: str | None, recursive: bool, overwrite: bool, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Rewrite FILEs: aligned, seekable, without dead space.

    Stored arrays can then be mapped, and parts of compressed arrays read quickly. Of the folder
    of a sharded archive, the arrays get new shards: few, if it has grown by many.

    Example: npzkit repack model.npz
    """
    from npzkit.datasets.opening import sharded_folder

    archives = find_archives(files, recursive=recursive)
    output = place_of_results(archives, output)

    def work(archive: ArchiveFile, report: Progress) -> Outcome:
        if folder := sharded_folder(archive.path):
            if output is None:
                return _repacked_shards(folder, report, **options)
            raise Refusal(
                f"{shown_path(archive.path)}: repack rewrites a sharded archive only in place. "
                f"npzkit convert {as_word(folder)} FILE.npz makes one file of it."
            )
        before = archive.size
        target, may_replace = output_of(archive, output, may_replace=overwrite)
        npzkit.repack(archive.path, target, overwrite=may_replace, progress=report, **options)
        after = file_size(target)
        document = {"output": shown_url(target), "size_before": before, "size": after}
        # The size of an archive at a URL is not known here.
        sizes = " -> ".join(format_size(size) for size in (before, after) if size)
        text = f"{printable(shown_url(target))}: {sizes or 'repacked'}"
        return Outcome(document, text, "repacked")

    return work_through("repack", archives, work, as_json=as_json)
