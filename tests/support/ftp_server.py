"""An FTP server on the loopback, as much of one as reading files takes.

Owns no data: a test gives it bytes and their times by path. It ends with the test's ``with`` block.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
from collections.abc import Iterator
from typing import Any

from range_server import serving

__all__ = ["FtpServer"]


class _Handler(socketserver.StreamRequestHandler):
    """One connection of a client: commands, each of which has an answer."""

    disable_nagle_algorithm = True
    server: Any

    def handle(self) -> None:
        # A client sends the end of ABOR as urgent.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        self._listening: socket.socket | None = None
        self._start = 0
        self._say("220 ready")
        try:
            for line in self.rfile:
                command, _, text = line.decode().strip().partition(" ")
                known = getattr(self, f"_{command.lower()}", None)
                if known is None:
                    self._say("502 unknown")
                else:
                    known(text)
        except OSError:
            # The client has gone.
            pass
        finally:
            if self._listening is not None:
                self._listening.close()

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def _user(self, text: str) -> None:
        self._say("230 welcome")

    def _type(self, text: str) -> None:
        self._say("200 done")

    def _cwd(self, text: str) -> None:
        self._say("250 done")

    def _size(self, text: str) -> None:
        self._say(f"213 {len(self.server.owner.files[text][0])}")

    def _rest(self, text: str) -> None:
        self._start = int(text)
        self._say("350 from there on")

    def _pasv(self, text: str) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        high, low = divmod(self._listening.getsockname()[1], 256)
        self._say(f"227 (127,0,0,1,{high},{low})")

    def _mlsd(self, text: str) -> None:
        lines = [
            f"type=file;size={len(data)};modify={modified}; {path.rpartition('/')[2]}\r\n"
            for path, (data, modified) in self.server.owner.files.items()
        ]
        self._send("".join(lines).encode())

    def _retr(self, text: str) -> None:
        start, self._start = self._start, 0
        self._send(self.server.owner.files[text][0][start:])

    def _send(self, data: bytes) -> None:
        assert self._listening is not None
        self._say("150 here it comes")
        with self._listening, contextlib.suppress(OSError):
            connection, _ = self._listening.accept()
            with connection:
                connection.sendall(data)
        self._say("226 done")

    def _abor(self, text: str) -> None:
        self._say("226 ended")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    owner: FtpServer


class FtpServer:
    """The server of one test.

    Attributes
    ----------
    files : dict of str to (bytes, str)
        The bytes of each path, and when they were modified: ``20261122100000``.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self

    def url(self, path: str) -> str:
        return f"ftp://127.0.0.1:{self._server.server_address[1]}{path}"

    @contextlib.contextmanager
    def running(self) -> Iterator[FtpServer]:
        with serving(self._server):
            yield self
