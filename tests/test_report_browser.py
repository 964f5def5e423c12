"""How the report shows in a browser: it fits, stands out, and asks nobody."""

import json
import re
import shutil

import numpy as np
import pytest
from report_records import (
    RECORDS,
)

from userdp.report import report_html

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages():
    return {name: report_html(record) for name, record in RECORDS.items()}


WIDTHS = (1280, 400)
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
# Boxes of what is seen; of slanted labels a box says nothing.
LAYOUT = """
const box = e => {
  const r = e.getBoundingClientRect();
  return [r.left, r.top, r.right, r.bottom, e.textContent.trim().slice(0, 40)];
};
const all = (query, from = document) =>
  [...from.querySelectorAll(query)].filter(e => e.checkVisibility() && e.getBoundingClientRect().width > 0).map(box);
return {
  scroll: document.documentElement.scrollWidth,
  width: window.innerWidth,
  svgs: [...document.querySelectorAll("svg")].map(box),
  blocks: all("h1, h2, h3, section p, header p, figure, .banner, .tile, .scroll, pre, li"),
  labels: [...document.querySelectorAll("svg")].map(s => all("text:not([transform*='rotate(-45'])", s)),
};
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs chromium and chromedriver (Debian: apt install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    chrome.get("about:blank")  # away from the browser's own first page
    yield chrome
    chrome.quit()


def show(browser, path, width, scheme="light"):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen", "features": features})
    browser.get(path.as_uri())
    return browser.execute_script(LAYOUT)


def overlap(one, other):
    """The shared fraction of the smaller of two boxes."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    areas = [(right - left) * (bottom - top) for left, top, right, bottom, _ in (one, other)]
    return max(0, across) * max(0, down) / max(1e-9, min(areas))


@pytest.mark.parametrize("name", RECORDS)
def test_in_a_browser_it_fits_and_asks_nobody(browser, pages, tmp_path, name):
    path = tmp_path / f"{name}.html"
    path.write_text(pages[name], encoding="utf-8")
    browser.get_log("browser")
    browser.get_log("performance")
    for width in WIDTHS:
        found = show(browser, path, width)
        assert found["width"] == width
        assert found["scroll"] <= width
        assert found["svgs"]
        for left, top, right, bottom, _ in found["svgs"]:
            assert right - left > 250
            assert bottom - top > 30
        for labels in found["labels"]:
            assert [(a[4], b[4]) for k, a in enumerate(labels) for b in labels[:k] if overlap(a, b) > 0.3] == []
        blocks = found["blocks"]
        clashes = [(a[4], b[4]) for k, a in enumerate(blocks) for b in blocks[:k] if 0.05 < overlap(a, b) < 0.95]
        assert clashes == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert path.as_uri() in asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_in_a_browser_the_budget_is_read_on_a_phone_without_scrolling(browser, pages, tmp_path):
    path = tmp_path / "logistic.html"
    path.write_text(pages["logistic"], encoding="utf-8")
    sizes = "const t = document.querySelector('.stacked'); return [t.scrollWidth, t.parentElement.clientWidth];"
    for width, stacked in ((390, True), (1280, False)):
        show(browser, path, width)
        wide, room = browser.execute_script(sizes)
        assert wide <= room
        head = browser.find_element("css selector", ".stacked thead")
        assert head.is_displayed() is not stacked


def test_in_a_browser_the_red_banner_is_seen_first(browser, pages, tmp_path):
    path = tmp_path / "seeded.html"
    path.write_text(pages["seeded"], encoding="utf-8")
    for width in WIDTHS:
        show(browser, path, width)
        banner = browser.find_element("class name", "red")
        assert banner.is_displayed()
        assert banner.rect["y"] < 300
        assert "NOT PRIVATE" in banner.text
        assert banner.value_of_css_property("background-color") == "rgba(176, 0, 32, 1)"


def test_in_a_browser_text_stands_out_in_light_and_dark(browser, pages, tmp_path):
    path = tmp_path / "logistic.html"
    path.write_text(pages["logistic"], encoding="utf-8")
    shades = {}
    for scheme in ("light", "dark"):
        show(browser, path, 1280, scheme)
        colours = browser.execute_script(
            "return [getComputedStyle(document.querySelector('section')).backgroundColor, "
            "...[...document.querySelectorAll('svg text, p, td, h2')].map(e => getComputedStyle(e).color), "
            "...[...document.querySelectorAll('svg text')].map(e => getComputedStyle(e).fill)]"
        )
        paper, *inks = (brightness(colour) for colour in colours)
        shades[scheme] = paper
        assert all(max(paper, ink) + 0.05 > 4.5 * (min(paper, ink) + 0.05) for ink in inks)  # WCAG AA
    assert shades["light"] > 0.9 > 0.1 > shades["dark"]


def brightness(colour):
    """Relative luminance."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))
