"""Arrays to what is written of them: checked, their headers first.

Owns everything about saving an array that can fail before a byte is written.
Knows neither archives nor files.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs import crc32
from npzkit.errors import NpzkitError
from npzkit.extension_dtypes import DTYPE_ATTRIBUTE, check_fields, extension_name
from npzkit.format.array import (
    array_header,
    check_savable,
    data_pieces,
    needs_pickle,
    npy_header,
)
from npzkit.metadata import format_attrs

__all__ = ["BATCH_SIZE", "Prepared", "SmallArray", "SmallArrays", "prepare", "prepare_header"]

_SMALL_SIZE = 1 << 16
"""Bytes up to which an array is copied rather than written where it lies."""
BATCH_SIZE = 1 << 22
"""Bytes of small arrays that are written together."""


def _as_array(array: Any, key: str, *, allow_pickle: bool) -> np.ndarray[Any, Any]:
    """Convert to an array that can be saved whole, or say why that cannot be."""
    converted: np.ndarray[Any, Any] = np.asanyarray(array)
    try:
        check_savable(converted, allow_pickle=allow_pickle)
        check_fields(converted.dtype)
    except NpzkitError as error:
        if converted.dtype == object and not isinstance(array, np.ndarray):
            error.found = type(array).__name__
            error.remedy = (
                "Save the arrays in it under keys of their own, such as 'layer/weights'."
                if isinstance(array, Mapping)
                else "Save something that NumPy makes an array of numbers or strings of, "
                "or pass allow_pickle=True."
            )
        raise error.locate(key=key) from None
    return converted


class Prepared(NamedTuple):
    """An array that is checked and only needs to be written.

    Attributes
    ----------
    key, name : str
        The name is the key's, in the archive.
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
    """Do everything that can fail but the writing: header, attributes and pickle."""
    array = _as_array(array, key, allow_pickle=allow_pickle)
    extra = _format_attrs(attrs, array.dtype)
    try:
        pieces, size = _member_pieces(array)
    except NpzkitError as error:
        raise error.locate(key=key) from error.__cause__
    return Prepared(key, name, pieces, size, extra)


def _member_pieces(array: np.ndarray[Any, Any]) -> tuple[Any, int]:
    """Return a member's data, header first, and its size in bytes."""
    header = array_header(array)
    if needs_pickle(array.dtype):
        stream = io.BytesIO()
        pickle.dump(array, stream, protocol=4)
        pickled = stream.getbuffer()
        return [header, pickled], len(header) + len(pickled)
    pieces = data_pieces(array)
    size = len(header) + array.nbytes
    return ([header, *pieces] if isinstance(pieces, list) else _chain(header, pieces)), size


def _chain(header: bytes, pieces: Any) -> Any:
    yield header
    yield from pieces


def _format_attrs(attrs: Mapping[str, Any] | None, dtype: np.dtype[Any]) -> bytes:
    """Format attributes, with the dtype's name where NPY cannot say it."""
    extension = extension_name(dtype)
    if extension is not None:
        attrs = {**(attrs or {}), DTYPE_ATTRIBUTE: extension}
    return format_attrs(attrs)


def prepare_header(
    key: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    attrs: Mapping[str, Any] | None,
    *,
    fortran_order: bool = False,
) -> tuple[bytes, bytes]:
    """Return the NPY header and the attributes of an array that is not there yet.

    The header's size is the same for any number of rows.
    """
    empty = np.empty((0,), dtype)
    try:
        check_savable(empty, allow_pickle=False)
        check_fields(dtype)
        return npy_header(dtype, shape, fortran_order), _format_attrs(attrs, dtype)
    except NpzkitError as error:
        raise error.locate(key=key) from error.__cause__


class SmallArray(NamedTuple):
    """A plain array whose bytes are soon copied.

    Attributes
    ----------
    key, name : str
    head : bytes
        Its NPY header.
    head_crc32 : int
    array : numpy.ndarray
    """

    key: str
    name: str
    head: bytes
    head_crc32: int
    array: np.ndarray[Any, Any]


class SmallArrays:
    """Tells plain small arrays from others, in half a microsecond each.

    An array of a checkpoint's thousands has a dtype and a shape that another
    had before it: its header is looked up.
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[Any, ...], tuple[bytes, int]] = {}

    def find(self, key: str, name: str, array: Any) -> SmallArray | None:
        """Return what is to be written of a small array; None for any other."""
        if type(array) is not np.ndarray or array.nbytes > _SMALL_SIZE or not name.isascii():
            return None
        dtype = array.dtype
        if dtype.isbuiltin != 1 or dtype.hasobject or dtype.metadata is not None:
            return None
        kind = dtype, array.shape, array.flags.fnc
        found = self._heads.get(kind)
        if found is None:
            check_savable(array, allow_pickle=False)
            head = array_header(array)
            found = self._heads[kind] = head, crc32(head)
        return SmallArray(key, name, *found, array)
