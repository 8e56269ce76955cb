"""What must hold of an archive whose end is odd: what np.load shows, or an error."""

from __future__ import annotations

import io

import npzkit
import numpy as np
from calls import LIMITS, Violation, archives_differ, attempt, by_numpy
from differences import Case, explain

__all__ = ["check_end"]


def check_end(data: bytes, thorough: bool) -> list[str]:
    """Open it with both, and compare the keys and all arrays that both read."""
    opened = attempt("open", npzkit.open, data, limits=LIMITS)
    if opened.error is not None:
        return [f"refused: {type(opened.error).__name__}: {opened.error.what[:40]}"]
    with opened.value as npz:
        labels = ["torn"] if npz._archive.directory.end_offset < len(data) else []
        theirs = by_numpy(np.load, io.BytesIO(data))
        if not isinstance(theirs, np.lib.npyio.NpzFile):
            return [*labels, "read, and np.load refuses it"]
        difference = archives_differ(npz, theirs)
        if difference is None:
            return [*labels, "both read the same"]
        name = explain("torn", Case(data, npz, theirs, archive=theirs.zip))
        if name is None:
            raise Violation(f"npzkit and np.load: {difference}")
        return [*labels, f"difference: {name}"]
