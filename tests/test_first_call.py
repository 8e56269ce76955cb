"""The first call of a program imports what it needs, and no more: see CONTRIBUTING."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import npzkit
import numpy as np
import pytest
from structure import MODULES, room_of

LOADED = str(Path(__file__).parents[1] / "fixtures" / "numpy_savez.npz")
CALLS = {
    "load": f"npzkit.load({LOADED!r})['x']",
    "open": f"npzkit.open({LOADED!r})['x']",
    "save": "npzkit.save(sys.argv[1], {'a': np.arange(10)})",
}
OF_NUMPY = f"np.load({LOADED!r})['x']; np.savez(sys.argv[1], a=np.arange(10))"

LIBRARIES = {
    "bisect", "click", "concurrent.futures", "copy", "dataclasses", "deflate", "heapq", "inspect",
    "isal", "json", "logging", "ml_dtypes", "queue", "random", "rich", "scipy", "tempfile",
    "urllib.request", "uuid", "zlib_ng",
}  # fmt: skip
"""What neither a load nor a save needs, unless NumPy imports it."""
ROOMS = {
    "load": {
        "archive", "codecs", "drop_ins", "errors", "files", "format", "imported", "limits",
        "members", "reading", "zip",
    },
    "save": {
        "archive", "codecs", "errors", "files", "format", "imported", "limits", "members",
        "writing", "zip",
    },
}  # fmt: skip
ROOMS["open"] = ROOMS["load"] - {"drop_ins"} | {"datasets"}
"""The rooms of what is imported."""
READING = {
    "archive.lazyarray", "codecs.decompressors", "codecs.encoders", "files.block_reading",
    "files.locking", "files.progress", "files.sink", "files.threads", "members.array_info",
    "members.metadata", "members.tensors", "reading.known_arrays", "reading.load_all",
    "reading.member", "zip.array_index", "zip.chunk_list", "zip.chunks", "zip.entry_columns",
    "zip.kept_chunks", "zip.last_commit", "zip.member_stream", "zip.written_header",
}  # fmt: skip
UNNEEDED = {
    "load": READING,
    "open": READING | {"datasets.shardedfile", "datasets.shard_names"},
    "save": {
        "archive.npzfile", "archive.npzwriter", "archive.written_archive", "codecs.decompressors",
        "codecs.encoders", "files.append", "files.block_reading", "files.path_sink", "files.progress",
        "files.threads", "trees.containers", "members.refused_values", "trees.notes", "members.tensors",
        "writing.open_for_append", "writing.array_bytes", "zip.chunk_list", "zip.chunks",
        "zip.directory", "zip.entry_columns", "zip.kept_chunks", "zip.last_commit",
        "zip.member_stream", "zip.member_writer",
    },
}  # fmt: skip
"""Modules of these rooms that stand for what one small array is not: large, deflated, one of
many, appended, listed, damaged."""


def imported(code: str, path: Path) -> set[str]:
    """Return the modules that a program imports."""
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)", str(path)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return set(found.stdout.split())


def test_npzkit_alone_imports_nothing(tmp_path):
    """`import npzkit` imports no other module, and not NumPy."""
    alone = imported("import npzkit", tmp_path)
    assert {name for name in alone if name.startswith("npzkit")} == {"npzkit"}
    assert "numpy" not in alone


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_small_array_needs_few_modules(tmp_path, call):
    """Loading or saving a small array imports nothing that is for other arrays."""
    found = imported(f"import numpy as np, npzkit; {CALLS[call]}", tmp_path / "a.npz")
    own = {name.removeprefix("npzkit.") for name in found if name.startswith("npzkit.")}
    assert own <= MODULES.keys()
    assert {room_of(name) for name in own} == ROOMS[call]
    assert UNNEEDED[call] <= MODULES.keys()
    assert not own & UNNEEDED[call]
    of_numpy = imported(f"import numpy as np; {OF_NUMPY}", tmp_path / "b.npz")
    assert not (found - of_numpy) & LIBRARIES


@pytest.mark.slow
def test_one_array_of_many_is_read_alone(tmp_path):
    """One array of any size, loaded from an archive of many, imports nothing that reads several."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {f"w{i}": np.zeros(1 << 18) for i in range(99)})
    found = imported("import npzkit; npzkit.load_tree(sys.argv[1], only='w1')", path)
    assert "npzkit.reading.member" in found
    assert not found & {"npzkit.reading.load_all", "npzkit.reading.adjacent_members"}
