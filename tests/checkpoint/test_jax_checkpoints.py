"""JAX's arrays in a checkpoint store that saves in the background."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore
from npzkit.checkpoint.folder import Folder

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a store whose saves wait until `store.go` is set."""
    go, commit = threading.Event(), Folder.commit

    def commit_late(*args):
        assert go.wait(60)
        commit(*args)

    monkeypatch.setattr(Folder, "commit", commit_late)
    with CheckpointStore(tmp_path, background=True, durable=False) as store:
        store.go = go
        yield store
        go.set()


def loaded(store):
    store.go.set()
    return store.load().tree


def test_an_array_that_is_donated_during_a_save(store):
    """A computation may take over the memory of an array whose save is under way."""
    added = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.arange(1 << 16, dtype=jnp.float32)
    store.save(1, {"x": x})
    for _ in range(3):
        x = added(x)
    x.block_until_ready()
    assert np.array_equal(loaded(store)["x"], np.arange(1 << 16))


@pytest.mark.parametrize("make", [jax.device_put, jnp.from_dlpack])
def test_an_array_that_uses_the_memory_of_another(store, make):
    """JAX may use NumPy's memory, which can change: what was there when `save` returned is saved."""
    memory = np.zeros((1 << 16) + 16, np.float32)
    offset = -memory.ctypes.data % 64 // 4
    array = memory[offset : offset + (1 << 16)]
    store.save(1, {"x": make(array)})
    array[:] = 1
    assert not loaded(store)["x"].any()


class Moments(NamedTuple):
    count: object
    mu: object


class Empty(NamedTuple):
    pass


def test_parameters_and_an_optimizers_state_are_a_tree(store):
    """A tuple of nested parameters, whose names contain slashes, and of namedtuples comes back."""
    params = {"linear/~/l0": {"w": jnp.ones((2, 3))}, "linear": {"b": jnp.zeros(3)}}
    state = (params, (Moments(jnp.array(3), params), Empty()))
    store.save(1, state)
    store.go.set()
    for example in (state, jax.eval_shape(lambda: state)):
        found = store.load(like=example).tree
        assert jax.tree.structure(found) == jax.tree.structure(state)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, found, state))
    assert list(store.load().tree[0]) == ["linear/~/l0", "linear"]
