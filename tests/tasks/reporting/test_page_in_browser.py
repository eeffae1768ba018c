"""What a reader does with the page, in a browser that may speak to nobody."""

from pathlib import Path

import numpy as np
import pytest
import report_results
from browsers import CHROMIUM
from waiting import PAGE_S

from singleshot.rl.evaluation.drawing import write_video

pytest.importorskip("playwright.sync_api")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")]
PLAYING = "[...document.querySelectorAll('video')].slice(0, 2).map(video => !video.paused)"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page of a small run, its agents in motion for 10 seconds."""
    root = report_results.write_results(tmp_path_factory.mktemp("run"))
    for video in root.rglob("animation.mp4"):
        write_video(video, (np.full((60, 80, 3), i, np.uint8) for i in range(200)), 20)
    output = tmp_path_factory.mktemp("page") / "out"
    report_results.draw(root, output)
    return (output / "index.html").as_uri()


@pytest.fixture
def open_page(browser, address):
    contexts, troubles = [], []

    def open_(width=1400, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        context.set_default_timeout(1000 * PAGE_S)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert troubles == []


def test_agents_move_in_sight_and_not_for_who_asked_for_less(open_page):
    page = open_page()
    page.wait_for_function(f"{PLAYING}[0]")
    assert page.evaluate(PLAYING) == [True, False]
    page.evaluate("document.querySelectorAll('video')[1].scrollIntoView()")
    page.wait_for_function(f"!{PLAYING}[0] && {PLAYING}[1]")
    still = open_page(reduced_motion="reduce")
    still.wait_for_function("document.querySelector('video').readyState > 1")
    assert still.evaluate(PLAYING) == [False, False]


def test_a_heading_sorts_its_table(open_page):
    page = open_page()
    page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    table = page.locator("#return table").filter(has_text="score").last
    heading = table.get_by_role("columnheader", name="score", exact=True)
    column = heading.evaluate("each => each.cellIndex") + 1
    read = lambda: [float(text) for text in table.locator(f"td:nth-child({column})").all_inner_texts()]  # noqa: E731
    before = read()
    heading.get_by_role("button").click()
    assert read() == sorted(before) != before
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.get_by_role("button").press("Enter")
    assert read() == sorted(before, reverse=True)


def test_a_figure_gives_its_table(open_page):
    page = open_page()
    with page.expect_download() as download:
        page.locator("#return a.csv").first.click()
    assert download.value.suggested_filename == "statistics.csv"
    assert "retention" in Path(download.value.path()).read_text(encoding="utf-8")


def test_paper_gets_stills_on_white(open_page):
    page = open_page(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) != "rgb(255, 255, 255)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    assert page.locator("video:visible").count() == 0
    assert page.locator("img.still:visible").count() == 4
    assert page.locator("nav:visible").count() == 0
