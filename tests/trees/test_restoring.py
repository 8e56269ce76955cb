"""Parts of a tree by patterns: the same as the complete tree without the rest."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import namedtuple
from fnmatch import fnmatchcase
from random import Random

import npzkit
import numpy as np
import pytest
from deep import amount
from npzkit.errors import LimitExceededError, MemberNotFoundError, ZipFormatError
from npzkit.members.metadata import TREE_KEY
from npzkit.trees import restoring

Pair = namedtuple("Pair", ["one", "two"])
NAMES = ["a", "b", "ab", 1, 10, "b/c", "x*"]


def random_tree(random, depth=0):
    """Return nested containers of arrays and values, many of them empty."""
    kind = random.choice(["array", "value", "dict", "dict", "list", "tuple", "named"])
    if depth == 0:
        kind = "dict"
    if depth == 4 or kind == "array":
        return np.array([random.random()])
    if kind == "value":
        return random.choice([None, 7, "text", 2.5, 1j, b"xy", np.float32(3)])
    items = [random_tree(random, depth + 1) for _ in range(random.randrange(4))]
    if kind == "dict":
        return dict(zip(random.sample(NAMES, len(items)), items, strict=True))
    if kind == "named":
        return Pair(*[*items, None, None][:2])
    return [*items, None] if kind == "list" else (*items, None)


def items_of(node):
    """Return what is in a container by name, or None."""
    if hasattr(node, "_asdict"):
        return node._asdict()
    if isinstance(node, (list, tuple)):
        return dict(enumerate(node))
    return node if isinstance(node, dict) else None


def leaf_keys(node, key=""):
    items = items_of(node)
    if not items:
        return [key]
    return [k for name, item in items.items() for k in leaf_keys(item, f"{key}/{name}".strip("/"))]


def pruned(node, is_wanted, key=""):
    """Return a list with the part of a node that is wanted, or an empty list."""
    items = items_of(node)
    if not items:
        return [node] if is_wanted(key) else []
    kept = {
        name: part[0]
        for name, item in items.items()
        if (part := pruned(item, is_wanted, f"{key}/{name}".strip("/")))
    }
    if len(kept) < len(items):
        return [kept] if kept else []
    if hasattr(node, "_make"):
        return [type(node)._make(kept.values())]
    return [kept if isinstance(node, dict) else type(node)(kept.values())]


def shown(node):
    """Return a text that is the same for equal trees, with the order of their items."""
    items = items_of(node)
    if items is None:
        return f"{type(node).__name__}: {node!r}"
    inner = ", ".join(f"{name!r}: {shown(item)}" for name, item in items.items())
    return f"{type(node).__name__}({inner})"


def random_patterns(random, keys):
    patterns = []
    for _ in range(random.choice([1, 1, 2, 3])):
        parts = random.choice(keys).split("/")
        pattern = "/".join(parts[: random.randint(1, len(parts))])
        if random.random() < 0.4:
            at = random.randrange(len(pattern) + 1)
            pattern = pattern[:at] + random.choice(["*", "?", "[ab]"]) + pattern[at + 1 :]
        patterns.append(pattern + random.choice(["", "", "/", "*", "/*"]))
    return patterns


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(amount(6, 200)))
def test_a_part_is_the_complete_tree_without_the_rest(seed):
    """Any patterns select the same parts, in the same order, as a comparison key by key."""
    random = Random(seed)
    tree = random_tree(random)
    stream = io.BytesIO()
    try:
        npzkit.save(stream, tree)
    except npzkit.errors.UnsupportedError:
        # A name with a slash would lose what is beside it.
        return
    complete = npzkit.load_tree(stream)
    keys = leaf_keys(complete)
    for _ in range(12):
        patterns = random_patterns(random, keys)

        def matches(key, pattern):
            literal = pattern.rstrip("/")
            return key == literal or key.startswith(literal + "/") or fnmatchcase(key, pattern)

        def is_wanted(key, patterns=patterns):
            return any(matches(key, pattern) for pattern in patterns)

        expected = pruned(complete, is_wanted)
        if all(any(matches(key, pattern) for key in keys) for pattern in patterns) and expected:
            assert shown(npzkit.load_tree(stream, only=patterns)) == shown(expected[0])
        else:
            with pytest.raises(MemberNotFoundError):
                npzkit.load_tree(stream, only=patterns)


@pytest.mark.slow
def test_what_is_not_asked_for_is_not_rebuilt(monkeypatch):
    """Of a structure of thousands of values, a part costs what the part holds."""
    stream = io.BytesIO()
    npzkit.save(stream, {"net": {f"l{i}": {"w": [i, None], "n": i} for i in range(2000)}})
    decoded = []
    monkeypatch.setattr(
        restoring, "decode", lambda found, note, *rest: decoded.append(note) or note[1]
    )
    assert npzkit.load_tree(stream, only="net/l77/*") == {
        "net": {"l77": {"w": [77, None], "n": 77}}
    }
    assert len(decoded) == 3


def test_a_list_that_was_edited_is_a_dict_in_part_too():
    """If an item of a list was removed since, the others are under their indices."""
    stream = io.BytesIO()
    npzkit.save(stream, {"l": [np.ones(1), [np.ones(2), 5], 7]})
    with npzkit.NpzWriter(stream, "a") as writer:
        del writer["l/0"]
    assert list(npzkit.load_tree(stream)["l"]) == [1, 2]
    assert list(npzkit.load_tree(stream, only="l/1")["l"]) == [1]


@pytest.mark.parametrize(("depth", "is_read"), [(199, True), (200, False)])
def test_what_is_left_out_may_be_as_deep_as_what_is_read(depth, is_read):
    """A structure that is too deep is refused, whether its deep part is wanted or not."""
    note, stream = ["list"], io.BytesIO()
    for _ in range(depth):
        note = ["list", note]
    notes = {"a": ["list", None, note]}
    npzkit.save(stream, {"a/0": np.arange(3)}, metadata={TREE_KEY: notes})
    for only in (None, ["a/0"]):
        with (
            contextlib.nullcontext() if is_read else pytest.raises(ZipFormatError, match="too deep")
        ):
            found = npzkit.load_tree(stream, only=only)
            assert found["a"][0].tolist() == [0, 1, 2]


@pytest.mark.remedy("Read the arrays with npzkit.open.")
def test_numbers_of_one_hash_as_keys():
    """Thousands of them, for which a dict takes quadratic time, are refused; arrays are read."""
    stream = io.BytesIO()
    for count in (1000, 1001):
        tree = {"a": {5 + number * sys.hash_info.modulus: number for number in range(1, count + 1)}}
        npzkit.save(stream, tree | {"x": np.arange(3)})
        if count == 1000:
            assert npzkit.load_tree(stream)["a"] == tree["a"]
        stream.seek(0)
    with pytest.raises(LimitExceededError, match="found 1001, expected 'at most 1000'"):
        npzkit.load_tree(stream)
    assert npzkit.open(stream)["x"].tolist() == [0, 1, 2]
