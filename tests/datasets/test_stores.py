"""Sharded archives in stores of objects, and on web servers."""

from __future__ import annotations

import pickle

import fsspec
import npzkit
import numpy as np
import pytest
from npzkit.errors import MissingShardError, NpzkitError, StaleArchiveError, UnsupportedError
from range_server import RangeServer
from s3 import needs_s3, s3_server
from sharded import WHOLE, write_run

URL = "memory://sharded/run"


@pytest.fixture
def memory():
    """The file system of ``memory://``, emptied afterwards."""
    file_system = fsspec.filesystem("memory")
    yield file_system
    file_system.rm("/sharded", recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "/", "/index.npz"])
def test_a_prefix_is_opened_by_each_of_its_names(memory, name, tmp_path):
    """The URL of a folder may end with a slash or not, or name the index."""
    write_run(URL)
    with npzkit.open(URL + name) as npz:
        assert npz.path == URL
        np.testing.assert_array_equal(npz["w"], WHOLE)
        np.testing.assert_array_equal(npz.load_all()["w"], WHOLE)
        np.testing.assert_array_equal(npz.lazy("w")[2:5, ::2], WHOLE[2:5, ::2])
        again = pickle.loads(pickle.dumps(npz))
    np.testing.assert_array_equal(again["layer/1"], [1, 1, 1])
    assert npzkit.verify(URL + name).ok
    npzkit.convert(URL + name, tmp_path / "converted.npz")
    npzkit.pack(tmp_path / "packed.npz", [URL + name])
    for made in ("converted.npz", "packed.npz"):
        np.testing.assert_array_equal(npzkit.load_tree(tmp_path / made)["w"], WHOLE)


def test_a_prefix_is_replaced(memory):
    """A commit removes the shards of the older archive, whose readers are told so."""
    write_run(URL)
    old = npzkit.open(URL)
    before = {path for path in memory.ls("/sharded/run", detail=False) if "shard-" in path}
    write_run(URL, WHOLE + 1, "a2")
    assert not before & set(memory.ls("/sharded/run", detail=False))
    with pytest.raises(StaleArchiveError, match="replaced or removed since it was opened"):
        old["w"]
    with npzkit.open(URL) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE + 1)


def test_an_object_that_is_gone_is_named(memory):
    """A missing object is an error with its name, and so is a missing archive."""
    write_run(URL)
    gone = min(path for path in memory.ls("/sharded/run", detail=False) if "shard-" in path)
    memory.rm(gone)
    with npzkit.open(URL) as npz, pytest.raises(MissingShardError, match=gone.rpartition("/")[2]):
        npz["w"]
    with pytest.raises(OSError):
        npzkit.open("memory://sharded/nothing")


def test_a_store_is_converted_to_a_file(memory, tmp_path):
    """`convert` reads the URL of a folder."""
    write_run(URL)
    npzkit.convert(URL + "/", tmp_path / "one.npz")
    with np.load(tmp_path / "one.npz") as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)


@pytest.fixture
def server(folder):
    """A web server with the files of `folder`."""
    server = RangeServer()
    for path in folder.iterdir():
        server.put(path.read_bytes(), f"/run/{path.name}")
    with server.running():
        yield server


@pytest.mark.parametrize("name", ["/run/", "/run/index.npz", "/run"])
def test_a_web_server_is_read(server, name):
    """An archive behind https:// needs no list of files."""
    with npzkit.open(server.url(name)) as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)
        np.testing.assert_array_equal(npz.lazy("w")[0], WHOLE[0])


@pytest.mark.remedy("Check its URL: that of a sharded folder ends with /.")
def test_the_page_of_a_folder(server):
    """A server that answers with one has the folder behind a slash."""
    url = server.put(b"<!DOCTYPE HTML><title>Directory listing for /run/</title>", "/run")
    for read in (npzkit.open, npzkit.load):
        with pytest.raises(NpzkitError, match=r"an HTML or XML page.*ends with /"):
            read(url)
    with npzkit.open(url + "/") as npz:
        assert "w" in npz


def test_a_few_rows_take_few_requests(server):
    """A slice of one shard requests the index, that shard's directory, and at most its bytes."""
    with npzkit.open(server.url("/run/")) as npz:
        assert server.count == 1
        npz.info("w")
        npz.lazy("w")
        assert server.count == 1
        np.testing.assert_array_equal(npz.lazy("w")[1, :2], WHOLE[1, :2])
        assert server.count <= 3


def test_signed_urls_keep_their_signature(server):
    """The query of a URL goes with each file, and is not shown."""
    with npzkit.open(server.url("/run/index.npz") + "?token=secret") as npz:
        np.testing.assert_array_equal(npz["w"], WHOLE)
        assert "secret" not in repr(npz) + npz.summary()
    assert server.count == 3
    assert all(request.path.endswith("?token=secret") for request in server.requests)


def test_web_servers_cannot_be_written_to(server):
    """A writer for a web server is refused before anything is written."""
    with pytest.raises(UnsupportedError, match="web servers"):
        npzkit.ShardedWriter(server.url("/run/"))


@needs_s3
def test_s3_takes_parts_of_several_writers():
    """On S3 an archive is written, read, replaced, and read again."""
    with s3_server() as options:
        url = "s3://data/parts"
        write_run(url, storage_options=options)
        old = npzkit.open(url, storage_options=options)
        np.testing.assert_array_equal(old["w"], WHOLE)
        write_run(url, WHOLE + 1, "a2", storage_options=options)
        with npzkit.open(url + "/", storage_options=options) as npz:
            np.testing.assert_array_equal(npz.load_all()["w"], WHOLE + 1)
            np.testing.assert_array_equal(
                pickle.loads(pickle.dumps(npz.lazy("w")))[3], WHOLE[3] + 1
            )
            assert npz.verify().ok
        files = fsspec.filesystem("s3", **options).ls("data/parts", detail=False, refresh=True)
        assert len(files) == 3


@needs_s3
def test_s3_refuses_a_commit_that_was_overtaken(monkeypatch):
    """The index is replaced on the condition that it is the one that was read."""
    from npzkit.stores.objects import StorePrefix

    with s3_server() as options:
        url = "s3://data/overtaken"
        with npzkit.ShardedWriter(url, attempt="late", storage_options=options) as late:
            late["late"] = np.zeros(2)
        put = StorePrefix.put

        def overtaken(*arguments, **others):
            monkeypatch.undo()
            write_run(url, attempt=late.attempt[::-1], storage_options=options)
            put(*arguments, **others)

        monkeypatch.setattr(StorePrefix, "put", overtaken)
        with pytest.raises(StaleArchiveError):
            late.commit()
        with npzkit.open(url, storage_options=options) as npz:
            np.testing.assert_array_equal(npz["w"], WHOLE)
