"""The page as a person uses it, in headless Chromium."""

import os
import shutil

import pytest
from test_page import grid, page

from fedsyn_flwr.report.page.render import html

pytestmark = pytest.mark.browser

CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)


@pytest.fixture(scope="module")
def chromium():
    sync = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[browser]'")
    if not CHROMIUM:
        pytest.skip("Chromium is absent: apt-get install chromium, or set CHROMIUM to its path")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """The page of a grid, and what its console and network did."""
    file = tmp_path / "page.html"
    file.write_text(html(page(grid(tmp_path / "runs"))), encoding="utf-8")
    tab, seen = chromium.new_page(color_scheme="light"), []
    tab.on("console", lambda m: seen.append(m.text))
    tab.on("pageerror", lambda e: seen.append(str(e)))
    tab.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:")) else seen.append(r.url)
    )
    tab.goto(file.as_uri())
    yield tab
    assert seen == []
    tab.close()


def first_cells(tab):
    return tab.eval_on_selector_all("#table tbody th", "all => all.map(e => e.innerText)")


def visible(tab):
    return tab.evaluate("document.querySelector('.plot').data.map(t => t.visible)")


def test_a_heading_sorts(opened):
    assert first_cells(opened)[0].startswith("fedavg")
    head = opened.get_by_role("button", name="final accuracy").last
    head.focus()
    opened.keyboard.press("Enter")
    opened.keyboard.press("Enter")
    assert first_cells(opened)[0].startswith("hfmds")
    assert opened.locator("#table th[aria-sort=descending]").inner_text().startswith("final")


def test_a_group_is_toggled_and_axes_become_logarithmic(opened):
    assert set(visible(opened)) == {True}
    opened.get_by_role("checkbox", name="hfmds").uncheck()
    assert visible(opened) == [True] * 3 + [False] * 3
    opened.get_by_label("logarithmic y").check()
    kind = "document.querySelector('.plot').layout.yaxis.type"
    assert opened.evaluate(kind) == "log"


def test_hovering_tells_value_and_range(opened):
    plot = opened.locator(".plot").first
    plot.scroll_into_view_if_needed()
    box = plot.locator(".scatterlayer .point").last.bounding_box()
    opened.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "3 seeds" in plot.locator(".hoverlayer .hovertext").first.text_content(timeout=5000)


def test_the_theme_is_switched_and_paper_is_white(opened):
    background = "getComputedStyle(document.body).backgroundColor"
    opened.get_by_role("button", name="Dark colours").click()
    assert opened.evaluate(background) == "rgb(20, 24, 29)"
    assert opened.evaluate("document.querySelector('.plot').layout.paper_bgcolor") == "#14181d"
    opened.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.evaluate(background) == "rgb(255, 255, 255)"
    opened.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert opened.evaluate(background) == "rgb(20, 24, 29)"


def test_it_prints(opened):
    assert opened.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_axe_finds_nothing_serious_and_nothing_overflows(opened, theme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    opened.set_viewport_size({"width": width, "height": 900})
    opened.emulate_media(color_scheme=theme)
    opened.reload()
    assert opened.evaluate("document.documentElement.dataset.theme") == theme
    found = axe.Axe().run(opened).response
    assert len(found["passes"]) > 10  # it did look
    assert [v["id"] for v in found["violations"] if v["impact"] in ("serious", "critical")] == []
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert opened.evaluate(sideways) <= 0
