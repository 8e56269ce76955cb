"""Small archives that are written to their path in one go."""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from types import SimpleNamespace

import npzkit
import numpy as np
import pytest
from npzkit.errors import ArchiveLockedError
from npzkit.files import disk, new_file_at_once
from npzkit.files.locking import lock_path
from systems import needs_symlinks

from tables import each_row

ARRAYS = {
    "80 bytes": {"a": np.arange(10.0)},
    "many": {f"a{i}": np.arange(i) for i in range(40)},
    "copied and not": {"a": np.arange(3), "b": np.arange(9_000.0), "c": np.arange(4.0)},
    "64 KB": {f"a{i}": np.arange(8_000.0) + i for i in range(10)},
    "1 MiB": {"a": np.arange(1 << 17, dtype="f8")},
    "orders": {"f": np.asfortranarray(np.ones((300, 50))), "s": np.ones((400, 90))[::2, ::3]},
    "no items": {"a": np.zeros((0, 3)), "b": np.array(5), "c": np.array(["x", "yz"])},
    "none": {},
}


@pytest.mark.slow
@each_row("compression", ["stored", "deflated"])
@each_row("arrays", ARRAYS.values())
def test_the_bytes_are_those_of_any_other_file(tmp_path, monkeypatch, arrays, compression):
    """An archive that is written in one go has the bytes that a file object gets, and a writer."""
    written = []
    commit = new_file_at_once.NewFileAtOnce.commit
    monkeypatch.setattr(
        new_file_at_once.NewFileAtOnce, "commit", lambda *a: (written.append(1), commit(*a))[1]
    )
    stream, path = io.BytesIO(), tmp_path / "a.npz"
    options = {"compression": compression, "metadata": {"step": 1}}
    npzkit.save(stream, arrays, **options)
    npzkit.save(path, arrays, **options)
    if max((array.nbytes for array in arrays.values()), default=0) < 1 << 16:
        assert written
    assert path.read_bytes() == stream.getvalue()
    with npzkit.NpzWriter(tmp_path / "b.npz", **options) as w:
        for key, array in arrays.items():
            w.add(key, array)
    assert path.read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.fixture
def before_the_rename(monkeypatch):
    """Call a function with the new file's temporary name, right before it takes its place."""
    found = []
    real = disk.replace

    def use(function):
        def replace(source, target, **options):
            found.append(function(source))
            real(source, target, **options)

        monkeypatch.setattr(disk, "replace", replace)
        return found

    return use


@pytest.mark.skipif(os.name == "nt", reason="Windows does not rename open files")
def test_nobody_takes_the_new_file_for_a_leftover(tmp_path, before_the_rename):
    """The new file is locked until it is in its place, and then no more."""

    def is_locked(temporary):
        with pytest.raises(ArchiveLockedError):
            lock_path(temporary, 0.0)
        return True

    locked = before_the_rename(is_locked)
    npzkit.save(tmp_path / "a.npz", ARRAYS["80 bytes"])
    npzkit.save(tmp_path / "a.npz", ARRAYS["80 bytes"])
    assert locked == [True, True]
    lock_path(str(tmp_path / "a.npz"), 0.0).close()


@pytest.mark.parametrize("mode", ["save", "w", "x"])
def test_an_interrupt_after_the_rename_discards_nothing(tmp_path, monkeypatch, mode):
    """A signal that comes during the rename is heard after it; the note says what is there."""

    def interrupted(source, target, call):
        call(source, target)
        raise KeyboardInterrupt

    for name in ("link", "replace"):
        call = partial(interrupted, call=getattr(os, name))
        monkeypatch.setattr(disk, "os", SimpleNamespace(**vars(disk.os) | {name: call}))
    path = tmp_path / "a.npz"
    with pytest.raises(KeyboardInterrupt) as caught:
        if mode == "save":
            npzkit.save(path, {"a": np.arange(3)})
        else:
            with npzkit.NpzWriter(path, mode) as writer:
                writer["a"] = np.arange(3)
    assert "what was written is in its place" in caught.value.__notes__[0]
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["a.npz"]
    with npzkit.open(path) as npz:
        assert npz["a"].tolist() == [0, 1, 2]
    npzkit.save(path, {})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_lock_is_not_inherited(tmp_path, before_the_rename):
    """A process that another thread forks meanwhile does not keep the file locked."""
    ends = os.pipe()

    def fork(_):
        child = os.fork()
        if child == 0:
            os.close(ends[1])
            os.read(ends[0], 1)
            os._exit(0)
        return child

    children = before_the_rename(fork)
    npzkit.save(tmp_path / "a.npz", ARRAYS["80 bytes"])
    try:
        lock_path(str(tmp_path / "a.npz"), 0.0).close()
    finally:
        os.close(ends[1])
        os.close(ends[0])
        os.waitpid(children[0], 0)


def test_a_relative_path_stays_in_its_folder(tmp_path, monkeypatch, before_the_rename):
    """A thread that goes to another folder meanwhile does not take the file along."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    before_the_rename(lambda _: os.chdir("other"))
    npzkit.save("a.npz", ARRAYS["80 bytes"])
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "other"]
    assert os.listdir(tmp_path / "other") == []


@needs_symlinks
def test_links_and_other_files_are_written_in_the_other_way(tmp_path, monkeypatch):
    """What a link leads to is replaced, and the link stays; a slash at the end names no file."""
    monkeypatch.setattr(new_file_at_once.NewFileAtOnce, "commit", lambda *_: 1 / 0)
    target, link = tmp_path / "target.npz", tmp_path / "link.npz"
    target.write_bytes(b"old")
    link.symlink_to(target)
    npzkit.save(link, ARRAYS["80 bytes"])
    assert link.is_symlink() and np.array_equal(np.load(target)["a"], ARRAYS["80 bytes"]["a"])
    for path in ("", f"{tmp_path}/new/"):
        with pytest.raises(OSError):
            npzkit.save(path, ARRAYS["80 bytes"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_open_where_open_files_cannot_be_renamed(
    tmp_path, monkeypatch, before_the_rename
):
    """Where the system renames no open file, both files are closed before the rename."""
    monkeypatch.setattr(disk, "RENAMES_OPEN_FILES", False)

    def opened(_):
        names = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        return [os.readlink(name) for name in names if os.path.lexists(name)]

    found = before_the_rename(opened)
    for _ in range(2):
        npzkit.save(tmp_path / "a.npz", ARRAYS["80 bytes"])
    assert len(found) == 2
    assert not [name for names in found for name in names if name.startswith(str(tmp_path))]
    lock_path(str(tmp_path / "a.npz"), 0.0).close()


def test_where_the_system_has_fewer_calls(tmp_path, monkeypatch):
    """Without pwrite, chown and locks, the same bytes are written."""
    stream = io.BytesIO()
    npzkit.save(stream, ARRAYS["64 KB"])
    for name in ("pwrite", "chown", "fdatasync"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr("npzkit.files.system_locks.lock", lambda _: True)
    for _ in range(2):
        npzkit.save(tmp_path / "a.npz", ARRAYS["64 KB"])
        assert (tmp_path / "a.npz").read_bytes() == stream.getvalue()
