"""Writers that are killed at any moment, while others read the same path.

A child writes and tells through a pipe which commit it begins and which it has
finished; SIGKILL ends it at a random moment. A few kills of each kind of work are
part of the suite; NPZKIT_DEEP=1 in the environment makes it 560 in all, and
NPZKIT_DEEP=20 ten thousand. The moments are seeded, but not what the machine
does in them. A kill at each single call of an append, and within each write, is part of the suite.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import select
import signal
import struct
import time
import warnings
import zipfile
import zlib
from typing import NamedTuple

import npzkit
import numpy as np
import pytest
from children import forked, read_rest
from deep import DEEP, amount, by_turns
from faults import DeadlyOS
from npzkit.files import disk

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    # What a killed writer leaves is there until the next one drops it.
    pytest.mark.filterwarnings("ignore::npzkit.errors.TornArchiveWarning"),
]

KINDS = ["append", "replace", "delete", "rename", "repack", "save", "mixed"]
SIZES = {
    ("small", "stored"): (0, 3_000),
    ("small", "deflated"): (0, 3_000),
    # The largest ones are written into room that was reserved, by several threads.
    ("large", "stored"): (50_000, 600_000),
    ("large", "deflated"): (50_000, 150_000),
}
"""How many values an array has, of four bytes each."""
CELLS = [(kind, *size) for kind, size in by_turns(KINDS, SIZES)]
"""Kinds of work and of arrays: by default a quarter of them, by turns."""
KILL_COUNT = -(-amount(len(CELLS), 560) // len(CELLS))
READER_COUNT, PAUSE = (2, 0.001) if DEEP else (1, 0.02)
"""Processes that read all the time, and their rest between two reads in seconds."""
ARRAY_COUNT = 6
"""Arrays from which on some are dropped: a step is to take little time."""
LOUD = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError)
"""How np.load says that it cannot read an archive which is being appended to."""
MESSAGE = struct.Struct("<cq")


@functools.cache
def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 500, 1_000_000).astype("i4")


def array_of(number: int, size: int) -> np.ndarray:
    """Make an array that no other number has, and that deflates to a third or so."""
    begin = number * 7919 % (len(noise()) - size)
    values = noise()[begin : begin + size].copy()
    values[: size // 2] = number
    return values


class Step(NamedTuple):
    """One commit: what is done, and what the archive holds then."""

    verb: str
    keys: tuple[str, ...]
    state: dict[str, tuple[int, int]]
    is_durable: bool
    ends_session: bool
    repacks: bool

    def arrays(self) -> dict[str, np.ndarray]:
        return {key: array_of(*spec) for key, spec in self.state.items()}


class Plan:
    """Steps one after the other: every process works out the same ones."""

    def __init__(self, kind: str, size: str, compression: str) -> None:
        self.kind, self.sizes = kind, SIZES[size, compression]
        self.random = random.Random(f"{kind} {size} {compression}")
        self.steps = [Step("save", (), {"k0": (0, self.sizes[1])}, False, True, False)]

    def __getitem__(self, number: int) -> Step:
        while len(self.steps) <= number:
            self.steps.append(self._next(len(self.steps)))
        return self.steps[number]

    def _next(self, number: int) -> Step:
        draw, state = self.random, dict(self.steps[-1].state)
        spec = (number, draw.randint(*self.sizes))
        verbs = {
            "mixed": ["append", "replace", "delete", "rename", "save"],
            "repack": ["append", "replace", "delete"],
            "append": ["append"],
        }
        verb = draw.choice(verbs.get(self.kind, [self.kind, self.kind, "append"]))
        if not state and verb != "save":
            verb = "append"
        elif len(state) >= ARRAY_COUNT and verb == "append":
            verb = "save" if self.kind == "append" else "delete"
        keys: tuple[str, ...] = ()
        if verb == "append":
            keys = (f"k{number}",)
            state[keys[0]] = spec
        elif verb == "replace":
            keys = (draw.choice(list(state)),)
            state[keys[0]] = spec
        elif verb == "delete":
            keys = tuple(draw.sample(list(state), draw.randint(1, len(state))))
            for key in keys:
                del state[key]
        elif verb == "rename":
            keys = (draw.choice(list(state)), f"r{number}")
            state = {(keys[1] if key == keys[0] else key): of for key, of in state.items()}
        else:
            state = {f"s{number}": spec, f"t{number}": (number + 10**9, draw.randint(*self.sizes))}
        repacks = self.kind == "repack" or (self.kind == "mixed" and draw.random() < 0.2)
        is_durable = draw.random() < 0.05
        return Step(verb, keys, state, is_durable, draw.random() < 0.4 or repacks, repacks)


def perform(writer: npzkit.NpzWriter, step: Step, number: int) -> None:
    """Do to an archive that is open what a step says, up to its commit."""
    if step.verb == "append":
        writer[step.keys[0]] = array_of(*step.state[step.keys[0]])
    elif step.verb == "replace":
        writer.add(step.keys[0], array_of(*step.state[step.keys[0]]), overwrite=True)
    elif step.verb == "delete":
        for key in step.keys:
            del writer[key]
    else:
        writer.rename(*step.keys)
    writer.metadata["step"] = number


def write_steps(path, plan, number, end, compression, tell) -> None:
    """Carry out the steps from `number` to before `end`, telling each commit."""
    while number < end:
        step = plan[number]
        if step.verb == "save":
            tell(b"b", number)
            npzkit.save(
                path, step.arrays(), compression=compression, metadata={"step": number},
                durable=step.is_durable,
            )  # fmt: skip
            tell(b"f", number)
        else:
            with npzkit.NpzWriter(
                path, "a", compression=compression, durable=step.is_durable
            ) as writer:
                while True:
                    perform(writer, step, number)
                    tell(b"b", number)
                    following = plan[number + 1]
                    if step.ends_session or following.verb == "save" or number + 1 == end:
                        writer.close()
                        break
                    writer.commit()
                    tell(b"f", number)
                    step, number = following, number + 1
            tell(b"f", number)
        if step.repacks:
            npzkit.repack(path, align=64 << number % 4)
        number += 1


def read_with_npzkit(path, plan, **options) -> int:
    """Read an archive whole, and return the step whose contents it holds."""
    with npzkit.open(path, **options) as npz:
        number = npz.metadata["step"]
        expected = plan[number].arrays()
        assert list(npz) == list(expected)
        found = npz.load_all()
        for key, array in expected.items():
            assert np.array_equal(found[key], array), key
            if npz.info(key).method == "stored":
                assert np.array_equal(npz.memmap(key), array), key
    return number


def read_with_numpy(path, plan, oldest) -> int | None:
    """Do so with np.load; None where it says that it cannot. The step is `oldest` or a later one.

    The copy of a directory behind an append does not say of which step it is, but by its arrays.
    """
    try:
        # np.load leaves a file open that it opened and cannot read.
        with open(path, "rb") as file, np.load(file) as npz:
            comment = npz.zip.comment
            found = {key: npz[key] for key in npz.files}
    except LOUD:
        return None
    if comment.startswith(b"npzkit: an append"):
        return step_of(found, plan, oldest)
    number = int(comment.split(b'"step":')[1].strip(b" }"))
    expected = plan[number].arrays()
    assert list(found) == list(expected)
    for key, array in expected.items():
        assert np.array_equal(found[key], array), key
    return number


def step_of(found, plan, oldest) -> int:
    """Return the first step from `oldest` on with these arrays."""
    for number in range(oldest, oldest + 1000):
        state = plan[number].state
        if list(state) == list(found) and all(
            size == len(found[key]) and np.array_equal(found[key], array_of(seed, size))
            for key, (seed, size) in state.items()
        ):
            return number
    raise AssertionError(f"no step has {list(found)}")


def keep_reading(path, plan, turn) -> str:
    """Read until SIGTERM comes; return how often, and what failed."""
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    newest = {"npzkit": 0, "numpy": 0}
    read = refused = 0
    held = npzkit.open(path)
    held_step = held.metadata["step"]
    while not stopping:
        turn += 1
        number = read_with_npzkit(path, plan)
        assert number >= newest["npzkit"], "an older commit came back"
        newest["npzkit"] = number
        number = read_with_numpy(path, plan, newest["numpy"])
        if number is None:
            refused += 1
        else:
            assert number >= newest["numpy"], "an older commit came back"
            newest["numpy"] = number
        if turn % 10 == 0:
            # What was opened before many a commit and kill is all there.
            for key, array in plan[held_step].arrays().items():
                assert np.array_equal(held[key], array), key
            held.close()
            held = npzkit.open(path)
            held_step = held.metadata["step"]
        read += 1
        time.sleep(PAUSE)
    held.close()
    assert read
    return f"{read} reads, {refused} refused by np.load"


@contextlib.contextmanager
def readers(path, plan, count):
    """Have processes read the path for the time of the block, and none of them fail."""

    def work(turn):
        return lambda pipe: os.write(pipe, b"." + keep_reading(path, plan, turn).encode())

    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(forked(work(turn))) for turn in range(count)]
        yield
        for child, pipe in children:
            os.kill(child, signal.SIGTERM)
            said = read_rest(pipe).decode()
            assert said.startswith("."), said


def kill_one(path, plan, number, compression, delay) -> tuple[int, int, bool]:
    """Have a child write from step `number` on, and kill it.

    Returns the last commit it finished, the last it began, and whether it was
    at work then.
    """

    def work(pipe):
        def tell(kind, step):
            os.write(pipe, MESSAGE.pack(kind, step))

        tell(b"r", number)
        write_steps(path, plan, number, number + 100, compression, tell)
        tell(b"e", number)

    with forked(work) as (child, pipe):
        assert select.select([pipe], [], [], 60)[0]
        # Sleeping is no finer than some 60 microseconds; nor need it be.
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        said = read_rest(pipe)
    assert b"Traceback" not in said, said[said.index(b"Traceback") :].decode()
    finished, begun, is_at_work = number - 1, number - 1, True
    for kind, step in MESSAGE.iter_unpack(said):
        if kind == b"b":
            begun = step
        elif kind == b"f":
            finished = step
        elif kind == b"e":
            is_at_work = False
    assert finished <= begun <= finished + 1
    return finished, begun, is_at_work


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "size", "compression"), CELLS)
def test_a_killed_writer_leaves_the_last_commit(kind, size, compression, tmp_path):
    """After SIGKILL the path holds the last commit, unlocked, for np.load too; no reader ever saw anything else."""
    path = tmp_path / "a.npz"
    noise()
    plan = Plan(kind, size, compression)
    npzkit.save(path, plan[0].arrays(), compression=compression, metadata={"step": 0})
    # How long a step takes here says when there is something to kill.
    began = time.perf_counter()
    write_steps(path, plan, 1, 9, compression, lambda *_: None)
    pace = (time.perf_counter() - began) / 8
    number = 8
    draw = random.Random(f"{kind} {size} {compression}")
    in_work = 0
    with readers(path, plan, READER_COUNT):
        for _ in range(KILL_COUNT):
            delay = draw.uniform(0, 4 * pace)
            finished, begun, is_at_work = kill_one(path, plan, number + 1, compression, delay)
            in_work += is_at_work
            found = read_with_npzkit(path, plan)
            assert finished <= found <= begun
            assert read_with_numpy(path, plan, found) == found
            number = found + 1
            for left in tmp_path.glob(".npzkit-*.tmp"):
                left.unlink()
            # No lock is left: this does not wait, and it appends.
            write_steps(path, plan, number, number + 1, compression, lambda *_: None)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert read_with_npzkit(path, plan, strict=True) == number
            assert read_with_numpy(path, plan, number) == number
            assert os.listdir(tmp_path) == ["a.npz"]
    assert in_work >= KILL_COUNT / 2


# -- at each call ----------------------------------------------------------------


class KilledWithin(DeadlyOS):
    """Kills the process within a call: of what it writes, whole pages of the file are there."""

    def _fail(self, name, real, *args):
        if name == "pwrite":
            descriptor, data, offset = args
            size = (offset + len(data) // 2) // 4096 * 4096 - offset
            real(descriptor, data[: max(size, 0)], offset)
        os.kill(os.getpid(), signal.SIGKILL)


class KilledBehind(DeadlyOS):
    """Kills the process behind a call, which is made as it should be."""

    def _fail(self, name, real, *args):
        real(*args)
        os.kill(os.getpid(), signal.SIGKILL)


def append_some(path, durable):
    """Commit twice, a small array and one that is written by itself."""
    with npzkit.NpzWriter(path, "a", durable=durable, auto_repack=False) as w:
        w["small"] = np.arange(5)
        w.metadata["step"] = 1
        w.commit()
        w["large"] = noise()[:20_000]
        w.metadata["step"] = 2


def held_at(path) -> int:
    """Read an archive whole; return how many of the two commits it has."""
    arrays = {"a": np.arange(3), "small": np.arange(5), "large": noise()[:20_000]}
    with npzkit.open(path) as npz:
        number = npz.metadata["step"]
        assert list(npz) == list(arrays)[: number + 1]
        for key, array in npz.load_all().items():
            assert np.array_equal(array, arrays[key]), key
    return number


def kill_at(number, path, killer, work, *args) -> bool:
    """Have a child do some work on a path, killed at one of its calls; return whether it was."""

    def run(pipe):
        disk.os = killer(number, 0)
        work(path, *args)
        os.write(pipe, b"done")

    with forked(run) as (_, pipe):
        said = read_rest(pipe)
    assert said in (b"", b"done"), said.decode()
    return not said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killer", "durable"), by_turns([KilledWithin, KilledBehind], [True, False])
)
def test_a_kill_at_each_call_of_an_append(tmp_path, killer, durable):
    """Killed within or behind any call, the path holds the last commit, for np.load too, and the next append goes on."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(3)}, metadata={"step": 0})
    before = path.read_bytes()
    found, is_killed, number = [], True, 0
    while is_killed:
        number += 1
        path.write_bytes(before)
        is_killed = kill_at(number, path, killer, append_some, durable)
        found.append(held_at(path))
        assert numpy_at(path) == found[-1]
        with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
            w["appended"] = np.ones(3)
        with warnings.catch_warnings(), npzkit.open(path, strict=True) as npz:
            warnings.simplefilter("error")
            assert list(npz) == [*["a", "small", "large"][: found[-1] + 1], "appended"]
            npz.load_all()
        assert npzkit.verify(path).ok
    assert found == sorted(found)
    assert set(found) == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("killer", [KilledWithin, KilledBehind])
def test_killed_appends_do_not_make_a_file_grow(tmp_path, killer):
    """Ten appends that are killed one after the other leave no more in the file than one does."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"a": np.arange(3)}, metadata={"step": 0})
    before, largest, count = path.read_bytes(), 0, 0
    # The most that one leaves, wherever it is killed before its commit.
    while kill_at(count + 1, path, killer, append_one, False) and not has_large(path):
        count += 1
        largest = max(largest, path.stat().st_size)
        path.write_bytes(before)
    assert largest > len(before)
    assert count > 4
    path.write_bytes(before)
    for turn in range(10):
        assert kill_at(turn % count + 1, path, killer, append_one, False)
        assert path.read_bytes().startswith(before)
        assert path.stat().st_size <= largest
        assert held_at(path) == 0
    npzkit.repair(path)
    assert path.read_bytes() == before


def has_large(path):
    with npzkit.open(path) as npz:
        return "large" in npz


def append_one(path, durable):
    """Commit an array that is written by itself."""
    with npzkit.NpzWriter(path, "a", durable=durable, auto_repack=False) as w:
        w["large"] = noise()[:20_000]


def numpy_at(path) -> int:
    """Return how many of the commits np.load finds."""
    with open(path, "rb") as file, np.load(file) as npz:
        for key in npz.files:
            npz[key]
        return len(npz.files) - 1
