"""Rows that are added to an array that is there, by `NpzWriter.append`."""

import datetime
import decimal
import io
import itertools
import re
import zipfile

import npzkit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import (
    ChecksumError,
    ClosedArchiveError,
    MemberNotFoundError,
    NotAnArrayError,
    PickleRefusedError,
    UnsupportedError,
)

from tables import each_row

DTYPES = ["u1", "<i4", ">f8", "S3", "<U2", "M8[s]", "c16", [("a", "i2"), ("b", "f4", 2)]]


def appended(stream, key, *parts, **options):
    with npzkit.NpzWriter(stream, "a", **options) as writer:
        for part in parts:
            writer.append(key, part)
    assert npzkit.verify(stream).ok
    return npzkit.open(stream)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), min_size=0, max_size=2),
    st.lists(st.integers(0, 5), min_size=2, max_size=4),
    st.sampled_from(["stored", "deflated", "zstd"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_an_array_with_rows_added_is_what_concatenating_gives(
    dtype, rest, counts, compression, fortran, random
):
    """Any dtype, shape, order and compression, written by npzkit."""
    dtype = np.dtype(dtype)
    parts = []
    for count in counts:
        data = random.randbytes(count * int(np.prod(rest)) * dtype.itemsize)
        if dtype.kind == "U":
            data = np.frombuffer(data, "u4") % 100
        parts.append(np.frombuffer(data, dtype).reshape(count, *rest))
    stream = io.BytesIO()
    first = np.asfortranarray(parts[0]) if fortran else parts[0]
    npzkit.save(stream, {"before": np.ones(2), "log": first, "after": np.ones(3)},
                compression=compression)  # fmt: skip
    npz = appended(stream, "log", *parts[1:])
    # NumPy joins arrays of the other byte order to one of its own.
    expected = np.concatenate(parts).astype(dtype)
    stream.seek(0)
    theirs = npz if compression == "zstd" else np.load(stream)
    for found in (npz["log"], theirs["log"]):
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()
        assert found.shape == expected.shape
    assert list(npz) == ["before", "log", "after"]
    assert npz["log"].flags.fnc == first.flags.fnc or expected.size == 0


@pytest.mark.slow
@each_row("compression", ["stored", "deflated", "zstd"])
@each_row("count", [1, 1000, 4096 * 3 // 8 - 16, 4096 * 3 // 8, 3000])
def test_chunks_of_a_compressed_array_are_copied_as_they_are(compression, count):
    """An array of many chunks stays seekable, and its middle is the same bytes."""
    old, new = np.arange(20_000) * 3, np.arange(count)
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, compression=compression, chunk_size=4096) as writer:
        writer.add("log", old, attrs={"unit": "m"})
    before = zipped(stream, "log")
    npz = appended(stream, "log", new)
    assert (npz["log"] == np.concatenate([old, new])).all()
    info = npz.info("log")
    assert info.method == compression
    assert info.attrs == {"unit": "m"}
    lazy = npz.lazy("log")
    assert lazy[19_990 : 20_000 + count].tolist() == [*old[19_990:], *new]
    if compression != "stored":
        assert info.seekable
        assert before[len(before) // 4 : len(before) // 2] in zipped(stream, "log")


def zipped(stream, key):
    """Return a member's bytes as they are in the file."""
    info = npzkit.open(stream).info(key)
    return stream.getvalue()[info.data_offset :][: info.compressed_size]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kept"),
    [(zipfile.ZIP_STORED, "stored"), (zipfile.ZIP_DEFLATED, "deflated"),
     (zipfile.ZIP_BZIP2, "deflated"), (zipfile.ZIP_LZMA, "deflated")],
)  # fmt: skip
def test_arrays_of_other_programs_grow_too(method, kept):
    """What npzkit cannot write is deflated."""
    stream, array = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(100_000))
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("log.npy", array.getvalue())
    npz = appended(stream, "log", [1, 2])
    assert npz["log"].tolist() == [*range(100_000), 1, 2]
    assert npz.info("log").method == kept


def test_rows_are_added_to_what_was_not_committed_yet(tmp_path):
    """One row, a list, and rows that are cast, in the session that began the array."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as writer:
        writer["log"] = np.zeros((1, 2), "i2")
        writer.append("log", [1, 2])
        writer.append("log", [[3, 4], [5, 6]])
        writer.commit()
        writer.append("log", np.array([7.0, 8.0]))
        writer.append("log", np.empty((0, 2)))
    assert np.load(path)["log"].tolist() == [[0, 0], [1, 2], [3, 4], [5, 6], [7, 8]]


PLACE = [("at", "M8[s]"), ("x", "f4", (2,)), ("name", "U3")]
OTHER_PLACE = [("name", "U8"), ("x", "f8", (2,)), ("at", "M8[ms]")]


def grow_added(path, first, rows):
    npzkit.save(path, {"log": first})
    with npzkit.NpzWriter(path, "a") as w:
        w.append("log", rows)


def grow_created(path, first, rows):
    with npzkit.NpzWriter(path) as w, w.create("log", (None, *first.shape[1:]), first.dtype) as dst:
        dst.append(first)
        dst.append(rows)


def grow_folder(path, first, rows):
    with npzkit.ShardedWriter(path) as w:
        w.add("log", first)
        w.commit()
    with npzkit.ShardedWriter(path, mode="a") as w:
        w.append("log", rows)


class Timestamp(datetime.datetime):
    """Has a nanosecond more than NumPy takes from it, as that of pandas."""

    def to_numpy(self):
        return np.datetime64(self, "ns") + np.timedelta64(1, "ns")


class NA:
    """Compares as the NA of pandas: nobody knows whether a missing value equals another one."""

    def __ne__(self, other):
        return self

    __eq__ = __ne__
    __hash__ = object.__hash__

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")

    def __str__(self):
        return "<NA>"


class Int64:
    """Looks like integers of pandas of which one is missing."""

    dtype = type("Int64Dtype", (), {"kind": "i"})()

    def __init__(self, large):
        self.large = large

    def __array__(self, dtype=None, copy=None):
        return np.array([self.large, np.nan], dtype)


DOORS = [grow_added, grow_created, grow_folder]


@each_row("grow", DOORS)
@each_row(("dtype", "rows", "expected"), [
    ("u2", [1, 2], [1, 2]),
    ("i4", np.array([1.0, 2.0]), [1, 2]),
    ("?", [0, 1], [False, True]),
    ("f4", np.array([0.1, 1]), [np.float32(0.1), 1]),
    ("f8", [True, 3], [1, 3]),
    ("U3", ["abc"], ["abc"]),
    ("S3", ["abc"], [b"abc"]),
    ("m8[s]", np.array([2000, "NaT"], "m8[ms]"), [np.timedelta64(2, "s"), np.timedelta64("NaT", "s")]),
    ("M8[D]", ["2026-01-02"], [np.datetime64("2026-01-02")]),
    ("M8[us]", [datetime.datetime(2026, 1, 2)], [np.datetime64("2026-01-02")]),
    ("M8[ns]", ["2026-01-01T00:00:00.000000001"], [np.datetime64(1767225600000000001, "ns")]),
    ("m8[s]", np.array([5]), [np.timedelta64(5, "s")]),
    ("m8[s]", [5, 6], [np.timedelta64(5, "s"), np.timedelta64(6, "s")]),
    ("m8[ms]", [datetime.timedelta(milliseconds=3)], [np.timedelta64(3, "ms")]),
    ("M8[s]", ["NaT"], [np.datetime64("NaT", "s")]),
    ("f4", [np.nan, np.inf], [np.nan, np.inf]),
    ("c16", [1, 2.5], [1, 2.5]),
    (PLACE, np.array([("abc", [1, 2], 3000)], OTHER_PLACE), None),
    (PLACE, [(3, [1, 2], "abc")], None),
    ("f4", np.array([decimal.Decimal("0.1"), None], object), [np.float32(0.1), np.nan]),
    ("i8", np.array([True, 2.0], object), [1, 2]),
    ("S3", np.array(["abc", b"d"], object), [b"abc", b"d"]),
    ("M8[D]", np.array([datetime.date(2026, 1, 2), None], object), np.array(["2026-01-02", "NaT"], "M8[D]")),
    ("M8[ns]", [Timestamp(2026, 1, 2), 5, np.nan], np.array([1767312000000000001, 5, "NaT"], "M8[ns]")),
])  # fmt: skip
def test_rows_are_cast_to_the_dtype(tmp_path, grow, dtype, rows, expected):
    """Floating-point numbers are rounded, and fields of records found by their names."""
    first = np.zeros(1, dtype)
    grow(tmp_path / "a", first, rows)
    with npzkit.open(tmp_path / "a") as npz:
        found = npz["log"]
    if expected is None:
        expected = np.array([(3, [1, 2], "abc")], dtype)
    assert found.dtype == first.dtype
    np.testing.assert_array_equal(found, np.concatenate([first, np.array(expected, dtype)]))


@each_row("grow", DOORS)
@each_row(("dtype", "rows", "message"), [
    ("u2", np.array([1, 70000]), r"uint16 cannot represent '70000'.* at \(1,\)"),
    ("u2", [70000], "70000"),
    ("u1", np.array([-1], "i1"), "'-1'"),
    ("i8", np.array([2**63 + 1], "u8"), "9223372036854775809"),
    ("i4", np.array([2.7]), r"'2\.7'"),
    ("i4", [np.nan], "'nan'"),
    ("?", [2], "'2'"),
    ("i4", np.array([5], "m8[s]"), "dtype timedelta64"),
    ("m8[s]", np.array([1500], "m8[ms]"), "1500 milliseconds"),
    ("f8", np.array([1 + 2j]), "dtype complex128"),
    ("f8", ["1"], "dtype <U1"),
    ("U2", np.array(["overload"]), "'overload'"),
    ("U2", [3.5], "'3.5'"),
    ("U2", np.array([3.5]), "dtype float64"),
    ("S3", ["abcd"], "'abcd'"),
    (PLACE, np.zeros(3), "dtype float64"),
    (PLACE, np.array([(0, [0, 0], "abcd")], [*PLACE[:2], ("name", "U4")]), "'abcd'"),
    (PLACE, np.zeros(1, [("other", "M8[s]"), *PLACE[1:]]), "dtype .*other"),
    ("V4", np.zeros(1, "V3"), "V3"),
    ("M8[ns]", np.array(["2026-01-01", "9999-12-31"], "M8[D]"), r"9999-12-31.* at \(1,\)|Overflow"),
    ("M8[ns]", ["9999-12-31"], "9999-12-31|Overflow"),
    ("M8[D]", ["2026-01-01T05"], "2026-01-01T05"),
    ("M8[ns]", [datetime.datetime(1500, 1, 1)], "1500-01-01|Overflow"),
    ("m8[ns]", np.array([146_000], "m8[D]"), "146000 days|Overflow"),
    ("m8[ns]", [datetime.timedelta(146_000)], "146000 days, 0:00:00"),
    (PLACE, np.array([(0, [0, 1e300], "")], [*PLACE[:1], ("x", "f8", (2,)), PLACE[2]]), r"1e\+300"),
    ("f4", [1e300], r"1e\+300"),
    ("f8", np.array([2**53 + 1]), "9007199254740993"),
    ("c8", np.array([2**24 + 1]), "16777217"),
    ("c8", np.array([1e300j]), r"1e\+300j"),
    ("S2", ["é"], "cannot represent all values"),
    ("U4", np.array(["Ulm", None], object), r"<U4 cannot represent None, .* at \(1,\)\. Fill the"),
    ("U4", ["Ulm", None], "None.*Fill the missing values first"),
    ("U4", ["Ulm", np.nan], "'nan'.*Fill the missing values first"),
    ("S4", np.array([b"Ulm", None], object), "None.*Fill the missing values first"),
    ("U4", np.array(["Ulm", NA()], object), "'<NA>'.*Fill the missing values first"),
    ("U4", np.array(["Hamburg"], object), "'Hamburg'.*wider dtype"),
    ("?", [True, None], "None.*Fill the missing values first"),
    ("?", np.array([True, NA()], object), "'<NA>'.*Fill the missing values first"),
    ("?", np.array([True, "False"], object), "'False'"),
    ("i8", np.array([1, None], object), "None.*Fill the missing values first"),
    ("i8", np.array([1, 2.5], object), r"'2\.5'"),
    ("i8", np.array([1, "2"], object), "'2'"),
    ("f8", np.array([2**53 + 1, None], object), "'9007199254740993'"),
    ("f8", np.array([np.int64(2**53 + 1), None], object), "'9007199254740993'"),
    ("f4", np.array([1e300], object), r"1e\+300"),
    ("M8[D]", np.array([datetime.datetime(2026, 1, 2, 3)], object), "2026-01-02 03"),
    ("M8[D]", ["2026-01-02T00:00:00.000000001"], "00:00:00.000000001"),
    ("M8[D]", [np.timedelta64(3, "s")], "3 seconds"),
    ("M8[s]", np.array([np.datetime64(1, "ns"), None], object), "00.000000001"),
    ("M8[s]", [np.float32(0.1)], r"'0\.1'"),
    ("M8[s]", [True], "'True'"),
    ("M8[us]", [Timestamp(2026, 1, 2)], "2026-01-02"),
    ("m8[s]", np.array([np.timedelta64(1500, "ms")], object), "1500 milliseconds"),
    ("m8[s]", [2**63], "9223372036854775808"),
    ("f8", np.array([1.0, np.datetime64("NaT", "s")], object), "'NaT'"),
    ("f8", np.array([1.0, np.timedelta64(3, "s")], object), "3 seconds"),
    ("i8", np.array([np.datetime64(1, "ns")], object), "00.000000001"),
    ("f8", [decimal.Decimal("1e400")], r"1E\+400"),
    ("f2", [-(2**63)], "-9223372036854775808"),
    ("c8", np.array([np.ma.masked], object), "'--'"),
    (PLACE, [(0, [0, 0], None)], "None.*Fill the missing values first"),
    (PLACE, [(0, [0, 0], "abcd")], "'abcd'.*wider dtype"),
])  # fmt: skip
def test_rows_that_would_change_are_refused(tmp_path, grow, dtype, rows, message):
    """No number wraps around, no text is cut off, and no field gets the values of another."""
    first = np.zeros(1, dtype)
    with pytest.raises(ValueError, match=message):
        grow(tmp_path / "a", first, rows)
    if grow is not grow_created:
        with npzkit.open(tmp_path / "a") as npz:
            np.testing.assert_array_equal(npz["log"], first)


def test_longer_texts_replace_the_array(tmp_path):
    """The old bytes are in the folder until it is repacked."""
    texts, path = np.array(["Ulm"] * 9), tmp_path / "a"
    with npzkit.ShardedWriter(path) as w:
        w.update({"city": texts, "x": np.arange(3)})
    with npzkit.ShardedWriter(path, mode="a") as w:
        with pytest.raises(ValueError, match=r"In a folder, npzkit\.repack\(folder\) then removes"):
            w.append("city", ["Hamburg"])
        w.add("city", np.concatenate([npzkit.open(path)["city"], ["Hamburg"]]), overwrite=True)

    def count():
        return sum(file.read_bytes().count(texts.tobytes()) for file in path.iterdir())

    assert count() == 1
    npzkit.repack(path)
    assert count() == 0
    with npzkit.open(path) as npz:
        assert npz["city"].tolist() == [*texts, "Hamburg"] and npz["x"].tolist() == [0, 1, 2]


@each_row("grow", DOORS)
def test_rows_that_may_change_are_cast_first(tmp_path, grow):
    """The error names the cast."""
    rows = np.array([2.5])
    with pytest.raises(ValueError, match="Cast them yourself") as caught:
        grow(tmp_path / "a", np.zeros(1, "i4"), rows)
    instead = re.search(r"(rows\.astype\(.*\)), if", str(caught.value))[1]
    grow(tmp_path / "b", np.zeros(1, "i4"), eval(instead, {"rows": rows}))
    with npzkit.open(tmp_path / "b") as npz:
        assert npz["log"].tolist() == [0, 2]


@each_row("grow", DOORS)
@pytest.mark.remedy("Fill the missing values first (in pandas: rows.fillna(value))")
def test_integers_of_which_some_are_missing_keep_their_digits(tmp_path, grow):
    """They are refused if float64, which pandas makes of them, has other values."""
    with pytest.raises(UnsupportedError, match=r"Fill the missing values first"):
        grow(tmp_path / "a", np.zeros(1), Int64(2**53 + 1))
    grow(tmp_path / "b", np.zeros(1), Int64(3))
    filled = np.nan_to_num(np.asarray(Int64(3)))
    grow(tmp_path / "c", np.zeros(1, "i8"), filled)
    with npzkit.open(tmp_path / "b") as npz, npzkit.open(tmp_path / "c") as other:
        np.testing.assert_array_equal(npz["log"], [0, 3, np.nan])
        assert other["log"].tolist() == [0, 3, 0]


@each_row(("dtype", "value"), [
    ("U4", ["Ulm", None]),
    ("U4", np.array(["Ulm", np.nan], object)),
    ("?", [True, None]),
    ("?", np.array([True, NA()], object)),
    ("f8", Int64(2**53 + 1)),
])  # fmt: skip
@pytest.mark.parametrize("count", [2, None])
def test_no_missing_value_is_assigned_as_another(tmp_path, dtype, value, count):
    """An array that is filled refuses them, as `append` does."""
    with npzkit.NpzWriter(tmp_path / "a.npz") as w, w.create("a", (count,), dtype) as dst:
        with pytest.raises((ValueError, UnsupportedError), match="Fill the missing values first"):
            dst[0:2] = value
        dst[0:2] = [1, 0]
    with npzkit.open(tmp_path / "a.npz") as npz:
        np.testing.assert_array_equal(npz["a"], np.array([1, 0]).astype(dtype))


def test_other_dtypes_and_trees_keep_what_they_are():
    """bfloat16, which NPY cannot name, and an array of a tree."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    stream = io.BytesIO()
    npzkit.save(stream, {"model": {"w": np.ones((2, 2), ml_dtypes.bfloat16, order="F")}})
    appended(stream, "model/w", np.full((1, 2), 3.0))
    tree = npzkit.load_tree(stream)
    assert tree["model"]["w"].dtype == ml_dtypes.bfloat16
    assert tree["model"]["w"].tolist() == [[1, 1], [1, 1], [3, 3]]


def test_a_reader_keeps_what_it_opened_and_the_next_one_sees_the_rows(tmp_path):
    """Committed bytes stay."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"log": np.arange(5)})
    before = path.read_bytes()
    with npzkit.open(path) as npz:
        with npzkit.NpzWriter(path, "a", auto_repack=False) as writer:
            writer.append("log", [5])
        assert npz["log"].tolist() == [0, 1, 2, 3, 4]
    assert path.read_bytes().startswith(before)
    assert np.load(path)["log"].tolist() == [0, 1, 2, 3, 4, 5]


def test_what_cannot_grow_is_refused_before_anything_is_written(tmp_path):
    """Each error says why, and the archive stays as it was."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, allow_pickle=True, masked="split") as writer:
        writer["number"] = np.float64(3)
        writer["rows"] = np.zeros((2, 3))
        writer["objects"] = np.array([None, {}], object)
        writer["masked"] = np.ma.array([1, 2], mask=[0, 1])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("text", b"no array")
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a") as writer:
        for key, rows, error in [
            ("missing", [1], MemberNotFoundError),
            ("number", [1], ValueError),
            ("rows", [1, 2], ValueError),
            ("rows", np.zeros((2, 3, 1)), ValueError),
            ("rows", np.ma.array([[1, 2, 3]], mask=True), UnsupportedError),
            ("rows", [["a", "b", "c"]], (ValueError, NotAnArrayError)),
            ("objects", [1], PickleRefusedError),
            ("masked", [1], UnsupportedError),
            ("text", [1], NotAnArrayError),
        ]:
            with pytest.raises(error):
                writer.append(key, rows)
    with pytest.raises(ClosedArchiveError):
        writer.append("rows", [[1, 2, 3]])
    assert path.read_bytes() == before


@pytest.mark.remedy("Read it with NpzFile.join(key), and add all rows to a writer with ")
def test_parts_are_joined_to_add_rows():
    """A masked array grows by hand."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.ma.array([1, 2], mask=[0, 1])}, masked="split")
    with npzkit.NpzWriter(stream, "a", masked="split") as writer:
        with pytest.raises(UnsupportedError, match="Read it with"):
            writer.append("a", [3])
        joined = npzkit.open(stream).join("a")
        writer.add("a", np.ma.concatenate([joined, [3]]), overwrite=True)
    assert npzkit.open(stream).join("a").tolist() == [1, None, 3]


@pytest.mark.remedy("Load it with allow_pickle=True, and add it with overwrite=True.")
def test_objects_are_loaded_to_add_rows():
    """An array of objects grows by hand."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.array([None, "b"])}, allow_pickle=True)
    with npzkit.NpzWriter(stream, "a", allow_pickle=True) as writer:
        with pytest.raises(PickleRefusedError, match="Load it"):
            writer.append("a", [3])
        loaded = npzkit.open(stream, allow_pickle=True)["a"]
        writer.add("a", np.append(loaded, 3), overwrite=True)
    assert npzkit.open(stream, allow_pickle=True)["a"].tolist() == [None, "b", 3]


def test_a_damaged_array_is_not_written_again(tmp_path):
    """The damage is found while the array is copied, and the last commit stays."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"log": np.arange(100_000)})
    with npzkit.open(path) as npz:
        place = npz.info("log").data_offset + 1000
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError), npzkit.NpzWriter(path, "a") as writer:
        writer.append("log", [1])
    assert path.read_bytes() == data


def test_a_damaged_chunk_that_is_copied_is_still_found():
    """A copied chunk keeps the CRC-32 that it should have."""
    stream = io.BytesIO()
    values = np.random.default_rng(0).integers(0, 1 << 30, 200_000)
    npzkit.save(stream, {"log": values}, compression="deflated")
    npz = npzkit.open(stream)
    info = npz.info("log")
    place = info.data_offset + info.compressed_size // 2
    stream.getbuffer()[place] ^= 1
    with npzkit.NpzWriter(stream, "a") as writer:
        writer.append("log", [1])
    with pytest.raises(ChecksumError):
        npzkit.open(stream)["log"]
    assert npzkit.open(stream).lazy("log")[-1] == 1


def test_the_bytes_do_not_depend_on_threads():
    """The same archive for one thread and three."""
    found = set()
    for threads in (1, 3):
        stream = io.BytesIO()
        npzkit.save(stream, {"log": np.arange(300_000)}, compression="deflated")
        with npzkit.NpzWriter(stream, "a", threads=threads, auto_repack=False) as writer:
            for part in itertools.repeat(np.arange(200_000), 2):
                writer.append("log", part)
        found.add(stream.getvalue())
    assert len(found) == 1


@pytest.mark.remedy("Begin it with w.create(key, (None, ...), dtype), or with w[key] = rows.")
def test_rows_of_no_array_begin_one(tmp_path):
    """append to a key that is missing says what begins an array, and both ways do."""
    rows = np.arange(6.0).reshape(2, 3)
    with npzkit.NpzWriter(tmp_path / "a.npz") as w:
        with pytest.raises(
            MemberNotFoundError, match=r"no array named 'x'.*Begin it with w\.create"
        ):
            w.append("x", rows)
        with w.create("x", (None, 3), rows.dtype, compression="deflated") as dst:
            dst.append(rows)
        w["y"] = rows
        for key in "xy":
            w.append(key, rows)
    with npzkit.open(tmp_path / "a.npz") as npz:
        for key in "xy":
            assert np.array_equal(npz[key], np.concatenate([rows, rows]))
