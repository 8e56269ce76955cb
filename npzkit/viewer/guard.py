"""Which requests are answered: those with the token, from a page of this server.

Owns the token, and the checks of Host and Origin. Knows no server.

The token is the first part of the path, so that each request has it: for the page,
its scripts and its websocket. A cookie would be sent to all servers of this machine,
whatever their ports.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]@/\\\s]+)(?::([0-9]{1,5}))?")
HOST = "127.0.0.1"
"""The address to listen on: only this machine can reach it."""


class Guard:
    """The checks of a server.

    Parameters
    ----------
    port : int
        On which the server listens.

    Attributes
    ----------
    token : str
        New for each server.

    Examples
    --------
    >>> guard = Guard(5000)
    >>> guard.refusal(f"/{guard.token}/", "127.0.0.1:5000", None) is None
    True
    >>> guard.refusal(f"/{guard.token}/", "example.org:5000", None)
    'wrong Host'
    """

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        self._port = port

    def refusal(self, path: str, host: str | None, origin: str | None) -> str | None:
        """Return why a request is refused, or None.

        Parameters
        ----------
        path : str
        host, origin : str or None
            The headers of these names.
        """
        given = path.split("/", 2)[1] if path.startswith("/") else ""
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return "wrong token"
        if host is None or not self._is_own(host):
            # A name that was made to point here, by DNS rebinding.
            return "wrong Host"
        if origin is not None and origin != f"http://{host}":
            return "foreign Origin"
        return None

    def _is_own(self, host: str) -> bool:
        """Whether a Host header means this server."""
        found = _HOST.fullmatch(host)
        if found is None or int(found[2] or 80) != self._port:
            return False
        try:
            return ipaddress.ip_address(found[1].strip("[]")).is_loopback
        except ValueError:
            return found[1].lower() == "localhost"
