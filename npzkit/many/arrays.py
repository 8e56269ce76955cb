"""The arrays that files have: their keys, shapes and dtypes; written to a file and read again.

Owns what is kept of the files of a data set. It is never believed when data is
read: each file's own headers are compared with it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npzkit.errors import FormatError, NpzkitError
from npzkit.format.array import npy_header
from npzkit.format.descr import descr_to_dtype
from npzkit.format.header import parse_header
from npzkit.members.extension_dtypes import DTYPE_ATTRIBUTE, extension_name, restored_dtype
from npzkit.members.info import ArrayInfo
from npzkit.members.strict_json import format_json, parse_json

CACHE_MARK = b"x\x01"
"""The first bytes of what `format_known` returns, as zlib writes them at level 1."""
_VERSION = 2
_MAX_RATIO = 1032
"""Bytes that a byte of a file can stand for, at deflate's best ratio."""
_ROOM = 1 << 16

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


def format_known(known: Known) -> bytes:
    """Return as bytes what `parse_known` reads: compressed JSON."""
    kinds = [
        [[key, *_header(shape, dtype)] for key, (shape, dtype) in arrays.items()]
        for arrays in known.kinds
    ]
    values = {
        "npzkit.open_many": _VERSION, "names": list(known.names), "marks": list(known.marks),
        "kinds": kinds, "kind_of": list(known.kind_of),
    }  # fmt: skip
    return zlib.compress(format_json(values, separators=(",", ":")).encode(), 1)


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[str, str]:
    return npy_header(dtype, shape, False).decode("latin-1"), extension_name(dtype) or ""


def parse_known(data: bytes) -> Known:
    """Return what `format_known` wrote.

    Raises
    ------
    FormatError
        The bytes are anything else.
    """
    try:
        values = parse_json(_decompressed(data))
        kinds = [_checked_kind(kind) for kind in _checked(values["kinds"], list)]
        known = Known(
            [_checked(name, str) for name in _checked(values["names"], list)],
            [tuple(_checked(mark, list)) for mark in _checked(values["marks"], list)],
            kinds,
            [_checked(number, int) for number in _checked(values["kind_of"], list)],
        )
        _check(known, values["npzkit.open_many"])
    except (ValueError, TypeError, KeyError, IndexError, zlib.error, NpzkitError) as error:
        raise FormatError(f"not what npzkit.open_many keeps of files ({error})") from None
    return known


def _decompressed(data: bytes) -> bytes:
    """Decompress what is no larger than a list of so many files can be."""
    stream = zlib.decompressobj()
    text = stream.decompress(data, 100 * len(data) + _ROOM)
    if not stream.eof:
        raise ValueError("it is truncated, or too large")
    return text


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} is not a {kind.__name__}")
    return value


def _checked_kind(kind: Any) -> Arrays:
    arrays = {}
    for key, head, extension in _checked(kind, list):
        header = parse_header(_checked(head, str).encode("latin-1"))
        dtype = restored_dtype(header.fresh().dtype, {DTYPE_ATTRIBUTE: extension})
        arrays[_checked(key, str)] = header.shape, dtype
    return arrays


def _check(known: Known, version: Any) -> None:
    if version != _VERSION:
        raise ValueError(f"version {version!r}")
    if not len(known.names) == len(known.marks) == len(known.kind_of):
        raise ValueError("lists of different lengths")
    sizes = [max((nbytes_of(*array) for array in kind.values()), default=0) for kind in known.kinds]
    for mark, number in zip(known.marks, known.kind_of, strict=True):
        if number < 0 or sizes[number] > _checked(mark[0], int) * _MAX_RATIO + _ROOM:
            raise ValueError("arrays that are larger than their files can hold")


def arrays_of(infos: Iterable[ArrayInfo]) -> Arrays:
    """Return the arrays among the members of a file."""
    return {info.key: (info.shape or (), info.dtype) for info in infos if info.dtype is not None}


def nbytes_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array in memory."""
    return math.prod(shape) * dtype.itemsize


def own_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype for one array: its field names can be changed, and no others with them."""
    return dtype if dtype.names is None else descr_to_dtype(dtype.descr)
