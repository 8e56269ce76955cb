"""Arrays of an archive as xarray's variables, which read what is selected.

Owns how xarray's indices reach `npzkit.LazyArray`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from npzkit.archive.reopening import Reopened

_TIME_UNITS = {"s", "ms", "us", "ns"}
"""Units of datetime64 and timedelta64 that xarray takes."""
_FINER_UNITS = {"ps", "fs", "as"}


class StoredArray(BackendArray):
    """An array in an archive.

    Parameters
    ----------
    archive : Reopened
    key : str
    shape : tuple of int
    dtype : numpy.dtype
        As it is stored. Times of other units than xarray's become seconds, or
        nanoseconds if their unit is finer.
    """

    def __init__(
        self, archive: Reopened, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._archive, self._key = archive, key
        self.shape, self.dtype = shape, _dtype_for_xarray(dtype)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, indexing.BasicIndexer):
            # The adapter fails for empty slices with a negative step.
            return self._read(key.tuple)
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER_1VECTOR, self._read
        )

    def _read(self, index: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        npz = self._archive.open()
        if all(isinstance(part, slice) and part == slice(None) for part in index):
            # Complete arrays are checked.
            found = npz.read(self._key)
        else:
            found = npz.lazy(self._key)[index]
        return np.asarray(found).astype(self.dtype, copy=False)


def _dtype_for_xarray(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "mM":
        return dtype
    unit, count = np.datetime_data(dtype)
    if unit in _TIME_UNITS and count == 1:
        return dtype
    near = unit if unit in _TIME_UNITS else "ns" if unit in _FINER_UNITS else "s"
    return np.dtype(f"{dtype.kind}8[{near}]")
