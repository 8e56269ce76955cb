"""Keys and member names: ``weights`` is the key, ``weights.npy`` the member.

Owns which keys can be written, and which member a key refers to. Pure functions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Container, Iterable, Iterator, Sequence, Set
from itertools import pairwise
from operator import itemgetter

from npzkit.errors import (
    TORCH_TO_CONVERT,
    Advice,
    KeyExistsError,
    LimitExceededError,
    MemberNotFoundError,
    UnsafeNameError,
    UnsupportedError,
    shown_value,
    some_of,
)

SUFFIX = ".npy"
ZARR_NAMES = "zarr.json", ".zgroup", ".zarray"
"""Files of which a Zarr store has at least one."""
MAX_PARTS = 200
"""How deep folders, groups and dicts may be that are made of keys."""
_NAME_MAX_SIZE = 0xFFFF
_FILE_NAME_MAX_LENGTH = 255
"""Largest length of a file name on any system."""
_COMPARED_COUNT = 100
"""If there are at most this many keys, a missing key is compared with all of them.
Each takes 10 to 100 microseconds."""
_SIMILAR_COUNT = 8
"""If there are more, this many before and after it are compared, by their starts and ends."""
_SEARCHED_COUNT = 100_000
"""Most keys to search for similar ones."""
_COMPARED_LENGTH = 256
"""Characters of the longest key that is compared, because the time is quadratic."""

_UNSAFE = (
    (r"\Z", "it is empty"),
    (r"/|[A-Za-z]:", "it is an absolute path, or begins with a drive letter"),
    (r".*[\x00-\x1f\x7f-\x9f]", "it contains a control character"),
    (r".*[\u2028\u2029]", "it contains a line or paragraph separator"),
    (r".*[\ud800-\udfff]", "it contains half of a surrogate pair"),
    (r".*\\", "it contains a backslash, which is a separator on Windows"),
    (r"(.*/)?\.\.?(/|\Z)", "it has a '.' or '..' part"),
    (r".*/(/|\Z)", "it has an empty part"),
    (r".*\.npy\Z", "it ends with '.npy', which npzkit adds to the member name"),
)
_SAFE_ASCII = bytes({*range(0x20, 0x7F), ord("\n")} - {ord("\\")})


def check_not_foreign(names: Collection[str], path: str | os.PathLike[str] | None) -> None:
    """Raise for a zip archive of another format.

    A file of torch.save holds a pickle, and bytes of tensors; a Zarr store, its documents.
    """
    first = next(iter(names), "")
    if first.endswith(SUFFIX):
        return
    folder, slash, _ = first.partition("/")
    if slash and f"{folder}/data.pkl" in names and f"{folder}/version" in names:
        what = "it is a file of torch.save, not an archive of arrays"
        raise UnsupportedError(what, path=path, remedy=TORCH_TO_CONVERT)._as_foreign(".pt")
    documents = (f"{start}{name}" for start in ("", f"{folder}/") for name in ZARR_NAMES)
    if any(name in names for name in documents) and not any(n.endswith(SUFFIX) for n in names):
        raise UnsupportedError(
            "it is a Zarr store in a zip, not an archive of arrays", path=path,
            remedy="Extract the zip, then convert the folder: " + Advice(
                'npzkit.convert(folder, "new.npz").', "npzkit convert FOLDER NEW.npz."
            ),
        )._as_foreign()  # fmt: skip


def check_key(key: str) -> str:
    """Return the member name for a new key.

    Raises
    ------
    UnsafeNameError
        Extracting the key would be dangerous, or no reader could find it again.
    TypeError
        The key is not a string.

    Examples
    --------
    >>> check_key("layer/weights")
    'layer/weights.npy'
    """
    if not isinstance(key, str):
        raise TypeError(f"a key must be a string, not {type(key).__name__}")
    # Patterns are compiled on first use, to keep the import of npzkit fast.
    if not _are_safe([key]):
        for pattern, reason in _UNSAFE:
            if re.match(pattern, key, re.DOTALL):
                raise UnsafeNameError(
                    f"this key cannot be saved: {reason}", key=key, remedy="Choose another key."
                )
    name = key + SUFFIX
    if len(name) > _NAME_MAX_SIZE // 4 and len(name.encode("utf-8")) > _NAME_MAX_SIZE:
        raise UnsafeNameError(
            "this key cannot be saved: it is too long",
            key=key,
            found=f"{len(key.encode('utf-8'))} bytes",
            expected=f"at most {_NAME_MAX_SIZE - len(SUFFIX)} bytes",
            remedy="Choose another key.",
        )
    return name


def check_depth(keys: Collection[str]) -> None:
    """Check the slashes of keys, before these become folders, groups or dicts in each other.

    Raises
    ------
    LimitExceededError
        A key has more parts than `MAX_PARTS`.
    """
    if max(map(len, keys), default=0) <= MAX_PARTS:
        return
    for key in keys:
        if len(key) > MAX_PARTS and key.count("/") >= MAX_PARTS:
            raise LimitExceededError(
                "the key has too many parts, which slashes separate", key=key,
                found=f"{key.count('/') + 1} parts", expected=f"at most {MAX_PARTS}",
                remedy="npz[key] reads the array; NpzWriter.rename gives it another key.",
            )  # fmt: skip


def check_several(keys: object) -> None:
    """Raise TypeError if `keys` is one string instead of a sequence."""
    if isinstance(keys, str):
        raise TypeError(f"keys must be a sequence of keys, not a string; pass [{keys!r}]")


def check_keys(keys: list[str]) -> list[str]:
    """Return the member names for new keys, in a third of the time of `check_key`."""
    if keys and set(map(type, keys)) == {str}:
        is_short = max(map(len, keys)) < _NAME_MAX_SIZE // 4
        if is_short and _are_safe(keys):
            return [key + SUFFIX for key in keys]
    return [check_key(key) for key in keys]


def are_plain(keys: list[str]) -> bool:
    """Whether all keys are ASCII, and `check_key` accepts them; False for some that it accepts."""
    is_short = max(map(len, keys), default=0) < _NAME_MAX_SIZE // 4
    return is_short and all(map(str.isascii, keys)) and _are_safe(keys)


def _are_safe(keys: list[str]) -> bool:
    """Whether no rule applies to any key; for a few unusual characters, False without a reason.

    10,000 keys take a millisecond. A pattern for all of them would take 600 bytes per key.
    """
    text = "\n".join(["", *keys, ""])
    if text.isascii():
        if text.encode().translate(None, _SAFE_ASCII):
            return False
    elif "\\" in text or not text.replace("\n", " ").isprintable():
        return False
    parts = text.replace("/", "\n")
    return (
        text.count("\n") == len(keys) + 1
        and "\n\n" not in parts
        and ".npy\n" not in parts
        and not ("\n." in parts and re.search(r"\n\.\.?\n", parts))
        and not (":" in text and re.search(r"\n[A-Za-z]:", text))
    )


def keys_of(names: Set[str]) -> list[str]:
    """Return the key of each member.

    One ``.npy`` is removed, unless another member has the name without it.
    """
    keys = [name.removesuffix(SUFFIX) for name in names]
    # Usually no key is also a member name. This test halves the time.
    if names.isdisjoint(keys):
        return keys
    return [key if (key := name.removesuffix(SUFFIX)) not in names else name for name in names]


def key_of(name: str, present: Container[str]) -> str:
    """Return the key of one member; see `keys_of`."""
    key = name.removesuffix(SUFFIX)
    return key if key not in present else name


def member_of(key: object, present: Container[str]) -> str | None:
    """Return the member that `key` refers to: the exact name, or the name with ``.npy``."""
    if not isinstance(key, str):
        return None
    if key in present:
        return key
    name = key + SUFFIX
    return name if name in present else None


def common_start(texts: Collection[str]) -> str:
    """Return the characters that all texts begin with.

    Examples
    --------
    >>> common_start(["net/w", "net/bias", "net/b"])
    'net/'
    """
    first, last = min(texts, default=""), max(texts, default="")
    for at, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:at]
    return first


def child_key(key: str, name: object) -> str:
    """Return the key of an item of the container at `key`."""
    return f"{key}/{name}" if key else str(name)


def is_within(key: str, prefix: str) -> bool:
    """Return whether a key is `prefix`, or is inside it; an empty prefix has all keys."""
    return not prefix or key == prefix or key.startswith(prefix + "/")


def find_collisions(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each name that cannot be extracted beside an earlier one, and that one.

    Both would be the same file on a system that ignores case or the composition
    of accented letters, or one of them is a folder in the path of the other.

    Examples
    --------
    >>> list(find_collisions(["a", "A", "b", "b/c"]))
    [('A', 'a'), ('b/c', 'b')]
    """
    # A slash sorts first, so that the names in a folder come right after the folder.
    ranked = [(_folded(name).replace("/", "\0"), at, name) for at, name in enumerate(names)]
    folded = sorted([name for name, _, _ in ranked])
    # Mostly nothing collides: a fifth of the time.
    if not any(b == a or b.startswith(a + "\0") for a, b in pairwise(folded)):
        return
    above: list[tuple[str, int, str]] = []
    for one in sorted(ranked):
        while above and one[0] != above[-1][0] and not one[0].startswith(above[-1][0] + "\0"):
            above.pop()
        if above:
            first, later = sorted((above[-1], one), key=itemgetter(1))
            yield later[2], first[2]
        above.append(one)


def _folded(name: str) -> str:
    """Return a name without differences in case or composition (Unicode, D145)."""
    if name.isascii():
        return name.lower()
    if any(len(part) > _FILE_NAME_MAX_LENGTH for part in name.split("/")):
        # Sorting many combining marks takes more than linear time.
        return name.casefold()
    import unicodedata

    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def missing(
    key: object, keys: Sequence[str], path: str | os.PathLike[str] | None = None
) -> MemberNotFoundError:
    """Return the error for a key that is not found, and suggest one that exists.

    Keys are quoted and cut, because an archive may have any text as keys.
    """
    return MemberNotFoundError(
        f"no array named {shown_value(key)}",
        path=path,
        key=key if isinstance(key, str) else None,
        remedy=suggestion(key, keys),
    )


def taken(key: str, path: str | None, remedy: str) -> KeyExistsError:
    """Return the error for a key that is to be new, and is not."""
    return KeyExistsError("this key is already in the archive", path=path, key=key, remedy=remedy)


def with_folders(keys: Sequence[str]) -> list[str]:
    """Return keys after what they are in, for a suggestion.

    Examples
    --------
    >>> with_folders(["step", "model/w", "model/b"])
    ['model/', 'step', 'model/w', 'model/b']
    """
    ends = ((key, place.end()) for key in keys for place in re.finditer("/", key))
    return [*dict.fromkeys(key[:end] for key, end in ends), *keys]


def suggestion(key: object, keys: Sequence[str], noun: str = "keys") -> str:
    """Return a sentence with the key that was probably meant, or with the existing ones."""
    if not isinstance(key, str):
        return f"{noun.capitalize()} are strings."
    misread = next((name for name in keys[:_SEARCHED_COUNT] if is_meant(key, name)), None)
    if misread is not None:
        return (
            f"Use {shown_value(misread)}: its bytes are these characters in UTF-8, but the archive "
            "does not say so."
        )
    close = _closest(key, keys)
    if close is not None:
        return f"Did you mean {shown_value(close)}?"
    existing = [name for name in keys if not name.endswith("/")]
    return f"Existing {noun}: {some_of(existing, shown_value) or 'none'}."


def as_utf8(key: str) -> str | None:
    """Return what the bytes of a name mean in UTF-8, that was read by code page 437; or None.

    Some programs write UTF-8, and do not set the flag that says so (Julia, macOS's zip).

    Examples
    --------
    >>> as_utf8("\u251c\u255d"), as_utf8("x")
    ('ü', None)
    """
    try:
        return None if key.isascii() else key.encode("cp437").decode("utf-8")
    except UnicodeError:
        return None


def is_meant(key: str, name: str) -> bool:
    """Return whether a key is what the bytes of a misread name mean, composed or not."""
    if key.isascii() or name.isascii():
        return False
    from unicodedata import normalize

    found = as_utf8(name)
    return found is not None and normalize("NFC", found) == normalize("NFC", key)


def _closest(key: str, keys: Sequence[str]) -> str | None:
    """Return the key that is most similar to a key, or one with the same last part, or None."""
    import difflib

    if len(key) > _COMPARED_LENGTH:
        return None
    searched = keys[:_SEARCHED_COUNT]
    folded = {name.casefold(): name for name in searched if len(name) <= _COMPARED_LENGTH}
    wanted = key.casefold()
    near = _near(wanted, folded) if len(folded) > _COMPARED_COUNT else list(folded)
    last = wanted.rpartition("/")[2]
    alike = (name for name in near if last and name.rpartition("/")[2] == last)
    close = next(iter(difflib.get_close_matches(wanted, near, n=1)), None) or next(alike, None)
    return close and folded[close]


def _near(wanted: str, names: Iterable[str]) -> list[str]:
    """Return some names with the most similar start, and some with the most similar end.

    A single mistake leaves the first or the last half of a key unchanged.
    """
    from bisect import bisect

    found: list[str] = []
    for step in (1, -1):
        ranked = sorted(name[::step] for name in names)
        at = bisect(ranked, wanted[::step])
        near = ranked[max(at - _SIMILAR_COUNT, 0) : at + _SIMILAR_COUNT]
        found += (name[::step] for name in near)
    return found
