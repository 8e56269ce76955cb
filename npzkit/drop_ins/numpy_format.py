"""The functions of `numpy.lib.format`, as `npzkit.format` has them.

Owns what that module has beside what the core uses: NumPy's names for each version of the header.

Examples
--------
>>> import io, numpy as np
>>> stream = io.BytesIO()
>>> write_array(stream, np.arange(6).reshape(2, 3))
>>> _ = stream.seek(0)
>>> read_magic(stream)
(1, 0)
>>> read_array_header_1_0(stream)
((2, 3), False, dtype('int64'))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npzkit.drop_ins.numpy_memmap import isfileobj, open_memmap
from npzkit.errors import NpyFormatError
from npzkit.format.array import read_array, read_bytes, read_rest_of_header, write_array
from npzkit.format.descr import descr_to_dtype, drop_metadata, dtype_to_descr
from npzkit.format.header import (
    ARRAY_ALIGN,
    EXPECTED_KEYS,
    GROWTH_AXIS_MAX_DIGITS,
    MAGIC_LEN,
    MAGIC_PREFIX,
    check_version,
    format_header,
    index_shape,
    warn_python2,
)
from npzkit.limits import DEFAULT_HEADER_SIZE

__all__ = [
    "ARRAY_ALIGN", "BUFFER_SIZE", "EXPECTED_KEYS", "GROWTH_AXIS_MAX_DIGITS", "MAGIC_LEN",
    "MAGIC_PREFIX", "descr_to_dtype", "drop_metadata", "dtype_to_descr",
    "header_data_from_array_1_0", "isfileobj", "magic", "open_memmap", "read_array",
    "read_array_header_1_0", "read_array_header_2_0", "read_array_header_3_0", "read_magic",
    "write_array", "write_array_header_1_0", "write_array_header_2_0", "write_array_header_3_0",
]  # fmt: skip

BUFFER_SIZE = 2**18
"""Bytes of NumPy's read buffer. npzkit does not use it; it exists for compatibility."""


def magic(major: int, minor: int) -> bytes:
    """Return the first eight bytes of an NPY file of this version.

    Raises
    ------
    ValueError
        A number is not between 0 and 255.

    Examples
    --------
    >>> magic(1, 0) == MAGIC_PREFIX + bytes([1, 0])
    True
    """
    for name, number in (("major", major), ("minor", minor)):
        if not 0 <= number <= 255:
            raise ValueError(f"{name} version must be 0 <= {name} < 256, not {number}")
    return MAGIC_PREFIX + bytes([major, minor])


def read_magic(fp: Any) -> tuple[int, int]:
    """Read eight bytes and return the version, even if it is not supported.

    Returns
    -------
    (int, int)
        Major and minor version.

    Raises
    ------
    NpyFormatError
        The bytes are not an NPY magic string, or the stream ends early.
    """
    data = read_bytes(fp, MAGIC_LEN, "magic string")
    if data[:6] != MAGIC_PREFIX:
        raise NpyFormatError(
            "the magic string is not correct", found=data[:6], expected=MAGIC_PREFIX
        )
    return data[6], data[7]


def header_data_from_array_1_0(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the dict that is written as the header of an array.

    Examples
    --------
    >>> import numpy as np
    >>> header_data_from_array_1_0(np.zeros((2, 3), "f4"))
    {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}
    """
    descr, fortran_order = dtype_to_descr(array.dtype), array.flags.fnc
    return {"descr": descr, "fortran_order": fortran_order, "shape": array.shape}


def _read_array_header(
    fp: Any, version: tuple[int, int], max_header_size: int = DEFAULT_HEADER_SIZE
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header after the magic string, in the given version."""
    check_version(version)
    header = read_rest_of_header(fp, magic(*version), max_header_size).fresh()
    warn_python2(header)
    return header.shape, header.fortran_order, header.dtype


def read_array_header_1_0(
    fp: Any, max_header_size: int = DEFAULT_HEADER_SIZE
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a version 1.0 header, leaving `fp` at the start of the data.

    Parameters
    ----------
    fp : file object
        Positioned after the magic string.
    max_header_size : int, default 10_000
        Largest header, in bytes.

    Returns
    -------
    shape : tuple of int
    fortran_order : bool
    dtype : numpy.dtype

    Raises
    ------
    NpyFormatError
        The header is invalid or truncated.
    LimitExceededError
        The header is larger than `max_header_size`.
    """
    return _read_array_header(fp, (1, 0), max_header_size)


def read_array_header_2_0(
    fp: Any, max_header_size: int = DEFAULT_HEADER_SIZE
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a version 2.0 header; see `read_array_header_1_0`."""
    return _read_array_header(fp, (2, 0), max_header_size)


def read_array_header_3_0(
    fp: Any, max_header_size: int = DEFAULT_HEADER_SIZE
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a version 3.0 header; see `read_array_header_1_0`."""
    return _read_array_header(fp, (3, 0), max_header_size)


def _write_array_header(fp: Any, d: dict[str, Any], version: tuple[int, int] | None = None) -> None:
    """Write magic string and header in the given version, or the oldest possible one."""
    fp.write(format_header({**d, "shape": index_shape(d["shape"])}, version))


def write_array_header_1_0(fp: Any, d: dict[str, Any]) -> None:
    """Write magic string and header in version 1.0.

    Parameters
    ----------
    fp : file object
    d : dict
        ``descr``, ``fortran_order`` and ``shape``, as
        `header_data_from_array_1_0` returns them.

    Raises
    ------
    NpyFormatError
        The header does not fit version 1.0.
    """
    _write_array_header(fp, d, (1, 0))


def write_array_header_2_0(fp: Any, d: dict[str, Any]) -> None:
    """Write magic string and header in version 2.0; see `write_array_header_1_0`."""
    _write_array_header(fp, d, (2, 0))


def write_array_header_3_0(fp: Any, d: dict[str, Any]) -> None:
    """Write magic string and header in version 3.0; see `write_array_header_1_0`."""
    _write_array_header(fp, d, (3, 0))
