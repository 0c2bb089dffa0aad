"""Request bodies: errors over a real connection, limits before items, and memory."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
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
from service.rest.routes.cohere import CohereEmbedRequest
from service.rest.routes.openai import EmbeddingsRequest
from tests.service.conftest import GOLDEN, ServiceHarness

SECRET = "Sesame-9"


def deep(levels: int) -> bytes:
    return b'{"inputs": ' + b"[" * levels + b'"' + SECRET.encode() + b'"' + b"]" * levels + b"}"


def body(**fields: Any) -> bytes:
    return json.dumps({"inputs": SECRET, **fields}).encode()


def raw(field: str) -> bytes:
    return b'{"inputs": "' + SECRET.encode() + b'", ' + field.encode() + b"}"


MALFORMED = {
    "empty": b"",
    "truncated": b'{"inputs": "Sesame-9',
    "trailing garbage": b'{"inputs": "Sesame-9"} Sesame-9',
    "not JSON": b"Sesame-9",
    "NaN": raw('"dimensions": NaN'),
    "NaN in an unknown field": raw('"x": NaN'),
    "Infinity": raw('"dimensions": -Infinity'),
    "1e999": raw('"dimensions": 1e999'),
    "lone surrogate": b'{"inputs": "Sesame-9 \\ud800"}',
    "not UTF-8": b'{"inputs": "Sesame-9 \xff"}',
    "UTF-16": '{"inputs": "Sesame-9"}'.encode("utf-16"),
    "BOM": b'\xef\xbb\xbf{"inputs": "Sesame-9"}',
    "5,000 nested arrays": deep(5_000),
    "single quotes": b"{'inputs': 'Sesame-9'}",
}
INVALID = {
    "missing inputs": (b"{}", "MISSING_FIELD", "inputs: missing. Send it."),
    "null": (b"null", "WRONG_TYPE", "Body: wrong type"),
    "array": (b"[]", "WRONG_TYPE", "Body: wrong type"),
    "number as input": (
        body(inputs=["a", 5]),
        "WRONG_TYPE",
        "inputs[1]: wrong type (number). Send a string or an object.",
    ),
    "number as text": (
        body(inputs=[{"text": 5}]),
        "WRONG_TYPE",
        "inputs[0].text: wrong type (number). Send a string.",
    ),
    "neither text nor ids": (body(inputs=[{}]), "MISSING_FIELD", "inputs[0]: text and token_ids are both missing."),
    "text and ids": (
        body(inputs=[{"text": "a", "token_ids": [5]}]),
        "CONFLICTING_FIELDS",
        "inputs[0]: text and token_ids are both set. Send one of them.",
    ),
    "pair and ids": (
        body(inputs=[{"pair": "a", "token_ids": [5]}]),
        "CONFLICTING_FIELDS",
        "inputs[0]: pair and token_ids are both",
    ),
    "booleans as token_ids": (
        body(inputs=[{"token_ids": [True]}]),
        "WRONG_TYPE",
        "inputs[0].token_ids[0]: wrong type",
    ),
    "900 nested arrays": (deep(900), "WRONG_TYPE", "inputs[0]: wrong type (array). Send a string or an object."),
    "span of three": (
        body(inputs=[{"text": "abc", "spans": [[0, 1, 2]]}]),
        "WRONG_SHAPE",
        "inputs[0].spans[0]: wrong number of items (3, required 2). Send",
    ),
    "unknown nested field": (
        body(inputs=[{"text": "a", "y": 1}]),
        "UNKNOWN_FIELD",
        "inputs[0].y: unknown field. Remove it",
    ),
    "unusual field name": (body(**{SECRET + "!": 1}), "UNKNOWN_FIELD", "(another name): unknown field. Remove it."),
    "empty nested field name": (
        body(inputs=[{"text": "a", "": 1}]),
        "UNKNOWN_FIELD",
        "inputs[0].(another name): unknown field. Remove it.",
    ),
    "name like a field that is set": (body(input="a"), "UNKNOWN_FIELD", "input: unknown field. Remove it."),
    "integers of 65 bits": (
        body(inputs=[{"token_ids": [2**64]}]),
        "OUT_OF_RANGE",
        "inputs[0].token_ids[0]: out of range (1.8446744073709552e+19). Send an integer of 64 bits.",
    ),
    "float of more than 64 bits": (body(dimensions=1e300), "OUT_OF_RANGE", "dimensions: out of range (1e+300)."),
    "number as model": (body(model=5), "WRONG_TYPE", "model: wrong type (number). Send a string."),
    "string as outputs": (body(outputs=SECRET), "WRONG_TYPE", "outputs: wrong type (string). Send an array."),
    "unknown output": (
        body(outputs=["logits"]),
        "UNKNOWN_VALUE",
        'outputs[0]: unknown value ("logits"). Use "pooled", "tokens",',
    ),
    "number as layers": (body(layers=5), "WRONG_TYPE", 'layers: wrong type (number). Send "all" or an array.'),
    "string as normalize": (
        body(normalize="true"),
        "WRONG_TYPE",
        "normalize: wrong type (string). Send true or false.",
    ),
    "float as dimensions": (body(dimensions=8.5), "WRONG_TYPE", "dimensions: wrong type"),
    "wrong truncation": (
        body(truncation=True),
        "WRONG_TYPE",
        'truncation: wrong type (boolean). Use "error", "right"',
    ),
}


# Invalid bodies over a real connection: exact errors without input text, on a connection that stays usable.

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def connected(rest: httpx.Client) -> Iterator[httpx.Client]:
    """A client with one connection."""
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    with httpx.Client(base_url=rest.base_url, limits=limits, timeout=60) as opened:
        yield opened


@pytest.fixture
def client(connected: httpx.Client) -> Iterator[httpx.Client]:
    """The client, whose connection must still work after the test."""
    golden = connected.post("/v1/encode", json={"inputs": GOLDEN}).json()["results"]
    yield connected
    assert connected.post("/v1/encode", json={"inputs": GOLDEN}).json()["results"] == golden


def error_message(response: httpx.Response, status: int, code: str, reason: str | None) -> str:
    """Check an error response and return its message."""
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), error
    assert reason in (None, error["reason"]), error
    assert set(error) == {"code", "reason", "message", "field", "minimum", "maximum", "actual", "request_id"}
    assert error["request_id"] == response.headers["x-request-id"]
    assert len(response.content) <= 1024
    assert SECRET not in response.text
    return str(error["message"])


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_body_is_rejected(client: httpx.Client, name: str) -> None:
    message = error_message(
        client.post("/v1/encode", content=MALFORMED[name], headers=JSON), 400, "INVALID_ARGUMENT", "MALFORMED_REQUEST"
    )
    encoding = name in ("not UTF-8", "UTF-16")
    assert message.startswith("Request body is not UTF-8 (byte " if encoding else "Request body is not JSON (")


@pytest.mark.parametrize("name", INVALID)
def test_invalid_body_is_rejected(client: httpx.Client, name: str) -> None:
    content, reason, expected = INVALID[name]
    message = error_message(client.post("/v1/encode", content=content, headers=JSON), 422, "INVALID_ARGUMENT", reason)
    assert message.startswith(expected)
    assert message.endswith(".")
    assert not any(word in message for word in ("Input should", "pydantic", "<", "model_type"))


@pytest.mark.parametrize("field", ["dimensions", "x"])
def test_number_of_5000_digits_is_rejected(client: httpx.Client, field: str) -> None:
    response = client.post("/v1/encode", content=raw(f'"{field}": {"9" * 5000}'), headers=JSON)
    assert response.status_code in (400, 422)
    error_message(response, response.status_code, "INVALID_ARGUMENT", None)


@pytest.mark.parametrize("field", ["text", "pair"])
def test_too_many_characters_are_rejected_with_truncation(client: httpx.Client, field: str) -> None:
    """The limit applies before tokenization."""
    item = {"text": "a", field: "word " * 3276 + "abcde"}
    response = client.post("/v1/encode", json={"inputs": ["a", item], "truncation": "right"})
    message = error_message(response, 413, "RESOURCE_EXHAUSTED", "TOO_LONG")
    path = "inputs[1]" if field == "text" else "inputs[1].pair"
    assert message.startswith(f"{path}: too many characters (16385, limit 16384).")


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json; charset=latin-1",
        "application/json; charset=utf-16",
    ],
)
def test_other_media_types_and_charsets_are_rejected(client: httpx.Client, kind: str | None) -> None:
    response = client.post("/v1/encode", content=body(), headers={"content-type": kind} if kind else {})
    message = error_message(response, 415, "INVALID_ARGUMENT", "UNSUPPORTED_MEDIA_TYPE")
    assert message == "Content-Type: not application/json in UTF-8. Send application/json."


@pytest.mark.parametrize("kind", ["application/json; charset=UTF-8", "Application/JSON", "application/json;"])
def test_media_type_is_case_insensitive_and_may_have_a_charset(client: httpx.Client, kind: str) -> None:
    assert client.post("/v1/encode", content=body(), headers={"content-type": kind}).status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "br", "nonsense"])
def test_compressed_body_is_rejected(client: httpx.Client, coding: str) -> None:
    """The server decompresses nothing, which rules out decompression bombs."""
    response = client.post("/v1/encode", content=body(), headers={**JSON, "content-encoding": coding})
    error_message(response, 415, "INVALID_ARGUMENT", "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("coding", ["identity", "Identity"])
def test_uncompressed_body_is_accepted(client: httpx.Client, coding: str) -> None:
    response = client.post("/v1/encode", content=body(), headers={**JSON, "content-encoding": coding})
    assert response.status_code == 200


@pytest.mark.parametrize("declared", [True, False])
def test_body_is_rejected_when_over_the_limit(client: httpx.Client, declared: bool) -> None:
    content = body(inputs="a" * (2 * 2**20))
    chunks = (content[start : start + 2**16] for start in range(0, len(content), 2**16))
    response = client.post("/v1/encode", content=content if declared else chunks, headers=JSON)
    message = error_message(response, 413, "RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE")
    assert message.startswith("Request body too large (")
    assert "limit 2097152" in message
    assert (str(len(content)) in message) == declared
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("0", 504),
        ("-1", 422),
        ("abc", 422),
        ("1.5", 422),
        ("", 422),
        ("9" * 13, 200),
        ("9" * 5000, 200),
        ("60000", 200),
        ("999999999999", 200),
    ],
)
def test_timeout_header_sets_the_deadline(client: httpx.Client, value: str, status: int) -> None:
    """Large values are clamped."""
    response = client.post("/v1/encode", content=body(), headers={**JSON, "x-request-timeout-ms": value})
    assert response.status_code == status
    if status == 504:
        error_message(response, 504, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
    elif status == 422:
        assert "X-Request-Timeout-Ms: not a" in error_message(response, 422, "INVALID_ARGUMENT", "INVALID_HEADER")


def test_duplicate_keys_keep_the_last(client: httpx.Client) -> None:
    """Common JSON parsers do the same."""
    response = client.post("/v1/encode", content=b'{"inputs": "", "inputs": "Sesame-9"}', headers=JSON)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        "[CLS] [SEP] [MASK] [PAD]",
        "nul \x00 inside",
        "\u202eright to left",
        "👩\u200d💻 joined",
        "e" + "\u0301" * 10_000,
        "\uffff\ufdd0 noncharacters",
        "\ufdfa" * 500,
        "x" * 16_384,
    ],
    ids=range(8),
)
def test_edge_case_texts_are_encoded_without_special_tokens(client: httpx.Client, text: str) -> None:
    """Special tokens spelled out in a text are tokenized as text. Offsets must be inside the text."""
    body = {"inputs": text, "outputs": ["pooled", "tokens"], "truncation": "right"}
    (result,) = client.post("/v1/encode", json=body).json()["results"]
    assert len(result["pooled"]) == 384
    assert [token["special"] for token in result["tokens"]].count(True) == 2
    assert all(0 <= token["start"] <= token["end"] <= len(text) for token in result["tokens"])
    assert not {101, 102, 103, 0} & {token["id"] for token in result["tokens"][1:-1]}


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("br, GZIP;q=0.5", "gzip"),
        ("br|gzip", "gzip"),
        ("gzip;q=0", None),
        ("identity", None),
        ("", None),
    ],
)
def test_large_json_response_is_compressed_on_request(client: httpx.Client, accepted: str, coding: str | None) -> None:
    """Small responses and base64 vectors are never compressed. "|" separates the values of two headers."""
    body = {"inputs": [GOLDEN] * 8}
    headers = [("accept-encoding", value) for value in accepted.split("|")]
    response = client.post("/v1/encode", json=body, headers=headers)
    assert response.headers.get("content-encoding") == coding
    assert response.headers["vary"] == "accept-encoding"
    assert len(response.json()["results"][0]["pooled"]) == 384
    for other in ({"inputs": GOLDEN}, {"inputs": [GOLDEN] * 64, "encoding_format": "base64"}):
        response = client.post("/v1/encode", json=other, headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in response.headers


# Request parsing: limits before items, the first problem in document order, and memory for bodies.

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
        EmbeddingsRequest,
        {"input": ["a"] * MANY, "model": "m"},
        f"input: too many items ({MANY}, limit 256).",
    ),
    "embeddings of ids": (
        EmbeddingsRequest,
        {"input": [5] * MANY, "model": "m"},
        f"input: too many items ({MANY}, limit",
    ),
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
    assert problem({"texts": ["a"]}, CohereEmbedRequest) == f"input_type: missing. Use {values}."


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
    assert problem(document, EmbeddingsRequest) == expected


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
