"""Take the guide's pictures of the page of `npzkit view`, in a real browser.

Run `python tests/pictures/look.py`. Needs Bokeh, selenium, Pillow and Chromium.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import npzkit
import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

from browsing import browser  # noqa: E402


def arrays() -> dict[str, np.ndarray]:
    """Return what a simulation of heat might save."""
    y, x = np.mgrid[:240, :360] / 60
    times = np.arange(40)[:, None, None] / 8
    waves = np.sin(x * 2 - times) * np.cos(y * 3) + np.exp(-((x - 3) ** 2 + (y - 2) ** 2) * 4)
    field = (20 + 4 * waves).astype("f4")
    field[17, 130:134, 200:204] = 48
    field[17, 20:30, 20:40] = np.nan
    rng = np.random.default_rng(0)
    return {
        "simulation/temperature": field,
        "simulation/mask": x + y > 4,
        "simulation/time": times.reshape(-1),
        "sensors/signal": np.cumsum(rng.normal(size=200_000)).astype("f4"),
        "sensors/names": np.array([f"sensor {i}" for i in range(12)]),
        "model/encoder/weight": rng.normal(size=(256, 512)).astype("f4"),
        "model/encoder/bias": np.zeros(512, "f4"),
        "model/decoder/weight": rng.normal(size=(512, 256)).astype("f4"),
        "camera/frames": (np.stack([x * 60, y * 60, x * y * 10], -1) % 256).astype("u1"),
    }


def take(page, name: str) -> None:
    from PIL import Image

    image = Image.open(io.BytesIO(page.driver.get_screenshot_as_png())).convert("RGB")
    # Few colours take less room, and rare ones are kept by this method.
    few = image.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(HERE / f"{name}.png", optimize=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run7.npz"
        npzkit.save(path, arrays(), metadata={"run": 7, "solver": "implicit"})
        other = Path(folder) / "run8.npz"
        changed = arrays()
        changed["simulation/temperature"] += np.linspace(0, 1, 360, dtype="f4")
        npzkit.save(other, changed)
        link = "key=simulation%2Ftemperature&at=17"
        with npzkit.view(path) as viewer, browser(width=1280, height=760) as page:
            page.open(f"{viewer.url}?{link}")
            page.point(40, 30)
            take(page, "view")
        with npzkit.view(path, other) as viewer:
            with browser(width=1280, height=760, is_dark=True) as page:
                page.open(f"{viewer.url}?{link}&other_archive=1&other_key=simulation%2Ftemperature")
                take(page, "view-dark")
            with browser(width=900, height=620) as page:
                page.open(f"{viewer.url}?key=sensors%2Fsignal")
                page.point(40, 30)
                take(page, "view-small")
            with browser(width=900, height=620, is_dark=True) as page:
                page.open(f"{viewer.url}?key=simulation%2Ftemperature&view=histogram")
                take(page, "view-small-dark")


if __name__ == "__main__":
    main()
