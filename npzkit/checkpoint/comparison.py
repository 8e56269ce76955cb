"""What differs between two steps: arrays by their CRC-32s, and the values beside them.

Owns the comparison of numbers, strings and None, which are in a step's structure and
not among its arrays. No array is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npzkit.analysis.diff import Difference, DiffReport, diff
from npzkit.archive.npzfile import NpzFile
from npzkit.checkpoint.catalog import record_of
from npzkit.members.containers import child_key, children_of
from npzkit.members.leaves import MISSING
from npzkit.members.restoring import unflatten
from npzkit.members.selection import UNREAD

_FILLED: Any = object()
"""The place of a container that has items."""


def compare_steps(a: tuple[int, NpzFile], b: tuple[int, NpzFile]) -> DiffReport:
    """Return where two open steps differ, each given with its number.

    Raises
    ------
    NpzkitError
        The metadata of a step are damaged.
    """
    report = diff(a[1], b[1], verify=False, values=False)
    sides = [_Side(npz, _values_of(step, npz)) for step, npz in (a, b)]
    keys = {key: None for side in sides for key in side.values}
    rows = [_difference(key, *(side.at(key) for side in sides)) for key in keys]
    count = sum(not any(key in side.npz for side in sides) for key in keys)
    return report._replace(
        rows=(
            *(row for row in report.rows if row.key not in keys),
            *(row for row in rows if row is not None),
        ),
        compared=report.compared + count,
        values=count,
    )


class _Side:
    """One of the two steps."""

    def __init__(self, npz: NpzFile, values: Mapping[str, Any]) -> None:
        self.npz, self.values = npz, values
        self._containers: set[str] = set()
        for key in (*values, *npz.files):
            while (key := key.rpartition("/")[0]) and key not in self._containers:
                self._containers.add(key)

    def at(self, key: str) -> Any:
        """Return the value at a key, or what is there instead."""
        if key in self.npz:
            return UNREAD
        return self.values.get(key, _FILLED if key in self._containers else MISSING)


def _difference(key: str, one: Any, two: Any) -> Difference | None:
    absent = (MISSING, _FILLED)
    if _FILLED in (one, two) and children_of(two if one is _FILLED else one) is not None:
        # The other one is empty: only what is in it differs.
        return None
    if one in absent or two in absent:
        return Difference(key, "added" if one in absent else "removed")
    if one is UNREAD or two is UNREAD:
        return Difference(key, "type", _shown(one), _shown(two))
    # By repr, nan equals itself, and 1 differs from 1.0 and from True.
    return None if repr(one) == repr(two) else Difference(key, "values", one, two)


def _shown(value: Any) -> Any:
    return "an array" if value is UNREAD else value


def _values_of(step: int, npz: NpzFile) -> dict[str, Any]:
    """Return what is not an array in a step's tree, by its key."""
    record = record_of(npz, step)
    tree = unflatten(dict.fromkeys(npz.files, UNREAD), record.structure)
    return dict(_leaves(tree, ""))


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    items = children_of(node) or {}
    for name, item in items.items():
        yield from _leaves(item, child_key(key, name))
    if not items and node is not UNREAD and key:
        yield key, node
