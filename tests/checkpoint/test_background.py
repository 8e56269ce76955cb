"""Saving in the background: what is copied, who waits, and that every failure is heard."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.checkpoint.folder import Folder
from npzkit.checkpoint.snapshot import Snapshot, is_changeable
from npzkit.errors import ArchiveLockedError, NpzkitError, UnsupportedError, quoted


class Gate:
    """Holds each commit until it is let through, and may make it fail."""

    def __init__(self, monkeypatch):
        self.opened, self.entered = threading.Event(), threading.Event()
        self.error = None
        real = Folder.commit

        def commit(folder, *args):
            self.entered.set()
            assert self.opened.wait(60)
            if self.error is not None:
                raise self.error
            real(folder, *args)

        monkeypatch.setattr(Folder, "commit", commit)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


@pytest.fixture
def make(tmp_path):
    """Call to make a store that saves in the background; it is closed at the end."""
    made = []

    def make(**options):
        made.append(CheckpointStore(tmp_path, background=True, durable=False, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


def full():
    return OSError(errno.ENOSPC, "No space left on device")


def test_what_was_there_when_save_was_called_is_saved(make, gate):
    """Arrays that change after `save` returned are saved as they were."""
    store = make()
    tree = {
        "w": np.zeros(100_000), "small": np.zeros(3), "view": np.zeros((300, 300))[::2, ::3],
        "columns": np.zeros((400, 300), order="F"), "list": [1.5, np.zeros(2)],
        "record": np.zeros(9000, [("a", "i1"), ("b", "f8")]), "text": np.array(["a"] * 30_000),
        "scalar": np.float64(0),
    }  # fmt: skip
    saving = store.save(1, tree)
    assert not saving.done()
    assert not os.path.exists(saving.path)
    tree["w"][:] = tree["small"][:] = tree["view"][:] = tree["columns"][:] = 1
    tree["record"]["b"] = 1
    tree["list"][1][:] = 1
    tree["text"][:] = "b"
    gate.opened.set()
    saving.wait()
    assert saving.done()
    found = store.load().tree
    for key in ("w", "small", "view", "columns", "scalar"):
        assert not np.any(found[key]), key
    assert not np.any(found["record"]["b"])
    assert not np.any(found["list"][1])
    assert set(found["text"]) == {"a"}
    assert found["columns"].flags.f_contiguous


def test_metadata_that_change_later(make, gate):
    """Metadata, metrics and lists are saved as they were, and match their checksum."""
    store = make()
    metadata, metrics, tree = {"history": [1]}, {"loss": 1.0}, {"log": {"steps": [1, "a"]}}
    store.save(1, tree, metrics, metadata)
    metadata["history"].append(2)
    metrics["loss"] = 2.0
    tree["log"]["steps"].append(None)
    gate.opened.set()
    checkpoint = store.load()
    assert (checkpoint.metadata, checkpoint.metrics) == ({"history": [1]}, {"loss": 1.0})
    assert checkpoint.tree == {"log": {"steps": [1, "a"]}}


def test_which_arrays_can_change():
    """An array can change if it, or anything that it is a view of, can be written to."""
    owner = np.zeros(10)
    view = owner[2:5]
    view.flags.writeable = False
    assert is_changeable(owner)
    assert is_changeable(view)
    fixed = np.zeros(10)
    fixed.flags.writeable = False
    assert not is_changeable(fixed)
    assert not is_changeable(fixed[2:5].reshape(3, 1))
    assert not is_changeable(np.frombuffer(bytes(16)))
    assert is_changeable(np.frombuffer(bytearray(16)))
    assert is_changeable(np.frombuffer(memoryview(bytearray(16)).toreadonly()))
    assert not is_changeable(np.frombuffer(memoryview(bytes(16))))


def test_maps_are_copied(tmp_path, make, gate):
    """A read-only map changes with its file: what is saved is what it was when `save` was called."""
    path = tmp_path / "weights.npz"
    npzkit.save(path, {"w": np.zeros(5000)})
    store = make()
    with npzkit.open(path) as npz:
        mapped, other = npz.memmap("w"), npz.memmap("w", "r+")
        assert not mapped.flags.writeable
        store.save(1, {"w": mapped})
        assert gate.entered.wait(60)
        other[:] = 7
        assert mapped[0] == 7
    gate.opened.set()
    assert not store.load().tree["w"].any()


def test_only_what_may_change_is_copied():
    """Read-only arrays, lists and numbers are not copied."""
    fixed = np.zeros(1000)
    fixed.flags.writeable = False
    changing = np.zeros(500)
    snapshot = Snapshot({"a": fixed, "b": changing, "c": [1, 2], "d": np.float32(1)})
    assert snapshot.size == changing.nbytes
    taken = snapshot.take()
    assert taken["a"] is fixed
    assert not np.shares_memory(taken["b"], changing)


def test_the_bytes_are_those_of_a_save_in_the_foreground(make, tmp_path, monkeypatch):
    """Arrays of each layout, cut into pieces or not, are copied byte for byte."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    padded = np.frombuffer(bytearray(range(240)) * 500, np.dtype("i1,f8", align=True))
    rng = np.random.default_rng(0)
    tree = {
        "padded": padded, "fortran": np.asfortranarray(rng.random((90, 70))),
        "backwards": np.arange(9000)[::-1], "permuted": rng.random((9, 8, 7)).transpose(1, 2, 0),
        "bfloat16": np.ones(999, ml_dtypes.bfloat16), "scalar": np.array(3.5),
        "empty": np.zeros((0, 3)), "nothing": np.zeros(3, "V0"), "text": np.array(["a", "bcd"]),
        "when": np.arange("2020-01", "2021-01", dtype="M8[D]"), "big": np.arange(9, dtype=">i4"),
        "matrix": np.ones((2, 2)).view(np.matrix) if hasattr(np, "matrix") else np.ones(1),
    }  # fmt: skip
    monkeypatch.setattr("npzkit.checkpoint.snapshot._TASK_SIZE", 1000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(np, "empty", np.ones)
        make().save(1, tree).wait()
    with CheckpointStore(tmp_path / "foreground") as store:
        path = store.save(1, tree).path
    with open(path, "rb") as file:
        assert file.read() == (tmp_path / "step_00000001.npz").read_bytes()


def test_trees_above_max_memory_are_saved_at_once(make, gate):
    """If copies would take more than max_memory, `save` returns when the step is saved."""
    store = make(max_memory=1000)
    gate.opened.set()
    assert store.save(1, {"w": np.zeros(1000)}).done()
    fixed = np.zeros(1000)
    fixed.flags.writeable = False
    gate.opened.clear()
    saving = store.save(2, {"w": fixed, "b": np.zeros(10)})
    assert not saving.done()
    gate.opened.set()
    saving.wait()
    assert store.steps == (1, 2)


def test_when_busy_wait(make, gate):
    """By default `save` waits for the save under way: one is written at a time."""
    store = make()
    first = store.save(1, {})
    threading.Timer(0.05, gate.opened.set).start()
    second = store.save(2, {})
    assert first.done()
    second.wait()
    assert store.steps == (1, 2)


def test_when_busy_skip(make, gate):
    """A save that is skipped says so, and is done."""
    store = make(when_busy="skip")
    first = store.save(1, {})
    second = store.save(2, {})
    assert second.skipped
    assert second.done()
    second.wait()
    assert "skipped" in repr(second)
    assert not first.skipped
    gate.opened.set()
    store.wait()
    assert store.steps == (1,)
    assert not store.save(3, {}).skipped


@pytest.mark.remedy('Wait for it, or pass when_busy="wait".')
@pytest.mark.parametrize("waits", [False, True])
def test_when_busy_raise(make, gate, waits):
    """A save that is refused names the step that is being saved, and is done after that one."""
    store = make(when_busy="raise")
    saving = store.save(1, {})
    with pytest.raises(ArchiveLockedError, match="while step 1 is being saved"):
        store.save(2, {})
    gate.opened.set()
    if waits:
        saving.wait()
    else:
        store.close()
        store = make(when_busy="wait")
        store.save(1, {})
    store.save(2, {})
    assert store.steps == (1, 2)


def test_waiting_with_a_timeout(make, gate):
    """`wait` gives up after a time, and the save goes on."""
    store = make()
    saving = store.save(1, {})
    assert "under way" in repr(saving)
    for wait in (saving.wait, store.wait):
        with pytest.raises(TimeoutError, match="step 1"):
            wait(0.01)
    gate.opened.set()
    saving.wait()
    store.wait()
    assert "saved" in repr(saving)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda store: store.load().step, 1),
        (lambda store: store.steps, (1,)),
        (lambda store: store.latest, 1),
        (lambda store: 1 in store, True),
        (lambda store: store.best("loss"), 1),
        (lambda store: store.metrics(1), {"loss": 0.5}),
        (lambda store: store.metadata(1), {"a": 2}),
        (lambda store: sum(file.size for file in store._files(1)) > 0, True),
        (lambda store: store[1].close(), None),
    ],
)
def test_what_reads_a_store_waits_for_the_save_under_way(make, gate, read, expected):
    """What was given to `save` is what is found next."""
    store = make()
    store.save(1, {"w": np.ones(3)}, {"loss": 0.5}, {"a": 2})
    assert "0 steps" in repr(store)  # debuggers do not wait
    threading.Timer(0.02, gate.opened.set).start()
    assert read(store) == expected


def test_a_tree_that_cannot_be_saved_is_refused_at_once(make):
    """Errors of arguments come from `save` itself, not later."""
    store = make()
    with pytest.raises(NpzkitError, match="'bad'"):
        store.save(1, {"bad": np.array([object()])})
    with pytest.raises(TypeError):
        store.save(1, {"a": np.zeros(1)}, metadata={"x": object()})
    store.wait()
    assert store.steps == ()


def test_what_has_labels_is_refused_at_once(make):
    """A table is refused as by npzkit.save, and not copied as an array without its columns."""
    made = type("DataFrame", (), {"__array__": lambda self, dtype=None, copy=None: np.zeros(2)})
    made.__module__ = "pandas.core.frame"
    with pytest.raises(UnsupportedError, match="to_records"):
        make().save(1, {"x": made()})


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.wait(),
        lambda store: store.save(2, {}),
        lambda store: store.load(),
        lambda store: store.verify(),
        lambda store: store.prune(),
        lambda store: store.delete(1),
        lambda store: store.close(),
    ],
)
def test_a_failure_is_raised_by_the_next_call(make, gate, call):
    """Whatever is called next raises the failure, once."""
    store = make()
    gate.error = full()
    gate.opened.set()
    saving = store.save(1, {})
    saving._ended.wait()
    # Properties raise no failure of a save.
    assert store.steps == ()
    with pytest.raises(OSError, match=r"No space left.*saving step 1 to .*_00000001\.npz. in the"):
        call(store)
    store.close()
    assert "failed" in repr(saving)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (full(), "[Errno 28] No space left on device (saving {text}; step 2 was not saved: call save again)"),
        (NpzkitError("bad", remedy="Wait."), "bad. Saving {text}; step 2 was not saved: call save again. Wait."),
        (MemoryError(), "(saving {text}; step 2 was not saved: call save again)"),
    ],
)  # fmt: skip
def test_a_failure_names_the_step_that_the_next_save_did_not_save(make, gate, error, expected):
    """The error of a save in the background keeps its class, and says what is not saved."""
    store = make()
    gate.error = error
    gate.opened.set()
    path = store.save(1, {}).path
    store.steps
    with pytest.raises(type(error)) as found:
        store.save(2, {})
    text = f"step 1 to {quoted(path)} in the background failed"
    assert str(found.value) == expected.format(text=text)
    gate.error = None
    store.save(2, {})
    assert store.steps == (2,)


def test_a_failure_that_was_waited_for_is_not_raised_again(make, gate):
    """`Saving.wait` raises it each time; the store then does not."""
    store = make()
    gate.error = full()
    gate.opened.set()
    saving = store.save(1, {})
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            saving.wait()
    gate.error = None
    store.save(2, {}).wait()
    assert store.steps == (2,)


def test_an_error_of_the_block_is_not_hidden(tmp_path, gate):
    """If a with block fails, its error is raised, with a note of the failed save."""
    gate.error = full()
    gate.opened.set()
    with (
        pytest.raises(ZeroDivisionError) as found,
        CheckpointStore(tmp_path, background=True) as store,
    ):
        store.save(1, {})
        1 / 0
    assert any("No space left" in note for note in found.value.__notes__)


def test_retention_in_the_background(make):
    """Old steps are removed by the thread; the Saving says which."""
    store = make(keep=latest(2))
    savings = [store.save(step, {"w": np.full(10, step)}) for step in range(4)]
    store.wait()
    assert [saving.removed for saving in savings] == [(), (), (0,), (1,)]
    assert store.steps == (2, 3)


def test_copies_are_given_back(make):
    """Neither a save that is done nor one that failed keeps its copies."""
    import gc
    import weakref

    store = make()
    copies = []
    real = Snapshot.take

    def take(self):
        taken = real(self)
        copies.extend(weakref.ref(array) for array in taken.values())
        return taken

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Snapshot, "take", take)
        done = store.save(1, {"w": np.zeros(100_000)})
        done.wait()
        patched.setattr(Folder, "commit", lambda *args: (_ for _ in ()).throw(full()))
        failed = store.save(2, {"w": np.zeros(100_000)})
        with pytest.raises(OSError, match="No space left"):
            failed.wait()
    gc.collect()
    assert [copy() is None for copy in copies] == [True, True]


def run(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


PROGRAM = """
    import atexit, sys, time
    # Functions are called at exit in the opposite order: this one after npzkit's own.
    atexit.register(lambda: store.save(3, {}))
    import numpy as np
    from npzkit.checkpoint import CheckpointStore
    from npzkit.checkpoint.folder import Folder

    class FullFolder(Folder):
        def commit(self, *args):
            time.sleep(0.05)
            raise OSError(28, "No space left on device")

    full = CheckpointStore(sys.argv[2], background=True)
    full._storage.__class__ = FullFolder
    full.save(7, {})
    store = CheckpointStore(sys.argv[1], background=True)
    store.save(1, {str(n): np.full(3_000_000, n) for n in range(2)})
    atexit.register(lambda: (store.wait(), store.save(2, {"w": np.ones(10**6)})))
"""


@pytest.mark.slow
def test_python_waits_for_saves_before_it_ends(tmp_path):
    """A program that ends without `close` still saves, and says which step was not saved."""
    found = run(PROGRAM, tmp_path / "run", tmp_path / "full")
    assert found.returncode == 0
    assert found.stderr.count("RuntimeWarning") == 1
    assert "step 7 was not saved to" in found.stderr
    assert "No space left on device. To get an error instead, close the store" in found.stderr
    with CheckpointStore(tmp_path / "run") as store:
        assert store.verify().ok
        assert store.steps == (1, 2, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_can_read(make, gate):
    """A child neither waits for its parent's save nor ends it, and cannot write."""
    from children import forked, read_rest

    store = make()
    gate.opened.set()
    store.save(1, {"w": np.ones(3)}).wait()
    gate.opened.clear()
    gate.entered.clear()
    saving = store.save(2, {"w": np.ones(3)})
    assert gate.entered.wait(60)

    def work(pipe):
        found = [store.load().step]
        try:
            store.save(3, {})
        except ArchiveLockedError:
            found.append("locked")
        with pytest.raises(RuntimeError, match="parent process"):
            saving.wait()
        store.close()
        os.write(pipe, repr(found).encode())

    with forked(work) as (_, pipe):
        assert read_rest(pipe).decode() == "[1, 'locked']"
    gate.opened.set()
    store.wait()
    assert store.steps == (1, 2)


def test_a_thread_that_dies_at_once(tmp_path, monkeypatch):
    """If memory ends as the thread begins, `wait` raises MemoryError, and the next save works."""
    thread = npzkit.checkpoint.background._thread
    real = thread.start_new_thread
    with CheckpointStore(tmp_path, background=True, durable=False) as store:
        monkeypatch.setattr(thread, "start_new_thread", lambda work, args: real(int, ()))
        saving = store.save(1, {"w": np.zeros(3)})
        with pytest.raises(MemoryError):
            saving.wait()
        assert saving.done()
        monkeypatch.setattr(thread, "start_new_thread", real)
        store.save(2, {"w": np.zeros(3)}).wait()
        assert store.steps == (2,)
