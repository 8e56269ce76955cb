"""Writing shards and making them an archive: what writers and engines need for it.

Owns how parts become a shard (`write_shard`), how shards become an archive
(`commit_index`): what their records must agree on, the order of the steps, and which files
are removed afterwards. Until the index is in place, the archive is as it was: the shards of
the older one are still there.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import re
import time
from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npzkit.archive.npzwriter import NpzWriter
from npzkit.codecs.coding import coding_for
from npzkit.datasets import INDEX_NAME
from npzkit.datasets.index import ArrayRow, Index, PartRow
from npzkit.datasets.index_format import format_index, parse_index
from npzkit.datasets.part_checks import missing_shard
from npzkit.datasets.shard_names import (
    ShardRecord,
    StoredPart,
    attempt_of,
    is_index,
    part_attribute,
    record_file,
)
from npzkit.datasets.tiling import fault_of
from npzkit.errors import Advice, IndexFormatError, MissingShardError, NpzkitError
from npzkit.files.threads import run
from npzkit.files.urls import Location, find_location
from npzkit.limits import Limits, thread_count
from npzkit.members.keys import check_key
from npzkit.members.metadata import check_attrs
from npzkit.stores.objects import Found, LocalFolder, Objects, StorePrefix, is_temporary, objects_at

if TYPE_CHECKING:
    from npzkit.typing import Compression


_NO_INDEX = (
    f"no {INDEX_NAME} in the folder: its archive was never committed, or it is no archive. If "
    "it is a folder of checkpoints, use "
    + Advice("npzkit.checkpoint.CheckpointStore(path)", "npzkit ckpt ls FOLDER")
)
_NOT_COMMITTED = (
    f"the folder has shards, but no {INDEX_NAME}: its archive was never committed, or its index "
    "was removed"
)
_WRITE_AGAIN = (
    "A writer was probably killed, or nobody has committed: run the writers again as a new "
    "attempt, then commit"
)
_DAMAGED_INDEX = (
    f"Restore {INDEX_NAME} from a copy, or write the archive again. Its shards are archives that "
    "can be opened alone."
)
AS_ONE_FILE = Advice(
    "npzkit.convert(folder, 'a.npz') makes one file of it.",
    "npzkit convert FOLDER FILE.npz makes one file of it.",
)
NAME_A_FOLDER = f"Name a folder, which gets several files. {AS_ONE_FILE}"
"""The remedy where those that write at the same time are to write to one file."""


def place_of(
    folder: Any, storage_options: Mapping[str, Any] | None = None
) -> LocalFolder | StorePrefix:
    """Return the place that a path or URL of a folder, or of its index, means."""
    found = find_location(folder, storage_options)
    if isinstance(found, Location):
        # The URL of a web server may have a query.
        url, mark, query = found.url.partition("?") if found.is_web else (found.url, "", "")
        return objects_at(
            Location(url.removesuffix(f"/{INDEX_NAME}") + mark + query, found.options)
        )
    path = os.fsdecode(found)
    if os.path.basename(path) == INDEX_NAME and not os.path.isdir(path):
        path = os.path.dirname(path) or os.curdir
    return objects_at(path)


def check_own_folder(place: Objects) -> None:
    """Raise FileExistsError if a folder has archives, and is no sharded archive.

    Such an archive would hide them from `npzkit ls`. Where shards are, the index is npzkit's.
    """
    files = place.listed()
    others = [
        name for name in files
        if name.lower().endswith(".npz") and not (attempt_of(name) or is_temporary(name))
    ]  # fmt: skip
    if others and not (
        INDEX_NAME in files and (any(map(attempt_of, files)) or is_index(place.file(INDEX_NAME)))
    ):
        raise FileExistsError(
            errno.EEXIST, f"the folder already has archives, such as {min(others)!r}: a sharded "
            "archive there would hide them. Choose a folder of its own", place.name,
        )  # fmt: skip


def check_index_not_lost(place: Objects, attempt: str) -> None:
    """Raise FileNotFoundError if a folder has no index, but old shards of another attempt.

    They may be an archive: a writer that adds to a new one would have them removed. Younger ones
    may be of another writer, which begins the archive too.
    """
    files = place.listed()
    if INDEX_NAME not in files and any(
        attempt_of(name) not in (None, attempt)
        and time.time() - found.modified > _ABANDONED_SECONDS
        for name, found in files.items()
    ):
        raise FileNotFoundError(
            errno.ENOENT, f"{_NOT_COMMITTED}. Restore {INDEX_NAME} from a copy. If you need "
            "nothing of it, move the shards away, or begin with ShardedWriter(folder, mode='w')",
            place.name,
        )  # fmt: skip


def read_index(
    place: Objects, limits: Limits, strict: bool = True
) -> tuple[Index, tuple[int, int]]:
    """Return the index, as `parse_index` does; FileNotFoundError if there is none."""
    try:
        return parse_index(place.file(INDEX_NAME), limits, strict=strict)
    except NpzkitError as error:
        if error.is_damage:
            error.remedy = _DAMAGED_INDEX
        raise
    except PermissionError as error:
        if isinstance(place, LocalFolder) and not os.access(place.path, os.X_OK):
            # Nobody knows whether it has an index.
            error.filename = place.name
        raise
    except FileNotFoundError:
        if not (isinstance(place, LocalFolder) and os.path.isdir(place.path)):
            raise
        has_shards = any(map(attempt_of, place.listed()))
        what = f"{_NOT_COMMITTED}. {_WRITE_AGAIN}" if has_shards else _NO_INDEX
        raise FileNotFoundError(errno.ENOENT, what, place.name) from None


_MAX_LENGTH = 2**63 - 1


class ShardPart(NamedTuple):
    """An array, or a part of one, to be written.

    Attributes
    ----------
    key : str
        Of the array.
    array : array-like
    offset : tuple of int, optional
        Where the part begins in the array; None for a complete array.
    global_shape : tuple of int, optional
        Of the array; None for a complete array.
    attrs : mapping, optional
    """

    key: str
    array: Any
    offset: tuple[int, ...] | None = None
    global_shape: tuple[int, ...] | None = None
    attrs: Mapping[str, Any] | None = None


def check_part(part: ShardPart) -> ShardPart:
    """Return a part with plain numbers.

    Raises
    ------
    TypeError, ValueError
        One of `offset` and `global_shape` is missing, or the part is not within its array.
    """
    if part.offset is None and part.global_shape is None:
        return part
    if part.offset is None or part.global_shape is None:
        raise TypeError("offset and global_shape are given together, or neither")
    offset = tuple(map(operator.index, part.offset))
    global_shape = tuple(map(operator.index, part.global_shape))
    if any(length > _MAX_LENGTH for length in global_shape):
        raise ValueError(f"no array has the shape {global_shape}: a length is above 2**63 - 1")
    shape = np.shape(part.array)
    if not len(offset) == len(global_shape) == len(shape):
        raise ValueError(
            f"offset {offset}, global_shape {global_shape} and the part's shape {shape} must have "
            "the same length"
        )
    for start, length, whole in zip(offset, shape, global_shape, strict=True):
        if start < 0 or start + length > whole:
            raise ValueError(
                f"a part of shape {shape} at offset {offset} is not within an array of shape "
                f"{global_shape}"
            )
    return part._replace(offset=offset, global_shape=global_shape)


def add_part(
    writer: NpzWriter,
    part: ShardPart,
    compression: Compression | None = None,
    level: int | None = None,
) -> None:
    """Write a part, which was checked, to a shard."""
    coding = coding_for(writer._coding, compression, level, None, None)
    key, array, attrs = _stored(part, writer)
    members = writer._preparation.one(key, check_key(key), array, attrs, coding)
    writer._archive.alone(writer._put, key, members, coding, False)


_Stored = tuple[str, Any, Mapping[str, Any] | None]
"""A part as its shard has it: its key there, the array, attributes."""


def _stored(part: ShardPart, taken: Container[object]) -> _Stored:
    check_key(part.key)
    check_attrs(part.attrs)
    if part.offset is None or part.global_shape is None:
        return part.key, part.array, part.attrs
    place = part_attribute(part.key, part.offset, part.global_shape)
    # That of the array, unless the shard has another part of it.
    key = part.key
    while key in taken:
        key = f"{key}@{','.join(map(str, part.offset))}"
    return key, part.array, {**(part.attrs or {}), **place}


def write_shard(
    place: Objects, name: str, parts: Iterable[ShardPart], **options: Any
) -> ShardRecord:
    """Write one shard, and return its record.

    The shard counts once an index names it, so a task may write its parts as often as it
    likes, each time under a new name: `npzkit.datasets.shard_names.shard_name`.

    Parameters
    ----------
    place : Objects
    name : str
        Of the file, which must not exist.
    parts : iterable of ShardPart
    **options
        Of `npzkit.NpzWriter`.
    """
    taken: set[str] = set()

    def stored(part: ShardPart) -> _Stored:
        found = _stored(check_part(part), taken)
        taken.add(found[0])
        return found

    with NpzWriter(place.file(name), "x", **options) as writer:
        writer._add_each(map(stored, parts))
    return record_file(place, name)


_Base = tuple[bytes, Index] | tuple[None, None] | None
READ_COUNT = 10
"""Distant shards that are opened at once, and shards whose records are read at once."""
_ABANDONED_SECONDS = 24 * 3600
"""Age of a shard of another attempt that is removed, if no index names it."""


def read_records(place: Objects, names: Iterable[str]) -> list[ShardRecord]:
    """Return the records of shards, by what they say of themselves."""
    tasks = [partial(record_file, place, name) for name in names]
    return run(tasks, max(READ_COUNT, thread_count(None)))


def recorded(
    index: Index, numbers: Mapping[str, int], rows: Mapping[str, int]
) -> list[ShardRecord]:
    """Return the records of the shards that an index names, with some of its arrays.

    Those have the `numbers` in the index and these keys, and some so many `rows` now.
    """
    parts: list[list[StoredPart]] = [[] for _ in index.shards]
    for key, number in numbers.items():
        shape, descr, attrs = index.shape(number), index.descr(number), index.attrs(number)
        if key in rows:
            shape = rows[key], *shape[1:]
        form = *descr, index.fortran_order(number), attrs
        for row in list(index.parts(number)) or [index.home_part(number)]:
            shard, stored_key, offset, part_shape, *stored = row
            parts[shard].append(
                StoredPart(key, stored_key, offset, part_shape, shape, *form, *stored)
            )
    pairs = zip(index.shards, parts, strict=True)
    return [shard._replace(parts=tuple(found)) for shard, found in pairs]


def commit_index(
    place: Objects,
    records: Iterable[ShardRecord],
    metadata: Mapping[str, Any] | None = None,
    *,
    attempt: str,
    attrs: Mapping[str, Mapping[str, Any]] | None = None,
    durable: bool = False,
    order: Iterable[str] = (),
    base: _Base = None,
    files: Mapping[str, Found] | None = None,
) -> None:
    """Make these shards the contents of the archive, in place of what it had.

    Doing so again with the same records changes nothing.

    Parameters
    ----------
    place : Objects
    records : iterable of ShardRecord
        All shards that count, each once. Shards without parts are left out.
    metadata : mapping, optional
    attempt : str
        That wrote the shards.
    attrs : mapping of str to mapping, optional
        Attributes by key of arrays, beside those that the parts were saved with.
    durable : bool
        Wait for the disk. That is always done if the index replaces another one.
    order : iterable of str, optional
        Keys that the index lists first.
    base : (bytes, Index) or (None, None), optional
        The index that this one follows, which must still be there; or that there was none. Then
        the folder may have shards of an archive whose index was lost, which stay.
    files : mapping, optional
        What is in the folder, if it was listed when all shards were there.

    Raises
    ------
    IndexFormatError
        The parts do not tile their arrays, or disagree. Or the folder has an index of
        another program.
    MissingShardError
        A shard is not there, or is not the one that was recorded.
    StaleArchiveError, ArchiveLockedError
        Another writer committed at the same time. Its archive is kept.
    """
    records = [record for record in records if record.parts]
    files = place.listed() if files is None else files
    older = place.read(INDEX_NAME) if INDEX_NAME in files else None
    before = base[1] if base is not None and base[0] == older else _index_of(older)
    named = set() if before is None else {shard.name for shard in before.shards}
    try:
        write = partial(_format, records, metadata, attempt, attrs or {}, order)
        data = write(durable=durable or older is not None)
        if not (durable or before is None or before.is_durable):
            # It replaces another one, unless that is the same, for which nobody waited.
            unsynced = write(durable=False)
            data = unsynced if unsynced == older else data
        durable = durable or older is not None
        parse_index(data)
        _check_replaceable(older, before)
        if base is not None and older not in (base[0], data):
            raise place.overtaken()
        # The other writer may have removed shards of the archive that this one adds to.
        _check_there(records, files, named)
    except NpzkitError as error:
        raise error.locate(path=place.name) from error.__cause__
    if older != data:
        if durable:
            # An index must never be on the disk before its shards.
            settled = named if before is not None and before.is_durable else set()
            place.settle(record.name for record in records if record.name not in settled)
        place.put(INDEX_NAME, data, older, durable=durable)
    if base is None or base[0] is not None:
        _remove_others(place, {record.name for record in records}, named, files, attempt)


def _check_replaceable(older: bytes | None, before: Index | None) -> None:
    """Check that the index in the folder, if there is one, is not another program's."""
    # A damaged index is replaced.
    if older is not None and before is None and not is_index(older, if_damaged=True):
        raise IndexFormatError(
            f"the folder has an {INDEX_NAME} of another program, which is not replaced",
            remedy="Choose another folder, or remove the file.",
        )


def _check_there(
    records: list[ShardRecord], files: Mapping[str, Found], named: Container[str]
) -> None:
    for record in records:
        if record.name in named and record.name not in files:
            raise missing_shard(record.name)
        if record.name not in files or files[record.name].size != record.size:
            raise MissingShardError(
                "a shard of this attempt is not there, or is another one",
                found=record.name, remedy="Write it again. One commit ends an attempt.",
            )  # fmt: skip


def _format(
    records: list[ShardRecord],
    metadata: Mapping[str, Any] | None,
    attempt: str,
    attrs: Mapping[str, Mapping[str, Any]],
    order: Iterable[str],
    *,
    durable: bool,
) -> bytes:
    by_key: dict[str, list[tuple[int, StoredPart]]] = {key: [] for key in order}
    for number, record in enumerate(records):
        for part in record.parts:
            by_key.setdefault(part.key, []).append((number, part))
    arrays = [_array(key, parts, attrs.get(key, {})) for key, parts in by_key.items()]
    return format_index(attempt, metadata or {}, records, arrays, durable=durable)


def _array(key: str, parts: list[tuple[int, StoredPart]], attrs: Mapping[str, Any]) -> ArrayRow:
    """Return the row of an array of its parts, which must agree."""
    first = parts[0][1]
    merged: dict[str, Any] = {}
    for _, part in parts:
        for what, found, expected in (
            ("shape", part.global_shape, first.global_shape),
            ("dtype", part.extension or part.dtype, first.extension or first.dtype),
        ):
            if found != expected:
                raise IndexFormatError(
                    f"the parts of the array disagree about its {what}", key=key, found=found,
                    expected=expected,
                    remedy="Write all parts again with the same global_shape, and cast to one "
                    "dtype: array.astype(dtype).",
                )  # fmt: skip
        merged |= part.attrs
    rows = [
        PartRow(
            shard, part.stored_key, part.offset, part.shape,
            part.compressed_size, part.crc32, part.method,
        )
        for shard, part in sorted(parts, key=lambda each: each[1].offset)
    ]  # fmt: skip
    home, rows = rows[0], [row for row in rows if 0 not in row.shape]
    if len(rows) == 1 and rows[0].shape != first.global_shape:
        # The index has no place for it: a single part is its array.
        boxes = (np.array([box], np.int64) for box in (rows[0].offset, rows[0].shape))
        error = fault_of(first.global_shape, *boxes)
        error.locate(key=key)
        raise error
    is_fortran = len(first.global_shape) > 1 and all(part.fortran_order for _, part in parts)
    return ArrayRow(
        key, first.global_shape, first.dtype, first.extension, is_fortran, {**merged, **attrs},
        tuple(rows), None if rows else home,
    )  # fmt: skip


# -- what is left over ------------------------------------------------------


def discard(place: Objects, names: Iterable[str]) -> None:
    """Remove shards that are not to be committed, except those that were.

    A commit that raises an error, or is interrupted, may already have written its index.
    """
    older = None
    with contextlib.suppress(FileNotFoundError):
        older = _index_of(place.read(INDEX_NAME))
    named = set() if older is None else {shard.name for shard in older.shards}
    for name in names:
        if name not in named:
            place.remove(name)


def _index_of(older: bytes | None) -> Index | None:
    """Return an older index; None if it is not valid."""
    with contextlib.suppress(NpzkitError):
        return None if older is None else parse_index(older)[0]
    return None


def _remove_others(
    place: Objects, kept: set[str], older: set[str], files: Mapping[str, Found], attempt: str
) -> None:
    """Remove what no index names any more, if npzkit wrote it.

    Those are the shards of the older index, those of this attempt that did not reach it,
    and those of other attempts that were written a day before. A later one may be of an
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


_UNITS = {"": 1, "b": 1} | {
    prefix + unit: base**power
    for unit, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt", 1)
}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGT]?i?B?)", re.IGNORECASE | re.ASCII)


def parse_size(size: int | str, name: str = "shard_size") -> int:
    """Return a number of bytes.

    Raises
    ------
    TypeError, ValueError
        It is not a positive integer, or a number with a unit.

    Examples
    --------
    >>> parse_size("5GB"), parse_size("64 MiB"), parse_size(1000)
    (5000000000, 67108864, 1000)
    """
    if isinstance(size, str):
        found = _SIZE.fullmatch(size.strip())
        factor = _UNITS.get(found[2].lower()) if found else None
        if found is None or factor is None:
            raise ValueError(f"{name} must be a size such as '5GB' or '64MiB', not {size!r}")
        count = int(float(found[1]) * factor)
    else:
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise TypeError(f"{name} must be an integer or a string, not {type(size).__name__}")
        count = operator.index(size)
    if count < 1:
        raise ValueError(f"{name} must be at least one byte, not {size!r}")
    return count
