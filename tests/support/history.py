"""An archive as it grows: its bytes after each commit, and what it holds then, kept apart from it."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import npzkit
import numpy as np

__all__ = ["Commit", "Editor", "Held", "History", "held_as"]


class Held(NamedTuple):
    """An array, as far as it can be compared, and its attributes."""

    array: tuple[Any, ...]
    attrs: dict[str, Any]


class Commit(NamedTuple):
    """What an archive holds after a commit.

    Attributes
    ----------
    size : int
        Of the file.
    held : dict of str to Held
    metadata : dict
    """

    size: int
    held: dict[str, Held]
    metadata: dict[str, Any]


def held_as(array: Any) -> tuple[Any, ...]:
    """Return everything of an array that can be compared."""
    array = np.asanyarray(array)
    return array.dtype, array.shape, array.flags.f_contiguous, array.tobytes()


class Editor:
    """A writer and what its archive is to hold, changed alike."""

    def __init__(self, writer: npzkit.NpzWriter, history: History) -> None:
        self.writer, self.history = writer, history

    def add(self, key: str, array: Any, attrs: Mapping[str, Any] | None = None, **options: Any):
        self.writer.add(key, array, attrs=attrs, **options)
        held = self.history.held
        held[key] = Held(held_as(array), dict(attrs or {}))

    def delete(self, key: str) -> None:
        del self.writer[key], self.history.held[key]

    def rename(self, old: str, new: str) -> None:
        self.writer.rename(old, new)
        held = self.history.held.items()
        self.history.held = {new if key == old else key: one for key, one in held}

    def edit_attrs(self, key: str, **attrs: Any) -> None:
        self.writer.attrs(key).update(attrs)
        array, before = self.history.held[key]
        self.history.held[key] = Held(array, {**before, **attrs})

    def edit_metadata(self, **values: Any) -> None:
        self.writer.metadata.update(values)
        self.history.metadata = {**self.history.metadata, **values}

    def commit(self) -> None:
        self.writer.commit()
        self.history.note()


class History:
    """An archive at a path, or in a file object, and its commits.

    Attributes
    ----------
    file : Path or io.BytesIO
    held, metadata
        What it is to hold now.
    commits : list of Commit
    """

    def __init__(self, file: Path | io.BytesIO) -> None:
        self.file = file
        self.held: dict[str, Held] = {}
        self.metadata: dict[str, Any] = {}
        self.commits: list[Commit] = []

    @property
    def content(self) -> bytes:
        return self.file.read_bytes() if isinstance(self.file, Path) else self.file.getvalue()

    @property
    def newest(self) -> Commit:
        return self.commits[-1]

    def took(self, arrays: Mapping[str, Any]) -> History:
        """Note arrays that another program than `edit` has saved."""
        self.held = {key: Held(held_as(array), {}) for key, array in arrays.items()}
        self.note()
        return self

    def note(self) -> None:
        """Keep what the archive holds after a commit, which reads as it should."""
        size = len(self.content)
        if self.commits and self.commits[-1].size == size:
            return
        with npzkit.open(self.content, strict=True) as npz:
            found = {key: Held(held_as(npz[key]), dict(npz.info(key).attrs)) for key in npz}
            for key, (array, attrs) in found.items():
                # Where NPY cannot name a dtype, an attribute does.
                told = {name: attrs[name] for name in attrs if name != "npzkit.dtype"}
                assert (array, told) == self.held[key], key
            assert (list(found), dict(npz.metadata)) == (list(self.held), self.metadata)
        self.commits.append(Commit(size, found, dict(self.metadata)))

    @contextlib.contextmanager
    def edit(self, mode: str = "a", **options: Any) -> Iterator[Editor]:
        """Change the archive; what is committed at the end is noted."""
        file = os.fspath(self.file) if isinstance(self.file, Path) else self.file
        with npzkit.NpzWriter(file, mode, auto_repack=False, **options) as writer:
            yield Editor(writer, self)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.note()
