"""The page of a real run, in a real browser that may speak to nobody."""

import pytest
from browsers import TOO_WIDE
from waiting import PAGE_S

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.slow

BROKEN = "[...document.images].filter(image => !image.complete || !image.naturalWidth).length"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_shows_itself_whole_and_alone(finished_smoke, browser, width):
    context = browser.new_context(viewport={"width": width, "height": 844}, offline=True)
    context.set_default_timeout(1000 * PAGE_S)
    page = context.new_page()
    requests, troubles = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    address = (finished_smoke.path / "report/index.html").as_uri()
    page.goto(address)
    page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    page.wait_for_function(f"{BROKEN} == 0")
    assert page.locator("img").count() > 30
    assert page.evaluate(TOO_WIDE) == 0
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert troubles == []
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    assert page.locator("#run .answer").inner_text().startswith("Profile smoke: ")
    assert page.locator("#not-run").count() == 0  # the smoke profile runs a cell of all that the page shows
    context.close()
