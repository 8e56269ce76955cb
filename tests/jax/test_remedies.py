"""Remedies of several processes of JAX are followed: in one that takes itself for a job of one."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore
from npzkit.errors import NpzkitError, UnsupportedError

jax = pytest.importorskip("jax", reason="JAX is not installed")

from npzkit.jax import processes  # noqa: E402 - after the check that JAX is installed
from npzkit.members import tensors  # noqa: E402


class Service:
    """What `jax.distributed.initialize` starts, for a job of one process."""

    def __init__(self):
        self.values = {}
        self.is_complete = True

    def key_value_set(self, key, value):
        self.values[key] = value

    def wait_at_barrier(self, name, timeout):
        if not self.is_complete:
            raise RuntimeError(f"DEADLINE_EXCEEDED: Barrier timed out. Id: {name}")

    def key_value_dir_get(self, prefix):
        return [found for found in self.values.items() if found[0].startswith(prefix)]


@pytest.fixture
def initialize(monkeypatch):
    """Take arrays for spread ones; call to do what `jax.distributed.initialize` does."""
    for module in (tensors, processes, npzkit.jax):
        monkeypatch.setattr(module, "is_spread", tensors.is_jax_array)
    monkeypatch.setattr(processes, "_CALLS", itertools.count())
    state = SimpleNamespace(client=None, process_id=0)
    monkeypatch.setattr(processes, "distributed", SimpleNamespace(global_state=state))

    def initialize():
        state.client = Service()
        return state.client

    return initialize


@pytest.fixture
def tree():
    return {"a": {"w": jax.numpy.arange(3)}}


def check(path):
    with npzkit.open(path) as npz:
        assert npz["a/w"].tolist() == [0, 1, 2]


@pytest.mark.remedy("Call jax.distributed.initialize() when the program starts.")
def test_processes_that_do_not_know_each_other(tmp_path, initialize, tree):
    """Without the service they cannot agree, and with it they save."""
    with pytest.raises(UnsupportedError, match="do not know each other"):
        npzkit.save(tmp_path / "run", tree)
    initialize()
    npzkit.save(tmp_path / "run", tree)
    check(tmp_path / "run")


@pytest.mark.remedy("Start the job again, with this call in each process, and the same tree.")
def test_a_process_that_does_not_come(tmp_path, initialize, tree):
    """The others are told; a job in which all come saves."""
    initialize().is_complete = False
    with pytest.raises(NpzkitError, match="not all processes came to this call"):
        npzkit.save(tmp_path / "run", tree)
    initialize()
    npzkit.save(tmp_path / "run", tree)
    check(tmp_path / "run")


@pytest.mark.remedy(
    "Name a folder, which gets several files. npzkit.convert(folder, 'a.npz') makes"
)
def test_one_file_is_made_of_a_folder(tmp_path, initialize, tree):
    """Processes cannot write to one file; the folder that they write is converted to one."""
    initialize()
    with pytest.raises(UnsupportedError, match="several processes cannot write to one file"):
        npzkit.save(tmp_path / "a.npz", tree)
    npzkit.save(tmp_path / "run", tree)
    npzkit.convert(tmp_path / "run", tmp_path / "a.npz")
    check(tmp_path / "a.npz")


@pytest.mark.remedy("npzkit.save and CheckpointStore.save save what several processes have")
def test_what_numpy_cannot_have(tmp_path, initialize, tree):
    """One process cannot make an array of what all have; together they save it."""
    initialize()
    elsewhere = jax.numpy.arange(3)
    elsewhere.delete()
    with pytest.raises(NpzkitError, match="NumPy cannot make an array of this object"):
        npzkit.savez(tmp_path / "a.npz", w=elsewhere)
    npzkit.save(tmp_path / "run", tree)
    check(tmp_path / "run")
    with CheckpointStore(tmp_path / "steps", durable=False) as store:
        check(store.save(1, tree).path)


@pytest.mark.remedy(
    "Pass frozen=() for this step. Save what does not change once, in a store of its own."
)
def test_frozen_arrays_of_several_processes(tmp_path, initialize, tree):
    """A step of theirs has no frozen arrays; those are saved once, elsewhere."""
    initialize()
    with CheckpointStore(tmp_path / "run", frozen="a/*", durable=False) as store:
        with pytest.raises(UnsupportedError, match="cannot be linked to older ones"):
            store.save(1, tree)
        store.save(1, tree, frozen=())
        check(store.path(1))
    with CheckpointStore(tmp_path / "fixed", durable=False) as store:
        store.save(0, tree)
        assert np.asarray(store.load().tree["a"]["w"]).tolist() == [0, 1, 2]
