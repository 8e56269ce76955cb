"""What a store of objects can do to receive an archive: take it at once, or in parts.

Owns the interface of an upload, and on which condition it replaces an object. Knows
neither a protocol nor what the bytes mean. `npzkit.stores.upload_sink` cuts an archive
into parts and decides when it is complete.
"""

from __future__ import annotations

import abc
import errno
from typing import NamedTuple

from npzkit.errors import StaleArchiveError


class Condition(NamedTuple):
    """What must be at a name for an upload to appear there.

    Attributes
    ----------
    is_absent : bool
        No object.
    tag : str
        The object with this ETag, or other mark of `npzkit.stores.base_store.Version`. If empty,
        any object or none.
    """

    is_absent: bool = False
    tag: str = ""


ANY = Condition()


class Upload(abc.ABC):
    """One object that is being made. Shared by threads.

    Nothing is visible in the store until `put` or `complete` returns.

    Attributes
    ----------
    name : str
        The URL without secrets.
    condition : Condition
    has_parts : bool
        Whether the store takes parts. Otherwise, the object is made of all bytes at once.
    has_any_order : bool
        Whether parts may be sent in any order, or there are none.

    Notes
    -----
    Each method raises `npzkit.stores.base_store.TransientError` if it may be called again, and
    PermissionError, FileNotFoundError (no such bucket) or another OSError if not.
    """

    has_parts: bool = True
    has_any_order: bool = False

    def __init__(self, name: str, condition: Condition) -> None:
        self.name, self.condition = name, condition

    def check(self) -> None:
        """Raise FileExistsError or StaleArchiveError if the condition is not fulfilled now."""
        condition = self.condition
        if condition != ANY:
            found = self.find_tag()
            if found is not None if condition.is_absent else found != condition.tag:
                raise replaced(self.name, condition)

    @abc.abstractmethod
    def find_tag(self) -> str | None:
        """Return what tells the object at the name from others; None if there is none."""

    @abc.abstractmethod
    def put(self, data: bytearray) -> None:
        """Make the object of these bytes.

        Raises
        ------
        FileExistsError, StaleArchiveError
            The condition is not fulfilled.
        """

    @abc.abstractmethod
    def begin(self) -> None:
        """Begin to take parts. Remove what killed writers left under this name."""

    @abc.abstractmethod
    def send(self, number: int, data: bytearray) -> None:
        """Send one part. Parts are counted from 1."""

    @abc.abstractmethod
    def complete(self) -> None:
        """Make the object of all parts.

        Raises
        ------
        FileExistsError, StaleArchiveError
            The condition is not fulfilled.
        """

    def is_in_place(self) -> bool:
        """Return whether the object is known to be this one, after an answer was lost."""
        return False

    def stop(self) -> None:
        """Make requests of other threads end soon, because nobody waits for them any more."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Remove the parts, unless the object is complete. May be called twice."""


def replaced(name: str, condition: Condition) -> OSError | StaleArchiveError:
    """Return the error for a condition that is not fulfilled."""
    if condition.is_absent:
        return FileExistsError(errno.EEXIST, "already exists", name)
    return StaleArchiveError(
        "another writer replaced or removed the object meanwhile", path=name,
        remedy="The object of the other writer is kept. To replace it, write the archive again.",
    )  # fmt: skip
