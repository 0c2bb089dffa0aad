"""The server in a pod environment: variables, user, file system, cgroup, probes and termination."""

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.pod import USER_ID, Cgroup, Pod, start_pod
from tests.deploy.pod_environment import Manifest
from tests.deploy.probes import Probe
from tests.deploy.replicas import free_ports
from tests.deploy.steady_load import LONG_TEXT, SteadyLoad, rest_send

ADDRESS = "127.0.0.1"
GIB = 2**30
SENDERS = 4
BULK = {"inputs": [LONG_TEXT] * 32, "outputs": ["pooled"]}
BULK_REQUESTS = 3
# A tenth of the drain delay, and a queue that accepts the bulk requests on a slow or busy CPU too.
FOR_TESTS: dict[str, Any] = {"ATTENDANT_DRAIN_DELAY_MS": "1000", "ATTENDANT_MAX_QUEUE_MS": "30000"}


@dataclass
class RunningPod:
    """A server in a pod, with the addresses of its ports."""

    pod: Pod
    rest_port: int
    rest: str
    admin: str


@contextmanager
def running_pod(
    model_dir: Path, folder: Path, cpus: float | None = None, **environment: str | None
) -> Iterator[RunningPod]:
    """Yield a pod of the cpu overlay. It shares the test's network, so its addresses differ from the image's."""
    rest_port, grpc_port, admin_port = free_ports(3)
    own = {
        "ATTENDANT_HOST": ADDRESS,
        "ATTENDANT_ADMIN_HOST": ADDRESS,
        "ATTENDANT_REST_PORT": str(rest_port),
        "ATTENDANT_GRPC_PORT": str(grpc_port),
        "ATTENDANT_ADMIN_PORT": str(admin_port),
    }
    merged = Manifest("cpu").environment() | own | environment
    variables = {name: value for name, value in merged.items() if value is not None}
    with start_pod(variables, model_dir, Cgroup(cpus, 2 * GIB), folder) as pod:
        yield RunningPod(pod, rest_port, f"http://{ADDRESS}:{rest_port}", f"http://{ADDRESS}:{admin_port}")


def streams(pod: Pod) -> int:
    match = re.search(r"backend selected .*?streams=(\d+)", pod.log)
    assert match is not None, pod.log
    return int(match[1])


def request_status(method: str, url: str, **options: Any) -> int:
    """Return the HTTP status, or 0 if the connection fails."""
    try:
        return httpx.request(method, url, timeout=60, **options).status_code
    except httpx.TransportError:
        return 0


def observe_drain(running: RunningPod) -> list[tuple[int, int]]:
    """Return repeated readiness and request statuses until the connection is refused."""
    observed: list[tuple[int, int]] = []
    while not observed or observed[-1][1]:
        ready = request_status("GET", f"{running.admin}/readyz")
        observed.append((ready, request_status("POST", f"{running.rest}/v1/encode", json={"inputs": "bank"})))
    return observed


@pytest.mark.slow
def test_pod_passes_its_probes_and_stops_clean_under_load(default_artifact: Path, tmp_path: Path) -> None:
    """The probes come from the manifest. SIGTERM arrives while accepted requests are waiting in the queue."""
    manifest = Manifest("cpu")
    with running_pod(default_artifact, tmp_path, **FOR_TESTS) as running:
        with Probe(manifest.container["startupProbe"], running.admin) as startup:
            startup.wait_for_success()
        with (
            Probe(manifest.container["readinessProbe"], running.admin) as readiness,
            Probe(manifest.container["livenessProbe"], running.admin) as liveness,
        ):
            readiness.wait_for_success()
            with SteadyLoad(rest=[rest_send(ADDRESS, running.rest_port) for _ in range(SENDERS)]) as load:
                load.wait_for(300)
            with ThreadPoolExecutor(BULK_REQUESTS + 1) as pool:
                encode = f"{running.rest}/v1/encode"
                accepted = [pool.submit(request_status, "POST", encode, json=BULK) for _ in range(BULK_REQUESTS)]
                time.sleep(0.3)
                liveness.stop()  # like the kubelet when a pod terminates
                end = pool.submit(running.pod.terminate, manifest.pod["terminationGracePeriodSeconds"])
                observed = observe_drain(running)
        status, seconds = end.result()
    print(f"exit status {status} after {seconds:.1f} s, readiness and new requests: {Counter(observed)}")
    assert load.failed == []
    assert set(liveness.statuses) == {200}
    assert [future.result() for future in accepted] == [200] * BULK_REQUESTS
    # New requests must still be served while readiness fails, and only then be rejected.
    assert (503, 200) in observed
    assert all(ready != 200 for ready, request in observed if request != 200)
    assert 503 in readiness.statuses
    assert status == 0
    assert seconds < int(Manifest("cpu").environment()["ATTENDANT_DRAIN_TIMEOUT_MS"]) / 1000


@pytest.mark.slow
def test_pod_runs_as_an_arbitrary_user_and_writes_nothing(default_artifact: Path, tmp_path: Path) -> None:
    with running_pod(default_artifact, tmp_path) as running:
        running.pod.wait_for_log("ready: ")
        assert request_status("POST", f"{running.rest}/v1/encode", json={"inputs": "bank"}) == 200
        fields = dict(line.split(":\t") for line in Path(f"/proc/{running.pod.pid}/status").read_text().splitlines())
        assert fields["Uid"].split() == [str(USER_ID)] * 4
        assert fields["Gid"].split() == ["0"] * 4
        assert (fields["CapEff"], fields["NoNewPrivs"]) == ("0" * 16, "1")
        root = running.pod.root
        for folder in ("", "mnt", "srv", "media", "etc", "var", "usr"):
            assert os.statvfs(root / folder).f_flag & os.ST_RDONLY, folder
        assert [path.name for folder in ("tmp", "dev/shm") for path in (root / folder).iterdir()] == []
        assert "Read-only file system" not in running.pod.log
        assert "Permission denied" not in running.pod.log


@pytest.mark.slow
@pytest.mark.parametrize(("cpus", "threads", "expected"), [(None, "", 2), (1.0, None, 1)])
def test_threads_follow_the_manifest_or_the_quota(
    default_artifact: Path, tmp_path: Path, cpus: float | None, threads: str | None, expected: int
) -> None:
    """The manifest sets the number through its CPU request. Without it, the server reads its cgroup's quota."""
    changes = {} if threads is not None else {"ATTENDANT_THREADS": None}
    with running_pod(default_artifact, tmp_path, cpus, **changes) as running:
        running.pod.wait_for_log("ready: ")
        assert streams(running.pod) == expected
        assert request_status("GET", f"{running.admin}/livez") == 200
