"""The report page in a browser (headless Chromium): it loads clean, fits phones and desks, works by keyboard, passes axe-core."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sizing.cli.main import run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OF_COLOURS = ["color-contrast", "link-in-text-block"]  # rules of axe
WIDTHS, SCHEMES = (360, 1440), ("light", "dark")
PAGES = {
    "rate": ["chat", "-g", "h100-sxm,h200-sxm"],
    "in_flight": ["chat", "-g", "h100-sxm", "--concurrency", "200", "--no-verify"],
    "infeasible": ["chat", "-g", "l4", "--tp", "1", "--no-verify"],
}

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in PAGES}
    for name, arguments in PAGES.items():
        assert run(["report", *arguments, "-o", str(found[name])]) == (1 if name == "infeasible" else 0)
    return found


@pytest.fixture(params=[(w, s) for w in WIDTHS for s in SCHEMES], ids=lambda p: f"{p[0]}-{p[1]}")
def tab(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    """A tab of a width and a colour scheme, which scrolls at once; `said` collects what the page complains of, `asked` what it requests."""
    width, scheme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.said, page.asked, page.width, page.scheme = [], [], width, scheme
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda sent: page.asked.append(sent.url))
    yield page
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_clean_alone_and_without_scrolling_sideways(name: str, tab: Any, files: dict[str, Path]) -> None:
    tab.goto(files[name].as_uri())
    assert tab.said == []
    assert [url for url in tab.asked if not url.startswith("data:")] == [files[name].as_uri()]
    tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= tab.width


@pytest.mark.parametrize("name", PAGES)
def test_a_page_passes_axe(name: str, tab: Any, files: dict[str, Path]) -> None:
    """In the dark, which changes colours and nothing else, by the rules that read colours."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    tab.goto(files[name].as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    rules = {} if tab.scheme == "light" else {"runOnly": OF_COLOURS}
    found = axe.Axe().run(tab, options={"resultTypes": ["violations"], **rules}).response
    told = [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found["violations"]]
    assert told == []
    assert "color-contrast" in {one["id"] for one in found["passes"]}


def test_charts_show_every_point(tab: Any, files: dict[str, Path]) -> None:
    tab.goto(files["rate"].as_uri())
    document = json.loads(tab.inner_text("#document") or tab.text_content("#document"))
    points = sum(len(line["points"]) for line in document["rates"])
    charts = tab.locator("svg.chart")
    assert charts.count() == 2  # the limits on TTFT and ITL
    for index in range(charts.count()):
        chart = charts.nth(index)
        assert chart.locator(".dot").count() == points
        assert chart.locator("polyline").count() == len(document["rates"])
        assert chart.locator(".limit line").count() == 1 and chart.locator(".ring").count() == 1
        outer, *dots = chart.evaluate(
            "chart => [chart, ...chart.querySelectorAll('.dot')].map(one => one.getBoundingClientRect().toJSON())"
        )
        assert outer["x"] >= 0 and outer["x"] + outer["width"] <= tab.width and outer["height"] > 150
        assert len(dots) == points
        for box in dots:
            assert outer["x"] <= box["x"] and box["x"] + box["width"] <= outer["x"] + outer["width"]
            assert outer["y"] <= box["y"] and box["y"] + box["height"] <= outer["y"] + outer["height"]
        sizes = chart.locator("text").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
        assert min(sizes) >= 8.5  # CSS pixels: small print, but legible on a phone


def test_no_figure_of_a_table_is_out_of_sight(tab: Any, files: dict[str, Path]) -> None:
    """A phone shows each row of a wide table as a list, so that nothing is to the right of the screen."""
    tab.goto(files["rate"].as_uri())
    for chapter in ("#answer", "#comparison", "#sensitivity", "#figures, #question", "#assumptions"):
        cells = tab.locator(", ".join(f"{one} tbody :is(th, td)" for one in chapter.split(", ")))
        boxes = cells.evaluate_all(
            "all => all.map(one => [one.textContent, one.getBoundingClientRect().x, one.scrollWidth])"
        )
        assert boxes and [box for box in boxes if box[1] < 0 or box[1] + box[2] > tab.width + 1] == [], chapter
    if tab.width < 600:
        named = tab.locator("#sensitivity tbody td").first.evaluate("one => getComputedStyle(one, '::before').content")
        assert named == '"change"'


def test_the_decision_is_on_the_first_screen(tab: Any, files: dict[str, Path]) -> None:
    for name in ("rate", "infeasible"):
        tab.goto(files[name].as_uri())
        assert tab.locator(".verdict .icon").is_visible()
        box = tab.locator(".tiles .value").first.bounding_box()
        assert box["y"] + box["height"] <= 800


def test_the_memory_bar_fills_its_width(tab: Any, files: dict[str, Path]) -> None:
    tab.goto(files["rate"].as_uri())
    bar = tab.locator("svg.bar")
    widths = bar.locator("rect").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    assert sum(widths) == pytest.approx(bar.bounding_box()["width"], rel=0.01)
    m = json.loads(tab.text_content("#document"))["estimate"]["memory"]
    assert widths[0] / sum(widths) == pytest.approx(m["weights_gib"] / m["visible_gib"], abs=0.01)


def test_the_keyboard_reaches_everything(tab: Any, files: dict[str, Path]) -> None:
    tab.goto(files["rate"].as_uri())
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().top") >= 0  # it shows itself
    tab.keyboard.press("Enter")
    assert tab.evaluate("location.hash") == "#answer"
    tab.evaluate(
        """() => {
            [window.reached, window.left] = [[], false];
            addEventListener('focusin', ({ target }) => reached.push([target.tagName, getComputedStyle(target).outlineStyle]));
            addEventListener('focusout', ({ relatedTarget }) => { left ||= relatedTarget === null; });
        }"""
    )
    for _ in range(15):
        for _ in range(20):  # each question to the page takes longer than a key
            tab.keyboard.press("Tab")
        if tab.evaluate("left"):
            break
    reached = tab.evaluate("reached")
    assert [at for at in reached if at[1] == "none"] == []  # what has the focus shows it
    assert {"A", "svg", "DIV", "SUMMARY", "PRE"} <= {at[0] for at in reached}


def test_arrow_keys_and_the_pointer_tell_the_points(tab: Any, files: dict[str, Path]) -> None:
    tab.goto(files["rate"].as_uri())
    chart = tab.locator("svg.chart").first
    tip = tab.locator(".plot .tip").first
    chart.focus()
    tab.keyboard.press("ArrowRight")
    first = tip.text_content()
    assert "requests/s a replica" in first and "TTFT p95" in first
    tab.keyboard.press("ArrowRight")
    assert tip.text_content() != first
    tab.keyboard.press("Escape")
    assert tip.text_content() == ""
    dot = chart.locator(".dot.chosen")
    dot.scroll_into_view_if_needed()
    box = dot.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert tip.text_content() == dot.locator("title").text_content()


def test_a_summary_opens_its_table(tab: Any, files: dict[str, Path]) -> None:
    tab.goto(files["rate"].as_uri())
    table = tab.locator("#curves details table").first
    assert not table.is_visible()
    tab.locator("#curves summary").first.focus()
    tab.keyboard.press("Enter")
    assert table.is_visible()


def test_print_shows_what_is_folded(tab: Any, files: dict[str, Path]) -> None:
    tab.goto(files["rate"].as_uri())
    tab.emulate_media(media="print", color_scheme="light")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("#curves details table").first.is_visible()
    assert not tab.locator("nav").is_visible()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_without_scripts_charts_and_tables_are_there(browser: Any, files: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(files["rate"].as_uri())
    assert page.locator("svg.chart .dot title").count() > 20
    assert page.locator("table").count() >= 5
    context.close()
