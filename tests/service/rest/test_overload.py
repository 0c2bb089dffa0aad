"""Load shedding: the same rejections as those of the engine, and nothing else is rejected."""

import asyncio
import json

import pytest

from service.auth import ApiKeys
from service.engine.engine import CHARACTERS_PER_TOKEN
from service.engine.model_loader import LoadedModel
from service.rest.overload import LoadShedder
from tests.service.conftest import fast_lane, open_house

FULL = 100
"""Capacity of the queue, in tokens."""
JSON = {b"content-type": b"application/json"}


async def test_load_shedder_rejects_as_engine_does(model: LoadedModel) -> None:
    """The same status, headers and body by the short way as by the long one, in both doors; each is counted once."""
    async with open_house(model, max_queue_tokens=FULL) as house:
        shedder = LoadShedder(house.host, house.metrics, None)
        with fast_lane(house).reserve(FULL):
            assert shedder.active
            for door, path, body in (
                ("rest", "/v1/encode", b'{"inputs": "money bank grows"}'),
                ("openai", "/v1/embeddings", b'{"input": "money bank grows", "model": "all-MiniLM-L6-v2"}'),
            ):
                headers = {**JSON, b"x-request-id": b"one"}
                long = await house.client.post(path, content=body, headers=list(headers.items()))
                short = shedder.try_reject(b"POST", path.encode(), headers, body)
                assert short is not None
                assert (short.status_code, short.headers["x-request-id"]) == (long.status_code, "one") == (429, "one")
                assert int(short.headers["retry-after"]) == int(long.headers["retry-after"])
                assert set(short.headers) == set(long.headers)
                told, asked = json.loads(bytes(short.body))["error"], long.json()["error"]
                assert {**told, "message": ""} == {**asked, "message": ""}  # one counts characters, the other bytes
                assert house.sample("attendant_requests_total", door=door, method=path, code="429") == 2
            assert house.sample("attendant_rejected_total", reason="queue_full") == 4
            assert house.batches_run == 0
        assert not shedder.active


@pytest.mark.parametrize(("path", "body"), [("/v1/encode", b'{"inputs": "bank", "layers": [1]}'),
                                            ("/v1/attend", b'{"inputs": "bank"}'), ("/v1/tokenize", b"{}"),
                                            ("/livez", b""), ("/v1/encode%32", b""), ("/\xff", b"")])  # fmt: skip
async def test_load_shedder_accepts_requests_for_other_lanes(model: LoadedModel, path: str, body: bytes) -> None:
    """A full queue of embedding is no reason to refuse explaining."""
    async with open_house(model, max_queue_tokens=FULL) as house:
        shedder = LoadShedder(house.host, house.metrics, None)
        with fast_lane(house).reserve(FULL):
            assert shedder.try_reject(b"POST", path.encode("latin-1"), JSON, body) is None


async def test_load_shedder_accepts_requests_that_fit(model: LoadedModel) -> None:
    """Crowded is not full."""
    async with open_house(model, max_queue_tokens=FULL) as house:
        shedder = LoadShedder(house.host, house.metrics, None)
        with fast_lane(house).reserve(FULL - 8):
            assert shedder.active
            assert shedder.try_reject(b"POST", b"/v1/encode", JSON, b'{"inputs": "bank"}') is None
            assert shedder.try_reject(b"POST", b"/v1/encode", JSON, b'{"inputs": "%s"}' % (b"bank " * 20)) is not None


async def test_load_shedder_counts_requests_whose_task_has_not_started(model: LoadedModel) -> None:
    """Of all requests of one step of the loop, only those that fit pass; the engine counts them from then on."""
    async with open_house(model, max_queue_tokens=FULL) as house:
        shedder = LoadShedder(house.host, house.metrics, None)
        body = b'{"inputs": "%s"}' % (b"bank " * 5)
        with fast_lane(house).reserve(FULL - 3 * len(body) // CHARACTERS_PER_TOKEN):
            passed = [shedder.try_reject(b"POST", b"/v1/encode", JSON, body) is None for _ in range(5)]
            assert passed == [True, True, True, False, False]
            for _ in range(3):
                await asyncio.sleep(0)
            assert shedder.try_reject(b"POST", b"/v1/encode", JSON, body) is None


async def test_load_shedder_checks_the_api_key(model: LoadedModel) -> None:
    """401, for that is what they would get by the long way."""
    async with open_house(model, max_queue_tokens=FULL) as house:
        shedder = LoadShedder(house.host, house.metrics, ApiKeys(["secret"]))
        with fast_lane(house).reserve(FULL):
            found = [
                shedder.try_reject(b"POST", b"/v1/encode", {**JSON, **sent}, b'{"inputs": "bank"}')
                for sent in ({}, {b"authorization": b"Bearer other"}, {b"authorization": b"Bearer secret"})
            ]
    assert [answer and answer.status_code for answer in found] == [401, 401, 429]
