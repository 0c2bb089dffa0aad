"""What a visitor finds before touching anything."""

import httpx
import pytest

from tests.browser.page_driver import PageDriver, written

SENTENCES = ["He cashed a check at the bank.", "They sat on the bank of the river."]


@pytest.fixture(scope="module")
def opened(window: PageDriver) -> PageDriver:
    """For those who only look."""
    return window.open()


def test_page_opens_with_a_computed_example(opened: PageDriver) -> None:
    """`bank` in two sentences, and the words that make the difference."""
    pressed = opened.page.locator(".strip [aria-pressed=true] .text").all_inner_texts()
    assert pressed == ["bank", "bank"]
    assert "check" in opened.line(1)
    assert "river" in opened.line(2)
    assert "Shows what was mixed, not why a decision was made." in opened.page.locator("#map").inner_text()


def test_page_requests_the_default_view(opened: PageDriver) -> None:
    """One request for both sentences."""
    (body,) = opened.asked()
    assert body["inputs"] == SENTENCES
    assert (body["kind"], body["layer_reduce"], body["unit"], body["special"]) == (
        "projection",
        "rollout",
        "word",
        "drop",
    )
    assert not {"heads", "head_reduce"} & set(body)


def test_page_names_the_model(opened: PageDriver, rest: httpx.Client) -> None:
    """By the facts of the server."""
    facts = rest.get("/v1/model").json()
    said = opened.page.locator("#model").inner_text()
    assert said == f"{facts['name']}, {facts['layer_count']} layers, {facts['head_count']} heads"


def test_line_is_the_ranked_row_of_the_map(opened: PageDriver, rest: httpx.Client) -> None:
    """Shares among the other words, the largest first; what /v1/compare calls draws_on."""
    result = rest.post("/v1/attend", json=opened.asked()[0]).json()["results"][0]
    units, row = [unit["text"] for unit in result["units"]], result["maps"][0]["matrix"]
    bank = units.index("bank")
    others = [(value, name) for name, value in zip(units, row[bank], strict=True) if name != "bank"]
    whole = sum(value for value, _ in others)
    ranked = [(value / whole, name) for value, name in sorted(others, reverse=True)[:5]]
    expected = ", ".join(f"{written(share)} from {name if name != '.' else '“.”'}" for share, name in ranked)
    assert opened.line(1) == f"bank draws {expected}."


def test_requests_stay_within_the_origin(driver: PageDriver) -> None:
    """Every request goes to the server; the console stays empty, so the policy forbids nothing that is needed."""
    driver.choose(kind="probs", layer="3", head="2").choose(measure="centered")
    driver.add("The bank lends money.")
    assert driver.requests
    assert {request.url.partition("/v1")[0].partition("/page")[0].rstrip("/") for request in driver.requests} == {
        driver.base
    }
    assert driver.complaints == []


def test_content_security_policy_is_enforced(driver: PageDriver) -> None:
    """A script, a style and a request that it does not allow are stopped by the browser."""
    stopped = driver.page.evaluate(
        """async () => {
            const found = [];
            document.addEventListener("securitypolicyviolation", (event) => found.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            document.body.setAttribute("style", "color: red");
            await fetch("https://example.org/").catch(() => {});
            await new Promise((resolve) => setTimeout(resolve, 50));
            return [window.ran === undefined, found.toSorted()];
        }"""
    )
    assert stopped == [True, ["connect-src", "script-src-elem", "style-src-attr"]]
