"""Data sets that are appended to a folder: `to_npz(append_dim=)`."""

from __future__ import annotations

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
    with pytest.raises(ValueError, match="would lose values"):
        to_npz(xarray.Dataset({"s": ("time", ["long"])}), tmp_path / "s", append_dim="time")
    assert opened(tmp_path / "s")["s"].values.tolist() == ["ab", "c"]
