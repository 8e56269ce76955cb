"""Commands on archives behind URLs."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from range_server import RangeServer, good

ARRAYS = {f"w{i}": np.arange(i, i + 4000.0) for i in range(6)}


@pytest.fixture
def server():
    with RangeServer().running() as server:
        stream = io.BytesIO()
        npzkit.save(stream, ARRAYS, metadata={"step": 7})
        server.url_of_data = server.put(stream.getvalue())
        yield server


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ls"], "w5"),
        (["ls", "--json"], '"step": 7'),
        (["tree"], "w5"),
        (["info"], "step"),
        (["verify"], "sound, 6 members"),
        (["diff", "URL"], "equal"),
    ],
)
def test_commands_that_read(cli, server, arguments, expected):
    """FILE may be a URL."""
    given = [server.url_of_data if argument == "URL" else argument for argument in arguments]
    found = cli(*given, server.url_of_data)
    assert (found.code, found.err) == (0, "")
    assert expected in found.out or arguments[0] == "diff"


def test_listing_is_one_request(cli, server):
    """What ls prints comes with the directory."""
    cli("ls", "-l", server.url_of_data)
    assert server.count == 1


def test_show_a_slice(cli, server):
    """A slice is read by its bytes."""
    found = cli("show", server.url_of_data, "w3", "0:3")
    assert "3" in found.out and "5" in found.out
    assert server.count <= 3


def test_copies_on_the_disk(cli, server, tmp_path):
    """convert, extract, repack and repair write what they read to local files."""
    url = server.url_of_data
    assert cli("convert", url, tmp_path / "a.safetensors").code == 0
    assert cli("extract", url, "-d", tmp_path / "arrays").code == 0
    assert cli("repack", url, "-o", tmp_path / "b.npz").code == 0
    assert cli("repair", f"{url}?token=1", "-o", f"{tmp_path}/c/").code == 0
    for name in ("b.npz", "c/a.npz"):
        with npzkit.open(tmp_path / name) as npz:
            np.testing.assert_array_equal(npz["w4"], ARRAYS["w4"])
    np.testing.assert_array_equal(np.load(tmp_path / "arrays" / "w4.npy"), ARRAYS["w4"])


@pytest.mark.parametrize("command", ["repack", "repair"])
def test_what_writes_in_place_is_refused(cli, server, command):
    """The message says what to do at a prompt."""
    found = cli(command, server.url_of_data)
    assert found.code == 1
    assert ("output" if command == "repair" else "Write to a path") in found.err
    assert server.count == 0


def test_options_of_the_store(cli, server):
    """--storage-option may stand anywhere, and its value is JSON or text."""
    cli("ls", '--storage-option=headers={"X-A": "1"}', server.url_of_data)
    assert server.requests[0].headers["x-a"] == "1"
    cli("ls", server.url_of_data, "--storage-option", "timeout=5")
    assert cli("ls", server.url_of_data, "--storage-option", "timeout").code == 2
    assert cli("ls", server.url_of_data, "--storage-option").code == 2
    found = cli("ls", server.url_of_data, "--storage-option", "unknown=1")
    assert found.code == 1
    assert "does not have these options" in found.err


def test_secrets_are_not_printed(cli, server):
    """Passwords and signatures in a URL are in no output and no message."""
    url = server.url_of_data.replace("//", "//me:secret@") + "?signature=secret"
    for arguments in (["ls"], ["ls", "--json"], ["tree"], ["tree", "--json"], ["verify"],
                      ["verify", "--json"], ["info"], ["info", "--json"], ["diff", url],
                      ["diff", "--json", url], ["show"]):  # fmt: skip
        found = cli(*arguments, url)
        assert "secret" not in found.out + found.err, arguments
    server.answer = lambda handler, server: handler.reply(404)
    for arguments in (["ls"], ["verify"], ["ls", url]):
        found = cli(*arguments, url)
        assert found.code == 2
        assert "not found" in found.err
        assert "secret" not in found.out + found.err, arguments
    server.answer = good
