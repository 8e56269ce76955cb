"""How arrays and parts of arrays become one shard.

Owns the key under which a part is stored. What a part needs besides its bytes is
`npzkit.datasets.records`'s.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import groupby, tee
from typing import Any, NamedTuple

from npzkit.archive.npzwriter import NpzWriter
from npzkit.datasets.records import ShardRecord, part_attribute, record_file
from npzkit.files.objects import Place
from npzkit.members.keys import check_key
from npzkit.members.metadata import check_attrs
from npzkit.writing.array_members import Member
from npzkit.writing.coding import Compression, coding_for

_MAX_LENGTH = 2**63 - 1


class Part(NamedTuple):
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


def check_part(part: Part) -> Part:
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
    shape = _shape_of(part.array)
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


def _shape_of(array: Any) -> tuple[int, ...]:
    if not hasattr(array, "shape"):
        import numpy as np

        array = np.asarray(array)
    return tuple(map(int, array.shape))


def add_part(
    writer: NpzWriter,
    part: Part,
    compression: Compression | None = None,
    level: int | None = None,
) -> None:
    """Write a part, which was checked, to a shard."""
    coding = coding_for(writer._coding, compression, level, None, None)
    key, array, attrs = _stored(part, writer)
    members = writer._preparation.one(key, check_key(key), array, attrs, coding)
    writer._archive.alone(writer._put, key, members, coding, False)


def add_parts(writer: NpzWriter, parts: Iterable[Part]) -> None:
    """Write parts, which were checked, one after the other, and small ones together."""
    archive = writer._archive
    archive.alone(archive.write, _members(writer, parts), writer._coding, False)


def _members(writer: NpzWriter, parts: Iterable[Part]) -> Iterator[Member]:
    taken: set[str] = set()

    def stored(part: Part) -> _Stored:
        found = _stored(part, taken)
        taken.add(found.key)
        return found

    preparation, coding = writer._preparation, writer._coding
    for has_attrs, group in groupby(map(stored, parts), lambda found: bool(found.attrs)):
        if has_attrs:
            for key, array, attrs in group:
                yield from preparation.one(key, check_key(key), array, attrs, coding)
        else:
            keys, names, arrays = tee(group, 3)
            yield from preparation.columns(
                (found.key for found in keys), (check_key(found.key) for found in names),
                (found.array for found in arrays), coding,
            )  # fmt: skip


class _Stored(NamedTuple):
    """A part as its shard has it."""

    key: str
    array: Any
    attrs: Mapping[str, Any] | None


def _stored(part: Part, taken: Container[object]) -> _Stored:
    check_key(part.key)
    check_attrs(part.attrs)
    if part.offset is None or part.global_shape is None:
        return _Stored(part.key, part.array, part.attrs)
    place = part_attribute(part.key, part.offset, part.global_shape)
    key = _free_key(part.key, part.offset, taken)
    return _Stored(key, part.array, {**(part.attrs or {}), **place})


def _free_key(key: str, offset: tuple[int, ...], taken: Container[object]) -> str:
    """Return a key for a part: that of the array, unless the shard has another part of it."""
    free = key
    while free in taken:
        free = f"{free}@{','.join(map(str, offset))}"
    return free


def write_shard(place: Place, name: str, parts: Iterable[Part], **options: Any) -> ShardRecord:
    """Write one shard, and return its record.

    The shard counts once an index names it, so a task may write its parts as often as it
    likes, each time under a new name: `npzkit.datasets.shard_names.shard_name`.

    Parameters
    ----------
    place : Place
    name : str
        Of the file, which must not exist.
    parts : iterable of Part
    **options
        Of `npzkit.NpzWriter`.
    """
    with NpzWriter(place.file(name), "x", **options) as writer:
        add_parts(writer, map(check_part, parts))
    return record_file(place, name)
