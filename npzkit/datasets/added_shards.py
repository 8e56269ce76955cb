"""What a sharded archive has to which shards are added.

Owns which of its parts stay: all but those of arrays that are replaced; and where appended rows go.
A shard that is there is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from npzkit.datasets import INDEX_NAME
from npzkit.datasets.index import Index
from npzkit.datasets.index_format import parse_index
from npzkit.datasets.shard_names import ShardRecord, StoredPart
from npzkit.datasets.sharding import ShardPart, recorded
from npzkit.errors import REPLACE
from npzkit.limits import Limits
from npzkit.members.keys import missing, taken
from npzkit.members.metadata import TREE_KEY, nested_data
from npzkit.members.tensors import as_rows
from npzkit.stores.objects import Objects

_NO_LIMITS = Limits(header_size=None, metadata_size=None)


class Base:
    """The archive that is added to; without arguments, none.

    Attributes
    ----------
    before : (bytes, Index) or (None, None) or None
        The index that a commit follows, if there was one; None if it may follow any.
    index : Index or None
    """

    def __init__(self, before: tuple[bytes, Index] | tuple[None, None] | None = None) -> None:
        self.before = before
        self.index = None if before is None else before[1]
        # How many rows an array has with those that were appended.
        self._grown: dict[str, int] = {}

    @classmethod
    def read(cls, place: Objects) -> Base:
        """Return what is in a folder; nothing if it has no index."""
        try:
            data = place.read(INDEX_NAME)
        except FileNotFoundError:
            return cls((None, None))
        return cls((data, parse_index(data, _NO_LIMITS)[0]))

    @property
    def metadata(self) -> Mapping[str, Any]:
        return MappingProxyType({}) if self.index is None else self.index.metadata

    @property
    def order(self) -> list[str]:
        """Its keys."""
        return [] if self.index is None else self.index.keys

    def check_free(self, key: str, path: str, *, overwrite: bool = False) -> None:
        """Raise KeyExistsError if an array, or a value of nested data, may not be replaced."""
        if overwrite or self.index is None:
            return
        if self.index.number(key) is not None or key in self._values:
            raise taken(key, path, remedy=REPLACE)

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        note = self.metadata.get(TREE_KEY)
        return {} if note is None else nested_data("notes").values_of(note)

    def appended(self, key: str, rows: Any, path: str) -> ShardPart | None:
        """Return some rows as the next part of an array; None if there are none."""
        index = self.index
        number = None if index is None else index.number(key)
        if index is None or number is None:
            error = missing(key, self.order, path)
            told = "Save it first with writer[key] = rows, and commit; later writers can append."
            error.remedy = f"{told} {error.remedy or ''}".strip()
            raise error
        key, shape = index.keys[number], index.shape(number)
        array = as_rows(rows, key, shape, index.dtype(number))
        if not len(array):
            return None
        start = self._grown.get(key, shape[0])
        self._grown[key] = start + len(array)
        offset = start, *(0 for _ in shape[1:])
        return ShardPart(key, array, offset, (self._grown[key], *shape[1:]))

    def followed_by(self, records: Iterable[ShardRecord]) -> list[ShardRecord]:
        """Return the shards of the archive that stay, and new ones behind them."""
        new = list(records)
        replaced = {part.key for record in new for part in record.parts} - self._grown.keys()
        kept = [] if self.index is None else recorded(self.index, replaced, self._grown)
        return kept + [
            record._replace(parts=tuple(map(self._with_rows, record.parts))) for record in new
        ]

    def _with_rows(self, part: StoredPart) -> StoredPart:
        """Return a part of an array with the rows that it has now."""
        rows = self._grown.get(part.key)
        return part if rows is None else part._replace(global_shape=(rows, *part.global_shape[1:]))
