"""npzkit: the ``.npz`` archive manager.

npzkit reads, writes and edits the files that `numpy.savez` writes and
`numpy.load` reads. It reads only the arrays that are used, checks what it
reads, keeps saved data safe from crashes, and is several times faster.

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
from npzkit.archive.npzfile import NpzFile
from npzkit.archive.npzwriter import NpzWriter
from npzkit.archive.opening import open
from npzkit.archive.saving import save
from npzkit.drop_ins import load, savez, savez_compressed
from npzkit.errors import AmbiguousArchiveWarning, NpzkitError, TornArchiveWarning
from npzkit.limits import Limits
from npzkit.members.info import ArchiveInfo, ArrayInfo

if TYPE_CHECKING:
    from npzkit.analysis.benchmark import BenchmarkReport, benchmark
    from npzkit.analysis.diff import DiffReport, diff
    from npzkit.analysis.statistics import Statistics, statistics
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.archive.trees import load_tree
    from npzkit.conversion.convert import ConvertReport, convert
    from npzkit.conversion.extract import ExtractReport, extract
    from npzkit.conversion.pack import PackReport, pack
    from npzkit.maintenance.repack import repack
    from npzkit.maintenance.repair import RepairReport, repair
    from npzkit.maintenance.verify import VerifyReport, verify

__all__ = [
    "AmbiguousArchiveWarning",
    "ArchiveInfo",
    "ArrayInfo",
    "BenchmarkReport",
    "ConvertReport",
    "DiffReport",
    "ExtractReport",
    "LazyArray",
    "Limits",
    "NpzFile",
    "NpzWriter",
    "NpzkitError",
    "PackReport",
    "RepairReport",
    "Statistics",
    "TornArchiveWarning",
    "VerifyReport",
    "benchmark",
    "convert",
    "diff",
    "errors",
    "extract",
    "format",
    "load",
    "load_tree",
    "open",
    "pack",
    "repack",
    "repair",
    "save",
    "savez",
    "savez_compressed",
    "statistics",
    "verify",
]

__version__ = "0.1.0"


_LATER = {
    "BenchmarkReport": "npzkit.analysis.benchmark",
    "ConvertReport": "npzkit.conversion.convert",
    "DiffReport": "npzkit.analysis.diff",
    "ExtractReport": "npzkit.conversion.extract",
    "LazyArray": "npzkit.archive.lazyarray",
    "PackReport": "npzkit.conversion.pack",
    "RepairReport": "npzkit.maintenance.repair",
    "Statistics": "npzkit.analysis.statistics",
    "benchmark": "npzkit.analysis.benchmark",
    "convert": "npzkit.conversion.convert",
    "diff": "npzkit.analysis.diff",
    "extract": "npzkit.conversion.extract",
    "load_tree": "npzkit.archive.trees",
    "pack": "npzkit.conversion.pack",
    "repack": "npzkit.maintenance.repack",
    "repair": "npzkit.maintenance.repair",
    "statistics": "npzkit.analysis.statistics",
    "verify": "npzkit.maintenance.verify",
    "VerifyReport": "npzkit.maintenance.verify",
}
"""Modules that are imported on first use, to keep `import npzkit` fast."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'npzkit' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
