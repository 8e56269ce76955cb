"""The server of a page: Bokeh's, in a thread of its own, behind a guard.

Owns when it starts and ends, and that no request passes the guard unchecked. What a
page contains is `npzkit.viewer.page`'s.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.server.views.doc_handler import DocHandler
from bokeh.server.views.static_handler import StaticHandler
from bokeh.server.views.ws import WSHandler
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.log import app_log
from tornado.web import HTTPError, RequestHandler

from npzkit.viewer.guard import HOST, Guard

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Content-Type": "text/plain; charset=utf-8",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""They keep a browser from running, keeping or telling anything of an answer."""
_UNUSED_MS = 10_000
"""How long what a page needs is kept after its connection was lost."""
_TOKEN_SECONDS = 86_400
"""How long a page may be away, as on a computer that sleeps, and still connect again."""
_WAIT_SECONDS = 30
"""How long a connection may take to send a request."""
_CONNECTION_COUNT = 200
"""Connections of pages at once. Each takes a file descriptor of the process."""
_STRANGER_COUNT = 100
"""Other connections at once. Any user of the machine can open them, and send no valid request."""
_PAGE_COUNT = 50
"""Pages at once: those that are open, and those that were left a moment ago."""
_HEADER_SIZE = 1 << 17
"""Bytes of a request. A link has a key."""


class _PlainAnswer(RequestHandler):
    """The base of all answers: by default plain text, in which nothing runs.

    Addresses contain the token and keys from archives, and so they are not logged.
    """

    def set_default_headers(self) -> None:
        # tornado calls this for its own answers to errors, too.
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def log_exception(
        self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        if typ is not None and value is not None and not isinstance(value, HTTPError):
            app_log.error("npzkit view could not answer", exc_info=(typ, value, tb))

    def write_error(self, status_code: int, **options: object) -> None:
        self.finish(f"{status_code}: {self._reason}\n")


class _Refusal(_PlainAnswer):
    """Answers what the guard refuses."""

    def initialize(self, why: str) -> None:
        self._why = why

    def prepare(self) -> None:
        self.set_status(403)
        self.finish(f"Refused: {self._why}. Use the address that npzkit has printed.\n")


class _PageHandler(_PlainAnswer, DocHandler):
    """Answers with a page on which no other scripts run than those of this answer."""

    async def get(self, *args: Any, **options: Any) -> None:
        # Each takes some megabytes, until its connection is lost or was never made.
        if len(self.application_context.sessions) >= _PAGE_COUNT:
            self.set_status(503)
            self.set_header("Retry-After", str(2 * _UNUSED_MS // 1000))
            self.finish(
                f"There are {_PAGE_COUNT} pages already. Close some, and try again in "
                f"{2 * _UNUSED_MS // 1000} seconds.\n"
            )
            return
        await super().get(*args, **options)

    def write(self, chunk: Any) -> None:
        # Text from archives is not in the page, except for its title, which is escaped.
        nonce = secrets.token_urlsafe(16)
        host = self.request.host
        policy = {
            "default-src": "'none'",
            # BokehJS makes functions of the code of callbacks, all of which is npzkit's.
            "script-src": f"'nonce-{nonce}' 'unsafe-eval'",
            "style-src": "'self' 'unsafe-inline'",
            "img-src": "'self' data:",
            "font-src": "'self' data:",
            "connect-src": f"'self' ws://{host}",
            "base-uri": "'none'",
            "form-action": "'none'",
        }
        text = "; ".join(f"{name} {value}" for name, value in policy.items())
        self.set_header("Content-Security-Policy", text)
        super().write(chunk.replace("<script", f'<script nonce="{nonce}"'))


class _SocketHandler(_PlainAnswer, WSHandler):
    """Answers on a page's websocket."""

    def check_origin(self, origin: str) -> bool:
        # The guard has compared it with the Host.
        return True


class _StaticHandler(_PlainAnswer, StaticHandler):
    """Answers with a script or a style of BokehJS."""


_HANDLERS: dict[Any, Any] = {
    DocHandler: _PageHandler, WSHandler: _SocketHandler, StaticHandler: _StaticHandler,
}  # fmt: skip
"""What answers; nothing else of Bokeh's server is used."""


class _GuardedTornado(BokehTornado):
    """Bokeh's server, which answers nothing that the guard refuses."""

    def __init__(self, guard: Guard, *args: Any, **options: Any):
        self._guard = guard
        self.admit: Callable[[Any], object] = lambda stream: None
        super().__init__(*args, **options)

    def find_handler(self, request: Any, **options: Any) -> Any:
        headers = request.headers
        why = self._guard.refusal(request.path, headers.get("Host"), headers.get("Origin"))
        if why is not None:
            return super().get_handler_delegate(request, _Refusal, {"why": why})
        self.admit(request.connection.stream)
        return super().find_handler(request, **options)

    def get_handler_delegate(
        self, request: Any, target_class: Any, *args: Any, **options: Any
    ) -> Any:
        # Panel, once imported, puts subclasses of its own in the place of Bokeh's handlers.
        handler = next(
            (found for known, found in _HANDLERS.items() if issubclass(target_class, known)), None
        )
        if handler is None:
            return super().get_handler_delegate(request, _Refusal, {"why": "no such page"})
        return super().get_handler_delegate(request, handler, *args, **options)


class _BoundedServer(HTTPServer):
    """A server that bounds its connections, so that the process can open files.

    Those of strangers make room for newer ones: a page sends its request at once, so that
    requests which are never finished cannot keep it waiting.
    """

    def initialize(self, *args: Any, **options: Any) -> None:
        self._strangers: list[Any] = []
        self._admitted: list[Any] = []
        super().initialize(*args, **options)

    def handle_stream(self, stream: Any, address: Any) -> None:
        self._strangers = _open_ones(self._strangers)
        self._admitted = _open_ones(self._admitted)
        if len(self._admitted) >= _CONNECTION_COUNT:
            stream.close()
            return
        if len(self._strangers) >= _STRANGER_COUNT:
            self._strangers.pop(0).close()
        self._strangers.append(stream)
        super().handle_stream(stream, address)

    def admit(self, stream: Any) -> None:
        """Keep a connection: its request passed the guard."""
        if stream in self._strangers:
            self._strangers.remove(stream)
            self._admitted.append(stream)

    def close_streams(self) -> None:
        """Close all connections, also those of websockets."""
        for stream in (*self._strangers, *self._admitted):
            stream.close()


def _open_ones(streams: list[Any]) -> list[Any]:
    return [stream for stream in streams if not stream.closed()]


class PageServer:
    """A server in a thread.

    Parameters
    ----------
    make_page : callable
        Called with each new document.
    port : int
        0 for any free one.

    Attributes
    ----------
    url : str
        With the token.

    Raises
    ------
    OSError
        The port is in use.
    """

    def __init__(self, make_page: Callable[[Any], object], port: int) -> None:
        self._socket = _bound(port)
        port = self._socket.getsockname()[1]
        self._guard = Guard(port)
        self.url = f"http://{HOST}:{port}/{self._guard.token}/"
        self._make_page = make_page
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="npzkit-view-server", daemon=True
        )
        self._thread.start()
        started.result()

    async def _serve(self, started: Future[None]) -> None:
        """Answer requests until the server is closed; what is under way then is cancelled."""
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = self._server()
            server.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        await self._is_over.wait()
        server.stop(wait=False)
        self._http.close_streams()

    def _server(self) -> BaseServer:
        application = Application(FunctionHandler(self._make_page))
        tornado = _GuardedTornado(
            self._guard, {"/": application}, prefix=self._guard.token, sign_sessions=True,
            secret_key=secrets.token_bytes(32), unused_session_lifetime_milliseconds=_UNUSED_MS,
            check_unused_sessions_milliseconds=_UNUSED_MS, ico_path="none",
            websocket_max_message_size_bytes=1 << 20, log_function=lambda handler: None,
            session_token_expiration=_TOKEN_SECONDS,
        )  # fmt: skip
        self._http = _BoundedServer(
            tornado, max_body_size=1 << 20, max_header_size=_HEADER_SIZE,
            idle_connection_timeout=_WAIT_SECONDS, body_timeout=_WAIT_SECONDS,
        )  # fmt: skip
        tornado.admit = self._http.admit
        self._http.add_socket(self._socket)
        return BaseServer(IOLoop.current(), tornado, self._http)

    def close(self) -> None:
        """End the server. Pages keep what they show."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join(timeout=10)


def _bound(port: int) -> socket.socket:
    """Return a socket that listens for this machine only."""
    try:
        found = socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{HOST}:{port}") from None
    found.setblocking(False)
    return found
