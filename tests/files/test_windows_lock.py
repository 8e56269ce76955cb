"""On Windows: the lock of a writer denies no read and no write, however large the file is."""

from __future__ import annotations

import ctypes
import errno
import os

import npzkit
import numpy as np
import pytest
from npzkit.errors import ArchiveLockedError
from npzkit.files import disk, locking, system_locks

pytestmark = pytest.mark.skipif(os.name != "nt", reason="Windows alone locks bytes against reads")


class Denying:
    """`os` that asks before each read and write, as Windows does and wine does not."""

    def __init__(self):
        self.asked = 0

    def __getattr__(self, name):
        return getattr(os, name)

    def _ask(self, descriptor, size):
        """Raise PermissionError if another handle has locked one of the next bytes."""
        import msvcrt

        self.asked += 1
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
        overlapped = bytes(16) + place.to_bytes(8, "little") + bytes(8)
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(descriptor.__index__()))
        for function, first in ((kernel.LockFileEx, (3, 0)), (kernel.UnlockFileEx, (0,))):
            buffer = ctypes.create_string_buffer(overlapped, len(overlapped))
            if not function(handle, *first, max(size, 1), 0, buffer):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def read(self, descriptor, size):
        self._ask(descriptor, size)
        return os.read(descriptor, size)

    def write(self, descriptor, data):
        self._ask(descriptor, len(data))
        return os.write(descriptor, data)


def test_an_archive_of_more_than_2_gib(tmp_path, monkeypatch):
    """It is written, appended to and read while a writer has the lock."""
    calls = Denying()
    monkeypatch.setattr(disk, "os", calls)
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as writer:
        with writer.create("large", ((1 << 31) + 1000,), "u1") as large:
            large[-1000:] = np.arange(1000) % 200
        writer.commit()
        writer["x"] = np.arange(100_000)
        with npzkit.open(path) as npz:
            assert npz.lazy("large")[-3:].tolist() == [197, 198, 199]
    with npzkit.NpzWriter(path, "a") as writer:
        writer["y"] = np.arange(100_000)
        with pytest.raises(ArchiveLockedError):
            npzkit.NpzWriter(path, "a")
    with npzkit.open(path) as npz:
        assert npz["x"][-1] == npz["y"][-1] == 99_999
    assert calls.asked > 10


def test_the_denial_is_seen(tmp_path, monkeypatch):
    """A lock on a byte that is read would be noticed here."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(5)})
    monkeypatch.setattr(disk, "os", Denying())
    monkeypatch.setattr(system_locks, "WINDOWS_OFFSET", 10)
    lock = locking.lock_path(str(path), 0.0)
    with pytest.raises(PermissionError):
        npzkit.open(path)
    lock.close()
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [0, 1, 2, 3, 4]
