"""Opening archives: by what they can be opened from, or as they are given.

Owns `open`, and that an archive which is given open stays open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from npzkit.archive.npzfile import NpzFile
from npzkit.archive.opened_archive import MmapMode
from npzkit.limits import Limits

__all__ = ["open", "opened"]


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


@contextlib.contextmanager
def opened(file: Any) -> Iterator[NpzFile]:
    """Yield an `NpzFile` as it is, and anything else opened until the block ends."""
    if isinstance(file, NpzFile):
        yield file
        return
    with open(file) as npz:
        yield npz
