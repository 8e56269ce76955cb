"""Progress: bytes done of those there are, in the caller's thread, to the end."""

from __future__ import annotations

import threading

import pytest
from npzkit.parallel import Pipeline
from npzkit.progress import Meter


@pytest.mark.parametrize("total", [0, 1, 150, 5 << 20])
def test_the_last_report_is_of_the_total(total):
    """Whatever was counted, the reports grow and end at the total."""
    told = []
    meter = Meter(lambda *step: told.append(step), total)
    for _ in range(3):
        meter.add(total // 2)
    meter.finish()
    done = [step[0] for step in told]
    assert done == sorted(set(done))
    assert told[-1] == (total, total)


def test_large_work_is_reported_every_few_bytes():
    """Of 1 GiB counted by 256 KiB there is a report for every MiB or two, not for every call."""
    told = []
    meter = Meter(lambda *step: told.append(step), 1 << 30)
    for _ in range(4096):
        meter.add(1 << 18)
    assert 512 <= len(told) <= 1024


def test_a_part_counts_once_however_often_it_is_read():
    """A part that is read twice grows at half the speed, and one that ends early is counted."""
    told = []
    meter = Meter(lambda done, total: told.append(done), 100)
    part = meter.part(60, 120)
    for _ in range(4):
        part.add(40)
    part.end()
    meter.part(40).end()
    assert told == [20, 40, 60, 100]


def test_other_threads_count_and_the_caller_reports():
    """What threads count is reported in the thread that waits for them, while it waits."""
    callers, started, counted = set(), threading.Event(), threading.Event()

    def report(done, total):
        callers.add((threading.current_thread(), done))
        counted.set()

    meter = Meter(report, 10)

    def work():
        started.set()
        meter.add(5)
        assert counted.wait(30)

    with Pipeline(2, meter.report) as pipeline:
        pipeline.submit(work, lambda result: None)
    assert callers == {(threading.current_thread(), 5)}
