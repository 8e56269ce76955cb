"""npzkit: the ``.npz`` archive manager.

The same files that `numpy.savez` writes and `numpy.load` reads, opened lazily,
checked, replaced as a whole, and several times faster.

>>> import io, npzkit, numpy as np
>>> stream = io.BytesIO()
>>> npzkit.save(stream, {"weights": np.eye(2), "bias": np.zeros(2)})
>>> with npzkit.open(stream) as npz:
...     npz["bias"]
array([0., 0.])
"""

from __future__ import annotations

from npzkit import errors, format
from npzkit.drop_ins import load, savez, savez_compressed
from npzkit.errors import AmbiguousArchiveWarning, NpzkitError, TornArchiveWarning
from npzkit.info import ArrayInfo
from npzkit.lazyarray import LazyArray
from npzkit.limits import Limits
from npzkit.npzfile import NpzFile, open
from npzkit.npzwriter import NpzWriter, save
from npzkit.repack import repack

__all__ = [
    "AmbiguousArchiveWarning",
    "ArrayInfo",
    "LazyArray",
    "Limits",
    "NpzFile",
    "NpzWriter",
    "NpzkitError",
    "TornArchiveWarning",
    "errors",
    "format",
    "load",
    "open",
    "repack",
    "save",
    "savez",
    "savez_compressed",
]

__version__ = "0.1.0"
