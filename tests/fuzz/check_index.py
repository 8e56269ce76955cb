"""What must hold of any index of a sharded archive: right data, or an error.

The shards are always the same, and each says where its parts belong. So whatever the index
says, an array is read as it was saved, or not at all.
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
from npzkit.datasets.sharding import ShardPart, commit_index, place_of, write_shard
from npzkit.errors import IndexFormatError, StaleArchiveError
from sharded import index_of

__all__ = ["check_index", "index_seeds"]

_WHOLE = np.arange(24, dtype="<f4").reshape(4, 6)
_ARRAYS = {
    "w": _WHOLE,
    "rows": np.arange(9),
    "half": np.arange(4, dtype="<f2"),
    "other half": np.arange(4, dtype="<f2") + 4,
    "half elsewhere": np.arange(4, dtype="<f2") + 8,
    "record": np.zeros(5, [("id", "<i4"), ("pos", "<f8", (2,))]),
    "empty": np.zeros((0, 3)),
    "none": np.zeros((0, 4), "<f4"),
    "scalar": np.array(2.5),
    "fortran": np.asfortranarray(_WHOLE),
}


@functools.cache
def _folder() -> tuple[Path, bytes]:
    """Make an archive of three shards; return its folder, and its index without checksum."""
    folder = Path(tempfile.mkdtemp(prefix="npzkit-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = place_of(folder)
    tiles = [
        ShardPart("w", _WHOLE[row : row + 2, column : column + 3], (row, column), _WHOLE.shape)
        for row in (0, 2)
        for column in (0, 3)
    ]
    rows = [ShardPart("rows", _ARRAYS["rows"][3 * at :][:3], (3 * at,), (9,)) for at in range(3)]
    names = "half", "other half", "record", "empty", "none", "scalar", "fortran"
    others = [ShardPart(name, _ARRAYS[name]) for name in names]
    others[0] = others[0]._replace(attrs={"unit": "m"})
    elsewhere = ShardPart("half elsewhere", _ARRAYS["half elsewhere"])
    shards = [
        write_shard(place, "shard-1.npz", [tiles[0], tiles[1], rows[0], *others]),
        write_shard(place, "shard-2.npz", [tiles[2], rows[1], elsewhere]),
        write_shard(place, "shard-3.npz", [tiles[3], rows[2]], compression="deflated"),
    ]
    commit_index(place, shards, {"step": 1}, attempt="fuzz")
    # With its checksum, every change would be the same error.
    return folder, json.dumps(index_of(folder)).encode()


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
            labels.add(_check_array(npz, key))
        together = attempt("load_all", _unmoved(npz.load_all))
        if together.error is None:
            for key, array in together.value.items():
                _compare(f"load_all {key!r}", array, key)
        attempt("summary", npz.summary)
        if thorough:
            report = attempt("verify", npz.verify)
            if together.error is not None and report.error is None and report.value.ok:
                raise Violation(f"verify: sound; load_all {shown(together.outcome)}")
            for key in npz.files:
                attempt(f"stream {key!r}", _unmoved(lambda key=key: npz.stream(key).read()))
    return sorted(labels)


def _check_array(npz: npzkit.NpzFile, key: str) -> str:
    info = attempt(f"info {key!r}", npz.info, key).value
    read = attempt(f"read {key!r}", _unmoved(npz.read), key)
    lazy = attempt(f"lazy {key!r}", _unmoved(lambda: npz.lazy(key)[...]))
    if (read.error is None) != (lazy.error is None):
        raise Violation(f"{key!r}: read {shown(read.outcome)}; lazy {shown(lazy.outcome)}")
    if read.error is not None:
        return f"unread: {type(read.error).__name__}"
    _compare(f"read {key!r}", read.value, key)
    _compare(f"lazy {key!r}", lazy.value, key)
    expected = _ARRAYS[key]
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


def _compare(what: str, found: Any, key: str) -> None:
    if key not in _ARRAYS:
        raise Violation(f"{what}: there is no such array")
    expected = _ARRAYS[key]
    if not is_same(found, expected):
        raise Violation(f"{what}: {shown(found)} is not {shown(expected)}")
