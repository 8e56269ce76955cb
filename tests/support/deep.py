"""How much the tests try: little by default, what a release needs with NPZKIT_DEEP=1 in the environment.

A larger number multiplies that: NPZKIT_DEEP=10 is ten times the examples, crashes, kills and
mutated files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["DEEP", "amount", "by_turns", "extent", "needs_deep"]

DEEP = float(os.environ.get("NPZKIT_DEEP") or 0)


def amount(quick: int, deep: int) -> int:
    """Return how many things to try: `quick` by default, else `deep`, NPZKIT_DEEP times."""
    return round(deep * DEEP) if DEEP else quick


def extent(quick: int, deep: int) -> int:
    """Return how large something is to be, which no larger NPZKIT_DEEP enlarges further."""
    return deep if DEEP else quick


def by_turns(first: Iterable[Any], second: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return each pair of two things; by default each of the first with one of the second."""
    second = list(second)
    return [
        (one, other)
        for number, one in enumerate(first)
        for turn, other in enumerate(second)
        if DEEP or turn == number % len(second)
    ]


needs_deep = pytest.mark.skipif(not DEEP, reason="takes gigabytes, or long; set NPZKIT_DEEP=1")
