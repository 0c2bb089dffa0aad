"""The manifests match the code: options, ports, probes, metrics, limits and versions."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from model.__main__ import main as export_command
from service import __version__
from service.config import PREFIX, Settings, load_settings
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.rest.routes import health
from tests.deploy.conftest import DEPLOY
from tests.deploy.manifests import (
    AUTOSCALERS,
    Manifests,
    Object,
    all_components,
    build,
    build_job,
    names,
    parse,
    parse_quantity,
)

MEBIBYTE = 2**20
PORTS = {"http": "rest_port", "grpc": "grpc_port", "admin": "admin_port"}
MAX_TIMEOUT_S = Settings().max_timeout_ms / 1000
ADAPTER = DEPLOY / "components" / "autoscaling-hpa" / "prometheus-adapter-values.yaml"


@pytest.fixture(scope="module", params=names("overlays"))
def manifests(request: pytest.FixtureRequest) -> Manifests:
    """An overlay with every component. The GPU overlay has the other autoscaler."""
    autoscaler = "autoscaling-keda" if request.param == "gpu" else "autoscaling-hpa"
    return Manifests(parse(build(request.param, all_components(autoscaler))))


def environment(manifests: Manifests) -> dict[str, str]:
    """Return the server's environment, with the values that the kubelet fills in."""
    container = manifests.container
    fields = {"requests.cpu": str(int(parse_quantity(container["resources"]["requests"]["cpu"])))}
    downward = {
        item["name"]: fields[item["valueFrom"]["resourceFieldRef"]["resource"]]
        for item in container["env"]
        if "valueFrom" in item
    }
    return manifests.options | downward


def test_options_are_valid(manifests: Manifests) -> None:
    settings = load_settings([], environment(manifests))
    assert settings.threads > 0  # 0 would be one per CPU of the node


def test_options_differ_from_their_defaults(manifests: Manifests) -> None:
    variables = {name: value for name, value in environment(manifests).items() if name.startswith(PREFIX)}
    settings = load_settings([], variables)
    fields = {name.removeprefix(PREFIX).lower() for name in variables}
    assert not {name for name in fields if getattr(settings, name) == getattr(Settings(), name)}
    assert fields == settings.model_fields_set


def test_options_in_comments_exist() -> None:
    options = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for path in manifest_files():
        assert set(re.findall(rf"\b{PREFIX}[A-Z][A-Z_]+", path.read_text())) <= options, path


def test_ports_equal_defaults(manifests: Manifests) -> None:
    expected = {name: getattr(Settings(), field) for name, field in PORTS.items()}
    assert manifests.ports == expected
    for service in manifests.of_kind("Service"):
        for port in service["spec"]["ports"]:
            assert port["port"] == expected[port["name"]]


def test_probes_are_routes_of_the_admin_port(manifests: Manifests) -> None:
    metrics = Metrics(CollectorRegistry())
    routers = (health.make_router(Lifecycle(metrics)), health.make_metrics_router(metrics))
    paths = {route.path for router in routers for route in router.routes}  # type: ignore[attr-defined]
    container = manifests.container
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[kind]["httpGet"]["path"] in paths
    for monitor in manifests.of_kind("PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert endpoint.get("path", "/metrics") in paths


def test_scaling_metrics_exist() -> None:
    existing = {family.name for family in Metrics(CollectorRegistry()).registry.collect()}
    scaling = [path for path in manifest_files() if path.parent.name.startswith("autoscaling-")]
    named = {name for path in scaling for name in re.findall(r"\battendant_[a-z_]+", path.read_text())}
    assert {"attendant_queue_utilization"} == named <= existing


def test_autoscalers_use_the_same_targets() -> None:
    (hpa,), (keda,) = (Manifests(parse(build("cpu", (name,)))).autoscalers() for name in AUTOSCALERS)
    queue, cpu = hpa["metrics"]
    prometheus, keda_cpu = keda["triggers"]
    assert queue["pods"]["metric"]["name"] in prometheus["metadata"]["query"]
    assert parse_quantity(queue["pods"]["target"]["averageValue"]) == float(prometheus["metadata"]["threshold"])
    assert str(cpu["resource"]["target"]["averageUtilization"]) == keda_cpu["metadata"]["value"]
    assert hpa["behavior"] == keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (keda["minReplicaCount"], keda["maxReplicaCount"])
    assert keda["fallback"]["replicas"] == keda["minReplicaCount"]


def test_adapter_rule_exposes_the_scaling_metric() -> None:
    (rule,) = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    assert rule["seriesQuery"].startswith("attendant_queue_utilization{")
    assert set(rule["resources"]["overrides"]) == {"namespace", "pod"}
    assert "<<.Series>>{<<.LabelMatchers>>}" in rule["metricsQuery"]


def test_proxies_allow_what_the_server_allows(manifests: Manifests) -> None:
    for ingress in manifests.of_kind("Ingress"):
        annotations = ingress["metadata"]["annotations"]
        prefix = "nginx.ingress.kubernetes.io/proxy-"
        body = annotations[f"{prefix}body-size"]
        assert body == "0" or int(body.removesuffix("m")) * MEBIBYTE > Settings().request_bytes(8192)
        assert (body == "0") == (ingress["metadata"]["name"] == "attendant-grpc")
        for direction in ("read", "send"):
            assert int(annotations[f"{prefix}{direction}-timeout"]) > MAX_TIMEOUT_S
    for route in manifests.of_kind("HTTPRoute"):
        for item in route["spec"]["rules"]:
            assert int(item["timeouts"]["request"].removesuffix("s")) > MAX_TIMEOUT_S


def test_memory_exceeds_request_and_response_buffers(manifests: Manifests) -> None:
    container = manifests.container
    buffers = Settings().max_pending_request_bytes + 4 * Settings().max_response_bytes
    assert parse_quantity(container["resources"]["limits"]["memory"]) >= 2 * buffers


def test_image_tags_start_with_the_version(manifests: Manifests) -> None:
    container = manifests.container
    assert re.fullmatch(rf"attendant:{re.escape(__version__)}-(cpu|gpu)", container["image"])
    assert export_job()["containers"][0]["image"] == f"attendant-export:{__version__}"


def test_job_writes_the_artifact_that_pods_serve(manifests: Manifests, capsys: pytest.CaptureFixture[str]) -> None:
    job = export_job()
    (container,) = job["containers"]
    command, source, out = container["args"]
    example = (DEPLOY / "example" / "kustomization.yaml").read_text()
    assert out == f"--out={re.findall('ATTENDANT_MODEL_DIR=([^ ]+)', example)[0]}"
    claims = [
        {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]} - {None}
        for pod in (job, manifests.pod["spec"])
    ]
    assert claims[0] == claims[1] != set()
    with pytest.raises(SystemExit) as exit_status:
        export_command([command, source, out, "--help"])
    assert exit_status.value.code == 0


def export_job() -> Object:
    """Return the pod template of the job that exports a model."""
    (job,) = Manifests(parse(build_job("export-model"))).of_kind("Job")
    pod: Object = job["spec"]["template"]["spec"]
    return pod


def manifest_files() -> Iterator[Path]:
    """Yield the text files in deploy/."""
    return (path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", ".env", ".md"))
