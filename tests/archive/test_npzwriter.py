"""Writing: what may be written, where, and that it happens whole or not at all."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import socket
import stat
import threading
import zipfile
from collections.abc import Mapping

import forge
import npzkit
import numpy as np
import pytest
from archives import check_accepted, files_in
from deep import needs_deep
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import NpzkitError, PickleRefusedError, UnsafeNameError, UnsupportedError
from npzkit.files.threads import Pipeline
from npzkit.zip import writer as zip_writer
from systems import replaces_open_files

from tables import each_row

COMPRESSIONS = ["stored", "deflated"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_numpy_reads_what_is_written(tmp_path, arrays, compression):
    """Every array comes back from plain np.load, as it was."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays, compression=compression, metadata={"step": 7})
    with np.load(path) as theirs:
        assert theirs.files == list(arrays)
        for key, array in arrays.items():
            assert theirs[key].tobytes() == np.asanyarray(array).tobytes()
            assert theirs[key].dtype == np.asanyarray(array).dtype


def test_members_hold_numpys_bytes(arrays):
    """Each member is byte for byte what numpy's own writer makes of the array."""
    stream = io.BytesIO()
    npzkit.save(stream, arrays)
    with zipfile.ZipFile(stream) as archive:
        for key, array in arrays.items():
            expected = io.BytesIO()
            np.lib.format.write_array(expected, np.asanyarray(array))
            assert archive.read(key + ".npy") == expected.getvalue()


def test_stored_data_is_aligned_and_headers_are_plain(tmp_path, arrays):
    """Stored data begins at multiples of 64; nothing has zip64, a clock or a descriptor."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays)
    with npzkit.open(path) as npz:
        assert all(npz.info(key).data_offset % 64 == 0 for key in npz)
    for info in zipfile.ZipFile(path).infolist():
        assert (info.date_time, info.create_system, info.external_attr >> 16) == (
            (1980, 1, 1, 0, 0, 0),
            3,
            0o600,
        )
        assert (info.create_version, info.extract_version, info.flag_bits, info.extra) == (
            20,
            20,
            0,
            b"",
        )


class Pipe:
    """A stream that can only be written to."""

    def __init__(self):
        self.data = bytearray()

    def write(self, data):
        self.data += data
        return len(data)


@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_same_bytes_everywhere(tmp_path, arrays, compression):
    """A path, a file, memory, a stream that cannot seek: the same bytes, twice over."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays, compression=compression)
    expected = path.read_bytes()
    npzkit.save(path, arrays, compression=compression)
    assert path.read_bytes() == expected
    memory, pipe = io.BytesIO(), Pipe()
    for file in (memory, pipe):
        npzkit.save(file, arrays, compression=compression)
    with open(tmp_path / "b.npz", "wb") as file:
        npzkit.save(file, arrays, compression=compression)
        assert not file.closed
    with gzip.open(tmp_path / "c.gz", "wb") as file:
        npzkit.save(file, arrays, compression=compression)
    with open(tmp_path / "d.npz", "ab", buffering=0) as file:
        npzkit.save(file, arrays, compression=compression)
    assert memory.getvalue() == pipe.data == expected
    assert (tmp_path / "b.npz").read_bytes() == gzip.open(tmp_path / "c.gz").read() == expected
    assert (tmp_path / "d.npz").read_bytes() == expected


def test_a_socket(arrays):
    """An archive streams through a socket and is read on the other side."""
    left, right = socket.socketpair()

    def send():
        with left, left.makefile("wb") as file:
            npzkit.save(file, arrays, compression="deflated")

    thread = threading.Thread(target=send)
    thread.start()
    with right, right.makefile("rb") as file:
        data = file.read()
    thread.join()
    assert np.array_equal(npzkit.open(data)["weights"], arrays["weights"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe(tmp_path, arrays):
    """A path that names a pipe is written to, not replaced."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    thread = threading.Thread(target=npzkit.save, args=(path, arrays))
    thread.start()
    data = path.read_bytes()
    thread.join()
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert np.array_equal(npzkit.open(data)["weights"], arrays["weights"])


@each_row("start", [0, 7])
@each_row("kind", ["memory", "file"])
def test_longer_content_of_a_file_object_is_cut_off(tmp_path, kind, start):
    """As with a path, nothing is left behind an archive; one behind other bytes cuts nothing."""
    with io.BytesIO() if kind == "memory" else (tmp_path / "x").open("w+b") as file:
        file.write(b"z" * 5000)
        file.seek(start)
        npzkit.save(file, {"x": np.ones(3)})
        end = file.tell()
        assert file.seek(0, os.SEEK_END) == (5000 if start else end)
        file.seek(start)
        data = file.read(end - start)
    with npzkit.open(data, strict=True) as npz:
        assert npz["x"].tolist() == [1, 1, 1]


def test_from_the_position_of_a_file_object(arrays):
    """An archive begins where the file object stands."""
    stream = io.BytesIO(b"before")
    stream.seek(6)
    npzkit.save(stream, arrays)
    assert np.array_equal(npzkit.open(stream.getvalue()[6:])["weights"], arrays["weights"])
    stream.seek(6)
    assert np.array_equal(npzkit.load(stream)["weights"], arrays["weights"])


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_levels(level):
    """A level is honoured: 0 stores, higher ones are no larger."""
    array = np.tile(np.arange(1000), 50)
    sizes = {}
    for chosen in (level, 1):
        stream = io.BytesIO()
        npzkit.save(stream, {"a": array}, compression="deflated", level=chosen)
        assert np.array_equal(np.load(io.BytesIO(stream.getvalue()))["a"], array)
        sizes[chosen] = len(stream.getvalue())
    if level == 0:
        assert sizes[0] > array.nbytes
    else:
        assert sizes[level] <= sizes[1] < array.nbytes / 5


def test_choices_per_array(tmp_path):
    """Method and level may differ from array to array."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, compression=zipfile.ZIP_DEFLATED) as w:
        w["a"] = np.zeros(1000)
        w.add("b", np.zeros(1000), compression="stored")
        w.add("c", np.zeros(1000), level=0)
        assert (len(w), w.files, "b" in w, "d" in w) == (3, ["a", "b", "c"], True, False)
    with npzkit.open(path) as npz:
        assert [npz.info(key).method for key in "abc"] == ["deflated", "stored", "deflated"]
        assert npz.info("c").compressed_size > 8000 > npz.info("a").compressed_size


@pytest.mark.parametrize("compression", ["gzip", 12, 3.5, True])
def test_bad_choices(compression, tmp_path):
    """An unknown compression, level or mode is refused before anything is touched."""
    for options in ({"compression": compression}, {"level": 10}, {"level": "9"}, {"mode": "a+"}):
        with pytest.raises(ValueError, match=r"compression|level|mode"):
            npzkit.NpzWriter(tmp_path / "a.npz", **options)
    assert files_in(tmp_path) == []


@each_row(
    "key",
    [
        "",
        "/abs",
        "C:/x",
        "a\0b",
        "a\nb",
        "a\\b",
        "..",
        "../a",
        "a/../b",
        "a.npy",
        "\ud800",
        "x" * 70_000,
    ],
)
@pytest.mark.remedy("Choose another key.")
def test_unsafe_keys(key, tmp_path):
    """A key that no reader could use safely is refused, and nothing is written."""
    with pytest.raises(UnsafeNameError) as caught:
        npzkit.save(tmp_path / "a.npz", {"good": np.zeros(3), key: np.zeros(3)})
    assert caught.value.key == key
    assert files_in(tmp_path) == []
    npzkit.save(tmp_path / "a.npz", {"good": np.zeros(3), "another": np.zeros(3)})
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.files == ["good", "another"]


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_any_other_key_survives(key):
    """Whatever key is taken is found again, by npzkit and by zipfile."""
    stream = io.BytesIO()
    try:
        npzkit.save(stream, {key: np.arange(3)})
    except UnsafeNameError:
        return
    npz = npzkit.open(stream)
    assert npz.files == [key]
    assert zipfile.ZipFile(stream).namelist() == [key + ".npy"]
    assert np.array_equal(npz[key], np.arange(3))


def test_keys_that_numpy_eats():
    """file, arr_0 and allow_pickle are keys like any other."""
    arrays = {
        "file": np.arange(3),
        "arr_0": np.zeros(2),
        "allow_pickle": np.ones(1),
        "self": np.eye(2),
    }
    stream = io.BytesIO()
    npzkit.save(stream, arrays)
    assert list(np.load(io.BytesIO(stream.getvalue()))) == list(arrays)


def test_repeated_keys(tmp_path):
    """A key is written once; the second time is refused and the first one kept."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        w["a"] = np.zeros(3)
        with pytest.raises(UnsafeNameError, match="already"):
            w["a"] = np.ones(3)
        with pytest.raises(TypeError):
            w[3] = np.ones(3)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert np.array_equal(npz["a"], np.zeros(3))


@pytest.mark.remedy("Write the archive to a path.")
def test_nothing_is_renamed_in_a_stream(tmp_path):
    """What cannot be read back cannot be copied; the writer says so and goes on."""
    with open(tmp_path / "a.npz", "wb") as file, npzkit.NpzWriter(file) as w:
        w["a"] = np.arange(3)
        with pytest.raises(UnsupportedError, match="renaming needs"):
            w.rename("a", "b")
        w["c"] = np.arange(3)
    with npzkit.open(tmp_path / "a.npz") as npz:
        assert npz.files == ["a", "c"]
    with npzkit.NpzWriter(tmp_path / "b.npz") as w:
        w["a"] = np.arange(3)
        w.rename("a", "b")
    with npzkit.open(tmp_path / "b.npz") as npz:
        assert {key: array.tolist() for key, array in npz.items()} == {"b": [0, 1, 2]}


def test_changing_an_array_after_adding_it(tmp_path):
    """An array is taken as it is when it is added, small or large."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        for size in (3, 1000, 1_000_000):
            array = np.zeros(size)
            w[str(size)] = array
            array[...] = 1
    with npzkit.open(path) as npz:
        assert not any(array.any() for array in npz.load_all().values())


def test_errors_of_the_system_pass_through(tmp_path):
    """No folder is OSError, unchanged; of a folder in the way, the error says what to pass."""
    with pytest.raises(FileNotFoundError):
        npzkit.save(tmp_path / "absent" / "a.npz", {})
    with pytest.raises(IsADirectoryError, match=r"Pass a file\. npzkit\.pack"):
        npzkit.save(tmp_path, {})


def test_an_empty_archive(tmp_path):
    """No arrays make an archive that numpy opens."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {}, metadata={"a": 1})
    with np.load(path) as theirs, npzkit.open(path) as ours:
        assert theirs.files == ours.files == []
        assert ours.load_all() == {}
        assert dict(ours.metadata) == {"a": 1}


@needs_deep
def test_many_members_need_zip64(tmp_path):
    """65,535 members and more are written with a zip64 directory, which zipfile reads."""
    path = tmp_path / "a.npz"
    arrays = {str(i): np.uint8(i % 256) for i in range(65_536)}
    for count in (65_536, 65_535, 65_534):
        npzkit.save(path, dict(itertools.islice(arrays.items(), count)))
        with npzkit.open(path) as npz:
            assert len(npz) == count
            assert npz[str(count - 1)] == (count - 1) % 256
            assert len(npz.load_all()) == count
            with zipfile.ZipFile(path) as theirs:
                assert len(theirs.namelist()) == count
        assert (b"PK\x06\x06" in path.read_bytes()[-200:]) == (count >= 65_535)


class Sparse:
    """A sink that keeps what is not zero: gigabytes of zeros cost nothing."""

    can_patch = True
    is_concurrent = False
    committed_size = 0

    def __init__(self, path):
        self.file = open(path, "wb")
        self.position = 0

    def write(self, data):
        if len(data) < 1 << 24:
            self.file.seek(self.position)
            self.file.write(data)
        self.position += len(data)

    def reserve(self, size):
        pass

    def patch(self, offset, data):
        self.file.seek(offset)
        self.file.write(data)

    def commit(self, last, before=b"", mark=None):
        self.write(before + last)
        self.file.truncate(self.position)

    def close(self):
        self.file.close()


@pytest.mark.slow
def test_sizes_and_offsets_beyond_4_gib(tmp_path, monkeypatch):
    """A member over 4 GiB, and one that begins behind it, are written with zip64 and found."""
    monkeypatch.setattr(zip_writer, "crc32", lambda data, crc=0: 0)
    path = tmp_path / "a.npz"
    zeros = memoryview(bytes(1 << 26))
    sink = Sparse(path)
    writer = zip_writer.ZipWriter(sink)
    size = (1 << 32) + 128
    header = npzkit.format.header.format_header(
        {"descr": "|u1", "fortran_order": False, "shape": (1 << 32,)}
    )
    coding = zip_writer.Coding()
    with Pipeline(1) as pipeline:
        writer.write_member("large.npy", [header, *[zeros] * 64], size, pipeline, coding=coding)
        writer.write_member("small.npy", [header], len(header), pipeline, coding=coding)
    writer.commit()
    sink.close()
    with npzkit.open(path) as npz, zipfile.ZipFile(path) as theirs:
        info = npz.info("large")
        assert (info.shape, info.nbytes, info.aligned) == ((1 << 32,), 1 << 32, True)
        assert npz.memmap("large")[-1] == 0
        found = theirs.infolist()
        assert [member.file_size for member in found] == [size, 128]
        assert found[1].header_offset > 1 << 32
        assert theirs.open("large.npy").read(128) == header
        with pytest.raises(NpzkitError):
            npz["small"]


@pytest.mark.parametrize("zip64", [False, True])
@pytest.mark.parametrize("comment", [b"", b"{}", b"a comment"])
def test_an_append_to_an_archive_without_members(zip64, comment, tmp_path):
    """What follows is read by npzkit and np.load, with zip64's end records in front or without."""
    path = tmp_path / "a.npz"
    path.write_bytes(forge.archive(zip64=zip64, comment=comment))
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["x"] = np.arange(3)
    check_accepted(path, x=np.arange(3))


def test_a_writer_says_what_it_is(tmp_path):
    """repr names path, number of arrays and state."""
    w = npzkit.NpzWriter(tmp_path / "a.npz")
    assert "a.npz" in repr(w)
    assert "0 arrays, open" in repr(w)
    w.abort()
    assert "closed" in repr(w)


def test_wrong_arguments_are_explained(tmp_path):
    """What is passed by mistake is named, and what to pass instead."""
    path = tmp_path / "a.npz"
    for wrong in (None, 5, {1, 2}, "x.npz"):
        with pytest.raises(TypeError, match="mapping"):
            npzkit.save(path, wrong)
    with pytest.raises(TypeError, match="the file comes first"):
        npzkit.save({"a": np.ones(2)}, path)
    with pytest.raises(PickleRefusedError, match=r"type dict .*npzkit\.save\("):
        npzkit.savez(path, allow_pickle=False, layer={"w": np.ones(2)})
    with pytest.raises(PickleRefusedError, match="type object"):
        npzkit.save(path, {"a": object()})
    with pytest.raises(ValueError, match="level"):
        npzkit.save(path, {"a": np.ones(2)}, level=9)
    with pytest.raises(TypeError, match="metadata must be a mapping"):
        npzkit.save(path, {}, metadata="hi")
    with pytest.raises(TypeError, match="strings as keys, not 1"):
        npzkit.save(path, {}, metadata={"x": [{1: 2}]})
    with pytest.raises(FileNotFoundError) as caught:
        npzkit.save(tmp_path / "absent" / "a.npz", {})
    assert caught.value.filename == str(tmp_path / "absent" / "a.npz")
    with npzkit.NpzWriter(path) as w:
        with pytest.raises(TypeError, match="attrs must be a mapping"):
            w.add("a", np.ones(2), attrs="hi")
        with pytest.raises(ValueError, match=r"npzkit\.dtype"):
            w.add("a", np.ones(2), attrs={"npzkit.dtype": "x"})
        with pytest.raises(ValueError, match="level"):
            w.add("a", np.ones(2), level=3)
        w.add("b", np.ones(2), compression="deflated", level=np.int64(3))
    npzkit.save(path, {"a": np.ones(2)}, compression=None)
    for arguments in ([npzkit.save, {"a": np.ones(2)}], [npzkit.NpzWriter]):
        with pytest.raises(TypeError, match="bytes are the contents of an archive, not its path"):
            arguments[0](os.fsencode(path), *arguments[1:])
    with npzkit.open(path) as npz:
        assert npz.files == ["a"]
        with pytest.raises(TypeError, match="sequence of keys"):
            npz.load_all("a")
        with pytest.raises(KeyError, match="Existing keys: 'a'"):
            npz["zzz"]
        with pytest.raises(KeyError, match="Keys are strings"):
            npz[0]
    for wrong in ({"total_size": 10}, 3):
        with pytest.raises(TypeError, match=r"npzkit\.Limits"):
            npzkit.open(path, limits=wrong)
    for wrong in (-1, "1GB", 1.5):
        with pytest.raises(ValueError, match="a non-negative integer"):
            npzkit.Limits(total_size=wrong)


def test_a_file_object_without_a_name():
    """Errors of a writer read well where the file's name is a descriptor's number."""
    readable, writable = os.pipe()
    with open(readable, "rb"), os.fdopen(writable, "wb") as file:
        w = npzkit.NpzWriter(file)
        w["a"] = np.arange(3)
        with pytest.raises(UnsafeNameError) as caught:
            w["a"] = np.arange(3)
        assert "already" in str(caught.value)
        assert "1 arrays" in repr(w)
        w.abort()


@pytest.mark.parametrize("base", [io.BytesIO, io.FileIO, io.BufferedWriter, io.BufferedRandom])
def test_a_subclass_is_written_front_to_back(base, tmp_path, arrays):
    """A file object of the user's own class sees every byte once, in order, as a hash would."""
    seen = bytearray()

    class Watched(base):
        def write(self, data):
            seen.extend(data)
            return super().write(data)

        def seek(self, *args):
            raise AssertionError("sought")

    path = tmp_path / "a.npz"
    if base is io.BytesIO:
        file = Watched()
    elif base is io.FileIO:
        file = Watched(path, "wb")
    else:
        file = Watched(open(path, "w+b", buffering=0))
    npzkit.save(file, arrays, compression="deflated")
    expected = io.BytesIO()
    npzkit.save(expected, arrays, compression="deflated")
    assert seen == expected.getvalue()
    file.close()


@pytest.mark.parametrize("key", ["C:x", "a//b", "./a", "a/", ".", "a/./b"])
def test_keys_that_change_on_extraction(key):
    """A key that would be another path once extracted is refused."""
    with pytest.raises(UnsafeNameError):
        npzkit.save(io.BytesIO(), {key: np.zeros(3)})
    npzkit.save(io.BytesIO(), {"kernel:0": np.zeros(3), ".hidden": np.zeros(3), "a.b": np.zeros(3)})


def test_warnings_name_the_caller(tmp_path):
    """A warning points at the user's line, not into npzkit."""
    named = np.zeros(1, [("漢", "f4")])
    with pytest.warns(UserWarning, match="format 3") as caught:
        npzkit.save(tmp_path / "a.npz", {"a": named})
    assert caught[0].filename == __file__
    (tmp_path / "torn.npz").write_bytes((tmp_path / "a.npz").read_bytes() + b"!")
    with pytest.warns(npzkit.errors.TornArchiveWarning) as caught:
        npzkit.open(tmp_path / "torn.npz").close()
    assert caught[0].filename == __file__


def test_bytes_keep_their_zeros(tmp_path):
    """However they are given, and as a file of another archive: as an array of uint8."""
    path, data = tmp_path / "a.npz", b"hello\0\0"
    npzkit.save(path, {"a": np.zeros(3)})
    with zipfile.ZipFile(path, "a") as zipped:
        zipped.writestr("README.txt", data)
    with npzkit.open(path) as npz:
        npzkit.save(tmp_path / "copy.npz", npz)
    npzkit.save(tmp_path / "dict.npz", {"README.txt": data})
    with npzkit.NpzWriter(tmp_path / "writer.npz") as writer:
        writer["README.txt"] = data
    for name in ("copy", "dict", "writer"):
        with npzkit.open(tmp_path / f"{name}.npz") as npz:
            assert (npz["README.txt"].tobytes(), npz["README.txt"].dtype) == (data, "u1"), name
    npzkit.savez(tmp_path / "numpys.npz", a=data)
    np.savez(tmp_path / "theirs.npz", a=data)
    numpys, theirs = (np.load(tmp_path / f"{name}.npz")["a"] for name in ("numpys", "theirs"))
    assert numpys == theirs and numpys.dtype == theirs.dtype


@replaces_open_files
def test_saving_from_another_archive(tmp_path, arrays):
    """An archive is copied from an open one, array by array, onto itself too."""
    path = tmp_path / "a.npz"
    npzkit.save(path, arrays)
    with npzkit.open(path) as npz:
        npzkit.save(path, npz, compression="deflated")
        with npzkit.open(path) as copied:
            assert copied.files == npz.files
            assert all(np.array_equal(copied[key], npz[key]) for key in npz)
    held = []

    class OneAtATime(Mapping):
        def __getitem__(self, key):
            held.append(key)
            return np.zeros(3) if key != "bad" else np.array([None])

        def __iter__(self):
            return iter(["a", "b", "bad", "c"])

        def __len__(self):
            return 4

    with pytest.raises(PickleRefusedError):
        npzkit.save(path, OneAtATime())
    assert held == ["a", "b", "bad"]
    assert files_in(tmp_path) == ["a.npz"]
    with npzkit.open(path) as npz:
        assert "weights" in npz
