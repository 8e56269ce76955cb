"""Where an array has its extremes, or its first NaN."""

from __future__ import annotations

import numpy as np
import pytest
from npzkit.viewer.finding import find_place, shown_at
from npzkit.viewer.shown import Shown


def go_on(share=0.0):
    pass


@pytest.fixture
def cube():
    found = np.random.default_rng(0).normal(size=(7, 30, 40))
    found[5, 29, 1], found[2, 3, 39] = 50, -60
    found[4, 0, 7] = found[6, 1, 1] = np.nan
    return found


@pytest.mark.parametrize(
    ("what", "position", "text"),
    [("maximum", (5, 29, 1), "50.0"), ("minimum", (2, 3, 39), "-60.0"), ("nan", (4, 0, 7), "nan")],
)  # fmt: skip
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_odd_value_is_found(cube, what, position, text, order):
    """Each extreme is found with its position; NaNs are no extremes."""
    assert find_place(np.asarray(cube, order=order), what, go_on) == (position, text)


@pytest.mark.parametrize(
    ("x", "what"),
    [(np.full(3, np.nan), "maximum"), (np.zeros((2, 0)), "minimum"), (np.arange(3), "nan")],
)
def test_there_may_be_none(x, what):
    """Arrays without numbers have no extremes, and integers no NaN."""
    assert find_place(x, what, go_on) is None


def test_dates_and_bools_have_extremes():
    """Dates are compared as such, and NaT is no date."""
    x = np.array(["2020-01-02", "NaT", "2021-05-05"], "M8[D]")
    assert find_place(x, "maximum", go_on) == ((2,), "2021-05-05")
    assert find_place(x, "nan", go_on) == ((1,), "NaT")
    assert find_place(np.array([False, True]), "maximum", go_on) == ((1,), "True")


LARGE = 1 << 53


@pytest.mark.parametrize(
    "x",
    [
        np.array([LARGE, LARGE + 1, LARGE - 1], "i8"),
        np.array([2**64 - 2, 2**64 - 1, 2**64 - 3], "u8"),
        np.array([LARGE, LARGE + 1, LARGE - 1], "M8[ns]"),
        np.array([LARGE, LARGE + 1, LARGE - 1], ">m8[ns]"),
        np.array([1, 1 + np.finfo(np.longdouble).eps, 1 - np.finfo(np.longdouble).eps]),
    ],
    ids=lambda x: str(x.dtype),
)
def test_extremes_are_exact(x):
    """Numbers that differ by less than a float64 tells are told apart."""
    assert find_place(x, "maximum", go_on).position == (1,)
    assert find_place(x, "minimum", go_on).position == (2,)


def test_the_neighbours_are_shown(cube):
    """What was found is in the middle of an image, at its position along the other axes."""
    found = shown_at(
        Shown(key="x", view="histogram"), "maximum", (5, 15, 1), cube.shape, cube.dtype
    )
    assert (found.view, found.at, found.columns) == ("image", (5, 15, 1), (0, 22))
    line = shown_at(Shown(key="x"), "nan", (500,), (1000,), np.dtype("f4"))
    assert (line.view, line.columns) == ("line", (480, 521))
