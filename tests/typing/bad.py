"""Twelve mistakes, each of which a checker of types finds in its line."""
# pyright: strict

from __future__ import annotations

from typing import assert_type

import npzkit
import numpy as np

npzkit.open(3.5)  # no path
npzkit.opne("a.npz")  # no such name
npzkit.dask.from_nzp("a.npz")  # no such name either
npzkit.save({"a": np.zeros(3)}, "a.npz")  # the wrong way round
npzkit.open("a.npz", mmap_mode="w")  # no mode of a map
npzkit.NpzWriter("a.npz", "r")  # no mode of a writer
npzkit.verify(7)  # no archive
npzkit.open("a.npz")["a"].nothing()  # no method of an array
npzkit.open("a.npz")[3]  # no key
assert_type(npzkit.load_tree("a.npz", like=[1]), dict[str, int])  # another tree
print([row for row in npzkit.verify("a.npz").rows if row.severity == "fatal"])  # no severity
npzkit.save("a.npz", {}, compression="zip")  # no compression
