"""The arrays of many files as one.

Owns how a piece of it is read, and into which memory. Which pieces an index needs is
`npzkit.datasets.parted_array`'s; files are read by `npzkit.datasets.opened_files`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from npzkit.archive.npzfile import READ_ONCE_SIZE
from npzkit.datasets.parted_array import JoinedLayout, PartedArray, as_index
from npzkit.datasets.skeleton import own_dtype
from npzkit.errors import SAVE_SOUND, NpzkitError
from npzkit.reading.indexing import Positions, ReadHabits, select

_OTHERS = "join the other files without it; " + SAVE_SOUND + " saves its sound arrays."


@contextlib.contextmanager
def naming_others() -> Iterator[None]:
    """Add to the error of a file that is damaged how the others can be read."""
    try:
        yield
    except NpzkitError as error:
        if error.is_damage:
            error.remedy = (f"{error.remedy} Or " if error.remedy else "To go on, ") + _OTHERS
        raise


class JoinedArray(PartedArray):
    """An array whose parts are in many files: ``joined[index]`` reads only what it needs.

    Made by `ManyFiles.lazy`. It is as `npzkit.LazyArray`, with the attributes of the
    first file, and opens only the files that an index touches. Its chunks are parts
    of a file, or several small files, of about 1 MiB.

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

    def __init__(self, many: Any, key: str, layout: JoinedLayout, *, verify: bool = True) -> None:
        self._npz, self._key, self._layout, self._verify = many, key, layout, verify
        self._describe(layout.shape, layout.dtype)

    @functools.cached_property
    def attrs(self) -> MappingProxyType[str, Any]:  # type: ignore[override]
        """The attributes that the array has in the first file."""
        attrs: MappingProxyType[str, Any] = self._lazy(0).attrs
        return attrs

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

    def _check_backed(self) -> None:
        """Do nothing: the headers of all files were read."""

    def _read_all(self, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        everything = select(..., self.shape)
        if out is None or self.nbytes < READ_ONCE_SIZE or self._npz._files.is_distant:
            return super()._read_all(out)
        # All is checked before anything changes.
        for is_trial in (True, False):
            self._read_pieces(self._pieces(everything.positions), out, is_trial=is_trial)
        return out

    def _allocated(self, shape: tuple[int, ...], parts: Sequence[int]) -> np.ndarray[Any, Any]:
        try:
            return super()._allocated(shape, parts)
        except NpzkitError as error:
            raise self._located(error) from error.__cause__

    def _threads_for(self, count: int) -> int:
        return int(self._npz._threads)

    def _read_piece(
        self,
        part: int,
        positions: tuple[Positions, ...],
        place: np.ndarray[Any, Any],
        *,
        is_trial: bool = False,
    ) -> None:
        arrays = self._npz._arrays(part)
        shape, dtype = arrays[self._key]
        with naming_others():
            if tuple(map(len, positions)) != shape:
                place[...] = self._lazy(part)[as_index(positions)]
                return
            is_direct = place.flags.c_contiguous and dtype == self._layout.dtype
            into = {self._key: place} if is_direct else {}
            found = self._npz._files.read(
                part, [self._key], arrays, into, is_trial=is_trial, verify=self._verify
            )
            if not (is_direct or is_trial):
                place[...] = found[self._key]

    def _lazy(self, number: int) -> Any:
        arrays = self._npz._arrays(number)
        return self._npz._files.lazy(number, self._key, arrays, verify=self._verify)

    def __repr__(self) -> str:
        count = len(self._npz._files.names)
        return f"JoinedArray({self._key!r}, shape={self.shape}, dtype={self.dtype}, {count} files)"
