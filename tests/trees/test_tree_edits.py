"""Trees whose arrays are added, replaced, renamed and removed one by one."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

import npzkit
import numpy as np
import pytest
from deep import amount
from hypothesis import given, settings
from hypothesis import strategies as st
from npzkit.errors import KeyExistsError, MemberNotFoundError, NpzkitError
from npzkit.members.metadata import TREE_KEY
from npzkit.trees.containers import flatten

from tables import each_row


class Pair(NamedTuple):
    one: object
    two: object


def is_within(key, other):
    return key == other or key.startswith(other + "/")


def items_of(node):
    """Return what is in a container by name, or None."""
    if isinstance(node, dict):
        return {str(name): item for name, item in node.items()}
    if hasattr(node, "_fields"):
        return node._asdict()
    if isinstance(node, (list, tuple)):
        return {str(index): item for index, item in enumerate(node)}
    return None


def leaves(node, key=""):
    """Return the leaves of a tree by their keys; containers without items are leaves."""
    items = items_of(node)
    if not items:
        return {key: node} if key else {}
    found = {}
    for name, item in items.items():
        found |= leaves(item, f"{key}/{name}" if key else name)
    return found


def shown(leaf):
    """Return a text that is the same for equal leaves, whatever empty containers they are."""
    if isinstance(leaf, np.ndarray):
        return f"array {leaf.dtype} {leaf.tolist()}"
    return "empty" if items_of(leaf) == {} else f"{type(leaf).__name__} {leaf!r}"


NAMES = st.sampled_from(["a", "b", "c", "0", "1", "a/b", "c/a"])
KEYS = st.lists(st.sampled_from("abc01"), min_size=1, max_size=3).map("/".join)
ARRAYS = st.integers(0, 1000).map(lambda number: np.array([number]))
TIE = "the same as another"
UNKNOWN = object()
LEAVES = ARRAYS | st.sampled_from([None, 7, "text", np.float32(3), TIE])


def containers(inner):
    return st.one_of(
        st.dictionaries(NAMES, inner, max_size=3),
        st.dictionaries(st.integers(0, 2), inner, max_size=2),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Pair, inner, inner),
    )


NODES = st.recursive(LEAVES, containers, max_leaves=8)
# At the top, texts and lists of them would be arrays.
TREES = containers(
    NODES.map(lambda node: {"t": node} if node is TIE or isinstance(node, (list, tuple)) else node)
)
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS, ARRAYS),
        st.tuples(st.just("replace"), st.integers(0, 100), ARRAYS),
        st.tuples(st.just("rename"), st.integers(0, 100), KEYS),
        st.tuples(st.just("delete"), st.integers(0, 100)),
        st.tuples(st.just("delete"), st.integers(0, 100)),
        st.tuples(st.just("tree"), KEYS, TREES, st.booleans()),
        st.sampled_from([("commit",), ("reopen",)]),
    ),
    max_size=8,
)


def saved(tree):
    """Return an archive of a tree, and its leaves; texts that say so are tied to an array."""
    try:
        arrays, note = flatten(tree)
    except (NpzkitError, ValueError):
        # A name with a slash is the key of something else.
        return None, None
    model = leaves(tree)
    targets = [key for key, leaf in model.items() if type(leaf) is np.ndarray]

    def tied(note):
        if note == ["value", TIE]:
            return ["same", targets[0]]
        if isinstance(note, dict):
            return {name: tied(inner) for name, inner in note.items()}
        return [tied(inner) for inner in note] if isinstance(note, list) else note

    if targets:
        arrays = {k: v for k, v in arrays.items() if model[k] is not TIE}
        for key, leaf in model.items():
            if leaf is TIE:
                model[key] = model[targets[0]]
        note = tied(note)
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, metadata={} if note is None else {"npzkit.tree": note}) as w:
        for key, array in arrays.items():
            w[key] = array
    return stream, model


def put(model, key, leaf):
    """Place a leaf. What was saved empty may be filled by it, or be beside it."""
    for other in list(model):
        if other != key and is_within(key, other) and items_of(model[other]) == {}:
            model[other] = UNKNOWN
    model[key] = leaf


def edit(writer, model, kind, *arguments):
    """Make one edit of an archive, and of the leaves of its tree."""
    files = writer.files
    if kind in ("add", "replace"):
        key, array = arguments
        if kind == "replace":
            if not files:
                return
            key = files[key % len(files)]
        writer.add(key, array, overwrite=True)
        put(model, key, array)
    elif kind == "tree":
        key, tree, overwrite = arguments
        tree = [tree, None]
        try:
            flatten(tree, key)
        except (NpzkitError, ValueError):
            return
        inner = leaves({key: tree})
        inside = [leaf for other, leaf in model.items() if is_within(other, key)]
        if inside and not overwrite and not any(leaf is UNKNOWN for leaf in inside):
            with pytest.raises(KeyExistsError):
                writer.add(key, {"x": tree})
            return
        writer.add(key, tree, overwrite=True)
        for other in [other for other in model if is_within(other, key)]:
            del model[other]
        for below, leaf in inner.items():
            put(model, below, leaf)
    elif files:
        old = files[arguments[0] % len(files)]
        if kind == "delete":
            del writer[old]
            del model[old]
        elif arguments[1] not in files:
            try:
                writer.rename(old, arguments[1])
            except KeyExistsError:
                leaf = model[arguments[1]]
                assert not isinstance(leaf, np.ndarray)
                assert items_of(leaf) is None
                return
            put(model, arguments[1], model.pop(old))


@pytest.mark.slow
@settings(max_examples=amount(40, 4_000))
@given(TREES, EDITS)
def test_no_edit_loses_or_revives_a_leaf(tree, edits):
    """After any edits, in any commits, a tree has the leaves that a dict by keys has."""
    stream, model = saved(tree)
    if stream is None:
        return
    while edits:
        with npzkit.NpzWriter(stream, "a") as writer:
            while edits:
                kind, *arguments = edits.pop(0)
                if kind == "reopen":
                    break
                if kind == "commit":
                    writer.commit()
                else:
                    edit(writer, model, kind, *arguments)
    found = leaves(npzkit.load_tree(stream))
    for key in list(model):
        # What was saved empty, and is not any more.
        if model[key] is UNKNOWN or (
            shown(model[key]) == "empty" and sum(is_within(other, key) for other in model) > 1
        ):
            del model[key]
            found.pop(key, None)
    assert {key: shown(leaf) for key, leaf in found.items()} == {
        key: shown(leaf) for key, leaf in model.items()
    }


def test_an_archive_is_copied_array_by_array():
    """A writer that has the metadata of another archive makes the same tree of its arrays."""
    tree = {
        "a": [np.float32(1), (np.arange(2), None)],
        "b/c": {"d": b"bytes", "e": 5},
        "l": [1, 2],
        "n": {},
    }
    stream, copy = io.BytesIO(), io.BytesIO()
    npzkit.save(stream, tree)
    with npzkit.open(stream) as npz, npzkit.NpzWriter(copy, metadata=npz.metadata) as w:
        for key, array in npz.items():
            w[key] = array
    assert repr(npzkit.load_tree(copy)) == repr(tree)
    with npzkit.NpzWriter(copy, "a") as w:
        w.add("a/0", np.zeros(()), overwrite=True)
        with w.create("a/1/2", 3, "f8") as dst:
            dst[:] = 1
    zero, items = npzkit.load_tree(copy)["a"]
    assert isinstance(zero, np.ndarray)
    assert [items.keys(), items[2].tolist()] == [{0, 1, 2}, [1, 1, 1]]


# -- containers ------------------------------------------------------------------


class Model:
    """A container of a tree, as the rules for edits have it.

    `fixed` are the names of a list, tuple or namedtuple. `known` are names with slashes that
    the container has had. `texts` are names that look like ints and are none.
    """

    def __init__(self, node):
        items = items_of(node)
        self.kind, self.is_empty = type(node), not items
        self.fixed = None if isinstance(node, dict) else list(items)
        self.has_ints = any(type(name) is int for name in node) or type(node) in (list, tuple)
        self.texts = {name for name in node if isinstance(name, str)} if self.fixed is None else ()
        self.known = {name for name in items if "/" in name}
        self.items = {name: modelled(item) for name, item in items.items()}

    def name_in(self, rest):
        fitting = [name for name in self.known if is_within(rest, name)]
        return max(fitting, key=len, default=rest.partition("/")[0])

    def path(self, key):
        """Return the containers on the way to a key with the names in them; None past a leaf."""
        node, path = self, []
        while isinstance(node, Model):
            name = node.name_in(key)
            path.append((node, name))
            if name == key:
                return path
            node, key = node.items.get(name, Model({})), key[len(name) + 1 :]
        return None

    def put(self, key, leaf):
        node = self
        while True:
            name = node.name_in(key)
            if node.fixed is not None and name not in node.fixed:
                node.fixed, node.has_ints, node.kind = None, True, dict
            node.is_empty = False
            if name == key:
                node.items[name] = leaf
                return
            if name not in node.items:
                node.items[name] = Model({})
            node, key = node.items[name], key[len(name) + 1 :]

    def plain(self):
        """Return the container; None in a tuple if nothing is left in it."""
        items = {name: (leaf,) if not isinstance(leaf, Model) else leaf.plain()
                 for name, leaf in self.items.items()}  # fmt: skip
        items = {name: item[0] for name, item in items.items() if item is not None}
        if not items and not self.is_empty:
            return None
        if self.fixed is not None and set(self.fixed) == set(items):
            values = [items[name] for name in self.fixed]
            return (self.kind(*values) if self.kind is Pair else self.kind(values),)
        return ({self.named(name): item for name, item in items.items()},)

    def named(self, name):
        return int(name) if self.has_ints and name.isdecimal() and name not in self.texts else name


def modelled(node):
    return node if items_of(node) is None else Model(node)


def described(node):
    """Return a text that is the same for equal trees; the order in dicts does not count."""
    if items_of(node) is None:
        return shown(node)
    if isinstance(node, dict):
        return str(sorted((repr(name), described(item)) for name, item in node.items()))
    return f"{type(node).__name__} {list(map(described, node))}"


def is_free(model, flat, key):
    """Return whether a key leads past no leaf, and to none but its own."""
    path = model.path(key)
    if path is None or any(key != other and is_within(other, key) for other in flat):
        return False
    node, name = path[-1]
    return not isinstance(node.items.get(name), Model)


@pytest.mark.slow
@settings(max_examples=amount(40, 4_000))
@given(TREES, EDITS)
def test_an_edit_changes_the_containers_above_it_alone(tree, edits):
    """Lists with all their items stay lists, others become dicts, and empty ones go."""
    stream, flat = saved(tree)
    if stream is None or any(leaf is TIE for leaf in leaves(tree).values()):
        return
    model = Model(tree)
    for kind, *arguments in edits:
        with npzkit.NpzWriter(stream, "a") as writer:
            files = writer.files
            key = next((argument for argument in arguments if isinstance(argument, str)), None)
            if kind in ("commit", "reopen", "replace") or (
                kind in ("rename", "delete") and not files
            ):
                continue
            old = files[arguments[0] % len(files)] if kind in ("rename", "delete") else None
            if key is not None and (key in flat or not is_free(model, flat, key)):
                continue
            if kind == "tree" and saved({"x": arguments[1]})[0] is None:
                continue
            if kind == "rename" and is_within(key, old):
                continue
            edit(writer, flat, kind, *arguments)
        if kind in ("rename", "delete"):
            node, name = model.path(old)[-1]
            leaf = node.items.pop(name)
        if kind != "delete":
            model.put(key, leaf if kind == "rename" else modelled(
                arguments[1] if kind == "add" else [arguments[1], None]))  # fmt: skip
    assert described(npzkit.load_tree(stream)) == described((model.plain() or ({},))[0])


NOTES = st.recursive(
    st.none() | st.sampled_from([1, "a", "named", ["value", 1], ["as", "scalar"], ["same", "a/b"]]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(NAMES | st.just("a/b/c"), inner, max_size=3),
        st.tuples(st.sampled_from(["list", "tuple", "ints", "single", "same"]), inner, inner),
        st.tuples(st.just("named"), st.just("T"), st.just(["a", "b"]), inner, inner),
        st.tuples(st.just("single"), NAMES, inner),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=amount(40, 4_000))
@given(NOTES, EDITS)
def test_no_note_keeps_arrays_from_being_edited(note, edits):
    """Whatever the note of a file says, each edit changes the arrays that it names."""
    stream = io.BytesIO()
    arrays = {"a/b": np.array([1]), "0": np.array([2])}
    with npzkit.NpzWriter(stream) as writer:
        for key, array in arrays.items():
            writer[key] = array
        writer.metadata["npzkit.tree"] = note
    for kind, *arguments in edits:
        with npzkit.NpzWriter(stream, "a") as writer:
            files = writer.files
            if kind == "add":
                writer.add(*arguments, overwrite=True)
                assert arguments[0] in writer.files
            elif kind == "tree":
                writer.add(arguments[0], {"x": np.array([3]), "n": None}, overwrite=True)
                assert arguments[0] + "/x" in writer.files
            elif kind in ("rename", "delete") and files:
                old = files[arguments[0] % len(files)]
                if kind == "delete":
                    del writer[old]
                    assert old not in writer.files
                elif arguments[1] not in files:
                    with contextlib.suppress(KeyExistsError):
                        writer.rename(old, arguments[1])
                        assert arguments[1] in writer.files
    assert npzkit.verify(stream).ok
    with contextlib.suppress(npzkit.errors.ZipFormatError):
        npzkit.load_tree(stream)


def test_an_array_in_place_of_a_tied_one_is_not_tied():
    """Once both keys are removed, the array of the other key does not come back under this one."""
    stream = io.BytesIO()
    note = {"decoder": ["same", "encoder"], "empty": ["list"]}
    npzkit.save(stream, {"encoder": np.arange(3)}, metadata={TREE_KEY: note})
    with npzkit.NpzWriter(stream, "a") as writer:
        writer.add("decoder", np.zeros(3), overwrite=True)
        del writer["decoder"]
        del writer["encoder"]
    assert npzkit.open(stream).files == []


@pytest.mark.remedy("Pass overwrite=True to add(), which replaces everything under this key.")
def test_a_tree_in_place_of_another():
    """It needs overwrite=True, and then nothing of the old one is left."""
    stream = io.BytesIO()
    npzkit.save(stream, {"model": {"w": np.zeros(2), "b": np.ones(1)}, "step": 1})
    with npzkit.NpzWriter(stream, "a") as writer:
        with pytest.raises(npzkit.errors.KeyExistsError, match="already in the archive"):
            writer.add("model", {"w": np.arange(3)})
        writer.add("model", {"w": np.arange(3)}, overwrite=True)
    found = npzkit.load_tree(stream)
    assert (found["step"], list(found["model"])) == (1, ["w"])
    assert found["model"]["w"].tolist() == [0, 1, 2]


@each_row(
    "edit",
    [
        lambda writer, key: writer.add(key, np.zeros(3)),
        lambda writer, key: writer.create(key, 3, "i4"),
        lambda writer, key: writer.rename("x", key),
    ],
)
def test_what_has_no_array_is_not_replaced_by_one(edit):
    """A number, or a tied tensor, is there as an array is: only overwrite=True replaces it."""
    stream = io.BytesIO()
    note = {"decoder": ["same", "encoder"], "opt": {"lr": ["value", 0.1]}}
    arrays = {"encoder": np.arange(3), "x": np.ones(2)}
    npzkit.save(stream, arrays, metadata={TREE_KEY: note})
    with npzkit.NpzWriter(stream, "a") as writer:
        for key in "decoder", "opt/lr":
            with pytest.raises(KeyExistsError, match="already in the archive"):
                edit(writer, key)
        del writer["opt/lr"]
        writer.add("opt/lr", np.zeros(1), overwrite=True)
    found = npzkit.load_tree(stream)
    assert (found["decoder"].tolist(), found["x"].tolist()) == ([0, 1, 2], [1, 1])
    assert found["opt"]["lr"].tolist() == [0]


@pytest.mark.remedy("This tensor is tied to ")
def test_the_key_of_a_tied_tensor():
    """The error names the key that has the array."""
    stream = io.BytesIO()
    note = {"decoder": ["same", "encoder"]}
    npzkit.save(stream, {"encoder": np.arange(3)}, metadata={TREE_KEY: note})
    with npzkit.open(stream) as npz:
        with pytest.raises(npzkit.errors.MemberNotFoundError, match="'encoder': read that one"):
            npz["decoder"]
        assert npz["encoder"].tolist() == [0, 1, 2]


def test_values_are_removed(tmp_path):
    """By their keys, or all in a container without arrays; with arrays, it stays."""
    path = tmp_path / "a.npz"
    tree = {
        "w": np.ones(2),
        "n": 3,
        "run": {"token": "secret", "of": [1, None]},
        "opt": {"m": np.ones(1), "lr": 0.1},
    }
    npzkit.save(path, tree)
    with npzkit.NpzWriter(path, "a") as writer:
        del writer["n"], writer["run"]
        with pytest.raises(MemberNotFoundError):
            del writer["opt"]
        with pytest.raises(MemberNotFoundError):
            del writer["run"]
    found = npzkit.load_tree(path)
    assert (list(found), found["opt"]["lr"]) == (["w", "opt"], 0.1)
    with npzkit.NpzWriter(path, "a") as writer:
        writer["opt/lr/x"] = np.ones(1)
        del writer["opt/lr"]
    assert npzkit.load_tree(path, "opt")["lr"]["x"].tolist() == [1]


@pytest.mark.remedy("It is nested data, which npzkit.load_tree(file, key) returns.")
@pytest.mark.parametrize("key", ["args", "run", "run/rate"])
def test_the_error_for_a_value_says_what_returns_it(tmp_path, key):
    """Also that of a list which no array could keep, and of what has values and arrays."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"args": ["train", 0.1], "run": {"rate": 0.1, "w": np.ones(1)}})
    with npzkit.open(path) as npz, pytest.raises(MemberNotFoundError) as caught:
        npz[key]
    assert caught.value.remedy == "It is nested data, which npzkit.load_tree(file, key) returns."
    assert npzkit.load_tree(path, key) in (["train", 0.1], 0.1) or key == "run"
