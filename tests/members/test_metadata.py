"""Metadata and attributes: any JSON comes back, all else is refused."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import struct
import sys

import npzkit
import numpy as np
import pytest
from archives import files_in
from forge import Member, archive, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import ConversionError
from npzkit.limits import MAX_DEPTH, nests_deeper
from npzkit.members.metadata import parse_json


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 900])
def test_deep_values_can_be_written_again(depth):
    """What is nested deeper than npzkit writes it is no metadata, and an attribute is text."""
    text = "[" * depth + "]" * depth
    pairs = b"KeyValuePairs\1\1\0a" + struct.pack("<H", len(text)) + text.encode()
    extra = struct.pack("<HH", 0x564B, len(pairs)) + pairs
    member = Member("x.npy", npy(np.arange(3)), extra=extra)
    npz = npzkit.open(archive(member, comment=b'{"a": ' + text[1:-1].encode() + b"}"))
    metadata, attrs = dict(npz.metadata), dict(npz.info("x").attrs)
    assert bool(metadata) is isinstance(attrs["a"], list) is (depth <= MAX_DEPTH)
    json.dumps([metadata, attrs], indent=1)
    stream = io.BytesIO()
    npzkit.save(stream, {}, metadata=metadata)
    assert npzkit.open(stream).metadata == metadata


@pytest.mark.parametrize("end", ["x" * 16, "\0" * 16, "\0" * 8 + "\1" + "\0" * 7])
def test_attributes_do_not_end_an_archive(tmp_path, end):
    """An attribute that ends as a zip64 locator would misleads no reader, nor an append."""
    path = tmp_path / "a.npz"
    attrs = {"text": f"PK\x06\x07{end}"}
    for mode, key in (("w", "x"), ("a", "y")):
        with npzkit.NpzWriter(path, mode=mode) as w:
            w.add(key, np.arange(3), attrs=attrs)
        with npzkit.open(path, strict=True) as npz:
            assert dict(npz.info(key).attrs) == attrs
        with np.load(path) as theirs:
            assert theirs[key].tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_data_does_not_end_an_archive(tmp_path, mode):
    """Where no array is left, none that was removed is taken for a zip64 locator."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with npzkit.NpzWriter(path, mode, auto_repack=False) as w:
        w["y"] = np.frombuffer(b"PK\x06\x07" + b"\1" * 16, "u1")
        for key in w.files:
            del w[key]
    with npzkit.open(path, strict=True) as npz, np.load(path) as theirs:
        assert npz.files == theirs.files == []


def test_attributes_and_metadata(tmp_path):
    """Attributes and metadata come back with their types, and np.load does not see them."""
    path = tmp_path / "a.npz"
    attrs = {
        "unit": "m",
        "number": "3",
        "scale": 0.5,
        "axes": ["x", "y"],
        "none": None,
        "größe": True,
        "np": np.int64(3),
    }
    with npzkit.NpzWriter(path, metadata={"a": np.float32(0.5)}) as w:
        w.add("x", np.arange(3), attrs=attrs)
        w.add("y", np.arange(3), attrs=attrs, compression="deflated")
        w["z"] = np.arange(3)
        w.metadata["nested"] = {"list": [1, None, "x"]}
    with npzkit.open(path) as npz:
        for key in ("x", "y"):
            assert dict(npz.info(key).attrs) == {**attrs, "np": 3}
            assert np.array_equal(npz[key], np.arange(3))
        assert npz.info("x").aligned
        assert dict(npz.info("z").attrs) == {}
        assert dict(npz.metadata) == {"a": 0.5, "nested": {"list": [1, None, "x"]}}
        assert npz.zip.testzip() is None
    with np.load(path) as theirs:
        assert theirs.files == ["x", "y", "z"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.dictionaries(KEYS, JSON, max_size=4), st.dictionaries(KEYS, JSON, max_size=4))
def test_any_json_survives(metadata, attrs):
    """Whatever JSON can express is kept, as metadata and as attributes."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, metadata=metadata) as w:
        w.add("a", np.arange(3), attrs=attrs)
    npz = npzkit.open(stream)
    assert dict(npz.metadata) == metadata
    assert dict(npz.info("a").attrs) == attrs


@pytest.mark.remedy("Replace it: text.encode('utf-8', 'replace').decode().")
@pytest.mark.parametrize("attrs", [{"a": "\ud800"}, {"\ud800": 1}, {"a": ["\ud800"]}])
def test_half_of_a_surrogate_pair_is_no_attribute(tmp_path, attrs):
    """The error has the key of the array; a text without it is written."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with pytest.raises(ConversionError, match="surrogate") as caught:
            w.add("x", np.arange(3), attrs=attrs)
        assert caught.value.key == "x"
        assert isinstance(caught.value, ValueError)
        w.add("x", np.arange(3), attrs={"a": "\ud800".encode("utf-8", "replace").decode()})
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.info("x").attrs == {"a": "?"}


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"a": np.arange(3)}, TypeError),
        ({3: 4}, TypeError),
        ({"a": object()}, TypeError),
        ({"a": np.datetime64("2026-01-31")}, TypeError),
        ({"a": np.datetime64("2026-01-31", "ns")}, TypeError),
        ({"a": np.datetime64("NaT", "D")}, TypeError),
        ({"a": np.timedelta64("NaT", "s")}, TypeError),
        ({"a": [np.array("NaT", "M8[s]")]}, TypeError),
    ],
    ids=["array", "key", "object", "date", "nanoseconds", "no date", "no time", "in a list"],
)
def test_bad_metadata(metadata, error, tmp_path):
    """Metadata that cannot be kept is refused at once, and nothing is lost."""
    path = tmp_path / "a.npz"
    with pytest.raises(error):
        npzkit.save(path, {"a": np.arange(3)}, metadata=metadata)
    assert files_in(tmp_path) == []
    npzkit.save(path, {"old": np.arange(3)})
    w = npzkit.NpzWriter(path)
    w["a"] = np.zeros(3)
    with pytest.raises(error):
        w.metadata.update(metadata)
    w.close()
    with npzkit.open(path) as npz:
        assert npz.files == ["a"]
    with npzkit.NpzWriter(path) as w:
        for attrs in ({"a": "x" * 65_536}, {3: 4}, {"a": object()}):
            with pytest.raises((ValueError, TypeError)):
                w.add("a", np.zeros(3), attrs=attrs)
        w["b"] = np.zeros(3)
    assert files_in(tmp_path) == ["a.npz"]


def circles():
    """Values that contain themselves, one way or another."""
    a_list, a_dict, a_pair = [], {"x": 1}, []
    a_list.append(a_list)
    a_dict["inner"] = {"a": a_dict}
    a_pair.append((1, {"b": [a_pair]}))
    deep, too_deep = [], []
    for _ in range(100_000):
        deep = [deep]
    for _ in range(MAX_DEPTH):
        too_deep = [too_deep]
    return {"list": a_list, "dict": a_dict, "pair": a_pair, "deep": deep, "too deep": too_deep}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["list", "dict", "pair", "deep", "too deep"])
def test_metadata_without_an_end(kind, tmp_path):
    """Metadata and attributes that contain themselves, or nearly so, are a ValueError."""
    value = circles()[kind]
    says = "nested too deeply" if "deep" in kind else "must not contain themselves"
    with pytest.raises(ValueError, match=f"metadata.*{says}"):
        npzkit.save(tmp_path / "a.npz", {}, metadata={"ok": 1, "bad": value})
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with pytest.raises(ValueError, match=f"attributes.*{says}"):
            w.add("a", np.arange(3), attrs={"bad": value})
        twice = [1, 2]
        w.add("a", np.arange(3), attrs={"fine": [twice, twice, {"again": twice}]})
    assert files_in(tmp_path) == ["a.npz"]


@pytest.mark.parametrize("kind", [np.longdouble, np.clongdouble])
def test_numbers_that_python_lacks(kind):
    """A longdouble in metadata or attributes is a TypeError that names it."""
    for value in (kind(1), np.array(kind(1))):
        with pytest.raises(TypeError, match=kind.__name__):
            npzkit.save(io.BytesIO(), {}, metadata={"a": value})
        with (
            npzkit.NpzWriter(io.BytesIO()) as w,
            pytest.raises(TypeError, match=kind.__name__),
        ):
            w.add("a", np.arange(3), attrs={"a": value})


@pytest.mark.slow
def test_a_nearly_full_stack_makes_no_metadata_absent():
    """Metadata that are read deep in a recursion are right, or a RecursionError."""
    metadata = {"a": json.loads("[" * 60 + "]" * 60)}
    stream = io.BytesIO()
    npzkit.save(stream, {}, metadata=metadata)
    outcomes = []

    def descend(depth):
        if depth:
            descend(depth - 1)
            return
        try:
            outcomes.append(dict(npzkit.open(stream).metadata))
        except RecursionError:
            outcomes.append(None)

    used = len(inspect.stack(0))
    for left in range(5, 200, 3):
        with contextlib.suppress(RecursionError):
            descend(sys.getrecursionlimit() - used - left)
    assert None in outcomes
    assert metadata in outcomes
    assert all(found in (None, metadata) for found in outcomes)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 600 + "]" * 600])
def test_json_that_is_nested_too_deeply(text):
    """JSON that is too deep for Python, or for npzkit, is a ValueError, whatever else it is."""
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting"):
        parse_json(text)


def test_brackets_in_strings_are_no_nesting():
    """Only the brackets of lists and mappings count, as JSON's own strings end."""
    text = json.dumps(["[" * 9, {'a\\"[[[': ["\\"]}, "]"])
    assert nests_deeper(text, 2)
    assert not nests_deeper(text.encode(), 3)


@pytest.mark.parametrize("arrays", [{"x": 1}, {"a/b": 1}, {"a": {"b": 1}}, [1, 2]])
def test_metadata_that_are_no_mapping_are_refused_in_the_same_words(arrays):
    """Whatever is saved, the error says what metadata must be."""
    with pytest.raises(TypeError, match="metadata must be a mapping, not list"):
        npzkit.save(io.BytesIO(), arrays, metadata=[1])
