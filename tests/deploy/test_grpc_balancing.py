"""Direct gRPC calls to replicas, as through the headless Service: load shares, hanging and stopping replicas."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attendant_client import RetryPolicy, connections
from attendant_client.connections import CHANNEL_OPTIONS, SERVICE_CONFIG, Address
from attendant_client.retries import MULTIPLIER, NO_RETRIES

from service.errors import Cancelled, QueueFull, Unavailable
from service.rpc.servicer import SERVICE
from tests.deploy.conftest import DEPLOY, find_tool
from tests.deploy.replicas import Replicas, nginx_before, run_replicas
from tests.deploy.steady_load import SteadyLoad, client_send, open_client

CALLS = 200
CONNECTION_AGE_MS = 1_000
"""Stands for the default of 5 minutes."""
SENDERS = 4
KEEPALIVE_S = dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] / 1000
DETECTION_S = KEEPALIVE_S + dict(CHANNEL_OPTIONS)["grpc.keepalive_timeout_ms"] / 1000 + 5


@pytest.fixture
def replicas(default_artifact: Path) -> Iterator[Replicas]:
    with run_replicas(default_artifact, max_grpc_connection_age_ms=CONNECTION_AGE_MS) as replicas:
        yield replicas


def shares(replicas: Replicas, calls: int) -> list[float]:
    return [replica.requests("grpc") / calls for replica in replicas.running]


@pytest.mark.slow
def test_client_balances_calls_over_all_replicas(replicas: Replicas) -> None:
    replicas.start_all(2)
    with open_client(replicas.grpc_target) as client:
        send = client_send(client)
        assert {send() for _ in range(CALLS)} == {"OK"}
    print("shares of two replicas", result := shares(replicas, CALLS))
    assert min(result) > 0.4


@pytest.mark.slow
def test_hanging_replica_loses_no_call(replicas: Replicas) -> None:
    """Without keepalive pings, calls to a replica that vanished without closing its connections would time out."""
    hanging, _ = replicas.start_all(2, max_grpc_connection_age_ms=0)
    with open_client(replicas.grpc_target) as client:
        with SteadyLoad(grpc=[client_send(client) for _ in range(SENDERS)]) as load:
            load.wait_for(100)
            hanging.server.process.send_signal(signal.SIGSTOP)
            time.sleep(DETECTION_S)
            load.wait_for(100)
            resumed = len(load.outcomes)
        hanging.server.process.send_signal(signal.SIGCONT)
    longest = max(outcome.ended - outcome.started for outcome in load.outcomes)
    print(f"{resumed} calls, the longest took {longest:.1f} s")
    assert load.failed == []
    assert longest < DETECTION_S


@pytest.mark.slow
@pytest.mark.parametrize(("drain_delay_ms", "retries"), [(0, RetryPolicy()), (1_000, NO_RETRIES)])
def test_stopped_replica_loses_no_call(replicas: Replicas, drain_delay_ms: int, retries: RetryPolicy) -> None:
    """The replica gets SIGTERM without preStop, while its client still knows both addresses.

    Calls that the replica rejects are retried. A drain delay gives the client time to see its health change.
    """
    stopped, _ = replicas.start_all(2, drain_delay_ms=drain_delay_ms)
    with (
        open_client(replicas.grpc_target, retries) as client,
        SteadyLoad(grpc=[client_send(client) for _ in range(SENDERS)]) as load,
    ):
        load.wait_for(100)
        replicas.stop(stopped)
        load.wait_for(100)
    assert load.failed == []


@pytest.mark.slow
def test_stopped_replica_behind_a_proxy_loses_no_call(
    replicas: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy forwards the health of one replica, which says nothing about the others.

    nginx keeps sending requests to the stopping replica. With this many clients, some health checks reach that
    replica, unless all clients share a connection.
    """
    find_tool("nginx")
    own_connection = ("grpc.use_local_subchannel_pool", 1)
    monkeypatch.setattr(connections, "CHANNEL_OPTIONS", (*connections.CHANNEL_OPTIONS, own_connection))
    stopped, _ = replicas.start_all(2)
    with nginx_before(replicas, tmp_path) as nginx, ExitStack() as stack:
        clients = [stack.enter_context(open_client(nginx.grpc)) for _ in range(2 * SENDERS)]
        with SteadyLoad(grpc=[client_send(client) for client in clients]) as load:
            load.wait_for(100)
            replicas.stop(stopped)
            load.wait_for(100)
    assert load.failed == []


def test_tls_address_has_no_health_check() -> None:
    """A TLS address may belong to a proxy, through which a health check reaches one server only."""
    configs = [dict(Address.parse(url).channel_options)["grpc.service_config"] for url in ("grpc://a:1", "grpcs://a")]
    assert ["healthCheckConfig" in config for config in configs] == [True, False]
    assert all("round_robin" in config for config in configs)


def test_service_config_for_other_clients_matches_the_client() -> None:
    """Other clients have no `RetryPolicy`, so the config includes a retry policy with the retryable codes.

    gRPC itself cancels calls that arrive while a server stops.
    """
    config = json.loads((DEPLOY / "grpc-service-config.json").read_text())
    (method,) = config.pop("methodConfig")
    assert config.pop("retryThrottling")["maxTokens"] == 100
    assert config == SERVICE_CONFIG
    assert method["name"] == [{"service": SERVICE.full_name}]
    policy, retry = RetryPolicy(), method["retryPolicy"]
    assert retry.pop("retryableStatusCodes") == [Unavailable.code, QueueFull.code, Cancelled.code]
    assert retry == {
        "maxAttempts": policy.max_attempts,
        "initialBackoff": f"{policy.initial_delay_s:g}s",
        "maxBackoff": f"{policy.max_delay_s:g}s",
        "backoffMultiplier": MULTIPLIER,
    }
