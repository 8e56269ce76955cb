"""xarray's engine npzkit: data sets and trees that come back, and read only what is selected."""

from __future__ import annotations

import datetime
import gc
import io
import os
import pathlib
import pickle
import re
import tempfile
import warnings

import npzkit
import numpy as np
import pytest
from npzkit.datasets import reopened
from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    KeyExistsError,
    MadeUpDimensionsWarning,
    MemberNotFoundError,
    StaleArchiveError,
    UnsupportedError,
)
from range_server import RangeServer

xr = pytest.importorskip("xarray", reason="xarray is not installed")
da = pytest.importorskip("dask.array", reason="dask is not installed")

import pandas as pd  # noqa: E402 - xarray brings it
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402
from npzkit.xarray import NpzBackend, to_npz  # noqa: E402

TIME = pd.date_range("2000-01-01", periods=4, unit="ns")


def example():
    """A data set with one variable of each kind."""
    return xr.Dataset(
        {
            "temperature": (
                ("time", "x"), np.arange(12.0).reshape(4, 3),
                {"units": "K", "valid": [0, 400], "nested": {"a": 1}},
            ),
            "names": ("x", np.array(["a", "größe", ""], object)),
            "fixed": ("x", np.array(["a", "bb", "ccc"])),
            "bytes": ("x", np.array([b"a", b"bb", b"ccc"])),
            "flags": ("x", [True, False, True]),
            "passed": ("time", np.arange(4).astype("m8[h]").astype("m8[ns]")),
            "complex": ("x", [1 + 2j, 0, 3j]),
            "big_endian": ("x", np.arange(3, dtype=">i4")),
            "scalar": ((), 7),
            "empty": (("none", "x"), np.zeros((0, 3), "f4")),
            "missing": ("x", [1.0, np.nan, np.inf]),
        },
        {
            "time": TIME,
            "lat": ("x", [1.0, 2.0, 3.0]),
            "reference": pd.Timestamp("2001-02-03"),
            "alone": ("other", ["p", "q"]),
        },
        {"title": "demo", "numbers": [1, 2.5], "größe": None},
    )  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "data.npz")


def reread(dataset, path, **options):
    to_npz(dataset, path, **options)
    with xr.open_dataset(path, engine=NpzBackend) as found:
        return found.load()


@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_data_set_comes_back(path, compression, chunked):
    """Variables, coordinates of both kinds, attributes and dtypes are those that were saved."""
    dataset = example()
    found = reread(dataset.chunk({"time": 2, "x": 2}) if chunked else dataset, path, compression=compression)  # fmt: skip
    xr.testing.assert_identical(found, dataset)
    assert found["temperature"].dtype == "f8" and found["flags"].dtype == bool
    assert set(found.coords) == {"time", "lat", "reference", "alone"}
    with np.load(path) as plain:
        assert plain["flags"].dtype == bool
        np.testing.assert_array_equal(plain["temperature"], dataset["temperature"])


DTYPES = [
    "?", "i1", "u2", "i4", ">i4", "i8", "u8", "f2", "f4", ">f8", "c8", "c16", "S3", "U2",
    "M8[ns]", "M8[s]", "m8[ms]",
]  # fmt: skip


@given(st.data())
def test_any_array_comes_back(data):
    """Values of each dtype, with their shape and, except for times, their dtype, come back."""
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    elements = None
    if dtype.kind in "mM":
        bound = 10**9
        elements = st.integers(-bound, bound).map(lambda n: np.array(n, "i8").astype(dtype)[()])
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    array = data.draw(hnp.arrays(dtype, shape, elements=elements))
    dims = [f"d{axis}" for axis in range(array.ndim)]
    with tempfile.TemporaryDirectory() as folder:
        found = reread(xr.Dataset({"a": (dims, array)}), f"{folder}/a.npz")["a"]
    if dtype.kind == "c" and np.isnan(array).any():
        array = array.astype(found.dtype)
    np.testing.assert_array_equal(found.values, array)
    assert found.dims == tuple(dims)
    if dtype.kind not in "mM":
        assert found.dtype == dtype.newbyteorder("=") or found.dtype == dtype


@given(st.data())
def test_any_selection_is_that_of_memory(data):
    """Integers, slices and arrays, one or several, select what they select in memory."""
    array = np.arange(4 * 5 * 3).reshape(4, 5, 3)
    part = st.one_of(
        st.integers(-3, 2), st.slices(3), st.lists(st.integers(-3, 2), max_size=4).map(np.array)
    )
    index = {
        dim: choice.astype(int) if isinstance(choice, np.ndarray) else choice
        for dim in "abc" if (choice := data.draw(st.one_of(st.none(), part))) is not None
    }  # fmt: skip
    memory = xr.DataArray(array, dims=list("abc"))
    with tempfile.TemporaryDirectory() as folder:
        to_npz(memory.rename("v"), f"{folder}/a.npz", compression="deflated")
        with xr.open_dataset(f"{folder}/a.npz", engine=NpzBackend, cache=False) as found:
            xr.testing.assert_equal(found["v"].isel(index).load(), memory.isel(index))
            points = {
                "a": xr.DataArray([0, 3, 1], dims="p"),
                "c": xr.DataArray([2, 0, 2], dims="p"),
            }
            xr.testing.assert_equal(found["v"].isel(points).load(), memory.isel(points))


def test_cftime_and_encodings(path):
    """Calendars, packing and fill values are encoded by the rules of CF and decoded again."""
    cftime = pytest.importorskip("cftime", reason="cftime is not installed")
    dataset = xr.Dataset(
        {
            "day": ("t", [cftime.DatetimeNoLeap(2000, 2, 28), cftime.DatetimeNoLeap(2000, 3, 1)]),
            "packed": ("t", [1.5, np.nan]),
            "letters": ("t", np.array([b"x", b"y"])),
        }
    )
    encoding = {
        "packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1, "compression": "deflated"},
        "letters": {"_FillValue": b"\xff"},
    }
    found = reread(dataset, path, encoding=encoding)
    xr.testing.assert_identical(found, dataset)
    with npzkit.open(path) as npz:
        assert npz["packed"].tolist() == [3, -1]
        assert npz.info("packed").method == "deflated"
        assert npz.info("day").method == "stored"
        assert npz.info("day").attrs["calendar"] == "noleap"
    again = reread(found, path)
    xr.testing.assert_identical(again, dataset)
    raw = xr.open_dataset(path, engine=NpzBackend, mask_and_scale=False)
    assert raw["packed"].attrs["_FillValue"] == -1 and raw["packed"].dtype == "i2"
    assert raw["letters"].attrs["_FillValue"] == b"\xff"
    raw.close()


@pytest.mark.parametrize(
    "values", [[1.5, 2.5, 3.5], [1, 2, 3], [0, 1, 2, "M8[s]"], [True, False, True]]
)
@pytest.mark.parametrize("group", ["", "a/"])
def test_masked_values_are_missing(path, values, group):
    """The mask is no variable then; without mask_and_scale it is one, with the dimensions of its array."""
    array = np.array(values[:3]).astype(values[3] if len(values) > 3 else None)
    masked = np.ma.array(array, mask=[False, True, False])
    attrs = {f"{group}t": {"_ARRAY_DIMENSIONS": ["x"], "units": "K"}}
    npzkit.save(path, {f"{group}t": masked}, masked="split", attrs=attrs)
    options = {"engine": NpzBackend, "group": group}
    with xr.open_dataset(path, **options) as found:
        assert [*found.variables] == ["t"]
        assert found["t"].notnull().values.tolist() == [True, False, True]
        assert found["t"][::2].values.tolist() == array[::2].tolist()
        assert found["t"][1].isnull()
        assert found["t"].attrs == {"units": "K"}
    for option in (False, {"t": False}):
        with xr.open_dataset(path, mask_and_scale=option, **options) as found:
            assert found["t"].values.tolist() == array.tolist()
            assert found["t.mask"].dims == ("x",)
            assert found["t.mask"].values.tolist() == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("how", ["file", "mode", "folder"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::xarray.SerializationWarning")
def test_values_that_an_encoding_cannot_keep_are_refused(tmp_path, how, chunked):
    """Others would come back; those that are half of the scale apart, and missing integers, fit."""
    path = tmp_path / ("data" if how == "folder" else "data.npz")
    options = {"file": {}, "mode": {"mode": "a"}, "folder": {"append_dim": "x"}}[how]
    kelvin = np.linspace(250, 294, 20, dtype="f4")
    counts = np.where(kelvin < 260, -1, 70)
    dataset = xr.Dataset({"t": ("x", kelvin), "n": ("x", counts)})
    dataset = dataset.chunk(x=5) if chunked else dataset
    packed, count = {"dtype": "i2", "scale_factor": 0.001}, {"dtype": "i1", "_FillValue": -1}
    masked = dataset.where(dataset["t"] > 260)
    refused = [
        (dataset, {"t": packed}), (masked, {"t": {"dtype": "i2"}}), (dataset * 2, {"n": count}),
    ]  # fmt: skip
    for values, encoding in refused:
        with pytest.raises(ValueError, match=r"its encoding cannot keep, int.*would be read as"):
            to_npz(values, path, encoding=encoding, **options)
        assert not (path / "index.npz" if how == "folder" else path).exists()
    packed |= {"add_offset": 273.15, "_FillValue": -32768}
    to_npz(dataset, path, encoding={"t": packed, "n": count}, **options)
    with xr.open_dataset(path, engine=NpzBackend) as found:
        np.testing.assert_allclose(found["t"], kelvin, atol=0.00055)
        np.testing.assert_array_equal(found["n"], np.where(counts < 0, np.nan, counts))
        to_npz(found, tmp_path / "again.npz")
    with xr.open_dataset(path, engine=NpzBackend, mask_and_scale=False) as found:
        to_npz(found, tmp_path / "raw.npz")


def test_checked_values_are_computed_once(tmp_path):
    """The check of an encoding is a part of the one computation."""
    computed = []
    blocks = da.zeros(6, chunks=2).map_blocks(
        lambda block: computed.extend(block) or block, dtype=float
    )
    dataset = xr.Dataset({"t": ("x", blocks)})
    encoding = {"t": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}}
    to_npz(dataset, tmp_path / "t.npz", encoding=encoding)
    to_npz(dataset, tmp_path / "days", append_dim="x", encoding=encoding)
    to_npz(dataset, tmp_path / "days", append_dim="x")
    assert len(computed) == 3 * 6


def test_bfloat16_and_records(path):
    """dtypes that only NumPy or ml_dtypes have are kept."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    dataset = xr.Dataset(
        {
            "w": ("x", np.arange(3).astype(ml_dtypes.bfloat16)),
            "r": ("x", np.array([(1, 2.0)] * 3, [("a", "i4"), ("b", "f8")])),
        }
    )
    found = reread(dataset, path)
    for name in dataset:
        assert found[name].dtype == dataset[name].dtype
        assert found[name].values.tobytes() == dataset[name].values.tobytes()


@pytest.mark.remedy("It has these: ")
def test_groups(path):
    """A tree comes back with its empty groups and attributes; each group opens on its own."""
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"a": ("x", [1, 2])}, {"x": [3, 4]}, {"name": "root"}),
            "/g": xr.Dataset({"b": (("x", "y"), np.eye(2))}, attrs={"name": "g"}),
            "/g/deep": xr.Dataset({"c": ((), 5)}),
            "/note": xr.Dataset(attrs={"empty": True}),
        }
    )
    to_npz(tree, path, encoding={"/g/b": {"compression": "deflated"}})
    with xr.open_datatree(path, engine=NpzBackend) as found:
        xr.testing.assert_identical(found.load(), tree)
    with np.load(path) as plain:
        assert plain.files == ["a", "x", "g/b", "g/deep/c"]
    with xr.open_dataset(path, engine=NpzBackend, group="/g/deep") as found:
        assert found["c"].item() == 5
    with xr.open_datatree(path, engine=NpzBackend, group="g") as found:
        assert [node.path for node in found.subtree] == ["/", "/deep"]
        assert found.attrs == {"name": "g"}
    groups = xr.open_groups(path, engine=NpzBackend)
    groups["/"].close()
    assert groups["/g"]["b"].values.tolist() == [[1, 0], [0, 1]]
    for dataset in groups.values():
        dataset.close()
    found = r"no such group.*'nothing'.*'g', 'g/deep'"
    with pytest.raises(MemberNotFoundError, match=found) as caught:
        xr.open_dataset(path, engine=NpzBackend, group="nothing")
    for group in re.findall("'([^']*)'", caught.value.remedy):
        xr.open_dataset(path, engine=NpzBackend, group=group).close()
    with npzkit.open(path) as npz:
        assert dict(npz.metadata)["name"] == "root"


def test_a_plain_file_gets_names_of_dimensions(path):
    """Arrays of np.savez get one name per length, and a warning says so; dims= names them."""
    np.savez(
        path, image=np.zeros((4, 3, 3)), row=np.arange(3), label=np.int8(1), **{"g/b": np.ones(4)}
    )
    with pytest.warns(MadeUpDimensionsWarning, match="of 'image' and 1 more") as caught:
        found = xr.open_dataset(path, engine=NpzBackend)
    assert [warning.filename for warning in caught] == [__file__]
    assert found["image"].dims == ("dim_0", "dim_1", "dim_2")
    assert (found["row"].dims, found["label"].dims) == (("dim_1",), ())
    found.close()
    # Then many files have one message.
    assert path not in str(caught[0].message)
    with pytest.warns(MadeUpDimensionsWarning) as caught:
        tree = xr.open_datatree(path, engine=NpzBackend)
    assert tree["g/b"].dims == ("dim_0",)
    assert [warning.filename for warning in caught] == [__file__]
    tree.close()
    dims = {"image": ["n", "y", "x"], "row": "x", "g/b": ("n",)}
    with xr.open_dataset(path, engine=NpzBackend, dims=dims) as found:
        assert dict(found.sizes) == {"n": 4, "y": 3, "x": 3}
    for wrong, words in ({"image": ["n"]}, "3 dimensions, not 1"), ({"nothing": []}, "no array"):
        with pytest.raises(ValueError, match=words):
            xr.open_dataset(path, engine=NpzBackend, dims=wrong)


def test_dimensions_are_named_by_key_in_the_group(path):
    """All is relative to the group that is opened; the array's own key does as well."""
    np.savez(path, **{"run/s": np.ones((2, 3)), "run/g/u": np.ones(5), "s": np.ones((4, 1))})
    for names in ({"s": ["t", "ch"]}, {"run/s": ["t", "ch"]}):
        with xr.open_dataset(path, engine=NpzBackend, group="run", dims=names) as found:
            assert dict(found.sizes) == {"t": 2, "ch": 3}
    told = pytest.warns(MadeUpDimensionsWarning, match=r"of 'g/u' have.*: dims={'g/u': \[\.\.\.\]}")
    with told, xr.open_groups(path, engine=NpzBackend, group="run", dims=names)["/g"] as found:
        assert dict(found.sizes) == {"dim_0": 5}
    with pytest.raises(ValueError, match="no array 'run/x'"):
        xr.open_dataset(path, engine=NpzBackend, group="run", dims={"x": ["t"]})


def test_times_of_any_unit(path):
    """datetime64 that was saved as it is, in a unit that xarray has not, is read in seconds."""
    npzkit.save(path, {"day": np.array(["2020-01-01", "NaT"], "M8[D]")})
    with xr.open_dataset(path, engine=NpzBackend, dims={"day": "t"}) as found:
        assert found["day"].dtype == "M8[s]"
        np.testing.assert_array_equal(found["day"], np.array(["2020-01-01", "NaT"], "M8[s]"))


@pytest.mark.parametrize(
    ("unit", "read_as"), [("2ns", "ns"), ("10ms", "ms"), ("as", "ns"), ("15m", "s")]
)
def test_times_keep_their_precision(path, unit, read_as):
    """Times in several units at once, or in a finer unit than xarray's, are not cut to seconds."""
    times = np.array([3 * 10**11, -7, "NaT"], f"m8[{unit}]")
    npzkit.save(path, {"t": times})
    with xr.open_dataset(path, engine=NpzBackend, dims={"t": "x"}, decode_timedelta=False) as found:
        assert found["t"].dtype == f"m8[{read_as}]"
        np.testing.assert_array_equal(found["t"], times.astype(f"m8[{read_as}]"))


@pytest.mark.remedy("Leave it out: drop_variables=[")
def test_what_is_no_array(path):
    """Other members are left out; arrays of objects are refused, unless they are dropped."""
    import zipfile

    npzkit.save(path, {"a": 1, "o": np.array([{}], object)}, allow_pickle=True)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("readme.txt", "hello")
    refused = pytest.raises(UnsupportedError, match=r"Python objects.*drop_variables=\['o'\]")
    with refused, pytest.warns(MadeUpDimensionsWarning):
        xr.open_dataset(path, engine=NpzBackend)
    with pytest.warns(MadeUpDimensionsWarning):
        found = xr.open_dataset(path, engine=NpzBackend, drop_variables=["o"])
    assert list(found) == ["a"]
    found.close()


def test_only_what_is_selected_is_read():
    """Opening reads the end of the file, and a selection only its own chunks."""
    dataset = xr.Dataset({"big": (("y", "x"), np.random.default_rng(0).random((1000, 1000)))})
    with tempfile.TemporaryDirectory() as folder:
        to_npz(dataset, f"{folder}/a.npz")
        with open(f"{folder}/a.npz", "rb") as file:
            data = file.read()
    with RangeServer().running() as server:
        url = server.put(data)
        assert NpzBackend().guess_can_open(url + "?token=1")
        found = xr.open_dataset(url, engine=NpzBackend, storage_options={"timeout": 10})
        rows = found["big"].isel(y=slice(500, 502))
        opening = server.size
        assert opening < 70_000  # the end of the file, and the array's header
        xr.testing.assert_equal(rows.load(), dataset["big"].isel(y=slice(500, 502)))
        # The chunk that they are in is compared with its CRC-32.
        assert 16_000 <= server.size - opening < 70_000
        found.close()


@pytest.mark.slow
def test_chunks_follow_the_file(path):
    """chunks={} makes chunks of several of LazyArray.chunks, but for axes where these are 1."""
    array = np.zeros((16_000, 1024), "u1")
    to_npz(xr.Dataset({"a": (("y", "x"), array)}), path, compression="deflated")
    with npzkit.open(path) as npz:
        chunks = npz.lazy("a").chunks
    with xr.open_dataset(path, engine=NpzBackend, chunks={}) as found:
        assert chunks == (256, 1024)
        assert found["a"].data.chunksize == (8192, 1024)
        assert found["a"].encoding["preferred_chunks"] == {"y": 8192, "x": 1024}
        assert int(found["a"].astype("i8").sum()) == array.sum(dtype="i8")
        to_npz(found.chunk({"y": 1000}), path + "2")
    assert reread(xr.open_dataset(path + "2", engine=NpzBackend), path)["a"].shape == array.shape
    to_npz(
        xr.Dataset({"a": (("z", "y", "x"), array[:1000].reshape(2, 500, 1024))}),
        path,
        compression="deflated",
    )
    with xr.open_dataset(path, engine=NpzBackend, chunks={}) as found:
        assert found["a"].data.chunksize == (1, 500, 1024)


def test_stored_arrays_have_no_chunks(tmp_path):
    """Any chunks are as good, so xarray does not warn of them, also in a folder."""
    dataset = xr.Dataset({"a": (("y", "x"), np.zeros((512, 256), "u1"))})
    to_npz(dataset, tmp_path / "a.npz")
    for _ in range(2):
        to_npz(dataset, tmp_path / "folder", append_dim="y")
    for path in (tmp_path / "a.npz", tmp_path / "folder"):
        with xr.open_dataset(path, engine=NpzBackend, chunks={"y": 50}) as found:
            assert found["a"].data.chunksize == (50, 256)
            assert int(found["a"].sum()) == 0


def test_a_data_set_whose_arrays_are_in_groups(path):
    """It is empty, so a warning says how to open the groups; not if the root has arrays, too."""
    arrays = {f"step{number}/t": np.float64(number) for number in range(3)}
    npzkit.save(path, arrays)
    with pytest.warns(
        UserWarning, match=r"3 arrays are in groups: .*open_datatree.*'step0'"
    ) as caught:
        xr.open_dataset(path, engine=NpzBackend).close()
    group = str(caught[0].message).rpartition("=")[2].strip("'")
    assert xr.open_dataset(path, engine=NpzBackend, group=group)["t"].item() == 0
    assert xr.open_datatree(path, engine=NpzBackend)["step2/t"].item() == 2
    npzkit.save(path, {**arrays, "t": 5.0})
    assert xr.open_dataset(path, engine=NpzBackend)["t"].item() == 5


def test_many_files(tmp_path, monkeypatch):
    """open_mfdataset joins files, of which few are open; it is closed as one."""
    monkeypatch.setattr(reopened, "_FILE_COUNT", 10)
    for step in range(30):
        dataset = xr.Dataset({"v": ("t", [float(step)])}, {"t": [step]})
        to_npz(dataset, tmp_path / f"{step:03}.npz")
    with xr.open_mfdataset(str(tmp_path / "*.npz"), engine=NpzBackend, combine="nested", concat_dim="t", data_vars="all", join="outer") as found:  # fmt: skip
        if os.path.exists("/proc/self/fd"):
            links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            opened = [link for link in links if os.path.exists(link) and str(tmp_path) in os.path.realpath(link)]  # fmt: skip
            assert len(opened) <= 10
        assert found["v"].values.tolist() == list(range(30))


def test_pickles_and_closes(path):
    """A lazy data set can be pickled, also after it was closed; a closed one reads nothing."""
    to_npz(example(), path)
    found = xr.open_dataset(path, engine=NpzBackend)
    other = pickle.loads(pickle.dumps(found))
    rows = found["temperature"].isel(time=1)
    found.close()
    with pytest.raises(ClosedArchiveError, match=r"data\.npz"):
        rows.load()
    xr.testing.assert_identical(other.load(), example())
    other.close()
    assert pickle.loads(pickle.dumps(other)).identical(example())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xr.open_dataset(path, engine=NpzBackend)
        gc.collect()


def test_a_changed_file(path):
    """A file that is replaced is not mixed with the old one: it is refused when it is opened again."""
    to_npz(example(), path)
    found = xr.open_dataset(path, engine=NpzBackend)
    pickled = pickle.dumps(found)
    to_npz(xr.Dataset({"temperature": ("x", [1.0])}), path)
    assert found["temperature"].shape == (4, 3)
    found["temperature"].load()
    found.close()
    with pytest.raises(StaleArchiveError, match=r"data\.npz"):
        pickle.loads(pickled)["temperature"].load()


def test_damage_is_found(path):
    """A complete variable is compared with its CRC-32."""
    to_npz(xr.Dataset({"a": ("x", np.arange(1000.0))}), path)
    with open(path, "rb") as file:
        data = bytearray(file.read())
    data[4000] ^= 1
    found = xr.open_dataset(data, engine=NpzBackend)
    with pytest.raises(ChecksumError, match="'a'"):
        found["a"].load()


def test_a_repaired_file_can_be_saved(path, tmp_path):
    """Lost values are missing ones, and the note of what was lost goes along."""
    values = np.random.default_rng(0).random((100, 1000))
    to_npz(xr.Dataset({"a": (("y", "x"), values)}), path)
    with open(path, "rb") as file:
        data = bytearray(file.read())
    data[400_000] ^= 1
    (tmp_path / "damaged.npz").write_bytes(data)
    npzkit.repair(tmp_path / "damaged.npz", tmp_path / "repaired.npz", keep_partial="mask")
    with xr.open_dataset(tmp_path / "repaired.npz", engine=NpzBackend) as repaired:
        assert repaired["a"].dims == ("y", "x")
        assert 0 < repaired["a"].isnull().sum() < 10_000
        found = reread(repaired, path)
    assert found.identical(repaired)
    assert found.attrs == {"npzkit.lost": ["a"]}


def test_files_in_memory(path):
    """Bytes can be opened, but not pickled."""
    to_npz(example(), path)
    with open(path, "rb") as file:
        data = file.read()
    with xr.open_dataset(data, engine=NpzBackend) as found:
        with pytest.raises(TypeError, match="opened from an object"):
            pickle.dumps(found)
        xr.testing.assert_identical(found.load(), example())


def test_which_files_are_guessed(tmp_path):
    """.npz paths and URLs, and folders with index.npz, are opened without naming the engine."""
    guess = NpzBackend().guess_can_open
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "index.npz").touch()
    for name in ("a.npz", "A.NPZ", tmp_path / "a.npz", "s3://b/a.npz", "http://h/a.npz?q=1", tmp_path / "shards"):  # fmt: skip
        assert guess(name), name
    for name in ("a.nc", "npz", tmp_path, b"PK\3\4", 5, "http://h/a.zip?n=.npz"):
        assert not guess(name), name
    engines = xr.backends.list_engines()
    if "npzkit" not in engines:
        pytest.skip("npzkit is on the path, but not installed")
    assert engines["npzkit"].guess_can_open("a.npz")


def test_modes(path):
    """ "x" keeps a file, "a" adds and replaces variables, and a failure changes nothing."""
    to_npz(xr.Dataset({"a": ("x", [1, 2])}, attrs={"k": 1}), path)
    with pytest.raises(FileExistsError):
        to_npz(example(), path, mode="x")
    more = xr.Dataset({"a": ("x", da.ones(2, chunks=1)), "b": ("x", [5, 6])}, attrs={"l": 2})
    to_npz(more, path, mode="a")
    to_npz(more, path, mode="a", group="g")
    with xr.open_datatree(path, engine=NpzBackend) as found:
        assert found["a"].values.tolist() == [1, 1] == found["g/a"].values.tolist()
        assert (found.attrs, found["g"].attrs) == ({"k": 1, "l": 2}, {"l": 2})

    def fail(block):
        raise RuntimeError("this block fails")

    with pytest.raises(RuntimeError, match="this block"):
        to_npz(xr.Dataset({"a": ("x", da.ones(4, chunks=2).map_blocks(fail, dtype="f8", meta=np.ones(0)))}), path)  # fmt: skip
    with xr.open_dataset(path, engine=NpzBackend) as found:
        assert found["b"].values.tolist() == [5, 6]


def test_variable_width_strings_of_numpy(path):
    """Strings of NumPy's StringDType come back with a fixed width."""
    text = np.array(["a", "größe", ""], np.dtypes.StringDType())
    to_npz(xr.Dataset({"s": ("x", text)}), path)
    with xr.open_dataset(path, engine=NpzBackend) as found:
        assert found["s"].values.tolist() == ["a", "größe", ""]


def test_what_cannot_be_saved(path):
    """Names and attributes that an archive cannot keep are refused with their name."""
    cases = [
        (xr.Dataset({5: ("x", [1])}), {}, TypeError, "names of variables"),
        (xr.Dataset({"a/b": ("x", [1])}), {}, ValueError, "'a/b' has a slash"),
        (xr.Dataset(attrs={"when": datetime.date(2020, 1, 1)}), {}, TypeError, "data set, attribute 'when'"),
        (xr.Dataset({"a": ("x", [1], {"t": np.datetime64("2020-01-01", "ns")})}), {}, TypeError, "'a', attribute 't'"),
        (xr.Dataset({"a": ("x", [1])}), {"encoding": {"b": {}}}, ValueError, "no variable 'b'"),
        (xr.Dataset({"a": ("x", [1])}), {"encoding": {"a": {"zlib": 1}}}, ValueError, "zlib"),
        ({"a": 1}, {}, TypeError, "Dataset"),
        (xr.Dataset(attrs={"npzkit.tree": 1}), {}, ValueError, "'npzkit.tree' is reserved"),
        (xr.Dataset({"a": ("x", np.array(["b\0"], object))}), {}, ValueError, "'a' has strings that end with NUL"),
    ]  # fmt: skip
    for dataset, options, error, words in cases:
        with pytest.raises(error, match=words):
            to_npz(dataset, path, **options)
        assert not os.path.exists(path)


def test_dask_arrays_are_written_block_by_block(path, monkeypatch):
    """Arrays of dask larger than the limit are written without being in memory, in every order."""
    from npzkit.xarray import writing

    monkeypatch.setattr(writing, "_ROWS_SIZE", 1 << 12)
    largest = 0  # bytes of a block

    def seen(block):
        nonlocal largest
        largest = max(largest, block.nbytes)
        return block

    array = np.arange(200 * 300.0).reshape(200, 300)
    for chunks in ((10, 300), (200, 10), (7, 11)):
        largest = 0
        lazy = da.from_array(array, chunks=chunks).map_blocks(
            seen, dtype="f8", meta=np.ones((0, 0))
        )
        for compression in ("stored", "deflated", "zstd"):
            found = reread(xr.Dataset({"a": (("y", "x"), lazy)}), path, compression=compression)
            np.testing.assert_array_equal(found["a"], array)
        with open(path, "wb") as file:
            to_npz(xr.Dataset({"a": (("y", "x"), lazy)}), file)
        with np.load(path) as plain:
            np.testing.assert_array_equal(plain["a"], array)
        assert largest <= np.prod(chunks) * 8


def test_strings_in_dask(path):
    """Variable-width strings of dask get the width of the longest."""
    words = np.array(["a", "longer", "", "größe"], object)
    found = reread(xr.Dataset({"w": ("x", da.from_array(words, chunks=3))}), path)
    assert found["w"].dtype == "U6"
    assert found["w"].values.tolist() == words.tolist()


def test_results_of_common_parts_are_computed_once(path):
    """Variables that share a part of their graph are computed together."""
    calls = []

    def counted(block):
        calls.append(block.size)
        return block

    base = da.ones((4, 4), chunks=2).map_blocks(counted, dtype="f8", meta=np.ones((0, 0)))
    to_npz(xr.Dataset({"a": (("y", "x"), base + 1), "b": (("y", "x"), base * 3)}), path)
    assert len(calls) == 4


def test_a_data_array(path):
    """A DataArray, also without a name, comes back by open_dataarray."""
    array = xr.DataArray([1.0, 2.0], {"x": [5, 6]}, name=None)
    to_npz(array, path)
    with xr.open_dataarray(path, engine=NpzBackend) as found:
        np.testing.assert_array_equal(found, array)
    to_npz(array.rename("t"), path, mode="w")
    with xr.open_dataarray(path, engine=NpzBackend) as found:
        xr.testing.assert_identical(found.load(), array.rename("t"))


def test_a_data_array_named_like_its_dimension_or_coordinate(path):
    """Its name comes back, as from a file of netCDF."""
    arrays = [
        xr.DataArray([1.0, 2.0], dims="x", name="x"),
        xr.DataArray([1.0, 2.0], {"x": [5, 6]}, name="x"),
        xr.DataArray([1.0, 2.0], {"y": ("x", [5, 6])}, dims="x", name="y", attrs={"units": "K"}),
    ]
    for array in arrays:
        to_npz(array, path)
        with xr.open_dataarray(path, engine=NpzBackend) as found:
            xr.testing.assert_identical(found.load(), array)


def test_a_subtree_keeps_what_it_inherits(path):
    """Coordinates of a node above the saved one come back at the top of the new tree."""
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset(coords={"x": [10, 20]}),
            "/a": xr.Dataset({"b": ("x", [1, 2])}),
            "/a/c": xr.Dataset({"d": ("x", [3, 4])}),
        }
    )
    to_npz(tree["a"], path)
    with xr.open_datatree(path, engine=NpzBackend) as found:
        assert found["x"].values.tolist() == [10, 20]
        xr.testing.assert_identical(found["c"].to_dataset().load(), tree["a/c"].to_dataset())
    with npzkit.open(path) as npz:
        assert npz.files == ["b", "x", "c/d"]


@pytest.mark.parametrize("group", [None, "g/h"])
@pytest.mark.parametrize("is_path", [True, False])
def test_a_dimension_keeps_its_size_in_an_archive_that_is_added_to(path, group, is_path):
    """A variable whose dimension has another size is refused, and no byte is written."""
    file = path if is_path else io.BytesIO()
    to_npz(xr.Dataset({"a": ("x", [1, 2, 3]), "y": ("y", [1])}), file, group=group)

    def contents():
        return pathlib.Path(path).read_bytes() if is_path else file.getvalue()

    before = contents()
    other = xr.Dataset({"b": ("x", [1, 2])})
    with pytest.raises(ValueError, match=r"'x' of '(g/h/)?b' has the size 2, but 3"):
        to_npz(other, file, mode="a", group=group)
    assert contents() == before
    to_npz(other, file, mode="a", group="other")
    to_npz(other.assign(a=("x", [1, 2]), y=("y", [1, 2])), file, mode="a", group=group)
    source = path if is_path else io.BytesIO(file.getvalue())
    with xr.open_dataset(source, engine=NpzBackend, group=group) as found:
        assert dict(found.sizes) == {"x": 2, "y": 2}


def test_null_strings_are_refused(path):
    """A null string of StringDType never becomes the text "None" or "nan"."""
    for null in (None, np.nan):
        text = np.array(["a", null], np.dtypes.StringDType(na_object=null))
        for data in (text, da.from_array(text, chunks=1)):
            with pytest.raises(ValueError, match="'s' has null strings"):
                to_npz(xr.Dataset({"s": ("x", data)}), path)
            assert not os.path.exists(path)


def test_save_refuses_what_has_labels(path):
    """npzkit.save never drops coordinates, attributes, columns or an index in silence."""
    dataset = xr.Dataset({"t": ("x", [1.0, 2.0])}, {"x": [5, 6]}, {"title": "demo"})
    frame = pd.DataFrame({"a": [1, 2], "b": [3.0, 4.0]})
    cases = [
        (dataset, "npzkit.xarray.to_npz"),
        (xr.Dataset({"t": ("x", [1.0])}), "npzkit.xarray.to_npz"),
        (xr.DataTree(dataset), "npzkit.xarray.to_npz"),
        (dataset["t"], r"value.to_numpy\(\) is the array alone"),
        (xr.DataArray([1.0], dims="x", attrs={"units": "K"}), "npzkit.xarray.to_npz"),
        (frame, r"df.to_records\(\)"),
        (frame.set_index("a")["b"], r"series.index.to_numpy\(\)"),
    ]
    for value, words in cases:
        for tree in (value, {"x": value}, {"a": {"b": [value]}}):
            with pytest.raises(UnsupportedError, match=words):
                npzkit.save(path, tree)
            assert not os.path.exists(path)
    texts = pd.DataFrame({"n": [1], "station": ["a"]})
    with pytest.raises(UnsupportedError, match="columns of text by"):
        npzkit.save(path, texts)
    station = texts["station"].astype(object).fillna("").to_numpy(str)
    npzkit.save(path, {"n": texts["n"].to_numpy(), "station": station})
    os.unlink(path)
    ways = {"records": frame.to_records(), "x": xr.DataArray([1.0], dims="x"), "b": frame["b"]}
    npzkit.save(path, {**ways, **{name: frame[name].to_numpy() for name in frame}})
    with npzkit.open(path) as npz:
        assert npz["records"]["b"].tolist() == npz["b"].tolist() == [3.0, 4.0]


def test_keys_are_checked(path):
    """A name that is no safe key is refused, as everywhere."""
    with pytest.raises(npzkit.NpzkitError):
        to_npz(xr.Dataset({"..": ("x", [1])}), path)
    assert not os.path.exists(path)
    assert issubclass(KeyExistsError, npzkit.NpzkitError)


def test_workers_of_dask_read_and_write(tmp_path):
    """A data set is read, and written to a stored file, by worker processes of dask.distributed."""
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    source, target = str(tmp_path / "source.npz"), str(tmp_path / "target.npz")
    array = np.arange(60.0).reshape(6, 10)
    to_npz(xr.Dataset({"a": (("y", "x"), array)}, {"x": np.arange(10)}), source)
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
        ) as cluster,
        distributed.Client(cluster),
    ):
        warnings.simplefilter("ignore")
        with xr.open_dataset(source, engine=NpzBackend, chunks={"y": 2, "x": 5}) as found:
            doubled = found * 2
            assert float(doubled["a"].sum()) == array.sum() * 2
            to_npz(doubled, target)
            to_npz(doubled, target + "2", compression="deflated")
    for path in (target, target + "2"):
        with npzkit.open(path) as npz:
            np.testing.assert_array_equal(npz["a"], array * 2)
            assert npz.verify().ok


def test_urls_of_stores():
    """A data set is written to a store and read from it, also from arrays of dask."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    fs = fsspec.filesystem("memory")
    url = "memory://xarray/data.npz"
    try:
        to_npz(example(), url)
        with xr.open_dataset(url, engine=NpzBackend, storage_options={}) as found:
            again = pickle.loads(pickle.dumps(found))
            xr.testing.assert_identical(found.load(), example())
        xr.testing.assert_identical(again.load(), example())
        again.close()
        chunked = example().chunk({"time": 2})
        for compression in ("stored", "deflated", "zstd"):
            to_npz(chunked, url, compression=compression)
            with xr.open_dataset(url, engine=NpzBackend) as found:
                xr.testing.assert_identical(found.load(), example())
    finally:
        fs.store.clear()


def test_a_file_that_its_own_data_set_replaces(path):
    """A lazy data set can be changed and saved over the file that it is read from."""
    to_npz(example(), path)
    with xr.open_dataset(path, engine=NpzBackend, chunks={}) as found:
        to_npz(found.isel(time=slice(2)), path)
    with xr.open_dataset(path, engine=NpzBackend) as found:
        xr.testing.assert_identical(found.load(), example().isel(time=slice(2)))


def test_sharded_archives(tmp_path):
    """A folder with index.npz is opened like a file, also pickled, and closed."""
    folder = str(tmp_path / "shards")
    array = np.arange(24.0).reshape(6, 4)
    with npzkit.ShardedWriter(folder, attempt="a1") as w:
        attrs = {"_ARRAY_DIMENSIONS": ["y", "x"], "units": "K"}
        w.add("t", array[:3], offset=(0, 0), global_shape=(6, 4), attrs=attrs)
        w.add("t", array[3:], offset=(3, 0), global_shape=(6, 4), attrs=attrs)
    npzkit.ShardedWriter(folder, attempt="a1", metadata={"title": "demo"}).commit()
    assert NpzBackend().guess_can_open(folder)
    with xr.open_dataset(folder, engine=NpzBackend, chunks={}) as found:
        assert (found["t"].dims, found["t"].attrs, found.attrs) == (("y", "x"), {"units": "K"}, {"title": "demo"})  # fmt: skip
        again = pickle.loads(pickle.dumps(found))
        np.testing.assert_array_equal(found["t"][2:5, 1], array[2:5, 1])
    np.testing.assert_array_equal(again["t"], array)
    again.close()
