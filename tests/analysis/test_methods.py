"""`compare_methods`: sizes as they become, by samples of what is large."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from npzkit.analysis import methods

ARRAYS = {
    "noise": np.random.default_rng(0).integers(0, 1 << 30, (50, 1000)),
    "columns": np.asfortranarray(np.arange(60_000.0).reshape(100, 600) // 7),
    "record": np.zeros(9_000, [("a", "i4"), ("b", "S9")]),
    "scalar": np.float64(2.5), "empty": np.zeros((0, 3)), "text": np.array(["a", "bcd"]),
}  # fmt: skip


@pytest.mark.parametrize("compression", ["stored", "deflated"])
@pytest.mark.parametrize("budget", [1 << 24, 1 << 18])
def test_sizes_are_about_what_they_become(compression, budget, monkeypatch, tmp_path):
    """The estimate by samples is near the size of the archive's data with each method."""
    monkeypatch.setattr(methods, "BUDGET", budget)
    npzkit.save(tmp_path / "a.npz", ARRAYS, compression=compression)
    trials = npzkit.compare_methods(tmp_path / "a.npz")
    assert [trial.method for trial in trials] == ["stored", "deflated", "zstd"]
    for trial in trials:
        npzkit.save(tmp_path / "b.npz", ARRAYS, compression=trial.method)
        with npzkit.open(tmp_path / "b.npz") as npz:
            infos = [npz.info(key) for key in npz]
        assert trial.nbytes == sum(info.nbytes for info in infos)
        assert trial.size == pytest.approx(sum(info.compressed_size for info in infos), rel=0.15)
        assert min(trial.save_speed, trial.load_speed) > 0


def test_many_arrays_and_none(monkeypatch):
    """Only the largest are sampled, and the rest counts as these; without values there are none."""
    monkeypatch.setattr(methods, "_SAMPLED_COUNT", 2)
    stream = io.BytesIO()
    npzkit.save(stream, {f"x{n}": np.zeros(1000 + n) for n in range(9)})
    stored, deflated, _ = npzkit.compare_methods(stream)
    assert stored.nbytes == 8 * (9000 + 36)
    assert stored.size == pytest.approx(stored.nbytes, rel=0.05)
    assert deflated.size < stored.size / 10
    stream = io.BytesIO()
    npzkit.save(stream, {"empty": np.zeros((0, 3))})
    assert npzkit.compare_methods(stream) == []
