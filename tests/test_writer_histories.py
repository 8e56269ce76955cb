"""Random lives of a writer with forks, threads, workers that come late, and other programs."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import shutil
import threading
import warnings
from pathlib import Path

import npzkit
import numpy as np
import pytest
from children import forked, read_rest
from deep import amount
from npzkit.errors import ClosedArchiveError, NpzkitError, StaleArchiveError, UnsupportedError

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
KEYS = ["a", "b", "c", "d"]
ROWS = 300
ACTIONS = [
    "add", "add", "remove", "rename", "create", "create", "fill", "fill", "fill_forked",
    "fill_pickled", "fill_in_thread", "seal", "commit", "commit", "close", "abort", "misuse",
    "late", "foreign",
]  # fmt: skip


class Created:
    """An array that is being created, or was, and what it is to hold."""

    def __init__(self, key, dst):
        self.key, self.dst, self.values = key, dst, np.zeros((ROWS, 5))
        self.pickled = b""


class Life:
    """A writer of one path or file object, and a model of what was committed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.choice = random.Random(seed)
        self.folder = folder
        self.is_path = self.choice.random() < 0.75
        self.file = folder / "a.npz" if self.is_path else io.BytesIO()
        self.committed: dict[str, np.ndarray] = {}
        self.pending: dict[str, np.ndarray] = {}
        self.created: list[Created] = []
        self.old: list[Created] = []
        self.writer = None
        if self.choice.random() < 0.5:
            npzkit.save(self.file, {"a": np.arange(4.0)})
            self.committed = {"a": np.arange(4.0)}
        self.begin()

    def begin(self) -> None:
        mode = "a" if self.choice.random() < 0.8 or not self.is_path else "w"
        if not self.is_path:
            self.file.seek(0)
        self.writer = npzkit.NpzWriter(self.file, mode, auto_repack=self.choice.random() < 0.5)
        self.pending = dict(self.committed) if mode == "a" else {}
        self.is_new = mode == "w" or not (
            self.file.exists() if self.is_path else self.file.getvalue()
        )

    def array(self) -> np.ndarray:
        size = self.choice.choice([0, 3, 1000, 20_000])
        return np.full(size, self.choice.random())

    def free(self) -> list[str]:
        taken = {one.key for one in self.created} | self.pending.keys()
        return [key for key in KEYS if key not in taken]

    def part(self) -> tuple[slice, float]:
        start = self.choice.randrange(ROWS)
        return slice(start, self.choice.randrange(start, ROWS) + 1), self.choice.random()

    # -- edits ------------------------------------------------------------------------

    def add(self) -> None:
        if free := self.free():
            key, array = self.choice.choice(free), self.array()
            compression = self.choice.choice(["stored", "stored", "deflated"])
            self.writer.add(key, array, compression=compression)
            self.pending[key] = array

    def remove(self) -> None:
        if self.pending:
            key = self.choice.choice(sorted(self.pending))
            del self.writer[key], self.pending[key]

    def rename(self) -> None:
        if self.pending and (free := self.free()):
            old, new = self.choice.choice(sorted(self.pending)), self.choice.choice(free)
            self.writer.rename(old, new)
            self.pending[new] = self.pending.pop(old)

    def create(self) -> None:
        if free := self.free():
            key = self.choice.choice(free)
            one = Created(key, self.writer.create(key, (ROWS, 5), "f8"))
            if self.is_path:
                one.pickled = pickle.dumps(one.dst)
            self.created.append(one)

    # -- who fills --------------------------------------------------------------------

    def fill(self) -> None:
        if self.created:
            one, (rows, value) = self.choice.choice(self.created), self.part()
            one.dst[rows] = value
            one.values[rows] = value
            if self.is_path and self.choice.random() < 0.3:
                one.dst[:, 2] = value
                one.values[:, 2] = value

    def fill_forked(self) -> None:
        """A worker writes once what is there now, and once after the parent went on."""
        if not self.created:
            return
        one, (rows, value) = self.choice.choice(self.created), self.part()
        going, go = os.pipe()
        later = self.choice.random() < 0.7

        def work(pipe: int) -> None:
            if later:
                os.read(going, 1)
            try:
                one.dst[rows] = value
            except (ClosedArchiveError, UnsupportedError) as error:
                os.write(pipe, type(error).__name__.encode())
            else:
                os.write(pipe, b"done")
            if self.choice.random() < 0.5:
                self.writer.abort()

        with forked(work) as (_, pipe):
            if later:
                with contextlib.suppress(NpzkitError):
                    getattr(
                        self, self.choice.choice(["add", "commit", "add", "seal", "close", "abort"])
                    )()
                os.write(go, b"!")
            said = read_rest(pipe)
        os.close(going)
        os.close(go)
        is_open = one in self.created
        if said == b"done":
            assert self.is_path
            one.values[rows] = value
            if not is_open:
                # In the room of an array that was given up within a committed archive.
                assert one.key not in self.pending or one in self.old
        else:
            assert not is_open or not self.is_path, said

    def fill_pickled(self) -> None:
        if self.created and self.is_path:
            one, (rows, value) = self.choice.choice(self.created), self.part()
            pickle.loads(one.pickled)[rows] = value
            one.values[rows] = value

    def fill_in_thread(self) -> None:
        if not self.created:
            return
        one = self.choice.choice(self.created)
        rows, value = self.part()

        def work() -> None:
            for _ in range(20):
                one.dst[rows] = value

        thread = threading.Thread(target=work)
        thread.start()
        self.add()
        if self.choice.random() < 0.5:
            self.commit()
        thread.join()
        one.values[rows] = value

    def late(self) -> None:
        """What was sealed or given up is written to again, by each kind of handle."""
        if not self.old:
            return
        one, (rows, value) = self.choice.choice(self.old), self.part()
        with pytest.raises(ClosedArchiveError):
            one.dst[rows] = value
        if one.pickled:
            # Without an error only where nothing counts.
            with contextlib.suppress(ClosedArchiveError):
                pickle.loads(one.pickled)[rows] = value

    # -- ends -------------------------------------------------------------------------

    def seal(self) -> None:
        if self.created:
            one = self.created.pop(self.choice.randrange(len(self.created)))
            one.dst.close()
            self.pending[one.key] = one.values
            self.old.append(one)

    def commit(self) -> None:
        self.writer.commit()
        if self.pending or not self.is_new:
            self.committed, self.is_new = dict(self.pending), False

    def close(self) -> None:
        self.writer.close()
        for one in self.created:
            self.pending[one.key] = one.values
        self.old += self.created
        self.created = []
        self.committed, self.is_new = dict(self.pending), False
        self.check()
        self.begin()

    def abort(self) -> None:
        self.writer.abort()
        self.old += self.created
        self.created = []
        if self.is_new and not self.is_path:
            # Nothing was committed, so what is there is no archive.
            self.file = io.BytesIO()
        self.check()
        self.begin()

    def misuse(self) -> None:
        """A child does with the writer what it may not."""

        def work(pipe: int) -> None:
            for use in (self.writer.close, self.writer.commit, lambda: self.writer.add("z", [1])):
                with contextlib.suppress(ClosedArchiveError):
                    use()
                    os.write(pipe, b"bad")
            with contextlib.suppress(SystemExit), self.writer:
                raise SystemExit

        with forked(work) as (_, pipe):
            assert read_rest(pipe) == b""

    def foreign(self) -> None:
        """Another program appends to the file: its bytes stay, and the writer says so."""
        if not self.is_path or not self.file.exists() or self.choice.random() < 0.7:
            return
        with self.file.open("ab") as file:
            file.write(b"theirs")
        before = self.file.read_bytes()
        if self.is_new:
            # A file that is replaced, and was locked for that.
            self.file.write_bytes(before[:-6])
            return
        with pytest.raises(StaleArchiveError):
            self.writer.add("foreign", np.zeros(20_000))
            self.writer.commit()
        assert self.file.read_bytes()[: len(before)].endswith(b"theirs")
        self.file.write_bytes(before[:-6])
        self.old += self.created
        self.created = []
        self.begin()

    def check(self) -> None:
        """Compare the archive with the model."""
        if self.is_path and not self.file.exists():
            assert not self.committed
            return
        file = self.file if self.is_path else io.BytesIO(self.file.getvalue())
        if not self.is_path and not file.getvalue():
            return
        with npzkit.open(file) as npz:
            assert sorted(npz) == sorted(self.committed)
            assert npz.verify().ok
            for key, array in self.committed.items():
                assert np.array_equal(npz[key], array), key


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_commit_is_lost(tmp_path, part):
    """Whoever fills, forks, comes late or writes behind it, each commit holds what it should."""
    for number in range(amount(5, 250)):
        seed = 10_000 * part + number
        folder = tmp_path / str(seed)
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            life, actions = Life(folder, seed), []
            try:
                for _ in range(life.choice.randrange(4, 15)):
                    actions.append(life.choice.choice(ACTIONS))
                    getattr(life, actions[-1])()
                life.close()
                life.writer.abort()
            except BaseException as error:
                error.add_note(f"seed {seed}: {actions}")
                raise
            assert len(os.listdir(folder)) <= 1
        shutil.rmtree(folder)
