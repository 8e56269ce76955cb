"""Which file systems put a file's data on the disk before they rename it over another one."""

from __future__ import annotations

import os
import sys

import pytest
from npzkit.files import rename_order
from npzkit.files.rename_order import orders_renames

if os.name == "nt":
    pytest.skip("Windows has no numbers of devices", allow_module_level=True)

LINE = "27 1 {number} / {place} rw,relatime shared:1 - {kind} /dev/vda {options}"
KINDS = [
    ("ext4", "rw,discard", True),
    ("ext4", "rw,errors=remount-ro,data=ordered", True),
    ("ext4", "rw,noauto_da_alloc", False),
    ("ext4", "rw,data=writeback", False),
    ("tmpfs", "rw,size=24683656k", True),
    ("btrfs", "rw,space_cache=v2,subvolid=5,subvol=/", False),
    ("xfs", "rw,attr2,inode64", False),
    ("ext3", "rw", False),
    ("overlay", "rw,lowerdir=/l,upperdir=/u,workdir=/w", False),
    ("nfs4", "rw,vers=4.2,hard", False),
    ("fuse.sshfs", "rw,user_id=0", False),
]


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """Call with lines of the list of what is mounted."""
    monkeypatch.setattr(rename_order, "MOUNTS", str(tmp_path / "mountinfo"))

    def mount(*lines):
        (tmp_path / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
        rename_order._orders_renames.cache_clear()

    mount()
    yield mount
    rename_order._orders_renames.cache_clear()


@pytest.mark.parametrize(("kind", "options", "expected"), KINDS)
def test_each_kind(mounted, kind, options, expected):
    """Only ext4 as it is mounted by default, and tmpfs, need no sync."""
    other = LINE.format(number="0:24", place="/dev", kind="devtmpfs", options="rw")
    mounted(other, LINE.format(number="254:3", place="/a\\040b", kind=kind, options=options))
    assert orders_renames(os.makedev(254, 3)) is expected
    assert not orders_renames(os.makedev(254, 30))


def test_what_is_not_known_is_synced(mounted, tmp_path, monkeypatch):
    """A device that is not listed, a list in another form, or none, as on macOS."""
    device = os.stat(tmp_path).st_dev
    assert not orders_renames(device)
    mounted(f"{os.major(device)}:{os.minor(device)} ext4", "")
    assert not orders_renames(device)
    monkeypatch.setattr(rename_order, "MOUNTS", str(tmp_path / "none"))
    rename_order._orders_renames.cache_clear()
    assert not orders_renames(device)


def test_an_answer_counts_for_seconds(mounted, monkeypatch):
    """Another file system may get the number of one that was unmounted."""
    now = [1000.0]
    monkeypatch.setattr(rename_order.time, "monotonic", lambda: now[0])
    line = {"number": "8:1", "place": "/mnt", "options": "rw"}
    mounted(LINE.format(kind="ext4", **line))
    assert orders_renames(os.makedev(8, 1))
    with open(rename_order.MOUNTS, "w") as file:
        file.write(LINE.format(kind="vfat", **line))
    assert orders_renames(os.makedev(8, 1))
    now[0] += 10
    assert not orders_renames(os.makedev(8, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this list")
def test_the_list_of_this_machine(tmp_path):
    """The true list is read: there is an answer for a folder, whatever it is."""
    assert orders_renames(os.stat("/dev/shm").st_dev) or not os.path.ismount("/dev/shm")
    assert orders_renames(os.stat(tmp_path).st_dev) in (True, False)
