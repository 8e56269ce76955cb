"""The buttons that save what is shown, and the link to it.

Owns what a link looks like for somebody who has the same file. `npzkit.viewer.exports`
makes the files.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from typing import Any

from bokeh.layouts import row
from bokeh.models import Button, CustomJS, Div, Toggle

from npzkit.errors import printable
from npzkit.viewer.archives import ShownArchive
from npzkit.viewer.browser_files import browser_file
from npzkit.viewer.exports import can_be_csv
from npzkit.viewer.shown import Shown
from npzkit.viewer.views import items_of


def caption_of(archives: Sequence[ShownArchive], shown: Shown) -> str:
    """Return what a picture shows: the file, the key, and the part as in Python.

    Examples
    --------
    >>> caption_of([], Shown(key="noise", view="image", at=(3, 0, 0), down=1, across=2))
    'noise[3, :, :]'
    """
    names = [(shown.archive, shown.key), (shown.other_archive, shown.other_key)]
    found = [
        f"{f'{archives[number].label}: ' if archives else ''}{key}"
        for number, key in names if key is not None
    ]  # fmt: skip
    field = "" if shown.field is None else f"[{shown.field!r}]"
    is_part = shown.view != "histogram"
    windows = {shown.down: shown.rows, shown.across: shown.columns} if is_part else {}
    places = [
        ":".join(map(str, windows.get(axis) or ("", ""))) if isinstance(item, slice) else str(item)
        for axis, item in enumerate(items_of(shown, len(shown.at)))
    ]
    part = f"{field}[{', '.join(places)}]" if places else field
    return printable(" | ".join(f"{name}{part}" for name in found))


class SaveButtons:
    """The buttons of one page.

    Parameters
    ----------
    archives : sequence of ShownArchive
    style : list of bokeh.models.StyleSheet

    Attributes
    ----------
    widgets : list of bokeh.models.Widget
    link : bokeh.models.LayoutDOM
        Where the link appears, with a button that copies it.
    """

    def __init__(self, archives: Sequence[ShownArchive], style: list[Any]) -> None:
        self._archives = archives
        self._files = Div(text="", name="files", stylesheets=style, disable_math=True)
        self._name = Div(visible=False, tags=["npzkit.png", ""])
        self._png = Button(label="Save PNG", name="png", stylesheets=style, width=86)
        self._png.js_on_click(CustomJS(args={"name": self._name}, code=browser_file("save_png.js")))
        self._link = Toggle(label="Link", name="link", stylesheets=style, width=60)
        self._shown_link = Div(
            text="", name="shown_link", stylesheets=style, disable_math=True,
            sizing_mode="stretch_width",
        )  # fmt: skip
        self._copy = Button(label="Copy", name="copy", tags=[""], width=60, stylesheets=style)
        copy = CustomJS(args={"button": self._copy}, code=browser_file("copy.js"))
        self._copy.js_on_click(copy)
        self.link = row(
            self._copy, self._shown_link, visible=False, sizing_mode="stretch_width"
        )  # fmt: skip
        self._link.js_link("active", self.link, "visible")
        self.widgets = [self._png, self._files, self._link]

    def show(self, shown: Shown, link: str) -> None:
        """Let the buttons save what is shown."""
        is_figure = shown.view not in {None, "table"}
        self._png.disabled = not is_figure
        key = "".join(sign if sign.isalnum() else "_" for sign in str(shown.key))[-60:]
        self._name.tags = [f"{key}.png", caption_of(self._archives, shown)]
        suffixes = ["npy", "csv"] if can_be_csv(shown) else ["npy"]
        self._files.text = '<span class="soft">slice</span> ' + " ".join(
            f'<a class="save" href="save/slice.{suffix}?{escape(link)}" download>.{suffix}</a>'
            for suffix in ([] if shown.view is None else suffixes)
        )
        names = " ".join(shlex.quote(archive.path) for archive in self._archives)
        command = f"npzkit view {names} --link {shlex.quote(link)}"
        self._copy.update(tags=[command], label="Copy")
        self._shown_link.text = (
            "To show the same to somebody who has the same file: "
            f"<br><code>{escape(printable(command))}</code>"
        )
