"""MATLAB's files of version 5, by scipy: one variable per array.

Owns what MATLAB changes in an array. Struct and cell arrays are not arrays here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.io

from npzkit import format as npy
from npzkit.conversion.arrays import Array, Contents, FileOptions, Say, is_c_number, unreadable
from npzkit.errors import ConversionError, printable

PADS_TEXT = True
"""Text is padded with spaces, and arrays have two axes at least."""
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}", re.ASCII)
_CLASSES = {
    "double": "f8", "single": "f4", "logical": "?", "int8": "i1", "uint8": "u1", "int16": "i2",
    "uint16": "u2", "int32": "i4", "uint32": "u4", "int64": "i8", "uint64": "u8", "char": "U1",
}  # fmt: skip
"""MATLAB's classes that are arrays of plain values."""


@contextlib.contextmanager
def read(path: str, say: Say) -> Iterator[Contents]:
    """Open a file."""
    try:
        listed = scipy.io.whosmat(path, appendmat=False)
    except NotImplementedError as error:
        raise ConversionError(
            "the file has version 7.3 of MATLAB's format, which is HDF5", path=path,
            remedy="Give it a name that ends in .h5.",
        ) from error  # fmt: skip
    yield Contents({}, [_array(path, *row) for row in listed])


def _array(path: str, key: str, shape: tuple[int, ...], kind: str) -> Array:
    if kind not in _CLASSES:
        return unreadable(key, shape, f"a MATLAB {kind} is not an array of plain values")
    # Only the values show whether they are complex, and how long strings are.
    array = _load(path, key, kind)
    return Array(key, array.shape, array.dtype, partial(_load, path, key, kind),
                 fortran_order=array.ndim > 1 and array.flags.f_contiguous)  # fmt: skip


def _load(path: str, key: str, kind: str) -> np.ndarray[Any, Any]:
    found = scipy.io.loadmat(path, variable_names=[key], appendmat=False)
    array: np.ndarray[Any, Any] = found[key]
    return array.astype(bool) if kind == "logical" else array.astype(npy.drop_metadata(array.dtype))


def why_unfit(array: Array) -> str | None:
    """Return why MATLAB has no name or no class for an array, or None."""
    dtype = array.dtype
    if not _VARIABLE.fullmatch(array.key):
        return "MATLAB's names are letters, digits and _, and begin with a letter"
    if dtype.kind == "U" and len(array.shape) > 1:
        return "MATLAB keeps text only as a one-dimensional array of strings"
    if dtype.kind == "U" or is_c_number(dtype):
        return None
    return f"MATLAB has no class for {printable(str(dtype))[:60]}"


def write(path: str, contents: Contents, options: FileOptions, say: Say) -> None:
    """Write a file."""
    _tell(contents, say)
    keys = [""]

    def items() -> Iterator[tuple[str, Any]]:
        for array in contents.arrays:
            keys[0] = array.key
            yield array.key, array.whole()

    try:
        # All that savemat asks of it: each array is read when its turn comes.
        variables = SimpleNamespace(items=items)
        scipy.io.savemat(
            path, variables, appendmat=False, do_compression=bool(options.method),
            oned_as="row",
        )  # fmt: skip
    except UnicodeError as error:
        raise ConversionError(
            "its text is not valid Unicode", key=keys[0], remedy="Leave it out with skip=True."
        ) from error


def _tell(contents: Contents, say: Say) -> None:
    if contents.metadata or any(array.attrs for array in contents.arrays):
        say("metadata and attributes are not kept: MATLAB's files have no place for them")
    for array in contents.arrays:
        if array.dtype.kind == "U":
            say(f"{array.key!r}: text becomes rows of one length, padded with spaces")
