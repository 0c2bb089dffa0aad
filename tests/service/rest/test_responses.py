"""Responses: rendered in parts, so that other tasks can run in between, and compressed."""

import asyncio
import base64
import gzip
import json
import time
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from attendant_client import types
from attendant_client.types import Array, Token
from attendant_client.wire import Base64
from starlette.requests import Request

from service.errors import MalformedRequest, RequestTooLarge
from service.request_log import RequestRecord
from service.rest import responses
from service.rest.bodies import CODINGS, WINDOW_BITS, inflate
from service.rest.responses import PART_BYTES, Base64Rows, Table, accepted, compress_parts, json_response, render
from tests.oip_messages import CODINGS as COMPRESS

RANDOM = np.random.default_rng(7)


def array(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype("<f4")


DOCUMENTS: dict[str, Any] = {
    "small": {"results": [{"pooled": array(384)}]},
    "one long vector": {"pooled": array(100_000)},
    "wide rows": [array(3, 40_000)],
    "layers": {"token_vectors": array(7, 128, 384), "a": None, "b": [True, "x"]},
    "many inputs": {"results": [{"index": n, "pooled": array(384)} for n in range(512)], "usage": {"tokens": 1}},
    "base64": {"a": [{"data": Base64(array(512, 385))}, Base64(array(1))]},
    "tokens": {"tokens": [Token(n, "a" * (n % 7), n, n + 1, None, 0, False) for n in range(20_000)]},
    "ints": {"indices": [[n, n + 1] for n in range(100_000)], "empty": [], "none": {}},
    "columns": {"results": Table(count=range(600), pooled=array(600, 384)), "usage": {"tokens": 1}},
    "wide columns": Table(count=[1, 2, 3], pooled=array(3, 20_000)),
    "columns in base64": {"data": Table(index=range(300), pooled=Base64Rows(array(300, 385)))},
    "wide columns in base64": Table(index=range(3), pooled=Base64Rows(array(3, 50_000), "ubinary")),
    "no items": {"static": array(0, 384), "more": array(300, 384)},
}


def cells_of(column: Any) -> list[Any]:
    """Return the cells of a column of a table."""
    if not isinstance(column, Base64Rows):
        return [*column]
    texts = [Base64(row) for row in column.matrix]
    if not column._described:
        return [*texts]
    return [{"shape": list(column.matrix.shape[1:]), "dtype": "float32", "data": text} for text in texts]


def plain(value: Any) -> Any:
    """Return the document as `json.loads` would."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Table):
        return [
            {name: plain(cell) for name, cell in zip(value._columns, cells, strict=True)}
            for cells in zip(*map(cells_of, value._columns.values()), strict=True)
        ]
    if isinstance(value, Base64):
        return base64.b64encode(value.array.tobytes()).decode()
    if isinstance(value, Token):
        return {name: getattr(value, name) for name in Token.__slots__}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_parts_join_to_the_document(name: str) -> None:
    parsed = json.loads(b"".join(await render(DOCUMENTS[name])))
    expected = plain(DOCUMENTS[name])

    def same(left: Any, right: Any) -> bool:
        if isinstance(left, float):
            return bool(np.float32(left) == np.float32(right))
        if isinstance(left, dict):
            return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
        if isinstance(left, list):
            return len(left) == len(right) and all(map(same, left, right))
        return bool(left == right)

    assert same(parsed, expected)


USAGE = types.Usage(7)
UNITS = [types.Unit("word", 0, 4, 0, False)] * 20_000
EFFECTS = RANDOM.random(20_000).astype(np.float32)
TABLE = RANDOM.random((64, 64)).astype(np.float32)
PREDICTIONS = [types.LayerPredictions(layer, [types.Prediction("word", 7, 0.5)] * 100) for layer in range(200)]
TOKENS = types.TokenizeResult(40_000, [Token(7, "word", 0, 4, 0, 0, False)] * 40_000, [])
ENTITIES = types.TokenClassifyResult(9, False, [types.Entity("LOC", 0.5, "bank", 0, 4, 0)] * 20_000)
RANKED = types.RankedDocument(0, 0.5, types.RankExplanation(UNITS, UNITS, EFFECTS, EFFECTS))
FILLED = types.FillMaskResult(9, False, [types.FilledPosition(1, 0, 4, 0, PREDICTIONS)])
SIMILARITIES = [types.LayerSimilarity(layer, TABLE, TABLE) for layer in range(40)]
LARGE: dict[str, Any] = {
    "tokens": types.TokenizeResponse("m", [TOKENS], USAGE),
    "entities": types.TokenClassifyResponse("m", "float32", [ENTITIES], USAGE),
    "explanations": types.RerankResponse("m", "float32", "embeddings", [RANKED], USAGE),
    "predictions": types.FillMaskResponse("m", "float32", [FILLED], USAGE),
    "layers": types.CompareResponse("m", "float32", [], TABLE, SIMILARITIES, USAGE),
}
"""Responses with much in one result."""


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes that each call to orjson writes."""
    written: list[int] = []
    original = responses._dump

    def dump(value: object) -> bytes:
        written.append(len(rendered := original(value)))
        return rendered

    monkeypatch.setattr(responses, "_dump", dump)
    return written


@pytest.mark.parametrize("name", LARGE)
async def test_large_response_is_rendered_in_bounded_steps(name: str, sizes: list[int]) -> None:
    await render(await responses.to_document(LARGE[name]))
    assert len(sizes) > 1
    assert max(sizes) <= PART_BYTES


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "small"])
async def test_large_document_is_rendered_in_bounded_steps(
    name: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call to orjson writes at most one part, and the event loop runs between calls."""
    monkeypatch.setattr("service.steps.STEP_S", 0)
    steps = 0

    async def count_steps() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_steps())
    parts = await render(DOCUMENTS[name])
    other.cancel()
    assert max(sizes, default=0) <= PART_BYTES
    assert max(map(len, parts)) <= 2 * PART_BYTES
    assert steps >= len(sizes)
    assert steps >= len(parts) > 1


@pytest.mark.parametrize("accepted", ["identity", "gzip"])
async def test_large_response_is_sent_in_parts(accepted: str) -> None:
    """There must be a Content-Length header, even with gzip."""
    headers = [(b"accept-encoding", accepted.encode())]
    scope = {"type": "http", "method": "POST", "headers": headers, "record": RequestRecord("rest", "1")}
    document = DOCUMENTS["layers"]
    response = await json_response(Request(scope), document, {"x-a": "b"})
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    await response(scope, None, send)  # type: ignore[arg-type]
    sent = dict(messages[0]["headers"])
    body = b"".join(message["body"] for message in messages[1:])
    assert (int(sent[b"content-length"]), sent[b"x-a"], sent[b"vary"]) == (len(body), b"b", b"accept-encoding")
    assert sent[b"content-type"] == b"application/json"
    assert len(messages) > 4
    assert sent.get(b"content-encoding", b"identity") == accepted.encode()
    assert json.loads(gzip.decompress(body) if accepted == "gzip" else body).keys() == document.keys()


# Content codings: round trips, bounded decompression, and the Accept-Encoding header.

LIMIT = 2 * 2**20


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("size", [0, 10, 100_000])
async def test_round_trip(coding: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    parts = [body[start:end] for start, end in pairwise(range(0, size + 1, max(1, size // 3)))] or [b""]
    whole = b"".join(parts)
    assert zlib.decompress(b"".join(await compress_parts(parts, coding)), wbits=WINDOW_BITS[coding]) == whole
    assert inflate(COMPRESS[coding](body), coding, LIMIT) == body


@pytest.mark.parametrize("coding", CODINGS)
def test_bomb_costs_no_more_than_the_limit(coding: str) -> None:
    bomb = COMPRESS[coding](bytes(32 * LIMIT))
    started = time.thread_time()
    with pytest.raises(RequestTooLarge, match=f"limit {LIMIT} bytes"):
        inflate(bomb, coding, LIMIT)
    assert time.thread_time() - started < 0.1
    assert len(inflate(COMPRESS[coding](bytes(LIMIT)), coding, LIMIT)) == LIMIT


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1], lambda data: data + b"\0", lambda data: data + data, lambda data: b"",
        lambda data: b"{}", lambda data: data[:5] + b"\xff" * 9,
    ],
)  # fmt: skip
def test_other_data_is_malformed(coding: str, change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(MalformedRequest, match=r"^Content-Encoding: not "):
        inflate(change(COMPRESS[coding](b'{"inputs": []}')), coding, LIMIT)


def test_codings_do_not_match_each_other() -> None:
    with pytest.raises(MalformedRequest):
        inflate(gzip.compress(b"a"), "deflate", LIMIT)


@pytest.mark.parametrize(
    ("header", "codings"),
    [("", [""]), ("gzip", ["gzip"]), ("GZIP;q=0.5, deflate", ["gzip", "deflate"]), ("gzip; q=0, deflate", ["deflate"]),
     ("gzip;q=0.000", [])],
)  # fmt: skip
def test_codings_with_weight_zero_are_not_accepted(header: str, codings: list[str]) -> None:
    assert accepted(header) == codings
