"""JAX's arrays: where an example has one, loaded data becomes one.

Owns the device and the sharding of such an array. Never imports jax: whoever
has such an example has imported it. Saving needs nothing, because NumPy makes
arrays of JAX's.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["array_like"]


def array_like(array: Any, like: Any) -> Any:
    """Return a JAX array with the sharding of an example, or `array` for other examples.

    Parameters
    ----------
    array : numpy.ndarray
        Of the example's shape and dtype. It must not be changed any more.
    like : object
        A ``jax.Array`` or ``jax.ShapeDtypeStruct``, or anything else.
    """
    jax: Any = sys.modules.get("jax")
    if jax is None or not isinstance(like, (jax.Array, jax.ShapeDtypeStruct)):
        return array
    return jax.device_put(array, like.sharding)
