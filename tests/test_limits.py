"""Limits of an archive that is given open, in all that reads its arrays."""

from __future__ import annotations

import pickle

import npzkit
import numpy as np
import pytest
from deep import by_turns
from npzkit.display import blocks
from npzkit.errors import LimitExceededError

pytestmark = pytest.mark.filterwarnings("ignore:the header of this array")

FIELDS = [(f"field{number:04}", "u1") for number in range(1000)]
"""Of a header of 24,000 bytes."""
LARGE = np.zeros(200, FIELDS)
LARGE["field0003"] = np.arange(200)
RAISED = npzkit.Limits(header_size=100_000)


USES = {
    "statistics": lambda npz, out: npzkit.statistics(npz, "x", field="field0003"),
    "statistics of a part": lambda npz, out: npzkit.statistics(
        npz, "x", np.s_[:9], field="field0003"
    ),
    "diff": lambda npz, out: npzkit.diff(npz, npz),
    "notebook": lambda npz, out: npz._repr_html_(),
    "extract": lambda npz, out: npzkit.extract(npz, out / "folder"),
    "tables": lambda npz, out: npzkit.extract(npz, out / "folder", format="csv"),
    "pack": lambda npz, out: npzkit.pack(out / "b.npz", npz),
    "repack": lambda npz, out: npzkit.repack(
        npz, out / "b.npz", compression="deflated", overwrite=True
    ),
    "tree": lambda npz, out: npzkit.load_tree(npz),
    "pickle": lambda npz, out: pickle.loads(pickle.dumps(npz.lazy("x"))).read(),
    "stream": lambda npz, out: npz.stream("x").read(),
    "lazy": lambda npz, out: npz.lazy("x")[0],
}


KINDS = ["stored", "deflated", "sharded"]
SHOWN = "notebook", "diff"
"""What shows arrays that cannot be read as such."""


def cases(first, *left_out):
    """Return each kind of archive with each use; by default one kind, beginning with the `first`."""
    kinds = KINDS[first:] + KINDS[:first]
    pairs = [(kind, use) for use, kind in by_turns(USES, kinds) if use not in left_out]
    return [pair for pair in pairs if pair != ("sharded", "repack")]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return what makes an archive of a large array, as far as its readers know."""
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 1 << 16)

    def made(kind):
        path = tmp_path / "a.npz"
        if kind != "sharded":
            npzkit.save(path, {"x": LARGE}, compression=kind)
            return path
        with npzkit.ShardedWriter(tmp_path / "folder") as w:
            w.add("x", LARGE)
            w.commit()
        return tmp_path / "folder"

    return made


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "use"), cases(0))
def test_a_raised_limit_holds_for_all_that_reads_the_archive(make, kind, use, tmp_path):
    """A header that the given archive's limit allows is read by every function."""
    with npzkit.open(make(kind), limits=RAISED) as npz:
        USES[use](npz, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "use"), cases(1, *SHOWN, "stream", "repack"))
def test_the_limit_of_headers_holds_for_all_that_reads_the_archive(make, kind, use, tmp_path):
    """A header above the given archive's limit is refused by every function."""
    with npzkit.open(make(kind)) as npz, pytest.raises(LimitExceededError):
        USES[use](npz, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "use"), cases(2, *SHOWN))
def test_a_lower_limit_holds_for_all_that_reads_the_archive(make, kind, use, tmp_path):
    """A member above the given archive's limit is refused by every function."""
    limits = npzkit.Limits(header_size=None, member_size=10_000)
    with pytest.raises(LimitExceededError), npzkit.open(make(kind), limits=limits) as npz:
        USES[use](npz, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_verify_uses_the_limits_of_the_archive(make, kind):
    """An array above a limit is a row of the report, unless the given archive's limit allows it."""
    path = make(kind)
    for limits, is_ok in ((RAISED, True), (None, False)):
        with npzkit.open(path, limits=limits) as npz:
            assert npz.verify().ok is is_ok
            assert npzkit.verify(npz).ok is is_ok


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stored", "deflated"])
def test_trusted_archives_have_no_limit_of_headers(make, kind):
    """With allow_pickle=True, verify and statistics have no limit of headers either."""
    with npzkit.open(make(kind), allow_pickle=True) as npz:
        assert npz.verify().ok
        assert npzkit.statistics(npz, "x", field="field0003").count == len(LARGE)


def test_an_archive_that_is_opened_again_keeps_its_limits(make):
    """`open` of an open archive takes its limits, unless others are given."""
    with npzkit.open(make("stored"), limits=RAISED) as npz:
        with npzkit.open(npz) as again:
            assert len(again["x"]) == len(LARGE)
        with (
            npzkit.open(npz, limits=npzkit.Limits()) as again,
            pytest.raises(LimitExceededError),
        ):
            again["x"]


@pytest.mark.parametrize("kind", ["stored", "sharded"])
def test_limits_beside_an_open_archive_are_refused(make, kind, tmp_path):
    """They are not ignored: the error says where to pass them, and there they hold."""
    limits = npzkit.Limits(member_count=0)
    calls = (
        lambda npz, **given: npzkit.load_tree(npz, **given),
        lambda npz, **given: npzkit.diff(npz, npz, **given),
        lambda npz, **given: npzkit.statistics(npz, "x", field="field0003", **given),
        lambda npz, **given: npzkit.extract(npz, tmp_path / "folder", **given),
    )
    with npzkit.open(make(kind), limits=RAISED) as npz:
        for call in calls:
            with pytest.raises(ValueError, match=r"that npzkit\.open was given"):
                call(npz, limits=limits)
    with pytest.raises(LimitExceededError):
        npzkit.open(make("stored"), limits=limits)
