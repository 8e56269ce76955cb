"""Whether arrays are the same, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["check_same"]


def check_same(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    """Check dtype, shape and bytes."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()
