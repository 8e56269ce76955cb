"""Values that are more than arrays, such as tables, and values that are none, such as paths.

Owns which classes these are, and what to save instead. Of a table, NumPy would make an array of
the numbers alone; of a path, one that needs pickle. None of the packages is imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from npzkit.errors import UnsupportedError


class _Kind(NamedTuple):
    """What a class has besides the numbers, what to do, and whether this applies to a value."""

    more: str
    remedy: str
    applies: Callable[[Any], bool] = lambda _: True


def _has_own_index(series: Any) -> bool:
    """Whether a series has other labels than 0, 1, 2 and so on."""
    index = series.index
    return type(index).__name__ != "RangeIndex" or (index.start, index.step) != (0, 1)


_EXACT = 2.0**53
"""Up to here, float64 has all integers."""
_XARRAY = "coordinates, dimensions and attributes"
_BY_XARRAY = "npzkit.xarray.to_npz(value, path) saves all of it"
_COLUMNS = "Save a dict of its columns"
_KINDS = {
    ("xarray", "Dataset"): _Kind(_XARRAY, f"{_BY_XARRAY}."),
    ("xarray", "DataTree"): _Kind(_XARRAY, f"{_BY_XARRAY}."),
    ("xarray", "DataArray"): _Kind(
        _XARRAY, f"{_BY_XARRAY}, and value.to_numpy() is the array alone.",
        lambda array: bool(len(array.coords) or array.attrs),
    ),
    ("pandas", "DataFrame"): _Kind(
        "names and dtypes of columns", f"{_COLUMNS}, {{name: df[name].to_numpy() for name in df}}, "
        "but columns of text by df[name].astype(object).fillna('').to_numpy(str), which makes "
        "missing ones empty; or, if all are numbers, an array with a field per column, "
        "df.to_records().",
    ),
    ("pandas", "Series"): _Kind(
        "an index", "Save series.to_numpy(), and series.index.to_numpy() under another key.",
        _has_own_index,
    ),
    ("polars", "DataFrame"): _Kind(
        "names and dtypes of columns", f"{_COLUMNS}, {{s.name: s.to_numpy() for s in df}}, or an "
        "array with a field per column, df.to_numpy(structured=True).",
    ),
    ("polars", "LazyFrame"): _Kind("columns", "Save the columns of frame.collect()."),
    ("pyarrow", "Table"): _Kind(
        "names and types of columns",
        f"{_COLUMNS}, {{name: table[name].to_numpy() for name in table.column_names}}.",
    ),
    ("pyarrow", "RecordBatch"): _Kind(
        "names and types of columns",
        f"{_COLUMNS}, {{name: batch[name].to_numpy(False) for name in batch.schema.names}}.",
    ),
    ("astropy", "Table"): _Kind(
        "units and descriptions of columns",
        "Save table.as_array(), an array with a field per column, and the units as metadata.",
    ),
    ("astropy", "Quantity"): _Kind(
        "a unit", "Save quantity.value, and the unit as an attribute: "
        "NpzWriter.add(key, quantity.value, attrs={'unit': str(quantity.unit)}).",
    ),
}  # fmt: skip
"""By package and class; their subclasses are the same."""

_BY_SAVE = "value.tocsr() by npzkit.save(file, {key: matrix}), which takes sparse matrices"
# Of missing texts, value.to_numpy(str) of pandas 3 cuts all to their first character.
_AS_TEXT = "astype(object).fillna('').to_numpy(str)"
_OF_PANDAS = (
    f"value.{_AS_TEXT}, which makes empty texts of missing values, or, if it is no text, "
    "value.to_numpy(dtype)"
)
_INSTEAD = {
    ("enum", "Enum"): "value.value, or value.name",
    ("pathlib", "PurePath"): "str(value)",
    ("uuid", "UUID"): "str(value)",
    ("re", "Pattern"): "value.pattern",
    ("numpy", "dtype"): "value.str, or value.descr if it has fields",
    ("torch", "dtype"): "str(value)",
    ("torch", "device"): "str(value)",
    ("scipy", "sparray"): _BY_SAVE,
    ("scipy", "spmatrix"): _BY_SAVE,
    ("pandas", "MultiIndex"): f"value.get_level_values(i).{_AS_TEXT} of each level i",
    **dict.fromkeys([("pandas", name) for name in ("Index", "Series")], _OF_PANDAS),
    ("pandas", "ExtensionArray"): "np.asarray(value, object).astype(str), which makes texts of "
    "missing values, too, or, if it is no text, value.to_numpy(dtype)",
    ("builtins", "type"): "value.__name__, or np.dtype(value)",
    ("builtins", "int"): "str(value): NumPy's integers have 64 bits",
    ("decimal", "Decimal"): "str(value), or float(value)",
    ("fractions", "Fraction"): "str(value), or float(value)",
    ("datetime", "date"): "np.datetime64(value), or value.isoformat()",
    ("datetime", "time"): "value.isoformat()",
    ("datetime", "timedelta"): "np.timedelta64(value), or value.total_seconds()",
    ("random", "Random"): "value.getstate()",
    ("numpy", "Generator"): "value.bit_generator.state",
    ("numpy", "RandomState"): "value.get_state()",
    ("torch", "Generator"): "value.get_state()",
    ("keras", "Layer"): "value.get_weights()",
}
"""What to save in the place of a value that is no array; keys as of `_KINDS`, the first counts."""

_Row = TypeVar("_Row")


def check_unlabelled(value: Any, key: str | None = None) -> None:
    """Raise UnsupportedError if a value has more than an array or a mapping of arrays can keep."""
    cls: Any = type(value)
    kind = _kind_of(cls)
    if kind is not None and kind.applies(value):
        raise UnsupportedError(
            f"this object has {kind.more}, which would be lost",
            key=key,
            found=type(value).__name__,
            remedy=kind.remedy,
        )


def check_integers(value: Any, array: np.ndarray[Any, Any], key: str | None = None) -> None:
    """Raise UnsupportedError if integers of pandas, some missing, are others in their array."""
    is_integer = getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u")
    if is_integer and array.dtype.kind == "f" and (np.abs(array) >= _EXACT).any():
        raise UnsupportedError(
            "these integers have missing values, and float64 has not all of their digits",
            key=key,
            found=type(value).__name__,
            remedy="Save value.fillna(0). Or, to keep them missing in a file (such an array takes "
            "no more rows), pass masked='split' to npzkit.save or NpzWriter, and save np.ma.array("
            "value.to_numpy(value.dtype.numpy_dtype, na_value=0), mask=value.isna()).",
        )


@functools.lru_cache
def _kind_of(cls: type) -> _Kind | None:
    return _row_of(cls, _KINDS)


def _row_of(cls: type, table: Mapping[tuple[str, str], _Row]) -> _Row | None:
    names = {(base.__module__.partition(".")[0], base.__name__) for base in cls.__mro__}
    return next((row for name, row in table.items() if name in names), None)


def instead_of(value: Any) -> str:
    """Return what to save in the place of a value that is no array, as a full sentence."""
    instead = _row_of(type(value), _INSTEAD)
    if instead is None and isinstance(value, Mapping):
        return "Save it by npzkit.save(file, {key: value}), which takes nested data."
    if instead is None and callable(getattr(value, "state_dict", None)):
        instead = "value.state_dict()"
    if instead is None and not isinstance(value, ModuleType) and getattr(value, "__dict__", None):
        instead = "vars(value), the dict of its attributes"
    if instead is None and isinstance(value, Iterable) and not isinstance(value, (list, tuple)):
        instead = "list(value)"
    return f"Save {instead or 'the arrays, numbers and strings that it is made of'}."
