"""The two places of checkpoints: a folder, and a store of objects."""

from __future__ import annotations

import contextlib

import pytest


@pytest.fixture(params=["folder", "store"])
def place(request, tmp_path):
    """A folder, and a store of objects, which is empty. `on_disk` is for tests of folders alone."""
    if request.param == "folder":
        yield str(tmp_path / "run")
        return
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    yield "memory://checkpoints/run"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm("/checkpoints", recursive=True)
