"""The Helm chart renders the objects of the kustomization, and each of its values has an effect."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.helm_chart import AUTOSCALERS, TOGGLES, build, write_chart
from tests.conftest import EXAMPLES
from tests.deploy.conftest import DEPLOY, find_tool, run_tool
from tests.deploy.manifests import Manifests, Object, names, parse

ENABLED = {
    "auth": "auth",
    "client-addresses": "clientAddresses",
    "gateway": "gateway",
    "ingress": "ingress",
    "model-pvc": "modelVolume",
    "monitoring": "monitoring",
    "service-mesh": "serviceMesh",
    "tls-cert-manager": "tls",
}
"""The value that enables a component."""
REPOSITORY = "registry.example.com/search/attendant"


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    find_tool("kubectl")
    directory = tmp_path_factory.mktemp("chart") / "attendant"
    write_chart(DEPLOY, directory)
    return directory


def render(chart: Path, values: Object, namespace: str = "search") -> tuple[str, str]:
    """Return what Helm renders, and its errors."""
    file = chart.with_name("values.yaml")
    file.write_text(json.dumps(values))
    result = run_tool("helm", "template", "attendant", chart, "--namespace", namespace, "--values", file)
    return result.stdout, result.stderr


def values_of(overlay: str, components: tuple[str, ...]) -> Object:
    """Return the chart values that match an overlay with these components."""
    values: Object = {
        "variant": overlay,
        "image": {"repository": "attendant"},
        "hosts": {"rest": "attendant.example.com", "grpc": "grpc.attendant.example.com"},
        "namespace": {"create": True},
        "networkPolicies": {"wholeNamespace": True},
        "clientAddresses": {"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]},
    }
    for component in components:
        if component in AUTOSCALERS:
            values["autoscaling"] = {"type": component.removeprefix("autoscaling-")}
        else:
            values.setdefault(ENABLED[component], {})["enabled"] = True
    return values


def normalized(objects: list[Object]) -> dict[str, Object]:
    """Return the objects by kind and name, without what Helm's charts add, and with volumes in one order."""
    manifests = Manifests(deepcopy(objects))
    assert manifests.options
    manifests.pod["spec"]["volumes"].sort(key=lambda item: item["name"])
    manifests.container["volumeMounts"].sort(key=lambda item: item["name"])
    manifests.pod["metadata"]["annotations"].pop("checksum/options", None)
    manifests.deployment["metadata"].pop("annotations", None)
    (source,) = manifests.container["envFrom"]
    name = source["configMapRef"]["name"]
    for item in manifests.objects:
        metadata = item["metadata"]
        if item["kind"] == "ConfigMap" and metadata["name"] == name:
            metadata["name"] = source["configMapRef"]["name"] = "attendant"  # kustomize adds a hash
        if item["kind"] == "PersistentVolumeClaim":
            assert metadata.pop("annotations", None) in (None, {"helm.sh/resource-policy": "keep"})
        for label in (
            "helm.sh/chart",
            *(f"app.kubernetes.io/{label}" for label in ("instance", "managed-by", "version")),
        ):
            metadata["labels"].pop(label, None)
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in manifests.objects}


def choices() -> st.SearchStrategy[tuple[str, ...]]:
    """Subsets of the components that work together."""
    components = [name for name in names("components") if name not in AUTOSCALERS]
    chosen = st.lists(st.sampled_from(components), unique=True)
    return st.builds(lambda some, scaler: (*some, *scaler), chosen, st.sampled_from([(), *((x,) for x in AUTOSCALERS)]))


def test_every_component_is_in_the_chart() -> None:
    assert {*names("components")} == {*TOGGLES} - {"gpu"} == {*ENABLED, *AUTOSCALERS}


@given(overlay=st.sampled_from(["cpu", "gpu"]), components=choices(), namespace=st.sampled_from(["attendant", "a1"]))
@settings(deadline=None, max_examples=EXAMPLES // 5)
def test_chart_renders_the_objects_of_the_kustomization(
    chart: Path, overlay: str, components: tuple[str, ...], namespace: str
) -> None:
    output, errors = render(chart, values_of(overlay, components), namespace)
    assert not errors
    assert normalized(parse(output)) == normalized(build(DEPLOY, overlay, components, namespace))


def leaves(values: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def changed(path: tuple[str, ...], value: Any) -> Any:
    """Return another value that the schema accepts."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return ["ReadWriteOnce"] if path[-1] == "accessModes" else [{"name": "changed"}]
    if isinstance(value, dict):
        return {"ATTENDANT_LOG_LEVEL": "debug"} if path == ("options",) else {"changed": "x"}
    choices = {"variant": "gpu", "digest": f"sha256:{'1' * 64}", "type": "hpa", "pullPolicy": "Always"}
    return choices.get(path[-1], "changed")


@pytest.mark.slow
def test_every_value_has_an_effect(chart: Path) -> None:
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    everything = values_of("cpu", (*ENABLED, "autoscaling-keda"))
    without = dict(everything, autoscaling={"type": "none"})
    ineffective = []
    for path, value in leaves(defaults):
        base = without if path == ("replicas",) else everything
        values = deepcopy(base)
        target = values
        for name in path[:-1]:
            target = target.setdefault(name, {})
        current = target.get(path[-1], value)
        target[path[-1]] = changed(path, current)
        output, errors = render(chart, values)
        assert not errors, (path, errors)
        if output == render(chart, base)[0]:
            ineffective.append(path)
    assert not ineffective


def test_user_values_are_in_the_objects(chart: Path) -> None:
    values = {
        "image": {"repository": REPOSITORY, "digest": f"sha256:{'0' * 64}", "pullSecrets": [{"name": "pull"}]},
        "options": {"ATTENDANT_PRECISION": "float32", "ATTENDANT_DRAIN_TIMEOUT_MS": "59500", "ATTENDANT_DOCS": None},
        "resources": {"requests": {"cpu": "8", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
        "modelVolume": {"enabled": True, "existingClaim": "models"},
        "tls": {"enabled": True, "existingSecret": "my-certificate"},
        "nodeSelector": {"disk": "ssd"},
        "extraVolumes": [{"name": "models", "configMap": {"name": "models"}}],
        "extraVolumeMounts": [{"name": "models", "mountPath": "/models"}],
        "extraEnv": [{"name": "LOGNAME", "value": "x"}],
    }
    output, errors = render(chart, values)
    assert not errors
    manifests = Manifests(parse(output))
    assert manifests.container["image"] == f"{REPOSITORY}@sha256:{'0' * 64}"
    assert manifests.container["resources"] == {
        "requests": {"cpu": "8", "memory": "4Gi", "ephemeral-storage": "256Mi"},
        "limits": {"memory": "4Gi", "ephemeral-storage": "1Gi"},
    }
    assert not manifests.of_kind("PersistentVolumeClaim", "Certificate")
    policies = {item["metadata"]["name"]: item["spec"] for item in manifests.of_kind("NetworkPolicy")}
    assert policies["default-deny"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "attendant"
    volumes = {item["name"]: item for item in manifests.pod["spec"]["volumes"]}
    assert volumes["artifacts"]["persistentVolumeClaim"]["claimName"] == "models"
    assert volumes["tls"]["secret"]["secretName"] == "my-certificate"
    assert manifests.options["ATTENDANT_PRECISION"] == "float32"
    assert "ATTENDANT_DOCS" not in manifests.options
    assert manifests.options["ATTENDANT_MAX_GRPC_CONNECTION_AGE_MS"] == "8000"
    assert manifests.pod["spec"]["terminationGracePeriodSeconds"] == 65
    spec = manifests.pod["spec"]
    assert (spec["nodeSelector"], spec["imagePullSecrets"]) == ({"disk": "ssd"}, [{"name": "pull"}])
    assert spec["volumes"][-1] == {"name": "models", "configMap": {"name": "models"}}
    assert [mount["mountPath"] for mount in manifests.container["volumeMounts"]] == [
        "/tmp",
        "/artifacts",
        "/etc/attendant-tls",
        "/models",
    ]
    assert [item["name"] for item in manifests.container["env"]] == ["ATTENDANT_THREADS", "LOGNAME"]
    assert manifests.deployment["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "image.repository is required"),
        ({"image": {"repository": "x"}, "options": {"ATTENDANT_PRECISON": "float32"}}, "ATTENDANT_PRECISON"),
        ({"image": {"repository": "x"}, "options": {"ATTENDANT_MAX_INPUTS": 4}}, "Expected: [string,null]"),
        ({"image": {"repository": "x"}, "replica": 3}, "replica"),
        ({"image": {"repository": "x"}, "variant": "tpu"}, "variant"),
        ({"image": {"repository": "x"}, "auth": None}, "auth is required"),
        ({"image": {"repository": "x"}, "tls": {"issuer": None}}, "issuer is required"),
        ({"image": {"repository": "x"}, "ingress": {"enabled": True}}, "is required with gateway or ingress"),
        ({"image": {"repository": "x"}, "clientAddresses": {"enabled": True}}, "clientAddresses.from is required"),
        ({"image": {"repository": "x"}, "podLabels": {"app.kubernetes.io/name": "x"}}, "podLabels"),
    ],
)
def test_invalid_values_are_errors(chart: Path, values: Object, message: str) -> None:
    output, errors = render(chart, values)
    assert not output
    assert message in errors


def test_chart_passes_helm_lint(chart: Path) -> None:
    result = run_tool("helm", "lint", "--strict", chart, "--set", f"image.repository={REPOSITORY}")
    assert result.returncode == 0, result.stdout
