"""Which requests are answered: those with the token, from a page of this server.

Owns the token, the checks of Host and Origin, and who is at the other end of a connection,
as Linux lists it (proc(5), ``/proc/net/tcp``). Knows no server.

The token is the first part of the path, so that each request has it: for the page,
its scripts, its websocket and its downloads. A cookie would be sent to all servers of
this machine, whatever their ports.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]@/\\\s]+)(?::([0-9]{1,5}))?")
HOST = "127.0.0.1"
"""The address to listen on: only this machine can reach it."""
_TABLES = "/proc/net/tcp", "/proc/net/tcp6"
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9
"""Fields of a line."""
_MAPPED = bytes(10) + b"\xff\xff"
"""What an address of IPv4 begins with as one of IPv6 (RFC 4291, section 2.5.5.2)."""
_NOBODY = -1
"""The user of a connection that its process has closed. Linux lists it as the superuser's."""


class Guard:
    """The checks of a server.

    Attributes
    ----------
    token : str
        New for each server.

    Examples
    --------
    >>> guard = Guard()
    >>> guard.port = 5000
    >>> guard.refusal(f"/{guard.token}/", "127.0.0.1:5000", None) is None
    True
    >>> guard.refusal(f"/{guard.token}/", "example.org:5000", None)
    'wrong Host'
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
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
        try:
            return ipaddress.ip_address(found[1].strip("[]")).is_loopback
        except ValueError:
            return found[1].lower() == "localhost"


def _first_part(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""


def is_other_user(address: str, port: int, server_port: int) -> bool:
    """Whether a connection was made by another user of this machine, as far as is known.

    The superuser is no other user: nothing is hidden from them.
    """
    user = user_of(address, port, server_port)
    return user not in (None, 0) and hasattr(os, "geteuid") and user != os.geteuid()


def user_of(address: str, port: int, server_port: int) -> int | None:
    """Return the id of the user whose process connected from an address.

    None if it is not known, and -1 if no process has that end of it any more.

    Parameters
    ----------
    address : str
        The address of the other end.
    port, server_port : int
        The ports of the other end and of this one.
    """
    wanted = {f"{listed}:{port:04X}" for listed in _as_listed(address)}
    end = f":{server_port:04X}"
    for path in _TABLES:
        with contextlib.suppress(OSError), open(path, encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if fields[_LOCAL] in wanted and fields[_REMOTE].endswith(end):
                    return int(fields[_USER]) if fields[_INODE] != "0" else _NOBODY
    return None


def _as_listed(address: str) -> Iterator[str]:
    """Yield an address of IPv4 in the ways that Linux may list it: words in the machine's order.

    A socket of IPv6 may have made the connection.
    """
    packed = socket.inet_aton(address)
    step = -1 if sys.byteorder == "little" else 1
    for form in (packed, _MAPPED + packed):
        words = [form[start : start + 4] for start in range(0, len(form), 4)]
        yield "".join(word[::step].hex().upper() for word in words)
