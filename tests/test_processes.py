"""Several processes and one archive, as on any system: savers, appenders, readers, kills."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import npzkit
import numpy as np
import pytest
from deep import amount
from npzkit.checkpoint import CheckpointStore

START = "import os, sys, time, numpy as np, npzkit\npath, number = sys.argv[1], int(sys.argv[2])\n"
SAVER = (
    START
    + """
for turn in range(int(sys.argv[3])):
    npzkit.save(path, {"x": np.full(20_000, number), "turn": np.int64(turn)}, lock_timeout=60)
"""
)
APPENDER = (
    START
    + """
for turn in range(int(sys.argv[3])):
    with npzkit.NpzWriter(path, "a", lock_timeout=60) as writer:
        writer[f"p{number}_{turn}"] = np.full(3000, number)
"""
)
ENDLESS = (
    START
    + """
for turn in range(10**9):
    if number:
        npzkit.save(path, {"x": np.full(200_000, turn)}, lock_timeout=60)
    else:
        with npzkit.NpzWriter(path, "a", lock_timeout=60, auto_repack=False) as writer:
            writer.add("x", np.full(200_000, turn), overwrite=True)
    print(turn, flush=True)
"""
)
SCANNER = """
import os, sys, time
while os.path.exists(sys.argv[2]):
    for name in os.listdir(sys.argv[1]):
        try:
            with open(os.path.join(sys.argv[1], name), "rb"):
                time.sleep(0.02)
        except OSError:
            pass
    time.sleep(0.02)
"""
FILLER = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    array = pickle.load(file)
array[int(sys.argv[2]) :: 3] = int(sys.argv[2])
"""


def start(code, *words, **options):
    """Start a Python with some words."""
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, **options)


def ended(processes):
    """Wait until all processes have ended, and return their exit codes."""
    return [process.wait(300) for process in processes]


def files_in(folder):
    """Return the names of what is in a folder."""
    return sorted(os.listdir(folder))


@pytest.fixture
def path(tmp_path):
    """An archive."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.zeros(5)})
    return path


@pytest.mark.slow
def test_savers_of_one_path(path):
    """Each waits for the others, and none fails."""
    assert ended([start(SAVER, path, n, amount(8, 40)) for n in range(3)]) == [0, 0, 0]
    with npzkit.open(path) as npz:
        assert len(set(npz["x"].tolist())) == 1
    assert files_in(path.parent) == ["a.npz"]


@pytest.mark.slow
def test_savers_of_a_path_where_nothing_is(tmp_path):
    """The first one makes the file, and the others replace it."""
    path = tmp_path / "new.npz"
    assert ended([start(SAVER, path, n, 4) for n in range(3)]) == [0, 0, 0]
    assert npzkit.verify(path).ok and files_in(tmp_path) == ["new.npz"]


@pytest.mark.slow
def test_appenders_to_one_path(path):
    """What each of them adds is there."""
    turns = amount(5, 30)
    assert ended([start(APPENDER, path, n, turns) for n in range(3)]) == [0, 0, 0]
    with npzkit.open(path) as npz:
        assert len(npz) == 1 + 3 * turns
        assert all((npz[f"p{n}_{turn}"] == n).all() for n in range(3) for turn in range(turns))


def test_savers_and_appenders(path):
    """Whoever comes last, the archive is sound and no file is left."""
    processes = [start(SAVER, path, n, 5) for n in range(2)]
    processes += [start(APPENDER, path, n, 5) for n in range(2)]
    assert ended(processes) == [0] * 4
    assert npzkit.verify(path).ok and files_in(path.parent) == ["a.npz"]


@pytest.mark.slow
def test_savers_beside_a_program_that_opens_each_file(path):
    """Such as a scanner for viruses, which holds files for moments."""
    (path.parent / "on").mkdir()
    scanner = start(SCANNER, path.parent, path.parent / "on")
    try:
        assert ended([start(SAVER, path, n, 10) for n in range(2)]) == [0, 0]
    finally:
        (path.parent / "on").rmdir()
        scanner.wait(60)
    assert npzkit.verify(path).ok and files_in(path.parent) == ["a.npz"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::npzkit.errors.TornArchiveWarning")
@pytest.mark.parametrize("saves", [0, 1], ids=["append", "save"])
def test_killed_at_any_moment(path, saves):
    """The archive has what was committed before, and the next writer works."""
    for turn in range(amount(4, 25)):
        npzkit.save(path, {"x": np.zeros(5)})
        process = start(ENDLESS, path, saves, stdout=subprocess.PIPE)
        with process.stdout:
            process.stdout.readline()
            time.sleep(0.002 * turn)
            process.kill()
        process.wait(60)
        with npzkit.open(path) as npz:
            assert len(set(npz["x"].tolist())) == 1
        with npzkit.NpzWriter(path, "a", lock_timeout=10) as writer:
            writer["more"] = np.ones(3)
        assert npzkit.verify(path).ok


@pytest.mark.slow
def test_a_reader_beside_an_appender(path):
    """It reads what was committed when it opened the file, without a warning."""
    process = start(APPENDER, path, 0, amount(20, 200))
    while process.poll() is None:
        with npzkit.open(path, strict=True) as npz:
            arrays = npz.load_all()
        assert arrays["x"].tolist() == [0] * 5
        assert all((array == 0).all() for array in arrays.values())
    assert process.wait() == 0


@pytest.mark.slow
def test_workers_fill_an_array(path):
    """Processes that are handed a created array write their parts of it."""
    import pickle

    with npzkit.NpzWriter(path, "a") as writer, writer.create("big", (999,), "i4") as array:
        handed = path.parent / "handed"
        handed.write_bytes(pickle.dumps(array))
        assert ended([start(FILLER, handed, n) for n in range(3)]) == [0, 0, 0]
    with npzkit.open(path) as npz:
        assert npz["big"].tolist() == [0, 1, 2] * 333


@pytest.mark.slow
def test_a_map_that_is_written_beside_an_appender(path):
    """Both changes are in the file, and it is sound."""
    with npzkit.open(path) as npz:
        mapped = npz.memmap("x", "r+")
        process = start(APPENDER, path, 0, 5)
        mapped[:] = 7
        mapped.flush()
        assert process.wait(120) == 0
        del mapped
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [7] * 5 and len(npz) == 6
    assert npzkit.verify(path).ok


@pytest.mark.slow
def test_checkpoints_of_a_killed_run(tmp_path):
    """The newest step that was saved is loaded, and the next run goes on."""
    code = START + (
        "from npzkit.checkpoint import CheckpointStore\n"
        "with CheckpointStore(path) as store:\n"
        "    for step in range(10**9):\n"
        "        store.save(step, {'w': np.full(50_000, step)})\n"
        "        print(step, flush=True)\n"
    )
    process = start(code, tmp_path / "run", 0, stdout=subprocess.PIPE)
    with process.stdout:
        told = [int(process.stdout.readline()) for _ in range(4)]
        process.kill()
    process.wait(60)
    with CheckpointStore(tmp_path / "run") as store:
        checkpoint = store.load()
        assert checkpoint.step >= told[-1]
        assert (checkpoint.tree["w"] == checkpoint.step).all()
        store.save(checkpoint.step + 1, {"w": np.ones(3)})


@pytest.mark.slow
def test_the_tour(tmp_path):
    """The README's tour ends well."""
    tour = Path(__file__).parent / "tour.py"
    done = subprocess.run([sys.executable, tour], cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0
