"""`attendant embed`: output, lines, errors and exit status."""

import json
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.__main__ import main
from tests.conftest import HANG_TIMEOUT_S, ROOT, server_environment
from tests.service.commands.embed_command import RunEmbed

Embed = Callable[..., tuple[int, list[str], str]]
TEXTS = ["money bank grows", "river bank flows", "a line with \u2028 in it"]


@pytest.fixture
def embed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, default_artifact: Path) -> Embed:
    """Run the command in this process; return status, lines of stdout, and stderr."""
    monkeypatch.setenv("ATTENDANT_MODEL_DIR", str(default_artifact))

    def run(*texts: str, stdin: bytes = b"") -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin)))
        status = main(["embed", *texts])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return run


def test_embed_prints_the_embeddings_of_the_server(embed: Embed, rest: httpx.Client) -> None:
    """The output has one JSON line per argument."""
    status, lines, err = embed(*TEXTS)
    expected = rest.post("/v1/encode", json={"inputs": TEXTS}).json()["results"]
    vectors = [json.loads(line) for line in lines]
    np.testing.assert_allclose(vectors, [item["pooled"] for item in expected], atol=1e-4)
    assert (status, err) == (0, "")


def test_embed_reads_lines_from_standard_input(embed: Embed) -> None:
    """There are enough lines for several batches."""
    status, lines, _ = embed(stdin=b"a word\n" * 70)
    assert (status, len(lines)) == (0, 70)


def test_embed_error_names_the_line(embed: Embed) -> None:
    """Earlier batches have already been printed."""
    status, lines, err = embed(stdin=b"a word\n" * 40 + b"\nlast\n")
    assert (status, len(lines)) == (65, 32)
    assert err == "attendant embed: line 41: empty or blank. Send text.\n"


def test_embed_error_names_the_argument_that_is_not_utf8(embed: Embed) -> None:
    error = "attendant embed: text 2: not UTF-8. Send text in UTF-8.\n"
    assert embed("a", "b\udcff") == (65, [], error)


def test_embed_truncates_long_lines_with_a_warning(embed: Embed) -> None:
    status, lines, err = embed("word " * 300, "short")
    assert (status, len(lines)) == (0, 2)
    assert err == "attendant embed: truncated 1 text to 256 tokens, the limit of the model\n"


@pytest.mark.slow
def test_embed_exits_without_error_when_the_pipe_closes(default_artifact: Path) -> None:
    pipeline = f"yes hello | head -2000 | {sys.executable} -m service embed | head -1"
    result = subprocess.run(
        ["bash", "-c", pipeline], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (len(result.stdout.splitlines()), result.stderr) == (1, "")


def test_embed_is_not_limited_by_the_options_of_requests(embed: Embed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Request limits do not apply offline; they would reject a slow model's batches."""
    for name in ("MAX_QUEUE_MS", "MAX_QUEUE_TOKENS", "MAX_TIMEOUT_MS", "MAX_INPUTS"):
        monkeypatch.setenv(f"ATTENDANT_{name}", "1")
    status, lines, err = embed(stdin=b"a word\n" * 70)
    assert (status, len(lines), err) == (0, 70, "")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["t.jsonl"], "file t.jsonl"),
        (["T.CSV", "a text"], "file T.CSV"),
        (["t.jsonl", "--field", "text"], "option --field"),
        (["a text", "--server=http://a"], "option --server"),
        (["../nofile"], "file ../nofile"),
        (["/nofile"], "file /nofile"),
        (["README"], "file README"),
    ],
)
def test_forgotten_output_is_wrong_usage(
    tmp_path: Path, run_embed: RunEmbed, arguments: list[str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README").touch()
    remedy = "Set -o OUT" + (": texts allow no options" if "option" in shown else ", or write texts to standard input")
    remedy += ". See: attendant embed --help"
    assert run_embed(*arguments) == (2, f"attendant embed: --output: missing ({shown}). {remedy}\n")


def test_texts_that_resemble_options_or_files_are_embedded(embed: Embed) -> None:
    texts = ["- an item", "see data.csv", "and/or", "-5 degrees", "x" * 5000]
    status, lines, err = embed(*texts)
    assert (status, len(lines)) == (0, len(texts)), err
