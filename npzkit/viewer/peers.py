"""Which user of this machine is at the other end of a connection, where the system says so.

Owns how Linux lists connections (proc(5), ``/proc/net/tcp``). Elsewhere nobody is known.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys

__all__ = ["is_other_user", "user_of"]

_TABLES = "/proc/net/tcp", "/proc/net/tcp6"
_LOCAL, _REMOTE, _USER = 1, 2, 7
"""Fields of a line."""


def is_other_user(address: str, port: int, server_port: int) -> bool:
    """Whether a connection was made by another user of this machine, as far as is known.

    The superuser is no other user: nothing is hidden from them.
    """
    user = user_of(address, port, server_port)
    return bool(user) and hasattr(os, "geteuid") and user != os.geteuid()


def user_of(address: str, port: int, server_port: int) -> int | None:
    """Return the id of the user whose process connected from an address, or None.

    Parameters
    ----------
    address : str
        The address of the other end.
    port, server_port : int
        The ports of the other end and of this one.
    """
    wanted, end = f"{_as_listed(address)}:{port:04X}", f":{server_port:04X}"
    for path in _TABLES:
        with contextlib.suppress(OSError), open(path, encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if fields[_LOCAL] == wanted and fields[_REMOTE].endswith(end):
                    return int(fields[_USER])
    return None


def _as_listed(address: str) -> str:
    """Return an address as Linux lists it: words of 32 bits in the machine's order."""
    found = ipaddress.ip_address(address.partition("%")[0])
    # A server for both protocols sees addresses of IPv4 as of IPv6; their sockets are of IPv4.
    packed = (getattr(found, "ipv4_mapped", None) or found).packed
    words = [packed[start : start + 4] for start in range(0, len(packed), 4)]
    step = -1 if sys.byteorder == "little" else 1
    return "".join(word[::step].hex().upper() for word in words)
