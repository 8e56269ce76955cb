"""The index of a sharded archive as an object: which arrays there are, and their parts.

Owns what every index is checked for, and what can be asked of it. Its bytes are
`npzkit.datasets.index_format`'s.

Rows are looked at one by one only if they are unusual, so that an index of 100,000
arrays takes a fraction of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.coding import CHUNKED, MAX_RATIOS, STORED
from npzkit.datasets.shard_names import ShardRecord, check_attempt, check_shard_names
from npzkit.datasets.skeleton import own_dtype
from npzkit.datasets.tiling import fault_of, find_untiled
from npzkit.errors import IndexFormatError, NpyFormatError, check_limit
from npzkit.limits import MAX_DIMENSIONS, Limits
from npzkit.members.keys import check_keys
from npzkit.members.metadata import parse_metadata
from npzkit.members.tensors import DTYPE_ATTRIBUTE, restored_dtype

_MAX_CRC = 2**32 - 1
_MAX_METHOD = 2**16 - 1
_USUAL_SIZE = 2.0**62
"""Bytes of an array that need no exact calculation."""


class PartRow(NamedTuple):
    """A part of an array.

    Attributes
    ----------
    shard : int
        Number of the shard.
    key : str
        Of the part in the shard.
    offset, shape : tuple of int
        Where it is in the array.
    compressed_size, crc32, method : int
        As in the shard's directory.
    """

    shard: int
    key: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    compressed_size: int
    crc32: int
    method: int


class ArrayRow(NamedTuple):
    """An array.

    Attributes
    ----------
    key : str
    shape : tuple of int
    dtype : numpy.dtype
        Of the NPY header.
    extension : str or None
        The name of a dtype that NPY cannot name.
    fortran_order : bool
    attrs : mapping
    parts : tuple of PartRow
        Empty if the array has no items.
    home : PartRow or None
        Where an array without items is.
    """

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    extension: str | None
    fortran_order: bool
    attrs: Mapping[str, Any]
    parts: tuple[PartRow, ...]
    home: PartRow | None = None


class IndexTables(NamedTuple):
    """What the arrays of an index say; see `npzkit.datasets.index_format`."""

    shards: np.ndarray[Any, Any]
    arrays: np.ndarray[Any, Any]
    shapes: np.ndarray[Any, Any]
    parts: np.ndarray[Any, Any]
    boxes: np.ndarray[Any, Any]
    strings: list[str]
    dtypes: list[np.dtype[Any]]


class Index:
    """The index of a sharded archive, checked.

    Parameters
    ----------
    attempt : object
    metadata : mapping
    tables : IndexTables
    limits : Limits

    Attributes
    ----------
    attempt : str
    metadata : mapping
    shards : list of ShardRecord
        Without their parts.
    keys : list of str
    nbytes : list of int
        Of each array.
    is_durable : bool
        Whether all shards were on the disk before the index was.
    """

    is_durable = False

    _dtype_of: list[int]
    _fortran: list[int]
    _ndims: list[int]
    _shard_of: list[int]
    _part_sizes: list[int]
    _crcs: list[int]
    _methods: list[int]

    def __init__(
        self, attempt: object, metadata: Mapping[str, Any], tables: IndexTables, limits: Limits
    ) -> None:
        self.attempt = check_attempt(attempt)
        self.metadata = MappingProxyType(dict(metadata))
        shard_count, count, part_count = (
            table.shape[1] for table in (tables.shards, tables.arrays, tables.parts)
        )
        names, self.keys, self._attrs, part_keys, extensions = _divided(
            tables.strings, (shard_count, count, count, part_count, len(tables.dtypes))
        )
        check_shard_names(names)
        sizes, crcs = tables.shards
        _check_most(tables.shards[1:], (_MAX_CRC,))
        self.shards = list(map(ShardRecord, names, sizes.tolist(), crcs.tolist()))
        check_keys(self.keys)
        self._numbers = {key: number for number, key in enumerate(self.keys)}
        if len(self._numbers) != len(self.keys):
            raise IndexFormatError("a key occurs twice")
        check_limit(
            len(self.keys), limits.member_count, "member_count", "the archive has too many arrays"
        )
        self._dtypes = list(zip(tables.dtypes, (name or None for name in extensions), strict=True))
        self._restored: dict[int, np.dtype[Any]] = {}
        _check_most(tables.arrays[:3], (len(extensions) - 1, 1, MAX_DIMENSIONS))
        counts: list[int]
        self._dtype_of, self._fortran, self._ndims, counts = tables.arrays.tolist()
        self._attrs_size = limits.metadata_size
        self._shape_starts = _starts_of(self._ndims)
        _check_length(tables.shapes, self._shape_starts[-1])
        self._shapes: list[int] = tables.shapes.tolist()
        sizes = self._check_sizes(tables, limits)
        self.nbytes: list[int] = sizes.tolist()
        self._take_parts(tables, counts, part_keys)
        self._check_parts(tables, sizes)

    def _take_parts(self, tables: IndexTables, counts: list[int], part_keys: list[str]) -> None:
        """Take the columns of the parts, of which there are so many for each array."""
        self._part_starts = _starts_of(counts)
        without = [number for number, count in enumerate(counts) if not count]
        self._homes = {number: self.part_count + at for at, number in enumerate(without)}
        _check_length(part_keys, self.part_count + len(without))
        _check_most(tables.parts[[0, 2, 3]], (len(self.shards) - 1, _MAX_CRC, _MAX_METHOD))
        self._shard_of, self._part_sizes, self._crcs, self._methods = tables.parts.tolist()
        self._part_keys = {at: key for at, key in enumerate(part_keys) if key}
        check_keys([*self._part_keys.values()])
        self._boxes = tables.boxes
        self._box_starts = _starts_of(
            2 * ndim * count * (count > 1) for ndim, count in zip(self._ndims, counts, strict=True)
        )
        _check_length(self._boxes, self._box_starts[-1])

    # -- what it says -------------------------------------------------------

    def number(self, key: object) -> int | None:
        """Return the number of the array that a key means, with or without ``.npy``."""
        if not isinstance(key, str):
            return None
        found = self._numbers.get(key)
        return self._numbers.get(key.removesuffix(".npy")) if found is None else found

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of an array."""
        return tuple(self._shapes[self._shape_starts[number] : self._shape_starts[number + 1]])

    def descr(self, number: int) -> tuple[np.dtype[Any], str | None]:
        """Return the dtype of an array as NPY names it, and the name of what it stands for."""
        return self._dtypes[self._dtype_of[number]]

    def dtype(self, number: int) -> np.dtype[Any]:
        """Return the dtype of an array: a new object if it has fields."""
        at = self._dtype_of[number]
        if at not in self._restored:
            descr, extension = self._dtypes[at]
            self._restored[at] = restored_dtype(descr, {DTYPE_ATTRIBUTE: extension})
        return own_dtype(self._restored[at])

    def fortran_order(self, number: int) -> bool:
        """Return whether an array is in Fortran order."""
        return bool(self._fortran[number])

    def attrs(self, number: int) -> Mapping[str, Any]:
        """Return the attributes of an array."""
        return parse_metadata(self._attrs[number].encode(), self._attrs_size)

    @property
    def compressed_size(self) -> int:
        """Bytes of all parts in the shards, without headers."""
        return sum(self._part_sizes[: self.part_count])

    def part_numbers(self, number: int) -> range:
        """Return the numbers of the parts of an array."""
        return range(self._part_starts[number], self._part_starts[number + 1])

    def boxes(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return offsets and shapes of the parts of an array: arrays of a row per part."""
        start, end = self._box_starts[number], self._box_starts[number + 1]
        if start == end:
            size = (len(self.part_numbers(number)), self._ndims[number])
            return np.zeros(size, np.int64), np.full(size, self.shape(number), np.int64)
        boxes = self._boxes[start:end].reshape(-1, 2, self._ndims[number])
        return boxes[:, 0], boxes[:, 1]

    @property
    def part_count(self) -> int:
        """The number of all parts."""
        return self._part_starts[-1]

    def shard_of(self, part: int) -> int:
        """Return the number of the shard that has a part."""
        return self._shard_of[part]

    def home(self, number: int) -> int:
        """Return the number of the shard that has an array without items."""
        return self._shard_of[self._homes[number]]

    def stored_key(self, number: int, part: int | None) -> str:
        """Return the key of a part in its shard; None for that of an array without items."""
        at = self._homes[number] if part is None else part
        return self._part_keys.get(at, self.keys[number])

    def stored_as(self, number: int, part: int | None) -> tuple[int, int, int]:
        """Return the CRC-32, the compressed size and the method of a part, as `stored_key`."""
        at = self._homes[number] if part is None else part
        return self._crcs[at], self._part_sizes[at], self._methods[at]

    def parts(self, number: int) -> Iterator[PartRow]:
        """Yield the parts of an array."""
        boxes = zip(*(numbers.tolist() for numbers in self.boxes(number)), strict=True)
        for part, (offset, shape) in zip(self.part_numbers(number), boxes, strict=True):
            yield self._part_row(number, part, offset, shape)

    def part(self, number: int, part: int) -> PartRow:
        """Return one part of an array."""
        at = part - self.part_numbers(number).start
        offsets, shapes = self.boxes(number)
        return self._part_row(number, part, offsets[at].tolist(), shapes[at].tolist())

    def home_part(self, number: int) -> PartRow:
        """Return where an array without items is, as a part."""
        shape = self.shape(number)
        return self._part_row(number, self._homes[number], (0,) * len(shape), shape)

    def _part_row(
        self, number: int, part: int, offset: Iterable[int], shape: Iterable[int]
    ) -> PartRow:
        return PartRow(
            self._shard_of[part], self.stored_key(number, part), tuple(offset),
            tuple(shape), self._part_sizes[part], self._crcs[part], self._methods[part],
        )  # fmt: skip

    def part_nbytes(self, number: int, part: int) -> int:
        """Return the bytes of a part in memory."""
        return math.prod(self.part(number, part).shape) * self.descr(number)[0].itemsize

    # -- checks -------------------------------------------------------------

    def _check_sizes(self, tables: IndexTables, limits: Limits) -> np.ndarray[Any, Any]:
        """Return the bytes of each array, which NumPy can have."""
        sizes, ndims, shapes = self._itemsizes(tables), tables.arrays[2], tables.shapes
        starts = np.array(self._shape_starts[:-1], np.int64)
        for ndim in np.unique(ndims).tolist():
            rows = np.flatnonzero(ndims == ndim)
            lengths = shapes[starts[rows][:, None] + np.arange(ndim)]
            # With empty dimensions as 1, and without overflow.
            largest = np.maximum(lengths, 1).astype(np.float64).prod(axis=1)
            for row in rows[largest * np.maximum(sizes[rows], 1) > _USUAL_SIZE].tolist():
                # NumPy counts empty dimensions as one.
                items = math.prod(length or 1 for length in self.shape(row))
                if items * max(self.descr(row)[0].itemsize, 1) >= 2**63:
                    raise NpyFormatError("shape is too large for any array", found=self.shape(row))
            sizes[rows] *= lengths.prod(axis=1)
        most = int(sizes.max(initial=0))
        check_limit(
            most, limits.member_size, "member_size", "the archive has too many bytes in one array"
        )
        total = sum(sizes.tolist())
        check_limit(total, limits.total_size, "total_size", "the archive has too many bytes")
        return sizes

    def _itemsizes(self, tables: IndexTables) -> np.ndarray[Any, Any]:
        itemsizes = np.array([dtype.itemsize for dtype in tables.dtypes], np.int64)
        return np.asarray(itemsizes[tables.arrays[0]])

    def _check_parts(self, tables: IndexTables, sizes: np.ndarray[Any, Any]) -> None:
        """Check that parts tile their arrays, and that shards can hold them."""
        ndims, counts = tables.arrays[2:].astype(np.intp)
        is_several = counts > 1
        has_items = np.ones(len(counts), bool)
        has_items[np.repeat(np.arange(len(counts)), ndims)[tables.shapes == 0]] = False
        for wrong in np.flatnonzero((counts > 0) != has_items)[:1]:
            raise IndexFormatError(
                "an array without items has no parts, and others have some",
                key=self.keys[wrong], found=f"{counts[wrong]} parts",
            )  # fmt: skip
        part_sizes = np.zeros(tables.parts.shape[1], np.int64)
        part_sizes[: self.part_count] = np.repeat(sizes, counts)
        for ndim in {*ndims[is_several].tolist()}:
            are_chosen = is_several & (ndims == ndim)
            items = self._check_tilings(np.flatnonzero(are_chosen), counts[are_chosen])
            parts = np.flatnonzero(np.repeat(are_chosen, counts))
            part_sizes[parts] = items * np.repeat(self._itemsizes(tables), counts)[parts]
        self._check_room(tables.parts, part_sizes)
        self._check_stored_once(tables.parts[0], counts)

    def _check_tilings(
        self, rows: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Check that the parts of arrays with as many axes tile each; return the items of each."""
        bounds = np.array([self.shape(row) for row in rows.tolist()], np.int64)
        boxes = [self.boxes(row) for row in rows.tolist()]
        if not bounds.shape[1]:
            raise IndexFormatError("an array of one item has several parts", key=self.keys[rows[0]])
        offsets, shapes = (np.concatenate(columns) for columns in zip(*boxes, strict=True))
        for at in find_untiled(bounds, counts, offsets, shapes)[:1]:
            error = fault_of(tuple(bounds[at].tolist()), *boxes[at])
            error.locate(key=self.keys[rows[at]])
            raise error
        return np.asarray(shapes.prod(axis=1))

    def _check_room(self, parts: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> None:
        """Check that parts of these sizes fit into the shards, as far as the index says."""
        shards, stored, _, methods = parts
        ratios = {STORED: 1, **{method: MAX_RATIOS[method] for method in CHUNKED}}
        largest = np.full(len(sizes), np.inf)
        for method, ratio in ratios.items():
            np.multiply(stored, float(ratio), out=largest, where=methods == method)
        fits = sizes <= largest
        if not fits.all():
            part = int(np.argmin(fits))
            raise IndexFormatError(
                "a part has fewer bytes in its shard than it takes", found=self._part_sizes[part],
                expected=f"enough for {sizes[part]} bytes",
            )  # fmt: skip
        together = np.bincount(shards.astype(np.intp), stored, len(self.shards))
        for shard, size in zip(self.shards, together, strict=True):
            if size > shard.size:
                raise IndexFormatError(
                    f"the parts in the shard {shard.name!r} are larger than its file",
                    found=int(size), expected=f"at most {shard.size}",
                )  # fmt: skip

    def _check_stored_once(
        self, shards: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]
    ) -> None:
        """Check that no array of a shard is taken for two parts."""
        numbers = np.append(np.repeat(np.arange(len(counts)), counts), np.flatnonzero(counts == 0))
        # A part with a key of its own counts as the array that has this key.
        others: dict[str, int] = {}
        for part, key in self._part_keys.items():
            number = self._numbers.get(key)
            numbers[part] = others.setdefault(key, -1 - len(others)) if number is None else number
        numbers += len(others)
        pairs = shards * (len(counts) + len(others)) + numbers
        if len(np.unique(pairs)) != len(pairs):
            raise IndexFormatError("an array in a shard is taken for two parts")


def _divided(strings: list[str], counts: tuple[int, ...]) -> Iterator[list[str]]:
    """Yield as many of the strings as each count says."""
    _check_length(strings, sum(counts))
    begin = 0
    for count in counts:
        yield strings[begin : begin + count]
        begin += count


def _check_length(values: Sized, count: int) -> None:
    if len(values) != count:
        raise IndexFormatError("a column has the wrong length", found=len(values), expected=count)


def _check_most(rows: np.ndarray[Any, Any], most: tuple[int, ...]) -> None:
    """Check that no number of each row is larger than the row's."""
    if rows.shape[1]:
        for largest, bound in zip(rows.max(axis=1).tolist(), most, strict=True):
            if largest > bound:
                raise IndexFormatError(
                    "a number is out of range", found=largest, expected=f"0 to {bound}"
                )


def _starts_of(counts: Iterable[int]) -> list[int]:
    """Return where the values of each row begin in a column that has several per row.

    Python's integers, because numbers of a file may add up to more than 64 bits.
    """
    return [0, *accumulate(counts)]
