"""Too little memory, or too little of the stack, says nothing about a step."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from deep import needs_deep
from npzkit.checkpoint import CheckpointStore

LOADED_WITH_LITTLE_MEMORY = """
import resource, sys, warnings
from npzkit.checkpoint import CheckpointStore, latest

warnings.simplefilter("error")
with CheckpointStore(sys.argv[1], keep=latest(1), durable=False) as store:
    store.load(1)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 60 * 2**20, resource.RLIM_INFINITY))
    with store[2] as npz:
        reads = [
            store.load, lambda: store.load(2), lambda: store.load(only="w"),
            lambda: npz["w"], lambda: npz.lazy("w")[:], lambda: npz.load_all(),
        ]
        for read in reads:
            try:
                read()
            except MemoryError:
                continue
            sys.exit("enough memory")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(store.prune(), store.steps, store.load().step)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="file"),
        pytest.param({"compression": "deflated"}, id="deflated", marks=needs_deep),
        pytest.param({"shard_size": "1GB"}, id="folder", marks=needs_deep),
    ],
)
def test_too_little_memory_is_no_damage(tmp_path, options):
    """A sound step of 64 MiB that does not fit into memory is a MemoryError, and stays."""
    size = {name: options[name] for name in options if name == "shard_size"}
    coding = {name: options[name] for name in options if name == "compression"}
    with CheckpointStore(tmp_path, durable=False, **coding) as store:
        store.save(1, {"w": np.zeros(3)}, **size)
        store.save(2, {"w": np.zeros(2**23)}, **size)
    found = subprocess.run(
        [sys.executable, "-c", LOADED_WITH_LITTLE_MEMORY, str(tmp_path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (found.stderr, found.stdout) == ("", "(1,) (2,) 2\n")


def nested(depth):
    """Return a tree whose structure and one of whose dtypes are nested."""
    dtype, tree = np.dtype("i4"), {"x": np.eye(2), "n": None}
    for _ in range(20):
        dtype = np.dtype([("a", dtype)])
    for _ in range(depth):
        tree = {"a": [tree, None]}
    return {"tree": tree, "record": np.zeros(2, dtype)}


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, 1000])
def test_a_nearly_full_stack_is_no_damage(tmp_path, shard_size):
    """A step that is loaded deep in a recursion is the tree or a RecursionError."""
    tree = nested(40)
    with CheckpointStore(tmp_path, durable=False) as store:
        store.save(1, {}, shard_size=shard_size)
        store.save(2, tree, metadata={"a": [[[]]]}, shard_size=shard_size)
        outcomes = set()

        def descend(depth):
            if depth:
                descend(depth - 1)
                return
            try:
                found = store.load()
            except RecursionError:
                outcomes.add("RecursionError")
            else:
                assert repr(found.tree) == repr(tree)
                outcomes.add("tree")

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for left in range(60, 700, 7):
                try:
                    descend(sys.getrecursionlimit() - left - 100)
                except RecursionError:
                    continue
        assert outcomes == {"tree", "RecursionError"}
        assert store.load().step == 2


class Deep:
    """What needs more of the stack than there is, whatever is asked of it."""

    def __array__(self, *args, **options):
        raise RecursionError

    def item(self):
        raise RecursionError


def test_a_nearly_full_stack_is_no_bad_argument(tmp_path):
    """What is saved deep in a recursion is not called wrong, nor are metrics."""
    with CheckpointStore(tmp_path, durable=False) as store:
        with pytest.raises(RecursionError):
            store.save(1, {}, metrics={"loss": Deep()})
        with pytest.raises(RecursionError):
            store.save(1, {"w": Deep()})
