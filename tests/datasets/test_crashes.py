"""Crashes: whatever a killed program or a loss of power leaves, the last commit is read.

Commits of a sharded archive are recorded call by call, and every folder that a crash may
leave is rebuilt and read: a hundred by default, thousands with NPZKIT_DEEP=1.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import npzkit
import numpy as np
import pytest
from children import forked, read_rest
from crash import recorded
from crash_folders import Folder, Followed, check_folders, killed_folders, power_loss_folders
from deep import amount, extent
from faults import DeadlyOS
from npzkit.files import disk

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
STATE_COUNT = amount(30, 2_000)
KILL_COUNT = amount(8, 300)
NOTHING = -1
"""Stands for no archive at all among what may be found."""


def value_of(version: int) -> np.ndarray:
    return np.arange(120).reshape(12, 10) * (version + 1)


def write(folder: Path, version: int, *, durable: bool) -> None:
    """Write an archive as two processes would, and commit it."""
    whole = value_of(version)
    options = {"attempt": f"v{version}", "durable": durable}
    for first in (0, 6):
        with npzkit.ShardedWriter(folder, **options) as w:
            for row in (first, first + 3):
                w.add("w", whole[row : row + 3], (row, 0), whole.shape)
    npzkit.ShardedWriter(folder, metadata={"version": version}, **options).commit()


def found_in(folder: Path) -> int:
    """Return the version of the archive in a folder, all of which must be right."""
    if not (folder / "index.npz").exists():
        return NOTHING
    with npzkit.open(folder) as npz:
        version = npz.metadata["version"]
        np.testing.assert_array_equal(npz["w"], value_of(version))
        assert npz.verify().ok
    return version


def check(folders: Iterator[Folder], place: Path, count: int) -> int:
    """Read some of the folders; return how many."""
    state = place / "state"

    def read(number: int, allowed: frozenset) -> None:
        found = found_in(state)
        assert found in allowed, f"state {number}: {found} where {allowed} may be"
        if number % 10 == 0:
            write(state, 9, durable=False)
            assert found_in(state) == 9

    return check_folders(folders, place / "run", state, count, read)


def work_on(folder: Path, *, durable: bool) -> Followed:
    """Commit three versions one over the other, recorded."""
    folder.mkdir()
    with recorded(folder) as recorder:
        work = Followed(recorder)
        now = NOTHING
        work.mark(now)
        for version in range(3):
            work.mark(now, version)
            write(folder, version, durable=durable)
            work.mark(version)
            now = version
    return work


@pytest.mark.slow
@pytest.mark.parametrize("durable", [False, True])
def test_killed_at_any_call(tmp_path, durable):
    """After a kill at any call or within any write, the old archive is complete, or the new one."""
    work = work_on(tmp_path / "run", durable=durable)
    assert check(killed_folders(work), tmp_path, STATE_COUNT) >= STATE_COUNT / 2


def power_losses(work, count):
    """Yield folders after losses of power, drawn again and again in a deep run."""
    for seed in range(amount(1, 30)):
        yield from power_loss_folders(work, random.Random(seed), count)


@pytest.mark.slow
def test_power_lost_at_any_call(tmp_path):
    """An archive that was committed with durable=True survives a loss of power."""
    work = work_on(tmp_path / "run", durable=True)
    folders = power_losses(work, amount(2, 100))
    assert check(folders, tmp_path, STATE_COUNT) >= extent(15, 60)


@pytest.mark.slow
def test_power_lost_while_an_archive_is_replaced(tmp_path):
    """Without durable, a loss of power still leaves the old archive or the new one."""
    folder = tmp_path / "run"
    write(folder, 0, durable=True)
    with recorded(folder) as recorder:
        work = Followed(recorder)
        work.mark(0, 1)
        write(folder, 1, durable=False)
    folders = power_losses(work, amount(3, 100))
    assert check(folders, tmp_path, STATE_COUNT) >= extent(15, 60)


@pytest.mark.slow
@needs_fork
def test_killed_children_leave_the_last_commit(tmp_path, monkeypatch):
    """A child is killed at calls spread over a commit; the next one starts from a sound archive."""
    folder = tmp_path / "run"
    write(folder, 0, durable=False)
    version = 0
    for number in range(1, KILL_COUNT + 1):

        def work(pipe: int, number: int = number) -> None:
            monkeypatch.setattr(disk, "os", DeadlyOS(1 + 7 * number % 60))
            write(folder, number, durable=False)
            os.write(pipe, b"done")

        with forked(work) as (_, pipe):
            text = read_rest(pipe)
        assert text in (b"", b"done"), text.decode()
        found = found_in(folder)
        assert found == number if text else found in (version, number)
        version = found


@pytest.mark.skipif(
    os.name == "nt", reason="Windows has no call that waits for the names in a folder"
)
def test_the_index_is_on_disk_before_older_shards_are_removed(tmp_path):
    """Without durable, too: otherwise a loss of power could leave the old index without shards."""
    folder = tmp_path / "run"
    write(folder, 0, durable=True)
    with recorded(folder) as recorder:
        write(folder, 1, durable=False)
    calls = recorder.calls
    placed = [n for n, call in enumerate(calls) if call.target == str(folder / "index.npz")]
    removed = [n for n, call in enumerate(calls) if call.kind == "unlink" and "-v0." in call.path]
    assert len(placed) == 1
    assert len(removed) == 2
    assert "sync folder" in {call.kind for call in calls[placed[0] : removed[0]]}


def test_a_first_archive_waits_for_no_disk_unless_it_is_durable(tmp_path):
    """By default nothing is synced if no older archive could be lost."""
    with recorded(tmp_path) as recorder:
        with npzkit.ShardedWriter(tmp_path / "run", attempt="a") as w:
            w.add("w", value_of(0))
        npzkit.ShardedWriter(tmp_path / "run", attempt="a").commit()
    assert {"sync", "sync folder"}.isdisjoint(call.kind for call in recorder.calls)
