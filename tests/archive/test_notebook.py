"""Tables in notebooks: what they show, and that text from a file stays text."""

from __future__ import annotations

import html
import io
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import npzkit
import numpy as np
import pytest
from browsing import CHROMIUM, why_no_chromium
from deep import needs_deep

NASTY = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def archive(arrays, **options):
    stream = io.BytesIO()
    npzkit.save(stream, arrays, **options)
    return npzkit.open(stream)


class Table(HTMLParser):
    """The cells of a table, and every tag and attribute there is."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags, self.attributes, self.texts = [], set(), set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        if self.get_starttag_text().startswith(("<td", "<th")):
            self.rows[-1].append(data)
        else:
            self.texts.append(data)


def test_an_archive_is_a_table():
    """Key, shape, dtype, size and method of each member, the totals, and the metadata."""
    npz = archive({"w": np.eye(3), "n": np.arange(4, dtype="u1")}, metadata={"step": 7})
    table = Table(npz._repr_html_())
    assert table.rows == [
        ["key", "shape", "dtype", "size", "method"],
        ["w", "(3, 3)", "float64", "72 B", "stored"],
        ["n", "(4,)", "uint8", "4 B", "stored"],
    ]
    assert "2 members" in table.texts[1]
    assert table.texts[2] == "step: 7"


def test_a_lazy_array_is_a_table():
    """Shape, dtype, size, chunks and attributes, without reading the data."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream) as w:
        w.add("x", np.zeros((1000, 1000)), attrs={"unit": "m"}, compression="deflated")
    table = Table(npzkit.open(stream).lazy("x")._repr_html_())
    assert dict(table.rows) == {
        "shape": "(1000, 1000)", "dtype": "float64", "size": "7.6 MiB", "chunks": "(32, 1000)",
        "unit": "m",
    }  # fmt: skip
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros((1000, 1000)))
    table = Table(npzkit.open(stream).lazy("x")._repr_html_())
    assert dict(table.rows)["parts"].endswith("npzkit.repack adds a seek index")


def test_descriptions_are_tables(tmp_path):
    """What info, archive_info, statistics and open_many return shows its facts in a table."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        w.add("x", np.array([1.5, np.nan, 2.5, 1e7]), attrs={"unit": "m"})
        w["text"] = np.array(["12345678"])
    many = npzkit.open_many([path, path])
    with npzkit.open(path) as npz:
        shown = [npz.info("x"), npz.archive_info(), npzkit.statistics(npz, "x"), many]
    texts = [one._repr_html_() for one in shown]
    info, archive_info, statistics, files = map(Table, texts)
    assert dict(info.rows) == {
        "shape": "(4,)", "dtype": "float64", "size": "32 B", "in the file": "160 B, 500 %",
        "method": "stored", "parts": "cheap to read", "mappable": "yes", "unit": "m",
    }  # fmt: skip
    assert dict(archive_info.rows)["members"] == "2"
    assert dict(statistics.rows) == {
        "count": "4", "min": "1.5", "max": "10000000.0", "mean": "3333334.6666666665",
        "std": "4714044.265101293", "NaN": "1", "infinite": "0",
    }  # fmt: skip
    assert "<svg" in texts[2]
    assert files.rows == [
        ["key", "shape", "dtype", "size"], ["x", "(8,)", "float64", "64 B"],
        ["text", "(2,)", "<U8", "64 B"],
    ]  # fmt: skip
    assert files.texts == ["ManyFiles of 2 files, joined along axis 0", "2 arrays"]


def test_text_from_a_file_is_escaped(tmp_path):
    """Keys, metadata and attributes make no tag, no attribute, and no control character."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, metadata={NASTY: NASTY, "\x1b[31m": "\u202e"}) as w:
        w.add(NASTY.replace("</", "<"), np.eye(2), attrs={NASTY: NASTY, "a": "\x1b[2J" * 200})
    npz = npzkit.open(stream)
    (tmp_path / "a.npz").write_bytes(stream.getvalue())
    many = npzkit.open_many([tmp_path / "a.npz"])
    for shown in (npz, npz.lazy(npz.files[0]), npz.info(npz.files[0]), many):
        text = shown._repr_html_()
        found = Table(text)
        assert found.tags <= {"div", "table", "tr", "th", "td"}
        assert found.attributes == {"style"}
        assert html.unescape(text).isprintable()
        assert len(text) < 5000


def test_large_archives_are_shown_in_part():
    """A hundred members are read for it, however many there are."""
    npz = archive({str(i): np.arange(2) for i in range(1000)})
    text = npz._repr_html_()
    assert len(Table(text).rows) == 101
    assert "are shown" in archive({str(i): np.arange(2) for i in range(101)})._repr_html_()
    assert "are shown" not in archive({str(i): np.arange(2) for i in range(100)})._repr_html_()
    assert "1,000 members" in text
    assert "the first 100 are shown" in text


def test_metadata_and_attributes_are_shown_in_part():
    """A hundred of them are shown, and of each one two hundred characters."""
    npz = archive({}, metadata={str(i): "x" * 205 for i in range(250)})
    table = Table(npz._repr_html_())
    assert "99: " + "x" * 197 + "..." in table.texts
    assert not any(text.startswith("100:") for text in table.texts)


def test_what_cannot_be_read_is_shown_too(fixtures):
    """A damaged member has no shape, a closed archive no rows, and neither is an error."""
    npz = npzkit.open(fixtures / "infozip_encrypted.npz")
    assert Table(npz._repr_html_()).rows[1][1:3] == ["-", "-"]
    npz.close()
    assert "closed" in npz._repr_html_()


def test_tables_read_no_data():
    """An archive whose data are damaged has the same tables as a sound one."""
    stream = io.BytesIO()
    npzkit.save(stream, {"a": np.eye(3)})
    texts = []
    for data in (stream.getvalue(), stream.getvalue().replace(np.eye(3).tobytes(), bytes(72))):
        npz = npzkit.open(io.BytesIO(data))
        texts.append(npz._repr_html_() + npz.lazy("a")._repr_html_())
    assert texts[0] == texts[1]
    with pytest.raises(npzkit.errors.ChecksumError):
        npz["a"]


PAGE = """<!doctype html><html style="color-scheme:{scheme}"><title>fine</title>
<body style="background:{background};color:{color}">{tables}<pre id="found"></pre><script>
const seen = new Set(), page = getComputedStyle(document.body);
for (const cell of document.querySelectorAll("td, th, div, tr, table")) {{
  const style = getComputedStyle(cell);
  seen.add(style.color === page.color && style.backgroundColor === "rgba(0, 0, 0, 0)");
}}
const cells = document.querySelectorAll("td").length;
const wide = document.documentElement.scrollWidth > innerWidth;
document.getElementById("found").textContent = JSON.stringify([[...seen], cells, document.title, wide]);
</script></body></html>"""


@pytest.mark.slow
@pytest.mark.skipif(why_no_chromium() is not None, reason=str(why_no_chromium()))
@pytest.mark.parametrize(
    ("scheme", "background", "color"),
    [("dark", "#111", "#eee"), pytest.param("light", "#fff", "#111", marks=needs_deep)],
)
def test_a_browser_shows_it_in_light_and_dark(tmp_path, scheme, background, color):
    """In a dark page and in a light one text has the page's colour and width, and no script ran."""
    arrays = {NASTY.replace("</", "<"): np.eye(3), "w": np.arange(3)}
    npz = archive(arrays, metadata={"a": NASTY, "long": "y" * 200})
    tables = npz._repr_html_() + npz.lazy("w")._repr_html_()
    page = PAGE.format(scheme=scheme, background=background, color=color, tables=tables)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    found = browse("--dump-dom", tmp_path / "page.html", tmp_path)
    text = re.search(r'<pre id="found">(.*?)</pre>', found)[1]
    assert html.unescape(text) == '[[true],18,"fine",false]'


def browse(option: str, page: Path, folder: Path) -> str:
    """Render a page in headless Chromium and return what it prints."""
    found = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-quic", "--disable-dev-shm-usage", "--window-size=900,500",
            f"--user-data-dir={folder / 'profile'}", option, page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return found.stdout
