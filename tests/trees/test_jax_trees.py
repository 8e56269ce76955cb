"""JAX's arrays, random keys and pytrees in nested data; loaded by an example."""

from __future__ import annotations

import dataclasses
import io
from collections import UserDict
from typing import Any, NamedTuple

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore
from npzkit.errors import NotAnArrayError, TreeMismatchError

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
# Before anything asks for a device.
jax.config.update("jax_num_cpu_devices", 4)


class Moments(NamedTuple):
    mu: Any
    nu: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    step: Any
    params: Any
    apply: Any = dataclasses.field(default=len, metadata={"static": True})


@dataclasses.dataclass
class Plain:
    w: Any
    name: str


@jax.tree_util.register_pytree_node_class
class Layer:
    """A class whose children have numbers, and no names."""

    def __init__(self, w, b, *, kind):
        self.w, self.b, self.kind = w, b, kind

    def tree_flatten(self):
        return (self.w, self.b), self.kind

    @classmethod
    def tree_unflatten(cls, kind, children):
        return cls(*children, kind=kind)


@jax.tree_util.register_pytree_with_keys_class
class Named:
    """A class whose children have names, which are not those of its attributes."""

    def __init__(self, items):
        self._items = items

    def tree_flatten_with_keys(self):
        keys = [jax.tree_util.DictKey(name) for name in self._items]
        return list(zip(keys, self._items.values(), strict=True)), tuple(self._items)

    @classmethod
    def tree_unflatten(cls, names, children):
        return cls(dict(zip(names, children, strict=True)))


@jax.tree_util.register_pytree_with_keys_class
class Shown(UserDict):
    """A mapping that shows its mappings as `Shown`, and has plain dicts for JAX."""

    def __getitem__(self, name):
        item = super().__getitem__(name)
        return Shown(item) if isinstance(item, dict) else item

    def tree_flatten_with_keys(self):
        keys = [jax.tree_util.DictKey(name) for name in self.data]
        return list(zip(keys, self.data.values(), strict=True)), tuple(self.data)

    @classmethod
    def tree_unflatten(cls, names, children):
        shown = cls()
        shown.data = dict(zip(names, children, strict=True))
        return shown


def saved(tree):
    stream = io.BytesIO()
    npzkit.save(stream, tree)
    return stream


def raw(leaf):
    """Return what a leaf is, and its values."""
    if not isinstance(leaf, jax.Array):
        return type(leaf), leaf
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    data = jax.random.key_data(leaf) if is_key else leaf
    return leaf.dtype, leaf.shape, data.weak_type, leaf.sharding, np.asarray(data).tobytes()


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert [*map(raw, jax.tree.leaves(found))] == [*map(raw, jax.tree.leaves(expected))]


def cleared(tree):
    """Return a tree of the same form, with other values."""
    return jax.tree.map(
        lambda leaf: jnp.zeros_like(leaf) if isinstance(leaf, jax.Array) else type(leaf)(), tree
    )


@pytest.mark.parametrize(
    "dtype", ["bool", "int4", "uint8", "int32", "float16", "bfloat16", "float8_e4m3fn", "complex64"]
)
def test_arrays_of_every_dtype_come_back(dtype):
    """The bits, dtype and shape are the same; without an example they are NumPy's arrays."""
    values = jnp.arange(6).reshape(2, 3) % 2
    tree = {"a": [values.astype(dtype), jnp.ones((), dtype), jnp.zeros((0, 2), dtype)]}
    stream = saved(tree)
    for options in ({"like": tree}, {"into": tree}, {"like": jax.eval_shape(lambda: tree)}):
        assert_same(npzkit.load_tree(stream, **options), tree)
    plain = npzkit.load_tree(stream)["a"][0]
    assert (type(plain), plain.dtype) == (np.ndarray, dtype)


def test_containers_of_every_kind_come_back():
    """Registered classes, namedtuples and dicts: the example gives its types, and its static fields."""
    tree = {
        "state": State(jnp.arange(2), {"w": jnp.ones(3)}, apply=print),
        "layer": [Layer(jnp.ones(2), None, kind="dense"), Layer(jnp.zeros(2), 0.5, kind="last")],
        "named": Named({"w": jnp.ones(1), 5: {"m": Moments(jnp.ones(2), 3)}}),
        "shown": Shown({"w": jnp.ones(1), "inner": {"w": jnp.ones(2)}}),
        "plain": {"list": [(jnp.ones(2), 1, 2.5)], "none": None},
    }
    stream = saved(tree)
    assert npzkit.open(stream).files == [
        "state/step", "state/params/w", "layer/0/0", "layer/1/0", "named/w", "named/5/m/mu",
        "shown/w", "shown/inner/w", "plain/list/0/0",
    ]  # fmt: skip
    like = cleared(tree)
    assert_same(npzkit.load_tree(stream, like=like), tree)
    assert_same(npzkit.load_tree(stream, into=like), tree)
    assert_same(npzkit.load_tree(stream, "named", like=like["named"]), tree["named"])
    part = npzkit.load_tree(stream, like=cleared(tree), only="state/*")
    assert_same(part, {**cleared(tree), "state": tree["state"]})
    assert npzkit.load_tree(stream)["layer"][1][1] == 0.5


@pytest.mark.parametrize(
    "tree",
    [
        State(jnp.ones(2), [jnp.zeros(2)]),
        Layer(jnp.ones(2), 3, kind="x"),
        Named({"a": jnp.ones(2)}),
    ],
)
def test_a_pytree_may_be_the_whole_tree(tmp_path, tree):
    """`save`, a checkpoint store and `NpzWriter.add` take one, and an example gives it back."""
    assert_same(npzkit.load_tree(saved(tree), like=cleared(tree)), tree)
    with CheckpointStore(tmp_path, background=True) as store:
        store.save(1, tree)
        assert_same(store.load(like=cleared(tree)).tree, tree)
    stream = saved({})
    with npzkit.NpzWriter(stream, "a") as writer:
        writer["key"] = tree
    assert_same(npzkit.load_tree(stream, "key", like=cleared(tree)), tree)


def test_a_dataclass_that_is_not_registered_is_a_mapping_of_its_fields():
    """It is a leaf for JAX, but not for npzkit."""
    found = npzkit.load_tree(saved(Plain(jnp.ones(2), "x")), like=Plain(jnp.zeros(2), ""))
    assert (type(found), found.name) == (Plain, "x")
    assert_same(found.w, jnp.ones(2))


def test_random_keys_come_back():
    """Keys of both kinds keep their algorithm; without an example they are integers."""
    tree = {
        "new": jax.random.key(3),
        "many": jax.random.split(jax.random.key(3, impl="rbg"), 4).reshape(2, 2),
        "old": jax.random.PRNGKey(3),
    }
    stream = saved(tree)
    like = {**tree, "new": jax.random.key(0)}
    for example in (like, jax.eval_shape(lambda: tree)):
        found = npzkit.load_tree(stream, like=example)
        assert jax.random.normal(found["new"]) == jax.random.normal(tree["new"])
        assert_same(found, tree)
        assert jax.random.key_impl(found["many"]) == "rbg"
    assert npzkit.load_tree(stream)["new"].tolist() == [0, 3]
    with pytest.raises(TreeMismatchError, match="differing: 'new'"):
        npzkit.load_tree(stream, like={**tree, "new": jax.random.key(0, impl="rbg")})


def test_weak_types_stay_weak():
    """An array that gives way to the dtype of another one does so after loading, too."""
    tree = {"t": {"a": jnp.asarray(0.1), "b": jnp.full((2, 3), 0.3), "c": jnp.asarray(2)}}
    assert all(leaf.weak_type for leaf in jax.tree.leaves(tree))
    assert_same(npzkit.load_tree(saved(tree), like=cleared(tree)), tree)


def test_numbers_fit_what_jax_says_of_them():
    """`jax.eval_shape` describes Python's numbers as arrays, which they become; others differ."""
    tree = {"n": {"int": 3, "float": 0.1, "bool": True, "complex": 1j}}
    found = npzkit.load_tree(saved(tree), like=jax.eval_shape(lambda: tree))["n"]
    assert {key: value.item() for key, value in found.items()} == {
        **tree["n"], "float": np.float32(0.1).item()
    }  # fmt: skip
    like = {"n": {"int": jnp.int8(0), "float": jnp.float32(0), "bool": jnp.int32(0), "complex": 0j}}
    with pytest.raises(TreeMismatchError) as caught:
        npzkit.load_tree(saved({"n": {**tree["n"], "int": 300}}), like=like)
    assert set(caught.value.differing) == {"n/int", "n/float", "n/bool"}


def test_arrays_come_back_with_their_sharding():
    """Arrays on several devices are saved as one, and lie where the example's do."""
    assert len(jax.devices()) == 4
    mesh = jax.make_mesh((4,), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    last = jax.devices()[3]
    tree = {
        "rows": jax.device_put(jnp.arange(32.0).reshape(8, 4), rows),
        "key": jax.device_put(jax.random.split(jax.random.key(0), 4), rows),
        "last": jax.device_put(jnp.full((2,), 0.5), last),
        "first": jnp.ones(3),
    }
    stream = saved({"t": tree})
    found = npzkit.load_tree(stream, "t", like=tree)
    assert found["rows"].sharding == rows
    assert_same(found, tree)
    # By a description, with another sharding than the saved one.
    like = jax.ShapeDtypeStruct((8, 4), "float32", sharding=jax.sharding.SingleDeviceSharding(last))
    found = npzkit.load_tree(stream, "t/rows", like=like)
    assert found.devices() == {last}


def test_loaded_arrays_can_be_given_away(tmp_path):
    """What was loaded is the caller's: JAX may reuse its memory, also that of a tied example."""
    w = jnp.arange(100_000.0)
    tree = {"a": w, "b": w, "c": w + 1}
    npzkit.save(tmp_path / "a.npz", {"t": tree})
    step = jax.jit(lambda t: jax.tree.map(lambda x: x * 2, t), donate_argnums=0)
    for mode in (None, "r"):
        found = npzkit.load_tree(tmp_path / "a.npz", "t", like=tree, mmap_mode=mode)
        doubled = step(found)
        assert_same(doubled, jax.tree.map(lambda x: x * 2, tree))
    assert_same(npzkit.load_tree(tmp_path / "a.npz", "t", like=tree), tree)


def test_a_save_in_the_background_has_the_values_of_its_call(tmp_path):
    """Arrays that are given away to the next step meanwhile do not change what is saved."""
    step = jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t), donate_argnums=0)
    state = {"w": jnp.zeros(500_000), "v": [jnp.zeros(1000)] * 1}
    with CheckpointStore(tmp_path, background=True, durable=False) as store:
        for number in range(4):
            store.save(number, state)
            state = step(state)
        for number in range(4):
            found = store.load(number).tree
            assert set(np.unique(found["w"])) == {number}
            assert set(np.unique(found["v"][0])) == {number}


def test_what_does_not_fit_is_named():
    """Another dtype or shape, and an array that was given away, are errors with their keys."""
    stream = saved({"t": {"a": jnp.ones(2), "b": jnp.ones(3), "k": jax.random.key(0)}})
    like = {"t": {"a": jnp.ones(2, "bfloat16"), "b": jnp.ones((3, 1)), "k": jnp.ones(2)}}
    with pytest.raises(TreeMismatchError) as caught:
        npzkit.load_tree(stream, like=like)
    assert caught.value.differing == {
        "t/a": ("float32 (2,)", "bfloat16 (2,)"),
        "t/b": ("float32 (3,)", "float32 (3, 1)"),
        "t/k": ("uint32 (2,)", "float32 (2,)"),
    }
    gone = jnp.ones(2)
    gone.delete()
    with pytest.raises(NotAnArrayError, match="deleted") as caught:
        saved({"t": [gone]})
    assert caught.value.key == "t/0"
