"""Objects of one build, and the references between them that the rules check."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.deploy.builds import Object

WORKLOADS = ("Deployment", "Job")
UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def object_name(item: Object) -> str:
    """Return kind and name, formatted like kubectl."""
    return f"{item['kind']}/{item['metadata']['name']}"


def parse_quantity(quantity: str | int) -> float:
    digits = str(quantity).rstrip("".join(UNITS))
    return float(digits) * UNITS[str(quantity)[len(digits) :]]


def matches(selector: Object, labels: Object) -> bool:
    """Return whether a label selector (matchLabels only) matches these labels."""
    assert set(selector) <= {"matchLabels"}, f"not supported by the rules: {selector}"
    expected: Object = selector.get("matchLabels", {})
    return expected.items() <= labels.items()


@dataclass(frozen=True)
class Workload:
    """An object that creates pods."""

    item: Object

    @property
    def name(self) -> str:
        return object_name(self.item)

    @property
    def labels(self) -> Object:
        """Pod labels."""
        labels: Object = self.item["spec"]["template"]["metadata"].get("labels", {})
        return labels

    @property
    def pod(self) -> Object:
        spec: Object = self.item["spec"]["template"]["spec"]
        return spec

    @property
    def containers(self) -> list[Object]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        """Container ports by name."""
        return {port["name"]: port["containerPort"] for item in self.containers for port in item.get("ports", [])}

    def contexts(self) -> Iterator[tuple[Object, Object]]:
        """Yield each container with its effective security context."""
        for item in self.containers:
            yield item, self.pod.get("securityContext", {}) | item.get("securityContext", {})


class Manifests:
    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects

    def of_kind(self, *kinds: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] in kinds]

    def find(self, kind: str, name: str) -> Object | None:
        return next((item for item in self.of_kind(kind) if item["metadata"]["name"] == name), None)

    @cached_property
    def workloads(self) -> list[Workload]:
        return [Workload(item) for item in self.of_kind(*WORKLOADS)]

    @cached_property
    def deployments(self) -> list[Workload]:
        return [workload for workload in self.workloads if workload.item["kind"] == "Deployment"]

    def selected(self, selector: Object) -> list[Workload]:
        return [workload for workload in self.workloads if matches(selector, workload.labels)]

    def options(self, container: Object) -> Object:
        """Return a container's environment from its ConfigMaps and literal values."""
        environment: Object = {}
        for source in container.get("envFrom", []):
            config = self.find("ConfigMap", source.get("configMapRef", {}).get("name"))
            environment |= config["data"] if config else {}
        return environment | {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}

    def uses_tls(self, workload: Workload) -> bool:
        """Return whether the server of a workload has a certificate."""
        return any("ATTENDANT_TLS_CERT_FILE" in self.options(container) for container in workload.containers)

    def autoscalers(self) -> list[tuple[Object, int, int]]:
        """Return each autoscaler with its minimum and maximum number of replicas."""
        return [
            (item, item["spec"].get(f"min{field}", 0), item["spec"].get(f"max{field}", 0))
            for kind, field in (("HorizontalPodAutoscaler", "Replicas"), ("ScaledObject", "ReplicaCount"))
            for item in self.of_kind(kind)
        ]


Rule = Callable[[Manifests], Iterator[str]]
"""A rule yields one message per violation."""

RULES: dict[str, Rule] = {}
"""All rules by name."""


def rule(check: Rule) -> Rule:
    """Register a rule."""
    RULES[check.__name__] = check
    return check


def items(value: Any) -> list[Any]:
    """Return a list field, which may be missing."""
    return value or []
