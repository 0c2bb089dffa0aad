"""Metrics: label sets, names and descriptions, counts, and the number of series."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.engine.model_loader import LoadedModel
from service.metrics import FAST_LANE, LANE_REJECTIONS, LANES, NO_LANE, OTHER_REJECTIONS, STAGES, Metrics
from tests.conftest import RunningServer, start_server, stop_server
from tests.service.conftest import ServiceHarness, open_harness


@pytest.fixture
async def fresh(model: LoadedModel) -> AsyncIterator[ServiceHarness]:
    async with open_harness(model) as opened:
        yield opened


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def labels(family: Metric, *names: str) -> set[tuple[str, ...]]:
    samples = [sample.labels for sample in family.samples if set(names) <= set(sample.labels)]
    return {tuple(sample[name] for name in names) for sample in samples}


async def test_label_sets_exist_before_the_first_request(fresh: ServiceHarness) -> None:
    """A rate then starts from 0, and an alert does not miss the first error."""
    exposed = families(generate_latest(fresh.metrics.registry).decode())
    assert labels(exposed["attendant_rejected_requests"], "reason", "api", "lane") == {
        (reason, api, lane)
        for api, own_lanes in (("rest", LANES), ("openai", (FAST_LANE,)))
        for reasons, lanes in ((LANE_REJECTIONS, own_lanes), (OTHER_REJECTIONS, (NO_LANE,)))
        for reason in reasons
        for lane in lanes
    }
    assert labels(exposed["attendant_cancelled_inputs"], "stage") == {("queue",), ("batch",)}
    assert labels(exposed["attendant_stage_duration_seconds"], "stage", "lane") == {
        (stage, lane) for stage in STAGES for lane in ("fast", "explain")
    }
    outcomes = labels(exposed["attendant_request_duration_seconds"], "api", "endpoint", "outcome")
    for api, endpoint in (("rest", "/v1/encode"), ("openai", "/v1/embeddings")):
        assert (api, endpoint, "ok") in outcomes
        assert (api, endpoint, "200") in labels(exposed["attendant_requests"], "api", "endpoint", "code")


async def test_metrics_have_prefix_description_and_base_units(fresh: ServiceHarness) -> None:
    exposed = families(generate_latest(fresh.metrics.registry).decode())
    assert len(exposed) >= 25
    for name, family in exposed.items():
        assert name.startswith("attendant_")
        assert family.documentation.endswith(".")
        assert not name.endswith(("_ms", "_milliseconds", "_kb", "_percent"))


def test_registries_are_independent() -> None:
    first, second = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    for metrics in (first, second):
        metrics.tokens.labels("m")
    first.tokens.labels("m").inc()
    assert second.registry.get_sample_value("attendant_tokens_total", {"model": "m"}) == 0


async def test_counters_match_the_responses(fresh: ServiceHarness) -> None:
    """Send valid and invalid requests to several APIs and endpoints."""
    calls = [
        ("rest", "/v1/encode", {"inputs": "a"}), ("rest", "/v1/encode", {"inputs": ""}),
        ("rest", "/v1/encode", {"inputs": "a", "model": "b"}), ("rest", "/v1/encode", {"inputs": "a" * 20_000}),
        ("rest", "/v1/encode", {"inputs": ["a", "b c"]}), ("rest", "/v1/attend", {}),
        ("rest", "/v1/tokenize", {"inputs": "a"}),
        ("openai", "/v1/embeddings", {"input": "a", "model": "all-MiniLM-L6-v2"}), ("openai", "/v1/embeddings", {}),
    ]  # fmt: skip
    expected: Counter[tuple[str, str, str]] = Counter()
    for number in range(90):
        api, path, body = calls[number * 7 % len(calls)]
        expected[api, path, str((await fresh.post(path, body)).status_code)] += 1
    expected["rest", "_OTHER", str((await fresh.client.get("/nothing/42")).status_code)] += 1
    for (api, path, code), count in expected.items():
        assert fresh.sample("attendant_requests_total", api=api, endpoint=path, code=code) == count
    assert fresh.sample("attendant_rejected_requests_total", reason="invalid") == 10 * 4 + 1
    assert fresh.sample("attendant_rejected_requests_total", reason="too_large") == 10
    assert fresh.sample("attendant_requests_in_flight") == 0
    assert fresh.sample("attendant_tokens_total") == 10 * (3 + 3 + 4 + 3)


@pytest.mark.parametrize(
    ("status", "outcome"), [(200, "ok"), (422, "client_error"), (499, "client_error"), (429, "shed"), (503, "shed"),
                            (500, "error"), (504, "error")]
)  # fmt: skip
def test_request_outcome_follows_the_status(status: int, outcome: str) -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.observe_request("rest", "/x", "m", str(status), status, 0.0)
    labels = {"api": "rest", "endpoint": "/x", "outcome": outcome, "model": "m"}
    assert metrics.registry.get_sample_value("attendant_request_duration_seconds_count", labels) == 1


def test_running_server_exposes_model_and_process_metrics(server: RunningServer) -> None:
    exposed = families(httpx.get(server.admin + "/metrics").text)
    assert exposed["attendant_ready"].samples[0].value == 1
    (info,) = exposed["attendant_model_info"].samples
    assert info.labels["model"] == "all-MiniLM-L6-v2"
    assert info.labels["digest"].startswith("sha256:")
    assert {"process_resident_memory_bytes", "attendant_build_info", "python_info"} <= set(exposed)


def test_unknown_paths_are_not_labels(server: RunningServer) -> None:
    """A scanner could otherwise create unlimited series."""
    for path in ("/scan-1", "/v1/models/scan-2", "/v1/encode/scan-3"):
        httpx.get(server.rest + path)
    assert "scan-" not in httpx.get(server.admin + "/metrics").text


def test_idle_server_has_at_most_600_series(default_artifact: Path) -> None:
    """Process metrics are included. `_created` series are disabled."""
    server = start_server(model_dir=default_artifact)
    try:
        for path in ("/livez", "/readyz"):
            httpx.get(server.rest + path)
        text = httpx.get(server.admin + "/metrics").text
    finally:
        stop_server(server)
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(series) <= 600
    assert not [line for line in series if "_created" in line]
    assert 'api="health"' not in text
