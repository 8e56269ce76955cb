"""One process of a job of JAX: ``python job.py CASE NUMBER COUNT ADDRESS FOLDER``.

A case is a function here. It asserts what it shows, and what a process prints reaches the test.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from types import MappingProxyType

import jax
import npzkit
import numpy as np
import pytest
from crash import recorded
from crash_folders import Followed
from jax import numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from jobs import value_of
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.checkpoint.folder import Folder
from npzkit.datasets.shardedwriter import ShardedWriter
from npzkit.errors import (
    ArchiveLockedError,
    ChecksumError,
    DamagedCheckpointError,
    DamagedCheckpointWarning,
    NpzkitError,
    UnsupportedError,
)
from npzkit.jax import processes
from npzkit.trees import loaded_tree

FSDP = {"w": ("data", None), "b": ("data",), "scale": (None,), "keys": ("data",)}
TENSOR = {"w": (None, "model"), "b": ("model",), "scale": ("data",), "keys": ()}
BOTH = {"w": ("data", "model"), "b": (("data", "model"),), "scale": (), "keys": (("model",),)}
"""How arrays are spread over the devices of all processes: two devices each."""


def meshes():
    """Return how the arrays may be spread, by name."""
    devices = np.array(jax.devices())
    line, plane = devices.reshape(-1, 1), devices.reshape(-1, 2)
    for name, mesh, specs in (
        ("fsdp", line, FSDP), ("tensor", plane, TENSOR), ("both", plane, BOTH)
    ):  # fmt: skip
        mesh = jax.sharding.Mesh(mesh, ("data", "model"))
        yield name, {key: NamedSharding(mesh, PartitionSpec(*spec)) for key, spec in specs.items()}


FORMS = {
    "w": ((8, 16), "f4"), "b": ((24,), jnp.bfloat16), "scale": ((4,), "f2"), "keys": ((8,), "u4")
}  # fmt: skip


def part(key, index):
    """Return a part of an array, whose values tell where they belong; keys as numbers."""
    shape, dtype = FORMS[key]
    shape = (*shape, 2) if key == "keys" else shape
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)[index]


def spread(shardings):
    """Return the arrays, spread over the processes."""

    def made(key, index):
        found = part(key, index)
        return jax.random.wrap_key_data(found) if key == "keys" else found

    return {
        key: jax.make_array_from_callback(FORMS[key][0], sharding, partial(made, key))
        for key, sharding in shardings.items()
    }


def described(shardings):
    """Return descriptions of the arrays."""
    forms = {**FORMS, "keys": ((8,), jax.random.key(0).dtype)}
    return {
        key: jax.ShapeDtypeStruct(*forms[key], sharding=sharding)
        for key, sharding in shardings.items()
    }


def check(arrays, shardings):
    """Check the parts that this process has."""
    for key, array in arrays.items():
        assert array.sharding.is_equivalent_to(shardings[key], array.ndim), key
        for shard in array.addressable_shards:
            found = jax.random.key_data(shard.data) if key == "keys" else shard.data
            expected = part(key, shard.index)
            assert found.dtype == expected.dtype, key
            assert np.array_equal(found, expected), key


def each_way():
    """Have small arrays read together, then read like large ones: part by part."""
    for most in (loaded_tree._SMALL_SIZE, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loaded_tree, "_SMALL_SIZE", most)
            yield most


def is_first():
    return jax.process_index() == 0


def meet(name):
    multihost_utils.sync_global_devices(name)


# -- cases ------------------------------------------------------------------


def placements(folder):
    """What is spread in one way comes back in any other, also by a description."""
    for name, shardings in meshes():
        state = {**spread(shardings), "step": 3, "own": np.eye(2)}
        npzkit.save(f"{folder}/{name}", state, attrs={"w": {"unit": "m"}, "own": {"rank": 2}})
        with npzkit.open(f"{folder}/{name}") as npz:
            assert (npz.info("w").attrs, npz.info("own").attrs) == ({"unit": "m"}, {"rank": 2})
        for other, others in meshes():
            like = spread(others) if name == other else described(others)
            like |= {"step": 0, "own": np.zeros((2, 2))}
            for _ in each_way():
                loaded = npzkit.load_tree(f"{folder}/{name}", like=like)
                assert (loaded.pop("step"), loaded.pop("own").sum()) == (3, 2)
                check(loaded, others)


def tied(folder):
    """Two leaves of one array may be spread in two ways."""
    shardings = [each["w"] for _, each in meshes()]
    if is_first():
        metadata = {"npzkit.tree": {name: ["same", "w"] for name in ("a", "b")}}
        writer = ShardedWriter(f"{folder}/tied", metadata=metadata)
        for row in range(8):
            writer.add("w", part("w", slice(row, row + 1)), (row, 0), FORMS["w"][0])
        writer.commit([record.name for record in writer.close()])
    meet("tied")
    like = {
        name: jax.ShapeDtypeStruct(*FORMS["w"], sharding=sharding)
        for name, sharding in zip("wab", shardings, strict=True)
    }
    loaded = npzkit.load_tree(f"{folder}/tied", like=like)
    for array, sharding in zip(loaded.values(), shardings, strict=True):
        check({"w": array}, {"w": sharding})


def kinds(folder):
    """A number keeps its weak type, an array may be empty, and one key is replicated."""
    _, shardings = next(meshes())
    everywhere = NamedSharding(shardings["w"].mesh, PartitionSpec())
    state = {
        "rate": jax.jit(lambda: 0.5, out_shardings=everywhere)(),
        "none": jax.jit(lambda: jnp.zeros((0, 3)), out_shardings=shardings["w"])(),
        "key": jax.jit(lambda: jax.random.key(3), out_shardings=everywhere)(),
        "local": jnp.arange(3),
    }
    npzkit.save(f"{folder}/kinds", state)
    loaded = npzkit.load_tree(f"{folder}/kinds", like=state)
    assert loaded["rate"].weak_type
    assert float(loaded["rate"]) == 0.5
    assert loaded["none"].shape == (0, 3)
    assert jax.random.bits(loaded["key"]) == jax.random.bits(state["key"])
    assert loaded["local"].sum() == 3
    # A number that was saved without JAX is what all processes have.
    if is_first():
        npzkit.save(f"{folder}/number", {"all": {"rate": 0.25}})
    meet("number")
    like = {"all": {"rate": state["rate"]}}
    assert float(npzkit.load_tree(f"{folder}/number", like=like)["all"]["rate"]) == 0.25


def steps(folder):
    """A store saves in the background by all processes, and one of them removes old steps."""
    _, shardings = next(meshes())
    with CheckpointStore(f"{folder}/steps", keep=latest(2), background=True) as store:
        for step in range(4):
            saving = store.save(step, {"params": spread(shardings)}, {"loss": step})
        saving.wait()
        assert saving.removed == (1,)
        assert store.steps == (2, 3)
        found = store.load(like={"params": described(shardings)})
        assert (found.step, found.metrics) == (3, {"loss": 3})
        check(found.tree["params"], shardings)
        if is_first():
            assert store.verify().ok
    skipping = CheckpointStore(f"{folder}/skipping", background=True, when_busy="skip")
    with skipping as store:
        savings = [store.save(step, spread(shardings)) for step in range(8)]
        skipped = [saving.step for saving in savings if saving.skipped]
    print("skipped", skipped, flush=True)
    busy(f"{folder}/busy", spread(shardings))


def busy(folder, state):
    """A save that comes too early is refused in all processes, and they go on together."""
    add, go_on = ShardedWriter.add, threading.Event()
    with CheckpointStore(folder, background=True, when_busy="raise") as store:
        ShardedWriter.add = lambda *args: go_on.wait() and add(*args)
        saving = store.save(1, state)
        with pytest.raises(ArchiveLockedError, match="step 2 cannot be saved while step 1 is"):
            store.save(2, state)
        ShardedWriter.add = add
        go_on.set()
        saving.wait()
        store.save(3, state)
        assert store.steps == (1, 3)


def optimizer(folder):
    """The state of an optimizer, as optax makes it under jit."""
    if importlib.util.find_spec("optax") is None:
        print("optax is not installed", flush=True)
        return
    import optax

    _, shardings = next(meshes())
    params = {key: array for key, array in spread(shardings).items() if key != "keys"}
    adam = optax.adamw(1e-3)
    _, state = jax.jit(adam.update)(params, jax.jit(adam.init)(params), params)
    like = jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=each.sharding), state
    )
    with CheckpointStore(f"{folder}/optimizer") as store:
        store.save(1, state)
        loaded = store.load(like=like).tree
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(state), strict=True):
        for shard, expected in zip(one.addressable_shards, other.addressable_shards, strict=True):
            assert np.array_equal(shard.data, expected.data)


def refused(folder):
    """What is not for several processes is refused in all of them, and says what to do instead."""
    state = spread(next(meshes())[1])
    with CheckpointStore(f"{folder}/frozen", frozen="w") as store:
        with pytest.raises(UnsupportedError, match=r"frozen=\(\).*in a store of its own"):
            store.save(1, state)
        store.save(1, state, frozen=())
        assert store.steps == (1,)
    with pytest.raises(UnsupportedError, match="Name a folder"):
        npzkit.save(f"{folder}/a.npz", state)
    with pytest.raises(NpzkitError, match=r"npzkit\.save and CheckpointStore"):
        npzkit.savez(f"{folder}/a.npz", **state)


def failing(folder):
    """One process cannot write: all of them raise an error, and the older step stays."""
    _, shardings = next(meshes())
    state, add = spread(shardings), ShardedWriter.add
    for number in (0, 1):
        with CheckpointStore(f"{folder}/failing") as store:
            store.save(1, state)
            if jax.process_index() == number:
                ShardedWriter.add = lambda *args: os.stat("/none/such")
            kind = FileNotFoundError if jax.process_index() == number else NpzkitError
            what = "none/such" if jax.process_index() == number else f"process {number} failed"
            with pytest.raises(kind, match=what):
                store.save(2, state)
            ShardedWriter.add = add
            assert store.steps == (1,)
            store.save(1, state)
            assert store.load(like=state).step == 1
    meet("failing")
    assert not list(Path(f"{folder}/failing/step_00000002").glob("shard-*.npz"))
    failing_late(f"{folder}/late", state)


def failing_late(folder, state):
    """A save in the background has failed, and not all processes know yet: the next one says so."""
    add, abort = ShardedWriter.add, ShardedWriter.abort
    with CheckpointStore(folder, background=True, when_busy="skip") as store:
        if not is_first():
            ShardedWriter.add = lambda *args: os.stat("/none/such")
            ShardedWriter.abort = lambda self: time.sleep(0.3) or abort(self)
        store.save(1, state)
        # The first process waits for its end; the others are still at work.
        assert not is_first() or store.steps == ()
        with pytest.raises((FileNotFoundError, NpzkitError), match=r"none/such|failed"):
            store.save(2, state)
        ShardedWriter.add, ShardedWriter.abort = add, abort
        assert not store.save(3, state).skipped
        assert store.steps == (3,)


def damage(step):
    """Change a byte of what the last process has saved."""
    last = part("w", slice(-1, None)).tobytes()
    for path in Path(step).glob("shard-*.npz"):
        data = path.read_bytes()
        path.write_bytes(data.replace(last, b"!" + last[1:]))


def damaged(folder):
    """One process finds damage in its part: all of them load the step before."""
    _, shardings = next(meshes())
    state = spread(shardings)
    with CheckpointStore(f"{folder}/damaged", keep=latest(1)) as store:
        for step in (2, 1):
            store.save(step, state)
        if is_first():
            damage(store.path(2))
        meet("damaged")
        is_last = jax.process_index() == jax.process_count() - 1
        for _ in each_way():
            # Each process reads its own parts, and the last one has the damage.
            with pytest.raises(ChecksumError) if is_last else contextlib.nullcontext():
                npzkit.load_tree(store.path(2), like=described(shardings))
        with pytest.warns(DamagedCheckpointWarning):
            found = store.load(like=described(shardings))
        assert found.step == 1
        check(found.tree, shardings)
        # The first process has read its own parts of step 2 alone, and does not trust it.
        assert not is_first() or store.prune(dry_run=True) == ()
        read_back(store, state)


def read_back(store, state):
    """One process has what all wrote read back: damage is an error in all of them."""
    drop_cache = Folder.drop_cache

    def spoil(steps, step):
        damage(store.path(step))
        drop_cache(steps, step)

    store.save(4, state, verify="after")
    Folder.drop_cache = spoil
    with pytest.raises(DamagedCheckpointError):
        store.save(5, state, verify="after")
    Folder.drop_cache = drop_cache
    with pytest.warns(DamagedCheckpointWarning):
        assert store.load(like=state).step == 4


def killed(folder):
    """A process dies while it saves a step."""
    state = spread(next(meshes())[1])
    with CheckpointStore(f"{folder}/killed") as store:
        store.save(1, state)
        if jax.process_index() == jax.process_count() - 1:
            ShardedWriter.close = lambda self: os._exit(9)
        store.save(2, state)


def several(folder):
    for case in (placements, tied, kinds, steps, optimizer, refused, failing, damaged):
        case(folder)
    print("done", flush=True)
    killed(folder)


def others(folder):
    """Load what four processes saved, by another number of them."""
    for name, shardings in meshes():
        check(
            npzkit.load_tree(f"{folder}/{name}", like=described(shardings), only=[*FSDP]), shardings
        )
    with CheckpointStore(f"{folder}/killed") as store:
        state = spread(next(meshes())[1])
        assert store.load(like=state).step == 1
        store.save(2, state)
    meet("saved")
    absent(folder)
    print("done", flush=True)


def absent(folder):
    """A process does not make the call: the others say so, and the older archive stays."""
    folder = f"{folder}/fsdp"
    if is_first():
        processes._PATIENCE = 0.2
        with pytest.raises(NpzkitError, match=r"not all processes came.*in each process"):
            npzkit.save(folder, spread(next(meshes())[1]))
        assert npzkit.verify(folder).ok
        assert len(npzkit.open(folder).files) == 6
        assert len(list(Path(folder).glob("shard-*.npz"))) == 4
    meet("absent")


# -- recorded ---------------------------------------------------------------


@contextlib.contextmanager
def followed(folder):
    """Record what this process does to a folder, and where it meets the others."""
    exchange = processes.Processes._exchange

    def met(self, told):
        answers = exchange(self, told)
        recorder.meet()
        return answers

    Path(folder).mkdir(exist_ok=True)
    with recorded(Path(folder)) as recorder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(processes.Processes, "_exchange", met)
        work = Followed(recorder)
        yield work
    Path(f"{folder}-{jax.process_index()}.pickle").write_bytes(pickle.dumps(work))


@contextlib.contextmanager
def becoming(work, now, *after):
    """Mark that the steps and their versions are these before, these amid and these after."""
    states = [frozenset(state.items()) for state in (now, *after)]
    work.mark(*states)
    yield
    work.mark(states[-1])


def come_together(work):
    meet("all")
    work.recorder.meet()


def in_version(version):
    """Return what is saved as a version: arrays that are spread, and what the first process has."""
    sharding, whole = next(meshes())[1]["w"], value_of(version)
    w = jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
    return {"w": w, "own": whole[0], "version": version}


def follow_steps(folder, steps, *, kept=9, alone=(), save=MappingProxyType({}), **options):
    """Save steps in versions 0, 1, 2 ...; those `alone` by the first process."""
    now = {}
    with followed(folder) as work, CheckpointStore(folder, latest(kept), **options) as store:
        for version, step in enumerate(steps):
            both = dict(sorted({**now, step: version}.items()))
            after = dict([*both.items()][-kept:])
            tree = in_version(version)
            with becoming(work, now, both, after):
                if version not in alone:
                    store.save(step, tree, **save).wait()
                else:
                    come_together(work)
                    if is_first():
                        store.save(step, {**tree, "w": value_of(version)})
                    come_together(work)
            now = after


def crashes(folder):
    """Record saves: a test makes of them whatever is left if processes are killed."""
    follow_steps(f"{folder}/again", [1, 2, 2, 1])
    follow_steps(
        f"{folder}/removed", [1, 2, 2, 3], kept=1, background=True,
        save={"verify": "after", "shard_size": 300},
    )  # fmt: skip
    follow_steps(f"{folder}/alone", [1, 1, 2, 2, 1], alone=(1, 3), durable=False)
    with followed(f"{folder}/archive") as work:
        now = {}
        for version in range(3):
            after = {0: version}
            with becoming(work, now, after):
                npzkit.save(f"{folder}/archive/run", in_version(version))
            now = after
    print("done", flush=True)


if __name__ == "__main__":
    case, number, count, address, folder = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(
        address, int(count), int(number), heartbeat_timeout_seconds=10,
        cluster_detection_method="deactivate",
    )  # fmt: skip
    warnings.simplefilter("ignore", ResourceWarning)
    processes._PATIENCE = 60
    globals()[case](folder)
