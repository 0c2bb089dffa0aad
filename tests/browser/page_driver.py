"""A driver of the page in a real browser, which records the page's requests and errors."""

import json
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from playwright.sync_api import Page, Request

TIMEOUT_MS = 20_000
IDLE = """() => document.querySelector("#map .matrix td, #map .heatmap, #notices .card")
    && !document.querySelector("[aria-busy=true]")"""
CELLS = """(selector) => [...document.querySelectorAll(selector)].map(
    (row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent))"""


def format_number(value: float, digits: int = 3) -> str:
    """Format a number as the page does."""
    text = str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
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
        """Forget the requests, errors and routes of this window."""
        self.page.unroute_all()
        self.page.mouse.move(0, 0)
        self.requests.clear()
        self.errors.clear()
        return self

    def open(self) -> "PageDriver":
        """Open the page and wait for its responses."""
        self.page.goto(self.base)
        return self.settle()

    def settle(self) -> "PageDriver":
        """Wait until no request is pending."""
        self.page.wait_for_function(IDLE)
        return self

    def choose(self, **choices: str) -> "PageDriver":
        """Set pickers by their id."""
        for name, value in choices.items():
            self.page.select_option(f"#{name}", value)
        return self.settle()

    def type(self, number: int, text: str) -> "PageDriver":
        """Replace the text of sentence 1, 2, ..."""
        self.page.get_by_label(f"Sentence {number}", exact=True).fill(text)
        return self.settle()

    def add(self, text: str) -> "PageDriver":
        """Add a sentence, with the focus in it."""
        self.page.get_by_role("button", name="Add a sentence").click()
        self.page.keyboard.insert_text(text)
        return self.settle()

    def sent_bodies(self, route: str = "/v1/attend") -> list[dict[str, Any]]:
        """Return the request bodies for a route, oldest first, without those for the thumbnails."""
        bodies = [json.loads(request.post_data or "") for request in self.requests if request.url == self.base + route]
        return [body for body in bodies if "encoding_format" not in body]

    def cells(self, selector: str = "#map tbody tr") -> list[list[str]]:
        """Return the texts of the cells of a table, without row headers."""
        cells: list[list[str]] = self.page.evaluate(CELLS, selector)
        return cells

    def line(self, number: int = 1) -> str:
        """Return the text below a sentence, which lists the contributions to its selected word."""
        return self.page.locator(".sentence .line").nth(number - 1).inner_text()

    def focused(self) -> str:
        """Return the accessible name or text of the focused element."""
        name: str = self.page.evaluate(
            "() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()"
        )
        return name

    def tab_to(self, selector: str) -> None:
        """Press Tab until the focused element matches a selector."""
        for _ in range(60):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"Tab does not reach {selector}")
