"""Debian's chromium, started once per file and used as a person would."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.page_driver import PageDriver
from tests.conftest import RunningServer

CHROMIUM = Path("/usr/bin/chromium")
SWITCHES = ["--headless", "--no-sandbox", "--disable-background-networking"]

NewDriver = Callable[..., PageDriver]


# For a file and no longer: while playwright's loop lives in this thread, no test of another file could run its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.is_file():
        pytest.skip(f"{CHROMIUM} is missing: install the Debian package chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield launched
        launched.close()


@pytest.fixture
def new_driver(browser: Browser, server: RunningServer) -> Iterator[NewDriver]:
    """Make drivers of the session's server, or of `base`; not opened yet, so that a test can intercept requests."""
    made = []

    def make(base: str = server.rest, **options: Any) -> PageDriver:
        made.append(browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 900}), **options))
        return PageDriver(made[-1].new_page(), base)

    yield make
    for context in made:
        context.close()


@pytest.fixture(scope="module")
def window(browser: Browser, server: RunningServer) -> Iterator[PageDriver]:
    """One window for the tests of a file that need nothing special: opening another for each takes longer."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield PageDriver(context.new_page(), server.rest)
    context.close()


@pytest.fixture
def driver(window: PageDriver) -> PageDriver:
    """The page as it opens."""
    return window.forget().open()
