"""Whole folders that a crash may leave, rebuilt from recorded calls.

`crash` records the calls, and follows what is on the disk of one file. Here, all files of a
folder are followed together.
"""

from __future__ import annotations

import os
import random
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from crash import CONTENT, FOLDER, NAMES, Recorder, Unsynced, cuts, front, renamed, replay

__all__ = ["Folder", "Followed", "killed_folders", "power_loss_folders"]


MOST_NAMED = 10
"""Changes of names up to which every subset of them may be chosen."""


class Folder(NamedTuple):
    """What a crash may leave, and which states a reader may find in it."""

    allowed: frozenset[Hashable]
    files: dict[str, bytes]


class Followed:
    """Work on a folder that is recorded, with what may be found at each moment."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.states: list[frozenset[Hashable]] = []

    def mark(self, *allowed: Hashable) -> None:
        """Say which states a reader may find from now on."""
        self.recorder.mark(len(self.states))
        self.states.append(frozenset(allowed))


def killed_folders(work: Followed) -> Iterator[Folder]:
    """Yield the folder at each call, and in the middle of each write."""
    names, contents = dict(work.recorder.names), dict(work.recorder.contents)
    allowed = work.states[0]

    def folder(changed: int = -1, content: bytes = b"") -> Folder:
        held = {**contents, changed: content}
        files = {path: held[inode] for path, inode in names.items() if inode != FOLDER}
        return Folder(allowed, files)

    for call in work.recorder.calls:
        if call.kind == "mark":
            allowed = work.states[call.allowed[0]]
        elif call.kind in NAMES:
            names = renamed(names, [call])
            if call.kind == "create":
                contents[call.inode] = b""
        elif call.kind in CONTENT:
            before = contents[call.inode]
            if call.kind == "write":
                for cut in cuts(call):
                    yield folder(call.inode, replay(before, [front(call, cut)]))
            contents[call.inode] = replay(before, [call])
        else:
            continue
        yield folder()


def power_loss_folders(work: Followed, rng: random.Random, count: int) -> Iterator[Folder]:
    """Yield folders after a loss of power: of what was not synced, any part may be there."""
    unsynced = Unsynced(work.recorder)
    allowed = work.states[0]

    def is_there(folder: str, names: dict[str, int]) -> bool:
        """Whether a folder was not lost, and with it all that is in it."""
        return folder in names or not folder.startswith(f"{work.recorder.folder}{os.sep}")

    for call in work.recorder.calls:
        if call.kind == "mark":
            allowed = work.states[call.allowed[0]]
        unsynced.follow(call)
        for names in possible_names(unsynced, rng, count):
            files = {
                path: replay(
                    unsynced.contents[inode], rng.choice([[], some(unsynced.pending[inode], rng)])
                )
                for path, inode in names.items()
                if inode != FOLDER and is_there(os.path.dirname(path), names)
            }
            yield Folder(allowed, files)


def possible_names(unsynced: Unsynced, rng: random.Random, count: int) -> list[dict[str, int]]:
    """Return some of the sets of names that may be left."""
    if len(unsynced.named) <= MOST_NAMED:
        possible = unsynced.possible_names()
        return rng.sample(possible, min(len(possible), count))
    parts = [[call for call in unsynced.named if rng.random() < 0.7] for _ in range(count)]
    return [renamed(unsynced.names, part) for part in parts]


def some(calls: list, rng: random.Random) -> list:
    """Return some of the calls, of which one may be torn."""
    kept = [call for call in calls if rng.random() < 0.7]
    if kept and kept[-1].kind == "write" and rng.random() < 0.5:
        kept[-1] = front(kept[-1], rng.choice(cuts(kept[-1]) or [0]))
    return kept
