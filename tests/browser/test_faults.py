"""Failed requests, pending requests, and the API key."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route

from model.export.export import Variants
from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver
from tests.browser.similarity_tab import RESULT
from tests.conftest import RunningServer, serving
from tests.model.conftest import export_tiny

KEY = "correct-horse"
UNCOVERED = """() => document.querySelector("#notices .card").getBoundingClientRect().bottom
    <= document.activeElement.getBoundingClientRect().top"""


def alert(driver: PageDriver) -> str:
    return driver.page.get_by_role("alert").inner_text()


def test_error_names_the_sentence_when_it_is_too_long(driver: PageDriver) -> None:
    """The card disappears once the sentence is corrected."""
    for number in (1, 2):
        for text, expected in (
            ("bank " * 300, "302 tokens, limit 256"),
            ("bank " + "a" * 17_000, "17005 characters, limit 16384"),
        ):
            driver.type(number, text)
            assert alert(driver) == f"Sentence {number}: too long ({expected}). Shorten it."
            driver.type(number, "He cashed a check at the bank.")
            assert driver.page.get_by_role("alert").all_inner_texts() == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Response too large (70 MiB, limit 64).", "Response too large (70 MiB, limit 64)."),
        (
            "inputs[1]: no content after tokenization. Send text.",
            "Sentence 2: no content after tokenization. Send text.",
        ),
    ],
)
def test_error_has_the_message_of_the_server(driver: PageDriver, message: str, expected: str) -> None:
    """The sentence number replaces the field."""

    def reject(route: Route) -> None:
        if "base64" in (route.request.post_data or ""):
            route.continue_()
        else:
            field = "inputs[1]" if message.startswith("inputs") else None
            route.fulfill(status=422, json={"error": {"message": message, "field": field}})

    driver.page.route("**/v1/attend", reject)
    driver.choose(kind="norm")
    assert alert(driver) == expected


def test_errors_name_the_sentence_of_a_span(driver: PageDriver) -> None:
    """No token is assigned to a combining mark. The comparison and the picture both report it."""
    driver.open("v=1&t0=a%CC%81+bank&t1=bank&w0=1-2-0-1-1")
    errors = driver.page.locator("#notices p:not(.actions)").all_inner_texts()
    assert [error.split(":")[0] for error in errors] == ["Sentence 1"] * 2


@pytest.mark.parametrize("width", [400, 1280])
def test_error_card_does_not_cover_the_focused_field(new_driver: NewDriver, width: int) -> None:
    """The page scrolls when the card appears."""
    driver = new_driver(viewport={"width": width, "height": 900}).open()
    error = {"error": {"message": "Response too large (70 MiB, limit 64)."}}
    driver.page.route("**/v1/attend", lambda route: route.fulfill(status=422, json=error))
    field = driver.field(1)
    field.focus()
    field.evaluate("(input) => scrollBy(0, input.getBoundingClientRect().top - 20)")
    driver.page.keyboard.press("ControlOrMeta+a")
    driver.page.keyboard.insert_text("The bank is closed.")
    driver.page.get_by_role("alert").wait_for()
    driver.page.wait_for_function(UNCOVERED)
    card, box = driver.page.locator("#notices .card").bounding_box(), field.bounding_box()
    assert card is not None
    assert box is not None
    assert card["y"] >= 0
    assert card["y"] + card["height"] <= box["y"]
    assert box["y"] + box["height"] < 900


@pytest.mark.parametrize(
    ("delay", "advice"), [(1, "The page tries again in 1 second."), (90, "Try again in 90 seconds.")]
)
def test_busy_server_is_asked_again_after_its_delay(driver: PageDriver, delay: int, advice: str) -> None:
    message = "Queue full (65000 tokens queued, 900 requested, limit 65536)."
    error = {"error": {"message": f"{message} Retry later."}}

    def reject(route: Route) -> None:
        route.fulfill(status=429, headers={"retry-after": str(delay)}, json=error)

    driver.page.route("**/v1/attend", reject)
    driver.choose(kind="norm")
    assert alert(driver).startswith(f"{message} {advice}")
    assert alert(driver).count(message) == 1
    driver.page.unroute("**/v1/attend")
    if delay == 90:
        driver.page.get_by_role("button", name="Try again").click()
    driver.page.get_by_role("alert").wait_for(state="detached")
    driver.settle()
    assert "norm" in driver.page.locator("#map caption").inner_text()


def test_every_request_of_the_opening_page_is_repeated(new_driver: NewDriver) -> None:
    driver, rejected = new_driver(), []

    def reject_once(route: Route) -> None:
        body = route.request.post_data or ""
        if body in rejected:
            return route.continue_()
        rejected.append(body)
        return route.fulfill(status=429, headers={"retry-after": "1"}, json={"error": {"message": "Queue full."}})

    driver.page.route("**/v1/*", reject_once)
    driver.page.goto(driver.base)
    driver.page.locator("#finding .value").first.wait_for()
    driver.page.get_by_role("alert").wait_for(state="detached")
    driver.settle()
    assert len(rejected) >= 6  # models, examples, tokens, maps, comparison, vectors
    assert driver.page.get_by_role("alert").count() == 0


def test_truncation_is_repeated_if_the_server_is_busy(driver: PageDriver) -> None:
    """It does not matter which tab is open then. A tab's errors disappear when it is closed."""
    driver.type(1, "bank " * 400)
    busy = {"status": 429, "headers": {"retry-after": "1"}, "json": {"error": {"message": "Queue full."}}}
    driver.page.route("**/v1/encode", lambda route: route.fulfill(**busy), times=1)
    driver.page.get_by_role("button", name="Truncate sentence 1").click()
    busy_card = driver.page.locator("#notices").get_by_text("The page tries again in 1 second.")
    busy_card.wait_for()
    driver.page.get_by_role("tab", name="How attention works").click()
    busy_card.wait_for(state="detached")
    text = "The bank is closed."
    driver.page.route(
        "**/v1/tokenize",
        lambda route: route.fulfill(**busy) if text in (route.request.post_data or "") else route.continue_(),
    )
    driver.page.locator("#walk-text").fill(text)
    busy_card.wait_for()
    driver.page.get_by_role("tab", name="Word in context").click()
    busy_card.wait_for(state="detached")
    assert len(driver.field(1).input_value().split()) == 254


def test_network_error_has_a_message_until_the_server_is_available(driver: PageDriver) -> None:
    """This must hold even in a section that has been folded in the meantime."""
    driver.page.evaluate("window.later = setTimeout; window.setTimeout = (work, ms) => later(work, ms / 10)")
    driver.page.route("**/v1/attend", lambda route: route.abort())
    driver.choose(kind="norm")
    assert "The server cannot be reached." in alert(driver)
    driver.page.locator("#explore > summary").click()
    driver.page.unroute("**/v1/attend")
    driver.page.get_by_role("alert").wait_for(state="detached")
    driver.page.evaluate("window.setTimeout = later")


def visible(driver: PageDriver, selector: str) -> int:
    """Return the number of visible matching elements."""
    return driver.page.locator(f"{selector} >> visible=true").count()


def test_numbers_disappear_when_their_request_fails(driver: PageDriver) -> None:
    """A retry shows the values for the new settings."""
    error = {"error": {"message": "Nothing today."}}  # which the page does not repeat by itself
    driver.page.route("**/v1/*", lambda route: route.fulfill(status=500, json=error))
    driver.choose(kind="norm")
    for selector in (".strip .value", "#map td", "#map .request", ".multiples button"):
        assert visible(driver, selector) == 0, selector
    assert visible(driver, "#claim .chart") > 0  # the comparison does not depend on the map kind
    driver.type(1, "He sat at the bank.")
    assert visible(driver, "#comparison summary, #claim .chart") == 0
    driver.page.unroute("**/v1/*")
    driver.page.get_by_role("button", name="Try again").click()
    driver.settle()
    for selector in (".strip .value", "#map td", ".multiples button", "#claim .chart:not(.plane)", "#claim .plane"):
        assert visible(driver, selector) > 0, selector


def test_only_the_failed_sentence_loses_its_map(driver: PageDriver) -> None:
    """The other sentence's map is still current."""
    driver.type(2, "bank " * 300)
    assert visible(driver, ".sentence:nth-child(1) .value") == 7
    assert driver.page.locator(".sentence:nth-child(1).stale").count() == 0
    assert visible(driver, ".sentence:nth-child(2) .strip") == 0
    assert visible(driver, "#comparison summary, #claim .chart") == 0
    driver.choose(open="1")
    assert visible(driver, "#map td, .multiples button") == 0


def test_words_maps_and_grid_disappear_when_the_text_is_cleared(driver: PageDriver) -> None:
    """The other sentence keeps its words."""
    driver.type(1, "")
    for selector in (
        ".sentence:nth-child(1) .strip",
        "#map td",
        "#map .request",
        ".multiples button",
        "#comparison summary",
        "#claim .chart",
    ):
        assert visible(driver, selector) == 0, selector
    assert visible(driver, ".sentence:nth-child(2) .strip") == 1
    driver.type(2, "")
    assert visible(driver, ".strip, td, canvas, .request") == 0


def test_late_response_does_not_replace_a_newer_one(driver: PageDriver) -> None:
    """The page cancels the slow request, so its response is never read."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        body = route.request.post_data or ""
        if '"kind":"norm"' in body and "base64" not in body:
            held.append(route)
        else:
            route.continue_()

    driver.page.route("**/v1/attend", hold)
    with driver.page.expect_request(lambda request: '"kind":"norm"' in (request.post_data or "")):
        driver.page.select_option("#kind", "norm")
    assert driver.page.locator("#map[aria-busy=true]").count() == 1
    with driver.page.expect_event("requestfailed", lambda request: '"kind":"norm"' in (request.post_data or "")):
        driver.page.select_option("#kind", "block_norm")
    driver.settle()
    assert "block_norm" in driver.page.locator("#map caption").inner_text()
    assert len(held) == 1


def test_typing_sends_one_request_per_pause(driver: PageDriver) -> None:
    before = len(driver.sent_bodies())
    driver.page.get_by_label("Sentence 1", exact=True).focus()
    driver.page.keyboard.press("End")
    driver.page.keyboard.type(" It rained a lot.", delay=15)
    driver.settle()
    assert len(driver.sent_bodies()) - before <= 2
    assert driver.sent_bodies()[-1]["inputs"][0].endswith("It rained a lot.")


@pytest.fixture(scope="module")
def secured(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"{KEY}\n")
    with serving(model_dir=default_artifact, api_keys_file=path) as running:
        yield running


def test_page_requests_the_key_when_server_requires_one(secured: RunningServer, new_driver: NewDriver) -> None:
    """The page keeps a valid key only in this tab and does not show it."""
    driver = new_driver(secured.rest).open()
    assert alert(driver) == "This server requires an API key."
    assert driver.page.evaluate("document.activeElement.id") == "key"
    for invalid in (KEY + "\u200b", "another"):  # copied text may end with an invisible character
        driver.page.keyboard.type(invalid)
        driver.page.keyboard.press("Enter")
        driver.page.get_by_text("Invalid API key.").wait_for()
        driver.page.wait_for_function("() => document.activeElement.id === 'key' && !document.activeElement.value")
    driver.page.keyboard.type(KEY)
    driver.page.keyboard.press("Enter")
    driver.page.locator(".strip").first.wait_for()
    driver.settle()
    assert driver.page.get_by_role("alert").all_inner_texts() == []
    assert "check" in driver.line(1)
    assert driver.page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie]") == [
        [KEY],
        0,
        "",
    ]
    assert KEY not in driver.page.content()
    driver.page.locator("#comparison .request summary").click()
    for form in ("curl", "Python", "gRPC"):
        driver.page.locator("#comparison .request").get_by_label(form, exact=True).check()
        driver.page.locator("#comparison pre").filter(has_text="ATTENDANT_KEY").wait_for()
    driver.page.reload()
    driver.page.locator("#finding .value.same").wait_for()


def test_page_works_without_storage(secured: RunningServer, new_driver: NewDriver) -> None:
    """Browsers deny it if the user blocks cookies. The key then lasts until the page is reloaded."""
    driver = new_driver(secured.rest)
    driver.page.add_init_script(
        "Object.defineProperty(window, 'sessionStorage', { get() { throw new DOMException('', 'SecurityError'); } })"
    )
    driver.open()
    driver.page.keyboard.type(KEY)
    driver.page.keyboard.press("Enter")
    driver.page.locator("#finding .value.same").wait_for()
    driver.settle()
    assert driver.page.get_by_role("alert").count() == 0


@pytest.mark.slow
def test_page_shows_why_a_model_has_no_maps(new_driver: NewDriver, tmp_path: Path) -> None:
    """The page does not request them. Similarity still works."""
    with serving(model_dir=export_tiny(tmp_path, Variants(explain=False))) as running:
        driver = new_driver(running.rest)
        driver.page.goto(driver.base)
        driver.page.get_by_text("This model was exported without hidden states and attention maps").wait_for()
        assert not driver.page.locator("#explore, #player").locator("visible=true").count()
        driver.page.get_by_role("tab", name="Similarity").click()
        driver.page.wait_for_function(RESULT)
        assert not driver.sent_bodies() + driver.sent_bodies("/v1/compare")
        assert driver.errors == []


def test_invalid_json_has_a_message(driver: PageDriver) -> None:
    """A proxy may respond with something else."""
    driver.page.route("**/v1/attend", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    driver.choose(kind="norm")
    assert "is not valid JSON" in alert(driver)
