"""A folder of checkpoints: what is saved is loaded, or an error says what is wrong."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import io
import itertools
import os
import shutil
import warnings
import zipfile
from collections import namedtuple
from pathlib import Path

import npzkit
import numpy as np
import pytest
from deep import extent
from faults import FaultyOS
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.checkpoint.steps import Steps
from npzkit.errors import (
    ArchiveLockedError,
    ClosedArchiveError,
    DamagedCheckpointError,
    DamagedCheckpointWarning,
    MemberNotFoundError,
    NoCheckpointError,
    NotMappableError,
    PickleRefusedError,
    StaleArchiveError,
    TreeMismatchError,
    TreeMismatchWarning,
    UnsupportedError,
    ZipFormatError,
)
from npzkit.files import disk
from places import damage, join, on_disk, rename, stored
from systems import WRITE, needs_symlinks, replaces_open_files

TREE = {
    "model": {"encoder": {"w": np.arange(12.0).reshape(3, 4)}, "head": {"b": np.ones(2)}},
    "optimizer": {"state": {0: {"m": np.zeros(2)}, 1: {"m": np.ones(3)}}, "lr": 0.1},
    "history": [None, 1, (2.5, "x", np.arange(3)), []],
    "empty": {},
}


@pytest.fixture
def store(place):
    with CheckpointStore(place, durable=False) as store:
        yield store


def foreign():
    """Return an archive of another program."""
    file = io.BytesIO()
    np.savez(file, w=np.ones(3))
    return file.getvalue()


def filled(store, count=3):
    """Save steps 0, 10, 20, ... whose arrays say which step they are of."""
    for step in range(0, 10 * count, 10):
        store.save(step, {"w": np.full(100, step)}, metrics={"loss": 100 - step})
    return store


def assert_same(one, other):
    """Both trees have the same types, keys in order and arrays."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


# -- saving and loading ---------------------------------------------------------


def test_a_tree_comes_back(store):
    """Dicts with int keys, lists, tuples, None, numbers and arrays come back as they were."""
    saving = store.save(7, TREE, metrics={"loss": np.float32(0.5)}, metadata={"lr": [1, 2]})
    assert (saving.step, saving.done(), saving.skipped, saving.removed) == (7, True, False, ())
    checkpoint = store.load()
    assert_same(checkpoint.tree, TREE)
    assert checkpoint.step == 7
    assert checkpoint.metrics == {"loss": 0.5}
    assert type(checkpoint.metrics["loss"]) is float
    assert checkpoint.metadata == {"lr": [1, 2]}
    assert repr(checkpoint) == "Checkpoint(step=7, metrics={'loss': 0.5})"
    assert store.metrics(7) == {"loss": 0.5}
    assert store.metadata(7) == {"lr": [1, 2]}


@pytest.mark.parametrize("options", [{}, {"shard_size": 1000}])
@pytest.mark.parametrize(
    "tree",
    [
        ({"w": np.ones(3)}, [np.zeros(200), None, (0.5, {})]),
        [np.arange(3), {"dense/kernel": np.ones(200), "c": {"d": np.zeros(2)}}],
        {"dense/kernel": np.ones(2), "dense/bias": np.zeros(2)},
        (),
        [],
        {},
        collections.namedtuple("EmptyState", "")(),
        np.arange(5),
    ],
)
def test_any_tree_is_a_step(store, tree, options):
    """Tuples, lists, namedtuples and arrays come back without a dict around them."""
    store.save(1, tree, **options)
    assert repr(store.load().tree) == repr(tree)
    assert repr(store.load(like=tree).tree) == repr(tree)
    assert repr(store.load(into=copy.deepcopy(tree)).tree) == repr(tree)
    store.save(2, tree, **options)
    assert npzkit.diff(store.path(1), store.path(2)).rows == ()
    assert store.verify().ok


@on_disk
def test_a_step_is_a_file_that_numpy_opens(store):
    """The file is named after its step, and np.load reads its arrays."""
    saving = store.save(123, TREE)
    assert os.path.basename(saving.path) == "step_00000123.npz"
    assert saving.path == store.path(123)
    with np.load(saving.path) as npz:
        np.testing.assert_array_equal(npz["model/encoder/w"], TREE["model"]["encoder"]["w"])


def test_steps_are_listed_by_number(store):
    """Steps are ascending ints; other files are not steps."""
    assert store.steps == ()
    assert store.latest is None
    for step in (100, 5, 10**9):
        store.save(step, {})
    for name in ("step_1.npz", "step_000000007.npz", "step_00000001.npz.tmp", "latest"):
        stored(join(store.folder, name)).write_bytes(b"")
    assert store.steps == (5, 100, 10**9)
    assert store.latest == 10**9
    assert list(store) == [5, 100, 10**9]
    assert 100 in store
    assert 101 not in store
    assert "3 steps, the newest is 1000000000" in repr(store)


def test_a_step_is_replaced(store):
    """A step that is saved again holds what was saved last."""
    store.save(1, {"w": np.zeros(3), "old": np.zeros(1)}, metrics={"loss": 1.0})
    assert store.metrics(1) == {"loss": 1.0}
    store.save(1, {"w": np.ones(3)}, metrics={"loss": 2.0}, verify="after")
    assert_same(store.load(1).tree, {"w": np.ones(3)})
    assert store.metrics(1) == {"loss": 2.0}


def test_a_save_that_fails_changes_nothing(store):
    """An object that cannot be saved is refused with its key, and the old step stays."""
    store.save(1, {"w": np.zeros(3)})
    with pytest.raises(npzkit.NpzkitError, match="'bad'"):
        store.save(1, {"w": np.ones(3), "bad": np.array([object()])})
    with pytest.raises(TypeError, match="JSON"):
        store.save(1, {}, metadata={"x": object()})
    assert_same(store.load(1).tree, {"w": np.zeros(3)})
    assert store.steps == (1,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("1", {}), TypeError),
        ((True, {}), TypeError),
        ((1.0, {}), TypeError),
        ((-1, {}), ValueError),
        ((10**18, {}), ValueError),
        ((1, {1.5: 0}), TypeError),
        ((1, {}, {"loss": "low"}), TypeError),
        ((1, {}, {"loss": np.ones(2)}), TypeError),
        ((1, {}, {1: 1.0}), TypeError),
        ((1, {}, 0.5), TypeError),
        ((1, None), TypeError),
        ((1, "text"), TypeError),
        ((1, {}, None, [1]), TypeError),
        ((1, {}, None, {"x": {1: 2}}), TypeError),
    ],
)
def test_arguments_are_checked_before_anything_is_written(store, arguments, error):
    """A step, tree or metric of the wrong kind is refused, and no folder is made."""
    with pytest.raises(error):
        store.save(*arguments)
    assert not os.path.exists(store.folder)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"keep": 3}, TypeError),
        ({"when_busy": "never"}, ValueError),
        ({"compression": "zip"}, ValueError),
        ({"max_memory": -1}, ValueError),
    ],
)
def test_options_are_checked(tmp_path, options, error):
    """A store is not made with an option that it does not know."""
    with pytest.raises(error):
        CheckpointStore(tmp_path, **options)


@pytest.mark.remedy("Use a store of objects, such as s3://bucket/run.")
@pytest.mark.parametrize("url", ["https://me:secret@host/run", "simplecache::memory://remedy/run"])
def test_what_cannot_be_listed_holds_no_store(url):
    """A web server and a chain are refused, and no local folder gets the name; a store is taken."""
    with pytest.raises(UnsupportedError, match="store of objects") as caught:
        CheckpointStore(url)
    assert "secret" not in str(caught.value)
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    with CheckpointStore("memory://remedy/run") as store:
        store.save(1, {"w": np.ones(2)})
        assert store.load(1).tree["w"].tolist() == [1, 1]
    fsspec.filesystem("memory").rm("/remedy", recursive=True)


def test_integers_of_numpy_are_steps(store):
    """A step may be a NumPy integer; it becomes an int."""
    assert type(store.save(np.int64(3), {}).step) is int
    assert type(store.load(np.uint8(3)).step) is int


@pytest.mark.slow
def test_large_structures_come_back(store):
    """Metadata that the zip comment cannot hold come back, and are checked."""
    count = extent(3000, 50_000)
    tree = {"names": {f"layer{i}": {"name": "x" * 10, "n": i} for i in range(count)}}
    store.save(1, tree, metadata={"notes": "y" * 100_000})
    checkpoint = store.load()
    assert checkpoint.tree == tree
    assert store.load(like=tree, only="names/layer7").tree == tree
    assert len(checkpoint.metadata["notes"]) == 100_000
    damage(store.path(1), b"y" * 1000)
    with pytest.raises(DamagedCheckpointError):
        store.load(1)


def test_compressed_steps(tmp_path):
    """Arrays may be deflated; then they cannot be mapped, which is not damage."""
    with CheckpointStore(tmp_path, compression="deflated", durable=False) as store:
        store.save(1, {"w": np.zeros(100_000)})
        assert os.path.getsize(store.path(1)) < 10_000
        assert_same(store.load().tree, {"w": np.zeros(100_000)})
        with pytest.raises(NotMappableError):
            store.load(mmap_mode="r")


@on_disk
def test_mapped_arrays(store):
    """Arrays can be mapped, read-only or with changes that stay in memory."""
    store.save(1, TREE)
    tree = store.load(mmap_mode="r").tree
    assert isinstance(tree["model"]["head"]["b"], np.memmap)
    assert not tree["model"]["head"]["b"].flags.writeable
    changed = store.load(mmap_mode="c").tree["model"]["head"]["b"]
    changed[:] = 7
    assert store.load().tree["model"]["head"]["b"][0] == 1
    with pytest.raises(ValueError, match="mmap_mode"):
        store.load(mmap_mode="r+")


@on_disk
def test_mapped_steps_are_checked(store):
    """A damaged step is passed over before it is mapped, too."""
    filled(store)
    damage(store.path(20))
    with pytest.warns(DamagedCheckpointWarning, match="step 20 is damaged, key 'w'"):
        assert store.load(mmap_mode="r").step == 10
    with pytest.raises(DamagedCheckpointError, match="step 20 is damaged"):
        store.load(20, mmap_mode="r")
    assert store.load(20, mmap_mode="r", verify=False).step == 20


def test_a_namedtuple_is_refused_or_comes_back(store):
    """What would come back as another type is refused with its key."""
    pair = namedtuple("pair", "a b")
    try:
        store.save(1, {"p": {"q": pair(1, 2)}})
    except UnsupportedError as error:
        assert error.key == "p/q"  # noqa: PT017
    else:
        assert tuple(store.load().tree["p"]["q"]) == (1, 2)


# -- parts of a tree ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("model/*", {"model": TREE["model"]}),
        ("model", {"model": TREE["model"]}),
        ("model/", {"model": TREE["model"]}),
        (["*/b", "optimizer/lr"], {"model": {"head": TREE["model"]["head"]}, "optimizer": {"lr": 0.1}}),
        ("optimizer/state/1", {"optimizer": {"state": {1: {"m": np.ones(3)}}}}),
        ("history", {"history": TREE["history"]}),
        ("history/2/1", {"history": {2: {1: "x"}}}),
        ("empty", {"empty": {}}),
        ("*", TREE),
    ],
)  # fmt: skip
def test_parts_are_loaded_by_patterns(store, only, expected):
    """A key, the start of a key or a pattern selects arrays and values, in their structure."""
    store.save(1, TREE)
    assert_same(store.load(only=only).tree, expected)


def test_a_part_reads_no_other_array(store):
    """Damage in what is not asked for does not matter."""
    store.save(1, {"a": np.zeros(100), "b": np.ones(100)})
    damage(store.path(1))
    assert_same(store.load(only="b").tree, {"b": np.ones(100)})
    with pytest.raises(DamagedCheckpointError, match="key 'a'"):
        store.load(1)


def test_a_pattern_that_matches_nothing(store):
    """It is an error, with a suggestion; so is no pattern at all."""
    store.save(1, TREE)
    with pytest.raises(MemberNotFoundError, match="modle"):
        store.load(only=["model", "modle/head/b"])
    for only, error in (([], ValueError), ([1], TypeError)):
        with pytest.raises(error):
            store.load(only=only)


# -- by an example ----------------------------------------------------------------


@dataclasses.dataclass
class Model:
    w: np.ndarray
    rate: float


def test_an_example_gives_the_types(store):
    """Dataclasses and dtypes are those of the example, which stays as it is."""
    store.save(1, {"model": Model(np.arange(3.0), 0.5), "n": [1, 2]})
    example = {"model": Model(np.zeros(3), 0.0), "n": ...}
    tree = store.load(like=example).tree
    assert isinstance(tree["model"], Model)
    assert_same([tree["model"].w, tree["model"].rate, tree["n"]], [np.arange(3.0), 0.5, [1, 2]])
    assert example["model"].rate == 0
    assert store.load(1, example).tree["model"].rate == 0.5


def test_an_example_is_filled_in_place(store):
    """The arrays that a program has get the values of the step."""
    store.save(1, {"w": np.arange(3.0), "step": 5})
    w = np.zeros(3)
    state = {"w": w, "step": 0}
    assert store.load(into=state).tree is state
    assert state["step"] == 5
    assert w.tolist() == [0, 1, 2]


def test_a_damaged_step_fills_nothing(store):
    """The example gets the values of the newest sound step, and none of a damaged one."""
    store.save(1, {"a": np.ones(100), "b": np.ones(100)})
    store.save(2, {"a": np.full(100, 2.0), "b": np.full(100, 2.0)})
    damage(store.path(2), b"b.npy")
    state = {"a": np.zeros(100), "b": np.zeros(100)}
    with pytest.raises(DamagedCheckpointError):
        store.load(2, into=state)
    assert not state["a"].any()
    with pytest.warns(DamagedCheckpointWarning):
        assert store.load(into=state).step == 1
    assert_same(state, {"a": np.ones(100), "b": np.ones(100)})


def test_what_does_not_fit_an_example(store):
    """All keys are named, no older step is taken instead; with strict=False the rest is loaded."""
    store.save(1, {"a": np.ones(2), "b": np.ones(2), "old": 1})
    store.save(2, {"a": np.ones(2), "b": np.ones(3), "left": 1})
    example = {"a": np.zeros(2), "b": np.zeros(2), "old": 0}
    with pytest.raises(TreeMismatchError) as found:
        store.load(like=example)
    assert (found.value.missing, found.value.left_over) == (("old",), ("left",))
    assert "'b'" in str(found.value)
    assert store.path(2) in str(found.value)
    with pytest.warns(TreeMismatchWarning):
        tree = store.load(like=example, strict=False).tree
    assert_same(tree, {"a": np.ones(2), "b": np.zeros(2), "old": 0})
    with pytest.raises(ValueError, match="one of them"):
        store.load(like=example, into=example)


def test_parts_are_loaded_into_an_example(store):
    """With only=, all else keeps the example's value, and no other array is read."""
    store.save(1, {"a": np.ones(100), "b": np.ones(100)})
    damage(store.path(1))
    tree = store.load(like={"a": np.zeros(100), "b": np.zeros(100)}, only="b").tree
    assert_same(tree, {"a": np.zeros(100), "b": np.ones(100)})


@on_disk
def test_an_example_may_be_mapped(store):
    """Arrays that are mapped have the example's structure too."""
    store.save(1, {"w": [np.arange(3.0)]})
    tree = store.load(like={"w": [np.zeros(3)]}, mmap_mode="r").tree
    assert tree["w"][0].tolist() == [0, 1, 2]


# -- damage ---------------------------------------------------------------------


def test_the_newest_sound_step_is_loaded(store):
    """Damaged steps are passed over with a warning that names each of them and the reason."""
    filled(store)
    damage(store.path(20))
    with pytest.warns(DamagedCheckpointWarning, match="step 20 is damaged.*'w'.*CRC-32") as found:
        checkpoint = store.load()
    assert checkpoint.step == 10
    assert len(found) == 1
    assert found[0].filename == __file__
    assert store.steps == (0, 10, 20)


@pytest.mark.remedy("store.load() takes the newest step that is sound.")
def test_a_damaged_step_is_an_error(store):
    """A step that is asked for is not replaced by another one, which load() takes."""
    filled(store)
    damage(store.path(20))
    with pytest.raises(DamagedCheckpointError, match="step 20 is damaged") as found:
        store.load(20)
    assert found.value.key == "w"
    assert found.value.path == store.path(20)
    assert store.load(20, verify=False).step == 20
    with pytest.warns(DamagedCheckpointWarning):
        assert store.load().step == 10


def test_a_refused_pickle_is_damage_only_if_bytes_changed(tmp_path):
    """A sound step with Python objects is not passed over; a step that became such a one is."""
    with CheckpointStore(tmp_path, durable=False) as store:
        filled(store, 2)
        path = Path(store.path(10))
        sound = path.read_bytes()
        with npzkit.NpzWriter(path, "a", allow_pickle=True) as w:
            w.add("w", np.array([{}], object), overwrite=True)
        with pytest.raises(PickleRefusedError, match="'w'"):
            store.load()
        assert store.verify().ok
        assert store.latest == 10
        path.write_bytes(sound.replace(b"'<i", b"'|O"))
        with pytest.warns(DamagedCheckpointWarning, match="step 10"):
            assert store.load().step == 0


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 1000, None])
def test_what_is_no_checkpoint_is_damaged(store, content):
    """An empty file, a piece of one, and the archive of another program are damaged steps."""
    filled(store, 2)
    stored(store.path(20)).write_bytes(foreign() if content is None else content)
    with pytest.warns(DamagedCheckpointWarning, match="step 20"):
        assert store.load().step == 10
    with pytest.raises(DamagedCheckpointError):
        store.metrics(20)
    assert store.best("loss") == 10
    assert store.verify().damaged == (20,)


@pytest.mark.remedy("If it is not of this step, rename it.")
@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_renamed_step_is_damaged(store, is_foreign):
    """A file that is named for another step is not taken for that step, until it is renamed."""
    filled(store, 2)
    rename(store.path(0), store.path(20))
    if is_foreign:
        stored(store.path(20)).write_bytes(foreign())
    what = "metadata of the checkpoint" if is_foreign else "another step"
    with pytest.warns(DamagedCheckpointWarning, match=what):
        assert store.load().step == 10
    with pytest.raises(DamagedCheckpointError, match=rf"{what}.*rename it\. store\.load\(\)"):
        store.load(20)
    rename(store.path(20), join(store.folder, "mine.npz") if is_foreign else store.path(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.load().step == 10
    assert store.steps == ((10,) if is_foreign else (0, 10))
    assert store.verify().ok


@on_disk
@pytest.mark.remedy(
    "npzkit.repair(store.path(step), output) saves the sound arrays of a step that is a file",
    "npzkit.open(store.path(step)) reads those of one that is a folder",
)
@pytest.mark.parametrize("size", [None, 1000], ids=["file", "folder"])
def test_sound_arrays_of_a_damaged_step(store, tmp_path, size):
    """If no step is sound, what is sound of one can be saved, or read."""
    store.save(5, {"w": np.arange(100), "b": np.arange(3)}, shard_size=size)
    path = Path(store.path(5))
    damage(path if size is None else next(path.glob("shard-*.npz")))
    with pytest.warns(DamagedCheckpointWarning), pytest.raises(DamagedCheckpointError):
        store.load()
    if size is None:
        assert npzkit.repair(path, tmp_path / "sound.npz").kept == ("b",)
        path = tmp_path / "sound.npz"
    with npzkit.open(path) as npz:
        assert npz["b"].tolist() == [0, 1, 2]


@on_disk
def test_a_step_that_was_repaired_with_losses_is_damaged(store, tmp_path):
    """A copy of a step without all of its arrays is skipped, as the damaged step was."""
    other = CheckpointStore(tmp_path / "repaired")
    os.mkdir(other.folder)
    for step in (5, 6):
        store.save(step, {"w": np.arange(100), "b": np.arange(3)})
        path = Path(store.path(step))
        if step == 6:
            damage(path)
        lost = npzkit.repair(path, other.path(step)).lost
        assert [row.key for row in lost] == ["w"] * (step == 6)
    with pytest.warns(
        DamagedCheckpointWarning, match="step 6 is damaged: it was repaired with losses: 'w'"
    ):
        assert other.load().step == 5
    assert not other.verify().ok
    with npzkit.open(other.path(6)) as npz:
        assert npz["b"].tolist() == [0, 1, 2]


def test_no_sound_step_is_an_error(store):
    """If all steps are damaged, nothing is loaded, and the error is another one than for no step."""
    filled(store)
    for step in store.steps:
        damage(store.path(step))
    with (
        pytest.warns(DamagedCheckpointWarning),
        pytest.raises(DamagedCheckpointError, match="3 damaged: "),
    ):
        store.load()


@pytest.mark.remedy("store.steps lists them.")
def test_a_step_that_does_not_exist(store):
    """The error says where the steps are listed, each of which is loaded."""
    filled(store)
    with pytest.raises(NoCheckpointError, match=r"no step 7.*3 steps, the newest is 20"):
        store.load(7)
    assert [store.load(step).step for step in store.steps] == [0, 10, 20]


@on_disk
def test_a_folder_with_the_name_of_a_step(store):
    """The error of the save says so: the one of the system named no way out of it."""
    os.makedirs(store.path(5))
    with pytest.raises(IsADirectoryError, match="name of this step's file: move it away") as info:
        store.save(5, {"w": np.ones(2)})
    assert info.value.filename == store.path(5)
    os.rename(info.value.filename, os.path.join(store.folder, "other"))
    store.save(5, {"w": np.ones(2)})
    assert store.load().step == 5


@pytest.mark.remedy("Check the folder. To begin a new run, catch NoCheckpointError.")
def test_a_new_run_begins_where_there_is_no_step(store):
    """A program that catches the error begins; the next time, it goes on."""
    begun = []
    for _ in range(2):
        try:
            begun.append(store.load().step)
        except NoCheckpointError:
            begun.append("a new run")
            store.save(1, {})
    assert begun == ["a new run", 1]


def test_no_step_is_an_error(store, tmp_path):
    """An empty folder, or none, never begins a run in silence."""
    with pytest.raises(NoCheckpointError, match="no checkpoint"):
        store.load()
    with pytest.raises(KeyError):
        store.load(3)
    calls = (store.metrics, store.metadata, store.verify, store.delete, store._files)
    for call in (*calls, store.__getitem__):
        with pytest.raises(NoCheckpointError, match="3"):
            call(3)
    assert store.best("loss") is None
    with pytest.raises(NoCheckpointError, match="no checkpoint"):
        store.verify()
    assert not os.path.exists(store.folder)


@pytest.mark.slow
@on_disk
def test_every_flipped_bit_of_a_step_without_arrays_is_found(store):
    """Its structure, metrics and metadata have a checksum: no changed number comes back."""
    store.save(1, {"a": {"lr": 0.125, "n": 17}}, metrics={"loss": 0.25}, metadata={"k": "v"})
    path = Path(store.path(1))
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(DamagedCheckpointError):
            store.load(1)


@on_disk
def test_a_step_that_another_program_wrote_again_is_damaged(store):
    """Its arrays and its comment are sound, but nothing checks the names and attributes."""
    filled(store)
    with zipfile.ZipFile(store.path(20)) as source:
        members = {name: source.read(name) for name in source.namelist()}
        comment = source.comment
    with zipfile.ZipFile(store.path(20), "w") as target:
        for name, data in members.items():
            target.writestr(name, data)
        target.comment = comment
    with pytest.warns(DamagedCheckpointWarning, match="step 20 .* checksums of the checkpoint"):
        assert store.load().step == 10
    assert store.verify().damaged == (20,)
    with npzkit.open(store.path(20)) as npz:
        assert npz.files == ["w"]


def test_verify_reports_every_step(store):
    """The report has an `ok` for the store and for each step, as JSON and as text too."""
    filled(store)
    assert store.verify().ok
    damage(store.path(10))
    report = store.verify()
    assert not report.ok
    assert {step: found.ok for step, found in report.steps.items()} == {
        0: True,
        10: False,
        20: True,
    }
    assert report.damaged == (10,)
    assert '"10"' in report.to_json()
    assert "step 10: NOT sound" in str(report)
    assert "\n  w: the data is damaged" in str(report)
    assert store.verify(20).ok
    assert not store.verify(10).ok


class FlippingOS(FaultyOS):
    """`os`, which writes one bit of large data wrongly, and does not say so."""

    def _call(self, name, real, *args, **options):
        if name == WRITE and len(args[1]) > 1000:
            data = bytearray(args[1])
            data[len(data) // 2] ^= 1
            args = (args[0], data, *args[2:])
        return real(*args, **options)


@pytest.mark.parametrize("background", [False, True])
def test_what_reached_the_disk_is_read_back(tmp_path, monkeypatch, background):
    """A bit that flips on its way to the disk is found by verify="after", and no step is removed."""
    with CheckpointStore(tmp_path, keep=latest(1), background=background) as store:
        store.save(1, {"w": np.zeros(1000)}, verify="after").wait()
        assert store.verify(1).ok
        with monkeypatch.context() as patched:
            patched.setattr(disk, "os", FlippingOS())
            with pytest.raises(DamagedCheckpointError, match="step 2 is damaged, key 'w'"):
                store.save(2, {"w": np.zeros(1000)}, verify="after").wait()
        with pytest.warns(DamagedCheckpointWarning):
            assert store.load().step == 1
        with pytest.raises(ValueError, match="verify"):
            store.save(3, {}, verify="before")


def test_reading_back_without_posix_fadvise(store, monkeypatch):
    """A system that cannot drop its cache reads back what it has."""
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    store.save(1, {"w": np.zeros(10)}, verify="after")
    assert store.steps == (1,)


# -- one step as an archive, and two ----------------------------------------------


def test_a_step_is_a_lazy_archive(store):
    """store[step] is an NpzFile."""
    store.save(1, TREE)
    with store[1] as npz:
        assert npz.lazy("model/encoder/w")[1, 2] == 6
    with pytest.raises(KeyError):
        store[2]


@on_disk
@pytest.mark.parametrize("size", [None, 100], ids=["file", "folder"])
def test_a_step_of_a_newer_npzkit(store, size):
    """A higher version is an error that says what to do, not damage: no older step is loaded."""
    for step in (1, 2):
        store.save(step, {"w": np.zeros(100)}, shard_size=size)
    path = store.path(2)
    with npzkit.NpzWriter(path if size is None else Path(path, "index.npz"), "a") as w:
        w.metadata["npzkit.checkpoint"]["version"] = 2
    report = store.verify()
    assert report.damaged == (2,)
    assert "a version that this npzkit does not know" in report.steps[2].rows[0].what
    for call in (store.load, lambda: store.load(2), lambda: store.metrics(2)):
        with pytest.raises(UnsupportedError, match="Install a newer npzkit") as caught:
            call()
        assert (caught.value.found, caught.value.path) == (2, path)
    assert store.load(1).step == 1


def test_delete_removes_a_step(store):
    """A step that is deleted is gone, even the last one."""
    filled(store, 2)
    store.delete(0)
    assert store.steps == (10,)
    store.delete(10)
    assert store.steps == ()


def test_metrics_of_the_best(store):
    """Of equal values the newer step is best; NaN and missing values are no candidates."""
    for step, metrics in enumerate(
        [{"f1": 0.5}, {"f1": 0.9}, {"f1": 0.9}, {"f1": float("nan")}, {}]
    ):
        store.save(step, {}, metrics=metrics)
    assert store.best("f1") == 0
    assert store.best("f1", mode="max") == 2
    with pytest.raises(ValueError, match="mode"):
        store.best("f1", mode="lowest")


def test_a_step_that_was_found_damaged_is_not_the_best(store):
    """After load, verify or retention found damage in a step's data, another step is best."""
    for step in (1, 2):
        store.save(step, {"w": np.arange(100.0)}, metrics={"f1": step})
    damage(store.path(2))
    assert not store.verify(2).ok
    assert store.best("f1", mode="max") == 1


def test_a_metric_that_no_step_has_is_an_error(store):
    """So is one that is never a number, because load(None) would load the newest step."""
    store.save(1, {})
    with pytest.raises(NoCheckpointError, match=r"the metric 'lss'.*Existing metrics: none"):
        store.best("lss")
    store.save(2, {}, metrics={"loss": float("nan")})
    with pytest.raises(NoCheckpointError, match="no sound step has a number as its metric 'loss'"):
        store.best("loss")
    store.save(3, {}, metrics={"loss": 1})
    with pytest.raises(NoCheckpointError, match=r"the metric 'lss'.*Did you mean 'loss'"):
        store.best("lss")
    assert store.best("loss") == 3


# -- several stores -------------------------------------------------------------


@on_disk
@pytest.mark.remedy("Wait until it is closed, or save to another folder. Reading needs no lock.")
def test_a_second_writer_is_refused(store, tmp_path):
    """While a store has written to a folder and is open, another one only reads it."""
    filled(store)
    with CheckpointStore(store.folder) as other:
        assert other.load().step == 20
        for write in (lambda: other.save(1, {}), lambda: other.delete(0), other.prune):
            with pytest.raises(ArchiveLockedError, match="another checkpoint store"):
                write()
        assert other.prune(dry_run=True) == ()
        assert CheckpointStore(tmp_path / "another", durable=False).save(1, {}).done()
        store.close()
        other.save(30, {})
    assert store.steps == (0, 10, 20, 30)


@pytest.mark.remedy("Make a new one.")
def test_a_closed_store(store):
    """A store that was closed says so; closing it again does nothing, and a new one goes on."""
    filled(store)
    store.close()
    store.close()
    for call in (store.load, store.verify, store.prune, lambda: store.save(1, {})):
        with pytest.raises(ClosedArchiveError):
            call()
    assert store.steps == (0, 10, 20)
    with CheckpointStore(store.folder, durable=False) as new:
        assert new.load().step == 20
        new.save(30, {})
    assert store.steps == (0, 10, 20, 30)


@on_disk
@replaces_open_files
def test_a_removed_folder_is_not_made_again(store):
    """If the folder goes away while a store writes, the next save fails instead of hiding it."""
    filled(store)
    shutil.rmtree(store.folder)
    with pytest.raises(FileNotFoundError):
        store.save(30, {})
    assert not os.path.exists(store.folder)
    # Once it is there again, the store continues.
    os.mkdir(store.folder)
    store.save(30, {})
    assert store.steps == (30,)


def test_the_working_directory_does_not_matter(tmp_path, monkeypatch):
    """A relative folder is the one it was when the store was made."""
    monkeypatch.chdir(tmp_path)
    with CheckpointStore("run", durable=False) as store:
        store.save(1, {})
        os.mkdir("elsewhere")
        monkeypatch.chdir("elsewhere")
        store.save(2, {})
        assert store.steps == (1, 2)


@on_disk
def test_leftovers_of_killed_writers_are_removed(store):
    """The first save of a store removes temporary files that no writer has open, and no others."""
    os.mkdir(store.folder)
    left = os.path.join(store.folder, f".npzkit-{'0' * 16}.tmp")
    for path in (left, os.path.join(store.folder, ".npzkit-mine.tmp")):
        with open(path, "wb") as file:
            file.write(b"half")
    with npzkit.NpzWriter(os.path.join(store.folder, "other.npz")) as writer:
        writer["w"] = np.ones(3)
        store.save(1, {})
    assert sorted(os.listdir(store.folder)) == [
        ".npzkit-checkpoints.lock", ".npzkit-mine.tmp", "other.npz", "step_00000001.npz",
    ]  # fmt: skip


@on_disk
@pytest.mark.skipif(os.name == "nt", reason="Windows removes no file in use, however old it is")
def test_without_locks_only_old_leftovers_are_removed(store, monkeypatch):
    """On a share without locks a temporary file may be in use: it must be an hour old."""
    from npzkit.files import system_locks

    monkeypatch.setattr(system_locks, "lock", lambda *args, **options: None)
    monkeypatch.setattr("npzkit.stores.objects.is_locked", lambda descriptor: False)
    os.mkdir(store.folder)
    paths = [os.path.join(store.folder, f".npzkit-{digit * 16}.tmp") for digit in "01"]
    for path in paths:
        with open(path, "wb") as file:
            file.write(b"half")
    hours_ago = os.stat(paths[0]).st_mtime - 7200
    os.utime(paths[0], (hours_ago, hours_ago))
    store.save(1, {})
    assert [os.path.exists(path) for path in paths] == [False, True]


@on_disk
def test_leftovers_on_windows(store, monkeypatch):
    """Where no open file can be removed, what can be removed is a leftover."""
    monkeypatch.setattr(disk, "RENAMES_OPEN_FILES", False)
    monkeypatch.setattr("npzkit.stores.objects.is_locked", lambda descriptor: False)
    os.mkdir(store.folder)
    left = os.path.join(store.folder, f".npzkit-{'0' * 16}.tmp")
    with open(left, "wb") as file:
        file.write(b"half")
    store.save(1, {})
    assert not os.path.exists(left)
    assert store.steps == (1,)


def test_loading_while_another_process_removes_steps(store, monkeypatch):
    """A step that goes away between listing and opening is not damage: an older one is loaded."""
    filled(store)
    folder = type(store._storage)
    real = folder.open

    def gone(self, step, **options):
        with contextlib.suppress(FileNotFoundError):
            if step == 20:
                stored(self.path_of(20)).unlink()
        return real(self, step, **options)

    monkeypatch.setattr(folder, "open", gone)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.load().step == 10
    with pytest.raises(NoCheckpointError):
        store.load(20)


def test_a_disk_that_cannot_be_read_now_is_no_damage(store, monkeypatch):
    """An input/output error is raised as it is: no older step is loaded, and none is removed."""
    import errno

    filled(store)
    folder = type(store._storage)
    real = folder.open

    def broken(self, step, **options):
        if step == 20:
            raise OSError(errno.EIO, "Input/output error", self.path_of(20))
        return real(self, step, **options)

    monkeypatch.setattr(folder, "open", broken)
    for read in (store.load, store.verify, lambda: store.load(20), lambda: store[20]):
        with pytest.raises(OSError, match="Input/output error"):
            read()
    steps = store.steps
    store.close()
    with CheckpointStore(store.folder, keep=latest(1)) as other:
        with pytest.raises(OSError, match="Input/output error"):
            other.prune()
        assert other.steps == steps
        monkeypatch.undo()
        assert other.load().step == 20
        assert other.verify().ok


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the header of this array")
@pytest.mark.parametrize("size", [None, 1], ids=["file", "folder"])
def test_an_array_with_many_fields_comes_back(store, size):
    """A header above NumPy's limit is no damage: what was saved is loaded."""
    array = np.ones(2, [(f"field_number_{n}", "<f8") for n in range(500)])
    store.save(1, {"x": array}, shard_size=size)
    assert store.verify().ok
    assert_same(store.load(1).tree, {"x": array})


@pytest.mark.slow
def test_the_package_is_imported_on_first_use():
    """npzkit.checkpoint needs no import of its own, and `import npzkit` does not pay for it."""
    import subprocess
    import sys

    code = (
        "import sys, npzkit; print('npzkit.checkpoint' in sys.modules, npzkit.checkpoint.latest(2))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("False latest(2)\n", "")


def test_parts_of_a_namedtuple_have_its_fields_names(tmp_path):
    """A field is loaded by the name under which np.load shows it."""
    point = collections.namedtuple("Point", "x y")
    with CheckpointStore(tmp_path / "run") as store:
        store.save(1, {"p": point(np.arange(2), 3)})
        store.save(2, {"p": point(np.arange(2), 4)})
        assert_same(store.load(1, only="p/x").tree, {"p": {"x": np.arange(2)}})
        found = store.load(1, only="p/*").tree["p"]
        assert (found._fields, found.y) == (("x", "y"), 3)


@needs_symlinks
@pytest.mark.remedy("Check whether its disk is mounted.")
def test_a_step_that_is_a_link_to_nothing_is_damaged(tmp_path):
    """If the disk of the newest step is missing, load warns, verify says so, and saving works."""
    with CheckpointStore(tmp_path / "run", durable=False) as store:
        for step in (1, 2):
            store.save(step, {"w": np.full(3, step)})
        path = Path(store.path(2))
        path.rename(tmp_path / "elsewhere.npz")
        path.symlink_to(tmp_path / "elsewhere.npz")
        assert store.load().step == 2
        (tmp_path / "elsewhere.npz").rename(tmp_path / "unmounted.npz")
        with pytest.warns(DamagedCheckpointWarning, match="link to a file that does not exist"):
            assert store.load().step == 1
        assert store.verify().damaged == (2,)
        with pytest.raises(DamagedCheckpointError, match="link to a file"):
            store.load(2)
        (tmp_path / "unmounted.npz").rename(tmp_path / "elsewhere.npz")
        assert store.load(2).tree["w"].tolist() == [2, 2, 2]
        (tmp_path / "elsewhere.npz").unlink()
        store.save(2, {"w": np.zeros(3)})
        assert store.load().tree["w"].tolist() == [0, 0, 0]
        (tmp_path / "elsewhere.npz").unlink()
        assert path.is_symlink()
        store.delete(2)
        assert store.steps == (1,)
        assert not path.is_symlink()


@needs_symlinks
def test_links_of_others_are_left_alone(tmp_path):
    """A link that leads to itself is no step, and stops nothing."""
    (tmp_path / "current").symlink_to(tmp_path / "current")
    with CheckpointStore(tmp_path, keep=latest(1), durable=False) as store:
        for step in (1, 2):
            store.save(step, {"w": np.zeros(3)})
        assert store.load().step == 2
        assert store.steps == (2,)


@replaces_open_files
def test_a_step_that_is_replaced_is_no_damage(tmp_path):
    """If the file that seemed damaged is another one by now, the new one is read."""
    with CheckpointStore(tmp_path) as store, CheckpointStore(tmp_path / "other") as other:
        store.save(1, {"w": np.zeros(3)})
        other.save(1, {"w": np.ones(30)})
        (name,) = (path.name for path in tmp_path.glob("step*"))
        tried = []

        def read(npz):
            tried.append(npz["w"].size)
            if len(tried) == 1:
                os.replace(tmp_path / "other" / name, tmp_path / name)
                raise ZipFormatError("torn")
            return npz["w"].sum()

        assert store._catalog.read(1, read)[1] == 30
    assert tried == [3, 30]


@pytest.mark.slow
@on_disk
@pytest.mark.remedy("Try again, or have the writer save less often, or keep more steps")
def test_a_step_that_is_replaced_each_time_is_not_called_missing(store, monkeypatch):
    """The error says that steps are saved faster than they are read, and not that there is none."""
    store.save(1, {}, {"loss": 1})
    times = itertools.count(1)

    def replaced(self, step, **options):
        os.utime(self.path_of(step), (0, next(times)))
        raise StaleArchiveError("the file was replaced")

    monkeypatch.setattr(type(store._storage), "open", replaced)
    for read in (store.metrics, store.metadata, store.load, store.verify):
        with pytest.raises(StaleArchiveError, match="faster than they can be read"):
            read(1)
    monkeypatch.undo()
    assert store.load(1).metrics == {"loss": 1}


@pytest.mark.remedy("keep more steps, as latest(3) does.")
def test_a_writer_that_removes_each_step_before_it_is_read(tmp_path, monkeypatch):
    """A reader is told; if the writer keeps three steps, it loads one of them."""
    monkeypatch.setattr("npzkit.checkpoint.steps._LOOKS", 10)
    numbers = itertools.count()
    for count in (1, 3):
        with CheckpointStore(tmp_path, keep=latest(count), durable=False) as writer:

            def save(writer=writer):
                number = next(numbers)
                writer.save(number, {"w": np.full(3, number)})

            save()
            reader = CheckpointStore(tmp_path)
            with monkeypatch.context() as patched:
                patched.setattr(Steps, "steps", before(save, reader))
                if count == 1:
                    with pytest.raises(StaleArchiveError, match="faster than they can be read"):
                        reader.load()
                else:
                    assert (found := reader.load()).tree["w"].tolist() == [found.step] * 3


def before(save, reader):
    """Return `Steps.steps`, whose list this reader has when another program has saved again."""
    real = Steps.steps

    def listed(steps):
        found = real(steps)
        if steps is reader._storage:
            save()
        return found

    return listed


def test_a_store_has_a_length_and_a_level(tmp_path):
    """len() counts its steps, a store without any is no false value, and steps have the level."""
    tree = {"w": np.arange(200_000) % 977}
    sizes = []
    for level in (1, 9):
        options = {"compression": "deflated", "level": level, "threads": 1}
        with CheckpointStore(tmp_path / str(level), **options) as store:
            assert (len(store), bool(store)) == (0, True)
            store.save(1, tree)
            store.save(2, tree)
            assert len(store) == 2
            sizes.append(os.stat(store.path(2)).st_size)
            np.testing.assert_array_equal(store.load().tree["w"], tree["w"])
    assert sizes[1] < sizes[0]
