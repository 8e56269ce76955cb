"""`npzkit.dask.from_npz`: arrays of archives as arrays of dask."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys

import npzkit
import numpy as np
import pytest
from archives import packed
from children import forked, read_rest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.datasets import reopened
from npzkit.errors import (
    DifferentFilesError,
    MemberNotFoundError,
    StaleArchiveError,
    UnsupportedError,
)
from range_server import RangeServer
from replacing import WAYS, replace_quietly
from sameness import check_same
from strategies import any_arrays

dask = pytest.importorskip("dask", reason="dask is not installed")
da = pytest.importorskip("dask.array", reason="dask is not installed")

from npzkit.dask import from_npz  # noqa: E402 - after the check that dask is installed

pytestmark = pytest.mark.usefixtures("one_thread")


def sharded(folder, array, rows, **options):
    """Write an array as a sharded archive, `rows` per shard."""
    with npzkit.ShardedWriter(folder, shard_size=1, **options) as w:
        for start in range(0, len(array), rows):
            part = array[start : start + rows]
            w.add("x", part, offset=(start,) + (0,) * (array.ndim - 1), global_shape=array.shape)
        w.commit()
    return folder


def most_bytes(graph):
    return max(len(pickle.dumps(task)) for task in dict(graph).values())


# -- values -------------------------------------------------------------------


def test_every_kind_of_array(tmp_path, arrays):
    """Shapes, dtypes and values are those of the archive: records, dates, text, 0-d, empty."""
    npzkit.save(tmp_path / "a.npz", arrays, compression="deflated")
    for key, expected in arrays.items():
        found = from_npz(tmp_path / "a.npz", key)
        assert (found.dtype, found.shape) == (np.asarray(expected).dtype, np.shape(expected))
        assert found._meta.dtype == found.dtype
        check_same(np.asarray(found.compute()), np.asarray(expected))


@pytest.mark.filterwarnings("ignore:Stored array in format")
@given(any_arrays(), st.data())
def test_any_array_in_any_chunks(tmp_path_factory, array, data):
    """Any array in any chunks is computed as it was saved, and so is a slice of it."""
    path = tmp_path_factory.mktemp("any") / "a.npz"
    npzkit.save(path, {"x": array})
    chunks = tuple(data.draw(st.integers(1, max(length, 1))) for length in array.shape)
    found = from_npz(path, "x", chunks=chunks)
    assert found.dtype == array.dtype
    # The item of an array without dimensions has the byte order of the machine.
    check_same(np.asarray(found.compute(), None if array.ndim else array.dtype), array)
    cut = tuple(data.draw(st.slices(length)) for length in array.shape)
    if array.ndim:
        check_same(found[cut].compute(), array[cut])


def test_sharded_archives_and_open_ones(tmp_path):
    """A folder of shards, its index, and open archives that are closed later are all read."""
    array = np.arange(60).reshape(20, 3)
    folder = sharded(tmp_path / "run", array, 6)
    npzkit.save(tmp_path / "a.npz", {"x": array})
    with npzkit.open(folder) as npz, npzkit.open(tmp_path / "a.npz") as one:
        found = [from_npz(each, "x") for each in (folder, folder / "index.npz", npz, one)]
    for each in found:
        check_same(each.compute(), array)


def test_bfloat16_stays_bfloat16(tmp_path):
    """A dtype that NPY cannot name is the same in the array of dask."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    npzkit.save(tmp_path / "a.npz", {"x": array})
    found = from_npz(tmp_path / "a.npz", "x", chunks=2)
    assert found.dtype == array.dtype
    check_same(found.compute(), array)


# -- chunks -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated", "zstd"])
def test_chunks_follow_the_file(tmp_path, compression):
    """Chunks are complete rows, a multiple of those in the file, and as large as dask wants."""
    array = np.zeros((2000, 1000))
    npzkit.save(
        tmp_path / "a.npz", {"x": array, "f": np.asfortranarray(array)}, compression=compression
    )
    with npzkit.open(tmp_path / "a.npz") as npz:
        rows = npz.lazy("x").chunks[0]
    assert from_npz(tmp_path / "a.npz", "x").chunks == ((2000,), (1000,))
    with dask.config.set({"array.chunk-size": "4MiB"}):
        found = from_npz(tmp_path / "a.npz", "x")
        assert found.chunks[1] == (1000,)
        assert all(length % rows == 0 for length in found.chunks[0][:-1])
        assert 2 << 20 < found.chunks[0][0] * 8000 <= 4 << 20
        assert from_npz(tmp_path / "a.npz", "f").chunks[0] == (2000,)


def test_long_rows_are_split_along_the_row(tmp_path):
    """If a row is larger than a chunk, a chunk is a piece of one row."""
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros((3, 40_000))})
    with dask.config.set({"array.chunk-size": "128KiB"}):
        found = from_npz(tmp_path / "a.npz", "x")
    assert found.chunks[0] == (1, 1, 1)
    assert max(found.chunks[1]) <= 16_384


def test_chunks_follow_shards(tmp_path):
    """A chunk is one shard, several complete ones if they are small, or a piece of a large one."""
    folder = sharded(tmp_path / "run", np.zeros((100, 10)), 30)
    sizes = {2400: (30, 30, 30, 10), 4800: (60, 40), 1600: (15,) * 6 + (10,)}
    for size, expected in sizes.items():
        with dask.config.set({"array.chunk-size": f"{size}B"}):
            assert from_npz(folder, "x").chunks == (expected, (10,)), size
    assert from_npz(folder, "x").chunks == ((100,), (10,))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (4, ((4, 4, 2), (4, 2))),
        ((5, -1), ((5, 5), (6,))),
        (((3, 7), (6,)), ((3, 7), (6,))),
        ({0: 6}, ((6, 4), (6,))),
        ("auto", ((10,), (6,))),
        ((2, "auto"), ((2,) * 5, (6,))),
    ],
)
def test_chunks_may_be_given(tmp_path, chunks, expected):
    """`chunks=` is as dask's, and the array is the same."""
    array = np.arange(60).reshape(10, 6)
    npzkit.save(tmp_path / "a.npz", {"x": array})
    found = from_npz(tmp_path / "a.npz", "x", chunks=chunks)
    assert found.chunks == expected
    check_same(found.compute(), array)


# -- names --------------------------------------------------------------------


def test_the_same_data_has_the_same_name(tmp_path):
    """The name does not depend on the path or the compression, but on data, chunks and shape."""
    array = np.arange(6)
    npzkit.save(tmp_path / "a.npz", {"x": array})
    npzkit.save(tmp_path / "b.npz", {"x": array, "y": array + 1}, compression="deflated")
    name = from_npz(tmp_path / "a.npz", "x").name
    assert name == from_npz(tmp_path / "b.npz", "x").name
    assert name.startswith("from-npz-")
    assert name != from_npz(tmp_path / "b.npz", "y").name
    assert name != from_npz(tmp_path / "a.npz", "x", chunks=2).name
    npzkit.save(tmp_path / "a.npz", {"x": array + 2})
    assert name != from_npz(tmp_path / "a.npz", "x").name


def test_names_of_sharded_archives(tmp_path):
    """Copies of a sharded archive have the same name, and a change of one part another."""
    array = np.arange(40)
    folder = sharded(tmp_path / "run", array, 4)
    name = from_npz(folder, "x").name
    shutil.copytree(folder, tmp_path / "copy")
    assert from_npz(tmp_path / "copy", "x").name == name
    array[17] = 0
    assert from_npz(sharded(folder, array, 4), "x").name != name


def test_equal_crcs_are_not_equal_data(tmp_path, monkeypatch):
    """Arrays that have the same CRC-32 by chance have different names."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(6), "y": np.arange(1, 7)})
    infos = npzkit.NpzFile.info
    monkeypatch.setattr(npzkit.NpzFile, "info", lambda npz, key: infos(npz, key)._replace(crc32=7))
    assert from_npz(tmp_path / "a.npz", "x").name != from_npz(tmp_path / "a.npz", "y").name


# -- tasks --------------------------------------------------------------------


def test_tasks_are_small(tmp_path):
    """A task is pickled to less than a kilobyte or two, however large the archive is."""
    npzkit.save(
        tmp_path / "a.npz", {f"k{n}": np.arange(3) for n in range(300)} | {"x": np.zeros(1000)}
    )
    folder = sharded(tmp_path / "run", np.zeros((500, 2)), 5)
    for found in (
        from_npz(tmp_path / "a.npz", "x", chunks=10),
        from_npz(folder, "x", chunks=(50, 2)),
    ):
        assert most_bytes(found.__dask_graph__()) < 2000


def test_a_slice_reads_only_its_bytes():
    """A few rows of an array behind a URL take the ends of their chunks, not a block."""
    array = np.arange(400_000.0).reshape(1000, 400)
    with RangeServer().running() as server:
        found = from_npz(server.put(packed({"x": array, "y": np.zeros(20_000)})), "x")
        server.forget()
        check_same(found[500:502].compute(), array[500:502])
        assert server.size <= 2 << 16


def test_all_of_an_array_is_checked_by_its_crc(tmp_path):
    """Damage is found if a chunk is a complete array, or a complete part of one."""
    array = np.arange(1000)
    npzkit.save(tmp_path / "a.npz", {"x": array})
    folder = sharded(tmp_path / "run", array, 500)
    shard = sorted(path for path in os.listdir(folder) if "shard-" in path)[0]
    for path in (tmp_path / "a.npz", folder / shard):
        data = bytearray(path.read_bytes())
        at = data.index((100).to_bytes(8, "little") + (101).to_bytes(8, "little"))
        data[at] ^= 1
        path.write_bytes(data)
    for path in (tmp_path / "a.npz", folder):
        with pytest.raises(npzkit.errors.ChecksumError):
            from_npz(path, "x").compute()


def test_a_file_that_comes_back(tmp_path):
    """A task fails while the file is away, and reads it afterwards."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(6)})
    found = from_npz(path, "x", chunks=3)
    reopened._RECENT.clear()  # as in a new process
    path.rename(tmp_path / "b.npz")
    with pytest.raises(FileNotFoundError):
        found.compute()
    (tmp_path / "b.npz").rename(path)
    assert found.sum().compute() == 15


def test_a_program_in_another_process_refuses_a_changed_archive(tmp_path):
    """A graph that was pickled computes the data that it was made of, or fails."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(6)})
    found = from_npz(tmp_path / "a.npz", "x", chunks=3)
    pickled = pickle.dumps(found)
    assert pickle.loads(pickled).sum().compute() == 15
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(7)})
    reopened._RECENT.clear()  # as in a new process
    with pytest.raises(StaleArchiveError, match="changed"):
        pickle.loads(pickled).compute()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_file_replaced_by_one_of_the_same_size_and_time(tmp_path, way):
    """A new array has the new data, and another name; an older one its own data, or is refused."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(6)})
    older = from_npz(path, "x", chunks=3)
    assert older.sum().compute() == 15
    npzkit.save(tmp_path / "b.npz", {"x": np.arange(1, 7)})
    replace_quietly(path, (tmp_path / "b.npz").read_bytes(), way)
    newer = from_npz(path, "x", chunks=3)
    assert newer.name != older.name
    assert newer.sum().compute() == 21
    if way == "renamed":
        assert older.sum().compute() == 15
        # Other processes have no open file with the old data.
        with pytest.raises(StaleArchiveError, match="changed"):
            older.sum().compute(scheduler="processes")
    else:
        with pytest.raises(StaleArchiveError, match="changed"):
            older.sum().compute()


def test_a_replaced_sharded_archive_is_refused(tmp_path):
    """Shards that were not open yet are those of another archive after a commit."""
    folder = sharded(tmp_path / "run", np.arange(8), 2)
    found = from_npz(folder, "x", chunks=2)
    sharded(folder, np.arange(1, 9), 2)
    with pytest.raises(StaleArchiveError, match="replaced"):
        found.compute()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_processes_read_on_their_own(tmp_path):
    """A forked child computes what its parent has read from, and both read on."""
    array = np.arange(3000)
    npzkit.save(tmp_path / "a.npz", {"x": array}, compression="deflated")
    found = from_npz(tmp_path / "a.npz", "x", chunks=100)
    assert found[:100].sum().compute() == array[:100].sum()
    with forked(lambda pipe: os.write(pipe, found.sum().compute().tobytes())) as (_, pipe):
        check_same(found.compute(), array)
        assert read_rest(pipe) == array.sum().tobytes()


def test_persist_and_sharing_of_equal_arrays(tmp_path):
    """`persist` keeps chunks in memory; two arrays of the same data are one in a graph."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(6)})
    shutil.copy(tmp_path / "a.npz", tmp_path / "b.npz")
    kept = from_npz(tmp_path / "a.npz", "x", chunks=2).persist()
    os.remove(tmp_path / "a.npz")
    assert kept.sum().compute() == 15
    two = from_npz(tmp_path / "b.npz", "x") + from_npz(tmp_path / "b.npz", "x")
    assert sum(layer.startswith("from-npz") for layer in two.dask.layers) == 1


# -- what is refused ----------------------------------------------------------


def test_what_is_refused(tmp_path):
    """A missing key, Python objects and what is no path raise errors that say so, at once."""
    objects = np.array([None, "a"], object)
    np.savez(tmp_path / "a.npz", x=np.arange(3), o=objects)
    with pytest.raises(MemberNotFoundError, match="'y'"):
        from_npz(tmp_path / "a.npz", "y")
    with pytest.raises(UnsupportedError, match="Python objects"):
        from_npz(tmp_path / "a.npz", "o")
    with pytest.raises(FileNotFoundError):
        from_npz(tmp_path / "b.npz", "x")
    with pytest.raises(TypeError, match="path"):
        from_npz(5, "x")
    with npzkit.open(packed({"x": objects[:0].astype("i4")})) as npz, pytest.raises(TypeError):
        from_npz(npz, "x")


def test_npzkit_imports_dask_when_it_is_used():
    """`import npzkit` leaves dask alone, and without dask the error says what to install."""
    code = (
        "import sys, npzkit; assert 'dask' not in sys.modules; sys.modules['dask'] = None\n"
        "try: npzkit.dask\nexcept AttributeError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert 'pip install "npzkit[dask]"' in found.stdout, found.stderr


# -- several archives ---------------------------------------------------------


def steps(folder, count, rows=3):
    """Write archives step0.npz, step1.npz, ..., and return what they have together."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        npzkit.save(
            folder / f"step{number}.npz", {"x": np.arange(rows * 4).reshape(rows, 4) + number}
        )
    return np.concatenate(
        [np.arange(rows * 4).reshape(rows, 4) + number for number in range(count)]
    )


@pytest.mark.slow
def test_several_archives_are_one_array(tmp_path):
    """A pattern and a list join archives along the first axis, numbers in order of their value."""
    expected = steps(tmp_path / "runs", 40)
    for url in (
        str(tmp_path / "runs" / "*.npz"),
        [tmp_path / "runs" / f"step{number}.npz" for number in range(40)],
    ):
        found = from_npz(url, "x")
        assert found.chunks == ((48, 48, 24), (4,))
        check_same(found.compute(), expected)
        check_same(found[5:-7:4, 1:].compute(), expected[5:-7:4, 1:])
        check_same(found[[70, 3, 3, 110]].compute(), expected[[70, 3, 3, 110]])
        check_same(from_npz(url, "x", chunks=(50, 2)).compute(), expected)
        # A task has the paths of its archives, of 32 at most.
        assert most_bytes(found.__dask_graph__()) < 6000 + 32 * len(str(tmp_path))


def test_large_archives_of_a_list_keep_their_chunks(tmp_path):
    """Archives that are larger than a chunk are not joined, and shards of a folder neither."""
    array = np.arange(400).reshape(40, 10)
    npzkit.save(tmp_path / "a.npz", {"x": array})
    folder = sharded(tmp_path / "run", array, 10)
    with dask.config.set({"array.chunk-size": "1000B"}):
        found = from_npz([tmp_path / "a.npz", folder], "x")
    assert found.chunks == ((10, 10, 10, 10, 10, 10, 10, 10), (10,))
    check_same(found.compute(), np.concatenate([array, array]))


def test_names_of_several_archives(tmp_path):
    """The name depends on the data, and on its order, but not on paths."""
    steps(tmp_path / "a", 3)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    names = [from_npz(str(tmp_path / folder / "*.npz"), "x").name for folder in "ab"]
    assert names[0] == names[1]
    npzkit.save(tmp_path / "b" / "step1.npz", {"x": np.zeros((3, 4), int)})
    assert from_npz(str(tmp_path / "b" / "*.npz"), "x").name != names[0]


@pytest.mark.remedy("Leave the file out.")
def test_archives_that_do_not_fit(tmp_path):
    """Files of another dtype or shape are refused by name, and so is an empty list."""
    files = [tmp_path / f"{name}.npz" for name in "abcd"]
    arrays = [np.zeros((2, 3)), np.zeros((2, 4)), np.zeros((2, 3), "f4"), np.float64(1)]
    for file, array in zip(files, arrays, strict=True):
        npzkit.save(file, {"x": array})
    for wrong in files[1:]:
        with pytest.raises(DifferentFilesError, match=wrong.name):
            from_npz([files[0], wrong], "x")
    assert from_npz([files[0]], "x").shape == (2, 3)
    with pytest.raises(ValueError, match="axis"):
        from_npz([files[3], files[3]], "x")
    with pytest.raises(ValueError, match="empty"):
        from_npz([], "x")
    with pytest.raises(FileNotFoundError):
        from_npz(str(tmp_path / "z*.npz"), "x")


def test_strings_of_several_archives_get_the_widest(tmp_path):
    """Text of different widths is joined without a loss."""
    npzkit.save(tmp_path / "a.npz", {"x": np.array(["a", "b"])})
    npzkit.save(tmp_path / "b.npz", {"x": np.array(["long"])})
    found = from_npz([tmp_path / "a.npz", tmp_path / "b.npz"], "x")
    check_same(found.compute(), np.array(["a", "b", "long"]))
