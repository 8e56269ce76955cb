"""npzkit.benchmark: the same work by NumPy and by npzkit, measured side by side."""

from __future__ import annotations

import npzkit
import numpy as np
import pytest


def test_both_are_measured(fixtures):
    """Opening, reading all and reading a part are timed on both sides."""
    told = []
    report = npzkit.benchmark(
        fixtures / "digits.npz", 2, progress=lambda done, total: told.append((done, total))
    )
    assert [row.name for row in report.rows] == ["open", "read all", "read a part of the largest"]
    assert all(row.npzkit > 0 and row.numpy > 0 for row in report.rows)
    assert all(row.ratio == row.numpy / row.npzkit for row in report.rows)
    with npzkit.open(fixtures / "digits.npz") as npz:
        assert report.rows[1].size == sum(array.nbytes for array in npz.values())
    assert (report.path, report.rounds) == (str(fixtures / "digits.npz"), 2)
    assert told[-1] == (told[-1][1], told[0][1])
    assert len(str(report).splitlines()) == 4


def test_what_numpy_cannot_read(fixtures, monkeypatch):
    """Its time is None, and npzkit's is measured."""

    def load(file):
        raise NotImplementedError("That compression method is not supported")

    monkeypatch.setattr(np, "load", load)
    report = npzkit.benchmark(fixtures / "digits.npz", rounds=1)
    assert [(row.numpy, row.ratio) for row in report.rows] == [(None, None)] * 3
    assert str(report).count("NumPy cannot") == 3


@pytest.mark.parametrize(
    "arrays", [{}, {"x": np.zeros((0, 3))}, {"x": np.float64(3)}, {"x": np.array(["a"])}]
)
def test_archives_of_little(arrays, tmp_path):
    """Archives of nothing, or of no bytes, are measured as far as there is something."""
    npzkit.save(tmp_path / "a.npz", arrays)
    assert npzkit.benchmark(tmp_path / "a.npz", rounds=1).rows[0].name == "open"


def test_objects_are_left_out(fixtures):
    """Nothing is unpickled to be timed."""
    report = npzkit.benchmark(fixtures / "numpy_object.npz", rounds=1)
    assert [row.name for row in report.rows] == ["open"]


def test_large_archives_are_read_one_by_one(fixtures, monkeypatch):
    """Arrays that are too much for memory together are not held together."""
    monkeypatch.setattr("npzkit.analysis.benchmark._KEPT_SIZE", 1000)
    row = npzkit.benchmark(fixtures / "digits.npz", rounds=1).rows[1]
    assert row.name == "read all, one by one"
    assert row.numpy > 0


def test_different_data_is_not_timed(fixtures, monkeypatch):
    """Where the two read different things, that is an error with the path."""
    monkeypatch.setattr("npzkit.analysis.benchmark._read_all", lambda file, keys: {})
    with pytest.raises(npzkit.errors.AmbiguousArchiveError, match=r"different arrays.*digits\.npz"):
        npzkit.benchmark(fixtures / "digits.npz", rounds=1)


def test_wrong_rounds(fixtures):
    """Something has to be measured."""
    with pytest.raises(ValueError, match="rounds"):
        npzkit.benchmark(fixtures / "digits.npz", rounds=0)
