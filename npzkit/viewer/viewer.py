"""`npzkit.view`: what users call, and what it returns.

Owns the life of a page: its archives are opened before the server starts, and closed
after it has ended.
"""

from __future__ import annotations

import contextlib
import time
import weakref
import webbrowser
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any, Self

from npzkit.errors import ClosedArchiveError, UnsupportedError
from npzkit.viewer.shown import Shown, format_link, parse_link

if TYPE_CHECKING:
    from npzkit.typing import ArchiveLike

_HEIGHT = 640
"""Pixels of the page in a notebook's cell."""
_WAITING_SECONDS = 0.5


def view(
    file: ArchiveLike,
    *more: ArchiveLike,
    link: str | None = None,
    port: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> Viewer:
    """Look at archives in the browser: a tree of keys, and the values of each array.

    The page reads only what it shows, so an archive may be larger than memory, or
    remote. In a notebook, the result of the call appears in the cell. Needs
    ``pip install "npzkit[view]"``.

    Parameters
    ----------
    file, *more : path, URL, bytes-like, file object or NpzFile
        As for `npzkit.open`; also .npy files. An `NpzFile` stays open.
    link : str, optional
        What to show at first: the address of a page that showed it, or its query.
    port : int
        0 chooses a free one.
    storage_options : dict, optional
        For the store of a URL; see `npzkit.open`.

    Returns
    -------
    Viewer
        ``show()`` opens the browser, ``close()`` ends the page.

    Raises
    ------
    UnsupportedError
        Bokeh is not installed.
    ValueError
        The link is damaged.
    OSError, NpzkitError
        As `npzkit.open`; or the port is in use.

    Notes
    -----
    The page is served to this machine only. Its address contains a random token,
    without which nothing is answered. Arrays of Python objects are not unpickled.
    If the notebook runs on another machine, forward the port of `Viewer.url`, such
    as by ``ssh -L``.

    Examples
    --------
    >>> import npzkit
    >>> with npzkit.view("fixtures/digits.npz") as viewer:  # doctest: +SKIP
    ...     viewer.show()
    """
    return Viewer((file, *more), link, port, storage_options)


class Viewer:
    """A page that shows archives, until it is closed. Made by `npzkit.view`.

    Close it, or use it in a ``with`` block. Otherwise it is there until Python ends.

    Attributes
    ----------
    url : str
        The address of the page. Whoever knows it can see the arrays.
    """

    def __init__(
        self,
        files: tuple[Any, ...],
        link: str | None,
        port: int,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        try:
            from npzkit.viewer.page import Page
            from npzkit.viewer.server import PageServer
        except ImportError as error:
            raise UnsupportedError(
                f"the page needs Bokeh ({error})",
                remedy='Install it: python -m pip install "npzkit[view]"',
            ) from error
        from npzkit.viewer.archives import open_archives

        first = Shown() if link is None else parse_link(link)
        pages: weakref.WeakSet[Any] = weakref.WeakSet()
        with contextlib.ExitStack() as stack:
            archives = open_archives(stack, files, storage_options)
            self._server: Any = PageServer(
                lambda document: pages.add(Page(document, archives, first)), port
            )
            self._opened = stack.pop_all()
        self._archives, self._pages = archives, pages
        query = format_link(first)
        self.url: str = self._server.url + (f"?{query}" if query else "")

    def __repr__(self) -> str:
        labels = ", ".join(archive.label for archive in self._archives)
        return f"<Viewer of {labels}, {'open' if self._server else 'closed'}>"

    def _repr_html_(self) -> str:
        if self._server is None:
            return f"<div>{escape(repr(self))}</div>"
        # What is saved with a notebook stays true when nobody serves the page any more.
        tables = "".join(archive.npz._repr_html_() for archive in self._archives)
        return (
            f'<iframe src="{escape(self.url)}" title="npzkit" width="100%" height="{_HEIGHT}" '
            'style="border:0"></iframe>'
            f"<details open><summary>The arrays, as a table</summary>{tables}</details>"
        )

    def show(self) -> bool:
        """Open the page in the browser, and return whether there is one.

        Raises
        ------
        ClosedArchiveError
            The page was closed.
        """
        if self._server is None:
            raise ClosedArchiveError(
                "the page is closed", remedy="Open another one with npzkit.view."
            )
        return webbrowser.open(self.url)

    def wait(self) -> None:
        """Wait until an interrupt, or until the page is closed."""
        while self._server is not None:
            time.sleep(_WAITING_SECONDS)

    def close(self) -> None:
        """End the page, and close the archives that were opened for it."""
        if self._server is not None:
            for page in list(self._pages):
                page.close()
            self._server.close()
            self._server = None
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
