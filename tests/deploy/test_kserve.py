"""The InferenceService of KServe: its structure, and the pod of the overlay cpu.

No schema of the resource is available offline: that of its pod is checked as the schema of a Deployment.
"""

import copy
from pathlib import Path
from typing import Any

import pytest

from service import __version__
from tests.deploy.builds import Combination, Object, build, parse
from tests.deploy.conftest import DEPLOY, run_tool
from tests.deploy.test_manifests import KUBERNETES, validate

SCALING = {"minReplicas", "maxReplicas", "scaleMetric", "scaleTarget"}
"""Fields of KServe's predictor that are not fields of a pod."""
CONTAINER = "kserve-container"


def inference_service() -> Object:
    built = run_tool("kubectl", "kustomize", DEPLOY / "kserve")
    assert not built.stderr, built.stderr
    (item,) = parse(built.stdout)
    return item


def overlay() -> list[Object]:
    return copy.deepcopy(parse(build(Combination("cpu"))))


def deployment_of(objects: list[Object]) -> Object:
    return next(item for item in objects if item["kind"] == "Deployment")


def pod_of(service: Object) -> Object:
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


def test_pod_is_that_of_the_overlay() -> None:
    """Except for the ConfigMap, the placement, and the names and ports that KServe requires."""
    objects = overlay()
    (options,) = [item["data"] for item in objects if item["kind"] == "ConfigMap"]
    expected = deployment_of(objects)["spec"]["template"]["spec"]
    pod = pod_of(inference_service())
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
    deployment = deployment_of(overlay())
    deployment["spec"]["template"]["spec"] = pod_of(inference_service())
    (line,) = validate([deployment], version, tmp_path).splitlines()
    assert line.startswith("INFO")
    deployment["spec"]["template"]["spec"]["unknownField"] = 1
    assert "unknownField" in validate([deployment], version, tmp_path)
