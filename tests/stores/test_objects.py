"""A folder on a disk and a prefix in a store: one suite that both pass."""

from __future__ import annotations

import os

import pytest
from npzkit.errors import ArchiveLockedError, StaleArchiveError
from npzkit.files import disk
from npzkit.files.locking import lock_path
from npzkit.files.urls import find_location
from npzkit.stores.objects import LocalFolder, objects_at, objects_matching


@pytest.fixture(params=["folder", "store"])
def objects(request, tmp_path):
    """An empty folder, or an empty prefix."""
    if request.param == "folder":
        yield objects_at(str(tmp_path / "run"))
        return
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    store = fsspec.filesystem("memory")
    try:
        yield objects_at(find_location("memory://objects/run"))
    finally:
        store.store.clear()


@pytest.mark.slow
def test_what_is_put_is_listed_and_read(objects):
    """A file is there once it is put: in the list, by its name, and with its bytes."""
    assert objects.listed() == {}
    assert objects.find("a") is None
    objects.begin_writing()
    objects.put("a", b"one", None)
    assert objects.listed().keys() == {"a"}
    assert objects.listed()["a"].size == objects.find("a").size == 3
    assert objects.read("a") == b"one"
    with pytest.raises(FileNotFoundError):
        objects.read("b")


def test_a_file_is_put_on_a_condition(objects):
    """A file takes the place of the one that was read, and of no other."""
    objects.begin_writing()
    objects.put("a", b"one", None)
    with pytest.raises((FileExistsError, StaleArchiveError)):
        objects.put("a", b"two", None)
    with pytest.raises(StaleArchiveError, match="another writer"):
        objects.put("a", b"two", b"three")
    assert objects.read("a") == b"one"
    objects.put("a", b"two", b"one")
    assert objects.read("a") == b"two"
    assert objects.listed().keys() == {"a"}


def test_a_file_is_removed_on_a_condition(objects):
    """A file that was written again since it was listed stays; one that is gone is gone."""
    objects.begin_writing()
    objects.put("a", b"one", None)
    older = objects.find("a").mark
    objects.put("a", b"other", b"one")
    assert not objects.remove("a", older)
    assert objects.read("a") == b"other"
    assert objects.remove("a", objects.find("a").mark)
    assert objects.remove("a")
    assert objects.find("a") is None


@pytest.mark.parametrize("can_link", [True, False])
def test_a_file_is_taken_from_another_place(objects, can_link, monkeypatch):
    """It is there under its new name and stays where it was; a large one is copied in pieces."""
    place = objects_at(find_location(f"{objects.name}/other"))
    data = bytes(range(256)) * 9
    for each in (place, objects):
        each.begin_writing()
    place.put("a", data, None)
    if not can_link:
        monkeypatch.setattr("npzkit.stores.objects._COPIED_SIZE", 100)
        monkeypatch.setattr("npzkit.files.disk.share", lambda source, target: False)
        monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.cp_file", unable)
    assert objects.take(place, "a", "b") is can_link
    assert place.read("a") == objects.read("b") == data
    with pytest.raises(FileNotFoundError):
        objects.take(place, "c", "d")
    assert objects.listed().keys() - {"other"} == {"b"}


def unable(*arguments):
    raise NotImplementedError


def test_a_link_to_a_link(tmp_path):
    """What is linked is the file that a symbolic link leads to."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "file").write_bytes(b"one")
    (tmp_path / "x" / "link").symlink_to("file")
    assert disk.share(str(tmp_path / "x" / "link"), str(tmp_path / "b"))
    assert (tmp_path / "b").samefile(tmp_path / "x" / "file")
    assert not (tmp_path / "b").is_symlink()
    with pytest.raises(FileExistsError):
        disk.share(str(tmp_path / "x" / "file"), str(tmp_path / "b"))


def test_a_folder_is_locked(tmp_path):
    """A lock keeps others away until it is closed; a file that a writer has open stays."""
    folder = LocalFolder(str(tmp_path))
    lock = folder.lock("lock")
    with pytest.raises(ArchiveLockedError):
        folder.lock("lock")
    assert not folder.remove("lock")
    lock.close()
    lock_path(str(tmp_path / "lock"), 0.0).close()
    assert folder.remove("lock") and os.listdir(tmp_path) == []


def test_a_store_has_no_locks(objects):
    """Only a folder can be locked."""
    assert hasattr(objects, "lock") == objects.is_local


def test_objects_that_match_a_pattern():
    """A pattern of a URL means the objects that match it, not folders."""
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    prefix = objects_at(find_location("memory://objects/match"))
    for name in ("a1", "a2", "b"):
        prefix.put(name, b"", None)
    found = [place.url for place in objects_matching(find_location("memory://objects/match/a*"))]
    assert found == ["memory://objects/match/a1", "memory://objects/match/a2"]
    for name in ("a1", "a2", "b"):
        prefix.remove(name)
