"""Each row of what a reader may meet in the container, and what it gets."""

from __future__ import annotations

import bz2
import io
import pickle
import re
import struct
import tracemalloc
import warnings
import zlib

import npzkit
import numpy as np
import pytest
from forge import Member, archive, deflate, header, npy
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import (
    AmbiguousArchiveError,
    ChecksumError,
    LimitExceededError,
    NpyFormatError,
    NpzkitError,
    PickleRefusedError,
    UnsupportedError,
    ZipFormatError,
)

from tables import each_row

pytestmark = pytest.mark.usefixtures("either_walk")

X = np.arange(6.0).reshape(2, 3)
DATA = npy(X)
LARGE = npy(np.arange(20_000.0))
RANDOM = np.random.default_rng(0).integers(0, 9, 2 << 20, "u1")


def plain(name="x.npy", data=DATA, **forged):
    return Member(name, data, **forged)


def read(data, key="x", **options):
    with npzkit.open(data, **options) as npz:
        return npz[key]


def test_the_forge_makes_valid_archives():
    """What the tests below start from is read by npzkit and by numpy."""
    good = archive(plain(), plain("y.npy", LARGE, method=8))
    assert np.array_equal(read(good), X)
    with np.load(io.BytesIO(good)) as theirs:
        assert np.array_equal(theirs["x"], X)


@each_row(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>404</html>" * 9, "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git-lfs"),
        (DATA, r"\.npy"),
        (b"\x1f\x8b\x08" + bytes(40), "gzip"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"),
        (b"PAR1" + bytes(40), "Parquet"),
        (b"II*\0" + bytes(40), "picture"),
        (b"x,y\n" + b"1,2\n" * 200, "text"),
        (bytes(257) + b"ustar" + bytes(40), "tar archive"),
        (b"MATLAB 7.3 MAT-file" + bytes(200), "MATLAB file of version 7.3"),
        (struct.pack("<5I", 0, 2, 1, 0, 2) + b"x\0" + bytes(16), "MATLAB file"),
        (b"PK\0\0\0\0\0\0{" + bytes(20000), "safetensors"),
        (b"PK\0\0\0\0\0\0{" + bytes(40), "cut off, or its end is damaged"),
        (bytes.fromhex("80028a0a6cfc9c46f9206aa850192e80024de903"), "torch.save"),
        (b"PK\x03\x04", "at least its last 68 bytes"),
        (archive(plain())[:-30], "at least its last 30 bytes"),
        (b"PK\x05\x06", "at least its last 18 bytes"),
        (b"\x00" * 100_000, "not a zip"),
    ],
)
def test_other_files_are_named(data, says):
    """What is no archive is called what it seems to be, and what to do with it is said behind."""
    with pytest.raises(ZipFormatError, match=says) as caught:
        npzkit.open(data)
    assert re.search(r"ownload|ead|ecompress|xtract|onvert", caught.value.remedy)
    assert caught.value.remedy not in caught.value.what


TIME = struct.pack("<HHL", 0x5455, 4, 9)


def unicode_path(raw, name):
    payload = b"\x01" + struct.pack("<L", zlib.crc32(raw)) + name
    return struct.pack("<HH", 0x7075, len(payload)) + payload


def longer(count):
    """A member whose headers claim more bytes than it has."""
    sizes = {"csize": len(DATA) + count, "usize": len(DATA) + count}
    return plain(local=sizes, central=sizes)


BAD_AT_OPEN = {
    "directory offset": archive(plain(), offset=7),
    "directory size": archive(plain(), size=7),
    "count too large": archive(plain(), count=2, total=2),
    "count too small": archive(plain(), plain("y.npy"), count=1, total=1),
    "entry signature": archive(plain(central={"signature": b"PK\x01\x03"})),
    "name runs over": archive(plain(central={"nlen": 500})),
    "comment runs over": archive(plain(comment=b"note", central={"clen": 5})),
    "comment shorter than it is": archive(plain(comment=b"note", central={"clen": 3})),
    "extra runs over": archive(plain(central={"xlen": 500})),
    "prefix": archive(plain(), prefix=b"#!/bin/sh\n"),
    "prefix of an archive without members": archive(prefix=b"#!/bin/sh\n"),
    "prefix, relative offsets": archive(plain(), prefix=b"#!/bin/sh\n", base=10),
    "no local header at 0": b"XX" + archive(plain())[2:],
    "member beyond the directory": archive(plain(central={"csize": 10**6, "usize": 10**6})),
    "member inside another": archive(plain(), plain("y.npy", central={"offset": 10})),
    **{
        f"the first member has {count} bytes of {what}": archive(
            longer(count), *members, order=order
        )
        for count in (1, 20, 30, 35, 30 + len("y.npy") + len(DATA) - 1)
        for what, members, order in [
            ("the next one", [plain("y.npy")], None),
            ("the next one, listed first", [plain("y.npy")], [1, 0]),
            ("the directory", [], None),
        ]
    },
    "two entries, one member": archive(plain(), plain("y.npy", central={"offset": 0})),
    "extra runs over behind zip64": archive(
        plain(extra=struct.pack("<HHQQ", 1, 16, len(DATA), len(DATA)) + b"UT\t\0")
    ),
    "zip64: locator points elsewhere": archive(plain(), zip64={"where": 3}),
    "zip64: no record": archive(plain(), zip64={"signature": b"PK\x06\x00"}),
    "zip64: record size": archive(plain(), zip64={"record_size": 99}),
    "zip64: counts differ": archive(plain(), zip64=True, count=3, total=3),
    "zip64: sizes differ": archive(plain(), zip64=True, size=3),
    "zip64: offsets differ": archive(plain(), zip64=True, offset=3),
    "zip64: wrong offset": archive(plain(), zip64={"offset": 3}),
    "zip64: extra too short": archive(
        plain(central={"usize": 0xFFFFFFFF, "csize": 0xFFFFFFFF}, extra=struct.pack("<HHQ", 1, 8, 224))
    ),
    **{
        f"zip64: extra of {size} bytes for {count} values": archive(
            plain(central=dict.fromkeys(fields, 0xFFFFFFFF), extra=struct.pack("<HH", 1, size) + bytes(size))
        )
        for fields in (["usize"], ["usize", "csize"], ["usize", "csize", "offset"])
        for count in [len(fields)]
        for size in (8 * count - 8, 8 * count - 1)
    },
    "zip64: extra denies its entry": archive(plain(extra=struct.pack("<HHQQ", 1, 16, 1, 2))),
    "zip64: several disks": archive(plain(), zip64={"disks": 2}),
    "zip64: sentinels without locator": archive(plain(), zip64={"locator": False}),
}  # fmt: skip


@each_row("case", BAD_AT_OPEN)
def test_damaged_at_open(case):
    """A directory that contradicts itself or the file is a ZipFormatError at open."""
    with pytest.raises(ZipFormatError) as caught:
        npzkit.open(BAD_AT_OPEN[case])
    error = caught.value
    assert error.found is not None
    assert str(error).endswith(f". {error.remedy}")


BAD_NAMES = {
    "NUL": (plain("x\0y.npy"), "x\0y", "control character"),
    "control character": (plain("x\x1b[2Jy.npy"), "x\x1b[2Jy", "control character"),
    "line break": (plain("x\ny.npy", LARGE), "x\ny", "control character"),
    "deflated": (plain("\x7f.npy", method=8), "\x7f", "control character"),
    "not UTF-8": (plain(b"\xff\xfe.npy"), "\udcff\udcfe", "not UTF-8"),
    "Unicode path: another name": (
        plain("w.npy", extra=unicode_path(b"w.npy", b"y.npy")), "w", "differs from its name",
    ),
    "Unicode path: another name under UTF-8": (
        plain("é.npy", extra=TIME + unicode_path("é.npy".encode(), b"y.npy")), "é", "differs from its name",
    ),
    "Unicode path: control character": (
        plain(b"\x81.npy", extra=unicode_path(b"\x81.npy", b"\x1b.npy"),
              central={"flags": 0}, local={"flags": 0}), "\x1b", "control character",
    ),
    "Unicode path: not UTF-8": (
        plain("w.npy", extra=unicode_path(b"w.npy", b"\xff")), "w", "not UTF-8",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.remedy('NpzWriter(path, "a").rename(key, new), or save the archive by npzkit.repair')
@each_row("case", BAD_NAMES)
def test_a_name_that_cannot_be_used_refuses_its_member_alone(case, tmp_path):
    """Of an archive with one bad name, the others are read, and that member is named with a remedy."""
    member, key, says = BAD_NAMES[case]
    data = archive(plain("a.npy"), member, plain("z.npy", LARGE))
    with npzkit.open(data) as npz:
        assert npz.files == ["a", key, "z"]
        assert repr(npz).isprintable()
        assert list(npz.load_all(["a", "z"])) == ["a", "z"]
        assert npz.summary().count("\n") == 5
        for use in (
            npz.read, npz.info, npz.lazy, npz.stream, npz.join, npz.memmap,
            lambda key: npz.load_all(["a", key]), lambda key: npz.load_all(),
            lambda key: npz.read(key, verify=False),
        ):  # fmt: skip
            with pytest.raises(ZipFormatError, match=says) as caught:
                use(key)
            assert caught.value.key == key
            assert caught.value.offset == len(plain("a.npy").local_bytes())
            assert "rename" in caught.value.remedy
            assert str(caught.value).isprintable()
        errors = [row for row in npz.verify().rows if row.severity == "error"]
        assert [row.key for row in errors] == [key]
        assert says in errors[0].what
    with pytest.raises(ZipFormatError, match=says) as caught:
        npzkit.open(data, strict=True)
    assert caught.value.key is not None
    # The remedies work: another key in the archive, and repair.
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with npzkit.NpzWriter(path, "a") as w:
        assert w.files == ["a", key, "z"]
        w["more"] = X
        w.rename(key, "new")
    with npzkit.open(path, strict=True) as npz:
        assert npz.files == ["a", "new", "z", "more"]
        assert npz["new"].tobytes() == np.load(io.BytesIO(member.data)).tobytes()
        assert npz.verify().ok
    damaged = path.with_name("damaged.npz")
    damaged.write_bytes(data)
    report = npzkit.repair(damaged, path, overwrite=True)
    assert len(report.kept) == 3
    assert [(lost.key, says in lost.what) for lost in report.lost] == [(key, True)]
    assert str(report).count("\n") == 1
    with npzkit.open(path, strict=True) as npz:
        assert tuple(npz.files) == report.kept
        array = npz[report.kept[1]]
        assert array.tobytes() == np.load(io.BytesIO(member.data)).tobytes()


def test_what_np_savez_wrote_is_read():
    """One key with a control character, as np.savez takes it, costs no other array."""
    stream = io.BytesIO()
    np.savez(stream, **{f"k{number}": X for number in range(100)}, **{"bad\n": X})
    with npzkit.open(stream) as npz:
        assert len(npz) == 101
        keys = [key for key in npz if key != "bad\n"]
        assert all(np.array_equal(array, X) for array in npz.load_all(keys).values())
        with pytest.raises(ZipFormatError, match="control character"):
            npz["bad\n"]


@pytest.mark.parametrize("compression", [None, "deflated"])
def test_a_bad_name_is_kept_by_what_copies(compression, tmp_path):
    """An append keeps the member as it is, and so does repack, with a warning that names it."""
    path = tmp_path / "a.npz"
    path.write_bytes(archive(plain("a.npy", LARGE), plain("bad\n.npy"), plain("gone.npy", LARGE)))
    with npzkit.NpzWriter(path, "a") as w:
        del w["gone"], w["a"]
        w["b"] = X
    with npzkit.open(path) as npz:
        assert npz.files == ["bad\n", "b"]
        assert np.array_equal(npz["b"], X)
    with pytest.warns(UserWarning, match=r"control character: 'bad\\n' is copied unchanged"):
        npzkit.repack(path, compression=compression)
    with npzkit.open(path) as npz:
        assert npz.files == ["bad\n", "b"]
        assert np.array_equal(npz["b"], X)
        assert npz.archive_info().dead_size == 0
    with npzkit.NpzWriter(path, "a") as w:
        w.rename("bad\n", "good")
    assert np.array_equal(read(path, "good"), X)


def test_repair_gives_each_bad_name_one_of_its_own(tmp_path):
    """Names that cannot be used become names that no other member has, also without a directory."""
    listed = [plain("n\n.npy", LARGE), plain("n%0A.npy"), plain(b"\xff.npy"), plain("n\x1b.npy")]
    for data in (archive(*listed), b"".join(member.local_bytes() for member in listed)):
        damaged, path = tmp_path / "damaged.npz", tmp_path / "a.npz"
        damaged.write_bytes(data)
        report = npzkit.repair(damaged, path, overwrite=True)
        assert report.kept == ("_n%0A", "n%0A", "%FF", "n%1B")
        keys = [lost.key for lost in report.lost if lost.key != "the end of the file"]
        assert keys == ["n\n", "\udcff", "n\x1b"]
        with npzkit.open(path, strict=True) as npz:
            assert npz["_n%0A"].shape == (20_000,)
            assert npz["n%0A"].shape == X.shape


@pytest.mark.parametrize("extra", [b"", TIME])
def test_a_unicode_path_that_repeats_the_name(extra):
    """Some programs write a Unicode path beside every name; the same name is no other."""
    for name in ("x.npy", "é.npy"):
        path = unicode_path(name.encode(), name.encode())
        data = archive(plain(name, extra=extra + path), plain("z.npy"))
        assert npzkit.open(data).files == [name.removesuffix(".npy"), "z"]


DIFFERENT = {
    "name": {"name": b"y.npy"}, "method": {"method": 8}, "csize": {"csize": 5}, "usize": {"usize": 5},
    "encryption": {"flags": 1}, "signature": {"signature": b"PK\x03\x05"},
    "descriptor": {"flags": 8}, "no sizes": {"csize": 0, "usize": 0},
    "sentinels": {"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF},
}  # fmt: skip


@each_row("large", [False, True])
@each_row("field", DIFFERENT)
def test_a_local_header_that_differs(field, large):
    """A local header must repeat its entry; one that does not is an error when it is read."""
    member = plain(data=LARGE if large else DATA, local=DIFFERENT[field])
    data = archive(plain("first.npy"), member)
    with npzkit.open(data) as npz:
        assert np.array_equal(npz["first"], X)
        for use in (npz.read, npz.info, lambda key: npz.load_all([key])):
            with pytest.raises(ZipFormatError) as caught:
                use("x")
            assert caught.value.key == "x"


def reads_of(npz):
    """Every way to read the array x as a whole, its CRC-32 compared."""
    return {
        "read": lambda: npz["x"],
        "out": lambda: npz.read("x", out=np.empty_like(npz.lazy("x"))),
        "load_all": lambda: npz.load_all()["x"],
        "threads": lambda: npz.load_all(["x"], threads=2),
        "stream": lambda: npz.stream("x").read(),
        "lazy": lambda: npz.lazy("x").read(),
    }


@pytest.mark.slow
@each_row("method", [0, 8])
@each_row("size", [3, 20_000, 140_000])
@each_row(("where", "crc"), [("local", 0), ("central", 5)])
def test_two_headers_with_different_crcs(where, crc, size, method):
    """If only their CRC-32s differ, every checked read is a ChecksumError, and all others read."""
    array = np.arange(size, dtype="f8")
    members = [plain(f"a{n}.npy", npy(np.arange(5.0))) for n in range(70)]
    member = plain("x.npy", npy(array), method=method, **{where: {"crc": crc}})
    for data in (archive(member, members[0]), archive(*members, member)):
        with npzkit.open(data) as npz:
            for name, read in reads_of(npz).items():
                with pytest.raises(ChecksumError, match="disagree on the CRC-32") as caught:
                    read()
                assert caught.value.key == "x", name
                assert ("npzkit.repair(path)" in caught.value.remedy) == (method == 0)
            assert np.array_equal(npz.read("x", verify=False), array)
            assert np.array_equal(npz.load_all(verify=False)["x"], array)
            assert np.array_equal(npz.lazy("x", verify=False)[1:], array[1:])
            assert npz.info("x").shape == (size,)
        rows = [row for row in npzkit.verify(data).rows if row.severity == "error"]
        assert [row.key for row in rows] == ["x"]
        assert "disagree on the CRC-32" in rows[0].what
        assert ("npzkit.repair(path)" in rows[0].what) == (method == 0)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_name_that_goes_on_too_long(save):
    """However long a local header says that its name is, the error is one of the format."""
    stream = io.BytesIO()
    save(stream, x=X, y=X)
    for size in (*range(450, 520), 0x4000, 0xFFFF):
        data = bytearray(stream.getvalue())
        data[26:28] = size.to_bytes(2, "little")
        with npzkit.open(bytes(data)) as npz:
            for use in (npz.read, lambda key: npz.load_all([key, "y"])):
                with pytest.raises(ZipFormatError):
                    use("x")


@each_row("method", [0, 8])
@each_row("shape", ["32", "64", "signed 32", "signed 64"])
def test_data_descriptors(shape, method):
    """All four shapes of data descriptor are read, and held against the entry."""
    data = archive(plain(method=method, descriptor=shape), plain("y.npy"))
    assert np.array_equal(read(data), X)
    assert np.array_equal(npzkit.open(data).load_all()["x"], X)
    member = plain(method=method, descriptor=shape)
    position = data.index(member.descriptor_bytes()) + 5
    wrong = data[:position] + b"\xee" + data[position + 1 :]
    with pytest.raises(ZipFormatError, match="descriptor"):
        read(wrong)


def test_the_descriptor_of_a_large_member_is_compared():
    """A member that is inflated in one call has its descriptor compared as well."""
    member = plain(data=npy(RANDOM), method=8, descriptor="signed")
    data = archive(member)
    assert np.array_equal(read(data), RANDOM)
    damaged = bytearray(data)
    damaged[data.index(member.descriptor_bytes()) + 5] ^= 1
    with pytest.raises(ZipFormatError, match="descriptor"):
        read(bytes(damaged))


def test_forced_zip64_is_accepted():
    """np.savez's zip64 sizes in the local header of a small member are read."""
    for size in (DATA, LARGE):
        sizes = struct.pack("<HHQQ", 1, 16, len(size), len(size))
        sentinel = {"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF, "version": 45}
        data = archive(plain(data=size, local=sentinel, local_extra=sizes), plain("y.npy"))
        assert np.array_equal(read(data).ravel(), np.load(io.BytesIO(size)).ravel())
        wrong = struct.pack("<HHQQ", 1, 16, len(size), len(size) + 1)
        with pytest.raises(ZipFormatError, match="compressed size"):
            read(archive(plain(data=size, local=sentinel, local_extra=wrong)))


def test_zip64_where_it_is_needed_or_not():
    """zip64 records and extra fields that agree are read, needed or not."""
    assert np.array_equal(read(archive(plain(), zip64=True)), X)
    extra = struct.pack("<HHQQQ", 1, 24, len(DATA), len(DATA), 0)
    full = {"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF, "offset": 0xFFFFFFFF}
    local = {"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF}
    assert np.array_equal(read(archive(plain(central=full, local=local, extra=extra))), X)
    agreeing = struct.pack("<HHQQ", 1, 16, len(DATA), len(DATA))
    assert np.array_equal(read(archive(plain(extra=agreeing))), X)


def test_two_end_records():
    """An end record inside a comment that fits as well makes the archive ambiguous."""
    inner = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(AmbiguousArchiveError):
        npzkit.open(archive(plain(), comment=inner))


def test_two_end_records_before_a_torn_end():
    """Behind an ambiguous archive nothing is cut off that would bring it back."""
    inner = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 0, 0, 0, 0, 0)
    stream = io.BytesIO(archive(plain(), comment=inner) + b"cut short")
    with pytest.raises(AmbiguousArchiveError):
        npzkit.open(stream)
    with pytest.raises(AmbiguousArchiveError):
        npzkit.NpzWriter(stream, "a")
    assert stream.getvalue().endswith(b"cut short")


def test_two_end_records_of_an_archive_in_an_array():
    """An end record in bytes that no append of npzkit wrote is one that others may take."""
    inner = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, 0, 0, 0, 0, 0)
    data = archive(plain()) + plain("y.npy", archive(plain("z.npy"), comment=inner)).local_bytes()
    with pytest.raises(AmbiguousArchiveError):
        npzkit.open(data)


@pytest.mark.remedy("Open it without strict=True to read what was committed.")
@each_row(
    "tail",
    [
        b"PK\x05\x06\xff\xff\xff\xff",
        b"\n",
        b"PK\x03\x04" + bytes(100),
        b"PK\x05\x06",
        b"x" * 100_000,
    ],
)
def test_a_torn_end(tail):
    """Bytes behind the end are warned of; strict raises."""
    data = archive(plain()) + tail
    with pytest.warns(npzkit.errors.TornArchiveWarning):
        npz = npzkit.open(data)
    assert np.array_equal(npz["x"], X)
    with pytest.raises(ZipFormatError, match="torn"):
        npzkit.open(data, strict=True)


def test_many_false_ends_cost_linear_time():
    """A file full of end records that lead nowhere is refused, and soon."""
    entry = archive(plain())[-100:]
    with pytest.raises(ZipFormatError):
        npzkit.open(b"PK\x03\x04" + entry * 5000 + b"!")


@pytest.mark.remedy("Open it without strict=True to read the last one.")
def test_repeated_names():
    """Of two members of one name the last one counts, with a warning; strict raises."""
    data = archive(plain(), plain(data=npy(np.zeros(2))))
    with pytest.warns(npzkit.errors.AmbiguousArchiveWarning):
        npz = npzkit.open(data)
    assert npz.files == ["x"]
    assert np.array_equal(npz["x"], np.zeros(2))
    with pytest.raises(AmbiguousArchiveError):
        npzkit.open(data, strict=True)


def test_bare_name_beside_npy_name():
    """x and x.npy are both listed and both reachable."""
    npz = npzkit.open(archive(Member("x", b"note"), plain()))
    assert npz.files == ["x", "x.npy"]
    assert npz["x"] == b"note"
    assert np.array_equal(npz["x.npy"], X)
    assert npz.load_all()["x"] == b"note"


@each_row("name", ["/abs.npy", "../up.npy", "a\\b.npy", "C:/x.npy"])
def test_dangerous_names_are_only_keys(name):
    """A name that would be dangerous as a path is read as any other key."""
    npz = npzkit.open(archive(plain(name)))
    assert np.array_equal(npz[name.removesuffix(".npy")], X)


@each_row(
    "forged",
    [
        {"flags": 1},
        {"flags": 0x20},
        {"flags": 0x41},
        {"flags": 0x2000},
        {"method": 97},
        {"disk": 2},
    ],
)
def test_unsupported_members_are_listed(forged):
    """Encrypted, patched, split or unknown: listed, and UnsupportedError when read."""
    data = archive(
        plain(central=forged, local={k: v for k, v in forged.items() if k != "disk"}),
        plain("y.npy"),
    )
    npz = npzkit.open(data)
    assert npz.files == ["x", "y"]
    for use in (npz.read, lambda key: npz.load_all([key])):
        with pytest.raises(UnsupportedError) as caught:
            use("x")
        assert caught.value.key == "x"
    assert np.array_equal(npz["y"], X)
    assert "x" in npz.summary()


def test_a_split_archive():
    """An end record that names another disk is UnsupportedError."""
    with pytest.raises(UnsupportedError, match="split"):
        npzkit.open(archive(plain(), disk=1, directory_disk=1))


def test_folders_and_symlinks_are_listed():
    """A folder is listed with its slash and reads as no bytes, a link as its target, as in numpy."""
    link = Member("link", b"x.npy", central={"attributes": 0o120777 << 16})
    npz = npzkit.open(archive(Member("folder/", b""), link, plain()))
    assert npz.files == ["folder/", "link", "x"]
    assert (npz["folder/"], npz["link"]) == (b"", b"x.npy")
    assert npz.load_all()["link"] == b"x.npy"
    assert npz.info("folder/").shape is npz.info("link").shape is None


def test_a_bomb_is_refused_before_allocation():
    """A size that deflate cannot reach is refused before memory is taken."""
    raw = deflate(DATA)
    sizes = {"usize": 1033 * len(raw)}
    with pytest.raises(ZipFormatError, match="more bytes"):
        read(archive(plain(method=8, central=sizes, local=sizes)))
    with pytest.raises(LimitExceededError):
        read(archive(plain(method=8)), limits=npzkit.Limits(member_size=100))
    with pytest.raises(LimitExceededError):
        npzkit.open(archive(plain()), limits=npzkit.Limits(total_size=100))
    with pytest.raises(LimitExceededError):
        npzkit.open(archive(plain(), plain("y.npy")), limits=npzkit.Limits(member_count=1))
    for keys in (None, ["x"]):
        with pytest.raises(LimitExceededError):
            npzkit.open(archive(plain()), limits=npzkit.Limits(member_size=100)).load_all(keys)


LIMITED = {
    "member_size": lambda npz: npz["x"],
    "total_size": None,
    "member_count": None,
    "metadata_size": lambda npz: npz.metadata,
}


@pytest.mark.remedy("Pass limits=npzkit.Limits(")
@each_row("name", LIMITED)
def test_a_limit_is_raised(name):
    """With the limit that the error names, what was refused is read."""
    data, use = archive(plain(), plain("y.npy"), comment=b'{"step": 1}'), LIMITED[name]
    with pytest.raises(LimitExceededError) as caught:
        npz = npzkit.open(data, limits=npzkit.Limits(**{name: 1}))
        use(npz)
    assert name in caught.value.remedy
    with npzkit.open(data, limits=npzkit.Limits(**{name: 1000})) as npz:
        assert np.array_equal(npz["x"], X)
        assert npz.metadata == {"step": 1}


def test_a_claim_takes_no_memory():
    """A terabyte that a hundred bytes claim to be is refused, and no memory is taken for it."""
    start = header("{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776,)}")
    extra = struct.pack("<HHQ", 1, 8, len(start) + (1 << 40))
    claim = {"usize": 0xFFFFFFFF}
    deflated = plain(data=start, method=8, extra=extra, local=claim, central=claim)
    tracemalloc.start()
    npz = npzkit.open(archive(deflated))
    uses = [npz.read, npz.info, npz.lazy, lambda key: npz.load_all(), lambda key: npz.stream(key)]
    for use in uses:
        with pytest.raises(ZipFormatError, match="more bytes"):
            use("x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


@each_row(
    "raw",
    [deflate(DATA)[:-1], deflate(DATA) + b"!", deflate(DATA + b"!"), deflate(DATA[:-1]), b"\xff" * 50,
     deflate(DATA)[:20] + b"\xff" + deflate(DATA)[21:], deflate(LARGE[:-8]), deflate(LARGE) + bytes(9)],
)  # fmt: skip
def test_streams_that_do_not_fit_their_size(raw):
    """A stream that ends early, late, or with bytes behind it is an error."""
    data = LARGE if len(raw) > 1000 else DATA
    for use in (
        lambda npz: npz["x"],
        lambda npz: npz.load_all(),
        lambda npz: npz.stream("x").read(),
    ):
        with pytest.raises((ZipFormatError, ChecksumError)):
            use(npzkit.open(archive(plain(data=data, method=8, raw=raw))))


def test_a_whole_stream_that_is_too_short():
    """Where the stream's own end comes too early, that is what is said."""
    member = plain(method=12, raw=bz2.compress(DATA[:-8]))
    with pytest.raises(ZipFormatError, match="the bzip2 stream ends early"):
        read(archive(member))


@each_row("method", [0, 8])
@each_row("data", [DATA, LARGE])
def test_a_wrong_checksum(data, method):
    """A CRC that differs is a ChecksumError naming both; verify=False reads anyway."""
    wrong = {"crc": 1}
    npz = npzkit.open(archive(plain(data=data, method=method, central=wrong, local=wrong)))
    for use in (npz.read, lambda key: npz.load_all([key])):
        with pytest.raises(ChecksumError) as caught:
            use("x")
        assert caught.value.key == "x"
        assert caught.value.found == f"{zlib.crc32(data):08x}"
        assert caught.value.expected == "00000001"
    assert npz.read("x", verify=False).size
    assert npz.load_all(verify=False)["x"].size


def test_bytes_behind_the_array():
    """Bytes that follow the array in its member are an error, however it is read."""
    for method in (0, 8):
        npz = npzkit.open(archive(plain(data=DATA + b"!", method=method)))
        with pytest.raises(NpyFormatError, match="follow"):
            npz["x"]
        with pytest.raises(NpyFormatError, match="follow"):
            npz.load_all()


@each_row(
    "data",
    [b"", b"\x93NUM", b"no array at all", DATA[:100], DATA[:-1], b"\x93NUMPY\x04\x00" + bytes(200)],
)
@each_row("method", [0, 8])
def test_a_member_named_npy_must_be_an_array(data, method):
    """A .npy member that is no whole array is an NpyFormatError, not bytes."""
    npz = npzkit.open(archive(plain(data=data, method=method)))
    for use in (npz.read, npz.info, lambda key: npz.load_all()):
        with pytest.raises(NpyFormatError):
            use("x")


def test_a_newer_version_of_npy_is_not_supported():
    """An array of NPY 4.0 may be sound: the error is UnsupportedError too; of 1.1 it is not."""
    for version, is_newer in (((4, 0), True), ((1, 1), False)):
        with pytest.raises(NpyFormatError) as caught:
            npzkit.open(archive(plain(data=described(version=version))))["x"]
        assert isinstance(caught.value, UnsupportedError) == is_newer


def described(descr="'<f8'", shape="(2,)", order="False", data=bytes(16), version=(1, 0), more=""):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{more}}}"
    return header(text, version) + data


BAD_ARRAYS = {
    "version 0.0": described(version=(0, 0)),
    "version 1.1": described(version=(1, 1)),
    "version 4.0": described(version=(4, 0)),
    "expression": described(shape="(1 + 1,)"),
    "call": described(shape="tuple([2])"),
    "comprehension": described(shape="tuple(2 for _ in 'a')"),
    "comment": described(shape="(2,) # two\n"),
    "concatenated strings": described("'<' 'f8'"),
    "bytes for a string": described("b'<f8'"),
    "formatted string": described("f'<f8'"),
    "hexadecimal": described(shape="(0x2,)"),
    "underscore": described(shape="(0_2,)"),
    "key twice": described(more=", 'shape': (2,)"),
    "key too many": described(more=", 'x': 1"),
    "key missing": header("{'descr': '<f8', 'shape': (2,)}") + bytes(16),
    "no dict": header("[('descr', '<f8')]") + bytes(16),
    "two dicts": header("{}, {}") + bytes(16),
    "deep nesting": described("[" * 3000),
    "deep structures": described("[('a'," * 800 + "'<f8'" + ")]" * 800),
    "bool in the shape": described(shape="(True, 2)"),
    "float in the shape": described(shape="(2.0,)"),
    "negative": described(shape="(-2,)"),
    "two negatives": described(shape="(-1, -2)"),
    "over 2**63": described(shape=f"({1 << 63},)"),
    "shape is a list": described(shape="[2]"),
    "shape is a number": described(shape="2"),
    "65 dimensions": described(shape=str((1,) * 64 + (2,))),
    "order is a number": described(order="0"),
    "order is a string": described(order="'False'"),
    "order is missing": described(order="()"),
    "too few bytes": described(shape="(3,)"),
    "a product that wraps around": described(shape=f"({1 << 61}, 8)"),
    "a product that wraps around to what is there": described(shape=f"({(1 << 61) + 1}, 2)"),
    "nothing of something too large": described(shape=f"(0, {1 << 61}, 8)", data=b""),
    "no dtype": described("'<q9'"),
    "a dtype's name with more behind it": described("'float64; 1'"),
    "not UTF-8": header("{'descr': [('\xe9', '<f8')]}", (3, 0)) + bytes(16),
}  # fmt: skip


@pytest.mark.slow
@each_row("method", [0, 8])
@each_row("case", BAD_ARRAYS)
def test_bad_arrays(case, method, tmp_path):
    """A header that describes no array, or another than is there, is an NpyFormatError anyhow."""
    path = tmp_path / "a.npz"
    path.write_bytes(archive(plain(data=BAD_ARRAYS[case], method=method), plain("y.npy")))
    with npzkit.open(path) as npz:
        uses = [npz.read, npz.info, npz.lazy, npz.memmap, lambda key: npz.load_all()]
        for use in uses:
            with pytest.raises(NpyFormatError) as caught:
                use("x")
            assert (caught.value.key, caught.value.path) == ("x", str(path))
        assert np.array_equal(npz["y"], X)
        assert not npz.verify().ok


@each_row("descr", ["'float64'", "u'<f8'", '"<f8"', "'d'"])
def test_other_spellings_of_a_dtype(descr):
    """A plain name of a dtype, Python 2's strings and other quotes are read."""
    npz = npzkit.open(archive(plain(data=described(descr))))
    assert npz["x"].dtype == npz.load_all()["x"].dtype == np.dtype("<f8")
    assert npz["x"].tolist() == [0, 0]


@each_row(
    "data",
    [described() + b"!", described(shape="(0, 5)"), described("'|V0'"), described("[]")],
)
@each_row("method", [0, 8])
def test_bytes_that_no_item_stands_for(data, method):
    """Where the items take fewer bytes than there are, none at all among them, it is an error."""
    npz = npzkit.open(archive(plain(data=data, method=method)))
    for use in (npz.read, lambda key: npz.load_all()):
        with pytest.raises(NpyFormatError, match="follow"):
            use("x")


@each_row("descr", ["'|V0'", "'|S0'", "'<U0'", "[]"])
def test_a_giant_shape_of_items_without_bytes(descr):
    """Items that take no bytes cannot be claimed without end."""
    npz = npzkit.open(archive(plain(data=described(descr, f"({1 << 40},)", data=b""))))
    for use in (npz.read, npz.info, npz.lazy, lambda key: npz.load_all()):
        with pytest.raises(LimitExceededError):
            use("x")


@each_row(
    "descr",
    ["'|O'", "[('a', '|O')]", "[('a', '<i4'), ('b', [('c', '|O')])]", "[('a', '|O', (2,))]"],
)
@each_row("method", [0, 8])
def test_objects_anywhere_are_refused(descr, method, tmp_path, monkeypatch):
    """Objects, also inside structures and subarrays, are refused with pickle never touched."""
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *_, **__: pytest.fail("pickle was reached"))
    path = tmp_path / "a.npz"
    path.write_bytes(archive(plain(data=described(descr, data=pickle.dumps([1])), method=method)))
    with npzkit.open(path) as npz:
        for use in (npz.read, lambda key: npz.load_all()):
            with pytest.raises(PickleRefusedError) as caught:
                use("x")
            assert caught.value.key == "x"
        for use in (npz.lazy, npz.memmap):
            with pytest.raises(NpzkitError):
                use("x")


def test_gaps_and_hidden_members_are_dead_space():
    """Bytes between members, and local headers nobody lists, are passed over."""
    hidden = plain("hidden.npy").local_bytes()
    data = archive(plain(), plain("y.npy"), gap=hidden + b"\0" * 100)
    npz = npzkit.open(data)
    assert npz.files == ["x", "y"]
    assert all(np.array_equal(array, X) for array in npz.load_all().values())


@given(st.data())
def test_every_flip_and_cut_is_an_error_or_the_right_data(data):
    """One byte changed, or the end cut off: an NpzkitError, or arrays as they were."""
    good = archive(plain(), plain("y.npy", DATA, method=8), plain("z.npy", descriptor="signed 32"))
    changed = bytearray(good)
    position = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        changed[position] ^= data.draw(st.integers(1, 255))
    else:
        del changed[position:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with npzkit.open(bytes(changed)) as npz:
                for key in ("x", "y", "z"):
                    if key in npz:
                        assert np.array_equal(npz[key], X)
        except NpzkitError:
            pass
