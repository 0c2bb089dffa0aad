"""The command `attendant embed`: output, lines, errors and exit status."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.__main__ import main
from tests.conftest import HANG_TIMEOUT_S, ROOT, run_python, server_environment
from tests.service.commands.embed_command import RunEmbed

TEXTS = ["money bank grows", "river bank flows", "a line with \u2028 in it"]


def test_embed_prints_the_embeddings_of_the_server(rest: httpx.Client, default_artifact: Path) -> None:
    """The output is one JSON line per argument."""
    result = run_python("-m", "service", "embed", *TEXTS, model_dir=default_artifact)
    expected = rest.post("/v1/encode", json={"inputs": TEXTS}).json()["results"]
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    np.testing.assert_allclose(lines, [item["pooled"] for item in expected], atol=1e-4)
    assert (result.returncode, result.stderr) == (0, "")


def test_embed_reads_lines_from_standard_input(default_artifact: Path) -> None:
    """The lines need several batches."""
    result = run_python("-m", "service", "embed", stdin="a word\n" * 70, model_dir=default_artifact)
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 70)


def test_embed_error_names_the_line(default_artifact: Path) -> None:
    """Earlier batches are printed."""
    result = run_python("-m", "service", "embed", stdin="a word\n" * 40 + "\nlast\n", model_dir=default_artifact)
    assert (result.returncode, len(result.stdout.splitlines())) == (1, 32)
    assert result.stderr == "attendant: line 41: empty or blank. Send text.\n"


def test_embed_truncates_long_lines_with_a_warning(default_artifact: Path) -> None:
    result = run_python("-m", "service", "embed", "word " * 300, "short", model_dir=default_artifact)
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 2)
    assert result.stderr == "attendant: truncated 1 lines to 256 tokens, the limit of the model\n"


def test_embed_rejects_input_that_is_not_utf8(default_artifact: Path) -> None:
    """The error is one line without a traceback."""
    result = subprocess.run(
        [sys.executable, "-m", "service", "embed"], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        input=b"hello\n\xff\n", capture_output=True, timeout=HANG_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (1, b"attendant: line 2: not UTF-8. Send text in UTF-8.\n")


def test_embed_exits_without_error_when_the_pipe_closes(default_artifact: Path) -> None:
    pipeline = f"yes hello | head -2000 | {sys.executable} -m service embed | head -1"
    result = subprocess.run(
        ["bash", "-c", pipeline], cwd=ROOT, env=server_environment(model_dir=default_artifact),
        capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (len(result.stdout.splitlines()), result.stderr) == (1, "")


def test_embed_is_not_limited_by_the_options_of_requests(default_artifact: Path) -> None:
    """No client waits, and limits of the queue would reject batches of a slow model."""
    limits: dict[str, Any] = {"max_queue_ms": 1, "max_queue_tokens": 1, "max_timeout_ms": 1, "max_inputs": 1}
    result = run_python("-m", "service", "embed", stdin="a word\n" * 70, model_dir=default_artifact, **limits)
    assert (result.returncode, len(result.stdout.splitlines()), result.stderr) == (0, 70, "")


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


def test_texts_that_resemble_options_or_files_are_embedded(default_artifact: Path) -> None:
    texts = ["- an item", "see data.csv", "and/or", "-5 degrees", "x" * 5000]
    result = run_python("-m", "service", "embed", *texts, model_dir=default_artifact)
    assert (result.returncode, len(result.stdout.splitlines())) == (0, len(texts)), result.stderr


def test_help_lists_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["embed", "a text", "--help"])
    statuses = capsys.readouterr().out.partition("Exit status: ")[2]
    assert re.findall(r"\d+", statuses) == ["0", "1", "2", "65", "69", "73", "78", "130"]
