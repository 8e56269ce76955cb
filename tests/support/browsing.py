"""A real browser for tests of pages: headless Chromium, and what a user does with it.

Owns how widgets are found and used. They lie in shadow trees, which `Browser.find` looks into.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import Any

from npzkit.datasets.reopened import kept_open

__all__ = ["CHROMIUM", "Browser", "browser", "why_no_browser", "why_no_chromium"]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
_FILES = 256
"""Files that Chromium needs to have open: it ends with SIGTRAP under ``ulimit -n 64``."""
_FIND = """
const [selector, text] = arguments
const found = []
function look(root) {
  for (const element of root.querySelectorAll("*")) {
    if (element.matches(selector) && element.textContent.includes(text)) found.push(element)
    if (element.shadowRoot) look(element.shadowRoot)
  }
}
look(document)
return found
"""


def why_no_chromium() -> str | None:
    """Return what is missing for Chromium, or None."""
    if CHROMIUM is None:
        return "Chromium is not installed"
    if kept_open(_FILES // 4) < _FILES // 4:
        return "Chromium needs more open files than this process may have"
    return None


def why_no_browser() -> str | None:
    """Return what is missing for a browser, or None."""
    if missing := why_no_chromium():
        return missing
    if shutil.which("chromedriver") is None:
        return "there is no chromedriver"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "there is no selenium"
    return None


class Browser:
    """A browser, and what a user does with a page of npzkit."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, is_so: Any, seconds: float = 20) -> Any:
        """Wait until something is so, and return it."""
        end = time.monotonic() + seconds
        while not (found := is_so()):
            assert time.monotonic() < end, f"this is not so: {self.errors()}"
            time.sleep(0.03)
        return found

    def open(self, url: str) -> None:
        """Open a page, and wait until all that it shows was read."""
        self.driver.get(url)
        self.loaded()

    def reload(self) -> None:
        self.driver.refresh()
        self.loaded()

    def loaded(self) -> None:
        """Wait for the page and what it shows at first."""
        self.until(lambda: self.run("return window.Bokeh?.documents?.length > 0"))
        self.settle()

    def settle(self) -> None:
        """Wait until the page has done all that was asked for."""
        time.sleep(0.05)
        self.until(lambda: "Reading" not in (self.value("status", "text") or ""))

    def value(self, name: str, attribute: str) -> Any:
        """Return an attribute of a widget."""
        return self.run(
            "return Bokeh.documents[0].get_model_by_name(arguments[0])?.[arguments[1]]",
            name, attribute,
        )  # fmt: skip

    def column(self, name: str) -> list[str]:
        """Return a column of the tree."""
        return list(
            self.run(
                "const s = Bokeh.documents[0].get_model_by_name('tree').source.data[arguments[0]];"
                "return Array.from(s)",
                name,
            )
        )

    def find(self, selector: str, text: str = "") -> list[Any]:
        """Return the elements of the page, and of its widgets, that match and have a text."""
        return list(self.run(_FIND, selector, text))

    def html(self, selector: str, text: str = "") -> list[str]:
        """Return what is in the elements that match and have a text."""
        script = _FIND.replace("return found", "return found.map(element => element.innerHTML)")
        return list(self.run(script, selector, text))

    def with_text(self, selector: str, text: str) -> Any:
        """Return the first element that matches and has a text."""
        return self.until(lambda: next(iter(self.find(selector, text)), None), 10)

    def click(self, selector: str, text: str) -> None:
        """Click what matches and has a text, and wait for what that does."""
        from selenium.common.exceptions import StaleElementReferenceException

        def is_clicked() -> bool:
            # The table may draw its rows again just now.
            with contextlib.suppress(StaleElementReferenceException):
                self.with_text(selector, text).click()
                return True
            return False

        self.until(is_clicked)
        self.settle()

    def choose(self, key: str) -> None:
        """Click a row of the tree."""
        self.click(".slick-cell.l0", key)

    def widget(self, name: str, selector: str) -> Any:
        """Return an element in the widget of a name."""
        return self.run(
            "const view = Bokeh.index.find_one_by_id("
            "  Bokeh.documents[0].get_model_by_name(arguments[0]).id);"
            "return view.shadow_el.querySelector(arguments[1])",
            name, selector,
        )  # fmt: skip

    def enter(self, name: str, text: str, selector: str = "input") -> None:
        """Replace the text of an input, and press Enter."""
        element = self.widget(name, selector)
        element.clear()
        element.send_keys(text + "\n")
        self.settle()

    def select(self, name: str, option: str) -> None:
        """Choose an option of a select widget."""
        from selenium.webdriver.support.ui import Select

        Select(self.widget(name, "select")).select_by_visible_text(option)
        self.settle()

    def figure(self) -> Any:
        """Return the first figure's canvas."""
        return self.until(lambda: next(iter(self.find(".bk-Canvas, .bk-canvas")), None), 10)

    def point(self, right: int = 0, down: int = 0) -> None:
        """Move the mouse over the figure, from its middle."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).move_to_element_with_offset(self.figure(), right, down).pause(
            0.1
        ).perform()

    def scroll(self, amount: int) -> None:
        """Turn the mouse wheel over the figure."""
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

        origin = ScrollOrigin.from_element(self.figure(), 0, 0)
        ActionChains(self.driver).scroll_from_origin(origin, 0, amount).perform()
        self.settle()

    def leave(self) -> None:
        """Leave a page before its server ends; the page had no error."""
        assert self.errors() == []
        self.driver.get("about:blank")

    def errors(self) -> list[str]:
        """Return the errors in the console since the last call."""
        return [
            row["message"] for row in self.driver.get_log("browser") if row["level"] == "SEVERE"
        ]


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 800, *, is_dark: bool = False) -> Iterator[Browser]:
    """Start a browser without a window, and end it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--force-device-scale-factor=1", "--hide-scrollbars", f"--window-size={width},{height}",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield Browser(driver)
    finally:
        driver.quit()
