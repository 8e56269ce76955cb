"""Fixtures of the tests of sharded archives."""

from __future__ import annotations

import shutil

import pytest
from sharded import WHOLE, write_run


@pytest.fixture
def whole():
    """The array that `folder` has in four parts."""
    return WHOLE.copy()


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("written") / "run")


@pytest.fixture
def folder(tmp_path, written):
    """A sharded archive of two shards; see `write_run`."""
    return shutil.copytree(written, tmp_path / "run")
