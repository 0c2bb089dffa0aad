"""Invalid bodies over a real connection: exact errors without input text, on a connection that stays usable."""

from collections.abc import Iterator

import httpx
import pytest

from tests.service.conftest import GOLDEN
from tests.service.rest.invalid_bodies import INVALID, MALFORMED, SECRET, body, raw

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
