"""What an archive can be opened from, what is known without its data, what a changed file does."""

from __future__ import annotations

import errno
import gc
import gzip
import io
import mmap
import os
import tempfile
import weakref
import zipfile
from functools import partial

import npzkit
import numpy as np
import pytest
from archives import piped, same
from counting import sizes_read
from deep import extent
from npzkit.errors import ClosedArchiveError, StaleArchiveError, UnsupportedError
from npzkit.files import source
from systems import replaces_open_files


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["str", "Path", "bytes", "bytearray", "memoryview", "mmap", "file",
                                  "unbuffered", "BytesIO", "gzip", "NamedTemporaryFile", "ZipFile"])  # fmt: skip
def test_sources(kind, path, arrays, tmp_path):
    """An archive opens from a path, from bytes, and from any file object that can seek."""
    data = path.read_bytes()
    if kind == "gzip":
        (tmp_path / "a.gz").write_bytes(gzip.compress(data))
    named = tempfile.NamedTemporaryFile()
    named.write(data)
    make = {
        "str": lambda: str(path), "Path": lambda: path, "bytes": lambda: data,
        "bytearray": lambda: bytearray(data), "memoryview": lambda: memoryview(data),
        "mmap": lambda: mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_READ),
        "file": lambda: open(path, "rb"), "unbuffered": lambda: open(path, "rb", buffering=0),
        "BytesIO": lambda: io.BytesIO(data), "gzip": lambda: gzip.open(tmp_path / "a.gz"),
        "NamedTemporaryFile": lambda: named, "ZipFile": lambda: zipfile.ZipFile(path),
    }  # fmt: skip
    source = make[kind]()
    with npzkit.open(source) as npz:
        for key, array in arrays.items():
            assert same(npz[key], array)
        assert same(npz.load_all()["weights"], arrays["weights"])
    if hasattr(source, "close"):
        assert not getattr(source, "closed", False)
        source.close()
    named.close()


@pytest.mark.remedy(
    "Read it from front to back, npzkit.iter_arrays(file), or into memory first: "
    "npzkit.open(file.read())."
)
@pytest.mark.parametrize(
    "read", [lambda file: dict(npzkit.iter_arrays(file)), lambda file: npzkit.open(file.read())]
)
def test_a_stream_that_cannot_seek(read):
    """A pipe is refused with the way out, and read from where it stands."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.arange(3)})
    with piped(stream.getvalue()) as pipe:
        with pytest.raises(UnsupportedError, match="cannot seek"):
            npzkit.open(pipe)
        assert read(pipe)["x"].tolist() == [0, 1, 2]


def test_an_archive_behind_other_data(arrays):
    """An archive in a file object may begin where the object stands."""
    inner = io.BytesIO()
    npzkit.save(inner, arrays)
    outer = io.BytesIO(b"other data" + inner.getvalue())
    outer.seek(10)
    assert same(npzkit.load(outer)["weights"], arrays["weights"])
    outer = io.BytesIO(b"other data")
    outer.seek(10)
    np.savez(outer, a=np.arange(3))
    outer.seek(10)
    assert np.array_equal(npzkit.load(outer)["a"], np.arange(3))
    for behind in (outer.getvalue(), b"other data" + inner.getvalue()):
        with pytest.raises(npzkit.errors.ZipFormatError, match="bytes precede"):
            npzkit.open(behind)


def test_errors_of_the_system_pass_through(tmp_path):
    """A missing file is FileNotFoundError, a folder IsADirectoryError."""
    with pytest.raises(FileNotFoundError):
        npzkit.open(tmp_path / "absent.npz")
    with pytest.raises(IsADirectoryError):
        npzkit.open(tmp_path)


def test_closing(path):
    """close is idempotent, closes the path's file, and later use says so."""
    npz = npzkit.open(path)
    file, stream = npz.fid, npz.zip.fp
    npz.close()
    npz.close()
    assert file.closed
    assert stream.closed
    for use in (
        npz.read,
        npz.info,
        npz.memmap,
        npz.stream,
        lambda key: npz.load_all(),
        lambda key: npz.zip,
    ):
        with pytest.raises(ClosedArchiveError):
            use("weights")
    assert "weights" in npz
    assert npz.files


def test_a_closed_file_object_is_noticed(path):
    """An archive whose file was closed by its owner says so."""
    with open(path, "rb") as file:
        npz = npzkit.open(file)
    with pytest.raises(ClosedArchiveError):
        npz["weights"]
    stream = io.BytesIO(path.read_bytes())
    npz = npzkit.open(stream)
    stream.close()
    with pytest.raises(ClosedArchiveError):
        npz["weights"]


class Disturbed:
    """An `os` whose reads are counted; during one of them something happens, and it may fail."""

    def __init__(self, number, happens, error=None):
        self._number, self._happens, self._error = number, happens, error
        self.count = 0

    def __getattr__(self, name):
        real = getattr(os, name)
        return partial(self._read, real) if name in ("pread", "preadv") else real

    def _read(self, real, *args):
        found = real(*args)
        self.count += 1
        if self.count == self._number:
            self._happens()
            if self._error is not None:
                raise self._error
        return found


@pytest.mark.skipif(not hasattr(os, "pread"), reason="this system reads at a file's position")
def test_a_file_object_that_is_closed_while_it_is_read(path, monkeypatch):
    """Closed by its owner, it gives no bytes; a disk that fails while it is open says so itself."""
    failure = OSError(errno.EIO, "the disk failed")
    counting = Disturbed(0, lambda: None)
    with open(path, "rb") as file, npzkit.open(file) as npz:
        monkeypatch.setattr(source, "os", counting)
        npz["weights"]
    for number in range(1, counting.count + 1):
        monkeypatch.setattr(source, "os", os)
        with open(path, "rb") as file, npzkit.open(file) as npz:
            monkeypatch.setattr(source, "os", Disturbed(number, lambda: None, failure))
            with pytest.raises(OSError, match="the disk failed"):
                npz["weights"]
        for error in (None, failure, ValueError("closed")):
            monkeypatch.setattr(source, "os", os)
            with open(path, "rb") as file, npzkit.open(file) as npz:
                monkeypatch.setattr(source, "os", Disturbed(number, file.close, error))
                with pytest.raises(ClosedArchiveError):
                    npz["weights"]


def test_a_forgotten_archive_warns_and_is_closed(path):
    """Dropping the last reference closes the file at once, with a ResourceWarning."""
    npz = npzkit.open(path)
    _ = npz.zip, npz.f.weights
    file, reference = npz.fid, weakref.ref(npz)
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="unclosed archive"):
            del npz
        assert reference() is None
        assert file.closed
    finally:
        gc.enable()


@replaces_open_files
def test_a_replaced_file_stays_readable(path, arrays):
    """Saving over an open archive leaves its readers and its maps their data."""
    with npzkit.open(path) as npz:
        npzkit.save(path, {"weights": np.zeros(3)})
        assert same(npz["weights"], arrays["weights"])


def test_a_file_changed_in_place_is_stale(path):
    """A file cut or rewritten underneath an open archive is StaleArchiveError."""
    with npzkit.open(path) as npz:
        size = path.stat().st_size
        os.truncate(path, 100)
        with pytest.raises(StaleArchiveError):
            npz["weights"]
        with pytest.raises(StaleArchiveError):
            npz.load_all()
        os.truncate(path, size)
        with pytest.raises(StaleArchiveError) as caught:
            npz["weights"]
        assert caught.value.path == os.fspath(path)
        assert caught.value.remedy


@pytest.mark.skipif(os.name == "nt", reason="Windows cuts off no file that is mapped")
def test_mapping_a_file_that_shrank(tmp_path):
    """A file cut since it was opened is stale, also for maps."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.zeros(100_000)})
    with npzkit.open(path) as npz:
        npz.memmap("x")
        os.truncate(path, 1000)
        for mode in ("r", "c"):
            with pytest.raises(StaleArchiveError):
                npz.memmap("x", mode)


def test_temporary_files_are_read_by_descriptor(arrays):
    """A NamedTemporaryFile maps and forks like the file it wraps."""
    with tempfile.NamedTemporaryFile() as file:
        npzkit.save(file, arrays)
        file.flush()
        with npzkit.open(file) as npz:
            assert same(npz.memmap("weights"), arrays["weights"])
        assert not file.closed


@pytest.mark.parametrize("prefix", [b"", b"behind this"])
def test_a_temporary_file_lives_as_long_as_its_archive(arrays, prefix):
    """A NamedTemporaryFile that nobody else holds stays open, and is closed where it is owned."""
    for owned in (False, True):
        file = tempfile.NamedTemporaryFile()
        file.write(prefix)
        npzkit.save(file, arrays)
        file.flush()
        file.seek(len(prefix))
        name = file.name
        npz = npzkit.NpzFile(file, own_fid=owned)
        assert npz.fid is (file if owned else None)
        del file
        gc.collect()
        assert same(npz["weights"], arrays["weights"])
        assert same(npz.memmap("weights"), arrays["weights"])
        assert repr(npz).startswith(f"NpzFile {name!r}")
        npz.close()
        assert os.path.exists(name) is not owned
        del npz
        gc.collect()
        assert not os.path.exists(name)


@pytest.mark.parametrize("size", [3, 100_000])
def test_one_member_under_two_keys(tmp_path, size):
    """Arrays of load_all share no elements, even where one member is asked for twice."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.zeros(size), "b": np.ones(size)})
    with npzkit.open(path) as npz:
        found = npz.load_all(["a", "b", "a.npy", "b.npy"])
    assert list(found) == ["a", "b", "a.npy", "b.npy"]
    found["a"][...] = 7
    found["b.npy"][...] = 8
    assert [array[0] for array in found.values()] == [7, 1, 0, 8]
    assert not np.shares_memory(found["a"], found["a.npy"])


def test_files_in_text_mode_are_refused(tmp_path):
    """A file that is open in text mode is refused, with the mode that is right."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with open(path, encoding="utf-8") as file, pytest.raises(TypeError, match="'rb'"):
        npzkit.open(file)
    with open(tmp_path / "b.npz", "w") as file, pytest.raises(TypeError, match="'wb'"):
        npzkit.save(file, {"x": np.arange(3)})


def test_info_reads_headers_only(path, arrays):
    """info tells shape, dtype, order, sizes and place."""
    with npzkit.open(path) as npz:
        method = zipfile.ZipFile(path).infolist()[0].compress_type
        for key, array in arrays.items():
            array = np.asanyarray(array)
            info = npz.info(key)
            member = npz.zip.getinfo(key + ".npy")
            assert (info.key, info.member) == (key, key + ".npy")
            assert (info.shape, info.dtype, info.nbytes) == (array.shape, array.dtype, array.nbytes)
            assert info.fortran_order == (array.flags.f_contiguous and not array.flags.c_contiguous)
            assert (info.compressed_size, info.crc32) == (member.compress_size, member.CRC)
            assert info.method == {0: "stored", 8: "deflated"}[method]
            assert info.aligned == (method == 0)
            assert info.seekable == (method == 0 or member.file_size > 1 << 18)
            if method == 0:
                assert path.read_bytes()[info.data_offset :][: array.nbytes] == array.tobytes("A")


def test_repr_and_summary(path, arrays):
    """repr is numpy's; summary lists every member with shape, dtype, size and method."""
    with npzkit.open(str(path)) as npz:
        assert (
            repr(npz)
            == f"NpzFile {str(path)!r} with keys: weights, fortran, strided, big_endian, empty..."
        )
        lines = npz.summary().splitlines()
        assert len(lines) == len(arrays) + 3
        assert "(200, 300)" in lines[2]
        assert "float64" in lines[2]
        assert "468.8 KiB" in lines[2]
    with npzkit.open(path.read_bytes()) as npz:
        assert repr(npz).startswith("NpzFile 'object' with keys: ")


def test_metadata(path, tmp_path):
    """Metadata is a read-only mapping; another program's comment is none."""
    with npzkit.open(path) as npz:
        assert dict(npz.metadata) == {"npzkit.tree": ["flat"], "step": 7}
        with pytest.raises(TypeError):
            npz.metadata["step"] = 8
    for comment in (b"", b"hello", b"{broken", b"[1, 2]", b"{" * 60_000, b'{"a": ' + b"[" * 60_000):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.comment = comment
        assert dict(npzkit.open(stream).metadata) == {}


@pytest.mark.slow
def test_info_reads_no_data(tmp_path, monkeypatch):
    """Describing many megabytes reads a few kilobytes; so does opening them."""
    path = tmp_path / "a.npz"
    array = np.random.default_rng(0).integers(0, 9, extent(2_500_000, 12_000_000))
    npzkit.save(path, {"stored": array})
    with npzkit.NpzWriter(tmp_path / "b.npz") as w:
        w.add("deflated", array[:1_000_000], compression="deflated")
    read = sizes_read(monkeypatch)
    for name, key in (("a.npz", "stored"), ("b.npz", "deflated")):
        with npzkit.open(tmp_path / name) as npz:
            assert npz.info(key).shape
        assert sum(read) < 300_000
        read.clear()
