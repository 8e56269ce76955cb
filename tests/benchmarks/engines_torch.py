"""How fast torch.distributed.checkpoint saves and loads by npzkit, and by its own files.

The rows are some of `engines`, if torch and ml_dtypes are installed. They are measured as in
`bench`: npzkit and PyTorch's FileSystemWriter and FileSystemReader take turns in one process, caches and
memory are warm, and medians are compared. Each save makes new files. npzkit compares every
CRC-32 when it loads, and PyTorch none.
"""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from checkpoints import STATES, warm_memory
from libraries import state, zeros
from rows import Row, ahead
from works import Place, Work

MISSING = [name for name in ("torch", "ml_dtypes") if importlib.util.find_spec(name) is None]
"""Packages that the benchmark needs and that are not installed."""

if not MISSING:
    import torch.distributed.checkpoint as dcp
    from npzkit.torch import NpzStorageReader, NpzStorageWriter

PEERS = {"FileSystem": ("FileSystemWriter, FileSystemReader", "#ccbb44")}


class Npzkit:
    """Saves to a folder, and loads from it, by npzkit."""

    name = "npzkit"

    def __init__(self, folder: Path, kind: str, divisor: int) -> None:
        self.path = folder / self.name
        saved = state(kind, divisor)
        self.tensors, self.size = saved.tensors, saved.size
        self.into = zeros(self.tensors)

    def writer(self, *, durable: bool) -> Any:
        return NpzStorageWriter(self.path, durable=durable)

    def reader(self) -> Any:
        return NpzStorageReader(self.path)

    def save(self) -> None:
        dcp.save(self.tensors, storage_writer=self.writer(durable=False), no_dist=True)

    def save_durably(self) -> None:
        dcp.save(self.tensors, storage_writer=self.writer(durable=True), no_dist=True)

    def begin(self) -> None:
        writer = self.writer(durable=False)
        self.future = dcp.async_save(self.tensors, storage_writer=writer, no_dist=True)

    def wait(self) -> None:
        self.future.result()

    def load(self) -> dict[str, Any]:
        dcp.load(self.into, storage_reader=self.reader(), no_dist=True)
        return self.into


class FileSystem(Npzkit):
    """Does so by PyTorch's own files, in which tensors are pickled."""

    name = "FileSystem"

    def writer(self, *, durable: bool) -> Any:
        return dcp.FileSystemWriter(self.path, sync_files=durable)

    def reader(self) -> Any:
        return dcp.FileSystemReader(self.path)


def contender(library: Npzkit, name: str) -> Callable[[], object]:
    method = getattr(library, name)

    def run() -> object:
        return method()

    def before() -> None:
        if name != "load":
            shutil.rmtree(library.path, ignore_errors=True)
        warm_memory(2 * library.size)

    run.before = before  # type: ignore[attr-defined]
    if name == "begin":
        run.after = library.wait  # type: ignore[attr-defined]
    return run


def works(kind: str, name: str, place: Place) -> Iterator[Work]:
    """Yield one piece of work, by both."""
    warnings.filterwarnings("ignore", message="torch.distributed is")
    folder = place.folder / f"{kind}-{name}"
    found = [library(folder, kind, place.divisor) for library in (Npzkit, FileSystem)]
    for library in found:
        if name == "load":
            library.save()
    yield Work(STATES[kind], {library.name: contender(library, name) for library in found})
    shutil.rmtree(folder, ignore_errors=True)


WORDS = {
    "save": "DCP: save", "save_durably": "DCP: save and wait for the disk",
    "begin": "DCP: begin to save in the background", "load": "DCP: load",
}  # fmt: skip
AIMS = {"save": 1.2, "load": 1.2}
ROWS = {
    f"dcp-{name.replace('_', '-')}-{kind}": Row(
        f"{words}, {STATES[kind]}", partial(works, kind, name),
        (ahead("FileSystem", AIMS[name]),) if name in AIMS else (),
    )
    for name, words in WORDS.items()
    for kind in ("large", "real")
}  # fmt: skip
