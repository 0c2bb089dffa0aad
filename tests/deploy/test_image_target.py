"""`make image`: tags, and artifacts without a GPU graph."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from service import __version__
from tests.conftest import ROOT

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
