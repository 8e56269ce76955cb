"""Mode "a": what is written behind an archive, what is edited, and what stays as it was."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import struct
import subprocess
import zipfile

import forge
import npzkit
import numpy as np
import pytest
from archives import MAKERS, NOISE, Pipe, by_save, check_accepted, listing, made_by, untouched
from counting import sizes_read
from deep import DEEP, extent
from grown_archives import zip64_from
from npzkit.errors import (
    AmbiguousArchiveError,
    ArchiveLockedError,
    NpzkitError,
    TornArchiveWarning,
    UnsafeNameError,
    UnsupportedError,
    ZipFormatError,
    quoted,
)
from npzkit.zip.dead_space import fills_most
from systems import IS_32_BIT, need_decoder_of, needs_symlinks, replaces_open_files

from tables import each_row


@pytest.fixture(params=sorted(MAKERS))
def made(request, tmp_path):
    """An archive by another program, or by npzkit."""
    return made_by(request.param, tmp_path / "a.npz")


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


# -- behind any archive ------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not installed")
def test_unzip_accepts_what_was_edited(made, request):
    """Info-ZIP tests every member after an append, a replacement, a removal and a renaming."""
    need_decoder_of(request.node.callspec.params["made"])
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
    assert done.returncode == (81 if methods & {"lzma", "zstd"} else 0)


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


@each_row("kind", not_archives())
def test_what_is_no_archive_is_refused_untouched(tmp_path, kind):
    """Nothing is written to what is no zip, damaged, cut short, or begins with other bytes."""
    path = tmp_path / "a.npz"
    path.write_bytes(not_archives()[kind])
    with untouched(path):
        with pytest.raises((ZipFormatError, UnsupportedError)) as caught:
            npzkit.NpzWriter(path, "a")
        assert quoted(path) in str(caught.value)
    npzkit.save(path, {"x": np.arange(3)})
    check_accepted(path, x=np.arange(3))
    stream = io.BytesIO(not_archives()[kind])
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


@needs_symlinks
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


@needs_symlinks
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
@pytest.mark.filterwarnings("ignore::npzkit.errors.TornArchiveWarning")
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


# -- file objects --------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.remedy("Pass the path, or an io.BytesIO; a file is opened with mode 'r+b'.")
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
    memory = io.BytesIO(before)
    with open(path, "r+b") as file:
        for key, place in (("first", file), ("second", path), ("third", memory)):
            with npzkit.NpzWriter(place, "a") as w:
                w[key] = np.arange(3)
    with npzkit.open(path) as npz:
        assert npz.files[-2:] == ["first", "second"]
    assert npzkit.open(memory)["third"].tolist() == [0, 1, 2]


# -- large archives --------------------------------------------------------------


@pytest.fixture
def most():
    """The fewest members whose number needs zip64: 65,535, or by default as if it were 200."""
    with contextlib.nullcontext() if DEEP else zip64_from(200):
        yield extent(200, 65_535)


def test_appends_around_65_535_members(most, tmp_path):
    """Whenever the number of members is more than 16 bits hold, zip64 says so, and numpy reads it."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {f"k{number}": np.uint8(number % 256) for number in range(most)})
    assert b"PK\x06\x06" in path.read_bytes()[-200:]
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        for number in range(10):
            del w[f"k{number + 100}"]
    before = path.read_bytes()
    assert b"PK\x06\x06" not in before[-200:]
    assert len(npzkit.open(before)) == most - 10
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        for number in range(10):
            w[f"new{number}"] = np.arange(number)
    after = path.read_bytes()
    assert after.startswith(before)
    assert b"PK\x06\x06" in after[-200:]
    with npzkit.open(path) as npz, np.load(path) as theirs:
        assert len(npz) == len(theirs.files) == most
        assert theirs["new9"].tolist() == npz["new9"].tolist() == list(range(9))
        assert npz[f"k{most - 1}"] == theirs[f"k{most - 1}"] == (most - 1) % 256


@pytest.mark.slow
def test_an_append_to_very_many_members(tmp_path):
    """One array more, one fewer and one renamed, of tens of thousands."""
    path = tmp_path / "a.npz"
    count = extent(10_000, 100_000)
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
        assert npz.lazy("large")[-1] == large.lazy("large")[-1] == 0
        assert npz.lazy("large")[[5, 1 << 32]].tolist() == npz.lazy("large")[[5, 7]].tolist()
        if not IS_32_BIT:
            assert npz.memmap("large")[-1] == large.memmap("large")[-1] == 0
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("last.npy").header_offset > 1 << 32
        assert archive.open("newer.npy").read() == forge.npy(np.arange(5))
    with npzkit.NpzWriter(path, "a") as w:
        del w["large"]
    assert path.stat().st_size < 1 << 20
    check_accepted(path, newer=np.arange(5), more=NOISE, last=np.ones(3))


def test_an_append_costs_what_is_added(tmp_path, monkeypatch):
    """A megabyte more in 300 is written once, with few bytes beside it, and next to nothing of the rest is read."""
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
    # The directory of the older end is copied for readers meanwhile, and moved once.
    assert counts["pwrite"] < added + 2000
    assert counts["preadv"] + counts["pread"] < 1 << 20
    with npzkit.open(path) as npz:
        assert npz["new"].sum() == 1 << 17


def test_an_append_reads_as_little_as_the_first(tmp_path, monkeypatch):
    """However many appends there were, one more reads the end of the file and no member."""
    path, counts = tmp_path / "a.npz", []
    npzkit.save(path, {"first": NOISE})
    for index in range(20):
        with monkeypatch.context() as patched:
            sizes = sizes_read(patched)
            with npzkit.NpzWriter(path, "a") as w:
                w[f"x{index}"] = NOISE
        counts.append(len(sizes))
    assert max(counts) == counts[1] < 10


@pytest.mark.parametrize(("size", "is_filled"), [(100, True), (99, False), (0xFFFF_FFFF, False)])
def test_what_surely_fills_a_file(size, is_filled):
    """Members fill a file if they take half of it; a size in a zip64 field is not counted."""
    entry = struct.pack("<20xL18xL", size, 0)
    assert fills_most([b"", entry], 200) == is_filled
    assert not fills_most([struct.pack("<20xL18xL", size, 50)], 200)


# -- writing over what is mapped -----------------------------------------------------

LARGE = np.random.default_rng(1).standard_normal(300_000)


@pytest.mark.slow
@each_row("compression", ["stored", "deflated"])
@each_row("mmap_mode", ["r", "c"])
@each_row("way", ["save", "w", "a", "a, removed", "a, aborted"])
@replaces_open_files
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


@replaces_open_files
def test_an_open_archive_is_saved_over_itself(path):
    """An archive that is open is itself a mapping of arrays to save."""
    with npzkit.open(path) as npz:
        npzkit.save(path, npz, compression="deflated")
        assert np.array_equal(npz["z"], NOISE)
        with npzkit.NpzWriter(path, "a") as w:
            for key in npz:
                w.add(f"copy/{key}", npz.lazy(key))
    check_accepted(path, z=NOISE, **{"copy/z": NOISE})


# -- archives without members ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "bytes"])
@pytest.mark.parametrize("before", ["nothing", "an archive"])
def test_what_is_empty_is_added_to(tmp_path, kind, before):
    """An empty file is a new archive, and an archive without members is one like any other."""
    stream = io.BytesIO()
    if before == "an archive":
        npzkit.save(stream, {}, metadata={"a": 1})
    path = tmp_path / "a.npz"
    path.write_bytes(stream.getvalue())
    path.chmod(0o600)
    file = path if kind == "path" else stream

    def now():
        return path if kind == "path" else io.BytesIO(stream.getvalue())

    with npzkit.NpzWriter(file, "a") as w:
        if kind == "path":
            with pytest.raises(ArchiveLockedError):
                npzkit.NpzWriter(path, "a")
        if before == "an archive":
            w.metadata["b"] = 2
            w.commit()
            with npzkit.open(now()) as npz:
                assert (npz.files, npz.metadata) == ([], {"a": 1, "b": 2})
            w.commit()
        committed = path.read_bytes()
        with w.create("x", (3,), np.int64, compression="stored") as x:
            # What was committed is as it was until the next commit.
            assert path.read_bytes() == committed
            x[:] = range(3)
        w.commit()
        with npzkit.open(now()) as npz:
            assert npz.files == ["x"]
        w["y"] = NOISE
    with npzkit.open(now(), strict=True) as npz, np.load(now()) as theirs:
        assert npz.files == theirs.files == ["x", "y"]
        assert npz.metadata == ({"a": 1, "b": 2} if before == "an archive" else {})
        assert np.array_equal(theirs["y"], NOISE)
    if kind == "path":
        assert os.listdir(tmp_path) == ["a.npz"]
        assert path.stat().st_mode & 0o777 == 0o600 or os.name == "nt"


def test_an_empty_file_that_is_left_alone(tmp_path):
    """Who gives up an archive in an empty file leaves it empty; closed, it is an archive."""
    path = tmp_path / "a.npz"
    path.write_bytes(b"")
    w = npzkit.NpzWriter(path, "a")
    w["x"] = NOISE
    w.abort()
    assert path.read_bytes() == b""
    npzkit.NpzWriter(path, "a").close()
    with npzkit.open(path) as npz:
        assert npz.files == []
    assert os.listdir(tmp_path) == ["a.npz"]
