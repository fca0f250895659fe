"""report.html in headless Chromium: phone and desktop, light and dark. Screenshots stay in build/screenshots/."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchline.report import page
from batchline.report.data import gather
from tests.harness import ROOT

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium: apt-get install chromium chromium-driver")
WIDTHS = {"phone": 390, "desktop": 1280}

# WCAG 2.2, 1.4.3: contrast of every piece of text with what is behind it, 4.5 to 1, or 3 to 1 where it is large.
FAINT = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = channels(getComputedStyle(e).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement, style = getComputedStyle(element);
  if (!node.data.trim() || ["SCRIPT", "STYLE"].includes(element.tagName) || !element.getClientRects().length) continue;
  const [a, b] = [luminance(channels(style.color)), luminance(behind(element))].sort((x, y) => y - x);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
  if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) found.push(node.data.trim().slice(0, 40));
}
return found;
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = ("measure", "load", "plan")
    (evidence,) = gather([path for kind in kinds for path in (ROOT / "results").glob(f"{kind}-efficientnet_lite0-*.json")])
    return page.write([evidence], tmp_path_factory.mktemp("report")).page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def opened(browser: Any, report: Path, width: str, look: str) -> Any:
    size = {"width": WIDTHS[width], "height": 900, "deviceScaleFactor": 1, "mobile": width == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": look}]})
    browser.get_log("performance")  # what came before
    browser.get(report.as_uri())
    return browser


@pytest.mark.parametrize("look", ["light", "dark"])
@pytest.mark.parametrize("width", list(WIDTHS))
def test_the_page_reads_well(browser: Any, report: Path, width: str, look: str) -> None:
    shown = opened(browser, report, width, look)
    assert shown.get_log("browser") == [], "the console has something to say"
    asked = [entry["message"] for entry in shown.get_log("performance") if '"Network.requestWillBeSent"' in entry["message"]]
    assert asked and not [message for message in asked if '"url":"http' in message], "something was fetched"
    wide, window = shown.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window, "it runs over the side"
    images = shown.execute_script(
        "return [...document.images].map((i) => [i.complete && i.naturalWidth, i.alt, i.currentSrc.slice(0, 10)])"
    )
    assert images and all(width_px > 100 and len(alt) > 20 for width_px, alt, _ in images)
    assert shown.execute_script(FAINT) == []
    keep_screenshot(shown, f"report-{width}-{look}.png")


def test_dark_pictures_come_with_the_dark_page(browser: Any, report: Path) -> None:
    sources = [
        opened(browser, report, "desktop", look).execute_script("return document.images[0].currentSrc") for look in ("light", "dark")
    ]
    assert sources[0] != sources[1]


def test_a_mark_tells_its_values_to_pointer_and_keyboard(browser: Any, report: Path) -> None:
    shown = opened(browser, report, "desktop", "light")
    spot = shown.find_element("css selector", ".spot")
    told = spot.find_element("xpath", "./ancestor::figure").find_element("css selector", ".told")
    assert told.text == ""
    shown.execute_script("arguments[0].focus()", spot)
    assert told.text == spot.get_attribute("aria-label") != ""


def keep_screenshot(shown: Any, name: str) -> None:
    folder = ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    taken = shown.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": False})
    (folder / name).write_bytes(base64.b64decode(taken["data"]))
