"""Files that other programs change while they are written, and how many stay open."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import npzkit
import numpy as np
import pytest
from npzkit.files import disk


class WithoutPositions:
    """An `os` that reads and writes only at a file's position, as that of Windows does."""

    def __getattr__(self, name):
        if name in ("pread", "preadv", "pwrite"):
            raise AttributeError(name)
        return getattr(os, name)


@pytest.mark.parametrize("has_positions", [True, False])
@pytest.mark.parametrize("left", [0, 3000])
def test_a_file_that_is_truncated_while_it_is_written(tmp_path, monkeypatch, has_positions, left):
    """The array cannot be completed, the writer says why, and the older archive stays."""
    if not has_positions:
        monkeypatch.setattr(disk, "os", WithoutPositions())
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(3)})
    with (
        pytest.raises(OSError, match="truncated while it was written") as found,
        npzkit.NpzWriter(path) as writer,
        writer.create("x", (1000,), "f8") as array,
    ):
        array[:] = 1
        (temporary,) = set(tmp_path.iterdir()) - {path}
        os.truncate(temporary, left)
    assert found.value.errno == errno.EIO
    assert list(tmp_path.iterdir()) == [path]
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [0, 1, 2]


FEW_FILES = """
import os, resource, sys
import npzkit
from npzkit.datasets.reopened import Reopened

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
count = int(sys.argv[1])
paths = [f"s{number}.npz" for number in range(count)]
with npzkit.open("run") as npz, npzkit.open_many(paths, axis=None) as many:
    lazy, joined = npz.lazy("x"), many.lazy("x")
    for number in range(count):
        assert (lazy[number], joined[number]) == (number, number)
    assert npz["x"].tolist() == many["x"].tolist() == list(range(count))
    assert npz.verify().ok
kept = [Reopened(npzkit.open(path)) for path in paths]
assert [int(one.open()["x"]) for one in kept] == list(range(count))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit of open files")
def test_a_process_that_may_have_few_files_open(tmp_path):
    """A data set or an archive of more files than a process may have open is read."""
    count = 70
    with npzkit.ShardedWriter(tmp_path / "run", shard_size=1) as writer:
        for number in range(count):
            npzkit.save(tmp_path / f"s{number}.npz", {"x": np.int64(number)})
            writer.add("x", np.array([number]), offset=(number,), global_shape=(count,))
        writer.commit()
    command = [sys.executable, "-c", FEW_FILES, str(count)]
    environment = {name: text for name, text in os.environ.items() if name[:6] != "PYTHON"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
