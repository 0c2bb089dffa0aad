"""The KServe InferenceService: its structure, the cpu overlay's pod, and its monitor and autoscaler.

The resource's schema is not available offline. Its pod is checked with the schema of a Deployment.
"""

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from service import __version__
from tests.deploy.conftest import DEPLOY, run_tool
from tests.deploy.manifests import Object, build, parse
from tests.deploy.test_manifests import KUBERNETES, SCHEMAS, validate

SCALING = {"minReplicas", "maxReplicas"}
"""Fields of KServe's predictor that are not pod fields."""
CONTAINER = "kserve-container"


def build_kserve(directory: Path = DEPLOY / "kserve") -> dict[str, Object]:
    built = run_tool("kubectl", "kustomize", directory)
    assert not built.stderr, built.stderr
    return {item["kind"]: item for item in parse(built.stdout)}


def inference_service() -> Object:
    return build_kserve()["InferenceService"]


def overlay() -> list[Object]:
    return copy.deepcopy(parse(build("cpu")))


def find_deployment(objects: list[Object]) -> Object:
    return next(item for item in objects if item["kind"] == "Deployment")


def pod_fields(service: Object) -> Object:
    predictor: Object = service["spec"]["predictor"]
    return {name: value for name, value in predictor.items() if name not in SCALING}


def test_structure() -> None:
    service = inference_service()
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    assert set(service) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(service["spec"]) == {"predictor"}
    predictor = service["spec"]["predictor"]
    assert set(predictor) >= SCALING
    assert 1 < predictor["minReplicas"] < predictor["maxReplicas"]
    (container,) = predictor["containers"]
    assert container["name"] == CONTAINER
    assert container["image"] == f"REGISTRY/attendant:{__version__}-cpu"
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert variables["PROTOCOL"] == "v2"
    assert variables["ATTENDANT_MODEL_ALIASES"] == service["metadata"]["name"]
    assert [port["containerPort"] for port in container["ports"]] == [8080, 8081]
    assert len(service["metadata"]["annotations"]) == 2


def test_pod_matches_the_overlay() -> None:
    """Exceptions are the ConfigMap, the placement, and the names and ports that KServe requires."""
    objects = overlay()
    (options,) = [item["data"] for item in objects if item["kind"] == "ConfigMap"]
    expected = find_deployment(objects)["spec"]["template"]["spec"]
    pod = pod_fields(inference_service())
    for name in ("serviceAccountName", "topologySpreadConstraints"):
        del expected[name]
    (own,), (other,) = pod["containers"], expected["containers"]
    variables = {item["name"]: item for item in own.pop("env")}
    values = {name: item["value"] for name, item in variables.items() if "value" in item}
    assert values.items() >= options.items()
    assert set(values) - set(options) == {"PROTOCOL", "ATTENDANT_MODEL_ALIASES"}
    for item in other.pop("env"):
        source = item["valueFrom"]["resourceFieldRef"]
        assert variables.pop(item["name"])["valueFrom"]["resourceFieldRef"] == source | {"containerName": CONTAINER}
    assert set(variables) == set(values)
    ports = {port["name"]: port for port in other.pop("ports")}
    assert own.pop("ports") == [ports["http"], ports["grpc"]]
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe: Any = other[name]["httpGet"]
        probe["port"] = ports[probe["port"]]["containerPort"]
    del other["envFrom"]
    assert {own.pop("name"), other.pop("name")} == {CONTAINER, "attendant"}
    assert own.pop("image").rpartition(":")[2] == other.pop("image").rpartition(":")[2]
    assert pod == expected


@pytest.mark.parametrize("version", KUBERNETES)
def test_pod_matches_schema_of_kubernetes(version: str, tmp_path: Path) -> None:
    deployment = find_deployment(overlay())
    deployment["spec"]["template"]["spec"] = pod_fields(inference_service())
    (line,) = validate([deployment], version, tmp_path).splitlines()
    assert line.startswith("INFO")


def test_monitor_matches_the_pods_of_the_service_at_the_admin_port() -> None:
    """KServe labels its pods with the InferenceService's name, and their containers do not declare the admin port."""
    objects = build_kserve()
    service, monitor = objects["InferenceService"], objects["PodMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == {"serving.kserve.io/inferenceservice": service["metadata"]["name"]}
    (container,) = service["spec"]["predictor"]["containers"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    (rule,) = [rule for rule in endpoint["relabelings"] if rule.get("targetLabel") == "__address__"]
    assert rule["sourceLabels"] == ["__address__"]
    for host in ("10.0.0.7", "[fd00::7]"):
        address = re.fullmatch(rule["regex"], f"{host}:{ports[endpoint['port']]}")
        assert address is not None
        assert address.expand(rule["replacement"].replace("$1", r"\1")) == (
            f"{host}:{container['livenessProbe']['httpGet']['port']}"
        )


def test_autoscaler_matches_the_component() -> None:
    """It must scale on queue utilization, because rejected requests keep the CPU busy, too."""
    objects = build_kserve()
    scaled, service = objects["ScaledObject"], objects["InferenceService"]
    component = parse((DEPLOY / "components" / "autoscaling-keda" / "scaledobject.yaml").read_text())[0]
    annotations = service["metadata"]["annotations"]
    assert annotations["serving.kserve.io/autoscalerClass"] == "external"
    assert scaled["spec"]["scaleTargetRef"]["name"] == f"{service['metadata']['name']}-predictor"
    assert scaled["spec"]["minReplicaCount"] == service["spec"]["predictor"]["minReplicas"]
    assert scaled["spec"]["maxReplicaCount"] == service["spec"]["predictor"]["maxReplicas"]
    for name in ("pollingInterval", "fallback", "advanced"):
        assert scaled["spec"][name] == component["spec"][name]
    trigger, _ = scaled["spec"]["triggers"]
    assert trigger["metadata"]["query"] == (
        'sum(max by (pod) (max_over_time(attendant_queue_utilization{namespace="attendant", '
        'pod=~"attendant-predictor-.*"}[1m])))'
    )


def test_query_follows_the_namespace(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kserve", tmp_path / "kserve")
    kustomization = tmp_path / "kserve" / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("namespace: attendant", "namespace: other"))
    objects = build_kserve(tmp_path / "kserve")
    assert {item["metadata"]["namespace"] for item in objects.values()} == {"other"}
    assert '{namespace="other", pod' in objects["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]


def test_custom_resources_match_their_schemas() -> None:
    objects = build_kserve()
    for kind in ("PodMonitor", "ScaledObject"):
        jsonschema.validate(objects[kind], SCHEMAS[kind.lower()])
