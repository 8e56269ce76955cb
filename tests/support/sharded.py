"""A sharded archive as two processes would write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import npzkit
import numpy as np

__all__ = ["WHOLE", "index_of", "write_run"]

WHOLE = np.arange(7 * 6, dtype="f4").reshape(7, 6)
"""The array ``w``, which is in four parts."""


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
    """Return the index of a folder, to be edited: without its checksum."""
    fields = json.loads((Path(folder) / "index.json").read_bytes())
    del fields["crc32"]
    return fields
