"""Chromium, headless and without services of its own, for tests that look at pages as a person would."""

import contextlib
import shutil

import pytest
from waiting import PAGE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]  # fmt: skip
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""Pixels that a page has to be scrolled sideways by, as a script."""


@contextlib.contextmanager
def chromium():
    """A browser of Playwright's; the test is skipped where either is missing."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    with playwright.sync_playwright() as driver:
        options = {"executable_path": CHROMIUM, "args": ARGUMENTS, "timeout": 1000 * PAGE_S}
        launched = driver.chromium.launch(**options)
        yield launched
        launched.close()
