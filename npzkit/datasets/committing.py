"""How shards become an archive: their records become the index, which counts at once.

Owns what the records must agree on, the order of the steps, and which files are removed
afterwards. Until the index is in place, the archive is as it was: the shards of the older
one are still there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from npzkit.datasets.index import ArrayRow, PartRow, ShardRow
from npzkit.datasets.index_format import FORMAT, format_index, parse_index
from npzkit.datasets.places import read_index
from npzkit.datasets.records import ShardRecord, StoredPart, record_file
from npzkit.datasets.shard_names import INDEX_NAME, attempt_of, is_temporary
from npzkit.datasets.tiling import fault_of
from npzkit.errors import IndexFormatError, MissingShardError, NpzkitError
from npzkit.files.objects import Found, Place
from npzkit.files.threads import run, thread_count
from npzkit.members.metadata import as_read

_READ_COUNT = 10
"""Shards whose records are read at once."""
_ABANDONED_SECONDS = 3600
"""Age of a shard of another attempt that is removed, if no index names it."""


def read_records(place: Place, names: Iterable[str]) -> list[ShardRecord]:
    """Return the records of shards, by what they say of themselves."""

    def read(name: str) -> ShardRecord:
        place.check_inside(name)
        return record_file(place, name)

    tasks = [lambda name=name: read(name) for name in names]
    return run(tasks, max(_READ_COUNT, thread_count(None)))


def commit_index(
    place: Place,
    records: Iterable[ShardRecord],
    metadata: Mapping[str, Any] | None = None,
    *,
    attempt: str,
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
    durable: bool = False,
) -> None:
    """Make these shards the contents of the archive, in place of what it had.

    Doing so again with the same records changes nothing.

    Parameters
    ----------
    place : Place
    records : iterable of ShardRecord
        All shards that count, each once. Shards without parts are left out.
    metadata : mapping, optional
    attempt : str
        That wrote the shards.
    attrs : mapping of str to mapping, optional
        Attributes by key, beside those that the parts were saved with.
    durable : bool
        Wait for the disk. That is always done if the index replaces another one.

    Raises
    ------
    IndexFormatError
        The parts do not tile their arrays, or disagree. Or the folder has an index of
        another program.
    MissingShardError
        A shard is not there, or is not the one that was recorded.
    StaleArchiveError, FileExistsError, ArchiveLockedError
        Another writer committed at the same time. Its archive is kept.
    """
    records = [record for record in records if record.parts]
    try:
        data = _format(records, metadata, attempt, attrs or {})
        parse_index(data)
    except NpzkitError as error:
        error.locate(path=place.name)
        raise
    files = place.listed()
    for record in records:
        if record.name not in files or files[record.name].size != record.size:
            raise MissingShardError(
                "a shard of this attempt is not there, or is another one", path=place.name,
                found=record.name, remedy="Write it again. One commit ends an attempt.",
            )  # fmt: skip
    older = read_index(place) if INDEX_NAME in files else None
    if older and FORMAT.encode() not in older:
        raise IndexFormatError(
            f"the folder has an {INDEX_NAME} of another program, which is not replaced",
            path=place.name, remedy="Choose another folder, or remove the file.",
        )  # fmt: skip
    if older != data:
        if durable or older is not None:
            # An index must never be on the disk before its shards.
            place.settle(record.name for record in records)
        place.put(INDEX_NAME, data, older, durable=durable or older is not None)
    _remove_others(place, {record.name for record in records}, _names_in(older), files, attempt)


def _format(
    records: list[ShardRecord],
    metadata: Mapping[str, Any] | None,
    attempt: str,
    attrs: Mapping[str, Mapping[str, Any]],
) -> bytes:
    by_key: dict[str, list[tuple[int, StoredPart]]] = {}
    for number, record in enumerate(records):
        for part in record.parts:
            by_key.setdefault(part.key, []).append((number, part))
    unknown = attrs.keys() - by_key.keys()
    if unknown:
        raise ValueError(f"attributes were given for keys without parts: {sorted(unknown)[:5]}")
    arrays = [_array(key, parts, attrs.get(key, {})) for key, parts in by_key.items()]
    shards = [ShardRow(record.name, record.size, record.crc32) for record in records]
    return format_index(attempt, as_read(metadata or {}), shards, arrays)


def _array(key: str, parts: list[tuple[int, StoredPart]], attrs: Mapping[str, Any]) -> ArrayRow:
    """Return the row of an array of its parts, which must agree."""
    first = parts[0][1]
    merged: dict[str, Any] = {}
    for _, part in parts:
        for what, found, expected in (
            ("shape", part.global_shape, first.global_shape),
            ("dtype", part.extension or part.descr, first.extension or first.descr),
        ):
            if found != expected:
                raise IndexFormatError(
                    f"the parts of the array disagree about its {what}", key=key, found=found,
                    expected=expected,
                )  # fmt: skip
        merged |= part.attrs
    rows = [
        PartRow(
            shard, part.stored_key, part.offset, part.shape,
            part.compressed_size, part.crc32, part.method,
        )
        for shard, part in sorted(parts, key=lambda each: each[1].offset)
        if 0 not in part.shape
    ]  # fmt: skip
    if len(rows) == 1 and rows[0].shape != first.global_shape:
        # The index has no place for it: a single part is its array.
        boxes = (np.array([box], np.int64) for box in (rows[0].offset, rows[0].shape))
        error = fault_of(first.global_shape, *boxes)
        error.locate(key=key)
        raise error
    is_fortran = len(first.global_shape) > 1 and all(part.fortran_order for _, part in parts)
    return ArrayRow(
        key, first.global_shape, first.descr, first.extension, is_fortran, {**merged, **attrs},
        tuple(rows), None if rows else (parts[0][0], first.stored_key),
    )  # fmt: skip


# -- what is left over ------------------------------------------------------


def discard(place: Place, names: Iterable[str]) -> None:
    """Remove shards that are not to be committed, except those that were.

    A commit that raises an error, or is interrupted, may already have written its index.
    """
    named: set[str] = set()
    with contextlib.suppress(FileNotFoundError):
        named = _names_in(read_index(place))
    for name in names:
        if name not in named:
            place.remove(name)


def _names_in(older: bytes | None) -> set[str]:
    """Return the shards of an older index; none if it is not valid."""
    if older is None:
        return set()
    try:
        return {shard.name for shard in parse_index(older).shards}
    except NpzkitError:
        return set()


def _remove_others(
    place: Place, kept: set[str], older: set[str], files: Mapping[str, Found], attempt: str
) -> None:
    """Remove what no index names any more, if npzkit wrote it.

    Those are the shards of the older index, those of this attempt that did not reach it,
    and those of other attempts that were written long before. A later one may be of an
    attempt that is under way. Files without a name of npzkit's shards are never removed.
    """
    newest = max((files[name].modified for name in kept), default=0.0)
    for name, found in files.items():
        own = attempt_of(name)
        if name in kept or not (own or is_temporary(name)):
            continue
        is_old = newest - found.modified > _ABANDONED_SECONDS
        if is_old or (own and (name in older or own == attempt)):
            # Windows removes no file that a reader has open. A later commit does.
            with contextlib.suppress(PermissionError):
                place.remove(name)
    place.end_uploads(lambda name: attempt_of(name) == attempt)
