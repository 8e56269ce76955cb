"""The commands that check archives, repair them and rewrite them."""

from __future__ import annotations

import os
import warnings
from typing import Any

import click

import npzkit
from npzkit.cli.archives import (
    Archive,
    Outcome,
    Outputs,
    find_archives,
    folder_options,
    shown_path,
    work_through,
)
from npzkit.cli.opening import complete_key, named_file, seekable_input
from npzkit.cli.output import format_size, in_a_line, json_option, printable
from npzkit.cli.wording import at_prompt
from npzkit.files.progress import Report

__all__ = ["repack", "repair", "verify"]

_files_argument = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=named_file
)


# -- verify --------------------------------------------------------------------


@click.command()
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True,
    type=click.Path(readable=False, allow_dash=True),
)  # fmt: skip
@click.option(
    "-k", "--key", "keys", multiple=True, metavar="KEY", shell_complete=complete_key,
    help="Check only this array; may be repeated.",
)  # fmt: skip
@folder_options
@click.option("-v", "--verbose", is_flag=True, help="Print notes too.")
@json_option
def verify(
    files: tuple[str, ...],
    keys: tuple[str, ...],
    recursive: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Check FILEs for damage: headers, checksums, array sizes.

    Exits with 0 if every archive is sound, 1 if one is damaged or ends in an
    append that was not finished, and 2 if one cannot be read. With --json there
    is a list with an object for each file.

    Example: npzkit verify model.npz
    """
    archives = find_archives(files, recursive=recursive)
    for archive in archives:
        _check_no_key(archive, files)

    def work(archive: Archive, report: Report) -> Outcome:
        with seekable_input(archive.path) as source:
            found = npzkit.verify(source, keys or None, report)
        return _verified(archive, found, quiet=quiet, verbose=verbose)

    code = work_through("verify", archives, work, as_json=as_json, quiet=quiet)
    click.get_current_context().exit(code)


def _check_no_key(archive: Archive, files: tuple[str, ...]) -> None:
    """Raise for what is no file, but the key of an array in another one."""
    if archive.path == "-" or os.path.lexists(archive.path):
        return
    for file in files:
        if file != "-" and os.path.isfile(file) and archive.path in _keys_of(file):
            raise click.UsageError(
                f"{printable(archive.path)} is no file, but an array of {printable(file)}. "
                f"Name it by --key {printable(archive.path)}."
            )


def _keys_of(file: str) -> list[str]:
    try:
        with warnings.catch_warnings(action="ignore"), npzkit.open(file) as npz:
            return list(npz)
    except (OSError, npzkit.NpzkitError):
        return []


def _rows_shown(report: npzkit.VerifyReport, *, quiet: bool, verbose: bool) -> list[Any]:
    """Return the findings that are printed: notes only if asked for, or what is wrong alone."""
    if not quiet:
        return [row for row in report.rows if verbose or row.severity != "note"]
    rows = [row for row in report.rows if row.severity == "error"]
    if report.torn_size:
        # What follows the last commit is a warning about the archive.
        rows += [row for row in report.rows if row.severity == "warning" and row.key is None]
    return rows


def _verified(
    archive: Archive, report: npzkit.VerifyReport, *, quiet: bool = False, verbose: bool = False
) -> Outcome:
    """Return a report as a line for each finding, and the verdict."""
    path = shown_path(archive.path)
    lines = []
    for row in _rows_shown(report, quiet=quiet, verbose=verbose):
        key = "" if row.key is None else f"{printable(row.key)}: "
        where = "" if row.where is None else f" (at byte {row.where})"
        lines.append(in_a_line(f"{path}: {row.severity}: {key}{at_prompt(row.what)}{where}"))
    if not quiet:
        lines.append(f"{path}: {report.verdict}")
    state = "NOT sound" if not report.ok else "torn" if report.torn_size else "sound"
    document = {**report.as_dict(), "path": archive.path}
    return Outcome(document, "\n".join(lines), state, 0 if state == "sound" else 1)


# -- repair --------------------------------------------------------------------


@click.command()
@_files_argument
@click.option(
    "-o", "--output", type=named_file,
    help="Where to write what is sound: a file, or a folder for several FILEs.",
)  # fmt: skip
@click.option(
    "--in-place", is_flag=True, help="Replace a damaged FILE by its sound arrays. "
    "What cannot be saved is lost for good.",
)  # fmt: skip
@click.option("--partial", is_flag=True, help="Keep the complete rows of truncated arrays.")
@click.option(
    "--uncommitted", is_flag=True, help="Keep sound arrays of an append that was never completed."
)
@folder_options
@click.option("--force", is_flag=True, help="Replace what is at OUTPUT.")
@json_option
def repair(
    files: tuple[str, ...],
    output: str | None,
    in_place: bool,
    partial: bool,
    uncommitted: bool,
    recursive: bool,
    quiet: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Save what is sound of damaged FILEs.

    Without --output and --in-place only the end of FILE is repaired: an
    unfinished append is cut off, a damaged directory is written again, and an
    interrupted flush of a map is completed. Then FILE is checked. Exits with 1
    if something was lost or is still damaged.

    Example: npzkit repair broken.npz -o saved.npz
    """
    if in_place and output is not None:
        raise click.UsageError("--in-place and --output exclude each other.")
    for name, value in (("--partial", partial), ("--uncommitted", uncommitted)):
        if value and not in_place and output is None:
            raise click.UsageError(f"{name} needs --output or --in-place.")
    archives = find_archives(files, recursive=recursive, output=output)
    outputs = Outputs(archives, output, force=force)

    def save(archive: Archive, target: str, report: Report) -> Outcome:
        found = npzkit.repair(
            archive.path, target, partial=partial, uncommitted=uncommitted, progress=report
        )
        return _repaired(archive, found, quiet=quiet)

    def work(archive: Archive, report: Report) -> Outcome:
        target = outputs.path_for(archive)
        if target is not None:
            return save(archive, target, report)
        if not in_place:
            return _cut(archive, report, quiet=quiet)
        verified = npzkit.verify(archive.path, progress=report)
        if verified.ok and not verified.torn_size:
            return _verified(archive, verified, quiet=quiet)
        return save(archive, archive.path, report)

    code = work_through("repair", archives, work, as_json=as_json, quiet=quiet)
    click.get_current_context().exit(code)


def _repaired(archive: Archive, report: npzkit.RepairReport, *, quiet: bool) -> Outcome:
    """Return what was saved of an archive, and what was lost."""
    is_shown = report.lost or not quiet
    document = {"path": archive.path, "ok": not report.lost, **report.as_dict()}
    text = _repair_text(report) if is_shown else ""
    return Outcome(
        document, text, "with losses" if report.lost else "saved", 1 if report.lost else 0
    )


def _repair_text(report: npzkit.RepairReport) -> str:
    lost = tuple(row._replace(what=at_prompt(row.what)) for row in report.lost)
    return str(report._replace(lost=lost))


def _cut(archive: Archive, report: Report, *, quiet: bool) -> Outcome:
    """Repair the end of an archive, and say whether the rest is sound."""
    size = os.path.getsize(archive.path)
    repaired = npzkit.repair(archive.path)
    is_changed = os.path.getsize(archive.path) != size
    verified = npzkit.verify(archive.path, progress=report)
    found = _verified(archive, verified, quiet=quiet)
    path = shown_path(archive.path)
    # The first line counts the members, as the verdict does.
    done = _repair_text(repaired).splitlines()[1:]
    done = done or ["its directory was written again" if is_changed else "its end is complete"]
    lines = [] if quiet else [f"{path}: {line}" for line in done]
    if found.text:
        lines.append(found.text)
    if found.code:
        lines.append(
            f"{path}: this damage was not repaired. To save what is sound: "
            f"npzkit repair {path} -o OTHER"
        )
    document = {**repaired.as_dict(), **found.document}
    return found._replace(document=document, text="\n".join(lines))


# -- repack --------------------------------------------------------------------


@click.command()
@_files_argument
@click.option(
    "-o", "--output", type=named_file,
    help="Where to write it: a file, or a folder for several FILEs; FILE by default.",
)  # fmt: skip
@click.option(
    "-c", "--compression", type=click.Choice(["stored", "deflated"]),
    help="For all arrays; each keeps its own by default.",
)  # fmt: skip
@click.option("--level", type=click.IntRange(0, 9), help="For arrays that are deflated again.")
@click.option("--align", type=int, default=64, show_default=True, help="Of stored data, in bytes.")
@click.option(
    "--seekable/--no-seekable", default=True, help="Deflate arrays again that lack a seek index."
)
@click.option("--durable", is_flag=True, help="Wait until it is on disk.")
@folder_options
@click.option("--force", is_flag=True, help="Replace what is at OUTPUT.")
@json_option
def repack(
    files: tuple[str, ...],
    output: str | None,
    compression: str | None,
    level: int | None,
    align: int,
    seekable: bool,
    durable: bool,
    recursive: bool,
    quiet: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Rewrite FILEs: aligned, seekable, without dead space.

    Example: npzkit repack model.npz
    """
    archives = find_archives(files, recursive=recursive, output=output)
    outputs = Outputs(archives, output, force=force)

    def work(archive: Archive, report: Report) -> Outcome:
        before = os.path.getsize(archive.path)
        target = outputs.path_for(archive) or archive.path
        try:
            npzkit.repack(
                archive.path, target, compression, align, level=level, seekable=seekable,
                durable=durable, progress=report,
            )  # fmt: skip
        except ValueError as error:
            if isinstance(error, npzkit.NpzkitError):
                raise
            raise click.UsageError(f"{at_prompt(str(error))}.") from error
        after = os.path.getsize(target)
        document = {"path": archive.path, "ok": True, "output": target,
                    "size_before": before, "size": after}  # fmt: skip
        sizes = f"{format_size(before)} -> {format_size(after)}"
        text = "" if quiet else f"{printable(target)}: {sizes}"
        return Outcome(document, text, "repacked")

    code = work_through("repack", archives, work, as_json=as_json, quiet=quiet)
    click.get_current_context().exit(code)
