"""The guide's pictures show what the commands print."""

from __future__ import annotations

import html
import importlib.util
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "pictures"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pty module")


def recorder():
    spec = importlib.util.spec_from_file_location("draw_pictures", FOLDER / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(picture: str) -> list[str]:
    """The words of a picture in SVG, without those of its frame."""
    texts = re.findall(r"<text[^>]*clip-path[^>]*>([^<]*)</text>", picture)
    return " ".join(html.unescape(text).replace("\xa0", " ") for text in texts).split()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ls", "show"])
def test_a_picture_is_what_the_command_prints(name):
    """Drawn again, the picture has the same words; it fetches nothing."""
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(words(kept)) > 20
    assert words(recorder().draw(name)) == words(kept)
    assert re.findall(r"https?://(?!www\.w3\.org/|www\.textualize\.io)\S+", kept) == []
