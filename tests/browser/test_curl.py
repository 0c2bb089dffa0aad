"""The command to copy is the request behind the view, and it runs."""

import json
import os
import subprocess
from typing import Any

import httpx
import pytest

from tests.browser.conftest import NewVisit
from tests.browser.visit import Visit

AWKWARD = """It's "the bank" of $HOME, `pwd` \\ and 銀行 — isn't it?"""


def run(command: str) -> Any:
    """In a shell, as pasted."""
    environment = {"PATH": os.environ["PATH"], "no_proxy": "*"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=60, env=environment)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("section", "route"), [("#map", "/v1/attend"), ("#comparison", "/v1/compare")])
def test_it_gives_what_the_page_shows(visit: Visit, rest: httpx.Client, section: str, route: str) -> None:
    """Whatever is in the sentence."""
    visit.type(1, AWKWARD).choose(kind="probs", layer="3", head="5")
    visit.page.locator(f"{section} summary").click()
    command = visit.page.locator(f"{section} pre").inner_text()
    assert visit.base + route in command
    body = visit.asked(route)[-1]
    assert AWKWARD in json.dumps(body, ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\")
    assert run(command) == rest.post(route, json=body).raise_for_status().json()


def test_it_can_be_copied(new_visit: NewVisit) -> None:
    """With one button, which says that it did."""
    visit = new_visit(permissions=["clipboard-read", "clipboard-write"]).open()
    visit.page.locator("#map summary").click()
    visit.page.locator("#map").get_by_role("button", name="Copy").click()
    visit.page.get_by_text("Copied.").wait_for()
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    assert copied == visit.page.locator("#map pre").inner_text()
