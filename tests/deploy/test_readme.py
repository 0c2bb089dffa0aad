"""The commands and figures in deploy/README.md work."""

import json
import re

import pytest

from service import __version__
from service.commands import size
from tests.deploy.conftest import DEPLOY, run_tool

README = (DEPLOY / "README.md").read_text()


def test_example_builds_and_lists_every_component() -> None:
    example = (DEPLOY / "example" / "kustomization.yaml").read_text()
    for component in (DEPLOY / "components").iterdir():
        assert f"../components/{component.name} " in example
    built = run_tool("kubectl", "kustomize", DEPLOY / "example")
    assert built.returncode == 0, built.stderr
    assert f"image: REGISTRY/attendant:{__version__}-cpu" in built.stdout


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
