"""What a shard says of itself: which parts of which arrays it holds, and where they belong.

Owns the attribute that keeps the place of a part with the part, and the record of a shard.
So whoever commits the index needs only the shards, or the records that their writers
returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from npzkit.archive.npzfile import NpzFile
from npzkit.errors import IndexFormatError, NotAnArrayError
from npzkit.files.objects import Place
from npzkit.limits import Limits
from npzkit.members.extension_dtypes import DTYPE_ATTRIBUTE
from npzkit.members.metadata import parse_attrs

PART_ATTRIBUTE = "npzkit.part"
"""The attribute of a part that is not a complete array: the key and the shape of its array,
and where it belongs."""


class StoredPart(NamedTuple):
    """A part of an array, as its shard has it.

    Attributes
    ----------
    key : str
        Of the array.
    stored_key : str
        Of the part in its shard.
    offset, shape : tuple of int
        Where the part belongs in the array.
    global_shape : tuple of int
        Of the array.
    descr : object
        Of the NPY header, with lists for tuples.
    extension : str or None
        The name of a dtype that NPY cannot name.
    fortran_order : bool
    attrs : dict
        The user's, and those that npzkit keeps with arrays which were split.
    compressed_size, crc32, method : int
        As in the shard's directory.
    """

    key: str
    stored_key: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    global_shape: tuple[int, ...]
    descr: Any
    extension: str | None
    fortran_order: bool
    attrs: Mapping[str, Any]
    compressed_size: int
    crc32: int
    method: int


class ShardRecord(NamedTuple):
    """A complete shard, as `npzkit.datasets.committing.commit_index` needs it. Can be pickled.

    Attributes
    ----------
    name : str
        Of the file.
    size : int
        Bytes of the file.
    crc32 : int
        Of its central directory.
    parts : tuple of StoredPart
    """

    name: str
    size: int
    crc32: int
    parts: tuple[StoredPart, ...]


def part_attribute(
    key: str, offset: tuple[int, ...], global_shape: tuple[int, ...]
) -> dict[str, Any]:
    """Return the attribute that says where a part belongs."""
    return {PART_ATTRIBUTE: {"key": key, "offset": list(offset), "shape": list(global_shape)}}


def record_of(npz: NpzFile, name: str) -> ShardRecord:
    """Return the record of an open shard.

    Raises
    ------
    NpzkitError
        It is damaged, or has something that cannot be a part.
    """
    return ShardRecord(name, *version_of(npz), tuple(part_of(npz, key) for key in npz.files))


def record_file(place: Place, name: str) -> ShardRecord:
    """Return the record of a complete shard. Its writer is trusted, so headers have no limit."""
    with NpzFile(place.file(name), limits=Limits(header_size=None)) as npz:
        return record_of(npz, name)


def version_of(npz: NpzFile) -> tuple[int, int]:
    """Return what tells an open shard from another: its size, and its directory's CRC-32."""
    archive = npz._archive
    return archive.source.file_size, archive.directory_crc32


def part_of(npz: NpzFile, stored_key: str) -> StoredPart:
    """Return a part as an open shard has it; raises as `record_of`."""
    archive = npz._archive
    entry = archive.entry(stored_key)
    header = archive.read_index().find(entry) or archive.reader.header(entry)[0]
    if header is None or header.dtype.hasobject:
        raise NotAnArrayError(
            "only arrays of plain values can be sharded", path=archive.path, key=stored_key,
            is_damage=True,
        )  # fmt: skip
    attrs = parse_attrs(entry.extra)
    shape = header.shape
    place, extension = attrs.pop(PART_ATTRIBUTE, None), attrs.pop(DTYPE_ATTRIBUTE, None)
    key, offset, global_shape = stored_key, (0,) * len(shape), shape
    if place is not None:
        key, offset, global_shape = _place(place, len(shape), stored_key)
    dtype = header.dtype
    return StoredPart(
        key, stored_key, offset, shape, global_shape,
        dtype.str if dtype.names is None else _as_lists(dtype.descr),
        extension if isinstance(extension, str) else None,
        header.fortran_order, attrs,
        entry.compressed_size, entry.crc32, entry.method,
    )  # fmt: skip


def _place(place: Any, ndim: int, key: str) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return what the attribute says, checked as far as one part can be."""
    if isinstance(place, dict) and place.keys() == {"key", "offset", "shape"}:
        offset, shape = place["offset"], place["shape"]
        if isinstance(place["key"], str) and _is_place(offset, ndim) and _is_place(shape, ndim):
            return place["key"], tuple(offset), tuple(shape)
    raise IndexFormatError(f"the attribute {PART_ATTRIBUTE!r} is not valid", key=key, found=place)


def _is_place(numbers: object, ndim: int) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) == ndim
        and all(type(number) is int and 0 <= number < 2**63 for number in numbers)
    )


def _as_lists(value: Any) -> Any:
    """Return a ``descr`` as JSON has it."""
    return [_as_lists(inner) for inner in value] if isinstance(value, (list, tuple)) else value
