"""The curl commands of the page."""

import json
import os
import subprocess
from typing import Any

import httpx
import pytest

from tests.browser.conftest import NewDriver
from tests.browser.page_driver import PageDriver

SHELL_CHARACTERS = """It's "the bank" of $HOME, `pwd` \\ and 銀行 — isn't it?"""


def run(command: str) -> Any:
    """Run a command in a shell, and parse its output."""
    environment = {"PATH": os.environ["PATH"], "no_proxy": "*"}
    result = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=60, env=environment)
    return json.loads(result.stdout)


@pytest.mark.parametrize(("section", "route"), [("#map", "/v1/attend"), ("#comparison", "/v1/compare")])
def test_curl_command_returns_the_response_behind_the_view(
    driver: PageDriver, rest: httpx.Client, section: str, route: str
) -> None:
    """The sentence contains characters that are special in a shell."""
    driver.type(1, SHELL_CHARACTERS).choose(kind="probs", layer="3", head="5")
    driver.page.locator(f"{section} summary").click()
    command = driver.page.locator(f"{section} pre").inner_text()
    assert driver.base + route in command
    body = driver.sent_bodies(route)[-1]
    assert SHELL_CHARACTERS in json.dumps(body, ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\")
    assert run(command) == rest.post(route, json=body).raise_for_status().json()


def test_curl_command_can_be_copied(new_driver: NewDriver) -> None:
    driver = new_driver(permissions=["clipboard-read", "clipboard-write"]).open()
    driver.page.locator("#map summary").click()
    driver.page.locator("#map").get_by_role("button", name="Copy").click()
    driver.page.get_by_text("Copied.").wait_for()
    copied = driver.page.evaluate("navigator.clipboard.readText()")
    assert copied == driver.page.locator("#map pre").inner_text()
