"""The buttons that save what is shown.

Owns their names, and what a picture says of itself. `npzkit.viewer.exports` makes the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bokeh.models import Button, CustomJS, Div

from npzkit.errors import printable
from npzkit.viewer.archives import ShownArchive
from npzkit.viewer.shown import Shown, items_of
from npzkit.viewer.style import browser_file, text_div


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

    Attributes
    ----------
    widgets : list of bokeh.models.Widget
    """

    def __init__(self, archives: Sequence[ShownArchive]) -> None:
        self._archives = archives
        self._files = text_div("files", sizing_mode="inherit")
        self._name = Div(visible=False, tags=["npzkit.png", ""])
        self._png = Button(label="Save PNG", name="png", width=86)
        self._png.js_on_click(CustomJS(args={"name": self._name}, code=browser_file("save_png.js")))
        self.widgets = [self._png, self._files]

    def show(self, shown: Shown, link: str) -> None:
        """Let the buttons save what is shown."""
        is_figure = shown.view not in {None, "table"}
        self._png.disabled = not is_figure
        key = "".join(sign if sign.isalnum() else "_" for sign in str(shown.key))[-60:]
        self._name.tags = [f"{key}.png", caption_of(self._archives, shown)]
        has_rows = shown.view in {"image", "line", "table"}
        suffixes = ["npy", "csv"] if has_rows else ["npy"]
        self._files.text = '<span class="soft">slice</span> ' + " ".join(
            f'<a class="save" href="save/slice.{suffix}?{escape(link)}" download>.{suffix}</a>'
            for suffix in ([] if shown.view is None else suffixes)
        )
