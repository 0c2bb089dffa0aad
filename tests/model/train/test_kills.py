"""A run killed at random moments produces the same result as an uninterrupted one."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT
from tests.model.train.conftest import to_toml

KILLS = 6


@pytest.mark.slow
def test_killed_run_ends_with_the_same_weights(document: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Sends SIGKILL six times, one to six seconds after the start, i.e. during imports or training."""
    document["run"] |= {"steps": 1500, "checkpoint_steps": 7, "validation_steps": 1000}
    (tmp_path / "config.toml").write_text(to_toml(document))
    command = [sys.executable, "-m", "model", "train", str(tmp_path / "config.toml"), "-o"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True, cwd=ROOT)
    draw, killed = random.Random(0), 0
    for _ in range(KILLS):
        with subprocess.Popen([*command, str(tmp_path / "parts")], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            try:
                process.wait(draw.uniform(1, 6))
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
    assert killed >= KILLS // 2
    subprocess.run([*command, str(tmp_path / "parts")], check=True, capture_output=True, cwd=ROOT)
    whole, parts = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "parts"))
    assert (whole["step"], whole["tokens"]) == (parts["step"], parts["tokens"])
    for name, tensor in whole["network"].items():
        assert torch.equal(tensor, parts["network"][name]), name
