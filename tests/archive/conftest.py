"""An archive to read, as most tests of reading want it."""

from __future__ import annotations

import npzkit
import pytest


@pytest.fixture(params=["stored", "deflated"])
def path(request, tmp_path, arrays):
    """An archive of all kinds of arrays, stored or deflated."""
    path = tmp_path / "all.npz"
    npzkit.save(path, arrays, compression=request.param, metadata={"step": 7})
    return path
