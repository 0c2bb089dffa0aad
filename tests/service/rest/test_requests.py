"""Request parsing: limits before items, the first problem in document order, and memory for bodies."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from attendant_client.types import AttendRequest, CompareRequest, EncodeRequest
from pydantic import BaseModel, ValidationError

from service.config import Settings
from service.engine.engine import Engine
from service.errors import ServiceError
from service.operations.inputs import Call
from service.operations.table import OPERATIONS
from service.rest import bodies
from service.rest.bodies import RequestReader, invalid_body, model_of, parse_json
from service.rest.routes.cohere import CohereEmbedBody
from service.rest.routes.openai import EmbeddingsBody
from tests.service.conftest import GOLDEN, ServiceHarness

EncodeBody, AttendBody, CompareBody = map(model_of, (EncodeRequest, AttendRequest, CompareRequest))
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


def problem(document: Any, model: type[BaseModel] = EncodeBody) -> str:
    with pytest.raises(ServiceError) as raised:
        parse_json(json.dumps(document).encode(), model, LIMITS)
    return raised.value.message


@pytest.fixture
def error_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of error objects in each failed validation."""
    counts: list[int] = []

    def count(error: ValidationError, document: Any, model: Any) -> Any:
        counts.append(error.error_count())
        return invalid_body(error, document, model)

    monkeypatch.setattr(bodies, "invalid_body", count)
    return counts


SPAN = [0, 1]
FLOODS: dict[str, tuple[type[BaseModel], Any, str]] = {
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
        "inputs: too many spans in the request (5120, limit 4096).",
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
    """The number of error objects must not depend on the number of invalid items."""
    model, document, expected = FLOODS[name]
    assert problem(document, model).startswith(expected)
    assert max(error_counts) <= 2


@pytest.mark.parametrize(
    ("unit", "noun"), [(b"[],", "arrays and objects"), (b"{},", "arrays and objects"), (b'"",""', "strings"),
                       (b'"a":1,', "strings"), (b'[""],', "strings")]
)  # fmt: skip
def test_body_with_too_many_values_is_not_parsed(monkeypatch: pytest.MonkeyPatch, unit: bytes, noun: str) -> None:
    """Parsing would hold the GIL too long."""
    monkeypatch.setattr(orjson, "loads", None)
    body = b'{"inputs": [' + unit * 100_000 + b"0]}"
    with pytest.raises(ServiceError, match=f"^Too many {noun} in the request body "):
        parse_json(body, EncodeBody, LIMITS)


def test_brackets_in_strings_are_not_counted_as_containers() -> None:
    """The strings contain escaped quotes."""
    text = '[{"\\' * 4000
    body: Any = parse_json(json.dumps({"inputs": [text] * 32}).encode(), EncodeBody, LIMITS)
    assert body.inputs == [text] * 32


ORDER: dict[str, tuple[Any, str]] = {
    "typo of the only field": ({"input": "x"}, "input: unknown field. Did you mean `inputs`?"),
    "typo of an option": ({"inputs": "a", "pooling_": "mean"}, "pooling_: unknown field. Did you mean `pooling`?"),
    "nested typo": ({"inputs": [{"texts": "a"}]}, "inputs[0].texts: unknown field. Did you mean `text`?"),
    "unknown before invalid": ({"x": 1, "inputs": 5}, "x: unknown field. Remove it."),
    "invalid before unknown": ({"inputs": 5, "x": 1}, "inputs: wrong type (number). Send a string or an array."),
    "order of the document": ({"dtype": 1, "layers": 1, "inputs": "a"}, "dtype: wrong type (number)."),
    "order of the items": (
        {"inputs": ["a", {"pair": 5, "text": 5}]},
        "inputs[1].pair: wrong type (number). Send a string.",
    ),
    "missing comes last": ({"dtype": "float64"}, 'dtype: unknown value ("float64").'),
    "missing": ({}, "inputs: missing. Send it."),
    "literal": (
        {"inputs": "a", "layer_reduce": "sum"},
        'layer_reduce: unknown value ("sum"). Use "concat", "mean" or "stack".',
    ),
    "named like a branch": ({"<item>": 1}, "(another name): unknown field. Remove it."),
}


@pytest.mark.parametrize("name", ORDER)
def test_first_problem_in_document_order_is_reported(name: str) -> None:
    """The message has a single problem, without the alternatives of a union."""
    document, expected = ORDER[name]
    message = problem(document)
    assert message.startswith(expected)
    assert "Sesame" not in message


def test_error_for_a_missing_enum_lists_its_values() -> None:
    values = '"search_query", "search_document", "classification" or "clustering"'
    assert problem({"texts": ["a"]}, CohereEmbedBody) == f"input_type: missing. Use {values}."


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"input": [["a"]], "model": "m"}, "input[0][0]: wrong type (string). Send an integer."),
        ({"input": [1, "a"], "model": "m"}, "input[1]: wrong type (string). Send an integer."),
        ({"input": ["a", 1], "model": "m"}, "input[1]: wrong type (number). Send a string."),
        ({"input": ["a", ["b"]], "model": "m"}, "input[1]: wrong type (array). Send a string."),
        ({"input": None, "model": "m"}, "input: wrong type (null). Send a string or an array."),
        ({"inputs": "a", "model": "m"}, "input: missing. Rename `inputs`."),
    ],
)
def test_openai_input_items_must_have_the_type_of_the_first_item(document: Any, expected: str) -> None:
    assert problem(document, EmbeddingsBody) == expected


async def test_body_budget_is_released_after_requests(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bodies are valid, invalid and too large."""
    readers: list[RequestReader] = []
    original = RequestReader._receive

    async def receive(self: RequestReader, request: Any) -> Any:
        readers.append(self)
        return await original(self, request)

    monkeypatch.setattr(RequestReader, "_receive", receive)
    for body in ({"inputs": GOLDEN}, {"inputs": 5}, {"inputs": "a" * Settings().max_request_bytes}):
        await harness.post("/v1/encode", body)
    assert [reader.budget.used for reader in readers] == [0, 0, 0]
    readers[0].budget.acquire("other", Settings().max_pending_request_bytes)
    response = await harness.post("/v1/encode", {"inputs": GOLDEN})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["message"].startswith("Too much memory in use for request bodies (")
    assert harness.sample("attendant_rejected_requests_total", reason="overload") == 1


async def test_tokenize_has_the_deadline_of_the_timeout_header(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[float | None] = []
    original = OPERATIONS["tokenize"]

    async def tokenize(engine: Engine, request: Any, call: Call) -> Any:
        deadlines.append(call.deadline)
        return await original.run(engine, request, call)

    monkeypatch.setitem(OPERATIONS, "tokenize", replace(original, run=tokenize))
    for value in ("500", "500 ", "\t500"):
        await harness.post("/v1/tokenize", {"inputs": GOLDEN}, **{"x-request-timeout-ms": value})
    await harness.post("/v1/tokenize", {"inputs": GOLDEN})
    assert [deadline is not None for deadline in deadlines] == [True, True, True, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"inputs": "café"}'.encode("latin-1"), "Request body is not UTF-8 (byte 15). Encode it in UTF-8."),
        (
            b'{"inputs": }',
            "Request body is not JSON (unexpected character, expected a JSON value: line 1 column 12 (char 11)). "
            "Correct it.",
        ),
    ],
    ids=["Latin-1", "no value"],
)
def test_malformed_body_names_cause_and_position(content: bytes, message: str) -> None:
    with pytest.raises(ServiceError) as raised:
        parse_json(content, EncodeBody, LIMITS)
    assert raised.value.message == message


async def test_declared_size_over_the_limit_is_named(harness: ServiceHarness) -> None:
    size = Settings().max_request_bytes + 100
    headers = {"content-type": "application/json"}
    error = (await harness.client.post("/v1/encode", content=b" " * size, headers=headers)).json()["error"]
    assert (error["actual"], error["maximum"]) == (size, Settings().max_request_bytes)
