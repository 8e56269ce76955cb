"""Arrays and rows that are added to a sharded archive: `ShardedWriter(folder, mode="a")`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.checkpoint import CheckpointStore
from npzkit.datasets.repacked_shards import repack_shards
from npzkit.datasets.sharding import place_of
from npzkit.errors import (
    ArchiveLockedError,
    ClosedArchiveError,
    IndexFormatError,
    KeyExistsError,
    MemberNotFoundError,
    MissingShardError,
    PickleRefusedError,
    StaleArchiveError,
    UnsafeNameError,
    UnsupportedError,
)
from npzkit.stores.objects import LocalFolder


@pytest.fixture(params=["folder", "store"])
def folder(request, tmp_path):
    """A folder, or a prefix of a store, with a sharded archive."""
    place = tmp_path / "log"
    if request.param == "store":
        pytest.importorskip("fsspec")
        place = f"memory://added/{tmp_path.name}"
    with npzkit.ShardedWriter(place, metadata={"step": 1}) as writer:
        writer.add("log", np.arange(6).reshape(3, 2), attrs={"unit": "m"})
        writer["other"] = np.ones(2)
        writer.commit()
    return place


def append(folder, key, *parts, **options):
    with npzkit.ShardedWriter(folder, mode="a", **options) as writer:
        for part in parts:
            writer.append(key, part)
        writer.commit()


def shards_in(folder):
    return {path.name: path.read_bytes() for path in folder.glob("shard-*.npz")}


@pytest.mark.slow
def test_rows_are_added(folder):
    """By a commit each, or several at once; attributes, metadata and other arrays stay."""
    append(folder, "log", [[6, 7]], [8, 9])
    append(folder, "log", np.arange(10, 14.0).reshape(2, 2), metadata={"more": 2})
    with npzkit.open(folder) as npz:
        assert npz["log"].tolist() == np.arange(14).reshape(7, 2).tolist()
        assert npz["log"].dtype == np.arange(1).dtype
        assert npz.lazy("log")[2:4, 0].tolist() == [4, 6]
        assert npz.info("log").attrs == {"unit": "m"}
        assert (npz.metadata["step"], npz.metadata["more"]) == (1, 2)
        assert list(npz) == ["log", "other"]
        assert npz["other"].tolist() == [1, 1]
    assert npzkit.verify(folder).ok


def test_numbers_of_nested_data_are_replaced_only_if_that_is_said(tmp_path):
    """A number in the metadata, as of a step in shards, is not replaced by an array without a word."""
    with CheckpointStore(tmp_path) as store:
        store.save(1, {"w": np.ones(4), "opt": {"lr": 0.5}}, shard_size=100)
    step = tmp_path / "step_00000001"
    with npzkit.ShardedWriter(step, mode="a") as writer:
        with pytest.raises(KeyExistsError, match="overwrite=True"):
            writer["opt/lr"] = np.array(2.0)
        writer.add("opt/lr", np.array(3.0), overwrite=True)
    assert npzkit.load_tree(step)["opt"] == {"lr": 3}


@pytest.mark.remedy("with attrs=npz.info(key).attrs to keep its attributes.")
def test_attributes_are_kept_if_that_is_said(folder):
    """The error for a key with attributes says that they go, and how they stay."""
    with npzkit.open(folder) as npz, npzkit.ShardedWriter(folder, mode="a") as writer:
        with pytest.raises(KeyExistsError, match="to keep its attributes"):
            writer["log"] = np.zeros(1)
        writer.add("log", np.zeros(1), attrs=npz.info("log").attrs, overwrite=True)
    with npzkit.open(folder) as npz:
        assert npz.info("log").attrs == {"unit": "m"}


def test_arrays_are_added_and_replaced(folder):
    """A key that is there is replaced only if that is said; its only shard goes with it."""
    with npzkit.ShardedWriter(folder, mode="a") as writer:
        writer["new"] = np.zeros(3)
        for add in (writer.add, writer.__setitem__):
            with pytest.raises(KeyExistsError, match="overwrite=True"):
                add("other", np.zeros(1))
        with pytest.raises(KeyExistsError):
            writer.update({"fresh": np.zeros(1), "log": np.zeros(1)})
        writer.add("other", np.full(2, 5), overwrite=True)
        writer.commit()
    with npzkit.open(folder) as npz:
        assert {key: npz[key].tolist() for key in npz} == {
            "log": [[0, 1], [2, 3], [4, 5]], "other": [5, 5], "new": [0, 0, 0]
        }  # fmt: skip
    assert npzkit.verify(folder).ok


def test_only_the_rows_are_written(tmp_path):
    """Older shards stay the same bytes, and each is a file for np.load."""
    folder = tmp_path / "log"
    with npzkit.ShardedWriter(folder) as writer:
        writer["log"] = np.zeros((100_000, 2))
        writer.commit()
    before = shards_in(folder)
    append(folder, "log", np.ones((10, 2)))
    after = shards_in(folder)
    assert after.items() >= before.items()
    (new,) = after.keys() - before.keys()
    assert len(after[new]) < 2000
    with np.load(folder / new) as npz:
        assert [npz[key].tolist() for key in npz] == [[[1, 1]] * 10]


def test_a_reader_keeps_what_it_opened(folder):
    """The old index names shards that stay."""
    with npzkit.open(folder) as npz:
        append(folder, "log", [[6, 7]])
        assert npz.lazy("log").shape == (3, 2)
        assert npz["other"].tolist() == [1, 1]


@pytest.mark.slow
@pytest.mark.remedy("Nothing of yours was added. Open a new writer and write again; several")
def test_two_writers(folder):
    """The second commit fails, and what it wrote is no part of the archive."""
    first, second = (npzkit.ShardedWriter(folder, mode="a") for _ in range(2))
    for writer in (first, second):
        writer.append("log", [[6, 7]])
    first.commit()
    with pytest.raises(StaleArchiveError, match="another writer committed"):
        second.commit()
    append(folder, "log", [[8, 9]])
    with npzkit.open(folder) as npz:
        assert npz["log"][3:].tolist() == [[6, 7], [8, 9]]
    assert npzkit.verify(folder).ok


def test_two_writers_of_a_new_folder(tmp_path):
    """The second commit fails here too, and the first one's archive stays."""
    folder = tmp_path / "new"
    first, second = (npzkit.ShardedWriter(folder, mode="a") for _ in range(2))
    first["a"], second["b"] = np.ones(5), np.ones(5)
    first.commit()
    with pytest.raises(StaleArchiveError, match="another writer committed"):
        second.commit()
    first.commit()
    with npzkit.open(folder) as npz:
        assert list(npz) == ["a"]
    assert npzkit.verify(folder).ok


def test_shards_whose_index_is_lost_stay(folder, monkeypatch):
    """Once a commit would remove them, no writer adds to a new archive there, unless it is told."""
    place = place_of(folder)
    index = place.read("index.npz")
    place.remove("index.npz")
    with npzkit.ShardedWriter(folder, mode="a") as writer:  # as if another one began it, too
        writer["new"] = np.ones(2)
    place.remove("index.npz")
    lost = set(place.listed())
    later = time.time() + 25 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(FileNotFoundError, match=r"no index\.npz.*Restore index\.npz from a copy"):
        npzkit.ShardedWriter(folder, mode="a")
    assert set(place.listed()) == lost
    place.put("index.npz", index, None)
    append(folder, "log", [[6, 7]])
    assert npzkit.open(folder)["log"].shape == (4, 2)
    place.remove("index.npz")
    with npzkit.ShardedWriter(folder, mode="w") as writer:
        writer["new"] = np.ones(2)
    assert list(npzkit.open(folder)) == ["new"]


def test_an_attempt_may_take_days(tmp_path):
    """Its own shards do not keep a writer from going on with it."""
    with npzkit.ShardedWriter(tmp_path, "a", attempt="run") as writer:
        writer["x"] = np.zeros(3)
    os.utime(tmp_path / writer.shards[0], (0, 0))
    npzkit.ShardedWriter(tmp_path, "a", attempt="run").commit()
    assert list(npzkit.open(tmp_path)) == ["x"]


def test_shards_are_repacked_meanwhile(folder):
    """The older shards are gone: the commit is too late, and both archive and rows are there."""
    with npzkit.ShardedWriter(folder, mode="a") as writer:
        writer.append("log", [[6, 7]])
        repack_shards(folder)
        with pytest.raises(StaleArchiveError, match="another writer committed"):
            writer.commit()
    with npzkit.open(folder) as npz:
        assert npz["log"].tolist() == [[0, 1], [2, 3], [4, 5]]
    with npzkit.open(f"{folder}/{writer.shards[0]}") as npz:
        assert npz["log"].tolist() == [[6, 7]]


@pytest.mark.remedy("npz.lazy(key)[a:b] still reads rows in other shards;")
def test_nothing_is_added_while_a_shard_is_gone(folder):
    """It is named, other rows can be read, and a copy of it makes all well."""
    append(folder, "log", [[6, 7]])
    place = place_of(folder)
    gone = npzkit.open(folder).parts("log")[0].shard
    kept = place.read(gone)
    place.remove(gone)
    told = pytest.raises(MissingShardError, match=rf"index\.npz names .*{gone}.* is gone .* a copy")
    with told, npzkit.ShardedWriter(folder, mode="a") as writer:
        writer.append("log", [[8, 9]])
    with npzkit.open(folder) as npz:
        assert npz.lazy("log")[3:].tolist() == [[6, 7]]
        assert npz.parts("log")[1].offset == (3, 0)
    place.put(gone, kept, None)
    append(folder, "log", [[8, 9]])
    assert npzkit.open(folder)["log"][3:].tolist() == [[6, 7], [8, 9]]


def test_what_cannot_be_appended(folder):
    """A key that is not there, rows of another shape; nothing changes without a commit."""
    with npzkit.ShardedWriter(folder, mode="a") as writer:
        with pytest.raises(MemberNotFoundError):
            writer.append("missing", [1])
        for rows in ([1], np.zeros((2, 3)), np.zeros((1, 2, 1))):
            with pytest.raises(ValueError, match="cannot be appended"):
                writer.append("log", rows)
        writer.append("log", np.zeros((0, 2)))
        assert writer.close() == []
    with npzkit.ShardedWriter(folder) as writer, pytest.raises(MemberNotFoundError):
        writer.append("log", [[1, 2]])
    with pytest.raises(ValueError, match="mode must be"):
        npzkit.ShardedWriter(folder, mode="x")
    assert npzkit.open(folder)["log"].shape == (3, 2)


def test_a_new_folder(tmp_path):
    """Mode "a" begins an archive where there is none."""
    with npzkit.ShardedWriter(tmp_path / "new", mode="a") as writer:
        writer["x"] = np.zeros((0, 2), "i2")
        writer.commit()
    append(tmp_path / "new", "x", [[1, 2]])
    append(tmp_path / "new", "x", [[3, 4]])
    with npzkit.open(tmp_path / "new") as npz:
        assert npz["x"].tolist() == [[1, 2], [3, 4]]
        assert npz["x"].dtype == "i2"
    assert npzkit.verify(tmp_path / "new").ok


@pytest.mark.slow
@given(st.data())
def test_any_history(data):
    """Rows, new arrays and replaced ones, in any order, are what a dict of arrays would have."""
    folder, number = f"memory://added/history-{os.urandom(8).hex()}", 0
    expected: dict[str, np.ndarray] = {}
    for _ in range(data.draw(st.integers(1, 4))):
        with npzkit.ShardedWriter(folder, mode="a") as writer:
            fresh = set()
            for _ in range(data.draw(st.integers(0, 3))):
                key, number = data.draw(st.sampled_from("abc")), number + 1
                rows = np.full((data.draw(st.integers(0, 2)), 2), number)
                if key in fresh:
                    continue
                if key in expected and data.draw(st.booleans()):
                    writer.append(key, rows)
                    expected[key] = np.concatenate([expected[key], rows])
                else:
                    writer.add(key, rows, overwrite=True)
                    expected[key] = rows
                fresh.add(key)
            if expected:
                writer.commit()
    if expected:
        with npzkit.open(folder) as npz:
            assert {key: npz[key].tolist() for key in npz} == {
                key: array.tolist() for key, array in expected.items()
            }
        assert npzkit.verify(folder).ok


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_killed_writer_loses_nothing(tmp_path):
    """Killed at any file that it makes or renames, readers see the old or the new."""
    with npzkit.ShardedWriter(tmp_path / "log") as writer:
        writer["log"] = np.zeros(2)
        writer.commit()
    for number in range(100):
        folder = shutil.copytree(tmp_path / "log", tmp_path / f"log{number}")
        child = os.fork()
        if not child:
            calls = iter(range(number, -1, -1))

            def dying(real, calls=calls):
                def call(*args, **kwargs):
                    if not next(calls, 0):
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args, **kwargs)

                return call

            for name in ("open", "rename", "replace", "link", "unlink", "fsync"):
                setattr(os, name, dying(getattr(os, name)))
            append(folder, "log", [1])
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        with npzkit.open(folder) as npz:
            found = npz["log"].tolist()
        assert found == [0, 0] + [1] * (len(found) - 2)
        assert npzkit.verify(folder).ok
        if not status:
            break
    assert status == 0


def test_a_part_of_another_array_is_found(tmp_path):
    """An index that claims rows which a shard does not have is damage."""
    folder = tmp_path / "log"
    with npzkit.ShardedWriter(folder) as writer:
        writer["log"] = np.zeros((3, 2))
        writer.commit()
    append(folder, "log", [[1, 1]])
    (last,) = [name for name in shards_in(folder) if b"npzkit.part" in (folder / name).read_bytes()]
    data = (folder / last).read_bytes().replace(b"[3, 0]", b"[2, 0]")
    (folder / last).write_bytes(data)
    assert not npzkit.verify(folder).ok
    with pytest.raises((IndexFormatError, StaleArchiveError, npzkit.NpzkitError)):
        npzkit.open(folder)["log"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows syncs files by a call of its own")
def test_a_commit_waits_for_what_is_new(tmp_path, monkeypatch):
    """The first append syncs each shard, since nobody may have; later ones only their own."""
    synced = []
    for name in ("fsync", "fdatasync"):
        if (sync := getattr(os, name, None)) is not None:
            monkeypatch.setattr(os, name, lambda fd, sync=sync: (synced.append(os.fstat(fd).st_ino), sync(fd)))  # fmt: skip
    with npzkit.ShardedWriter(tmp_path / "log", shard_size=1) as writer:
        for start in range(5):
            writer.add("log", np.zeros((1, 2)), (start, 0), (5, 2))
        writer.commit()
    first = {path.stat().st_ino for path in (tmp_path / "log").glob("shard-*.npz")}
    assert len(first) == 5
    assert not first & set(synced)
    append(tmp_path / "log", "log", np.ones((1, 2)))
    assert first <= set(synced)
    synced.clear()
    append(tmp_path / "log", "log", np.ones((1, 2)))
    newest = {path.stat().st_ino for path in (tmp_path / "log").glob("shard-*.npz")} - first
    assert not first & set(synced)
    assert len(newest & set(synced)) == 1
    assert npzkit.verify(tmp_path / "log").ok


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_repacked_shards_keep_their_compression(tmp_path, compression):
    """Also of an array that has grown by parts."""
    with npzkit.ShardedWriter(tmp_path, compression=compression) as writer:
        writer["log"] = np.zeros((200, 20))
        writer.commit()
    append(tmp_path, "log", np.ones((200, 20)), compression=compression)
    npzkit.repack(tmp_path)
    assert len(list(tmp_path.glob("shard-*.npz"))) == 1
    with npzkit.open(tmp_path) as npz:
        assert npz.info("log").method == compression
        assert npz["log"].shape == (400, 20)


def test_a_second_commit_of_an_attempt_syncs_what_it_names(tmp_path, monkeypatch):
    """An index that replaces another one waits for the disk, whatever its attempt is called."""
    settled = []
    settle = LocalFolder.settle
    monkeypatch.setattr(LocalFolder, "settle", lambda self, names: settle(self, settled.append([*names]) or settled[-1]))  # fmt: skip
    for key, mode in (("x", "w"), ("y", "a")):
        with npzkit.ShardedWriter(tmp_path, mode=mode, attempt="run1") as writer:
            writer[key] = np.zeros(3)
            writer.commit()
    assert [len(names) for names in settled] == [2]


@pytest.mark.remedy("Give all writers of a run, also the one that commits, the same mode:")
@pytest.mark.parametrize("mode", ["a", "w"])
def test_a_commit_has_the_mode_of_the_writers(folder, mode):
    """A commit in the other mode fails, and the archive stays; one in theirs then works."""
    other = {"a": "w", "w": "a"}[mode]
    with npzkit.ShardedWriter(folder, mode, attempt="run") as writer:
        writer["new"] = np.zeros(3)
    committer = npzkit.ShardedWriter(folder, other, attempt="run")
    for shards in (None, writer.shards, writer.records):
        with pytest.raises(
            IndexFormatError, match=f"another mode .*found '{mode}', expected '{other}'"
        ):
            committer.commit(shards)
    assert list(npzkit.open(folder)) == ["log", "other"]
    npzkit.ShardedWriter(folder, mode, attempt="run").commit()
    assert list(npzkit.open(folder)) == (["log", "other", "new"] if mode == "a" else ["new"])


def test_shards_of_older_versions_name_no_mode(tmp_path):
    """They can be committed in both modes."""
    for mode in "wa":
        with npzkit.ShardedWriter(tmp_path, attempt=mode) as writer:
            writer[mode] = np.zeros(3)
        (name,) = writer.shards
        os.rename(tmp_path / name, tmp_path / name.replace(".w", "."))
        npzkit.ShardedWriter(tmp_path, mode, attempt=mode).commit()
    assert list(npzkit.open(tmp_path)) == ["w", "a"]


def test_rows_that_are_committed_while_shards_are_repacked_stay(tmp_path):
    """The repacking is refused then, and leaves nothing behind."""
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        writer["x"] = np.zeros((1000, 3))
    names = set(os.listdir(tmp_path))

    def append(done, total):
        if npzkit.open(tmp_path).info("x").shape[0] == 1000:
            with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
                writer.append("x", np.ones((10, 3)))
            names.update(writer.shards)

    with pytest.raises(StaleArchiveError, match="Repack it again"):
        npzkit.repack(tmp_path, progress=append)
    assert npzkit.open(tmp_path)["x"].sum() == 30
    assert set(os.listdir(tmp_path)) == names


def test_a_commit_during_another_one(tmp_path):
    """It raises; a new writer works when the other one has ended."""
    folder = tmp_path / "F"
    with npzkit.ShardedWriter(folder, "a") as writer:
        writer["x"] = np.ones((2, 2))
    other = npzkit.NpzWriter(folder / "index.npz", "a")
    writer = npzkit.ShardedWriter(folder, "a")
    writer.append("x", np.ones((1, 2)))
    with pytest.raises(ArchiveLockedError, match="Open a new writer and write again"):
        writer.commit()
    other.abort()
    append(folder, "x", np.ones((1, 2)))
    with npzkit.open(folder) as npz:
        assert npz["x"].shape == (3, 2)


def test_rows_for_an_array_that_is_not_there(tmp_path):
    """The error says how an array begins."""
    missing = pytest.raises(MemberNotFoundError, match=r"Save it first with writer\[key\]")
    with missing, npzkit.ShardedWriter(tmp_path / "F", "a") as writer:
        writer.append("x", np.ones((1, 2)))
    with npzkit.ShardedWriter(tmp_path / "F", "a") as writer:
        writer["x"] = np.ones((1, 2))
    with npzkit.ShardedWriter(tmp_path / "F", "a") as writer:
        writer.append("x", np.ones((1, 2)))
    with npzkit.open(tmp_path / "F") as npz:
        assert npz["x"].shape == (2, 2)


@pytest.mark.remedy("Nothing was changed. Repack it again.")
def test_a_folder_is_repacked_during_a_commit(tmp_path):
    """It raises, leaves the archive as it was, and works when the other one has ended."""
    folder = tmp_path / "F"
    for _ in range(2):
        with npzkit.ShardedWriter(folder, "a") as writer:
            if writer.is_adding:
                writer.append("x", np.ones((1, 2)))
            else:
                writer["x"] = np.ones((2, 2))
    other = npzkit.NpzWriter(folder / "index.npz", "a")
    before = set(os.listdir(folder))
    with pytest.raises(ArchiveLockedError, match="Repack it again"):
        npzkit.repack(folder)
    assert set(os.listdir(folder)) == before
    other.abort()
    npzkit.repack(folder)
    assert npzkit.verify(folder)
    with pytest.raises(ValueError, match="not for sharded archives"):
        npzkit.repack(folder, align=4096)


def test_a_writer_is_asked_for_a_key(tmp_path):
    """An hourly job begins an array once, and appends to it from then on, by the same lines."""
    for hour in range(3):
        with npzkit.ShardedWriter(tmp_path / "F", "a") as writer:
            if "log" in writer:
                writer.append("log", np.full((1, 2), hour))
            else:
                writer["log"] = np.full((1, 2), hour)
            assert "log" in writer
            assert "other" not in writer
            assert 5 not in writer
    with npzkit.open(tmp_path / "F") as npz:
        assert npz["log"][:, 0].tolist() == [0, 1, 2]


def test_arrays_are_removed_and_renamed(folder):
    """Without `attempt`, the end of the block commits it; rows can be appended under the new key."""
    with npzkit.ShardedWriter(folder, mode="a") as writer:
        del writer["other"]
        writer.rename("log", "loss")
        assert ("other" in writer, "log" in writer, "loss.npy" in writer) == (False, False, True)
        writer.append("loss", [[6, 7]])
        writer["log"] = np.zeros(3)
    with npzkit.open(folder) as npz:
        assert npz.files == ["loss", "log"]
        assert npz["loss"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert npz.info("loss").attrs == {"unit": "m"}
        assert npz["log"].tolist() == [0, 0, 0]
        report = npz.verify()
    assert (report.ok, ["repack removes it" in row.what for row in report.rows]) == (True, [True])
    with npzkit.ShardedWriter(folder, mode="a") as writer:
        writer.rename("loss", "loss")
        for key in ("loss", "log"):
            del writer[key]
    with npzkit.open(folder) as npz:
        assert (npz.files, dict(npz.metadata)) == ([], {"step": 1})


def test_a_damaged_array_is_removed(tmp_path):
    """As in a file, the others are sound then, and repack removes its bytes."""
    with npzkit.ShardedWriter(tmp_path) as writer:
        writer["x"], writer["y"] = np.arange(1000, dtype="i8"), np.ones(2)
    (shard,) = tmp_path.glob("shard-*")
    shard.write_bytes(shard.read_bytes().replace(np.arange(7, dtype="i8").tobytes(), bytes(56)))
    assert not npzkit.verify(tmp_path).ok
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        del writer["x"]
        writer.rename("y", "x")
    report = npzkit.verify(tmp_path)
    assert (report.ok, ["repack removes it" in row.what for row in report.rows]) == (True, [True])
    npzkit.repack(tmp_path)
    with npzkit.open(tmp_path) as npz:
        assert npz["x"].tolist() == [1, 1]


def test_a_folder_without_arrays_is_repacked(tmp_path):
    """Its metadata stay, and arrays can be added again."""
    with npzkit.ShardedWriter(tmp_path, metadata={"step": 1}) as writer:
        writer["x"] = np.ones(2)
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        del writer["x"]
    npzkit.repack(tmp_path)
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        writer["y"] = np.ones(3)
    with npzkit.open(tmp_path) as npz:
        assert (npz.files, dict(npz.metadata)) == (["y"], {"step": 1})


@pytest.mark.remedy("Commit this writer first, and go on with another one.")
def test_an_array_is_changed_once_by_each_writer(tmp_path):
    """What a writer replaced is not removed, renamed or grown by it, and nothing old comes back."""
    with npzkit.ShardedWriter(tmp_path) as writer:
        writer["x"], writer["y"], writer["7"] = np.zeros(2), np.zeros(3), np.ones(2)
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        writer.add("x", np.ones(1), overwrite=True)
        for edit in (
            writer.__delitem__,
            lambda key: writer.rename(key, "z"),
            lambda key: writer.append(key, [2.0]),
        ):
            with pytest.raises(UnsupportedError, match=r"replaces the array.*Commit this writer"):
                edit("x.npy")
        writer.append("y", [2.0])
        with pytest.raises(UnsupportedError, match=r"rows were appended.*Commit this writer"):
            writer.add("y", np.ones(1), overwrite=True)
        with pytest.raises(MemberNotFoundError):
            del writer[7]
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        with pytest.raises(PickleRefusedError):
            writer.add("x", np.array([{}]), overwrite=True)
        writer.rename("x", "z")
        del writer["y"]
    with npzkit.open(tmp_path) as npz:
        assert {key: npz[key].tolist() for key in npz} == {"z": [1.0], "7": [1.0, 1.0]}


@pytest.mark.remedy("Rename to another key, by another writer of the attempt, and commit that one.")
def test_no_other_writer_replaces_a_renamed_array(tmp_path):
    """If another one wrote its new key, the commit is an error, and both can be kept."""
    with npzkit.ShardedWriter(tmp_path) as writer:
        writer["x"] = np.zeros(2)
    one, two = (npzkit.ShardedWriter(tmp_path, mode="a", attempt="t") for _ in range(2))
    one["z"] = np.ones(1)
    one.close()
    two.rename("x", "z")
    with pytest.raises(KeyExistsError, match="Another writer of the attempt"):
        two.commit()
    three = npzkit.ShardedWriter(tmp_path, mode="a", attempt="t")
    three.rename("x", "y")
    three.commit()
    with npzkit.open(tmp_path) as npz:
        assert {key: npz[key].tolist() for key in npz} == {"y": [0, 0], "z": [1]}


def test_what_an_attempt_committed_stays_removed(tmp_path):
    """A later writer under the same name of the attempt does not bring its arrays back."""
    with npzkit.ShardedWriter(tmp_path) as writer:
        writer["x"] = np.zeros(2)
    with npzkit.ShardedWriter(tmp_path, mode="a", attempt="t") as writer:
        writer.update({"y": np.ones(1), "z": np.ones(2), "w": np.ones(3)})
        writer.commit()
    with npzkit.ShardedWriter(tmp_path, mode="a", attempt="t") as writer:
        del writer["y"]
        writer.rename("z", "y")
        writer.commit()
    with npzkit.open(tmp_path) as npz:
        assert {key: npz[key].shape for key in npz} == {"x": (2,), "y": (2,), "w": (3,)}


def test_a_renamed_array_is_replaced_and_repacked(tmp_path):
    """Its new key is that of later edits, also once all arrays have new shards."""
    with npzkit.ShardedWriter(tmp_path) as writer:
        writer["a"], writer["b"] = np.arange(2), np.arange(3)
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        writer.rename("a", "c")
        writer.rename("b", "a")
    npzkit.repack(tmp_path)
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        writer.add("c", np.ones(1), overwrite=True)
    with npzkit.open(tmp_path) as npz:
        assert {key: npz[key].tolist() for key in npz} == {"c": [1.0], "a": [0, 1, 2]}
        assert npz.verify().ok


@pytest.mark.remedy("Use another key.")
def test_what_is_not_removed_or_renamed(tmp_path):
    """Keys that are not committed or taken, and arrays with new rows, are errors; nothing changes."""
    with npzkit.ShardedWriter(tmp_path) as writer:
        writer["x"], writer["old"] = np.ones((2, 2)), np.ones(2)
        with pytest.raises(MemberNotFoundError, match="Mode 'a'"):
            del writer["x"]
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        writer["y"] = np.ones(2)
        with pytest.raises(KeyExistsError, match=r"archive \(.*\)\. Use another key"):
            writer.rename("x", "y")
        with pytest.raises(KeyExistsError, match="Remove it first with del"):
            writer.rename("x", "old")
        del writer["old"]
        with pytest.raises(UnsafeNameError):
            writer.rename("x", "../x")
        with pytest.raises(MemberNotFoundError, match="Did you mean 'x'"):
            writer.rename("x ", "z")
        writer.append("x", np.zeros((1, 2)))
        for edit in (writer.__delitem__, lambda key: writer.rename(key, "z")):
            with pytest.raises(UnsupportedError, match=r"appended to it.*Commit this writer first"):
                edit("x")
    with pytest.raises(ClosedArchiveError):
        del writer["x"]
    with npzkit.ShardedWriter(tmp_path, mode="a") as writer:
        writer.rename("x", "z")
    with npzkit.open(tmp_path) as npz:
        assert {key: npz[key].shape for key in npz} == {"z": (3, 2), "y": (2,)}


@pytest.mark.remedy("npzkit.convert(folder, 'a.npz') makes one file of it.")
def test_arrays_of_nested_data_stay(tmp_path):
    """The note on their structure is not edited in a folder; in one file, it is."""
    folder = tmp_path / "step"
    npzkit.save(tmp_path / "tree.npz", {"model": {"w": np.ones(2)}, "lr": 0.5})
    with npzkit.open(tmp_path / "tree.npz") as npz:
        writer = npzkit.ShardedWriter(folder, metadata=dict(npz.metadata))
        writer.update(npz)
        writer.commit()
    writer = npzkit.ShardedWriter(folder, mode="a")
    with pytest.raises(UnsupportedError, match="nested data") as caught:
        writer.rename("model/w", "w")
    assert "npzkit.convert(folder, 'a.npz')" in caught.value.remedy
    npzkit.convert(folder, tmp_path / "a.npz")
    with npzkit.NpzWriter(tmp_path / "a.npz", mode="a") as writer:
        writer.rename("model/w", "w")
