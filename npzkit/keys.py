"""Keys and member names: ``weights`` is the key, ``weights.npy`` the member.

Owns which keys may be written and how a key finds its member. Pure functions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence, Set
from operator import itemgetter

from npzkit.errors import MemberNotFoundError, NpzkitError, UnsafeNameError

__all__ = [
    "SUFFIX",
    "check_key",
    "check_keys",
    "find_collisions",
    "keys_of",
    "member_of",
    "missing",
]

SUFFIX = ".npy"
_NAME_MAX_SIZE = 0xFFFF
_FILE_NAME_MAX_LENGTH = 255
"""Of a file on any system."""
_SUGGESTION_COUNT = 100
"""Keys compared to a missing one: 10 microseconds each."""

_UNSAFE = (
    (r"\Z", "it is empty"),
    (r"/|[A-Za-z]:", "it is an absolute path, or begins with a drive"),
    (r".*[\x00-\x1f\x7f]", "it holds a control character"),
    (r".*[\ud800-\udfff]", "it holds half a surrogate pair"),
    (r".*\\", "it holds a backslash, a separator on Windows"),
    (r"(.*/)?\.\.?(/|\Z)", "it has a '.' or '..' part"),
    (r".*/(/|\Z)", "it has an empty part"),
    (r".*\.npy\Z", "it ends in '.npy', which is the member's name"),
)
_SAFE = r"[A-Za-z0-9_][A-Za-z0-9_-]*(/[A-Za-z0-9_][A-Za-z0-9_-]*)*"
"""Most keys there are. Without a dot or a colon nothing above can apply."""
_ALL_SAFE = rf"{_SAFE}(\n{_SAFE})*"
"""Several of them, a line each."""


def check_key(key: str) -> str:
    """Return the member name for a key that is to be written.

    Raises
    ------
    UnsafeNameError
        For a key that would be dangerous on extraction, or that no reader
        would find again.
    TypeError
        The key is not a string.

    Examples
    --------
    >>> check_key("layer/weights")
    'layer/weights.npy'
    """
    if not isinstance(key, str):
        raise TypeError(f"a key must be a string, not {type(key).__name__}")
    # Patterns are compiled when they are used first: importing npzkit is to be fast.
    if not re.fullmatch(_SAFE, key, re.ASCII):
        for pattern, reason in _UNSAFE:
            if re.match(pattern, key, re.DOTALL):
                raise UnsafeNameError(
                    f"this key cannot be saved: {reason}", key=key, remedy="Choose another."
                )
    name = key + SUFFIX
    if len(name) > _NAME_MAX_SIZE // 4 and len(name.encode("utf-8")) > _NAME_MAX_SIZE:
        raise UnsafeNameError(
            "this key cannot be saved: it is too long",
            key=key,
            found=f"{len(key.encode('utf-8'))} bytes",
            expected=f"at most {_NAME_MAX_SIZE - len(SUFFIX)}",
        )
    return name


def check_keys(keys: list[str]) -> list[str]:
    """Return the member names for keys; as `check_key`, in a third of the time."""
    if keys and all(type(key) is str for key in keys):
        text = "\n".join(keys)
        longest = max(map(len, keys))
        is_split_as_joined = text.count("\n") == len(keys) - 1
        is_short = longest < _NAME_MAX_SIZE // 4
        if is_split_as_joined and is_short and re.fullmatch(_ALL_SAFE, text, re.ASCII):
            return [key + SUFFIX for key in keys]
    return [check_key(key) for key in keys]


def keys_of(names: Set[str]) -> list[str]:
    """Return the key under which each member is listed.

    One ``.npy`` is stripped, unless a bare member of that name is there too.
    """
    keys = [name.removesuffix(SUFFIX) for name in names]
    # Usually all end in .npy, and no key is a name too: half the time.
    if names.isdisjoint(keys):
        return keys
    return [key if (key := name.removesuffix(SUFFIX)) not in names else name for name in names]


def member_of(key: object, present: Container[str]) -> str | None:
    """Return the member that `key` means: the exact name, then with ``.npy``."""
    if not isinstance(key, str):
        return None
    if key in present:
        return key
    name = key + SUFFIX
    return name if name in present else None


def find_collisions(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names that no system keeps apart from an earlier one, and that one.

    Both would be one file where case does not count, or how an accented letter
    is composed; or one is a folder on the other's way.

    Examples
    --------
    >>> list(find_collisions(["a", "A", "b", "b/c"]))
    [('A', 'a'), ('b/c', 'b')]
    """
    # A slash sorts before all else: what lies in a folder comes right behind its name.
    ranked = [(_folded(name).replace("/", "\0"), at, name) for at, name in enumerate(names)]
    above: list[tuple[str, int, str]] = []
    for one in sorted(ranked):
        while above and one[0] != above[-1][0] and not one[0].startswith(above[-1][0] + "\0"):
            above.pop()
        if above:
            first, later = sorted((above[-1], one), key=itemgetter(1))
            yield later[2], first[2]
        above.append(one)


def _folded(name: str) -> str:
    """Return what is the same of names that differ in case or composition (Unicode, D145)."""
    if name.isascii():
        return name.lower()
    if any(len(part) > _FILE_NAME_MAX_LENGTH for part in name.split("/")):
        # Marks without end are put in order in time that is not linear.
        return name.casefold()
    import unicodedata

    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def missing(
    key: object, keys: Sequence[str], path: str | os.PathLike[str] | None = None
) -> MemberNotFoundError:
    """Make the error for a key that is not there, and suggest one that is.

    Keys are quoted: those of an archive may hold anything, and be long.
    """
    return MemberNotFoundError(
        f"{key} is not a file in the archive",
        path=path,
        key=key if isinstance(key, str) else None,
        remedy=_suggestion(key, keys),
    )


def _suggestion(key: object, keys: Sequence[str]) -> str:
    if not isinstance(key, str):
        return "Keys are strings."
    if len(keys) <= _SUGGESTION_COUNT:
        import difflib

        close = difflib.get_close_matches(key, keys, n=1)
        if close:
            return f"Did you mean {NpzkitError.shown(close[0])}?"
    return f"It has {', '.join(map(NpzkitError.shown, keys[:10])) or 'none'}."
