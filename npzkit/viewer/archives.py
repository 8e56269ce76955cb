"""The archives of a page: their names, their keys as trees, and what is known of an array.

Owns when they are opened, once for all pages, and which of them are closed at the end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from npzkit.archive.npzfile import NpzFile
from npzkit.datasets.opening import open_any
from npzkit.datasets.shardedfile import ShardedFile
from npzkit.display.key_tree import KeyTree
from npzkit.errors import NpzkitError, printable, warn
from npzkit.members.array_info import ArrayInfo
from npzkit.viewer.shown import Shown
from npzkit.viewer.sources import ArraySource

_LABEL_LENGTH = 60


class ShownArchive:
    """One of the archives that are shown.

    Parameters
    ----------
    npz : NpzFile

    Attributes
    ----------
    path : str
        Without secrets.
    label : str
        Its short name.
    totals : ArchiveInfo
    known : dict of str to ArrayInfo
        What was read of arrays, so that nobody waits for it again.
    damaged : dict of str to str
        Keys that a check has found damaged, and why.
    differing : collection of str
        Keys that another archive lacks or has with other values, and the folders of these.
    """

    def __init__(self, npz: NpzFile) -> None:
        self.npz = npz
        self.totals = npz.archive_info()
        self.known: dict[str, ArrayInfo] = {}
        self.damaged: dict[str, str] = {}
        self.differing: Collection[str] = ()
        self._checked: set[str] = set()
        self.path = printable(self.totals.path or "archive")
        name = os.path.basename(self.path.rstrip("/\\")) or self.path
        self.label = name if len(name) <= _LABEL_LENGTH else f"{name[:_LABEL_LENGTH]}..."

    @cached_property
    def tree(self) -> KeyTree:
        return KeyTree(self.npz.files)

    def info(self, key: str) -> ArrayInfo:
        """Return what is known of an array without its data; see `NpzFile.info`."""
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.npz.info(key)
        return found

    def mark(self, keys: Collection[str]) -> None:
        """Note which keys differ, so that the tree marks them."""
        self.differing = {*keys}.union(*map(self.tree.parents, keys))

    def check(self, key: str, proceed: Callable[[], object]) -> None:
        """Check the data of an array, once: it is `damaged` if its checksum does not match."""
        if key not in self._checked:
            report = self.npz.verify([key], progress=lambda done, total: proceed())
            for row in report.rows:
                if row.severity == "error" and row.key == key:
                    self.damaged[key] = row.what
            self._checked.add(key)


def open_archives(
    stack: contextlib.ExitStack,
    files: Sequence[Any],
    storage_options: Mapping[str, Any] | None = None,
) -> list[ShownArchive]:
    """Open what is not open yet, until the stack is closed.

    Of several files, those that cannot be opened are left out, with a warning.
    """
    found, failed = [], []
    for file in files:
        npz = file
        try:
            if not isinstance(file, NpzFile):
                npz = stack.enter_context(open_any(file, storage_options=storage_options))
            found.append(ShownArchive(npz))
        except (NpzkitError, OSError) as error:
            failed.append(error)
    if not found:
        raise failed[0]
    for reason in failed:
        warn(f"left out: {reason}", UserWarning)
    return found


def why_hidden(info: ArrayInfo) -> str | None:
    """Return why the values of a member are not shown, or None if they are."""
    if info.dtype is None:
        return "This member is not an array."
    if info.dtype.hasobject:
        return "This array holds Python objects. Unpickling them can run code, so they stay closed."
    return None


def field_dtype(info: ArrayInfo, field: str | None) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the dtype of an array, or of one of its fields."""
    shape = info.shape or ()
    dtype: np.dtype[Any] = np.dtype(info.dtype)
    if field is None:
        return shape, dtype
    inner = dtype[field]
    return shape + inner.shape, inner.base


def source_of(
    archives: Sequence[ShownArchive], shown: Shown, proceed: Callable[[], object]
) -> ArraySource:
    """Return the array that is shown, to be read in parts."""
    archive = archives[shown.archive]
    lazy = archive.npz.lazy(str(shown.key))
    # The parts of a sharded array are read by themselves.
    is_in_steps = lazy._read_habits.is_in_order and not isinstance(archive.npz, ShardedFile)
    return ArraySource(lazy, shown.field, is_in_steps=is_in_steps, proceed=proceed)
