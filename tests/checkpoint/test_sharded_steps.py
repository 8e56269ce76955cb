"""Steps that are split into several files: the rules of the store hold for them."""

from __future__ import annotations

import errno
import os
import random
import warnings
from unittest.mock import Mock

import npzkit
import numpy as np
import pytest
from crash import recorded
from crash_folders import Followed, check_folders, killed_folders, power_loss_folders
from deep import amount
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.checkpoint.steps import Steps
from npzkit.errors import (
    ArchiveLockedError,
    DamagedCheckpointError,
    DamagedCheckpointWarning,
    UnsupportedError,
)
from npzkit.stores.objects import LocalFolder

STATE_COUNT = amount(20, 1_000)


def tree_of(version=0):
    # Smaller arrays are written together.
    weights = {f"w{at}": np.arange(9000.0) + at + version for at in range(6)}
    return {"model": weights, "lr": 0.5 + version, "names": ["a", None]}


def check_tree(tree, version=0):
    expected = tree_of(version)
    assert (tree["lr"], tree["names"]) == (expected["lr"], ["a", None])
    for key, array in expected["model"].items():
        np.testing.assert_array_equal(tree["model"][key], array)


@pytest.mark.slow
def test_a_step_is_a_folder_of_shards(place):
    """A step that is split is loaded like others, whole and in part, and opened by its path."""
    with CheckpointStore(place) as store:
        saving = store.save(3, tree_of(), metrics={"loss": float("nan")}, shard_size="100kB")
        store.save(4, tree_of(1))
        assert (store.steps, store.latest) == ((3, 4), 4)
        check_tree(store.load(3).tree)
        check_tree(store.load().tree, 1)
        assert list(store.load(3, only="model/w1").tree) == ["model"]
        assert np.isnan(store.metrics(3)["loss"])
        assert sum(file.size for file in store._files(3)) > 432_000
        assert store.path(3) == saving.path
        assert store.verify().ok
        with store[3] as npz:
            assert len({part.shard for key in npz for part in npz.parts(key)}) >= 3
        check_tree(store.load(3, like=tree_of(7)).tree)
    with npzkit.open(saving.path) as npz:
        np.testing.assert_array_equal(npz["model/w2"], tree_of()["model"]["w2"])


@pytest.mark.slow
def test_steps_differ_as_files_do(place):
    """A step that is split equals the same one in a file, and `diff` names what changed."""
    with CheckpointStore(place) as store, CheckpointStore(f"{place}/files") as files:
        files.save(1, tree_of())
        store.save(2, tree_of(), shard_size=100_000)
        tree = tree_of()
        tree["model"]["w3"] = tree["model"]["w3"] + 1
        store.save(3, tree, shard_size=150_000)
        assert npzkit.diff(files.path(1), store.path(2)).equal
        assert npzkit.diff(store.path(2), store.path(3)).changed == ("model/w3",)


@pytest.mark.slow
def test_the_first_step_decides_the_form(place):
    """After a folder, each step is one, also without `shard_size` or `frozen`."""
    with CheckpointStore(place, background=True) as store:
        options = [{"shard_size": 100_000}, {}, {"frozen": "base"}, {"frozen": ()}]
        for version, option in enumerate(options):
            for step in (1, version):
                tree = tree_of(version) | {"base": np.ones(3)}
                saving = store.save(step, tree, **option)
                saving.wait()
                assert saving.path == store.path(step)
                assert saving.path.endswith(f"step_0000000{step}")
        for step in store.steps[2:]:
            check_tree(store.load(step).tree, step)
        check_tree(store.load(1).tree, 3)
        for step in store.steps:
            store.delete(step)
        assert store.save(7, tree_of()).path.endswith("step_00000007.npz")


@pytest.mark.slow
@pytest.mark.remedy("Save to a store in another folder.")
@pytest.mark.parametrize("options", [{"shard_size": "1KB"}, {"frozen": "model/*"}], ids=repr)
@pytest.mark.parametrize("step", [5, 6])
def test_a_folder_in_a_store_of_files_is_refused(place, options, step):
    """The error says what asks for a folder, and the steps are as they were."""
    with CheckpointStore(place) as store:
        store.save(5, tree_of())
        with pytest.raises(UnsupportedError, match="the steps of this store are files") as caught:
            store.save(step, tree_of(1), **options)
        assert caught.value.found == f"a folder, for {next(iter(options))}"
        assert caught.value.expected == "a file, as the first step is"
        assert store.steps == (5,)
        check_tree(store.load().tree)
        store.save(step, tree_of(1))
        check_tree(store.load(step).tree, 1)
    with CheckpointStore(f"{place}/another") as another:
        another.save(step, tree_of(1), **options)
        check_tree(another.load().tree, 1)


@pytest.mark.slow
def test_two_stores_that_were_put_together(tmp_path):
    """All steps are listed, and keep their form; a new one has that of the newest.

    If a file and a folder have one number, the folder is the step once the file is removed.
    """
    with CheckpointStore(tmp_path) as files, CheckpointStore(tmp_path / "other") as folders:
        for step in (1, 2):
            files.save(step, tree_of(step))
        for step in (2, 3):
            folders.save(step, tree_of(10 + step), shard_size=1000)
            os.rename(folders.path(step), tmp_path / f"step_0000000{step}")
    with CheckpointStore(tmp_path) as store:
        assert store.steps == (1, 2, 3)
        for step, version in ((1, 1), (2, 2), (3, 13)):
            check_tree(store.load(step).tree, version)
        assert store.verify().ok
        names = {step: os.path.basename(store.save(step, tree_of(step)).path) for step in (4, 2)}
        assert names == {4: "step_00000004", 2: "step_00000002.npz"}
        with pytest.raises(UnsupportedError, match="step 1 would be a folder"):
            store.save(1, tree_of(), shard_size=1000)
        store.delete(2)
        check_tree(store.load(2).tree, 12)
        store.delete(2)
        assert store.steps == (1, 3, 4)


@pytest.mark.remedy("Wait until it has ended.")
def test_a_step_that_another_program_writes_is_not_removed(tmp_path, monkeypatch):
    """If its index is there again at once, it stays; it is removed when that program has ended."""
    with CheckpointStore(tmp_path, durable=False) as store:
        for step in (5, 6):
            store.save(step, tree_of(step), shard_size=1000)
        with monkeypatch.context() as patched:
            patched.setattr(LocalFolder, "remove", lambda place, name: None)
            with pytest.raises(ArchiveLockedError, match="another program writes to this step"):
                store.delete(5)
        check_tree(store.load(5).tree, 5)
        store.delete(5)
        assert store.steps == (6,)


@pytest.mark.slow
def test_retention_removes_folders(place):
    """A policy removes steps that are folders, with all that is in them."""
    with CheckpointStore(place, keep=latest(2)) as store:
        for step in range(4):
            store.save(step, tree_of(step), shard_size=100_000)
        assert store.steps == (2, 3)
    if "://" not in place:
        assert sorted(os.listdir(place)) == [
            ".npzkit-checkpoints.lock", "step_00000002", "step_00000003"
        ]  # fmt: skip


def test_a_background_save_is_split_too(tmp_path):
    """In the background, with a check of what the disk has, a step is split as well."""
    with CheckpointStore(tmp_path, background=True) as store:
        saving = store.save(1, tree_of(), shard_size="1KiB", verify="after")
        saving.wait()
        assert os.path.isdir(saving.path)
        check_tree(store.load(mmap_mode="r").tree)


@pytest.mark.parametrize("mode", ["r", "c"])
def test_a_step_with_an_array_without_items_is_mapped(tmp_path, mode):
    """Arrays without items, which have no part in the index, are mapped as others are."""
    tree = {"none": np.zeros((0, 3), "f4"), "w": np.arange(4.0)}
    with CheckpointStore(tmp_path, durable=False) as store:
        store.save(1, tree, shard_size=1)
        found = store.load(mmap_mode=mode).tree
        for key, array in tree.items():
            assert isinstance(found[key], np.memmap)
            assert (found[key].shape, found[key].dtype) == (array.shape, array.dtype)
            assert found[key].flags.writeable == (mode == "c")


def test_shards_whose_index_is_not_seen_are_no_leftovers(tmp_path, monkeypatch):
    """Where a share remembers that there was no index, a new writer removes no shard."""
    with CheckpointStore(tmp_path, durable=False) as store:
        store.save(1, tree_of(), shard_size=1000)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "find", lambda place, name: None)
        with CheckpointStore(tmp_path, durable=False) as store:
            store.save(2, tree_of())
    with CheckpointStore(tmp_path) as store:
        check_tree(store.load(1).tree)
        assert store.verify().ok


def test_a_step_that_is_saved_and_then_cannot_be_looked_at(tmp_path, monkeypatch):
    """An error of the disk after a step is complete is none of the save."""

    def fail(folder, step):
        raise OSError(errno.EIO, "Input/output error")

    with CheckpointStore(tmp_path, durable=False) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Steps, "identity", fail)
            store.save(1, tree_of())
        check_tree(store.load().tree)


@pytest.mark.parametrize("size", [0, "many", 1.5])
def test_a_bad_size_is_refused(tmp_path, size):
    """A size that is none is refused before a file is written."""
    store = CheckpointStore(tmp_path / "run")
    with store, pytest.raises((ValueError, TypeError), match="shard_size"):
        store.save(1, tree_of(), shard_size=size)
    assert not (tmp_path / "run").exists()


def change_byte(path, folder):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a wrong bit": change_byte,
    "a shard is gone": lambda path, folder: path.unlink(),
    "a shard is cut": lambda path, folder: path.write_bytes(path.read_bytes()[:-50]),
    "another shard": lambda path, folder: path.write_bytes(
        max(folder.glob("step_00000001/shard-*.npz")).read_bytes()
    ),
    "the index is cut": lambda path, folder: (path.parent / "index.npz").write_bytes(b"PK\3\4"),
    "the index is empty": lambda path, folder: (path.parent / "index.npz").write_bytes(b""),
    "the index is another archive": lambda path, folder: npzkit.save(
        path.parent / "index.npz", {"x": np.ones(3)}
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_folder_is_passed_over(tmp_path, damage):
    """If a file of the newest step is damaged, the step before is loaded, and that is said."""
    with CheckpointStore(tmp_path) as store:
        store.save(1, tree_of(1), shard_size=100_000)
        store.save(2, tree_of(2), shard_size=100_000)
    damage(min((tmp_path / "step_00000002").glob("shard-*.npz")), tmp_path)
    with CheckpointStore(tmp_path) as store:
        with pytest.warns(DamagedCheckpointWarning, match="step 2"):
            check_tree(store.load().tree, 1)
        assert store.verify().damaged == (2,)
        with pytest.raises(DamagedCheckpointError):
            store.load(2)


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", b"PK", b"half", None])
def test_a_step_with_a_damaged_index_is_saved_again(tmp_path, data):
    """A resumed run replaces a step whose index cannot be read, as any damaged step."""
    with CheckpointStore(tmp_path) as store:
        store.save(1, tree_of(1), shard_size=100_000)
        store.save(2, tree_of(2), shard_size=100_000)
    index = tmp_path / "step_00000002" / "index.npz"
    index.write_bytes(index.read_bytes()[:-9] if data is None else data)
    with CheckpointStore(tmp_path) as store:
        with pytest.warns(DamagedCheckpointWarning, match="step 2"):
            assert store.load().step == 1
        store.save(2, tree_of(3), shard_size=100_000)
        check_tree(store.load().tree, 3)
        assert store.verify().ok
    with CheckpointStore(tmp_path) as store:
        store.save(3, tree_of(3), shard_size=100_000)
    names = set(os.listdir(index.parent))
    with npzkit.open(index.parent) as npz:
        assert names == {"index.npz", *(part.shard for key in npz for part in npz.parts(key))}


def test_a_folder_without_an_index_is_no_step(tmp_path):
    """What a killed writer left is no step, and the next writer removes it."""
    with CheckpointStore(tmp_path) as store:
        store.save(1, tree_of(), shard_size=100_000)
        store.save(2, tree_of(), shard_size=100_000)
    (tmp_path / "step_00000002" / "index.npz").unlink()
    notes = tmp_path / "step_00000007"
    notes.mkdir()
    (notes / "notes.txt").write_text("mine")
    with CheckpointStore(tmp_path) as store:
        assert store.steps == (1,)
        store.save(3, tree_of())
        assert store.steps == (1, 3)
        assert os.path.basename(store.path(3)) == "step_00000003"
    assert not (tmp_path / "step_00000002").exists()
    assert (notes / "notes.txt").exists()


def test_a_failed_save_leaves_the_older_step(tmp_path, monkeypatch):
    """If the index cannot be written, the older step stays, and no shard of the new one."""
    with CheckpointStore(tmp_path) as store:
        store.save(1, tree_of(1), shard_size=100_000)
        before = sorted(os.listdir(tmp_path / "step_00000001"))
        monkeypatch.setattr("npzkit.stores.objects.LocalFolder.put", _full)
        with pytest.raises(OSError, match="full"):
            store.save(1, tree_of(2), shard_size=100_000)
        monkeypatch.undo()
        assert sorted(os.listdir(tmp_path / "step_00000001")) == before
        check_tree(store.load().tree, 1)


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), KeyboardInterrupt()], ids=repr)
def test_a_save_that_fails_after_its_commit_is_complete(tmp_path, monkeypatch, error):
    """If old shards cannot be removed, or Ctrl-C comes then, the new step stays complete."""
    with CheckpointStore(tmp_path) as store:
        store.save(1, tree_of(1), shard_size=100_000)
        with monkeypatch.context() as patched, pytest.raises(type(error)):
            patched.setattr("npzkit.stores.objects.LocalFolder.remove", Mock(side_effect=[error]))
            store.save(1, tree_of(2), shard_size=100_000)
        check_tree(store.load().tree, 2)


def _full(*arguments, **options):
    raise OSError(28, "the disk is full")


# -- crashes ---------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path):
    """A step that is split, saved again as another version, recorded file by file."""
    folder = tmp_path / "run" / "step_00000001"
    with CheckpointStore(tmp_path / "run") as store:
        store.save(1, tree_of(0), shard_size=200_000)
        with recorded(folder) as recorder:
            work = Followed(recorder)
            work.mark(0, 1)
            store.save(1, tree_of(1), shard_size=200_000)
            work.mark(1)
    return work


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["killed", "power"])
def test_a_crash_leaves_the_older_step_or_the_new_one(work, tmp_path, kind):
    """After a kill or a loss of power while a step is saved again, one of the two is loaded."""
    folders = (
        killed_folders(work) if kind == "killed"
        else power_loss_folders(work, random.Random(1), amount(2, 50))
    )  # fmt: skip

    def check(_, allowed):
        with CheckpointStore(tmp_path / "state") as store, warnings.catch_warnings(action="error"):
            tree = store.load().tree
        version = tree["lr"] - 0.5
        assert version in allowed
        check_tree(tree, version)

    assert check_folders(folders, tmp_path / "run", tmp_path / "state", STATE_COUNT, check)
