"""Archives read from front to back: what open gives comes, or it is said."""

from __future__ import annotations

import bz2
import http.client
import io
import itertools
import lzma
import os
import random
import socket
import struct
import subprocess
import threading
import tracemalloc
import warnings
import zipfile

import npzkit
import numpy as np
import pytest
from archives import MAKERS, NOISE, made_by, packed, same
from commits import INTENT_SIZE, SLOT_SIZE, find_footer, find_intent, last_slot, unfinished
from deep import extent
from forge import Member, archive, deflate, header, npy, piece
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import (
    AmbiguousArchiveError,
    AmbiguousArchiveWarning,
    ChecksumError,
    LimitExceededError,
    NpyFormatError,
    NpzkitError,
    OutdatedArraysError,
    PickleRefusedError,
    TornArchiveWarning,
    UnsupportedError,
    ZipFormatError,
)
from strategies import any_arrays

from tables import each_row

X, Y = np.arange(6.0), np.eye(3)


class OnlyRead:
    """A stream with nothing but `read`, which returns as few bytes as it likes."""

    def __init__(self, data, seed=None):
        self._stream = io.BytesIO(data)
        self._random = None if seed is None else random.Random(seed)
        self.largest = 0

    def read(self, size):
        self.largest = max(self.largest, size)
        return self._stream.read(self._random.randint(1, size) if self._random else size)


class Raw(io.RawIOBase):
    """A stream as a socket's, of some bytes each time."""

    def __init__(self, data, step=1000):
        self._stream, self._step = io.BytesIO(data), step

    def readable(self):
        return True

    def readinto(self, buffer):
        return self._stream.readinto(memoryview(buffer)[: self._step])


STREAMS = {
    "BytesIO": io.BytesIO,
    "only read": OnlyRead,
    "short reads": lambda data: OnlyRead(data, seed=1),
    "few bytes": lambda data: Raw(data, 61),
    "raw": Raw,
    "buffered": lambda data: io.BufferedReader(Raw(data)),
}


class Sink(io.RawIOBase):
    """A stream that cannot seek, to write to."""

    def __init__(self):
        self.data = bytearray()

    def writable(self):
        return True

    def write(self, data):
        self.data += data
        return len(data)


def opened(data):
    """What open gives: arrays by key, or the error in reading one."""
    found = {}
    with npzkit.open(data) as npz:
        for key in npz:
            try:
                found[key] = npz[key]
            except NpzkitError as error:
                found[key] = error
    return found


def outcome(data):
    """What open gives, or the error in opening."""
    try:
        return opened(data)
    except NpzkitError as error:
        return error


def streamed(stream, **options):
    """What came before the end, the error or None, and the warnings."""
    found, error = [], None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for item in npzkit.iter_arrays(stream, **options):
                found.append(item)
        except NpzkitError as raised:
            error = raised
    return found, error, {warning.category for warning in caught}


def check_equal(found, expected):
    assert [key for key, _ in found] == list(expected)
    for key, array in found:
        if isinstance(array, np.ndarray):
            assert same(array, expected[key])
            assert array.flags.writeable
        else:
            assert array == expected[key]


def edited(edit, **arrays):
    """An archive that was changed in place, its old arrays still in it."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": X, "y": Y, **arrays})
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        edit(w)
    return stream.getvalue()


# -- what comes -----------------------------------------------------------------


@pytest.mark.slow
@each_row("kind", STREAMS)
@each_row("compression", ["stored", "deflated", "zstd"])
def test_own_archives_come_as_open_gives_them(kind, compression, arrays):
    """Arrays of all kinds, indexes and metadata: each array comes once, in order, writable."""
    data = packed({**arrays, "noise": NOISE}, compression=compression, metadata={"m": "x" * 70_000})
    found = list(npzkit.iter_arrays(STREAMS[kind](data)))
    check_equal(found, opened(data))


@pytest.mark.slow
@each_row("maker", MAKERS)
@each_row("kind", ["BytesIO", "short reads"])
def test_archives_of_other_programs(maker, kind, tmp_path):
    """An archive of any program comes as open gives it, or its first unreadable array raises.

    What SOZip's programs leave out of the directory is named at the end, to be dropped.
    """
    path, _ = made_by(maker, tmp_path / "a.npz")
    data = path.read_bytes()
    expected = opened(data)
    found, error, _ = streamed(STREAMS[kind](data))
    if error is None:
        check_equal(found, expected)
    elif maker == "sozipfile":
        assert error.keys == (".big.npy.sozip.idx",)
        check_equal([item for item in found if item[0] not in error.keys], expected)
    else:
        assert isinstance(expected[error.key], type(error))
        check_equal(found, dict(itertools.takewhile(lambda i: i[0] != error.key, expected.items())))


def test_a_pipe_gives_each_array_when_it_has_arrived():
    """The consumer gets an array while the writer has not begun the next one."""
    data = packed({"x": X, "y": Y})
    place = data.index(b"y.npy") - 30
    reading, writing = os.pipe()
    got_x = threading.Event()

    def write():
        with os.fdopen(writing, "wb", 0) as pipe:
            pipe.write(data[:place])
            assert got_x.wait(10)
            pipe.write(data[place:])

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(reading, "rb") as stream:
        arrays = npzkit.iter_arrays(stream)
        assert next(arrays)[0] == "x"
        got_x.set()
        assert next(arrays)[0] == "y"
        assert next(arrays, None) is None
        assert not stream.closed
    writer.join()


def test_parts_names_and_other_members():
    """Parts come as npz[key] gives them, bytes of other members as bytes, bare names as open has them."""
    parts = packed({"m": np.ma.array([1, 2], mask=[0, 1])}, masked="split")
    assert [key for key, _ in npzkit.iter_arrays(io.BytesIO(parts))] == ["m", "m.mask"]
    data = archive(
        Member("a", npy(X)), Member("a.npy", npy(Y)), Member("note.txt", b"hi", method=8),
        Member("folder/", b""),
    )  # fmt: skip
    check_equal(list(npzkit.iter_arrays(io.BytesIO(data))), opened(data))


def test_dtypes_that_npy_cannot_name():
    """bfloat16 comes as it was saved."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    data = packed({"x": np.ones(3, ml_dtypes.bfloat16)})
    ((_, array),) = npzkit.iter_arrays(io.BytesIO(data))
    assert array.dtype == ml_dtypes.bfloat16


def test_objects_need_allow_pickle(fixtures):
    """Pickles are refused unless they are allowed, as when a file is opened."""
    data = (fixtures / "numpy_object.npz").read_bytes()
    with pytest.raises(PickleRefusedError, match="objects"):
        list(npzkit.iter_arrays(io.BytesIO(data)))
    found = dict(npzkit.iter_arrays(io.BytesIO(data), allow_pickle=True))
    with npzkit.open(data, allow_pickle=True) as npz:
        assert found.keys() == set(npz)
        assert all(found[key].tolist() == npz[key].tolist() for key in npz)


# -- sizes behind the data --------------------------------------------------------


@each_row("shape", ["32", "64", "signed", "signed 64"])
@each_row("data", [npy(X), npy(np.zeros((0, 2))), b""])
def test_descriptors(shape, data):
    """Deflated data ends itself, in front of a descriptor of any shape, of members without bytes too."""
    name = "a.npy" if data else "note"
    made = archive(
        Member(name, data, method=8, descriptor=shape),
        Member("b.npy", npy(Y), method=8, descriptor=shape),
    )
    for make in STREAMS.values():
        check_equal(list(npzkit.iter_arrays(make(made))), opened(made))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_zipfile_to_a_pipe(method):
    """Every compression of zipfile ends itself, and folders of a stream are members without data."""
    sink = Sink()
    with zipfile.ZipFile(sink, "w", method) as z:
        z.writestr("x.npy", npy(NOISE[:3000]))
        z.writestr(zipfile.ZipInfo("folder/"), b"")
        z.writestr("y.npy", npy(Y))
    check_equal(list(npzkit.iter_arrays(Raw(sink.data))), opened(bytes(sink.data)))


@pytest.mark.remedy("Save the stream to a file, and open that.")
def test_numpy_to_a_pipe():
    """np.savez_compressed to a stream can be followed; np.savez cannot, and the error says so."""
    compressed, stored = Sink(), Sink()
    np.savez_compressed(compressed, x=X, y=Y)
    np.savez(stored, x=X, y=Y)
    assert [key for key, _ in npzkit.iter_arrays(Raw(compressed.data))] == ["x", "y"]
    with pytest.raises(UnsupportedError, match=r"nothing shows where it ends.*key 'x'.*file"):
        list(npzkit.iter_arrays(Raw(stored.data)))
    check_equal(opened(bytes(stored.data)).items(), {"x": X, "y": Y})


def test_deflate64_ends_itself(fixtures):
    """A stream of Deflate64 whose size follows it is read up to its own end."""
    with npzkit.open(fixtures / "7zip_deflate64.npz") as npz:
        key = npz.files[0]
        entry, array = npz._archive.entry(key), npz[key]
        start = npz.info(key).data_offset
    raw = (fixtures / "7zip_deflate64.npz").read_bytes()[start : start + entry.compressed_size]
    made = archive(
        Member(f"{key}.npy", npy(array), method=9, raw=raw, descriptor="signed"),
        Member("y.npy", npy(Y)),
    )
    check_equal(list(npzkit.iter_arrays(io.BytesIO(made))), {key: array, "y": Y})


def test_lzma_without_an_end_mark_is_not_followed():
    """LZMA whose size follows it, and that marks no end, is an error that says so."""
    made = archive(Member("x.npy", npy(X), method=14, raw=b"?" * 50, descriptor="signed"))
    with pytest.raises(UnsupportedError, match="lzma"):
        list(npzkit.iter_arrays(io.BytesIO(made)))


@pytest.mark.parametrize("options", [[], ["-fd"], ["-0"], ["-0", "-fd"]])
def test_infozip_to_a_pipe(options, tmp_path):
    """What `zip -` writes is read, stored members too: Info-ZIP gives their sizes first."""
    for name, array in {"x": X, "y": NOISE}.items():
        np.save(tmp_path / f"{name}.npy", array)
    command = ["zip", "-q", *options, "-", "x.npy", "y.npy"]
    try:
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("zip is not installed")
    check_equal(list(npzkit.iter_arrays(Raw(made))), {"x": X, "y": NOISE})


@pytest.mark.parametrize("local", [{}, {"csize": 176, "usize": 176}])
def test_what_a_descriptor_denies(local):
    """A descriptor with another CRC is a ChecksumError, one with another size a ZipFormatError."""
    member = Member("x.npy", npy(X), method=0 if local else 8, descriptor="signed", local=local)
    sound = archive(member)
    assert next(npzkit.iter_arrays(io.BytesIO(sound)))[0] == "x"
    place = sound.index(b"PK\x07\x08")
    for offset, expected in ((4, ChecksumError), (8, ZipFormatError), (12, ZipFormatError)):
        data = bytearray(sound)
        data[place + offset] ^= 1
        found, error, _ = streamed(io.BytesIO(data))
        assert (found, type(error), error.key) == ([], expected, "x")


# -- what the directory says --------------------------------------------------------


def test_an_archive_that_was_appended_to():
    """The end record in mid-stream is not the end: what was appended comes too."""
    data = edited(lambda w: w.add("z", np.arange(3)))
    check_equal(list(npzkit.iter_arrays(OnlyRead(data))), opened(data))


ZEROS = {"before an intent": (2, 20), "before a record": (3, 792)}
"""Number of commits, and bytes of an array, by which the last one has zeros there."""


def commits(number, size=150):
    """An archive of several commits."""
    stream = io.BytesIO()
    npzkit.save(stream, {"x": np.ones(size, "u1"), "y": Y}, metadata={"n": 0})
    for n in range(1, number):
        with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
            w.metadata["n"] = n
            w.add(f"z{n}", np.full(40 * n, n, "u1"))
    return stream.getvalue()


def as_file(data):
    """What a file gives: its arrays, its metadata and its warnings; or the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with npzkit.open(data) as npz:
                return npz.load_all(), {w.category for w in caught}
        except NpzkitError as error:
            return type(error), error.what


def as_stream(data):
    """What the same bytes give as a stream; an error about arrays too many says which to drop."""
    found, error, categories = streamed(OnlyRead(data, seed=2))
    if isinstance(error, OutdatedArraysError):
        assert set(error.keys) <= set(dict(found))
        assert not error.missing
        return {key: array for key, array in found if key not in error.keys}, categories
    return (dict(found), categories) if error is None else (type(error), error.what)


def check_same_answer(data):
    found, expected = as_stream(data), as_file(data)
    if not isinstance(expected[0], dict):
        assert found == expected
        return
    assert found[1] == expected[1]
    assert list(found[0]) == list(expected[0])
    assert all(same(found[0][key], array) for key, array in expected[0].items())


def test_there_are_zeros_between_commits():
    """Archives of the tests below have zeros before the intent or the record of the last commit."""
    for place, (number, size) in ZEROS.items():
        data, end = commits(number, size), len(commits(number - 1, size))
        last = bytes([number - 1]) * 40 * (number - 1)
        _, footer = find_footer(data)
        record = footer.directory_offset - footer.record_size
        zeros = {
            "before an intent": data[end : find_intent(end)],
            "before a record": data[data.index(last) + len(last) : record],
        }
        assert {name for name, found in zeros.items() if found} == {place}
        assert not any(zeros[place])


@each_row("size", [150, 730])
@each_row("number", [1, 2, 3, 8])
def test_what_an_append_writes_beside_members_is_no_array(number, size):
    """Intents, zeros, records and directories between members are passed over, without a warning."""
    data = commits(number, size)
    assert data.count(piece(bytes(28))[:57]) == number - 1
    found, error, categories = streamed(io.BytesIO(data))
    assert [key for key, _ in found] == ["x", "y", *(f"z{n}" for n in range(1, number))]
    assert (error, categories) == (None, set())
    check_same_answer(data)


def test_an_append_without_its_seal_comes_from_a_stream():
    """Its arrays came, and are named as those that the archive does not have; strict refuses it."""
    data = unfinished(commits(3))
    found, error, categories = streamed(OnlyRead(data))
    assert [key for key, _ in found] == ["x", "y", "z1", "z2"]
    assert isinstance(error, OutdatedArraysError)
    assert (error.keys, categories) == (("z2",), {TornArchiveWarning})
    with pytest.raises(ZipFormatError, match="torn end"):
        list(npzkit.iter_arrays(io.BytesIO(data), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("made", ZEROS.values(), ids=ZEROS)
def test_an_unfinished_append_as_a_stream_and_as_a_file(made):
    """Wherever an append of the last commit ended, with its mark or without, both answer alike."""
    whole = commits(*made)
    slot = last_slot(whole)
    begin, mark = slot + SLOT_SIZE - INTENT_SIZE, slice(slot, slot + SLOT_SIZE)
    for is_marked in (True, False):
        data = bytearray(whole)
        if not is_marked:
            data[mark] = bytes(SLOT_SIZE)
        seal = data.rindex(b"PK\5\6")
        data[seal : seal + 4] = bytes(4)
        for size in range(begin - 120, len(data) + 1, extent(23, 1)):
            check_same_answer(bytes(data[:size]))


@pytest.mark.parametrize("size", [0xFFFF, 0xFFFC, 65_001, 51, 0])
def test_a_piece_of_another_size(size):
    """What has another size than a piece can have, or this one has, is as it is in a file."""
    whole = commits(2)
    for begin in (whole.index(b".npzkit") - 46, whole.rindex(b".npzkit") - 46):
        data = bytearray(whole)
        data[begin + 55 : begin + 57] = size.to_bytes(2, "little")
        check_same_answer(bytes(data))


@pytest.mark.slow
def test_a_damaged_commit_as_a_stream_and_as_a_file():
    """Any byte behind the last member that is wrong gives a stream what it gives a file."""
    whole = commits(3)
    _, footer = find_footer(whole)
    begin = footer.directory_offset - footer.record_size
    for place in range(begin, len(whole), extent(5, 1)):
        data = bytearray(whole)
        data[place] ^= 0x10
        check_same_answer(bytes(data))


@pytest.mark.parametrize("count", [2, 1500])
def test_a_stream_whose_directory_does_not_fit_its_checksum(count):
    """A wrong bit of the directory that no local header repeats is found at the end.

    Also of a directory that is longer than what is kept of the stream's end.
    """
    data = bytearray(packed({f"number {n}": X[:1] for n in range(count)}))
    data[data.rindex(b"PK\1\2") + 38] ^= 1
    error = streamed(io.BytesIO(data))[1]
    assert isinstance(error, ZipFormatError)
    assert "does not fit its checksum" in str(error)


@pytest.mark.remedy("Read them without strict=True; the last array of a key is current.")
def test_a_replaced_array_comes_twice_and_a_warning_names_it():
    """The last array of a key is the current one; the warning, or with strict the error, says so."""
    data = edited(lambda w: w.add("x", np.arange(3), overwrite=True))
    found, error, categories = streamed(io.BytesIO(data))
    assert [key for key, _ in found] == ["x", "y", "x"]
    assert (error, categories) == (None, {AmbiguousArchiveWarning})
    assert all(same(dict(found)[key], array) for key, array in opened(data).items())
    with pytest.warns(AmbiguousArchiveWarning, match="'x'"):
        list(npzkit.iter_arrays(io.BytesIO(data)))
    with pytest.raises(AmbiguousArchiveError, match="'x'"):
        list(npzkit.iter_arrays(io.BytesIO(data), strict=True))


@pytest.mark.remedy(
    "Drop them; or save the stream to a file, open that, and read only current arrays."
)
@pytest.mark.parametrize(
    "edit", [lambda w: w.rename("y", "z"), lambda w: w.__delitem__("y")], ids=["renamed", "removed"]
)
def test_an_array_that_is_gone_is_an_error_at_the_end(edit):
    """The error comes after all arrays, and names the keys that the archive does not have."""
    data = edited(edit)
    found, error, _ = streamed(io.BytesIO(data))
    assert isinstance(error, OutdatedArraysError)
    assert error.keys == ("y",)
    assert error.missing == ()
    current = {key: array for key, array in found if key not in error.keys}
    assert current.keys() == opened(data).keys()


def test_a_bare_name_behind_the_array_of_its_key():
    """Where a later name changes the key of an earlier member, the error names what is missing."""
    found, error, _ = streamed(io.BytesIO(archive(Member("a.npy", npy(X)), Member("a", npy(Y)))))
    assert [key for key, _ in found] == ["a", "a"]
    assert isinstance(error, OutdatedArraysError)
    assert error.missing == ("a.npy",)


def test_attributes_that_change_the_dtype():
    """An array whose dtype is named only by the directory did not come as open gives it."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    block = b"KeyValuePairs\x01" + b"".join(
        struct.pack("<H", len(text)) + text for text in (b"npzkit.dtype", b'"bfloat16"')
    )
    extra = struct.pack("<HH", 0x564B, len(block)) + block
    member = Member("h.npy", npy(np.ones(3, "V2")), extra=extra, local_extra=b"")
    made = archive(member)
    assert opened(made)["h"].dtype == ml_dtypes.bfloat16
    _, error, _ = streamed(io.BytesIO(made))
    assert isinstance(error, OutdatedArraysError)
    assert error.keys == ("h",)


@pytest.mark.parametrize("field", ["crc", "csize", "usize", "method", "flags"])
def test_a_local_header_that_the_directory_denies(field):
    """The array came, and the error at the end names it, as opening and reading would."""
    values = {"flags": 1, "method": 12}
    member = Member("x.npy", npy(X), central={field: values.get(field, 5)})
    _, error, _ = streamed(io.BytesIO(archive(member)))
    assert isinstance(error, NpzkitError)


def test_a_listed_member_that_did_not_come():
    """An entry that leads into another member's data is an error: it was not read."""
    inner = Member("y.npy", npy(Y)).local_bytes()
    outer = Member("x", inner)
    entry = Member("y.npy", npy(Y)).central_bytes(len(outer.local_bytes()) - len(inner))
    end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(outer.local_bytes()), 0)
    data = outer.local_bytes() + entry + end
    assert opened(data).keys() == {"y"}
    _, error, _ = streamed(io.BytesIO(data))
    assert isinstance(error, ZipFormatError)
    assert "did not come" in str(error)


# -- ends -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", [OnlyRead, io.BytesIO])
def test_a_stream_that_is_cut_anywhere(make):
    """What came before is right, and the end is an error, or what open says of such a file."""
    data = edited(lambda w: w.add("z", np.arange(3), compression="deflated"))
    whole = opened(data)
    for size in range(0, len(data), 7):
        found, error, categories = streamed(make(data[:size]))
        assert all(same(array, whole[key]) for key, array in found)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            expected = outcome(data[:size])
        if isinstance(expected, NpzkitError):
            assert type(error) is type(expected)
        else:
            assert error is None or isinstance(error, OutdatedArraysError)
            assert dict(found).keys() - set(getattr(error, "keys", ())) == expected.keys()
            assert TornArchiveWarning in categories or len(expected) == len(found)


@pytest.mark.parametrize("compression", ["stored", "deflated", "zstd"])
def test_an_append_that_was_not_finished(compression, tmp_path):
    """What a killed writer left behind the last commit warns, wherever it ends; nothing of it comes."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": X, "y": Y})
    writer = npzkit.NpzWriter(path, "a")
    shape = (20_000, 30) if compression == "stored" else (None, 30)
    created = writer.create("big", shape, "f8", compression=compression)
    rows = np.random.default_rng(0).random((15_000, 30))
    if compression == "stored":
        created[:15_000] = rows
    else:
        created.append(rows)
    data = path.read_bytes()
    writer.abort()
    end = len(path.read_bytes())
    for size in (end + 5, end + 200, end + 2000, len(data) - 1, len(data)):
        found, error, categories = streamed(io.BytesIO(data[:size]))
        assert ([key for key, _ in found], error) == (["x", "y"], None)
        assert categories == {TornArchiveWarning}


def test_damage_in_what_was_appended():
    """Behind an end record, the error of a damaged array comes at the end, and only if it is listed."""
    data = bytearray(edited(lambda w: (w.add("z", NOISE), w.add("last", X))))
    data[-50_000] ^= 1
    found, error, _ = streamed(io.BytesIO(data))
    assert [key for key, _ in found] == ["x", "y", "last"]
    assert isinstance(error, ChecksumError)
    assert error.key == "z"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "empty"), (b"<html>", "HTML"), (b"\x1f\x8b123", "gzip"), (npy(X), "bare .npy"),
        (b"junk" + archive(), "not a zip archive"), (b"P", "not a zip archive"),
    ],
)  # fmt: skip
def test_what_is_no_archive(data, text):
    """A stream of anything else says what it seems to be, at its first bytes."""
    stream = OnlyRead(data + bytes(1 << 20) if data[1:] else data)
    with pytest.raises(ZipFormatError, match=text):
        next(npzkit.iter_arrays(stream))
    assert stream.largest < 10_000


def test_what_follows_an_archive():
    """Junk behind the end warns, a second archive is ambiguous, as when the file is opened."""
    data = packed({"x": X})
    for tail in (b"junk", bytes(100_000), b"PK" * 50):
        found, error, categories = streamed(Raw(data + tail))
        assert (len(found), error, categories) == (1, None, {TornArchiveWarning})
        with pytest.raises(ZipFormatError):
            list(npzkit.iter_arrays(Raw(data + tail), strict=True))
    for tail in (packed({"y": Y}), bytes(10) + packed({"y": Y}), packed({"y": NOISE})):
        assert isinstance(streamed(Raw(data + tail))[1], AmbiguousArchiveError)
    with pytest.raises(AmbiguousArchiveError):
        npzkit.open(data + packed({"y": Y}))


def test_gaps_between_members():
    """Bytes between members are passed over, up to the next record."""
    for gap in (b"gap", bytes(5000), b"PKPK\x03" * 99):
        data = archive(Member("x.npy", npy(X)), Member("y.npy", npy(Y), method=8), gap=gap)
        check_equal(list(npzkit.iter_arrays(Raw(data, 100))), opened(data))


def test_empty_archives():
    """An archive without arrays yields nothing, and no error."""
    assert list(npzkit.iter_arrays(io.BytesIO(packed({})))) == []
    assert list(npzkit.iter_arrays(OnlyRead(archive()))) == []


@pytest.mark.remedy("save the stream to a file: npzkit.open(path).read(key, verify=False)")
def test_damage_is_found_before_the_array_is_yielded(tmp_path):
    """A flipped byte is a ChecksumError that names key and offset; arrays before it came."""
    data = bytearray(packed({"x": X, "y": NOISE}))
    data[-20_000] ^= 1
    found, error, _ = streamed(io.BytesIO(data))
    assert [key for key, _ in found] == ["x"]
    assert isinstance(error, ChecksumError)
    assert (error.key, error.path) == ("y", None)
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with npzkit.open(path) as npz:
        assert np.sum(npz.read("y", verify=False) != NOISE) == 1


# -- limits ------------------------------------------------------------------------


def test_memory_is_that_of_one_array():
    """A stream of many megabytes takes the memory of its largest array and a few pieces."""
    data = packed({f"w{i}": np.full(250_000, i, "f8") for i in range(12)})
    stream = OnlyRead(data)
    tracemalloc.start()
    for _ in npzkit.iter_arrays(stream):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2_000_000 + (2 << 20) < len(data) / 3
    assert stream.largest <= 1 << 20


def test_old_directories_take_no_memory():
    """Of an archive with many commits, the directories that no longer count are not kept."""
    member = Member("x.npy", npy(X))
    entries = Member("x.npy", npy(X), comment=bytes(4000)).central_bytes(0) * 50
    commit = entries + struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 50, 50, len(entries), 0, 0)
    sound = archive(member)
    size = len(member.local_bytes())
    old = commit * 20
    end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 1, 1, 51, size + len(old), 0)
    data = sound[:size] + old + member.central_bytes(0) + end
    assert len(data) > 4_000_000
    tracemalloc.start()
    check_equal(list(npzkit.iter_arrays(OnlyRead(data))), {"x": X})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


@pytest.mark.parametrize("method", [0, 8, 12])
def test_a_claimed_size_allocates_nothing(method):
    """An array of a terabyte, of which a few bytes come, costs a few megabytes."""
    size = 1 << 40
    start = header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},)}}")
    raw = {0: start, 8: deflate(start), 12: bz2.compress(start)}[method]
    sizes = len(start) + size, len(start) + size
    member = Member(
        "a.npy", start, method=method, raw=raw, extra=struct.pack("<HHQQ", 1, 16, *sizes),
        local={"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF},
    )  # fmt: skip
    tracemalloc.start()
    _, error, _ = streamed(io.BytesIO(member.local_bytes() + bytes(1000)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(error, NpzkitError)
    assert peak < 20 << 20


@pytest.mark.parametrize("descriptor", [None, "signed"])
def test_limits(descriptor):
    """Each limit holds while the stream comes, also where sizes follow the data."""
    members = [
        Member(f"{n}.npy", npy(np.zeros(1000)), method=8, descriptor=descriptor) for n in "ab"
    ]
    data = archive(*members)
    for limits in (
        npzkit.Limits(member_size=5000), npzkit.Limits(member_count=1),
        npzkit.Limits(total_size=10_000), npzkit.Limits(header_size=10),
    ):  # fmt: skip
        found, error, _ = streamed(io.BytesIO(data), limits=limits)
        assert isinstance(error, LimitExceededError)
        assert len(found) < 2


def test_a_bomb_stops_at_its_limit():
    """A stream of deflate that goes on past the size of its array is not inflated further."""
    member = Member("x.npy", npy(X) + bytes(5_000_000), method=8, descriptor="signed")
    stream = OnlyRead(member.local_bytes())
    tracemalloc.start()
    _, error, _ = streamed(stream)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(error, ZipFormatError)
    assert peak < 2 << 20


def test_lzma_allocates_no_dictionary_that_is_claimed():
    """LZMA of unknown size gets a dictionary of 64 MiB at most."""
    model = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16}
    raw = b"\x09\x04\x05\x00\x5d\xff\xff\xff\xff"
    raw += lzma.compress(npy(X), lzma.FORMAT_RAW, filters=[model])
    member = Member("x.npy", npy(X), method=14, raw=raw, descriptor="signed", local={"flags": 10},
                    central={"flags": 10})  # fmt: skip
    data = archive(member)
    check_equal(list(npzkit.iter_arrays(io.BytesIO(data))), {"x": X})


# -- streams --------------------------------------------------------------------------


def test_what_is_no_stream(tmp_path):
    """A path, text, and an object without read are TypeErrors, before anything is read."""
    for wrong in ("a.npz", tmp_path, b"PK", io.StringIO("text"), None):
        with pytest.raises(TypeError):
            npzkit.iter_arrays(wrong)

    class Text:
        def read(self, size):
            return "text"

    with pytest.raises(TypeError, match="text"):
        list(npzkit.iter_arrays(Text()))


def test_a_socket_and_a_response():
    """A socket's makefile and the body of an HTTP response are read to their ends."""
    data = packed({"x": X, "noise": NOISE}, compression="deflated")
    sending, receiving = socket.socketpair()
    sender = threading.Thread(target=lambda: (sending.sendall(data), sending.close()))
    sender.start()
    with receiving, receiving.makefile("rb") as stream:
        assert [key for key, _ in npzkit.iter_arrays(stream)] == ["x", "noise"]
    sender.join()
    for head in (f"Content-Length: {len(data)}\r\n\r\n".encode(), b"\r\n"):
        sending, receiving = socket.socketpair()
        text = b"HTTP/1.1 200 OK\r\n" + head + data
        sender = threading.Thread(target=lambda end, all_: (end.sendall(all_), end.close()),
                                  args=(sending, text))  # fmt: skip
        sender.start()
        with receiving, http.client.HTTPResponse(receiving) as response:
            response.begin()
            assert [key for key, _ in npzkit.iter_arrays(response)] == ["x", "noise"]
        sender.join()


def test_errors_of_the_stream_pass_through():
    """What the stream raises is raised as it is, and arrays before it came."""
    data = packed({"x": X, "y": NOISE})

    class Broken(Raw):
        def readinto(self, buffer):
            if self._stream.tell() > 2000:
                raise ConnectionResetError("gone")
            return super().readinto(buffer)

    arrays = npzkit.iter_arrays(Broken(data))
    assert next(arrays)[0] == "x"
    with pytest.raises(ConnectionResetError, match="gone"):
        next(arrays)


def test_a_stream_that_has_nothing_yet():
    """None, as of a stream that does not block, means to wait, not the end."""
    data = packed({"x": X})

    class Lazy(OnlyRead):
        calls = 0

        def read(self, size):
            self.calls += 1
            return super().read(size) if self.calls % 2 == 0 else None

    assert [key for key, _ in npzkit.iter_arrays(Lazy(data))] == ["x"]
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", 0) as pipe:
        pipe.write(data[:100])
        timer = threading.Timer(0.03, lambda: (pipe.write(data[100:]), pipe.close()))
        timer.start()
        assert [key for key, _ in npzkit.iter_arrays(stream)] == ["x"]
        timer.join()


def test_stopping_early_leaves_the_stream():
    """Whoever has the array that was wanted may stop; the stream stays open."""
    stream = io.BytesIO(packed({"x": X, "y": Y}))
    for key, _ in npzkit.iter_arrays(stream):
        if key == "x":
            break
    assert not stream.closed


# -- properties -------------------------------------------------------------------------


@st.composite
def sound_archives(draw):
    """An archive of any make, and which arrays it has."""
    arrays = draw(
        st.dictionaries(
            st.text("abc/é", min_size=1, max_size=4).filter(_is_key), any_arrays(), max_size=4
        )
    )
    maker = draw(
        st.sampled_from(["npzkit", "deflated", "savez", "compressed", "zipfile", "pipe", "forged"])
    )
    if maker in ("npzkit", "deflated"):
        compression = "stored" if maker == "npzkit" else "deflated"
        return packed(arrays, compression=compression, allow_pickle=False)
    if maker == "forged":
        kinds = st.sampled_from([(0, None), (8, None), (8, "signed"), (8, "64"), (8, "signed 64")])
        members = [
            Member(f"{key}.npy", npy(array), method=method, descriptor=descriptor)
            for key, array in arrays.items()
            for method, descriptor in [draw(kinds)]
        ]
        return archive(*members, gap=draw(st.sampled_from([b"", b"\0\0\0"])))
    sink = Sink() if maker in ("pipe", "compressed") else io.BytesIO()
    method = zipfile.ZIP_STORED if maker == "savez" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(sink, "w", method) as z:
        for key, array in arrays.items():
            with z.open(f"{key}.npy", "w", force_zip64=maker in ("savez", "compressed")) as member:
                member.write(npy(array))
    return bytes(sink.data if isinstance(sink, Sink) else sink.getvalue())


def _is_key(key):
    return "//" not in key and key[0] != "/" and key[-1] != "/"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@given(sound_archives(), st.integers(0, 9))
def test_sound_archives_come_as_open_gives_them(data, seed):
    """Of any make, however few bytes each read returns."""
    check_equal(list(npzkit.iter_arrays(OnlyRead(data, seed))), opened(data))


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@given(sound_archives(), st.data())
def test_damaged_archives_never_come_in_silence(data, draw):
    """Whatever byte is wrong: the data of open comes, or an error before the end of the iteration."""
    damaged = bytearray(data)
    place = draw.draw(st.integers(0, len(data) - 1))
    damaged[place] ^= draw.draw(st.integers(1, 255))
    found, error, _ = streamed(OnlyRead(damaged, place))
    if error is None:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            expected = opened(bytes(damaged))
        assert dict(found).keys() == expected.keys()
        assert all(same(array, expected[key]) for key, array in found)


@each_row("place", [4, 6, 8, 14, 18, 22, 26, 28])
def test_headers_of_npy_and_zip_that_lie(place):
    """No field of a local header can be changed without an error."""
    data = bytearray(archive(Member("x.npy", npy(X)), Member("y.npy", npy(Y))))
    data[place] ^= 4
    _, error, _ = streamed(io.BytesIO(data))
    # The version needed, and flags that only tell how data was compressed, decide nothing.
    assert error is not None or place in (4, 6)


def test_an_npy_header_that_does_not_fit():
    """A member with fewer or more bytes than its array is an error, with a descriptor too."""
    for data, options in itertools.product(
        (npy(X)[:-1], npy(X) + b"1"), ({}, {"method": 8}, {"method": 8, "descriptor": "64"})
    ):
        _, error, _ = streamed(io.BytesIO(archive(Member("x.npy", data, **options))))
        assert isinstance(error, NpyFormatError | ZipFormatError)
        assert error.key == "x"


@pytest.mark.slow
def test_a_long_gap_takes_no_memory():
    """Of bytes between members, only the first are kept."""
    members = [Member(f"{key}.npy", npy(np.arange(3))) for key in "ab"]
    data = archive(*members, gap=bytes(30_000_000))
    stream = io.BytesIO(data)
    tracemalloc.start()
    try:
        keys = [key for key, _ in npzkit.iter_arrays(stream)]
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert keys == ["a", "b"]


@pytest.mark.parametrize("is_filled", [True, False])
@pytest.mark.parametrize("mode", ["w", "a"])
def test_an_array_that_was_given_up(tmp_path, mode, is_filled):
    """The room of an array that was given up while it was being created is passed over."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": X})
    with pytest.raises(KeyError), npzkit.NpzWriter(path, mode, auto_repack=False) as w:
        w.add("y", Y)
        created = w.create("later", (3000,), "f8")
        if is_filled:
            created[:100] = 7
        w.add("z", X)
        w.commit()
        raise KeyError
    expected = {"x": X, "y": Y, "z": X} if mode == "a" else {"y": Y, "z": X}
    found = dict(npzkit.iter_arrays(OnlyRead(path.read_bytes())))
    assert {key: array.tolist() for key, array in found.items()} == {
        key: array.tolist() for key, array in expected.items()
    }


def test_a_listed_array_without_its_crc_32(tmp_path):
    """An array that the archive has, and whose CRC-32 became zero, raises at the end of the stream."""
    npzkit.save(tmp_path / "a.npz", {"x": X, "y": Y})
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[14:18] = bytes(4)
    found = npzkit.iter_arrays(OnlyRead(data))
    assert next(found)[0] == "y"
    with pytest.raises(ChecksumError):
        next(found)
