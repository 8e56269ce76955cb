"""JSON for programs: the same text as the standard library's."""

from __future__ import annotations

import contextlib
import io
import json
import math
from types import MappingProxyType

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from npzkit.cli.output import print_json

from tables import each_row

FINITE = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(
    FINITE.filter(lambda value: not (isinstance(value, float) and math.isinf(value))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(value=VALUES)
def test_json_is_that_of_the_standard_library(value):
    """What is printed is what `json.dumps` returns, byte for byte; indented on a terminal."""
    for is_terminal in (False, True):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            out.isatty = lambda is_terminal=is_terminal: is_terminal
            print_json(value)
        expected = json.dumps(value, indent=2 if is_terminal else None)
        assert out.getvalue() == expected + "\n"


@each_row(
    ("value", "text"),
    [
        (math.nan, "null"), ([-math.inf], "[null]"), (np.float64("inf"), "null"),
        (np.float64(0.5), "0.5"), (np.int32(5), '"5"'), (np.dtype("f4"), '"float32"'),
        ({1: ()}, '{"1": []}'), ({}, "{}"), ({"a": MappingProxyType({})}, '{"a": {}}'),
        ({"a": math.nan, "b": MappingProxyType({})}, '{"a": null, "b": {}}'),
    ],
)  # fmt: skip
def test_json_of_values_that_json_lacks(value, text, capsys):
    """Numbers that are not finite are null, keys become text, and so does anything else."""
    print_json(value)
    assert capsys.readouterr().out == text + "\n"
