"""When a commit writes, and when closing an archive repacks it."""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile

import npzkit
import npzkit.maintenance.repack
import numpy as np
import pytest
from archives import MAKERS, NOISE, by_save, check_accepted, made_by, untouched
from npzkit.errors import ArchiveLockedError, UnsupportedError, ZipFormatError

from tables import each_row


@pytest.fixture(params=sorted(MAKERS))
def made(request, tmp_path):
    """An archive by another program, or by npzkit."""
    return made_by(request.param, tmp_path / "a.npz")


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


@pytest.mark.slow
def test_nothing_changed_leaves_the_file_alone(made):
    """Looking at an archive in mode "a", or writing what is there, changes no byte and no time."""
    path, _ = made
    with untouched(path):
        with npzkit.NpzWriter(path, "a") as w:
            w.commit()
            for key in w.files:
                assert w.attrs(key) is w.attrs(key)
        with npzkit.open(path) as npz:
            metadata = dict(npz.metadata)
        with npzkit.NpzWriter(path, "a", metadata=metadata, durable=True) as w:
            w.metadata["passing"] = 1
            del w.metadata["passing"]
        with pytest.raises(KeyboardInterrupt), npzkit.NpzWriter(path, "a") as w:
            del w[w.files[0]]
            raise KeyboardInterrupt
    npzkit.NpzWriter(path, "a").close()


@pytest.mark.parametrize("edit", ["add", "remove", "rename", "attributes", "metadata", "create"])
def test_a_commit_is_written_once(path, edit):
    """Whatever was committed, a commit or close behind it with nothing new writes nothing."""
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        if edit == "add":
            w["new"] = np.arange(3)
        elif edit == "remove":
            del w["y"]
        elif edit == "rename":
            w.rename("y", "other")
        elif edit == "attributes":
            w.attrs("y")["unit"] = "m"
        elif edit == "metadata":
            w.metadata["more"] = 1
        else:
            w.create("made", 3, "f8").close()
        w.commit()
        before = path.read_bytes()
        w.commit()
        assert path.read_bytes() == before
    assert path.read_bytes() == before


def test_metadata_stays_with_the_next_commit(path):
    """What was said of an archive in one commit is there after those that say nothing."""
    for mode in ("a", "w"):
        with npzkit.NpzWriter(path, mode) as w:
            w.metadata["said"] = mode
            w["first"] = np.arange(3)
            w.commit()
            w["second"] = np.arange(3)
            w.commit()
            with npzkit.open(path) as npz:
                assert npz.metadata["said"] == mode
            del w["second"]
        with npzkit.open(path) as npz:
            assert npz.metadata["said"] == mode


def test_more_dead_than_alive_is_repacked(tmp_path):
    """Once more than half of a file is dead, close gives it back; before, it does not."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(3), "b": NOISE, "c": NOISE, "d": NOISE, "e": NOISE})
    full = path.stat().st_size
    for key in "bc":
        with npzkit.NpzWriter(path, "a") as w:
            del w[key]
        assert (path.stat().st_size > full) == (key == "b")
    assert path.stat().st_size < 0.6 * full
    check_accepted(path, a=np.arange(3), d=NOISE, e=NOISE)
    assert os.listdir(tmp_path) == ["a.npz"]


def test_half_dead_is_not_repacked(tmp_path):
    """At exactly half nothing is written anew; with one byte more it is."""
    path = tmp_path / "a.npz"

    def sizes(count):
        """Return the file's size without and with the repack that close may do."""
        found = []
        for auto_repack in (False, True):
            npzkit.save(path, {"a": np.zeros(1000, "u1"), "b": np.zeros(count, "u1")})
            with npzkit.NpzWriter(path, "a", auto_repack=auto_repack) as w:
                del w["b"]
            found.append(path.stat().st_size)
        return found

    # What is alive does not depend on how much was dead.
    alive = sizes(100_000)[1]
    count = 500
    count += 2 * alive - sizes(count)[0]
    assert sizes(count) == [2 * alive, 2 * alive]
    assert sizes(count + 1) == [2 * alive + 1, alive]
    check_accepted(path, a=np.zeros(1000, "u1"))


@pytest.mark.parametrize("edit", ["remove", "replace", "rename"])
def test_a_first_member_that_goes_is_repacked(path, edit):
    """The member at the file's start is one that is listed, whatever became of the first."""
    with npzkit.NpzWriter(path, "a") as w:
        if edit == "remove":
            del w["x"]
        elif edit == "replace":
            w.add("x", np.arange(3), overwrite=True)
        else:
            w.rename("x", "renamed")
        w.attrs("z")["unit"] = "m"
    with zipfile.ZipFile(path) as archive:
        assert min(info.header_offset for info in archive.infolist()) == 0
    with npzkit.open(path) as npz:
        assert npz.metadata == {"step": 1}
        assert npz.info("z").attrs == {"unit": "m"}
    check_accepted(path, z=NOISE)


def test_an_emptied_archive_is_repacked(tmp_path):
    """Where no array is left, none is shown by any program, however little was dead."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with npzkit.NpzWriter(path, "a", metadata={"long": "x" * 5000}) as w:
        del w["x"]
    assert path.read_bytes().startswith(b"PK\x05\x06")
    with npzkit.open(path) as npz:
        assert npz.files == []
        assert len(npz.metadata["long"]) == 5000


@pytest.mark.parametrize("mode", ["w", "a"])
def test_close_repacks_what_was_committed_before(path, mode):
    """Dead space is given back at close, also where commit came first."""
    with npzkit.NpzWriter(path, mode) as w:
        for _ in range(3):
            w.add("z", NOISE, overwrite=True)
            w.commit()
    assert path.stat().st_size < 1.1 * NOISE.nbytes
    check_accepted(path, z=NOISE)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_nobody_else_writes_while_close_repacks(path, mode, monkeypatch):
    """The lock on the file is held until the one without dead space has taken its place."""
    real, refused = npzkit.maintenance.repack.copy_member, []

    def copy_member(*args, **options):
        with pytest.raises(ArchiveLockedError) as caught:
            npzkit.NpzWriter(path, "a")
        refused.append(caught.value)
        real(*args, **options)

    with npzkit.NpzWriter(path, mode) as w:
        for _ in range(3):
            w.add("z", NOISE, overwrite=True)
            w.commit()
        monkeypatch.setattr(npzkit.maintenance.repack, "copy_member", copy_member)
    assert refused
    check_accepted(path, z=NOISE)


def test_a_new_archive_is_repacked(path):
    """What was removed before the first commit, or written over, is not in the new file."""
    with npzkit.NpzWriter(path) as w:
        w["first"] = np.arange(3)
        w["second"] = np.arange(4)
        w["third"] = NOISE
        del w["first"]
        w.add("third", NOISE + 1, overwrite=True)
    assert b"first" not in path.read_bytes()
    assert path.stat().st_size < 1.1 * NOISE.nbytes
    check_accepted(path, second=np.arange(4), third=NOISE + 1)


@pytest.mark.slow
@each_row("compression", ["stored", "deflated"])
@each_row("edit", ["remove", "replace", "replace by a small one", "rename"])
def test_each_edit_of_a_new_archive_is_repacked(tmp_path, edit, compression):
    """The bytes that any one edit gave up before the only commit are not in the file."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, compression=compression) as w:
        w["first"] = NOISE
        w["second"] = np.arange(4)
        if edit == "remove":
            del w["first"]
        elif edit == "rename":
            w.rename("first", "other")
        else:
            array = NOISE + 1 if edit == "replace" else np.arange(3)
            w.add("first", array, overwrite=True)
    check_accepted(path, second=np.arange(4))
    with npzkit.open(path) as npz:
        assert npz.archive_info().dead_size == 0
    npzkit.repack(path, tmp_path / "b.npz")
    # Members lie there in the order of the directory, and so have other padding.
    assert abs(path.stat().st_size - (tmp_path / "b.npz").stat().st_size) < 2 * 64
    assert npzkit.verify(path).rows == ()


def test_auto_repack_can_be_refused(path):
    """auto_repack=False keeps the dead bytes, and the next writer leaves them unless it writes."""
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        del w["x"], w["z"]
    assert path.read_bytes().startswith(before)
    check_accepted(path, y=np.eye(3))
    with untouched(path):
        npzkit.NpzWriter(path, "a").close()
    with npzkit.NpzWriter(path, "a") as w:
        w.metadata["step"] = 2
    assert path.stat().st_size < 1000
    check_accepted(path, y=np.eye(3))


def test_a_repack_that_fails_only_warns(path, monkeypatch):
    """All is committed where the dead space cannot be given back, and the lock is let go."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    real = npzkit.maintenance.repack.ZipWriter
    monkeypatch.setattr(npzkit.maintenance.repack, "ZipWriter", full)
    before = path.read_bytes()
    w = npzkit.NpzWriter(path, "a")
    del w["x"]
    with pytest.warns(RuntimeWarning, match="No space left"):
        w.close()
    assert path.read_bytes().startswith(before)
    assert os.listdir(path.parent) == ["a.npz"]
    w = npzkit.NpzWriter(path, "a")
    del w["z"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            w.close()
    monkeypatch.setattr(npzkit.maintenance.repack, "ZipWriter", real)
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
    check_accepted(path, y=np.eye(3), new=np.arange(3))
    assert path.stat().st_size < 2000


def test_an_interrupted_repack_keeps_no_lock(path, monkeypatch):
    """SIGINT as close begins to repack leaves what was committed, and the file to the next one."""

    def interrupt(*_):
        raise KeyboardInterrupt

    w = npzkit.NpzWriter(path, "a")
    del w["x"]
    with monkeypatch.context() as patched:
        patched.setattr(npzkit.maintenance.repack, "open_source", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            w.close()
    # While the interrupt is held, and with it the frames that had the lock.
    with npzkit.NpzWriter(path, "a") as w:
        assert w.files == ["y", "z"], caught


def test_a_damaged_member_is_no_reason_not_to_repack(path):
    """Dead space is given back though an array is damaged, which stays as it is."""
    data = bytearray(path.read_bytes())
    data[npzkit.open(bytes(data)).info("y").data_offset] ^= 1
    path.write_bytes(data)
    with npzkit.NpzWriter(path, "a") as w:
        del w["x"], w["z"]
    assert path.stat().st_size < 1000
    with npzkit.open(path) as npz, pytest.raises(npzkit.errors.ChecksumError):
        npz["y"]


def test_a_seek_index_is_not_dead(tmp_path):
    """The index of an array belongs to it: with it more than half of the file is alive."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        w["x"] = np.arange(4)
        w.add("z", np.zeros(500_000), compression="deflated", chunk_size=4096, level=9)
    alive = path.stat().st_size
    index_size = 8 * (500_000 * 8 // 4096)
    with npzkit.NpzWriter(path, "a") as w:
        w["last"] = np.zeros(alive - index_size // 2, "u1")
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a") as w:
        del w["last"]
    assert path.read_bytes().startswith(before)


def test_what_cannot_be_found_in_the_file_is_not_dead(tmp_path):
    """An array whose header is damaged is no dead space: nothing is repacked, or warned of."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(4), "z": NOISE, "last": np.arange(100)})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        data[archive.getinfo("z.npy").header_offset] ^= 1
    path.write_bytes(data)
    with npzkit.NpzWriter(path, "a") as w:
        del w["last"]
    assert path.read_bytes().startswith(data)
    with npzkit.open(path) as npz:
        assert npz.files == ["x", "z"]
        assert npz["x"].tolist() == [0, 1, 2, 3]
        with pytest.raises(ZipFormatError):
            npz["z"]


@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_a_commit_before_the_first_array(tmp_path, kind):
    """Commits of an archive without arrays leave room for those that come, created ones too."""
    file = tmp_path / "a.npz" if kind == "path" else io.BytesIO()
    with npzkit.NpzWriter(file) as w:
        w.commit()
        with w.create("filled", (4,), "i4") as dst:
            w.commit()
            dst[:] = 5
        w.commit()
        with w.create("late", (3,), "i4") as dst:
            w["between"] = np.arange(2)
            w.commit()
            dst[:] = 6
    for read in (npzkit.open, np.load):
        if kind == "bytes":
            file.seek(0)
        with read(file) as npz:
            found = {key: npz[key].tolist() for key in npz}
        assert found == {"filled": [5] * 4, "late": [6] * 3, "between": [0, 1]}


def test_a_commit_without_arrays_keeps_the_old_file(tmp_path):
    """A new archive takes the old one's place with its first array, or empty when it is closed."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    with npzkit.NpzWriter(path) as w:
        w.commit()
        with npzkit.open(path) as npz:
            assert npz.files == ["old"]
    with npzkit.open(path) as npz:
        assert npz.files == []
    npzkit.save(path, {"old": np.arange(3)})
    with npzkit.NpzWriter(path) as w, w.create("new", (3,), "i4") as dst:
        w.commit()
        with npzkit.open(path) as npz:
            assert npz.files == ["old"]
        dst[:] = 1
    with npzkit.open(path) as npz:
        assert npz.files == ["new"]


@pytest.mark.parametrize("mode", ["a", "x"])
def test_two_writers_of_a_new_file(tmp_path, mode):
    """The later one keeps the file of the other, and says what to do, also once it is pickled."""
    path = tmp_path / "new.npz"
    first, late = npzkit.NpzWriter(path), npzkit.NpzWriter(path, mode)
    first["x"] = late["y"] = np.arange(3)
    first.close()
    with pytest.raises(FileExistsError, match="open it in mode 'a' to add to it") as caught:
        late.close()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert caught.value.filename == str(path)
    assert "in mode 'a'" in repr(caught.value)
    with npzkit.NpzWriter(path, "a") as writer:
        writer["y"] = np.arange(3)
        assert writer.files == ["x", "y"]


@pytest.mark.remedy("Leave out commit(), or write to a path.")
def test_what_cannot_be_changed_later_is_committed_once(tmp_path):
    """A stream is complete when its writer is closed; in a file, each commit is."""
    stream, path = io.BytesIO(), tmp_path / "a.npz"

    class Stream:
        write = stream.write

    with npzkit.NpzWriter(Stream()) as writer:
        writer["x"] = np.arange(3)
        with pytest.raises(UnsupportedError, match="committed once"):
            writer.commit()
    assert npzkit.open(stream)["x"].tolist() == [0, 1, 2]
    with npzkit.NpzWriter(path) as writer:
        writer["x"] = np.arange(3)
        writer.commit()
        check_accepted(path, x=np.arange(3))
