"""A sharded archive as two processes would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import npzkit
import numpy as np

__all__ = ["TABLES", "WHOLE", "index_of", "write_index", "write_run"]

WHOLE = np.arange(7 * 6, dtype="f4").reshape(7, 6)
"""The array ``w``, which is in four parts."""
TABLES = {
    "shards": ("size", "crc32"),
    "arrays": ("dtype", "fortran", "ndim", "parts"),
    "parts": ("shard", "size", "crc32", "method"),
}
"""The rows of the index's tables."""
_STRINGS = ("shards", "name"), ("arrays", "key"), ("arrays", "attrs"), ("parts", "key")


def write_run(folder: Any, whole: Any = WHOLE, attempt: str = "a1", **options: Any) -> Any:
    """Write one array in four parts and two in one part, to two shards; return `folder`."""
    for number, rows in enumerate((slice(0, 3), slice(3, 7))):
        with npzkit.ShardedWriter(folder, attempt=attempt, **options) as w:
            for columns in (slice(0, 4), slice(4, 6)):
                offset = (rows.start, columns.start)
                w.add("w", whole[rows, columns], offset, whole.shape, attrs={"unit": "m"})
            w.add(f"layer/{number}", np.full(number + 2, number, "i8"))
    npzkit.ShardedWriter(folder, attempt=attempt, metadata={"step": 7}, **options).commit()
    return folder


def index_of(folder: Any) -> Any:
    """Return the index of a folder as lists, to be edited."""
    with npzkit.NpzFile(Path(folder) / "index.npz") as npz:
        index: Any = {
            name: dict(zip(rows, npz[name].tolist(), strict=True)) for name, rows in TABLES.items()
        }
        index["metadata"] = dict(npz.metadata)
        index |= {name: npz[name].tolist() for name in ("shapes", "boxes")}
        index["dtypes"] = [npz[name].dtype for name in npz.files if name.startswith("dtypes/")]
        strings = iter(bytes(npz["strings"]).decode().split("\0"))
    for table, name in _STRINGS:
        index[table][name] = [next(strings) for _ in index[table][TABLES[table][0]]]
    index["names"] = [next(strings) for _ in index["dtypes"]]
    return index


def write_index(folder: Any, index: Any, name: str = "index.npz") -> None:
    """Write an index that was edited."""
    strings = [*(text for table, name in _STRINGS for text in index[table][name]), *index["names"]]
    with npzkit.NpzWriter(Path(folder) / name, metadata=index["metadata"]) as w:
        for table, rows in TABLES.items():
            w[table] = np.array([index[table][row] for row in rows], np.uint64)
        for name in ("shapes", "boxes"):
            w[name] = np.array(index[name], np.uint64)
        w["strings"] = np.frombuffer("".join(text + "\0" for text in strings).encode(), np.uint8)
        for number, dtype in enumerate(index["dtypes"]):
            w[f"dtypes/{number}"] = np.ndarray((0,), dtype)
