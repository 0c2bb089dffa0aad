"""Reading requests: limits before items, one problem in document order, and memory of bodies being received."""

import json
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from service.config import Settings
from service.errors import Overloaded, ServiceError
from service.rest import requests
from service.rest.codec import StrictModel
from service.rest.problems import invalid_body
from service.rest.requests import BodyBudget, RequestReader, parse_json
from service.rest.routes.explain import AttendBody, CompareBody
from service.rest.routes.native import EncodeBody
from service.rest.routes.openai import EmbeddingsBody
from tests.service.conftest import GOLDEN, House

LIMITS = {
    "inputs": 256,
    "spans": 1024,
    "spans_per_request": 4096,
    "token_ids": 16384,
    "occurrences": 64,
    "layers": 7,
    "heads": 12,
    "outputs": 5,
}
MANY = 20_000


def problem(document: Any, model: type[StrictModel] = EncodeBody) -> str:
    with pytest.raises(ServiceError) as raised:
        parse_json(json.dumps(document).encode(), model, LIMITS)
    return raised.value.message


@pytest.fixture
def error_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of error objects of each failed validation."""
    counts: list[int] = []

    def count(error: ValidationError, document: Any, model: Any) -> Any:
        counts.append(error.error_count())
        return invalid_body(error, document, model)

    monkeypatch.setattr(requests, "invalid_body", count)
    return counts


SPAN = [0, 1]
FLOODS: dict[str, tuple[type[StrictModel], Any, str]] = {
    "inputs of a wrong type": (EncodeBody, {"inputs": [5] * MANY}, f"inputs: too many items ({MANY}, limit 256)."),
    "valid inputs": (EncodeBody, {"inputs": ["a"] * MANY}, f"inputs: too many items ({MANY}, limit 256)."),
    "embeddings": (
        EmbeddingsBody,
        {"input": ["a"] * MANY, "model": "m"},
        f"input: too many items ({MANY}, limit 256).",
    ),
    "embeddings of ids": (EmbeddingsBody, {"input": [5] * MANY, "model": "m"}, f"input: too many items ({MANY}, limit"),
    "wrong ids": (
        EncodeBody,
        {"inputs": [{"token_ids": ["a"] * 16384}]},
        "inputs[0].token_ids[0]: wrong type (string).",
    ),
    "ids": (EncodeBody, {"inputs": [{"token_ids": [5] * MANY}]}, f"inputs[0].token_ids: too many items ({MANY}, limit"),
    "layers": (EncodeBody, {"inputs": "a", "layers": ["a"] * MANY}, f"layers: too many items ({MANY}, limit 7)."),
    "heads": (AttendBody, {"inputs": "a", "heads": [1.5] * MANY}, f"heads: too many items ({MANY}, limit 12)."),
    "outputs": (EncodeBody, {"inputs": "a", "outputs": ["a"] * MANY}, f"outputs: too many items ({MANY}, limit 5)."),
    "spans of one input": (
        EncodeBody,
        {"inputs": [{"text": "a", "spans": [SPAN] * 1025}]},
        "inputs[0].spans: too many items (1025, limit 1024).",
    ),
    "spans of a request": (
        EncodeBody,
        {"inputs": [{"text": "a", "spans": [SPAN] * 1024}] * 5},
        "inputs: too many spans (5120, limit 4096).",
    ),
    "wrong spans": (EncodeBody, {"inputs": [{"text": "a", "spans": [["a"]] * 1024}]}, "inputs[0].spans[0]"),
    "occurrences": (CompareBody, {"occurrences": [{}] * 5000}, "occurrences: too many items (5000, limit 64)."),
    "unknown fields": (EncodeBody, {f"x{number}": 1 for number in range(MANY)}, "x0: unknown field. Remove it."),
    "unknown nested fields": (
        EncodeBody,
        {"inputs": [{f"x{number}": 1 for number in range(MANY)}]},
        "inputs[0].x0: unknown field. Remove it.",
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_validation_stops_at_first_error(name: str, error_counts: list[int]) -> None:
    """At most one error object per field, however many items are invalid."""
    model, document, expected = FLOODS[name]
    assert problem(document, model).startswith(expected)
    assert max(error_counts) <= 2


@pytest.mark.parametrize(
    ("unit", "noun"), [(b"[],", "arrays and objects"), (b"{},", "arrays and objects"), (b'"",""', "strings"),
                       (b'"a":1,', "strings"), (b'[""],', "strings")]
)  # fmt: skip
def test_body_of_too_many_values_is_not_parsed(monkeypatch: pytest.MonkeyPatch, unit: bytes, noun: str) -> None:
    """Parsing alone would hold the interpreter lock for too long."""
    monkeypatch.setattr(orjson, "loads", None)
    body = b'{"inputs": [' + unit * 100_000 + b"0]}"
    with pytest.raises(ServiceError, match=f"^Request body: too many {noun}"):
        parse_json(body, EncodeBody, LIMITS)


def test_brackets_in_texts_are_no_containers() -> None:
    """Nor are those behind escaped quotes."""
    text = '[{"\\' * 4000
    body = parse_json(json.dumps({"inputs": [text] * 32}).encode(), EncodeBody, LIMITS)
    assert body.inputs == [text] * 32


ORDER: dict[str, tuple[Any, str]] = {
    "typo of the only field": ({"input": "x"}, 'input: unknown field. Did you mean "inputs"?'),
    "typo of an option": ({"inputs": "a", "pooling_": "mean"}, 'pooling_: unknown field. Did you mean "pooling"?'),
    "nested typo": ({"inputs": [{"texts": "a"}]}, 'inputs[0].texts: unknown field. Did you mean "text"?'),
    "unknown before invalid": ({"x": 1, "inputs": 5}, "x: unknown field. Remove it."),
    "invalid before unknown": ({"inputs": 5, "x": 1}, "inputs: wrong type (number). Send a string or an array."),
    "order of the document": ({"dtype": 1, "layers": 1, "inputs": "a"}, "dtype: unknown value."),
    "order of the items": (
        {"inputs": ["a", {"pair": 5, "text": 5}]},
        "inputs[1].pair: wrong type (number). Send a string.",
    ),
    "missing comes last": ({"dtype": "float64"}, "dtype: unknown value."),
    "missing": ({}, "inputs: missing. Send it."),
    "literal": (
        {"inputs": "a", "layer_reduce": "Sesame"},
        'layer_reduce: unknown value. Use "concat", "mean" or "stack".',
    ),
    "named like a branch": ({"<item>": 1}, "(another name): unknown field. Remove it."),
}


@pytest.mark.parametrize("name", ORDER)
def test_first_problem_in_document_order_is_reported(name: str) -> None:
    """One problem, and no alternatives of a union."""
    document, expected = ORDER[name]
    message = problem(document)
    assert message.startswith(expected)
    assert "Sesame" not in message


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"input": [["a"]], "model": "m"}, "input[0][0]: wrong type (string). Send an integer."),
        ({"input": [1, "a"], "model": "m"}, "input[1]: wrong type (string). Send an integer."),
        ({"input": ["a", 1], "model": "m"}, "input[1]: wrong type (number). Send a string."),
        ({"input": ["a", ["b"]], "model": "m"}, "input[1]: wrong type (array). Send a string."),
        ({"input": None, "model": "m"}, "input: wrong type (null). Send a string."),
        ({"inputs": "a", "model": "m"}, 'inputs: unknown field. Did you mean "input"?'),
    ],
)
def test_openai_input_has_one_type_of_items(document: Any, expected: str) -> None:
    """That of the first item."""
    assert problem(document, EmbeddingsBody) == expected


def test_body_budget_counts_bytes_until_they_are_given_back() -> None:
    """Over the limit the error says when to retry."""
    budget = BodyBudget(100)
    budget.take(60)
    with pytest.raises(Overloaded) as raised:
        budget.take(60)
    assert (budget.used, raised.value.http_status, raised.value.retry_after_s) == (60, 503, 1)
    budget.give_back(60)
    budget.take(100)


async def test_body_budget_is_free_after_requests(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """After valid, invalid and too large bodies alike; a full budget rejects."""
    readers: list[RequestReader] = []
    original = RequestReader._receive

    async def receive(self: RequestReader, request: Any) -> Any:
        readers.append(self)
        return await original(self, request)

    monkeypatch.setattr(RequestReader, "_receive", receive)
    for body in ({"inputs": GOLDEN}, {"inputs": 5}, {"inputs": "a" * Settings().max_request_bytes}):
        await house.post("/v1/encode", body)
    assert [reader.budget.used for reader in readers] == [0, 0, 0]
    readers[0].budget.take(Settings().max_pending_request_bytes)
    response = await house.post("/v1/encode", {"inputs": GOLDEN})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["message"].startswith("Request bodies: too much memory in use (")
    assert house.sample("attendant_rejected_total", reason="overload") == 1


async def test_tokenize_honors_the_timeout_header(house: House) -> None:
    """A deadline that has passed is 504, or the tokens if the engine had them already."""
    deadlines: list[float | None] = []
    original = house.engine.tokenize

    async def tokenize(request: Any) -> Any:
        deadlines.append(request.deadline)
        return await original(request)

    house.engine.tokenize = tokenize  # type: ignore[method-assign]
    for value in ("500", "500 ", "\t500"):
        await house.post("/v1/tokenize", {"inputs": GOLDEN}, **{"x-request-timeout-ms": value})
    await house.post("/v1/tokenize", {"inputs": GOLDEN})
    assert [deadline is not None for deadline in deadlines] == [True, True, True, False]
