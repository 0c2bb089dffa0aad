"""deploy/README.md matches the files, commands and figures that it mentions."""

import json
import re

import pytest

from service import __version__
from service.commands.size import command as size
from service.request_log import STAGES, RequestRecord
from tests.conftest import ROOT
from tests.deploy.conftest import DEPLOY, run_tool

README = (DEPLOY / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))


def test_files_exist() -> None:
    paths = re.findall(
        r"`((?:\.\./)?(?:base|overlays|components|example|jobs|locks|compose|runbook)[\w./-]*[\w/])`", README
    )
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(paths) > 15
    for path in paths + links:
        if path != "runbook_url":
            assert (DEPLOY / path).exists(), path


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"image", "image-export", "image-test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_image_tags_have_the_version() -> None:
    tags = set(re.findall(r"attendant(?:-export)?:(\d[\w.]*)", README))
    assert tags == {__version__}


def test_every_component_is_described() -> None:
    for folder in ("overlays", "components", "jobs"):
        for path in (DEPLOY / folder).iterdir():
            assert f"`{folder}/{path.name}`" in README


def test_example_builds_and_lists_every_component() -> None:
    example = (DEPLOY / "example" / "kustomization.yaml").read_text()
    for component in (DEPLOY / "components").iterdir():
        assert f"../components/{component.name} " in example
    built = run_tool("kubectl", "kustomize", DEPLOY / "example")
    assert built.returncode == 0, built.stderr
    assert f"image: REGISTRY/attendant:{__version__}-cpu" in built.stdout
    assert "sed -i s#REGISTRY#" in SHELL


def test_log_line_has_the_fields_of_a_record() -> None:
    (line,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    names = set(json.loads(line)) - {"time", "level", "logger", "message", "status", "ms"}
    assert names <= {"api", "endpoint", *(f"{stage}_ms" for stage in STAGES), *RequestRecord.__slots__}


def test_first_section_has_five_commands() -> None:
    section = README.partition("## Kubernetes in five commands")[2].partition("```sh\n")[2].partition("```")[0]
    assert len(section.strip().splitlines()) == 5


def test_sizes_match_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(
        r"^\| ([\d,]+) \| ([\d,]+) replicas \| ([\d,]+) replicas \| ([\d,]+) replicas? \|$", README, re.MULTILINE
    )
    assert len(rows) == 3
    for row in rows:
        texts, *documented = (int(figure.replace(",", "")) for figure in row)
        results = []
        for tokens in (16, 128):
            size.run([f"--texts-per-second={texts}", f"--mean-tokens={tokens}", "--json"])
            results.append(json.loads(capsys.readouterr().out))
        assert documented == [*(result["replicas"] for result in results), results[0]["event_loop_replicas"]]
