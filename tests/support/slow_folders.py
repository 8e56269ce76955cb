"""Folders whose lists take long to read, as on a network share: what is listed may be old."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from npzkit.checkpoint.steps import Steps

__all__ = ["change_after_first_list", "slow_folders"]


class _Entries(contextlib.AbstractContextManager):
    """What `os.scandir` returns, of entries that were read before."""

    def __init__(self, entries: list[os.DirEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[os.DirEntry]:
        return self._entries

    def __exit__(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def slow_folders(seconds: float, rng: random.Random) -> Iterator[None]:
    """Have each list of a folder take so long, of which a part passes after it was read."""
    listdir, scandir = os.listdir, os.scandir

    def slowly(read: Any, path: Any) -> list:
        share = rng.random()
        time.sleep(seconds * share)
        found = list(read(path))
        time.sleep(seconds * (1 - share))
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "listdir", lambda path=".": slowly(listdir, path))
        patched.setattr(os, "scandir", lambda path=".": _Entries(slowly(scandir, path)))
        yield


def change_after_first_list(patched: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Have the first list of steps be old when it is used: `change` is called after it."""
    real, lists = Steps.steps, []

    def steps(storage: Steps) -> tuple[int, ...]:
        found = real(storage)
        lists.append(found)
        if len(lists) == 1:
            change()
        return found

    patched.setattr(Steps, "steps", steps)
