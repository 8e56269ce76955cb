"""Whether a part in its shard is the one that the index means.

Owns the comparison of the index with what a shard says of itself, for readers and for
`npzkit.verify`. That the shard is the one that the index names is
`npzkit.datasets.shards`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.index import Index
from npzkit.datasets.records import PART_ATTRIBUTE, StoredPart, part_of
from npzkit.errors import IndexFormatError, MemberNotFoundError
from npzkit.zip.entries import Entry

_PLACE = PART_ATTRIBUTE.encode()


def prove_part(index: Index, number: int, part: int | None, shard: NpzFile, path: str) -> None:
    """Check that a shard has a part of an array as the index says.

    Of a usual array that is complete in one part, shape and dtype are left to the reader,
    who has its header.

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
        They differ.
    """
    stored_key = index.stored_key(number, part)
    try:
        entry = shard._archive.entry(stored_key)
    except MemberNotFoundError as error:
        raise IndexFormatError(
            f"the shard {shard._archive.path!r} has no array {stored_key!r}", path=path,
            key=index.keys[number], remedy="Write the archive again.",
        ) from error  # fmt: skip
    if part is not None and _is_same(index, number, part, stored_key, entry):
        return
    for what, found, expected in differences(index, number, part, part_of(shard, stored_key)):
        raise IndexFormatError(
            "a part is not what the index says", path=path, key=index.keys[number],
            found=f"{what} {found!r}", expected=f"{expected!r}", remedy="Write the archive again.",
        )  # fmt: skip


def _is_same(index: Index, number: int, part: int, stored_key: str, entry: Entry) -> bool:
    """Whether a complete array under its own key has the CRC-32 of the index: the usual case."""
    return (
        stored_key == index.keys[number]
        and (entry.crc32, entry.compressed_size, entry.method) == index.stored_as(part)
        and _PLACE not in entry.extra
        and len(index.part_numbers(number)) == 1
    )


def differences(
    index: Index, number: int, part: int | None, found: StoredPart
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each property that differs: its name, the value in the shard, and that in the index.

    The parameters are those of `prove_part`.
    """
    pairs: list[tuple[str, Any, Any]] = [
        ("key", found.key, index.keys[number]),
        ("complete shape", found.global_shape, index.shape(number)),
        ("dtype", (found.descr, found.extension), index.saved_dtype(number)),
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
