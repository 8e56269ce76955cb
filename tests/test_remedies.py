"""Each remedy in the source is followed by a test, which has the mark `remedy`."""

from __future__ import annotations

import pytest
from remedies import given_as_remedy, marked

NOT_FOLLOWED: dict[str, str] = {}
"""Remedies that no test can follow, with the reason."""
GIVEN = given_as_remedy()
MARKED = marked()


def test_the_remedies_are_found():
    """There are many: the search for them works."""
    assert len(GIVEN) > 120


@pytest.mark.parametrize("remedy", sorted(GIVEN))
def test_a_remedy_is_followed(remedy):
    """A test meets it, does what it says, and then it works."""
    reasons = [reason for words, reason in NOT_FOLLOWED.items() if words in remedy]
    assert reasons or any(words in remedy for words in MARKED), sorted(GIVEN[remedy])


@pytest.mark.parametrize("words", sorted({*MARKED, *NOT_FOLLOWED}))
def test_the_words_of_a_mark_are_a_remedy(words):
    """A mark whose remedy was reworded or removed goes with it."""
    assert len(words) > 7
    assert any(words in remedy for remedy in GIVEN)
