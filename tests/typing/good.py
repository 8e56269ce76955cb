# pyright: strict
"""What users write, checked by mypy --strict and pyright."""

from __future__ import annotations

import io
import pathlib
from typing import Any, assert_type

import npzkit
import numpy as np
from numpy.typing import NDArray

path = pathlib.Path("a.npz")
with npzkit.open(path) as npz:
    assert_type(npz["a"], NDArray[Any])
    assert_type(npz.read("a"), NDArray[Any])
    for key, array in npz.items():
        assert_type(key, str)
        assert_type(array, NDArray[Any])
    assert_type(npz.lazy("a")[:3], NDArray[Any])
    assert_type(npz.load_all(), dict[str, NDArray[Any]])
    npzkit.verify(npz)
npzkit.open(b"PK")
npzkit.open(io.BytesIO())
with open("a.npz", "rb") as stream:
    for key, array in npzkit.iter_arrays(stream):
        assert_type(key, str)
        assert_type(array, NDArray[Any])
assert_type(npzkit.open_many("*.npz")["a"], NDArray[Any])
npzkit.open_many([path, "b.npz"])
state = {"w": np.zeros(3)}
assert_type(
    npzkit.load_tree("a.npz", like=state), dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]
)
npzkit.load_tree("a.npz")["w"]
npzkit.save(path, state)
npzkit.save(io.BytesIO(), {"a": [1, 2]})
with npzkit.NpzWriter("b.npz", compression="deflated") as w:
    w["a"] = np.zeros(3)
    with w.create("log", (None, 3), "f4") as dst:
        dst.append([1, 2, 3])
        dst[0:2] = 1
    assert_type(dst, npzkit.CreatedArray)


class Writer(npzkit.NpzWriter):
    """A subclass keeps its type."""


def pack(file: npzkit.typing.Writable, how: npzkit.typing.Compression = "zstd") -> None:
    """What wraps npzkit's functions has their types."""
    with Writer(file, compression=how) as own:
        assert_type(own, Writer)


def repair(path: str, keep: npzkit.typing.Partial, tell: npzkit.typing.Progress) -> None:
    npzkit.repair(path, "c.npz", keep_partial=keep, progress=tell)


def save(masked: npzkit.typing.OnParts, mode: npzkit.typing.MmapMode) -> None:
    npzkit.save("a.npz", state, masked=masked)
    npzkit.open("a.npz", mmap_mode=mode)


with npzkit.checkpoint.CheckpointStore("run") as store:
    store.save(1, state)
