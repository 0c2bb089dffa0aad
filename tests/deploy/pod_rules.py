"""Rules for pods: the restricted pod security standard, resources, probes and termination."""

import re
from collections.abc import Iterator

from tests.deploy.manifests import Manifests, Workload, parse_quantity, rule

MIN_DRAIN_MS = 20_000
MAX_AGE_RATIO = 0.8
"""gRPC extends a connection's age by up to 10 %."""
SHUTDOWN_MARGIN_S = 5
VOLUME_TYPES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SECRET_NAME = re.compile(r"KEY$|TOKEN|PASSWORD|SECRET")


@rule
def pods_do_not_use_the_host(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for field in ("hostNetwork", "hostPID", "hostIPC", "hostAliases"):
            if workload.pod.get(field):
                yield f"{workload.name}: {field} is set"
        for item in workload.containers:
            if any("hostPort" in port for port in item.get("ports", [])):
                yield f"{workload.name}: a hostPort is set"


@rule
def volumes_have_restricted_types(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for volume in workload.pod.get("volumes", []):
            if not set(volume) - {"name"} <= VOLUME_TYPES:
                yield f"{workload.name}: the type of volume {volume['name']} is not allowed"


@rule
def containers_are_unprivileged(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for _, context in workload.contexts():
            if context.get("privileged") or context.get("procMount") or context.get("sysctls"):
                yield f"{workload.name}: a container has privileges"
            if context.get("allowPrivilegeEscalation") is not False:
                yield f"{workload.name}: allowPrivilegeEscalation is not false"


@rule
def capabilities_are_dropped(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for _, context in workload.contexts():
            if context.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{workload.name}: capabilities are not exactly drop: [ALL]"


@rule
def seccomp_profile_is_set(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for _, context in workload.contexts():
            if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
                yield f"{workload.name}: the seccomp profile is not RuntimeDefault"


@rule
def users_are_numeric_and_not_root(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for _, context in workload.contexts():
            if context.get("runAsNonRoot") is not True or not context.get("runAsUser") or not context.get("runAsGroup"):
                yield f"{workload.name}: runAsNonRoot, runAsUser and runAsGroup must be set, and not to root"


@rule
def root_file_systems_are_read_only(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for _, context in workload.contexts():
            if context.get("readOnlyRootFilesystem") is not True:
                yield f"{workload.name}: readOnlyRootFilesystem is not true"


@rule
def pods_have_no_access_to_the_api(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        account = manifests.find("ServiceAccount", workload.pod.get("serviceAccountName", "default"))
        if account is None or "serviceAccount" in workload.pod:
            yield f"{workload.name}: it has no service account of its own"
        elif account.get("automountServiceAccountToken") is not False:
            yield f"{workload.name}: its service account mounts a token"
        if workload.pod.get("automountServiceAccountToken") is not False:
            yield f"{workload.name}: automountServiceAccountToken is not false"


@rule
def service_links_are_disabled(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        if workload.pod.get("enableServiceLinks") is not False:
            yield f"{workload.name}: enableServiceLinks is not false"


@rule
def images_are_pinned(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for item in workload.containers:
            name = item["image"].rpartition("/")[2]
            if "@sha256:" not in name and (":" not in name or name.endswith(":latest")):
                yield f"{workload.name}: {item['image']} has neither a version nor a digest"


@rule
def resources_are_reserved(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for item in workload.containers:
            resources = item.get("resources", {})
            requests, limits = resources.get("requests", {}), resources.get("limits", {})
            if not {"cpu", "memory", "ephemeral-storage"} <= set(requests):
                yield f"{workload.name}: a request is missing"
            if requests.get("memory") != limits.get("memory") or "ephemeral-storage" not in limits:
                yield f"{workload.name}: the limit of memory differs from its request, or a limit is missing"
            if "cpu" in limits:
                yield f"{workload.name}: a CPU limit throttles the event loop"


@rule
def thread_counts_equal_cpu_requests(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        for item in workload.containers:
            environment = {variable["name"]: variable for variable in item.get("env", [])}
            for name in ("ATTENDANT_THREADS", "RAYON_NUM_THREADS"):
                reference = environment.get(name, {}).get("valueFrom", {}).get("resourceFieldRef")
                if reference != {"containerName": item["name"], "resource": "requests.cpu", "divisor": "1"}:
                    yield f"{workload.name}: {name} is not the CPU request"
            if not parse_quantity(item.get("resources", {}).get("requests", {}).get("cpu", 0.5)).is_integer():
                yield f"{workload.name}: the CPU request is not a whole number of threads"


@rule
def scratch_volumes_are_limited(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        storage = sum(
            parse_quantity(item.get("resources", {}).get("limits", {}).get("ephemeral-storage", 0))
            for item in workload.containers
        )
        for volume in workload.pod.get("volumes", []):
            if "emptyDir" in volume and not 0 < parse_quantity(volume["emptyDir"].get("sizeLimit", 0)) <= storage:
                yield f"{workload.name}: volume {volume['name']} has no size limit within the limit of the container"


@rule
def mounts_and_volumes_match(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        volumes = [volume["name"] for volume in workload.pod.get("volumes", [])]
        mounts = [mount for item in workload.containers for mount in item.get("volumeMounts", [])]
        if {mount["name"] for mount in mounts} != set(volumes) or len(volumes) != len(set(volumes)):
            yield f"{workload.name}: volumes and mounts differ"
        if len({mount["mountPath"] for mount in mounts}) != len(mounts):
            yield f"{workload.name}: two mounts have one path"


@rule
def shared_volumes_are_read_only(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        volumes = {volume["name"]: volume for volume in workload.pod.get("volumes", [])}
        for item in workload.containers:
            for mount in item.get("volumeMounts", []):
                volume = volumes.get(mount["name"], {"emptyDir": {}})
                if "emptyDir" not in volume and mount.get("readOnly") is not True:
                    yield f"{workload.name}: {mount['mountPath']} is writable"
        for volume in volumes.values():
            if "secret" in volume and volume["secret"].get("defaultMode", 0o644) & 0o337:
                yield f"{workload.name}: the mode of {volume['name']} allows more than reading by user and group"
            if volume.get("persistentVolumeClaim", {}).get("readOnly", True) is not True:
                yield f"{workload.name}: {volume['name']} is attached for writing"


@rule
def variables_are_unique(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for item in workload.containers:
            configured = manifests.options(item | {"env": []})
            names = [*configured, *(variable["name"] for variable in item.get("env", []))]
            if len(names) != len(set(names)):
                yield f"{workload.name}: a variable is set twice"


@rule
def secrets_are_not_in_the_environment(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        for item in workload.containers:
            sources = [*item.get("envFrom", []), *(variable.get("valueFrom", {}) for variable in item.get("env", []))]
            if any({"secretRef", "secretKeyRef"} & set(source) for source in sources):
                yield f"{workload.name}: a variable contains a Secret"
            if any(SECRET_NAME.search(name) for name in manifests.options(item)):
                yield f"{workload.name}: a variable is named like a secret"


@rule
def option_files_are_mounted(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        for item in workload.containers:
            mounts = [mount["mountPath"] for mount in item.get("volumeMounts", []) if "subPath" not in mount]
            for name, value in manifests.options(item).items():
                if name.endswith("_FILE") and not any(value.startswith(f"{mount}/") for mount in mounts):
                    yield f"{workload.name}: {name} is not in a volume that is updated"


@rule
def probes_are_complete(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        for item in workload.containers:
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = item.get(kind, {})
                if probe.get("httpGet", {}).get("port") not in workload.ports:
                    yield f"{workload.name}: {kind} does not name a port of the pod"
                if (probe.get("httpGet", {}).get("scheme") == "HTTPS") != manifests.uses_tls(workload):
                    yield f"{workload.name}: {kind} and the server do not agree on TLS"
                if probe.get("timeoutSeconds", 1) >= probe.get("periodSeconds", 10):
                    yield f"{workload.name}: {kind} may overlap with the next one"


@rule
def liveness_tolerates_more_than_readiness(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        for item in workload.containers:
            live, ready, start = (item.get(f"{kind}Probe", {}) for kind in ("liveness", "readiness", "startup"))
            if live.get("httpGet") == ready.get("httpGet"):
                yield f"{workload.name}: liveness and readiness are one probe"
            if start.get("httpGet") != live.get("httpGet"):
                yield f"{workload.name}: the startup probe does not precede the liveness probe"
            if probe_budget_s(live) < 60 or probe_budget_s(live) <= probe_budget_s(ready):
                yield f"{workload.name}: liveness restarts a pod before readiness takes its load away"
            if probe_budget_s(start) < 300:
                yield f"{workload.name}: less than 5 minutes to start"


def probe_budget_s(probe: dict[str, int]) -> int:
    """Return how long a probe may keep failing, in seconds."""
    return probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)


@rule
def grace_period_covers_the_shutdown(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        for item in workload.containers:
            options = manifests.options(item)
            delay_ms = int(options.get("ATTENDANT_DRAIN_DELAY_MS", 0))
            drain_ms = int(options.get("ATTENDANT_DRAIN_TIMEOUT_MS", 0))
            if not delay_ms or drain_ms < delay_ms + MIN_DRAIN_MS:
                yield f"{workload.name}: no drain delay, or no time to finish requests after it"
            if not 0 < int(options.get("ATTENDANT_MAX_GRPC_CONNECTION_AGE_MS", 0)) <= MAX_AGE_RATIO * delay_ms:
                yield f"{workload.name}: gRPC connections outlive the drain delay"
            if workload.pod.get("terminationGracePeriodSeconds", 30) < drain_ms / 1000 + SHUTDOWN_MARGIN_S:
                yield f"{workload.name}: the grace period ends before the drain"


@rule
def errors_are_termination_messages(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        if any(item.get("terminationMessagePolicy") != "FallbackToLogsOnError" for item in workload.containers):
            yield f"{workload.name}: kubectl describe does not show why a container failed"


@rule
def gpu_pods_are_placed_on_gpu_nodes(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.deployments:
        for item in workload.containers:
            gpus = item.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0)
            provider = manifests.options(item).get("ATTENDANT_PROVIDER", "auto")
            if bool(gpus) != (provider == "cuda"):
                yield f"{workload.name}: {gpus} GPUs for provider {provider}"
            if gpus and not tolerates_gpu_taint(workload):
                yield f"{workload.name}: no toleration for GPU nodes"
            if gpus and workload.pod.get("nodeSelector"):
                yield f"{workload.name}: pods stay pending on nodes without the labels of the node selector"


def tolerates_gpu_taint(workload: Workload) -> bool:
    """Return whether the pods tolerate the usual taint on GPU nodes."""
    return any(item["key"] == "nvidia.com/gpu" for item in workload.pod.get("tolerations", []))
