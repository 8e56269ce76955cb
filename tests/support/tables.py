"""Tables whose rows are tried by one test, because thousands of tests cost more than they do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Any], Any]:
    """Return what `pytest.mark.parametrize` does, but for one test that tries all rows in turn.

    An error names its row. Each row has a folder of its own, and what it patched is undone. A
    test whose rows are all skipped is skipped.
    """
    if isinstance(names, str):
        names, rows = (names,), ((row,) for row in rows)
    table = [dict(zip(names, row, strict=True)) for row in rows]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def all_rows(**fixtures: Any) -> None:
            skipped = []
            for number, row in enumerate(table):
                with pytest.MonkeyPatch.context() as patched:
                    for name in fixtures.keys() & {"tmp_path", "here"}:
                        folder = fixtures[name] / f"row {number}"
                        folder.mkdir()
                        row = {name: folder, **row}
                    if "here" in row:
                        patched.chdir(row["here"])
                    if "monkeypatch" in fixtures:
                        row = {"monkeypatch": patched, **row}
                    try:
                        test(**{**fixtures, **row})
                    except pytest.skip.Exception as reason:
                        skipped.append(reason)
                    except BaseException as error:
                        shown = {name: row[name] for name in table[number]}
                        error.add_note(f"in the row {shown!r}")
                        raise
            if skipped and len(skipped) == len(table):
                raise skipped[0]

        all_rows.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[one for name, one in signature.parameters.items() if name not in names]
        )
        return all_rows

    return decorate
