"""The header grammar: what it accepts, and the one error for everything else."""

from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import NpyFormatError
from npzkit.format.literal import parse_literal
from npzkit.limits import MAX_DESCR_DEPTH

from tables import each_row

NAMES = st.text(max_size=8)
DESCR = st.recursive(
    NAMES,
    lambda inner: st.lists(
        st.tuples(NAMES, inner)
        | st.tuples(st.tuples(NAMES, NAMES), inner, st.tuples(st.integers(0, 9)))
    ),
    max_leaves=12,
)
HEADERS = st.fixed_dictionaries(
    {
        "descr": DESCR,
        "fortran_order": st.booleans(),
        "shape": st.lists(st.integers(0, 2**63)).map(tuple),
    }
)


@given(HEADERS)
def test_whatever_python_prints_is_read_back(header):
    """The repr of any header dict is parsed to the same dict."""
    assert parse_literal(repr(header) + "   \n") == (header, False)


@given(st.text(alphabet="{}()[]:,'\" \\LTrueFals0123456789.x-+abc\n", max_size=60))
def test_any_text_gives_one_error_or_what_python_reads(text):
    """Text raises NpyFormatError or gives the value of the Python literal."""
    try:
        value, had_long = parse_literal(text)
    except NpyFormatError:
        return
    assert not had_long
    assert value == ast.literal_eval(text.strip())


@each_row(
    "text",
    [
        "", "{", "}", "{'a': 1", "{'a' 1}", "{'a': 1}}", "{'a': 1} x", "{1: 2}", "{'a': 1, 'a': 2}",
        "{'a': (1)}", "{'a': 1 + 2}", "{'a': 0x10}", "{'a': 1_000}", "{'a': 01}", "{'a': 1.5}",
        "{'a': 1e5}", "{'a': None}", "{'a': 'b' 'c'}", "{'a': b'c'}", "{'a': f'c'}", "{'a': r'c'}",
        "{'a': 'b\nc'}", "{'a': 1} # no", "{'a': [1 2]}", "{'a': (,)}", "{'a': __import__('os')}",
        "{'a': 'b", "{'a': '\\N{DIGIT ONE}'}", "{'a': '\\q'}", "{'a': '\\x4'}", "{'a': '\\UFFFFFFFF'}",
        "{**{}}", "{'a'}", "lambda: 0", "{'a': 3L}", "{'a': 123456789012345678901234}",
        "{'a': 'b\rc'}", "{'a': 'b\0c'}", "{'a': \"b\rc\"}", "{'a': \"b\0c\"}", "{'a': 'b\\\rc'}",
    ],
)  # fmt: skip
def test_what_is_outside_the_grammar_is_refused(text):
    """Every expression, comment and number that NumPy never writes is an error."""
    with pytest.raises(NpyFormatError):
        parse_literal(text)


def test_python2_long_integers_are_reported():
    """An 'L' is read for versions 1 and 2, and reported to the caller."""
    assert parse_literal("{'shape': (3L, 4)}", python2=True) == ({"shape": (3, 4)}, True)


def test_unicode_prefix_and_escapes():
    """u'' and Python's escapes give the right characters."""
    text = r"""{'a': u'\x41\u00e9\U0001F600\n\\\'', "b": '\101'}"""
    assert parse_literal(text)[0] == {"a": "Aé😀\n\\'", "b": "A"}


@pytest.mark.parametrize("opening", ["[", "(", "{'a': ", "[(", "('a', ["])
def test_nesting_is_bounded(opening):
    """A hundred thousand brackets are an error, and do not crash the interpreter."""
    with pytest.raises(NpyFormatError, match="nested brackets"):
        parse_literal(opening * 100_000)


def test_the_deepest_nesting():
    """As many brackets as are allowed are read, and one more is an error."""
    text = "[" * MAX_DESCR_DEPTH + "]" * MAX_DESCR_DEPTH
    value, _ = parse_literal(text)
    assert str(value) == text
    with pytest.raises(NpyFormatError, match="nested brackets"):
        parse_literal(f"[{text}]")


@pytest.mark.slow
def test_time_is_linear_in_the_text():
    """Ten times as much text takes about ten times as long, hostile or not."""

    def seconds(size: int) -> float:
        texts = [
            "{'a': [" + "'x'," * size + "]}",
            "'" * size,
            "\\" * size,
            "{'a': '" + "\\\\" * size,
        ]
        best = float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            for text in texts:
                try:
                    parse_literal(text)
                except NpyFormatError:
                    pass
            best = min(best, time.perf_counter() - begin)
        return best

    assert seconds(50_000) < 100 * seconds(5_000)


def test_the_error_says_where_the_text_is_wrong():
    """It has the place after the last character that is understood."""
    with pytest.raises(NpyFormatError, match="at character 7:"):
        parse_literal("{'a': 1 ? }")
