"""PyTorch's tensors in archives: dicts of tensors, and checkpoints of many processes.

`load_file` and `save_file` are those of safetensors, for archives. `torch.distributed.checkpoint`
(DCP) takes a `NpzStorageWriter` in ``dcp.save`` and ``dcp.async_save``, and a `NpzStorageReader`
in ``dcp.load``. The folder is a sharded archive, which `npzkit.open` reads as well. This
package needs PyTorch, and for DCP PyTorch 2.13 or newer.

>>> import tempfile, torch, npzkit.torch
>>> import torch.distributed.checkpoint as dcp
>>> folder = tempfile.mkdtemp()
>>> state = {"weight": torch.ones(2, 3), "step": 7}
>>> writer = npzkit.torch.NpzStorageWriter(folder)
>>> _ = dcp.save(state, storage_writer=writer, no_dist=True)
>>> npzkit.torch.load_file(folder)["weight"].shape
torch.Size([2, 3])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401 - only to say what is missing
except ImportError as error:
    raise ImportError(
        "npzkit.torch needs PyTorch; install it: python -m pip install torch"
    ) from error

from npzkit.torch.tensor_files import load_file, save_file

if TYPE_CHECKING:
    from npzkit.torch.storage_reader import NpzStorageReader
    from npzkit.torch.storage_writer import NpzStorageWriter

__all__ = ["NpzStorageReader", "NpzStorageWriter", "load_file", "save_file"]

_HOMES = {"NpzStorageReader": "storage_reader", "NpzStorageWriter": "storage_writer"}
"""The module of each class for DCP, which is imported on first use: that takes half a second."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'npzkit.torch' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"npzkit.torch.{_HOMES[name]}"), name)
    return found


# -- decisions -----------------------------------------------------------------------------------
# Change one if you can show something better.
#
# - A part may be read without its CRC-32, if several ranks share it: the CRC-32 covers all of the
#   part, and each rank reads only its own bytes. Parts that a rank reads completely are always
#   compared.
# - The chunks that planners see are the parts in the index. Any box of a tensor can be read, so
#   nothing else about chunks is stored.
# - Values are encoded by npzkit, from `planner.lookup_object`. `resolve_data` would give a
#   pickle. Each value comes back with its own type, so a type that has no note is refused: an
#   enum would come back as an int.
# - `load_bytes` of a planner takes what `torch.save` writes, so the reader makes it in memory.
#   Equal notes share it: an optimizer repeats its options for each parameter.
# - The name of the attempt travels in `SavePlan.storage_data`. Planners that cache their plans
#   keep that of an older save. This does no harm: the records that ranks return name the shards
#   that count.
# - Leftovers of any age are removed, because PyTorch has one job save to a folder at a time, and
#   the coordinator lists them before any rank writes.
# - Tensors below 1 MiB are read by one thread, large ones by several, for the same reason as
#   small compressed members.
# - Tied weights are saved once per name, as PyTorch's planner has them. Two keys of one array
#   would need an index that `ShardedFile` does not have.
