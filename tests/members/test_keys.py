"""Keys: which key a member has, which one is suggested, and which names are public."""

from __future__ import annotations

import io
import random
import re

import npzkit
import numpy as np
import pytest
from forge import Member, archive, npy
from hypothesis import example, given
from hypothesis import strategies as st
from npzkit.errors import KeyExistsError, MemberNotFoundError, UnsafeNameError
from npzkit.members import keys as rules
from npzkit.members.keys import check_key, check_keys, missing

X = npy(np.arange(3))


def test_every_record_has_the_listed_key():
    """However a member was requested, its records and errors have the key that lists it."""
    stream = io.BytesIO()
    masked = np.ma.array([1, 2], mask=[False, True])
    npzkit.save(stream, {"x": np.arange(3), "m": masked}, masked="split")
    with npzkit.open(stream) as npz:
        assert npz.info("x.npy") == npz.info("x")
        assert npz.info("x.npy").key == "x"
        assert repr(npz.lazy("x.npy")) == repr(npz.lazy("x"))
        assert np.ma.allequal(npz.join("m.npy"), masked)
        assert npz.join("m.npy").mask.tolist() == [False, True]


def test_a_bare_member_beside_an_array():
    """If `x` and `x.npy` are both members, each record has its own key."""
    with npzkit.open(archive(Member("x", b"bare"), Member("x.npy", X))) as npz:
        assert npz.files == ["x", "x.npy"]
        assert [(npz.info(key).key, npz.info(key).member) for key in npz] == [
            ("x", "x"),
            ("x.npy", "x.npy"),
        ]
        assert repr(npz.lazy("x.npy")).startswith("LazyArray('x.npy'")


def test_errors_name_the_listed_key():
    """An error in `x.npy` names the key `x`."""
    bad = {"crc": 1}
    npz = npzkit.open(archive(Member("x.npy", X, central=bad, local=bad)))
    with pytest.raises(npzkit.NpzkitError) as caught:
        npz["x.npy"]
    assert caught.value.key == "x"


def suggestion(key, keys):
    error = missing(key, keys)
    assert isinstance(error, MemberNotFoundError)
    return error.remedy


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 100_000])
def test_a_near_key_is_suggested(count):
    """A misspelt key, one in another case and one without its folders are recognised."""
    keys = ["optimizer/State/exp_avg", "model/block_7/weight"]
    keys += [f"other_{number}" for number in range(count - 2)]
    random.Random(7).shuffle(keys)
    for key, meant in (
        ("model/block_7/wieght", "model/block_7/weight"),
        ("modle/block_7/weight", "model/block_7/weight"),
        ("Model/Block_7/Weight", "model/block_7/weight"),
        ("model/block_7/weights", "model/block_7/weight"),
        ("exp_avg", "optimizer/State/exp_avg"),
        ("optimizer/state/exp_avg", "optimizer/State/exp_avg"),
    ):
        assert suggestion(key, keys) == f"Did you mean {meant!r}?"


@pytest.mark.slow
def test_suggestions_take_bounded_work():
    """If 100,000 keys all look like the missing one, only a few are compared."""
    keys = [f"model/layers/{number}/weight" for number in range(100_000)]
    compared = []
    import difflib

    with pytest.MonkeyPatch.context() as patched:
        close = difflib.get_close_matches
        patched.setattr(
            difflib,
            "get_close_matches",
            lambda word, names, **options: compared.extend(names) or close(word, names, **options),
        )
        assert suggestion("model/layers/54321/wieght", keys) == (
            "Did you mean 'model/layers/54321/weight'?"
        )
    assert len(compared) < 100
    for long in ("x" * 60_000, "model/" * 10_000, "é" * 60_000):
        assert suggestion(long, [*keys, "y" * 60_000]).startswith(
            "Existing keys: 'model/layers/0/weight'"
        )
    assert suggestion("", keys).endswith("and 99,990 more.")


def test_the_public_names_are_listed():
    """dir(npzkit) lists the public names, including those imported on first use, and engines."""
    public = [name for name in dir(npzkit) if not name.startswith("__")]
    assert [name for name in public if name not in ("dask", "torch", "xarray")] == sorted(
        npzkit.__all__
    )
    assert {"verify", "repack", "load_tree", "LazyArray"} <= set(public)
    assert all(getattr(npzkit, name) is not None for name in public)


def test_a_key_that_exists_has_an_error_of_its_own(tmp_path):
    """An existing key raises KeyExistsError, which is a ValueError, however it is written again."""
    path = tmp_path / "a.npz"
    path.write_bytes(archive(Member("x.npy", X), Member("bare", b"no array")))
    with npzkit.NpzWriter(path, "a") as w:
        for write in (
            lambda: w.add("x", np.eye(2)),
            lambda: w.__setitem__("x", np.eye(2)),
            lambda: w.create("x", (3,), "f8"),
            lambda: w.rename("bare", "x"),
            lambda: w.add("bare", np.eye(2)),
        ):
            with pytest.raises(KeyExistsError, match="archive") as caught:
                write()
            assert isinstance(caught.value, ValueError)
            assert caught.value.remedy


PIECES = st.sampled_from([
    "a", "C", ":", "/", ".", "..", "\\", ".npy", "\n", "\0", "\x7f", "\x85", " ", "[", "'",
    "\u2028", "\ud800", "\xe9", "\u5c42", "\U0001f600", "kernel:0",
])  # fmt: skip
KEYS = st.lists(PIECES, max_size=6).map("".join) | st.text(
    st.characters(exclude_categories=()), max_size=8
)


@given(KEYS)
@example("")
@example("a\n")
@example("C:x")
@example("a/C:")
@example(".hidden/..b/c.")
def test_the_quick_check_says_what_all_rules_say(key):
    """A key that the quick check of all keys finds safe is refused by no rule, and is saved."""
    refused = any(re.match(pattern, key, re.DOTALL) for pattern, _ in rules._UNSAFE)
    assert not (refused and rules._are_safe([key]))
    assert isinstance(outcome(check_key, key), str)
    assert (outcome(check_key, key) != f"{key}.npy") == refused


@given(st.lists(KEYS, max_size=5))
@example(["a", "b\nc"])
@example(["a", ".."])
@example(["a", "b" * 20_000])
def test_many_keys_are_checked_as_each_one(keys):
    """Keys that are checked together have the names, or the error, of keys checked one by one."""
    assert outcome(check_keys, keys) == outcome(lambda each: [check_key(key) for key in each], keys)


def outcome(check, keys):
    """Return the names, or the error's message."""
    try:
        return check(keys)
    except UnsafeNameError as error:
        return str(error)


@pytest.mark.parametrize(
    "form",
    [
        "layer_{}",
        "encoder.layer.{}.gain",
        "params/Dense_{}/kernel",
        "['params']['Dense_{}']['kernel']",
        "model/dense_{}/kernel:0",
        "s({}).field.x",
        ".cache/gr\xf6\xdfe {}",
    ],
)
def test_keys_of_frameworks_are_checked_together(form, monkeypatch):
    """Keys as frameworks write them are checked by one search, not each on its own."""
    keys = [form.format(number) for number in range(1000)]
    monkeypatch.setattr(rules, "check_key", None)
    assert check_keys(keys) == [f"{key}.npy" for key in keys]
