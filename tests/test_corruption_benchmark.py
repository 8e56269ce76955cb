"""The benchmark of silent corruption runs: it changes bytes, reads files in each way, and counts."""

from __future__ import annotations

import corruption
from deep import needs_deep


def test_each_outcome_is_counted(monkeypatch, capsys):
    """Maps show wrong data, a store its older step, all else an error; what is missing is named."""
    monkeypatch.setattr(corruption, "missing", list)
    corruption.main(["--here", "--flips", "4", "--markdown"])
    printed = capsys.readouterr().out
    assert "orbax is left out; not installed: orbax, jax" in printed
    table = [line[2:-2].split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    rows = [(way, list(map(int, counts))) for _, way, *counts in table if counts[0].isdigit()]
    # Four changes of any byte, and one of a record.
    assert {sum(counts) for _, counts in rows} == {4, 1}
    # Right, error, older, wrong.
    found = {way: counts for way, counts in rows if sum(counts) == 4}
    assert found["memmap"][3] == found["load"][2] == found["np.load"][1] == 4
    assert {way for way, counts in rows if counts[3]} == corruption.UNCHECKED


@needs_deep
def test_a_process_that_ends_is_an_error(tmp_path, monkeypatch):
    """A library that ends its process, or never returns, is counted, and another process goes on."""
    monkeypatch.setattr(corruption, "_serve", _end)
    reader = corruption.Child("np.savez")
    try:
        for _ in range(2):
            found = reader.outcome("np.load", "grid", tmp_path)
            assert found == ("error", "the process ended")
    finally:
        reader.close()


def _end(connection, format_name):
    connection.send("ready")
    connection.recv()
