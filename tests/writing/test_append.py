"""Mode "a": what is written behind an archive, what is edited, and what stays as it was."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import struct
import subprocess
import warnings
import zipfile
import zlib
from pathlib import Path

import forge
import npzkit
import npzkit.archive.written
import npzkit.maintenance.repack
import numpy as np
import pytest
from deep import extent
from npzkit.errors import (
    AmbiguousArchiveError,
    AmbiguousArchiveWarning,
    ArchiveLockedError,
    ClosedArchiveError,
    LimitExceededError,
    MemberNotFoundError,
    NpzkitError,
    TornArchiveWarning,
    UnsafeNameError,
    UnsupportedError,
    ZipFormatError,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOISE = np.random.default_rng(0).integers(0, 9, 60_000)
"""Half a megabyte: of two chunks where it is deflated."""


class Pipe(io.RawIOBase):
    """A file that can only be written to, behind which descriptors are put."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)

    def close(self):
        self.file.close()
        super().close()


def by_zipfile(target, method=zipfile.ZIP_STORED):
    """Write two arrays, a folder and a note, with times, attributes and comments."""
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.comment = b"kept as it is"
        for number, name in enumerate(["x.npy", "deep/y.npy", "folder/", "note.txt"]):
            member = zipfile.ZipInfo(name, (2001, 2, 3 + number, 4, 5, 6))
            member.compress_type = method
            member.external_attr = 0o640 << 16 | number
            member.comment = b"of " + name.encode()
            if name.endswith(".npy"):
                data = forge.npy(np.arange(100 + number))
            else:
                data = b"words" if number == 3 else b""
            archive.writestr(member, data)


def by_pipe(path):
    with Pipe(path) as pipe:
        by_zipfile(pipe, zipfile.ZIP_DEFLATED)


def forged(path):
    """Write what zipfile does not: foreign extra fields, other ones in both headers."""
    block = struct.pack("<HH", 0xCAFE, 4) + b"cafe"
    path.write_bytes(
        forge.archive(
            forge.Member("x.npy", forge.npy(np.arange(4)), extra=block, local_extra=block * 2),
            forge.Member("y.npy", forge.npy(np.ones(3)), method=8, comment=b"said", extra=block),
            comment=b"\xff\xfe foreign",
        )
    )


def by_npzkit(path):
    with npzkit.NpzWriter(path, compression="deflated", metadata={"step": 1}) as w:
        w.add("x", np.arange(4), attrs={"unit": "m"})
        w.add("noise", NOISE, attrs={"long": "ü" * 100})


MAKERS = {
    "npzkit": by_npzkit,
    "np.savez": lambda path: np.savez(path, x=np.arange(4), y=np.eye(3)),
    "np.savez_compressed": lambda path: np.savez_compressed(path, x=np.arange(4), y=NOISE),
    "zipfile": by_zipfile,
    "zipfile bzip2": lambda path: by_zipfile(path, zipfile.ZIP_BZIP2),
    "zipfile lzma": lambda path: by_zipfile(path, zipfile.ZIP_LZMA),
    "zipfile descriptors": by_pipe,
    "forged": forged,
}
for _fixture in sorted(FIXTURES.glob("*.npz")):
    if _fixture.stat().st_size < 1 << 20:
        MAKERS[_fixture.stem] = lambda path, fixture=_fixture: shutil.copyfile(fixture, path)

UNREADABLE = {"7zip_deflate64", "infozip_encrypted", "zipfile_zstandard"}
"""What zipfile, or this Python's, cannot read."""


@pytest.fixture(params=sorted(MAKERS))
def made(request, tmp_path):
    """An archive by another program, or by npzkit."""
    path = tmp_path / "a.npz"
    MAKERS[request.param](path)
    return path, request.param not in UNREADABLE


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(4), "y": np.eye(3), "z": NOISE}, metadata={"step": 1})
    return path


def listing(path):
    """What zipfile says of the archive: its comment, and all fields of its entries."""
    with zipfile.ZipFile(path) as archive:
        fields = [slot for slot in zipfile.ZipInfo.__slots__ if not slot.startswith("_")]
        entries = [
            {field: getattr(info, field, None) for field in fields} for info in archive.infolist()
        ]
        return archive.comment, entries


def check_accepted(path, **arrays):
    """Have zipfile, numpy and npzkit read the archive, and compare some of its arrays."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    with np.load(path) as theirs, npzkit.open(path, strict=True) as npz:
        assert theirs.files == npz.files
        for key, array in arrays.items():
            for found in (theirs[key], npz[key], npz.load_all([key])[key]):
                assert found.dtype == np.asanyarray(array).dtype
                assert np.array_equal(found, array)


@contextlib.contextmanager
def untouched(path):
    """Hold a file's bytes, inode and times against what they were; nothing may be left beside."""
    before, stat, names = path.read_bytes(), path.stat(), sorted(os.listdir(path.parent))
    yield
    after = path.stat()
    assert path.read_bytes() == before
    assert (after.st_ino, after.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    assert sorted(os.listdir(path.parent)) == names


# -- behind any archive ------------------------------------------------------


def test_no_byte_of_what_was_committed_is_touched(made):
    """Arrays come behind the archive of any program, whose bytes and entries stay."""
    path, is_readable = made
    before, (comment, entries) = path.read_bytes(), listing(path)
    with npzkit.NpzWriter(path, "a") as w:
        assert all(key in w for key in w.files)
        w["new"] = NOISE
        w.commit()
        assert path.read_bytes().startswith(before)
        w.add("new/deflated", NOISE, compression="deflated", attrs={"unit": "m"})
    after = path.read_bytes()
    assert after.startswith(before)
    found = listing(path)
    assert found[0] == comment
    assert found[1][: len(entries)] == entries
    with npzkit.open(path, strict=True) as npz, np.load(path) as theirs:
        assert npz.files == theirs.files
        assert npz.files[-2:] == ["new", "new/deflated"]
        assert np.array_equal(npz["new"], NOISE)
        assert np.array_equal(theirs["new/deflated"], NOISE)
        assert npz.info("new").aligned
        assert npz.info("new/deflated").seekable
    if is_readable:
        with zipfile.ZipFile(path) as new, zipfile.ZipFile(io.BytesIO(before)) as old:
            assert new.testzip() is None
            assert all(new.read(name) == old.read(name) for name in old.namelist())


def test_an_edited_entry_keeps_its_other_fields(made):
    """New attributes go beside times, permissions, comments and foreign extra fields."""
    path, _ = made
    before, (comment, entries) = path.read_bytes(), listing(path)
    with npzkit.NpzWriter(path, "a") as w:
        key = w.files[0]
        w.attrs(key)["note"] = ["new", 1]
    assert path.read_bytes().startswith(before)
    found, (edited, *rest) = listing(path)
    assert found == comment
    assert rest == entries[1:]
    old_extra, new_extra = entries[0].pop("extra"), edited.pop("extra")
    assert edited == entries[0]
    if not old_extra.startswith(b"KV"):
        assert new_extra.startswith(old_extra)
    with npzkit.NpzWriter(path, "a") as w:
        assert w.attrs(key)["note"] == ["new", 1]


@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not installed")
def test_unzip_accepts_what_was_edited(made):
    """Info-ZIP tests every member after an append, a replacement, a removal and a renaming."""
    path, is_readable = made
    with npzkit.NpzWriter(path, "a", auto_repack=False, metadata={"step": 7}) as w:
        first = w.files[0]
        w["new"] = NOISE
        w.add("other", NOISE, compression="deflated")
        w.commit()
        w.rename("other", "another")
        w.attrs("another")["unit"] = "m"
        w.add("new", np.arange(3), overwrite=True)
        del w[first]
    with npzkit.open(path) as npz:
        methods = {npz.info(key).method for key in npz if key != first}
    words = ["unzip", "-tqq", *([] if is_readable else ["-P", "secret"]), path]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    # 81: a method that unzip does not know.
    assert done.returncode == (81 if methods & {"lzma", "zstandard"} else 0)


@pytest.mark.skipif(shutil.which("7z") is None, reason="7z is not installed")
@pytest.mark.parametrize("edit", ["append", "replace the first", "remove the first"])
def test_7zip_shows_the_last_commit(path, edit):
    """7-Zip lists what npzkit lists, also once the first member is another."""
    with npzkit.NpzWriter(path, "a") as w:
        if edit == "append":
            w["new"] = np.arange(3)
        elif edit == "remove the first":
            del w["x"]
        else:
            w.add("x", np.arange(3), overwrite=True)
        expected = [f"{key}.npy" for key in w.files]
    words = ["7z", "l", "-ba", "-slt", path]
    done = subprocess.run(words, capture_output=True, timeout=60, check=True, text=True)
    names = [line[7:] for line in done.stdout.splitlines() if line.startswith("Path = ")]
    assert sorted(names) == sorted(expected)


# -- what may be appended to -------------------------------------------------


def test_a_missing_file_is_made(tmp_path):
    """Mode "a" begins a new archive where there is none, in one step."""
    path = tmp_path / "new.npz"
    with npzkit.NpzWriter(path, "a") as w:
        w["x"] = np.arange(3)
        assert not path.exists()
    check_accepted(path, x=np.arange(3))
    assert os.listdir(tmp_path) == ["new.npz"]
    with pytest.raises(FileNotFoundError):
        npzkit.NpzWriter(tmp_path / "missing" / "a.npz", "a")


def test_an_empty_archive(tmp_path):
    """An archive without members is written anew, as np.load wants a member at its start."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {}, metadata={"step": 3})
    before = path.read_bytes()
    npzkit.NpzWriter(path, "a").close()
    assert path.read_bytes() == before
    with npzkit.NpzWriter(path, "a") as w:
        assert w.files == []
        w["x"] = np.arange(3)
    check_accepted(path, x=np.arange(3))
    with npzkit.open(path) as npz:
        assert npz.metadata == {"step": 3}
    assert path.read_bytes()[:4] == b"PK\x03\x04"


def test_an_archive_that_was_emptied(path):
    """All may be removed, and added to again, whether it was repacked or not."""
    for auto_repack in (False, True):
        with npzkit.NpzWriter(path, "a", auto_repack=auto_repack) as w:
            for key in w.files:
                del w[key]
        with np.load(path) as theirs, npzkit.open(path) as npz:
            assert theirs.files == npz.files == []
            assert npz.metadata == {"step": 1}
        before = path.read_bytes()
        with npzkit.NpzWriter(path, "a", auto_repack=auto_repack) as w:
            w["x"] = NOISE
        assert path.read_bytes().startswith(before) != auto_repack
        check_accepted(path, x=NOISE)
        with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
            w["y"] = NOISE


def not_archives():
    good = forge.archive(forge.Member("x.npy", forge.npy(np.arange(100))))
    wrong = bytearray(good)
    wrong[-40] ^= 0xFF
    return {
        "empty": b"",
        "text": b"not an archive" * 100,
        "npy": forge.npy(np.arange(100)),
        "truncated": good[:-30],
        "head only": good[:500],
        "prefix": b"#!/bin/sh\n" + good,
        "prefix counted": forge.archive(
            forge.Member("x.npy", forge.npy(np.arange(100))), prefix=b"#!/bin/sh\n"
        ),
        "directory damaged": bytes(wrong[:-60]) + b"\0" * 38 + good[-22:],
        "overlapping": forge.archive(
            forge.Member("x.npy", forge.npy(np.arange(9))),
            forge.Member("y.npy", forge.npy(np.arange(9)), central={"offset": 10}),
        ),
        "split": forge.archive(forge.Member("x.npy", forge.npy(np.arange(9))), disk=1, total=7),
    }


@pytest.mark.parametrize("kind", not_archives())
def test_what_is_no_archive_is_refused_untouched(tmp_path, kind):
    """Nothing is written to what is no zip, damaged, cut short, or begins with other bytes."""
    path = tmp_path / "a.npz"
    path.write_bytes(not_archives()[kind])
    with untouched(path):
        with pytest.raises((ZipFormatError, UnsupportedError)) as caught:
            npzkit.NpzWriter(path, "a")
        assert str(path) in str(caught.value)
    npzkit.save(path, {"x": np.arange(3)})
    check_accepted(path, x=np.arange(3))
    stream = io.BytesIO(not_archives()[kind])
    if stream.getvalue():
        with pytest.raises((ZipFormatError, UnsupportedError)):
            npzkit.NpzWriter(stream, "a")
    assert stream.getvalue() == not_archives()[kind]


def test_an_ambiguous_archive_is_refused(tmp_path):
    """Of two end records that fit, none is chosen to write behind."""
    path = tmp_path / "a.npz"
    inner = b"PK\x05\x06" + bytes(18)
    path.write_bytes(forge.archive(forge.Member("x.npy", forge.npy(np.arange(9))), comment=inner))
    with untouched(path), pytest.raises(AmbiguousArchiveError):
        npzkit.NpzWriter(path, "a")


def test_folders_and_devices_are_refused(tmp_path):
    """What is no file raises what the system says, or is no archive."""
    with pytest.raises(OSError):
        npzkit.NpzWriter(tmp_path, "a")
    with pytest.raises((OSError, NpzkitError)):
        npzkit.NpzWriter("/dev/null", "a")
    with pytest.raises(OSError):
        npzkit.NpzWriter(tmp_path)
    for path in (tmp_path, "/dev/null"):
        with pytest.raises(FileExistsError):
            npzkit.NpzWriter(path, "x")


def test_a_link_is_followed(path, tmp_path):
    """An append through a symbolic link goes to the file it leads to."""
    link = tmp_path / "link.npz"
    link.symlink_to(path)
    with npzkit.NpzWriter(link, "a") as w:
        w["new"] = np.arange(3)
        del w["x"]
    assert link.is_symlink()
    check_accepted(path, new=np.arange(3), y=np.eye(3))


def test_two_begin_one_archive(tmp_path):
    """Of two writers that found no file, the one that commits later loses nothing of the other's."""
    path = tmp_path / "a.npz"
    writers = [npzkit.NpzWriter(path, "a") for _ in range(2)]
    for number, w in enumerate(writers):
        w[f"by {number}"] = np.arange(3)
    writers[1].close()
    with pytest.raises(FileExistsError):
        writers[0].close()
    check_accepted(path, **{"by 1": np.arange(3)})
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.parametrize("mode", ["w", "x", "a"])
def test_a_name_is_needed(tmp_path, mode, monkeypatch):
    """No file is made under an empty path, or under one that names a folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("", "missing/", str(tmp_path / "missing") + "/"):
        with pytest.raises(FileNotFoundError):
            npzkit.NpzWriter(name, mode)
    assert os.listdir(tmp_path) == []


def test_a_link_that_leads_nowhere(tmp_path):
    """Mode "a" makes the file that a symbolic link names, as mode "w" does, and keeps the link."""
    link, target = tmp_path / "link.npz", tmp_path / "target.npz"
    link.symlink_to("target.npz")
    for key in "xy":
        with npzkit.NpzWriter(link, "a") as w:
            w[key] = np.arange(3)
    assert link.is_symlink()
    check_accepted(target, x=np.arange(3), y=np.arange(3))
    link.unlink()
    link.symlink_to("link.npz")
    with pytest.raises(OSError):
        npzkit.NpzWriter(link, "a")


# -- torn ends and what is not changed ----------------------------------------

TAILS = {
    "junk": b"\0" * 1000,
    "half a member": forge.Member("torn.npy", forge.npy(np.arange(100))).local_bytes()[:300],
    "all but the seal": forge.archive(forge.Member("torn.npy", forge.npy(np.ones(9))))[:-22]
    + bytes(22),
    "part of an end record": b"PK\x05\x06\0\0",
}


@pytest.mark.parametrize("tail", TAILS)
def test_a_torn_end_is_dropped_with_the_first_write(path, tail):
    """What an append left that was cut short goes when something else is written."""
    clean = path.read_bytes()
    path.write_bytes(clean + TAILS[tail])
    with pytest.warns(TornArchiveWarning):
        w = npzkit.NpzWriter(path, "a")
    assert path.read_bytes() == clean + TAILS[tail]
    with w:
        w["new"] = np.arange(3)
    assert path.read_bytes().startswith(clean)
    check_accepted(path, new=np.arange(3), z=NOISE)
    with npzkit.open(path) as npz:
        assert list(npz) == ["x", "y", "z", "new"]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.filterwarnings("ignore::npzkit.TornArchiveWarning")
def test_a_torn_end_stays_where_nothing_is_written(path, tail):
    """Opening to append, and closing, aborting or failing, leaves even a torn end alone."""
    path.write_bytes(path.read_bytes() + TAILS[tail])
    with untouched(path):
        npzkit.NpzWriter(path, "a").close()
        npzkit.NpzWriter(path, "a").abort()
        with pytest.raises(UnsafeNameError), npzkit.NpzWriter(path, "a") as w:
            w["x"] = np.arange(3)
        stream = io.BytesIO(path.read_bytes())
        npzkit.NpzWriter(stream, "a").close()
        npzkit.NpzWriter(stream, "a").abort()
        assert stream.getvalue() == path.read_bytes()


@pytest.mark.parametrize("tail", TAILS)
def test_a_torn_end_in_a_file_object(path, tail):
    """A file object's torn end is dropped with the first write as well."""
    stream = io.BytesIO(path.read_bytes() + TAILS[tail])
    with pytest.warns(TornArchiveWarning):
        w = npzkit.NpzWriter(stream, "a")
    with w:
        del w["y"]
    stream.seek(0)
    with zipfile.ZipFile(stream) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["x.npy", "z.npy"]
    with npzkit.open(stream, strict=True) as npz:
        assert np.array_equal(npz["z"], NOISE)


def test_nothing_changed_leaves_the_file_alone(made):
    """Looking at an archive in mode "a", or writing what is there, changes no byte and no time."""
    path, _ = made
    with untouched(path):
        with npzkit.NpzWriter(path, "a") as w:
            w.commit()
            for key in w.files:
                assert w.attrs(key) is w.attrs(key)
        with npzkit.open(path) as npz:
            metadata = dict(npz.metadata)
        with npzkit.NpzWriter(path, "a", metadata=metadata, durable=True) as w:
            w.metadata["passing"] = 1
            del w.metadata["passing"]
        with pytest.raises(KeyboardInterrupt), npzkit.NpzWriter(path, "a") as w:
            del w[w.files[0]]
            raise KeyboardInterrupt
    npzkit.NpzWriter(path, "a").close()


@pytest.mark.parametrize("edit", ["add", "remove", "rename", "attributes", "metadata", "create"])
def test_a_commit_is_written_once(path, edit):
    """Whatever was committed, a commit or close behind it with nothing new writes nothing."""
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        if edit == "add":
            w["new"] = np.arange(3)
        elif edit == "remove":
            del w["y"]
        elif edit == "rename":
            w.rename("y", "other")
        elif edit == "attributes":
            w.attrs("y")["unit"] = "m"
        elif edit == "metadata":
            w.metadata["more"] = 1
        else:
            w.create("made", 3, "f8").close()
        w.commit()
        before = path.read_bytes()
        w.commit()
        assert path.read_bytes() == before
    assert path.read_bytes() == before


@pytest.mark.parametrize("edit", ["remove", "replace", "replace by a large one", "rename"])
def test_attributes_go_with_their_array(path, edit):
    """What was said of an array that is gone is not said of the one that has its key now."""
    with npzkit.NpzWriter(path, "a") as w:
        w.attrs("y")["unit"] = "m"
        if edit == "remove":
            del w["y"]
            w.commit()
            w["y"] = np.arange(3)
        elif edit == "rename":
            w.rename("y", "other")
            w.commit()
            w["y"] = np.arange(3)
        else:
            w.add("y", np.arange(3) if edit == "replace" else NOISE, overwrite=True)
        w.commit()
        assert w.attrs("y") == {}
        w.attrs("y")["late"] = True
    with npzkit.open(path) as npz:
        assert npz.info("y").attrs == {"late": True}
        if edit == "rename":
            assert npz.info("other").attrs == {"unit": "m"}


def test_metadata_stays_with_the_next_commit(path):
    """What was said of an archive in one commit is there after those that say nothing."""
    for mode in ("a", "w"):
        with npzkit.NpzWriter(path, mode) as w:
            w.metadata["said"] = mode
            w["first"] = np.arange(3)
            w.commit()
            w["second"] = np.arange(3)
            w.commit()
            with npzkit.open(path) as npz:
                assert npz.metadata["said"] == mode
            del w["second"]
        with npzkit.open(path) as npz:
            assert npz.metadata["said"] == mode


def test_an_exception_takes_back_what_was_not_committed(path):
    """The file ends where it did at the last commit, which may be one of the same block."""
    before = path.read_bytes()
    with pytest.raises(KeyError), npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
        w.rename("x", "renamed")
        raise KeyError
    assert path.read_bytes() == before
    with pytest.raises(KeyError), npzkit.NpzWriter(path, "a") as w:
        w["one"] = NOISE
        w.commit()
        middle = path.read_bytes()
        w["two"] = NOISE
        w.create("three", 100_000, "f8")
        raise KeyError
    assert path.read_bytes() == middle
    check_accepted(path, one=NOISE, x=np.arange(4))
    with pytest.raises(ClosedArchiveError):
        w["four"] = NOISE


def test_a_forgotten_writer_leaves_the_last_commit(path):
    """A writer that is dropped without close warns, and takes back what it did not commit."""
    w = npzkit.NpzWriter(path, "a")
    w["one"] = NOISE
    w.commit()
    middle = path.read_bytes()
    w["two"] = NOISE
    with pytest.warns(ResourceWarning, match="never closed"):
        del w
    assert path.read_bytes() == middle


# -- file objects --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "r+b", "unbuffered", "w+b", "temporary"])
def test_file_objects_are_appended_to(tmp_path, kind, path):
    """Memory and files open for reading and writing hold the same bytes as a path would."""
    import tempfile

    stack = contextlib.ExitStack()
    with stack:
        if kind == "memory":
            file = io.BytesIO(path.read_bytes())
        elif kind == "temporary":
            file = stack.enter_context(tempfile.NamedTemporaryFile(dir=tmp_path))
        elif kind == "w+b":
            file = stack.enter_context(open(tmp_path / "b.npz", "w+b"))
        else:
            shutil.copyfile(path, tmp_path / "b.npz")
            buffering = 0 if kind == "unbuffered" else -1
            file = stack.enter_context(open(tmp_path / "b.npz", "r+b", buffering=buffering))
        if kind in ("w+b", "temporary"):
            file.write(path.read_bytes())
        for target in (file, path):
            with npzkit.NpzWriter(target, "a", auto_repack=False) as w:
                w.add("new", NOISE, compression="deflated")
                w.commit()
                w.rename("y", "renamed")
                w.add("x", np.zeros(5), overwrite=True)
                with w.create("made", 10, "i4") as dst:
                    dst[3:5] = 7
                w.commit()
                w["lost"] = NOISE
                del w["lost"]
        assert not file.closed
        file.seek(0)
        assert file.read() == path.read_bytes()
        with npzkit.open(file) as npz:
            assert npz.files == ["x", "renamed", "z", "new", "made"]


def test_an_empty_file_object_takes_an_archive():
    """Mode "a" begins an archive in a file object that holds nothing."""
    stream = io.BytesIO()
    for key in "ab":
        with npzkit.NpzWriter(stream, "a") as w:
            w[key] = np.arange(3)
    with np.load(io.BytesIO(stream.getvalue())) as theirs:
        assert theirs.files == ["a", "b"]


def test_a_file_object_goes_back_to_its_last_commit(path):
    """What a failed block wrote is cut off a file object again."""
    stream = io.BytesIO(path.read_bytes())
    with pytest.raises(KeyError), npzkit.NpzWriter(stream, "a") as w:
        w["new"] = NOISE
        raise KeyError
    assert stream.getvalue() == path.read_bytes()


def test_file_objects_that_cannot_be_appended_to(path, tmp_path):
    """Files opened to append, for writing alone, wrapped or without a position are refused."""

    class Counting(io.BytesIO):
        pass

    before = path.read_bytes()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, mode)) for mode in ("ab", "a+b")]
        files.append(stack.enter_context(open(path, "ab", buffering=0)))
        files.append(stack.enter_context(open(tmp_path / "b.npz", "wb")))
        files.append(stack.enter_context(gzip.open(tmp_path / "c.gz", "wb")))
        files += [Counting(before), stack.enter_context(Pipe(tmp_path / "d"))]
        read_only = stack.enter_context(open(path, "rb"))
        for file in files:
            with pytest.raises(UnsupportedError, match="plain file"):
                npzkit.NpzWriter(file, "a")
        with pytest.raises((UnsupportedError, OSError)):
            npzkit.NpzWriter(read_only, "a")
    assert path.read_bytes() == before


# -- editing -----------------------------------------------------------------


def test_order_is_kept(path):
    """What is replaced or renamed stays where it was listed; what was removed comes last."""
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.add("y", np.zeros(2), overwrite=True)
        w.rename("x", "first")
        assert w.files == ["first", "y", "z"]
        w.commit()
        w.rename("first", "x")
        del w["y"]
        w["y"] = np.ones(2)
        assert w.files == ["x", "z", "y"]
        assert list(w) == w.files
        assert len(w) == 3
        assert "y" in w and "first" not in w
    check_accepted(path, x=np.arange(4), y=np.ones(2), z=NOISE)
    with npzkit.open(path) as npz:
        assert npz.files == ["x", "z", "y"]


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_overwriting(path, compression):
    """overwrite=True replaces what is there, adds what is not, and counts from the commit on."""
    with npzkit.NpzWriter(path, "a", compression=compression, auto_repack=False) as w:
        with pytest.raises(UnsafeNameError, match="overwrite=True"):
            w["z"] = np.arange(3)
        w.add("z", NOISE + 1, overwrite=True)
        w.add("new", NOISE, overwrite=True)
        with npzkit.open(path) as npz:
            assert np.array_equal(npz["z"], NOISE)
        w.add("new", np.arange(5), overwrite=True, attrs={"unit": "m"})
    check_accepted(path, z=NOISE + 1, new=np.arange(5))
    with npzkit.open(path) as npz:
        assert npz.info("new").attrs == {"unit": "m"}


def test_missing_keys(path):
    """Removing, renaming or asking attributes of what is not there is a KeyError that says so."""
    with untouched(path), npzkit.NpzWriter(path, "a") as w:
        for use in (
            lambda: w.__delitem__("nothing"),
            lambda: w.rename("nothing", "x"),
            lambda: w.attrs("nothing"),
        ):
            with pytest.raises(MemberNotFoundError, match="Existing keys: 'x', 'y', 'z'") as caught:
                use()
            assert isinstance(caught.value, KeyError)
        with pytest.raises(UnsafeNameError):
            w.rename("x", "y")
        with pytest.raises(UnsafeNameError):
            w.rename("x", "../x")
        w.rename("x", "x")


def raw_member(path, name):
    """A listed member's compressed bytes, found without npzkit."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
        data = Path(path).read_bytes()[info.header_offset :]
        sizes = struct.unpack_from("<HH", data, 26)
        start = 30 + sum(sizes)
        return data[start : start + info.compress_size]


@pytest.mark.parametrize("maker", ["npzkit", "np.savez_compressed", "zipfile lzma", "sozipfile"])
def test_a_renamed_array_keeps_its_bytes(tmp_path, maker):
    """Compressed bytes, CRC, seek index and attributes go with the new name."""
    path = tmp_path / "a.npz"
    MAKERS[maker](path)
    with npzkit.open(path) as npz:
        keys = [key for key in npz if npz.info(key).shape is not None]
        before = {key: (npz.info(key), npz[key]) for key in keys}
    members = {key: raw_member(path, key + ".npy") for key in keys}
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        for key in keys:
            w.rename(key, f"größe/{key}")
    with npzkit.open(path, strict=True) as npz:
        for key in keys:
            old, array = before[key]
            new = npz.info(f"größe/{key}")
            assert (new.crc32, new.method, new.seekable) == (old.crc32, old.method, old.seekable)
            assert new.attrs == old.attrs
            assert np.array_equal(npz[f"größe/{key}"], array)
            lazy = npz.lazy(f"größe/{key}")
            assert np.array_equal(lazy[len(lazy) // 2 :], array[len(array) // 2 :])
            assert raw_member(path, f"größe/{key}.npy") == members[key]
    check_accepted(path)


def test_a_renamed_stored_array_is_aligned(tmp_path):
    """What np.savez put at an odd place can be mapped faster under its new name."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(4), y=np.ones(300_000))
    with npzkit.NpzWriter(path, "a") as w:
        w.rename("y", "z")
        w.rename("z", "zz")
    check_accepted(path, x=np.arange(4), zz=np.ones(300_000))
    with npzkit.open(path) as npz:
        assert npz.info("zz").aligned
        assert npz.memmap("zz").sum() == 300_000


def test_a_renamed_array_has_one_name(tmp_path):
    """Another program's field with the old name in Unicode goes, and its other fields stay."""
    path = tmp_path / "a.npz"
    name = b"\x81.npy"
    payload = b"\1" + struct.pack("<L", zlib.crc32(name)) + "ü.npy".encode()
    extra = struct.pack("<HH", 0x7075, len(payload)) + payload + struct.pack("<HH", 0xCAFE, 0)
    member = forge.Member(
        name, forge.npy(np.arange(3)), extra=extra, local={"flags": 0}, central={"flags": 0}
    )
    path.write_bytes(forge.archive(member))
    with npzkit.NpzWriter(path, "a") as w:
        assert w.files == ["ü"]
        w.rename("ü", "x")
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x.npy")
        assert info.extra == struct.pack("<HH", 0xCAFE, 0)
    check_accepted(path, x=np.arange(3))


def test_a_damaged_member_is_not_renamed(path):
    """Damage is found as the member is copied, and the file stays as it was committed."""
    data = bytearray(path.read_bytes())
    data[npzkit.open(bytes(data)).info("z").data_offset + 5] ^= 1
    path.write_bytes(data)
    w = npzkit.NpzWriter(path, "a")
    w["new"] = np.arange(3)
    with pytest.raises(npzkit.errors.ChecksumError) as caught:
        w.rename("z", "zz")
    assert caught.value.key == "z"
    assert path.read_bytes() == data
    with pytest.raises(ClosedArchiveError):
        w.close()


def test_encrypted_members_stay_and_are_not_renamed(tmp_path):
    """What cannot be read is kept and may be removed; renaming it is refused, nothing lost."""
    path = tmp_path / "a.npz"
    MAKERS["infozip_encrypted"](path)
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
        with pytest.raises(UnsupportedError):
            w.rename("x", "y")
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        assert w.files == ["x", "new"]
        del w["x"]
    check_accepted(path, new=np.arange(3))


def test_members_that_are_no_arrays(tmp_path):
    """Notes are renamed and removed by their whole names, and hide no array."""
    path = tmp_path / "a.npz"
    by_zipfile(path)
    with npzkit.NpzWriter(path, "a") as w:
        assert w.files == ["x", "deep/y", "folder/", "note.txt"]
        w.rename("note.txt", "words.txt")
        with pytest.raises(UnsafeNameError, match="not an array"):
            w["words.txt"] = np.arange(3)
        with pytest.raises(UnsafeNameError, match="not an array"):
            w.add("words.txt", np.ones(70_000), overwrite=True, compression="deflated")
        with pytest.raises(UnsafeNameError, match="not an array"):
            w.rename("words.txt", "x")
        with pytest.raises(UnsafeNameError, match="not an array"):
            w.rename("x", "words.txt")
        with pytest.raises(UnsafeNameError, match="not an array"):
            w.create("words.txt", 3, "f8")
        del w["folder/"]
    with npzkit.open(path) as npz:
        assert npz.files == ["x", "deep/y", "words.txt"]
        assert npz["words.txt"] == b"words"
    with npzkit.NpzWriter(path, "a") as w:
        del w["words.txt"]
        w["words.txt"] = np.arange(3)
    check_accepted(path, **{"words.txt": np.arange(3)})


@pytest.mark.parametrize("count", [2, 100])
def test_repeated_names_are_healed(tmp_path, count):
    """Of two members of one name the last is kept, at the place of the first."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(count):
            archive.writestr(f"k{number}.npy", forge.npy(np.arange(number)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("k0.npy", forge.npy(np.ones(3)))
    before = path.read_bytes()
    with untouched(path), pytest.warns(AmbiguousArchiveWarning):
        npzkit.NpzWriter(path, "a").close()
    with pytest.warns(AmbiguousArchiveWarning), npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["new"] = np.arange(3)
    assert path.read_bytes().startswith(before)
    check_accepted(path, k0=np.ones(3), new=np.arange(3))
    with npzkit.open(path) as npz:
        assert npz.files == [*(f"k{number}" for number in range(count)), "new"]


# -- attributes and metadata ---------------------------------------------------


def test_attributes_are_edited(tmp_path):
    """Attributes are added, changed and removed where the arrays stand."""
    path = tmp_path / "a.npz"
    by_npzkit(path)
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.attrs("noise")["scale"] = np.float32(0.5)
        w.attrs("x").clear()
        w["new"] = np.arange(3)
        w.attrs("new").update(a="1", b=[1, None], c="text")
        w.commit()
        w.attrs("new")["d"] = True
    assert path.read_bytes().startswith(before)
    with npzkit.open(path) as npz:
        assert npz.info("noise").attrs == {"long": "ü" * 100, "scale": 0.5}
        assert npz.info("x").attrs == {}
        assert npz.info("new").attrs == {"a": "1", "b": [1, None], "c": "text", "d": True}
        assert np.array_equal(npz.lazy("noise")[-5:], NOISE[-5:])
    check_accepted(path, noise=NOISE, x=np.arange(4))


def test_the_name_of_a_dtype_stays(tmp_path):
    """Editing attributes and renaming leave bfloat16 what it is."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "a.npz"
    array = np.arange(300).astype(ml_dtypes.bfloat16)
    npzkit.save(path, {"x": array, "y": array})
    with npzkit.NpzWriter(path, "a") as w:
        assert w.attrs("x") == {}
        w.attrs("x")["unit"] = "m"
        w.rename("y", "z")
        w.attrs("z")["unit"] = "s"
    with npzkit.NpzWriter(path, "a") as w:
        w.attrs("x").clear()
        with pytest.raises(ValueError, match="is reserved"):
            w.attrs("z")["npzkit.dtype"] = "int4"
            w.commit()
        del w.attrs("z")["npzkit.dtype"]
    with npzkit.open(path) as npz:
        assert npz["x"].dtype == npz["z"].dtype == array.dtype
        assert npz.lazy("z").attrs == {"unit": "s"}
        assert npz["z"].tobytes() == array.tobytes()


BAD_ATTRIBUTES = {
    "too long": ("long", "x" * 70_000, LimitExceededError),
    "unserialisable": ("array", np.arange(3), TypeError),
    "no text": (3, "three", TypeError),
    "own": ("npzkit.dtype", "int4", ValueError),
}


@pytest.mark.parametrize("kind", BAD_ATTRIBUTES)
def test_attributes_that_cannot_be_written(path, kind):
    """A commit refuses them and loses nothing; once they are gone it goes through."""
    name, value, error = BAD_ATTRIBUTES[kind]
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
        w.attrs("y")["good"] = 1
        w.attrs("x")[name] = value
        with pytest.raises(error):
            w.commit()
        with npzkit.open(path) as npz:
            assert npz.files == ["x", "y", "z"]
        with pytest.raises(error):
            w.rename("x", "renamed")
        del w.attrs("x")[name]
    assert path.read_bytes().startswith(before)
    check_accepted(path, new=NOISE)
    with npzkit.open(path) as npz:
        assert npz.info("y").attrs == {"good": 1}
    before = path.read_bytes()
    w = npzkit.NpzWriter(path, "a")
    w["lost"] = NOISE
    w.attrs("x")[name] = value
    with pytest.raises(error):
        w.close()
    assert path.read_bytes() == before
    with pytest.raises(ClosedArchiveError):
        w.close()


@pytest.mark.parametrize("size", [65_531, 65_400, 60_000])
def test_foreign_extra_fields_that_leave_no_room(tmp_path, size):
    """What another program filled is kept, renamed and repacked; attributes beside it are refused."""
    path = tmp_path / "a.npz"
    extra = struct.pack("<HH", 0xCAFE, size) + bytes(size)
    member = forge.Member("x.npy", forge.npy(np.arange(4)), extra=extra)
    path.write_bytes(forge.archive(member))
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
        w.attrs("x")["long"] = "x" * 10_000
        with pytest.raises(LimitExceededError, match="extra field"):
            w.commit()
        w.attrs("x").clear()
        w.rename("x", "renamed")
    npzkit.repack(path)
    check_accepted(path, renamed=np.arange(4), new=np.arange(3))
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("renamed.npy").extra == extra


def test_metadata_is_kept_and_merged(path):
    """What is given is added to what is there, and may be changed or removed until close."""
    with npzkit.NpzWriter(path, "a", metadata={"loss": 0.5}) as w:
        assert w.metadata == {"step": 1, "loss": 0.5}
        w.metadata["step"] = 2
    with npzkit.open(path) as npz:
        assert npz.metadata == {"step": 2, "loss": 0.5}
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
    with npzkit.NpzWriter(path, "a") as w:
        assert w.metadata == {"step": 2, "loss": 0.5}
        w.metadata.clear()
    with npzkit.open(path) as npz:
        assert npz.metadata == {}
        assert npz.files == ["x", "y", "z", "new"]


def test_bad_metadata_loses_nothing(path):
    """A commit refuses metadata that cannot be written, and goes through without it."""
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
        for value, error in ((np.arange(3), TypeError), ("x" * 70_000, LimitExceededError)):
            w.metadata["bad"] = value
            with pytest.raises(error):
                w.commit()
        del w.metadata["bad"]
        kept, w.metadata = w.metadata, ["bad"]
        with pytest.raises(TypeError, match="must be a mapping, not list"):
            w.commit()
        w.metadata = kept
        w.commit()
    check_accepted(path, new=NOISE)
    before = path.read_bytes()
    w = npzkit.NpzWriter(path, "a")
    w["lost"] = NOISE
    w.metadata[3] = 4
    with pytest.raises(TypeError):
        w.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("comment", [b"not JSON", b'{"broken": ', b"\xff\x00", b'{ "spaced" : 1 }'])
def test_a_foreign_comment_is_kept(tmp_path, comment):
    """Another program's comment stays, byte for byte, until metadata takes its place."""
    path = tmp_path / "a.npz"
    path.write_bytes(forge.archive(forge.Member("x.npy", forge.npy(np.ones(3))), comment=comment))
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["new"] = np.arange(3)
        w.commit()
        w.rename("new", "newer")
    assert listing(path)[0] == comment
    with npzkit.NpzWriter(path, "a") as w:
        del w["x"]
    assert listing(path)[0] == comment
    with npzkit.NpzWriter(path, "a") as w:
        w.metadata["step"] = 1
    with npzkit.open(path) as npz:
        assert npz.metadata["step"] == 1


# -- arrays filled piece by piece ------------------------------------------------


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_commit_leaves_out_what_is_not_sealed(path, mode):
    """An array that is being filled joins with the commit after it was sealed."""
    with npzkit.NpzWriter(path, mode) as w:
        dst = w.create("big", (1000, 3), "f8")
        mapped = dst.memmap()
        mapped[0] = 1
        dst[1] = 2
        w["small"] = np.arange(3)
        w.commit()
        with npzkit.open(path, strict=True) as npz:
            assert "big" not in npz
            assert "small" in npz
        # The file was closed and opened again in between.
        dst[2] = 3
        mapped[3] = 4
        for use in (
            lambda: w.add("big", [1], overwrite=True),
            lambda: w.__delitem__("big"),
            lambda: w.attrs("big"),
            lambda: w.rename("big", "other"),
        ):
            with pytest.raises(ValueError, match="being created"):
                use()
        with pytest.raises(UnsafeNameError):
            w.rename("small", "big")
        dst.close()
        w.attrs("big")["unit"] = "m"
    with npzkit.open(path) as npz:
        assert npz["big"][:5, 0].tolist() == [1, 2, 3, 4, 0]
        assert npz.files[-2:] == ["big", "small"]
        assert npz.info("big").attrs == {"unit": "m"}
    check_accepted(path)


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_an_array_that_grows_behind_an_archive(path, compression):
    """Rows are appended in mode "a"; until they are sealed nothing else is written."""
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a", compression=compression) as w:
        with w.create("log", (None, 2), "i8") as dst:
            for start in range(0, 60_000, 20_000):
                dst.append(NOISE[start : start + 20_000].reshape(-1, 2))
            for use in (
                w.commit,
                lambda: w.add("other", [1]),
                lambda: w.rename("x", "other"),
                lambda: w.create("other", 3, "i4"),
            ):
                with pytest.raises(ValueError, match="still growing"):
                    use()
            assert w.files[-1] == "log"
            with pytest.raises(ValueError, match="being created"):
                del w["log"]
        w.commit()
    assert path.read_bytes().startswith(before)
    check_accepted(path, log=NOISE.reshape(-1, 2))


def test_a_created_array_that_is_given_up(path):
    """An exception in its block discards what was not committed, and the rest stays."""
    w = npzkit.NpzWriter(path, "a")
    w["one"] = np.arange(3)
    w.commit()
    before = path.read_bytes()
    w["two"] = np.arange(3)
    with pytest.raises(KeyError), w.create("big", (100_000,), "f8") as dst:
        dst[5:9] = 1
        raise KeyError
    assert path.read_bytes() == before
    with pytest.raises(ClosedArchiveError, match="given up"):
        w.commit()
    check_accepted(path, one=np.arange(3))


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("ending", ["aborted", "failed"])
def test_an_array_whose_writer_gave_up_takes_nothing(path, mode, ending, monkeypatch):
    """No byte of a created array is written once its writer was aborted, or failed."""
    w = npzkit.NpzWriter(path, mode)
    w["kept"] = np.arange(3)
    w.commit()
    before = path.read_bytes()
    filled = w.create("filled", (100, 2), "f8")
    if ending == "aborted":
        w.abort()
    else:
        monkeypatch.setattr(npzkit.archive.written.ZipWriter, "write_small", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            w["new"] = np.arange(3)
    for use in (
        lambda: filled.__setitem__(5, 1),
        lambda: filled.append(np.ones((2, 2))),
        filled.memmap,
        lambda: filled[5],
    ):
        with pytest.raises(ClosedArchiveError):
            use()
    filled.close()
    assert path.read_bytes() == before


# -- large archives --------------------------------------------------------------


def test_an_append_over_65_535_members(tmp_path):
    """The number of members crosses what 16 bits hold, and zip64 says so."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {f"k{number}": np.uint8(number % 256) for number in range(65_530)})
    before = path.read_bytes()
    assert b"PK\x06\x06" not in before[-200:]
    with npzkit.NpzWriter(path, "a") as w:
        for number in range(10):
            w[f"new{number}"] = np.arange(number)
    after = path.read_bytes()
    assert after.startswith(before)
    assert b"PK\x06\x06" in after[-200:]
    with npzkit.open(path) as npz, np.load(path) as theirs:
        assert len(npz) == len(theirs.files) == 65_540
        assert theirs["new9"].tolist() == npz["new9"].tolist() == list(range(9))
        assert npz["k65529"] == theirs["k65529"] == 65_529 % 256
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        for number in range(10):
            del w[f"k{number + 100}"]
    assert b"PK\x06\x06" not in path.read_bytes()[-200:]
    assert len(npzkit.open(path.read_bytes())) == 65_530


def test_an_append_to_very_many_members(tmp_path):
    """One array more, one fewer and one renamed, of tens of thousands."""
    path = tmp_path / "a.npz"
    count = extent(20_000, 100_000)
    npzkit.save(path, {f"k{number}": np.uint8(number % 256) for number in range(count)})
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = NOISE
        w.rename("k5", "five")
        del w["k7"]
        w.attrs("k9")["unit"] = "m"
    with npzkit.open(path, strict=True) as npz:
        assert len(npz) == count
        assert npz.files[5] == "five"
        assert npz.files[-1] == "new"
        assert npz.info("k9").attrs == {"unit": "m"}
        arrays = npz.load_all()
    assert arrays[f"k{count - 1}"] == (count - 1) % 256
    assert "k7" not in arrays


def sparse_archive(path, size):
    """Write an archive of one array of `size` bytes of zeros, most of it a hole."""
    head = npzkit.format.header.format_header(
        {"descr": "|u1", "fortran_order": False, "shape": (size,)}
    )
    whole = size + len(head)
    zip64 = struct.pack("<HHQQ", 1, 16, whole, whole)
    fields = {"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF, "crc": 0}
    member = forge.Member("large.npy", head, extra=zip64, local=fields, central=fields)
    start = len(member.local_bytes()) + size
    directory = member.central_bytes(0)
    end = struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(directory), start)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, start + len(directory), 1)
    end += struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 1, 1, len(directory), 0xFFFFFFFF, 0)
    with open(path, "wb") as file:
        file.write(member.local_bytes())
        file.truncate(start)
        file.seek(start)
        file.write(directory + end)


def test_an_append_behind_4_gib(tmp_path):
    """Members whose offsets take 64 bits are written, found, renamed and removed again."""
    path = tmp_path / "a.npz"
    sparse_archive(path, (1 << 32) + 5)
    large = npzkit.open(path)
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(5)
        w.add("more", NOISE, compression="deflated", attrs={"unit": "m"})
        w.rename("new", "newer")
        w.attrs("newer")["unit"] = "s"
    with npzkit.NpzWriter(path, "a") as w:
        w["last"] = np.ones(3)
        w.attrs("more")["scale"] = 2
    with npzkit.open(path, strict=True) as npz, np.load(path) as theirs, large:
        assert npz.files == theirs.files == ["large", "newer", "more", "last"]
        for found in (npz, theirs):
            assert found["newer"].tolist() == [0, 1, 2, 3, 4]
            assert np.array_equal(found["more"], NOISE)
            assert found["last"].tolist() == [1, 1, 1]
        assert npz.info("more").attrs == {"unit": "m", "scale": 2}
        assert npz.info("newer").attrs == {"unit": "s"}
        assert npz.info("more").seekable
        assert npz.memmap("large")[-1] == large.memmap("large")[-1] == 0
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("last.npy").header_offset > 1 << 32
        assert archive.open("newer.npy").read() == forge.npy(np.arange(5))
    with npzkit.NpzWriter(path, "a") as w:
        del w["large"]
    assert path.stat().st_size < 1 << 20
    check_accepted(path, newer=np.arange(5), more=NOISE, last=np.ones(3))


def test_an_append_costs_what_is_added(tmp_path, monkeypatch):
    """A megabyte more in 300 is written once, and next to nothing of the rest is read."""
    path = tmp_path / "a.npz"
    sparse_archive(path, 300 << 20)
    size = path.stat().st_size
    counts = {"pwrite": 0, "preadv": 0, "pread": 0}

    def counted(name):
        real = getattr(os, name)

        def call(descriptor, *args):
            result = real(descriptor, *args)
            counts[name] += len(result) if name == "pread" else result
            return result

        return call

    with monkeypatch.context() as patched:
        for name in counts:
            if hasattr(os, name):
                patched.setattr(os, name, counted(name))
        with npzkit.NpzWriter(path, "a") as w:
            w["new"] = np.ones(1 << 17)
    added = path.stat().st_size - size
    assert 1 << 20 < added < (1 << 20) + 1000
    assert counts["pwrite"] < added + 1000
    assert counts["preadv"] + counts["pread"] < 1 << 20
    with npzkit.open(path) as npz:
        assert npz["new"].sum() == 1 << 17


# -- dead space --------------------------------------------------------------------


def test_more_dead_than_alive_is_repacked(tmp_path):
    """Once more than half of a file is dead, close gives it back; before, it does not."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(3), "b": NOISE, "c": NOISE, "d": NOISE, "e": NOISE})
    full = path.stat().st_size
    for key in "bc":
        with npzkit.NpzWriter(path, "a") as w:
            del w[key]
        assert (path.stat().st_size > full) == (key == "b")
    assert path.stat().st_size < 0.6 * full
    check_accepted(path, a=np.arange(3), d=NOISE, e=NOISE)
    assert os.listdir(tmp_path) == ["a.npz"]


def test_half_dead_is_not_repacked(tmp_path):
    """At exactly half nothing is written anew; with one byte more it is."""
    path = tmp_path / "a.npz"

    def sizes(count):
        """Return the file's size without and with the repack that close may do."""
        found = []
        for auto_repack in (False, True):
            npzkit.save(path, {"a": np.zeros(1000, "u1"), "b": np.zeros(count, "u1")})
            with npzkit.NpzWriter(path, "a", auto_repack=auto_repack) as w:
                del w["b"]
            found.append(path.stat().st_size)
        return found

    # What is alive does not depend on how much was dead.
    alive = sizes(100_000)[1]
    count = 500
    count += 2 * alive - sizes(count)[0]
    assert sizes(count) == [2 * alive, 2 * alive]
    assert sizes(count + 1) == [2 * alive + 1, alive]
    check_accepted(path, a=np.zeros(1000, "u1"))


@pytest.mark.parametrize("edit", ["remove", "replace", "rename"])
def test_a_first_member_that_goes_is_repacked(path, edit):
    """The member at the file's start is one that is listed, whatever became of the first."""
    with npzkit.NpzWriter(path, "a") as w:
        if edit == "remove":
            del w["x"]
        elif edit == "replace":
            w.add("x", np.arange(3), overwrite=True)
        else:
            w.rename("x", "renamed")
        w.attrs("z")["unit"] = "m"
    with zipfile.ZipFile(path) as archive:
        assert min(info.header_offset for info in archive.infolist()) == 0
    with npzkit.open(path) as npz:
        assert npz.metadata == {"step": 1}
        assert npz.info("z").attrs == {"unit": "m"}
    check_accepted(path, z=NOISE)


def test_an_emptied_archive_is_repacked(tmp_path):
    """Where no array is left, none is shown by any program, however little was dead."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with npzkit.NpzWriter(path, "a", metadata={"long": "x" * 5000}) as w:
        del w["x"]
    assert path.read_bytes().startswith(b"PK\x05\x06")
    with npzkit.open(path) as npz:
        assert npz.files == []
        assert len(npz.metadata["long"]) == 5000


@pytest.mark.parametrize("mode", ["w", "a"])
def test_close_repacks_what_was_committed_before(path, mode):
    """Dead space is given back at close, also where commit came first."""
    with npzkit.NpzWriter(path, mode) as w:
        for _ in range(3):
            w.add("z", NOISE, overwrite=True)
            w.commit()
    assert path.stat().st_size < 1.1 * NOISE.nbytes
    check_accepted(path, z=NOISE)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_nobody_else_writes_while_close_repacks(path, mode, monkeypatch):
    """The lock on the file is held until the one without dead space has taken its place."""
    real, refused = npzkit.maintenance.repack.copy_member, []

    def copy_member(*args, **options):
        with pytest.raises(ArchiveLockedError) as caught:
            npzkit.NpzWriter(path, "a")
        refused.append(caught.value)
        real(*args, **options)

    with npzkit.NpzWriter(path, mode) as w:
        for _ in range(3):
            w.add("z", NOISE, overwrite=True)
            w.commit()
        monkeypatch.setattr(npzkit.maintenance.repack, "copy_member", copy_member)
    assert refused
    check_accepted(path, z=NOISE)


def test_a_new_archive_is_repacked(path):
    """What was removed before the first commit, or written over, is not in the new file."""
    with npzkit.NpzWriter(path) as w:
        w["first"] = np.arange(3)
        w["second"] = np.arange(4)
        w["third"] = NOISE
        del w["first"]
        w.add("third", NOISE + 1, overwrite=True)
    assert b"first" not in path.read_bytes()
    assert path.stat().st_size < 1.1 * NOISE.nbytes
    check_accepted(path, second=np.arange(4), third=NOISE + 1)


@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("edit", ["remove", "replace", "replace by a small one", "rename"])
def test_each_edit_of_a_new_archive_is_repacked(tmp_path, edit, compression):
    """The bytes that any one edit gave up before the only commit are not in the file."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path, compression=compression) as w:
        w["first"] = NOISE
        w["second"] = np.arange(4)
        if edit == "remove":
            del w["first"]
        elif edit == "rename":
            w.rename("first", "other")
        else:
            array = NOISE + 1 if edit == "replace" else np.arange(3)
            w.add("first", array, overwrite=True)
    check_accepted(path, second=np.arange(4))
    npzkit.repack(path, tmp_path / "b.npz")
    assert path.read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_auto_repack_can_be_refused(path):
    """auto_repack=False keeps the dead bytes, and the next writer leaves them unless it writes."""
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        del w["x"], w["z"]
    assert path.read_bytes().startswith(before)
    check_accepted(path, y=np.eye(3))
    with untouched(path):
        npzkit.NpzWriter(path, "a").close()
    with npzkit.NpzWriter(path, "a") as w:
        w.metadata["step"] = 2
    assert path.stat().st_size < 1000
    check_accepted(path, y=np.eye(3))


def test_a_repack_that_fails_only_warns(path, monkeypatch):
    """All is committed where the dead space cannot be given back, and the lock is let go."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    real = npzkit.maintenance.repack.ZipWriter
    monkeypatch.setattr(npzkit.maintenance.repack, "ZipWriter", full)
    before = path.read_bytes()
    w = npzkit.NpzWriter(path, "a")
    del w["x"]
    with pytest.warns(RuntimeWarning, match="No space left"):
        w.close()
    assert path.read_bytes().startswith(before)
    assert os.listdir(path.parent) == ["a.npz"]
    w = npzkit.NpzWriter(path, "a")
    del w["z"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            w.close()
    monkeypatch.setattr(npzkit.maintenance.repack, "ZipWriter", real)
    with npzkit.NpzWriter(path, "a") as w:
        w["new"] = np.arange(3)
    check_accepted(path, y=np.eye(3), new=np.arange(3))
    assert path.stat().st_size < 2000


def test_an_interrupted_repack_keeps_no_lock(path, monkeypatch):
    """SIGINT as close begins to repack leaves what was committed, and the file to the next one."""

    def interrupt(*_):
        raise KeyboardInterrupt

    w = npzkit.NpzWriter(path, "a")
    del w["x"]
    with monkeypatch.context() as patched:
        patched.setattr(npzkit.maintenance.repack, "open_source", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            w.close()
    # While the interrupt is held, and with it the frames that had the lock.
    with npzkit.NpzWriter(path, "a") as w:
        assert w.files == ["y", "z"], caught


def test_a_damaged_member_is_no_reason_not_to_repack(path):
    """Dead space is given back though an array is damaged, which stays as it is."""
    data = bytearray(path.read_bytes())
    data[npzkit.open(bytes(data)).info("y").data_offset] ^= 1
    path.write_bytes(data)
    with npzkit.NpzWriter(path, "a") as w:
        del w["x"], w["z"]
    assert path.stat().st_size < 1000
    with npzkit.open(path) as npz, pytest.raises(npzkit.errors.ChecksumError):
        npz["y"]


def test_a_seek_index_is_not_dead(tmp_path):
    """The index of an array belongs to it: with it more than half of the file is alive."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        w["x"] = np.arange(4)
        w.add("z", np.zeros(500_000), compression="deflated", chunk_size=4096, level=9)
    alive = path.stat().st_size
    index_size = 8 * (500_000 * 8 // 4096)
    with npzkit.NpzWriter(path, "a") as w:
        w["last"] = np.zeros(alive - index_size // 2, "u1")
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a") as w:
        del w["last"]
    assert path.read_bytes().startswith(before)


def test_what_cannot_be_found_in_the_file_is_not_dead(tmp_path):
    """An array whose header is damaged is no dead space: nothing is repacked, or warned of."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(4), "z": NOISE, "last": np.arange(100)})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        data[archive.getinfo("z.npy").header_offset] ^= 1
    path.write_bytes(data)
    with npzkit.NpzWriter(path, "a") as w:
        del w["last"]
    assert path.read_bytes().startswith(data)
    with npzkit.open(path) as npz:
        assert npz.files == ["x", "z"]
        assert npz["x"].tolist() == [0, 1, 2, 3]
        with pytest.raises(ZipFormatError):
            npz["z"]


# -- writing over what is mapped -----------------------------------------------------

LARGE = np.random.default_rng(1).standard_normal(700_000)


@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("mmap_mode", ["r", "c"])
@pytest.mark.parametrize("way", ["save", "w", "a", "a, removed", "a, aborted"])
def test_writing_over_what_is_mapped(tmp_path, way, mmap_mode, compression):
    """Maps of the very file are written to it, by any way there is, and keep their data."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": LARGE, "y": np.arange(5)})
    with npzkit.open(path, mmap_mode=mmap_mode) as npz:
        mapped = {key: npz[key] for key in npz}
        if way == "save":
            npzkit.save(path, mapped, compression=compression)
        else:
            w = npzkit.NpzWriter(path, way[0], compression=compression)
            for key, array in mapped.items():
                if way == "a, removed":
                    del w[key]
                w.add(key, array, overwrite=True)
            w.abort() if way == "a, aborted" else w.close()
        assert np.array_equal(mapped["x"], LARGE)
        assert np.array_equal(npz["x"], LARGE)
    check_accepted(path, x=LARGE, y=np.arange(5))
    with npzkit.open(path) as npz:
        assert npz.info("x").method == ("stored" if way == "a, aborted" else compression)


def test_an_open_archive_is_saved_over_itself(path):
    """An archive that is open is itself a mapping of arrays to save."""
    with npzkit.open(path) as npz:
        npzkit.save(path, npz, compression="deflated")
        assert np.array_equal(npz["z"], NOISE)
        with npzkit.NpzWriter(path, "a") as w:
            for key in npz:
                w.add(f"copy/{key}", npz.lazy(key))
    check_accepted(path, z=NOISE, **{"copy/z": NOISE})


@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_a_commit_before_the_first_array(tmp_path, kind):
    """Commits of an archive without arrays leave room for those that come, created ones too."""
    file = tmp_path / "a.npz" if kind == "path" else io.BytesIO()
    with npzkit.NpzWriter(file) as w:
        w.commit()
        with w.create("filled", (4,), "i4") as dst:
            w.commit()
            dst[:] = 5
        w.commit()
        with w.create("late", (3,), "i4") as dst:
            w["between"] = np.arange(2)
            w.commit()
            dst[:] = 6
    for read in (npzkit.open, np.load):
        if kind == "bytes":
            file.seek(0)
        with read(file) as npz:
            found = {key: npz[key].tolist() for key in npz}
        assert found == {"filled": [5] * 4, "late": [6] * 3, "between": [0, 1]}


def test_a_commit_without_arrays_keeps_the_old_file(tmp_path):
    """A new archive takes the old one's place with its first array, or empty when it is closed."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"old": np.arange(3)})
    with npzkit.NpzWriter(path) as w:
        w.commit()
        with npzkit.open(path) as npz:
            assert npz.files == ["old"]
    with npzkit.open(path) as npz:
        assert npz.files == []
    npzkit.save(path, {"old": np.arange(3)})
    with npzkit.NpzWriter(path) as w, w.create("new", (3,), "i4") as dst:
        w.commit()
        with npzkit.open(path) as npz:
            assert npz.files == ["old"]
        dst[:] = 1
    with npzkit.open(path) as npz:
        assert npz.files == ["new"]
