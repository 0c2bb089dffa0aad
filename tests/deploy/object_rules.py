"""Rules for objects other than pods, and for references between objects."""

import re
from collections import Counter
from collections.abc import Iterator

from tests.deploy.manifests import Manifests, items, matches, object_name, rule

PROVIDED = {("Secret", "attendant-api-keys"), ("Secret", "attendant-tls")}
"""Objects that users create themselves because they contain secrets. The components document them."""
CREATED = {"Certificate": ("Secret", "secretName")}
"""Objects that a controller creates for an object: their kind, and the field with their name."""

SYSTEM_NAMESPACES = re.compile(r"default|kube-.*")
GENERATED_NAME = re.compile(r".*-[0-9a-z]{10}")


@rule
def namespace_is_shared_and_not_a_system_one(manifests: Manifests) -> Iterator[str]:
    declared = [item["metadata"]["name"] for item in manifests.of_kind("Namespace")]
    if len(declared) != 1 or SYSTEM_NAMESPACES.fullmatch(declared[0]):
        yield f"namespaces {declared}"
    for item in manifests.objects:
        if item["kind"] != "Namespace" and item["metadata"].get("namespace") not in declared:
            yield f"{object_name(item)}: another namespace"


@rule
def pod_security_is_enforced(manifests: Manifests) -> Iterator[str]:
    for namespace in manifests.of_kind("Namespace"):
        labels = namespace["metadata"].get("labels", {})
        if {labels.get(f"pod-security.kubernetes.io/{mode}") for mode in ("enforce", "audit", "warn")} != {
            "restricted"
        }:
            yield f"{object_name(namespace)}: pod security is not restricted"
        if not re.fullmatch(r"v1\.[0-9]+", labels.get("pod-security.kubernetes.io/enforce-version", "")):
            yield f"{object_name(namespace)}: the enforced version is not pinned"


@rule
def objects_are_labeled_and_unique(manifests: Manifests) -> Iterator[str]:
    for name, count in Counter(map(object_name, manifests.objects)).items():
        if count > 1:
            yield f"{name}: declared {count} times"
    for item in manifests.objects:
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") != "attendant":
            yield f"{object_name(item)}: no label app.kubernetes.io/part-of"


@rule
def selectors_match_templates(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        if not matches(workload.item["spec"]["selector"], workload.labels):
            yield f"{workload.name}: its selector does not match its pods"
        if manifests.selected(workload.item["spec"]["selector"]) != [workload]:
            yield f"{workload.name}: its selector matches pods of other workloads"


@rule
def references_resolve(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        references = []
        for volume in items(workload.pod.get("volumes")):
            references.append(("Secret", volume.get("secret", {}).get("secretName")))
            references.append(("ConfigMap", volume.get("configMap", {}).get("name")))
            references.append(("PersistentVolumeClaim", volume.get("persistentVolumeClaim", {}).get("claimName")))
        for item in workload.containers:
            references += [("ConfigMap", source["configMapRef"]["name"]) for source in items(item.get("envFrom"))]
        created = {
            (kind, item["spec"][field]) for owner, (kind, field) in CREATED.items() for item in manifests.of_kind(owner)
        }
        for kind, name in references:
            if name and (kind, name) not in PROVIDED | created and manifests.find(kind, name) is None:
                yield f"{workload.name}: {kind}/{name} does not exist"


@rule
def config_changes_replace_pods(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for item in workload.containers:
            for source in items(item.get("envFrom")):
                if not GENERATED_NAME.fullmatch(source["configMapRef"]["name"]):
                    yield f"{workload.name}: the name of its ConfigMap does not depend on the content"


@rule
def deployments_are_replicated(manifests: Manifests) -> Iterator[str]:
    scaled = [name for item, _, _ in manifests.autoscalers() for name in [item["spec"]["scaleTargetRef"]["name"]]]
    for workload in manifests.deployments:
        replicas = workload.item["spec"].get("replicas")
        autoscalers = scaled.count(workload.item["metadata"]["name"])
        if autoscalers > 1 or (autoscalers == 1) == (replicas is not None):
            yield f"{workload.name}: {autoscalers} autoscalers and replicas: {replicas}"
        if replicas is not None and replicas < 2:
            yield f"{workload.name}: one replica"


@rule
def autoscalers_have_targets_and_bounds(manifests: Manifests) -> Iterator[str]:
    for item, minimum, maximum in manifests.autoscalers():
        target = item["spec"]["scaleTargetRef"]
        if target.get("apiVersion") != "apps/v1" or manifests.find(target.get("kind"), target["name"]) is None:
            yield f"{object_name(item)}: its target does not exist"
        if not 2 <= minimum < maximum:
            yield f"{object_name(item)}: {minimum} to {maximum} replicas"


@rule
def rollouts_keep_capacity(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        spec = workload.item["spec"]
        steps = spec.get("strategy", {}).get("rollingUpdate", {})
        has_gpu = any("nvidia.com/gpu" in item.get("resources", {}).get("limits", {}) for item in workload.containers)
        expected = (0, 1) if has_gpu else (1, 0)
        if spec.get("strategy", {}).get("type") != "RollingUpdate":
            yield f"{workload.name}: no rolling update"
        if (steps.get("maxSurge"), steps.get("maxUnavailable")) != expected:
            yield f"{workload.name}: maxSurge and maxUnavailable are not {expected}"
        if not 0 < spec.get("minReadySeconds", 0) < spec.get("progressDeadlineSeconds", 0):
            yield f"{workload.name}: minReadySeconds or progressDeadlineSeconds is not set"
        if spec.get("revisionHistoryLimit", 10) > 5:
            yield f"{workload.name}: more than 5 old revisions"


@rule
def pods_are_spread(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        constraints = items(workload.pod.get("topologySpreadConstraints"))
        keys = {item["topologyKey"] for item in constraints if matches(item["labelSelector"], workload.labels)}
        if not {"topology.kubernetes.io/zone", "kubernetes.io/hostname"} <= keys:
            yield f"{workload.name}: not spread over zones and nodes"
        if any(item.get("matchLabelKeys") != ["pod-template-hash"] for item in constraints):
            yield f"{workload.name}: the spread counts pods of old revisions"


@rule
def disruption_budgets_allow_evictions(manifests: Manifests) -> Iterator[str]:
    budgets = manifests.of_kind("PodDisruptionBudget")
    for workload in manifests.deployments:
        if sum(matches(item["spec"]["selector"], workload.labels) for item in budgets) != 1:
            yield f"{workload.name}: not exactly one disruption budget"
    for item in budgets:
        if not manifests.selected(item["spec"]["selector"]):
            yield f"{object_name(item)}: no pods"
        if item["spec"].get("maxUnavailable") != 1 or "minAvailable" in item["spec"]:
            yield f"{object_name(item)}: does not allow one eviction at any number of replicas"
        if item["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{object_name(item)}: broken pods block the drain of a node"


@rule
def jobs_end(manifests: Manifests) -> Iterator[str]:
    for item in manifests.of_kind("Job"):
        spec = item["spec"]
        if not {"backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"} <= set(spec):
            yield f"{object_name(item)}: may run, retry or remain without limit"
        if spec["template"]["spec"].get("restartPolicy") != "Never":
            yield f"{object_name(item)}: its logs are lost on a restart"
