"""The training loop: it learns, resumes exactly, and keeps its checkpoint when it fails."""

import errno
import itertools
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.artifact.tokenizer import Tokenizer
from model.encoder import sinusoids
from model.train import loop
from model.train.command import write_tokenizer
from model.train.config import OptimizerOptions, TrainConfig, TrainError, load_config
from model.train.loop import CHECKPOINT, Processes, Result, learning_rate, read_metrics, train
from model.train.objectives import make_objective

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture
def config(config_file: Path) -> TrainConfig:
    return load_config(config_file)


@pytest.fixture
def tokenizer(config: TrainConfig, tmp_path: Path) -> Tokenizer:
    write_tokenizer(config, tmp_path / "tokenizer.json")
    return Tokenizer((tmp_path / "tokenizer.json").read_bytes())


def with_run(config: TrainConfig, **options: Any) -> TrainConfig:
    return config.model_copy(update={"run": config.run.model_copy(update=options)})


def run(config: TrainConfig, tokenizer: Tokenizer, directory: Path) -> Result:
    directory.mkdir(exist_ok=True)
    return train(config, make_objective(config, tokenizer, None), tokenizer, directory, ALONE)


def weights(directory: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(directory / CHECKPOINT, weights_only=True)["network"]
    return state


def assert_same_weights(whole: Path, parts: Path) -> None:
    expected, actual = weights(whole), weights(parts)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the next training once, in a step counted from its start."""
    original, steps = loop.take_step, itertools.count(1)

    def take_step(*arguments: Any) -> Any:
        if next(steps) == step:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(loop, "take_step", take_step)


def test_loss_falls(config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path) -> None:
    result = run(with_run(config, steps=40, validation_steps=40), tokenizer, tmp_path / "run")
    rows = read_metrics(tmp_path / "run")
    assert [int(row["step"]) for row in rows] == list(range(1, 41))
    assert float(rows[-1]["loss"]) < 0.9 * float(rows[0]["loss"])
    assert result.validation_loss < 0.9 * float(rows[0]["loss"])
    assert float(rows[-1]["perplexity"]) == pytest.approx(math.exp(result.validation_loss))
    assert result.tokens == int(rows[-1]["tokens"])


@pytest.mark.parametrize("failing_step", [1, 3, 4, 8, 12])
def test_interrupted_run_ends_with_the_same_weights(
    config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_step: int
) -> None:
    """Weights must be equal bit for bit, wherever the run is interrupted, and metrics.csv must list each step once."""
    run(config, tokenizer, tmp_path / "whole")
    interrupt_at(failing_step, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(config, tokenizer, tmp_path / "parts")
    run(config, tokenizer, tmp_path / "parts")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    columns = ("step", "tokens", "loss", "validation_loss")
    assert [[row[name] for name in columns] for row in read_metrics(tmp_path / "whole")] == [
        [row[name] for name in columns] for row in read_metrics(tmp_path / "parts")
    ]


def test_other_configuration_and_truncated_checkpoint_are_errors(
    config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run(config, tokenizer, tmp_path / "run")
    with pytest.raises(TrainError, match=r"another run\.seed \(1, now 2\)"):
        run(with_run(config, seed=2), tokenizer, tmp_path / "run")
    path = tmp_path / "run" / CHECKPOINT
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(TrainError, match=r"checkpoint\.pt: damaged"):
        run(config, tokenizer, tmp_path / "run")


def test_checkpoint_of_a_gpu_continues_on_a_cpu(
    config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.save tags GPU tensors with "cuda:0"; everything else is the same as on a CPU."""
    half = with_run(config, steps=6)
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        run(half, tokenizer, tmp_path / "run")
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)
    expected = run(half, tokenizer, tmp_path / "cpu")
    assert run(half, tokenizer, tmp_path / "run") == expected


def test_moved_data_continues_a_run_and_changed_data_does_not(
    config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Data is compared by content, not by path or modification time."""
    expected = run(config, tokenizer, tmp_path / "run")
    (train_file,) = config.data.train
    moved = train_file.rename(tmp_path / "moved.txt")
    data = config.data.model_copy(update={"train": (moved,)})
    assert run(config.model_copy(update={"data": data}), tokenizer, tmp_path / "run") == expected
    text = moved.read_text()
    status = moved.stat()
    moved.write_text(text.replace("river", "RIVER", 1))
    os.utime(moved, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
    with pytest.raises(TrainError, match=r"another data\.train \(\['sha256:\w{12}'\], now \['sha256:\w{12}'\]\)"):
        run(config.model_copy(update={"data": data}), tokenizer, tmp_path / "run")


def test_full_disk_keeps_the_last_checkpoint(
    config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(TrainError, match="No space left on device"):
        run(config, tokenizer, tmp_path / "run")
    assert torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)["step"] == config.run.checkpoint_steps
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [CHECKPOINT, "metrics.csv"]


def test_loss_that_is_not_finite_is_an_error(config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path) -> None:
    optimizer = config.optimizer.model_copy(update={"learning_rate": 1e30, "warmup_steps": 0})
    with pytest.raises(TrainError, match=r"step 2: loss nan.* Reduce optimizer\.learning_rate"):
        run(config.model_copy(update={"optimizer": optimizer}), tokenizer, tmp_path / "run")


def test_batches_per_step_must_be_a_multiple_of_the_processes(
    config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(TrainError, match=r"run\.batches_per_step: not a multiple of 3 processes"):
        train(config, make_objective(config, tokenizer, None), tokenizer, tmp_path, replace(ALONE, count=3))


def test_bfloat16_gives_a_similar_loss(config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path) -> None:
    expected = run(config, tokenizer, tmp_path / "float32").validation_loss
    lower = run(with_run(config, precision="bfloat16"), tokenizer, tmp_path / "bfloat16").validation_loss
    assert lower == pytest.approx(expected, rel=0.02)
    assert lower != expected


def test_learning_rate_warms_up_and_decays() -> None:
    options = OptimizerOptions(learning_rate=1.0, warmup_steps=4, min_learning_rate_ratio=0.1)
    rates = [learning_rate(step, 24, options) for step in range(1, 25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[13] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_sinusoids_follow_the_formula() -> None:
    """Vaswani et al. 2017, section 3.5, up to a constant factor."""
    table = sinusoids(50, 16)
    scale, angle = float(table[0, 1]), 7 / 10_000 ** (4 / 16)
    assert float(table[7, 4]) / scale == pytest.approx(math.sin(angle), abs=1e-5)
    assert float(table[7, 5]) / scale == pytest.approx(math.cos(angle), abs=1e-5)


def test_sinusoidal_positions_are_not_trained(config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = config.model.model_copy(update={"positions": "sinusoidal"})
    run(config.model_copy(update={"model": model}), tokenizer, tmp_path / "run")
    table = weights(tmp_path / "run")["encoder.embeddings.position_embeddings.weight"]
    expected = sinusoids(config.model.max_input_tokens, config.model.hidden_size)
    assert torch.allclose(table, table[0, 1] * expected, atol=1e-7)


def test_log_has_lines_instead_of_a_bar(
    config: TrainConfig, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(loop, "LOG_PERIOD_S", 0.0)
    run(with_run(config, steps=3), tokenizer, tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"attendant-model train: step 3 of 3, loss \d+\.\d{3}, tokens_per_s \d+, 0 s left", lines[-1])
