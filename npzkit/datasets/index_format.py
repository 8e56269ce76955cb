"""The index of a sharded archive: ``index.json`` to an object and back, without I/O.

Owns the format. What it means is `npzkit.datasets.index`'s. The file is JSON in ASCII::

    {"format": "npzkit sharded archive", "version": 1, "attempt": "a1", "metadata": {...},
     "shards": {"name": [...], "size": [...], "crc32": [...]},
     "dtypes": [["<f4", null], ["<V2", "bfloat16"]],
     "arrays": {"key": [...], "dtype": [...], "ndim": [...], "shape": [...], "parts": [...],
                "fortran": [...], "attrs": {"3": {...}}, "empty": {"5": [0, "b"]}},
     "parts": {"shard": [...], "key": {"17": "w@4"}, "size": [...], "crc32": [...],
               "method": [...], "offset": [...], "shape": [...]},
     "crc32": ...}

Lists are columns: one value per shard, array or part, counted from 0. The parts of an
array follow each other, in the order of the arrays.

- ``shards``: the size of the file, and the CRC-32 of its central directory.
- ``dtypes``: the ``descr`` as in NPY, with lists for tuples, and the name of a dtype that
  NPY cannot name.
- ``arrays``: ``dtype`` counts into ``dtypes``; ``shape`` has `ndim` numbers for each array;
  ``parts`` is the number of its parts; ``fortran`` lists the arrays in Fortran order.
  Their values, and those of ``metadata``, may be NaN and infinity, which are written as in
  other archives: the text is strict JSON.
- ``parts``: ``key`` has the keys in the shard that differ from those of the array; ``size``
  is compressed; ``offset`` and ``shape`` have `ndim` numbers for each part of an array with
  several parts. A single part is its array.
- An array without items has no parts. ``empty`` has the number of a shard with it, and its
  key there.
- ``crc32``: of the text without this item, which is the last. Remove the item if you edit an
  index by hand.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from npzkit.datasets.index import ArrayRow, Index, ShardRow, check_names
from npzkit.errors import (
    FormatError,
    IndexFormatError,
    LimitExceededError,
    NpzkitError,
    UnsafeNameError,
    UnsupportedError,
)
from npzkit.limits import MAX_DEPTH, Limits
from npzkit.members.metadata import (
    check_json_size,
    format_json,
    format_metadata,
    parse_json,
    restored,
)

FORMAT = "npzkit sharded archive"
VERSION = 1
MAX_SIZE = 1 << 26
"""Bytes of the largest index. It names more than a million parts."""

_MAX_DEPTH = MAX_DEPTH + 4
"""Nested brackets: those of attributes are inside of four."""
_CRC_KEY = "crc32"
_FIELDS = {"format", "version", "attempt", "metadata", "shards", "dtypes", "arrays", "parts"}
_SHARDS = {"name", "size", "crc32"}
_ARRAYS = {"key", "dtype", "ndim", "shape", "parts", "fortran", "attrs", "empty"}
_PARTS = {"shard", "key", "size", "crc32", "method", "offset", "shape"}


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
    limits = limits or Limits()
    if len(data) > MAX_SIZE:
        raise LimitExceededError(
            "the index is too long", found=len(data), expected=MAX_SIZE, is_damage=True
        )
    check_json_size(data, limits.metadata_size, "the index")
    fields = _unsealed(parse_strictly(data), data)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise IndexFormatError(
            "this is not the index of a sharded archive",
            remedy=f"Open another folder: an index has the field \"format\": \"{FORMAT}\".",
        )  # fmt: skip
    if type(fields.get("version")) is not int or fields["version"] != VERSION:
        raise newer_version("the index", fields.get("version"), VERSION)
    try:
        check_names(fields, _FIELDS, "index")
        for name, names in (("shards", _SHARDS), ("arrays", _ARRAYS), ("parts", _PARTS)):
            check_names(fields[name], names, name)
        return Index(fields, limits)
    except UnsafeNameError as error:
        error.is_damage = True
        raise
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


def newer_version(what: str, found: object, expected: int) -> UnsupportedError:
    """Return the error for something that a newer npzkit wrote."""
    what = f"{what} has a version that this npzkit does not know"
    remedy = "Install a newer npzkit."
    return UnsupportedError(what, found=found, expected=expected, remedy=remedy)


def format_index(
    attempt: str, metadata: Mapping[str, Any], shards: list[ShardRow], arrays: list[ArrayRow]
) -> bytes:
    """Return the bytes of ``index.json``, which end with their checksum."""
    pairs = [[row.descr, row.extension] for row in arrays]
    dtypes = dict(zip(map(repr, pairs), pairs, strict=True))
    numbers = {name: number for number, name in enumerate(dtypes)}
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
            "dtype": [numbers[repr(pair)] for pair in pairs],
            "ndim": [len(row.shape) for row in arrays],
            "shape": [length for row in arrays for length in row.shape],
            "parts": [len(row.parts) for row in arrays],
            "fortran": [number for number, row in enumerate(arrays) if row.fortran_order],
            "attrs": {number: dict(row.attrs) for number, row in enumerate(arrays) if row.attrs},
            "empty": {number: list(row.home) for number, row in enumerate(arrays) if row.home},
        },
        "dtypes": list(dtypes.values()),
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
    text = format_json(fields, _MAX_DEPTH, separators=(",", ":")).encode("ascii")
    return with_item(text, {_CRC_KEY: zlib.crc32(text)})


def _unsealed(fields: Any, data: bytes) -> Any:
    """Return the fields of an index without its checksum, which is compared if it is there."""
    if not isinstance(fields, dict) or _CRC_KEY not in fields:
        return fields
    expected = fields.pop(_CRC_KEY)
    found = crc32_without(data, {_CRC_KEY: expected}) if type(expected) is int else None
    if found is None or found != expected:
        raise IndexFormatError(
            "the index is damaged: its CRC-32 differs", found=found, expected=expected,
            remedy='Write the archive again. If you edited the index, remove its item "crc32".',
        )  # fmt: skip
    return fields


def parse_strictly(data: bytes) -> Any:
    """Parse JSON, and refuse what Python's `json` reads and others do not, or read differently.

    That is a bare NaN or Infinity, and a name that an object has twice.
    """
    try:
        return parse_json(
            data.decode("utf-8"), _MAX_DEPTH, object_pairs_hook=_unique, parse_constant=_refuse
        )
    except ValueError as error:
        raise IndexFormatError(f"the index is not JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same name twice")
    return restored(found)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON; npzkit writes {format_json(float(name))}")


# -- JSON with its checksum ------------------------------------------------


def with_item(text: bytes, item: Mapping[str, Any]) -> bytes:
    """Return a JSON object that is not empty, with one more item at its end."""
    return text[:-1] + b"," + format_metadata(item)[1:]


def crc32_without(text: bytes, item: Mapping[str, Any]) -> int | None:
    """Return the CRC-32 of a JSON object before `with_item`; None if it ends otherwise."""
    end = with_item(b"}", item)
    if not text.endswith(end):
        return None
    return zlib.crc32(b"}", zlib.crc32(memoryview(text)[: -len(end)]))
