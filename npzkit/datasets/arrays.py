"""The arrays that files have: their keys, shapes and dtypes.

Owns what is known of the files of a data set. It is compared with each file's own
headers when its data is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npzkit.format.descr import descr_to_dtype
from npzkit.members.info import ArrayInfo

Arrays = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""By key, the shape and dtype of each array of a file."""


class Known(NamedTuple):
    """What is known of many files.

    Attributes
    ----------
    names : list of str
        Paths or URLs, in the order of the files.
    marks : list of tuple
        Of each file, what tells its version: the `Identity` of a file on a disk, or the
        `Version` of an object, and the CRC-32 of its directory.
    kinds : list of Arrays
        Each different combination of arrays.
    kind_of : list of int
        By file, its place in `kinds`.
    """

    names: Sequence[str]
    marks: list[tuple[Any, ...]]
    kinds: Sequence[Arrays]
    kind_of: Sequence[int]


def arrays_of(infos: Iterable[ArrayInfo]) -> Arrays:
    """Return the arrays among the members of a file."""
    return {info.key: (info.shape or (), info.dtype) for info in infos if info.dtype is not None}


def nbytes_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array in memory."""
    return math.prod(shape) * dtype.itemsize


def own_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype for one array: its field names can be changed, and no others with them."""
    return dtype if dtype.names is None else descr_to_dtype(dtype.descr)
