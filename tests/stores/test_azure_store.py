"""Archives in a store that speaks the protocol of Azure's blob storage, read and written by adlfs."""

from __future__ import annotations

import contextlib
import datetime
import time

import npzkit
import numpy as np
import pytest
from azurite import ACCOUNT, KEY, azure_server, connection_string, needs_azure
from npzkit.checkpoint import CheckpointStore, latest
from npzkit.cli.commands import run
from npzkit.errors import StaleArchiveError, UnsupportedError, ZipFormatError
from npzkit.stores import fsspec_upload, upload_sink
from npzkit.stores.objects import Objects

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
# adlfs closes its connections when Python ends.
pytestmark = [needs_azure, pytest.mark.filterwarnings("ignore")]

URL = "az://data/a.npz"
ARRAYS = {f"w{i}": np.random.default_rng(i).random(20_000) for i in range(6)}
OTHER = {key: array + 1 for key, array in ARRAYS.items()}
LARGE = np.random.default_rng(9).random((upload_sink.PART_SIZE + 99_999) // 8)


@pytest.fixture(scope="module")
def server():
    with azure_server() as url:
        yield url


@pytest.fixture(scope="module")
def options(server):
    """Options for a server that has a container named data."""
    return {"connection_string": connection_string(server)}


@pytest.fixture
def file_system(options):
    """A file system that remembers nothing of npzkit's, as in another process."""
    return fsspec.filesystem("az", skip_instance_cache=True, **options)


@pytest.fixture
def requests(monkeypatch):
    """The requests that adlfs makes: method and query."""
    transport = pytest.importorskip("azure.core.pipeline.transport").AioHttpTransport
    made, send = [], transport.send

    async def counted(self, request, **options):
        made.append((request.method, request.url.partition("?")[2]))
        return await send(self, request, **options)

    monkeypatch.setattr(transport, "send", counted)
    return made


def same(found, arrays):
    return list(found) == list(arrays) and all(
        np.array_equal(found[key], array) for key, array in arrays.items()
    )


# -- reading and writing --------------------------------------------------------


def test_reading_and_writing(options):
    """An archive is what was saved, however it is read."""
    npzkit.save(URL, ARRAYS, metadata={"step": 1}, storage_options=options)
    with npzkit.open(URL, storage_options=options) as npz:
        assert npz.metadata == {"step": 1}
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
        np.testing.assert_array_equal(npz.lazy("w2")[5:9], ARRAYS["w2"][5:9])
        np.testing.assert_array_equal(npz.lazy("w2")[::-7], ARRAYS["w2"][::-7])
        assert same(npz.load_all(), ARRAYS)
        assert npz.verify().ok
    assert same(npzkit.load_tree(URL, storage_options=options), ARRAYS)
    assert npzkit.verify(URL, storage_options=options).ok


def test_more_than_one_block(options, requests):
    """A large archive is sent in blocks, which one last request makes an object."""
    url = "az://data/large.npz"
    with npzkit.NpzWriter(url, storage_options=options) as writer:
        writer["stored"] = LARGE
        writer.add("deflated", LARGE, compression="deflated")
    kinds = [query.partition("&")[0] for method, query in requests if method == "PUT"]
    assert kinds == ["comp=block"] * 2 + ["comp=blocklist"]
    with npzkit.open(url, storage_options=options) as npz:
        assert same(npz.load_all(), {"stored": LARGE, "deflated": LARGE})
        assert npz.verify().ok


def test_blocks_grow_with_the_archive(options, requests, monkeypatch):
    """Later blocks are larger, because an object has 50,000 at most."""
    monkeypatch.setattr(upload_sink, "PART_SIZE", 1 << 16)
    monkeypatch.setattr(upload_sink, "GROWTH", 2)
    monkeypatch.setattr(fsspec_upload, "_GATHERED_SIZE", 1 << 16)
    url, array = "az://data/growing.npz", LARGE[: 1 << 17]
    npzkit.save(url, {"a": array}, storage_options=options)
    # Two of 64 KiB, two of 128, two of 256, and the rest.
    assert sum(query.startswith("comp=block&") for _, query in requests) == 7
    with npzkit.open(url, storage_options=options) as npz:
        assert same(npz.load_all(), {"a": array})


def test_requests(options, requests):
    """Opening is three requests, a range two, and listing none, as the guide says.

    The first part of an array comes with its header, which is a range of its own.
    """
    url = "az://data/counted.npz"
    npzkit.save(url, ARRAYS, storage_options=options)
    requests.clear()
    with npzkit.open(url, storage_options=options) as npz:
        assert [method for method, _ in requests] == ["HEAD", "GET", "HEAD"]
        npz.summary()
        assert len(requests) == 3
        npz["w3"]
        assert len(requests) == 5
        npz.load_all()
        assert len(requests) == 7
        lazy = npz.lazy("w2")
        assert len(requests) == 7
        lazy[5:9]
        assert len(requests) == 11
        lazy[50:90]
        assert len(requests) == 13


def test_the_command(options, capsys):
    """The account is given at the prompt."""
    url = "az://data/command.npz"
    npzkit.save(url, ARRAYS, storage_options=options)
    option = f"--storage-option=connection_string={options['connection_string']}"
    assert run(["ls", option, url]) == 0
    assert "w5" in capsys.readouterr().out


# -- two writers ----------------------------------------------------------------


@pytest.mark.parametrize("array", [np.arange(5), LARGE], ids=["small", "large"])
@pytest.mark.parametrize("is_checked", [True, False], ids=["checked before", "by the store"])
def test_mode_x(options, array, is_checked, monkeypatch):
    """Another writer's object stays, also if it appears at the last moment."""
    url = f"az://data/x{array.size}{is_checked}.npz"
    writer = npzkit.NpzWriter(url, "x", storage_options=options)
    writer["mine"] = array
    npzkit.save(url, {"other": np.ones(2)}, storage_options=options)
    if not is_checked:
        monkeypatch.setattr(fsspec_upload.FsspecUpload, "check", lambda self: None)
    with pytest.raises(FileExistsError, match=url):
        writer.close()
    monkeypatch.undo()
    with pytest.raises(FileExistsError, match=url):
        npzkit.NpzWriter(url, "x", storage_options=options)
    with npzkit.open(url, storage_options=options) as npz:
        assert npz.files == ["other"]


def wait_for_blocks(options, name, count):
    """Wait until as many blocks of an object were sent that are no part of it yet."""
    from azure.core.exceptions import ResourceNotFoundError
    from azure.storage.blob import BlobClient

    found, end = 0, time.monotonic() + 20
    with BlobClient.from_connection_string(options["connection_string"], "data", name) as blob:
        while found < count:
            assert time.monotonic() < end, found
            time.sleep(0.05)
            with contextlib.suppress(ResourceNotFoundError):
                found = len(blob.get_block_list("uncommitted")[1])


def test_two_uploads_that_overlap(options):
    """Azure drops the blocks of one: its writer gets an error, and the other's object stays."""
    url = "az://data/two.npz"
    one, other = (npzkit.NpzWriter(url, storage_options=options) for _ in range(2))
    for writer in (one, other):
        writer["large"] = LARGE
    # What Azure has not received yet, it does not drop.
    wait_for_blocks(options, "two.npz", 2)
    one.close()
    with pytest.raises(OSError, match=url):
        other.close()
    with npzkit.open(url, storage_options=options) as npz:
        assert npz.verify().ok


def test_an_exception_leaves_nothing(options, file_system):
    """Blocks that were sent become no object."""
    url = "az://data/none.npz"
    with (
        pytest.raises(ZeroDivisionError),
        npzkit.NpzWriter(url, storage_options=options) as writer,
    ):
        writer["large"] = LARGE
        1 / 0
    assert not file_system.exists("data/none.npz")


# -- one version ----------------------------------------------------------------


def test_a_replaced_object(options, file_system):
    """Two versions never mix, and an object that was removed is not found."""
    url = "az://data/stale.npz"
    npzkit.save(url, ARRAYS, storage_options=options)
    with npzkit.open(url, storage_options=options) as npz:
        npzkit.save(url, OTHER, storage_options=options)
        with pytest.raises(StaleArchiveError, match=url):
            npz["w1"]
        with pytest.raises(StaleArchiveError, match=url):
            npz.lazy("w1")[:5]
        file_system.rm_file("data/stale.npz")
        with pytest.raises(FileNotFoundError, match=url):
            npz["w1"]


def test_a_list_that_adlfs_remembers(options, file_system):
    """It neither hides that another process replaced an object, nor that it made one."""
    url = "az://data/listed/1.npz"
    npzkit.save(url, ARRAYS, storage_options=options)
    listing = fsspec.filesystem("az", **options)
    with npzkit.open(url, storage_options=options) as npz:
        listing.ls("data/listed")
        file_system.cp_file("data/listed/1.npz", "data/listed/2.npz")
        with npzkit.open("az://data/listed/2.npz", storage_options=options) as copy:
            assert same(copy.load_all(), ARRAYS)
        listing.ls("data/listed")
        file_system.cp_file("data/listed/2.npz", "data/listed/1.npz")
        with pytest.raises(StaleArchiveError):
            npz["w1"]
    listing.ls("data/listed")
    npzkit.save("az://data/listed/3.npz", {"a": LARGE}, storage_options=options)
    assert "data/listed/3.npz" in listing.ls("data/listed", detail=False)


def test_many_files(options):
    """Those that match a pattern are one, and a replaced one is noticed."""
    for number in range(2):
        npzkit.save(f"az://data/datasets/{number}.npz", ARRAYS, storage_options=options)
    with npzkit.open_many("az://data/datasets/*.npz", axis=0, storage_options=options) as many:
        np.testing.assert_array_equal(many["w1"][-5:], ARRAYS["w1"][-5:])
        npzkit.save("az://data/datasets/1.npz", OTHER, storage_options=options)
        with pytest.raises(StaleArchiveError):
            many["w1"][-5:]


def test_checkpoints(options):
    """Steps are listed, kept, replaced and removed."""
    with CheckpointStore("az://data/run", latest(2), storage_options=options) as store:
        for step in range(4):
            store.save(step, {"w": np.full(10, step)}, {"loss": step})
        assert store.steps == (2, 3)
        store.save(3, {"w": np.full(10, 7)})
        found = store.load()
        assert (found.step, found.tree["w"].tolist()) == (3, [7] * 10)
        store.delete(2)
        assert store.steps == (3,)
        assert store.verify().ok
    with CheckpointStore("az://data/run", storage_options=options) as store:
        assert store.load().step == 3


def test_frozen_arrays_are_copied_by_the_store(options, monkeypatch):
    """Steps share what is frozen, of which no byte comes through this process."""
    monkeypatch.setattr(Objects, "take", None)
    with CheckpointStore("az://data/frozen", frozen="base", storage_options=options) as store:
        for step in range(2):
            store.save(step, {"w": np.full(10, step), "base": LARGE})
        store.delete(0)
        assert store._status(1).size > LARGE.nbytes
        np.testing.assert_equal(store.load().tree, {"w": np.full(10, 1), "base": LARGE})


# -- errors ---------------------------------------------------------------------


def test_what_is_not_there(options, file_system):
    """Missing blobs and containers are not found, also for writing; an empty blob is no archive."""
    for missing in ("az://data/missing.npz", "az://nocontainer/a.npz"):
        with pytest.raises(FileNotFoundError, match=missing):
            npzkit.open(missing, storage_options=options)
    for array in (np.arange(5), LARGE):
        with pytest.raises(FileNotFoundError, match="az://nocontainer/a"):
            npzkit.save("az://nocontainer/a.npz", {"a": array}, storage_options=options)
    file_system.pipe_file("data/empty.npz", b"")
    with pytest.raises(ZipFormatError, match="empty"):
        npzkit.open("az://data/empty.npz", storage_options=options)


def test_a_container_before_the_account(options):
    """Azure's own form of a URL works, and messages show all of it."""
    host = f"abfs://data@{ACCOUNT}.dfs.core.windows.net"
    npzkit.save(f"{host}/form.npz", ARRAYS, storage_options=options)
    with npzkit.open("az://data/form.npz", storage_options=options) as npz:
        assert same(npz.load_all(), ARRAYS)
    with pytest.raises(FileNotFoundError, match=f"{host}/missing.npz"):
        npzkit.open(f"{host}/missing.npz", storage_options=options)


def test_credentials(server, options):
    """A signature for reading reads; what it does not allow is refused, without its secret."""
    blob = pytest.importorskip("azure.storage.blob", reason="adlfs is not installed")
    url = "az://data/signed.npz"
    npzkit.save(url, ARRAYS, storage_options=options)
    signature = blob.generate_account_sas(
        ACCOUNT, KEY, blob.ResourceTypes(object=True, container=True), "r",
        datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1),
    )  # fmt: skip
    secret = f"SharedAccessSignature={signature}"
    reader = {"connection_string": connection_string(server, secret)}
    with npzkit.open(url, storage_options=reader) as npz:
        assert same(npz.load_all(), ARRAYS)
        assert signature not in repr(npz)
    for array in (np.arange(5), LARGE):
        with pytest.raises(PermissionError, match="access was refused") as caught:
            npzkit.save(url, {"a": array}, storage_options=reader)
        assert signature not in str(caught.value)
    wrong = {"connection_string": connection_string(server, "AccountKey=d3Jvbmc=")}
    with pytest.raises(PermissionError, match=url) as caught:
        npzkit.open(url, storage_options=wrong)
    assert "d3Jvbmc=" not in str(caught.value)


@pytest.mark.parametrize("given", [{}, {"connection_string": "verysecret"}], ids=["none", "wrong"])
def test_options_that_name_no_account(given, monkeypatch):
    """The error says that they are wrong, and shows no secret."""
    for name in ("CONNECTION_STRING", "ACCOUNT_NAME"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    with pytest.raises(UnsupportedError, match="storage options") as caught:
        npzkit.open(URL, storage_options=given)
    assert "verysecret" not in str(caught.value)
