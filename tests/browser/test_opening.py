"""The newly opened page: the example, the default request, and the content security policy."""

import httpx
import pytest

from tests.browser.page_driver import PageDriver, format_number

SENTENCES = ["He cashed a check at the bank.", "They sat on the bank of the river."]


@pytest.fixture(scope="module")
def opened(window: PageDriver) -> PageDriver:
    """The opened page, shared by tests that do not change it."""
    return window.open()


def test_page_opens_with_a_computed_example(opened: PageDriver) -> None:
    pressed = opened.page.locator(".strip [aria-pressed=true] .text").all_inner_texts()
    assert pressed == ["bank", "bank"]
    assert "check" in opened.line(1)
    assert "river" in opened.line(2)
    assert "Shows how vectors are mixed, not why a model makes a decision." in opened.page.locator("#map").inner_text()


def test_page_requests_the_default_view(opened: PageDriver) -> None:
    (body,) = opened.sent_bodies()
    assert body["inputs"] == SENTENCES
    assert (body["kind"], body["layer_reduce"], body["unit"], body["special_tokens"]) == (
        "projection",
        "rollout",
        "word",
        "drop",
    )
    assert not {"heads", "head_reduce"} & set(body)


def test_page_shows_the_model_info(opened: PageDriver, rest: httpx.Client) -> None:
    info = rest.get("/v1/model").json()
    text = opened.page.locator("#model").inner_text()
    assert text == f"{info['name']}, {info['num_hidden_layers']} layers, {info['num_attention_heads']} heads"


def test_line_lists_the_largest_contributions(opened: PageDriver, rest: httpx.Client) -> None:
    """The values are shares among the other words, as the contributors of /v1/compare."""
    result = rest.post("/v1/attend", json=opened.sent_bodies()[0]).json()["results"][0]
    units, row = [unit["text"] for unit in result["units"]], result["maps"][0]["matrix"]
    bank = units.index("bank")
    others = [(value, name) for name, value in zip(units, row[bank], strict=True) if name != "bank"]
    total = sum(value for value, _ in others)
    ranked = [(value / total, name) for value, name in sorted(others, reverse=True)[:5]]
    expected = ", ".join(f"{name if name != '.' else '“.”'} {format_number(share)}" for share, name in ranked)
    assert opened.line(1) == f"Contributions to bank: {expected}."


def test_requests_stay_within_the_origin(driver: PageDriver) -> None:
    """The console has no errors, so the content security policy blocks no required request."""
    driver.choose(kind="probs", layer="3", head="2").choose(measure="centered")
    driver.add("The bank lends money.")
    assert driver.requests
    assert {request.url.partition("/v1")[0].partition("/page")[0].rstrip("/") for request in driver.requests} == {
        driver.base
    }
    assert driver.errors == []


def test_content_security_policy_is_enforced(driver: PageDriver) -> None:
    """The browser blocks an inline script, an inline style and a request to another origin."""
    result = driver.page.evaluate(
        """async () => {
            const violations = [];
            document.addEventListener("securitypolicyviolation", (event) => violations.push(event.effectiveDirective));
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            document.body.setAttribute("style", "color: red");
            await fetch("https://example.org/").catch(() => {});
            await new Promise((resolve) => setTimeout(resolve, 50));
            return [window.ran === undefined, violations.toSorted()];
        }"""
    )
    assert result == [True, ["connect-src", "script-src-elem", "style-src-attr"]]
