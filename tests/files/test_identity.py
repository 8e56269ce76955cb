"""Files that are replaced by others of the same size and time, as each reader notices."""

from __future__ import annotations

import concurrent.futures
import io
import multiprocessing
import os
import pickle
import shutil
import zlib
from pathlib import Path

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore
from npzkit.datasets import reopened
from npzkit.errors import NpzkitError, StaleArchiveError
from replacing import WAYS, replace_quietly
from systems import replaces_open_files

OLD, NEW = np.arange(600.0), np.arange(600.0)[::-1].copy()


def bytes_of(array, **options):
    stream = io.BytesIO()
    npzkit.save(stream, {"x": array}, **options)
    return stream.getvalue()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(bytes_of(OLD))
    return path


def touch(path):
    """Change what programs change of a file that stays the same: its mode, and its links."""
    mode = os.stat(path).st_mode & 0o777
    os.chmod(path, mode ^ 0o100)
    os.chmod(path, mode)
    os.link(path, f"{path}.snapshot")


def copied(path):
    """Put a copy with its times in a file's place, as on another host."""
    shutil.copy2(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def first_of(path, pickled):
    """Return the first value of a pickled archive, or the name of the error, in any process."""
    try:
        with pickle.loads(pickled) as npz:
            return float(npz["x"][0])
    except NpzkitError as error:
        return type(error).__name__


@pytest.mark.parametrize("way", WAYS)
def test_an_open_archive(path, way):
    """It reads what it opened if the file was renamed over, and is stale if it was rewritten."""
    with npzkit.open(path) as npz:
        lazy = npz.lazy("x")
        assert lazy[0] == OLD[0]
        replace_quietly(path, bytes_of(NEW), way)
        if way == "renamed":
            assert lazy[0] == OLD[0]
        else:
            with pytest.raises(StaleArchiveError):
                lazy[0]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_pickled_archive(path, way):
    """It is refused in this process and in others."""
    with npzkit.open(path) as npz:
        pickled = pickle.dumps(npz)
    replace_quietly(path, bytes_of(NEW), way)
    assert first_of(path, pickled) == "StaleArchiveError"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(first_of, path, pickled).result(60) == "StaleArchiveError"


@pytest.mark.parametrize("change", [touch, pytest.param(copied, marks=replaces_open_files)])
def test_what_has_not_changed(path, change):
    """A mode, a hard link or a copy with its times makes nothing stale: not what is open, not what was pickled, not many."""
    npz, many = npzkit.open(path), npzkit.open_many([path], axis=None)
    lazy, joined, pickled, others = npz.lazy("x"), many.lazy("x"), pickle.dumps(npz), pickle.dumps(many)  # fmt: skip
    with npz, many:
        assert (lazy[1], joined[0, 1]) == (OLD[1], OLD[1])
        change(path)
        for _ in range(2):
            assert (lazy[1], joined[0, 1]) == (OLD[1], OLD[1])
            assert np.array_equal(many.samples[0]["x"], OLD)
        again, elsewhere = pickle.loads(pickled), pickle.loads(others)
        with again, elsewhere:
            assert np.array_equal(again["x"], OLD)
            assert np.array_equal(elsewhere["x"], [OLD])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("warm", [False, True])
def test_many_files(tmp_path, way, warm):
    """Each way to read a file that was replaced is an error that names it, also after a pickle."""
    for number in range(3):
        (tmp_path / f"s{number}.npz").write_bytes(bytes_of(OLD + number))
    many = npzkit.open_many(f"{tmp_path}/s*.npz", axis=None)
    if warm:
        assert (many.lazy("x")[1, 0], many.samples[1]["x"][0]) == (1, 1)
    pickled = pickle.dumps(many)
    replace_quietly(tmp_path / "s1.npz", bytes_of(NEW), way)
    with many, pickle.loads(pickled) as other:
        for files in (many, other):
            for read in (
                lambda files: files.samples[1],
                lambda files: files.lazy("x")[1, 0],
                lambda files: files["x"],
            ):
                with pytest.raises(StaleArchiveError, match=r"s1\.npz"):
                    read(files)
            assert files.samples[2]["x"][0] == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_shard(tmp_path, way):
    """A shard that was replaced is stale; one that is open and was renamed over reads on."""
    folder = tmp_path / "run"
    with npzkit.ShardedWriter(folder) as w:
        w.add("x", OLD)
        w.commit()
    (shard,) = folder.glob("shard-*.npz")
    data = shard.read_bytes()
    with npzkit.open(shard) as npz:
        end = npz.info("x").data_offset + OLD.nbytes
    start = data.index(b"\x93NUMPY")
    other = data.replace(OLD.tobytes(), NEW.tobytes())
    crcs = [zlib.crc32(image[start:end]).to_bytes(4, "little") for image in (data, other)]
    with npzkit.open(folder) as npz:
        assert npz.lazy("x")[1] == OLD[1]
        replace_quietly(shard, other.replace(*crcs), way)
        if way == "renamed":
            assert npz.lazy("x")[1] == OLD[1]
        else:
            with pytest.raises(StaleArchiveError):
                npz.lazy("x")[1]
        pickled = pickle.dumps(npz)
    with pickle.loads(pickled) as npz, pytest.raises(StaleArchiveError, match="replaced"):
        npz["x"]


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint(tmp_path, way):
    """What is known of a step is forgotten when its file is replaced."""
    with CheckpointStore(tmp_path / "run") as store:
        store.save(1, {"x": OLD}, metrics={"loss": 1.5})
        store.save(2, {"x": OLD}, metrics={"loss": 2.5})
        assert (store.metrics(1)["loss"], store.best("loss")) == (1.5, 1)
        with CheckpointStore(tmp_path / "other") as other:
            other.save(1, {"x": NEW}, metrics={"loss": 3.5})
            data = Path(other.path(1)).read_bytes()
        replace_quietly(Path(store.path(1)), data, way)
        assert (store.metrics(1)["loss"], store.best("loss")) == (3.5, 2)


def test_a_map_that_is_flushed_keeps_its_own_archive_fresh(path):
    """Whoever changes a file through a map reads on, though the times of the file change."""
    with npzkit.open(path, mmap_mode="r+") as npz:
        mapped, lazy = npz["x"], npz.lazy("x")
        for value in range(3):
            mapped[0] = value
            mapped.flush()
            assert (lazy[0], npz.read("x")[0]) == (value, value)
        again = pickle.loads(pickle.dumps(npz))
        with again:
            assert again["x"][0] == 2


def test_archives_that_dask_keeps_open(path, monkeypatch):
    """An archive that is opened again later is not taken for one that is kept open."""
    kept = reopened.Reopened(npzkit.open(path))
    for way in WAYS:
        replace_quietly(path, bytes_of(NEW), way)
        assert np.array_equal(reopened.Reopened(npzkit.open(path)).open()["x"], NEW)
        replace_quietly(path, bytes_of(OLD), way)
        assert np.array_equal(reopened.Reopened(npzkit.open(path)).open()["x"], OLD)
    kept.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_data_set_of_xarray(path, way):
    """A file that is opened again has its own data; one that was rewritten is not read further."""
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    npzkit.save(path, {"x": OLD})
    older = xarray.open_dataset(path, engine="npzkit", dims={"x": ["t"]})
    assert older.x[0] == OLD[0]
    replace_quietly(path, bytes_of(NEW), way)
    with xarray.open_dataset(path, engine="npzkit", dims={"x": ["t"]}) as newer:
        assert np.array_equal(newer.x, NEW)
    if way == "in place":
        with pytest.raises(StaleArchiveError):
            older.x[1].load()
    older.close()
