"""Archives written to S3: parts, conditions, lost answers, and leftovers of killed writers."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys

import npzkit
import numpy as np
import pytest
from npzkit.stores import retries, upload_sink
from npzkit.zip import member_writer
from s3 import needs_s3, s3_server

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
pytestmark = [
    needs_s3,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

URL = "s3://data/a.npz"
PART_SIZE = 5 << 20
"""S3, and so its server here, takes no smaller one."""
SMALL, LARGE = (
    {"x": np.arange(5)},
    {"x": np.random.default_rng(0).random(800_000), **dict.fromkeys("yab", np.ones(10))},
)


@pytest.fixture(scope="module")
def server():
    with s3_server() as options:
        yield options


@pytest.fixture
def s3(server, monkeypatch):
    """Storage options; the bucket is empty, and requests are made again at once."""
    monkeypatch.setattr(upload_sink, "PART_SIZE", PART_SIZE)
    monkeypatch.setattr(member_writer, "_KEPT_SIZE", 1000)
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.0)
    file_system = fsspec.filesystem("s3", **server)
    for upload in uploads(server):
        file_system.call_s3(
            "abort_multipart_upload", Bucket="data", Key=upload["Key"], UploadId=upload["UploadId"]
        )
    for key in keys(server):
        file_system.call_s3("delete_object", Bucket="data", Key=key)
    return server


def uploads(s3):
    return fsspec.filesystem("s3", **s3).list_multipart_uploads("data")


def keys(s3):
    answer = fsspec.filesystem("s3", **s3).call_s3("list_objects_v2", Bucket="data")
    return [found["Key"] for found in answer.get("Contents", ())]


class Calls(list):
    """The names of requests; `fault` is called before and after each, and may raise."""

    def fault(self, name, is_before, options):
        pass


@pytest.fixture
def calls(monkeypatch):
    import s3fs

    made = Calls()
    call = s3fs.S3FileSystem._call_s3

    async def counted(self, method, *args, **options):
        made.append(method)
        made.fault(method, True, options)
        answer = await call(self, method, *args, **options)
        made.fault(method, False, options)
        return answer

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    return made


def refused(status, code):
    """Return the error that s3fs raises for an answer."""
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return translate_boto_error(ClientError(answer, "CompleteMultipartUpload"))


# -- requests -----------------------------------------------------------------


def test_a_small_archive(s3, calls):
    """It is one request."""
    npzkit.save(URL, SMALL, storage_options=s3)
    assert calls == ["put_object"]
    with npzkit.open(URL, storage_options=s3) as npz:
        assert npz["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_a_large_archive(s3, calls, compression):
    """It is one request for each part, and three more; its bytes are those of a file."""
    npzkit.save(URL, LARGE, compression=compression, storage_options=s3)
    first, second, *sent, last = calls
    stream = io.BytesIO()
    npzkit.save(stream, LARGE, compression=compression)
    data = stream.getvalue()
    assert fsspec.filesystem("s3", **s3).cat("data/a.npz") == data
    if len(data) > PART_SIZE:
        assert (first, second) == ("list_multipart_uploads", "create_multipart_upload")
        assert sent == ["upload_part"] * -(-len(data) // PART_SIZE)
        assert last == "complete_multipart_upload"
    assert not uploads(s3)


def test_an_array_that_grows(s3):
    """The part with its header is sent last."""
    rows = np.random.default_rng(0).normal(size=(900, 1000))
    with (
        npzkit.NpzWriter(URL, storage_options=s3) as writer,
        writer.create("log", (None, 1000), "f8") as out,
    ):
        for start in range(0, 900, 300):
            out.append(rows[start : start + 300])
    with npzkit.open(URL, storage_options=s3) as npz:
        np.testing.assert_array_equal(npz["log"], rows)


def test_repack_and_convert(s3, tmp_path):
    """Archives are copied between stores and disks; a URL may be replaced by its own copy."""
    path = tmp_path / "a.npz"
    npzkit.save(path, SMALL)
    npzkit.convert(path, URL, storage_options=s3)
    with pytest.raises(FileExistsError):
        npzkit.convert(path, URL, storage_options=s3)
    npzkit.repack(URL, URL, compression="deflated", storage_options=s3)
    npzkit.convert(URL, tmp_path / "b.npz", storage_options=s3)
    assert npzkit.open(tmp_path / "b.npz").info("x").method == "deflated"


def test_in_a_running_event_loop(s3):
    """As in a notebook."""

    async def main():
        npzkit.save(URL, LARGE, storage_options=s3)

    asyncio.run(main())
    with npzkit.open(URL, storage_options=s3) as npz:
        assert npz.verify().ok


# -- conditions ---------------------------------------------------------------


@pytest.mark.parametrize("arrays", [SMALL, LARGE])
def test_a_lost_answer(s3, calls, arrays):
    """The request that is made again finds its own object, and takes it for no other's."""
    lost = []

    def fault(name, is_before, options):
        if name in ("put_object", "complete_multipart_upload") and not is_before and not lost:
            lost.append(name)
            raise ConnectionResetError("reset")

    calls.fault = fault
    with npzkit.NpzWriter(URL, "x", storage_options=s3) as writer:
        for key, array in arrays.items():
            writer[key] = array
    assert len(lost) == 1
    assert calls.count(lost[0]) == 2
    with npzkit.open(URL, storage_options=s3) as npz:
        assert npz.verify().ok


@pytest.mark.parametrize("arrays", [SMALL, LARGE])
def test_a_conflict(s3, calls, arrays):
    """409 means that the request is to be made again."""
    refusals = []

    def fault(name, is_before, options):
        if name in ("put_object", "complete_multipart_upload") and len(refusals) < 2:
            refusals.append(name)
            raise refused(409, "ConditionalRequestConflict")

    calls.fault = fault
    with npzkit.NpzWriter(URL, "x", storage_options=s3) as writer:
        for key, array in arrays.items():
            writer[key] = array
    assert len(refusals) == 2
    assert keys(s3) == ["a.npz"]


@pytest.mark.parametrize("arrays", [SMALL, LARGE])
def test_a_server_without_conditions(s3, calls, arrays):
    """Whether an object exists is then asked just before."""

    def fault(name, is_before, options):
        if "IfNoneMatch" in options:
            raise refused(501, "NotImplemented")

    calls.fault = fault
    with npzkit.NpzWriter(URL, "x", storage_options=s3) as writer:
        for key, array in arrays.items():
            writer[key] = array
    with (
        pytest.raises(FileExistsError),
        npzkit.NpzWriter("s3://data/b.npz", "x", storage_options=s3) as writer,
    ):
        for key, array in arrays.items():
            writer[key] = array
        npzkit.save("s3://data/b.npz", {"other": np.ones(3)}, storage_options=s3)
    with npzkit.open("s3://data/b.npz", storage_options=s3) as npz:
        assert npz.files == ["other"]


# -- what is left -------------------------------------------------------------


@pytest.mark.parametrize("name", ["create_multipart_upload", "upload_part", "put_object"])
def test_a_lost_connection(s3, calls, name):
    """After four attempts nothing is visible, and no part is left."""

    def fault(found, is_before, options):
        if found == name:
            raise ConnectionResetError("reset")

    calls.fault = fault
    with pytest.raises(OSError, match=r"s3://data/a.npz, .* failed after 4 attempts: reset"):
        npzkit.save(URL, SMALL if name == "put_object" else LARGE, storage_options=s3)
    assert not keys(s3)
    assert not uploads(s3)


def test_a_second_writer(s3, calls):
    """The writer that began first is told that its upload was ended."""
    first = npzkit.NpzWriter(URL, storage_options=s3)
    first["x"] = LARGE["x"]
    first._archive.sink._pipeline.drain()
    npzkit.save(URL, LARGE, storage_options=s3)

    def fault(name, is_before, options):
        # The server here has an error of its own.
        if name == "upload_part":
            raise refused(404, "NoSuchUpload")

    calls.fault = fault
    with pytest.raises(OSError, match="ended by another program"):
        first["y"] = LARGE["y"]
        first.close()
    with npzkit.open(URL, storage_options=s3) as npz:
        assert npz.files == list(LARGE)
    assert not uploads(s3)


WRITER = """
import json, sys, time
import npzkit, numpy as np
from npzkit.stores import upload_sink
upload_sink.PART_SIZE = 5 << 20
writer = npzkit.NpzWriter("s3://data/a.npz", storage_options=json.loads(sys.argv[1]))
writer["x"] = np.zeros(1_500_000)
writer._archive.sink._pipeline.drain()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_writer(s3):
    """Nothing is visible; what it left is removed by the next upload to that name."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, json.dumps(s3)], stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "ready\n"
        child.kill()
    assert child.returncode == -getattr(signal, "SIGKILL", 9) or os.name == "nt"
    assert not keys(s3)
    assert len(uploads(s3)) == 1
    npzkit.save("s3://data/a.npz.npz", LARGE, storage_options=s3)
    assert len(uploads(s3)) == 1
    npzkit.save(URL, LARGE, storage_options=s3)
    assert not uploads(s3)
    assert keys(s3) == ["a.npz", "a.npz.npz"]


def test_leftovers_that_may_not_be_listed(s3, calls):
    """A server that lists no uploads, or forbids it, is no obstacle."""

    def fault(name, is_before, options):
        if name == "list_multipart_uploads":
            raise PermissionError("no")

    calls.fault = fault
    npzkit.save(URL, LARGE, storage_options=s3)
    assert keys(s3) == ["a.npz"]
