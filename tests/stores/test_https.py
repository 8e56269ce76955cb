"""HTTPS: a trusted server is read, and any other is an error, never read without a check."""

from __future__ import annotations

import pickle
import socket
import ssl
import threading
import time
from urllib.parse import urlsplit

import npzkit
import numpy as np
import pytest
from aborting import check_given_up
from archives import packed
from kept_connections import and_reset, idle, pools_of, wait_until_told
from npzkit.stores import connections, retries
from npzkit.stores.connections import Connections
from npzkit.stores.retries import TransientError
from range_server import RangeServer, good

ARRAYS = {f"w{i}": np.random.default_rng(i).random(4096) for i in range(8)}
DATA = packed(ARRAYS)


@pytest.fixture
def server(fixtures, monkeypatch):
    """A server whose certificate the tests' own authority signed."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(fixtures / "tls" / "server.pem")
    with RangeServer(context).running() as server:
        server.url_of_data = server.put(DATA)
        yield server


@pytest.fixture
def authority(fixtures):
    return str(fixtures / "tls" / "authority.pem")


def check_reads(npz):
    np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
    assert len(npz.load_all()) == 8


def test_an_authority_of_the_environment(server, authority, monkeypatch):
    """SSL_CERT_FILE names the authorities, as for other programs; commands need no more."""
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    with npzkit.open(server.url_of_data) as npz:
        assert server.count == 1
        check_reads(npz)
        with pickle.loads(pickle.dumps(npz)) as other:
            check_reads(other)


def test_certificates_of_authorities_are_read_once(server, authority, monkeypatch):
    """Reading them takes longer than a request. Other authorities are read when they are named."""
    count = 0
    make = ssl.create_default_context

    def counted():
        nonlocal count
        count += 1
        return make()

    monkeypatch.setattr(ssl, "create_default_context", counted)
    connections._usual_context.cache_clear()
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    for _ in range(3):
        with npzkit.open(server.url_of_data) as npz:
            check_reads(npz)
    assert count == 1
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(OSError, match="certificate"):
        npzkit.open(server.url_of_data)
    assert count == 2


def test_an_authority_of_a_context(server, authority):
    """A context of the caller's is used instead of the usual one."""
    context = ssl.create_default_context(cafile=authority)
    # As it is by default from Python 3.13 on.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    url = server.url_of_data.replace("127.0.0.1", "localhost")
    with npzkit.open(url, storage_options={"ssl": context}) as npz:
        check_reads(npz)


def check_refused(server, url, message, **options):
    with pytest.raises(OSError, match=message) as caught:
        npzkit.open(url.replace("//", "//me:secret@") + "?token=secret", **options)
    assert url in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not isinstance(caught.value, ssl.SSLError)
    # No request was made, with or without TLS.
    assert server.count == 0


def test_a_server_that_nobody_trusts(server):
    """The error names the URL and the reason, and says what to do. It is not tried again."""
    check_refused(server, server.url_of_data, "certificate.*set SSL_CERT_FILE")


def test_another_name_than_in_the_certificate(server, authority, monkeypatch):
    """A trusted certificate of another server is refused."""
    find = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **options: find("127.0.0.1", *args, **options)
    )
    options = {"ssl": ssl.create_default_context(cafile=authority)}
    url = server.url_of_data.replace("127.0.0.1", "other.example")
    check_refused(server, url, "not valid for 'other.example'", storage_options=options)


def test_a_redirect_to_a_server_that_nobody_trusts(server):
    """It is refused like the server itself."""
    with RangeServer().running() as first:
        first.answer = lambda handler, other: handler.reply(302, Location=server.url_of_data)
        with pytest.raises(OSError, match="certificate"):
            npzkit.open(first.url())
    assert server.count == 0


def test_a_server_without_tls(server):
    """https:// is not read as http://."""
    with RangeServer().running() as plain:
        url = plain.put(DATA).replace("http://", "https://")
        with pytest.raises(OSError, match="failed after 4 attempts") as caught:
            npzkit.open(url)
        assert url in str(caught.value)
        assert all(request.method != "GET" for request in plain.requests)


def test_giving_up_while_tls_begins():
    """Threads that wait for a server's certificate end if nobody waits for them."""
    begun, hold = threading.Event(), threading.Event()

    def never_answer(request, address):
        # If the socket is shut down before TLS begins, Python does not close it.
        request.recv(1)
        begun.set()
        hold.wait(60)

    with RangeServer().running() as plain:
        plain._server.finish_request = never_answer
        check_given_up(f"https://{plain.address}/a", begun)
        hold.set()


def test_giving_up_in_the_middle_of_an_answer(server, authority, monkeypatch):
    """What arrives encrypted is never taken for data, and the connection is not used again."""
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    zeros = bytes(170_000)
    url = urlsplit(server.put(zeros, "/zeros"))
    own = Connections("zeros")
    response = own.send(url, {}, [].append)
    # Until the rest has arrived.
    time.sleep(0.2)
    found = bytearray(len(zeros))
    with pytest.raises(TransientError):
        own.read_body(response, memoryview(found), lambda count: own.abort())
    response.close()
    assert found == zeros
    assert idle(server) == []
    own.close()


def test_a_connection_that_was_reset_while_idle(server, authority, monkeypatch):
    """A new one is made at once, without a pause or a failed request."""
    monkeypatch.setenv("SSL_CERT_FILE", authority)
    with npzkit.open(server.url_of_data) as npz:
        server.answer = and_reset
        np.testing.assert_array_equal(npz["w1"], ARRAYS["w1"])
        (connection,) = idle(server)
        wait_until_told(connection)
        server.answer = good
        server.forget()
        np.testing.assert_array_equal(npz["w2"], ARRAYS["w2"])
        assert server.count == 1


def test_a_certificate_that_is_replaced_while_the_archive_is_open(server, authority, fixtures):
    """Each connection is checked, also those that are made later."""
    context = ssl.create_default_context(cafile=authority)
    with npzkit.open(server.url_of_data, storage_options={"ssl": context}) as npz:

        def close(handler, server):
            good(handler, server)
            handler.close_connection = True

        server.answer = close
        np.testing.assert_array_equal(npz["w1"], ARRAYS["w1"])
        (pool,) = pools_of(server)
        for kept in filter(None, pool.pool.queue):
            kept.ssl_context = ssl.create_default_context()
        with pytest.raises(OSError, match="certificate"):
            npz["w2"]
