"""An array in a file that is not an archive, read and written block by block.

Owns maps that exist only for one block, so that memory stays small.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np

from npzkit.reading.blocks import BLOCK_SIZE

_NO_RESERVATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)
"""From systems that cannot reserve room in a file."""


class InFile:
    """An array in a file, mapped for as long as a part of it is read or written.

    What a map has shown stays in memory until it is closed.

    Parameters
    ----------
    path : str
    dtype : numpy.dtype
    offset : int
        Of its first byte.
    shape : tuple of int
    fortran_order : bool, default False
    """

    def __init__(
        self, path: str | os.PathLike[str], dtype: np.dtype[Any], offset: int,
        shape: tuple[int, ...], *, fortran_order: bool = False,
    ) -> None:  # fmt: skip
        self._path, self._dtype, self._offset = path, dtype, offset
        self._shape, self._fortran_order = shape, fortran_order

    @classmethod
    def of_map(cls, array: np.memmap[Any, Any]) -> InFile:
        """Return the array that a map of a whole array shows."""
        path: Any = array.filename
        by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
        return cls(path, array.dtype, array.offset, array.shape, fortran_order=by_columns)

    def _map(self, mode: Any) -> np.ndarray[Any, Any]:
        if 0 in self._shape:
            return np.empty(self._shape, self._dtype)
        order: Any = "F" if self._fortran_order else "C"
        return np.memmap(self._path, self._dtype, mode, self._offset, self._shape, order)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        return np.array(self._map("r")[index], order="K", subok=False)

    def __setitem__(self, index: tuple[slice, ...], values: np.ndarray[Any, Any]) -> None:
        self._map("r+")[index] = values


def make_file(path: str, head: bytes, size: int) -> None:
    """Make a file of some bytes and `size` zeros.

    Raises
    ------
    OSError
        There is no room: a map of a file that has none ends the process.
    """
    with open(path, "xb") as file:
        file.write(head)
        file.flush()
        if not size:
            return
        try:
            os.posix_fallocate(file.fileno(), len(head), size)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_RESERVATION:
                raise
            for start in range(0, size, BLOCK_SIZE):
                file.write(bytes(min(BLOCK_SIZE, size - start)))
