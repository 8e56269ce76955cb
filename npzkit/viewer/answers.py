"""What all answers of the server have in common: headers, and what is logged.

Owns the headers that keep a browser from running, keeping or telling anything of an
answer. Knows no archive and no page.
"""

from __future__ import annotations

from types import TracebackType

from tornado.log import app_log
from tornado.web import HTTPError, RequestHandler

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Content-Type": "text/plain; charset=utf-8",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Answer(RequestHandler):
    """The base of all answers: by default plain text, in which nothing runs.

    Errors contain keys from archives. Addresses contain the token, and so they are
    not logged.
    """

    def set_default_headers(self) -> None:
        # tornado calls this for its own answers to errors, too.
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if typ is not None and value is not None and not isinstance(value, HTTPError):
            app_log.error("npzkit view could not answer", exc_info=(typ, value, tb))

    def write_error(self, status_code: int, **options: object) -> None:
        self.finish(f"{status_code}: {self._reason}\n")
