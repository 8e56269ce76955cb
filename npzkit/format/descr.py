"""The ``descr`` of an NPY header: a dtype as a literal, and back.

Owns the mapping between `numpy.dtype` and ``descr``. Knows neither headers nor
files. What comes from a file is checked here before numpy's dtype constructor
sees it: that constructor has a language of its own for strings, parts of which
are evaluated, and answers hostile ones with a dozen kinds of exception.

Source: the NPY format description in `numpy.lib.format`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from npzkit.errors import NpyFormatError, warn

__all__ = ["descr_to_dtype", "drop_metadata", "dtype_to_descr", "is_legacy"]

_TYPE_STRING = re.compile(
    r"[<>|=]?(?:[A-Za-z_]+[0-9]{0,18}|\?)(?:\[([0-9]{0,10})[A-Za-zμ]+\])?", re.ASCII
)
"""``<f8``, ``|S12``, ``<M8[25s]``, ``float64``: never ``(2,)i4,f8``, and never a
divided unit (``<M8[s/2]``), which numpy does not write and crashes on."""

_DTYPE_ERRORS = (
    TypeError, ValueError, OverflowError, KeyError, IndexError, AttributeError,
    SyntaxError, MemoryError, RecursionError, RuntimeError, SystemError,
)  # fmt: skip
"""What numpy's dtype constructor is known to raise for a bad description."""


def is_legacy(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype's elements are plain bytes (StringDType's are not)."""
    return bool(getattr(type(dtype), "_legacy", True))


def dtype_to_descr(dtype: np.dtype[Any]) -> Any:
    """Return a literal from which `descr_to_dtype` makes the same dtype.

    Parameters
    ----------
    dtype : numpy.dtype
        Any dtype.

    Returns
    -------
    descr : str or list
        A string for a simple dtype, else a list of fields.

    Warns
    -----
    UserWarning
        When the dtype carries metadata, which NPY has no place for; and for a
        dtype whose elements are not plain bytes, which is written as ``"|O"``
        and pickled.

    Notes
    -----
    Behaves as `numpy.lib.format.dtype_to_descr`, but for a dtype of another
    package, such as float8_e5m2, which is a void of its size whatever kind it
    says it is: numpy's ``<f1`` is a dtype to no reader.

    Examples
    --------
    >>> dtype_to_descr(np.dtype("f8"))
    '<f8'
    >>> dtype_to_descr(np.dtype([("x", "i4"), ("y", "f8", (2,))]))
    [('x', '<i4'), ('y', '<f8', (2,))]
    """
    bare = drop_metadata(dtype)
    if bare is not dtype:
        warn(
            "the dtype's metadata is not saved: NPY has no place for it. Keep it in the "
            "attributes of the array, or use another format.",
            UserWarning,
        )
    if bare.names is not None:
        return bare.descr
    if not is_legacy(bare):
        warn(
            f"{bare!r} is saved as Python objects by pickle; reading it back needs "
            "allow_pickle=True.",
            UserWarning,
        )
        return "|O"
    if bare.isbuiltin == 2 and bare.kind != "V":
        return f"|V{bare.itemsize}"
    return bare.str


def descr_to_dtype(descr: Any) -> np.dtype[Any]:
    """Return the dtype that a ``descr`` literal stands for.

    Parameters
    ----------
    descr : str, tuple or list
        A type string, ``(descr, shape)``, or a list of fields
        ``(name, descr[, shape])`` where a name may be ``(title, name)``.

    Returns
    -------
    dtype : numpy.dtype
        Padding fields are turned back into offsets.

    Raises
    ------
    NpyFormatError
        When `descr` is anything else, or numpy knows no such dtype.

    Notes
    -----
    `numpy.lib.format.descr_to_dtype` accepts whatever `numpy.dtype` accepts,
    comma-separated strings among them; no NPY writer produces those.

    Examples
    --------
    >>> descr_to_dtype([("x", "<i4"), ("", "|V4"), ("y", "<f8")]).itemsize
    16
    """
    try:
        return _dtype(descr)
    except NpyFormatError:
        raise
    except _DTYPE_ERRORS as error:
        raise _invalid(descr, str(error)) from error


def _dtype(descr: Any) -> np.dtype[Any]:
    if isinstance(descr, str):
        match = _TYPE_STRING.fullmatch(descr)
        if match is None or (match[1] and not 1 <= int(match[1]) < 2**31):
            raise _invalid(descr, "no dtype's name looks like this")
        # numpy's old name for S, which it warns of; an order before it needs a size behind it.
        is_old = descr.strip("<>|=0123456789") == "a" and (descr == "a" or descr[-1] != "a")
        dtype = np.dtype(descr.replace("a", "S") if is_old else descr)
        if not is_legacy(dtype):
            raise _invalid(descr, "its elements are not plain bytes")
        if dtype.itemsize < 0:
            # NumPy 2.0 does not notice that a C int overflows.
            raise _invalid(descr, "its elements are too large for this NumPy")
        return dtype
    if isinstance(descr, tuple):
        if len(descr) != 2:
            raise _invalid(descr, "a subarray is (descr, shape)")
        return np.dtype((_dtype(descr[0]), _subarray_shape(descr[1])))
    if isinstance(descr, list):
        return _structure(descr)
    raise _invalid(descr, "it is neither a string, a tuple nor a list")


def _structure(fields: list[Any]) -> np.dtype[Any]:
    names, titles, formats, offsets = [], [], [], []
    offset = 0
    for field in fields:
        if not isinstance(field, tuple) or len(field) not in (2, 3):
            raise _invalid(field, "a field is (name, descr[, shape])")
        name, dtype = field[0], _dtype(field[1])
        if len(field) == 3:
            dtype = np.dtype((dtype, _subarray_shape(field[2])))
        # dtype.descr spells padding as nameless void fields.
        if not (name == "" and dtype.type is np.void and dtype.names is None):
            title, name = name if isinstance(name, tuple) and len(name) == 2 else (None, name)
            if not isinstance(name, str):
                raise _invalid(field, "a name is a string, or (title, name)")
            # Whatever else a title is, a dtype that cannot be hashed is of no use.
            hash(title)
            titles.append(title)
            names.append(name)
            formats.append(dtype)
            offsets.append(offset)
        offset += dtype.itemsize
    return np.dtype(
        {
            "names": names,
            "formats": formats,
            "titles": titles,
            "offsets": offsets,
            "itemsize": offset,
        }  # type: ignore[call-overload,unused-ignore]
    )


def _subarray_shape(shape: Any) -> int | tuple[int, ...]:
    dimensions = shape if isinstance(shape, tuple) else (shape,)
    for dimension in dimensions:
        if type(dimension) is not int or dimension < 0:
            raise _invalid(shape, "a subarray's shape is made of integers")
    return shape  # type: ignore[no-any-return]


def _invalid(descr: object, reason: str) -> NpyFormatError:
    return NpyFormatError(
        f"descr is not a valid dtype descriptor ({reason})",
        found=descr,
        remedy="Upgrade NumPy or import the package that defines the dtype, if it is a newer one.",
    )


def drop_metadata(dtype: np.dtype[Any], /) -> np.dtype[Any]:
    """Return `dtype` without metadata, at any depth; itself where it has none.

    Examples
    --------
    >>> tagged = np.dtype("i4", metadata={"unit": "m"})
    >>> drop_metadata(tagged).metadata is None
    True
    """
    if dtype.names is not None:
        return _drop_from_structure(dtype)
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        bare = drop_metadata(base)
        if bare is base and dtype.metadata is None:
            return dtype
        return np.dtype((bare, shape))
    if dtype.metadata is None:
        return dtype
    if dtype.isbuiltin == 2:
        # The string of another package's dtype is a void's, or nothing's.
        return np.dtype(dtype.type).newbyteorder(dtype.byteorder)
    return np.dtype(dtype.str)


def _drop_from_structure(dtype: np.dtype[Any]) -> np.dtype[Any]:
    names = dtype.names or ()
    fields: list[tuple[Any, ...]] = [dtype.fields[name] for name in names]  # type: ignore[index]
    formats = [drop_metadata(field[0]) for field in fields]
    unchanged = all(new is field[0] for new, field in zip(formats, fields, strict=True))
    if unchanged and dtype.metadata is None:
        return dtype
    return np.dtype(
        {
            "names": list(names),
            "formats": formats,
            "offsets": [field[1] for field in fields],
            "titles": [field[2] if len(field) > 2 else None for field in fields],
            "itemsize": dtype.itemsize,
        },  # type: ignore[call-overload,unused-ignore]
        align=dtype.isalignedstruct,
    )
