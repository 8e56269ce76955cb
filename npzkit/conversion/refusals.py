"""What `convert` refuses of a file: arrays without a place in the new format, and false claims.

Owns the bounds of what a file may claim, which come from `npzkit.Limits` or from its size: arrays,
bytes, and parts that cost time but no bytes. Owns which paths lead out of a folder, so that nothing
is read or written there. Which dtypes a format lacks, its module says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

from npzkit.conversion.arrays import (
    HOLDS_OBJECTS,
    MAKE_PLAIN,
    RUNS_CODE,
    Array,
    is_masked,
    parts_of,
)
from npzkit.errors import (
    SKIP,
    Advice,
    ConversionError,
    NpzkitError,
    check_limit,
    format_size,
    printable,
    shown_value,
)
from npzkit.limits import Limits
from npzkit.members.keys import check_depth, check_key

_RATIO = 1032
"""Bytes that deflate can make of one."""
_FREE_SIZE = 1 << 30
"""Bytes that a file may claim beyond that, for parts that were never written."""
_FREE_COUNT = 1 << 17
"""Texts and chunks of a file that no bytes need to stand for."""
_TEXT_SIZE = 4
"""Bytes of the shortest text."""
_FREE_TEXT_SIZE, _TEXT_RATIO = 1 << 26, 32
"""Bytes of an array of texts that are padded to one length: so many more than without."""


class Claims:
    """The bounds of one file, and what of them is used up.

    Parameters
    ----------
    limits : Limits
    size : int or None
        Bytes of the file, or of all files in its folder. None is for a file that npzkit has
        just written: it has no other bounds than `limits`.
    """

    def __init__(self, limits: Limits, size: int | None) -> None:
        self.limits, self.size = limits, size
        self._left = _FREE_COUNT + (limits.total_size or 0) // _TEXT_SIZE
        self._count, self._total = 0, 0

    @property
    def total_size(self) -> int | None:
        """The most bytes of all arrays together."""
        if self.limits.total_size is not None or self.size is None:
            return self.limits.total_size
        return _FREE_SIZE + _RATIO * self.size

    def add(self, key: str, nbytes: int) -> None:
        """Check what one more array claims, before any of it is read.

        Raises
        ------
        LimitExceededError
            It is too large, or together with the others.
        """
        self._count += 1
        self._total += nbytes
        limits = self.limits
        try:
            what = "the file has too many arrays"
            check_limit(self._count, limits.member_count, "member_count", what)
            check_limit(nbytes, limits.member_size, "member_size", "the array is too large")
            self.check_total(self._total)
        except NpzkitError as error:
            raise error.locate(key=key) from None

    def check_total(self, nbytes: int) -> None:
        """Check the bytes of all arrays together, as `add`."""
        what = "the arrays are too large"
        if self.limits.total_size is None:
            what = f"the arrays are too large for a file of {format_size(self.size or 0)}"
        check_limit(nbytes, self.total_size, "total_size", what)

    def has_room(self, count: int, least: int, stored: Callable[[], int]) -> bool:
        """Return whether a number of texts or chunks is believed, and count those that are free.

        Each takes `least` bytes before it is compressed. `stored` returns the bytes that the
        file has of the array.
        """
        if self.size is None:
            return True
        if count > self._left:
            count -= _RATIO * min(stored(), self.size) // least
        count = max(count, 0)
        if count > self._left:
            return False
        self._left -= count
        return True

    def may_pad(self, nbytes: int, text_size: int) -> bool:
        """Return whether texts may be padded to so many bytes in all."""
        if self.size is None or self.limits.member_size is not None:
            return True
        return nbytes <= _FREE_TEXT_SIZE + _TEXT_RATIO * text_size


def leads_out(root: str, path: str) -> bool:
    """Return whether a path, whose links are followed, is outside of a folder without links."""
    try:
        return os.path.commonpath([root, os.path.realpath(path)]) != root
    except ValueError:
        # Windows: another drive.
        return True


def size_of(path: str) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(
        os.lstat(os.path.join(place, name)).st_size
        for place, _, names in os.walk(path)
        for name in names
    )


def why_left_out(error: Exception) -> str:
    """Return what is wrong with a file, for a note that names it."""
    if not isinstance(error, NpzkitError):
        return printable(str(error))
    return error.what + ("" if error.key is None else f" (key {shown_value(error.key)})")


# -- arrays that have no place ---------------------------------------------------

RENAMED = Advice(': NpzWriter(path, "a").rename(key, new).', ": npzkit mv FILE KEY NEW.")
"""How an array of an archive gets another key."""
_LEAVE_OUT = "; or leave it out with " + SKIP + "."
_RENAME = (
    "Rename it in a copy: "
    + Advice('npzkit.convert(file, "new.npz"), NpzWriter("new.npz", "a").rename(key, new)',
             "npzkit convert FILE NEW.npz, then npzkit mv NEW.npz KEY NAME")
    + _LEAVE_OUT
)  # fmt: skip
_RENAME_ALL = (
    "Rename such keys in a copy: "
    + Advice('npzkit.convert(file, "new.npz");', "npzkit convert FILE new.npz, then in Python:")
    + ' w = npzkit.NpzWriter("new.npz", "a"); '
    '[w.rename(key, key.replace("/", "_")) for key in w.files if key in w]; w.close()'
)
_SAVE_STATE = (
    "In the program that made the file, save what it holds, such as model.state_dict() or "
    "vars(args) in Python" + _LEAVE_OUT
)
_SAVE_PLAIN = (
    "In the program that made the file, in Python, save float(x) for a number of NumPy's, or "
    "torch.from_numpy(x) for an array; or, if you trust the file, whose code this runs: "
    "npzkit.save('new.npz', torch.load(path, 'cpu', weights_only=False))" + _LEAVE_OUT
)
_NO_MASKED = "the format has no masked arrays"
_NO_STRINGS = "the format has no strings of any length"
_SAVE_FILLED = (
    "Save it in Python as npz.join(key).filled(value), and its mask under another key" + _LEAVE_OUT
)
_SAVE_AS_TEXT = "Save it in Python as numpy.array(npz.join(key).tolist())" + _LEAVE_OUT
_SAVE_FIELDS = (
    "Save each field as an array of its own, " + Advice("npz[key][field], ", "")
    + "and dates as integers" + _LEAVE_OUT
)  # fmt: skip


def fitting_arrays(arrays: list[Array], writer: Any, skipped: dict[str, str] | None) -> list[Array]:
    """Return the arrays that the new format has a place for; raise for others, or note them."""
    keys = {array.key for array in arrays}
    # These cannot be renamed alone.
    parts = {part for array in arrays for part in parts_of(array)}
    why_no_name = getattr(writer, "why_no_name", _is_name)
    for array in arrays:
        misnamed = why_no_name(array.key)
        reason = array.problem or _why_unfit(array, writer, keys, why_no_name)
        if reason and skipped is not None:
            skipped[array.key] = reason
        elif reason:
            remedy = _SAVE_FIELDS if array.dtype.names else "Leave it out with " + SKIP + "."
            if reason.startswith(RUNS_CODE):
                remedy = _SAVE_PLAIN if reason.startswith(f"{RUNS_CODE}: numpy.") else _SAVE_STATE
            elif reason == misnamed and array.key not in parts:
                remedy = _RENAME_ALL if "/" in array.key else _RENAME
            elif reason == HOLDS_OBJECTS and array.key not in parts:
                remedy = MAKE_PLAIN
            elif reason in (_NO_MASKED, _NO_STRINGS):
                remedy = _SAVE_FILLED if reason == _NO_MASKED else _SAVE_AS_TEXT
            what = "the value cannot be kept: " + reason
            raise ConversionError(what, key=array.key, remedy=remedy)
    if not skipped:
        return arrays
    for array in arrays:
        # Without its mask, an array would have other values.
        together = sorted(keys & {array.key, *parts_of(array)})
        if lost := [key for key in together if key in skipped]:
            reason = f"it belongs to {lost[0]!r}, which is left out"
            skipped.update(dict.fromkeys(set(together).difference(lost), reason))
    return [array for array in arrays if array.key not in skipped]


def _is_name(key: str) -> None:
    """Any key is a name, in most formats."""


def _why_unfit(
    array: Array, writer: Any, keys: set[str], why_no_name: Callable[[str], str | None]
) -> str | None:
    try:
        check_key(array.key)
    except NpzkitError as error:
        return error.what
    if getattr(writer, "NESTED", False) and (reason := _why_nested(keys, array.key)):
        return reason
    # The names of parts have a dot.
    if any(map(why_no_name, keys & parts_of(array))):
        return _NO_MASKED if is_masked(array) else _NO_STRINGS
    found: str | None = why_no_name(array.key) or writer.why_unfit(array)
    return found


def _why_nested(keys: Collection[str], key: str) -> str | None:
    """Return why a key cannot be kept: one of its folders is an array; or None."""
    check_depth([key])
    parts = key.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts))]
    other = next((name for name in above if name in keys), None)
    return None if other is None else f"{other!r} is an array and would have to be a group"
