"""Readers beside a writer that saves and removes steps as fast as it can: no wrong answer.

Some hundred reads by default; NPZKIT_DEEP=1 in the environment makes it thousands.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from children import forked, read_rest
from deep import amount, by_turns, extent
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.checkpoint.steps import Steps
from npzkit.errors import DamagedCheckpointWarning, NoCheckpointError
from npzkit.stores.objects import LocalFolder
from slow_folders import change_after_first_list, slow_folders

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
READ_COUNT = amount(6, 500)
"""Rounds of reads of each test: some four reads each."""
STEP_COUNT = extent(5, 10)
"""Steps that the writer saves meanwhile, at least."""
FORMS = {"files": None, "folders": 1000}
"""The size of files with which steps are saved."""
LISTS = {"fast lists": 0.0, "slow lists": 0.005}
"""Seconds that each list of a folder takes."""


def tree_of(step: int, version: int) -> dict:
    value = np.arange(200) + step * 1000 + version
    return {"w": value, "v": -value, "version": version}


def check(checkpoint) -> int:
    step, tree = checkpoint.step, checkpoint.tree
    expected = tree_of(step, tree["version"])
    np.testing.assert_array_equal(tree["w"], expected["w"])
    np.testing.assert_array_equal(tree["v"], expected["v"])
    assert checkpoint.metrics == {"loss": step + tree["version"] / 10}
    return step


def keep_saving(folder, size, versions, pipe) -> None:
    """Save steps, each one several times, and keep two, until SIGTERM comes."""
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    with CheckpointStore(folder, keep=latest(2), durable=False) as store:
        for step in itertools.count():
            for version in range(versions):
                loss = step + version / 10
                tree = tree_of(step, version)
                store.save(step, tree, metrics={"loss": loss}, shard_size=size)
            if step == 1:
                os.write(pipe, b"ready")
            if stopping:
                break
    os.write(pipe, str(step).encode())


class Reads:
    """Reads of a store, whose outcomes are counted."""

    def __init__(self, folder) -> None:
        self.store = CheckpointStore(folder)
        self.newest = 0
        self.outcomes: Counter[str] = Counter()

    def load(self) -> None:
        step = check(self.store.load())
        assert step >= self.newest, "an older step came back"
        self.newest = step

    def load_one(self) -> None:
        with contextlib.suppress(NoCheckpointError):
            check(self.store.load(self.store.latest))

    def verify(self) -> None:
        report = self.store.verify()
        assert report.steps
        assert report.ok, str(report)

    def rank(self) -> None:
        step = self.store.best("loss", mode="max")
        assert step is not None
        with contextlib.suppress(NoCheckpointError):
            assert self.store.metrics(step)["loss"] >= step

    def once(self) -> None:
        for read in (self.load, self.load_one, self.verify, self.rank):
            try:
                read()
            except Exception as error:
                what = re.sub("[0-9a-f]{3,}", "N", f"{type(error).__name__}: {error}")
                self.outcomes[f"{read.__name__}: {what}"[:300]] += 1
            else:
                self.outcomes["right"] += 1


@contextlib.contextmanager
def beside(work: Callable[[int], object]) -> Iterator[list[bytes]]:
    """Have a child save steps for the time of the block; yields what it says at its end."""
    said: list[bytes] = []
    with forked(work) as (child, pipe):
        assert os.read(pipe, 5) == b"ready"
        yield said
        os.kill(child, signal.SIGTERM)
        said.append(read_rest(pipe))


@pytest.mark.slow
@pytest.mark.parametrize(("form", "lists"), by_turns(FORMS, LISTS))
@pytest.mark.parametrize("versions", [1, 3], ids=["once", "again"])
def test_reads_beside_a_writer_with_retention(versions, form, lists, tmp_path):
    """Steps that go away and come are no damage, and there always are some."""
    reads, seconds = Reads(tmp_path), LISTS[lists]
    began = time.perf_counter()
    slow = slow_folders(seconds, random.Random(1)) if seconds else contextlib.nullcontext()
    # A slow folder is slow for its writer too: else it removes steps before a list shows them.
    with slow, beside(lambda pipe: keep_saving(tmp_path, FORMS[form], versions, pipe)) as said:
        left = READ_COUNT // 4 if seconds else READ_COUNT
        while left > 0 or reads.newest < STEP_COUNT:
            reads.once()
            left -= 1
    took = time.perf_counter() - began
    print(f"{reads.outcomes.total():,} reads, {int(said[0]):,} steps, {took:.1f} s:")
    for outcome, count in reads.outcomes.items():
        print(f"  {count} {outcome}")
    assert int(said[0]) >= STEP_COUNT
    assert set(reads.outcomes) == {"right"}


QUESTIONS = {
    "load": lambda store: store.load().step,
    "verify": lambda store: max(store.verify().steps),
    "best": lambda store: store.best("loss"),
}


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 1000], ids=["files", "folders"])
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_all_steps_go_after_they_were_listed(question, size, tmp_path, monkeypatch):
    """If all steps of a list are removed before one is read, the next list has those that came."""
    with CheckpointStore(tmp_path, durable=False) as writer:
        for step in (1, 2):
            writer.save(step, tree_of(step, 0), {"loss": step}, shard_size=size)

        def change():
            writer.save(3, tree_of(3, 0), {"loss": 3}, shard_size=size)
            writer.delete(1)
            writer.delete(2)

        change_after_first_list(monkeypatch, change)
        assert question(CheckpointStore(tmp_path)) == 3


def test_the_size_of_a_step_that_is_replaced(tmp_path, monkeypatch):
    """The size of a folder is that of all its files, also if it is replaced while they are listed."""
    with CheckpointStore(tmp_path, durable=False) as writer:
        writer.save(1, tree_of(1, 0), shard_size=1000)
        real, sizes = LocalFolder.listed, []

        def listed(self):
            found = real(self)
            sizes.append(sum(file.size for file in found.values()))
            if len(sizes) == 1:
                monkeypatch.undo()
                writer.save(1, {**tree_of(1, 0), "more": np.ones(5000)}, shard_size=1000)
                monkeypatch.setattr(LocalFolder, "listed", listed)
            return found

        monkeypatch.setattr(LocalFolder, "listed", listed)
        assert (
            sum(file.size for file in CheckpointStore(tmp_path)._files(1))
            == sizes[-1]
            > 40_000
            > sizes[0]
        )


def test_a_step_that_cannot_be_opened_is_skipped(tmp_path, monkeypatch):
    """A name that two looks find, as of a share's old list, hides no other step."""
    known = Steps.identity

    def identity(folder, step):
        if step == 2:
            raise FileNotFoundError(errno.ENOENT, "gone")
        return known(folder, step)

    monkeypatch.setattr(Steps, "identity", identity)
    with CheckpointStore(tmp_path) as store:
        store.save(1, tree_of(1, 0), {"loss": 1.0})
        (tmp_path / "step_00000002.npz").write_bytes(b"")
        assert store.load().step == 1
        os.unlink(store.path(1))
        with pytest.raises(NoCheckpointError):
            store.load()


@pytest.mark.slow
def test_more_damaged_steps_than_looks(tmp_path):
    """Damaged steps are skipped, however many there are, and no policy removes the sound one."""
    with CheckpointStore(tmp_path, durable=False) as store:
        store.save(0, tree_of(0, 0), {"loss": 0.0})
        for step in range(1, 250):
            (tmp_path / f"step_{step:08d}.npz").write_bytes(b"nothing")
        with pytest.warns(DamagedCheckpointWarning) as caught:
            assert store.load().step == 0
    assert len(caught) == 249
    assert CheckpointStore(tmp_path, latest(1)).prune(dry_run=True) == ()
