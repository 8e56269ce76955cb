"""Secrets in URLs and options are in nothing that is shown."""

from __future__ import annotations

import base64
import contextlib
import pickle
import random
import traceback
import warnings
from urllib.parse import quote, unquote

import fsspec
import npzkit
import numpy as np
import pytest
from deep import amount, extent
from npzkit.checkpoint import CheckpointStore
from npzkit.cli.commands import run
from npzkit.errors import shown_url
from npzkit.files.urls import Location, find_location
from npzkit.stores import retries
from npzkit.stores.hidden_secrets import hide_secrets
from range_server import RangeServer

from tables import each_row

da = pytest.importorskip("dask.array", reason="dask is not installed")

CANARY = "S3_CRET"
SCHEMES = ["http", "https", "HTTP", "s3", "gs", "ftp", "sftp", "memory", "webdav+https"]


def some(rng: random.Random, letters: str) -> str:
    return "".join(rng.choices(letters, k=rng.randrange(6)))


def hidden_user(rng: random.Random) -> str:
    """A user and a password, or a token, in which the canary is."""
    if rng.random() < 0.3:
        return f"{some(rng, 'ab %=+é')}{CANARY}{some(rng, 'ab %=+@é')}"
    around = "ab/@:?#%& =+;é\\"
    return f"{some(rng, 'ab %+')}:{some(rng, around)}{CANARY}{some(rng, around)}"


def hidden_query(rng: random.Random) -> str:
    name = rng.choice(["X-Amz-Signature", "sig", "token", "a b", "user=me:x@y.com&token"])
    return f"{rng.choice('?#')}{name}={some(rng, 'ab/@: ?#&')}{CANARY}{some(rng, 'ab/@: ?#&')}"


def link(rng: random.Random) -> str:
    """A URL with the canary in its user, its query or its fragment, or in several of them."""
    scheme, places = rng.choice(SCHEMES), rng.randrange(1, 4)
    user = f"{hidden_user(rng)}@" if places & 1 else ""
    host = rng.choice(["host", "host:8080", "[::1]:80", "my host", "bucket"])
    path = rng.choice(["", "/a.npz", "/a b/c.npz", "/run@2/x.npz", "/a:b/c", "/"])
    return f"{scheme}://{user}{host}{path}{hidden_query(rng) if places & 2 else ''}"


def secret_urls(count: int):
    rng = random.Random(1)
    for _ in range(count):
        front = rng.choice(
            ["", "", " ", "cannot read '", "zip://a.npz::", "simplecache::", "zip::"]
        )
        yield front + link(rng) + rng.choice(["", "", " ", "'", "\n", f"::{link(rng)}"])


@pytest.mark.slow
def test_a_shown_url_has_no_secret():
    """No password, token, query or fragment is left of thousands of URLs and chains of URLs."""
    shown = {url: shown_url(url) for url in secret_urls(amount(3_000, 100_000))}
    assert not {url: text for url, text in shown.items() if CANARY in text}
    errors = [npzkit.NpzkitError("damaged", path=url) for url in list(shown)[:1000]]
    assert CANARY not in "".join(f"{error}{error.path}" for error in errors)
    locations = [find_location(url) for url in shown]
    assert CANARY not in "".join(f"{each} {each!r}" for each in locations if type(each) is Location)


@each_row("url", [
    "s3://bucket/a b/run@2.npz", "https://host:8080/a.npz", "s3://bucket/time=12:30/run?.npz",
    "abfs://container@account.dfs.core.windows.net/a.npz", "memory://a", "data/a@b:c?d=e.npz",
    "http://[::1]:8000/a.npz", "simplecache::s3://bucket/a.npz",
])  # fmt: skip
def test_a_url_without_secrets_is_shown_as_it_is(url):
    """Nothing is hidden that helps to find the archive."""
    assert shown_url(url) == url


@pytest.mark.slow
def test_what_a_library_says_has_no_secret():
    """Passwords and secret options are also hidden outside URLs, in other forms of writing."""
    for url in secret_urls(amount(300, 1000)):
        location = Location(url, {})
        rest = url.partition("://")[2]
        for text in (rest, unquote(rest), repr(rest), quote(rest, safe="")):
            assert CANARY not in hide_secrets(f"no bucket {text}", location), url
    options = {
        "client_kwargs": {"headers": {"X": CANARY}},
        "secret": f"{CANARY}/x\n",
        "region": "eu",
    }
    text = hide_secrets(f"eu {CANARY} {CANARY}%2Fx%0A {CANARY}/x\\n", Location("s3://b", options))
    assert text == "eu ... ... ..."


def everything(error: BaseException) -> str:
    """Return what a traceback prints of an error, and its attributes."""
    texts = ["".join(traceback.format_exception(error))]
    while error is not None:
        texts += [repr(error), repr(error.args), repr(vars(error))]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


def in_store(url, use):
    with CheckpointStore(url) as store:
        return repr(store), use(store), store.steps


ARRAYS = {"x": np.arange(6.0)}
USES = {
    "open": npzkit.open,
    "map": lambda url: npzkit.open(url, mmap_mode="r"),
    "load": npzkit.load,
    "save": lambda url: npzkit.save(url, ARRAYS),
    "savez": lambda url: npzkit.savez(url, **ARRAYS),
    "append": lambda url: npzkit.NpzWriter(url, mode="a"),
    "verify": lambda url: npzkit.verify(url),
    "convert from": lambda url: npzkit.convert(url, "a.h5"),
    "convert to": lambda url: npzkit.convert("local.npz", url),
    "pack": lambda url: npzkit.pack("p.npz", [url]),
    "extract": lambda url: npzkit.extract(url, "d"),
    "diff": lambda url: npzkit.diff(url, "local.npz"),
    "statistics": lambda url: npzkit.statistics(url, "x"),
    "repack": lambda url: npzkit.repack(url, "r.npz"),
    "repair": npzkit.repair,
    "repair to": lambda url: npzkit.repair("local.npz", url),
    "open_many": lambda url: npzkit.open_many([url, url])["x"],
    "pattern": lambda url: npzkit.open_many(url + "*"),
    "load_tree": npzkit.load_tree,
    "sharded": npzkit.ShardedFile,
    "shards": lambda url: npzkit.ShardedWriter(url).__enter__(),
    "checkpoint": lambda url: in_store(url, lambda store: store.save(1, ARRAYS)),
    "load checkpoint": lambda url: in_store(url, lambda store: store.load()),
    "dask": lambda url: npzkit.dask.from_npz(url, "x"),
    "to dask": lambda url: npzkit.dask.to_npz(url, {"x": da.ones(3)}),
}  # fmt: skip
URLS = [
    f"http://me:{CANARY}@127.0.0.1:1/a.npz?sig={CANARY}#{CANARY}",
    f"http://me:a/{CANARY}@127.0.0.1:1/a.npz",
    f"http://me:{CANARY}?x@127.0.0.1:1/a.npz",
    f"http://me:a/{CANARY}?x@127.0.0.1:1/a.npz",
    f"http://me:{CANARY} x@127.0.0.1:1/a b.npz?token={CANARY} x",
    f" http://me:{CANARY}@127.0.0.1:1/a.npz\n",
    f"http://127.0.0.1:1/run/?sig={CANARY}",
    f"https://me:{CANARY}@{'a' * 70}/a.npz",
    f"http://me:{CANARY}@127.0.0.1:99999/a.npz",
    f"http://me:{CANARY}@[::1/a.npz",
    f"zip://a.npz::http://me:{CANARY}@127.0.0.1:1/a.zip?x={CANARY}",
    f"simplecache::http://me:{CANARY}@127.0.0.1:1/a.npz",
    f"ftp://me:{CANARY}@127.0.0.1:1/a.npz",
    f"ftp://me:{CANARY}?x@127.0.0.1:1/a.npz",
    f"s3://KEY:{CANARY}@bucket/a.npz",
    f"s3://KEY:{CANARY}\n@bucket/a.npz",
    f"s3://KEY:a/{CANARY}@bucket/a?token={CANARY}",
    f"unknown://me:{CANARY}@b/a.npz",
    f"memory://me:{CANARY}@b/a.npz",
    f"memory://me:a/{CANARY}@b/run",
]


@pytest.fixture
def quickly(tmp_path, monkeypatch):
    """Nothing waits for a server; no settings of the machine count."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.0)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    npzkit.save("local.npz", ARRAYS)
    yield
    fsspec.filesystem("memory").store.clear()


def urls_for(what, everything):
    """Return all URLs; by default every other one, by turns."""
    stride = extent(2, 1)
    return URLS[list(everything).index(what) % stride :: stride]


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_no_call_shows_a_secret(quickly, use):
    """Neither results nor errors show one, with their tracebacks, attributes and warnings."""
    for url in urls_for(use, USES):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                found = USES[use](url)
                text = repr(found) + str(found)
            except Exception as error:
                text = everything(error)
        assert CANARY not in text + str([str(each.message) for each in warned]), url


COMMANDS = [
    ["ls"], ["ls", "--json"], ["ls", "--tree"], ["info"], ["verify"], ["verify", "--json"], ["show"],
    ["repair"], ["extract"], ["diff", "local.npz"], ["convert", "local.npz"], ["repack"],
    ["ckpt", "ls"], ["ckpt", "verify", "--json"], ["pack"], ["pack", "p.npz"],
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_shows_a_secret(quickly, capsys, command):
    """Neither output nor messages of a command show one."""
    for url in urls_for(command, COMMANDS):
        with contextlib.suppress(SystemExit):
            run([*command, url])
        shown = capsys.readouterr()
        assert CANARY not in shown.out + shown.err, url


def test_what_is_read_shows_no_secret(quickly, capsys):
    """An archive that can be read shows none: in reprs, reports, graphs and pages."""
    url = f"memory://me:{CANARY}@b/a.npz"
    npzkit.save(url, ARRAYS)
    with npzkit.open(url) as npz:
        texts = [repr(npz), npz._repr_html_(), npz.summary(), repr(npz.lazy("x"))]
        texts += [str(npz.verify()), npz.archive_info().path, str(npz.verify().as_dict())]
        assert CANARY in pickle.dumps(npz).decode("latin-1")
    array = npzkit.dask.from_npz(url, "x")
    texts += [repr(array), array.name, repr(dict(array.dask)), str(array.__dask_keys__())]
    with npzkit.open_many([url, url]) as many:
        texts += [repr(many), many._repr_html_() if hasattr(many, "_repr_html_") else ""]
    texts += [repr(npzkit.convert(url, "b.npz")), repr(npzkit.convert("b.npz", url[:-5] + "c.npz"))]
    for command in COMMANDS:
        with contextlib.suppress(SystemExit):
            run([*command, url])
    texts += capsys.readouterr()
    assert CANARY not in "\n".join(texts)


@pytest.mark.parametrize("options", [
    {"headers": {"Authorization": f"Bearer {CANARY}\n"}},
    {"headers": {"X-Token": f"{CANARY}\u20ac"}},
    {"headers": {f"X: {CANARY}": "1"}},
    {"client_kwargs": {"password": CANARY}},
    {"token": CANARY},
])  # fmt: skip
def test_options_show_no_secret(quickly, options):
    """A header that HTTP does not allow is refused without its value."""
    with pytest.raises(npzkit.errors.UnsupportedError) as caught:
        npzkit.open("http://127.0.0.1:1/a.npz", storage_options=options)
    assert CANARY not in everything(caught.value)


@pytest.mark.parametrize("proxy", [f"me:{CANARY}@127.0.0.1:1", f"me:a/{CANARY}@127.0.0.1:1"])
def test_a_proxy_shows_no_secret(quickly, monkeypatch, proxy):
    """The password of a proxy is in no error, also if the proxy's URL is not valid."""
    monkeypatch.setenv("http_proxy", f"http://{proxy}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises((npzkit.NpzkitError, OSError)) as caught:
        npzkit.open("http://example.invalid/a.npz")
    assert CANARY not in everything(caught.value)


@pytest.mark.parametrize("place", [
    f"http://me:{CANARY}@127.0.0.1:1/a?sig={CANARY}", f"http://me:a/{CANARY}@127.0.0.1:1/a",
    f"http://[::1/{CANARY}", f"ftp://me:{CANARY}@h/a", f"//me:{CANARY}@127.0.0.1:99999/",
])  # fmt: skip
def test_a_redirect_shows_no_secret(quickly, place):
    """What a server redirects to is in no error."""
    with RangeServer().running() as server:
        server.answer = lambda handler, server: handler.reply(302, Location=place)
        with pytest.raises(OSError) as caught:
            npzkit.open(server.url("/a.npz"))
    assert CANARY not in everything(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("status", [206, 302, 400, 403, 404, 418, 500])
def test_a_server_that_repeats_the_request_shows_no_secret(quickly, status):
    """What a server says is shown without the secrets that were sent to it."""

    def repeat(handler, server):
        said = f"{handler.path} {handler.headers['Authorization']} for".encode()
        token = handler.headers["Authorization"].split()[-1].encode()
        lines = [b"HTTP/1.1 %d no %s %s" % (status, said, token), b"Content-Length: 1"]
        lines += [b"Content-Range: bytes " + said, b"Location: http://[/" + said]
        handler.wfile.write(b"\r\n".join(lines) + b"\r\n\r\nx")
        handler.close_connection = True

    with RangeServer().running() as server:
        server.answer = repeat
        plain = server.url("/a.npz")
        for url, headers in (
            (f"{plain}?a=b c&sig=x/{CANARY}", {"Authorization": f"Bearer {CANARY}"}),
            (plain.replace("://", f"://me:{CANARY}@"), {}),
        ):
            with pytest.raises(OSError) as caught:
                npzkit.open(url, storage_options={"headers": headers})
            text = everything(caught.value)
            assert CANARY not in text
            assert base64.b64encode(f"me:{CANARY}".encode()).decode() not in text


@pytest.mark.parametrize("name", ["auth", "client_credentials"])
def test_all_values_of_a_secret_option_are_hidden(name):
    """A mapping whose own name is secret has no value that is shown, whatever its names are."""
    location = Location("s3://b", {name: {"login": [CANARY], "user": CANARY}, "mode": CANARY[:0]})
    assert hide_secrets(f"denied: {CANARY}", location) == "denied: ..."
