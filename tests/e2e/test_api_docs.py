"""The examples in docs/api.md: each request returns the response shown on the page."""

import json
import re
from typing import Any, get_args

import httpx
import pytest

from service.error_reasons import Reason
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = re.findall(
    r"```http\n(GET|POST) (\S+)\n(?:\n(.*?)\n)?```\n(?:(?!```http).)*?```json\n(.*?)```", PAGE, re.DOTALL
)
MACHINE_FIELDS = frozenset(
    (
        "backend_reason",
        "created",
        "digest",
        "length_buckets",
        "max_batch_tokens",
        "model_dtype",
        "precision",
        "provider",
        "threads",
        "version",
    )
)
"""Fields whose values depend on the machine."""
REQUEST_ID = "3b9950e19c38cfea"


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"), EXAMPLES, ids=[f"{path}-{n}" for n, (_, path, _, _) in enumerate(EXAMPLES)]
)
def test_example_returns_what_the_page_shows(
    rest: httpx.Client, method: str, path: str, body: str, expected: str
) -> None:
    headers = {"x-request-id": REQUEST_ID}
    response = rest.request(method, path, json=json.loads(body) if body else None, headers=headers)
    assert_same(response.json(), json.loads(expected))


def assert_same(actual: Any, expected: Any, name: str = "") -> None:
    """Compare names, types and values, with numbers within bfloat16 rounding."""
    if name in MACHINE_FIELDS:
        assert type(actual) is type(expected), name
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_same(actual[key], value, key)
    elif isinstance(expected, list):
        assert len(actual) == len(expected), name
        for item, value in zip(actual, expected, strict=True):
            assert_same(item, value, name)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=0.02), name
    else:
        assert actual == expected, name


def test_every_reason_is_documented() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE) == sorted(get_args(Reason))
