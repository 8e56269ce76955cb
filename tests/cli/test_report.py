"""npzkit report: a page about an archive, and what the command says of it."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from range_server import RangeServer, packed

pytest.importorskip("jinja2", reason="Jinja2 is not installed")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.npz"
    npzkit.save(path, {"image": np.eye(30), "line": np.arange(9), "text": np.array(["a"])})
    return path


def test_a_page_is_written(cli, model, tmp_path):
    """The command says where the page is, and how many arrays it shows."""
    page = tmp_path / "report.html"
    found = cli("report", model, "-o", page)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"{page}: 3 arrays, ")
    assert page.read_text(encoding="utf-8") == npzkit.report(model).html


def test_which_arrays(cli, model, tmp_path):
    """--key chooses arrays, -n limits their number, and a wrong key is an error."""
    page = tmp_path / "report.html"
    found = cli("report", model, "-o", page, "-k", "text", "--key", "line", "--json").json()
    assert found == {"output": str(page), "keys": ["text", "line"], "damaged": {}}
    assert cli("report", model, "-o", page, "-n", "1", "--force", "--json").json()["keys"] == [
        "image"
    ]
    assert "2 more arrays are not shown" in page.read_text(encoding="utf-8")
    found = cli("report", model, "-o", page, "-k", "lime", "--force")
    assert found.code != 0
    assert "lime" in found.err


def test_a_page_is_replaced_with_force(cli, model, tmp_path):
    """An existing file stays without --force, and an archive is never replaced by its report."""
    page = tmp_path / "report.html"
    page.write_text("mine")
    found = cli("report", model, "-o", page)
    assert (found.code, page.read_text()) == (2, "mine")
    assert "--force" in found.err
    assert cli("report", model, "-o", page, "--force").code == 0
    before = model.read_bytes()
    found = cli("report", model, "-o", model, "--force")
    assert (found.code, model.read_bytes()) == (2, before)
    assert "would replace the archive" in found.err
    assert cli("report", model).code == 2
    assert cli("report", model, "-o", "-").code == 2


def test_a_damaged_array(cli, model, tmp_path):
    """It is reported on the standard error, the page is made, and the exit code is 1."""
    data = bytearray(model.read_bytes())
    with npzkit.open(model) as npz:
        data[npz.info("line").data_offset] ^= 1
    model.write_bytes(data)
    found = cli("report", model, "-o", tmp_path / "a.html")
    assert found.code == 1
    assert found.err.startswith("npzkit: line: the data is damaged")
    assert "damaged" in (tmp_path / "a.html").read_text(encoding="utf-8")
    found = cli("report", model, "-o", tmp_path / "b.html", "--json")
    assert list(found.json()["damaged"]) == ["line"]


def test_pipes_and_urls(cli, model, tmp_path):
    """FILE may be the standard input or a URL; what is written must be a file."""
    assert cli("report", "-", "-o", tmp_path / "a.html", data=model.read_bytes()).code == 0
    with RangeServer().running() as server:
        url = server.put(packed({"x": np.arange(3)}))
        assert cli("report", url, "-o", tmp_path / "b.html").code == 0
        found = cli("report", url, "-o", "memory://c.html")
    assert found.code == 2
    assert "Write it to a path" in found.err
    assert "3,)" in (tmp_path / "b.html").read_text(encoding="utf-8")


def test_without_jinja2(cli, model, tmp_path, monkeypatch):
    """The message names the extra that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    found = cli("report", model, "-o", tmp_path / "a.html")
    assert found.code == 2
    assert "npzkit[report]" in found.err


def test_hostile_text_at_the_terminal(cli, tmp_path):
    """Keys of damaged arrays have no character that controls a terminal."""
    stream = io.BytesIO()
    np.savez(stream, **{"a\u202eb": np.arange(9)})
    data = bytearray(stream.getvalue())
    with npzkit.open(bytes(data)) as npz:
        data[npz.info(npz.files[0]).data_offset] ^= 1
    found = cli("report", "-", "-o", tmp_path / "a.html", data=bytes(data))
    assert found.code == 1
    assert "\u202e" not in found.err
