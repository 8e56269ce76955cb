"""Remedies are followed: what an error says to do is done, and then it works."""

from __future__ import annotations

import io
import os
import re
import zipfile

import npzkit
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def remedy_of(call):
    """Return the remedy of the error that a call raises."""
    with pytest.raises(npzkit.NpzkitError) as caught:
        call()
    assert caught.value.remedy, caught.value
    return caught.value.remedy


def test_bytes_in_front_of_an_archive():
    """repair saves the arrays, and a file object may begin at the byte that is named."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(3)})
    data = b"x" * 1150 + stream.getvalue()
    with open("a.npz", "wb") as file:
        file.write(data)
    remedy = remedy_of(lambda: npzkit.open("a.npz"))
    assert "npzkit.repair(path, output)" in remedy
    npzkit.repair("a.npz", "b.npz")
    assert np.load("b.npz")["x"].tolist() == [0, 1, 2]
    (begin,) = re.findall(r"byte ([0-9]+)", remedy)
    with open("a.npz", "rb") as file:
        file.seek(int(begin))
        assert npzkit.open(file)["x"].tolist() == [0, 1, 2]


def test_an_array_of_arrays():
    """A list of them is saved as arrays of their own."""
    array = np.empty(2, object)
    array[:] = [np.arange(2), np.arange(3)]
    remedy = remedy_of(lambda: npzkit.save("a.npz", {"x": array}))
    assert "list(array)" in remedy
    npzkit.save("a.npz", {"x": list(array)})
    assert [part.tolist() for part in npzkit.load_tree("a.npz")["x"]] == [[0, 1], [0, 1, 2]]


def test_a_sparse_matrix():
    """Its parts are saved, and scipy's own function saves all of it."""
    sparse = pytest.importorskip("scipy.sparse")
    value = sparse.coo_array(np.eye(3))
    remedy = remedy_of(lambda: npzkit.save("a.npz", {"x": value}))
    assert "scipy.sparse.save_npz(path, value)" in remedy and "value.tocsr()" in remedy
    csr = value.tocsr()
    parts = {name: getattr(csr, name) for name in ("data", "indices", "indptr", "shape")}
    npzkit.save("a.npz", parts)
    found = npzkit.load_tree("a.npz")
    again = sparse.csr_array((found["data"], found["indices"], found["indptr"]), found["shape"])
    assert (again != csr).nnz == 0
    sparse.save_npz("b.npz", value)
    with npzkit.open("b.npz") as npz:
        assert np.array_equal(npz["data"], value.data)


def test_a_npy_file_under_the_name_of_an_archive(cli):
    """The command that the message names packs it, also under its own suffix."""
    with open("x.npz", "wb") as file:
        np.save(file, np.arange(3))
    found = cli("ls", "x.npz")
    (command,) = re.findall(r"npzkit (pack \S+ \S+?)\.?$", found.err.strip())
    assert cli(*command.split()).code == 0
    (written,) = set(os.listdir()) - {"x.npz"}
    assert np.load(written)["x"].tolist() == [0, 1, 2]


def test_a_key_that_is_no_file_name():
    """The other arrays are extracted by their keys."""
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("good.npy", stream.getvalue())
        archive.writestr("../bad.npy", stream.getvalue())
    remedy = remedy_of(lambda: npzkit.extract("a.npz", "out"))
    assert "npzkit.extract(path, folder, keys)" in remedy
    assert npzkit.extract("a.npz", "out", ["good"]).files == {
        "good": os.path.join("out", "good.npy")
    }


@pytest.mark.parametrize("keys", [None, ["y"]])
def test_a_file_that_does_not_fit_the_others(keys):
    """Other keys are chosen, or, if some were, the file is left out."""
    npzkit.save("a.npz", {"x": np.arange(3), "y": np.arange(3)})
    npzkit.save("b.npz", {"x": np.arange(3)})
    remedy = remedy_of(lambda: npzkit.open_many("*.npz", keys=keys))
    if keys is None:
        assert "keys=[...]" in remedy
        assert len(npzkit.open_many("*.npz", keys=["x"])["x"]) == 6
        return
    assert 'on_error="warn"' in remedy
    with (
        pytest.warns(UserWarning, match="left out"),
        npzkit.open_many("*.npz", keys=keys, on_error="warn") as many,
    ):
        assert [os.path.basename(path) for path in many.left_out] == ["b.npz"]


def test_a_folder_of_archives_in_the_place_of_one(cli):
    """`npzkit ls` lists the archives that can be compared."""
    os.mkdir("folder")
    npzkit.save("folder/a.npz", {"x": np.arange(3)})
    found = cli("diff", "folder", "folder")
    assert "npzkit ls FOLDER" in found.err
    assert "folder/a.npz" in cli("ls", "folder").out.replace(os.sep, "/")
    assert cli("diff", "folder/a.npz", "folder/a.npz").code == 0


def test_a_truncated_npy_file(cli):
    """Its complete rows are saved by the command that the message names, as an archive."""
    np.save("x.npy", np.arange(1000).reshape(100, 10))
    os.truncate("x.npy", 3000)
    found = cli("pack", "new.npz", "x.npy")
    assert "npzkit repair x.npy -o OTHER --partial" in found.err
    found = cli("repair", "x.npy", "-o", "other.npz", "--partial", "--json").json()[0]
    assert (found["ok"], found["kept"], found["lost"][0]["rows"]) == (False, ["x"], [[35, 100]])
    with np.load("other.npz") as npz:
        assert npz["x"].tolist() == np.arange(350).reshape(35, 10).tolist()


@pytest.mark.parametrize("size", [10, 100, 128, 200])
def test_a_npy_file_without_a_complete_row(cli, size):
    """Nothing is written, and the error says so."""
    np.save("x.npy", np.arange(1000).reshape(100, 10))
    os.truncate("x.npy", size)
    assert "no complete row" in remedy_less(lambda: npzkit.repair("x.npy", "b.npz", partial=True))
    assert os.listdir() == ["x.npy"]


def remedy_less(call):
    """Return the message of the error that a call raises."""
    with pytest.raises(npzkit.NpzkitError) as caught:
        call()
    return str(caught.value)
