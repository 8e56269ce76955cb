"""Two reads of one open archive are of one version, in every kind of store."""

from __future__ import annotations

import datetime
import io
import itertools
import pickle
import tarfile
import threading
import warnings
import zipfile
from types import SimpleNamespace

import npzkit
import numpy as np
import pytest
from archives import packed
from ftp_server import FtpServer
from npzkit.errors import (
    ChecksumError,
    StaleArchiveError,
    UnsupportedError,
    UnversionedFileWarning,
    ZipFormatError,
)
from npzkit.stores import http_store, retries
from npzkit.stores.fsspec_store import FsspecStore, version_in
from npzkit.stores.versions import Version, parse_content_range
from range_server import RangeServer, good

ARRAYS = {f"w{i}": np.random.default_rng(i).random(16_384) for i in range(4)}
DATA = packed(ARRAYS)
OTHER = packed({key: array + 1 for key, array in ARRAYS.items()})
"""Another archive of the same size."""
LATER = "Sun, 22 Nov 2026 10:00:01 GMT"
UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
"""Older versions of fsspec do not close the file of a cache in which they find an archive."""


def check_reads(npz):
    """Read parts, an array, and all of them."""
    np.testing.assert_array_equal(npz.lazy("w1")[5:9], ARRAYS["w1"][5:9])
    np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
    found = npz.load_all()
    assert all(np.array_equal(found[key], ARRAYS[key]) for key in ARRAYS)


def check_stale(url, replace, match=None):
    """Read a part, replace the file, and read another part of the same array."""
    with npzkit.open(url) as npz:
        lazy = npz.lazy("w1")
        np.testing.assert_array_equal(lazy[:3], ARRAYS["w1"][:3])
        replace()
        with pytest.raises(StaleArchiveError, match=match):
            lazy[9_000:9_003]
        with pytest.raises(StaleArchiveError, match=match):
            npz["w2"]


# -- HTTP -------------------------------------------------------------------


@pytest.fixture
def server():
    with RangeServer().running() as server:
        server.put(DATA)
        yield server


@pytest.fixture
def waits(monkeypatch):
    """How long the store waited. Its seconds pass at once."""
    waits = []
    monkeypatch.setattr(http_store, "time", SimpleNamespace(sleep=waits.append))
    return waits


def ignoring_conditions(handler, server):
    """Answer as a server that does not know If-Match."""
    del handler.headers["If-Match"]
    good(handler, server)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (('"one"', ""), ("", "")),
        (('"one"', ""), ("", LATER)),
        (('"one"', ""), ('W/"one"', "")),
        (("", "Sun, 22 Nov 2026 10:00:00 GMT"), ("", "")),
        (("", "Sun, 22 Nov 2026 10:00:00 GMT"), ('"one"', "")),
        (('W/"one"', ""), ("", "")),
        (('W/"one"', "Sun, 22 Nov 2026 10:00:00 GMT"), ('W/"one"', LATER)),
    ],
)
def test_a_server_that_no_longer_says_which_version_it_sends(server, before, after):
    """An ETag or time that was there at the open and is missing later, or of another kind, is stale."""
    server.answer = ignoring_conditions
    server.etag, server.modified = before

    def replace():
        server.put(OTHER)
        server.etag, server.modified = after

    check_stale(server.url(), replace)


def test_a_time_and_its_later_tag(server):
    """A server may send more than at the open: what it sent then is compared."""
    server.etag = ""
    with npzkit.open(server.url()) as npz:
        server.etag = '"one"'
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
        server.modified = LATER
        with pytest.raises(StaleArchiveError):
            npz["w2"]


def test_a_weak_tag_that_becomes_strong(server):
    """Apache sends a weak ETag while a file is new, and later the same one as a strong one."""
    server.etag = 'W/"one"'
    with npzkit.open(server.url()) as npz:
        server.etag = '"one"'
        check_reads(npz)


def test_a_server_without_tag_and_time(server, waits):
    """Parts that nothing can check are read with one warning; complete arrays have a CRC-32."""
    server.etag = server.modified = ""
    with npzkit.open(server.url()) as npz:
        found = npz.load_all()
        np.testing.assert_array_equal(found["w1"], ARRAYS["w1"])
        assert not {"if-match", "if-unmodified-since"} & server.requests[-1].headers.keys()
        with pytest.warns(UnversionedFileWarning, match=f"{server.url()}: .*download") as caught:
            np.testing.assert_array_equal(npz.lazy("w1")[:3], ARRAYS["w1"][:3])
            npz.lazy("w2")[:3]
        assert len(caught) == 1
        assert caught[0].filename == __file__
        server.put(OTHER)
        with pytest.raises(ChecksumError):
            npz["w3"]
    assert not waits


def test_a_small_archive_needs_no_version(server):
    """What came with the first answer is of one version: no warning, and no wait."""
    server.etag = server.modified = ""
    url = server.put(packed({"a": np.arange(9)}))
    with npzkit.open(url) as npz:
        assert npz.lazy("a")[3] == 3
        assert server.count == 1


def dated(date):
    """Answer at this time; a file that was modified then is new."""

    def answer(handler, server):
        handler.date_time_string = lambda: date[0]
        good(handler, server)

    return answer


def test_a_file_of_this_second(server, monkeypatch):
    """A time that the next version may have too does not count: the open waits for the next second."""
    date = [server.modified]
    waits = []

    def wait(seconds):
        waits.append(seconds)
        server.put(OTHER)
        date[0] = LATER

    monkeypatch.setattr(http_store, "time", SimpleNamespace(sleep=wait))
    server.etag, server.answer = "", dated(date)
    with npzkit.open(server.url()) as npz:
        assert waits == [1.0]
        np.testing.assert_array_equal(npz.lazy("w1")[:3], ARRAYS["w1"][:3] + 1)
        server.modified = LATER
        with pytest.raises(StaleArchiveError):
            npz.lazy("w1")[9_000]


def test_a_tag_is_enough_for_a_file_of_this_second(server, waits):
    """Servers that send an ETag, weak or strong, are not waited for."""
    server.answer = dated([server.modified])
    for server.etag in ('"one"', 'W/"one"'):
        with npzkit.open(server.url()) as npz:
            check_reads(npz)
    assert not waits


def test_a_tagged_file_of_this_second_can_be_pickled(server):
    """Its time is kept, because the tag tells its versions apart."""
    server.answer = dated([server.modified])
    with npzkit.open(server.url()) as npz:
        data = pickle.dumps(npz)
    server.answer = good
    with pickle.loads(data) as npz:
        check_reads(npz)


@pytest.mark.parametrize("time", ["", "now", "Sun, 22 Nov 99999 10:00:00 GMT", "0", "-1 -1"])
def test_times_that_are_none(server, waits, time):
    """What a server writes as a time is only compared, whatever it is."""
    server.modified, server.answer = time, dated([time])
    with npzkit.open(server.url()) as npz:
        check_reads(npz)
    assert not waits


def test_a_small_file_of_this_second(server, waits):
    """What came with the first answer is complete: there is nothing to wait for."""
    server.etag, server.answer = "", dated([server.modified])
    with npzkit.open(server.put(packed({"a": np.arange(9)}))) as npz:
        np.testing.assert_array_equal(npz["a"], np.arange(9))
    assert not waits


def test_a_tag_that_is_made_of_the_time(server, waits):
    """nginx makes its ETag of the time in seconds and the size, so a file of this second waits."""
    time = datetime.datetime(2026, 11, 22, 10, tzinfo=datetime.UTC).timestamp()
    date = [server.modified]
    server.etag, server.answer = f'"{int(time):x}-{len(DATA):x}"', dated(date)
    with npzkit.open(server.url()) as npz:
        assert waits == [1.0]
    date[0] = LATER
    with npzkit.open(server.url()) as npz:
        assert npz._lend_source().version == (len(DATA), server.etag, server.modified)
        check_reads(npz)
        # Replaced at the second of the open, it would have the same tag.
        date[0] = server.modified
        with pytest.raises(StaleArchiveError):
            npz["w2"]
    assert waits == [1.0]


def test_a_time_that_is_always_now(server, waits):
    """A time that is made for each answer is none."""
    server.etag, server.answer = "", dated([server.modified])
    with npzkit.open(server.url()) as npz:
        assert waits == [1.0]
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
        with pytest.warns(UnversionedFileWarning):
            npz.lazy("w1")[:3]


# -- stores of fsspec -------------------------------------------------------

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


def test_ftp():
    """The time of a file is compared, and commands of several threads do not mix."""
    with FtpServer().running() as server:
        for path in ("/a.npz", "/folder/a.npz"):
            server.files = {path: (DATA, "20261122100000")}
            with npzkit.open(server.url(path)) as npz:
                check_reads(npz)

            def replace(path=path):
                server.files[path] = OTHER, "20261122100001"

            check_stale(server.url(path), replace, "replaced")


MARKS = [
    ("ETag", "one", "two"),
    ("etag", "one", "two"),
    ("md5Hash", "one", "two"),
    ("generation", 1, 2),
    ("Content-MD5", "one", "two"),
    ("LastModified", "10:00", "10:01"),
    ("last_modified", "10:00", "10:01"),
    ("Last-Modified", "10:00", "10:01"),
    ("mtime", 10.0, 10.1),
    ("updated", "10:00", "10:01"),
    ("modify", "20261122100000", "20261122100001"),
    ("modificationTime", 1763805600000, 1763805600001),
    ("modified", "10:00", "10:01"),
]
"""What stores know of a file, before and after it is replaced."""


@pytest.fixture
def marked():
    """A store whose files have only the marks that a test gives them."""

    class Marked(type(fsspec.filesystem("memory"))):
        protocol = ("marked",)
        marks = {}  # noqa: RUF012 - of the test

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix("marked://").lstrip("/")

        def info(self, path, **options):
            info = super().info(path, **options)
            info.pop("created", None)
            return {**info, **self.marks}

    fsspec.register_implementation("marked", Marked, clobber=True)
    fs = fsspec.filesystem("marked")
    fs.pipe("/bucket/a.npz", DATA)
    yield fs
    fs.store.clear()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "before", "after"), MARKS, ids=[mark[0] for mark in MARKS])
def test_what_stores_call_a_version(marked, name, before, after):
    """Whatever a store calls it, a change of it is stale, and so is its absence."""
    type(marked).marks = {name: before}

    def replace(marks):
        marked.pipe("/bucket/a.npz", OTHER)
        type(marked).marks = marks

    check_stale("marked://bucket/a.npz", lambda: replace({name: after}), "replaced")
    marked.pipe("/bucket/a.npz", DATA)
    type(marked).marks = {name: before}
    check_stale("marked://bucket/a.npz", lambda: replace({}), "no longer says")


class Counting:
    """How many calls of a file system are under way at once: each waits for another one."""

    def __init__(self, cat_file, seconds):
        self.cat_file, self.seconds = cat_file, seconds
        self.barrier = threading.Barrier(2)
        self.met = 0

    def __call__(self, *args, **options):
        try:
            self.barrier.wait(self.seconds)
            self.met += 1
        except threading.BrokenBarrierError:
            self.barrier.reset()
        return self.cat_file(*args, **options)


@pytest.mark.parametrize("is_cachable", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
def test_file_systems_that_take_one_call_at_a_time(marked, monkeypatch, is_cachable, is_async):
    """Those that fsspec does not share do, unless they are asynchronous; others take several."""
    kind = type(marked)
    kind.marks = {"etag": "one"}
    monkeypatch.setattr(kind, "cachable", is_cachable)
    monkeypatch.setattr(kind, "async_impl", is_async)
    is_alone = not (is_cachable or is_async)
    with npzkit.open("marked://bucket/a.npz") as npz:
        counting = Counting(marked.cat_file, 0.1 if is_alone else 60)
        monkeypatch.setattr(kind, "cat_file", staticmethod(counting))
        threads = [threading.Thread(target=npz.read, args=[key]) for key in ("w0", "w1")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counting.met == (0 if is_alone else 2)


def test_a_store_without_versions(marked):
    """Parts are read with a warning."""
    type(marked).marks = {}
    with npzkit.open("marked://bucket/a.npz") as npz:
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
        with pytest.warns(UnversionedFileWarning, match="marked://bucket/a.npz"):
            npz.lazy("w1")[:3]


@pytest.mark.remedy("Download the file, and open the copy.")
def test_a_store_that_does_not_say_how_large_a_file_is(marked, tmp_path):
    """It is refused, because an archive is read from its end; a copy of it is read."""
    type(marked).marks = {"size": None}
    with pytest.raises(UnsupportedError, match="how large the object is"):
        npzkit.open("marked://bucket/a.npz")
    with fsspec.open("marked://bucket/a.npz") as file:
        (tmp_path / "copy.npz").write_bytes(file.read())
    with npzkit.open(tmp_path / "copy.npz") as npz:
        check_reads(npz)


def test_a_file_that_is_replaced_while_it_is_opened(marked, monkeypatch):
    """The end of the file and its version are of one file: the open is tried again."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)
    marks = [{"etag": "one"}, {"etag": "two"}]

    class Changing(type(marked)):
        @property
        def marks(self):
            return marks.pop(0) if len(marks) > 1 else marks[0]

    fsspec.register_implementation("marked", Changing, clobber=True)
    with npzkit.open("marked://bucket/a.npz") as npz:
        check_reads(npz)
    count = itertools.count()
    monkeypatch.setattr(Changing, "marks", property(lambda self: {"etag": next(count)}))
    with pytest.raises(OSError, match="4 attempts: the object is being replaced"):
        npzkit.open("marked://bucket/a.npz")


def test_the_end_of_a_file_that_is_short(marked, monkeypatch):
    """Fewer bytes than the file has from there on are not taken for its end."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.001)
    type(marked).marks = {"etag": "one"}
    cat_file = marked.cat_file
    monkeypatch.setattr(
        type(marked), "cat_file", lambda self, *args, **options: cat_file(*args, **options)[:-1]
    )
    with pytest.raises(OSError, match="4 attempts: the object is being replaced"):
        npzkit.open("marked://bucket/a.npz")


def test_small_and_empty_files_of_a_store(marked, monkeypatch):
    """A small file is its end, and an empty one is not read."""
    type(marked).marks = {"etag": "one"}
    marked.pipe("/bucket/small.npz", packed({"a": np.arange(9)}))
    with npzkit.open("marked://bucket/small.npz") as npz:
        np.testing.assert_array_equal(npz["a"], np.arange(9))
    marked.pipe("/bucket/empty.npz", b"")
    monkeypatch.setattr(type(marked), "cat_file", None)
    with pytest.raises(ZipFormatError, match="empty"):
        npzkit.open("marked://bucket/empty.npz")


def test_a_local_file_is_its_inode_and_both_of_its_times():
    """A file that keeps its size and modification time is another one all the same."""
    info = {"size": 9, "ino": 1, "mtime": 10.0, "created": 10.0}
    assert version_in(info) == Version(9, "1 10.0 10.0")
    for name in ("ino", "mtime", "created"):
        assert version_in(info).differs(version_in({**info, name: 11}))


def test_a_time_is_the_same_as_its_number():
    """Some stores list a time as one, and tell it as the other."""
    time = datetime.datetime(2026, 11, 22, 10, tzinfo=datetime.UTC)
    for mark in (time, time.timestamp()):
        assert version_in({"size": 9, "mtime": mark}) == Version(9, str(time.timestamp()))


# -- chains -----------------------------------------------------------------


def zipped(name, data):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), data)
    return stream.getvalue()


def tarred(name, data):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


CHAINS = {
    "zip": ("zip://a.npz::", lambda data: zipped("a.npz", data)),
    "tar": ("tar://a.npz::", lambda data: tarred("a.npz", data)),
    "zip in tar": (
        "zip://a.npz::tar://b.zip::",
        lambda data: tarred("b.zip", zipped("a.npz", data)),
    ),
}


@pytest.fixture(params=CHAINS)
def chain(request):
    """What stands before the outer file's URL, and what makes its bytes."""
    return CHAINS[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_local_file_in_a_chain(chain, tmp_path, is_renamed):
    """The outer file is compared, because the list of its members is the one of the open."""
    prefix, wrap = chain
    path = tmp_path / "outer"
    path.write_bytes(wrap(DATA))

    def replace():
        changed = tmp_path / "new" if is_renamed else path
        changed.write_bytes(wrap(OTHER))
        changed.replace(path)

    url = f"{prefix}file://{path}"
    with npzkit.open(url) as npz:
        check_reads(npz)
    check_stale(url, replace, "replaced")
    with npzkit.open(url) as npz:
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"] + 1)


def test_a_chain_whose_outer_file_does_not_exist(chain, marked):
    """The error names the chain."""
    url = f"{chain[0]}marked://bucket/nothing"
    with pytest.raises(FileNotFoundError, match=url):
        npzkit.open(url)


def test_an_object_in_a_chain(chain, marked):
    """The same holds for an outer file in a store, and its size and mark count."""
    prefix, wrap = chain
    url = f"{prefix}marked://bucket/outer"
    type(marked).marks = {"etag": "one"}
    marked.pipe("/bucket/outer", wrap(DATA))

    def replace():
        type(marked).marks = {"etag": "two"}

    check_stale(url, replace, "replaced")

    def grow():
        marked.pipe("/bucket/outer", wrap(DATA) + b"more")

    check_stale(url, grow, "replaced")
    type(marked).marks = {}
    with npzkit.open(url) as npz, pytest.warns(UnversionedFileWarning):
        npz.lazy("w1")[:3]


@UNCLOSED
def test_a_copy_in_a_chain(marked, tmp_path):
    """What simplecache downloaded stays as it is, so reads go on when the file is replaced."""
    marked.pipe("/bucket/outer", zipped("a.npz", DATA))
    type(marked).marks = {"etag": "one"}
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    url = "zip://a.npz::simplecache::marked://bucket/outer"
    with npzkit.open(url, storage_options=options) as npz:
        marked.pipe("/bucket/outer", zipped("a.npz", OTHER))
        type(marked).marks = {"etag": "two"}
        check_reads(npz)


@pytest.mark.slow
@UNCLOSED
@pytest.mark.parametrize(
    ("cache", "is_nested"),
    [("filecache", False), ("blockcache", False), ("cached", True), ("filecache", True)],
)
def test_a_cache_in_a_chain(cache, is_nested, tmp_path):
    """What a cache has of an older version is not used for the new one, neither parts nor all."""
    large = {key: np.tile(array, 16) for key, array in ARRAYS.items()}
    options = {"cache_storage": str(tmp_path)}
    prefix, wrap = "", bytes
    if is_nested:
        options, prefix = {cache: options}, "zip://b.npz::"

        def wrap(data):
            return zipped("b.npz", data)

    with FtpServer().running() as server:
        server.files["/a.npz"] = wrap(packed(large)), "20261122100000"
        url = f"{prefix}{cache}::{server.url('/a.npz')}"
        with npzkit.open(url, storage_options=options) as npz:
            lazy = npz.lazy("w1")
            np.testing.assert_array_equal(lazy[:3], large["w1"][:3])
            new = {key: array + 1 for key, array in large.items()}
            server.files["/a.npz"] = wrap(packed(new)), "20261122100001"
            with pytest.raises(StaleArchiveError):
                lazy[200_000:200_003]
        with npzkit.open(url, storage_options=options) as npz:
            for key, array in new.items():
                np.testing.assert_array_equal(npz.lazy(key)[:], array)


def test_options_of_caches_in_a_chain(marked, tmp_path):
    """Those of a cache that is left out go with it, and a cache of files may be told otherwise."""
    options = {"cache_storage": str(tmp_path), "marked": {"token": 1}}
    store = FsspecStore("blockcache::marked://bucket/a.npz", options)
    assert store.file_system.storage_options == {"token": 1}
    store = FsspecStore("filecache::marked://bucket/a.npz", options)
    assert store.file_system.check_files
    assert store.file_system.fs.storage_options == {"token": 1}
    store = FsspecStore("filecache::marked://bucket/a.npz", {"filecache": {"check_files": False}})
    assert not store.file_system.check_files


# -- the comparison ---------------------------------------------------------


def test_which_versions_are_the_same():
    """A strong tag decides alone; a weak one together with the time; a size never proves anything."""
    strong, weak = Version(9, '"a"', "then"), Version(9, 'W/"a"', "then")
    assert not strong.differs(strong._replace(modified="now"))
    assert strong.differs(weak)
    assert not weak.differs(strong)
    assert weak.differs(weak._replace(modified="now"))
    assert not Version(9).differs(strong)
    for version in (strong, weak, Version(9)):
        assert version.differs(version._replace(size=8))
    assert not Version(9).is_known


@pytest.mark.parametrize(
    "text",
    ["", "bytes 5-9", "bytes 5-9/*", "bytes 5-9/9", "bytes 6-5/9", "bytes 0-0/0", "bytes=0-1/2"],
)
def test_invalid_ranges(text):
    """A range ends after it begins, and before the object's end."""
    assert parse_content_range(text) is None


def test_what_a_stale_error_says():
    """Another size is a replacement; the same one, without a version, may be none."""
    opened = Version(9, '"a"')
    assert "replaced" in str(opened.changed())
    assert "replaced" in str(opened.changed(Version(8)))
    assert "replaced" in str(opened.changed(Version(9, '"b"')))
    assert "no longer says" in str(opened.changed(Version(9)))


def test_no_warning_for_what_is_versioned(server):
    """A server that sends an ETag or a time is never warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for server.etag in ('"one"', 'W/"one"', ""):
            with npzkit.open(server.url()) as npz:
                check_reads(npz)
