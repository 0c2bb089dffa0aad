"""The Open Inference Protocol over REST: metadata, statistics, health, and methods."""

from typing import Any

import pytest

from service.engine.model_loader import LoadedModel
from service.lifecycle import Status
from tests.keys import make_keys
from tests.oip_messages import text
from tests.service.conftest import GOLDEN, ServiceHarness, open_harness
from tests.service.rest.routes.oip_client import INFER, MODEL, infer, post


async def test_metadata_and_configuration(harness: ServiceHarness) -> None:
    get = harness.client.get
    assert (await get("/v2")).json()["name"] == "attendant"
    metadata = (await get(f"/v2/models/{MODEL}")).json()
    assert {tensor["name"]: tensor["shape"] for tensor in metadata["outputs"]} == {
        "pooled": [-1, 384], "tokens": [-1, -1, 384], "token_counts": [-1], "attention": [-1] * 5,
    }  # fmt: skip
    config = (await get(f"/v2/models/{MODEL}/config")).json()
    assert [tensor["name"] for tensor in config["input"]] == [tensor["name"] for tensor in metadata["inputs"]]
    assert [tensor["dims"] for tensor in config["output"]] == [tensor["shape"] for tensor in metadata["outputs"]]


async def test_statistics_match_the_metrics(harness: ServiceHarness) -> None:
    async def stats() -> dict[str, Any]:
        (model_stats,) = (await harness.client.get("/v2/models/stats")).json()["model_stats"]
        assert (await harness.client.get(f"/v2/models/{MODEL}/stats")).json()["model_stats"] == [model_stats]
        return dict(model_stats)

    before = await stats()
    assert (before["inference_count"], before["execution_count"]) == (0, 0)
    await infer(harness, text(GOLDEN, "river", "bank"))
    await harness.post("/v1/encode", {"inputs": GOLDEN})
    after = await stats()
    assert after["inference_count"] == 4
    assert after["execution_count"] == harness.batches_run
    stages = after["inference_stats"]
    assert {name: stage["count"] for name, stage in stages.items()} == {
        "success": 2, "fail": 0, "queue": 2, "compute_input": 2, "compute_infer": harness.batches_run,
        "compute_output": 2,
    }  # fmt: skip
    assert stages["compute_infer"]["ns"] == pytest.approx(
        1e9 * harness.sample("attendant_stage_duration_seconds_sum", stage="inference")
    )
    assert "ns" not in stages["success"]


async def test_requests_are_counted_as_this_api(harness: ServiceHarness) -> None:
    await infer(harness, text(GOLDEN))
    await post(harness, text(""))
    labels = {"api": "oip", "endpoint": "/v2/models/{name}/infer", "model": MODEL}
    assert harness.sample("attendant_requests_total", code="200", **labels) == 1
    assert harness.sample("attendant_requests_total", code="400", **labels) == 1
    assert harness.sample("attendant_rejected_requests_total", api="oip", reason="invalid") == 1


async def test_health_requires_no_key_and_is_not_counted(model: LoadedModel) -> None:
    async with open_harness(model, make_keys("secret")) as harness:
        for path, body in (("/v2/health/live", {"live": True}), ("/v2/health/ready", {"ready": True})):
            response = await harness.client.get(path)
            assert (response.status_code, response.json()) == (200, body)
            assert (await harness.client.head(path)).content == b""
        for method, path in (("GET", "/v2"), ("GET", f"/v2/models/{MODEL}"), ("POST", INFER)):
            response = await harness.client.request(method, path)
            assert (response.status_code, response.json().keys()) == (401, {"error"})
            assert response.headers["www-authenticate"] == "Bearer"
        headers = {"authorization": "Bearer secret"}
        assert (await harness.client.get("/v2", headers=headers)).status_code == 200
        assert "health" not in str(list(harness.metrics.requests.collect()))


async def test_starting_draining_and_failed_servers_are_not_ready(harness: ServiceHarness) -> None:
    get = harness.client.get
    harness.lifecycle.start_draining()
    assert (await get("/v2/health/live")).status_code == 200
    response = await get("/v2/health/ready")
    assert (response.status_code, response.json()) == (503, {"ready": False})
    assert (await get(f"/v2/models/{MODEL}/ready")).status_code == 503
    await infer(harness, text(GOLDEN))
    harness.lifecycle.reject_new()
    response = await post(harness, text(GOLDEN))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json() == {"error": "Server is shutting down. Retry on another instance."}
    assert (await get("/v2")).status_code == 200
    harness.lifecycle.fail()
    assert harness.lifecycle.status is Status.FAILED
    assert (await get("/v2/health/live")).json() == {"live": False}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", INFER, "OPTIONS, POST"), ("POST", "/v2", "GET, HEAD, OPTIONS"),
        ("DELETE", f"/v2/models/{MODEL}", "GET, HEAD, OPTIONS"), ("PUT", INFER, "OPTIONS, POST"),
        ("GET", f"/v2/models/{MODEL}/versions/1/infer", "OPTIONS, POST"), ("HEAD", INFER, "OPTIONS, POST"),
        ("GET", "/v2/repository/index", "OPTIONS, POST"), ("POST", "/v2/models/stats", "GET, HEAD, OPTIONS"),
    ],
)  # fmt: skip
async def test_other_methods_are_not_allowed(harness: ServiceHarness, method: str, path: str, allowed: str) -> None:
    response = await harness.client.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    assert method == "HEAD" or response.json().keys() == {"error"}
    options = await harness.client.options(path)
    assert (options.status_code, options.headers["allow"]) == (204, allowed)


async def test_models_cannot_be_loaded_without_admin_keys(harness: ServiceHarness) -> None:
    for action in ("load", "unload"):
        response = await harness.client.post(f"/v2/repository/models/{MODEL}/{action}", json={})
        assert response.status_code == 403
        assert response.json() == {
            "error": "No admin key is configured. Set ATTENDANT_ADMIN_KEYS_FILE and restart the server."
        }
