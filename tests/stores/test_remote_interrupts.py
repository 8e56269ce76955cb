"""Ctrl-C while a store does not answer: the call ends at once, whatever is under way."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time

import npzkit
import numpy as np
import pytest
from aborting import check_given_up
from archives import packed
from npzkit.stores import upload_sink
from range_server import RangeServer
from s3 import needs_s3, s3_server

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

pytestmark = [
    pytest.mark.skipif(
        not hasattr(signal, "pthread_kill"), reason="the system sends no signals to threads"
    ),
    pytest.mark.usefixtures("interrupts"),
]

STALL = 60.0
BOUND = 2.0
"""Seconds that an interrupt may take. An answer would take `STALL`."""

LARGE_COUNT = 5 << 20
"""Of integers: three pieces of a request each, which are under way at once."""
SMALL = np.arange(5.0)


@pytest.fixture(scope="module")
def data():
    """An archive that is not there while other modules run: a fork copies what there is."""
    return packed({"small": SMALL, "large": np.arange(LARGE_COUNT), "x": SMALL, "y": SMALL})


class Stall:
    """What a store asks before each answer: it waits, from when a test says so."""

    def __init__(self) -> None:
        self._go_on = threading.Event()
        self._lock = threading.Lock()
        self._expected = self._count = 0
        self._begin = 0.0

    def wait(self):
        with self._lock:
            if not self._expected:
                return
            self._count += 1
            if self._count == self._expected:
                threading.Timer(0.05, self._interrupt).start()
        self._go_on.wait(STALL)

    def _interrupt(self):
        self._begin = time.monotonic()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    @contextlib.contextmanager
    def interrupting(self, count=1):
        """Leave requests of the block unanswered. Ctrl-C comes when there are `count`."""
        self._expected, self._count = count, 0
        with pytest.raises(KeyboardInterrupt):
            yield
        assert time.monotonic() - self._begin < BOUND

    def release(self):
        """Answer all requests."""
        self._expected = 0
        self._go_on.set()


@pytest.fixture
def stall():
    stall = Stall()
    yield stall
    stall.release()


READS = {
    "an array": (lambda npz: npz["large"], 2),
    "all": (lambda npz: npz.load_all(), 2),
    "rows": (lambda npz: npz.lazy("large")[::2], 2),
    "verify": (lambda npz: npz.verify(), 1),
    "a small array": (lambda npz: npz["small"], 1),
}


# -- reading ------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with RangeServer().running() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("read", ["an array", "all", "rows", "verify"])
def test_http(server, stall, read, data):
    """Neither the caller's request nor those of other threads are waited for."""
    work, count = READS[read]
    good = server.answer
    with npzkit.open(server.put(data)) as npz:

        def answer(handler, server):
            stall.wait()
            good(handler, server)

        server.answer = answer
        with stall.interrupting(count):
            work(npz)
        stall.release()
        server.answer = good
        # The archive is as usable as before.
        np.testing.assert_array_equal(npz["small"], SMALL)


def test_a_server_that_cannot_be_reached():
    """Threads that wait for a connection end too."""
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # Nobody accepts these. The system has room for one or two, and answers no more.
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        check_given_up(f"http://127.0.0.1:{full.getsockname()[1]}/")


@pytest.fixture
def memory(stall, monkeypatch, data):
    """An archive in fsspec's memory, whose requests for bytes stall."""
    file_system = fsspec.filesystem("memory")
    file_system.pipe("/stall/a.npz", data)
    for name in ("cat_file", "pipe_file"):
        request = getattr(type(file_system), name)

        def stalling(*args, request=request, **options):
            stall.wait()
            return request(*args, **options)

        monkeypatch.setattr(type(file_system), name, stalling)
    yield file_system
    stall.release()
    monkeypatch.undo()
    file_system.store.clear()


@pytest.mark.slow
@pytest.mark.parametrize("read", READS)
def test_memory(memory, stall, read):
    """Stores of fsspec are not waited for either."""
    work, count = READS[read]
    with npzkit.open("memory://stall/a.npz") as npz, stall.interrupting(count):
        work(npz)


def test_opening_memory(memory, stall):
    """The first request is no exception."""
    with stall.interrupting():
        npzkit.open("memory://stall/a.npz")


def test_writing_to_memory(memory, stall):
    """The request is not waited for."""
    with stall.interrupting():
        npzkit.save("memory://stall/b.npz", {"small": SMALL})


# -- S3 -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3(data):
    with s3_server() as options:
        fsspec.filesystem("s3", **options).pipe("data/a.npz", data)
        yield options


@pytest.fixture
def stalling_s3(s3, stall, monkeypatch):
    """Options of a server whose requests stall from the chosen one on."""
    from moto.server import DomainDispatcherApplication

    call = DomainDispatcherApplication.__call__

    def stalling(self, environ, start_response):
        stall.wait()
        return call(self, environ, start_response)

    monkeypatch.setattr(DomainDispatcherApplication, "__call__", stalling)
    monkeypatch.setattr(upload_sink, "PART_SIZE", 5 << 20)
    return s3


@needs_s3
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
class TestS3:
    """A server of S3 that answers no more."""

    @pytest.mark.parametrize("read", READS)
    def test_reading(self, stalling_s3, stall, read):
        """Requests in the event loop end."""
        work, count = READS[read]
        with npzkit.open("s3://data/a.npz", storage_options=stalling_s3) as npz:
            with stall.interrupting(count):
                work(npz)
            stall.release()
            np.testing.assert_array_equal(npz["small"], SMALL)

    @pytest.mark.parametrize("is_large", [False, True])
    def test_writing(self, stalling_s3, stall, is_large):
        """Neither the upload nor the removal of its parts is waited for; no part is visible."""
        array = np.arange(LARGE_COUNT) if is_large else SMALL
        url = f"s3://data/{array.size}.npz"
        writer = npzkit.NpzWriter(url, storage_options=stalling_s3)
        if is_large:
            # The upload begins.
            writer["first"] = array[: 3 << 18]
        with stall.interrupting(), writer:
            writer["rest"] = array
        stall.release()
        # The server had all bytes of the small one, and may still have made the object.
        with (
            contextlib.suppress(FileNotFoundError),
            npzkit.open(url, storage_options=stalling_s3) as npz,
        ):
            assert not is_large
            np.testing.assert_array_equal(npz["rest"], SMALL)
