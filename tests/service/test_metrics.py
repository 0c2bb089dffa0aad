"""Metrics: label sets, names and descriptions, counts, and the number of series."""

from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as LinearHistogram
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.engine.model_loader import LoadedModel
from service.errors import DeadlineExceeded
from service.metrics import (
    FAST_APIS,
    FAST_LANE,
    GRPC_SERVICES,
    LANE_REJECTIONS,
    LANES,
    NO_LANE,
    OTHER_REJECTIONS,
    PROCESS_SERIES,
    SERIES_PER_MODEL,
    Histogram,
    Metrics,
)
from service.request_log import RequestLog, RequestRecord
from service.rpc.server import RpcServer
from tests.conftest import RunningServer
from tests.service.conftest import ServiceHarness, open_harness


@given(st.lists(st.sampled_from((0.5, 1, 2, 4)) | st.floats(-1, 1e6)))
def test_histogram_counts_like_prometheus_client(values: list[float]) -> None:
    exposed = []
    for kind in (Histogram, LinearHistogram):
        registry = CollectorRegistry()
        histogram = kind("a", "A.", registry=registry, buckets=(0.5, 1, 2, 4))
        for value in values:
            histogram.observe(value)
        exposed.append(generate_latest(registry).decode().partition("a_created")[0])
    assert exposed[0] == exposed[1]


@pytest.fixture
async def fresh(model: LoadedModel) -> AsyncIterator[ServiceHarness]:
    async with open_harness(model) as opened:
        assert opened.client  # the application creates the metrics of requests
        yield opened


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def labels(family: Metric, *names: str) -> set[tuple[str, ...]]:
    samples = [sample.labels for sample in family.samples if set(names) <= set(sample.labels)]
    return {tuple(sample[name] for name in names) for sample in samples}


async def test_label_sets_exist_before_the_first_request(fresh: ServiceHarness) -> None:
    """This way a rate starts from 0, and an alert does not miss the first error."""
    exposed = families(generate_latest(fresh.metrics.registry).decode())
    assert labels(exposed["attendant_rejected_requests"], "reason", "api", "lane") == {
        (reason, api, lane)
        for api, own_lanes in (("rest", LANES), ("oip", LANES), *((api, (FAST_LANE,)) for api in FAST_APIS))
        for reasons, lanes in ((LANE_REJECTIONS, own_lanes), (OTHER_REJECTIONS, (NO_LANE,)))
        for reason in reasons
        for lane in lanes
    }
    assert labels(exposed["attendant_cancelled_inputs"], "stage") == {("queue",), ("batch",)}
    assert labels(exposed["attendant_stage_duration_seconds"], "stage", "lane") == {
        (stage, lane) for stage in ("tokenize", "queue", "inference", "postprocess") for lane in LANES
    }
    durations = labels(exposed["attendant_request_duration_seconds"], "api", "lane")
    requests = labels(exposed["attendant_requests"], "api", "endpoint", "code")
    for api, endpoint in (
        ("rest", "/v1/encode"),
        ("openai", "/v1/embeddings"),
        ("tei", "/embed"),
        ("cohere", "/v2/embed"),
        ("vllm", "/score"),
        ("infinity", "/infinity/rerank"),
    ):
        assert (api, "fast") in durations
        assert {(api, endpoint, code) for code in ("200", "500", "503", "504")} <= requests


async def test_counters_match_the_responses(fresh: ServiceHarness) -> None:
    """Sends valid and invalid requests to several APIs and endpoints."""
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


async def test_durations_cover_successful_requests_without_streams() -> None:
    metrics = Metrics(CollectorRegistry())
    requests = RequestLog(metrics, "none")
    for endpoint, lane, status in (
        ("/v1/encode", "fast", 200), ("/v1/encode", "fast", 429), ("/v1/encode", "fast", 500),
        ("/v1/model", NO_LANE, 200), ("/attendant.v1.EncoderService/EncodeStream", "fast", 200),
    ):  # fmt: skip
        record = RequestRecord("rest", "one", endpoint=endpoint, lane=lane, model="m")
        requests.finish(record, str(status), status)
    value = metrics.registry.get_sample_value
    assert value("attendant_request_duration_seconds_count", {"api": "rest", "lane": "fast", "model": "m"}) == 1
    labels = {"api": "rest", "endpoint": "/v1/encode", "model": "m"}
    assert [value("attendant_requests_total", {**labels, "code": code}) for code in ("200", "429", "500")] == [1, 1, 1]


@pytest.mark.parametrize(("timeout_s", "label"), [(None, "deadline"), (5.0, "deadline"), (0.001, "short_deadline")])
async def test_deadline_below_the_objective_has_its_own_label(timeout_s: float | None, label: str) -> None:
    """A client with a 1 ms deadline must not page anyone."""
    metrics = Metrics(CollectorRegistry())
    record = RequestRecord("rest", "one", endpoint="/v1/encode", lane="fast", model="m", timeout_s=timeout_s)
    record.fail(DeadlineExceeded("Deadline exceeded"))
    RequestLog(metrics, "none").finish(record, "504", 504)
    labels = {"reason": label, "api": "rest", "lane": "fast", "model": "m"}
    assert metrics.registry.get_sample_value("attendant_rejected_requests_total", labels) == 1


async def test_timeout_of_the_client_is_noted(fresh: ServiceHarness) -> None:
    body = {"inputs": ["word " * 200] * 64}
    response = await fresh.post("/v1/encode", body, **{"X-Request-Timeout-Ms": "20"})
    assert response.status_code == 504
    assert fresh.sample("attendant_rejected_requests_total", reason="short_deadline", api="rest") == 1
    assert fresh.sample("attendant_rejected_requests_total", reason="deadline") == 0


async def test_busy_model_stays_within_its_budget_of_series(fresh: ServiceHarness) -> None:
    """By then, every endpoint in every API has returned every code that a model request may get."""
    metrics, http = fresh.metrics, (200, 400, 404, 413, 422, 429, 499, 500, 501, 503, 504)
    RpcServer(fresh.lifecycle, fresh.settings, metrics)
    rpc = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "CANCELLED", "INTERNAL", "UNIMPLEMENTED",
           "UNAVAILABLE", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION")  # fmt: skip
    idle = series(metrics)
    for api, endpoints in metrics._endpoints.items():
        for endpoint in endpoints:
            for code in rpc if any(name in endpoint for name in GRPC_SERVICES) else map(str, http):
                metrics.count_request(api, endpoint, code, fresh.engine.name)
        for lane in LANES:
            metrics.observe_duration(api, lane, fresh.engine.name, 0.0)
            for reason in (*LANE_REJECTIONS, *OTHER_REJECTIONS):
                metrics.count_rejection(reason, api, lane, fresh.engine.name)
    of_model = [line for line in series(metrics) if f'model="{fresh.engine.name}"' in line]
    print(f"{len(idle)} series when idle, {len(of_model)} of a busy model")
    assert len(of_model) <= SERIES_PER_MODEL
    assert len(series(metrics)) - len(of_model) <= PROCESS_SERIES - 100  # 100 for the process and the interpreter


def series(metrics: Metrics) -> list[str]:
    """Return the exposed series, without the `_created` series that the server disables."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#") and "_created" not in line]


def test_unknown_paths_are_not_labels(server: RunningServer) -> None:
    """Otherwise a scanner could create unlimited series."""
    for path in ("/scan-1", "/v1/models/scan-2", "/v1/encode/scan-3"):
        httpx.get(server.rest + path)
    assert "scan-" not in httpx.get(server.admin + "/metrics").text


def test_idle_server_stays_within_its_budget_of_series(server: RunningServer) -> None:
    """This includes process metrics. `_created` series are disabled."""
    for path in ("/livez", "/readyz"):
        httpx.get(server.rest + path)
    text = httpx.get(server.admin + "/metrics").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) <= SERIES_PER_MODEL + PROCESS_SERIES
    assert not [line for line in lines if "_created" in line]
    assert 'api="health"' not in text
