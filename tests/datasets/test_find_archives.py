"""Which archives are in a folder, and in the prefix of a store."""

from __future__ import annotations

import os

import npzkit
import numpy as np
import pytest
from npzkit.datasets.paths import find_archives


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    """A folder with archives, a sharded archive, and folders in it; or the same as a prefix."""
    if request.param == "local":
        top = str(tmp_path)
    else:
        pytest.importorskip("fsspec", reason="memory:// needs fsspec")
        top = f"memory://{tmp_path.name}"
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "shards").mkdir()
    with npzkit.ShardedWriter(f"{top}/shards") as w:
        w.add("x", np.arange(3))
        w.commit()
    (tmp_path / ".hidden").mkdir()
    for name in ("run10.npz", "run9.NPZ", "notes.bin", "deep/er/a.npz", "shards/other.npz",
                 "._run9.npz", ".hidden/a.npz"):  # fmt: skip
        npzkit.save(f"{top}/{name}", {"x": np.arange(3)})
    return top


def within(place, *names):
    """Return the paths of these names in a place, as they are shown."""
    paths = [f"{place}/{name}" for name in names]
    return paths if "://" in place else [path.replace("/", os.sep) for path in paths]


@pytest.mark.parametrize("slash", ["", "/"])
def test_archives_of_a_folder(place, slash):
    """They are sorted as people count, and a sharded archive is one; folders need `recursive`."""
    found = find_archives(place + slash)
    assert found == within(place, "run9.NPZ", "run10.npz", "shards")
    found = find_archives(place + slash, recursive=True)
    names = "deep/er/a.npz", "run9.NPZ", "run10.npz", "shards", "shards/other.npz"
    assert found == within(place, *names)


@pytest.mark.parametrize("recursive", [False, True])
def test_an_archive_is_itself(place, recursive):
    """So is what does not exist: opening it says so."""
    for name in ("run10.npz", "notes.bin", "nothing"):
        path = f"{place}/{name}"
        assert find_archives(path, recursive=recursive) == [path]
    shards = f"{place}/shards"
    assert find_archives(shards) == [shards]
    assert find_archives(shards, recursive=True) == [shards, *within(place, "shards/other.npz")]
    assert find_archives(f"{place}/deep", recursive=recursive) == (
        within(place, "deep/er/a.npz") if recursive else []
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.npz", "shard-000.npz"])
def test_an_archive_with_the_name_of_an_index_is_listed(place, name):
    """A user's own index.npz is an archive like others: its folder has no shards of npzkit."""
    if "://" not in place:
        os.mkdir(f"{place}/own")
    for file in ("index.npz", name):
        npzkit.save(f"{place}/own/{file}", {"x": np.arange(3)})
    files = sorted(within(place, f"own/{name}", "own/index.npz"))
    for recursive in (False, True):
        assert sorted(find_archives(f"{place}/own", recursive=recursive)) == files
    assert set(files) < set(find_archives(place, recursive=True))
    assert not set(files) & set(find_archives(place))


def test_folders_that_cannot_be_listed(tmp_path, monkeypatch):
    """With `recursive`, such a folder is among the archives, unless it is hidden."""

    def listed(path, scan=os.scandir):
        if os.path.basename(path) in ("closed", ".hidden"):
            raise PermissionError(13, "closed", path)
        return scan(path)

    for name in ("closed", ".hidden"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "scandir", listed)
    assert find_archives(tmp_path) == []
    assert find_archives(tmp_path, recursive=True) == [str(tmp_path / "closed")]
    assert find_archives(tmp_path / "closed") == [str(tmp_path / "closed")]


def test_shards_without_an_index_are_listed(tmp_path):
    """What was not committed is no archive yet: its shards are archives like others."""
    with npzkit.ShardedWriter(tmp_path, attempt="a") as w:
        w.add("x", np.arange(3))
    files = [str(tmp_path / name) for name in w.shards]
    assert find_archives(tmp_path) == find_archives(tmp_path, recursive=True) == files
    w.commit()
    assert find_archives(tmp_path) == find_archives(tmp_path, recursive=True) == [str(tmp_path)]
