"""Fixtures of the tests of sharded archives."""

from __future__ import annotations

import pytest
from sharded import WHOLE, write_run


@pytest.fixture
def whole():
    """The array that `folder` has in four parts."""
    return WHOLE.copy()


@pytest.fixture
def folder(tmp_path):
    """A sharded archive of two shards; see `write_run`."""
    return write_run(tmp_path / "run")
