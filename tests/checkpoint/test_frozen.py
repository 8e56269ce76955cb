"""Arrays that are declared frozen: written once, and shared by the steps that follow."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import fsspec
import npzkit
import numpy as np
import pytest
from archives import flip
from children import forked, read_rest
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.checkpoint.background import Background
from npzkit.errors import ArchiveLockedError, DamagedCheckpointWarning, MemberNotFoundError, quoted
from npzkit.files import disk
from npzkit.stores.objects import Objects
from s3 import counted_uploads, needs_s3, s3_server

FROZEN = "backbone/*"


def tree_of(step, base=0):
    backbone = {"w": np.arange(5000.0) + base, "none": np.zeros((0, 3)), "b": np.ones(3)}
    return {"head": np.full(40, step), "backbone": backbone, "bias": np.full(3, step)}


def check(store, step, base=0):
    tree, expected = store.load(step).tree, tree_of(step, base)
    assert list(tree) == list(expected)
    np.testing.assert_equal(tree, expected)


@pytest.fixture
def store(tmp_path):
    with CheckpointStore(tmp_path / "run", durable=False) as store:
        yield store


def shards_of(store, step):
    """Return the shards of a step, by the inode of each."""
    return {path.stat().st_ino: path for path in Path(store.path(step)).glob("shard-*.npz")}


def shared(store, *steps):
    """Return the inodes of the files that all of these steps have."""
    return set.intersection(*(set(shards_of(store, step)) for step in steps))


@pytest.mark.slow
def test_each_step_is_complete_alone(place, monkeypatch):
    """Steps that share files can be read, compared and removed as others; keys keep their order."""
    # No file is copied by this process.
    monkeypatch.setattr(Objects, "take", None)
    with CheckpointStore(place) as store:
        for step in range(3):
            store.save(step, tree_of(step), frozen=FROZEN)
        assert npzkit.diff(store.path(1), store.path(2)).changed == ("head", "bias")
        assert store.verify().ok
        store.delete(0)
        for step in (1, 2):
            check(store, step)
        with npzkit.open(store.path(2)) as npz:
            assert list(npz) == ["head", "backbone/w", "backbone/none", "backbone/b", "bias"]


def test_steps_have_the_same_files(store):
    """The files of frozen arrays are links of one; `numpy.load` opens each."""
    for step in range(3):
        store.save(step, tree_of(step), frozen=["backbone/w", "backbone/none", "backbone/b"])
    (number,) = shared(store, 0, 1, 2)
    with np.load(shards_of(store, 2)[number]) as npz:
        assert sorted(npz.files) == ["backbone/b", "backbone/none", "backbone/w"]
    assert sum(file.size for file in store._files(2)) > 40_000
    # A step that is saved again shares with itself, or with a newer one.
    store.save(2, tree_of(2), frozen=FROZEN)
    store.save(1, tree_of(1), frozen=FROZEN)
    assert shared(store, 0, 1, 2) == {number}
    for step in range(3):
        check(store, step)


def test_arrays_of_every_kind(store, arrays):
    """The CRC-32s of arrays of any dtype, order and size are those of their members."""
    arrays["large"] = np.ones((1 << 18) + 1)
    arrays["large strided"] = np.ones((2, 1 << 18))[:, ::2]
    for step in range(2):
        store.save(step, {**arrays, "step": np.arange(step)}, frozen=list(arrays))
    assert len(shared(store, 0, 1)) == 1
    assert npzkit.diff(store.path(0), store.path(1)).changed == ("step",)


@pytest.mark.slow
@pytest.mark.parametrize("check_crcs", [True, False])
def test_a_frozen_array_that_changes(store, check_crcs):
    """It is written with a warning that names it; unchecked, only its shape and dtype count."""
    save = store.save
    save(1, tree_of(1), frozen=FROZEN)
    with contextlib.ExitStack() as stack:
        if check_crcs:
            stack.enter_context(pytest.warns(RuntimeWarning, match="since step 1: backbone/w. "))
        save(2, tree_of(2, base=1), frozen=FROZEN, check=check_crcs)
    check(store, 2, base=1 if check_crcs else 0)
    for changed in (np.arange(5000), np.ones(8)):
        tree = tree_of(3)
        tree["backbone"]["w"] = changed
        with pytest.warns(RuntimeWarning, match="since step 2: backbone/w. "):
            save(3, tree, frozen=FROZEN, check=check_crcs)
        np.testing.assert_array_equal(store.load(3).tree["backbone"]["w"], changed)
        store.delete(3)


def test_only_files_of_frozen_arrays_are_shared(store):
    """An array that lies beside others which are not frozen is written, without a warning."""
    store.save(1, tree_of(1), frozen="backbone/w")
    for step in (2, 3):
        store.save(step, tree_of(step), frozen=FROZEN)
        check(store, step)
    assert (len(shared(store, 1, 2)), len(shared(store, 2, 3))) == (1, 2)


@pytest.mark.slow
def test_a_fresh_copy_every_n_steps(store):
    """`refresh=3` writes the frozen arrays in steps 0, 3, 6, also in a store that is new."""
    for step in range(8):
        with CheckpointStore(store.folder, frozen=FROZEN, durable=False) as other:
            other.save(step, tree_of(step), refresh=3)
    for steps in ((0, 1, 2), (3, 4, 5), (6, 7)):
        assert len(shared(store, *steps)) == 1
    assert not shared(store, 2, 3) | shared(store, 5, 6)


def test_the_declaration_of_a_store(tmp_path):
    """`CheckpointStore(frozen=...)` holds for all steps but those that say otherwise."""
    with CheckpointStore(tmp_path, frozen=iter([FROZEN]), durable=False) as store:
        store.save(1, tree_of(1))
        store.save(2, tree_of(2))
        assert len(shared(store, 1, 2)) == 1
        path = store.save(3, tree_of(3), frozen=()).path
        assert path == store.path(3) == str(tmp_path / "step_00000003")
        store.save(4, tree_of(4))
        assert not shared(store, 2, 4)
    with CheckpointStore(tmp_path / "other", frozen=FROZEN, durable=False) as store:
        for step, options in enumerate(({"frozen": ()}, {}, {})):
            store.save(step, tree_of(step), **options)
        assert len(shared(store, 1, 2)) == 1


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"frozen": "backbone/v"}, MemberNotFoundError, "backbone/v"),
        ({"frozen": [FROZEN, "x*"]}, MemberNotFoundError, "no array matches 'x\\*'"),
        ({"frozen": [3]}, TypeError, "frozen must be patterns of keys, not 3"),
        ({"frozen": FROZEN, "refresh": 0}, ValueError, "refresh must be a positive integer, not 0"),
        ({"frozen": FROZEN, "refresh": 1.5}, TypeError, "refresh must be a positive integer"),
    ],
)
def test_bad_declarations(store, options, error, text):
    """A pattern that matches nothing is an error, and nothing is written."""
    with pytest.raises(error, match=text):
        store.save(1, tree_of(1), **options)
    assert not os.path.exists(store.folder)


def test_in_the_background(tmp_path, monkeypatch):
    """What is shared is not copied in memory, so it does not count for `max_memory`."""
    started, start = [], Background.start
    monkeypatch.setattr(
        Background, "start", lambda *given: started.append(given[1].step) or start(*given)
    )
    with CheckpointStore(tmp_path, background=True, max_memory=1000, frozen=FROZEN) as store:
        for step in range(3):
            store.save(step, tree_of(step))
        assert started == [1, 2]
        for step in range(3):
            check(store, step)


# -- places without links -------------------------------------------------------


class NoLinks:
    """`os` of a system whose file system has no hard links."""

    def __getattr__(self, name):
        return getattr(os, name)

    def link(self, source, target):
        raise PermissionError(1, "Operation not permitted")


def test_without_links_files_are_copied(store, monkeypatch):
    """Each step is complete, and one warning says that its files are copies."""
    monkeypatch.setattr(disk, "os", NoLinks())
    store.save(0, tree_of(0), frozen=FROZEN)
    with pytest.warns(RuntimeWarning, match="files cannot be linked here") as caught:
        store.save(1, tree_of(1), frozen=FROZEN)
        store.save(2, tree_of(2), frozen=FROZEN)
    assert len(caught) == 1
    assert not shared(store, 0, 1) | shared(store, 1, 2)
    assert len(shards_of(store, 2)) == 2
    for step in range(3):
        check(store, step)
    assert store.verify().ok


# -- damage ---------------------------------------------------------------------


@pytest.mark.slow
def test_damage_to_a_shared_file(store):
    """All steps that share it are damaged; it is read and explained once, and not shared again."""
    for step in range(4):
        store.save(step, tree_of(step), frozen=FROZEN, refresh=2)
    (number,) = shared(store, 2, 3)
    flip(shards_of(store, 3)[number], 9000)
    with pytest.warns(DamagedCheckpointWarning) as caught:
        assert store.load().step == 1
    assert len(caught) == 2
    report = store.verify()
    assert report.damaged == (2, 3)
    (first,) = report.steps[2].rows
    (again,) = report.steps[3].rows
    assert (first.key, again.key) == ("backbone/w", None)
    assert quoted(shards_of(store, 2)[number]) in again.what
    store.save(4, tree_of(4), frozen=FROZEN)
    check(store, 4)


def test_a_sound_step_stays_if_a_shared_file_is_damaged(tmp_path):
    """Retention reads a step that shares with one which this process has not read."""
    with CheckpointStore(tmp_path, durable=False) as store:
        for step in (1, 2):
            store.save(step, tree_of(step), frozen=FROZEN, refresh=1)
        flip(max(shards_of(store, 2).values(), key=lambda path: path.stat().st_size), 9000)
    with CheckpointStore(tmp_path, keep=latest(1), durable=False) as store:
        assert store.save(3, tree_of(3), frozen=FROZEN).removed == ()
        assert store.verify().damaged == (2, 3)
        check(store, 1)


def test_a_step_that_cannot_be_read_shares_nothing(store):
    """If the newest step has no sound index, or lacks a shard, everything is written."""
    for step in range(3):
        store.save(step, tree_of(step), frozen=FROZEN)
    largest = max(shards_of(store, 2).values(), key=lambda path: path.stat().st_size)
    for change in (Path.unlink, lambda path: npzkit.save(path, tree_of(2, base=9)["backbone"])):
        change(largest)
        store.save(3, tree_of(3), frozen=FROZEN)
        assert not shared(store, 1, 3)
        check(store, 3)
        store.delete(3)
    Path(store.path(2), "index.npz").write_bytes(b"{}")
    store.save(4, tree_of(4), frozen=FROZEN)
    check(store, 4)


def test_arrays_in_parts_are_not_shared(store):
    """An array that several processes wrote in parts is written in one, without a warning."""
    with npzkit.ShardedWriter(store.path(1).removesuffix(".npz")) as writer:
        for at in (0, 2500):
            writer.add("backbone/w", np.arange(2500.0) + at, (at,), (5000,))
        writer.commit()
    assert store.steps == (1,)
    store.save(2, tree_of(2), frozen=FROZEN)
    check(store, 2)


# -- S3 -------------------------------------------------------------------------


@needs_s3
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_s3_copies_what_is_shared():
    """No byte of a frozen array is sent a second time, or received."""
    with (
        s3_server() as options,
        counted_uploads() as sent,
        CheckpointStore("s3://data/frozen", storage_options=options) as store,
    ):
        for step in range(2):
            store.save(step, tree_of(step), frozen=FROZEN)
            total = sum(sent)
            sent.clear()
            assert total > 40_000 if step == 0 else total < 5_000
        store.delete(0)
        check(store, 1)
        assert store.verify().ok


# -- a shared file that goes bad ------------------------------------------------------------


def spoil(store, step, name=None):
    """Change a byte of the frozen arrays of a step, the largest file."""
    if "://" in store.folder:
        system = fsspec.filesystem("memory")
        folder = f"/checkpoints/run/step_{step:08d}"
        path = max(system.ls(folder, detail=False), key=lambda path: system.info(path)["size"])
        data = bytearray(system.cat(path))
        data[len(data) // 2] ^= 1
        system.pipe(path, bytes(data))
        return
    path = max(shards_of(store, step).values(), key=lambda path: path.stat().st_size)
    flip(path, path.stat().st_size // 2)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["save", "save again", "reopened", "prune"])
def test_the_only_good_copy_of_a_frozen_array_stays(place, way):
    """If a shared file goes bad, the step with another copy is kept, whatever was known before."""
    with CheckpointStore(place, durable=False, frozen=FROZEN) as store:
        store.save(1, tree_of(1))
        store.save(2, tree_of(2), refresh=1)
        assert store.load().step == 2
        spoil(store, 2)
        if way == "prune":
            store.save(3, tree_of(3))
    with CheckpointStore(place, durable=False, frozen=FROZEN, keep=latest(1)) as store:
        if way == "save again":
            with pytest.warns(DamagedCheckpointWarning):
                assert store.load().step == 1
        removed = store.prune() if way == "prune" else store.save(3, tree_of(3)).removed
        if way == "save again":
            # It was found, so step 3 has arrays of its own.
            assert removed == (1,)
            check(store, 3)
            return
        assert 1 not in removed
        assert 1 in store.steps
        with pytest.warns(DamagedCheckpointWarning):
            assert store.load().step == 1
        check(store, 1)
        store.save(4, tree_of(4))
        check(store, 4)


@pytest.mark.slow
def test_a_step_with_the_only_good_copy_is_replaced_by_a_sound_one(place):
    """An older step that is saved again gets files of its own, as those of the newest may be bad."""
    with CheckpointStore(place, durable=False, frozen=FROZEN) as store:
        store.save(1, tree_of(1))
        store.save(2, tree_of(2), refresh=1)
        spoil(store, 2)
        store.save(1, tree_of(1))
        check(store, 1)


def test_what_is_shared_by_all_steps_is_not_read(tmp_path, monkeypatch):
    """If the steps that go have the same files, no copy goes with them, and nothing is read."""
    verified = []
    real = npzkit.NpzFile.verify

    def verify(npz, *args, **options):
        verified.append(npz)
        return real(npz, *args, **options)

    with CheckpointStore(tmp_path, durable=False, frozen=FROZEN, keep=latest(2)) as store:
        monkeypatch.setattr(npzkit.NpzFile, "verify", verify)
        for step in range(6):
            store.save(step, tree_of(step))
        assert store.steps == (4, 5)
        assert not verified
        store.save(6, tree_of(6), refresh=1)
        store.save(7, tree_of(7))
        # Step 5 had another copy.
        assert verified
        assert store.steps == (6, 7)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("background", [False, True])
def test_a_forked_child_leaves_its_parents_store(tmp_path, background):
    """A child that closes its copy, or leaves the block, changes no file and frees no lock."""

    def work(pipe):
        with contextlib.suppress(ZeroDivisionError), store:
            raise ZeroDivisionError
        store.close()
        os.write(pipe, b"done")

    with CheckpointStore(tmp_path, keep=latest(2), frozen=FROZEN, background=background) as store:
        for step in range(3):
            store.save(step, tree_of(step))
        with forked(work) as (_, pipe):
            assert read_rest(pipe) == b"done"
        with CheckpointStore(tmp_path) as other, pytest.raises(ArchiveLockedError):
            other.save(9, tree_of(9))
        store.save(3, tree_of(3))
        check(store, 3)
        assert store.steps == (2, 3)
        assert store.verify().ok
