"""Metrics: every label set exists from the start, the text parses, and the counts are the client's own tally."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.engine.model_loader import LoadedModel
from service.metrics import REJECTIONS, STAGES, Metrics
from tests.conftest import RunningServer, start_server, stop_server
from tests.service.conftest import House, open_house


@pytest.fixture
async def fresh(model: LoadedModel) -> AsyncIterator[House]:
    async with open_house(model) as opened:
        yield opened


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def labels(family: Metric, *names: str) -> set[tuple[str, ...]]:
    samples = [sample.labels for sample in family.samples if set(names) <= set(sample.labels)]
    return {tuple(sample[name] for name in names) for sample in samples}


async def test_label_sets_exist_before_the_first_request(fresh: House) -> None:
    """So that a rate starts from 0 and an alert does not miss the first fault."""
    found = families(generate_latest(fresh.metrics.registry).decode())
    assert labels(found["attendant_rejected"], "reason") == {(reason,) for reason in REJECTIONS}
    assert labels(found["attendant_cancelled"], "where") == {("queue",), ("batch",)}
    assert labels(found["attendant_stage_duration_seconds"], "stage", "lane") == {
        (stage, lane) for stage in STAGES for lane in ("fast", "explain")
    }
    outcomes = labels(found["attendant_request_duration_seconds"], "door", "method", "outcome")
    for door, method in (("rest", "/v1/encode"), ("openai", "/v1/embeddings")):
        assert (door, method, "ok") in outcomes
        assert (door, method, "200") in labels(found["attendant_requests"], "door", "method", "code")


async def test_metrics_have_prefix_and_description(fresh: House) -> None:
    """Prefix, help, and base units in the names."""
    found = families(generate_latest(fresh.metrics.registry).decode())
    assert len(found) >= 25
    for name, family in found.items():
        assert name.startswith("attendant_")
        assert family.documentation.endswith(".")
        assert not name.endswith(("_ms", "_milliseconds", "_kb", "_percent"))


def test_two_registries_do_not_meet() -> None:
    """Nothing is registered globally."""
    first, second = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    first.tokens.inc()
    assert second.registry.get_sample_value("attendant_tokens_total") == 0


async def test_counters_equal_the_clients_tally(fresh: House) -> None:
    """After a mix of answers and faults, for each door, route and status."""
    calls = [
        ("rest", "/v1/encode", {"inputs": "a"}), ("rest", "/v1/encode", {"inputs": ""}),
        ("rest", "/v1/encode", {"inputs": "a", "model": "b"}), ("rest", "/v1/encode", {"inputs": "a" * 20_000}),
        ("rest", "/v1/encode", {"inputs": ["a", "b c"]}), ("rest", "/v1/attend", {}),
        ("rest", "/v1/tokenize", {"inputs": "a"}),
        ("openai", "/v1/embeddings", {"input": "a", "model": "all-MiniLM-L6-v2"}), ("openai", "/v1/embeddings", {}),
    ]  # fmt: skip
    tally: Counter[tuple[str, str, str]] = Counter()
    for number in range(90):
        door, path, body = calls[number * 7 % len(calls)]
        tally[door, path, str((await fresh.post(path, body)).status_code)] += 1
    tally["rest", "_OTHER", str((await fresh.client.get("/nothing/42")).status_code)] += 1
    for (door, path, code), count in tally.items():
        assert fresh.sample("attendant_requests_total", door=door, method=path, code=code) == count
    assert fresh.sample("attendant_rejected_total", reason="invalid") == 10 * 4 + 1
    assert fresh.sample("attendant_rejected_total", reason="too_large") == 10
    assert fresh.sample("attendant_requests_in_flight") == 0
    assert fresh.sample("attendant_tokens_total") == 10 * (3 + 3 + 4 + 3)


@pytest.mark.parametrize(
    ("status", "outcome"), [(200, "ok"), (422, "client_error"), (499, "client_error"), (429, "shed"), (503, "shed"),
                            (500, "error"), (504, "error")]
)  # fmt: skip
def test_outcomes(status: int, outcome: str) -> None:
    """What was shed is neither the client's fault nor an error of ours."""
    metrics = Metrics(CollectorRegistry())
    metrics.observe_request("rest", "/x", str(status), status, 0.0)
    labels = {"door": "rest", "method": "/x", "outcome": outcome}
    assert metrics.registry.get_sample_value("attendant_request_duration_seconds_count", labels) == 1


def test_running_server_exposes_its_model(server: RunningServer) -> None:
    """Ready, its model and digest, and the process's own numbers."""
    found = families(httpx.get(server.admin + "/metrics").text)
    assert found["attendant_ready"].samples[0].value == 1
    (info,) = found["attendant_model_info"].samples
    assert info.labels["model"] == "all-MiniLM-L6-v2"
    assert info.labels["sha256"].startswith("sha256:")
    assert {"process_resident_memory_bytes", "attendant_build_info", "python_info"} <= set(found)


def test_raw_paths_never_become_labels(server: RunningServer) -> None:
    """Else a scanner fills the memory."""
    for path in ("/scan-1", "/v1/models/scan-2", "/v1/encode/scan-3"):
        httpx.get(server.rest + path)
    assert "scan-" not in httpx.get(server.admin + "/metrics").text


def test_server_at_rest_has_at_most_600_series(default_artifact: Path) -> None:
    """Those of the process included; `_created` series have no use in Prometheus."""
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
    assert 'door="health"' not in text
