"""What follows the last end record that fits: an unfinished append, a damaged commit, another archive."""

from __future__ import annotations

import io
import struct
import time
import warnings
import zipfile

import npzkit
import numpy as np
import pytest
from deep import extent
from forge import Member, archive, npy
from npzkit.errors import AmbiguousArchiveError, TornArchiveWarning, ZipFormatError

END = b"PK\5\6" + bytes(18)
META = {"step": 1, "note": "x" * 40}


def two_commits(*, metadata: bool = False, count: int = 1) -> tuple[bytes, bytes]:
    """Return an archive after its first commit, and after its second."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(3.0)}, metadata=META if metadata else None)
    first = stream.getvalue()
    with npzkit.NpzWriter(stream, "a") as w:
        for number in range(count):
            w.add(f"b{number}", np.arange(5) + number, attrs={"unit": "m"})
    return first, stream.getvalue()


def flipped(data: bytes, bit: int) -> bytes:
    """Return the data with one bit the other way."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def is_loaded(data: bytes) -> bool:
    """Whether np.load reads the second commit."""
    try:
        with np.load(io.BytesIO(data)) as npz:
            return "b0" in npz.files
    except Exception:
        return False


def joined(*parts: bytes) -> bytes:
    return b"".join(parts)


# -- a damaged commit ----------------------------------------------------------------


@pytest.mark.parametrize("metadata", [False, True])
def test_any_bit_of_the_last_end_record(tmp_path, metadata):
    """A flipped bit in a commit's end record is an error that names repair, never the older state."""
    _, data = two_commits(metadata=metadata)
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    begin = data.rindex(b"PK\5\6")
    loaded = 0
    # Every third one reaches each byte twice or more.
    for bit in range(8 * begin, 8 * (begin + 22), extent(3, 1)):
        damaged = flipped(data, bit)
        path.write_bytes(damaged)
        with pytest.raises(ZipFormatError, match="repair"), warnings.catch_warnings():
            warnings.simplefilter("error")
            npzkit.open(path)
        assert not npzkit.verify(path).ok
        with pytest.raises(ZipFormatError):
            npzkit.NpzWriter(path, "a")
        assert path.read_bytes() == damaged
        loaded += is_loaded(damaged)
        npzkit.repair(path, output)
        npzkit.repair(path)
        # In its place the new directory stands behind what was there.
        assert path.read_bytes().startswith(damaged)
        for repaired in (output, path):
            with npzkit.open(repaired, strict=True) as npz:
                assert list(npz) == ["a", "b0"]
                assert npz["b0"].tolist() == [0, 1, 2, 3, 4]
                assert npz.info("b0").attrs == {"unit": "m"}
                assert dict(npz.metadata) == (META if metadata else {})
        assert is_loaded(path.read_bytes())
    assert loaded


def with_zip64_end(data: bytes) -> bytes:
    """Return an archive without a comment with its end in zip64's records too, as one of many members has it."""
    count, size, offset = struct.unpack_from("<HLL", data, len(data) - 12)
    end64 = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(data) - 22, 1)
    end = b"PK\5\6" + struct.pack("<HHHHLLH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:-22] + end64 + locator + end


def test_zip64_records_of_the_last_commit(tmp_path):
    """A flipped bit in zip64's end records is an error that repair mends, or costs nothing."""
    path = tmp_path / "a.npz"
    data = with_zip64_end(two_commits(count=3)[1])
    with npzkit.open(data, strict=True) as npz:
        assert list(npz) == ["a", "b0", "b1", "b2"]
    begin = data.rindex(b"PK\6\6")
    refused = 0
    for bit in range(8 * begin, 8 * len(data), 3):
        damaged = flipped(data, bit)
        try:
            with npzkit.open(damaged) as npz:
                assert list(npz) == ["a", "b0", "b1", "b2"]
        except ZipFormatError:
            refused += 1
            path.write_bytes(damaged)
            assert npzkit.repair(path).kept == ("a", "b0", "b1", "b2")
    assert refused > 8 * 30


def test_two_damaged_end_records(tmp_path):
    """If the ends of both commits are damaged, repair saves the newer state."""
    first, data = two_commits()
    damaged = bytearray(data)
    for begin in (len(first) - 22, len(data) - 22):
        damaged[begin] ^= 8
    path = tmp_path / "a.npz"
    path.write_bytes(damaged)
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.open(path)
    assert npzkit.repair(path).kept == ("a", "b0")


def test_a_damaged_directory_is_no_older_state(tmp_path):
    """A flipped bit in the newest directory is an error, and repair keeps what it can prove."""
    _, data = two_commits(count=3)
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    begin = data.rindex(b"PK\1\2", 0, data.rindex(b"b1.npy"))
    path.write_bytes(flipped(data, 8 * begin))
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.open(path)
    report = npzkit.repair(path, output)
    assert set(report.kept) == {"a", "b0", "b1", "b2"}
    # Of what the rest of the directory lists nothing is in doubt.
    assert report.uncertain == ("b1",)
    assert "b1" in str(report)
    assert npzkit.repair(path).uncertain == ("b1",)
    assert path.read_bytes()[: len(data)] == flipped(data, 8 * begin)
    for repaired in (path, output):
        with npzkit.open(repaired, strict=True) as npz:
            assert {key: npz[key][0] for key in npz} == {"a": 0, "b0": 0, "b1": 1, "b2": 2}
            assert npz.info("b2").attrs == {"unit": "m"}


def test_what_is_lost_behind_the_last_commit_is_not_cut_off(tmp_path):
    """If a directory never reached the disk, repair keeps the last commit and what is sound behind it."""
    _, data = two_commits(count=3)
    size = int.from_bytes(data[-10:-6], "little")
    damaged = bytearray(data)
    damaged[-22 - size : -22] = bytes(size)
    # One of the new arrays is damaged too.
    damaged[data.rindex(b"\x93NUMPY", 0, data.rindex(b"b2.npy", 0, -22 - size)) + 130] ^= 1
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    path.write_bytes(damaged)
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.open(path)
    report = npzkit.repair(path, output)
    assert report.kept == ("a", "b0", "b2")
    assert [lost.key for lost in report.lost] == ["b1"]
    assert report.uncertain == report.kept
    assert npzkit.repair(path).kept == report.kept
    assert path.read_bytes().startswith(damaged)
    for repaired in (path, output):
        with npzkit.open(repaired, strict=True) as npz:
            assert npz["b2"].tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("size", [1, 10, 18])
def test_an_end_record_that_was_cut(tmp_path, size):
    """An end record with its signature is a commit's, also where the file ends within it."""
    _, data = two_commits()
    path = tmp_path / "a.npz"
    path.write_bytes(data[:-size])
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.open(path)
    assert npzkit.repair(path).kept == ("a", "b0")


@pytest.mark.parametrize(
    ("signature", "is_torn"),
    [
        (b"\0\0\0\0", True), (b"P\0\0\0", True), (b"PK\5\0", True), (b"\0\0\5\6", True),
        (b"\0PK\0", False), (b"\0\0PK", False), (b"\0\0\0P", False), (b"P\0\0\6", False),
    ],
)  # fmt: skip
def test_which_signatures_are_being_written(signature, is_torn):
    """The bytes of a signature come in their own places: others are damage, and no unfinished append."""
    _, data = two_commits()
    begin = data.rindex(b"PK\5\6")
    changed = data[:begin] + signature + data[begin + 4 :]
    if is_torn:
        with pytest.warns(TornArchiveWarning), npzkit.open(changed) as npz:
            assert list(npz) == ["a"]
    else:
        with pytest.raises(ZipFormatError, match="repair"):
            npzkit.open(changed)


def test_a_comment_that_goes_on(tmp_path):
    """If an end record cuts its metadata short, that is damage, and repair has all of it."""
    _, data = two_commits(metadata=True)
    begin = data.rindex(b"PK\5\6")
    path = tmp_path / "a.npz"
    for size in (0, 5):
        path.write_bytes(data[: begin + 20] + struct.pack("<H", size) + data[begin + 22 :])
        with pytest.raises(ZipFormatError, match="repair"):
            npzkit.open(path)
        npzkit.repair(path)
        with npzkit.open(path, strict=True) as npz:
            assert dict(npz.metadata) == META


@pytest.mark.parametrize("is_too_long", [False, True])
def test_what_completes_a_comment_fits_into_one(is_too_long):
    """Only as many bytes as a comment can have are metadata that an end record cuts short."""
    begun, end = b'{"a": "', b'"}'
    rest = b"x" * (0xFFFF - len(begun) - len(end) + is_too_long) + end
    data = archive(Member("a.npy", npy(np.arange(3))), comment=begun) + rest
    if is_too_long:
        with pytest.warns(TornArchiveWarning), npzkit.open(data) as npz:
            assert npz["a"].tolist() == [0, 1, 2]
    else:
        with pytest.raises(ZipFormatError, match="repair"):
            npzkit.open(data)


@pytest.mark.parametrize("missing", [0, 1])
def test_repair_makes_no_older_record_fit(tmp_path, missing):
    """Of two end records in a repaired file, only the new one ends with the file."""
    _, data = two_commits()
    begin = data.rindex(b"PK\5\6")
    path = tmp_path / "a.npz"

    def repaired_size(comment_size):
        damaged = data[: begin + 20] + struct.pack("<H", comment_size) + data[begin + 22 :]
        path.write_bytes(damaged)
        assert npzkit.repair(path).kept
        return path.stat().st_size

    size = repaired_size(30_000)
    assert repaired_size(size - begin - 22 - missing) == size + (not missing)
    with npzkit.open(path, strict=True) as npz, np.load(path) as theirs:
        assert npz["b0"].tolist() == theirs["b0"].tolist() == [0, 1, 2, 3, 4]


# -- an unfinished append ----------------------------------------------------------------


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_an_append_that_was_cut_anywhere(compression):
    """Cut before its end record has its signature, an append leaves the last commit, with a warning."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(3.0)})
    first = stream.getvalue()
    inner = np.frombuffer(first * 3, "u1")
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("b", inner, compression=compression)
        w["c"] = np.arange(3)
    data = stream.getvalue()
    seal = len(data) - 22
    unsealed = data[:seal] + bytes(4) + data[seal + 4 :]
    cuts = [unsealed[:size] for size in range(len(first) + 1, len(data) + 1)]
    cuts += [data[:seal] + data[seal : seal + size] + bytes(22 - size) for size in (1, 2, 3)]
    for torn in cuts:
        with pytest.warns(TornArchiveWarning), npzkit.open(torn) as npz:
            assert list(npz) == ["a"]
            assert npz._archive.directory.end_offset == len(first)


def test_an_append_of_many_whole_archives(tmp_path):
    """Whole archives in an array that was half appended hide no commit, however many there are."""
    inner = archive(Member("x.npy", b"12"))
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(3.0)})
    first = path.read_bytes()
    with npzkit.NpzWriter(path, "a") as w:
        w["archives"] = np.frombuffer(inner * 20_000, "u1")
    data = path.read_bytes()
    torn = data[: len(data) - 2000]
    path.write_bytes(torn)
    began = time.process_time()
    with pytest.warns(TornArchiveWarning), npzkit.open(path) as npz:
        assert list(npz) == ["a"]
    # Linear time takes a tenth of a second; judging each archive at length took minutes.
    assert time.process_time() - began < 5
    assert npzkit.repair(path).cut_size == len(torn) - len(first)
    assert path.read_bytes() == first


def test_a_lost_sector_within_a_name():
    """An append of which the disk lost a sector in a name, and more, leaves the last commit."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(3.0)})
    first = stream.getvalue()
    inner = archive(Member("x.npy", npy(np.arange(3))))
    with npzkit.NpzWriter(stream, "a") as w:
        w.add("b" * 900, np.frombuffer(inner, "u1"))
    data = stream.getvalue()
    end = data.index(b"PK\5\6", len(first))
    for lost in range(-(-(len(first) + 31) // 512) * 512, len(first) + 900, 512):
        with pytest.warns(TornArchiveWarning):
            npz = npzkit.open(data[:lost] + bytes(end - lost) + data[end : end + 22])
        with npz:
            assert list(npz) == ["a"]


# -- another archive, or another end record ---------------------------------------------------


def other() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, other=np.arange(4))
    return stream.getvalue()


def streamed() -> bytes:
    """An archive whose members' sizes stand behind their data."""
    return archive(Member("other.npy", npy(np.arange(4)), method=8, descriptor="signed"))


@pytest.mark.parametrize(
    "tail",
    [
        other(), streamed(), two_commits()[1], b"junk" + other(), bytes(700) + other(), other() + b"junk",
        other() + other(), b"junk" + END, b"junk" + END + b"junk",
    ],
    ids=[
        "archive", "streamed", "commits", "junk, archive", "zeros, archive", "archive, junk",
        "archives", "junk, empty end", "junk, empty end, junk",
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 2])
def test_another_end_behind_an_archive(tmp_path, tail, count):
    """What others read from the end of the file is not passed over: two archives are none."""
    data = two_commits()[count - 1] + tail
    with pytest.raises(AmbiguousArchiveError, match="another end"):
        npzkit.open(data)
    assert not npzkit.verify(data).ok
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    for change in (npzkit.repair, lambda path: npzkit.NpzWriter(path, "a")):
        with pytest.raises(AmbiguousArchiveError):
            change(path)
    assert path.read_bytes() == data


def in_comment(kind: str) -> bytes:
    """An archive of two members, with an end record in its comment that does not end the file."""
    members = [Member(name, npy(np.arange(6.0))) for name in ("x.npy", "y.npy")]
    plain = archive(*members)
    if kind == "empty":
        return archive(*members, comment=b"note" + END + b"junk")
    begin = plain.index(b"PK\1\2")
    entry = plain[begin : plain.index(b"PK\1\2", begin + 4)]
    # It leads to a directory of its own, which lists the first member alone.
    end = b"PK\5\6" + struct.pack("<HHHHLLH", 0, 0, 1, 1, len(entry), len(plain) + 4, 0)
    return archive(*members, comment=b"note" + entry + end + b"junk")


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["empty", "another directory"])
def test_an_end_record_in_the_comment(kind, strict):
    """An end record that others find in the comment is refused, wherever its own comment ends."""
    data = in_comment(kind)
    with zipfile.ZipFile(io.BytesIO(data)) as theirs:
        # It takes what it finds, and looks no further.
        assert theirs.namelist() == ([] if kind == "empty" else ["x.npy"])
    with pytest.raises(AmbiguousArchiveError):
        npzkit.open(data, strict=strict)
    assert not npzkit.verify(data).ok


def test_a_signature_without_room_for_a_record():
    """What no program can take for an end record keeps no archive from being read."""
    data = archive(Member("x.npy", npy(np.arange(6.0))), comment=b"PK\5\6" + bytes(17))
    with npzkit.open(data, strict=True) as npz:
        assert npz["x"].tolist() == list(range(6))


# -- bytes that were lost or inserted -----------------------------------------------------


def three_commits() -> tuple[bytes, bytes]:
    """Return an archive after its second commit, and after its third, which replaces and removes."""
    stream = io.BytesIO()
    npzkit.save(stream, {key: np.arange(3.0) for key in "abc"})
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        w["d"] = np.ones(2)
    second = stream.getvalue()
    with npzkit.NpzWriter(stream, "a", auto_repack=False) as w:
        w.add("b", np.arange(3.0) + 9, overwrite=True)
        del w["c"]
    return second, stream.getvalue()


@pytest.mark.parametrize("inserted", [None, b"\1", b"PK\5\6"])
def test_bytes_lost_or_inserted_are_no_unfinished_append(inserted):
    """A commit from which bytes are missing, or that has more, never leaves the older state."""
    second, data = three_commits()
    for place in range(len(second), len(data) - 22, 3):
        rest = data[place + 1 :] if inserted is None else inserted + data[place:]
        with pytest.raises(npzkit.NpzkitError), warnings.catch_warnings():
            warnings.simplefilter("error")
            npzkit.open(data[:place] + rest)


def test_repair_in_place_lists_the_newest_of_two(tmp_path):
    """Where an entry of the newest directory is damaged, its newer array is listed, not the older one."""
    _, data = three_commits()
    path = tmp_path / "a.npz"
    begin = data.rindex(b"PK\1\2", 0, data.rindex(b"b.npy"))
    for bit in (0, 8 * 28, 8 * 28 + 2, 8 * 30 + 3):
        path.write_bytes(flipped(data, 8 * begin + bit))
        for output in (tmp_path / "b.npz", None):
            report = npzkit.repair(path, output)
            with npzkit.open(output or path) as npz:
                assert npz["a"].tolist() == [0, 1, 2]
                assert npz["b"].tolist() == [9, 10, 11]
            with zipfile.ZipFile(output or path) as theirs:
                found = {(info.flag_bits, info.extract_version) for info in theirs.infolist()}
            assert found == {(0, 20)}
            assert "b" in report.uncertain
            assert not report.lost


def test_repair_in_place_names_a_newer_array_that_is_damaged(tmp_path):
    """Where the older array is kept as the newer one is damaged, the report names the newer one."""
    second, data = three_commits()
    damaged = bytearray(data)
    damaged[data.rindex(struct.pack("<d", 10.0))] ^= 1
    damaged[data.rindex(b"PK\1\2", 0, data.rindex(b"b.npy"))] ^= 1
    path = tmp_path / "a.npz"
    for output in (tmp_path / "b.npz", None):
        path.write_bytes(damaged)
        report = npzkit.repair(path, output)
        assert [(lost.key, lost.where) for lost in report.lost] == [("b", len(second))]


def test_an_entry_that_runs_into_the_end_record(tmp_path):
    """If the newest directory's last entry claims bytes of the end record, its array keeps its key."""
    _, data = three_commits()
    path = tmp_path / "a.npz"
    name_size = data.rindex(b"PK\1\2") + 28
    for output in (tmp_path / "b.npz", None):
        path.write_bytes(flipped(data, 8 * name_size + 1))
        assert "d" in npzkit.repair(path, output).kept
        with npzkit.open(output or path) as npz:
            assert npz["d"].tolist() == [1, 1]


def test_an_end_record_in_front_of_a_commit_hides_no_member(tmp_path):
    """Bytes that begin like an end record are not taken for a commit that removed all."""
    second, data = three_commits()
    path = tmp_path / "a.npz"
    for output in (tmp_path / "b.npz", None):
        path.write_bytes(data[: len(second)] + b"PK\5\6" + data[len(second) :])
        assert {"a", "b", "d"} <= set(npzkit.repair(path, output).kept)
        with npzkit.open(output or path) as npz:
            assert npz["b"].tolist() == [9, 10, 11]


def test_a_repaired_comment_is_no_end_record(tmp_path):
    """What repair writes is read by np.load, also where the damaged file's comment kept that from it."""
    path = tmp_path / "a.npz"
    comment = b"x" * 30 + b"PK\5\6" + b"y" * 10
    path.write_bytes(archive(Member("a.npy", npy(np.arange(3)))))
    with zipfile.ZipFile(path, "a") as z:
        z.comment = comment
    output = tmp_path / "b.npz"
    npzkit.repair(path, output)
    with np.load(output) as npz:
        assert npz["a"].tolist() == [0, 1, 2]
