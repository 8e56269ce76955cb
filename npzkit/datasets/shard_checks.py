"""Checking a sharded archive: the index against the shards, and the shards themselves.

Owns what an index must have in common with its shards. A shard is checked as an archive by
`npzkit.maintenance.verify`, and that parts tile their arrays is checked when the index is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from npzkit.datasets.index import Index
from npzkit.datasets.part_checks import differences
from npzkit.datasets.records import StoredPart, record_of
from npzkit.datasets.shards import OpenShards
from npzkit.errors import ClosedArchiveError, NpzkitError
from npzkit.maintenance.findings import Finding, VerifyReport, finding

Progress = Callable[[int, int], object]
Wanted = dict[int, list[tuple[int, int | None]]]
"""By shard: the numbers of arrays and parts that are checked; None where there is no part."""


def verify_shards(
    shards: OpenShards,
    index: Index,
    numbers: Sequence[int],
    progress: Progress | None,
    threads: int | None,
    *,
    is_complete: bool,
) -> VerifyReport:
    """Return what is wrong with arrays of a sharded archive.

    Parameters
    ----------
    shards : OpenShards
    index : Index
    numbers : sequence of int
        The arrays.
    progress, threads
        As in `npzkit.verify`.
    is_complete : bool
        Check all of each shard.
    """
    wanted: Wanted = {number: [] for number in range(len(index.shards))} if is_complete else {}
    for number in numbers:
        parts = index.part_numbers(number)
        for part in parts:
            wanted.setdefault(index.shard_of(part), []).append((number, part))
        if not parts:
            wanted.setdefault(index.home(number), []).append((number, None))
    total = sum(index.nbytes[number] for number in numbers)
    rows: list[Finding] = []
    done = 0
    for shard, chosen in sorted(wanted.items()):
        size = sum(index.part_nbytes(number, part) for number, part in chosen if part is not None)
        report = _within(progress, done, size, total)
        rows += _shard_findings(shards, index, shard, chosen, report, threads, is_complete)
        done += size
    if progress is not None:
        progress(total, total)
    order = {key: at for at, key in enumerate(index.keys)}
    rows.sort(key=lambda row: order.get(row.key or "", -1))
    return VerifyReport(shards.path, tuple(rows), len(numbers), total)


def _within(
    progress: Progress | None, before: int, size: int, total: int
) -> Callable[[int, int], object] | None:
    """Return what reports the progress of one shard as a part of all."""
    if progress is None:
        return None
    return lambda done, all_: progress(before + min(done, size), total)


def _shard_findings(
    shards: OpenShards,
    index: Index,
    shard: int,
    parts: list[tuple[int, int | None]],
    progress: Progress | None,
    threads: int | None,
    is_complete: bool,
) -> Iterator[Finding]:
    name = index.shards[shard].name
    try:
        npz = shards.get(shard)
        stored = {part.stored_key: part for part in record_of(npz, name).parts}
    except ClosedArchiveError:
        raise
    except NpzkitError as error:
        yield _in_shard(name, None, finding(None, error))
        return
    keys = {index.stored_key(number, part): (number, part) for number, part in parts}
    for key, (number, part) in keys.items():
        for what in _differences(index, number, part, stored.get(key)):
            yield _in_shard(name, index.keys[number], Finding(None, "error", what))
    chosen = None if is_complete else [key for key in keys if key in stored]
    for row in npz.verify(chosen, progress, threads=threads).rows:
        array = index.keys[keys[row.key][0]] if row.key in keys else None
        yield _in_shard(name, array, row)
    if is_complete:
        others = [key for key, part in stored.items() if key not in keys and 0 not in part.shape]
        for key in others:
            what = f"its array {key!r} is no part of the archive"
            yield _in_shard(name, None, Finding(None, "note", what))


def _differences(
    index: Index, number: int, part: int | None, found: StoredPart | None
) -> Iterator[str]:
    """Yield in what a part differs from what the index says."""
    if found is None:
        yield "it has no such array as the index says"
        return
    for what, there, expected in differences(index, number, part, found):
        yield f"its {what} is not that of the index: found {there!r}, expected {expected!r}"


def _in_shard(name: str, key: str | None, row: Finding) -> Finding:
    return Finding(key, row.severity, f"shard {name!r}: {row.what}", row.where)
