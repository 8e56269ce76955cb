"""The link that holds what is shown."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.viewer.shown import Shown, format_link, parse_link, shown_of

positions = st.integers(0, 10**17)
windows = st.none() | st.tuples(positions, positions)
texts = st.none() | st.text()
words = st.sampled_from(["image", "line", "1-99", "phase"])
SHOWN = st.builds(
    Shown, archive=positions, key=texts, field=texts, view=st.none() | words,
    at=st.lists(positions, max_size=5).map(tuple), down=st.none() | positions,
    across=st.none() | positions, rows=windows, columns=windows, part=words, palette=words,
    scale=words, aspect=st.none() | words, other_archive=positions, other_key=texts,
)  # fmt: skip


@given(SHOWN)
def test_a_link_holds_all_that_is_shown(shown):
    """What is shown comes back from its link, whatever characters a key has."""
    assert parse_link(format_link(shown)) == shown
    assert parse_link(f"http://127.0.0.1:5000/token/?{format_link(shown)}") == shown


def test_a_link_of_what_is_usual_is_empty():
    """A link names what was chosen, and no more."""
    assert format_link(Shown()) == ""
    assert format_link(Shown(key="w")) == "key=w"


@pytest.mark.parametrize(
    "link",
    ["at=1,x", "at=-1", "rows=5", "rows=1:2:3", "archive=1e9", "down=99999999999999999999",
     "view=<script>", "palette=a b", "key=" + "x" * 200_000],
)  # fmt: skip
def test_a_damaged_link_is_an_error(link):
    """What is no position, window or word is an error that names it."""
    with pytest.raises(ValueError, match="link"):
        parse_link(link)


def test_names_that_are_not_known_are_left_out():
    """A link of a newer npzkit still shows the array."""
    assert asdict(shown_of({"key": "w", "later": "x"})) == asdict(Shown(key="w"))
