"""How much the tests try, which one variable of the environment says."""

from __future__ import annotations

import runpy
import signal
from pathlib import Path

import deep
import pytest


@pytest.mark.parametrize(
    ("value", "count", "size"), [(None, 3, 5), ("", 3, 5), ("0", 3, 5), ("1", 20, 50), ("10", 200, 50)]
)  # fmt: skip
def test_one_switch_says_how_much(value, count, size, monkeypatch):
    """Counts are small by default, full with NPZKIT_DEEP=1, and multiplied above; sizes are not."""
    monkeypatch.delenv("NPZKIT_DEEP", raising=False)
    if value is not None:
        monkeypatch.setenv("NPZKIT_DEEP", value)
    found = runpy.run_path(str(Path(deep.__file__)))
    assert found["amount"](3, 20) == count
    assert found["extent"](5, 50) == size
    assert found["needs_deep"].args == (count == 3,)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_is_an_exception():
    """Ctrl-C is KeyboardInterrupt in a test that asks for it, however the tests were started."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
