"""Kustomize builds of deploy/: every overlay with every component, and the jobs."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.conftest import DEPLOY, run_tool

Object = dict[str, Any]
"""A Kubernetes object."""

AUTOSCALERS = ("autoscaling-hpa", "autoscaling-keda")
"""Mutually exclusive components, because two autoscalers would fight over one Deployment."""
UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def names(folder: str) -> list[str]:
    return sorted(path.parent.name for path in (DEPLOY / folder).glob("*/kustomization.yaml"))


def all_components(autoscaler: str) -> tuple[str, ...]:
    """Return all components that work with an autoscaler."""
    return tuple(name for name in names("components") if name not in {*AUTOSCALERS} - {autoscaler})


def kustomize(overlay: str, components: tuple[str, ...] = (), **fields: Any) -> tuple[str, str]:
    """Build a kustomization with extra fields, as a user would write it; return output and errors."""
    with tempfile.TemporaryDirectory() as folder:
        deploy = os.path.relpath(DEPLOY, os.path.realpath(folder))
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"{deploy}/overlays/{overlay}"],
            "components": [f"{deploy}/components/{name}" for name in components],
            **fields,
        }
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        built = run_tool("kubectl", "kustomize", folder)
    return built.stdout, built.stderr


@cache
def build(overlay: str, components: tuple[str, ...] = ()) -> str:
    output, errors = kustomize(overlay, components)
    assert not errors, f"{overlay} {components}: {errors}"  # including warnings about deprecated fields
    return output


@cache
def build_job(name: str) -> str:
    """Return a job's manifest, on top of an overlay with the model-pvc component."""
    built = run_tool("kubectl", "kustomize", DEPLOY / "jobs" / name)
    assert not built.stderr, built.stderr
    return built.stdout


def parse(manifest: str) -> list[Object]:
    return list(yaml.load_all(manifest, yaml.CSafeLoader))


@cache
def all_builds() -> dict[str, "Manifests"]:
    """Return overlays without components, with each one, and with all, plus the jobs. Do not modify them."""
    combinations = [(), *((name,) for name in names("components")), *map(all_components, AUTOSCALERS)]
    builds = {
        "+".join((overlay, *components)): Manifests(parse(build(overlay, components)))
        for overlay, components in itertools.product(names("overlays"), combinations)
    }
    for name in names("jobs"):
        builds[f"job {name}"] = Manifests(builds["cpu+model-pvc"].objects + parse(build_job(name)))
    return builds


def parse_quantity(quantity: str | int) -> float:
    digits = str(quantity).rstrip("".join(UNITS))
    return float(digits) * UNITS[str(quantity)[len(digits) :]]


class Manifests:
    """Objects of one build."""

    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects

    def of_kind(self, *kinds: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] in kinds]

    @cached_property
    def deployment(self) -> Object:
        (deployment,) = self.of_kind("Deployment")
        return deployment

    @property
    def pod(self) -> Object:
        """Pod template of the Deployment."""
        template: Object = self.deployment["spec"]["template"]
        return template

    @property
    def container(self) -> Object:
        (container,) = self.pod["spec"]["containers"]
        return dict(container)

    @property
    def ports(self) -> dict[str, int]:
        """Container ports by name."""
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def options(self) -> dict[str, str]:
        """The server's environment from ConfigMaps and literal values."""
        environment: dict[str, str] = {}
        for source in self.container["envFrom"]:
            name = source["configMapRef"]["name"]
            (config,) = (item for item in self.of_kind("ConfigMap") if item["metadata"]["name"] == name)
            environment |= config["data"]
        return environment | {item["name"]: item["value"] for item in self.container["env"] if "value" in item}

    @property
    def uses_tls(self) -> bool:
        return "ATTENDANT_TLS_CERT_FILE" in self.options

    def autoscalers(self) -> Iterator[Object]:
        return (item["spec"] for item in self.of_kind("HorizontalPodAutoscaler", "ScaledObject"))
