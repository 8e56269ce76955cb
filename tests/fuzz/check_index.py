"""What must hold of any index of a sharded archive: right data, or an error.

The shards are always the same. An index that is accepted is interpreted a second time
here, part by part and with NumPy alone.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import npzkit
import numpy as np
from calls import LIMITS, Violation, attempt, is_same, shown
from npzkit.errors import IndexFormatError, StaleArchiveError
from npzkit.sharding.committing import commit_index
from npzkit.sharding.places import place_of
from npzkit.sharding.shard_writing import Part, write_shard

__all__ = ["check_index", "index_seeds"]

_WHOLE = np.arange(24, dtype="<f4").reshape(4, 6)
_RECORD = np.zeros(5, [("id", "<i4"), ("pos", "<f8", (2,))])


@functools.cache
def _folder() -> tuple[Path, bytes]:
    """Make an archive of three shards; return its folder and its index."""
    folder = Path(tempfile.mkdtemp(prefix="npzkit-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = place_of(folder)
    tiles = [
        Part("w", _WHOLE[row : row + 2, column : column + 3], (row, column), _WHOLE.shape)
        for row in (0, 2)
        for column in (0, 3)
    ]
    rows = [Part("rows", np.arange(3) + 3 * at, (3 * at,), (9,)) for at in range(3)]
    others = [
        Part("half", np.arange(4, dtype="<f2"), attrs={"unit": "m"}),
        Part("record", _RECORD),
        Part("empty", np.zeros((0, 3))),
        Part("scalar", np.float64(2.5)),
        Part("fortran", np.asfortranarray(_WHOLE)),
    ]
    shards = [
        write_shard(place, "shard-1.npz", [tiles[0], tiles[1], rows[0], *others]),
        write_shard(place, "shard-2.npz", [tiles[2], rows[1]]),
        write_shard(place, "shard-3.npz", [tiles[3], rows[2]], compression="deflated"),
    ]
    commit_index(place, shards, {"step": 1}, attempt="fuzz")
    return folder, (folder / "index.json").read_bytes()


def index_seeds() -> list[bytes]:
    """Return the right index."""
    return [_folder()[1]]


def check_index(data: bytes, thorough: bool) -> list[str]:
    """Open the folder with this index, and read each array in every way."""
    folder = _folder()[0]
    (folder / "index.json").write_bytes(data)
    opened = attempt("open", npzkit.ShardedFile, folder, limits=LIMITS)
    if opened.error is not None:
        return [f"refused: {type(opened.error).__name__}"]
    npz = opened.value
    labels = {"opened"}
    with npz:
        for key in npz.files:
            labels.add(_check_array(npz, key, json.loads(data)))
        together = attempt("load_all", _unmoved(npz.load_all))
        if together.error is None:
            for key, array in together.value.items():
                _compare(f"load_all {key!r}", array, _expected(json.loads(data), folder, key))
        attempt("summary", npz.summary)
        if thorough:
            attempt("verify", npz.verify)
            for key in npz.files:
                attempt(f"stream {key!r}", _unmoved(lambda key=key: npz.stream(key).read()))
    return sorted(labels)


def _check_array(npz: npzkit.NpzFile, key: str, index: Any) -> str:
    info = attempt(f"info {key!r}", npz.info, key).value
    read = attempt(f"read {key!r}", _unmoved(npz.read), key)
    lazy = attempt(f"lazy {key!r}", _unmoved(lambda: npz.lazy(key)[...]))
    if (read.error is None) != (lazy.error is None):
        raise Violation(f"{key!r}: read {shown(read.outcome)}; lazy {shown(lazy.outcome)}")
    if read.error is not None:
        return f"unread: {type(read.error).__name__}"
    expected = _expected(index, _folder()[0], key)
    _compare(f"read {key!r}", read.value, expected)
    _compare(f"lazy {key!r}", lazy.value, expected)
    if (info.shape, info.dtype) != (expected.shape, expected.dtype):
        raise Violation(f"info {key!r}: {info.dtype} {info.shape}, not {shown(expected)}")
    return "read"


def _unmoved(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let a shard be another than the index says, which no other input can show."""

    def checked(*args: Any) -> Any:
        try:
            return call(*args)
        except StaleArchiveError as error:
            raise IndexFormatError(str(error)) from error

    return checked


def _compare(what: str, found: Any, expected: np.ndarray[Any, Any]) -> None:
    if not is_same(found, expected):
        raise Violation(f"{what}: {shown(found)} is not {shown(expected)}")


def _expected(index: Any, folder: Path, key: str) -> np.ndarray[Any, Any]:
    """Return what an index says of an array, part by part."""
    arrays, parts = index["arrays"], index["parts"]
    number = arrays["key"].index(key)
    ndim = arrays["ndim"][number]
    start = sum(arrays["ndim"][:number])
    shape = arrays["shape"][start : start + ndim]
    dtype = np.dtype(_descr(index["dtypes"][arrays["dtype"][number]][0]))
    whole, counts = np.zeros(shape, dtype), np.zeros(shape, int)
    first, count = sum(arrays["parts"][:number]), arrays["parts"][number]
    box = sum(
        n * ndims
        for n, ndims in zip(arrays["parts"][:number], arrays["ndim"], strict=False)
        if n > 1
    )
    for part in range(first, first + count):
        offset, size = [0] * ndim, shape
        if count > 1:
            offset = parts["offset"][box : box + ndim]
            size = parts["shape"][box : box + ndim]
            box += ndim
        keys = {int(name): other for name, other in parts["key"].items()}
        name = index["shards"]["name"][parts["shard"][part]]
        values = np.load(folder / name)[keys.get(part, key)]
        at = tuple(slice(begin, begin + length) for begin, length in zip(offset, size, strict=True))
        if values.shape != tuple(size) or values.dtype != dtype:
            raise Violation(f"{key!r} is read, but a part is {shown(values)}")
        whole[at] = values
        counts[at] += 1
    if (counts != 1).any():
        raise Violation(f"{key!r} is read, but its parts do not tile it")
    return whole


def _descr(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [
        (name, _descr(inner), *(tuple(shape) for shape in more)) for name, inner, *more in value
    ]
