"""`npzkit.dask.to_npz`: arrays of dask as sharded archives."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import NpzkitError, UnsafeNameError, UnsupportedError
from s3 import needs_s3, s3_server
from sameness import check_same
from strategies import any_arrays

dask = pytest.importorskip("dask", reason="dask is not installed")
da = pytest.importorskip("dask.array", reason="dask is not installed")

from npzkit.dask import from_npz, to_npz  # noqa: E402 - after the check that dask is installed

pytestmark = pytest.mark.usefixtures("one_thread")


def shards(folder):
    return sorted(path.name for path in Path(folder).glob("shard-*.npz"))


def named(folder):
    """Return the shards that the index of an archive names."""
    with npzkit.open(folder) as npz:
        return sorted({part.shard for key in npz for part in npz.parts(key)})


# -- values -------------------------------------------------------------------


def test_every_kind_of_array(tmp_path, arrays):
    """Records, dates, text, 0-d and empty arrays are read as they were, by key and in order."""
    given_ = {key: da.from_array(np.asarray(array), chunks=-1) for key, array in arrays.items()}
    to_npz(tmp_path / "run", given_)
    with npzkit.open(tmp_path / "run") as npz:
        assert npz.files == list(arrays)
        for key, array in arrays.items():
            check_same(np.asarray(npz[key]), np.asarray(array))
        assert npz.verify()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Stored array in format")
@given(any_arrays(), st.data())
def test_any_array_in_any_chunks(tmp_path_factory, array, data):
    """Any array in any chunks comes back, however chunks are put into shards."""
    folder = tmp_path_factory.mktemp("any") / "run"
    chunks = tuple(
        tuple(np.diff(sorted({0, length, *data.draw(st.lists(st.integers(0, length)))})).tolist())
        or (0,)
        for length in array.shape
    )
    size = data.draw(st.integers(1, 1000))
    options = data.draw(
        st.sampled_from([{}, {"compression": "deflated", "level": 1}, {"compression": "zstd"}])
    )
    to_npz(folder, {"x": da.from_array(array, chunks=chunks)}, shard_size=size, **options)
    with npzkit.open(folder) as npz:
        check_same(np.asarray(npz["x"]), array)
    found = from_npz(folder, "x").compute()
    check_same(np.asarray(found, None if array.ndim else array.dtype), array)


def test_metadata_and_attributes_are_kept(tmp_path):
    """Metadata of the archive and attributes of arrays are there, with NumPy's numbers as numbers."""
    x = da.ones((4, 2), chunks=(2, 2))
    to_npz(
        tmp_path / "run", {"x": x, "y": x}, metadata={"step": np.int64(7)},
        attrs={"x": {"unit": "m", "scale": np.float32(0.5)}},
    )  # fmt: skip
    with npzkit.open(tmp_path / "run") as npz:
        assert npz.metadata == {"step": 7}
        assert npz.lazy("x").attrs == {"unit": "m", "scale": 0.5}
        assert npz.lazy("y").attrs == {}


def test_bfloat16_and_arrays_of_numpy(tmp_path):
    """A dtype that NPY cannot name is kept, and an array of NumPy is saved beside arrays of dask."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    to_npz(tmp_path / "run", {"x": da.from_array(array, chunks=4), "y": np.arange(3)})
    with npzkit.open(tmp_path / "run") as npz:
        check_same(npz["x"], array)
        check_same(npz["y"], np.arange(3))


def test_shards_are_archives(tmp_path):
    """np.load reads each shard, and compressed ones are compressed."""
    to_npz(
        tmp_path / "run",
        {"x": da.zeros((100, 100), chunks=50)},
        compression="deflated",
        shard_size=1,
    )
    assert len(shards(tmp_path / "run")) == 4
    for name in shards(tmp_path / "run"):
        with np.load(tmp_path / "run" / name) as npz:
            assert npz["x"].shape == (50, 50)
        assert os.path.getsize(tmp_path / "run" / name) < 2000


def test_an_archive_without_arrays(tmp_path):
    """Metadata alone make an archive too."""
    to_npz(tmp_path / "run", {}, metadata={"a": 1})
    with npzkit.open(tmp_path / "run") as npz:
        assert (npz.files, npz.metadata) == ([], {"a": 1})


# -- shards and tasks ---------------------------------------------------------


@pytest.mark.slow
def test_small_chunks_share_shards(tmp_path):
    """Chunks are gathered up to the size of a shard, also those of several arrays."""
    x = da.zeros((100, 10), chunks=(1, 10))
    to_npz(tmp_path / "run", {"x": x, "y": x[:5]})
    assert len(shards(tmp_path / "run")) == 1
    to_npz(tmp_path / "run", {"x": x, "y": x[:5]}, shard_size="1600B")
    assert len(shards(tmp_path / "run")) == 6
    to_npz(tmp_path / "run", {"x": da.zeros(600, chunks=1)})
    assert len(shards(tmp_path / "run")) == 3


def test_what_arrays_have_in_common_is_computed_once(tmp_path):
    """Two arrays made of one are saved by one computation of it."""
    seen = []

    def source(block_info=None):
        seen.append(block_info[None]["chunk-location"])
        return np.arange(5)

    x = da.map_blocks(source, chunks=((5, 5, 5),), dtype="i8")
    to_npz(tmp_path / "run", {"x": x, "y": x + 1}, shard_size=1)
    assert sorted(seen) == [(0,), (1,), (2,)]


def test_a_block_is_computed_and_written_by_one_task(tmp_path):
    """Blocks do not wait in memory: the tasks that make one and write it are fused."""
    x = da.ones((40, 10), chunks=(10, 10)) + 1
    saving = to_npz(tmp_path / "run", {"x": x}, shard_size=1, compute=False)
    names = [str(name) for name in dict(saving.__dask_graph__())]
    assert sum("add-to-npz-shard" in name for name in names) == 4
    assert all("to-npz" in name for name in names)


def test_tasks_are_small(tmp_path):
    """A task is pickled to a few kilobytes, whatever the number of chunks is."""
    x = da.zeros((5000, 10), chunks=(10, 10))
    saving = to_npz(tmp_path / "run", {"x": x}, shard_size=1, compute=False)
    tasks = dict(saving.__dask_graph__())
    sizes = [len(pickle.dumps(task)) for name, task in tasks.items() if "index" not in str(name)]
    assert len(sizes) >= 500
    assert max(sizes) < 4000


def test_nothing_is_written_before_it_is_computed(tmp_path):
    """With `compute=False` there is no folder; the result is computed with other things of dask."""
    x = da.arange(10, chunks=5)
    saving = to_npz(tmp_path / "run", {"x": x}, compute=False)
    assert not (tmp_path / "run").exists()
    found = dask.compute(saving, x.sum())
    assert found == (None, 45)
    with npzkit.open(tmp_path / "run") as npz:
        check_same(npz["x"], np.arange(10))
    pickle.loads(pickle.dumps(saving)).compute()
    assert shards(tmp_path / "run") == named(tmp_path / "run")


# -- repeated and lost tasks --------------------------------------------------


def test_only_shards_of_the_last_runs_count(tmp_path):
    """If tasks run twice, the archive is right, and shards of other runs are removed."""
    runs = []

    def block(block_info=None):
        runs.append(block_info[None]["chunk-location"][0])
        return np.full(5, runs[-1])

    x = da.map_blocks(block, chunks=((5,) * 4,), dtype="i8")
    saving = to_npz(tmp_path / "run", {"x": x}, shard_size=1, compute=False)
    tasks = dict(saving.__dask_graph__())
    for name in [name for name in tasks if name[0].startswith("to-npz-shard")]:
        dask.get(tasks, name)
    assert len(shards(tmp_path / "run")) == 4
    saving.compute()
    assert sorted(runs) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert shards(tmp_path / "run") == named(tmp_path / "run")
    saving.compute()
    assert shards(tmp_path / "run") == named(tmp_path / "run")
    with npzkit.open(tmp_path / "run") as npz:
        check_same(npz["x"], np.repeat(np.arange(4), 5))


def test_a_failure_leaves_the_old_archive(tmp_path):
    """If a block cannot be computed, the folder is read as before, and the error is its own."""
    x = da.arange(10, chunks=5)
    to_npz(tmp_path / "run", {"x": x})

    def fail(block, block_info=None):
        if block_info[0]["chunk-location"] == (1,):
            raise ZeroDivisionError("by zero")
        return block

    with pytest.raises(ZeroDivisionError):
        to_npz(tmp_path / "run", {"x": x.map_blocks(fail, dtype="i8") + 1}, shard_size=1)
    with npzkit.open(tmp_path / "run") as npz:
        check_same(npz["x"], np.arange(10))
    to_npz(tmp_path / "run", {"x": x + 2})
    with npzkit.open(tmp_path / "run") as npz:
        check_same(npz["x"], np.arange(2, 12))


def test_an_archive_may_be_read_while_it_is_replaced(tmp_path):
    """An array of the folder itself can be saved to it."""
    to_npz(tmp_path / "run", {"x": da.arange(100, chunks=10)}, shard_size=1)
    to_npz(tmp_path / "run", {"x": from_npz(tmp_path / "run", "x", chunks=10) * 2}, shard_size=1)
    with npzkit.open(tmp_path / "run") as npz:
        check_same(npz["x"], np.arange(100) * 2)
    assert shards(tmp_path / "run") == named(tmp_path / "run")


# -- places -------------------------------------------------------------------


def test_a_relative_path_is_that_of_the_caller(tmp_path, monkeypatch):
    """A graph writes to the folder that was meant when it was made."""
    monkeypatch.chdir(tmp_path)
    saving = to_npz("run", {"x": da.arange(3)}, compute=False)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    saving.compute()
    assert (tmp_path / "run" / "index.npz").exists()


def test_memory(tmp_path):
    """Arrays are saved to a store and read from it."""
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    url = f"memory://{tmp_path.name}/run"
    x = da.arange(1000, chunks=100)
    to_npz(url, {"x": x, "y": x - 1}, shard_size=1600)
    check_same(from_npz(url, "y").compute(), np.arange(-1, 999))


@needs_s3
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_s3():
    """Arrays are saved to S3 and read from it, and a second archive replaces the first."""
    with s3_server() as options:
        x = da.arange(1000, chunks=100)
        for shift in (0, 1):
            to_npz(
                "s3://data/whole-run", {"x": x + shift}, storage_options=options, shard_size=1600
            )
            found = from_npz("s3://data/whole-run", "x", chunks=250, storage_options=options)
            check_same(found.compute(scheduler="threads"), np.arange(1000) + shift)
        with npzkit.open("s3://data/whole-run", storage_options=options) as npz:
            check_same(npz["x"], np.arange(1, 1001))
            assert len(npz.parts("x")) == 10


# -- what is refused ----------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "instead", "expected"),
    [
        pytest.param(
            lambda x: x[x > 7],
            lambda x: {"x": x.compute_chunk_sizes()},
            {"x": [8, 9]},
            marks=pytest.mark.remedy("Compute them first: x.compute_chunk_sizes()."),
        ),
        pytest.param(
            lambda x: x[8:].astype(str).astype(object),
            lambda x: {"x": x.astype("U20")},
            {"x": ["8", "9"]},
            marks=pytest.mark.remedy("Convert the array: x.astype('U20') for text."),
        ),
        pytest.param(
            lambda x: da.ma.masked_equal(x[8:], 9),
            lambda x: {"x": da.ma.getdata(x), "mask": da.ma.getmaskarray(x)},
            {"x": [8, 9], "mask": [False, True]},
            marks=pytest.mark.remedy(
                "Save data and mask as two arrays: dask.array.ma.getdata(x) and getmaskarray(x)."
            ),
        ),
    ],
)
def test_arrays_that_cannot_be_saved(tmp_path, value, instead, expected):
    """Chunks of unknown size, Python objects and masks are refused, with what to do instead."""
    array = value(da.arange(10, chunks=5))
    with pytest.raises(UnsupportedError) as caught:
        to_npz(tmp_path / "run", {"x": array})
    assert caught.value.key == "x"
    assert not (tmp_path / "run").exists()
    to_npz(tmp_path / "run", instead(array))
    with npzkit.open(tmp_path / "run") as npz:
        assert {key: npz[key].tolist() for key in npz} == expected


@pytest.mark.slow
@pytest.mark.parametrize("least", [0, 3, 7, 9, 100])
def test_chunks_without_items(tmp_path, least):
    """What is selected of an array may leave chunks empty, or all of them."""
    x = da.arange(10, chunks=5)
    rows = da.arange(20, chunks=6).reshape(10, 2)
    arrays = {"x": x[x > least], "rows": rows[x > least]}
    to_npz(tmp_path / "run", {key: each.compute_chunk_sizes() for key, each in arrays.items()})
    with npzkit.open(tmp_path / "run") as npz:
        for key, array in arrays.items():
            check_same(npz[key], array.compute())
        assert npz.verify().ok


@pytest.mark.remedy(
    "Name a folder, which gets several files. npzkit.convert(folder, 'a.npz') makes"
)
def test_one_file_is_made_of_a_folder(tmp_path):
    """Tasks cannot write to one file; the folder that they write is converted to one."""
    arrays = {"x": da.arange(10, chunks=5)}
    with pytest.raises(UnsupportedError, match="cannot write to one file"):
        to_npz(tmp_path / "a.npz", arrays)
    to_npz(tmp_path / "run", arrays, shard_size=1)
    assert len(shards(tmp_path / "run")) == 2
    npzkit.convert(tmp_path / "run", tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as npz:
        assert npz["x"].tolist() == list(range(10))


@pytest.mark.parametrize("url", ["a.npz", "s3://b/A.NPZ", "https://example.org/run"])
def test_places_that_cannot_be_written(url):
    """One file and a web server are refused."""
    with pytest.raises(UnsupportedError):
        to_npz(url, {"x": da.arange(3)})


def test_arguments_are_checked_first(tmp_path):
    """Bad keys, options, metadata and attributes are errors before anything is computed."""
    x = da.arange(3)
    bad = [
        (ValueError, {"attrs": {"y": {}}}),
        (ValueError, {"attrs": {"x": {"npzkit.part": 1}}}),
        (TypeError, {"attrs": {"x": {"a": object()}}}),
        (TypeError, {"metadata": {"a": object()}}),
        (ValueError, {"compression": "best"}),
        (ValueError, {"shard_size": "much"}),
    ]
    for error, options in bad:
        with pytest.raises(error):
            to_npz(tmp_path / "run", {"x": x}, **options)
    with pytest.raises(UnsafeNameError):
        to_npz(tmp_path / "run", {"../x": x})
    with pytest.raises(TypeError, match="folder"):
        to_npz(3, {"x": x})
    with pytest.raises(TypeError, match="must be a mapping"):
        to_npz(tmp_path / "run", x)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda block: block[:1], ValueError, "shape"),
        (lambda block: block + 1j, TypeError, "dtype"),
        (lambda block: np.ma.masked_equal(block, 2), NpzkitError, "mask"),
    ],
)
def test_blocks_that_are_not_what_dask_says(tmp_path, function, error, text):
    """A block of another shape or kind is an error that names the array, and nothing is saved."""
    x = da.arange(10, chunks=5).map_blocks(function, dtype="i8", meta=np.empty(0, "i8"))
    with pytest.raises(error, match=text) as caught:
        to_npz(tmp_path / "run", {"x": x})
    assert "'x'" in str(caught.value)
    assert not (tmp_path / "run" / "index.npz").exists()


def test_blocks_of_a_narrower_dtype_are_converted(tmp_path):
    """Blocks get the dtype that the array of dask has, if that loses nothing of their kind."""
    x = da.arange(10, chunks=5).map_blocks(
        lambda b: b.astype("i2"), dtype="i8", meta=np.empty(0, "i8")
    )
    to_npz(tmp_path / "run", {"x": x})
    with npzkit.open(tmp_path / "run") as npz:
        check_same(npz["x"], np.arange(10))


# -- memory -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated", "zstd"])
def test_memory_stays_within_a_chunk_or_two(tmp_path, compression):
    """Reading, computing and writing 6 chunks takes the memory of a chunk and its result."""
    array = np.random.default_rng(0).integers(0, 99, (6, 250_000))
    npzkit.save(tmp_path / "a.npz", {"x": array}, compression=compression)
    x = from_npz(tmp_path / "a.npz", "x", chunks=(1, 250_000))
    tracemalloc.start()
    try:
        to_npz(tmp_path / "run", {"x": x + 1}, shard_size=1, compression=compression)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * array[0].nbytes + 4_000_000
