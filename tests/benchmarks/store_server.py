"""A server of S3 for `upload`: it takes objects and parts, and keeps none of their bytes.

Run as a process of its own. It prints its port, and ends when its standard input does.
``python store_server.py 20`` waits for 20 milliseconds before each answer. GET /bytes
returns how many bytes came since the last time.
"""

from __future__ import annotations

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_BEGUN = "<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>"
_DONE = "<CompleteMultipartUploadResult><ETag>one</ETag></CompleteMultipartUploadResult>"
_NONE = "<ListMultipartUploadsResult></ListMultipartUploadsResult>"


class Handler(BaseHTTPRequestHandler):
    """Answers as S3 does to uploads that succeed."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    seconds = 0.0
    received = 0
    lock = threading.Lock()

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        """Take an object, or a part of one."""
        left, buffer = int(self.headers["Content-Length"]), memoryview(bytearray(1 << 20))
        with self.lock:
            Handler.received += left
        while left:
            left -= self.rfile.readinto(buffer[: min(left, len(buffer))])
        self._answer(200)

    def do_POST(self) -> None:
        """Begin an upload in parts, or end it."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        self._answer(200, _BEGUN if "uploads" in query else _DONE)

    def do_GET(self) -> None:
        """List uploads: there are none."""
        if self.path == "/bytes":
            with self.lock:
                text, Handler.received = str(Handler.received), 0
            self._answer(200, text)
            return
        self._answer(200, _NONE)

    def do_HEAD(self) -> None:
        """Say that there is no object."""
        self._answer(404)

    def do_DELETE(self) -> None:
        """End an upload without an object."""
        self._answer(204)

    def _answer(self, status: int, text: str = "") -> None:
        time.sleep(self.seconds)
        self.send_response(status)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    Handler.seconds = float(sys.argv[1]) / 1000
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
