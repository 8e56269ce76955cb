"""The command group for folders of checkpoints: list, check and prune them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import click

import npzkit
from npzkit.cli.file_argument import tell_abandoned
from npzkit.cli.messages import Refusal, as_word, in_a_line, message_of, say
from npzkit.cli.output import json_option, print_json, print_table
from npzkit.errors import (
    NoCheckpointError,
    at_prompt,
    format_count,
    format_size,
    printable,
    shown_url,
    some_of,
)
from npzkit.files.urls import local_path
from npzkit.members.keys import suggestion

if TYPE_CHECKING:
    from npzkit.checkpoint import CheckpointStore, Policy


class _StoreFolder(click.Path):
    """A folder that exists, or a URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = local_path(value)
        return value if found is None else super().convert(found, param, ctx)


_folder_argument = click.argument(
    "folder", type=_StoreFolder(exists=True, file_okay=False, readable=False)
)
_UNITS = ((86400 * 2, 86400, "d"), (3600 * 2, 3600, "h"), (120, 60, "min"), (0, 1, "s"))
"""From how many seconds on a time is shown in a unit, its seconds, and its name."""


@click.group(no_args_is_help=False)
def ckpt() -> None:
    """List, check and remove the checkpoints of a training run.

    FOLDER is what npzkit.checkpoint.CheckpointStore saves to: a file per step,
    step_00000100.npz. The other commands, such as npzkit ls and npzkit diff,
    take these files. FOLDER may be a URL, such as s3://bucket/run.

    Example: npzkit ckpt ls run
    """


def _of_each(store: CheckpointStore, call: Callable[[int], Any]) -> dict[int, Any]:
    """Return what `call` returns for each step; again if a run has removed all that were listed."""
    last: tuple[int, ...] | None = None
    found: dict[int, Any] = {}
    while not found and (steps := store.steps) != last:
        last = steps
        for step in steps:
            # The run may have removed it.
            with contextlib.suppress(NoCheckpointError):
                found[step] = call(step)
    return found


# -- ls -------------------------------------------------------------------------


@ckpt.command()
@_folder_argument
@json_option
def ls(folder: str, as_json: bool) -> int:
    """List the steps in FOLDER with their sizes, ages and metrics.

    Arrays are not read. Files that steps share, of frozen arrays, count once in
    the total. A step is shown as damaged if its metadata cannot be
    read; npzkit ckpt verify finds all damage. Temporary files that killed saves
    have left are named. Exits with 1 if there is a damaged step.

    Example: npzkit ckpt ls run
    """
    tell_abandoned([folder], recursive=False)
    with npzkit.checkpoint.CheckpointStore(folder) as store:
        if not as_json:
            return print_steps(store)
        rows, _ = _rows(store)
    print_json({"folder": shown_url(folder), "steps": rows})
    return int(any(row["error"] for row in rows))


def print_steps(store: CheckpointStore) -> int:
    """Print a row per step, and return the exit code."""
    rows, total = _rows(store)
    if rows:
        headings = ("step", "right"), ("size", "right"), ("age", "right"), "metrics", "state"
        print_table(headings, [_cells(row) for row in rows])
        click.echo(f"{format_count(len(rows), 'step')}, {format_size(total)}")
    else:
        click.echo(f"{printable(store.folder)} has no checkpoints")
    return int(any(row["error"] for row in rows))


def _rows(store: CheckpointStore) -> tuple[list[dict[str, Any]], int]:
    """Return a row per step, and the bytes of all, of which shared files count once."""
    rows = list(_of_each(store, partial(_row, store)).values())
    files = [file for row in rows for file in row.pop("files")]
    # In a store of objects, each is a copy.
    sizes = {getattr(file.mark, "inode", 0) or id(file): file.size for file in files}
    return rows, sum(sizes.values())


def _row(store: CheckpointStore, step: int) -> dict[str, Any]:
    """Return what is known of a step without reading arrays."""
    files = store._files(step)
    metrics: Mapping[str, Any] = {}
    error = None
    try:
        metrics = store.metrics(step)
    except NoCheckpointError:
        raise
    except npzkit.NpzkitError as failure:
        error = in_a_line(message_of(failure))
    return {"step": step, "path": store.path(step), "size": sum(file.size for file in files),
            "modified": files[0].modified, "metrics": metrics, "error": error,
            "files": files}  # fmt: skip


def _cells(row: Mapping[str, Any]) -> list[str]:
    metrics = [f"{printable(name)} {_short(value)}" for name, value in row["metrics"].items()]
    return [
        str(row["step"]), format_size(row["size"]), _age(row["modified"]),
        ", ".join(metrics), "damaged" if row["error"] else "",
    ]  # fmt: skip


def _short(value: float) -> str:
    """Return a number with six digits."""
    try:
        return f"{value:.6g}"
    except OverflowError:
        # An int above the range of floats.
        return f"{Decimal(value):.6g}"


def _age(modified: float) -> str:
    """Return how long ago a time was, roughly; a clock that was set back makes it 0."""
    seconds = max(time.time() - modified, 0)
    size, unit = next((size, unit) for least, size, unit in _UNITS if seconds >= least)
    return f"{seconds / size:.0f} {unit}"


# -- verify ---------------------------------------------------------------------


@ckpt.command()
@_folder_argument
@click.option("--step", "steps", type=click.IntRange(0), multiple=True,
              help="Check only this step. May be given several times.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print damaged steps only.")
@json_option
def verify(folder: str, steps: tuple[int, ...], quiet: bool, as_json: bool) -> int:
    """Check every byte of the steps in FOLDER.

    Exits with 0 if all are sound, 1 if one is damaged, and 2 if there is no step
    or one cannot be read.

    Example: npzkit ckpt verify run
    """

    def check(step: int) -> Any:
        report = store.verify(step).steps[step]
        if not (as_json or (quiet and report.ok)):
            _print_report(step, report)
        return report

    with npzkit.checkpoint.CheckpointStore(folder) as store:
        found = {step: check(step) for step in steps} or _of_each(store, check)
        if not found:
            raise NoCheckpointError("there is no checkpoint", path=store.folder)
    is_ok = all(report.ok for report in found.values())
    if as_json:
        reports = {str(step): report.as_dict() for step, report in found.items()}
        print_json({"folder": shown_url(folder), "ok": is_ok, "steps": reports})
    return int(not is_ok)


def _print_report(step: int, report: Any) -> None:
    click.echo(f"step {step}: {report.verdict}")
    for row in report.rows:
        if row.severity == "error":
            key = "" if row.key is None else f"{printable(row.key)}: "
            click.echo(f"  {key}{in_a_line(at_prompt(row.what))}")


# -- prune ----------------------------------------------------------------------


@ckpt.command()
@_folder_argument
@click.option("--latest", "latest_count", type=click.IntRange(1), metavar="N",
              help="Keep the N newest steps.")  # fmt: skip
@click.option("--every", "period", type=click.IntRange(1), metavar="N",
              help="Keep the steps that are multiples of N.")  # fmt: skip
@click.option("--lowest", nargs=2, type=(str, click.IntRange(1)), multiple=True,
              metavar="METRIC N", help="Keep the N steps with the lowest METRIC.")  # fmt: skip
@click.option("--highest", nargs=2, type=(str, click.IntRange(1)), multiple=True,
              metavar="METRIC N", help="Keep the N steps with the highest METRIC.")  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option
def prune(
    folder: str, latest_count: int | None, period: int | None, lowest: tuple[tuple[str, int], ...],
    highest: tuple[tuple[str, int], ...], dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Remove the steps in FOLDER that no option keeps.

    The newest sound step always stays, and so do steps that are found damaged. A
    METRIC that no step has is an error, and so is an N of --every that divides none.
    A folder that a training run writes to is locked: let the run remove its own
    steps.

    Example: npzkit ckpt prune run --latest 3 --lowest loss 2 --dry-run
    """
    if not (latest_count or period or lowest or highest):
        raise click.UsageError("pass what to keep: --latest, --every, --lowest or --highest.")
    from npzkit.checkpoint import best, every, latest

    policies: list[Policy] = [best(metric, count) for metric, count in lowest]
    policies += [best(metric, count, mode="max") for metric, count in highest]
    policies += [latest(latest_count)] if latest_count else []
    policies += [every(period)] if period else []
    policy = reduce(or_, policies)
    with npzkit.checkpoint.CheckpointStore(folder, keep=policy) as store:
        names = store._catalog.metric_names(store.steps)
        for metric, _ in (*lowest, *highest):
            if store.steps and metric not in names:
                told = suggestion(metric, names, "metrics")
                raise Refusal(f"no step has the metric {metric!r}. {told}")
        if period and len(store) > 1 and not any(step % period == 0 for step in store):
            raise Refusal(f"no step is a multiple of {period}.")
        removed = store.prune(dry_run=dry_run)
        kept = [step for step in store.steps if step not in removed]
        damaged = {str(s): as_word(store.path(s)) for s in kept if store._catalog.is_damaged(s)}
        sound = [step for step in kept if str(step) not in damaged]
        newest = _only_newest(store, policy, sound)
    if damaged:
        steps = some_of([*damaged])
        which = f"step {steps} is" if len(damaged) == 1 else f"steps {steps} are"
        places = some_of([*damaged.values()])
        say(f"{which} damaged and not removed. To remove what is damaged, delete {places}.")
    if as_json:
        print_json({"removed": removed, "kept": kept, "dry_run": dry_run})
        return
    verb = "would be removed" if dry_run else "removed"
    for step in removed:
        click.echo(f"step {step}: {verb}")
    click.echo(f"{format_count(len(removed), 'step')} {verb}, {len(kept):,} kept{newest}")


def _only_newest(store: CheckpointStore, policy: Policy, sound: list[int]) -> str:
    """Return what to say of the newest of the sound steps that stay, if no option keeps it."""
    if not sound or sound[-1] in policy.kept(sound, store._catalog.metrics):
        return ""
    path = as_word(store.path(sound[-1]))
    return f", step {sound[-1]} only as the newest. To remove it, delete {path}."
