"""On which file systems a new file needs no sync before it replaces an old one."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

import npzkit
import numpy as np
import pytest
from npzkit.files import disk, sync_before_rename

OLD, NEW = {"a": np.arange(3)}, {"a": np.arange(4)}


@pytest.fixture
def saved_over(tmp_path, monkeypatch):
    """Call with journals, and with an error of the ioctl: save over a file, and return the calls."""

    def save(*journals, error=0, name="vda3", options="rw\ndata=ordered\n"):
        devices, listed = tmp_path / "devices", tmp_path / "journals"
        for folder in (devices, listed, tmp_path / "vda3"):
            folder.mkdir()
        (tmp_path / "vda3" / "options").write_text(options)
        monkeypatch.setattr(sync_before_rename, "OPTIONS", str(tmp_path))
        npzkit.save(tmp_path / "a.npz", OLD)
        number = os.stat(tmp_path / "a.npz").st_dev
        if name:
            (devices / f"{os.major(number)}:{os.minor(number)}").symlink_to(f"../block/{name}")
        for journal in journals:
            (listed / journal).mkdir()
        monkeypatch.setattr(sync_before_rename, "DEVICES", str(devices))
        monkeypatch.setattr(sync_before_rename, "JOURNALS", str(listed))
        calls = []

        def ioctl(descriptor, request, argument):
            if error:
                raise OSError(error, os.strerror(error))
            calls.append("written first")

        for call in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, call, lambda fd: calls.append("sync"), raising=False)
        if sync_before_rename.fcntl is not None:
            monkeypatch.setattr(sync_before_rename.fcntl, "ioctl", ioctl)
        npzkit.save(tmp_path / "a.npz", NEW)
        with npzkit.open(tmp_path / "a.npz") as npz:
            assert npz["a"].size == 4
        return calls

    return save


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no numbers of devices")
@pytest.mark.parametrize(
    ("journals", "options", "expected"),
    [
        (["vda3-8"], {}, "written first"),
        (["vda1-8", "vda3-8", "dm-0-8"], {}, "written first"),
        ([], {}, "sync"),
        (["vda3-12", "vda-8", "sdb"], {}, "sync"),
        (["vda3-8"], {"name": ""}, "sync"),
        (["vda3-8"], {"options": "rw\njournal_async_commit\ndata=writeback\n"}, "sync"),
        (["vda3-8"], {"options": "rw\nnoauto_da_alloc\ndata=writeback\n"}, "written first"),
        (["vda3-8"], {"error": errno.EOPNOTSUPP}, "sync"),
        (["vda3-8"], {"error": errno.EIO}, "sync"),
    ],
    ids=[
        "ext4", "ext4 among others", "no journal", "a journal of another kind or device",
        "a device without a name: btrfs, overlays, shares", "no flush before a transaction counts",
        "other options", "no such call", "data that is not written",
    ],
)  # fmt: skip
def test_each_kind(saved_over, journals, options, expected):
    """Only ext4 with its own journal does without a sync; what is not known is synced."""
    assert saved_over(*journals, **options) == [expected]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no numbers of devices")
def test_other_systems(saved_over, monkeypatch):
    """Without fcntl, as on Windows, a file that replaces another is synced."""
    monkeypatch.setattr(sync_before_rename, "fcntl", None)
    assert saved_over("vda3-8") == ["sync"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no numbers of devices")
def test_durable_waits_for_the_disk(saved_over, monkeypatch):
    """durable=True is a sync of file and folder, whatever the file system."""
    monkeypatch.setattr(
        npzkit.save, "__kwdefaults__", npzkit.save.__kwdefaults__ | {"durable": True}
    )
    calls = saved_over("vda3-8")
    assert "written first" not in calls
    assert calls.count("sync") >= 1


@pytest.mark.skipif(sys.platform != "linux", reason="the call is Linux's")
def test_the_call_of_this_system(tmp_path, monkeypatch):
    """Linux takes the call for what it is, wherever the file system says where blocks are."""
    device = os.stat(tmp_path).st_dev
    (tmp_path / f"{os.major(device)}:{os.minor(device)}").symlink_to("../x")
    (tmp_path / "x-8").touch()
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "options").touch()
    monkeypatch.setattr(sync_before_rename, "OPTIONS", str(tmp_path))
    monkeypatch.setattr(sync_before_rename, "DEVICES", str(tmp_path))
    monkeypatch.setattr(sync_before_rename, "JOURNALS", str(tmp_path))
    blocks = bytearray(sync_before_rename._WRITTEN_FIRST)
    with contextlib.closing(disk.File(str(tmp_path / "file"), is_new=True)) as file:
        file.patch(0, bytes(10_000))
        is_written = sync_before_rename.write_first(file)
        try:
            sync_before_rename.fcntl.ioctl(
                file.descriptor, sync_before_rename._FIEMAP, blocks, True
            )
        except OSError:
            assert not is_written
        else:
            # The number of pieces that the file has on the disk.
            assert is_written
            assert int.from_bytes(blocks[20:24], sys.byteorder) >= 1
