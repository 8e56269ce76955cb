"""The commands that check, repair and rewrite archives.

Owns what is printed of each archive.
"""

from __future__ import annotations

import os
from typing import Any

import click

import npzkit
from npzkit.cli.archives import (
    Archive,
    Outcome,
    Outputs,
    files_argument,
    find_archives,
    folder_options,
    shown_path,
    work_through,
)
from npzkit.cli.messages import at_prompt, in_a_line
from npzkit.cli.opening import (
    archives_argument,
    complete_key,
    file_size,
    keys_of,
    named_file,
    seekable_input,
)
from npzkit.cli.output import Report, json_option
from npzkit.errors import format_size, printable, shown_url


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

    def work(archive: Archive, report: Report) -> Outcome:
        with seekable_input(archive.path, is_forward=True) as source:
            found = npzkit.verify(source, keys or None, report)
        return _verified(archive, found, quiet=quiet, verbose=verbose)

    return work_through("verify", archives, work, as_json=as_json, quiet=quiet)


def _check_no_key(archive: Archive, files: tuple[str, ...]) -> None:
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
    archive: Archive, report: npzkit.VerifyReport, *, quiet: bool = False, verbose: bool = False
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
    return Outcome(document, "\n".join(lines), state, 0 if state == "sound" else 1)


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
    outputs = Outputs(archives, output, force=force)

    def work(archive: Archive, report: Report) -> Outcome:
        target, overwrite = outputs.path_for(archive) or (archive.path, True)
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


def _repaired(archive: Archive, report: npzkit.RepairReport, *, quiet: bool) -> Outcome:
    """Return the outcome of saving the sound members of an archive."""
    document = {"path": shown_url(archive.path), "ok": not report.lost, **report.as_dict()}
    if report.lost:
        return Outcome(document, _repair_text(report), "with losses", 1)
    return Outcome(document, "" if quiet else _repair_text(report), "saved")


def _repair_text(report: npzkit.RepairReport) -> str:
    lost = tuple(row._replace(what=at_prompt(row.what)) for row in report.lost)
    return str(report._replace(lost=lost))


def _cut(archive: Archive, report: Report, *, quiet: bool) -> Outcome:
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
    outputs = Outputs(archives, output, force=force)

    def work(archive: Archive, report: Report) -> Outcome:
        before = archive.size
        target, overwrite = outputs.path_for(archive) or (archive.path, True)
        try:
            npzkit.repack(
                archive.path, target, compression, align, level=level, seekable=seekable,
                durable=durable, overwrite=overwrite, progress=report,
            )  # fmt: skip
        except ValueError as error:
            if isinstance(error, npzkit.NpzkitError):
                raise
            raise click.UsageError(f"{at_prompt(str(error))}.") from error
        after = file_size(target)
        document = {"path": shown_url(archive.path), "ok": True, "output": shown_url(target),
                    "size_before": before, "size": after}  # fmt: skip
        # The size of an archive at a URL is not known here.
        sizes = " -> ".join(format_size(size) for size in (before, after) if size)
        text = "" if quiet else f"{printable(shown_url(target))}: {sizes or 'repacked'}"
        return Outcome(document, text, "repacked")

    return work_through("repack", archives, work, as_json=as_json, quiet=quiet)
