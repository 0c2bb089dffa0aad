"""Replicas behind nginx are replaced under load, as in a rollout of the Deployment, without losing requests."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.deploy.conftest import find_tool
from tests.deploy.replicas import Nginx, Replicas, nginx_before, run_replicas
from tests.deploy.steady_load import SteadyLoad, grpc_send, rest_send, stream_send

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
