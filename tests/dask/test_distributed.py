"""dask's workers as processes of their own, one of which is killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import npzkit
import numpy as np
import pytest
from deep import amount
from npzkit.datasets.reopened import kept_open
from npzkit.errors import StaleArchiveError
from npzkit.files.urls import find_location
from npzkit.stores.objects import objects_at
from s3 import needs_s3, s3_server

distributed = pytest.importorskip("dask.distributed", reason="dask.distributed is not installed")

import dask.array as da  # noqa: E402 - after the check that dask.distributed is installed
from npzkit.dask import from_npz, to_npz  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"
    ),
    pytest.mark.skipif(
        kept_open(64) < 64, reason="a cluster needs more files open than the process may have"
    ),
]


@pytest.fixture(scope="module")
def cluster():
    """Two workers with a process each."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
        silence_logs="CRITICAL",
    ) as found:  # fmt: skip
        yield found


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as found:
        try:
            found.wait_for_workers(2, timeout=20)
        except TimeoutError:
            # dask does not always start another worker for one that was killed: forget that one.
            cluster.scale(1)
            cluster.scale(2)
            found.wait_for_workers(2, timeout=60)
        yield found


def slowly(array):
    """Return the array, of which each block takes a while."""

    def wait(block):
        time.sleep(0.02)
        return block

    return array.map_blocks(wait, dtype=array.dtype)


def shards(folder):
    return {path.name for path in Path(folder).glob("shard-*.npz")}


def check(folder, key, expected, *, was_killed=False):
    """Check an array of an archive, and that its folder has nothing else.

    A worker that was killed may have left a file that was not complete.
    """
    with npzkit.open(folder) as npz:
        assert npz.verify()
        np.testing.assert_array_equal(npz[key], expected)
        assert shards(folder) == {part.shard for each in npz for part in npz.parts(each)}
    others = {path.name for path in Path(folder).iterdir()} - shards(folder) - {"index.npz"}
    assert not others or (was_killed and len(others) == 1 and others.pop().startswith(".npzkit-"))


def kill_one(cluster):
    pid = next(iter(cluster.workers.values())).pid
    os.kill(pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def test_arrays_go_there_and_back(client, tmp_path):
    """Two processes write an archive and read it, with what they share computed once."""
    x = da.arange(100_000, chunks=5000)
    to_npz(tmp_path / "run", {"x": x, "y": x * 2}, metadata={"step": 1}, shard_size="100kB")
    check(tmp_path / "run", "y", np.arange(100_000) * 2)
    found = from_npz(tmp_path / "run", "y", chunks=7000)
    assert int(found.sum().compute()) == 99_999 * 100_000


@pytest.mark.parametrize("killed_after", range(0, 40, 40 // amount(2, 10)))
def test_a_worker_is_killed_while_an_archive_is_written(client, cluster, tmp_path, killed_after):
    """The archive is complete, and the folder has only its shards; the old one was there till then."""
    folder = tmp_path / "run"
    to_npz(folder, {"x": da.zeros(5)})
    old = len(shards(folder))
    x = slowly(da.arange(40_000, chunks=1000))
    saving = client.compute(to_npz(folder, {"x": x}, shard_size=1, compute=False))
    wait_for(lambda: len(shards(folder)) > old + killed_after * 3 // 4)
    with npzkit.open(folder) as npz:
        assert saving.done() or len(npz["x"]) == 5
    kill_one(cluster)
    saving.result(timeout=120)
    check(folder, "x", np.arange(40_000), was_killed=True)


def test_a_killed_workers_chunks_are_read_again(client, cluster, tmp_path):
    """`persist` on workers reads again what a killed one had."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(10_000)})
    kept = client.persist(from_npz(tmp_path / "a.npz", "x", chunks=500) + 1)
    distributed.wait(kept)
    kill_one(cluster)
    assert int(kept.sum().compute()) == 10_000 * 10_001 // 2


def test_a_task_that_fails_is_tried_again(client, tmp_path):
    """With dask's retries, an error that passes leaves nothing behind."""
    mark = tmp_path / "failed"

    def fail_once(block, block_info=None):
        if block_info[0]["chunk-location"] == (3,) and not mark.exists():
            mark.touch()
            raise OSError("the network is away")
        return block

    x = da.arange(1000, chunks=100).map_blocks(fail_once, dtype="i8")
    saving = to_npz(tmp_path / "run", {"x": x}, shard_size=1, compute=False)
    client.compute(saving, retries=2).result(timeout=60)
    assert mark.exists()
    check(tmp_path / "run", "x", np.arange(1000))


def test_an_error_of_a_worker_arrives(client, tmp_path):
    """A file that was replaced is a StaleArchiveError here, with its path."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(10)})
    found = from_npz(path, "x", chunks=5)
    npzkit.save(path, {"x": np.arange(11)})
    with pytest.raises(StaleArchiveError, match=r"a\.npz"):
        found.compute()


def test_processes_without_a_cluster(tmp_path):
    """The scheduler of processes, which are spawned, writes and reads."""
    x = da.arange(100, chunks=50)
    to_npz(tmp_path / "run", {"x": x}, shard_size=1, compute=False).compute(scheduler="processes")
    check(tmp_path / "run", "x", np.arange(100))
    found = from_npz(tmp_path / "run", "x", chunks=50).sum().compute(scheduler="processes")
    assert found == 99 * 50


@needs_s3
def test_workers_share_a_store_alone(client, cluster, tmp_path):
    """Workers write to S3 while one is killed, and read the archive from there."""
    with s3_server() as options:
        x = slowly(da.arange(40_000, chunks=1000))
        saving = to_npz(
            "s3://data/dask-run", {"x": x}, shard_size=1, compute=False, storage_options=options
        )
        running = client.compute(saving)
        time.sleep(0.5)
        kill_one(cluster)
        running.result(timeout=120)
        found = from_npz("s3://data/dask-run", "x", chunks=4000, storage_options=options)
        np.testing.assert_array_equal(found.compute(), np.arange(40_000))
        with npzkit.open("s3://data/dask-run", storage_options=options) as npz:
            named = {part.shard for part in npz.parts("x")}
            place = objects_at(find_location("s3://data/dask-run", options))
            listed = set(place.listed())
            # The worker that was killed may have completed a shard that nobody was told of.
            assert listed >= named | {"index.npz"}
            assert len(listed) <= len(named) + 2
