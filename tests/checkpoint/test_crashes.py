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
from typing import Any, NamedTuple

import numpy as np
import pytest
from children import forked, read_rest
from crash import Recorder, recorded
from crash_folders import Folder, Followed, check_folders, killed_folders, power_loss_folders
from deep import amount
from faults import DeadlyOS, FaultyOS
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.errors import ArchiveLockedError, NoCheckpointError
from npzkit.files import disk

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
STATE_COUNT = amount(20, 2_000)
KILL_COUNT = amount(5, 150)
"""Of each of four tests."""
LOST = -1
"""Stands for no step at all among what may be found, and for no version of a step."""
SHARD_SIZE = 1000
"""Bytes of a file, in steps that are folders: each has two files, and an index."""
FROZEN = -1
"""Stands for a size: a step whose array "base" is declared frozen."""
FORMS = {
    "files": (None,), "folders": (SHARD_SIZE,), "linked": (FROZEN,),
    "all folders": (SHARD_SIZE, None, FROZEN, FROZEN),
}  # fmt: skip
"""The sizes of files with which steps are saved in turn. After a folder, all are folders."""
BASE = np.arange(300)


def value_of(step: int, version: int = 0) -> np.ndarray:
    return np.arange(200) * (step + 1) + version


def tree_of(step: int, version: int = 0) -> dict:
    value = value_of(step, version)
    note = {"version": version, "name": "x" * 50}
    return {"w": value, "base": BASE, "v": -value, "note": note}


def save(store, step, version=0, size=None):
    tree, metrics = tree_of(step, version), {"loss": float(step)}
    form = {"frozen": "base"} if size == FROZEN else {"shard_size": size}
    return store.save(step, tree, metrics=metrics, **form)


def checked(checkpoint) -> tuple[int, int]:
    """Return the number and the version of a step that was loaded; both must fit its arrays."""
    version = checkpoint.tree["note"]["version"]
    value = value_of(checkpoint.step, version)
    np.testing.assert_array_equal(checkpoint.tree["w"], value)
    np.testing.assert_array_equal(checkpoint.tree["v"], -value)
    np.testing.assert_array_equal(checkpoint.tree["base"], BASE)
    return checkpoint.step, version


def newest(folder) -> tuple[int, int]:
    """Load the newest step, and return its number and version."""
    with CheckpointStore(folder) as store:
        return checked(store.load())


def steps_in(folder) -> dict[int, int]:
    """Load all steps, and return the version of each."""
    with CheckpointStore(folder, durable=False) as store:
        return dict(checked(store.load(step)) for step in store.steps)


# -- every folder that a crash may leave ------------------------------------------


class Allowed(NamedTuple):
    """What may be found.

    Attributes
    ----------
    newest : frozenset of (int, int)
        The newest step, and its version.
    each : frozenset of (int, int)
        Steps with the versions that each may have.
    """

    newest: frozenset
    each: frozenset


class Work(Followed):
    """Calls of a store that are recorded, with what may be found at each moment."""

    def __init__(self, folder: Path, recorder: Recorder, steps: dict[int, int]) -> None:
        super().__init__(recorder)
        self.folder, self.steps = folder, steps
        self.mark(self.allowed(steps))

    @staticmethod
    def allowed(*states: dict[int, int]) -> Allowed:
        steps = {step for state in states for step in state}
        return Allowed(
            frozenset(max(state.items(), default=(LOST, 0)) for state in states),
            frozenset((step, state.get(step, LOST)) for state in states for step in steps),
        )

    @contextlib.contextmanager
    def becoming(self, *steps: tuple[int, int]) -> Iterator[None]:
        """During the block the store changes to these (step, version), and then has them."""
        before, after = self.steps, dict(steps)
        self.mark(self.allowed(before, {**before, **after}, after))
        yield
        self.steps = after
        self.mark(self.allowed(after))


def work_on(work: Work, forms, *, durable: bool, background: bool) -> None:
    """Save, overwrite, remove and prune."""
    size = itertools.cycle(forms)
    with CheckpointStore(
        work.folder, keep=latest(2), durable=durable, background=background
    ) as store:
        for steps in [
            [(1, 0)], [(1, 1)], [(1, 2)], [(1, 2), (2, 0)], [(1, 2), (2, 1)],
            [(2, 1), (3, 0)], [(3, 0), (4, 0)], [(3, 0), (4, 1)],
        ]:  # fmt: skip
            with work.becoming(*steps):
                save(store, *steps[-1], next(size)).wait()
        with work.becoming((3, 0)):
            store.delete(4)
        with work.becoming((3, 0), (5, 0)):
            save(store, 5, 0, next(size))
            store.wait()
    with CheckpointStore(work.folder, keep=latest(1), durable=durable) as store:
        with work.becoming((5, 0)):
            store.prune()
        with work.becoming((6, 0)):
            save(store, 6, 0, next(size))
        with work.becoming():
            store.delete(6)


def check(folders: Iterator[Folder], root: Path, place: Path, count: int) -> int:
    """Load what some folders hold, and go on with them; return how many there were."""

    def read(number, allowed) -> None:
        (allowed,) = allowed
        with CheckpointStore(place, durable=False) as store:
            found = dict(checked(store.load(step)) for step in store.steps)
            last = (LOST, 0)
            with contextlib.suppress(NoCheckpointError):
                last = checked(store.load())
            assert last in allowed.newest, f"state {number}: {last} where {allowed} may be"
            for step in {step for step, _ in allowed.each} | found.keys():
                assert (step, found.get(step, LOST)) in allowed.each, f"state {number}: {found}"
            go_on(store, place, found, number)

    return check_folders(folders, root, place, count, read)


def go_on(store, place, found, number) -> None:
    """Remove steps after a crash, or save another: nothing that was removed comes back."""
    if number % 3 == 0 and found:
        gone = max(found)
        store.delete(gone)
        del found[gone]
        assert dict(checked(store.load(step)) for step in store.steps) == found
    if number % 3 == 1:
        with CheckpointStore(place, keep=latest(1), durable=False) as other:
            other.prune()
            assert store.steps == tuple(sorted(found)[-1:])
    if number % 10 == 0:
        store.close()
        # A new writer removes what is left, and goes on.
        with CheckpointStore(place, keep=latest(1), durable=False) as other:
            path = save(other, 9).path
        assert sorted(os.listdir(place)) == [".npzkit-checkpoints.lock", os.path.basename(path)]


@pytest.fixture(
    params=itertools.product(FORMS, (False, True)),
    ids=lambda each: f"{each[0]}-{'background' if each[1] else 'foreground'}",
)
def work(request, tmp_path):
    """Work on a store that waits for the disk, recorded."""
    folder = tmp_path / "run"
    folder.mkdir()
    forms, background = request.param
    with recorded(folder) as recorder:
        work = Work(folder, recorder, {})
        work_on(work, FORMS[forms], durable=True, background=background)
    return work


@pytest.mark.slow
def test_killed_at_any_call(work, tmp_path):
    """After a kill at any call, each step is what it was or what it became, and never older."""
    count = check(killed_folders(work), work.folder, tmp_path / "state", STATE_COUNT)
    # There are no more of some.
    assert count >= min(STATE_COUNT, 2_000) / 2


@pytest.mark.slow
def test_power_lost_at_any_call(work, tmp_path):
    """What was saved with durable=True survives a loss of power, and what was removed does not."""
    folders = power_loss_folders(work, random.Random(1), amount(2, 100))
    assert check(folders, work.folder, tmp_path / "state", STATE_COUNT) >= min(STATE_COUNT / 2, 50)


@pytest.mark.slow
def test_power_lost_without_durable(tmp_path):
    """With durable=False steps may be lost or damaged, but never all of them once one was removed."""
    folder = tmp_path / "run"
    folder.mkdir()
    with recorded(folder) as recorder:
        work = Followed(recorder)
        work.mark((LOST, 0))
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


class Action(NamedTuple):
    """What a writer does, and which steps, with their versions, there are then."""

    verb: str
    step: int
    version: int
    size: int | None
    after: dict[int, int]

    def perform(self, folder: Path, *, background: bool) -> None:
        count = 1 if self.verb == "prune" else 2
        with CheckpointStore(
            folder, keep=latest(count), durable=False, background=background
        ) as store:
            if self.verb == "save":
                save(store, self.step, self.version, self.size)
            elif self.verb == "delete":
                store.delete(self.step)
            else:
                store.prune()


def some_actions(
    rng: random.Random, forms: tuple[Any, ...], steps: dict[int, int], version: int
) -> list[Action]:
    """Return what a writer does next: steps are saved, some of them again."""
    actions = []
    for _ in range(4):
        verb = rng.choice(["save", "save", "save", "delete", "prune"])
        newest = max(steps, default=0)
        step = newest if verb != "save" else newest + rng.choice((0, 0, 1))
        if verb != "save" and len(steps) < 2:
            continue
        after = {**steps, step: version} if verb == "save" else dict(steps)
        if verb == "delete":
            del after[step]
        # A deletion removes no other step, also of those that a killed retention has left.
        kept = {"save": 2, "prune": 1, "delete": len(after)}[verb]
        steps = dict(sorted(after.items())[-kept:])
        actions.append(Action(verb, step, version, rng.choice(forms), steps))
        version += 1
    return actions


@needs_fork
@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize(("forms", "calls"), [("files", 15), ("all folders", 40)])
def test_a_killed_writer_loses_no_step(forms, calls, background, tmp_path):
    """After SIGKILL at any call each step is as before or after the call, and the next goes on."""
    rng, forms = random.Random(background), FORMS[forms]
    steps, version = {0: 0}, 1
    with CheckpointStore(tmp_path, durable=False) as store:
        save(store, 0, size=forms[0])
    killed = 0
    for _ in range(KILL_COUNT):
        number, actions = rng.randint(1, calls), some_actions(rng, forms, steps, version)

        def work(pipe, number=number, actions=actions):
            disk.os = DeadlyOS(number, 0)
            for at, action in enumerate(actions):
                os.write(pipe, MESSAGE.pack(b"b", at))
                action.perform(tmp_path, background=background)
                os.write(pipe, MESSAGE.pack(b"f", at))

        with forked(work) as (_, pipe):
            said = read_rest(pipe)
        assert b"Traceback" not in said, said.decode(errors="replace")
        messages = list(MESSAGE.iter_unpack(said))
        killed += len(messages) < 2 * len(actions)
        finished = sum(kind == b"f" for kind, _ in messages)
        states = [steps, *(action.after for action in actions)][finished : finished + 2]
        allowed = Work.allowed(states[0], {**states[0], **states[-1]}, states[-1])
        # A killed store damages no step: a warning would be an error here.
        steps = steps_in(tmp_path)
        assert newest(tmp_path) == max(steps.items())
        assert max(steps.items()) in allowed.newest
        for step in {step for step, _ in allowed.each} | steps.keys():
            assert (step, steps.get(step, LOST)) in allowed.each
        version += len(actions)
    assert killed > KILL_COUNT / 3
    with CheckpointStore(tmp_path, keep=latest(1)) as store:
        path = save(store, max(steps) + 1).path
    assert sorted(os.listdir(tmp_path)) == [".npzkit-checkpoints.lock", os.path.basename(path)]


# -- calls that fail ------------------------------------------------------------


@pytest.mark.slow
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
    assert number > 10


# -- others at work -------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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
        # Its lock is free once it has ended.
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
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


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="no call empties the cache here")
def test_a_step_is_on_disk_before_it_is_read_back(tmp_path):
    """A save that is verified waits for the disk: pages that are not there stay in the cache."""
    with CheckpointStore(tmp_path, durable=False) as store, recorded(tmp_path) as recorder:
        store.save(1, {"w": np.arange(9)})
        assert "sync" not in {call.kind for call in recorder.calls}
        store.save(2, {"w": np.arange(9)}, verify="after")
    assert "sync" in {call.kind for call in recorder.calls}
