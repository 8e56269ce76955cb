"""Containers of nested data: what is inside one, and one like it with other items.

Owns which values are containers (mappings, lists, tuples, namedtuples,
dataclasses, JAX's pytrees), and their types. Knows neither archives nor notes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from npzkit.members.jax_arrays import is_pytree, pytree_items, rebuilt_pytree
from npzkit.members.records import fields_of, is_dataclass, is_namedtuple, is_record
from npzkit.members.tensors import is_tensor


def children_of(node: Any) -> dict[Any, Any] | None:
    """Return the items of a container by name or index, or None for a leaf.

    Examples
    --------
    >>> children_of(["a", "b"])
    {0: 'a', 1: 'b'}
    """
    if type(node) is np.ndarray or is_tensor(node):
        # Most leaves.
        return None
    if isinstance(node, Mapping):
        return pytree_items(node) if is_pytree(node) else dict(node)
    if isinstance(node, (list, tuple)):
        return fields_of(node) if is_namedtuple(node) else dict(enumerate(node))
    return fields_of(node) if is_record(node) else None


def child_key(key: str, name: object) -> str:
    """Return the key of an item of the container at `key`."""
    return f"{key}/{name}" if key else str(name)


def is_within(key: str, prefix: str) -> bool:
    """Return whether a key is `prefix`, or is inside it; an empty prefix has all keys."""
    return not prefix or key == prefix or key.startswith(prefix + "/")


def rebuilt(node: Any, items: dict[Any, Any]) -> Any:
    """Return a container of the same type with other items."""
    if type(node) is dict:
        return items
    if is_pytree(node):
        return rebuilt_pytree(node, items)
    if isinstance(node, (dict, list)) or is_dataclass(type(node)):
        new = copy.copy(node)
        if not is_dataclass(type(node)):
            new.clear()
        return update(new, items)
    if isinstance(node, Mapping):
        return type(node)(items)  # type: ignore[call-arg]
    if is_namedtuple(node):
        return type(node)._make(items.values())
    return type(node)(items.values())


def is_changeable(node: Any) -> bool:
    """Return whether the items of a container can be replaced by others."""
    if isinstance(node, (MutableMapping, list)) or is_dataclass(type(node)):
        is_frozen = is_dataclass(type(node)) and type(node).__dataclass_params__.frozen
        return not (is_frozen or is_pytree(node))
    return False


def update(node: Any, items: dict[Any, Any]) -> Any:
    """Put items into a container, and return it, or a new one if it cannot be changed."""
    if isinstance(node, MutableMapping):
        node.update(items)
    elif isinstance(node, list):
        node[:] = items.values()
    elif is_dataclass(type(node)):
        for name, value in items.items():
            # Also for a class that is frozen: `rebuilt` has made a copy.
            object.__setattr__(node, name, value)
    return node
