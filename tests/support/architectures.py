"""What npzkit writes on other machines: one set of files, the same everywhere.

Run as a program on such a machine, with npzkit and NumPy alone, it writes the fixtures::

    python tests/support/architectures.py FOLDER

`fixtures/PROVENANCE.md` says how that was done.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import npzkit
import numpy as np
from npzkit.checkpoint import CheckpointStore

Arrays = dict[str, np.ndarray]
METADATA = {"step": 7, "rate": 0.1, "name": "µ", "limits": [1, None, float("inf")]}
ATTRS = {"unit": "m/s", "n": 3}
DTYPES = (
    "?", "i1", "u1", "<i2", ">i2", "<u4", ">u4", "<i8", ">i8", "<u8", "<f2", ">f2", "<f4", ">f4",
    "<f8", ">f8", "<c8", ">c16", "S3", "<U2", ">U2", "<M8[s]", ">m8[D]", "V3", "S0",
)  # fmt: skip


def arrays() -> Arrays:
    """Arrays of every dtype, order and kind of shape, which are the same on every machine."""
    found: Arrays = {}
    for dtype in map(np.dtype, DTYPES):
        numbers = np.arange(6, dtype="<u2") * 7
        if dtype.kind in "SU":
            array = np.array([f"{number:x}" for number in numbers]).astype(dtype)
        elif dtype.kind == "V":
            array = np.frombuffer(b"".join(bytes([n, 0, 255]) for n in numbers.tolist()), dtype)
        else:
            array = numbers.astype("<i8").astype(dtype)
        name = {"<": "little", ">": "big"}.get(dtype.str[0], "any")
        found[f"{name}/{dtype.str[1:]}"] = array.reshape(2, 3)
    fields = ["id", "value", "at"], ["u1", "<f8", (">i4", 2)], [0, 8, 16]
    padded = np.zeros(4, dict(zip(("names", "formats", "offsets"), fields, strict=True)))
    padded["id"], padded["value"] = range(4), np.arange(4) / 3
    return {
        **found,
        "record": padded,
        "scalar": np.array(1 / 3, "<f8"),
        "empty": np.zeros((0, 3), "<f4"),
        "fortran": np.asfortranarray(np.arange(24, dtype="<i4").reshape(2, 3, 4)),
        # Of two chunks or more.
        "large": np.repeat(np.arange(133, dtype="<u2"), 1000).reshape(133, 1000),
    }


def large() -> Arrays:
    return {"parts": np.repeat(np.arange(60) % 7, 1000).astype("<u4")}


def tree() -> Any:
    """Nested data, as a checkpoint has them."""
    weights = np.arange(6, dtype="<f4").reshape(2, 3)
    layers = [
        {"w": weights, "b": None},
        {"w": (weights * 2).astype(">f4"), "b": np.zeros(2, "<f8")},
    ]
    return {"model": {"layers": layers, "rate": 0.1, "name": "µ"}, "step": 7, "seen": (1, 2.5)}


def write(folder: Path) -> None:
    """Write all files."""
    for compression in ("stored", "deflated"):
        path = folder / f"{compression}.npz"
        npzkit.save(path, arrays(), compression=compression, metadata=METADATA)
        with npzkit.NpzWriter(path, "a", compression=compression, auto_repack=False) as writer:
            writer.add("fortran", arrays()["fortran"][..., :2], attrs=ATTRS, overwrite=True)
            writer.metadata["step"] = 8
    write_to_pipe(folder / "stream.npz")
    options = {"attempt": "a1", "metadata": METADATA, "compression": "deflated"}
    with npzkit.ShardedWriter(folder / "sharded", **options) as writer:
        rows = large()["parts"]
        writer.add("parts", rows[:20_000], (0,), rows.shape)
        writer.add("parts", rows[20_000:], (20_000,), rows.shape)
        writer.update(arrays())
        writer.commit()
    with CheckpointStore(folder / "checkpoint", durable=False) as store:
        store.save(100, tree(), metrics={"loss": 0.25})


def write_to_pipe(path: Path) -> None:
    """Write an archive where nothing can be read back or changed."""
    source, target = os.pipe()
    with path.open("wb") as file, os.fdopen(source, "rb") as pipe:
        reader = threading.Thread(target=lambda: file.write(pipe.read()))
        reader.start()
        with os.fdopen(target, "wb") as stream:
            npzkit.save(stream, large(), compression="deflated")
        reader.join()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
