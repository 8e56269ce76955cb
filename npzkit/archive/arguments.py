"""The arguments of `npzkit.NpzFile` that more than one call takes.

Owns their checks, which come before anything is read.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from npzkit.limits import DEFAULT_HEADER_SIZE, Limits

__all__ = ["MmapMode", "check_limits", "check_mmap_mode", "check_out"]

MmapMode = Literal["r", "c", "r+"]


def check_mmap_mode(mode: object) -> None:
    """Raise ValueError unless this is a mode of `npzkit.NpzFile.memmap`."""
    if mode not in ("r", "c", "r+"):
        raise ValueError(f"mmap_mode must be 'r', 'c', 'r+' or None, not {mode!r}")


def check_out(out: object) -> None:
    """Raise unless an array can be read into this object."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy array, not {type(out).__name__}")
    if not out.flags.writeable:
        raise ValueError("out must be writable")


def check_limits(limits: Limits | None, max_header_size: int) -> Limits:
    """Return the limits of an archive, which NumPy's `max_header_size` may stand for."""
    if limits is None:
        return Limits(header_size=max_header_size)
    if max_header_size != DEFAULT_HEADER_SIZE:
        raise ValueError("give max_header_size or limits=Limits(header_size=...), not both")
    if not isinstance(limits, Limits):
        raise TypeError(f"limits must be an npzkit.Limits, not {type(limits).__name__}")
    return limits
