"""Arrays of several archives as one, along the first axis.

Owns which archives share a chunk, and which rows of which archive an index needs.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from npzkit.dask.archived_array import ArchivedArray
from npzkit.dask.sources import Source
from npzkit.reading.indexing import Positions, select

_GROUP_COUNT = 16
"""Most archives of a chunk: a task names each."""


def grouped_sources(sources: Sequence[Source], size: int) -> Iterator[list[Source]]:
    """Yield the archives of each group: a large one, or small ones of `size` bytes together."""
    group: list[Source] = []
    filled = 0
    for source in sources:
        nbytes = source.array.nbytes
        if group and (filled + nbytes > size or len(group) == _GROUP_COUNT):
            yield group
            group, filled = [], 0
        group.append(source)
        filled += nbytes
    yield group


class JoinedArray:
    """Arrays of several archives, one after the other. Can be pickled.

    Parameters
    ----------
    arrays : sequence of ArchivedArray
        Alike except for their lengths, and the widths of strings.
    dtype : numpy.dtype

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    ndim : int
    """

    def __init__(self, arrays: Sequence[ArchivedArray], dtype: np.dtype[Any]) -> None:
        self._arrays, self.dtype = list(arrays), dtype
        length = sum(array.shape[0] for array in arrays)
        self.shape = (length, *arrays[0].shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> Any:
        selection = select(index, self.shape)
        rows, *others = selection.positions
        block = np.ndarray(selection.shape, self.dtype)
        lengths = (array.shape[0] for array in self._arrays)
        starts = itertools.accumulate(lengths, initial=0)
        for array, (start, end) in zip(self._arrays, itertools.pairwise(starts), strict=True):
            low, high = bisect_left(rows, start), bisect_left(rows, end)
            if high > low:
                inner = _shifted(rows[low:high], start)
                block[low:high] = array[tuple(map(_as_index, (inner, *others)))]
        return block[selection.index]


def _shifted(positions: Positions, start: int) -> Positions:
    if isinstance(positions, range):
        return range(positions.start - start, positions.stop - start, positions.step)
    return positions - start


def _as_index(positions: Positions) -> Any:
    if isinstance(positions, range):
        return slice(positions.start, positions.stop, positions.step)
    return positions
