"""Accessibility according to axe-core, layout at two widths, light and dark mode, with screenshots."""

import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver
from tests.browser.similarity_tab import intercept
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

RESULTS = ROOT / "test-results"
LOOKS = [
    (400, "dark"),
    (1280, "light"),
    pytest.param(400, "light", marks=pytest.mark.slow),
    pytest.param(1280, "dark", marks=pytest.mark.slow),
]
STILL = "() => document.getAnimations().every((animation) => animation.playState !== 'running')"


@pytest.fixture(scope="module")
def results() -> Path:
    """An empty folder for screenshots."""
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir()
    return RESULTS


def overflow(driver: PageDriver) -> int:
    """Return the width of the page beyond its window, in pixels."""
    pixels: int = driver.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return pixels


def assert_accessible(driver: PageDriver) -> None:
    driver.page.wait_for_function(STILL)  # contrast can only be measured after transitions
    result = Axe().run(driver.page)
    assert result.violations_count == 0, result.generate_report()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_page_is_accessible_when_it_opens(new_driver: NewDriver, results: Path, width: int, scheme: str) -> None:
    driver = new_driver(viewport={"width": width, "height": 900}, color_scheme=scheme).open()
    driver.page.screenshot(path=results / f"opening-{width}-{scheme}.png", full_page=True)
    assert overflow(driver) == 0
    assert_accessible(driver)
    driver.explore()
    driver.page.get_by_role("button", name="layer 1, head 2").first.hover()
    driver.page.screenshot(path=results / f"explore-{width}-{scheme}.png", full_page=True)
    assert overflow(driver) == 0


@pytest.mark.parametrize(("width", "scheme"), [pytest.param(400, "dark", marks=pytest.mark.slow), (1280, "light")])
def test_page_is_accessible_with_much_content(new_driver: NewDriver, results: Path, width: int, scheme: str) -> None:
    """The page has six sentences (one long), signed values, tokens, special tokens and both commands."""
    driver = new_driver(viewport={"width": width, "height": 900}, color_scheme=scheme).open()
    driver.explore().choose(combine="none", special="keep").slide(3)
    driver.page.get_by_label("Tokens", exact=True).check()
    driver.add(f"The bank lends money, says the {'long-' * 12}winded representative.")
    driver.add(" ".join(["We walked along the bank until nobody could see the harbour any more, and sat down."] * 4))
    driver.choose(open="5")
    for part in ("#comparison .request", "#pair-details", "#map .request"):
        driver.page.locator(f"{part} > summary").click()
    driver.page.screenshot(path=results / f"much-{width}-{scheme}.png", full_page=True)
    assert overflow(driver) == 0
    if width == 400:  # axe-core takes several seconds for this many elements
        assert_accessible(driver)


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_removed_word_is_accessible(new_driver: NewDriver, results: Path, width: int, scheme: str) -> None:
    driver = new_driver(viewport={"width": width, "height": 900}, color_scheme=scheme).open("v=1&removed=2")
    driver.page.locator("#causes .change").wait_for()
    driver.page.locator("#causes-values > summary").click()
    driver.page.screenshot(path=results / f"removed-{width}-{scheme}.png", full_page=True)
    assert overflow(driver) == 0
    assert_accessible(driver)


@pytest.mark.parametrize(("name", "status", "scheme"), [("error", 429, "light"), ("key", 401, "dark")])
def test_page_is_accessible_when_a_request_fails(
    new_driver: NewDriver, results: Path, name: str, status: int, scheme: str
) -> None:
    """The page shows the error card or the API key form."""
    driver = new_driver(viewport={"width": 400, "height": 900}, color_scheme=scheme)
    error = {"error": {"message": "Queue full."}}
    driver.page.route(
        "**/v1/attend", lambda route: route.fulfill(status=status, headers={"retry-after": "1"}, json=error)
    )
    driver.open()
    driver.page.screenshot(path=results / f"{name}-400-{scheme}.png", full_page=True)
    assert overflow(driver) == 0
    assert_accessible(driver)


def test_page_does_not_overflow_at_200_percent_zoom(new_driver: NewDriver) -> None:
    assert overflow(new_driver(viewport={"width": 640, "height": 450}, device_scale_factor=2).open()) == 0


@pytest.mark.parametrize(("width", "scheme"), [pytest.param(400, "dark", marks=pytest.mark.slow), (1280, "light")])
def test_similarity_tab_is_accessible(new_driver: NewDriver, results: Path, width: int, scheme: str) -> None:
    driver = new_driver(viewport={"width": width, "height": 900}, color_scheme=scheme)
    intercept(driver)
    driver.open().page.get_by_role("tab", name="Similarity").click()
    driver.page.locator("#word-pairs").wait_for()
    driver.page.screenshot(path=results / f"similarity-{width}-{scheme}.png", full_page=True)
    assert overflow(driver) == 0
    assert_accessible(driver)
