"""The freshly opened page, and user journeys."""

from typing import Any

import httpx
import numpy as np
import pytest

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver, format_number

POLICY_VIOLATIONS = """async () => {
    const violations = [];
    const all = new Promise((resolve) => document.addEventListener("securitypolicyviolation", (event) => {
        violations.push(event.effectiveDirective);
        if (violations.length === 3) resolve();
    }));
    const script = document.createElement("script");
    script.textContent = "window.ran = true";
    document.body.append(script);
    document.body.setAttribute("style", "color: red");
    await fetch("https://example.org/").catch(() => {});
    await all;
    return [window.ran === undefined, violations.toSorted()];
}"""

SHOWN = """(values) => JSON.stringify(values) === JSON.stringify(
    [...document.querySelector(".strip").querySelectorAll(".value")].map((value) => value.textContent))"""


@pytest.fixture(scope="module")
def first_screen(window: PageDriver) -> PageDriver:
    """The opened page, shared by tests that do not change it."""
    return window.reset().open()


def compared(driver: PageDriver, rest: httpx.Client) -> dict[str, Any]:
    response = rest.post("/v1/compare", json=driver.sent_bodies("/v1/compare")[-1]).raise_for_status()
    body: dict[str, Any] = response.json()
    return body


def similarities_by_sense(senses: str, matrix: list[list[float]]) -> tuple[list[float], list[float]]:
    """Return the similarities of all pairs with the same sense and with different senses."""
    pairs = [(a, b) for a in range(len(senses)) for b in range(a + 1, len(senses))]
    same = [matrix[a][b] for a, b in pairs if senses[a] == senses[b]]
    return same, [matrix[a][b] for a, b in pairs if senses[a] != senses[b]]


def test_page_opens_with_two_senses_of_one_word(first_screen: PageDriver) -> None:
    assert first_screen.selected_words() == ["bank"] * 4
    assert "check" in first_screen.line(1)
    assert "river" in first_screen.line(2)
    senses = first_screen.page.locator(".sentence select").evaluate_all("(all) => all.map(({ value }) => value)")
    assert senses == ["A", "B", "A", "B"]


def test_finding_states_the_similarities_of_the_response(first_screen: PageDriver, rest: httpx.Client) -> None:
    """The dictionary entries are identical. In context, equal senses are more similar."""
    response = compared(first_screen, rest)
    same, other = similarities_by_sense("ABAB", response["layers"][-1]["cosine"])
    expected = [format_number(value) for value in (1.0, sum(same) / len(same), sum(other) / len(other))]
    assert first_screen.page.locator("#finding .value").all_inner_texts() == expected
    assert first_screen.finding().startswith("As dictionary entries, the 4 occurrences of bank are identical: 1.000.")
    assert "After 6 layers, their similarity is" in first_screen.finding()
    first_screen.page.get_by_text("only because the positions differ").wait_for()


@pytest.mark.parametrize("width", [400, 1280])
def test_finding_and_chart_are_on_the_first_screen(new_driver: NewDriver, width: int) -> None:
    driver = new_driver(viewport={"width": width, "height": 800}).open()
    for selector in ("#finding", "#claim .chart:not(.plane)"):
        box = driver.page.locator(selector).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 800, selector


def test_expert_part_is_folded_and_sends_no_requests(first_screen: PageDriver) -> None:
    assert first_screen.page.locator("#kind").is_visible() is False
    attends = [request for request in first_screen.requests if request.url.endswith("/v1/attend")]
    assert len(attends) == 1


def test_page_requests_the_default_view(first_screen: PageDriver) -> None:
    (body,) = first_screen.sent_bodies()
    assert len(body["inputs"]) == 4
    assert (body["kind"], body["layer_reduce"], body["unit"], body["special_tokens"]) == (
        "projection",
        "rollout",
        "word",
        "drop",
    )
    assert not {"heads", "head_reduce", "segments"} & set(body)


def test_line_lists_the_largest_contributions(first_screen: PageDriver, rest: httpx.Client) -> None:
    """Values are shares among the other words, like the contributors in /v1/compare."""
    result = rest.post("/v1/attend", json=first_screen.sent_bodies()[0]).json()["results"][0]
    units, row = [unit["text"] for unit in result["units"]], result["maps"][0]["matrix"]
    bank = units.index("bank")
    others = [(value, name) for name, value in zip(units, row[bank], strict=True) if name != "bank"]
    total = sum(value for value, _ in others)
    ranked = [(value / total, name) for value, name in sorted(others, reverse=True)[:3]]
    expected = ", ".join(f"{name if name != '.' else '“.”'} {format_number(share)}" for share, name in ranked)
    assert first_screen.line(1) == f"Contributions to bank: {expected}."


def test_page_links_to_the_api_reference(first_screen: PageDriver, rest: httpx.Client) -> None:
    links = first_screen.page.get_by_role("link").evaluate_all("(all) => all.map(({ href }) => href)")
    assert set(links) == {f"{first_screen.base}/docs"}
    assert rest.get("/docs").status_code == 200


def test_requests_stay_within_the_origin(driver: PageDriver) -> None:
    """The console must have no errors, which shows that the content security policy blocks no required request."""
    driver.choose(kind="probs", combine="none", head="2").slide(3).choose(measure="centered")
    driver.add("The bank lends money.")
    assert driver.requests
    assert {
        request.url.partition("#")[0].partition("/v1")[0].partition("/page")[0].rstrip("/")
        for request in driver.requests
        if request.url != "about:blank"
    } == {driver.base}
    assert driver.errors == []


def test_content_security_policy_is_enforced(new_driver: NewDriver) -> None:
    """The browser must block an inline script, an inline style and a request to another origin."""
    driver = new_driver().open()
    assert driver.page.evaluate(POLICY_VIOLATIONS) == [True, ["connect-src", "script-src-elem", "style-src-attr"]]


def test_picture_shows_the_occurrences_in_two_dimensions(opened: PageDriver, rest: httpx.Client) -> None:
    """The principal components of the last layer, by numpy, keep the same share of the squared distances."""
    (request,) = opened.sent_bodies("/v1/compare")
    inputs = [{"text": item["text"], "spans": [item["span"]]} for item in request["occurrences"]]
    body = {"inputs": inputs, "outputs": ["spans"], "layers": "all", "layer_reduce": "stack"}
    results = rest.post("/v1/encode", json=body).json()["results"]
    vectors = np.array([result["span_vectors"] for result in results])[:, :, 0].swapaxes(0, 1)  # (L+1, N, D)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    vectors -= vectors.mean(axis=1, keepdims=True)
    axes = np.linalg.svd(vectors[-1])[2][:2]
    for layer in (6, 3, 1):
        opened.slide(layer)
        kept = ((vectors[layer] @ axes.T) ** 2).sum() / (vectors[layer] ** 2).sum()
        note = opened.page.locator("#claim .figure p").last.inner_text()
        share = int(note.partition("keep ")[2].partition("%")[0])
        assert share == pytest.approx(100 * kept, abs=1), layer
    opened.slide(6)
    opened.page.wait_for_function("() => document.getAnimations().every(({ playState }) => playState !== 'running')")
    boxes = [point.bounding_box() for point in opened.page.locator(".plane .point").all()]
    drawn = np.array([[box["x"], box["y"]] for box in boxes if box])
    expected = vectors[-1] @ axes.T
    distances = [np.linalg.norm(points[:, None] - points, axis=-1) for points in (drawn, expected)]
    ratio = distances[0].max() / distances[1].max()
    assert np.abs(distances[0] - ratio * distances[1]).max() < 3  # pixels


def test_picture_appears_if_its_vectors_arrive_before_the_comparison(new_driver: NewDriver) -> None:
    driver = new_driver().open()
    comparison = driver.hold("**/v1/compare")
    with driver.page.expect_event("requestfinished", lambda request: request.url.endswith("/v1/encode")):
        driver.page.get_by_role("button", name="crane").click()
    driver.page.wait_for_function("() => document.querySelector('#claim .body').getAttribute('aria-busy') === 'false'")
    comparison().continue_()
    driver.page.get_by_text("The vectors of crane, by sentence").wait_for()
    assert driver.page.locator("#claim .plane").is_visible()


def test_exploring_opens_with_attention_weights_in_map_grid_and_words(
    new_driver: NewDriver, rest: httpx.Client
) -> None:
    """While the part is closed, the words show contributions."""
    opened = new_driver().open()
    contributions = opened.values(1)
    assert opened.line(1).startswith("Contributions to bank: ")
    opened.explore()
    body = opened.sent_bodies()[-1]
    assert (body["kind"], body["layers"], body["head_reduce"]) == ("probs", [-1], "mean")
    assert "for kind probs. Select a map" in opened.page.locator("#heads .body").inner_text()
    assert "probs, layer 6, mean of all heads" in opened.page.locator("#map caption").inner_text()
    result = rest.post("/v1/attend", json=body).json()["results"][0]
    (bank,) = (index for index, unit in enumerate(result["units"]) if unit["text"] == "bank")
    row = [value for column, value in enumerate(result["maps"][0]["matrix"][bank]) if column != bank]
    shown = [float(text) for text in opened.values(1) if text]
    assert shown == pytest.approx([value / sum(row) for value in row], abs=1e-3)
    opened.choose(kind="norm", combine="rollout")
    opened.page.locator("#explore > summary").click()
    opened.page.wait_for_function(SHOWN, arg=contributions)
    opened.page.wait_for_url(lambda url: "kind=norm" in url and "explore" not in url)
    opened.page.reload()
    opened.page.wait_for_function(SHOWN, arg=contributions)
    opened.explore()
    assert "norm, rollout of all layers" in opened.page.locator("#map caption").inner_text()


# User journeys: type, paste, repeat words, use a phone, and come back.

IN_VIEW = """(box) => [...box.querySelectorAll("tr > :last-child")]
    .filter((cell) => cell.getBoundingClientRect().right <= box.getBoundingClientRect().right)
    .map((cell) => cell.localName === "th" ? cell.textContent : cell.className)"""
OWN = ("She plays the bass in a band.", "He caught a bass in the lake.")


def test_two_own_sentences(opened: PageDriver, rest: httpx.Client) -> None:
    """Clear the page, type two sentences key by key, and read the finding."""
    opened.page.get_by_role("button", name="Clear").click()
    for number, text in enumerate(OWN, 1):
        opened.field(number).click()
        opened.page.keyboard.type(text)
    opened.settle()
    assert opened.selected_words() == ["bass", "bass"]
    response = compared(opened, rest)
    assert [item["text"] for item in response["occurrences"]] == ["bass", "bass"]
    value = format_number(response["layers"][-1]["cosine"][0][1])
    assert opened.finding().endswith(f"After 6 layers, their similarity is {value} in context.")
    assert opened.page.locator("polyline.context.unknown").count() == 1


def test_pasted_text_replaces_a_sentence(new_driver: NewDriver) -> None:
    """Copied text often contains a line break, as here."""
    driver = new_driver(permissions=["clipboard-read", "clipboard-write"]).open()
    driver.page.evaluate("navigator.clipboard.writeText('The bank of the\\nMeuse was flooded.')")
    driver.field(1).focus()
    driver.page.keyboard.press("ControlOrMeta+a")
    driver.page.keyboard.press("ControlOrMeta+v")
    driver.page.wait_for_function("() => document.querySelector('#sentences input')?.value.includes('Meuse')")
    driver.settle()
    text = driver.field(1).input_value()
    assert "\n" not in text
    assert driver.sent_bodies()[-1]["inputs"][0] == text
    assert driver.selected_words() == ["bank"] * 4


def test_text_that_is_too_long_is_marked_and_the_rest_is_computed(opened: PageDriver) -> None:
    """The message appears at the field, with a button to truncate the text. This applies to both tabs."""
    long = "bank " * 300
    opened.open_texts("A bank.", long, "The bank opened.")
    alert = opened.page.get_by_role("alert")
    assert alert.inner_text() == "Sentence 2: too long (302 tokens, limit 256). Shorten it."
    assert opened.field(2).evaluate("(field) => [field.ariaInvalid, field.getAttribute('aria-describedby')]") == [
        "true",
        alert.get_attribute("id"),
    ]
    assert opened.selected_words() == ["bank", "bank"]
    assert "2 occurrences" in opened.finding()
    assert opened.page.locator(".left-out").inner_text() == "Not compared (too long): sentence 2."
    opened.page.get_by_role("button", name="Truncate sentence 2").click()
    opened.page.wait_for_function("() => document.querySelector('#finding').textContent.includes('3 occurrences')")
    opened.settle()
    assert opened.field(2).input_value() == ("bank " * 254).strip()
    assert alert.count() == 0
    opened.page.get_by_role("tab", name="Similarity").click()
    opened.page.get_by_label("Text 2", exact=True).fill(long)
    assert alert.inner_text() == "Text 2: too long (302 tokens, limit 256). Shorten it."
    opened.settle()
    assert [bool(score) for score in opened.page.locator("#similarity .score").all_inner_texts()] == [True, False]
    opened.page.get_by_role("button", name="Truncate text 2").click()
    opened.page.wait_for_function("() => document.querySelectorAll('#similarity .score')[1].textContent")
    opened.settle()
    assert alert.count() == 0


def test_page_works_with_touch(new_driver: NewDriver) -> None:
    """A tap selects a word and shows its contributions, as the page's text explains."""
    driver = new_driver(viewport={"width": 400, "height": 850}, has_touch=True, is_mobile=True).open()
    assert "or tap it" in driver.page.locator("#hint").inner_text()
    driver.page.get_by_role("group", name="Words of sentence 1").get_by_role("button", name="cashed").tap()
    driver.settle()
    assert driver.line(1).startswith("Contributions to cashed:")
    assert driver.selected_words()[0] == "cashed"


@pytest.mark.parametrize("width", [400, 1280])
def test_hidden_columns_fade_and_the_excluded_column_stays_in_view(new_driver: NewDriver, width: int) -> None:
    driver = new_driver(viewport={"width": width, "height": 900}).open("v=1&x=crane&explore=1")
    box = driver.page.locator("#map .scroller")
    assert box.evaluate("(node) => node.scrollWidth > node.clientWidth + 1")
    assert box.evaluate(IN_VIEW) == ["excluded"] + ["extra"] * 10
    driver.choose(special="keep")
    mask = "(node) => getComputedStyle(node).maskImage !== 'none'"
    assert box.evaluate(mask) is True
    box.evaluate("(node) => { node.scrollLeft = node.scrollWidth; }")
    driver.page.wait_for_function("() => document.querySelector('#map .scroller')?.dataset.after === 'false'")
    assert box.evaluate(mask) is False
