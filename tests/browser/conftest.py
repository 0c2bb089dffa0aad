"""A real browser, once a file: Debian's chromium, driven as a person would use it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.visit import Visit
from tests.conftest import RunningServer

CHROMIUM = Path("/usr/bin/chromium")
SWITCHES = ["--headless", "--no-sandbox", "--disable-background-networking"]

NewVisit = Callable[..., Visit]


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
def new_visit(browser: Browser, server: RunningServer) -> Iterator[NewVisit]:
    """Make visits of the session's server, or of `base`; not opened yet, so that a test can intercept what is asked."""
    made = []

    def make(base: str = server.rest, **options: Any) -> Visit:
        made.append(browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 900}), **options))
        return Visit(made[-1].new_page(), base)

    yield make
    for context in made:
        context.close()


@pytest.fixture(scope="module")
def window(browser: Browser, server: RunningServer) -> Iterator[Visit]:
    """One window for the tests of a file that need nothing special: opening another for each takes longer."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield Visit(context.new_page(), server.rest)
    context.close()


@pytest.fixture
def visit(window: Visit) -> Visit:
    """The page as it opens."""
    return window.forget().open()
