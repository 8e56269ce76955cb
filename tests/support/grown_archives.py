"""Archives of several commits, of each kind that there is, and what each of their bytes is for."""

from __future__ import annotations

import contextlib
import functools
import io
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import npzkit
import numpy as np
import pytest
from commits import SLOT_SIZE, Part, last_end, last_slot, parts_of, unfinished
from forge import npy
from history import Commit, Held, History, held_as
from npzkit.errors import TornArchiveWarning

__all__ = [
    "CASES",
    "Case",
    "OneWay",
    "made",
    "noise",
    "random_commits",
    "with_comments",
    "zip64_from",
]


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size).astype("u1")


SAVED = {"a": np.arange(3.0), "b": np.array(["x", "yz"]), "c": np.float32(1.5)}


def saved(
    path: Path | io.BytesIO, save: Callable[..., None] = npzkit.savez, **options: Any
) -> History:
    save(path, **SAVED, **options)
    return History(path).took(SAVED)


def grown(history: History, **options: Any) -> History:
    """Commit twice to an archive, as most programs do."""
    with history.edit(**options) as e:
        e.add("d", np.arange(5), attrs={"unit": "m"})
    with history.edit(**options) as e:
        e.add("e", np.arange(4, dtype="u1"), attrs={"unit": "s", "n": 3})
        e.add("f", np.zeros((0, 3)))
    return history


def one_commit(path):
    history = History(path)
    with history.edit("w") as e:
        e.add("a", np.arange(7), attrs={"unit": "m"})
        e.add("b", np.arange("2020-01-01", "2020-01-04", dtype="M8[D]"))
        e.edit_metadata(step=1)
    return history


def stored(path):
    return grown(saved(path))


def durable(path):
    return grown(saved(path), durable=True)


def deflated(path):
    history = saved(path, npzkit.savez_compressed)
    with history.edit(compression="deflated", chunk_size=4096) as e:
        e.add("seekable", np.arange(1500, dtype="<u4") // 50, attrs={"unit": "m"})
    with history.edit(compression="deflated") as e:
        e.add("d", np.arange(40))
        e.add("plain", np.arange(9), compression="stored")
    return history


def zstandard(path):
    history = History(path)
    with history.edit("w", compression="zstd", chunk_size=4096) as e:
        e.add("seekable", np.arange(1500, dtype="<u4") // 50, attrs={"unit": "m"})
        e.add("d", np.arange(40))
    with history.edit(compression="zstd") as e:
        e.add("e", np.arange(90) % 7)
    return history


def with_comments(path):
    history = History(path)
    for step in range(3):
        with history.edit("a" if step else "w") as e:
            e.add(f"n{step}", np.arange(step + 2))
            e.edit_metadata(step=step, note="x" * 40)
    return history


def with_long_comments(path):
    """So long that they lie in several sectors."""
    history = saved(path)
    for step in range(2):
        with history.edit() as e:
            e.add(f"n{step}", np.arange(step + 2))
            e.edit_metadata(step=step, note="x" * 700 * (step + 1))
    return history


def with_large_metadata(path):
    """A comment cannot hold it: it lies in a hidden member, and a commit leaves it there."""
    history = saved(path)
    with history.edit() as e:
        e.edit_metadata(note="x" * 70_000)
    with history.edit() as e:
        e.add("d", np.arange(5))
    return history


def with_dtypes(path):
    """What NPY cannot name, and what it can name alone."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    history = saved(path)
    with history.edit() as e:
        e.add("weights", np.arange(6).astype(ml_dtypes.bfloat16), attrs={"unit": "kg"})
        e.add("when", np.arange("2020-01", "2020-04", dtype="M8[M]"))
    with history.edit() as e:
        e.add("small", np.ones(3, ml_dtypes.float8_e4m3fn))
        e.add("delay", np.arange(3, dtype="m8[ms]"), attrs={"deep": {"list": [1, None, "é"]}})
    return history


def with_edited_attributes(path):
    """They are in the directory alone: what a member begins with is not written again."""
    history = grown(saved(path))
    with history.edit() as e:
        e.edit_attrs("d", unit="km", checked=True)
        e.edit_attrs("a", unit="N")
    return history


def with_changed_members(path):
    """Arrays are replaced, removed and renamed."""
    history = grown(saved(path))
    with history.edit() as e:
        e.add("a", np.arange(3.0) + 9, attrs={"unit": "m"}, overwrite=True)
        e.delete("b")
    with history.edit() as e:
        e.rename("d", "renamed")
        e.add("b", np.arange(2), attrs={"again": True})
    return history


def emptied(path):
    history = History(path)
    with history.edit("w") as e:
        e.add("a", np.arange(3))
        e.edit_metadata(step=1)
    with history.edit() as e:
        e.delete("a")
    return history


def by_numpy(path):
    return grown(saved(path, np.savez))


def by_numpy_compressed(path):
    return grown(saved(path, np.savez_compressed), compression="deflated")


class OneWay(io.RawIOBase):
    """A file that can only be written, from front to back."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


def by_zipfile(path):
    """With data descriptors, and a comment that is not npzkit's."""
    stream = OneWay()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in SAVED.items():
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), npy(array))
    path.write_bytes(stream.data)
    return grown(History(path).took(SAVED))


@contextlib.contextmanager
def zip64_from(count: int) -> Iterator[None]:
    """Have archives of so many members written as those of 65,535 are."""
    real = npzkit.zip.written_header.records.END_LAYOUT.format

    def format_end(record):
        if record.entry_count == count:
            # The number that stands for one that is elsewhere is the real one.
            record = record._replace(disk_entry_count=0xFFFF, entry_count=0xFFFF)
        return real(record)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("npzkit.zip.written_header.SENTINEL_16", count)
        patched.setattr(npzkit.zip.written_header.records.END_LAYOUT, "format", format_end)
        yield


def with_zip64(path):
    """Their ends are zip64's too, as those of archives with many members are."""
    with zip64_from(1):
        history = grown(saved(path))
    assert b"PK\6\6" in history.content[history.commits[-2].size :]
    return history


def of_tiny_commits(path):
    """Several lie in one sector."""
    history = saved(path)
    for key in "abc":
        with history.edit() as e:
            e.delete(key)
    with history.edit() as e:
        e.edit_metadata(step=1)
    return history


def of_one_session(path):
    """One writer, which makes the archive, commits several times."""
    history = History(path)
    with history.edit("w", compression="deflated", durable=True) as e:
        for step in range(3):
            e.add(f"n{step}", np.arange(step + 20), attrs={"step": step})
            e.edit_metadata(step=step)
            e.commit()
        e.rename("n0", "first")
    return history


def in_a_file_object(path):
    history = grown(saved(stream := io.BytesIO()))
    path.write_bytes(stream.getvalue())
    return history


def with_created_arrays(path):
    """They are filled by and by, one of them over a commit."""
    history = saved(path)
    with history.edit() as e:
        dst = e.writer.create("later", (30,), "i4", attrs={"unit": "m"})
        e.add("now", np.arange(3))
        e.commit()
        dst[:] = 7
        dst.close()
        # It has had its place since it was created.
        later = Held(held_as(np.full(30, 7, "i4")), {"unit": "m"})
        now = history.held.pop("now")
        history.held |= {"later": later, "now": now}
        with e.writer.create("grown", (None, 2), "i2", compression="deflated") as growing:
            growing.append(np.ones((40, 2), "i2"))
        history.held["grown"] = Held(held_as(np.ones((40, 2), "i2")), {})
    return history


def with_an_archive_inside(path):
    """The last array's bytes are an archive, and the one before it is the archive as it was."""
    history = saved(path)
    inner = io.BytesIO()
    np.savez(inner, a=np.arange(2))
    with history.edit() as e:
        e.add("itself", np.frombuffer(history.content, "u1"))
        e.add("inner", np.frombuffer(inner.getvalue(), "u1"))
    return history


def of_many(path):
    """So many members that they are read by columns."""
    arrays = {f"k{i}": np.array(i) for i in range(70)}
    npzkit.save(path, arrays)
    history = History(path).took(arrays)
    with history.edit() as e:
        e.add("last", np.arange(3), attrs={"unit": "m"})
    return history


def without_a_mark(path):
    """A commit was left without its mark, and another one followed."""
    history = grown(saved(path))
    content = path.read_bytes()
    slot = last_slot(content)
    path.write_bytes(content[:slot] + bytes(SLOT_SIZE) + content[slot + SLOT_SIZE :])
    with history.edit() as e:
        e.add("g", np.arange(3))
    return history


def cut_and_continued(path):
    """An append was not finished, and another one took its place."""
    history = saved(path)
    with npzkit.NpzWriter(path, "a", auto_repack=False) as w:
        w.add("lost", np.arange(200))
    torn = unfinished(path.read_bytes())
    path.write_bytes(torn[:-100])
    with pytest.warns(TornArchiveWarning), history.edit() as e:
        e.add("d", np.arange(3))
    return history


def repaired(path, damage: Callable[[bytearray, int, int], None]):
    """The newest end or directory was damaged, and written again by repair."""
    history = with_comments(path)
    data = bytearray(path.read_bytes())
    begin, _, _ = last_end(data)
    damage(data, data.rindex(b"PK\1\2"), begin)
    path.write_bytes(data)
    npzkit.repair(path)
    history.note()
    return history


def with_a_repaired_end(path):
    def damage(data, entry, end):
        data[end + 12] ^= 1

    return repaired(path, damage)


def with_a_repaired_directory(path):
    def damage(data, entry, end):
        data[entry + 46] ^= 1

    return repaired(path, damage)


CASES = [
    one_commit, stored, durable, deflated, zstandard, with_comments, with_long_comments, with_large_metadata,
    with_dtypes, with_edited_attributes, with_changed_members, emptied, by_numpy, by_numpy_compressed,
    by_zipfile, with_zip64, of_tiny_commits, of_one_session, in_a_file_object, with_created_arrays,
    with_an_archive_inside, of_many, without_a_mark, cut_and_continued, with_a_repaired_end,
    with_a_repaired_directory,
]  # fmt: skip


class Case:
    """An archive, its commits, and what each of its bytes belongs to.

    Attributes
    ----------
    data : bytes
    commits : list of Commit
    parts : list of Part
    """

    def __init__(self, name: str, data: bytes, commits: list[Commit]) -> None:
        self.name, self.data, self.commits = name, data, commits
        self.parts = parts_of(data)
        assert commits[-1].size == len(data)

    @functools.cached_property
    def labels(self) -> list[Part | None]:
        """The part that each byte belongs to; None where it is dead."""
        labels: list[Part | None] = [None] * len(self.data)
        for part in self.parts:
            labels[part.start : part.stop] = [part] * (part.stop - part.start)
        return labels

    def touched(self, damaged: bytes) -> list[Part]:
        """Return the parts with other bytes than before."""
        return [
            part
            for part in self.parts
            if damaged[part.start : part.stop] != self.data[part.start : part.stop]
        ]

    def lost_to(self, damaged: bytes) -> list[Commit]:
        """Return the commits behind which all is zeros, as if no append had followed; newest first."""
        older = reversed(self.commits[:-1])
        return [commit for commit in older if not damaged[commit.size :].strip(b"\0")]


def made(make: Callable[[Path], History], folder: Path) -> Case:
    history = make(folder / "made.npz")
    return Case(make.__name__, history.content, history.commits)


def random_commits(rng: random.Random, file: Path | io.BytesIO) -> History:
    """Return a small archive of some commits, each of a size of its own."""
    history = History(file)
    for step in range(rng.choice((1, 2, 2, 3, 3, 4, 5))):
        options = {"durable": rng.random() < 0.5} if isinstance(file, Path) else {}
        mode = "a" if step else "w"
        with history.edit(mode, compression=rng.choice(("stored", "deflated")), **options) as e:
            kind = rng.choice(("array", "array", "metadata", "both", "delete")) if step else "both"
            if kind in ("array", "both"):
                size = rng.choice((0, rng.randrange(100), rng.randrange(600), rng.randrange(4600)))
                e.add(f"n{step}" + "x" * rng.randrange(9), noise(size, step), attrs={"step": step})
            if kind == "delete" and history.held:
                e.delete(rng.choice(list(history.held)))
            if kind == "metadata" or rng.random() < 0.5:
                size = rng.choice((0, rng.randrange(40), rng.randrange(600), rng.randrange(5000)))
                e.edit_metadata(step=step, note="x" * size)
    return history
