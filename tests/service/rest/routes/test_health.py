"""Liveness and readiness probes on both ports, and metrics on the admin port."""

import time

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from service.config import Settings
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.rest.app import make_admin_app
from tests.conftest import RunningServer


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_probes_are_served_on_both_ports(server: RunningServer, path: str) -> None:
    for base in (server.rest, server.admin):
        response = httpx.get(base + path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_admin_port_serves_metrics_and_not_the_api(server: RunningServer) -> None:
    assert httpx.get(server.admin + "/metrics").status_code == 200
    assert httpx.get(server.rest + "/metrics").status_code == 404
    for path in ("/v1/model", "/docs", "/openapi.json"):
        assert httpx.get(server.admin + path).status_code == 404


@pytest.mark.parametrize(
    ("change", "live", "ready", "status"),
    [(None, 200, 503, "starting"), ("start_draining", 200, 503, "draining"), ("fail", 503, 503, "failed")],
)
async def test_probes_report_the_lifecycle_status(change: str | None, live: int, ready: int, status: str) -> None:
    """A starting or draining process is live but not ready. A failed process is neither."""
    metrics = Metrics(CollectorRegistry())
    lifecycle = Lifecycle(metrics)
    if change:
        getattr(lifecycle, change)()
    transport = httpx.ASGITransport(make_admin_app(lifecycle, Settings(), metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        responses = [await client.get(path) for path in ("/livez", "/readyz")]
    assert [response.status_code for response in responses] == [live, ready]
    assert [response.json() for response in responses] == [{"status": status}] * 2


async def test_metrics_are_compressed_and_in_openmetrics_if_accepted() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.observe_duration("rest", "fast", "m", time.perf_counter(), "0af7651916cd43dd8448eb211c80319c")
    transport = httpx.ASGITransport(make_admin_app(Lifecycle(metrics), Settings(), metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for accept in ("", "*/*", "text/plain;version=0.0.4", "application/openmetrics-text;version=x", "a,,;;"):
            plain = await client.get("/metrics", headers={"accept": accept, "accept-encoding": "identity"})
            assert (plain.status_code, "trace_id" in plain.text) == (
                200,
                "openmetrics" in plain.headers["content-type"],
            )
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"  # as Prometheus sends it
        response = await client.get("/metrics", headers={"accept": accept, "accept-encoding": "gzip"})
        assert response.headers["content-type"].startswith("application/openmetrics-text")
        assert response.headers["content-encoding"] == "gzip"
    families = list(text_string_to_metric_families(response.text))  # type: ignore[no-untyped-call]
    exemplars = [sample.exemplar for family in families for sample in family.samples if sample.exemplar]
    assert [exemplar.labels for exemplar in exemplars] == [{"trace_id": "0af7651916cd43dd8448eb211c80319c"}]
