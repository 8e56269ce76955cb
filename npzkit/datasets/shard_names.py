"""What a shard is: its name, and what it says of its parts and where they belong.

Owns which names are safe in any folder and store, which shards belong to which attempt, which
archive is an index, the attribute that keeps the place of a part with the part, and the record
of a shard. So whoever commits the index needs only the shards, or the records that their
writers returned.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from npzkit.archive.npzfile import NpzFile
from npzkit.datasets import INDEX_NAME, SHARDS_KEY
from npzkit.errors import IndexFormatError, NotAnArrayError, NpzkitError, UnsafeNameError
from npzkit.limits import Limits
from npzkit.members.metadata import parse_attrs
from npzkit.members.tensors import DTYPE_ATTRIBUTE

if TYPE_CHECKING:
    import numpy as np

    from npzkit.stores.objects import Objects

_ATTEMPT = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?"
_WRITER_SIZE = 4
_WRITER = rf"([aw]?)[0-9a-f]{{{2 * _WRITER_SIZE}}}"
_OWN_NAME = re.compile(rf"shard-({_ATTEMPT})\.{_WRITER}-[0-9]{{5,12}}\.npz")
"""A shard that npzkit wrote: attempt, mode, writer and number."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]{0,195}\.npz")
"""No separator, drive, scheme or other character that a system gives a meaning to."""
_DEVICE = re.compile(r"(?:CON|PRN|AUX|NUL|COM[0-9]|LPT[0-9])\.", re.IGNORECASE)
"""Names that are devices on Windows, with any suffix."""


def new_attempt() -> str:
    """Return the name of an attempt that nobody else has."""
    return os.urandom(8).hex()


def new_writer(mode: str = "") -> str:
    """Return the name of a writer, with its mode. No other writer of its attempt has it."""
    return mode + os.urandom(_WRITER_SIZE).hex()


def check_attempt(attempt: object) -> str:
    """Return the name of an attempt.

    Raises
    ------
    TypeError, ValueError
        It cannot be a part of a file's name.
    """
    if not isinstance(attempt, str):
        raise TypeError(f"attempt must be a string or None, not {type(attempt).__name__}")
    if not re.fullmatch(_ATTEMPT, attempt):
        raise ValueError(
            f"attempt must be 1 to 64 letters, digits, '-' and '_', and begin and end with a "
            f"letter or digit; not {attempt!r}"
        )
    return attempt


def is_index(file: Any, *, if_damaged: bool = False) -> bool:
    """Return whether an archive is the index of a sharded one; OSError if it cannot be read."""
    with contextlib.suppress(NpzkitError), NpzFile(file) as npz:
        return SHARDS_KEY in npz.metadata
    return if_damaged


def shard_name(attempt: str, writer: str, number: int) -> str:
    """Return the name of a shard.

    Examples
    --------
    >>> shard_name("a1", "00c0ffee", 2)
    'shard-a1.00c0ffee-00002.npz'
    """
    return f"shard-{attempt}.{writer}-{number:05}.npz"


def attempt_of(name: str) -> str | None:
    """Return the attempt that a shard belongs to; None if npzkit did not name the file."""
    found = _OWN_NAME.fullmatch(name)
    return found and found[1]


def writing_mode_of(name: str) -> str:
    """Return the mode, "a" or "w", in which a shard was written; "" if its name has none."""
    found = _OWN_NAME.fullmatch(name)
    return found[2] if found else ""


def check_shard_names(names: Iterable[str]) -> None:
    """Raise UnsafeNameError unless all are plain names of files, which differ on any system.

    Examples
    --------
    >>> check_shard_names(["a.npz", "../b.npz"])
    Traceback (most recent call last):
        ...
    npzkit.errors.UnsafeNameError: this name of a shard is not safe: found '../b.npz'. A shard \
is a file in the folder of its index, such as 'part-1.npz'.
    """
    seen = set()
    for name in names:
        folded = name.lower()
        if not _SAFE_NAME.fullmatch(name) or _DEVICE.match(name) or folded == INDEX_NAME:
            raise UnsafeNameError(
                "this name of a shard is not safe", found=name,
                remedy="A shard is a file in the folder of its index, such as 'part-1.npz'.",
            )  # fmt: skip
        if folded in seen:
            raise UnsafeNameError(
                "two shards have the same name, or names that differ in case alone", found=name
            )
        seen.add(folded)


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
    dtype : numpy.dtype
        Of the NPY header.
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
    dtype: np.dtype[Any]
    extension: str | None
    fortran_order: bool
    attrs: Mapping[str, Any]
    compressed_size: int
    crc32: int
    method: int


class ShardRecord(NamedTuple):
    """A complete shard, as `npzkit.datasets.sharding.commit_index` needs it. Can be pickled.

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
    parts: tuple[StoredPart, ...] = ()


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


def record_file(place: Objects, name: str) -> ShardRecord:
    """Return the record of a complete shard. Its writer is trusted, so headers have no limit."""
    place.check_inside(name)
    with NpzFile(place.file(name), limits=Limits(header_size=None)) as npz:
        return record_of(npz, name)


def version_of(npz: NpzFile) -> tuple[int, int]:
    """Return what tells an open shard from another: its size, and its directory's CRC-32."""
    archive = npz._archive.one_file()
    return archive.source.file_size, archive.directory_crc32


def part_of(npz: NpzFile, stored_key: str) -> StoredPart:
    """Return a part as an open shard has it; raises as `record_of`."""
    archive = npz._archive.one_file()
    entry = archive.entry(stored_key)
    header = archive.read_index().find(entry.name) or archive.reader.header(entry)[0]
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
    return StoredPart(
        key, stored_key, offset, shape, global_shape, header.dtype,
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
