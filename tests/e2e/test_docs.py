"""The examples in the README and in docs/ work and return what the pages show."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import httpx
import numpy as np
import pytest

from service.error_reasons import Reason
from tests.conftest import ROOT, RunningServer, run_python, server_environment

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


def test_ready_line_contains_a_working_command(server: RunningServer) -> None:
    """Runs the command that `make run` prints."""
    command = server.ready_line.partition("Try: ")[2]
    assert len(json.loads(run(["bash", "-c", command]))["results"][0]["pooled"]) == 384


API_PAGE = (ROOT / "docs" / "api.md").read_text()
API_PAGES = "".join(path.read_text() for path in sorted((ROOT / "docs" / "api").glob("*.md")))
EXAMPLES = re.findall(
    r"```http\n(GET|POST) (\S+)\n(?:\n(.*?)\n)?```\n(?:(?!```http).)*?```json\n(.*?)```", API_PAGES, re.DOTALL
)
MACHINE_FIELDS = frozenset(
    (
        "backend_reason",
        "created",
        "digest",
        "length_buckets",
        "max_batch_tokens",
        "model_dtype",
        "precision",
        "provider",
        "threads",
        "total_duration",
        "version",
    )
)
"""Fields whose values depend on the machine."""
REQUEST_ID = "3b9950e19c38cfea"


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"), EXAMPLES, ids=[f"{path}-{n}" for n, (_, path, _, _) in enumerate(EXAMPLES)]
)
def test_example_returns_what_the_page_shows(
    rest: httpx.Client, method: str, path: str, body: str, expected: str
) -> None:
    headers = {"x-request-id": REQUEST_ID}
    response = rest.request(method, path, json=json.loads(body) if body else None, headers=headers)
    assert_same(response.json(), json.loads(expected))


def assert_same(actual: Any, expected: Any, name: str = "") -> None:
    """Compare names, types and values, with numbers within bfloat16 rounding."""
    if name in MACHINE_FIELDS:
        assert type(actual) is type(expected), name
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_same(actual[key], value, key)
    elif isinstance(expected, list):
        assert len(actual) == len(expected), name
        for item, value in zip(actual, expected, strict=True):
            assert_same(item, value, name)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, abs=0.02), name
    else:
        assert actual == expected, name


def test_every_reason_is_documented() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", API_PAGE, re.MULTILINE) == sorted(get_args(Reason))


ASK_PAGE = (ROOT / "docs" / "ask.md").read_text()


@pytest.mark.slow
def test_command_prints_what_the_page_shows(default_artifact: object) -> None:
    (command,) = re.findall(r"^\.venv/bin/attendant (ask .*)$", ASK_PAGE, re.MULTILINE)
    (shown,) = re.findall(r"```text\n(.*?)```", ASK_PAGE, re.DOTALL)
    result = run_python("-m", "service", *shlex.split(command), model_dir=default_artifact)
    assert result.returncode == 0, result.stderr
    printed, expected = ([line.split() for line in text.splitlines()] for text in (result.stdout, shown))
    assert len(printed) == len(expected)
    for got, wanted in zip(printed, expected, strict=True):
        assert [is_number(item) or item for item in got] == [is_number(item) or item for item in wanted]
        for value, other in zip(got, wanted, strict=True):
            if is_number(other):
                # The precision depends on the CPU: cosines vary by up to 0.01, and shares by up to 1%.
                assert abs(float(value) - float(other)) <= (0.01 if "." in other else 1)


def is_number(item: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", item) is not None


FILES_PAGE = (ROOT / "docs" / "embedding-files.md").read_text()


@pytest.mark.slow
def test_commands_write_what_the_page_says(tmp_path: Path, server: RunningServer, default_artifact: Path) -> None:
    """The second command gets the test server's address, and its package is already installed."""
    commands = re.findall(r"```sh\n(.*?)```", FILES_PAGE, re.DOTALL)
    script = "".join(commands).replace(".venv/bin/attendant", f"{sys.executable} -m service")
    script = re.sub(r".*/pip install .*\n", "", script).replace("127.0.0.1:8081", server.grpc)
    environment = server_environment(model_dir=default_artifact, precision="float32")
    paths = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, env=environment | {"PYTHONPATH": paths}, check=True, timeout=120
    )
    first, second = map(json.loads, (tmp_path / "vectors.jsonl").read_text().splitlines())
    (shown,) = re.findall(r'"embedding":\[([-0-9.]+),([-0-9.]+),\.\.\.\]', FILES_PAGE)
    assert (first["row"], first["id"], second["id"]) == (1, 1, 2)
    assert first["embedding"][:2] == pytest.approx([float(value) for value in shown], abs=1e-5)
    vectors = np.load(tmp_path / "by-server.npy")
    assert vectors.shape == (2, 384)
    shortened = vectors[:, :4] / np.linalg.norm(vectors[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(shortened, [first["embedding"], second["embedding"]], atol=0.05)
