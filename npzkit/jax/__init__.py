"""Arrays of JAX that are spread over processes. Only here is JAX imported.

Decides whether all processes save, or load, as one: if they have such an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from npzkit.jax.agreement import Agreement
from npzkit.members.tensors import is_spread
from npzkit.trees.likeness import spread_in

if TYPE_CHECKING:
    from npzkit.jax.processes import JointSave


def agreement_of(example: Any) -> Agreement:
    """Return what has all processes load the same, if an example is spread over them."""
    if not spread_in(example):
        return Agreement()
    from npzkit.jax.processes import Processes

    return Processes()


def joint_save(arrays: Mapping[str, Any]) -> JointSave | None:
    """Return what saves arrays by all processes, or None if this one has all of them."""
    if not any(map(is_spread, arrays.values())):
        return None
    from npzkit.jax.processes import JointSave

    return JointSave(arrays)
