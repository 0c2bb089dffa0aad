"""Drives the page in a real browser, and records its requests and errors."""

import json
import time
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Page, Request, Route

TIMEOUT_MS = 20_000
IDLE = """() => document.querySelector("#map td, #map .heatmap, #notices .card, .strip:not([hidden])")
    && !document.querySelector("[aria-busy=true]")"""
CELLS = """(selector) => [...document.querySelectorAll(selector)].map(
    (row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent))"""


def format_number(value: float) -> str:
    """Format a number like the page does."""
    text = str(Decimal(value).quantize(Decimal("0.001"), ROUND_HALF_UP))
    return text.replace("-", "" if Decimal(text) == 0 else "\u2212")


class PageDriver:
    """A browser window with the page."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.requests: list[Request] = []
        self.errors: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("request", self.record)
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def record(self, request: Request) -> None:
        self.requests.append(request)

    def reset(self) -> "PageDriver":
        """Clear the window's requests, errors and routes."""
        self.page.unroute_all()
        self.page.mouse.move(0, 0)
        self.requests.clear()
        self.errors.clear()
        return self

    def hold(self, pattern: str, part: str = "") -> Callable[[], Route]:
        """Hold the requests with this URL and part of the body, and return a function that waits for the first one."""
        held: list[Route] = []

        def hold(route: Route) -> None:
            if part in (route.request.post_data or ""):
                held.append(route)
            else:
                route.continue_()

        self.page.route(pattern, hold)

        def first() -> Route:
            deadline = time.monotonic() + TIMEOUT_MS / 1000
            while not held:
                assert time.monotonic() < deadline, f"no request to {pattern}"
                self.page.wait_for_timeout(20)  # unlike a sleep, it lets the request arrive
            return held[0]

        return first

    def open(self, fragment: str = "") -> "PageDriver":
        """Open the page, or a link to it, and wait for its responses."""
        if fragment:
            self.page.goto("about:blank")  # otherwise the page is not reloaded and only gets a new fragment
        self.page.goto(f"{self.base}/#{fragment}" if fragment else self.base)
        return self.settle()

    def open_texts(self, *texts: str, explore: bool = False, **parts: str) -> "PageDriver":
        """Open a link to sentences, with all sections unfolded if `explore`."""
        named = {f"t{place}": text for place, text in enumerate(texts)}
        self.open(urlencode({"v": "1", **named, **({"explore": "1"} if explore else {}), **parts}))
        if explore:
            self.page.locator("#pair-details > summary").click()
        return self

    def explore(self) -> "PageDriver":
        """Unfold "Explore layers and heads"."""
        self.page.locator("#explore > summary").click()
        return self.settle()

    def settle(self) -> "PageDriver":
        self.page.wait_for_function(IDLE)
        return self

    def choose(self, **choices: str) -> "PageDriver":
        """Set pickers by id."""
        for name, value in choices.items():
            self.page.select_option(f"#{name}", value)
        return self.settle()

    def slide(self, layer: int) -> "PageDriver":
        self.page.locator("#layer").fill(str(layer))
        return self.settle()

    def type(self, number: int, text: str) -> "PageDriver":
        """Replace the text of sentence 1, 2, ..."""
        self.field(number).fill(text)
        return self.settle()

    def field(self, number: int) -> Any:
        return self.page.get_by_label(f"Sentence {number}", exact=True)

    def add(self, text: str) -> "PageDriver":
        """Add a sentence and focus its field."""
        self.page.get_by_role("button", name="Add a sentence").click()
        self.page.keyboard.insert_text(text)
        return self.settle()

    def pick(self, number: int, word: str, index: int = 0) -> "PageDriver":
        strip = self.page.get_by_role("group", name=f"Words of sentence {number}", exact=True)
        strip.get_by_role("button", name=word).nth(index).click()
        return self.settle()

    def sent_bodies(self, route: str = "/v1/attend") -> list[dict[str, Any]]:
        """Return the request bodies sent to a route, oldest first, except for the thumbnails."""
        bodies = [json.loads(request.post_data or "") for request in self.requests if request.url == self.base + route]
        return [body for body in bodies if "encoding_format" not in body]

    def cells(self, selector: str = "#map tbody tr") -> list[list[str]]:
        cells: list[list[str]] = self.page.evaluate(CELLS, selector)
        return cells

    def selected_words(self) -> list[str]:
        """Return the selected word of each sentence that has one."""
        return self.page.locator(".strip:not([hidden]) [aria-pressed=true] .text").all_inner_texts()

    def line(self, number: int = 1) -> str:
        """Return the line below a sentence, which lists the contributions to its selected word."""
        return self.page.locator(".sentence .line").nth(number - 1).inner_text()

    def finding(self) -> str:
        """Return the finding below the sentences, with nonbreaking spaces normalized."""
        return self.page.locator("#finding").inner_text().replace("\u00a0", " ")

    def values(self, number: int = 1) -> list[str]:
        return self.page.locator(".strip").nth(number - 1).locator(".value").all_inner_texts()

    def focused(self) -> str:
        name: str = self.page.evaluate(
            "() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()"
        )
        return name

    def tab_to(self, selector: str) -> None:
        """Press Tab until the focused element matches a selector."""
        for _ in range(80):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"Tab does not reach {selector}")
