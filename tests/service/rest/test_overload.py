"""Load shedding: rejections match the engine's, and other requests are accepted."""

import asyncio
import gzip
import json
import re

import pytest
from starlette.responses import Response

from service.config import Settings
from service.engine.model_loader import LoadedModel
from service.engine.repository import ModelRepository
from service.engine.scheduling import CHARACTERS_PER_TOKEN
from service.lifecycle import Lifecycle
from service.models_file import configured_models
from service.rest.app import make_app
from service.rest.cors import Cors
from service.rest.middleware import LoadShedder, Rejection
from tests.keys import make_keys
from tests.service.conftest import fast_lane, open_harness
from tests.service.rest.test_protocol import read_response
from tests.service.rest.test_server import record_protocols, serving, until

FULL = 100
"""Queue capacity in tokens."""
JSON = {b"content-type": b"application/json"}
INFER_BODY = b'{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["an \\"attention\\" map"]}]}'
INFER_ATTENTION = INFER_BODY[:-1] + b', "outputs": [{"name": "attention"}]}'


def rejection_of(rejection: Rejection | None) -> Response | None:
    """Return the response of a rejection."""
    return None if rejection is None else rejection.response


async def test_load_shedder_returns_the_rejection_of_the_engine(model: LoadedModel) -> None:
    """In each API, both must have the same status, headers and body, and count the rejection once."""
    async with open_harness(model, max_queue_tokens=FULL, root_path="/prefix") as harness:
        shedder = LoadShedder(harness.lifecycle, harness.requests, None, root_path="/prefix")
        with fast_lane(harness).reserve([FULL]):
            assert shedder.near_capacity
            for api, path, body in (
                ("rest", "/v1/encode", b'{"inputs": "money bank grows"}'),
                ("rest", "/v1/rerank", b'{"query": "money bank", "documents": ["grows"]}'),
                ("rest", "/v1/similarity", b'{"queries": ["money bank"], "documents": ["grows"], "explain": true}'),
                ("openai", "/v1/embeddings", b'{"input": "money bank grows", "model": "all-MiniLM-L6-v2"}'),
                ("tei", "/embed", b'{"inputs": "money bank grows"}'),
                ("tei", "/", b'{"inputs": "money bank grows"}'),
                ("rest", "/rerank", b'{"query": "money bank", "documents": ["grows"], "model": "all-MiniLM-L6-v2"}'),
                ("cohere", "/v2/rerank", b'{"query": "money bank", "documents": ["grows"]}'),
                ("cohere", "/v2/embed", b'{"texts": ["money bank grows"], "input_type": "classification"}'),
                ("infinity", "/infinity/rerank", b'{"query": "money bank", "documents": ["grows"]}'),
                ("infinity", "/infinity/embeddings", b'{"input": "money bank", "model": "default/not-specified"}'),
                ("vllm", "/score", b'{"text_1": "money bank", "text_2": "grows"}'),
                ("vllm", "/v1/score", b'{"text_1": "money bank", "text_2": ["grows"]}'),
                ("vllm", "/pooling", b'{"input": "money bank grows", "task": "token_embed"}'),
                ("oip", "/v2/models/all-MiniLM-L6-v2/infer", INFER_BODY),
                ("oip", "/v2/models/all%2DMiniLM-L6-v2/versions/1/infer", INFER_BODY),
                ("openai", "/openai/deployments/all-MiniLM-L6-v2/embeddings", b'{"input": "money bank"}'),
                ("ollama", "/api/embed", b'{"input": "money bank", "model": "all-MiniLM-L6-v2:latest"}'),
                ("openai", "/prefix//embeddings/?api-version=1", b'{"input": "money bank"}'),
            ):
                headers = {**JSON, b"x-request-id": b"one"}
                expected = await harness.client.post(path, content=body, headers=list(headers.items()))
                response = rejection_of(shedder.try_reject(b"POST", path.encode(), headers, body))
                assert response is not None
                assert (response.status_code, response.headers["x-request-id"]) == (429, "one")
                assert (expected.status_code, expected.headers["x-request-id"]) == (429, "one")
                assert int(response.headers["retry-after"]) == int(expected.headers["retry-after"])
                assert set(response.headers) == set(expected.headers)
                error, expected_error = json.loads(bytes(response.body)), expected.json()
                if api in ("rest", "openai", "vllm", "infinity"):
                    error, expected_error = error["error"], expected_error["error"]
                message = "message" if api in ("rest", "openai", "cohere", "vllm", "infinity") else "error"
                # The messages differ, because the engine estimates tokens from characters, and the load shedder from
                # bytes.
                assert {**error, message: ""} == {**expected_error, message: ""}
                endpoint = re.sub("all(-|%2D)MiniLM-L6-v2", "{name}", path).replace("versions/1", "versions/{version}")
                endpoint = "/embeddings" if "?" in path else endpoint
                assert harness.sample("attendant_requests_total", api=api, endpoint=endpoint, code="429") == 2
            assert harness.sample("attendant_rejected_requests_total", reason="queue_full") == 38
            assert harness.batches_run == 0
        assert not shedder.near_capacity


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/classify", b'{"inputs": "money bank grows"}'),
        ("/v1/token-classify", b'{"inputs": "money bank grows"}'),
        ("/v1/fill-mask", b'{"inputs": "money [MASK] grows"}'),
        ("/embed_sparse", b'{"inputs": "money bank grows"}'),
        ("/rerank", b'{"query": "money bank", "texts": ["grows"]}'),
        ("/rerank", b'{"query": "money bank", "documents": ["grows"]}'),
        ("/v1/rerank", b'{"query": "money bank", "texts": ["grows"], "model": "ignored"}'),
        ("/predict", b'{"inputs": "money bank grows"}'),
        ("/classify", b'{"input": "money bank grows"}'),
        ("/infinity/classify", b'{"input": ["money bank grows"]}'),
    ],
)
async def test_load_shedder_rejects_requests_that_need_a_head(model: LoadedModel, path: str, body: bytes) -> None:
    """It does not know what the model lacks, so the engine's error for that comes with the next attempt."""
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        shedder = LoadShedder(harness.lifecycle, harness.requests, None)
        with fast_lane(harness).reserve([FULL]):
            response = rejection_of(shedder.try_reject(b"POST", path.encode(), JSON, body))
        assert response is not None
        assert response.status_code == 429
        assert b"Queue full" in bytes(response.body)


@pytest.mark.parametrize(("path", "body"), [("/v1/encode", b'{"inputs": "bank", "layers": [1]}'),
                                            ("/v1/fill-mask", b'{"inputs": "bank", "layers": [1]}'),
                                            ("/v1/attend", b'{"inputs": "bank"}'), ("/v1/tokenize", b"{}"),
                                            ("/v2/models/x/infer", INFER_BODY),
                                            ("/v2/models/all-MiniLM-L6-v2/infer", INFER_ATTENTION),
                                            ("/v2/models/all-MiniLM-L6-v2/ready", b""),
                                            ("/livez", b""), ("/v1/encode%32", b""), ("/\xff", b"")])  # fmt: skip
async def test_load_shedder_accepts_requests_for_other_lanes(model: LoadedModel, path: str, body: bytes) -> None:
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        shedder = LoadShedder(harness.lifecycle, harness.requests, None)
        with fast_lane(harness).reserve([FULL]):
            assert shedder.try_reject(b"POST", path.encode("latin-1"), JSON, body) is None


async def test_load_shedder_accepts_compressed_requests(model: LoadedModel) -> None:
    """The load shedder cannot see which outputs they request."""
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        shedder = LoadShedder(harness.lifecycle, harness.requests, None)
        headers, path = {**JSON, b"content-encoding": b"gzip"}, b"/v2/models/all-MiniLM-L6-v2/infer"
        with fast_lane(harness).reserve([FULL]):
            assert shedder.try_reject(b"POST", path, headers, gzip.compress(INFER_ATTENTION)) is None


async def test_load_shedder_accepts_requests_that_fit(model: LoadedModel) -> None:
    """The queue is near capacity, but not full."""
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        shedder = LoadShedder(harness.lifecycle, harness.requests, None)
        with fast_lane(harness).reserve([FULL - 8]):
            assert shedder.near_capacity
            assert shedder.try_reject(b"POST", b"/v1/encode", JSON, b'{"inputs": "bank"}') is None
            assert shedder.try_reject(b"POST", b"/v1/encode", JSON, b'{"inputs": "%s"}' % (b"bank " * 20)) is not None


async def test_load_shedder_counts_requests_whose_task_has_not_started(model: LoadedModel) -> None:
    """Within one event loop iteration, the load shedder counts requests itself. After that, the engine counts them."""
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        shedder = LoadShedder(harness.lifecycle, harness.requests, None)
        body = b'{"inputs": "%s"}' % (b"bank " * 5)
        with fast_lane(harness).reserve([FULL - 3 * len(body) // CHARACTERS_PER_TOKEN]):
            accepted = [shedder.try_reject(b"POST", b"/v1/encode", JSON, body) is None for _ in range(5)]
            assert accepted == [True, True, True, False, False]
            for _ in range(3):
                await asyncio.sleep(0)
            assert shedder.try_reject(b"POST", b"/v1/encode", JSON, body) is None


async def test_load_shedder_checks_the_api_key(model: LoadedModel) -> None:
    """A request without a valid key must get 401, as from the application."""
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        shedder = LoadShedder(harness.lifecycle, harness.requests, make_keys("secret"))
        with fast_lane(harness).reserve([FULL]):
            responses = [
                rejection_of(shedder.try_reject(b"POST", b"/v1/encode", {**JSON, **headers}, b'{"inputs": "bank"}'))
                for headers in ({}, {b"authorization": b"Bearer other"}, {b"authorization": b"Bearer secret"})
            ]
    assert [response and response.status_code for response in responses] == [401, 401, 429]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/encode", b'{"inputs": "bank"}'),
        (b"/v1/attend", b'{"inputs": "bank"}'),
        (b"/v2/models/all-MiniLM-L6-v2/infer", INFER_BODY),
    ],
)
async def test_server_under_load_that_stops_responds_with_503(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, path: bytes, body: bytes
) -> None:
    """This includes a request whose head has already been read."""
    protocols = record_protocols(monkeypatch)
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        app = make_app(harness.lifecycle, harness.settings, harness.metrics)
        shedder = LoadShedder(harness.lifecycle, harness.requests, None)
        request = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        async with serving(app, load_shedder=shedder) as (reader, writer):
            second = await asyncio.open_connection(*writer.get_extra_info("peername"))
            with fast_lane(harness).reserve([FULL]):
                writer.write(request % (path, len(body)) + body[:1])
                await until(lambda: any(item._buffered == bytearray(body[:1]) for item in protocols))
                harness.lifecycle.reject_new()
                writer.write(body[1:])
                second[1].write(request % (path, len(body)) + body)
                for stream in (reader, second[0]):
                    status, headers, text = await read_response(stream)
                    assert (status, headers[b"connection"]) == (503, b"close")
                    assert b"shutting down" in text
            second[1].close()


async def test_log_line_of_a_rejection_contains_the_address(
    model: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        app = make_app(harness.lifecycle, harness.settings, harness.metrics)
        shedder = LoadShedder(harness.lifecycle, harness.requests, None)
        async with serving(app, load_shedder=shedder) as (reader, writer):
            with fast_lane(harness).reserve([FULL]):
                writer.write(
                    b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n" + b'{"inputs": "a"}'
                )
                assert (await read_response(reader))[0] == 429
    lines = [record.__dict__["fields"] for record in caplog.records if record.name == "attendant.access"]
    assert [line["peer"] for line in lines] == ["127.0.0.1"]


async def test_load_shedder_closes_connections_during_the_drain_delay(model: LoadedModel) -> None:
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        shedder = LoadShedder(harness.lifecycle, harness.requests, None)
        harness.lifecycle.start_draining()
        with fast_lane(harness).reserve([FULL]):
            response = rejection_of(shedder.try_reject(b"POST", b"/v1/encode", JSON, b'{"inputs": "bank"}'))
        assert response is not None
        assert (response.status_code, response.headers["connection"]) == (429, "close")


@pytest.mark.parametrize(
    ("origins", "allowed"), [("https://a.org", "https://a.org"), ("*", "*"), ("https://b.org", None)]
)
async def test_rejection_has_the_cors_headers_of_the_application(
    model: LoadedModel, origins: str, allowed: str | None
) -> None:
    """Without them, a browser hides the 429 and its Retry-After from the page."""
    async with open_harness(model, max_queue_tokens=FULL, cors_origins=origins) as harness:
        shedder = LoadShedder(harness.lifecycle, harness.requests, None, Cors(origins))
        headers = {**JSON, b"origin": b"https://a.org"}
        with fast_lane(harness).reserve([FULL]):
            expected = await harness.client.post(
                "/v1/encode", content=b'{"inputs": "bank"}', headers=list(headers.items())
            )
            response = rejection_of(shedder.try_reject(b"POST", b"/v1/encode", headers, b'{"inputs": "bank"}'))
        assert response is not None
        assert response.headers.get("access-control-allow-origin") == allowed
        cors = [name for name in expected.headers if name.startswith(("access-control-", "vary"))]
        assert {name: response.headers.get(name) for name in cors} == {name: expected.headers[name] for name in cors}


async def test_load_shedder_rejects_requests_of_the_full_model_only(model: LoadedModel) -> None:
    """Flooding one model must not affect requests for another."""
    async with open_harness(model, max_queue_tokens=FULL) as harness:
        aliases = "a/full=full,a/idle=idle"
        settings = Settings(models="full=unused,idle=unused", model_aliases=aliases, max_queue_tokens=FULL)
        entries = configured_models(settings)
        models = ModelRepository(settings, harness.metrics).start([(entry, model) for entry in entries])
        lifecycle = Lifecycle(harness.metrics)
        lifecycle.become_ready(models)
        shedder = LoadShedder(lifecycle, harness.requests, None)
        statuses = {}
        with models.find("full").fast_lane.reserve([FULL]):
            assert shedder.near_capacity
            for name in ("full", "idle", "nobody"):
                body = json.dumps({"inputs": 'the "model": "x"', "model": name}).encode()
                response = rejection_of(shedder.try_reject(b"POST", b"/v1/encode", JSON, body))
                statuses[name] = None if response is None else response.status_code
            for body in (
                rb'{"input": "bank", "model": "a\/idle"}',
                b'{"query": "a", "documents": [{"text": "b", "model": "T"}]}',
                b'{"query": "a", "documents": [{"text": "b", "model": "full"}], "model": "idle"}',
            ):
                path = b"/v1/embeddings" if b"input" in body else b"/v1/rerank"
                assert shedder.try_reject(b"POST", path, JSON, body) is None
            escaped = shedder.try_reject(b"POST", b"/v1/embeddings", JSON, rb'{"input": "bank", "model": "a\/full"}')
            unnamed = rejection_of(shedder.try_reject(b"POST", b"/embed", JSON, b'{"inputs": "bank"}'))
        assert statuses == {"full": 429, "idle": None, "nobody": None}
        assert escaped is not None
        assert unnamed is not None
        assert harness.sample("attendant_rejected_requests_total", reason="queue_full", model="full") == 3
        await models.close()
