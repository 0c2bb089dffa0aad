"""Every manifest rule fails on an object that violates it."""

import copy
import fnmatch
from dataclasses import dataclass
from typing import Any

import pytest

from tests.deploy import network_rules, object_rules, pod_rules
from tests.deploy.builds import Object, build, build_job, full_combination, parse
from tests.deploy.manifests import RULES, Manifests, Rule, object_name

REMOVED = object()
POD = "/spec/template/spec"
CONTAINER = f"{POD}/containers/0"


@dataclass(frozen=True)
class Violation:
    """A value that violates a rule.

    `item` is the object's kind if that is unique, or else a pattern for kind and name. `pointer` is a JSON pointer.
    """

    rule: Rule
    item: str
    pointer: str
    value: Any = REMOVED

    def __str__(self) -> str:
        return f"{self.rule.__name__}-{self.item}{self.pointer}"


def server(rule: Rule, pointer: str, value: Any = REMOVED) -> Violation:
    return Violation(rule, "Deployment", pointer, value)


def service(rule: Rule, name: str, pointer: str, value: Any = REMOVED) -> Violation:
    return Violation(rule, f"Service/{name}", pointer, value)


def budget(rule: Rule, pointer: str, value: Any = REMOVED) -> Violation:
    return Violation(rule, "PodDisruptionBudget", pointer, value)


def policy(rule: Rule, name: str, pointer: str, value: Any = REMOVED) -> Violation:
    return Violation(rule, f"NetworkPolicy/{name}", pointer, value)


CONFIG = "ConfigMap/attendant-??????????"
SPREAD = f"{POD}/topologySpreadConstraints"
VIOLATIONS = (
    server(pod_rules.pods_do_not_use_the_host, f"{POD}/hostNetwork", True),
    server(pod_rules.pods_do_not_use_the_host, f"{CONTAINER}/ports/0/hostPort", 8080),
    server(pod_rules.volumes_have_restricted_types, f"{POD}/volumes/0", {"name": "root", "hostPath": {"path": "/"}}),
    server(pod_rules.containers_are_unprivileged, f"{CONTAINER}/securityContext/privileged", True),
    server(pod_rules.containers_are_unprivileged, f"{CONTAINER}/securityContext/allowPrivilegeEscalation"),
    server(pod_rules.capabilities_are_dropped, f"{CONTAINER}/securityContext/capabilities/add", ["NET_RAW"]),
    Violation(pod_rules.capabilities_are_dropped, "Job", f"{CONTAINER}/securityContext/capabilities"),
    server(pod_rules.seccomp_profile_is_set, f"{POD}/securityContext/seccompProfile"),
    server(pod_rules.seccomp_profile_is_set, f"{CONTAINER}/securityContext/seccompProfile", {"type": "Unconfined"}),
    server(pod_rules.users_are_numeric_and_not_root, f"{POD}/securityContext/runAsUser"),
    server(pod_rules.users_are_numeric_and_not_root, f"{CONTAINER}/securityContext/runAsUser", 0),
    server(pod_rules.root_file_systems_are_read_only, f"{CONTAINER}/securityContext/readOnlyRootFilesystem", False),
    server(pod_rules.pods_have_no_access_to_the_api, f"{POD}/serviceAccountName"),
    server(pod_rules.pods_have_no_access_to_the_api, f"{POD}/automountServiceAccountToken"),
    Violation(pod_rules.pods_have_no_access_to_the_api, "ServiceAccount", "/automountServiceAccountToken", True),
    server(pod_rules.service_links_are_disabled, f"{POD}/enableServiceLinks"),
    server(pod_rules.images_are_pinned, f"{CONTAINER}/image", "registry:5000/attendant"),
    server(pod_rules.images_are_pinned, f"{CONTAINER}/image", "attendant:latest"),
    server(pod_rules.resources_are_reserved, f"{CONTAINER}/resources/requests/cpu"),
    server(pod_rules.resources_are_reserved, f"{CONTAINER}/resources/limits/memory", "64Gi"),
    server(pod_rules.resources_are_reserved, f"{CONTAINER}/resources/limits/cpu", "2"),
    server(pod_rules.thread_counts_equal_cpu_requests, f"{CONTAINER}/env/0"),
    server(pod_rules.thread_counts_equal_cpu_requests, f"{CONTAINER}/resources/requests/cpu", "1500m"),
    server(pod_rules.scratch_volumes_are_limited, f"{POD}/volumes/-1/emptyDir/sizeLimit"),
    server(pod_rules.scratch_volumes_are_limited, f"{POD}/volumes/-1/emptyDir/sizeLimit", "2Gi"),
    server(pod_rules.mounts_and_volumes_match, f"{CONTAINER}/volumeMounts/0"),
    server(pod_rules.mounts_and_volumes_match, f"{CONTAINER}/volumeMounts/0/mountPath", "/tmp"),
    server(pod_rules.shared_volumes_are_read_only, f"{CONTAINER}/volumeMounts/0/readOnly"),
    server(pod_rules.shared_volumes_are_read_only, f"{POD}/volumes/1/persistentVolumeClaim/readOnly", False),
    server(pod_rules.shared_volumes_are_read_only, f"{POD}/volumes/2/secret/defaultMode", 0o644),
    server(pod_rules.variables_are_unique, f"{CONTAINER}/env/1/name", "ATTENDANT_DRAIN_TIMEOUT_MS"),
    server(pod_rules.secrets_are_not_in_the_environment, f"{CONTAINER}/env/0", {"name": "HF_TOKEN", "value": "x"}),
    server(pod_rules.secrets_are_not_in_the_environment, f"{CONTAINER}/envFrom/0", {"secretRef": {"name": "x"}}),
    server(pod_rules.probes_are_complete, f"{CONTAINER}/startupProbe"),
    server(pod_rules.probes_are_complete, f"{CONTAINER}/livenessProbe/httpGet/scheme"),
    Violation(pod_rules.option_files_are_mounted, CONFIG, "/data/ATTENDANT_TLS_CERT_FILE", "/etc/tls.crt"),
    server(pod_rules.option_files_are_mounted, f"{CONTAINER}/volumeMounts/0/subPath", "tls.crt"),
    server(pod_rules.probes_are_complete, f"{CONTAINER}/readinessProbe/httpGet/port", "metrics"),
    server(pod_rules.probes_are_complete, f"{CONTAINER}/livenessProbe/timeoutSeconds", 10),
    server(pod_rules.liveness_tolerates_more_than_readiness, f"{CONTAINER}/livenessProbe/httpGet/path", "/readyz"),
    server(pod_rules.liveness_tolerates_more_than_readiness, f"{CONTAINER}/livenessProbe/failureThreshold", 1),
    server(pod_rules.liveness_tolerates_more_than_readiness, f"{CONTAINER}/startupProbe/failureThreshold", 3),
    server(pod_rules.grace_period_covers_the_shutdown, f"{POD}/terminationGracePeriodSeconds"),
    Violation(pod_rules.grace_period_covers_the_shutdown, CONFIG, "/data/ATTENDANT_DRAIN_DELAY_MS", "0"),
    Violation(pod_rules.grace_period_covers_the_shutdown, CONFIG, "/data/ATTENDANT_DRAIN_DELAY_MS", "30000"),
    Violation(pod_rules.grace_period_covers_the_shutdown, CONFIG, "/data/ATTENDANT_MAX_GRPC_CONNECTION_AGE_MS", "9000"),
    Violation(pod_rules.grace_period_covers_the_shutdown, CONFIG, "/data/ATTENDANT_MAX_GRPC_CONNECTION_AGE_MS", "0"),
    Violation(pod_rules.grace_period_covers_the_shutdown, CONFIG, "/data/ATTENDANT_DRAIN_TIMEOUT_MS", "60000"),
    server(pod_rules.errors_are_termination_messages, f"{CONTAINER}/terminationMessagePolicy"),
    server(pod_rules.gpu_pods_are_placed_on_gpu_nodes, f"{POD}/tolerations"),
    server(pod_rules.gpu_pods_are_placed_on_gpu_nodes, f"{CONTAINER}/resources/limits/nvidia.com~1gpu"),
    Violation(pod_rules.gpu_pods_are_placed_on_gpu_nodes, CONFIG, "/data/ATTENDANT_PROVIDER", "auto"),
    Violation(object_rules.namespace_is_shared_and_not_a_system_one, "Namespace", "/metadata/name", "default"),
    Violation(object_rules.namespace_is_shared_and_not_a_system_one, "ScaledObject", "/metadata/namespace"),
    Violation(
        object_rules.pod_security_is_enforced,
        "Namespace",
        "/metadata/labels/pod-security.kubernetes.io~1enforce",
        "baseline",
    ),
    Violation(
        object_rules.pod_security_is_enforced,
        "Namespace",
        "/metadata/labels/pod-security.kubernetes.io~1enforce-version",
        "latest",
    ),
    Violation(object_rules.objects_are_labeled_and_unique, "PersistentVolumeClaim", "/metadata/labels"),
    service(object_rules.objects_are_labeled_and_unique, "attendant-headless", "/metadata/name", "attendant"),
    server(object_rules.selectors_match_templates, "/spec/template/metadata/labels/app.kubernetes.io~1component"),
    server(object_rules.selectors_match_templates, "/spec/selector/matchLabels/app.kubernetes.io~1component"),
    server(object_rules.references_resolve, f"{CONTAINER}/envFrom/0/configMapRef/name", "attendant"),
    Violation(object_rules.references_resolve, "Certificate", "/spec/secretName", "other"),
    server(object_rules.references_resolve, f"{POD}/volumes/2/secret/secretName", "attendant-keys"),
    Violation(object_rules.references_resolve, "PersistentVolumeClaim", "/metadata/name", "artifacts"),
    server(object_rules.config_changes_replace_pods, f"{CONTAINER}/envFrom/0/configMapRef/name", "attendant"),
    server(object_rules.deployments_are_replicated, "/spec/replicas", 2),
    Violation(object_rules.deployments_are_replicated, "ScaledObject", "/spec/scaleTargetRef/name", "other"),
    Violation(object_rules.autoscalers_have_targets_and_bounds, "ScaledObject", "/spec/scaleTargetRef/name", "other"),
    Violation(object_rules.autoscalers_have_targets_and_bounds, "ScaledObject", "/spec/minReplicaCount"),
    Violation(object_rules.autoscalers_have_targets_and_bounds, "ScaledObject", "/spec/maxReplicaCount", 2),
    server(object_rules.rollouts_keep_capacity, "/spec/strategy/type", "Recreate"),
    server(object_rules.rollouts_keep_capacity, "/spec/strategy/rollingUpdate/maxSurge", 1),
    server(object_rules.rollouts_keep_capacity, "/spec/minReadySeconds"),
    server(object_rules.rollouts_keep_capacity, "/spec/revisionHistoryLimit"),
    server(object_rules.pods_are_spread, f"{SPREAD}/1"),
    server(object_rules.pods_are_spread, f"{SPREAD}/0/labelSelector", {"matchLabels": {"a": "b"}}),
    server(object_rules.pods_are_spread, f"{SPREAD}/0/matchLabelKeys"),
    budget(object_rules.disruption_budgets_allow_evictions, "/spec/maxUnavailable", 0),
    budget(object_rules.disruption_budgets_allow_evictions, "/spec/minAvailable", 2),
    budget(object_rules.disruption_budgets_allow_evictions, "/spec/selector/matchLabels/a", "b"),
    budget(object_rules.disruption_budgets_allow_evictions, "/spec/unhealthyPodEvictionPolicy"),
    Violation(object_rules.jobs_end, "Job", "/spec/ttlSecondsAfterFinished"),
    Violation(object_rules.jobs_end, "Job", f"{POD}/restartPolicy", "OnFailure"),
    service(network_rules.services_select_pods, "attendant", "/spec/selector/a", "b"),
    service(network_rules.services_select_pods, "attendant", "/spec/selector"),
    service(network_rules.services_target_named_ports, "attendant", "/spec/ports/0/targetPort", "rest"),
    service(network_rules.services_target_named_ports, "attendant", "/spec/ports/1/appProtocol"),
    service(network_rules.services_are_internal, "attendant", "/spec/type", "LoadBalancer"),
    service(network_rules.services_are_internal, "attendant", "/spec/ports/0/targetPort", "admin"),
    service(network_rules.grpc_clients_find_all_pods, "attendant-headless", "/spec/clusterIP"),
    service(network_rules.grpc_clients_find_all_pods, "attendant-headless", "/spec/publishNotReadyAddresses", True),
    server(network_rules.ports_are_named_and_unprivileged, f"{CONTAINER}/ports/0/name"),
    server(network_rules.ports_are_named_and_unprivileged, f"{CONTAINER}/ports/0/containerPort", 80),
    Violation(
        network_rules.ingresses_reach_services,
        "Ingress/attendant-grpc",
        "/spec/rules/0/http/paths/0/backend/service/port/name",
        "http",
    ),
    Violation(
        network_rules.ingresses_reach_services,
        "Ingress/attendant-http",
        "/spec/rules/0/http/paths/0/backend/service/name",
        "other",
    ),
    Violation(
        network_rules.ingresses_reach_services,
        "Ingress/attendant-http",
        "/metadata/annotations/nginx.ingress.kubernetes.io~1backend-protocol",
    ),
    Violation(network_rules.ingresses_use_tls, "Ingress/attendant-http", "/spec/tls"),
    Violation(network_rules.ingresses_use_tls, "Ingress/attendant-http", "/spec/ingressClassName"),
    Violation(network_rules.routes_reach_services, "HTTPRoute", "/spec/rules/0/backendRefs/0/port", 8082),
    Violation(network_rules.routes_reach_services, "GRPCRoute", "/spec/rules/0/backendRefs/0/port", 8080),
    Violation(network_rules.routes_reach_services, "GRPCRoute", "/spec/parentRefs"),
    Violation(network_rules.routes_reach_services, "HTTPRoute", "/spec/parentRefs/0/sectionName"),
    policy(network_rules.traffic_is_denied_by_default, "default-deny", "/spec/policyTypes/1"),
    policy(network_rules.traffic_is_denied_by_default, "default-deny", "/spec/egress", [{}]),
    policy(network_rules.policies_admit_known_peers, "allow-clients", "/spec/ingress/0/from"),
    policy(network_rules.policies_admit_known_peers, "allow-clients", "/spec/ingress/0/ports"),
    policy(network_rules.policies_admit_known_peers, "allow-clients", "/spec/ingress/0/ports/0/port", "rest"),
    policy(network_rules.policies_admit_known_peers, "allow-monitoring", "/spec/ingress"),
    policy(network_rules.policies_admit_known_peers, "allow-mesh-clients", "/spec/ingress/0/ports/0/port", 9090),
    policy(
        network_rules.policies_admit_known_peers,
        "allow-client-addresses",
        "/spec/ingress/0/from/0/ipBlock/cidr",
        "0.0.0.0/0",
    ),
    policy(network_rules.policies_admit_known_peers, "allow-dns", "/spec/podSelector/matchLabels", {"a": "b"}),
    policy(network_rules.servers_connect_to_nothing_but_dns, "allow-dns", "/spec/egress/0/ports/0/port", 443),
    policy(network_rules.servers_connect_to_nothing_but_dns, "allow-dns", "/spec/egress/0/to"),
    policy(
        network_rules.servers_connect_to_nothing_but_dns, "allow-mesh-control-plane", "/spec/egress/0/ports/0/port", 443
    ),
    Violation(network_rules.scrapes_use_the_protocol_of_the_server, "PodMonitor", "/spec/podMetricsEndpoints/0/scheme"),
    Violation(
        network_rules.scrapes_use_the_protocol_of_the_server,
        "PodMonitor",
        "/spec/podMetricsEndpoints/0/tlsConfig/insecureSkipVerify",
        True,
    ),
    Violation(network_rules.scrape_targets_exist, "PodMonitor", "/spec/podMetricsEndpoints/0/port", "metrics"),
    Violation(network_rules.scrape_targets_exist, "PodMonitor", "/spec/selector/matchLabels/a", "b"),
)


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    """The GPU overlay with every component, plus the job."""
    return parse(build(full_combination("gpu", "autoscaling-keda"))) + parse(build_job("export-model"))


def violate(objects: list[Object], violation: Violation) -> Manifests:
    """Return a copy of the objects with the violation."""
    changed = copy.deepcopy(objects)
    pattern = violation.item if "/" in violation.item else f"{violation.item}/*"
    (target,) = (item for item in changed if fnmatch.fnmatchcase(object_name(item), pattern))
    *parents, last = (part.replace("~1", "/") for part in violation.pointer.split("/")[1:])
    container: Any = target
    for part in parents:
        container = container[int(part)] if isinstance(container, list) else container.setdefault(part, {})
    key: Any = int(last) if isinstance(container, list) else last
    if violation.value is REMOVED:
        del container[key]
    else:
        assert isinstance(container, list) or container.get(key) != violation.value, "not a change"
        container[key] = violation.value
    return Manifests(changed)


@pytest.mark.parametrize("violation", VIOLATIONS, ids=str)
def test_rule_fails_on_violation(objects: list[Object], violation: Violation) -> None:
    assert not list(violation.rule(Manifests(objects)))
    assert list(violation.rule(violate(objects, violation)))


def test_rules_all_have_a_violation() -> None:
    assert {violation.rule.__name__ for violation in VIOLATIONS} == set(RULES)
