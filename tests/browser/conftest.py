"""Debian's Chromium, as a headless shell started once per process, and page drivers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.page_driver import PageDriver
from tests.browser.similarity_tab import RESULT
from tests.conftest import RunningServer, skip_without
from tests.model.conftest import definitions, publish

__all__ = ["definitions", "publish"]

CHROMIUM = Path("/usr/bin/chromium-headless-shell")
SWITCHES = ["--headless", "--no-sandbox", "--disable-background-networking", "--disable-gpu"]
TWO_SENTENCES = ("He cashed a check at the bank.", "They sat on the bank of the river.")

NewDriver = Callable[..., PageDriver]


# Not session-scoped: Playwright's event loop in this thread would block asyncio tests in other packages.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.is_file():
        skip_without(str(CHROMIUM), "install the Debian package chromium-headless-shell")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield launched
        launched.close()


@pytest.fixture
def new_driver(browser: Browser, server: RunningServer) -> Iterator[NewDriver]:
    """Create drivers for the session's server or for `base`. Tests open them, so they can intercept requests first."""
    contexts = []

    def make(base: str = server.rest, **options: Any) -> PageDriver:
        viewport = options.pop("viewport", {"width": 1280, "height": 900})
        contexts.append(browser.new_context(viewport=viewport, **options))
        return PageDriver(contexts[-1].new_page(), base)

    yield make
    for context in contexts:
        context.close()


@pytest.fixture(scope="package")
def window(browser: Browser, server: RunningServer) -> Iterator[PageDriver]:
    """A window shared by the tests, because opening one per test is slow."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield PageDriver(context.new_page(), server.rest)
    context.close()


@pytest.fixture
def shared(window: PageDriver) -> PageDriver:
    """A page driver in any state, for tests that only call module functions."""
    return window.reset() if window.page.url.startswith(window.base) else window.reset().open()


@pytest.fixture
def opened(window: PageDriver) -> PageDriver:
    """A driver of a freshly opened page."""
    return window.reset().open()


@pytest.fixture
def driver(window: PageDriver) -> PageDriver:
    """A driver of the page with two sentences and their contributions from a link, with all sections unfolded."""
    return window.reset().open_texts(*TWO_SENTENCES, explore=True, kind="projection", combine="rollout")


@pytest.fixture
def tab(window: PageDriver) -> PageDriver:
    """A driver of the similarity tab, opened from a link, with real server responses."""
    driver = window.reset()
    driver.page.goto("about:blank")
    driver.page.goto(f"{driver.base}/#v=1&tab=similarity")
    driver.page.wait_for_function(RESULT)
    return driver
