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
from npzkit.viewer import drawing
from npzkit.viewer.archives import close_archives, field_dtype, open_archives, why_hidden
from npzkit.viewer.background import Cancelled, Work
from npzkit.viewer.drawing import draw
from npzkit.viewer.shown import Shown
from npzkit.viewer.views import VIEWS, settled, views_of
from range_server import RangeServer, packed

SIZE = (400, 300)


def go_on():
    pass


class Looking:
    """Archives that are looked at as by a page."""

    def __init__(self, *files):
        self.archives = open_archives(files)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        close_archives(self.archives)

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


@pytest.mark.parametrize("dtype", ["?", "u1", "i8", "f2", ">f4", "f8", "M8[s]", "c16"])
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
        line = page.drawn(key="x", view="line").overview
    counts = found.counts
    assert (counts.nan_count, counts.plus_count, counts.minus_count) == (2, 1, 3)
    assert (found.low, found.high) == (0, 2)
    assert (line.nan_count, line.inf_count) == (2, 4)


def test_colours_range_around_zero():
    """Around 0, the colours reach as far below as above."""
    with looking(x=np.array([[-1.0, 3.0]] * 2)) as page:
        found = page.drawn(key="x", scale="around-0", view="image")
    assert (found.low, found.high) == (-3, 3)


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
        line = page.drawn(key="x", field="pos", view="line", across=0, at=(0, 1, 2)).overview
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


# -- comparing ------------------------------------------------------------------


@pytest.mark.parametrize("view", ["image", "line", "histogram"])
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
    assert [pane.title for pane in panes][2] == "Difference"
    difference = a.astype(int) - b
    drawn = panes[2].drawn
    if view == "image":
        assert np.array_equal(drawn.numbers, difference)
        assert (drawn.low, drawn.high) == (-245, 245)
        assert (panes[0].drawn.low, panes[0].drawn.high) == (
            panes[1].drawn.low, panes[1].drawn.high
        )  # fmt: skip
    elif view == "line":
        assert np.array_equal(drawn.overview.low, difference[0])
    else:
        assert drawn.overview.statistics.max == 245


def test_large_integers_differ_exactly():
    """Integers of 64 bits that floating point cannot tell apart have their difference."""
    a, b = np.full((2, 2), 2**62 + 1), np.full((2, 2), 2**62)
    with looking(a=a, b=b) as page:
        panes, _ = page.panes(key="a", other_key="b", view="table")
        assert len(panes) == 2
        panes, _ = page.panes(key="a", other_key="b", view="image")
    assert np.unique(panes[2].drawn.numbers).tolist() == [1] or np.finfo(np.longdouble).nmant < 60


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


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_reading_can_be_cancelled(tmp_path, method):
    """What lies before a part of a compressed array is read step by step, until it is cancelled."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        archive.writestr("x.npy", forge.npy(np.zeros((30, 1000, 1000), "u1")))
    work = Work()
    steps = []

    def proceed():
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
