"""The arrays of many archives as one each: `pack(join=)` and `npzkit pack --join`."""

from __future__ import annotations

import os
import tracemalloc

import npzkit
import numpy as np
import pytest
from archives import damage
from npzkit.errors import (
    ChecksumError,
    ConversionError,
    DifferentFilesError,
    NpzkitError,
    UnsupportedError,
    at_prompt,
)


def read(path):
    with npzkit.open(path) as npz:
        return npz["x"]


@pytest.fixture
def runs(here):
    """Three archives of runs, of different lengths."""
    (here / "runs").mkdir()
    for run in range(3):
        with npzkit.NpzWriter(here / f"runs/run{run}.npz", metadata={"seed": run}) as writer:
            writer.add("x", np.full((run + 1, 2), run), attrs={"unit": "m"})
            writer["name"] = np.array([f"run {run}" * (run + 1)])
    return here


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_arrays_are_concatenated(runs, compression):
    """In the order of the names, with the metadata of the first file."""
    report = npzkit.pack("all.npz", "runs/*.npz", join="concatenate", compression=compression)
    assert (report.output, report.keys) == ("all.npz", ("x", "name"))
    with npzkit.open("all.npz") as npz:
        assert npz["x"].tolist() == [[0, 0], [1, 1], [1, 1], [2, 2], [2, 2], [2, 2]]
        assert npz["name"].tolist() == ["run 0", "run 1run 1", "run 2run 2run 2"]
        assert npz.metadata == {"seed": 0}
        assert npz.info("x").attrs == {"unit": "m"}
        assert npz.info("x").method == compression
    assert npzkit.verify("all.npz").ok


def test_arrays_are_stacked_and_joined_along_other_axes(here):
    """A position per file, or along the axis that is given."""
    for run in range(3):
        npzkit.save(f"{run}.npz", {"x": np.full((2, 3), run)})
    files = ["2.npz", "0.npz"]
    npzkit.pack("a.npz", files, join="stack")
    assert read("a.npz").tolist() == [[[2] * 3] * 2, [[0] * 3] * 2]
    npzkit.pack("a.npz", files, join="concatenate", axis=1, overwrite=True)
    assert read("a.npz").tolist() == [[2, 2, 2, 0, 0, 0]] * 2


def test_what_does_not_fit_is_named_or_left_out(runs):
    """By file and key; nothing is written by the first."""
    npzkit.save("runs/run1.npz", {"x": np.zeros((2, 5)), "name": np.array(["a"])})
    with pytest.raises(DifferentFilesError, match=r"run1\.npz"):
        npzkit.pack("all.npz", "runs/*.npz", join="concatenate")
    assert not (runs / "all.npz").exists()
    report = npzkit.pack("all.npz", "runs/*.npz", join="concatenate", skip=True)
    assert "run1.npz" in report.notes[-2]
    first = report.notes[-1].removeprefix("joined 2 of 3 files: those that fit the first one, ")
    assert os.path.basename(first) == "run0.npz"
    assert read("all.npz")[:, 0].tolist() == [0, 2, 2, 2]
    with pytest.raises(ValueError, match="join must be"):
        npzkit.pack("b.npz", "runs/*.npz", join="both")
    with pytest.raises(FileExistsError):
        npzkit.pack("all.npz", "runs/*.npz", join="stack")


@pytest.mark.remedy("put another file first. Without ")
def test_a_first_file_that_no_other_fits(here):
    """It is an error, although `skip` leaves out what does not fit; in another order, all do."""
    for run in range(4):
        npzkit.save(f"{run}.npz", {"x": np.zeros((2, 3 if run == 0 else 4))})
    with pytest.raises(DifferentFilesError, match="3 other files cannot be joined") as caught:
        npzkit.pack("all.npz", "?.npz", join="concatenate", skip=True)
    assert os.path.basename(caught.value.path) == "0.npz"
    assert not os.path.exists("all.npz")
    npzkit.pack("all.npz", [f"{n}.npz" for n in (1, 0, 2, 3)], join="concatenate", skip=True)
    assert read("all.npz").shape == (6, 4)
    npzkit.pack("one.npz", ["0.npz"], join="concatenate", skip=True)
    report = npzkit.pack("two.npz", ["0.npz", "1.npz"], join="concatenate", skip=True)
    assert report.notes[-1].startswith("joined 1 of 2 files")
    with pytest.raises(DifferentFilesError, match="does not fit"):
        npzkit.pack("b.npz", "?.npz", join="concatenate")


def test_what_differs_from_the_first_file_is_noted(here):
    """Each name of the metadata and of an array's attributes, once."""
    for run, (metadata, attrs) in enumerate([
        ({"site": "x", "B_T": 0, "probe": 1}, {"unit": "A"}),
        ({"site": "x", "B_T": 1, "by": "me"}, {"unit": "mA"}),
        ({"site": "x", "B_T": 2}, {"unit": "A", "gain": 2}),
    ]):  # fmt: skip
        with npzkit.NpzWriter(f"{run}.npz", metadata=metadata) as writer:
            writer.add("I", np.arange(3), attrs=attrs)
            writer.add("t", np.arange(3), attrs={"unit": "s"})
    first, other = "from the first file", "that of 1.npz is"
    absent = "is not kept, because the first file does not have it"
    for join in ("concatenate", "stack"):
        report = npzkit.pack("all.npz", "?.npz", join=join, overwrite=True)
        assert sorted(report.notes) == [
            f"the attribute 'gain' of 'I' {absent}",
            f"the attribute 'unit' of 'I' is 'A', {first}; {other} 'mA'",
            f"the metadata 'B_T' is 0, {first}; {other} 1",
            f"the metadata 'by' {absent}",
            f"the metadata 'probe' is 1, {first}; {other} missing",
        ]  # fmt: skip


def test_values_of_nested_data_are_named(here):
    """What joined files have that is no array is left out, with a note."""
    for run in range(2):
        npzkit.save(f"{run}.npz", {"x": np.arange(3), "p": {"temperature": 4.2 + run}})
    for join in ("concatenate", "stack"):
        report = npzkit.pack("all.npz", "?.npz", join=join, overwrite=True)
        assert report.notes == ("left out 1 value without an array: 'p/temperature'",)


@pytest.mark.remedy('Stack the files with join="stack"')
def test_scalars_are_left_out_or_stacked(here):
    """An array without the axis is an error that names it; skip leaves it out, with a note."""
    for run in range(2):
        npzkit.save(f"{run}.npz", {"x": np.arange(3) + run, "B": np.float64(run)})
    with pytest.raises(ConversionError, match="skip=True") as caught:
        npzkit.pack("all.npz", "?.npz", join="concatenate")
    assert caught.value.key == "B"
    npzkit.pack("all.npz", "?.npz", join="stack")
    with npzkit.open("all.npz") as npz:
        assert npz["B"].tolist() == [0, 1]
    report = npzkit.pack("new.npz", "?.npz", join="concatenate", skip=True)
    assert report.notes == ("left out 'B': it has no axis 0",)
    assert read("new.npz").tolist() == [0, 1, 2, 1, 2, 3]


@pytest.mark.remedy("Choose the arrays that are to be joined: ")
def test_arrays_of_objects_are_left_out(here):
    """An error names the first one and `skip`, which leaves them out of all files, with a note."""
    for run in range(2):
        np.savez(f"{run}.npz", x=np.arange(2) + run, o=np.array([{}, None]))
    for join in ("concatenate", "stack"):
        with pytest.raises(UnsupportedError, match=r"keys=\[\.\.\.\]") as caught:
            npzkit.pack("all.npz", "?.npz", join=join)
        assert caught.value.key == "o"
        assert npzkit.pack("all.npz", "?.npz", join=join, keys=["x"]).keys == ("x",)
        os.remove("all.npz")
        report = npzkit.pack("all.npz", "?.npz", join=join, skip=True)
        assert report.notes == ("left out 'o': it holds Python objects",)
        assert read("all.npz").ravel().tolist() == [0, 1, 1, 2]
        os.remove("all.npz")
    with npzkit.open_many("?.npz", keys=["x"]) as many:
        assert many["x"].tolist() == [0, 1, 1, 2]


@pytest.mark.remedy("join the other files without it; ")
def test_a_file_whose_data_is_damaged(here):
    """The error names the file: the others are joined, and its sound arrays are saved."""
    for run in range(3):
        npzkit.save(f"{run}.npz", {"x": np.arange(2) + run, "y": np.arange(2)})
    damage("1.npz", "x")
    with pytest.raises(ChecksumError, match="join the other files") as caught:
        npzkit.pack("all.npz", "?.npz", join="concatenate")
    assert os.path.basename(caught.value.path) == "1.npz"
    with npzkit.open_many("?.npz") as many, pytest.raises(ChecksumError, match="join the other"):
        many["x"]
    npzkit.pack("all.npz", ["0.npz", "2.npz"], join="concatenate")
    assert read("all.npz").tolist() == [0, 1, 2, 3]
    assert npzkit.repair("1.npz", "sound.npz").kept == ("y",)


def test_damaged_files_are_left_out(here):
    """With `skip`, each with a note, the first one too; of the arrays that are not joined, none."""
    for run in range(4):
        npzkit.save(f"{run}.npz", {"x": np.arange(2) + run, "y": np.arange(2)})
    damage("0.npz", "x")
    damage("2.npz", "y")
    (here / "3.npz").write_bytes((here / "3.npz").read_bytes()[:100])
    report = npzkit.pack("all.npz", "?.npz", join="stack", keys=["x"], skip=True)
    assert [note.split(":")[0] for note in report.notes] == [
        "left out 3.npz", "left out 0.npz", "joined 2 of 4 files"
    ]  # fmt: skip
    assert read("all.npz").tolist() == [[1, 2], [2, 3]]
    with pytest.raises(ChecksumError):
        npzkit.pack("none.npz", ["0.npz"], join="stack", skip=True)


@pytest.mark.parametrize("skip", [False, True])
def test_the_header_of_an_array_that_is_not_joined(here, skip):
    """It may be damaged in any file; that of one that is joined leaves the file out, with `skip`."""
    for run in range(3):
        np.savez(f"{run}.npz", x=np.arange(2) + run, y=np.arange(2))
        data = (here / f"{run}.npz").read_bytes()
        place = data.index(b"\x93NUMPY", data.index(b"y.npy"))
        (here / f"{run}.npz").write_bytes(data[:place] + b"XXXXXX" + data[place + 6 :])
        report = npzkit.pack(
            "all.npz", "?.npz", join="stack", keys=["x"], skip=skip, overwrite=True
        )
        assert report.notes == ()
    assert read("all.npz").tolist() == [[0, 1], [1, 2], [2, 3]]
    with pytest.raises(NpzkitError):
        npzkit.pack("new.npz", "?.npz", join="stack", keys=["y"], skip=skip)


def test_arrays_that_only_other_files_have(here):
    """They do not count if `keys` do not name them; a mask belongs to its array."""
    npzkit.save("0.npz", {"x": np.arange(2)})
    npzkit.save("1.npz", {"x": np.arange(2), "extra": 1})
    npzkit.pack("all.npz", "?.npz", join="concatenate", keys=["x"])
    assert read("all.npz").tolist() == [0, 1, 0, 1]
    with pytest.raises(DifferentFilesError):
        npzkit.pack("new.npz", "?.npz", join="concatenate", keys=["*"])
    npzkit.save("1.npz", {"x": np.ma.array([1, 2], mask=[0, 1])}, masked="split")
    with pytest.raises(DifferentFilesError):
        npzkit.pack("new.npz", "?.npz", join="concatenate", keys=["x"])


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_joining_takes_little_memory(here, compression, monkeypatch):
    """A few blocks are in memory at a time; progress counts all bytes."""
    monkeypatch.setattr("npzkit.display.blocks.BLOCK_SIZE", 1 << 18)
    for run in range(6):
        npzkit.save(f"{run}.npz", {"x": np.zeros((100_000, 2)) + run})
    npzkit.pack("before.npz", ["0.npz"], join="stack", compression=compression)
    told = []
    tracemalloc.start()
    npzkit.pack(
        "all.npz", "?.npz", join="concatenate", compression=compression,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6
    assert told[-1] == (9_600_000, 9_600_000)
    with npzkit.open("all.npz") as npz:
        assert npz.lazy("x")[99_999:100_001, 1].tolist() == [0, 1]


def test_masks_are_joined(here):
    """A masked array is one in the joined archive, also if it alone was asked for."""
    for run in range(3):
        masked = np.ma.array([1.0, 2.0 + run], mask=[0, run == 1])
        npzkit.save(f"{run}.npz", {"ok": masked, "ragged": np.zeros(run)}, masked="split")
    for keys in (["ok"], ["ok*"], ["ok", "ok.mask"]):
        report = npzkit.pack("all.npz", "?.npz", join="stack", keys=keys, overwrite=True)
        assert report.keys == ("ok", "ok.mask")
        with npzkit.open("all.npz") as npz:
            assert npz.join("ok").tolist() == [[1, 2], [1, None], [1, 4]]


@pytest.mark.remedy("Or choose the arrays that are to be joined: ")
def test_keys_are_chosen(here):
    """Arrays that differ from file to file are in nobody's way if others are chosen."""
    for run in range(3):
        npzkit.save(f"{run}.npz", {"loss": np.full(2, run), "ragged": np.zeros(run)})
    with pytest.raises(DifferentFilesError, match=r"choose the arrays .* keys=\[") as caught:
        npzkit.pack("all.npz", "?.npz", join="stack")
    assert "--key KEY" in at_prompt(caught.value.remedy)
    npzkit.pack("all.npz", "?.npz", join="stack", keys=["loss"])
    with npzkit.open("all.npz") as npz:
        assert (npz.files, npz["loss"][:, 0].tolist()) == (["loss"], [0, 1, 2])
    with pytest.raises(npzkit.errors.MemberNotFoundError, match="'lost'"):
        npzkit.pack("b.npz", "?.npz", join="stack", keys=["lost"])


@pytest.mark.remedy("Leave such arrays out with ")
def test_strings_in_parts_are_not_joined(here):
    """Their offsets would be wrong: an error, and skip leaves them out."""
    for run in range(2):
        texts = np.array(["ab", "c"], np.dtypes.StringDType())
        npzkit.save(f"{run}.npz", {"s": texts, "x": np.zeros(2)}, strings="split")
    with pytest.raises(ConversionError, match="strings of any length"):
        npzkit.pack("all.npz", "?.npz", join="concatenate")
    report = npzkit.pack("all.npz", "?.npz", join="concatenate", skip=True)
    assert (report.keys, len(report.notes)) == (("x",), 1)


def test_the_fill_value_of_the_first_file_is_kept(here):
    """Masked arrays with one fill value have it when they are joined."""
    for run in range(2):
        masked = np.ma.array([1.0, 99.0], mask=[0, 1], fill_value=-999)
        npzkit.save(f"{run}.npz", {"v": masked}, masked="split")
    npzkit.pack("all.npz", "?.npz", join="concatenate")
    with npzkit.open("all.npz") as npz:
        assert npz.join("v").filled().tolist() == [1, -999, 1, -999]


@pytest.mark.remedy("Write it to another folder, or give a pattern that it does not match.")
def test_the_output_is_not_joined_with_itself(here):
    """A second run with a pattern that the output matches is an error, not twice the rows."""
    for run in range(2):
        npzkit.save(f"{run}.npz", {"x": np.arange(3)})
    npzkit.pack("all.npz", "*.npz", join="concatenate")
    with pytest.raises(ConversionError, match="also one of the inputs"):
        npzkit.pack("all.npz", "*.npz", join="concatenate", overwrite=True)
    npzkit.pack("all.npz", "?.npz", join="concatenate", overwrite=True)
    assert read("all.npz").tolist() == [0, 1, 2, 0, 1, 2]
