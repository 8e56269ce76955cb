"""Stores of fsspec: S3 with pinned versions, memory, chains with caches, paths of universal-pathlib."""

from __future__ import annotations

import os
import re
import sys
import time
from functools import partial

import npzkit
import numpy as np
import pytest
from archives import packed
from npzkit.datasets.paths import find_archives
from npzkit.errors import StaleArchiveError, UnsupportedError, ZipFormatError
from npzkit.stores import retries
from npzkit.stores.fsspec_store import FsspecStore
from npzkit.stores.remote_source import TAIL_SIZE
from range_server import RangeServer
from remedies import brought_by
from s3 import needs_s3, s3_server

from tables import each_row

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
get_loop = pytest.importorskip("fsspec.asyn", reason="fsspec is not installed").get_loop

ARRAYS = {f"w{i}": np.random.default_rng(i).random(8192) for i in range(8)}


DATA = packed(ARRAYS)
OTHER = packed({key: array + 1 for key, array in ARRAYS.items()})


def check_reads(npz):
    """Read in every way that a store takes part in."""
    np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
    np.testing.assert_array_equal(npz.lazy("w5")[10:20], ARRAYS["w5"][10:20])
    found = npz.load_all()
    assert all(np.array_equal(found[key], ARRAYS[key]) for key in ARRAYS)
    assert npz.verify().ok


@pytest.fixture
def memory():
    """The URL of an archive in fsspec's memory."""
    fs = fsspec.filesystem("memory")
    fs.pipe("/bucket/a.npz", DATA)
    yield "memory://bucket/a.npz"
    fs.store.clear()


@pytest.mark.slow
@pytest.mark.remedy('Install it: python -m pip install "npzkit[remote]" for s3, gcsfs for gs')
def test_a_missing_library(memory, monkeypatch):
    """The error says what to install; with it, the archive is read."""
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "fsspec", None)
        with pytest.raises(UnsupportedError, match=r"a package that is not installed \(fsspec\)"):
            npzkit.open(memory)
    assert {"fsspec", "s3fs"} <= brought_by("remote")
    with npzkit.open(memory) as npz:
        check_reads(npz)


@pytest.mark.remedy("Did you mean ")
def test_an_option_that_is_misspelt(memory):
    """The option that is meant is named, and the archive is read with it."""

    class Strict(type(fsspec.filesystem("memory"))):
        protocol = ("strict",)

        def __init__(self, *, endpoint_url=None):
            super().__init__()

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix("strict://").lstrip("/")

    fsspec.register_implementation("strict", Strict, clobber=True)
    url = memory.replace("memory", "strict")
    with pytest.raises(UnsupportedError, match="unknown storage option 'endpoint'") as caught:
        npzkit.open(url, storage_options={"endpoint": "x"})
    (name,) = re.findall(r"Did you mean (\w+)\?", caught.value.remedy)
    with npzkit.open(url, storage_options={name: "x"}) as npz:
        check_reads(npz)


@pytest.fixture
def remembering(memory):
    """A file system that answers by what it listed, as those of Google and Azure do."""

    class Remembering(type(fsspec.filesystem("memory"))):
        protocol = ("remembering",)

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix("remembering://").lstrip("/")

        def ls(self, path, **options):
            self.dircache[path] = super().ls(path, detail=True)

        def info(self, path, **options):
            listed = self.dircache.get(path.rpartition("/")[0])
            if listed is None:
                return super().info(path)
            return next(info for info in listed if info["name"] == path)

        def invalidate_cache(self, path=None):
            del self.dircache[path]

    fsspec.register_implementation("remembering", Remembering, clobber=True)
    return fsspec.filesystem("remembering")


def test_a_list_that_a_file_system_remembers(remembering):
    """It neither hides that an object was replaced, nor that there is a new one."""
    with npzkit.open("remembering://bucket/a.npz") as npz:
        remembering.ls("/bucket")
        fsspec.filesystem("memory").pipe("/bucket/b.npz", DATA)
        with npzkit.open("remembering://bucket/b.npz") as other:
            check_reads(other)
        remembering.ls("/bucket")
        fsspec.filesystem("memory").pipe("/bucket/a.npz", OTHER)
        with pytest.raises(StaleArchiveError):
            npz["w3"]


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (404, FileNotFoundError, "not found: 'memory://bucket/a.npz'"),
        (401, PermissionError, r"access was refused \(no right RequestId:1\): 'memory://bucket/a"),
        (403, PermissionError, "access was refused"),
        (418, OSError, "memory://bucket/a.npz: no right RequestId:1$"),
        (503, OSError, "4 attempts: no right"),
    ],
)
def test_errors_with_a_status(memory, monkeypatch, status, kind, message):
    """A library's error of its own, or what caused it, says by its status what is wrong."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.0)

    class HttpResponseError(Exception):
        status_code = status

    def failing(self, *args, **options):
        text = "no right\nRequestId:1\nContent: <?xml?>"
        raise RuntimeError(text) from HttpResponseError()

    with npzkit.open(memory) as npz:
        monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", failing)
        with pytest.raises(kind, match=message) as caught:
            npz["w3"]
        assert type(caught.value) is kind


def test_a_range_that_a_smaller_object_does_not_have(memory, monkeypatch):
    """Google's store and Azure's refuse it: the object was replaced, if its version is another."""

    class HttpResponseError(Exception):
        status_code = 416

    def refusing(self, *args, **options):
        raise HttpResponseError("no such range")

    with npzkit.open(memory) as npz:
        monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", refusing)
        with pytest.raises(OSError, match="no such range"):
            npz["w3"]
        fsspec.filesystem("memory").pipe("/bucket/a.npz", b"x")
        with pytest.raises(StaleArchiveError):
            npz["w3"]


def test_what_is_no_object(memory):
    """Folders and unknown schemes are errors at once."""
    with pytest.raises(IsADirectoryError):
        npzkit.open("memory://bucket")
    with pytest.raises(UnsupportedError, match="not supported"):
        npzkit.open("nothing://bucket/b.npz")


def test_a_missing_package_is_named(monkeypatch):
    """The error says what to install."""

    def missing(*args, **options):
        raise ImportError("Install s3fs to access S3", name="s3fs")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(UnsupportedError, match=r"s3:// needs .*npzkit\[remote\]"):
        npzkit.open("s3://bucket/a.npz")


def test_a_chain_with_a_cache(tmp_path):
    """simplecache downloads the file once; reads then make no request for bytes."""
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    with RangeServer().running() as server:
        url = f"simplecache::{server.put(DATA)}"
        options = {"simplecache": {"cache_storage": str(tmp_path)}}
        with npzkit.open(url, storage_options=options) as npz:
            assert repr(npz).startswith(f"NpzFile {url!r}")
            server.forget()
            check_reads(npz)
            assert server.count == 0


def test_universal_paths(memory, tmp_path):
    """A UPath is its URL with its options; a local one is a path."""
    upath = pytest.importorskip("upath", reason="universal-pathlib is not installed")
    with npzkit.open(upath.UPath(memory)) as npz:
        check_reads(npz)
    np.testing.assert_array_equal(npzkit.load_tree(upath.UPath(memory))["w1"], ARRAYS["w1"])
    path = tmp_path / "a.npz"
    path.write_bytes(DATA)
    for local in (upath.UPath(path), upath.UPath(f"file://{path.as_posix()}")):
        with npzkit.open(local, mmap_mode="r") as npz:
            assert isinstance(npz["w1"], np.memmap)


def test_passing_faults_of_a_store(memory, monkeypatch):
    """Timeouts and lost connections of a library are tried again; other errors name the URL."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)
    fs = fsspec.filesystem("memory")
    cat_file, faults = fs.cat_file, []

    def failing(self, *args, **options):
        if faults:
            raise faults.pop()
        return cat_file(*args, **options)

    monkeypatch.setattr(type(fs), "cat_file", failing)

    class ClientPayloadError(Exception):
        pass

    with npzkit.open(memory) as npz:
        faults += [TimeoutError(), ConnectionResetError(), ClientPayloadError("cut")]
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
        faults += [TimeoutError("slow")] * 4
        with pytest.raises(OSError, match=r"memory://bucket/a.npz, bytes .*4 attempts: slow"):
            npz["w3"]
        faults += [RuntimeError("broken for https://me:secret@host/a?b")]
        with pytest.raises(OSError, match=r"a.npz: broken for https://host/a\?\.\.\.$"):
            npz["w3"]
        faults += [PermissionError("no")]
        with pytest.raises(PermissionError, match="access was refused"):
            npz["w3"]
        monkeypatch.setattr(type(fs), "cat_file", lambda *args, **options: b"short")
        with pytest.raises(OSError, match="5 of"):
            npz["w3"]


# -- a store of S3 whose answers are wrong -----------------------------------


class LyingS3:
    """What is used of s3fs. `lie` changes an answer: its span, its bytes, and what it says."""

    protocol = ("s3",)

    def __init__(self, lie):
        self.lie, self.count, self.received = lie, 0, 0
        self.tag, self.version_id, self.options, self.size = '"one"', None, {}, len(DATA)
        self.loop = get_loop()

    def call_s3(self, *args, **options):
        raise NotImplementedError

    def split_path(self, path):
        return "bucket", "a.npz", self.version_id

    def _parent(self, path):
        return "bucket"

    def invalidate_cache(self, path):
        pass

    def info(self, path):
        return {"size": self.size, "ETag": self.tag}

    async def _call_s3(self, method, Range, **options):
        self.count += 1
        self.options = options
        first, last = Range.removeprefix("bytes=").split("-")
        begin = int(first) if first else max(len(DATA) - int(last), 0)
        end = int(last) + 1 if first else len(DATA)
        begin, end, said = self.lie(self.count, begin, end)
        return {
            "ETag": self.tag, "ContentLength": end - begin, "Body": Body(self, DATA[begin:end]),
            **({} if said is None else {"ContentRange": said}),
        }  # fmt: skip


class Body:
    def __init__(self, store, data):
        self.store, self.data = store, data

    async def read(self, size):
        piece, self.data = self.data[:size], self.data[size:]
        self.store.received += len(piece)
        return piece

    def close(self):
        pass


def span(count, begin, end, more=0):
    """A store that tells the truth."""
    return begin, end, f"bytes {begin}-{end - 1}/{len(DATA) + more}"


def later(lie):
    """A store whose first answer is right."""
    return lambda count, begin, end: (
        span(count, begin, end) if count == 1 else lie(count, begin, end)
    )


def from_the_front(count, begin, end):
    """A store that takes the last N bytes for the first N."""
    return span(count, 0, end - begin) if count == 1 else span(count, begin, end)


def whole(count, begin, end):
    return 0, len(DATA), None


WRONG = {
    "another range": (lambda count, begin, end: span(count, begin - 64, end - 64), "another range"),
    "fewer bytes than said": (
        lambda c, begin, end: (begin, end - 9, span(c, begin, end)[2]),
        r"the answer has \d+ of \d+ bytes",
    ),
    "another size": (lambda count, begin, end: span(count, begin, end, 1), "replaced|bytes"),
    "no range": (whole, "ranges of bytes"),
    "nonsense": (lambda count, begin, end: (begin, end, "bytes */*"), "without saying which"),
}


@each_row("is_later", [False, True])
@each_row("name", WRONG)
def test_a_store_that_lies(monkeypatch, name, is_later):
    """Bytes of another place are an error of the request that brought them, and not received."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.0)
    lie, message = WRONG[name]
    store = LyingS3(later(lie) if is_later else lie)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (store, "bucket/a.npz"))
    with pytest.raises((OSError, npzkit.NpzkitError), match=message):
        npzkit.open("s3://bucket/a.npz")["w3"]
    if name in ("another range", "no range"):
        assert store.received <= TAIL_SIZE


def test_an_object_of_s3_whose_tag_is_missing_later(monkeypatch):
    """An answer that does not say its version may be of another object."""
    store = LyingS3(span)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (store, "bucket/a.npz"))
    with npzkit.open("s3://bucket/a.npz") as npz:
        lazy = npz.lazy("w1")
        np.testing.assert_array_equal(lazy[:3], ARRAYS["w1"][:3])
        store.tag = ""
        with pytest.raises(StaleArchiveError, match="no longer says"):
            lazy[5_000:5_003]
        store.tag = '"two"'
        with pytest.raises(StaleArchiveError, match="replaced"):
            lazy[5_000:5_003]


@pytest.mark.parametrize("tag", ['"one"', 'W/"one"', ""])
def test_which_condition_s3_is_asked_for(monkeypatch, tag):
    """A strong ETag is one. A weak one, and none, cannot be."""
    store = LyingS3(span)
    store.tag = tag
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (store, "bucket/a.npz"))
    with npzkit.open("s3://bucket/a.npz") as npz:
        assert store.count == 1
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
    assert store.options.get("IfMatch", "") == (tag if tag.startswith('"') else "")
    assert ("IfMatch" in store.options) is tag.startswith('"')


def test_a_version_in_the_url_of_s3(monkeypatch):
    """Each request is for it."""
    store = LyingS3(span)
    store.version_id = "three"
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (store, "bucket/a.npz"))
    with npzkit.open("s3://bucket/a.npz") as npz:
        assert store.options["VersionId"] == "three"
        npz["w3"]
        assert store.options["VersionId"] == "three"


def refusing(status, number=1):
    """A store that answers one request with an error of botocore."""

    class ClientError(Exception):
        response = {"ResponseMetadata": {"HTTPStatusCode": status}}  # noqa: RUF012 - as botocore's

    def refuse(count, begin, end):
        if count == number:
            raise OSError("refused") from ClientError()
        return span(count, begin, end)

    return LyingS3(refuse)


@pytest.mark.parametrize(("status", "kind"), [(403, PermissionError), (404, FileNotFoundError)])
def test_a_store_that_refuses_everything(monkeypatch, status, kind):
    """It is not asked again."""
    store = refusing(status)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (store, "bucket/a.npz"))
    monkeypatch.delattr(LyingS3, "info")
    with pytest.raises(kind):
        npzkit.open("s3://bucket/a.npz")
    assert store.count == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(412, StaleArchiveError), (416, StaleArchiveError), (403, PermissionError)],
)
def test_a_store_that_refuses_a_later_request(monkeypatch, status, kind):
    """Its condition, or its range, fits no other object; a refused access is no replacement."""
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (refusing(status, 2), "bucket/a.npz"))
    with npzkit.open("s3://bucket/a.npz") as npz, pytest.raises(kind):
        npz["w3"]


@pytest.mark.parametrize("status", [416, 501])
def test_a_store_that_refuses_to_count_from_the_end(monkeypatch, status):
    """The size is asked for. If there are no bytes, the refusal meant that."""
    store = refusing(status)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (store, "bucket/a.npz"))
    with npzkit.open("s3://bucket/a.npz") as npz:
        check_reads(npz)
        store.tag = '"two"'
        with pytest.raises(StaleArchiveError):
            npz["w3"]
    store.count, store.size = 0, 0
    with pytest.raises(ZipFormatError, match="empty"):
        npzkit.open("s3://bucket/a.npz")


def test_a_store_that_counts_only_from_the_front(monkeypatch):
    """The tail is asked for by its offsets then."""
    store = LyingS3(from_the_front)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (store, "bucket/a.npz"))
    with npzkit.open("s3://bucket/a.npz") as npz:
        assert store.count == 2
        check_reads(npz)


# -- S3 ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3():
    """Options for a server whose bucket, named data, has an archive."""
    with s3_server() as options:
        fsspec.filesystem("s3", **options).pipe("data/a.npz", DATA)
        yield options


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_an_endpoint_that_refuses_connections_is_named_at_once(monkeypatch):
    """botocore's own attempts would take half a minute, in silence."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    monkeypatch.setattr("npzkit.stores.retries.FIRST_DELAY", 0)
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "k", "secret": "s"}
    for use in (
        lambda: npzkit.open_many("s3://bucket/*.npz", storage_options=options),
        lambda: npzkit.open("s3://bucket/a.npz", storage_options=options),
        lambda: npzkit.save("s3://bucket/a.npz", {"x": [1]}, storage_options=options),
    ):
        start = time.monotonic()
        with pytest.raises(OSError, match=r"s3://bucket/.*http://127\.0\.0\.1:9"):
            use()
        assert time.monotonic() - start < 5


@pytest.fixture
def calls(monkeypatch):
    """The requests that s3fs makes: method and range."""
    import s3fs

    made = []
    call = s3fs.S3FileSystem._call_s3

    async def counted(self, method, *args, **options):
        made.append((method, options.get("Range")))
        return await call(self, method, *args, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    return made


@needs_s3
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
class TestS3:
    """Objects on a real server of S3."""

    URL = "s3://data/a.npz"

    def test_archives_of_a_bucket(self, s3, calls):
        """One request lists all that is below a prefix, in a second the bucket itself."""
        fs = fsspec.filesystem("s3", **s3)
        for name in ("a.npz", "deep/er/a.npz"):
            fs.pipe(f"data/listed/{name}", DATA)
        calls.clear()
        find = partial(find_archives, storage_options=s3)
        assert find("s3://data/listed/", recursive=True) == [
            "s3://data/listed/a.npz", "s3://data/listed/deep/er/a.npz"
        ]  # fmt: skip
        assert len(calls) == 1
        assert find("s3://data/listed/") == find("s3://data/listed") == ["s3://data/listed/a.npz"]
        assert find("s3://data/listed/deep/", recursive=True) == ["s3://data/listed/deep/er/a.npz"]
        assert find("s3://data/none") == ["s3://data/none"]
        assert self.URL in find("s3://data") == find("s3://data/")

    def test_an_object_of_many_parts(self, s3):
        """A multipart upload has an ETag of another form."""
        array = np.arange(1_500_000)
        data = packed({"a": array})
        fs = fsspec.filesystem("s3", **s3)
        with fs.open("data/parts.npz", "wb", block_size=5 << 20) as file:
            file.write(data)
        with npzkit.open("s3://data/parts.npz", storage_options=s3) as npz:
            assert "-" in npz._lend_source().version.tag
            np.testing.assert_array_equal(npz["a"], array)


def test_a_forked_child_has_its_own_store(memory, monkeypatch):
    """A file system of the parent is not used, because its thread is not in the child."""
    store = FsspecStore(memory, {})
    before = store.file_system
    monkeypatch.setattr(store, "_process", -1)
    store.file_system
    assert store._process == os.getpid()
    assert type(store._fs) is type(before)


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
@pytest.mark.parametrize("place", ["fsspec.core.url_to_fs", "{store}.cat_file", "{store}.info"])
def test_too_little_memory_is_no_error_of_the_store(monkeypatch, error, place):
    """What Python lacks while a store is opened or read is raised as it is."""
    url = "memory://too-little-memory/a.npz"
    npzkit.save(url, {"x": np.zeros(3)})

    def fail(*args, **options):
        raise error

    store = "fsspec.implementations.memory.MemoryFileSystem"
    monkeypatch.setattr(place.format(store=store), fail)
    with pytest.raises(error):
        npzkit.open(url)
