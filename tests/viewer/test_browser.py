"""The page in a real browser: what a user sees and does."""

from __future__ import annotations

import html
import io
import re
import threading
import time
import urllib.parse

import npzkit
import numpy as np
import pytest
from browsing import browser, why_no_browser

pytest.importorskip("bokeh", reason="the page needs Bokeh")
if (reason := why_no_browser()) is not None:
    pytest.skip(reason, allow_module_level=True)

NASTY = (
    '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
    "<svg onload=window.owned=1>{{owned}}<%= owned %>$$x^2$$"
)
Y, X = np.mgrid[:200, :300]


def kinds():
    """One array of each kind that the page shows."""
    cube = np.random.default_rng(0).normal(size=(6, 40, 50))
    cube[4, 30, 20] = 99
    cube[1, 2, 3], cube[1, 5, 5] = np.nan, -np.inf
    return {
        "model/layer/weight": cube,
        "model/layer/bias": np.arange(10) * 0.5,
        "other": np.arange(12.0).reshape(3, 4),
        "signal": np.sin(np.arange(100_000) / 900),
        "picture": np.stack([X % 256, Y % 256, X * 0], -1).astype("u1"),
        "complex": np.exp(1j * (X + Y) / 40),
        "mask": X > Y,
        "labels": X // 50 + Y // 40,
        "names": np.array(["alpha", "beta"]),
        "dates": np.arange("2020-01-01", "2020-05-01", dtype="M8[D]"),
        "records": np.array([(1, 0.5, "a"), (2, 1.5, "b")], [("id", "i4"), ("v", "f8"), ("s", "U4")]),
        "scalar": np.float32(0.1),
        "empty": np.zeros((0, 3)),
        "wide": np.arange(3000 * 4000, dtype="u2").reshape(3000, 4000),
    }  # fmt: skip


def damage(path, key):
    """Flip a bit in the data of an array."""
    with npzkit.open(path) as npz:
        offset = npz.info(key).data_offset
    data = bytearray(path.read_bytes())
    data[offset + 5] ^= 4
    path.write_bytes(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def viewer(folder):
    arrays = kinds()
    npzkit.save(folder / "one.npz", arrays | {"only here": np.zeros(3)}, metadata={"run": 7})
    arrays["other"] = arrays["other"] + [0, 0, 0, 5]
    npzkit.save(folder / "two.npz", arrays)
    damage(folder / "two.npz", "signal")
    with npzkit.view(folder / "one.npz", folder / "two.npz") as found:
        yield found


@pytest.fixture(scope="module")
def one_browser():
    with browser() as found:
        yield found


@pytest.fixture
def page(one_browser):
    """The browser, whose console has no error when the test has ended."""
    one_browser.errors()
    yield one_browser
    assert one_browser.errors() == []


def address(page):
    query = urllib.parse.urlsplit(page.driver.current_url).query
    return dict(urllib.parse.parse_qsl(query))


def title(page):
    return html.unescape(re.sub("<[^>]*>", "", page.value("title", "text"))).strip()


def test_it_opens_and_shows_the_first_array(page, viewer):
    """The page names the archives, their keys as a tree, and shows the first array."""
    page.open(viewer.url)
    assert title(page) == "model/layer/weight (6, 40, 50) float64"
    keys = page.column("key")
    assert "one.npz" in keys[0]
    assert [key.strip("\u2003▾▸ ") for key in keys[1:6]] == [
        "model",
        "layer",
        "weight",
        "bias",
        "other",
    ]
    assert "6 x 40 x 50" in page.column("shape")
    assert any("run" in element.text for element in page.find(".facts"))
    page.point()
    page.until(lambda: page.value("readout", "text").startswith("[0, "))


def test_keys_are_filtered_and_chosen(page, viewer):
    """Typing narrows the tree; a click on a row shows its array."""
    page.open(viewer.url)
    page.widget("filter", "input").send_keys("lab")
    page.until(lambda: len(page.column("key")) == 4)
    page.choose("labels")
    page.until(lambda: title(page).startswith("labels"))
    page.widget("filter", "input").send_keys(" nowhere")
    page.until(lambda: page.column("key")[-1] == "No key matches")
    page.widget("filter", "input").clear()
    page.widget("filter", "input").send_keys("lab")
    page.until(lambda: address(page).get("key") == "labels")


def test_as_many_other_keys_are_drawn(page):
    """A filter that finds as many keys as the one before draws the new ones."""
    stream = io.BytesIO()
    npzkit.save(stream, {f"{name}{i:03}": np.zeros(1) for name in "ab" for i in range(600)})
    with npzkit.open(stream) as npz, npzkit.view(npz) as viewer:
        page.open(viewer.url)
        for words, first in (("b", "b000"), ("a", "a000"), ("b59", "b590"), ("a59", "a590")):
            page.enter("filter", words)
            page.until(lambda first=first: page.column("key")[0] == first)
            page.until(lambda first=first: any(first in row for row in page.html(".slick-cell.l0")))
        page.choose("a590")
        page.until(lambda: address(page)["key"] == "a590")
        page.leave()


class Delayed(io.RawIOBase):
    """A file whose bytes come when somebody lets them."""

    def __init__(self, data):
        super().__init__()
        self.stream, self.is_let = io.BytesIO(data), threading.Event()
        self.is_let.set()

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        return self.stream.seek(offset, whence)

    def tell(self):
        return self.stream.tell()

    def readinto(self, buffer):
        assert self.is_let.wait(60)
        return self.stream.readinto(buffer)


def test_shapes_that_come_later_are_drawn(page):
    """Keys are listed at once, and their shapes when they have been read."""
    stream = io.BytesIO()
    np.savez(stream, **{f"k{i:03}": np.zeros((i, 3)) for i in range(900)})
    delayed = Delayed(stream.getvalue())
    with npzkit.open(delayed) as npz, npzkit.view(npz) as viewer:
        page.open(viewer.url)
        delayed.is_let.clear()
        page.enter("filter", "k70")
        page.until(lambda: any("k700" in row for row in page.html(".slick-cell.l0")))
        assert not any("700 x 3" in cell for cell in page.html(".slick-cell.l1"))
        delayed.is_let.set()
        page.until(lambda: any("700 x 3" in cell for cell in page.html(".slick-cell.l1")))
        page.leave()


def test_folders_close_and_open(page, viewer):
    """A click on a folder hides what is in it, and the next one shows it again."""
    page.open(viewer.url)
    before = len(page.column("key"))
    page.choose("model")
    page.until(lambda: len(page.column("key")) < before)
    page.choose("model")
    page.until(lambda: len(page.column("key")) == before)


def test_every_kind_of_array_is_shown(page, viewer):
    """Each view of each kind of array appears without an error."""
    page.open(viewer.url)
    for key in kinds():
        name = key.rpartition("/")[2]
        page.choose(name)
        page.until(lambda key=key: title(page).startswith(key))
        labels = page.value("views", "labels")
        for label in labels if len(labels) > 1 else []:
            page.click("button", label)
            found = ".values, p.soft" if label == "Table" else ".bk-Figure"
            page.until(lambda found=found: page.find(found))
        assert page.until(lambda: not page.value("status", "text"))


def test_values_under_the_mouse(page, viewer):
    """The mouse tells index and value, with all digits and no others."""
    page.open(f"{viewer.url}?key=other")
    page.point(1, 1)
    page.until(lambda: page.value("readout", "text") == "[1, 2]: <b>6</b>")
    page.open(f"{viewer.url}?key=dates&view=line")
    page.point()
    page.until(lambda: re.search(r"\[\d+\]: <b>2020-0\d-\d\d</b>$", page.value("readout", "text")))
    page.open(f"{viewer.url}?key=picture")
    page.point()
    page.until(lambda: page.value("readout", "text").count(",") == 3)


def test_sliders_and_axes(page, viewer):
    """A position is chosen along an axis, and so are the axes that are drawn."""
    page.open(viewer.url)
    page.enter("number0", "4")
    page.until(lambda: address(page).get("at") == "4,0,0")
    assert page.value("slider0", "value") == 4
    page.select("down", "axis 0 (6)")
    page.until(lambda: address(page).get("down") == "0")
    page.until(lambda: page.value("number1", "value") == 0)


def test_zooming_reads_more_values(page, viewer):
    """A large plane is shown by some of its values, and all of them are read by zooming in."""
    page.open(f"{viewer.url}?key=wide")
    assert "every" in page.value("notes", "text")
    for _ in range(8):
        page.scroll(-300)
    page.until(lambda: "every value is shown" in page.value("notes", "text"))
    start, stop = map(int, address(page)["rows"].split(":"))
    assert 0 < start < stop < 3000
    # The address holds the window.
    page.reload()
    assert address(page)["rows"] == f"{start}:{stop}"


def test_an_odd_value_is_found(page, viewer):
    """Statistics lead to the largest value: the plane and the place of it are shown."""
    page.open(f"{viewer.url}?key=model%2Flayer%2Fweight&view=histogram")
    assert "99.0" in page.value("statistics", "text")
    page.click("button", "Go to maximum")
    page.until(lambda: "Maximum: 99.0 at (4, 30, 20)" in page.value("status", "text"))
    assert address(page)["at"] == "4,30,20"
    assert address(page)["scale"] == "all"


def test_what_was_found_is_said_until_something_else_is_shown(page, viewer):
    """Zooming out has the values read again; what was found there stays said."""
    page.open(f"{viewer.url}?key=wide&view=histogram")
    page.click("button", "Go to maximum")
    page.until(lambda: "Maximum" in page.value("status", "text"))
    said = page.value("status", "text")
    for _ in range(8):
        page.scroll(300)
    page.until(lambda: "every" in page.value("notes", "text"))
    page.settle()
    page.until(lambda: page.value("status", "text") == said)
    page.click("button", "☾")
    page.click("button", "☾")
    page.until(lambda: page.value("status", "text") == said)
    page.open(f"{viewer.url}?key=wide")
    assert "Maximum" not in page.value("status", "text")


def test_values_are_square_in_figures_of_any_size(page, viewer):
    """A pixel of an image is square: alone, beside another, and after the window has changed."""

    def is_square():
        found = page.run(
            "return Array.from(Bokeh.documents[0]._all_models.values()).filter("
            "  m => m.type == 'Figure' && m.inner_width > 0).map("
            "  m => (m.x_range.end - m.x_range.start) / m.inner_width"
            "       / Math.abs(m.y_range.end - m.y_range.start) * m.inner_height)"
        )
        return found and all(0.9 < ratio < 1.1 for ratio in found)

    size = page.driver.get_window_size()
    try:
        for other in ("", "&other_key=mask", "&other_key=signal"):
            page.open(f"{viewer.url}?key=labels{other}")
            page.until(is_square)
            page.driver.set_window_size(size["width"], size["height"] // 2 + 100)
            page.until(is_square)
            page.driver.set_window_size(size["width"], size["height"])
            page.until(is_square)
    finally:
        page.driver.set_window_size(size["width"], size["height"])


def test_two_archives_are_compared(page, viewer):
    """Compare shows the same key of the other archive beside it, and the difference."""
    page.open(f"{viewer.url}?key=other")
    page.widget("compare", "button").click()
    page.until(lambda: len(page.find(".bk-Figure")) == 3)
    page.until(lambda: address(page).get("other_archive") == "1")
    page.with_text("b", "two.npz: other")
    page.with_text("b", "Difference: left - right")
    page.until(lambda: "largest difference shown: 5.0" in page.value("notes", "text"))
    page.click("button", "Compare all values")
    page.until(lambda: "5.0 at (0, 3)" in page.value("status", "text"))
    page.choose("mask")
    page.until(lambda: address(page)["key"] == address(page)["other_key"] == "mask")
    page.until(lambda: "the arrays are equal" in page.value("notes", "text"))
    page.widget("compare", "button").click()
    page.until(lambda: len(page.find(".bk-Figure")) == 1)


def test_all_keys_are_compared(page, viewer):
    """One button compares all keys of two archives: those that differ are marked in the tree."""
    page.open(viewer.url)
    page.click("button", "Compare all keys")
    page.until(lambda: "marked ≠ in the tree" in page.value("status", "text"))
    said = page.value("status", "text")
    assert "15 keys: 1 changed, 1 removed, 1 damaged" in said
    marked = {key.strip("\u2003▾▸ ") for key in page.column("key") if "≠" in key or "✗" in key}
    assert marked == {"≠ other", "≠ only here", "✗ signal"}
    page.until(lambda: any("--warn" in cell for cell in page.html(".slick-cell.l0", "only here")))


def test_what_was_compared_is_said(page, viewer):
    """An equal plane says nothing of other planes; a button compares all values."""
    page.open(
        f"{viewer.url}?key=model%2Flayer%2Fweight&other_key=model%2Flayer%2Fweight&other_archive=1"
    )
    assert "this plane is equal" in page.value("notes", "text")
    assert "other planes were not compared" in page.value("notes", "text")
    page.click("button", "Compare all values")
    page.until(lambda: "arrays are equal: all values" in page.value("status", "text"))


def test_a_key_of_one_archive_only_is_named(page, viewer):
    """A key that the other archive does not have is compared, and the page says with what."""
    page.open(f"{viewer.url}?key=other&other_key=other&other_archive=1")
    page.choose("only here")
    page.until(lambda: "Only one.npz has the key only here" in page.value("status", "text"))
    page.open(f"{viewer.url}?key=only+here")
    page.widget("compare", "button").click()
    page.until(lambda: "Only this archive has this key" in page.value("status", "text"))


def test_a_sample_says_so_and_all_can_be_read(page, folder, monkeypatch):
    """Each number of a sampled histogram says that it is of a sample, until all values are read."""
    monkeypatch.setattr("npzkit.viewer.drawing.STATISTICS_BUDGET", 1 << 20)
    with npzkit.view(folder / "one.npz") as viewer:
        page.open(f"{viewer.url}?key=wide&view=histogram")
        assert page.value("statistics", "text").count(">sample<") == 7
        page.click("button", "Read all values")
        page.until(lambda: "12,000,000" in page.value("statistics", "text"))
        assert "sample" not in page.value("statistics", "text")
        assert address(page)["amount"] == "all"
        assert page.value("status", "text") == ""
        assert not page.value("read-all", "visible")
        # Another look at what was read reads nothing.
        monkeypatch.setattr("npzkit.viewer.page.draw", None)
        scale = (
            "return Array.from(Bokeh.documents[0]._all_models.values())"
            ".filter(m => m.type == 'Figure').at(-1).y_scale.type"
        )
        assert page.run(scale) == "LogScale"
        page.click("button", "Log counts")
        page.until(lambda: page.run(scale) == "LinearScale")
        page.click("button", "☾")
        page.click("button", "☾")
        assert "12,000,000" in page.value("statistics", "text")
        page.leave()


def test_histograms_beside_each_other(page, viewer):
    """Three histograms with their statistics are as wide as they need on a usual screen."""
    page.open(f"{viewer.url}?key=labels&other_key=labels&other_archive=1&view=histogram")
    page.until(lambda: len(page.find(".bk-Figure")) == 3)
    assert min(figure.size["width"] for figure in page.find(".bk-Figure")) > 200
    assert min(figure.size["height"] for figure in page.find(".bk-Figure")) > 140


def test_two_keys_are_compared(page, viewer):
    """With Compare on, a click chooses what the array is compared with."""
    page.open(f"{viewer.url}?key=labels&other_key=mask")
    assert len(page.find(".bk-Figure")) == 3
    page.choose("complex")
    page.until(lambda: address(page).get("other_key") == "complex")
    page.until(lambda: title(page).startswith("labels"))


def test_damage_is_found_and_marked(page, viewer):
    """A histogram of all values finds that its array is damaged, and its key is marked."""
    page.open(f"{viewer.url}?archive=1&key=signal&view=histogram")
    page.until(lambda: "not what was saved" in page.value("status", "text"))
    marked = [key for key in page.column("key") if "✗" in key]
    assert [key.strip("\u2003 ") for key in marked] == ["✗ signal"]
    page.until(lambda: any("--bad" in cell for cell in page.html(".slick-cell.l0", "signal")))


def test_a_link_shows_the_same(page, viewer):
    """The address has key, axes, slice and view."""
    link = "key=model%2Flayer%2Fweight&view=image&at=4%2C0%2C0&rows=25%3A35&columns=15%3A25"
    page.open(f"{viewer.url}?{link}")
    found = address(page)
    assert (found["at"], found["rows"], found["columns"]) == ("4,0,0", "25:35", "15:25")


def test_a_damaged_link_is_explained(page, viewer):
    """A link that cannot be followed shows the first array, and says why."""
    page.open(f"{viewer.url}?at=x")
    page.until(lambda: "damaged" in page.value("status", "text"))


def test_dark_and_light(page, viewer):
    """The page follows the system while it is open, and a button changes it."""
    theme = "return document.documentElement.dataset.theme"
    page.open(f"{viewer.url}?key=names")
    assert page.run(theme) == "light"
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    try:
        page.until(lambda: page.run(theme) == "dark")
        page.reload()
        assert page.run(theme) == "dark"
        page.widget("dark", "button").click()
        page.until(lambda: page.run(theme) == "light")
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def boxes(page):
    """Return where the figures are; none while they are placed in another way."""
    from selenium.common.exceptions import StaleElementReferenceException

    try:
        return [figure.rect for figure in page.find(".bk-Figure")]
    except StaleElementReferenceException:
        return []


def test_a_narrow_window_shows_what_matters(page, viewer):
    """In a window of 800 x 600, keys, shapes and types are in sight, and no figure is cut off."""
    device = {"width": 800, "height": 600, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    try:
        for view in ("image", "histogram", "line"):
            page.open(f"{viewer.url}?key=labels&other_key=labels&other_archive=1&view={view}")
            page.until(
                lambda: (
                    len(boxes(page)) == 3
                    and all(
                        box["y"] + box["height"] < 600 and box["x"] + box["width"] <= 800
                        for box in boxes(page)
                    )
                )
            )
        tree = page.driver.find_element("css selector", ".tree").rect
        heads = [head.rect for head in page.find(".slick-header-column")[:3]]
        assert all(head["x"] + head["width"] <= tree["x"] + tree["width"] for head in heads)
    finally:
        device |= {"width": 1280, "height": 800}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)


def test_figures_are_placed_where_they_are_largest(page, viewer):
    """Wide images that are compared lie above each other, and share their tools, with titles."""
    page.open(f"{viewer.url}?key=labels&other_key=labels&other_archive=1")
    page.until(lambda: len({box["y"] for box in boxes(page)}) == 2)
    tools = [tool.get_attribute("title") for tool in page.find(".bk-OnOffButton, .bk-ClickButton")]
    assert len(tools) == len(set(tools)) == 4
    page.open(viewer.url)
    titles = {element.get_attribute("title") for element in page.find("[title]")}
    assert {"Dark or light", "Pan", "Reset"} <= titles


def test_one_hundred_thousand_keys(page):
    """The tree of 100,000 keys sends some hundred rows, and finds any key as one types."""
    stream = io.BytesIO()
    npzkit.save(stream, {f"layers/{i}/w": np.zeros(1, "u1") for i in range(100_000)})
    with npzkit.view(stream) as viewer:
        page.open(viewer.url)
        page.until(lambda: page.column("key"))
        page.widget("filter", "input").send_keys("99998")
        page.until(lambda: page.column("key") == ["layers/99998/w"])
        page.choose("99998")
        page.until(lambda: title(page).startswith("layers/99998/w"))
        page.widget("filter", "input").clear()
        page.widget("filter", "input").send_keys("w")
        page.until(lambda: "more" in page.column("key")[-1])
        assert len(page.column("key")) < 1000
        page.leave()


def test_hostile_text_stays_text(page, folder):
    """Keys, attributes, metadata, strings, fields and names of files run no script."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, metadata={NASTY: NASTY}, allow_pickle=True) as w:
        w.add(NASTY, np.arange(6.0).reshape(2, 3), attrs={NASTY: NASTY})
        w.add("text", np.array([[NASTY, NASTY]]))
        w.add("fields", np.zeros((3, 3), [(NASTY, "f4"), ("b", f"U{len(NASTY)}")]))
        w.add(f"{NASTY}/x", np.zeros(3))
        w.add("pickled", np.array([{"a": 1}], object))
    path = folder / "<b onclick=owned()>.npz"
    path.write_bytes(stream.getvalue())
    with npzkit.view(path, stream) as viewer, npzkit.open(stream) as npz:
        for key in npz:
            quoted = urllib.parse.quote(key)
            beside = f"&other_key={quoted}&other_archive=1"
            for rest in (beside, f"&view=table&field={urllib.parse.quote(NASTY)}"):
                page.open(f"{viewer.url}?key={quoted}{rest}")
                assert page.run("return window.owned") is None
                assert page.find("img[src=x], svg[onload], b[onclick]") == []
        page.widget("filter", "input").send_keys("<img")
        assert page.run("return window.owned") is None
        page.open(f"{viewer.url}?key=pickled")
        assert "Unpickling" in page.value("status", "text")
        page.leave()


def test_a_newer_choice_cancels_an_older_one(page, tmp_path):
    """While a slow array is read, another one can be chosen, and is shown at once."""
    from archives import packed
    from range_server import RangeServer

    x = np.zeros((400, 100, 100))
    with RangeServer().running() as server:
        url = server.put(packed({"first": np.zeros(3), "slow": x, "fast": np.ones(3)}))
        with npzkit.view(url) as viewer:
            page.open(f"{viewer.url}?key=first")
            server.delay = 2
            page.with_text(".slick-cell.l0", "slow").click()
            page.until(lambda: title(page).startswith("slow"))
            server.delay = 0
            page.choose("fast")
            page.until(lambda: title(page).startswith("fast"))
            time.sleep(0.3)
            page.until(lambda: address(page).get("key") == "fast")
            page.leave()
