"""Archives behind URLs in threads, children, pickles and event loops; what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import npzkit
import numpy as np
import pytest
from archives import packed
from kept_connections import and_reset, idle, wait_until_told
from npzkit.errors import StaleArchiveError
from npzkit.stores import connections, retries
from range_server import RangeServer, good

ARRAYS = {f"w{i}": np.random.default_rng(i).random(4096) for i in range(8)}


DATA = packed(ARRAYS)


@pytest.fixture
def server():
    with RangeServer().running() as server:
        server.url_of_data = server.put(DATA)
        yield server


def is_right(npz, key="w3"):
    return np.array_equal(npz[key], ARRAYS[key])


def test_threads_share_an_archive(server):
    """Each thread has a connection, which the next one uses again."""
    with npzkit.open(server.url_of_data) as npz, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, [npz] * 40, [f"w{i % 8}" for i in range(40)]))
        assert 1 <= len(idle(server)) <= 9


@pytest.mark.slow
def test_archives_share_connections(server):
    """Many archives that are read in turn need one connection, which the last one closes."""
    archives = [npzkit.open(server.url_of_data) for _ in range(50)]
    assert all(map(is_right, archives))
    (socket,) = idle(server)
    for npz in archives[1:]:
        npz.close()
    assert idle(server) == [socket]
    assert is_right(archives[0], "w1")
    archives[0].close()
    assert idle(server) == []
    assert socket.fileno() == -1


@pytest.mark.slow
def test_few_connections_are_kept(server, monkeypatch):
    """However many threads read at once, the connections that are kept have a limit."""
    monkeypatch.setattr(connections, "_IDLE_COUNT", 10)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(30) as pool:
        archives = [stack.enter_context(npzkit.open(server.url_of_data)) for _ in range(30)]
        server.together = 11
        assert all(pool.map(is_right, archives))
        assert server.most_under_way > 10
        assert len(idle(server)) == 10


def test_a_connection_that_was_idle_for_long_is_not_used(server, monkeypatch):
    """A router may have forgotten it without a word: a new one is made."""
    with npzkit.open(server.url_of_data) as npz:
        (old,) = idle(server)
        assert is_right(npz)
        assert idle(server) == [old]
        monkeypatch.setattr(connections, "_IDLE_SECONDS", 0.0)
        assert is_right(npz)
        assert old not in idle(server)
        assert old.fileno() == -1


def twice(handler, server):
    good(handler, server)
    good(handler, server)


def and_408(handler, server):
    good(handler, server)
    handler.reply(408, b"too slow", Connection="close")
    handler.close_connection = True


@pytest.mark.parametrize("answer", [twice, and_408, and_reset])
def test_what_nobody_asked_for_is_not_taken_for_an_answer(server, answer):
    """A server that says more than it was asked does not give one archive another one's bytes."""
    other = server.put(packed({"x": np.arange(5000.0)}), "/b.npz")
    with npzkit.open(server.url_of_data) as npz:
        server.answer = answer
        assert is_right(npz)
        server.answer = good
        (connection,) = idle(server)
        wait_until_told(connection)
        server.forget()
        with npzkit.open(other) as second:
            assert np.array_equal(second["x"], np.arange(5000.0))
        assert connection not in idle(server)
        assert is_right(npz)
        # Nothing had to be asked for again: the small archive is in its tail.
        assert server.count == 2


def test_connections_that_a_router_forgot_cost_one_time_limit(server):
    """After one of them did not answer in time, the others are not tried either."""
    forgotten, silent = [], []

    def answer(handler, server):
        if handler in forgotten:
            silent.append(handler)
            time.sleep(1)
        else:
            good(handler, server)

    def remember(handler, server):
        forgotten.append(handler)
        time.sleep(0.1)
        good(handler, server)

    options = {"timeout": 0.5}
    with npzkit.open(server.url_of_data, storage_options=options) as npz:
        server.answer = remember
        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(is_right, [npz] * 6, [f"w{i}" for i in range(6)]))
        assert len(forgotten) > 3
        server.answer = answer
        assert is_right(npz, "w0")
    assert len(silent) == 1


def test_archives_with_other_time_limits_share_connections(server):
    """The time limit is that of each request, and not of its connection."""
    with npzkit.open(server.url_of_data) as one:
        options = {"timeout": 7}
        with npzkit.open(server.url_of_data, storage_options=options) as two:
            assert is_right(one)
            assert is_right(two)
            assert len(set(idle(server))) == 1


def test_no_thread_outlives_a_call(server):
    """HTTP needs no thread beside those of a call."""
    before = threading.enumerate()
    with npzkit.open(server.url_of_data) as npz:
        npz.load_all()
        npz.verify()
        ours = [
            thread for thread in threading.enumerate()
            if thread not in before and "process_request" not in thread.name
        ]  # fmt: skip
        assert ours == []


def test_connections_close_with_the_archive(server):
    """Also if it is only deleted; reads that are under way are completed."""
    npz = npzkit.open(server.url_of_data)
    npz.load_all()
    own = npz._lend_source()._store._connections
    sockets = idle(server)
    assert sockets
    npz.close()
    assert all(socket.fileno() == -1 for socket in sockets)
    assert not idle(server)
    assert not own._bodies
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        npz = npzkit.open(server.url_of_data)
        npz["w1"]
        del npz
        gc.collect()


def hold(server):
    """Let answers wait; return the events that one is waited for, and that they may go on."""
    begun, go_on = threading.Event(), threading.Event()

    def answer(handler, server):
        begun.set()
        go_on.wait(5)
        good(handler, server)

    server.answer = answer
    return begun, go_on


def test_closing_while_another_thread_reads(server):
    """The read is completed, and its connection closed after it."""
    npz = npzkit.open(server.url_of_data)
    begun, go_on = hold(server)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(is_right, npz)
        begun.wait(5)
        own = npz._lend_source()._store._connections
        npz.close()
        go_on.set()
        assert read.result()
    assert not idle(server)
    assert not own._bodies


def test_closing_while_a_request_is_redirected(server):
    """The connection to the other server is closed as well, when the answer was read."""
    npz = npzkit.open(server.url_of_data)
    begun, go_on = threading.Event(), threading.Event()
    place = server.url_of_data.replace("127.0.0.1", "localhost")

    def answer(handler, server):
        if "localhost" in handler.headers["Host"]:
            good(handler, server)
            return
        begun.set()
        go_on.wait(5)
        handler.reply(302, Location=place)

    server.answer = answer
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(is_right, npz)
        begun.wait(5)
        npz.close()
        go_on.set()
        assert read.result()
    assert idle(server) == []


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def in_child(work):
    """Fork; return whether `work` returned true in the child."""
    with warnings.catch_warnings():
        # Python warns that other threads, such as the server's, do not exist in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(20)
            code = 0 if work() else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@needs_fork
def test_a_child_gives_up_nothing_of_its_parent(server):
    """A request that is under way in the parent goes on if a child gives up its own."""
    npz = npzkit.open(server.url_of_data)
    begun, go_on = hold(server)

    def give_up():
        npz._lend_source().give_up(object())
        return True

    with npz, ThreadPoolExecutor(1) as pool:
        read = pool.submit(is_right, npz)
        begun.wait(5)
        assert in_child(give_up)
        go_on.set()
        assert read.result()
    assert server.count == 2


@pytest.mark.slow
@needs_fork
def test_forked_children(server):
    """A child opens connections of its own, and the parent goes on with its own."""
    with npzkit.open(server.url_of_data) as npz:
        lazy = npz.lazy("w5")
        npz.load_all()
        assert in_child(lambda: is_right(npz) and len(npz.load_all()) == 8 and npz.verify().ok)
        assert in_child(lambda: np.array_equal(lazy[5:9], ARRAYS["w5"][5:9]))
        assert is_right(npz)


@needs_fork
def test_a_fork_in_the_middle_of_requests(server):
    """What other threads were doing when the process forked does not matter to the child."""
    with npzkit.open(server.url_of_data) as npz:
        begun, go_on = threading.Event(), threading.Event()

        def answer(handler, server):
            if not begun.is_set():
                begun.set()
                go_on.wait(10)
            good(handler, server)

        server.answer = answer
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit(npz.load_all)
            begun.wait(5)
            try:
                assert in_child(lambda: is_right(npz) and len(npz.load_all()) == 8)
            finally:
                go_on.set()
            assert len(read.result()) == 8


@pytest.mark.slow
def test_spawned_children(server):
    """A spawned process gets the archive by its pickle."""
    with (
        npzkit.open(server.url_of_data) as npz,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        found = pool.apply(_length_of, (pickle.dumps(npz),))
        assert found == 8


def _length_of(data):
    with pickle.loads(data) as npz:
        return len(npz)


def test_pickles(server):
    """A pickle has URL, options and version, and is opened again."""
    options = {"headers": {"X-A": "1"}}
    with npzkit.open(server.url_of_data, storage_options=options) as npz:
        data = pickle.dumps(npz)
        lazy = pickle.loads(pickle.dumps(npz.lazy("w3")))
        np.testing.assert_array_equal(lazy[3:5], ARRAYS["w3"][3:5])
        with copy.copy(npz) as other:
            assert is_right(other)
    server.forget()
    with pickle.loads(data) as npz:
        assert is_right(npz)
    assert all(request.headers["x-a"] == "1" for request in server.requests)
    server.etag = '"two"'
    with pytest.raises(StaleArchiveError, match="pickled"):
        len(pickle.loads(data))


def test_within_an_event_loop(server):
    """Notebooks run one."""

    async def read():
        with npzkit.open(server.url_of_data) as npz:
            return is_right(npz) and len(npz.load_all()) == 8

    assert asyncio.run(read())


def test_memory_within_an_event_loop():
    """Stores of fsspec have a loop of their own."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    fsspec.filesystem("memory").pipe("/loop/a.npz", DATA)

    async def read():
        with npzkit.open("memory://loop/a.npz") as npz:
            return is_right(npz)

    try:
        assert asyncio.run(read())
    finally:
        fsspec.filesystem("memory").store.clear()


@pytest.mark.slow
def test_secrets_are_shown_nowhere(server, caplog, monkeypatch):
    """Neither in reprs, nor in errors with their tracebacks, warnings or logs."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)
    caplog.set_level(logging.DEBUG)
    url = server.url_of_data.replace("//", "//me:PASSWORD@") + "?X-Signature=PASSWORD#PASSWORD"
    options = {"headers": {"Authorization": "PASSWORD"}}
    texts = []
    with npzkit.open(url, storage_options=options) as npz, warnings.catch_warnings(record=True):
        assert "X-Signature=PASSWORD" in server.requests[0].path
        source = npz._lend_source()
        texts += [repr(npz), repr(source), repr(source.location), str(source.location)]
        texts += [npz.archive_info().path, str(npz.verify()), repr(npz.lazy("w1"))]
        for status in (403, 404, 412, 418, 503, 206):
            server.answer = lambda handler, server, status=status: handler.reply(status)
            for use in (lambda: npz["w1"], npz.load_all, lambda: npzkit.open(url)):
                try:
                    use()
                except (OSError, npzkit.NpzkitError) as error:
                    texts.append("".join(traceback.format_exception(error)))
                    texts.append(repr(error))
    assert len(texts) > 30
    assert "PASSWORD" not in "\n".join(texts) + caplog.text


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals are sent as on POSIX")
def test_an_interrupt_ends_a_command(server):
    """Ctrl-C does not wait for the answers of a server, nor does the end of Python."""
    # The tests may have been started with SIGINT ignored.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from npzkit.__main__ import main; sys.exit(main())"
    )
    hold = threading.Event()

    def answer(handler, server):
        if server.count:
            handler.record(0)
            hold.wait(60)
        good(handler, server)

    server.answer = answer
    command = [sys.executable, "-c", code, "verify", server.put(packed({"w": np.zeros(5 << 20)}))]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        while server.count < 2:
            time.sleep(0.01)
        time.sleep(0.1)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=50)[1].strip().endswith(b"interrupted")
        assert time.monotonic() - begin < 2
        assert process.returncode == 130
    hold.set()
