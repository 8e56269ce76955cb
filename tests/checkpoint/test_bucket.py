"""Checkpoints behind a URL: writers that meet, and leftovers.

What a folder does too is tested with both, by the fixture `place`.
"""

from __future__ import annotations

import subprocess
import sys

import npzkit
import numpy as np
import pytest
from npzkit.archive.save import PreparedArchive
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.checkpoint.retention import Retention
from npzkit.errors import ArchiveLockedError, NoCheckpointError, UnsupportedError
from npzkit.stores import upload_sink
from npzkit.stores.versions import Version
from s3 import needs_s3, s3_server

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

URL = "memory://runs/a"


@pytest.fixture(autouse=True)
def memory():
    """The store in memory, which is empty."""
    file_system = fsspec.filesystem("memory")
    yield file_system
    file_system.store.clear()
    file_system.pseudo_dirs[:] = [""]


@pytest.fixture
def store():
    with CheckpointStore(URL) as store:
        yield store


def filled(store, count=3):
    """Save steps 0, 10, 20, ... whose arrays say which step they are of."""
    for step in range(0, 10 * count, 10):
        store.save(step, {"w": np.full(100, step)}, metrics={"loss": 100 - step})
    return store


def test_names(store):
    """They are those of a folder, at the URL."""
    assert store.save(100, {"w": np.ones(3)}).path == f"{URL}/step_00000100.npz" == store.path(100)
    assert npzkit.open(store.path(100)).files == ["w"]
    assert store.folder == URL
    assert repr(store) == f"<CheckpointStore '{URL}': 1 steps, the newest is 100>"


def test_other_objects_are_no_steps(store, memory):
    """Neither objects of other names nor what is in folders."""
    filled(store)
    for name in ("step_1.npz", "step_0000000010.npz", "other", "step_00000007.npz/x", "b/c"):
        memory.pipe_file(f"/runs/a/{name}", b"x")
    assert store.steps == (0, 10, 20)


PROGRAM = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
import fsspec, numpy as np
from npzkit.checkpoint import CheckpointStore

memory = type(fsspec.filesystem("memory"))
put, pool = memory.pipe_file, ThreadPoolExecutor()
# Python 3.12 starts no thread at its end.
pool.submit(int).result()

def put_by_a_pool(*args, **options):
    threading.main_thread().join(0.2)
    pool.submit(put, *args, **options).result()
    print("saved", memory.store.keys())

memory.pipe_file = put_by_a_pool
CheckpointStore("memory://runs/a", background=True).save(1, {"w": np.ones(3)})
"""


@pytest.mark.slow
def test_python_ends_while_a_save_is_under_way():
    """The pools that a store's library uses last until the step is saved."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert "/runs/a/step_00000001.npz" in found.stdout


def test_a_save_that_fails(store, monkeypatch):
    """The older step stays, and no new one is listed."""
    filled(store, 1)
    from npzkit.stores.fsspec_upload import FsspecUpload

    def put(self, data):
        raise OSError("no room")

    monkeypatch.setattr(FsspecUpload, "put", put)
    for step in (0, 1):
        with pytest.raises(OSError, match="no room"):
            store.save(step, {"w": np.ones(3)})
    assert store.steps == (0,)
    assert store.load().tree["w"].tolist() == [0] * 100


def meet(monkeypatch, other):
    """Have another store save step 5 when the next save has begun."""
    write = PreparedArchive.write

    def write_late(archive, *args, **options):
        monkeypatch.setattr(PreparedArchive, "write", write)
        other.save(5, {"w": np.ones(3)})
        write(archive, *args, **options)

    monkeypatch.setattr(PreparedArchive, "write", write_late)


# -- other processes ------------------------------------------------------------


def test_a_step_that_is_removed_while_it_is_read(store, memory):
    """It is gone, and not damaged: the newest one that is there is loaded."""
    filled(store)
    opened = type(store._storage).open

    def open_late(self, step, **options):
        npz = opened(self, step, **options)
        if step == 20:
            memory.rm("/runs/a/step_00000020.npz")
        return npz

    big = np.random.default_rng(0).random(50_000)
    store.save(20, {"w": big})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store._storage), "open", open_late)
        assert store.load().step == 10
    with pytest.raises(NoCheckpointError):
        store.load(20)


@pytest.mark.remedy("Let one store write here at a time.")
@pytest.mark.parametrize("is_new", [True, False])
def test_two_writers_of_one_step(store, monkeypatch, is_new):
    """One of them is told, and the other's step stays."""
    if not is_new:
        store.save(5, {"w": np.zeros(3)})
    meet(monkeypatch, CheckpointStore(URL))
    with pytest.raises(ArchiveLockedError, match="step 5 at the same time"):
        store.save(5, {"w": np.full(3, 2)})
    assert store.load(5).tree["w"].sum() == 3
    store.save(5, {"w": np.full(3, 2)})
    assert store.load(5).tree["w"].sum() == 6


def save_again_before_removal(monkeypatch, url, **options):
    """Have another store save step 1 again when the next removal by a policy has begun."""
    apply = Retention._remove

    def remove_late(self, step, seen):
        monkeypatch.setattr(Retention, "_remove", apply)
        with pytest.warns(RuntimeWarning, match="newer steps exist: 2"):
            CheckpointStore(url, **options).save(1, {"w": np.full(3, 7)})
        return apply(self, step, seen)

    monkeypatch.setattr(Retention, "_remove", remove_late)


def test_a_step_that_is_saved_again_before_it_is_removed(monkeypatch):
    """A policy removes the step that it saw, and no other one of that number."""
    with CheckpointStore(URL, keep=latest(1)) as store:
        store.save(1, {"w": np.zeros(3)})
        save_again_before_removal(monkeypatch, URL)
        assert store.save(2, {"w": np.zeros(3)}).removed == ()
        assert store.load(1).tree["w"].sum() == 21
        assert store.save(3, {"w": np.zeros(3)}).removed == (1, 2)


def test_what_needs_files_is_refused(store):
    """Maps are for folders."""
    filled(store, 1)
    with pytest.raises(UnsupportedError, match="cannot be mapped"):
        store.load(mmap_mode="r")


def test_storage_options_are_for_urls(tmp_path):
    """They are refused with a folder; a URL of files is a folder."""
    with pytest.raises(ValueError, match="storage_options"):
        CheckpointStore(tmp_path, storage_options={"a": 1})
    with CheckpointStore(f"file://{tmp_path.as_posix()}/run") as store:
        store.save(1, {"w": np.ones(3)})
    assert (tmp_path / "run" / "step_00000001.npz").exists()


# -- S3 -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3():
    with s3_server() as options:
        yield options


@needs_s3
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
class TestS3:
    """Checkpoints on a server of S3."""

    def test_a_run(self, s3, monkeypatch):
        """Steps of one request and of several are saved, kept, loaded and removed."""
        monkeypatch.setattr(upload_sink, "PART_SIZE", 5 << 20)
        url = "s3://data/run"
        with CheckpointStore(url, latest(2), background=True, storage_options=s3) as store:
            for step, size in ((1, 10), (2, 700_000), (3, 10), (2, 10)):
                saving = store.save(step, {"w": np.full(size, step)}, {"loss": step})
            saving.wait()
            assert store.steps == (2, 3)
            assert store.load(2).tree["w"].size == 10
            assert store.best("loss") == 2
            assert store.verify().ok
            assert sum(file.size for file in store._files(2)) < 1000
            store.delete(2)
            assert store.load().step == 3
            with pytest.raises(NoCheckpointError):
                store.load(2)
            assert "secret" not in repr(store).lower()

    @pytest.mark.parametrize("is_new", [True, False])
    @pytest.mark.parametrize("size", [10, 700_000])
    def test_two_writers_of_one_step(self, s3, monkeypatch, is_new, size):
        """The server lets one of them through."""
        monkeypatch.setattr(upload_sink, "PART_SIZE", 5 << 20)

        url = f"s3://data/meet/{is_new}/{size}"
        store, other = (CheckpointStore(url, storage_options=s3) for _ in range(2))
        if not is_new:
            store.save(5, {"w": np.zeros(3)})
        meet(monkeypatch, other)
        with pytest.raises(ArchiveLockedError, match="step 5 at the same time"):
            store.save(5, {"w": np.full(size, 2)})
        assert store.load(5).tree["w"].sum() == 3
        left = fsspec.filesystem("s3", **s3).list_multipart_uploads("data")
        assert not any(found["Key"].startswith("meet/") for found in left)

    @pytest.mark.parametrize("sees_it", [True, False])
    def test_a_step_that_is_saved_again_before_it_is_removed(self, s3, monkeypatch, sees_it):
        """The server itself keeps it, also if it was saved after the last look at it."""
        url = f"s3://data/again/{sees_it}"
        with CheckpointStore(url, latest(1), storage_options=s3) as store:
            store.save(1, {"w": np.zeros(3)})
            save_again_before_removal(monkeypatch, url, storage_options=s3)
            if not sees_it:
                monkeypatch.setattr(Version, "differs", lambda self, found: False)
            assert store.save(2, {"w": np.zeros(3)}).removed == ()
            assert store.load(1).tree["w"].sum() == 21
            assert store.save(3, {"w": np.zeros(3)}).removed == (1, 2)
            assert store.steps == (3,)

    def test_leftovers(self, s3):
        """The first save of the next store ends uploads of steps, and no others."""
        file_system = fsspec.filesystem("s3", **s3)
        for key in ("left/step_00000007.npz", "left/other.npz", "left/a/step_00000007.npz"):
            file_system.call_s3("create_multipart_upload", Bucket="data", Key=key)
        with CheckpointStore("s3://data/left", storage_options=s3) as store:
            assert store.steps == ()
            assert len(file_system.list_multipart_uploads("data")) == 3
            store.save(8, {"w": np.ones(3)})
        left = {found["Key"] for found in file_system.list_multipart_uploads("data")}
        assert left == {"left/other.npz", "left/a/step_00000007.npz"}
