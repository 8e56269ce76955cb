"""What is read for a view, of archives of any size and anywhere."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import warnings
import zipfile

import forge
import npzkit
import numpy as np
import pytest
from archives import packed
from deep import extent
from npzkit.viewer import drawing
from npzkit.viewer.archives import field_dtype, open_archives, why_hidden
from npzkit.viewer.drawing import difference_of, draw
from npzkit.viewer.finding import find_place
from npzkit.viewer.shown import VIEWS, Shown, settled, views_of
from npzkit.viewer.texts import notes_html, page_html, statistics_html
from npzkit.viewer.worker import Cancelled, Work
from range_server import RangeServer

from tables import each_row

SIZE = (400, 300)


def go_on(share=0.0):
    pass


class Looking:
    """Archives that are looked at as by a page."""

    def __init__(self, *files):
        self.stack = contextlib.ExitStack()
        self.archives = open_archives(self.stack, files)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.stack.close()

    def panes(self, proceed=go_on, **shown):
        found = Shown(**shown)
        info = self.archives[found.archive].info(found.key)
        found = settled(found, *field_dtype(info, found.field))
        return draw(self.archives, found, SIZE, proceed)

    def drawn(self, proceed=go_on, **shown):
        return self.panes(proceed, **shown)[0][0].drawn


def looking(**arrays):
    stream = io.BytesIO()
    npzkit.save(stream, arrays)
    return Looking(stream)


def test_an_image_has_the_values_of_a_plane():
    """Axes, positions and windows choose what an image shows, turned as was asked for."""
    x = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    with looking(x=x) as page:
        found = page.drawn(key="x", at=(2,))
        assert np.array_equal(found.numbers, x[2])
        found = page.drawn(key="x", at=(0, 3), down=2, across=0, rows=(1, 4))
        assert np.array_equal(found.numbers, x[:, 3, 1:4].T)
        assert (found.rows, found.columns) == (range(1, 4), range(4))


@each_row("dtype", ["?", "u1", "i8", "f2", ">f4", "f8", "M8[s]", "c16"])
def test_numbers_reach_a_browser_without_a_change(dtype):
    """Every dtype is sent in one that a browser has; values stay as they are."""
    x = np.array([[0, 1, 1], [0, 0, 1]]).astype(dtype)
    with looking(x=x) as page:
        found = page.drawn(key="x").numbers
    assert found.dtype.str[1:] in {"u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"}
    assert np.array_equal(found, np.abs(x) if dtype == "c16" else x.astype(float))


def test_what_is_not_finite_is_counted():
    """NaNs and infinities are counted, and do not change the range of the colours."""
    x = np.ones((9, 9))
    x[0] = [np.nan, np.nan, np.inf, -np.inf, -np.inf, -np.inf, 0, 0, 2]
    with looking(x=x) as page:
        found = page.drawn(key="x", scale="all")
        line = page.drawn(key="x", view="line")
        notes = notes_html(page.panes(key="x")[0], None)
    for text in ("2 NaN", "1 +infinity", "3 \u2212infinity"):
        assert text in notes
    assert (found.low, found.high) == (0, 2)
    assert (line.nan_count, line.inf_count) == (2, 4)


def test_colours_range_around_zero():
    """Around 0, the colours reach as far below as above."""
    with looking(x=np.array([[-1.0, 3.0]] * 2)) as page:
        found = page.drawn(key="x", scale="around-0", view="image")
    assert (found.low, found.high) == (-3, 3)


@pytest.mark.parametrize(
    ("x", "shown", "note"),
    [
        (np.r_[np.arange(200.0), 1e4], {}, "colours end at 2 and 198; values reach 0 and 1e+04"),
        (np.r_[np.zeros(199), 7], {"scale": "5-95"}, None),
        (np.r_[np.arange(200.0), np.inf], {"scale": "all"}, None),
        (np.arange(200), {"palette": "labels"}, None),
        (1e6 + np.r_[np.arange(200), 900], {}, "end at 1000002 and 1000198; values reach 1000000 and"),
        (np.datetime64("2020-01-01") + np.r_[np.arange(200), 9999], {},
         "colours end at 2020-01-03 and 2020-07-17; values reach 2020-01-01 and 2047-05-18"),
        (np.full((1, 200, 3), 200, "u1"), {"view": "picture"}, None),
    ],
)  # fmt: skip
def test_colours_that_end_before_the_values_say_so(x, shown, note):
    """If values lie beyond the range of the colours, the page says where both end."""
    with looking(x=x if x.ndim > 1 else np.stack([x, x])) as page:
        found = notes_html(page.panes(key="x", **{"view": "image"} | shown)[0], None)
    assert note in found if note else "colours" not in found


def test_compared_arrays_have_one_range_of_colours():
    """What lies beyond the colours of two images is said of both together."""
    x = np.arange(400.0).reshape(20, 20)
    with looking(x=x, y=np.where(x == 7, -50, x)) as page:
        panes, _ = page.panes(key="x", other_key="y")
        assert "values reach -50 and 399" in notes_html(panes, None)


def test_complex_numbers_by_magnitude_and_phase():
    """A part is chosen; the phase has colours from -pi to pi."""
    x = np.array([[1j, -1], [2, 3 + 4j]])
    with looking(x=x) as page:
        assert np.array_equal(page.drawn(key="x").numbers, np.abs(x))
        phase = page.drawn(key="x", part="phase")
    assert np.array_equal(phase.numbers, np.angle(x))
    assert (phase.low, phase.high) == (-np.pi, np.pi)


def test_a_picture_has_colours():
    """Three or four values at the end of the shape are a colour."""
    x = np.arange(2 * 3 * 3, dtype="u1").reshape(2, 3, 3)
    with looking(x=x) as page:
        found = page.drawn(key="x")
    assert found.colours.view(np.uint8).reshape(2, 3, 4)[1, 2].tolist() == [15, 16, 17, 255]


def test_a_field_of_records_is_an_array():
    """A field can be drawn like any array, with the axes that its items have."""
    x = np.zeros(5, [("id", "i4"), ("pos", "f8", (2, 3))])
    x["pos"] = np.arange(30).reshape(5, 2, 3)
    with looking(x=x) as page:
        assert page.drawn(key="x").page.heads == ["id", "pos"]
        found = page.drawn(key="x", field="pos", at=(4,))
        assert np.array_equal(found.numbers, x["pos"][4])
        line = page.drawn(key="x", field="pos", view="line", across=0, at=(0, 1, 2))
        assert np.array_equal(line.low, x["pos"][:, 1, 2])
        assert page.drawn(key="x", field="id", view="histogram").overview.statistics.max == 0


@pytest.mark.parametrize(
    "x", [np.array(3), np.array("text"), np.zeros((0, 4)), np.array([b"a", b"\xff"]),
          np.zeros(2, "M8[ns]"), np.zeros((3, 0, 2), "U4"), np.zeros(0)],
    ids=repr,
)  # fmt: skip
def test_every_array_has_a_table(x):
    """Scalars, text and arrays without values are shown as well."""
    with looking(x=x) as page:
        page.drawn(key="x")
        page.drawn(key="x", view="table")


@pytest.mark.parametrize("compression", ["stored", "deflated"])
def test_exact_statistics_are_checked(compression):
    """A histogram of all values finds that the array is damaged; that of a sound one does not."""
    stream = io.BytesIO()
    x = np.random.default_rng(0).integers(0, 9, 5000)
    npzkit.save(stream, {"x": x, "y": x}, compression=compression)
    with npzkit.open(stream) as npz:
        offset = npz.info("x").data_offset
    data = bytearray(stream.getvalue())
    data[offset + 200] ^= 1
    with Looking(bytes(data)) as page:
        with contextlib.suppress(npzkit.NpzkitError):
            page.panes(key="x", view="histogram")
            assert "CRC-32" in page.archives[0].damaged["x"]
        page.panes(key="y", view="histogram")
        assert "y" not in page.archives[0].damaged


# -- comparing ------------------------------------------------------------------


@pytest.mark.parametrize("view", ["image", "line", "histogram", "table"])
def test_two_arrays_and_their_difference(view):
    """The difference is the first minus the second, without overflow, also of two archives."""
    a = np.array([[1, 250], [3, 4]], "u1")
    b = np.array([[2, 5], [3, 0]], "i8")
    streams = [io.BytesIO(), io.BytesIO()]
    npzkit.save(streams[0], {"x": a})
    npzkit.save(streams[1], {"x": b})
    with Looking(*streams) as page:
        panes, why = page.panes(key="x", view=view, other_archive=1, other_key="x", at=(0, 0))
    assert why is None
    assert [pane.is_difference for pane in panes] == [False, False, True]
    assert panes[2].title == "Difference: left - right"
    difference = a.astype(int) - b
    drawn = panes[2].drawn
    if view == "image":
        assert np.array_equal(drawn.numbers, difference)
        assert (drawn.low, drawn.high) == (-245, 245)
        assert (panes[0].drawn.low, panes[0].drawn.high) == (
            panes[1].drawn.low, panes[1].drawn.high
        )  # fmt: skip
    elif view == "line":
        assert np.array_equal(drawn.low, difference[0])
    elif view == "table":
        assert drawn.page.cells == [["-1.0", "245.0"], ["0.0", "4.0"]]
        assert {pane.drawn.marked for pane in panes[:2]} == {frozenset({(0, 0), (0, 1), (1, 1)})}
    else:
        assert drawn.overview.statistics.max == 245


def test_large_integers_differ_exactly():
    """Integers of 64 bits that floating point cannot tell apart have their difference."""
    a, b = np.full((2, 2), 2**62 + 1), np.full((2, 2), 2**62)
    with looking(a=a, b=b) as page:
        panes, _ = page.panes(key="a", other_key="b", view="image")
    assert np.unique(panes[2].drawn.numbers).tolist() == [1] or np.finfo(np.longdouble).nmant < 60


def test_why_nothing_is_searched():
    """Arrays that cannot be compared have a reason, not an answer."""
    with looking(a=np.zeros((2, 2)), b=np.zeros((3, 3)), c=np.array([["x"]])) as page:
        for other, why in (("b", "shapes differ"), ("c", "another kind")):
            shown = settled(Shown(key="a", other_key=other), (2, 2), np.dtype(float))
            assert why in difference_of(page.archives, shown, go_on)


@pytest.mark.slow
@pytest.mark.parametrize("place", [(0, 0), (1234, 777), (1999, 1399)][:: extent(2, 1)])
def test_the_only_difference_is_seen(place):
    """A difference of one value in a plane with many more rows and columns than pixels is shown."""
    a = np.random.default_rng(0).integers(0, 9, (2000, 1400), "i2")
    b = a.copy()
    b[place] += 7
    with looking(a=a, b=b) as page:
        panes, _ = page.panes(key="a", other_key="b", view="image")
        drawn = panes[2].drawn
        assert (drawn.numbers == -7).sum() == np.count_nonzero(drawn.numbers) == 1
        (row,), (column,) = (drawn.numbers == -7).nonzero()
        assert drawn.rows[row] <= place[0] < drawn.rows[row] + drawn.rows.step
        assert drawn.columns[column] <= place[1] < drawn.columns[column] + drawn.columns.step
        assert "largest difference shown: 7.0" in notes_html(panes, None)
        panes, _ = page.panes(key="a", other_key="a", view="image")
        assert "the arrays are equal: all values were compared" in notes_html(panes, None)


@each_row(
    ("dtype", "shown", "note"),
    [
        ("f8", {}, 'this plane is equal</b>; <span class="warn">other planes were not'),
        ("f8", {"view": "line"}, 'this line is equal</b>; <span class="warn">other lines were not'),
        ("f8", {"rows": (0, 2)}, "what is in sight is equal"),
        ("f8", {"view": "table"}, "this page is equal"),
        ("f8", {"view": "histogram"}, "the arrays are equal: all values were compared"),
        ("f8", {"at": (1,)}, 'largest difference shown: 5.0</b>; <span class="warn">other planes'),
        ("U1", {}, 'this page is equal</b>; <span class="warn">other pages were not compared'),
        ("U1", {"at": (1,)}, 'differing on this page: 1 cell</b>; <span class="warn">other pages'),
    ],
)
def test_what_was_compared_is_said(dtype, shown, note):
    """Nothing is called equal without saying what was compared, and what was not."""
    a = np.zeros((2, 4, 5), dtype)
    b = a.copy()
    b[1, 2, 3] = "5"
    other = "a" if shown.get("view") == "histogram" else "b"
    with looking(a=a, b=b) as page:
        assert note in notes_html(*page.panes(key="a", other_key=other, **shown))


def test_statistics_of_a_sample_say_so(monkeypatch):
    """Statistics of a large array are of a sample, unless all of it is asked for."""
    monkeypatch.setattr(drawing, "STATISTICS_BUDGET", 1 << 16)
    shares = []
    with looking(x=np.arange(300_000)) as page:
        sample, _ = page.panes(key="x", view="histogram")
        all_of_it, _ = page.panes(shares.append, key="x", view="histogram", amount="all")
    assert ">sample<" in statistics_html(sample)
    assert ">sample<" not in statistics_html(all_of_it)
    assert shares == sorted(shares)
    assert 0 < max(shares) <= 1


@pytest.mark.slow
def test_a_difference_that_is_not_complete_says_so(monkeypatch):
    """If not all values are compared, the page says so, and what compares them."""
    monkeypatch.setattr(drawing, "DIFFERENCE_BUDGET", 1 << 14)
    with looking(a=np.zeros((3000, 2000)), b=np.zeros((3000, 2000))) as page:
        panes, _ = page.panes(key="a", other_key="b", view="image")
        assert "not all values were compared" in notes_html(panes, None)


@pytest.mark.slow
@each_row("dtypes", ["u1 u1", "u2 u2", "f4 f4", "b1 b1", "i1 i1", "u1 u2", "u1 f4"])
@each_row("colour_count", [3, 4])
def test_pictures_have_a_difference(dtypes, colour_count):
    """The difference of two pictures is a picture of how far their colours are apart."""
    first, second = dtypes.split()
    a = np.zeros((900, 20, colour_count), first)
    b = np.zeros(a.shape, second)
    b[601, 7, 1] = 1 if second in {"f4", "b1"} else 100
    with looking(a=a, b=b) as page:
        panes, why = page.panes(key="a", other_key="b", view="picture")
    assert why is None
    colours = panes[2].drawn.colours
    assert (colours >> 24 == 255).all()
    assert sorted(np.unique(colours & 0xFFFFFF).tolist()) == [0, 0xFF00]
    assert "largest difference shown" in notes_html(panes, None)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["image", "line", "histogram"])
@pytest.mark.parametrize("shape", [(4, 5), (1200, 900)])
def test_a_nan_in_one_array_only_is_a_difference(view, shape):
    """One NaN beside numbers is seen and said; two NaNs are no difference."""
    a = np.zeros(shape)
    a[2, 3] = np.nan
    b = a.copy()
    with looking(a=a, b=b, c=np.zeros(shape)) as page:
        panes, _ = page.panes(key="a", other_key="b", view=view, at=(2, 3))
        assert "equal" in notes_html(panes, None)
        panes, _ = page.panes(key="c", other_key="a", view=view, at=(2, 3))
        assert "<b>some values are NaN in one array only</b>" in notes_html(panes, None)
        if view == "image":
            assert np.isnan(panes[2].drawn.numbers).sum() == 1


@pytest.mark.parametrize("part", ["magnitude", "phase", "real", "imag"])
def test_complex_numbers_differ_by_the_magnitude(part):
    """The difference of complex numbers is how far they are apart, whichever part is shown."""
    a = np.zeros((4, 5), complex)
    b = a.copy()
    b[1, 1], b[2, 2] = 5j, 3
    with looking(a=a, b=b) as page:
        panes, _ = page.panes(key="a", other_key="b", view="image", part=part)
    assert panes[2].drawn.numbers[1, 1] == 5
    assert panes[2].drawn.numbers[2, 2] == 3
    assert "magnitude of left - right" in panes[2].title


def test_tables_compare_values_not_texts():
    """Long texts, equal numbers of other dtypes, NaNs and pages that do not overlap are compared."""
    long = np.array(["x" * 100 + "a", "y"]), np.array(["x" * 100 + "b", "y"])
    with looking(a=long[0], b=long[1]) as page:
        panes, _ = page.panes(key="a", other_key="b", view="table")
        assert [pane.drawn.marked for pane in panes[:2]] == [{(0, 0)}, {(0, 0)}]
    with looking(a=np.array([[1, 2]]), b=np.array([[1.0, 3]])) as page:
        panes, _ = page.panes(key="a", other_key="b", view="table")
        assert panes[0].drawn.marked == {(0, 1)}
    nan = np.array([(np.nan, [1, 2.0])], [("n", "f8"), ("v", "f8", 2)])
    other = nan.copy()
    other["v"][0, 1] = 9
    with looking(a=nan, b=nan, c=other) as page:
        panes, _ = page.panes(key="a", other_key="b", view="table")
        assert panes[0].drawn.marked == set()
        panes, _ = page.panes(key="a", other_key="c", view="table")
        assert panes[0].drawn.marked == {(0, 1)}
    plane = np.zeros((2, 2), [("p", "i4", 3)])
    other = plane.copy()
    other["p"][1, 0, 2] = 5
    with looking(a=plane, b=other) as page:
        panes, _ = page.panes(key="a", other_key="b", view="table")
        assert panes[0].drawn.marked == {(1, 0)}
    with looking(a=np.arange(300), b=np.arange(150)) as page:
        panes, why = page.panes(key="a", other_key="b", view="table", rows=(200, 300))
        assert "shapes differ" in why
        assert len(panes[0].drawn.marked) == len(panes[0].drawn.page.rows)
    cube = np.arange(24).reshape(2, 3, 4)
    with looking(a=cube, b=cube + (cube == 23)) as page:
        panes, _ = page.panes(key="a", other_key="b", view="table", down=2, across=0, at=(0, 2, 0))
        assert panes[0].drawn.marked == {(3, 1)}


@pytest.mark.slow
def test_arrays_in_other_orders_are_compared_within_the_usual_budget(tmp_path):
    """A plane of C order and one of Fortran's are not read completely for each picture."""
    a = np.zeros((3000, 2000))
    npzkit.save(tmp_path / "a.npz", {"a": a, "b": np.asfortranarray(a)})
    with Looking(tmp_path / "a.npz") as page:
        panes, _ = page.panes(key="a", other_key="b", view="image")
        assert not panes[2].drawn.is_complete
        panes, _ = page.panes(key="a", other_key="a", view="image")
        assert panes[2].drawn.is_complete


def test_texts_that_differ_are_marked():
    """Tables of strings mark the cells that differ, and have no complaint."""
    with looking(a=np.array(["x", "y"]), b=np.array(["x", "z"]), c=np.array(["x"])) as page:
        panes, why = page.panes(key="a", other_key="b", view="table")
        assert (len(panes), why) == (2, None)
        assert panes[1].drawn.marked == {(1, 0)}
        html = page_html(panes[1].drawn, are_texts=True, has_rows=True)
        assert html.count('class="differs text"') == 1
        assert "differing on this page: 1 cell" in notes_html(panes, why)
        panes, why = page.panes(key="a", other_key="c", view="table")
        assert "shapes differ" in why
        assert panes[0].drawn.marked == {(1, 0)}


@each_row(
    ("a", "b", "place"),
    [
        (np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(3, 4) - np.eye(3, 4), (0, 0)),
        (np.array([1.0, np.nan, 3]), np.array([1.5, np.nan, 3]), (0,)),
        (np.array([9.0, np.nan, 3]), np.array([1.0, 2, 3]), (1,)),
        (np.array([np.inf, 1]), np.array([np.inf, 1]), None),
        (np.array([2**63, 5], "u8"), np.array([2**63 - 1, 5], "u8"), (0,)),
        (np.array(["2020-01-01", "NaT"], "M8[D]"), np.array(["2020-01-01", "NaT"], "M8[D]"), None),
        (np.array([1j, 2]), np.array([1, 2]), (0,)),
        (np.array(5.0), np.array(6.0), ()),
        (np.array([2**53 + 1]), np.array([2.0**53]), (0,)),
    ],
)
def test_where_arrays_differ_most(a, b, place):
    """The largest difference is found: two NaNs are equal, one is as far as can be."""
    with looking(a=a, b=b) as page:
        shown = settled(Shown(key="a", other_key="b"), a.shape, a.dtype)
        source = difference_of(page.archives, shown, go_on)
        found = find_place(source, "difference", go_on)
    assert (None if found is None else found.position) == place


def test_a_flat_window_is_drawn_completely():
    """A window that fits into the figure is drawn with every value, however flat it is."""
    x = np.arange(4_000_000).reshape(2000, 2000)
    with looking(x=x) as page:
        drawn = page.drawn(key="x", rows=(10, 20), columns=(0, 2000))
        assert drawn.rows == range(10, 20)


@pytest.mark.parametrize(
    ("other", "count", "why"),
    [(np.zeros((3, 3)), 2, "shapes differ"), (np.zeros(4), 1, "another kind"),
     (np.array([["a"]]), 1, "another kind"), (np.zeros((2, 2), "M8[s]"), 2, "dtypes differ")],
)  # fmt: skip
def test_why_there_is_no_difference(other, count, why):
    """Arrays that cannot be subtracted are shown beside each other, with the reason."""
    with looking(x=np.zeros((2, 2)), y=other) as page:
        panes, found = page.panes(key="x", other_key="y", view="image")
    assert len(panes) == count
    assert why in found


# -- how much is read -------------------------------------------------------------


@pytest.fixture
def huge(tmp_path):
    """An archive with a stored array of 3 GiB, which is a hole of the file."""
    path = tmp_path / "huge.npz"
    header = forge.header("{'descr': '<f4', 'fortran_order': False, 'shape': (12, 8192, 8192), }")
    size = len(header) + 12 * 8192 * 8192 * 4
    sizes = {"csize": size, "usize": size}
    member = forge.Member("x.npy", header, local=sizes, central=sizes)
    local, central = member.local_bytes(), member.central_bytes(0)
    with open(path, "wb") as file:
        file.write(local + header)
        file.truncate(len(local) + size)
        file.seek(len(local) + size)
        file.write(central)
        file.write(struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, 1, 1, len(central),
                               len(local) + size, 0))  # fmt: skip
    if hasattr(path.stat(), "st_blocks") and path.stat().st_blocks * 512 < 1 << 20:
        return path
    pytest.skip("files have no holes here")


@pytest.mark.slow
def test_a_huge_array_takes_little_memory(huge, monkeypatch):
    """Every view of 3 GiB reads a small part, and says how much of it."""
    monkeypatch.setattr(drawing, "VIEW_BUDGET", 1 << 22)
    monkeypatch.setattr(drawing, "STATISTICS_BUDGET", 1 << 22)
    with Looking(huge) as page:
        tracemalloc.start()
        try:
            found = {view: page.drawn(key="x", view=view) for view in VIEWS if view != "picture"}
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 48 << 20
    assert found["image"].rows.step >= 8192 / SIZE[1]
    assert found["histogram"].overview.sampled < 0.01
    assert found["table"].page.row_count == 8192


def test_zooming_reads_again_at_a_finer_step(huge):
    """A window that fits is read with all of its values."""
    with Looking(huge) as page:
        coarse = page.drawn(key="x")
        fine = page.drawn(key="x", rows=(8000, 8100), columns=(10, 50))
    assert coarse.rows.step > 1
    assert (fine.rows, fine.columns) == (range(8000, 8100), range(10, 50))


def test_a_distant_array_takes_few_requests():
    """A plane of an array on a server takes its own bytes, and some requests."""
    x = np.random.default_rng(0).random((40, 128, 256))
    with RangeServer().running() as server:
        url = server.put(packed({"x": x, "y": np.zeros(9)}))
        with Looking(url) as page:
            server.forget()
            found = page.drawn(key="x", at=(20,))
            assert np.array_equal(found.numbers, x[20])
            assert server.count <= 6
            assert server.size <= 4 * x[0].nbytes
            server.forget()
            page.drawn(key="x", view="table", at=(39,))
            assert server.size <= x[0].nbytes


@pytest.mark.slow
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_reading_can_be_cancelled(tmp_path, method):
    """What lies before a part of a compressed array is read step by step, until it is cancelled."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        archive.writestr("x.npy", forge.npy(np.zeros((30, 1000, 1000), "u1")))
    work = Work()
    steps = []

    def proceed(share):
        steps.append(len(steps))
        work.is_cancelled = len(steps) == 2
        work.proceed()

    with Looking(path) as page:
        with pytest.raises(Cancelled):
            page.drawn(proceed, key="x", at=(29,))
        assert len(steps) == 2
        assert not page.drawn(key="x", at=(29,)).numbers.any()


def test_a_large_array_without_a_seek_index_has_the_statistics_of_its_beginning(
    tmp_path, monkeypatch
):
    """Reaching the middle of it would mean to decompress everything before."""
    monkeypatch.setattr("npzkit.display.sampling._NEAR_SIZE", 1 << 20)
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", forge.npy(np.zeros((400, 10_000), "u1")))
    with Looking(path) as page:
        drawn = page.drawn(key="x", view="histogram")
    assert 0.2 < drawn.share < 0.3
    assert drawn.overview.statistics.count == drawn.share * 4_000_000


def test_a_sharded_archive_is_shown_like_one_file(tmp_path):
    """An array in several shards is one image, and one field of records as well."""
    x = np.arange(60.0).reshape(10, 6)
    with npzkit.ShardedWriter(tmp_path / "folder") as w:
        w.add("x", x[:4], offset=(0, 0), global_shape=x.shape)
        w.add("x", x[4:], offset=(4, 0), global_shape=x.shape)
        w.commit()
    with Looking(tmp_path / "folder") as page:
        assert np.array_equal(page.drawn(key="x").numbers, x)
        assert np.array_equal(page.drawn(key="x", rows=(3, 6)).numbers, x[3:6])
        assert page.drawn(key="x", view="histogram").overview.statistics.max == 59


@pytest.mark.slow
def test_every_fixture_can_be_looked_at(fixtures):
    """Whatever is in a file, each view of it is drawn, or an error of npzkit says why not."""
    drawn = 0
    for path in [*fixtures.glob("*.npz"), *fixtures.glob("fuzz/*")]:
        try:
            with warnings.catch_warnings(action="ignore"):
                page = Looking(path)
        except npzkit.NpzkitError:
            continue
        with page:
            for key in list(page.archives[0].npz)[:5]:
                with contextlib.suppress(npzkit.NpzkitError):
                    info = page.archives[0].info(key)
                    if why_hidden(info) is None:
                        for view in views_of(*field_dtype(info, None)):
                            page.panes(key=key, view=view, other_key=key)
                            drawn += 1
    assert drawn > 100
