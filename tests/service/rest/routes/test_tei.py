"""The TEI API: decoding, limits, health, headers, errors, keys and metrics."""

from typing import Any

import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from service.errors import Internal
from service.lifecycle import Status
from service.operations.encode import encode as encode_texts
from service.operations.inputs import Call
from tests.keys import make_keys
from tests.manifests import with_head, with_manifest
from tests.service.conftest import GOLDEN, ServiceHarness, encode_request, fast_lane, open_harness

IDS = [2769, 2924, 7502]
"""Token ids of GOLDEN."""
WITH_SPECIAL = [101, *IDS, 102]


async def ok(harness: ServiceHarness, path: str, body: Any) -> Any:
    return (await harness.post(path, body)).raise_for_status().json()


async def test_normalize_applies_to_models_that_do_not(model: LoadedModel) -> None:
    async with open_harness(with_manifest(model, with_head(model.artifact.manifest, normalize=False))) as harness:
        (embedding,) = await ok(harness, "/embed", {"inputs": GOLDEN})
        assert np.linalg.norm(embedding) == pytest.approx(1, abs=1e-4)


async def test_tokens_can_be_embedded_and_decoded(harness: ServiceHarness) -> None:
    """TEI clients send back the ids from /tokenize."""
    ids = [token["id"] for token in (await ok(harness, "/tokenize", {"inputs": GOLDEN}))[0]]
    assert ids == WITH_SPECIAL
    native = await ok(harness, "/v1/encode", {"inputs": [{"token_ids": IDS}]})
    assert await ok(harness, "/embed", {"inputs": ids}) == [native["results"][0]["pooled"]]
    assert await ok(harness, "/decode", {"ids": ids}) == [GOLDEN]


async def test_decode_returns_one_text_per_list(harness: ServiceHarness) -> None:
    body = {"ids": [WITH_SPECIAL, [2924]], "skip_special_tokens": False}
    assert await ok(harness, "/decode", body) == [f"[CLS] {GOLDEN} [SEP]", "bank"]
    assert await ok(harness, "/decode", {**body, "skip_special_tokens": True}) == [GOLDEN, "bank"]
    assert await ok(harness, "/decode", {"ids": WITH_SPECIAL}) == [GOLDEN]
    assert (await harness.post("/decode", {"ids": []})).json()["error_type"] == "Empty"


async def test_decode_response_is_limited(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=1000) as harness:
        response = await harness.post("/decode", {"ids": [[2924] * 50] * 3})
        assert (response.status_code, response.json()["error_type"]) == (422, "Validation")
        assert response.json()["error"].startswith("Response too large")


async def test_error_for_a_large_response_suggests_no_field_of_another_api(model: LoadedModel) -> None:
    async with open_harness(model, max_response_bytes=50_000) as harness:
        response = await harness.post("/embed_all", {"inputs": ["word " * 20] * 3})
        assert response.status_code == 422
        assert "Request fewer inputs." in response.json()["error"]


async def test_info_describes_the_model_and_its_limits(harness: ServiceHarness) -> None:
    info, model = (await harness.client.get("/info")).json(), (await harness.client.get("/v1/model")).json()
    assert (info["model_id"], info["model_sha"]) == (model["source"], model["revision"])
    assert (info["served_model_name"], info["model_dtype"]) == (model["name"], model["precision"])
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["max_input_length"], info["max_client_batch_size"]) == (256, 256)
    assert info["max_batch_tokens"] == harness.engine.max_batch_tokens
    assert info["auto_truncate"] is True


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_health_follows_the_lifecycle(harness: ServiceHarness, path: str) -> None:
    for status in Status:
        harness.lifecycle._set_status(status)
        response = await harness.client.get(path)
        if status is Status.READY:
            assert (response.status_code, response.content) == (200, b"")
        else:
            assert (response.status_code, response.json()["error_type"]) == (503, "Unhealthy")


@pytest.mark.parametrize(
    ("path", "body", "characters", "tokens"),
    [
        ("/embed", {"inputs": [GOLDEN, "vu"]}, 18, 8),
        ("/similarity", {"inputs": {"source_sentence": GOLDEN, "sentences": ["a", "b"]}}, 18, 11),
    ],
)
async def test_headers_describe_the_computation(
    harness: ServiceHarness, path: str, body: Any, characters: int, tokens: int
) -> None:
    headers = (await harness.post(path, body)).raise_for_status().headers
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == str(characters)
    assert headers["x-compute-tokens"] == str(tokens)
    times = [int(headers[f"x-{name}-time"]) for name in ("tokenization", "queue", "inference")]
    assert int(headers["x-compute-time"]) == int(headers["x-total-time"]) >= sum(times)
    assert headers["x-attendant-precision"] == harness.engine.info.precision
    assert "server-timing" in headers


@pytest.mark.parametrize(
    ("path", "body"),
    [("/embed", {"inputs": GOLDEN}), ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}})],
)
async def test_accepted_request_is_answered_although_the_server_rejects_new_ones(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    lane, submit = harness.engine.fast_lane, harness.engine.fast_lane.submit

    def reject_and_submit(*arguments: Any, **options: Any) -> Any:
        harness.lifecycle.reject_new()
        return submit(*arguments, **options)

    monkeypatch.setattr(lane, "submit", reject_and_submit)
    response = await harness.post(path, body)
    assert response.status_code == 200
    assert response.headers["x-attendant-model"].startswith(harness.engine.info.name)


async def test_queue_time_is_part_of_the_run_time(harness: ServiceHarness) -> None:
    call = Call()
    await encode_texts(harness.engine, encode_request(*[GOLDEN] * 3), call)
    timing = call.timing
    assert 0 < timing.queue < timing.run
    observed = harness.sample("attendant_stage_duration_seconds_sum", stage="queue", lane="fast")
    assert timing.queue == pytest.approx(observed)


# The TEI API: errors, limits, keys and metrics.
LONG = "bank " + "word " * 300
POSTS = ("/", "/embed", "/embed_all", "/embed_sparse", "/rerank", "/predict", "/similarity", "/tokenize", "/decode")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed_sparse", {"inputs": [GOLDEN, IDS]}),
        ("/rerank", {"query": "a", "texts": ["b", "c"], "raw_scores": True, "return_text": True}),
        ("/predict", {"inputs": "a", "raw_scores": False}),
        ("/predict", {"inputs": ["a", "b"]}),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}),
    ],
)
async def test_missing_head_is_a_backend_error(harness: ServiceHarness, path: str, body: Any) -> None:
    response = await harness.post(path, body)
    assert (response.status_code, response.json()["error_type"]) == (424, "Backend")
    assert response.json()["error"].startswith("The model ")
    assert harness.batches_run == 0


async def test_truncation_is_the_remedy_for_too_many_characters(harness: ServiceHarness) -> None:
    """TEI is the only API where truncation applies to this limit."""
    text = "bank " * 4000
    response = await harness.post("/embed", {"inputs": ["a", text], "truncate": False})
    problem = "inputs[1]: too many characters (20000, limit 16384)."
    assert response.json()["error"] == f"{problem} Shorten it or set truncate to true."
    assert (await harness.post("/embed", {"inputs": ["a", text], "truncate": True})).status_code == 200
    response = await harness.post("/tokenize", {"inputs": text})
    assert response.json()["error"].endswith(". Split the text.")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/embed", {"inputs": []}, "inputs: empty."),
        ("/embed_all", {"inputs": []}, "inputs: empty."),
        ("/embed_sparse", {"inputs": []}, "inputs: empty."),
        ("/rerank", {"query": "a", "texts": []}, "texts: empty."),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences: empty."),
        ("/tokenize", {"inputs": []}, "inputs: empty."),
        ("/decode", {"ids": []}, "ids: empty."),
    ],
)
async def test_empty_list_has_its_own_error(harness: ServiceHarness, path: str, body: Any, message: str) -> None:
    response = await harness.post(path, body)
    assert (response.status_code, response.json()["error_type"]) == (400, "Empty")
    assert response.json()["error"].startswith(message)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/embed", {}, "inputs: missing."),
        ("/embed", {"inputs": None}, "inputs: wrong type (null). Send a string or an array."),
        ("/embed", {"inputs": ["a", 5]}, "inputs[1]: wrong type (number). Send a string or an array of token ids."),
        ("/embed", {"inputs": [True]}, "inputs[0]: wrong type (boolean). Send an integer."),
        ("/embed", {"inputs": ["a", " "]}, "inputs[1]: empty or blank."),
        ("/embed", {"inputs": [101, 102]}, "inputs[0]: empty."),
        ("/embed", {"inputs": [30522]}, "inputs[0]: id outside of the vocabulary (30522)."),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 'truncation_direction: unknown value ("up"). Use'),
        ("/embed", {"inputs": ["a"] * 2049}, "inputs: too many items (2049, limit 2048)."),
        ("/embed", {"inputs": LONG, "truncate": False}, "inputs[0]: too long (303 tokens, limit 256). Shorten"),
        ("/rerank", {"query": "a"}, "texts: missing."),
        ("/predict", {"inputs": ["a", "b", "c"]}, "inputs: wrong number of texts (3)."),
        ("/predict", {"inputs": [["a"], []]}, "inputs[1]: wrong number of texts (0)."),
        ("/predict", {"inputs": [["a"], "b"]}, "inputs[1]: wrong type (string). Send an array."),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, "inputs.sentences: missing."),
        ("/similarity", {"inputs": {"source_sentence": "", "sentences": ["b"]}}, "inputs.source_sentence: empty or"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", ""]}}, "inputs.sentences[1]: empty or"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"] * 256}},
         "inputs.sentences: too many items, together with inputs.source_sentence (257, limit 256)."),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}, "parameters": {"truncate": False}},
         "inputs.sentences[0]: too long (303 tokens, limit 256). Shorten it or set truncate to true."),
        ("/tokenize", {"inputs": [1]}, "inputs[0]: wrong type (number). Send a string."),
        ("/decode", {"ids": [[1], 2]}, "ids[1]: wrong type (number)."),
        ("/decode", {"ids": [30522]}, "ids[0]: id outside of the vocabulary"),
    ],
)  # fmt: skip
async def test_invalid_body_is_a_validation_error(harness: ServiceHarness, path: str, body: Any, message: str) -> None:
    response = await harness.post(path, body)
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation"), response.text
    assert response.json()["error"].startswith(message)
    assert set(response.json()) == {"error", "error_type"}


@pytest.mark.parametrize("path", POSTS)
async def test_malformed_request_has_a_tei_error(harness: ServiceHarness, path: str) -> None:
    json, text = {"content-type": "application/json"}, {"content-type": "text/plain"}
    for content, headers, status in ((b"{", json, 400), (b"{}", text, 415), (b" " * 3_000_000, json, 413)):
        response = await harness.client.post(path, content=content, headers=headers)
        assert (response.status_code, response.json()["error_type"]) == (status, "Validation")


@pytest.mark.parametrize("path", [path for path in POSTS if path not in ("/embed_sparse", "/rerank", "/predict")])
async def test_deadline_applies(harness: ServiceHarness, path: str) -> None:
    bodies = {"/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, "/decode": {"ids": IDS}}
    response = await harness.post(path, bodies.get(path, {"inputs": "a"}), **{"x-request-timeout-ms": "0"})
    assert (response.status_code, response.json()["error_type"]) == (504, "Backend")


async def test_full_queue_is_overload(model: LoadedModel) -> None:
    async with open_harness(model, max_queue_tokens=10) as harness:
        with fast_lane(harness).reserve([10]):
            for path in ("/", "/embed", "/embed_all"):
                response = await harness.post(path, {"inputs": GOLDEN})
                assert (response.status_code, response.json()["error_type"]) == (429, "Overloaded")
                assert int(response.headers["retry-after"]) >= 1


async def test_server_that_shuts_down_is_unhealthy(harness: ServiceHarness) -> None:
    harness.lifecycle.reject_new()
    for path in POSTS:
        response = await harness.post(path, {"inputs": GOLDEN})
        assert (response.status_code, response.json()["error_type"]) == (503, "Unhealthy")
    assert (await harness.client.get("/info")).json()["error_type"] == "Unhealthy"


async def test_internal_error_has_status_500(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """This makes monitoring count it as a server error."""

    async def broken(*arguments: object) -> None:
        raise Internal

    monkeypatch.setattr("service.tei.encode", broken)
    response = await harness.post("/embed", {"inputs": GOLDEN})
    assert (response.status_code, response.json()["error_type"]) == (500, "Backend")


async def test_requests_are_counted_with_the_label_of_this_api(harness: ServiceHarness) -> None:
    await harness.post("/embed", {"inputs": GOLDEN})
    await harness.post("/", {"inputs": GOLDEN})
    await harness.post("/rerank", {"query": "a", "texts": ["b"]})
    await harness.client.get("/health")
    for endpoint, code in (("/embed", "200"), ("/", "200"), ("/rerank", "424")):
        assert harness.sample("attendant_requests_total", api="tei", endpoint=endpoint, code=code) == 1
    assert harness.sample("attendant_rejected_requests_total", api="tei", reason="invalid") == 1
    assert harness.sample("attendant_requests_total") == 3


async def test_key_is_required_except_for_health(model: LoadedModel) -> None:
    async with open_harness(model, make_keys("secret")) as harness:
        for path in POSTS:
            response = await harness.post(path, {"inputs": GOLDEN})
            assert (response.status_code, response.json()["error_type"]) == (401, "Validation")
        assert (await harness.client.get("/info")).status_code == 401
        for path in ("/health", "/ping", "/"):
            assert (await harness.client.get(path)).status_code == 200
        response = await harness.post("/", {"inputs": GOLDEN}, authorization="Bearer secret")
        assert response.status_code == 200
