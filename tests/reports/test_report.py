"""Reports: what the page shows, that it needs nothing else, and that no text gets out of place."""

from __future__ import annotations

import io
import re
import sys
import zipfile
from html.parser import HTMLParser

import npzkit
import numpy as np
import pytest
from npzkit.errors import MemberNotFoundError, UnsupportedError

pytest.importorskip("jinja2", reason="Jinja2 is not installed")

NASTY = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def archive(arrays, **options):
    stream = io.BytesIO()
    npzkit.save(stream, arrays, **options)
    return stream


class Page(HTMLParser):
    """The elements of a page, its text, and the cells of all tables."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.rows, self.text, self.is_in_cell = [], [], "", False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.is_in_cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.is_in_cell = False

    def handle_data(self, data):
        self.text += f"{data} "
        if self.is_in_cell:
            self.rows[-1][-1] += data

    def tags(self, name):
        return [attrs for tag, attrs in self.elements if tag == name]

    def row_of(self, key):
        return next(row for row in self.rows if row[:1] == [key])

    @property
    def words(self):
        """The text, with single spaces."""
        return " ".join(self.text.split())


def test_what_a_page_shows():
    """The totals, the table, metadata, attributes, and a picture and statistics per array."""
    stream = io.BytesIO()
    with npzkit.NpzWriter(stream, metadata={"step": 7, "who": "Ada"}) as w:
        w.add("image", np.eye(50, dtype="f4"), attrs={"unit": "m"})
        w.add("gaps", np.array([1.5, np.nan, np.inf, 3.5] * 3))
        w.add("z", np.zeros((600, 600)), compression="deflated")
    found = npzkit.report(stream)
    page = Page(found.html)
    assert (found.keys, found.damaged, found.output) == (("image", "gaps", "z"), {}, None)
    assert page.row_of("image") == [
        "image",
        "(50, 50)",
        "float32",
        "9.8 KiB",
        "101 %",
        "stored",
        "yes",
    ]
    assert page.row_of("z")[3:] == ["2.7 MiB", "0 %", "deflated", "yes"]
    assert page.row_of("who") == ["who", "Ada"]
    assert (len(page.tags("img")), len(page.tags("svg"))) == (2, 4)
    text = page.words
    for told in ("unit m", "min 1.5 max inf mean 2.5 std 1 NaN 3 infinite 3", "step 7"):
        assert told in text


def test_a_page_needs_nothing_else():
    """There is no script, nothing refers outside, and a policy forbids it too."""
    picture = np.zeros((9, 9, 3), "u1")
    html = npzkit.report(archive({"a": np.arange(9), "b": np.eye(9), "c": picture})).html
    page = Page(html)
    assert {tag for tag, _ in page.elements}.isdisjoint(
        {"script", "link", "iframe", "object", "embed", "form", "base", "image", "use"}
    )
    for _, attrs in page.elements:
        assert not any(name.startswith("on") for name in attrs)
        assert attrs.get("src", "data:").startswith("data:")
        assert attrs.get("href", "#").startswith("#")
    without_pictures = re.sub(r"base64,[\w+/=]+", "", html)
    assert re.search(r"https?:|//|url\(|@import", without_pictures) is None
    policy = page.tags("meta")[1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"].startswith("default-src 'none'; img-src data:; style-src 'unsafe-")
    assert "prefers-color-scheme: dark" in html


def test_text_from_a_file_is_escaped():
    """Keys, metadata, attributes, field names, strings and the file's name make no element."""
    stream = io.BytesIO()
    key = NASTY.replace("</", "<")
    with npzkit.NpzWriter(stream, metadata={NASTY: NASTY, "\u202e": "\u202e"}) as w:
        w.add(key, np.eye(5), attrs={NASTY: NASTY})
        w.add("text", np.array([NASTY, "\x1b[2J\u202e", '"><b>']))
        w.add("bytes", np.array([NASTY.encode()]))
        w.add("records", np.zeros(2, [(NASTY, "i4"), ("s", f"U{len(NASTY)}")]))
    stream.name = f"{key.replace('/', '')}.npz"
    found = npzkit.report(npzkit.open(stream))
    page = Page(found.html)
    assert page.tags("script") == []
    assert len(page.tags("img")) == 1
    assert not any("onerror" in attrs for _, attrs in page.elements)
    assert page.tags("b") == []
    assert "\u202e" not in found.html
    assert "\x1b" not in found.html
    assert page.text.count("document.title='owned'") >= 6
    frame = Page(found._repr_html_())
    assert [tag for tag, _ in frame.elements] == ["iframe"]
    assert frame.tags("iframe")[0]["srcdoc"] == found.html


def test_damaged_arrays_are_marked():
    """A page is made of a damaged archive; it says which arrays cannot be read, and why."""
    stream = archive({"good": np.arange(100), "bad": np.arange(100), "last": np.eye(20)})
    data = bytearray(stream.getvalue())
    with npzkit.open(bytes(data)) as npz:
        data[npz.info("bad").data_offset + 5] ^= 1
    found = npzkit.report(bytes(data))
    assert set(found.damaged) == {"bad"}
    assert "CRC-32" in found.damaged["bad"]
    page = Page(found.html)
    text = page.words
    assert "1 of 3 arrays cannot be read: bad" in text
    assert found.damaged["bad"][:30] in text
    assert (len(page.tags("img")), len(page.tags("svg"))) == (1, 3)
    assert "bad: " in str(found)


def test_damaged_headers_are_marked(fixtures):
    """An array whose headers cannot be read has a row without facts."""
    found = npzkit.report(fixtures / "infozip_encrypted.npz")
    assert len(found.damaged) == 1
    assert Page(found.html).rows[1][1:] == ["-"] * 6


def test_objects_are_not_unpickled(fixtures, tmp_path):
    """Not even from an archive that was opened to do so."""
    np.savez(tmp_path / "a.npz", x=np.array([pytest], object).astype(object)[:0])
    for file in (fixtures / "numpy_object.npz", fixtures / "python2_object.npz"):
        with npzkit.open(file, allow_pickle=True) as npz:
            npz.read = npz.load_all = None
            found = npzkit.report(npz)
        assert "Python objects, which are not unpickled" in found.html
        assert found.damaged == {}


def test_values_without_a_picture_are_a_table():
    """Text, records, dates of one day and single values show what they are."""
    records = np.zeros(20, [("id", "i4"), ("tag", "S3")])
    found = npzkit.report(
        archive(
            {
                "r": records,
                "t": np.array([["a", "b"]]),
                "n": np.array(2.5),
                "f": np.arange(6),
                "e": np.zeros((0, 3)),
            }
        )
    )
    page = Page(found.html)
    text = page.words
    assert ["id", "tag"] in page.rows
    assert ["0", "b''"] in page.rows
    assert ["a", "b"] in page.rows
    assert ["2.5"] in page.rows
    assert ["5"] in page.rows
    assert "14 more rows" in text
    assert "It is empty." in text


def test_large_arrays_are_read_in_part(tmp_path, monkeypatch):
    """A few megabytes are read of a large array, and the page says so."""
    read = []
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        sparse = w.create("large", (1 << 13, 1 << 12), "f4")
        sparse[0] = 1
        sparse.close()
        w.add("small", np.arange(9))
    usual = npzkit.LazyArray._fill

    def fill(self, access, positions, block):
        read.append(block.nbytes)
        usual(self, access, positions, block)

    monkeypatch.setattr(npzkit.LazyArray, "_fill", fill)
    found = npzkit.report(path)
    assert sum(read) <= 6 << 20
    text = Page(found.html).words
    assert "Statistics of a sample: 3 % of the values." in text
    assert text.count("Checksum not checked.") == 1
    assert len(found.html) < 100_000


def test_the_beginning_of_what_has_no_seek_index(tmp_path, monkeypatch):
    """Of a large array that NumPy compressed, the beginning is shown, and the page says so."""
    monkeypatch.setattr("npzkit.display.sampling._NEAR_SIZE", 1 << 20)
    np.savez_compressed(
        tmp_path / "a.npz", a=np.zeros((400, 1000)), b=np.array(["x" * 50_000] * 40)
    )
    text = Page(npzkit.report(tmp_path / "a.npz").html).words
    assert "Only the first 33 % was read" in text
    assert "Only the first 12 % was read" in text


def test_a_remote_archive(tmp_path):
    """Over HTTP, small arrays take few requests, and little is received of a large one."""
    from range_server import RangeServer, packed

    arrays = {f"s{i}": np.arange(100) for i in range(30)} | {"large": np.zeros((1 << 11, 1 << 11))}
    data = packed(arrays)
    with RangeServer().running() as server:
        found = npzkit.report(server.put(data))
        assert found.keys == tuple(arrays)
        assert sum(request.size for request in server.requests) < 16 << 20
        assert len(server.requests) < 200


def test_which_arrays_are_shown():
    """Those that were asked for, or the first; the others are counted."""
    stream = archive({str(i): np.arange(3) for i in range(1200)})
    found = npzkit.report(stream, keys=["7", "1100", "7"])
    assert found.keys == ("7", "1100")
    assert "1,198 more arrays are not shown" in Page(found.html).text
    assert len(npzkit.report(stream).keys) == 100
    assert npzkit.report(stream, count=0).keys == ()
    with pytest.raises(MemberNotFoundError, match="9999"):
        npzkit.report(stream, keys=["9999"])


@pytest.mark.parametrize(("options", "error"), [
    ({"keys": "x"}, TypeError), ({"count": -1}, ValueError), ({"count": True}, ValueError),
    ({"count": 2.5}, ValueError), ({"output": b"a.html"}, TypeError),
    ({"output": "memory://a.html"}, UnsupportedError),
])  # fmt: skip
def test_bad_arguments(options, error):
    """A key that is a string, a count that is none, and an output that is no path."""
    with pytest.raises(error):
        npzkit.report(archive({"x": np.arange(3)}), **options)


def test_the_file(tmp_path):
    """A file is replaced only if that is wanted, and an archive by its own report never."""
    path, page = tmp_path / "a.npz", tmp_path / "a.html"
    npzkit.save(path, {"x": np.arange(3)})
    done = []
    found = npzkit.report(path, page, progress=lambda *pair: done.append(pair))
    assert page.read_text(encoding="utf-8") == found.html
    assert (found.output, done) == (str(page), [(1, 1)])
    with pytest.raises(FileExistsError):
        npzkit.report(path, page)
    npzkit.report(path, page, overwrite=True)
    with pytest.raises(UnsupportedError, match="replace the archive"):
        npzkit.report(path, path, overwrite=True)
    with npzkit.open(path) as npz:
        assert npz["x"].tolist() == [0, 1, 2]
    assert str(tmp_path) not in found.html


def test_the_same_archive_gives_the_same_page(tmp_path):
    """Nothing in the page depends on the time or on chance."""
    stream = archive({"x": np.random.default_rng(0).standard_normal((300, 900))})
    assert npzkit.report(stream).html == npzkit.report(stream).html


def test_without_jinja2(monkeypatch, tmp_path):
    """The error says what to install, before anything is written."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UnsupportedError, match=r"npzkit\[report\]"):
        npzkit.report(archive({"x": np.arange(3)}), tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


def test_a_sharded_archive(tmp_path):
    """A folder of many files is shown as one archive."""
    with npzkit.ShardedWriter(tmp_path / "run") as w:
        for row in range(2):
            w.add("x", np.full((2, 3), row), offset=(2 * row, 0), global_shape=(4, 3))
        w.commit()
    page = Page(npzkit.report(tmp_path / "run").html)
    assert page.row_of("x")[1] == "(4, 3)"
    assert page.row_of("x")[-1] == "yes"


def test_the_ends_of_a_histogram():
    """Bins end at edges; for bools, and where all values are equal, at the values."""
    arrays = {"a": np.arange(100), "b": np.arange(100) > 3, "c": np.full(100, 2.5)}
    html = npzkit.report(archive(arrays)).html
    found = re.findall(r"<figcaption><span>([^<]*)</span><span>([^<]*)</span>", html)
    assert found == [("0", "104"), ("False", "True"), ("2.5", "2.5")]


def test_names_of_fields_that_are_not_valid_unicode(tmp_path):
    """A page is written whatever the names of fields, without marks that turn text around."""
    stream = io.BytesIO()
    array = np.zeros(9, [("a\u202e\ud800", "i4"), ("b", "f8")])
    with zipfile.ZipFile(stream, "w") as file, file.open("x.npy", "w") as member:
        descr = r"[('a\u202e\ud800', '<i4'), ('b', '<f8')]"
        head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (9,), }}\n"
        member.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        member.write(array.tobytes())
    npzkit.report(stream, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "\u202e" not in page
    assert "a\\u202e\\ud800" in page
