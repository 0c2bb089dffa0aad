"""The images: linters (each skipped check has a reason), lock files, and `make image`."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from service import __version__
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


LOCKS = {path.stem: path.read_text() for path in (DEPLOY / "locks").glob("*.txt")}
PIN = re.compile(r"^([a-z0-9-]+)(?:\[[a-z,]+\])?==([^\s;\\]+)", re.MULTILINE)
CONSTRAINTS = set(PIN.findall((ROOT / "constraints.txt").read_text()))


@pytest.mark.parametrize("name", ["cpu", "gpu", "export"])
def test_lock_has_the_tested_versions(name: str) -> None:
    """Images must contain the versions that the tests ran with. Only the exporter's PyTorch differs, because it is
    built without CUDA.
    """
    pins = {(package, version.removesuffix("+cpu")) for package, version in PIN.findall(LOCKS[name])}
    assert len(pins) > 20
    assert pins <= CONSTRAINTS


def test_lock_has_a_hash_per_package() -> None:
    for name, text in LOCKS.items():
        for requirement in re.split(r"\n(?=[a-z])", text.partition("\n")[2]):
            assert not PIN.match(requirement) or "--hash=sha256:" in requirement, (name, requirement)


def test_images_have_one_runtime_and_the_server_has_no_torch() -> None:
    packages = {name: set(dict(PIN.findall(text))) for name, text in LOCKS.items()}
    assert "onnxruntime-gpu" not in packages["cpu"]
    assert "onnxruntime" not in packages["gpu"]
    assert {"torch", "onnxruntime"} <= packages["export"]
    assert "nvidia-cublas" in packages["gpu"]
    assert "nvidia-cudnn-cu13" not in packages["gpu"]  # several hundred MB, and no graph node uses it
    assert not {"torch", "pytest", "transformers"} & (packages["cpu"] | packages["gpu"])
    assert not [package for package in packages["cpu"] | packages["export"] if package.startswith("nvidia-")]


def test_build_lock_has_the_backend_of_the_project() -> None:
    backend = re.search(r'requires = \["hatchling==([^"]+)"\]', (ROOT / "pyproject.toml").read_text())
    assert backend is not None
    assert dict(PIN.findall(LOCKS["build"]))["hatchling"] == backend[1]


REVISION = re.compile(rf"{re.escape(__version__)}-[0-9a-f]{{12}}(-dirty)?")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a directory with the artifact files that the target reads. Its manifest has no graphs."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "manifest.sha256").write_text("0" * 64)
    return tmp_path / "model"


def make_image(model: Path, target: str, *graphs: str) -> tuple[int, list[str], str]:
    """Run `make image` with a fake docker that prints its arguments; return status, arguments and stderr."""
    (model / "manifest.json").write_text(json.dumps({"graphs": {name: {"file": name} for name in graphs}}, indent=1))
    docker = model.parent / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    docker.chmod(0o755)
    environment = os.environ | {"PATH": f"{docker.parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["make", "--no-print-directory", "image", f"TARGET={target}", f"MODEL={model}"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout.splitlines(), result.stderr


def test_image_for_a_gpu_needs_a_graph_for_cuda(model: Path) -> None:
    status, arguments, error = make_image(model, "gpu", "fast", "explain")
    assert (status != 0, arguments) == (True, [])
    assert f"image: {model} has no graph for CUDA. Run: .venv/bin/attendant-model export" in error


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_tag_and_build_argument_have_the_revision(model: Path, target: str) -> None:
    status, arguments, error = make_image(model, target, "fast", "explain", "cuda")
    assert (status, error) == (0, "")
    tags = [value.partition(":")[2] for option, value in itertools.pairwise(arguments) if option == "--tag"]
    assert tags[0] == f"{__version__}-{target}"
    assert REVISION.fullmatch(tags[1].removesuffix(f"-{target}"))
    assert arguments[-1] == f"attendant:{tags[1]}"
    (revision,) = [argument for argument in arguments if argument.startswith("REVISION=")]
    assert tags[1].split("-")[1] == revision.removeprefix("REVISION=")[:12]


def test_image_build_checks_the_graphs_and_records_the_revision() -> None:
    """This must also hold for builds without make."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    server = dockerfile.partition("FROM runtime AS server\n")[2]
    (check,) = re.findall(r'^RUN python3 -c "(.*?)"$', server, re.MULTILINE | re.DOTALL)
    for target, graphs, expected in (("gpu", "fast", 1), ("gpu", "cuda", 0), ("cpu", "fast", 0)):
        code = check.replace("\\\n", "").replace("${TARGET}", target)
        code = code.replace("open('/models/model/manifest.json')", "sys.stdin")
        body = json.dumps({"graphs": {graphs: {}}})
        result = subprocess.run(["python3", "-c", code], input=body, text=True, capture_output=True, check=False)
        assert result.returncode == expected, result.stderr
        assert ("MODEL: no graph for CUDA." in result.stderr) == (expected == 1)
    assert "> service/REVISION" in dockerfile.partition("AS source")[2].partition("AS base")[0]
