"""What goes wrong, and how the page says it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver
from tests.conftest import RunningServer, start_server, stop_server

KEY = "correct-horse"


def alert(driver: PageDriver) -> str:
    """What the card says."""
    return driver.page.get_by_role("alert").inner_text()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bank " * 300, "302 tokens, the limit is 256"),
        ("bank " + "a" * 17_000, "17005 characters, the limit is 16384"),
    ],
)
def test_error_names_the_sentence_when_it_is_too_long(driver: PageDriver, number: int, text: str, said: str) -> None:
    """Is named once, as the page names it; the card goes when it is mended."""
    driver.type(number, text)
    assert alert(driver) == f"Sentence {number} is too long: {said}. Shorten it."
    driver.type(number, "He cashed a check at the bank.")
    assert driver.page.get_by_role("alert").count() == 0


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("The answer would have 70 MiB; the limit is 64.", "The answer would have 70 MiB; the limit is 64."),
        ("inputs[1] has nothing that is kept; send some text.", "Sentence 2 has nothing that is kept; send some text."),
    ],
)
def test_error_keeps_the_message_of_the_server(driver: PageDriver, message: str, said: str) -> None:
    """For all else; a part of the request is called by its number on the page."""

    def refuse(route: Route) -> None:
        if "base64" in (route.request.post_data or ""):
            route.continue_()
        else:
            route.fulfill(status=422, json={"error": {"message": message}})

    driver.page.route("**/v1/attend", refuse)
    driver.choose(kind="norm")
    assert alert(driver) == said


@pytest.mark.parametrize("width", [400, 1280])
def test_error_card_does_not_cover_the_focused_field(new_driver: NewDriver, width: int) -> None:
    """However far the page is scrolled when it comes."""
    driver = new_driver(viewport={"width": width, "height": 900}).open()
    field = driver.page.get_by_label("Sentence 1", exact=True)
    field.focus()
    field.evaluate("(input) => scrollBy(0, input.getBoundingClientRect().top - 20)")
    driver.page.keyboard.press("ControlOrMeta+a")
    driver.page.keyboard.insert_text("bank " * 300)
    driver.page.get_by_role("alert").wait_for()
    driver.page.wait_for_timeout(200)
    card, typed = driver.page.locator("#notices .card").bounding_box(), field.bounding_box()
    assert card is not None
    assert typed is not None
    assert card["y"] >= 0
    assert card["y"] + card["height"] <= typed["y"]
    assert typed["y"] + typed["height"] < 900


def test_error_says_when_to_retry_when_queue_is_full(driver: PageDriver) -> None:
    """And trying again works."""
    message = "The queue is full."

    def refuse(route: Route) -> None:
        route.fulfill(status=429, headers={"retry-after": "3"}, json={"error": {"message": message}})

    driver.page.route("**/v1/attend", refuse)
    driver.choose(kind="norm")
    assert alert(driver).startswith(f"{message} Try again in 3 seconds.")
    assert alert(driver).count(message) == 1
    driver.page.unroute("**/v1/attend")
    driver.page.get_by_role("button", name="Try again").click()
    driver.settle()
    assert driver.page.get_by_role("alert").count() == 0
    assert "norm" in driver.page.locator("#map caption").inner_text()


def test_error_is_a_sentence_when_network_is_gone(driver: PageDriver) -> None:
    """In a sentence, not in the browser's words."""
    driver.page.route("**/v1/attend", lambda route: route.abort())
    driver.choose(kind="norm")
    assert "The server cannot be reached." in alert(driver)


def shown(driver: PageDriver, selector: str) -> int:
    """How many elements that match can be seen."""
    return driver.page.locator(f"{selector} >> visible=true").count()


def test_numbers_disappear_when_their_request_fails(driver: PageDriver) -> None:
    """Numbers of the settings before are not left standing; trying again brings the new ones."""
    driver.page.route("**/v1/*", lambda route: route.abort())
    driver.choose(kind="norm")
    for selector in (".strip .value", "#map td", "#map .curl", ".multiples button"):
        assert shown(driver, selector) == 0, selector
    assert shown(driver, "#layers td") > 0  # the comparison does not depend on the kind of the map
    driver.type(1, "He sat at the bank.")
    assert shown(driver, "#comparison td, #comparison .chart") == 0
    driver.page.unroute("**/v1/*")
    driver.page.get_by_role("button", name="Try again").click()
    driver.settle()
    for selector in (".strip .value", "#map td", ".multiples button", "#layers td"):
        assert shown(driver, selector) > 0, selector


def test_only_the_failed_sentence_loses_its_map(driver: PageDriver) -> None:
    """The other one is as it was asked for."""
    driver.type(2, "bank " * 300)
    assert shown(driver, ".sentence:nth-child(1) .value") == 7
    assert driver.page.locator(".sentence:nth-child(1).stale").count() == 0
    assert shown(driver, ".sentence:nth-child(2) .strip") == 0
    assert shown(driver, "#comparison td") == 0
    driver.choose(open="1")
    assert shown(driver, "#map td, .multiples button") == 0


def test_words_maps_and_grid_disappear_when_the_text_is_cleared(driver: PageDriver) -> None:
    """Of the sentence that is open; the other keeps its words."""
    driver.type(1, "")
    for selector in (".sentence:nth-child(1) .strip", "#map td", "#map .curl", ".multiples button", "#comparison td"):
        assert shown(driver, selector) == 0, selector
    assert shown(driver, ".sentence:nth-child(2) .strip") == 1
    driver.type(2, "")
    assert shown(driver, ".strip, td, canvas, .curl") == 0


def test_error_is_a_sentence_when_response_is_not_json(driver: PageDriver) -> None:
    """Some proxy's page."""
    driver.page.route("**/v1/attend", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    driver.choose(kind="norm")
    assert "could not be read" in alert(driver)


def test_late_response_does_not_replace_a_newer_one(driver: PageDriver) -> None:
    """The slow request is given up, and what it might still bring is not shown."""
    held: list[Route] = []
    given_up: list[str] = []
    driver.page.on("requestfailed", lambda request: given_up.append(request.post_data or ""))

    def hold(route: Route) -> None:
        body = route.request.post_data or ""
        if '"kind":"norm"' in body and "base64" not in body:
            held.append(route)
        else:
            route.continue_()

    driver.page.route("**/v1/attend", hold)
    driver.page.select_option("#kind", "norm")
    driver.page.wait_for_timeout(300)
    assert len(held) == 1
    assert driver.page.locator("#map[aria-busy=true]").count() == 1
    driver.choose(kind="block_norm")
    shown = driver.cells()
    held[0].continue_()
    driver.page.wait_for_timeout(300)
    assert any('"kind":"norm"' in body for body in given_up)
    assert driver.cells() == shown
    assert "block_norm" in driver.page.locator("#map caption").inner_text()


def test_typing_sends_one_request_per_pause(driver: PageDriver) -> None:
    """Not for every letter."""
    before = len(driver.asked())
    driver.page.get_by_label("Sentence 1", exact=True).focus()
    driver.page.keyboard.press("End")
    driver.page.keyboard.type(" It rained a lot.", delay=15)
    driver.settle()
    assert len(driver.asked()) - before <= 2
    assert driver.asked()[-1]["inputs"][0].endswith("It rained a lot.")


@pytest.fixture(scope="module")
def locked(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that asks for a key."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEY)
    running = start_server(model_dir=default_artifact, api_keys_file=path)
    yield running
    assert stop_server(running) == 0


def test_page_asks_for_the_key_when_server_requires_one(locked: RunningServer, new_driver: NewDriver) -> None:
    """Says so when it is wrong, keeps a right one for this tab alone, and never shows it."""
    driver = new_driver(locked.rest).open()
    assert alert(driver) == "This server requires an API key."
    assert driver.page.evaluate("document.activeElement.id") == "key"
    driver.page.keyboard.type("wrong-horse")
    driver.page.keyboard.press("Enter")
    driver.page.get_by_text("Invalid API key.").wait_for()
    driver.page.keyboard.type(KEY)
    driver.page.keyboard.press("Enter")
    driver.page.locator("#map .matrix").wait_for()
    driver.settle()
    assert driver.page.get_by_role("alert").count() == 0
    assert "check" in driver.line(1)
    assert driver.page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie]") == [
        [KEY],
        0,
        "",
    ]
    assert KEY not in driver.page.content()
    assert "Bearer $ATTENDANT_KEY" in (driver.page.locator("#map pre").text_content() or "")
    driver.page.reload()
    driver.page.locator("#map .matrix").wait_for()
