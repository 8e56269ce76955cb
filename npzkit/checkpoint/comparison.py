"""What differs between two steps: arrays by their CRC-32s, and the values beside them.

Owns the comparison of numbers, strings and None, which are in a step's structure and
not among its arrays. No array is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npzkit.analysis.diff import Difference, DiffReport, diff
from npzkit.archive.npzfile import NpzFile
from npzkit.checkpoint.catalog import record_of
from npzkit.members.containers import child_key, children_of
from npzkit.members.nesting import unflatten
from npzkit.members.selection import UNREAD

__all__ = ["compare_steps"]


def compare_steps(a: tuple[int, NpzFile], b: tuple[int, NpzFile]) -> DiffReport:
    """Return where two open steps differ, each given with its number.

    Raises
    ------
    NpzkitError
        The metadata of a step are damaged.
    """
    report = diff(a[1], b[1], verify=False, values=False)
    old, new = _values_of(*a), _values_of(*b)
    rows = [
        Difference(key, "values", value, new[key]) if key in new else Difference(key, "removed")
        for key, value in old.items()
        # By repr, nan equals itself, and 1 differs from 1.0 and from True.
        if key not in new or repr(value) != repr(new[key])
    ]
    rows += [Difference(key, "added") for key in new if key not in old]
    compared = report.compared + len({*old, *new})
    return report._replace(rows=(*report.rows, *rows), compared=compared)


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
