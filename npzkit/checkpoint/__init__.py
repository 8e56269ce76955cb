"""Checkpoints of training runs: one file per step, checked, and complete or not there.

>>> import tempfile, numpy as np
>>> from npzkit.checkpoint import CheckpointStore, latest
>>> with CheckpointStore(tempfile.mkdtemp(), keep=latest(3)) as store:
...     saving = store.save(100, {"model": {"w": np.eye(2)}, "lr": 0.1}, metrics={"loss": 0.5})
...     checkpoint = store.load()
>>> checkpoint.step, checkpoint.tree["lr"], checkpoint.metrics
(100, 0.1, {'loss': 0.5})
"""

from __future__ import annotations

from npzkit.checkpoint.background import Saving
from npzkit.checkpoint.catalog import StoreReport
from npzkit.checkpoint.loading import Checkpoint
from npzkit.checkpoint.policies import Policy, best, every, latest
from npzkit.checkpoint.store import CheckpointStore
from npzkit.errors import DamagedCheckpointError, DamagedCheckpointWarning, NoCheckpointError

__all__ = [
    "Checkpoint", "CheckpointStore", "DamagedCheckpointError", "DamagedCheckpointWarning",
    "NoCheckpointError", "Policy", "Saving", "StoreReport", "best", "every", "latest",
]  # fmt: skip
