"""An array in an archive of which only the parts asked for are read.

Owns the look of an array: shape, dtype, indexing, iteration, pickling. What an
index needs is `npzkit.reading.indexing`'s, which bytes that is `npzkit.reading.byte_ranges`', how
they are reached the zip layer's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from npzkit.errors import NpyFormatError, NpzkitError, UnsupportedError
from npzkit.files.parallel import thread_count
from npzkit.format.header import NpyHeader
from npzkit.members.extension_dtypes import restored_dtype
from npzkit.members.metadata import user_attrs
from npzkit.reading.blocks import blocks_of_shape
from npzkit.reading.byte_ranges import read_block
from npzkit.reading.indexing import Selection, select
from npzkit.zip.random_access import RandomAccess

__all__ = ["LazyArray"]

_CHUNK_SIZE = 1 << 20
"""Bytes of a chunk where the member has none of its own."""
_ROWS_SIZE = 1 << 24
"""Bytes of rows read at a time from an array that is stored by columns."""
_UNPROVEN_SIZE = 1 << 24
"""Bytes believed of a member whose compression bounds no claim."""


class Archive(Protocol):
    """What a lazy array asks of the archive it belongs to."""

    def read(self, key: str, out: np.ndarray[Any, Any] | None = None) -> Any: ...
    def lazy(self, key: str) -> LazyArray: ...
    def _access(self, key: str) -> RandomAccess: ...
    def _explain(self, error: NpzkitError, key: str | None) -> NpzkitError: ...


class LazyArray:
    """An array that stays in its archive: ``lazy[index]`` reads what it needs.

    Made by `NpzFile.lazy`. Indexing takes integers, slices of any step,
    Ellipsis, newaxis, one array or list of integers or booleans among them,
    and field names; the result is what NumPy gives for the whole array, fresh
    and writable. It may be shared by threads, used in forked processes, and
    pickled where its archive may: it then opens an archive of its own, which
    closes with it.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    ndim, size, nbytes : int
        As an array's.
    chunks : tuple of int
        The shape of a part that is read cheaply: whole rows (columns, in
        Fortran order) of about one compressed chunk, or of 1 MiB.
    attrs : mapping of str to object
        The attributes it was saved with.

    Notes
    -----
    A part's bytes are not compared with the member's CRC-32, which covers
    the whole: `read` does that. A deflated member that was saved in one piece
    is inflated up to the part, once; points to start from stay in memory, about
    1 % of the array's size, for as long as the archive is open.

    Examples
    --------
    >>> import io, npzkit, numpy as np
    >>> stream = io.BytesIO()
    >>> npzkit.save(stream, {"w": np.arange(12).reshape(3, 4)})
    >>> lazy = npzkit.open(stream).lazy("w")
    >>> lazy
    LazyArray('w', shape=(3, 4), dtype=int64)
    >>> lazy[1:, [3, 0]]
    array([[ 7,  4],
           [11,  8]])
    """

    def __init__(
        self, archive: Archive, key: str, header: NpyHeader, attrs: Mapping[str, Any]
    ) -> None:
        if header.dtype.hasobject:
            raise UnsupportedError(
                "an array of Python objects is one pickle, of which no part can be read",
                remedy="Read it whole: npz.read(key), with allow_pickle=True.",
            )
        self._archive = archive
        self._key = key
        self._header = header
        self._attrs = attrs
        self.shape = header.shape
        self._chunk_size = archive._access(key).chunk_size or _CHUNK_SIZE
        self.attrs = MappingProxyType(user_attrs(attrs))

    @property
    def dtype(self) -> np.dtype[Any]:
        return restored_dtype(self._header.fresh().dtype, self._attrs)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self._header.nbytes

    @property
    def chunks(self) -> tuple[int, ...]:
        size = max(self.dtype.itemsize, 1)
        shape: list[int] = []
        for length in reversed(self._stored(self.shape)):
            shape.append(max(min(length, self._chunk_size // size), 1))
            size *= max(length, 1)
        return self._stored(tuple(shape[::-1]))

    def _stored(self, axes: tuple[Any, ...]) -> tuple[Any, ...]:
        """Put what belongs to each axis in the order of storage, or back."""
        return axes[::-1] if self._header.fortran_order else axes

    def _repr_html_(self) -> str:
        from npzkit.archive.notebook import array_html
        from npzkit.members.info import format_size, short_dtype

        facts = [
            ("shape", str(self.shape)), ("dtype", short_dtype(self.dtype)),
            ("size", format_size(self.nbytes)), ("chunks", str(self.chunks)),
        ]  # fmt: skip
        return array_html(self._key, facts, self.attrs)

    # -- reading ------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        if self._header.dtype.names is not None and _names_fields(index):
            return self._read_fields(index)
        selection = select(index, self.shape)
        block = self._read_block(selection)
        try:
            return block[selection.index]
        except (SystemError, ValueError) as error:
            # NumPy keeps four bytes a letter, and makes a str of one item.
            raise self._archive._explain(_not_unicode(error), self._key) from error

    def read(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Read the whole array, its CRC-32 compared.

        Parameters
        ----------
        out : numpy.ndarray, optional
            Filled and returned instead of a new array.

        Returns
        -------
        numpy.ndarray
            As `NpzFile.read`.

        Raises
        ------
        NpzkitError
            As `NpzFile.read`.
        """
        array: np.ndarray[Any, Any] = self._archive.read(self._key, out)
        return array

    def _read_block(self, selection: Selection) -> np.ndarray[Any, Any]:
        """Read all combinations of the selected positions."""
        access = self._archive._access(self._key)
        shape, dtype = self._stored(selection.shape), self.dtype
        try:
            self._check_reach(access, selection.shape)
            block = _empty(shape, dtype)
            items = block if dtype.names is None else block.view(f"V{dtype.itemsize}")
            read_block(
                access, self._header.data_offset, self._stored(self.shape),
                self._stored(selection.positions), items, thread_count(None),
            )  # fmt: skip
        except NpzkitError as error:
            raise self._archive._explain(error, self._key) from error.__cause__
        return block.T if self._header.fortran_order else block

    def _check_reach(self, access: RandomAccess, shape: tuple[int, ...]) -> None:
        """Before much room is made, see that the member has the bytes for it."""
        count = math.prod(shape) * self._header.dtype.itemsize
        if count > _UNPROVEN_SIZE:
            access.check_reach(count)

    def _read_fields(self, names: Any) -> np.ndarray[Any, Any]:
        """Read some fields, holding no more of the others than a chunk's."""
        sample = np.empty((0,), self.dtype)[names]
        try:
            self._check_reach(self._archive._access(self._key), self.shape)
            result = _empty(self.shape + sample.shape[1:], sample.dtype)
        except NpzkitError as error:
            raise self._archive._explain(error, self._key) from error.__cause__
        for chunk in self.iter_chunks():
            result[chunk] = self[chunk][names]
        return result

    # -- as an array --------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("a lazy array is in a file: NumPy can only have a copy")
        array = self.read()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return self._rows()

    def _rows(self) -> Iterator[Any]:
        row_size = max(self.nbytes // max(len(self), 1), 1)
        size = _ROWS_SIZE if self._header.fortran_order else self._chunk_size
        step = max(size // row_size, 1)
        for start in range(0, len(self), step):
            yield from self[start : start + step]

    def iter_chunks(self) -> Iterator[tuple[slice, ...]]:
        """Yield indices of parts that together are the array, each read cheaply.

        Yields
        ------
        tuple of slice
            One for each axis, in the order of storage.
        """
        if not self.size:
            return
        for chunk in blocks_of_shape(self._stored(self.shape), self._stored(self.chunks)):
            yield self._stored(chunk)

    def __repr__(self) -> str:
        return f"LazyArray({self._key!r}, shape={self.shape}, dtype={self.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._archive, self._key)


def _not_unicode(error: Exception) -> NpyFormatError:
    return NpyFormatError(
        f"the text holds what is no Unicode ({error})",
        remedy="Read it as numbers: npz.read(key).view('u4').",
    )


def _names_fields(index: Any) -> bool:
    """Whether an index is a field's name, or a list of names."""
    if isinstance(index, list):
        return bool(index) and all(isinstance(name, str) for name in index)
    return isinstance(index, str)


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Make room; `np.ndarray` because ``np.empty`` turns ``S0`` into ``S1``."""
    try:
        return np.empty(shape, dtype) if dtype.itemsize else np.ndarray(shape, dtype)
    except (ValueError, MemoryError) as error:
        raise NpyFormatError(
            f"an array of this shape cannot be made here ({error})", found=shape
        ) from error


def _restore(archive: Any, key: str) -> LazyArray:
    """Make a pickled lazy array again, on an archive that closes with it."""
    archive._closes_silently = True
    lazy: LazyArray = archive.lazy(key)
    return lazy
