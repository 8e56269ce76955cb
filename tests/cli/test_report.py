"""The command that writes a page of HTML about an archive."""

from __future__ import annotations

import os

import npzkit
import numpy as np


def test_a_report_is_written_once(cli, tmp_path, monkeypatch):
    """It goes to report.html, or to -o; an existing file is replaced only with --overwrite."""
    monkeypatch.chdir(tmp_path)
    npzkit.save("a.npz", {"a": np.arange(9)})
    first = cli("report", "a.npz")
    assert (first.code, first.err, first.out[:12]) == (0, "", "report.html:")
    assert cli("report", "a.npz", "--all", "-o", "b.html").code == 0
    refused = cli("report", "a.npz")
    assert (refused.code, "--overwrite" in refused.err) == (2, True)
    assert cli("report", "a.npz", "--overwrite").code == 0
    assert sorted(os.listdir()) == ["a.npz", "b.html", "report.html"]


def test_a_damaged_array_is_reported(cli, tmp_path):
    """The page is written, and the exit code is 1."""
    path, page = tmp_path / "a.npz", tmp_path / "a.html"
    npzkit.save(path, {"a": np.arange(9)})
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    found = cli("report", path, "-o", page)
    assert found.code == 1
    assert found.err.startswith("npzkit: a: the data is damaged")
    assert page.exists()
