"""An open archive that is pickled."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle

import npzkit
import numpy as np
import pytest
from archives import same
from npzkit.checkpoint import CheckpointStore
from npzkit.errors import LimitExceededError, StaleArchiveError, ZipFormatError


@pytest.mark.remedy("Open it again by its path.")
def test_pickling_by_path(path, arrays):
    """A pickled archive is opened again by its path, with its options."""
    with npzkit.open(path, limits=npzkit.Limits(member_size=10_000)) as npz:
        for other in (pickle.loads(pickle.dumps(npz)), copy.copy(npz)):
            with other:
                assert same(other["fortran"], arrays["fortran"])
                with pytest.raises(LimitExceededError):
                    other["weights"]
        data = pickle.dumps(npz)
    npzkit.save(path, {"weights": np.zeros(3)})
    with pickle.loads(data) as npz:
        for use in (
            lambda: npz["weights"],
            lambda: npz.files,
            lambda: "x" in npz,
            lambda: len(npz),
        ):
            with pytest.raises(StaleArchiveError, match="changed since the archive was pickled"):
                use()
    with npzkit.open(path) as npz:
        assert npz["weights"].tolist() == [0, 0, 0]
    with npzkit.open(path.read_bytes()) as npz, pytest.raises(TypeError, match="path"):
        pickle.dumps(npz)


def _sum(array):
    """Return the sum of an array, or of the array x of an archive."""
    return np.sum(array["x"] if isinstance(array, npzkit.NpzFile) else array)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_pool_that_cannot_open_an_archive_again(tmp_path, method):
    """The task raises the error, whatever it is. If unpickling raised it, the pool would hang."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("the system has no fork")
    path = tmp_path / "a.npz"
    ways = {
        StaleArchiveError: lambda: npzkit.save(path, {"x": np.arange(5.0)}),
        ZipFormatError: lambda: path.write_bytes(b"nothing"),
        FileNotFoundError: path.unlink,
    }
    with multiprocessing.get_context(method).Pool(1) as pool:
        for expected, change in ways.items():
            npzkit.save(path, {"x": np.arange(4.0)})
            with npzkit.open(path) as npz:
                given = npz, npz.lazy("x")
                change()
                for each in given:
                    with pytest.raises(expected):
                        pool.apply_async(_sum, (each,)).get(timeout=60)


def test_a_scheduler_that_lacks_the_file(tmp_path):
    """It passes on what it unpickled, to a process that has the file."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(4.0)})
    with npzkit.open(path, verify=False) as npz:
        data = pickle.dumps((npz, npz.lazy("x")))
    path.rename(tmp_path / "b.npz")
    passed_on = pickle.loads(data)
    for each in passed_on:
        with pytest.raises(FileNotFoundError):
            _sum(each)
    data = pickle.dumps(passed_on)
    (tmp_path / "b.npz").rename(path)
    npz, lazy = pickle.loads(data)
    with npz:
        assert _sum(npz) == _sum(lazy) == 6


class Measured(npzkit.NpzFile):
    def __init__(self, path, unit):
        super().__init__(path, verify=False)
        self.unit = unit
        self.first = self.lazy("weights")


def test_a_subclass_keeps_its_attributes(path, arrays):
    """Pickled or copied, whatever its `__init__` takes."""
    with Measured(path, "m") as npz:
        for again in (lambda npz: pickle.loads(pickle.dumps(npz)), copy.copy, copy.deepcopy):
            with again(npz) as other:
                assert type(other) is Measured
                assert other.unit == "m"
                assert same(other.first[...], arrays["weights"])
                assert same(other["weights"], arrays["weights"])
        assert same(npz["weights"], arrays["weights"])
    with npzkit.open(path) as npz:
        # A graph of dask has thousands of them.
        assert b"max_header_size" not in pickle.dumps(npz)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("way", [lambda npz: pickle.loads(pickle.dumps(npz)), copy.copy])
def test_what_was_unpickled_need_not_be_closed(tmp_path, way):
    """A pool unpickles an archive for each task, which has no `with` for it."""
    folder = tmp_path / "run"
    with npzkit.ShardedWriter(folder) as w:
        w["x"] = np.arange(3)
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    for place in (tmp_path / "a.npz", folder):
        with npzkit.open(place) as npz:
            assert way(npz)["x"].tolist() == [0, 1, 2]
            assert way(npz.lazy("x"))[1:].tolist() == [1, 2]
        gc.collect()


def test_what_is_reported_can_be_pickled(tmp_path):
    """What describes an archive, and all reports, come back from a pickle."""
    paths = [tmp_path / f"{name}.npz" for name in "abcd"]
    for path in paths[:2]:
        npzkit.save(path, {"x": np.arange(4.0)})
    with npzkit.NpzWriter(paths[0], "a") as w:
        w.attrs("x")["unit"] = "m"
    with npzkit.open(paths[0]) as npz:
        found = [npz.info("x"), npz.archive_info(), npz.verify()]
    found += [
        npzkit.diff(*paths[:2]),
        npzkit.repair(paths[0], paths[2]),
        npzkit.pack(paths[3], [paths[0]]),
        npzkit.extract(paths[0], tmp_path / "arrays"),
        npzkit.Limits(member_size=3),
    ]
    for thing in found:
        assert pickle.loads(pickle.dumps(thing)) == thing
    statistics = npzkit.statistics(paths[0], "x")
    assert str(pickle.loads(pickle.dumps(statistics))) == str(statistics)


@pytest.mark.parametrize("way", [npzkit.NpzWriter, npzkit.ShardedWriter, CheckpointStore])
def test_what_writes_is_not_pickled(tmp_path, way):
    """The error of a writer or a store says what a program of several processes does instead."""
    with way(tmp_path / "a") as writer:
        if way is CheckpointStore:
            writer.save(1, {"x": np.zeros(3)})
        else:
            writer.add("x", np.zeros(3))
        for attempt in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="make one in each process"):
                attempt(writer)
