"""An archive that is given open, or by what it can be opened from.

Owns that what is opened here is closed, and what is given open stays open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from npzkit.archive.npzfile import NpzFile, open

__all__ = ["opened"]


@contextlib.contextmanager
def opened(file: Any) -> Iterator[NpzFile]:
    """Yield an `NpzFile` as it is, and anything else opened until the block ends."""
    if isinstance(file, NpzFile):
        yield file
        return
    with open(file) as npz:
        yield npz
