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


# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - All processes are told of each failure, by `Processes.each`: what a process has done, or why
#   it could not, is the value of its key at a barrier. So all of them raise an error in the same
#   call, and the numbers that name their calls stay the same.
# - The client of `jax.distributed` is private (`jax._src.distributed.global_state.client`), and
#   there is no other way to the barriers of its service. Those of
#   `jax.experimental.multihost_utils` are computations on all devices, which a thread must not
#   start beside others.
# - A save is one of all processes if an array is spread, not if there are several processes: a
#   store of each process for its own arrays works as without JAX.
# - A frozen array cannot be spread. A shard can be linked if none of its parts changed, so each
#   process would have to find its own shards again, and only while arrays are spread in the same
#   way.
# - A process that loads its parts does not note a step as sound, because it has not read the
#   others.
