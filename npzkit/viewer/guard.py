"""Which requests are answered: those with the token, from a page of this server.

Owns the token, and the checks of Host and Origin. Knows no server.

The token is the first part of the path, so that each request has it: for the page,
its scripts, its websocket and its downloads. A cookie would be sent to all servers of
this machine, whatever their ports.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket

from npzkit.viewer.peers import is_other_user

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]@/\\\s]+)(?::([0-9]{1,5}))?")
_ANY = {"0.0.0.0", "::"}  # noqa: S104 - recognised, not bound
"""The addresses that stand for all of a machine."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """The checks of a server that listens on a host.

    Parameters
    ----------
    host : str
        A name or an address, without a port.

    Attributes
    ----------
    token : str
        New for each server.

    Examples
    --------
    >>> guard = Guard("127.0.0.1")
    >>> guard.port = 5000
    >>> guard.refusal(f"/{guard.token}/", "127.0.0.1:5000", None) is None
    True
    >>> guard.refusal(f"/{guard.token}/", "example.org:5000", None)
    'wrong Host'
    """

    def __init__(self, host: str) -> None:
        self.token = secrets.token_urlsafe(24)
        self._host = host
        self._tickets: set[str] = set()
        self.port = 0

    def ticket(self) -> str:
        """Return a word that leads to the page once, in place of the token.

        Other users of a machine see the commands that are started, and so the address
        with which a browser is opened. Where the system says who connects, only the
        user who started the server may use it.
        """
        found = secrets.token_urlsafe(24)
        self._tickets.add(found)
        return found

    def redeems(self, path: str, host: str | None, peer: tuple[str, int]) -> bool:
        """Whether a request has a ticket, which is not valid any more then.

        Parameters
        ----------
        path : str
        host : str or None
            The header.
        peer : (str, int)
            The address and the port from which the request came.
        """
        given = _first_part(path)
        if given not in self._tickets or host is None or not self._is_own(host):
            return False
        if is_other_user(*peer, self.port):
            return False
        self._tickets.discard(given)
        return True

    def refusal(self, path: str, host: str | None, origin: str | None) -> str | None:
        """Return why a request is refused, or None.

        Parameters
        ----------
        path : str
        host, origin : str or None
            The headers of these names.
        """
        given = _first_part(path)
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
        if found is None or int(found[2] or 80) != self.port:
            return False
        name = found[1].strip("[]").lower()
        if name == self._host.lower() or (is_loopback(name) and is_loopback(self._host)):
            return True
        return self._host in _ANY and (is_address(name) or name in own_names())


def _first_part(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""


def is_address(name: str) -> bool:
    """Whether this is a number: one cannot be made to point to another machine."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def own_names() -> set[str]:
    """Return the names of this machine."""
    return {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}


def host_in_url(host: str) -> str:
    """Return the name or the address that a browser on this machine uses.

    Examples
    --------
    >>> host_in_url("0.0.0.0"), host_in_url("::1")
    ('127.0.0.1', '[::1]')
    """
    if host in _ANY:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
