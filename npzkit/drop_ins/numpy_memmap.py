"""Memory maps of complete NPY files.

Owns `open_memmap`. `npzkit.NpzFile.memmap` maps members of an archive.
"""

from __future__ import annotations

import io
import math
import os
from typing import Any, cast

import numpy as np

from npzkit.errors import PickleRefusedError
from npzkit.files.disk import File
from npzkit.files.file_objects import open_regular
from npzkit.format.array import check_addressable, needs_pickle, read_header
from npzkit.format.descr import drop_metadata, dtype_to_descr
from npzkit.format.header import NpyHeader, end_of_data, format_header, index_shape, warn_python2
from npzkit.limits import DEFAULT_HEADER_SIZE


def isfileobj(f: Any) -> bool:
    """Return whether `f` is a file of the operating system, with a descriptor.

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
    """Memory-map the array of an NPY file, or create a new file and map it.

    Parameters
    ----------
    filename : str or path-like
        File objects are not supported.
    mode : {"r", "r+", "c", "w+"}, default "r+"
        As in `numpy.memmap`; ``"w+"`` creates a new file.
    dtype : dtype-like, optional
        Dtype of the new file; None means float64.
    shape : int or tuple of int
        Shape of the new file. NumPy integers are accepted.
    fortran_order : bool, default False
        Whether the new file is in Fortran order.
    version : (int, int), optional
        Format version of the new file; None chooses the oldest one that can
        store the header.
    max_header_size : int, default 10_000
        Largest header of an existing file, in bytes.

    Returns
    -------
    numpy.memmap
        Shares the bytes of the file. Flush or delete it to be sure that they
        are written.

    Raises
    ------
    ValueError
        `filename` is a file object, the dtype has objects, or the header is
        invalid.
    OSError
        The file cannot be opened, or the disk is full. Space is reserved for
        the whole array, because the system kills a process that writes to a map
        on a full disk.
    """
    if isfileobj(filename):
        raise ValueError("filename must be a path: a file object cannot be memory-mapped")
    path = os.fspath(filename)
    if "w" in mode:
        if shape is None:
            raise ValueError("a new file needs a shape")
        dtype, shape = drop_metadata(np.dtype(dtype)), index_shape(shape)
        fortran_order = bool(fortran_order)
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
        with io.BufferedReader(open_regular(os.fsdecode(path))) as fp:
            header = read_header(fp, max_header_size).fresh()
        warn_python2(header)
        dtype, shape, fortran_order = header.dtype, header.shape, header.fortran_order
        _check_mappable(dtype)
        offset = header.data_offset
        _check_backed(path, header)
        check_addressable(shape, dtype)
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
    """Raise NpyFormatError if the file is too short: mode ``"r+"`` would extend it."""
    found, size = os.stat(path).st_size - header.data_offset, header.nbytes
    if found < size:
        error = end_of_data("array data", size, max(found, 0), remedy=header.cut_remedy)
        raise error.locate(path=path)
