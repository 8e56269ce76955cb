"""Remedies of keys and of nested data are followed."""

from __future__ import annotations

import io
from collections import namedtuple

import npzkit
import numpy as np
import pytest
from npzkit.errors import KeyExistsError, LimitExceededError, NpyFormatError, UnsupportedError

LONG = namedtuple("LONG", [f"n{number}" for number in range(1001)])


def restored(tree):
    """Save a tree, and return what is loaded."""
    stream = io.BytesIO()
    npzkit.save(stream, tree)
    return npzkit.load_tree(stream)


@pytest.mark.parametrize(
    ("tree", "instead"),
    [
        pytest.param(
            {"n": {}, "a": [LONG(*range(1001))]}, {"n": {}, "a": [LONG(*range(1001))._asdict()]},
            marks=pytest.mark.remedy("Save value._asdict()."), id="a long namedtuple",
        ),
        pytest.param(
            {"n": {}, "a": [np.str_("x\0")]}, {"n": {}, "a": ["".join(np.str_("x\0"))]},
            marks=pytest.mark.remedy("Save ''.join(value) or bytes(value), which keep them."),
            id="text",
        ),
        pytest.param(
            {"n": {}, "a": [np.bytes_(b"x\0")]}, {"n": {}, "a": [bytes(np.bytes_(b"x\0"))]},
            marks=pytest.mark.remedy("Save ''.join(value) or bytes(value), which keep them."),
            id="bytes",
        ),
        pytest.param(
            {"a/b": 5, "a": {"b": 6}}, {"a_b": 5, "a": {"b": 6}},
            marks=pytest.mark.remedy("Choose another name, without a slash."), id="slash",
        ),
        pytest.param(
            {"a": {1: 0, "1": 0}}, {"a": {1: 0, "one": 0}},
            marks=pytest.mark.remedy("Rename one of the two."), id="equal text",
        ),
    ],
)  # fmt: skip
def test_what_is_no_tree(tree, instead):
    """What the error says to save in its place comes back as it was."""
    with pytest.raises((UnsupportedError, KeyExistsError)):
        restored(tree)
    assert restored(instead) == instead


def test_the_end_of_text_is_kept():
    """``str(value)`` would drop the zeros that ``"".join(value)`` keeps."""
    assert "".join(np.str_("x\0")) == "x\0"
    assert bytes(np.bytes_(b"x\0")) == b"x\0"


@pytest.mark.remedy("npz[key] returns the array as it is.")
def test_text_with_characters_that_do_not_exist():
    """No list can be made of it; the array is there."""
    numbers, stream = np.array([0x110000, 97], "u4"), io.BytesIO()
    note = {"n": {}, "s": ["as", "list"]}
    npzkit.save(stream, {"s": numbers.view("U1")}, metadata={"npzkit.tree": note})
    with pytest.raises(NpyFormatError, match="characters that do not exist"):
        npzkit.load_tree(stream)
    assert npzkit.open(stream)["s"].view("u4").tolist() == numbers.tolist()


@pytest.mark.remedy("npz[key] reads the array; NpzWriter.rename gives it another key.")
def test_a_key_of_many_parts(tmp_path):
    """It would be a folder in a folder in a folder; under another key the array is extracted."""
    path, key = tmp_path / "a.npz", "/".join("a" * 600)
    npzkit.save(path, {key: np.arange(3)})
    with pytest.raises(LimitExceededError, match="too many parts"):
        npzkit.extract(path, tmp_path / "out")
    with npzkit.open(path) as npz:
        assert npz[key].tolist() == [0, 1, 2]
    with npzkit.NpzWriter(path, "a") as writer:
        writer.rename(key, "short")
    npzkit.extract(path, tmp_path / "out")
    assert np.load(tmp_path / "out" / "short.npy").tolist() == [0, 1, 2]
