"""The examples of the README, with other ports."""

import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT, RunningServer

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def examples(server: RunningServer) -> str:
    """The README, with the addresses of the test server, because the default ports may be in use."""
    text = README.replace("http://127.0.0.1:8080", server.rest).replace("127.0.0.1:8081", server.grpc)
    assert "127.0.0.1:8081" not in text
    return text


def code_block(text: str, language: str, part: str) -> str:
    """Return the only code block of a language that contains `part`."""
    (code,) = [block for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if part in block]
    return str(code)


def run(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout


def test_encode_example_prints_two_vectors_for_bank(examples: str) -> None:
    first, second = json.loads(run(["bash", "-c", code_block(examples, "sh", "/v1/encode")]))["results"]
    assert [word["text"] for word in first["words"]] == ["money", "bank", "grows"]
    assert first["word_vectors"][1] != second["word_vectors"][1]


def test_explain_examples_match_the_readme(examples: str) -> None:
    """The row of `bank` is largest, after itself, for the words in the README; its two uses are not similar."""
    attend, compare = re.findall(r"curl .*?'\n(?=curl|$)", code_block(examples, "sh", "/v1/attend"), re.DOTALL)
    (result,) = json.loads(run(["bash", "-c", attend]))["results"]
    names = [unit["text"] for unit in result["units"]]
    row = dict(zip(names, result["maps"][0]["matrix"][names.index("bank")], strict=True))
    assert sorted(row, key=lambda name: -row[name])[:3] == ["bank", "cashed", "check"]
    compared = json.loads(run(["bash", "-c", compare]))
    assert compared["static"][0][1] == 1 > compared["layers"][-1]["cosine"][0][1]


def test_openai_example_prints_counts(examples: str) -> None:
    assert run([sys.executable, "-c", code_block(examples, "python", "openai")]).split() == ["2", "384", "10"]


def test_grpc_example_prints_words_and_shape(examples: str) -> None:
    assert (
        run([sys.executable, "-c", code_block(examples, "python", "grpc")]).strip()
        == "['money', 'bank', 'grows'] (3, 384)"
    )


def test_ready_line_contains_a_working_command(server: RunningServer) -> None:
    """Run the command that `make run` prints."""
    command = server.ready_line.partition("Try: ")[2]
    assert len(json.loads(run(["bash", "-c", command]))["results"][0]["pooled"]) == 384


def test_readme_is_short_and_names_two_commands_first() -> None:
    lines = README.splitlines()
    assert len(lines) < 150
    assert "make run" in "\n".join(lines[:20])
    assert "make test" in "\n".join(lines[:20])
