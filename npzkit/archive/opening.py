"""Opening an archive that is one file.

Owns the choice of what it can be opened from. `npzkit.open` is
`npzkit.sharding.opening`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import MmapMode
from npzkit.limits import Limits

__all__ = ["open"]


def open(
    file: Any,
    *,
    mmap_mode: MmapMode | None = None,
    allow_pickle: bool = False,
    pickle_kwargs: Mapping[str, Any] | None = None,
    strict: bool = False,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> NpzFile:
    """Open an archive in one file for reading; the parameters are those of `npzkit.open`."""
    return NpzFile(
        file,
        mmap_mode=mmap_mode,
        allow_pickle=allow_pickle,
        pickle_kwargs=pickle_kwargs,
        strict=strict,
        limits=limits,
        storage_options=storage_options,
    )
