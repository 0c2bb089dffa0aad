"""Build what a release publishes, from the committed files: `make release`.

In dist/VERSION: the wheels of server and client, a software bill of materials (CycloneDX) for each image's packages,
the Helm chart, the manifests of each overlay as one file, the section of the changelog, SHA256SUMS, and a provenance
statement (in-toto, SLSA 1). With RELEASE_GPG_KEY, SHA256SUMS is signed. Two runs of one commit give the same files.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = Path(sys.executable).parent
SBOM_TOOL = "cyclonedx-bom==7.5.0"
LOCKS = ("cpu", "gpu", "export")
OVERLAYS = ("cpu", "gpu")
VERSIONS = {
    "pyproject.toml": r'^version = "(.+)"$',
    "client/pyproject.toml": r'^version = "(.+)"$',
    "service/__init__.py": r'^__version__ = "(.+)"$',
    "client/attendant_client/__init__.py": r'^__version__ = "(.+)"$',
    "Dockerfile": r"^ARG VERSION=(.+)$",
    "deploy/overlays/cpu/kustomization.yaml": r"newTag: (.+)-cpu$",
    "deploy/overlays/gpu/kustomization.yaml": r"newTag: (.+)-gpu$",
    "deploy/jobs/export-model/kustomization.yaml": r"newTag: (.+)$",
    "deploy/example/kustomization.yaml": r"newTag: (.+)-cpu$",
    "deploy/kserve/kustomization.yaml": r"newTag: (.+)-cpu$",
}
"""The pattern of the version in each file that contains it. `--set-version` writes all of them."""


class ReleaseError(Exception):
    """The checkout cannot be released."""


def main() -> int:
    """Build the release, or set the version, and return the exit status."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--out", type=Path, help="directory of the files (default: dist/VERSION)")
    parser.add_argument("--set-version", metavar="X.Y.Z", help="write a version to every file that has it, and exit")
    options = parser.parse_args()
    try:
        if options.set_version is not None:
            set_version(options.set_version)
            return 0
        version = read_version()
        out = options.out or ROOT / "dist" / version
        build(version, out)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in sorted(out.iterdir()):
        print(f"{path}  {path.stat().st_size:,} bytes")
    return 0


def found_versions() -> Iterator[tuple[str, str]]:
    """Yield each file with a version, and the version. Raises `ReleaseError`."""
    for name, pattern in VERSIONS.items():
        found = re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
        if len(found) != 1:
            raise ReleaseError(f"{name}: {len(found)} versions instead of one. Check the pattern in deploy/release.py.")
        yield name, found[0]


def read_version() -> str:
    """Return the version, which must be the same in all files. Raises `ReleaseError`."""
    versions = dict(found_versions())
    first = versions["pyproject.toml"]
    different = [f"{name}: {version}" for name, version in versions.items() if version != first]
    if different:
        raise ReleaseError(
            f"versions differ from {first} ({', '.join(different)}). Run deploy/release.py --set-version."
        )
    return first


def set_version(version: str) -> None:
    """Write a version to every file that contains it. Raises `ReleaseError` if it is invalid."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", version):
        raise ReleaseError(f"{version}: not a version. Use X.Y.Z.")
    for name, old in [*found_versions()]:
        path, pattern = ROOT / name, VERSIONS[name]
        text = path.read_text()
        match = re.search(pattern, text, re.MULTILINE)
        assert match is not None, old
        path.write_text(text[: match.start(1)] + version + text[match.end(1) :])
    path = ROOT / "pyproject.toml"
    path.write_text(re.sub(r"attendant-client==[^\"]+", f"attendant-client=={version}", path.read_text()))


def build(version: str, out: Path) -> None:
    """Build the files. Raises `ReleaseError`."""
    if changed := _run("git", "status", "--porcelain").strip():
        raise ReleaseError(f"uncommitted changes ({changed.splitlines()[0].strip()}, ...). Commit or remove them.")
    commit, seconds = _run("git", "log", "-1", "--format=%H %ct").split()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch)
        _export(commit, source)
        environment = os.environ | {"SOURCE_DATE_EPOCH": seconds}
        for package in (source, source / "client"):
            _run(str(TOOLS / "uv"), "build", "--quiet", "--wheel", "--out-dir", str(out), str(package), env=environment)
        (out / ".gitignore").unlink(missing_ok=True)
        for name in LOCKS:
            _write_sbom(source, name, out / f"attendant-{version}-{name}.cdx.json")
        for name in OVERLAYS:
            manifests = _run("kubectl", "kustomize", str(source / "deploy" / "overlays" / name))
            (out / f"attendant-{version}-kubernetes-{name}.yaml").write_text(manifests)
        _write_chart(source, int(seconds), out / f"attendant-{version}.tgz")
        (out / "CHANGES.md").write_text(changes((source / "CHANGELOG.md").read_text(), version))
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}
    (out / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    (out / "provenance.json").write_text(json.dumps(provenance(digests, commit), indent=2) + "\n")
    if key := os.environ.get("RELEASE_GPG_KEY"):
        _run("gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign", str(out / "SHA256SUMS"))


def _export(commit: str, directory: Path) -> None:
    """Write the files of a commit, and its hash, which `attendant --version` prints."""
    archive = directory / "source.tar"
    _run("git", "archive", "--output", str(archive), commit)
    with tarfile.open(archive) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # available since Python 3.11.4
        files.extractall(directory)  # noqa: S202  # an archive of this repository
    archive.unlink()
    (directory / "service" / "REVISION").write_text(f"{commit}\n")
    # With a .gitignore but no repository, the build backend would exclude the revision file.
    (directory / ".gitignore").unlink(missing_ok=True)


def _write_sbom(source: Path, name: str, out: Path) -> None:
    """Write the packages of an image, with versions and digests, from its lock file."""
    lock = source / "deploy" / "locks" / f"{name}.txt"
    options = ("--of", "JSON", "--output-reproducible", "--pyproject", str(source / "pyproject.toml"), "-o", str(out))
    _run(
        str(TOOLS / "uv"), "tool", "run", "--quiet", "--from", SBOM_TOOL, "cyclonedx-py", "requirements", str(lock),
        *options,
    )  # fmt: skip


def _write_chart(source: Path, seconds: int, out: Path) -> None:
    """Write the Helm chart as an archive whose bytes depend only on its files."""
    chart = source / "chart" / "attendant"
    _run(sys.executable, str(source / "deploy" / "helm_chart.py"), str(chart))
    with (
        out.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=seconds) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for path in sorted(item for item in chart.rglob("*") if item.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(chart.parent)))
            entry.size, entry.mtime = path.stat().st_size, seconds
            with path.open("rb") as content:
                archive.addfile(entry, content)


def changes(changelog: str, version: str) -> str:
    """Return the changelog section of a version, or the unreleased changes if it has none."""
    sections = dict(re.findall(r"^## \[(.+?)\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL))
    return (sections.get(version) or sections["Unreleased"]).strip() + "\n"


def provenance(digests: dict[str, str], commit: str) -> dict[str, object]:
    """Return an in-toto statement: these files were built from this commit (https://slsa.dev/spec/v1.0/provenance)."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:attendant:make-release:1",
                "externalParameters": {"command": "make release"},
                "resolvedDependencies": [{"uri": "git+attendant", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": os.environ.get("RELEASE_BUILDER", "make release")}},
        },
    }


def _run(*command: str, env: dict[str, str] | None = None) -> str:
    try:
        result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ReleaseError(f"{command[0]}: cannot be run ({error.strerror}). Install it.") from None
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no output"]
        raise ReleaseError(f"{' '.join(command[:3])} failed: {lines[-1]}")
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
