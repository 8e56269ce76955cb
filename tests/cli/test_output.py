"""JSON for programs: the same text as the standard library's."""

from __future__ import annotations

import contextlib
import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.cli.output import print_json

FINITE = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(
    FINITE.filter(lambda value: not (isinstance(value, float) and math.isinf(value))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(value=VALUES)
def test_json_is_that_of_the_standard_library(value):
    """What is printed is what `json.dumps` with an indent of 2 returns, byte for byte."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_json(value)
    assert out.getvalue() == json.dumps(value, indent=2) + "\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "null"), ([-math.inf], "[\n  null\n]"), (np.float64("inf"), "null"),
        (np.float64(0.5), "0.5"), (np.int32(5), '"5"'), (np.dtype("f4"), '"float32"'),
        ({1: ()}, '{\n  "1": []\n}'), ({}, "{}"), ({"a": {}}, '{\n  "a": {}\n}'),
        ({1: 2, "1": 3}, '{\n  "1": 3\n}'),
    ],
)  # fmt: skip
def test_json_of_values_that_json_lacks(value, text, capsys):
    """Numbers that are not finite are null, keys become text, and so does anything else."""
    print_json(value)
    assert capsys.readouterr().out == text + "\n"
