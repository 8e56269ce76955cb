"""The index of a sharded archive as an object: which arrays there are, and their parts.

Owns what every index is checked for, and what can be asked of it. Its bytes are
`npzkit.datasets.index_format`'s.

Rows are looked at one by one only if they are unusual, so that an index of 100,000
arrays takes a fraction of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from npzkit.codecs.coding import CHUNKED, MAX_RATIOS, STORED
from npzkit.datasets.shard_names import check_attempt, check_shard_names
from npzkit.datasets.tiling import fault_of, find_untiled
from npzkit.errors import IndexFormatError, NpyFormatError, check_limit
from npzkit.format import descr_to_dtype
from npzkit.limits import MAX_DEPTH, MAX_DESCR_DEPTH, MAX_DIMENSIONS, Limits
from npzkit.members.keys import check_keys
from npzkit.members.metadata import is_deeper
from npzkit.members.tensors import DTYPE_ATTRIBUTE, restored_dtype

_MAX_CRC = 2**32 - 1
_MAX_METHOD = 2**16 - 1
_USUAL_SIZE = 2.0**62
"""Bytes of an array that need no exact calculation."""


class ShardRow(NamedTuple):
    """A shard.

    Attributes
    ----------
    name : str
        Of the file, in the folder of the index.
    size : int
        Bytes of the file.
    crc32 : int
        Of its central directory.
    """

    name: str
    size: int
    crc32: int


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
    descr : object
        Of the NPY header, as JSON has it.
    extension : str or None
        The name of a dtype that NPY cannot name.
    fortran_order : bool
    attrs : mapping
    parts : tuple of PartRow
        Empty if the array has no items.
    home : (int, str) or None
        For an array without items, the number of a shard that has it, and its key there.
    """

    key: str
    shape: tuple[int, ...]
    descr: Any
    extension: str | None
    fortran_order: bool
    attrs: Mapping[str, Any]
    parts: tuple[PartRow, ...]
    home: tuple[int, str] | None = None


class Index:
    """The index of a sharded archive, checked.

    Attributes
    ----------
    attempt : str
    metadata : mapping
    shards : list of ShardRow
    keys : list of str
    nbytes : list of int
        Of each array.
    """

    def __init__(self, fields: Mapping[str, Any], limits: Limits) -> None:
        shards, arrays, parts = fields["shards"], fields["arrays"], fields["parts"]
        self.attempt = check_attempt(fields["attempt"])
        self.metadata: Mapping[str, Any] = MappingProxyType(mapping(fields["metadata"]))
        self.shards = _shards(shards)
        self.keys: list[str] = strings(arrays["key"], "the keys")
        check_keys(self.keys)
        self._numbers = {key: number for number, key in enumerate(self.keys)}
        if len(self._numbers) != len(self.keys):
            raise IndexFormatError("a key occurs twice")
        check_limit(
            len(self.keys), limits.member_count, "member_count", "the archive has too many arrays"
        )
        count = len(self.keys)
        # Each is as deep as in a header, inside a pair in a list.
        _check_depth(fields["dtypes"], MAX_DESCR_DEPTH + 2)
        self._dtypes = [_dtype(pair) for pair in listed(fields["dtypes"])]
        self._restored: dict[int, np.dtype[Any]] = {}
        self._dtype_of: list[int] = column(arrays["dtype"], count, len(self._dtypes) - 1).tolist()
        self._fortran = frozenset(column(arrays["fortran"], None, count - 1).tolist())
        self._attrs = by_number(arrays["attrs"], count)
        values = [dict(self.metadata), *map(mapping, self._attrs.values())]
        _check_depth(values, MAX_DEPTH + 1)
        ndims = column(arrays["ndim"], count, MAX_DIMENSIONS)
        self._ndims: list[int] = ndims.tolist()
        self._shape_starts = starts_of(ndims)
        shapes = column(arrays["shape"], self._shape_starts[-1])
        self._shapes: list[int] = shapes.tolist()
        sizes = self._check_sizes(ndims, shapes, limits)
        self.nbytes: list[int] = sizes.tolist()
        counts = column(arrays["parts"], count)
        self._homes = _homes(arrays["empty"], counts, len(self.shards))
        self._read_parts(parts, ndims, counts)
        self._check_parts(ndims, shapes, counts, sizes)

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
        _, extension, dtype = self._dtypes[self._dtype_of[number]]
        return dtype, extension

    def dtype(self, number: int) -> np.dtype[Any]:
        """Return the dtype of an array: a new object if it has fields."""
        at = self._dtype_of[number]
        known = self._restored.get(at)
        if known is not None:
            return known
        descr, extension = self.descr(number)
        if descr.names is not None:
            return descr_to_dtype(descr.descr)
        if extension is not None:
            descr = restored_dtype(descr, {DTYPE_ATTRIBUTE: extension})
        self._restored[at] = descr
        return descr

    def fortran_order(self, number: int) -> bool:
        """Return whether an array is in Fortran order."""
        return number in self._fortran

    def attrs(self, number: int) -> Mapping[str, Any]:
        """Return the attributes of an array."""
        return MappingProxyType(self._attrs.get(number, {}))

    @property
    def compressed_size(self) -> int:
        """Bytes of all parts in the shards, without headers."""
        return sum(self._part_sizes)

    def part_numbers(self, number: int) -> range:
        """Return the numbers of the parts of an array."""
        return range(self._part_starts[number], self._part_starts[number + 1])

    def boxes(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return offsets and shapes of the parts of an array: arrays of a row per part."""
        start, end = self._box_starts[number], self._box_starts[number + 1]
        if start == end:
            size = (len(self.part_numbers(number)), self._ndims[number])
            return np.zeros(size, np.int64), np.full(size, self.shape(number), np.int64)
        size = (-1, self._ndims[number])
        return self._offsets[start:end].reshape(size), self._part_shapes[start:end].reshape(size)

    @property
    def part_count(self) -> int:
        """The number of all parts."""
        return self._part_starts[-1]

    def shard_of(self, part: int) -> int:
        """Return the number of the shard that has a part."""
        return self._shard_of[part]

    def home(self, number: int) -> int:
        """Return the number of the shard that has an array without items."""
        return self._homes[number][0]

    def stored_key(self, number: int, part: int | None) -> str:
        """Return the key of a part in its shard; None for that of an array without items."""
        if part is None:
            return self._homes[number][1]
        return self._part_keys.get(part, self.keys[number])

    def stored_as(self, part: int) -> tuple[int, int, int]:
        """Return the CRC-32, the compressed size and the method of a part."""
        return self._crcs[part], self._part_sizes[part], self._methods[part]

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

    def _part_row(self, number: int, part: int, offset: list[int], shape: list[int]) -> PartRow:
        return PartRow(
            self._shard_of[part], self.stored_key(number, part), tuple(offset),
            tuple(shape), self._part_sizes[part], self._crcs[part], self._methods[part],
        )  # fmt: skip

    def part_nbytes(self, number: int, part: int) -> int:
        """Return the bytes of a part in memory."""
        return math.prod(self.part(number, part).shape) * self.descr(number)[0].itemsize

    def saved_dtype(self, number: int) -> tuple[Any, str | None]:
        """Return the ``descr`` of an array as JSON has it, and the name of what it stands for."""
        descr, extension, _ = self._dtypes[self._dtype_of[number]]
        return descr, extension

    # -- checks -------------------------------------------------------------

    def _check_sizes(
        self, ndims: np.ndarray[Any, Any], shapes: np.ndarray[Any, Any], limits: Limits
    ) -> np.ndarray[Any, Any]:
        """Return the bytes of each array, which NumPy can have."""
        itemsizes = np.array([dtype.itemsize for _, _, dtype in self._dtypes], np.int64)
        sizes = itemsizes[self._dtype_of]
        starts = np.array(self._shape_starts[:-1], np.int64)
        for ndim in np.unique(ndims).tolist():
            rows = np.flatnonzero(ndims == ndim)
            lengths = shapes[starts[rows][:, None] + np.arange(ndim)]
            # With empty dimensions as 1, and without overflow.
            largest = np.maximum(lengths, 1).astype(np.float64).prod(axis=1)
            for row in rows[largest * np.maximum(sizes[rows], 1) > _USUAL_SIZE].tolist():
                _check_countable(self.shape(row), self.descr(row)[0].itemsize)
            sizes[rows] *= lengths.prod(axis=1)
        most = int(sizes.max(initial=0))
        check_limit(
            most, limits.member_size, "member_size", "the archive has too many bytes in one array"
        )
        total = sum(sizes.tolist())
        check_limit(total, limits.total_size, "total_size", "the archive has too many bytes")
        return sizes

    def _read_parts(
        self, parts: Mapping[str, Any], ndims: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]
    ) -> None:
        shard_count = len(self.shards)
        self._part_starts = starts_of(counts)
        count = self._part_starts[-1]
        self._shard_of: list[int] = column(parts["shard"], count, shard_count - 1).tolist()
        self._part_sizes: list[int] = column(parts["size"], count).tolist()
        self._crcs: list[int] = column(parts["crc32"], count, _MAX_CRC).tolist()
        self._methods: list[int] = column(parts["method"], count, _MAX_METHOD).tolist()
        self._part_keys: dict[int, str] = by_number(parts["key"], count)
        check_keys(strings([*self._part_keys.values()], "the keys of parts"))
        self._box_starts = starts_of(np.where(counts > 1, ndims * counts, 0))
        self._offsets = column(parts["offset"], self._box_starts[-1])
        self._part_shapes = column(parts["shape"], self._box_starts[-1])

    def _check_parts(
        self,
        ndims: np.ndarray[Any, Any],
        shapes: np.ndarray[Any, Any],
        counts: np.ndarray[Any, Any],
        sizes: np.ndarray[Any, Any],
    ) -> None:
        """Check that parts tile their arrays, and that shards can hold them."""
        ndims, counts = ndims.astype(np.intp), counts.astype(np.intp)
        is_several = counts > 1
        starts = np.array(self._shape_starts[:-1], np.int64)
        has_items = np.ones(len(counts), bool)
        has_items[np.repeat(np.arange(len(counts)), ndims)[shapes == 0]] = False
        for wrong in np.flatnonzero((counts > 0) != has_items)[:1]:
            raise IndexFormatError(
                "an array without items has no parts, and others have some",
                key=self.keys[wrong], found=f"{counts[wrong]} parts",
            )  # fmt: skip
        for ndim in np.unique(ndims[is_several]).tolist():
            rows = np.flatnonzero(is_several & (ndims == ndim))
            bounds = shapes[starts[rows][:, None] + np.arange(ndim)]
            self._check_tilings(rows, bounds, counts[rows])
        part_sizes = np.repeat(sizes, counts)
        if len(self._part_shapes):
            part_sizes[np.repeat(is_several, counts)] = self._sizes_of_boxes(ndims, counts)
        self._check_room(part_sizes)
        self._check_stored_once(counts)

    def _check_tilings(
        self, rows: np.ndarray[Any, Any], bounds: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]
    ) -> None:
        """Check that the parts of several arrays, with as many axes, tile each of them."""
        boxes = [self.boxes(row) for row in rows.tolist()]
        if not bounds.shape[1]:
            raise IndexFormatError("an array of one item has several parts", key=self.keys[rows[0]])
        offsets, shapes = (np.concatenate(columns) for columns in zip(*boxes, strict=True))
        for at in find_untiled(bounds, counts, offsets, shapes)[:1]:
            error = fault_of(tuple(bounds[at].tolist()), *boxes[at])
            error.locate(key=self.keys[rows[at]])
            raise error

    def _sizes_of_boxes(
        self, ndims: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the bytes of each part of the arrays with several; their tiling was checked."""
        is_several = counts > 1
        lengths = np.repeat(ndims[is_several], counts[is_several])
        items = np.multiply.reduceat(self._part_shapes, np.cumsum(lengths, dtype=np.intp) - lengths)
        itemsizes = np.array([dtype.itemsize for _, _, dtype in self._dtypes], np.int64)
        array_sizes = itemsizes[np.array(self._dtype_of)[is_several]]
        return np.asarray(items * np.repeat(array_sizes, counts[is_several]))

    def _check_room(self, sizes: np.ndarray[Any, Any]) -> None:
        """Check that parts of these sizes fit into the shards, as far as the index says."""
        stored = np.array(self._part_sizes, np.float64)
        factors = np.select(
            [np.equal(self._methods, method) for method in (STORED, *CHUNKED)],
            [1.0, *map(MAX_RATIOS.__getitem__, CHUNKED)], np.inf,
        )  # fmt: skip
        with np.errstate(invalid="ignore"):
            fits = sizes <= stored * factors
        if not fits.all():
            part = int(np.argmin(fits))
            raise IndexFormatError(
                "a part has fewer bytes in its shard than it takes", found=self._part_sizes[part],
                expected=f"enough for {sizes[part]} bytes",
            )  # fmt: skip
        together = np.bincount(self._shard_of, stored, len(self.shards)) if len(stored) else [0.0]
        for shard, size in zip(self.shards, together, strict=False):
            if size > shard.size:
                raise IndexFormatError(
                    f"the parts in the shard {shard.name!r} are larger than its file",
                    found=int(size), expected=f"at most {shard.size}",
                )  # fmt: skip

    def _check_stored_once(self, counts: np.ndarray[Any, Any]) -> None:
        """Check that no array of a shard is taken for two parts."""
        numbers = np.repeat(np.arange(len(counts)), counts)
        # A part with a key of its own counts as the array that has this key.
        others: dict[str, int] = {}
        for part, key in self._part_keys.items():
            number = self._numbers.get(key)
            numbers[part] = others.setdefault(key, -1 - len(others)) if number is None else number
        numbers += len(others)
        pairs = np.array(self._shard_of, np.int64) * (len(counts) + len(others)) + numbers
        if len(np.unique(pairs)) != len(pairs):
            raise IndexFormatError("an array in a shard is taken for two parts")


def _check_countable(shape: tuple[int, ...], itemsize: int) -> None:
    """Check that NumPy can have an array of very many items, or bytes."""
    # It counts empty dimensions as one.
    if math.prod(n or 1 for n in shape) * max(itemsize, 1) >= 2**63:
        raise NpyFormatError("shape is too large for any array", found=shape)


def _check_depth(values: Any, depth: int) -> None:
    if is_deeper(values, depth):
        raise IndexFormatError("the index is nested too deeply")


def _shards(columns: Mapping[str, Any]) -> list[ShardRow]:
    names = strings(columns["name"], "the names of shards")
    check_shard_names(names)
    sizes = column(columns["size"], len(names)).tolist()
    crcs = column(columns["crc32"], len(names), _MAX_CRC).tolist()
    return list(map(ShardRow, names, sizes, crcs))


def _homes(
    value: object, counts: np.ndarray[Any, Any], shard_count: int
) -> dict[int, tuple[int, str]]:
    """Return where arrays without items are: those that have no parts, and no others."""
    found = by_number(value, len(counts))
    for home in found.values():
        if not (
            isinstance(home, list)
            and [type(each) for each in home] == [int, str]
            and 0 <= home[0] < shard_count
        ):
            raise IndexFormatError("a shard of an array without items is not valid", found=home)
    check_keys([home[1] for home in found.values()])
    if found.keys() != set(np.flatnonzero(counts == 0).tolist()):
        raise IndexFormatError("arrays without parts, and no others, have a shard of their own")
    return {number: (shard, key) for number, (shard, key) in found.items()}


def _dtype(pair: object) -> tuple[Any, str | None, np.dtype[Any]]:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], (str, type(None))):
        raise IndexFormatError("a dtype is a descr and a name or null", found=pair)
    dtype = descr_to_dtype(_descr(pair[0]))
    if dtype.hasobject:
        raise IndexFormatError("an array of Python objects cannot be sharded", found=pair[0])
    return pair[0], pair[1], dtype


def _descr(value: Any) -> Any:
    """Return a ``descr`` with the tuples for which JSON has lists."""
    if not isinstance(value, list):
        return value
    return [_field(field) for field in value]


def _field(field: Any) -> Any:
    if not isinstance(field, list) or not 2 <= len(field) <= 3:
        raise IndexFormatError("a field of a dtype is a name, a descr and a shape", found=field)
    name, descr, *shape = field
    name = tuple(name) if isinstance(name, list) else name
    return (
        name,
        _descr(descr),
        *(tuple(each) if isinstance(each, list) else each for each in shape),
    )


_MAX_INT = 2**63 - 1


def check_names(value: object, names: set[str], what: str) -> None:
    """Check that an object has exactly these fields."""
    if not isinstance(value, dict) or value.keys() != names:
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise IndexFormatError(
            f"the fields of {what!r} are not those of an index", found=found, expected=sorted(names)
        )


def listed(value: object) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list):
        raise IndexFormatError("a column is not a list", found=value)
    return value


def mapping(value: object) -> dict[str, Any]:
    """Return an object."""
    if not isinstance(value, dict):
        raise IndexFormatError("an index has something else in place of an object", found=value)
    return value


def strings(value: object, what: str) -> list[str]:
    """Return a list of strings."""
    if not set(map(type, listed(value))) <= {str}:
        raise IndexFormatError(f"{what} must be strings")
    return listed(value)


def column(value: object, count: int | None, most: int = _MAX_INT) -> np.ndarray[Any, Any]:
    """Return a column of integers from 0 to `most`; `count` of them, unless that is None."""
    numbers = listed(value)
    if count is not None and len(numbers) != count:
        raise IndexFormatError("a column has the wrong length", found=len(numbers), expected=count)
    # Booleans are not numbers here.
    if not set(map(type, numbers)) <= {int}:
        raise IndexFormatError("a column must have integers")
    if numbers and not (min(numbers) >= 0 and max(numbers) <= most):
        wrong = next(number for number in numbers if not 0 <= number <= most)
        raise IndexFormatError("a number is out of range", found=wrong, expected=f"0 to {most}")
    return np.array(numbers, np.int64)


def starts_of(counts: np.ndarray[Any, Any]) -> list[int]:
    """Return where the values of each row begin in a column that has several per row.

    Python's integers, because numbers of a file may add up to more than 64 bits.
    """
    return [0, *accumulate(counts.tolist())]


def by_number(value: object, count: int) -> dict[int, Any]:
    """Return an object whose names are numbers below `count`."""
    found = {}
    for name, inner in mapping(value).items():
        if not (name.isascii() and name.isdigit() and len(name) < 19 and int(name) < count):
            raise IndexFormatError("an object refers to a row that is not there", found=name)
        found[int(name)] = inner
    if len(found) != len(mapping(value)):
        raise IndexFormatError("an object refers to the same row twice")
    return found
