"""What the tests of dask share."""

from __future__ import annotations

import pytest


@pytest.fixture
def one_thread():
    """Have dask compute in this thread."""
    dask = pytest.importorskip("dask", reason="dask is not installed")
    with dask.config.set(scheduler="synchronous"):
        yield
