"""Checkpoints of `torch.distributed.checkpoint` (DCP) in sharded archives.

Pass a writer to ``dcp.save`` or ``dcp.async_save``, and a reader to ``dcp.load``. The
folder is a sharded archive, which `npzkit.open` reads as well. This package needs PyTorch.

>>> import tempfile, torch, npzkit.torch
>>> import torch.distributed.checkpoint as dcp
>>> folder = tempfile.mkdtemp()
>>> state = {"weight": torch.ones(2, 3), "step": 7}
>>> _ = dcp.save(state, storage_writer=npzkit.torch.NpzStorageWriter(folder), no_dist=True)
>>> npzkit.open(folder)["weight"].shape
(2, 3)
"""

from __future__ import annotations

try:
    import torch.distributed.checkpoint as _checkpoint  # noqa: F401 - only to say what is missing
except ImportError as error:
    raise ImportError(
        "npzkit.torch needs PyTorch 2.13 or newer; install it: python -m pip install torch"
    ) from error

from npzkit.torch.storage_reader import NpzStorageReader
from npzkit.torch.storage_writer import NpzStorageWriter

__all__ = ["NpzStorageReader", "NpzStorageWriter"]
