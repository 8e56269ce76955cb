"""Whether the parts in the shards are those that the index means.

Owns the comparison of the index with what a shard says of itself, for readers and for
`npzkit.verify`. That the shard is the one that the index names is
`npzkit.datasets.shards`'s; it is checked as an archive by `npzkit.maintenance.verify`; and
that parts tile their arrays is checked when the index is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npzkit.archive.npzfile import NpzFile
from npzkit.datasets import INDEX_NAME
from npzkit.datasets.index import Index
from npzkit.datasets.shard_names import StoredPart, record_of
from npzkit.errors import (
    REST_SAVED,
    Advice,
    ClosedArchiveError,
    IndexFormatError,
    MemberNotFoundError,
    MissingShardError,
    NpzkitError,
    quoted,
)
from npzkit.files.file_objects import Identity
from npzkit.files.progress import Meter
from npzkit.maintenance.findings import Finding

if TYPE_CHECKING:
    from npzkit.typing import Progress


_REST_READ = Advice(
    "npz.lazy(key)[a:b], or isel of xarray, reads the sound rows.",
    "npzkit extract FILE -o FOLDER saves the sound arrays; in Python, "
    "npzkit.open(path).lazy(key)[a:b] reads the sound rows of this one.",
)
_RESTORE = "Restore it from a copy, or write the archive again. " + Advice(
    "npz.lazy(key)[a:b] still reads rows in other shards; npz.parts(key) says which it has.",
    "npzkit extract FILE -o FOLDER saves the arrays in other shards.",
)


def missing_shard(name: str) -> MissingShardError:
    """Return the error for a shard that is named by the index, and is not in the folder."""
    return MissingShardError(
        f"{INDEX_NAME} names the shard {name!r}, which is gone", remedy=_RESTORE
    )


def prove_part(index: Index, number: int, part: int | None, shard: NpzFile, path: str) -> None:
    """Check that a shard has the data of a part, by its CRC-32 in the shard's directory.

    Where the part belongs is the index's to say, and `npzkit.verify`'s to compare.

    Parameters
    ----------
    index : Index
    number : int
        Of the array.
    part : int or None
        None for an array without items, which has none.
    shard : NpzFile
    path : str
        Of the archive, for messages.

    Raises
    ------
    IndexFormatError
        It has other data, or none.
    """
    stored_key, key = index.stored_key(number, part), index.keys[number]
    try:
        entry = shard._archive.one_file().entry(stored_key)
    except MemberNotFoundError as error:
        raise IndexFormatError(
            f"the shard {quoted(str(shard._archive.path))} has no array {stored_key!r}", path=path,
            key=key, remedy="Write the archive again.",
        ) from error  # fmt: skip
    found = entry.crc32, entry.compressed_size, entry.method
    expected = index.stored_as(number, part)
    if found != expected:
        shown = "CRC-32 {:08x}, {} bytes, method {}"
        raise IndexFormatError(
            "a part is not what the index says", path=path, key=key, found=shown.format(*found),
            expected=shown.format(*expected), remedy="Write the archive again.",
        )  # fmt: skip


def differences(
    index: Index, number: int, part: int | None, found: StoredPart
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each property that differs: its name, the value in the shard, and that in the index."""
    shape, there = index.shape(number), found.global_shape
    # Rows may have been appended since.
    is_shorter = there[1:] == shape[1:] and there[:1] < shape[:1]
    pairs: list[tuple[str, Any, Any]] = [
        ("complete shape", shape if is_shorter else there, shape),
        ("dtype", (found.dtype, found.extension), index.descr(number)),
    ]
    if part is not None:
        row = index.part(number, part)
        pairs += [
            ("shape", found.shape, row.shape),
            ("place", found.offset, row.offset),
            ("compressed size", found.compressed_size, row.compressed_size),
            ("CRC-32", found.crc32, row.crc32),
            ("method", found.method, row.method),
        ]
    for what, there, expected in pairs:
        if there != expected:
            yield what, there, expected


Wanted = dict[int, list[tuple[int, int | None]]]
"""By shard: the numbers of arrays and parts that are checked; None where there is no part."""


Seen = dict[Identity, tuple[str, bool]]
"""Files that were verified: the path of each, and whether it is sound."""


def verify_shards(
    index: Index,
    open_shard: Callable[[int], NpzFile],
    numbers: Sequence[int],
    progress: Progress | None,
    threads: int,
    seen: Seen | None = None,
    *,
    is_complete: bool,
) -> tuple[tuple[Finding, ...], int]:
    """Return what is wrong with arrays of a sharded archive, and the bytes that were checked.

    Parameters
    ----------
    index : Index
    open_shard : callable
        Returns the shard of a number.
    numbers : sequence of int
        The arrays.
    progress, threads
        As in `npzkit.verify`.
    seen : dict, optional
        Files that were verified before, which are not read again; those of this archive are
        added. Only for all of an archive.
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
    meter = Meter(progress, total)
    for shard, chosen in sorted(wanted.items()):
        size = sum(index.part_nbytes(number, part) for number, part in chosen if part is not None)
        share = meter.part(size)
        rows += _shard_findings(
            index, open_shard, shard, chosen, share.reach, threads, seen, is_complete
        )
        share.end()
    meter.finish()
    order = {key: at for at, key in enumerate(index.keys)}
    rows.sort(key=lambda row: order.get(row.key or "", -1))
    return tuple(rows), total


def _shard_findings(
    index: Index,
    open_shard: Callable[[int], NpzFile],
    shard: int,
    parts: list[tuple[int, int | None]],
    progress: Progress | None,
    threads: int,
    seen: Seen | None,
    is_complete: bool,
) -> Iterator[Finding]:
    name = index.shards[shard].name
    try:
        npz = open_shard(shard)
        stored = {part.stored_key: part for part in record_of(npz, name).parts}
    except ClosedArchiveError:
        raise
    except NpzkitError as error:
        # Whoever asks for some arrays learns which of them are concerned.
        arrays = [None] if is_complete else dict.fromkeys(index.keys[number] for number, _ in parts)
        for array in arrays:
            yield _in_shard(name, array, Finding._of(None, error))
        return
    keys = {index.stored_key(number, part): (number, part) for number, part in parts}
    yield from _index_findings(index, name, keys, stored)
    chosen = None if is_complete else [key for key in keys if key in stored]
    for row in _rows_of(npz, chosen, progress, threads, seen):
        array, at, of = None, "", ""
        if row.key in stored and row.key not in keys:
            # It was removed or replaced, as is said below.
            continue
        if row.key in keys:
            number, part = keys[row.key]
            array = index.keys[number]
            if part is not None and len(index.part_numbers(number)) > 1:
                at = f", part at {index.part(number, part).offset}"
                of = " of the part" * (", in row" in row.what)
        yield _in_shard(name, array, row._replace(what=row.what + of), at)
    for key, found in stored.items() if is_complete else ():
        if key not in keys and 0 not in found.shape:
            what = f"its array {key!r} is no part of the archive; repack removes it"
            yield _in_shard(name, None, Finding(None, "note", what))


def _index_findings(
    index: Index, name: str, keys: Mapping[str, tuple[int, int | None]], stored: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield in what the arrays of a shard, by its record, differ from the index."""
    for key, (number, part) in keys.items():
        texts = ["it has no such array as the index says"]
        if key in stored:
            texts = [
                f"its {what} is not that of the index: found {there!r}, expected {expected!r}"
                for what, there, expected in differences(index, number, part, stored[key])
            ]
        for text in texts:
            yield _in_shard(name, index.keys[number], Finding(None, "error", text))


def _rows_of(
    npz: NpzFile, keys: list[str] | None, progress: Progress | None, threads: int, seen: Seen | None
) -> tuple[Finding, ...]:
    """Return what is wrong in a shard; in little time if its file was verified before."""
    archive = npz._archive.one_file()
    identity = getattr(archive.source, "identity", None)
    if seen is None or identity is None:
        return npz.verify(keys, progress=progress, threads=threads).rows
    if identity not in seen:
        report = npz.verify(keys, progress=progress, threads=threads)
        seen[identity] = str(archive.path), report.ok
        return report.rows
    path, is_sound = seen[identity]
    what = f"it is the same file as {quoted(path)}, which is damaged"
    return () if is_sound else (Finding(None, "error", what),)


def _in_shard(name: str, key: str | None, row: Finding, at: str = "") -> Finding:
    # A shard without some of its rows would not fit the index.
    remedy = _REST_READ if row.remedy == REST_SAVED + "." else None
    return Finding(key, row.severity, f"shard {name!r}{at}: " + row.what, row.where, remedy)
