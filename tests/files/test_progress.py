"""Progress: bytes done and the total, reported in the caller's thread."""

from __future__ import annotations

import threading

import npzkit
import numpy as np
import pytest
from npzkit.files.progress import Meter
from npzkit.files.threads import Pipeline

from tables import each_row


@pytest.mark.parametrize("total", [0, 1, 150, 5 << 20])
def test_the_last_report_is_of_the_total(total):
    """The reports grow and end at the total, for any counts."""
    told = []
    meter = Meter(lambda *step: told.append(step), total)
    for _ in range(3):
        meter.add(total // 2)
    meter.finish()
    done = [step[0] for step in told]
    assert done == sorted(done)
    assert told[-1] == (total, total)


def test_large_work_is_reported_every_few_bytes():
    """Counting 1 GiB in steps of 256 KiB gives a report per MiB or two, not per call."""
    told = []
    meter = Meter(lambda *step: told.append(step), 1 << 30)
    for _ in range(4096):
        meter.add(1 << 18)
    assert 512 <= len(told) <= 1024


def test_a_part_counts_once_however_often_it_is_read():
    """A part that is read twice grows at half the speed, and one that ends early is counted completely."""
    told = []
    meter = Meter(lambda done, total: told.append(done), 100)
    part = meter.part(60, 120)
    for _ in range(4):
        part.add(40)
    part.end()
    meter.part(40).end()
    assert told == [20, 40, 60, 100]


def test_other_threads_count_and_the_caller_reports():
    """Counts of other threads are reported in the thread that waits for them."""
    callers, started, counted = set(), threading.Event(), threading.Event()

    def report(done, total):
        callers.add((threading.current_thread(), done))
        if done == 5:
            counted.set()

    meter = Meter(report, 10)

    def work():
        started.set()
        meter.add(5)
        assert counted.wait(30)

    with Pipeline(2, meter.report) as pipeline:
        pipeline.submit(work, lambda result: None)
    assert callers - {(threading.current_thread(), 0)} == {(threading.current_thread(), 5)}


def _steps_of(run):
    """Return the bytes done as a function reports them, which must grow to the total."""
    steps = []
    run(lambda done, total: steps.append((done, total)))
    done = [step[0] for step in steps]
    assert done == sorted(done)
    assert {total for _, total in steps} == {done[-1]}
    return done


@pytest.mark.slow
@each_row("compression", ["stored", "deflated"])
@each_row("call", ["verify", "repair", "repack", "recode"])
def test_one_large_array_is_counted_by_its_bytes(call, compression, tmp_path, monkeypatch):
    """Verify, repair and repack report progress inside an array."""
    monkeypatch.setattr("npzkit.writing.copy.PIECE_SIZE", 1 << 20)
    monkeypatch.setattr("npzkit.maintenance.repack.PIECE_SIZE", 1 << 20)
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    array = np.resize(np.random.default_rng(0).integers(0, 256, 1 << 19, np.uint8), 6 << 20)
    npzkit.save(path, {"x": array}, compression=compression)
    other = {"stored": "deflated", "deflated": "stored"}[compression]
    done = _steps_of({
        "verify": lambda tell: npzkit.verify(path, progress=tell, threads=1),
        "repair": lambda tell: npzkit.repair(path, output, progress=tell, overwrite=True),
        "repack": lambda tell: npzkit.repack(path, output, progress=tell, overwrite=True),
        "recode": lambda tell: npzkit.repack(path, output, compression=other, progress=tell, overwrite=True),
    }[call])  # fmt: skip
    assert len(done) >= 4
    # No step is larger than half of the work.
    assert max(np.diff([0, *done])) <= done[-1] / 2


@pytest.mark.slow
def test_an_array_that_is_read_by_a_thread_is_counted_too(tmp_path, monkeypatch):
    """The caller gets reports on a member that another thread inflates."""
    monkeypatch.setattr("npzkit.files.threads._WAITING_SECONDS", 0.0005)
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.zeros(40 << 20, np.uint8)}, compression="deflated", level=1)
    # On a machine that is busy, the caller may hardly run meanwhile.
    assert any(
        len(_steps_of(lambda tell: npzkit.verify(path, progress=tell, threads=2))) > 2
        for _ in range(30)
    )
