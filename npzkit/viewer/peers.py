"""Which user of this machine is at the other end of a connection, where the system says so.

Owns how Linux lists connections (proc(5), ``/proc/net/tcp``). Elsewhere nobody is known.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from collections.abc import Iterator

_TABLES = "/proc/net/tcp", "/proc/net/tcp6"
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9
"""Fields of a line."""
_MAPPED = bytes(10) + b"\xff\xff"
"""What an address of IPv4 begins with as one of IPv6 (RFC 4291, section 2.5.5.2)."""
_NOBODY = -1
"""The user of a connection that its process has closed. Linux lists it as the superuser's."""


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
    """Yield an address in the ways that Linux may list it: words in the machine's order.

    A connection between addresses of IPv4 may be made by sockets of IPv6, at either end.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    forms = [found.packed]
    if found.version == 4:
        forms.append(_MAPPED + found.packed)
    step = -1 if sys.byteorder == "little" else 1
    for packed in forms:
        words = [packed[start : start + 4] for start in range(0, len(packed), 4)]
        yield "".join(word[::step].hex().upper() for word in words)
