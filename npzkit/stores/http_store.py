"""Objects on web servers: what a request for a range says, and what its answer means.

Owns the headers of a request, redirects, and which status is which error. Connections
are `npzkit.stores.connections`', and trying again is the caller's.
"""

from __future__ import annotations

import contextlib
import errno
import re
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn
from urllib.parse import SplitResult, quote, urljoin

from npzkit.errors import UnsupportedError, printable, shown_url
from npzkit.files.urls import Location
from npzkit.stores.connections import Connections, basic_auth, origin_of, split_url
from npzkit.stores.hidden_secrets import hide_secrets
from npzkit.stores.remote_source import Opened, Store
from npzkit.stores.retries import TransientError
from npzkit.stores.time_limits import limited, timeout_in
from npzkit.stores.versions import Version, parse_content_range

_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_GONE = (404, 410)
_REFUSED = (401, 403, 407)
_NO_SUFFIX = (400, 405, 416, 501)
"""What servers answer that cannot count from the end, those of Azure among them."""
_MOST_ANSWERS = 1024
"""Requests for one range whose answers end early. Largest ranges come in parts of 16 KiB then."""
_TIME_STEP = 1.0
"""Seconds by which two values of Last-Modified differ at least."""
_NO_RANGE = re.compile(r"bytes \*/(\d{1,19})", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'+*.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[^\r\n\0\u0100-\U0010ffff]*")
_UNSAFE = "%/:=&?~#+!$,;'@()*[]"
_ARCHIVE = b"PK"


class HttpStore(Store):
    """An object behind ``http://`` or ``https://``.

    Parameters
    ----------
    url : str
        A user and a password in it become the header ``Authorization``.
    options : mapping
        ``headers`` (dict), ``timeout`` (seconds; None or 0 is no limit) and
        ``client_kwargs`` with ``headers``, ``auth`` (user and password) or
        ``timeout``, as for fsspec. ``ssl`` (an `ssl.SSLContext`) is used instead of the usual one.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.name = shown_url(url)
        parts = split_url(quote(url, safe=_UNSAFE), f"the URL {self.name!r}")
        headers, self._timeout = _understood(self.name, options)
        self._headers = {
            "User-Agent": "npzkit", "Accept": "*/*", "Accept-Encoding": "identity",
        }  # fmt: skip
        self._secrets = {**basic_auth(parts.username, parts.password), **headers}
        # As they are sent, and as they were given.
        self._location = Location(url, {**options, "headers": self._secrets})
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        # Where redirects led to.
        self._target = self._url
        self._connections = Connections(self.name, options.get("ssl"))

    # -- requests -----------------------------------------------------------

    def open(self, tail_size: int) -> Opened:
        with limited(self._timeout):
            found = self._open(tail_size)
        if found.is_new and len(found.tail) < found.version.size:
            # After this second, whatever replaces the object has another time.
            time.sleep(_TIME_STEP)
            with limited(self._timeout):
                found = self._open(tail_size)
        return found

    def _open(self, tail_size: int) -> Opened:
        with self._get({"Range": f"bytes=-{tail_size}"}) as response:
            if response.status == 206:
                begin, end, version = self._range_of(response)
                size: int | None = version.size
                if end == size and begin == max(end - tail_size, 0):
                    tail = bytearray(end - begin)
                    self._fill(response, memoryview(tail))
                    return Opened(tail, version, _is_new(response, version))
            elif response.status == 200:
                # All of it: an error, unless it is no archive.
                self._check_coding(response)
                size = response.length_remaining
                head = bytearray(tail_size if size is None else min(size, tail_size))
                count = self._connections.read_body(response, memoryview(head))
                if not head.startswith(_ARCHIVE):
                    # A login page, for example: the reader says what it is.
                    return Opened(head[:count], _version(response, count))
            elif response.status in _NO_SUFFIX:
                # It may say the size, although it has none of the bytes that were asked for.
                said = _NO_RANGE.fullmatch(response.headers.get("Content-Range", ""))
                size = None if said is None else int(said[1])
            else:
                self._fail(response)
        # By the offsets of the last bytes, for a server that counts only from the front.
        size = self._find_size() if size is None else size
        tail = bytearray(min(tail_size, size))
        if not tail:
            return Opened(tail, Version(0))
        part = self._read_range(size - len(tail), memoryview(tail), Version(size))
        return part._replace(tail=tail)

    def _find_size(self) -> int:
        """Ask for one byte. The answer says how many there are, also where HEAD is refused."""
        with self._get({"Range": "bytes=0-0"}) as response:
            if response.status == 416:
                # An empty object has no first byte.
                return 0
            if response.status == 200:
                raise self.no_ranges()
            if response.status != 206:
                self._fail(response)
            return self._range_of(response)[2].size

    def readinto(self, offset: int, view: memoryview, version: Version) -> None:
        with limited(self._timeout):
            self._read_range(offset, view, version)

    def _read_range(self, offset: int, view: memoryview, version: Version) -> Opened:
        """Fill `view`, by more than one request if answers end early. Return what the first said.

        A server may send fewer bytes than it was asked for (RFC 9110, 14.2).
        """
        first = part = self._read_part(offset, view, version)
        count, done = 1, len(part.tail)
        while done < len(view):
            if count == _MOST_ANSWERS:
                raise OSError(
                    f"{self.name}: the server sent {done} of {len(view)} bytes in {count} answers"
                )
            known = version if version.is_known else first.version
            part = self._read_part(offset + done, view[done:], known)
            count, done = count + 1, done + len(part.tail)
        return first

    def _read_part(self, offset: int, view: memoryview, version: Version) -> Opened:
        """Read the beginning of a range, or all of it, by one request."""
        end = offset + len(view)
        headers = {"Range": f"bytes={offset}-{end - 1}"}
        if version.strong_tag:
            headers["If-Match"] = version.tag
        elif version.modified:
            headers["If-Unmodified-Since"] = version.modified
        with self._get(headers) as response:
            if response.status in (412, 416):
                raise version.changed()
            if response.status == 200:
                found = _version(response, response.length_remaining or version.size)
                version.check(found)
                raise self.no_ranges()
            if response.status != 206:
                self._fail(response)
            begin, found_end, found = self._range_of(response)
            version.check(found)
            if begin != offset or found_end > end:
                self._refuse("another range than was asked for")
            part = view[: found_end - begin]
            self._fill(response, part)
            return Opened(part, found, _is_new(response, found))

    @contextlib.contextmanager
    def _get(self, headers: Mapping[str, str]) -> Iterator[Any]:
        """Send a request, follow redirects, and remember where they led; close the answers."""
        with contextlib.ExitStack() as answers:
            is_known = self._target != self._url
            response = self._follow(self._target, headers, answers)
            if is_known and response.status in (*_GONE, *_REFUSED):
                # Addresses that redirects lead to are often valid for minutes only.
                response.close()
                response = self._follow(self._url, headers, answers)
            yield response

    def _follow(
        self, url: SplitResult, headers: Mapping[str, str], answers: contextlib.ExitStack
    ) -> Any:
        for _ in range(_MOST_REDIRECTS + 1):
            # What is meant for one origin is not told to another.
            secrets = self._secrets if origin_of(url) == origin_of(self._url) else {}
            asked = {**self._headers, **secrets, **headers}
            response = self._connections.send(
                url, asked, lambda answer: answers.callback(answer.close)
            )
            if response.status not in _REDIRECTS:
                self._target = url
                return response
            response.close()
            place = response.headers.get("Location", "")
            try:
                target = quote(urljoin(url.geturl(), place), safe=_UNSAFE)
                url = split_url(target, "the redirect")
            except (ValueError, UnsupportedError):
                place = ""
            if not place or url.scheme not in ("http", "https"):
                raise OSError(f"{self.name}: a redirect leads nowhere that can be read")
            url = url._replace(netloc=url.netloc.rpartition("@")[2])
        raise OSError(f"{self.name}: more than {_MOST_REDIRECTS} redirects")

    # -- answers ------------------------------------------------------------

    def _range_of(self, response: Any) -> tuple[int, int, Version]:
        """Return begin and end of the bytes in an answer, and the object's version."""
        text = response.headers.get("Content-Range", "")
        found = parse_content_range(text)
        if found is None:
            self._refuse(f"bytes without saying which: Content-Range is {text!r}")
        begin, end, size = found
        return begin, end, _version(response, size)

    def _fill(self, response: Any, view: memoryview) -> None:
        """Read a body of this size."""
        self._check_coding(response)
        length = response.length_remaining
        if length is not None and length != len(view):
            self._refuse(f"{length} bytes instead of {len(view)}")
        count = self._connections.read_body(response, view, self.received)
        if count < len(view):
            raise TransientError(f"the answer ended after {count} of {len(view)} bytes")
        if length is None and self._connections.read_body(response, memoryview(bytearray(1))):
            self._refuse(f"more bytes instead of {len(view)}")

    def _check_coding(self, response: Any) -> None:
        """Refuse a body in another form than was asked for."""
        fields = response.headers.getlist
        # As `http.client` reads it, which takes the first of several for the only one.
        transfer = ", ".join(fields("Transfer-Encoding")).lower()
        coding = ", ".join(fields("Content-Encoding")).lower()
        for found, known in (coding, ("", "identity")), (transfer, ("", "identity", "chunked")):
            if found not in known:
                self._refuse(f"the bytes in another form ({found}) than was asked for")

    # -- errors -------------------------------------------------------------

    def _fail(self, response: Any) -> NoReturn:
        """Raise what a status means that is no success."""
        status = self._said(f"{response.status} {response.reason}".strip())
        if response.status in _GONE:
            raise FileNotFoundError(errno.ENOENT, f"not found ({status})", self.name)
        if response.status in _REFUSED:
            raise PermissionError(errno.EACCES, f"access was refused ({status})", self.name)
        if response.status in _TRANSIENT:
            asked = re.fullmatch("[0-9]{1,5}", response.headers.get("Retry-After", ""))
            raise TransientError(f"the server answered {status}", float(asked[0]) if asked else 0.0)
        raise OSError(f"{self.name}: the server answered {status}")

    def _refuse(self, what: str) -> NoReturn:
        raise OSError(f"{self.name}: the server sent {self._said(what)}")

    def _said(self, text: str) -> str:
        """Return what a server said, which may repeat the request."""
        return printable(hide_secrets(text, self._location)[:200])

    def abort(self) -> None:
        self._connections.abort()

    def close(self) -> None:
        self._connections.close()


def _understood(name: str, options: Mapping[str, Any]) -> tuple[dict[str, str], float | None]:
    """Return headers and time limit from fsspec's options for HTTP."""
    client = dict(options.get("client_kwargs") or {})
    unknown = [
        *(options.keys() - {"headers", "timeout", "ssl", "client_kwargs"}),
        *(client.keys() - {"headers", "auth", "timeout"}),
    ]
    if unknown:
        raise UnsupportedError(
            "the store does not have these options",
            path=name,
            found=", ".join(sorted(unknown)),
            expected="headers, timeout, ssl, client_kwargs with headers, auth or timeout",
        )
    auth = client.get("auth")
    headers = {} if auth is None else basic_auth(quote(auth[0]), quote(auth[1]))
    headers |= {**(client.get("headers") or {}), **(options.get("headers") or {})}
    _check_headers(headers)
    return headers, timeout_in({**client, **options})


def _check_headers(headers: Mapping[str, Any]) -> None:
    """Refuse a header that `http.client` would refuse with a message that shows its value."""
    for name, value in headers.items():
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        if _HEADER_NAME.fullmatch(name) is None:
            raise UnsupportedError("the name of a header has a character that is not allowed")
        if not _HEADER_VALUE.fullmatch(text):
            raise UnsupportedError(
                f"the value of the header {name} has a line break, or a character outside Latin-1",
                remedy="If it was read from a file, use value.strip().",
            )


def _version(response: Any, size: int) -> Version:
    """Return the version in an answer.

    A time is left out if the object may have been replaced since, in the same second
    (RFC 9110, 8.8.2.2), and so is an ETag that nginx made of this time.
    """
    get = response.headers.get
    version = Version(size, get("ETag", "").strip(), get("Last-Modified", "").strip())
    if version.modified != get("Date", "").strip():
        return version
    if _is_made_of_time(version):
        return Version(size)
    return version if version.strong_tag else version._replace(modified="")


def _is_made_of_time(version: Version) -> bool:
    """Return whether an ETag is the time in seconds and the size, as that of nginx is."""
    try:
        seconds = int(parsedate_to_datetime(version.modified).timestamp())
    except (ValueError, OverflowError):
        return False
    return version.tag == f'"{seconds:x}-{version.size:x}"'


def _is_new(response: Any, version: Version) -> bool:
    """Return whether an object has a time that counts only after a second, and no better tag."""
    return "Last-Modified" in response.headers and not version.is_known
