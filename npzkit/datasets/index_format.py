"""The index of a sharded archive: the archive ``index.npz`` to an object and back.

Owns the format. What it means is `npzkit.datasets.index`'s. The metadata are those of the
sharded archive, with one more item: ``"npzkit.shards": {"version": 1, "attempt": "a1"}``. By
this item npzkit tells its index from other archives of that name. It also has ``"durable": true``
if all shards were on the disk before the index was: so who adds shards waits for these alone. Its
arrays, of which all are unsigned integers:

``shards``
    Two rows, a column per shard: the size of the file, and the CRC-32 of its central directory.
``arrays``
    Four rows, a column per array: the number of its dtype, 1 for Fortran order and else 0, the
    number of its axes, and that of its parts.
``shapes``
    The shapes of all arrays, one behind the other.
``parts``
    Four rows, a column per part: the number of its shard, and compressed size, CRC-32 and method
    as in the shard's directory. The parts of an array follow each other, in the order of the
    arrays. A single part is its array. An array without items has no parts: behind those of all
    others, there is a column for each of these, which says where it is.
``boxes``
    Offset and shape of each part of the arrays with several.
``strings``
    UTF-8, each with a zero byte behind it: the names of the shards; the keys of the arrays; their
    attributes, as JSON; the keys that parts have in their shards; the values of ``npzkit.dtype``
    that belong to dtypes. Without attributes, with the key of the array, and without such a
    value, a string is empty.
``dtypes/0``, ``dtypes/1``, ...
    Arrays without items, which have the dtypes.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.save import PreparedArchive
from npzkit.datasets import NOT_AN_INDEX, SHARDS_KEY
from npzkit.datasets.index import ArrayRow, Index, IndexTables
from npzkit.datasets.shard_names import ShardRecord, version_of
from npzkit.errors import (
    IndexFormatError,
    NpzkitError,
    PickleRefusedError,
    UnsafeNameError,
    UnsupportedError,
    check_limit,
)
from npzkit.limits import DEFAULT_LIMITS, Limits
from npzkit.members.metadata import format_metadata

VERSION = 1
_ROWS = {"shards": 2, "arrays": 4, "parts": 4}
_NUMBER_COST, _TEXT_COST = 8, 200
"""Bytes of memory for each byte of a column, and for each string, at most."""
_MAX_INT = 2**63 - 1
_TOO_LARGE = "the index would take too much memory"


def parse_index(
    file: Any, limits: Limits | None = None, *, strict: bool = False
) -> tuple[Index, tuple[int, int]]:
    """Return an index, and what tells it from others; see `state_of`.

    `file` and `strict` are as of `NpzFile`.

    Raises
    ------
    OSError, FormatError, ChecksumError
        As of any archive.
    IndexFormatError
        It is not an index, or parts do not tile their array.
    UnsupportedError
        A newer version of npzkit wrote it.
    UnsafeNameError
        A shard is not a file in the folder.
    LimitExceededError
        The index exceeds `limits`.
    """
    limits = limits or DEFAULT_LIMITS
    own_limits = Limits(header_size=None, metadata_size=limits.metadata_size)
    with NpzFile(file, strict=strict, limits=own_limits) as npz:
        try:
            return _index_in(npz, limits), state_of(npz)
        except NpzkitError as error:
            if isinstance(error, PickleRefusedError):
                raise _not_valid(error.what, npz) from error
            if isinstance(error, UnsafeNameError):
                error.is_damage = True
            error.locate(path=npz._archive.path)
            raise
        except (TypeError, ValueError) as error:
            raise _not_valid(error, npz) from error


def _not_valid(why: object, npz: NpzFile) -> IndexFormatError:
    return IndexFormatError(f"the index is not valid: {why}", path=npz._archive.path)


def state_of(npz: NpzFile) -> tuple[int, int]:
    """Return the size of an open index, and the CRC-32 of its directory and of its metadata."""
    size, crc32 = version_of(npz)
    return size, zlib.crc32(npz._archive.comment, crc32)


def _index_in(npz: NpzFile, limits: Limits) -> Index:
    metadata = dict(npz.metadata)
    own = metadata.pop(SHARDS_KEY, None)
    if not isinstance(own, dict):
        raise IndexFormatError(
            NOT_AN_INDEX, remedy="Open the file by its path, or open another folder."
        )
    if type(own.get("version")) is not int or own["version"] != VERSION:
        raise newer_version("the index", own.get("version"), VERSION)
    index = Index(own.get("attempt"), metadata, _tables(npz, limits.metadata_size), limits)
    index.is_durable = own.get("durable") is True
    return index


def _tables(npz: NpzFile, limit: int | None) -> IndexTables:
    """Return what the arrays of an index say, after checks of their form alone."""
    cost = _NUMBER_COST * npz._archive.nbytes
    check_limit(cost, limit, "metadata_size", _TOO_LARGE)
    arrays: dict[str, Any] = npz.load_all(threads=1)
    rows = {name: _array(arrays, name) for name in _ROWS}
    text = _array(arrays, "strings").tobytes()
    check_limit(cost + _TEXT_COST * text.count(0), limit, "metadata_size", _TOO_LARGE)
    *strings, end = text.decode().split("\0")
    numbers = {name: _array(arrays, name) for name in ("shapes", "boxes")}
    found = [arrays.get(f"dtypes/{at}") for at in range(len(arrays))]
    dtypes = [array.dtype for array in found if isinstance(array, np.ndarray)]
    if end or len(dtypes) < len(arrays):
        raise IndexFormatError("an array of the index is missing, or of another form")
    return IndexTables(**rows, **numbers, strings=strings, dtypes=dtypes)


def _array(arrays: dict[str, Any], name: str) -> np.ndarray[Any, Any]:
    """Remove an array of the index, and return it: as int64 unless it has strings."""
    array = arrays.pop(name, None)
    rows = (_ROWS[name],) if name in _ROWS else ()
    if not (isinstance(array, np.ndarray) and array.dtype.kind == "u" and array.shape[:-1] == rows):
        raise IndexFormatError("an array of the index is missing, or of another form", key=name)
    if name == "strings":
        return array.astype(np.uint8, copy=False)
    if array.max(initial=0) > _MAX_INT:
        raise IndexFormatError("a number is out of range", key=name, found=int(array.max()))
    return array.astype(np.int64)


def newer_version(what: str, found: object, expected: int) -> UnsupportedError:
    """Return the error for something that a newer npzkit wrote."""
    what = f"{what} has a version that this npzkit does not know"
    remedy = "Install a newer npzkit."
    return UnsupportedError(what, found=found, expected=expected, remedy=remedy)


def format_index(
    attempt: str,
    metadata: Mapping[str, Any],
    shards: list[ShardRecord],
    arrays: list[ArrayRow],
    *,
    durable: bool = False,
) -> bytes:
    """Return the bytes of ``index.npz``; `durable` if its shards are on the disk."""
    dtypes = dict.fromkeys((row.dtype, row.extension) for row in arrays)
    numbers = {dtype: number for number, dtype in enumerate(dtypes)}
    parts = [(row.key, part) for row in arrays for part in row.parts]
    stored = parts + [(row.key, row.home) for row in arrays if row.home is not None]
    boxes = [part for row in arrays if len(row.parts) > 1 for part in row.parts]
    forms = [
        (numbers[row.dtype, row.extension], row.fortran_order, len(row.shape), len(row.parts))
        for row in arrays
    ]
    strings = [
        *(row.name for row in shards),
        *(row.key for row in arrays),
        *(format_metadata(row.attrs).decode() for row in arrays),
        *("" if part.key == key else part.key for key, part in stored),
        *(extension or "" for _, extension in numbers),
    ]
    columns = {
        "shards": _table("shards", [(row.size, row.crc32) for row in shards]),
        "arrays": _table("arrays", forms),
        "shapes": _numbers(length for row in arrays for length in row.shape),
        "parts": _table(
            "parts", [(p.shard, p.compressed_size, p.crc32, p.method) for _, p in stored]
        ),
        "boxes": _numbers(length for part in boxes for length in (*part.offset, *part.shape)),
        "strings": np.frombuffer("\0".join([*strings, ""]).encode(), np.uint8),
    }
    # Not np.empty, which gives a dtype of no bytes one.
    columns |= {f"dtypes/{at}": np.ndarray((0,), dtype) for (dtype, _), at in numbers.items()}
    own = {"version": VERSION, "attempt": attempt, **({"durable": True} if durable else {})}
    stream = io.BytesIO()
    PreparedArchive(columns).write(stream, metadata={**metadata, SHARDS_KEY: own})
    return stream.getvalue()


def _table(name: str, columns: Sequence[tuple[int, ...]]) -> np.ndarray[Any, Any]:
    table = _numbers(chain.from_iterable(columns)).reshape(len(columns), _ROWS[name])
    return np.ascontiguousarray(table.T)


def _numbers(values: Iterable[int]) -> np.ndarray[Any, Any]:
    """Return integers in as few bytes as they need."""
    numbers = np.array([*values], np.uint64)
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))
