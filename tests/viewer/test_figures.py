"""What is in sight of a figure."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("bokeh", reason="the page needs Bokeh")

from bokeh.models import DatetimeTicker, Div
from npzkit.display.images import image_overview
from npzkit.display.lines import line_overview
from npzkit.viewer.drawing import PlaneDrawn
from npzkit.viewer.figures import ImageFigure, LineFigure, Ranges
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


@pytest.mark.parametrize("dtype", ["M8[D]", ">M8[us]", "M8[M]", "M8[3h]"])
def test_dates_have_an_axis_of_dates(dtype):
    """An axis of dates has the dates of the array, whatever their unit; NaT is a gap."""
    dates = np.array(["2020-03-01", "2021-06-01", "NaT"], "M8[M]").astype(dtype)
    figure = LineFigure(Ranges(lambda *window: None, is_image=False), Div())
    shown = Shown(key="x", at=(0,), across=0)
    figure.show(line_overview(dates), shown, dates.dtype)
    assert isinstance(figure.plot.yaxis[0].ticker, DatetimeTicker)
    placed = figure._path.data["y"]
    assert np.array_equal(placed[:2].astype("M8[ms]").astype(dates.dtype), dates[:2])
    assert np.isnan(placed[2])
    figure.show(line_overview(np.arange(3.0)), shown, np.dtype("f8"))
    assert not isinstance(figure.plot.yaxis[0].ticker, DatetimeTicker)


def test_the_ends_of_the_colours_have_signs():
    """A bar of colours has a sign at each end beyond which there are values."""
    values = np.arange(100.0).reshape(10, 10)
    figure = ImageFigure(Ranges(lambda *window: None, is_image=True), Div(), is_picture=False)
    shown = Shown(key="x", at=(0, 0), down=0, across=1)
    for low, high, above in ((0, 90, 90), (-5, 200, None)):
        drawn = PlaneDrawn(image_overview(values), values, low, high)
        figure.show(drawn, shown, values.dtype)
        assert figure._bar.formatter.args == {"below": None, "above": above}
        ticks = figure._bar.ticker.ticks
        assert (high in ticks) == (above is not None)
        assert len(ticks) > 2
