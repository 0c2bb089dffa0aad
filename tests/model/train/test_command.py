"""The command with a conflicting run directory, damaged files or signals: one line of error, nothing lost."""

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from model.__main__ import main
from model.artifact.files import MANIFEST, Artifact, write_manifest
from model.artifact.manifest import EvaluationRecord
from model.train.command import ARTIFACT, OPTIONS, TOKENIZER
from model.train.loop import CHECKPOINT
from model.train.tokenizers import MAX_WORD_CHARACTERS, without_long_words
from tests.conftest import ROOT
from tests.model.model_files import read_json, write_json
from tests.model.train.conftest import to_toml

Document = dict[str, dict[str, Any]]


def train(document: Document, directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command; return its error, or "" if it succeeded."""
    (directory / "config.toml").write_text(to_toml(document))
    capsys.readouterr()
    status = main(["train", str(directory / "config.toml"), "-o", str(directory / "run")])
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("attendant-model: ")]
    assert len(errors) == (status != 0)
    assert "Traceback" not in "".join(lines)
    return errors[0] if errors else ""


def test_other_options_are_an_error_before_the_first_checkpoint(
    document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "validation.txt").write_text("")
    assert "empty" in train(document, tmp_path, capsys)
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    document["tokenizer"]["vocab_size"] = 50
    assert "another tokenizer.vocab_size (60, now 50)" in train(document, tmp_path, capsys)


def test_directory_in_use_is_an_error(document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    out.mkdir()
    descriptor = os.open(out, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    error = train(document, tmp_path, capsys)
    os.close(descriptor)
    assert error == f"attendant-model: {out}: in use by another process. Wait for its end."
    assert not list(out.iterdir())


def test_run_of_an_older_version_has_the_default_parts(
    document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "validation.txt").write_text("")
    assert "empty" in train(document, tmp_path, capsys)
    path = tmp_path / "run" / OPTIONS
    options = read_json(path)
    for name in ("block", "gated", "window", "rope_theta", "global_attn_every_n_layers"):
        del options[f"model.{name}"]
    write_json(path, options)
    assert "empty" in train(document, tmp_path, capsys)
    document["model"]["block"] = "pre"
    assert "another model.block ('post', now 'pre')" in train(document, tmp_path, capsys)


@pytest.mark.slow
def test_finished_run_keeps_its_artifact(
    document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluations added later must be kept. Options that do not affect the result may change."""
    assert train(document, tmp_path, capsys) == ""
    artifact = tmp_path / "run" / ARTIFACT
    record = EvaluationRecord(task="sts", file="a", measure="Spearman", value=0.5, low=None, high=None)
    manifest = Artifact.open(artifact).manifest.model_copy(update={"evaluations": (record,)})
    digest = write_manifest(artifact, manifest)
    document["run"] |= {"checkpoint_steps": 5, "validation_steps": 4}
    assert train(document, tmp_path, capsys) == ""
    assert Artifact.open(artifact).digest == digest
    (artifact / MANIFEST).write_text("damaged")
    assert train(document, tmp_path, capsys) == ""
    assert Artifact.open(artifact).manifest.evaluations == ()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (TOKENIZER, b"{}", "tokenizer.json: damaged"),
        (OPTIONS, b"{", "options.json: damaged"),
        (CHECKPOINT, b"", "checkpoint.pt: damaged"),
    ],
)
def test_damaged_file_is_an_error(
    document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, message: str
) -> None:
    (tmp_path / "validation.txt").write_text("")
    train(document, tmp_path, capsys)
    (tmp_path / "run" / name).write_bytes(content)
    (tmp_path / "validation.txt").write_text("river bank")
    assert message in train(document, tmp_path, capsys)


def test_checkpoint_of_something_else_is_an_error(
    document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    torch.save({"anything": 1}, tmp_path / "run" / CHECKPOINT)
    assert "not a checkpoint of this model" in train(document, tmp_path, capsys)


def test_paths_that_do_not_fit_are_errors(
    document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").write_text("")
    assert "run: not a directory. Choose another path." in train(document, tmp_path, capsys)
    document["data"]["validation"] = ["none.txt"]
    assert "none.txt: no such file" in train(document, tmp_path, capsys)
    assert (tmp_path / "run").is_file()


def test_texts_of_unknown_characters_are_an_error(
    document: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "validation.txt").write_text("река берег")
    assert "data.validation: no token of the texts is in the vocabulary" in train(document, tmp_path, capsys)


def test_long_words_are_not_for_the_tokenizer() -> None:
    text = "a " * MAX_WORD_CHARACTERS + "b" * (MAX_WORD_CHARACTERS + 1)
    assert without_long_words(text).split() == ["a"] * MAX_WORD_CHARACTERS
    assert without_long_words("  two  words ") == "  two  words "


def start_and_signal(
    module: list[str], directory: Path, number: signal.Signals, written: str = "metrics.csv", delay_s: float = 0
) -> tuple[int, str]:
    """Start the command with `python -m module`, send a signal once it is training; return status and stderr.

    The signal comes `delay_s` after the run has written the file `written`.
    """
    command = [sys.executable, "-m", *module, "train", str(directory / "config.toml"), "-o", str(directory / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    path = directory / "run" / written
    before = path.stat().st_mtime_ns if path.is_file() else 0
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=environment) as run:
        deadline = time.monotonic() + 60
        while not (path.is_file() and path.stat().st_mtime_ns > before) and time.monotonic() < deadline:
            time.sleep(0.05)  # there is no event to wait for
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(delay_s)
        run.send_signal(number)
        assert run.stderr is not None
        error = run.stderr.read().decode()
        return run.wait(), error


@pytest.mark.slow
def test_signal_writes_a_checkpoint_of_several_processes(document: Document, tmp_path: Path) -> None:
    """torchrun passes the signal on to both processes at different times. The run must be resumable."""
    document["run"] |= {"steps": 1_000_000, "checkpoint_steps": 1_000_000, "validation_steps": 1_000_000}
    (tmp_path / "config.toml").write_text(to_toml(document))
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--log-dir={tmp_path}", "-m", "model"]
    for _ in range(2):
        before = read_step(tmp_path)
        _, error = start_and_signal(launcher, tmp_path, signal.SIGTERM)
        assert error.count("attendant-model: interrupted. Run the command again to continue.\n") == 1, error
        assert read_step(tmp_path) > before


def read_step(directory: Path) -> int:
    path = directory / "run" / CHECKPOINT
    return int(torch.load(path, weights_only=True)["step"]) if path.is_file() else 0


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_signal_writes_a_checkpoint(document: Document, tmp_path: Path, number: signal.Signals) -> None:
    document["run"] |= {"steps": 1_000_000, "checkpoint_steps": 1_000_000, "validation_steps": 1_000_000}
    (tmp_path / "config.toml").write_text(to_toml(document))
    status, error = start_and_signal(["model"], tmp_path, number)
    assert status == 130
    assert error.endswith("attendant-model: interrupted. Run the command again to continue.\n")
    assert "Traceback" not in error
    assert read_step(tmp_path) > 0


@pytest.mark.slow
def test_killed_run_ends_with_the_same_weights(document: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Sends SIGKILL three times, up to 0.1 s after a checkpoint: during a step, or while the next one is written."""
    document["run"] |= {"steps": 300, "checkpoint_steps": 3, "validation_steps": 300}
    (tmp_path / "config.toml").write_text(to_toml(document))
    draw, before = random.Random(0), 0
    for _ in range(3):
        status, _ = start_and_signal(["model"], tmp_path, signal.SIGKILL, CHECKPOINT, draw.uniform(0, 0.1))
        assert status == -signal.SIGKILL
        assert before < read_step(tmp_path) < 300
        before = read_step(tmp_path)
    for name in ("whole", "run"):
        assert main(["train", str(tmp_path / "config.toml"), "-o", str(tmp_path / name)]) == 0
    whole, parts = (torch.load(tmp_path / name / CHECKPOINT, weights_only=True) for name in ("whole", "run"))
    assert (whole["step"], whole["tokens"]) == (parts["step"], parts["tokens"])
    for name, tensor in whole["network"].items():
        assert torch.equal(tensor, parts["network"][name]), name
