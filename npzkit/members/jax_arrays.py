"""JAX's arrays, random keys and pytrees: as arrays and items by name, and back.

Owns what of such an array NumPy's cannot hold (its devices, whether its type is
weak, the kind of a random key), and the items of a class that is registered as a
pytree. Never imports jax: whoever has such a value has imported it. Other arrays of
JAX need nothing to be saved, because NumPy makes arrays of them.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from types import NoneType
from typing import Any

import numpy as np

from npzkit.imported import imported

_KNOWN = {dict, list, NoneType, OrderedDict, defaultdict}


def is_array(value: object) -> bool:
    """Return whether a value is an array of JAX, or the description of one."""
    jax = imported("jax")
    return jax is not None and isinstance(value, (jax.Array, jax.ShapeDtypeStruct))


def is_random_key(value: object) -> bool:
    """Return whether a value is an array of random keys, as `jax.random.key` makes them."""
    return is_array(value) and _holds_keys(value)


def _holds_keys(value: Any) -> bool:
    dtypes = imported("jax").dtypes
    return bool(dtypes.issubdtype(value.dtype, dtypes.prng_key))


def key_data(keys: Any) -> np.ndarray[Any, Any]:
    """Return the integers of random keys."""
    return np.asarray(imported("jax").random.key_data(keys))


def form_of(like: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape and dtype of the array that one of JAX's is saved as."""
    if _holds_keys(like):
        jax = imported("jax")
        like = jax.eval_shape(jax.random.key_data, like)
    return tuple(like.shape), like.dtype


def number_like(number: Any, like: Any) -> np.ndarray[Any, Any] | None:
    """Return the array of a Python number, or None if the example would change its value.

    A weak type is that of a Python number itself: `jax.eval_shape` describes numbers so.
    """
    if not isinstance(number, (bool, int, float, complex)):
        return None
    if np.asarray(number).dtype.kind != like.dtype.kind:
        return None
    try:
        array = np.asarray(number, like.dtype)
    except OverflowError:
        return None
    return array if like.weak_type or array.item() == number else None


def array_like(array: Any, like: Any) -> Any:
    """Return a JAX array with the devices, sharding and kind of type of an example.

    Parameters
    ----------
    array : numpy.ndarray
        Of the form of `like`. It must not be changed any more.
    like : jax.Array or jax.ShapeDtypeStruct
    """
    jax = imported("jax")
    if _holds_keys(like):
        # Keys that are only described do not say what their algorithm is.
        algorithm = jax.random.key_impl(jax.numpy.empty((), like.dtype))
        array = jax.random.wrap_key_data(array, impl=algorithm)
    elif like.weak_type:
        array = _weak(jax.numpy, array)
    return jax.device_put(array, like.sharding)


def _weak(jnp: Any, array: Any) -> Any:
    """Return a JAX array whose dtype gives way to others, as that of a Python number does."""
    zeros = jnp.full(array.shape, array.dtype.type(0).item())
    return zeros.at[...].set(array) if zeros.dtype == array.dtype else array


def is_pytree(value: object) -> bool:
    """Return whether a value is of a class that its author has registered with JAX.

    JAX knows Python's own containers and None without that.
    """
    jax = imported("jax")
    if jax is None or isinstance(value, tuple) or type(value) in _KNOWN:
        return False
    return not jax.tree_util.all_leaves((value,))


def pytree_items(value: Any) -> dict[Any, Any]:
    """Return what is inside a pytree, by the names or numbers that its class gives."""
    entries, _ = _flattened(value)
    return {_name_of(path[0]): item for path, item in entries}


def _flattened(value: Any) -> tuple[Any, Any]:
    """Return the items of a pytree with their paths, and its structure, one level deep."""
    flatten = imported("jax").tree_util.tree_flatten_with_path
    return flatten(value, is_leaf=lambda node: node is not value)  # type: ignore[no-any-return]


def _name_of(entry: Any) -> Any:
    """Return the name in an entry of a path: of an attribute, an index or a key."""
    names = (getattr(entry, kind, None) for kind in ("name", "idx", "key"))
    return next((name for name in names if isinstance(name, (str, int))), str(entry))


def rebuilt_pytree(value: Any, items: dict[Any, Any]) -> Any:
    """Return a pytree of the same class with other items, in the same order."""
    _, structure = _flattened(value)
    return structure.unflatten(items.values())
