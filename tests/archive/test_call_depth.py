"""How few calls lie between ``npz[key]`` and the operating system."""

from __future__ import annotations

import os

import npzkit
import numpy as np
import pytest
from call_depth import count_calls

pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="needs preadv")

MOST = 8
"""Functions of npzkit on the way from a user's call to the system's."""


@pytest.fixture(params=[10, 12_500], ids=["80 bytes", "100 kB"])
def npz(request, tmp_path):
    path = tmp_path / "a.npz"
    npzkit.save(path, {"first": np.arange(1.0), "second": np.arange(float(request.param))})
    with npzkit.open(path) as opened:
        yield opened


@pytest.mark.parametrize("is_cached", [False, True], ids=["new header", "known header"])
def test_reading(npz, is_cached):
    """An array of one block passes few functions of npzkit from the user to the system call."""
    if is_cached:
        npz["second"]
    found = count_calls(lambda: npz["second"])
    assert 0 < found.depth <= MOST, found.path
