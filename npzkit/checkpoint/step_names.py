"""The names of steps, in folders and in stores of objects.

Owns which name is a step's. Opens nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SUFFIX = ".npz"
_STEP_NAME = re.compile(r"step_([0-9]{8,18})\.npz")
_SHOWN_COUNT = 5
"""Steps that a message names."""


def name_of_step(step: int) -> str:
    """Return the name of a step's file.

    Examples
    --------
    >>> name_of_step(100)
    'step_00000100.npz'
    """
    return f"step_{step:08d}.npz"


def name_of_folder(step: int) -> str:
    """Return the name of the folder of a step that is split into several files."""
    return name_of_step(step).removesuffix(_SUFFIX)


def is_step_name(name: str) -> bool:
    """Return whether this is the name of a step's file."""
    found = _STEP_NAME.fullmatch(name)
    # A name with more zeros than necessary is not one of ours.
    return found is not None and (len(found[1]) == 8 or found[1][0] != "0")


def steps_in(names: Iterable[str]) -> tuple[int, ...]:
    """Return the steps whose files have these names, ascending."""
    return tuple(sorted(int(name[5:-4]) for name in names if is_step_name(name)))


def steps_of_folders(names: Iterable[str]) -> tuple[int, ...]:
    """Return the steps whose folders have these names, ascending."""
    return steps_in(name + _SUFFIX for name in names)


def shown_steps(steps: Iterable[int]) -> str:
    """Return the numbers of the first few steps, for a message.

    Examples
    --------
    >>> shown_steps(range(10, 90, 10))
    '10, 20, 30, 40, 50, ...'
    """
    found = [str(step) for step in steps]
    return ", ".join([*found[:_SHOWN_COUNT], *(["..."] if found[_SHOWN_COUNT:] else [])])
