"""What a sharded archive has that is changed: its arrays, to which shards are added.

Owns which of its parts stay, and under which keys: all but those of arrays that are replaced or
removed; and where appended rows go. A shard that is there is never changed.
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
from npzkit.datasets.sharding import AS_ONE_FILE, ShardPart, recorded
from npzkit.errors import REPLACE, UnsupportedError
from npzkit.limits import Limits
from npzkit.members.keys import SUFFIX, check_key, missing, taken
from npzkit.members.metadata import FLAT, PARTS_ATTRIBUTE, TREE_KEY, nested_data, user_attrs
from npzkit.members.rows import as_rows
from npzkit.stores.objects import Objects

_NO_LIMITS = Limits(header_size=None, metadata_size=None)

_REPLACE_ATTRS = (
    "To replace it: add(key, array, overwrite=True), with attrs=npz.info(key).attrs to keep its "
    "attributes. Or use another key."
)


_RENAME_OTHERWISE = (
    "Another writer of the attempt wrote it. Rename to another key, by another writer of the "
    "attempt, and commit that one."
)
_COMMIT_FIRST = "Commit this writer first, and go on with another one."


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
        # The number in the index of each array that stays, by its key now.
        self._numbers = {} if self.index is None else {k: n for n, k in enumerate(self.index.keys)}
        # How many rows an array has with those that were appended.
        self._grown: dict[str, int] = {}
        # Arrays that are replaced by ones that are not committed.
        self._replaced: set[str] = set()

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
        return list(self._numbers)

    @property
    def is_edited(self) -> bool:
        """Whether arrays were removed or renamed."""
        return self.index is not None and self.order != self.index.keys

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._named(key) in self._numbers

    def _named(self, key: str) -> str:
        """Return the key that is meant, with or without ``.npy``."""
        is_meant = key in self._numbers or not isinstance(key, str)
        return key if is_meant else key.removesuffix(SUFFIX)

    def check_free(self, key: str, path: str, *, overwrite: bool = False) -> None:
        """Raise KeyExistsError if an array, or a value of nested data, may not be replaced."""
        if not overwrite and (key in self or key in self._values):
            has_attrs = user_attrs(self._attrs(key))
            raise taken(
                key,
                path,
                remedy="append() adds rows. " + (_REPLACE_ATTRS if has_attrs else REPLACE),
            )
        if key in self._grown:
            raise UnsupportedError(
                "rows were appended to this array, and it cannot be replaced too",
                path=path, key=key, remedy=_COMMIT_FIRST,
            )  # fmt: skip

    def added(self, key: str) -> None:
        """Note that an array was written, which replaces one with this key."""
        if key in self:
            self._replaced.add(self._named(key))

    def _attrs(self, key: str) -> Mapping[str, Any]:
        """Return the attributes of an array, also npzkit's own; none if there is no such array."""
        number = self._numbers.get(self._named(key))
        return {} if self.index is None or number is None else self.index.attrs(number)

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        note = self.metadata.get(TREE_KEY)
        return {} if note is None else nested_data("notes").values_of(note)

    def appended(self, key: str, rows: Any, path: str) -> ShardPart | None:
        """Return some rows as the next part of an array; None if there are none."""
        told = "Save it first with writer[key] = rows, and commit; later writers can append."
        index, key = self._committed(key, path, told)
        number = self._numbers[key]
        shape = index.shape(number)
        array = as_rows(rows, key, shape, index.dtype(number))
        if not len(array):
            return None
        start = self._grown.get(key, shape[0])
        self._grown[key] = start + len(array)
        offset = start, *(0 for _ in shape[1:])
        return ShardPart(key, array, offset, (self._grown[key], *shape[1:]))

    def _committed(self, key: str, path: str, told: str = "") -> tuple[Index, str]:
        """Return the index, and the key of it that is meant.

        If there is none, `told` comes before what else the error says.
        """
        named = self._named(key)
        if self.index is None or named not in self._numbers:
            error = missing(key, self.order, path)
            error.remedy = f"{told} {error.remedy or ''}".strip()
            raise error
        if named in self._replaced:
            raise UnsupportedError(
                "this writer replaces the array, and has not committed that", path=path, key=named,
                remedy=_COMMIT_FIRST,
            )  # fmt: skip
        return self.index, named

    def remove(self, key: str, path: str) -> None:
        """Leave an array out of what stays."""
        del self._numbers[self._editable(key, path)]

    def rename(self, old: str, new: str, path: str) -> None:
        """Give an array that stays another key, at the same place in the order."""
        old = self._editable(old, path)
        check_key(new)
        self._numbers = {new if k == old else k: n for k, n in self._numbers.items()}

    def _editable(self, key: str, path: str) -> str:
        """Return the key of an array that stands alone, and has no rows that are uncommitted."""
        told = "" if self.index else "Mode 'a' changes an archive that is there."
        _, key = self._committed(key, path, told)
        what = remedy = ""
        if key in self._grown:
            what, remedy = "rows were appended to it", _COMMIT_FIRST
        elif self.metadata.get(TREE_KEY, FLAT) != FLAT:
            what, remedy = "the folder has nested data", AS_ONE_FILE
        elif any(PARTS_ATTRIBUTE in self._attrs(one) for one in (key, key.rpartition(".")[0])):
            what, remedy = "it is saved in several arrays", AS_ONE_FILE
        if what:
            raise UnsupportedError(
                f"the array is not removed or renamed: {what}", path=path, key=key, remedy=remedy
            )
        return key

    def followed_by(self, records: Iterable[ShardRecord], path: str) -> list[ShardRecord]:
        """Return the shards of the archive that stay, and new ones behind them.

        Raises
        ------
        KeyExistsError
            A new array has the key that an array was renamed to.
        """
        keys, shards = ([], []) if self.index is None else (self.index.keys, self.index.shards)
        there = {shard.name for shard in shards}
        new = [record for record in records if record.name not in there]
        replaced = {part.key for record in new for part in record.parts} - self._grown.keys()
        for key in replaced.intersection(self._numbers) - self._replaced:
            if keys[self._numbers[key]] != key:
                raise taken(key, path, remedy=_RENAME_OTHERWISE)
        numbers = {key: number for key, number in self._numbers.items() if key not in replaced}
        kept = [] if self.index is None else recorded(self.index, numbers, self._grown)
        return kept + [
            record._replace(parts=tuple(map(self._with_rows, record.parts))) for record in new
        ]

    def _with_rows(self, part: StoredPart) -> StoredPart:
        """Return a part of an array with the rows that it has now."""
        rows = self._grown.get(part.key)
        return part if rows is None else part._replace(global_shape=(rows, *part.global_shape[1:]))
