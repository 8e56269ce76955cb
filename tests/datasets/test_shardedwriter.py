"""Writing sharded archives: several writers, attempts, commits and what is left over."""

from __future__ import annotations

import os
import pickle
from unittest.mock import Mock

import npzkit
import numpy as np
import pytest
from children import forked, read_rest
from npzkit.datasets.paths import find_archives
from npzkit.datasets.shard_names import new_writer, shard_name
from npzkit.datasets.sharding import ShardPart, place_of, write_shard
from npzkit.errors import (
    ClosedArchiveError,
    IndexFormatError,
    KeyExistsError,
    MissingShardError,
    NpzkitError,
    StaleArchiveError,
    UnsafeNameError,
)
from npzkit.stores.objects import LocalFolder
from sharded import WHOLE, index_of, write_index, write_run


def names(folder):
    return sorted(os.listdir(folder))


def test_nothing_appears_before_the_commit(tmp_path):
    """Shards alone are no archive."""
    with npzkit.ShardedWriter(tmp_path / "run", attempt="a") as w:
        w["x"] = np.zeros(2)
    with pytest.raises(OSError, match=r"has shards, but no index\.npz"):
        npzkit.open(tmp_path / "run")
    w.commit()
    with npzkit.open(tmp_path / "run") as npz:
        assert list(npz) == ["x"]


def test_a_writer_rolls_over(tmp_path):
    """A shard ends when it has `shard_size` bytes, also as text with a unit."""
    with npzkit.ShardedWriter(tmp_path, shard_size="1kB") as w:
        for at in range(6):
            w[f"a{at}"] = np.zeros(60)
        w.commit()
    assert len(w.shards) == 3
    assert w.shards == [name for name in names(tmp_path) if name.startswith("shard-")]
    with npzkit.open(tmp_path) as npz:
        assert list(npz) == [f"a{at}" for at in range(6)]


def test_a_straggler_of_another_attempt_is_not_a_part(tmp_path):
    """A shard of an attempt that failed does not count, however late it comes."""
    with npzkit.ShardedWriter(tmp_path, attempt="first") as w:
        w.add("x", np.zeros(2), [0], [4])
    write_run(tmp_path, attempt="second")
    with npzkit.open(tmp_path) as npz:
        assert "x" not in npz
    with npzkit.ShardedWriter(tmp_path, attempt="first") as w:
        w.add("x", np.zeros(2), [2], [4])
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)


def test_records_commit_without_listing(tmp_path, monkeypatch):
    """The records that writers return can be pickled, and name the shards that count."""
    records = []
    for half in range(2):
        with npzkit.ShardedWriter(tmp_path, attempt="a") as w:
            w.add("x", np.full(2, half), [2 * half], [4])
        records += pickle.loads(pickle.dumps(w.close()))
    # The same task ran twice.
    with npzkit.ShardedWriter(tmp_path, attempt="a") as twin:
        twin.add("x", np.full(2, 9), [0], [4])
    npzkit.ShardedWriter(tmp_path, attempt="a").commit(records)
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["x"], [0, 0, 1, 1])
    assert not set(twin.shards) & set(names(tmp_path))


def test_names_commit_as_records_do(tmp_path):
    """Names of shards are enough: each shard says what it holds."""
    with npzkit.ShardedWriter(tmp_path, attempt="a") as w:
        w.add("x", np.arange(2), [0], [4])
        w.add("x", np.arange(2), [2], [4])
    npzkit.ShardedWriter(tmp_path, attempt="a").commit(w.shards)
    npzkit.ShardedWriter(tmp_path, attempt="a").commit(w.shards)
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["x"], [0, 1, 0, 1])
    with pytest.raises(UnsafeNameError):
        npzkit.ShardedWriter(tmp_path).commit(["../x.npz"])


@pytest.mark.remedy("A shard is a file in the folder of its index, such as 'part-1.npz'.")
def test_shards_are_committed_by_names_in_the_folder(tmp_path):
    """A path is refused, and the name alone is not."""
    w = npzkit.ShardedWriter(tmp_path)
    w["x"] = np.arange(3)
    w.close()
    (tmp_path / w.shards[0]).rename(tmp_path / "part-1.npz")
    with pytest.raises(UnsafeNameError, match="this name of a shard is not safe"):
        w.commit([str(tmp_path / "part-1.npz")])
    w.commit(["part-1.npz"])
    with npzkit.open(tmp_path) as npz:
        assert npz["x"].tolist() == [0, 1, 2]


def test_a_commit_that_is_repeated_changes_nothing(tmp_path):
    """Committing the same records twice leaves the same index and files."""
    with npzkit.ShardedWriter(tmp_path, attempt="a") as w:
        w["x"] = np.arange(3)
    npzkit.ShardedWriter(tmp_path, attempt="a").commit(w.records)

    def index():
        # Without the time of the last reading, which a commit may change.
        found = (tmp_path / "index.npz").stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    before = index()
    npzkit.ShardedWriter(tmp_path, attempt="a").commit(w.records)
    assert index() == before


@pytest.mark.remedy("Write it again. One commit ends an attempt.")
def test_shards_that_are_gone_are_not_committed(tmp_path):
    """A record whose file does not exist is an error, and the old archive stays."""
    write_run(tmp_path)
    with npzkit.ShardedWriter(tmp_path, attempt="a") as w:
        w["x"] = np.arange(3)
    (tmp_path / w.shards[0]).unlink()
    with pytest.raises(MissingShardError, match=w.shards[0]):
        w.commit()
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)
    with npzkit.ShardedWriter(tmp_path, attempt=w.attempt) as again:
        again["x"] = np.arange(3)
        again.commit()
    with npzkit.open(tmp_path) as npz:
        assert npz["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_the_end_of_a_block_commits(tmp_path, mode):
    """Unless there is an exception, a `close` or an attempt that other writers may share."""
    with npzkit.ShardedWriter(tmp_path, mode) as w:
        w["x"] = np.zeros(2)
    with pytest.raises(ZeroDivisionError), npzkit.ShardedWriter(tmp_path, mode) as w:
        w["y"] = np.ones(2)
        1 / 0
    with npzkit.ShardedWriter(tmp_path, mode) as closed:
        closed["y"] = np.ones(2)
        closed.close()
    with npzkit.ShardedWriter(tmp_path, mode, attempt="a") as w:
        w["y"] = np.ones(2)
    with npzkit.ShardedWriter(tmp_path, mode):
        pass
    with npzkit.open(tmp_path) as npz:
        assert npz.files == ["x"]
    closed.commit()
    with npzkit.open(tmp_path) as npz:
        assert npz.files == (["y"] if mode == "w" else ["x", "y"])


@pytest.mark.remedy(
    "Give all writers the same attempt, and close them before the commit. If an earlier run"
)
def test_writers_without_an_attempt_have_one_part_each(tmp_path):
    """The end of the block says what is missing: with the same attempt, the parts are one array."""
    w = npzkit.ShardedWriter(tmp_path)
    with pytest.raises(IndexFormatError, match="the same attempt"), w:
        w.add("x", np.zeros(2), [0], [4])
    for half in range(2):
        with npzkit.ShardedWriter(tmp_path, attempt="a") as w:
            w.add("x", np.full(2, half), [2 * half], [4])
    npzkit.ShardedWriter(tmp_path, attempt="a").commit()
    with npzkit.open(tmp_path) as npz:
        assert npz["x"].tolist() == [0, 0, 1, 1]


@pytest.mark.remedy("had it too, give each run a new one, or pass the shards that count.")
@pytest.mark.parametrize("way", ["close", "attempt", "shards"])
def test_a_commit_that_finds_too_few_shards_or_too_many(tmp_path, way):
    """All writers are closed first; shards of an earlier run are of another attempt, or not named."""
    writers = [npzkit.ShardedWriter(tmp_path, attempt="a") for _ in range(3)]
    for number, w in enumerate(writers):
        w.add("x", np.full(2, number), [number % 2 * 2], [4])
        if way != "close" and number < 2:
            w.close()
    first, second, third = writers
    if way == "close":
        # The last one is not of this run.
        third.abort()
        with pytest.raises(IndexFormatError, match="leave gaps"):
            first.commit()
        second.close()
        first.commit()
    else:
        # The first one is of an earlier run.
        with pytest.raises(IndexFormatError, match="overlap"):
            third.commit()
        if way == "shards":
            third.commit([*second.shards, *third.shards])
        else:
            second = npzkit.ShardedWriter(tmp_path, attempt="b")
            third = npzkit.ShardedWriter(tmp_path, attempt="b")
            second.add("x", np.full(2, 1), [2], [4])
            third.add("x", np.full(2, 2), 0, 4)
            second.close()
            third.commit()
    with npzkit.open(tmp_path) as npz:
        assert npz["x"].tolist() == ([0, 0, 1, 1] if way == "close" else [2, 2, 1, 1])


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"array": np.zeros(1), "offset": [3]}, "the parts of the array leave gaps"),
        ({"array": np.zeros(3), "offset": [1]}, "the parts of the array overlap"),
        ({"array": np.zeros(2, "f4"), "offset": [2]}, "disagree about its dtype"),
        ({"array": np.zeros(2), "offset": [2], "global_shape": [5]}, "disagree about its shape"),
    ],
)
def test_parts_must_tile_their_array(tmp_path, second, message):
    """Gaps, overlaps and parts that disagree are refused at the commit."""
    write_run(tmp_path)
    with npzkit.ShardedWriter(tmp_path) as w:
        w.add("x", np.zeros(2), [0], [4])
        w.add("x", **{"global_shape": [4], **second})
        with pytest.raises(IndexFormatError, match=message):
            w.commit()
    with npzkit.open(tmp_path) as npz:
        assert "x" not in npz


@pytest.mark.remedy("Write all parts again with the same global_shape, and cast to one dtype: ")
def test_parts_of_several_dtypes_are_cast(tmp_path):
    """Texts of several lengths have dtypes of their own."""
    parts = np.array(["ab"]), np.array(["Hamburg"])
    with npzkit.ShardedWriter(tmp_path) as w:
        for row, part in enumerate(parts):
            w.add("x", part, [row], [2])
        with pytest.raises(
            IndexFormatError, match=r"found .*<U7.*, expected .*<U2.*cast to one dtype"
        ):
            w.commit()
    with npzkit.ShardedWriter(tmp_path) as w:
        for row, part in enumerate(parts):
            w.add("x", part.astype("U7"), [row], [2])
    with npzkit.open(tmp_path) as npz:
        assert npz["x"].tolist() == ["ab", "Hamburg"]


@pytest.mark.parametrize("offset", [0, 2])
def test_one_part_must_be_its_array(tmp_path, offset):
    """A single part that leaves the rest of its array out is refused."""
    with npzkit.ShardedWriter(tmp_path) as w:
        w.add("x", np.zeros(2), [offset], [4])
        with pytest.raises(IndexFormatError, match="leave gaps"):
            w.commit()


def test_a_part_must_be_within_its_array(tmp_path):
    """Parts that reach out, or come with half of what is needed, are refused before they are written."""
    with npzkit.ShardedWriter(tmp_path) as w:
        for offset, shape in (
            ([3], [4]),
            ([-1], [4]),
            ([0, 0], [4]),
            ([0], [4, 4]),
            ([0], [2**63]),
        ):
            with pytest.raises(ValueError):
                w.add("x", np.zeros(2), offset, shape)
        for arguments in (([0], None), (None, [4]), ([0.5], [4])):
            with pytest.raises(TypeError):
                w.add("x", np.zeros(2), *arguments)
        with pytest.raises(ValueError, match="reserved"):
            w.add("x", np.zeros(2), attrs={"npzkit.part": {}})
        with pytest.raises(UnsafeNameError):
            w.add("../x", np.zeros(2))
        w["x"] = np.zeros(2)
        with pytest.raises(KeyExistsError):
            w["x"] = np.zeros(2)


def test_bad_arguments_are_refused(tmp_path):
    """Names of attempts and sizes of shards are checked."""
    for attempt in ("", "a/b", "a.b", "..", "-a", "a" * 65):
        with pytest.raises(ValueError, match="attempt must be"):
            npzkit.ShardedWriter(tmp_path, attempt=attempt)
    for size in (0, -1, "5 apples", "GB", "0"):
        with pytest.raises(ValueError, match="shard_size"):
            npzkit.ShardedWriter(tmp_path, shard_size=size)
    for options in ({"attempt": 7}, {"shard_size": 1.5}, {"metadata": 3}):
        with pytest.raises(TypeError):
            npzkit.ShardedWriter(tmp_path, **options)


def test_attributes_of_all_parts_are_joined(tmp_path):
    """An array has the attributes that any of its parts was added with."""
    with npzkit.ShardedWriter(tmp_path) as w:
        w.add("x", np.zeros(2), [0], [4], attrs={"unit": "m"})
        w.add("x", np.zeros(2), [2], [4], attrs={"scale": 2})
        w.commit()
    with npzkit.open(tmp_path) as npz:
        assert dict(npz.info("x").attrs) == {"unit": "m", "scale": 2}


def test_empty_parts_do_not_matter(tmp_path):
    """Parts without items are left out, and an array without items has no parts."""
    with npzkit.ShardedWriter(tmp_path) as w:
        w.add("x", np.zeros((0, 3)), [0, 0], [2, 3])
        w.add("x", np.ones((2, 3)), [0, 0], [2, 3])
        w.add("e", np.zeros((0, 3)), [0, 0], [0, 6])
        w.add("e", np.zeros((0, 3)), [0, 3], [0, 6])
        w.commit()
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["x"], np.ones((2, 3)))
        assert npz["e"].shape == npz.lazy("e")[:].shape == npz.load_all()["e"].shape == (0, 6)
        assert npz.parts("e") == ()
        assert npz.verify().ok


@pytest.mark.remedy("Make a new one.")
def test_a_failed_writer_leaves_nothing(tmp_path):
    """Leaving the block by an exception removes all shards of the writer; a new one writes."""
    with pytest.raises(ZeroDivisionError), npzkit.ShardedWriter(tmp_path, shard_size=1) as w:
        w["x"] = np.zeros(2)
        w["y"] = np.zeros(2)
        raise ZeroDivisionError
    assert names(tmp_path) == []
    with pytest.raises(ClosedArchiveError):
        w["z"] = np.zeros(2)
    with npzkit.ShardedWriter(tmp_path) as new:
        new["z"] = np.zeros(2)
        new.commit()
    assert npzkit.open(tmp_path).files == ["z"]


@pytest.mark.remedy("Make a writer here, with the same attempt.")
def test_a_child_makes_a_writer_of_its_own(tmp_path, monkeypatch):
    """What a child writes with it is committed by its parent."""
    with npzkit.ShardedWriter(tmp_path) as w:
        w.add("x", np.zeros(2), [0], [4])
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            with pytest.raises(ClosedArchiveError, match="forked child"):
                w.add("x", np.ones(2), [2], [4])
            with npzkit.ShardedWriter(tmp_path, attempt=w.attempt) as own:
                own.add("x", np.ones(2), [2], [4])
        w.commit()
    with npzkit.open(tmp_path) as npz:
        assert npz["x"].tolist() == [0, 0, 1, 1]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_forked_child_leaves_its_parents_shards(tmp_path, is_closed):
    """A child that leaves the block, closes, commits or aborts its copy changes no file."""

    def work(pipe):
        for leave in (w.commit, lambda: w.add("z", np.zeros(2)), close := w.close):
            if is_closed and leave is close:
                leave()
                continue
            with pytest.raises(ClosedArchiveError, match="forked child"):
                leave()
        with pytest.raises(ZeroDivisionError), w:
            raise ZeroDivisionError
        w.abort()
        assert names(tmp_path) == before
        os.write(pipe, b"done")

    with npzkit.ShardedWriter(tmp_path, shard_size=20_000) as w:
        w["x"] = np.zeros(5000)
        w["y"] = np.ones(2)
        if is_closed:
            w.close()
        before = names(tmp_path)
        assert len(before) == 2
        with forked(work) as (_, pipe):
            assert read_rest(pipe) == b"done"
        assert names(tmp_path) == before
        w.commit()
    with npzkit.open(tmp_path) as npz:
        assert npz.verify().ok
        assert npz.files == ["x", "y"]


@pytest.mark.remedy("Write again, with another writer.")
def test_a_shard_that_is_lost_is_not_missed_by_a_commit(tmp_path, monkeypatch):
    """After a shard could not be completed, its writer commits nothing, also when asked again."""
    write_run(tmp_path)
    before = names(tmp_path)
    w = npzkit.ShardedWriter(tmp_path, attempt="a2", shard_size=1)
    w["x"] = np.zeros(2)
    monkeypatch.setattr("npzkit.datasets.shardedwriter.record_file", _fails)
    with pytest.raises(OSError, match="full"):
        w["y"] = np.zeros(2)
    monkeypatch.undo()
    assert names(tmp_path) == before
    with npzkit.ShardedWriter(tmp_path, attempt="a2") as other:
        other["z"] = np.zeros(2)
    for _ in range(2):
        with pytest.raises(ClosedArchiveError, match="discarded"):
            w.commit()
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)
    again = npzkit.ShardedWriter(tmp_path, attempt="a2", shard_size=1)
    again["x"] = again["y"] = np.zeros(2)
    again.commit()
    assert sorted(npzkit.open(tmp_path).files) == ["x", "y", "z"]


def _fails(*arguments, **options):
    raise OSError(28, "the disk is full")


def test_aborting_keeps_what_was_committed(tmp_path, monkeypatch):
    """`abort` after a commit, also one that was interrupted late, leaves the archive complete."""
    for version, error in enumerate((None, OSError(28, "the disk is full"), KeyboardInterrupt())):
        w = npzkit.ShardedWriter(tmp_path)
        w["x"] = np.full(3, version)
        if error is None:
            w.commit()
        else:
            with monkeypatch.context() as patched, pytest.raises(type(error)):
                patched.setattr(LocalFolder, "remove", Mock(side_effect=error))
                w.commit()
        w.abort()
        with npzkit.open(tmp_path) as npz:
            np.testing.assert_array_equal(npz["x"], [version] * 3)


@pytest.mark.remedy("Choose another folder, or remove the file.")
def test_an_index_of_another_program_is_not_replaced(tmp_path):
    """A folder whose index.npz is not npzkit's keeps it, and the error says so."""
    with npzkit.ShardedWriter(tmp_path) as w:
        w["x"] = np.zeros(2)
    npzkit.save(tmp_path / "index.npz", {"title": np.arange(3)})
    with pytest.raises(IndexFormatError, match=r"index\.npz of another program"):
        w.commit()
    with npzkit.open(tmp_path / "index.npz") as npz:
        assert npz.files == ["title"]
    with npzkit.ShardedWriter(tmp_path / "another") as other:
        other["x"] = np.zeros(2)
        other.commit()
    assert list(npzkit.open(tmp_path / "another")) == ["x"]
    (tmp_path / "index.npz").unlink()
    w.commit()
    assert list(npzkit.open(tmp_path)) == ["x"]


@pytest.mark.parametrize("kind", ["archive", "damaged"])
def test_no_writer_begins_beside_an_archive_with_the_name_of_an_index(tmp_path, kind):
    """A folder with a user's own index.npz is refused before anything is written."""
    path = tmp_path / "index.npz"
    npzkit.save(path, {"x": np.zeros(2)})
    if kind == "damaged":
        path.write_bytes(path.read_bytes()[:-30])
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"such as 'index\.npz'"):
        npzkit.ShardedWriter(tmp_path)
    assert names(tmp_path) == ["index.npz"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("data", [b"", b"PK", b"{}", None])
def test_a_damaged_index_is_replaced(tmp_path, data):
    """The next commit replaces an index that cannot be read, where npzkit's shards are."""
    write_run(tmp_path)
    path = tmp_path / "index.npz"
    path.write_bytes(path.read_bytes()[:-1] if data is None else data)
    with pytest.raises(npzkit.NpzkitError):
        npzkit.open(tmp_path)
    write_run(tmp_path, attempt="a2")
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)


def test_replacing_removes_the_old_shards_and_nothing_else(tmp_path):
    """A commit removes what the old index named, and leaves files that are not npzkit's."""
    write_run(tmp_path)
    old = set(names(tmp_path))
    npzkit.save(tmp_path / "mine.npz", {"x": np.zeros(2)})
    (tmp_path / "notes.txt").write_text("kept")
    write_run(tmp_path, attempt="a2")
    assert set(names(tmp_path)) & old == {"index.npz"}
    assert {"mine.npz", "notes.txt"} < set(names(tmp_path))


def test_an_index_cannot_have_other_files_removed(tmp_path):
    """Files that an old index names are kept if their names are not those of npzkit's shards."""
    write_run(tmp_path)
    shard = min(tmp_path.glob("shard-*.npz"))
    shard.rename(tmp_path / "mine.npz")
    index = index_of(tmp_path)
    names = index["shards"]["name"]
    names[names.index(shard.name)] = "mine.npz"
    write_index(tmp_path, index)
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)
    write_run(tmp_path, attempt="a2")
    assert (tmp_path / "mine.npz").exists()


def test_leftovers_of_dead_attempts_are_removed_when_they_are_old(tmp_path):
    """Shards that no index names stay for a day, because their attempt may be under way."""
    with npzkit.ShardedWriter(tmp_path, attempt="dead") as w:
        w["x"] = np.zeros(2)
    with npzkit.ShardedWriter(tmp_path, attempt="live") as other:
        other["y"] = np.zeros(2)
    temporary = tmp_path / ".npzkit-0123456789abcdef.tmp"
    temporary.write_bytes(b"half")
    for name, hours in {w.shards[0]: 25, temporary.name: 25, other.shards[0]: 23}.items():
        hours_ago = (tmp_path / name).stat().st_mtime - hours * 3600
        os.utime(tmp_path / name, (hours_ago, hours_ago))
    write_run(tmp_path, attempt="new")
    assert w.shards[0] not in names(tmp_path)
    assert temporary.name not in names(tmp_path)
    other.commit()
    with npzkit.open(tmp_path) as npz:
        assert list(npz) == ["y"]


def test_two_commits_at_once_do_not_mix(tmp_path, monkeypatch):
    """If another writer commits meanwhile, this commit is refused and the other archive stays."""
    with npzkit.ShardedWriter(tmp_path, attempt="late") as late:
        late["late"] = np.zeros(2)
    put = LocalFolder.put

    def overtaken(*arguments, **options):
        monkeypatch.undo()
        write_run(tmp_path, attempt=new_writer())
        put(*arguments, **options)

    for _ in ("a first index", "another one"):
        monkeypatch.setattr(LocalFolder, "put", overtaken)
        with pytest.raises(StaleArchiveError, match="Nothing of yours was added"):
            late.commit()
        with npzkit.open(tmp_path) as npz:
            np.testing.assert_array_equal(npz["w"], WHOLE)
            assert npz.verify().ok
    late.commit()
    with npzkit.open(tmp_path) as npz:
        assert list(npz) == ["late"]


def test_shards_that_cannot_be_removed_do_not_fail_a_commit(tmp_path, monkeypatch):
    """If the system removes no file that is open, as Windows, the old shards stay for a while."""
    write_run(tmp_path)
    before = set(names(tmp_path))

    def refuse(path, **options):
        raise PermissionError(13, "in use", path)

    monkeypatch.setattr("npzkit.stores.objects.disk.unlink", refuse)
    write_run(tmp_path, WHOLE + 1, "a2")
    assert before <= set(names(tmp_path))
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE + 1)


def test_a_folder_that_is_repacked_in_vain(tmp_path):
    """One that is no archive stays as it is, and the error says so."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    with pytest.raises(IsADirectoryError, match="it is no archive"):
        npzkit.repack(tmp_path)
    assert os.listdir(tmp_path) == ["a.npz"]


def test_a_folder_in_the_place_of_a_file(tmp_path):
    """What takes one file says what to do with a folder: to convert it, or to add to it."""
    folder = write_run(tmp_path / "run")
    for call in (
        lambda path: npzkit.repack(path, tmp_path / "one.npz"),
        npzkit.NpzWriter,
        lambda path: npzkit.NpzWriter(path, "a"),
        lambda path: npzkit.add(path, {}),
    ):
        with pytest.raises(IsADirectoryError, match=r"npzkit\.convert.*npzkit\.ShardedWriter"):
            call(folder)
    npzkit.convert(folder, tmp_path / "one.npz")
    with (
        npzkit.NpzWriter(tmp_path / "one.npz", "a") as one,
        npzkit.ShardedWriter(folder, mode="a") as w,
    ):
        one["x"] = w["x"] = np.arange(3)
    for path in (folder, tmp_path / "one.npz"):
        with npzkit.open(path) as npz:
            assert npz["x"].tolist() == [0, 1, 2]


@pytest.mark.remedy("Give all writers the same attempt, and close them before the commit.")
def test_an_attempt_without_shards_replaces_nothing(tmp_path):
    """A commit with a mistyped attempt is an error, and no empty archive."""
    write_run(tmp_path)
    with pytest.raises(MissingShardError, match="no shard of the attempt 'a11'"):
        npzkit.ShardedWriter(tmp_path, attempt="a11").commit()
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)
    npzkit.ShardedWriter(tmp_path, attempt="a11").commit([])
    assert not npzkit.open(tmp_path).files
    with npzkit.ShardedWriter(tmp_path, attempt="a11") as w:
        w["x"] = np.arange(3)
    npzkit.ShardedWriter(tmp_path, attempt="a11").commit()
    assert npzkit.open(tmp_path).files == ["x"]


def test_a_task_may_write_its_shard_again(tmp_path):
    """Retried tasks write new shards, and the records that arrive name those that count."""
    place = place_of(tmp_path)
    place.begin_writing()
    runs = [
        write_shard(
            place, shard_name("a", new_writer(), 0), [ShardPart("x", np.full(2, run), (0,), (2,))]
        )
        for run in range(3)
    ]
    npzkit.ShardedWriter(tmp_path, attempt="a").commit([runs[1]])
    with npzkit.open(tmp_path) as npz:
        np.testing.assert_array_equal(npz["x"], [1, 1])
    assert len(list(tmp_path.glob("shard-*.npz"))) == 1


def test_a_damaged_shard_is_not_committed_by_its_name(tmp_path):
    """A shard whose directory is damaged cannot be committed."""
    with npzkit.ShardedWriter(tmp_path, attempt="a") as w:
        w["x"] = np.zeros(2)
    path = tmp_path / w.shards[0]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(NpzkitError):
        npzkit.ShardedWriter(tmp_path, attempt="a").commit()


def test_an_unclosed_writer_warns(tmp_path):
    """A writer that is dropped with a shard under way gives a ResourceWarning, and no shard."""
    w = npzkit.ShardedWriter(tmp_path)
    w["x"] = np.zeros(2)
    with pytest.warns(ResourceWarning, match="was never closed"):
        del w
    assert names(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_many_arrays_at_once(tmp_path, compression):
    """`update` writes arrays of all sizes to shards of the given size, in their order."""
    arrays = {f"a/{n}": np.full(n * 500, n) for n in range(40)}
    with npzkit.ShardedWriter(tmp_path, shard_size=200_000, compression=compression) as writer:
        writer.update(arrays)
        with pytest.raises(npzkit.NpzkitError, match="object"):
            writer.update({"more": np.ones(3), "bad": np.array([None])})
        writer.commit()
    with npzkit.open(tmp_path) as npz:
        assert npz.files == [*arrays, "more"]
        assert npz.verify().ok
        assert all(np.array_equal(npz[key], array) for key, array in arrays.items())
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("shard-*.npz"))]
    assert len(sizes) > 1 or compression == "deflated"
    assert max(sizes) < 800_000


@pytest.mark.remedy("Name a folder, or a path where nothing is.")
def test_a_file_is_no_folder(tmp_path):
    """A path that is a file is refused in both modes, and the file stays."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    for mode in "wa":
        with pytest.raises(npzkit.errors.UnsupportedError, match="this is a file"):
            npzkit.ShardedWriter(path, mode)
    with npzkit.open(path) as npz, npzkit.ShardedWriter(tmp_path / "a") as w:
        w.update(npz)
    with npzkit.open(tmp_path / "a") as npz:
        assert npz["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["ShardedWriter", "dask"])
@pytest.mark.parametrize("place", ["local", "memory"])
def test_other_archives_are_not_hidden(tmp_path, kind, place):
    """A folder with other archives is refused, unless it is a sharded archive already."""
    pytest.importorskip("fsspec", reason="memory:// needs fsspec")
    folder = str(tmp_path) if place == "local" else f"memory://{tmp_path.name}"

    def write():
        if kind == "dask":
            da = pytest.importorskip("dask.array")
            from npzkit.dask import to_npz

            to_npz(folder, {"x": da.arange(3)})
        else:
            with npzkit.ShardedWriter(folder) as w:
                w.add("x", np.arange(3))
                w.commit()

    npzkit.save(f"{folder}/run1.npz", {"x": 1})
    with pytest.raises(FileExistsError, match=r"run1\.npz"):
        write()
    path = os.path.join(folder, "run1.npz") if place == "local" else f"{folder}/run1.npz"
    assert find_archives(folder) == [path]
    folder += "/own"
    write()
    npzkit.save(f"{folder}/run2.npz", {"x": 1})
    write()
    assert npzkit.open(folder).files == ["x"]
