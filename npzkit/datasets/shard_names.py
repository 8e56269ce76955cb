"""The names of shards and of attempts.

Owns which names are safe in any folder and store, and which shards belong to which
attempt. Pure functions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from npzkit.errors import UnsafeNameError

INDEX_NAME = "index.json"
_ATTEMPT = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?"
_WRITER_SIZE = 4
_OWN_NAME = re.compile(rf"shard-({_ATTEMPT})\.[0-9a-f]{{{2 * _WRITER_SIZE}}}-[0-9]{{5,12}}\.npz")
"""A shard that npzkit wrote: attempt, writer and number."""
_TEMPORARY_NAME = re.compile(r"\.npzkit-[0-9a-f]{16}\.tmp")
"""A file that `npzkit.files.path_sink` has not completed."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]{0,195}\.npz")
"""No separator, drive, scheme or other character that a system gives a meaning to."""
_DEVICE = re.compile(r"(?:CON|PRN|AUX|NUL|COM[0-9]|LPT[0-9])\.", re.IGNORECASE)
"""Names that are devices on Windows, with any suffix."""


def new_attempt() -> str:
    """Return the name of an attempt that nobody else has."""
    return os.urandom(8).hex()


def new_writer() -> str:
    """Return the name of a writer, which no other writer of its attempt has."""
    return os.urandom(_WRITER_SIZE).hex()


def check_attempt(attempt: object) -> str:
    """Return the name of an attempt.

    Raises
    ------
    TypeError, ValueError
        It cannot be a part of a file's name.
    """
    if not isinstance(attempt, str):
        raise TypeError(f"attempt must be a string or None, not {type(attempt).__name__}")
    if not re.fullmatch(_ATTEMPT, attempt):
        raise ValueError(
            f"attempt must be 1 to 64 letters, digits, '-' and '_', and begin and end with a "
            f"letter or digit; not {attempt!r}"
        )
    return attempt


def shard_name(attempt: str, writer: str, number: int) -> str:
    """Return the name of a shard.

    Examples
    --------
    >>> shard_name("a1", "00c0ffee", 2)
    'shard-a1.00c0ffee-00002.npz'
    """
    return f"shard-{attempt}.{writer}-{number:05}.npz"


def attempt_of(name: str) -> str | None:
    """Return the attempt that a shard belongs to; None if npzkit did not name the file."""
    found = _OWN_NAME.fullmatch(name)
    return found and found[1]


def is_temporary(name: str) -> bool:
    """Return whether a file is one that npzkit had not completed, or is writing."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def check_shard_names(names: Iterable[str]) -> None:
    """Raise UnsafeNameError unless all are plain names of files, which differ on any system.

    Examples
    --------
    >>> check_shard_names(["a.npz", "../b.npz"])
    Traceback (most recent call last):
        ...
    npzkit.errors.UnsafeNameError: this name of a shard is not safe: found '../b.npz'. A shard \
is a file in the folder of its index, such as 'part-1.npz'.
    """
    seen = set()
    for name in names:
        if not _SAFE_NAME.fullmatch(name) or _DEVICE.match(name):
            raise UnsafeNameError(
                "this name of a shard is not safe", found=name,
                remedy="A shard is a file in the folder of its index, such as 'part-1.npz'.",
            )  # fmt: skip
        folded = name.lower()
        if folded in seen:
            raise UnsafeNameError(
                "two shards have the same name, or names that differ in case alone", found=name
            )
        seen.add(folded)
