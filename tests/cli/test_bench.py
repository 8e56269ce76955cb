"""bench: the same work by NumPy and by npzkit, measured side by side."""

from __future__ import annotations

import npzkit
import numpy as np


def test_bench_measures_both(cli, fixtures):
    """Opening, reading all and reading a part are timed on both sides."""
    path = fixtures / "photographs.npz"
    found = cli("bench", path, "--rounds", "2", "--json").json()
    assert [work["name"] for work in found["work"]] == [
        "open", "read all", "read a part of the largest"
    ]  # fmt: skip
    assert all(work["npzkit"] > 0 and work["numpy"] > 0 for work in found["work"])
    with npzkit.open(path) as npz:
        assert found["work"][1]["size"] == sum(array.nbytes for array in npz.values())
    result = cli("bench", path, "--rounds", "1")
    assert (result.code, result.err) == (0, "")
    assert "read all" in result.out
    assert " x " in result.out


def test_a_url_is_refused(cli, fixtures):
    """One line says what to do instead, and no request is made."""
    result = cli("bench", "https://me:secret@127.0.0.1:9/a.npz?token=secret")
    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1
    assert "NumPy reads no URLs" in result.err
    assert "Download the file" in result.err
    assert "secret" not in result.err
    local = (fixtures / "digits.npz").as_uri()
    assert cli("bench", local, "--rounds", "1").code == 0


def test_what_numpy_cannot_read(cli, fixtures, monkeypatch):
    """Its column says so, and npzkit's is measured."""

    def load(file):
        raise NotImplementedError("That compression method is not supported")

    monkeypatch.setattr(np, "load", load)
    result = cli("bench", fixtures / "digits.npz", "--rounds", "1")
    assert result.code == 0
    assert result.out.count("cannot") == 3


def test_different_data_is_not_timed(cli, fixtures, monkeypatch):
    """Where the two read different things, that is said instead."""
    monkeypatch.setattr("npzkit.analysis.benchmark._read_all", lambda file, keys: {})
    result = cli("bench", fixtures / "digits.npz", "--rounds", "1")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "different arrays" in result.err


def test_damage_is_an_error(cli, tmp_path):
    """What cannot be read is not timed, but named."""
    path = tmp_path / "a.npz"
    npzkit.save(path, {"x": np.arange(1000)})
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    result = cli("bench", path)
    assert result.code == 1
    assert "CRC-32" in result.err


def test_words_stay_whole_on_a_narrow_terminal(cli, tmp_path, monkeypatch):
    """Cells are folded between words where there is a space."""
    npzkit.save(tmp_path / "a.npz", {"x": np.zeros(100_000)})
    monkeypatch.setenv("COLUMNS", "60")
    words = cli("bench", tmp_path / "a.npz", "--rounds", "1").out.split()
    assert words.count("largest") == 1
