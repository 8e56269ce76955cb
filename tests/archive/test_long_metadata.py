"""Metadata and structures of any size: what the zip comment cannot hold lies in the record."""

from __future__ import annotations

import io
import json
import zipfile
import zlib

import npzkit
import numpy as np
import pytest
from commits import find_footer, parts_of
from forge import piece, with_metadata
from npzkit.errors import LimitExceededError, ZipFormatError

from tables import each_row

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


def place_of(data):
    """Return what the comment says of where the metadata are."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        offset, size, crc32 = json.loads(archive.comment)["npzkit.metadata"]
        return offset, size, crc32


def test_they_are_in_as_many_pieces_as_they_need(path):
    """Programs that read a stream meet the beginning of a directory; the comment says where it is."""
    data = path.read_bytes()
    offset, size, crc = place_of(data)
    assert size == 178_913
    text = b""
    for start in range(0, size, 65_000):
        count = min(65_000, size - start)
        part = data[offset + len(text) // 65_000 * 65_057 :][:count]
        head = data[offset + start // 65_000 * 65_057 - 57 :][:57]
        text += part
        # The last piece has the array index too.
        assert (head == piece(part)[:57]) == (count == 65_000)
        assert head[:46] == piece(b"")[:28] + head[28:32] + piece(b"")[32:46]
    assert zlib.crc32(text) == crc
    assert {**json.loads(text)} == LONG
    _, footer = find_footer(data)
    assert footer.directory_offset - footer.record_size == offset - 57


@pytest.mark.parametrize("size", [4097, 64_999, 65_000, 65_001, 130_000, 130_001])
def test_metadata_of_every_size(size, tmp_path):
    """Where they fill a piece exactly, or almost, they come back too, also after an append."""
    path, text = tmp_path / "a.npz", "x" * (size - 8)
    npzkit.save(path, ARRAYS, metadata={"t": text})
    assert place_of(path.read_bytes())[1] == size
    with npzkit.NpzWriter(path, "a") as w:
        w["more"] = np.arange(3)
    assert read(path) == {"t": text}
    assert npzkit.verify(path).ok
    found = dict(npzkit.iter_arrays(io.BytesIO(path.read_bytes())))
    assert list(found) == [*ARRAYS, "more"]


@pytest.mark.parametrize("size", [4095, 4096])
def test_short_metadata_are_the_comment(size, tmp_path):
    """Metadata of up to 4,096 bytes are the zip comment itself."""
    path = tmp_path / "a.npz"
    npzkit.save(path, ARRAYS, metadata={"t": "x" * (size - 8)})
    with zipfile.ZipFile(path) as archive:
        assert len(archive.comment) == size
    assert not any(part.what == "metadata" for part in parts_of(path.read_bytes()))


@pytest.mark.slow
def test_a_commit_that_leaves_it_writes_it_once(path):
    """Commits of arrays go on pointing to the same place."""
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
    """zipfile keeps the comment, and with it the way to the metadata."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "x")
    assert read(path) == LONG


def test_another_program_rewrites(path, tmp_path):
    """Where the record was left out, that is said, and the arrays are read."""
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
    assert [lost.key for lost in found.lost] == ["npzkit.metadata"]
    assert read(tmp_path / "c.npz") == {"npzkit.lost": ["npzkit.metadata"]}


def test_damage_is_noticed(path):
    """A flipped bit in any of its pieces is an error, never other metadata."""
    data = bytearray(path.read_bytes())
    offset, size, _ = place_of(bytes(data))
    for place in (
        offset,
        offset + 500,
        offset + 64_999,
        offset + 65_057,
        offset + size + 2 * 57 - 1,
    ):
        data[place] ^= 1
        with npzkit.open(bytes(data)) as npz, pytest.raises(ZipFormatError, match="metadata"):
            _ = npz.metadata
        data[place] ^= 1


def test_damage_of_the_head_of_a_piece(path):
    """Metadata are read by their place and CRC-32; verify says that a head is damaged."""
    data = bytearray(path.read_bytes())
    offset = place_of(bytes(data))[0]
    for place in (offset - 57, offset - 1, offset + 65_000, offset + 65_056):
        data[place] ^= 1
        assert read(bytes(data)) == LONG
        assert [row.severity for row in npzkit.verify(bytes(data)).rows] == ["error"]
        data[place] ^= 1


@pytest.mark.parametrize("text", [b"{}", b'{"a": 1}', b'{"t": "' + b"x" * 140_000 + b'"}'])
def test_metadata_of_other_writers(text):
    """They are found by the comment alone, of any size, before a directory without a footer."""
    assert read(with_metadata(text)) == json.loads(text)
    with npzkit.open(with_metadata(text)) as npz:
        assert npz.files == ["x"]


@pytest.mark.parametrize(
    "pointer",
    ["[0,99999999,0]", "[99999999999,70,0]", "[0,40,0]", "[9999999999999999999,70,0]",
     "[0,70,9999999999]", "[0,9999999999,0]", "[0,0,1]"],
)  # fmt: skip
def test_where_it_is_said_to_be_is_checked(pointer):
    """A pointer that leads elsewhere is an error of its own."""
    with npzkit.open(pointed(pointer)) as npz:
        with pytest.raises((ZipFormatError, LimitExceededError), match="metadata"):
            _ = npz.metadata
        assert np.array_equal(npz["k0"], ARRAYS["k0"])


@each_row(
    "pointer",
    ["[-5,70,0]", "[0,1e3,0]", '["0",[],0]', "[0,70]", "[0,70,0,0]", "[0,70,0.5]",
     '{"offset":0,"size":70}', "[10000000000000000000,70,0]"],
)  # fmt: skip
def test_what_looks_like_a_pointer_is_plain_metadata(pointer):
    """Other values of the same name are metadata as any."""
    with npzkit.open(pointed(pointer)) as npz:
        assert npz.metadata == {"npzkit.metadata": json.loads(pointer)}


def pointed(pointer):
    """Return an archive whose comment says where metadata are."""
    stream = io.BytesIO()
    npzkit.save(stream, ARRAYS)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.comment = b'{"npzkit.metadata":' + pointer.encode() + b"}"
    return stream.getvalue()


def test_metadata_that_are_not_there_take_no_dead_space():
    """A comment that leads to members makes no room between them, and none below nothing."""
    with npzkit.open(pointed("[0,70,0]")) as npz:
        assert npz.archive_info().dead_size == 0
        assert [row.severity for row in npz.verify().rows] == ["error"]


@pytest.mark.slow
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
    bad = {"npzkit.metadata": [0, 70, 0]}
    with pytest.raises(ValueError, match="reserved"):
        npzkit.save(tmp_path / "a.npz", ARRAYS, metadata=bad)
    like = {"npzkit.metadata": [0, 70]}
    for metadata in ({**bad, "more": 1}, like):
        npzkit.save(tmp_path / "a.npz", ARRAYS, metadata=metadata)
        assert read(tmp_path / "a.npz") == metadata
