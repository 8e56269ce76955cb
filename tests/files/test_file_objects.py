"""Paths of FIFOs, sockets, devices and folders: an error at once, and nothing is read."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading

import npzkit
import numpy as np
import pytest
from npzkit.checkpoint import CheckpointStore
from npzkit.errors import DamagedCheckpointError, DamagedCheckpointWarning, FormatError
from npzkit.files import file_objects
from npzkit.format import open_memmap

from tables import each_row

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")

CALLS = {
    "open": npzkit.open,
    "NpzFile": npzkit.NpzFile,
    "load": npzkit.load,
    "load with a map": lambda path: npzkit.load(path, mmap_mode="r"),
    "open_memmap": open_memmap,
    "load_tree": npzkit.load_tree,
    "verify": npzkit.verify,
    "repair": npzkit.repair,
    "repair to another path": lambda path: npzkit.repair(path, f"{path}.repaired"),
    "repack": npzkit.repack,
    "append": lambda path: npzkit.NpzWriter(path, "a"),
    "open_many": lambda path: npzkit.open_many([path]),
    "convert": lambda path: npzkit.convert(path, f"{path}.new.npz"),
    "convert from another format": lambda path: npzkit.convert(f"{path}.h5", f"{path}.new.npz"),
}


def make(kind, path):
    """Make a file of a kind, and return an object that keeps it from blocking its readers."""
    if kind == "FIFO":
        os.mkfifo(path)
        # A call that opens it then fails in another way, instead of waiting for ever.
        return open(os.open(path, os.O_RDWR | os.O_NONBLOCK), "r+b", buffering=0)
    if kind == "socket":
        server = socket.socket(socket.AF_UNIX)
        # The path of a socket is short.
        with contextlib.chdir(os.path.dirname(path)):
            server.bind(os.path.basename(path))
        return server
    if kind == "folder":
        os.mkdir(path)
    else:
        os.symlink("/dev/zero", path)
    return contextlib.nullcontext()


@pytest.mark.remedy(
    "Copy its contents to a file, or read an archive from front to back: "
    'npzkit.iter_arrays(open(path, "rb")).'
)
@pytest.mark.parametrize("is_copied", [True, False])
def test_an_archive_in_a_fifo(here, is_copied):
    """Its contents are copied to a file, or it is read from front to back."""
    os.mkfifo("fifo")
    with pytest.raises(FormatError):
        npzkit.open("fifo")
    thread = threading.Thread(target=npzkit.save, args=("fifo", {"x": np.arange(3)}), daemon=True)
    thread.start()
    if is_copied:
        with open("fifo", "rb") as fifo, open("a.npz", "wb") as copy:
            shutil.copyfileobj(fifo, copy)
        found = npzkit.load_tree("a.npz")
    else:
        with open("fifo", "rb") as fifo:
            found = dict(npzkit.iter_arrays(fifo))
    thread.join(30)
    assert found["x"].tolist() == [0, 1, 2]


@each_row("kind", ["FIFO", "socket", "device"])
@each_row("name", CALLS)
def test_a_path_that_leads_to_no_file(tmp_path, kind, name):
    """It is refused with its name and what it is, whatever is called; a FIFO keeps its bytes."""
    path = tmp_path / "a"
    os.symlink(path, f"{path}.h5")
    with make(kind, path) as end:
        if kind == "FIFO":
            end.write(b"PK")
        with pytest.raises(FormatError, match=f"not a file, but a .*{kind}.*{path}"):
            CALLS[name](path)
        if kind == "FIFO":
            assert end.read(9) == b"PK"


def test_a_fifo_that_takes_the_place_of_a_file(tmp_path, monkeypatch):
    """No call waits, also if the file was replaced after it was looked at."""
    path, errors = tmp_path / "a.npz", []
    npzkit.save(path, {"x": np.arange(3)})
    os.mkfifo(tmp_path / "fifo")
    check = file_objects.check_regular

    def replaced(path, found=None):
        check(path, found)
        if found is None:
            os.replace(tmp_path / "fifo", path)

    def call():
        with pytest.raises(FormatError, match="FIFO") as found:
            npzkit.open(path)
        errors.append(found.value)

    monkeypatch.setattr(file_objects, "check_regular", replaced)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(30)
    assert len(errors) == 1


def test_a_file_with_a_lease_is_waited_for(tmp_path, monkeypatch):
    """A file that cannot be opened without waiting is opened with it."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    opened = []

    class Leased:
        def __getattr__(self, name):
            return getattr(os, name)

        def open(self, path, flags):
            opened.append(path)
            raise BlockingIOError("a lease")

    monkeypatch.setattr(file_objects, "os", Leased())
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["x"].sum() == 3
    assert opened == [str(tmp_path / "a.npz")]


def sharded(folder):
    with npzkit.ShardedWriter(folder) as w:
        w.add("x", np.arange(3))
        w.commit()
    (shard,) = folder.glob("shard-*.npz")
    return shard


@pytest.mark.parametrize("kind", ["FIFO", "socket", "folder"])
@pytest.mark.parametrize("place", ["index", "shard"])
def test_a_sharded_archive(tmp_path, kind, place):
    """In the place of the index or a shard, each kind is an error that names it."""
    shard = sharded(tmp_path / "run")
    path = shard if place == "shard" else tmp_path / "run" / "index.npz"
    path.unlink()
    end = make(kind, path)
    error = IsADirectoryError if kind == "folder" else FormatError
    with end, pytest.raises(error, match=path.name) as found, npzkit.open(tmp_path / "run") as npz:
        npz["x"]
    assert kind == "folder" or kind in str(found.value)


@pytest.mark.slow
@each_row("kind", ["FIFO", "socket", "folder"])
@each_row("place", ["file", "index", "shard"])
def test_a_checkpoint(tmp_path, kind, place):
    """A step with one of them in the place of a file is damaged: the older step is loaded."""
    with CheckpointStore(tmp_path, durable=False) as store:
        for count in (1, 2):
            size = None if place == "file" else "1MB"
            store.save(count, {"x": np.arange(count)}, shard_size=size)
        step = tmp_path / os.path.basename(store.path(2))
        path = {"file": step, "index": step / "index.npz"}.get(place) or next(
            step.glob("shard-*.npz")
        )
        path.unlink()
        end = make(kind, path)
        with end:
            with pytest.warns(DamagedCheckpointWarning, match="step 2"):
                assert store.load().step == 1
            with pytest.raises(DamagedCheckpointError):
                store.load(2)
            assert store.verify().damaged == (2,)


def test_a_folder_without_an_index(tmp_path):
    """The error says what is missing, and how a folder of checkpoints is opened."""
    with CheckpointStore(tmp_path / "run", durable=False) as store:
        store.save(1, {"x": np.arange(3)})
    text = r"no index\.npz .* never committed.*CheckpointStore\(path\).*run"
    for call in (npzkit.open, npzkit.verify, npzkit.load_tree):
        with pytest.raises(IsADirectoryError, match=text):
            call(tmp_path / "run")
    for folder in (tmp_path / "run", tmp_path / "run" / "index.npz"):
        with pytest.raises(FileNotFoundError, match=text):
            npzkit.ShardedFile(folder)
    shutil.rmtree(tmp_path / "run")
    for call in (npzkit.open, npzkit.ShardedFile):
        with pytest.raises(FileNotFoundError, match="No such file"):
            call(tmp_path / "run")
