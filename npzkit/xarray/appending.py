"""xarray's data sets appended to a folder, along one dimension.

Owns what is written of each variable: the rows of those that have the dimension, with the encoding
that the folder has; all of one that is new to a new folder; nothing of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import xarray
from xarray import conventions

from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.members.array_info import ArrayInfo
from npzkit.xarray.dimensions import DIMENSIONS, named_dimensions
from npzkit.xarray.kept_values import NUMBERS

_TIMES = ("units", "calendar")
_TIME_UNITS = {
    "days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds",
}  # fmt: skip


def known_variables(npz: NpzFile) -> dict[str, ArrayInfo]:
    """Return what a folder has."""
    return {key: npz.info(key) for key in npz.files}


def encoding_of(key: str, kind: str, known: Mapping[str, ArrayInfo]) -> dict[str, Any]:
    """Return the encoding that a variable needs to mean the same as what is there.

    `kind` is that of its dtype: objects are times if the folder has a calendar. Of other
    variables than times, units say nothing of the values.
    """
    if key not in known:
        return {}
    info = known[key]
    is_time = kind in "mM" or (kind == "O" and "calendar" in info.attrs)
    names = (*NUMBERS, *_TIMES) if is_time else NUMBERS
    kept = {name: info.attrs[name] for name in names if name in info.attrs}
    is_plain = kept.keys() <= {"_FillValue"} and info.dtype is not None and info.dtype.kind == "f"
    return {**kept, "dtype": info.dtype} if kept and not is_plain else kept


def append_variables(
    writer: ShardedWriter,
    variables: Mapping[str, xarray.Variable],
    known: Mapping[str, ArrayInfo],
    labels: Mapping[str, np.ndarray[Any, Any]],
    dim: str,
) -> None:
    """Write what is new of variables, as they are stored.

    `labels` are the coordinates of the folder that do not grow.

    Raises
    ------
    ValueError
        A variable cannot be appended to the one of its name, or is missing.
    """
    _check_complete(variables, known, dim)
    for key, variable in variables.items():
        if key in labels:
            _check_labels(key, variable.values, labels[key])
        elif dim in variable.dims or key not in known:
            _check(key, variable, known, dim)
    for key, variable in variables.items():
        if key not in known:
            writer.add(key, np.asarray(variable.values), attrs=variable.attrs)
        elif dim in variable.dims:
            for rows in _rows(variable):
                writer.append(key, np.asarray(rows.values))


def _check_complete(
    variables: Mapping[str, xarray.Variable], known: Mapping[str, ArrayInfo], dim: str
) -> None:
    """Raise ValueError unless all that have the dimension grow, in each group."""
    if not any(dim in variable.dims for variable in variables.values()):
        raise ValueError(
            f"no variable has the dimension {dim!r}, along which rows are appended; "
            f"dataset.isel({dim}=[0]) keeps it, dataset.isel({dim}=0) does not"
        )
    groups = {_split(key)[0] for key in variables}
    missing = [
        key
        for key, info in known.items()
        if key not in variables
        and _split(key)[0] in groups
        and dim in (named_dimensions(info.attrs, len(info.shape or ())) or ())
    ]
    if missing:
        raise ValueError(
            f"variables of the folder with the dimension {dim!r} are missing: "
            f"{', '.join(map(repr, missing))}: append to all of them in one call"
        )


def _check_labels(key: str, found: np.ndarray[Any, Any], kept: np.ndarray[Any, Any]) -> None:
    """Raise ValueError if a coordinate that does not grow is another in the folder."""
    if np.array_equal(found, kept, equal_nan={found.dtype.kind, kept.dtype.kind} <= {*"iufcmM"}):
        return
    _, name = _split(key)
    advice = f"append to another folder, or leave it out: dataset.drop_vars({name!r})"
    if kept.ndim == 1 and np.array_equal(np.sort(found), np.sort(kept)):
        advice = f"take its order: dataset.sel({name}=xarray.open_dataset(FOLDER)[{name!r}])"
    raise ValueError(f"the coordinate {key!r} has other values than in the folder; {advice}")


def _split(key: str) -> tuple[str, str]:
    """Return the group and the name."""
    group, _, name = key.rpartition("/")
    return group, name


def _check(key: str, variable: xarray.Variable, known: Mapping[str, ArrayInfo], dim: str) -> None:
    info = known.get(key)
    dims = [str(name) for name in variable.dims]
    if info is None:
        if known:
            raise ValueError(f"the folder has no variable {key!r}: only new folders get new ones")
        return
    if dims[0] != dim:
        raise ValueError(f"{dim!r} is not the first dimension of {key!r}, which has {dims}")
    _check_units(key, variable.attrs, info.attrs, dim)
    shape, dtype = info.shape or (), info.dtype or np.dtype("V0")
    if list(info.attrs.get(DIMENSIONS, dims)) != dims or shape[1:] != variable.shape[1:]:
        raise ValueError(
            f"{key!r} of {dims} {variable.shape} does not fit that of the folder, of "
            f"{info.attrs.get(DIMENSIONS)} {shape}"
        )
    if not np.can_cast(variable.dtype, dtype, "safe"):
        raise ValueError(
            f"{key!r} is {variable.dtype}, and would lose values as {dtype}, which the folder "
            f"has{_wider(key, variable.dtype, dtype, dim)}"
        )


def _wider(key: str, wanted: np.dtype[Any], kept: np.dtype[Any], dim: str) -> str:
    """Return how the folder gets a dtype that holds both, if it is of the same kind."""
    if wanted.kind != kept.kind:
        return ": convert it with astype"
    _, name = _split(key)
    return (
        ". Write the folder to a new one with this dtype: folder = xarray.open_dataset(FOLDER); "
        f"npzkit.xarray.to_npz(folder.assign({{{name!r}: folder[{name!r}].astype("
        f"{wanted.str!r})}}), NEW, append_dim={dim!r})"
    )


def _check_units(key: str, found: Mapping[str, Any], kept: Mapping[str, Any], dim: str) -> None:
    """Raise ValueError if rows have other units, as xarray's times that need finer ones."""
    if "units" not in found or "units" not in kept or _meaning(found) == _meaning(kept):
        return
    what = (
        f"{key!r} has the units {kept['units']!r} in the folder, and {found['units']!r} here: "
        "convert it"
    )
    if str(kept["units"]).partition(" since ")[0] in _TIME_UNITS:
        encoding = {_split(key)[1]: {"units": found["units"]}}
        what += (
            ". If these are finer times, write the folder to a new one with their units: "
            "npzkit.xarray.to_npz(xarray.open_dataset(FOLDER, decode_timedelta=True), NEW, "
            f"append_dim={dim!r}, encoding={encoding})"
        )
    raise ValueError(what)


def _meaning(attrs: Mapping[str, Any]) -> Any:
    """Return the units, or the moments that 0 and 1 are, because xarray words units anew."""
    units, calendar = attrs["units"], attrs.get("calendar", "standard")
    if " since " not in str(units):
        return units
    moments = xarray.Variable("moment", [0, 1], {"units": units, "calendar": calendar})
    return [calendar, *map(str, conventions.decode_cf_variable("", moments).values)]


def _rows(variable: xarray.Variable) -> Iterator[xarray.Variable]:
    """Yield a variable by blocks of rows: those of an array of dask."""
    if not variable.chunks:
        yield variable
        return
    for begin, end in pairwise([0, *accumulate(variable.chunks[0])]):
        yield variable[begin:end]
