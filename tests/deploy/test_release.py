"""`make release`: one version everywhere, and files that install and serve without the checkout."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT, skip_without
from tests.deploy.conftest import find_tool, run_tool

SPEC = spec_from_file_location("release", ROOT / "deploy" / "release.py")
assert SPEC is not None
assert SPEC.loader is not None
release: Any = module_from_spec(SPEC)
SPEC.loader.exec_module(release)
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.1.0] - 2026-11-01\n\n- First.\n"


def test_all_files_have_one_version() -> None:
    assert release.read_version() == release.read_version()


def test_version_is_set_in_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in release.VERSIONS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    release.set_version("2.3.4rc1")
    assert release.read_version() == "2.3.4rc1"
    assert 'attendant-client==2.3.4rc1"' in (tmp_path / "pyproject.toml").read_text()
    (tmp_path / "Dockerfile").write_text("ARG VERSION=9.9.9\n")
    with pytest.raises(release.ReleaseError, match=r"versions differ from 2.3.4rc1 \(Dockerfile: 9.9.9\)"):
        release.read_version()
    with pytest.raises(release.ReleaseError, match="two: not a version"):
        release.set_version("two")


@pytest.mark.parametrize(("version", "section"), [("0.1.0", "- First.\n"), ("0.2.0", "- New.\n")])
def test_changes_are_those_of_the_version(version: str, section: str) -> None:
    assert release.changes(CHANGELOG, version) == section


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release of the last commit."""
    find_tool("kubectl")
    clone, out = tmp_path_factory.mktemp("release") / "clone", tmp_path_factory.mktemp("out") / "files"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    command = [sys.executable, clone / "deploy" / "release.py", "--out", out]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if "uv tool run failed" in result.stderr:
        skip_without(release.SBOM_TOOL, "uv installs it from an index")
    assert result.returncode == 0, result.stderr
    again = out.with_name("again")
    subprocess.run([*map(str, command[:-1]), str(again)], capture_output=True, check=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }
    return out


@pytest.mark.slow
def test_checksums_and_provenance_name_every_file(built: Path) -> None:
    sums = dict(line.split("  ")[::-1] for line in (built / "SHA256SUMS").read_text().splitlines())
    others = {path.name for path in built.iterdir()} - {"SHA256SUMS", "provenance.json"}
    assert sums.keys() == others
    for name, digest in sums.items():
        assert hashlib.sha256((built / name).read_bytes()).hexdigest() == digest
    statement = json.loads((built / "provenance.json").read_text())
    assert {item["name"]: item["digest"]["sha256"] for item in statement["subject"]} == sums


@pytest.mark.slow
def test_chart_is_an_archive_for_helm(built: Path) -> None:
    chart = built / f"attendant-{release.read_version()}.tgz"
    rendered = run_tool(
        "helm", "template", "attendant", chart, "--set", "image.repository=registry.example.com/attendant"
    )
    assert f'image: "registry.example.com/attendant:{release.read_version()}-cpu"' in rendered.stdout, rendered.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", release.LOCKS)
def test_bill_of_materials_has_the_packages_of_the_lock(built: Path, name: str) -> None:
    (path,) = built.glob(f"*-{name}.cdx.json")
    bill = json.loads(path.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {(item["name"], item["version"]) for item in bill["components"]}
    lock = (ROOT / "deploy" / "locks" / f"{name}.txt").read_text()
    pinned = set(re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", lock, re.MULTILINE))
    assert listed == pinned
    assert len(pinned) > 20


@pytest.mark.slow
def test_wheels_serve_without_the_checkout(built: Path, tmp_path: Path, default_artifact: Path) -> None:
    uv, python = Path(sys.executable).with_name("uv"), tmp_path / "venv" / "bin" / "python"
    client, server = (next(built.glob(f"attendant_{part}-*.whl")) for part in ("client", "server"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", python, "--constraint", ROOT / "constraints.txt", client]
    subprocess.run([*map(str, install), f"{server}[cpu]"], check=True, timeout=300)
    attendant = python.with_name("attendant")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    version = subprocess.run([attendant, "--version"], env=environment, capture_output=True, text=True, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert version.stdout == f"attendant {release.read_version()}, revision {commit.stdout.strip()}\n"
    ports = {f"ATTENDANT_{name}_PORT": "0" for name in ("REST", "GRPC", "ADMIN")}
    command = [str(attendant), "serve", str(default_artifact)]
    with subprocess.Popen(command, env=environment | ports, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if "rest_port=" in line or not line)
        (port,) = re.findall(r"rest_port=(\d+)", ready)
        response = httpx.post(f"http://127.0.0.1:{port}/embed", json={"inputs": "money bank grows"})
        process.terminate()
    assert len(response.raise_for_status().json()[0]) == 384
    assert process.returncode == 0
