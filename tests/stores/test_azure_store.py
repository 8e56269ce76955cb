"""Archives in a store that speaks the protocol of Azure's blob storage, read and written by adlfs."""

from __future__ import annotations

import contextlib
import datetime
import time

import npzkit
import numpy as np
import pytest
from azurite import ACCOUNT, KEY, azure_server, connection_string, needs_azure
from npzkit.errors import UnsupportedError
from npzkit.stores import fsspec_upload, upload_sink

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


# -- two writers ----------------------------------------------------------------


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


# -- one version ----------------------------------------------------------------


# -- errors ---------------------------------------------------------------------


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
