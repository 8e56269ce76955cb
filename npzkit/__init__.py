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

from typing import TYPE_CHECKING, Any

from npzkit import errors, format
from npzkit.drop_ins import load, savez, savez_compressed
from npzkit.errors import AmbiguousArchiveWarning, NpzkitError, TornArchiveWarning
from npzkit.info import ArchiveInfo, ArrayInfo
from npzkit.limits import Limits
from npzkit.npzfile import NpzFile, open
from npzkit.npzwriter import NpzWriter
from npzkit.saving import save

if TYPE_CHECKING:
    from npzkit.lazyarray import LazyArray
    from npzkit.repacking import repack
    from npzkit.repairing import RepairReport, repair
    from npzkit.trees import load_tree
    from npzkit.verifying import VerifyReport, verify

__all__ = [
    "AmbiguousArchiveWarning",
    "ArchiveInfo",
    "ArrayInfo",
    "LazyArray",
    "Limits",
    "NpzFile",
    "NpzWriter",
    "NpzkitError",
    "RepairReport",
    "TornArchiveWarning",
    "VerifyReport",
    "errors",
    "format",
    "load",
    "load_tree",
    "open",
    "repack",
    "repair",
    "save",
    "savez",
    "savez_compressed",
    "verify",
]

__version__ = "0.1.0"


_LATER = {
    "LazyArray": "npzkit.lazyarray",
    "RepairReport": "npzkit.repairing",
    "load_tree": "npzkit.trees",
    "repack": "npzkit.repacking",
    "repair": "npzkit.repairing",
    "verify": "npzkit.verifying",
    "VerifyReport": "npzkit.verifying",
}
"""Where to find what most programs never use: `import npzkit` is to be fast."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'npzkit' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
