"""What is in sight of a figure."""

from __future__ import annotations

import pytest

pytest.importorskip("bokeh", reason="the page needs Bokeh")

from npzkit.viewer.figures import Ranges
from npzkit.viewer.shown import Shown


@pytest.mark.parametrize("aspect", ["fill", "equal"])
def test_reset_leads_to_the_whole_plane(aspect):
    """Whatever is in sight, the tool Reset shows all rows and columns, square if chosen so."""
    ranges = Ranges(lambda *window: None, is_image=True)
    shown = Shown(key="x", rows=(10, 20), columns=(5, 15), aspect=aspect)
    ranges.show((100, 50), shown, (300, 300))
    assert (ranges.y.start, ranges.y.end) == (19.5, 9.5)
    assert (ranges.x.start, ranges.x.end) == (4.5, 14.5)
    assert (ranges.y.reset_start, ranges.y.reset_end) == (99.5, -0.5)
    width = ranges.x.reset_end - ranges.x.reset_start
    assert width == (100 if aspect == "equal" else 50)
    assert ranges.x.reset_start + width / 2 == 24.5
