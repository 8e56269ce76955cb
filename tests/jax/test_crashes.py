"""Processes of JAX that are killed while they save as one: the older step is found, or the new one.

Two processes save, once, and what each does to the disk is recorded, with where they meet. Each
folder that may be left if they are killed is rebuilt from that and read, without JAX: a hundred
by default, thousands with NPZKIT_DEEP=1, 13,000 with 5.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
from pathlib import Path

import npzkit
import numpy as np
import pytest
from crash_folders import check_folders, killed_folders
from deep import amount
from jobs import run_job, value_of
from npzkit.checkpoint import CheckpointStore, latest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="JAX is not installed"
)
STATE_COUNT = amount(30, 1_000)
"""Of each of four tests."""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return the folder of a job that was recorded."""
    folder = tmp_path_factory.mktemp("job")
    for printed, code in run_job("crashes", 2, folder):
        assert code == 0, printed
    return folder


def killed_in(job: Path, name: str):
    """Yield each folder that may be left of some saves."""
    recordings = [(job / f"{name}-{number}.pickle").read_bytes() for number in range(2)]
    return killed_folders(*map(pickle.loads, recordings))


def tree_of(version: int) -> dict:
    return {"w": value_of(version), "own": value_of(version)[0], "version": version}


def checked(tree) -> int:
    """Return the version of what was loaded, all of which must be of that version."""
    expected = tree_of(int(tree["version"]))
    assert tree.keys() == expected.keys()
    assert all(np.array_equal(tree[key], expected[key]) for key in tree)
    return expected["version"]


def steps_in(folder: Path) -> dict[int, int]:
    """Return the steps in a folder, which must be sound, and their versions."""
    with CheckpointStore(folder) as store:
        steps = {step: checked(store.load(step).tree) for step in store.steps}
        assert store.latest == max(steps, default=None)
        assert store.latest is None or store.load().step == store.latest
        assert not steps or store.verify().ok
    return steps


@pytest.mark.parametrize("name", ["again", "removed", "alone"])
def test_steps_after_kills(name, job, tmp_path):
    """Wherever processes are killed, each step is what it was or what it became, and saves go on."""
    place = tmp_path / "state"

    def check(number, allowed):
        steps = steps_in(place)
        assert frozenset(steps.items()) in allowed, f"state {number}: {steps}, not {allowed}"
        if number % 5:
            return
        # Over the newest step, by one process; and after it.
        newest = max(steps, default=1)
        with CheckpointStore(place, durable=False) as store:
            store.save(newest, tree_of(8), shard_size=200)
        assert steps_in(place) == steps | {newest: 8}
        with CheckpointStore(place, keep=latest(1), durable=False) as store:
            store.save(9, tree_of(9))
        assert steps_in(place) == {9: 9}
        assert sorted(os.listdir(place)) == [".npzkit-checkpoints.lock", "step_00000009"]

    count = check_folders(killed_in(job, name), job / name, place, STATE_COUNT, check)
    assert count >= min(STATE_COUNT, 1_000) / 2


def test_an_archive_after_kills(job, tmp_path):
    """Wherever processes are killed in `npzkit.save`, the older archive is found, or the new one."""
    place = tmp_path / "state"

    def archive():
        if not (place / "run" / "index.npz").exists():
            return frozenset()
        assert npzkit.verify(place / "run").ok
        return frozenset({(0, checked(npzkit.load_tree(place / "run")))})

    def check(number, allowed):
        assert archive() in allowed, f"state {number}: {archive()}, not {allowed}"
        with npzkit.ShardedWriter(place / "run") as writer:
            writer.update({"w": value_of(9)})
            writer.commit()
        with npzkit.open(place / "run") as npz:
            assert np.array_equal(npz["w"], value_of(9))

    count = check_folders(killed_in(job, "archive"), job / "archive", place, STATE_COUNT, check)
    assert count >= min(STATE_COUNT, 1_000) / 2
