"""Archives behind a URL: the right data, by as few requests as it takes."""

from __future__ import annotations

import gc
import io
import warnings

import npzkit
import numpy as np
import pytest
from archives import packed
from kept_connections import idle
from npzkit.codecs.coding import CHECKED_SIZE
from npzkit.files import request_sizes
from range_server import RangeServer

KIB, MIB = 1 << 10, 1 << 20
OPENING = 65 * KIB
"""Most bytes that opening a small directory takes."""
BESIDE = 4 * KIB
"""Most bytes that one array takes beside its own."""


@pytest.fixture
def server():
    with RangeServer().running() as server:
        yield server


def numbers(count, seed=0):
    return np.random.default_rng(seed).random(count)


@pytest.fixture
def many(server):
    """The URL of 40 arrays of 64 KiB, and the arrays."""
    arrays = {f"layer{i}/w": numbers(8 * KIB, i) for i in range(40)}
    return server.put(packed(arrays, metadata={"step": 7})), arrays


def check_same(found, expected):
    assert list(found) == list(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array)


# -- requests and bytes, which are exact ------------------------------------


def test_opening_is_one_request(server, many):
    """The end of the archive brings its size, its version and its directory."""
    url, arrays = many
    with npzkit.open(url) as npz:
        assert server.count == 1
        assert server.size <= OPENING
        assert server.requests[0].headers["accept-encoding"] == "identity"
        assert list(npz) == list(arrays)
        assert npz.metadata == {"npzkit.tree": ["flat"], "step": 7}
        assert repr(npz).startswith(f"NpzFile {url!r} with keys: ")
    assert server.count == 1


def test_opening_a_long_directory_is_two_requests(server):
    """What 65 KiB do not hold is fetched once, with the array index in front of it."""
    url = server.put(packed({f"layer{i}/weights": np.zeros(i % 60) for i in range(2500)}))
    with npzkit.open(url) as npz:
        assert server.count == 2
        assert npz.info("layer7/weights").shape == (7,)
        assert len(npz.summary().splitlines()) > 2500
    assert server.count == 2


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [1, 50, 10_000])
def test_listing_ten_thousand_arrays_makes_no_request(server, shapes):
    """Shapes and dtypes come with the directory, however many different ones there are."""
    arrays = {f"{i}": np.zeros((0, i % shapes), np.uint8) for i in range(10_000)}
    url = server.put(packed(arrays))
    with npzkit.open(url) as npz:
        server.forget()
        assert all(npz.info(key).shape == (0, int(key) % shapes) for key in npz)
        assert npz.lazy("9999").shape == (0, 9999 % shapes)
        npz.summary()
    assert server.count == 0


@pytest.mark.slow
def test_listing_archives_of_other_programs(server):
    """Without an index, headers are fetched together, ten requests at a time."""
    stream = io.BytesIO()
    np.savez(stream, **{f"a{i}": np.full(i * 30_000, i, "u1") for i in range(30)})
    with npzkit.open(server.put(stream.getvalue())) as npz:
        server.forget()
        server.delay = 0.1
        assert [npz.info(key).shape for key in npz] == [(i * 30_000,) for i in range(30)]
        npz.summary()
        assert server.count <= 8 + 30
        assert server.most_under_way > 2
        assert server.size <= 200 * KIB


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("is_copied", [False, True])
def test_listing_an_upload_of_few_arrays_makes_no_request(
    server, tmp_path, count, compression, is_copied
):
    """An upload has an array index from its first array on, and so has a copy of a file."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    arrays = {f"w{i}": numbers(40 * KIB, i) for i in range(count)}
    url = "memory://few/a.npz"
    if is_copied:
        npzkit.save(tmp_path / "a.npz", arrays, compression=compression)
        npzkit.repack(tmp_path / "a.npz", url)
    else:
        npzkit.save(url, arrays, compression=compression)
    with npzkit.open(server.put(fsspec.filesystem("memory").cat("/few/a.npz"))) as npz:
        server.forget()
        assert [npz.info(key).shape for key in npz] == [(40 * KIB,)] * count
        assert all(npz.info(key).seekable for key in npz)
        assert npz.lazy("w0").shape == (40 * KIB,)
        npz.summary()
        assert server.count == 0
        np.testing.assert_array_equal(npz["w0"], arrays["w0"])
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_listing_few_arrays_takes_the_time_of_one_request(server, save):
    """Without an index, the headers of up to ten arrays are fetched with the first one's."""
    stream, arrays = io.BytesIO(), {f"w{i}": numbers(40 * KIB, i) for i in range(3)}
    save(stream, **arrays)
    with npzkit.open(server.put(stream.getvalue())) as npz:
        server.forget()
        server.delay = 0.2
        assert npz.info("w0").shape == (40 * KIB,)
        assert 1 <= server.count <= 4
        assert server.most_under_way == server.count
        server.forget()
        assert [npz.info(key).shape for key in npz] == [(40 * KIB,)] * 3
        npz.summary()
    assert server.count == 0


def test_one_array_is_one_request(server, many):
    """Both headers and the data are one range."""
    url, arrays = many
    with npzkit.open(url) as npz:
        server.forget()
        key = "layer9/w"
        np.testing.assert_array_equal(npz[key], arrays[key])
    assert server.count == 1
    assert server.size <= arrays[key].nbytes + BESIDE


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("size", [10 * KIB, 100 * KIB, 300 * KIB])
def test_one_array_of_any_kind_is_one_request(server, compression, size):
    """A deflated array comes with the list of its chunks."""
    arrays = {"a": numbers(size, 1), "b": numbers(size, 2), "c": numbers(20 * KIB, 3), "d": 1}
    data = packed(arrays, compression=compression)
    with npzkit.open(server.put(data)) as npz:
        server.forget()
        np.testing.assert_array_equal(npz["b"], arrays["b"])
        taken = npz.info("b").compressed_size
    assert server.count == 1
    assert server.size <= taken + BESIDE


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_one_array_of_numpy_is_one_request(server, save):
    """Archives without an array index need no more."""
    arrays = {"a": numbers(20 * KIB, 1), "b": numbers(20 * KIB, 2)}
    stream = io.BytesIO()
    save(stream, **arrays)
    with npzkit.open(server.put(stream.getvalue())) as npz:
        server.forget()
        np.testing.assert_array_equal(npz["a"], arrays["a"])
        assert server.count == 1
        assert server.size <= arrays["a"].nbytes + BESIDE


def test_rows_of_a_stored_array(server):
    """The headers are one request, rows are one each, to the ends of their chunks.

    The list of the chunks came with the archive's end.
    """
    array = numbers(100 * KIB).reshape(1024, -1)
    with npzkit.open(server.put(packed(dict.fromkeys("abcd", array)))) as npz:
        server.forget()
        lazy = npz.lazy("a")
        assert lazy.shape == array.shape
        assert server.count == 0
        np.testing.assert_array_equal(lazy[100:110], array[100:110])
        assert server.count == 2
        np.testing.assert_array_equal(lazy[500:510], array[500:510])
    assert server.count == 3
    assert server.size <= 2 * (array[:10].nbytes + 2 * CHECKED_SIZE) + BESIDE


@pytest.mark.slow
@pytest.mark.parametrize("index", [slice(None, None, 3), [0, 2, 9]])
def test_rows_that_lie_apart(server, index):
    """Rows with much between them are fetched at the same time, and what lies between is not."""
    array = np.arange(10 * 256 * KIB, dtype="u8").reshape(10, -1)
    with npzkit.open(server.put(packed(dict.fromkeys("abcd", array)))) as npz:
        lazy = npz.lazy("b")
        lazy[0, :1]
        server.forget()
        server.together = 2
        np.testing.assert_array_equal(lazy[index, :10], array[index, :10])
        assert server.count == len(array[index])
        assert server.most_under_way > 1
        assert server.size == CHECKED_SIZE * len(array[index])


def test_rows_of_a_deflated_array(server):
    """The headers are one request, and the chunks another."""
    array = np.arange(4000 * 100).reshape(4000, -1)
    arrays = {"a": array, "b": numbers(20 * KIB), "c": 1, "d": 2}
    data = packed(arrays, compression="deflated")
    with npzkit.open(server.put(data)) as npz:
        server.forget()
        np.testing.assert_array_equal(npz.lazy("a")[2000:2010], array[2000:2010])
        assert server.count <= 2
        chunk = npz.info("a").compressed_size * (256 * KIB) // array.nbytes
        assert server.size <= 3 * chunk + BESIDE
        np.testing.assert_array_equal(npz.lazy("a")[2001:2003], array[2001:2003])
        assert server.count <= 2


def test_all_arrays_are_joined_requests(server, many):
    """Neighbours share requests, and nothing is fetched twice."""
    url, arrays = many
    with npzkit.open(url) as npz:
        server.forget()
        check_same(npz.load_all(), arrays)
        assert server.count == 1
        assert server.size <= 1.05 * len(server.files["/a.npz"])
        server.forget()
        assert npz.verify().ok
        assert server.count == 1
        assert server.size <= 1.05 * len(server.files["/a.npz"])


def test_some_arrays_skip_what_lies_between(server, many):
    """Bytes of other arrays are not fetched, except for small gaps."""
    url, arrays = many
    chosen = ["layer3/w", "layer4/w", "layer20/w"]
    with npzkit.open(url) as npz:
        server.forget()
        found = npz.load_all(chosen)
    check_same(found, {key: arrays[key] for key in chosen})
    assert server.count == 2
    assert server.size <= 1.05 * sum(array.nbytes for array in found.values()) + BESIDE


@pytest.mark.slow
def test_large_arrays_are_pieces_under_way_together(server):
    """All requests for an array are under way together; each has at most 16 MiB."""
    array = np.arange(5 * MIB)
    server.delay = 0.1
    with npzkit.open(server.put(packed({"a": array}))) as npz:
        for read in (lambda: npz["a"], lambda: npz.load_all()["a"], lambda: npz.lazy("a")[:]):
            server.forget()
            np.testing.assert_array_equal(read(), array)
            assert 3 <= server.count <= 11
            assert max(request.size for request in server.requests) <= 16 * MIB
            assert server.size <= 1.05 * array.nbytes
            assert 2 <= server.most_under_way <= 10
        server.forget()
        assert npz.verify().ok
        assert server.size <= 1.05 * array.nbytes
        server.forget()
        with npz.stream("a") as stream:
            assert len(stream.read(1000)) == 1000
        assert server.size <= 3 * MIB


def test_memory_is_bounded_while_many_are_read(server, monkeypatch):
    """Groups of neighbours are fetched one after the other."""
    monkeypatch.setattr(request_sizes, "_LEAST_SIZE", 200 * KIB)
    arrays = {f"w{i}": numbers(8 * KIB, i) for i in range(12)}
    for compression in ("stored", "deflated"):
        data = packed(arrays, compression=compression)
        with npzkit.open(server.put(data)) as npz:
            server.forget()
            check_same(npz.load_all(), arrays)
            assert 4 <= server.count <= 12
            assert npz.verify().ok
            assert server.size <= 2.1 * len(data)


def test_a_stream_is_fetched_by_growing_pieces(server, monkeypatch):
    """A reader of the beginning takes little, and a reader of all makes few requests."""
    array = numbers(700 * KIB)
    with npzkit.open(server.put(packed({"a": array}, compression="deflated"))) as npz:
        server.forget()
        with npz.stream("a") as stream:
            stream.read(16)
            assert server.size <= MIB + BESIDE
            stream.seekable()
            while stream.read(MIB):
                pass
        assert server.count <= 4


# -- what else can be done with one -----------------------------------------


@pytest.mark.slow
def test_every_way_to_read(server, many, tmp_path):
    """Methods of an archive, and functions that take a path, take URLs."""
    url, arrays = many
    key = "layer1/w"
    with npzkit.open(url) as npz:
        out = np.empty_like(arrays[key])
        assert npz.read(key, out=out) is out
        np.testing.assert_array_equal(out, arrays[key])
        np.testing.assert_array_equal(npz.lazy(key).read(), arrays[key])
        np.testing.assert_array_equal(npz.lazy(key)[::1000], arrays[key][::1000])
        assert npz.zip.namelist()[0] == "layer0/w.npy"
        assert npz.archive_info().member_count == len(arrays)
        assert npz.archive_info().path == url
        assert npz.fid is None
    with npzkit.load(url) as npz:
        np.testing.assert_array_equal(npz[key], arrays[key])
    assert npzkit.verify(url).ok
    assert npzkit.verify(url, [key]).ok
    npzkit.repack(url, tmp_path / "copy.npz")
    assert npzkit.repair(url, tmp_path / "saved.npz").kept == tuple(arrays)
    npzkit.convert(url, tmp_path / "arrays.h5")
    tree = npzkit.load_tree(url)
    np.testing.assert_array_equal(tree[key], arrays[key])
    for name in ("copy.npz", "saved.npz"):
        with npzkit.open(tmp_path / name) as npz:
            check_same(npz.load_all(), arrays)
            assert npz.metadata["step"] == 7


def test_repacking_fetches_everything_once(server, many, tmp_path):
    """A copy takes the bytes of the archive, in few requests."""
    url, _ = many
    server.forget()
    npzkit.repack(url, tmp_path / "copy.npz")
    assert server.count <= 4
    assert server.size <= 1.05 * len(server.files["/a.npz"]) + OPENING


def test_load_reads_other_files_of_numpy(server):
    """np.load's drop-in also reads an .npy file behind a URL."""
    stream = io.BytesIO()
    np.save(stream, np.arange(5))
    url = server.put(stream.getvalue(), "/a.npy")
    np.testing.assert_array_equal(npzkit.load(url), np.arange(5))


@pytest.mark.parametrize(
    "use",
    [
        lambda url, tmp: npzkit.open(url, mmap_mode="r+"),
        lambda url, tmp: npzkit.open(url, mmap_mode="r"),
        lambda url, tmp: npzkit.load(url, mmap_mode="r"),
        lambda url, tmp: npzkit.repair(url),
        lambda url, tmp: npzkit.repack(url),
    ],
)
def test_what_needs_a_local_file_is_refused_before_any_request(server, many, use, tmp_path):
    """The error says what to do instead."""
    url, _ = many
    with pytest.raises(
        npzkit.errors.UnsupportedError, match=r"(store|servers) .*(Read|Pass|download|Write)"
    ):
        use(url, tmp_path)
    assert server.count == 0


def test_maps_are_refused_without_a_request(server, many):
    """An open archive does not ask the server first."""
    url, _ = many
    with npzkit.open(url) as npz:
        server.forget()
        with pytest.raises(npzkit.errors.UnsupportedError, match="mapped"):
            npz.memmap("layer1/w", mode="r+")
    assert server.count == 0


def test_torn_and_damaged_archives(server):
    """What is wrong with a file is said of an object too."""
    data = packed({"a": numbers(20 * KIB), "b": numbers(20 * KIB)})
    with pytest.raises(npzkit.errors.ZipFormatError, match="cut off"):
        npzkit.open(server.put(data[:-100]))
    with (
        pytest.warns(npzkit.errors.TornArchiveWarning),
        npzkit.open(server.put(data + data[:1000])) as npz,
    ):
        assert len(npz) == 2
    with pytest.raises(npzkit.errors.ZipFormatError, match="empty"):
        npzkit.open(server.put(b""))
    with pytest.raises(npzkit.errors.ZipFormatError, match="HDF5"):
        npzkit.open(server.put(b"\x89HDF" + bytes(300 * KIB)))
    flipped = bytearray(data)
    flipped[5000] ^= 1
    with npzkit.open(server.put(bytes(flipped))) as npz:
        with pytest.raises(npzkit.errors.ChecksumError, match="'a'"):
            npz["a"]
        assert not npz.verify().ok
    server.forget()
    with pytest.raises(npzkit.errors.ZipFormatError):
        npzkit.open(server.put(bytes(10 * MIB)))
    assert server.size <= 300 * KIB


def test_bytes_before_the_first_member_are_found(server):
    """The first bytes are only fetched if no member of the directory begins there."""
    data = packed({"a": numbers(20 * KIB), "b": numbers(20 * KIB)})
    with pytest.raises(npzkit.errors.ZipFormatError):
        npzkit.open(server.put(b"junk" + data))
    with (
        npzkit.open(server.put(b"junk" + data[4:])) as npz,
        pytest.raises(npzkit.errors.ZipFormatError),
    ):
        npz["a"]


def test_a_header_with_a_long_extra_field(server):
    """Other programs' padding costs a second request, never wrong data."""
    array = numbers(20 * KIB)
    stream = io.BytesIO()
    npzkit.save(stream, {"a": array, "b": array})
    attrs = {"note": "x" * 5000}
    with npzkit.NpzWriter(stream, mode="a") as writer:
        writer.add("c", array, attrs=attrs)
        writer.add("d", array)
    with npzkit.open(server.put(stream.getvalue())) as npz:
        np.testing.assert_array_equal(npz["c"], array)
        assert npz.info("c").attrs == attrs


def test_options_for_something_else_are_refused(tmp_path):
    """storage_options of a path would be ignored in silence."""
    with pytest.raises(ValueError, match="not a URL"):
        npzkit.open(tmp_path / "a.npz", storage_options={"anon": True})
    with pytest.raises(TypeError, match="dict"):
        npzkit.open("s3://a/b", storage_options=["anon"])


def test_a_closed_archive_asks_nothing(server, many):
    """Reads after close() are errors without a request."""
    url, _ = many
    npz = npzkit.open(url)
    lazy = npz.lazy("layer1/w")
    npz.close()
    npz.close()
    server.forget()
    for use in (lambda: npz["layer1/w"], npz.load_all, npz.verify, lambda: lazy[:3]):
        with pytest.raises(npzkit.errors.ClosedArchiveError):
            use()
    assert server.count == 0


def test_local_urls_are_paths(tmp_path):
    """file:// reads the file itself, and it can be mapped."""
    path = tmp_path / "a file.npz"
    npzkit.save(path, {"a": np.arange(5)})
    for url in (path.as_uri(), f"file://{path}"):
        with npzkit.open(url, mmap_mode="r") as npz:
            assert isinstance(npz["a"], np.memmap)


# -- archives that are dropped ----------------------------------------------


def test_an_archive_in_a_cycle_closes_its_connections(server, many):
    """An archive that is collected with what refers to it leaves no socket that warns."""
    url, arrays = many
    npz = npzkit.open(url)
    npz.read(next(iter(arrays)))
    (sock,) = idle(server)
    gc.collect()
    # As frames of a traceback do, this refers to both. The socket is collected first now.
    cycle = [npz, sock]
    cycle.append(cycle)
    del npz, sock
    gc.collect()
    del cycle
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert told == []


@pytest.mark.remedy("Pass a path or a URL as output: what is sound is saved there.")
def test_a_repair_in_a_store_needs_an_output(server, many, tmp_path):
    """What is sound is saved elsewhere."""
    url, arrays = many
    with pytest.raises(npzkit.errors.UnsupportedError, match="repaired in place"):
        npzkit.repair(url)
    npzkit.repair(url, tmp_path / "a.npz")
    with npzkit.open(tmp_path / "a.npz") as npz:
        check_same(npz, arrays)
