"""What an archive may cost its reader.

Owns the limits and their defaults. Imports nothing of npzkit.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsIndex

__all__ = ["DEFAULT_HEADER_SIZE", "Limits", "is_backed"]

DEFAULT_HEADER_SIZE = 10_000
"""numpy's own default for ``max_header_size``, in bytes."""
_CLAIMED_COUNT = 2**20
"""Items of lists that are believed without a byte for each, as of empty lists."""


class _Fields(NamedTuple):
    header_size: int | None
    member_count: int | None
    member_size: int | None
    total_size: int | None


class Limits(_Fields):
    """Upper bounds that a reader holds an archive against.

    Sizes are always checked against what the file can physically hold, limits
    or not; these bound what an honest but huge file may cost.

    Parameters
    ----------
    header_size : int or None, default 10_000
        Bytes of one array's NPY header. Lifted by ``allow_pickle=True``, as in
        numpy: whoever unpickles a file trusts it.
    member_count : int or None, default None
        Members of the archive, checked before the directory is parsed.
    member_size : int or None, default None
        Uncompressed bytes of one member, checked when it is read.
    total_size : int or None, default None
        Uncompressed bytes of all members together, checked at open.

    Raises
    ------
    ValueError
        A bound is neither a whole number nor None.

    Notes
    -----
    ``None`` means no limit; numpy's integers are taken for Python's. Immutable;
    a named tuple, because the definition of a dataclass took a tenth of
    npzkit's time to import.

    Examples
    --------
    >>> Limits(member_size=2**30).member_size
    1073741824
    """

    __slots__ = ()

    def __new__(
        cls,
        header_size: SupportsIndex | None = DEFAULT_HEADER_SIZE,
        member_count: SupportsIndex | None = None,
        member_size: SupportsIndex | None = None,
        total_size: SupportsIndex | None = None,
    ) -> Limits:
        values = (header_size, member_count, member_size, total_size)
        return super().__new__(cls, *map(_bound, cls._fields, values))

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Limits:  # type: ignore[override]
        """Check the bounds for ``_replace`` too, which a named tuple does not."""
        return cls(*iterable)


def _bound(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        bound = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        bound = -1
    if bound < 0:
        raise ValueError(f"{name} must be a whole number or None, not {value!r}")
    return bound


def is_backed(shape: tuple[int, ...], nbytes: int) -> bool:
    """Whether an array has bytes for the items of its lists, not only a shape with so many."""
    count: int = sum(itertools.accumulate(shape, operator.mul))
    return count <= _CLAIMED_COUNT + len(shape) * nbytes
