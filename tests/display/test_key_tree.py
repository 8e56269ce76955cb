"""The tree of keys: rows for open folders, and keys that match words."""

from __future__ import annotations

import pytest
from npzkit.display.key_tree import KeyTree


def labels(tree, opened=(), count=100):
    return [(row.depth, row.label) for row in tree.rows(set(opened), count)]


def test_folders_are_rows_until_they_are_opened():
    """A closed folder is one row with its number of keys; an open one shows what it has."""
    tree = KeyTree(["a/b/x", "a/b/y", "a/z", "c"])
    assert labels(tree) == [(0, "a"), (0, "c")]
    assert tree.rows(set(), 1)[0].key_count == 3
    assert labels(tree, {"a/"}) == [(0, "a"), (1, "b"), (1, "z"), (0, "c")]
    assert labels(tree, {"a/", "a/b/"}, 4) == [(0, "a"), (1, "b"), (2, "x"), (2, "y")]
    assert tree.parents("a/b/x") == {"a/", "a/b/"}
    assert tree.row_count({"a/"}) == 4
    assert tree.row_count({"a/", "a/b/"}) == 6
    # A folder in a closed one is not seen.
    assert tree.row_count({"a/b/"}) == 2


def test_an_array_may_have_the_name_of_a_folder():
    """The keys a, a/b and a/ are three arrays, and each can be chosen."""
    tree = KeyTree(["a", "a/b", "a/", "/", "//x", ""])
    opened = {"a/", "/", "//"}
    keys = [row.key for row in tree.rows(opened, 100) if row.key is not None]
    assert sorted(keys) == sorted(tree.keys)


def test_all_folders_are_open_if_they_have_few_rows():
    """A small archive is seen at once; of a large one, the folders that fit."""
    assert KeyTree(["a/b/x", "c/y"]).folders(60) == {"a/", "a/b/", "c/"}
    many = KeyTree([f"g{i % 3}/k{i}" for i in range(600)])
    assert many.folders(60) == set()


@pytest.mark.parametrize(
    ("words", "found"),
    [("W", ["enc/w1", "dec/w2"]), ("enc w", ["enc/w1"]), ("*2", ["dec/w2"]), ("zz", []),
     ("[", []), ("  ", ["enc/w1", "dec/w2", "Enc/b"]), ("enc", ["enc/w1", "Enc/b"])],
)  # fmt: skip
def test_keys_are_filtered_by_words_and_patterns(words, found):
    """A key must have all words, in any case; a word with * matches the complete key."""
    tree = KeyTree(["enc/w1", "dec/w2", "Enc/b"])
    assert tree.matching(words, 10) == (found, len(found))


@pytest.mark.slow
def test_only_the_first_matches_are_returned():
    """Of 100,000 matches, some are returned, and all are counted."""
    tree = KeyTree([f"layer{i}/w" for i in range(100_000)])
    found, count = tree.matching("w", 5)
    assert (len(found), count) == (5, 100_000)
    assert len(tree.rows(set(), 7)) == 7


def test_names_cannot_control_a_page():
    """Control characters, and marks that change the direction of text, are escaped."""
    rows = KeyTree(["a\u202eb", "\x07", " "]).rows(set(), 10)
    assert all(row.label.isprintable() and row.label.strip() for row in rows)


def test_thousands_of_slashes_are_no_trouble():
    """A key of 60,000 slashes is one row, beneath folders that can be opened."""
    key = "/" * 60_000
    tree = KeyTree([key, "x" * 65_000])
    rows = tree.rows(tree.parents("/" * 50), 100)
    assert key in [row.key for row in rows]
    assert max(len(row.label) for row in rows) < 1000
