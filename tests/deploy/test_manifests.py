"""Builds of deploy/ match the schemas of Kubernetes, and their objects fit together.

Pod security is checkov's subject (test_images.py).
"""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.deploy.conftest import run_tool
from tests.deploy.manifests import (
    AUTOSCALERS,
    Manifests,
    Object,
    all_builds,
    all_components,
    build_job,
    kustomize,
    names,
    parse,
    parse_quantity,
)

KUBERNETES = ("1.30", "1.37")
"""The oldest supported version, one in between, and the newest."""
SCHEMAS = {
    path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "schemas").glob("*.json"))
}
"""Schemas of custom resources by lower-case kind, covering only the fields that the components use."""
PROVIDED = {"attendant-api-keys", "attendant-tls"}
"""Secrets that users create themselves. The components document them."""
MESH_PORTS = {15008, 4143}
"""Ports of the proxies of Istio and Linkerd, which the pods do not declare."""
MIN_DRAIN_MS = 20_000
MAX_AGE_RATIO = 0.8
"""gRPC adds up to 10% jitter to the connection age."""
SHUTDOWN_MARGIN_S = 5


@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_match_schema_of_kubernetes(version: str, tmp_path: Path) -> None:
    objects = [item for item in distinct_objects() if item["kind"].lower() not in SCHEMAS]
    lines = validate(objects, version, tmp_path).splitlines()
    assert not [line for line in lines if not line.startswith(("INFO", "WARN"))]
    assert len([line for line in lines if line.startswith("INFO")]) == len(objects)


def validate(objects: list[Object], version: str, folder: Path) -> str:
    """Return kubernetes-validate's report, one line per object."""
    manifest = folder / "objects.yaml"
    manifest.write_text(yaml.dump_all(objects, Dumper=yaml.CSafeDumper))
    return run_tool("kubernetes-validate", "--strict", "-k", version, manifest).stdout


def distinct_objects() -> list[Object]:
    return list({repr(item): item for manifests in all_builds().values() for item in manifests.objects}.values())


def test_custom_resources_match_schema() -> None:
    for item in distinct_objects():
        if item["kind"].lower() in SCHEMAS:
            jsonschema.validate(item, SCHEMAS[item["kind"].lower()])


@pytest.mark.parametrize("overlay", names("overlays"))
def test_autoscalers_do_not_build_together(overlay: str) -> None:
    output, errors = kustomize(overlay, AUTOSCALERS)
    assert not output
    assert "remove" in errors


def test_user_kustomization_sets_namespace_and_image() -> None:
    image = {"name": "attendant", "newName": "registry.example.com/search/attendant", "digest": f"sha256:{'0' * 64}"}
    output, errors = kustomize("cpu", all_components("autoscaling-hpa"), namespace="search", images=[image])
    assert not errors
    manifests = Manifests(parse(output))
    assert {item["metadata"].get("namespace", "search") for item in manifests.objects} == {"search"}
    assert manifests.container["image"] == f"{image['newName']}@{image['digest']}"


def selects(selector: Object, manifests: Manifests) -> bool:
    labels: Object = manifests.pod["metadata"]["labels"]
    return selector.items() <= labels.items()


def test_selectors_match_the_pods() -> None:
    for name, manifests in all_builds().items():
        selectors = [
            *(item["spec"]["selector"] for item in manifests.of_kind("Service")),
            *(item["spec"]["selector"]["matchLabels"]
              for item in manifests.of_kind("Deployment", "PodDisruptionBudget", "PodMonitor")),
        ]  # fmt: skip
        assert all(selector and selects(selector, manifests) for selector in selectors), name


def test_references_have_objects() -> None:
    for name, manifests in all_builds().items():
        existing = {(item["kind"], item["metadata"]["name"]) for item in manifests.objects}
        secrets = PROVIDED | {item["spec"]["secretName"] for item in manifests.of_kind("Certificate")}
        for volume in manifests.pod["spec"]["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or ("PersistentVolumeClaim", claim) in existing, name
            assert volume.get("secret", {}).get("secretName", "attendant-tls") in secrets, name
        assert manifests.options, name
        scaled = [autoscaler["scaleTargetRef"]["name"] for autoscaler in manifests.autoscalers()]
        assert scaled in ([], [manifests.deployment["metadata"]["name"]]), name
        # With replicas in the Deployment, each apply would undo the autoscaler's decision.
        assert ("replicas" in manifests.deployment["spec"]) == (not scaled), name


def test_ports_exist_and_speak_the_protocol_of_the_server() -> None:
    for name, manifests in all_builds().items():
        services = {item["metadata"]["name"]: item["spec"]["ports"] for item in manifests.of_kind("Service")}
        protocols = ("https", "https") if manifests.uses_tls else ("http", "kubernetes.io/h2c")
        expected = dict(zip(("http", "grpc"), protocols, strict=True))
        for port in (port for ports in services.values() for port in ports):
            # The admin port requires no key, so no Service exposes it.
            assert port["targetPort"] == port["name"] != "admin", name
            assert port["appProtocol"] == expected[port["name"]], name
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            get = manifests.container[probe]["httpGet"]
            assert (get["port"], get.get("scheme") == "HTTPS") == ("admin", manifests.uses_tls), name
        for monitor in manifests.of_kind("PodMonitor"):
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            assert (endpoint["port"], endpoint.get("scheme") == "https") == ("admin", manifests.uses_tls), name
            assert not endpoint.get("tlsConfig", {}).get("insecureSkipVerify"), name
        for route in manifests.of_kind("HTTPRoute", "GRPCRoute"):
            for backend in (backend for rule in route["spec"]["rules"] for backend in rule["backendRefs"]):
                (port,) = (port for port in services[backend["name"]] if port["port"] == backend["port"])
                assert port["name"].upper() == route["kind"].removesuffix("Route"), name
        for ingress in manifests.of_kind("Ingress"):
            protocol = ingress["metadata"]["annotations"].get("nginx.ingress.kubernetes.io/backend-protocol", "HTTP")
            assert protocol.endswith("S") == manifests.uses_tls, name
            (rule,) = ingress["spec"]["rules"]
            assert [rule["host"]] == ingress["spec"]["tls"][0]["hosts"], name
            for path in rule["http"]["paths"]:
                backend = path["backend"]["service"]
                assert backend["port"]["name"] in [port["name"] for port in services[backend["name"]]], name
                assert (backend["port"]["name"] == "grpc") == protocol.startswith("GRPC"), name


def test_network_policies_admit_known_peers_and_let_servers_reach_only_dns() -> None:
    for name, manifests in all_builds().items():
        policies = [item["spec"] for item in manifests.of_kind("NetworkPolicy")]
        denied = [spec["policyTypes"] for spec in policies if not {"ingress", "egress"} & set(spec)]
        assert denied == [["Ingress", "Egress"]], name
        admitted: set[str] = set()
        for rule in (rule for spec in policies for rule in spec.get("ingress", [])):
            assert rule["from"], name
            assert {} not in [peer.get("namespaceSelector") for peer in rule["from"]], name
            assert not any(peer.get("ipBlock", {}).get("cidr", "").endswith("/0") for peer in rule["from"]), name
            admitted |= {port["port"] for port in rule["ports"]} - MESH_PORTS
        assert admitted == set(manifests.ports), name
        for rule in (rule for spec in policies for rule in spec.get("egress", [])):
            assert rule["to"], name
        plain = [spec for spec in policies if selects(spec["podSelector"].get("matchLabels", {}), manifests)]
        ports = {port["port"] for spec in plain for rule in spec.get("egress", []) for port in rule["ports"]}
        assert "service-mesh" in name or ports <= {53}, name


def test_termination_leaves_time_to_drain() -> None:
    for name, manifests in all_builds().items():
        options, pod = manifests.options, manifests.pod["spec"]
        delay_ms, drain_ms = (int(options[f"ATTENDANT_DRAIN_{suffix}_MS"]) for suffix in ("DELAY", "TIMEOUT"))
        assert drain_ms >= delay_ms + MIN_DRAIN_MS, name
        assert 0 < int(options["ATTENDANT_MAX_GRPC_CONNECTION_AGE_MS"]) <= MAX_AGE_RATIO * delay_ms, name
        assert pod["terminationGracePeriodSeconds"] >= drain_ms / 1000 + SHUTDOWN_MARGIN_S, name


def test_probes_drop_load_before_they_restart_a_pod() -> None:
    for name, manifests in all_builds().items():
        start, live, ready = (manifests.container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness"))
        start_s, live_s, ready_s = (
            probe["periodSeconds"] * probe["failureThreshold"] for probe in (start, live, ready)
        )
        assert start["httpGet"] == live["httpGet"] != ready["httpGet"], name
        assert ready_s < live_s >= 60, name
        assert start_s >= 300, name


def test_threads_and_limits_follow_the_requested_resources() -> None:
    for name, manifests in all_builds().items():
        resources = manifests.container["resources"]
        variables = {item["name"]: item for item in manifests.container["env"]}
        threads = variables["ATTENDANT_THREADS"]["valueFrom"]["resourceFieldRef"]
        assert threads["resource"] == "requests.cpu", name
        assert parse_quantity(resources["requests"]["cpu"]).is_integer(), name
        assert "cpu" not in resources["limits"], name  # it would throttle the event loop
        assert resources["requests"]["memory"] == resources["limits"]["memory"], name
        gpu = "nvidia.com/gpu" in resources["limits"]
        assert gpu == (manifests.options.get("ATTENDANT_PROVIDER") == "cuda"), name
        # A rollout needs a free GPU for a surge, so it replaces pods in place.
        steps = manifests.deployment["spec"]["strategy"]["rollingUpdate"]
        assert (steps["maxSurge"], steps["maxUnavailable"]) == ((0, 1) if gpu else (1, 0)), name


def test_namespace_enforces_pod_security() -> None:
    for name, manifests in all_builds().items():
        (namespace,) = manifests.of_kind("Namespace")
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted", name


def test_job_ends() -> None:
    for name in names("jobs"):
        (job,) = (item["spec"] for item in parse(build_job(name)) if item["kind"] == "Job")
        assert {"backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"} <= set(job)
