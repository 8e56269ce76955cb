"""The button that checks archives for damage: its progress, and what it found.

Owns what the page says of a check. `npzkit.verify` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Any

from bokeh.models import Button, Div

from npzkit.errors import format_count, format_size, printable, shown_key
from npzkit.maintenance.findings import VerifyReport
from npzkit.viewer.archives import ShownArchive, damage_in
from npzkit.viewer.texts import error_html
from npzkit.viewer.worker import Work, Worker

_FINDING_COUNT = 50
"""Findings that are shown."""


class Checking:
    """A button, and what it says.

    Parameters
    ----------
    archives : sequence of ShownArchive
    worker : Worker
    mark : callable
        Called with the number of an archive, and its damaged keys with the reasons.
    style : list of bokeh.models.StyleSheet

    Attributes
    ----------
    button, progress, findings : bokeh.models.Widget
    """

    def __init__(
        self,
        archives: Sequence[ShownArchive],
        worker: Worker,
        mark: Callable[[int, dict[str, str]], object],
        style: list[Any],
    ) -> None:
        self._archives, self._worker, self._mark = archives, worker, mark
        self.button = Button(label="Verify", name="verify", stylesheets=style, width=80)
        self.button.on_click(self._clicked)
        self.progress = Div(text="", name="progress", stylesheets=style, disable_math=True)
        self.findings = Div(
            text="", name="findings", visible=False, stylesheets=style, disable_math=True,
            sizing_mode="stretch_width",
        )  # fmt: skip
        self._percent = -1

    def _clicked(self) -> None:
        if self._worker.is_busy:
            self._worker.cancel()
            self._end('<span class="soft">The check was stopped.</span>')
            return
        self.button.label = "Stop"
        self.findings.visible = False
        self._percent = -1
        self._worker.start(self._check, self._take, lambda error: self._end(error_html(error)))

    def _check(self, work: Work) -> list[VerifyReport]:
        total = sum(archive.totals.uncompressed_size for archive in self._archives)
        before = 0

        def report(done: int, size: int) -> None:
            work.proceed()
            percent = 100 * (before + done) // max(total, size, 1)
            if percent > self._percent:
                self._percent = percent
                self._worker.tell(work, partial(self._advance, before + done, total))

        reports = []
        for archive in self._archives:
            reports.append(archive.npz.verify(progress=report))
            before += reports[-1].size
        return reports

    def _advance(self, done: int, total: int) -> None:
        share = min(done / max(total, 1), 1)
        self.progress.text = (
            f'<progress max="1" value="{share:.3f}"></progress> '
            f"{100 * share:.0f} % of {format_size(total)}"
        )

    def _end(self, text: str) -> None:
        self.button.label = "Verify"
        self.progress.text = text

    def _take(self, reports: list[VerifyReport]) -> None:
        lines = []
        for number, report in enumerate(reports):
            self._mark(number, damage_in(report))
            label = f"{self._archives[number].label}: " if len(reports) > 1 else ""
            for row in report.rows:
                if row.severity != "note":
                    key = "" if row.key is None else f"{shown_key(row.key)}: "
                    kind = "bad" if row.severity == "error" else "warn"
                    what = escape(printable(f"{label}{key}{row.what}"))
                    lines.append(f'<div class="{kind}">{what}</div>')
        self._end(_verdict(reports))
        more = len(lines) - _FINDING_COUNT
        end = [f"<div>and {more:,} more</div>"] if more > 0 else []
        shown = "".join([*lines[:_FINDING_COUNT], *end])
        self.findings.update(text=f"<h3>Findings</h3>{shown}", visible=bool(shown))


def _verdict(reports: list[VerifyReport]) -> str:
    errors = sum(row.severity == "error" for report in reports for row in report.rows)
    if errors:
        return f'<b class="bad">✗ damaged: {format_count(errors, "error")}</b>'
    if any(report.torn_size for report in reports):
        return '<b class="warn">Sound, but it ends with an unfinished append</b>'
    return '<b class="good">✓ sound: all data was checked</b>'
