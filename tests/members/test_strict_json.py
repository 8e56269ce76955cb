"""What npzkit writes as JSON is strict: no NaN and no Infinity, and all floats come back."""

from __future__ import annotations

import io
import json
import math
import tracemalloc
from pathlib import Path

import npzkit
import numpy as np
import pytest
from forge import Member, archive, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.checkpoint import CheckpointStore
from npzkit.errors import LimitExceededError
from npzkit.limits import MAX_DEPTH, parsed_size
from npzkit.members.metadata import format_json, parse_json
from npzkit.zip.extra_fields import KEY_VALUE_PAIRS_ID, find_extra, parse_key_value_pairs
from sharded import index_of

SPECIAL = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "float16": np.float16("inf"),
    "float32": np.float32("nan"),
    "float64": np.float64("-inf"),
    "array": np.array(np.nan, "f4"),
    "nested": {"list": [1, [math.nan, {"deep": (math.inf, "NaN", None)}]]},
}
PLAIN = {
    **SPECIAL,
    "float16": math.inf,
    "float32": math.nan,
    "float64": -math.inf,
    "array": math.nan,
    "nested": {"list": [1, [math.nan, {"deep": [math.inf, "NaN", None]}]]},
}
"""What is read."""


def strict(text):
    """Return what JSON is in any language."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def is_same(found, expected):
    """Whether two values of JSON are the same, by repr: nan equals itself, 1 differs from 1.0."""
    return repr(found) == repr(expected)


def pairs_of(npz, key="x"):
    """Return the texts of an array's attributes."""
    payload = find_extra(npz.zip.getinfo(f"{key}.npy").extra, KEY_VALUE_PAIRS_ID)
    return parse_key_value_pairs(payload) if payload else {}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([math.nan, math.inf, -math.inf])
    | st.sampled_from(["NaN", "Infinity", "npzkit.float", '{"npzkit.float": "NaN"}'])
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["npzkit.float", "a", ""]), inner, max_size=3)
    ),
    max_leaves=8,
).filter(lambda value: not any(f"'npzkit.float': {name!r}" in repr(value) for name in NAMES))
NAMES = ["NaN", "Infinity", "-Infinity"]
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.dictionaries(KEYS, JSON, max_size=4), st.dictionaries(KEYS, JSON, max_size=4))
def test_any_value_with_floats_of_all_kinds_survives(metadata, attrs):
    """All that JSON and Python's floats can express is kept, as text that is strict JSON."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, metadata=metadata) as w:
        w.add("x", np.arange(3), attrs=attrs)
    npz = npzkit.open(stream)
    assert is_same(dict(npz.metadata), metadata)
    assert is_same(dict(npz.info("x").attrs), attrs)
    strict(npz._archive.comment or "{}")
    for key, text in pairs_of(npz).items():
        if not isinstance(attrs[key], str):
            strict(text)


@given(JSON)
def test_text_comes_back(value):
    """Reading gives back what was written, strictly or not."""
    text = format_json(value)
    strict(text)
    assert is_same(parse_json(text), value)


def test_numbers_of_numpy_in_metadata_and_attributes(tmp_path):
    """NaN and infinity of any kind, at any depth, become Python's floats, also after an edit."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, metadata=SPECIAL) as w:
        w.add("x", np.arange(3), attrs=SPECIAL)
    for changes in ({}, {"more": 1.5}):
        with npzkit.open(path) as npz:
            assert is_same(dict(npz.metadata), {**PLAIN, **changes})
            assert is_same(dict(npz.info("x").attrs), {**PLAIN, **changes})
            found = strict(npz._archive.comment)
            assert found["float16"] == {"npzkit.float": "Infinity"}
            assert found["nested"]["list"][1][0] == {"npzkit.float": "NaN"}
            texts = pairs_of(npz)
            assert texts["-inf"] == '{"npzkit.float": "-Infinity"}'
            assert all(strict(texts[name]) for name in PLAIN)
        with npzkit.NpzWriter(path, "a") as w:
            w.attrs("x")["more"] = w.metadata["more"] = 1.5


def test_a_tree_with_nan(tmp_path):
    """Values in a tree, and in a checkpoint of either form, are written and read the same way."""
    tree = {"w": np.arange(3.0), "opt": {"lr": math.nan, "c": complex(math.inf, 1), "all": PLAIN}}
    npzkit.save(tmp_path / "a.npz", tree)
    with npzkit.open(tmp_path / "a.npz") as npz:
        note = strict(npz._archive.comment)["npzkit.tree"]
        assert note["opt"]["lr"] == ["value", {"npzkit.float": "NaN"}]
    assert is_same(npzkit.load_tree(tmp_path / "a.npz"), tree)
    metrics = {"loss": math.nan, "best": np.float32("inf")}
    paths = []
    for size in (None, 100):
        with CheckpointStore(tmp_path / f"run {size}", durable=False) as store:
            store.save(1, tree, metrics=metrics, metadata=SPECIAL, shard_size=size)
            found = store.load()
            assert is_same(found.tree, tree)
            assert is_same(found.metrics, {"loss": math.nan, "best": math.inf})
            assert is_same(found.metadata, PLAIN)
            with store[1] as npz:
                strict(npz._archive.comment)
            assert store.verify().ok
            paths.append(store.path(1))
    with npzkit.NpzFile(Path(paths[1]) / "index.npz") as npz:
        strict(npz._archive.comment)
    assert npzkit.diff(*paths).equal


def test_the_index_of_a_sharded_archive(tmp_path):
    """Metadata and attributes in the index are strict JSON, and come back as they were."""
    with npzkit.ShardedWriter(tmp_path, metadata=SPECIAL) as w:
        w.add("x", np.zeros(2), attrs=SPECIAL)
        w.commit()
    with npzkit.NpzFile(tmp_path / "index.npz") as npz:
        assert strict(npz._archive.comment)["inf"] == {"npzkit.float": "Infinity"}
    (attrs,) = index_of(tmp_path)["arrays"]["attrs"]
    assert strict(attrs)["inf"] == {"npzkit.float": "Infinity"}
    with npzkit.open(tmp_path) as npz:
        assert is_same(dict(npz.metadata), PLAIN)
        assert is_same(dict(npz.info("x").attrs), PLAIN)


def test_a_bare_nan_of_another_program_is_read():
    """The comment of another program is read as before, and becomes strict when it is changed."""
    comment = b'{"a": NaN, "b": [-Infinity]}'
    stream = io.BytesIO(archive(Member("x.npy", npy(np.zeros(3))), comment=comment))
    for value in (1, 2):
        with npzkit.NpzWriter(stream, "a") as w:
            assert is_same(w.metadata["a"], math.nan)
            w[f"y{value}"] = np.zeros(3)
        assert npzkit.open(stream)._archive.comment == comment
    with npzkit.NpzWriter(stream, "a") as w:
        w.metadata["c"] = 1
    npz = npzkit.open(stream)
    assert is_same(dict(npz.metadata), {"a": math.nan, "b": [-math.inf], "c": 1})
    strict(npz._archive.comment)


def test_the_mapping_that_stands_for_a_float_is_reserved(tmp_path):
    """A mapping that would be read as a float is refused; others with its name are kept."""
    for name in NAMES:
        for value in ({"npzkit.float": name}, {"a": [{"npzkit.float": name}]}):
            with pytest.raises(ValueError, match="metadata is reserved for npzkit itself"):
                npzkit.save(tmp_path / "a.npz", {}, metadata=value)
            with (
                npzkit.NpzWriter(io.BytesIO()) as w,
                pytest.raises(ValueError, match="reserved"),
            ):
                w.add("x", np.zeros(2), attrs=value)
    assert not list(tmp_path.iterdir())
    tree = {"t": {"npzkit.float": "NaN"}, "u": {"npzkit.float": np.zeros(2), "b": math.nan}}
    stream = io.BytesIO()
    npzkit.save(stream, tree)
    assert is_same(npzkit.load_tree(stream), tree)


@pytest.mark.parametrize(
    ("comment", "metadata"),
    [
        (b'{"npzkit.float": "NaN"}', {}),
        (b'{"a": {"npzkit.float": "nan"}}', {"a": {"npzkit.float": "nan"}}),
        (b'{"a": {"npzkit.float": ["NaN"]}}', {"a": {"npzkit.float": ["NaN"]}}),
        (rb'{"a": {"npzkit\u002efloat": "Na\u004E"}}', {"a": math.nan}),
        ('{"a": {"npzkit.float": "NaN"}}'.encode("utf-16-le"), {"a": math.nan}),
    ],
    ids=["alone", "other name", "list", "escapes", "utf-16"],
)
def test_unusual_text_of_other_programs_can_be_written_again(comment, metadata):
    """However another program wrote its comment, an archive with it can be appended to."""
    stream = io.BytesIO(archive(Member("x.npy", npy(np.zeros(3))), comment=comment))
    assert is_same(dict(npzkit.open(stream).metadata), metadata)
    with npzkit.NpzWriter(stream, "a") as w:
        w.metadata["b"] = 1
    assert is_same(dict(npzkit.open(stream).metadata), {**metadata, "b": 1})


@pytest.mark.parametrize("count", [MAX_DEPTH - 2, MAX_DEPTH - 1])
def test_the_object_of_a_float_is_a_level(count):
    """A NaN is one level deeper than a number, when it is written and when it is read."""
    number, special = 1, math.nan
    for _ in range(count):
        number, special = [number], [special]
    npzkit.save(io.BytesIO(), {}, metadata={"a": number})
    text = '{"npzkit.float": "NaN"}'
    comment = f'{{"a": {"[" * count}{text}{"]" * count}}}'.encode()
    found = npzkit.open(archive(Member("x.npy", npy(np.zeros(3))), comment=comment)).metadata
    if 1 + count + 1 <= MAX_DEPTH:
        assert is_same(dict(found), {"a": special})
        npzkit.save(io.BytesIO(), {}, metadata=found)
        return
    assert found == {}
    with pytest.raises(ValueError, match="metadata or attributes is nested too deeply"):
        npzkit.save(io.BytesIO(), {}, metadata={"a": special})
    with (
        npzkit.NpzWriter(io.BytesIO()) as w,
        pytest.raises(ValueError, match="metadata or attributes is nested too deeply"),
    ):
        w.add("x", np.zeros(3), attrs={"a": special})


def test_the_objects_of_floats_count_in_the_size(monkeypatch):
    """The estimate of memory is that of the text with objects, and covers what reading takes."""
    monkeypatch.setattr("npzkit.members.metadata.DEFAULT_METADATA_SIZE", 1 << 20)
    npzkit.save(io.BytesIO(), {}, metadata={"a": [0.5] * 10_000})
    with pytest.raises(LimitExceededError, match="would take too much memory"):
        npzkit.save(io.BytesIO(), {}, metadata={"a": [math.nan] * 10_000})
    data = format_json([math.nan] * 20_000).encode()
    tracemalloc.start()
    parse_json(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < parsed_size(data, 0)


def test_reports_are_strict(tmp_path):
    """The report of a comparison has null for NaN, also inside of attributes and metadata."""
    for name, value in (("a", SPECIAL), ("b", {})):
        with npzkit.NpzWriter(tmp_path / f"{name}.npz", metadata=value) as w:
            w.add("x", np.zeros(2), attrs=value)
    report = npzkit.diff(tmp_path / "a.npz", tmp_path / "b.npz", metadata=True)
    rows = {row["kind"]: row for row in strict(report.to_json())["rows"]}
    assert rows["metadata"]["a"]["nested"]["list"] == [1, [None, {"deep": [None, "NaN", None]}]]
    assert rows["attributes"]["a"]["float32"] is None
    same = npzkit.diff(tmp_path / "a.npz", tmp_path / "a.npz", metadata=True)
    assert same.equal
