"""Threads: their number does not change the bytes, and none is left running."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from queue import SimpleQueue

import npzkit
import npzkit.reading.load_all
import numpy as np
import pytest
from deep import amount
from npzkit.files.threads import Pipeline, run
from peak import PEAK, needs_peak

CHUNK = 4096
HEAD = 128
"""Bytes of the NPY header of all these arrays."""


def threads_running():
    """Return the running threads, waiting a moment for those that just ended."""
    time.sleep(0.001)
    return set(sys._current_frames())


def saved(arrays, threads, **options):
    stream = io.BytesIO()
    npzkit.save(stream, arrays, threads=threads, **options)
    return stream.getvalue()


def sizes_at_edges():
    """Return sizes around the limits of chunks, groups of chunks and small data."""
    for count in (1, 2, 3, 16, 17, 256, 300):
        for more in (-1, 0, 1):
            yield count * CHUNK - HEAD + more


RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 9, 3_000_000, dtype="u1")
MIXED = {
    "small": np.arange(5),
    "large": NOISE[:1_500_000],
    "another/small": np.float32(2),
    "strided": NOISE[: 999 * 600].reshape(999, 600)[::2, ::-3],
    "transposed": NOISE[: 3 << 18].reshape(3, 512, 512).transpose(1, 2, 0),
    "fortran": np.asfortranarray(NOISE[: 700 * 500].reshape(700, 500)),
    "empty": np.empty((0, 3)),
    "words": np.array(["a", "bcd"] * 40_000),
    "largest": NOISE.view("f4"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "level"), [("stored", None), ("deflated", None), ("deflated", 1)]
)
def test_the_same_bytes_at_the_edges_of_chunks(compression, level):
    """Members that end just before, at and after the end of a chunk do not depend on the threads."""
    arrays = {str(size): NOISE[:size] for size in sizes_at_edges()}
    options = {"compression": compression, "level": level, "chunk_size": CHUNK}
    expected = saved(arrays, 1, **options)
    for threads in (2, 5):
        assert saved(arrays, threads, **options) == expected
    for key, array in npzkit.open(io.BytesIO(expected)).items():
        assert np.array_equal(array, arrays[key])


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [CHUNK, 1 << 18])
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_the_same_bytes_of_mixed_members(tmp_path, compression, chunk_size):
    """Small, large, strided and transposed arrays give the same file with any number of threads."""
    options = {"compression": compression, "chunk_size": chunk_size}
    expected = saved(MIXED, 1, **options)
    for threads in (2, 5):
        path = tmp_path / f"{threads}.npz"
        npzkit.save(path, MIXED, threads=threads, **options)
        assert path.read_bytes() == expected
        assert saved(MIXED, threads, **options) == expected
    with np.load(path) as theirs:
        for key, array in MIXED.items():
            assert np.array_equal(theirs[key], array)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "row_count"), [("stored", None), ("deflated", None), ("deflated", 1500)]
)
def test_the_same_bytes_of_appended_rows(compression, row_count):
    """An array that grows by pieces of any size does not depend on the threads."""
    rows = NOISE[:1_500_000].reshape(1500, 1000)

    def written(threads):
        stream = io.BytesIO()
        with (
            npzkit.NpzWriter(
                stream, compression=compression, chunk_size=CHUNK, threads=threads
            ) as w,
            w.create("log", (row_count, 1000), "u1") as dst,
        ):
            start = 0
            for count in (1, 3, 4, 500, 92, 900):
                dst.append(rows[start : start + count])
                start += count
        return stream.getvalue()

    expected = written(1)
    assert written(2) == written(5) == expected
    assert np.array_equal(npzkit.open(io.BytesIO(expected))["log"], rows)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_bad_numbers_of_threads(threads, tmp_path):
    """An invalid number of threads raises ValueError, and nothing changes."""
    with pytest.raises(ValueError, match="threads"):
        npzkit.save(tmp_path / "a.npz", {"a": NOISE}, threads=threads)
    with pytest.raises(ValueError, match="threads"):
        npzkit.NpzWriter(tmp_path / "a.npz", threads=threads)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [1, 4, 15])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_on_a_thread(tmp_path, monkeypatch, number, threads):
    """If a task fails, its error is raised, the old file stays, and no thread or temporary file is left."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    old = path.read_bytes()
    real = npzkit.codecs.encoders.deflate_chunk
    calls = iter(range(1, 1 << 30))

    def failing(*args, **options):
        if next(calls) == number:
            raise OSError(28, "No space left on device")
        return real(*args, **options)

    monkeypatch.setattr("npzkit.codecs.encoders.deflate_chunk", failing)
    before = threads_running()
    with pytest.raises(OSError, match="No space"):
        npzkit.save(path, {"a": NOISE, "b": NOISE}, compression="deflated", threads=threads)
    assert threads_running() <= before
    assert path.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("threads", [1, 3])
def test_what_comes_first_is_done_by_the_calling_thread(threads):
    """Other threads begin with the tasks meanwhile, and its error is raised before theirs."""
    begun = threading.Event()
    found = []

    def first():
        assert threads == 1 or begun.wait(60)
        found.append(threading.get_ident())

    assert run([begun.set, lambda: 5], threads, first=first) == [None, 5]
    assert found == [threading.get_ident()]

    def fail(error):
        raise error

    with pytest.raises(KeyError):
        run([lambda: fail(OSError())] * 3, threads, first=lambda: fail(KeyError()))


def test_no_thread_outlives_a_call(tmp_path):
    """No thread is left after an array is added, rows are appended, or an archive is saved."""
    before = threads_running()
    with npzkit.NpzWriter(tmp_path / "a.npz", compression="deflated", threads=3) as w:
        w["a"] = NOISE
        assert threads_running() <= before
        with w.create("b", (None,), "u1") as dst:
            dst.append(NOISE)
            assert threads_running() <= before
    with npzkit.open(tmp_path / "a.npz") as npz:
        npz.load_all(threads=3)
        assert threads_running() <= before


def test_results_are_handed_on_in_order():
    """Results come in the order of submission, whichever task ends first."""
    found = []
    with Pipeline(4) as pipeline:
        for i in range(40):
            pipeline.submit(lambda i=i: time.sleep(0.002 * (i % 4 == 0)) or i, found.append)
            pipeline.hand_on(lambda i=i: -i, found.append)
    assert found == [value for i in range(40) for value in (i, -i)]


@pytest.mark.parametrize("threads", [2, 3])
def test_few_tasks_are_under_way(threads):
    """`submit` waits while too many results have not been passed on."""
    submitted, most = 0, 0

    def take(_):
        nonlocal most, done
        most = max(most, submitted - done)
        done += 1

    done = 0
    with Pipeline(threads) as pipeline:
        for _ in range(100):
            submitted += 1
            pipeline.submit(lambda: None, take)
    assert done == 100
    assert threads <= most <= 2 * threads + 1


def test_few_results_of_short_tasks_wait():
    """Thousands of small members after a large one are not all kept in memory until it is written."""
    most, done, given = 0, 0, 0

    def take(_):
        nonlocal done
        done += 1

    with Pipeline(2) as pipeline:
        pipeline.submit(lambda: None, take)
        for _ in range(1000):
            given += 1
            pipeline.hand_on(lambda: None, take)
            most = max(most, given - done)
    assert done == 1001
    assert 1 < most < 200


def test_an_exception_drops_what_has_not_begun():
    """After an exception the pipeline waits for running tasks, drops the others, and can be used again."""
    begun, found = [], []
    gate = threading.Event()
    pipeline = Pipeline(2)

    def task(i):
        begun.append(i)
        gate.wait(10)
        return i

    with pytest.raises(ZeroDivisionError), pipeline:
        for i in range(4):
            pipeline.submit(lambda i=i: task(i), found.append)
        while len(begun) < 2:
            time.sleep(0.001)
        timer = threading.Timer(0.2, gate.set)
        timer.start()
        raise ZeroDivisionError
    timer.join()
    assert sorted(begun) == [0, 1]
    assert found == []
    before = threads_running()
    with pipeline:
        pipeline.submit(lambda: 5, found.append)
    assert found == [5]
    assert threads_running() <= before


def test_an_error_of_a_task_comes_in_its_turn():
    """The exception of a task is raised after the results before it were passed on."""
    found = []

    def fail():
        raise KeyError("three")

    with pytest.raises(KeyError, match="three"), Pipeline(2) as pipeline:
        for i in range(3):
            pipeline.submit(lambda i=i: i, found.append)
        pipeline.submit(fail, found.append)
        pipeline.submit(lambda: 4, found.append)
    assert found == [0, 1, 2]


def test_run_returns_results_in_order():
    """Every task runs once, on no more threads than tasks, including this one."""
    used, begun = set(), threading.Barrier(3)

    def task(i):
        used.add(threading.get_ident())
        begun.wait(10)
        time.sleep(0.001 * (3 - i))
        return i

    before = threads_running()
    assert run([lambda i=i: task(i) for i in range(3)], 8) == [0, 1, 2]
    assert len(used) == 3
    assert threading.get_ident() in used
    assert threads_running() <= before
    assert run([], 4) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_run_raises_the_first_exception(threads):
    """Of several errors, that of the first task is raised, and no further task starts."""
    begun = []

    def task(i):
        begun.append(i)
        if i >= 2:
            raise ValueError(f"task {i}")

    with pytest.raises(ValueError, match="task 2"):
        run([lambda i=i: task(i) for i in range(1000)], threads)
    assert len(begun) < 10


def test_run_raises_the_error_of_the_first_task():
    """If two tasks fail, the first one's error is raised even if the second failed earlier."""
    second_failed = threading.Event()

    def first():
        second_failed.wait(10)
        time.sleep(0.01)
        raise ValueError("first")

    def second():
        second_failed.set()
        raise ValueError("second")

    with pytest.raises(ValueError, match="first"):
        run([first, second], 2)


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("row_count", [None, 3000])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_may_be_changed_once_they_are_appended(compression, row_count, threads):
    """Arrays are saved as they were when they were appended, added or assigned."""
    stream = io.BytesIO()
    rows = NOISE[:300_000].reshape(3000, 100).copy()
    options = {"compression": compression, "chunk_size": CHUNK}
    with npzkit.NpzWriter(stream, threads=threads, **options) as w:
        with w.create("log", (row_count, 100), "u1") as dst:
            for start in range(0, 3000, 250):
                part = rows[start : start + 250]
                dst.append(part)
                part[:] = 0
        w["b"] = array = NOISE.copy()
        array[:] = 0
    npz = npzkit.open(stream)
    assert np.array_equal(npz["log"].ravel(), NOISE[:300_000])
    assert np.array_equal(npz["b"], NOISE)


MEMORY = f"""{PEAK}
import sys
import numpy as np, npzkit
array = np.tile(np.random.default_rng(0).integers(0, 99, 1 << 20, dtype="u1"), 64)
npzkit.save(sys.argv[1], {{"warm": array[: 1 << 21]}}, compression="deflated", threads=2)
before = peak()
npzkit.save(sys.argv[1], {{"a": array}}, compression="deflated", threads=2)
print(peak() - before)
"""


@needs_peak
@pytest.mark.slow
def test_memory_while_deflating(tmp_path):
    """Deflating 64 MiB takes less than 40 MiB of extra memory."""
    found = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "a.npz")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) < 40 << 10


@pytest.mark.parametrize(("count", "expected"), [(10, 1), (200, 1), (9000, 2)])
def test_few_bytes_are_read_by_one_thread(count, expected, tmp_path, monkeypatch):
    """A thread is started only for megabytes: for fewer, its start takes longer than the reading."""
    path = tmp_path / "a.npz"
    arrays = {f"k{i}": np.full((count, 100), i, "i4") for i in range(3)}
    npzkit.save(path, arrays)
    used = []
    real = npzkit.reading.load_all.run
    monkeypatch.setattr(
        npzkit.reading.load_all, "run",
        lambda tasks, threads, **first: used.append(threads) or real(tasks, threads, **first),
    )  # fmt: skip
    with npzkit.open(path) as npz:
        found = npz.load_all(threads=2)
    assert all(np.array_equal(found[key], array) for key, array in arrays.items())
    assert set(used) <= {expected}
    assert used or count == 10


@pytest.mark.slow
def test_where_no_thread_can_be_started(tmp_path, monkeypatch):
    """What threads would do is done by the caller: Python 3.12 starts none when it is about to end."""

    def refuse(*args):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    path = tmp_path / "a.npz"
    arrays = {"x": np.arange(3_000_000), "y": np.arange(2_000_000) % 7}
    monkeypatch.setattr(npzkit.files.threads._thread, "start_new_thread", refuse)
    for compression in ("stored", "deflated"):
        npzkit.save(path, arrays, compression=compression, threads=2)
        with npzkit.open(path) as npz:
            found = npz.load_all(threads=2)
            assert npz.verify(threads=2).ok
        assert all(np.array_equal(found[key], array) for key, array in arrays.items())


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_threads_that_die_at_once(compression, tmp_path, monkeypatch):
    """If memory ends as a thread begins, it never runs a line; others or the caller do its work."""
    path = tmp_path / "a.npz"
    arrays = {"x": np.arange(3_000_000), "y": np.arange(2_000_000) % 7}
    thread = npzkit.files.threads._thread
    real, started = thread.start_new_thread, []
    for stride in (1, 2):

        def start(work, args, stride=stride):
            started.append(1)
            return real(time.sleep, (0.001,)) if len(started) % stride == 0 else real(work, args)

        monkeypatch.setattr(thread, "start_new_thread", start)
        npzkit.save(path, arrays, compression=compression, threads=3)
        with npzkit.open(path) as npz:
            found = npz.load_all(threads=3)
            assert npz.verify(threads=3, progress=lambda done, total: None).ok
        assert all(np.array_equal(found[key], array) for key, array in arrays.items())
    assert len(started) > 4


def test_a_thread_that_cannot_say_that_it_ended(monkeypatch):
    """If memory ends as a thread ends, the caller notices that, and has the results."""

    class Full(SimpleQueue):
        def put(self, item):
            if item is None and threading.current_thread() is not threading.main_thread():
                raise MemoryError
            super().put(item)

    monkeypatch.setattr("npzkit.files.threads.SimpleQueue", Full)
    before, found = threads_running(), []
    assert run([lambda i=i: time.sleep(0.001) or i for i in range(40)], 3) == [*range(40)]
    for _ in range(2):
        with Pipeline(3) as pipeline:
            for i in range(20):
                pipeline.submit(lambda i=i: i, found.append)
    assert found == [*range(20)] * 2
    assert threads_running() <= before


LITTLE_MEMORY = """
import contextlib, os, resource, signal, sys
import numpy as np, npzkit

path, new, compression, count = *sys.argv[1:4], int(sys.argv[4])
noise = np.random.default_rng(0).integers(0, 99, 12 << 20, "u1")
arrays = {str(i): noise[i << 21 :][: 2 << 20] for i in range(6)}

def load():
    with npzkit.open(path) as npz:
        found = npz.load_all(threads=4)
        assert all(np.array_equal(found[key], array) for key, array in arrays.items())

def verify():
    assert npzkit.verify(path, threads=4, progress=lambda done, total: None).ok

def save():
    npzkit.save(new, arrays, compression=compression, threads=4)

calls = save, load, verify
npzkit.save(path, arrays, compression=compression, threads=4)
for call in calls * 2:
    call()
for number in range(count):
    for call in calls:
        child = os.fork()
        if not child:
            signal.alarm(20)
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            limit = used + (number << 22) // count
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            try:
                call()
            except MemoryError:
                pass
            except BaseException as error:
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
                print(call, repr(error)[:500], flush=True)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            print(call, number, "ended by signal", status)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
@pytest.mark.parametrize("compression", ["stored", "deflated", "zstd"])
def test_where_memory_ends(compression, tmp_path):
    """Whatever memory is left, each call with threads ends: with its result, or MemoryError."""
    if compression == "zstd":
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    found = subprocess.run(
        [
            sys.executable, "-c", LITTLE_MEMORY,
            tmp_path / "a.npz", tmp_path / "b.npz", compression, str(amount(6, 200)),
        ],
        stdout=subprocess.PIPE, text=True, timeout=500, check=True,
    )  # fmt: skip
    assert found.stdout == ""


def test_after_a_failure_no_task_begins():
    """If the caller's own part fails, tasks that were not begun are left out."""
    begun = []

    def fail():
        raise KeyboardInterrupt

    def task():
        begun.append(1)
        time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        run([task] * 2000, 2, first=fail)
    assert len(begun) < 1000


def test_rows_of_another_layout_are_copied_in_blocks(monkeypatch):
    """What is appended is converted a block at a time, not all at once."""
    monkeypatch.setattr("npzkit.writing.created_array.BLOCK_SIZE", 1 << 16)
    rows = np.asfortranarray(np.arange(400_000, dtype="f4").reshape(4000, 100))
    sizes = []
    real = np.ascontiguousarray

    def copied(part, dtype):
        sizes.append(part.nbytes)
        return real(part, dtype)

    with npzkit.NpzWriter(io.BytesIO()) as w, w.create("x", (4000, 100), "f4") as dst:
        monkeypatch.setattr(np, "ascontiguousarray", copied)
        dst.append(rows)
    assert max(sizes) <= 1 << 16
    assert sum(sizes) == rows.nbytes


def test_a_pipeline_starts_no_more_threads_than_were_asked_for():
    """However many tasks wait, two threads do all of them."""
    begin, workers = threading.Event(), set()

    def work():
        begin.wait(10)
        workers.add(threading.get_ident())
        time.sleep(0.002)

    with Pipeline(2) as pipeline:
        for _ in range(4):
            pipeline.submit(work, lambda _: None)
        begin.set()
        pipeline.drain()
    assert len(workers) <= 2
