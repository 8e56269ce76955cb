"""Crashes: whatever a killed program or a loss of power leaves, it is the old archive or the new.

Work on archives is recorded call by call and every state that a crash may leave
is rebuilt in memory (`support/crash.py` says which) and read. 100,000 distinct
states by default; NPZKIT_CRASH_STATES=1000000 in the environment makes it a
million. The work is made of seeds, so that a seed that fails is run again alone:
NPZKIT_CRASH_SEED=17.
"""

from __future__ import annotations

import ast
import contextlib
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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import crash
import npzkit
import numpy as np
import pytest
from crash import RecordedFile, Recording, State, killed_states, power_loss_states, recorded
from npzkit import TornArchiveWarning, disk, path_sink, sink
from npzkit.errors import ZipFormatError
from npzkit.zip import writer as zip_writer

STATE_COUNT = int(os.environ.get("NPZKIT_CRASH_STATES", "100000"))
FIRST_SEED = int(os.environ.get("NPZKIT_CRASH_SEED", "0"))
SAMPLED = 40
"""One of so many distinct states is shown to other readers, too."""
POWER_LIMIT = 1200
"""Torn states of one stretch between two syncs."""
NO_FILE = "no file"


# -- what an archive is to hold -------------------------------------------------


class Held(NamedTuple):
    """One array and its attributes."""

    array: np.ndarray
    attrs: dict[str, Any]


class Model:
    """What an archive is to hold, kept apart from it: the oracle."""

    def __init__(self, arrays: dict[str, np.ndarray] | None = None) -> None:
        self.held = {key: Held(array, {}) for key, array in (arrays or {}).items()}
        self.metadata: dict[str, Any] = {}

    def contents(self) -> Contents:
        members = [(key, *plain(array), dict(attrs)) for key, (array, attrs) in self.held.items()]
        return Contents(members, dict(self.metadata), {k: h.array for k, h in self.held.items()})


class Contents(NamedTuple):
    """What a reader is to find after a commit."""

    members: list[tuple]
    metadata: dict[str, Any]
    arrays: dict[str, np.ndarray]


def plain(array: Any) -> tuple:
    """Everything of an array that can be compared."""
    array = np.asanyarray(array)
    return array.dtype.str, array.shape, array.flags.f_contiguous, array.tobytes()


def found_by_npzkit(content: bytes | Path) -> tuple:
    """What npzkit reads: keys in their order, arrays, attributes, metadata."""
    with npzkit.open(content) as npz:
        members = [(key, *plain(npz[key]), dict(npz.info(key).attrs)) for key in npz]
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
    sample : list of (bytes, list of Contents)
        Some states, with what may be found in them.
    """

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.violations: list[str] = []
        self.found: Counter[str] = Counter()
        self.sample: list[tuple[bytes, list[Contents]]] = []

    @property
    def count(self) -> int:
        return len(self.seen)

    def check(
        self, name: str, states: Iterable[State], contents: list[Contents | None], sampled: int = 0
    ) -> None:
        """Hold every state against the contents that are allowed there."""
        results: dict[bytes | None, Any] = {}
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
                    if sampled and self.count % sampled == 0:
                        self.sample.append((content, [contents[index] for index in choices]))

    def _read(self, content: bytes | None, caught: list, contents: list[Contents | None]) -> Any:
        """Return which contents are there, or what went wrong."""
        if content is None:
            return _number(contents, contents.index(None)) if None in contents else NO_FILE
        try:
            found = found_by_npzkit(content)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        is_torn = not ends_whole(content)
        if [warning.category for warning in caught] != [TornArchiveWarning] * is_torn:
            return f"{'torn' if is_torn else 'whole'}, and {[str(w.message) for w in caught]}"
        self.found["torn"] += is_torn
        for index, expected in enumerate(contents):
            if expected is not None and found == expected[:2]:
                return index
        return "other contents"


def _number(contents: list[Contents | None], index: int) -> int:
    """The first of equal contents: a repack changes nothing that is read."""
    wanted = contents[index] and contents[index][:2]
    return next(i for i, other in enumerate(contents) if (other and other[:2]) == wanted)


def ends_whole(content: bytes) -> bool:
    """Whether the archive's own end record ends the file, by the record's numbers alone."""
    offset = content.rfind(b"PK\5\6")
    if offset < 0 or len(content) < offset + 22:
        return False
    size, start, comment_size = struct.unpack_from("<LLH", content, offset + 12)
    return size + start == offset and offset + 22 + comment_size == len(content)


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
    """An array whose bytes are an archive themselves."""
    stream = io.BytesIO()
    arrays = {"inner": some_array(rng), "x": some_array(rng)}
    rng.choice((np.savez, np.savez_compressed, npzkit.savez))(stream, **arrays)
    return np.frombuffer(stream.getvalue(), "u1")


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


class OneWay(io.RawIOBase):
    """A file that cannot seek, so that zipfile writes data descriptors."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


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
    after = path.read_bytes()
    cut = rng.randint(len(before) + 1, len(after) - 1)
    path.write_bytes(after[:cut] + bytes(rng.choice((0, 0, 700))))
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
    absent, by_npzkit, by_numpy, by_zipfile, with_torn_tail, with_dead_space, with_archive_inside,
    large, empty,
    absent, by_npzkit, by_numpy, by_zipfile, with_torn_tail, with_dead_space, with_archive_inside,
    by_npzkit, of_many,
]  # fmt: skip


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
        recording.mark(0)

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        """While this is entered the old contents may be found, or the new."""
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
        rng, held = self.rng, self.model.held
        edits: list[Callable[[npzkit.NpzWriter], None]] = [self.add, self.add, self.create]
        if held:
            edits += [self.overwrite, self.delete, self.rename, self.set_attrs]
        rng.choice([*edits, self.set_metadata])(w)

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

    def overwrite(self, w: npzkit.NpzWriter) -> None:
        key, array = self.rng.choice(list(self.model.held)), self.array()
        w.add(key, array, overwrite=True)
        self.model.held[key] = Held(array, {})

    def delete(self, w: npzkit.NpzWriter) -> None:
        key = self.rng.choice(list(self.model.held))
        del w[key], self.model.held[key]

    def rename(self, w: npzkit.NpzWriter) -> None:
        old, new = self.rng.choice(list(self.model.held)), self.new_key()
        w.rename(old, new)
        held = self.model.held.items()
        self.model.held = {new if key == old else key: value for key, value in held}

    def set_attrs(self, w: npzkit.NpzWriter) -> None:
        key = self.rng.choice(list(self.model.held))
        array, attrs = self.model.held[key]
        value = self.rng.randrange(1000)
        w.attrs(key)["edited"] = value
        self.model.held[key] = Held(array, {**attrs, "edited": value})

    def set_metadata(self, w: npzkit.NpzWriter) -> None:
        w.metadata["step"] = self.model.metadata["step"] = self.rng.randrange(1000)

    def write(self, w: npzkit.NpzWriter) -> None:
        """Some commits, and an end: another commit, with a repack perhaps, or none."""
        for _ in range(self.rng.randint(0, 3)):
            self.edit_some(w)
            with self.committing():
                w.commit()
        self.edit_some(w)
        if len(self.contents) > 1 and self.rng.random() < 0.2:
            w.abort()
            return
        with self.committing():
            w.close()

    def edit_some(self, w: npzkit.NpzWriter) -> None:
        for _ in range(self.rng.randint(1, 3)):
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

    def states(self, rng: random.Random) -> Iterator[State]:
        yield from killed_states(self.recording, self.path)
        if self.durable:
            yield from power_loss_states(self.recording, self.path, rng, POWER_LIMIT)


def play(seed: int, folder: Path) -> Played:
    """Do what a seed says to an archive, and record it."""
    rng = random.Random(seed)
    start = STARTS[seed % len(STARTS)]
    path = folder / "a.npz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TornArchiveWarning)
        model = start(rng, path)
        kinds = ["append"] * 5 + ["new"] + ["save", "repack", "file object"] * (start is not absent)
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
    w = npzkit.NpzWriter(path, "a", durable=durable, **options(work.rng))
    work.write(w)


def write_new(work: Work, path: Path, *, durable: bool, mode: str = "w") -> None:
    w = npzkit.NpzWriter(path, mode, durable=durable, **options(work.rng))
    work.model = Model()
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


# -- the states -----------------------------------------------------------------


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
    for seed in itertools.count(FIRST_SEED):
        folder = tmp_path_factory.mktemp("crash")
        played = play(seed, folder)
        kinds.update(played.name.split(": ")[1].split(", ")[:3])
        real = Path(played.path).read_bytes() if os.path.exists(played.path) else None
        if last_content(played) != real:
            mismatches.append(played.name)
        sampled = 0 if played.work.has_archive_inside else SAMPLED
        states = played.states(random.Random(seed))
        with pytest.MonkeyPatch.context() as patched:
            if seed % 2:
                # Read as archives of many members are.
                patched.setattr("npzkit.zip.directory._COLUMNS_COUNT", 1)
            checker.check(played.name, states, played.work.contents, sampled)
        shutil.rmtree(folder)
        if checker.count >= STATE_COUNT or "NPZKIT_CRASH_SEED" in os.environ:
            break
    return Survey(checker, kinds, mismatches, time.monotonic() - started)


def test_every_state_is_old_or_new(survey):
    """Whatever a crash leaves, npzkit reads the contents before a commit or after it, and nothing else."""
    checker = survey.checker
    print(checker.count, checker.found, survey.kinds, f"{survey.seconds:.0f} s")
    assert not checker.violations, "\n".join(checker.violations[:20])
