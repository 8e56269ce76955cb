"""The index of a sharded archive: ``index.json`` to an object and back, without I/O.

Owns the format, and what every index is checked for. The file is JSON in ASCII::

    {"format": "npzkit sharded archive", "version": 1, "attempt": "a1", "metadata": {...},
     "shards": {"name": [...], "size": [...], "crc32": [...]},
     "dtypes": [["<f4", null], ["<V2", "bfloat16"]],
     "arrays": {"key": [...], "dtype": [...], "ndim": [...], "shape": [...], "parts": [...],
                "fortran": [...], "attrs": {"3": {...}}},
     "parts": {"shard": [...], "key": {"17": "w@4"}, "size": [...], "crc32": [...],
               "method": [...], "offset": [...], "shape": [...]}}

Lists are columns: one value per shard, array or part, counted from 0. The parts of an
array follow each other, in the order of the arrays.

- ``shards``: the size of the file, and the CRC-32 of its central directory.
- ``dtypes``: the ``descr`` as in NPY, with lists for tuples, and the name of a dtype that
  NPY cannot name.
- ``arrays``: ``dtype`` counts into ``dtypes``; ``shape`` has `ndim` numbers for each array;
  ``parts`` is the number of its parts; ``fortran`` lists the arrays in Fortran order.
  Their values, and those of ``metadata``, may be NaN and infinity, as in other archives.
- ``parts``: ``key`` has the keys in the shard that differ from those of the array; ``size``
  is compressed; ``offset`` and ``shape`` have `ndim` numbers for each part of an array with
  several parts. A single part is its array. An array without items has no parts.

Numbers are checked by column, so that an index of 100,000 parts takes less than a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from npzkit.errors import (
    FormatError,
    IndexFormatError,
    LimitExceededError,
    NpzkitError,
    UnsupportedError,
)
from npzkit.format.descr import descr_to_dtype
from npzkit.format.header import MAX_DIMENSIONS, check_size
from npzkit.limits import Limits
from npzkit.members.extension_dtypes import DTYPE_ATTRIBUTE, restored_dtype
from npzkit.members.keys import check_keys
from npzkit.members.metadata import MAX_DEPTH, is_deeper
from npzkit.sharding.shard_names import check_attempt, check_shard_names
from npzkit.sharding.tiling import check_tiling

__all__ = ["MAX_SIZE", "ArrayRow", "Index", "PartRow", "ShardRow", "format_index", "parse_index"]

FORMAT = "npzkit sharded archive"
VERSION = 1
MAX_SIZE = 1 << 26
"""Bytes of the largest index. It names more than a million parts."""

_FIELDS = {"format", "version", "attempt", "metadata", "shards", "dtypes", "arrays", "parts"}
_SHARDS = {"name", "size", "crc32"}
_ARRAYS = {"key", "dtype", "ndim", "shape", "parts", "fortran", "attrs"}
_PARTS = {"shard", "key", "size", "crc32", "method", "offset", "shape"}
_MAX_CRC = 2**32 - 1
_MAX_METHOD = 2**16 - 1
_MAX_INT = 2**63 - 1


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
    """

    key: str
    shape: tuple[int, ...]
    descr: Any
    extension: str | None
    fortran_order: bool
    attrs: Mapping[str, Any]
    parts: tuple[PartRow, ...]


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

    def __init__(self, fields: dict[str, Any], limits: Limits) -> None:
        shards, arrays, parts = fields["shards"], fields["arrays"], fields["parts"]
        self.attempt = check_attempt(fields["attempt"])
        self.metadata: Mapping[str, Any] = MappingProxyType(_mapping(fields["metadata"]))
        self.shards = _shards(shards)
        self.keys: list[str] = _strings(arrays["key"], "the keys")
        check_keys(self.keys)
        self._numbers = {key: number for number, key in enumerate(self.keys)}
        if len(self._numbers) != len(self.keys):
            raise IndexFormatError("a key occurs twice")
        _check_limit(len(self.keys), limits.member_count, "arrays", "member_count")
        count = len(self.keys)
        self._dtypes = [_dtype(pair) for pair in _list(fields["dtypes"])]
        self._dtype_of: list[int] = _column(arrays["dtype"], count, len(self._dtypes) - 1).tolist()
        self._fortran = frozenset(_column(arrays["fortran"], None, count - 1).tolist())
        self._attrs = _by_number(arrays["attrs"], count)
        for attrs in self._attrs.values():
            _mapping(attrs)
        ndims = _column(arrays["ndim"], count, MAX_DIMENSIONS)
        self._ndims: list[int] = ndims.tolist()
        self._shape_starts = _starts(ndims)
        self._shapes: list[int] = _column(arrays["shape"], self._shape_starts[-1]).tolist()
        self.nbytes = self._check_sizes(limits)
        self._read_parts(parts, _column(arrays["parts"], count))
        self._check_tilings()

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
        _, _, dtype, extension = self._dtypes[self._dtype_of[number]]
        return dtype, extension

    def dtype(self, number: int) -> np.dtype[Any]:
        """Return the dtype of an array: a new object if it has fields."""
        descr, extension = self.descr(number)
        if descr.names is not None:
            return descr_to_dtype(descr.descr)
        return descr if extension is None else restored_dtype(descr, {DTYPE_ATTRIBUTE: extension})

    def fortran_order(self, number: int) -> bool:
        """Return whether an array is in Fortran order."""
        return number in self._fortran

    def attrs(self, number: int) -> Mapping[str, Any]:
        """Return the attributes of an array."""
        return MappingProxyType(self._attrs.get(number, {}))

    def part_numbers(self, number: int) -> range:
        """Return the numbers of the parts of an array."""
        return range(self._part_starts[number], self._part_starts[number + 1])

    def boxes(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return offsets and shapes of the parts of an array: arrays of a row per part."""
        start, end = self._box_starts[number], self._box_starts[number + 1]
        if start == end:
            shapes = np.array([self.shape(number)] * len(self.part_numbers(number)), np.int64)
            shapes = shapes.reshape(-1, self._ndims[number])
            return np.zeros_like(shapes), shapes
        size = (-1, self._ndims[number])
        return self._offsets[start:end].reshape(size), self._part_shapes[start:end].reshape(size)

    def shard_of(self, part: int) -> int:
        """Return the number of the shard that has a part."""
        return self._shard_of[part]

    def part_key(self, part: int, key: str) -> str:
        """Return the key of a part in its shard; `key` is that of its array."""
        return self._part_keys.get(part, key)

    def parts(self, number: int) -> Iterator[PartRow]:
        """Yield the parts of an array."""
        key = self.keys[number]
        boxes = zip(*(column.tolist() for column in self.boxes(number)), strict=True)
        for part, (offset, shape) in zip(self.part_numbers(number), boxes, strict=True):
            yield PartRow(
                self._shard_of[part], self._part_keys.get(part, key), tuple(offset), tuple(shape),
                self._part_sizes[part], self._crcs[part], self._methods[part],
            )  # fmt: skip

    # -- checks -------------------------------------------------------------

    def _check_sizes(self, limits: Limits) -> list[int]:
        sizes = []
        for number, key in enumerate(self.keys):
            dtype = self.descr(number)[0]
            try:
                size = check_size(self.shape(number), dtype)
            except NpzkitError as error:
                error.locate(key=key)
                raise
            sizes.append(size)
        _check_limit(max(sizes, default=0), limits.member_size, "bytes of one array", "member_size")
        _check_limit(sum(sizes), limits.total_size, "bytes", "total_size")
        return sizes

    def _read_parts(self, parts: Mapping[str, Any], counts: np.ndarray[Any, Any]) -> None:
        shard_count = len(self.shards)
        self._part_starts = _starts(counts)
        count = self._part_starts[-1]
        self._shard_of: list[int] = _column(parts["shard"], count, shard_count - 1).tolist()
        self._part_sizes: list[int] = _column(parts["size"], count).tolist()
        self._crcs: list[int] = _column(parts["crc32"], count, _MAX_CRC).tolist()
        self._methods: list[int] = _column(parts["method"], count, _MAX_METHOD).tolist()
        self._part_keys: dict[int, str] = _by_number(parts["key"], count)
        check_keys(_strings([*self._part_keys.values()], "the keys of parts"))
        box_sizes = np.array(self._ndims, np.int64) * counts
        self._box_starts = _starts(np.where(counts > 1, box_sizes, 0))
        self._offsets = _column(parts["offset"], self._box_starts[-1])
        self._part_shapes = _column(parts["shape"], self._box_starts[-1])

    def _check_tilings(self) -> None:
        for number, key in enumerate(self.keys):
            parts, shape = self.part_numbers(number), self.shape(number)
            if bool(parts) != (0 not in shape):
                raise IndexFormatError(
                    "an array without items has no parts, and others have some", key=key,
                    found=f"{len(parts)} parts of shape {shape}",
                )  # fmt: skip
            if len(parts) > 1:
                try:
                    check_tiling(shape, *self.boxes(number))
                except IndexFormatError as error:
                    error.locate(key=key)
                    raise
        self._check_stored_once()

    def _check_stored_once(self) -> None:
        """Check that no two parts are the same array of a shard."""
        count, key_count = len(self._shard_of), len(self.keys)
        numbers = np.repeat(np.arange(key_count), np.diff(self._part_starts))
        # Parts with keys of their own are compared by these.
        for at, part_key in self._part_keys.items():
            numbers[at] = self._numbers.get(part_key, -1)
        pairs = np.array(self._shard_of, np.int64) * (key_count + 1) + numbers
        own = [(self._shard_of[at], key) for at, key in self._part_keys.items()]
        usual = pairs[numbers >= 0]
        if len(np.unique(usual)) != len(usual) or len(set(own)) != len(own):
            raise IndexFormatError(
                "an array of a shard is the part of two arrays, or two parts",
                found=f"{count} parts",
            )


# -- bytes to an index, and back --------------------------------------------


def parse_index(data: bytes, limits: Limits | None = None) -> Index:
    """Return the index that the bytes of ``index.json`` hold.

    Raises
    ------
    IndexFormatError
        It is not an index, or parts do not tile their array.
    UnsupportedError
        A newer version of npzkit wrote it.
    UnsafeNameError
        A shard is not a file in the folder.
    LimitExceededError
        The index is longer than `MAX_SIZE`, or exceeds `limits`.
    """
    if len(data) > MAX_SIZE:
        raise LimitExceededError("the index is too long", found=len(data), expected=MAX_SIZE)
    fields = _parse_json(data)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise IndexFormatError(
            "this is not the index of a sharded archive",
            remedy=f"Its first field is \"format\": \"{FORMAT}\".",
        )  # fmt: skip
    if type(fields.get("version")) is not int or fields["version"] != VERSION:
        raise UnsupportedError(
            "the index has a version that this npzkit does not know",
            found=fields.get("version"), expected=VERSION, remedy="Install a newer npzkit.",
        )  # fmt: skip
    try:
        _check_names(fields, _FIELDS, "index")
        for name, names in (("shards", _SHARDS), ("arrays", _ARRAYS), ("parts", _PARTS)):
            _check_names(fields[name], names, name)
        return Index(fields, limits or Limits())
    except FormatError as error:
        if isinstance(error, IndexFormatError):
            raise
        raise IndexFormatError(
            f"the index is not valid: {error.what}", key=error.key, found=error.found,
            expected=error.expected,
        ) from error  # fmt: skip
    except (TypeError, ValueError) as error:
        if isinstance(error, NpzkitError):
            raise
        raise IndexFormatError(f"the index is not valid: {error}") from error


def format_index(
    attempt: str,
    metadata: Mapping[str, Any],
    shards: list[ShardRow],
    arrays: list[ArrayRow],
) -> bytes:
    """Return the bytes of ``index.json``."""
    import json

    dtypes: dict[str, int] = {}
    pairs: list[Any] = []

    def dtype_number(row: ArrayRow) -> int:
        name = repr((row.descr, row.extension))
        if name not in dtypes:
            dtypes[name] = len(pairs)
            pairs.append([row.descr, row.extension])
        return dtypes[name]

    parts = [(row, part) for row in arrays for part in row.parts]
    boxes = [part for row, part in parts if len(row.parts) > 1]
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "attempt": attempt,
        "metadata": metadata,
        "shards": {name: [getattr(row, name) for row in shards] for name in ShardRow._fields},
        "arrays": {
            "key": [row.key for row in arrays],
            "dtype": [dtype_number(row) for row in arrays],
            "ndim": [len(row.shape) for row in arrays],
            "shape": [length for row in arrays for length in row.shape],
            "parts": [len(row.parts) for row in arrays],
            "fortran": [number for number, row in enumerate(arrays) if row.fortran_order],
            "attrs": {number: dict(row.attrs) for number, row in enumerate(arrays) if row.attrs},
        },
        "dtypes": pairs,
        "parts": {
            "shard": [part.shard for _, part in parts],
            "key": {at: p.key for at, (row, p) in enumerate(parts) if p.key != row.key},
            "size": [part.compressed_size for _, part in parts],
            "crc32": [part.crc32 for _, part in parts],
            "method": [part.method for _, part in parts],
            "offset": [length for part in boxes for length in part.offset],
            "shape": [length for part in boxes for length in part.shape],
        },
    }
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _parse_json(data: bytes) -> Any:
    import json

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, IndexFormatError):
            raise
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise IndexFormatError(f"the index is not JSON: {reason}") from error
    if is_deeper(value, MAX_DEPTH):
        raise IndexFormatError("the index is nested too deeply")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise IndexFormatError("the index has the same name twice in one object")
    return found


# -- columns ----------------------------------------------------------------


def _check_names(value: object, names: set[str], what: str) -> None:
    if not isinstance(value, dict) or value.keys() != names:
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise IndexFormatError(
            f"the fields of {what!r} are not those of an index", found=found, expected=sorted(names)
        )


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise IndexFormatError("a column is not a list", found=value)
    return value


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise IndexFormatError("metadata and attributes are objects", found=value)
    return value


def _strings(value: object, what: str) -> list[str]:
    if not set(map(type, _list(value))) <= {str}:
        raise IndexFormatError(f"{what} must be strings")
    return _list(value)


def _column(value: object, count: int | None, most: int = _MAX_INT) -> np.ndarray[Any, Any]:
    """Return a column of integers from 0 to `most`; `count` of them, unless that is None."""
    numbers = _list(value)
    if count is not None and len(numbers) != count:
        raise IndexFormatError("a column has the wrong length", found=len(numbers), expected=count)
    # Booleans are not numbers here.
    if not set(map(type, numbers)) <= {int}:
        raise IndexFormatError("a column must have integers")
    if numbers and not (min(numbers) >= 0 and max(numbers) <= most):
        wrong = next(number for number in numbers if not 0 <= number <= most)
        raise IndexFormatError("a number is out of range", found=wrong, expected=f"0 to {most}")
    return np.array(numbers, np.int64)


def _starts(counts: np.ndarray[Any, Any]) -> list[int]:
    """Return where the values of each row begin in a column that has several per row.

    Python's integers, because numbers of a file may add up to more than 64 bits.
    """
    starts = [0]
    for count in counts.tolist():
        starts.append(starts[-1] + count)
    return starts


def _by_number(value: object, count: int) -> dict[int, Any]:
    """Return an object whose names are numbers below `count`."""
    found = {}
    for name, inner in _mapping(value).items():
        if not (name.isascii() and name.isdigit() and len(name) < 19 and int(name) < count):
            raise IndexFormatError("an object refers to a row that is not there", found=name)
        found[int(name)] = inner
    if len(found) != len(_mapping(value)):
        raise IndexFormatError("an object refers to the same row twice")
    return found


def _shards(columns: Mapping[str, Any]) -> list[ShardRow]:
    names = _strings(columns["name"], "the names of shards")
    check_shard_names(names)
    sizes = _column(columns["size"], len(names)).tolist()
    crcs = _column(columns["crc32"], len(names), _MAX_CRC).tolist()
    return list(map(ShardRow, names, sizes, crcs))


def _dtype(pair: object) -> tuple[Any, Any, np.dtype[Any], str | None]:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], (str, type(None))):
        raise IndexFormatError("a dtype is a descr and a name or null", found=pair)
    dtype = descr_to_dtype(_descr(pair[0]))
    if dtype.hasobject:
        raise IndexFormatError("an array of Python objects cannot be sharded", found=pair[0])
    return *pair, dtype, pair[1]


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


def _check_limit(found: int, bound: int | None, what: str, name: str) -> None:
    if bound is not None and found > bound:
        raise LimitExceededError(
            f"the archive has too many {what}", found=found, expected=f"at most {bound}",
            remedy=f"Pass limits=npzkit.Limits({name}=...) if the file is trusted.",
        )  # fmt: skip
