"""Limits on what reading an archive may cost.

Owns the limits, their defaults, the number of threads, and how much memory and depth JSON
needs, which is known before it is parsed. Imports nothing from npzkit.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsIndex

DEFAULT_HEADER_SIZE = 10_000
"""NumPy's default for ``max_header_size``, in bytes."""
DEFAULT_METADATA_SIZE = 1 << 29
"""Bytes of memory for the metadata of an archive: those of an index of a million parts."""
_JSON_COSTS = {b",": 54, b"[": 100, b"{": 200, b'"': 20, b":": 70}
"""Most bytes of memory that each of these characters stands for, as measured with CPython:
without a GIL, numbers take more."""
_LARGEST_COST = 208
_JSON_MARK = r'(?s:"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}])'
"""A string, or a bracket outside strings."""
MAX_DEPTH = 500
"""Nested lists and mappings of metadata. JSON can read deeper values than it can write."""
MAX_DIMENSIONS = 64
"""Of an array, by NumPy."""
MAX_DESCR_DEPTH = 100
"""Nested brackets of an NPY header, enough for fifty nested structures. Python's parser stops
at 200."""
_CLAIMED_COUNT = 2**20
"""List items that a shape may claim without a byte for each, as empty lists do."""


# Defining a dataclass took a tenth of the time to import npzkit.
class _Fields(NamedTuple):
    header_size: int | None
    member_count: int | None
    member_size: int | None
    total_size: int | None
    metadata_size: int | None


class Limits(_Fields):
    """Upper bounds that an archive is checked against when it is read.

    Sizes are always checked against what the file can hold, with or without
    limits. These bounds are for files that are valid but huge.

    Parameters
    ----------
    header_size : int or None, default 10_000
        Bytes of the NPY header of one array. ``allow_pickle=True`` removes this
        limit, as in NumPy, because it means that the file is trusted.
    member_count : int or None, default None
        Members in the archive, checked before the directory is parsed.
    member_size : int or None, default None
        Uncompressed bytes of one member, checked when it is read.
    total_size : int or None, default None
        Uncompressed bytes of all members together, checked when the archive is
        opened.
    metadata_size : int or None, default 2**29
        Bytes of memory for the metadata of the archive, or for the index of a
        sharded one. They are estimated before they are parsed, because a byte of
        JSON can take 40 bytes of memory.

    Raises
    ------
    ValueError
        A bound is neither a non-negative integer nor None.

    Notes
    -----
    ``None`` means no limit. NumPy integers are accepted. The object is immutable.

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
        metadata_size: SupportsIndex | None = DEFAULT_METADATA_SIZE,
    ) -> Limits:
        values = (header_size, member_count, member_size, total_size, metadata_size)
        return super().__new__(cls, *map(_bound, cls._fields, values))

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Limits:  # type: ignore[override]
        """Check the bounds in ``_replace`` too, which a named tuple does not."""
        return cls(*iterable)


def _bound(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        # Before 2.3, NumPy takes its own truth values as indexes, with a warning.
        is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"
        bound = -1 if is_truth else operator.index(value)
    except TypeError:
        bound = -1
    if bound < 0:
        raise ValueError(f"{name} must be a non-negative integer or None, not {value!r}")
    return bound


DEFAULT_LIMITS = Limits()


def limits_of(file: object) -> Limits:
    """Return the limits of an archive that is open, and the default ones for any other file."""
    limits = getattr(file, "_limits", None)
    return limits if isinstance(limits, Limits) else DEFAULT_LIMITS


def check_limits(limits: Limits | None, max_header_size: int, file: object = None) -> Limits:
    """Return the limits of an archive, which NumPy's `max_header_size` may stand for.

    `file` is as in `limits_of`.
    """
    if limits is None and max_header_size == DEFAULT_HEADER_SIZE:
        return DEFAULT_LIMITS if type(file) is str else limits_of(file)
    if limits is None:
        return Limits(header_size=max_header_size)
    if max_header_size != DEFAULT_HEADER_SIZE:
        raise ValueError("give max_header_size or limits=Limits(header_size=...), not both")
    if not isinstance(limits, Limits):
        raise TypeError(f"limits must be an npzkit.Limits, not {type(limits).__name__}")
    return limits


def thread_count(threads: int | None) -> int:
    """Return `threads`, or the number of processors that this process may use.

    Raises
    ------
    ValueError
        `threads` is not a positive integer.
    """
    if threads is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if isinstance(threads, bool) or not hasattr(threads, "__index__") or threads < 1:
        raise ValueError(f"threads must be a positive integer or None, not {threads!r}")
    return operator.index(threads)


def is_backed(shape: tuple[int, ...], nbytes: int) -> bool:
    """Return whether an array has enough bytes for the list items that its shape claims."""
    count: int = sum(itertools.accumulate(shape, operator.mul))
    return count <= _CLAIMED_COUNT + len(shape) * nbytes


def parsed_size(data: bytes, bound: int) -> int:
    """Return about how much memory JSON takes when it is parsed.

    If even JSON of nothing but the most expensive characters would stay within `bound`,
    nothing is counted.

    Examples
    --------
    >>> parsed_size(b"[[],[],[]]", 0)
    528
    """
    if len(data) * _LARGEST_COST <= bound:
        return 0
    # Once in the decoded text and once in a string. If one character is beyond ASCII, also by an
    # escape, all of a string take four bytes each.
    is_narrow = data.isascii() and b"\\u" not in data
    text_size = len(data) * (2 if is_narrow else 10)
    return text_size + sum(data.count(mark) * cost for mark, cost in _JSON_COSTS.items())


def nests_deeper(text: str | bytes, depth: int) -> bool:
    """Return whether the brackets of JSON are nested more than `depth` deep.

    For text that Python could not parse: if it is not nested deeply, the caller's stack was full.

    Examples
    --------
    >>> nests_deeper('[["]["], {}]', 1), nests_deeper('[["]["], {}]', 2)
    (True, False)
    """
    # Compiled on first use, so that importing npzkit is fast.
    import re

    found = 0
    for mark in re.findall(_JSON_MARK, text if isinstance(text, str) else text.decode("latin-1")):
        found += 1 if mark in "[{" else -1 if mark in "]}" else 0
        if found > depth:
            return True
    return False
