"""Round every route: unknown paths and methods, request ids, unforeseen faults, and what OpenAPI says."""

import json
import re
import socket

import httpx
import pytest

from service.auth import ApiKeys
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import EncodeRequest, EncodeResponse
from service.rest.edge import make_app
from tests.service.conftest import GOLDEN, House, fast_lane, open_house

ROUTES = {
    ("post", "/v1/encode"),
    ("post", "/v1/tokenize"),
    ("post", "/v1/attend"),
    ("post", "/v1/compare"),
    ("get", "/v1/model"),
    ("post", "/v1/embeddings"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{name}"),
    ("get", "/livez"),
    ("get", "/readyz"),
}


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/encode2", "/v2/..%2f..%2fetc", "/v1/model/%00",
                                  "/v1/../nothing", "/static/../../etc/passwd", "/" + "a" * 2000])  # fmt: skip
def test_unknown_routes(rest: httpx.Client, path: str) -> None:
    """404 in our own words, without the path."""
    answer = rest.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["reason"] == "no_such_route"
    assert len(answer.content) <= 1024


@pytest.mark.parametrize(("method", "path", "allowed"), [("GET", "/v1/encode", "POST"), ("DELETE", "/v1/model", "GET"),
                                                         ("PUT", "/v1/embeddings", "POST"),
                                                         ("POST", "/readyz", "GET")])  # fmt: skip
def test_wrong_methods(rest: httpx.Client, method: str, path: str, allowed: str) -> None:
    """405 and what is allowed."""
    answer = rest.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("sent", ["abc-1.2_3", "a" * 128])
def test_a_request_id_is_echoed(rest: httpx.Client, sent: str) -> None:
    """In answers and errors alike."""
    for path in ("/v1/model", "/nothing", "/livez"):
        assert rest.get(path, headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", [b"", b"a b", b"a" * 129, b'"><script>', b"\xff\xfe", b"{}"])
def test_a_hostile_request_id_is_replaced(rest: httpx.Client, sent: bytes) -> None:
    """By one of ours, each time another."""
    made = [rest.get("/nothing", headers=[(b"x-request-id", sent)]) for _ in range(2)]
    assert all(re.fullmatch(r"[0-9a-f]{16}", answer.headers["x-request-id"]) for answer in made)
    assert made[0].headers["x-request-id"] != made[1].headers["x-request-id"]
    assert made[0].json()["error"]["request_id"] == made[0].headers["x-request-id"]


def test_openapi_lists_the_running_routes(rest: httpx.Client) -> None:
    """No more, no fewer, and each answers something else than 404 and 405."""
    described = rest.get("/openapi.json").json()["paths"]
    assert {(method, path) for path, methods in described.items() for method in methods} == ROUTES
    for method, path in ROUTES:
        assert rest.request(method, path.replace("{name}", "all-MiniLM-L6-v2")).status_code not in (404, 405)


def test_openapi_describes_the_bodies(rest: httpx.Client) -> None:
    """With every field of the contract, and none beside them."""
    document = rest.get("/openapi.json").json()
    body = document["paths"]["/v1/encode"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert set(schema["properties"]) == {
        "model", "inputs", "outputs", "layers", "layer_reduce", "pooling", "normalize", "dimensions", "truncation",
        "encoding", "dtype",
    }  # fmt: skip
    assert (schema["required"], schema["additionalProperties"]) == (["inputs"], False)


def test_openapi_points_nowhere(rest: httpx.Client) -> None:
    """Every $ref resolves inside the document, so that client generators can read it."""
    document = rest.get("/openapi.json").json()
    for reference in set(re.findall(r'"\$ref":"([^"]+)"', rest.get("/openapi.json").text.replace(" ", ""))):
        found = document
        for step in reference.removeprefix("#/").split("/"):
            assert step in found, reference
            found = found[step]


def test_docs_are_served(rest: httpx.Client) -> None:
    """For people."""
    assert "swagger" in rest.get("/docs").text.lower()


async def test_docs_can_be_switched_off(model: LoadedModel) -> None:
    """Then neither the page nor the document is there."""
    async with open_house(model, docs=False) as house:
        assert [(await house.client.get(path)).status_code for path in ("/docs", "/openapi.json")] == [404, 404]


async def test_an_unforeseen_fault_says_nothing(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """500 with the request id; the log has the rest."""

    async def broken(request: EncodeRequest) -> EncodeResponse:
        raise KeyError("/home/secret/path")

    house.engine.encode = broken  # type: ignore[method-assign]
    answer = await house.post("/v1/encode", {"inputs": GOLDEN}, **{"x-request-id": "lost-1"})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (500, "internal")
    assert "secret" not in answer.text
    assert "KeyError" in caplog.text
    assert {getattr(record, "request_id", None) for record in caplog.records} == {"lost-1"}


def exchange(rest: httpx.Client, sent: bytes) -> bytes:
    """Raw bytes in, all that comes back until the server closes."""
    with socket.create_connection((rest.base_url.host, rest.base_url.port), timeout=20) as line:
        line.sendall(sent)
        return b"".join(iter(lambda: line.recv(65536), b""))


FRAMINGS = {
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6",
    "negative length": b"Content-Length: -1",
    "length and chunked": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
}


@pytest.mark.parametrize("head", FRAMINGS.values(), ids=FRAMINGS)
def test_ambiguous_framing_is_refused(rest: httpx.Client, head: bytes) -> None:
    """400 and the connection is closed: no request can hide behind another."""
    sent = b"POST /v1/encode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n" + head + b"\r\n\r\nhello"
    found = exchange(rest, sent)
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1") == 1


FULL = 100
"""Tokens that the queue holds in the tests of a full one."""
JSON = {b"content-type": b"application/json"}


async def test_a_full_queue_turns_away_as_it_refuses(model: LoadedModel) -> None:
    """The same status, headers and body by the short way as by the long one, in both doors; each is counted once."""
    async with open_house(model, max_queue_tokens=FULL) as house:
        edge = make_app(house.host, house.settings, house.metrics, None)
        with fast_lane(house).reserve(FULL):
            assert edge.shut
            for door, path, body in (
                ("rest", "/v1/encode", b'{"inputs": "money bank grows"}'),
                ("openai", "/v1/embeddings", b'{"input": "money bank grows", "model": "all-MiniLM-L6-v2"}'),
            ):
                headers = {**JSON, b"x-request-id": b"one"}
                long = await house.client.post(path, content=body, headers=list(headers.items()))
                short = edge.turn_away(path.encode(), headers, body)
                assert short is not None
                assert (short.status_code, short.headers["x-request-id"]) == (long.status_code, "one") == (429, "one")
                assert int(short.headers["retry-after"]) == int(long.headers["retry-after"])
                assert set(short.headers) == set(long.headers)
                told, asked = json.loads(bytes(short.body))["error"], long.json()["error"]
                assert {**told, "message": ""} == {**asked, "message": ""}  # one counts characters, the other bytes
                assert house.sample("attendant_requests_total", door=door, method=path, code="429") == 2
            assert house.sample("attendant_rejected_total", reason="queue_full") == 4
            assert house.batches_run == 0
        assert not edge.shut


@pytest.mark.parametrize(("path", "body"), [("/v1/encode", b'{"inputs": "bank", "layers": [1]}'),
                                            ("/v1/attend", b'{"inputs": "bank"}'), ("/v1/tokenize", b"{}"),
                                            ("/livez", b""), ("/v1/encode%32", b""), ("/\xff", b"")])  # fmt: skip
async def test_what_the_fast_lane_does_not_answer_is_let_in(model: LoadedModel, path: str, body: bytes) -> None:
    """A full queue of embedding is no reason to refuse explaining."""
    async with open_house(model, max_queue_tokens=FULL) as house:
        edge = make_app(house.host, house.settings, house.metrics, None)
        with fast_lane(house).reserve(FULL):
            assert edge.turn_away(path.encode("latin-1"), JSON, body) is None


async def test_what_still_fits_is_let_in(model: LoadedModel) -> None:
    """Crowded is not full."""
    async with open_house(model, max_queue_tokens=FULL) as house:
        edge = make_app(house.host, house.settings, house.metrics, None)
        with fast_lane(house).reserve(FULL - 8):
            assert edge.shut
            assert edge.turn_away(b"/v1/encode", JSON, b'{"inputs": "bank"}') is None
            assert edge.turn_away(b"/v1/encode", JSON, b'{"inputs": "%s"}' % (b"bank " * 20)) is not None


async def test_strangers_are_turned_away_for_want_of_a_key(model: LoadedModel) -> None:
    """401, for that is what they would get by the long way."""
    async with open_house(model, max_queue_tokens=FULL) as house:
        edge = make_app(house.host, house.settings, house.metrics, ApiKeys(["secret"]))
        with fast_lane(house).reserve(FULL):
            found = [
                edge.turn_away(b"/v1/encode", {**JSON, **sent}, b'{"inputs": "bank"}')
                for sent in ({}, {b"authorization": b"Bearer other"}, {b"authorization": b"Bearer secret"})
            ]
    assert [answer and answer.status_code for answer in found] == [401, 401, 429]
