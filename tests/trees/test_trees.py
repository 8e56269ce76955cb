"""Nested data saved as keys with ``/``, and read back as it was."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import json
import sys
from collections import deque, namedtuple
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import npzkit
import numpy as np
import pytest
from forge import Member, archive, npy
from hypothesis import example, given
from hypothesis import strategies as st
from npzkit.errors import (
    KeyExistsError,
    LimitExceededError,
    MemberNotFoundError,
    PickleRefusedError,
    UnsupportedError,
    ZipFormatError,
)

from tables import each_row


class Point(NamedTuple):
    x: object
    y: object


def saved(tree, **options):
    stream = io.BytesIO()
    npzkit.save(stream, tree, **options)
    return stream


def is_same(one, other):
    """Whether two trees are equal: types, order and keys, and arrays with their dtypes."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, tuple) and hasattr(one, "_fields"):
        names = type(one).__name__, one._fields
        return names == (type(other).__name__, other._fields) and all(map(is_same, one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, np.generic):
        # Bytes that a long double does not use may be any.
        same = one.tobytes() == other.tobytes() or repr(one) == repr(other)
        return one.dtype == other.dtype and same
    if isinstance(one, dict):
        return (
            list(one) == list(other)
            and list(map(type, one)) == list(map(type, other))
            and all(is_same(one[k], other[k]) for k in one)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other if isinstance(one, (set, frozenset)) else repr(one) == repr(other)


NAMES = st.text("abc01.é", min_size=1, max_size=3).filter(lambda name: name.strip("."))
ARRAYS = st.sampled_from([np.arange(3), np.eye(2, dtype="f4"), np.zeros((0, 2)), np.array(True)])
VALUES = st.one_of(
    ARRAYS,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from([np.float32(1.5), np.int8(-1), np.bool_(True), np.datetime64("2020", "s")]),
    st.sampled_from([datetime.date(2026, 1, 2), {(1, "a")}, np.dtype("<M8[s]")]),
)
Empty = namedtuple("Empty", [])


class Colour(enum.IntEnum):
    RED = 1


def frozen(depth):
    """Return frozensets in each other."""
    value = frozenset()
    for _ in range(depth):
        value = frozenset([value])
    return value


def nested(depth):
    """Return the notes of tuples in each other."""
    note = ["tuple"]
    for _ in range(depth):
        note = ["tuple", note]
    return [note]


def zoned(zone=None):
    """Return a time with a time zone."""
    utc = datetime.timezone(datetime.timedelta(hours=-3))
    return datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=ZoneInfo(zone) if zone else utc)


CONFIG = [
    {1, "a", None, (2, 1j), frozenset({2.5})}, set(), frozenset({True}), np.dtype(">f8"),
    np.dtype([("x", "<i4"), ("y", "S3", (2,))]), np.dtype("M8[ms]"), np.dtype("O"), zoned(),
    datetime.datetime(2026, 1, 2), datetime.date(1, 1, 1), datetime.time(3, 4, tzinfo=datetime.UTC),
    datetime.timedelta(-1, 2, 3), {np.dtype("i4"), datetime.date(2026, 1, 2)},
]  # fmt: skip
NODES = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        st.dictionaries(NAMES | st.integers(-3, 3), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Point, inner, inner),
        st.just(Empty()),
    ),
    max_leaves=12,
)


def without_twins(tree):
    """Return a tree in which no dict has an int and a string that are one name."""
    if isinstance(tree, dict):
        names = {str(name): name for name in tree}
        return {name: without_twins(tree[name]) for name in names.values()}
    if isinstance(tree, (list, tuple)):
        items = list(map(without_twins, tree))
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return tree


TREES = st.dictionaries(NAMES, NODES, max_size=4).map(without_twins)


@given(TREES)
def test_any_tree_comes_back(tree):
    """A nested dict of containers, namedtuples, values of Python and NumPy is given back."""
    tree["nested"] = {"array": np.arange(2)}
    assert is_same(npzkit.load_tree(saved(tree)), tree)


@given(TREES)
def test_any_part_comes_back(tree):
    """The subtree under each key is what the whole tree has there."""
    tree["nested"] = {"array": np.arange(2)}
    stream = saved(tree)

    def walk(node, key):
        assert is_same(npzkit.load_tree(stream, key), node)
        items = node.items() if isinstance(node, dict) else ()
        if isinstance(node, (list, tuple)) and key.count("/"):
            items = node._asdict().items() if hasattr(node, "_fields") else enumerate(node)
        for name, inner in items:
            walk(inner, f"{key}/{name}")

    for name, inner in tree.items():
        walk(inner, name)


@given(TREES, st.booleans())
def test_any_tree_is_added(tree, is_appended):
    """Values of a tree added one by one to a writer, or to an archive, make the same tree."""
    stream = io.BytesIO()
    tree = {name: value for name, value in tree.items() if isinstance(value, (dict, list, tuple))}
    tree = {name: [np.arange(2), value] for name, value in tree.items()}
    with npzkit.NpzWriter(stream) as w:
        for name, value in tree.items() if not is_appended else ():
            w[name] = value
    for name, value in tree.items() if is_appended else ():
        with npzkit.NpzWriter(stream, "a") as w:
            w[name] = value
    assert is_same(npzkit.load_tree(stream), tree)


def test_the_order_of_keys_is_kept():
    """Numbers, None and empty dicts stand where they stood between the arrays."""
    x = np.arange(2)
    tree = {
        "b": {"lr": 0.1, "w": x, "name": "n", "none": None, "v": x, "empty": {}, "list": [1, x]},
        "a": {"x": {"n": 1}, "w": x, "z": {"n": 1}, "y": {"n": 2, "w": x}},
    }
    assert is_same(npzkit.load_tree(saved(tree)), tree)
    stream = saved({"w": x, "n": {"k": x}})
    with npzkit.NpzWriter(stream, "a") as w:
        w["config"] = {"lr": 0.1}
        w["last"] = x
    assert list(npzkit.load_tree(stream)) == ["w", "n", "config", "last"]


def test_int_keys_come_back_as_ints():
    """The state of an optimizer, whose keys are ints, is given back; np.load reads its arrays."""
    x = np.arange(2)
    state = {
        "state": {0: {"step": x, "exp_avg": x}, 1: {"step": x}, -1: {"step": 3.0}},
        "param_groups": [{"lr": 0.1, "params": [0, 1]}],
        "mixed": {"a": x, 7: x, "8": x, "08": x, 10**30: {}},
        "digits": {"0": x, "1": x},
    }
    stream = saved(state)
    assert is_same(npzkit.load_tree(stream), state)
    assert npzkit.open(stream).files[:3] == ["state/0/step", "state/0/exp_avg", "state/1/step"]
    assert is_same(npzkit.load_tree(stream, "state/0"), state["state"][0])
    assert is_same(npzkit.load_tree(saved({0: x, 1: x})), {0: x, 1: x})


def test_only_the_part_is_read():
    """Under a prefix other arrays are not read, damaged or not; a name is not a beginning."""
    x = np.arange(1000)
    stream = saved({"model": {"w": x}, "opt": {"m": x + 1, "lr": 0.5}, "optim": {"m": x}})
    data = bytearray(stream.getvalue())
    with npzkit.open(stream) as npz:
        data[npz.info("model/w").data_offset] ^= 1
    with npzkit.open(bytes(data)) as npz:
        assert is_same(npzkit.load_tree(npz, "opt"), {"m": x + 1, "lr": 0.5})
        assert is_same(npzkit.load_tree(npz, prefix="opt/"), {"m": x + 1, "lr": 0.5})
        assert npzkit.load_tree(npz, "opt/lr") == 0.5
        for prefix in ("op", "opt/x", "opt/lr/x", "none"):
            with pytest.raises(MemberNotFoundError) as caught:
                npzkit.load_tree(npz, prefix)
            assert caught.value.key == prefix
        with pytest.raises(npzkit.errors.ChecksumError):
            npzkit.load_tree(npz)
    with pytest.raises(TypeError):
        npzkit.load_tree(stream, 3)


def test_a_part_of_any_archive():
    """A prefix needs no note, and joins what was split; an array beside its branch is found."""
    stream = io.BytesIO()
    np.savez(stream, **{"a": np.array(1), "a/b": np.array(2), "c/d/e": np.array(3)})
    assert npzkit.load_tree(stream, "a") == 1
    assert npzkit.load_tree(stream, "a/b") == 2
    assert npzkit.load_tree(stream, "c") == {"d": {"e": 3}}
    masked = np.ma.array([1, 2], mask=[False, True])
    stream = saved({"t": {"m": masked}, "x": np.arange(2)}, masked="split")
    assert npzkit.load_tree(stream, "t")["m"].mask.tolist() == [False, True]


@pytest.mark.parametrize("around", ["", "m"])
def test_a_prefix_may_be_the_beginning_of_names_with_slashes(around):
    """What begins with it is returned under the rest of its names, arrays and values alike."""
    named = {"a/w": np.ones(1), "a/b/c": np.ones(2), "a/n/t": (np.ones(3), 5), "ab/d": np.ones(4)}
    tree = {around: named | {"a/lr": 0.5}} if around else named
    values = {"lr": 0.5} if around else {}
    stream, at = saved(tree), f"{around}/a".lstrip("/")
    part = {"w": np.ones(1), "b/c": np.ones(2), "n/t": (np.ones(3), 5), **values}
    assert is_same(npzkit.load_tree(stream, at), part)
    assert is_same(npzkit.load_tree(stream, f"{at}/b"), {"c": np.ones(2)})
    assert is_same(npzkit.load_tree(stream, at, only="*/c"), {"b/c": np.ones(2)})
    assert npzkit.load_tree(stream, f"{at}/n/t/1") == 5
    if around:
        assert npzkit.load_tree(saved({"m": {"a/lr": 0.5}}), "m/a") == {"lr": 0.5}
    flat = saved({"dense/kernel": np.ones(1), "dense/bias": np.ones(2)})
    assert is_same(npzkit.load_tree(flat, "dense"), {"kernel": np.ones(1), "bias": np.ones(2)})
    for missing in ("d", "dense/k", "dense/kernel/x"):
        with pytest.raises(MemberNotFoundError):
            npzkit.load_tree(flat, missing)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_trees_are_added_under_their_keys(tmp_path, mode):
    """A writer takes nested data in place of an array, replaces it as a whole, and refuses twice."""
    path = tmp_path / "a.npz"
    x = np.arange(3)
    npzkit.save(path, {"old": {"x": x, "n": 1}}, metadata={"mine": 1})
    tree = {"w": x, "n": [1, None, {"deep": (x, "text")}], 0: x}
    with npzkit.NpzWriter(path, mode, masked="split") as w:
        w["model"] = tree
        w.add("run/1", tree, compression="deflated")
        w.add("config", {"lr": 0.1})
        w.add("t", {"m": np.ma.array([1, 2], mask=[0, 1])})
        for key in ("model", "run", "config", "model/n", "config/lr"):
            with pytest.raises(KeyExistsError, match="overwrite=True"):
                w.add(key, {"other": None})
        with pytest.raises(ValueError, match="attrs"):
            w.add("other", tree, attrs={"a": 1})
        w.add("point", {"p": Point(1, x)})
        with pytest.raises(PickleRefusedError):
            w.add("objects", {"w": x, "o": object()})
        w["x"] = x
    expected = {"model": tree, "run": {"1": tree}, "config": {"lr": 0.1}}
    found = npzkit.load_tree(path)
    assert {key: found[key] for key in expected}.keys() == expected.keys()
    assert is_same({key: found[key] for key in expected}, expected)
    assert found["t"]["m"].mask.tolist() == [False, True]
    assert list(found) == [
        *(["old"] if mode == "a" else []),
        "model",
        "run",
        "config",
        "t",
        "point",
        "x",
    ]
    assert is_same(found["point"], {"p": Point(1, x)})
    with npzkit.open(path) as npz:
        assert npz.info("run/1/w").method == "deflated"
        assert npz.metadata.get("mine") == (1 if mode == "a" else None)
    with npzkit.NpzWriter(path, "a") as w:
        w.add("model", {"v": x}, overwrite=True)
        w.add("config", {"rate": 2, "w": [x]}, overwrite=True)
    found = npzkit.load_tree(path)
    assert is_same(found["model"], {"v": x})
    assert is_same(found["config"], {"rate": 2, "w": [x]})
    assert is_same(npzkit.load_tree(path, "run/1"), tree)
    assert npzkit.verify(path).ok


def test_a_tree_that_is_given_up_changes_nothing(tmp_path):
    """An exception behind a tree that was added leaves arrays and structure as they were."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": {"n": 1, "x": np.eye(2)}})
    before = path.read_bytes()
    with pytest.raises(KeyError), npzkit.NpzWriter(path, "a") as w:
        w.add("a", {"y": [np.eye(2), None]}, overwrite=True)
        raise KeyError
    assert path.read_bytes() == before


def test_flat_lists_stay_arrays():
    """Lists of numbers are arrays for a writer, as they are in np.savez."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream) as w:
        w["x"] = [1, 2, 3]
        w.add("y", (1.5, [2][0]))
        w.add("p", Point(1, 2))
    assert npzkit.open(stream).metadata == {}
    assert {key: array.tolist() for key, array in npzkit.open(stream).items()} == {
        "x": [1, 2, 3], "y": [1.5, 2], "p": [1, 2],
    }  # fmt: skip


def test_numpy_reads_the_arrays_by_their_keys():
    """Nested arrays have keys with slashes, numbers at the top are arrays as in np.savez."""
    stream = saved({"layer": {"w": np.eye(2), "n": 3}, "steps": [np.arange(2), None], "rate": 0.5})
    with np.load(io.BytesIO(stream.getvalue())) as theirs:
        assert theirs.files == ["layer/w", "steps/0", "rate"]
        assert theirs["rate"] == 0.5
        assert theirs["layer/w"].tolist() == [[1, 0], [0, 1]]


def test_a_flat_mapping_is_saved_as_by_numpy():
    """Numbers, strings and lists of them are arrays; a note is written for numbers and strings."""
    stream = saved({"x": 7, "y": [1, 2.5], "z": "text", "e": []})
    with npzkit.open(stream) as npz, np.load(io.BytesIO(stream.getvalue())) as theirs:
        assert npz.files == theirs.files == ["x", "y", "z", "e"]
        assert npz.metadata == {"npzkit.tree": {"x": ["as", "value"], "z": ["as", "value"]}}
        assert npz["y"].tolist() == [1.0, 2.5]
        for found in (npz, theirs):
            assert is_same(found["x"], np.array(7))
            assert is_same(found["z"], np.array("text"))
    with npzkit.open(saved({"x": np.float64(7), "y": [1, 2.5], "e": []})) as npz:
        assert npz.metadata == {}


@each_row(
    "items",
    [
        [2**53 + 1, 0.5], ["x", 1.5], ("a\0", "x"), [1, "1"], [[1, 2.5], [2**63 + 1, -1]],
        [np.int64(2**53 + 1), 0.5], [2**53 + 1, float("nan")], Point(2**53 + 1, 0.5),
    ],
)  # fmt: skip
def test_a_flat_list_that_an_array_would_change_is_kept(items):
    """It comes back as it is, and what is beside it comes back as without it."""
    beside = {"g": np.float32(1), "x/y": [1, 2], "n": 3, "v": np.arange(2)}
    found = npzkit.load_tree(saved({"a": items, **beside}))
    assert repr(found.pop("a")) == repr(items)
    assert is_same(found, npzkit.load_tree(saved(beside)))


@each_row(
    "items",
    [[1, 0.5], [True, 2], [1, float("nan")], [[1, 2], [float("nan"), 0.5]], (2**63, -1), ["a", "bc"],
     [np.float32(0.1), 0.1], [np.datetime64("2026-01-31"), np.datetime64("NaT", "D")], [[], []], [2**64 - 1]],
)  # fmt: skip
def test_a_flat_list_of_equal_values_is_an_array(items):
    """Its values are equal, whatever their types; NaN is equal to NaN."""
    found = npzkit.load_tree(saved({"a": items, "n": 3}))["a"]
    assert is_same(found, np.asarray(items))


@each_row("value", ["mine", 0, 1.5, False])
def test_metadata_in_the_place_of_the_note_are_refused(value):
    """A user's own value of npzkit.tree is not dropped in silence; a copied note is replaced."""
    for arrays in ({"a": {"b": 1}}, {"a": 1}, {"a": np.eye(2)}, {"a/b": np.eye(2)}):
        with pytest.raises(ValueError, match=r"'npzkit\.tree' is reserved"):
            saved(arrays, metadata={"npzkit.tree": value})
    with pytest.raises(ValueError, match=r"'npzkit\.tree' is reserved"):
        npzkit.NpzWriter(io.BytesIO(), metadata={"npzkit.tree": value})
    with npzkit.open(saved({"a": {"b": 1}}, metadata={"npzkit.tree": {"a": ["list"]}})) as npz:
        assert npzkit.load_tree(npz) == {"a": {"b": 1}}


@pytest.mark.parametrize("beside", [{}, {"n": None}, {"a/b": np.eye(1)}, {"m": {"w": np.eye(1)}}])
def test_a_number_comes_back_as_a_number(beside):
    """Whatever is beside it: the very number, string or bytes that was saved, in its place."""
    numbers = {
        "w": np.eye(2), "lr": 0.1, "i": 3, "b": True, "c": 1j, "s": "text", "by": b"a",
        "nan": float("nan"), "zero": -0.0, "big": 2**100, "x": np.eye(1), "nul": "a\0",
        "bytes": b"a\0", "none": "", "long": 2**63,
    }  # fmt: skip
    tree = {**numbers, **beside, "last": np.ones(1)}
    stream = saved(tree)
    assert is_same(npzkit.load_tree(stream), tree)
    assert is_same(npzkit.load_tree(stream, only=["lr", "big"]), {"lr": 0.1, "big": 2**100})
    for key, value in numbers.items():
        assert is_same(npzkit.load_tree(saved({key: value, **beside}))[key], value)


def test_a_copy_knows_the_numbers_of_its_note():
    """The note that comes as metadata is kept, also if a number is new."""
    tree = {"layer": {"w": np.eye(2)}, "step": 1}
    with npzkit.open(saved(tree)) as npz:
        copy = saved({**npz, "step": 2}, metadata=npz.metadata)
    assert is_same(npzkit.load_tree(copy), {"layer": {"w": np.eye(2)}, "step": 2})


def test_a_flat_mapping_with_slashes_comes_back_flat():
    """What `save` was given comes back; only keys of others are split at their slashes."""
    arrays = {"dense/kernel": np.arange(2), "dense/bias": np.ones(3), "c": [1, 2]}
    stream = saved(arrays)
    assert is_same(npzkit.load_tree(stream), arrays | {"c": np.array([1, 2])})
    assert is_same(npzkit.load_tree(stream, only="dense/b*"), {"dense/bias": np.ones(3)})
    nested = {"dense": {"kernel": np.arange(2)}}
    assert is_same(npzkit.load_tree(saved(nested)), nested)
    written = io.BytesIO()
    with npzkit.NpzWriter(written) as w:
        w["dense/kernel"] = np.arange(2)
    assert is_same(npzkit.load_tree(written), nested)
    copied = io.BytesIO()
    npzkit.save(copied, {"dense/kernel": np.arange(2)}, metadata=npzkit.open(written).metadata)
    assert is_same(npzkit.load_tree(copied), {"dense/kernel": np.arange(2)})


def test_a_flat_mapping_stays_flat_when_it_is_edited(tmp_path):
    """Arrays that are added to a flat mapping keep their names; a tree beside them is one."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.ones(1), "a/b": np.ones(2), "a/c": np.ones(3)})
    with npzkit.NpzWriter(path, "a") as w:
        w["d/e"] = np.ones(4)
        del w["a/b"]
        w.rename("x", "y/z")
    flat = {"y/z": np.ones(1), "a/c": np.ones(3), "d/e": np.ones(4)}
    assert is_same(npzkit.load_tree(path), flat)
    with npzkit.NpzWriter(path, "a") as w:
        w.add("run/1", {"m": np.ones(5), "n": None})
    tree = flat | {"run": {"1": {"m": np.ones(5), "n": None}}}
    assert is_same(npzkit.load_tree(path), tree)


def test_none_alone_makes_a_tree():
    """None has no array: a mapping that holds it is a tree, and it comes back."""
    assert npzkit.load_tree(saved({"x": np.array(1), "n": None})) == {"x": 1, "n": None}


def test_a_list_of_numpys_numbers_is_an_array():
    """NumPy's scalars in a list make it no tree."""
    stream = saved({"x": [np.float32(1), 2, b"3"[0], 1j]})
    assert npzkit.open(stream).files == ["x"]
    assert npzkit.open(stream).metadata == {}


@each_row(
    "value",
    [
        2**70,
        [2**64, 1],
        [10**400, 1.5],
        "nul\0",
        ["a", "b\0"],
        [True, 1],
        [1, 2.5],
        (1, (2, 3)),
        -0.0,
    ],
)
def test_what_numpy_would_change_is_kept_as_it_is(value):
    """Numbers and text beside nested data come back exactly, also where an array has no room."""
    assert is_same(npzkit.load_tree(saved({"n": {}, "x": value})), {"n": {}, "x": value})


def test_numbers_at_the_top_are_arrays():
    """Python's numbers beside nested data are in the archive as arrays, NaN among them."""
    stream = saved({"n": {"w": np.array(2.0)}, "x": float("nan"), "y": [1.5, float("nan")]})
    assert npzkit.open(stream).files == ["n/w", "x", "y"]
    tree = npzkit.load_tree(stream)
    assert isinstance(tree["n"]["w"], np.ndarray)
    assert (repr(tree["x"]), repr(tree["y"])) == ("nan", "[1.5, nan]")


def test_a_mapping_of_mappings_needs_no_note():
    """Where keys say all, the metadata is what was given."""
    stream = saved({"layer": {"w": np.eye(2)}}, metadata={"step": 1})
    assert npzkit.open(stream).metadata == {"step": 1}


def test_a_tree_saved_again_has_its_own_note():
    """Metadata that is carried over brings no note of another tree."""
    first = npzkit.open(saved({"a": [np.eye(2), None]}))
    again = saved({"a": {"b": np.eye(2)}}, metadata=first.metadata)
    assert is_same(npzkit.load_tree(again), {"a": {"b": np.eye(2)}})


def test_any_archive_is_a_tree(fixtures):
    """Other programs' archives are split at slashes; an array beside its own branch is kept."""
    assert list(npzkit.load_tree(fixtures / "numpy_savez.npz")) == ["x", "y", "scalar"]
    stream = io.BytesIO()
    np.savez(
        stream, **{"a": np.array(1), "a/b": np.array(2), "a/b/c": np.array(3), "d/e": np.array(4)}
    )
    assert npzkit.load_tree(stream) == {"a": 1, "a/b": 2, "a/b/c": 3, "d": {"e": 4}}
    stream = io.BytesIO()
    np.savez(stream, **{"a/b/c": np.array(3), "a/b": np.array(2), "a": np.array(1)})
    assert npzkit.load_tree(stream) == {"a": 1, "a/b": 2, "a/b/c": 3}


@given(
    st.lists(
        st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join),
        unique=True,
        max_size=12,
    )
)
@example(["a/b/c/x", "a", "a/b/c", "a/b"])
def test_no_array_of_a_tree_hides_another(keys):
    """Whichever keys begin like others, and in any order, each array is in the tree once."""
    arrays = {key: np.array(number) for number, key in enumerate(keys)}

    def leaves(tree, prefix=""):
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from leaves(value, f"{prefix}{name}/")
            else:
                yield prefix + name, value

    stream = io.BytesIO()
    with npzkit.NpzWriter(stream) as w:
        for key, array in arrays.items():
            w[key] = array
    tree = npzkit.load_tree(stream)
    assert sorted(leaves(tree)) == sorted(arrays.items())
    for key in keys:
        above = [other for other in keys if key.startswith(f"{other}/")]
        beside = min(above, key=len, default=key).rpartition("/")[0]
        branch = tree
        for part in beside.split("/") if beside else []:
            branch = branch[part]
        assert key.removeprefix(f"{beside}/") in branch


def test_an_open_archive_is_read_and_left_open():
    """An NpzFile is taken as well."""
    npz = npzkit.open(saved({"a": {"b": 1}}))
    assert npzkit.load_tree(npz, threads=1) == {"a": {"b": 1}}
    assert npz.metadata


def test_what_was_edited_since_is_read_as_it_is():
    """Arrays removed from a list, or added to it, leave a dict of what is there."""
    stream = saved(
        {"a": [np.array(1), np.array(2)], "b": (None, np.array(3)), "n": 1, "s": {"t": 5}}
    )
    with npzkit.NpzWriter(stream, "a") as w:
        del w["a/0"]
        w["b/x"] = 4
        w.add("n", 9, overwrite=True)
        w.add("s/t", 6, overwrite=True)
    assert npzkit.load_tree(stream) == {
        "a": {1: 2}, "b": {0: None, 1: 3, "x": 4}, "n": 9, "s": {"t": 6},
    }  # fmt: skip


def test_arrays_that_took_the_place_of_others():
    """An array under the key of what was a number, a list or a dict is in the tree as it is."""
    stream = saved({"n": 1, "a": [np.eye(2), None], "s": {"t": 5}, "w": {"x": np.eye(1)}, "y": [1]})
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("n", np.arange(2), overwrite=True)
        w.add("y", np.array(3), overwrite=True)
        del w["a/0"]
        w["a"], w["s"] = np.arange(3), np.arange(4)
    tree = npzkit.load_tree(stream)
    assert {key: type(tree[key]) for key in "nasy"} == dict.fromkeys("nasy", np.ndarray)
    assert [tree[key].tolist() for key in "nasy"] == [[0, 1], [0, 1, 2], [0, 1, 2, 3], 3]


def test_options_and_errors_are_opens(tmp_path):
    """Pickles and limits are as in npzkit.open, and a damaged note is told with its path."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.array([None])}, allow_pickle=True)
    with pytest.raises(PickleRefusedError):
        npzkit.load_tree(path)
    assert npzkit.load_tree(path, allow_pickle=True)["x"].tolist() == [None]
    with pytest.raises(LimitExceededError):
        npzkit.load_tree(path, allow_pickle=True, limits=npzkit.Limits(member_count=0))
    npzkit.save(path, {}, metadata={"npzkit.tree": ["value", 1]})
    with pytest.raises(ZipFormatError, match="damaged") as caught:
        npzkit.load_tree(path)
    assert caught.value.path == str(path)
    npzkit.save(path, {"a": np.eye(2)}, metadata={"npzkit.tree": {"a": "x" * 10_000}})
    with pytest.raises(ZipFormatError, match=r"xxx\.\.\."):
        npzkit.load_tree(path)


def test_the_note_of_a_newer_npzkit(tmp_path):
    """What a newer npzkit says of a tree is not taken for damage, and no edit spoils it."""
    path = tmp_path / "a.npz"
    comment = b'{"npzkit.tree":["version",2,{"a":["what","is","new"]}]}'
    before = archive(Member("a.npy", npy(np.eye(2))), comment=comment)
    path.write_bytes(before)
    for call in (npzkit.load_tree, lambda path: npzkit.load_tree(path, only="a")):
        with pytest.raises(UnsupportedError, match="Install a newer npzkit") as caught:
            call(path)
        assert caught.value.path == str(path)
        assert not caught.value.is_damage
    with pytest.raises(UnsupportedError, match="Install a newer npzkit"):
        npzkit.NpzWriter(path, "a")
    assert path.read_bytes() == before
    with npzkit.open(path, strict=True) as npz:
        assert np.array_equal(npz["a"], np.eye(2))


def circular():
    tree = {"a": {}}
    tree["a"]["b"] = [tree["a"]]
    return tree


def circular_list():
    items = [1]
    items.append(items)
    return {"a": items}


def deep():
    tree = {"w": np.eye(2)}
    for _ in range(300):
        tree = {"a": tree}
    return tree


@pytest.mark.slow
@each_row(
    ("tree", "error", "text"),
    [
        ({"a": {1.5: np.eye(2)}}, TypeError, "a key must be a string or an int, not float, in 'a'"),
        ({"a": {True: np.eye(2)}}, TypeError, "not bool"),
        ({"a": {1: np.eye(2), "1": np.eye(2)}}, ValueError, "two items .* 'a/1'"),
        (
            {"n": {}, "a": [type("P", (Point,), {"_fields": ("x", "1")})(1, 2)]},
            UnsupportedError,
            "'a/0'",
        ),
        (
            {"n": {}, "a": [type("P", (Point,), {"_fields": ("\uff58", "x")})(1, 2)]},
            UnsupportedError,
            "'a/0'",
        ),
        (
            {"n": {}, "a": [namedtuple("P", [f"n{i}" for i in range(1001)])(*range(1001))]},
            UnsupportedError,
            "1000.*'a/0'.*_asdict",
        ),
        (
            {"n": {}, "a": [namedtuple(f"P{i}", ())() for i in range(1001)]},
            UnsupportedError,
            "'a/1000'",
        ),
        ({"n": {}, "a": [np.bytes_(b"x\0")]}, UnsupportedError, "zeros.*'a/0'"),
        ({"a": {"b": 1, "c": np.eye(1)}, "a/c": np.eye(2)}, ValueError, "two items .* 'a/c'"),
        (circular(), ValueError, "contains itself"),
        (circular_list(), ValueError, "contains itself"),
        (deep(), ValueError, "nested more than 200 deep"),
        ({"a": {"": np.eye(2)}}, npzkit.errors.UnsafeNameError, "empty part"),
        ({"a": [np.eye(2), {Path()}]}, UnsupportedError, r"'a/1'.*list\(value\)"),
        ({"n": {}, "a": [{np.int64(1)}]}, UnsupportedError, r"'a/0'.*list\(value\)"),
        ({"n": {}, "a": Colour.RED}, PickleRefusedError, r"'a'.*value\.value"),
        ({"n": {}, "a": ["", {Colour.RED}]}, PickleRefusedError, r"'a/1'.*value\.value"),
        ({"n": {}, "a": [10**5000]}, UnsupportedError, "'a/0'.*string"),
        ({"a": frozen(101)}, UnsupportedError, "nested too deeply.*'a'"),
        ({"a": [zoned("Europe/Berlin")]}, PickleRefusedError, r"'a/0'.*isoformat"),
        ({"a": [np.dtype("i1,f8", align=True)]}, PickleRefusedError, r"'a/0'.*value\.descr"),
    ],
)
def test_what_is_no_tree_is_refused(tmp_path, tree, error, text):
    """A tree that cannot be kept is an error that says where, and nothing is written."""
    path = tmp_path / "a.npz"
    with pytest.raises(error, match=text):
        npzkit.save(path, tree)
    assert not path.exists()


class Sequence:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return ["x", 1.5][index]


@pytest.mark.remedy("Save list(value).")
@each_row("value", [deque(["x", 1.5]), range(2), Sequence()])
def test_another_sequence_in_nested_data_is_refused(value):
    """NumPy makes an array of a deque or a range, which changed the values or lost the type."""
    for tree, key in [({"a": {"b": value}}, "a/b"), ({"n": {}, "a": [value]}, "a/0")]:
        with pytest.raises(UnsupportedError, match=f"{key}.*list.value") as info:
            saved(tree)
        assert info.value.found == type(value).__name__
    back = npzkit.load_tree(saved({"a": {"b": list(value)}, "w": np.ones(1)}))
    assert back["a"]["b"] == list(value)


def test_a_sequence_in_a_flat_dict_is_an_array_unless_values_change():
    """As numpy.savez saves it; a value that would change is an error with the key."""
    flat = {"d": deque([1, 2.5]), "r": range(3), "l": ["x", 1.5]}
    back = npzkit.load_tree(saved(flat))
    assert back["d"].tolist() == [1, 2.5]
    assert back["r"].tolist() == [0, 1, 2]
    assert back["l"] == ["x", 1.5]
    with pytest.raises(UnsupportedError, match=r"key 'd'.*list\(value\)"):
        saved({"d": deque(["x", 1.5]), "w": np.ones(1)})
    # What has a buffer, or says what its array is, is an array everywhere.
    assert npzkit.load_tree(saved({"a": {"b": bytearray(b"ab")}}))["a"]["b"].tolist() == [97, 98]


@each_row(
    "note",
    [
        7, "x", [], ["what", 1], ["value"], ["value", [1]], ["value", {"a": 1}], ["value", []],
        *({"n": ["value", note]} for note in (
            [[]], ["what"], ["set", ["list"]], ["dict", 1], ["complex", "1", 2], ["complex", 1, 2, 3],
            ["complex", 10**400], ["array", "x"], ["named", "P", ["list"]], ["datetime.date", "x"],
            ["datetime.date", 1], ["datetime.timedelta", 10**30], ["numpy.dtype", "M8[s/2]"],
            ["numpy.dtype"], ["numpy.dtype", ["list", 1]], ["set", *nested(101)], ["builtins.set"],
        )),
        ["ints"], ["ints", 5], {"a": ["ints", {}, 5]}, {"a": ["ints", {"b": 5}]}, ["ints", {}, [], 1],
        ["as", "code"], ["as", ["value"]], ["as", {}], ["complex"], ["complex", 1, 2],
        ["named"], ["named", "P"], ["named", 1, []], ["named", "P", "x", 1],
        ["same"], ["same", 1], ["same", ["x"]], ["same", "x", "y", "z"], ["as", "tensor", "x", "y"],
        ["named", "P", ["x"]], ["named", "P", ["b"], None, None], ["named", "P", [1], None],
        *({"a": ["named", "P", ["b", "c"], None, ["named", *names]]} for names in (
            ["P Q", []], ["P", ["class"], ["value", 1]], ["P", ["_x"], ["value", 1]],
            ["P", ["b", "b"], ["value", 1], ["value", 1]],
            ["P", ["\uff42", "b"], ["value", 1], ["value", 1]],
            ["P", ["__import__('os').abort()"], ["value", 1]], ["", []], ["P", [""], ["value", 1]],
        )),
        [[], {}], [{}, 1], {"a": 5}, {"a": ["list", 5]}, {"a": ["as"]}, {"a": {"b": [[]]}},
    ],
)  # fmt: skip
def test_a_damaged_note_is_one_error(note):
    """Metadata of another make is a format error that says what is wrong."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream) as writer:
        writer["a/b"] = np.eye(2)
        writer.metadata["npzkit.tree"] = note
    with pytest.raises(ZipFormatError, match="structure of the nested data is damaged"):
        npzkit.load_tree(stream)


def test_deep_notes_and_keys_are_refused():
    """Neither a note nor a key makes reading recurse without end."""
    note = json.loads('{"a":' * 300 + "null" + "}" * 300)
    stream = io.BytesIO()
    note["x"] = None
    npzkit.save(stream, {"x": np.eye(2)}, metadata={"npzkit.tree": note})
    with pytest.raises(ZipFormatError, match="damaged"):
        npzkit.load_tree(stream)
    stream = saved({"/".join("a" * 300): np.eye(2)})
    with pytest.raises(LimitExceededError, match="parts"):
        npzkit.load_tree(stream)


@pytest.mark.parametrize(
    "array", [np.zeros((2**27, 0)), np.zeros((2**29, 0, 3), "u1"), np.ndarray(2**24, "S0")]
)
def test_lists_are_not_made_of_a_shape_alone(array):
    """Lists that nothing but a shape claims stay an array, and take no memory."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": array}, metadata={"npzkit.tree": {"a": ["as", "list"]}})
    found = npzkit.load_tree(stream)["a"]
    assert isinstance(found, np.ndarray)
    assert found.shape == array.shape


def test_lists_of_any_make_come_back():
    """Empty lists, and lists of one item each at any depth, are what was saved."""
    deep = 7
    for _ in range(60):
        deep = [deep]
    tree = {"empty": [[]] * 1000, "deep": deep, "none": None, "column": [[1]] * 3}
    assert npzkit.load_tree(saved(tree)) == tree


def test_names_with_slashes_come_back():
    """A name with a slash is one name, at any depth; np.load has one key per array."""
    x = np.arange(2)
    tree = {
        "dense/kernel": x,
        "c": {"d": x, "e/f": {"g/h": [x, {"i/j": 1}], "k": x}},
        "x/y": [x, None],
        "x": {"z": (1, x), "y2": x},
        "n/m": {"k": "text"},
        "x/y/z": {},
        3: x,
    }
    stream = saved(tree)
    assert is_same(npzkit.load_tree(stream), tree)
    assert npzkit.open(stream).files[:4] == ["dense/kernel", "c/d", "c/e/f/g/h/0", "c/e/f/k"]
    assert is_same(npzkit.load_tree(stream, "c/e/f"), tree["c"]["e/f"])
    assert is_same(npzkit.load_tree(stream, "c/e/f/g/h/1"), {"i/j": 1})
    assert is_same(npzkit.load_tree(stream, "dense/kernel"), x)
    assert is_same(npzkit.load_tree(stream, only="dense/*"), {"dense/kernel": x})
    parts = {"x/y": [x, None], "n/m": {"k": "text"}, "x/y/z": {}}
    assert is_same(npzkit.load_tree(stream, only=["x/y", "n"]), parts)
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("run/1", {"dense/kernel": x, "c": None})
    assert is_same(npzkit.load_tree(stream, "run"), {"1": {"dense/kernel": x, "c": None}})


@each_row(
    "tree",
    [
        [np.arange(2), {"n": None}], (np.arange(2), (1.5, "text")), Point(np.arange(3), {"a": 1}),
        [], (), {}, Empty(), np.arange(3), np.zeros((), "i4,f8"), [1, 2, 3], ([],), [{}],
        (np.arange(2),),
    ],
)  # fmt: skip
def test_any_tree_may_be_saved(tree):
    """A list, a tuple, a namedtuple and an array come back as they were, without a dict around."""
    assert is_same(npzkit.load_tree(saved(tree)), tree)


def test_the_keys_of_a_tree_without_names():
    """Items of a list have their indices as keys, and an array alone has NumPy's name."""
    stream = saved((np.arange(2), {"w": np.eye(2)}))
    assert npzkit.open(stream).files == ["0", "1/w"]
    assert npzkit.load_tree(stream, "1/w").tolist() == [[1, 0], [0, 1]]
    assert npzkit.load_tree(stream, only="1").keys() == {1}
    stream = saved(np.arange(2))
    assert npzkit.open(stream).files == ["arr_0"]
    assert npzkit.load_tree(stream, "arr_0").tolist() == [0, 1]
    with npzkit.NpzWriter(stream, "a") as w:
        w["b"] = np.arange(3)
    assert npzkit.load_tree(stream).keys() == {"arr_0", "b"}


@pytest.mark.parametrize("tree", [None, 5, "text", b"bytes", {1, 2}, (i for i in "ab")])
def test_what_is_neither_container_nor_array_is_refused(tree):
    """A value alone is no tree: it may be a mistake."""
    with pytest.raises(TypeError, match="must be a mapping"):
        saved(tree)


def test_values_of_numpy_and_of_python_come_back():
    """Complex numbers, bytes and NumPy's scalars keep their type, dtype and value at any place."""
    values = [
        1j, complex("nan-infj"), b"", b"a\0", bytes(range(256)), np.float32(0.1), np.str_("ab"), np.str_(""),
        np.bytes_(b""), np.array((1, 2.5), "i4,f8")[()], np.timedelta64(5, "ms"),
    ]  # fmt: skip
    if np.dtype("g") != np.dtype("d"):
        # A long double of Windows is a double, and comes back as one.
        values.append(np.longdouble(1) / 3)
    for tree in ({"n": {}, "x": values}, {"n": {str(i): value for i, value in enumerate(values)}}):
        assert is_same(npzkit.load_tree(saved(tree)), tree)
    for value in values:
        tree = {"n": {}, "x": value}
        assert is_same(npzkit.load_tree(saved(tree)), tree)


def test_values_of_a_configuration_come_back(tmp_path):
    """Sets, dates and dtypes are themselves again: in a flat dict, deeper, in parts, in a step."""
    config = {f"v{number}": value for number, value in enumerate(CONFIG)}
    for tree in (config, {"w": np.eye(2), **config}, {"run": [config, *CONFIG]}):
        stream = saved(tree)
        assert is_same(npzkit.load_tree(stream), tree)
        assert is_same(npzkit.load_tree(stream, like=tree), tree)
    assert npzkit.load_tree(stream, "run/1") == CONFIG[0]
    assert npzkit.load_tree(stream, only="run/0/v3") == {"run": {0: {"v3": CONFIG[3]}}}
    store = npzkit.checkpoint.CheckpointStore(tmp_path)
    store.save(1, {"config": config})
    assert is_same(store.load(1).tree["config"], config)
    assert saved({"s": {0, 8}}).getvalue() == saved({"s": {8, 0}}).getvalue()


def test_a_stream_comes_back():
    """An io.BytesIO, which some layers have in their state, has its bytes again."""
    stream = saved({"extra": io.BytesIO(b"a\0")})
    assert npzkit.open(stream)["extra"].tolist() == [97, 0]
    assert npzkit.load_tree(stream)["extra"].read() == b"a\0"


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (["torch.dtype", "torch.float32"], "torch.float32"), (["torch.device", "cuda:1"], "cuda:1"),
        (["torch.Size", 1, 2], (1, 2)),
    ],
)  # fmt: skip
def test_a_value_of_pytorch_without_pytorch(note, text, monkeypatch):
    """Without PyTorch, its dtypes and devices are texts, and a warning says what to install."""
    monkeypatch.setitem(sys.modules, "torch", None)
    stream = saved({"x": np.eye(2)}, metadata={"npzkit.tree": {"d": ["value", note]}})
    with pytest.warns(UserWarning, match=f"not read as a {note[0]} .* pip install torch"):
        assert npzkit.load_tree(stream)["d"] == text


def test_scalars_of_extension_dtypes_come_back():
    """A scalar of bfloat16 is a scalar of bfloat16 again."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    dtype = np.dtype(ml_dtypes.bfloat16)
    found = npzkit.load_tree(saved({"a": {"x": dtype.type(1.5), "dtype": dtype}}))["a"]
    assert (type(found["x"]), found["x"], found["dtype"]) == (dtype.type, 1.5, dtype)


def test_a_namedtuple_is_saved_by_its_fields():
    """np.load sees the fields' names; equal namedtuples of one class come back, without the class."""
    tree = {"points": [Point(np.arange(2), 0.5), Point(np.arange(3), Point(1, {}))]}
    stream = saved(tree)
    assert npzkit.open(stream).files == ["points/0/x", "points/1/x"]
    one, other = npzkit.load_tree(stream)["points"]
    assert is_same([one, other], tree["points"])
    assert type(one) is type(other) is type(other.y) is not Point
    assert (type(one).__name__, one._fields, one.y) == ("Point", ("x", "y"), 0.5)
    assert npzkit.load_tree(stream, "points/1/y") == Point(1, {})
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("points/0", {"x": 1, "z": [2]}, overwrite=True)
    assert npzkit.load_tree(stream, "points/0") == {"x": 1, "z": [2]}


def test_a_namedtuple_that_lost_a_field_is_a_dict():
    """An array removed from a namedtuple leaves a dict of the others."""
    stream = saved({"p": Point(np.arange(2), np.arange(3)), "n": None})
    with npzkit.NpzWriter(stream, "a") as w:
        del w["p/x"]
    assert is_same(npzkit.load_tree(stream), {"p": {"y": np.arange(3)}, "n": None})


def test_a_dataclass_is_saved_as_a_dict_of_its_fields():
    """An instance of a dataclass comes back as the dict of its fields."""

    @dataclasses.dataclass
    class State:
        step: int
        params: dict

    tree = {"state": State(3, {"w": np.eye(2)})}
    expected = {"state": {"step": 3, "params": {"w": np.eye(2)}}}
    stream = saved(tree)
    assert is_same(npzkit.load_tree(stream), expected)
    with npzkit.NpzWriter(stream, "a") as w:
        w["other"] = tree["state"]
    assert is_same(npzkit.load_tree(stream, "other"), expected["state"])


@pytest.mark.parametrize("wrap", [lambda t: {0: t}, lambda t: [t], lambda t: Point(t, 1)])
def test_trees_as_deep_as_allowed_come_back(wrap):
    """What can be saved can be loaded, 200 levels deep."""
    tree = {"w": np.eye(2)}
    for _ in range(198):
        tree = wrap(tree)
    tree = {"a": tree}
    assert repr(npzkit.load_tree(saved(tree))) == repr(tree)


def test_a_hundred_classes_of_namedtuples_are_made_once():
    """Loading twice gives values of the same class."""
    tree = {"a": [namedtuple(f"P{i}", "x y")(i, i) for i in range(100)], "n": None}
    stream = saved(tree)
    first, second = npzkit.load_tree(stream), npzkit.load_tree(stream)
    assert list(map(type, first["a"])) == list(map(type, second["a"]))


def test_a_file_cannot_claim_thousands_of_classes():
    """A note with more classes than a tree may have is refused; each would take memory and time."""
    note = {"a": ["list", *[["named", f"P{i}", []] for i in range(1001)]]}
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.eye(2)}, metadata={"npzkit.tree": note})
    with pytest.raises(ZipFormatError, match="damaged"):
        npzkit.load_tree(stream)


def linked():
    """Return an archive in which two keys have the array of a third one."""
    stream = io.BytesIO()
    links = {"b": {"w": ["same", "a/w"], "l": ["list", ["same", "a/w", "half"], ["value", 1]]}}
    npzkit.save(stream, {"a/w": np.arange(3), "c": np.eye(2)}, metadata={"npzkit.tree": links})
    return stream


def test_one_array_under_several_keys():
    """The note may say that an array has other keys; each part of the tree has it."""
    stream = linked()
    found = npzkit.load_tree(stream)
    assert list(found) == ["b", "a", "c"]
    assert found["a"]["w"] is found["b"]["w"] is found["b"]["l"][0]
    assert npzkit.load_tree(stream, "b/w").tolist() == [0, 1, 2]
    assert npzkit.load_tree(stream, "b")["l"][0].tolist() == [0, 1, 2]
    assert list(npzkit.load_tree(stream, only=["b/l/0", "c"])) == ["b", "c"]
    example = {"b": {"w": np.zeros(3, int), "l": [np.zeros(3, int), 0]}, "a": ..., "c": ...}
    found = npzkit.load_tree(stream, like=example)
    found["b"]["w"][0] = 7
    assert found["b"]["l"][0].tolist() == [0, 1, 2]
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("b/w", np.ones(1), overwrite=True)
    assert npzkit.load_tree(stream)["b"]["w"].tolist() == [1]


@pytest.mark.parametrize("name", ["a/w", "a/w.npy"])
def test_an_array_stays_under_its_other_keys(name):
    """Removing, replacing and renaming one key of an array changes no other key."""

    def changed(change):
        stream = linked()
        with npzkit.NpzWriter(stream, "a") as w:
            change(w)
        assert npzkit.verify(stream).ok
        found = npzkit.load_tree(stream)
        assert found["b"]["w"] is found["b"]["l"][0]
        assert found["b"]["w"].tolist() == [0, 1, 2]
        return found

    assert "a" not in changed(lambda w: w.__delitem__(name))
    assert changed(lambda w: w.add("a/w", np.ones(1), overwrite=True))["a"]["w"].tolist() == [1]
    assert changed(lambda w: w.add("a", {"v": [np.ones(1)]}, overwrite=True))["a"].keys() == {"v"}
    assert changed(lambda w: w.rename(name, "a/x"))["a"].keys() == {"x"}


def test_a_link_to_nothing_is_nothing():
    """If the array of several keys is not there, they are not either."""
    stream = io.BytesIO()
    note = {"b": {"w": ["same", "a/w"]}, "c": {"w": ["same", "b/w"]}}
    npzkit.save(stream, {"x": np.eye(2)}, metadata={"npzkit.tree": note})
    assert npzkit.load_tree(stream) == {"x": pytest.approx(np.eye(2))}
    with pytest.raises(MemberNotFoundError):
        npzkit.load_tree(stream, "b/w")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(
        ["list", "tuple", "ints", "value", "as", "complex", "set", "datetime.date", "numpy.dtype", "named", "scalar", "bytes", "same", "tensor", "nested/array/0", "a", "x", "0"]
    ),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["a", "b", "x", "0"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def mutated(note, data):
    """Return a note with one part of it replaced, removed or repeated."""
    if isinstance(note, (list, dict)) and note and data.draw(st.integers(0, 3)):
        note = note.copy()
        places = list(note) if isinstance(note, dict) else range(len(note))
        place = data.draw(st.sampled_from(list(places)))
        change = data.draw(st.sampled_from(["into", "into", "into", "remove", "repeat"]))
        if change == "into":
            note[place] = mutated(note[place], data)
        elif change == "remove":
            del note[place]
        elif isinstance(note, list):
            note.insert(place, note[place])
        return note
    return data.draw(JSON)


@given(TREES, st.data())
def test_a_mutated_note_is_read_or_refused(tree, data):
    """Any other note gives a tree, or the one error for a damaged structure."""
    tree["nested"] = {"array": [np.arange(2), None], 0: Point(np.arange(3), 1)}
    stream = saved(tree)
    with npzkit.open(stream) as npz:
        note = json.loads(json.dumps(npz.metadata["npzkit.tree"]))
        arrays = npz.load_all()
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream) as writer:
        for key, array in arrays.items():
            writer[key] = array
        writer.metadata["npzkit.tree"] = mutated(note, data)
    for prefix in (None, "nested", "nested/0"):
        try:
            npzkit.load_tree(stream, prefix)
        except ZipFormatError as error:
            assert "the structure of the nested data is damaged" in str(error)  # noqa: PT017
        except MemberNotFoundError:
            assert prefix is not None


@pytest.mark.parametrize(
    "tree",
    [
        {"a/b": 5, "a": {"b": 6}},
        {"a/b": [np.ones(1)], "a": {"b": {"c": np.ones(2)}}},
        {"a/b": np.ones(1), "a": {"b/c": np.ones(2)}},
        {"x": [{"a": {"b/c": {"d": np.ones(1)}}, "a/b": {"e": 5}}]},
        {1: [1, None], "1/0": 5},
    ],
)
def test_two_items_with_one_key_are_refused(tree):
    """A name with a slash may not be the key of what is in another item."""
    with pytest.raises(UnsupportedError, match="two items of the tree"):
        saved(tree)


@each_row(
    "tree",
    [
        {"x": {"a": 5, "a/b": 6}},
        {"x": {"a": 5, "a/b": np.ones(1)}},
        {"b": [None, 5], "b/c": {"w": np.ones(1)}},
        {"a": np.ones(1), "a/b": [np.ones(1), 5]},
        {"a": np.ones(1), "a/b": np.ones(2), "a/c": None},
        {"a/b": np.ones(2), "a": np.ones(1), "c": None},
        {"a/b": np.ones(2), "a/c": {"d": 5}},
        {"a": {"b": {"x": 1}}, "a/b/c": np.ones(1)},
    ],
)
def test_names_with_slashes_beside_others(tree):
    """A name may begin with that of an array, a value or a container beside it."""
    assert is_same(npzkit.load_tree(saved(tree)), tree)
