"""Kustomize builds: every allowed combination of an overlay with components, and the jobs."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.conftest import DEPLOY, run_tool

Object = dict[str, Any]
"""A Kubernetes object."""

EXCLUSIVE = ("autoscaling-hpa", "autoscaling-keda")
"""Mutually exclusive components, because two autoscalers would fight over one Deployment."""

INDEPENDENT = ("client-addresses", "service-mesh")
"""Components that no other one depends on. They are built alone and with all others, which saves three quarters of the
combinations.
"""


@dataclass(frozen=True)
class Combination:
    """An overlay plus components."""

    overlay: str
    components: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "+".join((self.overlay, *self.components))


def names(folder: str) -> list[str]:
    return sorted(path.parent.name for path in (DEPLOY / folder).glob("*/kustomization.yaml"))


def chosen_combinations() -> Iterator[Combination]:
    """Yield every overlay alone, with each component, and with all of them, so that a mistake in any file shows."""
    for combination in combinations():
        full = [full_combination(combination.overlay, autoscaler) for autoscaler in EXCLUSIVE]
        if len(combination.components) < 2 or combination in full:
            yield combination


def combinations() -> Iterator[Combination]:
    """Yield every overlay with every set of components, except sets with several exclusive or with independent ones."""
    components = [name for name in names("components") if name not in INDEPENDENT]
    for overlay in names("overlays"):
        for size in range(len(components) + 1):
            for chosen in itertools.combinations(components, size):
                if len(set(EXCLUSIVE).intersection(chosen)) < 2:
                    yield Combination(overlay, chosen)
        yield from (Combination(overlay, (name,)) for name in INDEPENDENT)
        yield from (full_combination(overlay, autoscaler) for autoscaler in EXCLUSIVE)


def full_combination(overlay: str, autoscaler: str) -> Combination:
    """Return an overlay with all components except the other autoscaler."""
    return Combination(overlay, tuple(name for name in names("components") if name not in {*EXCLUSIVE} - {autoscaler}))


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
def build(combination: Combination) -> str:
    """Return a combination's manifest."""
    output, errors = kustomize(combination.overlay, combination.components)
    assert not errors, f"{combination}: {errors}"  # including warnings about deprecated fields
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
def all_builds(*, every: bool = False) -> dict[str, list[Object]]:
    """Return the objects of the chosen combinations (or all of them) and of every job, by name. Do not modify them."""
    overlays = list(combinations() if every else chosen_combinations())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        builds = dict(zip(map(str, overlays), pool.map(build, overlays), strict=True))
    objects = {name: parse(manifest) for name, manifest in builds.items()}
    for name in names("jobs"):
        objects[f"job {name}"] = [*objects["cpu+model-pvc"], *parse(build_job(name))]
    return objects


def distinct_objects(*, every: bool = False) -> list[Object]:
    by_content = {repr(item): item for objects in all_builds(every=every).values() for item in objects}
    return list(by_content.values())
