"""Arrays that get another key."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import forge
import npzkit
import numpy as np
import pytest
from archives import MAKERS, by_save, by_zipfile, check_accepted
from npzkit.errors import ClosedArchiveError, UnsafeNameError, UnsupportedError


@pytest.fixture
def path(tmp_path):
    """Three arrays: x, y and z."""
    return by_save(tmp_path / "a.npz")


def raw_member(path, name):
    """A listed member's compressed bytes, found without npzkit."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
        data = Path(path).read_bytes()[info.header_offset :]
        sizes = struct.unpack_from("<HH", data, 26)
        start = 30 + sum(sizes)
        return data[start : start + info.compress_size]


@pytest.mark.slow
@pytest.mark.parametrize("maker", ["npzkit", "np.savez_compressed", "zipfile lzma", "sozipfile"])
def test_a_renamed_array_keeps_its_bytes(tmp_path, maker):
    """Compressed bytes, CRC, list of chunks and attributes go with the new name."""
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


@pytest.mark.remedy("Remove it first with del, or use another key.")
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
        w["another"] = np.arange(2)
    check_accepted(path, **{"words.txt": np.arange(3), "another": np.arange(2)})
