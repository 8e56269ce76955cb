"""Data sets that are appended to a folder: `to_npz(append_dim=)`."""

from __future__ import annotations

import ast

import npzkit
import numpy as np
import pytest

xarray = pytest.importorskip("xarray")
to_npz = pytest.importorskip("npzkit.xarray").to_npz

TIMES = np.array(
    [np.datetime64("2020-01-01", "ns") + np.timedelta64(day, "D") for day in range(10)]
)


def days(begin, end, **changed):
    """A data set of some days."""
    count = end - begin
    values = {
        "t2m": (("time", "x"), np.arange(begin * 3.0, end * 3.0).reshape(count, 3)),
        "n": ("time", np.arange(begin, end, dtype="i4"), {"units": "K"}), "mask": ("x", [1, 0, 1]),
        **changed,
    }  # fmt: skip
    return xarray.Dataset(values, {"time": TIMES[begin:end], "x": [1, 2, 3]}, {"title": "days"})


@pytest.fixture
def folder(tmp_path):
    to_npz(days(0, 3), tmp_path / "days", append_dim="time")
    return tmp_path / "days"


def opened(folder):
    with xarray.open_dataset(folder, engine="npzkit") as dataset:
        return dataset.load()


def test_days_follow_each_other(folder):
    """The first call makes the folder; times keep their units; other variables stay."""
    to_npz(days(3, 5), folder, append_dim="time")
    to_npz(days(5, 10), folder, append_dim="time", compression="deflated")
    assert opened(folder).identical(days(0, 10))
    assert npzkit.verify(folder).ok
    with npzkit.open(folder) as npz:
        assert npz["mask"].tolist() == [1, 0, 1]


@pytest.mark.remedy("It gets what the file has by npzkit.xarray.to_npz(")
def test_a_file_is_no_folder(tmp_path):
    """The error says how a folder gets what the file has, and then the days follow each other."""
    to_npz(days(0, 3), tmp_path / "days.npz")
    with pytest.raises(npzkit.errors.UnsupportedError, match="this is a file") as caught:
        to_npz(days(3, 5), tmp_path / "days.npz", append_dim="time")
    call = caught.value.remedy.partition(" by ")[2].removesuffix(".")
    names = {"npzkit": npzkit, "xarray": xarray, "FOLDER": tmp_path / "days"}
    eval(call, names)
    to_npz(days(3, 5), tmp_path / "days", append_dim="time")
    assert opened(tmp_path / "days").identical(days(0, 5))


def test_arrays_of_dask(folder):
    """Block by block."""
    pytest.importorskip("dask")
    to_npz(days(3, 10).chunk(time=2), folder, append_dim="time")
    assert opened(folder).identical(days(0, 10))


def test_values_are_encoded_as_before(tmp_path):
    """Scale, offset and fill value are those of the folder."""
    folder = tmp_path / "scaled"
    encoding = {"t": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1}}
    for values in ([10.0, np.nan], [11.5]):
        to_npz(
            xarray.Dataset({"t": ("time", values)}), folder, append_dim="time", encoding=encoding
        )
        encoding = None
    with npzkit.open(folder) as npz:
        assert npz["t"].tolist() == [0, -1, 3]
    assert opened(folder)["t"].values.tolist()[::2] == [10.0, 11.5]


def test_groups(tmp_path):
    """A group, and a tree of them."""
    for begin in (0, 2):
        to_npz(days(begin, begin + 2), tmp_path / "a", group="run/1", append_dim="time")
    with xarray.open_dataset(tmp_path / "a", engine="npzkit", group="run/1") as dataset:
        assert dataset.load().identical(days(0, 4))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"t2m": (("x", "time"), np.zeros((3, 2)))}, "not the first dimension"),
        ({"t2m": (("time", "y"), np.zeros((2, 3)))}, "does not fit"),
        ({"n": ("time", [0.5, 1.0])}, "would lose values"),
        ({"new": ("time", [1, 2])}, "no variable 'new'"),
        (
            {"n": ("time", [1, 2], {"units": "m"})},
            "'n' has the units 'K' in the folder, and 'm' here: convert it$",
        ),
    ],
)
def test_what_does_not_fit_is_refused(folder, changed, message):
    """Nothing is written then."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=message):
        to_npz(days(3, 5, **changed), folder, append_dim="time")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_longer_strings_are_refused(tmp_path):
    """They would be cut off."""
    to_npz(xarray.Dataset({"s": ("time", ["ab"])}), tmp_path / "s", append_dim="time")
    to_npz(xarray.Dataset({"s": ("time", ["c"])}), tmp_path / "s", append_dim="time")
    longer = xarray.Dataset({"s": ("time", ["long"])})
    with pytest.raises(ValueError, match=r"would lose values.*astype\('<U4'\)"):
        to_npz(longer, tmp_path / "s", append_dim="time")
    folder = opened(tmp_path / "s")
    assert folder["s"].values.tolist() == ["ab", "c"]
    to_npz(folder.assign({"s": folder["s"].astype("<U4")}), tmp_path / "t", append_dim="time")
    to_npz(longer, tmp_path / "t", append_dim="time")
    assert opened(tmp_path / "t")["s"].values.tolist() == ["ab", "c", "long"]


def test_times_that_are_too_fine_are_refused(tmp_path):
    """Other times would come back; the units in the message keep both."""
    folder, new = tmp_path / "days", tmp_path / "hours"
    hours = np.array(["2020-01-03T06"], "M8[ns]")
    for name in ("time", "left"):
        first, rows = TIMES[:2], hours
        if name == "left":
            first, rows = first - TIMES[0], rows - TIMES[0]
        first, rows = (xarray.Dataset({name: ("time", values)}) for values in (first, rows))
        to_npz(first, folder / name, append_dim="time")
        with (
            pytest.warns(UserWarning, match="serialized faithfully"),
            pytest.raises(ValueError, match=r"has the units 'days.*encoding=") as caught,
        ):
            to_npz(rows, folder / name, append_dim="time")
        encoding = ast.literal_eval(str(caught.value).rpartition("encoding=")[2].rstrip(")"))
        old = xarray.open_dataset(folder / name, decode_timedelta=True)
        assert old.identical(first)
        to_npz(old, new / name, append_dim="time", encoding=encoding)
        to_npz(rows, new / name, append_dim="time")
        found = xarray.open_dataset(new / name, decode_timedelta=True)
        assert found.identical(xarray.concat([first, rows], "time"))


def test_times_of_other_calendars(tmp_path):
    """They keep the units of the folder as those of NumPy do."""
    cftime = pytest.importorskip("cftime")
    for day in (1, 5):
        dataset = xarray.Dataset(
            {"v": ("time", [day])}, {"time": [cftime.DatetimeNoLeap(1, 1, day)]}
        )
        to_npz(dataset, tmp_path / "days", append_dim="time")
    assert [time.day for time in opened(tmp_path / "days")["time"].values] == [1, 5]


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ({"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}, 3e6),
        ({"dtype": "i2", "scale_factor": 0.5}, np.nan),
        ({"dtype": "i2", "_FillValue": -1}, 1.5),
        ({"dtype": "i2", "_FillValue": -1}, -1.0),
        ({"dtype": "i1", "_Unsigned": "true", "_FillValue": 255}, 256.0),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::xarray.SerializationWarning")
def test_values_that_the_encoding_cannot_keep_are_refused(tmp_path, encoding, value):
    """Others would come back; a folder without the encoding takes them."""
    folder, new = tmp_path / "a", tmp_path / "b"
    first, rows = (xarray.Dataset({"t": ("time", [one])}) for one in (2.0, value))
    to_npz(first, folder, append_dim="time", encoding={"t": encoding})
    with pytest.raises(ValueError, match=r"cannot keep.*drop_encoding"):
        to_npz(rows, folder, append_dim="time")
    assert opened(folder)["t"].values.tolist() == [2.0]
    to_npz(xarray.open_dataset(folder).drop_encoding(), new, append_dim="time")
    to_npz(rows.astype(opened(new)["t"].dtype), new, append_dim="time")
    assert np.array_equal(opened(new)["t"].values, [2.0, value], equal_nan=True)


def test_the_encoding_of_new_rows_is_the_folders(tmp_path):
    """Rows that were read from a packed file are appended as numbers, not as what packed them."""
    rows = xarray.Dataset({"t": ("time", [3.5])})
    to_npz(xarray.Dataset({"t": ("time", [1.5])}), tmp_path / "a", append_dim="time")
    rows["t"].encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}
    to_npz(rows, tmp_path / "a", append_dim="time")
    assert opened(tmp_path / "a")["t"].values.tolist() == [1.5, 3.5]


def test_missing_variables_and_dimensions_are_refused(folder):
    """The folder's variables would have other lengths, and could not be opened."""
    with pytest.raises(ValueError, match="are missing: 'n'"):
        to_npz(days(3, 5).drop_vars("n"), folder, append_dim="time")
    with pytest.raises(ValueError, match=r"no variable has the dimension 'time'.*isel\(time=\[0\]"):
        to_npz(days(3, 5).isel(time=0), folder, append_dim="time")
    assert opened(folder).identical(days(0, 3))
    to_npz(days(3, 5).isel(time=[0]), folder, append_dim="time")
    assert opened(folder).identical(days(0, 4))


@pytest.mark.slow
def test_sound_rows_of_a_damaged_folder(tmp_path):
    """The rows that verify does not name can be read by isel, and go to a new folder."""
    values = np.random.default_rng(0).random((100, 5000))
    dataset = xarray.Dataset({"t": (("time", "x"), values)})
    to_npz(dataset, tmp_path / "old", append_dim="time")
    with npzkit.open(tmp_path / "old") as npz:
        shard = tmp_path / "old" / npz.parts("t")[0].shard
        with npzkit.open(shard) as one:
            place = one.info(npz.parts("t")[0].key).data_offset + 2_000_000
    data = bytearray(shard.read_bytes())
    data[place] ^= 1
    shard.write_bytes(data)
    (row,) = npzkit.verify(tmp_path / "old").rows
    assert row.what.endswith("in rows 49 and 50")
    assert "isel" in row.remedy
    sound = [*range(49), *range(51, 100)]
    with xarray.open_dataset(tmp_path / "old", engine="npzkit") as found:
        to_npz(found.isel(time=sound), tmp_path / "new", append_dim="time")
    assert opened(tmp_path / "new").identical(dataset.isel(time=sound))


def test_other_labels_are_refused(folder):
    """The rows would come under the folder's labels; in its order they fit."""
    changed = days(3, 5).sel(x=[3, 1, 2])
    with pytest.raises(ValueError, match=r"coordinate 'x' has other values.*take its order"):
        to_npz(changed, folder, append_dim="time")
    with pytest.raises(ValueError, match=r"coordinate 'x' has other values.*another folder"):
        to_npz(days(3, 5).assign_coords(x=[4, 5, 6]), folder, append_dim="time")
    to_npz(changed.sel(x=opened(folder)["x"]), folder, append_dim="time")
    assert opened(folder).identical(days(0, 5))
