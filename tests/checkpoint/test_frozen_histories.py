"""Random lives of a store with frozen arrays and damage: a sound step is never lost."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from deep import amount
from npzkit.checkpoint import CheckpointStore, best, every, latest
from npzkit.errors import DamagedCheckpointError, IndexFormatError, NoCheckpointError

POLICIES = [latest(1), latest(2), latest(1) | best("loss"), best("loss", 2), every(3), None]
ACTIONS = ["save"] * 5 + ["damage"] * 3 + ["load", "prune", "delete", "reopen", "verify"]


class Life:
    """A store, and what each of its steps is to hold."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.choice = folder, random.Random(seed)
        self.trees: dict[int, dict] = {}
        self.next, self.base = 0, 0
        self.store = self.opened()

    def opened(self) -> CheckpointStore:
        return CheckpointStore(
            self.folder, keep=self.choice.choice(POLICIES), frozen="backbone/*", durable=False
        )

    def sound(self) -> set[int]:
        """Return the steps whose arrays are all as they were saved, by a store of its own."""
        found = set()
        with CheckpointStore(self.folder) as other:
            for step in other.steps:
                try:
                    tree = other.load(step).tree
                    np.testing.assert_equal(tree, self.trees[step])
                except DamagedCheckpointError:
                    continue
                found.add(step)
        return found

    # -- what happens -----------------------------------------------------------------

    def save(self) -> None:
        if self.choice.random() < 0.2:
            self.base += 1
        step = self.next
        self.next += 1
        if self.choice.random() < 0.3 and self.trees:
            step = self.choice.choice(sorted(self.trees))
        tree = {
            "head": np.full(30, step),
            "backbone": {"w": np.arange(2000.0) + self.base, "b": np.ones(3)},
        }
        self.trees[step] = tree
        kinds = [{}, {}, {}, {"refresh": 2}, {"frozen": ()}, {"check": True, "verify": "after"}]
        options = self.choice.choice(kinds)
        try:
            self.store.save(step, tree, metrics={"loss": self.choice.random()}, **options)
        except (DamagedCheckpointError, IndexFormatError) as error:
            # A linked file is damaged. Or the index of this step is, so that it may be one of
            # another program, which stays.
            allowed = DamagedCheckpointError if options.get("verify") else IndexFormatError
            if not isinstance(error, allowed | IndexFormatError):
                raise

    def damage(self) -> None:
        files = [
            path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".lock"
        ]
        if not files:
            return
        path = self.choice.choice(sorted(files))
        kind, data = self.choice.choice(["flip", "flip", "cut", "remove"]), path.read_bytes()
        if kind == "remove":
            path.unlink()
        elif kind == "cut":
            os.truncate(path, self.choice.randrange(len(data) + 1))
        elif data:
            place = self.choice.randrange(len(data))
            with path.open("r+b") as file:
                file.seek(place)
                file.write(bytes([data[place] ^ 1 << self.choice.randrange(8)]))

    def load(self) -> None:
        try:
            found = self.store.load()
        except (NoCheckpointError, DamagedCheckpointError):
            assert not self.sound()
        else:
            assert found.step == max(self.sound())
            np.testing.assert_equal(found.tree, self.trees[found.step])

    def prune(self) -> None:
        self.store.prune()

    def delete(self) -> None:
        sound = self.sound()
        others = [step for step in self.store.steps if step not in sound or len(sound) > 1]
        if others:
            self.store.delete(self.choice.choice(others))

    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    def verify(self) -> None:
        # It also finds damage that no array suffers from.
        steps = set(self.store.steps)
        assert not steps or steps.difference(self.store.verify().damaged) <= self.sound()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_sound_step_is_never_lost(tmp_path, part):
    """Whatever is saved, linked, damaged, removed and loaded: what was sound stays, or newer."""
    for number in range(amount(3, 50)):
        seed = 1000 * part + number
        folder = tmp_path / str(seed)
        life = Life(folder, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(life.choice.randrange(5, 20)):
                action = life.choice.choice(ACTIONS)
                before = life.sound() if folder.exists() else set()
                getattr(life, action)()
                after = life.sound() if folder.exists() else set()
                if action != "damage" and before:
                    assert after, (seed, action)
            life.load()
        life.store.close()
        shutil.rmtree(folder, ignore_errors=True)
