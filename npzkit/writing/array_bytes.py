"""One array to the bytes of its member: checked, with its NPY header first.

Owns everything that can fail about saving an array before a byte is written.
Knows neither archives nor files.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from npzkit.errors import NpzkitError, warn
from npzkit.format.array import MASKED, check_savable, npy_header, npy_pieces
from npzkit.format.descr import AMBIGUOUS, long_double_name
from npzkit.members.metadata import format_attrs
from npzkit.members.tensors import DTYPE_ATTRIBUTE, as_unlabelled, check_dtype, extension_name

_IN_PARTS = (
    "Save {}; or pass {}='split' to npzkit.save or NpzWriter, which saves it in parts "
    "(npz.join(key) and load_tree put them together)."
)
_AS_TEXT = "array.astype(object).astype('U')"
_MISSING = (
    "Fill the missing texts, and save array.astype(str). Or, to keep them missing in a "
    "file (such an array takes no more rows), pass strings='split' to npzkit.save or NpzWriter, "
    "and save array.astype(numpy.dtypes.StringDType(na_object={}))."
)


def _missing_text(array: np.ndarray[Any, Any]) -> str:
    """Return what stands for missing texts in an array of texts, as code; empty in others."""
    if array.dtype != object:
        return ""
    others = {repr(item) for item in array.flat if type(item) is not str}
    names = {"None": "None", "nan": "numpy.nan"}
    return names.get(others.pop(), "") if len(others) == 1 < array.size else ""


def _as_savable(array: Any, key: str, *, allow_pickle: bool) -> np.ndarray[Any, Any]:
    """Convert to an array that can be saved completely, or raise the reason why not."""
    converted = as_unlabelled(array, key, allow_pickle=allow_pickle)
    try:
        check_savable(converted, allow_pickle=allow_pickle)
        check_dtype(converted.dtype)
    except NpzkitError as error:
        if converted.dtype.char == "T":
            has_missing = hasattr(converted.dtype, "na_object")
            more = ", which makes texts of missing ones, too" if has_missing else ""
            error.remedy = _IN_PARTS.format(_AS_TEXT + more, "strings")
        elif error.what == MASKED:
            error.remedy = _IN_PARTS.format("array.filled()", "masked")
        elif missing := _missing_text(converted):
            error.remedy = _MISSING.format(missing)
        raise error.locate(key=key) from None
    return converted


class Prepared(NamedTuple):
    """A checked array that only needs to be written.

    Attributes
    ----------
    key, name : str
        The name is the member's.
    pieces : sequence or iterator of bytes-like
        Header and data.
    size : int
        Bytes in `pieces` together.
    extra : bytes
        The attributes.
    """

    key: str
    name: str
    pieces: Any
    size: int
    extra: bytes


def prepare(
    key: str, name: str, array: Any, attrs: Mapping[str, Any] | None, *, allow_pickle: bool
) -> Prepared:
    """Do everything that can fail except the writing: header, attributes and pickle."""
    array = _as_savable(array, key, allow_pickle=allow_pickle)
    try:
        extra = _format_attrs(attrs, array.dtype)
        pieces, size = npy_pieces(array)
    except NpzkitError as error:
        raise error.locate(key=key) from error.__cause__
    return Prepared(key, name, pieces, size, extra)


def _format_attrs(attrs: Mapping[str, Any] | None, dtype: np.dtype[Any]) -> bytes:
    """Format attributes, with the dtype's name if NPY cannot express it."""
    extension = extension_name(dtype)
    if extension is None and dtype.char in AMBIGUOUS:
        extension = long_double_name(dtype)
        if extension is not None:
            warn(
                "long double differs between machines: others may not be able to read the array. "
                "Save array.astype(float), which all of them read.",
                UserWarning,
            )
    if extension is None:
        return format_attrs(attrs)
    if not attrs:
        return _format_name(extension)
    return format_attrs({**attrs, DTYPE_ATTRIBUTE: extension})


@functools.cache
def _format_name(extension: str) -> bytes:
    """Format the name of a dtype, of which an archive has few."""
    return format_attrs({DTYPE_ATTRIBUTE: extension})


def prepare_header(
    key: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    attrs: Mapping[str, Any] | None,
    *,
    fortran_order: bool = False,
) -> tuple[bytes, bytes]:
    """Return the NPY header and the formatted attributes of an array that has no data yet.

    The header's size is the same for any number of rows.
    """
    empty = np.empty((0,), dtype)
    try:
        check_savable(empty, allow_pickle=False)
        check_dtype(dtype)
        return npy_header(dtype, shape, fortran_order), _format_attrs(attrs, dtype)
    except NpzkitError as error:
        raise error.locate(key=key) from error.__cause__
