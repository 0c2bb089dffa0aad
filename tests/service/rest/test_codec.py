"""Bad bodies over a real connection: the exact answer, nothing echoed, and the connection serves on."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.conftest import GOLDEN

JSON = {"content-type": "application/json"}
SECRET = "Sesame-9"


def deep(levels: int) -> bytes:
    return b'{"inputs": ' + b"[" * levels + b'"' + SECRET.encode() + b'"' + b"]" * levels + b"}"


def body(**fields: Any) -> bytes:
    return json.dumps({"inputs": SECRET, **fields}).encode()


def raw(field: str) -> bytes:
    return b'{"inputs": "' + SECRET.encode() + b'", ' + field.encode() + b"}"


UNREADABLE = {
    "empty": b"",
    "cut": b'{"inputs": "Sesame-9',
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
    "nesting 5,000": deep(5_000),
    "single quotes": b"{'inputs': 'Sesame-9'}",
}

INVALID = {
    "no inputs": (b"{}", "invalid_field", "inputs: missing. Send it."),
    "null": (b"null", "invalid_field", "Body: wrong type"),
    "a list": (b"[]", "invalid_field", "Body: wrong type"),
    "empty list": (body(inputs=[]), "empty_input", "inputs is empty; send at least one."),
    "empty text": (body(inputs=""), "empty_input", "inputs[0] is empty or blank; send some text."),
    "blank text": (body(inputs=["a", " \t\n"]), "empty_input", "inputs[1] is empty or blank; send some text."),
    "inputs a number": (body(inputs=5), "invalid_field", "inputs: wrong type (number). Send a string or an array."),
    "an input a number": (
        body(inputs=["a", 5]),
        "invalid_field",
        "inputs[1]: wrong type (number). Send a string or an object.",
    ),
    "an input null": (
        body(inputs=[None]),
        "invalid_field",
        "inputs[0]: wrong type (null). Send a string or an object.",
    ),
    "text a number": (
        body(inputs=[{"text": 5}]),
        "invalid_field",
        "inputs[0].text: wrong type (number). Send a string.",
    ),
    "neither text nor ids": (body(inputs=[{}]), "invalid_field", "inputs[0]: neither text nor token_ids is set."),
    "text and ids": (
        body(inputs=[{"text": "a", "token_ids": [5]}]),
        "invalid_field",
        "inputs[0]: text and token_ids are both set. Send one.",
    ),
    "pair and ids": (
        body(inputs=[{"pair": "a", "token_ids": [5]}]),
        "invalid_field",
        "inputs[0]: pair and token_ids are both",
    ),
    "ids of text": (body(inputs=[{"token_ids": ["5"]}]), "invalid_field", "inputs[0].token_ids[0]: wrong type"),
    "ids of bool": (body(inputs=[{"token_ids": [True]}]), "invalid_field", "inputs[0].token_ids[0]: wrong type"),
    "nesting 100,000": (deep(100_000), "too_many_items", "Request body: too many arrays and objects (100001, limit"),
    "nesting 900": (deep(900), "invalid_field", "inputs[0]: wrong type (array). Send a string or an object."),
    "span of three": (
        body(inputs=[{"text": "abc", "spans": [[0, 1, 2]]}]),
        "invalid_field",
        "inputs[0].spans[0]: wrong number of items (3). Send",
    ),
    "257 inputs": (body(inputs=["a"] * 257), "too_many_inputs", "inputs: too many items (257, limit 256). Split"),
    "40,000 inputs": (
        body(inputs=[SECRET] * 40_000),
        "too_many_inputs",
        "inputs: too many items (40000, limit 256).",
    ),
    "unknown field": (body(x=SECRET), "unknown_field", "x: unknown field. Remove it."),
    "unknown nested field": (
        body(inputs=[{"text": "a", "y": 1}]),
        "unknown_field",
        "inputs[0].y: unknown field. Remove it",
    ),
    "odd field name": (body(**{SECRET + "!": 1}), "unknown_field", "(another name): unknown field. Remove it."),
    "model a number": (body(model=5), "invalid_field", "model: wrong type (number). Send a string."),
    "outputs a text": (body(outputs=SECRET), "invalid_field", "outputs: wrong type (string). Send an array."),
    "an unknown output": (
        body(outputs=[SECRET]),
        "invalid_field",
        'outputs[0]: unknown value. Use "pooled", "tokens",',
    ),
    "layers a number": (body(layers=5), "invalid_field", "layers: wrong type (number). Send an array."),
    "a layer a text": (body(layers=["5"]), "invalid_field", "layers[0]: wrong type"),
    "a layer true": (body(layers=[True]), "invalid_field", "layers[0]: wrong type"),
    "layer_reduce unknown": (
        body(layer_reduce="sum"),
        "invalid_field",
        'layer_reduce: unknown value. Use "concat", "mean"',
    ),
    "pooling unknown": (body(pooling="last"), "invalid_field", 'pooling: unknown value. Use "mean", "cls" or "max".'),
    "normalize a text": (
        body(normalize="true"),
        "invalid_field",
        "normalize: wrong type (string). Send true or false.",
    ),
    "dimensions a float": (body(dimensions=8.5), "invalid_field", "dimensions: wrong type"),
    "dimensions a text": (body(dimensions="8"), "invalid_field", "dimensions: wrong type"),
    "dimensions too many": (body(dimensions=385), "invalid", "dimensions must be 1..384, the width of the pooled"),
    "truncation true": (body(truncation=True), "invalid_field", 'truncation: unknown value. Use "error", "right"'),
    "encoding unknown": (body(encoding="hex"), "invalid_field", 'encoding: unknown value. Use "float" or "base64".'),
    "dtype unknown": (body(dtype="float64"), "invalid_field", 'dtype: unknown value. Use "float32", "float16",'),
    "too many tokens": (
        body(inputs=["word " * 300]),
        "input_too_long",
        'inputs[0]: too long (302 tokens, limit 256). Shorten it or set truncation to "right".',
    ),
}


@pytest.fixture
def line(rest: httpx.Client) -> Iterator[httpx.Client]:
    """A client with one connection, which must answer a golden request after whatever the test sent."""
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    with httpx.Client(base_url=rest.base_url, limits=limits, timeout=60) as client:
        golden = client.post("/v1/encode", json={"inputs": GOLDEN}).json()["results"]
        yield client
        assert client.post("/v1/encode", json={"inputs": GOLDEN}).json()["results"] == golden


def refused(answer: httpx.Response, status: int, code: str, reason: str | None) -> str:
    """Check an error answer, and return its message."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    assert reason in (None, error["reason"]), error
    assert set(error) == {"code", "reason", "message", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    assert len(answer.content) <= 1024
    assert SECRET not in answer.text
    return str(error["message"])


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_bodies(line: httpx.Client, name: str) -> None:
    """400, and why it is not JSON."""
    message = refused(
        line.post("/v1/encode", content=UNREADABLE[name], headers=JSON), 400, "INVALID_ARGUMENT", "unreadable"
    )
    assert message.startswith("Request body: not JSON (")


@pytest.mark.parametrize("name", INVALID)
def test_invalid_bodies(line: httpx.Client, name: str) -> None:
    """422, naming the field and the limit."""
    content, reason, expected = INVALID[name]
    message = refused(line.post("/v1/encode", content=content, headers=JSON), 422, "INVALID_ARGUMENT", reason)
    assert message.startswith(expected)
    assert message.endswith(".")
    assert not any(word in message for word in ("Input should", "pydantic", "<", "model_type"))


@pytest.mark.parametrize("field", ["dimensions", "x"])
def test_number_of_5000_digits_is_rejected(line: httpx.Client, field: str) -> None:
    """Refused as quickly as any other."""
    answer = line.post("/v1/encode", content=raw(f'"{field}": {"9" * 5000}'), headers=JSON)
    assert answer.status_code in (400, 422)
    refused(answer, answer.status_code, "INVALID_ARGUMENT", None)


@pytest.mark.parametrize("field", ["text", "pair"])
def test_too_many_characters(line: httpx.Client, field: str) -> None:
    """413 before they are tokenised, in every truncation mode."""
    item = {"text": "a", field: "word " * 3276 + "abcde"}
    answer = line.post("/v1/encode", json={"inputs": ["a", item], "truncation": "right"})
    message = refused(answer, 413, "RESOURCE_EXHAUSTED", "input_too_large")
    assert message.startswith(f"inputs[1].{field} has 16385 characters; the limit is 16384.")


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
def test_other_media_types(line: httpx.Client, kind: str | None) -> None:
    """415, also for JSON in another character set."""
    answer = line.post("/v1/encode", content=body(), headers={"content-type": kind} if kind else {})
    message = refused(answer, 415, "INVALID_ARGUMENT", "unsupported_media_type")
    assert message == "Content-Type: not application/json in UTF-8. Send that."


@pytest.mark.parametrize("kind", ["application/json; charset=UTF-8", "Application/JSON", "application/json;"])
def test_media_type_spellings_are_accepted(line: httpx.Client, kind: str) -> None:
    """Case and a charset of UTF-8 are fine."""
    assert line.post("/v1/encode", content=body(), headers={"content-type": kind}).status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "br", "nonsense"])
def test_encoded_bodies(line: httpx.Client, coding: str) -> None:
    """415: nothing is inflated, so there is no bomb."""
    answer = line.post("/v1/encode", content=body(), headers={**JSON, "content-encoding": coding})
    refused(answer, 415, "INVALID_ARGUMENT", "unsupported_media_type")


@pytest.mark.parametrize("declared", [True, False])
def test_body_is_rejected_when_over_the_limit(line: httpx.Client, declared: bool) -> None:
    """413 with or without a content-length."""
    content = body(inputs="a" * (2 * 2**20))
    chunks = (content[at : at + 2**16] for at in range(0, len(content), 2**16))
    answer = line.post("/v1/encode", content=content if declared else chunks, headers=JSON)
    assert "2097152 bytes" in refused(answer, 413, "RESOURCE_EXHAUSTED", "body_too_large")
    assert answer.headers["connection"] == "close"


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
def test_timeout_header_sets_the_deadline(line: httpx.Client, value: str, status: int) -> None:
    """Past ones are 504 at once, unreadable ones name the header, far ones are clamped."""
    answer = line.post("/v1/encode", content=body(), headers={**JSON, "x-request-timeout-ms": value})
    assert answer.status_code == status
    if status == 504:
        refused(answer, 504, "DEADLINE_EXCEEDED", "deadline_exceeded")
    elif status == 422:
        assert "x-request-timeout-ms" in refused(answer, 422, "INVALID_ARGUMENT", "bad_header")


def test_duplicate_keys_keep_the_last(line: httpx.Client) -> None:
    """As JSON readers commonly do."""
    answer = line.post("/v1/encode", content=b'{"inputs": "", "inputs": "Sesame-9"}', headers=JSON)
    assert answer.status_code == 200


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
def test_odd_texts_are_only_texts(line: httpx.Client, text: str) -> None:
    """200, finite numbers, offsets inside the text, and no special token but the frame's own."""
    sent = {"inputs": text, "outputs": ["pooled", "tokens"], "truncation": "right"}
    (result,) = line.post("/v1/encode", json=sent).json()["results"]
    assert len(result["pooled"]) == 384
    assert [token["special"] for token in result["tokens"]].count(True) == 2
    assert all(0 <= token["start"] <= token["end"] <= len(text) for token in result["tokens"])
    assert not {101, 102, 103, 0} & {token["id"] for token in result["tokens"][1:-1]}


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [("gzip", "gzip"), ("br, GZIP;q=0.5", "gzip"), ("gzip;q=0", None), ("identity", None), ("", None)],
)
def test_gzip_on_request(line: httpx.Client, accepted: str, coding: str | None) -> None:
    """Large responses only, and no vectors in base64; caches are told."""
    body = {"inputs": [GOLDEN] * 8}
    response = line.post("/v1/encode", json=body, headers={"accept-encoding": accepted})
    assert response.headers.get("content-encoding") == coding
    assert response.headers["vary"] == "accept-encoding"
    assert len(response.json()["results"][0]["pooled"]) == 384
    for other in ({"inputs": GOLDEN}, {"inputs": [GOLDEN] * 64, "encoding": "base64"}):
        response = line.post("/v1/encode", json=other, headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in response.headers
