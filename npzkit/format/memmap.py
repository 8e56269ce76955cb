"""Memory maps of whole NPY files.

Owns `open_memmap`, and what it takes for a path. Members of an archive are
mapped by `npzkit.NpzFile.memmap`.
"""

from __future__ import annotations

import io
import math
import os
from typing import Any, cast

import numpy as np

from npzkit.errors import PickleRefusedError
from npzkit.files.disk import File
from npzkit.format.array import needs_pickle, read_header
from npzkit.format.descr import dtype_to_descr
from npzkit.format.header import (
    NpyHeader,
    check_version,
    end_of_data,
    format_header,
    index_shape,
    plain_dtype,
    warn_python2,
)
from npzkit.limits import DEFAULT_HEADER_SIZE

__all__ = ["isfileobj", "open_memmap"]


def isfileobj(f: Any) -> bool:
    """Whether `f` is a file of the operating system, with a descriptor.

    Examples
    --------
    >>> isfileobj(io.BytesIO())
    False
    """
    if not isinstance(f, (io.FileIO, io.BufferedReader, io.BufferedWriter)):
        return False
    try:
        f.fileno()
        return True
    except OSError:
        return False


def open_memmap(
    filename: str | os.PathLike[str],
    mode: Any = "r+",
    dtype: Any = None,
    shape: Any = None,
    fortran_order: bool = False,
    version: tuple[int, int] | None = None,
    *,
    max_header_size: int = DEFAULT_HEADER_SIZE,
) -> np.memmap[Any, Any]:
    """Map the array of an NPY file, or make a new file and map that.

    Parameters
    ----------
    filename : str or path-like
        Not a file object.
    mode : {"r", "r+", "c", "w+"}, default "r+"
        As in `numpy.memmap`; ``"w+"`` makes a new file.
    dtype : dtype-like, optional
        Of the new file; float64 where it is None.
    shape : int or tuple of int
        Of the new file. numpy's integers are accepted.
    fortran_order : bool, default False
        Of the new file.
    version : (int, int), optional
        Of the new file; None takes the oldest that can hold the header.
    max_header_size : int, default 10_000
        Largest header of an existing file, in bytes.

    Returns
    -------
    numpy.memmap
        Shares the file's bytes. Flush or delete it to be sure they are written.

    Raises
    ------
    ValueError
        A file object, a dtype that holds objects, or a bad header.
    OSError
        From opening the file, or because the disk is full: room is reserved
        for all that may be written, as a map that finds none kills the process.
    """
    if isfileobj(filename):
        raise ValueError("filename must be a path: a file object cannot be memory-mapped")
    path = os.fspath(filename)
    if "w" in mode:
        check_version(version)
        if shape is None:
            raise ValueError("a new file needs a shape")
        dtype, shape, fortran_order = plain_dtype(dtype), index_shape(shape), bool(fortran_order)
        _check_mappable(dtype)
        fields = {"descr": dtype_to_descr(dtype), "fortran_order": fortran_order, "shape": shape}
        header_bytes = format_header(fields, version)
        with open(path, mode + "b") as fp:
            fp.write(header_bytes)
            fp.flush()
            size = math.prod(shape) * dtype.itemsize
            File(None, fp.fileno()).reserve(len(header_bytes), size, mapped=True)
        offset, mode = len(header_bytes), "r+" if mode == "w+" else mode
    else:
        with open(path, "rb") as fp:
            header = read_header(fp, max_header_size).fresh()
        warn_python2(header)
        dtype, shape, fortran_order = header.dtype, header.shape, header.fortran_order
        _check_mappable(dtype)
        offset = header.data_offset
        _check_backed(path, header)
        if mode == "r+":
            File(path).fill_holes(offset, header.nbytes)
    order = cast(Any, "F" if fortran_order else "C")
    return np.memmap(path, dtype=dtype, shape=shape, order=order, mode=mode, offset=offset)


def _check_mappable(dtype: np.dtype[Any]) -> None:
    if needs_pickle(dtype):
        raise PickleRefusedError(
            "Array can't be memory-mapped: Python objects in dtype", found=str(dtype)
        )


def _check_backed(path: str, header: NpyHeader) -> None:
    """Refuse to map more than the file holds: ``"r+"`` would extend it."""
    found = os.stat(path).st_size - header.data_offset
    if found < header.nbytes:
        raise end_of_data("array data", header.nbytes, max(found, 0)).locate(path=path)
