"""Commands on archives behind URLs."""

from __future__ import annotations

import io
import itertools
import json
import sys
import time

import npzkit
import numpy as np
import pytest
from forge import npy
from npzkit.cli import output
from npzkit.cli.commands import run
from npzkit.stores import retries
from range_server import RangeServer, good
from s3 import needs_s3, s3_server

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
        (["ls", "--tree"], "w5"),
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


@pytest.mark.parametrize("command", [
    "ls URL", "info URL", "show URL w0", "verify URL", "diff URL URL", "extract URL",
    "convert URL b.npz", "repack URL -o b.npz", "repair URL -o b.npz",
])  # fmt: skip
def test_a_server_without_ranges(cli, server, tmp_path, monkeypatch, command):
    """What cannot be read exits with 2, in each command."""
    monkeypatch.chdir(tmp_path)
    server.answer = lambda handler, server: handler.reply(200, b"PK")
    found = cli(*command.replace("URL", server.url_of_data).split())
    assert (found.code, "range" in found.err) == (2, True)


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
    assert cli("convert", url, tmp_path / "a.h5").code == 0
    assert cli("extract", url, "-o", tmp_path / "arrays").code == 0
    assert cli("repack", url, "-o", tmp_path / "b.npz").code == 0
    assert cli("repair", f"{url}?token=1", "-o", f"{tmp_path}/c.npz").code == 0
    for name in ("b.npz", "c.npz"):
        with npzkit.open(tmp_path / name) as npz:
            np.testing.assert_array_equal(npz["w4"], ARRAYS["w4"])
    np.testing.assert_array_equal(np.load(tmp_path / "arrays" / "w4.npy"), ARRAYS["w4"])


class Bar:
    """A bar that keeps what it shows."""

    def __init__(self):
        self.shown = []

    def add_task(self, what, total):
        return 0

    def update(self, task, completed, total):
        self.shown.append((completed, total))

    def start(self):
        pass

    stop = start


@pytest.fixture
def bar(monkeypatch):
    """The bar of a command that takes longer than a second, on a terminal."""
    bar = Bar()
    monkeypatch.setattr(output, "_BAR_AFTER", 0)
    monkeypatch.setattr(output, "_rich_bar", lambda what, in_bytes: bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    return bar


WHOLE = {"w": np.arange(90_000.0), "v": np.arange(7)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["verify", "URL"], ["verify", "URL", "LOCAL"], ["extract", "URL", "-o", "TMP/arrays"],
     ["convert", "URL", "TMP/a.h5"], ["repack", "URL", "-o", "TMP/b.npz"],
     ["repair", "URL", "-o", "TMP/c.npz"], ["diff", "URL", "LOCAL"],
     ["show", "URL", "w", "--stats"]],
    ids=lambda arguments: " ".join(arguments[:3]),
)  # fmt: skip
def test_bars_count_bytes_received(server, bar, tmp_path, arguments):
    """They rise while the bytes of one request come, up to the sizes of the files."""
    npzkit.save(tmp_path / "local.npz", WHOLE)
    data = (tmp_path / "local.npz").read_bytes()
    names = {"URL": server.put(data), "LOCAL": str(tmp_path / "local.npz")}
    given = [names.get(one, one.replace("TMP", str(tmp_path))) for one in arguments]
    seen = []

    def answer(handler, server):
        """Send the second half of a large answer when the first half was shown."""
        write = handler.wfile.write

        def write_slowly(body):
            half = len(body) // 2
            write(body[:half])
            for _ in range(500):
                if half <= 65_000 or (bar.shown and bar.shown[-1][0] > half // 2):
                    seen.append(half)
                    break
                time.sleep(0.002)
            write(body[half:])

        handler.wfile.write = write_slowly
        try:
            good(handler, server)
        finally:
            handler.wfile.write = write

    server.answer = answer
    assert run(given) == 0
    assert max(seen) > 65_000
    shares = [done / total for done, total in bar.shown]
    assert all(later > share - 0.01 for share, later in itertools.pairwise(shares))
    last, total = bar.shown[-1]
    size = len(data) * len([one for one in given if "npz" in one and arguments[0] == "verify"])
    assert total == size or arguments[0] != "verify"
    assert total * 0.95 <= last <= total


def test_packing_what_urls_name(cli, server, tmp_path):
    """.npy files and archives behind URLs are inputs of pack and add as files are."""
    weights = np.arange(30_000.0)
    link = server.put(npy(weights), "/my%20weights.npy")
    out = tmp_path / "new.npz"
    server.files["/my%20weights.npy"] = npy(weights)
    given = [f"{link}?signature=a=b", f"first={link}", f"other={server.url_of_data}?a=b"]
    found = cli("pack", out, *given)
    assert (found.code, found.err) == (0, "")
    with npzkit.open(out) as npz:
        assert npz.files == ["my weights", "first", *(f"other/{key}" for key in ARRAYS)]
        np.testing.assert_array_equal(npz["my weights"], weights)
        np.testing.assert_array_equal(npz["first"], weights)
        np.testing.assert_array_equal(npz["other/w2"], ARRAYS["w2"])
        assert npz.metadata == {"step": 7}
    assert cli("add", out, f"more={link}").code == 0
    options = {"headers": {"X-A": "1"}}
    server.forget()
    report = npzkit.pack(tmp_path / "b.npz", {"k": link}, storage_options=options)
    assert report.keys == ("k",)
    assert all(request.headers["x-a"] == "1" for request in server.requests)
    assert server.size <= 1.2 * weights.nbytes + 1000


def test_packing_what_is_not_there(cli, server, tmp_path):
    """Nothing is written, and no secret is shown."""
    secret = server.url("/none.npy").replace("//", "//me:secret@") + "?token=secret"
    damaged = server.put(npy(np.ones(9))[:-5], "/damaged.npy")
    other = server.put(b"{}", "/a.json?token=secret")
    for given, text in ((secret, "not found"), (damaged, "damaged.npy"), (other, "suffix")):
        found = cli("pack", tmp_path / "new.npz", server.url_of_data, given)
        assert found.code in (1, 2)
        assert text in found.err
        assert "secret" not in found.err
    assert not (tmp_path / "new.npz").exists()


@pytest.mark.parametrize(
    "arguments", [["add", "URL", "x.npy"], ["rm", "URL", "w1"], ["mv", "URL", "w1", "w2"]]
)
def test_what_changes_an_archive_is_refused(cli, server, arguments):
    """The message says how to do it with a copy."""
    url = server.url_of_data.replace("//", "//me:secret@") + "?token=secret"
    found = cli(*(url if argument == "URL" else argument for argument in arguments))
    assert found.code == 2
    assert "npzkit repack URL -o PATH" in found.err
    assert "secret" not in found.err
    assert server.count == 0


@pytest.mark.parametrize("name", ["a.safetensors", "a.h5", "a.zarr"])
def test_other_formats_are_not_read_from_urls(cli, server, tmp_path, name):
    """The message says so before any request."""
    found = cli("convert", server.url(f"/{name}?token=secret"), tmp_path / "b.npz")
    assert found.code == 2
    assert "only .npz archives can be read from a store" in found.err
    assert "Download the file" in found.err
    assert "secret" not in found.err
    assert server.count == 0


@pytest.mark.parametrize("command", ["repack", "repair"])
def test_what_writes_in_place_is_refused(cli, server, command):
    """The message says what to do at a prompt."""
    found = cli(command, server.url_of_data)
    assert found.code == 2
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
    assert found.code == 2
    assert "does not have these options" in found.err


@pytest.mark.slow
@pytest.mark.filterwarnings("always::npzkit.errors.TornArchiveWarning")
def test_secrets_are_not_printed(cli, server, tmp_path):
    """Passwords and signatures in a URL are in no output and no message."""
    url = server.url_of_data.replace("//", "//me:secret@") + "?signature=secret"
    for arguments in (["ls"], ["ls", "--json"], ["ls", "--tree"], ["verify"],
                      ["verify", "--json"], ["info"], ["info", "--json"], ["diff", url],
                      ["diff", "--json", url], ["show"]):  # fmt: skip
        found = cli(*arguments, url)
        assert "secret" not in found.out + found.err, arguments
    # An append that was not completed is a warning.
    server.files["/a.npz"] += server.files["/a.npz"][:1000]
    for arguments in (["ls"], ["extract", "-o", tmp_path / "a"], ["show", "w1"], ["ls", "--tree"]):
        found = cli(arguments[0], url, *arguments[1:])
        assert found.code == 0
        assert "/a.npz?...: " in found.err
        assert "secret" not in (found.out + found.err).replace(str(tmp_path), ""), arguments
    server.answer = lambda handler, server: handler.reply(404)
    for arguments in (["ls"], ["verify"], ["ls", url]):
        found = cli(*arguments, url)
        assert found.code == 2
        assert "not found" in found.err
        assert "secret" not in found.out + found.err, arguments
    server.answer = good


@pytest.mark.parametrize("options", [[], ["-q"], ["-r", "-q"]])
@pytest.mark.parametrize("answer", ["none", "refusal"])
def test_verify_of_what_cannot_be_read_is_no_damage(cli, monkeypatch, options, answer):
    """If a server cannot be reached, or refuses access, the exit code is 2."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.0)
    with RangeServer().running() as server:
        url = server.put(b"")
        server.answer = lambda handler, _: handler.reply(403)
        if answer == "refusal":
            found = cli("verify", url, *options)
    if answer == "none":
        found = cli("verify", url, *options)
    assert (found.code, found.out) == (2, "")
    assert ("access was refused" if answer == "refusal" else "Connection refused") in found.err


@needs_s3
def test_what_commands_say_of_a_store(cli, monkeypatch):
    """Errors are those of the store, in the terms of the command line."""
    import fsspec

    monkeypatch.setattr(retries, "FIRST_DELAY", 0.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    no_key = {"key": None, "secret": None}
    with s3_server() as options:
        npzkit.save("s3://data/lists/runs/part1.npz", {"x": 1}, storage_options=options)
        for arguments, changed, code, text in (
            ("verify s3://data/lists/runs/", {}, 0, ""),
            ("ls s3://nobucket/", {}, 2, "the bucket does not exist. Check the URL."),
            ("ls s3://nobucket/a.npz", {}, 2, "the bucket does not exist. Check the URL."),
            ("ls s3://data/lists/empty/", {}, 2, "not found. Check the URL."),
            ("ls -r s3://data/lists/empty/", {}, 2, "not found. Check the URL."),
            ("ls s3://data/lists/", {}, 2, "Pass -r to search the folders in it."),
            (
                "ls s3://data/lists/runs/p*.npz",
                {},
                2,
                "npzkit ls s3://data/lists/runs/ lists the files",
            ),
            ("ls s3://data/lists/runs/", no_key, 2, "or pass --storage-option anon=true"),
            ("verify s3://data/lists/runs/part1.npz", no_key, 2, "Set AWS_PROFILE"),
            (
                "verify s3://data/lists/runs/part1.npz",
                {"endpoint": 1},
                2,
                "Did you mean endpoint_url?",
            ),
        ):
            given = {name: value for name, value in {**options, **changed}.items() if value}
            texts = [f"--storage-option={name}={json.dumps(given[name])}" for name in given]
            found = cli(*arguments.split(), *texts)
            assert (arguments, found.code) == (arguments, code), found.err
            assert text in found.err
        # The server's objects outlive it.
        fsspec.filesystem("s3", **options).rm("data/lists", recursive=True)
