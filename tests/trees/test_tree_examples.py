"""Nested data loaded in part, and in the structure of an example."""

from __future__ import annotations

import dataclasses
import io
import re
from collections import OrderedDict, UserDict, defaultdict
from types import MappingProxyType
from typing import Any, NamedTuple

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import MemberNotFoundError, TreeMismatchError, TreeMismatchWarning

from tables import each_row

pytestmark = pytest.mark.usefixtures("any_size")


class Moments(NamedTuple):
    mu: Any
    nu: Any


@dataclasses.dataclass
class State:
    step: int
    params: Any
    moments: Moments
    history: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    rate: float
    w: Any


def saved(tree, **options):
    stream = io.BytesIO()
    npzkit.save(stream, tree, **options)
    return stream


def tree_of(fill):
    """Return a tree with all kinds of containers; numbers and arrays depend on `fill`."""
    w = np.full((2, 3), fill, "f4")
    return {
        "model": OrderedDict(layers=[{"w": w.copy(), "b": np.full(3, fill)}, (w.copy(), fill)]),
        "state": State(fill, {"a/b": w.copy(), "a/c": fill / 2}, Moments(w.copy(), {0: w.copy()})),
        "frozen": Frozen(fill / 4, w.copy()),
        "scalar": np.float32(fill),
        "proxy": MappingProxyType({"x": fill, "y": str(fill), "z": b"%d" % fill, "c": fill + 1j}),
        "user": UserDict({"w": w.copy()}),
        "default": defaultdict(list, {"w": w.copy()}),
    }


def is_same(one, other):
    """Whether two trees have the same types and values."""
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(is_same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, (dict, UserDict, MappingProxyType)):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other


def test_an_example_gives_its_own_types():
    """Mappings, lists, tuples, namedtuples and dataclasses come back as the example has them."""
    stream = saved(tree_of(3))
    example = tree_of(0)
    found = npzkit.load_tree(stream, like=example)
    assert is_same(found, tree_of(3))
    assert is_same(example, tree_of(0))
    assert found["default"].default_factory is list
    part = npzkit.load_tree(stream, "state/moments", like=example["state"].moments)
    assert is_same(part, tree_of(3)["state"].moments)


@each_row(
    "make",
    [
        lambda n: tree_of(n)["state"],
        lambda n: Moments(np.full(2, n), n),
        lambda n: (tree_of(n), Moments(np.full(2, n), n)),
        lambda n: [np.full(2, n), {"a/b": n, "c": {"d/e": np.full(3, n)}}],
        lambda n: np.full(3, n),
    ],
)
def test_an_example_may_be_any_tree(make):
    """A tuple, a list, an array, a namedtuple or a dataclass at the top is given back, or filled."""
    stream = saved(make(3))
    assert is_same(npzkit.load_tree(stream, like=make(0)), make(3))
    assert is_same(npzkit.load_tree(stream, into=make(0)), make(3))


def test_a_tree_without_a_dict_around_it_comes_back():
    """A dataclass is a dict of its fields, and a namedtuple a namedtuple."""
    plain = npzkit.load_tree(saved(tree_of(3)["state"]))
    assert [type(plain), *plain] == [dict, "step", "params", "moments", "history"]
    assert npzkit.load_tree(saved(Moments(np.full(2, 3), 3))).nu == 3


def test_an_example_is_filled_in_place():
    """The example's own arrays, dicts, lists and dataclasses get the values."""
    example = tree_of(0)
    layers, state, w = example["model"]["layers"], example["state"], example["frozen"].w
    default = example["default"]["w"]
    assert npzkit.load_tree(saved(tree_of(3)), into=example) is example
    assert is_same(example, tree_of(3))
    assert example["model"]["layers"] is layers
    assert example["state"] is state
    assert example["frozen"].w is w
    assert example["default"]["w"] is default


def test_the_data_need_not_have_been_saved_as_a_tree():
    """Keys with slashes are enough: an archive of NumPy fills a list, a tuple and a namedtuple."""
    stream = io.BytesIO()
    np.savez(stream, **{"a/0": np.ones(2), "a/1": np.array(5), "m/mu": np.eye(2), "m/nu": np.array("x"),
                        "n": [1, 2, 3], "f": 0.5})  # fmt: skip
    like = {"a": (np.zeros(2), 0), "m": Moments(np.zeros((2, 2)), ""), "n": [0], "f": 0.0}
    found = npzkit.load_tree(stream, like=like)
    assert is_same(found["a"], (np.ones(2), 5))
    assert is_same(found["m"], Moments(np.eye(2), "x"))
    assert (found["n"], found["f"]) == ([1, 2, 3], 0.5)


@pytest.mark.remedy("Pass strict=False to load what fits.")
def test_what_does_not_fit_is_named_at_once(tmp_path):
    """One error names all keys that are missing, left over, or of another shape, dtype or kind."""
    path = tmp_path / "a.npz"
    w = np.zeros((2, 3), "f4")
    npzkit.save(
        path, {"a": {"w": w, "v": w, "n": 1, "s": w}, "list": [w, {"x": 1.5}], "t": {"u": 2}}
    )
    like = {
        "a": {"w": np.zeros((3, 2), "f4"), "v": np.zeros((2, 3)), "n": w, "s": "text", "new": w},
        "list": [w],
        "t": 5,
        "gone": {"b": [1, w]},
    }  # fmt: skip
    for options in ({"like": like}, {"into": like}):
        with pytest.raises(TreeMismatchError) as caught:
            npzkit.load_tree(path, **options)
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.missing == ("a/new", "t", "gone/b/0", "gone/b/1")
    assert error.left_over == ("list/1/x", "t/u")
    assert error.differing == {
        "a/w": ("float32 (2, 3)", "float32 (3, 2)"),
        "a/v": ("float32 (2, 3)", "float64 (2, 3)"),
        "a/n": ("int", "float32 (2, 3)"),
        "a/s": ("float32 (2, 3)", "str"),
    }
    assert error.path == str(path)
    for key in (*error.missing, *error.left_over, *error.differing):
        assert repr(key) in str(error)
    with pytest.warns(TreeMismatchWarning):
        found = npzkit.load_tree(path, like=like, strict=False)
    assert found["list"][0].shape == (2, 3)
    assert found["gone"] == like["gone"]


FOLDER = pytest.mark.remedy("to load this part, or strict=False.")


@pytest.mark.parametrize(
    ("like", "only"),
    [
        pytest.param({"model": {"w": 0, "b": 0}}, "model/*", marks=FOLDER),
        ({"model": {"w": 0}}, None),
        ({"model": {"w": 0, "b": 0, "x": 0}}, None),
        pytest.param({"run": {"ema": {"w": 0}}}, "run/ema/*", marks=FOLDER),
        ({"run": {"ema": {"w": 0}, "n": 0}, "model": {"w": 0, "b": 0}}, None),
    ],
)
def test_an_example_of_a_part_is_told_how_to_load_it(tmp_path, like, only):
    """If all that the example has is there, and fills one folder, the error names that pattern."""
    path = tmp_path / "a.npz"
    run = {"ema": {"w": 3}, "n": 4}
    npzkit.save(path, {"model": {"w": 1, "b": 2}, "run": run, "optimizer": {"step": 5}})
    with pytest.raises(TreeMismatchError, match="strict=False") as caught:
        npzkit.load_tree(path, like=like)
    assert (f"Pass only={only!r} to load this part" in str(caught.value)) == (only is not None)
    if only is not None:
        found = npzkit.load_tree(path, like=like, only=only)
        with pytest.warns(TreeMismatchWarning):
            assert npzkit.load_tree(path, like=like, strict=False) == found
        assert found == (
            {"model": {"w": 1, "b": 2}} if "model" in like else {"run": {"ema": {"w": 3}}}
        )


def test_what_fits_is_loaded_if_not_strict():
    """A warning has what did not fit; those keys keep the example's values."""
    stream = saved({"a": {"w": np.ones(2), "v": np.ones(3), "n": 1}, "rest": 5})
    like = {"a": {"w": np.zeros(2), "v": np.zeros(2), "n": 0, "new": "kept"}}
    with pytest.warns(TreeMismatchWarning, match=r"missing: 'a/new'; left over: 'rest'") as caught:
        found = npzkit.load_tree(stream, like=like, strict=False)
    expected = {"a": {"w": np.ones(2), "v": np.zeros(2), "n": 1, "new": "kept"}}
    assert is_same(found, expected)
    assert list(caught[0].message.mismatch.differing) == ["a/v"]
    with pytest.warns(TreeMismatchWarning):
        npzkit.load_tree(stream, into=like, strict=False)
    assert is_same(like, expected)


@pytest.mark.remedy("Nothing of the archive fits: npzkit.load_tree(file) returns what it has.")
@each_row("like", [{"v": np.zeros(2)}, {"w": np.zeros(3)}, {"a": {"b": 0, "c": 0}}])
def test_a_file_of_which_nothing_fits_is_an_error_if_not_strict_too(like):
    """A program went on with the random weights of the example."""
    stream = saved({"w": np.ones(2), "s": {}})
    for strict in (True, False):
        with pytest.raises(TreeMismatchError, match="Nothing of the archive fits"):
            npzkit.load_tree(stream, like=like, strict=strict)
    assert npzkit.load_tree(stream, like=npzkit.load_tree(stream))["w"].tolist() == [1, 1]


@pytest.mark.remedy("of the example, and nothing else of it fits: pass keys of the example")
def test_an_example_that_only_leaves_out():
    """The error says that `only` left it out, not that the archive lacks it."""
    model = {"model": {"w": np.ones(2), "b": np.ones(1)}}
    stream = saved({**model, "opt": {"m": np.zeros(2)}})
    for strict in (True, False):
        with pytest.raises(TreeMismatchError, match="only= leaves out 'model/w'") as caught:
            npzkit.load_tree(stream, like=model, only="opt", strict=strict)
        assert str(caught.value).endswith("such as only='model/w'.")
    assert is_same(npzkit.load_tree(stream, like=model, only="model/w"), model)
    with pytest.raises(TreeMismatchError, match="differ by the prefix 'model/'"):
        npzkit.load_tree(stream, like=model["model"], only="model")


@pytest.mark.remedy("Only dtypes differ: load the values with like={}, and convert them, as")
def test_an_example_of_another_dtype():
    """The error says that only dtypes differ, whether or not other values fit."""
    stream = saved({"w": np.ones((2, 3)), "n": np.array(1)})
    like = {"w": np.zeros((2, 3), "f2"), "n": np.array(0)}
    for only in (None, "w"):
        with pytest.raises(TreeMismatchError, match="Only dtypes differ"):
            npzkit.load_tree(stream, like=like, only=only)
    assert npzkit.load_tree(stream, like={})["w"].astype("f2").tolist() == [[1, 1, 1]] * 2
    for other in np.zeros(3, "f2"), 0:
        with pytest.raises(TreeMismatchError) as caught:
            npzkit.load_tree(stream, like={"w": other, "n": np.array(0)})
        assert "Only dtypes" not in str(caught.value)


@pytest.mark.remedy("Load that folder: npzkit.load_tree(path, ")
@pytest.mark.parametrize("folder", ["model", "state/model"])
def test_an_example_of_a_folder_of_the_archive(folder, tmp_path):
    """The error names the call that loads this folder, from the top or from a folder above."""
    path, like = tmp_path / "a.npz", {"w": np.zeros(2), "b": np.zeros(1)}
    npzkit.save(path, {f"{folder}/w": np.ones(2), f"{folder}/b": np.ones(1), "epoch": 3})
    above = folder.rpartition("/")[0]
    for start in {"", above}:
        with pytest.raises(TreeMismatchError, match="differ by the prefix") as caught:
            npzkit.load_tree(path, start, like=like)
        call = re.search(r"npzkit.load_tree\(path, '[^']*', like=", str(caught.value))[0] + "like)"
        found = eval(call, {"npzkit": npzkit, "path": path, "like": like})
        assert is_same(found, {"w": np.ones(2), "b": np.ones(1)})


@pytest.mark.remedy("Rename those of the example, or each of the archive by a writer of ")
def test_a_prefix_can_be_renamed_in_the_archive(tmp_path):
    """The error names the call that renames the first key."""
    path, like = tmp_path / "a.npz", {"state": {"w": np.zeros(2)}}
    npzkit.save(path, {"state": {"module.w": np.ones(2)}})
    with pytest.raises(TreeMismatchError, match=r"of the example, or each of") as caught:
        npzkit.load_tree(path, like=like)
    with npzkit.NpzWriter(path, "a") as w:
        eval(re.search(r"w\.rename\(.*\)", str(caught.value))[0], {"w": w})
    assert is_same(npzkit.load_tree(path, like=like), {"state": {"w": np.ones(2)}})


@each_row(
    ("keys", "others", "prefix"),
    [
        (["w", "b"], ["_orig_mod.w", "_orig_mod.b"], "_orig_mod."),
        (["module.w", "module.b"], ["w", "b", "left"], "module."),
        (["net.0.w", "net.0.b"], ["net._orig_mod.0.w", "net._orig_mod.0.b"], "_orig_mod."),
        (["w", "b"], ["model/w", "model/b"], "model/"),
        (["w", "b"], ["module.w", "b2"], None),
        (["w"], ["xw"], None),
        (["a.w"], ["b.w"], None),
    ],
)
def test_keys_that_differ_by_a_prefix_are_told_so(keys, others, prefix):
    """As those of models that torch.compile or DataParallel wraps, also if other parts fit."""
    for more in ({}, {"epoch": 3}):
        stream = saved({"state": {**dict.fromkeys(others, 1), **more}})
        like = {"state": {**dict.fromkeys(keys, 0), **more}}
        with pytest.raises(TreeMismatchError) as caught:
            npzkit.load_tree(stream, like=like)
        assert (f"differ by the prefix {prefix!r}" in str(caught.value)) is (prefix is not None)
        if more:
            with pytest.warns(TreeMismatchWarning) as told:
                assert npzkit.load_tree(stream, like=like, strict=False) == like
            assert (f"prefix {prefix!r}" in str(told[0].message)) is (prefix is not None)
        renamed = {"state": {**dict.fromkeys(others, 0), **more}}
        assert npzkit.load_tree(stream, like=renamed)["state"] == dict.fromkeys(others, 1) | more


def test_nothing_is_filled_if_something_does_not_fit():
    """After an error the example has its old values, arrays and numbers."""
    stream = saved({"a": np.ones(2), "n": [1], "b": np.ones(3)})
    example = {"a": np.zeros(2), "n": [0], "b": np.zeros(2)}
    with pytest.raises(TreeMismatchError):
        npzkit.load_tree(stream, into=example)
    assert is_same(example, {"a": np.zeros(2), "n": [0], "b": np.zeros(2)})
    example["b"] = np.zeros(3)
    example["b"].flags.writeable = False
    with pytest.raises(ValueError, match="'b' is read-only"):
        npzkit.load_tree(stream, into=example)
    assert example["a"].tolist() == [0, 0]
    with pytest.raises(ValueError, match="like and into"):
        npzkit.load_tree(stream, into=example, like=example)


def test_what_the_example_has_twice_is_not_filled_twice():
    """One list or array at two places of the example never gets the values of both."""
    shared = [0.0]
    example = {"a": {"last": shared}, "b": [{"last": shared}], "w": np.zeros(2)}
    npzkit.load_tree(
        saved({"a": {"last": [1.0]}, "b": [{"last": [2.0]}], "w": np.ones(2)}), into=example
    )
    assert is_same(example, {"a": {"last": [1.0]}, "b": [{"last": [2.0]}], "w": np.ones(2)})
    twice = {"a": example["w"], "b": example["w"]}
    tied = "differing: 'b' .found other values, expected those of 'a', to which it is tied"
    with pytest.raises(TreeMismatchError, match=tied):
        npzkit.load_tree(saved({"a": np.ones(2), "b": np.zeros(2)}), into=twice)
    npzkit.load_tree(saved({"a": np.zeros(2), "b": np.zeros(2)}), into=twice)
    assert example["w"].tolist() == [0, 0]


def test_an_example_may_leave_open_what_was_saved():
    """None, an ellipsis and empty dicts and lists take whatever is there, in their own type."""
    tree = {
        "state": {0: {"m": np.ones(2)}},
        "best": 0.5,
        "losses": [1.0, (2,)],
        "rest": [{"a": None}],
    }
    stream = saved(tree)
    found = npzkit.load_tree(stream, like={"state": {}, "best": None, "losses": [], "rest": ...})
    assert is_same(found, tree)
    found = npzkit.load_tree(stream, like={**tree, "state": OrderedDict()})
    assert is_same(found["state"], OrderedDict(tree["state"]))
    example = {"state": {}, "best": None, "losses": [], "rest": ()}
    losses = example["losses"]
    npzkit.load_tree(stream, into=example)
    assert is_same(example, {**tree, "rest": ({"a": None},)})
    assert example["losses"] is losses
    with pytest.raises(TreeMismatchError) as caught:
        npzkit.load_tree(stream, like={**tree, "a": None, "b": ..., "c": {}, "d": []})
    assert caught.value.missing == ("a", "b")


def test_an_empty_namedtuple_of_the_example_is_its_own():
    """A class without fields leaves nothing open."""

    class Nothing(NamedTuple):
        pass

    stream = saved({"a": [Nothing(), np.ones(1)]})
    assert type(npzkit.load_tree(stream, like={"a": [Nothing(), np.zeros(1)]})["a"][0]) is Nothing
    with pytest.raises(TreeMismatchError):
        npzkit.load_tree(saved({"a": [{"x": 1}, np.ones(1)]}), like={"a": [Nothing(), np.zeros(1)]})


def test_what_array_likes_describe_is_loaded_as_an_array():
    """An object with a shape and a dtype is an example of an array."""

    class Described:
        shape, dtype = (2,), np.dtype("f8")

    found = npzkit.load_tree(saved({"a": {"w": np.ones(2)}}), like={"a": {"w": Described()}})
    assert is_same(found, {"a": {"w": np.ones(2)}})


@each_row(
    ("only", "expected"),
    [
        ("enc/*", {"enc": {"l": [{"w": 1, "n": "x"}, (2, None)]}}),
        ("enc", {"enc": {"l": [{"w": 1, "n": "x"}, (2, None)]}}),
        ("enc/l/1", {"enc": {"l": {1: (2, None)}}}),
        ("*/w", {"enc": {"l": {0: {"w": 1}}}, "dec": {"w": 3}}),
        (["dec/*", "enc/l/0/n"], {"enc": {"l": {0: {"n": "x"}}}, "dec": {"w": 3, "p": Moments(4, 5)}}),
        (("dec/p/mu",), {"dec": {"p": {"mu": 4}}}),
        ("*", {"enc": {"l": [{"w": 1, "n": "x"}, (2, None)]}, "dec": {"w": 3, "p": Moments(4, 5)}, 7: {}}),
        ("7", {7: {}}),
    ],
)  # fmt: skip
def test_only_what_is_named_is_loaded(only, expected):
    """Patterns choose keys and what is under them; a list that lost items is a dict by index."""
    arrays = iter(map(np.array, range(1, 9)))
    tree = {
        "enc": {"l": [{"w": next(arrays), "n": "x"}, (next(arrays), None)]},
        "dec": {"w": next(arrays), "p": Moments(next(arrays), next(arrays))},
        7: {},
    }
    assert npzkit.load_tree(saved(tree), only=only) == expected


def test_no_byte_of_other_arrays_is_read():
    """A damaged array outside the patterns does not matter."""
    x = np.arange(1000)
    stream = saved(
        {"enc": {"w": x, "m": np.ma.array([1], mask=[True])}, "dec": [x + 1]}, masked="split"
    )
    data = bytearray(stream.getvalue())
    with npzkit.open(stream) as npz:
        data[npz.info("dec/0").data_offset] ^= 1
    found = npzkit.load_tree(bytes(data), only="enc/*")
    assert found["enc"]["w"].tolist() == x.tolist()
    assert found["enc"]["m"].mask.tolist() == [True]
    assert list(found) == ["enc"]
    assert npzkit.load_tree(bytes(data), only=["dec*"], verify=False)["dec"][0].shape == (1000,)
    with pytest.raises(npzkit.errors.ChecksumError):
        npzkit.load_tree(bytes(data), only=["dec*"])


def test_with_an_example_the_rest_keeps_its_values():
    """Keys that `only` does not name are neither missing nor left over."""
    stream = saved({"enc": {"w": np.ones(2), "n": 1}, "dec": {"w": np.ones(3)}})
    like = {"enc": {"w": np.zeros(2), "n": 0}, "head": {"w": np.zeros(4), "e": {}}}
    found = npzkit.load_tree(stream, like=like, only="enc/w")
    assert is_same(found, {**like, "enc": {"w": np.ones(2), "n": 0}})
    with pytest.raises(TreeMismatchError) as caught:
        npzkit.load_tree(stream, like=like, only=["enc/*", "*/w"])
    assert (caught.value.missing, caught.value.left_over) == (("head/w",), ("dec/w",))


@each_row(
    ("options", "message"),
    [
        (
            {"only": "encoder/*"},
            r"no array matches 'encoder/\*'. Keys that begin with 'encode': 'encode/w'\.",
        ),
        ({"only": "encode/nope.*"}, r"Keys that begin with 'encode/': 'encode/w'\."),
        ({"only": "encode/nope"}, "named 'encode/nope'.*(?<!mean 'encode/'.)$"),
        ({"only": "weights/*"}, r"'weights/\*'.*Existing keys: 'encode/w', 'step'\."),
        ({"only": "*.bias"}, r"no array matches '\*\.bias'.*Existing keys"),
        ({"only": "encdoe"}, "named 'encdoe'.*mean 'encode/'"),
        ({"only": ["encode", "dec"]}, "no array named 'dec'"),
        (
            {"prefix": "encode", "only": ["w", "step"]},
            "named 'w'.*mean 'encode/w'",
        ),
        ({"prefix": "encdoe"}, "named 'encdoe'.*mean 'encode/'"),
        ({"only": "w", "like": {"encode": {"w": np.zeros(2)}}}, "named 'w'.*mean 'encode/w'"),
    ],
)
def test_patterns_that_match_nothing_are_an_error(options, message):
    """A misspelt pattern does not load nothing in silence; the error names what is there."""
    stream = saved({"encode": {"w": np.ones(2)}, "step": np.ones(1)})
    with pytest.raises(MemberNotFoundError, match=message):
        npzkit.load_tree(stream, **options)


def test_patterns_are_strings():
    """There is at least one pattern, and each is a string."""
    stream = saved({"enc": {"w": np.ones(2)}})
    with pytest.raises(ValueError, match="at least one"):
        npzkit.load_tree(stream, only=[])
    for only in (3, [3]):
        with pytest.raises(TypeError):
            npzkit.load_tree(stream, only=only)


class Model:
    """Its arrays are in its state dict, as those of PyTorch's modules are."""

    def state_dict(self):
        return {"w": np.ones(2)}


@each_row("way", ["like", "into"])
@each_row(
    ("prefix", "example", "message"),
    [
        ("model", Model(), r"the example has the type Model: pass its state_dict\(\)"),
        (
            "",
            {"model": Model(), "n": 0},
            r"example at 'model' has the type Model: pass its state_d",
        ),
        ("", object(), "must be a dict, .* or a string, not object"),
        ("model", dict, "must be a dict, .* or a string, not type"),
    ],
)
def test_a_model_is_no_example(way, prefix, example, message):
    """Of a model or another object, the error says what to pass instead."""
    stream = saved({"model": Model().state_dict(), "n": 1})
    with pytest.raises(TypeError, match=message):
        npzkit.load_tree(stream, prefix, **{way: example})
    if type(example) is dict:
        found = npzkit.load_tree(stream, only="n", **{way: dict(example)})
        assert found["model"] is example["model"]
        assert found["n"] == 1


def test_a_tree_is_mapped(tmp_path):
    """With mmap_mode the arrays are maps, and values are what they were."""
    path = tmp_path / "a.npz"
    npzkit.save(
        path, {"a": {"w": np.arange(100), "n": 3, "b": b"xy", "s": np.float32(2)}, "top": 5}
    )
    found = npzkit.load_tree(path, mmap_mode="r")
    assert isinstance(found["a"]["w"], np.memmap)
    assert not found["a"]["w"].flags.writeable
    assert found["a"]["w"].tolist() == list(range(100))
    assert is_same([found["a"]["n"], found["a"]["b"], found["top"]], [3, b"xy", 5])
    assert is_same(found["a"]["s"], np.float32(2))
    found = npzkit.load_tree(
        path, "a", like={"w": np.zeros(100, int), "n": 0, "b": b"", "s": None}, mmap_mode="c"
    )
    found["w"][0] = 5
    assert npzkit.load_tree(path, "a/w")[0] == 0


LEAVES = st.one_of(
    st.integers(), st.none(), st.text(max_size=2), st.binary(max_size=2), st.complex_numbers(allow_nan=False),
    st.sampled_from([np.arange(3), np.zeros((0, 2), "f4"), np.float32(1.5), np.array(True)]),
)  # fmt: skip
TREES = st.dictionaries(
    st.sampled_from("abc") | st.integers(0, 3),
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.sampled_from("xy") | st.integers(0, 2), inner, max_size=3)
            | st.builds(Moments, inner, inner)
        ),
        max_leaves=5,
    ),
    max_size=3,
)


@pytest.mark.slow
@given(TREES)
def test_a_tree_fits_itself(tree):
    """Any tree is loaded in its own structure, new or in place, and in part by each of its keys."""
    tree = {"tree": tree, "nested": {"x": np.ones(2)}}
    stream = saved(tree)
    assert is_same(npzkit.load_tree(stream, like=tree), tree)
    assert is_same(npzkit.load_tree(stream, into=tree), tree)
    plain = npzkit.load_tree(stream)
    for name in tree["tree"]:
        part = npzkit.load_tree(stream, only=[f"tree/{name}", "nested"])
        assert is_same(part["tree"][name], plain["tree"][name])


@pytest.mark.remedy("Keys begin with it: ")
def test_a_part_whose_name_keys_only_begin_with():
    """A state dict has no folders: the error names the pattern of the keys."""
    stream = saved({"model": {"enc.0.w": np.ones(2), "enc.1.w": np.zeros(2), "head": np.ones(1)}})
    with pytest.raises(MemberNotFoundError, match=r"with it: only='model/enc\.\*' matches them"):
        npzkit.load_tree(stream, "model/enc")
    with pytest.raises(MemberNotFoundError, match=r"with it: 'model/enc\.\*' matches them"):
        npzkit.load_tree(stream, only="model/enc")
    found = npzkit.load_tree(stream, only="model/enc.*")
    assert list(found["model"]) == ["enc.0.w", "enc.1.w"]


def test_folders_are_not_called_keys():
    """They are only suggested if one is close to what was given."""
    stream = saved({"model": {"w": np.ones(2)}})
    with pytest.raises(MemberNotFoundError, match="Existing keys: 'model/w'\\."):
        npzkit.load_tree(stream, "unlike")
    with pytest.raises(MemberNotFoundError, match="Did you mean 'model/'"):
        npzkit.load_tree(stream, "modal")
