"""The lazy archive: a Mapping that reads on access, from anywhere, shared safely."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import re
import threading
import unicodedata
import zipfile
from collections.abc import Mapping
from pathlib import Path

import npzkit
import numpy as np
import pytest
from archives import same
from children import all_forked, read_rest
from counting import sizes_read
from faults import descriptor_count
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import (
    LimitExceededError,
    MemberNotFoundError,
    NotMappableError,
    PickleRefusedError,
)
from npzkit.files import disk
from strategies import any_arrays
from systems import READ

COMPRESSIONS = ["stored", "deflated"]


@pytest.fixture(params=["npzkit", "numpy", "numpy compressed"])
def anyones(request, tmp_path, arrays):
    """The same arrays as saved by npzkit and by numpy."""
    path = tmp_path / "all.npz"
    save = {"npzkit": npzkit.savez, "numpy": np.savez, "numpy compressed": np.savez_compressed}
    save[request.param](path, **arrays)
    return path


@pytest.mark.slow
def test_it_is_a_mapping(anyones, arrays):
    """Keys, lookup, membership and length are a dictionary's, suffix or not."""
    with npzkit.open(anyones) as npz:
        assert isinstance(npz, Mapping)
        assert list(npz) == npz.files == list(npz.keys()) == list(arrays)
        assert len(npz) == len(arrays)
        for key, array in arrays.items():
            assert key in npz
            assert key + ".npy" in npz
            for found in (
                npz[key],
                npz[key + ".npy"],
                npz.read(key, threads=1),
                npz.load_all()[key],
            ):
                assert same(found, array)
                assert found.flags.writeable
                assert found.flags.aligned
        assert npz.get("absent") is None
        assert "absent" not in npz
        assert 3 not in npz


@pytest.mark.parametrize("way", [npzkit.open, lambda path: npzkit.open_many([path], axis=None)])
def test_an_archive_equals_only_itself(path, way):
    """It is compared and hashed as a file is, and no array is read."""
    with way(path) as one, way(path) as other:
        assert one == one
        assert one != other
        assert [other, one].index(one) == 1
        assert {one: 1, other: 2}[one] == 1


def test_each_access_is_fresh(path):
    """What is done to one array reaches neither the file nor the next access."""
    with npzkit.open(path) as npz:
        first = npz["weights"]
        first[...] = 0
        assert npz["weights"].any()


def test_order_is_kept(anyones, arrays):
    """Fortran order comes back as Fortran order, C as C."""
    with npzkit.open(anyones) as npz:
        for key in ("fortran", "weights"):
            assert npz[key].flags.f_contiguous == np.asarray(arrays[key]).flags.f_contiguous


@pytest.mark.remedy("Existing ", " are strings.")
def test_missing_keys(path, arrays):
    """A missing key is a KeyError that names the file and a key like it."""
    with npzkit.open(path) as npz:
        with pytest.raises(KeyError, match="no array named 'weight'"):
            npz["weight"]
        with pytest.raises(MemberNotFoundError, match="Did you mean 'weights'"):
            npz.info("weight")
        with pytest.raises(KeyError, match=r"\(1, 2\)"):
            npz[1, 2]
        with pytest.raises(MemberNotFoundError) as caught:
            npz["nothing like it"]
        keys = re.findall("'(.+?)'", caught.value.remedy)
        assert len(keys) == 10
        assert all(same(npz[key], arrays[key]) for key in keys)


def test_attribute_access(path, arrays):
    """npz.f has the arrays as attributes, completes their names, and knows no others."""
    with npzkit.open(path) as npz:
        assert same(npz.f.weights, arrays["weights"])
        assert set(dir(npz.f)) == set(arrays)
        with pytest.raises(AttributeError, match="absent"):
            npz.f.absent
        assert npz._ipython_key_completions_() == npz.files


def test_attributes_of_h5py_and_zarr(path):
    """The error of `npz.attrs` says where notes are; other names get none."""
    with npzkit.open(path) as npz:
        with pytest.raises(AttributeError, match=r"attrs.*npz\.metadata.*info\(key\)\.attrs"):
            npz.attrs
        with pytest.raises(AttributeError, match=r"no attribute 'keyz'$"):
            npz.keyz
        assert not hasattr(npz, "attrs")


def test_read_into(path, arrays):
    """read(out=) fills memory of any layout, and refuses another shape or dtype."""
    with npzkit.open(path) as npz:
        for key in ("weights", "fortran", "big_endian", "scalar", "record"):
            array = np.asanyarray(arrays[key])
            for out in (
                np.zeros_like(array),
                np.zeros_like(array, order="F"),
                np.zeros_like(array, order="C"),
            ):
                assert npz.read(key, out=out) is out
                assert np.array_equal(out, array)
        strided = np.zeros((400, 600))[::2, ::2]
        assert same(npz.read("weights", out=strided), arrays["weights"])
        for out in (np.zeros((200, 301)), np.zeros((200, 300), "f4"), np.zeros(3)):
            with pytest.raises(ValueError, match="out must have shape"):
                npz.read("weights", out=out)
        frozen = np.zeros((200, 300))
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="writable"):
            npz.read("weights", out=frozen)


def test_load_all(path, arrays):
    """load_all keeps the order asked for, with any number of threads."""
    with npzkit.open(path) as npz:
        for threads in (1, 2, 5, None):
            assert list(npz.load_all(threads=threads)) == list(arrays)
            found = npz.load_all(["fortran", "weights.npy"], threads=threads)
            assert list(found) == ["fortran", "weights.npy"]
            assert same(found["weights.npy"], arrays["weights"])
        with pytest.raises(KeyError):
            npz.load_all(["absent"])
        with pytest.raises(ValueError, match="threads"):
            npz.load_all(threads=0)
        assert npz.load_all([]) == {}


def test_processors_are_not_counted_for_a_small_array(monkeypatch):
    """A small array needs no threads: the system is not asked for their number."""
    stream = io.BytesIO()
    npzkit.save(stream, {"small": np.arange(3), "large": np.zeros(1 << 17, "u1")})
    with npzkit.open(stream) as npz:
        with pytest.raises(ValueError, match="threads"):
            npz.read("small", threads=0)
        monkeypatch.setattr(os, "sched_getaffinity", None, raising=False)
        monkeypatch.setattr(os, "cpu_count", None)
        assert npz["small"].tolist() == [0, 1, 2]
        with pytest.raises(TypeError):
            npz["large"]


@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_large_arrays_in_blocks(tmp_path, compression, monkeypatch):
    """An array of many blocks is read whole by several threads, and its damage found."""
    monkeypatch.setattr("npzkit.files.block_reading.TASK_SIZE", 1 << 16)
    array = np.random.default_rng(1).integers(0, 9, 1_000_003)
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": array, "b": array[::-1]}, compression=compression)
    with npzkit.open(path) as npz:
        assert same(npz.load_all(threads=4)["b"], array[::-1])
        assert same(npz.read("a", threads=4), array)
        offset = npz.info("b").data_offset
    with open(path, "r+b") as file:
        file.seek(offset + 100_000)
        file.write(b"damaged!")
    with npzkit.open(path) as npz:
        assert same(npz.load_all(["a"])["a"], array)
        with pytest.raises((npzkit.errors.ChecksumError, npzkit.errors.ZipFormatError)) as caught:
            npz.load_all(threads=4)
        assert caught.value.key == "b"


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@given(any_arrays(), st.sampled_from([*COMPRESSIONS, "zstd"]))
def test_any_array_survives_an_archive(array, compression):
    """Whatever is saved comes back, by npzkit and by numpy, its member numpy's own bytes."""
    stream, expected = io.BytesIO(), io.BytesIO()
    npzkit.save(stream, {"a": array}, compression=compression)
    np.lib.format.write_array(expected, array)
    npz = npzkit.open(stream)
    assert npz.stream("a").read() == expected.getvalue()
    found = [npz["a"], npz.load_all()["a"]]
    if compression in COMPRESSIONS:
        with np.load(io.BytesIO(stream.getvalue())) as theirs:
            found.append(theirs["a"])
    assert all(same(each, array) for each in found)


def test_streams_interleave(path, arrays):
    """A member is a binary stream that any NPY reader takes; several do not disturb each other."""
    with npzkit.open(path) as npz:
        streams = {key: npz.stream(key) for key in arrays}
        halves = {key: stream.read(99) for key, stream in streams.items()}
        for key, array in arrays.items():
            data = halves[key] + streams[key].read()
            assert same(np.lib.format.read_array(io.BytesIO(data)), array)
        with npz.stream("weights") as stream:
            assert same(np.lib.format.read_array(stream), arrays["weights"])
            assert stream.read() == b""


@pytest.mark.slow
def test_threads_share_an_archive(path, arrays):
    """Twenty threads read every member of one archive at once."""
    failures = []

    def work():
        for key, array in arrays.items():
            if not same(npz[key], array):
                failures.append(key)

    for source in (path, io.BytesIO(path.read_bytes())):
        with npzkit.open(source) as npz:
            threads = [threading.Thread(target=work) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not failures


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_children_share_an_archive(path, arrays):
    """Children and parent read through one descriptor at once, each the right bytes."""
    with npzkit.open(path) as npz:

        def work(pipe):
            os.write(pipe, b"%d" % all(same(npz["weights"], arrays["weights"]) for _ in range(50)))

        with all_forked([work] * 2) as pipes:
            for _ in range(50):
                assert same(npz["weights"], arrays["weights"])
            assert [read_rest(pipe) for pipe in pipes] == [b"1"] * 2


def test_memmap(tmp_path, arrays):
    """A stored member maps read-only or copy-on-write, and outlives the archive."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays)
    with npzkit.open(path) as npz:
        maps = {key: npz.memmap(key) for key in arrays}
        private = npz.memmap("weights", mode="c")
    if disk.RENAMES_OPEN_FILES:
        npzkit.save(path, {})
    for key, array in arrays.items():
        assert isinstance(maps[key], np.memmap)
        assert same(maps[key], array)
        assert not maps[key].flags.writeable
    private[0, 0] = -1
    assert maps["weights"][0, 0] != -1
    assert maps["weights"].ctypes.data % 64 == 0


def test_mapping_leaves_a_file_object_where_it_stands(tmp_path):
    """A caller's file object is mapped without moving its position."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with open(path, "rb") as file:
        file.seek(5)
        assert npzkit.open(file).memmap("x").tolist() == [0, 1, 2]
        assert file.tell() == 5


@pytest.mark.remedy(", or open the archive by its path")
def test_mmap_mode(tmp_path, arrays):
    """open(mmap_mode=) maps on access; what cannot be mapped says why and what to do."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, allow_pickle=True) as w:
        w["stored"] = arrays["weights"]
        w.add("deflated", arrays["weights"], compression="deflated")
        w["objects"] = np.array([None])
    with npzkit.open(path, mmap_mode="r") as npz:
        assert isinstance(npz["stored"], np.memmap)
        for key, reason in (("deflated", "it is deflated"), ("objects", "Python objects")):
            with pytest.raises(NotMappableError, match=reason) as caught:
                npz[key]
            assert caught.value.key == key
            assert caught.value.remedy
    stream = io.BytesIO(path.read_bytes())
    with npzkit.open(stream, mmap_mode="r") as npz, pytest.raises(NotMappableError):
        npz["stored"]
    with npzkit.open(path, mmap_mode="c") as npz:
        assert isinstance(npz["stored"], np.memmap)
    for mode in ("w+", "x"):
        with pytest.raises(ValueError, match="mmap_mode"):
            npzkit.open(path, mmap_mode=mode)


def test_mapping_what_numpy_saved(tmp_path):
    """np.savez's unaligned members map too."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(100.0))
    with npzkit.open(path, mmap_mode="r") as npz:
        assert np.array_equal(npz["x"], np.arange(100.0))
        assert not npz.info("x").aligned


@pytest.mark.remedy("Pass allow_pickle=True only if you trust the file: ")
def test_pickle_is_off_by_default(tmp_path, monkeypatch):
    """Objects are refused before pickle is touched, and read when it is allowed."""
    path = tmp_path / "a.npz"
    array = np.array([1, "a", None], dtype=object)
    np.savez(path, a=array)
    with monkeypatch.context() as patched:
        patched.setattr(pickle, "load", lambda *a, **k: pytest.fail("unpickled"))
        with npzkit.open(path) as npz:
            for use in (npz.read, lambda key: npz.load_all()):
                with pytest.raises(
                    PickleRefusedError, match="Object arrays cannot be loaded when"
                ) as caught:
                    use("a")
                assert caught.value.key == "a"
            assert npz.info("a").dtype == object
    with npzkit.open(path, allow_pickle=True) as npz:
        assert npz["a"].tolist() == array.tolist() == npz.load_all()["a"].tolist()


@pytest.mark.remedy("increase max_header_size (Limits.header_size), or pass allow_pickle=True.")
@pytest.mark.filterwarnings("ignore:the header of this array")
def test_header_limit(tmp_path):
    """A header over the limit is refused at access, and read once the limit allows."""
    path = tmp_path / "a.npz"
    array = np.zeros(2, [(f"field_{i}", "f4") for i in range(1000)])
    npzkit.save(path, {"a": array})
    with npzkit.open(path) as npz, pytest.raises(LimitExceededError, match="Header"):
        npz["a"]
    for options in ({"limits": npzkit.Limits(header_size=50_000)}, {"allow_pickle": True}):
        with npzkit.open(path, **options) as npz:
            assert same(npz["a"], array)
    with npzkit.NpzFile(path, max_header_size=50_000) as npz:
        assert npz.max_header_size == 50_000
        assert same(npz["a"], array)


@pytest.mark.parametrize("call", ["preadv", "pread"])
def test_without_positional_reads(call, path, arrays, monkeypatch):
    """Where the system lacks preadv, or pread as well, the same bytes are read."""
    monkeypatch.delattr(os, "preadv", raising=False)
    if call == "pread":
        monkeypatch.delattr(os, "pread", raising=False)
    with npzkit.open(path) as npz:
        for key, array in arrays.items():
            assert same(npz[key], array)
        assert same(npz.load_all(threads=3)["weights"], arrays["weights"])
        with open(path, "rb") as file:
            file.read(10)
            assert same(npzkit.open(file)["fortran"], arrays["fortran"])
            assert file.tell() == 10


def test_short_reads_are_repeated(tmp_path, arrays, monkeypatch):
    """A system that returns fewer bytes than asked for is asked again."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays)
    if hasattr(os, "preadv"):
        read, first = os.preadv, lambda views: [views[0][:1000]]
    else:
        read, first = os.read, lambda size: min(size, 1000)
    monkeypatch.setattr(os, READ, lambda fd, what, *offset: read(fd, first(what), *offset))
    with npzkit.open(path) as npz:
        assert same(npz.load_all()["weights"], arrays["weights"])


@pytest.mark.slow
def test_thousands_of_maps_are_one(tmp_path):
    """Mapping 2,000 arrays takes one mapping and no descriptor each."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {str(i): np.full(3, i) for i in range(2000)})
    with npzkit.open(path, mmap_mode="r") as npz:
        before = descriptor_count()
        maps = [npz[key] for key in npz]
        after = descriptor_count()
    assert after - before <= 1
    assert [int(array[0]) for array in maps] == list(range(2000))
    assert maps[7].filename == path.resolve()


def test_limits_given_twice(path):
    """max_header_size beside limits is a contradiction, and said to be one."""
    with pytest.raises(ValueError, match="not both"):
        npzkit.NpzFile(path, max_header_size=5, limits=npzkit.Limits())


def test_limits_are_whole_numbers(path):
    """Limits take whatever Python takes as an index but truth values, however they are set."""
    with npzkit.NpzFile(path, max_header_size=np.int64(5)) as npz:
        assert type(npz.max_header_size) is int
        with pytest.raises(LimitExceededError):
            npz["weights"]
    assert repr(npzkit.Limits(np.uint8(5))) == repr(npzkit.Limits(header_size=5))
    limits = npzkit.Limits(member_size=3)
    assert limits._replace(total_size=np.int32(9))[:4] == (10_000, None, 3, 9)
    assert type(limits._replace(total_size=9)) is npzkit.Limits
    assert pickle.loads(pickle.dumps(limits)) == limits
    for wrong in (True, np.True_, -1, np.int8(-1), 1.0, np.float64(5), "5", [5]):
        with pytest.raises(ValueError, match="total_size must be a non-negative integer"):
            npzkit.Limits(total_size=wrong)
        with pytest.raises(ValueError, match="total_size must be a non-negative integer"):
            limits._replace(total_size=wrong)


def test_maps_are_as_numpys(tmp_path, monkeypatch):
    """A map has the attributes of np.memmap's, a slice of it too, and names its file alike."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(100)})
    monkeypatch.chdir(tmp_path)
    files = [
        Path("a.npz"),
        "a.npz",
        open("a.npz", "rb"),
        os.fdopen(os.open("a.npz", os.O_RDONLY), "rb"),
    ]
    for file in files:
        expected = np.memmap(file, np.int64, "r", 0, (1,))
        with npzkit.open(file) as npz:
            found = npz.memmap("x")
        assert found.filename == expected.filename
        assert type(found.filename) is type(expected.filename)
        assert isinstance(found._mmap, mmap.mmap)
        assert found[3:5].filename == expected.filename
        assert (found[3:5].mode, type(found[3:5])) == ("r", np.memmap)
        assert type(found[found > 3]) is type(expected[expected > 3]) is np.ndarray
        if hasattr(file, "close"):
            file.close()


def test_out_is_an_array(path):
    """Something else than an array to read into is a TypeError."""
    with npzkit.open(path) as npz:
        for wrong in ([0] * 4, bytearray(8), 3):
            with pytest.raises(TypeError, match="out must be a numpy array"):
                npz.read("scalar", out=wrong)


def test_compressed_members_use_threads(tmp_path, monkeypatch):
    """Large compressed members without an index go to threads whole; small ones do not."""
    used = []
    real = npzkit.reading.load_all.run
    monkeypatch.setattr(
        npzkit.reading.load_all,
        "run",
        lambda tasks, threads, **first: (
            used.append((len(tasks), threads)),
            real(tasks, threads, **first),
        )[1],
    )
    arrays = {"large": np.zeros(1_000_000), "small": np.zeros(3), "other": np.ones(1_000_000)}
    npzkit.save(tmp_path / "a.npz", arrays, compression="deflated", seekable=False)
    with npzkit.open(tmp_path / "a.npz") as npz:
        found = npz.load_all(threads=2)
    assert list(found) == list(arrays)
    assert used == [(2, 2)]


def test_load_all_reads_what_is_asked_for(tmp_path, monkeypatch):
    """Two small members at both ends of a large archive are read without what lies between."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"first": np.arange(3), "large": np.zeros(1_000_000), "last": np.arange(4)})
    read = sizes_read(monkeypatch)
    with npzkit.open(path) as npz:
        found = npz.load_all(["last", "first"])
    assert {key: len(array) for key, array in found.items()} == {"last": 4, "first": 3}
    assert sum(read) < 100_000


@pytest.mark.parametrize("kind", ["py.path.local", "a class"])
def test_a_path_with_methods_of_a_file_is_a_path(tmp_path, kind, monkeypatch):
    """An os.PathLike is a path in every function, also if it has `read` and `write`."""

    class Both(type(tmp_path)):
        read = write = seek = tell = flush = Path.read_bytes

    make = pytest.importorskip("py").path.local if kind == "py.path.local" else Both
    path, other = make(tmp_path / "a.npz"), make(tmp_path / "b.npz")
    npzkit.save(path, {"x": np.arange(3)})
    with npzkit.NpzWriter(path, "a") as writer:
        writer.add("y", np.arange(4))
    for opener in (npzkit.open, npzkit.load):
        with opener(path) as npz:
            assert npz.files == ["x", "y"]
    with pytest.raises(TypeError, match="for a file, pass open"):
        npzkit.iter_arrays(path)
    assert npzkit.verify(path).ok
    npzkit.repack(path, other)
    assert npzkit.diff(path, other).equal
    npzkit.savez(other, z=np.arange(5))
    with npzkit.open(other) as npz:
        assert npz.files == ["z"]
    npzkit.pack(other, [path], overwrite=True)
    assert npzkit.extract(other, tmp_path / "out").files
    np.save(tmp_path / "c.npy", np.arange(6))
    assert npzkit.load(make(tmp_path / "c.npy")).tolist() == list(range(6))


def test_what_macos_puts_beside_arrays_is_no_array(tmp_path):
    """Members below __MACOSX are bytes, as for NumPy: the archive is sound, and its arrays load."""
    path, stream = tmp_path / "a.npz", io.BytesIO()
    np.save(stream, np.arange(3))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (("x.npy", stream.getvalue()), ("__MACOSX/._x.npy", b"\0\5\x16\7" * 30)):
            archive.writestr(name, data)
    with npzkit.open(path) as npz, np.load(path) as theirs:
        found = npz.load_all()
        assert npz.files == theirs.files
        assert found["x"].tolist() == [0, 1, 2]
        assert found["__MACOSX/._x"] == theirs["__MACOSX/._x"]
        assert npz.info("__MACOSX/._x").dtype is None
    assert npzkit.verify(path).ok
    assert npzkit.pack(tmp_path / "b.npz", [path]).keys == ("x",)


def renamed(name):
    """Return an archive of an array, written without the flag that its name is UTF-8."""
    stream, written = io.BytesIO(), io.BytesIO()
    np.save(stream, np.arange(3))
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr(f"{name}.npy", stream.getvalue())
    data = bytearray(written.getvalue())
    for signature, place in ((b"PK\3\4", 7), (b"PK\1\2", 9)):
        data[data.index(signature) + place] &= ~8
    return data


@pytest.mark.remedy("its bytes are these characters in UTF-8, but the archive does not say so.")
@pytest.mark.parametrize("name", ["größe", "gro\u0308\u00dfe", "Δ/x"])
def test_a_name_in_utf8_that_is_not_marked_so_is_told(name):
    """Julia and macOS write such names: the error and `verify` say what their bytes mean."""
    data = bytes(renamed(name))
    with npzkit.open(data) as npz:
        (key,) = npz.files
        with pytest.raises(MemberNotFoundError) as caught:
            npz[unicodedata.normalize("NFC", name)]
        assert f"Use {key!r}" in caught.value.remedy
        assert npz[key].tolist() == [0, 1, 2]
    assert repr(name)[1:-1] in npzkit.verify(data).rows[0].what


def test_a_name_that_is_marked_as_utf8_in_one_header_alone_is_refused():
    """`open` and `iter_arrays` would give the array different keys; zipfile refuses it, too."""
    data = renamed("ü")
    data[data.index(b"PK\3\4") + 7] |= 8
    for read in (lambda: npzkit.open(data).load_all(), lambda: list(npzkit.iter_arrays(io.BytesIO(data)))):  # fmt: skip
        with pytest.raises(npzkit.errors.ZipFormatError, match="UTF-8 flag"):
            read()
    with pytest.raises(zipfile.BadZipFile):
        np.load(io.BytesIO(data))["├╝"]
