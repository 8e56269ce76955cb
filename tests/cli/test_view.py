"""The command that shows archives in the browser."""

from __future__ import annotations

import re
import sys
import urllib.request

import npzkit
import numpy as np
import pytest


@pytest.fixture
def path(tmp_path):
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(6.0).reshape(2, 3)})
    return tmp_path / "a.npz"


@pytest.fixture
def waited(monkeypatch):
    """Have the command end as by Ctrl-C, after its page was asked for; return what it said."""
    pytest.importorskip("bokeh", reason="the page needs Bokeh")
    from npzkit.viewer.viewer import Viewer

    found = []

    def wait(viewer):
        with urllib.request.urlopen(viewer.url, timeout=20) as answer:
            found.append(answer.status)
        raise KeyboardInterrupt

    monkeypatch.setattr(Viewer, "wait", wait)
    monkeypatch.setattr(Viewer, "show", lambda viewer: found.append("shown") or True)
    return found


def test_it_prints_the_address_and_opens_the_browser(cli, path, waited):
    """The page is there until Ctrl-C, which is no error."""
    result = cli("view", path)
    assert result.code == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n", result.out)
    assert waited == ["shown", 200]


def test_it_opens_no_browser(cli, path, waited):
    """--no-browser prints the address only."""
    assert cli("view", path, path, "--no-browser").code == 0
    assert waited == [200]


def test_a_link_is_followed(cli, path, waited):
    """--link takes the address of a page; a damaged one is an error of usage."""
    result = cli("view", path, "--no-browser", "--link", "key=x&rows=1:2")
    assert result.out.endswith("/?key=x&rows=1%3A2\n")
    result = cli("view", path, "--link", "at=x")
    assert result.code == 2
    assert "the link is damaged" in result.err


def test_a_missing_file_is_an_error(cli, tmp_path, waited):
    """Nothing is served if one of the files cannot be opened."""
    result = cli("view", tmp_path / "none.npz")
    assert result.code == 2
    assert "none.npz" in result.err


def test_without_bokeh_it_says_what_to_install(cli, path, monkeypatch):
    """Where Bokeh is missing, the message names the extra."""
    monkeypatch.setitem(sys.modules, "npzkit.viewer.page", None)
    result = cli("view", path)
    assert result.code == 2
    assert "npzkit[view]" in result.err


@pytest.mark.filterwarnings("always:left out")
def test_a_file_that_cannot_be_opened_is_left_out(cli, tmp_path, waited):
    """Of several files the others are shown, with a warning; one alone is an error."""
    npzkit.save(tmp_path / "a.npz", {"x": np.arange(3)})
    (tmp_path / "b.npz").write_bytes(b"broken")
    found = cli("view", tmp_path / "a.npz", tmp_path / "b.npz", "--no-browser")
    assert (found.code, found.err.count("warning: left out: ")) == (0, 1)
    assert "b.npz" in found.err
    assert cli("view", tmp_path / "b.npz", "--no-browser").code == 1


def test_a_npy_file_is_shown(cli, tmp_path, waited):
    """It has a page as an archive has."""
    np.save(tmp_path / "a.npy", np.arange(6.0))
    assert cli("view", tmp_path / "a.npy", "--no-browser", "--link", "key=a").code == 0
    assert waited == [200]
