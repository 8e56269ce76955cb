"""Fixtures for trees."""

from __future__ import annotations

import pytest
from npzkit.trees import loaded_tree


@pytest.fixture(params=["small", "large"])
def any_size(request, monkeypatch):
    """Fill examples of a few bytes in the way of small ones, and in that of large ones."""
    if request.param == "large":
        monkeypatch.setattr(loaded_tree, "_READ_ONCE_SIZE", 0)
