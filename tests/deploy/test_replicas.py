"""Replicas under load: killed, and replaced."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from attendant_client import Client

from tests.deploy.conftest import DEPLOY, find_tool
from tests.deploy.replicas import Nginx, Replicas, nginx_before, run_replicas
from tests.deploy.steady_load import LONG_TEXT, SteadyLoad, client_send, grpc_send, open_client, rest_send, stream_send

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


# Replicas behind nginx are replaced under load, as in a rollout of the Deployment, without losing requests.

PRE_STOP_S = 2.0
"""Time for a proxy to notice that a pod is not ready. The load's streams last 1 s, and nginx reloads faster than
that.
"""
REST_CLIENTS, GRPC_CLIENTS, STREAMS = 6, 6, 2


@contextmanager
def proxied_load(nginx: Nginx) -> Iterator[SteadyLoad]:
    """Yield a load over REST, gRPC and gRPC streams without retries."""
    with grpc.insecure_channel(nginx.grpc) as channel:
        load = SteadyLoad(
            rest=[rest_send(nginx.address, nginx.rest_port) for _ in range(REST_CLIENTS)],
            grpc=[grpc_send(channel) for _ in range(GRPC_CLIENTS)],
            streams=[stream_send(channel) for _ in range(STREAMS)],
        )
        with load:
            load.wait_for(100)
            yield load


def replace_oldest(replicas: Replicas, nginx: Nginx) -> None:
    """Replace a replica like a rollout with maxSurge 1: start, add, remove, wait in preStop, and send SIGTERM."""
    oldest = nginx.endpoints[0]
    nginx.add(replicas.start())
    nginx.remove(oldest)
    time.sleep(PRE_STOP_S)
    replicas.stop(oldest)


def restart_under_load(model_dir: Path, folder: Path, restarts: int) -> SteadyLoad:
    """Return the outcomes of a load during several restarts."""
    find_tool("nginx")
    with run_replicas(model_dir) as replicas:
        replicas.start_all(2)
        with nginx_before(replicas, folder) as nginx, proxied_load(nginx) as load:
            for _ in range(restarts):
                replace_oldest(replicas, nginx)
            load.wait_for(100)
    print(f"{restarts} restarts, requests: {dict(load.counts)}, lost: {len(load.failed)}")
    return load


@pytest.mark.slow
def test_10_restarts_behind_nginx_lose_none_of_10_000_requests(tiny_artifact: Path, tmp_path: Path) -> None:
    load = restart_under_load(tiny_artifact, tmp_path, 10)
    assert load.failed == []
    assert load.counts.total() >= 10_000
    assert min(load.counts["rest"], load.counts["grpc"]) >= 2_500
    assert load.counts["streams"] >= 25
