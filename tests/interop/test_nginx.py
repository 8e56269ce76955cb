"""Archives behind nginx, with the configuration of a plain file server."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import subprocess
import time

import npzkit
import numpy as np
import pytest
from npzkit.cli.commands import run
from npzkit.errors import StaleArchiveError, UnsupportedError

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

ARRAYS = {f"w{i}": np.random.default_rng(i).random(8192) for i in range(8)}
CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2;
    fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    types {{ application/octet-stream npz; }}
    gzip on; gzip_types *; gzip_min_length 1;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/data;
        location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
        location /whole/ {{ alias {folder}/data/; max_ranges 0; }}
        location /closed/ {{ deny all; }}
    }}
}}
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(port, process):
    for _ in range(200):
        with socket.socket() as found:
            if not found.connect_ex(("127.0.0.1", port)):
                return
        assert process.poll() is None
        time.sleep(0.02)
    raise AssertionError("nginx does not answer")


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    """The server's address, the folder that it serves, and its log."""
    folder = tmp_path_factory.mktemp("nginx")
    (folder / "data").mkdir()
    port = free_port()
    (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, port=port))
    command = [NGINX, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}", folder / "data", folder / "access.log"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def url(nginx):
    address, data, log = nginx
    npzkit.save(data / "a.npz", ARRAYS, metadata={"step": 7})
    # Of a file of this very second, nginx's ETag tells no version: it would be asked twice.
    os.utime(data / "a.npz", (1.5e9, 1.5e9))
    log.write_bytes(b"")
    return f"{address}/a.npz"


def requests_in(log, count=0):
    """Return the lines of the log; nginx writes one after the answer was sent."""
    end = time.monotonic() + 10
    while len(lines := log.read_text().splitlines()) < count and time.monotonic() < end:
        time.sleep(0.01)
    return lines


def test_reading(nginx, url):
    """Opening and an array are one request each, whatever else the server compresses."""
    with npzkit.open(url) as npz:
        assert npz.metadata == {"step": 7}
        assert len(requests_in(nginx[2], 1)) == 1
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
        assert len(requests_in(nginx[2], 2)) == 2
        found = npz.load_all()
        assert npz.verify().ok
    assert all(np.array_equal(found[key], ARRAYS[key]) for key in ARRAYS)
    assert all('" 206 ' in line for line in requests_in(nginx[2]))


def test_the_command(url, capsys):
    """ls and show read from a server."""
    shown = f"{ARRAYS['w7'][0]:.4f}"[:5]
    for arguments, expected in (["ls", url], "w7"), (["show", url, "w7", "0:3"], shown):
        assert run(arguments) == 0
        assert expected in capsys.readouterr().out


def test_a_replaced_file(nginx, url):
    """If-Match fails once the file is another one."""
    with npzkit.open(url) as npz:
        npzkit.save(nginx[1] / "a.npz", {key: array + 1 for key, array in ARRAYS.items()})
        os.utime(nginx[1] / "a.npz", (1e9, 1e9))
        with pytest.raises(StaleArchiveError):
            npz["w3"]


def test_other_answers(nginx, url):
    """Redirects, missing files, refusals, and places without ranges."""
    address, data, _ = nginx
    with npzkit.open(f"{address}/moved/a.npz") as npz:
        np.testing.assert_array_equal(npz["w3"], ARRAYS["w3"])
    with pytest.raises(FileNotFoundError):
        npzkit.open(f"{address}/none.npz")
    with pytest.raises(PermissionError):
        npzkit.open(f"{address}/closed/a.npz")
    with pytest.raises(UnsupportedError, match="ranges"):
        npzkit.open(f"{address}/whole/a.npz")
    (data / "page.npz").write_bytes(b"<html>not here</html>")
    with pytest.raises(npzkit.errors.ZipFormatError, match="HTML"):
        npzkit.open(f"{address}/page.npz")
    (data / "empty.npz").write_bytes(b"")
    with pytest.raises(npzkit.errors.ZipFormatError, match="empty"):
        npzkit.open(f"{address}/empty.npz")
    (data / "packed.npz").write_bytes(gzip.compress(b"no archive"))
    with pytest.raises(npzkit.errors.ZipFormatError, match="gzip"):
        npzkit.open(f"{address}/packed.npz")
