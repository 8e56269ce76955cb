"""An interrupt at any instant of npzkit's own code: no file, lock or descriptor is lost by it."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import npzkit
import numpy as np
import pytest
from deep import amount
from faults import descriptor_count
from npzkit.files import threads
from npzkit.files.locking import lock_path
from npzkit.files.threads import Pipeline, run

from tables import each_row

FOLDER = str(Path(npzkit.__file__).parent)
COUNT = amount(5, 150)
"""Instants that are tried for each work, if it has so many."""
OLD = {"small": np.arange(5), "large": np.arange(20_000)}
NEW = {"new": np.arange(7), "large": np.arange(30_000), "empty": np.zeros((0, 2))}


class Instant:
    """Counts instants and raises KeyboardInterrupt at the n-th; at none for 0."""

    def __init__(self, number=0):
        self.number = number
        self.count = 0

    def count_one(self):
        self.count += 1
        if self.count == self.number:
            raise KeyboardInterrupt


class AtOpcode(Instant):
    """Raises KeyboardInterrupt before the n-th bytecode of npzkit's."""

    hooks = sys.gettrace, sys.settrace

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame, event, arg):
        if event == "opcode":
            self.count_one()
        return self._step


class AtCall(Instant):
    """Raises KeyboardInterrupt where Python looks for signals: as a call begins, or one of C's ends."""

    hooks = sys.getprofile, sys.setprofile

    def __call__(self, frame, event, arg):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(FOLDER):
            self.count_one()


def opening(path):
    with npzkit.open(path) as npz:
        npz["small"]
        npz.lazy("large")[3:5]


def opening_torn(path):
    """Behind a torn end, a reader looks whether a writer is at work."""
    with open(path, "ab") as file:
        file.write(b"torn")
    with npzkit.open(path) as npz:
        npz["small"]


def saving(path):
    npzkit.save(path, NEW, threads=1)


def saving_anew(path):
    os.unlink(path)
    npzkit.save(path, NEW, threads=1)


def appending(path):
    with npzkit.NpzWriter(path, "a", threads=1) as w:
        for key, array in NEW.items():
            w.add(key, array, overwrite=True)
        del w["small"]


def creating(path):
    with npzkit.NpzWriter(path, "x" if not path.exists() else "w", threads=1) as w:
        with w.create("large", (30_000,), "i8") as dst:
            dst[:] = NEW["large"]
        for key in ("new", "empty"):
            w[key] = NEW[key]


def repacking(path):
    npzkit.repack(path, threads=1)


def repairing(path):
    with open(path, "ab") as file:
        file.write(b"torn")
    npzkit.repair(path)


def mapping(path):
    with npzkit.open(path) as npz:
        mapped = npz.memmap("large", "r+")
        mapped[0] = 0
        mapped.flush()


def appending_durable(path):
    with npzkit.NpzWriter(path, "a", threads=1, durable=True) as w:
        w["new"] = NEW["new"]


WORKS = [
    *((AtCall, work) for work in (
        opening, opening_torn, saving, saving_anew, appending, appending_durable, creating,
        repacking, repairing, mapping,
    )),
    *((AtOpcode, work) for work in (
        opening, opening_torn, saving, saving_anew, appending, creating, repacking, repairing,
        mapping,
    )),
]  # fmt: skip


def contents(path):
    """Return the arrays at a path, read by other code, with what cannot be compared as text."""
    if not path.exists():
        return None
    with npzkit.open(path) as npz:
        return {key: array.tolist() for key, array in npz.load_all(threads=1).items()}


def instants(work, kind, path):
    """Return which instants of a work are tried: some that a seed chooses, or all."""
    counting = kind()
    # The first time, modules are imported and caches are filled.
    for counter in (kind(), counting):
        npzkit.save(path, OLD)
        interrupted(work, counter, path)
    numbers = range(1, counting.count + 1)
    seed = os.environ.get("NPZKIT_SEED", "0")
    return sorted(
        random.Random(f"{work.__name__} {seed}").sample(numbers, min(COUNT, len(numbers)))
    )


def interrupted(work, interrupt, path):
    """Do a work with an interrupt in it; return the error that came out."""
    get, install = interrupt.hooks
    # Of a debugger, or of what measures coverage.
    before = get()
    try:
        install(interrupt)
        work(path)
    except BaseException as error:
        return error
    finally:
        install(before)
    return None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@each_row(("kind", "work"), WORKS)
def test_an_interrupt_at_any_instant(kind, work, tmp_path, monkeypatch):
    """An interrupt leaves the old archive or the new one, and no lock, descriptor or other file."""
    path = tmp_path / "a.npz"
    numbers = instants(work, kind, path)
    after = contents(path)
    npzkit.save(path, OLD)
    allowed = [contents(path), after, *([None] if work is saving_anew else [])]
    # An interrupt in a destructor is reported, and dropped.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    for number in numbers:
        npzkit.save(path, OLD)
        descriptors = descriptor_count()
        error = interrupted(work, kind(number), path)
        check_error(error, kind, path, number)
        del error
        if descriptor_count() > descriptors or {*os.listdir(tmp_path)} - {"a.npz"}:
            gc.collect()
        assert descriptor_count() <= descriptors, number
        assert set(os.listdir(tmp_path)) <= {"a.npz"}, number
        assert contents(path) in allowed, number
        check_free(path)


def check_error(error, kind, path, number):
    """While an interrupt is held, and its frames, no lock is, but where no code of npzkit's ran."""
    if kind is AtOpcode and isinstance(error, RuntimeError):
        # It came where Python delivers none, and what is then closed says that it is in use.
        error = error.__context__
    assert error is None or isinstance(error, KeyboardInterrupt), (number, error)
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    own = [frame for frame in frames if frame.filename.startswith(FOLDER)]
    has_begun = own and own[-1].name not in ("__enter__", "__exit__")
    # A call that was to close the file, and had not begun.
    if kind is AtCall and has_begun and not own[-1].line.startswith("def close"):
        check_free(path)


def check_free(path):
    """Nobody has a lock on the file, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        lock_path(str(path), 0).close()


# -- threads that are waited for ----------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such timers")
@pytest.mark.parametrize("work", ["run", "pipeline"])
def test_an_interrupt_while_threads_are_waited_for(work):
    """Whoever waits for threads gets the KeyboardInterrupt, never an error of Python's locks."""
    tasks = [lambda: time.sleep(0.0003)] * 6

    def piped():
        with Pipeline(3) as pipeline:
            for task in tasks:
                pipeline.submit(task, lambda _: None)

    def ran():
        run(tasks, 3)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    draw = random.Random(work)
    count = count_workers()
    interrupts = 0
    try:
        for _ in range(40):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 1.5e-3))
                (ran if work == "run" else piped)()
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupts -= 1
            interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 3
    # Those of an interrupted start end by themselves, soon.
    deadline = time.monotonic() + 20
    while count_workers() > count and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert count_workers() <= count


def count_workers():
    """How many threads do npzkit's work; others are those of servers and libraries."""
    stacks = map(traceback.extract_stack, sys._current_frames().values())
    return sum(any(line.filename == threads.__file__ for line in stack) for stack in stacks)
