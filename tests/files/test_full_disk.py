"""A disk that is full: the error names the file, and what was there before stays."""

from __future__ import annotations

import contextlib
import errno
import os

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore

ROOT = os.environ.get("NPZKIT_FULL_DISK", "")
pytestmark = pytest.mark.skipif(not ROOT, reason="needs a small disk: NPZKIT_FULL_DISK=folder")
LARGE = np.random.default_rng(0).random(1 << 20)


def append(path):
    """Add a large array to an archive."""
    with npzkit.NpzWriter(path, "a") as writer:
        writer["large"] = LARGE


def create(path):
    """Add a large array that is filled through a map."""
    with (
        npzkit.NpzWriter(path, "a") as writer,
        writer.create("large", LARGE.shape, LARGE.dtype) as out,
    ):
        out[:] = LARGE


def rows(path):
    """Add a large array row by row."""
    with (
        npzkit.NpzWriter(path, "a") as writer,
        writer.create("large", (None,), LARGE.dtype, compression="deflated") as out,
    ):
        for start in range(0, len(LARGE), 1000):
            out.append(LARGE[start : start + 1000])


CALLS = {
    "save": lambda path: npzkit.save(path, {"large": LARGE}),
    "many": lambda path: npzkit.save(path, {f"x{i}": LARGE[:9000] for i in range(100)}),
    "deflated": lambda path: npzkit.save(path, {"large": LARGE}, compression="deflated"),
    "append": append,
    "create": create,
    "rows": rows,
}


@pytest.fixture
def folder():
    """A folder on the disk, of which all but some hundred kilobytes are taken."""
    folder = os.path.join(ROOT, "tests")
    os.mkdir(folder)
    npzkit.save(os.path.join(folder, "a.npz"), {"x": np.arange(5)})
    with (
        open(os.path.join(folder, "taken"), "wb", buffering=0) as file,
        contextlib.suppress(OSError),
    ):
        while True:
            file.write(bytes(1 << 16))
    os.truncate(os.path.join(folder, "taken"), os.path.getsize(os.path.join(folder, "taken")) >> 1)
    yield folder
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not os.path.isdir(path):
            os.unlink(path)
            continue
        for inner in os.listdir(path):
            os.unlink(os.path.join(path, inner))
        os.rmdir(path)
    os.rmdir(folder)


@pytest.mark.parametrize("call", CALLS)
def test_a_full_disk(folder, call):
    """The archive is as it was, nothing is left beside it, and with space it works."""
    path = os.path.join(folder, "a.npz")
    with open(path, "rb") as file:
        before = file.read()
    with pytest.raises(OSError) as caught:
        CALLS[call](path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, path)
    with open(path, "rb") as file:
        assert file.read() == before
    assert sorted(os.listdir(folder)) == ["a.npz", "taken"]
    os.truncate(os.path.join(folder, "taken"), 0)
    npzkit.save(path, {"x": np.ones(3)})
    with npzkit.NpzWriter(path, "a") as writer:
        writer["y"] = np.ones(3)
    assert npzkit.verify(path).ok


def test_a_checkpoint_on_a_full_disk(folder):
    """The older step stays the newest one, and no file is left."""
    with CheckpointStore(os.path.join(folder, "run")) as store:
        store.save(1, {"x": np.ones(3)})
        with pytest.raises(OSError) as caught:
            store.save(2, {"x": LARGE})
        assert caught.value.errno == errno.ENOSPC
        assert store.steps == (1,)
        assert store.load().step == 1
