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

if TYPE_CHECKING:
    from npzkit import checkpoint, errors, format
    from npzkit.analysis.diff import DiffReport, diff
    from npzkit.analysis.statistics import statistics
    from npzkit.archive.iterating import iter_arrays
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.archive.npzfile import NpzFile
    from npzkit.archive.npzwriter import NpzWriter
    from npzkit.archive.save import save
    from npzkit.conversion.convert import ConvertReport, convert
    from npzkit.conversion.extract import ExtractReport, extract
    from npzkit.conversion.pack import PackReport, add, pack
    from npzkit.datasets.manyfiles import ManyFiles, open_many
    from npzkit.datasets.opening import load_tree, open, verify
    from npzkit.datasets.shardedfile import ShardedFile
    from npzkit.datasets.shardedwriter import ShardedWriter
    from npzkit.display.histograms import Statistics
    from npzkit.drop_ins.numpy_load import load
    from npzkit.drop_ins.numpy_save import savez, savez_compressed
    from npzkit.errors import AmbiguousArchiveWarning, NpzkitError, TornArchiveWarning
    from npzkit.limits import Limits
    from npzkit.maintenance.findings import Finding, RepairReport, VerifyReport
    from npzkit.maintenance.repack import repack
    from npzkit.maintenance.repair import repair
    from npzkit.members.array_info import ArchiveInfo, ArrayInfo
    from npzkit.viewer.viewer import Viewer, view
    from npzkit.writing.created_array import CreatedArray

__all__ = [
    "AmbiguousArchiveWarning", "ArchiveInfo", "ArrayInfo", "ConvertReport", "CreatedArray",
    "DiffReport", "ExtractReport", "Finding", "LazyArray", "Limits", "ManyFiles", "NpzFile",
    "NpzWriter", "NpzkitError", "PackReport", "RepairReport", "ShardedFile", "ShardedWriter",
    "Statistics", "TornArchiveWarning", "VerifyReport", "Viewer", "add", "checkpoint", "convert",
    "diff", "errors", "extract", "format", "iter_arrays", "load", "load_tree", "open", "open_many",
    "pack", "repack", "repair", "save", "savez", "savez_compressed", "statistics", "verify", "view",
]  # fmt: skip

__version__ = "1.0.0rc1"


_HOMES = {
    name: module
    for module, names in {
        "npzkit.analysis.diff": "DiffReport diff",
        "npzkit.analysis.statistics": "Statistics statistics",
        "npzkit.archive.iterating": "iter_arrays",
        "npzkit.archive.lazyarray": "LazyArray",
        "npzkit.archive.npzfile": "NpzFile",
        "npzkit.archive.npzwriter": "NpzWriter",
        "npzkit.archive.save": "save",
        "npzkit.conversion.convert": "ConvertReport convert",
        "npzkit.conversion.extract": "ExtractReport extract",
        "npzkit.conversion.pack": "PackReport add pack",
        "npzkit.datasets.manyfiles": "ManyFiles open_many",
        "npzkit.datasets.opening": "load_tree open verify",
        "npzkit.datasets.shardedfile": "ShardedFile",
        "npzkit.datasets.shardedwriter": "ShardedWriter",
        "npzkit.drop_ins.numpy_load": "load",
        "npzkit.drop_ins.numpy_save": "savez savez_compressed",
        "npzkit.errors": "AmbiguousArchiveWarning NpzkitError TornArchiveWarning",
        "npzkit.limits": "Limits",
        "npzkit.maintenance.findings": "Finding RepairReport VerifyReport",
        "npzkit.maintenance.repack": "repack",
        "npzkit.maintenance.repair": "repair",
        "npzkit.members.array_info": "ArchiveInfo ArrayInfo",
        "npzkit.viewer.viewer": "Viewer view",
        "npzkit.writing.created_array": "CreatedArray",
    }.items()
    for name in names.split()
}
"""The module of each public name, which is imported on first use (PEP 562)."""
_MODULES = {"checkpoint", "dask", "errors", "format", "torch", "typing", "xarray"}
"""Public modules, likewise. `__all__` has those that need no other package."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        try:
            return import_module(f"npzkit.{name}")
        except ImportError as error:
            raise AttributeError(f"npzkit.{name} cannot be imported: {error}") from error
    if name not in _HOMES:
        raise AttributeError(f"module 'npzkit' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    from importlib.util import find_spec

    engines = {name for name in ("dask", "torch", "xarray") if find_spec(name)}
    return sorted({*__all__, *engines, *(name for name in globals() if name.startswith("__"))})
