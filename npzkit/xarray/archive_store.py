"""One group of an archive, as xarray reads it: its variables and their attributes.

Owns which keys belong to a group, and attributes: as values that JSON can express, and back. What
they mean, such as units of time, is xarray's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from xarray import Variable
from xarray.backends import AbstractDataStore, BackendArray
from xarray.core import indexing
from xarray.core.dtypes import maybe_promote

from npzkit.datasets.reopened import Reopened
from npzkit.errors import UnsupportedError
from npzkit.members.keys import check_depth
from npzkit.trees.containers import without_note
from npzkit.xarray.dimensions import DIMENSIONS

GROUPS = "npzkit.groups"
"""The key of the archive's metadata for groups: their attributes by their paths."""
FILL_VALUES = ("_FillValue", "missing_value")
"""Attributes that have values of the array's own dtype."""
_PREFERRED_SIZE = 1 << 23
"""Bytes of chunks that are read by one task of dask."""
_TIME_UNITS = {"s", "ms", "us", "ns"}
"""Units of datetime64 and timedelta64 that xarray takes."""
_FINER_UNITS = {"ps", "fs", "as"}


class NpzStore(AbstractDataStore):
    """One group of an archive.

    Parameters
    ----------
    archive : Reopened
    group : str
        Without slashes around it; the root is "".
    dims : mapping of str to tuple of str
        Names of the dimensions of each array of the archive.
    masks : mapping of str to str
        The keys of masks that are applied, by those of the masked arrays.
    dropped : iterable of str
        Variables that are left out.
    """

    def __init__(
        self,
        archive: Reopened,
        group: str,
        dims: Mapping[str, tuple[str, ...]],
        masks: Mapping[str, str],
        dropped: Iterable[str],
    ) -> None:
        self._archive, self._group = archive, group
        self._dims, self._masks, self._dropped = dims, masks, set(dropped)

    def get_attrs(self) -> dict[str, Any]:
        """Return the attributes of the group."""
        metadata, _ = without_note(self._archive.open().metadata)
        groups = metadata.pop(GROUPS, None)
        if not self._group:
            return metadata
        found = groups.get(self._group) if isinstance(groups, dict) else None
        return dict(found) if isinstance(found, dict) else {}

    def get_variables(self) -> dict[str, Variable]:
        """Return the variables of the group, whose data is not read."""
        npz, found, masks = self._archive.open(), {}, {*self._masks.values()}
        for key in self._dims:
            group, _, name = key.rpartition("/")
            if group == self._group and name not in self._dropped and key not in masks:
                found[name] = self._variable(npz, key, name)
        return found

    def _variable(self, npz: Any, key: str, name: str) -> Variable:
        try:
            lazy = npz.lazy(key)
        except UnsupportedError as error:
            error.remedy = f"Leave it out: drop_variables=[{name!r}]."
            raise
        dims = self._dims[key]
        data = StoredArray(self._archive, key, lazy.shape, lazy.dtype, self._masks.get(key))
        encoding: dict[str, Any] = {"source": self._archive.path}
        # Any part of stored arrays is as cheap as their small chunks, which are only checks.
        if npz.info(key).method.partition(" in ")[0] != "stored":
            encoding["preferred_chunks"] = dict(zip(dims, _preferred_chunks(lazy), strict=True))
        attrs = attrs_from_json(lazy.attrs, lazy.dtype)
        return Variable(dims, indexing.LazilyIndexedArray(data), attrs, encoding)


def _preferred_chunks(lazy: Any) -> list[int]:
    """Return the shape of several chunks of a compressed array, for one task of dask.

    What is one row high stays so: xarray warns of chunks that are no multiples of these.
    """
    size, found = max(lazy.dtype.itemsize, 1) * math.prod(lazy.chunks), list(lazy.chunks)
    for axis in reversed(range(len(found))):
        if found[axis] > 1:
            count = min(-(-lazy.shape[axis] // found[axis]), max(_PREFERRED_SIZE // size, 1))
            size *= count
            found[axis] = min(found[axis] * count, lazy.shape[axis])
    return found


def path_in(group: str, name: str | None) -> str:
    """Return the path of something in a group, without slashes around it; the root is ""."""
    return "/".join(filter(None, (group, (name or "").strip("/"))))


def groups_of(npz: Any) -> list[str]:
    """Return the paths of all groups, each after the one that it is in; the root is ""."""
    recorded = npz.metadata.get(GROUPS)
    names = [key.rpartition("/")[0] for key in npz.files]
    names += recorded if isinstance(recorded, dict) else []
    check_depth(names)
    found = {"": None}
    for name in names:
        parts = name.split("/") if name else []
        for count in range(1, len(parts) + 1):
            found["/".join(parts[:count])] = None
    return list(found)


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
    mask : str or None
        The key of its mask. Masked values are missing ones, as xarray makes them of a
        ``_FillValue``: NaN, for which integers become floats, or NaT.
    """

    def __init__(
        self,
        archive: Reopened,
        key: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        mask: str | None,
    ) -> None:
        self._archive, self._key, self._mask = archive, key, mask
        self.shape, self.dtype = shape, _dtype_for_xarray(dtype)
        if mask is not None:
            self.dtype, self._missing = maybe_promote(self.dtype)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, indexing.BasicIndexer):
            # The adapter fails for empty slices with a negative step.
            return self._read(key.tuple)
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER_1VECTOR, self._read
        )

    def _read(self, index: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        found = self._part(self._key, index).astype(self.dtype, copy=False)
        if self._mask is None:
            return found
        mask = self._part(self._mask, index)
        return np.where(mask, self._missing, found).astype(self.dtype, copy=False)

    def _part(self, stored: str, index: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        npz = self._archive.open()
        if all(isinstance(part, slice) and part == slice(None) for part in index):
            # Complete arrays are checked.
            return np.asarray(npz.read(stored))
        return np.asarray(npz.lazy(stored)[index])


def _dtype_for_xarray(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "mM":
        return dtype
    unit, count = np.datetime_data(dtype)
    if unit in _TIME_UNITS and count == 1:
        return dtype
    near = unit if unit in _TIME_UNITS else "ns" if unit in _FINER_UNITS else "s"
    return np.dtype(f"{dtype.kind}8[{near}]")


# -- attributes -----------------------------------------------------------------


def attrs_to_json(attrs: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Return attributes with Python's values in place of NumPy's.

    Parameters
    ----------
    attrs : mapping
    owner : str
        Whose they are, for messages.

    Raises
    ------
    TypeError
        A name is not a string, or a value cannot be kept.
    """
    found = {}
    for name, value in attrs.items():
        if not isinstance(name, str):
            raise TypeError(f"{owner}: names of attributes must be strings, not {name!r}")
        try:
            found[name] = _to_json(value)
        except TypeError as error:
            raise TypeError(f"{owner}, attribute {name!r}: {error}") from None
    return found


def _to_json(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "mM":
        return _to_json(value.tolist())
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, Mapping):
        return {name: _to_json(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(inner) for inner in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(
        f"a value of type {type(value).__name__} cannot be kept; "
        "use strings, numbers, lists and dicts"
    )


def attrs_from_json(attrs: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return an array's attributes, without its dimensions, with fill values of its dtype."""
    found = {name: value for name, value in attrs.items() if name != DIMENSIONS}
    for name in FILL_VALUES:
        if name in found:
            found[name] = _of_dtype(found[name], dtype)
    return found


def _of_dtype(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value as one of the dtype; as it is if it does not fit."""
    try:
        if dtype.kind == "S":
            return value.encode("latin-1")
        if dtype.kind == "c":
            return dtype.type(complex(*value))
        if dtype.kind in "iufb" and not isinstance(value, list):
            return dtype.type(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        pass
    return value
