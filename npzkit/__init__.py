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

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npzkit import checkpoint, errors, format, typing
    from npzkit import dask as dask
    from npzkit import torch as torch
    from npzkit import xarray as xarray
    from npzkit.analysis.diff import DiffReport as DiffReport
    from npzkit.analysis.diff import diff
    from npzkit.analysis.statistics import statistics
    from npzkit.archive.iterating import iter_arrays
    from npzkit.archive.lazyarray import LazyArray
    from npzkit.archive.npzfile import NpzFile
    from npzkit.archive.npzwriter import NpzWriter
    from npzkit.archive.save import save
    from npzkit.conversion.convert import ConvertReport as ConvertReport
    from npzkit.conversion.convert import convert
    from npzkit.conversion.extract import ExtractReport as ExtractReport
    from npzkit.conversion.extract import extract
    from npzkit.conversion.pack import PackReport as PackReport
    from npzkit.conversion.pack import add, pack
    from npzkit.datasets.manyfiles import ManyFiles as ManyFiles
    from npzkit.datasets.manyfiles import open_many
    from npzkit.datasets.opening import load_tree, open, verify
    from npzkit.datasets.repacked_shards import repack
    from npzkit.datasets.repaired_file import repair
    from npzkit.datasets.shardedfile import ShardedFile as ShardedFile
    from npzkit.datasets.shardedwriter import ShardedWriter
    from npzkit.display.histograms import Statistics as Statistics
    from npzkit.drop_ins.numpy_load import load
    from npzkit.drop_ins.numpy_save import savez, savez_compressed
    from npzkit.errors import NpzkitError
    from npzkit.limits import Limits
    from npzkit.maintenance.findings import Finding as Finding
    from npzkit.maintenance.findings import RepairReport as RepairReport
    from npzkit.maintenance.findings import VerifyReport as VerifyReport
    from npzkit.members.array_info import ArchiveInfo as ArchiveInfo
    from npzkit.members.array_info import ArrayInfo as ArrayInfo
    from npzkit.viewer.viewer import Viewer as Viewer
    from npzkit.viewer.viewer import view
    from npzkit.writing.created_array import CreatedArray as CreatedArray

__all__ = [
    "LazyArray", "Limits", "NpzFile", "NpzWriter", "NpzkitError", "ShardedWriter", "add",
    "checkpoint", "convert", "diff", "errors", "extract", "format", "iter_arrays", "load",
    "load_tree", "open", "open_many", "pack", "repack", "repair", "save", "savez",
    "savez_compressed", "statistics", "typing", "verify", "view",
]  # fmt: skip

__version__ = "1.0.0rc2"


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
        "npzkit.datasets.repacked_shards": "repack",
        "npzkit.datasets.repaired_file": "repair",
        "npzkit.datasets.shardedfile": "ShardedFile",
        "npzkit.datasets.shardedwriter": "ShardedWriter",
        "npzkit.drop_ins.numpy_load": "load",
        "npzkit.drop_ins.numpy_save": "savez savez_compressed",
        "npzkit.errors": "NpzkitError",
        "npzkit.limits": "Limits",
        "npzkit.maintenance.findings": "Finding RepairReport VerifyReport",
        "npzkit.members.array_info": "ArchiveInfo ArrayInfo",
        "npzkit.viewer.viewer": "Viewer view",
        "npzkit.writing.created_array": "CreatedArray",
    }.items()
    for name in names.split()
}
"""The module of each public name, which is imported on first use (PEP 562). `__all__` has what
users call; the others are classes of what is returned, for `isinstance` and annotations."""
_MODULES = {"checkpoint", "dask", "errors", "format", "torch", "typing", "xarray"}
"""Public modules, likewise. `__all__` has those that need no other package."""


if not TYPE_CHECKING:
    # A checker of types would take every name for a public one.

    def __getattr__(name: str) -> object:
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
