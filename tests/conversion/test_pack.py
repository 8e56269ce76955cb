"""npzkit.pack: files, folders, archives and streams to an archive."""

from __future__ import annotations

import io
import os
import zipfile

import ml_dtypes
import npzkit
import numpy as np
import pytest
from archives import damage
from forge import npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import (
    ChecksumError,
    ConversionError,
    KeyExistsError,
    MemberNotFoundError,
    NpzkitError,
    PickleRefusedError,
    UnsafeNameError,
)
from systems import needs_symlinks

from tables import each_row


def test_one_file(here):
    """A path alone is packed under its name without the suffix."""
    np.save("a.b.npy", np.arange(3))
    report = npzkit.pack("a.npz", "a.b.npy")
    assert report == npzkit.PackReport("a.npz", ("a.b",))
    with np.load("a.npz") as found:
        assert found["a.b"].tolist() == [0, 1, 2]


def test_keys_are_given_by_a_mapping_or_by_pairs(here):
    """A mapping gives keys to paths; an iterable takes pairs and paths alike."""
    np.save("x.npy", np.arange(3))
    assert npzkit.pack("a.npz", {"layer/w": "x.npy", "b": here / "x.npy"}).keys == ("layer/w", "b")
    assert npzkit.pack("b.npz", ["x.npy", ("y", "x.npy")]).keys == ("x", "y")
    assert npzkit.pack("c.npz", iter([here / "x.npy"])).keys == ("x",)


def test_every_kind_of_input_together(here):
    """Files, folders, archives, open archives and streams go into one archive."""
    np.save("x.npy", np.arange(3))
    (here / "folder").mkdir()
    np.save("folder/y.npy", np.ones(2))
    npzkit.save("old.npz", {"z": np.zeros(2)}, metadata={"step": 1})
    memory = io.BytesIO()
    npzkit.save(memory, {"m": np.zeros(1)})
    with npzkit.open(memory) as npz, open("x.npy", "rb") as stream:
        report = npzkit.pack(
            "a.npz", ["x.npy", "folder", ("old", "old.npz"), npz, stream, ("s", "x.npy")]
        )
        assert npz["m"].tolist() == [0]
    assert report.keys == ("x", "y", "old/z", "m", "arr_0", "s")
    with npzkit.open("a.npz") as found:
        assert found.files == list(report.keys)
        assert found.metadata == {"step": 1}
        assert found["arr_0"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("block_size", [100, 1 << 25])
def test_to_a_file_object(here, monkeypatch, compression, block_size):
    """A stream that takes bytes alone gets the same archive as a path."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", block_size)
    npzkit.save("old.npz", {"f": np.asfortranarray(np.arange(900.0).reshape(30, 30))})
    np.save("x.npy", np.arange(1000))

    class Pipe:
        """Takes some of the bytes at a time, and counts them."""

        def __init__(self):
            self.data = bytearray()

        def write(self, data):
            taken = bytes(data)[:5000]
            self.data += taken
            return len(taken)

    out, told = Pipe(), []
    report = npzkit.pack(
        out, ["old.npz", "x.npy"], compression=compression,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert report.output is None
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    with npzkit.open(bytes(out.data)) as npz:
        assert npz["x"].tolist() == list(range(1000))
        assert np.array_equal(npz["f"].ravel(), np.arange(900.0))
        assert npz.info("x").method == compression


def test_what_is_there_stays(here):
    """A file at the path is replaced with overwrite alone, and by a complete one."""
    np.save("x.npy", np.arange(3))
    (here / "a.npz").write_bytes(b"old")
    with pytest.raises(FileExistsError) as caught:
        npzkit.pack("a.npz", "x.npy")
    assert caught.value.filename == "a.npz"
    (here / "bad.npy").write_bytes(b"bad")
    with pytest.raises(NpzkitError):
        npzkit.pack("a.npz", ["x.npy", "bad.npy"], overwrite=True)
    assert (here / "a.npz").read_bytes() == b"old"
    npzkit.pack("a.npz", "x.npy", overwrite=True)
    assert list(np.load("a.npz")) == ["x"]
    with pytest.raises(ConversionError, match="is a folder"):
        npzkit.pack(here, "x.npy", overwrite=True)
    assert sorted(os.listdir()) == ["a.npz", "bad.npy", "x.npy"]


@each_row("key", ["../x", "/x", "C:x", "a\\b", "a\nb", "", "a//b", "a.npy"])
def test_keys_that_no_archive_may_have(here, key):
    """A key that would be dangerous is refused before anything is written."""
    np.save("x.npy", np.ones(2))
    with pytest.raises(UnsafeNameError) as caught:
        npzkit.pack("a.npz", {key: "x.npy"})
    assert caught.value.key == key
    assert os.listdir() == ["x.npy"]


@pytest.mark.remedy("Give one of them another key by a pair (key, path).")
def test_two_inputs_of_one_key(here):
    """Two inputs that would have one key are named, and nothing is written; pairs help."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    np.save("x.npy", np.arange(4))
    with pytest.raises(KeyExistsError, match=r"'a\.npz' and 'x\.npy'") as caught:
        npzkit.pack("c.npz", ["a.npz", "x.npy"])
    assert caught.value.key == "x"
    assert not os.path.exists("c.npz")
    assert npzkit.pack("c.npz", ["a.npz", ("b", "x.npy")]).keys == ("x", "b")
    with np.load("c.npz") as found:
        assert (found["x"].size, found["b"].size) == (3, 4)


def test_two_archives_of_one_key(here, monkeypatch):
    """The file's name comes before each key, also of an open archive, and of one read in parts."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", 1 << 10)
    sizes = {"run1": 1000, "run2": 2000}
    for name, size in sizes.items():
        with npzkit.NpzWriter(f"{name}.npz", "w") as writer:
            writer.add("loss", np.arange(size), attrs={"of": name})
            writer["lr"] = 1.0
    with npzkit.open("run2.npz") as second:
        report = npzkit.pack("c.npz", ["run1.npz", second])
    assert report.keys == ("run1/loss", "run1/lr", "run2/loss", "run2/lr")
    (note,) = report.notes
    assert "archives have the same keys, such as 'loss'" in note
    with npzkit.open("c.npz") as found:
        for name, size in sizes.items():
            assert np.array_equal(found[f"{name}/loss"], np.arange(size))
            assert found.info(f"{name}/loss").attrs == {"of": name}


@pytest.mark.remedy(
    "Pass overwrite=True to replace it, which removes its attributes, or give the new array another"
)
def test_a_key_that_the_archive_has(here):
    """It is replaced with overwrite alone, and the new array can have another key."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    np.save("x.npy", np.arange(4))
    with pytest.raises(KeyExistsError, match="already in the archive") as caught:
        npzkit.add("a.npz", "x.npy")
    assert (caught.value.path, caught.value.key) == ("a.npz", "x")
    npzkit.add("a.npz", [("y", "x.npy")])
    with np.load("a.npz") as found:
        assert (found["x"].size, found["y"].size) == (3, 4)
    assert npzkit.add("a.npz", "x.npy", overwrite=True).replaced == ("x",)
    assert np.load("a.npz")["x"].size == 4


def test_the_archive_is_none_of_its_inputs(here):
    """An archive cannot be read while it is replaced, by whatever name it goes."""
    npzkit.save("a.npz", {"x": np.arange(3)})
    with npzkit.open("a.npz") as npz:
        for source in ("a.npz", here / "a.npz", npz):
            with pytest.raises(ConversionError, match="one of the inputs"):
                npzkit.pack("a.npz", source, overwrite=True)
        assert npz["x"].tolist() == [0, 1, 2]


def test_folders(here):
    """A folder's arrays have their paths as keys; what is none is noted, what is hidden skipped."""
    (here / "in/deep").mkdir(parents=True)
    (here / "in/.git").mkdir()
    np.save("in/b.npy", np.ones(2))
    np.save("in/deep/a.npy", np.ones(3))
    np.save("in/.git/c.npy", np.ones(4))
    (here / "in/t.csv").write_text("1,2\n3,4\n")
    np.save("in/.hidden.npy", np.ones(4))
    (here / "in/README.txt").write_text("not a table\n")
    report = npzkit.pack("a.npz", {"pre": "in"})
    assert report.notes == ("in: skipped 2 entries that are not arrays: README.txt, t.csv",)
    with npzkit.open("a.npz") as npz:
        assert tuple(npz.files) == report.keys == ("pre/b", "pre/deep/a")
    (here / "empty").mkdir()
    with pytest.raises(ConversionError, match="no array in the folder"):
        npzkit.pack("b.npz", "empty")


@needs_symlinks
def test_a_folder_is_not_left_by_its_links(here):
    """Symbolic links to what lies outside of a folder are not followed."""
    np.save("secret.npy", np.ones(2))
    (here / "outside").mkdir()
    np.save("outside/y.npy", np.ones(2))
    (here / "in").mkdir()
    np.save("in/mine.npy", np.ones(2))
    os.symlink(here / "secret.npy", "in/x.npy")
    os.symlink(here / "outside", "in/folder")
    os.symlink("mine.npy", "in/same.npy")
    os.symlink("none.npy", "in/nothing.npy")
    report = npzkit.pack("a.npz", "in")
    assert report.keys == ("mine", "same")
    (note,) = report.notes
    assert note == "in: skipped 3 links that lead to no array in it: folder, nothing.npy, x.npy"


@needs_symlinks
def test_a_link_to_another_drive_leads_out(here, monkeypatch):
    """Windows has no path that two drives have in common: what is there is not followed either."""
    common = os.path.commonpath

    def common_of_a_drive(paths):
        if len({"outside" in path for path in paths}) > 1:
            raise ValueError("Paths don't have the same drive")
        return common(paths)

    monkeypatch.setattr("os.path.commonpath", common_of_a_drive)
    (here / "outside").mkdir()
    np.save("outside/y.npy", np.ones(2))
    (here / "in").mkdir()
    np.save("in/mine.npy", np.ones(2))
    os.symlink(here / "outside/y.npy", "in/x.npy")
    assert npzkit.pack("a.npz", "in").keys == ("mine",)
    os.symlink(here / "outside", "in/sub")
    npzkit.save("b.npz", {"sub/x": [1]})
    with pytest.raises(UnsafeNameError, match="symbolic link"):
        npzkit.extract("b.npz", "in")
    assert os.listdir("outside") == ["y.npy"]


def test_archives_are_merged(here):
    """Keys, attributes and metadata of archives are kept; the first value of a name counts."""
    with npzkit.NpzWriter("a.npz", metadata={"step": 1, "who": "a"}) as w:
        w.add("x", np.arange(3), attrs={"unit": "m"}, compression="deflated")
        w.add("bf", np.ones(2, ml_dtypes.bfloat16))
    with npzkit.NpzWriter("b.npz", metadata={"step": 2, "note": [1]}) as w:
        w.add("f", np.asfortranarray(np.ones((2, 3))), attrs={"k": 1})
    report = npzkit.pack("c.npz", ["a.npz", ("other", "b.npz")])
    assert report.notes == (
        "b.npz: the metadata 'step' is not kept, because a.npz has another value",
    )
    with npzkit.open("c.npz") as npz:
        assert npz.files == ["x", "bf", "other/f"]
        assert npz["bf"].dtype == ml_dtypes.bfloat16
        assert npz.metadata == {"step": 1, "who": "a", "note": [1]}
        assert npz.info("x").attrs == {"unit": "m"}
        assert npz.info("other/f").attrs == {"k": 1}
        assert npz.info("other/f").fortran_order


NESTED = {
    "layer": {"w": np.eye(2), "name": "dense", "rate": 0.1},
    "steps": [np.arange(2), ("x", 3)],
    "masked": np.ma.array([1.0, 1000.0], mask=[0, 1]),
}


def check_nested(found):
    """Check a tree against NESTED."""
    assert (found["layer"]["name"], found["layer"]["rate"]) == ("dense", 0.1)
    assert found["layer"]["w"].tolist() == [[1, 0], [0, 1]]
    assert found["steps"][0].tolist() == [0, 1]
    assert found["steps"][1] == ("x", 3)
    assert found["masked"].mean() == 1


def test_nested_data_is_kept(here):
    """Lists, values that are no arrays and masks are kept: alone, beside others, and under a key."""
    npzkit.save("a.npz", NESTED, masked="split")
    npzkit.save("plain.npz", {"u/v": np.ones(2)})
    npzkit.save("other.npz", {"more": {"b": np.ones(2), "depth": 3}})
    keys = ("layer/w", "steps/0", "masked", "masked.mask")
    assert npzkit.pack("b.npz", "a.npz") == ("b.npz", keys, (), ())
    check_nested(npzkit.load_tree("b.npz"))
    report = npzkit.pack("c.npz", ["plain.npz", "a.npz", ("run/one", "a.npz"), "other.npz"])
    assert report.notes == ()
    found = npzkit.load_tree("c.npz")
    check_nested(found)
    check_nested(found["run"]["one"])
    assert found["more"]["depth"] == 3
    assert found["u/v"].tolist() == [1, 1]
    npzkit.pack("d.npz", "plain.npz")
    assert npzkit.add("d.npz", "a.npz").keys == keys
    check_nested(npzkit.load_tree("d.npz"))


def test_nested_data_of_archives_with_the_same_keys(here):
    """Each archive's data is whole, under the name of its file."""
    for name in ("a", "b"):
        npzkit.save(f"{name}.npz", NESTED, masked="split")
    npzkit.pack("c.npz", ["a.npz", "b.npz"])
    found = npzkit.load_tree("c.npz")
    assert found.keys() == {"a", "b"}
    for name in found:
        check_nested(found[name])


def test_nested_data_at_one_place(here):
    """The first archive's counts; of the others a note says what is left out."""
    npzkit.save("a.npz", {"p": {"w": np.ones(1), "lr": 1}, "l": [np.ones(1), 2], "q": {"x": 1}})
    npzkit.save("b.npz", {"p": {"v": np.ones(1), "lr": 5}, "q": 7, "new": {"z": [3, np.ones(1)]}})
    report = npzkit.pack("c.npz", ["a.npz", "b.npz"])
    assert report.notes == (
        "b.npz: nested data becomes plain keys, without 'p/lr': the new archive has other data at "
        "'p', 'q'",
    )
    found = npzkit.load_tree("c.npz")
    assert (found["p"]["lr"], found["p"].keys(), found["l"][1]) == (1, {"w", "lr", "v"}, 2)
    assert (found["q"], found["q/x"], found["new"]["z"][0]) == (7, 1, 3)
    # All that is at a place is replaced.
    npzkit.save("d.npz", {"p": {"w": np.zeros(1), "v": np.zeros(1), "lr": 9}})
    assert npzkit.add("c.npz", "d.npz", overwrite=True).notes == ()
    assert npzkit.load_tree("c.npz")["p"]["lr"] == 9


def test_an_archive_without_arrays(here):
    """Its nested data and its metadata are kept, between those of others."""
    npzkit.save("a.npz", {"x": np.ones(1)})
    npzkit.save("b.npz", {"o": {"lr": 0.1}}, metadata={"step": 2})
    npzkit.save("c.npz", {"p": {"y": np.ones(1), "lr": 0.2}})
    report = npzkit.pack("d.npz", ["a.npz", "b.npz", "c.npz"])
    assert (report.keys, report.notes) == (("x", "p/y"), ())
    tree = npzkit.load_tree("d.npz")
    assert (tree["o"]["lr"], tree["p"]["lr"]) == (0.1, 0.2)
    with npzkit.open("d.npz") as npz:
        assert npz.metadata["step"] == 2


@pytest.mark.parametrize("block_size", [8, 1 << 25])
def test_an_array_in_the_place_of_a_value(here, monkeypatch, block_size):
    """It is an error, as for an array that is there, unless it may be replaced."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", block_size)
    npzkit.save("a.npz", {"o": {"b": 5, "w": np.ones(1)}})
    np.save("b.npy", np.arange(2))
    with pytest.raises(KeyExistsError) as caught:
        npzkit.add("a.npz", [("o/b", "b.npy")])
    assert caught.value.key == "o/b"
    npzkit.add("a.npz", [("o/b", "b.npy")], overwrite=True)
    assert npzkit.load_tree("a.npz")["o"]["b"].tolist() == [0, 1]


def test_an_array_with_the_key_of_a_mask(here):
    """Neither is lost: both archives' keys get the names of the files."""
    npzkit.save("a.npz", {"m.mask": np.arange(3)})
    npzkit.save("b.npz", {"m": np.ma.array([1, 2, 3], mask=[0, 1, 0])}, masked="split")
    report = npzkit.pack("c.npz", ["a.npz", "b.npz"])
    assert report.keys == ("a/m.mask", "b/m", "b/m.mask")
    found = npzkit.load_tree("c.npz")
    assert found["a"]["m.mask"].tolist() == [0, 1, 2]
    assert found["b"]["m"].tolist() == [1, None, 3]


@pytest.mark.parametrize("note", [{"x": 5}, ["what"]])
def test_a_structure_that_cannot_be_read_is_refused(here, note):
    """A damaged note, or one of a newer version, would spoil that of the others."""
    npzkit.save("a.npz", {"x": np.ones(2)}, metadata={"npzkit.tree": note})
    npzkit.save("b.npz", NESTED, masked="split")
    with pytest.raises(npzkit.NpzkitError, match=r"structure of the nested data"):
        npzkit.pack("c.npz", ["b.npz", "a.npz"])
    assert not os.path.exists("c.npz")


TREES = st.recursive(
    st.one_of(st.integers(0, 9), st.none(), st.just("text"), st.integers(1, 3).map(np.arange)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(one=TREES, two=TREES, third=TREES)
def test_nested_data_of_several_archives(tmp_path_factory, one, two, third):
    """Under names and keys of their own, any trees come back as they were."""
    folder = tmp_path_factory.mktemp("trees")
    for name, tree in (("one", one), ("two", two), ("third", third)):
        npzkit.save(folder / f"{name}.npz", {name: {"tree": tree, "w": np.ones(1)}})
    inputs = [folder / "one.npz", folder / "two.npz", ("under/key", folder / "third.npz")]
    assert npzkit.pack(folder / "all.npz", inputs).notes == ()
    found = npzkit.load_tree(folder / "all.npz")
    for name, within in (("one", found), ("two", found), ("third", found["under"]["key"])):
        alone = npzkit.load_tree(folder / f"{name}.npz")
        assert repr({key: within[key] for key in alone}) == repr(alone)


def test_tied_tensors_stay_tied_under_another_key(here):
    """A tied tensor leads to its own array, not to the one of that key elsewhere."""
    torch_note = {"a": ["as", "tensor"], "b": ["same", "a"]}
    npzkit.save("t.npz", {"a": np.ones(2)}, metadata={"npzkit.tree": torch_note})
    npzkit.pack("c.npz", [("one", "t.npz"), ("two", "t.npz")])
    with npzkit.open("c.npz") as npz:
        note = npz.metadata["npzkit.tree"]
    assert (note["one"]["b"], note["two"]["b"]) == (["same", "one/a"], ["same", "two/a"])


def test_strings_of_any_length_are_kept(here):
    """An array of StringDType that was saved in parts is one again."""
    texts = np.array(["ab", "", "c"], np.dtypes.StringDType())
    npzkit.save("a.npz", {"s": texts}, strings="split")
    assert npzkit.pack("b.npz", {"k": "a.npz"}).keys == ("k/s", "k/s.offsets")
    with npzkit.open("b.npz") as npz:
        assert npz.join("k/s").tolist() == ["ab", "", "c"]
    # Without its other part, it is a plain array.
    with zipfile.ZipFile("a.npz") as source, zipfile.ZipFile("c.npz", "w") as out:
        out.writestr(source.getinfo("s.npy"), source.read("s.npy"))
    assert npzkit.pack("d.npz", "c.npz").keys == ("s",)


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_large_arrays_of_an_archive_go_by_parts(here, monkeypatch, compression):
    """An array that is taken by parts is the same, and its damage is found before it is kept."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", 1000)
    arrays = {"c": np.arange(900.0).reshape(30, 30), "f": np.arange(900.0).reshape(30, 30).T}
    npzkit.save("a.npz", arrays)
    npzkit.pack("b.npz", "a.npz", compression=compression)
    with npzkit.open("b.npz") as npz:
        for key, array in arrays.items():
            assert np.array_equal(npz[key], array)
            assert npz.info(key).fortran_order == (key == "f")
    data = bytearray((here / "a.npz").read_bytes())
    with npzkit.open("a.npz") as npz:
        data[npz.info("f").data_offset + 3000] ^= 1
    (here / "a.npz").write_bytes(data)
    with pytest.raises(ChecksumError) as caught:
        npzkit.pack("c.npz", "a.npz", compression=compression)
    assert caught.value.key == "f"
    assert not os.path.exists("c.npz")


def test_what_is_no_array_in_an_archive_is_passed_over(here):
    """A text among the members is noted and left out."""
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("x.npy", npy(np.ones(2)))
        archive.writestr("readme.txt", "text")
    report = npzkit.pack("b.npz", "a.npz")
    assert report.keys == ("x",)
    assert "skipped 'readme.txt'" in report.notes[0]


def test_python_objects(here):
    """Objects, in a file or in an archive, are packed only where that is allowed."""
    np.save("x.npy", np.array([{}, None]), allow_pickle=True)
    npzkit.save("old.npz", {"o": np.array([{}, None])}, allow_pickle=True)
    for source in ("x.npy", "old.npz"):
        with pytest.raises(PickleRefusedError):
            npzkit.pack("a.npz", source)
        assert not os.path.exists("a.npz")
    report = npzkit.pack("a.npz", ["x.npy", "old.npz"], allow_pickle=True)
    for key in report.keys:
        assert np.load("a.npz", allow_pickle=True)[key].tolist() == [{}, None]


def several(name, arrays, allow_pickle=False):
    """Write arrays to one file, one after the other."""
    with open(name, "wb") as file:
        for array in arrays:
            np.save(file, array, allow_pickle=allow_pickle)


@pytest.mark.parametrize("block_size", [16, 1 << 25])
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_several_arrays_of_one_file(here, monkeypatch, compression, block_size):
    """Each gets the key and its number, also in a folder, with a given key, and in an addition."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", block_size)
    arrays = [
        np.arange(30), np.zeros((0, 3)), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(2.5), np.ones(4, [("a", ">i2"), ("b", "U3")]),
    ]  # fmt: skip
    (here / "in").mkdir()
    several("in/log.npy", arrays)
    report = npzkit.pack("a.npz", "in/log.npy", compression=compression)
    assert report.keys == tuple(f"log.{number}" for number in range(5))
    assert report.notes == ("in/log.npy: the file holds 5 arrays, one after the other",)
    assert npzkit.pack("b.npz", "in").keys == report.keys
    added = npzkit.add("b.npz", {"k/x": "in/log.npy"}).keys
    for path, keys in ("a.npz", report.keys), ("b.npz", added):
        with np.load(path) as found:
            for key, array in zip(keys, arrays, strict=True):
                assert found[key].dtype == array.dtype
                np.testing.assert_array_equal(found[key], array)
                assert found[key].flags.fnc == array.flags.fnc
    np.save("log.1.npy", np.ones(2))
    with pytest.raises(KeyExistsError, match="same key"):
        npzkit.pack("c.npz", ["in/log.npy", "log.1.npy"])


@each_row(
    ("extra", "what"),
    [
        (bytes(128), r"128 bytes follow the array: zeros, as many as 2 more rows of 64 bytes"),
        (np.ones((3, 8)).tobytes(), "192 bytes .* as many as 3 more rows of 64 bytes"),
        (b"hello\n", r"6 bytes follow the array: text, 'hello\\n'"),
        (b"\xff", "1 byte follows the array: not text"),
        (bytes(1 << 17), "131,072 bytes follow"),
    ],
)
@pytest.mark.remedy("Read the array with np.load and save it again, which leaves them out;")
@each_row("is_stream", [False, True])
def test_what_follows_an_array_is_an_error(here, extra, what, is_stream):
    """It says how many bytes follow and what they seem to be; no archive is made or changed.

    The array that np.load reads and np.save writes is packed, and so are all rows of a header
    that counts them.
    """
    content = npy(np.ones((4, 8))) + extra
    (here / "x.npy").write_bytes(content)
    npzkit.save("old.npz", {"a": np.ones(1)})
    before = (here / "old.npz").read_bytes()
    for call in (npzkit.pack, npzkit.add):
        with pytest.raises(ConversionError, match=what):
            call(
                "a.npz" if call is npzkit.pack else "old.npz",
                io.BytesIO(content) if is_stream else "x.npy",
            )
    assert (here / "old.npz").read_bytes() == before
    assert sorted(os.listdir()) == ["old.npz", "x.npy"]
    np.save("y.npy", np.load("x.npy"))
    npzkit.pack("a.npz", "y.npy")
    assert np.load("a.npz")["y"].tolist() == np.ones((4, 8)).tolist()
    if "rows" in what:
        count = 4 + len(extra) // 64
        content = content.replace(b"(4, 8)", b"(%d, 8)" % count)
        (here / "x.npy").write_bytes(content)
        npzkit.pack("b.npz", io.BytesIO(content) if is_stream else "x.npy")
        assert np.load("b.npz")["arr_0" if is_stream else "x"].shape == (count, 8)


def one_by_one(name, count):
    """Read the first arrays of a file."""
    with open(name, "rb") as file:
        return [np.load(file, allow_pickle=True) for _ in range(count)]


@pytest.mark.remedy(
    "Copy the stream to an .npy file, and pack that: the arrays of a file get the keys KEY.0",
    "Open the file, read its arrays with np.load, one after the other, and save them with keys.",
    "Read those before it with np.load, and save them with keys.",
)
def test_what_follows_and_cannot_be_packed(here):
    """A second array of a stream, objects after an array, and half an array are named.

    What the errors say to do saves the arrays.
    """
    several("log.npy", [np.arange(3), np.arange(4)])
    with (
        open("log.npy", "rb") as stream,
        pytest.raises(ConversionError, match=r"160 bytes follow the array: another .* KEY\.1"),
    ):
        npzkit.pack("a.npz", stream)
    with open("log.npy", "rb") as stream:
        (here / "copy.npy").write_bytes(stream.read())
    assert npzkit.pack("copy.npz", "copy.npy").keys == ("copy.0", "copy.1")
    with np.load("copy.npz") as found:
        assert [len(found[key]) for key in found] == [3, 4]
    several("a.npy", [np.arange(3), np.array([None])], allow_pickle=True)
    several("b.npy", [np.array([None]), np.arange(3)], allow_pickle=True)
    for name in ("a.npy", "b.npy"):
        with pytest.raises(ConversionError, match=r"follow.*np\.load") as caught:
            npzkit.pack("a.npz", name, allow_pickle=True)
        assert caught.value.path == name
        first, second = one_by_one(name, 2)
        npzkit.save("both.npz", {"first": first, "second": second}, allow_pickle=True)
        with np.load("both.npz", allow_pickle=True) as found:
            assert sorted(map(len, found.values())) == [1, 3]
    cut = (here / "log.npy").read_bytes()
    for size, what in (len(cut) - 1, "at byte 152 .* incomplete"), (160, "truncated"):
        (here / "cut.npy").write_bytes(cut[:size])
        with pytest.raises(NpzkitError, match=what) as caught:
            npzkit.pack("a.npz", "cut.npy")
        assert caught.value.path == "cut.npy"
        if "incomplete" in what:
            npzkit.save("before.npz", {"first": one_by_one("cut.npy", 1)[0]})
            assert np.load("before.npz")["first"].tolist() == [0, 1, 2]
    (here / "new.npy").write_bytes(npy(np.ones(1)) + b"\x93NUMPY\x09\0" + bytes(99))
    with pytest.raises(NpzkitError, match=r"not \(9, 0\).*at byte 136"):
        npzkit.pack("a.npz", "new.npy")
    assert not os.path.exists("a.npz")


@pytest.mark.remedy("To pack the archives in it: npzkit.pack(out, ")
def test_a_folder_of_archives(here):
    """The error says how to pack them, and so does a note if there are arrays beside them."""
    (here / "folder/deep").mkdir(parents=True)
    npzkit.save("folder/deep/a.npz", {"x": np.arange(3)})
    with pytest.raises(ConversionError, match="no array in the folder") as caught:
        npzkit.pack("new.npz", "folder")
    assert caught.value.remedy.endswith(': npzkit.pack(out, "FOLDER/**/*.npz").')
    assert npzkit.pack("new.npz", "folder/**/*.npz").keys == ("x",)
    np.save("folder/y.npy", np.ones(2))
    (here / "folder/notes.txt").touch()
    assert npzkit.pack("new.npz", "folder", overwrite=True).notes == (
        f"folder: skipped 1 archive: a.npz. {caught.value.remedy}",
        "folder: skipped 1 entry that is not an array: notes.txt",
    )


@pytest.mark.remedy("Use npzkit.convert for other formats.")
def test_another_format_is_converted(here):
    """The function that the error names reads a file of another format."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File("x.h5", "w") as file:
        file["x"] = np.arange(3)
    with pytest.raises(ConversionError, match="the file's suffix is none of"):
        npzkit.pack("a.npz", "x.h5")
    npzkit.convert("x.h5", "a.npz")
    assert np.load("a.npz")["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"", "truncated"), (b"<html>", "magic"), (npy(np.ones(9))[:-1], "array data")],
)
def test_files_that_are_no_arrays(here, content, what):
    """An empty file, another kind and half a file are an error that names the file."""
    (here / "x.npy").write_bytes(content)
    with pytest.raises(NpzkitError, match=what) as caught:
        npzkit.pack("a.npz", "x.npy")
    assert caught.value.path == "x.npy"
    assert os.listdir() == ["x.npy"]


@pytest.mark.remedy("Read it with NumPy's genfromtxt or with pandas, and save the arrays.")
def test_wrong_arguments(here):
    """A missing file, an unknown kind, and what is no input at all are errors of their kinds."""
    np.save("x.npy", np.ones(2))
    for name in ("x.docx", "t.tsv", "t.TXT"):
        (here / name).write_bytes(b"")
    (here / "t.csv").write_text("1,2\n3,4\n")
    for error, what, inputs, options in (
        (FileNotFoundError, "no.npy", "no.npy", {}),
        (ConversionError, r"none of \.npy .* Use npzkit\.convert", "x.docx", {}),
        (ConversionError, "genfromtxt or with pandas", "t.csv", {}),
        (ConversionError, "genfromtxt or with pandas", ["x.npy", "t.tsv"], {}),
        (ConversionError, "genfromtxt or with pandas", {"t": "t.TXT"}, {}),
        (TypeError, "not ndarray; .* NpzWriter.* adds them to one", [np.ones(2)], {}),
        (TypeError, "inputs must be", {1: "x.npy"}, {}),
        (ValueError, "level", "x.npy", {"level": 3}),
        (ValueError, "compression", "x.npy", {"compression": "bzip2"}),
    ):
        with pytest.raises(error, match=what):
            npzkit.pack("a.npz", inputs, **options)
    with pytest.raises(ConversionError, match="genfromtxt or with pandas"):
        npzkit.convert("t.csv", "a.npz")
    assert not os.path.exists("a.npz")
    npzkit.save("a.npz", {"t": np.genfromtxt("t.csv", delimiter=",")})
    assert np.load("a.npz")["t"].tolist() == [[1, 2], [3, 4]]


def test_patterns(here):
    """A text may be a pattern, as on a system whose shell knows none; one without a match is told."""
    for run in range(2):
        npzkit.save(f"r{run}.npz", {f"x{run}": np.arange(3)})
    assert npzkit.pack("a.npz", "r?.npz").keys == ("x0", "x1")
    assert npzkit.pack("b.npz", ["a.npz", "r[0]*.npz"]).keys == ("a/x0", "a/x1", "r0/x0")
    with pytest.raises(FileNotFoundError, match="matches"):
        npzkit.pack("c.npz", "none*.npz")


def test_damaged_inputs_are_left_out(here):
    """With `skip`, each with a note: archives, and files in a folder; not if nothing is left."""
    npzkit.save("a.npz", {"a": np.zeros(3)})
    npzkit.save("b.npz", {"b": np.arange(1 << 20), "sound": np.ones(2)})
    damage("b.npz", "b")
    (here / "c.npz").write_bytes(b"no archive")
    (here / "in").mkdir()
    np.save("in/d.npy", np.arange(3))
    (here / "in" / "e.npy").write_bytes((here / "in" / "d.npy").read_bytes()[:-1])
    inputs = ["a.npz", "b.npz", "c.npz", "in"]
    with pytest.raises(NpzkitError):
        npzkit.pack("all.npz", inputs)
    report = npzkit.pack("all.npz", inputs, skip=True)
    assert report.keys == ("a", "d")
    assert [note.split(":")[0].replace(os.sep, "/") for note in report.notes] == [
        "left out b.npz with all its arrays", "left out c.npz", "left out in/e.npy"
    ]  # fmt: skip
    assert report.notes[0].endswith("; npzkit.repair(path, output) saves the sound ones")
    npzkit.repair("b.npz", "b.sound.npz")
    assert npzkit.pack("all.npz", ["a.npz", "b.sound.npz"], overwrite=True).keys == ("a", "sound")
    with pytest.raises(NpzkitError):
        npzkit.pack("none.npz", inputs[1:3], skip=True)


def test_python_objects_are_left_out(here):
    """With `skip`, of a file as of one in a folder; of an archive with some, others can be saved."""
    npzkit.save("a.npz", {"a": np.zeros(3)})
    np.save("o.npy", np.array([{}], object))
    np.savez("o.npz", o=np.array([{}], object), x=np.ones(2))
    report = npzkit.pack("all.npz", ["a.npz", "o.npy", "o.npz"], skip=True)
    what = "Object arrays cannot be loaded when allow_pickle=False"
    assert report.keys == ("a",)
    assert report.notes == (
        f"left out o.npy: {what}", f"left out o.npz with all its arrays: {what} (key 'o'); "
        "npzkit.convert(file, output, skip=True) saves the others",
    )  # fmt: skip
    allowed = npzkit.pack("b.npz", ["a.npz", "o.npy"], skip=True, allow_pickle=True)
    assert (allowed.keys, allowed.notes) == (("a", "o"), ())


def test_some_arrays_of_each_input(here):
    """By their keys there; others are not even read, and inputs without any are left out."""
    tree = {"image": np.eye(2), "opt": {"lr": 0.1, "m": np.ones(1)}, "dark": np.ones(500)}
    os.mkdir("run")
    npzkit.save("run/a.npz", tree)
    npzkit.save("run/b.npz", {**tree, "image": np.ma.array([1.0, 2.0], mask=[True, False])},
                masked="split")  # fmt: skip
    damage("run/a.npz", "dark")
    np.save("run/c.npy", np.ones(2))
    report = npzkit.pack("all.npz", "run/*", keys=["image", "opt"], skip=True)
    assert report.keys == ("a/image", "a/opt/m", "b/image", "b/image.mask", "b/opt/m")
    assert [note.replace(os.path.join("run", ""), "") for note in report.notes] == [
        "left out c.npy: it has no array that was chosen",
        "archives have the same keys, such as 'image': each key begins with the name of its file "
        'and a slash. join="concatenate" of pack makes one array of those with the same key',
        "a.npz: 1 value without an array: 'opt/lr'; not kept",
        "b.npz: 1 value without an array: 'opt/lr'; not kept",
    ]
    with npzkit.open("all.npz") as npz:
        assert npz.join("b/image").tolist() == [None, 2.0]
        assert npz.files == list(report.keys)
    with pytest.raises(MemberNotFoundError, match=r"no array named 'imag'.*Did you mean 'image'"):
        npzkit.pack("b.npz", "run/*.npz", keys=["image", "imag"])
    with pytest.raises(ChecksumError):
        npzkit.pack("b.npz", "run/a.npz", keys=["dark"])
    assert npzkit.pack("b.npz", {"x": "run/a.npz"}, keys="image").keys == ("x/image",)
