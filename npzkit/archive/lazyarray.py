"""An array in an archive of which only the indexed parts are read.

Owns what makes it an array: shape, dtype, indexing, iteration, pickling. What
an index means is `npzkit.reading.indexing`'s, and which bytes that takes
`npzkit.reading.byte_ranges`'s. The zip layer reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from npzkit.archive.reopening import NotReopened
from npzkit.errors import ALLOW_PICKLE, Advice, NpyFormatError, NpzkitError, UnsupportedError
from npzkit.format.array import array_bytes, check_addressable, impossible_array, npy_header
from npzkit.format.header import NpyHeader
from npzkit.limits import thread_count
from npzkit.members.metadata import parse_attrs, user_attrs
from npzkit.members.tensors import check_long_double, restored_dtype
from npzkit.reading.byte_ranges import read_block
from npzkit.reading.indexing import Positions, ReadHabits, Selection, blocks_of_shape, select
from npzkit.reading.small_member import check_form, check_out
from npzkit.zip.chunks import Chunks

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ROWS_SIZE = 1 << 24
"""Bytes of rows that are read at a time from an array in Fortran order."""
_UNPROVEN_SIZE = 1 << 24
"""Bytes that a header may claim without proof: compressed data may be of any size."""


class LazyArray:
    """An array that stays in its archive: ``lazy[index]`` reads only what it needs.

    Made by `NpzFile.lazy`. It supports NumPy indexing, including field names,
    except more than one index array at a time. The result equals that of
    indexing the complete array, and is a new, writable array.

    Threads and forked processes may share it. It can be pickled if its archive
    can. The unpickled one opens the archive again, and closes it when it is
    deleted.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    ndim, size, nbytes : int
        As of an array.
    chunks : tuple of int
        Shape of a part that is cheap to read: complete rows (columns, in
        Fortran order) of about one compressed chunk, or of 1 MiB.
    attrs : mapping of str to object
        The attributes it was saved with.

    Notes
    -----
    Parts are checked: each chunk of which a part is read has a CRC-32, in the index that
    npzkit writes, or because an array of up to 256 KiB is one chunk. A chunk of a stored
    array has 64 KiB, and is read completely. Parts of large arrays that other programs
    wrote are not checked, unless they are the complete array; `npzkit.repack` adds the
    CRC-32s. A large deflated array without a seek index is decompressed up to the part, once. After
    that, points to start from are kept in memory while the archive is open, about 1 % of
    the array's size.

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
        self,
        npz: Any,
        archive: Any,
        key: str,
        header: NpyHeader | None,
        extra: bytes,
        *,
        verify: bool = True,
    ) -> None:
        self._header = _check_header(header)
        self._npz, self._archive = npz, archive
        self._key, self._verify = key, verify
        self._explained = archive.explained(key)
        self._attrs = parse_attrs(extra)
        check_long_double(self._header.dtype, self._attrs)
        self.shape = self._header.shape
        self.attrs = MappingProxyType(user_attrs(self._attrs))

    def _describe(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], *, fortran_order: bool = False
    ) -> None:
        """Set what a header would say, for an array in many files, which has none of its own."""
        nbytes = math.prod(shape) * dtype.itemsize
        self._header = NpyHeader((1, 0), shape, fortran_order, dtype, 0, nbytes, False)
        self.shape = shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return restored_dtype(self._header.fresh().dtype, self._attrs)

    @property
    def _chunk_size(self) -> int:
        return self._member_chunks().part_size

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
        """Put one value per axis in the order of storage, or back."""
        return axes[::-1] if self._header.fortran_order else axes

    def _member_chunks(self) -> Chunks:
        chunks: Chunks = self._archive.chunks(self._key, verify=self._verify)
        return chunks

    @property
    def _read_habits(self) -> ReadHabits:
        is_in_order = not self._npz.info(self._key).seekable
        with self._explained:
            chunks = self._member_chunks()
            return ReadHabits(
                chunks.granularity, chunks.reads_at_once, self._header.fortran_order, is_in_order
            )

    def _repr_html_(self) -> str:
        from npzkit.errors import format_dtype, format_size, shown_key
        from npzkit.tables import facts_html, short_texts

        facts = [
            ("shape", str(self.shape)), ("dtype", format_dtype(self.dtype)),
            ("size", format_size(self.nbytes)), ("chunks", str(self.chunks)),
        ]  # fmt: skip
        if self._read_habits.is_in_order and hasattr(self._npz, "info"):
            facts.append(("parts", self._npz.info(self._key).parts_text()))
        return facts_html(f"LazyArray {shown_key(self._key)}", [*facts, *short_texts(self.attrs)])

    # -- reading ------------------------------------------------------------

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if self._header.dtype.names is not None and _names_fields(index):
            return self._read_fields(index)
        selection = select(index, self.shape)
        try:
            check_addressable(selection.shape, self._header.dtype)
        except NpzkitError as error:
            raise self._located(error) from None
        block = self._read_block(selection)
        try:
            picked: NDArray[Any] = block[selection.index]
            return picked
        except (SystemError, ValueError) as error:
            # NumPy stores four bytes per character, and makes a str of a single item.
            what = f"the text is not valid Unicode ({error})"
            remedy = "Read it as numbers: npz.read(key).view('u4')."
            found = NpyFormatError(what, remedy=remedy)
            raise self._located(found) from error

    def read(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Read the complete array and check its CRC-32, unless made with ``verify=False``.

        Parameters
        ----------
        out : numpy.ndarray, optional
            Filled and returned instead of a new array, as by `NpzFile.read`. It is
            not changed unless the complete array is sound.

        Returns
        -------
        numpy.ndarray
            As `NpzFile.read`.

        Raises
        ------
        NpzkitError
            As `NpzFile.read`.
        """
        if out is None:
            return self._read_all(None)
        memory = check_out(out)
        check_form(memory, self.shape, self.dtype)
        self._read_all(memory)
        return out

    def _read_all(self, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self._npz.read(self._key, out, verify=self._verify)
        return array

    def _read_block(self, selection: Selection) -> np.ndarray[Any, Any]:
        """Read all combinations of the selected positions: of all, checked as a whole."""
        if self._verify and selection.shape == self.shape:
            return self.read()
        with self._explained:
            chunks = self._member_chunks()
            self._check_reach(chunks, selection.shape)
            block = new_array(self._stored(selection.shape), self.dtype)
            self._fill(chunks, selection.positions, block)
        return block.T if self._header.fortran_order else block

    def _fill(
        self, chunks: Chunks, positions: tuple[Positions, ...], block: np.ndarray[Any, Any]
    ) -> None:
        """Fill `block`, which is C-contiguous with its axes in the order of storage."""
        items = block if block.dtype.names is None else block.view(f"V{block.dtype.itemsize}")
        read_block(
            chunks, self._header.data_offset, self._stored(self.shape), self._stored(positions),
            items, thread_count(None),
        )  # fmt: skip

    def _check_reach(self, chunks: Chunks, shape: tuple[int, ...]) -> None:
        """Check that the member has the bytes for a large array, before it is allocated."""
        count = math.prod(shape) * self._header.dtype.itemsize
        if count > _UNPROVEN_SIZE:
            chunks.check_reach(count)

    def _located(self, error: NpzkitError) -> NpzkitError:
        """Return an error that says where it happened; arrays in many files have other words."""
        located: NpzkitError = self._archive.explain(error, self._key)
        return located

    def _check_backed(self) -> None:
        """Check that there are bytes for the complete array, in one file or in many."""
        self._check_reach(self._member_chunks(), self.shape)

    def _read_fields(self, names: Any) -> np.ndarray[Any, Any]:
        """Read some fields, holding only one chunk of the others."""
        sample = np.empty((0,), self.dtype)[names]
        try:
            self._check_backed()
            result = new_array(self.shape + sample.shape[1:], sample.dtype)
        except NpzkitError as error:
            raise self._located(error) from error.__cause__
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

    def __iter__(self) -> Iterator[NDArray[Any]]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return self._rows()

    def _rows(self) -> Iterator[Any]:
        length = self.shape[0]
        row_size = max(self.nbytes // max(length, 1), 1)
        size = _ROWS_SIZE if self._header.fortran_order else self._chunk_size
        step = max(size // row_size, 1)
        for start in range(0, length, step):
            yield from self[start : start + step]

    def iter_chunks(self) -> Iterator[tuple[slice, ...]]:
        """Yield the indices of parts that together cover the array, each cheap to read.

        Yields
        ------
        tuple of slice
            One slice per axis. Parts come in the order of storage.
        """
        if not self.size:
            return
        for chunk in blocks_of_shape(self._stored(self.shape), self._stored(self.chunks)):
            yield self._stored(chunk)

    def _npy_pieces(self) -> Iterator[memoryview]:
        """Yield the bytes of the array as those of an .npy file."""
        yield memoryview(npy_header(self.dtype, self.shape, self._header.fortran_order))
        for chunk in self.iter_chunks():
            yield array_bytes(np.asarray(self[chunk]))

    def __repr__(self) -> str:
        return f"LazyArray({self._key!r}, shape={self.shape}, dtype={self.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._npz, self._key, self._verify)


def _check_header(header: NpyHeader | None) -> NpyHeader:
    """Return the header of an array of which parts can be read."""
    if header is None:
        raise NpyFormatError(
            "the member is not an array",
            is_damage=False,
            remedy=Advice(
                "Read it with npz.stream(key).",
                "Write it to a pipe: npzkit extract FILE KEY -o -.",
            ),
        )
    if header.dtype.hasobject:
        raise UnsupportedError(
            "an array of Python objects is one pickle, and parts of it cannot be read",
            remedy=Advice("Read it completely: npz.read(key)", "Show all of it")
            + ", with "
            + ALLOW_PICKLE
            + ".",
        )
    return header


def _names_fields(index: Any) -> bool:
    """Whether an index is a field's name, or a list of names."""
    if isinstance(index, list):
        return bool(index) and all(isinstance(name, str) for name in index)
    return isinstance(index, str)


def _restore(npz: Any, key: str, verify: bool) -> LazyArray:
    """Restore a pickled lazy array, on an archive that closes with it."""
    try:
        lazy: LazyArray = npz.lazy(key, verify=verify)
    except Exception as error:
        return _NotReopenedArray(error, (npz, key, verify))
    return lazy


class _NotReopenedArray(NotReopened, LazyArray):
    """An array that was pickled, and cannot be read where it was unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, self.recipe


def new_array(
    shape: tuple[int, ...], dtype: np.dtype[Any], order: Literal["C", "F"] = "C"
) -> np.ndarray[Any, Any]:
    """Allocate an array; `np.ndarray` because ``np.empty`` turns ``S0`` into ``S1``.

    Raises
    ------
    NpyFormatError, UnsupportedError
        NumPy has no array of this shape, on any system or on this one.
    """
    try:
        if dtype.itemsize:
            return np.empty(shape, dtype, order)
        return np.ndarray(shape, dtype, order=order)
    except (ValueError, OverflowError) as error:
        raise impossible_array(shape, dtype, error) from error
