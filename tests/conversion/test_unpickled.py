"""Archives of pickles become archives without, for `convert(allow_pickle=True)`."""

from __future__ import annotations

import datetime
import pathlib
import zipfile
from collections import namedtuple

import npzkit
import numpy as np
import pytest
from npzkit.errors import ConversionError, at_prompt

from tables import each_row

Point = namedtuple("Point", ("x", "y"))


def objects(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def converted(arrays, here, **options):
    np.savez(here / "old.npz", **arrays)
    report = npzkit.convert(here / "old.npz", here / "new.npz", allow_pickle=True, **options)
    with np.load(here / "new.npz") as npz:
        assert all(npz[key].dtype != object for key in npz.files)
    return report, npzkit.load_tree(here / "new.npz")


@pytest.mark.slow
@each_row(
    ("array", "expected"),
    [
        (objects(1, 2, 3), np.array([1, 2, 3])), (objects(0.5, 2.0), np.array([0.5, 2.0])),
        (objects("a", "bc"), np.array(["a", "bc"])), (objects(True, False), np.array([True, False])),
        (np.array([[1, 2], [3, 4]], object), np.array([[1, 2], [3, 4]])),
        (objects(np.float32(1), np.float32(2)), np.array([1, 2], "f4")),
        (np.array("text", object), "text"), (np.array(None, object), None),
        (objects(1, 0.5), [1, 0.5]), (objects(1, None, "x"), [1, None, "x"]),
        (objects(10**30, 1), [10**30, 1]), (objects("a" * 1_100_000, *"b" * 9), ["a" * 1_100_000, *"b" * 9]),
        (objects(b"a\0", b""), [b"a\0", b""]), (objects({"a": 1}, [2]), [{"a": 1}, [2]]),
        (objects(datetime.date(2020, 1, 2)), [datetime.date(2020, 1, 2)]),
        (np.zeros((0, 2), object), np.zeros((0, 2))), (objects(objects(1, 2), objects("a")), [np.array([1, 2]), np.array(["a"])]),
    ],
)  # fmt: skip
def test_what_becomes_of_objects(here, array, expected):
    """An array where it keeps each value, and else a list."""
    _, tree = converted({"plain": np.ones(2), "x": array}, here)
    assert list(tree) == ["plain", "x"]
    assert type(tree["x"]) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (tree["x"].dtype, tree["x"].shape) == (expected.dtype, expected.shape)
    assert str(tree["x"]) == str(expected)


def test_dicts_namedtuples_and_slashes_in_keys(here):
    """What is within goes on as in any tree, under its key."""
    value = np.array({"p": Point(np.arange(2), objects(1, 2)), 3: objects(None)}, object)
    _, tree = converted({"a/b": value, "a/c": np.ones(1), "d": objects("x", None)}, here)
    assert list(tree) == ["a", "d"]
    assert tree["a"]["b"]["p"].y.tolist() == [1, 2]
    assert tree["a"]["b"][3] == [None]
    assert tree["d"] == ["x", None]


def test_fixtures(here, fixtures):
    """Ragged lists, a dict in an array without axes, and a model with a sparse matrix."""
    trees = {}
    for name in ("ragged", "dict", "smpl"):
        if name == "smpl":
            pytest.importorskip("scipy.sparse")
        npzkit.convert(fixtures / f"pickled_{name}.npz", here / f"{name}.npz", allow_pickle=True)
        trees[name] = npzkit.load_tree(here / f"{name}.npz")
    ragged = trees["ragged"]
    assert [part.tolist() for part in ragged["lengths"]] == [[0, 1], [0.0, 1.0, 2.0]]
    assert (ragged["names"].tolist(), ragged["counts"].tolist()) == (["a", "bc"], [1, 2, 3])
    assert ragged["mixed"] == [1, None, "x"]
    layer = trees["dict"]["arr_0"]
    assert (layer["lr"], layer["w"].tolist()) == (0.1, [[1, 0], [0, 1]])
    assert layer["layers"][0]["b"].tolist() == [0, 0, 0]
    model = trees["smpl"]["model"]
    assert model["J_regressor"].toarray().tolist() == np.eye(4)[::2].tolist()
    assert (model["bs_style"], model["f"].tolist()) == ("lbs", [[0, 1, 2], [3, 4, 5]])
    assert trees["smpl"]["v_template"].shape == (3, 3)


def test_strings_of_python_2(here, fixtures):
    """`encoding` is that of np.load, and the error names it in the words of each interface."""
    source = fixtures / "python2_object.npz"
    with pytest.raises(ConversionError, match="encoding='latin1'") as caught:
        npzkit.convert(source, here / "a.npz", allow_pickle=True)
    assert "pass --encoding latin1" in at_prompt(caught.value.what)
    npzkit.convert(source, here / "a.npz", allow_pickle=True, encoding="latin1")
    assert npzkit.load_tree(here / "a.npz")["x"] == ["é", "Ã©", 3]


def test_what_has_no_place_is_named_or_left_out(here):
    """By its key, and by where in it."""
    arrays = {"x": np.array({"at": [pathlib.PurePosixPath("a")]}, object), "y": np.ones(1)}
    np.savez(here / "old.npz", **arrays)
    with pytest.raises(ConversionError, match="x/at/0: a value of type PurePosixPath") as caught:
        npzkit.convert(here / "old.npz", here / "new.npz", allow_pickle=True)
    assert caught.value.key == "x"
    assert not (here / "new.npz").exists()
    report, tree = converted(arrays, here, skip=True)
    assert list(report.skipped) == ["x"]
    assert list(tree) == ["y"]


@pytest.mark.parametrize("allow_pickle", [True, False])
def test_a_list_that_loses_its_objects(here, allow_pickle):
    """The report says that it loads as a dict."""
    npzkit.save("old.npz", {"s": [np.ones(2), np.ones(2)], "n": None, "w": np.ones(1)})
    with npzkit.NpzWriter("old.npz", "a", allow_pickle=True) as npz:
        npz.add("s/0", objects(pathlib.PurePosixPath("a")), overwrite=True)
    report = npzkit.convert("old.npz", "new.npz", skip=True, allow_pickle=allow_pickle)
    what = "lists and tuples that lost items load as dicts by index or name: 's'"
    values = [
        "1 value without an array: 'n'; only npzkit finds this, in the metadata"
    ] * allow_pickle
    assert (list(report.skipped), list(report.notes)) == (["s/0"], [*values, what])
    assert list(npzkit.load_tree("new.npz")["s"]) == [1]


def test_nothing_is_unpickled_unless_that_is_said(here):
    """Other formats refuse objects then."""
    pytest.importorskip("safetensors")
    np.savez(here / "old.npz", x=objects(1, 2))
    with pytest.raises(ConversionError, match="Python objects"):
        npzkit.convert(here / "old.npz", here / "b.safetensors")


def test_a_pickle_of_a_missing_class(here):
    """The error says which class it is."""
    np.savez(here / "old.npz", x=objects(pathlib.PurePosixPath("a")))
    with npzkit.open(here / "old.npz") as npz:
        raw = npz.stream("x").read()
    with zipfile.ZipFile(here / "bad.npz", "w") as archive:
        archive.writestr("x.npy", raw.replace(b"pathlib", b"nothere"))
    with pytest.raises(ConversionError, match="ModuleNotFoundError: No module named 'nothere'"):
        npzkit.convert(here / "bad.npz", here / "new.npz", allow_pickle=True)


@pytest.mark.slow
def test_large_plain_arrays_beside_objects(here):
    """They are read part by part, and other formats take the plain arrays."""
    large = np.arange(3_000_000)
    report, tree = converted({"large": large, "x": objects(1, 2)}, here)
    assert report.keys == ("large", "x")
    assert np.array_equal(tree["large"], large)
    pytest.importorskip("safetensors")
    npzkit.convert(here / "old.npz", here / "new.safetensors", allow_pickle=True)
    npzkit.convert(here / "new.safetensors", here / "back.npz")
    assert npzkit.load_tree(here / "back.npz")["x"].tolist() == [1, 2]


def test_other_nested_data_is_kept(here):
    """What has no array stays if an array of objects is within it, or around it."""
    old, new = here / "a.npz", here / "b.npz"
    npzkit.save(old, {"p": [1.5, np.ones(2)]})
    with npzkit.NpzWriter(old, "a", allow_pickle=True) as writer:
        writer.add("p/5", np.array({"lr": 0.1}, object))
        writer.add("m/o", np.array({"n": 3}, object))
        writer.add("m", np.array("text", object))
    npzkit.convert(old, new, allow_pickle=True)
    tree = npzkit.load_tree(new)
    assert (tree["p"][0], tree["p"][5], tree["m"], tree["m/o"]) == (
        1.5, {"lr": 0.1}, "text", {"n": 3},
    )  # fmt: skip
