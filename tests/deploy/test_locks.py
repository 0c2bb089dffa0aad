"""Lock files of the images: versions from constraints.txt, hashes, and no unnecessary packages."""

import re

import pytest

from tests.conftest import ROOT
from tests.deploy.conftest import DEPLOY

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
