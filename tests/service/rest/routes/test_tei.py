"""The TEI API: decoding, limits, health and headers. test_tei_products.py compares numbers with the native API."""

from typing import Any

import numpy as np
import pytest

from service.engine.model_loader import LoadedModel
from service.lifecycle import Status
from service.operations.encode import encode as encode_texts
from service.operations.inputs import Call
from tests.manifests import with_head, with_manifest
from tests.service.conftest import GOLDEN, ServiceHarness, encode_request, open_harness

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
