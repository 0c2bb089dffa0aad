"""Linters for deploy/ and the Dockerfile: checkov, hadolint and yamllint. Every skipped check has a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.deploy.conftest import DEPLOY, run_tool
from tests.deploy.manifests import all_components, build, build_job

DOCKERFILE = ROOT / "Dockerfile"


def run_checkov(framework: str, *files: Path) -> dict[str, list[Any]]:
    """Return the results of checkov, run offline: passed_checks, failed_checks and skipped_checks."""
    sources = [argument for file in files for argument in ("-f", file)]
    report = run_tool("checkov", "--framework", framework, "--skip-download", "--output", "json", *sources)
    results: dict[str, list[Any]] = json.loads(report.stdout)["results"]
    return results


@pytest.mark.slow
def test_checkov_passes_manifests(tmp_path: Path) -> None:
    manifests = {
        "cpu.yaml": build("cpu", all_components("autoscaling-hpa")),
        "gpu.yaml": build("gpu", all_components("autoscaling-keda")),
        "job.yaml": build_job("export-model"),
    }
    for name, manifest in manifests.items():
        (tmp_path / name).write_text(manifest)
    results = run_checkov("kubernetes", *(tmp_path / name for name in manifests))
    assert len(results["passed_checks"]) > 200
    check_results(results)


@pytest.mark.slow
def test_checkov_passes_dockerfile() -> None:
    results = run_checkov("dockerfile", DOCKERFILE)
    assert results["passed_checks"]
    check_results(results)


def check_results(results: dict[str, list[Any]]) -> None:
    assert not [(check["check_id"], check["resource"]) for check in results["failed_checks"]]
    for check in results["skipped_checks"]:
        assert len(check["check_result"]["suppress_comment"].split()) > 3, check["check_id"]


def test_hadolint_passes_dockerfile() -> None:
    result = run_tool("hadolint", DOCKERFILE)
    assert (result.returncode, result.stdout) == (0, "")


def test_yamllint_passes_deploy() -> None:
    result = run_tool("yamllint", "--strict", "-c", DEPLOY / ".yamllint.yaml", DEPLOY)
    assert (result.returncode, result.stdout) == (0, "")
