"""One damage anywhere in a committed archive: its newest state is read, or an error; never an older one.

Each bit of many small archives is flipped, each byte is zeroed and set to 0xFF, and each aligned
sector of 512 and of 4,096 bytes is zeroed. What is left is opened and read, and some of it
appended to; `maintenance/test_damaged_archives.py` has what verify and repair make of it. By
default that is a sample of some two thousand states; NPZKIT_DEEP=1 makes it 100,000 and
NPZKIT_DEEP=10 a million.

One damage cannot be told from an append that was lost: zeros from the end of a commit to the end
of the file. The state before is read then, with a warning.
"""

from __future__ import annotations

import io
import random
import warnings
from pathlib import Path

import npzkit
import numpy as np
import pytest
from commits import last_end
from damage import (
    ITS_OWN,
    Campaign,
    Damage,
    differences,
    folder_in_memory,
    is_error,
    keys_of,
    read,
    sampled_damage,
    sector_damage,
)
from deep import DEEP, amount
from grown_archives import CASES, Case, made, noise, random_commits, with_comments
from history import Commit, History, held_as
from npzkit.errors import NpzkitError, TornArchiveWarning, ZipFormatError

SWEPT_COUNT = amount(25, 1_500)
"""Archives of random sizes whose sectors are zeroed."""
APPENDED_EVERY = 40 if DEEP else 8
"""One of so many states is appended to."""


@pytest.fixture
def folder(tmp_path):
    with folder_in_memory(tmp_path) as place:
        yield place


def appending_in(folder: Path) -> Campaign:
    """Return a campaign that appends to some of its states, with a repack perhaps."""
    path = folder / "damaged.npz"

    def check(case, damage, outcome, commit, number):
        check_appended(case, commit, damage.of(case.data), path, auto_repack=bool(number % 2))

    return Campaign(check, APPENDED_EVERY)


def check_appended(
    case: Case, commit: Commit, damaged: bytes, path: Path, *, auto_repack: bool
) -> None:
    path.write_bytes(damaged)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornArchiveWarning)
            w = npzkit.NpzWriter(path, "a", auto_repack=auto_repack)
    except NpzkitError:
        assert path.read_bytes() == damaged
        return
    with warnings.catch_warnings():
        # A damaged array is not copied, so its archive is not repacked.
        warnings.filterwarnings("ignore", "the archive is complete, but", RuntimeWarning)
        with w:
            w["appended"] = np.arange(4)
    found = read(path)
    assert not found.is_torn
    assert found.keys == [*commit.held, "appended"], f"keys {found.keys}"
    assert found.arrays["appended"] == held_as(np.arange(4))
    touched = case.touched(damaged)
    hit = keys_of(touched, *ITS_OWN, "entry")
    for key, (array, attrs) in commit.held.items():
        if key not in hit or not is_error(found.arrays[key]):
            assert found.arrays[key] == array, f"{key}: {found.arrays[key]!r:.200}"
        if key not in hit or not is_error(found.attrs[key]):
            assert found.attrs[key] == attrs, f"{key}: {found.attrs[key]!r}"
    assert is_error(found.metadata) or found.metadata == commit.metadata, "metadata"


@pytest.mark.slow
@pytest.mark.parametrize("make", CASES)
def test_one_damage_shows_no_older_state(make, folder):
    """Whatever one bit, byte or sector becomes: what is read is the newest state, and an append keeps it."""
    case = made(make, folder)
    campaign = appending_in(folder)
    for damage in sampled_damage(case):
        campaign.run(case, damage)
    campaign.finish()
    assert campaign.outcomes["new"]
    assert campaign.outcomes["error"]


@pytest.mark.slow
def test_lost_sectors_of_archives_of_all_sizes(folder):
    """Wherever commits begin and end within sectors, a lost one leaves no older state."""
    campaign = appending_in(folder)
    for number in range(SWEPT_COUNT):
        rng = random.Random(number)
        history = random_commits(rng, rng.choice((folder / "made.npz", io.BytesIO())))
        case = Case(f"seed {number}", history.content, history.commits)
        for damage in sector_damage(case):
            campaign.run(case, damage)
        if isinstance(history.file, Path):
            history.file.unlink()
    campaign.finish()
    assert {"new", "error", "lost"} <= set(campaign.outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("note_size", [None, 250, 600])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_edge_of_a_sector_anywhere_in_a_commit(folder, note_size, is_first):
    """Each byte of a commit in turn is the first of a sector; that one or the one before is lost."""
    campaign = appending_in(folder)
    for size in range(0, 512, 1 if DEEP else 23):
        history = History(io.BytesIO())
        sizes = (size, 10) if is_first else (10, size)
        for step, each in enumerate(sizes):
            with history.edit("a" if step else "w") as e:
                e.add(f"n{step}", noise(each))
                if note_size is not None:
                    e.edit_metadata(step=step, note="x" * note_size)
        case = Case(f"{sizes} {note_size}", history.content, history.commits)
        for damage in sector_damage(case):
            campaign.run(case, damage)
    campaign.finish()


@pytest.mark.parametrize(
    "signature", [bytes(4), b"PK\5\0", b"PK\0\6", b"\0\0\0\6", b"\xff" * 4, b"PK\5\7", b"PK\3\4"]
)
def test_a_damaged_seal(tmp_path, signature):
    """If only the signature of the newest end is damaged, that is an error, and repair writes it."""
    path = tmp_path / "a.npz"
    case = made(with_comments, tmp_path)
    damaged = Damage(last_end(case.data)[1], signature).of(case.data)
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.open(damaged)
    path.write_bytes(damaged)
    npzkit.repair(path)
    assert not differences(read(path.read_bytes()), case.commits[-1])
