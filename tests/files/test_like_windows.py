"""Windows' rules for files: what is open or mapped is not replaced, removed or cut off."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
import warnings

import npzkit
import numpy as np
import pytest
from like_windows import files_in, like_windows, needs_rules
from npzkit.errors import ArchiveLockedError, TornArchiveWarning, UnsupportedError
from npzkit.files import disk, locking, system_locks
from npzkit.files.new_file import NewFile

pytestmark = needs_rules
FREE = "close it, and try again"


@pytest.fixture(autouse=True)
def windows(monkeypatch):
    """Windows' rules."""
    like_windows(monkeypatch)


@pytest.fixture
def path(tmp_path):
    """An archive."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(5)})
    return path


def test_the_byte_that_is_locked_is_no_byte_of_a_file(monkeypatch):
    """It is the last that a file could have, so that no read or write meets it."""
    calls = []
    monkeypatch.setattr(system_locks, "fcntl", None)
    monkeypatch.setattr(
        system_locks, "_call_windows", lambda name, _, *rest: calls.append((name, rest)) or 0
    )
    assert system_locks.lock(3) is True
    assert system_locks.lock(3, shared=True) is True
    system_locks.unlock(3)
    assert calls == [("LockFileEx", (3, 0)), ("LockFileEx", (1, 0)), ("UnlockFileEx", (0,))]
    assert system_locks.WINDOWS_OFFSET == 2**63 - 2


@pytest.mark.parametrize(("number", "found"), [(0, True), (33, False), (997, False), (50, None)])
def test_what_windows_answers(monkeypatch, number, found):
    """The lock is taken, another writer has it, or the share has no locks."""
    monkeypatch.setattr(system_locks, "fcntl", None)
    monkeypatch.setattr(system_locks, "_call_windows", lambda *_: number)
    assert system_locks.lock(3) is found


SAVER = """
import sys, numpy as np, npzkit
from like_windows import like_windows
from pytest import MonkeyPatch
like_windows(MonkeyPatch())
for number in range(4):
    npzkit.save(sys.argv[1], {"x": np.full(1000, number)}, lock_timeout=60)
with npzkit.NpzWriter(sys.argv[1], lock_timeout=60) as writer:
    writer["x"] = np.arange(5)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="tests/test_processes.py does this on Windows")
def test_savers_of_one_path(path):
    """Three processes that save to one path wait for each other, and none fails."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.path.dirname(sys.modules["like_windows"].__file__),
    }
    command = [sys.executable, "-c", SAVER, str(path)]
    savers = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [saver.wait(120) for saver in savers] == [0, 0, 0]
    assert files_in(path.parent) == ["a.npz"]
    assert npzkit.verify(path).ok


def test_who_waits_does_not_have_the_file_open(path):
    """Between two attempts to lock a file it is closed, so that it can be replaced."""
    with npzkit.NpzWriter(path) as writer:
        writer["x"] = np.ones(2)
        waiting = threading.Thread(target=npzkit.save, args=(path, {"x": np.zeros(2)}),
                                   kwargs={"lock_timeout": 60})  # fmt: skip
        waiting.start()
        time.sleep(0.1)
    waiting.join()
    assert np.load(path)["x"].tolist() in ([0, 0], [1, 1])


@pytest.mark.slow
def test_a_scanner_holds_the_file_for_a_moment(path):
    """A save waits for another program that has the old file, or the new one, open."""
    stop = threading.Event()

    def scan():
        while not stop.is_set():
            for name in os.listdir(path.parent):
                try:
                    with open(path.parent / name, "rb"):
                        time.sleep(0.02)
                except (FileNotFoundError, PermissionError):
                    pass
            time.sleep(0.01)

    scanner = threading.Thread(target=scan)
    scanner.start()
    try:
        for number in range(10):
            npzkit.save(path, {"x": np.full(5, number)})
        with pytest.raises(ZeroDivisionError), npzkit.NpzWriter(path) as writer:
            writer["y"] = np.ones(100_000)
            raise ZeroDivisionError
    finally:
        stop.set()
        scanner.join()
    assert files_in(path.parent) == ["a.npz"]
    assert np.load(path)["x"].tolist() == [9] * 5


def test_a_scanner_holds_a_new_file_where_none_was(tmp_path):
    """A save waits for it, though there is no old file that could be in use."""
    path = tmp_path / "new.npz"
    with npzkit.NpzWriter(path) as writer:
        writer["x"] = np.arange(3)
        (name,) = os.listdir(tmp_path)
        scanner = open(tmp_path / name, "rb")
        end = threading.Timer(0.1, scanner.close)
        end.start()
    end.join()
    assert files_in(tmp_path) == ["new.npz"]
    assert np.load(path)["x"].tolist() == [0, 1, 2]


def test_an_open_file_is_named(path, monkeypatch):
    """The error names the file that the user gave, and says to close it; then it works."""
    monkeypatch.setattr(disk, "PATIENCE", 0.05)
    with npzkit.open(path), pytest.raises(PermissionError, match=FREE) as caught:
        npzkit.save(path, {"x": np.ones(2)})
    assert caught.value.filename == str(path)
    assert ".tmp" not in str(caught.value)
    assert files_in(path.parent) == ["a.npz"]
    npzkit.save(path, {"x": np.ones(2)})
    assert np.load(path)["x"].tolist() == [1, 1]


def test_another_writer_locks_the_file_before_it_is_replaced(path, monkeypatch):
    """The error says so, as for any other second writer, and the file stays as it was."""
    release, held = NewFile.release_locks, []

    def release_and_lose(file, *args):
        release(file, *args)
        if not held:
            held.append(locking.lock_path(str(path), 0.0))

    writer = npzkit.NpzWriter(path)
    monkeypatch.setattr(NewFile, "release_locks", release_and_lose)
    with pytest.raises(ArchiveLockedError, match="another writer has the archive open"):
        writer.close()
    held[0].close()
    assert np.load(path)["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_writer_goes_on_after_its_first_commit(path):
    """The lock ends with the rename, and is taken again with the next change."""
    with npzkit.NpzWriter(path) as writer:
        writer["x"] = np.ones(2)
        writer.commit()
        npzkit.NpzWriter(path, "a").close()
        writer["y"] = np.zeros(100_000)
        with pytest.raises(ArchiveLockedError):
            npzkit.NpzWriter(path, "a")
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [1, 1] and npz["y"].shape == (100_000,)


@pytest.mark.remedy("Delete the map, and close the writer or commit again.")
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_map_of_a_created_array_is_in_use(tmp_path, is_committed):
    """The error names the array; nothing is lost, and the writer can be closed again."""
    writer = npzkit.NpzWriter(tmp_path / "a.npz")
    with pytest.raises(UnsupportedError, match="map of an array is in use") as caught, writer:
        created = writer.create("big", (4,), "f8")
        mapped = created.memmap()
        mapped[:] = 3
        if is_committed:
            with pytest.raises(UnsupportedError, match="map of an array is in use"):
                writer.commit()
    assert caught.value.key == "big"
    del mapped
    writer.close()
    assert np.load(tmp_path / "a.npz")["big"].tolist() == [3] * 4
    assert files_in(tmp_path) == ["a.npz"]


def test_a_tail_that_is_mapped(path):
    """What a writer leaves is no error of `abort`; who would cut it off is told why."""
    size = path.stat().st_size
    writer = npzkit.NpzWriter(path, "a")
    writer["y"] = np.ones(1_000_000)
    mapped = np.memmap(path, "u1", "r")
    writer.abort()
    assert path.stat().st_size > size
    with pytest.warns(TornArchiveWarning):
        writer = npzkit.NpzWriter(path, "a")
    with pytest.raises(PermissionError, match=FREE) as caught:
        writer["z"] = np.ones(100_000)
    assert caught.value.filename == str(path)
    writer.abort()
    del mapped
    with pytest.warns(TornArchiveWarning), npzkit.NpzWriter(path, "a") as writer:
        writer["z"] = np.ones(3)
    assert np.load(path)["z"].tolist() == [1, 1, 1]


def test_an_append_to_a_file_that_is_mapped(path):
    """What follows its end cannot be cut off, so the end is written behind that; all programs read it."""
    with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
        writer["y"] = np.ones(1_000_000)
        mapped = np.memmap(path, "u1", "r")
    assert path.stat().st_size > len(mapped)
    with npzkit.open(path, strict=True) as npz, np.load(path) as theirs:
        assert npz.files == theirs.files == ["x", "y"]
        assert npz["y"].sum() == theirs["y"].sum() == 1_000_000
    assert npzkit.verify(path).ok
    with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
        writer["z"] = np.ones(3)
    del mapped
    with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
        writer["last"] = np.ones(100_000)
    with npzkit.open(path, strict=True) as npz, np.load(path) as theirs:
        assert npz.files == theirs.files == ["x", "y", "z", "last"]
    assert npzkit.verify(path).ok


def test_a_reader_while_an_append_is_under_way(path):
    """It asks whether a writer holds the lock, and reads what was committed without a warning."""
    with npzkit.NpzWriter(path, "a") as writer:
        writer["y"] = np.ones(1_000_000)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with npzkit.open(path, strict=True) as npz:
                assert npz.files == ["x"]


@pytest.mark.remedy("Copy it to another file system")
def test_a_file_of_two_identities(path, monkeypatch):
    """Where an open file and its path never agree, a writer gives up instead of trying for ever."""
    with monkeypatch.context() as patched:
        patched.setattr(locking.os.path, "samestat", lambda *_: False)
        with pytest.raises(UnsupportedError, match="never the one"):
            npzkit.NpzWriter(path, "a")
    with npzkit.NpzWriter(path, "a") as writer:
        writer["y"] = np.ones(2)
    assert np.load(path)["y"].tolist() == [1, 1]


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_the_position_of_the_users_file(path, monkeypatch, mode):
    """Maps and flushes leave it where it was, without preadv and pwrite too."""
    for name in ("preadv", "pread", "pwrite"):
        monkeypatch.delattr(os, name, raising=False)
    with path.open("r+b") as file, npzkit.open(file) as npz:
        file.seek(7)
        mapped = npz.memmap("x", mode)
        assert mapped.tolist() == [0, 1, 2, 3, 4]
        if mode == "r+":
            mapped[0] = 5
            mapped.flush()
        assert file.tell() == 7
        del mapped


@pytest.mark.parametrize("mode", ["r", "c"])
def test_maps_of_a_file_that_is_too_large_for_a_map(path, monkeypatch, mode):
    """On a 32-bit system only the array's own pages are mapped."""
    npzkit.save(path, {"x": np.arange(30_000), "y": np.arange(5.0), "z": np.zeros((0, 3))})
    monkeypatch.setattr("npzkit.reading.maps._LARGEST_FILE", 1000)
    with npzkit.open(path) as npz:
        for key in npz:
            mapped = npz.memmap(key, mode)
            assert np.array_equal(mapped, npz[key])
        assert len(npz.memmap("y", mode)._mmap) < 100_000


@pytest.mark.slow
def test_convert_leaves_no_file_beside_the_output(tmp_path):
    """An array that is not written row by row lies in a file that the system removes."""
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    array = np.asfortranarray(np.random.default_rng(0).random((3000, 1000)))
    npzkit.save(tmp_path / "a.npz", {"x": array}, compression="deflated")
    npzkit.convert(tmp_path / "a.npz", tmp_path / "b.safetensors")
    npzkit.convert(tmp_path / "b.safetensors", tmp_path / "c.npz", compression="deflated")
    assert files_in(tmp_path) == ["a.npz", "b.safetensors", "c.npz"]
    with npzkit.open(tmp_path / "c.npz") as npz:
        assert np.array_equal(npz["x"], array)


def test_a_file_that_is_just_being_replaced(path, monkeypatch):
    """It cannot be opened for a moment, and then a writer has it."""
    refused, real = [], os.open

    def late(name, flags, *mode, **options):
        if os.fspath(name) == str(path) and flags & os.O_RDWR and len(refused) < 5:
            refused.append(name)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return real(name, flags, *mode, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", late)
        with npzkit.NpzWriter(path, "a") as writer:
            writer["y"] = np.ones(2)
    assert len(refused) == 5
    assert np.load(path)["y"].tolist() == [1, 1]
