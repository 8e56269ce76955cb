"""The command that checks archives for damage."""

from __future__ import annotations

import os
import warnings
from typing import Any

import click

import npzkit
from npzkit.cli.archives import (
    Archive,
    Outcome,
    find_archives,
    folder_options,
    shown_path,
    work_through,
)
from npzkit.cli.opening import archives_argument, complete_key, forward_input
from npzkit.cli.output import (
    Report,
    in_a_line,
    json_option,
)
from npzkit.cli.wording import at_prompt
from npzkit.errors import printable, shown_url


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
    files: tuple[str, ...],
    keys: tuple[str, ...],
    recursive: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> None:
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
        with forward_input(archive.path) as source:
            found = npzkit.verify(source, keys or None, report)
        return outcome_of(archive, found, quiet=quiet, verbose=verbose)

    code = work_through("verify", archives, work, as_json=as_json, quiet=quiet)
    click.get_current_context().exit(code)


def _check_no_key(archive: Archive, files: tuple[str, ...]) -> None:
    """Raise UsageError if a FILE does not exist and is the key of an array in another one."""
    if archive.path == "-" or os.path.lexists(archive.path):
        return
    for file in files:
        if file != "-" and os.path.isfile(file) and archive.path in _keys_of(file):
            raise click.UsageError(
                f"{printable(archive.path)} is not a file, but an array in {printable(file)}. "
                f"To check it, pass --key {printable(archive.path)}."
            )


def _keys_of(file: str) -> list[str]:
    try:
        with warnings.catch_warnings(action="ignore"), npzkit.open(file) as npz:
            return list(npz)
    except (OSError, npzkit.NpzkitError):
        return []


def _rows_shown(report: npzkit.VerifyReport, *, quiet: bool, verbose: bool) -> list[Any]:
    """Return the findings to print: with `quiet` errors, with `verbose` also notes."""
    if not quiet:
        return [row for row in report.rows if verbose or row.severity != "note"]
    rows = [row for row in report.rows if row.severity == "error"]
    if report.torn_size:
        # An unfinished append is a warning about the archive.
        rows += [row for row in report.rows if row.severity == "warning" and row.key is None]
    return rows


def outcome_of(
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
