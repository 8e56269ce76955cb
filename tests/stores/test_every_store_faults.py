"""Servers that fail, are silent, drip or lie: every store gives up in time, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import re
import signal
import socket
import sys
import threading
import time
import warnings
import zipfile

import npzkit
import numpy as np
import pytest
from archives import packed
from npzkit.checkpoint import CheckpointStore
from npzkit.stores import retries, time_limits
from range_server import RangeServer
from slow_server import KINDS, LIES, SlowServer, location_in

pytestmark = pytest.mark.filterwarnings("ignore")

ARRAYS = {key: np.random.default_rng(1).random(40_000) for key in "xy"}
DATA = packed(ARRAYS)
TIMEOUT = 0.3
_OTHERS = re.compile("^fsspecIO|^asyncio_|process_request_thread")
BOUND = 3.0
"""Seconds until an error: two attempts, of which one with Google or Azure has three requests."""


RIGHT = {
    # What comes after an answer belongs to none.
    "http": ["more"],
    "s3": ["more"],
    # Their libraries do not compare what the head says.
    "gs": ["more", "later", "size"],
    "az": ["more", "later", "size"],
    "blockcache": ["more", "later", "size"],
    # It has the file.
    "simplecache": list(LIES),
}
"""The lies that may do no harm, by kind of store: the data is right."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(retries, "ATTEMPTS", 2)
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(time_limits, "SLOWEST", 1 << 24)


@pytest.fixture
def server():
    with SlowServer(DATA).running() as server:
        yield server


def store_at(kind, base, folder):
    """Return URL and options of a kind of store, if its package is installed."""
    package = KINDS[kind]
    if package and not (importlib.util.find_spec(package) and importlib.util.find_spec("fsspec")):
        pytest.skip(f"{package} is not installed")
    if package:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(package)
    url, options = location_in(kind, base, folder)
    return url, {**options, "timeout": TIMEOUT}


@contextlib.contextmanager
def opened(url, options):
    """Open an archive of a server that answers, once the library has made what it needs."""
    npzkit.open(url, storage_options={**options, "timeout": 20}).close()
    with npzkit.open(url, storage_options=options) as npz:
        yield npz


def busy_threads():
    """Return how many threads there are, without those of an event loop, and of the server."""
    others = [t for t in threading.enumerate() if _OTHERS.search(t.name)]
    return len(sys._current_frames()) - len(others)


def check_error(error, url):
    shown = url.partition("?")[0]
    assert str(error).startswith(shown)
    assert "failed after 2 attempts: " in str(error)
    assert "S3_CRET" not in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["silent", "head", "body"])
@pytest.mark.parametrize("kind", KINDS)
def test_opening(server, tmp_path, kind, mode):
    """The error comes in time. No request, no connection and no thread is left."""
    url, options = store_at(kind, server.base, tmp_path)
    server.mode = mode
    threads = busy_threads()
    begin = time.monotonic()
    with pytest.raises(OSError, match="attempts") as caught:
        npzkit.open(url, storage_options=options)
    assert time.monotonic() - begin < BOUND
    check_error(caught.value, url)
    assert not isinstance(caught.value, FileNotFoundError)
    # adlfs leaves the connection of a body that it does not read.
    assert server.wait_until_idle(1.0) or (kind, mode) == ("az", "body")
    end = time.monotonic() + 1.2
    while busy_threads() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert busy_threads() <= threads


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["silent", "head", "body"])
@pytest.mark.parametrize("kind", ["http", "s3", "gs", "az"])
def test_reading(server, tmp_path, kind, mode):
    """An archive that is open is as usable as before once the server answers again."""
    url, options = store_at(kind, server.base, tmp_path)
    server.mode = "good"
    with opened(url, options) as npz:
        server.mode = mode
        begin = time.monotonic()
        with pytest.raises(OSError, match="bytes 0 to ") as caught:
            npz["x"]
        assert time.monotonic() - begin < BOUND
        check_error(caught.value, url)
        server.mode = "good"
        np.testing.assert_array_equal(npz["x"], ARRAYS["x"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["busy", "reset", "shorter", "silent", "head", "body"])
@pytest.mark.parametrize("kind", ["http", "s3", "gs", "az"])
def test_what_passes_is_tried_again(server, tmp_path, kind, mode, monkeypatch):
    """A failure of any kind does no harm, neither to an open nor to a read."""
    url, options = store_at(kind, server.base, tmp_path)
    # Libraries that try again themselves wait for seconds before they do, until the time is over.
    monkeypatch.setattr(retries, "ATTEMPTS", 4)
    server.mode = "good"
    with opened(url, options):
        server.next_modes = [mode]
    with npzkit.open(url, storage_options=options) as npz:
        assert not server.next_modes
        server.next_modes = [mode]
        np.testing.assert_array_equal(npz["x"], ARRAYS["x"])
        assert not server.next_modes


def test_an_archive_in_an_archive_after_a_read_that_failed(server, tmp_path):
    """It is opened again: nobody knows where its file was left."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npz", DATA)
    server.data, server.mode = stream.getvalue(), "good"
    url, options = store_at("zip", server.base, tmp_path)
    options["http"] = {"block_size": 1000}
    with opened(url.replace("x.npy", "a.npz"), options) as npz:
        for mode in ("silent", "head"):
            server.mode = mode
            with pytest.raises(OSError, match=r"bytes 0 to .*no complete answer"):
                npz["x"]
            server.mode = "good"
            np.testing.assert_array_equal(npz["x"], ARRAYS["x"])
    assert server.wait_until_idle(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zip"])
def test_a_server_that_lies_about_ranges(server, tmp_path, kind, lie):
    """The data is right, or there is an error that does not call the archive damaged."""
    url, options = store_at(kind, server.base, tmp_path)
    server.mode = "good"
    with opened(url, options) as npz:
        begin = time.monotonic()
        server.mode = lie
        caught = None
        try:
            np.testing.assert_array_equal(npz["y"], ARRAYS["y"])
        except (OSError, npzkit.NpzkitError) as error:
            caught = error
    if caught is None:
        assert lie in RIGHT[kind]
    else:
        assert url.partition("?")[0] in str(caught)
        assert "S3_CRET" not in str(caught)
        assert not getattr(caught, "is_damage", False)
    assert time.monotonic() - begin < BOUND
    assert server.wait_until_idle(1.0)


def write(url, options):
    npzkit.save(url, ARRAYS, storage_options=options)


def list_steps(url, options):
    with CheckpointStore(url.replace("a.npz", "run"), storage_options=options) as store:
        assert store.steps


@pytest.mark.slow
@pytest.mark.parametrize("use", [write, list_steps])
@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_writing_and_listing(server, tmp_path, kind, use):
    """Uploads and lists of objects have a time limit too."""
    url, options = store_at(kind, server.base, tmp_path)
    begin = time.monotonic()
    with pytest.raises(OSError, match="no complete answer"):
        use(url, options)
    assert time.monotonic() - begin < BOUND
    assert server.wait_until_idle(1.0)


def test_a_download_that_was_given_up(server, tmp_path):
    """What a cache has of it is not taken for the file."""
    url, options = store_at("simplecache", server.base, tmp_path)
    server.mode = "body"
    with pytest.raises(OSError, match="attempts"):
        npzkit.open(url, storage_options=options)
    server.mode = "good"
    with npzkit.open(url, storage_options={**options, "timeout": 20}) as npz:
        np.testing.assert_array_equal(npz["x"], ARRAYS["x"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http", "s3", "gs"])
def test_a_download_that_goes_on(server, tmp_path, kind, monkeypatch):
    """It may take longer than the time limit, as its bytes come fast enough."""
    url, options = store_at(kind, server.base, tmp_path)
    server.mode = "good"
    monkeypatch.setattr("slow_server.PAUSE", 0.001)
    monkeypatch.setattr("slow_server.PIECE", 500)
    monkeypatch.setattr(time_limits, "SLOWEST", 1 << 14)
    with opened(url, options) as npz:
        server.mode = "body"
        np.testing.assert_array_equal(npz["x"], ARRAYS["x"])


# gcsfs and adlfs ask again for longer than the limit.
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("gs", "az")])
def test_nobody_listens(tmp_path, kind):
    """A refused connection is called so, and is neither a missing file nor damage."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url, options = store_at(kind, f"http://127.0.0.1:{free.getsockname()[1]}", tmp_path)
        with pytest.raises(OSError, match=r"refused|connect") as caught:
            npzkit.open(url, storage_options={**options, "timeout": 20})
        assert not isinstance(caught.value, FileNotFoundError)
        assert not getattr(caught.value, "is_damage", False)
        check_error(caught.value, url)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads")
@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("mode", ["silent", "head"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt(server, tmp_path, kind, mode):
    """The request ends with the call, although it has no time limit."""
    url, options = store_at(kind, server.base, tmp_path)
    server.mode = mode
    main = threading.main_thread().ident
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        npzkit.open(url, storage_options={**options, "timeout": None})
    # A busy machine takes its time; without the interrupt it would wait for ever.
    assert time.monotonic() - begin < 5
    assert server.wait_until_idle(1.0)


def test_a_web_server_that_sends_a_byte_per_answer(monkeypatch):
    """All answers for a range share one time limit."""

    def answer(handler, server):
        first = handler.headers["Range"].removeprefix("bytes=").partition("-")[0]
        if not first:
            handler.reply(416, Content_Range=f"bytes */{len(DATA)}")
            return
        time.sleep(0.05)
        begin = int(first)
        named = f"bytes {begin}-{begin}/{len(DATA)}"
        handler.reply(206, DATA[begin : begin + 1], Content_Range=named, ETag='"one"')

    with RangeServer().running() as server:
        url = server.put(DATA)
        server.answer = answer
        begin = time.monotonic()
        with pytest.raises(OSError, match="failed after 2 attempts: there is no complete answer"):
            npzkit.open(url, storage_options={"timeout": TIMEOUT})
        assert time.monotonic() - begin < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_logs(server, tmp_path, kind, caplog):
    """What libraries log at the level DEBUG has no secret."""
    url, options = store_at(kind, server.base, tmp_path)
    caplog.set_level(logging.DEBUG)
    server.mode = "good"
    try:
        npzkit.open(url, storage_options={**options, "timeout": 20})["x"]
    except (OSError, npzkit.NpzkitError):
        # No archive of archives.
        assert kind == "zip"
    server.mode = "silent"
    with pytest.raises(OSError):
        npzkit.open(url.replace("a.npz", "b.npz"), storage_options=options)
    assert "S3_CRET" not in caplog.text
    assert "sig=" not in caplog.text
