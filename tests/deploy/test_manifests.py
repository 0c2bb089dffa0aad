"""Every allowed combination of overlay and components, checked against our rules and three Kubernetes schemas."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy import network_rules, object_rules, pod_rules  # noqa: F401  # registers the rules
from tests.deploy.builds import (
    EXCLUSIVE,
    Object,
    all_builds,
    combinations,
    distinct_objects,
    full_combination,
    kustomize,
    names,
    parse,
)
from tests.deploy.conftest import run_tool
from tests.deploy.manifests import RULES, Manifests

KUBERNETES = ("1.30", "1.34", "1.37")
"""The oldest supported version, one in between, and the newest."""

SCHEMAS = {
    path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "schemas").glob("*.json"))
}
"""Schemas of custom resources by lower-case kind, covering only the fields that the components use."""


def test_combinations_cover_every_overlay_and_component() -> None:
    built = list(combinations())
    assert {combination.overlay for combination in built} == set(names("overlays")) >= {"cpu", "gpu"}
    assert {name for combination in built for name in combination.components} == set(names("components"))
    assert len(built) >= 12


@pytest.mark.parametrize("overlay", names("overlays"))
def test_exclusive_components_do_not_build_together(overlay: str) -> None:
    output, errors = kustomize(overlay, EXCLUSIVE)
    assert not output
    assert "remove" in errors


def test_user_kustomization_sets_namespace_and_image() -> None:
    full = full_combination("cpu", "autoscaling-hpa")
    image = {"name": "attendant", "newName": "registry.example.com/search/attendant", "digest": f"sha256:{'0' * 64}"}
    output, errors = kustomize(full.overlay, full.components, namespace="search", images=[image])
    assert not errors
    manifests = Manifests(parse(output))
    assert not {name: messages for name, check in RULES.items() if (messages := list(check(manifests)))}
    assert manifests.find("Namespace", "search")
    assert manifests.workloads[0].containers[0]["image"] == f"{image['newName']}@{image['digest']}"


@pytest.mark.parametrize("rule", RULES)
def test_combinations_follow_rule(rule: str) -> None:
    violations = {name: list(RULES[rule](Manifests(objects))) for name, objects in all_builds().items()}
    assert not {name: messages for name, messages in violations.items() if messages}


@pytest.mark.slow
def test_every_combination_follows_every_rule() -> None:
    for name, objects in all_builds(every=True).items():
        manifests = Manifests(objects)
        assert not {rule: messages for rule, check in RULES.items() if (messages := list(check(manifests)))}, name


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_match_schema_of_kubernetes(version: str, tmp_path: Path, *, every: bool) -> None:
    objects = distinct_objects(every=every)
    result = validate(objects, version, tmp_path)
    lines = result.splitlines()
    assert not [line for line in lines if not line.startswith(("INFO", "WARN"))]
    native = [item for item in objects if item["kind"].lower() not in SCHEMAS]
    assert len([line for line in lines if line.startswith("INFO")]) == len(native) > 12


@pytest.mark.parametrize("version", KUBERNETES)
def test_validator_rejects_an_unknown_field(version: str, tmp_path: Path) -> None:
    deployment = next(item for item in distinct_objects() if item["kind"] == "Deployment")
    broken = deployment | {"spec": deployment["spec"] | {"minReadySecond": 10}}
    assert "minReadySecond" in validate([broken], version, tmp_path)


def validate(objects: list[Object], version: str, folder: Path) -> str:
    """Return kubernetes-validate's report, one line per object."""
    manifest = folder / "objects.yaml"
    manifest.write_text(yaml.dump_all(objects, Dumper=yaml.CSafeDumper))
    return run_tool("kubernetes-validate", "--strict", "-k", version, manifest).stdout


def custom_resources() -> list[Object]:
    return [item for item in distinct_objects() if item["kind"].lower() in SCHEMAS]


def test_custom_resources_match_schema() -> None:
    for item in custom_resources():
        jsonschema.validate(item, SCHEMAS[item["kind"].lower()])


def test_custom_resource_schemas_reject_unknown_fields() -> None:
    for item in custom_resources():
        schema = SCHEMAS[item["kind"].lower()]
        for changed in with_unknown_field(item["spec"]):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(item | {"spec": changed}, schema)


def with_unknown_field(value: Any) -> Iterator[Any]:
    """Yield copies of a value, each with an unknown field in one of its objects, except in label maps."""
    if isinstance(value, list):
        for index, child in enumerate(value):
            for changed in with_unknown_field(child):
                yield [*value[:index], changed, *value[index + 1 :]]
    if isinstance(value, dict):
        yield copy.deepcopy(value) | {"unknownField": {}}
        for key, child in value.items():
            if key not in ("annotations", "labels", "matchLabels"):
                yield from (value | {key: changed} for changed in with_unknown_field(child))


def test_custom_resource_schemas_are_valid() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_custom_resource_schemas_are_used() -> None:
    assert {item["kind"].lower() for item in custom_resources()} == set(SCHEMAS)
