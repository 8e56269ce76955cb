"""Damage, and then each action: no older value comes unsaid, and what fails changes nothing.

Archives of several commits are damaged in one of many ways. Then they are read in each way that
there is, verified, repaired, repacked, appended to and edited. By default that is some hundred
actions; NPZKIT_DEEP=1 makes it 50,000.
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import npzkit
import numpy as np
import pytest
from damage import Found, differences, folder_in_memory, is_error, read
from deep import amount
from grown_archives import CASES, Case, made
from history import Commit, Held, History, held_as
from npzkit.errors import NpzkitError, TornArchiveWarning
from npzkit.zip.commit import COMMENT_NAME

from tables import each_row

ACTION_COUNT = amount(1_100, 5_500)
ARCHIVE_COUNT = amount(12, 40)
"""Archives of random histories, beside one of each kind."""
LARGE = 70_000
"""Bytes of metadata that no comment can hold."""
METHODS = "stored", "stored", "deflated", "zstd"


# -- archives --------------------------------------------------------------------------


def grown(seed: int, variant: int) -> History:
    """Return an archive of random commits; variants have other values in the same places."""
    rng, values = random.Random(seed), np.random.default_rng((seed, variant))
    history = History(io.BytesIO())

    def noise() -> Any:
        size = rng.choice((0, 9, rng.randrange(100), rng.randrange(900), 5000))
        return values.integers(0, rng.choice((2, 256)), size).astype(rng.choice(("u1", "<i4")))

    for step in range(rng.choice((1, 2, 3, 3, 4))):
        with history.edit("a" if step else "w", compression=rng.choice(METHODS)) as e:
            for _ in range(rng.choice((1, 2, 4))):
                keys = list(history.held)
                kinds = ("add", "add", "attrs", "delete", "rename", "replace", "create", "metadata")
                kind = rng.choice(kinds if keys else ("add", "create"))
                key, new = rng.choice(keys or [""]), f"k{len(keys)}{step}{rng.randrange(999)}"
                if kind == "add":
                    e.add(new, noise(), attrs={"variant": variant} if rng.random() < 0.5 else None)
                elif kind == "replace":
                    e.add(key, noise(), overwrite=True)
                elif kind == "attrs":
                    e.edit_attrs(key, variant=variant, step=step)
                elif kind == "delete":
                    e.delete(key)
                elif kind == "rename":
                    e.rename(key, new)
                elif kind == "metadata":
                    size = rng.choice((0, 90, rng.randrange(3000), LARGE))
                    e.edit_metadata(variant=variant, note="x" * size)
                else:
                    array = noise()
                    created = e.writer.create(new, array.shape, array.dtype, compression="stored")
                    if history.held and rng.random() < 0.5:
                        e.commit()
                    created[:] = array
                    created.close()
                    history.held[new] = Held(held_as(array), {})
    return history


class Archive(NamedTuple):
    """An archive, and another version of it, if there is one."""

    name: str
    data: bytes
    commits: list[Commit]
    other: Archive | None = None


@functools.cache
def archive_of(seed: int, folder: Path) -> Archive:
    if seed < len(CASES):
        case: Case = made(CASES[seed], folder)
        return Archive(case.name, case.data, case.commits)
    one, other = (grown(seed, variant) for variant in (1, 2))
    name = f"seed {seed}"
    return Archive(
        name, one.content, one.commits, Archive(name, other.content, other.commits)
    )  # fmt: skip


# -- damage ----------------------------------------------------------------------------


class State(NamedTuple):
    """A damaged file.

    Attributes
    ----------
    data : bytes
    newest : list of Commit
        The states that it may have: two if it is half of one version and half of another.
    older : list of Commit
        All that were committed before, for which there must be a word.
    """

    data: bytes
    newest: list[Commit]
    older: list[Commit]


def flipped(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def zeroed(rng: random.Random, data: bytes) -> bytes:
    size = rng.choice((512, 4096))
    begin = rng.randrange(0, len(data), size)
    stop = min(begin + size, len(data))
    return data[:begin] + bytes(stop - begin) + data[stop:]


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(1, len(data))]


def cut_with_junk(rng: random.Random, data: bytes) -> bytes:
    return cut(rng, data) + rng.randbytes(rng.choice((1, 40, 700)))


def with_junk(rng: random.Random, data: bytes) -> bytes:
    return data + rng.randbytes(rng.choice((1, 40, 700)))


def duplicated(rng: random.Random, data: bytes) -> bytes:
    """A block was written to the place of another one as well, or came twice."""
    size = rng.choice((64, 512, 4096))
    source, place = rng.randrange(len(data)), rng.randrange(len(data))
    block = data[source : source + size]
    end = place + len(block) if rng.random() < 0.5 else place
    return data[:place] + block + data[end:]


DAMAGES = flipped, zeroed, cut, cut_with_junk, with_junk, duplicated


def damaged(rng: random.Random, archive: Archive) -> State:
    data, commits = archive.data, archive.commits
    newest, other = [commits[-1]], archive.other
    if other is not None and rng.random() < 0.2:
        place = rng.randrange(1, min(len(data), len(other.data)))
        newest.append(other.commits[-1])
        # The one checksum of large metadata lies beside it.
        newest += [
            one._replace(metadata=two.metadata)
            for one, two in permutations(newest)
            if len(two.metadata.get("note", "")) == LARGE
        ]
        return State(data[:place] + other.data[place:], newest, [*commits, *other.commits])
    found = rng.choice(DAMAGES)(rng, data)
    # What was committed then, if the size shows no other commit behind it.
    whole = [one for one in commits if len(found) == one.size]
    return State(found, whole or newest, commits)


# -- what may be found -----------------------------------------------------------------


def check_found(state: State, found: Found, *, is_told: bool = False) -> None:
    """All that is read is of the newest state; or of an older one, if that was told."""
    possible = state.older if is_told or found.is_torn else state.newest
    rows = [differences(found, one) for one in possible]
    assert not all(rows), rows[0]


def check_report(state: State, report: npzkit.RepairReport, found: Found) -> None:
    """What repair calls certain is of the newest state, and all else is named."""
    lost = {row.key for row in report.lost}
    named = {*lost, *report.uncertain}
    rows = []
    for commit in state.older if report.cut_size else state.newest:
        keys = set(found.keys) - set(report.uncertain)
        wrong = [key for key in keys if key not in commit.held]
        for key in keys & set(commit.held):
            array, attrs = commit.held[key]
            is_same = is_error(found.arrays[key]) or found.arrays[key] == array
            has_same = is_error(found.attrs[key]) or found.attrs[key] == attrs
            if not (is_same or key in lost) or not (has_same or key in lost):
                wrong.append(key)
        if not report.uncertain and not (lost and not report.kept):
            wrong += set(commit.held) - set(found.keys) - named
        is_named = COMMENT_NAME in lost or report.uncertain or is_error(found.metadata)
        rows.append(wrong + ["metadata"] * (found.metadata != commit.metadata and not is_named))
    assert not all(rows), f"{rows}, {report}"


def check_written(path: Path, damaged: Collection[str] = ()) -> None:
    """What was written is sound, and NumPy reads it, but for some keys."""
    report = npzkit.verify(path)
    assert {row.key for row in report.rows if row.severity == "error"} <= {*damaged}, report
    with np.load(path) as npz, npzkit.open(path) as own:
        for key in set(npz) - {*damaged}:
            try:
                array = npz[key]
            except NotImplementedError:
                # Zstandard, before Python 3.14.
                assert sys.version_info < (3, 14)
                continue
            assert held_as(array)[-1] == held_as(own[key])[-1], key


# -- actions ---------------------------------------------------------------------------


def read_each(state: State, path: Path) -> None:
    check_found(state, read(path))


@contextlib.contextmanager
def told() -> Iterator[list[Any]]:
    """Keep the warnings of a block of code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def load_all(state: State, path: Path) -> None:
    with told() as caught, npzkit.open(path) as npz:
        arrays = {key: held_as(array) for key, array in npz.load_all().items()}
        attrs = {key: dict(npz.info(key).attrs) for key in npz}
        check_found(state, Found(list(npz), arrays, attrs, dict(npz.metadata), bool(caught)))


def iterate(state: State, path: Path) -> None:
    with told() as caught, path.open("rb") as file:
        found = {key: held_as(array) for key, array in npzkit.iter_arrays(file)}
    is_torn = any(issubclass(one.category, TornArchiveWarning) for one in caught)
    for commit in state.older if is_torn else state.newest:
        if found == {key: one.array for key, one in commit.held.items()}:
            return
    raise AssertionError(f"found {list(found)}")


def verify(state: State, path: Path) -> None:
    report = npzkit.verify(path)
    if report.ok:
        found = read(path)
        check_found(state, found, is_told=bool(report.torn_size))
        errors = [one for one in (*found.arrays.values(), found.metadata) if is_error(one)]
        assert not errors, errors


def repair(state: State, path: Path) -> None:
    output = path.with_name("output.npz")
    output.unlink(missing_ok=True)
    try:
        report = npzkit.repair(path, output)
    except NpzkitError:
        assert not output.exists()
        raise
    check_report(state, report, read(output))
    check_written(output)
    assert path.read_bytes() == state.data


def repair_in_place(state: State, path: Path) -> None:
    report = npzkit.repair(path)
    found = read(path)
    assert not found.is_torn
    check_report(state, report, found)


def repack(state: State, path: Path) -> None:
    before = read(path)
    with told():
        npzkit.repack(path)
    check_found(state, read(path), is_told=before.is_torn)
    # What is compressed is copied as it is.
    check_written(path, [key for key, array in before.arrays.items() if is_error(array)])


def check_edited(state: State, path: Path, edit: Callable[[Any], list[str]]) -> None:
    """An edit leaves all as it was, but for what it changes."""
    before = read(path)
    check_found(state, before)
    with warnings.catch_warnings():
        # A damaged array is not copied, so its archive is not repacked.
        warnings.filterwarnings("ignore", "the archive is complete, but", RuntimeWarning)
        warnings.simplefilter("ignore", TornArchiveWarning)
        with npzkit.NpzWriter(path, "a") as writer:
            changed = edit(writer)
    found = read(path)
    assert not (found.is_torn and changed)
    assert {*found.keys} ^ {*before.keys} <= {*changed}
    for key in set(found.keys) - set(changed):
        if not is_error(before.arrays[key]):
            assert found.arrays[key] == before.arrays[key], key
            assert found.attrs[key] == before.attrs[key], key
    assert found.metadata == before.metadata or is_error(before.metadata)


def append(state: State, path: Path) -> None:
    def add(writer: npzkit.NpzWriter) -> list[str]:
        writer.add("appended", np.arange(4))
        writer.commit()
        return ["appended"]

    check_edited(state, path, add)


def delete(state: State, path: Path) -> None:
    def remove(writer: npzkit.NpzWriter) -> list[str]:
        keys = list(writer)[:1]
        for key in keys:
            del writer[key]
        return keys

    check_edited(state, path, remove)


ACTIONS = read_each, load_all, iterate, verify, repair, repair_in_place, repack, append, delete


@pytest.mark.slow
@each_row("action", ACTIONS)
def test_each_action_after_damage(action, tmp_path):
    """After any damage, an action finds the newest state, or says what is wrong, and changes nothing."""
    outcomes: Counter[str] = Counter()
    violations = []
    with folder_in_memory(tmp_path) as folder:
        path = folder / "damaged.npz"
        for number in range(ACTION_COUNT // len(ACTIONS)):
            rng = random.Random(f"{action.__name__} {number}")
            archive = archive_of(rng.randrange(len(CASES) + ARCHIVE_COUNT), folder)
            state = damaged(rng, archive)
            path.write_bytes(state.data)
            try:
                action(state, path)
                outcomes["done"] += 1
            except NpzkitError:
                outcomes["refused"] += 1
                if path.read_bytes() != state.data:
                    violations.append(f"{number}, {archive.name}: the file was changed")
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                violations.append(f"{number}, {archive.name}: {what[:300]}")
    print(action.__name__, dict(outcomes))
    assert not violations, f"{len(violations)}:\n" + "\n".join(violations[:20])
    assert outcomes["done"]
    assert outcomes["refused"] or action is verify
