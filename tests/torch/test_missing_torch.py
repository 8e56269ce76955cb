"""npzkit where PyTorch is not installed."""

from __future__ import annotations

import sys

import npzkit
import pytest


def test_missing_torch(monkeypatch):
    """Without PyTorch, the error says what to install."""
    for name in [name for name in sys.modules if name.startswith("npzkit.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(npzkit), "torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.distributed.checkpoint", None)
    with pytest.raises(AttributeError, match="pip install torch"):
        npzkit.torch
