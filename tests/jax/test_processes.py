"""Arrays of JAX that are spread over processes: saved by four, loaded by any number."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import npzkit
import numpy as np
import pytest
from jobs import ends_of, free_address, run_job, start, value_of
from npzkit.checkpoint import CheckpointStore

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="JAX is not installed"
)
EXAMPLE = Path(npzkit.__file__).parent / "guide" / "examples" / "train_jax_processes.py"
BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "jax_processes.py"
WHOLE = value_of(0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the folder of what a job of four saved, until one of them was killed."""
    folder = tmp_path_factory.mktemp("job")
    found = run_job("several", 4, folder)
    for printed, _ in found:
        assert "done" in printed.splitlines(), printed
    assert found[3][1] == 9
    assert all(code for _, code in found)
    skipped = {line for printed, _ in found for line in printed.splitlines() if "skipped" in line}
    assert len(skipped) == 1  # all processes skip the same steps
    return folder


def test_four_processes_save_and_load(saved):
    """Each process writes a file of its own parts, which `np.load` opens."""
    with npzkit.open(saved / "both") as npz:
        assert npz.files == ["w", "b", "scale", "keys", "step", "own"]
        assert len(npz.parts("w")) == 8
        assert len(npz.parts("keys")) == 2  # a replica is saved once
        assert np.array_equal(npz["w"], WHOLE)
        assert npz["keys"].shape == (8, 2)
    assert npzkit.verify(saved / "both").ok
    shards = sorted((saved / "both").glob("shard-*.npz"))
    rows = []
    for shard in shards:
        with np.load(shard) as arrays:
            rows += [arrays[key] for key in arrays.files if key.startswith("w")]
    assert len(shards) == 4
    assert sum(part.sum() for part in rows) == WHOLE.sum()


def test_two_processes_load(saved):
    """A job of two loads what one of four saved, and goes on after a process was killed."""
    with CheckpointStore(saved / "killed") as store:
        assert store.steps == (1,)
        assert store.verify().ok
    for printed, code in run_job("others", 2, saved):
        assert code == 0, printed
    assert CheckpointStore(saved / "killed").verify().ok


def test_one_process_loads(saved):
    """Without `jax.distributed`, an example decides where the arrays are."""
    import jax

    like = {"w": jax.ShapeDtypeStruct((8, 16), "f4"), "step": 0}
    loaded = npzkit.load_tree(saved / "tensor", like=like, only=["w", "step"])
    assert isinstance(loaded["w"], jax.Array)
    assert np.array_equal(loaded["w"], WHOLE)
    assert CheckpointStore(saved / "steps").load().step == 3


def test_the_example_goes_on_with_another_number_of_processes(tmp_path):
    """Two processes are killed while they train, and one ends the run with the same losses."""
    ((whole, code),) = ends_of([start(EXAMPLE, tmp_path / "whole")])
    assert code == 0, whole
    folder, address = tmp_path / "killed", free_address()
    pair = [start(EXAMPLE, folder, number, 2, address) for number in range(2)]
    end = time.monotonic() + 240
    try:
        while len(CheckpointStore(folder).steps) < 2 and pair[0].poll() is None:
            assert time.monotonic() < end, "no second step was saved"
            time.sleep(0.01)
    finally:
        for process in pair:
            process.kill()
    killed = ends_of(pair)
    assert CheckpointStore(folder).latest is not None, killed
    ((rest, code),) = ends_of([start(EXAMPLE, folder)])
    assert code == 0, rest
    losses = [list(map(float.fromhex, text.splitlines()[-1].split())) for text in (whole, rest)]
    # Computations that are spread in another way round in another way.
    assert np.allclose(*losses, rtol=1e-4)
    assert "a new run" not in rest


def test_the_benchmark_runs():
    """Each library saves and loads each state."""
    pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")
    ((printed, code),) = ends_of([start(BENCHMARK, "--quick", "--rounds", "1")])
    assert code == 0, printed
    assert printed.count("times as fast") == 4
