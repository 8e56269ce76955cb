"""Crashes and failing calls: whatever happens, the newest committed step is loaded.

Work on a store is recorded call by call, and every folder that a crash may leave is
rebuilt and loaded: hundreds by default, thousands with NPZKIT_DEEP=1. Children
are killed at a call of the system, in the middle of what it writes: some dozens, or
600 with NPZKIT_DEEP=1, 12,000 with 20.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from children import forked, read_rest
from crash import Recorder, recorded
from crash_folders import Folder, Followed, killed_folders, power_loss_folders
from deep import amount
from faults import DeadlyOS, FaultyOS
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.errors import ArchiveLockedError, NoCheckpointError
from npzkit.files import disk

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
STATE_COUNT = amount(100, 2_000)
KILL_COUNT = amount(9, 300)
"""Of each of two tests."""
LOST = -1
"""Stands for no step at all among what may be found."""


def value_of(step: int, version: int = 0) -> np.ndarray:
    return np.arange(200) * (step + 1) + version


def tree_of(step: int, version: int = 0) -> dict:
    return {"w": value_of(step, version), "note": {"version": version, "name": "x" * 50}}


def save(store, step, version=0):
    return store.save(step, tree_of(step, version), metrics={"loss": float(step)})


def newest(folder) -> tuple[int, int]:
    """Load the newest step, and return its number and version; both must fit its arrays."""
    with CheckpointStore(folder) as store:
        checkpoint = store.load()
    version = checkpoint.tree["note"]["version"]
    np.testing.assert_array_equal(checkpoint.tree["w"], value_of(checkpoint.step, version))
    return checkpoint.step, version


# -- every folder that a crash may leave ------------------------------------------


class Work(Followed):
    """Calls of a store that are recorded, with which (step, version) may be the newest."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.folder = folder
        self.now = (LOST, 0)
        self.mark(self.now)

    @contextlib.contextmanager
    def becoming(self, *state: int) -> Iterator[None]:
        """During the block the newest step may be the old or the new one, and is then the new."""
        new = (state[0], state[1])
        self.mark(self.now, new)
        yield
        self.now = new
        self.mark(new)


def work_on(work: Work, *, durable: bool, background: bool) -> None:
    """Save, overwrite, remove and prune."""
    with CheckpointStore(
        work.folder, keep=latest(2), durable=durable, background=background
    ) as store:
        for step, version in [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1)]:
            with work.becoming(step, version):
                save(store, step, version).wait()
        with work.becoming(3, 0):
            store.delete(4)
        with work.becoming(5, 0):
            save(store, 5)
            store.wait()
    with CheckpointStore(work.folder, keep=latest(1), durable=durable) as store:
        store.prune()
        with work.becoming(6, 0):
            save(store, 6)


def check(folders: Iterator[Folder], place: Path, count: int) -> int:
    """Load the newest step of some folders; return how many."""
    distinct = {(folder.allowed, tuple(sorted(folder.files.items()))): folder for folder in folders}
    stride = max(len(distinct) // count, 1)
    place.mkdir()
    chosen = list(distinct.values())[::stride]
    for number, folder in enumerate(chosen):
        for path, content in folder.files.items():
            (place / os.path.basename(path)).write_bytes(content)
        found = (LOST, 0)
        with contextlib.suppress(NoCheckpointError):
            found = newest(place)
        assert found in folder.allowed, f"state {number}: {found} where {folder.allowed} may be"
        if number % 10 == 0:
            # A new writer removes what is left, and goes on.
            with CheckpointStore(place, keep=latest(1), durable=False) as store:
                save(store, 9)
            assert sorted(os.listdir(place)) == [".npzkit-checkpoints.lock", "step_00000009.npz"]
        for path in place.iterdir():
            path.unlink()
    return len(chosen)


@pytest.fixture(params=[False, True], ids=["foreground", "background"])
def work(request, tmp_path):
    """Work on a store that waits for the disk, recorded."""
    folder = tmp_path / "run"
    folder.mkdir()
    with recorded(folder) as recorder:
        work = Work(folder, recorder)
        work_on(work, durable=True, background=request.param)
    return work


def test_killed_at_any_call(work, tmp_path):
    """After a kill at any call or within any write, no step is damaged and the newest is loaded."""
    assert check(killed_folders(work), tmp_path / "state", STATE_COUNT) >= STATE_COUNT / 2


def test_power_lost_at_any_call(work, tmp_path):
    """A step that was saved with durable=True survives a loss of power, retention and all."""
    rng = random.Random(1)
    folders = power_loss_folders(work, rng, amount(2, 100))
    assert check(folders, tmp_path / "state", STATE_COUNT) >= 50


def test_power_lost_without_durable(tmp_path):
    """With durable=False steps may be lost or damaged, but never all of them once one was removed."""
    folder = tmp_path / "run"
    folder.mkdir()
    with recorded(folder) as recorder:
        work = Work(folder, recorder)
        with CheckpointStore(folder, keep=latest(1), durable=False) as store:
            save(store, 1)
            save(store, 2)
            work.mark((2, 0), (3, 0), (4, 0))
            save(store, 3)
            save(store, 4)
    place = tmp_path / "state"
    place.mkdir()
    found = set()
    for state in power_loss_folders(work, random.Random(2), amount(2, 100)):
        if (LOST, 0) in state.allowed:
            continue
        for path, content in state.files.items():
            (place / os.path.basename(path)).write_bytes(content)
        with warnings.catch_warnings(action="ignore"):
            found.add(newest(place))
            assert newest(place) in state.allowed
        for path in place.iterdir():
            path.unlink()
    assert len(found) >= 2


# -- kills ----------------------------------------------------------------------


MESSAGE = struct.Struct("<cI")


@needs_fork
@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_a_killed_writer_loses_no_step(background, tmp_path):
    """After SIGKILL at any call the newest committed step is loaded, and the next writer goes on."""
    rng = random.Random(background)
    step, version = 0, 0
    with CheckpointStore(tmp_path, durable=False) as store:
        save(store, 0)
    killed = 0
    for _ in range(KILL_COUNT):
        number, keep = rng.randint(1, 25), rng.randint(1, 3)
        first = step + rng.choice((0, 1))
        # A version that differs from the one that may be replaced.
        version += 1

        def work(pipe, number=number, keep=keep, first=first, version=version):
            disk.os = DeadlyOS(number, 0)
            with CheckpointStore(
                tmp_path, keep=latest(keep), durable=False, background=background
            ) as store:
                for now in range(first, first + 3):
                    os.write(pipe, MESSAGE.pack(b"b", now))
                    save(store, now, version).wait()
                    os.write(pipe, MESSAGE.pack(b"f", now))

        with forked(work) as (_, pipe):
            said = read_rest(pipe)
        assert b"Traceback" not in said, said.decode(errors="replace")
        messages = list(MESSAGE.iter_unpack(said))
        killed += len(messages) < 6
        finished = max([now for kind, now in messages if kind == b"f"], default=step)
        begun = max([now for _, now in messages], default=step)
        # A killed store damages no step: a warning would be an error here.
        step, found = newest(tmp_path)
        assert finished <= step <= begun
        if step > finished or begun > first:
            assert step < first or found == version
        version = max(version, found)
    assert killed > KILL_COUNT / 3
    with CheckpointStore(tmp_path, keep=latest(1)) as store:
        save(store, step + 1)
    assert sorted(os.listdir(tmp_path)) == [
        ".npzkit-checkpoints.lock", f"step_{step + 1:08d}.npz",
    ]  # fmt: skip


# -- calls that fail ------------------------------------------------------------


@pytest.mark.parametrize(
    ("error_number", "background"),
    [(errno.ENOSPC, False), (errno.ENOSPC, True), (errno.EROFS, False), (errno.EIO, True)],
)
def test_a_call_that_fails(error_number, background, tmp_path, monkeypatch):
    """A full, read-only or broken disk is an OSError, and the committed steps stay."""
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        with CheckpointStore(folder, durable=False) as store:
            save(store, 1)
            save(store, 2)
        faulty = FaultyOS(number, error_number)
        expected = [(2, 0)]
        failures = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with monkeypatch.context() as patched:
                patched.setattr(disk, "os", faulty)
                store = CheckpointStore(folder, keep=latest(1), background=background)
                for step, version in [(2, 1), (3, 0)]:
                    try:
                        save(store, step, version).wait()
                        expected = [(step, version)]
                    except OSError as error:
                        failures.append(error)
                        # If only the sync of the folder failed, the step is there.
                        expected = [*expected, (step, version)]
                with contextlib.suppress(OSError):
                    store.close()
        assert newest(folder) in expected
        assert bool(faulty.error) is faulty.was_hit
        if not faulty.was_hit:
            break
        # It was raised, or retention has warned of it; closing a file on Linux may say nothing.
        assert failures or caught or faulty.failed in ("close", "unlink", "posix_fallocate", "link")
        with CheckpointStore(folder, keep=latest(1)) as store:
            save(store, 4)
            assert store.steps == (4,)
        assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]
    assert number > 15


# -- others at work -------------------------------------------------------------


@needs_fork
def test_readers_while_steps_are_removed(tmp_path):
    """A reader in another process always finds a step, and never an older one than before."""
    count = amount(30, 200)
    with CheckpointStore(tmp_path, keep=latest(1), durable=False) as store:
        save(store, 0)

        def work(pipe):
            last = reads = 0
            while last < count:
                step, _ = newest(tmp_path)
                assert step >= last, (step, last)
                last, reads = step, reads + 1
            os.write(pipe, struct.pack("<I", reads))

        with forked(work) as (_, pipe):
            for step in range(1, count + 1):
                save(store, step)
            said = read_rest(pipe)
    assert len(said) == 4, said.decode(errors="replace")
    assert struct.unpack("<I", said)[0] > 1


@needs_fork
def test_a_writer_in_another_process_is_refused(tmp_path):
    """The folder of a store that writes is locked for other processes, until it is closed."""

    def work(pipe):
        try:
            with CheckpointStore(tmp_path) as store:
                save(store, 2)
        except ArchiveLockedError as error:
            os.write(pipe, str(error).encode())

    with CheckpointStore(tmp_path) as store:
        save(store, 1)
        with forked(work) as (_, pipe):
            assert b"another checkpoint store writes to this folder" in read_rest(pipe)
    with forked(work) as (_, pipe):
        assert read_rest(pipe) == b""
    assert newest(tmp_path) == (2, 0)


@needs_fork
def test_leftovers_of_a_writer_at_work_stay(tmp_path):
    """What another writer is writing into the folder is not taken for a leftover."""
    import npzkit

    def work(pipe):
        writer = npzkit.NpzWriter(tmp_path / "other.npz")
        writer["w"] = np.arange(1000)
        os.write(pipe, b"ready")
        signal.pause()

    def temporary():
        return [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]

    with forked(work) as (child, pipe):
        assert os.read(pipe, 5) == b"ready"
        with CheckpointStore(tmp_path) as store:
            save(store, 1)
        assert len(temporary()) == 1
        os.kill(child, signal.SIGKILL)
        read_rest(pipe)
        with CheckpointStore(tmp_path) as store:
            save(store, 2)
        assert temporary() == []


def test_the_clock_is_set_back(tmp_path):
    """Steps are ordered by their numbers, whatever their files' times say."""
    with CheckpointStore(tmp_path, keep=latest(2)) as store:
        for step in range(4):
            path = save(store, step).path
            os.utime(path, (10**9 - step * 1000, 10**9 - step * 1000))
        assert store.steps == (2, 3)
    assert newest(tmp_path) == (3, 0)
