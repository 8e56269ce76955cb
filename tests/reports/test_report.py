"""Reports: what the page shows, that it needs nothing else, and that text from a file stays text."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import npzkit
import numpy as np
import pytest
from npzkit.errors import UnsupportedError

NASTY = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


class Page(HTMLParser):
    """The elements of a page, their attributes, and its text with single spaces."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.words = [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words = " ".join([*self.words.split(), *data.split()])

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture
def report(tmp_path):
    """Call with a file and options; returns the page, and what cannot be read."""

    def call(file, **options):
        output = tmp_path / "report.html"
        unread = npzkit.report(file, output, overwrite=True, **options)
        return Page(output.read_text(encoding="utf-8")), unread

    return call


def archive(arrays, **options):
    stream = io.BytesIO()
    npzkit.save(stream, arrays, **options)
    return stream


ARRAYS = {
    "image": np.eye(50, dtype="f4"), "gaps": np.array([1.5, np.nan, np.inf, 3.5] * 3),
    "flags": np.arange(9) > 2, "names": np.array(["a", "b"] * 5), "one": np.array(2.5),
    "records": np.zeros(20, [("id", "i4"), ("tag", "S3")]), "empty": np.zeros((0, 3)),
    "complex": np.arange(8) + 1j,
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "8 arrays, ", "step 7", "image (50, 50) float32, 9.8 KiB, 9.9 KiB in the file, stored",
        "count 12 min 1.5 max inf mean 2.5 std 1 NaN 3 infinite 3", "False to True",
        "names (10,) <U1", "a b a b a b ... 4 more rows", "2.5", "id tag 0 b'' 0 b''",
        "... 14 more rows", "empty (0, 3) float64, 0 B", "complex128, by magnitude, 128 B",
    ],
)  # fmt: skip
def test_what_a_page_shows(report, text):
    """Totals, metadata, and the statistics or the first values of each array."""
    page, unread = report(archive(ARRAYS, metadata={"step": 7}))
    assert unread == {}
    assert text in page.words
    assert (page.count("img"), page.count("svg"), page.words.count("sample")) == (1, 7, 0)


def test_a_page_needs_nothing_else(report, tmp_path):
    """There is no script, nothing refers outside, and a policy forbids it too."""
    page, _ = report(archive(ARRAYS))
    html = re.sub(r"base64,[\w+/=]+", "", (tmp_path / "report.html").read_text(encoding="utf-8"))
    assert re.search(r"https?:|//|url\(|@import", html) is None
    assert {"script", "link", "iframe", "object", "form"}.isdisjoint(dict(page.elements))
    policy = next(attrs for _, attrs in page.elements if "http-equiv" in attrs)
    assert policy["content"].startswith("default-src 'none'; img-src data:; style-src 'unsafe-")
    assert "prefers-color-scheme: dark" in html


def test_text_from_a_file_is_escaped(report, tmp_path):
    """Keys, metadata, attributes, fields, values and the file's name make no element."""
    key = NASTY.replace("/", "")
    path = tmp_path / f"{key}.npz"
    with npzkit.NpzWriter(path, metadata={NASTY: NASTY, "\u202e": "\u202e"}) as w:
        w.add(key, np.eye(5), attrs={NASTY: NASTY})
        w["text"] = np.array([NASTY, "\x1b[2J\u202e", '"><b>'])
        w["records"] = np.zeros(2, [(NASTY, "i4")])
    page, _ = report(path)
    assert (page.count("script"), page.count("img"), page.count("b")) == (0, 1, 0)
    assert not any("onerror" in attrs for _, attrs in page.elements)
    assert page.words.count("document.title=") >= 6
    assert page.words.isprintable()


def test_damaged_arrays_are_marked(report, fixtures):
    """The page is made, and says which arrays cannot be read and why; so does the result."""
    data = bytearray(archive({key: np.arange(100) for key in ("good", "bad")}).getvalue())
    with npzkit.open(bytes(data)) as npz:
        data[npz.info("bad").data_offset + 5] ^= 1
    page, unread = report(bytes(data))
    assert list(unread) == ["bad"]
    assert page.words.count(unread["bad"]) == 2
    assert page.count("svg") == 2
    assert len(report(fixtures / "infozip_encrypted.npz")[1]) == 1


def test_objects_are_not_unpickled(report, fixtures):
    """Not even from an archive that was opened to do so."""
    with npzkit.open(fixtures / "numpy_object.npz", allow_pickle=True) as npz:
        page, unread = report(npz)
    assert "Python objects, which are not unpickled" in page.words
    assert unread == {}


def test_each_number_of_a_sample_says_so(report, monkeypatch):
    """A large array is read in part, and marked; `read_all` reads it completely."""
    monkeypatch.setattr("npzkit.reports.report._WHOLE_SIZE", 1 << 20)
    file = archive({"large": np.ones((3 << 20,)), "small": np.arange(9)})
    page, _ = report(file)
    assert page.words.count("(sample)") == 8
    assert "sample: " in page.words
    page, _ = report(file, read_all=True)
    assert "count 3,145,728 min 1" in page.words
    assert "sample" not in page.words


def test_the_first_hundred_arrays_are_shown(report):
    """The page says so, and `read_all` shows all."""
    file, done = archive({str(number): np.arange(2) for number in range(101)}), []
    page, _ = report(file, progress=lambda *counts: done.append(counts))
    assert (page.count("h2"), done[-1]) == (100, (100, 100))
    assert "The first 100 arrays are shown." in page.words
    assert report(file, read_all=True)[0].count("h2") == 101


def test_what_is_not_replaced(tmp_path):
    """A page that exists stays without `overwrite`, the archive always."""
    path, page = tmp_path / "a.npz", tmp_path / "a.html"
    npzkit.save(path, {"a": np.arange(3)})
    npzkit.report(path, page)
    assert str(tmp_path) not in page.read_text(encoding="utf-8")
    with pytest.raises(FileExistsError):
        npzkit.report(path, page)
    for output in (path, "memory://report.html"):
        with pytest.raises(UnsupportedError):
            npzkit.report(path, output, overwrite=True)
    assert npzkit.verify(path).ok
