"""Arrays that are declared not to change: the shards that a new step shares with the newest one.

Owns which shards those are: all that is in them is declared frozen, and is what would be
written. Warns of arrays that have changed all the same. How a shard gets into another folder is
`npzkit.stores.objects`'s. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from npzkit.archive.save import PreparedArchive
from npzkit.checkpoint.step_metadata import age_of
from npzkit.datasets.index import Index
from npzkit.datasets.shard_names import ShardRecord
from npzkit.datasets.sharding import read_records
from npzkit.errors import shown_key, some_of, warn
from npzkit.members.keys import SUFFIX
from npzkit.members.tensors import as_unlabelled, form_of, is_tensor
from npzkit.stores.objects import Objects

_SHOWN_COUNT = 5
"""Keys that the warning names."""


class Shared(NamedTuple):
    """What a new step shares with an older one.

    Attributes
    ----------
    place : Objects
        Of the older step.
    records : list of ShardRecord
        Its shards.
    age : int
        How many steps in a row have shared shards then.
    """

    place: Objects
    records: list[ShardRecord]
    age: int

    @property
    def keys(self) -> set[str]:
        return {part.key for record in self.records for part in record.parts}


def find_shared(
    place: Objects,
    index: Index,
    arrays: Mapping[str, Any],
    step: int,
    *,
    check: bool,
    refresh: int | None,
) -> Shared | None:
    """Return which shards of a step have nothing but these arrays, or None.

    Warns
    -----
    RuntimeWarning
        The step has another array of one of the keys.
    """
    age = age_of(index.metadata) + 1
    if refresh is not None and age >= refresh:
        return None
    same, changed = _compared(index, arrays, check=check)
    if changed:
        shown = some_of(changed, shown_key, _SHOWN_COUNT)
        warn(
            f"these arrays are declared frozen, but have changed since step {step}: {shown}. "
            "All frozen arrays of this step are written again. If these are meant to change, as "
            "the statistics of BatchNorm do, leave them out of frozen=.",
            RuntimeWarning,
        )
    held: dict[int, set[str]] = {}
    for number, key in enumerate(index.keys):
        parts = index.part_numbers(number)
        for shard in map(index.shard_of, parts) if parts else (index.home(number),):
            held.setdefault(shard, set()).add(key)
    rows = [index.shards[shard] for shard, keys in sorted(held.items()) if keys <= same]
    found = zip(read_records(place, [row.name for row in rows]), rows, strict=True)
    records = [one for one, row in found if (one.size, one.crc32) == (row.size, row.crc32)]
    return Shared(place, records, age) if records else None


def _compared(
    index: Index, arrays: Mapping[str, Any], *, check: bool
) -> tuple[set[str], list[str]]:
    """Return the keys of arrays that a step has, each in one part, and of those it has otherwise.

    With `check`, their CRC-32s are compared too.
    """
    numbers = {
        key: number for number, key in enumerate(index.keys)
        if key in arrays and len(index.part_numbers(number)) < 2
    }  # fmt: skip
    same = {
        key for key, number in numbers.items()
        if _form_of(arrays[key], key) == (index.shape(number), index.dtype(number))
    }  # fmt: skip
    if check:
        crc32s = PreparedArchive({key: arrays[key] for key in sorted(same)})._crc32s()
        same = {
            key for key in same
            if all(index.stored_as(numbers[key], part)[0] == crc32s[key + SUFFIX]
                   for part in index.part_numbers(numbers[key]))
        }  # fmt: skip
    return same, [key for key in numbers if key not in same]


def _form_of(value: Any, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of the array that a value is saved as. A tensor is not read."""
    if is_tensor(value):
        return form_of(value)
    array = as_unlabelled(value, key)
    return array.shape, array.dtype
