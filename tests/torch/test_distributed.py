"""Jobs of several processes on one machine, by gloo: saved by four, loaded by any number."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import npzkit
import numpy as np
import pytest
from deep import needs_deep

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402 - after the check
import torch.distributed.checkpoint as dcp  # noqa: E402
from npzkit.torch import NpzStorageReader, NpzStorageWriter  # noqa: E402

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch is without gloo"
)
JOB = Path(__file__).with_name("job.py")


def run(case, size, folder, meeting):
    """Run a job, and return what each rank printed, and its exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(size)}
    environment["PYTHONPATH"] = str(Path(npzkit.__file__).parent.parent)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(JOB), case, str(rank), str(size), str(meeting), str(folder)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        return [(rank.communicate(timeout=240)[0], rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            with contextlib.suppress(OSError):
                rank.kill()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the folder of what a job of four saved, until one of them was killed."""
    folder = tmp_path_factory.mktemp("job")
    ranks = run("several", 4, folder, folder / "meeting")
    for printed, _ in ranks:
        assert "done" in printed.splitlines(), printed
    assert ranks[3][1] == 9
    return folder


def full(name):
    shape = {"even": (8, 4), "uneven": (7, 4), "short": (3, 2), "cube": (4, 6, 5)}[name]
    return np.arange(np.prod(shape), dtype="f4").reshape(shape)


def test_four_ranks_save_and_load(saved):
    """Placements, FSDP2, the background, failures and cached plans work in a job of four."""
    assert (saved / "line" / "index.npz").exists()


def test_without_torch(saved):
    """`npzkit.open` reads what four ranks saved, and `np.load` opens each of their files."""
    with npzkit.open(saved / "line") as npz:
        for name in ("even-0", "uneven-1", "short-0", "cube-2"):
            assert np.array_equal(npz[name], full(name.partition("-")[0]))
        assert len(npz.parts("uneven-0")) == 4
        assert len(npz.parts("short-0")) == 3  # one rank has no rows
        assert len(npz.parts("even-2")) == 1  # a replica is saved once
        assert npz["plain"].shape == (8, 4)
    assert npzkit.verify(saved / "line").ok
    shards = sorted(saved.glob("line/shard-*.npz"))
    assert len(shards) == 4
    rows = []
    for shard in shards:
        with np.load(shard) as arrays:
            rows.append(len(arrays["even-0"]))
    assert rows == [2, 2, 2, 2]


def test_loaded_without_distributed(saved):
    """One process loads what four saved, without collectives, with the values."""
    state = {
        "uneven-0": torch.zeros(7, 4),
        "cube-1": torch.zeros(4, 6, 5),
        "rate": 0.0,
        "rank": None,
    }
    load(saved / "line", state)
    assert np.array_equal(state["uneven-0"], full("uneven"))
    assert np.array_equal(state["cube-1"], full("cube"))
    assert (state["rate"], state["rank"]) == (0.5, ("x", 4))


def load(folder, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch.distributed, which is not initialized
        dcp.load(state, storage_reader=NpzStorageReader(folder), no_dist=True)


@pytest.mark.parametrize("rank", range(8))
def test_each_of_eight_ranks_loads_its_part(saved, rank):
    """A rank of eight gets its part of what four saved."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
    try:
        mesh = init_device_mesh("cpu", (8,))
        state = {
            f"{name}-0": distribute_tensor(torch.zeros(full(name).shape), mesh, [Shard(axis)])
            for name, axis in (("even", 0), ("uneven", 0), ("cube", 2))
        }
        load(saved / "line", state)
        for name, axis in (("even", 0), ("uneven", 0), ("cube", 2)):
            parts = torch.from_numpy(full(name)).chunk(8, axis)
            local = state[f"{name}-0"].to_local()
            assert torch.equal(local, parts[rank]) if rank < len(parts) else not local.numel()
    finally:
        dist.destroy_process_group()


@needs_deep
def test_eight_ranks_load(saved, tmp_path):
    """A job of eight loads what one of four saved."""
    for printed, code in run("eight", 8, saved, tmp_path / "meeting"):
        assert code == 0, printed


def test_a_killed_rank_leaves_the_old_checkpoint(saved):
    """A rank is killed while it saves: the old checkpoint stays, the next save cleans up."""
    folder = saved / "killed"
    with npzkit.open(folder) as npz:
        assert npz.files == ["x"]
        assert np.array_equal(npz["x"], full("even"))
    assert len(os.listdir(folder)) > 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"y": torch.ones(2)}, storage_writer=NpzStorageWriter(folder), no_dist=True)
    assert len(os.listdir(folder)) == 2
    with npzkit.open(folder) as npz:
        assert npz.files == ["y"]
