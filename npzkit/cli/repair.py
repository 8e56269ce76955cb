"""The command that repairs damaged archives."""

from __future__ import annotations

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
from npzkit.cli.opening import named_file
from npzkit.cli.output import Report, json_option
from npzkit.cli.verify import outcome_of
from npzkit.cli.wording import at_prompt
from npzkit.errors import shown_url


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

    def save(archive: Archive, target: str, overwrite: bool, report: Report) -> Outcome:
        found = npzkit.repair(
            archive.path, target, partial=partial, uncommitted=uncommitted, overwrite=overwrite,
            progress=report,
        )  # fmt: skip
        return _repaired(archive, found, quiet=quiet)

    def work(archive: Archive, report: Report) -> Outcome:
        target = outputs.path_for(archive)
        if target is not None:
            return save(archive, *target, report)
        if not in_place:
            return _cut(archive, report, quiet=quiet)
        verified = npzkit.verify(archive.path, progress=report)
        if verified.ok and not verified.torn_size:
            return outcome_of(archive, verified, quiet=quiet)
        return save(archive, archive.path, True, report)

    code = work_through("repair", archives, work, as_json=as_json, quiet=quiet)
    click.get_current_context().exit(code)


def _repaired(archive: Archive, report: npzkit.RepairReport, *, quiet: bool) -> Outcome:
    """Return the outcome of saving the sound members of an archive."""
    is_shown = report.lost or not quiet
    document = {"path": shown_url(archive.path), "ok": not report.lost, **report.as_dict()}
    text = _repair_text(report) if is_shown else ""
    return Outcome(
        document, text, "with losses" if report.lost else "saved", 1 if report.lost else 0
    )


def _repair_text(report: npzkit.RepairReport) -> str:
    lost = tuple(row._replace(what=at_prompt(row.what)) for row in report.lost)
    return str(report._replace(lost=lost))


def _cut(archive: Archive, report: Report, *, quiet: bool) -> Outcome:
    """Repair the end of an archive, and check the rest."""
    size = archive.size
    repaired = npzkit.repair(archive.path)
    is_changed = archive.size != size
    verified = npzkit.verify(archive.path, progress=report)
    found = outcome_of(archive, verified, quiet=quiet)
    path = shown_path(archive.path)
    # The first line counts the members, as the verdict does.
    done = _repair_text(repaired).splitlines()[1:]
    done = done or ["its directory was written again" if is_changed else "its end is complete"]
    lines = [] if quiet else [f"{path}: {line}" for line in done]
    if found.text:
        lines.append(found.text)
    if found.code:
        lines.append(
            f"{path}: this damage was not repaired. To save the sound arrays: "
            f"npzkit repair {path} -o OTHER"
        )
    document = {**repaired.as_dict(), **found.document}
    return found._replace(document=document, text="\n".join(lines))
