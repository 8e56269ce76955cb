"""scipy's sparse matrices and arrays in trees."""

from __future__ import annotations

import io
import json
import sys

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.checkpoint import CheckpointStore
from npzkit.errors import NpyFormatError, PickleRefusedError, TreeMismatchError, UnsupportedError

from tables import each_row

sparse = pytest.importorskip("scipy.sparse")
KINDS = [
    f"{form}_{kind}" for form in ("csr", "csc", "bsr", "coo", "dia") for kind in ("array", "matrix")
]
DENSE = np.diag(np.arange(1.0, 5.0)) + np.eye(4, k=2)


def made(kind, dense=DENSE):
    return getattr(sparse, kind)(dense)


def check(found, expected):
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    assert np.array_equal(found.toarray(), expected.toarray())


def saved(tree):
    stream = io.BytesIO()
    npzkit.save(stream, tree)
    stream.seek(0)
    return stream


@each_row("kind", KINDS)
def test_each_kind_comes_back(kind):
    """As a tree, within one, and by the writer; np.load sees plain arrays."""
    value = made(kind)
    check(npzkit.load_tree(saved(value)), value)
    stream = saved({"layers": [{"w": value, "b": np.ones(2)}]})
    check(npzkit.load_tree(stream)["layers"][0]["w"], value)
    check(npzkit.load_tree(stream, "layers/0/w"), value)
    check(npzkit.load_tree(stream, only="layers/0/w")["layers"][0]["w"], value)
    with np.load(stream) as npz:
        assert np.array_equal(npz["layers/0/w/data"], value.data)
        assert npz["layers/0/w/shape"].tolist() == [4, 4]
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream) as writer:
        writer["w"] = value
    check(npzkit.load_tree(stream)["w"], value)


@given(
    st.sampled_from(KINDS), st.integers(1, 5), st.integers(1, 5),
    st.sampled_from(["f4", "i8", "c16", "?"]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_any_values(kind, rows, columns, dtype, random):
    """Any shape and dtype, with and without items."""
    dense = np.array([random.choice([0, 0, 1, 3]) for _ in range(rows * columns)], dtype)
    value = made(kind, dense.reshape(rows, columns))
    check(npzkit.load_tree(saved({"w": value}))["w"], value)


def test_an_array_of_one_axis():
    """`coo_array` may have any number of axes."""
    try:
        value = sparse.coo_array(np.array([0, 2, 0, 3]))
    except ValueError:
        pytest.skip("this scipy has no sparse arrays of one axis")
    check(npzkit.load_tree(saved({"w": value}))["w"], value)


@each_row("kind", KINDS)
def test_files_of_scipy(kind, tmp_path):
    """`load_tree` returns what scipy.sparse.load_npz does."""
    sparse.save_npz(tmp_path / "a.npz", made(kind))
    check(npzkit.load_tree(tmp_path / "a.npz"), sparse.load_npz(tmp_path / "a.npz"))


def test_the_fixture_of_scipy(fixtures):
    """A file of an older release."""
    found = npzkit.load_tree(fixtures / "scipy_sparse.npz")
    assert np.array_equal(found.toarray(), np.eye(10)[::3])


@pytest.mark.parametrize(
    "change", [{"format": np.array("xyz")}, {"format": np.array([1])}, {"other": np.ones(1)}]
)
def test_a_dict_that_only_looks_like_a_matrix(change):
    """Names alone make no matrix."""
    arrays = {name: getattr(made("csr_array"), name) for name in ("data", "indices", "indptr")}
    arrays |= {"shape": np.array([4, 4]), "format": np.array(b"csr"), **change}
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    assert npzkit.load_tree(stream).keys() == arrays.keys()


def test_an_example_says_class_shape_and_dtype():
    """Not which items there are; `into` gets the new matrix."""
    value = made("csr_array")
    stream = saved({"w": value, "b": np.ones(2)})
    example = {"w": sparse.csr_array((4, 4)), "b": np.zeros(2)}
    check(npzkit.load_tree(stream, like=example)["w"], value)
    assert npzkit.load_tree(stream, into=example) is example
    check(example["w"], value)
    for other in (made("csc_array"), made("csr_array", DENSE[:3]), made("csr_array", DENSE > 1)):
        with pytest.raises(TreeMismatchError, match="csr_array of float64"):
            npzkit.load_tree(stream, like={"w": other, "b": np.ones(2)})
    with pytest.raises(TreeMismatchError, match="missing"):
        npzkit.load_tree(stream, like={"v": value, "w": value, "b": np.ones(2)})


def test_a_checkpoint(tmp_path):
    """Saved in the background, and loaded."""
    with CheckpointStore(tmp_path, background=True) as store:
        store.save(1, {"w": made("csr_matrix")})
        check(store.load().tree["w"], made("csr_matrix"))


def test_a_part_that_is_removed_or_replaced():
    """Without it, the parts are a dict; with it again, they are the matrix."""
    stream = saved({"w": made("csr_array")})
    with npzkit.NpzWriter(stream, "a") as writer:
        del writer["w/indptr"]
    assert npzkit.load_tree(stream)["w"].keys() == {"data", "indices", "shape"}
    with npzkit.NpzWriter(stream, "a") as writer:
        writer["w/indptr"] = made("csr_array").indptr
    check(npzkit.load_tree(stream)["w"], made("csr_array"))
    with npzkit.NpzWriter(stream, "a") as writer:
        writer["w/other"] = np.ones(1)
    assert npzkit.load_tree(stream)["w"].keys() == {"data", "indices", "indptr", "shape", "other"}


@pytest.mark.remedy("Save value.tocsr().")
@each_row("kind", ["lil_array", "dok_array", "lil_matrix", "dok_matrix"])
def test_a_format_without_arrays(kind):
    """lil and dok are refused, with the key; savez names the call that takes sparse matrices."""
    value = getattr(sparse, kind)(DENSE)
    with pytest.raises(UnsupportedError, match=r"value\.tocsr") as caught:
        npzkit.save(io.BytesIO(), {"w": value})
    assert caught.value.key == "w"
    with pytest.raises(PickleRefusedError, match=r"Save value\.tocsr\(\) by npzkit\.save\("):
        npzkit.savez(io.BytesIO(), value, allow_pickle=False)
    check(npzkit.load_tree(saved({"w": value.tocsr()}))["w"], value.tocsr())


@each_row(
    ("kind", "part", "array"),
    [
        ("csr_array", "indices", np.full(6, 1 << 30)), ("csr_array", "indices", np.full(6, -1)),
        ("csr_array", "indptr", np.array([0, 1, 2, 3, 100])), ("csc_matrix", "shape", np.ones(3, int)),
        ("csr_array", "indptr", np.array([0.5, 1])), ("csr_array", "shape", np.array([["a"]])),
        ("coo_array", "coords", np.full((2, 6), 9)), ("coo_array", "coords", np.ones(3, int)),
        ("dia_array", "offsets", np.zeros((2, 2), int)), ("bsr_array", "data", np.ones(6)),
        ("csr_array", "shape", np.array([1 << 62, 1 << 62])),
    ],
)  # fmt: skip
@pytest.mark.remedy("npzkit.open returns its parts, as they are.")
def test_parts_that_do_not_fit(kind, part, array):
    """An index outside would read memory of others: it is an error that names the key."""
    stream = saved({"w": made(kind)})
    with npzkit.NpzWriter(stream, "a") as writer:
        writer.add(f"w/{part}", array, overwrite=True)
        writer.metadata["npzkit.tree"] = {"w": ["sparse", kind]}
    with pytest.raises(NpyFormatError, match="do not fit") as caught:
        npzkit.load_tree(stream)
    assert caught.value.key == "w"
    assert np.array_equal(npzkit.open(stream)[f"w/{part}"], array)


def test_without_scipy(monkeypatch):
    """The parts are a dict, with a warning that says what to install."""
    stream = saved({"w": made("csr_array")})
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.warns(UserWarning, match="pip install scipy"):
        found = npzkit.load_tree(stream)["w"]
    assert found.keys() == {"data", "indices", "indptr", "shape"}


@pytest.mark.parametrize("note", [["sparse"], ["sparse", "os_system"], ["sparse", ["csr_array"]]])
def test_a_note_of_no_kind(note):
    """A file names no other class."""
    stream = saved({"w": made("csr_array")})
    with npzkit.NpzWriter(stream, "a") as writer:
        writer.metadata["npzkit.tree"] = json.loads(json.dumps({"w": note}))
    with pytest.raises(npzkit.NpzkitError, match="structure of the nested data is damaged"):
        npzkit.load_tree(stream)
