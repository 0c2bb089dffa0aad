"""The README's examples, run as written against a server on its usual ports."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT, RunningServer, start_server, stop_server

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def usual_server() -> Iterator[RunningServer]:
    """A server on the ports that the README names."""
    running = start_server(rest_port=8080, grpc_port=8081, admin_port=8082)
    yield running
    assert stop_server(running) == 0


def blocks(language: str) -> list[str]:
    """The README's code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout


def test_curl(usual_server: RunningServer) -> None:
    """It prints two results with a vector for each of three words, and `bank` has two different ones."""
    (command,) = [block for block in blocks("sh") if "/v1/encode" in block]
    first, second = json.loads(run(["bash", "-c", command]))["results"]
    assert [word["text"] for word in first["words"]] == ["money", "bank", "grows"]
    assert first["word_vectors"][1] != second["word_vectors"][1]


def test_curls_that_explain(usual_server: RunningServer) -> None:
    """The row of `bank` is largest, after itself, at the words the README names; its two uses are not alike."""
    (commands,) = [block for block in blocks("sh") if "/v1/attend" in block]
    ask, compare = re.findall(r"curl .*?'\n(?=curl|$)", commands, re.DOTALL)
    (result,) = json.loads(run(["bash", "-c", ask]))["results"]
    names = [unit["text"] for unit in result["units"]]
    row = dict(zip(names, result["maps"][0]["matrix"][names.index("bank")], strict=True))
    assert sorted(row, key=lambda name: -row[name])[:3] == ["bank", "cashed", "check"]
    compared = json.loads(run(["bash", "-c", compare]))
    assert compared["static"][0][1] == 1 > compared["layers"][-1]["cosine"][0][1]


def test_openai_client(usual_server: RunningServer) -> None:
    """It prints how many vectors, their width and the tokens used."""
    (program,) = [block for block in blocks("python") if "openai" in block]
    assert run([sys.executable, "-c", program]).split() == ["2", "384", "10"]


def test_grpc(usual_server: RunningServer) -> None:
    """It prints the words and the shape of their vectors."""
    (program,) = [block for block in blocks("python") if "grpc" in block]
    assert run([sys.executable, "-c", program]).strip() == "['money', 'bank', 'grows'] (3, 384)"


def test_the_ready_line_offers_a_curl_that_works(usual_server: RunningServer) -> None:
    """What `make run` prints can be pasted."""
    command = usual_server.ready_line.partition("Try: ")[2]
    assert len(json.loads(run(["bash", "-c", command]))["results"][0]["pooled"]) == 384


def test_the_readme_stays_short_and_names_the_two_commands_first() -> None:
    """Under 150 lines, the commands on the first screen."""
    lines = README.splitlines()
    assert len(lines) < 150
    assert "make run" in "\n".join(lines[:20])
    assert "make test" in "\n".join(lines[:20])
