"""xarray's data sets appended to a folder, along one dimension.

Owns what is written of each variable: the rows of those that have the dimension, with the encoding
that the folder has; all of one that is new to a new folder; nothing of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import xarray

from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.members.array_info import ArrayInfo
from npzkit.xarray.dimensions import DIMENSIONS

_TIMES = ("units", "calendar")
_NUMBERS = ("scale_factor", "add_offset", "_FillValue", "missing_value")
"""What the values of a variable mean, in its attributes."""


def known_variables(npz: NpzFile) -> dict[str, ArrayInfo]:
    """Return what a folder has."""
    return {key: npz.info(key) for key in npz.files}


def encoding_of(key: str, kind: str, known: Mapping[str, ArrayInfo]) -> dict[str, Any]:
    """Return the encoding that a variable needs to mean the same as what is there.

    `kind` is that of its dtype. Of other variables than times, units say nothing of the values.
    """
    if key not in known:
        return {}
    info = known[key]
    names = (*_NUMBERS, *_TIMES) if kind in "mM" else _NUMBERS
    kept = {name: info.attrs[name] for name in names if name in info.attrs}
    is_plain = kept.keys() <= {"_FillValue"} and info.dtype is not None and info.dtype.kind == "f"
    return {**kept, "dtype": info.dtype} if kept and not is_plain else kept


def append_variables(
    writer: ShardedWriter,
    variables: Mapping[str, xarray.Variable],
    known: Mapping[str, ArrayInfo],
    dim: str,
) -> None:
    """Write what is new of variables, as they are stored.

    Raises
    ------
    ValueError
        A variable cannot be appended to the one of its name.
    """
    for key, variable in variables.items():
        if dim in variable.dims or key not in known:
            _check(key, variable, known, dim)
    for key, variable in variables.items():
        if key not in known:
            writer.add(key, np.asarray(variable.values), attrs=variable.attrs)
        elif dim in variable.dims:
            for rows in _rows(variable):
                writer.append(key, rows)


def _check(key: str, variable: xarray.Variable, known: Mapping[str, ArrayInfo], dim: str) -> None:
    info = known.get(key)
    dims = [str(name) for name in variable.dims]
    if info is None:
        if known:
            raise ValueError(f"the folder has no variable {key!r}: only new folders get new ones")
        return
    if dims[0] != dim:
        raise ValueError(f"{dim!r} is not the first dimension of {key!r}, which has {dims}")
    shape, dtype = info.shape or (), info.dtype or np.dtype("V0")
    if list(info.attrs.get(DIMENSIONS, dims)) != dims or shape[1:] != variable.shape[1:]:
        raise ValueError(
            f"{key!r} of {dims} {variable.shape} does not fit that of the folder, of "
            f"{info.attrs.get(DIMENSIONS)} {shape}"
        )
    if not np.can_cast(variable.dtype, dtype, "safe"):
        raise ValueError(
            f"{key!r} is {variable.dtype}, and would lose values as {dtype}, which the folder "
            "has: convert it with astype"
        )


def _rows(variable: xarray.Variable) -> Any:
    """Yield the values by blocks of rows: those of an array of dask."""
    if not variable.chunks:
        yield np.asarray(variable.values)
        return
    for begin, end in pairwise([0, *accumulate(variable.chunks[0])]):
        yield np.asarray(variable[begin:end].values)
