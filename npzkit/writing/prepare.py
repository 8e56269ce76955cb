"""Arrays to what is written of them: checked, their headers first.

Owns everything about saving an array that can fail before a byte is written.
Knows neither archives nor files.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npzkit.codecs.methods import crc32
from npzkit.errors import NotAnArrayError, NpzkitError, UnsupportedError
from npzkit.format.array import (
    array_header,
    check_savable,
    data_pieces,
    needs_pickle,
    npy_header,
)
from npzkit.members.extension_dtypes import DTYPE_ATTRIBUTE, check_dtype, extension_name
from npzkit.members.keys import check_key
from npzkit.members.metadata import format_attrs

if TYPE_CHECKING:
    from npzkit.members.multipart import OnParts, Part, Splitting

__all__ = [
    "SMALL_SIZE",
    "Heads",
    "Prepared",
    "SmallArrays",
    "as_array",
    "gather",
    "gather_split",
    "prepare",
    "prepare_header",
    "prepare_parts",
    "splitting_for",
]

SMALL_SIZE = (1 << 16) - 1
"""Bytes up to which an array is copied rather than written where it lies."""
_RUN_SIZE = 1 << 22
"""Bytes of small arrays that are copied and written together."""

Small = tuple[str, bytes, bytes, int, int]
"""Name, bytes in two parts, CRC and size; see `npzkit.zip.writer.ZipWriter.write_small`."""


def as_array(value: Any, key: str, dtype: Any = None) -> np.ndarray[Any, Any]:
    """Return NumPy's array of an object.

    Raises
    ------
    NotAnArrayError
        NumPy, or the object itself, cannot make one.
    """
    try:
        return np.asanyarray(value) if dtype is None else np.asarray(value, dtype)
    except (NpzkitError, OSError, MemoryError, OverflowError):
        raise
    except Exception as error:
        # An object's own `__array__` may raise anything.
        raise NotAnArrayError(
            f"NumPy cannot make an array of this object: {NpzkitError.shown(str(error))}",
            key=key,
            found=type(value).__name__,
            remedy=_how_to_convert(value),
        ) from error


def _how_to_convert(value: Any) -> str:
    """Return what to do about an object that is not an array."""
    if isinstance(value, (list, tuple)):
        return (
            "Items of different lengths cannot form an array: save each under its own key, "
            "or fill them up to one length."
        )
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        tensor = "tensor.detach().cpu()"
        if str(getattr(value, "dtype", "")).endswith("bfloat16"):
            return (
                f"NumPy has no bfloat16. Save {tensor}.float().numpy(), or the same bits: "
                f"{tensor}.view(torch.int16).numpy().view(ml_dtypes.bfloat16)."
            )
        return f"Save {tensor}.numpy()."
    return "Convert it to a NumPy array first."


def _as_savable(array: Any, key: str, *, allow_pickle: bool) -> np.ndarray[Any, Any]:
    """Convert to an array that can be saved whole, or say why that cannot be."""
    converted = as_array(array, key)
    try:
        check_savable(converted, allow_pickle=allow_pickle)
        check_dtype(converted.dtype)
    except NpzkitError as error:
        if converted.dtype == object and not isinstance(array, np.ndarray):
            error.found = type(array).__name__
            error.remedy = (
                "Save it by npzkit.save(file, {key: value}), which takes nested data."
                if isinstance(array, Mapping)
                else "Convert it to an array of numbers or strings, or pass allow_pickle=True."
            )
        elif converted.dtype.char == "T":
            error.remedy = (
                "Save it in parts, npzkit.save(..., strings='split'), or array.astype('U')."
            )
        elif isinstance(error, UnsupportedError) and hasattr(converted, "mask"):
            error.remedy = "Save it in parts, npzkit.save(..., masked='split'), or array.filled()."
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
    array = _as_savable(array, key, allow_pickle=allow_pickle)
    extra = _format_attrs(attrs, array.dtype)
    try:
        pieces, size = _member_pieces(array)
    except NpzkitError as error:
        raise error.locate(key=key) from error.__cause__
    return Prepared(key, name, pieces, size, extra)


def splitting_for(masked: OnParts, strings: OnParts) -> Splitting | None:
    """Return what is to be taken apart; None, which costs nothing, where nothing is."""
    if masked == strings == "refuse":
        return None
    from npzkit.members.multipart import check_splitting

    return check_splitting(masked, strings)


def prepare_parts(
    key: str, parts: Iterable[Part], attrs: Mapping[str, Any] | None
) -> list[Prepared]:
    """Prepare the members of one array, whose attributes are the first one's."""
    return [
        prepare(
            key + part.suffix, check_key(key + part.suffix), part.array,
            part.attrs if part.suffix else {**(attrs or {}), **part.attrs},
            allow_pickle=False,
        )
        for part in parts
    ]  # fmt: skip


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
        check_dtype(dtype)
        return npy_header(dtype, shape, fortran_order), _format_attrs(attrs, dtype)
    except NpzkitError as error:
        raise error.locate(key=key) from error.__cause__


class _Head(NamedTuple):
    """The NPY header that all arrays of one dtype, shape and order share.

    Attributes
    ----------
    data : bytes
    crc32 : int
    nbytes : int
        Of each array.
    dtype : numpy.dtype
        Held, because the header is found by its identity.
    """

    data: bytes
    crc32: int
    nbytes: int
    dtype: np.dtype[Any]


class SmallArrays:
    """Plain small arrays that follow each other, as columns.

    Thousands of arrays share few dtypes and shapes, and so few headers.

    Attributes
    ----------
    keys, names : list of str
    heads : list of _Head
    arrays : list of numpy.ndarray
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.names: list[str] = []
        self.heads: list[_Head] = []
        self.arrays: list[np.ndarray[Any, Any]] = []

    def members(self, encode: Callable[[bytes], bytes] | None) -> Iterator[Small]:
        """Yield them as members: their bytes copied, and encoded where that is asked for."""
        for name, head, array in zip(self.names, self.heads, self.arrays, strict=True):
            # "A" is the order in which every array is written.
            data = array.tobytes("A")
            size = len(head[0]) + len(data)
            if encode is None:
                yield name, head[0], data, crc32(data, head[1]), size
            else:
                data = head[0] + data
                yield name, b"", encode(data), crc32(data), size


Heads = dict[tuple[Any, ...], "_Head | None"]
"""By a dtype's identity, a shape and an order; None for those that are not small."""


def gather(
    keys: Iterable[str],
    names: Iterable[str],
    arrays: Iterable[Any],
    heads: Heads,
    *,
    largest: int = SMALL_SIZE,
    allow_pickle: bool,
) -> Iterator[Prepared | SmallArrays]:
    """Prepare arrays to be written, small ones in a row together.

    Half a microsecond for an array that is like the one before it.

    Parameters
    ----------
    keys, names, arrays : iterable
        One behind the other.
    heads : dict
        Kept by the caller, for arrays like those before.
    largest : int
        Bytes, header included, that count as small.
    allow_pickle : bool
    """
    head: _Head | None = None
    last_dtype, last_shape, last_order = None, None, None
    run = SmallArrays()
    size = 0
    for key, name, array in zip(keys, names, arrays, strict=True):
        if type(array) is np.ndarray and name.isascii():
            dtype, shape, order = array.dtype, array.shape, array.flags.fnc
            if dtype is not last_dtype or shape != last_shape or order is not last_order:
                # By identity: dtypes that differ in their metadata alone are equal.
                kind = id(dtype), shape, order
                head = (
                    heads[kind] if kind in heads else heads.setdefault(kind, _head(array, largest))
                )
                last_dtype, last_shape, last_order = dtype, shape, order
            if head is not None:
                run.keys.append(key)
                run.names.append(name)
                run.heads.append(head)
                run.arrays.append(array)
                size += head[2]
                if size > _RUN_SIZE:
                    yield run
                    run, size = SmallArrays(), 0
                continue
        if run.keys:
            yield run
            run, size = SmallArrays(), 0
        yield prepare(key, name, array, None, allow_pickle=allow_pickle)
    if run.keys:
        yield run


def gather_split(
    arrays: Mapping[str, Any],
    splitting: Splitting,
    heads: Heads,
    *,
    largest: int = SMALL_SIZE,
    allow_pickle: bool,
) -> Iterator[Prepared | SmallArrays]:
    """Prepare arrays one by one, in parts where they have any; see `gather`."""
    for key, array in arrays.items():
        name, parts = check_key(key), splitting.parts(array)
        yield from prepare_parts(key, parts, None) or gather(
            (key,), (name,), (array,), heads, largest=largest, allow_pickle=allow_pickle
        )


def _head(array: np.ndarray[Any, Any], largest: int) -> _Head | None:
    """Return the header of arrays like this one; None unless they are small and plain."""
    dtype = array.dtype
    is_plain = dtype.isbuiltin == 1 and not dtype.hasobject and dtype.metadata is None
    if not is_plain or array.nbytes > largest:
        return None
    data = array_header(array)
    return (
        _Head(data, crc32(data), array.nbytes, dtype)
        if len(data) + array.nbytes <= largest
        else None
    )
