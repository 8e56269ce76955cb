"""Pages of values as text."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from npzkit.display.cells import cell_text, table_page
from npzkit.errors import UnsupportedError
from virtual_array import VirtualArray


def test_a_page_of_a_plane():
    """Rows and columns of the window, their positions, and how many there are."""
    array = np.arange(600).reshape(5, 40, 3)
    page = table_page(array, [4, slice(None), slice(None)], down=1, across=2, rows=(38, 50))
    assert page.cells == [["594", "595", "596"], ["597", "598", "599"]]
    assert (page.rows, page.heads) == (range(38, 40), ["0", "1", "2"])
    assert (page.row_count, page.column_count) == (40, 3)
    page = table_page(array, [0, 0, 0], down=2, across=1, rows=(1, 2), columns=(39, 40))
    assert page.cells == [["118"]]


def test_a_line_and_a_single_value():
    """A line is one column without a heading, and a value is one cell."""
    assert table_page(np.array([1.5, np.nan]), down=0).cells == [["1.5"], ["nan"]]
    page = table_page(np.array(["2024-05-01"], "M8[D]"), [0])
    assert (page.heads, page.cells) == ([""], [["2024-05-01"]])
    assert table_page(np.array(3)).cells == [["3"]]


def test_records_have_a_column_per_field():
    """Fields are columns; nested fields and arrays within them are shortened."""
    dtype = [("id", "i4"), ("at", [("x", "f4"), ("y", "f4")]), ("many", "i2", (9,)), ("s", "S3")]
    array = np.zeros(2, dtype)
    array["at"]["y"] = 2.5
    array["s"] = b"\xff"
    page = table_page(array, down=0)
    assert page.heads == ["id", "at", "many", "s"]
    assert page.cells[1] == ["0", "(0.0, 2.5)", "[0, 0, 0, 0, 0, 0, ...]", "b'\\xff'"]
    assert table_page(array, down=0, columns=(1, 2)).heads == ["at"]
    assert (
        table_page(array.reshape(1, 2), down=0, across=1).cells[0][1].startswith("(0, (0.0, 2.5)")
    )


def test_text_stays_in_its_cell():
    """Text has no character that could control a page, and no more than a cell holds."""
    assert cell_text("a\nb\u202ec") == "a\\nb\\u202ec"
    assert len(cell_text("x" * 10**6)) == 80
    assert len(cell_text(b"\0" * 10**6)) == 80
    assert cell_text(np.void(b"\1\2")) == r"b'\x01\x02'"
    assert cell_text(np.array("a\n", np.dtypes.StringDType())[()]) == "a\\n"


def test_text_that_is_not_unicode():
    """A forged string is one cell that says so, not an error."""
    forged = np.array([0x7FFFFFFF], "u4").view("U1")
    assert table_page(forged, down=0).cells == [["(not valid Unicode)"]]
    assert table_page(np.array([5], "i8").view("M8"), down=0).cells == [["5"]]


def test_objects_are_refused():
    """Nothing is unpickled to be shown, nor printed by code of its own."""
    for dtype in (object, [("a", object)]):
        with pytest.raises(UnsupportedError, match="Python objects"):
            table_page(np.zeros(2, dtype), down=0)


def test_a_page_of_a_huge_array_is_small():
    """Windows are cut to ten thousand cells, and rows of megabytes to one."""
    source = VirtualArray((10**6, 10**6))
    page = table_page(source, down=0, across=1, rows=(5 * 10**5, 10**6), columns=(10, 60))
    assert (len(page.rows), len(page.columns)) == (200, 50)
    assert page.cells[0][0] == "500000000010.0"
    assert source.read_size == 80_000
    large = np.zeros((5, 2), "S1000000")
    assert len(table_page(large, down=0, across=1, budget=1 << 21).rows) == 1
    assert table_page(large, down=0, across=1, rows=(7, 9)).cells == []


def test_a_page_of_an_archive():
    """Only the page is read of an array in an archive; windows are cut to what there is."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.arange(10**6).reshape(1000, 1000)})
    lazy = npzkit.open(stream).lazy("a")
    page = table_page(lazy, down=0, across=1, rows=(990, 1010), columns=(999, 1020))
    assert page.cells[-1] == ["999999"]
    assert len(page.cells) == 10


@pytest.mark.parametrize("options", [{}, {"down": 0}, {"across": 1}, {"down": 1, "across": 1}])
def test_axes_without_a_use(options):
    """Each axis is down, across, or has an integer."""
    with pytest.raises(ValueError, match="axis"):
        table_page(np.zeros((2, 2)), **options)


def test_names_of_fields_are_text_that_can_be_shown():
    """Headings have no characters that control a page, and are shortened."""
    dtype = np.dtype([("a\u202e\ud800", "i4"), ("b" * 999, "i4")])
    heads = table_page(np.zeros(2, dtype), down=0).heads
    assert heads[0] == "a\\u202e\\ud800"
    assert len(heads[1]) == 80
