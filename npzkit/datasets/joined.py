"""One array of many files, of which only the indexed parts are read.

Owns which files a selection needs, and where their parts go. Files are read by
`npzkit.datasets.opened_files`; what an index means is `npzkit.reading.indexing`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from npzkit.archive.lazyarray import LazyArray, new_array
from npzkit.archive.npzfile import READ_ONCE_SIZE
from npzkit.datasets.skeleton import own_dtype
from npzkit.datasets.touched_parts import as_index, pieces_along
from npzkit.errors import NpzkitError
from npzkit.files.threads import run
from npzkit.reading.indexing import Positions, ReadHabits, Selection, select


class JoinedLayout(NamedTuple):
    """How the arrays of files make one.

    Attributes
    ----------
    axis : int
        Along which they are joined.
    is_stacked : bool
        Whether the axis is a new one, with one position per file.
    starts : numpy.ndarray
        Where each file begins along the axis, and where the last one ends.
    shape : tuple of int
    dtype : numpy.dtype
    """

    axis: int
    is_stacked: bool
    starts: np.ndarray[Any, Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class JoinedArray(LazyArray):
    """An array whose parts are in many files: ``joined[index]`` reads only what it needs.

    Made by `ManyFiles.lazy`. It is as `npzkit.LazyArray`, and opens only the files
    that an index touches. Its chunks are parts of a file, or several small files,
    of about 1 MiB.

    Notes
    -----
    What is read is compared with CRC-32s, as by `npzkit.LazyArray`, unless it was made with
    ``verify=False``. Errors name the file. A file that changed raises `StaleArchiveError`.

    Examples
    --------
    >>> import tempfile, npzkit, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> for step in range(3):
    ...     np.savez(f"{folder}/step{step}.npz", t=np.full(4, step))
    >>> many = npzkit.open_many(f"{folder}/step*.npz")
    >>> many.lazy("t")[3:9]
    array([0, 1, 1, 1, 1, 2])
    """

    _chunk_size = 1 << 20
    """Bytes of a chunk of small files: as of an array in one file."""

    def __init__(self, many: Any, key: str, layout: JoinedLayout, *, verify: bool = True) -> None:
        self._npz, self._key, self._layout, self._verify = many, key, layout, verify
        self._describe(layout.shape, layout.dtype)
        self.attrs = MappingProxyType({})

    @property
    def dtype(self) -> np.dtype[Any]:
        return own_dtype(self._layout.dtype)

    @property
    def chunks(self) -> tuple[int, ...]:
        layout = self._layout
        lazy = self._lazy(0)
        chunk = list(lazy.chunks)
        if layout.is_stacked:
            chunk.insert(0, 1)
        length = int(layout.starts[1])
        part = list(self.shape)
        part[layout.axis] = length
        if chunk == part and lazy.nbytes:
            # Several small files; neighbours of the same length have no common chunk.
            chunk[layout.axis] = length * max(self._chunk_size // lazy.nbytes, 1)
        return tuple(max(min(size, end), 1) for size, end in zip(chunk, self.shape, strict=True))

    @property
    def _read_habits(self) -> ReadHabits:
        """The habits of the first file's array: the others are as similar as their headers."""
        habits: ReadHabits = self._lazy(0)._read_habits
        return habits

    # -- reading ------------------------------------------------------------

    def _located(self, error: NpzkitError) -> NpzkitError:
        return error.locate(key=self._key)

    def _read_all(self, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        everything = select(..., self.shape)
        if out is None:
            return self._read_block(everything)
        if self.nbytes < READ_ONCE_SIZE or self._npz._files.is_distant:
            out[...] = self._read_block(everything)
        else:
            # All is checked before anything changes.
            self._read_into(everything, out, is_trial=True)
            self._read_into(everything, out)
        return out

    def _read_block(self, selection: Selection) -> np.ndarray[Any, Any]:
        """Read all combinations of the selected positions."""
        try:
            block = new_array(selection.shape, self.dtype)
        except NpzkitError as error:
            raise self._located(error) from error.__cause__
        self._read_into(selection, block)
        return block

    def _read_into(
        self, selection: Selection, block: np.ndarray[Any, Any], *, is_trial: bool = False
    ) -> None:
        if block.size:
            tasks = [
                partial(self._read_part, number, positions, part, is_trial)
                for number, positions, part in self._parts(selection, block)
            ]
            run(tasks, self._npz._threads)

    def _parts(
        self, selection: Selection, block: np.ndarray[Any, Any]
    ) -> Iterator[tuple[int, tuple[Positions, ...], np.ndarray[Any, Any]]]:
        """Yield for each file what is needed of it, and the part of `block` where that goes."""
        axis, starts = self._layout.axis, self._layout.starts
        before, along, after = (
            selection.positions[:axis], selection.positions[axis], selection.positions[axis + 1 :]
        )  # fmt: skip
        for number, inner, place in pieces_along(along, starts):
            if self._layout.is_stacked:
                # With the Ellipsis, a view also of an array without dimensions.
                yield number, after, block[place.start, ...]
            else:
                yield number, (*before, inner, *after), block[(slice(None),) * axis + (place,)]

    def _read_part(
        self,
        number: int,
        positions: tuple[Positions, ...],
        part: np.ndarray[Any, Any],
        is_trial: bool,
    ) -> None:
        arrays = self._npz._arrays(number)
        shape, dtype = arrays[self._key]
        if tuple(map(len, positions)) == shape:
            is_direct = part.flags.c_contiguous and dtype == self._layout.dtype
            into = {self._key: part} if is_direct else {}
            read = self._npz._files.read
            verify = self._verify
            found = read(number, [self._key], arrays, into, is_trial=is_trial, verify=verify)
            if not (is_direct or is_trial):
                part[...] = found[self._key]
        else:
            part[...] = self._lazy(number)[as_index(positions)]

    def _lazy(self, number: int) -> Any:
        arrays = self._npz._arrays(number)
        return self._npz._files.lazy(number, self._key, arrays, verify=self._verify)

    def _read_fields(self, names: Any) -> np.ndarray[Any, Any]:
        """Read some fields, holding only one file of the others."""
        layout, sample = self._layout, np.empty((0,), self.dtype)[names]
        result = new_array(self.shape + sample.shape[1:], sample.dtype)
        for number, begin in enumerate(layout.starts[:-1].tolist()):
            end = int(layout.starts[number + 1])
            place = begin if layout.is_stacked else slice(begin, end)
            result[(slice(None),) * layout.axis + (place,)] = self._lazy(number)[names]
        return result

    def __repr__(self) -> str:
        count = len(self._npz._files.names)
        return f"JoinedArray({self._key!r}, shape={self.shape}, dtype={self.dtype}, {count} files)"
