"""Replicas killed under load: what is lost without retries, and that the shipped clients lose nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from attendant_client import Client

from tests.deploy.conftest import DEPLOY, find_tool
from tests.deploy.replicas import Nginx, Replicas, nginx_before, run_replicas
from tests.deploy.steady_load import LONG_TEXT, SteadyLoad, client_send, grpc_send, open_client, rest_send

SENDERS = 4
SERVICE_CONFIG = (DEPLOY / "grpc-service-config.json").read_text()


@pytest.fixture
def replicas(default_artifact: Path) -> Iterator[Replicas]:
    find_tool("nginx")
    with run_replicas(default_artifact) as replicas:
        replicas.start_all(2)
        yield replicas


@pytest.fixture
def nginx(replicas: Replicas, tmp_path: Path) -> Iterator[Nginx]:
    with nginx_before(replicas, tmp_path) as nginx:
        yield nginx


@pytest.mark.slow
def test_kill_behind_nginx_fails_only_requests_in_flight(replicas: Replicas, nginx: Nginx) -> None:
    """nginx passes a request to the other replica only if the first one has not received it."""
    with grpc.insecure_channel(nginx.grpc) as channel:
        load = SteadyLoad(
            rest=[rest_send(nginx.address, nginx.rest_port, LONG_TEXT) for _ in range(SENDERS)],
            grpc=[grpc_send(channel, LONG_TEXT) for _ in range(SENDERS)],
        )
        with load:
            load.wait_for(100)
            killed_at = time.monotonic()
            gone_at = replicas.kill(replicas.running[0])
            load.wait_for(100)
    in_flight = [outcome for outcome in load.outcomes if outcome.started < gone_at and outcome.ended > killed_at]
    print(f"in flight on both replicas: {len(in_flight)}, failed: {load.failed}")
    assert 1 <= len(load.failed) < len(in_flight)
    assert set(load.failed) <= set(in_flight)
    assert all(outcome.code == "502" or outcome.code.startswith("UNAVAILABLE") for outcome in load.failed)


@pytest.mark.slow
def test_kill_loses_no_request_of_the_shipped_clients(replicas: Replicas, nginx: Nginx) -> None:
    """Covers the client over gRPC and HTTP, and generated stubs with deploy/grpc-service-config.json."""
    options = [("grpc.service_config", SERVICE_CONFIG)]
    with (
        open_client(replicas.grpc_target) as direct,
        open_client(nginx.grpc) as proxied,
        Client(nginx.rest) as http,
        grpc.insecure_channel(replicas.grpc_target, options) as channel,
    ):
        load = SteadyLoad(
            direct=[client_send(direct, LONG_TEXT) for _ in range(SENDERS)],
            proxied=[client_send(proxied, LONG_TEXT) for _ in range(SENDERS)],
            http=[client_send(http, LONG_TEXT) for _ in range(SENDERS)],
            stub=[grpc_send(channel, LONG_TEXT) for _ in range(SENDERS)],
        )
        with load:
            load.wait_for(100)
            replicas.kill(replicas.running[0])
            load.wait_for(200)
    assert load.failed == []
    assert len(load.counts) == 4
