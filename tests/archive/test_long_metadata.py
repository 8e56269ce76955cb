"""Metadata and structures of any size: what the zip comment cannot hold lies in a hidden member."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import npzkit
import numpy as np
import pytest
from npzkit.errors import ZipFormatError

LONG = {"text": "x" * 70_000, "numbers": list(range(20_000))}
ARRAYS = {f"k{i}": np.arange(i + 1) for i in range(5)}


@pytest.fixture(params=[1, 5])
def path(request, tmp_path):
    path = tmp_path / "a.npz"
    npzkit.save(path, dict(list(ARRAYS.items())[: request.param]), metadata=LONG)
    return path


def read(path):
    with npzkit.open(path) as npz:
        return dict(npz.metadata)


def test_it_comes_back(path):
    """Metadata of more than 65,535 bytes is read as it was saved, and nothing is dead."""
    assert read(path) == LONG
    with npzkit.open(path) as npz:
        assert npz.archive_info().dead_size == 0
    assert npzkit.verify(path).ok


def test_others_see_no_member(path):
    """np.load and zipfile list the arrays alone, and find nothing wrong."""
    with np.load(path) as theirs, npzkit.open(path) as ours:
        assert theirs.files == ours.files
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert len(archive.comment) < 200


def test_its_member_is_a_plain_one(path):
    """Programs that read a stream meet a stored member without flags."""
    data = path.read_bytes()
    offset = data.index(b".npzkit.metadata") - 30
    assert struct.unpack_from("<4sHHH", data, offset) == (b"PK\3\4", 20, 0, 0)


def test_the_array_index_says_where_it_is(path):
    """Other readers find its member by the index too: the place is that of the comment."""
    with zipfile.ZipFile(path) as archive:
        place = json.loads(archive.comment)["npzkit.metadata"]
        end = archive.start_dir
    *found, _, magic = struct.unpack("<QQ24s4s", path.read_bytes()[end - 44 : end])
    assert (found, magic) == ([place["offset"], place["size"]], b"NPZX")


def test_a_commit_that_leaves_it_writes_it_once(path):
    """Commits of arrays go on pointing to the same hidden member."""
    before = path.stat().st_size
    with npzkit.NpzWriter(path, "a") as w:
        for i in range(5):
            w[f"new{i}"] = np.zeros(3)
            w.commit()
        assert w.metadata == LONG
        # Closing may remove what is not used.
        assert path.stat().st_size - before < 70_000
    assert read(path) == LONG


def test_it_changes(path):
    """Another one takes its place, a short one the comment's, and none leaves nothing behind."""
    with npzkit.NpzWriter(path, "a") as w:
        w.metadata["more"] = 1
        w.commit()
        assert read(path) == {**LONG, "more": 1}
        w.metadata.clear()
        w.metadata["short"] = True
    assert read(path) == {"short": True}
    with npzkit.NpzWriter(path, "a") as w:
        w.metadata.clear()
    assert read(path) == {}
    npzkit.repack(path)
    assert path.stat().st_size < 5000


def test_a_rewrite_keeps_it(path, tmp_path):
    """repack and repair to another file carry it over."""
    npzkit.repack(path, tmp_path / "b.npz")
    assert read(tmp_path / "b.npz") == LONG
    npzkit.repair(path, tmp_path / "c.npz")
    assert read(tmp_path / "c.npz") == LONG


def test_another_program_appends(path):
    """zipfile keeps the comment, and with it the way to the hidden member."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "x")
    assert read(path) == LONG


def test_another_program_rewrites(path, tmp_path):
    """Where the hidden member was left out, that is said, and the arrays are read."""
    other = tmp_path / "b.npz"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for info in old.infolist():
            new.writestr(info, old.read(info))
        new.comment = old.comment
    with npzkit.open(other) as npz:
        assert np.array_equal(npz["k0"], ARRAYS["k0"])
        with pytest.raises(ZipFormatError, match="metadata"):
            _ = npz.metadata
    report = npzkit.verify(other)
    assert not report.ok
    assert "metadata" in str(report)
    with pytest.raises(ZipFormatError, match="metadata"):
        npzkit.NpzWriter(other, "a")
    found = npzkit.repair(other, tmp_path / "c.npz")
    assert [lost.key for lost in found.lost] == [".npzkit.metadata"]
    assert read(tmp_path / "c.npz") == {}


def test_damage_is_noticed(path):
    """A flipped bit in it is an error, never other metadata."""
    data = bytearray(path.read_bytes())
    place = data.index(b"x" * 1000)
    data[place + 500] ^= 1
    with npzkit.open(bytes(data)) as npz, pytest.raises(ZipFormatError, match="metadata"):
        _ = npz.metadata


@pytest.mark.parametrize(
    "pointer",
    [b'"offset":0,"size":99999999', b'"offset":-5,"size":70', b'"offset":0,"size":1e3',
     b'"offset":99999999999,"size":70', b'"offset":0,"size":40', b'"offset":"0","size":[]'],
)  # fmt: skip
def test_where_it_is_said_to_be_is_checked(pointer, tmp_path):
    """A pointer that leads elsewhere is an error of its own, or plain metadata; no other."""
    stream = io.BytesIO()
    npzkit.save(stream, ARRAYS)
    comment = b'{"npzkit.metadata":{' + pointer + b"}}"
    with zipfile.ZipFile(stream, "a") as archive:
        archive.comment = comment
    with npzkit.open(stream) as npz:
        if pointer.endswith((b"1e3", b"[]")) or b"-" in pointer:
            assert "npzkit.metadata" in npz.metadata
        else:
            with pytest.raises(ZipFormatError, match="metadata"):
                _ = npz.metadata


def test_metadata_that_are_not_there_take_no_dead_space():
    """A comment that leads to members makes no room between them, and none below nothing."""
    stream = io.BytesIO()
    npzkit.save(stream, ARRAYS)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.comment = b'{"npzkit.metadata":{"offset":0,"size":70}}'
    with npzkit.open(stream) as npz:
        assert npz.archive_info().dead_size == 0
        assert [row.severity for row in npz.verify().rows] == ["error"]


def test_a_tree_of_many_leaves(tmp_path):
    """The structure of a tree with 100,000 leaves needs no place in the comment."""
    tree = {"lr": {"all": [i / 7 for i in range(80_000)]}, "w": np.eye(2), "n": ["n"] * 20_000}
    npzkit.save(tmp_path / "a.npz", {"opt": tree})
    found = npzkit.load_tree(tmp_path / "a.npz")["opt"]
    assert found["lr"] == tree["lr"]
    assert found["n"] == tree["n"]
    assert np.array_equal(found["w"], tree["w"])


def test_a_pipe_takes_it(tmp_path):
    """Bytes go out in their order, so that a stream carries long metadata too."""
    stream = io.BytesIO()

    class Pipe:
        def write(self, data):
            return stream.write(data)

    npzkit.save(Pipe(), ARRAYS, metadata=LONG)
    assert read(stream.getvalue()) == LONG


def test_metadata_cannot_pass_for_the_way_to_others(tmp_path):
    """What a user saves is never taken for where long metadata lie."""
    bad = {"npzkit.metadata": {"offset": 0, "size": 70}}
    with pytest.raises(ValueError, match="reserved"):
        npzkit.save(tmp_path / "a.npz", ARRAYS, metadata=bad)
    npzkit.save(tmp_path / "a.npz", ARRAYS, metadata={**bad, "more": 1})
    assert read(tmp_path / "a.npz") == {**bad, "more": 1}
