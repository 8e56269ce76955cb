"""Whole folders that a crash may leave, rebuilt from recorded calls.

`crash` records the calls, and follows what is on the disk of one file. Here, all files of a
folder are followed together, as one process or several change them.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crash import CONTENT, FOLDER, NAMES, Call, Recorder, Unsynced, cuts, front, renamed, replay

__all__ = ["Folder", "Followed", "check_folders", "killed_folders", "power_loss_folders"]


MOST_NAMED = 10
"""Changes of names up to which every subset of them may be chosen."""


class Folder(NamedTuple):
    """What a crash may leave, and which states a reader may find in it."""

    allowed: frozenset[Hashable]
    files: dict[str, bytes]
    is_torn: bool = False
    """Whether a program was killed in the middle of a write. There are many more of these."""


class Followed:
    """Work on a folder that is recorded, with what may be found at each moment."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.states: list[frozenset[Hashable]] = []

    def mark(self, *allowed: Hashable) -> None:
        """Say which states a reader may find from now on."""
        self.recorder.mark(len(self.states))
        self.states.append(frozenset(allowed))


def check_folders(
    folders: Iterable[Folder],
    root: str | os.PathLike[str],
    place: Path,
    count: int,
    check: Callable[[int, frozenset[Any]], None],
) -> int:
    """Check about `count` of the different folders, one after the other; return how many.

    Half of them are torn, if there are both kinds. Each is put in `place`, as if that were
    `root`, where the work was recorded. `check` gets its number and what may be found.
    """
    distinct = {(folder.allowed, tuple(sorted(folder.files.items()))): folder for folder in folders}
    kinds = [[each for each in distinct.values() if each.is_torn is torn] for torn in (False, True)]
    share = count // sum(map(bool, kinds))
    chosen = [each for kind in kinds for each in kind[:: max(len(kind) // share, 1)]]
    for number, folder in enumerate(chosen):
        place.mkdir()
        for path, content in folder.files.items():
            target = place / os.path.relpath(path, root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        check(number, folder.allowed)
        shutil.rmtree(place)
    return len(chosen)


def killed_folders(*works: Followed) -> Iterator[Folder]:
    """Yield the folder at each call, and in the middle of each write.

    If several processes work on it, each may have come to any of its calls, but none has gone on
    from where they meet before all have come there.
    """
    moment = Moment(works)
    for together in zip(*map(stretches, range(len(works)), works), strict=True):
        for calls in together:
            others = [other for other in together if other is not calls]
            for ends in itertools.product(*(range(len(other) + 1) for other in others)):
                now = moment.after(*map(itertools.islice, others, ends))
                for call in calls:
                    yield from now.amid(call)
                    now = now.after([call])
                    yield now.folder()
        moment = moment.after(*together)


class Made(NamedTuple):
    """A call, and the process that makes it."""

    process: int
    call: Call


def stretches(process: int, work: Followed) -> list[list[Made]]:
    """Return what a process changes before and after each time that it meets the others."""
    made: list[list[Made]] = [[]]
    for call in work.recorder.calls:
        if call.kind == "meet":
            made.append([])
        elif call.kind in {"mark", *NAMES, *CONTENT}:
            made[-1].append(Made(process, call))
    return made


class Moment:
    """A folder that processes have changed, with what each one allows to be found in it."""

    def __init__(self, works: Sequence[Followed]) -> None:
        self.works = works
        first = works[0].recorder
        self.names = {path: (0, inode) for path, inode in first.names.items()}
        self.contents = {(0, inode): content for inode, content in first.contents.items()}
        self.allowed = [work.states[0] for work in works]

    def after(self, *parts: Iterable[Made]) -> Moment:
        """Return the folder after some more calls."""
        new = copy.copy(self)
        new.contents, new.allowed = dict(self.contents), list(self.allowed)
        for process, call in itertools.chain(*parts):
            # Two processes give different files the same number.
            file = process, call.inode
            if call.kind == "mark":
                new.allowed[process] = self.works[process].states[call.allowed[0]]
            elif call.kind in CONTENT:
                new.contents[file] = replay(new.contents[file], [call])
            else:
                new.names = renamed(new.names, [call._replace(inode=file)])
                if call.kind == "create":
                    new.contents[file] = b""
        return new

    def amid(self, made: Made) -> Iterator[Folder]:
        """Yield the folder in the middle of a write."""
        if made.call.kind == "write":
            for cut in cuts(made.call):
                torn = self.after([made._replace(call=front(made.call, cut))])
                yield torn.folder(is_torn=True)

    def folder(self, *, is_torn: bool = False) -> Folder:
        files = {
            path: self.contents[file] for path, file in self.names.items() if file[1] != FOLDER
        }
        return Folder(frozenset.intersection(*self.allowed), files, is_torn)


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
