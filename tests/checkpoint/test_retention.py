"""Which steps are kept, and which are never removed."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os

import numpy as np
import pytest
from archives import flip
from hypothesis import given
from hypothesis import strategies as st
from npzkit.checkpoint import CheckpointStore, Policy, best, every, latest
from npzkit.checkpoint.retention import Retention
from npzkit.files.file_objects import identity_of
from places import join, on_disk, stored


def open_store(folder, keep=None, **options):
    return CheckpointStore(folder, keep=keep, durable=False, **options)


def save(store, *steps, loss=1.0):
    for step in steps:
        store.save(step, {"w": np.full(50, step)}, metrics={"loss": loss})


LOSSES = {10: 0.9, 20: 0.1, 30: 0.5, 40: math.nan, 50: None, 60: 0.1}


def metrics_of(step):
    return {} if LOSSES[step] is None else {"loss": LOSSES[step]}


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (latest(1), {60}),
        (latest(100), set(LOSSES)),
        (every(20), {20, 40, 60}),
        (every(7), set()),
        (best("loss"), {60}),
        (best("loss", 2), {60, 20}),
        (best("loss", 9), {10, 20, 30, 60}),
        (best("loss", 1, mode="max"), {10}),
        (best("other", 3), set(LOSSES)),
        (latest(1) | every(30) | best("loss", 1, mode="max"), {10, 30, 60}),
    ],
)
def test_what_a_policy_keeps(policy, kept):
    """The newest, multiples of a number, the best by a metric, and what any of several keeps."""
    assert policy.kept(sorted(LOSSES), metrics_of) == kept
    assert eval(repr(policy)).kept(sorted(LOSSES), metrics_of) == kept


@given(
    st.lists(st.integers(0, 300), unique=True).map(sorted),
    st.integers(1, 10),
    st.integers(1, 50),
)
def test_joined_policies_keep_what_each_keeps(steps, count, period):
    """`|` is the union, and each policy keeps steps that exist."""
    one, other = latest(count), every(period)
    kept = (one | other).kept(steps, metrics_of)
    assert kept == one.kept(steps, metrics_of) | other.kept(steps, metrics_of)
    assert kept <= set(steps)
    assert len(one.kept(steps, metrics_of)) == min(count, len(steps))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: latest(0), ValueError),
        (lambda: latest(-1), ValueError),
        (lambda: latest(True), TypeError),
        (lambda: every(1.5), TypeError),
        (lambda: every(0), ValueError),
        (lambda: best(1), TypeError),
        (lambda: best("loss", 0), ValueError),
        (lambda: best("loss", mode="lowest"), ValueError),
        (lambda: latest(1) | 3, TypeError),
    ],
)
def test_arguments_of_policies_are_checked(make, error):
    """A policy that would keep nothing, or makes no sense, is refused."""
    with pytest.raises(error):
        make()


def test_steps_are_removed_after_each_save(place, caplog):
    """After a commit the policy decides; what it removed is in the Saving, and is logged."""
    with open_store(place, latest(2)) as store, caplog.at_level(logging.INFO):
        save(store, 1, 2)
        saving = store.save(3, {})
        assert saving.removed == (1,)
        assert store.steps == (2, 3)
    assert "removed the steps [1]" in caplog.text


@pytest.mark.slow
def test_without_a_policy_nothing_is_removed(place):
    """No step goes away by itself."""
    with open_store(place) as store:
        save(store, *range(20))
        assert store.prune() == ()
        assert len(store.steps) == 20


def test_prune(place):
    """Steps of an earlier run are removed by a new policy; a dry run only says which."""
    with open_store(place) as store:
        save(store, *range(5))
    with open_store(place, latest(2)) as store:
        assert store.prune(dry_run=True) == (0, 1, 2)
        assert len(store.steps) == 5
        assert store.prune() == (0, 1, 2)
        assert store.prune() == ()
        assert store.steps == (3, 4)


def test_a_policy_of_ones_own(place):
    """A class with `kept` is a policy; the newest sound step stays, whatever it says."""

    class Nothing(Policy):
        def kept(self, steps, metrics_of):
            return set()

    with open_store(place, Nothing()) as store:
        save(store, 1, 2, 3)
        assert store.steps == (3,)


def test_the_newest_step_stays(place):
    """A policy that keeps only the best does not remove the newest step."""
    with open_store(place, best("loss")) as store:
        for step, loss in enumerate([0.5, 0.1, 0.7, 0.9]):
            save(store, step, loss=loss)
        assert store.steps == (1, 3)


def test_the_newest_sound_step_stays(tmp_path):
    """If newer steps are damaged, pruning finds that out, and keeps the newest that is sound."""
    with open_store(tmp_path) as store:
        save(store, *range(5))
    for step in (3, 4):
        flip(tmp_path / f"step_0000000{step}.npz", 300)
    with open_store(tmp_path, latest(1)) as store:
        assert store.prune() == (0, 1)
        # Damaged steps are neither counted nor removed.
        assert store.steps == (2, 3, 4)
        with pytest.warns(match="step [34] is damaged"):
            assert store.load().step == 2


def test_a_step_that_load_skipped_is_not_sound(tmp_path):
    """Retention knows of a damaged step that `load` skipped: it takes no older step's place."""
    with open_store(tmp_path) as store:
        save(store, 1, 2, 3)
    flip(tmp_path / "step_00000003.npz", 300)
    with open_store(tmp_path, latest(1)) as store:
        with pytest.warns(match="step 3 is damaged"):
            assert store.load().step == 2
        assert store.prune() == (1,)
        assert store.steps == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, 100])
def test_a_step_with_a_damaged_attribute_takes_no_place(place, shard_size):
    """A bfloat16 array that came back as bytes was a sound step, and the good one was removed."""
    half = np.ones(3, pytest.importorskip("ml_dtypes").bfloat16)
    with open_store(place) as store:
        for step in (1, 2):
            store.save(step, {"w": half}, shard_size=shard_size)
        path = stored(store.path(2) if shard_size is None else join(store.path(2), "index.npz"))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"bfloat16")] ^= 1
    path.write_bytes(data)
    with open_store(place, latest(1)) as store:
        assert store.prune() == ()
        assert store.verify().damaged == (2,)
        with pytest.warns(match="step 2 is damaged"):
            assert store.load().tree["w"].dtype == half.dtype


def test_a_step_that_went_away_does_not_stop_retention(tmp_path, monkeypatch):
    """A step that another process removes while policies look is passed over."""
    with open_store(tmp_path) as store:
        save(store, 1, 2, 3)
    with open_store(tmp_path, latest(1)) as store:
        monkeypatch.setattr(type(store._storage), "steps", lambda self: (1, 2, 3))
        os.unlink(tmp_path / "step_00000003.npz")
        assert store.prune() == (1,)
    assert os.listdir(tmp_path).count("step_00000002.npz") == 1


@pytest.mark.parametrize("unreadable", [1, 3])
def test_a_step_that_cannot_be_looked_at_stops_retention(place, monkeypatch, unreadable):
    """Nothing is removed while the system does not say what a step is."""
    with open_store(place) as store:
        save(store, 1, 2, 3)
    with open_store(place, latest(1)) as store:
        identity = type(store._storage).identity

        def refused(self, step):
            if step == unreadable:
                raise PermissionError(errno.EACCES, "Permission denied")
            return identity(self, step)

        monkeypatch.setattr(type(store._storage), "identity", refused)
        with pytest.raises(PermissionError):
            store.prune()
        assert store.steps == (1, 2, 3)


def test_a_step_that_cannot_be_read_stops_retention(place, monkeypatch):
    """Nothing is removed while it is not known whether the newest step is sound."""
    with open_store(place) as store:
        save(store, 1, 2, 3)
    with open_store(place, latest(1)) as store:
        opened = type(store._storage).open

        def refused(self, step, **options):
            if step == 3:
                raise PermissionError(errno.EACCES, "Permission denied")
            return opened(self, step, **options)

        monkeypatch.setattr(type(store._storage), "open", refused)
        with pytest.raises(PermissionError):
            store.prune()
        assert store.steps == (1, 2, 3)


def test_nothing_is_removed_if_no_step_is_sound(tmp_path):
    """Without a sound step there is nothing that could take the place of another."""
    with open_store(tmp_path) as store:
        save(store, 1, 2, 3)
    for step in (1, 2, 3):
        flip(tmp_path / f"step_0000000{step}.npz", 300)
    with open_store(tmp_path, latest(1)) as store:
        assert store.prune() == ()
        assert store.steps == (1, 2, 3)


def test_damaged_metadata_do_not_stop_retention(tmp_path):
    """A step whose metrics cannot be read is damaged: it is left, and the others are judged."""
    with open_store(tmp_path) as store:
        for step, loss in enumerate([0.1, 0.2, 0.3, 0.4]):
            save(store, step, loss=loss)
    path = tmp_path / "step_00000000.npz"
    path.write_bytes(path.read_bytes().replace(b'"loss":0.1', b'"loss":0.0'))
    with open_store(tmp_path, best("loss")) as store:
        assert store.best("loss") == 1
        assert store.prune() == (2,)
        assert store.steps == (0, 1, 3)


@pytest.mark.parametrize(
    ("keep", "found"),
    [
        (latest(1) | best("acc", 3, mode="max"), 1),
        (best("acc", 3), 0),
        (best("other", 3, mode="max"), 0),
        (best("acc", 3, mode="max") | best("acc", 3), 0),
        (None, 0),
    ],
    ids=repr,
)
def test_the_best_step_is_the_one_that_the_policy_ranks_first(tmp_path, keep, found):
    """Unless a mode is given: a run that keeps the highest accuracy loaded the lowest."""
    with open_store(tmp_path) as store:
        for step, accuracy in enumerate([0.1, 0.9, 0.5]):
            store.save(step, {}, metrics={"acc": accuracy, "other": 1})
    with open_store(tmp_path, keep) as store:
        assert store.best("acc") == found
        assert (store.best("acc", "min"), store.best("acc", mode="max")) == (0, 1)


def test_resuming_from_an_older_step_keeps_newer_ones_apart(place):
    """A run that continues from an older step overwrites newer ones as it reaches them."""
    with open_store(place) as store:
        save(store, 10, 20, 30)
    with open_store(place, latest(2)) as store:
        assert store.load(10).step == 10
        with pytest.warns(RuntimeWarning, match="newer steps exist: 30"):
            save(store, 20, loss=0.5)
        assert store.steps == (20, 30)
        assert store.metrics(20) == {"loss": 0.5}


def test_a_step_that_another_store_reads_stays(place):
    """It stays while another store of this process has it open."""
    with CheckpointStore(place) as reader, open_store(place, latest(1)) as store:
        save(store, 1)
        with reader[1] as npz:
            save(store, 2)
            assert npz["w"].sum() == 50
            assert store.steps == (1, 2)
        save(store, 3)
        assert store.steps == (3,)


def test_a_step_that_is_being_read_stays(tmp_path):
    """An open archive and mapped arrays keep their step, until they are gone."""
    with open_store(tmp_path) as writer:
        save(writer, 1, 2, 3, 4)
    with open_store(tmp_path, latest(1)) as store:
        # Stores of the same folder in one process know of each other's readers.
        other = CheckpointStore(tmp_path)
        npz = store[1]
        mapped = other.load(2, mmap_mode="r").tree
        part = mapped["w"][10:20]
        assert store.prune() == (3,)
        del mapped
        assert store.prune() == ()
        assert part[0] == 2
        del part
        npz.close()
        assert store.prune() == (1, 2)


def test_a_step_that_is_loaded_meanwhile_stays(tmp_path, monkeypatch):
    """Pruning in another thread does not take a step away while it is being read."""
    with open_store(tmp_path) as store:
        save(store, 1, 2)
    with open_store(tmp_path, latest(1)) as store:
        folder = type(store._storage)
        real = folder.open
        found = []

        def slow(self, step, **options):
            if step == 1 and not found:
                found.append(None)
                found[0] = store.prune()
            return real(self, step, **options)

        monkeypatch.setattr(folder, "open", slow)
        assert store.load(1).step == 1
        assert found == [()]
        assert store.prune() == (1,)


@on_disk
def test_a_step_that_cannot_be_removed(place, monkeypatch):
    """Training goes on with a warning, and the next save tries again; prune raises."""
    from npzkit.files import disk

    def refuse(path, **options):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    with open_store(place, latest(1)) as store:
        save(store, 1)
        with monkeypatch.context() as patched:
            patched.setattr(disk, "unlink", refuse)
            with pytest.warns(RuntimeWarning, match="could not be removed.*step_00000001"):
                save(store, 2)
            with pytest.raises(PermissionError):
                store.prune()
        assert store.steps == (1, 2)
        save(store, 3)
        assert store.steps == (3,)


def test_a_step_that_cannot_be_removed_stops_no_other(tmp_path, monkeypatch):
    """Retention goes on with the other steps, and says which one stays."""
    from npzkit.files import disk

    real = disk.unlink

    def refuse(path, **options):
        if path.endswith("step_00000002.npz"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        real(path, **options)

    with open_store(tmp_path) as store:
        save(store, 1, 2, 3)
    monkeypatch.setattr(disk, "unlink", refuse)
    with open_store(tmp_path, latest(1)) as store:
        with pytest.warns(RuntimeWarning, match="the checkpoints 2 could not be removed.*denied"):
            assert store.save(4, {}).removed == (1, 3)
        assert store.steps == (2, 4)
        with pytest.warns(RuntimeWarning, match="could not be removed"):
            store.save(5, {})
        with pytest.raises(PermissionError) as caught:
            store.prune()
        assert caught.value.__notes__ == ["Not removed: 2. Removed: none."]
        assert store.steps == (2, 5)


def test_a_warning_of_a_save_in_the_background_points_to_its_call(tmp_path):
    """A misspelt metric is warned about with the user's line."""
    with (
        pytest.warns(RuntimeWarning, match="metric 'los'.*mean 'loss'") as found,
        open_store(tmp_path, best("los", 2), background=True) as store,
    ):
        store.save(1, {}, metrics={"loss": 1.0}).wait()
    assert found[0].filename == __file__


@pytest.mark.slow
@pytest.mark.parametrize("spelled", ["Loss", "accuracy"])
def test_a_metric_that_no_step_has(place, spelled):
    """The first save warns, with the metric that may be meant, and nothing is removed by it."""
    with open_store(place, best("loss")) as store:
        with pytest.warns(RuntimeWarning, match=f"no step has the metric 'loss'.*'{spelled}'"):
            store.save(1, {}, metrics={spelled: 1.0})
        # Once is enough.
        for step in (2, 3):
            assert store.save(step, {}, metrics={spelled: 1.0}).removed == ()
        assert store.steps == (1, 2, 3)
        assert store.save(4, {}, metrics={"loss": 1.0}).removed == (1, 2, 3)
    with open_store(place, latest(1) | best("loss")) as store:
        save(store, 5)
    with (
        open_store(place, best("accurcy", mode="max")) as store,
        pytest.warns(RuntimeWarning, match="no step has the metric 'accurcy'"),
    ):
        assert store.prune(dry_run=True) == ()


def test_the_step_just_saved_stays(place):
    """A save below newer steps is not undone by the policy: it stays, and a warning says more."""
    with open_store(place) as store:
        save(store, 5, 6)
    with open_store(place, latest(1)) as store:
        for step, removed in [(3, (5,)), (4, (3,))]:
            with pytest.warns(RuntimeWarning, match=f"step {step} was saved, but newer steps.*6"):
                assert store.save(step, {"w": np.full(5, step)}).removed == removed
            assert store.load(step).tree["w"][0] == step
        assert store.steps == (4, 6)
        assert store.save(7, {}).removed == (4, 6)


def test_a_run_that_begins_below_the_steps_of_another_is_told(place):
    """Without a policy too, once: load() would go on with the other run."""
    with open_store(place) as store:
        save(store, 5, 6)
        save(store, 4)
    with open_store(place) as store:
        with pytest.warns(RuntimeWarning, match="newer steps exist: 4, 5, 6.*folder of its own"):
            save(store, 0)
        save(store, 1, 7)
    with open_store(place) as store:
        save(store, 8, 2)


@pytest.mark.parametrize("keep", [None, latest(3), every(1), best("loss", 3)], ids=repr)
def test_going_back_is_told_at_the_first_save(tmp_path, keep):
    """Also if the policy keeps the new step: it would remove the next ones, and load the old."""
    with open_store(tmp_path) as store:
        save(store, 80, 90, 100)
    with open_store(tmp_path, keep) as store:
        assert store.load(80).step == 80
        with pytest.warns(RuntimeWarning, match="newer steps exist: 90, 100. load.. takes") as told:
            save(store, 81, loss=0.5)
        assert ("the policy counts them" in str(told[0].message)) is (keep is not None)
        for step in (90, 100):
            store.delete(step)
        save(store, 82, 83, 84, loss=0.5)
        assert store.steps[-3:] == (82, 83, 84)
        assert store.load().step == 84


def test_newer_steps_that_are_damaged_are_no_reason_to_warn(tmp_path):
    """A run that goes on from the newest sound step, because `load` skipped newer ones."""
    with open_store(tmp_path) as store:
        save(store, 1, 2, 3)
    flip(tmp_path / "step_00000003.npz", 300)
    for keep in (None, latest(3)):
        with open_store(tmp_path, keep) as store:
            with pytest.warns(match="step 3 is damaged"):
                assert store.load().step == 2
            save(store, 2)


def test_pruning_reads_the_best_steps_wholly(tmp_path):
    """One whose array is damaged is not kept in the place of a sound one."""
    with open_store(tmp_path) as store:
        for step in range(5):
            save(store, step, loss=step)
    flip(tmp_path / "step_00000000.npz", 300)
    with open_store(tmp_path, best("loss", 2)) as store:
        assert store.prune() == (3,)
        assert store.steps == (0, 1, 2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("large", [10**400, -(10**400)], ids=["above", "below"])
def test_an_int_metric_above_the_range_of_floats(place, large):
    """Ints are compared exactly with floats, whatever their size, and NaN is no candidate."""
    with open_store(place, best("loss", 2)) as store:
        for step, loss in enumerate([large, 0.5, math.nan, large + 1, math.inf]):
            save(store, step, loss=loss)
        lowest, highest = (0, 4) if large < 0 else (1, 4)
        assert store.steps == ((0, 3, 4) if large < 0 else (0, 1, 4))
        assert (store.best("loss"), store.best("loss", "max")) == (lowest, highest)
        assert store.metrics(0) == {"loss": large}


def test_the_newest_step_is_on_disk_before_another_is_removed(tmp_path, monkeypatch):
    """With durable=False, too, a power failure leaves a step: the new one is synced first."""
    from npzkit.files import disk

    order = []
    real_sync, real_unlink = disk.File.sync, disk.unlink
    monkeypatch.setattr(
        disk.File, "sync", lambda self: (order.append(("sync", self.path)), real_sync(self))[1]
    )
    monkeypatch.setattr(
        disk, "unlink", lambda path, **_: (order.append(("unlink", path)), real_unlink(path))[1]
    )
    with open_store(tmp_path, latest(1)) as store:
        save(store, 1)
        assert order == []
        save(store, 2)
        assert order == [("sync", store.path(2)), ("unlink", store.path(1))]


def test_metrics_are_read_once(tmp_path, monkeypatch):
    """A store that keeps the best of many steps does not open all of them at each save."""
    with open_store(tmp_path, best("loss", 50)) as store:
        opened = opened_steps(monkeypatch, store)
        save(store, *range(10))
        assert len(opened) <= 10
        assert len(os.listdir(tmp_path)) == 11


def opened_steps(monkeypatch, store):
    """Return a list that gets each step that is opened from now on."""
    folder, opened = type(store._storage), []
    real = folder.open
    monkeypatch.setattr(
        folder, "open", lambda self, step, **o: (opened.append(step), real(self, step, **o))[1]
    )
    return opened


@pytest.mark.slow
def test_only_what_a_removal_rests_on_is_read(place, monkeypatch):
    """A save that removes a step opens itself and the best ones, not the steps that go or stay."""
    with open_store(place, latest(3) | every(4) | best("loss", 2)) as store:
        for step in range(9):
            save(store, step, loss=abs(step - 2.4))
        assert store.steps == (0, 2, 3, 4, 6, 7, 8)
        opened = opened_steps(monkeypatch, store)
        assert store.save(9, {"w": np.ones(50)}, {"loss": 9.0}).removed == (6,)
        assert sorted(opened) == [2, 3, 9]


@pytest.fixture(params=["file", "folder", "store", "store of folders"])
def silent(request, tmp_path, monkeypatch):
    """A place for a store, `shard_size`, and what opens a step's metadata for a silent change."""
    size = 100 if "folder" in request.param else None
    name = "step_00000000" + (".npz" if size is None else "/index.npz")
    if "store" not in request.param:
        # A disk that loses a bit changes no time. A test that changes one does.
        monkeypatch.setattr(
            "npzkit.stores.objects.identity_of",
            lambda found: identity_of(found)._replace(changed_ns=0),
        )
        yield tmp_path, size, lambda: (tmp_path / name).open("r+b")
        return
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    yield "memory://silent", size, lambda: contextlib.nullcontext(memory.store[f"/silent/{name}"])
    memory.rm("/silent", recursive=True)


class Lowest(Policy):
    """Keeps the step with the lowest loss, and does not say that it ranks steps by it."""

    def kept(self, steps, metrics_of):
        return {min(steps, key=lambda step: metrics_of(step).get("loss", math.inf))}


@pytest.mark.slow
@pytest.mark.parametrize("policy", [best("loss"), Lowest()], ids=["best", "its own"])
def test_a_remembered_step_that_was_damaged_is_no_reason_to_remove_another(silent, policy):
    """If a bit of the best step's metadata is lost in silence, the next best step stays."""
    folder, size, opened = silent
    with CheckpointStore(folder, latest(2) | policy, durable=False) as store:
        for step, loss in enumerate([0.1, 0.5, 0.9]):
            store.save(step, {"w": np.full(50, step)}, {"loss": loss}, shard_size=size)
        known = store._storage.identity(0)
        with opened() as file:
            file.seek(0)
            at = file.read().index(b'"loss":0.1') + 9
            file.seek(at)
            file.write(b"0")
        if "://" not in str(folder):
            times = known.found.mark.modified_ns
            os.utime(folder / "step_00000000.npz" if size is None else
                     folder / "step_00000000" / "index.npz", ns=(times, times))  # fmt: skip
        assert store._storage.identity(0) == known
        assert store.best("loss") == 0
        assert store.save(3, {"w": np.ones(50)}, {"loss": 0.8}).removed == ()
        assert store.best("loss") == 1
        assert store.save(4, {"w": np.ones(50)}, {"loss": 0.7}).removed == (2,)
        assert store.steps == (0, 1, 3, 4)
        assert store.verify().damaged == (0,)


def test_a_step_that_is_saved_again_before_it_is_removed(tmp_path, monkeypatch):
    """Where locks do not work, a policy removes the file that it saw, and no newer one."""
    remove = Retention._remove
    with open_store(tmp_path / "run", latest(1)) as store, open_store(tmp_path / "b") as other:
        save(store, 1)
        other.save(1, {"w": np.full(50, 7)})

        def remove_late(self, step, seen):
            monkeypatch.setattr(Retention, "_remove", remove)
            os.replace(other.path(1), store.path(1))
            return remove(self, step, seen)

        monkeypatch.setattr(Retention, "_remove", remove_late)
        assert store.save(2, {"w": np.ones(50)}).removed == ()
        assert store.load(1).tree["w"][0] == 7
        assert store.save(3, {"w": np.ones(50)}).removed == (1, 2)
