"""Crashes: whatever a killed program or a loss of power leaves, it is the old archive or the new.

Work on archives is recorded call by call and every state that a crash may leave
is rebuilt in memory (`support/crash.py` says which) and read. By default that
is a thousand states, taken evenly from all kinds of work; NPZKIT_DEEP=1 in
the environment makes it 100,000, and NPZKIT_DEEP=10 a million. The work is made
of seeds, so that a seed that fails is run again alone, in all its states:
NPZKIT_CRASH_SEED=17.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import functools
import hashlib
import io
import itertools
import os
import random
import shutil
import struct
import subprocess
import time
import types
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import crash
import npzkit
import numpy as np
import pytest
from commits import (
    INTENT_SIZE,
    SLOT_SIZE,
    find_footer,
    find_intent,
    last_end,
    last_slot,
    unfinished,
)
from crash import (
    RecordedFile,
    Recording,
    State,
    killed_at_calls,
    killed_states,
    page_cuts,
    power_loss_states,
    recorded,
    replay,
)
from deep import DEEP, amount, extent, needs_deep
from grown_archives import OneWay
from npzkit.errors import (
    AmbiguousArchiveError,
    ChecksumError,
    FormatError,
    NpzkitError,
    StaleArchiveError,
    TornArchiveWarning,
    UnsupportedError,
    ZipFormatError,
)
from npzkit.files import append as append_order
from npzkit.files import disk, path_sink, sink
from npzkit.zip import writer as zip_writer
from structure import MODULES

from tables import each_row

ONLY_SEED = os.environ.get("NPZKIT_CRASH_SEED")
STATE_COUNT = amount(400, 100_000)
STRIDE = 1 if ONLY_SEED or DEEP else 100
"""One of so many states is read."""
SAMPLED = 40 if DEEP else 10
"""One of so many distinct states is shown to other readers, too."""
POWER_LIMIT = amount(10, 1200)
"""Torn states of one stretch between two syncs."""
NO_FILE = "no file"
EMPTY_ARCHIVE = b"PK\5\6" + bytes(18)
LOADABLE_SIZE = 65_535
"""Bytes behind an archive's end, comment included, in which any reader still finds it."""


# -- what an archive is to hold -------------------------------------------------


class Held(NamedTuple):
    """One array and its attributes."""

    array: np.ndarray
    attrs: dict[str, Any]


class Model:
    """What an archive is to hold, kept apart from it: the oracle."""

    def __init__(self, arrays: dict[str, np.ndarray] | None = None) -> None:
        # None keeps the place of an array that is being created.
        self.held: dict[str, Held | None] = {
            key: Held(array, {}) for key, array in (arrays or {}).items()
        }
        self.metadata: dict[str, Any] = {}

    def contents(self) -> Contents:
        held = {key: one for key, one in self.held.items() if one is not None}
        members = [(key, *plain(array), dict(attrs)) for key, (array, attrs) in held.items()]
        return Contents(members, dict(self.metadata), {k: h.array for k, h in held.items()})


class Contents(NamedTuple):
    """What a reader is to find after a commit."""

    members: list[tuple]
    metadata: dict[str, Any]
    arrays: dict[str, np.ndarray]


def plain(array: Any) -> tuple:
    """Everything of an array that can be compared."""
    array = np.asanyarray(array)
    return array.dtype.str, array.shape, array.flags.f_contiguous, array.tobytes()


def found_by_npzkit(content: bytes | Path, attrs: list[dict] | None = None) -> tuple:
    """What npzkit reads: keys in their order, arrays, attributes (unless known), metadata."""
    with npzkit.open(content) as npz:
        if attrs is None:
            attrs = [dict(npz.info(key).attrs) for key in npz]
        elif npz.files:
            # The array index is read: what it says is compared with each array.
            npz.info(npz.files[-1])
        members = [(key, *plain(npz[key]), own) for key, own in zip(npz, attrs, strict=True)]
        return members, dict(npz.metadata)


# -- the checker ----------------------------------------------------------------


class Checker:
    """Reads states, each once, and keeps what is wrong with them.

    Attributes
    ----------
    count : int
        Distinct states so far.
    violations : list of str
    found : Counter
        How many states were old, new, torn and the like.
    sample, lost : list of (bytes, list of Contents)
        Some states, with what may be found in them: those that a killed program leaves, and
        those of a loss of power.
    """

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.violations: list[str] = []
        self.found: Counter[str] = Counter()
        self.sample: list[tuple[bytes, list[Contents]]] = []
        self.lost: list[tuple[bytes, list[Contents]]] = []

    @property
    def count(self) -> int:
        return len(self.seen)

    def check(
        self,
        name: str,
        states: Iterable[State],
        contents: list[Contents | None],
        sample: list[tuple[bytes, list[Contents]]] | None = None,
    ) -> None:
        """Hold every state against the contents that are allowed there; some are added to a sample."""
        results: dict[bytes | None, Any] = {}
        # They stand in the directory alone: of states with the same one they are read once.
        self.attrs: dict[bytes, list[dict]] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for allowed, content in states:
                digest = content and hashlib.blake2b(content, digest_size=12).digest()
                if digest not in results:
                    caught.clear()
                    results[digest] = self._read(content, caught, contents)
                result = results[digest]
                choices = {_number(contents, index) for index in allowed}
                if result not in choices:
                    self.violations.append(f"{name}: {result!r} where {choices} may be")
                elif content is not None and digest not in self.seen:
                    self.seen.add(digest)
                    kind = "old" if result == min(choices) else "new"
                    self.found[kind if len(choices) > 1 else "committed"] += 1
                    self.found["torn"] += not ends_whole(content)
                    # Of each commit one state alone is new: the last.
                    if sample is not None and (self.count % SAMPLED == 0 or kind == "new"):
                        held = [contents[index] for index in sorted(choices)]
                        sample.append((content, [one for one in held if one is not None]))

    def _read(self, content: bytes | None, caught: list, contents: list[Contents | None]) -> Any:
        """Return which contents are there, or what went wrong."""
        if content is None:
            return _number(contents, contents.index(None)) if None in contents else NO_FILE
        try:
            start, end = own_end(content)
            size = int.from_bytes(content[start + 12 : start + 16], "little")
            directory = content[start - size : end]
            found = found_by_npzkit(content, self.attrs.get(directory))
            self.attrs.setdefault(directory, [member[-1] for member in found[0]])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        is_torn = end != len(content)
        if [warning.category for warning in caught] != [TornArchiveWarning] * is_torn:
            return f"{'torn' if is_torn else 'whole'}, and {[str(w.message) for w in caught]}"
        for index, expected in enumerate(contents):
            if expected is not None and found == expected[:2]:
                return index
        return "other contents"


def _number(contents: list[Contents | None], index: int) -> int:
    """The first of equal contents: a repack changes nothing that is read."""
    wanted = contents[index] and contents[index][:2]
    return next(i for i, other in enumerate(contents) if (other and other[:2]) == wanted)


def own_end(content: bytes) -> tuple[int, int]:
    """Return where the last end record of this archive stands and ends, by its numbers alone."""
    _, record, end = last_end(content)
    return record, end


def ends_whole(content: bytes) -> bool:
    return own_end(content)[1] == len(content)


# -- archives to begin with -----------------------------------------------------


def some_array(rng: random.Random) -> np.ndarray:
    """An array of one of many kinds, mostly small."""
    make = np.random.default_rng(rng.randrange(1 << 30))
    kinds: list[Callable[[], np.ndarray]] = [
        lambda: make.random((rng.randint(0, 40), 3)),
        lambda: make.integers(0, 9, rng.randint(1, 3000)).astype("u1"),
        lambda: np.asfortranarray(make.random((5, 7)).astype("f4")),
        lambda: np.array(["a", "bcd", "é"]),
        lambda: np.array(make.integers(100)),
        lambda: np.arange(rng.randint(1, 900), dtype=">i4"),
        lambda: np.zeros(3, [("id", "<i4"), ("pos", "<f8", (2,))]),
    ]
    return rng.choice(kinds)()


def large_array(rng: random.Random) -> np.ndarray:
    """More than other readers search for an end record."""
    return np.random.default_rng(rng.randrange(99)).integers(0, 256, 80_000).astype("u1")


def whole_archive(rng: random.Random) -> np.ndarray:
    """An array whose bytes are an archive themselves, or one that can be read in two ways."""
    stream = io.BytesIO()
    arrays = {"inner": some_array(rng), "x": some_array(rng)}
    rng.choice((np.savez, np.savez_compressed, npzkit.savez))(stream, **arrays)
    content = stream.getvalue()
    return np.frombuffer(ambiguous(content) if rng.random() < 0.3 else content, "u1")


def ambiguous(content: bytes) -> bytes:
    """Return an archive with an end record for its comment: both end where the file does."""
    return content[:-2] + struct.pack("<H", len(EMPTY_ARCHIVE)) + EMPTY_ARCHIVE


def some_arrays(rng: random.Random, count: int = 3) -> dict[str, np.ndarray]:
    return {f"{name}": some_array(rng) for name in "abcdefgh"[: rng.randint(1, count)]}


def by_npzkit(rng: random.Random, path: Path) -> Model:
    model = Model(some_arrays(rng))
    with npzkit.NpzWriter(path, compression=rng.choice(("stored", "deflated"))) as w:
        for key, (array, attrs) in model.held.items():
            attrs["made"] = key
            w.add(key, array, attrs=attrs)
        w.metadata["step"] = model.metadata["step"] = rng.randrange(100)
    return model


def by_numpy(rng: random.Random, path: Path) -> Model:
    arrays = some_arrays(rng)
    rng.choice((np.savez, np.savez_compressed))(path, **arrays)
    return Model(arrays)


def by_zipfile(rng: random.Random, path: Path) -> Model:
    """With data descriptors and a comment that is not npzkit's."""
    arrays = some_arrays(rng)
    stream = OneWay()
    with zipfile.ZipFile(stream, "w", rng.choice((0, 8))) as archive:
        for key, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), npy(array))
        archive.comment = b"made by hand"
    path.write_bytes(stream.data)
    return Model(arrays)


def with_torn_tail(rng: random.Random, path: Path) -> Model:
    """An append to it was cut short."""
    model = by_npzkit(rng, path)
    before = path.read_bytes()
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["torn"] = some_array(rng)
    # The mark and the seal, which come last, are not there.
    after = unfinished(path.read_bytes())
    cut = rng.randint(len(before) + 1, len(after))
    path.write_bytes(after[:cut] + bytes(rng.choice((0, 0, 700))))
    return model


def with_torn_mark(rng: random.Random, path: Path) -> Model:
    """An append to it was complete, and of its mark a part was written."""
    model = without_mark(rng, path)
    content = path.read_bytes()
    slot, mark = last_slot(content), len(content).to_bytes(SLOT_SIZE, "little")
    cut = rng.randrange(1, SLOT_SIZE)
    path.write_bytes(content[:slot] + mark[:cut] + content[slot + cut :])
    return model


def without_mark(rng: random.Random, path: Path) -> Model:
    """An append to it was complete, and not marked as such."""
    model = by_npzkit(rng, path)
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["unmarked"] = array = some_array(rng)
    model.held["unmarked"] = Held(array, {})
    content = path.read_bytes()
    slot = last_slot(content)
    path.write_bytes(content[:slot] + bytes(SLOT_SIZE) + content[slot + SLOT_SIZE :])
    return model


def with_dead_space(rng: random.Random, path: Path) -> Model:
    model = by_npzkit(rng, path)
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.add("a", array := some_array(rng), overwrite=True)
    model.held["a"] = Held(array, {})
    return model


def of_many(rng: random.Random, path: Path) -> Model:
    """So many members that they are read by columns."""
    model = Model({f"k{i}": np.array(i) for i in range(70)})
    npzkit.save(path, {key: array for key, (array, _) in model.held.items()})
    return model


def with_archive_inside(rng: random.Random, path: Path) -> Model:
    arrays = {**some_arrays(rng), "archive": whole_archive(rng)}
    npzkit.save(path, arrays)
    return Model(arrays)


def large(rng: random.Random, path: Path) -> Model:
    arrays = {"large": large_array(rng), "a": some_array(rng)}
    np.savez(path, **arrays)
    return Model(arrays)


def empty(rng: random.Random, path: Path) -> Model:
    npzkit.save(path, {})
    return Model()


def absent(rng: random.Random, path: Path) -> None:
    return None


STARTS = [
    by_npzkit, absent, by_numpy, by_zipfile, with_torn_tail, with_torn_mark, without_mark,
    with_dead_space, with_archive_inside, large, empty,
]  # fmt: skip
MANY_SEED = 17
"""One of 60 seeds begins with an archive of many members, which takes long to read."""


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    return stream.getvalue()


# -- work that is interrupted ---------------------------------------------------


class Work:
    """Work on one archive: edits, made to a writer and to the model alike.

    Attributes
    ----------
    contents : list of Contents or None
        Before the work, and after each commit; None is no file.
    has_archive_inside : bool
        Whether an array's bytes may be an archive.
    """

    def __init__(
        self, rng: random.Random, model: Model | None, recording: Recording, has_inside: bool
    ) -> None:
        self.rng, self.recording = rng, recording
        self.model = model or Model()
        self.contents: list[Contents | None] = [model.contents() if model else None]
        self.has_archive_inside = has_inside
        self.created: tuple[str, Any, np.ndarray] | None = None
        # Whether the next commit makes the archive.
        self.is_new = model is None
        recording.mark(0)

    @contextlib.contextmanager
    def committing(self, *, is_last: bool = True) -> Iterator[None]:
        """While this is entered the old contents may be found, or the new."""
        if self.is_new and not is_last and not self.keys():
            # A new archive is committed once it has arrays, or is complete.
            yield
            return
        self.is_new = False
        count = len(self.contents)
        self.contents.append(self.model.contents())
        self.recording.mark(count - 1, count)
        yield
        self.recording.mark(count)

    def array(self) -> np.ndarray:
        chance = self.rng.random()
        if chance < 0.04:
            return large_array(self.rng)
        if chance < 0.08 and self.has_archive_inside:
            return whole_archive(self.rng)
        return some_array(self.rng)

    def edit(self, w: npzkit.NpzWriter) -> None:
        """Change one thing."""
        edits: list[Callable[[npzkit.NpzWriter], None]] = [self.add, self.add, self.create]
        edits.append(self.begin if self.created is None else self.fill)
        if self.keys():
            edits += [self.overwrite, self.delete, self.rename, self.set_attrs, self.add_rows]
        self.rng.choice([*edits, self.set_metadata])(w)

    def keys(self) -> list[str]:
        return [key for key, held in self.model.held.items() if held is not None]

    def new_key(self) -> str:
        return next(
            key for key in map("n{}".format, itertools.count()) if key not in self.model.held
        )

    def add(self, w: npzkit.NpzWriter) -> None:
        key, array = self.new_key(), self.array()
        attrs = {"unit": "m", "n": 1} if self.rng.random() < 0.3 else {}
        w.add(key, array, attrs=attrs, compression=self.rng.choice((None, "stored", "deflated")))
        self.model.held[key] = Held(array, attrs)

    def create(self, w: npzkit.NpzWriter) -> None:
        key, count = self.new_key(), self.rng.randint(1, 60)
        array = np.arange(2 * count, dtype="<i4").reshape(count, 2)
        is_deflated = self.rng.random() < 0.5
        method, rows = ("deflated", None) if is_deflated else ("stored", count)
        with w.create(key, (rows, 2), "<i4", compression=method) as dst:
            dst.append(array[: count // 2])
            dst.append(array[count // 2 :])
        self.model.held[key] = Held(array, {})

    def begin(self, w: npzkit.NpzWriter) -> None:
        """Create an array that is filled later, after a commit perhaps."""
        key, array = self.new_key(), np.arange(self.rng.randint(2, 200))
        dst = w.create(key, array.shape, array.dtype, compression="stored")
        self.created = key, dst, array
        self.created[1][: len(array) // 2] = array[: len(array) // 2]
        self.model.held[key] = None

    def fill(self, w: npzkit.NpzWriter) -> None:
        key, dst, array = self.created
        with dst:
            dst[len(array) // 2 :] = array[len(array) // 2 :]
        self.model.held[key] = Held(array, {})
        self.created = None

    def overwrite(self, w: npzkit.NpzWriter) -> None:
        key, array = self.rng.choice(self.keys()), self.array()
        w.add(key, array, overwrite=True)
        self.model.held[key] = Held(array, {})

    def add_rows(self, w: npzkit.NpzWriter) -> None:
        key = self.rng.choice(self.keys())
        array, attrs = self.model.held[key]
        if array.ndim:
            w.append(key, array[:2])
            longer = np.concatenate([array, array[:2]]).astype(array.dtype)
            self.model.held[key] = Held(longer, attrs)

    def delete(self, w: npzkit.NpzWriter) -> None:
        key = self.rng.choice(self.keys())
        del w[key], self.model.held[key]

    def rename(self, w: npzkit.NpzWriter) -> None:
        old, new = self.rng.choice(self.keys()), self.new_key()
        w.rename(old, new)
        held = self.model.held.items()
        self.model.held = {new if key == old else key: value for key, value in held}

    def set_attrs(self, w: npzkit.NpzWriter) -> None:
        key = self.rng.choice(self.keys())
        array, attrs = self.model.held[key]
        value = self.rng.randrange(1000)
        w.attrs(key)["edited"] = value
        self.model.held[key] = Held(array, {**attrs, "edited": value})

    def set_metadata(self, w: npzkit.NpzWriter) -> None:
        w.metadata["step"] = self.model.metadata["step"] = self.rng.randrange(1000)

    def write(self, w: npzkit.NpzWriter) -> None:
        """Some commits, and an end: another commit, with a repack perhaps, or none."""
        with w:
            self.commit_some(w)

    def commit_some(self, w: npzkit.NpzWriter) -> None:
        for _ in range(self.rng.randint(0, 3)):
            self.edit_some(w)
            with self.committing(is_last=False):
                w.commit()
        self.edit_some(w)
        if len(self.contents) > 1 and self.rng.random() < 0.2:
            w.abort()
            return
        if self.created is not None:
            self.fill(w)
        with self.committing():
            w.close()

    def edit_some(self, w: npzkit.NpzWriter) -> None:
        for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3, 3))):
            self.edit(w)


@contextlib.contextmanager
def pieces(size: int | None) -> Iterator[None]:
    """Have everything written in calls of about `size` bytes, as large arrays are."""
    with pytest.MonkeyPatch.context() as patched:
        if size is not None:
            patched.setattr(path_sink, "_BUFFER_SIZE", size)
            patched.setattr(path_sink, "_DIRECT_SIZE", size)
            patched.setattr(disk, "_RESERVE_SIZE", size)
            patched.setattr(zip_writer, "_PARALLEL_SIZE", 4 * size)
            patched.setattr(zip_writer, "_BLOCK_SIZE", 4096)
        yield


class Played(NamedTuple):
    """Work that was done and recorded."""

    name: str
    path: str
    recording: Recording
    work: Work
    durable: bool

    def states(self, rng: random.Random, limit: int = POWER_LIMIT) -> Iterator[State]:
        yield from self.killed()
        yield from self.without_power(rng, limit)

    def killed(self) -> Iterator[State]:
        return killed_states(self.recording, self.path)

    def without_power(
        self, rng: random.Random, limit: int = POWER_LIMIT, tears: crash.Tears = crash.cuts
    ) -> Iterator[State]:
        """Yield what a loss of power leaves, if the work waits for the disk."""
        if self.durable:
            yield from power_loss_states(self.recording, self.path, rng, limit, tears)


def play(seed: int, folder: Path) -> Played:
    """Do what a seed says to an archive, and record it."""
    rng = random.Random(seed)
    start = of_many if seed % 60 == MANY_SEED else STARTS[seed % len(STARTS)]
    path = folder / "a.npz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TornArchiveWarning)
        model = start(rng, path)
        kinds = ["append"] * 5 + ["new"] + ["save", "repack"] * (start is not absent)
        # An empty archive in a file object is given up first: see the test of that.
        kinds += ["file object"] * (start not in (absent, empty))
        kind = "exclusive" if start is absent and rng.random() < 0.4 else rng.choice(kinds)
        durable = kind != "file object" and rng.random() < 0.6
        size = rng.choice((None, None, 1, 256))
        has_inside = start is with_archive_inside or rng.random() < 0.2
        name = f"seed {seed}: {start.__name__}, {kind}, {durable=}, pieces of {size}"
        with pieces(size), recorded(folder) as recorder:
            if kind == "file object":
                work = edit_file_object(rng, model, path, has_inside)
            else:
                work = Work(rng, model, recorder, has_inside)
                WAYS[kind](work, path, durable=durable)
    return Played(name, str(path), work.recording, work, durable)


def options(rng: random.Random) -> dict[str, Any]:
    return {
        "compression": rng.choice(("stored", "deflated")),
        "chunk_size": 4096,
        "threads": rng.choice((1, 2)),
        "auto_repack": rng.random() < 0.5,
    }


def append(work: Work, path: Path, *, durable: bool) -> None:
    work.is_new = not path.exists() or path.read_bytes().startswith(b"PK\5\6")
    w = npzkit.NpzWriter(path, "a", durable=durable, **options(work.rng))
    work.write(w)


def write_new(work: Work, path: Path, *, durable: bool, mode: str = "w") -> None:
    w = npzkit.NpzWriter(path, mode, durable=durable, **options(work.rng))
    work.model, work.is_new = Model(), True
    work.write(w)


def write_exclusive(work: Work, path: Path, *, durable: bool) -> None:
    write_new(work, path, durable=durable, mode="x")


def save_over(work: Work, path: Path, *, durable: bool) -> None:
    arrays = some_arrays(work.rng)
    work.model = Model(arrays)
    with work.committing():
        npzkit.save(path, arrays, durable=durable)


def repack(work: Work, path: Path, *, durable: bool) -> None:
    with work.committing():
        npzkit.repack(path, compression=work.rng.choice((None, "deflated")), durable=durable)


WAYS = {
    "append": append,
    "new": write_new,
    "exclusive": write_exclusive,
    "save": save_over,
    "repack": repack,
}


def edit_file_object(rng: random.Random, model: Model, path: Path, has_inside: bool) -> Work:
    """Append to a file object; a plain one is sealed last, and this one passes for plain."""
    file = RecordedFile(path.read_bytes(), str(path))
    work = Work(rng, model, file, has_inside)
    plain_io = types.SimpleNamespace(**{**vars(io), "BytesIO": RecordedFile})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sink, "io", plain_io)
        work.write(npzkit.NpzWriter(file, "a", **options(rng)))
    path.write_bytes(file.getvalue())
    return work


def last_content(played: Played) -> bytes | None:
    """What is at the path when all calls were made, by the recording alone."""
    *_, last = killed_states(played.recording, played.path)
    return last.content


# -- one layer writes -----------------------------------------------------------

WRITING_CALLS = {
    "write", "writev", "pwrite", "pwritev", "ftruncate", "truncate", "replace", "rename", "renames",
    "link", "symlink", "unlink", "remove", "fsync", "fdatasync", "sync", "posix_fallocate",
    "sendfile", "copy_file_range", "splice",
}  # fmt: skip
OPENING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}
WRITING_METHODS = {"write_bytes", "write_text", "touch", "hardlink_to", "symlink_to", "tofile"}
MAPS = {"mmap.mmap", "np.memmap"}
WRITING_MODULES = {"shutil", "tempfile", "posix", "nt"}
EXCEPTIONS = {
    ("files.any_sink", "open"): "a device or a pipe, where nothing is kept",
    ("drop_ins.numpy_memmap", "open"): "numpy's open_memmap: a new .npy, which is no archive",
    ("drop_ins.numpy_memmap", "np.memmap"): "the same",
    ("files.locking", "open"): "to lock it: nothing is written by that descriptor",
    ("writing.filled_array", "mmap.mmap"): "a map of an array that is not listed yet",
    ("reading.maps", "mmap.mmap"): "a map; to be written to on request alone, mode 'r+'",
    ("files.file_objects", "tempfile"): "a copy of a pipe, which is removed afterwards",
    ("maintenance.repair", "tempfile"): "a copy that is repaired to another file, likewise",
    ("stores.fsspec_store", "remove"): "the part of a copy that fsspec keeps of a store",
    ("xarray.writing", "tempfile"): "a folder for blocks that are put in order, removed afterwards",
}
"""What writes, or could, without the layer. No commit depends on them."""


def writes_of(tree: ast.AST) -> Iterator[str]:
    """Yield what in a module writes to files, or opens them for it."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            module = getattr(node, "module", None)
            yield from {*names, module} & WRITING_MODULES
            yield from (alias.asname for alias in node.names if alias.name == "os" and alias.asname)
            if module == "os":
                yield from {*names} & (WRITING_CALLS | OPENING_FLAGS)
        elif isinstance(node, ast.Attribute):
            is_os = isinstance(node.value, ast.Name) and node.value.id == "os"
            if node.attr in WRITING_METHODS | (WRITING_CALLS | OPENING_FLAGS if is_os else set()):
                yield node.attr
        elif isinstance(node, ast.ClassDef):
            yield from {ast.unparse(base) for base in node.bases} & MAPS
        elif isinstance(node, ast.Call):
            if getattr(node.func, "attr", "") in ("mmap", "memmap"):
                yield from {ast.unparse(node.func)} & MAPS
            if opens_for_writing(node):
                yield "open"


def opens_for_writing(call: ast.Call) -> bool:
    """Whether this is a call of what opens a file whose mode is another than for reading."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name not in ("open", "fdopen", "FileIO", "Descriptor", "FileLock"):
        return False
    modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "os":
        # Its flags are looked for by their names.
        modes = modes if name == "fdopen" else []
    return any(getattr(mode, "value", None) not in ("r", "rb") for mode in modes)


@pytest.mark.slow
def test_all_writing_goes_through_one_layer():
    """No module but npzkit.files.disk changes a file, apart from maps, a device, and numpy's open_memmap."""
    root = Path(npzkit.__file__).parent
    found = set()
    for name, path in MODULES.items():
        # What is written beside archives, other formats and pictures, is not committed.
        if name != "files.disk" and not name.startswith(("cli.", "conversion.")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= {(name, call) for call in writes_of(tree)}
    assert found == set(EXCEPTIONS)
    own = ast.parse((root / "files" / "disk.py").read_text(encoding="utf-8"))
    recorded_calls = WRITING_CALLS & set(crash.RECORDED)
    assert {call for call in writes_of(own) if call in WRITING_CALLS} == recorded_calls


# -- the states -----------------------------------------------------------------


KINDS = {start.__name__ for start in STARTS} | set(WAYS) | {"file object", "of_many"}
"""What each survey has tried: what there was at first, and what was done to it."""


class Survey(NamedTuple):
    """What was found in all states."""

    checker: Checker
    kinds: Counter[str]
    mismatches: list[str]
    seconds: float


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """Do work seed after seed, until there were enough distinct states."""
    checker, kinds, mismatches = Checker(), Counter(), []
    started = time.monotonic()
    for seed in itertools.count(int(ONLY_SEED or 0)):
        folder = tmp_path_factory.mktemp("crash")
        played = play(seed, folder)
        kinds.update(played.name.split(": ")[1].split(", ")[:3])
        real = Path(played.path).read_bytes() if os.path.exists(played.path) else None
        if last_content(played) != real:
            mismatches.append(played.name)
        with pytest.MonkeyPatch.context() as patched:
            if seed % 2:
                # Read as archives of many members are.
                patched.setattr("npzkit.zip.directory._COLUMNS_COUNT", 1)
            rng = random.Random(seed)
            for sample, states in (
                (checker.sample, played.killed()),
                # Others need what a disk promises: a sector is written whole, or not at all.
                (checker.lost, played.without_power(rng, tears=crash.sector_cuts)),
                (None, played.without_power(rng)),
            ):
                # What other readers take for the end of such an archive has a test of its own.
                shown = None if played.work.has_archive_inside else sample
                some = itertools.islice(states, seed % STRIDE, None, STRIDE)
                checker.check(played.name, some, played.work.contents, shown)
        shutil.rmtree(folder)
        if ONLY_SEED or (checker.count >= STATE_COUNT and set(kinds) >= KINDS):
            break
    return Survey(checker, kinds, mismatches, time.monotonic() - started)


def test_every_state_is_old_or_new(survey, capsys):
    """Whatever a crash leaves, npzkit reads the contents before the commit or after it, and no others."""
    checker = survey.checker
    with capsys.disabled():
        found = ", ".join(f"{count:,} {kind}" for kind, count in checker.found.items())
        print(
            f"\n{checker.count:,} states in {survey.seconds:.0f} s: {found}; {dict(survey.kinds)}"
        )
    assert not checker.violations, "\n".join(checker.violations[:20])
    if not ONLY_SEED:
        assert checker.count >= STATE_COUNT


def test_the_recording_is_what_happened(survey):
    """A recording, replayed in memory, ends with the very bytes that are in the file."""
    assert not survey.mismatches


# -- other readers --------------------------------------------------------------


def by_np_load(content: bytes) -> dict[str, tuple]:
    with np.load(io.BytesIO(content)) as npz:
        return {key: plain(npz[key]) for key in npz.files}


def by_python(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def arrays_of(contents: Contents) -> dict[str, tuple]:
    return {key: plain(array) for key, array in contents.arrays.items()}


def members_of(contents: Contents) -> dict[str, bytes]:
    return {f"{key}.npy": npy(array) for key, array in contents.arrays.items()}


def judge(found: Any, choices: list[Any]) -> str:
    """Say which of the contents were found; a reader that knows no attributes may not see which."""
    if found not in choices:
        return "wrong"
    if len(choices) == 1:
        return "committed"
    return "both" if choices[0] == choices[1] else ("old", "new")[choices.index(found)]


def read_sample(
    sample: list[tuple[bytes, list[Contents]]],
    read: Callable[[bytes], Any],
    expected: Callable[[Contents], Any],
) -> tuple[Counter[str], list[tuple[bytes, str]]]:
    """Show states to a reader; return counts, and each state with what came of it."""
    outcomes = []
    for content, choices in sample:
        try:
            found = read(content)
        except Exception:
            outcomes.append((content, "error"))
        else:
            outcomes.append((content, judge(found, [expected(choice) for choice in choices])))
    return Counter(outcome for _, outcome in outcomes), outcomes


@pytest.mark.parametrize(
    ("read", "expected"), [(by_np_load, arrays_of), (by_python, members_of)], ids=["np", "zipfile"]
)
def test_python_readers_see_old_or_new_or_fail(survey, capsys, read, expected):
    """np.load and zipfile give old data or new or an error; of killed work up to 65,535 bytes behind, no error."""
    lost, _ = read_sample(survey.checker.lost, read, expected)
    assert "wrong" not in lost, lost
    counts, outcomes = read_sample(survey.checker.sample, read, expected)
    near = [outcome for content, outcome in outcomes if is_near(content)]
    with capsys.disabled():
        near_ones = dict(Counter(near))
        print(f"\n{read.__name__}: {dict(counts)}; near: {near_ones}; power: {dict(lost)}")
    assert "wrong" not in counts, counts
    assert "error" not in near, Counter(near)
    assert near


def is_near(content: bytes) -> bool:
    """Whether the last commit's end record is where any reader searches."""
    offset, _ = own_end(content)
    return len(content) - offset - 22 <= LOADABLE_SIZE


def by_unzip(content: bytes, path: Path) -> tuple[list[str], bytes]:
    """Return the members that `unzip -t` finds sound, and what `unzip -p` makes of them."""
    path.write_bytes(content)
    # 1: there are bytes behind the end, or no members, and all else is well.
    tested = subprocess.run(["unzip", "-t", path], capture_output=True, text=True, check=False)
    if tested.returncode == 1 and "zipfile is empty" in tested.stderr + tested.stdout:
        return [], b""
    assert tested.returncode in (0, 1), tested.stderr
    lines = [line.split() for line in tested.stdout.splitlines() if "testing:" in line]
    assert all(line[-1] == "OK" for line in lines)
    data = subprocess.run(["unzip", "-p", path], capture_output=True, check=False).stdout
    return [line[1] for line in lines], data


def expected_of_unzip(contents: Contents) -> tuple[list[str], bytes]:
    members = members_of(contents)
    return list(members), b"".join(members.values())


needs_unzip = pytest.mark.skipif(not shutil.which("unzip"), reason="unzip is not installed")


@needs_unzip
def test_unzip_sees_old_or_new_or_fails(survey, capsys, tmp_path):
    """`unzip -t` and `unzip -p` find old members or new and whole ones, or end with an error."""
    sample = survey.checker.sample[:: max(len(survey.checker.sample) // 300, 1)]
    read = functools.partial(by_unzip, path=tmp_path / "a.zip")
    counts, outcomes = read_sample(sample, read, expected_of_unzip)
    # Where all members were removed it looks for one more, and says that the file is corrupt.
    near = Counter(
        outcome
        for (content, choices), (_, outcome) in zip(sample, outcomes, strict=True)
        if is_near(content) and all(choice.arrays for choice in choices)
    )
    with capsys.disabled():
        print(f"\nunzip: {dict(counts)}; near: {dict(near)}")
    assert "wrong" not in counts, counts
    assert "error" not in near, near


# -- other readers, while an append is under way --------------------------------------


def new_key_and_array(work: Work, size: int) -> tuple[str, np.ndarray]:
    """Return a key, and an array of some bytes which no compression makes much smaller."""
    key, make = work.new_key(), np.random.default_rng(len(work.model.held))
    array = make.integers(0, 256, size).astype("u1")
    work.model.held[key] = Held(array, {})
    return key, array


def add_stored(w: npzkit.NpzWriter, work: Work) -> None:
    w.add(*new_key_and_array(work, 100_000), compression="stored")
    w.add(*new_key_and_array(work, 9_000), compression="stored")


def add_deflated(w: npzkit.NpzWriter, work: Work) -> None:
    w.add(*new_key_and_array(work, 100_000), compression="deflated")
    w.add(*new_key_and_array(work, 9_000), compression="deflated")


def create_some(w: npzkit.NpzWriter, work: Work) -> None:
    for method, size in (("stored", 100_000), ("deflated", 30_000), ("stored", 300)):
        key, array = new_key_and_array(work, size)
        with w.create(key, (None,), "u1", compression=method) as dst:
            dst.append(array[: size // 2])
            dst.append(array[size // 2 :])


def fill_some(w: npzkit.NpzWriter, work: Work) -> None:
    for size in (300, 100_000):
        key, array = new_key_and_array(work, size)
        with w.create(key, array.shape, array.dtype, compression="stored") as dst:
            dst[:] = array


def replace_one(w: npzkit.NpzWriter, work: Work) -> None:
    key = work.keys()[0]
    _, array = new_key_and_array(work, 100_000)
    del work.model.held[work.keys()[-1]]
    w.add(key, array, overwrite=True)
    work.model.held[key] = Held(array, {})


def delete_one(w: npzkit.NpzWriter, work: Work) -> None:
    key = work.keys()[0]
    del w[key], work.model.held[key]


EDITS = {
    "stored": [add_stored],
    "deflated": [add_deflated],
    "created": [create_some],
    "filled": [fill_some],
    "replaced": [replace_one],
    "deleted": [delete_one],
    "several commits": [add_stored, delete_one, fill_some, replace_one],
    "after a killed one": [add_stored],
    "moved twice": [add_stored, add_stored],
}


def play_edits(folder: Path, name: str, *, durable: bool, before: bytes | None = None) -> Played:
    """Append to an archive of two arrays, each edit with a commit of its own, and record it."""
    path, arrays = folder / "a.npz", {"a": np.arange(40.0), "b": np.array(["x", "yz"])}
    npzkit.save(path, arrays)
    if name == "after a killed one":
        first = play_edits(folder, "filled", durable=False)
        npzkit.save(path, arrays)
        torn = [content for _, content in killed_states(first.recording, first.path)]
        path.write_bytes(torn[len(torn) // 2])
        assert not ends_whole(path.read_bytes())
    with pytest.MonkeyPatch.context() as patched, recorded(folder) as recorder:
        if name == "moved twice":
            patched.setattr(path_sink, "_BUFFER_SIZE", 256)
        work = Work(random.Random(0), Model(arrays), recorder, has_inside=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornArchiveWarning)
            w = npzkit.NpzWriter(path, "a", durable=durable, auto_repack=False, threads=1)
        with w:
            for edit in EDITS[name]:
                edit(w, work)
                with work.committing():
                    w.commit()
    return Played(name, str(path), recorder, work, durable)


def far_copies(played: Played) -> list[int]:
    """Return at which calls a far copy is written."""
    calls = enumerate(played.recording.calls)
    return [number for number, call in calls if call.data.endswith(b"was not finished")]


def misread(
    states: Iterable[tuple[crash.Call, State]], contents: list[Contents | None]
) -> Iterator[tuple[crash.Call, str]]:
    """Yield each state in which np.load finds neither what was there nor what is to be there."""
    results: dict[bytes, Any] = {}
    for call, (allowed, content) in states:
        digest = hashlib.blake2b(content, digest_size=12).digest()
        if digest not in results:
            try:
                results[digest] = by_np_load(content)
            except Exception as error:
                results[digest] = f"{type(error).__name__}: {error}"
        found = results[digest]
        if found not in [arrays_of(contents[index]) for index in allowed]:
            yield call, found if isinstance(found, str) else f"{list(found)} at {allowed}"


@pytest.mark.slow
@each_row("durable", [False, True])
@each_row("name", EDITS)
def test_np_load_opens_what_a_killed_append_leaves(tmp_path, name, durable):
    """Killed anywhere, writes being torn between pages alone, an append leaves a file in which np.load finds old or new arrays."""
    played = play_edits(tmp_path, name, durable=durable)
    if name == "moved twice":
        assert len(far_copies(played)) > 4
    states = [*killed_at_calls(played.recording, played.path, page_cuts)]
    assert len(states) > (2 if name == "deleted" else 9)
    assert [*misread(states, played.work.contents)] == []
    checker = Checker()
    checker.check(name, (state for _, state in states), played.work.contents)
    assert not checker.violations


@pytest.mark.slow
@needs_unzip
@each_row("name", EDITS)
def test_unzip_opens_what_a_killed_append_leaves(tmp_path, name):
    """Killed anywhere, an append leaves a file in which unzip finds old or new members."""
    played = play_edits(tmp_path, name, durable=False)
    states = [*killed_at_calls(played.recording, played.path, page_cuts)]
    contents = {state.content: state.allowed for _, state in states}
    sample = [
        (content, [played.work.contents[index] for index in allowed])
        for content, allowed in [*contents.items()][:: extent(5, 1)]
    ]
    read = functools.partial(by_unzip, path=tmp_path / "a.zip")
    counts, _ = read_sample(sample, read, expected_of_unzip)
    assert not {"wrong", "error"} & {*counts}, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stored", "moved twice"])
def test_a_far_copy_of_many_members(tmp_path, name):
    """A far copy longer than a page may be written in part, if a process is killed then: only in these windows, np.load finds no end."""
    path = tmp_path / "a.npz"
    arrays = {f"k{number}": np.uint8(number) for number in range(extent(100, 200))}
    npzkit.save(path, arrays)
    with pytest.MonkeyPatch.context() as patched, recorded(tmp_path) as recorder:
        if name == "moved twice":
            patched.setattr(path_sink, "_BUFFER_SIZE", 256)
        work = Work(random.Random(0), Model(arrays), recorder, has_inside=False)
        with npzkit.NpzWriter(path, "a", auto_repack=False, threads=1) as w:
            w.add(*new_key_and_array(work, 200_000), compression="stored")
            with work.committing():
                w.commit()
    played = Played(name, str(path), recorder, work, durable=False)
    states = [*killed_at_calls(recorder, str(path), page_cuts)]
    failed = Counter(call for call, _ in misread(states, work.contents))
    copies = [recorder.calls[number] for number in far_copies(played)]
    assert all(len(copy.data) > crash.PAGE for copy in copies)
    # Near the end before, it has no seal until it is whole.
    assert set(failed) <= set(copies)
    assert 1 <= len(failed) <= 2
    checker = Checker()
    checker.check(name, (state for _, state in states), work.contents)
    assert not checker.violations


@pytest.mark.slow
def test_killed_appends_do_not_make_a_file_grow(tmp_path):
    """The next writer cuts off what a killed append left, so ten of them leave a file as large as the largest does."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(40.0)})
    sizes = []
    for _ in range(10):
        with recorded(tmp_path) as recorder, warnings.catch_warnings():
            warnings.simplefilter("ignore", TornArchiveWarning)
            with npzkit.NpzWriter(path, "a", auto_repack=False, threads=1) as w:
                w["b"] = np.arange(300_000)
        states = killed_at_calls(recorder, str(path), lambda call: [])
        torn = max((state.content for _, state in states), key=len)
        path.write_bytes(torn)
        sizes.append(len(torn))
        assert list(by_np_load(torn)) == ["a"]
    assert sizes == sizes[:1] * 10
    assert sizes[0] > 2_000_000


def overwrite(path: Path, content: bytes) -> None:
    """Make a file what it is at another instant, for those who have it open too."""
    with open(path, "r+b") as file:
        file.write(content)
        file.truncate()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows does not cut off a file that is mapped")
@each_row("name", EDITS)
def test_who_opened_the_file_reads_right_while_it_is_appended_to(tmp_path, name):
    """Between any two instants of appends, and of the cut behind a killed one, npzkit reads what was there or StaleArchiveError, and np.load and maps what was there."""
    played = play_edits(tmp_path, name, durable=False)
    states = [state for _, state in killed_at_calls(played.recording, played.path, page_cuts)]
    contents, rng = played.work.contents, random.Random(name)
    path, outcomes = tmp_path / "live.npz", Counter()
    path.touch()
    for _ in range(amount(15, 1200)):
        first, later = sorted(rng.choices(range(len(states)), k=2))
        overwrite(path, states[first].content)
        choices = [arrays_of(contents[index]) for index in states[first].allowed]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornArchiveWarning)
            ours = npzkit.open(path)
        with ours, np.load(path) as theirs:
            mapped = {key: ours.memmap(key) for key in ours if not ours.info(key).why_not_mappable}
            overwrite(path, states[later].content)
            assert {key: plain(theirs[key]) for key in theirs.files} in choices
            shown = {key: plain(np.asarray(array)) for key, array in mapped.items()}
            assert any(choice == {**choice, **shown} for choice in choices)
            try:
                found = {key: plain(ours[key]) for key in ours}
            except StaleArchiveError:
                outcomes["stale"] += 1
            else:
                assert found in choices
                outcomes["right"] += 1
            del mapped
    assert outcomes["right"] > outcomes["stale"]


def misread_without_power(played: Played, limit: int = 200) -> Counter[str]:
    """Return what np.load says where a loss of power follows the sync of a far copy, and no other is being written."""
    calls = played.recording.calls
    recording = Recording()
    recording.names, recording.contents = played.recording.names, played.recording.contents
    allowed: tuple[int, ...] = ()
    copies = far_copies(played)
    unsafe = written_far(calls, copies)
    for number, call in enumerate(calls):
        # Without a mark no state counts.
        if number in copies or call.kind == "mark":
            recording.mark()
        if call.kind == "mark":
            allowed = call.allowed
        else:
            recording.calls.append(call)
        if number >= min(unsafe) and number not in unsafe:
            recording.mark(*allowed)
    states = power_loss_states(recording, played.path, random.Random(0), limit)
    none = crash.Call("sync")
    return Counter(
        what for _, what in misread(((none, one) for one in states), played.work.contents)
    )


def written_far(calls: list[crash.Call], copies: list[int]) -> set[int]:
    """Return behind which calls a far copy, its seal and their sync are not complete."""
    unsafe = set()
    for copy in copies:
        last = copy + (calls[copy + 1].data == b"PK\5\6")
        last += calls[last + 1].kind == "sync"
        unsafe |= {*range(copy, last)}
    return unsafe


@pytest.mark.slow
@each_row("name", [name for name in EDITS if name != "deleted"])
def test_np_load_opens_what_a_loss_of_power_leaves(tmp_path, name):
    """With durable=True, from the sync of a far copy on, a loss of power leaves a file that np.load reads, old or new."""
    played = play_edits(tmp_path, name, durable=True)
    assert misread_without_power(played, amount(8, 400)) == Counter()


@pytest.mark.slow
def test_the_end_of_a_far_copy_lies_in_one_sector(tmp_path):
    """Wherever a far copy begins, a loss of power takes all of its end record or nothing."""
    path = tmp_path / "a.npz"
    for length in range(0, crash.SECTOR, extent(7, 1)):
        npzkit.save(path, {"a": np.arange(3)}, metadata={"note": "n" * length})
        with recorded(tmp_path) as recorder, npzkit.NpzWriter(path, "a", durable=True) as w:
            w.create("b", (3,), "u1").close()
        number = next(i for i, call in enumerate(recorder.calls) if b"an append" in call.data)
        seal = recorder.calls[number + 1]
        assert seal.data == b"PK\5\6"
        assert seal.offset // crash.SECTOR == (seal.offset + 21) // crash.SECTOR, length


@contextlib.contextmanager
def refusing_cuts() -> Iterator[list[int]]:
    """Have the system cut off nothing, as Windows does what is mapped; yields the sizes."""
    refused: list[int] = []
    real = disk.File.truncate

    def truncate(self: disk.File, size: int) -> None:
        if size < self.size:
            refused.append(size)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        real(self, size)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "RENAMES_OPEN_FILES", False)
        patched.setattr(disk.File, "truncate", truncate)
        yield refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "durable"),
    [("stored", False), ("stored", True), ("moved twice", False),
     pytest.param("deflated", False, marks=needs_deep),
     pytest.param("deflated", True, marks=needs_deep),
     pytest.param("moved twice", True, marks=needs_deep)],
)  # fmt: skip
def test_a_cut_that_the_system_refuses(tmp_path, name, durable):
    """Where nothing can be cut off, the commit goes on behind the far copy and is sealed: any crash leaves old or new."""
    with refusing_cuts() as refused:
        played = play_edits(tmp_path, name, durable=durable)
    assert len(refused) == len(EDITS[name])
    *_, seal, mark = [call for call in played.recording.calls if call.kind == "write"]
    assert (seal.data, len(mark.data)) == (b"PK\5\6", SLOT_SIZE)
    path, newest = Path(played.path), played.work.contents[-1]
    assert found_strictly(path) == newest[:2]
    assert npzkit.verify(path).ok
    states = [*killed_at_calls(played.recording, played.path, page_cuts)]
    assert [*misread(states, played.work.contents)] == []
    checker = checked(played, extent(4, 1), amount(5, 400))
    assert not checker.violations, checker.violations[:5]
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w["last"] = np.arange(3)
    assert found_strictly(path)[0][:-1] == newest.members


# -- what has no mark was not committed ------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("part", ["before it", "in it"])
@pytest.mark.parametrize("name", ["small", "large"])
def test_damage_to_a_killed_append_is_no_commit(tmp_path, name, part):
    """Killed before its commit, and one byte being damaged anywhere, repair never makes an append the contents."""
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    npzkit.save(path, {"a": np.arange(9.0)}, metadata={"step": 0})
    first = path.read_bytes()
    with pytest.MonkeyPatch.context() as patched, recorded(tmp_path) as recorder:
        if name == "large":
            patched.setattr(path_sink, "_DIRECT_SIZE", 1)
        with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
            w.add("a", np.zeros(9), overwrite=True)
            w["b"] = np.arange(100)
            w.metadata["step"] = 1
    calls = [call for call in recorder.calls if call.kind in ("write", "truncate")]
    # The last one before the seal, or the cut.
    torn = replay(first, calls[: -2 if name == "small" else -3])
    rng, outcomes = random.Random(0), Counter()
    places = range(len(first)) if part == "before it" else range(len(first), len(torn))
    mark = range(slot := find_intent(len(first)) + INTENT_SIZE - SLOT_SIZE, slot + SLOT_SIZE)
    for place in places[:: extent(23, 1)]:
        if place in mark:
            # What is not zero there says that the append was complete.
            continue
        damaged = bytearray(torn)
        damaged[place] ^= 1 << rng.randrange(8)
        for target in (output, None):
            path.write_bytes(damaged)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TornArchiveWarning)
                try:
                    npzkit.repair(path, target, overwrite=True)
                except NpzkitError as error:
                    # It changes nothing then.
                    assert path.read_bytes() == damaged
                    outcomes[type(error).__name__] += 1
                    continue
                with npzkit.open(target or path) as npz:
                    assert "b" not in npz, place
                    try:
                        found = npz["a"].tolist() if "a" in npz else None
                    except NpzkitError:
                        found = "damaged"
            assert found in (None, "damaged", list(range(9))), place
            if target is None and part == "in it":
                assert path.read_bytes() == first, place
            outcomes["old" if isinstance(found, list) else str(found)] += 1
    assert outcomes["old"] > len(places[:: extent(23, 1)]) / 2


@pytest.mark.slow
def test_damage_to_an_append_that_was_cut_off_keeps_it(tmp_path, monkeypatch):
    """Killed behind the cut that commits, and one byte being damaged, repair keeps the append, or says what it drops."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(9.0)}, metadata={"step": 0})
    first = path.read_bytes()
    monkeypatch.setattr(path_sink, "_DIRECT_SIZE", 1)
    with recorded(tmp_path) as recorder, npzkit.NpzWriter(path, "a") as w:
        w["b"] = np.arange(100)
        w.metadata["step"] = 1
    calls = [call for call in recorder.calls if call.kind in ("write", "truncate")]
    assert calls[-3].kind == "truncate"
    cut, kept = replay(first, calls[:-2]), 0
    for place in range(len(first), len(cut), extent(17, 1)):
        damaged = bytearray(cut)
        damaged[place] ^= 64
        path.write_bytes(damaged)
        try:
            report = npzkit.repair(path)
        except NpzkitError:
            assert path.read_bytes() == damaged
            continue
        with npzkit.open(path) as npz:
            assert "a" in npz, place
            assert ("b" in npz) == (report.cut_size == 0), place
            kept += "b" in npz
    assert kept > 0.9 * len(range(len(first), len(cut), extent(17, 1)))


def test_an_archive_inside_an_array_misleads_zipfile(tmp_path):
    """Cut where an array that holds an archive ends, zipfile shows that one; npzkit the last commit."""
    path, inner = tmp_path / "a.npz", io.BytesIO()
    np.savez(inner, inner=np.arange(3))
    npzkit.save(path, {"a": np.arange(5)})
    old = path.read_bytes()
    with npzkit.NpzWriter(path, "a") as w:
        w["archive"] = np.frombuffer(inner.getvalue(), "u1")
    new = path.read_bytes()
    torn = unfinished(new, new.index(inner.getvalue()) + len(inner.getvalue()))
    assert list(by_python(torn)) == ["inner.npy"]
    assert list(by_python(old)) == ["a.npy"]
    with pytest.warns(TornArchiveWarning), npzkit.open(torn) as npz:
        assert list(npz) == ["a"]


@pytest.mark.parametrize("step", [101, 512])
def test_an_archive_inside_an_array_whose_append_lost_its_beginning(tmp_path, step):
    """It is read as the older commit; a writer that would cut off what may be another archive refuses."""
    path, inner = tmp_path / "a.npz", io.BytesIO()
    np.savez(inner, inner=np.arange(300))
    npzkit.save(path, {"a": np.arange(5)})
    old = path.read_bytes()
    with npzkit.NpzWriter(path, "a") as w:
        w["archive"] = np.frombuffer(inner.getvalue(), "u1")
    torn = unfinished(path.read_bytes())
    stop = torn.index(inner.getvalue()) + len(inner.getvalue())
    outcomes = Counter()
    for size in range(len(old) + INTENT_SIZE, stop, step):
        content = old + bytes(size - len(old)) + torn[size:stop]
        with pytest.warns(TornArchiveWarning), npzkit.open(content) as npz:
            assert list(npz) == ["a"]
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornArchiveWarning)
            try:
                npzkit.NpzWriter(path, "a").close()
            except AmbiguousArchiveError:
                outcomes["refused"] += 1
                assert path.read_bytes() == content
            else:
                # What is left of the array leads to no directory.
                outcomes["cut off"] += 1
                assert not content[size:].count(b"PK\1\2")
    assert outcomes["refused"] > 2


# -- what is done with a torn file ----------------------------------------------


def test_a_torn_file_is_opened_and_appended_to(survey, tmp_path):
    """The file is read by its path as its bytes are, and the next append keeps what was committed."""
    path = tmp_path / "a.npz"
    for content, choices in (survey.checker.sample + survey.checker.lost)[::10]:
        path.write_bytes(content)
        is_torn = not ends_whole(content)
        expected = [choice[:2] for choice in choices]
        with pytest.warns(TornArchiveWarning) if is_torn else contextlib.nullcontext():
            members, metadata = found_by_npzkit(path)
        assert (members, metadata) in expected
        if is_torn:
            with pytest.raises(ZipFormatError, match="torn"):
                npzkit.open(path, strict=True)
        with pytest.warns(TornArchiveWarning) if is_torn else contextlib.nullcontext():
            w = npzkit.NpzWriter(path, "a")
        w["appended"] = np.arange(4)
        w.close()
        appended = ("appended", *plain(np.arange(4)), {})
        assert found_by_npzkit(path) == ([*members, appended], metadata)


@pytest.mark.slow
def test_a_commit_without_its_directory_is_repaired_and_not_cut_off(tmp_path):
    """If a directory never reached the disk, repair lists what is sound; appends to that are safe."""
    path, large = tmp_path / "a.npz", {"note": "x" * 5000}
    arrays = {"a": np.arange(3)}
    np.savez(path, **arrays)
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.add("n", np.arange(400), attrs=large)
    data = bytearray(path.read_bytes())
    offset, _ = own_end(bytes(data))
    size = int.from_bytes(data[offset + 12 : offset + 16], "little")
    # The end is on disk, and some of another append; the directory is not.
    data[offset - size : offset] = bytes(size)
    path.write_bytes(data + bytes(100))
    with pytest.raises(ZipFormatError, match="repair"):
        npzkit.NpzWriter(path, "a")
    report = npzkit.repair(path)
    assert path.read_bytes().startswith(data)
    # What follows the end may have been a newer commit.
    assert (report.kept, report.uncertain, report.cut_size) == (("a", "n"), ("a", "n"), 0)
    with recorded(tmp_path) as recorder:
        model = Model(arrays)
        model.held["n"] = Held(np.arange(400), large)
        work = Work(random.Random(0), model, recorder, has_inside=False)
        w = npzkit.NpzWriter(path, "a", durable=True, auto_repack=False)
        w.add("m", np.ones(400, "i8"), attrs=large)
        work.model.held["m"] = Held(np.ones(400, "i8"), large)
        with work.committing():
            w.close()
    checker = Checker()
    states = power_loss_states(recorder, str(path), random.Random(0), amount(300, 30_000))
    checker.check("repaired", states, work.contents)
    assert not checker.violations
    assert checker.count > 100


def save_anew(work: Work, path: Path) -> None:
    work.model = Model({"new": np.arange(9)})
    npzkit.save(path, work.model.contents().arrays)


def repack_it(work: Work, path: Path) -> None:
    npzkit.repack(path, compression="deflated")


def append_durably(path: Path, recorder: Recording) -> Work:
    """Commit one more array with durable=True; return the work, to go on with."""
    work = Work(random.Random(0), Model({"a": np.arange(40.0)}), recorder, has_inside=False)
    with npzkit.NpzWriter(path, "a", durable=True) as w:
        work.add(w)
        with work.committing():
            w.close()
    return work


@pytest.mark.parametrize("replace", [save_anew, repack_it])
def test_what_replaces_a_durable_commit_is_on_disk_before(tmp_path, replace):
    """A new file without durable=True takes no durable commit along when power is lost."""
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(40.0))
    with recorded(tmp_path) as recorder:
        work = append_durably(path, recorder)
        replace(work, path)
        work.contents.append(work.model.contents())
        # From here on both may be found: nobody waited for the second.
        recorder.calls.insert(_last_rename(recorder), crash.Call("mark", allowed=(1, 2)))
    states = power_loss_states(recorder, str(path), random.Random(0), POWER_LIMIT)
    checker = Checker()
    checker.check(replace.__name__, states, work.contents)
    assert not checker.violations, checker.violations[:5]


def _last_rename(recording: Recording) -> int:
    return max(i for i, call in enumerate(recording.calls) if call.kind == "rename")


def outcome_of(path: Path, old: Contents, new: Contents) -> str:
    """Say what is found at a path; an older state of an array, or another one, fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TornArchiveWarning)
        try:
            npzkit.open(path).close()
        except ZipFormatError as error:
            return "damaged end" if "repair" in error.remedy else str(error)
        try:
            found = found_by_npzkit(path)
        except (FormatError, ChecksumError):
            return "damaged data"
    assert found in (old[:2], new[:2])
    return "old" if found == old[:2] else "new"


@pytest.mark.slow
def test_what_a_loss_of_power_leaves_of_a_hasty_commit(tmp_path):
    """Behind a durable commit, one that did not wait is old, new, or damaged: repair keeps the first."""
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(40.0))
    with recorded(tmp_path) as recorder:
        work = append_durably(path, recorder)
        recorder.mark(1, 2)
        with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
            for _ in range(3):
                work.add(w)
        work.contents.append(work.model.contents())
    durable, hasty = (contents for contents in work.contents[1:] if contents is not None)
    damaged = tmp_path / "damaged.npz"
    outcomes = Counter()
    states = power_loss_states(recorder, str(path), random.Random(0), amount(70, 400))
    for content in {state.content for state in states if state.allowed == (1, 2)}:
        damaged.write_bytes(content)
        outcomes[outcome_of(damaged, durable, hasty)] += 1
        npzkit.repair(damaged, tmp_path / "output.npz", overwrite=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornArchiveWarning)
            npzkit.repair(damaged)
        for repaired in (damaged, tmp_path / "output.npz"):
            with npzkit.open(repaired) as npz:
                for key, array in durable.arrays.items():
                    assert plain(npz[key]) == plain(array)
    assert set(outcomes) == {"old", "new", "damaged end", "damaged data"}


# -- single cases ---------------------------------------------------------------


def play_one(
    folder: Path, work: Callable[..., None], *, durable: bool = True, **options: bool
) -> Played:
    """Do one thing to an archive that np.savez made, and record it."""
    path, rng = folder / "a.npz", random.Random(0)
    arrays = {"a": np.arange(40.0), "b": np.array(["x", "yz"])}
    np.savez(path, **arrays)
    with recorded(folder, **options) as recorder:
        done = Work(rng, Model(arrays), recorder, has_inside=False)
        work(done, path, durable=durable)
    return Played(work.__name__, str(path), recorder, done, durable)


def append_one(work: Work, path: Path, *, durable: bool) -> None:
    """Two commits: arrays are added, replaced and removed."""
    with npzkit.NpzWriter(path, "a", durable=durable, auto_repack=False) as w:
        work.add(w)
        work.overwrite(w)
        with work.committing():
            w.commit()
        work.delete(w)
        work.add(w)
        with work.committing():
            w.close()


def checked(played: Played, stride: int = 1, limit: int = POWER_LIMIT) -> Checker:
    checker = Checker()
    states = itertools.islice(played.states(random.Random(0), limit), 0, None, stride)
    checker.check(played.name, states, played.work.contents)
    return checker


def is_seen(played: Played, limit: int = POWER_LIMIT) -> bool:
    """Return whether any state is wrong; those behind it are not read."""
    checker = Checker()
    states = itertools.chain(played.without_power(random.Random(0), limit), played.killed())
    while not checker.violations and (some := [*itertools.islice(states, 20)]):
        checker.check(played.name, some, played.work.contents)
    return bool(checker.violations)


@pytest.mark.slow
@pytest.mark.parametrize("work", [append_one, save_over, repack])
@pytest.mark.parametrize("durable", [False, True])
def test_a_write_torn_at_every_byte(tmp_path, monkeypatch, work, durable):
    """Not only near its ends: each write is torn at any of its bytes, and the archive is old or new."""
    monkeypatch.setattr(crash, "NEAR", 1 << 20)
    stride = extent(5, 1) if work is append_one else 1
    checker = checked(play_one(tmp_path, work, durable=durable), stride)
    assert not checker.violations
    assert checker.count > (extent(200, 1000) if work is append_one else 1)


def replaced(played: Played) -> Checker:
    """Check that a loss of power leaves the old archive or the new one, although nothing waits."""
    states = power_loss_states(played.recording, played.path, random.Random(0), POWER_LIMIT)
    either = tuple(range(len(played.work.contents)))
    checker = Checker()
    checker.check(
        played.name, (state._replace(allowed=either) for state in states), played.work.contents
    )
    return checker


@pytest.mark.parametrize("work", [save_over, repack])
def test_one_of_two_archives_is_left(tmp_path, monkeypatch, work):
    """Also if nothing is to wait, a loss of power leaves the old or the new archive, complete."""
    checker = replaced(play_one(tmp_path, work, durable=False))
    assert not checker.violations
    assert checker.count > 1
    monkeypatch.setattr(disk.File, "sync", lambda self: None)
    assert not replaced(play_one(tmp_path, work, durable=False, writes_first=True)).violations
    assert replaced(play_one(tmp_path, work, durable=False)).violations


@pytest.mark.slow
def test_mode_x_without_hard_links(tmp_path, monkeypatch):
    """Where a name can only be claimed by a file, an empty one is the one state more."""

    def refuse(*args):
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "a.npz"
    with recorded(tmp_path) as recorder:
        work = Work(random.Random(0), None, recorder, has_inside=False)
        write_exclusive(work, path, durable=True)
    states = {state.content for state in killed_states(recorder, str(path))}
    assert {None, b""} < states
    checker = Checker()
    kept = (state for state in killed_states(recorder, str(path)) if state.content != b"")
    checker.check("mode x", kept, work.contents)
    assert not checker.violations
    with pytest.raises(ZipFormatError, match="the file is empty"):
        npzkit.open(b"")


def test_a_file_object_is_cut_last(monkeypatch):
    """It counts once what follows it is cut off, for np.load too; the magic and the mark come last."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(3)})
    monkeypatch.setattr(sink, "io", types.SimpleNamespace(**{**vars(io), "BytesIO": RecordedFile}))
    file = RecordedFile(stream.getvalue(), "a.npz")
    flushed = []
    file.flush = lambda: flushed.append(len(file.calls))
    with npzkit.NpzWriter(file, "a") as w:
        w["b"] = np.arange(3)
    first = file.contents[0]
    *others, cut, magic, mark = file.calls
    assert (cut.kind, cut.offset) == ("truncate", len(file.getvalue()))
    assert magic.data == b"NPZX"
    slot = find_intent(len(first)) + INTENT_SIZE - SLOT_SIZE
    assert (mark.offset, len(mark.data)) == (slot, SLOT_SIZE)
    assert flushed[-2:] == [len(others), len(file.calls)]
    for count in range(len(file.calls) + 1):
        content = replay(first, file.calls[:count])
        is_torn = count <= len(others) and content != first
        with pytest.warns(TornArchiveWarning) if is_torn else contextlib.nullcontext():
            found, _ = found_by_npzkit(content)
        assert [member[0] for member in found] == (["a"] if count <= len(others) else ["a", "b"])
        assert list(by_np_load(content)) == [member[0] for member in found]


def test_an_empty_archive_in_a_file_object(monkeypatch):
    """It cannot be replaced in one step: cut short, the file is no archive, which is an error."""
    stream = io.BytesIO()
    npzkit.save(stream, {})
    monkeypatch.setattr(sink, "io", types.SimpleNamespace(**{**vars(io), "BytesIO": RecordedFile}))
    file = RecordedFile(stream.getvalue(), "a.npz")
    work = Work(random.Random(0), Model(), file, has_inside=False)
    with npzkit.NpzWriter(file, "a") as w:
        work.add(w)
        with work.committing():
            w.close()
    outcomes = set()
    for _, content in killed_states(file, "a.npz"):
        try:
            outcomes.add(len(found_by_npzkit(content)[0]))
        except ZipFormatError:
            outcomes.add("error")
    assert outcomes == {0, 1, "error"}


def test_a_stream_is_committed_when_it_is_closed():
    """Damage to the last of several commits that cannot be marked would show an older one: there is one."""
    stream = OneWay()
    with npzkit.NpzWriter(stream) as w:
        w["x"] = np.arange(3)
        with pytest.raises(UnsupportedError, match="committed once"):
            w.commit()
        w["y"] = np.arange(3)
    assert [key for key, *_ in found_by_npzkit(bytes(stream.data))[0]] == ["x", "y"]
    stream = OneWay()
    npzkit.NpzWriter(stream).close()
    assert found_by_npzkit(bytes(stream.data)) == ([], {})


def test_a_commit_while_an_array_is_created(tmp_path):
    """The commit is read without the array, by numpy too, and the next one has it."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        dst = w.create("big", (10,), "i4")
        w["y"] = np.arange(3)
        w.commit()
        for read in (npzkit.open, np.load):
            with read(path) as npz:
                assert list(npz) == ["y"]
        dst[:] = 7
        dst.close()
    with npzkit.open(path) as npz:
        assert npz["big"].tolist() == [7] * 10


@pytest.mark.skipif(os.name == "nt", reason="Windows replaces no file that is open")
def test_a_file_that_was_replaced_between_commits(tmp_path):
    """What another program put at the path is not written to."""
    path, other = tmp_path / "a.npz", tmp_path / "other.npz"
    np.savez(other, a=np.arange(1000))
    content = other.read_bytes()
    w = npzkit.NpzWriter(path)
    w["x"] = np.arange(3)
    w.commit()
    os.replace(other, path)
    w["y"] = np.arange(3)
    with pytest.raises(StaleArchiveError):
        w.commit()
    assert path.read_bytes() == content


# -- the marks of a commit ------------------------------------------------------


class Marks(NamedTuple):
    """Where an append says that it is done: by its seal, and then in the intent that it begins with."""

    slot: int
    seal: int


def add_one(work: Work, path: Path, *, durable: bool) -> None:
    """One commit, of an array and metadata."""
    with npzkit.NpzWriter(path, "a", durable=durable, auto_repack=False) as w:
        work.add(w)
        work.set_metadata(w)
        with work.committing():
            w.close()


def create_one(work: Work, path: Path, *, durable: bool) -> None:
    """One commit, of an array that is filled in the file."""
    with npzkit.NpzWriter(path, "a", durable=durable, auto_repack=False) as w:
        work.create(w)
        with work.committing():
            w.close()


def marks_of(played: Played) -> Marks:
    before = played.recording.contents[played.recording.names[played.path]]
    slot = find_intent(own_end(before)[1]) + INTENT_SIZE - SLOT_SIZE
    return Marks(slot, own_end(last_content(played))[0])


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("work", [add_one, create_one])
def test_marks_come_last(tmp_path, work, durable):
    """All else is written, and synced if that is asked for, before the commit; the mark follows it and its sync."""
    played = play_one(tmp_path, work, durable=durable)
    marks, last = marks_of(played), last_content(played)
    calls = [call for call in played.recording.calls if call.kind in ("write", "truncate", "sync")]
    tail = [(call.kind, call.offset, len(call.data)) for call in calls]
    magic = find_footer(last)[1].directory_offset - 4
    commits = {
        add_one: [("write", marks.seal, 4)],
        create_one: [("truncate", len(last), 0), ("write", magic, 4)],
    }
    syncs = [("sync", 0, 0)] * durable
    expected = [*syncs, *commits[work], *syncs, ("write", marks.slot, SLOT_SIZE)]
    assert tail[-len(expected) :] == expected
    written = replay(played.recording.contents[0], calls[: -len(expected)])
    assert not any(written[marks.slot :][:SLOT_SIZE])
    if work is add_one:
        assert not any(written[marks.seal :][:4])
    else:
        assert not any(written[magic:][:4])
        assert len(written) > len(last)


def states_at_marks(played: Played) -> Iterator[tuple[str, bytes]]:
    """Yield what a crash leaves at the marks of an append, each torn at any of its bytes, and at its intent."""
    last, (slot, seal) = last_content(played), marks_of(played)
    end = own_end(played.recording.contents[0])[1]
    nothing = unfinished(last)
    sealed = nothing[:seal] + last[seal : seal + 4] + nothing[seal + 4 :]
    for name, begin, size, other in (("mark", slot, SLOT_SIZE, sealed), ("seal", seal, 4, nothing)):
        mark = last[begin : begin + size]
        for count in range(size + 1):
            for part in (mark[:count].ljust(size, b"\0"), mark[count:].rjust(size, b"\0")):
                yield f"{name} torn at {count}", other[:begin] + part + other[begin + size :]
    yield "sealed and marked", last
    for count in range(INTENT_SIZE + 40):
        yield f"cut {count} bytes behind the end", nothing[: end + count]
        yield f"{count} bytes, then zeros", nothing[: end + count] + bytes(len(last) - end - count)
        yield f"{count} zeros, then the rest", nothing[:end] + bytes(count) + nothing[end + count :]
        lost = nothing[: end + count] + bytes(INTENT_SIZE)
        yield f"a hole behind {count} bytes", lost + nothing[len(lost) :]


def is_sealed(played: Played, content: bytes) -> bool:
    """Whether the end record of an append has its signature."""
    return content.startswith(b"PK\5\6", marks_of(played).seal)


@pytest.fixture(scope="module")
def at_marks(tmp_path_factory) -> tuple[Played, list[tuple[str, bytes]]]:
    """Return an append, and states around its marks: each once."""
    played = play_one(tmp_path_factory.mktemp("marks"), add_one)
    states = {content: name for name, content in states_at_marks(played)}
    return played, [(name, content) for content, name in states.items()]


@pytest.mark.slow
def test_states_at_the_marks(at_marks):
    """With the whole seal the commit counts, whatever there is of its mark, else the one before it: never an error."""
    played, states = at_marks
    checker, ends = Checker(), Counter()
    for name, content in states:
        number = int(is_sealed(played, content))
        ends[number] += 1
        checker.check(name, [State((number,), content)], played.work.contents)
    assert not checker.violations, "\n".join(checker.violations[:20])
    assert min(ends[0], ends[1]) >= 4


def stride_of(quick: int) -> int:
    """Return one of how many states is tried, of those that a crash of one append can leave."""
    return 1 if DEEP >= 10 else -(-quick // 3) if DEEP else quick


@pytest.mark.slow
def test_every_state_is_copied_and_appended_to(at_marks, survey, tmp_path):
    """After any crash the next append, and repair to a copy, keep what is read, in a sound archive."""
    _, states = at_marks
    path, output = tmp_path / "a.npz", tmp_path / "b.npz"
    contents = [content for _, content in states][:: stride_of(7)]
    sample = survey.checker.sample + survey.checker.lost
    contents += [content for content, _ in sample[:: stride_of(5)]]
    for content in contents:
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornArchiveWarning)
            members, metadata = found_by_npzkit(content)
            report = npzkit.repair(path, output, overwrite=True)
            assert path.read_bytes() == content
            assert not report.uncertain
            w = npzkit.NpzWriter(path, "a")
        w["appended"] = np.arange(4)
        w.close()
        assert npzkit.verify(output).ok
        assert found_strictly(output) == (members, metadata)
        appended = ("appended", *plain(np.arange(4)), {})
        assert npzkit.verify(path).ok
        assert found_strictly(path) == ([*members, appended], metadata)


def found_strictly(path: Path) -> tuple:
    """What npzkit reads of a sound archive."""
    npzkit.open(path, strict=True).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return found_by_npzkit(path)


@pytest.mark.slow
def test_a_crash_of_the_append_after_a_crash(at_marks, tmp_path):
    """An append that follows any state is itself old or new, whatever of it reaches the disk."""
    played, states = at_marks
    checker = Checker()
    path = tmp_path / "a.npz"
    for number, (name, content) in enumerate(states[:: stride_of(23)]):
        path.write_bytes(content)
        is_new = is_sealed(played, content)
        model = model_of(played.work.contents[is_new])
        with warnings.catch_warnings(), recorded(tmp_path) as recorder:
            warnings.simplefilter("ignore", TornArchiveWarning)
            work = Work(random.Random(number), model, recorder, has_inside=False)
            add_one(work, path, durable=True)
        again = Played(f"after {name}", str(path), recorder, work, durable=True)
        stride = stride_of(9)
        states_again = itertools.islice(
            again.states(random.Random(number)), number % stride, None, stride
        )
        checker.check(again.name, states_again, work.contents)
    assert not checker.violations, "\n".join(checker.violations[:20])
    assert checker.count > 300


def model_of(contents: Contents | None) -> Model:
    """Return the model of what an archive holds."""
    model = Model()
    model.held = {
        member[0]: Held(contents.arrays[member[0]], dict(member[-1])) for member in contents.members
    }
    model.metadata = dict(contents.metadata)
    return model


def with_a_damaged_end(content: bytes) -> bytes:
    place = own_end(content)[0] + 12
    return content[:place] + b"\xff" + content[place + 1 :]


def with_a_damaged_name(content: bytes) -> bytes:
    place = content.rindex(b"PK\1\2") + 46
    return content[:place] + b"\xff" + content[place + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [with_a_damaged_end, with_a_damaged_name])
def test_a_crash_of_a_repair(tmp_path, damage):
    """A repair that is interrupted leaves the newest commit, or the error that names repair: never the older one."""
    played = play_one(tmp_path, add_one)
    path = Path(played.path)
    newest = played.work.contents[-1]
    path.write_bytes(damage(path.read_bytes()))
    with recorded(tmp_path) as recorder:
        recorder.mark(1)
        npzkit.repair(path)
    assert found_strictly(path) == newest[:2]
    outcomes = Counter()
    states = Played("repair", played.path, recorder, played.work, durable=True)
    for content in {state.content for state in states.states(random.Random(0))}:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornArchiveWarning)
            try:
                found = found_by_npzkit(content)
            except ZipFormatError as error:
                outcomes["error" if "repair" in error.remedy else str(error)] += 1
                continue
        assert found == newest[:2]
        outcomes["new"] += 1
    assert set(outcomes) == {"new", "error"}


# -- the checker sees -----------------------------------------------------------


def without_sync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Leave out one of the syncs of files, counted from 0."""
    real, calls = disk.File.sync, itertools.count()
    monkeypatch.setattr(
        disk.File, "sync", lambda self: None if next(calls) == number else real(self)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "number"), [*((append_one, number) for number in (0, 1, 4, 5)), (save_over, 0)]
)
def test_a_sync_that_is_left_out_is_seen(tmp_path, monkeypatch, work, number):
    """Before a seal, a cut or a renaming, and behind it: without any of the syncs states are wrong."""
    without_sync(monkeypatch, number)
    assert is_seen(play_one(tmp_path, work), 400)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_sync_of_a_far_copy_that_is_left_out_is_seen(tmp_path, monkeypatch, number):
    """Without the sync of either far copy, or the one before the cut, np.load fails after a loss of power."""
    without_sync(monkeypatch, number)
    assert misread_without_power(play_one(tmp_path, create_one))


@pytest.mark.parametrize("work", [append_one, save_over])
def test_a_commit_that_does_not_wait_is_seen(tmp_path, work):
    """Of work without durable=True, a loss of power leaves states that are wrong."""
    played = play_one(tmp_path, work, durable=False)
    assert is_seen(played._replace(durable=True))


def test_a_folder_that_is_not_synced_is_seen(tmp_path, monkeypatch):
    """Without the folder's sync a commit may be lost that was reported."""
    monkeypatch.setattr(disk, "sync_directory", lambda path: None)
    assert is_seen(play_one(tmp_path, save_over))


@contextlib.contextmanager
def commits_by(write: Callable[..., None]) -> Iterator[None]:
    """Have appends end in another way."""

    def commit(self: append_order.AppendedFile, position: int, _: object, *rest: Any) -> int:
        before, last, _, write_all = rest
        self._append = None
        write(self, position, before, last, write_all)
        self.begin(position + len(before + last), len(before + last), zlib.crc32(before + last))
        self._is_changed = False
        return self.committed_size

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(append_order.AppendedFile, "commit", commit)
        yield


def test_a_seal_that_is_written_with_the_rest_is_seen(tmp_path):
    """End record and directory in one stretch between syncs: the disk may have the end alone."""

    def write(file, position, before, last, write_all):
        write_all(before + last)
        file.file.sync()

    with commits_by(write):
        assert is_seen(play_one(tmp_path, append_one), 400)


@pytest.mark.slow
def test_a_seal_that_is_written_first_is_seen(tmp_path):
    """The end record before the directory: even a program that is killed leaves no archive."""

    def write(file, position, before, last, write_all):
        write_all()
        file.put(position + len(before), last)
        file.put(position, before)

    with commits_by(write):
        assert is_seen(play_one(tmp_path, append_one, durable=False))


@pytest.mark.slow
def test_zipfiles_own_append_is_seen(capsys):
    """zipfile writes over the directory: killed, most of its states are neither old nor new."""
    stream = io.BytesIO()
    arrays = {"a": np.arange(400.0), "b": np.array(["x", "yz"])}
    np.savez(stream, **arrays)
    file = RecordedFile(stream.getvalue(), "a.npz")
    work = Work(random.Random(0), Model(arrays), file, has_inside=False)
    work.model.held["c"] = Held(np.arange(3000), {})
    with work.committing(), zipfile.ZipFile(file, "a") as archive:
        archive.writestr("c.npy", npy(np.arange(3000)))
    checker = Checker()
    checker.check("zipfile", killed_states(file, "a.npz"), work.contents)
    with capsys.disabled():
        print(f"\nzipfile's append: {len(checker.violations)} wrong, {checker.count} right")
    assert len(checker.violations) > checker.count


def test_the_states_of_a_power_loss():
    """Two writes that were not synced are there or not; a renamed file may be empty, or not yet there."""
    recording = Recording()
    recording.names, recording.contents = {"old": 0}, {0: b"aa"}
    recording.mark(0)
    write = crash.Call("write", 0)
    recording.calls += [write._replace(data=b"bc"), write._replace(offset=1, data=b"de")]

    def states(path: str) -> set[bytes | None]:
        return {
            state.content for state in power_loss_states(recording, path, random.Random(0), 100)
        }

    # Whole, either alone, in either order, and torn.
    assert states("old") >= {b"aa", b"bc", b"ade", b"bde", b"bce", b"ba", b"ac", b"ad", b"aae"[:2]}
    recording.calls = [recording.calls[0], crash.Call("create", 1, path="new")]
    recording.calls += [crash.Call("write", 1, data=b"n")]
    recording.calls += [crash.Call("rename", 1, path="new", target="old")]
    assert states("old") == {b"aa", b"", b"n"}
    recording.calls += [crash.Call("sync", 1), crash.Call("sync folder")]
    recording.mark(1)
    recording.calls += [crash.Call("write", 1, data=b"m")]
    last = [
        s.content for s in power_loss_states(recording, "old", random.Random(0), 9) if s[0] == (1,)
    ]
    assert set(last) == {b"n", b"m"}
