"""The ``descr`` of an NPY header: converting a dtype to a literal and back.

Owns the mapping between `numpy.dtype` and ``descr``. Knows nothing about headers
or files. Values from a file are checked before they are passed to `numpy.dtype`,
which parses strings in a language of its own, evaluates parts of them, and
raises a dozen kinds of exceptions for hostile ones.

Source: the NPY format description in `numpy.lib.format`.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from typing import Any

import numpy as np

from npzkit.errors import ALLOW_PICKLE, NpyFormatError, UnsupportedError, warn
from npzkit.limits import MAX_DESCR_DEPTH

_ORDERS = ("<", ">", "|", "=")
_USUAL_LENGTH = 20
_TYPE_STRING = r"[<>|=]?(?:[A-Za-z_]+[0-9]{0,18}|\?)(?:\[([0-9]{0,10})[A-Za-zμ]+\])?"
"""Accepts ``<f8``, ``|S12``, ``<M8[25s]`` and ``float64``, but not ``(2,)i4,f8``, and not
divided units (``<M8[s/2]``), which NumPy does not write and crashes on."""
_EXTENSION = r"bfloat16|float[468]_e[0-9]m[0-9][a-z0-9]{0,10}|u?int[24]"
"""Names of dtypes that the package ml_dtypes defines."""

AMBIGUOUS = "VgG"
"""Codes of dtypes of which ``descr`` may not say everything: void and long double."""
_LONG_DOUBLES = {63: "x87", 105: "two doubles", 112: "IEEE 128"}
"""By the bits of the mantissa."""
OTHER_LONG_DOUBLE = "the array has long doubles of another kind of machine"
_LONG_DOUBLE = r"[<>=]?(f(10|12|16)|c(20|24|32))"
"""Long doubles, real and complex, of some kind of machine."""
_DTYPE_ERRORS = (
    TypeError, ValueError, OverflowError, KeyError, IndexError, AttributeError,
    SyntaxError, RuntimeError, SystemError,
)  # fmt: skip
"""The exceptions that `numpy.dtype` raises for invalid descriptions."""


def is_legacy(dtype: np.dtype[Any]) -> bool:
    """Return whether elements of the dtype are plain bytes (those of StringDType are not)."""
    return bool(getattr(type(dtype), "_legacy", True))


def dtype_to_descr(dtype: np.dtype[Any]) -> Any:
    """Return a literal that `descr_to_dtype` converts back to the same dtype.

    Parameters
    ----------
    dtype : numpy.dtype
        Any dtype.

    Returns
    -------
    descr : str or list
        A string for a simple dtype, or a list of fields.

    Warns
    -----
    UserWarning
        The dtype has metadata, which NPY cannot store, or its elements are not
        plain bytes, so that it is written as ``"|O"`` and pickled.

    Notes
    -----
    This behaves like `numpy.lib.format.dtype_to_descr`, except for dtypes of
    other packages. For example, float8_e5m2 is written as a void of the same
    size, because no reader knows NumPy's ``<f1``.

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
            "the dtype's metadata is not saved, because NPY cannot store it. Save it as "
            "attributes of the array, or use another format.",
            UserWarning,
        )
    if bare.names is not None:
        return bare.descr
    if not is_legacy(bare):
        warn(
            f"{bare!r} is saved as pickled Python objects; reading it back needs "
            + ALLOW_PICKLE
            + ".",
            UserWarning,
        )
        return "|O"
    if bare.isbuiltin == 2 and bare.kind != "V":
        return f"|V{bare.itemsize}"
    return bare.str


def descr_to_dtype(descr: Any) -> np.dtype[Any]:
    """Return the dtype that a ``descr`` literal describes.

    Parameters
    ----------
    descr : str, tuple or list
        A type string, ``(descr, shape)``, or a list of fields
        ``(name, descr[, shape])``. A name may be ``(title, name)``.

    Returns
    -------
    dtype : numpy.dtype
        Padding fields become offsets.

    Raises
    ------
    NpyFormatError
        `descr` has another form, or NumPy has no such dtype.

    Notes
    -----
    `numpy.lib.format.descr_to_dtype` accepts everything that `numpy.dtype`
    accepts, such as comma-separated strings, which no NPY writer produces.

    Examples
    --------
    >>> descr_to_dtype([("x", "<i4"), ("", "|V4"), ("y", "<f8")]).itemsize
    16
    """
    try:
        return _dtype(descr, 0)
    except (NpyFormatError, UnsupportedError, RecursionError):
        raise
    except _DTYPE_ERRORS as error:
        raise _invalid(descr, str(error)) from error


def _dtype(descr: Any, depth: int) -> np.dtype[Any]:
    if depth > MAX_DESCR_DEPTH:
        raise _invalid(descr, "it is nested too deeply")
    if isinstance(descr, str):
        # What NumPy writes of most dtypes needs no pattern, as the header's text does.
        is_usual = descr[:1] in _ORDERS and descr[1:2].isalpha() and descr[2:].isdecimal()
        if not (is_usual and descr.isascii() and len(descr) < _USUAL_LENGTH):
            match = re.fullmatch(_TYPE_STRING, descr)
            if re.fullmatch(_EXTENSION, descr):
                # NumPy knows these names once the package is imported.
                with contextlib.suppress(ImportError):
                    importlib.import_module("ml_dtypes")
            elif match is None or (match[1] and not 1 <= int(match[1]) < 2**31):
                raise _invalid(descr, "it does not look like the name of a dtype")
        # "a" is NumPy's old name for "S", which it warns about. After a byte order it needs a size.
        is_old = descr.strip("<>|=0123456789") == "a" and (descr == "a" or descr[-1] != "a")
        try:
            dtype = np.dtype(descr.replace("a", "S") if is_old else descr)
        except TypeError as error:
            if re.fullmatch(_LONG_DOUBLE, descr):
                raise other_long_double(descr) from error
            raise
        if not is_legacy(dtype):
            raise _invalid(descr, "its elements are not plain bytes")
        if dtype.itemsize < 0:
            # NumPy 2.0 does not detect that a C int overflows.
            raise _invalid(descr, "its elements are too large for this NumPy")
        return dtype
    if isinstance(descr, tuple):
        if len(descr) != 2:
            raise _invalid(descr, "a subarray is (descr, shape)")
        return np.dtype((_dtype(descr[0], depth + 1), _subarray_shape(descr[1])))
    if isinstance(descr, list):
        return _structure(descr, depth + 1)
    raise _invalid(descr, "it is neither a string, a tuple nor a list")


def long_double_name(dtype: np.dtype[Any]) -> str | None:
    """Return what kind of long double a dtype has, or None: machines differ, and descr has none.

    Where a long double is a double, it is one in every file as well.
    """
    if dtype.names is not None:
        return next(filter(None, (long_double_name(dtype[name]) for name in dtype.names)), None)
    if dtype.base.char not in "gG" or np.dtype("g").itemsize == np.dtype("d").itemsize:
        return None
    bits = np.finfo(np.longdouble).nmant
    return f"longdouble of {_LONG_DOUBLES.get(bits, f'{bits} bits')}"


def other_long_double(name: object) -> UnsupportedError:
    """Return the error for long doubles that this machine does not have."""
    return UnsupportedError(
        OTHER_LONG_DOUBLE, found=name,
        remedy="Read it on a machine of that kind, and save array.astype(float).",
    )  # fmt: skip


def _structure(fields: list[Any], depth: int) -> np.dtype[Any]:
    names, titles, formats, offsets = [], [], [], []
    offset = 0
    for field in fields:
        if not isinstance(field, tuple) or len(field) not in (2, 3):
            raise _invalid(field, "a field is (name, descr[, shape])")
        name, dtype = field[0], _dtype(field[1], depth)
        if len(field) == 3:
            dtype = np.dtype((dtype, _subarray_shape(field[2])))
        # dtype.descr writes padding as void fields without a name.
        if not (name == "" and dtype.type is np.void and dtype.names is None):
            title, name = name if isinstance(name, tuple) and len(name) == 2 else (None, name)
            if not isinstance(name, str):
                raise _invalid(field, "a name is a string, or (title, name)")
            # A title may be any object, but a dtype that cannot be hashed is useless.
            hash(title)
            titles.append(title)
            names.append(name)
            formats.append(dtype)
            offsets.append(offset)
        offset += dtype.itemsize
    return _layout(names, formats, offsets, titles, offset)


def _layout(
    names: Any, formats: list[Any], offsets: list[int], titles: list[Any], size: int, **options: Any
) -> np.dtype[Any]:
    """Return the dtype of a structure; `options` are those of `numpy.dtype`."""
    fields: Any = {"names": names, "formats": formats, "offsets": offsets, "titles": titles}
    dtype: np.dtype[Any] = np.dtype(fields | {"itemsize": size}, **options)
    return dtype


def _subarray_shape(shape: Any) -> int | tuple[int, ...]:
    if isinstance(shape, dict):
        error = _invalid(shape, "it has a dtype's metadata, such as h5py's, which NPY cannot keep")
        error.remedy = "Save the array again with npzkit or a newer NumPy: they leave it out."
        raise error
    dimensions = shape if isinstance(shape, tuple) else (shape,)
    for dimension in dimensions:
        if type(dimension) is not int or dimension < 0:
            raise _invalid(shape, "a subarray's shape consists of non-negative integers")
    return shape  # type: ignore[no-any-return]


def _invalid(descr: object, reason: str) -> NpyFormatError:
    return NpyFormatError(
        f"descr is not a valid dtype descriptor ({reason})",
        found=descr,
        remedy="If the dtype is newer than this NumPy, upgrade NumPy, or install the package "
        "that defines it: ml_dtypes has bfloat16 and float8.",
    )


def drop_metadata(dtype: np.dtype[Any], /) -> np.dtype[Any]:
    """Return `dtype` without metadata at any depth, or `dtype` itself if it has none.

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
        # The string of another package's dtype describes a void, or is not valid.
        return np.dtype(dtype.type).newbyteorder(dtype.byteorder)
    return np.dtype(dtype.str)


def _drop_from_structure(dtype: np.dtype[Any]) -> np.dtype[Any]:
    names = dtype.names or ()
    fields: list[tuple[Any, ...]] = [dtype.fields[name] for name in names]  # type: ignore[index]
    formats = [drop_metadata(field[0]) for field in fields]
    unchanged = all(new is field[0] for new, field in zip(formats, fields, strict=True))
    if unchanged and dtype.metadata is None:
        return dtype
    offsets = [field[1] for field in fields]
    titles = [field[2] if len(field) > 2 else None for field in fields]
    align = dtype.isalignedstruct
    return _layout(list(names), formats, offsets, titles, dtype.itemsize, align=align)
