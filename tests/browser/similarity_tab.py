"""The similarity tab with synthetic responses."""

import json
from typing import Any

from playwright.sync_api import Route

from tests.browser.page_driver import PageDriver

ROUTE = "/v1/similarity"
RESULT = "() => document.querySelector('#word-pairs') && !document.querySelector('[aria-busy=true]')"


def units(text: str) -> list[dict[str, Any]]:
    words, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        words.append({"text": word, "start": start, "end": start + len(word), "segment": 0, "special": False})
        start += len(word)
    return words


def response_to(body: dict[str, Any], unavailable: str | None = None) -> dict[str, Any]:
    """Return a response with negative and positive contributions; their sum and the rest make up the score."""
    pairs = []
    for place, document in enumerate(body["documents"]):
        rows, columns = units(body["queries"][0]), units(document)
        values = [[((3 * i + 5 * j) % 11 - 3) / 100 for j in range(len(columns))] for i in range(len(rows))]
        rest = {"special_tokens": 0.031, "prompt": 0.0, "bias": -0.004, "dropped": 0.0}
        score = sum(map(sum, values)) + sum(rest.values())
        pairs.append(
            {
                "query": 0,
                "document": place,
                "score": score,
                "contributions": None if unavailable else values,
                "rest": None if unavailable else rest,
                "query_effects": [(i % 3 - 1) / 50 for i in range(len(rows))],
                "document_effects": [(j % 4 - 1) / 40 for j in range(len(columns))],
            }
        )
    sides = {"token_count": 9, "truncated": False}
    return {
        "model": "m",
        "precision": "float32",
        "similarity": "cosine",
        "scores": [[pair["score"] for pair in pairs]],
        "queries": [sides | {"units": units(text)} for text in body["queries"]],
        "documents": [sides | {"units": units(text)} for text in body["documents"]],
        "pairs": pairs,
        "contributions_unavailable": unavailable,
    }


def intercept(driver: PageDriver, unavailable: str | None = None) -> None:
    """Answer the tab's requests with synthetic responses."""

    def answer(route: Route) -> None:
        route.fulfill(json=response_to(json.loads(route.request.post_data or ""), unavailable))

    driver.page.route(f"**{ROUTE}", answer)


def last_pair(driver: PageDriver, place: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the response to the tab's last request, and one of its pairs."""
    with driver.page.expect_response(f"**{ROUTE}") as received:
        driver.page.evaluate(
            "fetch('v1/similarity', { method: 'POST', headers: { 'content-type': 'application/json' },"
            f" body: {json.dumps(json.dumps(driver.sent_bodies(ROUTE)[-1]))} }})"
        )
    body: dict[str, Any] = received.value.json()
    return body, body["pairs"][place]
