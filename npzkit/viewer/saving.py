"""The buttons that save what is shown, and the link to it.

Owns what a link looks like for somebody who has the same file. `npzkit.viewer.exports`
makes the files.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from typing import Any

from bokeh.models import Button, CustomJS, Div, Toggle

from npzkit.errors import printable
from npzkit.viewer.archives import Archive
from npzkit.viewer.browser_files import browser_file
from npzkit.viewer.exports import can_be_csv
from npzkit.viewer.shown import Shown

__all__ = ["Saving"]


class Saving:
    """The buttons of one page.

    Parameters
    ----------
    archives : sequence of Archive
    style : list of bokeh.models.StyleSheet

    Attributes
    ----------
    widgets : list of bokeh.models.Widget
    shown_link : bokeh.models.Div
        Where the link appears.
    """

    def __init__(self, archives: Sequence[Archive], style: list[Any]) -> None:
        self._archives = archives
        self._files = Div(text="", name="files", stylesheets=style, disable_math=True)
        self._name = Div(visible=False, tags=["npzkit.png"])
        self._png = Button(label="Save PNG", name="png", stylesheets=style, width=86)
        self._png.js_on_click(CustomJS(args={"name": self._name}, code=browser_file("save_png.js")))
        self._link = Toggle(label="Link", name="link", stylesheets=style, width=60)
        self.shown_link = Div(
            text="", name="shown_link", visible=False, stylesheets=style, disable_math=True,
            sizing_mode="stretch_width",
        )  # fmt: skip
        self._link.js_on_change("active", CustomJS(
            args={"shown": self.shown_link}, code="shown.visible = this.active"
        ))  # fmt: skip
        self.widgets = [self._png, self._files, self._link]

    def show(self, shown: Shown, link: str) -> None:
        """Let the buttons save what is shown."""
        is_figure = shown.view not in {None, "table"}
        self._png.disabled = not is_figure
        key = "".join(sign if sign.isalnum() else "_" for sign in str(shown.key))[-60:]
        self._name.tags = [f"{key}.png"]
        suffixes = ["npy", "csv"] if can_be_csv(shown) else ["npy"]
        self._files.text = '<span class="soft">slice</span> ' + " ".join(
            f'<a class="save" href="save/slice.{suffix}?{escape(link)}" download>.{suffix}</a>'
            for suffix in ([] if shown.view is None else suffixes)
        )
        names = " ".join(shlex.quote(archive.path) for archive in self._archives)
        command = f"npzkit view {names} --link {shlex.quote(link)}"
        self.shown_link.text = (
            "To show the same to somebody who has the same file: "
            f"<br><code>{escape(printable(command))}</code>"
        )
