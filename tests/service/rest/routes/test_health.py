"""The probes, on both ports, and metrics on one."""

import httpx
import pytest
from prometheus_client import CollectorRegistry

from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.rest.app import make_admin_app
from tests.conftest import RunningServer


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_probes_answer_on_both_ports(server: RunningServer, path: str) -> None:
    """200 and ok."""
    for base in (server.rest, server.admin):
        answer = httpx.get(base + path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_metrics_are_on_the_admin_port_alone(server: RunningServer) -> None:
    """And nothing of the API is."""
    assert httpx.get(server.admin + "/metrics").status_code == 200
    assert httpx.get(server.rest + "/metrics").status_code == 404
    for path in ("/v1/model", "/docs", "/openapi.json"):
        assert httpx.get(server.admin + path).status_code == 404


@pytest.mark.parametrize(
    ("change", "live", "ready", "status"),
    [(None, 200, 503, "starting"), ("start_draining", 200, 503, "draining"), ("fail", 503, 503, "failed")],
)
async def test_probes_say_what_state_the_process_is_in(change: str | None, live: int, ready: int, status: str) -> None:
    """Starting and draining are alive but not ready; failed is neither."""
    metrics = Metrics(CollectorRegistry())
    host = Lifecycle(metrics)
    if change:
        getattr(host, change)()
    transport = httpx.ASGITransport(make_admin_app(host, metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        answers = [await client.get(path) for path in ("/livez", "/readyz")]
    assert [answer.status_code for answer in answers] == [live, ready]
    assert [answer.json() for answer in answers] == [{"status": status}] * 2
