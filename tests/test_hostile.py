"""Files made to do harm: what an attacker tried once, kept as it was found."""

from __future__ import annotations

import bz2
import contextlib
import io
import os
import pickle
import struct
import sys
import time
import tracemalloc
import zipfile
import zlib

import npzkit
import numpy as np
import pytest
from forge import Member, archive, header, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import (
    ChecksumError,
    NpyFormatError,
    NpzkitError,
    UnsupportedError,
    ZipFormatError,
)

from tables import each_row

pytestmark = pytest.mark.usefixtures("either_walk")

BYTES = npy(np.arange(4, dtype="u1"))


def array_with(descr: str, shape: str, data: bytes = b"", **forged) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"
    return archive(Member("a.npy", header(text) + data, **forged))


@each_row("unit", ["s/0", "Y/0", "s/4294967296", "s/2", "0s", "4294967296s", "s]["])
@each_row("kind", ["M8", "m8"])
def test_units_that_crash_numpy(kind, unit):
    """A divided or zero unit of time is an NpyFormatError, not a division by zero in C."""
    npz = npzkit.open(array_with(f"'{kind}[{unit}]'", "(1,)", bytes(8)))
    for use in (npz.read, npz.info):
        with pytest.raises(NpyFormatError):
            use("a")
    assert "a" in npz.summary()


@pytest.mark.parametrize(
    ("descr", "shape"),
    [("('<i4',(1,))", "(" + "1," * 64 + ")"), ("('<i4',(3,))", "(2,)"), ("('<i4',(0,2147483647))", "(16777216,)")],
)  # fmt: skip
def test_a_subarray_is_no_dtype_of_an_array(descr, shape, tmp_path):
    """A subarray as an array's own dtype, which no writer produces, is refused in every way."""
    data = array_with(descr, shape, bytes(24))
    (tmp_path / "a.npz").write_bytes(data)
    with npzkit.open(tmp_path / "a.npz") as npz:
        for use in (npz.read, npz.info, npz.memmap, lambda key: npz.load_all()):
            with pytest.raises(NpyFormatError, match=r"subarray|dimensions|descr"):
                use("a")


def test_a_header_that_is_only_claimed_is_not_allocated():
    """A header of 4 GiB in a member of a few bytes costs no memory, limit or not."""
    start = b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFF00) + b" " * 100
    extra = struct.pack("<HHQ", 1, 8, 1 << 33)
    large = {"usize": 0xFFFFFFFF}
    data = archive(
        Member(
            "a.npy",
            start,
            method=12,
            raw=bz2.compress(start),
            extra=extra,
            local=large,
            central=large,
        )
    )
    tracemalloc.start()
    for use in (npzkit.NpzFile.info, npzkit.NpzFile.read, lambda npz, key: npz.load_all()):
        with pytest.raises(NpzkitError):
            use(npzkit.open(data, limits=npzkit.Limits(header_size=None)), "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


@pytest.mark.parametrize("method", [12, 14])
def test_an_array_that_is_only_claimed_is_not_allocated(method):
    """An array of 64 GiB claimed by a method without a bound fails by its stream's end."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({1 << 36},)}}"
    start = header(text)
    if method == 12:
        raw = bz2.compress(start)
    else:
        import lzma

        model = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16}
        raw = b"\x09\x04\x05\x00\x5d\x00\x00\x01\x00" + lzma.compress(
            start, lzma.FORMAT_RAW, filters=[model]
        )
    extra = struct.pack("<HHQ", 1, 8, (1 << 36) + len(start))
    large = {"usize": 0xFFFFFFFF}
    data = archive(
        Member("a.npy", start, method=method, raw=raw, extra=extra, local=large, central=large)
    )
    tracemalloc.start()
    with pytest.raises(ZipFormatError):
        npzkit.open(data)["a"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_a_summary_is_as_wide_as_people_read():
    """One key of 65,000 characters does not widen every row."""
    members = [Member(b"a" * 65_000, b"x"), *[Member(b"%x" % i, b"") for i in range(100)]]
    text = npzkit.open(archive(*members)).summary()
    assert max(map(len, text.splitlines())) < 200


def test_a_key_means_one_member():
    """Listing, reading, loading and describing agree where names end in .npy twice."""
    data = archive(
        *[
            Member(name, npy(np.arange(n)))
            for n, name in enumerate(["a.npy", "a.npy.npy", "b.npy.npy"], 1)
        ]
    )
    npz = npzkit.open(data)
    assert npz.files == ["a", "a.npy.npy", "b.npy"]
    for key, size in zip(npz.files, (1, 2, 3), strict=True):
        assert len(npz[key]) == len(npz.load_all()[key]) == npz.info(key).shape[0] == size


@pytest.mark.parametrize("method", [0, 8])
def test_members_that_share_bytes_through_an_extra_field(method):
    """A local extra field that pushes a member's data onto the next one's is an error."""
    second = Member("b.npy", BYTES, method=method)
    n = len(second.raw)
    fields = (20, 0, method, 0, 33, zlib.crc32(BYTES), n, len(BYTES), 5, n + 35)
    first = struct.pack("<4sHHHHHLLLHH", b"PK\3\4", *fields) + b"a.npy" + bytes(n)
    directory = Member("a.npy", BYTES, method=method).central_bytes(0)
    directory += second.central_bytes(len(first))
    body = first + second.local_bytes()
    end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 2, 2, len(directory), len(body), 0)
    npz = npzkit.open(body + directory + end)
    for use in (npz.read, npz.info, lambda key: npz.load_all()):
        with pytest.raises(ZipFormatError, match="overlaps"):
            use("a")
    assert npz["b"].tolist() == [0, 1, 2, 3]


def test_a_large_members_end_is_its_place():
    """Data that a local extra field pushes onto the next header is an error, its CRC right or not."""
    second = Member("b.npy", BYTES).local_bytes()
    shift = 64
    values = np.arange(100_000, dtype="u1")
    values[-shift:] = np.frombuffer(second, "u1")[:shift]
    data = npy(values)
    # What lies there is the array, from behind the extra field to within the next header.
    fields = (20, 0, 0, 0, 33, zlib.crc32(data), len(data), len(data), 5, shift)
    first = struct.pack("<4sHHHHHLLLHH", b"PK\3\4", *fields) + b"a.npy" + bytes(shift)
    first += data[:-shift]
    directory = Member("a.npy", data).central_bytes(0)
    directory += Member("b.npy", BYTES).central_bytes(len(first))
    body = first + second
    end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 2, 2, len(directory), len(body), 0)
    npz = npzkit.open(body + directory + end)
    out = np.empty_like(values)
    for use in (npz.read, npz.info, lambda key: npz.load_all(), lambda key: npz.read(key, out=out)):
        with pytest.raises(ZipFormatError, match="overlaps"):
            use("a")
    assert npz["b"].tolist() == [0, 1, 2, 3]


def test_a_dictionary_that_is_only_claimed_is_not_allocated():
    """LZMA's dictionary is no larger than what the member holds."""
    import lzma

    model = {"id": lzma.FILTER_LZMA1, "dict_size": 1 << 16}
    raw = b"\x09\x04\x05\x00\x5d\xff\xff\xff\xff"
    raw += lzma.compress(BYTES, lzma.FORMAT_RAW, filters=[model])
    npz = npzkit.open(archive(Member("a.npy", BYTES, method=14, raw=raw)))
    tracemalloc.start()
    assert npz["a"].tolist() == [0, 1, 2, 3]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", [b"PK\x05\x06", b"PK\x05\x06" + bytes(18), b"PK\x05\x06" + bytes(16) + b"\xff\xff"]
)
def test_a_megabyte_of_end_signatures(unit):
    """A file full of end signatures is refused within a second or two."""
    data = b"PK\x03\x04" + unit * (1_000_000 // len(unit)) + b"x" * 5
    begin = time.perf_counter()
    with pytest.raises(NpzkitError):
        npzkit.open(data)
    assert time.perf_counter() - begin < 30


@pytest.mark.slow
def test_long_headers_are_not_kept():
    """Thousands of long, different headers leave nothing behind."""
    from npzkit.format import header as header_module

    for i in range(50):
        descr = [(f"f{i}_{j}", "<f4") for j in range(100)]
        npzkit.open(array_with(repr(descr), "(0,)")).info("a")
    before = header_module._parse_cached.cache_info().currsize
    npzkit.open(array_with(repr([(f"other{j}", "<f4") for j in range(100)]), "(0,)")).info("a")
    assert header_module._parse_cached.cache_info().currsize == before


def test_a_long_extra_field_before_zip64_sizes():
    """Sizes that stand far behind in a local extra field are found, as by np.load."""
    padding = struct.pack("<HH", 0xD935, 4000) + bytes(4000)
    sizes = struct.pack("<HHQQ", 1, 16, len(BYTES), len(BYTES))
    sentinels = {"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF}
    data = archive(Member("a.npy", BYTES, local_extra=padding + sizes, local=sentinels))
    assert (
        npzkit.open(data)["a"].tolist()
        == npzkit.open(data).load_all()["a"].tolist()
        == [0, 1, 2, 3]
    )


def test_a_file_object_that_stands_behind_its_end():
    """A position past the end is no reason for another exception."""
    stream = io.BytesIO(archive(Member("a.npy", BYTES), prefix=b"junk"))
    stream.seek(10**6)
    with pytest.raises(ZipFormatError):
        npzkit.open(stream)


def test_a_nearly_full_stack():
    """A nested dtype read deep in a recursion is a RecursionError or the array."""
    descr = "'<i4'"
    for _ in range(40):
        descr = f"[('a',{descr})]"
    data = array_with(descr, "(1,)", bytes(4))
    outcomes = set()

    def descend(depth):
        if depth:
            return descend(depth - 1)
        try:
            npzkit.open(data)["a"]
        except (NpzkitError, RecursionError) as error:
            outcomes.add(type(error))
        return None

    limit = sys.getrecursionlimit()
    for left in range(60, 400, 20):
        with contextlib.suppress(RecursionError):
            descend(limit - left - 100)
    assert outcomes <= {RecursionError}


@pytest.mark.parametrize("descr", ["'<U0'", "'|S0'", "'|V0'"])
def test_empty_items_keep_their_dtype(descr):
    """U0 stays U0, however the data lies."""
    for pad in range(4):
        npz = npzkit.open(
            array_with(descr, "(3,)", local_extra=struct.pack("<HH", 0xD935, pad) + bytes(pad))
        )
        assert npz["a"].dtype == npz.load_all()["a"].dtype == npz.info("a").dtype
        assert npz["a"].dtype.itemsize == 0


def test_errors_name_their_key_wherever_they_rise():
    """load_all and streams say which key it was."""
    bad = array_with("'<q9'", "(1,)", bytes(8))
    with pytest.raises(NpyFormatError) as caught:
        npzkit.open(bad).load_all()
    assert caught.value.key == "a"
    wrong = {"crc": 1}
    with pytest.raises(ChecksumError) as caught_too:
        npzkit.open(archive(Member("a.npy", BYTES, central=wrong, local=wrong))).stream("a").read()
    assert caught_too.value.key == "a"


def test_a_members_end_is_not_looked_behind():
    """Bytes in a gap that look like an array do not make an empty note one."""
    gap = header("{'descr': '<f8', 'fortran_order': False, 'shape': ()}")
    npz = npzkit.open(archive(Member("readme", b""), gap=gap))
    assert npz["readme"] == npz.load_all()["readme"] == b""


@each_row("method", [8, 9, 12, 14, 93])
def test_nothing_in_no_compressed_bytes(method):
    """A compressed member of no bytes at all is empty, as zipfile reads it; a claim is still one."""
    data = archive(Member("note.txt", b"", method=method, raw=b""))
    if method in (8, 12, 14):
        assert zipfile.ZipFile(io.BytesIO(data)).read("note.txt") == b""
        assert np.load(io.BytesIO(data))["note.txt"] == b""
    try:
        npz = npzkit.open(data)
        assert npz["note.txt"] == npz.load_all()["note.txt"] == b""
    except UnsupportedError:
        pytest.skip("the method is missing here")
    with pytest.raises(NpyFormatError):
        npzkit.open(archive(Member("a.npy", b"", method=method, raw=b"")))["a"]
    for claimed in (
        Member("x", b"12", method=method, raw=b""),
        Member("x", BYTES, method=method, raw=b""),
    ):
        with pytest.raises(ZipFormatError):
            npzkit.open(archive(claimed))["x"]


@each_row("size", [10, 20_000])
@each_row("method", [0, 8])
@each_row("descr", ["<i4", "|O"])
def test_python2_warns_once(descr, method, size):
    """However a header of Python 2's is read, it warns once."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({size}L,)}}"
    array = np.arange(size, dtype=descr)
    data = header(text) + (pickle.dumps(array, 2) if descr == "|O" else array.tobytes())
    npz = npzkit.open(archive(Member("a.npy", data, method=method)), allow_pickle=True)
    calls = [lambda: npz["a"], lambda: npz.load_all()["a"], lambda: npz.info("a")]
    if descr != "|O":
        calls += [
            lambda: npz.read("a", out=np.empty_like(array)),
            lambda: npz.read("a", out=np.empty(2 * size, "<i4")[::2]),
        ]
    for call in calls:
        with pytest.warns(UserWarning, match="Python 2") as caught:
            call()
        assert len(caught) == 1


def test_string_dtype_in_a_header():
    """A dtype whose elements are not bytes is no dtype of a file."""
    with pytest.raises(NpyFormatError):
        npzkit.open(array_with("[('a','T')]", "(1,)", bytes(16))).info("a")


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = os.fspath(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("method", [0, 8])
def test_bytes_behind_a_pickle(method):
    """Bytes behind a pickled array are an error, as those behind any other array are."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([None], dtype=object))
    data = archive(Member("a.npy", stream.getvalue() + b"!", method=method))
    with pytest.raises(ZipFormatError, match="bytes follow the pickled array"):
        npzkit.open(data, allow_pickle=True)["a"]


def test_damaged_pickles_are_not_run(tmp_path):
    """The CRC of pickled data is compared before it is unpickled."""
    trace = tmp_path / "sprung"
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([Trap(trace)], dtype=object))
    for method in (0, 8):
        wrong = {"crc": 1}
        data = archive(
            Member("a.npy", stream.getvalue(), method=method, central=wrong, local=wrong)
        )
        with pytest.raises(ChecksumError):
            npzkit.open(data, allow_pickle=True)["a"]
        assert not trace.exists()
    npzkit.open(archive(Member("a.npy", stream.getvalue())), allow_pickle=True)["a"]
    assert trace.exists()


@given(st.data())
def test_the_fast_way_and_the_general_way_agree(data):
    """What the fast path returns, or refuses, is what the general path does, byte by byte."""
    good = archive(
        Member("a.npy", npy(np.arange(3, dtype="<i4")), extra=struct.pack("<HHL", 0x5455, 4, 9)),
        Member("b.npy", BYTES),
    )
    changed = bytearray(good)
    changed[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))

    def outcome():
        try:
            with npzkit.open(bytes(changed)) as npz:
                return [
                    (key, array.dtype, array.tobytes())
                    for key, array in npz.load_all().items()
                    if isinstance(array, np.ndarray)
                ]
        except NpzkitError as error:
            return str(error)

    import warnings

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")
        fast = outcome()
        patched.setattr("npzkit.zip.directory._COLUMNS_COUNT", 1 << 60)
        patched.setattr(
            "npzkit.reading.small_member.SmallReader.array_in",
            lambda reader, window, entry, options: None,
        )
        assert outcome() == fast
