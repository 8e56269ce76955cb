"""How a new file replaces the old one, and what stays of the old one."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import stat
import subprocess
import sys
from unittest.mock import Mock

import npzkit
import numpy as np
import pytest
from archives import files_in
from crash import recorded
from deep import extent
from systems import WRITE, replaces_open_files

from tables import each_row

KILL = 9
"""The number of SIGKILL, which `os.kill` ends a process by on Windows too."""


def test_mode_x(tmp_path):
    """Mode x never replaces, not even what appears while it writes."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, "x") as w:
        w["a"] = np.zeros(3)
    with pytest.raises(FileExistsError):
        npzkit.NpzWriter(path, "x")
    other = tmp_path / "b.npz"
    w = npzkit.NpzWriter(other, "x")
    w["a"] = np.zeros(3)
    other.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        w.close()
    assert other.read_bytes() == b"mine"
    assert files_in(tmp_path) == ["a.npz", "b.npz"]


def test_mode_x_without_hard_links(tmp_path, monkeypatch):
    """Where the file system has no hard links, mode x still never replaces."""

    def refuse(*args):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    with npzkit.NpzWriter(tmp_path / "a.npz", "x") as w:
        w["a"] = np.arange(3)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert np.array_equal(npz["a"], np.arange(3))
    w = npzkit.NpzWriter(tmp_path / "b.npz", "x")
    (tmp_path / "b.npz").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        w.close()
    assert files_in(tmp_path) == ["a.npz", "b.npz"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_links_and_permissions_are_kept(tmp_path):
    """A symbolic link stays one, and a replaced file keeps its permissions."""
    real = tmp_path / "real.npz"
    npzkit.save(real, {"a": np.zeros(3)})
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~umask
    real.chmod(0o640)
    link = tmp_path / "link.npz"
    link.symlink_to(real)
    npzkit.save(link, {"a": np.ones(3)})
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    with npzkit.open(real) as npz:
        assert npz["a"][0] == 1


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="the system has no such attributes")
@pytest.mark.parametrize("way", ["save", "w", "repack", "convert"])
def test_extended_attributes_are_kept(tmp_path, way):
    """A replaced file keeps those that users set."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.zeros(3)})
    try:
        os.setxattr(path, "user.source", b"detector")
    except OSError:
        pytest.skip("the file system has no such attributes")
    if way == "save":
        npzkit.save(path, {"y": np.ones(3)})
    elif way == "repack":
        npzkit.repack(path)
    elif way == "convert":
        np.save(tmp_path / "b.npy", np.ones(3))
        npzkit.convert(tmp_path / "b.npy", path, overwrite=True)
    else:
        with npzkit.NpzWriter(path, "w") as w:
            w["y"] = np.ones(3)
    assert os.getxattr(path, "user.source") == b"detector"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_what_is_private_is_so_from_the_start(tmp_path, monkeypatch):
    """The file that takes a private one's place can be opened by nobody else at any time."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.zeros(3)})
    path.chmod(0o600)
    modes = []
    real = os.open

    def opened(name, flags, **options):
        descriptor = real(name, flags, **options)
        if str(name).endswith(".tmp"):
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    umask = os.umask(0)
    try:
        monkeypatch.setattr(os, "open", opened)
        npzkit.save(path, {"a": np.ones(3)})
    finally:
        os.umask(umask)
    assert modes
    assert set(modes) == {0o600}


@each_row("mode", [0o444, 0o000])
@each_row("way", ["save", "w", "a", "repack"])
def test_a_file_that_may_not_be_written_to_stays(tmp_path, way, mode, monkeypatch):
    """What is protected against writing is not replaced either, as by NumPy."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    before = path.read_bytes()
    path.chmod(mode)
    with contextlib.suppress(PermissionError), path.open("r+b"):
        # Root may write to any file.

        def refuse(name, flags, *rights, real=os.open):
            if os.fspath(name) == str(path) and (flags & os.O_RDWR or not mode):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            return real(name, flags, *rights)

        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError) as caught:
        if way == "save":
            npzkit.save(path, {"y": np.arange(3)})
        elif way == "repack":
            npzkit.repack(path)
        else:
            npzkit.NpzWriter(path, mode=way)
    assert os.fspath(caught.value.filename) == str(path)
    monkeypatch.undo()
    path.chmod(0o600)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)(), reason="only root gives files away")
@pytest.mark.parametrize("way", ["save", "repack", "a"])
def test_owner_and_group_are_kept(tmp_path, way, monkeypatch):
    """What is replaced stays its owner's and its group's; where it cannot, others get no more."""
    path = tmp_path / "a.npz"

    def replace():
        npzkit.save(path, {"a": np.zeros(3), "b": np.ones(3)})
        os.chown(path, 1234, 2345)
        path.chmod(0o664)
        before = path.stat().st_ino
        if way == "save":
            npzkit.save(path, {"b": np.ones(3)})
        elif way == "repack":
            npzkit.repack(path)
        else:
            with npzkit.NpzWriter(path, "a") as w:
                del w["a"]
        after = path.stat()
        assert after.st_ino != before
        with npzkit.open(path) as npz:
            assert npz["b"][0] == 1
        return after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)

    chown = os.chown

    def refuse(place, *args):
        if isinstance(place, int):
            raise PermissionError(errno.EPERM, "not yours")
        chown(place, *args)

    assert replace() == (1234, 2345, 0o664)
    monkeypatch.setattr(os, "chown", refuse)
    # Whose group it is now must not write it, as nobody else may.
    path.unlink()
    (tmp_path / "new").touch()
    new = (tmp_path / "new").stat()
    assert replace() == (new.st_uid, new.st_gid, 0o644)


@replaces_open_files
def test_saving_over_what_is_mapped(tmp_path):
    """An archive may be rewritten from maps onto itself."""
    path = tmp_path / "a.npz"
    array = np.random.default_rng(0).random(100_000)
    npzkit.save(path, {"a": array})
    with npzkit.open(path) as npz:
        npzkit.save(path, {"a": npz.memmap("a"), "b": npz.memmap("a")[::2]})
    with npzkit.open(path) as npz:
        assert np.array_equal(npz["a"], array)
        assert np.array_equal(npz["b"], array[::2])


FAILING_CALLS = ["pwrite", "fdatasync", "close", "replace"]


@pytest.mark.parametrize("call", [name for name in FAILING_CALLS if hasattr(os, name)])
def test_a_failing_system_leaves_the_old_file(call, tmp_path, monkeypatch):
    """A full disk or an I/O error, in any call, leaves the old file and nothing else."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    before = path.read_bytes()
    real = getattr(os, call)

    def fail(*args, **kwargs):
        if call == "close":
            real(*args)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            npzkit.save(path, {"new": np.zeros(1_000_000)}, durable=True)
    assert path.read_bytes() == before
    assert files_in(tmp_path) == ["a.npz"]


def test_space_that_cannot_be_reserved(tmp_path, monkeypatch):
    """A disk without room for a new file says so, and has no file."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=full), raising=False)
    with pytest.raises(OSError, match="No space left"):
        npzkit.save(tmp_path / "a.npz", {"new": np.zeros(1_000_000)})
    assert files_in(tmp_path) == []


def test_a_file_system_without_reservations(tmp_path, monkeypatch):
    """Where room cannot be reserved, the file is written without."""

    def refuse(*args):
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    npzkit.save(tmp_path / "a.npz", {"a": np.zeros(1_000_000)})
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["a"].shape == (1_000_000,)


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate", "chown", "link"])
def test_a_missing_call_has_a_fallback(call, tmp_path, arrays, monkeypatch):
    """Without one of the calls that some systems lack, the same bytes are written."""
    arrays = {key.replace("/", "."): array for key, array in arrays.items()}
    expected = io.BytesIO()
    npzkit.save(expected, arrays, compression="deflated")
    monkeypatch.delattr(os, call, raising=False)
    with npzkit.NpzWriter(tmp_path / "a.npz", "x", compression="deflated") as w:
        for key, array in arrays.items():
            w[key] = array
    assert (tmp_path / "a.npz").read_bytes() == expected.getvalue()


def test_short_writes_are_repeated(tmp_path, arrays, monkeypatch):
    """A system that writes fewer bytes than given is given the rest."""
    real = getattr(os, WRITE)
    monkeypatch.setattr(os, WRITE, lambda fd, data, *offset: real(fd, data[:1000], *offset))
    npzkit.save(tmp_path / "a.npz", arrays)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert np.array_equal(npz["weights"], arrays["weights"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("number", [signal.SIGINT, KILL])
def test_a_killed_process_leaves_the_old_file(number, tmp_path):
    """A process stopped while it writes leaves the old file; SIGINT leaves nothing else."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    before = path.read_bytes()
    code = (
        "import signal, sys, time, npzkit, numpy as np\n"
        # A shell starts what runs in the background with SIGINT ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with npzkit.NpzWriter(sys.argv[1]) as w:\n"
        "    w['a'] = np.zeros(1_000_000)\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(number)
    child.wait(timeout=60)
    child.stdout.close()
    assert path.read_bytes() == before
    left = [name for name in files_in(tmp_path) if name != "a.npz"]
    assert len(left) == (number == KILL)
    assert all(name.startswith(".npzkit-") for name in left)


def test_durable_waits_for_file_and_folder(tmp_path, monkeypatch):
    """durable=True has the file on disk before it takes its place, and the folder after.

    Without it only what takes another file's place is on disk first.
    """
    events = []
    real_sync, real_replace = os.fsync, os.replace
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda fd: (events.append("sync"), real_sync(fd))[1], False)
    monkeypatch.setattr(os, "replace", lambda *a: (events.append("replace"), real_replace(*a))[1])
    npzkit.save(tmp_path / "a.npz", {"a": np.arange(3)}, durable=True)
    assert (
        events == ["sync", "replace", "sync"] if os.name != "nt" else events == ["sync", "replace"]
    )
    events.clear()
    npzkit.save(tmp_path / "a.npz", {"a": np.arange(3)})
    assert events == ["sync", "replace"]
    events.clear()
    npzkit.save(tmp_path / "b.npz", {"a": np.arange(3)})
    assert events == ["replace"]


def test_what_is_synced_is_begun_early(tmp_path, monkeypatch):
    """Pieces of a large file are given to the disk as they are written, if a sync follows."""
    begun = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *range: begun.append(range), raising=False)
    monkeypatch.setattr(os, "POSIX_FADV_DONTNEED", 4, raising=False)
    arrays = {"a": np.zeros(300_000)}
    npzkit.save(tmp_path / "a.npz", arrays)
    assert not begun
    npzkit.save(tmp_path / "a.npz", arrays)
    assert sum(size for _, size, _ in begun) >= 2_400_000
    begun.clear()
    with npzkit.NpzWriter(tmp_path / "a.npz") as writer:
        writer.add("b", np.arange(3))
        writer.commit()
        # Appended to the file that has replaced the other one: nothing is synced.
        writer.add("a", arrays["a"])
    assert not begun
    monkeypatch.delattr(os, "posix_fadvise")
    npzkit.save(tmp_path / "a.npz", arrays)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.verify().ok


def test_permissions_that_cannot_be_set(tmp_path, monkeypatch):
    """A file system without permissions is written to all the same."""

    def refuse(*args):
        raise PermissionError(errno.EPERM, "not here")

    npzkit.save(tmp_path / "a.npz", {"a": np.zeros(3)})
    monkeypatch.setattr(os, "chmod", refuse)
    npzkit.save(tmp_path / "a.npz", {"a": np.ones(3)})
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz["a"][0] == 1


def test_mode_x_gives_its_claim_back(tmp_path, monkeypatch):
    """Without hard links, a name that was claimed and not filled is free again."""

    def refuse(*args):
        raise PermissionError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "replace", refuse)
    w = npzkit.NpzWriter(tmp_path / "a.npz", "x")
    with pytest.raises(PermissionError):
        w.close()
    assert files_in(tmp_path) == []


def test_a_large_file_is_lengthened_before_it_is_written(tmp_path, monkeypatch):
    """Without posix_fallocate, no small write comes first: ext4 with inline_data loses bytes then."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with recorded(tmp_path) as recorder:
        npzkit.save(tmp_path / "a.npz", {"a": np.ones(3_000_000, "u1")})
    kinds = [call.kind for call in recorder.calls]
    assert kinds.index("truncate") < kinds.index("write")


# -- what killed writers leave ---------------------------------------------------------

KILLED = """
import os, sys
import npzkit, numpy as np
w = npzkit.NpzWriter(sys.argv[1])
w["x"] = np.zeros(100_000)
os.kill(os.getpid(), 9)
"""


def killed(path):
    """Let a process begin to write to a path, and be killed."""
    process = subprocess.run([sys.executable, "-c", KILLED, path])
    assert abs(process.returncode) == KILL
    for name in hidden(path.parent):
        # On Windows, a young one may be about to be renamed.
        os.utime(path.with_name(name), (0, 0))


def hidden(folder):
    return [name for name in os.listdir(folder) if name.startswith(".npzkit-")]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["save", "writer", "x", "large"])
def test_the_next_save_removes_what_a_killed_one_left(tmp_path, way):
    """However often writers of a path are killed, one file is left, until the next save there."""
    path = tmp_path / "a.npz"
    for _ in range(extent(2, 3)):
        killed(path)
        assert len(hidden(tmp_path)) == 1
    killed(tmp_path / "b.npz")
    left = hidden(tmp_path)
    if way == "save":
        npzkit.save(path, {"x": np.arange(3)})
    elif way == "large":
        npzkit.save(path, {"x": np.zeros(1_000_000)})
    else:
        with npzkit.NpzWriter(path, "x" if way == "x" else "w") as w:
            w["x"] = np.arange(3)
            assert len(hidden(tmp_path)) == 2
    # That of another path stays until a save there.
    assert len(left) == 2
    assert len(hidden(tmp_path)) == 1
    npzkit.save(tmp_path / "b.npz", {})
    assert files_in(tmp_path) == ["a.npz", "b.npz"]


def test_writers_at_work_keep_their_files(tmp_path):
    """A writer of the same path does not take another one's file for a leftover."""
    path = tmp_path / "a.npz"
    writers = [npzkit.NpzWriter(path) for _ in range(3)]
    assert len(set(hidden(tmp_path))) == 3
    for number, w in enumerate(writers):
        w["x"] = np.arange(number)
        w.close()
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [0, 1]
    assert files_in(tmp_path) == ["a.npz"]


@replaces_open_files
def test_a_file_that_is_removed_before_it_is_locked(tmp_path, monkeypatch):
    """A writer whose new file was taken for a leftover, before it had its lock, makes another one."""
    path = tmp_path / "a.npz"
    real = npzkit.files.new_file.NewFile._hold
    removed = []

    def remove_first(sink, temporary):
        if not removed:
            removed.append(temporary)
            os.unlink(temporary)
        return real(sink, temporary)

    monkeypatch.setattr(npzkit.files.new_file.NewFile, "_hold", remove_first)
    with npzkit.NpzWriter(path) as w:
        w["x"] = np.arange(3)
    assert len(removed) == 1
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [0, 1, 2]
    assert files_in(tmp_path) == ["a.npz"]


def test_without_locks_nothing_is_taken_for_a_leftover(tmp_path, monkeypatch):
    """Where the file system has no locks, nobody knows whether a writer is dead: its file stays."""

    def refuse(*args):
        raise OSError(errno.ENOLCK, "no locks here")

    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "a.npz"
    monkeypatch.setattr(fcntl, "flock", refuse)
    w = npzkit.NpzWriter(path)
    w["x"] = np.arange(3)
    npzkit.save(path, {"y": np.arange(4)})
    assert len(hidden(tmp_path)) == 1
    w.close()
    with npzkit.open(path) as npz:
        assert npz.files == ["x"]
    assert files_in(tmp_path) == ["a.npz"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of file sizes")
@pytest.mark.parametrize("way", ["save", "small", "writer", "append"])
def test_an_error_of_the_disk_names_the_file(tmp_path, way):
    """The file that the user knows, not the temporary one."""
    code = f"""if True:
        import resource, signal, npzkit, numpy as np
        npzkit.save("a.npz", {{"x": np.arange(3)}})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        large = np.ones(1_000_000 if "{way}" != "small" else 1000)
        try:
            if "{way}" in ("save", "small"):
                npzkit.save("a.npz", {{"x": large}})
            else:
                with npzkit.NpzWriter("a.npz", "w" if "{way}" == "writer" else "a") as w:
                    w["y"] = large
        except OSError as error:
            print(error.filename)
    """
    found = subprocess.run(
        # Compiled modules would be cut off, and fail whoever imports them next.
        [sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (found.stdout, found.stderr) == ("a.npz\n", "")
