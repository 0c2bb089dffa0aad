"""The README's examples, with other ports."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunningServer, server_environment

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def examples(server: RunningServer) -> str:
    """The README with the test server's addresses, because the default ports may be in use."""
    text = README.replace("http://127.0.0.1:8080", server.rest).replace("127.0.0.1:8081", server.grpc)
    assert "127.0.0.1:8081" not in text
    return text


def code_block(text: str, language: str, part: str) -> str:
    """Return the only code block in a language that contains `part`."""
    (code,) = [block for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if part in block]
    return str(code)


def run(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout


def test_encode_example_prints_two_vectors_for_bank(examples: str) -> None:
    first, second = json.loads(run(["bash", "-c", code_block(examples, "sh", "/v1/encode")]))["results"]
    assert [word["text"] for word in first["words"]] == ["money", "bank", "grows"]
    assert first["word_vectors"][1] != second["word_vectors"][1]


def test_explain_examples_match_the_readme(examples: str) -> None:
    """In the row of `bank`, the README's words are the largest after itself; the two uses are not similar."""
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


@pytest.mark.slow
def test_commands_of_the_readme_work(tmp_path: Path, default_artifact: Path) -> None:
    script = code_block(README, "sh", "attendant embed").replace(".venv/bin/attendant", f"{sys.executable} -m service")
    environment = server_environment(model_dir=default_artifact) | {"PYTHONPATH": str(ROOT)}
    command = ["bash", "-ec", script]
    output = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert output.returncode == 0, output.stderr
    assert (tmp_path / "vectors.parquet").is_file()
    assert "rollout of all layers" in output.stdout


def test_encode_response_is_abridged_from_the_server(examples: str) -> None:
    """Numbers in the README's response must match within the machine's precision."""
    (shown,) = re.findall(r"```text\n(\{.*?)```", examples, re.DOTALL)
    (first, _) = json.loads(run(["bash", "-c", code_block(examples, "sh", "/v1/encode")]))["results"]
    vectors = [first["pooled"], *first["word_vectors"][:2]]
    numbers = [float(number) for pair in re.findall(r"\[(-?0\.\d+), (-?0\.\d+), \.\.\.\]", shown) for number in pair]
    assert numbers == pytest.approx([value for vector in vectors for value in vector[:2]], abs=0.01)


def test_ready_line_names_the_page(server: RunningServer) -> None:
    (page,) = re.findall(r", page (\S+)\. Try: ", server.ready_line)
    assert page == f"{server.rest}/"


def test_protos_of_the_stubs_resolve_without_other_files(tmp_path: Path) -> None:
    """Runs the protoc commands in docs/grpc.md with a descriptor as output, because CI has no plugins."""
    page = (ROOT / "docs" / "grpc.md").read_text().replace("\\\n", "")
    commands = re.findall(r"^(?:protoc|python -m grpc_tools\.protoc) (.*)$", page, re.MULTILINE)
    assert len(commands) == 3
    kept = {
        tuple(word for word in command.split() if re.fullmatch(r"-I\S+|[a-z0-9/]+\.proto", word))
        for command in commands
    }
    (arguments,) = kept
    out = tmp_path / "encoder.binpb"
    run([sys.executable, "-m", "grpc_tools.protoc", *arguments, f"--descriptor_set_out={out}"])
    assert out.stat().st_size > 0


def test_ready_line_contains_a_working_command(server: RunningServer) -> None:
    """Runs the command that `make run` prints."""
    command = server.ready_line.partition("Try: ")[2]
    assert len(json.loads(run(["bash", "-c", command]))["results"][0]["pooled"]) == 384
