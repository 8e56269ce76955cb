"""What all formats have in common: named arrays that are read in parts.

Owns how an array passes from one format to another without being in memory as
a whole. Knows no format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.coding import DEFLATED
from npzkit.display.blocks import blocks
from npzkit.errors import (
    ALLOW_PICKLE,
    SKIP,
    Advice,
    ConversionError,
    format_count,
    printable,
    shown_value,
    some_of,
)
from npzkit.files.progress import Advance
from npzkit.format import descr_to_dtype
from npzkit.members.keys import missing
from npzkit.members.metadata import other_suffixes
from npzkit.members.tensors import extension_name
from npzkit.trees.notes import links, values_of

Say = Callable[[str], object]
"""Takes a note for the user: what is not kept, or changes."""

NOTHING: Mapping[str, Any] = {}
_C_SIZES = {"b": {1}, "i": {1, 2, 4, 8}, "u": {1, 2, 4, 8}, "f": {2, 4, 8}, "c": {8, 16}}


HOLDS_OBJECTS = "it holds Python objects"
RUNS_CODE = "unpickling it could run code"
MAKE_PLAIN = (
    "Make plain arrays of objects that you trust, with " + ALLOW_PICKLE
    + ", or leave them out with " + SKIP + "."
)  # fmt: skip
"""Why an array is not kept."""


SAVE_STATE = (
    "In the program that made the file, save what it holds, such as model.state_dict() or "
    "vars(args) in Python; or leave it out with " + SKIP + "."
)  # fmt: skip
SAVE_PLAIN = (
    "In the program that made the file, in Python, save float(x) for a number of NumPy's, or "
    "torch.from_numpy(x) for an array; or, if you trust the file, whose code this runs: "
    "npzkit.save('new.npz', torch.load(path, 'cpu', weights_only=False)); or leave it out with "
    + SKIP + "."
)  # fmt: skip


few = partial(some_of, most=5)
"""Returns the names of some values, for a note."""


class Array(NamedTuple):
    """An array of a file that is open.

    Attributes
    ----------
    key : str
        Its parts separated by ``/``.
    shape : tuple of int
    dtype : numpy.dtype
    open : callable
        Returns the part that a tuple of slices selects, one slice for each axis.
    attrs : mapping of str to object
        As JSON has them.
    least : tuple of int or None
        The shape of a part that is read as one.
    fortran_order : bool
    problem : str
        Why it cannot be read; empty if it can.
    check : callable or None
        Reads all of it once and compares its checksum, which `open` leaves out;
        takes a function that counts the bytes.
    """

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    open: Callable[[], Any]
    attrs: Mapping[str, Any] = NOTHING
    least: tuple[int, ...] | None = None
    fortran_order: bool = False
    problem: str = ""
    check: Callable[[Advance], object] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def work(self) -> int:
        """The bytes that are read for all of it."""
        return self.nbytes * (1 if self.check is None else 2)

    def watched(self, advance: Advance) -> Array:
        """Return the same array, whose bytes are counted as they are read."""

        def counted(part: Any) -> Any:
            advance(getattr(part, "nbytes", 0))
            return part

        return self._replace(open=lambda: Each(self._opened(advance), counted), check=None)

    def stored(self) -> Array:
        """Return the same array, of bytes if its dtype is one of ml_dtypes."""
        if extension_name(self.dtype) is None:
            return self
        return self.viewed(np.dtype(f"V{self.dtype.itemsize}"))

    def viewed(self, dtype: np.dtype[Any]) -> Array:
        """Return the same bytes, as values of another dtype of the same size."""
        return self._replace(
            dtype=dtype, open=lambda: Each(self.open(), lambda part: np.asarray(part).view(dtype))
        )

    def _opened(self, advance: Advance | None = None) -> Any:
        if self.check is not None:
            self.check(advance or (lambda size: None))
        return self.open()

    def check_all(self) -> None:
        """Compare the checksum, if there is one."""
        self._opened()

    def whole(self) -> np.ndarray[Any, Any]:
        """Return all of it, in its order of storage."""
        found = self._opened()[tuple(slice(0, length) for length in self.shape)]
        return np.asarray(found, self.dtype, order="F" if self.fortran_order else "C")

    def parts(
        self, least: tuple[int, ...] | None = None
    ) -> Iterator[tuple[tuple[slice, ...], np.ndarray[Any, Any]]]:
        """Yield index and values of parts that together are the array.

        Parameters
        ----------
        least : tuple of int, optional
            Parts are multiples of it; the array's own by default.
        """
        found = self._opened()
        indices = blocks(
            self.shape, self.dtype.itemsize, least or self.least, by_columns=self.fortran_order
        )
        for index in indices:
            yield index, np.asarray(found[index], self.dtype)


class Each:
    """An array whose parts pass through a function when they are read."""

    def __init__(self, array: Any, function: Callable[[Any], Any]) -> None:
        self._array, self._function = array, function

    def __getitem__(self, index: tuple[slice, ...]) -> Any:
        return self._function(self._array[index])


@dataclass(frozen=True)
class InFile:
    """An array in a file, mapped for as long as a part of it is read or written.

    What a map has shown stays in memory until it is closed.

    Attributes
    ----------
    path : str
    dtype : numpy.dtype
    offset : int
        Of its first byte.
    shape : tuple of int
    fortran_order : bool, default False
    """

    path: str
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    fortran_order: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of_map(cls, array: np.memmap[Any, Any]) -> InFile:
        """Return the array that a map of a whole array shows."""
        path: Any = array.filename
        return cls(path, array.dtype, array.offset, array.shape, array.flags.fnc)

    def mapped(self, mode: Any = "r") -> np.ndarray[Any, Any]:
        """Return all of it, as a map."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        order: Any = "F" if self.fortran_order else "C"
        return np.memmap(self.path, self.dtype, mode, self.offset, self.shape, order)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        return np.array(self.mapped()[index], order="K", subok=False)


class Contents(NamedTuple):
    """What is in a file.

    Attributes
    ----------
    metadata : mapping of str to object
        As JSON has them.
    arrays : iterable of Array
        A list, or found one after the other while the file is open.
    """

    metadata: Mapping[str, Any]
    arrays: Iterable[Array]


class FileOptions(NamedTuple):
    """How a file is written.

    Attributes
    ----------
    method : int or None
        A zip method, for which other formats have others. None is what is usual in the format.
    level : int or None
    zarr_format : int
    """

    method: int | None
    level: int | None
    zarr_format: int

    @property
    def gzip_level(self) -> int:
        return 6 if self.level is None or self.method != DEFLATED else self.level


def array_of(key: str, array: np.ndarray[Any, Any]) -> Array:
    """Return an array in memory, or a map of a file, as one that is read in parts."""
    found = InFile.of_map(array) if isinstance(array, np.memmap) else array
    return Array(key, array.shape, array.dtype, lambda: found, fortran_order=array.flags.fnc)


def parts_of(array: Array) -> set[str]:
    """Return the keys of the other parts of an array that was saved in several."""
    return {array.key + suffix for suffix in other_suffixes(array.attrs)}


def is_masked(array: Array) -> bool:
    """Return whether an array was saved in two, values and mask."""
    return parts_of(array) == {f"{array.key}.mask"}


def named(key: str | None) -> str:
    """Return whose attributes these are, for a note."""
    return "the file" if key is None else f"{printable(key)!r}"


def without_arrays(
    tree: Any,
    is_wanted: Callable[[str], bool] = lambda key: True,
    metadata: Mapping[str, Any] = NOTHING,
) -> list[str]:
    """Return what only the note of nested data has: how many, and the names of some.

    Parameters
    ----------
    tree : object
        The note.
    is_wanted : callable, optional
        Returns whether a key was asked for; by default all were.
    metadata : mapping, optional
        Other metadata, as of safetensors: what is tied there too is left out.

    Examples
    --------
    >>> without_arrays({"x": None, "p": {"lr": ["value", 0.1]}})
    ["1 value without an array: 'p/lr'"]
    """
    tied, show = links(tree), shown_value
    keys = [key for key in values_of(tree) if is_wanted(key)]
    values = [show(key) for key in keys if key not in tied]
    shared = [
        f"{show(key)} (use the array of {show(tied[key])}, to which it is tied)"
        for key in keys if key in tied and metadata.get(key) != tied[key]
    ]  # fmt: skip
    return [
        f"{format_count(len(found), what)} without an array: {few(found)}"
        for found, what in ((values, "value"), (shared, "tied tensor"))
        if found
    ]


def unreadable(key: str, shape: tuple[int, ...], problem: str) -> Array:
    """Return an array that is listed but cannot be read, with the reason."""
    return Array(key, shape, np.dtype("V1"), lambda: None, problem=problem)


def is_c_number(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is one of C's numbers, of a size that every machine has."""
    return dtype.isbuiltin != 2 and dtype.itemsize in _C_SIZES.get(dtype.kind, ())


def with_dtypes(arrays: list[Array], dtypes: Mapping[str, Any], path: str) -> list[Array]:
    """Return arrays of which some are bytes of a dtype that is given by key.

    Raises
    ------
    MemberNotFoundError
        There is no array with a key.
    ConversionError
        An array is not bytes, or its items have another size.
    """
    keys = [array.key for array in arrays]
    for key in dtypes:
        if key not in keys:
            raise missing(key, keys, path)
    return [_with_dtype(one, dtypes[one.key]) if one.key in dtypes else one for one in arrays]


def _with_dtype(array: Array, given: Any) -> Array:
    dtype = descr_to_dtype(given) if isinstance(given, str) else np.dtype(given)
    if array.dtype != f"V{dtype.itemsize}":
        raise ConversionError(
            f"the array is not bytes of {dtype}", key=array.key,
            found=str(array.dtype), expected=f"V{dtype.itemsize}",
            remedy=Advice("dtypes say", "--dtype says") + " what bytes without a dtype mean. To "
            "convert values, in Python: npzkit.save(output, {key: npz[key].astype(dtype)}).",
        )  # fmt: skip
    return array.viewed(dtype)
