"""MLflow's pages, in a browser, of a finished run of the smoke profile."""

import contextlib
import os
import re
import signal
import urllib.parse
import urllib.request

import psutil
import pytest
from browsers import CHROMIUM
from playwright.sync_api import expect
from ports import free_port
from waiting import PAGE_S, PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")]


@pytest.fixture(scope="module")
def address(finished_smoke):
    """Where the command of `make ui` says that it serves the run."""
    port = free_port()
    server = finished_smoke.start("python", "-m", "pipelines", "ui", "--port", str(port))

    def answers():
        assert server.poll() is None, finished_smoke.output
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
            return True

    wait_until(answers, "MLflow's server answers")
    (told,) = re.findall(r"MLflow: (http://localhost:\d+/\S*)", finished_smoke.output)
    for view in ("table", "charts"):
        assert re.search(rf"{view}: {told}/\d+/runs\?\S+", finished_smoke.output)
    processes = psutil.Process(server.pid).children(recursive=True)
    yield told
    os.killpg(server.pid, signal.SIGINT)  # as a terminal does
    assert server.wait(PATIENCE_S) == 0
    assert "Traceback" not in finished_smoke.output
    assert not psutil.wait_procs(processes, timeout=PATIENCE_S)[1]


@pytest.fixture
def page(browser, address):
    """At the address that was told; no script of the pages may fail."""
    page = browser.new_page(viewport={"width": 2000, "height": 1200})
    page.set_default_timeout(1000 * PAGE_S)
    expect.set_options(timeout=1000 * PAGE_S)
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(address)
    page.get_by_role("button", name="Model training", exact=True).click()  # once: the browser remembers it
    yield page
    page.close()
    assert not errors


def experiment(page, stage):
    """Open a stage's experiment from the list, as a person does."""
    page.get_by_role("link", name=f"singleshot/{stage}", exact=True).click()
    page.wait_for_url(re.compile(r"/experiments/\d+/runs"))


def view(page, name):
    """Follow a link of an experiment's description, here rather than in a tab of its own."""
    link = page.get_by_role("link", name=name, exact=True)
    page.goto(urllib.parse.urljoin(page.url, link.get_attribute("href")))


def artifact(page, run, path):
    page.goto(
        urllib.parse.urljoin(
            page.url, f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts/{path}"
        )
    )


def test_agents_are_listed_by_what_differs(page):
    experiment(page, "train")
    view(page, "table")
    expect(page.get_by_text("6 matching runs")).to_be_visible()
    for variant in ("dense", "snip-0.95", "grasp-0.95"):
        for algorithm in ("bc", "bcq"):
            expect(page.get_by_text(f"seed-0 {variant} {algorithm} Hopper", exact=True)).to_be_visible()


def test_learning_curves_are_drawn(page):
    experiment(page, "train")
    view(page, "charts")
    expect(page.get_by_text("d4rl_score", exact=True).first).to_be_visible()
    curves = page.locator(".scatterlayer .trace path.js-line")
    wait_until(lambda: curves.count() >= 6, "a curve is drawn for each of six agents", PAGE_S)


def test_tables_and_pictures_are_shown(page, finished_smoke):
    for stage, table, column in (
        ("sizes", "sizes.csv", "ratio_to_dense"),
        ("benchmark", "timings.csv", "p50_ms"),
    ):
        (run,) = finished_smoke.runs(stage=stage, kind="stage")
        artifact(page, run, table)
        expect(page.get_by_role("columnheader", name=column).first).to_be_attached()
    (run,) = finished_smoke.runs(stage="train_style", kind="cell")
    artifact(page, run, "contact_sheet.jpg")
    picture = page.locator("img[src*='contact_sheet'], img[src^='blob:']").first
    expect(picture).to_be_visible()
    wait_until(lambda: picture.evaluate("image => image.naturalWidth") > 0, "the picture is loaded", PAGE_S)


def test_networks_are_registered_with_their_version(page, finished_smoke):
    page.goto(urllib.parse.urljoin(page.url, "#/models"))
    page.keyboard.press("Escape")  # a greeting
    expect(page.get_by_role("link", name="Hopper-bcq-snip-0.95-seed-0", exact=True)).to_be_visible()
    names = {model.name for model in finished_smoke.mlflow.search_registered_models()}
    assert len(names) == 8  # six agents, a style and a classifier
    assert {"styles-swirls", "classifiers-efficientnet_lite0"} <= names
    expect(page.get_by_text("current").first).to_be_visible()
