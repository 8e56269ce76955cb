"""Arrays to the members they are written as, for one archive.

Owns which way an array takes: as a member of its own, with small ones next to
it, or split into several members. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from npzkit.codecs.methods import STORED
from npzkit.members.keys import check_key, check_keys
from npzkit.writing.prepared_array import Prepared, prepare
from npzkit.writing.small_arrays import SMALL_SIZE, Heads, SmallArrays, gather
from npzkit.zip.member_writer import Coding

if TYPE_CHECKING:
    from npzkit.members.multipart import OnParts, Part, Splitting

Member = Prepared | SmallArrays


class Preparation:
    """Prepares arrays for one archive.

    Parameters
    ----------
    allow_pickle : bool
        Whether arrays of Python objects may be written.
    splitting : Splitting or None
        Which arrays are split into several members; from `splitting_for`.
    """

    def __init__(self, *, allow_pickle: bool, splitting: Splitting | None) -> None:
        self._allow_pickle = allow_pickle
        self._splitting = splitting
        # By the coding, which decides what is small.
        self._heads: dict[tuple[int, int], Heads] = {}

    def one(
        self, key: str, name: str, array: Any, attrs: Mapping[str, Any] | None, coding: Coding
    ) -> list[Member]:
        """Return the members of one array; several if it is split."""
        parts = self._splitting.parts(array) if self._splitting is not None else []
        if parts:
            return _prepare_parts(key, parts, attrs)
        if attrs:
            return [prepare(key, name, array, attrs, allow_pickle=self._allow_pickle)]
        return list(self.columns((key,), (name,), (array,), coding))

    def many(self, arrays: Mapping[str, Any], coding: Coding) -> Iterator[Member]:
        """Yield the members of arrays by key, in their order, small neighbours together."""
        if self._splitting is None:
            keys = list(arrays)
            return self.columns(keys, check_keys(keys), arrays.values(), coding)
        return chain.from_iterable(
            self.one(key, check_key(key), array, None, coding) for key, array in arrays.items()
        )

    def columns(
        self, keys: Iterable[str], names: Iterable[str], arrays: Iterable[Any], coding: Coding
    ) -> Iterator[Member]:
        """Yield the members of arrays that are not split, small neighbours together."""
        largest = _largest_small(coding)
        heads = self._heads.setdefault((coding.method, largest), {})
        return gather(keys, names, arrays, heads, largest=largest, allow_pickle=self._allow_pickle)


def _largest_small(coding: Coding) -> int:
    """Return the bytes up to which a member is written with its neighbours.

    It must need no seek index.
    """
    return SMALL_SIZE if coding.method == STORED else min(SMALL_SIZE, coding.chunk_size)


def splitting_for(masked: OnParts, strings: OnParts) -> Splitting | None:
    """Return which arrays are split, or None, which costs nothing, if none are."""
    if masked == strings == "refuse":
        return None
    from npzkit.members.multipart import check_splitting

    return check_splitting(masked, strings)


def _prepare_parts(
    key: str, parts: Iterable[Part], attrs: Mapping[str, Any] | None
) -> list[Member]:
    """Prepare the members of one array; the first one has its attributes."""
    return [
        prepare(
            key + part.suffix, check_key(key + part.suffix), part.array,
            part.attrs if part.suffix else {**(attrs or {}), **part.attrs},
            allow_pickle=False,
        )
        for part in parts
    ]  # fmt: skip
