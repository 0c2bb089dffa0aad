"""The freshly opened page: its finding, default requests, and the content security policy."""

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
